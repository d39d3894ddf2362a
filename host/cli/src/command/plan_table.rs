//! The report of `tqkv plan`, and its table.

use crate::output::{bytes, grouped, sized, table};
use crate::plan::CacheShape;
use serde::Serialize;
use tqkv_model::{LayerKv, ModelKv};

use super::plan_loading::Loading;

#[derive(Default, Serialize)]
pub(super) struct Report {
    /// Layers that keep keys and values.
    pub(super) layers: usize,
    /// KV heads and coordinates of a key and of a value; null where layers have several.
    pub(super) kv_heads: Option<usize>,
    pub(super) head_dim: Option<usize>,
    pub(super) value_dim: Option<usize>,
    /// True if a token is one latent vector per layer, stored in the codec of K.
    pub(super) latent: bool,
    /// Number of layers with a sliding window, and the tokens of the longest.
    pub(super) windowed_layers: usize,
    pub(super) window: Option<u64>,
    /// The shapes of layers.
    pub(super) shapes: Vec<LayerShape>,
    /// The shape of each layer of the model by its index in `shapes`; null for a layer that keeps nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) layer_shapes: Option<Vec<Option<usize>>>,
    /// True if the model has an indexer, whose keys are not counted.
    pub(super) has_indexer: bool,
    /// Cards that share the model. All figures but those of the shape are of one of them.
    pub(super) cards: u32,
    /// Longest sequence of the model; null if the model states none.
    pub(super) model_context: Option<u64>,
    pub(super) memory: Option<u64>,
    /// Part of the memory for the cache: what the weights leave, if these are counted.
    pub(super) cache_memory: Option<u64>,
    /// True if the weights are streamed by layer, because all of them do not fit the memory.
    pub(super) streams_weights: bool,
    /// With `--weights` or `--weight-bits`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) weights: Option<PlannedWeights>,
    /// Tokens, bandwidth and weights of a step, if given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bandwidth: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) weight_bytes: Option<u64>,
    /// The tokens that stay f16 in every row; null where rows differ.
    pub(super) hot: Option<u64>,
    pub(super) sinks: Option<u64>,
    /// Bytes of the basis, needed once for all stored tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) basis_bytes: Option<u64>,
    pub(super) rows: Vec<Row>,
    /// With `--storage` and `--bandwidth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) loading: Option<Loading>,
}

/// Layers of one shape.
#[derive(Serialize)]
pub(super) struct LayerShape {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    value_dim: usize,
    /// Coordinates of a latent vector's positional part; 0 without latent vectors.
    position_dim: usize,
    /// Tokens of the window; null for layers that see all tokens.
    window: Option<usize>,
}

impl PlannedWeights {
    /// True if they do not fit the memory, and are streamed by layer.
    pub(super) fn are_streamed(&self, memory: u64) -> bool {
        self.all > memory
    }

    /// Bytes that they leave for the cache.
    pub(super) fn left_of(&self, memory: u64) -> u64 {
        memory.saturating_sub(if self.are_streamed(memory) { self.streamed } else { self.all })
    }
}

impl Report {
    /// The part of a report that follows from the shape.
    pub(super) fn of(shape: &CacheShape, model: Option<&ModelKv>) -> Self {
        let uniform = shape.uniform();
        let find = |layer: &LayerKv| shape.groups.iter().position(|(known, _)| known == layer);
        let of_layers =
            |model: &ModelKv| model.layers.iter().map(|layer| layer.as_ref().and_then(find)).collect();
        let group = |(layer, layers): &(LayerKv, usize)| LayerShape {
            layers: *layers,
            kv_heads: layer.num_kv_heads,
            head_dim: layer.head_dim,
            value_dim: layer.value_dim,
            position_dim: layer.position_dim,
            window: layer.window,
        };
        Self {
            layers: shape.num_layers(),
            kv_heads: uniform.map(|layer| layer.num_kv_heads),
            head_dim: uniform.map(|layer| layer.head_dim),
            value_dim: uniform.map(|layer| layer.value_dim),
            latent: shape.groups.iter().all(|(layer, _)| layer.position_dim > 0),
            windowed_layers: shape.windowed().map_or(0, |(layers, _)| layers),
            window: shape.windowed().map(|(_, tokens)| tokens),
            shapes: shape.groups.iter().map(group).collect(),
            layer_shapes: model.map(of_layers),
            has_indexer: model.is_some_and(|model| model.has_indexer),
            model_context: shape.context,
            ..Self::default()
        }
    }
}

/// Bytes of the weights in their stored form.
#[derive(Serialize)]
pub(super) struct PlannedWeights {
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
    /// The name of the pair, if it is a preset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) preset: Option<&'static str>,
    /// The text of `--kv`, if it says more than the codecs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<String>,
    /// Bytes of the maps of keys at `--tokens`; part of `cache_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) map_bytes: Option<u64>,
    /// Bytes that a token adds, in the oldest tier if there are tiers, with its share of the maps of keys.
    pub(super) bytes_per_token: u64,
    /// The same once windows are full; null without windows.
    pub(super) bytes_per_token_past_window: Option<u64>,
    pub(super) f16_ratio: f64,
    pub(super) f32_ratio: f64,
    /// Longest context in the budget, at most the model's; null without a budget.
    pub(super) max_tokens: Option<u64>,
    #[serde(flatten)]
    pub(super) step: PlannedStep,
}

/// Memory and step time for the tokens of `--tokens`.
#[derive(Default, Serialize)]
pub(super) struct PlannedStep {
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
    if report.cards > 1 {
        text.push_str(&format!(
            "\nfigures of one of {} cards, which share KV heads and weights",
            report.cards
        ));
    }
    if let Some(weights) = &report.weights {
        text.push_str(&format!(
            "\n{} of weights, {} where layers are streamed: two of at most {}, {} outside them",
            bytes(weights.all),
            sized(weights.streamed),
            sized(weights.largest_layer),
            sized(weights.beside_layers)
        ));
    }
    let kept = report.sinks.zip(report.hot);
    let f16 = kept.map(|(sinks, hot)| format!("of it f16: {sinks} first and {hot} newest tokens"));
    let memory = report.memory.map(|all| memory(report, all));
    if report.memory.or(report.tokens).is_some() {
        let parts: Vec<_> = memory.into_iter().chain(f16).collect();
        text.push_str(&format!("\n{}", parts.join(", ")));
    }
    if let (Some(tokens), Some(most)) =
        (report.tokens, report.model_context.filter(|most| report.tokens > Some(*most)))
    {
        text.push_str(&format!(
            "\nmore tokens than the model is made for: {}, of at most {}",
            grouped(tokens),
            grouped(most)
        ));
    }
    for row in &report.rows {
        if let Some(maps) = row.map_bytes {
            text.push_str(&format!(
                "\nthe maps of {} take {}, counted as part of the cache",
                row.label(),
                bytes(maps)
            ));
        }
    }
    if let (Some(tokens), Some(bandwidth)) = (report.tokens, report.bandwidth) {
        let weights = report
            .weight_bytes
            .map_or(String::new(), |weights| format!(", and {} of weights", bytes(weights)));
        text.push_str(&format!(
            "\na step reads the cache of {} tokens once{weights}, at {} bytes per second",
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

/// The memory, and the part that is for the cache.
fn memory(report: &Report, all: u64) -> String {
    match report.cache_memory.filter(|_| report.weights.is_some()) {
        None => format!("{} of cache", bytes(all)),
        Some(cache) => {
            let whose = if report.streams_weights { "streamed weights" } else { "the weights" };
            format!("{} of memory, of which {whose} leave {} for the cache", bytes(all), bytes(cache))
        }
    }
}

/// A number of things, in the singular for one.
fn plural(number: usize, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{} {one}s", grouped(number as u64)) }
}

impl LayerShape {
    fn text(&self) -> String {
        let mut text = format!("{}, head dim {}", plural(self.kv_heads, "KV head"), self.head_dim);
        if self.value_dim != self.head_dim {
            text.push_str(&format!(", that of values {}", self.value_dim));
        }
        text
    }
}

/// The layers of a shape and their heads, in one line.
pub(super) fn title(shape: &CacheShape) -> String {
    let report = Report::of(shape, None);
    let layers = plural(report.layers, "layer");
    match (report.shapes.first(), report.kv_heads) {
        (Some(one), Some(_)) => format!("{layers}, {}", one.text()),
        _ => format!("{layers} of {} shapes", report.shapes.len()),
    }
}

fn shape(report: &Report) -> String {
    let layers = plural(report.layers, "layer");
    let mut text = match (report.shapes.first(), report.kv_heads) {
        (Some(one), Some(_)) => format!("{layers}, {}", one.text()),
        _ => {
            let lines = report.shapes.iter().map(|shape| format!("\n{}, {}", of_layers(shape), shape.text()));
            format!("{layers} of {} shapes:{}", report.shapes.len(), lines.collect::<String>())
        }
    };
    if report.latent {
        text.push_str(", one latent vector for key and value, kept by the codec of K");
    }
    if let Some(window) = report.window.filter(|_| report.kv_heads.is_some()) {
        let (layers, window) = (report.windowed_layers, grouped(window));
        let see = if layers == 1 {
            "1 of the layers sees".to_owned()
        } else {
            format!("{layers} of the layers see")
        };
        text.push_str(&format!("\n{see} the newest {window} tokens only"));
    }
    if report.has_indexer {
        text.push_str("\nthe keys of the model's indexer are not counted: no codec stores them");
    }
    text
}

fn of_layers(shape: &LayerShape) -> String {
    let layers = plural(shape.layers, "layer");
    shape
        .window
        .map_or(layers.clone(), |window| format!("{layers} with a window of {}", grouped(window as u64)))
}

fn head(report: &Report) -> Vec<&'static str> {
    let has = |has: fn(&Row) -> bool| report.rows.iter().any(has);
    let columns = [
        ("past window", has(|row| row.bytes_per_token_past_window.is_some())),
        ("longest context", report.memory.is_some()),
        ("cache", has(|row| row.step.cache_bytes.is_some())),
        ("read ms", report.bandwidth.is_some()),
        ("step ms", report.weight_bytes.is_some()),
    ];
    let columns = columns.into_iter().filter_map(|(name, there)| there.then_some(name));
    ["K,V", "bytes/token", "f16 ratio", "f32 ratio"].into_iter().chain(columns).collect()
}

impl Row {
    fn label(&self) -> String {
        let pair = || format!("{},{}", self.codec_k.unwrap_or_default(), self.codec_v.unwrap_or_default());
        let named = || self.preset.map_or_else(pair, |preset| format!("{} {preset}", pair()));
        self.other.clone().or_else(|| self.policy.clone()).unwrap_or_else(named)
    }
}

fn cells(report: &Report, row: &Row) -> Vec<String> {
    let mut cells = vec![
        row.label(),
        grouped(row.bytes_per_token),
        format!("{:.2}", row.f16_ratio),
        format!("{:.2}", row.f32_ratio),
    ];
    let has = |has: fn(&Row) -> bool| report.rows.iter().any(has);
    if has(|row| row.bytes_per_token_past_window.is_some()) {
        cells.push(row.bytes_per_token_past_window.map_or_else(|| "-".to_owned(), grouped));
    }
    cells.extend(row.max_tokens.map(|tokens| match tokens {
        u64::MAX => "no bound".to_owned(),
        tokens if Some(tokens) == report.model_context => format!("{} (the model's)", grouped(tokens)),
        tokens => grouped(tokens),
    }));
    if has(|row| row.step.cache_bytes.is_some()) {
        cells.push(row.step.cache_bytes.map_or_else(|| "-".to_owned(), sized));
    }
    cells.extend([row.step.read_ms, row.step.step_ms].into_iter().flatten().map(|ms| format!("{ms:.2}")));
    cells
}
