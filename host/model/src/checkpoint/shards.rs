//! Safetensors files: one, or the shards that an index names.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use tqkv_core::Options;
use tqkv_simd::Level;

use super::{Access, Checkpoint, CodedAs, Entry, NumberKind, TensorCoding, TensorFormat, TensorSource};
use crate::error::ModelError;
use crate::find;

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: HashMap<String, String>,
}

/// Bytes of the length at the start of a file.
const LENGTH: u64 = 8;

/// The longest header that is read. The format's own library has the same limit.
const MAX_HEADER: u64 = 100_000_000;

impl Checkpoint {
    /// Opens the one safetensors file of a folder, or the shards in its `model.safetensors.index.json`.
    pub(crate) fn open_folder(dir: &Path, access: Access) -> Result<Self, ModelError> {
        let mut names = BTreeSet::new();
        let found = find::weights(dir)?;
        if found == find::INDEX {
            let json = find::read_text(&dir.join(&found))?;
            let bad = |reason: String| ModelError::Weights { file: found.clone(), reason };
            let index: ShardIndex = serde_json::from_slice(&json).map_err(|e| bad(e.to_string()))?;
            names.extend(index.weight_map.into_values());
            // A shard must lie next to its index. Otherwise a checkpoint could read files elsewhere.
            if let Some(name) =
                names.iter().find(|n| Path::new(n).file_name().is_none_or(|f| f != n.as_str()))
            {
                return Err(bad(format!("shard {name:?} is not a plain file name")));
            }
        } else {
            names.insert(found);
        }
        let files = names.iter().map(|name| TensorSource::open(&dir.join(name), access));
        Self::of_safetensors(files.collect::<Result<_, _>>()?)
    }

    /// Reads the headers of safetensors files. If a name is in several files, the first one counts.
    pub(crate) fn of_safetensors(files: Vec<TensorSource>) -> Result<Self, ModelError> {
        let mut tensors = HashMap::new();
        for (index, file) in files.iter().enumerate() {
            for (name, entry) in contents(file, index)? {
                tensors.entry(name).or_insert(entry);
            }
        }
        Ok(Self::new(files, tensors))
    }
}

/// Reads the header of one file.
fn contents(file: &TensorSource, index: usize) -> Result<Vec<(String, Entry)>, ModelError> {
    let bad = |what: String| file.bad(format!("not a readable safetensors file: {what}"));
    let head = file.head(LENGTH)?;
    let length = head.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let length = length.ok_or_else(|| bad(format!("it has {} bytes", head.len())))?;
    let data = LENGTH + length.min(MAX_HEADER);
    if length > MAX_HEADER || data > file.len {
        return Err(bad(format!("a header of {length} bytes in a file of {}", file.len)));
    }
    let head = file.chunk(LENGTH..data)?;
    let metadata: Metadata = serde_json::from_slice(&head).map_err(|error| bad(error.to_string()))?;
    if metadata.data_len() as u64 != file.len - data {
        let (said, there) = (metadata.data_len(), file.len - data);
        return Err(bad(format!("its header describes {said} bytes of tensors, the file has {there}")));
    }
    let entry = |(name, info): (String, &TensorInfo)| {
        let (format, shape) = format_of(&name, info, metadata.metadata().as_ref()).map_err(&bad)?;
        let start = data + info.data_offsets.0 as u64;
        Ok((name, Entry { format, shape, file: index, start, interleaved_heads: None }))
    };
    metadata.tensors().into_iter().map(entry).collect()
}

/// A format, or the name of an unsupported one.
type MaybeFormat = Result<TensorFormat, String>;

/// The format of a tensor, and its shape in values. The file's metadata lists the byte tensors that hold
/// codes.
///
/// # Errors
/// A description of the fault in the metadata.
fn format_of(
    name: &str,
    info: &TensorInfo,
    metadata: Option<&HashMap<String, String>>,
) -> Result<(MaybeFormat, Vec<usize>), String> {
    let (dtype, mut shape) = (info.dtype.to_string(), info.shape.clone());
    let Some(said) = metadata.and_then(|metadata| metadata.get(&CodedAs::key(name))) else {
        return Ok((NumberKind::named(&dtype).map(TensorFormat::Plain).ok_or(dtype), shape));
    };
    let bad = |what: String| format!("tensor {name}: {what}");
    let coded_as: CodedAs = serde_json::from_str(said).map_err(|error| bad(error.to_string()))?;
    let codec = Box::new(coded_as.codec(Options::DEFAULT).map_err(bad)?);
    let row =
        shape.last_mut().filter(|row| info.dtype == Dtype::U8 && row.is_multiple_of(codec.block_bytes()));
    let row = row.ok_or_else(|| {
        bad(format!("{dtype} {:?} is no tensor of blocks of {} bytes", info.shape, codec.block_bytes()))
    })?;
    *row = *row / codec.block_bytes() * codec.dim();
    let level = Level::detect().map_err(|error| error.to_string())?;
    Ok((Ok(TensorFormat::Coded(TensorCoding { codec, level })), shape))
}
