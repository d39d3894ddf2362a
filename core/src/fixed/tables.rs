//! Integer tables, derived from the one [`Codebook`] at compile time.
//!
//! **Bins.** The quantiser sees v = 2^31 + sigma * y / |x| in 32 bits, where `sigma` is chosen so that |y| <=
//! sqrt(dim) |x| can never overflow. The upper bits of v pick a bin. A bin is no wider than the gap between
//! two boundaries, so it contains at most one boundary. One table entry then decides:
//! `(v + entry) >> (32 - bits)` is the code. This needs no search, no branch and no clamp for any codebook.
//!
//! **Levels.** The signed bytes of the codebook, and pairs of them in one word as `low + 65536 * high`: a
//! *composite*. Sums, differences and products by a number act on both halves of a composite at once while
//! the low half stays inside 16 bits. The transform of a block therefore costs half (its sums stay below
//! 127 * 256).

use super::math::{LARGEST, Real, word};
use crate::code::codebook::{Codebook, MAX_LEVELS, sqrt};
use crate::code::{Code, Layout, Levels};
use crate::machine::block_io::SCALE_BYTES;
use core::marker::PhantomData;

/// sigma in units of v: sqrt(dim) * sigma stays below 2^31 by more than all roundings.
pub(super) const fn sigma(dim: usize) -> u32 {
    (2_143_289_344.0 / sqrt(dim as f64)) as u32
}

/// The tables and constants of a codec at a head dim; only those that are read are linked.
pub(super) struct Tables<const D: usize, C>(PhantomData<C>);

impl<const D: usize, C: Code> Tables<D, C> {
    pub(super) const BITS: usize = C::LAYOUT.bits() as usize;
    pub(super) const BLOCK_BYTES: usize = SCALE_BYTES + D * Self::BITS / 8;
    pub(super) const IS_INT8: bool = matches!(C::LAYOUT, Layout::Bytes);
    /// True for a trellis code of eight states, whose blocks `Body` reads and writes.
    pub(super) const IS_TRELLIS: bool = match C::ID.trellis() {
        Some(trellis) => trellis.code.memory == 3,
        None => false,
    };
    const BOOK: Codebook = match Codebook::of(C::ID, D) {
        Some(book) => book,
        // Placeholder for codecs without a codebook; never read.
        None if Self::IS_INT8 || Self::IS_TRELLIS => Codebook::scalar(16, 2),
        None => panic!("codec not supported: accepted are S2 to S5, N2 to N4, I8 and T2S8"),
    };
    pub(super) const BIN_SHIFT: u32 = 32 - bin_bits(&Self::BOOK, D);
    pub(super) const BINS: &'static [u32] = match bin_bits(&Self::BOOK, D) {
        0..=4 => const { &bins::<16>(&Self::BOOK, D) },
        5 => const { &bins::<32>(&Self::BOOK, D) },
        6 => const { &bins::<64>(&Self::BOOK, D) },
        7 => const { &bins::<128>(&Self::BOOK, D) },
        8 => const { &bins::<256>(&Self::BOOK, D) },
        9 => const { &bins::<512>(&Self::BOOK, D) },
        _ => const { &bins::<1024>(&Self::BOOK, D) },
    };
    pub(super) const LEVELS: &'static [i8; MAX_LEVELS] = &levels(&Self::BOOK);
    const PAIRS: &'static [i32] = match Self::BITS {
        2 => const { &pairs::<16>(&Self::BOOK) },
        3 => const { &pairs::<64>(&Self::BOOK) },
        _ => const { &pairs::<256>(&Self::BOOK) },
    };
    /// Levels per sigma.
    pub(super) const UNIT: f64 = match C::LEVELS {
        Levels::Codes(unit) => 1.0 / unit as f64,
        Levels::Trellis(trellis) => trellis.code.per_sigma as f64,
        _ => 1.0 / Self::BOOK.unit() as f64,
    };
    pub(super) const SIGMA: u32 = sigma(D);
    pub(super) const UNBOUNDED: f64 = unbounded_ratio(&Self::BOOK);
    /// True if the transform of composites stays inside their halves. A damaged `i8` block may hold -128.
    pub(super) const HAS_COMPOSITES: bool =
        D * if Self::IS_INT8 { 128 } else { LARGEST as usize } <= i16::MAX as usize;

    /// True if queries are pairs of 16-bit halves instead of composites: for codecs whose codes are not
    /// looked up in pairs.
    pub(super) const HALVES: bool = Self::IS_INT8 || Self::IS_TRELLIS;

    /// Integer levels of eight codes in `BITS` bytes, two per composite.
    #[inline(always)]
    pub(super) fn composites(bytes: &[u8]) -> [i32; 4] {
        if Self::IS_INT8 {
            let signed = |i: usize| i32::from(bytes.get(i).copied().unwrap_or(0) as i8);
            return core::array::from_fn(|k| signed(2 * k) + (signed(2 * k + 1) << 16));
        }
        let word = word(bytes);
        core::array::from_fn(|k| {
            if Self::BITS == 5 {
                let pair = (word >> (10 * k)) as usize;
                i32::from(Self::LEVELS[pair % 32]) + (i32::from(Self::LEVELS[pair / 32 % 32]) << 16)
            } else {
                let pair = (word >> (2 * Self::BITS * k)) as usize % Self::PAIRS.len();
                Self::PAIRS.get(pair).copied().unwrap_or(0)
            }
        })
    }
}

const fn ceil(value: f64) -> i64 {
    let whole = value as i64;
    if (whole as f64) < value { whole + 1 } else { whole }
}

/// Boundaries in units of v.
const fn boundaries(book: &Codebook, dim: usize) -> [i64; MAX_LEVELS] {
    let (sigma, mut out, mut i) = (sigma(dim) as f64, [0; MAX_LEVELS], 0);
    while i + 1 < 1 << book.bits() {
        out[i] = (1 << 31) + ceil(book.boundary_table()[i] as f64 * sigma);
        i += 1;
    }
    out
}

/// Number of upper bits of v that pick a bin.
const fn bin_bits(book: &Codebook, dim: usize) -> u32 {
    let (boundaries, mut bits, mut i) = (boundaries(book, dim), book.bits() as u32 + 1, 0);
    while i + 2 < 1 << book.bits() {
        let gap = boundaries[i + 1] - boundaries[i];
        while 1 << (32 - bits) > gap {
            bits += 1;
        }
        i += 1;
    }
    bits
}

/// The bins; `N` must be `2^bin_bits`. Any other `N` gives zeros, which are never linked.
const fn bins<const N: usize>(book: &Codebook, dim: usize) -> [u32; N] {
    let (mut table, mut bin) = ([0; N], 0);
    if N != 1 << bin_bits(book, dim) {
        return table;
    }
    let boundaries = boundaries(book, dim);
    let (width, code_unit) = ((1_i64 << 32) / N as i64, 1_i64 << (32 - book.bits()));
    let (mut code, count) = (0, (1 << book.bits()) - 1);
    while bin < N {
        let start = bin as i64 * width;
        // Counts the boundaries at or below the start, then finds the one inside, if any.
        while code < count && boundaries[code] <= start {
            code += 1;
        }
        let inside = code < count && boundaries[code] < start + width;
        let entry = if inside {
            (code as i64 + 1) * code_unit - boundaries[code]
        } else {
            code as i64 * code_unit - start
        };
        table[bin] = entry as u32;
        bin += 1;
    }
    table
}

/// The levels of a codebook, padded.
const fn levels(book: &Codebook) -> [i8; MAX_LEVELS] {
    let (mut out, mut i) = ([0; MAX_LEVELS], 0);
    while i < book.bytes().len() {
        out[i] = book.bytes()[i];
        i += 1;
    }
    out
}

/// Largest ratio of the unbiased scale to the norm at which the bound certainly does not apply: see
/// [`super::scale`].
///
/// The unit is sigmas: y has |y|^2 = dim and levels l; c = sum of y l / dim and e = sum of l^2 / dim. The
/// bound is twice the scale that preserves the energy; it does not apply if 4 c^2 >= e. Let r be the largest
/// ratio of a level to the boundary below it. Outside the innermost cells l <= r y, so e <= r c + l0^2. It is
/// therefore enough that c is above the root of 4 c^2 = r c + l0^2. The scale is |x| / c.
const fn unbounded_ratio(book: &Codebook) -> f64 {
    let (count, unit) = (1 << book.bits(), book.unit() as f64);
    let (mut ratio, mut i) = (0.0, count / 2 + 1);
    while i < count {
        let this = book.bytes()[i] as f64 * unit / book.boundaries()[i - 1] as f64;
        ratio = if this > ratio { this } else { ratio };
        i += 1;
    }
    let least = book.bytes()[count / 2] as f64 * unit;
    // The factor 0.99 leaves a hundredth for the rounding of sums and boundaries.
    0.99 * 8.0 / (ratio + sqrt(ratio * ratio + 16.0 * least * least))
}

/// Composites of two codes; `N` is `4^bits`, and the low code is the low half. Any other `N` gives zeros.
const fn pairs<const N: usize>(book: &Codebook) -> [i32; N] {
    let (mut table, mut i) = ([0; N], 0);
    let levels = levels(book);
    while i < N && N == 1 << (2 * book.bits()) {
        let (low, high) = (levels[i % (1 << book.bits())], levels[i >> book.bits()]);
        table[i] = low as i32 + high as i32 * 65_536;
        i += 1;
    }
    table
}

/// 1 / (unit * dim): from transformed integer levels to multiples of the scale.
pub(super) const fn inverse_unit(unit: f64, dim: usize) -> Real {
    Real::from_f64(1.0 / (unit * dim as f64))
}

/// unit * dim: the numerator of the unbiased scale.
pub(super) const fn forward_unit(unit: f64, dim: usize) -> Real {
    Real::from_f64(unit * dim as f64)
}

/// 1 / (127 * unit * dim^1.5): from the dot of an int8 query to the score.
pub(super) const fn score_unit(unit: f64, dim: usize) -> Real {
    Real::from_f64(1.0 / (LARGEST as f64 * unit * dim as f64 * sqrt(dim as f64)))
}
