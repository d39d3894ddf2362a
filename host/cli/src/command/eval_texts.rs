//! Figures of caches on texts that ask for what stands far back.

use serde::Serialize;
use tqkv_model::eval::{DepthFigures, EvalResult, Recall};

use crate::policy::Name;

/// Figures of one setting.
#[derive(Serialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) name: Name,
    pub(super) cache_bytes_per_token: f64,
    /// In the order of the kinds that were asked for.
    pub(super) texts: Vec<Cell>,
}

/// Figures of one setting on one kind of text.
#[derive(Serialize)]
pub(super) struct Cell {
    pub(super) text: &'static str,
    pub(super) kl_to_f16: f64,
    /// That of each text.
    pub(super) kl_of_texts: Vec<f64>,
    /// By the depth at which the texts told what they ask for, for kinds that tell at every depth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kl_by_depth: Option<DepthFigures>,
    nll_delta: f64,
    top1_agreement: f64,
    /// Share of the scored tokens that are the likeliest ones.
    pub(super) right: f64,
}

impl Cell {
    /// The KL of the three depths, for kinds that tell at every depth.
    pub(super) fn depths(&self, between: &str) -> Option<String> {
        let DepthFigures { first_page, middle, end } = self.kl_by_depth?;
        Some([first_page, middle, end].map(|kl| format!("{kl:.4}")).join(between))
    }
}

impl Row {
    pub(super) fn new(name: Name, kinds: &[Recall], results: &[EvalResult]) -> Self {
        let cell = |(kind, result): (&Recall, &EvalResult)| Cell {
            text: kind.name(),
            kl_to_f16: result.kl,
            kl_of_texts: result.kl_of_windows.clone(),
            kl_by_depth: result.kl_by_depth,
            nll_delta: result.nll_delta,
            top1_agreement: result.top1_agreement,
            right: result.right,
        };
        let bytes: f64 = results.iter().map(|result| result.cache_bytes_per_token).sum();
        let texts = kinds.iter().zip(results).map(cell).collect();
        Self { name, cache_bytes_per_token: bytes / results.len() as f64, texts }
    }
}
