//! The rules of a token's life as counts. Pages in memory, rows and files do not occur here.

use super::exact::Exact;
use super::truth::{Held, Of, Rows, error, halves, loss};
use tqkv::cache::KeyMap;
use tqkv::cache::{CacheSpec, CacheStats, Centring, Cold, KvCache, LayerKind, PAGE_TOKENS};
use tqkv_core::{AnyCodec, CodecId};
use tqkv_tests::oracle::energy;

/// Tokens that have left a window and stay for a rollback.
const ROLLBACK: usize = 256;
/// Keys that teach a map.
const MEAN_TOKENS: usize = 64;
const LEARN_TOKENS: usize = 128;
/// Tokens that leave the hot window together.
const BATCH: usize = 4;

/// One side of the KV heads of a layer: keys, values, latent vectors or positional parts.
#[derive(Clone, Debug)]
struct Side {
    sinks: usize,
    hot: usize,
    /// The exact newest tokens of a layer at a length, if they depend on it.
    narrowing: Option<(CacheSpec, usize)>,
    /// Tokens that have left the hot window and wait for the mean or the map of keys.
    wait: usize,
    /// True if keys wait.
    learning: bool,
    len: usize,
    /// For each encoded token, the squared error that it may have, relative to its squared norm.
    errors: Vec<f64>,
    /// The codec of each tier, and its loss.
    tiers: Vec<(CodecId, f64)>,
    /// Tokens after which a page enters each tier after the first.
    after: Vec<usize>,
    /// Pages in each tier or in a colder one.
    cooled: Vec<usize>,
    evicted: usize,
    /// The exact encoded contents; `None` for centred keys.
    exact: Option<Exact>,
}

impl Side {
    fn new(spec: &CacheSpec, layer: usize, is_first: bool, rows: Rows) -> Self {
        let latent = spec.position_dim > 0;
        let (dim, other) = (spec.shape.head_dim, spec.shape.value_dim);
        let dim = if latent || !is_first { other } else { dim };
        let pick = |(key, value)| match (is_first, latent) {
            (true, _) => key,
            (false, true) => CodecId::F16,
            (false, false) => value,
        };
        let mut codecs = vec![pick(spec.codecs_at(layer))];
        for (_, cold) in &spec.cold {
            codecs.push(match *cold {
                Cold::Demote { key, value } => pick((key, value)),
                Cold::Spill(_) => codecs[codecs.len() - 1],
            });
        }
        let rows = if is_first { rows } else { Rows { shift: 0.0, ..rows } };
        let centred = is_first && !latent && spec.centring != Centring::Off && codecs[0] != CodecId::F16;
        let make = |&id: &CodecId| AnyCodec::new(id, dim, spec.options).unwrap();
        let exact = || Exact {
            rows,
            of: if is_first { Of::Key } else { Of::Value },
            layer,
            width: if is_first { spec.shape.head_dim } else { dim },
            codecs: codecs.iter().map(make).collect(),
            heads: vec![Vec::new(); spec.shape.num_kv_heads],
        };
        let even = spec.shape.head_dim.is_multiple_of(2);
        let has_map = spec.key_map == KeyMap::Pairs;
        let mapped = is_first && !latent && even && has_map && codecs[0].is_rotated();
        let wait = if mapped { LEARN_TOKENS } else { usize::from(centred) * MEAN_TOKENS };
        // Positional parts have no exact contents here. A map moves errors between coordinates.
        let is_told = !centred && !mapped && (is_first || !latent);
        let most = if mapped { 4.0 } else { 1.0 };
        Self {
            exact: is_told.then(exact),
            sinks: spec.sinks_at(layer),
            hot: spec.hot,
            narrowing: spec.narrow_at.map(|_| (spec.clone(), layer)),
            wait,
            learning: wait > 0,
            len: 0,
            errors: Vec::new(),
            tiers: codecs
                .iter()
                .map(|&id| (id, most * loss(id, dim, spec.options.scale_mode, rows)))
                .collect(),
            after: spec.cold.iter().map(|(after, _)| (*after).max(spec.hot + BATCH - 1)).collect(),
            cooled: vec![0; spec.cold.len()],
            evicted: 0,
        }
    }

    fn coded(&self) -> usize {
        self.errors.len()
    }

    fn sinks(&self) -> usize {
        self.sinks.min(self.len)
    }

    fn recent(&self) -> usize {
        self.len - self.sinks() - self.coded()
    }

    /// The first token after the sinks that is still in the cache.
    fn first_live(&self) -> usize {
        self.sinks + (self.evicted * PAGE_TOKENS).min(self.coded())
    }

    fn tier(&self, page: usize) -> usize {
        self.cooled.iter().filter(|&&cooled| page < cooled).count()
    }

    /// The exact newest tokens at a length.
    fn window(&self, len: usize) -> usize {
        let at = |(spec, layer): &(CacheSpec, usize)| spec.hot_at(*layer, len).unwrap();
        self.narrowing.as_ref().map_or(self.hot, at)
    }

    /// Takes the new tokens of a layer.
    fn push(&mut self, tokens: &[u64]) {
        self.len = tokens.len();
        let extra = self.recent().saturating_sub(self.window(self.len));
        if !self.learning || (self.recent().saturating_sub(self.hot) >= self.wait && extra >= BATCH) {
            self.learning = false;
            let leaving = if self.hot < BATCH { extra } else { extra / BATCH * BATCH };
            let first = self.sinks() + self.coded();
            if let Some(exact) = &mut self.exact {
                exact.push(&tokens[first..first + leaving]);
            }
            self.errors.resize(self.coded() + leaving, self.tiers[0].1);
        }
        for tier in 1..self.tiers.len() {
            let warm = self.after[tier - 1].max(self.window(self.len - 1) + BATCH - 1);
            let old = self.len.saturating_sub(self.sinks + warm);
            let due = old.min(self.coded()) / PAGE_TOKENS;
            for page in self.cooled[tier - 1]..due {
                self.recode(page * PAGE_TOKENS..(page + 1) * PAGE_TOKENS, tier - 1, tier);
            }
            self.cooled[tier - 1] = self.cooled[tier - 1].max(due);
        }
    }

    /// Adds the loss of tokens on the way from one tier to another.
    fn recode(&mut self, tokens: std::ops::Range<usize>, from: usize, to: usize) {
        if let Some(exact) = &mut self.exact {
            exact.recode(tokens.clone(), from, to);
        }
        let ((from, _), (to, loss)) = (self.tiers[from], self.tiers[to]);
        if from != to {
            self.errors[tokens].iter_mut().for_each(|error| *error += loss * (1.0 + *error));
        }
    }

    fn evict(&mut self, first: usize) {
        let end = first.saturating_sub(self.sinks).min(self.coded());
        self.evicted = self.evicted.max(end / PAGE_TOKENS);
    }

    fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        let coded = len.saturating_sub(self.sinks);
        if coded >= self.coded() {
            return;
        }
        let page = coded / PAGE_TOKENS;
        self.recode(page * PAGE_TOKENS..coded, self.tier(page), 0);
        self.errors.truncate(coded);
        if let Some(exact) = &mut self.exact {
            exact.truncate(coded);
        }
        self.cooled.iter_mut().for_each(|cooled| *cooled = (*cooled).min(page));
        if coded == 0 {
            (self.evicted, self.learning) = (0, self.wait > 0);
        }
    }
}

/// A layer that keeps keys and values.
#[derive(Clone, Debug)]
struct Layer {
    window: Option<usize>,
    /// Names of the tokens.
    tokens: Vec<u64>,
    sides: [Side; 2],
}

impl Layer {
    fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// A cache as its documentation describes it.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) spec: CacheSpec,
    pub(crate) rows: Rows,
    layers: Vec<Option<Layer>>,
}

impl Model {
    pub(crate) fn new(spec: &CacheSpec, rows: Rows) -> Self {
        let layer = |layer| {
            let window = match spec.kind(layer) {
                LayerKind::None => return None,
                LayerKind::Full => None,
                LayerKind::Sliding(window) => Some(window),
            };
            let sides = [true, false].map(|is_first| Side::new(spec, layer, is_first, rows));
            Some(Layer { window, tokens: Vec::new(), sides })
        };
        Self { spec: spec.clone(), rows, layers: (0..spec.shape.num_layers).map(layer).collect() }
    }

    pub(crate) fn keeps(&self, layer: usize) -> bool {
        self.layers[layer].is_some()
    }

    pub(crate) fn layers(&self) -> impl Iterator<Item = usize> {
        (0..self.layers.len()).filter(|&layer| self.keeps(layer))
    }

    /// Tokens of a layer.
    pub(crate) fn len(&self, layer: usize) -> usize {
        self.layers[layer].as_ref().map_or(0, |layer| layer.tokens.len())
    }

    /// Tokens of the first layer that keeps tokens.
    pub(crate) fn first_len(&self) -> usize {
        self.layers().next().map_or(0, |layer| self.len(layer))
    }

    /// Keys and values of tokens, as a layer's `append` takes them.
    pub(crate) fn inputs(&self, layer: usize, tokens: &[u64]) -> [Vec<f32>; 2] {
        let (shape, rows) = (self.spec.shape, self.rows);
        let all = |of, dim| {
            let heads = |token: u64| (0..shape.num_kv_heads).map(move |head| (token, head));
            let places = tokens.iter().copied().flat_map(heads);
            places.flat_map(|(token, head)| rows.row(of, token, layer, head, dim)).collect()
        };
        let values = if self.spec.position_dim > 0 { Vec::new() } else { all(Of::Value, shape.value_dim) };
        [all(Of::Key, shape.head_dim), values]
    }

    /// Queries of one position, `[num_heads, head_dim]`.
    pub(crate) fn queries(&self, layer: usize, token: u64) -> Vec<f32> {
        let shape = self.spec.shape;
        let heads = 0..shape.num_heads;
        heads.flat_map(|head| self.rows.row(Of::Query, token, layer, head, shape.head_dim)).collect()
    }

    pub(crate) fn push(&mut self, layer: usize, tokens: &[u64]) {
        let Some(layer) = &mut self.layers[layer] else { return };
        layer.tokens.extend(tokens);
        let first = layer.first_seen(layer.tokens.len()).saturating_sub(ROLLBACK);
        for side in &mut layer.sides {
            side.push(&layer.tokens);
            side.evict(first);
        }
    }

    /// Returns true if tokens that a shorter sequence would see are gone.
    pub(crate) fn refuses(&self, len: usize) -> bool {
        let latent = self.spec.position_dim > 0;
        self.layers.iter().flatten().any(|layer| {
            let summed = &layer.sides[usize::from(!latent)];
            let first = layer.first_seen(len.saturating_sub(1)).max(summed.sinks);
            len < layer.tokens.len() && len > summed.sinks && first < summed.first_live()
        })
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        for layer in self.layers.iter_mut().flatten() {
            layer.tokens.truncate(len);
            layer.sides.iter_mut().for_each(|side| side.truncate(len));
        }
    }

    pub(crate) fn reset(&mut self) {
        *self = Self::new(&self.spec, self.rows);
    }

    /// Checks the cache's counts of tokens by place.
    pub(crate) fn assert_stats(&self, stats: &CacheStats) {
        let Some(Layer { sides: [keys, other], .. }) = self.layers.iter().flatten().next() else { return };
        let evicted = (other.evicted * PAGE_TOKENS).min(other.coded());
        let cold = other.cooled.first().map_or(0, |pages| pages.saturating_sub(other.evicted) * PAGE_TOKENS);
        let mut want = *stats;
        (want.tokens, want.sinks, want.hot) = (other.len, other.sinks(), other.recent());
        want.waiting_keys = keys.recent().saturating_sub(other.recent());
        (want.warm, want.cold, want.evicted) = (other.coded() - cold - evicted, cold, evicted);
        assert_eq!(*stats, want);
    }

    /// The positions that the newest one sees: sinks, then the window.
    pub(crate) fn seen(&self, layer: usize) -> Vec<u32> {
        let Some(of) = &self.layers[layer] else { return Vec::new() };
        let (len, sinks) = (of.tokens.len(), self.spec.sinks_at(layer).min(of.tokens.len()));
        let first = of.first_seen(len.saturating_sub(1)).max(sinks);
        (0..sinks as u32).chain(first as u32..len as u32).collect()
    }

    /// The tokens of [`Model::seen`] of a KV head, as the cache holds them. They must be near the truth.
    pub(crate) fn held(&self, cache: &KvCache, layer: usize, head: usize) -> Held {
        let mut held = Held::default();
        let Some(of) = &self.layers[layer] else { return held };
        let (len, sinks) = (of.tokens.len(), self.spec.sinks_at(layer).min(of.tokens.len()));
        let first = of.first_seen(len.saturating_sub(1)).max(sinks);
        for part in [0..sinks, first..len] {
            let keys = cache.keys(layer, head, part.clone()).unwrap();
            let values = cache.values(layer, head, part.clone()).unwrap();
            self.assert_near(of, 0, (layer, head), part.start, &keys);
            if self.spec.position_dim == 0 {
                self.assert_near(of, 1, (layer, head), part.start, &values);
            }
            held.keys.extend(self.with_positions(of, (layer, head), part.start, keys));
            held.values.extend(values);
        }
        held
    }

    /// Appends the positional parts, which are f16, to latent vectors.
    fn with_positions(&self, of: &Layer, at: (usize, usize), first: usize, keys: Vec<f32>) -> Vec<f32> {
        let (dim, latent) = (self.spec.shape.head_dim, self.spec.shape.value_dim);
        if self.spec.position_dim == 0 {
            return keys;
        }
        let row = |(latents, &token): (&[f32], &u64)| {
            let whole = self.rows.row(Of::Key, token, at.0, at.1, dim);
            [latents, &halves(&whole[latent..])].concat()
        };
        keys.chunks_exact(latent).zip(&of.tokens[first..]).flat_map(row).collect()
    }

    /// Checks decoded rows from token `first` on against the tokens' own rows.
    fn assert_near(&self, of: &Layer, side: usize, at: (usize, usize), first: usize, rows: &[f32]) {
        let shape = self.spec.shape;
        let (kind, whole) = [(Of::Key, shape.head_dim), (Of::Value, shape.value_dim)][side];
        let dim = if self.spec.position_dim > 0 { shape.value_dim } else { whole };
        let side = &of.sides[side];
        let (mut shares, mut count) = (0.0, 0);
        for (position, row) in (first..).zip(rows.chunks_exact(dim)) {
            let truth = self.rows.row(kind, of.tokens[position], at.0, at.1, whole);
            let truth = &truth[..dim];
            let coded = position.checked_sub(side.sinks).and_then(|i| side.errors.get(i));
            let Some(&share) = coded else {
                assert_eq!(row, halves(truth), "token {position} of {at:?} is not encoded");
                continue;
            };
            if let Some(exact) = &side.exact {
                let token = position - side.sinks;
                let want = exact.row(at.1, token, side.tier(token / PAGE_TOKENS));
                let same = row.iter().zip(&want).all(|(got, want)| got.to_bits() == want.to_bits());
                assert!(same, "{kind:?} of token {position} of {at:?}: {row:?}, encoded it is {want:?}");
            }
            let spread = self.spread(kind, truth);
            let (error, most) = (error(row, truth), share * spread + 1e-9);
            // A coordinate beyond the last level may lose as much as several others.
            let bound = 9.0 * most + 0.05 * spread;
            assert!(error <= bound, "{kind:?} of token {position} of {at:?}: {error}, {most} expected");
            (shares, count) = (shares + error / most, count + 1);
        }
        // Each row has the same weight, independent of its length.
        let mean = shares / f64::from(count.max(1));
        assert!(count < 32 || mean <= 2.0, "{kind:?} of {at:?} lose {mean} times what their codecs lose");
    }

    /// The reference of a codec's loss: the vector's energy, or more if its mean may come from other vectors.
    fn spread(&self, kind: Of, truth: &[f32]) -> f64 {
        if kind == Of::Key && self.rows.spiky && self.spec.centring != Centring::Off {
            // The largest rows, twice as long.
            return 4.0 * 256.0 * 4.0 * truth.len() as f64;
        }
        energy(truth)
    }
}
