//! `tqkv llama`: the command line that runs llama.cpp with our cache, and a check that llama.cpp loads the
//! library.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Serialize;

use crate::error::CliError;
use crate::output::{Output, bytes, grouped};
use crate::plan::PlanSource;
use crate::policy::Policy;

/// Print the command that runs llama.cpp with its KV cache in tqkv codes, and check that it loads the
/// library.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: the library, then the command line of a folder of binaries
  cargo build --release --manifest-path host/llama/Cargo.toml
  tqkv llama --library host/llama/target/release --model model.gguf llama/bin

The check runs the binary with --list-devices. It must be a build with loadable back ends (GGML_BACKEND_DL), as the \
releases of llama.cpp are. If the binary has a GPU too, the arguments put the weights there and leave the cache in main memory.")]
pub(crate) struct Args {
    /// A folder with llama-server or llama-cli, or one of these two; without it, nothing is checked.
    llama: Option<PathBuf>,
    /// The library of the back end, or its folder [default: the library next to this command, or that of the
    /// checkout that this command was built in].
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// The GGUF file of the model. If it is there, the bytes of its context are printed too.
    #[arg(long, value_name = "FILE", default_value = "model.gguf")]
    model: PathBuf,
    /// Tokens of that context [default: the longest context of the model].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    tokens: Option<u64>,
    /// The cache in words, such as 't4,t2 hot=64' [default: the library's].
    #[arg(long, value_name = "CACHE")]
    kv: Option<String>,
}

/// Binaries to look for in a folder, the preferred one first.
pub(super) const BINARIES: [&str; 2] = ["llama-server", "llama-cli"];

/// The README of the library explains `-ngl` and `-fa`.
const ARGUMENTS: [&str; 4] = ["-ngl", "99", "-fa", "on"];

const FIT: &str = "-fit counts the cache as f16. If that exceeds the free memory, llama.cpp shortens a context that would fit. \
                   Give -c, or -fit off.";

#[derive(Serialize)]
struct Report {
    environment: BTreeMap<&'static str, String>,
    arguments: Vec<String>,
    /// Environment and arguments as one line for a shell.
    command: String,
    /// The device in the words of llama.cpp. Null if nothing was checked.
    device: Option<String>,
    /// The device of the weights, if that is not the CPU.
    weights: Option<String>,
    fit: &'static str,
    /// Null if the model is not there, or its policy is one of several.
    context: Option<Context>,
}

/// What a context of a model takes.
#[derive(Serialize)]
struct Context {
    tokens: u64,
    bytes: u64,
    f16_bytes: u64,
}

impl Context {
    /// The context of a file; none without one, without a known length, or with policies by model.
    fn of(args: &Args) -> Result<Option<Self>, CliError> {
        let Some(policy) = policy(args.kv.as_deref())? else { return Ok(None) };
        if !args.model.is_file() {
            return Ok(None);
        }
        let shape = PlanSource::read(&args.model)?.shape();
        let Some(tokens) = args.tokens.or(shape.context) else { return Ok(None) };
        let plan = shape.plan(&policy).map_err(CliError::bad_input)?;
        let [bytes, f16_bytes] = [plan.bytes(tokens), plan.in_f16().and_then(|plan| plan.bytes(tokens))];
        let (bytes, f16_bytes) =
            (bytes.map_err(CliError::bad_input)?, f16_bytes.map_err(CliError::bad_input)?);
        Ok(Some(Self { tokens, bytes, f16_bytes }))
    }

    fn line(&self) -> String {
        let [tokens, bytes, f16] = [grouped(self.tokens), bytes(self.bytes), bytes(self.f16_bytes)];
        format!(
            "\n\nA context of {tokens} tokens of this model takes at most {bytes}. In f16 it takes {f16}."
        )
    }
}

/// The policy of the library for a cache that is declared as f16.
const LIBRARYS: &str = "balanced";

/// The policy of every model, that of the library if none is named. What saved states hold changes no bytes of a cache.
fn policy(kv: Option<&str>) -> Result<Option<Policy>, CliError> {
    let words: Vec<_> =
        kv.unwrap_or_default().split_whitespace().filter(|word| !word.starts_with("state=")).collect();
    match words.join(" ") {
        text if text.contains(';') => Ok(None),
        text => {
            let text = if text.is_empty() { LIBRARYS } else { &text };
            text.parse().map(Some).map_err(|why| CliError::bad_input(format_args!("--kv: {why}")))
        }
    }
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let library = library(args.library.as_deref())?;
    let binary = args.llama.as_deref().map(binary).transpose()?;
    let environment = environment(&library, args.kv.clone());
    let devices = binary.as_deref().map(|binary| devices(binary, &environment)).transpose()?;
    let context = Context::of(args)?;
    if args.tokens.is_some() && context.is_none() {
        return Err(CliError::bad_input(format_args!(
            "--tokens: nothing is known of the context: expected a file as --model, not {}, and one policy for all models",
            args.model.display()
        )));
    }
    let (device, others) = devices.unzip();
    let weights = others.and_then(|others| others.into_iter().next());
    let program = binary.map_or(BINARIES[0].to_owned(), |binary| binary.display().to_string());
    let model = args.model.display().to_string();
    let mut arguments = vec![program, "-m".to_owned(), model];
    arguments.extend(ARGUMENTS.map(str::to_owned));
    if let Some(gpu) = &weights {
        // The layers belong to our device, which has their cache, and the tensors of weights to the GPU.
        let place = format!(".*={gpu}");
        let beside = ["-dev", &format!("TQKV,{gpu}"), "-ts", "1,0", "-ot", &place].map(str::to_owned);
        arguments.extend(beside);
    }
    let set = environment.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
    let words: Vec<_> = set.chain(arguments.iter().map(|word| quoted(word))).collect();
    let command = words.join(" ");
    let report = Report { command, environment, arguments, device, weights, fit: FIT, context };
    out.print(&report, human)
}

fn human(report: &Report) -> String {
    let device = match &report.device {
        Some(device) => format!("The library loads there: {device}"),
        None => {
            "Not checked; give the folder of llama.cpp's binaries to see whether the library loads there."
                .to_owned()
        }
    };
    let weights = report.weights.iter().map(|gpu| {
        format!("\nThe weights lie on {gpu}, and the cache in main memory, where the CPU attends to it.")
    });
    let context = report.context.as_ref().map(Context::line).unwrap_or_default();
    format!("{}\n\n{device}{}\n{}{context}", report.command, weights.collect::<String>(), report.fit)
}

/// Variables that make llama.cpp load the library, with a policy if one is given.
pub(super) fn environment(library: &Path, policy: Option<String>) -> BTreeMap<&'static str, String> {
    let mut environment = BTreeMap::from([("GGML_BACKEND_PATH", library.display().to_string())]);
    environment.extend(policy.map(|policy| ("TQKV_KV", policy)));
    environment
}

/// The folder of a checkout where its README builds the library.
const BUILT: &str = "host/llama/target/release";

/// The absolute path of the library: the given one, or the one that is found.
pub(super) fn library(given: Option<&Path>) -> Result<PathBuf, CliError> {
    let name = format!("{}ggml_tqkv{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX);
    let path = match given {
        Some(path) if path.is_dir() => path.join(name),
        Some(path) => path.to_owned(),
        None => found(&name)?,
    };
    if !path.is_file() {
        let build =
            "cargo build --release --manifest-path host/llama/Cargo.toml makes it, --library names it";
        return Err(CliError::bad_input(format_args!("{}: no such library; {build}", path.display())));
    }
    path.canonicalize().map_err(|error| CliError::io(&path, &error))
}

/// The library next to this command, or where a checkout around the command has it. The working folder is not
/// searched, because it may be anybody's.
fn found(name: &str) -> Result<PathBuf, CliError> {
    let command = env::current_exe()?;
    let beside = command.with_file_name(name);
    let built = command.ancestors().skip(1).map(|folder| folder.join(BUILT).join(name));
    let mut all = std::iter::once(beside.clone()).chain(built);
    Ok(all.find(|path| path.is_file()).unwrap_or(beside))
}

/// The absolute path of the binary: the given file, or the one found in the given folder.
pub(super) fn binary(given: &Path) -> Result<PathBuf, CliError> {
    let path = if given.is_dir() {
        let named = BINARIES.map(|name| given.join(format!("{name}{}", env::consts::EXE_SUFFIX)));
        let found = named.into_iter().find(|path| path.is_file());
        let missing = || format!("{}: neither {} lies there", given.display(), BINARIES.join(" nor "));
        found.ok_or_else(|| CliError::bad_input(missing()))?
    } else {
        given.to_owned()
    };
    path.canonicalize().map_err(|error| CliError::io(&path, &error))
}

/// The line that a binary prints for our device, and the names of its other devices.
pub(super) fn devices(
    binary: &Path,
    environment: &BTreeMap<&'static str, String>,
) -> Result<(String, Vec<String>), CliError> {
    let mut command = Command::new(binary);
    command.arg("--list-devices").envs(environment).env("TQKV_LOG", "1").stdin(Stdio::null());
    let done = command.output().map_err(|error| CliError::io(binary, &error))?;
    let said = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    let line = |start: &str| said.lines().map(str::trim).find(|line| line.starts_with(start));
    if let Some(device) = line("TQKV:") {
        let listed = said.lines().skip_while(|line| !line.starts_with("Available devices")).skip(1);
        let names = listed.filter_map(|line| line.trim().split_once(": ")).map(|(name, _)| name.to_owned());
        return Ok((device.to_owned(), names.filter(|name| name != "TQKV").collect()));
    }
    let name = binary.display();
    Err(CliError::failure(match line("tqkv:") {
        Some(refusal) => format!("{name} does not take the library: {refusal}"),
        None if done.status.success() => {
            format!(
                "{name} does not load the library; expected is a build with loadable back ends (GGML_BACKEND_DL)"
            )
        }
        None => format!("{name} --list-devices: {}", said.lines().last().unwrap_or("it says nothing")),
    }))
}

/// A word quoted for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,=:+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}
