//! The work of one case on one thread: a pool of pages, and a call that processes the next ones.

use crate::case::{BenchError, Case, DRAM_POOL, Data, L2_POOL, Op};
use crate::{q4_0, read};
use std::sync::Arc;
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::page::{
    Attention, AttentionParts, HalfPages, KeyPages, Line, MAX_HEADS, MAX_PARTS, ValuePages, ValuePart,
    WeightedPart, attend, rescale,
};
use tqkv_simd::{Level, codec};

/// Tokens per page, and per call except for attention.
const SLOTS: usize = 128;
/// Pages per call of attention: a span of the cache, which one thread processes at once.
const SPAN: usize = 16;

/// One call of the work. Pages are numbered from 0 and wrap.
type Call = Box<dyn FnMut(usize) + Send>;

/// The work of one case on one thread.
pub struct Workload {
    call: Call,
    pages: usize,
    at: usize,
    pub(super) tokens: usize,
    pub(super) bytes_per_token: f64,
}

/// Deterministic values with about the spread of a normal distribution.
pub(super) fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| 2.0 * (uniform() + uniform() + uniform())).collect()
}

/// `pages` copies of one page.
fn pool(page: &[Line], pages: usize) -> Vec<Line> {
    page.iter().copied().cycle().take(page.len() * pages).collect()
}

/// Page `at` of a pool and the next page.
fn two(pool: &[Line], lines: usize, at: usize) -> (&[Line], &[Line]) {
    let pages = pool.len() / lines;
    let next = (at + 1) % pages;
    (&pool[at * lines..(at + 1) * lines], &pool[next * lines..(next + 1) * lines])
}

impl Workload {
    /// Makes the data, which is up to half a gigabyte from memory.
    ///
    /// # Errors
    /// There is no kernel for the case.
    pub fn new(case: &Case) -> Result<Self, BenchError> {
        if !(1..=8).contains(&case.query_heads) {
            return Err(BenchError::Count);
        }
        let options = Options::DEFAULT.effort(case.effort);
        let codec = AnyCodec::new(case.codec, case.dim, options).map_err(BenchError::Shape)?;
        let pool_bytes = match case.data {
            Data::L1 => 0,
            Data::L2 => L2_POOL,
            Data::Dram => DRAM_POOL / if case.codec == CodecId::F16 { 1 } else { 3 },
            Data::Tokens(tokens) => tokens * codec.block_bytes() * if case.op == Op::Attend { 2 } else { 1 },
        };
        Self::of(case, &codec, pool_bytes).ok_or(BenchError::NoKernel(case.codec))
    }

    fn of(case: &Case, codec: &AnyCodec, pool_bytes: usize) -> Option<Self> {
        let pages = (pool_bytes / (SLOTS * codec.block_bytes())).max(1);
        let mut blocks = vec![0; SLOTS * codec.block_bytes()];
        codec::encode(case.level, codec, &values(SLOTS * case.dim, 3), &mut blocks).ok()?;
        let (call, vectors) = match case.op {
            Op::Encode => (encode(case, *codec, pages), 1),
            Op::Decode => (decode(case, *codec, &blocks, pages), 1),
            Op::Scores if case.codec == CodecId::Q4_0 => (ggml_scores(case, &blocks, pages)?, 1),
            Op::Scores if codec.id() == CodecId::F16 => (half_scores(case, &blocks, pages)?, 1),
            Op::Accumulate if codec.id() == CodecId::F16 => (half_sums(case, &blocks, pages)?, 1),
            Op::Attend if codec.id() == CodecId::F16 => (half_attention(case, &blocks, pages / 2)?, 2),
            Op::Scores => (scores(case, codec, &blocks, pages)?, 1),
            Op::Accumulate => (sums(case, codec, &blocks, pages)?, 1),
            Op::Attend => (code_attention(case, codec, &blocks, pages / 2)?, 2),
        };
        let tokens = if case.op == Op::Attend { SPAN * SLOTS } else { SLOTS };
        Some(Self {
            call,
            pages: (pages / vectors).max(1),
            at: 0,
            tokens,
            bytes_per_token: (vectors * codec.block_bytes()) as f64,
        })
    }

    /// The plain streaming read. A line counts as a token.
    pub(super) fn read(pool_bytes: usize) -> Self {
        let pages = (pool_bytes / read::CALL_BYTES).max(1);
        let call = read::reader(pages);
        Self { call, pages, at: 0, tokens: read::CALL_BYTES / 64, bytes_per_token: 64.0 }
    }

    /// Tokens per call: vectors, or for `attend` pairs of key and value.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Processes the next page.
    pub fn call(&mut self) {
        (self.call)(self.at);
        self.at = (self.at + 1) % self.pages;
    }
}

/// A pool of key pages that all hold the same blocks.
fn key_pool(codec: &AnyCodec, blocks: &[u8], pages: usize) -> Option<(KeyPages, Vec<Line>)> {
    let keys = KeyPages::new(codec, SLOTS)?;
    let mut page = vec![Line::ZERO; keys.lines()];
    for (slot, block) in blocks.chunks_exact(codec.block_bytes()).enumerate() {
        keys.write(&mut page, slot, block);
    }
    Some((keys, pool(&page, pages.max(1))))
}

fn value_pool(codec: &AnyCodec, blocks: &[u8], pages: usize) -> Option<(ValuePages, Vec<Line>)> {
    let values = ValuePages::new(codec, SLOTS)?;
    let mut page = vec![Line::ZERO; values.lines()];
    for (slot, block) in blocks.chunks_exact(codec.block_bytes()).enumerate() {
        values.write(&mut page, slot, block);
    }
    Some((values, pool(&page, pages.max(1))))
}

fn half_pool(dim: usize, blocks: &[u8], pages: usize) -> Option<(HalfPages, Vec<Line>)> {
    let rows = HalfPages::new(dim, SLOTS)?;
    let mut page = vec![Line::ZERO; rows.lines()];
    for (slot, block) in blocks.chunks_exact(2 * dim).enumerate() {
        rows.write(&mut page, slot, block);
    }
    Some((rows, pool(&page, pages.max(1))))
}

fn queries(case: &Case) -> Vec<f32> {
    values(case.query_heads * case.dim, 5)
}

fn weights(case: &Case) -> Vec<f32> {
    values(case.query_heads * SLOTS, 7).iter().map(|v| v.abs() + 0.01).collect()
}

fn scores(case: &Case, codec: &AnyCodec, blocks: &[u8], pages: usize) -> Option<Call> {
    let (keys, pool) = key_pool(codec, blocks, pages)?;
    let (queries, level) = (keys.queries(case.level, &queries(case)), case.level);
    let mut out = vec![0.0; case.query_heads * SLOTS];
    Some(Box::new(move |at| {
        let (page, next) = two(&pool, keys.lines(), at);
        keys.scores(level, page, 0, &queries, next, &mut out);
        std::hint::black_box(&out);
    }))
}

fn sums(case: &Case, codec: &AnyCodec, blocks: &[u8], pages: usize) -> Option<Call> {
    let (rows, pool) = value_pool(codec, blocks, pages)?;
    let (weights, level) = (weights(case), case.level);
    let mut acc = vec![0.0; case.query_heads * case.dim];
    Some(Box::new(move |at| {
        let (page, next) = two(&pool, rows.lines(), at);
        rows.accumulate(level, page, 0, &weights, next, &mut acc);
        std::hint::black_box(&acc);
    }))
}

/// Attention as the cache runs it, over the pages in turn. `scores` processes page `at`, and `accumulate` one
/// or two pages.
struct Pool<S, A> {
    /// Number of pages of keys, and of pages of values.
    pages: usize,
    scores: S,
    accumulate: A,
    /// True if two pages are summed together.
    joins: bool,
    /// Sums, `[heads, dim]`.
    sums: Vec<f32>,
    dim: usize,
}

impl<S, A> AttentionParts for Pool<S, A>
where
    S: Fn(usize, &mut [f32]),
    A: Fn(&[PageWeights<'_>], &mut [f32]),
{
    fn part_end(&self, from: usize) -> usize {
        (from / SLOTS + 1) * SLOTS
    }

    fn scores(&self, from: usize, _: usize, logits: &mut [f32]) {
        (self.scores)(from / SLOTS % self.pages, logits);
    }

    fn rescale(&mut self, factors: &[f32]) {
        rescale(factors, self.dim, &mut self.sums);
    }

    fn joins(&self, _: usize, _: usize) -> bool {
        self.joins
    }

    fn accumulate(&mut self, parts: &[WeightedPart<'_>]) {
        let mut weights = [(0, &[][..]); MAX_PARTS];
        for (weights, part) in weights.iter_mut().zip(parts) {
            *weights = (part.from / SLOTS % self.pages, part.weights);
        }
        (self.accumulate)(&weights[..parts.len()], &mut self.sums);
    }
}

/// The number of a page, and the weights of its tokens: `[heads, SLOTS]`.
type PageWeights<'a> = (usize, &'a [f32]);

/// Attends to one span of pages per call.
fn attention<S, A>(case: &Case, (pages, joins): (usize, bool), scores: S, accumulate: A) -> Call
where
    S: Fn(usize, &mut [f32]) + Send + 'static,
    A: Fn(&[PageWeights<'_>], &mut [f32]) + Send + 'static,
{
    let (level, dim, heads) = (case.level, case.dim, case.query_heads);
    let sums = vec![0.0; heads * dim];
    let mut pool = Pool { pages: pages.max(1), scores, accumulate, joins, sums, dim };
    Box::new(move |at| {
        let mut state = [Attention::EMPTY; MAX_HEADS];
        let from = at * SPAN * SLOTS;
        attend(level, &mut pool, from, from + SPAN * SLOTS, &mut state[..heads]);
        std::hint::black_box((&pool.sums, &state));
    })
}

/// The queries times the factor that turns dot products into logits.
fn scaled(case: &Case) -> Vec<f32> {
    let scale = 1.0 / (case.dim as f32).sqrt();
    queries(case).iter().map(|q| q * scale).collect()
}

fn code_attention(case: &Case, codec: &AnyCodec, blocks: &[u8], pages: usize) -> Option<Call> {
    let (keys, key_pool) = key_pool(codec, blocks, pages)?;
    let (rows, value_pool) = value_pool(codec, blocks, pages)?;
    let (queries, level) = (keys.queries(case.level, &scaled(case)), case.level);
    let joins = rows.joins(case.query_heads);
    // Both sides prefetch the next page.
    let (key_pool, value_pool) = (Arc::new(key_pool), Arc::new(value_pool));
    let (next_keys, next_values) = (Arc::clone(&key_pool), Arc::clone(&value_pool));
    let scores = move |at, out: &mut [f32]| {
        let (page, _) = two(&key_pool, keys.lines(), at);
        let (next, _) = two(&next_values, rows.lines(), at);
        keys.scores(level, page, 0, &queries, next, out);
    };
    let accumulate = move |parts: &[PageWeights<'_>], sums: &mut [f32]| {
        let mut summed =
            [ValuePart { pages: &rows, page: &[], start: 0, from: 0, weights: &[], next: &[] }; MAX_PARTS];
        for (summed, &(at, weights)) in summed.iter_mut().zip(parts) {
            let (page, _) = two(&value_pool, rows.lines(), at);
            let (_, next) = two(&next_keys, keys.lines(), (at + parts.len() - 1) % pages.max(1));
            *summed = ValuePart { pages: &rows, page, start: at * SLOTS, from: 0, weights, next };
        }
        ValuePages::accumulate_parts(level, &summed[..parts.len()], sums);
    };
    Some(attention(case, (pages, joins), scores, accumulate))
}

fn half_attention(case: &Case, blocks: &[u8], pages: usize) -> Option<Call> {
    let (rows, key_pool) = half_pool(case.dim, blocks, pages)?;
    let (_, value_pool) = half_pool(case.dim, blocks, pages)?;
    let (queries, level) = (scaled(case), case.level);
    let (key_pool, value_pool) = (Arc::new(key_pool), Arc::new(value_pool));
    let (next_keys, next_values) = (Arc::clone(&key_pool), Arc::clone(&value_pool));
    let scores = move |at, out: &mut [f32]| {
        let (page, _) = two(&key_pool, rows.lines(), at);
        let (next, _) = two(&next_values, rows.lines(), at);
        rows.scores(level, page, 0, &queries, next, out);
    };
    let accumulate = move |parts: &[PageWeights<'_>], sums: &mut [f32]| {
        for &(at, weights) in parts {
            let (page, _) = two(&value_pool, rows.lines(), at);
            let (_, next) = two(&next_keys, rows.lines(), at);
            rows.accumulate(level, page, 0, weights, next, sums);
        }
    };
    Some(attention(case, (pages, false), scores, accumulate))
}

fn half_scores(case: &Case, blocks: &[u8], pages: usize) -> Option<Call> {
    let (rows, pool) = half_pool(case.dim, blocks, pages)?;
    let (queries, level) = (queries(case), case.level);
    let mut out = vec![0.0; case.query_heads * SLOTS];
    Some(Box::new(move |at| {
        let (page, next) = two(&pool, rows.lines(), at);
        rows.scores(level, page, 0, &queries, next, &mut out);
        std::hint::black_box(&out);
    }))
}

fn half_sums(case: &Case, blocks: &[u8], pages: usize) -> Option<Call> {
    let (rows, pool) = half_pool(case.dim, blocks, pages)?;
    let (weights, level) = (weights(case), case.level);
    let mut acc = vec![0.0; case.query_heads * case.dim];
    Some(Box::new(move |at| {
        let (page, next) = two(&pool, rows.lines(), at);
        rows.accumulate(level, page, 0, &weights, next, &mut acc);
        std::hint::black_box(&acc);
    }))
}

fn ggml_scores(case: &Case, blocks: &[u8], pages: usize) -> Option<Call> {
    let q8 = AnyCodec::new(CodecId::Q8_0, case.dim, Options::DEFAULT).ok()?;
    let mut query = vec![0; q8.block_bytes() * case.query_heads];
    codec::encode(Level::Portable, &q8, &queries(case), &mut query).ok()?;
    let (bytes, heads, level) = (blocks.len(), case.query_heads, case.level);
    let pool: Vec<u8> = blocks.iter().copied().cycle().take(bytes * pages.max(1)).collect();
    let mut out = vec![0.0; SLOTS];
    Some(Box::new(move |at| {
        for query in query.chunks_exact(query.len() / heads) {
            q4_0::scores(level, query, &pool[at * bytes..(at + 1) * bytes], &mut out);
            std::hint::black_box(&out);
        }
    }))
}

fn encode(case: &Case, codec: AnyCodec, pages: usize) -> Call {
    let x = values(SLOTS * case.dim, 3);
    let (bytes, level) = (SLOTS * codec.block_bytes(), case.level);
    let mut pool = vec![0; bytes * pages];
    Box::new(move |at| {
        let done = codec::encode(level, &codec, &x, &mut pool[at * bytes..(at + 1) * bytes]);
        std::hint::black_box(done.is_ok());
    })
}

fn decode(case: &Case, codec: AnyCodec, blocks: &[u8], pages: usize) -> Call {
    let (bytes, level) = (blocks.len(), case.level);
    let pool: Vec<u8> = blocks.iter().copied().cycle().take(bytes * pages).collect();
    let mut out = vec![0.0; SLOTS * case.dim];
    Box::new(move |at| {
        let done = codec::decode(level, &codec, &pool[at * bytes..(at + 1) * bytes], &mut out);
        std::hint::black_box((done.is_ok(), &out));
    })
}
