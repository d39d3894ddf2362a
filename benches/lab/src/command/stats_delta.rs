//! `tqkv-lab stats --delta`: tests if differences between layers would take fewer bits than the layers.

use std::path::Path;

use serde::Serialize;
use tqkv_cli::error::CliError;
use tqkv_cli::output::{Output, Waiting, grouped, table};
use tqkv_model::{Model, ModelError, shipped};

use crate::stats::delta::{DeltaFigures, Kinds, centre};

/// Number of tokens of the held-out text to run, if the model's context has room for them.
const TOKENS: usize = 1024;

#[derive(Serialize)]
struct Report {
    model: String,
    tokens: usize,
    delta: Vec<DeltaFigures>,
}

/// Measures the shipped model, or the model at `path`.
pub(super) fn run(path: Option<&Path>, out: &mut Output) -> Result<(), CliError> {
    let _waiting = Waiting::new("measuring layers against each other");
    let bad = |error: ModelError| CliError::model(path, &error);
    let model = path.map_or_else(Model::shipped, Model::load).map_err(bad)?;
    let tokens =
        model.first_tokens(shipped::HELDOUT_TEXT, TOKENS.min(model.config().context)).map_err(bad)?;
    let delta = figures(&model, &tokens).map_err(bad)?;
    if delta.is_empty() {
        return Err(CliError::bad_input("the model has no two layers of equal size: expected two or more"));
    }
    out.print(&Report { model: model.name().to_owned(), tokens: tokens.len(), delta }, human)
}

/// Figures of keys and values, without the mean of each channel, and of the weights.
pub(crate) fn figures(model: &Model, tokens: &[u32]) -> Result<Vec<DeltaFigures>, ModelError> {
    let mut cache = model.config().dense_cache()?;
    model.hidden(tokens, 0, &mut cache, &mut |_, _, _| {})?;
    let (shape, mut kinds) = (model.config().kv_shape(), Kinds::default());
    let latent = model.config().latent.is_some();
    for layer in 0..shape.num_layers {
        let side = |of: &dyn Fn(usize) -> Vec<f32>| (0..shape.num_kv_heads).flat_map(of).collect::<Vec<_>>();
        let centred = |rows: Option<&[f32]>, dim: usize| {
            let mut rows = rows.unwrap_or_default().to_vec();
            centre(&mut rows, dim);
            rows
        };
        kinds.push("keys", &side(&|head| centred(cache.keys(layer, head), shape.head_dim)));
        if !latent {
            kinds.push("values", &side(&|head| centred(cache.values(layer, head), shape.value_dim)));
        }
    }
    model.projections(&mut |_, name, weights| kinds.push(&format!("weights {name}"), weights))?;
    Ok(kinds.figures())
}

fn human(report: &Report) -> String {
    let rows = report.delta.iter().map(|row| {
        vec![
            row.what.clone(),
            row.pairs.to_string(),
            grouped(row.numbers as u64),
            format!("{:+.4}", row.correlation),
            format!("{:+.4}", row.strongest),
            format!("{:.3}", row.difference_energy),
            format!("{:.4}", row.bits_saved),
            format!("{:.4}", row.entropy),
            format!("{:.4}", row.entropy_given_last),
        ]
    });
    let head = [
        "each layer from the last",
        "pairs",
        "numbers",
        "correlation",
        "strongest",
        "difference energy",
        "bits saved",
        "entropy",
        "given last",
    ];
    format!("model {}, {} tokens\n{}", report.model, report.tokens, table(&head, rows))
}
