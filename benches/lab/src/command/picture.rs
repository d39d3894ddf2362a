//! `tqkv-lab picture`: the pictures of the documents. That of the README is measured: memory and speed of a
//! cache, compared with f16. Others are drawn from tables.

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

/// Draw memory and speed of the presets and of f16 as bars, or the figures of a table in a document.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tqkv-lab picture docs/picture.svg
  tqkv-lab picture --page docs/quality.md --under \"The shipped\" --title Loss --column top-1 loss.svg

Memory is what `tqkv plan` says of Llama-3.1-8B at 131,072 tokens, also for q8_0 and q4_0 of llama.cpp. Times are those \
of `tqkv demo`: attention of one token over one layer of 32,768 tokens, with 32 heads over 8 KV heads.")]
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
const TITLE: &str =
    "Memory of a cache, compared with f16, q8_0 and q4_0, and time of its attention, compared with f16";
/// Types of llama.cpp, whose bytes follow from their format: the name and the bytes of a vector of 128.
const TYPES: [(&str, u32); 2] = [("q8_0", 136), ("q4_0", 72)];

/// Bytes of a cache.
#[derive(Debug)]
struct Memory {
    name: String,
    bytes: u64,
}

/// The cost of a setting.
#[derive(Debug)]
struct Cost {
    memory: Memory,
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
        None => {
            let (costs, types) = measure::<P>()?;
            panels(&costs, &types)?.into()
        }
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
fn measure<P: Program>() -> Result<(Vec<Cost>, Vec<Memory>), CliError> {
    let source = Source::new::<P>(None, false);
    let demo = source.run("tqkv demo --tokens 1 --windows 1 --context 128")?;
    let plan = |name: &str, format: String| -> Result<Memory, CliError> {
        let shape = "tqkv plan --layers 32 --kv-heads 8 --head-dim 128 --tokens 131072";
        let plan = source.run(&format!("{shape} {format}"))?;
        let bytes = plan.rows("rows").last().map_or(0, |row| row.count("cache_bytes"));
        Ok(Memory { name: name.to_owned(), bytes })
    };
    let cost = |row: Row<'_>| -> Result<Cost, CliError> {
        let kv = row.text("kv");
        let milliseconds = Some(row.number("long_step_ms")).filter(|ms| ms.is_finite());
        Ok(Cost { memory: plan(kv, format!("--kv {kv}"))?, milliseconds })
    };
    let costs = demo.rows("results").into_iter().map(cost).collect::<Result<_, _>>()?;
    let types = TYPES.map(|(name, bytes)| plan(name, format!("--other {name}={bytes}")));
    Ok((costs, types.into_iter().collect::<Result<_, _>>()?))
}

/// Memory and speed as bars, compared with f16, the first of the costs. Types of llama.cpp have memory alone.
fn panels(costs: &[Cost], types: &[Memory]) -> Result<[Panel; 2], CliError> {
    let times = |cost: &Cost| cost.milliseconds.unwrap_or(f64::NAN);
    let f16 = costs.first().ok_or_else(|| CliError::failure("a demo has rows"))?;
    if costs.iter().any(|cost| cost.milliseconds.is_none()) {
        let why = "the times of a setting are too far apart, because something else runs on the machine";
        return Err(CliError::failure(why));
    }
    let memory = |memory: &Memory, grey: bool| {
        let bytes = memory.bytes as f64;
        let mut text = format!("{:.1} GB", bytes / 1e9);
        if memory.bytes != f16.memory.bytes {
            text += &format!(", {:.1} times less", f16.memory.bytes as f64 / bytes);
        }
        Bar { label: memory.name.clone(), value: bytes, text, grey }
    };
    let speed = |(i, cost): (usize, &Cost)| {
        let (time, label) = (times(cost), cost.memory.name.clone());
        let text = match i {
            0 => format!("{time:.2} ms"),
            _ => format!("{time:.2} ms, {:.1} times as fast", times(f16) / time),
        };
        Bar { label, value: time, text, grey: i == 0 }
    };
    let others = std::iter::once(&f16.memory).chain(types).map(|other| memory(other, true));
    let ours = costs.iter().skip(1).map(|cost| memory(&cost.memory, false));
    Ok([
        Panel {
            heading: "Memory: the cache of Llama-3.1-8B with 131,072 tokens (q8_0 and q4_0 of llama.cpp)"
                .into(),
            bars: others.chain(ours).collect(),
        },
        Panel {
            heading: "Time: attention of one token, one layer of 32,768 tokens, 8 KV heads".into(),
            bars: costs.iter().enumerate().map(speed).collect(),
        },
    ])
}

#[cfg(test)]
mod tests {
    use super::super::picture_bars::{Frame, draw};
    use super::*;

    fn cost(kv: &str, bytes: u64, milliseconds: Option<f64>) -> Cost {
        Cost { memory: Memory { name: kv.into(), bytes }, milliseconds }
    }

    #[test]
    fn bars_are_as_long_as_their_share() {
        let costs = [cost("f16,f16", 1_000_000_000, Some(4.0)), cost("t4,t4", 250_000_000, Some(1.0))];
        let frame = Frame { title: "cost", command: "", one_scale: false };
        let types = [Memory { name: "q4_0".into(), bytes: 500_000_000 }];
        let svg = draw(&frame, &panels(&costs, &types).unwrap());
        for part in [
            "width=\"560.0\"",
            "width=\"140.0\"",
            ">1.0 GB<",
            "0.5 GB, 2.0 times less",
            "0.2 GB, 4.0 times less",
            "1.00 ms, 4.0 times as fast",
        ] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert_eq!(svg.matches("<rect").count(), 5);
        assert_eq!(svg.matches("class=\"f16\"").count(), 3, "what is not ours is grey");
    }

    #[test]
    fn a_busy_machine_draws_nothing() {
        let error = panels(&[cost("f16,f16", 1, Some(1.0)), cost("t4,t4", 1, None)], &[]).unwrap_err();
        assert!(error.to_string().contains("too far apart"), "{error}");
    }
}
