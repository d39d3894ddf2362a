//! How the rows of a pool are read: as codes of any width, or as f16.
//!
//! A thread reads 32 coordinates of a row, `G` threads together a row; see [`crate::attend`].

use crate::args::Attend;
use crate::page;
use crate::planes::{self, Planes};
use crate::threads::{Threads, load_f32, load_half, shuffle_f32};
use crate::trellis::Trellis;
use tqkv_core::{AnyCodec, CodecId};

/// How the rows of a pool are stored.
///
/// `format` is [`page::format`] of the codec, or [`page::HALF_BITS`].
pub trait Rows {
    /// The codes of 32 coordinates.
    type Words: Copy;
    /// Whether any bytes decode to finite values; where not, rows past the end are masked.
    const FINITE: bool;

    /// Reads a thread's 32 coordinates of the row at `row`.
    fn fetch<T: Threads, const G: usize>(format: u32, home: T::Memory, row: T::Of<u32>)
    -> T::Of<Self::Words>;

    /// Reads a thread's scale, in units of the values that [`Rows::each`] gives.
    fn scale<T: Threads>(dim: u32, format: u32, home: T::Memory, slot: T::Of<u32>) -> T::Of<f32>;

    /// Calls `f(i, level)` for the 32 coordinates: coordinate `first + stride * (i / 4) + i % 4` for i,
    /// with what [`order`] says. `table`: one level in each thread.
    fn each<T: Threads, const G: usize>(
        format: u32,
        words: T::Of<Self::Words>,
        table: T::Of<f32>,
        f: impl FnMut(usize, T::Of<f32>),
    );
}

/// Which coordinates a thread owns: its first one, and the distance of one four from the next.
#[inline(always)]
pub(crate) fn order<T: Threads, const G: usize>(format: u32) -> (T::Of<u32>, u32) {
    let in_words = page::is_trellis(format);
    let first = T::map(T::lane(), |lane| lane % G as u32 * if in_words { 4 } else { 32 });
    (first, if in_words { 4 * G as u32 } else { 4 })
}

/// Codes of 2, 3, 4 or 8 bits, trellis codes too; the format is the same for all threads.
#[derive(Debug)]
pub struct Codes;

/// Plain f16 rows: the baseline.
#[derive(Debug)]
pub struct Halves;

impl Codes {
    /// What a scale is multiplied by: an i8 level is code / 32.
    #[inline(always)]
    pub(crate) const fn unit(format: u32) -> f32 {
        if format == 8 { 1.0 / 32.0 } else { 1.0 }
    }

    /// N words that lie together.
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
    fn planes<T: Threads, const N: usize, const G: usize>(
        home: T::Memory,
        row: T::Of<u32>,
    ) -> T::Of<[u32; 8]> {
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
}

impl Rows for Codes {
    type Words = [u32; 8];
    const FINITE: bool = true;

    #[inline(always)]
    fn fetch<T: Threads, const G: usize>(format: u32, home: T::Memory, row: T::Of<u32>) -> T::Of<[u32; 8]> {
        match format {
            2 => Self::run::<T, 2, G>(home, row),
            3 => Self::run::<T, 3, G>(home, row),
            4 => Self::run::<T, 4, G>(home, row),
            page::T2 => Self::planes::<T, 2, G>(home, row),
            page::T3 => Self::planes::<T, 3, G>(home, row),
            page::T4 => Self::planes::<T, 4, G>(home, row),
            _ => Self::run::<T, 8, G>(home, row),
        }
    }

    #[inline(always)]
    fn scale<T: Threads>(dim: u32, format: u32, home: T::Memory, slot: T::Of<u32>) -> T::Of<f32> {
        let unit = Self::unit(format);
        let bits = page::bits(format);
        let scale = load_half::<T>(home, T::map(slot, |slot| page::scale_offset(dim, bits, slot)));
        T::map(scale, |scale| scale * unit)
    }

    #[inline(always)]
    fn each<T: Threads, const G: usize>(
        format: u32,
        words: T::Of<[u32; 8]>,
        table: T::Of<f32>,
        f: impl FnMut(usize, T::Of<f32>),
    ) {
        match format {
            2 => Self::each_code::<T, 2>(words, table, f),
            3 => Self::each_code::<T, 3>(words, table, f),
            4 => Self::each_code::<T, 4>(words, table, f),
            page::T2 => Trellis::<2>::each::<T, G>(words, table, f),
            page::T3 => Trellis::<3>::each::<T, G>(words, table, f),
            page::T4 => Trellis::<4>::each::<T, G>(words, table, f),
            _ => Self::each_code::<T, 8>(words, table, f),
        }
    }
}

impl Rows for Halves {
    type Words = [u32; 16];
    const FINITE: bool = false;

    #[inline(always)]
    fn fetch<T: Threads, const G: usize>(_format: u32, home: T::Memory, row: T::Of<u32>) -> T::Of<[u32; 16]> {
        T::load::<16>(home, T::zip(row, T::lane(), |row, lane| row + lane % G as u32 * 64))
    }

    #[inline(always)]
    fn scale<T: Threads>(_dim: u32, _format: u32, _home: T::Memory, _slot: T::Of<u32>) -> T::Of<f32> {
        T::splat(1.0)
    }

    #[inline(always)]
    fn each<T: Threads, const G: usize>(
        _format: u32,
        words: T::Of<[u32; 16]>,
        _table: T::Of<f32>,
        mut f: impl FnMut(usize, T::Of<f32>),
    ) {
        unroll32!(I => {
            f(I, T::map(words, |words| T::from_half((words[I / 2] >> (16 * (I % 2))) as u16)));
        });
    }
}

/// Keys or values of a layer: where they are and how to read them.
#[derive(Clone, Copy)]
pub(crate) struct Pool<T: Threads> {
    /// The pages.
    pub(crate) memory: T::Memory,
    /// [`page::format`] of the codec ([`page::HALF_BITS`] for [`Halves`]).
    pub(crate) format: u32,
    /// [`tables`]; not used for f16 rows.
    levels: T::Memory,
}

/// Words of [`tables`].
pub const TABLE_WORDS: usize = 32 + planes::TABLE_WORDS;

/// The levels of a codec, as [`Pool`] takes them: 32 floats, over and over, so that the bits above a code are
/// of no account in a look-up, and then [`planes::table`].
pub fn tables(codec: &AnyCodec) -> [u32; TABLE_WORDS] {
    let levels = match codec.id() {
        CodecId::T2 => Trellis::<2>::table(),
        CodecId::T3 => Trellis::<3>::table(),
        CodecId::T4 => Trellis::<4>::table(),
        _ => {
            let mut table = [0.0; 32];
            let levels = codec.codebook().map_or(&[][..], |book| book.bytes());
            for (entry, &level) in table.iter_mut().zip(levels.iter().cycle()) {
                *entry = f32::from(level) * codec.unit();
            }
            table
        }
    };
    let mut words = [0; TABLE_WORDS];
    let bits = levels.iter().map(|level| level.to_bits());
    for (word, bits) in words.iter_mut().zip(bits.chain(planes::table(codec))) {
        *word = bits;
    }
    words
}

impl<T: Threads> Pool<T> {
    /// The keys of a launch.
    #[inline(always)]
    pub(crate) fn keys(args: &Attend<T::Memory>) -> Self {
        Self { memory: args.keys, format: args.key_format, levels: args.key_levels }
    }

    /// The values of a launch.
    #[inline(always)]
    pub(crate) fn values(args: &Attend<T::Memory>) -> Self {
        Self { memory: args.values, format: args.value_format, levels: args.value_levels }
    }

    /// One level in each thread.
    #[inline(always)]
    pub(crate) fn table(&self) -> T::Of<f32> {
        load_f32::<T>(self.levels, T::map(T::lane(), |lane| 4 * lane))
    }

    /// The levels as bytes.
    #[inline(always)]
    pub(crate) fn planes(&self) -> Planes {
        Planes::load::<T>(T::at(self.levels, 4 * 32))
    }
}
