//! `tqkv bench`: the kernels on this machine, compared with the f16 and `q4_0` kernels in the same run.

use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use serde::Serialize;
use tqkv_benches::{Case, Data, Op, Outcome};
use tqkv_core::{CodecId, Effort};
use tqkv_simd::Level;

use super::bench_model::{self, ModelBenchArgs};
use crate::args;
use crate::error::CliError;
use crate::names;
use crate::output::{Output, table};

/// Measure the kernels: time per token, and the ratio to f16 and q4_0 in the same run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: scores from memory on one thread, at two levels
  tqkv bench --op scores --codec s4,s3,s2 --data dram
  tqkv bench --op scores --level avx2 --json

Example: a whole model, at two lengths, on one thread and on all
  tqkv bench --model model.gguf --depth 512,4096 --kv f16 --kv s4 --kv \"t4,t2 hot=32\"

Samples of all cases alternate. The time is the smallest; with one thread it is CPU time. Ratios compare the smallest \
times of one run: never compare times of two runs. Options may be repeated, and every combination is \
measured. TQKV_LEVEL sets the default level.")]
pub(crate) struct Args {
    /// Operations to measure: scores, accumulate, attend, encode or decode.
    #[arg(long = "op", value_name = "OP", value_parser = op, value_delimiter = ',',
        default_value = "scores,accumulate,attend")]
    ops: Vec<Op>,
    #[command(flatten)]
    kernels: KernelArgs,
    /// Place of the data: l1 or l2 (in that cache), dram (beyond all caches), or a number of tokens.
    #[arg(long = "data", value_name = "WHERE", value_parser = data, value_delimiter = ',', default_value = "dram")]
    data: Vec<Data>,
    /// Search effort of encode: fast, default or best.
    #[arg(long = "effort", value_name = "EFFORT", value_delimiter = ',', default_value = "default",
        value_parser = args::effort)]
    efforts: Vec<Effort>,
    #[command(flatten)]
    model: ModelBenchArgs,
}

/// The kernels to measure, and the time for it.
#[derive(Debug, clap::Args)]
pub struct KernelArgs {
    /// Codecs to measure.
    #[arg(long = "codec", value_name = "CODEC", value_parser = names::codec, value_delimiter = ',',
        default_value = "s4,s3,s2")]
    codecs: Vec<CodecId>,
    /// Head dims to measure.
    #[arg(long = "dim", value_name = "D", value_delimiter = ',', default_value = "128")]
    dims: Vec<usize>,
    /// Instruction sets: portable, avx2, avxvnni, avx512, neon, neondot or simd128 [default: the fastest of
    /// this machine].
    #[arg(long = "level", value_name = "LEVEL", value_parser = level, value_delimiter = ',')]
    levels: Vec<Level>,
    /// Number of threads, each with its own data [default: 1]. Two or more are timed in wall-clock time.
    // The type and name equal those of the common option.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=256))]
    threads: Option<usize>,
    /// Query heads that share a key, 1 to 8.
    #[arg(long = "query-heads", value_name = "N", value_delimiter = ',', default_value = "1",
        value_parser = clap::value_parser!(u8).range(1..=8))]
    query_heads: Vec<u8>,
    /// Total time to measure, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

/// Limit of the tokens of a cache.
pub(crate) const MOST_TOKENS: usize = 1 << 20;

fn op(name: &str) -> Result<Op, String> {
    let expected = Op::ALL.map(Op::name).join(", ");
    Op::ALL.into_iter().find(|op| op.name() == name).ok_or_else(|| format!("expected {expected}"))
}

fn data(name: &str) -> Result<Data, String> {
    let tokens = || name.parse().ok().filter(|tokens| (1..=MOST_TOKENS).contains(tokens)).map(Data::Tokens);
    let named = Data::ALL.into_iter().find(|data| data.name() == name);
    named.or_else(tokens).ok_or_else(|| format!("expected l1, l2, dram or 1 to {MOST_TOKENS}"))
}

fn level(name: &str) -> Result<Level, tqkv_simd::LevelError> {
    Level::from_name(name)
}

#[derive(Serialize)]
struct Report {
    cpu: String,
    level: &'static str,
    read_gb_per_s: f64,
    results: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    op: &'static str,
    codec: &'static str,
    dim: usize,
    level: &'static str,
    data: &'static str,
    /// Only in a sweep.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<usize>,
    threads: usize,
    query_heads: usize,
    /// Only for encode.
    #[serde(skip_serializing_if = "Option::is_none")]
    effort: Option<&'static str>,
    ns_min: f64,
    ns_median: f64,
    gb_per_s: f64,
    ratio_to_f16: f64,
    ratio_to_q4_0: Option<f64>,
}

impl From<&Outcome> for Row {
    fn from(outcome: &Outcome) -> Self {
        let case = &outcome.case;
        Self {
            op: case.op.name(),
            codec: case.codec.name(),
            dim: case.dim,
            level: case.level.name().name(),
            data: case.data.name(),
            tokens: match case.data {
                Data::Tokens(tokens) => Some(tokens),
                _ => None,
            },
            threads: case.threads,
            query_heads: case.query_heads,
            effort: (case.op == Op::Encode).then_some(case.effort.name()),
            ns_min: outcome.ns_min,
            ns_median: outcome.ns_median,
            gb_per_s: outcome.gb_per_s,
            ratio_to_f16: outcome.ratio_to_f16,
            ratio_to_q4_0: outcome.ratio_to_q4_0,
        }
    }
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    if let Some(path) = &args.model.model {
        return bench_model::run(&args.model, path.as_ref(), args.kernels.threads, out);
    }
    let measured = args.kernels.measure((&args.ops, &args.data, &args.efforts), out)?;
    print(&measured, out)
}

/// The measurements, and the instruction set of this machine.
pub struct Measured {
    pub report: tqkv_benches::Report,
    detected: Level,
}

impl KernelArgs {
    /// Measures every combination of operations, places of data, efforts (encode only) and options.
    ///
    /// # Errors
    /// An instruction set that the machine lacks, or a combination without a kernel.
    pub fn measure(
        &self,
        which: (&[Op], &[Data], &[Effort]),
        out: &mut Output,
    ) -> Result<Measured, CliError> {
        let detected = args::machine_level()?;
        let levels = if self.levels.is_empty() { &[detected][..] } else { &self.levels };
        let bar = out.progress(1000, "measuring");
        let seconds = Duration::from_secs(self.seconds);
        let report = tqkv_benches::run(&self.cases(which, levels), seconds, |share| {
            bar.set_position((share * 1e3) as u64);
        });
        bar.finish_and_clear();
        let report = report.map_err(CliError::bad_input)?;
        for doubt in &report.doubts {
            crate::output::note(format_args!("too noisy to count: {doubt}"));
        }
        Ok(Measured { report, detected })
    }

    fn cases(&self, (ops, places, efforts): (&[Op], &[Data], &[Effort]), levels: &[Level]) -> Vec<Case> {
        let (threads, mut cases) = (self.threads.unwrap_or(1), Vec::new());
        for &op in ops {
            for &data in places {
                for &dim in &self.dims {
                    for &level in levels {
                        for &query_heads in &self.query_heads {
                            let query_heads = usize::from(query_heads);
                            let efforts = if op == Op::Encode { efforts } else { &[Effort::Default] };
                            for &effort in efforts {
                                cases.extend(self.codecs.iter().map(|&codec| Case {
                                    op,
                                    codec,
                                    dim,
                                    level,
                                    data,
                                    threads,
                                    query_heads,
                                    effort,
                                }));
                            }
                        }
                    }
                }
            }
        }
        cases
    }
}

/// Prints the measurements.
///
/// # Errors
/// A failed write to stdout.
pub fn print(measured: &Measured, out: &mut Output) -> Result<(), CliError> {
    let Measured { report, detected } = measured;
    let report = Report {
        cpu: tqkv_benches::cpu_name(),
        level: detected.name().name(),
        read_gb_per_s: report.read_gb_per_s,
        results: report.results.iter().map(Row::from).collect(),
    };
    out.print(&report, human)
}

fn human(report: &Report) -> String {
    let rows = report.results.iter().map(|row| {
        vec![
            row.effort.map_or_else(|| row.op.to_string(), |effort| format!("{} {effort}", row.op)),
            row.codec.to_string(),
            row.dim.to_string(),
            row.level.to_string(),
            row.tokens.map_or_else(|| row.data.to_string(), |tokens| format!("{tokens}")),
            row.threads.to_string(),
            row.query_heads.to_string(),
            format!("{:.2}", row.ns_min),
            format!("{:.2}", row.ns_median),
            format!("{:.1}", row.gb_per_s),
            format!("{:.2}", row.ratio_to_f16),
            row.ratio_to_q4_0.map_or_else(|| "-".to_string(), |ratio| format!("{ratio:.2}")),
        ]
    });
    let head = [
        "op",
        "codec",
        "dim",
        "level",
        "data",
        "threads",
        "heads",
        "ns min",
        "ns median",
        "GB/s",
        "x f16",
        "x q4_0",
    ];
    format!(
        "{}, level {}, plain read {:.1} GB/s; ns per token\n{}",
        report.cpu,
        report.level,
        report.read_gb_per_s,
        table(&head, rows)
    )
}
