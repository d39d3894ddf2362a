//! Families of models as such files have them.

use super::{File, Value};
use crate::error::ModelError;

/// A family of models in GGUF files.
#[derive(Debug)]
pub(super) struct GgufFamily {
    pub(super) name: &'static str,
    /// The class in the model library.
    pub(super) class: &'static str,
    /// Rows of queries and keys were permuted for interleaved RoPE.
    pub(super) is_interleaved: bool,
    /// Each head of queries and keys has a norm.
    pub(super) has_head_norms: bool,
    /// There are norms after attention and MLP.
    pub(super) has_post_norms: bool,
    /// Keys that this family reads besides [`READ`].
    pub(super) own: &'static [&'static str],
}

const LLAMA: GgufFamily = GgufFamily {
    name: "llama",
    class: "LlamaForCausalLM",
    is_interleaved: true,
    has_head_norms: false,
    has_post_norms: false,
    own: &[],
};

static FAMILIES: [GgufFamily; 4] = [
    LLAMA,
    GgufFamily { name: "qwen2", class: "Qwen2ForCausalLM", is_interleaved: false, ..LLAMA },
    GgufFamily {
        name: "qwen3",
        class: "Qwen3ForCausalLM",
        is_interleaved: false,
        has_head_norms: true,
        ..LLAMA
    },
    GgufFamily {
        name: GEMMA3,
        class: "Gemma3ForCausalLM",
        is_interleaved: false,
        has_head_norms: true,
        has_post_norms: true,
        own: &["attention.sliding_window"],
    },
];

pub(super) const GEMMA3: &str = "gemma3";

impl GgufFamily {
    pub(super) fn of(file: &File<'_>) -> Result<&'static Self, ModelError> {
        let name = match file.metadata.get("general.architecture") {
            Some(Value::Text(name)) => *name,
            Some(_) | None => "(none named)",
        };
        FAMILIES.iter().find(|family| family.name == name).ok_or_else(|| {
            ModelError::UnsupportedArchitecture {
                got: name.to_owned(),
                accepted: FAMILIES.each_ref().map(|family| family.name).join(", "),
            }
        })
    }
}
