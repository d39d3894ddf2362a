//! How attention reads codes: as runs of words for plain cores, and as units of 8 codes for tensor cores.

use crate::codecs::CODECS;
use crate::page;
use crate::planes::{Bytes, Planes, beside, in_turn, spread};
use crate::tables::Words;
use crate::threads::{Threads, shuffle_f32};
use crate::trellis::Trellis;
use tqkv_core::code::{Code, I8, S2, S3, S4, T2, T3, T4};

/// A code as attention reads it. One code stands for all codes of its layout, because levels come from a
/// table.
pub(crate) trait Reader: Code {
    /// Reads a thread's 32 coordinates of the row at `row`.
    fn fetch<T: Threads, const G: usize>(home: T::Memory, row: T::Of<u32>) -> T::Of<[u32; 8]>;

    /// Calls `f(i, level)` for these coordinates, in the order of [`crate::rows::StoredRows::each`]. `table` holds
    /// one level per thread.
    fn each<T: Threads, const G: usize>(
        words: T::Of<[u32; 8]>,
        table: T::Of<f32>,
        f: impl FnMut(usize, T::Of<f32>),
    );

    /// Reads `UNITS` units of 8 codes from `unit` on. They start at `start`; for trellis codes the row starts
    /// there.
    fn units<T: Threads, const G: usize, const UNITS: usize>(
        home: T::Memory,
        start: T::Of<u32>,
        unit: T::Of<u32>,
    ) -> T::Of<Words>;

    /// Levels of the 8 codes of a unit, in the order of [`crate::planes::coordinate`].
    fn bytes<T: Threads>(planes: &Planes, words: &Words, unit: usize) -> Bytes;

    /// Levels of the 8 codes of a unit of two tokens. A word has two coordinates, and two of its bytes are
    /// the first token's.
    #[inline(always)]
    fn pairs<T: Threads>(planes: &Planes, words: [&Words; 2], unit: usize) -> [u32; 4] {
        let [first, second] = words.map(|words| Self::bytes::<T>(planes, words, unit));
        beside::<T>(first, second)
    }
}

/// Implements codes that lie side by side. A row has the code, the levels of a unit, and the levels of a unit
/// of two tokens. The last is given if it is cheaper to pair codes than levels.
macro_rules! side_by_side {
    ($($code:ident $bytes:expr $(, $pairs:expr)?;)*) => { $(
        impl Reader for $code {
            #[inline(always)]
            fn fetch<T: Threads, const G: usize>(home: T::Memory, row: T::Of<u32>) -> T::Of<[u32; 8]> {
                run::<T, { $code::LAYOUT.bits() as usize }, G>(home, row)
            }

            #[inline(always)]
            fn each<T: Threads, const G: usize>(
                words: T::Of<[u32; 8]>,
                table: T::Of<f32>,
                f: impl FnMut(usize, T::Of<f32>),
            ) {
                each_code::<T, { $code::LAYOUT.bits() as usize }>(words, table, f);
            }

            #[inline(always)]
            fn units<T: Threads, const G: usize, const UNITS: usize>(
                home: T::Memory,
                start: T::Of<u32>,
                _unit: T::Of<u32>,
            ) -> T::Of<Words> {
                units::<T, { $code::LAYOUT.bits() as usize }, UNITS>(home, start)
            }

            #[inline(always)]
            fn bytes<T: Threads>(planes: &Planes, words: &Words, unit: usize) -> Bytes {
                $bytes(planes, words, unit)
            }

            $(
                #[inline(always)]
                fn pairs<T: Threads>(planes: &Planes, words: [&Words; 2], unit: usize) -> [u32; 4] {
                    $pairs(planes, words, unit)
                }
            )?
        }
    )* };
}

side_by_side! {
    S2 |planes: &Planes, words: &Words, unit: usize| planes.of_twos::<T>(words[unit / 2] >> (16 * (unit % 2))),
        |planes: &Planes, words: [&Words; 2], unit: usize| {
            let [first, second] = words.map(|words| words[unit / 2]);
            planes.of_paired_twos::<T>(in_turn::<T>(first, second)[unit % 2])
        };
    S3 |planes: &Planes, words: &Words, unit: usize| planes.of_threes::<T>(spread(words, unit)),
        |planes: &Planes, words: [&Words; 2], unit: usize| {
            let [first, second] = words.map(|words| spread(words, unit));
            look_up_pairs(in_turn::<T>(first, second), |codes| planes.of_threes::<T>(codes))
        };
    S4 |planes: &Planes, words: &Words, unit: usize| planes.of_fours::<T>(words[unit]),
        |planes: &Planes, words: [&Words; 2], unit: usize| {
            let [first, second] = words.map(|words| words[unit]);
            look_up_pairs(in_turn::<T>(first, second), |codes| planes.of_fours::<T>(codes))
        };
    I8 |_: &Planes, words: &Words, unit: usize| [words[2 * unit % 16], words[(2 * unit + 1) % 16]];
}

/// The levels of two words of codes.
#[inline(always)]
fn look_up_pairs(codes: [u32; 2], levels: impl Fn(u32) -> Bytes) -> [u32; 4] {
    let [[a, b], [c, d]] = codes.map(levels);
    [a, b, c, d]
}

/// Implements the planes of a trellis code.
macro_rules! in_planes {
    ($($code:ident)*) => { $(
        impl Reader for $code {
            #[inline(always)]
            fn fetch<T: Threads, const G: usize>(home: T::Memory, row: T::Of<u32>) -> T::Of<[u32; 8]> {
                planes::<T, { $code::LAYOUT.bits() as usize }, G>(home, row)
            }

            #[inline(always)]
            fn each<T: Threads, const G: usize>(
                words: T::Of<[u32; 8]>,
                table: T::Of<f32>,
                f: impl FnMut(usize, T::Of<f32>),
            ) {
                Trellis::<Self>::each::<T, G>(words, table, f);
            }

            #[inline(always)]
            fn units<T: Threads, const G: usize, const UNITS: usize>(
                home: T::Memory,
                start: T::Of<u32>,
                unit: T::Of<u32>,
            ) -> T::Of<Words> {
                Trellis::<Self>::nibbles::<T, G, UNITS>(home, start, unit)
            }

            #[inline(always)]
            fn bytes<T: Threads>(planes: &Planes, words: &Words, unit: usize) -> Bytes {
                planes.of_nibbles::<T>(Trellis::<Self>::BITS, words, unit)
            }
        }
    )* };
}

in_planes!(T2 T3 T4);

/// Formats of the codes that stand for their layouts.
pub(crate) mod formats {
    use crate::page::format;
    use tqkv_core::code::{self, Code};

    pub(crate) const S2: u32 = format(code::S2::LAYOUT);
    pub(crate) const S3: u32 = format(code::S3::LAYOUT);
    pub(crate) const S4: u32 = format(code::S4::LAYOUT);
    pub(crate) const I8: u32 = format(code::I8::LAYOUT);
    pub(crate) const T2: u32 = format(code::T2::LAYOUT);
    pub(crate) const T3: u32 = format(code::T3::LAYOUT);
    pub(crate) const T4: u32 = format(code::T4::LAYOUT);
}

/// Every codec with kernels has a code below that stands for its layout. So the last arm can only mean bytes.
const _: () = {
    let mut i = 0;
    while i < CODECS.len() {
        use formats::{I8, S2, S3, S4, T2, T3, T4};
        let format = page::format(CODECS[i].layout());
        assert!(matches!(format, S2 | S3 | S4 | I8 | T2 | T3 | T4), "a layout that attention does not read");
        i += 1;
    }
};

/// `with_reader!(format, trellis, C => body)` runs the body with the type of the code that stands for a
/// format. The constant `trellis` says if the code may be a trellis code.
macro_rules! with_reader {
    ($format:expr, $trellis:expr, $code:ident => $body:expr) => {{
        use crate::reader::formats;
        use tqkv_core::code;
        match $format {
            formats::S2 => with_reader!(@ $code = S2, $body),
            formats::S3 => with_reader!(@ $code = S3, $body),
            formats::S4 => with_reader!(@ $code = S4, $body),
            formats::T2 if $trellis => with_reader!(@ $code = T2, $body),
            formats::T3 if $trellis => with_reader!(@ $code = T3, $body),
            formats::T4 if $trellis => with_reader!(@ $code = T4, $body),
            // `formats::I8`. The arm is `_`, because the compiler cannot see that a number has no other
            // value.
            _ => with_reader!(@ $code = I8, $body),
        }
    }};
    (@ $code:ident = $of:ident, $body:expr) => {{
        type $code = code::$of;
        $body
    }};
}

/// Reads N adjacent words.
#[inline(always)]
fn run<T: Threads, const N: usize, const G: usize>(home: T::Memory, row: T::Of<u32>) -> T::Of<[u32; 8]> {
    let offset = T::zip(row, T::lane(), |row, lane| row + lane % G as u32 * 4 * N as u32);
    T::map(T::load::<N>(home, offset), |words| {
        let mut padded = [0; 8];
        padded[..N].copy_from_slice(&words);
        padded
    })
}

/// A word of each of N planes.
#[inline(always)]
fn planes<T: Threads, const N: usize, const G: usize>(home: T::Memory, row: T::Of<u32>) -> T::Of<[u32; 8]> {
    let mut words = T::splat([0; 8]);
    unroll32!(P => {
        if P < N {
            let at = T::zip(row, T::lane(), |row, lane| row + 4 * (lane % G as u32 + P as u32 * G as u32));
            words = T::zip(words, T::load::<1>(home, at), |mut words, [word]| {
                words[P % 8] = word;
                words
            });
        }
    });
    words
}

#[inline(always)]
fn each_code<T: Threads, const BITS: usize>(
    words: T::Of<[u32; 8]>,
    table: T::Of<f32>,
    mut f: impl FnMut(usize, T::Of<f32>),
) {
    unroll32!(I => {
        let code = T::map(words, |words| {
            let (word, shift) = (BITS * I / 32, BITS * I % 32);
            let mut code = words[word] >> shift;
            if shift + BITS > 32 {
                code |= words[(word + 1) % 8] << ((32 - shift) % 32);
            }
            code
        });
        f(I, if BITS == 8 {
            T::map(code, |code| f32::from(code as u8 as i8))
        } else {
            shuffle_f32::<T>(table, code)
        });
    });
}

/// Reads a thread's run of `UNITS` times 8 codes of `BITS` bits, which starts at `offset`.
#[inline(always)]
fn units<T: Threads, const BITS: usize, const UNITS: usize>(
    home: T::Memory,
    offset: T::Of<u32>,
) -> T::Of<Words> {
    match BITS * UNITS {
        2 => T::map(T::load_u16(home, offset), |codes| {
            let mut words = [0; 16];
            words[0] = u32::from(codes);
            words
        }),
        4 => wide::<T, 1>(home, offset),
        8 => wide::<T, 2>(home, offset),
        12 => wide::<T, 3>(home, offset),
        16 => wide::<T, 4>(home, offset),
        24 => wide::<T, 6>(home, offset),
        32 => wide::<T, 8>(home, offset),
        64 => wide::<T, 16>(home, offset),
        // 3 or 6 bytes, which may start inside a word. The scales lie after the codes, so the second word
        // always exists.
        _ => {
            let word = |at: u32| T::load::<1>(home, T::map(offset, |offset| (offset & !3) + at));
            let both = T::zip(word(0), word(4), |[low], [high]| u64::from(low) | u64::from(high) << 32);
            T::zip(both, offset, |both, offset| {
                let (codes, mut words) = (both >> (8 * (offset % 4)), [0; 16]);
                (words[0], words[1]) = (codes as u32, (codes >> 32) as u32);
                words
            })
        }
    }
}

/// Reads N adjacent words.
#[inline(always)]
fn wide<T: Threads, const N: usize>(home: T::Memory, offset: T::Of<u32>) -> T::Of<Words> {
    T::map(T::load::<N>(home, offset), |words| {
        let mut padded = [0; 16];
        padded[..N].copy_from_slice(&words);
        padded
    })
}
