//! Experiments of other projects, repeated.

use tqkv_cli::error::CliError;

use super::super::chart::{Axis, Chart};
use super::super::source::{Answer, Row};
use super::{Section, Table, Wanted, by_family, delta, digits, pair, percent};

/// A code of b bits, and one of b - 1 bits with a bit of QJL. Both have the same bytes except the norm of the
/// second.
const QJL: [(&str, &str); 3] = [("s4", "p4"), ("s3", "p3"), ("s2", "p2")];

pub(super) fn sections(wanted: &Wanted<'_>) -> Result<Vec<Section>, CliError> {
    Ok(vec![qjl(wanted), cliff(wanted)?, eight_bits(wanted)?, delta::section(wanted)?])
}

/// The figures of a codec on random vectors, and on the model.
fn both<'a>(wanted: &'a Wanted<'_>, rates: &'a Answer, codec: &str) -> Option<(Row<'a>, Row<'a>)> {
    let rate = rates.rows("codecs").into_iter().find(|row| row.text("codec") == codec)?;
    let kl = wanted.codecs.rows("results").into_iter().find(|row| pair(row.text("kv")) == codec)?;
    Some((rate, kl))
}

/// Rows of the known codecs among `codecs`, with the figures in `rates`.
fn rows<'a>(wanted: &Wanted<'_>, rates: &Answer, codecs: impl Iterator<Item = &'a str>) -> Vec<Vec<String>> {
    let row = |codec: &str| {
        let (rate, kl) = both(wanted, rates, codec)?;
        Some(vec![
            codec.to_owned(),
            rate.count("bytes_per_vector").to_string(),
            digits(rate.number("relative_mse")),
            format!("{:.5}", rate.number("dot_slope")),
            digits(rate.number("dot_error")),
            digits(kl.number("kl_to_f16")),
            percent(kl.number("top1_agreement")),
        ])
    };
    codecs.filter_map(row).collect()
}

const HEAD: [&str; 7] = ["codec", "bytes (D = 128)", "error", "slope of dots", "dot error", "KL", "top-1"];

fn qjl(wanted: &Wanted<'_>) -> Section {
    let rows = rows(wanted, &wanted.unbiased, QJL.iter().flat_map(|(scalar, sketch)| [*scalar, *sketch]));
    Section {
        title: "A bit of QJL, or a bit more of code",
        lead: vec![
            "The paper's second algorithm spends one bit a coordinate on the signs of random projections of what the first left, and so \
             has unbiased dot products. A scalar code of as many bits, with the scale that makes it unbiased, has the smaller error \
             in both. (Error of vectors and of dot products of random directions; KL on the model.)"
                .to_owned(),
        ],
        tables: vec![Table::new("The same bits, spent in two ways", &HEAD, rows).open()],
        commands: vec![wanted.unbiased.command.clone(), wanted.codecs.command.clone()],
        ..Section::default()
    }
}

fn cliff(wanted: &Wanted<'_>) -> Result<Section, CliError> {
    let rows = wanted.codecs.rows("results");
    let coded: Vec<_> = rows.into_iter().filter(|row| row.number("bits_per_value") < 5.0).collect();
    let mut series =
        by_family(&coded, |row| (row.number("bits_per_value"), 100.0 * row.number("top1_agreement")));
    for series in &mut series {
        let mut order: Vec<_> = series.points.drain(..).zip(series.labels.drain(..)).collect();
        order.sort_by(|a, b| a.0.0.total_cmp(&b.0.0));
        (series.points, series.labels) = order.into_iter().unzip();
    }
    let chart = Chart {
        label: "Share of positions with the same likeliest token as under f16 against bits per value"
            .to_owned(),
        x: Axis { name: "bits per value", log: false, label: |bits| format!("{bits:.1}") },
        y: Axis { name: "same likeliest token, %", log: false, label: |share| format!("{share:.0}") },
        series: &series,
    };
    Ok(Section {
        title: "A cliff at 1.5 bits?",
        lead: vec![
            "A report says that quality falls off a cliff near 1.5 bits per value. Every codec of this program below five bits, on the \
             model: the fall gets steeper with every bit that is taken, as an error that grows fourfold with each does; whether that \
             is a cliff, the plot shows. Codes, not only bits, decide how far one can go."
                .to_owned(),
        ],
        figures: vec![chart.figure()?],
        commands: vec![wanted.codecs.command.clone()],
        ..Section::default()
    })
}

fn eight_bits(wanted: &Wanted<'_>) -> Result<Section, CliError> {
    let codecs = ["f8", "i8", "q8_0"];
    let random = wanted.source.full_or_quick(4000, 400);
    let latent =
        wanted.source.run(&format!("tqkv-lab stats --dim 512 --random {random} --codec f8,i8,s4,t4"))?;
    let cells = latent.rows("codecs").into_iter().map(|row| {
        vec![
            row.text("codec").to_owned(),
            row.count("bytes_per_vector").to_string(),
            digits(row.number("relative_mse")),
            format!("{:.5}", row.number("dot_slope")),
            digits(row.number("dot_error")),
        ]
    });
    Ok(Section {
        title: "FP8 at equal bytes",
        lead: vec![
            "An 8-bit float spends bits on a range that rotated values do not have: at the bytes of i8 its error is more than ten times \
             as large, on heads of 128 and on latent vectors of 512. With a scale a vector, as here, it is sound on both; a report of \
             an FP8 cache that broke on latent models lays that to a missing scale."
                .to_owned(),
        ],
        tables: vec![
            Table::new("Heads of 128", &HEAD, rows(wanted, &wanted.rates, codecs.into_iter())).open(),
            Table::new("Latent vectors of 512", &["codec", "bytes", "error", "slope of dots", "dot error"], cells.collect()).open(),
        ],
        commands: vec![wanted.rates.command.clone(), latent.command.clone()],
        ..Section::default()
    })
}
