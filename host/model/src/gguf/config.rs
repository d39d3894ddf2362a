//! Converts metadata to the `config.json` of a Hugging Face checkpoint.

use serde_json::{Map, json};

use super::family::{GEMMA3, GgufFamily};
use super::{File, Value};
use crate::error::ModelError;

/// Number of layers of the one Gemma 3 that does not scale its queries by the head dim.
const GEMMA3_27B_LAYERS: usize = 62;

/// The parts of the config that follow from the tensors.
pub(super) struct Tensors {
    pub(super) vocab_size: Option<usize>,
    pub(super) has_head: bool,
    pub(super) has_bias: bool,
    pub(super) factors: Option<Vec<f32>>,
}

fn bad(key: &str, what: &str) -> ModelError {
    ModelError::Config(format!("{key}: {what}"))
}

/// A whole number. `None` if the key is missing.
pub(super) fn number(file: &File<'_>, key: &str) -> Result<Option<usize>, ModelError> {
    match file.metadata.get(key) {
        None => Ok(None),
        Some(Value::Unsigned(number)) => {
            usize::try_from(*number).map(Some).map_err(|_| bad(key, "too large"))
        }
        Some(Value::Signed(number)) => usize::try_from(*number).map(Some).map_err(|_| bad(key, "negative")),
        Some(_) => Err(bad(key, "one whole number is accepted, for all layers alike")),
    }
}

/// Keys of all families that are read, or that have no effect on the result.
const READ: [&str; 19] = [
    "vocab_size",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "attention.causal",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "tensor_data_layout",
];

/// Makes the bytes of a `config.json`.
pub(super) fn json(file: &File<'_>, family: &GgufFamily, tensors: &Tensors) -> Result<Vec<u8>, ModelError> {
    refuse_unread(file, family)?;
    let key = |name: &str| format!("{}.{name}", family.name);
    let optional = |name: &str| number(file, &key(name));
    let required = |name: &str| optional(name)?.ok_or_else(|| bad(&key(name), "missing"));
    let float = |name: &str| match file.metadata.get(key(name).as_str()) {
        None => Ok(None),
        Some(Value::Float(value)) if value.is_finite() => Ok(Some(*value)),
        Some(_) => Err(bad(&key(name), "a finite number is accepted")),
    };
    let (hidden, heads) = (required("embedding_length")?, required("attention.head_count")?);
    let head_dim = optional("attention.key_length")?.or(hidden.checked_div(heads));
    for name in ["attention.value_length", "rope.dimension_count"] {
        let other = optional(name)?;
        if other.is_some() && other != head_dim {
            return Err(bad(&key(name), "another width than that of a key is not computed"));
        }
    }
    let mut config = json!({
        "architectures": [family.class],
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": required("feed_forward_length")?,
        "num_hidden_layers": required("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": optional("attention.head_count_kv")?.unwrap_or(heads),
        "head_dim": head_dim,
        "vocab_size": tensors.vocab_size.ok_or_else(|| bad(super::names::EMBEDDING, "missing"))?,
        "max_position_embeddings": required("context_length")?,
        "rms_norm_eps": float("attention.layer_norm_rms_epsilon")?.ok_or_else(|| bad(&key("attention.layer_norm_rms_epsilon"), "missing"))?,
        "rope_theta": float("rope.freq_base")?.unwrap_or(10_000.0),
        "tie_word_embeddings": !tensors.has_head,
        "attention_bias": tensors.has_bias && family.name == "qwen3",
        "eos_token_id": end_tokens(file)?,
    });
    if family.name == GEMMA3 {
        let scalar =
            if required("block_count")? == GEMMA3_27B_LAYERS { hidden.checked_div(heads) } else { head_dim };
        // GGUF files do not contain these values. Every program has to know them.
        for (name, value) in [
            ("hidden_act", json!("gelu_pytorch_tanh")),
            ("query_pre_attn_scalar", json!(scalar)),
            ("sliding_window", json!(required("attention.sliding_window")?)),
            ("sliding_window_pattern", json!(6)),
            ("rope_local_base_freq", json!(10_000.0)),
            ("norms_include_one", json!(true)),
        ] {
            config[name] = value;
        }
    }
    if let Some(scaling) = scaling(file, family, tensors)? {
        config["rope_scaling"] = scaling;
    }
    Ok(config.to_string().into_bytes())
}

/// Refuses keys of the family that would change the computation and are not read.
fn refuse_unread(file: &File<'_>, family: &GgufFamily) -> Result<(), ModelError> {
    let unread = |key: &&&str| {
        let own = key.strip_prefix(family.name).and_then(|rest| rest.strip_prefix('.'));
        own.is_some_and(|own| !READ.contains(&own) && !family.own.contains(&own))
    };
    match file.metadata.keys().find(unread) {
        Some(key) => Err(bad(key, "not computed; a model with it is refused rather than computed wrongly")),
        None => Ok(()),
    }
}

/// The tokens that end a text or a turn.
fn end_tokens(file: &File<'_>) -> Result<Vec<usize>, ModelError> {
    let keys = ["eos_token_id", "eot_token_id", "eom_token_id"];
    let found = keys.map(|key| number(file, &format!("tokenizer.ggml.{key}")));
    let mut tokens: Vec<_> = found.into_iter().filter_map(Result::transpose).collect::<Result<_, _>>()?;
    tokens.dedup();
    Ok(tokens)
}

fn scaling(
    file: &File<'_>,
    family: &GgufFamily,
    tensors: &Tensors,
) -> Result<Option<serde_json::Value>, ModelError> {
    let key = format!("{}.rope.scaling.type", family.name);
    let kind = match file.metadata.get(key.as_str()) {
        None => "none",
        Some(Value::Text(kind)) => kind,
        Some(_) => return Err(bad(&key, "a name is accepted")),
    };
    let factor = || match file.metadata.get(format!("{}.rope.scaling.factor", family.name).as_str()) {
        Some(Value::Float(factor)) => Some(*factor),
        Some(_) | None => None,
    };
    let mut scaling = Map::new();
    match (kind, &tensors.factors) {
        ("none", None) => return Ok(None),
        ("none", Some(factors)) => {
            scaling.insert("type".into(), "factors".into());
            scaling.insert("factors".into(), json!(factors));
        }
        ("linear", None) => {
            scaling.insert("type".into(), "linear".into());
            scaling.insert("factor".into(), json!(factor()));
        }
        (other, _) => {
            return Err(bad(&key, &format!("{other} is not computed; expected none or linear")));
        }
    }
    Ok(Some(scaling.into()))
}
