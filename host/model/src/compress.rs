//! Codes the weights of a model and writes them to a folder that [`crate::Model::load`] reads.
//!
//! Each row of a matrix is split into groups, and each group is encoded as a vector of a codec. No training
//! data is needed. Weights that are already quantised should not be coded, except for measurements: a second
//! rounding adds to the first.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use safetensors::{Dtype, View};
use serde::{Deserialize, Serialize};
use tqkv::file::AtomicFolder;
use tqkv_core::AnyCodec;
use tqkv_simd::Level;

pub use crate::checkpoint::CompressSpec;
use crate::checkpoint::{Access, Checkpoint, CodedAs};
use crate::error::ModelError;
use crate::find::{self, Found};
use crate::gguf;

/// The sizes of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compressed {
    /// Number of coded values.
    pub coded_values: usize,
    /// Bytes of the codes and scales of these values.
    pub coded_bytes: usize,
    /// Bytes of all tensors in the source.
    pub bytes_before: usize,
    /// Bytes of all tensors in the result.
    pub bytes: usize,
}

/// The file of the weights.
const WEIGHTS: &str = "model.safetensors";

/// Files that are copied next to the weights if they exist.
const BESIDE: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// Codes the weights of the model at `from` into the folder `to`, which must not exist. The folder appears
/// complete or not at all.
///
/// `on_tensor` receives the number of finished tensors and the number of all tensors. If it returns `Break`,
/// the result is [`ModelError::Cancelled`], and nothing is left behind. Memory: a few times the largest
/// tensor.
///
/// # Errors
/// The errors of [`crate::Model::load`] for files, [`ModelError::Compress`] for weights that cannot be coded,
/// and [`ModelError::Io`].
pub fn compress(
    from: &Path,
    to: &Path,
    spec: &CompressSpec,
    on_tensor: &(dyn Fn(usize, usize) -> ControlFlow<()> + Sync),
) -> Result<Compressed, ModelError> {
    let io = |source| ModelError::Io { path: to.to_owned(), source };
    let folder = AtomicFolder::create(to).map_err(io)?;
    let (beside, tensors) = open(from)?;
    for (name, bytes) in beside {
        std::fs::write(folder.path().join(name), bytes).map_err(io)?;
    }
    let weights = folder.path().join(WEIGHTS);
    let made = write(&tensors, &weights, spec, on_tensor)?;
    sort_header(&weights).map_err(io)?;
    // The library makes its file readable by the owner alone. The result gets the usual permissions.
    let mode = std::fs::metadata(folder.path().join(BESIDE[0])).map_err(io)?.permissions();
    std::fs::set_permissions(weights, mode).map_err(io)?;
    folder.commit().map_err(io)?;
    Ok(made)
}

/// An entry of the header of a safetensors file.
#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum HeaderEntry {
    Metadata(BTreeMap<String, String>),
    Tensor(serde_json::Value),
}

/// Sorts the entries of a file's header. The library takes the metadata out of a map without an order.
fn sort_header(path: &Path) -> io::Result<()> {
    let mut file = File::options().read(true).write(true).open(path)?;
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let mut header = Vec::new();
    (&file).take(u64::from_le_bytes(length)).read_to_end(&mut header)?;
    let sorted: BTreeMap<String, HeaderEntry> = serde_json::from_slice(&header)?;
    let mut bytes = serde_json::to_vec(&sorted)?;
    // The entries are the same, and spaces fill the rest.
    bytes.resize(header.len(), b' ');
    file.seek(io::SeekFrom::Start(length.len() as u64))?;
    file.write_all(&bytes)
}

/// A file and its name.
type Named = (&'static str, Vec<u8>);

/// Reads the files next to the weights, and opens the tensors.
fn open(from: &Path) -> Result<(Vec<Named>, Checkpoint), ModelError> {
    let from = match find::model(from)? {
        Found::Folder(dir) => dir,
        Found::Gguf(file) => {
            let folder = gguf::read(gguf::open(&file, Access::Streamed)?)?;
            let beside = [
                ("config.json", folder.config),
                ("tokenizer.json", folder.tokenizer.json()),
                ("tokenizer_config.json", folder.chat.to_json()),
            ];
            return Ok((beside.into(), folder.tensors));
        }
    };
    let beside = BESIDE.into_iter().filter(|name| from.join(name).exists()).map(|name| {
        let path = from.join(name);
        std::fs::read(&path).map(|bytes| (name, bytes)).map_err(|source| ModelError::Io { path, source })
    });
    Ok((beside.collect::<Result<_, _>>()?, Checkpoint::open_folder(&from, Access::Streamed)?))
}

fn write(
    tensors: &Checkpoint,
    path: &Path,
    spec: &CompressSpec,
    on_tensor: &(dyn Fn(usize, usize) -> ControlFlow<()> + Sync),
) -> Result<Compressed, ModelError> {
    let level = Level::detect().map_err(|error| ModelError::Compress(error.to_string()))?;
    // Names are sorted, so that the same one of several faults is always reported.
    let mut names: Vec<_> = tensors.names().collect();
    names.sort_unstable();
    let job = CompressJob { tensors, level, on_tensor, all: names.len(), state: Mutex::default() };
    let mut metadata = HashMap::new();
    let mut made = Compressed { coded_values: 0, coded_bytes: 0, bytes_before: 0, bytes: 0 };
    let mut views = Vec::with_capacity(names.len());
    for name in names {
        let view = Tensor::new(&job, name, spec)?;
        made.bytes_before += view.bytes_before;
        made.bytes += view.data_len();
        if let Some((coded_as, codec)) = &view.coded {
            made.coded_values += view.values();
            made.coded_bytes += view.values() / codec.dim() * codec.block_bytes();
            let said = serde_json::to_string(coded_as).map_err(|e| ModelError::Compress(e.to_string()))?;
            metadata.insert(CodedAs::key(name), said);
        }
        views.push((name, view));
    }
    let written = safetensors::serialize_to_file(views, Some(metadata), path);
    if let Some(error) = job.state().failed.take() {
        return Err(error);
    }
    written.map_err(|error| ModelError::Compress(error.to_string()))?;
    Ok(made)
}

/// State that all tensors share while they are written.
struct CompressJob<'a> {
    tensors: &'a Checkpoint,
    level: Level,
    on_tensor: &'a (dyn Fn(usize, usize) -> ControlFlow<()> + Sync),
    all: usize,
    state: Mutex<JobState>,
}

#[derive(Default)]
struct JobState {
    done: usize,
    /// The first error. The library that writes asks only for bytes and cannot pass an error on.
    failed: Option<ModelError>,
}

impl CompressJob<'_> {
    fn state(&self) -> std::sync::MutexGuard<'_, JobState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A tensor of the result. Its bytes are made when it is written.
struct Tensor<'a> {
    job: &'a CompressJob<'a>,
    name: &'a str,
    /// The shape in the result's file.
    shape: Vec<usize>,
    dtype: Dtype,
    coded: Option<(CodedAs, AnyCodec)>,
    bytes_before: usize,
}

impl<'a> Tensor<'a> {
    fn new(job: &'a CompressJob<'a>, name: &'a str, spec: &CompressSpec) -> Result<Self, ModelError> {
        let bad = |what: String| ModelError::Compress(format!("tensor {name}: {what}"));
        let (format, shape) = job.tensors.describe(name)?;
        let (bytes_before, mut shape) = (format.bytes_of(shape).map_err(bad)?, shape.to_vec());
        let Some((coded_as, codec)) = spec.coding(name, format, &shape).map_err(bad)? else {
            let dtype = format.dtype().ok_or_else(|| {
                bad(format!("{} cannot stay uncoded: safetensors files have no such format", format.name()))
            })?;
            return Ok(Self { job, name, shape, dtype, coded: None, bytes_before });
        };
        if let Some(row) = shape.last_mut() {
            *row = *row / spec.group * codec.block_bytes();
        }
        Ok(Self { job, name, shape, dtype: Dtype::U8, coded: Some((coded_as, codec)), bytes_before })
    }

    fn values(&self) -> usize {
        let stored: usize = self.shape.iter().product();
        self.coded.as_ref().map_or(stored, |(_, codec)| stored / codec.block_bytes() * codec.dim())
    }

    fn make(&self) -> Result<Vec<u8>, ModelError> {
        let stored = self.job.tensors.any(self.name)?;
        let Some((_, codec)) = &self.coded else { return Ok(stored.bytes().to_vec()) };
        stored
            .encoded(codec, self.job.level)
            .map_err(|what| ModelError::Compress(format!("tensor {}: {what}", self.name)))
    }
}

impl View for Tensor<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        // After an error nothing more is computed, because the file is discarded.
        let made = if self.job.state().failed.is_some() { Ok(Vec::new()) } else { self.make() };
        let mut state = self.job.state();
        state.done += 1;
        let goes_on = (self.job.on_tensor)(state.done, self.job.all).is_continue();
        let made = if goes_on { made } else { Err(ModelError::Cancelled) };
        Cow::Owned(made.unwrap_or_else(|error| {
            state.failed = Some(error);
            Vec::new()
        }))
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}
