//! The batches that are measured: lengths of sequences, and heads.

use crate::unstable::MAX_CHUNK;
use crate::{GpuError, GpuSpec};
use std::fmt;
use std::str::FromStr;
use tqkv_core::CodecId;
use tqkv_gpu_kernels::page;

/// Tokens of a page.
pub(crate) const SLOTS: usize = page::SLOTS as usize;

/// A batch to attend over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Tokens of each sequence.
    pub(crate) lengths: Vec<usize>,
    /// Number of KV heads.
    pub(crate) num_kv_heads: usize,
    /// Query heads per KV head.
    pub(crate) group: usize,
    /// Coordinates of a head vector.
    pub(crate) head_dim: usize,
}

impl Shape {
    /// Number of sequences.
    pub(crate) fn sequences(&self) -> usize {
        self.lengths.len()
    }

    /// Tokens of the longest sequence.
    pub(crate) fn longest(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0)
    }

    /// Tokens of all sequences.
    pub(crate) fn tokens(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// The sequences that have more than `tokens` tokens, each `times` times, in turn.
    pub(crate) fn longer_than(&self, tokens: usize, times: usize) -> Vec<usize> {
        let longer: Vec<usize> = (0..self.sequences()).filter(|&i| self.lengths[i] > tokens).collect();
        longer.repeat(times)
    }

    /// The same without the first half of the sequences.
    pub(crate) fn halved(mut self) -> Self {
        self.lengths.drain(..self.lengths.len() / 2);
        self
    }

    /// Checks that the shape can be measured.
    ///
    /// # Errors
    /// [`GpuError::BadSpec`] names what is wrong and what is accepted.
    fn check(&self) -> Result<(), GpuError> {
        self.spec(1, CodecId::S4, CodecId::S4).check()?;
        let refuse = |message: String| Err(GpuError::BadSpec(message));
        if let Some(tokens) =
            self.lengths.iter().find(|&tokens| *tokens == 0 || !tokens.is_multiple_of(SLOTS))
        {
            return refuse(format!("{tokens} tokens to measure; a multiple of {SLOTS} is accepted"));
        }
        // Each call appends one page of tokens to every sequence.
        let most = MAX_CHUNK / SLOTS;
        if self.sequences() > most {
            return refuse(format!("{} sequences to measure; at most {most}", self.sequences()));
        }
        Ok(())
    }

    /// A cache of codes alone for the shape, with `layers` layers.
    pub(crate) fn spec(&self, layers: usize, key: CodecId, value: CodecId) -> GpuSpec {
        GpuSpec::new(layers, self.num_kv_heads * self.group, self.num_kv_heads, self.head_dim)
            .codecs(key, value)
            .exact(0, 0)
            .sequences(self.sequences(), self.longest())
            .pool_tokens(self.tokens())
    }

    /// Bytes of keys and values at these bits per coordinate, with f16 scales (without scales at 16 bits).
    pub(crate) fn bytes(&self, key_bits: u32, value_bits: u32) -> usize {
        let head = |bits| page::head_bytes(self.head_dim as u32, bits) as usize / SLOTS;
        self.tokens() * self.num_kv_heads * (head(key_bits) + head(value_bits))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, equal) in self.lengths.chunk_by(|a, b| a == b).enumerate() {
            let plus = if index == 0 { "" } else { "+" };
            write!(f, "{plus}{}x{}", equal.len(), equal[0])?;
        }
        write!(f, "x{}x{}x{}", self.num_kv_heads, self.group, self.head_dim)
    }
}

impl FromStr for Shape {
    type Err = String;

    /// Reads `64x32768x8x4x128`, or `63x1024+1x32768x8x4x128` for sequences of unlike lengths.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "five numbers with x between them are accepted, such as 64x32768x8x4x128; sequences of other lengths come before them, as in 63x1024+1x32768x8x4x128".to_owned()
        };
        let numbers = |text: &str| text.split('x').map(str::parse).collect::<Result<Vec<usize>, _>>();
        let (more, last) = text.rsplit_once('+').map_or((None, text), |(more, last)| (Some(more), last));
        let Ok(&[sequences, tokens, num_kv_heads, group, head_dim]) = numbers(last).as_deref() else {
            return Err(wrong());
        };
        let mut lengths = Vec::new();
        for part in more.into_iter().flat_map(|more| more.split('+')) {
            let Ok(&[sequences, tokens]) = numbers(part).as_deref() else { return Err(wrong()) };
            lengths.extend(std::iter::repeat_n(tokens, sequences.min(MAX_CHUNK)));
        }
        lengths.extend(std::iter::repeat_n(tokens, sequences.min(MAX_CHUNK)));
        let shape = Self { lengths, num_kv_heads, group, head_dim };
        shape.check().map_err(|error| error.to_string())?;
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_and_written_or_what_is_accepted_is_said() {
        for text in
            ["1x32768x8x4x128", "64x32768x8x1x64", "63x1024+1x32768x8x4x128", "2x64+3x128+1x64x2x1x256"]
        {
            assert_eq!(text.parse::<Shape>().unwrap().to_string(), text);
        }
        let mixed: Shape = "3x64+1x128x8x4x128".parse().unwrap();
        assert_eq!(mixed.lengths, [64, 64, 64, 128]);
        assert_eq!((mixed.sequences(), mixed.longest(), mixed.tokens()), (4, 128, 320));
        assert_eq!(mixed.bytes(4, 2), 320 * 8 * (66 + 34));
        assert_eq!(mixed.longer_than(64, 2), [3, 3]);
        assert_eq!(mixed.halved().to_string(), "1x64+1x128x8x4x128");
        for (text, expected) in [
            ("64x32768x8x4", "five numbers"),
            ("64x32768x8x4x-1", "five numbers"),
            ("1+64x32768x8x4x128", "five numbers"),
            ("64x32768x8x4x96", "expected 64, 128, 256"),
            ("0x64x1x1x64", "num_sequences is 0"),
            ("1x100x1x1x64", "a multiple of 64"),
            ("1x0+1x64x1x1x64", "a multiple of 64"),
            ("2000x64x1x1x64", "at most 1023"),
            ("1x64x0x1x64", "KV head"),
        ] {
            let error = text.parse::<Shape>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
