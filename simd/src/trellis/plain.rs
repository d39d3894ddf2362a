//! The choice of plain symbols: for each coordinate, or each pair, the levels nearest to the targets.
//!
//! The loops over arrays are written so that the compiler vectorises them: all lanes have one width. They use
//! masks instead of conditions, which the compiler turns into branches.

use super::bytes::Bytes;
use tqkv_core::unstable::trellis::{Code, PARITIES, Plain, pair_parts};

/// Coordinates (or pairs) of one run.
const RUN: usize = 64;
/// Maximum number of parts of the levels.
const PARTS: usize = 8;

/// [`tqkv_core::unstable::trellis::Search::choose_plain`].
#[inline(always)]
pub(crate) fn choose_plain<I: Bytes>(
    isa: I,
    code: &Code,
    targets: &[i16],
    parity: &[u8],
    symbols: &mut [u8],
    levels: &mut [u8],
) {
    let mut tables = [[0; PARITIES]; PARTS];
    for (table, levels) in tables.iter_mut().zip(code.levels.as_chunks::<PARITIES>().0) {
        for (to, &level) in table.iter_mut().zip(levels) {
            *to = level as u8;
        }
    }
    let tables = &tables[..code.parts()];
    if let Plain::Bits(_) = code.plain {
        let runs = targets.chunks(RUN).zip(parity.chunks(RUN));
        for ((targets, parity), (symbols, levels)) in
            runs.zip(symbols.chunks_mut(RUN).zip(levels.chunks_mut(RUN)))
        {
            single(isa, tables, targets, parity, symbols, levels);
        }
    } else {
        let runs = targets.chunks(2 * RUN).zip(parity.chunks(2 * RUN));
        for ((targets, parity), (symbols, levels)) in
            runs.zip(symbols.chunks_mut(RUN).zip(levels.chunks_mut(2 * RUN)))
        {
            pairs(isa, code.plain, tables, targets, parity, symbols, levels);
        }
    }
}

/// The levels of one part by parity.
#[inline(always)]
fn pick<I: Bytes>(isa: I, table: &[u8; PARITIES], parity: &[u8; RUN]) -> [u8; RUN] {
    let (table, mut levels) = (isa.table(table), [0; RUN]);
    for (parity, levels) in parity.chunks_exact(I::WIDTH).zip(levels.chunks_exact_mut(I::WIDTH)) {
        isa.write_bytes(isa.pick(table, isa.read_bytes(parity)), levels);
    }
    levels
}

#[inline(always)]
fn single<I: Bytes>(
    isa: I,
    tables: &[[u8; PARITIES]],
    targets: &[i16],
    parity: &[u8],
    symbols: &mut [u8],
    levels: &mut [u8],
) {
    let (mut parities, mut padded) = ([0; RUN], [0i16; RUN]);
    parities[..parity.len()].copy_from_slice(parity);
    padded[..targets.len()].copy_from_slice(targets);
    let (mut least, mut best, mut symbol) = ([i16::MAX; RUN], [0i16; RUN], [0i16; RUN]);
    for (part, table) in (0..).zip(tables) {
        let candidates = pick(isa, table, &parities);
        for i in 0..RUN {
            let candidate = i16::from(candidates[i] as i8);
            let distance = (padded[i] - 2 * candidate).abs();
            let nearer = -i16::from(distance < least[i]);
            least[i] = distance.min(least[i]);
            best[i] ^= (best[i] ^ candidate) & nearer;
            symbol[i] ^= (symbol[i] ^ part) & nearer;
        }
    }
    for (to, &symbol) in symbols.iter_mut().zip(&symbol) {
        *to = symbol as u8;
    }
    for (to, &level) in levels.iter_mut().zip(&best) {
        *to = level as u8;
    }
}

#[inline(always)]
fn pairs<I: Bytes>(
    isa: I,
    plain: Plain,
    tables: &[[u8; PARITIES]],
    targets: &[i16],
    parity: &[u8],
    symbols: &mut [u8],
    levels: &mut [u8],
) {
    // For even and for odd coordinates: the levels and squared distances of each part.
    let mut candidates = [[[0i32; RUN]; PARTS]; 2];
    let mut squares = [[[0i32; RUN]; PARTS]; 2];
    for odd in 0..2 {
        let (mut parities, mut padded) = ([0; RUN], [0i32; RUN]);
        for (to, pair) in parities.iter_mut().zip(parity.as_chunks::<2>().0) {
            *to = pair[odd];
        }
        for (to, pair) in padded.iter_mut().zip(targets.as_chunks::<2>().0) {
            *to = i32::from(pair[odd]);
        }
        let parts = candidates[odd].iter_mut().zip(&mut squares[odd]);
        for (table, (candidates, squares)) in tables.iter().zip(parts) {
            let levels = pick(isa, table, &parities);
            for i in 0..RUN {
                candidates[i] = i32::from(levels[i] as i8);
                let distance = padded[i] - 2 * candidates[i];
                squares[i] = distance * distance;
            }
        }
    }
    let (mut least, mut symbol, mut best) = ([i32::MAX; RUN], [0i32; RUN], [[0i32; RUN]; 2]);
    for candidate in 0..plain.pair_symbols() {
        let (even, odd) = pair_parts(plain, candidate);
        let parts = [usize::from(even) % PARTS, usize::from(odd) % PARTS];
        let (even, odd) = (&squares[0][parts[0]], &squares[1][parts[1]]);
        let levels = [&candidates[0][parts[0]], &candidates[1][parts[1]]];
        for i in 0..RUN {
            let distance = even[i] + odd[i];
            let nearer = -i32::from(distance < least[i]);
            least[i] = distance.min(least[i]);
            symbol[i] ^= (symbol[i] ^ i32::from(candidate)) & nearer;
            best[0][i] ^= (best[0][i] ^ levels[0][i]) & nearer;
            best[1][i] ^= (best[1][i] ^ levels[1][i]) & nearer;
        }
    }
    for (to, &symbol) in symbols.iter_mut().zip(&symbol) {
        *to = symbol as u8;
    }
    for (i, to) in levels.as_chunks_mut::<2>().0.iter_mut().enumerate().take(RUN) {
        *to = [best[0][i] as u8, best[1][i] as u8];
    }
}
