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

mod answers;
mod cosine;
mod figures;
mod marks;
mod prompt;
mod recall;
mod scores;
mod tally;
mod window;

pub use figures::{DepthFigures, EvalResult, HeadFigures};
pub use marks::{Marked, evaluate_marked};
pub use prompt::Prompt;
pub(crate) use recall::evaluate_late_recall;
pub use recall::{Recall, evaluate_recall};
pub use scores::{PROBE, ScoreFigures};

use crate::{Model, ModelError};
use cosine::cosine;
use scores::Scores;
pub(crate) use tally::{Tally, score};
use tqkv::KvShape;
use tqkv::attention::AttentionCache;
use tqkv::cache::HeadStats;
use tqkv::error::CacheError;
pub(crate) use window::Window;

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
    /// Windows from the start of the text. `None` means all complete windows.
    pub windows: Option<usize>,
    /// Tokens per forward pass. `None` means a whole window. 1 attends like generation, one query at a time. What
    /// comes before the first scored token is a prompt then, which is one pass.
    pub step: Option<usize>,
    /// First position of a window that is scored. Tokens before it are input only.
    pub from: usize,
    /// What the tokens of prompts read.
    pub prompt: Prompt,
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
        let prompt = Prompt::Codes;
        Self { context, windows, step: None, from: 0, prompt, layers: false, attention: false, scores: false }
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

/// Progress of [`evaluate`], [`evaluate_marked`] and [`evaluate_recall`].
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
    let windows: Vec<_> = texts.into_iter().map(|text| Window::scored_from(spec.from, text)).collect();
    report(model, &windows, spec, (reference, settings), progress)
}

/// Compares settings with a reference on one set of windows.
fn report(
    model: &Model,
    windows: &[Window],
    spec: &EvalSpec,
    settings: (&Setting<'_>, &[Setting<'_>]),
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<EvalReport, ModelError> {
    let mut results = compare(model, &[windows], spec, settings, progress)?.into_iter().flatten();
    let reference = results.next().expect("the reference is measured first");
    Ok(EvalReport { context: spec.context, windows: windows.len(), reference, results: results.collect() })
}

/// Measures each setting on each set of windows, the reference first. Returns the results of the sets per setting.
fn compare(
    model: &Model,
    sets: &[&[Window]],
    spec: &EvalSpec,
    (reference, settings): (&Setting<'_>, &[Setting<'_>]),
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Vec<EvalResult>>, ModelError> {
    let total = sets.iter().map(|set| set.len()).sum::<usize>() * (settings.len() + 1);
    let mut passes = 0;
    let mut pass = |progress: &mut dyn FnMut(Progress<'_>)| {
        passes += 1;
        progress(Progress::Passes(passes, total));
    };
    let mut all = vec![Vec::with_capacity(sets.len())];
    let mut bases = Vec::with_capacity(sets.len());
    for set in sets {
        let (tally, base) = measure_reference(model, set, spec, reference, &mut || pass(progress))?;
        let nll = tally.nll();
        let result = tally.finish(&reference.name, nll);
        progress(Progress::Result(&result));
        all[0].push(result);
        bases.push((base, nll));
    }
    for setting in settings {
        let mut results = Vec::with_capacity(sets.len());
        for (set, (base, nll)) in sets.iter().zip(&bases) {
            let needs_exact = spec.attention || spec.scores || spec.prompt != Prompt::Codes;
            let beside = Some(reference).filter(|_| needs_exact);
            let tally = measure(model, (set, base), spec, (setting, beside), &mut || pass(progress))?;
            let result = tally.finish(&setting.name, *nll);
            progress(Progress::Result(&result));
            results.push(result);
        }
        all.push(results);
    }
    Ok(all)
}

/// What the reference leaves of a window: its last hidden states, and those of every layer if they are compared.
type Base = (Vec<f32>, States);

/// Runs the reference over a set of windows. `pass` is called after each.
fn measure_reference(
    model: &Model,
    set: &[Window],
    spec: &EvalSpec,
    reference: &Setting<'_>,
    pass: &mut dyn FnMut(),
) -> Result<(Tally, Vec<Base>), ModelError> {
    let mut tally = Tally::over(set.len());
    let mut bases = Vec::with_capacity(set.len());
    for window in set {
        let mut states = States::default();
        let hidden = run(model, window, spec, (reference, None), &mut tally, &mut |layer, _, x| {
            if spec.layers {
                states.push(layer, x);
            }
        })?;
        score(model, window, [&hidden, &hidden], &mut tally)?;
        bases.push((hidden, states));
        pass();
    }
    if spec.layers {
        tally.cosine = vec![tally.tokens as f64; model.config().num_layers];
    }
    if spec.attention {
        tally.attention = vec![(0.0, 1.0)];
    }
    Ok((tally, bases))
}

/// Runs a setting over a set of windows. `pass` is called after each.
fn measure(
    model: &Model,
    (set, bases): (&[Window], &[Base]),
    spec: &EvalSpec,
    (setting, beside): (&Setting<'_>, Option<&Setting<'_>>),
    pass: &mut dyn FnMut(),
) -> Result<Tally, ModelError> {
    let mut tally = Tally::over(set.len());
    for (window, (base, states)) in set.iter().zip(bases) {
        let mut cosines = Vec::new();
        let hidden = run(model, window, spec, (setting, beside), &mut tally, &mut |layer, offset, x| {
            if spec.layers {
                cosines.push((layer, states.cosine_sum(layer, offset, x, model.config().hidden_size)));
            }
        })?;
        tally.add_cosines(&cosines);
        score(model, window, [base, &hidden], &mut tally)?;
        pass();
    }
    Ok(tally)
}

/// Runs one window through a fresh cache. A cache of another setting runs with it if attention is compared.
/// Returns the last hidden states.
fn run(
    model: &Model,
    window: &Window,
    spec: &EvalSpec,
    (setting, beside): (&Setting<'_>, Option<&Setting<'_>>),
    tally: &mut Tally,
    observer: &mut dyn FnMut(usize, usize, &[f32]),
) -> Result<Vec<f32>, ModelError> {
    let mut cache = Compared::new((setting, beside))?;
    cache.errors = spec.attention.then_some(&mut tally.attention);
    cache.scores = spec.scores.then(|| tally.scores.window());
    let tokens = &window.tokens;
    let mut hidden = Vec::with_capacity(tokens.len() * model.config().hidden_size);
    for (range, reads_exact) in spec.prompt.passes(window, spec.step) {
        let start = range.start;
        let end = range.end;
        cache.reads_exact = reads_exact;
        let states = model.hidden(&tokens[range], start, &mut cache, &mut |layer, offset, x| {
            observer(layer, start + offset, x);
        })?;
        hidden.extend_from_slice(&states);
        if let Some(answer) = window.answer().filter(|answer| answer.begin == end) {
            let last = &states[states.len() - model.config().hidden_size..];
            let mut copy = match cache.copied().transpose()? {
                Some(copy) => copy,
                None => having_read(model, window, end, spec, (setting, beside))?,
            };
            tally.answers.push(answers::score(model, (window, answer), &mut copy, last)?);
        }
    }
    let (bytes, heads) = (cache.allocated_bytes(), cache.head_stats());
    tally.cache_bytes += bytes;
    if spec.layers {
        tally.add_heads(&heads);
    }
    Ok(hidden)
}

/// Another cache that has read the first tokens of a window, where a cache has no copies.
fn having_read(
    model: &Model,
    window: &Window,
    tokens: usize,
    spec: &EvalSpec,
    settings: (&Setting<'_>, Option<&Setting<'_>>),
) -> Result<Compared<'static>, ModelError> {
    let mut cache = Compared::new(settings)?;
    let passes = spec.prompt.passes(window, spec.step).into_iter();
    for (range, reads_exact) in passes.take_while(|(range, _)| range.end <= tokens) {
        let start = range.start;
        cache.reads_exact = reads_exact;
        model.hidden(&window.tokens[range], start, &mut cache, &mut |_, _, _| {})?;
    }
    cache.reads_exact = false;
    Ok(cache)
}

/// A cache, and optionally another one that receives the same queries, keys and values.
struct Compared<'a> {
    cache: Box<dyn AttentionCache>,
    exact: Option<Box<dyn AttentionCache>>,
    /// Per layer, sums of squares of the errors and of the exact outputs.
    errors: Option<&'a mut Vec<(f64, f64)>>,
    scores: Option<Scores<'a>>,
    /// The model goes on with what the other cache gives.
    reads_exact: bool,
}

impl Compared<'_> {
    /// Empty caches, of which nothing is compared yet.
    fn new((setting, beside): (&Setting<'_>, Option<&Setting<'_>>)) -> Result<Self, CacheError> {
        let exact = beside.map(|beside| (beside.new_cache)()).transpose()?;
        Ok(Self { cache: (setting.new_cache)()?, exact, errors: None, scores: None, reads_exact: false })
    }

    /// Other caches with the same tokens, which go on with what their own gives. `None` if one has no copies.
    fn copied(&self) -> Option<Result<Compared<'static>, CacheError>> {
        let exact = match &self.exact {
            Some(exact) => Some(exact.fork()?),
            None => None,
        };
        let cache = self.cache.fork()?;
        Some(exact.transpose().and_then(|exact| {
            Ok(Compared { cache: cache?, exact, errors: None, scores: None, reads_exact: false })
        }))
    }
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
        if let Some(errors) = &mut self.errors {
            if errors.len() <= layer {
                errors.resize(layer + 1, (0.0, 0.0));
            }
            let (error, norm) = &mut errors[layer];
            for (a, b) in own.iter().zip(&exact) {
                *error += f64::from(a - b).powi(2);
                *norm += f64::from(*b).powi(2);
            }
        }
        if self.reads_exact {
            own.copy_from_slice(&exact);
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
