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

/// The data of the sections: the source of commands, and answers that several sections share.
pub(crate) struct Wanted<'a> {
    pub(crate) source: &'a Source,
    /// Output of `tqkv demo`: presets and their texts.
    pub(crate) demo: Answer,
    /// Output of `tqkv eval` with every codec.
    pub(crate) codecs: Answer,
    /// Output of `tqkv eval` with s3, head by head.
    pub(crate) heads: Answer,
    /// Output of `tqkv-lab stats` with every codec, at the scale of least error.
    pub(crate) rates: Answer,
    /// Output of `tqkv-lab stats` with every codec, at the scale that keeps dot products unbiased.
    pub(crate) unbiased: Answer,
}

/// Makes one or more sections.
type Make = fn(&Wanted<'_>) -> Result<Vec<Section>, CliError>;

/// All sections by name, for progress.
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

/// Reference formats that are measured on the model too: formats with a bit of QJL, and codes of the same law
/// from other projects.
const OTHERS: [&str; 7] = ["p2", "p3", "p4", "tq3", "tq4", "turbo3", "turbo4"];

impl<'a> Wanted<'a> {
    /// Runs the commands that several sections share.
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

/// A share as percent.
fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// Four decimals; two in exponent notation below a thousandth.
fn digits(value: f64) -> String {
    if value == 0.0 || value.abs() >= 1e-3 { format!("{value:.4}") } else { format!("{value:.2e}") }
}

/// One codec name if both sides are equal, otherwise the pair.
fn pair(kv: &str) -> &str {
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

/// Number of families.
const FAMILIES: usize = 5;
