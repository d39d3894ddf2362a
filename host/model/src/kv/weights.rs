//! The number of weights of a model, from its `config.json`.
//!
//! `weights.jsonl` has a line for each family of Transformers whose weights are counted. A line is a sum of
//! terms for the weights outside the layers, and one for the weights of a layer. A term is an expression of
//! keys and the condition under which it is there:
//!
//! ```text
//! ["2*intermediate_size*hidden_size+hidden_size*intermediate_size", "!(layer>=first_k_dense_replace)"]
//! ```
//!
//! `host/python/tests/plan_weights.py` writes the lines, and says how they are found.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;
use tqkv::cache::LayerKind;

use super::expression;
use super::family::{self, Resolved};
use super::layer;
use super::shape::{MOST_LAYERS, bad};
use crate::error::ModelError;

/// A line of `weights.jsonl`.
#[derive(Debug, Deserialize)]
struct WeightFamily {
    model_type: String,
    /// Terms of the weights outside the layers, and of those in a layer: expression and condition.
    beside: Vec<(String, String)>,
    layer: Vec<(String, String)>,
    /// What a missing key stands for: a value, or an expression.
    defaults: HashMap<String, Value>,
    /// What null stands for, where it is not nothing.
    #[serde(default)]
    nulls: HashMap<String, Value>,
    /// Lists that a file may leave out: the condition of each word, or that by which a layer is `in` it.
    #[serde(default)]
    lists: HashMap<String, HashMap<String, String>>,
}

static FAMILIES: LazyLock<Vec<WeightFamily>> = LazyLock::new(|| {
    include_str!("weights.jsonl").lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
});

/// Numbers of weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WeightCount {
    /// In the embedding, the head, and elsewhere outside the layers.
    pub(crate) beside: u64,
    /// In each layer.
    pub(crate) layers: Vec<u64>,
}

/// Most weights of a layer, and outside of the layers.
const MOST_WEIGHTS: f64 = (1u64 << 60) as f64;

/// Expressions may lead to other keys this deep.
const DEEPEST: usize = 8;

/// Counts the weights of the language model in a `config.json`.
///
/// # Errors
/// [`ModelError::Config`]: a family that has no line, or a key that is missing or out of range.
pub(crate) fn count(json: &[u8]) -> Result<WeightCount, ModelError> {
    let config = family::resolve(json)?;
    let Some(family) = FAMILIES.iter().find(|family| family.model_type == config.name) else {
        return Err(bad(format!(
            "the weights of {} are not counted: expected one of {} families that Transformers has, such as \
             llama, qwen3_next or deepseek_v3",
            config.name,
            FAMILIES.len()
        )));
    };
    let counter = Counter { family, kinds: layer::kinds(&config)?, config: &config };
    let layers = counter.number("num_hidden_layers", None, 0)?;
    if !(1.0..=MOST_LAYERS as f64).contains(&layers) {
        return Err(bad(format!("{layers} layers; accepted: 1 to {MOST_LAYERS}")));
    }
    let layers = (0..layers as usize).map(|layer| counter.sum(&family.layer, Some(layer)));
    Ok(WeightCount { beside: counter.sum(&family.beside, None)?, layers: layers.collect::<Result<_, _>>()? })
}

/// The keys of a file, with what missing ones stand for.
struct Counter<'a> {
    family: &'static WeightFamily,
    config: &'a Resolved,
    kinds: Vec<LayerKind>,
}

impl Counter<'_> {
    fn sum(&self, terms: &[(String, String)], layer: Option<usize>) -> Result<u64, ModelError> {
        let mut sum = 0.0;
        for (text, condition) in terms {
            if self.holds(condition, layer)? {
                sum += self.evaluate(text, layer, 0)?;
            }
        }
        // A file may have no heads, or more weights than any machine.
        if (0.0..=MOST_WEIGHTS).contains(&sum) {
            return Ok(sum as u64);
        }
        Err(bad(format!(
            "{sum} weights in {}: expected 0 to 2^60 for a layer and outside of the layers",
            self.config.name
        )))
    }

    fn evaluate(&self, text: &str, layer: Option<usize>, depth: usize) -> Result<f64, ModelError> {
        let value = expression::evaluate(text, &mut |key| self.number(key, layer, depth))?;
        value.ok_or_else(|| bad(format!("{text} is no expression in the line of {}", self.config.name)))
    }

    /// The value of a key in the file: of the layer, or of all.
    fn given(&self, key: &str, layer: Option<usize>) -> Option<&Value> {
        // A file with numbers of single layers has those of full layers there.
        let key = match key {
            "global_head_dim" if self.has_own() => "head_dim",
            "num_global_key_value_heads" if self.has_own() => "num_key_value_heads",
            key => key,
        };
        let own = layer.and_then(|layer| self.config.of_layer(layer)).and_then(|own| own.get(key));
        own.or_else(|| self.config.fields.get(key))
    }

    /// The value of a key, or what stands for it.
    fn value(&self, key: &str, layer: Option<usize>) -> Option<&Value> {
        let value = match self.given(key, layer) {
            Some(Value::Null) => self.family.nulls.get(key),
            Some(given) => Some(given),
            None => self.family.defaults.get(key),
        };
        match (value, layer) {
            (Some(Value::Array(values)), Some(layer)) => values.get(layer),
            (value, _) => value,
        }
    }

    /// Whether a value is of the table, where texts are expressions.
    fn is_ours(&self, key: &str, layer: Option<usize>) -> bool {
        self.given(key, layer).is_none_or(Value::is_null)
    }

    fn has_own(&self) -> bool {
        self.config.fields.contains_key("per_layer_config")
    }

    fn number(&self, key: &str, layer: Option<usize>, depth: usize) -> Result<f64, ModelError> {
        const MOST: f64 = super::MOST as f64;
        let name = &self.config.name;
        let value = match self.value(key, layer) {
            Some(Value::String(text)) if depth < DEEPEST && self.is_ours(key, layer) => {
                self.evaluate(text, layer, depth + 1)?
            }
            Some(value) => value.as_f64().ok_or_else(|| {
                bad(format!("{key} is {} in {name}: expected a number", crate::config::shown(value)))
            })?,
            None => return Err(bad(format!("{key} is missing in {name}: its weights cannot be counted"))),
        };
        let is_fine = (0.0..=MOST).contains(&value);
        is_fine.then_some(value).ok_or_else(|| bad(format!("{key} is {value}: expected 0 to 2^40")))
    }

    /// Whether a condition holds: parts joined by ` & `, each of which may be negated.
    fn holds(&self, condition: &str, layer: Option<usize>) -> Result<bool, ModelError> {
        for part in expression::parts(condition) {
            let is_there = match part.strip_prefix('!') {
                Some(inner) => !self.holds(without_parentheses(inner), layer)?,
                None => self.part(part, layer)?,
            };
            if !is_there {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn part(&self, part: &str, layer: Option<usize>) -> Result<bool, ModelError> {
        let Some(at) = layer else { return self.is_on(part, None) };
        let position = at as f64;
        let number = |key: &str| key.parse().map_or_else(|_| self.number(key, None, 0), Ok);
        if let Some(kinds) = part.strip_prefix("kind=") {
            let letter = match self.kinds.get(at) {
                Some(LayerKind::Full) => 'F',
                Some(LayerKind::Sliding(_)) => 'S',
                Some(LayerKind::None) | None => '-',
            };
            return Ok(kinds.contains(letter));
        }
        if let Some(key) = part.strip_prefix("layer in ") {
            let given = self.config.fields.get(key).filter(|value| !value.is_null());
            if let (None, Some(rule)) = (given, self.family.lists.get(key).and_then(|rules| rules.get("in")))
            {
                return self.holds(rule, layer);
            }
            let list = self.value(key, None).and_then(Value::as_array);
            return Ok(list.is_some_and(|list| list.iter().any(|one| one.as_u64() == Some(at as u64))));
        }
        if let Some((key, words)) = part.split_once("[layer]=") {
            let word = self.word(key, at)?;
            return Ok(words.split('|').any(|other| other == word));
        }
        if let Some(key) = part.strip_prefix("layer>=") {
            return Ok(position >= number(key)?);
        }
        if let Some(key) = part.strip_prefix("layer<num_hidden_layers-") {
            return Ok(position < number("num_hidden_layers")? - number(key)?);
        }
        for (start, position) in [("layer%", position), ("(layer+1)%", position + 1.0)] {
            if let Some((period, rest)) = part.strip_prefix(start).and_then(|rest| rest.split_once('=')) {
                return Ok(position % number(period)?.max(1.0) == number(rest)?);
            }
        }
        self.is_on(part, layer)
    }

    /// The word of a layer in a list, or by the rule of a list that is left out.
    fn word(&self, key: &str, layer: usize) -> Result<String, ModelError> {
        if let Some(list) = self.config.fields.get(key).and_then(Value::as_array) {
            let word = list.get(layer).and_then(Value::as_str);
            return word
                .map(str::to_owned)
                .ok_or_else(|| bad(format!("{key} has no word for layer {layer} of {}", self.config.name)));
        }
        for (word, condition) in self.family.lists.get(key).into_iter().flatten() {
            if self.holds(condition, Some(layer))? {
                return Ok(word.clone());
            }
        }
        Err(bad(format!("{key} is missing in {}: expected a word for each layer", self.config.name)))
    }

    fn is_on(&self, key: &str, layer: Option<usize>) -> Result<bool, ModelError> {
        match self.value(key, layer) {
            Some(Value::String(_)) if self.is_ours(key, layer) => Ok(self.number(key, layer, 0)? != 0.0),
            value => Ok(value.is_some_and(|value| !crate::config::is_nothing(value))),
        }
    }
}

fn without_parentheses(text: &str) -> &str {
    text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_family_that_is_planned() {
        assert_eq!(FAMILIES.len(), include_str!("weights.jsonl").lines().count());
        for family in FAMILIES.iter() {
            let json = serde_json::json!({"model_type": family.model_type}).to_string();
            if let Err(error) = family::resolve(json.as_bytes()) {
                assert!(error.to_string().contains(&family.model_type), "{error}");
            }
        }
    }
}
