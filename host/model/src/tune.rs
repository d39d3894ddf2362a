//! A policy for the cache of one model, chosen by where the model copies.
//!
//! A few KV heads of a model do most of the copying from earlier tokens, and wide keys in their layers lose much less
//! than the same bytes in all layers. Three steps find a policy:
//!
//! 1. [`look_back`] scores each KV head on random tokens that come twice, so it needs no text.
//! 2. [`candidates`] spends a budget of bytes on wider keys, first in the layers with the largest scores.
//! 3. [`measure`] compares the candidates on texts whose answers stand far back, and [`best`] takes the one that loses
//!    least.
//!
//! The result is a text of a policy ([`tqkv::cache::Policy`]), so it works wherever a policy is read.

mod candidates;
mod heads;
mod watch;

pub use candidates::{Candidate, Limit, candidates, least};
pub use heads::{HeadScore, LOOKS_BACK, layers_that_look_back, look_back, ranked_layers};

use crate::eval::{EvalResult, EvalSpec, Progress, Recall, Setting, evaluate_late_recall};
use crate::{Model, ModelError};
use tqkv::attention::AttentionCache;
use tqkv::cache::KvCache;

/// Kinds of text on which candidates are compared, unless others are asked for.
pub const KINDS: [Recall; 6] =
    [Recall::Prose, Recall::Copy, Recall::Table, Recall::Facts, Recall::Json, Recall::Chat];

/// Compares candidates with f16 on texts of `kinds`, `spec.windows` of each (one if it is `None`), `spec.context` tokens
/// long. Returns a result per kind for each candidate.
///
/// The texts are others than those of [`crate::eval::evaluate_recall`]: they come from the end of `text`, with other
/// facts, so that what was chosen here can be measured there.
///
/// # Errors
/// The errors of [`crate::eval::evaluate_recall`].
pub fn measure(
    model: &Model,
    candidates: &[Candidate],
    (text, kinds): (&[u8], &[Recall]),
    spec: &EvalSpec,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Vec<EvalResult>>, ModelError> {
    let base = model.config().cache_spec();
    let setting = |name: &str, spec| Setting {
        name: name.to_owned(),
        new_cache: Box::new(move || {
            Ok(Box::new(KvCache::new(Clone::clone(&spec))?) as Box<dyn AttentionCache>)
        }),
    };
    let reference = setting("f16", watch::exact(base.clone()));
    let settings = candidates
        .iter()
        .map(|candidate| Ok(setting(&candidate.text, base.clone().with(&candidate.text)?)))
        .collect::<Result<Vec<_>, ModelError>>()?;
    let mut all = evaluate_late_recall(model, (text, kinds), spec, &reference, &settings, progress)?;
    all.remove(0);
    Ok(all)
}

/// The geometric mean of the divergence on each kind of text, so that the kind that loses most does not decide alone.
#[must_use]
pub fn mean_kl(results: &[EvalResult]) -> f64 {
    let logarithms = results.iter().map(|result| result.kl.max(f64::MIN_POSITIVE).ln());
    (logarithms.sum::<f64>() / results.len() as f64).exp()
}

/// The candidate with the least mean divergence ([`mean_kl`]). One whose codes narrow with age is left out, because texts
/// that are shorter than the context show too little of it. `None` without any other.
#[must_use]
pub fn best(candidates: &[Candidate], kl: &[f64]) -> Option<usize> {
    let chosen =
        candidates.iter().zip(kl).enumerate().filter(|(_, (candidate, _))| !candidate.narrows_with_age);
    chosen.min_by(|(_, (_, a)), (_, (_, b))| a.total_cmp(b)).map(|(i, _)| i)
}
