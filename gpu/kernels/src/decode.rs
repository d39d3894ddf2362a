//! `decode_pages` and `weight_decode`: codes to vectors, one warp per vector.

use crate::args::{DecodePages, WeightDecode};
use crate::encode::element;
use crate::format::Blocks;
use crate::page::{self, TableView};
use crate::threads::{Threads, divide};
use crate::warp::{Lane, Warp};
use tqkv_core::unstable::machine::{Isa, Lanes};
use tqkv_core::unstable::rotation;

/// x = diag(signs) H y, without the factor 1/dim. `signs` is the argument of [`crate::encode::rotate`].
#[inline(always)]
pub(crate) fn unrotate<T: Threads, const G: usize>(signs: T::Memory, y: &mut [Lane<T>; G]) {
    rotation::sylvester(y, 32 * G);
    for (g, v) in y.iter_mut().enumerate() {
        *v = v.flip(T::read(signs, 4 * g as u32));
    }
}

/// The factor of the levels of a block whose scale is at `offset`: scale times unit, as on the CPU. It is the
/// unit for rows without scales.
#[inline(always)]
pub(crate) fn scale<T: Threads, F: Blocks<G>, const G: usize>(home: T::Memory, offset: u32) -> f32 {
    if !page::has_scales(F::BITS) {
        return F::UNIT;
    }
    T::uniform(T::map(T::load_u16(home, T::splat(offset)), T::from_half)) * F::UNIT
}

/// Decodes a block and writes row `row` of `out`. Operations have the same order as on the CPU.
#[inline(always)]
fn decode_row<T: Threads, F: Blocks<G>, const G: usize>(
    home: T::Memory,
    codes: u32,
    scale: f32,
    signs: T::Memory,
    out: T::Memory,
    row: u32,
    kind: u32,
) {
    let mut y = F::read::<T>(home, codes);
    unrotate(signs, &mut y);
    let factor = Warp::<T>::new().splat(scale * (1.0 / (32 * G) as f32));
    let out = T::at(out, u64::from(row) * u64::from(32 * G as u32 * element::bytes(kind)));
    for (g, &v) in y.iter().enumerate() {
        store_elements::<T>(out, kind, 32 * g as u32, (v * factor).0);
    }
}

/// Writes elements `first ..` of `row`, one per thread, rounded to nearest, ties to even.
#[inline(always)]
pub(crate) fn store_elements<T: Threads>(row: T::Memory, kind: u32, first: u32, value: T::Of<f32>) {
    store_element::<T>(
        row,
        kind,
        |size| T::map(T::lane(), |lane| (first + lane) * size),
        value,
        T::splat(true),
    );
}

/// Writes the element of each thread in `active`, rounded to nearest, ties to even. `at` gives their offsets
/// for a size of elements.
#[inline(always)]
pub(crate) fn store_element<T: Threads>(
    row: T::Memory,
    kind: u32,
    at: impl Fn(u32) -> T::Of<u32>,
    value: T::Of<f32>,
    active: T::Of<bool>,
) {
    match kind {
        element::F32 => T::store(row, at(4), T::map(value, |v| [v.to_bits()]), active),
        element::F16 => T::store_u16(row, at(2), T::map(value, T::to_half), active),
        _ => T::store_u16(row, at(2), T::map(value, to_bf16), active),
    }
}

/// Rounds to bfloat16, to nearest, ties to even. NaN stays NaN.
#[inline(always)]
fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { (bits >> 16) as u16 | 0x40 } else { rounded as u16 }
}

/// The sequence of row `row` of packed rows: the last one, of `sequences`, that begins at or before it.
#[inline(always)]
fn sequence_of<T: Threads>(offsets: T::Memory, sequences: u32, row: u32) -> u32 {
    let (mut low, mut high) = (0, sequences);
    while low + 1 < high {
        let middle = low.midpoint(high);
        if T::read(offsets, 4 * middle) <= row { low = middle } else { high = middle }
    }
    low
}

/// Decodes vector `warp` of the packed rows of several sequences.
#[inline(always)]
pub fn decode_pages<T: Threads, F: Blocks<G>, const G: usize>(warp: u32, args: DecodePages<T::Memory>) {
    let DecodePages { page_table, max_pages, last_entry, shift, last_page, num_kv_heads, .. } = args;
    if warp >= args.tokens * num_kv_heads {
        return;
    }
    let (row, head) = divide(warp, num_kv_heads);
    let sequence = sequence_of::<T>(args.offsets, args.sequences, row);
    let position = row.wrapping_sub(T::read(args.offsets, 4 * sequence));
    // Offsets and lengths of an engine are signed: none of them is above the largest i32.
    let length = T::read(args.lengths, 4 * sequence);
    let end = T::read(args.offsets, 4 * sequence + 4);
    let page = position / page::SLOTS;
    if position >= length || length >> 31 != 0 || row >= end || page >> shift >= max_pages {
        return;
    }
    let table = TableView::<T> { memory: page_table, max_pages, last_entry, shift, last_page };
    let page = table.page(sequence, page);
    let dim = 32 * G as u32;
    let home = T::at(args.pool, page::head_offset(page, args.stride, head, dim, F::BITS));
    let slot = position % page::SLOTS;
    let scale = scale::<T, F, G>(home, page::scale_offset(dim, F::BITS, slot));
    let codes = slot * page::row_bytes(dim, F::BITS);
    decode_row::<T, F, G>(home, codes, scale, args.signs, args.out, warp, args.kind);
}

/// Decodes weight group `warp` of `count`.
#[inline(always)]
pub fn weight_decode<T: Threads, F: Blocks<G>, const G: usize>(warp: u32, args: WeightDecode<T::Memory>) {
    if warp >= args.count {
        return;
    }
    let block = 2 + page::row_bytes(32 * G as u32, F::BITS);
    let home = T::at(args.blocks, u64::from(warp) * u64::from(block));
    decode_row::<T, F, G>(home, 2, scale::<T, F, G>(home, 0), args.signs, args.out, warp, args.kind);
}
