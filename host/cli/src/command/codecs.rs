//! `tqkv codecs`: the codecs that `--kv` and `--codec` accept, one per line.

use serde::Serialize;
use tqkv_core::HEAD_DIMS;

use crate::error::CliError;
use crate::names::{self, COMMON};
use crate::output::Output;
use crate::policy::Policy;
use crate::preset::Kv;

/// List presets and codecs: bits, bytes, and the use of each.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: the usual choices, then all codecs at another head dim
  tqkv codecs
  tqkv codecs --all --dim 64

Bits are per value, scale included. Bytes are per head vector; a preset shows the bytes of a key and a value. \
No cache or file stores yardsticks: eval, generate and stats simulate them. Their errors are measured on random directions \
(tqkv-lab stats): relative squared errors, and errors of dot products with unit vectors.")]
pub(crate) struct Args {
    /// Head dim for which bytes are computed.
    #[arg(long, value_name = "D", default_value_t = 128)]
    dim: usize,
    /// Also list the laboratory's codecs, and the yardsticks: formats of the literature and of other
    /// programs.
    #[arg(long)]
    all: bool,
}

/// The use of each preset.
const PRESETS_FOR: [(&str, &str); 8] = [
    ("eight-bit", "no visible loss"),
    ("safe-lowbit", "keys matter more than values"),
    ("near-lossless", "best at 4 bits; slower to encode"),
    ("balanced", "4 bits, fastest to encode"),
    ("compact", "long contexts: keys carry most loss"),
    ("small", "longer still; t3 for keys without a map"),
    ("tiered", "newer values have 4 bits: m3,t4"),
    ("tiny", "the longest; m3,t2 up to 1024 tokens"),
];

/// Names of pairs of yardsticks in other programs, with their results.
const PAIRS_FOR: [(&str, &str); 7] = [
    ("experimental-max", "larger than balanced, and 13 times its KL"),
    ("tq_k4v3", "keys with QJL, values without"),
    ("turboquant_k8v4", "vLLM: fp8 keys"),
    ("turboquant_4bit_nc", "vLLM, 4 bits"),
    ("turboquant_k3v4_nc", "vLLM, 3 and 4 bits"),
    ("turboquant_3bit_nc", "vLLM, 3 bits"),
    ("int4_per_token_head", "vLLM, 4 bits"),
];

/// The use of each codec: first those of [`COMMON`], then those of the laboratory.
const CODECS_FOR: [(&str, &str); 20] = [
    ("f16", "not compressed: what others are compared with"),
    ("i8", "8 bits: no visible loss"),
    ("t4", "4 bits, trellis: half the error, slower to encode"),
    ("s4", "4 bits, scalar: fast to encode"),
    ("t3", "3 bits, trellis"),
    ("s3", "3 bits, scalar"),
    ("t2", "2 bits, trellis: keep a hot window"),
    ("s2", "2 bits, scalar: keep a hot window"),
    ("q8_0", "llama.cpp's 8 bits, for comparison"),
    ("q4_0", "llama.cpp's 4 bits, for comparison"),
    ("s5", "5 bits, scalar: weights"),
    ("n4", "4 bits that become n3 with age (tier=)"),
    ("n3", "3 bits that become n2"),
    ("n2", "2 bits"),
    ("t3h", "3.5 bits, trellis"),
    ("t2h", "2.5 bits, trellis"),
    ("t1", "1 bit, trellis: for the theory"),
    ("t2s8", "t2 that microcontrollers encode"),
    ("m3", "3 bits, quarters of 4, 3, 3, 2: keys with a map"),
    ("m2", "2 bits, quarters of 4, 2, 1, 1: keys with a map"),
];

/// Each yardstick with its figures: relative squared errors of 100,000 random directions at D = 128, and dot
/// errors (MEASURED.md, M7).
const YARDSTICKS_FOR: [(&str, &str); 35] = [
    ("p2", "1 bit and one of QJL: dot error .75, of s2 .36"),
    ("p3", "2 bits and one of QJL: dot error .43, of s3 .19"),
    ("p4", "3 bits and one of QJL: dot error .23, of s4 .09"),
    ("p4r2", "3 bits, residual of 2: error .038, of s5 .002"),
    ("p4r3", "3 bits, residual of 3: error .035, of s5 .002"),
    ("p4r4", "3 bits, residual of 4: error .034, of s5 .002"),
    ("tq1", "1 bit, dense rotation: error .36"),
    ("tq2", "2 bits, dense rotation: the error of s2"),
    ("tq3", "3 bits, dense rotation: the error of s3"),
    ("tq4", "4 bits, dense rotation: the error of s4"),
    ("tq4u8", "tq4 with a byte a code"),
    ("turbo2", "2 bits of a fork of llama.cpp: the error of s2"),
    ("turbo3", "3 bits of a fork of llama.cpp: the error of s3"),
    ("turbo4", "4 bits of a fork of llama.cpp: the error of s4"),
    ("turbo3k", "p3 with 32-bit norms: keys of a fork of vLLM"),
    ("turbo4k", "p4 with 32-bit norms: keys of a fork of vLLM"),
    ("turbo3v", "tq3, Hadamard rotation: values of that fork"),
    ("turbo4v", "tq4, Hadamard rotation: values of that fork"),
    ("c25", "2.5 bits of two widths: error .074, of t2h .039"),
    ("c35", "3.5 bits of two widths: error .021, of t3h .009"),
    ("u3", "3 bits by minimum and step: error .046, s3: .035"),
    ("u4", "4 bits by minimum and step: error .010"),
    ("u8", "8 bits by minimum and step: the error of i8"),
    ("f8", "8-bit floats (e4m3): error .0007, of i8 .00004"),
    ("f8e5m2", "8-bit floats (e5m2): error .003, of i8 .00004"),
    ("q4_0r", "q4_0 of rotated vectors: error .007"),
    ("u3r", "u3 of rotated vectors: error .046"),
    ("u4r", "u4 of rotated vectors: error .010"),
    ("u8r", "u8 of rotated vectors: the error of i8"),
    ("fp8", "8-bit floats, a scale per tensor: error .0007"),
    ("nvfp4", "4-bit floats, a scale per 16: error .009"),
    ("mxfp4", "4-bit floats, powers of two: error .013"),
    ("int4h", "4 bits and a zero point, of vLLM: error .010"),
    ("vtq3", "3 bits, keys of vLLM: the error of s3"),
    ("vtq4", "4 bits, keys of vLLM: the error of s4"),
];

#[derive(Serialize)]
struct Report {
    dim: usize,
    presets: Vec<Row>,
    codecs: Vec<Row>,
    /// Only simulated; empty without `--all`.
    yardsticks: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    /// Codecs of a preset.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv: Option<String>,
    /// Bits per value, scales included; null if there are no blocks of the head dim.
    bits: Option<f64>,
    bytes: Option<usize>,
    r#for: &'static str,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    if !tqkv_core::is_supported_head_dim(args.dim) {
        let dims = HEAD_DIMS.map(|dim| dim.to_string()).join(", ");
        return Err(CliError::bad_input(format_args!("no codec has head dim {}: expected {dims}", args.dim)));
    }
    let shown = if args.all { CODECS_FOR.len() } else { COMMON.len() };
    let pairs = |of: &[(&'static str, &'static str)]| -> Result<Vec<Row>, CliError> {
        of.iter().map(|row| pair(*row, args.dim).map_err(CliError::failure)).collect()
    };
    let singles = |of: &[(&'static str, &'static str)]| -> Result<Vec<Row>, CliError> {
        of.iter().map(|row| single(*row, args.dim).map_err(CliError::failure)).collect()
    };
    let all = |of| if args.all { of } else { &[][..] };
    let mut yardsticks = pairs(all(&PAIRS_FOR))?;
    yardsticks.extend(singles(all(&YARDSTICKS_FOR))?);
    let report = Report {
        dim: args.dim,
        presets: PRESETS_FOR
            .iter()
            .map(|row| preset(*row, args.dim))
            .collect::<Result<_, _>>()
            .map_err(CliError::failure)?,
        codecs: singles(&CODECS_FOR[..shown])?,
        yardsticks,
    };
    out.print(&report, human)
}

/// The row of a preset, with the codecs of old tokens.
fn preset((name, r#for): (&'static str, &'static str), dim: usize) -> Result<Row, String> {
    let oldest = name.parse::<Policy>()?.oldest().ok_or("a preset has codecs of a cache")?;
    row((name, r#for), oldest.into(), dim)
}

fn pair((name, r#for): (&'static str, &'static str), dim: usize) -> Result<Row, String> {
    row((name, r#for), names::kv(name)?, dim)
}

fn row((name, r#for): (&'static str, &'static str), kv: Kv, dim: usize) -> Result<Row, String> {
    let bytes = kv.k.block_bytes(dim).zip(kv.v.block_bytes(dim)).map(|(k, v)| k + v);
    Ok(Row { name, kv: Some(kv.to_string()), bits: bits(bytes, 2 * dim), bytes, r#for })
}

fn single((name, r#for): (&'static str, &'static str), dim: usize) -> Result<Row, String> {
    let bytes = names::choice(name)?.block_bytes(dim);
    Ok(Row { name, kv: None, bits: bits(bytes, dim), bytes, r#for })
}

fn bits(bytes: Option<usize>, values: usize) -> Option<f64> {
    bytes.map(|bytes| 8.0 * bytes as f64 / values as f64)
}

fn human(report: &Report) -> String {
    let mut text = format!("head dim {}\n\npreset             bits bytes  K,V    for\n", report.dim);
    text.extend(report.presets.iter().map(line));
    text.push_str("\ncodec              bits bytes  for\n");
    text.extend(report.codecs.iter().map(line));
    if report.yardsticks.is_empty() {
        text.push_str("\ntqkv codecs --all lists the laboratory and the yardsticks");
    } else {
        text.push_str("\nyardstick          bits bytes  for (simulated: bytes are those of its blocks)\n");
        text.extend(report.yardsticks.iter().map(line));
    }
    text.trim_end().to_owned()
}

/// A line of at most 80 columns.
fn line(row: &Row) -> String {
    let bits = row.bits.map_or_else(|| "-".to_owned(), |bits| format!("{bits:.3}"));
    let bytes = row.bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
    let kv = row.kv.as_ref().map_or_else(String::new, |kv| format!("{kv:<5}  "));
    format!("{:<16} {bits:>6} {bytes:>5}  {kv}{}\n", row.name, row.r#for)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use tqkv::cache::PRESETS;
    use tqkv_reference::Choice;

    #[test]
    fn every_name_is_listed_once() {
        let listed: Vec<_> = CODECS_FOR.iter().chain(&YARDSTICKS_FOR).map(|row| row.0).collect();
        let choices: BTreeSet<_> = Choice::all().map(|choice| choice.name()).collect();
        assert_eq!(listed.iter().copied().collect::<BTreeSet<_>>(), choices);
        assert_eq!(listed.len(), choices.len());
        let common = CODECS_FOR.iter().map(|row| row.0).take(COMMON.len());
        assert!(common.eq(COMMON), "the codecs that errors name come first");
        assert!(PRESETS_FOR.iter().map(|row| row.0).eq(PRESETS.iter().map(|preset| preset.name)));
        assert!(YARDSTICKS_FOR.iter().all(|row| names::pair(row.0).is_err()), "no cache stores them");
        assert!(PAIRS_FOR.iter().all(|row| names::kv(row.0).is_ok() && names::pair(row.0).is_err()));
    }
}
