//! The one scale of a block: how it is chosen, and how hard the encoder searches.
//!
//! Let y be the rotated vector (unnormalised, |y|^2 = dim |x|^2) and l its quantised levels in sigma units.
//! Decoding is the same for every mode: x^ = scale / dim * R^T l. Only the encoder needs the mode.

use crate::machine::{Isa, Lanes};
use half::f16;

/// The scale that a block stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ScaleMode {
    /// |x|, as in the paper (Algorithm 1).
    Raw,
    /// |x| / |x^1|, where x^1 is the decoded vector at scale 1: the decoded vector has the norm of x.
    Preserving,
    /// |x|^2 / <x, x^1>, so that <x, x^> = |x|^2 and dot products do not shrink. At most twice the preserving
    /// scale; only vectors built against the signs of a seed come near that limit. The default.
    #[default]
    Unbiased,
    /// <x, x^1> / |x^1|^2: the smallest squared error, but the worst perplexity.
    Mmse,
}

impl ScaleMode {
    /// All modes, in the order of their codes.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Preserving, Self::Unbiased, Self::Mmse];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Preserving => "preserving",
            Self::Unbiased => "unbiased",
            Self::Mmse => "mmse",
        }
    }

    /// The mode with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// Stable number in files.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The mode with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// How hard the encoder searches for a good scale; format and decoder stay the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Effort {
    /// One candidate: the norm.
    Fast,
    /// A few candidates where they help (`s4`, `n4`).
    #[default]
    Default,
    /// Many candidates.
    Best,
}

impl Effort {
    /// All efforts, in ascending order.
    pub const ALL: [Self; 3] = [Self::Fast, Self::Default, Self::Best];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Default => "default",
            Self::Best => "best",
        }
    }

    /// The effort with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effort| effort.name() == name)
    }

    /// Multiples of the norm that a scalar encoder of `bits` tries. The best one wins; on a tie, the first.
    pub(crate) const fn candidates(self, bits: usize) -> &'static [f32] {
        match self {
            Self::Fast => &[1.0],
            Self::Default if bits < 4 => &[1.0],
            Self::Default => &[1.0, 0.93, 1.07],
            Self::Best => &[1.0, 0.85, 0.88, 0.91, 0.94, 0.97, 1.03, 1.06, 1.09, 1.12, 1.15],
        }
    }
}

/// Limit of the unbiased scale, in preserving scales: four times the energy.
const LARGEST_STRETCH: f32 = 2.0;

/// The sums of a vector and its codes from which the encoder computes the scale.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moments {
    /// |x|^2
    pub(crate) norm_squared: f32,
    /// The scale that the codes were chosen for: |x| times the candidate.
    pub(crate) assumed: f32,
    /// sum y l
    pub(crate) cross: f32,
    /// sum l^2
    pub(crate) energy: f32,
    /// If the sums have weights: |x|^2, sum y l and sum l^2 without them. Lengths and errors are those of the
    /// vector; weights choose codes and leave dot products unbiased.
    pub(crate) whole: Option<[f32; 3]>,
}

impl Moments {
    /// The moments with levels multiplied by `unit`.
    #[inline(always)]
    pub(crate) fn in_units_of(self, unit: f32) -> Self {
        let square = unit * unit;
        let whole =
            self.whole.map(|[norm_squared, cross, energy]| [norm_squared, cross * unit, energy * square]);
        Self { cross: self.cross * unit, energy: self.energy * square, whole, ..self }
    }

    #[inline(always)]
    fn preserving<I: Isa>(&self, isa: I, dim: f32) -> f32 {
        let [norm_squared, _, energy] = self.without_weights();
        isa.sqrt(norm_squared * dim / energy)
    }

    #[inline(always)]
    fn without_weights(&self) -> [f32; 3] {
        self.whole.unwrap_or([self.norm_squared, self.cross, self.energy])
    }

    /// Squared cosine between y and l, up to a factor that the codes do not change.
    #[inline(always)]
    pub(crate) fn quality(&self) -> f32 {
        self.cross * self.cross / self.energy
    }

    /// The scale to store.
    #[inline(always)]
    pub(crate) fn scale<I: Isa>(&self, isa: I, mode: ScaleMode, dim: usize) -> f32 {
        let dim = dim as f32;
        match mode {
            ScaleMode::Raw => self.assumed,
            ScaleMode::Preserving => self.preserving(isa, dim),
            // A code that points elsewhere would be stretched without limit. Its cosine is the ratio of the
            // preserving to the unbiased scale; here it is below the inverse of the limit.
            ScaleMode::Unbiased => {
                let target = self.norm_squared * dim;
                if self.whole.is_some() {
                    return f32::min(target / self.cross, LARGEST_STRETCH * self.preserving(isa, dim));
                }
                let stretched = LARGEST_STRETCH * self.cross;
                if stretched * stretched < target * self.energy {
                    LARGEST_STRETCH * self.preserving(isa, dim)
                } else {
                    target / self.cross
                }
            }
            ScaleMode::Mmse => {
                let [_, cross, energy] = self.without_weights();
                if self.whole.is_some() { f32::max(cross / energy, 0.0) } else { cross / energy }
            }
        }
    }
}

/// Sum over groups in sequence, then over lanes in the canonical tree. Every sum uses this order.
#[inline(always)]
pub(crate) fn canonical_sum<I: Isa>(isa: I, terms: impl Iterator<Item = I::V>) -> f32 {
    let mut acc = isa.splat(0.0);
    for term in terms {
        acc = acc + term;
    }
    acc.sum()
}

/// A scale after rounding to f16, or the reason why none is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StoredScale {
    /// The scale to store.
    Scale(f16),
    /// The scale rounds to zero: store the zero block.
    Zero,
    /// The scale does not fit f16.
    OutOfRange,
}

/// Rounds a non-negative scale to f16 (to nearest, ties to even).
#[inline(always)]
pub fn to_f16<I: Isa>(isa: I, scale: f32) -> StoredScale {
    let rounded = isa.to_half(scale);
    if !rounded.is_finite() {
        StoredScale::OutOfRange
    } else if rounded == f16::ZERO {
        StoredScale::Zero
    } else {
        StoredScale::Scale(rounded)
    }
}
