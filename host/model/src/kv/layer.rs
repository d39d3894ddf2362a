//! The shape of each layer, from a config by the common names.

use serde::Deserialize;
use serde_json::{Map, Value};
use tqkv::cache::LayerKind;

use super::family::{Resolved, Rule};
use super::shape::{LayerKv, MOST, MOST_LAYERS, ModelKv, bad};
use crate::error::ModelError;
use crate::layers::LayerFields;

/// Counts that determine the kinds of layers.
const COUNTS: [&str; 7] = [
    "num_hidden_layers",
    "sliding_window",
    "attention_window_size",
    "attention_chunk_size",
    "max_window_layers",
    "attn_layer_period",
    "full_attention_interval",
];

/// Reads every layer.
pub(super) fn read(config: &Resolved) -> Result<ModelKv, ModelError> {
    // Checked first, so that an error has the name of the key.
    COUNTS.iter().try_for_each(|key| config.count(key).map(drop))?;
    let kinds = kinds(config)?;
    let own = kinds.len().saturating_sub(config.count("num_kv_shared_layers")?.unwrap_or(0));
    let keeps = |(layer, kind): (usize, &LayerKind)| match *kind {
        // Layers without attention, and those that use the keys and values of an earlier layer.
        LayerKind::None => Ok(None),
        _ if layer >= own => Ok(None),
        LayerKind::Full => KvLayer { config, layer, window: None }.shape().map(Some),
        LayerKind::Sliding(window) => KvLayer { config, layer, window: Some(window) }.shape().map(Some),
    };
    let layers: Vec<Option<LayerKv>> = kinds.iter().enumerate().map(keeps).collect::<Result<_, _>>()?;
    if layers.iter().all(Option::is_none) {
        return Err(bad("no layer with attention, so there is no cache of keys and values"));
    }
    let context = config.fields.get("max_position_embeddings").and_then(Value::as_u64);
    let has_indexer = config.count("index_head_dim")?.is_some();
    Ok(ModelKv { layers, context: context.filter(|tokens| *tokens > 0), has_indexer })
}

pub(super) fn kinds(config: &Resolved) -> Result<Vec<LayerKind>, ModelError> {
    let fields: LayerFields = Deserialize::deserialize(Value::Object(config.fields.clone()))
        .map_err(|e: serde_json::Error| bad(e.to_string()))?;
    if config.rule == Rule::BlockConfigs {
        let blocks = config.blocks()?;
        let attends =
            |block: &Value| block.pointer("/attention/n_heads_in_group").is_some_and(|n| !n.is_null());
        return Ok(blocks
            .iter()
            .map(|block| if attends(block) { LayerKind::Full } else { LayerKind::None })
            .collect());
    }
    if config.rule == Rule::Unknown && fields.has_window() && !fields.names_layers() {
        return Err(bad(format!(
            "sliding_window is set in {}, and it is not known which layers slide: expected layer_types",
            config.name
        )));
    }
    let kinds = fields.kinds_or(config.kinds)?;
    if kinds.is_empty() || kinds.len() > MOST_LAYERS {
        return Err(bad(format!("{} layers; accepted: 1 to {MOST_LAYERS}", kinds.len())));
    }
    Ok(if config.rule == Rule::Twice {
        kinds.iter().flat_map(|kind| [*kind, *kind]).collect()
    } else {
        kinds
    })
}

impl Resolved {
    /// A count for all layers. `None` if it is missing, null or 0.
    fn count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        self.fields.get(key).map_or(Ok(None), |value| number(key, value))
    }

    /// A layer's object in `per_layer_config`. Its key may be padded with zeros.
    pub(super) fn of_layer(&self, layer: usize) -> Option<&Map<String, Value>> {
        let all = self.fields.get("per_layer_config")?.as_object()?;
        let (_, own) = all.iter().find(|(key, _)| key.parse() == Ok(layer))?;
        own.as_object()
    }

    fn blocks(&self) -> Result<&Vec<Value>, ModelError> {
        let blocks = self.fields.get("block_configs").and_then(Value::as_array);
        blocks.ok_or_else(|| bad(format!("block_configs is missing in {}", self.name)))
    }

    /// The error of a number that is needed, and is missing, null or 0.
    fn missing(&self, key: &str) -> ModelError {
        bad(match self.fields.get(key).filter(|value| !value.is_null()) {
            None => format!("{key} is missing in {}", self.name),
            Some(value) => {
                format!("{key} is {} in {}: expected 1 or more", crate::config::shown(value), self.name)
            }
        })
    }
}

/// A whole number above 0. `None` for null and 0.
fn number(key: &str, value: &Value) -> Result<Option<usize>, ModelError> {
    match value {
        Value::Null => Ok(None),
        value => match value.as_u64().filter(|n| *n <= MOST) {
            Some(0) => Ok(None),
            Some(n) => Ok(usize::try_from(n).ok()),
            None => {
                let shown = crate::config::shown(value);
                Err(bad(format!("{key} is {shown}: expected a whole number, at most 2^40")))
            }
        },
    }
}

/// A layer with attention.
struct KvLayer<'a> {
    config: &'a Resolved,
    layer: usize,
    window: Option<usize>,
}

impl KvLayer<'_> {
    fn shape(&self) -> Result<LayerKv, ModelError> {
        if let Some(rank) = self.count("kv_lora_rank")? {
            let position_dim = self.required("qk_rope_head_dim")?;
            let head_dim = rank + position_dim;
            return Ok(LayerKv {
                window: self.window,
                num_kv_heads: 1,
                head_dim,
                value_dim: rank,
                position_dim,
            });
        }
        let num_kv_heads = self.kv_heads()?;
        let head_dim = self.head_dim()?;
        let value_dim = match self.of_kind("v_head_dim")? {
            Some(dim) => dim,
            None => head_dim,
        };
        Ok(LayerKv { window: self.window, num_kv_heads, head_dim, value_dim, position_dim: 0 })
    }

    /// A count of this layer: its own in `per_layer_config`, its own in a list, or that of all layers.
    fn count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        if let Some(value) = self.config.of_layer(self.layer).and_then(|own| own.get(key)) {
            return number(key, value);
        }
        match self.config.fields.get(key) {
            None => Ok(None),
            Some(Value::Array(values)) => match values.get(self.layer) {
                Some(value) => number(key, value),
                None => Err(bad(format!("{key} has {} entries, fewer than there are layers", values.len()))),
            },
            Some(value) => number(key, value),
        }
    }

    fn required(&self, key: &str) -> Result<usize, ModelError> {
        self.count(key)?.ok_or_else(|| self.config.missing(key))
    }

    /// A count that layers with a window may have of their own, by the prefix `swa_`.
    fn of_kind(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let swa = self.window.map_or(Ok(None), |_| self.count(&format!("swa_{key}")))?;
        if swa.is_some() { Ok(swa) } else { self.count(key) }
    }

    /// True for a full layer of a family whose full layers have numbers of their own. A file with
    /// `per_layer_config` has them there.
    fn is_global(&self) -> bool {
        self.window.is_none() && !self.config.fields.contains_key("per_layer_config")
    }

    fn kv_heads(&self) -> Result<usize, ModelError> {
        let fields = &self.config.fields;
        let is_on = |key: &str| fields.get(key).and_then(Value::as_bool) == Some(true);
        let heads = || self.required("num_attention_heads");
        match self.config.rule {
            Rule::Falcon if !is_on("new_decoder_architecture") && is_on("multi_query") => return Ok(1),
            Rule::Falcon if !is_on("new_decoder_architecture") && fields.contains_key("num_kv_heads") => {
                return heads();
            }
            Rule::Falcon => {
                let newer = self.count("num_kv_heads")?;
                return newer.or(self.count("num_key_value_heads")?).map_or_else(heads, Ok);
            }
            Rule::MultiQuery if is_on("multi_query") => return Ok(1),
            Rule::MultiQuery => return heads(),
            Rule::Chatglm if !is_on("multi_query_attention") => return heads(),
            Rule::AttnConfig => return self.attn_config(),
            Rule::BlockConfigs => return self.block(),
            Rule::Mimo | Rule::Plain | Rule::Twice | Rule::Chatglm | Rule::Unknown => {}
        }
        let global = self.count("num_global_key_value_heads")?.filter(|_| {
            // Where the family has this switch, it must be on.
            self.is_global() && fields.get("attention_k_eq_v").is_none_or(|on| on == true)
        });
        let swa = self.window.map_or(Ok(None), |_| self.count("swa_num_key_value_heads"))?;
        let own = match global.or(swa) {
            Some(own) => own,
            None => {
                let own = self.count("num_key_value_heads")?.map_or_else(heads, Ok)?;
                if self.config.rule == Rule::Mimo && self.window.is_some() { 2 * own } else { own }
            }
        };
        Ok(own)
    }

    fn attn_config(&self) -> Result<usize, ModelError> {
        let config = self.config.fields.get("attn_config").and_then(Value::as_object);
        let kind = config.and_then(|config| config.get("attn_type")).and_then(Value::as_str);
        let grouped = config
            .and_then(|config| config.get("kv_n_heads"))
            .map_or(Ok(None), |n| number("kv_n_heads", n))?;
        match (kind, grouped) {
            (Some("multiquery_attention"), _) => Ok(1),
            (_, Some(heads)) => Ok(heads),
            (Some("grouped_query_attention"), None) => Err(self.config.missing("attn_config.kv_n_heads")),
            (_, None) => self.required("num_attention_heads"),
        }
    }

    /// KV heads of a layer in `block_configs`, which gives the query heads that share one.
    fn block(&self) -> Result<usize, ModelError> {
        let block = self.config.blocks()?.get(self.layer);
        let group = block.and_then(|block| block.pointer("/attention/n_heads_in_group"));
        let group = group.map_or(Ok(None), |group| number("n_heads_in_group", group))?;
        let group = group.ok_or_else(|| self.config.missing("n_heads_in_group"))?;
        let heads = self.required("num_attention_heads")?;
        if !heads.is_multiple_of(group) {
            return Err(bad(format!("num_attention_heads {heads} does not divide into groups of {group}")));
        }
        Ok(heads / group)
    }

    fn head_dim(&self) -> Result<usize, ModelError> {
        if self.is_global()
            && let Some(dim) = self.count("global_head_dim")?
        {
            return Ok(dim);
        }
        if let Some(dim) = self.of_kind("head_dim")? {
            return Ok(dim);
        }
        let (hidden, heads) = (self.required("hidden_size")?, self.required("num_attention_heads")?);
        if !hidden.is_multiple_of(heads) {
            return Err(bad(format!(
                "head_dim is missing, and hidden_size {hidden} does not divide among {heads} heads"
            )));
        }
        Ok(hidden / heads)
    }
}
