//! The work of one case on one thread: a pool of pages, and a call that takes the next ones.

use crate::paired::{BenchError, Case, DRAM_POOL, Data, L2_POOL, Op};
use crate::{q4_0, read};
use tqkv_core::{AnyCodec, CodecId, Family, Options};
use tqkv_simd::page::{Attention, HalfPages, KeyPages, Line, Queries, ValuePages, attend};
use tqkv_simd::{Level, codec};

/// Tokens of a page, and of a call.
const SLOTS: usize = 128;

/// What a call does; pages are numbered from 0 and wrap.
type Call = Box<dyn FnMut(usize) + Send>;

/// The work of one case on one thread.
pub struct Workload {
    call: Call,
    pages: usize,
    at: usize,
    pub(super) tokens: usize,
    pub(super) bytes_per_token: f64,
}

/// Deterministic values with about the spread of a normal law.
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

/// Page `at` of a pool, and the one after it.
fn two(pool: &[Line], lines: usize, at: usize) -> (&[Line], &[Line]) {
    let pages = pool.len() / lines;
    let next = (at + 1) % pages;
    (&pool[at * lines..(at + 1) * lines], &pool[next * lines..(next + 1) * lines])
}

impl Workload {
    /// Makes the data: up to half a gigabyte from memory.
    ///
    /// # Errors
    /// There is no kernel for the case.
    pub fn new(case: &Case) -> Result<Self, BenchError> {
        if !(1..=8).contains(&case.query_heads) {
            return Err(BenchError::Count);
        }
        let options = Options { effort: case.effort, ..Options::DEFAULT };
        let codec = AnyCodec::new(case.codec, case.dim, options).map_err(BenchError::Shape)?;
        let pool_bytes = match case.data {
            Data::L1 => 0,
            Data::L2 => L2_POOL,
            Data::Dram => DRAM_POOL / if case.codec == CodecId::F16 { 1 } else { 3 },
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
            Op::Scores if codec.id().family() == Family::Half => (half_scores(case, &blocks, pages)?, 1),
            Op::Accumulate if codec.id().family() == Family::Half => (half_sums(case, &blocks, pages)?, 1),
            Op::Attend if codec.id().family() == Family::Half => (half_attend(case, &blocks, pages / 2)?, 2),
            Op::Scores => (scores(case, codec, &blocks, pages)?, 1),
            Op::Accumulate => (sums(case, codec, &blocks, pages)?, 1),
            Op::Attend => (attention(case, codec, &blocks, pages / 2)?, 2),
        };
        Some(Self {
            call,
            pages: (pages / vectors).max(1),
            at: 0,
            tokens: SLOTS,
            bytes_per_token: (vectors * codec.block_bytes()) as f64,
        })
    }

    /// Plain streaming read; a line counts as a token.
    pub(super) fn read(pool_bytes: usize) -> Self {
        let pages = (pool_bytes / read::CALL_BYTES).max(1);
        let call = read::reader(pages);
        Self { call, pages, at: 0, tokens: read::CALL_BYTES / 64, bytes_per_token: 64.0 }
    }

    /// Tokens of a call: vectors, or for `attend` pairs of key and value.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Does the next page.
    pub fn call(&mut self) {
        (self.call)(self.at);
        self.at = (self.at + 1) % self.pages;
    }
}

/// Pages of keys of one page's blocks.
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

fn queries(case: &Case, keys: &KeyPages) -> Queries {
    let mut queries = Queries::EMPTY;
    queries.set(case.level, keys, &values(case.query_heads * case.dim, 5));
    queries
}

fn weights(case: &Case) -> Vec<f32> {
    values(case.query_heads * SLOTS, 7).iter().map(|v| v.abs() + 0.01).collect()
}

fn scores(case: &Case, codec: &AnyCodec, blocks: &[u8], pages: usize) -> Option<Call> {
    let (keys, pool) = key_pool(codec, blocks, pages)?;
    let (queries, level) = (queries(case, &keys), case.level);
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

fn attention(case: &Case, codec: &AnyCodec, blocks: &[u8], pages: usize) -> Option<Call> {
    let (keys, key_pool) = key_pool(codec, blocks, pages)?;
    let (rows, value_pool) = value_pool(codec, blocks, pages)?;
    let (queries, level) = (queries(case, &keys), case.level);
    let mut state = vec![Attention::EMPTY; case.query_heads];
    let mut acc = vec![0.0; case.query_heads * case.dim];
    let scale = 1.0 / (case.dim as f32).sqrt();
    Some(Box::new(move |at| {
        let (page, next) = two(&key_pool, keys.lines(), at);
        let (value_page, _) = two(&value_pool, rows.lines(), at);
        attend(level, (&keys, page), (&rows, value_page), SLOTS, &queries, scale, next, &mut state, &mut acc);
        std::hint::black_box(&acc);
    }))
}

fn half_scores(case: &Case, blocks: &[u8], pages: usize) -> Option<Call> {
    let (rows, pool) = half_pool(case.dim, blocks, pages)?;
    let (queries, level) = (values(case.query_heads * case.dim, 5), case.level);
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

fn half_attend(case: &Case, blocks: &[u8], pages: usize) -> Option<Call> {
    let (rows, keys) = half_pool(case.dim, blocks, pages)?;
    let (_, value_rows) = half_pool(case.dim, blocks, pages)?;
    let (queries, level) = (values(case.query_heads * case.dim, 5), case.level);
    let mut state = vec![Attention::EMPTY; case.query_heads];
    let mut acc = vec![0.0; case.query_heads * case.dim];
    let scale = 1.0 / (case.dim as f32).sqrt();
    Some(Box::new(move |at| {
        let (page, next) = two(&keys, rows.lines(), at);
        let (value_page, _) = two(&value_rows, rows.lines(), at);
        rows.attend(level, (page, value_page), SLOTS, &queries, scale, next, &mut state, &mut acc);
        std::hint::black_box(&acc);
    }))
}

fn ggml_scores(case: &Case, blocks: &[u8], pages: usize) -> Option<Call> {
    let q8 = AnyCodec::new(CodecId::Q8_0, case.dim, Options::DEFAULT).ok()?;
    let mut query = vec![0; q8.block_bytes() * case.query_heads];
    codec::encode(Level::Portable, &q8, &values(case.query_heads * case.dim, 5), &mut query).ok()?;
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
