//! `plan_parts`: divides the rows of a launch of attention into parts, from lengths on the device.
//!
//! [`Limits`] has the rule, which the host uses too where it knows the lengths. It only asks how many parts of
//! a size there are. One warp works, because a list has some hundred entries.

use crate::args::PlanParts;
use crate::attend::UNUSED;
use crate::page::SLOTS;
use crate::threads::{Threads, divide, uniform};

/// Warps per block of a launch.
pub const WARPS: u32 = 4;

/// Most parts of a row. Each part is written, and the merge reads it again. At head dim 128 the merge waits
/// for memory once per 32 parts.
const MOST: u32 = 256;

/// The cost of a part beyond its pages, in pages: its queries are rounded and its result is written.
const EDGES: u32 = 1;

/// The time of a page where `blocks` blocks share a multiprocessor. One block mostly waits, so two do not
/// take twice its time. On an H100 a page of `s4` takes 2.2, 3.6 and 4.9 us with one, two and three.
#[inline(always)]
fn pace(blocks: u32) -> u32 {
    5 + 8 * blocks
}

/// The limits of the parts of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Multiprocessors of the device.
    pub multiprocessors: u32,
    /// Blocks of [`WARPS`] warps that run on a multiprocessor at once.
    pub blocks: u32,
    /// Warps of a part: one for each KV head and chunk of query heads.
    pub warps: u32,
    /// Bytes from a part to the next one among the partial results. The merge counts them in 32 bits.
    pub stride: u32,
}

impl Limits {
    /// Warps that run on the device at once.
    #[inline(always)]
    pub fn resident(self) -> u32 {
        self.multiprocessors * self.blocks * WARPS
    }

    /// Parts whose warps are in `blocks` blocks on each multiprocessor, at once or in turns.
    #[inline(always)]
    fn parts_in(self, blocks: u32) -> u32 {
        divide(blocks.saturating_mul(self.multiprocessors * WARPS), self.warps.max(1)).0
    }

    /// Turns that a number of parts takes.
    #[inline(always)]
    pub fn turns_of(self, parts: u32) -> u32 {
        let resident = self.resident().max(1);
        divide(parts.saturating_mul(self.warps).saturating_add(resident - 1), resident).0.max(1)
    }

    /// The time of the device for this many parts of up to `pages` pages.
    #[inline(always)]
    fn cost(self, parts: u32, pages: u32) -> u32 {
        let blocks = parts.div_ceil(WARPS).saturating_mul(self.warps);
        let a_turn = (self.multiprocessors * self.blocks).max(1);
        let (turns, rest) = divide(blocks, a_turn);
        let last = divide(rest + self.multiprocessors.max(1) - 1, self.multiprocessors.max(1)).0;
        let last = if last > 0 { pace(last) } else { 0 };
        turns.saturating_mul(pace(self.blocks)).saturating_add(last).saturating_mul(pages + EDGES)
    }

    /// Most parts of a launch of `rows` rows, whatever their lengths.
    #[inline(always)]
    pub fn most_parts(self, rows: u32) -> u32 {
        self.parts_in((self.turns_of(rows) + 1) * self.blocks).max(rows)
    }

    /// The fewest pages of a part of a row of `longest` pages.
    #[inline(always)]
    pub fn fewest_pages(self, longest: u32) -> u32 {
        longest.div_ceil((u32::MAX / self.stride.max(1)).clamp(1, MOST))
    }

    /// The fewest pages per part with which there are at most `most` parts, and no row has too many.
    /// `count(pages)` is the number of parts of up to that many pages.
    #[inline(always)]
    pub fn pages_for(self, longest: u32, most: u32, count: impl Fn(u32) -> u32) -> u32 {
        let (mut low, mut high) = (1, longest);
        while low < high {
            let middle = low.midpoint(high);
            if count(middle) <= most { high = middle } else { low = middle + 1 }
        }
        low.max(self.fewest_pages(longest))
    }

    /// The pages per part of `rows` rows, the longest of which has `longest` pages, with the least time. Then
    /// there are at most [`Limits::most_parts`].
    #[inline(always)]
    pub fn pages_a_part(self, rows: u32, longest: u32, count: impl Fn(u32) -> u32) -> u32 {
        // In more turns the parts are smaller, so less time is lost at the end of the last turn. In a part of
        // a turn, fewer warps share a multiprocessor.
        let turns = self.turns_of(rows);
        let (mut blocks, last) = ((turns - 1) * self.blocks + 1, (turns + 1) * self.blocks);
        let (mut best, mut least) = (longest, u32::MAX);
        while blocks <= last {
            let pages = self.pages_for(longest, self.parts_in(blocks), &count);
            let cost = self.cost(count(pages), pages);
            if cost < least {
                (best, least) = (pages, cost);
            }
            blocks += 1;
        }
        best
    }
}

/// Combines the values of all threads.
#[inline(always)]
fn over_threads<T: Threads>(value: T::Of<u32>, f: impl Fn(u32, u32) -> u32) -> u32 {
    let step = |value, mask| T::zip(value, T::shuffle_xor(value, mask), &f);
    uniform::<T>(step(step(step(step(step(value, 16), 8), 4), 2), 1))
}

/// The rows of a launch, 32 at a time.
#[derive(Clone, Copy)]
struct RowSpans<T: Threads> {
    /// The sequence of each row.
    sequences: T::Memory,
    /// The token after the last one that each row sees.
    lengths: T::Memory,
    /// The first token that the rows of each sequence see, if `has_starts`.
    starts: T::Memory,
    has_starts: bool,
    count: u32,
}

impl<T: Threads> RowSpans<T> {
    /// The first token that each row sees, and the page after its last one. A row without tokens begins there.
    #[inline(always)]
    fn span(self, row: T::Of<u32>) -> T::Of<(u32, u32)> {
        let offset = T::map(row, |row| 4 * row);
        let tokens = T::load::<1>(self.lengths, offset);
        let mut start = T::splat(0);
        if self.has_starts {
            let sequence = T::load::<1>(self.sequences, offset);
            let given = T::load::<1>(self.starts, T::map(sequence, |[sequence]| 4 * sequence));
            start = T::map(given, |[start]| if start >> 31 == 0 { start } else { 0 });
        }
        T::zip(start, tokens, |start, [tokens]| {
            let end = tokens.div_ceil(SLOTS);
            (if start < tokens { start } else { SLOTS * end }, end)
        })
    }

    /// The pages of each thread's row, from row `first` on. A row after the last one has none.
    #[inline(always)]
    fn pages(self, first: u32) -> T::Of<u32> {
        let row = T::map(T::lane(), |lane| first + lane);
        let span = self.span(T::map(row, |row| u32::min(row, self.count - 1)));
        T::zip(row, span, |row, (start, end)| if row < self.count { end - start / SLOTS } else { 0 })
    }

    /// The number of parts of up to `size` pages of each thread's row. A row without pages has one.
    #[inline(always)]
    fn parts(self, first: u32, size: u32) -> T::Of<u32> {
        let row = T::map(T::lane(), |lane| first + lane);
        // A maximum stays one instruction, where a choice may become a branch around the division.
        T::zip(row, self.pages(first), |row, pages| {
            divide(pages + size - 1, size).0.max(u32::from(row < self.count))
        })
    }

    /// Combines a value of every row.
    #[inline(always)]
    fn all(self, of: impl Fn(u32) -> T::Of<u32>, f: impl Fn(u32, u32) -> u32) -> u32 {
        let (mut all, mut first) = (T::splat(0), 0);
        while first < self.count {
            all = T::zip(all, of(first), &f);
            first += 32;
        }
        over_threads::<T>(all, f)
    }
}

/// Writes the sequence of each row, and the tokens that it sees.
#[inline(always)]
fn write_rows<T: Threads>(args: &PlanParts<T::Memory>, rows: RowSpans<T>) {
    let mut first = 0;
    while first < rows.count {
        let row = T::map(T::lane(), |lane| first + lane);
        let active = T::map(row, |row| row < rows.count);
        let place = T::map(row, |row| divide(u32::min(row, rows.count - 1), args.queries));
        let tokens = T::load::<1>(args.lengths, T::map(place, |(sequence, _)| 4 * sequence));
        let length = T::zip(place, tokens, |(_, query), [tokens]| {
            let tokens = if tokens >> 31 == 0 { u32::min(tokens, args.most_tokens) } else { 0 };
            [tokens.saturating_sub(args.queries - 1 - query)]
        });
        let offset = T::map(row, |row| 4 * row);
        T::store::<1>(args.words, offset, T::map(place, |(sequence, _)| [sequence]), active);
        T::store::<1>(rows.lengths, offset, length, active);
        first += 32;
    }
}

/// Writes the first part of each row, of parts of up to `size` pages, and then their number, which it returns.
#[inline(always)]
fn write_first<T: Threads>(rows: RowSpans<T>, first_part: T::Memory, size: u32) -> u32 {
    let (mut before, mut first) = (0, 0);
    while first < rows.count {
        let parts = rows.parts(first, size);
        let mut sum = parts;
        unroll32!(I => {
            let step = I as u32;
            if step.is_power_of_two() {
                let other = T::shuffle(sum, T::map(T::lane(), |lane| lane.wrapping_sub(step)));
                let both = T::zip(sum, other, |sum, other| (sum, other));
                sum = T::zip(T::lane(), both, |lane, (sum, other)| if lane < step { sum } else { sum + other });
            }
        });
        let row = T::map(T::lane(), |lane| first + lane);
        let start = T::zip(sum, parts, |sum, parts| [before + sum - parts]);
        before += uniform::<T>(T::shuffle(sum, T::splat(31)));
        T::store::<1>(first_part, T::map(row, |row| 4 * row), start, T::map(row, |row| row < rows.count));
        first += 32;
    }
    T::store::<1>(first_part, T::splat(4 * rows.count), T::splat([before]), crate::threads::first::<T>());
    before
}

/// Makes the list of parts of a launch. Only warp 0 works.
#[inline(always)]
pub fn plan_parts<T: Threads>(warp: u32, args: PlanParts<T::Memory>) {
    if warp > 0 || args.rows == 0 {
        return;
    }
    let PlanParts { multiprocessors, blocks, warps, stride, entries, words, .. } = args;
    let limits = Limits { multiprocessors, blocks, warps, stride };
    let behind = |rows: u32| T::at(words, 4 * u64::from(rows) * u64::from(args.rows));
    let rows = RowSpans::<T> {
        sequences: words,
        lengths: behind(1),
        starts: args.starts,
        has_starts: args.has_starts != 0,
        count: args.rows,
    };
    let first_part = behind(2);
    let list = T::at(first_part, 4 * (u64::from(args.rows) + 1));
    write_rows(&args, rows);
    T::sync();
    let longest = rows.all(|first| rows.pages(first), u32::max).max(1);
    let count = |size: u32| rows.all(|first| rows.parts(first, size), |a, b| a + b);
    let size = limits.pages_a_part(rows.count, longest, count);
    let used = write_first(rows, first_part, size);
    T::sync();
    let mut first = 0;
    while first < entries {
        let entry = T::map(T::lane(), |lane| first + lane);
        // The last row that begins at or before the entry.
        let mut range = T::splat((0, rows.count));
        let mut left = rows.count;
        while left > 1 {
            let middle = T::map(range, |(low, high): (u32, u32)| low.midpoint(high));
            let start = T::load::<1>(first_part, T::map(middle, |middle| 4 * middle));
            let is_before = T::zip(entry, start, |entry, [start]| start <= entry);
            range = T::zip(
                range,
                T::zip(middle, is_before, |middle, is| (middle, is)),
                |(low, high), (middle, is)| {
                    if is { (middle, high) } else { (low, middle) }
                },
            );
            left = left.div_ceil(2);
        }
        let row = T::map(range, |(low, _)| low);
        let before = T::zip(entry, T::load::<1>(first_part, T::map(row, |row| 4 * row)), |entry, [start]| {
            (entry - start).wrapping_mul(size)
        });
        // Where the entry is not used the numbers wrap.
        let part = T::zip(before, rows.span(row), |before, (start, end)| {
            let page = (start / SLOTS).wrapping_add(before);
            let token = if before == 0 { start } else { page.wrapping_mul(SLOTS) };
            [token, u32::min(end, page.wrapping_add(size))]
        });
        let part = T::zip(row, part, |row, [start, end]| [row, start, end]);
        let part = T::zip(entry, part, |entry, part| if entry < used { part } else { [UNUSED; 3] });
        T::store::<3>(list, T::map(entry, |entry| 12 * entry), part, T::map(entry, |entry| entry < entries));
        first += 32;
    }
}
