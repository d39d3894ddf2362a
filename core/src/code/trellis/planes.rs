//! Bytes of a trellis block: bit planes, parities, levels.
//!
//! A plane of n = dim / 8 bytes holds one bit per coordinate: coordinate t is bit t / n of byte t mod n. One
//! coordinate back is therefore one byte back. Before the first byte comes the last byte, rotated by one bit.
//! A parity plane is an XOR of shifted copies of the coded plane, in whole bytes, on any machine. Planes of
//! pairs have n / 2 bytes: the pair (2 i, 2 i + 1) lies in byte (2 i mod n) / 2. In a code of quarters, the
//! coordinates of quarter q are bits 2 q and 2 q + 1 of every byte.

use super::Trellis;
use super::code::{Code, MAX_LEVELS, MAX_MEMORY, Plain, TapMasks};
use super::quarters::{QUARTERS, Quarters, place};
use crate::head_dim::MAX_HEAD_DIM;
use crate::machine::Memory;

/// The lowest bit of every byte of a word.
const LOW: u64 = 0x0101_0101_0101_0101;

/// Bytes of the largest plane.
const MAX_PLANE: usize = MAX_HEAD_DIM / 8;

/// Writes the parity (0 to 7) of every coordinate of the ring `coded` (head_dim / 8 bytes) to `parity`
/// (head_dim bytes) in natural order.
#[inline(always)]
pub fn parities(code: &Code, coded: &[u8], parity: &mut [u8]) {
    let n = coded.len();
    if n == 0 {
        return;
    }
    let mut ring = [0; MAX_PLANE + MAX_MEMORY];
    let Some(now) = ring.get_mut(MAX_MEMORY..MAX_MEMORY + n) else { return };
    now.copy_from_slice(coded);
    for back in 1..=MAX_MEMORY {
        ring[MAX_MEMORY - back] = ring[MAX_MEMORY - back + n].rotate_left(1);
    }
    let mut planes = [[0; MAX_PLANE]; 3];
    for (plane, &taps) in planes.iter_mut().zip(&code.generators) {
        for back in (0..=MAX_MEMORY).filter(|&a| taps >> a & 1 != 0) {
            for (byte, &earlier) in plane[..n].iter_mut().zip(&ring[MAX_MEMORY - back..]) {
                *byte ^= earlier;
            }
        }
    }
    let [high, middle, low] = &planes;
    for (bit, run) in parity.chunks_exact_mut(n).enumerate() {
        for (((z, &a), &b), &c) in run.iter_mut().zip(high).zip(middle).zip(low) {
            *z = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | c >> bit & 1;
        }
    }
}

/// Adds 8 * plain symbol to the parity in `index`.
#[inline(always)]
fn add_plain(code: &Code, plain: &[u8], index: &mut [u8]) {
    let n = index.len() / 8;
    if n < 2 {
        return;
    }
    match code.plain {
        // Codes of quarters are read in words.
        Plain::Quarters(_) => {}
        Plain::Bits(_) => {
            for (p, plane) in plain.chunks_exact(n).enumerate() {
                for (bit, run) in index.chunks_exact_mut(n).enumerate() {
                    for (i, &byte) in run.iter_mut().zip(plane) {
                        *i |= (byte >> bit & 1) << (3 + p);
                    }
                }
            }
        }
        Plain::PairOfThree | Plain::PairOfSix => {
            for (bit, run) in index.chunks_exact_mut(n).enumerate() {
                for (i, pair) in run.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    let mut symbol = 0;
                    for (p, plane) in plain.chunks_exact(n / 2).enumerate() {
                        symbol |= (plane.get(i).map_or(0, |byte| byte >> bit) & 1) << p;
                    }
                    let (even, odd) = pair_parts(code.plain, symbol);
                    pair[0] |= even << 3;
                    pair[1] |= odd << 3;
                }
            }
        }
    }
}

/// The parts of the levels that the even and the odd coordinate of a pair take.
#[inline(always)]
pub const fn pair_parts(plain: Plain, symbol: u8) -> (u8, u8) {
    match plain {
        Plain::PairOfThree => (symbol / 3, symbol % 3),
        Plain::PairOfSix => {
            let (low, middle) = (symbol & 3, symbol >> 2 & 3);
            match symbol >> 3 {
                0 | 1 => (low, middle),
                2 => (low, 4 + (middle & 1)),
                _ => (4 + (middle & 1), low),
            }
        }
        Plain::Bits(_) | Plain::Quarters(_) => (symbol, symbol),
    }
}

/// Levels (as the bits of an `i8`) of the codes `body`; `levels` holds head_dim bytes.
#[inline(always)]
pub fn levels<I: Memory>(isa: I, trellis: &Trellis<'_>, body: &[u8], levels: &mut [u8]) {
    let (code, taps) = (&trellis.code, trellis.taps);
    let Some((coded, plain)) = body.split_at_checked(levels.len() / 8) else { return };
    if let (Some(quarters), Plain::Quarters(widths)) = (trellis.quarters, code.plain) {
        match coded.len() {
            8 => quarters_in_words::<1>(taps, widths, coded, plain, levels),
            16 => quarters_in_words::<2>(taps, widths, coded, plain, levels),
            32 => quarters_in_words::<4>(taps, widths, coded, plain, levels),
            64 => quarters_in_words::<8>(taps, widths, coded, plain, levels),
            _ => quarters_in_words::<16>(taps, widths, coded, plain, levels),
        }
        return look_up_quarters(isa, quarters, levels);
    }
    match (coded.len(), code.plain) {
        (8, Plain::Bits(_)) => in_words::<1>(taps, coded, plain, levels),
        (16, Plain::Bits(_)) => in_words::<2>(taps, coded, plain, levels),
        (32, Plain::Bits(_)) => in_words::<4>(taps, coded, plain, levels),
        _ => {
            parities(code, coded, levels);
            add_plain(code, plain, levels);
        }
    }
    isa.look_up_levels(levels, &code.levels);
}

/// Indices of the levels for planes of `W` words: head dims 64, 128 and 256. It takes a fifth of the time of
/// the loop over bytes.
#[inline(always)]
fn in_words<const W: usize>(taps: &TapMasks, coded: &[u8], plain: &[u8], indices: &mut [u8]) {
    let (Some(coded), planes) = (words(coded), plain.chunks_exact(8 * W)) else { return };
    let [high, middle, low] = parity_words::<W>(taps, &coded);
    let mut all = [low, middle, high, [0; W], [0; W], [0; W]];
    let mut count = 3;
    for (plane, bytes) in all[3..].iter_mut().zip(planes) {
        *plane = words(bytes).unwrap_or([0; W]);
        count += 1;
    }
    match count {
        3 => spread::<W, 3>(&all, indices),
        4 => spread::<W, 4>(&all, indices),
        5 => spread::<W, 5>(&all, indices),
        _ => spread::<W, 6>(&all, indices),
    }
}

/// The bytes of a plane, eight per word.
#[inline(always)]
fn words<const W: usize>(bytes: &[u8]) -> Option<[u64; W]> {
    let words = bytes.as_chunks::<8>().0.first_chunk::<W>()?;
    Some(words.map(u64::from_le_bytes))
}

/// The parity planes of a ring, most significant parity first.
#[inline(always)]
fn parity_words<const W: usize>(taps: &TapMasks, coded: &[u64; W]) -> [[u64; W]; 3] {
    // The word before each word. Before the first comes the last, with every byte rotated by one bit.
    let last = coded[W - 1];
    let mut before = [(last << 1 & !LOW) | (last >> 7 & LOW); W];
    before[1..].copy_from_slice(&coded[..W - 1]);
    let mut parities = [[0; W]; 3];
    // Each step handles all words at once, and the steps are written out: the compiler vectorises this, but
    // turns a loop into branches.
    macro_rules! steps {
        ($($back:literal)*) => {$(
            let mut earlier = if $back == MAX_MEMORY { before } else { *coded };
            if $back % MAX_MEMORY != 0 {
                for (earlier, before) in earlier.iter_mut().zip(before) {
                    *earlier = *earlier << (8 * $back) | before >> (64 - 8 * $back);
                }
            }
            for (parity, mask) in parities.iter_mut().zip(taps[$back]) {
                for (parity, earlier) in parity.iter_mut().zip(earlier) {
                    *parity ^= earlier & mask;
                }
            }
        )*};
    }
    const { assert!(MAX_MEMORY == 8, "steps") };
    steps!(0 1 2 3 4 5 6 7 8);
    parities
}

/// Combines the bits of `P` planes: byte t is the index of coordinate t, and its bit p comes from plane p.
#[inline(always)]
fn spread<const W: usize, const P: usize>(planes: &[[u64; W]; 6], indices: &mut [u8]) {
    for (bit, run) in indices.chunks_exact_mut(8 * W).enumerate() {
        for (w, eight) in run.as_chunks_mut::<8>().0.iter_mut().enumerate().take(W) {
            let mut index = 0;
            for (p, plane) in planes.iter().enumerate().take(P) {
                index |= (plane[w] >> bit & LOW) << p;
            }
            *eight = index.to_le_bytes();
        }
    }
}

/// Writes the plain planes of `symbols`: one byte per coordinate, or one per pair (in order).
#[inline(always)]
pub(super) fn pack_plain(code: &Code, symbols: &[u8], plain: &mut [u8]) {
    let planes = match code.plain {
        Plain::Quarters(widths) => return pack_quarters(widths, symbols, plain),
        Plain::Bits(bits) => usize::from(bits),
        Plain::PairOfThree => 3,
        Plain::PairOfSix => 5,
    };
    let n = symbols.len() / 8;
    for (p, plane) in plain.chunks_exact_mut(n.max(1)).take(planes).enumerate() {
        plane.fill(0);
        for (bit, run) in symbols.chunks_exact(n).enumerate() {
            for (byte, &symbol) in plane.iter_mut().zip(run) {
                *byte |= (symbol >> p & 1) << bit;
            }
        }
    }
}

/// [`pack_plain`] for a code of quarters.
fn pack_quarters(widths: [u8; QUARTERS], symbols: &[u8], plain: &mut [u8]) {
    let n = (symbols.len() / 8).max(1);
    let planes = Plain::Quarters(widths).planes();
    plain.fill(0);
    for (bit, run) in symbols.chunks_exact(n).enumerate() {
        for p in 0..usize::from(widths[bit / 2 % QUARTERS]) - 1 {
            let (plane, at) = place(planes, p, bit);
            for (byte, &symbol) in plain[plane * n..].iter_mut().zip(run) {
                *byte |= (symbol >> p & 1) << at;
            }
        }
    }
}

/// Indices of the levels for planes of `W` words, in a code of quarters.
#[inline(always)]
fn quarters_in_words<const W: usize>(
    taps: &TapMasks,
    widths: [u8; QUARTERS],
    coded: &[u8],
    plain: &[u8],
    indices: &mut [u8],
) {
    let Some(coded) = words::<W>(coded) else { return };
    let [high, middle, low] = parity_words::<W>(taps, &coded);
    let mut planes = [[0; W]; 2];
    for (plane, bytes) in planes.iter_mut().zip(plain.chunks_exact(8 * W)) {
        *plane = words(bytes).unwrap_or([0; W]);
    }
    let count = Plain::Quarters(widths).planes();
    for (bit, run) in indices.chunks_exact_mut(8 * W).enumerate() {
        let mut index = [0; W];
        for w in 0..W {
            index[w] = (low[w] >> bit & LOW) | (middle[w] >> bit & LOW) << 1 | (high[w] >> bit & LOW) << 2;
        }
        for p in 0..usize::from(widths[bit / 2 % QUARTERS]) - 1 {
            let (plane, at) = place(count, p, bit);
            for w in 0..W {
                index[w] |= (planes[plane % 2][w] >> at & LOW) << (3 + p);
            }
        }
        for (eight, index) in run.as_chunks_mut::<8>().0.iter_mut().zip(index) {
            *eight = index.to_le_bytes();
        }
    }
}

/// Replaces the indices of every quarter by its levels.
#[inline(always)]
pub(super) fn look_up_quarters<I: Memory>(isa: I, quarters: &Quarters, indices: &mut [u8]) {
    let width = (indices.len() / QUARTERS).max(1);
    for (indices, quarter) in indices.chunks_mut(width).zip(quarters) {
        for indices in indices.chunks_mut(MAX_LEVELS) {
            // Machines look up full lines.
            let mut line = [0; MAX_LEVELS];
            line[..indices.len()].copy_from_slice(indices);
            isa.look_up_levels(&mut line, &quarter.levels);
            indices.copy_from_slice(&line[..indices.len()]);
        }
    }
}
