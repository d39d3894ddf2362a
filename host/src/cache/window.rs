//! How many of the newest tokens of a layer stay exact.
//!
//! This is the number of [`CacheSpec::hot`]. With [`CacheSpec::narrow_at`] it is as many as leave the cache within a
//! number of bytes, and a function of the number of tokens alone. So codes do not depend on how tokens were appended,
//! cut or restored. It is the longest window whose bytes, by an upper bound of what all layers of that length hold, are
//! within the limit. The bound grows with the window and with the tokens, so what has left the window stays outside.

use super::layer::LayerKind;
use super::life::{BATCH, PAGE_TOKENS, ROLLBACK, leaving};
use super::map::{Learner, map_bytes};
use super::means::Means;
use super::page::MANY_PAGES;
use super::spec::{CacheSpec, Centring, Cold, KeyMap, MOST_TOKENS};
use super::summaries::CHUNK_HEADER;
use crate::error::CacheError;
use std::sync::Arc;
use tqkv_core::{CodecId, KvShape};

/// Rows of a window of some length that may be spare, so that few appends move it in memory.
fn spare(rows: usize) -> usize {
    (rows / 16).min(32)
}

/// The newest tokens of a layer that stay exact.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// [`CacheSpec::hot`].
    least: usize,
    /// Tokens that queries see.
    most: usize,
    narrowing: Option<Arc<Narrowing>>,
}

impl Window {
    pub(super) fn of(spec: &CacheSpec, layer: usize, narrowing: Option<&Arc<Narrowing>>) -> Self {
        let most = match spec.kind(layer) {
            LayerKind::Sliding(window) => window,
            LayerKind::Full | LayerKind::None => usize::MAX,
        };
        Self { least: spec.hot, most, narrowing: narrowing.cloned() }
    }

    /// Fewest tokens of a full window. Those that wait for a mean or a map are counted from it.
    pub(super) fn least(&self) -> usize {
        self.least
    }

    /// Number of newest tokens that stay exact at a length of `len` tokens.
    pub(super) fn at(&self, len: usize) -> usize {
        let window = self.narrowing.as_ref().map_or(0, |narrowing| narrowing.window(len));
        window.min(self.most).max(self.least)
    }

    /// Number of the oldest of `held` exact tokens that leave at a length of `len` tokens, if none leaves before
    /// `wait` are beyond the least window.
    pub(super) fn leaving(&self, held: usize, len: usize, wait: usize) -> usize {
        if held.saturating_sub(self.least) < wait {
            return 0;
        }
        leaving(self.least, held.saturating_sub(self.at(len)))
    }

    /// Spare rows that this many rows may have.
    pub(super) fn spare(&self, rows: usize) -> usize {
        self.narrowing.as_ref().map_or(0, |_| spare(rows))
    }

    /// Number of newest tokens whose pages are in no colder tier at a length of `len` tokens. A page that is older
    /// was full before its newest token came, so that a chunk of queries can be parted there.
    pub(super) fn warm_tokens(&self, len: usize) -> usize {
        self.at(len.saturating_sub(1)) + BATCH - 1
    }

    /// First length from `from` on at which the first `tokens` tokens may go cold.
    pub(super) fn cools_at(&self, from: usize, tokens: usize) -> usize {
        let is_old = |len: usize| len >= tokens.saturating_add(self.warm_tokens(len));
        let (mut young, mut old) = (from, tokens.saturating_add(self.warm_tokens(from)).max(from));
        if is_old(from) {
            return from;
        }
        // The window only shrinks.
        while old - young > 1 {
            let middle = young + (old - young) / 2;
            if is_old(middle) { old = middle } else { young = middle }
        }
        old
    }
}

/// The limit of a cache in bytes, and what its layers take.
#[derive(Debug)]
pub(super) struct Narrowing {
    /// In the units of [`Part::bytes`].
    limit: u64,
    least: usize,
    /// Most tokens that are all exact.
    whole: usize,
    parts: Vec<Part>,
}

impl Narrowing {
    /// The narrowing of a spec that has it.
    ///
    /// # Errors
    /// A head dim that a codec does not support.
    pub(super) fn of(spec: &CacheSpec) -> Result<Option<Self>, CacheError> {
        let Some(bytes) = spec.narrow_at else { return Ok(None) };
        let mut parts: Vec<Part> = Vec::new();
        for layer in (0..spec.shape.num_layers).filter(|&layer| spec.kind(layer) != LayerKind::None) {
            let part = Part::of(spec, layer)?;
            // Kinds of layers alternate in models, if they differ.
            match parts
                .iter_mut()
                .rev()
                .take(8)
                .find(|other| part == Part { heads: part.heads, ..(*other).clone() })
            {
                Some(other) => other.heads += part.heads,
                None => parts.push(part),
            }
        }
        let limit = units(bytes);
        let mut narrowing = Self { limit, least: spec.hot, whole: 0, parts };
        narrowing.whole = last(0, MOST_TOKENS, |tokens| narrowing.fits(tokens, tokens, true));
        Ok(Some(narrowing))
    }

    /// The window of all layers at a length of `len` tokens.
    fn window(&self, len: usize) -> usize {
        if len <= self.whole {
            return self.whole;
        }
        last(self.least, self.whole, |exact| self.fits(len, exact, false))
    }

    fn fits(&self, len: usize, exact: usize, learns: bool) -> bool {
        let bytes = self.parts.iter().map(|part| {
            let queries = if learns { units(part.queries) } else { 0 };
            part.bytes(len, exact).saturating_add(queries).saturating_mul(part.heads)
        });
        bytes.fold(0, u64::saturating_add) <= self.limit
    }
}

impl CacheSpec {
    /// Keeps all tokens f16 until keys and values of all layers take `bytes` bytes. From then on the oldest are encoded,
    /// as many as keep the cache within the limit, until [`CacheSpec::hot`] tokens are left in f16. From then on it
    /// grows by its codes, and holds what it holds without this setting.
    ///
    /// The limit holds after each step, when all layers have the same number of tokens. Keys wait for their mean (64
    /// beyond [`CacheSpec::hot`]) or for a map (128) whatever the limit, so one that is smaller than these is exceeded
    /// until they leave, by no more than the cache holds without this setting. How many tokens are encoded
    /// depends on their number alone. A fork copies the f16 tokens of a layer when it first appends to it.
    #[must_use]
    pub fn narrow_at(mut self, bytes: usize) -> Self {
        self.narrow_at = Some(bytes);
        self
    }

    /// Number of newest tokens of a layer that stay f16 when it has `tokens` tokens. This is [`CacheSpec::hot`], or with
    /// [`CacheSpec::narrow_at`] all of them until the limit is reached.
    ///
    /// # Errors
    /// A head dim that a codec does not support.
    pub fn hot_at(&self, layer: usize, tokens: usize) -> Result<usize, CacheError> {
        let narrowing = Narrowing::of(self)?.map(Arc::new);
        Ok(Window::of(self, layer, narrowing.as_ref()).at(tokens).min(tokens.max(self.hot)))
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

/// Bytes times the tokens of a page, so that nothing is rounded.
fn units(bytes: usize) -> u64 {
    (bytes as u64).saturating_mul(PAGE_TOKENS as u64)
}

/// KV heads that take the same bytes.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    heads: u64,
    sinks: usize,
    /// Tokens that queries see, and that are held behind the sinks.
    seen: usize,
    held: usize,
    /// Bytes of an exact token.
    row: usize,
    /// Bytes of a page of codes with its structure and, if they are selected, with its means. At most those of the
    /// exact tokens.
    page: usize,
    /// Bytes of a page beyond that.
    excess: usize,
    /// Age of the tokens of each tier behind the warm one, and bytes that a page saves there.
    tiers: Vec<(usize, usize)>,
    /// Bytes of the queries that wait for a map.
    queries: usize,
    /// Dims of the means of keys and of values; 0 for those that have none.
    means: [usize; 2],
    map: (KeyMap, usize),
    /// Bytes beside pages whatever their number.
    fixed: usize,
}

impl Part {
    fn of(spec: &CacheSpec, layer: usize) -> Result<Self, CacheError> {
        let shape = spec.shape_at(layer);
        let KvShape { head_dim, value_dim, num_kv_heads, .. } = shape;
        let dims = [head_dim, if spec.position_dim > 0 { 0 } else { value_dim }];
        let row = dims.iter().sum::<usize>() * size_of::<u16>();
        let selection = spec.selection_bytes(layer)?;
        let summaries = spec.summarised_dims(layer).iter().flatten().count();
        let of_selection = selection + summaries * CHUNK_HEADER;
        let lists = 2 * (CacheSpec::PAGE_HEADER_BYTES + size_of::<usize>()) + of_selection;
        let of_pages =
            |codecs| Ok::<_, CacheError>(spec.page_bytes_of(layer, codecs)?.iter().sum::<usize>() + lists);
        let (key, value) = spec.codecs_at(layer);
        let all = of_pages((key, value))?;
        let page = all.min(row * PAGE_TOKENS);
        let (mut tiers, mut last) = (Vec::new(), page);
        for (after, cold) in &spec.cold {
            let next = match *cold {
                Cold::Demote { key, value } => of_pages((key, value))?,
                Cold::Spill(_) => lists,
            };
            tiers.push((*after, last.saturating_sub(next)));
            last = last.min(next);
        }
        let (seen, held) = match spec.kind(layer) {
            LayerKind::Sliding(window) => (window, window.saturating_add(ROLLBACK + 2 * PAGE_TOKENS)),
            LayerKind::Full | LayerKind::None => (usize::MAX, usize::MAX),
        };
        let ahead = |id: CodecId, dim: usize| {
            if id.trellis().is_some() { BATCH * dim * size_of::<f32>() } else { 0 }
        };
        let (has_map, may_get) = (spec.has_map(layer), spec.may_get_map(layer));
        Ok(Self {
            heads: num_kv_heads as u64,
            sinks: spec.sinks_at(layer),
            seen,
            held,
            row,
            page,
            excess: all - page,
            tiers,
            queries: if has_map { Learner::most_bytes(head_dim, shape.group()) } else { 0 },
            means: if spec.centring == Centring::Off { [0; 2] } else { dims },
            map: (if has_map || may_get { spec.key_map } else { KeyMap::Off }, head_dim),
            fixed: ahead(key, dims[0]) + ahead(value, dims[1]) + 4 * of_selection,
        })
    }

    /// Upper bound of the bytes of `len` tokens of which the newest `exact` are exact, in [`units`].
    fn bytes(&self, len: usize, exact: usize) -> u64 {
        let sinks = self.sinks.min(len);
        let held = (len - sinks).min(self.held);
        let exact = exact.min(self.seen).min(held);
        // Tokens leave in fours.
        let rows = (exact + BATCH - 1).min(held);
        let rows = sinks + rows + spare(rows).max(BATCH);
        let saved = self.tiers.iter().map(|&(after, saving)| {
            // A page goes cold as a whole, and later where the window was longer a token ago.
            let cold = held.saturating_sub(after.max(exact).saturating_add(2 * PAGE_TOKENS - 1));
            (cold as u64).saturating_mul(saving as u64)
        });
        let codes = ((held - exact) as u64).saturating_mul(self.page as u64);
        let codes = codes.saturating_sub(saved.fold(0, u64::saturating_add));
        units(rows)
            .saturating_mul(self.row as u64)
            .saturating_add(codes)
            .saturating_add(units(self.beside(held)))
    }

    /// Bytes of `held` tokens that do not depend on the window.
    fn beside(&self, held: usize) -> usize {
        let pages = held / PAGE_TOKENS + 1;
        // The last page is allocated in steps while there are few.
        let last = if pages > MANY_PAGES { self.page } else { self.page / 2 };
        let ([key, value], (key_map, dim)) = (self.means, self.map);
        let means = Means::most_bytes(key, pages, true) + Means::most_bytes(value, 1, false);
        let all = last + means + map_bytes(key_map, dim) + self.fixed;
        all.saturating_add(self.excess.saturating_mul(pages))
    }
}
