//! Keys or values as f16 rows: the uncompressed tier, and the baseline of every speed-up.
//!
//! These kernels are tuned as well as the coded ones. The conversion is in the load, multiply-adds are fused,
//! and sums of several keys or heads run at once. Prefetch is 2 KiB ahead at four places. Operations are
//! fused and the order of sums is free, so the bits may differ between levels.

use super::{Line, MAX_HEADS, bytes, bytes_mut};
use crate::level::{KernelChoice, Level};
use crate::lines::Machine;
use tqkv_core::MAX_HEAD_DIM;
use tqkv_core::unstable::rotation;

/// Groups of 32 coordinates of the largest head dim.
const MAX_GROUPS: usize = MAX_HEAD_DIM / 32;

/// The layout of pages of f16 rows: row after row.
#[derive(Clone, Copy, Debug)]
pub struct HalfPages {
    dim: usize,
    slots: usize,
}

impl HalfPages {
    /// Pages of `slots` rows of `dim` values (both multiples of 32), or `None` for other numbers.
    pub fn new(dim: usize, slots: usize) -> Option<Self> {
        let fits = dim.is_multiple_of(32) && (32..=MAX_HEAD_DIM).contains(&dim) && slots.is_multiple_of(32);
        fits.then_some(Self { dim, slots })
    }

    /// Rows of a page.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Lines of a page.
    pub fn lines(&self) -> usize {
        self.slots * self.row_lines()
    }

    fn row_lines(&self) -> usize {
        self.dim / 32
    }

    /// Writes an `f16` block to a slot.
    ///
    /// # Panics
    /// The memory is too short, the slot is not in the page, or the block has another length.
    pub fn write(&self, page: &mut [Line], slot: usize, block: &[u8]) {
        let row = &mut page[slot * self.row_lines()..(slot + 1) * self.row_lines()];
        assert_eq!(block.len(), 2 * self.dim, "an f16 block must have 2 * dim bytes");
        let halves = bytes_mut(row).as_flattened_mut().as_chunks_mut::<2>().0;
        for (to, &from) in halves.iter_mut().zip(block.as_chunks::<2>().0) {
            *to = u16::from_le_bytes(from).to_ne_bytes();
        }
    }

    /// Reads a block back.
    ///
    /// # Panics
    /// The same conditions as [`HalfPages::write`].
    pub fn read(&self, page: &[Line], slot: usize, block: &mut [u8]) {
        let row = &page[slot * self.row_lines()..(slot + 1) * self.row_lines()];
        assert_eq!(block.len(), 2 * self.dim, "an f16 block must have 2 * dim bytes");
        for (to, &from) in
            block.as_chunks_mut::<2>().0.iter_mut().zip(bytes(row).as_flattened().as_chunks::<2>().0)
        {
            *to = u16::from_ne_bytes(from).to_le_bytes();
        }
    }

    /// Logits of slots `from..from + n` for up to [`MAX_HEADS`] queries (`[heads, dim]`); `out` is
    /// `[heads, n]`. `next` is the same as in [`super::KeyPages::scores`].
    ///
    /// # Panics
    /// The slots are not all in the page.
    pub fn scores(
        &self,
        level: Level,
        page: &[Line],
        from: usize,
        queries: &[f32],
        next: &[Line],
        out: &mut [f32],
    ) {
        let heads = (queries.len() / self.dim).min(MAX_HEADS);
        if heads == 0 {
            return;
        }
        let n = out.len() / heads;
        if n == 0 {
            return;
        }
        let rows = &page[from * self.row_lines()..(from + n) * self.row_lines()];
        level.choose(HalfScores { groups: self.row_lines(), rows, n, queries, next, out });
    }

    /// `acc[h] += sum of weights[h][i] * row from + i`; `weights` is `[heads, n]`, `acc`
    /// `[heads, dim]`. Rows that are not finite must not be hidden by a weight of 0; see [`super::row_sums`].
    ///
    /// # Panics
    /// The slots are not all in the page.
    pub fn accumulate(
        &self,
        level: Level,
        page: &[Line],
        from: usize,
        weights: &[f32],
        next: &[Line],
        acc: &mut [f32],
    ) {
        let heads = acc.len() / self.dim;
        if heads == 0 {
            return;
        }
        let n = weights.len() / heads;
        if n == 0 {
            return;
        }
        let rows = &page[from * self.row_lines()..(from + n) * self.row_lines()];
        level.choose(HalfAccumulate { groups: self.row_lines(), rows, n, weights, next, acc });
    }
}

/// Runs `$body` with `$g` set to the number of groups if it is a common one, else to the bound.
macro_rules! with_groups {
    ($groups:expr, $g:ident => $body:expr) => {
        match $groups {
            2 => {
                const $g: usize = 2;
                $body
            }
            4 => {
                const $g: usize = 4;
                $body
            }
            8 => {
                const $g: usize = 8;
                $body
            }
            _ => {
                const $g: usize = MAX_GROUPS;
                $body
            }
        }
    };
}

/// Places of a page that one query reads in turns. This keeps more lines of memory in flight than one place,
/// which gains a tenth of the speed.
const STREAMS: usize = 4;

/// Lines that are prefetched ahead at each place.
const AHEAD: usize = 32;

/// The rows of a page in the order in which they are read: row `i` of each stream in turns.
#[derive(Clone, Copy)]
struct Streams<'a> {
    rows: &'a [Line],
    next: &'a [Line],
    groups: usize,
    /// Rows per stream; the last stream may have fewer.
    length: usize,
}

impl<'a> Streams<'a> {
    #[inline(always)]
    fn new(rows: &'a [Line], next: &'a [Line], groups: usize) -> Self {
        Self { rows, next, groups, length: (rows.len() / groups).div_ceil(STREAMS) }
    }

    /// Row `i` of stream `s` for one head, which waits for memory: its position in the page and its lines.
    /// Prefetches the lines ahead; past the end of the stream these are on the next page.
    #[inline(always)]
    fn row<I: Machine>(&self, isa: I, (s, i): (usize, usize)) -> Option<(usize, &'a [[u16; 32]])> {
        let at = s * self.length + i;
        let row = Self::lines(self.rows, at * self.groups, self.groups)?;
        let rows_ahead = AHEAD.div_ceil(self.groups);
        let (lines, row_ahead) = match (i + rows_ahead).checked_sub(self.length) {
            None => (self.rows, at + rows_ahead),
            Some(past) => (self.next, s * self.length + past),
        };
        // A known number of lines, if there are any.
        if let Some(lines) = Self::lines(lines, row_ahead * self.groups, self.groups) {
            for line in lines {
                isa.prefetch(line);
            }
        }
        Some((at, super::halves(row).as_chunks::<32>().0))
    }

    /// `count` lines from `column` on of row `i` of stream `s`, for several heads. Their products take as
    /// long as memory does. It prefetches the same lines of the next page, so that memory is never idle.
    #[inline(always)]
    fn columns<I: Machine>(
        &self,
        isa: I,
        (s, i): (usize, usize),
        (column, count): (usize, usize),
    ) -> Option<(usize, &'a [[u16; 32]])> {
        let at = s * self.length + i;
        let row = Self::lines(self.rows, at * self.groups + column, count)?;
        if let Some(lines) = Self::lines(self.next, at * self.groups + column, count) {
            for line in lines {
                isa.prefetch_near(line);
            }
        }
        Some((at, super::halves(row).as_chunks::<32>().0))
    }

    #[inline(always)]
    fn lines(page: &'a [Line], first: usize, count: usize) -> Option<&'a [Line]> {
        page.get(first..first + count)
    }
}

struct HalfScores<'a> {
    groups: usize,
    rows: &'a [Line],
    n: usize,
    queries: &'a [f32],
    next: &'a [Line],
    out: &'a mut [f32],
}

impl KernelChoice for HalfScores<'_> {
    fn run<I: Machine>(mut self, isa: I) {
        let heads = (self.queries.len() / (self.groups * 32)).min(MAX_HEADS);
        let mut head = 0;
        while head < heads {
            // A sum has 32 lanes here, and 16 with codes. The conditions are constants, so only the kernels
            // that can be chosen are compiled.
            head += match heads - head {
                8.. if const { most_heads::<I>() >= 8 } => self.many::<I, 8>(isa, head),
                4.. if const { most_heads::<I>() >= 4 } => self.many::<I, 4>(isa, head),
                2.. if const { most_heads::<I>() >= 2 } => self.many::<I, 2>(isa, head),
                _ => self.one(isa, head),
            };
            self.next = &[];
        }
    }
}

/// Number of heads for which the sums of one row fit the registers.
const fn most_heads<I: Machine>() -> usize {
    if I::HEADS < I::CHAINS / 2 { I::HEADS } else { I::CHAINS / 2 }
}

impl HalfScores<'_> {
    /// [`Self::one_head`] for the actual number of groups.
    fn one<I: Machine>(&mut self, isa: I, head: usize) -> usize {
        with_groups!(self.groups, G => isa.apart(
            #[inline(always)]
            |isa| self.one_head::<I, G>(isa, head),
        ));
        1
    }

    /// [`Self::many_heads`] for the actual number of groups.
    fn many<I: Machine, const H: usize>(&mut self, isa: I, head: usize) -> usize {
        with_groups!(self.groups, G => isa.apart(
            #[inline(always)]
            |isa| self.many_heads::<I, G, H>(isa, head),
        ));
        H
    }

    /// One query, four keys at a time.
    #[inline(always)]
    fn one_head<I: Machine, const G: usize>(&mut self, isa: I, head: usize) {
        let groups = if G < MAX_GROUPS { G } else { self.groups };
        let mut q = [isa.splat(0.0); G];
        rotation::load(isa, &self.queries[head * groups * 32..(head + 1) * groups * 32], &mut q[..groups]);
        let Some(out) = self.out.chunks_exact_mut(self.n).nth(head) else { return };
        let streams = Streams::new(self.rows, self.next, groups);
        for i in 0..streams.length {
            let mut sums = [isa.splat(0.0); STREAMS];
            for (s, sum) in sums.iter_mut().enumerate() {
                let Some((_, row)) = streams.row(isa, (s, i)) else { continue };
                for (half, &q) in row.iter().zip(&q[..groups]) {
                    *sum = isa.fma(*sum, isa.load_halves(half), q);
                }
            }
            for (s, sum) in isa.sum4(sums).into_iter().enumerate() {
                if let Some(out) = out.get_mut(s * streams.length + i) {
                    *out = sum;
                }
            }
        }
    }

    /// `H` queries, one key at a time.
    #[inline(always)]
    fn many_heads<I: Machine, const G: usize, const H: usize>(&mut self, isa: I, head: usize) {
        let groups = if G < MAX_GROUPS { G } else { self.groups };
        let given = self.queries[head * groups * 32..(head + H) * groups * 32].as_chunks::<32>().0;
        let mut queries = [[[0.0; 32]; H]; G];
        for (g, queries) in queries.iter_mut().enumerate().take(groups) {
            for (h, query) in queries.iter_mut().enumerate() {
                *query = given[h * groups + g];
            }
        }
        let streams = Streams::new(self.rows, self.next, groups);
        for i in 0..streams.length {
            for s in 0..STREAMS {
                let Some((at, row)) = streams.columns(isa, (s, i), (0, groups)) else { continue };
                let mut sums = [isa.splat(0.0); H];
                for (half, queries) in row.iter().zip(&queries) {
                    let key = isa.load_halves(half);
                    for (sum, query) in sums.iter_mut().zip(queries) {
                        *sum = isa.fma(*sum, key, isa.load(query));
                    }
                }
                for (part, sums) in sums.chunks(4).enumerate() {
                    let four = [sums[0], sums[1 % sums.len()], sums[2 % sums.len()], sums[3 % sums.len()]];
                    let four = isa.sum4(four);
                    for (k, &sum) in four[..sums.len()].iter().enumerate() {
                        if let Some(out) = self.out.get_mut((head + 4 * part + k) * self.n + at) {
                            *out = sum;
                        }
                    }
                }
            }
        }
    }
}

struct HalfAccumulate<'a> {
    groups: usize,
    rows: &'a [Line],
    n: usize,
    weights: &'a [f32],
    next: &'a [Line],
    acc: &'a mut [f32],
}

impl KernelChoice for HalfAccumulate<'_> {
    fn run<I: Machine>(mut self, isa: I) {
        let heads = self.acc.len() / (32 * self.groups);
        let mut head = 0;
        while head < heads {
            // The conditions are constants. All heads whose sums fit the registers share a conversion.
            head += match heads - head {
                4.. if const { I::CHAINS >= 16 } => self.together::<I, 4, 2>(isa, head),
                2.. if const { I::CHAINS < 16 && I::HEADS >= 2 } => self.together::<I, 2, 1>(isa, head),
                _ => self.one(isa, head),
            };
            self.next = &[];
        }
    }
}

impl HalfAccumulate<'_> {
    /// One head, all columns.
    fn one<I: Machine>(&mut self, isa: I, head: usize) -> usize {
        with_groups!(self.groups, G => isa.apart(
            #[inline(always)]
            |isa| self.one_head::<I, G>(isa, head),
        ));
        1
    }

    #[inline(always)]
    fn one_head<I: Machine, const G: usize>(&mut self, isa: I, head: usize) {
        let groups = if G < MAX_GROUPS { G } else { self.groups };
        let streams = Streams::new(self.rows, self.next, groups);
        let weights = self.weights.get(head * self.n..).unwrap_or_default();
        let Some(acc) = self.acc.chunks_exact_mut(32 * groups).nth(head) else { return };
        let mut sums = [isa.splat(0.0); G];
        let sums = &mut sums[..groups];
        rotation::load(isa, acc, sums);
        for i in 0..streams.length {
            for s in 0..STREAMS {
                let Some((at, row)) = streams.row(isa, (s, i)) else { continue };
                let weight = isa.splat(weights.get(at).copied().unwrap_or(0.0));
                for (sum, half) in sums.iter_mut().zip(row) {
                    *sum = isa.fma(*sum, isa.load_halves(half), weight);
                }
            }
        }
        rotation::store(isa, sums, acc);
    }

    /// `H` heads, `C` groups of columns at a time.
    fn together<I: Machine, const H: usize, const C: usize>(&mut self, isa: I, head: usize) -> usize {
        isa.apart(
            #[inline(always)]
            |isa| {
                let (groups, mut column) = (self.groups, 0);
                while column < groups {
                    if groups - column >= C {
                        self.columns::<I, H, C>(isa, head, groups, column);
                        column += C;
                    } else {
                        self.columns::<I, H, 1>(isa, head, groups, column);
                        column += 1;
                    }
                }
            },
        );
        H
    }

    #[inline(always)]
    fn columns<I: Machine, const H: usize, const C: usize>(
        &mut self,
        isa: I,
        head: usize,
        groups: usize,
        column: usize,
    ) {
        let streams = Streams::new(self.rows, self.next, groups);
        let weights: [&[f32]; H] =
            core::array::from_fn(|h| self.weights.get((head + h) * self.n..).unwrap_or_default());
        let acc = self.acc.as_chunks_mut::<32>().0;
        let mut sums = [[isa.splat(0.0); H]; C];
        for (c, sums) in sums.iter_mut().enumerate() {
            for (h, sum) in sums.iter_mut().enumerate() {
                // Cheaper than a check that panics.
                let given = acc.get((head + h) * groups + column + c);
                *sum = isa.load(given.unwrap_or(&[0.0; 32]));
            }
        }
        for i in 0..streams.length {
            for s in 0..STREAMS {
                let Some((at, row)) = streams.columns(isa, (s, i), (column, C)) else { continue };
                let Some(row) = row.first_chunk::<C>() else { continue };
                let mut values = [isa.splat(0.0); C];
                for c in 0..C {
                    values[c] = isa.load_halves(&row[c]);
                }
                for h in 0..H {
                    let weight = isa.splat(weights[h].get(at).copied().unwrap_or(0.0));
                    for c in 0..C {
                        sums[c][h] = isa.fma(sums[c][h], values[c], weight);
                    }
                }
            }
        }
        for (c, sums) in sums.iter().enumerate() {
            for (h, sum) in sums.iter().enumerate() {
                if let Some(acc) = acc.get_mut((head + h) * groups + column + c) {
                    isa.store(*sum, acc);
                }
            }
        }
    }
}
