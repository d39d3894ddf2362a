//! `tqkv-lab report`: writes one page that shows what a compressed cache does on this machine.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use tqkv_cli::error::CliError;
use tqkv_cli::output::Output;
use tqkv_cli::program::Program;
use tqkv_cli::target::{TargetArgs, yield_stdout};

use crate::report::{Page, SECTIONS, Source, Wanted, render, write_cells};

/// Measure this machine, and write one HTML page on what a compressed cache saves and costs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: the shipped model, then another model
  tqkv-lab report report.html
  tqkv-lab report --model DIR --csv report.csv report.html

The page is one file without scripts, and it loads no other file. It can be mailed, printed and read on a phone. The report takes \
about a minute for the shipped model. Below every plot is the command that prints its data.")]
pub(crate) struct Args {
    /// Model, as in eval: a .gguf file or a folder [default: the shipped model].
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Measure less, in a tenth of the time; the figures are rough.
    #[arg(long)]
    quick: bool,
    /// Write the cells of all tables to this file too: section, table, line, column, value.
    #[arg(long, value_name = "OUT.csv")]
    csv: Option<PathBuf>,
    #[command(flatten)]
    target: TargetArgs,
    /// Page to write.
    #[arg(value_name = "OUT.html")]
    output: PathBuf,
}

#[derive(Serialize)]
struct Report {
    output: String,
    bytes: usize,
    sections: usize,
    seconds: f64,
}

pub(crate) fn run<P: Program>(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let clock = Instant::now();
    // The outputs are checked before the measurement.
    let mut file = args.target.create_new(&args.output)?;
    let cells = args.csv.as_ref().map(|path| args.target.create_new(path)).transpose()?;
    let model = args.model.as_deref().map(text).transpose()?;
    let source = Source::new::<P>(model, args.quick);
    tell(0, "presets and every codec");
    let wanted = Wanted::new(&source)?;
    let mut sections = Vec::new();
    for (i, (name, make)) in SECTIONS.iter().enumerate() {
        tell(i + 1, name);
        sections.extend(make(&wanted)?);
    }
    let page = Page {
        model: wanted.demo.all().text("model").to_owned(),
        machine: format!("{}, {} threads", tqkv_benches::cpu_name(), rayon::current_num_threads()),
        seconds: clock.elapsed().as_secs_f64(),
    };
    let html = render(&page, &sections);
    file.write_all(html.as_bytes())
        .and_then(|()| file.commit())
        .map_err(|error| CliError::io(&args.output, &error))?;
    if let (Some(path), Some(mut file)) = (&args.csv, cells) {
        file.write_all(&write_cells(&sections)?)
            .and_then(|()| file.commit())
            .map_err(|error| CliError::io(path, &error))?;
    }
    let csv = args.csv.iter().map(PathBuf::as_path);
    yield_stdout(&csv.chain([&*args.output]).collect::<Vec<_>>(), out);
    let report = Report {
        output: args.output.display().to_string(),
        bytes: html.len(),
        sections: sections.len(),
        seconds: clock.elapsed().as_secs_f64(),
    };
    out.print(&report, |report| {
        format!(
            "{}: {} sections, {} bytes, {:.0} seconds",
            report.output, report.sections, report.bytes, report.seconds
        )
    })
}

/// A path as an argument of another command.
fn text(path: &Path) -> Result<String, CliError> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        CliError::bad_input(format_args!("{}: not valid: expected a path in UTF-8", path.display()))
    })
}

/// Shows the name of the next section on a terminal.
fn tell(done: usize, name: &str) {
    if io::stderr().is_terminal() {
        eprintln!("{done} of {}: {name}", SECTIONS.len());
    }
}
