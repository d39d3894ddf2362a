//! The plot of `tqkv-lab sweep`: time of attention against the length of the cache.

use std::io::Write;
use std::path::Path;

use tqkv_benches::{Data, Outcome, Report};
use tqkv_cli::error::CliError;
use tqkv_cli::target::Target;
use tqkv_core::CodecId;

use crate::report::chart::{Axis, Chart, Look, Series};

/// Lengths in tokens of the caches, which have one layer and one KV head.
pub(super) const LENGTHS: [usize; 11] = {
    let (mut lengths, mut i) = ([1024; 11], 0);
    while i < lengths.len() {
        lengths[i] <<= i;
        i += 1;
    }
    lengths
};

/// Plots nanoseconds per token against tokens, compared with the time to read the bytes of f16.
pub(super) fn plot(report: &Report, path: &Path, mut file: Target) -> Result<(), CliError> {
    let chart = Chart {
        label: "Attention of one token over a cache: ns for each cached token".to_owned(),
        x: Axis {
            name: "tokens in the cache",
            log: true,
            label: |tokens| format!("{:.0}k", tokens / 1024.0),
        },
        y: Axis { name: "ns per cached token", log: false, label: |ns| format!("{ns:.1}") },
        series: &lines(report),
    };
    let svg = chart.figure()?.alone();
    let written = file.write_all(svg.as_bytes()).and_then(|()| file.commit());
    written.map(drop).map_err(|error| CliError::io(path, &error))
}

fn lines(report: &Report) -> Vec<Series> {
    let mut lines: Vec<Series> = Vec::new();
    let mut add = |name: String, look, outcome: &Outcome, ns: f64| {
        let Data::Tokens(tokens) = outcome.case.data else { return };
        let (point, colour) = ((tokens as f64, ns), lines.len());
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) if line.points.contains(&point) => {}
            Some(line) => line.points.push(point),
            None => lines.push(Series::new(&name, look, vec![point], colour)),
        }
    };
    for outcome in &report.results {
        let case = &outcome.case;
        let (heads, level) = (case.query_heads, case.level.name().name());
        let shape = format!("{heads} head{}, D = {}, {level}", if heads == 1 { "" } else { "s" }, case.dim);
        if case.codec != CodecId::F16 {
            add(format!("f16, {shape}"), Look::Both, outcome, outcome.ns_min * outcome.ratio_to_f16);
        }
        add(format!("{}, {shape}", case.codec.name()), Look::Both, outcome, outcome.ns_min);
        let read = report.reads.iter().find(|read| read.0 == case.threads).map_or(f64::NAN, |read| read.1);
        let ns = 4.0 * case.dim as f64 / read;
        add(format!("reading f16, D = {}", case.dim), Look::Dashed, outcome, ns);
    }
    lines
}
