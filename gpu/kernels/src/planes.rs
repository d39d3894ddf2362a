//! Levels as bytes, which is how tensor cores multiply them.
//!
//! A level is a signed 16-bit integer times a unit: 256 times a high byte plus a low byte, both signed, so
//! that what is dropped below them has mean 0. The bytes of all levels are two small tables, and four codes
//! become a word of either by one byte permutation whose choice is the codes themselves. The unit is the
//! one that loses least: 7e-6 of the levels' root mean square for 16 levels, 1e-6 and less for fewer.

use crate::threads::Threads;
use tqkv_core::AnyCodec;

/// Words of [`table`].
pub const TABLE_WORDS: usize = 9;

/// The levels of a codec as [`Planes`] loads them: high bytes, low bytes, the unit's bits. 8-bit codes are
/// their own high bytes.
pub fn table(codec: &AnyCodec) -> [u32; TABLE_WORDS] {
    let mut words = [0; TABLE_WORDS];
    let levels = codec.codebook().map_or(&[][..], |book| book.levels());
    let steps = best_steps(levels);
    for i in 0..16 {
        // Fewer levels repeat, so that the bits above a code are of no account.
        let level = levels.get(i % levels.len().max(1)).copied().unwrap_or_default();
        let integer = nearest(f64::from(level) * steps);
        let bytes = [(integer + 128) >> 8, integer];
        for (plane, byte) in bytes.iter().enumerate() {
            words[4 * plane + i / 4] |= (byte & 0xff) as u32 * (1 << (8 * (i % 4)));
        }
    }
    words[8] = ((1.0 / steps) as f32).to_bits();
    words
}

/// Largest integer of two signed bytes.
const LARGEST: i32 = 127 * 256 + 127;

/// Units in 1, chosen so that all levels are close to integers.
fn best_steps(levels: &[f32]) -> f64 {
    let largest = levels.iter().fold(0.0, |a: f64, &level| a.max(f64::from(level.abs())));
    if largest == 0.0 {
        return 256.0;
    }
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

/// Two tables of 16 bytes, the same for all threads, and the unit of the integers that they make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planes {
    high: [u32; 4],
    low: [u32; 4],
    pub(crate) unit: f32,
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
            high: [word(0), word(1), word(2), word(3)],
            low: [word(4), word(5), word(6), word(7)],
            unit: f32::from_bits(word(8)),
        }
    }

    /// High and low bytes of the 8 codes of a unit, in the order of [`position`]; no low bytes for 8 bits.
    #[inline(always)]
    pub(crate) fn bytes<T: Threads, const BITS: usize>(&self, words: &Words, unit: usize) -> [Bytes; 2] {
        let eight =
            |codes: Bytes| [eight_levels::<T>(&self.high, codes), eight_levels::<T>(&self.low, codes)];
        match BITS {
            8 => [[words[2 * unit % 16], words[(2 * unit + 1) % 16]], [0, 0]],
            4 => {
                let codes = words[unit];
                [sixteen_levels::<T>(&self.high, codes), sixteen_levels::<T>(&self.low, codes)]
            }
            3 => {
                let (word, shift) = (3 * unit / 4, 24 * unit as u32 % 32);
                let both = u64::from(words[word % 16]) | u64::from(words[(word + 1) % 16]) << 32;
                let codes = spread((both >> shift) as u32);
                eight([codes, codes >> 16])
            }
            _ => {
                let (codes, shift) = (words[unit / 2], 16 * (unit as u32 % 2));
                eight([codes >> shift & 0x3333, codes >> (shift + 2) & 0x3333])
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

/// Look-ups in the first 8 bytes; codes are the low four nibbles of each word.
#[inline(always)]
fn eight_levels<T: Threads>(plane: &[u32; 4], codes: Bytes) -> Bytes {
    [T::permute(plane[0], plane[1], codes[0]), T::permute(plane[0], plane[1], codes[1])]
}

/// Look-ups of the 8 nibbles of a word in all 16 bytes: in both halves, and the code's top bit chooses.
#[inline(always)]
fn sixteen_levels<T: Threads>(plane: &[u32; 4], codes: u32) -> Bytes {
    let (even, inner) = (codes << 4, codes & 0x7777_7777);
    let four = |inner: u32, signs: u32| {
        let upper = T::permute(even, codes, signs);
        let low = T::permute(plane[0], plane[1], inner);
        let high = T::permute(plane[2], plane[3], inner);
        low & !upper | high & upper
    };
    // Copies of the top bits of nibbles 0 to 3 (bytes 0 and 1 of either word) and 4 to 7.
    [four(inner, 0xd9c8), four(inner >> 16, 0xfbea)]
}

/// Eight codes of 3 bits as nibbles.
#[inline(always)]
const fn spread(codes: u32) -> u32 {
    let fours = codes & 0xfff | (codes & 0xff_f000) << 4;
    let twos = fours & 0x003f_003f | (fours & 0x0fc0_0fc0) << 2;
    twos & 0x0707_0707 | (twos & 0x3838_3838) << 1
}
