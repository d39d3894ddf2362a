//! Attention against the length of the cache, beside the time to read the memory.

use tqkv_cli::command::demo::withheld;
use tqkv_cli::command::demo_speed::WIDEST_SPREAD;
use tqkv_cli::error::CliError;
use tqkv_cli::output::grouped;

use super::super::chart::{Axis, Chart, Look, Series};
use super::super::source::Row;
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
    let rows = answer.rows("results");
    let mut series: Vec<Series> = Vec::new();
    let mut f16 = Series {
        name: "f16".to_owned(),
        look: Look::Both,
        points: Vec::new(),
        labels: Vec::new(),
        colour: 3,
    };
    let settled = |row: &Row<'_>| row.number("ns_median") <= WIDEST_SPREAD * row.number("ns_min");
    for row in rows.iter().filter(|row| settled(row)) {
        let (tokens, ns) = (row.number("tokens"), row.number("ns_min"));
        if row.text("codec") == CODECS.split(',').next().unwrap_or_default() {
            f16.points.push((tokens, ns * row.number("ratio_to_f16")));
        }
        match series.iter_mut().find(|series| series.name == row.text("codec")) {
            Some(series) => series.points.push((tokens, ns)),
            None => series.push(Series {
                name: row.text("codec").to_owned(),
                look: Look::Both,
                points: vec![(tokens, ns)],
                labels: Vec::new(),
                colour: [0, 1, 2, 4][series.len() % 4],
            }),
        }
    }
    // Key and value have 128 coordinates of two bytes each.
    let limit = 512.0 / answer.all().number("read_gb_per_s");
    let reading = f16.points.iter().map(|point| (point.0, limit)).collect();
    series.insert(0, f16);
    series.push(Series {
        name: "reading the bytes of f16 from memory, nothing else".to_owned(),
        look: Look::Dashed,
        points: reading,
        labels: Vec::new(),
        colour: 7,
    });
    let chart = Chart {
        label: "Nanoseconds of attention for each cached token against the tokens in the cache, four query heads, one thread".to_owned(),
        x: Axis { name: "tokens in the cache", log: true, label: |tokens| format!("{:.0}k", tokens / 1024.0) },
        y: Axis { name: "ns a token", log: false, label: |ns| format!("{ns:.0}") },
        series: &series,
    };
    let cells = rows.iter().map(|row| {
        let time = |text: String| if settled(row) { text } else { withheld() };
        vec![
            row.text("codec").to_owned(),
            grouped(row.count("tokens")),
            time(format!("{:.2}", row.number("ns_min"))),
            format!("{:.2}", row.number("ns_median") / row.number("ns_min")),
            time(format!("{:.1}", row.number("gb_per_s"))),
            time(format!("{:.2}", row.number("ratio_to_f16"))),
        ]
    });
    let head = ["codec", "tokens", "ns a token", "spread", "GB/s", "times f16"];
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
        tables: vec![Table::new("Every point as a table", &head, cells.collect())],
        commands: vec![answer.command.clone()],
        ..Section::default()
    }])
}
