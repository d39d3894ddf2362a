//! Counts the weights of a model from its config.

use super::Config;
use crate::attention::AttentionWeights;

/// Weights of a matrix, and of its bias if it has one.
fn linear(outputs: usize, inputs: usize, has_bias: bool) -> u64 {
    outputs as u64 * (inputs as u64 + u64::from(has_bias))
}

impl Config {
    /// Number of weights in a layer.
    pub(crate) fn layer_weights(&self, layer: usize) -> u64 {
        let norms = if self.family().post_norms { 4 } else { 2 };
        let sinks = if self.family().has_sinks { self.num_heads as u64 } else { 0 };
        let output = linear(self.hidden_size, AttentionWeights::out_values(self), self.output_bias);
        norms * self.hidden_size as u64 + sinks + self.attention_weights() + output + self.mlp_weights(layer)
    }

    /// Number of weights in the embedding, the last norm and the head.
    pub(crate) fn weights_beside_layers(&self) -> u64 {
        let tables = if self.tie_word_embeddings { 1 } else { 2 };
        self.hidden_size as u64 * (tables * self.vocab_size as u64 + 1)
    }

    /// Number of weights that make queries, keys and values.
    fn attention_weights(&self) -> u64 {
        let (hidden, bias) = (self.hidden_size, self.qkv_bias);
        let Some(latent) = &self.latent else {
            let heads = self.num_heads + 2 * self.num_kv_heads;
            let norms = if self.family().head_norms { 2 * self.head_dim } else { 0 };
            return linear(heads * self.head_dim, hidden, bias) + norms as u64;
        };
        let queries = self.num_heads * (latent.content_dim + latent.position_dim);
        let query = latent.query_rank.map_or(linear(queries, hidden, false), |rank| {
            linear(rank, hidden, bias) + rank as u64 + linear(queries, rank, false)
        });
        let up = linear(self.num_heads * (latent.content_dim + latent.value_dim), latent.rank, false);
        query + linear(latent.rank + latent.position_dim, hidden, bias) + latent.rank as u64 + up
    }

    fn mlp_weights(&self, layer: usize) -> u64 {
        let gated = |width: usize, has_bias| {
            2 * linear(width, self.hidden_size, has_bias) + linear(self.hidden_size, width, has_bias)
        };
        match self.experts.as_ref().filter(|experts| experts.layers.get(layer) == Some(&true)) {
            None => gated(self.intermediate_size, self.mlp_bias),
            Some(experts) => {
                experts.count as u64 * gated(experts.intermediate_size, experts.has_bias || self.mlp_bias)
                    + linear(experts.count, self.hidden_size, experts.has_bias)
                    + gated(experts.shared_size, self.mlp_bias && experts.shared_size > 0)
            }
        }
    }
}
