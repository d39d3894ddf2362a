//! Latent attention: the cache holds one vector per token, from which the keys and values of all heads could
//! be computed.
//!
//! The computation avoids that. The key projection is applied to the query, whose product with the latent
//! vector is then the logit. The value projection is applied after attention.

use crate::checkpoint::Checkpoint;
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::linear::Linear;
use crate::norm::rms_norm;
use crate::rope::RopeTable;
use tqkv::error::CacheError;

/// Attention of one layer by the cache. The arguments are q, k, v and the output, as in
/// [`tqkv::attention::AttentionCache::attend_chunk`].
pub(crate) type LatentAttend<'a> =
    dyn FnMut(&[f32], &[f32], &[f32], &mut [f32]) -> Result<(), CacheError> + 'a;

/// The model library ignores the config's epsilon in these norms.
const EPS: f32 = 1e-6;

/// Latent attention of one layer.
#[derive(Debug)]
pub(crate) struct LatentWeights {
    fields: config::Latent,
    /// The projection and norm before `q`. `None` if queries are made directly from the layer's input.
    query_input: Option<(Linear, Vec<f32>)>,
    q: Linear,
    /// Makes the latent vector and the positional part of the key.
    kv: Linear,
    kv_norm: Vec<f32>,
    /// Per head, from the content part of its query to the latent space.
    to_latent: Vec<Linear>,
    /// Per head, from attended latent vectors to its values.
    from_latent: Vec<Linear>,
}

impl LatentWeights {
    pub(crate) fn read(
        tensors: &Checkpoint,
        c: &Config,
        fields: &config::Latent,
        name: &str,
    ) -> Result<Self, ModelError> {
        let &config::Latent { rank, content_dim, position_dim, value_dim, query_rank } = fields;
        let part = |part: &str| format!("{name}.{part}");
        let queries = c.num_heads * (content_dim + position_dim);
        let (query_input, q) = match query_rank {
            None => (None, tensors.linear(&part("q_proj"), queries, c.hidden_size, false)?),
            Some(rank) => {
                let down = tensors.linear(&part("q_a_proj"), rank, c.hidden_size, c.qkv_bias)?;
                let norm = tensors.norm(&part("q_a_layernorm"), rank, c)?;
                (Some((down, norm)), tensors.linear(&part("q_b_proj"), queries, rank, false)?)
            }
        };
        let per_head = content_dim + value_dim;
        let up = tensors.required(&part("kv_b_proj.weight"), &[c.num_heads * per_head, rank])?;
        let heads = (0..c.num_heads).map(|head| head * per_head);
        let keys = heads.clone().map(|first| up.rows(first..first + content_dim).columns(0, 1));
        let values = heads.map(|first| up.rows(first + content_dim..first + per_head));
        Ok(Self {
            fields: fields.clone(),
            query_input,
            q,
            kv: tensors.linear(
                &part("kv_a_proj_with_mqa"),
                rank + position_dim,
                c.hidden_size,
                c.qkv_bias,
            )?,
            kv_norm: tensors.norm(&part("kv_a_layernorm"), rank, c)?,
            to_latent: keys.map(|weight| Linear::new(weight, None)).collect(),
            from_latent: values.map(|weight| Linear::new(weight, None)).collect(),
        })
    }

    pub(crate) fn forward(
        &self,
        x: &[f32],
        c: &Config,
        table: &RopeTable,
        attend: &mut LatentAttend<'_>,
    ) -> Result<Vec<f32>, CacheError> {
        let config::Latent { rank, position_dim, value_dim, .. } = self.fields;
        let (queries, keys) = (self.queries(x, c, table), self.keys(x, table));
        let n = keys.len() / (rank + position_dim);
        let mut latents = vec![0.0; n * c.num_heads * rank];
        attend(&queries, &keys, &[], &mut latents)?;
        let mut attended = vec![0.0; n * c.num_heads * value_dim];
        for (head, from_latent) in self.from_latent.iter().enumerate() {
            let values =
                from_latent.forward(&gather(&latents, head * rank..(head + 1) * rank, c.num_heads * rank));
            scatter(&values, value_dim, &mut attended, head * value_dim, c.num_heads * value_dim);
        }
        Ok(attended)
    }

    /// Queries `[n, num_heads, rank + position_dim]`.
    fn queries(&self, x: &[f32], c: &Config, table: &RopeTable) -> Vec<f32> {
        let config::Latent { rank, content_dim, position_dim, .. } = self.fields;
        let mut q = match &self.query_input {
            None => self.q.forward(x),
            Some((down, norm)) => self.q.forward(&rms_norm(&down.forward(x), norm, EPS)),
        };
        let (from, to) = (content_dim + position_dim, rank + position_dim);
        table.apply(&mut q, c.num_heads, from, content_dim);
        let (from_row, to_row) = (c.num_heads * from, c.num_heads * to);
        let mut queries = vec![0.0; q.len() / from * to];
        for (head, to_latent) in self.to_latent.iter().enumerate() {
            let first = head * from;
            let content = to_latent.forward(&gather(&q, first..first + content_dim, from_row));
            let position = gather(&q, first + content_dim..first + from, from_row);
            scatter(&content, rank, &mut queries, head * to, to_row);
            scatter(&position, position_dim, &mut queries, head * to + rank, to_row);
        }
        queries
    }

    /// Keys `[n, rank + position_dim]`.
    fn keys(&self, x: &[f32], table: &RopeTable) -> Vec<f32> {
        let config::Latent { rank, position_dim, .. } = self.fields;
        let width = rank + position_dim;
        let mut keys = self.kv.forward(x);
        let latents = rms_norm(&gather(&keys, 0..rank, width), &self.kv_norm, EPS);
        scatter(&latents, rank, &mut keys, 0, width);
        table.apply(&mut keys, 1, width, rank);
        keys
    }
}

/// Copies some columns out of rows of `width` values.
fn gather(rows: &[f32], columns: std::ops::Range<usize>, width: usize) -> Vec<f32> {
    rows.chunks_exact(width).flat_map(|row| &row[columns.clone()]).copied().collect()
}

/// Copies rows of `from_width` values into rows of `width` values, from column `first` on.
fn scatter(from: &[f32], from_width: usize, to: &mut [f32], first: usize, width: usize) {
    for (from, to) in from.chunks_exact(from_width).zip(to.chunks_exact_mut(width)) {
        to[first..first + from_width].copy_from_slice(from);
    }
}
