//! Attention over exact rows: row by row for up to eight queries, as products of matrices for more.

use super::apart;
use super::rows::{bits, sum};
use super::rule::{Asked, add_mask, changes_any, shows_any};
use super::task::{PartSums, Task, Track};
use crate::cache::life::cap;
use crate::matmul::{Mat, MatMut, Store, product};
use half::f16;
use std::ops::Range;
use tqkv_simd::page::{MAX_HEADS, rescale, row_scores, soften, widen_rows};

/// Most rows of a tile, which are attended to at once.
const TILE: usize = 128;

/// Head dim above which a tile has fewer rows.
const TILE_DIM: usize = 128;

/// Working memory of a thread, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct RowScratch {
    scaled: Vec<f32>,
    logits: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    mask: Vec<f16>,
    wide: Vec<f32>,
    /// One entry per mask that differs from the mask before it: its queries, if it shows a row, and if it
    /// changes a logit.
    masks: Vec<(Range<usize>, bool, bool)>,
}

/// Attends to some exact rows.
pub(super) fn attend(task: &Task<'_>, rows: Range<usize>, scratch: &mut RowScratch) -> PartSums {
    let mut seen = PartSums::nothing(task);
    scratch.scaled.clear();
    scratch.scaled.extend(task.queries.iter().map(|x| x * task.rule.scale));
    let widest = task.keys.format.dim.max(task.values.format.dim);
    let tile = (TILE * TILE_DIM / widest.max(TILE_DIM)).max(1);
    for from in rows.clone().step_by(tile) {
        let rows = from..rows.end.min(from + tile);
        let queries = look(task, rows.clone(), scratch);
        if !queries.is_empty() {
            attend_tile(task, rows, queries, &mut seen, scratch);
        }
    }
    seen
}

/// Gathers the masks of a tile. Returns the queries from the first to the last that see a row of it.
fn look(task: &Task<'_>, rows: Range<usize>, scratch: &mut RowScratch) -> Range<usize> {
    let RowScratch { mask, masks, .. } = scratch;
    let runs = task.keys.stream.exact.slot_runs(rows.clone());
    mask.clear();
    masks.clear();
    let mut queries = 0..0;
    for (q, asked) in task.asked.iter().enumerate() {
        match masks.last_mut() {
            Some((of, ..)) if asked.is_beside(&task.asked[q - 1]) => of.end += 1,
            _ => {
                let from = mask.len();
                gather(task, asked, &runs, mask);
                masks.push((q..q + 1, shows_any(&mask[from..]), changes_any(&mask[from..])));
            }
        }
        if masks.last().is_some_and(|&(_, shows, _)| shows) {
            queries = if queries.is_empty() { q..q + 1 } else { queries.start..q + 1 };
        }
    }
    queries
}

/// Appends the mask of rows, whose slots are given as runs.
fn gather(task: &Task<'_>, asked: &Asked<'_>, runs: &[Range<usize>], mask: &mut Vec<f16>) {
    for run in runs {
        let (start, end) = (run.start.min(task.rule.slots), run.end.min(task.rule.slots));
        let until = mask.len() + end - start;
        mask.extend_from_slice(asked.mask_of(start, end));
        // Slots past the end of the mask are seen; slots past those of the operation are hidden.
        mask.resize(until, f16::ZERO);
        mask.resize(until + run.len() - (end - start), f16::NEG_INFINITY);
    }
}

/// Attends to one tile with some of the queries.
fn attend_tile(
    task: &Task<'_>,
    rows: Range<usize>,
    queries: Range<usize>,
    seen: &mut PartSums,
    scratch: &mut RowScratch,
) {
    let (count, n) = (rows.len(), queries.len());
    let (dim, value_dim) = (task.keys.format.dim, task.values.format.dim);
    let RowScratch { scaled, logits, keys, values, mask, wide, masks } = scratch;
    let scaled = &scaled[queries.start * dim..queries.end * dim];
    logits.resize(n * count, 0.0);
    score(task.keys, rows.clone(), scaled, logits, keys);
    if let Some(soft_cap) = task.rule.soft_cap {
        cap(logits, soft_cap);
    }
    for ((of, _, changes), mask) in masks.iter().zip(mask.chunks_exact(count)) {
        let of = of.start.max(queries.start)..of.end.min(queries.end);
        for q in of.filter(|_| *changes) {
            let logits = &mut logits[(q - queries.start) * count..][..count];
            add_mask(logits, mask, task.asked[q].slope, wide);
        }
    }
    let sums = &mut seen.sums[queries.start * value_dim..queries.end * value_dim];
    let state = seen.state[queries].chunks_mut(MAX_HEADS);
    let each = logits.chunks_mut(MAX_HEADS * count).zip(sums.chunks_mut(MAX_HEADS * value_dim));
    for (state, (logits, sums)) in state.zip(each) {
        let factors = soften(task.values.format.level, logits, state);
        rescale(&factors[..state.len()], value_dim, sums);
    }
    if task.keys.stream.exact.has_same(&task.values.stream.exact, rows.clone()) {
        sum(task.values, rows, logits, sums, values);
    } else {
        let slots: Vec<usize> = task.keys.stream.exact.slot_runs(rows).into_iter().flatten().collect();
        apart::sum(task.values, &slots, logits, sums);
    }
}

/// Writes logits (`[n, rows]`) of queries (`[n, dim]`); `wide` is working memory.
pub(super) fn score(
    keys: Track<'_>,
    rows: Range<usize>,
    queries: &[f32],
    logits: &mut [f32],
    wide: &mut Vec<f32>,
) {
    let (dim, level, count) = (keys.format.dim, keys.format.level, rows.len());
    let n = queries.len() / dim;
    if n <= MAX_HEADS {
        return row_scores(level, bits(keys, rows), dim, queries, logits);
    }
    wide.resize(count * dim, 0.0);
    widen_rows(level, bits(keys, rows), wide);
    let keys = Mat::new(wide, count, dim, dim).transposed();
    product(
        &mut MatMut::new(logits, n, count, count),
        Mat::new(queries, n, dim, dim),
        keys,
        1.0,
        Store::Replace,
    );
}
