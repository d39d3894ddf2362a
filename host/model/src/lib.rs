//! A small runner for Llama-family decoders over any [`tqkv::attention::AttentionCache`].
//!
//! It exists because the usual runners keep their cache private. It reads Hugging Face directories (`config.json`,
//! safetensors, `tokenizer.json`), computes in f32 on the CPU and is meant for measuring caches, not for serving:
//! weights take 4 bytes a parameter. Text comes out of [`mod@generate`], figures out of [`eval`].
#![forbid(unsafe_code)]

use std::path::Path;

mod biased;
mod config;
mod error;
pub mod eval;
mod forward;
pub mod generate;
pub mod layers;
mod linear;
mod outlier;
mod rope;
pub mod sampling;
pub mod shipped;
mod tokenizer;
mod weights;

pub use biased::{BIASED_CHANNELS, BIASED_SHARE};
pub use config::{Architecture, Config, RopeScaling};
pub use error::ModelError;
pub use forward::LayerObserver;
pub use outlier::{OUTLIER_CHANNELS, OUTLIER_FACTOR};
pub use tokenizer::{SpecialTokens, Tokenizer};

use rope::Rope;
use weights::{Files, Weights};

/// A loaded model.
#[derive(Debug)]
pub struct Model {
    name: String,
    config: Config,
    weights: Weights,
    rope: Rope,
    tokenizer: Tokenizer,
}

impl Model {
    /// Loads a Hugging Face directory: `config.json`, `model.safetensors` or the shards of
    /// `model.safetensors.index.json`, `tokenizer.json` unless the vocabulary is the 256 byte values, and the end
    /// tokens of `generation_config.json` where there is one. The model is named after the directory.
    ///
    /// # Errors
    /// The first thing that is missing, malformed or not supported, by name.
    pub fn load(dir: &Path) -> Result<Self, ModelError> {
        let read = |name: &str| {
            let path = dir.join(name);
            std::fs::read(&path).map_err(|source| ModelError::Io { path, source })
        };
        let read_if_there = |name: &str| {
            if dir.join(name).exists() { read(name).map(Some) } else { Ok(None) }
        };
        let mut config = Config::from_json(&read("config.json")?)?;
        if let Some(json) = read_if_there("generation_config.json")? {
            config.add_generation_config(&json)?;
        }
        let tokenizer = Tokenizer::new(read_if_there("tokenizer.json")?.as_deref(), config.vocab_size)?;
        let files = Files::open(dir)?;
        let name = dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy().into_owned();
        Self::assemble(name, config, tokenizer, &files.buffers())
    }

    /// Loads from memory: the bytes of `config.json`, of one safetensors file, and of `tokenizer.json` if any.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn from_bytes(
        name: &str,
        config: &[u8],
        safetensors: &[u8],
        tokenizer: Option<&[u8]>,
    ) -> Result<Self, ModelError> {
        let config = Config::from_json(config)?;
        let tokenizer = Tokenizer::new(tokenizer, config.vocab_size)?;
        Self::assemble(name.to_owned(), config, tokenizer, &[("model.safetensors", safetensors)])
    }

    fn assemble(
        name: String,
        config: Config,
        tokenizer: Tokenizer,
        buffers: &[(&str, &[u8])],
    ) -> Result<Self, ModelError> {
        let weights = Weights::read(&config, buffers)?;
        Ok(Self { name, rope: Rope::new(&config), config, weights, tokenizer })
    }

    /// Name for reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Shapes and constants.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The tokeniser.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }
}

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
