//! `tqkv-lab picture`: the pictures of the documents. That of the README is measured: memory and speed of a
//! cache beside f16. Others are drawn from tables.

use std::io::Write as _;
use std::path::PathBuf;

use serde::Serialize;
use tqkv_cli::error::CliError;
use tqkv_cli::output::Output;
use tqkv_cli::program::Program;
use tqkv_cli::target::{TargetArgs, yield_stdout};

use super::picture_bars::{Bar, Panel};
use super::picture_table::TableArgs;
use crate::report::{Row, Source};

/// Draw memory and speed of the presets beside f16 as bars, or the figures of a table in a document.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tqkv-lab picture docs/picture.svg
  tqkv-lab picture --page docs/quality.md --under \"The shipped\" --title Loss --column top-1 loss.svg

Memory is what `tqkv plan` says of Llama-3.1-8B at 131,072 tokens. Times are those of `tqkv demo`: attention of one \
token over one layer of 32,768 tokens, with 32 heads over 8 KV heads.")]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    table: TableArgs,
    /// The picture to write.
    #[arg(value_name = "OUT.svg")]
    output: PathBuf,
}

/// The description of the picture of the README.
const TITLE: &str = "Memory of a cache and time of its attention, beside f16";

/// The cost of a setting.
#[derive(Debug)]
struct Cost {
    kv: String,
    /// Bytes of the cache.
    bytes: u64,
    /// Milliseconds of attention; none if the times are too far apart.
    milliseconds: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Picture {
    panels: Vec<Panel>,
}

pub(crate) fn run<P: Program>(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let mut file = args.target.create_new(&args.output)?;
    let panels = match args.table.panels() {
        Some(panels) => panels?,
        None => panels(&measure::<P>()?)?.into(),
    };
    let svg = args.table.draw(TITLE, &panels);
    let written = file.write_all(svg.as_bytes()).and_then(|()| file.commit());
    written.map_err(|error| CliError::io(&args.output, &error))?;
    yield_stdout(&[&args.output], out);
    out.print(&Picture { panels }, |picture| {
        let lines = picture.panels.iter().flat_map(|Panel { heading, bars }| {
            let bars = bars.iter().map(|bar| format!("{:<15} {}", bar.label, bar.text));
            std::iter::once(heading.clone()).chain(bars)
        });
        lines.collect::<Vec<_>>().join("\n")
    })
}

/// Runs both commands. The rows of `demo` say which settings there are.
fn measure<P: Program>() -> Result<Vec<Cost>, CliError> {
    let source = Source::new::<P>(None, false);
    let demo = source.run("tqkv demo --tokens 1 --windows 1 --context 128")?;
    let shape = "tqkv plan --layers 32 --kv-heads 8 --head-dim 128 --tokens 131072";
    let bar = |row: Row<'_>| {
        let kv = row.text("kv");
        let plan = source.run(&format!("{shape} --kv {kv}"))?;
        let milliseconds = Some(row.number("long_step_ms")).filter(|ms| ms.is_finite());
        let bytes = plan.rows("rows").first().map_or(0, |row| row.count("cache_bytes"));
        Ok(Cost { kv: kv.to_owned(), bytes, milliseconds })
    };
    demo.rows("results").into_iter().map(bar).collect()
}

/// Memory and speed as bars, each beside that of f16.
fn panels(costs: &[Cost]) -> Result<[Panel; 2], CliError> {
    let times = |cost: &Cost| cost.milliseconds.unwrap_or(f64::NAN);
    let f16 = costs.first().ok_or_else(|| CliError::failure("a demo has rows"))?;
    if costs.iter().any(|cost| cost.milliseconds.is_none()) {
        let why = "the times of a setting are too far apart, because something else runs on the machine";
        return Err(CliError::failure(why));
    }
    let panel = |heading: &str, measure: &dyn Fn(&Cost) -> (f64, String, String)| {
        let bars = costs.iter().enumerate().map(|(i, cost)| {
            let (value, figure, beside) = measure(cost);
            let text = if i == 0 { figure } else { format!("{figure}, {beside}") };
            Bar { label: cost.kv.clone(), value, text, grey: i == 0 }
        });
        Panel { heading: heading.to_owned(), bars: bars.collect() }
    };
    let memory = |cost: &Cost| {
        let bytes = cost.bytes as f64;
        let less = f16.bytes as f64 / bytes;
        (bytes, format!("{:.1} GB", bytes / 1e9), format!("{less:.1} times less"))
    };
    let speed = |cost: &Cost| {
        let time = times(cost);
        (time, format!("{time:.2} ms"), format!("{:.1} times as fast", times(f16) / time))
    };
    Ok([
        panel("Memory: the cache of Llama-3.1-8B with 131,072 tokens", &memory),
        panel("Time: attention of one token, one layer of 32,768 tokens, 8 KV heads", &speed),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::picture_bars::{Frame, draw};
    use super::*;

    fn cost(kv: &str, bytes: u64, milliseconds: Option<f64>) -> Cost {
        Cost { kv: kv.into(), bytes, milliseconds }
    }

    #[test]
    fn bars_are_as_long_as_their_share() {
        let costs = [cost("f16,f16", 1_000_000_000, Some(4.0)), cost("t4,t4", 250_000_000, Some(1.0))];
        let frame = Frame { title: "cost", command: "", one_scale: false };
        let svg = draw(&frame, &panels(&costs).unwrap());
        for part in
            ["width=\"560.0\"", "width=\"140.0\"", "0.2 GB, 4.0 times less", "1.00 ms, 4.0 times as fast"]
        {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert_eq!(svg.matches("<rect").count(), 4);
    }

    #[test]
    fn a_busy_machine_draws_nothing() {
        let error = panels(&[cost("f16,f16", 1, Some(1.0)), cost("t4,t4", 1, None)]).unwrap_err();
        assert!(error.to_string().contains("too far apart"), "{error}");
    }
}
