//! `tqkv export`: writes a model as a flat file for microcontrollers.

use std::io::Write as _;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;
use tqkv_core::CodecId;
use tqkv_model::Model;
use tqkv_model::flat::{CACHES, WeightBits, ram_bytes, tokens_in_ram};

use crate::error::CliError;
use crate::output::{Output, bytes, grouped, table};
use crate::plan::parse_size;
use crate::target::TargetArgs;

/// Quantise a model into one flat file that a microcontroller runs in place, with integers only.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: a Llama-like model with 8-bit weights, then with 4-bit weights; then the fit on a chip
  tqkv export --target mcu DIR model.tqlm
  tqkv export --target mcu --bits 4 --ram 256KiB model.gguf model.tqlm
  tqkv plan --ram 520KiB --firmware-model model.tqlm

The crate tqkv-lm runs the file. It needs no heap and no floats. Its logits are the same on every machine."
)]
pub(crate) struct Args {
    /// Device that runs the file.
    #[arg(long, value_enum)]
    target: ExportTarget,
    /// Model of the Llama family: a .gguf file, or a folder with config.json and .safetensors.
    model: PathBuf,
    #[command(flatten)]
    to: TargetArgs,
    /// File to write.
    out: PathBuf,
    /// Bits per weight.
    #[arg(long, value_enum, default_value_t = Bits::Eight)]
    bits: Bits,
    /// RAM for the caches and the working memory of the model, with its unit.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "520KiB")]
    ram: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ExportTarget {
    /// A microcontroller.
    Mcu,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Bits {
    /// One scale per row.
    #[value(name = "8")]
    Eight,
    /// One scale per row and 32 columns.
    #[value(name = "4")]
    Four,
}

#[derive(Serialize)]
struct Report {
    output: String,
    bits: u8,
    /// Bytes of the file, which lies in flash.
    flash_bytes: usize,
    /// Working memory of the model, without slots.
    work_bytes: u64,
    ram: u64,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    codec_k: &'static str,
    codec_v: &'static str,
    bytes_per_token: u64,
    /// Tokens of context in that RAM.
    tokens: u64,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let ExportTarget::Mcu = args.target;
    let bits = match args.bits {
        Bits::Eight => WeightBits::Eight,
        Bits::Four => WeightBits::Four,
    };
    let refused = |error| CliError::model(Some(&args.model), &error);
    // The output is checked before the model is quantised.
    let mut to = args.to.create_of_model(&args.out, &args.model)?;
    let file = Model::load(&args.model).and_then(|model| model.to_flat(bits)).map_err(refused)?;
    let io = |error| CliError::io(&args.out, &error);
    to.write_all(&file).map_err(io)?;
    to.commit().map_err(io)?;
    let shape = tqkv_model::flat::read(&file).map_err(refused)?;
    let row = |kv: (CodecId, CodecId)| {
        let work = ram_bytes(&shape, kv, 0)?;
        Some(Row {
            codec_k: kv.0.name(),
            codec_v: kv.1.name(),
            bytes_per_token: ram_bytes(&shape, kv, 1)? - work,
            tokens: tokens_in_ram(&shape, kv, args.ram)?,
        })
    };
    let report = Report {
        output: args.out.display().to_string(),
        bits: bits.count(),
        flash_bytes: file.len(),
        work_bytes: 4 * shape.work_words() as u64,
        ram: args.ram,
        rows: CACHES.into_iter().filter_map(row).collect(),
    };
    out.print(&report, human)
}

fn human(report: &Report) -> String {
    let rows = report.rows.iter().map(|row| {
        vec![format!("{},{}", row.codec_k, row.codec_v), grouped(row.bytes_per_token), grouped(row.tokens)]
    });
    format!(
        "{}: {}-bit weights\n{} of flash, {} of RAM to work in; stack comes on top\n{}",
        report.output,
        report.bits,
        bytes(report.flash_bytes as u64),
        bytes(report.work_bytes),
        table(&["K,V", "bytes/token", &format!("tokens in {} bytes", grouped(report.ram))], rows)
    )
}
