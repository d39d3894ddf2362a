//! A cache with a window of exact tokens, in which a codec that no cache stores has coded all others.

use crate::choice::Choice;
use crate::program::Program;
use crate::side_coders::SideCoders;
use crate::source::Source;
use tqkv::attention::AttentionCache;
use tqkv::cache::CacheSpec;
use tqkv::dense::DenseCache;
use tqkv::error::CacheError;
use tqkv_core::{KvShape, Options};

/// Attention of a model over what a codec gives back that no cache stores.
///
/// The first tokens and the newest ones stay exact, as in the caches it is compared with. Every query sees all others
/// as the codec gives them back. A format of this crate codes single tokens. Another program codes groups of
/// [`GROUP`](crate::GROUP) tokens, of which the youngest may have fewer, so it is asked once per token, KV head and kind
/// of vector, for 16.5 tokens on average, and a codec by channel also stores the steps of groups that have few tokens.
/// `allocated_bytes` counts each group once, as it was asked for last.
#[derive(Debug)]
pub struct WindowedCache {
    dense: DenseCache,
    source: Box<dyn Source>,
    /// Tokens of a full group of the source.
    group: usize,
    /// Number of first tokens, and of newest ones, that stay exact.
    exact: (usize, usize),
    layers: Vec<Layer>,
}

/// What passed through the codec, and what is going to.
#[derive(Debug, Clone)]
struct Layer {
    /// First token of the group that grows. Those before it are exact first ones, or came back in full groups.
    start: usize,
    /// Keys and values from `start` on as they came, per KV head. The exact cache has them as queries see them.
    given: Vec<[Vec<f32>; 2]>,
    /// First token and bytes of each full group.
    groups: Vec<(usize, usize)>,
    /// Tokens and bytes of the group that grows, as far as it has passed through the codec.
    part: (usize, usize),
}

impl Layer {
    fn new(sinks: usize, heads: usize) -> Self {
        Self { start: sinks, given: vec![Default::default(); heads], groups: Vec::new(), part: (0, 0) }
    }

    /// Adds tokens as they came, `[n, num_kv_heads, dim]`.
    fn push(&mut self, tokens: [&[f32]; 2], dims: [usize; 2]) {
        let heads = self.given.len();
        for ((side, rows), dim) in tokens.into_iter().enumerate().zip(dims) {
            for (i, row) in rows.chunks_exact(dim).enumerate() {
                self.given[i % heads][side].extend_from_slice(row);
            }
        }
    }

    /// Forgets all but the first tokens since `start`.
    fn keep(&mut self, tokens: usize, dims: [usize; 2]) {
        for given in &mut self.given {
            given.iter_mut().zip(dims).for_each(|(rows, dim)| rows.truncate(tokens.saturating_mul(dim)));
        }
    }

    /// The group that grows has got all its tokens.
    fn close(&mut self, group: usize, dims: [usize; 2]) {
        self.groups.push((self.start, self.part.1));
        self.start += group;
        self.part = (0, 0);
        for given in &mut self.given {
            given.iter_mut().zip(dims).for_each(|(rows, dim)| drop(rows.drain(..group * dim)));
        }
    }

    fn bytes(&self) -> usize {
        self.groups.iter().fold(self.part.1, |sum, group| sum.saturating_add(group.1))
    }
}

impl WindowedCache {
    /// An empty cache for the attention of `spec`, whose sinks and hot tokens stay exact, and a started program.
    ///
    /// # Errors
    /// An attention that no cache computes, latent vectors, or a program that does not start.
    pub fn of_program(spec: &CacheSpec, command: &[String]) -> Result<Self, CacheError> {
        Self::new(spec, || Ok(Box::new(Program::start(command)?)))
    }

    /// An empty cache for the attention of `spec`, whose sinks and hot tokens stay exact. `choices` are the formats of
    /// the keys and values of the others.
    ///
    /// # Errors
    /// An attention that no cache computes, latent vectors, or choices without blocks of the head dims.
    pub fn of_formats(spec: &CacheSpec, choices: [Choice; 2], options: Options) -> Result<Self, CacheError> {
        Self::new(spec, || Ok(Box::new(SideCoders::both(spec, choices, options, None)?)))
    }

    fn new(
        spec: &CacheSpec,
        source: impl FnOnce() -> Result<Box<dyn Source>, CacheError>,
    ) -> Result<Self, CacheError> {
        if spec.position_dim > 0 {
            let why =
                "a yardstick with a window takes keys and values: expected a model without latent vectors";
            return Err(CacheError::BadSpec(why.into()));
        }
        let dense = DenseCache::new(spec)?;
        let source = source()?;
        let layers = vec![Layer::new(spec.sinks, spec.shape.num_kv_heads); spec.shape.num_layers];
        Ok(Self { dense, group: source.group(), source, exact: (spec.sinks, spec.hot), layers })
    }

    /// Head dims of keys and of values.
    fn dims(&self) -> [usize; 2] {
        let KvShape { head_dim, value_dim, .. } = self.dense.shape();
        [head_dim, value_dim]
    }

    fn tokens(&self, layer: usize) -> usize {
        self.dense.keys(layer, 0).map_or(0, |keys| keys.len() / self.dense.shape().head_dim)
    }

    /// Attends with tokens that all see the same tokens exact: those of which none sees a coded token, or one.
    fn attend(
        &mut self,
        layer: usize,
        q: &[f32],
        [k, v]: [&[f32]; 2],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let (dims, heads) = (self.dims(), self.dense.shape().num_kv_heads);
        let (before, n) = (self.tokens(layer), k.len() / (heads * dims[0]));
        let Layer { start, .. } = self.layers[layer];
        // Exact first tokens are in no group.
        let first = start.saturating_sub(before).min(n) * heads;
        let held = before.saturating_sub(start);
        self.layers[layer].push([&k[first * dims[0]..], &v[first * dims[1]..]], dims);
        let (mut k, mut v) = (k.to_vec(), v.to_vec());
        let coded = (before + n).saturating_sub(start.saturating_add(self.exact.1));
        let attended = self
            .code(layer, coded, [&mut k, &mut v])
            .and_then(|()| self.dense.attend_chunk(layer, q, &k, &v, out));
        if attended.is_err() {
            self.layers[layer].keep(held, dims);
        } else if coded == self.group {
            self.layers[layer].close(self.group, dims);
        }
        attended
    }

    /// Passes the first tokens of the group that grows through the codec. `own` are the keys and the values of the
    /// token that comes, `[num_kv_heads, dim]`.
    fn code(&mut self, layer: usize, coded: usize, own: [&mut [f32]; 2]) -> Result<(), CacheError> {
        if coded == 0 {
            return Ok(());
        }
        let (dims, start) = (self.dims(), self.layers[layer].start);
        // Without a window the token that comes is one of them, and the exact cache does not have it yet.
        let held = coded.min(self.tokens(layer) - start);
        let [own_keys, own_values] = own;
        let mut bytes = 0usize;
        for head in 0..self.layers[layer].given.len() {
            let given = &self.layers[layer].given[head];
            let mut back = [0, 1].map(|side| given[side][..coded * dims[side]].to_vec());
            for (side, rows) in back.iter_mut().enumerate() {
                bytes = bytes.saturating_add(self.source.pass(side, (layer, head), rows, dims[side])?);
            }
            let [(keys, key), (values, value)] = [0, 1].map(|side| back[side].split_at(held * dims[side]));
            self.dense.replace((layer, head), start, keys, values)?;
            own_keys[head * dims[0]..][..key.len()].copy_from_slice(key);
            own_values[head * dims[1]..][..value.len()].copy_from_slice(value);
        }
        self.layers[layer].part = (coded, bytes);
        Ok(())
    }
}

impl AttentionCache for WindowedCache {
    fn shape(&self) -> KvShape {
        self.dense.shape()
    }

    fn attend_chunk(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let shape = self.dense.shape();
        let KvShape { num_kv_heads, head_dim, value_dim, num_layers, .. } = shape;
        let (keys, values) = (num_kv_heads * head_dim, num_kv_heads * value_dim);
        let (queries, outs) = (shape.query_values(), shape.out_values());
        let n = k.len() / keys;
        let fits = k.len() == n * keys && v.len() == n * values && q.len() == n * queries;
        let is_finite = k.iter().chain(v).all(|x| x.is_finite());
        if layer >= num_layers || !fits || out.len() != n * outs || !is_finite {
            // The check of the exact cache says what is wrong.
            return self.dense.attend_chunk(layer, q, k, v, out);
        }
        if self.tokens(layer) == 0 {
            self.source.learn(layer, [k, v]);
        }
        let mut at = 0;
        while at < n {
            // As long as no query sees a coded token, all that is there goes at once; from then on a token at a time.
            let exact = self.layers[layer].start.saturating_add(self.exact.1);
            let end = n.min(at + exact.saturating_sub(self.tokens(layer)).max(1));
            let kv = [&k[at * keys..end * keys], &v[at * values..end * values]];
            self.attend(layer, &q[at * queries..end * queries], kv, &mut out[at * outs..end * outs])?;
            at = end;
        }
        Ok(())
    }

    fn len(&self) -> usize {
        self.dense.len()
    }

    /// Tokens of full groups stay as the codec gave them back, and the next group begins after the last of them that
    /// is left. Those of the group that grows are again as they came, until the next query passes them through the
    /// codec. A group counts its bytes as long as one of its tokens is there.
    fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        let (dims, sinks) = (self.dims(), self.exact.0);
        self.dense.truncate(len)?;
        for (layer, state) in self.layers.iter_mut().enumerate() {
            state.keep(len.saturating_sub(state.start), dims);
            state.groups.retain(|group| group.0 < len);
            state.part = (0, 0);
            for (head, [keys, values]) in state.given.iter().enumerate() {
                if !keys.is_empty() {
                    self.dense.replace((layer, head), state.start, keys, values)?;
                }
            }
            state.start = state.start.min(len.max(sinks));
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.dense.reset();
        let heads = self.dense.shape().num_kv_heads;
        self.layers.fill(Layer::new(self.exact.0, heads));
    }

    /// What the codes take, and two bytes per number of the exact tokens.
    fn allocated_bytes(&self) -> usize {
        let KvShape { num_kv_heads, head_dim, value_dim, .. } = self.dense.shape();
        let sizes = self.layers.iter().enumerate().map(|(layer, state)| {
            let coded = state.start - self.exact.0 + state.part.0;
            let exact = self.tokens(layer).saturating_sub(coded);
            state.bytes().saturating_add(exact * 2 * num_kv_heads * (head_dim + value_dim))
        });
        sizes.fold(0, usize::saturating_add)
    }
}

#[cfg(all(test, unix))]
mod tests;
