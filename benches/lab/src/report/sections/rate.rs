//! Error against bits, with Shannon's line.

use tqkv_cli::error::CliError;

use super::super::chart::{Axis, Chart, Look, Series};
use super::{FAMILIES, Section, Table, Wanted, digits, family};

/// Limit of the plot in bits per value. Yardsticks beyond it have a negligible error.
const MOST_BITS: f64 = 9.0;

pub(super) fn sections(wanted: &Wanted<'_>) -> Result<Vec<Section>, CliError> {
    let mut rows = wanted.rates.rows("codecs");
    rows.sort_by(|a, b| a.number("bits_per_value").total_cmp(&b.number("bits_per_value")));
    let shannon = |bits: f64| 2f64.powf(-2.0 * bits);
    let mut series: Vec<_> = (0..FAMILIES)
        .map(|number| Series {
            name: String::new(),
            look: Look::Points,
            points: Vec::new(),
            labels: Vec::new(),
            colour: number,
        })
        .collect();
    for row in rows.iter().filter(|row| row.number("bits_per_value") <= MOST_BITS) {
        let codec = row.text("codec");
        let (number, name) = family(codec);
        let series = &mut series[number];
        series.name = name.to_owned();
        series.points.push((row.number("bits_per_value"), row.number("relative_mse")));
        series.labels.push(codec.to_owned());
    }
    series.retain(|series| !series.points.is_empty());
    let bits = (4..=36).map(|quarter| f64::from(quarter) / 4.0);
    series.push(Series {
        name: "Shannon's bound for Gaussian values".to_owned(),
        look: Look::Dashed,
        points: bits.map(|bits| (bits, shannon(bits))).collect(),
        labels: Vec::new(),
        colour: 7,
    });
    let chart = Chart {
        label: "Squared error of random directions against bits a value, every codec, and the least error that any code can have"
            .to_owned(),
        x: Axis { name: "bits a value, scales included", log: false, label: |bits| format!("{bits:.0}") },
        y: Axis { name: "squared error / squared norm", log: true, label: |error| power(*error) },
        series: &series,
    };
    let above = |codec: &str| {
        let row = rows.iter().find(|row| row.text("codec") == codec);
        row.map_or(f64::NAN, |row| row.number("bits_per_value") + row.number("relative_mse").log2() / 2.0)
    };
    let cells = rows.iter().map(|row| {
        let (bits, error) = (row.number("bits_per_value"), row.number("relative_mse"));
        vec![
            row.text("codec").to_owned(),
            row.count("bytes_per_vector").to_string(),
            format!("{bits:.3}"),
            digits(error),
            // An error of 2^-2R takes R bits.
            format!("{:.2}", bits + error.log2() / 2.0),
            format!("{:.5}", row.number("mean_cosine")),
            format!("{:.5}", row.number("dot_slope")),
            digits(row.number("dot_error")),
        ]
    });
    let head =
        ["codec", "bytes (D = 128)", "bits", "error", "bits above Shannon", "cosine", "slope", "dot error"];
    Ok(vec![Section {
        title: "Error against bits",
        lead: vec![format!(
            "Every codec on random directions of 128 coordinates, the scale chosen for least error. No code can lie below the dashed \
             line. s4 is {:.2} bits a value above it, and t4, a trellis of the same bytes, whose codes are paths in place of single \
             coordinates, {:.2}; an eighth of a bit of that is the scale.",
            above("s4"),
            above("t4")
        )],
        figures: vec![chart.figure()?],
        tables: vec![Table::new("Every codec as a table", &head, cells.collect())],
        commands: vec![wanted.rates.command.clone()],
        ..Section::default()
    }])
}

/// Powers of ten in the usual notation.
pub(super) fn power(value: f64) -> String {
    let exponent = value.log10();
    if (exponent - exponent.round()).abs() < 1e-6 && exponent < -2.5 {
        return format!("1e{exponent:.0}");
    }
    if value >= 0.01 { format!("{value}") } else { format!("{value:.0e}") }
}
