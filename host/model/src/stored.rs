//! Measures prefixes that are stored and read back: the model's predictions after them, and a basis to store
//! them with.
//!
//! Windows of T tokens do not overlap. The first P tokens, the prefix, run exactly. Their keys and values are
//! stored in chunks of up to 256 tokens and read back. The other T - P tokens run twice: on the keys and
//! values that came back, and on the exact ones. Figures cover these T - P positions. For caches that
//! compress at every step see [`crate::eval`].

use crate::eval::{EvalResult, EvalSpec, Tally, Window, score};
use crate::{Model, ModelError};
use half::f16;
use tqkv::attention::AttentionCache;
use tqkv::dense::DenseCache;
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::{Level, codec};
use tqkv_storage::{Basis, Budget, EXACT_TOKENS, Follower, Learner, MAX_TOKENS, Shape, Span, StorageCodec};

/// Keys and values of consecutive tokens, `[layers, tokens, num_kv_heads, head_dim]` each. Values are empty
/// for latent vectors.
#[derive(Debug, Default, Clone)]
pub struct Tokens {
    /// Position of the first token.
    pub first_position: usize,
    /// Number of tokens.
    pub count: usize,
    /// Keys after RoPE.
    pub k: Vec<f32>,
    /// Values.
    pub v: Vec<f32>,
}

/// A way to store tokens. It has a name, and a function that stores tokens, reads them back and returns the
/// bytes used.
pub struct StoredPrefix<'a> {
    /// Name for the report.
    pub name: String,
    pass: Box<Pass<'a>>,
}

type Pass<'a> = dyn Fn(&mut Tokens) -> Result<usize, ModelError> + 'a;

impl<'a> StoredPrefix<'a> {
    /// Stores chunks of the storage tier. Exact tokens are f16.
    pub fn chunks(name: String, codec: &'a StorageCodec, budget: Budget) -> Self {
        let pass = move |tokens: &mut Tokens| {
            let halves = |x: &[f32]| -> Vec<f16> { x.iter().map(|x| f16::from_f32(*x)).collect() };
            let span = Span::of(codec.shape(), tokens.first_position as u64, tokens.count);
            let bytes = codec.encode(budget, &span, &halves(&tokens.k), &halves(&tokens.v))?;
            codec.decode(&bytes, &mut tokens.k, &mut tokens.v)?;
            Ok(bytes.len())
        };
        Self { name, pass: Box::new(pass) }
    }

    /// Stores blocks of one codec for keys and one for values. Keys are stored without the mean of their
    /// chunk and head, and the first tokens of a text stay exact. A cache layer that stores blocks does the
    /// same.
    ///
    /// # Errors
    /// A head dim that a codec does not have, or a level in `TQKV_LEVEL` that this machine does not have.
    pub fn blocks(model: &Model, keys: CodecId, values: CodecId) -> Result<Self, ModelError> {
        let shape = model.config().kv_shape();
        let of = |id: CodecId, dim| {
            AnyCodec::new(id, dim, Options::DEFAULT).map_err(|error| {
                ModelError::Evaluation(format!("codec {} at head dim {dim}: {error}", id.name()))
            })
        };
        let sides = [of(keys, shape.head_dim)?, of(values, shape.value_dim)?];
        let level = Level::detect().map_err(tqkv::error::CacheError::Level)?;
        let pass = move |tokens: &mut Tokens| {
            let mut bytes = 0;
            for (codec, x, centred) in [(&sides[0], &mut tokens.k, true), (&sides[1], &mut tokens.v, false)] {
                let row = shape.num_kv_heads * codec.dim();
                let exact = (EXACT_TOKENS as usize).saturating_sub(tokens.first_position).min(tokens.count);
                for layer in x.chunks_exact_mut(tokens.count * row) {
                    let (kept, coded) = layer.split_at_mut(exact * row);
                    kept.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32());
                    bytes += 2 * kept.len() + pass_blocks(level, codec, coded, row, centred)?;
                }
            }
            Ok(bytes)
        };
        Ok(Self { name: format!("{},{}", keys.name(), values.name()), pass: Box::new(pass) })
    }
}

/// Encodes and decodes rows, optionally without their mean. Returns the bytes of blocks and mean.
fn pass_blocks(
    level: Level,
    codec: &AnyCodec,
    rows: &mut [f32],
    width: usize,
    centred: bool,
) -> Result<usize, ModelError> {
    let count = (rows.len() / width).max(1) as f32;
    let mut mean = vec![0.0f32; width];
    if centred {
        for row in rows.chunks_exact(width) {
            mean.iter_mut().zip(row).for_each(|(mean, x)| *mean += x / count);
        }
        mean.iter_mut().for_each(|mean| *mean = f16::from_f32(*mean).to_f32());
    }
    let moved = |rows: &mut [f32], sign: f32| {
        for row in rows.chunks_exact_mut(width) {
            row.iter_mut().zip(&mean).for_each(|(x, mean)| *x += sign * mean);
        }
    };
    moved(rows, -1.0);
    let mut blocks = vec![0; rows.len() / codec.dim() * codec.block_bytes()];
    let failed = |error: String| ModelError::Evaluation(format!("{}: {error}", codec.id().name()));
    codec::encode(level, codec, rows, &mut blocks).map_err(|error| failed(error.to_string()))?;
    codec::decode(level, codec, &blocks, rows).map_err(|error| failed(error.to_string()))?;
    moved(rows, 1.0);
    Ok(blocks.len() + if centred { 2 * width } else { 0 })
}

impl Model {
    /// The shape of this model's keys and values for the storage tier.
    ///
    /// # Errors
    /// Head dims that the storage tier does not accept.
    pub fn storage_shape(&self) -> Result<Shape, ModelError> {
        let config = self.config();
        let (shape, rank) = (config.kv_shape(), config.latent.as_ref().map_or(0, |latent| latent.rank));
        let value_dim = if config.latent.is_some() { 0 } else { shape.value_dim };
        let rope = self.rope.stored(rank);
        let all = Shape::new(shape.num_layers, shape.num_kv_heads, shape.head_dim, value_dim, rope)?;
        let Some(local) = &self.local_rope else { return Ok(all) };
        Ok(all.with_rope(local.stored(rank), (0..shape.num_layers).filter(|&layer| config.is_local(layer)))?)
    }

    /// Passes the keys and values of windows of `context` tokens to a learner, and lets it mark the text.
    /// `progress` receives the tokens of each window. An incomplete window at the end is skipped.
    ///
    /// # Errors
    /// Errors of tokeniser, model and learner.
    pub fn learn(
        &self,
        text: &[u8],
        context: usize,
        windows: Option<usize>,
        learner: &mut Learner,
        progress: &mut dyn FnMut(usize),
    ) -> Result<(), ModelError> {
        for window in self.windows(text, &EvalSpec::new(context, windows))? {
            let mut cache = self.config().dense_cache()?;
            self.hidden(&window, 0, &mut cache, &mut |_, _, _| {})?;
            let all = self.tokens(&cache, 0, context);
            learner.learn(&all.k, &all.v, 0)?;
            learner.mark(&window);
            progress(context);
        }
        Ok(())
    }

    /// Passes the keys and values of windows of `context` tokens through a follower, in chunks as a store
    /// writes them. Skips `skipped` windows. Returns the number of bases that the follower made.
    ///
    /// # Errors
    /// Errors of tokeniser, model and follower, and a text with fewer windows.
    pub fn follow(
        &self,
        text: &[u8],
        context: usize,
        (skipped, windows): (usize, usize),
        follower: &mut Follower,
    ) -> Result<usize, ModelError> {
        let mut made = 0;
        for window in
            self.windows(text, &EvalSpec::new(context, Some(skipped + windows)))?.iter().skip(skipped)
        {
            let mut cache = self.config().dense_cache()?;
            self.hidden(window, 0, &mut cache, &mut |_, _, _| {})?;
            for first in (0..context).step_by(MAX_TOKENS) {
                let tokens = self.tokens(&cache, first, MAX_TOKENS.min(context - first));
                let span = Span::of(follower.codec().shape(), first as u64, tokens.count);
                made += usize::from(follower.encode(&span, &tokens.k, &tokens.v)?.basis.is_some());
            }
        }
        Ok(made)
    }

    /// Number of the windows of `spec` that a basis knows: it learned from more than half of each.
    ///
    /// # Errors
    /// The errors of [`evaluate_stored`] for the text.
    pub fn learned_windows(
        &self,
        text: &[u8],
        spec: &StoredSpec,
        basis: &Basis,
    ) -> Result<usize, ModelError> {
        let windows = self.windows(text, &EvalSpec::new(spec.context, spec.windows))?;
        Ok(windows.iter().filter(|window| basis.learned_from(window) > 0.5).count())
    }

    /// Tokens `first..first + count` of a cache.
    fn tokens(&self, cache: &DenseCache, first: usize, count: usize) -> Tokens {
        let shape = cache.shape();
        let mut tokens = Tokens { first_position: first, count, k: Vec::new(), v: Vec::new() };
        let is_latent = self.config().latent.is_some();
        for layer in 0..shape.num_layers {
            for token in first..first + count {
                for head in 0..shape.num_kv_heads {
                    let of = |x: Option<&'_ [f32]>, dim: usize, out: &mut Vec<f32>| {
                        out.extend_from_slice(&x.unwrap_or_default()[token * dim..][..dim]);
                    };
                    of(cache.keys(layer, head), shape.head_dim, &mut tokens.k);
                    if !is_latent {
                        of(cache.values(layer, head), shape.value_dim, &mut tokens.v);
                    }
                }
            }
        }
        tokens
    }

    /// Stores the first `prefix` tokens of `exact`, and reads them into a new cache. Returns the cache and
    /// the bytes used.
    fn stored(
        &self,
        exact: &DenseCache,
        prefix: usize,
        store: &StoredPrefix<'_>,
    ) -> Result<(DenseCache, usize), ModelError> {
        let (mut cache, mut bytes) = (self.config().dense_cache()?, 0);
        for first in (0..prefix).step_by(MAX_TOKENS) {
            let mut tokens = self.tokens(exact, first, MAX_TOKENS.min(prefix - first));
            bytes += (store.pass)(&mut tokens)?;
            let layers = self.config().num_layers;
            let (k, v) = (tokens.k.len() / layers, tokens.v.len() / layers);
            for layer in 0..layers {
                cache.append(layer, &tokens.k[layer * k..][..k], &tokens.v[layer * v..][..v])?;
            }
        }
        Ok((cache, bytes))
    }
}

/// The windows to evaluate: `context` tokens each, the first `prefix` of them stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredSpec {
    /// Tokens per window.
    pub context: usize,
    /// Tokens of a window that are stored.
    pub prefix: usize,
    /// Windows from the start of the text. `None` means all complete windows.
    pub windows: Option<usize>,
}

/// Evaluates stores on `text`. The first result is the exact continuation compared with itself, then one
/// follows per store. `progress` receives the finished runs and their total number. Bytes per token count the
/// stored prefix.
///
/// # Errors
/// [`ModelError::Evaluation`] if windows or prefix do not fit, and errors of tokeniser, model and stores.
pub fn evaluate_stored(
    model: &Model,
    text: &[u8],
    spec: &StoredSpec,
    stores: &[StoredPrefix<'_>],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<EvalResult>, ModelError> {
    let &StoredSpec { context, prefix, windows } = spec;
    if prefix == 0 || prefix + 2 > context {
        return Err(ModelError::Evaluation(format!(
            "a prefix of {prefix} tokens in windows of {context}; expected 1 to {}",
            context.saturating_sub(2)
        )));
    }
    let texts = model.windows(text, &EvalSpec::new(context, windows))?;
    let windows = texts.len();
    let total = windows * (stores.len() + 1);
    let (mut reference, mut done) = (Tally::over(windows), 0);
    let mut tallies: Vec<(Tally, usize)> = stores.iter().map(|_| (Tally::over(windows), 0)).collect();
    for window in &texts {
        let rest = &window[prefix..];
        let continued = |cache: &mut DenseCache| model.hidden(rest, prefix, cache, &mut |_, _, _| {});
        let mut exact = model.config().dense_cache()?;
        model.hidden(&window[..prefix], 0, &mut exact, &mut |_, _, _| {})?;
        let base = continued(&mut exact)?;
        let scored = Window::scored_from(0, rest.to_vec());
        score(model, &scored, [&base, &base], &mut reference)?;
        done += 1;
        progress(done, total);
        for (store, (tally, bytes)) in stores.iter().zip(&mut tallies) {
            let (mut cache, taken) = model.stored(&exact, prefix, store)?;
            *bytes += taken;
            score(model, &scored, [&base, &continued(&mut cache)?], tally)?;
            done += 1;
            progress(done, total);
        }
    }
    let nll = reference.nll();
    let per_token = |bytes: usize| bytes as f64 / (windows * prefix) as f64;
    let exact = 2 * prefix * windows * model.config().cached_values();
    let reference = EvalResult { cache_bytes_per_token: per_token(exact), ..reference.finish("f16", nll) };
    let results = stores.iter().zip(tallies).map(|(store, (tally, bytes))| EvalResult {
        cache_bytes_per_token: per_token(bytes),
        ..tally.finish(&store.name, nll)
    });
    Ok(std::iter::once(reference).chain(results).collect())
}
