//! Sums over the positions of a setting, and its figures.

use super::figures::{DepthFigures, EvalResult, HeadFigures};
use super::scores;
use super::window::{Asks, Depth, Window};
use crate::sampling::argmax;
use crate::{Model, ModelError};
use tqkv::cache::HeadStats;

/// Rows of logits that are held at once. This bounds memory for vocabularies of 100,000 tokens and more.
const LOGIT_ROWS: usize = 128;

/// Compares the logits of the reference and of a setting at the scored positions, a few rows at a time.
pub(crate) fn score(
    model: &Model,
    window: &Window,
    [base, hidden]: [&[f32]; 2],
    tally: &mut Tally,
) -> Result<(), ModelError> {
    let (width, vocab) = (model.config().hidden_size, model.config().vocab_size);
    let before = tally.kl.len();
    tally.tokens += window.tokens.len();
    for (i, span) in window.scored.iter().enumerate() {
        let (scored, right) = (tally.kl.len(), tally.right);
        for first in span.clone().step_by(LOGIT_ROWS) {
            let rows = first..span.end.min(first + LOGIT_ROWS);
            let values = rows.start * width..rows.end * width;
            let base = log_softmax(&model.logits(&base[values.clone()]), vocab, first)?;
            let own = log_softmax(&model.logits(&hidden[values]), vocab, first)?;
            for (position, (base, own)) in rows.zip(base.iter().zip(&own)) {
                tally.add(base, own, window.tokens.get(position + 1).map(|t| *t as usize));
            }
        }
        if let Some(depth) = window.depths.get(i) {
            tally.kl_of_depths[*depth as usize].extend_from_slice(&tally.kl[scored..]);
        }
        if matches!(window.asks, Asks::Parts) {
            let is_right = tally.right - right == span.len();
            tally.answers.push(f64::from(u8::from(is_right)));
        }
    }
    tally.kl_of_windows.push(mean(&tally.kl[before..]));
    Ok(())
}

/// Log probabilities of one position.
struct LogProbs {
    values: Vec<f32>,
    best: usize,
}

fn log_softmax(logits: &[f32], vocab: usize, first: usize) -> Result<Vec<LogProbs>, ModelError> {
    let row = |(i, row): (usize, &[f32])| {
        let best = argmax(row).ok_or(ModelError::NonFiniteLogits { position: first + i })?;
        let max = row[best];
        // The sum is in f64: in f32 a vocabulary of 150,000 equal terms would lose digits.
        let log_sum = row.iter().map(|l| f64::from((l - max).exp())).sum::<f64>().ln();
        let values = row.iter().map(|l| (f64::from(l - max) - log_sum) as f32).collect();
        Ok(LogProbs { values, best })
    };
    logits.chunks_exact(vocab).enumerate().map(row).collect()
}

/// Running sums of one setting.
#[derive(Default)]
pub(crate) struct Tally {
    nll: f64,
    scored: usize,
    /// Tokens of all windows, scored or not.
    pub(super) tokens: usize,
    /// One entry per scored position.
    pub(super) kl: Vec<f32>,
    kl_of_windows: Vec<f64>,
    /// Those entries of `kl` that a depth has.
    kl_of_depths: [Vec<f32>; Depth::ALL.len()],
    agreed: usize,
    /// Positions whose likeliest token is the one that follows.
    right: usize,
    /// The score of each answer.
    pub(super) answers: Vec<f64>,
    pub(super) cache_bytes: usize,
    pub(super) cosine: Vec<f64>,
    heads: Vec<HeadFigures>,
    /// The weight of a window in the means.
    share: f64,
    /// Per layer, sums of squares of the attention outputs' errors and of the reference's outputs.
    pub(super) attention: Vec<(f64, f64)>,
    pub(super) scores: scores::ScoreTally,
}

impl Tally {
    /// Empty sums for `windows` windows.
    pub(crate) fn over(windows: usize) -> Self {
        Self { share: 1.0 / windows as f64, ..Self::default() }
    }

    fn add(&mut self, reference: &LogProbs, own: &LogProbs, target: Option<usize>) {
        if let Some(target) = target {
            self.nll -= f64::from(own.values[target]);
            self.scored += 1;
            self.right += usize::from(own.best == target);
        }
        let kl = |(r, o): (&f32, &f32)| {
            // A token of probability 0 adds nothing, whatever the other probability is.
            if *r == f32::NEG_INFINITY { 0.0 } else { f64::from(r.exp()) * (f64::from(*r) - f64::from(*o)) }
        };
        self.kl.push(reference.values.iter().zip(&own.values).map(kl).sum::<f64>() as f32);
        self.agreed += usize::from(reference.best == own.best);
    }

    /// Mean negative log likelihood so far.
    pub(crate) fn nll(&self) -> f64 {
        self.nll / self.scored as f64
    }

    pub(super) fn add_cosines(&mut self, sums: &[(usize, f64)]) {
        for &(layer, sum) in sums {
            if self.cosine.len() <= layer {
                self.cosine.resize(layer + 1, 0.0);
            }
            self.cosine[layer] += sum;
        }
    }

    pub(super) fn add_heads(&mut self, heads: &[HeadStats]) {
        if self.heads.is_empty() {
            self.heads = heads.iter().map(|head| HeadFigures::none(head.layer, head.kv_head)).collect();
        }
        for (figures, stats) in self.heads.iter_mut().zip(heads) {
            figures.add(stats, self.share);
        }
    }

    pub(crate) fn finish(mut self, name: &str, reference_nll: f64) -> EvalResult {
        let (positions, tokens) = (self.kl.len() as f64, self.tokens as f64);
        let nll = self.nll();
        EvalResult {
            name: name.to_owned(),
            nll,
            perplexity: nll.exp(),
            nll_delta: nll - reference_nll,
            kl: mean(&self.kl),
            kl_of_windows: self.kl_of_windows,
            kl_by_depth: by_depth(&self.kl_of_depths),
            kl_p99: exceeded_by(&mut self.kl, 10),
            kl_p999: exceeded_by(&mut self.kl, 1),
            top1_agreement: self.agreed as f64 / positions,
            right: self.right as f64 / self.scored as f64,
            answers: (!self.answers.is_empty())
                .then(|| self.answers.iter().sum::<f64>() / self.answers.len() as f64),
            cache_bytes_per_token: self.cache_bytes as f64 / tokens,
            layer_cosine: self.cosine.iter().map(|sum| sum / tokens).collect(),
            heads: self.heads,
            scores: self.scores.finish(),
            attention_error: (!self.attention.is_empty()).then(|| {
                let errors = self.attention.iter().map(|(error, norm)| error / norm.max(f64::MIN_POSITIVE));
                errors.sum::<f64>() / self.attention.len() as f64
            }),
        }
    }
}

/// The means of the depths, if every depth has some figures.
fn by_depth(depths: &[Vec<f32>; Depth::ALL.len()]) -> Option<DepthFigures> {
    let [first_page, middle, end] = depths.each_ref().map(|kl| mean(kl));
    depths.iter().all(|kl| !kl.is_empty()).then_some(DepthFigures { first_page, middle, end })
}

fn mean(values: &[f32]) -> f64 {
    values.iter().map(|x| f64::from(*x)).sum::<f64>() / values.len() as f64
}

/// The value that `few` of a thousand values exceed.
fn exceeded_by(values: &mut [f32], few: usize) -> f64 {
    let at = (values.len() * (1000 - few)).div_ceil(1000).saturating_sub(1);
    if values.is_empty() { 0.0 } else { f64::from(*values.select_nth_unstable_by(at, f32::total_cmp).1) }
}
