//! `plan_parts`: divides the rows of a launch of attention into parts, from lengths on the device.
//!
//! [`Limits`] has the rule, which the host uses too where it knows the lengths. It only asks how many parts of
//! a size there are. One warp works, because a list has some hundred entries. It holds the pages of the rows in
//! registers, so a question reads no memory.

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

    /// The fewest pages per part with which there are at most `most` parts, and no row has too many. If rows
    /// are more than `most`, it is the longest row. `count(pages)` is the number of parts of up to that many
    /// pages.
    #[inline(always)]
    pub fn pages_for(self, rows: Rows, most: u32, count: impl Fn(u32) -> u32) -> u32 {
        let (mut low, mut high) = rows.bounds(most);
        while low < high {
            let middle = low.midpoint(high);
            if count(middle) <= most { high = middle } else { low = middle + 1 }
        }
        low.max(self.fewest_pages(rows.longest))
    }

    /// The pages per part with the least time. Then there are at most [`Limits::most_parts`].
    #[inline(always)]
    pub fn pages_a_part(self, rows: Rows, count: impl Fn(u32) -> u32) -> u32 {
        // In more turns the parts are smaller, so less time is lost at the end of the last turn. In a part of
        // a turn, fewer warps share a multiprocessor.
        let turns = self.turns_of(rows.count);
        let (mut blocks, last) = ((turns - 1) * self.blocks + 1, (turns + 1) * self.blocks);
        let (mut best, mut least) = (rows.longest, u32::MAX);
        while blocks <= last {
            let pages = self.pages_for(rows, self.parts_in(blocks), &count);
            let cost = self.cost(count(pages), pages);
            if cost < least {
                (best, least) = (pages, cost);
            }
            blocks += 1;
        }
        best
    }
}

/// The pages of the rows of a launch, in sum. A row without pages counts as one page, because it has a part.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Rows.
    pub count: u32,
    /// Pages of the longest row.
    pub longest: u32,
    /// Pages of all rows, or the largest number if they are more.
    pub total: u32,
}

impl Rows {
    /// Of the numbers of pages of all rows.
    pub fn of(pages: impl Iterator<Item = u32>) -> Self {
        let none = Self { count: 0, longest: 1, total: 0 };
        pages.map(|pages| pages.max(1)).fold(none, |rows, pages| Self {
            count: rows.count + 1,
            longest: rows.longest.max(pages),
            total: rows.total.saturating_add(pages),
        })
    }

    /// Bounds of the fewest pages per part with which there are at most `most` parts.
    #[inline(always)]
    fn bounds(self, most: u32) -> (u32, u32) {
        if most <= self.count {
            // Every row has a part, so none is cut.
            return (self.longest, self.longest);
        }
        // The parts of a row of p pages are at least p / size, and at most (p + size - 1) / size.
        let low = u32::min(self.total.div_ceil(most), self.longest);
        let high = self.total.saturating_sub(self.count).div_ceil(most - self.count);
        // A total beyond the largest number bounds nothing from above.
        let high = if self.total == u32::MAX { self.longest } else { u32::min(high, self.longest) };
        (low, u32::max(low, high))
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
    /// The pages of each row, at least 1. Their first parts are written over them.
    pages: T::Memory,
    /// The first token that the rows of each sequence see, if `has_starts`.
    starts: T::Memory,
    has_starts: bool,
    count: u32,
}

impl<T: Threads> RowSpans<T> {
    /// The first token that a row of `sequence` sees, and the page after its last one, given the token after it.
    /// A row without tokens begins there.
    #[inline(always)]
    fn span_of(self, sequence: T::Of<u32>, tokens: T::Of<u32>) -> T::Of<(u32, u32)> {
        let mut start = T::splat(0);
        if self.has_starts {
            let given = T::load::<1>(self.starts, T::map(sequence, |sequence| 4 * sequence));
            start = T::map(given, |[start]| if start >> 31 == 0 { start } else { 0 });
        }
        T::zip(start, tokens, |start, tokens| {
            let end = tokens.div_ceil(SLOTS);
            (if start < tokens { start } else { SLOTS * end }, end)
        })
    }

    /// The span of a row whose words are written.
    #[inline(always)]
    fn span(self, row: T::Of<u32>) -> T::Of<(u32, u32)> {
        let offset = T::map(row, |row| 4 * row);
        let word = |memory| T::map(T::load::<1>(memory, offset), |[word]| word);
        self.span_of(word(self.sequences), word(self.lengths))
    }

    /// The rows of the threads, from row `first` on.
    #[inline(always)]
    fn rows(self, first: u32) -> T::Of<u32> {
        T::map(T::lane(), |lane| first + lane)
    }

    /// Which of these are rows.
    #[inline(always)]
    fn are_there(self, rows: T::Of<u32>) -> T::Of<bool> {
        T::map(rows, |row| row < self.count)
    }

    /// Writes the sequence of each row, the tokens that it sees and its pages. Returns what the rule needs of
    /// them.
    #[inline(always)]
    fn write(self, args: &PlanParts<T::Memory>) -> Rows {
        let (mut longest, mut total, mut first) = (T::splat(1), T::splat(0_u32), 0);
        while first < self.count {
            let row = self.rows(first);
            let active = self.are_there(row);
            let place = T::map(row, |row| divide(u32::min(row, self.count - 1), args.queries));
            let sequence = T::map(place, |(sequence, _)| sequence);
            let tokens = T::load::<1>(args.lengths, T::map(sequence, |sequence| 4 * sequence));
            let length = T::zip(place, tokens, |(_, query), [tokens]| {
                let tokens = if tokens >> 31 == 0 { u32::min(tokens, args.most_tokens) } else { 0 };
                tokens.saturating_sub(args.queries - 1 - query)
            });
            let span = self.span_of(sequence, length);
            let pages = T::map(span, |(start, end)| u32::max(end - start / SLOTS, 1));
            longest = T::zip(longest, pages, u32::max);
            let counted = T::zip(active, pages, |active, pages| if active { pages } else { 0 });
            total = T::zip(total, counted, u32::saturating_add);
            let offset = T::map(row, |row| 4 * row);
            let write = |memory, word| T::store::<1>(memory, offset, T::map(word, |word| [word]), active);
            write(self.sequences, sequence);
            write(self.lengths, length);
            write(self.pages, pages);
            first += 32;
        }
        Rows {
            count: self.count,
            longest: over_threads::<T>(longest, u32::max),
            total: over_threads::<T>(total, u32::saturating_add),
        }
    }

    /// The pages of the rows of the threads. A row after the last one has none: its thread reads a sequence
    /// instead, because the pages of others may be written over at the same time.
    #[inline(always)]
    fn pages(self, first: u32) -> T::Of<u32> {
        let row = self.rows(first);
        let offset = T::map(row, |row| if row < self.count { 4 * (2 * self.count + row) } else { 0 });
        let pages = T::load::<1>(self.sequences, offset);
        T::zip(row, pages, |row, [pages]| if row < self.count { pages } else { 0 })
    }

    /// The pages of the first [`HELD`] rows, to be kept in registers.
    #[inline(always)]
    fn hold(self) -> [T::Of<u32>; 32] {
        let mut held = [T::splat(0); 32];
        unroll32!(I => { held[I] = self.pages(32 * I as u32); });
        held
    }

    /// The number of parts of all rows.
    #[inline(always)]
    fn parts(self, held: &[T::Of<u32>; 32], size: Size) -> u32 {
        let mut all = T::splat(0);
        let mut add = |pages| all = T::zip(all, pages, |all, pages| all + size.parts_of(pages));
        // One test for each eight registers, so that few rows take few instructions.
        unroll32!(I => {
            if I.is_multiple_of(8) && 32 * (I as u32) < self.count {
                add(held[I]);
                add(held[(I + 1) % 32]);
                add(held[(I + 2) % 32]);
                add(held[(I + 3) % 32]);
                add(held[(I + 4) % 32]);
                add(held[(I + 5) % 32]);
                add(held[(I + 6) % 32]);
                add(held[(I + 7) % 32]);
            }
        });
        let mut first = HELD;
        while first < self.count {
            add(self.pages(first));
            first += 32;
        }
        over_threads::<T>(all, |a, b| a + b)
    }
}

/// Rows whose pages are held in registers.
const HELD: u32 = 32 * 32;

/// The pages of a part, with their inverse.
#[derive(Clone, Copy)]
struct Size {
    pages: u32,
    /// The largest word over the pages, rounded down.
    inverse: u32,
}

impl Size {
    #[inline(always)]
    fn new(pages: u32) -> Self {
        Self { pages, inverse: divide(u32::MAX, pages).0 }
    }

    /// The number of parts of these pages, which are at most 2^31. No pages have none.
    #[inline(always)]
    fn parts_of(self, pages: u32) -> u32 {
        let pages = pages + self.pages - 1;
        // The quotient, or one less.
        let parts = ((u64::from(pages) * u64::from(self.inverse)) >> 32) as u32;
        parts + u32::from(pages - parts * self.pages >= self.pages)
    }
}

/// Writes the first part of each row, of parts of up to `size` pages, over its pages, and then their number.
/// Returns that.
#[inline(always)]
fn write_first<T: Threads>(rows: RowSpans<T>, size: Size) -> u32 {
    let (mut before, mut first) = (0, 0);
    while first < rows.count {
        let parts = T::map(rows.pages(first), |pages| size.parts_of(pages));
        let mut sum = parts;
        unroll32!(I => {
            let step = I as u32;
            if step.is_power_of_two() {
                let other = T::shuffle(sum, T::map(T::lane(), |lane| lane.wrapping_sub(step)));
                let both = T::zip(sum, other, |sum, other| (sum, other));
                sum = T::zip(T::lane(), both, |lane, (sum, other)| if lane < step { sum } else { sum + other });
            }
        });
        let row = rows.rows(first);
        let start = T::zip(sum, parts, |sum, parts| [before + sum - parts]);
        before += uniform::<T>(T::shuffle(sum, T::splat(31)));
        T::store::<1>(rows.pages, T::map(row, |row| 4 * row), start, rows.are_there(row));
        first += 32;
    }
    T::store::<1>(rows.pages, T::splat(4 * rows.count), T::splat([before]), crate::threads::first::<T>());
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
        pages: behind(2),
        starts: args.starts,
        has_starts: args.has_starts != 0,
        count: args.rows,
    };
    let all = rows.write(&args);
    T::sync();
    let held = rows.hold();
    let size = limits.pages_a_part(all, |size| rows.parts(&held, Size::new(size)));
    let first_part = rows.pages;
    let used = write_first(rows, Size::new(size));
    T::sync();
    let list = T::at(first_part, 4 * (u64::from(args.rows) + 1));
    // The row of the entry before the first.
    let (mut first, mut row_before) = (0, 0);
    while first < entries {
        let entry = T::map(T::lane(), |lane| first + lane);
        let mut part = T::splat([UNUSED; 3]);
        if first < used {
            // Each row has a part, so 32 entries are of this row and of the 32 after it.
            let after = T::map(T::lane(), |lane| 4 * u32::min(row_before + 1 + lane, rows.count));
            let starts = T::map(T::load::<1>(first_part, after), |[start]| start);
            // How many of the later rows begin at or before the entry.
            let mut later = T::splat(0);
            unroll32!(I => {
                if I < 6 {
                    // The last step of 1 finds the 32nd.
                    let step = u32::max(16 >> I, 1);
                    let at = T::shuffle(starts, T::map(later, |later| later + step - 1));
                    let is_before = T::zip(entry, at, |entry, start| start <= entry);
                    later = T::zip(later, is_before, |later, is| later + if is { step } else { 0 });
                }
            });
            let row = T::map(later, |later| u32::min(row_before + later, rows.count - 1));
            row_before = uniform::<T>(T::shuffle(row, T::splat(31)));
            let start = T::load::<1>(first_part, T::map(row, |row| 4 * row));
            let before = T::zip(entry, start, |entry, [start]| (entry - start).wrapping_mul(size));
            // Where the entry is not used the numbers wrap.
            let span = T::zip(before, rows.span(row), |before, (start, end)| {
                let page = (start / SLOTS).wrapping_add(before);
                let token = if before == 0 { start } else { page.wrapping_mul(SLOTS) };
                [token, u32::min(end, page.wrapping_add(size))]
            });
            let of_row = T::zip(row, span, |row, [start, end]| [row, start, end]);
            part = T::zip(entry, of_row, |entry, part| if entry < used { part } else { [UNUSED; 3] });
        }
        T::store::<3>(list, T::map(entry, |entry| 12 * entry), part, T::map(entry, |entry| entry < entries));
        first += 32;
    }
}
