//! The report of `tqkv plan`, and its table.

use crate::output::{bytes, grouped, sized, table};
use serde::Serialize;

use super::plan_loading::Loading;

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) layers: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) value_dim: usize,
    /// True if a token is one latent vector per layer, stored in the codec of K.
    pub(super) latent: bool,
    /// Number of layers with a sliding window, and the tokens of the window.
    pub(super) windowed_layers: usize,
    pub(super) window: Option<u64>,
    /// Longest sequence of the model; null if the model states none.
    pub(super) model_context: Option<u64>,
    pub(super) memory: Option<u64>,
    /// With `--weights` or `--weight-bits`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) weights: Option<Weights>,
    /// Tokens, bandwidth and weights of a step, if given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bandwidth: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) weight_bytes: Option<u64>,
    pub(super) hot: usize,
    pub(super) sinks: usize,
    /// Bytes of the basis, needed once for all stored tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) basis_bytes: Option<u64>,
    pub(super) rows: Vec<Row>,
    /// With `--storage` and `--bandwidth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) loading: Option<Loading>,
}

/// Bytes of the weights in their stored form.
#[derive(Serialize)]
pub(super) struct Weights {
    pub(super) all: u64,
    /// Embedding, output head and all other weights outside the layers.
    pub(super) beside_layers: u64,
    pub(super) largest_layer: u64,
    /// Bytes in memory at once if layers are streamed.
    pub(super) streamed: u64,
}

#[derive(Serialize)]
pub(super) struct Row {
    /// Null in the row of another program's format, which has a name instead.
    pub(super) codec_k: Option<&'static str>,
    pub(super) codec_v: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) other: Option<String>,
    /// The text of `--policy`, or its equivalent if the options set tiers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<String>,
    /// Bytes that a token adds, in the oldest tier if there are tiers.
    pub(super) bytes_per_token: u64,
    /// The same once windows are full; null without windows.
    pub(super) bytes_per_token_past_window: Option<u64>,
    pub(super) f16_ratio: f64,
    pub(super) f32_ratio: f64,
    /// Longest context in the budget, at most the model's; null without a budget.
    pub(super) max_tokens: Option<u64>,
    #[serde(flatten)]
    pub(super) step: Step,
}

/// Memory and step time for the tokens of `--tokens`.
#[derive(Default, Serialize)]
pub(super) struct Step {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cache_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) read_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) step_ms: Option<f64>,
}

/// The text report.
pub(super) fn human(report: &Report) -> String {
    let mut text = shape(report);
    if let Some(weights) = &report.weights {
        text.push_str(&format!(
            "\n{} of weights, {} where layers are streamed: two of at most {}, {} beside them",
            bytes(weights.all),
            sized(weights.streamed),
            sized(weights.largest_layer),
            sized(weights.beside_layers)
        ));
    }
    let f16 = format!("of it f16: {} first and {} newest tokens", report.sinks, report.hot);
    match (report.memory, report.tokens) {
        (Some(memory), _) => text.push_str(&format!("\n{} of cache, {f16}", bytes(memory))),
        (None, Some(_)) => text.push_str(&format!("\n{f16}")),
        (None, None) => {}
    }
    if let (Some(tokens), Some(bandwidth)) = (report.tokens, report.bandwidth) {
        let weights = report
            .weight_bytes
            .map_or(String::new(), |weights| format!(", and {} of weights", bytes(weights)));
        text.push_str(&format!(
            "\na step reads the cache of {} tokens once{weights}, at {} bytes a second",
            grouped(tokens),
            grouped(bandwidth)
        ));
    }
    if let Some(basis) = report.basis_bytes {
        text.push_str(&format!("\na basis of stored tokens takes {}, once for all of them", bytes(basis)));
    }
    text.push_str(&format!("\n{}", table(&head(report), report.rows.iter().map(|row| cells(report, row)))));
    if let Some(loading) = &report.loading {
        text.push_str(&format!("\n\n{}", loading.human()));
    }
    text
}

fn shape(report: &Report) -> String {
    let mut text =
        format!("{} layers, {} KV heads, head dim {}", report.layers, report.kv_heads, report.head_dim);
    if report.value_dim != report.head_dim {
        text.push_str(&format!(", that of values {}", report.value_dim));
    }
    if report.latent {
        text.push_str(", one latent vector for key and value, kept by the codec of K");
    }
    if let Some(window) = report.window {
        let (layers, window) = (report.windowed_layers, grouped(window));
        text.push_str(&format!("\n{layers} of the layers see the newest {window} tokens only"));
    }
    text
}

fn head(report: &Report) -> Vec<&'static str> {
    let columns = [
        ("past window", report.window.is_some()),
        ("longest context", report.memory.is_some()),
        ("cache", report.tokens.is_some()),
        ("read ms", report.bandwidth.is_some()),
        ("step ms", report.weight_bytes.is_some()),
    ];
    let columns = columns.into_iter().filter_map(|(name, there)| there.then_some(name));
    ["K,V", "bytes/token", "f16 ratio", "f32 ratio"].into_iter().chain(columns).collect()
}

fn cells(report: &Report, row: &Row) -> Vec<String> {
    let pair = || format!("{},{}", row.codec_k.unwrap_or_default(), row.codec_v.unwrap_or_default());
    let mut cells = vec![
        row.other.clone().or_else(|| row.policy.clone()).unwrap_or_else(pair),
        grouped(row.bytes_per_token),
        format!("{:.2}", row.f16_ratio),
        format!("{:.2}", row.f32_ratio),
    ];
    cells.extend(row.bytes_per_token_past_window.map(grouped));
    cells.extend(row.max_tokens.map(|tokens| match tokens {
        u64::MAX => "no bound".to_owned(),
        tokens if Some(tokens) == report.model_context => format!("{} (the model's)", grouped(tokens)),
        tokens => grouped(tokens),
    }));
    cells.extend(row.step.cache_bytes.map(sized));
    cells.extend([row.step.read_ms, row.step.step_ms].into_iter().flatten().map(|ms| format!("{ms:.2}")));
    cells
}
