//! The compressed KV cache of a sequence, and attention over it.
//!
//! ```text
//! append -> sinks   first tokens, f16 for ever
//!        -> hot     newest tokens, f16
//!             -> warm pages   encoded once, when a token leaves the hot window
//!                  -> cold pages   narrower codes, or a file
//! attend <- scores on codes, online softmax, values summed in the rotated domain, rotated back once
//! ```
//!
//! One cache holds one sequence. [`KvCache::fork`] makes another cache that shares its pages until one of
//! them writes. A [`Budget`] limits the memory of several caches together. Keys and values have separate
//! codecs, and layers may have their own ([`LayerPolicy`]). A layer sees all tokens, a window, or keeps
//! nothing ([`LayerKind`]). Attention reads codes directly. Only tokens of a chunk that some of its queries
//! see uncompressed are decoded, once each.
//!
//! **Centring.** Softmax ignores a constant added to all logits, so keys may be stored as k - mu. The logit
//! of an encoded key becomes `dot + <q, mu>`, exact next to those of uncompressed keys. The first page takes
//! the mean of the first 64 keys that leave the hot window; until then they wait, uncompressed. Whenever the
//! pages have doubled, the next page takes the mean of all keys before it. Centring rescues models whose key
//! bias dwarfs the signal.
//!
//! Values have one mean, that of the first 64, if it holds 45 % of their energy. They do not wait for it: with
//! the hot window as many are there when the first leave, or 16 at least. A result gets this mean times the
//! weight of the encoded tokens.
//!
//! **Failure.** A failed operation leaves the length and the contents of every head unchanged. Tokens that it
//! encoded stay encoded, unless the operation had 256 tokens or more. Memory whose size depends on the
//! caller's input can be refused ([`CacheError::Memory`]). Buffers of fixed size, a few megabytes per thread,
//! cannot.
//!
//! Other choices: an engine that places the tokens of many sequences itself uses [`crate::slots`]. A model
//! runner should depend only on [`crate::attention::AttentionCache`].

mod ahead;
mod append_with_queries;
mod attend_many;
mod blocks;
mod budget;
mod bytes;
pub(crate) mod chunks;
pub(crate) mod format;
mod head;
pub(crate) mod key_codecs;
mod layer;
pub(crate) mod life;
pub(crate) mod map;
pub(crate) mod mean_rule;
mod means;
mod meter;
mod norm_limits;
mod page;
mod pool;
mod prefill;
mod preset;
mod rows;
mod sample;
mod scratch;
mod select;
mod shapes;
mod side_of_head;
pub(crate) mod snapshot;
pub(crate) mod spec;
mod spill;
mod stats;
mod summaries;
mod take_up;
pub(crate) mod text;
pub(crate) mod tier;
mod token_lists;
pub(crate) mod vectors;
mod window;

pub use blocks::Encoded;
pub use budget::Budget;
pub use bytes::{Bytes, CacheSize};
pub use layer::{KvPair, LayerKind, LayerPolicy, LayerShape};
pub use life::PAGE_TOKENS;
pub use pool::{CachePool, Eviction, SequenceId};
pub use preset::{PRESETS, Preset};
pub use spec::{Arithmetic, CacheSpec, Centring, Cold, KeyMap};
pub use stats::{CacheStats, HeadStats};
pub use text::Policy;
pub use vectors::Floats;

use crate::attention::AttentionCache;
use crate::error::CacheError;
use crate::{memory, threads};
use bytes::Ring;
use head::{AttentionRule, Head};
use map::Learner;
use means::Means;
use norm_limits::coded_norms;
use rayon::prelude::*;
use rows::HalfRows;
use scratch::{HeadScratch, ScratchPool};
use side_of_head::SideOfHead;
use spill::SpillFile;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use summaries::Summaries;
use tier::Tiers;
use token_lists::Chosen;
use tqkv_core::KvShape;
use tqkv_simd::Level;
use vectors::Vectors;
use window::{Window, narrowing};

/// A head, its queries, and the room for their results.
type HeadWork<'a> = ((&'a Head, &'a [f32]), &'a mut [f32]);

/// Below this number of tokens to read, waking threads costs more than it saves.
const PARALLEL_TOKENS: usize = 2048;

/// A compressed KV cache. See the module documentation.
///
/// `append`, `attend_prefill` and `truncate` need exclusive access. Any number of threads may call `attend`
/// at once. With a map that is learnt from queries, all that attend to one position take part, in any order.
#[derive(Clone, Debug)]
pub struct KvCache {
    spec: CacheSpec,
    layers: Vec<Layer>,
    budget: Budget,
    scratch: ScratchPool,
}

#[derive(Clone, Debug)]
struct Layer {
    /// Largest accepted norms of keys and of values.
    max_norms: [f32; 2],
    /// One per KV head; empty if the layer keeps nothing.
    heads: Vec<Head>,
}

impl KvCache {
    /// Makes an empty cache without a memory limit.
    ///
    /// # Errors
    /// * The shape has zeros, or `num_heads` is not a multiple of `num_kv_heads`.
    /// * A codec does not support the head dim, or a page cannot be demoted to the cold codecs.
    /// * The spill folder cannot be written.
    /// * The machine lacks the instruction set of `TQKV_LEVEL`.
    /// * Threads cannot be started.
    pub fn new(spec: CacheSpec) -> Result<Self, CacheError> {
        Self::within(spec, &Budget::unlimited())
    }

    /// Makes an empty cache whose keys and values count against a budget, which other caches may share.
    ///
    /// # Errors
    /// The same as [`KvCache::new`].
    pub fn within(spec: CacheSpec, budget: &Budget) -> Result<Self, CacheError> {
        let mut cache = Self::without_memory(spec, budget)?;
        cache.hold()?;
        Ok(cache)
    }

    /// Makes an empty cache. The memory of a ring is still to be taken.
    fn without_memory(mut spec: CacheSpec, budget: &Budget) -> Result<Self, CacheError> {
        spec.check()?;
        threads::start()?;
        let level = spec.level.map_or_else(Level::detect, Ok).map_err(CacheError::Level)?;
        spec.level = Some(level);
        let file = match spec.cold.last() {
            Some((_, Cold::Spill(folder))) => {
                let refused = |error| CacheError::Spill(format!("{}: {error}", folder.display()));
                Some(SpillFile::create(folder).map_err(refused)?)
            }
            _ => None,
        };
        memory::check(Layer::bytes(&spec))?;
        let narrowing = narrowing(&spec)?;
        let mut layers = memory::list(spec.shape.num_layers)?;
        for layer in 0..spec.shape.num_layers {
            let window = Window::of(&spec, layer, narrowing.as_ref());
            layers.push(Layer::new(&spec, (layer, &window), level, file.as_ref(), budget)?);
        }
        Ok(Self { spec, layers, budget: budget.clone(), scratch: ScratchPool::default() })
    }

    /// Bytes that a ring has not taken yet. 0 for other caches.
    fn missing_bytes(&self) -> usize {
        self.heads().map(Head::missing_bytes).fold(0, usize::saturating_add)
    }

    /// Takes all memory of a ring, or what is missing of it. Does nothing for other caches.
    fn hold(&mut self) -> Result<(), CacheError> {
        if self.spec.ring.is_none() {
            return Ok(());
        }
        let missing = self.missing_bytes();
        memory::check(missing)?;
        let budget = self.budget.clone();
        let _room = budget.reserve(missing)?;
        self.layers.iter_mut().flat_map(|layer| &mut layer.heads).try_for_each(Head::hold)?;
        let first_heads =
            || self.layers.iter().enumerate().filter_map(|(i, layer)| Some((i, layer.heads.first()?)));
        self.scratch.hold(threads::running()?, |scratch| {
            let mut of_each = first_heads();
            of_each
                .try_for_each(|(layer, head)| head.hold_scratch(scratch, self.spec.shape_at(layer).group()))
        })
    }

    /// The spec of the cache, with the detected instruction set.
    pub fn spec(&self) -> &CacheSpec {
        &self.spec
    }

    /// The budget that the bytes of the cache count against.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    fn level(&self) -> Level {
        self.spec.level.unwrap_or(Level::Portable)
    }

    /// Number of tokens in the first layer that keeps any.
    pub fn len(&self) -> usize {
        self.layers.iter().find_map(|layer| layer.heads.first()).map_or(0, Head::len)
    }

    /// True if the cache holds no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes another cache with the same tokens. Full pages and rows are shared until one of the two writes
    /// to them, so a fork costs a few pointers per page.
    ///
    /// # Errors
    /// [`CacheError::Full`], or [`CacheError::Memory`].
    pub fn fork(&self) -> Result<Self, CacheError> {
        let lists = self.heads().map(Head::list_bytes).sum();
        let _room = self.budget.reserve(lists)?;
        memory::check(lists + Layer::bytes(&self.spec))?;
        let mut fork = self.clone();
        fork.hold()?;
        Ok(fork)
    }

    /// Appends tokens to one layer. `k` is `[n, num_kv_heads, head_dim]`, after RoPE. `v` is `[n,
    /// num_kv_heads, value_dim]`. In a cache of latent vectors ([`CacheSpec::mla`]), `k` holds the latent
    /// vector and the positional part of each token, and `v` is [`Floats::NONE`].
    ///
    /// Cost: each vector is copied to f16, and the same number of vectors leaves the hot window and is
    /// encoded.
    ///
    /// # Errors
    /// * The slices have the wrong length, or the layer keeps no keys and values.
    /// * A vector is not finite or is too large ([`CacheSpec::max_norms`]); the error names its token and KV
    ///   head, and the limit. A caller that must go on may scale that vector to the limit and append again.
    ///   The limit is that of the codec, so it does not hold for vectors that stay f16: sinks, and layers of
    ///   f16. Their values must be at most 65,504.
    /// * The budget is used up, or the spill file cannot be written.
    ///
    /// Nothing is appended in these cases.
    pub fn append<'a>(
        &mut self,
        layer: usize,
        k: impl Into<Floats<'a>>,
        v: impl Into<Floats<'a>>,
    ) -> Result<(), CacheError> {
        let (k, v) = (k.into(), v.into());
        let n = self.spec.check_tokens(layer, k, v)?;
        self.take_up(layer, n, k, v, false, |head, _, k, v, scratch| head.push(k, v, scratch))
    }

    /// Attends from the newest position. `q` is `[num_heads, head_dim]`, in f32, f16 or bf16. `out` is
    /// `[num_heads, value_dim]`. With [`CacheSpec::select`] it attends to the tokens that it picks, which is not
    /// attention to all.
    ///
    /// # Errors
    /// * The slices have the wrong length, or the layer has no tokens.
    /// * A query is not finite; the error names its layer and head.
    /// * A page cannot be read back from the spill file.
    pub fn attend<'a>(
        &self,
        layer: usize,
        q: impl Into<Floats<'a>>,
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        self.attend_to(layer, q.into(), None, out)
    }

    /// Attends from the newest position to some tokens only, those that an indexer of the model has found, for
    /// instance. `tokens` has one list per KV head, for all query heads that share it: positions from 0 on,
    /// ascending and each once. Each token is read in the form in which the cache holds it. Learned sinks take their
    /// weight as always, and without tokens the result is 0. `q` and `out` are as in [`KvCache::attend`], whose
    /// result has the same bits where the lists have all tokens.
    ///
    /// Cost: pages without such a token are not read, and of the others runs of 32 tokens that have one and single runs
    /// between these. A list with a token in each page takes 10 to 25 % more than attention to all.
    ///
    /// # Errors
    /// The same as [`KvCache::attend`], and [`CacheError::Selection`] for a list that is not ascending, that has a
    /// token which the newest position does not see, or for another number of lists.
    pub fn attend_selected<'a>(
        &self,
        layer: usize,
        q: impl Into<Floats<'a>>,
        tokens: &[&[u32]],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        self.attend_to(layer, q.into(), Some(tokens), out)
    }

    fn attend_to(
        &self,
        layer: usize,
        q: Floats<'_>,
        tokens: Option<&[&[u32]]>,
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let q = &*q.queries((self.spec.shape_at(layer), self.level()), layer, 1, out.len())?;
        let heads = self.heads_with_tokens(layer)?;
        if let Some(lists) = tokens {
            check_lists(layer, heads, lists)?;
        }
        let (group, outs) = (q.len() / heads.len(), out.len() / heads.len());
        let chosen = |head: usize| tokens.map_or(Chosen::All, |lists| Chosen::List(lists[head]));
        let work = |(i, ((head, q), out)): (usize, HeadWork<'_>)| {
            self.scratch.with(|scratch| head.attend(q, chosen(i), out, scratch))
        };
        let parts = heads.len() * heads[0].spans();
        let read: usize = heads.iter().enumerate().map(|(i, head)| chosen(i).count(head.len())).sum();
        if parts == 1 || read < PARALLEL_TOKENS || !threads::several() {
            let heads = heads.iter().zip(q.chunks_exact(group)).zip(out.chunks_exact_mut(outs));
            heads.enumerate().try_for_each(work)
        } else {
            threads::share(|| {
                let heads = heads.par_iter().zip(q.par_chunks_exact(group));
                heads.zip(out.par_chunks_exact_mut(outs)).enumerate().try_for_each(work)
            })
        }
    }

    /// Appends a chunk and attends causally with the queries of each token. `q` is `[n, num_heads,
    /// head_dim]`, `out` is `[n, num_heads, value_dim]`, `k` and `v` are as in [`KvCache::append`]. Every
    /// query sees each token in the form (f16 or encoded) that it would have token by token.
    ///
    /// | call | queries per head | for |
    /// | --- | --- | --- |
    /// | [`KvCache::append`], then [`KvCache::attend`] | one, at the newest position | a generated token |
    /// | [`KvCache::attend_prefill`] | n, causally | a prompt, or a chunk of one |
    /// | [`AttentionCache::attend_chunk`] | n, causally | code over any cache; all values are f32 |
    ///
    /// All three append n tokens. For a [`KvCache`], `attend_chunk` is this call. With n = 1 the result has
    /// the same bits as `append` and `attend`. For n >= 8, tokens that some query of the chunk sees
    /// uncompressed are decoded once, to f32. This includes the tokens of the chunk and holds for either
    /// [`CacheSpec::arithmetic`].
    ///
    /// # Errors
    /// The same as [`KvCache::append`] and [`KvCache::attend`]. Nothing is appended then.
    pub fn attend_prefill<'q, 'a>(
        &mut self,
        layer: usize,
        q: impl Into<Floats<'q>>,
        k: impl Into<Floats<'a>>,
        v: impl Into<Floats<'a>>,
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let (k, v) = (k.into(), v.into());
        let n = self.spec.check_tokens(layer, k, v)?;
        let shape = self.spec.shape_at(layer);
        let q = &*q.into().queries((shape, self.level()), layer, n, out.len())?;
        let KvShape { num_kv_heads: kv_heads, head_dim, value_dim, .. } = shape;
        let group = shape.group();
        let results = Mutex::new(out);
        let attend =
            |head: &mut Head, i: usize, k: Vectors<'_>, v: Vectors<'_>, scratch: &mut HeadScratch| {
                let q = gather(q, i, kv_heads, group * head_dim)?;
                let mut out = memory::filled(n * group * value_dim, 0.0)?;
                head.attend_chunk(&q, k, v, &mut out, scratch)?;
                let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                scatter(&out, i, kv_heads, group * value_dim, &mut results);
                Ok(())
            };
        self.take_up(layer, n, k, v, true, attend)
    }

    /// Logits of one query head over every token that the newest position sees, oldest first.
    ///
    /// # Errors
    /// The layer or head is out of range. The query has the wrong length or is not finite. The layer has no
    /// tokens. A page cannot be read back.
    pub fn scores<'a>(
        &self,
        layer: usize,
        head: usize,
        q: impl Into<Floats<'a>>,
    ) -> Result<Vec<f32>, CacheError> {
        let (q, shape) = (q.into(), self.spec.shape_at(layer));
        shape.check_query(layer, head, q.len())?;
        let q = &*q.finite((shape, self.level()), layer, head)?;
        let kv_head = &self.heads_with_tokens(layer)?[head / shape.group()];
        self.scratch.with(|scratch| kv_head.scores(q, scratch))
    }

    /// Decodes keys of some tokens of a KV head, as the cache holds them: `[n, head_dim]`. Attention does not
    /// need this call; it serves engines that must have decoded keys.
    ///
    /// # Errors
    /// The layer or KV head is out of range, the cache does not hold all of the tokens, or a page cannot be
    /// read back.
    pub fn keys(&self, layer: usize, kv_head: usize, tokens: Range<usize>) -> Result<Vec<f32>, CacheError> {
        self.read(layer, kv_head, tokens, |head| &head.keys)
    }

    /// Decodes values of some tokens: `[n, value_dim]`. See [`KvCache::keys`].
    ///
    /// # Errors
    /// The same as [`KvCache::keys`].
    pub fn values(&self, layer: usize, kv_head: usize, tokens: Range<usize>) -> Result<Vec<f32>, CacheError> {
        self.read(layer, kv_head, tokens, Head::values)
    }

    fn read(
        &self,
        layer: usize,
        kv_head: usize,
        tokens: Range<usize>,
        which: impl Fn(&Head) -> &SideOfHead,
    ) -> Result<Vec<f32>, CacheError> {
        let head = self.head(layer, kv_head)?;
        let side = which(head);
        let (sinks, live, len) = (side.sinks().len(), side.first_live(), head.len());
        let held = tokens.start <= tokens.end && tokens.end <= len;
        if !held || (tokens.start.max(sinks) < live.min(len) && tokens.end > sinks) {
            return Err(CacheError::NoTokens { start: tokens.start, end: tokens.end, first_live: live, len });
        }
        let mut out = memory::filled(tokens.len() * side.codec().dim(), 0.0)?;
        side.read(tokens.start, tokens.end, &mut out)?;
        Ok(out)
    }

    /// Drops the tokens from index `len` on, in every layer: the rollback of speculative decoding. A layer
    /// with fewer tokens stays as it is, so a step that failed in some layer is undone in all by one call. A
    /// `len` beyond the cache drops nothing, as in [`Vec::truncate`]; compare it with [`KvCache::len`] where
    /// that would be a fault.
    ///
    /// Tokens that were encoded stay encoded. Key means that begin after `len` are dropped.
    ///
    /// # Errors
    /// * With a sliding window, tokens that the shorter sequence would see may be gone. The cache keeps up to
    ///   256 tokens before the window, counted from the greatest length.
    /// * A page cannot be read back from the spill file.
    /// * The budget has no room for a copy of rows shared with a fork, or for a cold page that becomes warm.
    ///
    /// Nothing is dropped in these cases.
    pub fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        self.heads().try_for_each(|head| head.check_truncate(len))?;
        let growth =
            self.heads().map(|head| head.keys.truncate_growth(len) + head.other.truncate_growth(len)).sum();
        let budget = self.budget.clone();
        let _room = budget.reserve(growth)?;
        memory::check(growth)?;
        for head in self.layers.iter_mut().flat_map(|layer| &mut layer.heads) {
            head.keys.own_rows_from(len)?;
            head.other.own_rows_from(len)?;
        }
        cut(self.layers.iter_mut().flat_map(|layer| &mut layer.heads), len)
    }

    /// Empties the cache. Key means are learnt anew.
    pub fn reset(&mut self) {
        self.layers.iter_mut().flat_map(|layer| &mut layer.heads).for_each(Head::reset);
    }

    /// Token counts by tier, and bytes.
    pub fn stats(&self) -> CacheStats {
        CacheStats::of(self.heads())
    }

    /// Encoding statistics of each KV head of each layer.
    pub fn head_stats(&self) -> impl Iterator<Item = HeadStats> {
        self.layers.iter().enumerate().flat_map(|(layer, of)| {
            of.heads.iter().enumerate().map(move |(i, head)| HeadStats::of(layer, i, head))
        })
    }

    fn heads(&self) -> impl Iterator<Item = &Head> {
        self.layers.iter().flat_map(|layer| &layer.heads)
    }

    fn head(&self, layer: usize, kv_head: usize) -> Result<&Head, CacheError> {
        self.spec.shape.check_layer(layer)?;
        let heads = &self.layers[layer].heads;
        heads.get(kv_head).ok_or(CacheError::KvHead { layer, kv_head, num_kv_heads: heads.len() })
    }

    /// The heads of a layer; refuses a layer without tokens.
    fn heads_with_tokens(&self, layer: usize) -> Result<&[Head], CacheError> {
        let heads = &self.layers[layer].heads;
        match heads.first() {
            None => Err(CacheError::NoCache { layer }),
            Some(head) if head.len() == 0 => Err(CacheError::Empty { layer }),
            Some(_) => Ok(heads),
        }
    }
}

/// Refuses lists that do not fit the KV heads of a layer.
fn check_lists(layer: usize, heads: &[Head], lists: &[&[u32]]) -> Result<(), CacheError> {
    if lists.len() != heads.len() {
        return Err(CacheError::Selection(format!(
            "{} lists for layer {layer} are not valid: expected {}, one per KV head",
            lists.len(),
            heads.len()
        )));
    }
    for (kv_head, (head, list)) in heads.iter().zip(lists).enumerate() {
        let [(_, sinks), newest] = head.seen(head.len() - 1);
        token_lists::check(list, sinks, newest)
            .map_err(|why| CacheError::Selection(format!("layer {layer}, KV head {kv_head}: {why}")))?;
    }
    Ok(())
}

/// Drops the tokens from position `len` on in all heads. If a page cannot be read, no head changes.
fn cut<'a>(heads: impl IntoIterator<Item = &'a mut Head>, len: usize) -> Result<(), CacheError> {
    let heads: Vec<&mut Head> = heads.into_iter().collect();
    let plans = heads.iter().map(|head| head.plan_cut(len)).collect::<Result<Vec<_>, _>>()?;
    heads.into_iter().zip(plans).for_each(|(head, plan)| head.truncate(plan));
    Ok(())
}

impl Layer {
    fn new(
        spec: &CacheSpec,
        (layer, hot): (usize, &Window),
        level: Level,
        file: Option<&SpillFile>,
        budget: &Budget,
    ) -> Result<Self, CacheError> {
        let max_norms = coded_norms(spec, layer)?;
        let window = match spec.kind(layer) {
            LayerKind::None => return Ok(Self { max_norms, heads: Vec::new() }),
            LayerKind::Full => None,
            LayerKind::Sliding(window) => Some(window),
        };
        let tiers = |side| Tiers::new(spec, layer, side, level, file);
        let [keys, other] = spec.roles().map(tiers);
        let (keys, other) = (keys?, other?);
        let rings = Ring::both(spec, layer)?.map(|rings| rings.map(Arc::new));
        let (sinks, centring) = (spec.sinks_at(layer), spec.centring_of_keys(layer));
        let side = |tiers: &Tiers, means, which: usize| {
            let mut side = SideOfHead::new(tiers.clone(), (sinks, hot), means, budget);
            side.ring = rings.as_ref().map(|rings| rings[which].clone());
            side
        };
        let of_values = || Means::of_values(spec.centring_of_values(layer), max_norms[1], budget);
        let shape = spec.shape_at(layer);
        let KvShape { num_kv_heads, head_dim, .. } = shape;
        let rule = AttentionRule {
            window,
            select: spec.selects(layer),
            scale: spec.scale_at(layer),
            soft_cap: spec.soft_cap,
        };
        let learner = spec.has_map(layer).then(|| {
            let AttentionRule { scale, soft_cap, window, .. } = rule;
            let rule = map::WeightRule { scale, soft_cap, window, group: shape.group() };
            Learner::new(rule, head_dim, (sinks, spec.hot), spec.stores_quarters(layer), budget)
        });
        let summaries =
            |dim: Option<usize>| dim.map(|dim| Summaries::new(dim, spec.options, level, budget)).transpose();
        let [key_dim, position_dim] = spec.summarised_dims(layer);
        let (of_keys, of_positions) = (summaries(key_dim)?, summaries(position_dim)?);
        let made = (0..num_kv_heads).map(|i| {
            let mut keys = side(&keys, Means::of_keys(centring, max_norms[0], budget), 0);
            (keys.learner, keys.may_get_map) = (learner.clone(), spec.may_get_map(layer));
            keys.summaries = of_keys.clone();
            let mut other = side(&other, of_values(), 1);
            other.summaries = of_positions.clone();
            let sink_logits =
                spec.sink_logits_at(layer).chunks(shape.group()).nth(i).unwrap_or_default().to_vec();
            Head { keys, other, is_latent: spec.position_dim > 0, rule: rule.clone(), sink_logits }
        });
        Ok(Self { max_norms, heads: memory::collected(num_kv_heads, made)? })
    }

    /// Approximate bytes that all layers of an empty cache take.
    fn bytes(spec: &CacheSpec) -> usize {
        // Rows are allocated apart from the head, with the counters of their users.
        let head = size_of::<Head>() + 4 * (size_of::<HalfRows>() + 2 * size_of::<usize>());
        let of_layer = |layer| size_of::<Self>() + spec.shape_at(layer).num_kv_heads * head;
        let layers = (0..spec.shape.num_layers).map(of_layer).sum::<usize>();
        layers + size_of_val(spec.sink_logits.as_slice())
    }

    /// A layer with the same settings and no tokens.
    fn emptied(&self) -> Self {
        let mut layer = self.clone();
        layer.heads.iter_mut().for_each(Head::reset);
        layer
    }
}

impl AttentionCache for KvCache {
    /// The shape of all layers. With [`CacheSpec::layer_shapes`] those of the layers differ from it.
    fn shape(&self) -> KvShape {
        self.spec.shape
    }

    /// Calls [`KvCache::attend_prefill`], also for latent vectors.
    fn attend_chunk(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        self.attend_prefill(layer, q, k, v, out)
    }

    fn scores(&self, layer: usize, head: usize, q: &[f32]) -> Option<Result<Vec<f32>, CacheError>> {
        Some(self.scores(layer, head, q))
    }

    fn len(&self) -> usize {
        self.len()
    }

    fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        self.truncate(len)
    }

    fn fork(&self) -> Option<Result<Box<dyn AttentionCache>, CacheError>> {
        Some(self.fork().map(|fork| Box::new(fork) as _))
    }

    fn reset(&mut self) {
        self.reset();
    }

    fn allocated_bytes(&self) -> usize {
        self.stats().allocated_bytes
    }

    fn head_stats(&self) -> Vec<HeadStats> {
        self.head_stats().collect()
    }
}

/// Copies the rows of one head from `[n, heads, width]`.
fn gather(all: &[f32], head: usize, heads: usize, width: usize) -> Result<Vec<f32>, CacheError> {
    let rows = all.chunks_exact(heads * width).flat_map(|token| &token[head * width..(head + 1) * width]);
    memory::collected(all.len() / heads, rows.copied())
}

/// The inverse of [`gather`].
fn scatter(rows: &[f32], head: usize, heads: usize, width: usize, all: &mut [f32]) {
    for (token, row) in all.chunks_exact_mut(heads * width).zip(rows.chunks_exact(width)) {
        token[head * width..(head + 1) * width].copy_from_slice(row);
    }
}

#[cfg(test)]
pub(crate) mod tests;
