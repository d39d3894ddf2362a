//! Converts the tokenizer of a file to a `tokenizer.json`.
//!
//! Byte-level BPE splits a text before its merges, and the file names the kind of splitting. An unknown kind
//! is refused, because another splitting would give other tokens without an error. The other type of
//! tokenizer is pieces with scores ([`super::pieces`]).

use serde_json::{Value as Json, json};

use super::tokens::{added, bad, beginning, kinds, switch, texts, vocabulary};
use super::{File, Value, pieces};
use crate::chat::Chat;
use crate::error::ModelError;
use crate::tokenizer::pieces::kind;
use crate::{Pieces, Tokenizer};

/// GPT-4's pattern for words, numbers and signs. The pattern for numbers goes between the two.
const WORDS: [&str; 2] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// Names of the known splittings.
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
    /// Single digits, then the splitting of GPT-2.
    DigitsFirst,
    /// [`WORDS`] with this pattern for numbers.
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

    /// Llama 3: a word that is a token needs no merges. Texts begin with the first token, unless the file has
    /// another value.
    fn is_llama3(self) -> bool {
        matches!(self, Self::Words(r"\p{N}{1,3}"))
    }
}

/// The tokenizer of a file.
pub(crate) enum Vocabulary {
    /// The bytes of a `tokenizer.json`.
    Json(Vec<u8>),
    /// Pieces with scores.
    Pieces(Pieces),
}

impl Vocabulary {
    pub(super) fn of(file: &File<'_>) -> Result<Self, ModelError> {
        if switch(file, "add_eos_token", false)? {
            return Err(bad("tokenizer.ggml.add_eos_token: ending prompts with a token is not supported"));
        }
        match text(file, "tokenizer.ggml.model") {
            "gpt2" => byte_level(file).map(Self::Json),
            "llama" => pieces::read(file).map(Self::Pieces),
            other => Err(bad(format!(
                "a GGUF tokenizer of kind {other} is not supported; accepted: gpt2 (byte-level BPE), llama (pieces with scores)"
            ))),
        }
    }

    /// The tokenizer of a model with `vocab_size` tokens.
    pub(crate) fn read(self, vocab_size: usize) -> Result<Tokenizer, ModelError> {
        match self {
            Self::Json(json) => Tokenizer::new(Some(&json), vocab_size),
            Self::Pieces(pieces) if pieces.len() > vocab_size => Err(bad(format!(
                "it has {} tokens, and the model's vocab_size is {vocab_size}",
                pieces.len()
            ))),
            Self::Pieces(pieces) => Ok(Tokenizer::Pieces(pieces)),
        }
    }

    /// The bytes of a `tokenizer.json`.
    pub(crate) fn json(self) -> Vec<u8> {
        match self {
            Self::Json(json) => json,
            Self::Pieces(pieces) => pieces::json(&pieces).to_string().into_bytes(),
        }
    }
}

fn text<'a>(file: &File<'a>, key: &str) -> &'a str {
    match file.metadata.get(key) {
        Some(Value::Text(text)) => text,
        Some(_) | None => "(none named)",
    }
}

/// The chat template, and the tokens that it may name.
pub(super) fn chat(file: &File<'_>) -> Result<Chat, ModelError> {
    let own = |key: &str| match file.metadata.get(key) {
        Some(Value::Text(text)) => Some((*text).to_owned()),
        Some(_) | None => None,
    };
    let token = |name: &str| {
        let id = super::config::number(file, &format!("tokenizer.ggml.{name}_token_id"))?;
        Ok::<_, ModelError>(match (file.metadata.get("tokenizer.ggml.tokens"), id) {
            (Some(Value::List(tokens)), Some(id)) => match tokens.iter().nth(id) {
                Some(Value::Text(text)) => Some(text.to_owned()),
                Some(_) | None => None,
            },
            _ => None,
        })
    };
    Ok(Chat { template: own("tokenizer.chat_template"), bos: token("bos")?, eos: token("eos")? })
}

fn byte_level(file: &File<'_>) -> Result<Vec<u8>, ModelError> {
    let name = text(file, "tokenizer.ggml.pre");
    let Some((_, splitting)) = SPLITTINGS.iter().find(|(known, _)| *known == name) else {
        let known = SPLITTINGS.map(|(known, _)| known).join(", ");
        return Err(bad(format!(
            "tokenizer.ggml.pre {name} is not known, and another splitting gives other tokens; accepted: {known}"
        )));
    };
    let tokens = texts(file, "tokenizer.ggml.tokens")?;
    let merges = texts(file, "tokenizer.ggml.merges")?;
    let merges: Vec<_> = merges
        .iter()
        .map(|merge| merge.split_once(' ').map(|(a, b)| [a, b]))
        .collect::<Option<_>>()
        .ok_or_else(|| bad("tokenizer.ggml.merges has one that is no pair"))?;
    let first = switch(file, "add_bos_token", splitting.is_llama3())?;
    let first = if first { super::config::number(file, "tokenizer.ggml.bos_token_id")? } else { None };
    let whole = json!({
        "version": "1.0",
        "added_tokens": added(&tokens, &kinds(file)?, &[kind::CONTROL, kind::USER_DEFINED]),
        "pre_tokenizer": splitting.json(),
        "post_processor": beginning(&tokens, first),
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "vocab": vocabulary(&tokens), "merges": merges, "ignore_merges": splitting.is_llama3() },
    });
    Ok(whole.to_string().into_bytes())
}
