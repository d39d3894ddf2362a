//! The forward pass. The model computes everything but attention, and the cache computes attention.

use crate::Model;
use crate::error::ModelError;
use crate::norm::rms_norm;
use crate::rope::RopeTable;
use tqkv::attention::AttentionCache;
use tqkv::error::CacheError;

/// Tokens that run through all layers at once. This bounds the memory of activations to a few times this many
/// rows of `intermediate_size`, and keeps the products large.
pub(crate) const MAX_CHUNK: usize = 1024;

/// Called after every layer with the layer, the index of the first row within the call, and the residual
/// stream `[rows, hidden_size]`.
pub type LayerObserver<'a> = dyn FnMut(usize, usize, &[f32]) + 'a;

/// Attention of one layer: its index, then q, k, v and the output, as in [`AttentionCache::attend_chunk`].
type Attend<'a> = dyn FnMut(usize, &[f32], &[f32], &[f32], &mut [f32]) -> Result<(), CacheError> + 'a;

/// The angles of a run of positions, for all layers.
struct RopeAngles {
    all: RopeTable,
    /// Angles of the layers with a window, if they have a RoPE of their own.
    local: Option<RopeTable>,
}

impl Model {
    /// Logits `[n, vocab_size]` of `tokens` at positions `start..start + n`. The tokens are appended to the
    /// cache.
    ///
    /// `start` is normally the number of tokens in the cache. Long inputs are appended in chunks of at most
    /// 1024 tokens. If only some logits are needed, [`Model::hidden`] and [`Model::logits`] compute only
    /// those.
    ///
    /// # Errors
    /// The errors of [`Model::hidden`].
    pub fn forward(
        &self,
        tokens: &[u32],
        start: usize,
        cache: &mut dyn AttentionCache,
    ) -> Result<Vec<f32>, ModelError> {
        Ok(self.logits(&self.hidden(tokens, start, cache, &mut |_, _, _| {})?))
    }

    /// The normalised last hidden states `[n, hidden_size]`, the inputs of [`Model::logits`].
    ///
    /// # Errors
    /// [`ModelError::EmptyPrompt`], [`ModelError::TokenOutOfRange`], [`ModelError::ContextExceeded`], or an
    /// error of the cache. The cache is then truncated to its length before the call. If sliding layers have
    /// already dropped tokens that it needs, the truncation fails with its own error, and only
    /// [`AttentionCache::reset`] helps.
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
            let tables = self.tables(first..first + chunk.len());
            let mut attend = |layer: usize, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]| {
                cache.attend_chunk(layer, q, k, v, out)
            };
            let states =
                self.run_layers(chunk, &tables, &mut attend, &mut |layer, x| observer(layer, offset, x));
            match states {
                Ok(x) => hidden.extend_from_slice(&x),
                Err(error) => {
                    cache.truncate(before)?;
                    return Err(error);
                }
            }
        }
        Ok(self.normalise(&hidden, &self.weights.norm))
    }

    /// Runs one more token of each of n sequences, which share the matrix products. Returns the logits
    /// `[n, vocab_size]`.
    ///
    /// Row i is token `tokens[i]` at `positions[i]` of the sequence in `caches[i]`. The result is the one of
    /// [`Model::forward`] on this sequence alone, except for the order of sums within a product.
    ///
    /// # Errors
    /// [`ModelError::Sequences`] if the three lengths differ, and the errors of [`Model::hidden`] for any
    /// sequence. Every cache is then truncated to its length before the call.
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
        let tables = self.tables(positions.iter().copied());
        let n = tokens.len();
        let mut attend = |layer: usize, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]| {
            let (queries, keys, values, results) = (q.len() / n, k.len() / n, v.len() / n, out.len() / n);
            for (i, cache) in caches.iter_mut().enumerate() {
                cache.attend_chunk(
                    layer,
                    &q[i * queries..][..queries],
                    &k[i * keys..][..keys],
                    &v[i * values..][..values],
                    &mut out[i * results..][..results],
                )?;
            }
            Ok(())
        };
        match self.run_layers(tokens, &tables, &mut attend, &mut |_, _| {}) {
            Ok(x) => Ok(self.logits(&self.normalise(&x, &self.weights.norm))),
            Err(error) => {
                // All caches are truncated, even if one of them fails.
                let truncated: Vec<_> =
                    caches.iter_mut().zip(before).map(|(cache, len)| cache.truncate(len)).collect();
                truncated.into_iter().collect::<Result<(), _>>()?;
                Err(error)
            }
        }
    }

    /// Logits `[n, vocab_size]` of hidden states `[n, hidden_size]`. An incomplete last row is ignored.
    pub fn logits(&self, hidden: &[f32]) -> Vec<f32> {
        let whole = hidden.len() / self.config.hidden_size * self.config.hidden_size;
        if whole == 0 {
            return Vec::new();
        }
        let head = self.weights.head.as_ref().unwrap_or(&self.weights.embedding);
        let mut logits = head.forward(&hidden[..whole]);
        if let Some(cap) = self.config.final_soft_cap {
            logits.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
        }
        logits
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

    fn tables(&self, positions: impl ExactSizeIterator<Item = usize> + Clone) -> RopeAngles {
        RopeAngles {
            all: self.rope.table(positions.clone()),
            local: self.local_rope.as_ref().map(|rope| rope.table(positions)),
        }
    }

    /// Computes the residual stream `[n, hidden_size]` of tokens whose angles are in `tables`.
    fn run_layers(
        &self,
        tokens: &[u32],
        tables: &RopeAngles,
        attend: &mut Attend<'_>,
        observer: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Vec<f32>, ModelError> {
        let c = &self.config;
        let mut x: Vec<f32> = Vec::with_capacity(tokens.len() * c.hidden_size);
        for &token in tokens {
            self.weights.embedding.push_row(token as usize, &mut x);
        }
        if c.family().scales_embedding {
            let scale = (c.hidden_size as f32).sqrt();
            x.iter_mut().for_each(|x| *x *= scale);
        }
        self.weights.layers.each(&mut |index, layer| {
            let table = tables.local.as_ref().filter(|_| c.is_local(index)).unwrap_or(&tables.all);
            let mut attend = |q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]| attend(index, q, k, v, out);
            let h = self.normalise(&x, &layer.attention_norm);
            let attended = layer.attention.forward(&h, c, table, &mut attend)?;
            self.add(&mut x, layer.post_attention_norm.as_deref(), |y| layer.o.forward_add(&attended, y));
            let h = self.normalise(&x, &layer.mlp_norm);
            self.add(&mut x, layer.post_mlp_norm.as_deref(), |y| layer.mlp.forward_add(&h, y));
            observer(index, &x);
            Ok(())
        })?;
        Ok(x)
    }

    /// Adds the result of `forward_add` to the residual stream. If there is a norm, the result is normalised
    /// first.
    fn add(&self, x: &mut [f32], norm: Option<&[f32]>, forward_add: impl FnOnce(&mut [f32])) {
        let Some(norm) = norm else { return forward_add(x) };
        let mut y = vec![0.0; x.len()];
        forward_add(&mut y);
        x.iter_mut().zip(self.normalise(&y, norm)).for_each(|(x, y)| *x += y);
    }

    fn normalise(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        rms_norm(x, weight, self.config.rms_norm_eps)
    }
}
