//! Codebooks: levels and boundaries for every head dim and bit width, solved from the exact law.
//!
//! A level is a signed **byte** times a **unit**. Units and boundaries are in sigma units: a coordinate of a
//! rotated unit vector is multiplied by sqrt(dim), so that it has about unit variance. Codes ascend with the
//! level. Level and boundary tables are antisymmetric, and 0 is always a boundary.
//!
//! Two families share the type:
//!
//! * *Scalar* codebooks (`s2`..`s5`) are the Lloyd-Max solution for the coordinate law of each head dim.
//!   Levels are rounded to bytes, and boundaries are half-way between them. A Gaussian table would cost 7 %
//!   at dim 16 and 0.1 % at dim 128, so there is none.
//! * *Nested* codebooks (`n2`..`n4`) share one set of boundaries: dropping the low bit of a 4-bit code gives
//!   the 3-bit code. Levels are refitted to each rate.
//!
//! [`Exact`] is the solution before rounding. 5 bits are the widest code that the look-ups of all machines
//! support.
//!
//! The file `solved.rs` stores the solutions, because the compiler needs eleven seconds to find them.
//! `cargo xtask codebooks` writes it, and a test solves every codebook again and compares all bits. The
//! compiler solves for any head dim that the file lacks.

mod beta;
mod solution;
mod solve;
mod solved;

use crate::head_dim::{HEAD_DIMS, index_of};
pub(crate) use beta::sqrt;
pub(super) use solution::MAX_BITS;
use solution::{MAX_NESTED_BITS, MIN_BITS, Solution};
use solve::{HALF, HalfCodebook, from_boundaries, lloyd_max, to_bytes};
use solved::SOLVED;

/// Levels of the widest code.
pub(crate) const MAX_LEVELS: usize = 1 << MAX_BITS;

/// Levels and boundaries of one scalar quantiser.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Codebook {
    bytes: [i8; MAX_LEVELS],
    unit: f32,
    /// The bytes as floats, for look-ups.
    table: [f32; MAX_LEVELS],
    boundaries: [f32; MAX_LEVELS],
    bits: u8,
    relative_mse: f64,
}

impl Codebook {
    /// Code width.
    pub const fn bits(&self) -> usize {
        self.bits as usize
    }

    /// The `2^bits` levels, ascending, in units; the code is the index.
    pub const fn bytes(&self) -> &[i8] {
        self.bytes.split_at(1 << self.bits).0
    }

    /// Sigmas in one unit.
    pub const fn unit(&self) -> f32 {
        self.unit
    }

    /// The `2^bits - 1` boundaries in sigmas, ascending: the code of a coordinate y is the number of
    /// boundaries <= y.
    pub const fn boundaries(&self) -> &[f32] {
        self.boundaries.split_at((1 << self.bits) - 1).0
    }

    /// The levels in units as floats, padded to 32 entries, for look-ups by any 5-bit value.
    pub(crate) const fn level_table(&self) -> &[f32; MAX_LEVELS] {
        &self.table
    }

    /// The boundary table; the first `2^bits - 1` entries are used.
    pub(crate) const fn boundary_table(&self) -> &[f32; MAX_LEVELS] {
        &self.boundaries
    }

    /// E|x - x^|^2 / |x|^2 on random directions, with the plain norm as scale: the distortion of TurboQuant
    /// Theorem 1 for these levels.
    pub const fn relative_mse(&self) -> f64 {
        self.relative_mse
    }

    /// The codebook of a solution; boundaries of scalar codes are half-way between levels.
    const fn from_solution(solution: &Solution, is_nested: bool) -> Self {
        let (n, unit) = (solution.bytes.len(), solution.unit);
        let bits = (2 * n).trailing_zeros() as u8;
        let (mut bytes, mut table, mut boundaries) = ([0; MAX_LEVELS], [0.0; MAX_LEVELS], [0.0; MAX_LEVELS]);
        let mut i = 0;
        while i < n {
            let byte = solution.bytes[i];
            (bytes[n + i], bytes[n - 1 - i]) = (byte, -byte);
            (table[n + i], table[n - 1 - i]) = (byte as f32, -(byte as f32));
            if i + 1 < n {
                let boundary = if is_nested {
                    nested_boundary(bits as usize, i) as f32
                } else {
                    (byte as f32 + solution.bytes[i + 1] as f32) * 0.5 * unit
                };
                (boundaries[n + i], boundaries[n - 2 - i]) = (boundary, -boundary);
            }
            i += 1;
        }
        Self { bytes, unit, table, boundaries, bits, relative_mse: solution.relative_mse }
    }

    /// The scalar codebook of `bits` bits; see [`Codebook::of`].
    pub(crate) const fn scalar(dim: usize, bits: usize) -> Self {
        Self::known(dim, bits, false)
    }

    /// The codebook of a family and width: from the table, or solved where that lacks the head dim.
    pub(super) const fn known(dim: usize, bits: usize, is_nested: bool) -> Self {
        let mut i = 0;
        while i < SOLVED.len() {
            if SOLVED[i].dim == dim {
                let rows: &[Solution] = if is_nested { &SOLVED[i].nested } else { &SOLVED[i].scalar };
                return Self::from_solution(&rows[bits - MIN_BITS], is_nested);
            }
            i += 1;
        }
        Self::solve_half(dim, bits, is_nested)
    }

    pub(super) const fn solve_half(dim: usize, bits: usize, is_nested: bool) -> Self {
        let half = if is_nested {
            to_bytes(dim, &nested_half(dim, bits), false)
        } else {
            to_bytes(dim, &lloyd_max(dim, bits), true)
        };
        let unit = (half.unit * sqrt(dim as f64)) as f32;
        let bytes = half.bytes.split_at(half.count).0;
        Self::from_solution(&Solution { bytes, unit, relative_mse: half.relative_mse }, is_nested)
    }
}

/// Positive boundaries of the nested family in sigma units.
///
/// They minimise the sum over 2, 3 and 4 bits of a relative distortion, for Gaussian coordinates. Each
/// distortion is relative to the Lloyd-Max codebook of that width. A test searches around them. WARNING:
/// stored data depends on them; a change of one changes the format.
const NESTED_BOUNDARIES: [f64; 7] = [0.2466, 0.4984, 0.7617, 1.0442, 1.3772, 1.7731, 2.3410];

/// Positive boundary `i` of the nested codes of `bits` bits.
const fn nested_boundary(bits: usize, i: usize) -> f64 {
    NESTED_BOUNDARIES[((i + 1) << (MAX_NESTED_BITS - bits)) - 1]
}

/// Centroids of the nested cells.
const fn nested_half(dim: usize, bits: usize) -> HalfCodebook {
    let count = 1 << (bits - 1);
    let (mut boundaries, mut i) = ([0.0; HALF], 0);
    while i + 1 < count {
        boundaries[i] = nested_boundary(bits, i) / sqrt(dim as f64);
        i += 1;
    }
    from_boundaries(dim, boundaries, count)
}

/// The solution before levels are rounded to bytes: centroids for the exact law, in sigma units.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Exact {
    levels: [f64; MAX_LEVELS],
    boundaries: [f64; MAX_LEVELS],
    count: usize,
    relative_mse: f64,
}

impl Exact {
    /// Solves for the codebook of a family and width.
    pub(super) fn solve_half(dim: usize, bits: usize, is_nested: bool) -> Self {
        let half = if is_nested { nested_half(dim, bits) } else { lloyd_max(dim, bits) };
        let (mut levels, mut boundaries) = ([0.0; MAX_LEVELS], [0.0; MAX_LEVELS]);
        let (n, sigma) = (half.count, sqrt(dim as f64));
        for i in 0..n {
            (levels[n + i], levels[n - 1 - i]) = (half.levels[i] * sigma, -half.levels[i] * sigma);
        }
        for i in 0..n - 1 {
            (boundaries[n + i], boundaries[n - 2 - i]) =
                (half.boundaries[i] * sigma, -half.boundaries[i] * sigma);
        }
        Self { levels, boundaries, count: 2 * n, relative_mse: half.relative_mse }
    }

    /// The levels (centroids), ascending.
    pub fn levels(&self) -> &[f64] {
        &self.levels[..self.count]
    }

    /// The boundaries, ascending; one less than the levels.
    pub fn boundaries(&self) -> &[f64] {
        &self.boundaries[..self.count - 1]
    }

    /// The distortion, as in [`Codebook::relative_mse`].
    pub const fn relative_mse(&self) -> f64 {
        self.relative_mse
    }
}

/// The codebooks of all head dims, for `WIDTHS` widths from [`MIN_BITS`] on.
const fn tables<const WIDTHS: usize>(is_nested: bool) -> [[Codebook; WIDTHS]; HEAD_DIMS.len()] {
    let mut tables = [[Codebook::known(HEAD_DIMS[0], MIN_BITS, is_nested); WIDTHS]; HEAD_DIMS.len()];
    let mut d = 0;
    while d < HEAD_DIMS.len() {
        let mut b = 0;
        while b < WIDTHS {
            tables[d][b] = Codebook::known(HEAD_DIMS[d], b + MIN_BITS, is_nested);
            b += 1;
        }
        d += 1;
    }
    tables
}

static SCALAR: [[Codebook; MAX_BITS - MIN_BITS + 1]; HEAD_DIMS.len()] = tables(false);
static NESTED: [[Codebook; MAX_NESTED_BITS - MIN_BITS + 1]; HEAD_DIMS.len()] = tables(true);

/// The Lloyd-Max codebook of `bits` bits, or `None` if the head dim is not supported.
pub(super) fn scalar(dim: usize, bits: usize) -> Option<&'static Codebook> {
    let supported = crate::is_supported_head_dim(dim) && (MIN_BITS..=MAX_BITS).contains(&bits);
    supported.then(|| &SCALAR[index_of(dim)][bits - MIN_BITS])
}

/// The nested codebook of `bits` bits, or `None` if the head dim is not supported.
pub(super) fn nested(dim: usize, bits: usize) -> Option<&'static Codebook> {
    let supported = crate::is_supported_head_dim(dim) && (MIN_BITS..=MAX_NESTED_BITS).contains(&bits);
    supported.then(|| &NESTED[index_of(dim)][bits - MIN_BITS])
}
