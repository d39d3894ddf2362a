//! The machine vocabulary of decoders: four blocks in the 128-bit parts of a line, and sums of 16 bits.
//!
//! A line is 32 lanes of `i16`, eight in each of its four 128-bit parts. The Hadamard transform of bytes
//! stays within 16 bits up to head dim 128 ([`crate::decode`]), so its sums are exact in any order.

use crate::lines::Machine;

/// The operations that decoders need of a token, besides those of [`Machine`].
pub(crate) trait Shorts: Machine {
    /// A line of four parts.
    fn quarters(self, parts: [&[u8; 16]; 4]) -> Self::Line;
    /// In every 128 bits, the last `N` bytes (1 to 8) of `before`, then the first bytes of `now`.
    fn follow<const N: usize>(self, now: Self::Line, before: Self::Line) -> Self::Line;
    /// In every 128 bits, the transpose of a matrix of 4 x 4 bytes.
    fn transpose(self, v: Self::Line) -> Self::Line;
    /// The sums of neighbouring signed bytes, and the differences: even minus odd.
    fn neighbours(self, v: Self::Line) -> [Self::Line; 2];
    /// Lane-wise sums and differences of 16 bits.
    fn butterfly16(self, a: Self::Line, b: Self::Line) -> [Self::Line; 2];
    /// In every 128 bits, the lanes of the lower halves of `a` and `b` in turn, then those of the upper
    /// halves.
    fn zip16(self, a: Self::Line, b: Self::Line) -> [Self::Line; 2];
    /// The lanes as floats.
    fn floats16(self, v: Self::Line) -> Self::V;
    /// Writes eight lanes to each place.
    fn store_eights(self, v: Self::V, to: [&mut [f32; 8]; 4]);
}

/// Byte `4 i + j` of a transposed matrix of 4 x 4 bytes is byte `4 j + i`.
pub(crate) const TRANSPOSE: [u8; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];
