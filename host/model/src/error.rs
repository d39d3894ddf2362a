//! Errors of the model runner, generation and evaluation.

use std::path::PathBuf;

use thiserror::Error;

use tqkv::error::CacheError;

/// What [`crate::Model::load`] takes, for messages.
pub const ACCEPTED: &str =
    "a .gguf file, or a folder with config.json, .safetensors and tokenizer.json, or with one .gguf";

/// Why a model could not be loaded or run. Every message is one line.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Nothing to load is where a model should be.
    #[error("{}: {reason}; accepted is {}", path.display(), ACCEPTED)]
    NoModel {
        /// The file or folder.
        path: PathBuf,
        /// What is there instead.
        reason: String,
    },
    /// There is no chat template.
    #[error(
        "the model has no chat template (tokenizer.chat_template in a GGUF file, chat_template in tokenizer_config.json, or chat_template.jinja)"
    )]
    NoChatTemplate,
    /// The chat template, or what goes with it, is malformed, or refuses the prompt.
    #[error("chat template: {0}")]
    Chat(String),
    /// `config.json` is malformed, or describes something the runner does not compute.
    #[error("config.json: {0}")]
    Config(String),
    /// The `architectures` entry is none of those accepted.
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
        /// What was wrong.
        reason: String,
    },
    /// A tensor the architecture needs is not in the checkpoint.
    #[error("tensor {name} is missing from the checkpoint")]
    MissingTensor {
        /// Hugging Face tensor name.
        name: String,
    },
    /// A tensor that the architecture does not have.
    #[error(
        "tensor {name} is not read, and may change what the model computes; the architecture has none of that name"
    )]
    UnreadTensor {
        /// Name of the tensor.
        name: String,
    },
    /// A tensor does not have the shape `config.json` implies.
    #[error("tensor {name} has shape {got:?}, expected {expected:?} from config.json")]
    WrongShape {
        /// Hugging Face tensor name.
        name: String,
        /// Shape in the file.
        got: Vec<usize>,
        /// Shape wanted.
        expected: Vec<usize>,
    },
    /// A tensor is stored in a number format that the runner does not read.
    #[error("tensor {name} is stored as {got}; accepted: {accepted}")]
    UnsupportedDtype {
        /// Name of the tensor.
        name: String,
        /// Format in the file.
        got: String,
        /// The formats that are read.
        accepted: String,
    },
    /// `tokenizer.json` could not be read or could not encode the text.
    #[error("tokenizer.json: {0}")]
    Tokenizer(String),
    /// There is no `tokenizer.json` and the vocabulary is not the 256 byte values.
    #[error(
        "tokenizer.json is missing; only a model with vocab_size 256 can do without (raw bytes), this one has {vocab_size}"
    )]
    MissingTokenizer {
        /// Vocabulary of the model.
        vocab_size: usize,
    },
    /// Text for a `tokenizer.json` model that is not UTF-8.
    #[error("the text is not UTF-8 from byte {valid_up_to} on; this model's tokenizer.json reads UTF-8 only")]
    NotUtf8 {
        /// Bytes before the first bad one.
        valid_up_to: usize,
    },
    /// Nothing to run.
    #[error("the prompt is empty; at least one token is needed")]
    EmptyPrompt,
    /// Prompt and new tokens together do not fit the context.
    #[error("a prompt of {prompt} tokens plus {new} new ones is {} tokens; the model's context is {context}", prompt.saturating_add(*new))]
    ContextExceeded {
        /// Tokens of the prompt, or positions already used.
        prompt: usize,
        /// Tokens asked for after it.
        new: usize,
        /// `max_position_embeddings`, or the attention window where that is shorter.
        context: usize,
    },
    /// A token id that the embedding table does not have.
    #[error("token {token} is out of range: the vocabulary has {vocab_size} tokens")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Vocabulary of the model.
        vocab_size: usize,
    },
    /// Keys and values could not be stored, or a basis not be learned.
    #[error(transparent)]
    Storage(#[from] tqkv_storage::StorageError),
    /// The model computed a NaN or an infinity.
    #[error("the logits at position {position} are not finite")]
    NonFiniteLogits {
        /// Position of the token whose successor was to be chosen.
        position: usize,
    },
    /// A sampling temperature that is negative or not a number.
    #[error("temperature {0} is not accepted; it must be 0 (greedy) or a positive number")]
    BadTemperature(f32),
    /// The outlier variant is defined for one head dimension only.
    #[error("the outlier variant is defined for head_dim 128 only; this model has {head_dim}")]
    OutlierHeadDim {
        /// head_dim of the model.
        head_dim: usize,
    },
    /// A variant that would not be the same function of this model.
    #[error("the {variant} variant is not defined for a model with {what}")]
    Variant {
        /// Which variant.
        variant: &'static str,
        /// What of the model it does not go with.
        what: &'static str,
    },
    /// A factor of the key bias that is negative or not a number.
    #[error("a key bias of {0} times the keys is not accepted; it must be 0 or a positive number")]
    BadKeyBias(f32),
    /// Weights that cannot be coded as asked for, or are no whole blocks of their format.
    #[error("weights: {0}")]
    Compress(String),
    /// The model cannot be a flat file for microcontrollers, or such a file cannot be run.
    #[error("flat model: {0}")]
    Export(String),
    /// Who asked for it ended it before it was whole.
    #[error("ended before it was whole")]
    Cancelled,
    /// A variant of a model is made of weights in memory.
    #[error("weights that are streamed cannot be changed; load the model whole")]
    Streamed,
    /// Tokens, positions and caches of several sequences that are not as many.
    #[error("{tokens} tokens, {positions} positions and {caches} caches: each sequence needs one of each")]
    Sequences {
        /// Tokens given.
        tokens: usize,
        /// Positions given.
        positions: usize,
        /// Caches given.
        caches: usize,
    },
    /// The evaluation asked for does not fit the text or the model.
    #[error("evaluation: {0}")]
    Evaluation(String),
    /// The cache refused.
    #[error(transparent)]
    Cache(#[from] CacheError),
}
