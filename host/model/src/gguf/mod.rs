//! GGUF files: one model with its metadata, its tokenizer and its tensors, as llama.cpp has them.
//!
//! What is read becomes what a Hugging Face folder has ([`Checkpoint::config`], [`Checkpoint::tokenizer`], tensors by their
//! names there), so that all else exists once. What would change the result and is not computed is refused by name.

mod config;
mod file;
mod kinds;
mod names;
mod pieces;
mod vocabulary;

use std::path::{Path, PathBuf};

use crate::error::ModelError;
use crate::weights::{Tensor, Tensors};
use config::Family;
use file::{File, Info, Value};
use kinds::Kind;
use tqkv::file::Bytes;

/// The mapped files of a model: one, or the parts of one that was split.
pub(crate) struct Parts(Vec<(String, Bytes)>);

impl Parts {
    /// Maps a file, and those beside it where its name says that it is one of several (`-00001-of-00003.gguf`).
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let map = |path: PathBuf| {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            Bytes::open(&path).map(|bytes| (name, bytes)).map_err(|source| ModelError::Io { path, source })
        };
        part_names(path).into_iter().map(map).collect::<Result<_, _>>().map(Self)
    }

    /// The mapped bytes, each with its file name.
    pub(crate) fn buffers(&self) -> Vec<(&str, &[u8])> {
        self.0.iter().map(|(name, bytes)| (name.as_str(), bytes.as_ref())).collect()
    }
}

/// Errors of what was made of a file, said of the file: there is no `config.json` that a user could look into.
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

/// All parts of the model that a file belongs to.
fn part_names(path: &Path) -> Vec<PathBuf> {
    let split = || {
        let stem = path.file_stem()?.to_str()?;
        let (front, count) = stem.rsplit_once("-of-")?;
        let (name, number) = front.rsplit_once('-')?;
        let five = |text: &str| text.len() == 5 && text.bytes().all(|digit| digit.is_ascii_digit());
        let parts = count.parse::<usize>().ok().filter(|parts| five(count) && five(number) && *parts > 0)?;
        let part = |i: usize| path.with_file_name(format!("{name}-{i:05}-of-{count}.gguf"));
        Some((1..=parts).map(part).collect())
    };
    split().unwrap_or_else(|| vec![path.to_owned()])
}

/// A model in GGUF files.
#[derive(Debug)]
pub(crate) struct Checkpoint<'a> {
    /// The first part has the metadata.
    files: Vec<(String, File<'a>)>,
    family: &'static Family,
}

impl<'a> Checkpoint<'a> {
    /// From the bytes of each file, with its name.
    ///
    /// # Errors
    /// [`ModelError::Weights`] for what is no GGUF file, [`ModelError::UnsupportedArchitecture`], and
    /// [`ModelError::Config`] for what is not computed.
    pub(crate) fn parse(buffers: &[(&str, &'a [u8])]) -> Result<Self, ModelError> {
        let parse = |&(name, bytes): &(&str, &'a [u8])| Ok((name.to_owned(), File::parse(name, bytes)?));
        let files: Vec<_> = buffers.iter().map(parse).collect::<Result<_, ModelError>>()?;
        let empty = || ModelError::Weights { file: "GGUF".to_owned(), reason: "no file".to_owned() };
        let family = Family::of(&files.first().ok_or_else(empty)?.1)?;
        let checkpoint = Self { files, family };
        checkpoint.check()?;
        Ok(checkpoint)
    }

    fn check(&self) -> Result<(), ModelError> {
        let (name, first) = &self.files[0];
        let parts = config::number(first, "split.count")?.unwrap_or(1);
        if parts.max(1) != self.files.len() {
            let reason =
                format!("it is one of {parts} parts; here are {}, found by their names", self.files.len());
            return Err(ModelError::Weights { file: name.clone(), reason });
        }
        let layers = config::number(first, &format!("{}.block_count", self.family.name))?.unwrap_or(0);
        for info in self.infos() {
            if !names::is_read(info.name, layers, self.family.has_head_norms) {
                let refused =
                    format!("tensor {} is not read, and would change what the model computes", info.name);
                return Err(ModelError::Config(refused));
            }
        }
        Ok(())
    }

    fn infos(&self) -> impl Iterator<Item = &Info<'a>> {
        self.files.iter().flat_map(|(_, file)| &file.tensors)
    }

    /// What `config.json` would say.
    pub(crate) fn config(&self) -> Result<Vec<u8>, ModelError> {
        let has = |name: &str| self.infos().any(|info| info.name == name);
        let vocabulary =
            self.infos().find(|info| info.name == names::EMBEDDING).and_then(|info| info.shape.first());
        let tensors = config::Tensors {
            vocab_size: vocabulary.copied(),
            has_head: has(names::HEAD),
            has_bias: has("blk.0.attn_q.bias"),
            factors: self.factors()?,
        };
        config::json(&self.files[0].1, self.family, &tensors)
    }

    /// The stretching of each RoPE frequency, where the file has it.
    fn factors(&self) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(info) = self.infos().find(|info| info.name == names::FACTORS) else { return Ok(None) };
        self.values(info).map(Some)
    }

    /// What `tokenizer.json` would say.
    pub(crate) fn tokenizer(&self) -> Result<Vec<u8>, ModelError> {
        vocabulary::json(&self.files[0].1)
    }

    /// A tensor by its name in Hugging Face checkpoints.
    fn tensor(&self, name: &str) -> Result<Option<Tensor>, ModelError> {
        let Some(here) = names::here(name) else { return Ok(None) };
        let Some(info) = self.infos().find(|info| info.name == here) else { return Ok(None) };
        let mut values = self.values(info)?;
        if let Some(heads) = self.permuted_heads(&here)? {
            values = unpermute(&values, heads, &info.shape);
        }
        Ok(Some((info.shape.clone(), values)))
    }

    /// Heads of a projection whose rows lie as interleaved RoPE wants them.
    fn permuted_heads(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let key = match name.split('.').nth(2) {
            Some("attn_q") => "attention.head_count",
            Some("attn_k") => "attention.head_count_kv",
            _ => return Ok(None),
        };
        let first = &self.files[0].1;
        let heads = |key| config::number(first, &format!("{}.{key}", self.family.name));
        let heads = heads(key)?.map_or_else(|| heads("attention.head_count"), |heads| Ok(Some(heads)))?;
        Ok(heads.filter(|_| self.family.is_interleaved))
    }

    fn values(&self, info: &Info<'_>) -> Result<Vec<f32>, ModelError> {
        let unsupported = |got: String| ModelError::UnsupportedDtype {
            name: info.name.to_owned(),
            got,
            accepted: Kind::names(),
        };
        let kind = Kind::of(info.kind).ok_or_else(|| unsupported(format!("number {}", info.kind)))?;
        let (file, part) = self.part_of(info);
        let bad = |reason: String| ModelError::Weights {
            file: file.to_owned(),
            reason: format!("tensor {}: {reason}", info.name),
        };
        let count = info.shape.iter().try_fold(1usize, |all, extent| all.checked_mul(*extent));
        let row = info.shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(kind.block) {
            return Err(bad(format!(
                "rows of {row} values are no whole blocks of {} ({})",
                kind.block, kind.name
            )));
        }
        let bytes = count.and_then(|count| (count / kind.block).checked_mul(kind.bytes));
        let data = bytes.and_then(|bytes| part.data(info, bytes));
        data.map(|data| kind.expand(data))
            .ok_or_else(|| bad(format!("shape {:?} does not fit the file", info.shape)))
    }

    /// The file that a tensor is in.
    fn part_of(&self, info: &Info<'_>) -> (&str, &File<'a>) {
        let holds = |file: &File<'_>| file.tensors.iter().any(|other| std::ptr::eq(other, info));
        let (name, file) = self.files.iter().find(|(_, file)| holds(file)).unwrap_or(&self.files[0]);
        (name, file)
    }
}

impl Tensors for Checkpoint<'_> {
    fn get(&self, name: &str) -> Result<Option<Tensor>, ModelError> {
        self.tensor(name)
    }
}

/// Rows of each head from (pair, half) to (half, pair): the converter writes the former for interleaved RoPE.
fn unpermute(values: &[f32], heads: usize, shape: &[usize]) -> Vec<f32> {
    let (rows, width): (usize, usize) = (shape.first().copied().unwrap_or(0), shape.iter().skip(1).product());
    let head_dim = rows / heads.max(1);
    // What is no whole number of heads will be refused for its shape.
    if width == 0 || head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim * heads != rows {
        return values.to_vec();
    }
    let mut out = Vec::with_capacity(values.len());
    for head in values.chunks(head_dim * width) {
        for half in 0..2 {
            for pair in 0..head_dim / 2 {
                out.extend_from_slice(&head[(2 * pair + half) * width..][..width]);
            }
        }
    }
    out
}
