//! Values: lines of one code byte of several tokens, so that one dot product sums over tokens.
//!
//! A line is 16 dwords. A dword holds one code byte (at 3 bits one byte column of three lines) of four
//! tokens. `positions` consecutive dwords belong to the same tokens; it is the largest number from 2 to 16
//! that divides the row. If it is below 16, the line continues with the next four tokens. Only trellis codes
//! pad some head dims.
//!
//! Weights times scales are integers of 8 bits, or of 14 bits for 8-bit codes ([`super::weights`]), and are
//! summed exactly: 512 tokens times 16383 times 127 is below 2^30.

use super::columns::{
    Given, Out, Pass, Strip, ValueCodes, WOVEN_POSITIONS, add_products, ahead, join, load_halves, sum_levels,
};
use super::plan::{MAX_WORDS, Packed, Plan, with_kernel};
use super::weights::{Halves, NO_HALVES, RUN, RUN_LINES, TOGETHER, Weights, are_bytes};
use super::{Line, MAX_PARTS, MAX_SLOTS, SLOT_STEP, bytes, bytes_mut, prefetch, read_lines};
use crate::level::{Kernels, Level};
use crate::lines::Machine;
use arrayvec::ArrayVec;
use core::ops::Range;
use tqkv_core::AnyCodec;

/// Runs of the most tokens of a sum.
const MAX_RUNS: usize = MAX_SLOTS / RUN;

/// The layout of pages of values of one codec.
#[derive(Clone, Copy, Debug)]
pub struct ValuePages {
    plan: Plan,
    slots: usize,
    /// Dwords of a line that belong to the same four tokens: 2, 4, 8 or 16.
    positions: usize,
    // Computed once (with the sizes below), because a division takes long compared with a page.
    /// Tokens per line.
    line_tokens: usize,
    /// Runs of `positions` code bytes per row.
    columns: usize,
    /// Columns of a run of coordinates with one scale.
    run_columns: usize,
    /// Lines (or line triples) per column.
    groups: usize,
    /// Lines of a column that hold the tokens of one [`RUN`].
    run_lines: usize,
    /// Lines of scales; each run has the scales of all tokens.
    scale_lines: usize,
    lines: usize,
}

/// The most dwords of a line that belong to the same four tokens.
const WIDE: usize = 16;

impl ValuePages {
    /// Pages of `slots` tokens of `codec`. `slots` is a multiple of [`SLOT_STEP`] and at most [`MAX_SLOTS`].
    /// Returns `None` for other numbers, or if the codec has no page kernels, as [`super::KeyPages::new`]
    /// does.
    pub fn new(codec: &AnyCodec, slots: usize) -> Option<Self> {
        let fits = slots.is_multiple_of(SLOT_STEP) && (1..=MAX_SLOTS).contains(&slots);
        let plan = Plan::new(codec).filter(|_| fits)?;
        let row = plan.dim / plan.fields();
        let positions =
            if plan.is_woven() { WOVEN_POSITIONS } else { 1 << row.trailing_zeros().min(WIDE.ilog2()) };
        let columns = if plan.is_woven() { plan.units() } else { row / positions };
        let (line_tokens, scale_lines) = (64 / positions, slots * plan.runs / 32);
        let groups = slots / line_tokens;
        let body = if plan.is_woven() { plan.word_count() } else { columns * plan.depth() };
        let lines = scale_lines + body * groups;
        let (run_columns, run_lines) = (columns / plan.runs.max(1), RUN / line_tokens * plan.depth());
        Some(Self {
            plan,
            slots,
            positions,
            line_tokens,
            columns,
            run_columns,
            groups,
            run_lines,
            scale_lines,
            lines,
        })
    }

    /// Tokens of a page.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Lines of a page.
    pub fn lines(&self) -> usize {
        self.lines
    }

    /// The position of byte 0 of column 0 of a slot in its line.
    fn lane(&self, slot: usize) -> usize {
        let token = slot % self.line_tokens;
        token / 4 * self.positions * 4 + token % 4
    }

    /// Calls `visit` for each code byte of a slot that is not woven. The arguments are its index in the bytes
    /// of the page's body, and its index in those of the words. It runs for every token that is stored, so it
    /// avoids divisions.
    #[inline(always)]
    fn for_each_byte(&self, slot: usize, mut visit: impl FnMut(usize, usize)) {
        let (groups, depth, positions) = (self.groups, self.plan.depth(), self.positions);
        let (group, lane) = (slot / self.line_tokens, self.lane(slot));
        for column in 0..self.columns {
            for k in 0..depth {
                let at = ((column * groups + group) * depth + k) * 64 + lane;
                for p in 0..positions {
                    let i = column * positions + p;
                    visit(at + 4 * p, (i / 4 * depth + k) * 4 + i % 4);
                }
            }
        }
    }

    /// Index of the first byte of word `w` of a slot of a trellis code, in the bytes of the page's body. The
    /// other bytes follow, one dword apart. Lines of a unit (or of two units that share lines) are adjacent.
    fn word_at(&self, slot: usize, w: usize) -> usize {
        let depth = self.plan.depth();
        let (first, k) = (w / depth * depth, w % depth);
        let depth = depth.min(self.plan.word_count() - first);
        let line = first * self.groups + slot / self.line_tokens * depth + k;
        line * 64 + self.lane(slot)
    }

    /// Writes a block (as stored) to a slot.
    ///
    /// # Panics
    /// The memory is shorter than [`ValuePages::lines`], the slot is not below [`ValuePages::slots`], or the
    /// block has another length.
    pub fn write(&self, page: &mut [Line], slot: usize, block: &[u8]) {
        assert!(
            slot < self.slots && block.len() == self.plan.block_bytes,
            "the slot or the block does not fit the page"
        );
        let (head, body) = page[..self.lines].split_at_mut(self.scale_lines);
        let head = bytes_mut(head).as_flattened_mut().as_chunks_mut::<2>().0;
        let body = bytes_mut(body).as_flattened_mut();
        self.plan.with_words(block, |scales, words| {
            for (r, scale) in scales.iter().enumerate() {
                head[r * self.slots + slot] = scale.to_ne_bytes();
            }
            self.write_words(body, slot, words);
        });
    }

    /// Writes the dwords of a slot to the bytes of a page's body.
    #[inline(always)]
    fn write_words(&self, body: &mut [u8], slot: usize, words: &[[u8; 4]]) {
        if self.plan.is_woven() {
            for (w, word) in words.iter().enumerate() {
                let bytes = body[self.word_at(slot, w)..].iter_mut().step_by(4);
                bytes.zip(word).for_each(|(to, &byte)| *to = byte);
            }
        } else if self.positions == WIDE && self.plan.depth() == 1 {
            let at = (slot / self.line_tokens) * 64 + self.lane(slot);
            let columns = body[at..].chunks_mut(self.groups * 64);
            for (column, codes) in columns.zip(words.as_flattened().as_chunks::<WIDE>().0) {
                let Some(line) = column.first_chunk_mut::<{ 4 * WIDE - 3 }>() else { return };
                for (p, code) in codes.iter().enumerate() {
                    line[4 * p] = *code;
                }
            }
        } else {
            let codes = words.as_flattened();
            self.for_each_byte(slot, |at, code| body[at] = codes[code]);
        }
    }

    /// Reads a block back, as it was written.
    ///
    /// # Panics
    /// The same conditions as [`ValuePages::write`].
    pub fn read(&self, page: &[Line], slot: usize, block: &mut [u8]) {
        assert!(
            slot < self.slots && block.len() == self.plan.block_bytes,
            "the slot or the block does not fit the page"
        );
        let (mut scales, mut words) = ([0; 32], [[0; 4]; MAX_WORDS]);
        let (head, body) = page[..self.lines].split_at(self.scale_lines);
        let head = bytes(head).as_flattened().as_chunks::<2>().0;
        for (r, scale) in scales[..self.plan.runs].iter_mut().enumerate() {
            *scale = u16::from_ne_bytes(head[r * self.slots + slot]);
        }
        let body = bytes(body).as_flattened();
        if self.plan.is_woven() {
            for (w, word) in words[..self.plan.word_count()].iter_mut().enumerate() {
                let bytes = body[self.word_at(slot, w)..].iter().step_by(4);
                word.iter_mut().zip(bytes).for_each(|(to, &byte)| *to = byte);
            }
        } else {
            let codes = words.as_flattened_mut();
            self.for_each_byte(slot, |at, code| codes[code] = body[at]);
        }
        self.plan.block(&scales, &words, block);
    }

    /// `acc[h] += sum of weights[h][i] * value of slot from + i`, in the rotated domain. `weights` is
    /// `[heads, n]` and `acc` is `[heads, dim]`. The result is equal to the bit on every level if weights and
    /// scales are finite; else it is undefined.
    ///
    /// `next` is memory that will be read soon; pass an empty slice if there is none.
    ///
    /// # Panics
    /// The memory is shorter than [`ValuePages::lines`], or the slots are not all in the page.
    pub fn accumulate(
        &self,
        level: Level,
        page: &[Line],
        from: usize,
        weights: &[f32],
        next: &[Line],
        acc: &mut [f32],
    ) {
        Self::accumulate_parts(level, &[ValuePart { pages: self, page, from, weights, next }], acc);
    }

    /// Slots of a page with their weights. Only lines of runs that hold a slot of the range are read.
    fn given<'a>(
        &self,
        page: &'a [Line],
        slots: Range<usize>,
        weights: &'a [f32],
        next: &'a [Line],
    ) -> Given<'a> {
        let (head, body) = page[..self.lines].split_at(self.scale_lines);
        let lines = self.groups * self.plan.depth();
        let range = slots.start / RUN * self.run_lines..slots.end.div_ceil(RUN) * self.run_lines;
        let strip = Strip { body, lines, range, next };
        Given {
            scales: super::halves(head),
            slots: self.slots,
            from: slots.start,
            n: slots.len(),
            weights,
            strip,
            scale_lines: self.scale_lines,
        }
    }

    /// Returns true if two pages are better summed [together](ValuePages::accumulate_parts) for `heads`
    /// heads. It is false if the heads wait for memory, which is used better when pages come one by one.
    ///
    /// Levels of planes cost more than memory does. Two bits per value are read in almost no time. Four bits
    /// are read sooner than two heads are summed, eight bits hardly sooner than eight heads are.
    pub fn joins(&self, heads: usize) -> bool {
        let bits = 8 * self.plan.block_bytes / self.plan.dim;
        self.plan.is_woven() || bits < 3 || (bits < 8 && heads > 1)
    }

    /// [`ValuePages::accumulate`] over several pages of one codec. Sums stay in registers from one page to
    /// the next, and weights are rounded against the largest weight of all pages.
    ///
    /// # Panics
    /// The conditions of [`ValuePages::accumulate`]; or more parts than [`MAX_PARTS`], parts of several
    /// codecs, or more than [`MAX_SLOTS`] tokens.
    pub fn accumulate_parts(level: Level, parts: &[ValuePart<'_>], acc: &mut [f32]) {
        let Some(&ValuePart { pages, .. }) = parts.first() else { return };
        let heads = acc.len() / pages.plan.dim;
        if heads == 0 {
            return;
        }
        let mut given = ArrayVec::<Given<'_>, MAX_PARTS>::new();
        let mut runs = 0;
        for &ValuePart { pages: own, page, from, weights, next } in parts {
            let n = weights.len() / heads;
            assert!(from + n <= own.slots, "the slots must be in the page");
            assert!(
                own.plan.id == pages.plan.id && own.plan.dim == pages.plan.dim,
                "pages must have one codec"
            );
            if n > 0 {
                given.push(own.given(page, from..from + n, weights, next));
                runs += (from + n).div_ceil(RUN) - from / RUN;
            }
        }
        // Only as much memory as is needed: clearing it takes noticeable time beside a page of few bits.
        let accumulate = Accumulate { pages, parts: &mut given, acc };
        assert!(runs <= MAX_RUNS, "at most MAX_SLOTS tokens in one sum");
        match runs * heads.min(TOGETHER) {
            0..=8 => accumulate.with_room::<8>(level),
            9..=32 => accumulate.with_room::<32>(level),
            33..=64 => accumulate.with_room::<64>(level),
            _ => accumulate.with_room::<{ MAX_RUNS * TOGETHER }>(level),
        }
    }
}

/// Tokens of one page to sum with weights `[heads, n]`: slots from `from` on. `next` is memory that will be
/// read soon.
#[derive(Clone, Copy, Debug)]
pub struct ValuePart<'a> {
    /// The layout of the page.
    pub pages: &'a ValuePages,
    /// The memory, as [`ValuePages::write`] filled it.
    pub page: &'a [Line],
    /// The first slot.
    pub from: usize,
    /// `[heads, n]`: one weight per head and token, head by head.
    pub weights: &'a [f32],
    /// Memory that will be read soon; empty if there is none.
    pub next: &'a [Line],
}

/// [`ValuePages::accumulate_parts`] at a level.
struct Accumulate<'a, 'p> {
    /// The layout of the first part's page; the other pages may only differ in their number of slots.
    pages: &'a ValuePages,
    parts: &'a mut [Given<'p>],
    acc: &'a mut [f32],
}

impl Accumulate<'_, '_> {
    /// Sums with room for the rounded weights of the heads of one pass. Each size is a separate function,
    /// because a large stack frame also costs time.
    #[inline(never)]
    fn with_room<const N: usize>(self, level: Level) {
        level.choose(Roomy { sum: self, room: &mut [NO_HALVES; N] });
    }
}

/// An [`Accumulate`] and its workspace.
struct Roomy<'a, 'p, 'r> {
    sum: Accumulate<'a, 'p>,
    room: &'r mut [Halves],
}

impl Kernels for Roomy<'_, '_, '_> {
    fn run<I: Machine>(self, isa: I) {
        let Self { sum: Accumulate { pages, parts, acc }, room } = self;
        let ValuePages { plan, run_columns, positions, .. } = pages;
        for (pass, accs) in acc.chunks_mut(TOGETHER * plan.dim).enumerate() {
            let pass = Pass {
                plan,
                run_columns: *run_columns,
                positions: *positions,
                parts: &mut *parts,
                first: pass * TOGETHER,
                heads: accs.len() / plan.dim,
                accs,
                room: &mut *room,
            };
            with_kernel!(plan, K => K::sum(isa, pass));
        }
    }
}

/// Fields of one head whose sums fit the registers.
const fn fields<I: Machine, const BITS: usize>() -> usize {
    if are_bytes::<I, BITS>() { 2 * I::FIELDS } else { I::FIELDS }
}

/// The same number over fields and heads.
const fn sums_of<I: Machine, const BITS: usize>() -> usize {
    if are_bytes::<I, BITS>() { 2 * I::SUMS } else { I::SUMS }
}

/// Number of lines whose levels are kept; each line has four tokens.
const MAX_KEPT: usize = MAX_SLOTS / 4;

impl<const BITS: usize> ValueCodes for Packed<BITS> {
    fn sum<I: Machine>(isa: I, pass: Pass<'_, '_>) {
        match pass.positions {
            2 => Self::heads::<I, 2, 8, 1>(isa, pass),
            4 => Self::heads::<I, 4, 4, 2>(isa, pass),
            8 => Self::heads::<I, 8, 2, 4>(isa, pass),
            _ => Self::heads::<I, 16, 1, 8>(isa, pass),
        }
    }
}

impl<const BITS: usize> Packed<BITS> {
    /// Sums the columns for all heads, as many at a time as have their sums in registers. Lines have
    /// `POSITIONS` times `DWORDS` dwords, and a run of tokens is `LINES` lines.
    fn heads<I: Machine, const POSITIONS: usize, const DWORDS: usize, const LINES: usize>(
        isa: I,
        mut pass: Pass<'_, '_>,
    ) {
        let heads = pass.heads;
        // The conditions are constants, so only the kernels that can be chosen are compiled.
        if const { Self::CODES > fields::<I, BITS>() } {
            return Self::columns::<I, POSITIONS, DWORDS, LINES, 0>(isa, &mut pass, 0..heads);
        }
        // Several heads at a time if whole lines are summed, which is the case at common head dims.
        let mut head = 0;
        macro_rules! together {
            ($h:literal) => {
                if const { LINES == 8 && $h * Self::CODES <= sums_of::<I, BITS>() && I::HEADS >= $h }
                    && heads - head >= $h
                {
                    let last = head + (heads - head) / $h * $h;
                    Self::columns::<I, POSITIONS, DWORDS, LINES, $h>(isa, &mut pass, head..last);
                    head = last;
                }
            };
        }
        together!(8);
        together!(4);
        together!(2);
        if head < heads {
            Self::columns::<I, POSITIONS, DWORDS, LINES, 1>(isa, &mut pass, head..heads);
        }
    }

    /// Sums the columns for the heads of `asked`, `H` at a time. If `H` is 0, it sums all of them over levels
    /// that are made once.
    fn columns<
        I: Machine,
        const POSITIONS: usize,
        const DWORDS: usize,
        const LINES: usize,
        const H: usize,
    >(
        isa: I,
        pass: &mut Pass<'_, '_>,
        asked: Range<usize>,
    ) {
        isa.apart(
            #[inline(always)]
            |isa| {
                let table = isa.value_table(pass.plan.levels.first_chunk().unwrap_or(&[0; 16]));
                pass.for_each_sign::<I, BITS>(
                    isa,
                    asked.clone(),
                    #[inline(always)]
                    |isa, job| {
                        for at in job.columns.clone() {
                            let mut reads = ArrayVec::<[&[Line]; 2], MAX_PARTS>::new();
                            for i in 0..job.parts.len().min(MAX_PARTS) {
                                let lines = job.parts[i].strip.column(at);
                                reads.push([lines, ahead(job.parts, lines, lines.len())]);
                            }
                            job.out.column = at * POSITIONS;
                            // Heads one after the other, `H` at a time; 0 means all.
                            for head in asked.clone().step_by(if H == 0 { TOGETHER } else { H }) {
                                let heads = if H == 0 { asked.clone() } else { head..head + H };
                                let (weights, out) = (job.weights, &mut job.out);
                                sum_column::<I, BITS, POSITIONS, DWORDS, LINES, H>(
                                    isa, &reads, table, weights, heads, out,
                                );
                                reads.iter_mut().for_each(|[lines, ahead]| *ahead = lines);
                            }
                        }
                    },
                );
            },
        );
    }
}

/// Sums one column of packed codes over the tokens of its lines. Lines have `POSITIONS` times `DWORDS`
/// dwords; a run of tokens is `LINES` lines. `reads` are the lines of the column on each page, and as many
/// lines to prefetch. `H` is the number of heads in `asked`; if `H` is 0, any number of heads is summed one
/// after the other.
#[inline(always)]
fn sum_column<
    I: Machine,
    const BITS: usize,
    const POSITIONS: usize,
    const DWORDS: usize,
    const LINES: usize,
    const H: usize,
>(
    isa: I,
    reads: &[[&[Line]; 2]],
    table: I::Table,
    weights: Weights<'_>,
    asked: Range<usize>,
    out: &mut Out<'_>,
) {
    const { assert!(LINES * DWORDS == RUN_LINES, "a run of tokens") };
    // Sums all fields over all lines, for `H` heads at once, with `$depth` lines per step.
    macro_rules! together {
        ($depth:literal, |$line:ident| [$($levels:expr),*]) => {{
            const COUNT: usize = [$(stringify!($levels)),*].len();
            // If there are few sums, each is kept twice, so that additions need not wait.
            let mut sums = [[[[isa.zero(); 2]; COUNT]; H]; 2];
            let mut run = 0;
            for [lines, next] in reads {
            let (lines, next) = (lines.as_chunks::<$depth>().0, next.as_chunks::<$depth>().0);
            let (lines, next) = (lines.as_chunks::<LINES>().0, next.as_chunks::<LINES>().0);
            for (lines, next) in lines.iter().zip(next) {
                let heads: &[Halves; H] = weights.of(run, asked.start);
                run += 1;
                macro_rules! step {
                    ($at:expr, $part:expr) => {{
                        let (at, part) = ($at, const { if 2 * COUNT * H <= sums_of::<I, BITS>() { $part } else { 0 } });
                        prefetch::<I, BITS>(isa, &next[at]);
                        let $line = read_lines(isa, &lines[at]);
                        // With several heads, make all levels first: they take fewer registers than the
                        // weights of all heads. With one head, make the levels one by one. That takes fewer
                        // registers than all levels, which matters for AVX-VNNI at 4 bits.
                        let made = if const { H > 1 } { [$($levels),*] } else { [isa.line(&Line::ZERO); COUNT] };
                        for h in 0..H {
                            let [first, second] = &heads[h];
                            let halves = [&first.as_chunks().0[at], &second.as_chunks().0[at]];
                            let by = load_halves::<I, BITS, DWORDS>(isa, halves);
                            let mut field = 0;
                            $(
                                let levels = if const { H > 1 } { made[field] } else { $levels };
                                sums[part][h][field] =
                                    add_products::<I, BITS>(isa, sums[part][h][field], levels, by);
                                field += 1;
                            )*
                            debug_assert_eq!(field, COUNT);
                        }
                    }};
                }
                for pair in 0..LINES / 2 {
                    step!(2 * pair, 0);
                    step!(2 * pair + 1, 1);
                }
                if const { LINES == 1 } {
                    step!(0, 0);
                }
            }
            }
            for h in 0..H {
                let mut lanes = [[0; 16]; COUNT];
                for field in 0..COUNT {
                    let [mut first, mut second] = sums[0][h][field];
                    if const { 2 * COUNT * H <= sums_of::<I, BITS>() } {
                        let [others, others_second] = sums[1][h][field];
                        (first, second) = (isa.add(first, others), isa.add(second, others_second));
                    }
                    lanes[field] = join::<I, BITS>(isa, [first, second]);
                }
                out.add::<POSITIONS, COUNT>(asked.start + h, lanes);
            }
        }};
    }
    // Sums `$codes` fields in pairs, because more do not fit the registers. It goes head by head over levels
    // that are made once.
    macro_rules! in_pairs {
        ($codes:literal, $depth:literal, |$line:ident| [$($field:literal: $even:expr, $odd:expr);*]) => {{
            let mut sums = [[[0; 16]; $codes]; TOGETHER];
            $(
                let mut levels = ArrayVec::<[I::Line; 2], MAX_KEPT>::new();
                for [lines, next] in reads {
                    let (lines, next) = (lines.as_chunks::<$depth>().0, next.as_chunks::<$depth>().0);
                    for (lines, next) in lines.iter().zip(next) {
                        if const { $field == 0 } {
                            prefetch::<I, BITS>(isa, next);
                        }
                        let $line = read_lines(isa, lines);
                        if levels.try_push([$even, $odd]).is_err() {
                            return;
                        }
                    }
                }
                for (head, sums) in asked.clone().zip(&mut sums) {
                    [sums[$field], sums[$field + 1]] = sum_levels::<I, BITS, 2, 0, 2, DWORDS>(isa, &levels, weights, head);
                }
            )*
            for (head, sums) in asked.zip(sums) {
                out.add::<POSITIONS, $codes>(head, sums);
            }
        }};
    }
    match BITS {
        8 => together!(1, |line| [line[0]]),
        4 => together!(1, |line| [isa.level::<4, 0>(line[0], table), isa.level::<4, 1>(line[0], table)]),
        2 if const { fields::<I, BITS>() >= 4 } => together!(1, |line| [
            isa.level::<2, 0>(line[0], table),
            isa.level::<2, 1>(line[0], table),
            isa.level::<2, 2>(line[0], table),
            isa.level::<2, 3>(line[0], table)
        ]),
        2 => in_pairs!(4, 1, |line| [
            0: isa.level::<2, 0>(line[0], table), isa.level::<2, 1>(line[0], table);
            2: isa.level::<2, 2>(line[0], table), isa.level::<2, 3>(line[0], table)
        ]),
        1 if const { fields::<I, BITS>() >= 8 } => together!(1, |line| [
            isa.level::<1, 0>(line[0], table),
            isa.level::<1, 1>(line[0], table),
            isa.level::<1, 2>(line[0], table),
            isa.level::<1, 3>(line[0], table),
            isa.level::<1, 4>(line[0], table),
            isa.level::<1, 5>(line[0], table),
            isa.level::<1, 6>(line[0], table),
            isa.level::<1, 7>(line[0], table)
        ]),
        1 => in_pairs!(8, 1, |line| [
            0: isa.level::<1, 0>(line[0], table), isa.level::<1, 1>(line[0], table);
            2: isa.level::<1, 2>(line[0], table), isa.level::<1, 3>(line[0], table);
            4: isa.level::<1, 4>(line[0], table), isa.level::<1, 5>(line[0], table);
            6: isa.level::<1, 6>(line[0], table), isa.level::<1, 7>(line[0], table)
        ]),
        3 if const { fields::<I, BITS>() >= 8 } => together!(3, |line| [
            isa.level3::<0>(line, table),
            isa.level3::<1>(line, table),
            isa.level3::<2>(line, table),
            isa.level3::<3>(line, table),
            isa.level3::<4>(line, table),
            isa.level3::<5>(line, table),
            isa.level3::<6>(line, table),
            isa.level3::<7>(line, table)
        ]),
        3 => in_pairs!(8, 3, |line| [
            0: isa.level3::<0>(line, table), isa.level3::<1>(line, table);
            2: isa.level3::<2>(line, table), isa.level3::<3>(line, table);
            4: isa.level3::<4>(line, table), isa.level3::<5>(line, table);
            6: isa.level3::<6>(line, table), isa.level3::<7>(line, table)
        ]),
        _ => unreachable!("rows of such codes"),
    }
}
