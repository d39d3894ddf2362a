//! RoPE as data: which coordinates of a key turn, and by how much per position.
//!
//! The storage tier undoes RoPE before keys are coded. A table of frequencies covers every scaling of them. A constant factor
//! of rotated coordinates (the attention scaling of YaRN) stays in the keys, because only the rotation is
//! undone. Kinds whose angles are not position times frequency, such as M-RoPE and dynamic ones, have no table.

/// Which coordinates turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopePairing {
    /// Coordinates that are half of the rotated ones apart, as in Llama.
    Half,
    /// Neighbouring coordinates, as in DeepSeek-V2 and GPT-J.
    Interleaved,
}

/// How positions turn the keys of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// First coordinate that turns.
    pub first: usize,
    /// Which coordinates turn together.
    pub pairs: RopePairing,
    /// Radians per position of each pair.
    pub inv_freq: Vec<f64>,
}

impl Rope {
    /// Turns coordinates `first..first + 2 * inv_freq.len()` of each head. Pair i turns by the angle
    /// `position * inv_freq[i]`.
    pub const fn new(first: usize, pairs: RopePairing, inv_freq: Vec<f64>) -> Self {
        Self { first, pairs, inv_freq }
    }

    /// No RoPE: positions do not turn the keys.
    pub const fn none() -> Self {
        Self::new(0, RopePairing::Half, Vec::new())
    }

    /// The two coordinates of pair `i`.
    pub fn pair(&self, i: usize) -> (usize, usize) {
        match self.pairs {
            RopePairing::Half => (self.first + i, self.first + self.inv_freq.len() + i),
            RopePairing::Interleaved => (self.first + 2 * i, self.first + 2 * i + 1),
        }
    }
}
