//! Lloyd-Max codebooks for the coordinate law.
//!
//! The optimal scalar quantiser has every level at the centroid of its cell and every boundary half-way
//! between levels (TurboQuant, section 3.1). The law is symmetric, so only the positive half is solved.
//! Fixed-point (Lloyd) steps bring the levels near; Newton steps on the tridiagonal centroid equations finish
//! to rounding. [`to_bytes`] then rounds the levels to whole numbers. That costs a few thousandths of the
//! distortion (2 % at 5 bits).

use super::beta::{Beta, sqrt};

/// Maximum number of levels in the positive half (5 bits).
pub(super) const HALF: usize = 16;

const LLOYD_STEPS: usize = 10;
const NEWTON_STEPS: usize = 5;

/// Positive half of a symmetric quantiser for the coordinates of a unit vector.
#[derive(Clone, Copy)]
pub(super) struct HalfCodebook {
    /// Levels, ascending; the first `count` are used.
    pub(super) levels: [f64; HALF],
    /// `boundaries[i]` separates `levels[i]` and `levels[i + 1]`.
    pub(super) boundaries: [f64; HALF],
    /// Probability of each cell.
    pub(super) mass: [f64; HALF],
    pub(super) count: usize,
    /// E|x - x^|^2 over unit vectors x.
    pub(super) relative_mse: f64,
}

/// Mass and centroid of every cell of `[0, 1]` cut at the `count - 1` boundaries.
const fn cells(law: Beta, boundaries: &[f64; HALF], count: usize) -> ([f64; HALF], [f64; HALF]) {
    let (mut mass, mut centroid) = ([0.0; HALF], [0.0; HALF]);
    let (mut lower, mut rest, mut i) = (0.0, 0.5, 0);
    while i < count {
        let last = i + 1 == count;
        let upper = if last { 1.0 } else { boundaries[i] };
        mass[i] = if last { rest } else { law.probability(lower, upper) };
        centroid[i] = law.first_moment(lower, upper) / mass[i];
        rest -= mass[i];
        lower = upper;
        i += 1;
    }
    (mass, centroid)
}

/// The quantiser whose cells are cut at `boundaries` and whose levels are their centroids.
pub(super) const fn from_boundaries(dim: usize, boundaries: [f64; HALF], count: usize) -> HalfCodebook {
    let (mass, levels) = cells(Beta::new(dim), &boundaries, count);
    // With levels at centroids, E|x - x^|^2 = 1 - E|x^|^2; two halves, dim coordinates.
    let (mut energy, mut i) = (0.0, 0);
    while i < count {
        energy += 2.0 * dim as f64 * mass[i] * levels[i] * levels[i];
        i += 1;
    }
    HalfCodebook { levels, boundaries, mass, count, relative_mse: 1.0 - energy }
}

const fn midpoints(levels: &[f64; HALF], count: usize) -> [f64; HALF] {
    let (mut boundaries, mut i) = ([0.0; HALF], 0);
    while i + 1 < count {
        boundaries[i] = 0.5 * (levels[i] + levels[i + 1]);
        i += 1;
    }
    boundaries
}

/// One Newton step for `level[i] - centroid(level[i-1], level[i], level[i+1]) = 0`.
const fn newton(law: Beta, levels: &[f64; HALF], count: usize) -> [f64; HALF] {
    let boundaries = midpoints(levels, count);
    let (mass, centroid) = cells(law, &boundaries, count);
    // Thomas algorithm on the tridiagonal Jacobian, forward sweep.
    let (mut upper, mut right) = ([0.0; HALF], [0.0; HALF]);
    let mut i = 0;
    while i < count {
        let has_lower = i > 0;
        let has_upper = i + 1 < count;
        let from_lower = if has_lower {
            0.5 * law.density(boundaries[i - 1]) * (centroid[i] - boundaries[i - 1]) / mass[i]
        } else {
            0.0
        };
        let from_upper = if has_upper {
            0.5 * law.density(boundaries[i]) * (boundaries[i] - centroid[i]) / mass[i]
        } else {
            0.0
        };
        // d centroid / d level: each boundary moves by half of the movement of each neighbour.
        let (sub, diagonal, sup) = (-from_lower, 1.0 - from_lower - from_upper, -from_upper);
        let (mut pivot, mut residual) = (diagonal, centroid[i] - levels[i]);
        if has_lower {
            pivot -= sub * upper[i - 1];
            residual -= sub * right[i - 1];
        }
        upper[i] = sup / pivot;
        right[i] = residual / pivot;
        i += 1;
    }
    let mut next = *levels;
    let mut step = 0.0;
    while i > 0 {
        i -= 1;
        step = right[i] - upper[i] * if i + 1 < count { step } else { 0.0 };
        next[i] += step;
    }
    next
}

/// The Lloyd-Max quantiser with `2^bits` levels for unit vectors in `dim` dimensions.
pub(super) const fn lloyd_max(dim: usize, bits: usize) -> HalfCodebook {
    let law = Beta::new(dim);
    let count = 1 << (bits - 1);
    // Start: evenly spaced boundaries over roughly the range of the outermost level.
    let (mut boundaries, mut i) = ([0.0; HALF], 0);
    let reach = (0.9 + 0.45 * bits as f64) / sqrt(dim as f64);
    while i + 1 < count {
        boundaries[i] = reach * (i + 1) as f64 / count as f64;
        i += 1;
    }
    let (mut levels, mut k) = ([0.0; HALF], 0);
    while k < LLOYD_STEPS {
        levels = cells(law, &boundaries, count).1;
        boundaries = midpoints(&levels, count);
        k += 1;
    }
    while k < LLOYD_STEPS + NEWTON_STEPS {
        levels = newton(law, &levels, count);
        k += 1;
    }
    from_boundaries(dim, midpoints(&levels, count), count)
}

/// Positive half of a symmetric quantiser whose levels are whole numbers.
#[derive(Clone, Copy)]
pub(super) struct HalfBytes {
    /// Levels in units, ascending; the first `count` are used.
    pub(super) bytes: [i8; HALF],
    pub(super) count: usize,
    /// One unit, in coordinates of unit vectors.
    pub(super) unit: f64,
    /// E|x - x^|^2 over unit vectors x.
    pub(super) relative_mse: f64,
}

/// Range of the largest level.
const LARGEST: [i32; 2] = [64, 127];

const REFITS: usize = 4;

/// The sums over cells of level * first moment and of level^2 * probability.
const fn sums(bytes: &[i8; HALF], mass: &[f64; HALF], centroid: &[f64; HALF], count: usize) -> (f64, f64) {
    let (mut cross, mut energy, mut i) = (0.0, 0.0, 0);
    while i < count {
        let byte = bytes[i] as f64;
        cross += byte * centroid[i] * mass[i];
        energy += byte * byte * mass[i];
        i += 1;
    }
    (cross, energy)
}

/// The quantiser with whole numbers as levels. Its largest level is the number from 64 to 127 with the
/// smallest error in the cells of `half`; each candidate gets its best unit. If `move_boundaries`, boundaries
/// then move half-way between the levels, and the unit and the boundaries are refitted to each other.
pub(super) const fn to_bytes(dim: usize, half: &HalfCodebook, move_boundaries: bool) -> HalfBytes {
    let count = half.count;
    let (mut bytes, mut unit, mut most) = ([0; HALF], 1.0, 0.0);
    let mut largest = LARGEST[0];
    while largest <= LARGEST[1] {
        let (mut rounded, mut i) = ([0; HALF], 0);
        while i < count {
            rounded[i] = (half.levels[i] / half.levels[count - 1] * largest as f64 + 0.5) as i8;
            i += 1;
        }
        let (cross, energy) = sums(&rounded, &half.mass, &half.levels, count);
        // With the best unit, cross / energy, this is the energy that the levels explain. The tolerance keeps
        // rounding from deciding.
        if cross * cross / energy > most * (1.0 + 1e-12) {
            (bytes, unit, most) = (rounded, cross / energy, cross * cross / energy);
        }
        largest += 1;
    }
    let (law, mut refit) = (Beta::new(dim), 0);
    while move_boundaries && refit < REFITS {
        let (mass, centroid) = cells(law, &byte_boundaries(&bytes, unit, count), count);
        let (cross, energy) = sums(&bytes, &mass, &centroid, count);
        (unit, most) = (cross / energy, cross * cross / energy);
        refit += 1;
    }
    // Two halves, dim coordinates.
    HalfBytes { bytes, count, unit, relative_mse: 1.0 - 2.0 * dim as f64 * most }
}

const fn byte_boundaries(bytes: &[i8; HALF], unit: f64, count: usize) -> [f64; HALF] {
    let (mut boundaries, mut i) = ([0.0; HALF], 0);
    while i + 1 < count {
        boundaries[i] = 0.5 * (bytes[i] as f64 + bytes[i + 1] as f64) * unit;
        i += 1;
    }
    boundaries
}
