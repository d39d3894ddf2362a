//! Codebooks: levels and boundaries for every head dim and bit width, solved at compile time.
//!
//! All values are in **sigma units**: a coordinate of a rotated unit vector times sqrt(dim), so
//! that it has about unit variance. Codes ascend with the level; level and boundary tables are
//! antisymmetric and 0 is always a boundary.
//!
//! Two families share the type. *Scalar* codebooks (`s1`..`s5`) are the exact Lloyd-Max solution
//! for the coordinate law of each head dim; a Gaussian table would cost 7 % at dim 16 and 0.1 % at
//! dim 128, so there is none. *Nested* codebooks (`n1`..`n4`) share one set of boundaries, so that
//! dropping the low bit of a 4-bit code gives the 3-bit code; levels are refitted to each rate.
//!
//! To add a bit width, raise [`MAX_BITS`]; packing and look-up are generic over it.

mod beta;
mod solve;

use crate::head_dim::{HEAD_DIMS, index_of};
pub(crate) use beta::sqrt;
use solve::{HALF, HalfCodebook, from_boundaries, lloyd_max};

/// Widest scalar code.
pub const MAX_BITS: usize = 5;
/// Widest nested code.
pub const MAX_NESTED_BITS: usize = 4;
/// Levels of the widest code.
pub const MAX_LEVELS: usize = 1 << MAX_BITS;

/// Levels and boundaries of one scalar quantiser, in sigma units.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Codebook {
    levels: [f32; MAX_LEVELS],
    boundaries: [f32; MAX_LEVELS],
    bits: u8,
    relative_mse: f64,
}

impl Codebook {
    /// Code width.
    pub const fn bits(&self) -> usize {
        self.bits as usize
    }

    /// The `2^bits` levels (centroids), ascending; the code is the index.
    pub fn levels(&self) -> &[f32] {
        &self.levels[..1 << self.bits]
    }

    /// The `2^bits - 1` boundaries, ascending: a coordinate y has the code #{i: y >= boundary i}.
    pub fn boundaries(&self) -> &[f32] {
        &self.boundaries[..(1 << self.bits) - 1]
    }

    /// The level table padded to 32 entries, for look-ups by any 5-bit value.
    pub(crate) const fn level_table(&self) -> &[f32; MAX_LEVELS] {
        &self.levels
    }

    /// The boundary table; the first `2^bits - 1` entries are used.
    pub(crate) const fn boundary_table(&self) -> &[f32; MAX_LEVELS] {
        &self.boundaries
    }

    /// E|x - x^|^2 / |x|^2 on random directions with the plain norm as scale: the distortion of
    /// TurboQuant Theorem 1, exact.
    pub const fn relative_mse(&self) -> f64 {
        self.relative_mse
    }

    const fn from_half(half: &HalfCodebook, dim: usize) -> Self {
        let (mut levels, mut boundaries) = ([0.0; MAX_LEVELS], [0.0; MAX_LEVELS]);
        let (n, sigma) = (half.count, sqrt(dim as f64));
        let mut i = 0;
        while i < n {
            let level = (half.levels[i] * sigma) as f32;
            levels[n + i] = level;
            levels[n - 1 - i] = -level;
            if i + 1 < n {
                let boundary = (half.boundaries[i] * sigma) as f32;
                boundaries[n + i] = boundary;
                boundaries[n - 2 - i] = -boundary;
            }
            i += 1;
        }
        let bits = (2 * n).trailing_zeros() as u8;
        Self { levels, boundaries, bits, relative_mse: half.relative_mse }
    }

    /// The Lloyd-Max codebook, solved afresh. `const` evaluation only: run-time users take
    /// [`scalar`].
    pub const fn solve_scalar(dim: usize, bits: usize) -> Self {
        Self::from_half(&lloyd_max(dim, bits), dim)
    }

    /// The nested codebook at `bits` <= 4, solved afresh; run-time users take [`nested`].
    pub const fn solve_nested(dim: usize, bits: usize) -> Self {
        let count = 1 << (bits - 1);
        let stride = 1 << (MAX_NESTED_BITS - bits);
        let (mut boundaries, mut i) = ([0.0; HALF], 0);
        while i + 1 < count {
            boundaries[i] = NESTED_BOUNDARIES[(i + 1) * stride - 1] / sqrt(dim as f64);
            i += 1;
        }
        Self::from_half(&from_boundaries(dim, boundaries, count), dim)
    }
}

/// Positive boundaries of the nested family in sigma units.
///
/// They minimise the sum over 2, 3 and 4 bits of the distortion relative to the Lloyd-Max
/// codebook of that width, for Gaussian coordinates (a test searches around them). WARNING: baked
/// into stored data; changing one changes the format.
const NESTED_BOUNDARIES: [f64; 7] = [0.2466, 0.4984, 0.7617, 1.0442, 1.3772, 1.7731, 2.3410];

static SCALAR: [[Codebook; MAX_BITS]; HEAD_DIMS.len()] = {
    let mut tables = [[Codebook::solve_scalar(16, 1); MAX_BITS]; HEAD_DIMS.len()];
    let mut d = 0;
    while d < HEAD_DIMS.len() {
        let mut b = 0;
        while b < MAX_BITS {
            tables[d][b] = Codebook::solve_scalar(HEAD_DIMS[d], b + 1);
            b += 1;
        }
        d += 1;
    }
    tables
};

static NESTED: [[Codebook; MAX_NESTED_BITS]; HEAD_DIMS.len()] = {
    let mut tables = [[Codebook::solve_nested(16, 1); MAX_NESTED_BITS]; HEAD_DIMS.len()];
    let mut d = 0;
    while d < HEAD_DIMS.len() {
        let mut b = 0;
        while b < MAX_NESTED_BITS {
            tables[d][b] = Codebook::solve_nested(HEAD_DIMS[d], b + 1);
            b += 1;
        }
        d += 1;
    }
    tables
};

/// The Lloyd-Max codebook of `bits` bits for a supported head dim, or `None`.
pub fn scalar(dim: usize, bits: usize) -> Option<&'static Codebook> {
    let supported = crate::is_supported_head_dim(dim) && (1..=MAX_BITS).contains(&bits);
    supported.then(|| &SCALAR[index_of(dim)][bits - 1])
}

/// The nested codebook at `bits` bits for a supported head dim, or `None`.
pub fn nested(dim: usize, bits: usize) -> Option<&'static Codebook> {
    let supported = crate::is_supported_head_dim(dim) && (1..=MAX_NESTED_BITS).contains(&bits);
    supported.then(|| &NESTED[index_of(dim)][bits - 1])
}
