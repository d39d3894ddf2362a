//! Errors of the model runner, generation and evaluation.

use std::path::PathBuf;

use thiserror::Error;

use tqkv::error::CacheError;

/// The files that [`crate::Model::load`] accepts, for messages.
pub const ACCEPTED: &str =
    "a .gguf file, or a folder with config.json, .safetensors and tokenizer.json, or with one .gguf";

/// Why a model could not be loaded or run. Every message is one line long.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// There is no model at the path.
    #[error("{}: {reason}; expected {}", path.display(), ACCEPTED)]
    NoModel {
        /// The file or folder.
        path: PathBuf,
        /// The contents of the path.
        reason: String,
    },
    /// The model has no chat template.
    #[error(
        "the model has no chat template (tokenizer.chat_template in a GGUF file, chat_template in tokenizer_config.json, or chat_template.jinja)"
    )]
    NoChatTemplate,
    /// The chat template or its settings are malformed, or it refuses the prompt.
    #[error("chat template: {0}")]
    Chat(String),
    /// `config.json` is malformed, or describes something that the runner does not compute.
    #[error("config.json: {0}")]
    Config(String),
    /// The `architectures` entry is not supported.
    #[error("config.json: architecture {got} is not supported; accepted: {accepted}")]
    UnsupportedArchitecture {
        /// The name found.
        got: String,
        /// The accepted names, comma separated.
        accepted: String,
    },
    /// A weights file is not a readable safetensors or GGUF file, or the shard index is malformed.
    #[error("{file}: {reason}")]
    Weights {
        /// File name.
        file: String,
        /// The fault.
        reason: String,
    },
    /// A tensor that the architecture needs is missing.
    #[error("tensor {name} is missing from the checkpoint")]
    MissingTensor {
        /// Hugging Face tensor name.
        name: String,
    },
    /// The architecture does not have this tensor.
    #[error(
        "tensor {name} is not read, and may change what the model computes; the architecture has none of that name"
    )]
    UnreadTensor {
        /// Name of the tensor.
        name: String,
    },
    /// A tensor does not have the shape that `config.json` implies.
    #[error("tensor {name} has shape {got:?}, expected {expected:?} from config.json")]
    WrongShape {
        /// Hugging Face tensor name.
        name: String,
        /// Shape in the file.
        got: Vec<usize>,
        /// Expected shape.
        expected: Vec<usize>,
    },
    /// A tensor is stored in a number format that the runner does not read.
    #[error("tensor {name} is stored as {got}; accepted: {accepted}")]
    UnsupportedDtype {
        /// Name of the tensor.
        name: String,
        /// Format in the file.
        got: String,
        /// The formats that the runner reads.
        accepted: String,
    },
    /// `tokenizer.json` could not be read or could not encode the text.
    #[error("tokenizer.json: {0}")]
    Tokenizer(String),
    /// There is no `tokenizer.json`, and the vocabulary is not the 256 byte values.
    #[error(
        "tokenizer.json is missing; only a model with vocab_size 256 can do without (raw bytes), this one has {vocab_size}"
    )]
    MissingTokenizer {
        /// Vocabulary size of the model.
        vocab_size: usize,
    },
    /// The text for a `tokenizer.json` model is not UTF-8.
    #[error("the text is not UTF-8 from byte {valid_up_to} on; this model's tokenizer.json reads UTF-8 only")]
    NotUtf8 {
        /// Number of valid bytes before the first bad one.
        valid_up_to: usize,
    },
    /// The prompt has no tokens.
    #[error("the prompt is empty; at least one token is needed")]
    EmptyPrompt,
    /// Prompt and new tokens together do not fit in the context.
    #[error("a prompt of {prompt} tokens plus {new} new ones is {} tokens; the model's context is {context}", prompt.saturating_add(*new))]
    ContextExceeded {
        /// Tokens of the prompt, or positions already used.
        prompt: usize,
        /// Tokens requested after it.
        new: usize,
        /// `max_position_embeddings`, or the attention window if that is shorter.
        context: usize,
    },
    /// The embedding table does not have this token.
    #[error("token {token} is out of range: the vocabulary has {vocab_size} tokens")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Vocabulary size of the model.
        vocab_size: usize,
    },
    /// Keys and values could not be stored, or a basis could not be learned.
    #[error(transparent)]
    Storage(#[from] tqkv_storage::StorageError),
    /// The model computed a NaN or an infinity.
    #[error("the logits at position {position} are not finite")]
    NonFiniteLogits {
        /// Position of the token before the one to be chosen.
        position: usize,
    },
    /// The sampling temperature is negative or not a number.
    #[error("temperature {0} is not accepted; it must be 0 (greedy) or a positive number")]
    BadTemperature(f32),
    /// The outlier variant exists for one head dim only.
    #[error("the outlier variant is defined for head_dim 128 only; this model has {head_dim}")]
    OutlierHeadDim {
        /// The head dim of the model.
        head_dim: usize,
    },
    /// The variant would not be the same function for this model.
    #[error("the {variant} variant is not defined for a model with {what}")]
    Variant {
        /// The variant.
        variant: &'static str,
        /// The property of the model that rules the variant out.
        what: &'static str,
    },
    /// The factor of the key bias is negative or not a number.
    #[error("a key bias of {0} times the keys is not accepted; it must be 0 or a positive number")]
    BadKeyBias(f32),
    /// Weights cannot be coded as requested, or do not fill whole blocks of their format.
    #[error("weights: {0}")]
    Compress(String),
    /// The model cannot become a flat file for microcontrollers, or such a file cannot run.
    #[error("flat model: {0}")]
    Export(String),
    /// The caller ended the operation before it was complete.
    #[error("ended before it was complete")]
    Cancelled,
    /// A variant changes weights in memory, but these are streamed.
    #[error("weights that are streamed cannot be changed; load the model without streaming")]
    Streamed,
    /// The numbers of tokens, positions and caches of several sequences differ.
    #[error("{tokens} tokens, {positions} positions and {caches} caches: each sequence needs one of each")]
    Sequences {
        /// Tokens given.
        tokens: usize,
        /// Positions given.
        positions: usize,
        /// Caches given.
        caches: usize,
    },
    /// The evaluation does not fit the text or the model.
    #[error("evaluation: {0}")]
    Evaluation(String),
    /// No policy can be found for the model within the budget.
    #[error("tune: {0}")]
    Tune(String),
    /// An error of the cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
}
