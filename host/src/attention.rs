//! The seam between a model and a cache, and the exact f32 cache that serves as yardstick.
//!
//! [`AttentionCache`] is all that the model runner knows of a cache. [`DenseCache`] keeps every key and value as
//! f32 and computes plain attention: use it as the oracle in tests and as the f32 row of a comparison, not to save
//! memory.

use crate::error::CacheError;
use crate::matmul::{Mat, MatMut, Store, product};

/// One decoder layer's attention over a cache; the model runner knows nothing else of it.
pub trait AttentionCache {
    /// Appends n tokens of one layer and attends causally.
    ///
    /// `k`, `v`: `[n, num_kv_heads, head_dim]`, `k` after RoPE; `q`, `out`: `[n, num_heads, head_dim]`. Logits are
    /// scaled by 1/sqrt(head_dim). Query i sees everything appended before and tokens 0..=i of this chunk.
    ///
    /// # Errors
    /// A layer out of range, slices that do not fit each other, or whatever the cache cannot store.
    fn attend_chunk(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError>;

    /// Tokens in layer 0.
    fn len(&self) -> usize;

    /// Whether no token is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops every token of every layer from index `len` on; no effect on layers that are shorter.
    ///
    /// # Errors
    /// A cache with a sliding window may have lost tokens that the shorter sequence would see again.
    fn truncate(&mut self, len: usize) -> Result<(), CacheError>;

    /// Back to the empty cache.
    fn reset(&mut self);

    /// Bytes held for keys and values, spare capacity included.
    fn allocated_bytes(&self) -> usize;
}

/// Queries scored at once: a tile of scores against 1024 tokens is 256 KiB, inside a level 2 cache.
const QUERY_TILE: usize = 64;

/// Keys and values of one KV head of one layer, each `[len, head_dim]`.
#[derive(Debug, Clone, Default)]
struct Head {
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// The exact cache: plain f32 keys and values, attention by two matrix products and a softmax.
///
/// 8 * head_dim * num_kv_heads * num_layers bytes a token; the cost of a chunk is quadratic in the context as for
/// any exact attention.
#[derive(Debug, Clone)]
pub struct DenseCache {
    num_layers: usize,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    /// `[num_layers, num_kv_heads]`
    heads: Vec<Head>,
    scores: Vec<f32>,
}

impl DenseCache {
    /// An empty cache for `num_heads` query heads over `num_kv_heads` KV heads.
    ///
    /// # Errors
    /// [`CacheError::BadShape`] where a count is zero or `num_kv_heads` does not divide `num_heads`.
    pub fn new(
        num_layers: usize,
        num_heads: usize,
        num_kv_heads: usize,
        head_dim: usize,
    ) -> Result<Self, CacheError> {
        if num_layers == 0 || num_heads == 0 || num_kv_heads == 0 || head_dim == 0 {
            return Err(CacheError::BadShape(format!(
                "{num_layers} layers, {num_heads} heads, {num_kv_heads} KV heads, head_dim {head_dim}: all must be above 0"
            )));
        }
        if !num_heads.is_multiple_of(num_kv_heads) {
            return Err(CacheError::BadShape(format!(
                "{num_heads} query heads do not divide among {num_kv_heads} KV heads"
            )));
        }
        let heads = vec![Head::default(); num_layers * num_kv_heads];
        Ok(Self { num_layers, num_heads, num_kv_heads, head_dim, heads, scores: Vec::new() })
    }

    /// Keys of one KV head so far, `[len, head_dim]`; `None` out of range.
    pub fn keys(&self, layer: usize, kv_head: usize) -> Option<&[f32]> {
        self.head(layer, kv_head).map(|h| h.keys.as_slice())
    }

    /// Values of one KV head so far, `[len, head_dim]`; `None` out of range.
    pub fn values(&self, layer: usize, kv_head: usize) -> Option<&[f32]> {
        self.head(layer, kv_head).map(|h| h.values.as_slice())
    }

    fn head(&self, layer: usize, kv_head: usize) -> Option<&Head> {
        let inside = layer < self.num_layers && kv_head < self.num_kv_heads;
        inside.then(|| &self.heads[layer * self.num_kv_heads + kv_head])
    }

    /// Number of tokens in the chunk, with every length checked.
    fn chunk_len(
        &self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &[f32],
    ) -> Result<usize, CacheError> {
        if layer >= self.num_layers {
            return Err(CacheError::LayerOutOfRange { layer, num_layers: self.num_layers });
        }
        let per_token = self.num_kv_heads * self.head_dim;
        if !k.len().is_multiple_of(per_token) {
            return Err(CacheError::NotWholeTokens { got: k.len(), per_token });
        }
        let n = k.len() / per_token;
        let queries = n * self.num_heads * self.head_dim;
        for (what, got, expected) in
            [("v", v.len(), k.len()), ("q", q.len(), queries), ("out", out.len(), queries)]
        {
            if got != expected {
                return Err(CacheError::WrongLength { what, got, expected });
            }
        }
        Ok(n)
    }

    fn append(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        let first = layer * self.num_kv_heads;
        let heads = &mut self.heads[first..first + self.num_kv_heads];
        for (i, (key, value)) in k.chunks_exact(self.head_dim).zip(v.chunks_exact(self.head_dim)).enumerate()
        {
            let head = &mut heads[i % self.num_kv_heads];
            head.keys.extend_from_slice(key);
            head.values.extend_from_slice(value);
        }
    }
}

impl AttentionCache for DenseCache {
    fn attend_chunk(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let n = self.chunk_len(layer, q, k, v, out)?;
        if n == 0 {
            return Ok(());
        }
        self.append(layer, k, v);
        let (d, stride) = (self.head_dim, self.num_heads * self.head_dim);
        let group = self.num_heads / self.num_kv_heads;
        let scale = 1.0 / (d as f32).sqrt();
        let mut scores = std::mem::take(&mut self.scores);
        for head in 0..self.num_heads {
            let kv = &self.heads[layer * self.num_kv_heads + head / group];
            let before = kv.keys.len() / d - n;
            for first in (0..n).step_by(QUERY_TILE) {
                let tile = QUERY_TILE.min(n - first);
                // The last query of the tile sees the most; the others have the tail masked in the softmax.
                let seen = before + first + tile;
                let at = first * stride + head * d;
                scores.resize(tile * seen, 0.0);
                product(
                    &mut MatMut::new(&mut scores, tile, seen, seen),
                    Mat::new(&q[at..], tile, d, stride),
                    Mat::new(&kv.keys, seen, d, d).transposed(),
                    scale,
                    Store::Replace,
                );
                for (i, row) in scores.chunks_exact_mut(seen).enumerate() {
                    causal_softmax(row, before + first + i + 1);
                }
                product(
                    &mut MatMut::new(&mut out[at..], tile, d, stride),
                    Mat::new(&scores, tile, seen, seen),
                    Mat::new(&kv.values, seen, d, d),
                    1.0,
                    Store::Replace,
                );
            }
        }
        self.scores = scores;
        Ok(())
    }

    fn len(&self) -> usize {
        self.heads[0].keys.len() / self.head_dim
    }

    fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        let values = len.saturating_mul(self.head_dim);
        for head in &mut self.heads {
            head.keys.truncate(values);
            head.values.truncate(values);
        }
        Ok(())
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

/// Softmax over the first `visible` scores; the rest become weight 0.
fn causal_softmax(row: &mut [f32], visible: usize) {
    let (seen, hidden) = row.split_at_mut(visible);
    hidden.fill(0.0);
    let max = seen.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
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

    fn painted(len: usize, salt: usize) -> Vec<f32> {
        (0..len).map(|i| (((i * 37 + salt * 101) % 251) as f32 - 125.0) / 60.0).collect()
    }

    /// Textbook attention in f64 over the whole sequence.
    fn oracle(
        q: &[f32],
        k: &[f32],
        v: &[f32],
        n: usize,
        heads: usize,
        kv_heads: usize,
        d: usize,
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
                let sum: f64 = (0..=i).map(score).sum();
                for j in 0..=i {
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
            let want = oracle(&q, &k, &v, n, heads, kv_heads, d);
            for chunk in [1, one_tile_and_a_bit, n] {
                let mut cache = DenseCache::new(2, heads, kv_heads, d).unwrap();
                let mut got = vec![0.0; q.len()];
                for at in (0..n).step_by(chunk) {
                    let end = n.min(at + chunk);
                    let (qs, kvs) = (at * heads * d..end * heads * d, at * kv_heads * d..end * kv_heads * d);
                    cache.attend_chunk(1, &q[qs.clone()], &k[kvs.clone()], &v[kvs], &mut got[qs]).unwrap();
                }
                assert_eq!(cache.len(), 0, "layer 0 is untouched");
                for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                    assert!((f64::from(*g) - w).abs() < 1e-5, "chunk {chunk} value {i}: {g} against {w}");
                }
            }
        }
    }

    #[test]
    fn truncate_then_append_equals_never_having_appended() {
        let (h, d) = (2, 4);
        let mut long = DenseCache::new(1, h, h, d).unwrap();
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
        assert!(DenseCache::new(0, 1, 1, 4).unwrap_err().to_string().contains("above 0"));
        assert!(DenseCache::new(1, 3, 2, 4).unwrap_err().to_string().contains("3 query heads"));
        let mut c = DenseCache::new(1, 2, 1, 4).unwrap();
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
