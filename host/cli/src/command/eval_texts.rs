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
    /// Share of the answers that are right, for kinds that ask for some.
    #[serde(skip_serializing_if = "Option::is_none")]
    answers: Option<f64>,
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
            answers: result.answers,
        };
        let bytes: f64 = results.iter().map(|result| result.cache_bytes_per_token).sum();
        let texts = kinds.iter().zip(results).map(cell).collect();
        Self { name, cache_bytes_per_token: bytes / results.len() as f64, texts }
    }
}

/// The table of right answers: a row for each kind that asks for some, with a column for each setting, f16 first.
/// Empty without such kinds.
pub(super) fn answers(rows: &[Row], name: &dyn Fn(&Row) -> String) -> (Vec<String>, Vec<Vec<String>>) {
    let names = rows.iter().map(name);
    let head = ["text".to_owned()].into_iter().chain(names).chain([String::new()]).collect();
    let kinds = rows.first().map_or(0, |f16| f16.texts.len());
    let lines = (0..kinds).filter_map(|kind| {
        let scores: Option<Vec<_>> = rows.iter().map(|row| row.texts[kind].answers).collect();
        let scores = scores?;
        let text = [rows[0].texts[kind].text.to_owned()];
        let cells = scores.iter().map(|score| format!("{:.0} %", 100.0 * score));
        Some(text.into_iter().chain(cells).chain([remark(scores[0]).to_owned()]).collect())
    });
    (head, lines.collect())
}

/// The answers of a model that has fewer than half of them right with f16 say nothing about a cache.
fn remark(f16: f64) -> &'static str {
    if f16 < 0.5 { "says nothing" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::remark;

    #[test]
    fn fewer_than_half_of_the_answers_say_nothing() {
        assert_eq!([0.0, 0.49, 0.5, 1.0].map(remark), ["says nothing", "says nothing", "", ""]);
    }
}
