//! A small runner for Llama, Qwen, Gemma, Phi-3, gpt-oss, DeepSeek-V2 and other decoders over any
//! [`tqkv::attention::AttentionCache`].
//!
//! The usual runners keep their cache private, so this one exists. It reads Hugging Face directories
//! (`config.json`, safetensors, `tokenizer.json`) and GGUF files, and computes in f32 on the CPU. It is meant
//! for measuring caches, not for serving. Weights stay in their stored format. [`mod@generate`] makes text,
//! [`eval`] makes figures, and [`tune`] finds a policy for a model.
#![forbid(unsafe_code)]

use std::path::Path;

mod attention;
mod biased;
mod chat;
mod checkpoint;
mod coded;
pub mod compress;
mod config;
mod conversation;
mod error;
pub mod eval;
mod experts;
mod find;
pub mod flat;
mod forward;
mod gated;
pub mod generate;
mod gguf;
mod kv;
mod latent;
mod layer;
pub mod layers;
mod linear;
mod mlp;
mod norm;
mod outlier;
mod projections;
mod rope;
mod rows;
pub mod sampling;
pub mod shipped;
mod size;
pub mod stored;
mod stream;
mod tokenizer;
pub mod tune;
mod weights;
mod windows;

pub use biased::{BIASED_CHANNELS, BIASED_SHARE};
pub use checkpoint::{Access, CodedAs};
pub use coded::CodedMatrix;
pub use config::{Activation, Architecture, Config, Experts, Latent, RopeScaling, Rotary};
pub use conversation::Conversation;
pub use error::{ACCEPTED, ModelError};
pub use forward::LayerObserver;
pub use kv::{LayerKv, ModelKv};
pub use outlier::{OUTLIER_CHANNELS, OUTLIER_FACTOR};
pub use size::{WeightBytes, config_json};
pub use tokenizer::{Library, Pieces, SpecialTokens, Tokenizer};

use chat::Chat;
use checkpoint::{Checkpoint, CompressSpec, TensorSource};
use find::Found;
pub use find::without_mark;
use rope::Rope;
use weights::Weights;

/// A loaded model.
#[derive(Debug)]
pub struct Model {
    name: String,
    config: Config,
    weights: Weights,
    rope: Rope,
    /// RoPE of the layers with a window, if they have their own.
    local_rope: Option<Rope>,
    tokenizer: Tokenizer,
    chat: Chat,
    /// Tokens before prompts and before windows of text.
    special: SpecialTokens,
}

/// How the files of a model are read.
#[derive(Debug, Clone, Copy)]
struct Opening {
    access: Access,
    /// How matrices are coded, if they are. Those that are streamed would be coded again for each token.
    coding: Option<CompressSpec>,
}

impl Opening {
    const MAPPED: Self = Self { access: Access::Mapped, coding: None };
}

impl Model {
    /// Loads a GGUF file or a Hugging Face directory.
    ///
    /// * A GGUF file may be split. The other parts are found by their names.
    /// * A directory has `config.json`, and one safetensors file or the shards of
    ///   `model.safetensors.index.json`. It needs `tokenizer.json` unless the vocabulary is the 256 byte
    ///   values. End tokens of `generation_config.json` are read if the file exists.
    /// * A directory may hold one GGUF model instead, or be the directory of a repository in a hub's cache.
    ///
    /// The model is named after the file or directory. Weights stay in their file and in their stored format:
    /// see [`Access::Mapped`].
    ///
    /// # Errors
    /// The first thing that is missing, malformed or not supported. The error names it.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        Self::open(path, Access::Mapped)
    }

    /// Like [`Model::load`], with a choice of how the files are read.
    ///
    /// # Errors
    /// The errors of [`Model::load`].
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<Self, ModelError> {
        Self::open_as(path.as_ref(), Opening { access, coding: None })
    }

    /// Like [`Model::load`], with matrices that are coded while they are read, as [`compress::compress`] would write
    /// them. Products are computed on the codes, which are all that stays in memory.
    ///
    /// # Errors
    /// The errors of [`Model::load`], and [`ModelError::Compress`] for weights that cannot be coded.
    pub fn load_coded(path: impl AsRef<Path>, spec: &CompressSpec) -> Result<Self, ModelError> {
        Self::open_as(path.as_ref(), Opening { access: Access::Mapped, coding: Some(*spec) })
    }

    fn open_as(path: &Path, opening: Opening) -> Result<Self, ModelError> {
        let found = find::model(path)?;
        let name = find::name(path, &found);
        match found {
            Found::Gguf(file) => Self::of_gguf(name, gguf::open(&file, opening.access)?, opening),
            Found::Folder(dir) => Self::open_folder(name, &dir, opening),
        }
    }

    /// Loads a GGUF model from memory. Each part has a name for messages.
    ///
    /// # Errors
    /// The errors of [`Model::load`].
    pub fn from_gguf(name: &str, parts: &[(&str, &[u8])]) -> Result<Self, ModelError> {
        let files = parts.iter().map(|(name, bytes)| TensorSource::in_memory(name, bytes)).collect();
        Self::of_gguf(name.to_owned(), files, Opening::MAPPED)
    }

    fn of_gguf(name: String, files: Vec<TensorSource>, opening: Opening) -> Result<Self, ModelError> {
        let file = files.first().map_or_else(String::new, |file| file.name.clone());
        let load = || {
            let folder = gguf::read(files)?;
            let config = Config::from_json(&folder.config)?;
            let tokenizer = folder.tokenizer.read(config.vocab_size)?;
            Ok(Self {
                chat: folder.chat,
                ..Self::assemble(name, config, tokenizer, folder.tensors, opening)?
            })
        };
        load().map_err(|error| gguf::said_of(&file, error))
    }

    fn open_folder(name: String, dir: &Path, opening: Opening) -> Result<Self, ModelError> {
        let read = |name: &str| find::read_text(&dir.join(name));
        let read_if_there = |name: &str| {
            if dir.join(name).exists() { read(name).map(Some) } else { Ok(None) }
        };
        let mut config = Config::from_json(&read("config.json")?)?;
        if let Some(json) = read_if_there("generation_config.json")? {
            config.add_generation_config(&json)?;
        }
        let tokenizer = Tokenizer::new(read_if_there("tokenizer.json")?.as_deref(), config.vocab_size)?;
        let chat = Chat::from_json(
            read_if_there("tokenizer_config.json")?.as_deref(),
            read_if_there("chat_template.jinja")?.as_deref(),
        )?;
        let tensors = Checkpoint::open_folder(dir, opening.access)?;
        Ok(Self { chat, ..Self::assemble(name, config, tokenizer, tensors, opening)? })
    }

    /// Loads from memory: the bytes of `config.json`, of one safetensors file, and of `tokenizer.json` if
    /// there is one.
    ///
    /// # Errors
    /// The errors of [`Model::load`].
    pub fn from_bytes(
        name: &str,
        config: &[u8],
        safetensors: &[u8],
        tokenizer: Option<&[u8]>,
    ) -> Result<Self, ModelError> {
        let config = Config::from_json(config)?;
        let tokenizer = Tokenizer::new(tokenizer, config.vocab_size)?;
        let file = TensorSource::in_memory("model.safetensors", safetensors);
        let tensors = Checkpoint::of_safetensors(vec![file])?;
        Self::assemble(name.to_owned(), config, tokenizer, tensors, Opening::MAPPED)
    }

    fn assemble(
        name: String,
        config: Config,
        tokenizer: Tokenizer,
        tensors: Checkpoint,
        opening: Opening,
    ) -> Result<Self, ModelError> {
        let (mut config, tensors) = (config, tensors.coded(opening.coding));
        config.sink_logits = weights::read_sinks(&config, &tensors)?;
        let weights = Weights::read(&config, tensors, opening.access)?;
        let (rope, local_rope) = (Rope::new(&config.rotary), config.local_rotary.as_ref().map(Rope::new));
        let (chat, special) = (Chat::default(), SpecialTokens::Add);
        Ok(Self { name, rope, local_rope, config, weights, tokenizer, chat, special })
    }

    /// The name of the model in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of the weights, as the model was loaded: in the format of their file, or as codes.
    pub fn weight_bytes(&self) -> WeightBytes {
        self.weights.bytes
    }

    /// True if layers are read from the files each time they run.
    pub fn is_streamed(&self) -> bool {
        self.weights.layers.are_streamed()
    }

    /// The shapes and constants of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The tokeniser.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }
}

/// The example of the README must compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
