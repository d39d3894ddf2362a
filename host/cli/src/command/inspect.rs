//! `tqkv inspect`: shows the header of a `.tqk` file and checks its bytes.

use std::path::PathBuf;

use serde::Serialize;
use tqkv::file::VERSION;
use tqkv::file::{FileError, Reader};

use crate::error::CliError;
use crate::input;
use crate::output::{Output, grouped, table};

/// Show the header of a .tqk file and check every CRC.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: exit code 0 means that every byte is as it was written
  tqkv inspect keys.tqk
  tqkv inspect --json keys.tqk")]
pub(crate) struct Args {
    /// File to read, - for standard input.
    #[arg(value_name = "IN.tqk")]
    input: PathBuf,
}

#[derive(Serialize)]
struct Inspected {
    file: String,
    version: u16,
    codec: &'static str,
    codec_code: u8,
    scale_mode: &'static str,
    scale_mode_code: u8,
    dim: usize,
    count: u64,
    seed: u64,
    bytes_per_vector: usize,
    blocks_per_chunk: u32,
    header_bytes: usize,
    chunks: u64,
    mean: Option<Vec<f32>>,
    /// `ok` or `damaged`. The header is always intact here, because a file with a damaged header has no
    /// fields.
    crc: &'static str,
    damaged_chunks: Vec<u64>,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let bad_file = |e: FileError| CliError::file(&args.input, &e);
    let mut reader = Reader::new(input::open(&args.input)?).map_err(bad_file)?;
    let header = reader.header().clone();
    let chunks = header.count.div_ceil(u64::from(header.blocks_per_chunk).max(1));
    let bar = out.progress(chunks, "checking");
    let (mut damaged_chunks, mut first) = (Vec::new(), None);
    loop {
        match reader.next_chunk() {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(error) => match error {
                FileError::ChunkCrc(chunk) | FileError::ChunkOrder(chunk) => {
                    damaged_chunks.push(chunk);
                    first.get_or_insert(error);
                }
                error => return Err(bad_file(error)),
            },
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let found = Inspected {
        file: args.input.display().to_string(),
        version: VERSION,
        codec: header.codec.name(),
        codec_code: header.codec.code(),
        scale_mode: header.scale_mode.name(),
        scale_mode_code: header.scale_mode.code(),
        dim: header.dim,
        count: header.count,
        seed: header.seed,
        bytes_per_vector: reader.block_bytes(),
        blocks_per_chunk: header.blocks_per_chunk,
        header_bytes: header.byte_len(),
        chunks,
        mean: header.mean.clone(),
        crc: if first.is_some() { "damaged" } else { "ok" },
        damaged_chunks,
    };
    out.print(&found, human)?;
    first.map_or(Ok(()), |error| Err(bad_file(error)))
}

fn human(found: &Inspected) -> String {
    let mean = found.mean.as_ref().map_or("none".to_string(), |mean| {
        let norm = mean.iter().map(|m| f64::from(*m).powi(2)).sum::<f64>().sqrt();
        format!("present, norm {norm:.4}")
    });
    let rows = [
        ("version", found.version.to_string()),
        ("codec", format!("{} (code {})", found.codec, found.codec_code)),
        ("scale mode", format!("{} (code {})", found.scale_mode, found.scale_mode_code)),
        ("head dim", found.dim.to_string()),
        ("vectors", grouped(found.count)),
        ("rotation seed", found.seed.to_string()),
        ("bytes per vector", found.bytes_per_vector.to_string()),
        ("blocks per chunk", grouped(found.blocks_per_chunk.into())),
        ("header bytes", grouped(found.header_bytes as u64)),
        ("chunks", grouped(found.chunks)),
        ("mean", mean),
        (
            "CRC",
            match found.damaged_chunks.len() {
                0 => "ok, header and every chunk".to_string(),
                n => format!("damaged: {n} of {} chunks", found.chunks),
            },
        ),
    ];
    let rows = rows.map(|(name, value)| vec![name.to_string(), value]);
    table(&["field", "value"], rows)
}
