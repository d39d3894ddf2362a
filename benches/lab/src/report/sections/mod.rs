//! The sections of a report, in the order of the page.

mod delta;
mod experiments;
mod heads;
mod known;
mod life;
mod memory;
mod outlier;
mod overview;
mod published;
mod quality;
mod rate;
mod speed;

use tqkv_cli::error::CliError;
use tqkv_core::CodecId;

use super::source::{Answer, Source};
use super::{Section, Table};

/// What sections are made of: commands, and the data that several of them show.
pub(crate) struct Wanted<'a> {
    pub(crate) source: &'a Source,
    /// Of `tqkv demo`: presets, and the texts that they write.
    pub(crate) demo: Answer,
    /// Of `tqkv eval` with every codec.
    pub(crate) codecs: Answer,
    /// Of `tqkv eval` with s3, head by head.
    pub(crate) heads: Answer,
    /// Of `tqkv-lab stats` with every codec, at the least error.
    pub(crate) rates: Answer,
    /// Of `tqkv-lab stats` with every codec, at the scale that leaves dot products unbiased.
    pub(crate) unbiased: Answer,
}

/// Makes a section, or several.
type Make = fn(&Wanted<'_>) -> Result<Vec<Section>, CliError>;

/// All of them by name, for a line of progress.
pub(crate) const SECTIONS: [(&str, Make); 10] = [
    ("what it saves", overview::sections),
    ("error against bits", rate::sections),
    ("quality against bytes", quality::sections),
    ("the life of a token", life::sections),
    ("speed against length", speed::sections),
    ("memory against context", memory::sections),
    ("layers and heads", heads::sections),
    ("an outlier before and after", outlier::sections),
    ("experiments", experiments::sections),
    ("published figures", published::sections),
];

/// Formats of the reference that are judged on the model too: those with a bit of QJL, and codes of the same
/// law by others.
const OTHERS: [&str; 7] = ["p2", "p3", "p4", "tq3", "tq4", "turbo3", "turbo4"];

impl<'a> Wanted<'a> {
    /// Runs what several sections show.
    pub(crate) fn new(source: &'a Source) -> Result<Self, CliError> {
        let dims = source.dims()?;
        let fits = |codec: &&CodecId| dims.iter().all(|&dim| codec.block_bytes(dim).is_some());
        let names = CodecId::ALL.iter().filter(fits).map(|codec| codec.name()).filter(|name| *name != "f16");
        let each = names.chain(OTHERS).map(|name| format!(" --kv {name}")).collect::<String>();
        let (windows, tokens) = (source.windows(), source.full_or_quick(160, 24));
        let random = source.full_or_quick(10_000, 400);
        Ok(Self {
            source,
            demo: source.run_model(&format!("tqkv demo --tokens {tokens} {windows}"))?,
            codecs: source.run_model(&format!("tqkv eval --hot 0 --sinks 0 {windows}{each}"))?,
            heads: source
                .run_model(&format!("tqkv eval --hot 0 --sinks 0 {windows} --layers --attention --kv s3"))?,
            rates: source.run(&format!("tqkv-lab stats --random {random} --scale-mode mmse"))?,
            unbiased: source.run(&format!("tqkv-lab stats --random {random} --scale-mode unbiased"))?,
        })
    }
}

/// A share with a sign, as percent.
fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// Four digits that count.
fn digits(value: f64) -> String {
    if value == 0.0 || value.abs() >= 1e-3 { format!("{value:.4}") } else { format!("{value:.2e}") }
}

/// One codec name for both, or the pair.
fn pair(kv: &str) -> &str {
    match kv.split_once(',') {
        Some((k, v)) if k == v => k,
        _ => kv,
    }
}

/// The family of a codec: scalar, nested, trellis, or another layout; with its number, which is its colour.
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

/// How many families there are.
const FAMILIES: usize = 5;
