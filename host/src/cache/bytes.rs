//! The bytes of a cache as a function of the number of its tokens: the one formula that a plan prints, that
//! [`CacheSpec::narrow_at`] inverts, and that says what a ring takes.
//!
//! It is an upper bound, because it does not know how tokens came: every head has the means, the map and the spare rows
//! that it may get, and a window the most pages. A head of 128 coordinates with 32,768 tokens holds at most 0.4 % less,
//! with `tier=` 0.8 %, with `spill=` 8 %, and with a window up to a page less. At 1,024 tokens means and spare rows make
//! 1 to 6 % of it, and tiers 10 %. A ring takes what the formula says, to the byte.

use super::layer::LayerKind;
use super::life::{BATCH, LEARN_TOKENS, MEAN_TOKENS, PAGE_TOKENS, RING_PIECE, ROLLBACK, cold_age};
use super::map::{Learner, map_bytes};
use super::means::Means;
use super::page::MANY_PAGES;
use super::spec::{CacheSpec, Centring, Cold, KeyMap, MOST_TOKENS};
use super::summaries::CHUNK_HEADER;
use crate::error::CacheError;
use std::iter::Sum;
use tqkv_core::{CodecId, KvShape};
use tqkv_simd::page::SLOT_STEP;

/// Bytes of keys and values by what they hold. Each is an upper bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bytes {
    /// Exact tokens: sinks, the newest ones, and those that wait, with spare rows.
    pub exact: u64,
    /// Pages of codes in memory with their structure, and the means that [`CacheSpec::select`] reads.
    pub codes: u64,
    /// Means of keys and of values.
    pub means: u64,
    /// Maps of keys, and the queries from which they are learnt.
    pub maps: u64,
}

impl Bytes {
    /// All of them; [`u64::MAX`] if they do not fit 64 bits.
    pub fn total(&self) -> u64 {
        [self.codes, self.means, self.maps].into_iter().fold(self.exact, u64::saturating_add)
    }

    fn each(self, of: impl Fn(u64) -> u64) -> Self {
        let Self { exact, codes, means, maps } = self;
        Self { exact: of(exact), codes: of(codes), means: of(means), maps: of(maps) }
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            exact: a.exact.saturating_add(b.exact),
            codes: a.codes.saturating_add(b.codes),
            means: a.means.saturating_add(b.means),
            maps: a.maps.saturating_add(b.maps),
        })
    }
}

/// What the tokens of a cache take, whatever their number is.
///
/// ```
/// use tqkv::cache::{CacheSize, CacheSpec};
///
/// let size = CacheSize::of(&CacheSpec::new(32, 32, 8, 128).with("t4,t2")?)?;
/// let f16 = CacheSize::of(&CacheSpec::new(32, 32, 8, 128).with("f16")?)?;
/// assert!(f16.at(32_768).total() > 5 * size.at(32_768).total());
/// # Ok::<(), tqkv::error::CacheError>(())
/// ```
#[derive(Clone, Debug)]
pub struct CacheSize {
    groups: Vec<HeadGroup>,
    /// [`CacheSpec::hot`].
    least: usize,
    /// [`CacheSpec::narrow_at`], and the most tokens that are all exact.
    limit: Option<(u64, usize)>,
}

impl CacheSize {
    /// The size of a cache of this spec. Layers that take the same bytes are counted together.
    ///
    /// # Errors
    /// A spec that [`CacheSpec::check`] refuses, or a head dim that a codec does not support.
    pub fn of(spec: &CacheSpec) -> Result<Self, CacheError> {
        spec.check()?;
        let mut groups: Vec<HeadGroup> = Vec::new();
        for layer in (0..spec.shape.num_layers).filter(|&layer| spec.kind(layer) != LayerKind::None) {
            let group = HeadGroup::of(spec, layer)?;
            // Kinds of layers alternate in models, if they differ.
            let known = groups.iter_mut().rev().take(8);
            match known
                .into_iter()
                .find(|other| group == HeadGroup { heads: group.heads, ..(*other).clone() })
            {
                Some(other) => other.heads += group.heads,
                None => groups.push(group),
            }
        }
        let mut size = Self { groups, least: spec.hot, limit: None };
        if let Some(limit) = spec.narrow_at {
            let limit = limit as u64;
            let whole = last(0, MOST_TOKENS, |tokens| size.fits(limit, tokens, tokens));
            size.limit = Some((limit, whole));
        }
        Ok(size)
    }

    /// Upper bound of what a cache holds that has `tokens` tokens in every layer, between two calls. It is that of
    /// [`CacheStats::allocated_bytes`](super::CacheStats), so what lies in a file and forks are not counted. A ring
    /// takes the same bytes for any number of tokens. One that has forked has pages for all of its tokens, and those
    /// that it shares as well.
    pub fn at(&self, tokens: usize) -> Bytes {
        let window = self.window(tokens).max(self.least);
        let of = |group: &HeadGroup| {
            group.bytes(tokens, window, false).each(|bytes| bytes.saturating_mul(group.heads))
        };
        self.groups.iter().map(of).sum()
    }

    /// Number of newest tokens that the limit lets stay exact at a length of `len` tokens; 0 without a limit.
    pub(super) fn window(&self, len: usize) -> usize {
        match self.limit {
            None => 0,
            Some((_, whole)) if len <= whole => whole,
            Some((limit, whole)) => last(self.least, whole, |exact| self.fits(limit, len, exact)),
        }
    }

    /// True if `len` tokens of which the newest `exact` are exact are within a limit.
    fn fits(&self, limit: u64, len: usize, exact: usize) -> bool {
        let of = |group: &HeadGroup| group.bytes(len, exact, true).total().saturating_mul(group.heads);
        self.groups.iter().map(of).fold(0, u64::saturating_add) <= limit
    }
}

/// The last number of `from..=to` that fits, if those that do come first, or `from`.
fn last(from: usize, to: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut fitting, mut beyond) = (from, to.saturating_add(1));
    while beyond.saturating_sub(fitting) > 1 {
        let middle = fitting + (beyond - fitting) / 2;
        if fits(middle) { fitting = middle } else { beyond = middle }
    }
    fitting
}

/// Rows of a narrowing window of some length that may be spare, so that few appends move it in memory.
pub(super) fn spare_rows(rows: usize) -> usize {
    (rows / 16).min(32)
}

/// KV heads that take the same bytes.
#[derive(Clone, Debug, PartialEq)]
struct HeadGroup {
    heads: u64,
    sinks: usize,
    /// Tokens that queries see.
    seen: usize,
    /// [`CacheSpec::hot`], and true if more tokens may be exact.
    least: usize,
    narrows: bool,
    /// Keys and values, or latent vectors and their positional parts.
    sides: [Side; 2],
    /// Bytes of the map of keys, and of the queries that wait for it.
    map: u64,
    queries: u64,
    /// Bytes that a ring takes instead.
    ring: Option<Bytes>,
}

impl HeadGroup {
    fn of(spec: &CacheSpec, layer: usize) -> Result<Self, CacheError> {
        let KvShape { head_dim, num_kv_heads, .. } = spec.shape_at(layer);
        let seen = match spec.kind(layer) {
            LayerKind::Sliding(window) => window,
            LayerKind::Full | LayerKind::None => usize::MAX,
        };
        let (has_map, may_get) = (spec.has_map(layer), spec.may_get_map(layer));
        let group = spec.shape_at(layer).group();
        let sides = Side::both(spec, layer)?;
        let ring = Ring::both(spec, layer)?.map(|rings| rings.iter().map(|ring| ring.bytes).sum());
        Ok(Self {
            heads: num_kv_heads as u64,
            sinks: spec.sinks_at(layer),
            seen,
            least: spec.hot,
            narrows: spec.narrow_at.is_some(),
            sides,
            map: map_bytes(if has_map || may_get { spec.key_map } else { KeyMap::Off }, head_dim) as u64,
            queries: if has_map { Learner::most_bytes(head_dim, group) as u64 } else { 0 },
            ring,
        })
    }

    /// Upper bound of the bytes of one head with `len` tokens, of which the newest `exact` are exact. A smooth one grows
    /// with the number of exact tokens, as if some were always encoded.
    fn bytes(&self, len: usize, exact: usize, smooth: bool) -> Bytes {
        if let Some(ring) = self.ring {
            return ring;
        }
        // Pages are evicted in full, and a rollback may need those before the window.
        let most = self.seen.saturating_add(ROLLBACK + PAGE_TOKENS - 2);
        let held = len.saturating_sub(self.sinks).min(most);
        let window = exact.min(self.seen).min(held);
        let of_side =
            |side: &Side| if !smooth && held.saturating_sub(self.least) < side.wait { held } else { window };
        let learns = if smooth { exact >= len } else { of_side(&self.sides[0]) == held };
        let map = if smooth || !learns { self.map } else { 0 };
        let queries = if learns { self.queries } else { 0 };
        let sides = self.sides.iter().map(|side| match of_side(side) {
            exact if exact == held && !smooth => self.rows(side, len, held),
            exact => self.side(side, (len, held, exact), smooth),
        });
        Bytes { maps: map.saturating_add(queries), ..sides.sum() }
    }

    /// The exact tokens of a side that has no others.
    fn rows(&self, side: &Side, len: usize, rows: usize) -> Bytes {
        let spare = if self.narrows { spare_rows(rows) } else { 0 };
        let rows = (self.sinks.min(len) + rows + spare) as u64;
        Bytes { exact: rows.saturating_mul(side.row), ..Bytes::default() }
    }

    /// A side of a head with `len` tokens, of which `held` lie after the sinks and the newest `exact` are exact.
    fn side(&self, side: &Side, (len, held, exact): (usize, usize, usize), smooth: bool) -> Bytes {
        // Tokens leave in fours, and as many rows may be spare.
        let late = if self.least < BATCH { 0 } else { BATCH - 1 };
        let rows = (exact + late).min(held);
        let spare = if self.narrows { spare_rows(rows).max(BATCH) } else { BATCH };
        let rows = (self.sinks.min(len) + rows + spare) as u64;
        // A page goes cold as a whole, and later where the window was longer a token ago.
        let late = PAGE_TOKENS - 1 + if self.narrows { PAGE_TOKENS } else { BATCH };
        let cold = |after: usize| held.saturating_sub(after.max(exact).saturating_add(late)) as u64;
        let saved = side.savings().map(|(after, saving)| cold(after).saturating_mul(saving));
        let coded = held - exact;
        // The last page is allocated in steps while there are few, and always where codes save nothing.
        let is_whole = side.excess == 0 && coded.div_ceil(PAGE_TOKENS) > MANY_PAGES;
        let step = if is_whole { PAGE_TOKENS } else { SLOT_STEP };
        let coded = if smooth { coded + step - 1 } else { coded.next_multiple_of(step) };
        let codes = (coded as u64).saturating_mul(side.page);
        let codes = codes.saturating_sub(saved.fold(0, u64::saturating_add)).div_ceil(PAGE_TOKENS as u64);
        let excess = side.excess.saturating_mul((held / PAGE_TOKENS + 1) as u64);
        let pages = len / PAGE_TOKENS + 1;
        Bytes {
            exact: rows.saturating_mul(side.row),
            codes: codes.saturating_add(excess).saturating_add(side.fixed),
            means: Means::most_bytes(side.mean_dim, pages, side.follows) as u64,
            maps: 0,
        }
    }
}

/// Keys or values of one KV head.
#[derive(Clone, Debug, PartialEq)]
struct Side {
    /// Bytes of an exact token.
    row: u64,
    /// Bytes of a warm page of codes with its structure, at most those of the exact tokens, and what is beyond.
    page: u64,
    excess: u64,
    /// The tiers, warm first: the age of their tokens, and the bytes of a page.
    tiers: Vec<(usize, u64)>,
    /// Bytes that do not depend on the number of pages.
    fixed: u64,
    /// Tokens beyond the window that wait for their mean or their map.
    wait: usize,
    /// Coordinates of a mean, or 0 if there is none, and true if it follows the tokens.
    mean_dim: usize,
    follows: bool,
}

impl Side {
    fn both(spec: &CacheSpec, layer: usize) -> Result<[Self; 2], CacheError> {
        let KvShape { head_dim, value_dim, .. } = spec.shape_at(layer);
        let (latent, codecs) = (spec.position_dim > 0, spec.codecs_at(layer));
        let dims = if latent { [value_dim, spec.position_dim] } else { [head_dim, value_dim] };
        let means = [spec.centring_of_keys(layer), spec.centring_of_values(layer)];
        let ids = [codecs.0, if latent { CodecId::F16 } else { codecs.1 }];
        let selection = spec.selection_bytes(layer)?
            + spec.summarised_dims(layer).iter().flatten().count() * CHUNK_HEADER;
        let tiers = tiers(spec, layer)?;
        let side = |side: usize| {
            let (dim, is_keys) = (dims[side], side == 0);
            let beside =
                CacheSpec::PAGE_HEADER_BYTES + size_of::<usize>() + if is_keys { selection } else { 0 };
            let tiers =
                tiers.iter().map(|(after, pages)| (*after, (pages.map_or(0, |it| it[side]) + beside) as u64));
            let tiers: Vec<_> = tiers.collect();
            let row = (dim * size_of::<u16>()) as u64;
            let page = tiers[0].1.min(row * PAGE_TOKENS as u64);
            let ahead = if ids[side].trellis().is_some() { BATCH * dim * size_of::<f32>() } else { 0 };
            let has_mean = means[side] != Centring::Off;
            let wait = if has_mean { MEAN_TOKENS } else { 0 };
            let wait = if spec.has_map(layer) { LEARN_TOKENS } else { wait };
            Self {
                row,
                page,
                excess: tiers[0].1 - page,
                tiers,
                // The header of the last page is there at once.
                fixed: (ahead + beside + if is_keys { 4 * selection } else { 0 }) as u64,
                wait: if is_keys { wait } else { 0 },
                mean_dim: if has_mean { dim } else { 0 },
                follows: is_keys && has_mean,
            }
        };
        Ok([side(0), side(1)])
    }

    /// The age of the tokens of each tier after the warm one, and the bytes that a page saves there.
    fn savings(&self) -> impl Iterator<Item = (usize, u64)> {
        let mut last = self.page;
        self.tiers[1..].iter().map(move |&(after, page)| {
            let saved = last.saturating_sub(page);
            last -= saved;
            (after, saved)
        })
    }
}

/// The age of the tokens of a tier, and the bytes of the blocks of a page of keys and of one of values. `None` for a
/// file.
type Tier = (usize, Option<[usize; 2]>);

/// The tiers of a layer, warm first.
fn tiers(spec: &CacheSpec, layer: usize) -> Result<Vec<Tier>, CacheError> {
    let warm = Ok((0, Some(spec.page_bytes(layer)?)));
    let colder = spec.cold.iter().map(|(after, cold)| {
        let pages = match *cold {
            Cold::Demote { key, value } => Some(spec.page_bytes_of(layer, (key, value))?),
            Cold::Spill(_) => None,
        };
        Ok((*after, pages))
    });
    std::iter::once(warm).chain(colder).collect()
}

/// What one side of a KV head of a ring takes when it is made.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ring {
    /// Tokens after the sinks.
    pub(super) tokens: usize,
    /// Exact rows after the sinks.
    pub(super) rows: usize,
    /// Pages of each tier.
    pub(super) pages: Vec<usize>,
    pub(super) bytes: Bytes,
}

impl Ring {
    /// Keys and values of a head of a layer. `None` without a ring.
    ///
    /// # Errors
    /// A head dim that a codec does not support.
    pub(super) fn both(spec: &CacheSpec, layer: usize) -> Result<Option<[Self; 2]>, CacheError> {
        let (Some(_), LayerKind::Sliding(window)) = (spec.ring, spec.kind(layer)) else { return Ok(None) };
        let (tiers, tokens) = (tiers(spec, layer)?, window + ROLLBACK);
        let sides = Side::both(spec, layer)?;
        let ring = |at: usize| {
            let side = &sides[at];
            // Keys wait for their first mean.
            let rows = spec.hot + side.wait + RING_PIECE + 2 * BATCH;
            let pages: Vec<_> =
                (0..tiers.len()).map(|tier| ring_pages(&tiers, tier, tokens - spec.hot, spec.hot)).collect();
            let of_page = |(pages, tier): (&usize, &Tier)| {
                let bytes = tier.1.map_or(0, |it| it[at]);
                pages * (bytes + CacheSpec::PAGE_HEADER_BYTES + 2 * size_of::<usize>())
            };
            let bytes = Bytes {
                exact: (spec.sinks_at(layer) + rows) as u64 * side.row,
                codes: pages.iter().zip(&tiers).map(of_page).sum::<usize>() as u64,
                means: Means::ring_bytes(side.mean_dim, side.follows) as u64,
                maps: 0,
            };
            Self { tokens, rows, pages, bytes }
        };
        Ok(Some([ring(0), ring(1)]))
    }
}

/// Number of pages of a tier that a ring needs for `tokens` encoded tokens, of which the newest has `hot` newer ones.
fn ring_pages(tiers: &[Tier], tier: usize, tokens: usize, hot: usize) -> usize {
    let begin = |tier: usize| match tiers.get(tier) {
        Some((0, _)) if tier == 0 => 0,
        Some((after, _)) => cold_age(*after, hot).saturating_sub(hot).min(tokens),
        None => tokens,
    };
    let span = begin(tier + 1) - begin(tier);
    if tiers[tier].1.is_none() || span == 0 {
        return 0;
    }
    // A page leaves when its last token does. It leaves a tier for the next one after its copy is made.
    let copy = usize::from(tiers.len() > 1);
    (span + PAGE_TOKENS - 1 + BATCH).div_ceil(PAGE_TOKENS) + copy
}
