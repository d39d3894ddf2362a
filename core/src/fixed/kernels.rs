//! The loops over coordinates that are faster on a processor with packed arithmetic.
//!
//! `tqkv-simd` implements them for the DSP extension of Cortex-M4, M7 and M33. A kernel that returns `None`
//! leaves the work to the portable code. Any other result equals the portable one to the bit.

/// Loops for one kind of processor. The token proves that the code runs on such a processor.
///
/// The default of each method leaves the work to the portable code.
pub trait Kernels: Copy {
    /// Zero, for buffers that are written before they are read. If the compiler cannot see the value, it
    /// fills them by stores in place, not by a call of memset. The call takes three times as long on
    /// Cortex-M4.
    #[inline(always)]
    fn blank(self) -> i32 {
        0
    }

    /// Writes H diag(`signs`) `x` to `y` and returns |x|^2. H is the Sylvester matrix. The lengths are equal
    /// and a power of two, 16 to 1024.
    #[inline(always)]
    fn rotate(self, x: &[i16], signs: &[i8], y: &mut [i32]) -> Option<u64> {
        let _ = (x, signs, y);
        None
    }

    /// Writes the codes of `task.y` to `codes` (bits / 8 bytes per coordinate, dense, LSB first). Returns the
    /// sum of shifted y times level, wrapping.
    #[inline(always)]
    fn quantise(self, task: Quantise<'_>, codes: &mut [u8]) -> Option<i32> {
        let _ = (task, codes);
        None
    }

    /// The dot of a query with signed bytes, one per coordinate; their number is a multiple of 8. A word of
    /// the query holds two coordinates of 16 bits, the second in the low half.
    #[inline(always)]
    fn dot(self, query: &[i32], bytes: &[u8]) -> Option<i32> {
        let _ = (query, bytes);
        None
    }

    /// Adds `weight` times signed bytes to the same number of sums, a multiple of 8.
    #[inline(always)]
    fn add_bytes(self, weight: i32, bytes: &[u8], sums: &mut [i32]) -> Option<()> {
        let _ = (weight, bytes, sums);
        None
    }

    /// Products of rows of weights with a vector; the number of rows is even.
    #[inline(always)]
    fn products(self, task: Products<'_>, out: &mut [i32]) -> Option<()> {
        let _ = (task, out);
        None
    }
}

/// The input of [`Kernels::products`]; `tqkv-lm` describes the layout of rows.
///
/// The result of a row is ((sum >> shift) * scale + 2^15) >> 16. The sum of its products is exact, and times
/// 256 with 8 bits; after the shift it is below 2^31.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Products<'a> {
    /// Bits of a weight, 8 or 4.
    pub bits: u8,
    /// For each pair of rows: with 8 bits, two bytes per column; with 4 bits, the scales of groups, then one
    /// byte per column.
    pub weights: &'a [u8],
    /// Two bytes per row.
    pub scales: &'a [u8],
    /// The vector; its length is a multiple of 32.
    pub x: &'a [i16],
    /// Right shift of the sums, 1 to 31.
    pub shift: u32,
}

/// The input of [`Kernels::quantise`].
///
/// For each y, let s = y >> shift and v = s * reciprocal + 2^31 in 32 bits. The code is the upper `bits` bits
/// of v + bins[upper log2(bins.len()) bits of v].
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Quantise<'a> {
    /// A rotated vector; its length is a multiple of 8.
    pub y: &'a [i32],
    /// Right shift of y, below 32.
    pub shift: u32,
    /// Factor of s, positive.
    pub reciprocal: i32,
    /// Bits of a code, 1 to 5.
    pub bits: usize,
    /// The bin table: a power of two entries, at least 2^(bits + 1).
    pub bins: &'a [u32],
    /// One level per code.
    pub levels: &'a [i8; crate::code::codebook::MAX_LEVELS],
}

/// Leaves all work to the portable code, which is the definition.
impl Kernels for crate::Portable {}
