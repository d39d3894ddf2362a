//! Quality of a cache on text: perplexity, KL divergence and top-1 agreement compared with a reference cache.
//!
//! Windows of T tokens do not overlap, and each starts with an empty cache. The first token of a window is
//! the model's BOS if it has one ([`Model::without_bos`]), else a token of the text.
//!
//! Tokens 1 to T-1 of a window are scored; the first is only input. Perplexity is exp(mean negative log
//! likelihood in nats per token). KL(reference || setting) and agreement are means over all T positions, or
//! over those from [`EvalSpec::from`] on.
//!
//! One setting runs over all windows before the next begins, so its figures are known early. Memory holds the
//! reference's last hidden states of all windows. It holds the states of every layer if layers are compared.

mod cosine;
mod figures;
mod scores;
mod tally;

pub use figures::{EvalResult, HeadFigures};
pub use scores::{PROBE, ScoreFigures};

use crate::{Model, ModelError};
use cosine::cosine;
use scores::Scores;
pub(crate) use tally::{Tally, score};
use tqkv::KvShape;
use tqkv::attention::AttentionCache;
use tqkv::cache::HeadStats;
use tqkv::error::CacheError;

/// A cache under test: its name, and a function that makes an empty one.
pub struct Setting<'a> {
    /// Name for the report.
    pub name: String,
    /// Makes an empty cache of the model's shape. Called once per window.
    pub new_cache: Box<CacheFactory<'a>>,
}

/// Makes an empty cache.
pub type CacheFactory<'a> = dyn Fn() -> Result<Box<dyn AttentionCache>, CacheError> + 'a;

/// The windows to evaluate, and the comparisons to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvalSpec {
    /// Tokens per window, T.
    pub context: usize,
    /// Windows from the start of the text. `None` means all whole windows.
    pub windows: Option<usize>,
    /// Tokens per forward pass. `None` means a whole window. 1 attends like generation, one query at a time.
    pub step: Option<usize>,
    /// First position of a window that is scored. Tokens before it are input only.
    pub from: usize,
    /// Compare hidden states layer by layer, and collect the statistics of each KV head.
    pub layers: bool,
    /// Compare attention outputs with a reference cache that receives the same queries, keys and values.
    pub attention: bool,
    /// Compare attention scores with such a cache, head by head. The caches then receive [`PROBE`] tokens at
    /// a time.
    pub scores: bool,
}

impl EvalSpec {
    /// Whole windows per forward pass. Only predictions are compared.
    pub fn new(context: usize, windows: Option<usize>) -> Self {
        Self { context, windows, step: None, from: 0, layers: false, attention: false, scores: false }
    }
}

/// The result of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalReport {
    /// Tokens per window.
    pub context: usize,
    /// Number of evaluated windows.
    pub windows: usize,
    /// The reference, compared with itself.
    pub reference: EvalResult,
    /// The settings in the order given.
    pub results: Vec<EvalResult>,
}

/// Progress of [`evaluate`].
#[derive(Debug)]
pub enum Progress<'a> {
    /// Finished forward passes of windows, and their total number.
    Passes(usize, usize),
    /// The result of a finished setting. The reference comes first.
    Result(&'a EvalResult),
}

/// Compares `settings` with `reference` on `text`, one after the other.
///
/// # Errors
/// [`ModelError::Evaluation`] if the windows do not fit the text or the model,
/// [`ModelError::NonFiniteLogits`], and errors of tokeniser and caches.
pub fn evaluate(
    model: &Model,
    text: &[u8],
    spec: &EvalSpec,
    reference: &Setting<'_>,
    settings: &[Setting<'_>],
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<EvalReport, ModelError> {
    let texts = model.windows(text, spec)?;
    if spec.from + 1 >= spec.context {
        return Err(ModelError::Evaluation(format!(
            "positions from {} on in windows of {} tokens: expected 0 to {}",
            spec.from,
            spec.context,
            spec.context - 2
        )));
    }
    let windows = texts.len();
    let total = windows * (settings.len() + 1);
    let mut done = 0;
    let mut bases = Vec::with_capacity(windows);
    let mut tally = Tally::over(windows);
    for window in &texts {
        let mut states = States::default();
        let hidden = run(model, window, spec, (reference, None), &mut tally, &mut |layer, _, x| {
            if spec.layers {
                states.push(layer, x);
            }
        })?;
        score(model, window, spec.from, [&hidden, &hidden], &mut tally)?;
        bases.push((hidden, states));
        done += 1;
        progress(Progress::Passes(done, total));
    }
    if spec.layers {
        tally.cosine = vec![tally.tokens as f64; model.config().num_layers];
    }
    if spec.attention {
        tally.attention = vec![(0.0, 1.0)];
    }
    let nll = tally.nll();
    let reference_setting = reference;
    let reference = tally.finish(&reference.name, nll);
    progress(Progress::Result(&reference));
    let mut results = Vec::with_capacity(settings.len());
    for setting in settings {
        let mut tally = Tally::over(windows);
        for (window, (base, states)) in texts.iter().zip(&bases) {
            let mut cosines = Vec::new();
            let beside = Some(reference_setting).filter(|_| spec.attention || spec.scores);
            let hidden = run(model, window, spec, (setting, beside), &mut tally, &mut |layer, offset, x| {
                if spec.layers {
                    cosines.push((layer, states.cosine_sum(layer, offset, x, model.config().hidden_size)));
                }
            })?;
            tally.add_cosines(&cosines);
            score(model, window, spec.from, [base, &hidden], &mut tally)?;
            done += 1;
            progress(Progress::Passes(done, total));
        }
        let result = tally.finish(&setting.name, nll);
        progress(Progress::Result(&result));
        results.push(result);
    }
    Ok(EvalReport { context: spec.context, windows, reference, results })
}

/// Runs one window through a fresh cache. A cache of another setting runs beside it if attention is compared.
/// Returns the last hidden states.
fn run(
    model: &Model,
    window: &[u32],
    spec: &EvalSpec,
    (setting, beside): (&Setting<'_>, Option<&Setting<'_>>),
    tally: &mut Tally,
    observer: &mut dyn FnMut(usize, usize, &[f32]),
) -> Result<Vec<f32>, ModelError> {
    let exact = beside.map(|beside| (beside.new_cache)()).transpose()?;
    let errors = spec.attention.then_some(&mut tally.attention);
    let scores = spec.scores.then(|| tally.scores.window());
    let mut cache = Compared { cache: (setting.new_cache)()?, exact, errors, scores };
    let mut hidden = Vec::with_capacity(window.len() * model.config().hidden_size);
    let mut start = 0;
    for tokens in window.chunks(spec.step.unwrap_or(window.len()).max(1)) {
        let states = model.hidden(tokens, start, &mut cache, &mut |layer, offset, x| {
            observer(layer, start + offset, x);
        })?;
        hidden.extend_from_slice(&states);
        start += tokens.len();
    }
    let (bytes, heads) = (cache.allocated_bytes(), cache.head_stats());
    tally.cache_bytes += bytes;
    if spec.layers {
        tally.add_heads(&heads);
    }
    Ok(hidden)
}

/// A cache, and optionally another one that receives the same queries, keys and values.
struct Compared<'a> {
    cache: Box<dyn AttentionCache>,
    exact: Option<Box<dyn AttentionCache>>,
    /// Per layer, sums of squares of the errors and of the exact outputs.
    errors: Option<&'a mut Vec<(f64, f64)>>,
    scores: Option<Scores<'a>>,
}

impl AttentionCache for Compared<'_> {
    fn shape(&self) -> KvShape {
        self.cache.shape()
    }

    fn attend_chunk(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        own: &mut [f32],
    ) -> Result<(), CacheError> {
        let Some(beside) = &mut self.exact else { return self.cache.attend_chunk(layer, q, k, v, own) };
        let mut exact = vec![0.0; own.len()];
        match &mut self.scores {
            None => {
                beside.attend_chunk(layer, q, k, v, &mut exact)?;
                self.cache.attend_chunk(layer, q, k, v, own)?;
            }
            Some(scores) => {
                scores.attend(&mut **beside, &mut *self.cache, layer, (q, k, v), (&mut exact, own))?;
            }
        }
        let Some(errors) = &mut self.errors else { return Ok(()) };
        if errors.len() <= layer {
            errors.resize(layer + 1, (0.0, 0.0));
        }
        let (error, norm) = &mut errors[layer];
        for (a, b) in own.iter().zip(&exact) {
            *error += f64::from(a - b).powi(2);
            *norm += f64::from(*b).powi(2);
        }
        Ok(())
    }

    fn len(&self) -> usize {
        self.cache.len()
    }

    fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        self.exact.as_mut().map_or(Ok(()), |exact| exact.truncate(len))?;
        self.cache.truncate(len)
    }

    fn reset(&mut self) {
        self.exact.iter_mut().for_each(|exact| exact.reset());
        self.cache.reset();
    }

    fn allocated_bytes(&self) -> usize {
        self.cache.allocated_bytes()
    }

    fn head_stats(&self) -> Vec<HeadStats> {
        self.cache.head_stats()
    }
}

/// The reference's residual stream after every layer, `[T, hidden_size]` each.
#[derive(Default)]
struct States(Vec<Vec<f32>>);

impl States {
    fn push(&mut self, layer: usize, x: &[f32]) {
        if self.0.len() <= layer {
            self.0.resize(layer + 1, Vec::new());
        }
        self.0[layer].extend_from_slice(x);
    }

    /// Sums the cosines of the rows of `x` and the reference's rows from `offset` on.
    fn cosine_sum(&self, layer: usize, offset: usize, x: &[f32], width: usize) -> f64 {
        let reference = self.0[layer][offset * width..].chunks_exact(width);
        x.chunks_exact(width).zip(reference).map(|(a, b)| cosine(a, b)).sum()
    }
}
