//! The state of one KV head in a snapshot: rows, blocks and means of both sides.

use crate::cache::chunks::{Parser, put, put_count, refused};
use crate::cache::head::Head;
use crate::cache::life::PAGE_TOKENS;
use crate::cache::map::{Learner, Order, PairFactors};
use crate::cache::means::{Mean, Means, State};
use crate::cache::page::Pages;
use crate::cache::rows::HalfRows;
use crate::cache::side_of_head::SideOfHead;
use crate::cache::spec::MOST_TOKENS;
use crate::cache::vectors::Floats;
use crate::error::CacheError;
use crate::memory;
use half::f16;
use half::slice::HalfBitsSliceExt;
use tqkv_core::unstable::trellis::QUARTERS;

/// The states of means, by stored number.
const STATES: [State; 3] = [State::Off, State::Learning, State::On];

pub(super) fn write(head: &Head, bytes: &mut Vec<u8>) -> Result<(), CacheError> {
    memory::reserve(bytes, most_bytes(&head.keys) + most_bytes(&head.other))?;
    write_side(&head.keys, bytes)?;
    write_side(&head.other, bytes)
}

/// Reads a state into an empty head.
pub(super) fn read(head: &mut Head, max_norms: [f32; 2], parser: &mut Parser<'_>) -> Result<(), CacheError> {
    read_side(&mut head.keys, max_norms[0], parser)?;
    read_side(&mut head.other, max_norms[1], parser)?;
    if head.keys.len() != head.other.len() {
        return refused("keys and values of different lengths");
    }
    if head.holds_what_it_sees() {
        Ok(())
    } else {
        refused("tokens that the newest position sees are missing")
    }
}

/// Upper bound of the stored bytes of a side: rows and blocks as in memory, counts, and means with their
/// first pages.
fn most_bytes(side: &SideOfHead) -> usize {
    const COUNTS: usize = 1024;
    let rows = (side.sinks().len() + side.recent().len()) * side.sinks().row_bytes();
    let (pages, codec) = (side.pages(), side.pages().warm().codec());
    // Cold blocks are not larger than warm ones.
    let map = 3 * codec.dim() + 4 * QUARTERS + side.learner.as_ref().map_or(0, Learner::allocated_bytes);
    rows + (pages.len() - pages.first()) * codec.block_bytes() + side.means().allocated_bytes() + map + COUNTS
}

fn write_side(side: &SideOfHead, bytes: &mut Vec<u8>) -> Result<(), CacheError> {
    write_rows(side.sinks(), bytes);
    write_means(side.means(), bytes);
    let pages = side.pages();
    put_count(bytes, pages.len());
    put_count(bytes, pages.first() / PAGE_TOKENS);
    for &cooled in pages.cooled() {
        put_count(bytes, cooled);
    }
    let mut from = pages.first();
    while from < pages.len() {
        let (run, to) = (pages.run(from)?, pages.page_end(from));
        bytes.extend(run.format.read_blocks(&run.lines, 0..to - from));
        from = to;
    }
    write_rows(side.recent(), bytes);
    write_map(side, bytes);
    Ok(())
}

fn read_side(side: &mut SideOfHead, max_norm: f32, parser: &mut Parser<'_>) -> Result<(), CacheError> {
    // Sinks are never coded, so no codec limits them.
    let sinks = read_rows(side.sinks(), side.sink_capacity(), f32::INFINITY, parser)?;
    let (state, list, sum) = read_means(side.means(), side.codec().dim(), parser)?;
    let mut pages = side.pages().clone();
    let parts = SnapshotParts::read(&pages, parser)?;
    let recent = read_rows(side.recent(), MOST_TOKENS, max_norm, parser)?;
    let (held, full) = (parts.len.div_ceil(PAGE_TOKENS), parts.len / PAGE_TOKENS);
    let begins = sinks.len() == side.sink_capacity() || parts.len + recent.len() == 0;
    let learnt = side.means().can_have(state, &list, &sum, full);
    let waits = state != State::Learning || parts.len == 0;
    let summed = side.means().can_be_sums(&sum, full);
    if !begins || !learnt || !waits || !summed || list.iter().any(|mean| mean.first_page > held) {
        return refused("rows, pages and means that do not fit each other");
    }
    let learner = read_map(side, (&mut pages, parts.len), sinks.len() + recent.len(), parser)?;
    parts.put(&mut pages)?;
    side.restore(sinks, pages, recent, |means| means.restore(state, list, sum), learner)
}

fn write_rows(rows: &HalfRows, bytes: &mut Vec<u8>) {
    put_count(bytes, rows.len());
    rows.runs(0, rows.len()).iter().for_each(|run| put(bytes, run));
}

/// Reads rows of the same kind as the empty `like`.
fn read_rows(
    like: &HalfRows,
    most: usize,
    max_norm: f32,
    parser: &mut Parser<'_>,
) -> Result<HalfRows, CacheError> {
    let (count, dim) = (parser.count("rows", most)?, like.row_bytes() / size_of::<u16>());
    let bits = parser.values::<u16>(count.saturating_mul(dim))?;
    let values: &[f16] = bits.reinterpret_cast();
    let given = || values.chunks_exact(dim).map(Floats::from);
    // Rounding to f16 may make a row slightly longer than its vector.
    let accepted = |norm: f32| norm.is_finite() && norm <= max_norm * 1.001;
    if !given().all(|row| accepted(row.norm(like.level()))) {
        return refused("a row that no append would have accepted");
    }
    let mut rows = like.clone();
    rows.push(given())?;
    Ok(rows)
}

fn write_means(means: &Means, bytes: &mut Vec<u8>) {
    let state = STATES.iter().position(|state| *state == means.state()).unwrap_or_default();
    bytes.push(state as u8);
    put_count(bytes, means.list().len());
    for mean in means.list() {
        put_count(bytes, mean.first_page);
        put(bytes, &mean.values);
    }
    put_count(bytes, means.sum().len());
    put(bytes, means.sum());
}

/// Writes the map, or the queries that wait for it. Nothing for sides that can have no map.
fn write_map(side: &SideOfHead, bytes: &mut Vec<u8>) {
    let Some(learner) = &side.learner else {
        if side.may_get_map {
            write_factors(side, bytes);
        }
        return;
    };
    write_factors(side, bytes);
    let (samples, rows) = learner.state();
    put(bytes, &[samples]);
    bytes.extend(rows);
}

fn write_factors(side: &SideOfHead, bytes: &mut Vec<u8>) {
    let map = side.pages().map();
    let factors: Vec<u16> = map.map_or(Vec::new(), |map| map.bits().collect());
    put_count(bytes, factors.len());
    put(bytes, &factors);
    if let Some(order) = map.and_then(PairFactors::order) {
        put(bytes, &order.pairs());
        put(bytes, &order.weights().unwrap_or_default());
    }
}

/// Reads the map of `len` encoded tokens, or the queries that wait for it in a cache of `rows` uncompressed
/// tokens.
fn read_map(
    side: &SideOfHead,
    (pages, len): (&mut Pages, usize),
    rows: usize,
    parser: &mut Parser<'_>,
) -> Result<Option<Learner>, CacheError> {
    let dim = side.codec().dim();
    let Some(mut learner) = side.learner.clone() else {
        let map = if side.may_get_map { read_factors((dim, false), len, parser)? } else { None };
        if map.is_some() {
            pages.set_map(map);
        }
        return Ok(None);
    };
    let map = read_factors((dim, learner.in_quarters()), len, parser)?;
    if len > 0 {
        pages.set_map(map);
    }
    let samples = parser.values::<u64>(1)?.first().copied().unwrap_or_default();
    let queries = parser.bytes(samples.count_ones() as usize, learner.width())?;
    let waits = samples == 0 || len == 0;
    if waits && learner.restore(samples, queries, rows)? {
        Ok(Some(learner))
    } else {
        refused("queries that the cache cannot have")
    }
}

/// Reads the factors of `tokens` encoded tokens.
fn read_factors(
    (dim, in_quarters): (usize, bool),
    tokens: usize,
    parser: &mut Parser<'_>,
) -> Result<Option<PairFactors>, CacheError> {
    let count = parser.count("factors of a map", dim)?;
    let factors = parser.values::<u16>(count)?;
    let order = if count > 0 && in_quarters { read_order(dim, parser)? } else { None };
    let map = PairFactors::from_bits(&factors, order).filter(|_| count == dim);
    if count > 0 && (map.is_none() || tokens == 0) {
        return refused("a map that the cache cannot have");
    }
    Ok(map)
}

/// Reads the order of a map for a code of quarters.
fn read_order(dim: usize, parser: &mut Parser<'_>) -> Result<Option<Order>, CacheError> {
    let pairs = parser.values::<u16>(dim / 2)?;
    let weights = parser.values::<f32>(QUARTERS)?;
    let order = weights.first_chunk().and_then(|weights| Order::from_parts(&pairs, None, *weights));
    order.map_or_else(|| refused("an order of pairs that the cache cannot have"), |order| Ok(Some(order)))
}

type MeansState = (State, Vec<Mean>, Vec<i64>);

fn read_means(means: &Means, dim: usize, parser: &mut Parser<'_>) -> Result<MeansState, CacheError> {
    let state = parser.bytes(1, 1)?.first().and_then(|&state| STATES.get(usize::from(state)).copied());
    let Some(state) = state.filter(|state| means.can_be(*state)) else {
        return refused("means that the cache cannot have");
    };
    let mut list: Vec<Mean> = Vec::new();
    for _ in 0..parser.count("means", u64::BITS as usize)? {
        let first_page = parser.count("pages", MOST_TOKENS)?;
        let values = parser.values::<f32>(dim)?;
        let follows = list.last().is_none_or(|mean| mean.first_page < first_page);
        if !follows {
            return refused("means out of order");
        }
        if !means.can_be_mean(&values) {
            return refused("a mean that is not finite, or longer than a key may be");
        }
        list.push(Mean { first_page, values: values.into() });
    }
    let sums = parser.count("sums", dim)?;
    if ![0, dim].contains(&sums) {
        return refused("the sums are not one per coordinate");
    }
    Ok((state, list, parser.values::<i64>(sums)?))
}

/// The blocks of pages, which are put in place once the map is known: it says how they are coded.
struct SnapshotParts<'a> {
    len: usize,
    evicted: usize,
    cooled: Vec<usize>,
    /// The blocks of each page, from the first that is not evicted.
    blocks: Vec<&'a [u8]>,
}

impl<'a> SnapshotParts<'a> {
    /// Reads the pages of a side with these tiers.
    fn read(pages: &Pages, parser: &mut Parser<'a>) -> Result<Self, CacheError> {
        let len = parser.count("encoded tokens", MOST_TOKENS)?;
        let full = len / PAGE_TOKENS;
        let evicted = parser.count("evicted pages", full)?;
        let mut cooled = Vec::new();
        for _ in 1..pages.tiers().len() {
            cooled.push(parser.count("cold pages", cooled.last().copied().unwrap_or(full))?);
        }
        let mut parts = Self { len, evicted, cooled, blocks: Vec::new() };
        for page in evicted..len.div_ceil(PAGE_TOKENS) {
            let tier = parts.cooled.iter().filter(|&&cooled| page < cooled).count();
            let bytes = pages.tiers().format(tier).codec().block_bytes();
            parts.blocks.push(parser.bytes(parts.tokens(page), bytes)?);
        }
        Ok(parts)
    }

    fn tokens(&self, page: usize) -> usize {
        (self.len - page * PAGE_TOKENS).min(PAGE_TOKENS)
    }

    /// Puts the pages into an empty list.
    fn put(self, pages: &mut Pages) -> Result<(), CacheError> {
        pages.begin(self.evicted, self.cooled.clone());
        for (page, blocks) in (self.evicted..).zip(&self.blocks) {
            let format = *pages.tiers().format(pages.tier(page));
            let (codec, tokens) = (format.codec(), self.tokens(page));
            let mut values = vec![0.0; tokens * codec.dim()];
            if tqkv_simd::codec::decode(format.level(), codec, blocks, &mut values).is_err() {
                return refused("a block whose scale is not finite");
            }
            pages.put_page(page, tokens, blocks)?;
        }
        Ok(())
    }
}
