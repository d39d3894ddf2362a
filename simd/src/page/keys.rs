//! Keys: tiles of 16 tokens, one dword lane per token.
//!
//! A line holds 4 code bytes of 16 tokens. One load, a shift and a table look-up give 64 levels. A dot
//! product with 4 query bytes, the same for all lanes, adds to 16 scores at once, without horizontal sums.
//! Appending writes single dwords, so there is no tail of rows and no closing of tiles.

use super::plan::{MAX_WORDS, Packed, Plan, Woven, with_kernel};
use super::query::Queries;
use super::trellis::{self, InDwords, Planes, eight};
use super::{
    Line, MAX_HEADS, MAX_SLOTS, SLOT_STEP, ahead_of, bytes, bytes_mut, fetch_scales, prefetch, read_lines,
};
use crate::level::{KernelChoice, Level};
use crate::lines::Machine;
use tqkv_core::AnyCodec;

/// Tokens of a tile.
pub(super) const TILE: usize = 16;

/// The layout of pages of keys of one codec.
#[derive(Clone, Copy, Debug)]
pub struct KeyPages {
    pub(super) plan: Plan,
    slots: usize,
    // Computed once, because a division takes as long as a tile.
    tile_lines: usize,
    scale_lines: usize,
    lines: usize,
}

impl KeyPages {
    /// Pages of `slots` tokens of `codec`. `slots` is a multiple of [`SLOT_STEP`] and at most [`MAX_SLOTS`].
    /// Returns `None` for other numbers, or if the codec has no page kernels (`f16` has no levels).
    pub fn new(codec: &AnyCodec, slots: usize) -> Option<Self> {
        let fits = slots.is_multiple_of(SLOT_STEP) && (1..=MAX_SLOTS).contains(&slots);
        let plan = Plan::new(codec).filter(|_| fits)?;
        // 16 halves per tile and run.
        let (tile_lines, scale_lines) = (plan.word_count(), slots * plan.runs / 32);
        Some(Self { plan, slots, tile_lines, scale_lines, lines: scale_lines + slots / TILE * tile_lines })
    }

    /// Tokens of a page.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Lines of a page.
    pub fn lines(&self) -> usize {
        self.lines
    }

    /// Writes a block (as stored) to a slot.
    ///
    /// # Panics
    /// The memory is shorter than [`KeyPages::lines`], the slot is not below [`KeyPages::slots`], or the
    /// block has another length.
    pub fn write(&self, page: &mut [Line], slot: usize, block: &[u8]) {
        assert!(
            slot < self.slots && block.len() == self.plan.block_bytes,
            "the slot or the block does not fit the page"
        );
        let (tile, lane) = (slot / TILE, slot % TILE);
        let (head, body) = page[..self.lines].split_at_mut(self.scale_lines);
        let head = bytes_mut(head).as_flattened_mut().as_chunks_mut::<2>().0;
        let body = &mut body[tile * self.tile_lines..][..self.tile_lines];
        self.plan.with_words(block, |scales, words| {
            for (r, scale) in scales.iter().enumerate() {
                head[(tile * self.plan.runs + r) * TILE + lane] = scale.to_ne_bytes();
            }
            for (line, word) in bytes_mut(body).iter_mut().zip(words) {
                line.as_chunks_mut::<4>().0[lane] = *word;
            }
        });
    }

    /// Reads a block back, as it was written.
    ///
    /// # Panics
    /// The same conditions as [`KeyPages::write`].
    pub fn read(&self, page: &[Line], slot: usize, block: &mut [u8]) {
        assert!(
            slot < self.slots && block.len() == self.plan.block_bytes,
            "the slot or the block does not fit the page"
        );
        let (mut scales, mut words) = ([0; 32], [[0; 4]; MAX_WORDS]);
        let (tile, lane) = (slot / TILE, slot % TILE);
        let (head, body) = page[..self.lines].split_at(self.scale_lines);
        let head = bytes(head).as_flattened().as_chunks::<2>().0;
        for (r, scale) in scales[..self.plan.runs].iter_mut().enumerate() {
            *scale = u16::from_ne_bytes(head[(tile * self.plan.runs + r) * TILE + lane]);
        }
        let body = &body[tile * self.tile_lines..][..self.tile_lines];
        for (line, word) in bytes(body).iter().zip(&mut words) {
            *word = line.as_chunks::<4>().0[lane];
        }
        self.plan.block(&scales, &words, block);
    }

    /// Prepares rotated queries, back to back ([`tqkv_core::AnyCodec::rotate_query`]); only the first
    /// [`super::MAX_HEADS`] are used. If a run of coordinates has its own scale in the blocks, it has one in
    /// the query: largest |q| / 127, rounded to nearest. A query that is not finite scores NaN.
    pub fn queries(&self, level: Level, rotated: &[f32]) -> Queries {
        let mut queries = Queries::EMPTY;
        self.set_queries(level, rotated, &mut queries);
        queries
    }

    /// [`KeyPages::queries`] in memory that is there already.
    pub fn set_queries(&self, level: Level, rotated: &[f32], queries: &mut Queries) {
        queries.set(level, &self.plan, rotated);
    }

    /// Logits of slots `from..from + n` for every query, without the factor 1/sqrt(dim): `out` is
    /// `[queries.len(), n]`. They are equal to the bit on every level.
    ///
    /// `next` is memory that will be read soon, usually the values of the same tokens or the next page. It is
    /// prefetched meanwhile. Pass an empty slice if there is none.
    ///
    /// # Panics
    /// The memory is shorter than [`KeyPages::lines`], or the slots are not all in the page.
    pub fn scores(
        &self,
        level: Level,
        page: &[Line],
        from: usize,
        queries: &Queries,
        next: &[Line],
        out: &mut [f32],
    ) {
        if queries.is_empty() {
            return;
        }
        let n = out.len() / queries.len();
        assert!(from + n <= self.slots, "the slots must be in the page");
        if n == 0 {
            return;
        }
        level.choose(Scores { pages: self, page: &page[..self.lines], from, n, queries, next, out });
    }
}

/// [`KeyPages::scores`] for one instruction set.
struct Scores<'a> {
    pages: &'a KeyPages,
    page: &'a [Line],
    from: usize,
    n: usize,
    queries: &'a Queries,
    next: &'a [Line],
    out: &'a mut [f32],
}

impl KernelChoice for Scores<'_> {
    fn run<I: Machine>(mut self, isa: I) {
        with_kernel!(self.pages.plan, K => self.passes::<I, K>(isa));
    }
}

impl Scores<'_> {
    /// Goes over the tiles once for as many heads as registers hold. The first pass prefetches the next
    /// memory.
    fn passes<I: Machine, C: KeyCodes>(&mut self, isa: I) {
        let mut head = 0;
        while head < self.queries.count {
            // The conditions are constants, so only the kernels that can be chosen are compiled.
            head += match self.queries.count - head {
                8.. if const { I::HEADS >= 8 && C::HEADS.has(8) } => self.pass::<I, C, 8>(isa, head),
                4.. if const { I::HEADS >= 4 && C::HEADS.has(4) } => self.pass::<I, C, 4>(isa, head),
                2.. if const { I::HEADS >= 2 && C::HEADS.has(2) } => self.pass::<I, C, 2>(isa, head),
                2.. if const { I::HEADS >= 4 && C::HEADS.has(4) } && head + 4 <= MAX_HEADS => {
                    self.pass::<I, C, 4>(isa, head)
                }
                _ => self.pass::<I, C, 1>(isa, head),
            };
            self.next = &[];
        }
    }

    /// Scores all tiles for `H` heads, starting at `head`; returns `H`.
    fn pass<I: Machine, C: KeyCodes, const H: usize>(&mut self, isa: I, head: usize) -> usize {
        isa.apart(
            #[inline(always)]
            |isa| self.tiles::<I, C, H>(isa, head),
        );
        H
    }

    #[inline(always)]
    fn tiles<I: Machine, C: KeyCodes, const H: usize>(&mut self, isa: I, first_head: usize) {
        let runs = self.pages.plan.runs;
        let (head, body) = self.page.split_at(self.pages.scale_lines);
        let scales = super::halves(head).as_chunks::<TILE>().0;
        let table = C::table(isa, &self.pages.plan);
        let (first, last) = (self.from / TILE, (self.from + self.n).div_ceil(TILE));
        let tile_lines = self.pages.tile_lines;
        let run_lines = tile_lines / runs;
        let mut ahead = fetch_scales(isa, self.next, self.pages.scale_lines).chunks(tile_lines);
        let tiles =
            body.get(first * tile_lines..last * tile_lines).unwrap_or_default().chunks_exact(tile_lines);
        let scales = scales.get(first * runs..last * runs).unwrap_or_default().chunks_exact(runs);
        for (tile, (lines, scales)) in (first..last).zip(tiles.zip(scales)) {
            let next = ahead.next().unwrap_or_default();
            let queries = (self.queries, first_head);
            let logits = score_tile::<I, C, H>(isa, (lines, run_lines), scales, table, queries, next);
            self.store(tile, first_head, logits);
        }
    }

    /// Copies the logits of a tile for the heads from `head` on to the output. It takes them by value: logits
    /// that are lent to [`Self::store_edge`] are in memory for every tile. Reading them back right after the
    /// write took a quarter of the time of four heads.
    #[inline(always)]
    fn store<const H: usize>(&mut self, tile: usize, head: usize, logits: [[f32; TILE]; H]) {
        let start = tile * TILE;
        let Some(at) = start.checked_sub(self.from).filter(|at| at + TILE <= self.n) else {
            return self.store_edge(start, head, logits);
        };
        for (h, logits) in logits.iter().enumerate() {
            // Heads past the last one have no row.
            let row = (head + h) * self.n + at;
            if let Some(out) = self.out.get_mut(row..row + TILE) {
                out.copy_from_slice(logits);
            }
        }
    }

    /// [`Self::store`] for a tile that is not full: drops lanes outside the range. It is a separate
    /// function, because otherwise its inputs were computed for every tile.
    #[cold]
    #[inline(never)]
    fn store_edge<const H: usize>(&mut self, start: usize, head: usize, logits: [[f32; TILE]; H]) {
        let rows = self.out.chunks_exact_mut(self.n).skip(head);
        for (logits, out) in logits.iter().zip(rows) {
            for (lane, &logit) in logits.iter().enumerate() {
                if let Some(out) = out.get_mut((start + lane).wrapping_sub(self.from)) {
                    *out = logit;
                }
            }
        }
    }
}

/// The logits of one tile for `H` heads, starting at `head`. `run_lines` is the number of lines of a run.
#[inline(always)]
fn score_tile<I: Machine, C: KeyCodes, const H: usize>(
    isa: I,
    (lines, run_lines): (&[Line], usize),
    scales: &[[u16; TILE]],
    table: C::Table<I>,
    (queries, head): (&Queries, usize),
    next: &[Line],
) -> [[f32; TILE]; H] {
    let mut logits = [[0.0; TILE]; H];
    let Some(heads) = queries.heads.get(head..).and_then(|heads| heads.first_chunk::<H>()) else {
        return logits;
    };
    let words = queries.words.as_flattened().get(head..).unwrap_or_default();
    let next = ahead_of(lines, next);
    let run_words = run_lines / C::DEPTH * C::FIELDS;
    for (r, scales) in scales.iter().enumerate() {
        let run = r * run_lines..(r + 1) * run_lines;
        let (lines, next) = (lines.get(run.clone()).unwrap_or_default(), next.get(run).unwrap_or_default());
        let words = words.get(r * run_words * MAX_HEADS..).unwrap_or_default();
        let sums: [I::Sum; H] = C::dot(isa, lines, table, words, next);
        let scales = isa.widen16(scales);
        for h in 0..H {
            let (factor, bias) = (heads[h].factors[r % heads[h].factors.len()], heads[h].biases[r % 32]);
            let dots = isa.lanes(sums[h]);
            for ((logit, dot), scale) in logits[h].iter_mut().zip(dots).zip(scales) {
                *logit += (dot - bias) as f32 * factor * scale;
            }
        }
    }
    logits
}

/// Number of parts into which each of `heads` sums is split, if `chains` sums fit the registers.
const fn parts(chains: usize, heads: usize) -> usize {
    match chains / heads {
        0 | 1 => 1,
        2 | 3 => 2,
        _ => 4,
    }
}

/// Numbers of heads for which kernels of a codec are compiled.
#[derive(Clone, Copy)]
enum Heads {
    One,
    OneOrFour,
    Any,
}

impl Heads {
    const fn has(self, count: usize) -> bool {
        match self {
            Self::One => count == 1,
            Self::OneOrFour => count == 1 || count == 4,
            Self::Any => true,
        }
    }
}

/// How lines of codes are multiplied with queries.
trait KeyCodes {
    /// Codes per byte or byte column.
    const FIELDS: usize;
    /// Lines per byte column.
    const DEPTH: usize;
    /// Levels, prepared for look-ups.
    type Table<I: Machine>: Copy;

    /// Numbers of heads for which kernels are compiled.
    const HEADS: Heads;

    /// Prepares the levels.
    fn table<I: Machine>(isa: I, plan: &Plan) -> Self::Table<I>;

    /// Integer dot products of the lines of one run with the first `H` queries in `words`. Prefetches `next`,
    /// which has the same number of lines.
    fn dot<I: Machine, const H: usize>(
        isa: I,
        lines: &[Line],
        table: Self::Table<I>,
        words: &[u32],
        next: &[Line],
    ) -> [I::Sum; H];
}

/// The words of every query for one line of each of eight fields.
#[inline(always)]
fn words_at(words: &[u32], at: usize) -> &[u32; 8 * MAX_HEADS] {
    words.get(at * MAX_HEADS..).and_then(|words| words.first_chunk()).unwrap_or(&[0; 8 * MAX_HEADS])
}

impl<C: Planes> Woven<C> {
    /// The coded line of a unit of a tile.
    #[inline(always)]
    fn coded(lines: &[Line], unit: usize) -> &Line {
        let at = match C::PAIRED {
            0 => unit * Self::DEPTH,
            _ => unit / 2 * Self::DEPTH + unit % 2 * (Self::DEPTH - 1),
        };
        lines.get(at).unwrap_or(&Line::ZERO)
    }

    /// Adds the products of a unit's levels with `H` queries.
    #[inline(always)]
    fn add<I: Machine, const H: usize>(
        isa: I,
        mut sums: [[I::Sum; 2]; H],
        levels: [I::Line; 8],
        now: &[u32; 8 * MAX_HEADS],
    ) -> [[I::Sum; 2]; H] {
        eight!(|FIELD| {
            for h in 0..H {
                let part = if H < 4 { FIELD % 2 } else { 0 };
                sums[h][part] = isa.key_dot(sums[h][part], levels[FIELD], now[FIELD * MAX_HEADS + h]);
            }
        });
        sums
    }
}

impl<C: Planes> KeyCodes for Woven<C> {
    const FIELDS: usize = 8;
    const DEPTH: usize = <C as Planes>::DEPTH;
    /// The levels, and true if the ring begins at the third byte.
    type Table<I: Machine> = (trellis::Tables<I>, bool);

    /// Levels cost much more than products. Two or three heads are therefore cheapest as four, with some
    /// results dropped; eight heads are twice four.
    const HEADS: Heads = if C::IS_SMALL { Heads::One } else { Heads::OneOrFour };

    #[inline(always)]
    fn table<I: Machine>(isa: I, plan: &Plan) -> (trellis::Tables<I>, bool) {
        let [first, second, last] = trellis::all_levels::<C>(&plan.levels);
        ([isa.key_levels(first), isa.key_levels(second), isa.key_levels(last)], plan.pad > 0)
    }

    #[inline(always)]
    fn dot<I: Machine, const H: usize>(
        isa: I,
        lines: &[Line],
        (table, shifted): (trellis::Tables<I>, bool),
        words: &[u32],
        next: &[Line],
    ) -> [I::Sum; H] {
        let mut sums = [[isa.zero(); 2]; H];
        let units = match C::PAIRED {
            0 => lines.len() / Self::DEPTH,
            _ => lines.len() / Self::DEPTH * 2 + usize::from(!lines.len().is_multiple_of(Self::DEPTH)),
        };
        let last = [1, 2, 3].map(|back| Self::coded(lines, units.saturating_sub(back)));
        let last = [isa.line(last[0]), isa.line(last[1]), isa.line(last[2])];
        let mut before = trellis::before_first::<I, InDwords>(isa, last, units, shifted);
        for (i, (unit, next)) in lines.chunks(Self::DEPTH).zip(next.chunks(Self::DEPTH)).enumerate() {
            prefetch::<I, 0>(isa, next);
            let Some((coded, rest)) = unit.split_first() else { break };
            let coded = isa.line(coded);
            if const { C::PAIRED == 0 } {
                let plain = trellis::plain::<I, C>(isa, rest);
                let levels = trellis::levels::<I, C, InDwords>(isa, coded, before, plain, table);
                before = [coded, before[0]];
                sums = Self::add(isa, sums, levels, words_at(words, 8 * i));
                continue;
            }
            let symbols = trellis::symbols::<I, C>(isa, rest);
            let plain = trellis::expand::<I, InDwords, 0>(isa, symbols);
            let levels = trellis::levels::<I, C, InDwords>(isa, coded, before, plain, table);
            before = [coded, before[0]];
            sums = Self::add(isa, sums, levels, words_at(words, 16 * i));
            let Some(second) = rest.get(C::PAIRED) else { break };
            let coded = isa.line(second);
            let plain = trellis::expand::<I, InDwords, 1>(isa, symbols);
            let levels = trellis::levels::<I, C, InDwords>(isa, coded, before, plain, table);
            before = [coded, before[0]];
            sums = Self::add(isa, sums, levels, words_at(words, 16 * i + 8));
        }
        let mut joined = [isa.zero(); H];
        for (joined, [a, b]) in joined.iter_mut().zip(sums) {
            *joined = if const { H < 4 } { isa.add(a, b) } else { a };
        }
        joined
    }
}

impl<const BITS: usize> KeyCodes for Packed<BITS> {
    const FIELDS: usize = Self::CODES;
    const DEPTH: usize = if BITS == 3 { 3 } else { 1 };
    type Table<I: Machine> = I::Table;

    const HEADS: Heads = Heads::Any;

    #[inline(always)]
    fn table<I: Machine>(isa: I, plan: &Plan) -> I::Table {
        isa.key_table(plan.levels.first_chunk().unwrap_or(&[0; 16]))
    }

    #[inline(always)]
    fn dot<I: Machine, const H: usize>(
        isa: I,
        lines: &[Line],
        table: I::Table,
        words: &[u32],
        next: &[Line],
    ) -> [I::Sum; H] {
        let mut sums = [[isa.zero(); 4]; H];
        // One step: its number of lines, and the number of query words that they take.
        macro_rules! steps {
        ($lines:literal, $words:literal, |$line:ident| [$($levels:expr),*]) => {{
            let (lines, next) = (lines.as_chunks::<$lines>().0, next.as_chunks::<$lines>().0);
            let words = words.as_chunks::<{ $words * MAX_HEADS }>().0;
            for (($line, next), now) in lines.iter().zip(next).zip(words) {
                prefetch::<I, BITS>(isa, next);
                let $line = read_lines(isa, $line);
                let mut field = 0;
                $(
                    let levels = $levels;
                    for h in 0..H {
                        // Heads split their sum as registers allow, so that additions need not wait.
                        let part = field % const { parts(I::CHAINS, H) };
                        sums[h][part] = if const { BITS == 8 } {
                            isa.byte_dot(sums[h][part], levels, now[field * MAX_HEADS + h])
                        } else {
                            isa.key_dot(sums[h][part], levels, now[field * MAX_HEADS + h])
                        };
                    }
                    field += 1;
                )*
                debug_assert_eq!(field, $words);
            }
        }};
    }
        match BITS {
            2 => steps!(1, 4, |line| [
                isa.level::<2, 0>(line[0], table),
                isa.level::<2, 1>(line[0], table),
                isa.level::<2, 2>(line[0], table),
                isa.level::<2, 3>(line[0], table)
            ]),
            3 => steps!(3, 8, |line| [
                isa.level3::<0>(line, table),
                isa.level3::<1>(line, table),
                isa.level3::<2>(line, table),
                isa.level3::<3>(line, table),
                isa.level3::<4>(line, table),
                isa.level3::<5>(line, table),
                isa.level3::<6>(line, table),
                isa.level3::<7>(line, table)
            ]),
            4 => steps!(2, 4, |line| [
                isa.level::<4, 0>(line[0], table),
                isa.level::<4, 1>(line[0], table),
                isa.level::<4, 0>(line[1], table),
                isa.level::<4, 1>(line[1], table)
            ]),
            8 => steps!(4, 4, |line| [
                isa.key_bytes(line[0]),
                isa.key_bytes(line[1]),
                isa.key_bytes(line[2]),
                isa.key_bytes(line[3])
            ]),
            _ => unreachable!("rows of such codes"),
        }
        let mut joined = [isa.zero(); H];
        for (joined, [a, b, c, d]) in joined.iter_mut().zip(sums) {
            *joined = match const { parts(I::CHAINS, H) } {
                1 => a,
                2 => isa.add(a, b),
                _ => isa.add(isa.add(a, b), isa.add(c, d)),
            };
        }
        joined
    }
}
