//! [`ModelAttention`]: the interface between a model and the keys and values of several sequences. candle's own
//! caches and our cache of slots implement it.

use anyhow::{Context, Result};
use candle_core::{D, DType, Device, Tensor};
use candle_nn::kv_cache::KvCache;
use candle_nn::ops::softmax_last_dim;
use std::collections::HashMap;
use tqkv::cache::CacheSpec;
use tqkv::slots::{Mask, SlotCache};

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

/// Keys and values of several sequences. A step is a number of new tokens for each of some sequences; its
/// tensors have the tokens of the first sequence, then those of the next.
pub(crate) trait ModelAttention {
    /// Begins a step: pairs of a sequence and its number of new tokens. A sequence that is not known yet begins.
    /// Returns the positions of the tokens.
    ///
    /// # Errors
    /// There is no room for the tokens.
    fn begin(&mut self, step: &[(usize, usize)]) -> Result<Vec<usize>>;

    /// Stores the step's tokens of one layer and attends causally within each sequence. `q` is f32
    /// `[1, num_heads, tokens, head_dim]`. `k` and `v` are `[1, num_kv_heads, tokens, head_dim]`, keys after
    /// RoPE. The result is `[1, tokens, num_heads * head_dim]`.
    ///
    /// # Errors
    /// The cache cannot store the tokens.
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor>;

    /// Ends a sequence. Its memory is free for others.
    ///
    /// # Errors
    /// The errors of the cache.
    fn end(&mut self, sequence: usize) -> Result<()>;

    /// Allocated bytes of keys and values.
    fn bytes(&self) -> usize;
}

/// All sequences in one cache of slots.
pub(crate) struct Slots {
    cache: SlotCache,
    free: Vec<usize>,
    /// The slots of each sequence in the order of its tokens.
    sequences: HashMap<usize, Vec<usize>>,
    /// The step: what its queries see, and slots and positions of its tokens.
    mask: Mask,
    slots: Vec<usize>,
    positions: Vec<usize>,
}

impl Slots {
    /// # Errors
    /// The spec or the number of slots is not valid.
    pub(crate) fn new(spec: CacheSpec, slots: usize) -> Result<Self> {
        Ok(Self {
            cache: SlotCache::new(spec, slots)?,
            free: (0..slots).rev().collect(),
            sequences: HashMap::new(),
            mask: Mask::new(slots),
            slots: Vec::new(),
            positions: Vec::new(),
        })
    }
}

impl ModelAttention for Slots {
    fn begin(&mut self, step: &[(usize, usize)]) -> Result<Vec<usize>> {
        self.mask.clear();
        self.slots.clear();
        self.positions.clear();
        for &(sequence, tokens) in step {
            let slots = self.sequences.entry(sequence).or_default();
            for _ in 0..tokens {
                let slot = self.free.pop().context("no slot is free")?;
                self.positions.push(slots.len());
                self.slots.push(slot);
                slots.push(slot);
            }
            self.mask.causal(slots, tokens)?;
        }
        Ok(self.positions.clone())
    }

    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        // Our rows are token by token, as projections make them.
        let rows = |x: &Tensor| x.transpose(1, 2)?.flatten_all()?.to_vec1::<f32>();
        let (_, heads, tokens, head_dim) = q.dims4()?;
        let mut out = vec![0.0; heads * tokens * head_dim];
        self.cache.write(layer, &self.slots, &self.positions, &rows(k)?[..], &rows(v)?[..])?;
        self.cache.attend(layer, &rows(q)?, &self.mask, &mut out)?;
        Ok(Tensor::from_vec(out, (1, tokens, heads * head_dim), &Device::Cpu)?)
    }

    fn end(&mut self, sequence: usize) -> Result<()> {
        let slots = self.sequences.remove(&sequence).unwrap_or_default();
        self.cache.forget(&slots)?;
        self.free.extend(slots);
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.cache.allocated_bytes()
    }
}

/// candle's caches in f16: for each sequence one per layer.
pub(crate) struct CandleCaches {
    num_layers: usize,
    sequences: HashMap<usize, Vec<KvCache>>,
    step: Vec<(usize, usize)>,
}

impl CandleCaches {
    pub(crate) fn new(shape: &Shape) -> Self {
        Self { num_layers: shape.num_layers, sequences: HashMap::new(), step: Vec::new() }
    }
}

impl ModelAttention for CandleCaches {
    fn begin(&mut self, step: &[(usize, usize)]) -> Result<Vec<usize>> {
        self.step = step.to_vec();
        let mut positions = Vec::new();
        for &(sequence, tokens) in step {
            let new = || (0..self.num_layers).map(|_| KvCache::new(2, GROWTH)).collect();
            let held = self.sequences.entry(sequence).or_insert_with(new)[0].current_seq_len();
            positions.extend(held..held + tokens);
        }
        Ok(positions)
    }

    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let (mut first, mut outs) = (0, Vec::new());
        for (sequence, tokens) in &self.step {
            let cache = self.sequences.get_mut(sequence).context("a sequence without a cache")?;
            let of = |x: &Tensor| x.narrow(2, first, *tokens);
            outs.push(attend(&mut cache[layer], &of(q)?, &of(k)?, &of(v)?)?);
            first += tokens;
        }
        Ok(Tensor::cat(&outs, 1)?)
    }

    fn end(&mut self, sequence: usize) -> Result<()> {
        self.sequences.remove(&sequence);
        Ok(())
    }

    fn bytes(&self) -> usize {
        let layers = self.sequences.values().flatten();
        let sides = layers.flat_map(|layer| [layer.k_cache(), layer.v_cache()]);
        sides
            .filter_map(|side| side.all_data().as_ref())
            .map(|x| x.elem_count() * x.dtype().size_in_bytes())
            .sum()
    }
}

/// Appends tokens of one sequence to candle's cache of a layer, and attends.
fn attend(cache: &mut KvCache, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let half = |x: &Tensor| x.to_dtype(DType::F16)?.contiguous();
    let (k, v) = cache.append(&half(k)?, &half(v)?)?;
    let wide = |x: &Tensor| x.to_dtype(DType::F32)?.squeeze(0);
    let (k, v) = (wide(&k)?, wide(&v)?);
    let (kv_heads, all, head_dim) = k.dims3()?;
    let (_, heads, tokens, _) = q.dims4()?;
    // Query heads that share a KV head form one matrix.
    let grouped = (kv_heads, heads / kv_heads * tokens, head_dim);
    let logits = (q.contiguous()?.reshape(grouped)?.matmul(&k.transpose(1, 2)?)? / (head_dim as f64).sqrt())?;
    let logits = logits.reshape((heads, tokens, all))?.broadcast_add(&mask(tokens, all)?)?;
    let weights = softmax_last_dim(&logits)?.reshape((kv_heads, (), all))?;
    let out = weights.matmul(&v.contiguous()?)?.reshape((heads, tokens, head_dim))?;
    Ok(out.transpose(0, 1)?.contiguous()?.flatten_from(D::Minus2)?.unsqueeze(0)?)
}

/// Minus infinity for tokens later than the query's own: `[tokens, all]`.
fn mask(tokens: usize, all: usize) -> Result<Tensor> {
    let past = all - tokens;
    let sees = |i: usize| move |j: usize| if j <= past + i { 0.0 } else { f32::NEG_INFINITY };
    let mask: Vec<f32> = (0..tokens).flat_map(|i| (0..all).map(sees(i))).collect();
    Ok(Tensor::from_vec(mask, (tokens, all), &Device::Cpu)?)
}
