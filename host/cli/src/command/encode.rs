//! `tqkv encode`: converts an array to a `.tqk` file.

use std::path::{Path, PathBuf};

use crate::array::{self, Vectors};
use rayon::prelude::*;
use serde::Serialize;
use tqkv::Level;
use tqkv::file::{FileError, Header, Writer};
use tqkv_core::{AnyCodec, CodecId};

use super::stored::{self, StorageArgs};
use crate::args::{self, EncodeArgs};
use crate::error::CliError;
use crate::names;
use crate::output::{Output, grouped};
use crate::target::{TargetArgs, yield_stdout};

/// Encode an array of vectors into a .tqk file, or keys and values at a bit budget into a .tqc file.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: 300 keys of head dim 128 at 4 bits, 66 bytes each
  tqkv encode --codec s4 keys.npy keys.tqk
  tqkv encode --codec s3 --centre model.safetensors:layers.0.k keys.tqk
  python3 dump_keys.py | tqkv encode --codec t3 - keys.tqk
Example: keys and values of a prefix at about one bit a value, in a basis of their model
  tqkv basis --model model.gguf --text manual.txt model.tqb
  tqkv encode --storage 1.1 --basis model.tqb --values v.npy k.npy prefix.tqc")]
pub(crate) struct Args {
    /// Codec of the blocks, such as s4.
    #[arg(long, value_parser = names::codec, required_unless_present = "budget", conflicts_with = "budget")]
    codec: Option<CodecId>,
    #[command(flatten)]
    storage: StorageArgs,
    #[command(flatten)]
    encode: EncodeArgs,
    /// Subtract the mean of all vectors first. The file stores the mean, and decoding adds it back.
    #[arg(long)]
    centre: bool,
    #[command(flatten)]
    target: TargetArgs,
    /// Array of shape [.., D]: a .npy file of f32, f16 or f64 (rounded to f32), - for a .npy on standard
    /// input, or file.safetensors:name (also bf16).
    #[arg(value_name = "IN")]
    input: String,
    /// File to write, - for standard output: .tqk, or .tqc with --storage.
    #[arg(value_name = "OUT")]
    output: PathBuf,
}

#[derive(Serialize)]
struct Encoded<'a> {
    input: &'a str,
    output: String,
    codec: &'static str,
    scale_mode: &'static str,
    seed: u64,
    dim: usize,
    count: u64,
    centred: bool,
    /// True if the array is f64, rounded to f32.
    rounded: bool,
    bytes_per_vector: usize,
    file_bytes: u64,
}

/// Number of rows between two writes.
const BATCH: usize = 4096;

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let Some(id) = args.codec else {
        return stored::encode(&args.storage, (&args.input, args.target), &args.output, out);
    };
    let bad_array = |e| CliError::array(&args.input, &e);
    let level = args::machine_level()?;
    let vectors = Vectors::open(&args.input).map_err(bad_array)?;
    let codec = AnyCodec::new(id, vectors.dim(), args.encode.options())
        .map_err(|e| CliError::shape(id, vectors.dim(), e))?;
    let mean = args.centre.then(|| vectors.mean()).transpose();
    let mean = mean.map_err(bad_array)?;
    let header = Header::new(&codec, mean);
    let bad_file = |e: FileError| CliError::file(&args.output, &e);
    let file = args.target.create(&args.output, Path::new(array::split(&args.input).0))?;
    let mut writer = Writer::new(file, header.clone()).map_err(bad_file)?;

    let bar = out.progress(vectors.rows() as u64, "encoding");
    let mut blocks = vec![0; BATCH.min(vectors.rows()) * codec.block_bytes()];
    for start in (0..vectors.rows()).step_by(BATCH) {
        let rows = BATCH.min(vectors.rows() - start);
        let blocks = &mut blocks[..rows * codec.block_bytes()];
        encode_batch(args, (level, &codec), &vectors, header.mean.as_deref(), start, blocks)?;
        for block in blocks.chunks_exact(codec.block_bytes()) {
            writer.push(block).map_err(bad_file)?;
        }
        bar.inc(rows as u64);
    }
    bar.finish_and_clear();
    let (file, count) = writer.finish().map_err(bad_file)?;
    let file_bytes = file.commit().map_err(|e| CliError::io(&args.output, &e))?;
    yield_stdout(&[&args.output], out);
    let done = Encoded {
        input: &args.input,
        output: args.output.display().to_string(),
        codec: id.name(),
        scale_mode: args.encode.scale_mode.name(),
        seed: args.encode.seed,
        dim: codec.dim(),
        count,
        centred: args.centre,
        rounded: vectors.is_rounded(),
        bytes_per_vector: codec.block_bytes(),
        file_bytes,
    };
    out.print(&done, |done| {
        format!(
            "{}: {} vectors of {} coordinates{} as {}, {} bytes each, {} in all",
            done.output,
            grouped(done.count),
            done.dim,
            if done.rounded { " (f64 rounded to f32)" } else { "" },
            done.codec,
            done.bytes_per_vector,
            crate::output::bytes(done.file_bytes),
        )
    })
}

/// Rows per task of a thread.
const ROWS: usize = 16;

/// Encodes rows `start..` into `blocks` on all threads. If several rows are bad, the first one is reported.
fn encode_batch(
    args: &Args,
    (level, codec): (Level, &AnyCodec),
    vectors: &Vectors,
    mean: Option<&[f32]>,
    start: usize,
    blocks: &mut [u8],
) -> Result<(), CliError> {
    let (dim, bytes) = (codec.dim(), codec.block_bytes());
    let results: Vec<Result<(), CliError>> = blocks
        .par_chunks_mut(ROWS * bytes)
        .enumerate()
        .map_init(
            || vec![0f32; ROWS * dim],
            |x, (i, blocks)| {
                let first = start + i * ROWS;
                let (mut good, mut read) = (0, Ok(()));
                for x in x.chunks_exact_mut(dim).take(blocks.len() / bytes) {
                    read = vectors.read_row(first + good, x).map_err(|e| CliError::array(&args.input, &e));
                    if read.is_err() {
                        break;
                    }
                    x.iter_mut().zip(mean.unwrap_or_default()).for_each(|(x, m)| *x -= m);
                    good += 1;
                }
                // The rows before a bad one may hold an earlier error.
                tqkv_simd::codec::encode(level, codec, &x[..good * dim], &mut blocks[..good * bytes])
                    .map_err(|failed| {
                        let (input, row, error) = (&args.input, first + failed.index, failed.error);
                        CliError::bad_input(format_args!(
                            "{input}: row {row} (counted from 0) cannot be encoded: {error}"
                        ))
                    })?;
                read
            },
        )
        .collect();
    results.into_iter().collect()
}
