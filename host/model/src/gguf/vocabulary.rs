//! The tokenizer in a file, as a `tokenizer.json`.
//!
//! Byte-level BPE only, split before its merges as the name of the splitting says; another name would give other tokens without
//! an error, so it is refused.

use serde_json::{Map, Value as Json, json};

use super::{File, Value};
use crate::error::ModelError;

/// Words, numbers and signs as GPT-4's splitting has them; numbers by so many digits.
const WORDS: [&str; 2] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// Names of splittings that are known, and what they do.
const SPLITTINGS: [(&str, Splitting); 6] = [
    ("gpt-2", Splitting::Gpt2),
    ("smollm", Splitting::DigitsFirst),
    ("qwen2", Splitting::Words(r"\p{N}")),
    ("llama-bpe", Splitting::Words(r"\p{N}{1,3}")),
    ("llama-v3", Splitting::Words(r"\p{N}{1,3}")),
    ("llama3", Splitting::Words(r"\p{N}{1,3}")),
];

#[derive(Clone, Copy)]
enum Splitting {
    Gpt2,
    /// Digits one by one, then as GPT-2.
    DigitsFirst,
    /// [`WORDS`] with that for numbers.
    Words(&'static str),
}

impl Splitting {
    fn json(self) -> Json {
        let bytes = |use_regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex });
        let sequence =
            |first: Json, second: Json| json!({ "type": "Sequence", "pretokenizers": [first, second] });
        match self {
            Self::Gpt2 => bytes(true),
            Self::DigitsFirst => {
                sequence(json!({ "type": "Digits", "individual_digits": true }), bytes(true))
            }
            Self::Words(numbers) => {
                let pattern = json!({ "Regex": format!("{}{numbers}{}", WORDS[0], WORDS[1]) });
                sequence(
                    json!({ "type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false }),
                    bytes(false),
                )
            }
        }
    }

    /// Whether a word that is a token needs no merges, and texts begin with the first token unless said otherwise.
    fn is_llama3(self) -> bool {
        matches!(self, Self::Words(r"\p{N}{1,3}"))
    }
}

/// Kinds of tokens that are not made by merges.
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

fn bad(what: impl Into<String>) -> ModelError {
    ModelError::Tokenizer(what.into())
}

fn texts<'a>(file: &File<'a>, key: &str) -> Result<Vec<&'a str>, ModelError> {
    let wrong = || bad(format!("{key} is missing, or no list of texts"));
    let Some(Value::List(list)) = file.metadata.get(key) else { return Err(wrong()) };
    list.iter().map(|value| if let Value::Text(text) = value { Ok(*text) } else { Err(wrong()) }).collect()
}

/// The bytes of a `tokenizer.json`.
pub(super) fn json(file: &File<'_>) -> Result<Vec<u8>, ModelError> {
    let text = |key: &str| match file.metadata.get(key) {
        Some(Value::Text(text)) => *text,
        Some(_) | None => "(none named)",
    };
    let (model, name) = (text("tokenizer.ggml.model"), text("tokenizer.ggml.pre"));
    if model != "gpt2" {
        return Err(bad(format!(
            "a GGUF tokenizer of kind {model} is not supported; accepted: gpt2 (byte-level BPE)"
        )));
    }
    let Some((_, splitting)) = SPLITTINGS.iter().find(|(known, _)| *known == name) else {
        let known = SPLITTINGS.map(|(known, _)| known).join(", ");
        return Err(bad(format!(
            "tokenizer.ggml.pre {name} is not known, and another splitting gives other tokens; accepted: {known}"
        )));
    };
    if file.metadata.get("tokenizer.ggml.add_eos_token") == Some(&Value::Bool(true)) {
        return Err(bad("tokenizer.ggml.add_eos_token: ending prompts with a token is not supported"));
    }
    let tokens = texts(file, "tokenizer.ggml.tokens")?;
    let vocabulary: Map<String, Json> =
        tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), id.into())).collect();
    let merges = texts(file, "tokenizer.ggml.merges")?;
    let merges: Vec<_> = merges
        .iter()
        .map(|merge| merge.split_once(' ').map(|(a, b)| [a, b]))
        .collect::<Option<_>>()
        .ok_or_else(|| bad("tokenizer.ggml.merges has one that is no pair"))?;
    let whole = json!({
        "version": "1.0",
        "added_tokens": added(file, &tokens),
        "pre_tokenizer": splitting.json(),
        "post_processor": beginning(file, &tokens, *splitting)?,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": splitting.is_llama3() },
    });
    Ok(whole.to_string().into_bytes())
}

/// Tokens that are found in a text before it is split.
fn added(file: &File<'_>, tokens: &[&str]) -> Vec<Json> {
    let kinds = match file.metadata.get("tokenizer.ggml.token_type") {
        Some(Value::List(kinds)) => kinds.as_slice(),
        Some(_) | None => &[],
    };
    let kind = |value: &Value<'_>| match value {
        Value::Unsigned(kind) => Some(*kind),
        Value::Signed(kind) => u64::try_from(*kind).ok(),
        _ => None,
    };
    let entry = |(id, (token, value)): (usize, (&&str, &Value<'_>))| {
        let kind = kind(value).filter(|kind| [CONTROL, USER_DEFINED].contains(kind))?;
        Some(json!({
            "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": kind == CONTROL,
        }))
    };
    tokens.iter().zip(kinds).enumerate().filter_map(entry).collect()
}

/// The token that a text begins with, where there is one.
fn beginning(file: &File<'_>, tokens: &[&str], splitting: Splitting) -> Result<Json, ModelError> {
    let add = match file.metadata.get("tokenizer.ggml.add_bos_token") {
        Some(Value::Bool(add)) => *add,
        Some(_) | None => splitting.is_llama3(),
    };
    let id = super::config::number(file, "tokenizer.ggml.bos_token_id")?;
    let Some((id, token)) = id.filter(|_| add).and_then(|id| Some((id, *tokens.get(id)?))) else {
        return Ok(Json::Null);
    };
    let (first, text) = (
        json!({ "SpecialToken": { "id": token, "type_id": 0 } }),
        |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } }),
    );
    Ok(json!({
        "type": "TemplateProcessing",
        "single": [first, text("A")],
        "pair": [first, text("A"), text("B")],
        "special_tokens": { token: { "id": token, "ids": [id], "tokens": [token] } },
    }))
}
