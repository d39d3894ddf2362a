//! Levels as bytes, the form in which tensor cores multiply them.
//!
//! In every code, a level is one signed byte times a unit. The bytes of 8 levels are a small table in two
//! registers. One byte permutation, which the codes select, turns four codes into four bytes. 16 levels take
//! two look-ups and a selection by the codes' top bits; 32 levels take four look-ups.

use crate::page::{self, format};
use crate::tables::{self, Words};
use crate::threads::Threads;
use crate::trellis::NIBBLE_WORDS;
use tqkv_core::code::{Code, S2};

/// The table of levels, the same for all threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planes {
    bytes: [u32; 8],
    /// The value of a level of 1.
    pub(crate) unit: f32,
}

/// Four bytes for each of two runs of four codes.
pub(crate) type Bytes = [u32; 2];

impl Planes {
    /// Reads the output of [`tables::tables`].
    #[inline(always)]
    pub(crate) fn load<T: Threads>(memory: T::Memory) -> Self {
        let word = |i: u32| T::read(memory, 4 * i);
        Self {
            bytes: [word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7)],
            unit: tables::unit::<T>(memory),
        }
    }

    /// Looks up 8 nibbles below 8 among the 8 bytes of words `2 part` and `2 part + 1`.
    #[inline(always)]
    fn look_up<T: Threads>(&self, part: usize, codes: u32) -> Bytes {
        let look_up = |codes| T::permute(self.bytes[2 * part], self.bytes[2 * part + 1], codes);
        [look_up(codes), look_up(upper::<T>(codes))]
    }

    /// Looks up 8 nibbles among the 16 bytes from word `4 part` on.
    #[inline(always)]
    fn look_up_nibbles<T: Threads>(&self, part: usize, codes: u32) -> Bytes {
        let inner = codes & 0x7777_7777;
        let (lower, upper) = (self.look_up::<T>(2 * part, inner), self.look_up::<T>(2 * part + 1, inner));
        choose(top_bits::<T>(codes), lower, upper)
    }

    /// Levels of 8 codes of 2 bits in the lower half of a word: the even ones, then the odd ones.
    #[inline(always)]
    pub(crate) fn of_twos<T: Threads>(&self, codes: u32) -> Bytes {
        let look_up = |codes| T::permute(self.bytes[0], self.bytes[1], codes & 0x3333);
        [look_up(codes), look_up(codes >> 2)]
    }

    /// Levels of 16 codes of 2 bits of two tokens, whose bytes alternate: pairs of the even codes, then of
    /// the odd ones.
    #[inline(always)]
    pub(crate) fn of_paired_twos<T: Threads>(&self, codes: u32) -> [u32; 4] {
        let ([a, b], [c, d]) =
            (self.look_up::<T>(0, codes & 0x3333_3333), self.look_up::<T>(0, codes >> 2 & 0x3333_3333));
        [a, b, c, d]
    }

    /// Levels of 8 codes of 3 bits, one per nibble.
    #[inline(always)]
    pub(crate) fn of_threes<T: Threads>(&self, nibbles: u32) -> Bytes {
        self.look_up::<T>(0, nibbles)
    }

    /// Levels of 8 codes of 4 bits.
    #[inline(always)]
    pub(crate) fn of_fours<T: Threads>(&self, codes: u32) -> Bytes {
        self.look_up_nibbles::<T>(0, codes)
    }

    /// Levels of 8 coordinates from the output of [`crate::trellis::Trellis::nibbles`] for `planes` planes.
    #[inline(always)]
    pub(crate) fn of_nibbles<T: Threads>(&self, planes: usize, words: &Words, unit: usize) -> Bytes {
        let (first, place) = (NIBBLE_WORDS * (unit / 4) % 16, unit % 4);
        let codes = words[first + place];
        // Moves the bit of a coordinate in a plane next to the nibbles to the top bit of its nibble.
        let beside = |plane: usize| top_bits::<T>(words[(first + 4 + plane) % 16] << (3 - place));
        let mut levels = self.look_up_nibbles::<T>(0, codes);
        if planes > 2 {
            levels = choose(beside(0), levels, self.look_up_nibbles::<T>(1, codes));
        }
        if planes > 3 {
            let negative = beside(1);
            let negate = |level: u32, negative: u32| {
                // Flips the bits, and adds 1 to each byte without a carry to the next.
                let flipped = level ^ negative;
                ((flipped & 0x7f7f_7f7f) + (negative & 0x0101_0101)) ^ (flipped & 0x8080_8080)
            };
            levels = [negate(levels[0], negative[0]), negate(levels[1], negative[1])];
        }
        levels
    }
}

/// Takes bytes of `second` where the mask has ones, otherwise of `first`.
#[inline(always)]
fn choose(mask: Bytes, first: Bytes, second: Bytes) -> Bytes {
    let one = |i: usize| first[i] & !mask[i] | second[i] & mask[i];
    [one(0), one(1)]
}

/// The coordinate of code `code` (0 to 7) of unit `unit` of a vector.
#[inline(always)]
pub(crate) const fn coordinate(of: u32, groups: u32, unit: u32, code: u32) -> u32 {
    if page::is_trellis(of) {
        // Unit 4 w + c has the nibbles of bits c and c + 4 of bytes 4 w .., by the layout of module
        // `trellis`.
        let (word, bit) = (unit / 4, unit % 4 + 4 * (code % 2));
        4 * groups * bit + 4 * word + code / 2
    } else if of == format(S2::LAYOUT) {
        // The codes were split into even and odd ones.
        8 * unit + 2 * (code % 4) + code / 4
    } else {
        8 * unit + code
    }
}

/// Bytes of ones for nibbles 0 to 3, and 4 to 7, whose top bit is set.
#[inline(always)]
fn top_bits<T: Threads>(nibbles: u32) -> Bytes {
    let even = nibbles << 4;
    [T::permute(even, nibbles, 0xd9c8), T::permute(even, nibbles, 0xfbea)]
}

/// The upper half of a word, as a permutation. The compiler would move a shift before the mask of the
/// nibbles, and mask both halves.
#[inline(always)]
fn upper<T: Threads>(word: u32) -> u32 {
    T::permute(word, 0, 0x4432)
}

/// Alternates pairs of bytes of two tokens: pairs 0, 1 of both, then pairs 2, 3 of both.
#[inline(always)]
pub(crate) fn in_turn<T: Threads>(first: u32, second: u32) -> [u32; 2] {
    [T::permute(first, second, 0x5140), T::permute(first, second, 0x7362)]
}

/// Bytes of two tokens as factors: two coordinates of the first next to the same of the second.
#[inline(always)]
pub(crate) fn beside<T: Threads>(first: Bytes, second: Bytes) -> [u32; 4] {
    let pairs = |i: usize| [T::permute(first[i], second[i], 0x5410), T::permute(first[i], second[i], 0x7632)];
    let ([a, b], [c, d]) = (pairs(0), pairs(1));
    [a, b, c, d]
}

/// Codes `8 unit ..` of 3 bits as nibbles.
#[inline(always)]
pub(crate) fn spread(words: &Words, unit: usize) -> u32 {
    let (word, shift) = (3 * unit / 4, 24 * unit as u32 % 32);
    let pair = u64::from(words[word % 16]) | u64::from(words[(word + 1) % 16]) << 32;
    let codes = (pair >> shift) as u32;
    // These are multiplications, because they do not use the integer pipe.
    let fours = (codes & 0xfff) + (codes & 0xff_f000) * 16;
    let twos = fours + (fours & 0x0fc0_0fc0) * 3;
    twos + (twos & 0x3838_3838)
}
