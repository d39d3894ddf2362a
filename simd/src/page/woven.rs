//! Values of trellis and 5-bit codes: levels are made from bit planes and summed over tokens.

use super::columns::{
    Given, Job, Out, Pass, Strip, ValueCodes, WOVEN_POSITIONS, add_products, ahead, biased, join_bytes,
    load_halves, sum_levels,
};
use super::plan::{Plan, Woven};
use super::trellis::{self, InQuads, PlainLines, Planes, Tables, eight};
use super::weights::{RUN_LINES, TokenWeights, are_bytes};
use super::{Line, MAX_SLOTS, prefetch};
use crate::lines::Machine;
use arrayvec::ArrayVec;

/// Groups of tokens of the largest page.
const MAX_GROUPS: usize = MAX_SLOTS / (64 / WOVEN_POSITIONS);

/// Dwords of a line that hold different tokens.
const DWORDS: usize = 16 / WOVEN_POSITIONS;

/// The levels of a code.
#[inline(always)]
fn tables<I: Machine, C: Planes>(isa: I, plan: &Plan) -> Tables<I> {
    let [first, second, last] = trellis::all_levels::<C>(&plan.levels);
    [
        isa.value_levels(&biased::<I, _>(first)),
        isa.value_levels(&biased::<I, _>(second)),
        isa.value_levels(&biased::<I, _>(last)),
    ]
}

impl<C: Planes> ValueCodes for Woven<C> {
    fn sum<I: Machine>(isa: I, mut pass: Pass<'_, '_>) {
        // The condition is a constant, so only the kernels that can be chosen are compiled.
        if const { I::SUMS >= 8 && I::HEADS > 1 && !C::IS_SMALL } && pass.heads == 1 {
            Self::columns_of_one(isa, &mut pass);
        } else {
            Self::columns_of_many(isa, &mut pass);
        }
    }
}

impl<C: Planes> Woven<C> {
    /// Sums the columns for a single head, with its sums in registers.
    fn columns_of_one<I: Machine>(isa: I, pass: &mut Pass<'_, '_>) {
        isa.apart(
            #[inline(always)]
            |isa| {
                let table = tables::<I, C>(isa, pass.plan);
                pass.for_each_sign::<I, 0>(
                    isa,
                    0..1,
                    #[inline(always)]
                    |isa, job| {
                        for at in job.columns.clone() {
                            job.out.column = at * WOVEN_POSITIONS;
                            Self::column_of_one(isa, job, at, table);
                        }
                    },
                );
            },
        );
    }

    #[inline(always)]
    fn column_of_one<I: Machine>(isa: I, job: &mut Job<'_, '_>, at: usize, table: Tables<I>) {
        let first_sum = job.weights.first::<I, 0>(isa, 0, WOVEN_POSITIONS);
        let (mut sums, mut first) = ([[first_sum, isa.zero()]; 8], 0);
        for i in 0..job.parts.len() {
            let (units, mut ahead) = Units::<C>::of(job.parts, i, at, job.out.plan);
            for group in 0..units.count {
                prefetch::<I, 0>(isa, ahead.next().unwrap_or_default());
                let levels = units.levels(isa, group, table);
                sums = add_levels(isa, sums, &levels, job.weights, first + group);
            }
            first += units.count;
        }
        let sums = eight!(|FIELD| join_bytes(isa, sums[FIELD]));
        close::<I, 0, 8>(isa, 0, sums, &mut job.out);
    }

    /// Sums the columns for all heads. Levels cost several times as much as their products, so those of each
    /// line are made once and kept.
    fn columns_of_many<I: Machine>(isa: I, pass: &mut Pass<'_, '_>) {
        isa.apart(
            #[inline(always)]
            |isa| {
                let (table, heads) = (tables::<I, C>(isa, pass.plan), pass.heads);
                pass.for_each_sign::<I, 0>(
                    isa,
                    0..heads,
                    #[inline(always)]
                    |isa, job| {
                        for at in job.columns.clone() {
                            job.out.column = at * WOVEN_POSITIONS;
                            Self::column_of_many(isa, job, heads, at, table);
                        }
                    },
                );
            },
        );
    }

    #[inline(always)]
    fn column_of_many<I: Machine>(isa: I, job: &mut Job<'_, '_>, heads: usize, at: usize, table: Tables<I>) {
        // This memory is written before it is read: clearing it would take as long as the products of a head.
        let mut kept = ArrayVec::<[I::Line; 8], MAX_GROUPS>::new();
        for i in 0..job.parts.len() {
            let (units, mut ahead) = Units::<C>::of(job.parts, i, at, job.out.plan);
            for group in 0..units.count {
                prefetch::<I, 0>(isa, ahead.next().unwrap_or_default());
                if kept.try_push(units.levels(isa, group, table)).is_err() {
                    return;
                }
            }
        }
        sum_kept(isa, &kept, job, heads);
    }
}

/// Sums the levels of every byte for all heads. It is compiled once for all codecs.
#[inline(always)]
fn sum_kept<I: Machine>(isa: I, kept: &[[I::Line; 8]], job: &mut Job<'_, '_>, heads: usize) {
    isa.apart(
        #[inline(always)]
        |isa| {
            let mut head = 0;
            if const { are_bytes::<I, 0>() && I::SUMS >= 8 && I::HEADS > 1 } {
                while heads - head >= 2 {
                    sum_bits::<I, 0, 8, 2>(isa, kept, job, head);
                    head += 2;
                }
            }
            for head in head..heads {
                if const { I::FIELDS >= 8 } {
                    sum_bits::<I, 0, 8, 1>(isa, kept, job, head);
                } else if const { are_bytes::<I, 0>() } {
                    sum_bits::<I, 0, 4, 1>(isa, kept, job, head);
                    sum_bits::<I, 4, 4, 1>(isa, kept, job, head);
                } else {
                    sum_bits::<I, 0, 2, 1>(isa, kept, job, head);
                    sum_bits::<I, 2, 2, 1>(isa, kept, job, head);
                    sum_bits::<I, 4, 2, 1>(isa, kept, job, head);
                    sum_bits::<I, 6, 2, 1>(isa, kept, job, head);
                }
            }
        },
    );
}

/// Sums the `N` levels of every byte from bit `FIRST` on, for `H` heads from `head` on.
#[inline(always)]
fn sum_bits<I: Machine, const FIRST: usize, const N: usize, const H: usize>(
    isa: I,
    kept: &[[I::Line; 8]],
    job: &mut Job<'_, '_>,
    head: usize,
) {
    let sums = sum_levels::<I, 0, 8, FIRST, N, DWORDS, H>(isa, kept, job.weights, head);
    for (head, sums) in (head..).zip(sums) {
        close::<I, FIRST, N>(isa, head, sums, &mut job.out);
    }
}

/// Adds a head's sums of a column, for bits from `FIRST` on: bit b of a byte belongs to the coordinate b D/8
/// further.
#[inline(always)]
fn close<I: Machine, const FIRST: usize, const N: usize>(
    isa: I,
    head: usize,
    sums: [I::Sum; N],
    out: &mut Out<'_>,
) {
    let (row, pad, column) = (out.plan.dim / 8, out.plan.pad, out.column);
    let Some((acc, factor)) = out.head(head) else { return };
    let mut values = [[0.0; WOVEN_POSITIONS]; N];
    let lanes = isa.sum_quads(sums);
    for (value, lane) in values.as_flattened_mut().iter_mut().zip(lanes.as_flattened()) {
        *value = *lane as f32 * factor;
    }
    let acc = acc.get_mut(FIRST * row..).unwrap_or_default();
    if let Some(mut rest) = column.checked_sub(pad).and_then(|at| acc.get_mut(at..)) {
        for [a, b, c, d] in values {
            let Some(own) = rest.first_chunk_mut::<WOVEN_POSITIONS>() else { return };
            // All four at once; one after the other they would be added one by one.
            *own = [own[0] + a, own[1] + b, own[2] + c, own[3] + d];
            let Some(next) = rest.get_mut(row..) else { return };
            rest = next;
        }
        return;
    }
    // The first bytes of a row may be padding.
    for (bit, values) in values.iter().enumerate() {
        let acc = acc.get_mut(bit * row..).unwrap_or_default();
        for (acc, value) in acc.iter_mut().zip(values.iter().skip(pad)) {
            *acc += value;
        }
    }
}

/// Adds the products of the levels of a group of tokens with the weights of the single head.
#[inline(always)]
fn add_levels<I: Machine>(
    isa: I,
    mut sums: [[I::Sum; 2]; 8],
    levels: &[I::Line; 8],
    weights: TokenWeights<'_>,
    group: usize,
) -> [[I::Sum; 2]; 8] {
    const GROUPS: usize = RUN_LINES / DWORDS;
    let [[first, second]] = weights.of(group / GROUPS, 0);
    let at = group % GROUPS;
    let halves = [&first.as_chunks().0[at], &second.as_chunks().0[at]];
    let weights = load_halves::<I, 0, DWORDS>(isa, halves);
    eight!(|FIELD| {
        sums[FIELD] = add_products::<I, 0>(isa, sums[FIELD], levels[FIELD], weights);
    });
    sums
}

/// The coded lines of one column, one per group of tokens of the range.
#[derive(Clone, Copy)]
struct Strand<'a> {
    lines: &'a [Line],
    /// Lines from one group to the next, if different from the depth of the code.
    stride: usize,
}

impl<'a> Strand<'a> {
    /// The position of the line of a group.
    #[inline(always)]
    fn index<C: Planes>(&self, group: usize) -> usize {
        group * if C::PAIRED == 0 { Units::<C>::DEPTH } else { self.stride }
    }

    /// The line of a group.
    #[inline(always)]
    fn at<I: Machine, C: Planes>(&self, isa: I, group: usize) -> I::Line {
        isa.line(self.lines.get(self.index::<C>(group)).unwrap_or(&Line::ZERO))
    }

    /// The lines after the line of a group: plain bits or symbols.
    #[inline(always)]
    fn after<C: Planes>(&self, group: usize) -> &'a [Line] {
        let first = self.index::<C>(group) + 1;
        self.lines.get(first..first + C::BESIDE).unwrap_or_default()
    }
}

/// The units of one column: its lines, and the lines from which the preceding bits follow.
struct Units<'a, C> {
    now: Strand<'a>,
    /// The lines of the symbols of pairs, and true if the column is the second of the two that share them.
    symbols: (Strand<'a>, bool),
    /// The columns before, nearest first; each with true if the ring closed between.
    before: [(Strand<'a>, bool); 2],
    /// The last three columns, the last one first, if the ring closes here and whole columns are not
    /// consecutive.
    seam: Option<[Strand<'a>; 3]>,
    at: usize,
    columns: usize,
    shifted: bool,
    count: usize,
    code: core::marker::PhantomData<C>,
}

impl<'a, C: Planes> Units<'a, C> {
    /// Lines of a unit, or of two units that share lines.
    const DEPTH: usize = C::DEPTH;
    /// Lines to prefetch per unit.
    const FETCHED: usize = if C::PAIRED > 0 { Self::DEPTH.div_ceil(2) } else { Self::DEPTH };

    /// The units of column `at` of part `i`, and the lines to prefetch for each.
    #[inline(always)]
    fn of(
        parts: &mut [Given<'a>],
        i: usize,
        at: usize,
        plan: &Plan,
    ) -> (Self, core::slice::Chunks<'a, Line>) {
        let (units, lines) = (Self::new(&parts[i].strip, at, plan), parts[i].strip.column(at));
        let ahead = ahead(parts, lines, units.count * Self::FETCHED);
        (units, ahead.chunks(Self::FETCHED))
    }

    #[inline(always)]
    fn new(strip: &Strip<'a>, at: usize, plan: &Plan) -> Self {
        let (count, shifted) = (plan.units(), plan.pad > 0);
        let strand = |column: usize| Self::strand(strip, column, count);
        let before = |back: usize| match at.checked_sub(back) {
            Some(column) => (strand(column), false),
            None => (strand((at + count).saturating_sub(back)), true),
        };
        let last = |back: usize| strand(count.saturating_sub(back));
        Self {
            now: strand(at),
            symbols: (strand(at - at % 2), at % 2 == 1),
            before: [before(1), before(2)],
            seam: (at < 2 && (shifted || count < 2)).then(|| [last(1), last(2), last(3)]),
            at,
            columns: count,
            shifted,
            count: strip.range.len() / Self::DEPTH,
            code: core::marker::PhantomData,
        }
    }

    /// The coded lines of a column.
    #[inline(always)]
    fn strand(strip: &Strip<'a>, column: usize, count: usize) -> Strand<'a> {
        let (groups, first) = (strip.lines / Self::DEPTH, strip.range.start / Self::DEPTH);
        let (base, stride) = if C::PAIRED == 0 {
            (column * strip.lines, Self::DEPTH)
        } else {
            // Two columns together, or the last column alone.
            let together = column / 2 * 2 + 1 < count;
            let stride = if together { Self::DEPTH } else { Self::DEPTH - 1 };
            (column / 2 * Self::DEPTH * groups + column % 2 * (Self::DEPTH - 1), stride)
        };
        Strand { lines: strip.body.get(base + first * stride..).unwrap_or_default(), stride }
    }

    /// The lines of plain bits of a group of tokens.
    #[inline(always)]
    fn plain<I: Machine>(&self, isa: I, group: usize) -> PlainLines<I> {
        if const { C::PAIRED == 0 } {
            return trellis::plain::<I, C>(isa, self.now.after::<C>(group));
        }
        let (strand, second) = self.symbols;
        let symbols = trellis::symbols::<I, C>(isa, strand.after::<C>(group));
        if second {
            trellis::expand::<I, InQuads, 1>(isa, symbols)
        } else {
            trellis::expand::<I, InQuads, 0>(isa, symbols)
        }
    }

    /// Levels of a group of tokens.
    #[inline(always)]
    fn levels<I: Machine>(&self, isa: I, group: usize, table: Tables<I>) -> [I::Line; 8] {
        let [near, far] = &self.before;
        let before = if let Some(last) = &self.seam {
            self.at_seam(isa, group, last)
        } else {
            [earlier::<I, C>(isa, near, group), earlier::<I, C>(isa, far, group)]
        };
        let plain = self.plain(isa, group);
        trellis::levels::<I, C, InQuads>(isa, self.now.at::<I, C>(isa, group), before, plain, table)
    }

    /// The lines before those of the first two columns.
    #[inline(always)]
    fn at_seam<I: Machine>(&self, isa: I, group: usize, last: &[Strand<'_>; 3]) -> [I::Line; 2] {
        let [a, b, c] = last;
        let last = [a.at::<I, C>(isa, group), b.at::<I, C>(isa, group), c.at::<I, C>(isa, group)];
        let before = trellis::before_first::<I, InQuads>(isa, last, self.columns, self.shifted);
        if self.at == 0 { before } else { [self.before[0].0.at::<I, C>(isa, group), before[0]] }
    }
}

/// A coded line of an earlier column, rotated by one bit if the ring closed between.
#[inline(always)]
fn earlier<I: Machine, C: Planes>(isa: I, (strand, closed): &(Strand<'_>, bool), group: usize) -> I::Line {
    let line = strand.at::<I, C>(isa, group);
    if *closed { isa.rotate(line) } else { line }
}
