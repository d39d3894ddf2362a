//! The machine vocabulary of the page kernels: 64-byte lines of codes, exact integer sums.
//!
//! A line is 16 dwords of 4 bytes, and a sum is 16 lanes of `i32`. A lane sums the dot products of the four
//! bytes of a dword with four query bytes (keys) or four weights (values). All integer operations are exact
//! within the bounds that [`crate::page`] keeps, so every instruction set gives the same sums. The
//! implementation for `Portable` is the definition.

use tqkv_core::Portable;
use tqkv_core::unstable::machine::F32x32;
use tqkv_core::unstable::machine::Memory;
use tqkv_core::unstable::trellis::Search;

/// 64 bytes on a cache line of their own: the unit of page memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Line(pub [u8; 64]);

impl Line {
    /// All bytes 0.
    pub const ZERO: Self = Self([0; 64]);
}

// SAFETY: `Line` is a `repr(C)` struct of one `[u8; 64]` without padding. All bit patterns of it are valid,
// zeros included. It is `Copy` and holds no reference.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Line {}

/// Fractional bits of weights in [`Machine::write_bytes`].
pub(crate) const FRACTION: u32 = 12;

/// The operations that the page kernels need of a token.
pub(crate) trait Machine: Memory + Search {
    /// The token for operations on blocks.
    type Blocks: Memory + Search;
    /// 64 bytes.
    type Line: Copy;
    /// 16 lanes of `i32`.
    type Sum: Copy;
    /// 16 signed bytes, made ready for look-ups.
    type Table: Copy;
    /// 64 signed bytes, made ready for look-ups.
    type Levels: Copy;

    /// Number of query heads for which the sums of one tile fit the registers.
    const HEADS: usize;
    /// Number of key sums that fit the registers; with few heads, each head gets several.
    const CHAINS: usize;
    /// Number of fields of one head whose value sums fit the registers. Each field has a sum for each half of
    /// the weights. Weights that are bytes have one, so twice as many fit.
    const FIELDS: usize;
    /// The same number over fields and heads.
    const SUMS: usize;
    /// The number that is added to every level of a [`Machine::key_table`].
    const KEY_BIAS: i32;
    /// True if [`Machine::value_dot`] takes any unsigned bytes as weights. Others take weights below 128.
    const BYTE_WEIGHTS: bool;
    /// The number that is added to every level of values whose weights have 8 bits. With it, the machine
    /// multiplies unsigned bytes.
    const VALUE_BIAS: i32 = 0;

    /// The token for operations on blocks. Tokens that only differ in products of bytes share it.
    fn of_blocks(self) -> Self::Blocks;

    /// Runs `work`, an `#[inline(always)]` closure. It is inlined, except for the definition: there it is a
    /// function that the kernels share.
    #[inline(always)]
    fn step<R>(self, work: impl FnOnce(Self) -> R) -> R {
        work(self)
    }

    /// Reads a line.
    fn line(self, line: &Line) -> Self::Line;
    /// The bytes of a line.
    fn line_bytes(self, line: Self::Line) -> [u8; 64];
    /// Prefetches a line into the first-level cache.
    fn prefetch(self, line: &Line);
    /// Prefetches a line, but not into the first level, which other lines need. It is faster by 3 to 7 % if a
    /// page has several kilobytes.
    #[inline(always)]
    fn prefetch_near(self, line: &Line) {
        self.prefetch(line);
    }
    /// Level tables for [`Machine::level`]. The table for values has no bias, the one for keys has it.
    fn value_table(self, levels: &[i8; 16]) -> Self::Table;
    /// See [`Machine::value_table`].
    fn key_table(self, levels: &[i8; 16]) -> Self::Table;
    /// Levels of field `FIELD` (of `BITS` bits: 1, 2 or 4) of every byte.
    fn level<const BITS: usize, const FIELD: usize>(self, line: Self::Line, table: Self::Table)
    -> Self::Line;
    /// Levels of the code `FIELD` of the eight 3-bit codes in a byte column of three lines.
    fn level3<const FIELD: usize>(self, lines: [Self::Line; 3], table: Self::Table) -> Self::Line;
    /// Levels of 8-bit codes, which are their own levels, with the bias added.
    fn key_bytes(self, line: Self::Line) -> Self::Line;

    /// Level tables for [`Machine::look_up`]. The table for values has no bias, the one for keys has it.
    /// Tables of fewer than 64 levels are repeated.
    fn value_levels(self, levels: &[i8; 64]) -> Self::Levels;
    /// See [`Machine::value_levels`].
    fn key_levels(self, levels: &[i8; 64]) -> Self::Levels;
    /// Levels of the low `BITS` (4, 5 or 6) bits of every byte.
    fn look_up<const BITS: usize>(self, index: Self::Line, levels: Self::Levels) -> Self::Line;
    /// Bitwise exclusive or.
    fn xor(self, a: Self::Line, b: Self::Line) -> Self::Line;
    /// Bitwise and.
    fn and(self, a: Self::Line, b: Self::Line) -> Self::Line;
    /// In every byte, the bits of `MASK` from `a` and the others from `b`.
    fn merge<const MASK: u8>(self, a: Self::Line, b: Self::Line) -> Self::Line;
    /// Every byte shifted up by `N` bits; the low bits are undefined.
    fn up<const N: u32>(self, v: Self::Line) -> Self::Line;
    /// Every byte shifted down by `N` bits; the high bits are undefined.
    fn down<const N: u32>(self, v: Self::Line) -> Self::Line;
    /// Every byte rotated up by one bit.
    fn rotate(self, v: Self::Line) -> Self::Line;
    /// In every dword, the last `N` bytes of `before`, then the first bytes of `now`.
    fn follow_bytes<const N: usize>(self, now: Self::Line, before: Self::Line) -> Self::Line;
    /// In every 128 bits, the last `N` dwords of `before`, then the first dwords of `now`.
    fn follow_dwords<const N: usize>(self, now: Self::Line, before: Self::Line) -> Self::Line;

    /// In every dword, the two bytes of half `HALF` of `even`, each followed by the byte of `odd`.
    fn pair_bytes<const HALF: usize>(self, even: Self::Line, odd: Self::Line) -> Self::Line;
    /// In every 128 bits, the two dwords of half `HALF` of `even`, each followed by the dword of `odd`.
    fn pair_dwords<const HALF: usize>(self, even: Self::Line, odd: Self::Line) -> Self::Line;

    /// Sums of 0.
    fn zero(self) -> Self::Sum;
    /// The same sum in all lanes.
    fn all(self, sum: i32) -> Self::Sum;
    /// Sums of these lanes.
    fn sums(self, lanes: &[i32; 16]) -> Self::Sum;
    /// Lane-wise sum.
    fn add(self, a: Self::Sum, b: Self::Sum) -> Self::Sum;
    /// Adds the dot product of each dword's four levels (from a key table, above -128) and `query`, four
    /// signed bytes above -128.
    fn key_dot(self, sum: Self::Sum, levels: Self::Line, query: u32) -> Self::Sum;
    /// [`Machine::key_dot`] of [`Machine::key_bytes`], which may be -128.
    #[inline(always)]
    fn byte_dot(self, sum: Self::Sum, levels: Self::Line, query: u32) -> Self::Sum {
        self.key_dot(sum, levels, query)
    }
    /// Sixteen dwords of four weights.
    fn weights(self, weights: &[u32; 16]) -> Self::Line;
    /// The same four weights in every dword.
    fn splat_weights(self, weights: u32) -> Self::Line;
    /// Rounds weights of 0 to 16383 to the nearest integer, ties to even, and writes their high and their low
    /// 7 bits.
    fn write_halves(self, weights: Self::V, halves: &mut [[u8; 32]; 2]);
    /// Rounds weights, whose lowest [`FRACTION`] bits are fractions, to bytes. Each lane of `sums` has the
    /// weights of the lane so far; the result has the new ones too. A byte is the difference of the whole
    /// parts before and after. The error of a weight is therefore carried to the next one of the lane.
    /// Weights are at most 254, sums are below 2^30.
    fn write_bytes(self, weights: Self::V, sums: [Self::Sum; 2], bytes: &mut [u8; 32]) -> [Self::Sum; 2];
    /// Adds the dot product of each dword's four levels, [`Machine::VALUE_BIAS`] included, and four weights
    /// ([`Machine::BYTE_WEIGHTS`]).
    fn value_dot(self, sum: Self::Sum, levels: Self::Line, weights: Self::Line) -> Self::Sum;
    /// The same for levels without the bias and weights below 128.
    #[inline(always)]
    fn wide_dot(self, sum: Self::Sum, levels: Self::Line, weights: Self::Line) -> Self::Sum {
        self.value_dot(sum, levels, weights)
    }
    /// The lanes.
    fn lanes(self, sum: Self::Sum) -> [i32; 16];
    /// The sums of the four 128-bit quarters of each register: four lanes per register.
    #[inline(always)]
    fn sum_quads<const N: usize>(self, sums: [Self::Sum; N]) -> [[i32; 4]; N] {
        let mut quads = [[0; 4]; N];
        for (quad, sum) in quads.iter_mut().zip(sums) {
            for quarter in self.lanes(sum).as_chunks::<4>().0 {
                for p in 0..4 {
                    quad[p] += quarter[p];
                }
            }
        }
        quads
    }
    /// The lanes of two sums. They are below 2^24, so they are exact.
    fn floats(self, sums: [Self::Sum; 2]) -> Self::V;

    /// Widens halves to f32, exactly.
    fn widen16(self, halves: &[u16; 16]) -> [f32; 16];
    /// Widens 32 halves to f32, exactly.
    fn load_halves(self, halves: &[u16; 32]) -> Self::V;
    /// `acc + a * b`, fused if the machine can. Only f16 rows use it, because they do not promise equal bits.
    fn fma(self, acc: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// The larger of two numbers in each lane; for two zeros, either one.
    fn larger(self, a: Self::V, b: Self::V) -> Self::V;
    /// The sums of the lanes of four registers, in any order.
    fn sum4(self, v: [Self::V; 4]) -> [f32; 4];
}

/// [`Memory::look_up_levels`] line by line.
#[inline(always)]
pub(crate) fn look_up_levels<I: Machine>(isa: I, indices: &mut [u8], levels: &[i8; 64]) {
    let table = isa.value_levels(levels);
    let (lines, rest) = indices.as_chunks_mut::<64>();
    for line in lines {
        *line = isa.line_bytes(isa.look_up::<6>(isa.line(&Line(*line)), table));
    }
    Portable.look_up_levels(rest, levels);
}

/// The source of each byte of [`Machine::pair_bytes`] in 128 bits: below 16 it is in `even`, from 16 on in
/// `odd`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) const fn pair_index(half: usize) -> [u8; 16] {
    let (mut index, mut i) = ([0; 16], 0);
    while i < 16 {
        index[i] = (i % 2 * 16 + i / 4 * 4 + 2 * half + i % 4 / 2) as u8;
        i += 1;
    }
    index
}

/// 1.5 * 2^23: adding and then subtracting it rounds a number below 2^22, ties to even.
const ROUND: f32 = 12_582_912.0;

/// The code in field `FIELD` of a byte, for fields of `BITS` bits.
const fn field(byte: u8, bits: usize, field: usize) -> usize {
    (byte >> (bits * field)) as usize & ((1 << bits) - 1)
}

/// The code `FIELD` of the eight codes in bytes a, b, c: see `page::plan`.
const fn field3(a: u8, b: u8, c: u8, field: usize) -> usize {
    let code = match field {
        0 => a,
        1 => a >> 3,
        2 => b,
        3 => b >> 3,
        4 => c,
        5 => c >> 3,
        6 => (a >> 6) | (c >> 4 & 4),
        _ => (b >> 6) | (c >> 5 & 4),
    };
    code as usize & 7
}

/// Large operations are compiled once, not inlined at each use. The definition need not be fast, and the
/// crate builds in four fifths of the time.
impl Machine for Portable {
    type Blocks = Self;
    type Line = [u8; 64];
    type Sum = [i32; 16];
    type Table = [i8; 16];
    type Levels = [i8; 64];

    const HEADS: usize = 1;
    const CHAINS: usize = 4;
    const FIELDS: usize = 8;
    const SUMS: usize = 8;
    const KEY_BIAS: i32 = 0;
    const BYTE_WEIGHTS: bool = true;

    #[inline(always)]
    fn of_blocks(self) -> Self {
        self
    }

    #[inline(never)]
    fn step<R>(self, work: impl FnOnce(Self) -> R) -> R {
        work(self)
    }

    #[inline(always)]
    fn line(self, line: &Line) -> [u8; 64] {
        line.0
    }

    #[inline(always)]
    fn line_bytes(self, line: [u8; 64]) -> [u8; 64] {
        line
    }

    #[inline(always)]
    fn prefetch(self, _: &Line) {}

    #[inline(always)]
    fn value_table(self, levels: &[i8; 16]) -> [i8; 16] {
        *levels
    }

    #[inline(always)]
    fn key_table(self, levels: &[i8; 16]) -> [i8; 16] {
        *levels
    }

    #[inline(never)]
    fn level<const BITS: usize, const FIELD: usize>(self, line: [u8; 64], table: [i8; 16]) -> [u8; 64] {
        line.map(|byte| table[field(byte, BITS, FIELD)] as u8)
    }

    #[inline(never)]
    fn level3<const FIELD: usize>(self, lines: [[u8; 64]; 3], table: [i8; 16]) -> [u8; 64] {
        core::array::from_fn(|i| table[field3(lines[0][i], lines[1][i], lines[2][i], FIELD)] as u8)
    }

    #[inline(always)]
    fn key_bytes(self, line: [u8; 64]) -> [u8; 64] {
        line
    }

    #[inline(always)]
    fn value_levels(self, levels: &[i8; 64]) -> [i8; 64] {
        *levels
    }

    #[inline(always)]
    fn key_levels(self, levels: &[i8; 64]) -> [i8; 64] {
        *levels
    }

    #[inline(never)]
    fn look_up<const BITS: usize>(self, index: [u8; 64], levels: [i8; 64]) -> [u8; 64] {
        index.map(|byte| levels[usize::from(byte) & ((1 << BITS) - 1)] as u8)
    }

    #[inline(always)]
    fn xor(self, a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        core::array::from_fn(|i| a[i] ^ b[i])
    }

    #[inline(always)]
    fn and(self, a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        core::array::from_fn(|i| a[i] & b[i])
    }

    #[inline(never)]
    fn merge<const MASK: u8>(self, a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        core::array::from_fn(|i| a[i] & MASK | b[i] & !MASK)
    }

    #[inline(never)]
    fn up<const N: u32>(self, v: [u8; 64]) -> [u8; 64] {
        v.map(|byte| byte << N)
    }

    #[inline(never)]
    fn down<const N: u32>(self, v: [u8; 64]) -> [u8; 64] {
        v.map(|byte| byte >> N)
    }

    #[inline(always)]
    fn rotate(self, v: [u8; 64]) -> [u8; 64] {
        v.map(|byte| byte.rotate_left(1))
    }

    #[inline(never)]
    fn follow_bytes<const N: usize>(self, now: [u8; 64], before: [u8; 64]) -> [u8; 64] {
        core::array::from_fn(|i| if i % 4 < N { before[i + 4 - N] } else { now[i - N] })
    }

    #[inline(never)]
    fn follow_dwords<const N: usize>(self, now: [u8; 64], before: [u8; 64]) -> [u8; 64] {
        core::array::from_fn(|i| if i % 16 < 4 * N { before[i + 16 - 4 * N] } else { now[i - 4 * N] })
    }

    #[inline(never)]
    fn pair_bytes<const HALF: usize>(self, even: [u8; 64], odd: [u8; 64]) -> [u8; 64] {
        core::array::from_fn(|i| [even, odd][i % 2][i / 4 * 4 + 2 * HALF + i % 4 / 2])
    }

    #[inline(never)]
    fn pair_dwords<const HALF: usize>(self, even: [u8; 64], odd: [u8; 64]) -> [u8; 64] {
        core::array::from_fn(|i| [even, odd][i / 4 % 2][i / 16 * 16 + 8 * HALF + i % 16 / 8 * 4 + i % 4])
    }

    #[inline(always)]
    fn zero(self) -> [i32; 16] {
        [0; 16]
    }

    #[inline(always)]
    fn all(self, sum: i32) -> [i32; 16] {
        [sum; 16]
    }

    #[inline(always)]
    fn sums(self, lanes: &[i32; 16]) -> [i32; 16] {
        *lanes
    }

    #[inline(always)]
    fn add(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        core::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn key_dot(self, sum: [i32; 16], levels: [u8; 64], query: u32) -> [i32; 16] {
        self.byte_dot(sum, levels, query)
    }

    #[inline(never)]
    fn byte_dot(self, mut sum: [i32; 16], levels: [u8; 64], query: u32) -> [i32; 16] {
        let query = query.to_le_bytes().map(|byte| i32::from(byte.cast_signed()));
        for (lane, levels) in sum.iter_mut().zip(levels.as_chunks::<4>().0) {
            for (level, query) in levels.iter().zip(query) {
                *lane += i32::from(level.cast_signed()) * query;
            }
        }
        sum
    }

    #[inline(always)]
    fn weights(self, weights: &[u32; 16]) -> [u8; 64] {
        core::array::from_fn(|i| weights[i / 4].to_le_bytes()[i % 4])
    }

    #[inline(always)]
    fn splat_weights(self, weights: u32) -> [u8; 64] {
        self.weights(&[weights; 16])
    }

    #[inline(never)]
    fn write_bytes(self, weights: F32x32, mut sums: [[i32; 16]; 2], bytes: &mut [u8; 32]) -> [[i32; 16]; 2] {
        for ((weight, sum), byte) in weights.0.into_iter().zip(sums.as_flattened_mut()).zip(bytes) {
            let before = *sum >> FRACTION;
            *sum += (weight + ROUND - ROUND) as i32;
            *byte = ((*sum >> FRACTION) - before) as u8;
        }
        sums
    }

    #[inline(never)]
    fn write_halves(self, weights: F32x32, [high, low]: &mut [[u8; 32]; 2]) {
        for (weight, (high, low)) in weights.0.into_iter().zip(high.iter_mut().zip(low)) {
            let weight = (weight + ROUND - ROUND) as u16;
            (*high, *low) = ((weight >> 7) as u8, (weight & 127) as u8);
        }
    }

    #[inline(never)]
    fn value_dot(self, mut sum: [i32; 16], levels: [u8; 64], weights: [u8; 64]) -> [i32; 16] {
        let products = levels.as_chunks::<4>().0.iter().zip(weights.as_chunks::<4>().0);
        for (lane, (levels, weights)) in sum.iter_mut().zip(products) {
            for (&level, &weight) in levels.iter().zip(weights) {
                *lane += i32::from(level as i8) * i32::from(weight);
            }
        }
        sum
    }

    #[inline(always)]
    fn lanes(self, sum: [i32; 16]) -> [i32; 16] {
        sum
    }

    #[inline(always)]
    fn floats(self, sums: [[i32; 16]; 2]) -> F32x32 {
        F32x32(core::array::from_fn(|i| sums[i / 16][i % 16] as f32))
    }

    #[inline(always)]
    fn widen16(self, halves: &[u16; 16]) -> [f32; 16] {
        halves.map(|half| half::f16::from_bits(half).to_f32())
    }

    #[inline(always)]
    fn load_halves(self, halves: &[u16; 32]) -> F32x32 {
        F32x32(halves.map(|half| half::f16::from_bits(half).to_f32()))
    }

    #[inline(always)]
    fn fma(self, acc: F32x32, a: F32x32, b: F32x32) -> F32x32 {
        acc + a * b
    }

    #[inline(always)]
    fn larger(self, mut a: F32x32, b: F32x32) -> F32x32 {
        for (a, b) in a.0.iter_mut().zip(b.0) {
            *a = if *a > b { *a } else { b };
        }
        a
    }

    #[inline(always)]
    fn sum4(self, v: [F32x32; 4]) -> [f32; 4] {
        v.map(tqkv_core::unstable::machine::Lanes::sum)
    }
}
