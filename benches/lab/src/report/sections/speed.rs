//! Attention against the length of the cache, compared with the time to read the memory.

use tqkv_cli::command::demo::withheld;
use tqkv_cli::command::demo_speed::WIDEST_SPREAD;
use tqkv_cli::error::CliError;
use tqkv_cli::output::grouped;

use super::super::chart::{Axis, Chart, Look, Series};
use super::super::source::{Answer, Row};
use super::{Section, Table, Wanted};

/// Codecs of the plot. Each brings f16 with it.
const CODECS: &str = "s4,t4,s3,t2";

pub(super) fn sections(wanted: &Wanted<'_>) -> Result<Vec<Section>, CliError> {
    let tokens = wanted.source.full_or_quick("1024,4096,16384,65536,262144", "1024,4096");
    let seconds = wanted.source.full_or_quick("14", "1");
    let line = format!(
        "tqkv bench --op attend --codec {CODECS} --query-heads 4 --data {tokens} --seconds {seconds}"
    );
    let answer = wanted.source.run(&line)?;
    let chart = Chart {
        label: "Nanoseconds of attention for each cached token against the tokens in the cache, four query heads, one thread".to_owned(),
        x: Axis { name: "tokens in the cache", log: true, label: |tokens| format!("{:.0}k", tokens / 1024.0) },
        y: Axis { name: "ns per token", log: false, label: |ns| format!("{ns:.0}") },
        series: &series(&answer),
    };
    Ok(vec![Section {
        title: "Speed against length",
        lead: vec![format!(
            "One query attends to a cache that grows. While it lies in the processor's caches, arithmetic decides; beyond them memory \
             does, and codes are fewer bytes to read. The dashed line is the time in which one thread of this machine ({}) reads the \
             bytes of f16 from memory, at {:.1} GB/s: out there no f16 cache is faster than that, whatever its arithmetic. Samples of all codecs take turns, and the least time \
             counts. Spread is the median over it; where it is above {WIDEST_SPREAD} something else ran on the machine, and the time is left out.",
            answer.all().text("cpu"),
            answer.all().number("read_gb_per_s")
        )],
        figures: vec![chart.figure()?],
        tables: vec![table(&answer)],
        commands: vec![answer.command.clone()],
        ..Section::default()
    }])
}

/// False if something else ran on the machine.
fn is_settled(row: &Row<'_>) -> bool {
    row.number("ns_median") <= WIDEST_SPREAD * row.number("ns_min")
}

/// f16, a line for each codec, and the time of reading alone.
fn series(answer: &Answer) -> Vec<Series> {
    let mut codecs: Vec<Series> = Vec::new();
    let mut f16 = Series::new("f16", Look::Both, Vec::new(), 3);
    for row in answer.rows("results").iter().filter(|row| is_settled(row)) {
        let (codec, tokens, ns) = (row.text("codec"), row.number("tokens"), row.number("ns_min"));
        if codec == CODECS.split(',').next().unwrap_or_default() {
            f16.points.push((tokens, ns * row.number("ratio_to_f16")));
        }
        match codecs.iter_mut().find(|series| series.name == codec) {
            Some(series) => series.points.push((tokens, ns)),
            None => {
                let colour = [0, 1, 2, 4][codecs.len() % 4];
                codecs.push(Series::new(codec, Look::Both, vec![(tokens, ns)], colour));
            }
        }
    }
    // Key and value have 128 coordinates of two bytes each.
    let limit = 512.0 / answer.all().number("read_gb_per_s");
    let reading = f16.points.iter().map(|point| (point.0, limit)).collect();
    let reading = Series::new("reading the bytes of f16 from memory, nothing else", Look::Dashed, reading, 7);
    [f16].into_iter().chain(codecs).chain([reading]).collect()
}

fn table(answer: &Answer) -> Table {
    let cells = |row: &Row<'_>| {
        let time = |text: String| if is_settled(row) { text } else { withheld() };
        vec![
            row.text("codec").to_owned(),
            grouped(row.count("tokens")),
            time(format!("{:.2}", row.number("ns_min"))),
            format!("{:.2}", row.number("ns_median") / row.number("ns_min")),
            time(format!("{:.1}", row.number("gb_per_s"))),
            time(format!("{:.2}", row.number("ratio_to_f16"))),
        ]
    };
    let head = ["codec", "tokens", "ns per token", "spread", "GB/s", "times f16"];
    Table::new("Every point as a table", &head, answer.rows("results").iter().map(cells).collect())
}
