//! Attention of many queries at once: each encoded token is decoded once per chunk.
//!
//! The result is that of appending and attending token by token: query t sees a token encoded where
//! it had left the hot window by then, and uncompressed where it had not. Tiles of tokens are
//! decoded in the domain of their blocks, logits and outputs are matrix products, and the online
//! softmax joins the tiles.

use super::head::{Head, Mean};
use super::spec::MEAN_TOKENS;
use super::track::{Track, leaving};
use crate::error::CacheError;
use crate::matmul::{Mat, MatMut, Store, product};
use half::f16;
use rayon::prelude::*;
use tqkv_simd::page::{Attention, soften};

/// Chunks of at least this many queries are worth decoding keys and values once for all.
const PREFILL_FROM: usize = 8;

/// Tokens decoded at once.
const TILE: usize = 256;
/// Queries (tokens) processed at once, by one thread; bounds the tile of logits.
const QUERY_TILE: usize = 256;

/// Uncompressed tokens of a track from position `first` on, f16-rounded as the track keeps them.
struct Plain {
    first: usize,
    rows: Vec<f32>,
}

impl Plain {
    /// The track's uncompressed tail followed by the chunk.
    fn new(track: &Track, chunk: &[f32], dim: usize) -> Self {
        let mut rows = vec![0.0; track.recent().len() * dim];
        track.recent().read(0, &mut rows);
        rows.extend(chunk.iter().map(|&x| f16::from_f32(x).to_f32()));
        Self { first: track.len() - track.recent().len(), rows }
    }

    /// Copies positions `from..to` to `out`; what is not held uncompressed stays as it is.
    fn read(&self, track: &Track, from: usize, to: usize, dim: usize, out: &mut [f32]) {
        for (position, row) in (from..to).zip(out.chunks_exact_mut(dim)) {
            if position >= self.first {
                let at = (position - self.first) * dim;
                row.copy_from_slice(&self.rows[at..at + dim]);
            } else if position < track.sinks().len() {
                track.sinks().read(position, row);
            }
        }
    }
}

/// For every query of the chunk, the position below which tokens (but for sinks) are encoded.
struct Boundary {
    ends: Vec<usize>,
    sinks: usize,
}

impl Boundary {
    /// For queries at positions `first..first + n` of a track that has encoded what lies before `coded`.
    fn new(coded: usize, first: usize, n: usize, sinks: usize, hot: usize, learning: bool) -> Self {
        let coded = coded.max(sinks);
        let wait = if learning { MEAN_TOKENS } else { 0 };
        let end = |position: usize| {
            let extra = (position + 1).saturating_sub(coded + hot);
            if extra >= wait { coded + leaving(hot, extra) } else { coded }
        };
        Self { ends: (first..first + n).map(end).collect(), sinks }
    }

    fn is_coded(&self, query: usize, position: usize) -> bool {
        position >= self.sinks && position < self.ends[query]
    }

    /// Positions of `from..to` that some query of `queries` sees encoded.
    fn coded(&self, queries: (usize, usize), from: usize, to: usize) -> (usize, usize) {
        let start = from.max(self.sinks);
        (start, to.min(self.ends[queries.1 - 1]).max(start))
    }

    /// Whether some query of `queries` sees a token of `from..to` uncompressed.
    fn any_plain(&self, queries: (usize, usize), from: usize, to: usize) -> bool {
        from < self.sinks || to > self.ends[queries.0]
    }
}

/// Buffers of one tile of tokens on one side.
struct Tile {
    coded: Vec<f32>,
    plain: Vec<f32>,
}

impl Tile {
    fn new(dim: usize) -> Self {
        Self { coded: vec![0.0; TILE * dim], plain: vec![0.0; TILE * dim] }
    }

    /// Fills the parts that the queries need; says which are.
    fn fill(
        &mut self,
        side: &Side<'_>,
        queries: (usize, usize),
        from: usize,
        to: usize,
        dim: usize,
    ) -> (bool, bool) {
        let (start, end) = side.boundary.coded(queries, from, to);
        let has_coded = end > start;
        if has_coded {
            self.coded.fill(0.0);
            side.track.decode_rotated(start, end, &mut self.coded[(start - from) * dim..]);
        }
        let has_plain = side.boundary.any_plain(queries, from, to);
        if has_plain {
            self.plain.fill(0.0);
            side.plain.read(side.track, from, to, dim, &mut self.plain);
        }
        (has_coded, has_plain)
    }
}

/// One side of the head during the chunk.
struct Side<'a> {
    track: &'a Track,
    plain: Plain,
    boundary: Boundary,
}

/// Queries of a tile, `[rows, dim]` each, and what accumulates for them.
struct Queries {
    plain: Vec<f32>,
    rotated: Vec<f32>,
    offsets: Vec<f32>,
    softmax: Vec<Attention>,
    plain_sum: Vec<f32>,
    rotated_sum: Vec<f32>,
}

impl Head {
    /// Appends `n` tokens and attends with each one's `group` queries. `q` and `out` are
    /// `[n, group, dim]`, `k` and `v` `[n, dim]`.
    pub(super) fn attend_chunk(
        &mut self,
        group: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let dim = self.keys.codec().dim();
        if k.len() / dim >= PREFILL_FROM {
            attend(self, group, q, k, v, out)?;
        } else {
            let queries = q.chunks_exact(group * dim).zip(out.chunks_exact_mut(group * dim));
            for ((key, value), (q, out)) in k.chunks_exact(dim).zip(v.chunks_exact(dim)).zip(queries) {
                self.push(key, value)?;
                self.attend(q, out);
            }
        }
        self.age()
    }
}

/// Appends the chunk and attends with all queries at once; shapes as [`Head::attend_chunk`].
fn attend(
    head: &mut Head,
    group: usize,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    out: &mut [f32],
) -> Result<(), CacheError> {
    let dim = head.keys.codec().dim();
    let (n, first) = (k.len() / dim, head.len());
    let plain = (Plain::new(&head.keys, k, dim), Plain::new(&head.values, v, dim));
    let sinks = head.keys.sink_capacity();
    let boundaries = (
        Boundary::new(head.keys.coded_end(), first, n, sinks, head.hot, head.mean == Mean::Learning),
        Boundary::new(head.values.coded_end(), first, n, sinks, head.hot, false),
    );
    head.push(k, v)?;
    let keys = Side { track: &head.keys, plain: plain.0, boundary: boundaries.0 };
    let values = Side { track: &head.values, plain: plain.1, boundary: boundaries.1 };
    let (head, values_per_tile) = (&*head, QUERY_TILE * group * dim);
    let tiles = q.par_chunks(values_per_tile).zip(out.par_chunks_mut(values_per_tile));
    tiles.enumerate().for_each(|(i, (q, out))| {
        let tile = (i * QUERY_TILE, ((i + 1) * QUERY_TILE).min(n));
        attend_tile(head, &keys, &values, group, first, tile, q, out);
    });
    Ok(())
}

/// One tile of queries against all tokens that any of them sees.
#[expect(
    clippy::too_many_arguments,
    reason = "the two sides, the tile and its slices; no two belong together"
)]
fn attend_tile(
    head: &Head,
    keys: &Side<'_>,
    values: &Side<'_>,
    group: usize,
    first: usize,
    tile: (usize, usize),
    q: &[f32],
    out: &mut [f32],
) {
    let dim = head.keys.codec().dim();
    let mut queries = Queries::new(head, q, dim);
    let (mut key_tile, mut value_tile) = (Tile::new(dim), Tile::new(dim));
    let rows = queries.offsets.len();
    let mut logits = vec![0.0; rows * TILE];
    let mut plain_logits = logits.clone();
    let (oldest, newest) = (head.seen(first + tile.0), head.seen(first + tile.1 - 1));
    // Part 0 is the sinks, part 1 what the oldest to newest query of the tile see after them.
    for (part, (start, end)) in
        [newest[0], (oldest[1].0.min(newest[1].0), newest[1].1)].into_iter().enumerate()
    {
        for from in (start..end).step_by(TILE) {
            let to = (from + TILE).min(end);
            let count = to - from;
            let (coded, plain) = key_tile.fill(keys, tile, from, to, dim);
            let logits = &mut logits[..rows * count];
            queries.score(coded.then_some(&key_tile.coded[..]), &queries.rotated, count, dim, logits);
            let plain_logits = &mut plain_logits[..rows * count];
            queries.score(plain.then_some(&key_tile.plain[..]), &queries.plain, count, dim, plain_logits);
            for (row, logits) in logits.chunks_exact_mut(count).enumerate() {
                let query = tile.0 + row / group;
                let (a, b) = head.seen(first + query)[part];
                let plain = &plain_logits[row * count..][..count];
                for (i, (logit, plain)) in logits.iter_mut().zip(plain).enumerate() {
                    let position = from + i;
                    *logit = if position < a || position >= b {
                        f32::NEG_INFINITY
                    } else if keys.boundary.is_coded(query, position) {
                        *logit + queries.offsets[row]
                    } else {
                        *plain
                    };
                }
                let [factor, ..] =
                    soften(head.keys.level(), logits, std::slice::from_mut(&mut queries.softmax[row]));
                queries.rescale(row, factor, dim);
            }
            let (coded, plain) = value_tile.fill(values, tile, from, to, dim);
            let weights = logits;
            let plain_weights = plain_logits;
            for (row, (all, kept)) in
                weights.chunks_exact_mut(count).zip(plain_weights.chunks_exact_mut(count)).enumerate()
            {
                for (i, (weight, plain)) in all.iter_mut().zip(kept).enumerate() {
                    let is_coded = values.boundary.is_coded(tile.0 + row / group, from + i);
                    *plain = if is_coded { 0.0 } else { std::mem::take(weight) };
                }
            }
            if coded {
                add_product(&mut queries.rotated_sum, weights, &value_tile.coded, rows, count, dim);
            }
            if plain {
                add_product(&mut queries.plain_sum, plain_weights, &value_tile.plain, rows, count, dim);
            }
        }
    }
    head.finish(&queries.softmax, &queries.plain_sum, &mut queries.rotated_sum, out);
}

impl Queries {
    fn new(head: &Head, q: &[f32], dim: usize) -> Self {
        let rows = q.len() / dim;
        let (plain, rotated, offsets) = head.prepare(q);
        Self {
            plain,
            rotated,
            offsets,
            softmax: vec![Attention::EMPTY; rows],
            plain_sum: vec![0.0; q.len()],
            rotated_sum: vec![0.0; q.len()],
        }
    }

    /// `out[row, i]` = <query row, token i>; untouched where there are no tokens.
    fn score(&self, tokens: Option<&[f32]>, queries: &[f32], count: usize, dim: usize, out: &mut [f32]) {
        if let Some(tokens) = tokens {
            let rows = self.offsets.len();
            let tokens = Mat::new(tokens, count, dim, dim).transposed();
            product(
                &mut MatMut::new(out, rows, count, count),
                Mat::new(queries, rows, dim, dim),
                tokens,
                1.0,
                Store::Replace,
            );
        }
    }

    fn rescale(&mut self, row: usize, factor: f32, dim: usize) {
        if factor != 1.0 {
            let at = row * dim..(row + 1) * dim;
            for sum in self.plain_sum[at.clone()].iter_mut().chain(&mut self.rotated_sum[at]) {
                *sum *= factor;
            }
        }
    }
}

/// `sum[row, :] += weights[row, :] * values`.
fn add_product(sum: &mut [f32], weights: &[f32], values: &[f32], rows: usize, count: usize, dim: usize) {
    product(
        &mut MatMut::new(sum, rows, dim, dim),
        Mat::new(weights, rows, count, count),
        Mat::new(values, count, dim, dim),
        1.0,
        Store::Add,
    );
}
