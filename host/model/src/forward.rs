//! The forward pass, cut at the cache: everything but attention is computed here, attention by the cache.

use crate::Model;
use crate::error::ModelError;
use crate::rope::RopeTable;
use crate::weights::Layer;
use tqkv::attention::AttentionCache;
use tqkv::error::CacheError;

/// Tokens run through all layers at once: bounds the memory of activations (a few times this many rows of
/// `intermediate_size`) without making the products small.
const MAX_CHUNK: usize = 1024;

/// Called after every layer with the layer, the first token of the rows within the call, and the residual stream
/// `[rows, hidden_size]`.
pub type LayerObserver<'a> = dyn FnMut(usize, usize, &[f32]) + 'a;

/// Attention of one layer: its index, then q, k, v and where the result goes, as of
/// [`AttentionCache::attend_chunk`].
type Attend<'a> = dyn FnMut(usize, &[f32], &[f32], &[f32], &mut [f32]) -> Result<(), CacheError> + 'a;

impl Model {
    /// Logits `[n, vocab_size]` of `tokens` at positions `start..start + n`, appended to the cache.
    ///
    /// `start` is normally the number of tokens already in the cache. Long inputs are appended in chunks of at most
    /// 1024 tokens. Where only some logits are wanted, [`Model::hidden`] and [`Model::logits`] avoid the others.
    ///
    /// # Errors
    /// As [`Model::hidden`].
    pub fn forward(
        &self,
        tokens: &[u32],
        start: usize,
        cache: &mut dyn AttentionCache,
    ) -> Result<Vec<f32>, ModelError> {
        Ok(self.logits(&self.hidden(tokens, start, cache, &mut |_, _, _| {})?))
    }

    /// The normalised last hidden states `[n, hidden_size]`, from which [`Model::logits`] makes logits.
    ///
    /// # Errors
    /// [`ModelError::EmptyPrompt`], [`ModelError::TokenOutOfRange`], [`ModelError::ContextExceeded`], or what the
    /// cache refuses. The cache is then as long as it was before the call, unless sliding layers have let go of what it saw
    /// then: that is the error, and only [`AttentionCache::reset`] helps.
    pub fn hidden(
        &self,
        tokens: &[u32],
        start: usize,
        cache: &mut dyn AttentionCache,
        observer: &mut LayerObserver<'_>,
    ) -> Result<Vec<f32>, ModelError> {
        self.check_tokens(tokens)?;
        self.check_context(start, tokens.len())?;
        let before = cache.len();
        let mut hidden = Vec::with_capacity(tokens.len() * self.config.hidden_size);
        for (i, chunk) in tokens.chunks(MAX_CHUNK).enumerate() {
            let offset = i * MAX_CHUNK;
            let first = start + offset;
            let table = self.rope.table(first..first + chunk.len());
            let mut attend = |layer: usize, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]| {
                cache.attend_chunk(layer, q, k, v, out)
            };
            let states =
                self.run_layers(chunk, &table, &mut attend, &mut |layer, x| observer(layer, offset, x));
            match states {
                Ok(x) => hidden.extend_from_slice(&x),
                Err(error) => {
                    cache.truncate(before)?;
                    return Err(error);
                }
            }
        }
        Ok(self.rms_norm(&hidden, &self.weights.norm))
    }

    /// One more token of each of n sequences, which share the matrix products: the logits `[n, vocab_size]`.
    ///
    /// Row i is token `tokens[i]` at `positions[i]` of the sequence that `caches[i]` holds, as if it ran through
    /// [`Model::forward`] alone; only the order of sums within a product may differ.
    ///
    /// # Errors
    /// [`ModelError::Sequences`] where the three are not of one length, and what [`Model::hidden`] refuses of any
    /// sequence. Every cache is then as long as it was before the call.
    pub fn step_many(
        &self,
        tokens: &[u32],
        positions: &[usize],
        caches: &mut [&mut dyn AttentionCache],
    ) -> Result<Vec<f32>, ModelError> {
        if positions.len() != tokens.len() || caches.len() != tokens.len() {
            return Err(ModelError::Sequences {
                tokens: tokens.len(),
                positions: positions.len(),
                caches: caches.len(),
            });
        }
        self.check_tokens(tokens)?;
        positions.iter().try_for_each(|&position| self.check_context(position, 1))?;
        let before: Vec<_> = caches.iter().map(|cache| cache.len()).collect();
        let table = self.rope.table(positions.iter().copied());
        let n = tokens.len();
        let mut attend = |layer: usize, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]| {
            let (queries, keys) = (q.len() / n, k.len() / n);
            let rows = q.chunks_exact(queries).zip(k.chunks_exact(keys).zip(v.chunks_exact(keys)));
            let rows = rows.zip(out.chunks_exact_mut(queries)).zip(caches.iter_mut());
            for (((q, (k, v)), out), cache) in rows {
                cache.attend_chunk(layer, q, k, v, out)?;
            }
            Ok(())
        };
        match self.run_layers(tokens, &table, &mut attend, &mut |_, _| {}) {
            Ok(x) => Ok(self.logits(&self.rms_norm(&x, &self.weights.norm))),
            Err(error) => {
                // All of them, also where one cannot be.
                let truncated: Vec<_> =
                    caches.iter_mut().zip(before).map(|(cache, len)| cache.truncate(len)).collect();
                truncated.into_iter().collect::<Result<(), _>>()?;
                Err(error)
            }
        }
    }

    /// Logits `[n, vocab_size]` of hidden states `[n, hidden_size]`; an incomplete last row is ignored.
    pub fn logits(&self, hidden: &[f32]) -> Vec<f32> {
        let whole = hidden.len() / self.config.hidden_size * self.config.hidden_size;
        if whole == 0 {
            return Vec::new();
        }
        self.weights.head.as_ref().unwrap_or(&self.weights.embedding).forward(&hidden[..whole])
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), ModelError> {
        if tokens.is_empty() {
            return Err(ModelError::EmptyPrompt);
        }
        let vocab_size = self.config.vocab_size;
        match tokens.iter().find(|t| **t as usize >= vocab_size) {
            Some(&token) => Err(ModelError::TokenOutOfRange { token, vocab_size }),
            None => Ok(()),
        }
    }

    fn check_context(&self, start: usize, new: usize) -> Result<(), ModelError> {
        let context = self.config.context;
        if start.saturating_add(new) > context {
            return Err(ModelError::ContextExceeded { prompt: start, new, context });
        }
        Ok(())
    }

    /// The residual stream `[n, hidden_size]` of tokens whose angles are in `table`.
    fn run_layers(
        &self,
        tokens: &[u32],
        table: &RopeTable,
        attend: &mut Attend<'_>,
        observer: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Vec<f32>, ModelError> {
        let mut x: Vec<f32> = Vec::with_capacity(tokens.len() * self.config.hidden_size);
        for &token in tokens {
            self.weights.embedding.push_row(token as usize, &mut x);
        }
        self.weights.layers.each(&mut |index, layer| {
            self.attention(index, layer, table, &mut x, attend)?;
            self.mlp(layer, &mut x);
            observer(index, &x);
            Ok(())
        })?;
        Ok(x)
    }

    fn attention(
        &self,
        index: usize,
        layer: &Layer,
        table: &RopeTable,
        x: &mut [f32],
        attend: &mut Attend<'_>,
    ) -> Result<(), ModelError> {
        let h = self.rms_norm(x, &layer.attention_norm);
        let (mut q, mut k, v) = (layer.q.forward(&h), layer.k.forward(&h), layer.v.forward(&h));
        if let Some((q_norm, k_norm)) = &layer.qk_norm {
            q = self.rms_norm(&q, q_norm);
            k = self.rms_norm(&k, k_norm);
        }
        table.apply(&mut q, self.config.num_heads);
        table.apply(&mut k, self.config.num_kv_heads);
        if let Some(bias) = &layer.key_bias {
            for key in k.chunks_exact_mut(bias.len()) {
                key.iter_mut().zip(bias).for_each(|(k, b)| *k += b);
            }
        }
        let mut attended = vec![0.0; q.len()];
        attend(index, &q, &k, &v, &mut attended)?;
        layer.o.forward_add(&attended, x);
        Ok(())
    }

    fn mlp(&self, layer: &Layer, x: &mut [f32]) {
        let h = self.rms_norm(x, &layer.mlp_norm);
        let (mut gate, up) = (layer.gate.forward(&h), layer.up.forward(&h));
        for (g, u) in gate.iter_mut().zip(&up) {
            *g = *g / (1.0 + (-*g).exp()) * u;
        }
        layer.down.forward_add(&gate, x);
    }

    /// RMSNorm of every run of `weight.len()` values: a token, or a head of one.
    fn rms_norm(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mut out = Vec::with_capacity(x.len());
        for row in x.chunks_exact(weight.len()) {
            let mean_square = row.iter().map(|v| v * v).sum::<f32>() / row.len() as f32;
            let scale = 1.0 / (mean_square + self.config.rms_norm_eps).sqrt();
            out.extend(row.iter().zip(weight).map(|(v, w)| v * scale * w));
        }
        out
    }
}
