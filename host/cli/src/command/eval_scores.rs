//! The tables of `tqkv eval --attention`.

use tqkv_model::eval::ScoreFigures;

use crate::output::table;

/// A row per layer, then a row for all of them.
pub(super) fn table_of(scores: &[ScoreFigures]) -> String {
    let head = ["layer", "heads", "cosine", "least", "top-1", "least", "top-5", "least"];
    let layers = scores.chunk_by(|a, b| a.layer == b.layer);
    let rows = layers.map(|heads| row(heads[0].layer.to_string(), heads));
    table(&head, rows.chain([row("all".to_owned(), scores)]))
}

fn row(name: String, heads: &[ScoreFigures]) -> Vec<String> {
    let of = |figure: fn(&ScoreFigures) -> f64| {
        let least = heads.iter().map(figure).fold(f64::INFINITY, f64::min);
        (heads.iter().map(figure).sum::<f64>() / heads.len() as f64, least)
    };
    let (cosine, least) = of(|head| head.cosine);
    let mut cells = vec![name, heads.len().to_string(), format!("{cosine:.6}"), format!("{least:.6}")];
    for (mean, least) in [of(|head| head.top1), of(|head| head.top5)] {
        cells.extend([mean, least].map(|share| format!("{:.2} %", 100.0 * share)));
    }
    cells
}
