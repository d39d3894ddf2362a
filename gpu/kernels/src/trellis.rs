//! Trellis blocks: `t2`, `t3`, `t4`. The search for their codes is in [`crate::viterbi`].
//!
//! A plane has n = 4 G bytes, and coordinate t is bit t / n of byte t mod n. So word w of every plane holds
//! the same 32 coordinates: t = n k + 4 w + b is at bit 8 b + k. A thread that has word w of each plane has
//! these coordinates completely. To go back some coordinates is to go back bytes: a funnel shift with the
//! words before, which neighbouring threads have. So the parities of 32 coordinates take a few shifts and
//! XORs, and swaps of bits between words turn planes into indices.

use crate::tables::Words;
use crate::threads::{Threads, shuffle_f32};
use crate::warp::{Lane, Warp};
use core::marker::PhantomData;
use tqkv_core::code::{Code, Layout};
use tqkv_core::unstable::Levels;
use tqkv_core::unstable::StoredScale;
use tqkv_core::unstable::machine::Lanes;
use tqkv_core::unstable::trellis::{Candidate, MAX_MEMORY, Plain, Vector, offsets, round_target};
use tqkv_core::{Effort, ScaleMode};

/// Reads and writes the planes of a trellis code: `t2`, `t3` or `t4`.
#[derive(Debug)]
pub(crate) struct Trellis<C>(PhantomData<C>);

/// Words that [`Trellis::nibbles`] makes from one word per plane: four of nibbles, and two planes.
pub(crate) const NIBBLE_WORDS: usize = 6;

/// The sign bit of a float.
const SIGN: u32 = 1 << 31;

impl<C: Code> Trellis<C> {
    /// Number of planes.
    pub(crate) const BITS: usize = match C::LAYOUT {
        Layout::Planes(Plain::Bits(plain @ 1..=3)) => 1 + plain as usize,
        Layout::Planes(_) => panic!("a rate without kernels"),
        // Evaluated at compile time.
        _ => panic!("not a trellis code"),
    };
    pub(crate) const TRELLIS: &tqkv_core::unstable::trellis::Trellis<'static> = match C::LEVELS {
        Levels::Trellis(trellis) => trellis,
        Levels::Values | Levels::Codes(_) | Levels::LloydMax | Levels::Nested => panic!("not a trellis code"),
    };
    pub(crate) const CODE: tqkv_core::unstable::trellis::Code = Self::TRELLIS.code;

    /// Levels by the low five bits of the index. If there are 64 levels, the upper half is the lower half in
    /// reverse, negated; see [`Self::fold`].
    const TABLE: [f32; 32] = {
        let (mut table, mut i) = ([0.0; 32], 0);
        while i < 32 {
            let level = Self::CODE.levels[i % Self::CODE.level_count()];
            assert!(Self::BITS < 4 || level == -Self::CODE.levels[63 - i]);
            table[i] = level as f32;
            i += 1;
        }
        table
    };

    /// Parities of a thread's coordinates, from the coded word and the two words before it, lowest parity
    /// first.
    #[inline(always)]
    fn parity_words(now: u32, one: u32, two: u32) -> [u32; 3] {
        let mut parities = [0; 3];
        unroll32!(BACK => {
            if BACK <= MAX_MEMORY {
                let (near, far) = if BACK < 4 { (now, one) } else { (one, two) };
                let shift = 8 * (BACK as u32 % 4);
                let word = match BACK {
                    0 | 4 => near,
                    8 => two,
                    _ => near << shift | far >> ((32 - shift) % 32),
                };
                let tapped = |parity, generator: usize| {
                    if u32::from(Self::CODE.generators[generator]) >> BACK & 1 == 0 { parity } else { parity ^ word }
                };
                parities = [tapped(parities[0], 2), tapped(parities[1], 1), tapped(parities[2], 0)];
            }
        });
        parities
    }

    /// Parity planes from the coded plane. Thread i has word i mod G of each.
    #[inline(always)]
    pub(crate) fn parities<T: Threads, const G: usize>(coded: T::Of<u32>) -> T::Of<[u32; 3]> {
        let before = T::zip(earlier::<T, G>(coded, 1), earlier::<T, G>(coded, 2), |one, two| (one, two));
        T::zip(coded, before, |now, (one, two)| Self::parity_words(now, one, two))
    }

    /// At 4 bits, mirrors the indices of negative sign to the lower half, which turns six planes into five.
    #[inline(always)]
    fn fold(mut planes: [u32; 5], words: [u32; 8]) -> [u32; 5] {
        if Self::BITS == 4 {
            planes = planes.map(|plane| plane ^ words[3]);
        }
        planes
    }

    /// The indices of a thread's coordinates. Byte b of word k is the index of the coordinate at bit 8 b + k,
    /// in its low five bits (four at 2 bits).
    #[inline(always)]
    fn indices(parities: [u32; 3], words: [u32; 8]) -> [u32; 8] {
        let [p0, p1, p2] = parities;
        let planes = Self::fold([p0, p1, p2, words[1], words[2]], words);
        let ([n0, n1, n2, n3], p4) = (Self::fours(planes), planes[4]);
        if Self::BITS == 2 {
            return [n0, n1, n2, n3, n0 >> 4, n1 >> 4, n2 >> 4, n3 >> 4];
        }
        // Bits 5 to 7 of a byte have no effect.
        let low = |nibbles: u32, c: u32| nibbles & LOW_NIBBLES | p4 << (4 - c) & !LOW_NIBBLES;
        let high = |nibbles: u32, c: u32| nibbles >> 4 & LOW_NIBBLES | p4 >> c & !LOW_NIBBLES;
        [low(n0, 0), low(n1, 1), low(n2, 2), low(n3, 3), high(n0, 0), high(n1, 1), high(n2, 2), high(n3, 3)]
    }

    /// For `UNITS` units from `first` on, the nibbles of the indices of their 8 coordinates. The planes of
    /// the fifth bit and of the sign follow. The row is at `row` from `home`.
    #[inline(always)]
    pub(crate) fn nibbles<T: Threads, const G: usize, const UNITS: usize>(
        home: T::Memory,
        row: T::Of<u32>,
        first: T::Of<u32>,
    ) -> T::Of<Words> {
        let mut out = T::splat([0; 16]);
        unroll2!(UNITS.div_ceil(4), HALF => {
            let of_word = T::map(first, |first| first / 4 + HALF as u32);
            let load = |plane: u32, back: u32| {
                let word = T::map(of_word, |word| (word + 2 * G as u32 - back) % G as u32 + plane * G as u32);
                let word = T::load::<1>(home, T::zip(row, word, |row, word| row + 4 * word));
                T::zip(word, of_word, |[word], at| if at < back { around(word) } else { word })
            };
            let before = T::zip(load(0, 1), load(0, 2), |one, two| (one, two));
            let parities = T::zip(load(0, 0), before, |now, (one, two)| Self::parity_words(now, one, two));
            let plane = |plane: u32| if (plane as usize) < Self::BITS { load(plane, 0) } else { T::splat(0) };
            let others = T::zip(plane(1), T::zip(plane(2), plane(3), |b, c| (b, c)), |a, (b, c)| {
                [0, a, b, c, 0, 0, 0, 0]
            });
            let words = T::zip(parities, others, |[p0, p1, p2], others| {
                let planes = Self::fold([p0, p1, p2, others[1], others[2]], others);
                let [n0, n1, n2, n3] = Self::fours(planes);
                [n0, n1, n2, n3, planes[4], others[3]]
            });
            out = T::zip(T::zip(words, first, |words, first| (words, first)), out, |(words, first), mut out| {
                let [n0, n1, n2, n3, fifth, sign] = words;
                // If several threads share a word, the result begins with the units from the thread's first
                // unit on.
                let from = first % 4;
                // This selects instead of a match, because no branch may differ between threads.
                let pick = |even: u32, odd: u32, bit: u32| if from & bit == 0 { even } else { odd };
                let nibbles = match UNITS {
                    1 => [pick(pick(n0, n1, 1), pick(n2, n3, 1), 2), 0, 0, 0],
                    2 => [pick(n0, n2, 2), pick(n1, n3, 2), 0, 0],
                    _ => [n0, n1, n2, n3],
                };
                let at = NIBBLE_WORDS * HALF;
                out[at..at + 4].copy_from_slice(&nibbles);
                (out[at + 4], out[at + 5]) = (fifth >> from, sign >> from);
                out
            });
        });
        out
    }

    /// Makes four words of nibbles, for bits k and k + 4 of the planes, from the four lower planes.
    #[inline(always)]
    fn fours([p0, p1, p2, p3, _]: [u32; 5]) -> [u32; 4] {
        let (even, odd) = swap::<1>(p0, p1);
        let (upper_even, upper_odd) = swap::<1>(p2, p3);
        let (n0, n2) = swap::<2>(even, upper_even);
        let (n1, n3) = swap::<2>(odd, upper_odd);
        [n0, n1, n2, n3]
    }

    /// Calls `f(4 k + b, level)` for the coordinates n k + 4 w + b of a thread that has word w of every
    /// plane. `table` holds one level per thread.
    #[inline(always)]
    pub(crate) fn each<T: Threads, const G: usize>(
        words: T::Of<[u32; 8]>,
        table: T::Of<f32>,
        mut f: impl FnMut(usize, T::Of<f32>),
    ) {
        let parities = Self::parities::<T, G>(T::map(words, |words| words[0]));
        let indices = T::zip(parities, words, Self::indices);
        unroll32!(I => {
            let index = T::map(indices, |indices| indices[I / 4] >> (8 * (I % 4)));
            let level = shuffle_f32::<T>(table, index);
            f(I, if Self::BITS == 4 {
                T::zip(level, words, |level, words| {
                    f32::from_bits(level.to_bits() ^ words[3] << (31 - 8 * (I % 4) - I / 4) & SIGN)
                })
            } else {
                level
            });
        });
    }

    /// Levels of coordinates 32 g + i in thread i, from planes whose word i mod G is in thread i.
    #[inline(always)]
    fn levels<T: Threads, const G: usize>(words: T::Of<[u32; 8]>) -> [Lane<T>; G] {
        let parities = Self::parities::<T, G>(T::map(words, |words| words[0]));
        let planes = T::zip(parities, words, |[p0, p1, p2], words| {
            Self::fold([p0, p1, p2, words[1], words[2]], words)
        });
        let plane = |p: usize| lane_bytes::<T, G>(T::map(planes, |planes| planes[p]));
        let planes =
            [plane(0), plane(1), plane(2), plane(3), if Self::BITS > 2 { plane(4) } else { T::splat(0) }];
        let negative =
            if Self::BITS == 4 { lane_bytes::<T, G>(T::map(words, |words| words[3])) } else { T::splat(0) };
        let table = T::gather(const { &Self::TABLE });
        let mut levels = [Lane(T::splat(0.0)); G];
        for (g, level) in levels.iter_mut().enumerate() {
            let bit = place_in_byte::<T, G>(g);
            let add = |index, byte, place: u32| {
                let here = T::zip(byte, bit, |byte, bit| byte >> bit & 1);
                T::zip(index, here, |index, here| index | here << place)
            };
            let index = add(add(add(T::splat(0), planes[0], 0), planes[1], 1), planes[2], 2);
            let index = add(add(index, planes[3], 3), planes[4], 4);
            let value = shuffle_f32::<T>(table, index);
            let sign = T::zip(negative, bit, |byte, bit| byte >> bit << 31);
            // Adding 0.0 turns a negative zero into the table's zero.
            level.0 = T::zip(value, sign, |value, sign| f32::from_bits(value.to_bits() ^ sign) + 0.0);
        }
        levels
    }
}

/// Bits 0 to 3 of every byte.
const LOW_NIBBLES: u32 = 0x0f0f_0f0f;

/// Joins fields of `WIDTH` bits to fields of 2 `WIDTH` bits: the fields at even places, then those at odd
/// places.
#[inline(always)]
fn swap<const WIDTH: u32>(low: u32, high: u32) -> (u32, u32) {
    let mask = if WIDTH == 1 { 0x5555_5555 } else { 0x3333_3333 };
    (low & mask | high << WIDTH & !mask, low >> WIDTH & mask | high & !mask)
}

/// The word of a plane that is `back` (1 or 2) words before each thread's.
#[inline(always)]
fn earlier<T: Threads, const G: usize>(plane: T::Of<u32>, back: u32) -> T::Of<u32> {
    let g = G as u32;
    let from = T::map(T::lane(), |lane| lane / g * g + (lane + 2 * g - back) % g);
    T::zip(T::shuffle(plane, from), T::lane(), |word, lane| {
        // Before the first byte come the last bytes, one bit further on. With two words, the second word back
        // is the thread's own word, once around.
        if lane % g < back { around(word) } else { word }
    })
}

/// The last words of a plane, used as the words before the first: every byte is rotated by one bit.
#[inline(always)]
fn around(word: u32) -> u32 {
    word << 1 & 0xfefe_fefe | word >> 7 & 0x0101_0101
}

/// The byte of a plane that holds the coordinates 32 g + lane of a thread.
#[inline(always)]
pub(crate) fn lane_bytes<T: Threads, const G: usize>(plane: T::Of<u32>) -> T::Of<u32> {
    let word = T::shuffle(plane, T::map(T::lane(), |lane| lane % (4 * G as u32) / 4));
    T::zip(word, T::lane(), |word, lane| word >> (8 * (lane % 4)) & 255)
}

/// The bit of coordinate 32 g + lane in that byte.
#[inline(always)]
pub(crate) fn place_in_byte<T: Threads, const G: usize>(g: usize) -> T::Of<u32> {
    T::map(T::lane(), |lane| (32 * g as u32 + lane) / (4 * G as u32))
}

impl<C: Code> Trellis<C> {
    /// Reads the levels, in units, of the codes at `offset`, which is even.
    #[inline(always)]
    pub(crate) fn read<T: Threads, const G: usize>(memory: T::Memory, offset: u32) -> [Lane<T>; G] {
        let mut words = T::splat([0; 8]);
        unroll32!(P => {
            if P < Self::BITS {
                // Reads halves of words, because blocks of weights only start at even offsets.
                let at = T::map(T::lane(), |lane| offset + 4 * (P as u32 * G as u32 + lane % G as u32));
                let halves = T::zip(
                    T::load_u16(memory, at),
                    T::load_u16(memory, T::map(at, |at| at + 2)),
                    |low, high| u32::from(low) | u32::from(high) << 16,
                );
                words = T::zip(words, halves, |mut words, word| {
                    words[P % 8] = word;
                    words
                });
            }
        });
        Self::levels::<T, G>(words)
    }

    /// Implements [`crate::format::Format::encode`].
    #[inline(always)]
    pub(crate) fn encode<T: Threads, const G: usize>(
        norm_squared: f32,
        mode: ScaleMode,
        effort: Effort,
        y: &[Lane<T>; G],
        workspace: T::Memory,
        home: T::Memory,
        row: u32,
    ) -> StoredScale {
        let (isa, code) = (Warp::<T>::new(), const { &Self::CODE });
        let vector = Vector::new(isa, code, norm_squared, y);
        let (mut best, mut planes) = (Candidate::NONE, T::splat([0; 8]));
        for &offset in offsets(effort) {
            let (factor, limit) = (vector.factor(code, offset), const { Self::CODE.limit() as f32 });
            let mut targets = [T::splat(0.0); G];
            for (target, &v) in targets.iter_mut().zip(y) {
                *target = T::map(v.0, |v| round_target(limit, v * factor));
            }
            let coded = Self::search::<T, G>(workspace, &targets);
            let (words, levels) = Self::complete::<T, G>(coded, &targets);
            let (mut cross, mut energy) = (Lane(T::splat(0.0)), Lane(T::splat(0.0)));
            for (&v, &level) in y.iter().zip(&levels) {
                cross = cross + v * level;
                energy = energy + level * level;
            }
            let candidate = Candidate::new(code, &vector, offset, cross.sum(), energy.sum());
            if candidate.beats(&best) {
                (best, planes) = (candidate, words);
            }
        }
        let stored = best.stored(isa, mode, 32 * G);
        if stored == StoredScale::OutOfRange {
            return stored;
        }
        if stored == StoredScale::Zero {
            planes = T::splat([0; 8]);
        }
        let active = T::map(T::lane(), |lane| lane < G as u32);
        unroll32!(P => {
            if P < Self::BITS {
                let at = T::map(T::lane(), |lane| row + 4 * (P as u32 * G as u32 + lane));
                T::store::<1>(home, at, T::map(planes, |planes| [planes[P % 8]]), active);
            }
        });
        stored
    }
}
