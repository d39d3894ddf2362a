//! GGUF files: one model with its metadata, its tokenizer and its tensors, as llama.cpp stores them.
//!
//! The contents are converted to those of a Hugging Face folder ([`Folder`], with tensor names of Hugging
//! Face), so that everything else exists once. A field that would change the result and is not computed is
//! refused by name.

mod config;
mod family;
mod file;
mod kv;
mod names;
mod parts;
mod pieces;
mod tokens;
mod vocabulary;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use crate::chat::Chat;
use crate::checkpoint::{Access, Checkpoint, Entry, NumberKind, TensorFormat, TensorSource};
use crate::error::ModelError;
use family::GgufFamily;
use file::{File, Info, List, Value};
pub(crate) use kv::{kv, tensor_bytes};
pub(crate) use parts::names as part_names;
pub(crate) use vocabulary::Vocabulary;

/// Attributes an error to the GGUF file, because the user has no `config.json` to look at.
pub(crate) fn said_of(file: &str, error: ModelError) -> ModelError {
    let reason = match error {
        ModelError::Config(reason) | ModelError::Tokenizer(reason) => reason,
        ModelError::UnsupportedArchitecture { got, accepted } => {
            format!("architecture {got} is not supported; accepted: {accepted}")
        }
        other => return other,
    };
    ModelError::Weights { file: file.to_owned(), reason }
}

/// The contents of an equivalent Hugging Face folder.
pub(crate) struct Folder {
    pub(crate) config: Vec<u8>,
    pub(crate) tokenizer: Vocabulary,
    pub(crate) chat: Chat,
    pub(crate) tensors: Checkpoint,
}

/// Opens a file. If its name ends like `-00001-of-00003.gguf`, opens all parts of the model.
pub(crate) fn open(path: &Path, access: Access) -> Result<Vec<TensorSource>, ModelError> {
    part_names(path).iter().map(|path| TensorSource::open(path, access)).collect()
}

/// Reads a model from all of its parts.
///
/// # Errors
/// [`ModelError::Weights`] for bytes that are no GGUF file, [`ModelError::UnsupportedArchitecture`], and
/// [`ModelError::Config`] for a feature that is not computed.
pub(crate) fn read(files: Vec<TensorSource>) -> Result<Folder, ModelError> {
    let heads: Vec<_> = files.iter().map(FileHead::read).collect::<Result<_, _>>()?;
    let contents = Contents::parse(&heads)?;
    let mut entries = contents.entries()?;
    // The factors go into the config.
    let factors =
        entries.remove(names::FACTORS).map(|entry| entry.read(names::FACTORS, &files)).transpose()?;
    let config = contents.config(factors.map(|factors| factors.to_f32()))?;
    let (tokenizer, chat) = (contents.tokenizer()?, vocabulary::chat(&contents.files[0])?);
    drop(heads);
    Ok(Folder { config, tokenizer, chat, tensors: Checkpoint::new(files, entries) })
}

/// Bytes of a file that are first searched for its header. For a longer header this grows by a factor of
/// [`LONGER`].
const HEAD: u64 = 1 << 20;
const LONGER: u64 = 8;
/// The longest header that is read. Large vocabularies take some ten megabytes.
const MAX_HEAD: u64 = 1 << 28;

/// The bytes of a file before its tensors.
struct FileHead<'a> {
    source: &'a TensorSource,
    bytes: Cow<'a, [u8]>,
}

impl<'a> FileHead<'a> {
    fn read(source: &'a TensorSource) -> Result<Self, ModelError> {
        let mut len = HEAD;
        loop {
            let bytes = source.head(len)?;
            let is_all = bytes.len() as u64 >= source.len.min(MAX_HEAD);
            if is_all || File::parse(&source.name, &bytes).is_ok() {
                return Ok(Self { source, bytes });
            }
            len *= LONGER;
        }
    }
}

/// The metadata and tensor tables of a model's GGUF files.
#[derive(Debug)]
struct Contents<'a> {
    /// The first part has the metadata.
    files: Vec<File<'a>>,
    sources: Vec<&'a TensorSource>,
    family: &'static GgufFamily,
}

impl<'a> Contents<'a> {
    /// Parses the header of each file.
    fn parse(heads: &'a [FileHead<'a>]) -> Result<Self, ModelError> {
        let parse = |head: &'a FileHead<'a>| File::parse(&head.source.name, &head.bytes);
        let files: Vec<_> = heads.iter().map(parse).collect::<Result<_, ModelError>>()?;
        let empty = || ModelError::Weights { file: "GGUF".to_owned(), reason: "no file".to_owned() };
        let family = GgufFamily::of(files.first().ok_or_else(empty)?)?;
        let contents = Self { files, sources: heads.iter().map(|head| head.source).collect(), family };
        contents.check()?;
        contents.check_lengths()?;
        Ok(contents)
    }

    fn check(&self) -> Result<(), ModelError> {
        parts::check(&self.files, &self.sources)?;
        let layers =
            config::number(&self.files[0], &format!("{}.block_count", self.family.name))?.unwrap_or(0);
        for info in self.files.iter().flat_map(|file| &file.tensors) {
            if !names::is_read(info.name, layers, self.family) {
                let refused =
                    format!("tensor {} is not read, and would change what the model computes", info.name);
                return Err(ModelError::Config(refused));
            }
        }
        Ok(())
    }

    /// Refuses a file that ends before its last tensor, as after an interrupted download.
    fn check_lengths(&self) -> Result<(), ModelError> {
        for (file, source) in self.files.iter().zip(&self.sources) {
            for info in &file.tensors {
                let bytes = NumberKind::numbered(info.kind)
                    .and_then(|kind| TensorFormat::Plain(kind).bytes_of(&info.shape).ok());
                let start = file.data.saturating_add(info.offset);
                let end = start.saturating_add(bytes.unwrap_or(0) as u64);
                if end > source.len {
                    return Err(source.bad(format!(
                        "it ends early: it has {} bytes, and its tensor {} ends at {end}",
                        source.len, info.name
                    )));
                }
            }
        }
        Ok(())
    }

    fn info(&self, name: &str) -> Option<&Info<'a>> {
        self.files.iter().flat_map(|file| &file.tensors).find(|info| info.name == name)
    }

    /// Makes the `config.json`. `factors` scale the RoPE frequencies, if the file has them.
    fn config(&self, factors: Option<Vec<f32>>) -> Result<Vec<u8>, ModelError> {
        let vocabulary = self.info(names::EMBEDDING).and_then(|info| info.shape.first());
        let seen = config::Tensors {
            vocab_size: vocabulary.copied(),
            has_head: self.info(names::HEAD).is_some(),
            has_bias: self.info("blk.0.attn_q.bias").is_some(),
            factors,
        };
        config::json(&self.files[0], self.family, &seen)
    }

    fn tokenizer(&self) -> Result<Vocabulary, ModelError> {
        Vocabulary::of(&self.files[0])
    }

    /// The place of each tensor, by its name in Hugging Face checkpoints. A tensor without such a name keeps
    /// its own.
    fn entries(&self) -> Result<HashMap<String, Entry>, ModelError> {
        let mut entries = HashMap::new();
        for (file, contents) in self.files.iter().enumerate() {
            for info in &contents.tensors {
                let kind = NumberKind::numbered(info.kind);
                let entry = Entry {
                    format: kind.map(TensorFormat::Plain).ok_or_else(|| format!("number {}", info.kind)),
                    shape: info.shape.clone(),
                    file,
                    start: contents.data.saturating_add(info.offset),
                    interleaved_heads: self.interleaved_heads(info.name)?,
                };
                let name = names::there(info.name, self.family).unwrap_or_else(|| info.name.to_owned());
                entries.entry(name).or_insert(entry);
            }
        }
        Ok(entries)
    }

    /// Heads of a projection whose rows are in the order of interleaved RoPE.
    fn interleaved_heads(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let key = match name.split('.').nth(2) {
            Some("attn_q") => "attention.head_count",
            Some("attn_k") => "attention.head_count_kv",
            _ => return Ok(None),
        };
        let heads = |key| config::number(&self.files[0], &format!("{}.{key}", self.family.name));
        let heads = heads(key)?.map_or_else(|| heads("attention.head_count"), |heads| Ok(Some(heads)))?;
        Ok(heads.filter(|_| self.family.is_interleaved))
    }
}
