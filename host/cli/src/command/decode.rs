//! `tqkv decode`: converts a `.tqk` file to a `.npy` array.

use std::path::PathBuf;

use crate::array::{ArrayError, NpyWriter};
use serde::Serialize;
use tqkv::file::{FileError, Reader};

use super::stored;
use crate::args;
use crate::error::CliError;
use crate::input;
use crate::output::{Output, grouped};
use crate::target::{TargetArgs, yield_stdout};

/// Decode a .tqk file into an f32 .npy array of shape [count, D], or a .tqc file (tqkv encode --storage) into
/// two.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tqkv decode keys.tqk keys.npy
  python3 -c 'import numpy; print(numpy.load(\"keys.npy\").shape)'
Example: keys and values, [layers, tokens, KV heads, D] each
  tqkv decode --basis model.tqb --values v.npy prefix.tqc k.npy")]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Basis of the .tqc file (tqkv basis).
    #[arg(long, value_name = "FILE", requires = "values")]
    basis: Option<PathBuf>,
    /// Array to write the values to; the keys go to OUT.npy. Both arrays are held in memory.
    #[arg(long, value_name = "OUT.npy", requires = "basis")]
    values: Option<PathBuf>,
    /// File to read, - for standard input.
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// Array to write, - for standard output.
    #[arg(value_name = "OUT.npy")]
    output: PathBuf,
}

#[derive(Serialize)]
struct Decoded {
    input: String,
    output: String,
    codec: &'static str,
    dim: usize,
    count: u64,
}

/// Number of blocks between two writes.
const BATCH: usize = 256;

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    if let (Some(basis), Some(values)) = (&args.basis, &args.values) {
        return stored::decode((basis, &args.input), (&args.output, values), args.target, out);
    }
    let level = args::machine_level()?;
    let bad_file = |e: FileError| CliError::file(&args.input, &e);
    let bad_array = |e: ArrayError| CliError::array(&args.output.display().to_string(), &e);
    let mut reader = Reader::new(input::open(&args.input)?).map_err(bad_file)?;
    let header = reader.header().clone();
    let block_bytes = reader.block_bytes();
    let codec = header.codec().map_err(bad_file)?;
    let file = args.target.create(&args.output, &args.input)?;
    let mut npy = NpyWriter::new(file, &[header.count], header.dim).map_err(bad_array)?;

    let bar = out.progress(header.count, "decoding");
    let mut x = vec![0f32; BATCH * header.dim];
    let mut index = 0u64;
    while let Some(blocks) = reader.next_chunk().map_err(bad_file)? {
        for blocks in blocks.chunks(BATCH * block_bytes) {
            let count = blocks.len() / block_bytes;
            let x = &mut x[..count * header.dim];
            tqkv_simd::codec::decode(level, &codec, blocks, x).map_err(|failed| {
                let (path, index) = (args.input.display(), index + failed.index as u64);
                CliError::bad_input(format_args!("{path}: block {index} cannot be decoded: {}", failed.error))
            })?;
            if let Some(mean) = &header.mean {
                for x in x.chunks_exact_mut(header.dim) {
                    x.iter_mut().zip(mean).for_each(|(x, m)| *x += m);
                }
            }
            npy.push(x).map_err(bad_array)?;
            index += count as u64;
        }
        bar.set_position(index);
    }
    bar.finish_and_clear();
    npy.commit().map_err(bad_array)?;
    yield_stdout(&[&args.output], out);

    let done = Decoded {
        input: args.input.display().to_string(),
        output: args.output.display().to_string(),
        codec: header.codec.name(),
        dim: header.dim,
        count: header.count,
    };
    out.print(&done, |done| {
        format!(
            "{}: {} vectors of {} coordinates from {}",
            done.output,
            grouped(done.count),
            done.dim,
            done.codec,
        )
    })
}
