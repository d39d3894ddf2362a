//! Error against bits, with Shannon's line.

use tqkv_cli::error::CliError;

use super::super::chart::{Axis, Chart, Look, Series};
use super::super::source::Row;
use super::{Section, Table, Wanted, by_family, digits};

/// Limit of the plot in bits per value. Yardsticks beyond it have a negligible error.
const MOST_BITS: f64 = 9.0;

pub(super) fn sections(wanted: &Wanted<'_>) -> Result<Vec<Section>, CliError> {
    let mut rows = wanted.rates.rows("codecs");
    rows.sort_by(|a, b| a.number("bits_per_value").total_cmp(&b.number("bits_per_value")));
    let chart = Chart {
        label: "Squared error of random directions against bits per value, every codec, and the least error that any code can have"
            .to_owned(),
        x: Axis { name: "bits per value, scales included", log: false, label: |bits| format!("{bits:.0}") },
        y: Axis { name: "squared error / squared norm", log: true, label: |error| power(*error) },
        series: &series(&rows),
    };
    let above = |codec: &str| {
        let row = rows.iter().find(|row| row.text("codec") == codec);
        row.map_or(f64::NAN, bits_above_shannon)
    };
    Ok(vec![Section {
        title: "Error against bits",
        lead: vec![format!(
            "Every codec on random directions of 128 coordinates, the scale chosen for least error. No code can lie below the dashed \
             line. s4 is {:.2} bits per value above it, and t4, a trellis of the same bytes, whose codes are paths in place of single \
             coordinates, {:.2}; an eighth of a bit of that is the scale.",
            above("s4"),
            above("t4")
        )],
        figures: vec![chart.figure()?],
        tables: vec![table(&rows)],
        commands: vec![wanted.rates.command.clone()],
        ..Section::default()
    }])
}

/// An error of 2^-2R takes R bits.
fn bits_above_shannon(row: &Row<'_>) -> f64 {
    row.number("bits_per_value") + row.number("relative_mse").log2() / 2.0
}

/// The codecs by their families, and Shannon's bound.
fn series(rows: &[Row<'_>]) -> Vec<Series> {
    let drawn = rows.iter().filter(|row| row.number("bits_per_value") <= MOST_BITS);
    let drawn: Vec<_> = drawn.copied().collect();
    let mut series = by_family(&drawn, |row| (row.number("bits_per_value"), row.number("relative_mse")));
    let bits = (4..=36).map(|quarter| f64::from(quarter) / 4.0);
    let bound = bits.map(|bits| (bits, 2f64.powf(-2.0 * bits))).collect();
    series.push(Series::new("Shannon's bound for Gaussian values", Look::Dashed, bound, 7));
    series
}

fn table(rows: &[Row<'_>]) -> Table {
    let cells = rows.iter().map(|row| {
        vec![
            row.text("codec").to_owned(),
            row.count("bytes_per_vector").to_string(),
            format!("{:.3}", row.number("bits_per_value")),
            digits(row.number("relative_mse")),
            format!("{:.2}", bits_above_shannon(row)),
            format!("{:.5}", row.number("mean_cosine")),
            format!("{:.5}", row.number("dot_slope")),
            digits(row.number("dot_error")),
        ]
    });
    let head =
        ["codec", "bytes (D = 128)", "bits", "error", "bits above Shannon", "cosine", "slope", "dot error"];
    Table::new("Every codec as a table", &head, cells.collect())
}

/// Powers of ten in the usual notation.
pub(super) fn power(value: f64) -> String {
    let exponent = value.log10();
    if (exponent - exponent.round()).abs() < 1e-6 && exponent < -2.5 {
        return format!("1e{exponent:.0}");
    }
    if value >= 0.01 { format!("{value}") } else { format!("{value:.0e}") }
}
