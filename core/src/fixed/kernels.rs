//! The loops over coordinates that a processor with packed arithmetic does faster.
//!
//! `tqkv-simd` has them for the DSP extension of Cortex-M4, M7 and M33. A kernel that returns `None` leaves
//! the work to the portable code, and one that does it gives the same integers.

/// Loops for one kind of processor; a token that proves that the code runs on such a one.
///
/// The default of each is to leave it to the portable code.
pub trait Kernels: Copy {
    /// Zero, for buffers that are written before they are read. Where it is opaque to the compiler, they are
    /// filled by stores in place and not by a call of memset, which takes three times as long on Cortex-M4.
    #[inline(always)]
    fn blank(self) -> i32 {
        0
    }

    /// Writes H diag(`signs`) `x` to `y` and returns |x|^2. H is the Sylvester matrix; the lengths are equal,
    /// a power of two, 16 to 1024.
    #[inline(always)]
    fn rotate(self, x: &[i16], signs: &[i8], y: &mut [i32]) -> Option<u64> {
        let _ = (x, signs, y);
        None
    }

    /// Writes the codes of `task.y` to `codes` (bits / 8 bytes a coordinate, dense, LSB first) and returns
    /// the sum of shifted y times level, wrapping.
    #[inline(always)]
    fn quantise(self, task: Quantise<'_>, codes: &mut [u8]) -> Option<i32> {
        let _ = (task, codes);
        None
    }

    /// The dot of a query with signed bytes, as many as the query has coordinates, a multiple of 8. A word of
    /// the query is two coordinates of 16 bits, the second in the low half.
    #[inline(always)]
    fn dot(self, query: &[i32], bytes: &[u8]) -> Option<i32> {
        let _ = (query, bytes);
        None
    }

    /// Adds `weight` times signed bytes to as many sums, a multiple of 8.
    #[inline(always)]
    fn add_bytes(self, weight: i32, bytes: &[u8], sums: &mut [i32]) -> Option<()> {
        let _ = (weight, bytes, sums);
        None
    }

    /// Products of rows of weights with a vector, an even number of them.
    #[inline(always)]
    fn products(self, task: Products<'_>, out: &mut [i32]) -> Option<()> {
        let _ = (task, out);
        None
    }
}

/// What [`Kernels::products`] works on; `tqkv-lm` says how rows lie.
///
/// A row gives ((sum >> shift) * scale + 2^15) >> 16, where the exact sum of its products, with 8 bits times
/// 256, is below 2^31 once shifted.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Products<'a> {
    /// Bits of a weight, 8 or 4.
    pub bits: u8,
    /// For each pair of rows two bytes a column with 8 bits; with 4 the scales of groups, then a byte a
    /// column.
    pub weights: &'a [u8],
    /// Two bytes a row.
    pub scales: &'a [u8],
    /// The vector, a multiple of 32 values.
    pub x: &'a [i16],
    /// 1 to 31.
    pub shift: u32,
}

/// What [`Kernels::quantise`] works on.
///
/// For each y: with s = y >> shift and v = s * reciprocal + 2^31 in 32 bits, the code is the
/// upper `bits` bits of v + bins[upper log2(bins.len()) bits of v].
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Quantise<'a> {
    /// A rotated vector, its length a multiple of 8.
    pub y: &'a [i32],
    /// Below 32.
    pub shift: u32,
    /// Positive.
    pub reciprocal: i32,
    /// Bits of a code, 1 to 5.
    pub bits: usize,
    /// A power of two of them, at least 2^(bits + 1).
    pub bins: &'a [u32],
    /// A level for each code.
    pub levels: &'a [i8; crate::code::codebook::MAX_LEVELS],
}

/// Leaves all to the portable code, which is the definition.
impl Kernels for crate::Portable {}
