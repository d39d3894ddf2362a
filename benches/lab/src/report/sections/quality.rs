//! Perplexity and divergence of every codec against bytes per token.

use tqkv_cli::error::CliError;
use tqkv_cli::output::grouped;

use super::super::chart::{Axis, Chart, Series};
use super::rate::power;
use super::{Section, Table, Wanted, by_family, digits, pair, percent};

/// Moves points far above the others to the upper edge, with their values as names. Otherwise one codec of
/// 1 bit would press all others onto the axis.
fn clip(series: &mut [Series]) {
    let mut values: Vec<_> = series.iter().flat_map(|series| &series.points).map(|point| point.1).collect();
    values.sort_by(f64::total_cmp);
    let edge = 2.0 * values.get(values.len() * 3 / 4).copied().unwrap_or(0.0);
    for series in series {
        for (point, label) in series.points.iter_mut().zip(&mut series.labels) {
            if edge > 0.0 && point.1 > edge {
                *label = format!("{label}: {:.0} \u{2191}", point.1);
                point.1 = edge;
            }
        }
    }
}

pub(super) fn sections(wanted: &Wanted<'_>) -> Result<Vec<Section>, CliError> {
    let mut rows = wanted.codecs.rows("results");
    rows.sort_by(|a, b| b.number("cache_bytes_per_token").total_cmp(&a.number("cache_bytes_per_token")));
    let coded: Vec<_> = rows.iter().copied().filter(|row| row.number("kl_to_f16") > 0.0).collect();
    let f16 = rows
        .iter()
        .find(|row| row.number("kl_to_f16") == 0.0)
        .map_or(f64::NAN, |row| row.number("perplexity"));
    let bytes = Axis { name: "bytes per token", log: true, label: |bytes| grouped(bytes.round() as u64) };
    let kl = by_family(&coded, |row| (row.number("cache_bytes_per_token"), row.number("kl_to_f16")));
    let kl = Chart {
        label:
            "KL divergence from the predictions with an f16 cache against bytes per token, every token coded"
                .to_owned(),
        x: bytes,
        y: Axis { name: "KL to f16, nats", log: true, label: |kl| power(*kl) },
        series: &kl,
    };
    let mut perplexity = by_family(&coded, |row| {
        (row.number("cache_bytes_per_token"), 100.0 * (row.number("perplexity") / f16 - 1.0))
    });
    clip(&mut perplexity);
    let perplexity = Chart {
        label: "Perplexity above that of f16, in percent, against bytes per token, every token coded"
            .to_owned(),
        x: bytes,
        y: Axis { name: "perplexity above f16, %", log: false, label: |more| format!("{more:.0}") },
        series: &perplexity,
    };
    let cells = rows.iter().map(|row| {
        vec![
            pair(row.text("kv")).to_owned(),
            grouped(row.number("cache_bytes_per_token").round() as u64),
            format!("{:.2}", row.number("bits_per_value")),
            format!("{:.4}", row.number("perplexity")),
            digits(row.number("kl_to_f16")),
            digits(row.number("kl_p99")),
            digits(row.number("kl_p999")),
            percent(row.number("top1_agreement")),
        ]
    });
    let head = ["K and V", "bytes/token", "bits", "perplexity", "KL", "KL 99 %", "KL 99.9 %", "top-1"];
    Ok(vec![Section {
        title: "Quality against bytes",
        lead: vec![
            "The model predicts held-out text with every token's keys and values in the codec: no f16 window hides what it costs. \
             Down and to the left is better."
                .to_owned(),
        ],
        figures: vec![kl.figure()?, perplexity.figure()?],
        tables: vec![Table::new("Every codec as a table", &head, cells.collect())],
        commands: vec![wanted.codecs.command.clone()],
        ..Section::default()
    }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::chart::Look;

    #[test]
    fn one_codec_does_not_ruin_the_scale() {
        let points = vec![(1.0, 0.5), (2.0, 1.0), (3.0, 2.0), (4.0, 900.0)];
        let labels = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let mut series = [Series { name: String::new(), look: Look::Points, points, labels, colour: 0 }];
        clip(&mut series);
        assert_eq!(series[0].points[..3], [(1.0, 0.5), (2.0, 1.0), (3.0, 2.0)]);
        // The third quarter of four values ends at the largest, so nothing is far above it.
        assert_eq!(series[0].points[3].1, 900.0);
        series[0].points.insert(0, (0.5, 0.25));
        series[0].labels.insert(0, "e".to_owned());
        clip(&mut series);
        assert_eq!(series[0].points[4], (4.0, 4.0));
        assert_eq!(series[0].labels[4], "d: 900 \u{2191}");
    }
}
