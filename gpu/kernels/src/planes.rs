//! Levels as bytes, which is how tensor cores multiply them.
//!
//! A level is an integer of two or three signed bytes times a unit, signed so that what is dropped below them
//! has mean 0. The bytes of 8 levels are small tables, and four codes become four bytes by one byte
//! permutation whose choice is the codes themselves. Up to 8 levels come close to integers of two bytes, 2e-6
//! at most, with a unit that is searched for; 16 take three bytes. Of 16 levels the upper 8 are the lower
//! ones negated, so they are read there and all their bits flipped: that makes -x - 65793 of x, and 4-bit
//! levels are integers plus half of that, which is added where sums are complete. Levels of trellis codes are
//! single bytes, exactly.

use crate::page::{self, T2, T3, T4};
use crate::threads::Threads;
use crate::trellis::Trellis;
use tqkv_core::{AnyCodec, CodecId};

/// Words of [`table`].
pub const TABLE_WORDS: usize = 10;

/// What 4-bit levels have above their integers, in units of the second byte: half of 65793 / 256.
const MIDDLE: f64 = 65_793.0 / 512.0;

/// The levels of a codec as [`Planes`] loads them: 8 words of bytes, then the bits of unit and middle. The
/// bytes are those of a trellis code's 32 levels, or the first, second and third ones of 8 others; 8-bit codes
/// are their own first bytes.
pub fn table(codec: &AnyCodec) -> [u32; TABLE_WORDS] {
    match codec.id() {
        CodecId::T2 => Trellis::<2>::bytes(),
        CodecId::T3 => Trellis::<3>::bytes(),
        CodecId::T4 => Trellis::<4>::bytes(),
        _ => {
            let (mut levels, mut count) = ([0.0; 32], 0);
            let bytes = codec.codebook().map_or(&[][..], |book| book.bytes());
            for (level, &byte) in levels.iter_mut().zip(bytes) {
                *level = f32::from(byte) * codec.unit();
                count += 1;
            }
            scalar_table(&levels[..count])
        }
    }
}

fn scalar_table(levels: &[f32]) -> [u32; TABLE_WORDS] {
    let (levels, middle) = if levels.len() == 16 { (&levels[..8], MIDDLE) } else { (levels, 0.0) };
    let largest = levels.iter().fold(0.0, |a: f64, &level| a.max(f64::from(level.abs())));
    let steps = match levels {
        [] => 256.0,
        _ if middle != 0.0 => f64::from(LARGEST) / largest,
        _ => best_steps(levels, largest),
    };
    let mut words = [0; TABLE_WORDS];
    // Fewer levels repeat, so that the bits above a code are of no account.
    for (i, &level) in (0..8).zip(levels.iter().cycle()) {
        let exact = f64::from(level) * steps - middle;
        let integer = if middle == 0.0 { 256 * nearest(exact) } else { nearest(256.0 * exact) };
        let third = integer as i8;
        let upper = (integer - i32::from(third)) >> 8;
        let second = upper as i8;
        let first = ((upper - i32::from(second)) >> 8) as i8;
        for (plane, byte) in [first, second, third].into_iter().enumerate() {
            words[2 * plane + i / 4] |= u32::from(byte as u8) << (8 * (i % 4));
        }
    }
    (words[8], words[9]) = (((1.0 / steps) as f32).to_bits(), (middle as f32).to_bits());
    words
}

/// Largest integer of two signed bytes.
const LARGEST: i32 = 127 * 256 + 127;

/// Units in 1, chosen so that all levels are close to integers.
fn best_steps(levels: &[f32], largest: f64) -> f64 {
    let (mut best, mut least) = (0.0, f64::INFINITY);
    for top in LARGEST / 2..=LARGEST {
        let steps = f64::from(top) / largest;
        let error = |&level: &f32| {
            let exact = f64::from(level) * steps;
            let error = (exact - f64::from(nearest(exact))) / steps;
            error * error
        };
        let sum = levels.iter().map(error).sum();
        if sum < least {
            (best, least) = (steps, sum);
        }
    }
    best
}

/// The nearest integer.
fn nearest(x: f64) -> i32 {
    (x + if x < 0.0 { -0.5 } else { 0.5 }) as i32
}

/// The table, the same for all threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planes {
    bytes: [u32; 8],
    /// What 1 stands for.
    pub(crate) unit: f32,
    /// What levels have above their integers.
    pub(crate) middle: f32,
}

/// A thread's codes: as many words as the widest code takes.
pub(crate) type Words = [u32; 16];

/// Four bytes of each of two runs of four codes.
pub(crate) type Bytes = [u32; 2];

/// Bytes of a level.
pub(crate) const fn bytes_of(format: u32) -> usize {
    match format {
        4 => 3,
        2 | 3 => 2,
        _ => 1,
    }
}

impl Planes {
    /// Reads what [`table`] made.
    #[inline(always)]
    pub(crate) fn load<T: Threads>(memory: T::Memory) -> Self {
        let word = |i: u32| T::read(memory, 4 * i);
        Self {
            bytes: [word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7)],
            unit: f32::from_bits(word(8)),
            middle: f32::from_bits(word(9)),
        }
    }

    /// Look-ups among the 8 bytes of words 2 part and 2 part + 1.
    #[inline(always)]
    fn look_up<T: Threads>(&self, part: usize, codes: Bytes) -> Bytes {
        codes.map(|codes| T::permute(self.bytes[2 * part], self.bytes[2 * part + 1], codes))
    }

    /// First, second and third bytes of the 8 codes of unit `unit`, in the order of [`coordinate`]; as many as
    /// [`bytes_of`] says.
    #[inline(always)]
    pub(crate) fn levels<T: Threads, const FORMAT: u32>(&self, words: &Words, unit: usize) -> [Bytes; 3] {
        let look_up = |codes: Bytes| [0, 1, 2].map(|part| self.look_up::<T>(part, codes));
        match FORMAT {
            8 => [[words[2 * unit % 16], words[(2 * unit + 1) % 16]], [0; 2], [0; 2]],
            T2 | T3 | T4 => [self.trellis::<T, FORMAT>(words, unit), [0; 2], [0; 2]],
            4 => {
                let codes = words[unit];
                // The upper levels, whose codes have their top bits, are counted backwards.
                let inner = (codes ^ ((codes >> 3 & 0x1111_1111) * 7)) & 0x7777_7777;
                let flips = top_bits::<T>(codes);
                look_up([inner, inner >> 16]).map(|bytes| [bytes[0] ^ flips[0], bytes[1] ^ flips[1]])
            }
            3 => {
                let (word, shift) = (3 * unit / 4, 24 * unit as u32 % 32);
                let pair = u64::from(words[word % 16]) | u64::from(words[(word + 1) % 16]) << 32;
                let codes = spread((pair >> shift) as u32);
                look_up([codes, codes >> 16])
            }
            _ => {
                let (codes, shift) = (words[unit / 2], 16 * (unit as u32 % 2));
                look_up([codes >> shift & 0x3333, codes >> (shift + 2) & 0x3333])
            }
        }
    }

    /// Levels of 8 coordinates from what [`Trellis::nibbles`] gives.
    #[inline(always)]
    fn trellis<T: Threads, const FORMAT: u32>(&self, words: &Words, unit: usize) -> Bytes {
        let (first, place) = (NIBBLE_WORDS * (unit / 4) % 16, unit % 4);
        let codes = words[first + place];
        // The bit of a coordinate in the planes beside the nibbles, as the top bit of its nibble.
        let beside = |plane: usize| top_bits::<T>(words[(first + 4 + plane) % 16] << (3 - place));
        let inner = [codes & 0x7777_7777, (codes & 0x7777_7777) >> 16];
        let parts = |lower: usize| {
            choose(top_bits::<T>(codes), self.look_up::<T>(lower, inner), self.look_up::<T>(lower + 1, inner))
        };
        let mut levels = parts(0);
        if FORMAT != T2 {
            levels = choose(beside(0), levels, parts(2));
        }
        if FORMAT == T4 {
            let negative = beside(1);
            let negate = |level: u32, negative: u32| {
                // Bits flipped, and 1 added to each byte without a carry to the next.
                let flipped = level ^ negative;
                ((flipped & 0x7f7f_7f7f) + (negative & 0x0101_0101)) ^ (flipped & 0x8080_8080)
            };
            levels = [negate(levels[0], negative[0]), negate(levels[1], negative[1])];
        }
        levels
    }
}

/// Words that [`Trellis::nibbles`] makes of a word of each plane: four of nibbles, two planes beside them.
pub(crate) const NIBBLE_WORDS: usize = 6;

/// Bytes of the second where the mask has ones, else of the first.
#[inline(always)]
fn choose(mask: Bytes, first: Bytes, second: Bytes) -> Bytes {
    let one = |i: usize| first[i] & !mask[i] | second[i] & mask[i];
    [one(0), one(1)]
}

/// The coordinate of code `code` (0 to 7) of a vector's unit `unit`.
#[inline(always)]
pub(crate) const fn coordinate(format: u32, groups: u32, unit: u32, code: u32) -> u32 {
    if page::is_trellis(format) {
        // Unit 4 w + c has nibbles of bits c and c + 4 of bytes 4 w ..: the layout of module `trellis`.
        let (word, bit) = (unit / 4, unit % 4 + 4 * (code % 2));
        4 * groups * bit + 4 * word + code / 2
    } else if format == 2 {
        // Taken apart into even and odd codes.
        8 * unit + 2 * (code % 4) + code / 4
    } else {
        8 * unit + code
    }
}

/// Bytes of ones where nibbles 0 to 3, and 4 to 7, have their top bits.
#[inline(always)]
fn top_bits<T: Threads>(nibbles: u32) -> Bytes {
    let even = nibbles << 4;
    [T::permute(even, nibbles, 0xd9c8), T::permute(even, nibbles, 0xfbea)]
}

/// Eight codes of 3 bits as nibbles.
#[inline(always)]
const fn spread(codes: u32) -> u32 {
    let fours = codes & 0xfff | (codes & 0xff_f000) << 4;
    let twos = fours & 0x003f_003f | (fours & 0x0fc0_0fc0) << 2;
    twos & 0x0707_0707 | (twos & 0x3838_3838) << 1
}
