//! Weighted sums over pages of values: the entry, and the kernels of packed codes.
//!
//! Weights times scales are integers of 8 bits, or of 14 bits for 8-bit codes ([`super::weights`]), and are
//! summed exactly: 512 tokens times 16383 times 127 is below 2^30. `values` has the layout of the pages, and
//! `woven` the kernels of bit planes.

use super::columns::{
    Given, Out, Pass, Strip, ValueCodes, add_products, ahead, biased, join, load_halves, sum_levels,
};
use super::plan::{Packed, with_kernel};
use super::values::ValuePages;
use super::weights::{Halves, NO_HALVES, RUN, RUN_LINES, TOGETHER, TokenWeights, are_bytes, turn};
use super::{Line, MAX_PARTS, MAX_SLOTS, prefetch, read_lines};
use crate::level::{KernelChoice, Level};
use crate::lines::Machine;
use arrayvec::ArrayVec;
use core::ops::Range;

/// Runs of the most tokens of a sum.
const MAX_RUNS: usize = MAX_SLOTS / RUN;

/// The complaint about more.
const TOO_MANY: &str = "at most MAX_SLOTS tokens in one sum";

impl ValuePages {
    /// `acc[h] += sum of weights[h][i] * value of slot from + i`, in the rotated domain. `weights` is
    /// `[heads, n]` and `acc` is `[heads, dim]`. The result is equal to the bit on every level if weights and
    /// scales are finite; else it is undefined.
    ///
    /// `next` is memory that will be read soon; pass an empty slice if there is none. This is for a page that
    /// stands alone. [`ValuePages::accumulate_parts`] is for those of a sequence, over which the errors of
    /// weights would add up here.
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
        Self::accumulate_parts(level, &[ValuePart { pages: self, page, start: 0, from, weights, next }], acc);
    }

    /// Runs of tokens of a page with their weights. Only lines of these runs are read.
    fn given<'a>(&self, part: &ValuePart<'a>, runs: Range<usize>) -> Given<'a> {
        let (head, body) = part.page[..self.lines()].split_at(self.scale_lines);
        let lines = self.groups * self.plan.depth();
        let range = runs.start * self.run_lines..runs.end * self.run_lines;
        Given {
            scales: super::halves(head).as_chunks().0,
            page_runs: self.slots / RUN,
            runs,
            weights: part.weights.as_chunks().0,
            strip: Strip { body, lines, range, next: part.next },
            scale_lines: self.scale_lines,
        }
    }

    /// [`ValuePages::accumulate`] over several pages of one codec. Sums stay in registers from one page to
    /// the next, and weights are rounded against the largest weight of all pages. The rounding also depends
    /// on the first token's place in the sequence, so that errors do not add up from sum to sum.
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
        let (mut runs, mut first) = (0, None);
        for part in parts {
            let (own, n) = (part.pages, part.weights.len() / heads);
            let end = part.from + n;
            assert!(end <= own.slots, "the slots must be in the page");
            assert!(
                own.plan.id == pages.plan.id && own.plan.dim == pages.plan.dim,
                "pages must have one codec"
            );
            if n > 0 && !(part.from.is_multiple_of(RUN) && n.is_multiple_of(RUN)) {
                return Self::accumulate_padded(level, parts, pages.plan.dim, acc);
            }
            if n > 0 {
                given.push(own.given(part, part.from / RUN..end / RUN));
                first = first.or(Some(part.start + part.from));
                runs += n / RUN;
            }
        }
        // Only as much memory as is needed: clearing it takes noticeable time compared with a page of few
        // bits.
        let accumulate = Accumulate { pages, parts: &mut given, turn: turn(first.unwrap_or(0)), acc };
        assert!(runs <= MAX_RUNS, "{TOO_MANY}");
        match runs * heads.min(TOGETHER) {
            0..=8 => accumulate.with_room::<8>(level),
            9..=32 => accumulate.with_room::<32>(level),
            33..=64 => accumulate.with_room::<64>(level),
            _ => accumulate.with_room::<{ MAX_RUNS * TOGETHER }>(level),
        }
    }

    /// [`ValuePages::accumulate_parts`] where a part begins or ends inside a run: the other slots of the run
    /// get the weight 0.
    #[cold]
    fn accumulate_padded(level: Level, parts: &[ValuePart<'_>], dim: usize, acc: &mut [f32]) {
        let heads = acc.len() / dim;
        let runs_of = |part: &ValuePart<'_>| {
            let n = part.weights.len() / heads;
            if n == 0 { 0 } else { (part.from % RUN + n).div_ceil(RUN) }
        };
        assert!(parts.iter().map(runs_of).sum::<usize>() <= MAX_RUNS, "{TOO_MANY}");
        for (pass, acc) in acc.chunks_mut(TOGETHER * dim).enumerate() {
            let first = pass * TOGETHER;
            let mut room = ArrayVec::<[f32; RUN], { MAX_RUNS * TOGETHER }>::new();
            for part in parts {
                let n = part.weights.len() / heads;
                for head in first..first + acc.len() / dim {
                    let given = &part.weights[head * n..(head + 1) * n];
                    let (edge, others) = given.split_at(n.min(RUN - part.from % RUN));
                    room.extend(padded_run(part.from % RUN, edge));
                    room.extend(others.chunks(RUN).filter_map(|own| padded_run(0, own)));
                }
            }
            let mut rest = room.as_slice();
            let mut padded = ArrayVec::<ValuePart<'_>, MAX_PARTS>::new();
            for part in parts {
                let (own, others) = rest.split_at(runs_of(part) * (acc.len() / dim));
                padded.push(ValuePart { from: part.from / RUN * RUN, weights: own.as_flattened(), ..*part });
                rest = others;
            }
            Self::accumulate_parts(level, &padded, acc);
        }
    }
}

/// A run whose slots from `from` on have these weights, and the others 0; `None` without weights.
fn padded_run(from: usize, weights: &[f32]) -> Option<[f32; RUN]> {
    let mut run = [0.0; RUN];
    run.get_mut(from..from + weights.len())?.copy_from_slice(weights);
    (!weights.is_empty()).then_some(run)
}

/// Tokens of one page to sum with weights `[heads, n]`: slots from `from` on. `next` is memory that will be
/// read soon.
#[derive(Clone, Copy, Debug)]
pub struct ValuePart<'a> {
    /// The layout of the page.
    pub pages: &'a ValuePages,
    /// The memory, as [`ValuePages::write`] filled it.
    pub page: &'a [Line],
    /// The token of the sequence that slot 0 holds, a multiple of [`SLOT_STEP`](super::SLOT_STEP).
    pub start: usize,
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
    turn: i32,
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

impl KernelChoice for Roomy<'_, '_, '_> {
    fn run<I: Machine>(self, isa: I) {
        let Self { sum: Accumulate { pages, parts, turn, acc }, room } = self;
        let ValuePages { plan, run_columns, positions, .. } = pages;
        for (pass, accs) in acc.chunks_mut(TOGETHER * plan.dim).enumerate() {
            let pass = Pass {
                plan,
                run_columns: *run_columns,
                positions: *positions,
                parts: &mut *parts,
                turn,
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

/// Returns true if there is a kernel of levels that are made once and kept: a byte has four fields or more.
const fn has_kept_levels(bits: usize) -> bool {
    bits < 4
}

/// Number of lines whose levels are kept; each line has four tokens.
const MAX_KEPT: usize = MAX_SLOTS / 4;

impl<const BITS: usize> ValueCodes for Packed<BITS> {
    fn sum<I: Machine>(isa: I, pass: Pass<'_, '_>) {
        // A head dim is a multiple of 16, so a row is one of 16 / CODES. The conditions are constants.
        match pass.positions {
            2 if const { Self::CODES >= 8 } => Self::heads::<I, 2, 8, 1>(isa, pass),
            4 if const { Self::CODES >= 4 } => Self::heads::<I, 4, 4, 2>(isa, pass),
            8 if const { Self::CODES >= 2 } => Self::heads::<I, 8, 2, 4>(isa, pass),
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
        // Several heads at a time if full lines are summed, which is the case at common head dims.
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
        // If no two heads fit, several of them share levels that are made once.
        if const { has_kept_levels(BITS) && 2 * Self::CODES > sums_of::<I, BITS>() } && heads - head > 1 {
            Self::columns::<I, POSITIONS, DWORDS, LINES, 0>(isa, &mut pass, head..heads);
        } else if head < heads {
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
                let levels = pass.plan.levels.first_chunk().unwrap_or(&[0; 16]);
                let table = isa.value_table(&biased::<I, _>(levels));
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
    weights: TokenWeights<'_>,
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
            for (head, sums) in (asked.start..).zip(&mut sums[0]) {
                for sum in sums {
                    sum[0] = weights.first::<I, BITS>(isa, head, POSITIONS);
                }
            }
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
                    let [[even, odd]] = sum_levels::<I, BITS, 2, 0, 2, DWORDS, 1>(isa, &levels, weights, head);
                    [sums[$field], sums[$field + 1]] = [isa.lanes(even), isa.lanes(odd)];
                }
            )*
            for (head, sums) in asked.zip(sums) {
                out.add::<POSITIONS, $codes>(head, sums);
            }
        }};
    }
    match BITS {
        8 if const { H > 0 } => together!(1, |line| [line[0]]),
        4 if const { H > 0 } => {
            together!(1, |line| [isa.level::<4, 0>(line[0], table), isa.level::<4, 1>(line[0], table)])
        }
        2 if const { H > 0 } => together!(1, |line| [
            isa.level::<2, 0>(line[0], table),
            isa.level::<2, 1>(line[0], table),
            isa.level::<2, 2>(line[0], table),
            isa.level::<2, 3>(line[0], table)
        ]),
        2 => in_pairs!(4, 1, |line| [
            0: isa.level::<2, 0>(line[0], table), isa.level::<2, 1>(line[0], table);
            2: isa.level::<2, 2>(line[0], table), isa.level::<2, 3>(line[0], table)
        ]),
        3 if const { H > 0 } => together!(3, |line| [
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
        _ => unreachable!("codes of one or two fields, over levels that are kept"),
    }
}
