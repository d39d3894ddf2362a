//! Data and words that several sections share.

use tqkv_cli::error::CliError;
use tqkv_core::CodecId;

use super::super::chart::{Look, Series};
use super::super::source::{Answer, Row, Source};

/// The data of the sections: commands, and the results that several sections show.
pub(crate) struct Wanted<'a> {
    pub(crate) source: &'a Source,
    /// The answer of `tqkv demo`: presets, and the texts that they write.
    pub(crate) demo: Answer,
    /// The answer of `tqkv eval` with every codec.
    pub(crate) codecs: Answer,
    /// The answer of `tqkv eval` with s3, head by head.
    pub(crate) heads: Answer,
    /// The answer of `tqkv-lab stats` with every codec, at the least error.
    pub(crate) rates: Answer,
    /// The same, at the scale that leaves dot products unbiased.
    pub(crate) unbiased: Answer,
}

/// Formats of the reference that the report also judges on the model. Some have a bit of QJL, some are codes
/// of the same law by other projects, and the last two are what other caches store.
const OTHERS: [&str; 9] = ["p2", "p3", "p4", "tq3", "tq4", "turbo3", "turbo4", "u4", "f8"];

impl<'a> Wanted<'a> {
    /// Runs what several sections show.
    pub(crate) fn new(source: &'a Source) -> Result<Self, CliError> {
        let dims = source.dims()?;
        // Codes of quarters need a map.
        let fits = |codec: &&CodecId| {
            !codec.rotates_quarters() && dims.iter().all(|&dim| codec.block_bytes(dim).is_some())
        };
        let names = CodecId::ALL.iter().filter(fits).map(|codec| codec.name()).filter(|name| *name != "f16");
        let names = names.chain(OTHERS).map(every_token);
        let each = names.map(|name| format!(" --kv {name}")).collect::<String>();
        let (windows, tokens) = (source.windows(), source.full_or_quick(160, 24));
        let random = source.full_or_quick(10_000, 400);
        Ok(Self {
            source,
            demo: source.run_model(&format!("tqkv demo --tokens {tokens} {windows}"))?,
            codecs: source.run_model(&format!("tqkv eval {windows}{each}"))?,
            heads: source
                .run_model(&format!("tqkv eval {windows} --layers --attention --kv {}", every_token("s3")))?,
            rates: source.run(&format!("tqkv-lab stats --random {random} --scale-mode mmse"))?,
            unbiased: source.run(&format!("tqkv-lab stats --random {random} --scale-mode unbiased"))?,
        })
    }
}

/// The word of a cache that encodes every token at once, quoted for a shell. A format of the reference has no
/// cache, and encodes every token anyway.
pub(super) fn every_token(codec: &str) -> String {
    let is_stored = CodecId::ALL.iter().any(|id| id.name() == codec);
    if is_stored { format!("'{codec} hot=0 sinks=0'") } else { codec.to_owned() }
}

/// A share as percent.
pub(super) fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// Four digits that count.
pub(super) fn digits(value: f64) -> String {
    if value == 0.0 || value.abs() >= 1e-3 { format!("{value:.4}") } else { format!("{value:.2e}") }
}

/// One codec name if both sides are equal, otherwise the pair.
pub(super) fn pair(kv: &str) -> &str {
    match kv.split_once(',') {
        Some((k, v)) if k == v => k,
        _ => kv,
    }
}

/// Family of a codec (scalar, nested, trellis, or another layout). Its number selects the colour.
fn family(codec: &str) -> (usize, &'static str) {
    let digits = codec.get(1..2).is_some_and(|c| c.chars().all(|c| c.is_ascii_digit()));
    match codec.chars().next() {
        Some('t') if digits => (0, "t: trellis"),
        Some('s') if digits => (1, "s: scalar, Lloyd-Max"),
        Some('n') if digits => (2, "n: nested"),
        Some('p') if digits => (3, "p: scalar and QJL"),
        _ => (4, "other layouts"),
    }
}

/// Codecs by family, at two of their figures. The rows are of caches or of codecs.
pub(super) fn by_family(rows: &[Row<'_>], point: impl Fn(Row<'_>) -> (f64, f64)) -> Vec<Series> {
    let mut all: Vec<_> =
        (0..FAMILIES).map(|colour| Series::new("", Look::Points, Vec::new(), colour)).collect();
    for row in rows {
        let codec = if row.text("kv").is_empty() { row.text("codec") } else { pair(row.text("kv")) };
        let (number, name) = family(codec);
        all[number].name = name.to_owned();
        all[number].points.push(point(*row));
        all[number].labels.push(codec.to_owned());
    }
    all.retain(|series| !series.points.is_empty());
    all
}

/// How many families there are.
const FAMILIES: usize = 5;
