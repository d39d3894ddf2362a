//! `tqkv-lab picture`: the picture of the README, memory and speed of a cache beside f16.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use serde::Serialize;
use tqkv_cli::error::CliError;
use tqkv_cli::output::Output;
use tqkv_cli::program::Program;
use tqkv_cli::target::{TargetArgs, yield_stdout};

use crate::report::{Row, Source};

/// Draw memory and speed of the presets beside f16, as two rows of bars.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tqkv-lab picture docs/picture.svg

Memory is what `tqkv plan` says of Llama-3.1-8B at 131,072 tokens. Times are those of `tqkv demo`: attention of one \
token over one layer of 32,768 tokens, with 32 heads over 8 KV heads.")]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// The picture to write.
    #[arg(value_name = "OUT.svg")]
    output: PathBuf,
}

/// One bar of each row.
#[derive(Debug, Serialize)]
struct Bar {
    kv: String,
    /// Bytes of the cache.
    bytes: u64,
    /// Milliseconds of attention; none if the times are too far apart.
    milliseconds: Option<f64>,
}

/// A heading and the bars below it: a label, a share of the longest bar, and a text beside it.
type Panel<'a> = (&'a str, Vec<(&'a str, f64, String)>);

#[derive(Debug, Serialize)]
struct Picture {
    bars: Vec<Bar>,
}

pub(crate) fn run<P: Program>(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let mut file = args.target.create_new(&args.output)?;
    let picture = Picture { bars: measure::<P>()? };
    let svg = draw(&picture.bars)?;
    let written = file.write_all(svg.as_bytes()).and_then(|()| file.commit());
    written.map_err(|error| CliError::io(&args.output, &error))?;
    yield_stdout(&[&args.output], out);
    out.print(&picture, |picture| {
        let line = |bar: &Bar| match bar.milliseconds {
            Some(ms) => format!("{:<6} {:>15} bytes {ms:.2} ms", bar.kv, bar.bytes),
            None => format!("{:<6} {:>15} bytes, times too far apart", bar.kv, bar.bytes),
        };
        picture.bars.iter().map(line).collect::<Vec<_>>().join("\n")
    })
}

/// Runs both commands. The rows of `demo` say which settings there are.
fn measure<P: Program>() -> Result<Vec<Bar>, CliError> {
    let source = Source::new::<P>(None, false);
    let demo = source.run("tqkv demo --tokens 1 --windows 1 --context 128")?;
    let shape = "tqkv plan --layers 32 --kv-heads 8 --head-dim 128 --tokens 131072";
    let bar = |row: Row<'_>| {
        let kv = row.text("kv");
        let plan = source.run(&format!("{shape} --kv {kv}"))?;
        let milliseconds = Some(row.number("long_step_ms")).filter(|ms| ms.is_finite());
        let bytes = plan.rows("rows").first().map_or(0, |row| row.count("cache_bytes"));
        Ok(Bar { kv: kv.to_owned(), bytes, milliseconds })
    };
    demo.rows("results").into_iter().map(bar).collect()
}

const WIDTH: usize = 860;
const ROW: usize = 24;
/// Left edge of the bars, and the length of the longest.
const BARS: (usize, usize) = (120, 560);

/// Both rows of bars, in colours for light and for dark pages.
fn draw(bars: &[Bar]) -> Result<String, CliError> {
    let times = |bar: &Bar| bar.milliseconds.unwrap_or(f64::NAN);
    let f16 = bars.first().ok_or_else(|| CliError::failure("a demo has rows"))?;
    if bars.iter().any(|bar| bar.milliseconds.is_none()) {
        let why = "the times of a setting are too far apart, because something else runs on the machine";
        return Err(CliError::failure(why));
    }
    let longest = bars.iter().map(times).fold(0.0, f64::max);
    let memory = bars.iter().map(|bar| {
        let (share, gigabytes) = (bar.bytes as f64 / f16.bytes as f64, bar.bytes as f64 / 1e9);
        (&*bar.kv, share, format!("{gigabytes:.1} GB, {:.1} times less", 1.0 / share))
    });
    let speed = bars.iter().map(|bar| {
        (
            &*bar.kv,
            times(bar) / longest,
            format!("{:.2} ms, {:.1} times f16", times(bar), times(f16) / times(bar)),
        )
    });
    let panels: [Panel<'_>; 2] = [
        ("Memory: the cache of Llama-3.1-8B with 131,072 tokens", memory.collect()),
        ("Time: attention of one token, one layer of 32,768 tokens, 8 KV heads", speed.collect()),
    ];
    let height = panels.iter().map(|(_, bars)| 2 * ROW + bars.len() * ROW).sum::<usize>();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         font-family=\"sans-serif\" font-size=\"14\">\n<style>text{{fill:#222}} .f16{{fill:#9a9a9a}} .code{{fill:#2a78b8}} \
         @media(prefers-color-scheme:dark){{text{{fill:#ddd}} .code{{fill:#5aa9e6}}}}</style>\n"
    );
    let mut y = ROW;
    for (heading, bars) in panels {
        line(&mut svg, format_args!("<text x=\"0\" y=\"{y}\" font-weight=\"bold\">{heading}</text>"));
        for (i, (label, share, text)) in bars.into_iter().enumerate() {
            y += ROW;
            let (class, text) =
                if i == 0 { ("f16", text.split(',').next().unwrap_or_default()) } else { ("code", &*text) };
            let (left, length) = (BARS.0, share * BARS.1 as f64);
            line(
                &mut svg,
                format_args!("<text x=\"{}\" y=\"{y}\" text-anchor=\"end\">{label}</text>", left - 8),
            );
            let top = y - 13;
            line(
                &mut svg,
                format_args!(
                    "<rect class=\"{class}\" x=\"{left}\" y=\"{top}\" width=\"{length:.1}\" height=\"16\"/>"
                ),
            );
            let beside = left as f64 + length + 8.0;
            line(&mut svg, format_args!("<text x=\"{beside:.1}\" y=\"{y}\">{text}</text>"));
        }
        y += 2 * ROW;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn line(svg: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(svg, "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(kv: &str, bytes: u64, milliseconds: Option<f64>) -> Bar {
        Bar { kv: kv.into(), bytes, milliseconds }
    }

    #[test]
    fn bars_are_as_long_as_their_share() {
        let svg =
            draw(&[bar("f16,f16", 1_000_000_000, Some(4.0)), bar("t4,t4", 250_000_000, Some(1.0))]).unwrap();
        for part in ["width=\"560.0\"", "width=\"140.0\"", "0.2 GB, 4.0 times less", "1.00 ms, 4.0 times f16"]
        {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert_eq!(svg.matches("<rect").count(), 4);
    }

    #[test]
    fn a_busy_machine_draws_nothing() {
        let error = draw(&[bar("f16,f16", 1, Some(1.0)), bar("t4,t4", 1, None)]).unwrap_err();
        assert!(error.to_string().contains("too far apart"), "{error}");
    }
}
