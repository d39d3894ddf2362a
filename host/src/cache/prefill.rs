//! Attention of many queries at once.
//!
//! The result is that of appending and attending token by token. A query sees a token encoded if it had left
//! the hot window by then, and uncompressed if not. The page kernels read tokens that all queries see
//! encoded, for as many queries at once as they take. All other tokens, mostly those of the chunk, are
//! decoded once. So are tokens of codes without kernels. They form tiles in the domain of their blocks, and
//! logits and outputs are matrix products. An online softmax joins all parts.

use super::head::Head;
use super::life::{self, PAGE_TOKENS};
use super::scratch::HeadScratch;
use super::side_of_head::SideOfHead;
use super::token_lists::Chosen;
use super::vectors::Vectors;
use crate::attend::{HeadQueries, Sums, add_products, tile};
use crate::error::CacheError;
use crate::matmul::Accumulate;
use crate::memory;
use crate::threads;
use rayon::prelude::*;
use std::ops::Range;
use tqkv_core::MAX_HEAD_DIM;
use tqkv_simd::page::{MAX_HEADS, widen_rows};

/// Chunks of at least this many queries are processed together.
const PREFILL_FROM: usize = 8;

/// Number of tokens that are decoded at once.
const TILE: usize = 256;
/// Number of queries that one thread processes at once. It bounds the size of a tile of logits.
const QUERY_TILE: usize = 256;

/// Uncompressed tokens of a side from position `first` on, rounded to f16 as in the side.
struct PlainRows {
    first: usize,
    rows: Vec<f32>,
}

impl PlainRows {
    /// The side's uncompressed tail followed by the chunk.
    fn new(side: &SideOfHead, chunk: Vectors<'_>) -> Result<Self, CacheError> {
        let (dim, recent) = (side.codec().dim(), side.recent().len());
        let mut rows = memory::filled((recent + chunk.len()) * dim, 0.0)?;
        let (level, mut at) = (side.level(), recent * dim);
        side.recent().read(0, &mut rows[..at]);
        let mut halves = [0; MAX_HEAD_DIM];
        for row in chunk.rows() {
            row.narrow(level, &mut halves[..dim]);
            widen_rows(level, &halves[..dim], &mut rows[at..at + dim]);
            at += dim;
        }
        Ok(Self { first: side.len() - recent, rows })
    }

    /// Copies positions `from..to` to `out`. Positions that are not held uncompressed stay as they are.
    fn read(&self, side: &SideOfHead, from: usize, to: usize, out: &mut [f32]) {
        let dim = side.codec().dim();
        for (position, row) in (from..to).zip(out.chunks_exact_mut(dim)) {
            if position >= self.first {
                let at = (position - self.first) * dim;
                row.copy_from_slice(&self.rows[at..at + dim]);
            } else if position < side.sinks().len() {
                side.sinks().read(position, row);
            }
        }
    }
}

/// For every query of the chunk, the position below which tokens (except sinks) are encoded.
struct Boundary {
    ends: Vec<usize>,
    sinks: usize,
}

impl Boundary {
    /// The boundary for `n` more queries of a side.
    fn new(side: &SideOfHead, n: usize) -> Result<Self, CacheError> {
        let (first, sinks) = (side.len(), side.sink_capacity());
        let coded = side.coded_end().max(sinks);
        let end = |position: usize| {
            let len = position + 1;
            coded + side.leaving(len.saturating_sub(coded), len)
        };
        Ok(Self { ends: memory::collected(n, (first..first + n).map(end))?, sinks })
    }

    /// The boundary for one query at the newest position.
    fn now(side: &SideOfHead) -> Self {
        Self { ends: vec![side.coded_end().max(side.sink_capacity())], sinks: side.sink_capacity() }
    }

    /// Number of positions in `from..to` that a query sees encoded. They are the first ones. The range lies
    /// either within the sinks or after them.
    fn coded_of(&self, query: usize, from: usize, to: usize) -> usize {
        if from < self.sinks { 0 } else { self.ends[query].clamp(from, to) - from }
    }

    /// Positions of `from..to` that some query of `queries` sees encoded.
    fn coded(&self, queries: (usize, usize), from: usize, to: usize) -> (usize, usize) {
        let start = from.max(self.sinks);
        (start, to.min(self.ends[queries.1 - 1]).max(start))
    }

    /// True if some query of `queries` sees a token of `from..to` uncompressed.
    fn any_plain(&self, queries: (usize, usize), from: usize, to: usize) -> bool {
        from < self.sinks || to > self.ends[queries.0]
    }
}

/// Buffers for one tile of tokens on one side.
struct Tile {
    coded: Vec<f32>,
    plain: Vec<f32>,
}

impl Tile {
    fn new(dim: usize) -> Result<Self, CacheError> {
        Ok(Self { coded: memory::filled(TILE * dim, 0.0)?, plain: memory::filled(TILE * dim, 0.0)? })
    }

    /// Fills the buffers that the queries need with the chosen tokens, and returns which were filled.
    fn fill(
        &mut self,
        side: &ChunkSide<'_>,
        queries: (usize, usize),
        (from, to): (usize, usize),
        chosen: Chosen<'_>,
    ) -> Result<(bool, bool), CacheError> {
        let dim = side.of.codec().dim();
        let (start, end) = side.boundary.coded(queries, from, to);
        let has_coded = chosen.any(start, end);
        if has_coded {
            self.coded.fill(0.0);
            for run in chosen.runs(start, end) {
                let coded = &mut self.coded[(run.start - from) * dim..];
                side.of.decode_rotated(run.start, run.end, coded)?;
            }
        }
        let has_plain = side.boundary.any_plain(queries, from, to);
        if has_plain {
            self.plain.fill(0.0);
            side.plain.read(side.of, from, to, &mut self.plain);
        }
        Ok((has_coded, has_plain))
    }
}

/// One side of the head during the chunk.
struct ChunkSide<'a> {
    of: &'a SideOfHead,
    plain: PlainRows,
    boundary: Boundary,
}

/// Queries of a tile, `[rows, dim]` in both domains, and their accumulators.
struct TileQueries {
    plain: Vec<f32>,
    rotated: Vec<f32>,
    /// Parts of the queries for the positional parts of latent keys, `[rows, position_dim]`.
    position: Vec<f32>,
    /// `[means, rows]`: the products <query, mean>.
    offsets: Vec<f32>,
    seen: Sums,
}

impl Head {
    /// Appends tokens and attends with the `group` queries of each. `q` and `out` are `[n, group, dim]`.
    pub(super) fn attend_chunk(
        &mut self,
        q: &[f32],
        k: Vectors<'_>,
        v: Vectors<'_>,
        out: &mut [f32],
        scratch: &mut HeadScratch,
    ) -> Result<(), CacheError> {
        let n = k.len();
        let (queries, outs) = (q.len() / n.max(1), out.len() / n.max(1));
        let mut from = 0;
        while from < n {
            // Pages go cold between two tokens, and later queries see them cold. The chunk is split there.
            self.cool_what_fits(self.len() + 1);
            let cooling = self.keys.next_cooling().into_iter().chain(self.other.next_cooling()).min();
            let until = cooling.map_or(n, |len| from + len.saturating_sub(self.len() + 1).max(1));
            let to = until.min(n);
            let (k, v) = (k.part(from, to), v.part(from, to));
            let (q, out) = (&q[from * queries..to * queries], &mut out[from * outs..to * outs]);
            if to - from >= PREFILL_FROM {
                attend(self, q, k, v, out, scratch)?;
            } else {
                for i in 0..to - from {
                    self.push(k.part(i, i + 1), v.part(i, i + 1), scratch)?;
                    let out = &mut out[i * outs..(i + 1) * outs];
                    self.attend(&q[i * queries..(i + 1) * queries], Chosen::All, out, scratch)?;
                }
            }
            from = to;
        }
        self.cool_what_fits(self.len());
        Ok(())
    }
}

/// Appends the chunk and attends with all queries at once. Shapes are as in [`Head::attend_chunk`].
fn attend(
    head: &mut Head,
    q: &[f32],
    k: Vectors<'_>,
    v: Vectors<'_>,
    out: &mut [f32],
    scratch: &mut HeadScratch,
) -> Result<(), CacheError> {
    let (n, first) = (k.len(), head.len());
    let before =
        |side: &SideOfHead, x| Ok::<_, CacheError>((PlainRows::new(side, x)?, Boundary::new(side, n)?));
    let keys = before(&head.keys, k)?;
    let values = (!head.is_latent).then(|| before(&head.other, v)).transpose()?;
    for (i, q) in q.chunks_exact(q.len() / n).enumerate() {
        head.keys.see_queries(first + i, q)?;
    }
    head.push(k, v, scratch)?;
    let head = &*head;
    let keys = ChunkSide { of: &head.keys, plain: keys.0, boundary: keys.1 };
    let values = values.map(|(plain, boundary)| ChunkSide { of: &head.other, plain, boundary });
    let (queries, outs) = (QUERY_TILE * (q.len() / n), QUERY_TILE * (out.len() / n));
    let mut run = || {
        let tiles = q.par_chunks(queries).zip(out.par_chunks_mut(outs));
        tiles.enumerate().try_for_each(|(i, (q, out))| {
            let tile = (i * QUERY_TILE, ((i + 1) * QUERY_TILE).min(n));
            TileWork { head, keys: &keys, values: values.as_ref(), first, tile, chosen: Chosen::All }
                .run(q, out)
        })
    };
    if n > QUERY_TILE { threads::share(run) } else { run() }
}

impl Head {
    /// Attends with queries at the newest position. Each chosen token is decoded once for all of them.
    pub(super) fn attend_decoded(
        &self,
        q: &[f32],
        chosen: Chosen<'_>,
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let side = |of| {
            let plain = PlainRows::new(of, Vectors::none(of.codec().dim()))?;
            Ok::<_, CacheError>(ChunkSide { of, plain, boundary: Boundary::now(of) })
        };
        let (keys, values) = (side(&self.keys)?, (!self.is_latent).then(|| side(&self.other)).transpose()?);
        let (first, tile) = (self.len() - 1, (0, 1));
        TileWork { head: self, keys: &keys, values: values.as_ref(), first, tile, chosen }.run(q, out)
    }
}

/// One tile of queries, and all tokens that any of them sees.
struct TileWork<'a> {
    head: &'a Head,
    keys: &'a ChunkSide<'a>,
    /// `None` if keys are also the values.
    values: Option<&'a ChunkSide<'a>>,
    /// Position of the first query of the chunk.
    first: usize,
    /// Range of queries in the chunk.
    tile: (usize, usize),
    chosen: Chosen<'a>,
}

impl TileWork<'_> {
    fn run(&self, q: &[f32], out: &mut [f32]) -> Result<(), CacheError> {
        let Self { head, first, tile, .. } = *self;
        let (dim, value_dim) = (head.keys.codec().dim(), head.values().codec().dim());
        let position_dim = head.position().map_or(0, |side| side.codec().dim());
        let rows = q.len() / (dim + position_dim);
        let group = rows / (tile.1 - tile.0);
        let mut queries = TileQueries::new(head, q, group, out.len())?;
        let mut key_tile = Tile::new(dim)?;
        let mut value_tile = self.values.map(|_| Tile::new(value_dim)).transpose()?;
        let mut position = memory::filled(TILE * position_dim, 0.0)?;
        let [mut logits, mut spare] = [memory::filled(rows * TILE, 0.0)?, memory::filled(rows * TILE, 0.0)?];
        let (oldest, newest) = (head.seen(first + tile.0), head.seen(first + tile.1 - 1));
        let past = self.past();
        self.attend_past(&mut queries, q, past)?;
        // Part 0 is the sinks. Part 1 is the rest of the range that some query of the tile sees, after
        // `past`.
        let parts = [newest[0], (oldest[1].0.min(newest[1].0).max(past.1), newest[1].1)];
        for (part, (start, end)) in parts.into_iter().enumerate() {
            let mut next = start;
            while let Some(from) = self.chosen.next(next).filter(|&from| from < end) {
                let to = self.chosen.stretch_end(from, (from + TILE).min(end));
                debug_assert!(to > from, "the stretch of {from} ends at {to}");
                next = to;
                let (logits, spare) = (&mut logits[..rows * (to - from)], &mut spare[..rows * (to - from)]);
                let filled = key_tile.fill(self.keys, tile, (from, to), self.chosen)?;
                let position = &mut position[..(to - from) * position_dim];
                if let Some(side) = head.position() {
                    side.read(from, to, position)?;
                }
                self.score(&mut queries, part, (from, to), (&key_tile, filled), position, [logits, spare]);
                let summed = match (self.values, &mut value_tile) {
                    (Some(side), Some(tile)) => {
                        (&side.boundary, tile.fill(side, self.tile, (from, to), self.chosen)?, &*tile)
                    }
                    _ => (&self.keys.boundary, filled, &key_tile),
                };
                self.sum(&mut queries, (from, to), summed, logits, spare);
            }
        }
        queries.seen.finish(value_dim, |sums| head.values().pages().unrotate(sums), out);
        Ok(())
    }

    /// The range after the sinks that all queries see encoded, in pages in memory that have kernels.
    fn past(&self) -> (usize, usize) {
        let start = self.keys.boundary.sinks;
        let quick = |side: &&ChunkSide<'_>| side.of.pages().are_quick() && self.head.rule.window.is_none();
        let sides = [Some(self.keys), self.values].map(|side| side.filter(quick));
        let ends = sides.map(|side| side.map_or(start, |side| side.boundary.ends[self.tile.0]));
        (start, ends[0].min(ends[1]).max(start))
    }

    fn attend_past(
        &self,
        queries: &mut TileQueries,
        q: &[f32],
        run: (usize, usize),
    ) -> Result<(), CacheError> {
        if run.0 == run.1 {
            return Ok(());
        }
        let (head, mut coded) = (self.head, HeadQueries::default());
        let [dim, value_dim] = [&head.keys, head.values()].map(|side| MAX_HEADS * side.codec().dim());
        let Sums { state, plain, rotated, .. } = &mut queries.seen;
        let sums = plain.chunks_mut(value_dim).zip(rotated.chunks_mut(value_dim));
        let states = state.chunks_mut(MAX_HEADS).zip(sums);
        for (q, (state, (plain, rotated))) in q.chunks(dim).zip(states) {
            head.keys.prepare(q, head.rule.scale, &mut coded);
            head.attend_run(&coded, (run, self.chosen), state, [plain, rotated])?;
        }
        Ok(())
    }

    /// Computes the weights of a tile of tokens, `[rows, n]`, in the first of two buffers.
    fn score(
        &self,
        queries: &mut TileQueries,
        part: usize,
        (from, to): (usize, usize),
        (tile, (has_coded, has_plain)): (&Tile, (bool, bool)),
        position: &[f32],
        [logits, plain]: [&mut [f32]; 2],
    ) {
        let (head, dim, count) = (self.head, self.head.keys.codec().dim(), to - from);
        let rows = queries.seen.state.len();
        let group = rows / (self.tile.1 - self.tile.0);
        queries.score(has_coded.then_some(&tile.coded[..]), &queries.rotated, count, dim, logits);
        queries.score(has_plain.then_some(&tile.plain[..]), &queries.plain, count, dim, plain);
        queries.add_position(position, count, [&mut *logits, &mut *plain]);
        let (means, sinks) = (head.keys.means(), head.keys.sinks().len());
        for (row, (logits, plain)) in
            logits.chunks_exact_mut(count).zip(plain.chunks_exact(count)).enumerate()
        {
            let query = self.tile.0 + row / group;
            let (a, b) = head.seen(self.first + query)[part];
            let coded = self.keys.boundary.coded_of(query, from, to);
            logits[coded..].copy_from_slice(&plain[coded..]);
            let mut done = 0;
            while done < coded {
                let slot = from + done - sinks;
                let end = coded.min(done + PAGE_TOKENS - slot % PAGE_TOKENS);
                let offset =
                    means.index(slot / PAGE_TOKENS).map_or(0.0, |mean| queries.offsets[mean * rows + row]);
                logits[done..end].iter_mut().for_each(|logit| *logit += offset);
                done = end;
            }
            head.cap(logits);
            // Masked after the soft cap, which would turn minus infinity into a finite logit.
            logits[..a.clamp(from, to) - from].fill(f32::NEG_INFINITY);
            logits[b.clamp(from, to) - from..].fill(f32::NEG_INFINITY);
            self.chosen.mask(from, count, logits);
        }
        let value_dim = head.values().codec().dim();
        let Sums { state, plain, rotated, .. } = &mut queries.seen;
        tile::soften_all(head.keys.level(), logits, state, value_dim, [plain, rotated]);
    }

    /// Adds the weighted values of a tile of tokens.
    fn sum(
        &self,
        queries: &mut TileQueries,
        (from, to): (usize, usize),
        (boundary, (has_coded, has_plain), tile): (&Boundary, (bool, bool), &Tile),
        weights: &mut [f32],
        plain: &mut [f32],
    ) {
        let (dim, count, rows) = (self.head.values().codec().dim(), to - from, queries.seen.state.len());
        let group = rows / (self.tile.1 - self.tile.0);
        let both = weights.chunks_exact_mut(count).zip(plain.chunks_exact_mut(count));
        for (row, (all, kept)) in both.enumerate() {
            let coded = boundary.coded_of(self.tile.0 + row / group, from, to);
            kept[..coded].fill(0.0);
            kept[coded..].copy_from_slice(&all[coded..]);
            all[coded..].fill(0.0);
        }
        if has_coded {
            tile::add(weights, &tile.coded[..count * dim], (dim, dim), &mut queries.seen.rotated);
            // All pages of values have one mean, and latent vectors have none.
            life::add_weighted(&mut queries.seen.plain, weights, self.head.values().mean_of(0));
        }
        if has_plain {
            tile::add(plain, &tile.plain[..count * dim], (dim, dim), &mut queries.seen.plain);
        }
    }
}

impl TileQueries {
    /// Prepares `q` with `group` query heads per token, for results of `out` values.
    fn new(head: &Head, q: &[f32], group: usize, out: usize) -> Result<Self, CacheError> {
        let dim = head.keys.codec().dim();
        let width = dim + head.position().map_or(0, |side| side.codec().dim());
        let rows = q.len() / width;
        let scaled = |at: Range<usize>| {
            let part = q.chunks_exact(width).flat_map(|q| &q[at.clone()]).map(|x| x * head.rule.scale);
            memory::collected(rows * at.len(), part)
        };
        let (plain, position) = (scaled(0..dim)?, scaled(dim..width)?);
        let means = head.keys.means();
        let mut offsets = memory::list(rows * means.list().len())?;
        add_products(&plain, dim, means.values(), &mut offsets);
        let rotated = rotated(&head.keys, &plain)?;
        let mut seen = Sums::default();
        seen.make_room(rows, out / rows)?;
        seen.clear(rows, out / rows);
        if !head.sink_logits.is_empty() {
            seen.start(std::iter::repeat_with(|| head.sinks_from(0).take(group)).flatten());
        }
        Ok(Self { plain, rotated, position, offsets, seen })
    }

    /// Writes `out[row, i]` = <query row, token i>. Leaves `out` unchanged if there are no tokens.
    fn score(&self, tokens: Option<&[f32]>, queries: &[f32], count: usize, dim: usize, out: &mut [f32]) {
        if let Some(tokens) = tokens {
            tile::score(queries, &tokens[..count * dim], dim, out, Accumulate::Replace);
        }
    }

    /// Adds the scores of the positional parts of a tile's tokens.
    fn add_position(&self, tokens: &[f32], count: usize, logits: [&mut [f32]; 2]) {
        let dim = tokens.len() / count;
        if dim > 0 {
            for logits in logits {
                tile::score(&self.position, tokens, dim, logits, Accumulate::Add);
            }
        }
    }
}

/// Queries (`[rows, dim]`) for encoded keys.
fn rotated(keys: &SideOfHead, queries: &[f32]) -> Result<Vec<f32>, CacheError> {
    let mut mapped = memory::collected(queries.len(), queries.iter().copied())?;
    if let Some(map) = keys.pages().map() {
        map.apply_to_queries(&mut mapped);
    }
    let mut rotated = memory::filled(queries.len(), 0.0)?;
    tqkv_simd::codec::rotate_queries(keys.level(), keys.codec(), &mapped, &mut rotated);
    Ok(rotated)
}
