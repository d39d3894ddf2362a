//! Levels as bytes, which is how tensor cores multiply them.
//!
//! A level is a signed 16-bit integer times a unit: 256 times a high byte plus a low byte, both signed, so
//! that what is dropped below them has mean 0. The bytes of 8 levels are a small table, and four codes become
//! four bytes by one byte permutation whose choice is the codes themselves. Of 16 levels the upper 8 are the
//! lower ones negated, so they are read there and all their bits flipped: that makes -x - 257 of x, and 4-bit
//! levels are integers plus half of 257, which is added where sums are complete. The unit is the one that
//! loses least: 8e-6 of the levels' root mean square for 16 levels, 1e-6 and less for fewer.

use crate::threads::Threads;
use tqkv_core::AnyCodec;

/// Words of [`table`].
pub const TABLE_WORDS: usize = 6;

/// What 4-bit levels have above their integers: half of 257.
const MIDDLE: f64 = 128.5;

/// The levels of a codec as [`Planes`] loads them: high bytes, low bytes, then the bits of unit and middle.
/// 8-bit codes are their own high bytes.
pub fn table(codec: &AnyCodec) -> [u32; TABLE_WORDS] {
    let levels = codec.codebook().map_or(&[][..], |book| book.levels());
    let (levels, middle) = if levels.len() == 16 { (&levels[..8], MIDDLE) } else { (levels, 0.0) };
    let steps = best_steps(levels, middle);
    let mut words = [0; TABLE_WORDS];
    // Fewer levels repeat, so that the bits above a code are of no account.
    for (i, &level) in (0..8).zip(levels.iter().cycle()) {
        let integer = nearest(f64::from(level) * steps - middle);
        for (plane, byte) in [(integer + 128) >> 8, integer].into_iter().enumerate() {
            words[2 * plane + i / 4] |= ((byte & 0xff) as u32) << (8 * (i % 4));
        }
    }
    (words[4], words[5]) = (((1.0 / steps) as f32).to_bits(), (middle as f32).to_bits());
    words
}

/// Largest integer of two signed bytes.
const LARGEST: i32 = 127 * 256 + 127;

/// Units in 1, chosen so that all levels are close to integers plus `middle`; of 8-bit codes, 256.
fn best_steps(levels: &[f32], middle: f64) -> f64 {
    let largest = levels.iter().fold(0.0, |a: f64, &level| a.max(f64::from(level.abs())));
    if largest == 0.0 {
        return 256.0;
    }
    let (mut best, mut least) = (0.0, f64::INFINITY);
    for top in LARGEST / 2..=LARGEST {
        let steps = (f64::from(top) + middle) / largest;
        let error = |&level: &f32| {
            let exact = f64::from(level) * steps - middle;
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

/// Two tables of 8 bytes, the same for all threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planes {
    high: [u32; 2],
    low: [u32; 2],
    /// What 1 stands for.
    pub(crate) unit: f32,
    /// What levels have above their integers.
    pub(crate) middle: f32,
}

/// A thread's codes: as many words as the widest code takes.
pub(crate) type Words = [u32; 16];

/// Four bytes of each of two runs of four codes.
pub(crate) type Bytes = [u32; 2];

impl Planes {
    /// Reads what [`table`] made.
    #[inline(always)]
    pub(crate) fn load<T: Threads>(memory: T::Memory) -> Self {
        let word = |i: u32| T::read(memory, 4 * i);
        Self {
            high: [word(0), word(1)],
            low: [word(2), word(3)],
            unit: f32::from_bits(word(4)),
            middle: f32::from_bits(word(5)),
        }
    }

    /// High and low bytes of the 8 codes of a unit, in the order of [`position`]; no low bytes for 8 bits.
    #[inline(always)]
    pub(crate) fn bytes<T: Threads, const BITS: usize>(&self, words: &Words, unit: usize) -> [Bytes; 2] {
        let look_up = |plane: [u32; 2], codes: u32| T::permute(plane[0], plane[1], codes);
        let both = |codes: Bytes| [self.high, self.low].map(|plane| codes.map(|codes| look_up(plane, codes)));
        match BITS {
            8 => [[words[2 * unit % 16], words[(2 * unit + 1) % 16]], [0, 0]],
            4 => {
                let codes = words[unit];
                // The upper levels, whose codes have their top bits, are counted backwards.
                let inner = (codes ^ ((codes >> 3 & 0x1111_1111) * 7)) & 0x7777_7777;
                let flips = flips::<T>(codes);
                both([inner, inner >> 16]).map(|bytes| [bytes[0] ^ flips[0], bytes[1] ^ flips[1]])
            }
            3 => {
                let (word, shift) = (3 * unit / 4, 24 * unit as u32 % 32);
                let pair = u64::from(words[word % 16]) | u64::from(words[(word + 1) % 16]) << 32;
                let codes = spread((pair >> shift) as u32);
                both([codes, codes >> 16])
            }
            _ => {
                let (codes, shift) = (words[unit / 2], 16 * (unit as u32 % 2));
                both([codes >> shift & 0x3333, codes >> (shift + 2) & 0x3333])
            }
        }
    }
}

/// Position among the 8 coordinates of a unit of code `i` of the run `run` of four.
#[inline(always)]
pub(crate) const fn position(bits: u32, run: u32, i: u32) -> u32 {
    // Codes of 2 bits are taken apart into even and odd ones.
    if bits == 2 { 2 * i + run } else { 4 * run + i }
}

/// Bytes of ones where nibbles 0 to 3, and 4 to 7, have their top bits.
#[inline(always)]
fn flips<T: Threads>(nibbles: u32) -> Bytes {
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
