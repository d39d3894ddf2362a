//! [`Attention`]: the interface between a model and a cache. candle's own cache and ours implement it.

use anyhow::Result;
use candle_core::{D, DType, Device, Tensor};
use candle_nn::ops::softmax_last_dim;
use tqkv::cache::KvCache;

/// Tokens by which candle's cache grows.
const GROWTH: usize = 256;

/// The shape of a model, which the cache must know.
pub(crate) struct Shape {
    pub(crate) num_layers: usize,
    pub(crate) num_heads: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl Shape {
    /// Bytes of a token's keys and values in f16.
    pub(crate) fn f16_bytes(&self) -> usize {
        2 * 2 * self.num_layers * self.num_kv_heads * self.head_dim
    }
}

/// A cache that attends.
pub(crate) trait Attention {
    /// Appends the tokens of one layer and attends causally. `q` is f32 `[1, num_heads, tokens, head_dim]`.
    /// `k` and `v` are `[1, num_kv_heads, tokens, head_dim]`, keys after RoPE. The result is
    /// `[1, tokens, num_heads * head_dim]`.
    ///
    /// # Errors
    /// The cache cannot store the tokens.
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor>;

    /// Allocated bytes of keys and values.
    fn bytes(&self) -> usize;
}

impl Attention for KvCache {
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        // Our rows are token by token, as projections make them.
        let rows = |x: &Tensor| x.transpose(1, 2)?.flatten_all()?.to_vec1::<f32>();
        let (_, heads, tokens, head_dim) = q.dims4()?;
        let mut out = vec![0.0; heads * tokens * head_dim];
        self.attend_prefill(layer, &rows(q)?, &rows(k)?[..], &rows(v)?[..], &mut out)?;
        Ok(Tensor::from_vec(out, (1, tokens, heads * head_dim), &Device::Cpu)?)
    }

    fn bytes(&self) -> usize {
        self.stats().allocated_bytes
    }
}

/// candle's caches in f16, one per layer.
pub(crate) struct CandleCache(Vec<candle_nn::kv_cache::KvCache>);

impl CandleCache {
    pub(crate) fn new(shape: &Shape) -> Self {
        Self((0..shape.num_layers).map(|_| candle_nn::kv_cache::KvCache::new(2, GROWTH)).collect())
    }
}

impl Attention for CandleCache {
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let half = |x: &Tensor| x.to_dtype(DType::F16)?.contiguous();
        let (k, v) = self.0[layer].append(&half(k)?, &half(v)?)?;
        let wide = |x: &Tensor| x.to_dtype(DType::F32)?.squeeze(0);
        let (k, v) = (wide(&k)?, wide(&v)?);
        let (kv_heads, all, head_dim) = k.dims3()?;
        let (_, heads, tokens, _) = q.dims4()?;
        // Query heads that share a KV head form one matrix.
        let grouped = (kv_heads, heads / kv_heads * tokens, head_dim);
        let logits = (q.reshape(grouped)?.matmul(&k.transpose(1, 2)?)? / (head_dim as f64).sqrt())?;
        let logits = logits.reshape((heads, tokens, all))?.broadcast_add(&mask(tokens, all)?)?;
        let weights = softmax_last_dim(&logits)?.reshape((kv_heads, (), all))?;
        let out = weights.matmul(&v.contiguous()?)?.reshape((heads, tokens, head_dim))?;
        Ok(out.transpose(0, 1)?.contiguous()?.flatten_from(D::Minus2)?.unsqueeze(0)?)
    }

    fn bytes(&self) -> usize {
        let sides = self.0.iter().flat_map(|layer| [layer.k_cache(), layer.v_cache()]);
        sides
            .filter_map(|side| side.all_data().as_ref())
            .map(|x| x.elem_count() * x.dtype().size_in_bytes())
            .sum()
    }
}

/// Minus infinity for tokens later than the query's own: `[tokens, all]`.
fn mask(tokens: usize, all: usize) -> Result<Tensor> {
    let past = all - tokens;
    let sees = |i: usize| move |j: usize| if j <= past + i { 0.0 } else { f32::NEG_INFINITY };
    let mask: Vec<f32> = (0..tokens).flat_map(|i| (0..all).map(sees(i))).collect();
    Ok(Tensor::from_vec(mask, (tokens, all), &Device::Cpu)?)
}
