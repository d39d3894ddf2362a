//! The KV cache: what every token of a sequence costs, and attention over it.
//!
//! ```text
//! append -> sinks   first tokens, f16 for ever
//!        -> hot     newest tokens, f16
//!             -> warm pages   encoded once, when a token leaves the hot window
//!                  -> cold pages   narrower codes, or a mapped file
//! attend <- scores on codes, online softmax, values summed in the rotated domain, rotated back once
//! ```
//!
//! One cache holds one sequence. Keys and values have codecs of their own. Nothing is decompressed
//! to attend, but for chunks of queries, where decoding each token once for all of them is cheaper.
//!
//! **Centring.** Softmax ignores a constant added to all logits, so keys may be stored as k - mu:
//! the logit of an encoded key becomes `dot + <q, mu>`, exact beside uncompressed ones. mu is the
//! mean of the first [`MEAN_TOKENS`] keys that leave the hot window (until then they wait,
//! uncompressed), and is then frozen. It rescues models whose key bias dwarfs the signal.
//!
//! When not to use it: an engine with its own paged allocator wants the blocks of `tqkv-core`; a
//! model runner should ask for no more than [`crate::attention::AttentionCache`].

mod ahead;
mod format;
mod head;
mod page;
mod prefill;
mod rows;
mod spec;
mod spill;
mod stats;
mod track;

pub use format::PAGE_TOKENS;
pub use spec::{AUTO_SHARE, Arithmetic, CacheSpec, Centring, Cold, MEAN_TOKENS};
pub use stats::CacheStats;

use crate::attention::AttentionCache;
use crate::error::CacheError;
use crate::threads;
use head::Head;
use page::ColdStore;
use rayon::prelude::*;
use spill::SpillFile;
use tqkv_core::{Chunk, CodecId, KvShape};
use tqkv_simd::Level;

/// A compressed KV cache; see the module documentation.
#[derive(Clone, Debug)]
pub struct KvCache {
    spec: CacheSpec,
    /// Largest |k| and |v| that may be appended.
    max_norms: [f32; 2],
    /// `[num_layers, num_kv_heads]`
    heads: Vec<Head>,
}

impl KvCache {
    /// An empty cache.
    ///
    /// # Errors
    /// A shape with zeros, query heads that do not divide among KV heads, a head dim that a codec
    /// does not support, cold codecs that the warm ones cannot become, a spill folder that cannot
    /// be written, a `TQKV_LEVEL` that the machine lacks, or threads that cannot be started.
    pub fn new(mut spec: CacheSpec) -> Result<Self, CacheError> {
        spec.check()?;
        threads::start()?;
        let level = spec.level.map_or_else(Level::detect, Ok).map_err(CacheError::Level)?;
        spec.level = Some(level);
        let codecs = spec.codecs_of(spec.key, spec.value)?;
        let cold = match &spec.cold {
            None => None,
            Some((_, Cold::Demote { key, value })) => {
                for (warm, cold) in [(spec.key, *key), (spec.value, *value)] {
                    check_demotion(warm, cold)?;
                }
                let (key, value) = spec.codecs_of(*key, *value)?;
                Some((ColdStore::Demote(Box::new(key)), ColdStore::Demote(Box::new(value))))
            }
            Some((_, Cold::Spill(folder))) => {
                let file = SpillFile::create(folder)
                    .map_err(|error| CacheError::Spill(format!("{}: {error}", folder.display())))?;
                Some((ColdStore::Spill(file.clone()), ColdStore::Spill(file)))
            }
        };
        let heads =
            vec![Head::new(&spec, level, codecs, cold); spec.shape.num_layers * spec.shape.num_kv_heads];
        Ok(Self { max_norms: spec.max_norms()?, spec, heads })
    }

    /// What the cache was built from, the instruction set included.
    pub fn spec(&self) -> &CacheSpec {
        &self.spec
    }

    /// Tokens in layer 0.
    pub fn len(&self) -> usize {
        self.heads[0].len()
    }

    /// Whether no token is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends tokens to one layer: `k`, `v` are `[n, num_kv_heads, head_dim]`, keys after RoPE.
    ///
    /// # Errors
    /// Wrong shapes, or a vector that is not finite or too large ([`CacheSpec::max_norms`]), named by token and KV head;
    /// nothing is appended then.
    pub fn append(&mut self, layer: usize, k: &[f32], v: &[f32]) -> Result<(), CacheError> {
        self.spec.shape.check_tokens(layer, k, v)?;
        self.check_vectors(layer, k, v)?;
        let KvShape { num_kv_heads: kv_heads, head_dim: dim, .. } = self.spec.shape;
        self.layer_mut(layer).par_iter_mut().enumerate().try_for_each(|(i, head)| {
            let pushed = head.push(&gather(k, i, kv_heads, dim), &gather(v, i, kv_heads, dim));
            let aged = pushed.and_then(|()| head.age());
            aged.map_err(|error| error.within(format_args!("layer {layer}, KV head {i}")))
        })?;
        self.encode_ahead(layer);
        Ok(())
    }

    /// Has the tokens that leave the hot window next encoded on spare threads, where that is dear.
    fn encode_ahead(&mut self, layer: usize) {
        for head in self.layer_mut(layer) {
            head.keys.encode_ahead();
            head.values.encode_ahead();
        }
    }

    /// Attends from the newest position: `q`, `out` are `[num_heads, head_dim]`, logits are scaled
    /// by 1/sqrt(head_dim). An empty cache gives zeros.
    ///
    /// # Errors
    /// Wrong shapes, or a query that is not finite, named by layer and head.
    pub fn attend(&self, layer: usize, q: &[f32], out: &mut [f32]) -> Result<(), CacheError> {
        self.spec.shape.check_queries(layer, 1, q, out)?;
        let group = self.group_values();
        self.layer(layer)
            .par_iter()
            .zip(q.par_chunks_exact(group))
            .zip(out.par_chunks_exact_mut(group))
            .for_each(|((head, q), out)| head.attend(q, out));
        Ok(())
    }

    /// Appends a chunk and attends causally with each token's queries: `q`, `out` are
    /// `[n, num_heads, head_dim]`. Every query sees each token in the form that it would have had token by
    /// token; chunks of eight and more decode each token once, to f32, whatever
    /// [`CacheSpec::arithmetic`] says.
    ///
    /// # Errors
    /// As [`KvCache::append`] and [`KvCache::attend`].
    pub fn attend_prefill(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        self.attend_all(Chunk::new(self.spec.shape, layer, q, k, v, out)?)
    }

    fn attend_all(&mut self, mut chunk: Chunk<'_>) -> Result<(), CacheError> {
        let (layer, q, k, v) = (chunk.layer(), chunk.q(), chunk.k(), chunk.v());
        self.check_vectors(layer, k, v)?;
        let KvShape { num_kv_heads: kv_heads, head_dim: dim, .. } = self.spec.shape;
        let group = self.group_values();
        let results: Vec<Vec<f32>> = self
            .layer_mut(layer)
            .par_iter_mut()
            .enumerate()
            .map(|(i, head)| {
                let q = gather(q, i, kv_heads, group);
                let (k, v) = (gather(k, i, kv_heads, dim), gather(v, i, kv_heads, dim));
                let mut out = vec![0.0; q.len()];
                let attended = head.attend_chunk(group / dim, &q, &k, &v, &mut out);
                attended
                    .map(|()| out)
                    .map_err(|error| error.within(format_args!("layer {layer}, KV head {i}")))
            })
            .collect::<Result<_, _>>()?;
        self.encode_ahead(layer);
        for (i, result) in results.iter().enumerate() {
            scatter(result, i, kv_heads, group, chunk.out());
        }
        Ok(())
    }

    /// Logits (scaled by 1/sqrt(head_dim)) of one query head over every token that the newest
    /// position sees, oldest first.
    ///
    /// # Errors
    /// Layer or head out of range, or a query of the wrong length or that is not finite.
    pub fn scores(&self, layer: usize, head: usize, q: &[f32]) -> Result<Vec<f32>, CacheError> {
        self.spec.shape.check_query(layer, head, q)?;
        Ok(self.layer(layer)[head / self.spec.shape.group()].scores(q))
    }

    /// Drops the tokens from index `len` on, in every layer: the rollback of speculative decoding.
    /// Tokens that were encoded stay encoded. The mean of centred keys stays.
    ///
    /// # Errors
    /// With a sliding window, tokens that the shorter sequence would see again may be gone; a
    /// rollback by up to 128 tokens always works.
    pub fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        self.heads.iter_mut().try_for_each(|head| head.truncate(len))
    }

    /// Back to the empty cache; key means are learnt anew.
    pub fn reset(&mut self) {
        self.heads.iter_mut().for_each(Head::reset);
    }

    /// What is where, and what it costs.
    pub fn stats(&self) -> CacheStats {
        CacheStats::of(&self.heads)
    }

    fn layer(&self, layer: usize) -> &[Head] {
        let kv_heads = self.spec.shape.num_kv_heads;
        &self.heads[layer * kv_heads..(layer + 1) * kv_heads]
    }

    fn layer_mut(&mut self, layer: usize) -> &mut [Head] {
        let kv_heads = self.spec.shape.num_kv_heads;
        &mut self.heads[layer * kv_heads..(layer + 1) * kv_heads]
    }

    /// Query values that share one KV head.
    fn group_values(&self) -> usize {
        self.spec.shape.group() * self.spec.shape.head_dim
    }

    /// Refuses vectors that cannot be stored.
    fn check_vectors(&self, layer: usize, k: &[f32], v: &[f32]) -> Result<(), CacheError> {
        let KvShape { num_kv_heads: kv_heads, head_dim: dim, .. } = self.spec.shape;
        for ((what, vectors), max_norm) in [("key", k), ("value", v)].into_iter().zip(self.max_norms) {
            for (i, vector) in vectors.chunks_exact(dim).enumerate() {
                let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
                if norm.is_nan() || norm > max_norm {
                    let (token, kv_head) = (self.layer(layer)[0].len() + i / kv_heads, i % kv_heads);
                    return Err(CacheError::BadVector { layer, what, token, kv_head, max_norm });
                }
            }
        }
        Ok(())
    }
}

impl AttentionCache for KvCache {
    fn shape(&self) -> KvShape {
        self.spec.shape
    }

    fn attend_checked(&mut self, chunk: Chunk<'_>) -> Result<(), CacheError> {
        self.attend_all(chunk)
    }

    fn len(&self) -> usize {
        self.len()
    }

    fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        self.truncate(len)
    }

    fn reset(&mut self) {
        self.reset();
    }

    fn allocated_bytes(&self) -> usize {
        self.stats().allocated_bytes
    }
}

/// Which codecs a page may be encoded again in.
///
/// Encoding again adds the errors of both codecs. From one trellis to the next narrower one that ratio is so bad (a
/// quarter of the error is there already) that the result is a fifth worse than the narrow codec alone.
fn check_demotion(warm: CodecId, cold: CodecId) -> Result<(), CacheError> {
    let trellis = |id: CodecId| id.trellis().is_some();
    let refused = if cold.is_rotated() != warm.is_rotated() {
        "both must be rotated or both unrotated"
    } else if trellis(warm) && trellis(cold) && cold.bits() + 1 == warm.bits() {
        "trellis codes lose a fifth when one bit is dropped; drop two, or stay"
    } else {
        return Ok(());
    };
    Err(CacheError::BadSpec(format!("{} pages cannot go cold as {}: {refused}", warm.name(), cold.name())))
}

/// Rows of one head out of `[n, heads, width]`.
fn gather(all: &[f32], head: usize, heads: usize, width: usize) -> Vec<f32> {
    all.chunks_exact(heads * width)
        .flat_map(|token| &token[head * width..(head + 1) * width])
        .copied()
        .collect()
}

/// The inverse of [`gather`].
fn scatter(rows: &[f32], head: usize, heads: usize, width: usize, all: &mut [f32]) {
    for (token, row) in all.chunks_exact_mut(heads * width).zip(rows.chunks_exact(width)) {
        token[head * width..(head + 1) * width].copy_from_slice(row);
    }
}
