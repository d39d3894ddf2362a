//! The options of the check.

use super::shape::Shape;
use crate::unstable::attention::Cut;
use std::path::PathBuf;
use tqkv_core::CodecId;

/// Selects checks and measurements, and their extent.
#[derive(Clone, Debug, clap::Args)]
pub struct CheckArgs {
    /// Compare codes and weights with the portable codec, and estimates of residuals with f64; without this,
    /// --attend and --speed, all three run
    #[arg(long)]
    pub(crate) codes: bool,
    /// Compare attention with f64
    #[arg(long)]
    pub(crate) attend: bool,
    /// Measure times
    #[arg(long)]
    pub(crate) speed: bool,
    /// Shapes to measure: sequences, tokens per sequence, KV heads, query heads per KV head, head dim. More
    /// sequences of other lengths come before, as in 63x1024+1x32768x8x4x128. If f16 rows do not fit half of
    /// the memory, sequences are halved until they fit [default: 64 sequences of 32768 tokens in several
    /// forms, one sequence, and sequences of unlike lengths]
    #[arg(long = "shape", value_name = "SxTxHxGxD", value_delimiter = ',')]
    shapes: Vec<Shape>,
    /// Use only these codecs [default: all that have kernels]
    #[arg(long = "codec", value_name = "CODEC", value_delimiter = ',', value_parser = codec)]
    codecs: Vec<CodecId>,
    /// Seconds per measurement
    #[arg(long, value_name = "SECONDS", default_value = "0.3", value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Cut attention over codes into parts of this many pages of 64 tokens, in blocks of this many warps
    /// [default: as a cache does]
    #[arg(long, value_name = "PAGESxWARPS", value_parser = cut)]
    pub(crate) cut: Option<Cut>,
    /// Vectors to encode per codec and head dim
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) vectors: usize,
    /// Use the kernels of this file instead of the program's own. The file must be a build of the same
    /// source; its kernels are trusted like the program itself
    #[arg(long, value_name = "FILE")]
    pub(crate) ptx: Option<PathBuf>,
    /// Number of the GPU, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) gpu: usize,
}

impl CheckArgs {
    /// Returns true if the part is selected, or if no part is.
    pub(crate) fn does(&self, part: bool) -> bool {
        part || !(self.codes || self.attend || self.speed)
    }

    pub(crate) fn codecs(&self) -> Vec<CodecId> {
        if self.codecs.is_empty() { crate::CODECS.to_vec() } else { self.codecs.clone() }
    }

    pub(crate) fn shapes(&self) -> Vec<Shape> {
        if !self.shapes.is_empty() {
            return self.shapes.clone();
        }
        let shape = |lengths, head_dim, group| Shape { lengths, num_kv_heads: 8, group, head_dim };
        let batch = |(head_dim, group)| shape(vec![32_768; 64], head_dim, group);
        let mut shapes = [(128, 1), (128, 2), (128, 4), (128, 6), (128, 8), (64, 1), (256, 1), (256, 8)]
            .map(batch)
            .to_vec();
        let unlike = [vec![1024; 63], vec![32_768]].concat();
        shapes.extend([vec![8192; 16], vec![32_768], unlike].map(|lengths| shape(lengths, 128, 4)));
        shapes
    }
}

fn codec(name: &str) -> Result<CodecId, String> {
    let accepted = crate::CODECS;
    accepted.into_iter().find(|id| id.name() == name).ok_or_else(|| {
        format!("no kernels for codec {name}; expected {}", accepted.map(CodecId::name).join(", "))
    })
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=600.0).contains(seconds));
    seconds.ok_or_else(|| "expected 0.001 to 600".to_owned())
}

fn cut(text: &str) -> Result<Cut, String> {
    let numbers =
        text.split_once('x').and_then(|(pages, warps)| Some((pages.parse().ok()?, warps.parse().ok()?)));
    let (pages, warps) =
        numbers.ok_or_else(|| "two numbers with x between them are accepted, such as 32x4".to_owned())?;
    Cut::new(pages, warps).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_and_codecs_are_read_or_what_is_accepted_is_said() {
        assert_eq!(cut("32x4"), Ok(Cut::new(32, 4).unwrap()));
        assert!(cut("32").unwrap_err().contains("such as 32x4"));
        assert!(cut("6x3").unwrap_err().contains("1, 2 or 4 warps"));
        assert_eq!(codec("s4"), Ok(CodecId::S4));
        assert!(codec("f16").unwrap_err().contains("expected s2, s3"));
        assert!(seconds("0").is_err() && seconds("nan").is_err() && seconds("2.5") == Ok(2.5));
    }
}
