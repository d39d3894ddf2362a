//! The part of an instruction set that the search needs: registers of bytes.

use tqkv_core::unstable::machine::Memory;
use tqkv_core::unstable::trellis::PARITIES;

pub(super) const STATES: usize = 256;
/// Bytes of one decision bit per state.
pub(crate) const DECISIONS: usize = STATES / 8;

/// Bits of a state, and the number of steps until the order of states repeats.
pub(super) const TURNS: usize = 8;

/// Registers of bytes; all operations are lane-wise unless they say otherwise.
pub(crate) trait Bytes: Memory {
    /// A register.
    type B: Copy;
    /// Decisions of one step.
    type D: Copy;
    /// Bytes of a register: 16, 32 or 64.
    const WIDTH: usize;
    /// For each bit of a register's number, the bits of the byte's number through which [`Bytes::exchange`]
    /// moves it. It goes to the first, then on to the next, and from the last back.
    const PATHS: &'static [&'static [usize]];
    /// The bit of a register's number whose turn it is in each of eight steps. Each bit comes once, and once
    /// more for every bit of its path.
    const TURNS: [usize; TURNS];

    /// All bytes `value`.
    fn splat_byte(self, value: u8) -> Self::B;
    /// The first [`Bytes::WIDTH`] bytes; all 0 if there are fewer.
    fn read_bytes(self, bytes: &[u8]) -> Self::B;
    /// Writes the first [`Bytes::WIDTH`] bytes; writes nothing if there are fewer.
    fn write_bytes(self, v: Self::B, bytes: &mut [u8]);
    /// Sum, at most 255.
    fn add(self, a: Self::B, b: Self::B) -> Self::B;
    /// Difference, at least 0.
    fn sub(self, a: Self::B, b: Self::B) -> Self::B;
    /// Smaller.
    fn min(self, a: Self::B, b: Self::B) -> Self::B;
    /// Smallest byte, in all bytes.
    fn smallest(self, v: Self::B) -> Self::B;
    /// A table of 8 bytes.
    fn table(self, row: &[u8; PARITIES]) -> Self::B;
    /// Look-up of indices below 8.
    fn pick(self, table: Self::B, index: Self::B) -> Self::B;
    /// Exchanges two registers whose numbers differ in bit `bit`; the lower one comes first.
    fn exchange(self, bit: usize, low: Self::B, high: Self::B) -> (Self::B, Self::B);

    /// No decisions yet.
    fn undecided(self) -> Self::D;
    /// Adds a bit for each byte of a register: set if the byte of `one` is below the byte of `zero`. The
    /// caller also passes the smaller of both. Registers are noted in ascending order, first among those with
    /// `upper` false, then among those with `upper` true.
    fn note(
        self,
        decisions: Self::D,
        register: usize,
        upper: bool,
        zero: Self::B,
        one: Self::B,
        smaller: Self::B,
    ) -> Self::D;
    /// The decisions of all registers.
    fn write(self, decisions: Self::D, to: &mut [u8; DECISIONS]);
    /// The decision at an address; `upper` was bit `bit` of the register's number.
    fn decision(decisions: &[u8; DECISIONS], address: usize, bit: usize) -> usize;
}
