//! Shared by the readers of value pages: the lines of a column, the place of its sums, and the trait between
//! the two.

use super::plan::Plan;
use super::weights::{
    Halves, Products, RUN, RUN_LINES, TOGETHER, TokenWeights, are_bytes, bounds, first_sums, is_wide, step,
    total, vanishes,
};
use super::{Line, fetch_scales};
use crate::lines::Machine;
use core::ops::Range;

/// Positions of a line of bit planes: dwords of 128 bits.
pub(super) const WOVEN_POSITIONS: usize = 4;

/// The part of one page that is summed: the lines of its columns.
pub(super) struct Strip<'a> {
    /// Lines of all columns, one after the other.
    pub(super) body: &'a [Line],
    /// Lines of a column.
    pub(super) lines: usize,
    /// The lines of a column whose runs hold a token of the range.
    pub(super) range: Range<usize>,
    /// Memory that is read soon, and not yet prefetched.
    pub(super) next: &'a [Line],
}

impl<'a> Strip<'a> {
    /// The lines of one column in the range.
    #[inline(always)]
    pub(super) fn column(&self, column: usize) -> &'a [Line] {
        let column = self.body.get(column * self.lines..(column + 1) * self.lines);
        column.and_then(|lines| lines.get(self.range.clone())).unwrap_or_default()
    }
}

/// Returns lines to prefetch, as many as `lines` has; `count` of them then count as prefetched. If no strip
/// has enough, it returns `lines` itself: prefetching a line that is already there costs less than a check.
/// The strips are taken one after the other, because memory delivers consecutive lines sooner.
#[inline(always)]
pub(super) fn ahead<'a>(parts: &mut [Given<'a>], lines: &'a [Line], count: usize) -> &'a [Line] {
    for Given { strip, .. } in parts {
        if let Some(ahead) = strip.next.get(..lines.len()) {
            strip.next = strip.next.get(count..).unwrap_or_default();
            return ahead;
        }
    }
    lines
}

/// The place of the sums of a column.
pub(super) struct Out<'a> {
    pub(super) plan: &'a Plan,
    /// First code byte of the column.
    pub(super) column: usize,
    /// `[heads, dim]`
    pub(super) accs: &'a mut [f32],
    /// The value of one step of each head's weights; 0 if the head has no weights.
    pub(super) factors: &'a [f32; TOGETHER],
}

impl Out<'_> {
    /// The coordinates of a head, and the value of one step of its weights; `None` if it has no weights.
    #[inline(always)]
    pub(super) fn head(&mut self, head: usize) -> Option<(&mut [f32], f32)> {
        let factor = self.factors[head];
        let acc = self.accs.get_mut(head * self.plan.dim..(head + 1) * self.plan.dim)?;
        (factor != 0.0).then_some((acc, factor))
    }

    /// Turns the sums of one field into values; lanes beyond `POSITIONS` are further tokens.
    #[inline(always)]
    pub(super) fn values<const POSITIONS: usize>(factor: f32, mut lanes: [i32; 16]) -> [f32; POSITIONS] {
        let mut half = 8;
        while half >= POSITIONS {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
            half /= 2;
        }
        let mut values = [0.0; POSITIONS];
        for (value, lane) in values.iter_mut().zip(lanes) {
            *value = lane as f32 * factor;
        }
        values
    }

    /// Adds a head's sums of all fields of the column's bytes.
    #[inline(always)]
    pub(super) fn add<const POSITIONS: usize, const CODES: usize>(
        &mut self,
        head: usize,
        sums: [[i32; 16]; CODES],
    ) {
        // Only codes of two fields can be apart. The condition is a constant for others.
        if CODES == 2 && self.plan.stride() != CODES {
            for (field, sums) in sums.into_iter().enumerate() {
                self.add_field::<POSITIONS>(head, field, sums);
            }
            return;
        }
        let first = self.plan.coordinate(self.column, 0);
        let Some((acc, factor)) = self.head(head) else { return };
        let mut values = [[0.0; POSITIONS]; CODES];
        for (values, sums) in values.iter_mut().zip(sums) {
            *values = Self::values(factor, sums);
        }
        let Some(acc) = acc.get_mut(first..first + POSITIONS * CODES) else { return };
        for (p, acc) in acc.as_chunks_mut::<CODES>().0.iter_mut().enumerate().take(POSITIONS) {
            for (acc, values) in acc.iter_mut().zip(&values) {
                *acc += values[p];
            }
        }
    }

    /// Adds a head's sums of a field that is stored next to the field of the next byte, not next to the other
    /// fields.
    #[inline(always)]
    fn add_field<const POSITIONS: usize>(&mut self, head: usize, field: usize, sums: [i32; 16]) {
        let first = self.plan.coordinate(self.column, field);
        let Some((acc, factor)) = self.head(head) else { return };
        let Some(acc) = acc.get_mut(first..first + POSITIONS) else { return };
        for (acc, value) in acc.iter_mut().zip(Self::values::<POSITIONS>(factor, sums)) {
            *acc += value;
        }
    }
}

/// Combines the sums for the two halves of weights of 8 bits.
#[inline(always)]
pub(super) fn join_bytes<I: Machine>(isa: I, [first, second]: [I::Sum; 2]) -> I::Sum {
    if const { I::BYTE_WEIGHTS } { first } else { isa.add(first, second) }
}

/// Combines the sums for the two halves of the weights.
#[inline(always)]
pub(super) fn join<I: Machine, const BITS: usize>(isa: I, [first, second]: [I::Sum; 2]) -> [i32; 16] {
    if const { !is_wide(BITS) } {
        return isa.lanes(join_bytes(isa, [first, second]));
    }
    let (high, mut low) = (isa.lanes(first), isa.lanes(second));
    for (low, high) in low.iter_mut().zip(high) {
        *low += high * 128;
    }
    low
}

/// Adds the products of levels with the two halves of their weights.
#[inline(always)]
pub(super) fn add_products<I: Machine, const BITS: usize>(
    isa: I,
    [first, second]: [I::Sum; 2],
    levels: I::Line,
    weights: [I::Line; 2],
) -> [I::Sum; 2] {
    if const { is_wide(BITS) } {
        [isa.wide_dot(first, levels, weights[0]), isa.wide_dot(second, levels, weights[1])]
    } else if const { I::BYTE_WEIGHTS } {
        [isa.value_dot(first, levels, weights[0]), second]
    } else {
        [isa.value_dot(first, levels, weights[0]), isa.value_dot(second, levels, weights[1])]
    }
}

/// The two halves of the weights of a line's tokens, each repeated over its positions. The second half is
/// read only if there is one.
#[inline(always)]
pub(super) fn load_halves<I: Machine, const BITS: usize, const DWORDS: usize>(
    isa: I,
    [first, second]: [&[[u8; 4]; DWORDS]; 2],
) -> [I::Line; 2] {
    let first_line = load_weights(isa, first);
    if const { are_bytes::<I, BITS>() } {
        return [first_line; 2];
    }
    [first_line, load_weights(isa, second)]
}

/// Levels of values, with the bias of the machine.
#[inline(always)]
pub(super) fn biased<I: Machine, const N: usize>(levels: &[i8; N]) -> [i8; N] {
    let mut biased = *levels;
    if const { I::VALUE_BIAS != 0 } {
        for level in &mut biased {
            *level = level.wrapping_add(I::VALUE_BIAS as i8);
        }
    }
    biased
}

/// Weights of a line's tokens, each repeated over its positions.
#[inline(always)]
fn load_weights<I: Machine, const DWORDS: usize>(isa: I, dwords: &[[u8; 4]; DWORDS]) -> I::Line {
    if const { DWORDS == 1 } {
        isa.splat_weights(u32::from_le_bytes(dwords[0]))
    } else {
        isa.weights(&core::array::from_fn(|i| u32::from_le_bytes(dwords[i * DWORDS / 16])))
    }
}

/// The sums of `N` of the `COUNT` levels per byte, from level `FIRST` on, for `H` heads from `head` on. The
/// levels of the tokens are already made. `H` times `N` is at most what registers hold.
#[inline(always)]
pub(super) fn sum_levels<
    I,
    const BITS: usize,
    const COUNT: usize,
    const FIRST: usize,
    const N: usize,
    const DWORDS: usize,
    const H: usize,
>(
    isa: I,
    levels: &[[I::Line; COUNT]],
    weights: TokenWeights<'_>,
    head: usize,
) -> [[I::Sum; N]; H]
where
    I: Machine,
{
    let mut sums = [[[isa.zero(); 2]; N]; H];
    for (head, sums) in (head..).zip(&mut sums) {
        for sum in sums {
            sum[0] = weights.first::<I, BITS>(isa, head, 16 / DWORDS);
        }
    }
    for (run, levels) in levels.chunks(RUN_LINES / DWORDS).enumerate() {
        let heads: &[Halves; H] = weights.of(run, head);
        for (at, levels) in levels.iter().enumerate().take(RUN_LINES / DWORDS) {
            for h in 0..H {
                let [first, second] = &heads[h];
                let halves = [&first.as_chunks::<DWORDS>().0[at], &second.as_chunks::<DWORDS>().0[at]];
                let by = load_halves::<I, BITS, DWORDS>(isa, halves);
                for n in 0..N {
                    sums[h][n] = add_products::<I, BITS>(isa, sums[h][n], levels[FIRST + n], by);
                }
            }
        }
    }
    let mut joined = [[isa.zero(); N]; H];
    for h in 0..H {
        for n in 0..N {
            joined[h][n] = join_bytes(isa, sums[h][n]);
        }
    }
    joined
}

/// Whole runs of tokens of one page, with their weights.
pub(super) struct Given<'a> {
    /// f16 scales of all slots of the page, for each run of coordinates with one scale.
    pub(super) scales: &'a [[u16; RUN]],
    /// Runs of tokens of the page.
    pub(super) page_runs: usize,
    /// Those that have weights.
    pub(super) runs: Range<usize>,
    /// `[heads, runs]`
    pub(super) weights: &'a [[f32; RUN]],
    pub(super) strip: Strip<'a>,
    /// Lines of scales at the head of the page.
    pub(super) scale_lines: usize,
}

impl<'a> Given<'a> {
    /// Weights of a head, with the scales of run `r` of coordinates.
    #[inline(always)]
    fn products(&self, head: usize, r: usize) -> Products<'a> {
        let (n, first) = (self.runs.len(), r * self.page_runs + self.runs.start);
        let weights = self.weights.get(head * n..(head + 1) * n).unwrap_or_default();
        let scales = self.scales.get(first..first + n).unwrap_or_default();
        Products { weights, scales }
    }
}

/// The parts to sum for the heads of a pass.
pub(super) struct Pass<'a, 'p> {
    /// The plan of the pages of all parts; the pages may differ in their number of slots.
    pub(super) plan: &'a Plan,
    /// Columns of a run of coordinates with one scale.
    pub(super) run_columns: usize,
    /// Dwords of a line that belong to the same four tokens.
    pub(super) positions: usize,
    pub(super) parts: &'a mut [Given<'p>],
    /// The [`turn`](super::weights::turn) of the sum.
    pub(super) turn: i32,
    /// The first head of the pass; `heads` is the number of heads, at most [`TOGETHER`].
    pub(super) first: usize,
    pub(super) heads: usize,
    /// `[heads, dim]`
    pub(super) accs: &'a mut [f32],
    /// Workspace for the rounded weights of all runs of tokens.
    pub(super) room: &'a mut [Halves],
}

impl<'p> Pass<'_, 'p> {
    /// Rounds the weights of some heads of the pass and passes them to `columns`, one run of scales and one
    /// sign at a time. Weights are unsigned on the machine. Negative ones (of the caller, or by scales of
    /// `q4_0`) are therefore summed separately.
    #[inline(always)]
    pub(super) fn for_each_sign<I: Machine, const BITS: usize>(
        &mut self,
        isa: I,
        heads: Range<usize>,
        mut columns: impl FnMut(I, &mut Job<'_, 'p>),
    ) {
        for Given { strip, scale_lines, .. } in &mut *self.parts {
            strip.next = fetch_scales(isa, strip.next, core::mem::take(scale_lines));
        }
        for r in 0..self.plan.runs {
            let mut rounded = Rounded::NONE;
            for sign in [Sign::Positive, Sign::Negative] {
                if !rounded.has[sign as usize] {
                    continue;
                }
                if const { is_wide(BITS) } {
                    self.round::<I, true>(isa, (r, sign), &heads, &mut rounded);
                } else {
                    self.round::<I, false>(isa, (r, sign), &heads, &mut rounded);
                }
                if !rounded.has[sign as usize] {
                    continue;
                }
                let Rounded { factors, totals, .. } = &rounded;
                let out = Out { plan: self.plan, column: 0, accs: &mut *self.accs, factors };
                let range = r * self.run_columns..(r + 1) * self.run_columns;
                let weights = TokenWeights { halves: &*self.room, heads: self.heads, totals };
                columns(isa, &mut Job { parts: &mut *self.parts, columns: range, weights, out });
            }
        }
    }

    /// Rounds each head's products of one sign against its largest, with the scales of run `r`. `WIDE`: to 14
    /// bits. It is compiled once for all kernels of a machine: in each of them it was most of the code.
    #[inline(always)]
    fn round<I: Machine, const WIDE: bool>(
        &mut self,
        isa: I,
        (r, sign): (usize, Sign),
        heads: &Range<usize>,
        rounded: &mut Rounded,
    ) {
        isa.apart(
            #[inline(always)]
            |isa| {
                if let Sign::Positive = sign {
                    self.bound(isa, r, heads, rounded);
                }
                self.round_inlined::<I, WIDE>(isa, (r, sign), heads, rounded);
            },
        );
    }

    /// Finds the largest product of each head and sign, with the scales of run `r`.
    #[inline(always)]
    fn bound<I: Machine>(&self, isa: I, r: usize, heads: &Range<usize>, rounded: &mut Rounded) {
        rounded.has = [false; 2];
        // All heads before any is rounded: a bound waits for its lanes, but not for the next head.
        let largest = rounded.largest.get_mut(heads.clone()).unwrap_or_default();
        for (h, largest) in heads.clone().zip(largest) {
            *largest = bounds(isa, self.parts.iter().map(|part| part.products(self.first + h, r)));
            for (has, &largest) in rounded.has.iter_mut().zip(&*largest) {
                *has |= !vanishes(largest);
            }
        }
    }

    #[inline(always)]
    fn round_inlined<I: Machine, const WIDE: bool>(
        &mut self,
        isa: I,
        (r, sign): (usize, Sign),
        heads: &Range<usize>,
        Rounded { largest, factors, totals, .. }: &mut Rounded,
    ) {
        let own = factors.get_mut(heads.clone()).unwrap_or_default().iter_mut();
        let largest = largest.get(heads.clone()).unwrap_or_default();
        for (h, (factor, largest)) in heads.clone().zip(own.zip(largest)) {
            let largest = largest[sign as usize];
            let step = step::<WIDE>(sign.factor(), largest);
            *factor = step * self.plan.unit;
            if step == 0.0 {
                continue;
            }
            let first = first_sums(isa, self.turn);
            let (mut room, mut sums) = (&mut *self.room, first);
            for part in &*self.parts {
                let products = part.products(self.first + h, r);
                let (now, later) = room.split_at_mut((part.runs.len() * self.heads).min(room.len()));
                products.round::<I, WIDE>(isa, (sign.factor(), largest), &mut sums, (h, self.heads), now);
                room = later;
            }
            if const { I::VALUE_BIAS != 0 && !WIDE }
                && let Some(to) = totals.get_mut(h)
            {
                *to = total(isa, first, sums);
            }
        }
    }
}

/// The sign of products that are summed together.
#[derive(Clone, Copy)]
enum Sign {
    Positive,
    Negative,
}

impl Sign {
    #[inline(always)]
    fn factor(self) -> f32 {
        match self {
            Self::Positive => 1.0,
            Self::Negative => -1.0,
        }
    }
}

/// What is known of the rounded weights of some heads.
struct Rounded {
    /// True for each sign that any head has, as far as is known.
    has: [bool; 2],
    /// The largest product of each head and sign.
    largest: [[f32; 2]; TOGETHER],
    /// The value of one step of each head's weights of the sign; 0 if the head has none.
    factors: [f32; TOGETHER],
    /// With a bias of levels, the sums of the weights.
    totals: [i32; TOGETHER],
}

impl Rounded {
    /// Nothing is known.
    const NONE: Self = Self {
        has: [true; 2],
        largest: [[0.0; 2]; TOGETHER],
        factors: [0.0; TOGETHER],
        totals: [0; TOGETHER],
    };
}

/// Columns to sum over the tokens of their lines, with the weights of one run of scales and one sign.
pub(super) struct Job<'a, 'p> {
    /// The parts, whose runs of weights are consecutive.
    pub(super) parts: &'a mut [Given<'p>],
    pub(super) columns: Range<usize>,
    pub(super) weights: TokenWeights<'a>,
    pub(super) out: Out<'a>,
}

/// How lines of codes are summed over tokens.
pub(super) trait ValueCodes {
    /// Sums all columns of a pass, and prefetches as many of the next lines. Each kernel is compiled
    /// separately.
    fn sum<I: Machine>(isa: I, pass: Pass<'_, '_>);
}
