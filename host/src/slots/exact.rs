//! Exact rows as parts of attention: row by row for up to eight queries, as products of matrices for more.

use super::apart;
use super::rows::{bits, sum, take_odd};
use super::rule::{QueryMask, add_mask, alike, changes_any, shows_any};
use super::task::Task;
use crate::attend::{HeadQueries, Sums, tile};
use crate::cache::life::cap;
use crate::matmul::Accumulate;
use half::f16;
use std::cell::RefCell;
use std::ops::Range;
use tqkv_simd::page::{
    AttentionParts, MAX_HEADS, MAX_PART, WeightedPart, attend, rescale, row_scores, widen_rows,
};

/// Head dim above which a tile of rows has fewer than [`MAX_PART`].
const TILE_DIM: usize = 128;

/// Working memory of a thread, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct RowScratch {
    scaled: Vec<f32>,
    logits: Vec<f32>,
    wide: Vec<f32>,
    masks: RowMasks,
}

/// The masks of a tile of rows.
#[derive(Debug, Default)]
struct RowMasks {
    /// The slots of the rows.
    runs: Vec<Range<usize>>,
    /// `[masks, rows]`, without those that are the same as the mask before.
    mask: Vec<f16>,
    /// For each of these masks its queries, if it shows a row, and if it changes a logit.
    of: Vec<(Range<usize>, bool, bool)>,
}

/// Attends to some exact rows with all queries of a task; `queries` has their forms if they are at most eight.
pub(super) fn attend_rows(
    task: &Task<'_>,
    rows: Range<usize>,
    queries: &HeadQueries,
    seen: &mut Sums,
    scratch: &mut RowScratch,
) {
    let widest = task.keys.format.dim.max(task.values.format.dim);
    let tile = (MAX_PART * TILE_DIM / widest.max(TILE_DIM)).max(1);
    if task.asked.len() <= MAX_HEADS {
        let (level, Range { start, end }) = (task.values.format.level, rows);
        let (scratch, Sums { state, plain, rotated, .. }) = (RefCell::new(scratch), seen);
        let mut parts = Rows { task, queries, end, tile, scratch, plain, rotated };
        return attend(level, &mut parts, start, end, state);
    }
    scratch.scaled.clear();
    scratch.scaled.extend(task.queries.iter().map(|x| x * task.rule.scale));
    let mut from = rows.start;
    while from < rows.end {
        let tile = task.tile(from, rows.end.min(from + tile));
        from = tile.end;
        let queries = look(task, tile.clone(), &mut scratch.masks);
        if !queries.is_empty() {
            attend_tile(task, tile, queries, seen, scratch);
        }
    }
}

/// Exact rows, by their places, and up to eight queries.
struct Rows<'a> {
    task: &'a Task<'a>,
    queries: &'a HeadQueries,
    end: usize,
    /// Most rows of a part.
    tile: usize,
    /// The masks of the part that comes next.
    scratch: RefCell<&'a mut RowScratch>,
    plain: &'a mut [f32],
    /// Sums of values that are codes.
    rotated: &'a mut [f32],
}

impl AttentionParts for Rows<'_> {
    fn first(&self, from: usize) -> usize {
        let mut from = from;
        while from < self.end {
            let rows = from..self.part_end(from);
            if !look(self.task, rows.clone(), &mut self.scratch.borrow_mut().masks).is_empty() {
                return from;
            }
            from = rows.end;
        }
        usize::MAX
    }

    fn part_end(&self, from: usize) -> usize {
        self.task.tile(from, self.end.min(from + self.tile)).end
    }

    fn scores(&self, from: usize, to: usize, logits: &mut [f32]) {
        let (keys, rule) = (self.task.keys, self.task.rule);
        let (dim, level) = (keys.format.dim, keys.format.level);
        row_scores(level, bits(keys, from..to), dim, self.queries.plain(), logits);
        if let Some(soft_cap) = rule.soft_cap {
            cap(logits, soft_cap);
        }
        mask_rows(self.task, 0..self.task.asked.len(), logits, &self.scratch.borrow().masks);
    }

    fn rescale(&mut self, factors: &[f32]) {
        let dim = self.task.values.format.dim;
        rescale(factors, dim, self.plain);
        rescale(factors, dim, self.rotated);
    }

    fn accumulate(&mut self, parts: &[WeightedPart<'_>]) {
        for &WeightedPart { from, to, weights } in parts {
            let (task, values) = (self.task, self.task.values);
            if task.is_same(from..to) {
                sum(values, from..to, weights, self.plain);
            } else {
                let slots = task.keys.stream.exact.slots_of(from..to);
                apart::sum(values, slots, weights, [self.plain, self.rotated]);
            }
        }
    }
}

impl Task<'_> {
    /// The rows from `from` on that are attended to together. Rows of the same slots on both sides do not go with others,
    /// such as those of slots that a host has left, which change no bit of them then.
    fn tile(&self, from: usize, end: usize) -> Range<usize> {
        match self.keys.stream.exact.count_same(&self.values.stream.exact, from..end) {
            0 => from..end,
            same => from..from + same,
        }
    }

    /// True if some exact rows are of the same slots on both sides.
    fn is_same(&self, rows: Range<usize>) -> bool {
        self.keys.stream.exact.count_same(&self.values.stream.exact, rows.clone()) == rows.len()
    }
}

/// Gathers the masks of a tile. Returns the queries from the first to the last that see a row of it.
fn look(task: &Task<'_>, rows: Range<usize>, masks: &mut RowMasks) -> Range<usize> {
    let RowMasks { runs, mask, of: all } = masks;
    task.keys.stream.exact.slot_runs(rows, runs);
    mask.clear();
    all.clear();
    let (mut q, mut queries) = (0, 0..0);
    for asked in alike(task.asked) {
        let (from, of) = (mask.len(), q..q + asked.len());
        gather(task, &asked[0], runs, mask);
        let shows = shows_any(&mask[from..]);
        all.push((of.clone(), shows, changes_any(&mask[from..])));
        if shows {
            queries = if queries.is_empty() { of.start } else { queries.start }..of.end;
        }
        q = of.end;
    }
    queries
}

/// Appends the mask of rows, whose slots are given as runs.
fn gather(task: &Task<'_>, asked: &QueryMask<'_>, runs: &[Range<usize>], mask: &mut Vec<f16>) {
    for run in runs {
        let (start, end) = (run.start.min(task.rule.slots), run.end.min(task.rule.slots));
        let until = mask.len() + end - start;
        mask.extend_from_slice(asked.mask_of(start, end));
        // Slots past the end of the mask are seen; slots past those of the operation are hidden.
        mask.resize(until, f16::ZERO);
        mask.resize(until + run.len() - (end - start), f16::NEG_INFINITY);
    }
}

/// Adds the masks of a tile to the logits (`[n, rows]`) of some queries.
fn mask_rows(task: &Task<'_>, queries: Range<usize>, logits: &mut [f32], masks: &RowMasks) {
    let count = logits.len() / queries.len();
    for ((of, _, changes), mask) in masks.of.iter().zip(masks.mask.chunks_exact(count)) {
        let of = of.start.max(queries.start)..of.end.min(queries.end);
        for q in of.filter(|_| *changes) {
            add_mask(&mut logits[(q - queries.start) * count..][..count], mask, task.asked[q].slope);
        }
    }
}

/// Attends to one tile with some of the queries.
fn attend_tile(
    task: &Task<'_>,
    rows: Range<usize>,
    queries: Range<usize>,
    seen: &mut Sums,
    scratch: &mut RowScratch,
) {
    let (count, n) = (rows.len(), queries.len());
    let (keys, values) = (task.keys, task.values);
    let (dim, value_dim, level) = (keys.format.dim, values.format.dim, values.format.level);
    let RowScratch { scaled, logits, wide, masks, .. } = scratch;
    logits.resize(n * count, 0.0);
    wide.resize(count * dim, 0.0);
    widen_rows(level, bits(keys, rows.clone()), wide);
    tile::score(&scaled[queries.start * dim..queries.end * dim], wide, dim, logits, Accumulate::Replace);
    if let Some(soft_cap) = task.rule.soft_cap {
        cap(logits, soft_cap);
    }
    mask_rows(task, queries.clone(), logits, masks);
    let of = queries.start * value_dim..queries.end * value_dim;
    let Sums { state, plain, rotated, .. } = seen;
    let (plain, rotated) = (&mut plain[of.clone()], &mut rotated[of]);
    tile::soften_all(level, logits, &mut state[queries], value_dim, [plain, rotated]);
    if task.is_same(rows.clone()) {
        let rows = take_odd(values, rows, logits, plain);
        wide.resize(count * value_dim, 0.0);
        widen_rows(level, &rows, wide);
        return tile::add(logits, wide, (value_dim, value_dim), plain);
    }
    let sums = plain.chunks_mut(MAX_HEADS * value_dim).zip(rotated.chunks_mut(MAX_HEADS * value_dim));
    for (weights, (plain, rotated)) in logits.chunks(MAX_HEADS * count).zip(sums) {
        apart::sum(values, keys.stream.exact.slots_of(rows.clone()), weights, [plain, rotated]);
    }
}
