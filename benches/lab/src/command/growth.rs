//! The plot of `tqkv-lab sweep`: time of attention against the length of the cache.

use std::io::Write;
use std::path::Path;

use plotters::prelude::*;
use tqkv_benches::{Data, Outcome, Report};
use tqkv_cli::error::CliError;
use tqkv_cli::target::Target;
use tqkv_core::CodecId;

/// Lengths in tokens of the caches, which have one layer and one KV head.
pub(super) const LENGTHS: [usize; 11] = {
    let (mut lengths, mut i) = ([1024; 11], 0);
    while i < lengths.len() {
        lengths[i] <<= i;
        i += 1;
    }
    lengths
};

/// Width and height of the plot in pixels; it scales.
const SIZE: (u32, u32) = (960, 540);

/// A line of the plot.
struct Curve {
    name: String,
    /// Tokens, and nanoseconds per token.
    points: Vec<(f64, f64)>,
}

/// Plots nanoseconds per token against tokens, beside the time to read the bytes of f16.
pub(super) fn plot(report: &Report, path: &Path, mut file: Target) -> Result<(), CliError> {
    let mut svg = String::new();
    draw(&mut svg, &curves(report)).map_err(|error| CliError::failure(format_args!("the plot: {error}")))?;
    let written = file.write_all(svg.as_bytes()).and_then(|()| file.commit());
    written.map(drop).map_err(|error| CliError::io(path, &error))
}

fn curves(report: &Report) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    let mut add = |name: String, outcome: &Outcome, ns: f64| {
        let Data::Tokens(tokens) = outcome.case.data else { return };
        let point = (tokens as f64, ns);
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) if curve.points.contains(&point) => {}
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve { name, points: vec![point] }),
        }
    };
    for outcome in &report.results {
        let case = &outcome.case;
        let (heads, level) = (case.query_heads, case.level.name().name());
        let shape = format!("{heads} head{}, D = {}, {level}", if heads == 1 { "" } else { "s" }, case.dim);
        if case.codec != CodecId::F16 {
            add(format!("f16, {shape}"), outcome, outcome.ns_min * outcome.ratio_to_f16);
        }
        add(format!("{}, {shape}", case.codec.name()), outcome, outcome.ns_min);
        let read = report.reads.iter().find(|read| read.0 == case.threads).map_or(f64::NAN, |read| read.1);
        add(format!("reading f16, D = {}", case.dim), outcome, 4.0 * case.dim as f64 / read);
    }
    curves
}

fn draw(svg: &mut String, curves: &[Curve]) -> Result<(), String> {
    let highest = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1).fold(0.0, f64::max);
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(text)?;
    let (first, last) = (LENGTHS[0] as f64, LENGTHS[LENGTHS.len() - 1] as f64);
    let mut chart = ChartBuilder::on(&area)
        .caption("Attention of one token over a cache: ns for each cached token", ("sans-serif", 20))
        .margin(12)
        .margin_right(32)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d((first..last).log_scale().base(2.0), 0.0..highest * 1.1)
        .map_err(text)?;
    chart
        .configure_mesh()
        .x_desc("tokens in the cache")
        .y_desc("ns a token")
        .x_label_formatter(&|tokens| format!("{}k", tokens / 1024.0))
        .light_line_style(WHITE)
        .draw()
        .map_err(text)?;
    for (i, curve) in curves.iter().enumerate() {
        let color = Palette99::pick(i).to_rgba();
        let line = LineSeries::new(curve.points.iter().copied(), color.stroke_width(2)).point_size(3);
        let name = curve.name.as_str();
        let key = move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2));
        chart.draw_series(line).map_err(text)?.label(name).legend(key);
    }
    let mut labels = chart.configure_series_labels();
    labels.position(SeriesLabelPosition::UpperLeft).border_style(BLACK).background_style(WHITE.mix(0.8));
    labels.draw().map_err(text)?;
    area.present().map_err(text)
}

/// The error as text, without its borrows.
fn text(error: impl core::fmt::Display) -> String {
    error.to_string()
}
