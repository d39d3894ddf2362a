//! `tqkv encode --storage` and `tqkv decode --basis`: convert arrays of keys and values to a file of the
//! storage tier, and back.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use tqkv_storage::{Basis, Budget, MAX_TOKENS, Shape, Span, StorageCodec, StorageError};

use crate::args::budget;
use crate::array::{self, ArrayError, NpyWriter, Vectors};
use crate::error::CliError;
use crate::input;
use crate::output::{Output, grouped};
use crate::target::{TargetArgs, yield_stdout};

/// Options to store keys and values together, instead of single vectors.
#[derive(Debug, clap::Args)]
pub(crate) struct StorageArgs {
    /// Bits per value, 0.5 to 5. IN holds keys after RoPE and --values the values, both of shape [layers,
    /// tokens, KV heads, D].
    #[arg(long = "storage", value_name = "BITS", value_parser = budget, requires_all = ["basis", "values"],
        conflicts_with_all = ["EncodeArgs", "centre"])]
    budget: Option<Budget>,
    /// Basis of the model from `tqkv basis`, which also states its shape and RoPE.
    #[arg(long, value_name = "FILE", requires = "budget")]
    basis: Option<PathBuf>,
    /// Array of the values, in the forms of IN.
    #[arg(long, value_name = "IN", requires = "budget")]
    values: Option<String>,
    /// Position of the first token. The first four tokens of a text stay uncompressed.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "budget", value_parser = clap::value_parser!(u64).range(..=1 << 52))]
    position: u64,
}

#[derive(Serialize)]
struct ArchiveReport {
    output: String,
    basis: String,
    model: String,
    tokens: usize,
    first_position: u64,
    file_bytes: u64,
    bits_per_value: f64,
}

/// Encodes the arrays; does nothing without `--storage`.
pub(crate) fn encode(
    args: &StorageArgs,
    (keys, target): (&str, TargetArgs),
    output: &Path,
    out: &mut Output,
) -> Result<(), CliError> {
    let (Some(budget), Some(path), Some(values)) = (args.budget, &args.basis, &args.values) else {
        return Ok(());
    };
    let (basis, codec) = load(path)?;
    let shape = codec.shape();
    let open = |name: &str| Vectors::open(name).map_err(|error| CliError::array(name, &error));
    let (k, v) = (open(keys)?, open(values)?);
    let tokens = check(shape, (keys, &k), (values, &v))?;
    let inputs = [Path::new(array::split(keys).0), Path::new(array::split(values).0), path];
    let mut file = target.create_beside(output, &inputs)?;
    let bar = out.progress(tokens as u64, "encoding");
    let mut bytes = 0;
    for first in (0..tokens).step_by(MAX_TOKENS) {
        let count = MAX_TOKENS.min(tokens - first);
        let part = |name: &str, from: &Vectors| {
            part(from, shape, (tokens, first, count)).map_err(|error| CliError::array(name, &error))
        };
        let span = Span::of(shape, args.position + first as u64, count);
        let chunk = codec
            .encode(budget, &span, &part(keys, &k)?, &part(values, &v)?)
            .map_err(|error| CliError::bad_input(format_args!("{keys}, tokens from {first} on: {error}")))?;
        file.write_all(&chunk).map_err(|error| CliError::io(output, &error))?;
        bytes += chunk.len() as u64;
        bar.inc(count as u64);
    }
    bar.finish_and_clear();
    file.commit().map_err(|error| CliError::io(output, &error))?;
    yield_stdout(&[output], out);
    let stored = ArchiveReport {
        output: output.display().to_string(),
        basis: basis.id().to_string(),
        model: basis.model().to_owned(),
        tokens,
        first_position: args.position,
        file_bytes: bytes,
        bits_per_value: 8.0 * bytes as f64 / (tokens * shape.num_layers() * shape.layer_values()) as f64,
    };
    out.print(&stored, |stored| {
        let (tokens, file) = (grouped(stored.tokens as u64), crate::output::bytes(stored.file_bytes));
        format!("{}: {tokens} tokens, {file}, {:.3} bits per value", stored.output, stored.bits_per_value)
    })
}

#[derive(Serialize)]
struct Loaded {
    input: String,
    keys: String,
    values: String,
    tokens: usize,
    first_position: u64,
}

/// Decodes a file of chunks into two arrays, which are held in memory.
pub(crate) fn decode(
    (path, input_path): (&Path, &Path),
    (keys, values): (&Path, &Path),
    target: TargetArgs,
    out: &mut Output,
) -> Result<(), CliError> {
    let (_, codec) = load(path)?;
    let shape = codec.shape();
    let bad = |error: StorageError| CliError::storage(input_path, &error);
    let mut input = input::open(input_path)?;
    let layers = shape.num_layers();
    let (mut k, mut v) = (vec![Vec::new(); layers], vec![Vec::new(); layers]);
    let (mut chunk, mut tokens, mut first) = (Vec::new(), 0, None);
    while codec.read_chunk(&mut input, &mut chunk).map_err(bad)? {
        let span = codec.span(&chunk).map_err(bad)?;
        let start = *first.get_or_insert(span.first_position);
        if span.layers != layers || span.first_position != start + tokens as u64 {
            let error = format!("{}: its chunks do not follow one another", input_path.display());
            return Err(CliError::bad_input(error));
        }
        let mut own_k = vec![0f32; layers * span.tokens * shape.key_values()];
        let mut own_v = vec![0f32; layers * span.tokens * shape.value_values()];
        codec.decode(&chunk, &mut own_k, &mut own_v).map_err(bad)?;
        spread(&own_k, &mut k);
        spread(&own_v, &mut v);
        tokens += span.tokens;
    }
    let Some(first_position) = first else {
        return Err(CliError::bad_input(format_args!("{}: holds no chunk", input_path.display())));
    };
    if keys == values {
        let keys = keys.display();
        return Err(CliError::bad_input(format_args!("{keys}: keys and values need a file each")));
    }
    // Both outputs are checked before either is written.
    let inputs = [input_path, path];
    let files = [target.create_beside(keys, &inputs)?, target.create_beside(values, &inputs)?];
    let arrays = [(keys, k, shape.head_dim()), (values, v, shape.value_dim())];
    for ((path, rows, dim), file) in arrays.into_iter().zip(files) {
        let bad_array = |error: ArrayError| CliError::array(&path.display().to_string(), &error);
        let heads = rows[0].len() / (tokens * dim).max(1);
        let mut npy =
            NpyWriter::new(file, &[layers as u64, tokens as u64, heads as u64], dim).map_err(bad_array)?;
        rows.iter().try_for_each(|rows| npy.push(rows)).map_err(bad_array)?;
        npy.commit().map_err(bad_array)?;
    }
    yield_stdout(&[keys, values], out);
    let loaded = Loaded {
        input: input_path.display().to_string(),
        keys: keys.display().to_string(),
        values: values.display().to_string(),
        tokens,
        first_position,
    };
    out.print(&loaded, |loaded| {
        format!("{}, {}: {} tokens of {layers} layers", loaded.keys, loaded.values, grouped(tokens as u64))
    })
}

/// The basis in a file, and its codec.
pub(super) fn load(path: &Path) -> Result<(Arc<Basis>, StorageCodec), CliError> {
    let bad = |error: StorageError| CliError::storage(path, &error);
    let basis = Arc::new(Basis::load(path).map_err(bad)?);
    if basis.shape().value_dim() == 0 {
        let path = path.display();
        return Err(CliError::bad_input(format_args!(
            "{path}: a basis of latent vectors: expected a basis of keys and values"
        )));
    }
    let codec = StorageCodec::new(basis.shape().clone(), Some(basis.clone())).map_err(bad)?;
    Ok((basis, codec))
}

/// Returns the number of tokens in both arrays; an error if a shape differs from the basis.
fn check(shape: &Shape, keys: (&str, &Vectors), values: (&str, &Vectors)) -> Result<usize, CliError> {
    let tokens = keys.1.shape().get(1).copied().unwrap_or_default();
    for ((name, array), dim) in [(keys, shape.head_dim()), (values, shape.value_dim())] {
        let heads = shape.key_values() / shape.head_dim();
        let expected = [shape.num_layers(), tokens, heads, dim];
        if array.shape() != expected || tokens == 0 {
            return Err(CliError::bad_input(format_args!(
                "{name}: shape {:?}; this basis takes {expected:?}, layers, tokens, KV heads and coordinates",
                array.shape()
            )));
        }
    }
    Ok(tokens)
}

/// Tokens `first..first + count` of all layers.
fn part(
    from: &Vectors,
    shape: &Shape,
    (tokens, first, count): (usize, usize, usize),
) -> Result<Vec<f32>, ArrayError> {
    let (dim, heads) = (from.dim(), shape.key_values() / shape.head_dim());
    let mut out = vec![0.0; shape.num_layers() * count * heads * dim];
    for (layer, rows) in out.chunks_exact_mut(count * heads * dim).enumerate() {
        let start = (layer * tokens + first) * heads;
        rows.chunks_exact_mut(dim).enumerate().try_for_each(|(i, row)| from.read_row(start + i, row))?;
    }
    Ok(out)
}

/// Appends the tokens of each layer to its own vector.
fn spread(from: &[f32], layers: &mut [Vec<f32>]) {
    let own = from.len() / layers.len();
    for (i, layer) in layers.iter_mut().enumerate() {
        layer.extend_from_slice(&from[i * own..][..own]);
    }
}
