//! The lists of tokens in a file, and what a `tokenizer.json` says of them.

use serde_json::{Map, Value as Json, json};

use super::{File, Value};
use crate::error::ModelError;
use crate::tokenizer::pieces::kind;

pub(super) fn bad(what: impl Into<String>) -> ModelError {
    ModelError::Tokenizer(what.into())
}

/// The most tokens and the most merges, because the result takes many times the bytes of the file. Gemma 3
/// has 262,144 tokens.
const MOST_ENTRIES: usize = 1 << 20;

/// A list. `read` must accept every entry.
pub(super) fn list<'a, T>(
    file: &File<'a>,
    key: &str,
    what: &str,
    read: fn(Value<'a>) -> Option<T>,
) -> Result<Vec<T>, ModelError> {
    let found = match file.metadata.get(key) {
        Some(Value::List(list)) if list.len() > MOST_ENTRIES => {
            return Err(bad(format!("{key} has {} entries; expected up to {MOST_ENTRIES}", list.len())));
        }
        Some(Value::List(list)) => list.iter().map(read).collect(),
        Some(_) | None => None,
    };
    found.ok_or_else(|| bad(format!("{key} is missing, or no list of {what}")))
}

pub(super) fn texts<'a>(file: &File<'a>, key: &str) -> Result<Vec<&'a str>, ModelError> {
    list(file, key, "texts", |value| if let Value::Text(text) = value { Some(text) } else { None })
}

/// A switch. `default` applies if the file does not have it.
pub(super) fn switch(file: &File<'_>, name: &str, default: bool) -> Result<bool, ModelError> {
    let key = format!("tokenizer.ggml.{name}");
    match file.metadata.get(key.as_str()) {
        None => Ok(default),
        Some(Value::Bool(on)) => Ok(*on),
        Some(_) => Err(bad(format!("{key}: true or false is accepted"))),
    }
}

/// Tokens and their ids. The last of equal tokens counts.
pub(super) fn vocabulary(tokens: &[&str]) -> Map<String, Json> {
    tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), id.into())).collect()
}

/// The kind of each token. Empty if the file has no such list.
pub(super) fn kinds(file: &File<'_>) -> Result<Vec<u8>, ModelError> {
    let key = "tokenizer.ggml.token_type";
    if !file.metadata.contains_key(key) {
        return Ok(Vec::new());
    }
    list(file, key, "whole numbers", |value| match value {
        Value::Unsigned(kind) => u8::try_from(kind).ok(),
        Value::Signed(kind) => u8::try_from(kind).ok(),
        _ => None,
    })
}

/// Tokens of the `wanted` kinds. They are found in a text before it is split.
pub(super) fn added(tokens: &[&str], kinds: &[u8], wanted: &[u8]) -> Vec<Json> {
    let all = tokens.iter().zip(kinds).enumerate();
    let found = all.filter(|(_, (token, kind))| wanted.contains(kind) && !token.is_empty());
    let entry = |(id, (token, kind)): (usize, (&&str, &u8))| {
        json!({
            "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": *kind != kind::USER_DEFINED,
        })
    };
    found.map(entry).collect()
}

/// Puts the token `id` at the beginning of every text, if there is one.
pub(super) fn beginning(tokens: &[&str], id: Option<usize>) -> Json {
    let Some((id, token)) = id.and_then(|id| Some((id, *tokens.get(id)?))) else { return Json::Null };
    let (first, text) = (
        json!({ "SpecialToken": { "id": token, "type_id": 0 } }),
        |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } }),
    );
    json!({
        "type": "TemplateProcessing",
        "single": [first, text("A")],
        "pair": [first, text("A"), text("B")],
        "special_tokens": { token: { "id": token, "ids": [id], "tokens": [token] } },
    })
}
