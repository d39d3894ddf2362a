//! Values of trellis codes: sums over tokens of levels that are made from bit planes.

use super::Line;
use super::plan::Plan;
use super::trellis::{self, Code, InQuads, PlainLines, eight};
use super::values::{Columns, Out, TOGETHER, ValueCodes, load_weights, prefetch};
use super::weights::Weights;
use crate::lines::Machine;

/// Bit planes of a trellis code.
pub(super) struct Woven<C>(core::marker::PhantomData<C>);

/// Positions of a line: dwords of 128 bits.
pub(super) const WOVEN_POSITIONS: usize = 4;

/// Groups of tokens whose levels are kept for all heads.
const KEPT: usize = 8;

impl<C: Code> ValueCodes for Woven<C> {
    type Table<I: Machine> = I::Levels;

    #[inline(always)]
    fn table<I: Machine>(isa: I, levels: &[i8; 64]) -> I::Levels {
        isa.value_levels(levels)
    }

    /// Levels cost several times what their products do, so each line's are made once and kept.
    #[inline(always)]
    fn sum<'a, I: Machine>(
        isa: I,
        columns: &Columns<'_>,
        _: usize,
        table: I::Levels,
        weights: &[Weights],
        next: &mut impl Iterator<Item = &'a Line>,
        out: &mut Out<'_>,
    ) {
        let units = Units::<C>::new(columns, out.plan);
        let first = columns.range.start / Units::<C>::DEPTH;
        let mut sums = [[[isa.zero(); 2]; 8]; TOGETHER];
        let mut around = [Around::<I>::new(isa); KEPT];
        let mut kept = [[isa.line(&Line::ZERO); 8]; KEPT];
        // The sums of one head stay in the registers, and so do levels.
        let mut single = sums[0];
        let alone = weights.len() == 1 && I::SUMS >= 8;
        for start in (0..units.count).step_by(KEPT) {
            let groups = start..units.count.min(start + KEPT);
            units.around(isa, groups.clone(), &mut around);
            if let (true, [one, ..]) = (alone, weights) {
                for (group, around) in groups.zip(&around) {
                    prefetch(isa, next, Units::<C>::FETCHED);
                    let levels = units.levels(isa, group, around, table);
                    single = add_levels(isa, single, &levels, one, first + group);
                }
                continue;
            }
            for (group, (levels, around)) in groups.clone().zip(kept.iter_mut().zip(&around)) {
                prefetch(isa, next, Units::<C>::FETCHED);
                *levels = units.levels(isa, group, around, table);
            }
            for (sums, weights) in sums.iter_mut().zip(weights) {
                let mut single = *sums;
                for (group, levels) in groups.clone().zip(&kept) {
                    single = add_levels(isa, single, levels, weights, first + group);
                }
                *sums = single;
            }
        }
        if alone {
            sums[0] = single;
        }
        for (head, sums) in sums.iter().enumerate().take(weights.len()) {
            eight!(|FIELD| {
                let [high, low] = sums[FIELD];
                out.add::<WOVEN_POSITIONS>(head, FIELD, [isa.lanes(high), isa.lanes(low)]);
            });
        }
    }
}

/// Adds the products of the levels of a group of tokens with one head's weights.
#[inline(always)]
fn add_levels<I: Machine>(
    isa: I,
    mut sums: [[I::Sum; 2]; 8],
    levels: &[I::Line; 8],
    weights: &Weights,
    group: usize,
) -> [[I::Sum; 2]; 8] {
    const DWORDS: usize = 16 / WOVEN_POSITIONS;
    // Past the end, which callers never ask for, weights are 0: cheaper than a check that panics.
    let dwords = |weights: &[[u8; 4]]| weights.as_chunks().0.get(group).copied().unwrap_or([[0; 4]; DWORDS]);
    let (high, low) = (load_weights(isa, &dwords(&weights.high)), load_weights(isa, &dwords(&weights.low)));
    eight!(|FIELD| {
        sums[FIELD][0] = isa.value_dot(sums[FIELD][0], levels[FIELD], high);
        sums[FIELD][1] = isa.value_dot(sums[FIELD][1], levels[FIELD], low);
    });
    sums
}

/// Coded lines of one column, one for each group of tokens of the range.
#[derive(Clone, Copy)]
struct Strand<'a> {
    lines: &'a [Line],
    stride: usize,
}

impl Strand<'_> {
    /// The line of a group, and those after it.
    #[inline(always)]
    fn at(&self, group: usize) -> (&Line, &[Line]) {
        let lines = self.lines.get(group * self.stride..).unwrap_or_default();
        lines.split_first().unwrap_or((&Line::ZERO, &[]))
    }
}

/// Which lines stand before those of a column.
#[derive(Clone, Copy)]
enum Before {
    /// Those of the two columns before, nearest first.
    Columns,
    /// That of the first column, and across the seam of the ring.
    First,
    /// Both across the seam.
    Seam,
}

/// The units of one column: its lines, and those from which what precedes them follows.
struct Units<'a, C> {
    now: Strand<'a>,
    /// Where the symbols of pairs are, and whether the column is the second of the two that share them.
    symbols: (Strand<'a>, bool),
    near: Strand<'a>,
    far: Strand<'a>,
    /// The last three columns, the last one first.
    last: [Strand<'a>; 3],
    before: Before,
    columns: usize,
    shifted: bool,
    count: usize,
    code: core::marker::PhantomData<C>,
}

impl<'a, C: Code> Units<'a, C> {
    /// Lines of a unit, or of two that share lines.
    const DEPTH: usize = if C::PAIRED > 0 { 2 + C::PAIRED } else { 1 + C::PLAIN };
    /// Lines to prefetch for each unit.
    const FETCHED: usize = if C::PAIRED > 0 { Self::DEPTH.div_ceil(2) } else { Self::DEPTH };

    #[inline(always)]
    fn new(columns: &Columns<'a>, plan: &Plan) -> Self {
        let (count, at) = (plan.units(), columns.at);
        let strand = |column: usize| Self::strand(columns, column, count);
        let last = [
            strand(count.saturating_sub(1)),
            strand(count.saturating_sub(2)),
            strand(count.saturating_sub(3)),
        ];
        Self {
            now: strand(at),
            symbols: (strand(at - at % 2), at % 2 == 1),
            near: strand(at.saturating_sub(1)),
            far: strand(at.saturating_sub(2)),
            last,
            before: match at {
                0 => Before::Seam,
                1 => Before::First,
                _ => Before::Columns,
            },
            columns: count,
            shifted: plan.pad() > 0,
            count: columns.range.len() / Self::DEPTH,
            code: core::marker::PhantomData,
        }
    }

    /// The coded lines of a column.
    #[inline(always)]
    fn strand(columns: &Columns<'a>, column: usize, count: usize) -> Strand<'a> {
        let (groups, first) = (columns.lines / Self::DEPTH, columns.range.start / Self::DEPTH);
        let (base, stride) = if C::PAIRED == 0 {
            (column * columns.lines, Self::DEPTH)
        } else {
            // Two columns together, or the last one alone.
            let together = column / 2 * 2 + 1 < count;
            let stride = if together { Self::DEPTH } else { Self::DEPTH - 1 };
            (column / 2 * Self::DEPTH * groups + column % 2 * (Self::DEPTH - 1), stride)
        };
        Strand { lines: columns.body.get(base + first * stride..).unwrap_or_default(), stride }
    }

    /// What is around the coded lines of the groups, each case in a loop of its own: a loop over the levels that
    /// branched on it would be compiled once for every case.
    #[inline(always)]
    fn around<I: Machine>(&self, isa: I, groups: core::ops::Range<usize>, around: &mut [Around<I>; KEPT]) {
        match self.before {
            Before::Columns => {
                for (group, around) in groups.clone().zip(&mut *around) {
                    around.before = [isa.line(self.near.at(group).0), isa.line(self.far.at(group).0)];
                }
            }
            Before::First | Before::Seam => {
                for (group, around) in groups.clone().zip(&mut *around) {
                    around.before = self.before_first(isa, group);
                    if let Before::First = self.before {
                        around.before = [isa.line(self.near.at(group).0), around.before[0]];
                    }
                }
            }
        }
        if C::PAIRED > 0 {
            let (strand, second) = self.symbols;
            for (group, around) in groups.zip(around) {
                let symbols = trellis::symbols::<I, C>(isa, strand.at(group).1);
                around.plain = if second {
                    trellis::expand::<I, InQuads, 1>(isa, symbols)
                } else {
                    trellis::expand::<I, InQuads, 0>(isa, symbols)
                };
            }
        }
    }

    /// Levels of a group of tokens.
    #[inline(always)]
    fn levels<I: Machine>(&self, isa: I, group: usize, around: &Around<I>, table: I::Levels) -> [I::Line; 8] {
        let (coded, rest) = self.now.at(group);
        let plain = if C::PAIRED > 0 { around.plain } else { trellis::plain::<I, C>(isa, rest) };
        trellis::levels::<I, C, InQuads>(isa, isa.line(coded), around.before, plain, table)
    }

    /// The lines before the first column.
    #[inline(always)]
    fn before_first<I: Machine>(&self, isa: I, group: usize) -> [I::Line; 2] {
        let [a, b, c] = &self.last;
        let last = [isa.line(a.at(group).0), isa.line(b.at(group).0), isa.line(c.at(group).0)];
        trellis::before_first::<I, InQuads>(isa, last, self.columns, self.shifted)
    }
}

/// What the levels of a group of tokens need beside the lines of their unit.
#[derive(Clone, Copy)]
struct Around<I: Machine> {
    /// The coded lines before, nearest first.
    before: [I::Line; 2],
    /// The expanded symbols of pairs.
    plain: PlainLines<I>,
}

impl<I: Machine> Around<I> {
    #[inline(always)]
    fn new(isa: I) -> Self {
        let line = isa.line(&Line::ZERO);
        Self { before: [line; 2], plain: [line; 3] }
    }
}
