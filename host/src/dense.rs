//! The exact f32 cache, as a yardstick.
//!
//! [`DenseCache`] keeps every key and value as f32 and computes plain attention. It is the oracle of tests
//! and the f32 row of comparisons. To save memory, use [`crate::cache::KvCache`].

use crate::attention::AttentionCache;
use crate::cache::{CacheSpec, LayerKind};
use crate::error::CacheError;
use crate::matmul::{Accumulate, Mat, MatMut, product};
use crate::memory;
use std::ops::Range;
use tqkv_core::{Chunk, KvError, KvShape};

/// Number of queries that are scored at once. A tile of scores against 1024 tokens is 256 KiB and fits a
/// level 2 cache.
const QUERY_TILE: usize = 64;

/// Keys (`[len, head_dim]`) and values (`[len, value_dim]`) of one KV head of one layer.
#[derive(Debug, Clone, Default)]
struct DenseHead {
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// The exact cache: plain f32 keys and values. Attention is two matrix products and a softmax.
///
/// It takes 4 * (head_dim + value_dim) * num_kv_heads * num_layers bytes per token. The cost of a chunk is
/// quadratic in the context, as in any exact attention.
#[derive(Debug, Clone)]
pub struct DenseCache {
    shape: KvShape,
    /// One kind per layer.
    kinds: Vec<LayerKind>,
    /// True if values are the first coordinates of keys.
    is_latent: bool,
    /// Scale of the logits.
    scale: f32,
    soft_cap: Option<f32>,
    /// `[num_layers, num_heads]`, or empty.
    sink_logits: Vec<f32>,
    /// `[num_layers, num_kv_heads]`
    heads: Vec<DenseHead>,
    scores: Vec<f32>,
}

impl DenseCache {
    /// Makes an empty cache that computes the attention of `spec`. It uses the shape, latent vectors, kinds
    /// of layers, scale and soft cap of the logits, and learned sinks. Settings of compression have no
    /// effect, nor do the first tokens that a compressed cache keeps besides a window. No token is evicted.
    ///
    /// # Errors
    /// An attention that no cache computes, or layers of several shapes.
    pub fn new(spec: &CacheSpec) -> Result<Self, CacheError> {
        spec.check_attention()?;
        if !spec.layer_shapes.is_empty() {
            return Err(CacheError::BadSpec("an exact cache has one shape of layers".into()));
        }
        let KvShape { num_layers, num_kv_heads, .. } = spec.shape;
        let kinds = (0..num_layers).map(|layer| spec.kind(layer));
        Ok(Self {
            shape: spec.shape,
            kinds: memory::collected(num_layers, kinds)?,
            is_latent: spec.position_dim > 0,
            scale: spec.scale_at(0),
            soft_cap: spec.soft_cap,
            sink_logits: spec.sink_logits.clone(),
            heads: memory::filled(num_layers.saturating_mul(num_kv_heads), DenseHead::default())?,
            scores: Vec::new(),
        })
    }

    /// Keys of one KV head, `[len, head_dim]`; `None` if the layer or head is out of range.
    pub fn keys(&self, layer: usize, kv_head: usize) -> Option<&[f32]> {
        self.head(layer, kv_head).map(|h| h.keys.as_slice())
    }

    /// Values of one KV head, `[len, value_dim]`; `None` if the layer or head is out of range.
    pub fn values(&self, layer: usize, kv_head: usize) -> Option<&[f32]> {
        self.head(layer, kv_head).map(|h| h.values.as_slice())
    }

    fn head(&self, layer: usize, kv_head: usize) -> Option<&DenseHead> {
        let KvShape { num_layers, num_kv_heads, .. } = self.shape;
        let inside = layer < num_layers && kv_head < num_kv_heads;
        inside.then(|| &self.heads[layer * num_kv_heads + kv_head])
    }

    /// Appends tokens to one layer without attention. `k` is `[n, num_kv_heads, head_dim]`, after RoPE. `v`
    /// is `[n, num_kv_heads, value_dim]`, or empty in a cache of latent vectors.
    ///
    /// # Errors
    /// A layer out of range, slices that do not fit each other, or a vector that is not finite; nothing is
    /// appended then.
    pub fn append(&mut self, layer: usize, k: &[f32], v: &[f32]) -> Result<(), CacheError> {
        let latent = self.latent_values(k, v)?;
        let v = latent.as_deref().unwrap_or(v);
        self.shape.check_tokens(layer, k.len(), v.len())?;
        self.push(layer, k, v)
    }

    /// Replaces keys and values of consecutive tokens of one KV head, `[n, head_dim]` and `[n, value_dim]`, from
    /// the token `first` on. It serves experiments with codecs that no cache stores.
    ///
    /// # Errors
    /// A layer, head or token out of range, or slices that do not fit each other; nothing changes then.
    pub fn replace(
        &mut self,
        (layer, kv_head): (usize, usize),
        first: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), CacheError> {
        let KvShape { num_kv_heads, head_dim, value_dim, .. } = self.shape;
        self.shape.check_layer(layer)?;
        if kv_head >= num_kv_heads {
            return Err(CacheError::KvHead { layer, kv_head, num_kv_heads });
        }
        let n = keys.len() / head_dim;
        let head = &mut self.heads[layer * num_kv_heads + kv_head];
        let (len, end) = (head.keys.len() / head_dim, first.saturating_add(n));
        if end > len {
            return Err(CacheError::NoTokens { start: first, end, first_live: 0, len });
        }
        for (what, got, expected) in
            [("keys", keys.len(), n * head_dim), ("values", values.len(), n * value_dim)]
        {
            if got != expected {
                return Err(KvError::Length { what, got, expected }.into());
            }
        }
        head.keys[first * head_dim..end * head_dim].copy_from_slice(keys);
        head.values[first * value_dim..end * value_dim].copy_from_slice(values);
        Ok(())
    }

    /// Copies the values out of latent vectors. `None` if values are passed separately.
    fn latent_values(&self, k: &[f32], v: &[f32]) -> Result<Option<Vec<f32>>, CacheError> {
        if !self.is_latent {
            return Ok(None);
        }
        if !v.is_empty() {
            let what = "v (latent vectors are keys and values)";
            return Err(KvError::Length { what, got: v.len(), expected: 0 }.into());
        }
        let KvShape { head_dim, value_dim, .. } = self.shape;
        let values = k.chunks_exact(head_dim).flat_map(|key| &key[..value_dim]).copied();
        memory::collected(k.len() / head_dim * value_dim, values).map(Some)
    }

    /// A vector that is not finite would reach every query of its tile, also those that do not see it,
    /// because the product with its weight of 0 is NaN.
    fn check_finite(&self, layer: usize, k: &[f32], v: &[f32]) -> Result<(), CacheError> {
        let KvShape { num_kv_heads, head_dim, value_dim, .. } = self.shape;
        for (what, vectors, dim) in [("key", k, head_dim), ("value", v, value_dim)] {
            let bad = vectors.chunks_exact(dim).position(|vector| !vector.iter().all(|x| x.is_finite()));
            if let Some(i) = bad {
                let held = self.heads[layer * num_kv_heads].keys.len() / head_dim;
                let (token, kv_head) = (held + i / num_kv_heads, i % num_kv_heads);
                return Err(CacheError::BadVector { layer, what, token, kv_head, max_norm: f32::MAX });
            }
        }
        Ok(())
    }

    fn push(&mut self, layer: usize, k: &[f32], v: &[f32]) -> Result<(), CacheError> {
        self.check_finite(layer, k, v)?;
        let first = layer * self.shape.num_kv_heads;
        let heads = &mut self.heads[first..first + self.shape.num_kv_heads];
        // Every head gets its room before any head takes a token.
        for head in &mut *heads {
            memory::reserve(&mut head.keys, k.len() / self.shape.num_kv_heads)?;
            memory::reserve(&mut head.values, v.len() / self.shape.num_kv_heads)?;
        }
        for (i, (key, value)) in
            k.chunks_exact(self.shape.head_dim).zip(v.chunks_exact(self.shape.value_dim)).enumerate()
        {
            let head = &mut heads[i % self.shape.num_kv_heads];
            head.keys.extend_from_slice(key);
            head.values.extend_from_slice(value);
        }
        Ok(())
    }
}

impl AttentionCache for DenseCache {
    fn shape(&self) -> KvShape {
        self.shape
    }

    /// Appends and attends. `v` is empty in a cache of latent vectors.
    fn attend_chunk(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let latent = self.latent_values(k, v)?;
        let mut chunk = Chunk::new(self.shape, layer, q, k, latent.as_deref().unwrap_or(v), out)?;
        let (n, layer, q) = (chunk.tokens(), chunk.layer(), chunk.q());
        let window = match self.kinds[layer] {
            LayerKind::None => return Err(CacheError::NoCache { layer }),
            LayerKind::Full => usize::MAX,
            LayerKind::Sliding(window) => window,
        };
        if n == 0 {
            return Ok(());
        }
        let before = self.heads[layer * self.shape.num_kv_heads].keys.len() / self.shape.head_dim;
        self.scores.clear();
        memory::reserve(&mut self.scores, QUERY_TILE.min(n) * (before + n))?;
        self.push(layer, chunk.k(), chunk.v())?;
        let out = chunk.out();
        let (shape, d, stride) = (self.shape, self.shape.head_dim, self.shape.query_values());
        let (width, out_stride) = (shape.value_dim, shape.out_values());
        let mut scores = std::mem::take(&mut self.scores);
        for head in 0..shape.num_heads {
            let kv = &self.heads[layer * shape.num_kv_heads + head / shape.group()];
            let sink = self.sink_logits.get(layer * shape.num_heads + head).copied();
            for first in (0..n).step_by(QUERY_TILE) {
                let tile = QUERY_TILE.min(n - first);
                // The range runs from the first token that the first query of the tile sees to the last one
                // that the last query sees. The softmax masks the rest of each row.
                let end = before + first + tile;
                let start = (before + first + 1).saturating_sub(window);
                let seen = end - start;
                let at = first * stride + head * d;
                scores.resize(tile * seen, 0.0);
                product(
                    &mut MatMut::new(&mut scores, tile, seen, seen),
                    Mat::new(&q[at..], tile, d, stride),
                    Mat::new(&kv.keys[start * d..], seen, d, d).transposed(),
                    self.scale,
                    Accumulate::Replace,
                );
                if let Some(cap) = self.soft_cap {
                    scores.iter_mut().for_each(|score| *score = cap * (*score / cap).tanh());
                }
                for (i, row) in scores.chunks_exact_mut(seen).enumerate() {
                    let next = before + first + i + 1;
                    masked_softmax(row, next.saturating_sub(window) - start..next - start, sink);
                }
                product(
                    &mut MatMut::new(&mut out[first * out_stride + head * width..], tile, width, out_stride),
                    Mat::new(&scores, tile, seen, seen),
                    Mat::new(&kv.values[start * width..], seen, width, width),
                    1.0,
                    Accumulate::Replace,
                );
            }
        }
        self.scores = scores;
        Ok(())
    }

    fn len(&self) -> usize {
        self.heads[0].keys.len() / self.shape.head_dim
    }

    fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        for head in &mut self.heads {
            head.keys.truncate(len.saturating_mul(self.shape.head_dim));
            head.values.truncate(len.saturating_mul(self.shape.value_dim));
        }
        Ok(())
    }

    fn fork(&self) -> Option<Result<Box<dyn AttentionCache>, CacheError>> {
        Some(Ok(Box::new(self.clone())))
    }

    fn reset(&mut self) {
        for head in &mut self.heads {
            head.keys.clear();
            head.values.clear();
        }
    }

    fn allocated_bytes(&self) -> usize {
        self.heads.iter().map(|h| (h.keys.capacity() + h.values.capacity()) * size_of::<f32>()).sum()
    }
}

/// Softmax over the scores of `visible` and a learned sink without a value. All other weights become 0.
fn masked_softmax(row: &mut [f32], visible: Range<usize>, sink: Option<f32>) {
    row[..visible.start].fill(0.0);
    row[visible.end..].fill(0.0);
    let seen = &mut row[visible];
    let max = seen.iter().copied().fold(sink.unwrap_or(f32::NEG_INFINITY), f32::max);
    let mut sum = sink.map_or(0.0, |sink| (sink - max).exp());
    for s in seen.iter_mut() {
        *s = (*s - max).exp();
        sum += *s;
    }
    for s in seen.iter_mut() {
        *s /= sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_that_is_not_finite_is_refused_and_changes_nothing() {
        let mut cache = DenseCache::new(&CacheSpec::new(1, 2, 2, 8)).unwrap();
        let ones = [1.0; 48];
        for (bad, at) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().zip([9, 20, 47]) {
            let (mut k, mut v, mut out) = (ones, ones, [0.0; 48]);
            [&mut k, &mut v][at % 2][at] = bad;
            let error = cache.attend_chunk(0, &ones, &k, &v, &mut out).unwrap_err().to_string();
            let expected = format!("of token {}, KV head {}: values must be finite", at / 16, at / 8 % 2);
            assert!(error.contains(&expected) && cache.len() == 0, "{error}");
        }
        cache.append(0, &ones, &ones).unwrap();
        assert!(
            cache.append(0, &ones, &[f32::NAN; 48]).unwrap_err().to_string().contains("value of token 3")
        );
    }

    fn painted(len: usize, salt: usize) -> Vec<f32> {
        (0..len).map(|i| (((i * 37 + salt * 101) % 251) as f32 - 125.0) / 60.0).collect()
    }

    /// Textbook attention in f64 over the whole sequence, or over its newest `window` tokens.
    fn oracle(
        [q, k, v]: [&[f32]; 3],
        n: usize,
        (heads, kv_heads, d): (usize, usize, usize),
        window: usize,
    ) -> Vec<f64> {
        let mut out = vec![0.0; n * heads * d];
        for i in 0..n {
            for h in 0..heads {
                let g = h / (heads / kv_heads);
                let score = |j: usize| -> f64 {
                    let dot: f64 = (0..d)
                        .map(|c| {
                            f64::from(q[(i * heads + h) * d + c]) * f64::from(k[(j * kv_heads + g) * d + c])
                        })
                        .sum();
                    (dot / (d as f64).sqrt()).exp()
                };
                let seen = (i + 1).saturating_sub(window)..=i;
                let sum: f64 = seen.clone().map(score).sum();
                for j in seen {
                    let w = score(j) / sum;
                    for c in 0..d {
                        out[(i * heads + h) * d + c] += w * f64::from(v[(j * kv_heads + g) * d + c]);
                    }
                }
            }
        }
        out
    }

    #[test]
    fn any_chunking_equals_the_f64_oracle() {
        let one_tile_and_a_bit = QUERY_TILE + 3;
        for (heads, kv_heads, d) in [(1, 1, 8), (4, 2, 16), (6, 1, 12)] {
            let n = 2 * one_tile_and_a_bit;
            let (q, k, v) =
                (painted(n * heads * d, 1), painted(n * kv_heads * d, 2), painted(n * kv_heads * d, 3));
            let windows = [usize::MAX, 1, 7, QUERY_TILE + 1].into_iter();
            for (window, chunk) in windows.flat_map(|w| [1, one_tile_and_a_bit, n].map(|chunk| (w, chunk))) {
                let want = oracle([&q, &k, &v], n, (heads, kv_heads, d), window);
                let kinds = vec![LayerKind::Full, LayerKind::Sliding(window)];
                let spec = CacheSpec::new(2, heads, kv_heads, d).kinds(kinds);
                let mut cache = DenseCache::new(&spec).unwrap();
                let mut got = vec![0.0; q.len()];
                for at in (0..n).step_by(chunk) {
                    let end = n.min(at + chunk);
                    let (qs, kvs) = (at * heads * d..end * heads * d, at * kv_heads * d..end * kv_heads * d);
                    cache.attend_chunk(1, &q[qs.clone()], &k[kvs.clone()], &v[kvs], &mut got[qs]).unwrap();
                }
                assert_eq!(cache.len(), 0, "layer 0 is untouched");
                for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                    assert!((f64::from(*g) - w).abs() < 1e-5, "{window}, {chunk}, {i}: {g} {w}");
                }
            }
        }
    }

    /// Compares the attention settings of a spec with a plain computation of one query over three tokens.
    #[test]
    fn factor_soft_cap_learned_sinks_and_latent_vectors_are_those_of_the_spec() {
        let (q, k) = (painted(2 * 6, 1), painted(3 * 6, 2));
        let (scale, cap, sinks) = (0.7f32, 1.5f32, [0.3f32, -2.0]);
        let spec = CacheSpec::mla(1, 2, 4, 2).scale(scale).soft_cap(cap).sink_logits(sinks.to_vec());
        let mut cache = DenseCache::new(&spec).unwrap();
        let mut out = [0.0; 2 * 4];
        cache.attend_chunk(0, &[0.0; 24], &k[..12], &[], &mut [0.0; 16]).unwrap();
        cache.attend_chunk(0, &q, &k[12..], &[], &mut out).unwrap();
        assert_eq!((cache.len(), cache.values(0, 0).unwrap().len()), (3, 12));
        for (head, query) in q.chunks_exact(6).enumerate() {
            let weight = |key: &[f32]| {
                let dot: f32 = query.iter().zip(key).map(|(a, b)| a * b).sum();
                (cap * (scale * dot / cap).tanh()).exp()
            };
            let sum: f32 = sinks[head].exp() + k.chunks_exact(6).map(weight).sum::<f32>();
            for (i, got) in out[head * 4..][..4].iter().enumerate() {
                let want: f32 = k.chunks_exact(6).map(|key| weight(key) / sum * key[i]).sum();
                assert!((got - want).abs() < 1e-5, "head {head}, {i}: {got} {want}");
            }
        }
        let error = cache.attend_chunk(0, &q, &k[12..], &k[..4], &mut out).unwrap_err().to_string();
        assert!(error.contains("latent vectors are keys and values"), "{error}");
        let error = DenseCache::new(&spec.soft_cap(-1.0)).unwrap_err().to_string();
        assert!(error.contains("a soft cap must be finite and above 0"), "{error}");
    }

    #[test]
    fn truncate_then_append_equals_never_having_appended() {
        let (h, d) = (2, 4);
        let mut long = DenseCache::new(&CacheSpec::new(1, h, h, d)).unwrap();
        let mut short = long.clone();
        let x = painted(3 * h * d, 5);
        let y = painted(h * d, 9);
        let (mut a, mut b) = (vec![0.0; h * d], vec![0.0; h * d]);
        long.attend_chunk(0, &x, &x, &x, &mut vec![0.0; x.len()]).unwrap();
        long.truncate(2).unwrap();
        assert_eq!(long.len(), 2);
        let two = &x[..2 * h * d];
        short.attend_chunk(0, two, two, two, &mut vec![0.0; two.len()]).unwrap();
        long.attend_chunk(0, &y, &y, &y, &mut a).unwrap();
        short.attend_chunk(0, &y, &y, &y, &mut b).unwrap();
        assert_eq!(a, b);
        assert!(long.allocated_bytes() >= 3 * 2 * h * d * 4);
        long.reset();
        assert!(long.is_empty());
    }

    #[test]
    fn bad_shapes_are_named() {
        assert!(DenseCache::new(&CacheSpec::new(0, 1, 1, 4)).unwrap_err().to_string().contains("above 0"));
        assert!(
            DenseCache::new(&CacheSpec::new(1, 3, 2, 4)).unwrap_err().to_string().contains("3 query heads")
        );
        let kinds = |kinds: Vec<LayerKind>| {
            DenseCache::new(&CacheSpec::new(1, 1, 1, 4).kinds(kinds)).unwrap_err().to_string()
        };
        assert!(kinds(vec![LayerKind::Full; 2]).contains("2 kinds for 1 layers"));
        assert!(kinds(vec![LayerKind::Sliding(0)]).contains("window of 0 tokens"));
        let mut none =
            DenseCache::new(&CacheSpec::new(2, 1, 1, 4).kinds(vec![LayerKind::None, LayerKind::Full]))
                .unwrap();
        let error = none.attend_chunk(0, &[0.0; 4], &[0.0; 4], &[0.0; 4], &mut [0.0; 4]).unwrap_err();
        assert!(matches!(error, CacheError::NoCache { layer: 0 }), "{error}");
        let mut c = DenseCache::new(&CacheSpec::new(1, 2, 1, 4)).unwrap();
        let mut out = [0.0; 8];
        let (q, k) = ([0.0; 8], [0.0; 4]);
        let mut error = |layer, q: &[f32], k: &[f32], v: &[f32]| {
            c.attend_chunk(layer, q, k, v, &mut out).unwrap_err().to_string()
        };
        assert_eq!(error(1, &q, &k, &k), "layer 1 is out of range: the cache has 1 layers");
        assert_eq!(
            error(0, &q, &k[..3], &k),
            "k has 3 values, which is not a whole number of tokens of 4 values"
        );
        assert_eq!(error(0, &q, &k, &k[..3]), "v has 3 values, expected 4");
        assert_eq!(error(0, &q[..4], &k, &k), "q has 4 values, expected 8");
        assert_eq!(c.len(), 0, "a refused chunk leaves nothing behind");
        assert!(c.keys(1, 0).is_none() && c.values(0, 1).is_none());
    }
}
