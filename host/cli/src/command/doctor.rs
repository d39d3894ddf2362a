//! `tqkv doctor`: what this machine has, which engines are found, and whether their doors load.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use tqkv_simd::Level;

use super::llama;
use crate::environment;
use crate::error::CliError;
use crate::output::{Output, Waiting};

/// Our package for Python.
const PACKAGE: &str = "tqkv-cache";
/// A package of other authors whose module has the name of ours.
const STRANGER: &str = "tqkv";

/// Say what this machine has, which engines are found, whether their doors load, and what is wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: everything, then another Python and a folder of llama.cpp's binaries
  tqkv doctor
  tqkv doctor --python .venv/bin/python --llama llama/bin

The exit code is 1 if something is wrong. An engine that is not there is not wrong.")]
pub(crate) struct Args {
    /// The Python whose packages are looked at [default: that of the wheel with this
    /// command, else python3].
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// A folder with llama-server or llama-cli, or one of these two [default: PATH].
    #[arg(long, value_name = "PATH")]
    llama: Option<PathBuf>,
    /// The library for llama.cpp, or its folder [default: as in tqkv llama].
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    system: String,
    /// Instruction sets of this machine, the slowest first.
    levels: Vec<&'static str>,
    /// The one that runs; null if `TQKV_LEVEL` is not valid.
    level: Option<&'static str>,
    processors: usize,
    gpu: String,
    llama: Option<Llama>,
    python: Option<Python>,
    /// Each fault, with what to do.
    faults: Vec<String>,
}

#[derive(Serialize)]
struct Llama {
    binary: PathBuf,
    /// Our device in the words of llama.cpp; null if the library was not loaded.
    device: Option<String>,
}

#[derive(Deserialize, Serialize)]
struct Python {
    #[serde(default)]
    program: PathBuf,
    version: String,
    packages: Vec<Package>,
}

#[derive(Deserialize, Serialize)]
struct Package {
    name: String,
    version: String,
    /// The module that is the door to it, if there is one.
    door: Option<String>,
    /// Why the door does not load.
    fault: Option<String>,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let mut faults = Vec::new();
    let level = level(&mut faults);
    faults.extend(environment::unknown().iter().map(|name| unread(name)));
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        system: format!("{} {}", env::consts::OS, env::consts::ARCH),
        levels: Level::available().map(|level| level.name().name()).collect(),
        level,
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        gpu: gpu(),
        llama: find_llama(args, &mut faults)?,
        python: find_python(args.python.as_deref(), &mut faults)?,
        faults,
    };
    out.print(&report, human)?;
    if report.faults.is_empty() { Ok(()) } else { Err(CliError::said()) }
}

/// The level that runs.
fn level(faults: &mut Vec<String>) -> Option<&'static str> {
    match Level::detect() {
        Ok(level) => Some(level.name().name()),
        Err(error) => {
            faults.push(format!("TQKV_LEVEL: {error}"));
            None
        }
    }
}

fn unread(name: &str) -> String {
    let known = environment::nearest(name).map(|(name, r#for)| format!("{name} ({})", r#for)).join(", ");
    format!("nothing reads the variable {name}: expected {known}")
}

#[cfg(feature = "cuda")]
fn gpu() -> String {
    let line = || {
        let device = tqkv_gpu::Device::new(0)?;
        let (major, minor) = device.capability();
        let caution = device.caution().map_or(String::new(), |caution| format!("; {caution}"));
        Ok::<_, tqkv_gpu::GpuError>(format!(
            "{}, compute capability {major}.{minor}; tqkv gpu-check tests it{caution}",
            device.name()?
        ))
    };
    line().unwrap_or_else(|error| error.to_string())
}

#[cfg(not(feature = "cuda"))]
fn gpu() -> String {
    "this tqkv was built without the feature cuda".to_owned()
}

/// The binary of llama.cpp that is given, or on `PATH`, and whether it loads the library that is given or
/// found.
fn find_llama(args: &Args, faults: &mut Vec<String>) -> Result<Option<Llama>, CliError> {
    let given = args.library.as_deref().map(|path| llama::library(Some(path))).transpose()?;
    let binary = match args.llama.as_deref() {
        Some(given) => llama::binary(given)?,
        None => match on_path(llama::BINARIES.iter().copied()) {
            Some(binary) => binary,
            None => return Ok(None),
        },
    };
    // Only a checkout or an archive of the library has it; the command alone works without.
    let device = match given.or_else(|| llama::library(None).ok()) {
        None => None,
        Some(library) => match llama::devices(&binary, &llama::environment(&library, None)) {
            Ok((device, _)) => Some(device),
            Err(error) => {
                faults.push(error.to_string());
                None
            }
        },
    };
    Ok(Some(Llama { binary, device }))
}

/// The Python that is given or on `PATH`, and its packages.
fn find_python(given: Option<&Path>, faults: &mut Vec<String>) -> Result<Option<Python>, CliError> {
    let Some(program) = given.map(Path::to_owned).or_else(|| on_path(["python3", "python"])) else {
        return Ok(None);
    };
    let waiting = Waiting::new("importing the doors to engines");
    let python = ask(&program)?;
    waiting.end();
    for package in &python.packages {
        let Package { name, version, door, fault } = package;
        if let Some(fault) = fault {
            let door = door.as_deref().unwrap_or(name);
            let versions = if name == PACKAGE { PACKAGE.to_owned() } else { format!("{PACKAGE} {name}") };
            faults.push(format!(
                "import {door} beside {name} {version}: {fault}; try pip install --upgrade {versions}"
            ));
        }
        if name == STRANGER {
            faults.push(format!(
                "the package {name} {version} is another project's, and has our module's name: \
                 pip uninstall {name}, then pip install --force-reinstall {PACKAGE}"
            ));
        }
    }
    Ok(Some(python))
}

fn ask(program: &Path) -> Result<Python, CliError> {
    let mut command = Command::new(program);
    command.args(["-c", include_str!("doctor.py")]).stdin(Stdio::null());
    let done = command.output().map_err(|error| CliError::io(program, &error))?;
    let said = String::from_utf8_lossy(&done.stdout);
    let last = said.lines().last().unwrap_or_default();
    let python = serde_json::from_str::<Python>(last).map_err(|_| {
        let errors = String::from_utf8_lossy(&done.stderr);
        let why = errors.lines().last().unwrap_or("it says nothing");
        CliError::bad_input(format_args!("{} is not a Python 3: {why}", program.display()))
    })?;
    Ok(Python { program: program.to_owned(), ..python })
}

/// The first of `names` that a folder of `PATH` has.
fn on_path<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<PathBuf> {
    let paths = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = env::split_paths(&paths).collect();
    let file = |name: &str| format!("{name}{}", env::consts::EXE_SUFFIX);
    names
        .into_iter()
        .find_map(|name| folders.iter().map(|folder| folder.join(file(name))).find(|path| path.is_file()))
}

fn human(report: &Report) -> String {
    let mut lines = vec![
        ("tqkv", format!("{}, {}", report.version, report.system)),
        ("levels", format!("{}; {} runs", report.levels.join(", "), report.level.unwrap_or("none"))),
        ("processors", report.processors.to_string()),
        ("GPU", report.gpu.clone()),
    ];
    lines.push((
        "llama.cpp",
        match &report.llama {
            None => "not on PATH; --llama names its folder".to_owned(),
            Some(Llama { binary, device: Some(device) }) => format!("{}: {device}", binary.display()),
            Some(Llama { binary, device: None }) => {
                format!("{}: no library of tqkv was loaded; --library names one", binary.display())
            }
        },
    ));
    match &report.python {
        None => lines.push(("Python", "not on PATH; --python names it".to_owned())),
        Some(python) => {
            lines.push(("Python", format!("{}, {}", python.version, python.program.display())));
            lines.extend(python.packages.iter().map(|package| ("", package_line(package))));
        }
    }
    let mut text: String = lines.iter().map(|(name, value)| format!("{name:<11} {value}\n")).collect();
    text.push('\n');
    if report.faults.is_empty() {
        text.push_str("Nothing is wrong.");
    } else {
        text.push_str(
            &report.faults.iter().map(|fault| format!("wrong: {fault}")).collect::<Vec<_>>().join("\n"),
        );
    }
    text
}

fn package_line(package: &Package) -> String {
    let Package { name, version, door, fault } = package;
    match (door, fault) {
        (_, Some(_)) => format!("{name} {version}: its door does not load"),
        (Some(door), None) => format!("{name} {version}: {door}"),
        (None, None) => format!("{name} {version}"),
    }
}
