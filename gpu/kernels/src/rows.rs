//! How the rows of a pool are read: as codes of any width, or as f16.
//!
//! A thread reads 32 coordinates of a row, and `G` threads read a row together; see [`crate::attend`].

use crate::args::Attend;
use crate::page::{self, TableView};
use crate::planes::Planes;
use crate::reader::Reader;
use crate::tables;
use crate::threads::{Threads, load_half};

/// How the rows of a pool are stored.
///
/// `format` is [`page::format`] of the codec's layout, or [`page::HALF_BITS`].
pub trait StoredRows {
    /// The codes of 32 coordinates.
    type Words: Copy;
    /// True if all bytes decode to finite values. Otherwise rows past the end are masked.
    const FINITE: bool;

    /// Reads a thread's 32 coordinates of the row at `row`.
    fn fetch<T: Threads, const G: usize>(format: u32, home: T::Memory, row: T::Of<u32>)
    -> T::Of<Self::Words>;

    /// Reads a thread's scale.
    fn scale<T: Threads>(dim: u32, format: u32, home: T::Memory, slot: T::Of<u32>) -> T::Of<f32>;

    /// The value of a level of 1.
    fn unit<T: Threads>(tables: T::Memory) -> f32;

    /// Calls `f(i, level)` for the 32 coordinates. Coordinate i is `first + stride * (i / 4) + i % 4`, where
    /// [`order`] gives `first` and `stride`. `table` holds one level per thread.
    fn each<T: Threads, const G: usize>(
        format: u32,
        words: T::Of<Self::Words>,
        table: T::Of<f32>,
        f: impl FnMut(usize, T::Of<f32>),
    );
}

/// The coordinates of a thread: the first one, and the distance between its runs of four.
#[inline(always)]
pub(crate) fn order<T: Threads, const G: usize>(format: u32) -> (T::Of<u32>, u32) {
    let in_words = page::is_trellis(format);
    let first = T::map(T::lane(), |lane| lane % G as u32 * if in_words { 4 } else { 32 });
    (first, if in_words { 4 * G as u32 } else { 4 })
}

/// Codes of 2, 3, 4 or 8 bits, including trellis codes. The format is the same for all threads.
#[derive(Debug)]
pub struct Codes;

/// Plain f16 rows: the baseline.
#[derive(Debug)]
pub struct Halves;

impl StoredRows for Codes {
    type Words = [u32; 8];
    const FINITE: bool = true;

    #[inline(always)]
    fn fetch<T: Threads, const G: usize>(format: u32, home: T::Memory, row: T::Of<u32>) -> T::Of<[u32; 8]> {
        with_reader!(format, true, C => C::fetch::<T, G>(home, row))
    }

    #[inline(always)]
    fn scale<T: Threads>(dim: u32, format: u32, home: T::Memory, slot: T::Of<u32>) -> T::Of<f32> {
        let bits = page::bits(format);
        load_half::<T>(home, T::map(slot, |slot| page::scale_offset(dim, bits, slot)))
    }

    #[inline(always)]
    fn unit<T: Threads>(tables: T::Memory) -> f32 {
        tables::unit::<T>(tables)
    }

    #[inline(always)]
    fn each<T: Threads, const G: usize>(
        format: u32,
        words: T::Of<[u32; 8]>,
        table: T::Of<f32>,
        f: impl FnMut(usize, T::Of<f32>),
    ) {
        with_reader!(format, true, C => C::each::<T, G>(words, table, f));
    }
}

impl StoredRows for Halves {
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
    fn unit<T: Threads>(_tables: T::Memory) -> f32 {
        1.0
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

/// Keys or values of a layer: their memory and the way to read them.
#[derive(Clone, Copy)]
pub(crate) struct PagePool<T: Threads> {
    /// The pages.
    pub(crate) memory: T::Memory,
    /// Bytes from a page to the next.
    pub(crate) stride: u32,
    /// The result of [`page::format`] for the layout ([`page::HALF_BITS`] for [`Halves`]).
    pub(crate) format: u32,
    /// The result of [`tables::tables`]; not used for f16 rows.
    levels: T::Memory,
}

/// The page table of a launch.
#[inline(always)]
pub(crate) fn table<T: Threads>(args: &Attend<T::Memory>) -> TableView<T> {
    let Attend { page_table, max_pages, last_entry, shift, last_page, .. } = *args;
    TableView { memory: page_table, max_pages, last_entry, shift, last_page }
}

impl<T: Threads> PagePool<T> {
    /// The keys of a launch.
    #[inline(always)]
    pub(crate) fn keys(args: &Attend<T::Memory>) -> Self {
        Self { memory: args.keys, stride: args.key_stride, format: args.key_format, levels: args.key_levels }
    }

    /// The values of a launch.
    #[inline(always)]
    pub(crate) fn values(args: &Attend<T::Memory>) -> Self {
        Self {
            memory: args.values,
            stride: args.value_stride,
            format: args.value_format,
            levels: args.value_levels,
        }
    }

    /// One level per thread.
    #[inline(always)]
    pub(crate) fn table(&self) -> T::Of<f32> {
        tables::level::<T>(self.levels)
    }

    /// The value of a level of 1.
    #[inline(always)]
    pub(crate) fn unit<W: StoredRows>(&self) -> f32 {
        W::unit::<T>(self.levels)
    }

    /// The levels as bytes.
    #[inline(always)]
    pub(crate) fn planes(&self) -> Planes {
        Planes::load::<T>(self.levels)
    }
}
