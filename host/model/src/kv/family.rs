//! The families of models: names of keys, values of missing keys, and rules that no key states.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::shape::bad;
use crate::error::ModelError;

/// A line of `families.jsonl`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct KvFamily {
    model_type: String,
    /// The class of its causal language model, for files that name no `model_type`.
    class: Option<String>,
    /// The key that holds the text model, and the family of that model.
    text: Option<(String, String)>,
    /// Without that key, the file's own keys are the text model's, as older files have them.
    #[serde(default)]
    flat: bool,
    /// The family's own name of a key, by the common one.
    #[serde(default)]
    names: HashMap<String, String>,
    /// Values of missing keys.
    #[serde(default)]
    defaults: Map<String, Value>,
    /// One of these keys must be in the file, because what stands for them otherwise is not planned.
    #[serde(default)]
    needs: Vec<String>,
    /// Keys without effect.
    #[serde(default)]
    ignores: Vec<String>,
    /// Kinds of layers where a file lists none: a period of letters, and other letters for the first and the
    /// last layer.
    kinds: Option<[String; 3]>,
    #[serde(default)]
    rule: Rule,
    /// The reason why no list of layers describes its cache.
    refused: Option<String>,
}

/// How the numbers of a family follow from its keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Rule {
    /// `num_key_value_heads`, or `num_attention_heads` without it.
    #[default]
    Plain,
    /// One KV head with `multi_query`; `num_kv_heads` in the newer form.
    Falcon,
    /// One KV head with `multi_query`.
    MultiQuery,
    /// `kv_n_heads` and `attn_type` of `attn_config`.
    AttnConfig,
    /// Layers with a window have twice the KV heads.
    Mimo,
    /// One entry of `block_configs` per layer.
    BlockConfigs,
    /// Two attentions per layer.
    Twice,
    /// `multi_query_group_num` with `multi_query_attention`.
    Chatglm,
    /// A family without a line.
    Unknown,
}

static FAMILIES: LazyLock<Vec<KvFamily>> = LazyLock::new(|| {
    include_str!("families.jsonl").lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
});

/// Keys of nested text models, where the family is unknown.
const NESTED: [&str; 4] = ["text_config", "language_config", "llm_config", "thinker_config"];

/// Keys that change the cache in some family. An unknown family with one of them is refused.
const FAMILY_OWN: [&str; 16] = [
    "multi_query",
    "multi_query_attention",
    "new_decoder_architecture",
    "num_kv_heads",
    "n_head_kv",
    "num_query_heads",
    "block_configs",
    "attn_config",
    "global_head_dim",
    "num_global_key_value_heads",
    "swa_num_key_value_heads",
    "swa_head_dim",
    "num_kv_shared_layers",
    "attention_chunk_size",
    "compress_ratios",
    "attention_types",
];

/// A config by the common names, with the values of missing keys.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) name: String,
    pub(super) rule: Rule,
    pub(super) fields: Map<String, Value>,
    /// The kinds of layers where no list has them.
    pub(super) kinds: Option<&'static [String; 3]>,
}

/// Finds the text model in a `config.json` and brings it to the common names.
pub(super) fn resolve(json: &[u8]) -> Result<Resolved, ModelError> {
    let whole: Value = serde_json::from_slice(json)
        // Python writes numbers that JSON does not have.
        .or_else(|error| serde_json::from_slice(&without_python_numbers(json)).map_err(|_| error))
        .map_err(|error| bad(format!("not a model's config.json: {error}")))?;
    let Value::Object(mut fields) = whole else {
        return Err(bad("not a model's config.json: expected an object"));
    };
    let mut family = find(&fields, None);
    for _ in 0..4 {
        let nested = |key: &str| fields.get(key).and_then(Value::as_object).cloned();
        let known = family.and_then(|family| family.text.as_ref().map(|text| (text, family.flat)));
        let inner = match known {
            Some(((key, inner), is_flat)) => {
                let own =
                    || Map::from_iter(fields.clone().into_iter().filter(|(key, _)| key != "model_type"));
                let object = nested(key).or_else(|| is_flat.then(own)).ok_or_else(|| {
                    let name = family.map_or("", |family| &family.model_type);
                    bad(format!("{key} is missing in {name}: expected the keys of its text model there"))
                })?;
                Some((object, FAMILIES.iter().find(|family| family.model_type == *inner)))
            }
            None => NESTED.into_iter().find_map(nested).map(|object| (object, None)),
        };
        let Some((mut object, expected)) = inner else { break };
        // Older files tie the head in the outer object.
        if let Some(tied) = fields.remove("tie_word_embeddings") {
            object.entry("tie_word_embeddings").or_insert(tied);
        }
        family = find(&object, expected);
        fields = object;
    }
    match family {
        Some(family) => known(family, fields),
        None => unknown(fields),
    }
}

/// Replaces Infinity and NaN outside of texts by null. No count of a cache is one of them.
fn without_python_numbers(json: &[u8]) -> Vec<u8> {
    let (mut out, mut rest, mut is_text) = (Vec::with_capacity(json.len()), json, false);
    while let [first, ..] = rest {
        let word = [&b"-Infinity"[..], b"Infinity", b"NaN"].into_iter().find(|word| rest.starts_with(word));
        let taken = match word.filter(|_| !is_text) {
            Some(word) => {
                out.extend(b"null");
                word.len()
            }
            None => {
                // A backslash takes the next byte with it.
                let taken = if is_text && *first == b'\\' { rest.len().min(2) } else { 1 };
                is_text ^= *first == b'"';
                out.extend(&rest[..taken]);
                taken
            }
        };
        rest = &rest[taken..];
    }
    out
}

/// The family that a file names; `otherwise` where it names none.
fn find(fields: &Map<String, Value>, otherwise: Option<&'static KvFamily>) -> Option<&'static KvFamily> {
    if let Some(name) = fields.get("model_type").and_then(Value::as_str) {
        return FAMILIES.iter().find(|family| family.model_type == name);
    }
    let classes = fields.get("architectures").and_then(Value::as_array);
    let class = classes.and_then(|classes| classes.first()).and_then(Value::as_str);
    let by_class =
        || FAMILIES.iter().find(|family| family.class.is_some() && family.class.as_deref() == class);
    otherwise.or_else(by_class)
}

fn known(family: &'static KvFamily, mut fields: Map<String, Value>) -> Result<Resolved, ModelError> {
    let name = &family.model_type;
    if let Some(why) = &family.refused {
        return Err(bad(format!("the cache of {name} is not planned: {why}")));
    }
    if !family.needs.is_empty() && !family.needs.iter().any(|key| fields.contains_key(key)) {
        let keys = family.needs.join(" or ");
        return Err(bad(format!("{keys} is missing in {name}, and its default is not planned")));
    }
    family.ignores.iter().for_each(|key| drop(fields.remove(key)));
    for (common, own) in &family.names {
        if let Some(value) = fields.get(own).cloned() {
            fields.entry(common.clone()).or_insert(value);
        } else if let Some(value) = fields.get(common).cloned() {
            fields.insert(own.clone(), value);
        }
    }
    for (key, value) in &family.defaults {
        // Some readers look for the family's own name.
        for name in family.names.get(key).into_iter().chain([key]) {
            fields.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
    Ok(Resolved { name: name.clone(), rule: family.rule, fields, kinds: family.kinds.as_ref() })
}

/// A family without a line: its file must say everything, by the common names.
fn unknown(fields: Map<String, Value>) -> Result<Resolved, ModelError> {
    let name = fields.get("model_type").and_then(Value::as_str);
    let name = name.map_or_else(|| "a model without model_type".to_owned(), |name| format!("family {name}"));
    let is_set = |key: &&str| fields.get(*key).is_some_and(|value| !crate::config::is_nothing(value));
    if let Some(key) = FAMILY_OWN.iter().find(|key| is_set(key)) {
        return Err(bad(format!("{key} of {name} is not known: expected a family that Transformers has")));
    }
    let is_latent = is_set(&"kv_lora_rank");
    for key in ["num_hidden_layers", "num_key_value_heads", "head_dim"] {
        let is_listed = key == "num_hidden_layers" && is_set(&"layer_types");
        if !(is_set(&key) || is_listed || is_latent && key != "num_hidden_layers") {
            let why = "and nothing is known of its default";
            return Err(bad(format!("{key} is missing in {name}, {why}")));
        }
    }
    Ok(Resolved { name, rule: Rule::Unknown, fields, kinds: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_family() {
        let lines = include_str!("families.jsonl").lines().count();
        assert_eq!(FAMILIES.len(), lines);
        for family in FAMILIES.iter() {
            let twins = FAMILIES.iter().filter(|other| other.model_type == family.model_type).count();
            assert_eq!(twins, 1, "{}", family.model_type);
            if let Some((_, inner)) = &family.text {
                assert!(
                    FAMILIES.iter().any(|other| other.model_type == *inner),
                    "{}: {inner}",
                    family.model_type
                );
            }
        }
    }
}
