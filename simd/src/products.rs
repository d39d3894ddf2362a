//! Products of matrices in bytes, for tokens that are stored in a basis.
//!
//! The coefficients of a token are signed bytes in groups, with a scale for each group. The sums of a group
//! are exact integers. Groups are added as `f32`, one after the other. Every level therefore gives the same
//! bits.
//!
//! ```text
//! matrix  panel of 16 rows: line = 4 columns of each, so 16 sums fill 16 lanes
//! group   tile of 8 tokens: dword = 4 coefficients of each, next to the line that they multiply
//! ```

use crate::level::{Kernel, Level};
use crate::lines::{Line, Machine};
use tqkv_core::unstable::machine::Lanes;

/// Maximum number of tokens of a product.
pub const MAX_TOKENS: usize = 256;
/// Maximum number of columns of a group. It keeps the sums exact in `f32` as well.
pub const MAX_GROUP: usize = 128;
/// Columns of a run. A group has complete runs.
pub const RUN: usize = 16;
/// Tokens of a tile. Groups have complete tiles; the bytes of tokens that do not exist are not used.
pub const TILE: usize = 8;

/// Columns of a line.
const QUAD: usize = 4;
/// Rows of a panel.
const PANEL: usize = 16;
/// Rows that are computed together: two panels.
const ROWS: usize = 2 * PANEL;
/// Numbers below this count as zero: their inverse would not be finite.
const LEAST: f32 = 1e-30;

/// The number of lines of a matrix. `rows` and `columns` are multiples of 16.
pub const fn lines(rows: usize, columns: usize) -> usize {
    rows / PANEL * (columns / QUAD)
}

/// Where an entry lies: its line, and its byte in the line. `columns` is that of the matrix.
pub const fn place(columns: usize, row: usize, column: usize) -> (usize, usize) {
    (row / PANEL * (columns / QUAD) + column / QUAD, row % PANEL * QUAD + column % QUAD)
}

/// The scale of a token's bytes in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scale {
    /// The number that a byte of 1 stands for.
    pub unit: f32,
    /// The sum of the bytes.
    pub total: i32,
}

/// Coefficients of some columns, of all tokens.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// The runs of columns, by their number in the matrix. At most [`MAX_GROUP`] / [`RUN`].
    pub runs: &'a [usize],
    /// `[tiles, columns / 4, TILE]`, four bytes each.
    pub bytes: &'a [[u32; TILE]],
    /// A scale for each token.
    pub scales: &'a [Scale],
}

/// The bytes and scales of a group that [`round`] writes.
#[derive(Debug)]
pub struct Rounded<'a> {
    /// See [`Group::bytes`].
    pub bytes: &'a mut [[u32; TILE]],
    /// See [`Group::scales`].
    pub scales: &'a mut [Scale],
}

/// Rounds `x[token * stride + i] * factors[i]` to bytes, for as many `i` as there are factors. Each token has
/// a scale of its own. The remainders, rounded likewise, are the bytes of `fine`: a second group of the same
/// runs.
///
/// # Panics
/// The slices do not fit one another, or the factors are not whole runs, at most [`MAX_GROUP`].
pub fn round(
    level: Level,
    (x, stride): (&[f32], usize),
    factors: &[f32],
    coarse: Rounded<'_>,
    fine: Option<Rounded<'_>>,
) {
    let (tokens, columns) = (coarse.scales.len(), factors.len());
    let bytes = tokens.div_ceil(TILE) * (columns / QUAD);
    let fits = |to: &Rounded<'_>| to.bytes.len() == bytes && to.scales.len() == tokens;
    assert!(columns.is_multiple_of(RUN) && (RUN..=MAX_GROUP).contains(&columns), "whole runs");
    assert!(fits(&coarse) && fine.as_ref().is_none_or(fits), "room for each token");
    assert!(tokens == 0 || (tokens - 1) * stride + columns <= x.len(), "coefficients of each token");
    level.run(Round { x, stride, factors, coarse, fine });
}

/// Writes `out[token * stride + row]`: the sum over groups and their columns of entry `[row, column]` times
/// coefficient. `matrix` has `rows` rows, as [`place`] arranges it.
///
/// # Panics
/// The slices do not fit one another, or there are more than [`MAX_TOKENS`] tokens.
pub fn product(
    level: Level,
    matrix: &[Line],
    rows: usize,
    groups: &[Group<'_>],
    out: &mut [f32],
    stride: usize,
) {
    let tokens = out.len().div_ceil(stride.max(1));
    let fits = |group: &Group<'_>| {
        group.runs.len() <= MAX_GROUP / RUN
            && group.scales.len() == tokens
            && group.bytes.len() == tokens.div_ceil(TILE) * group.runs.len() * (RUN / QUAD)
    };
    assert!(tokens <= MAX_TOKENS && groups.iter().all(fits), "bytes for each token");
    assert!(
        rows.is_multiple_of(PANEL) && rows > 0 && matrix.len().is_multiple_of(rows / PANEL),
        "whole panels"
    );
    assert!(tokens == 0 || (tokens - 1) * stride + rows <= out.len(), "room for each token");
    level.run(Product { matrix, panel: matrix.len() / (rows / PANEL), groups, out, stride, tokens, rows });
}

struct Round<'a> {
    x: &'a [f32],
    stride: usize,
    factors: &'a [f32],
    coarse: Rounded<'a>,
    fine: Option<Rounded<'a>>,
}

impl Kernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Machine>(self, isa: I) {
        let Self { x, stride, factors, coarse, mut fine } = self;
        let columns = factors.len();
        let mut padded = [[0.0; 32]; MAX_GROUP / 32];
        padded.as_flattened_mut()[..columns].copy_from_slice(factors);
        let parts = columns.div_ceil(32);
        let quads = columns / QUAD;
        for (token, scale) in coarse.scales.iter_mut().enumerate() {
            let mut row = [[0.0; 32]; MAX_GROUP / 32];
            row.as_flattened_mut()[..columns].copy_from_slice(&x[token * stride..][..columns]);
            let mut most = isa.splat(0.0);
            for (row, factors) in row.iter_mut().zip(&padded).take(parts) {
                let scaled = isa.load(row) * isa.load(factors);
                most = most.max_abs(scaled);
                isa.store(scaled, row);
            }
            let most = most.max();
            let inverse = if most < LEAST { 0.0 } else { 127.0 / most };
            scale.unit = if most < LEAST { 0.0 } else { most / 127.0 };
            let at = token / TILE * quads;
            let to = &mut coarse.bytes[at..at + quads];
            scale.total = write(isa, &mut row[..parts], (inverse, scale.unit), token % TILE, to);
            if let Some(fine) = &mut fine {
                // A remainder is at most half a unit.
                let (inverse, unit) = (254.0 * inverse, scale.unit / 254.0);
                let to = &mut fine.bytes[at..at + quads];
                let total = write(isa, &mut row[..parts], (inverse, unit), token % TILE, to);
                fine.scales[token] = Scale { unit, total };
            }
        }
    }
}

/// Writes the bytes of one token and leaves the remainders. Returns the sum of the bytes.
#[inline(always)]
fn write<I: Machine>(
    isa: I,
    row: &mut [[f32; 32]],
    (inverse, unit): (f32, f32),
    token: usize,
    to: &mut [[u32; TILE]],
) -> i32 {
    let (inverse, unit) = (isa.splat(inverse), isa.splat(unit));
    let mut total = isa.splat(0.0);
    for (part, to) in row.iter_mut().zip(to.chunks_mut(8)) {
        let x = isa.load(part);
        let codes = isa.round_i8(x * inverse);
        let rounded = isa.widen_i8(codes);
        total = total + rounded;
        isa.store(x - rounded * unit, part);
        let words = isa.pack::<8>(codes);
        for (pair, word) in to.chunks_mut(2).zip(words) {
            for (quad, dword) in pair.iter_mut().zip([word as u32, (word >> 32) as u32]) {
                quad[token] = dword;
            }
        }
    }
    // Whole numbers below 2^24: exact in any order.
    total.sum() as i32
}

struct Product<'a> {
    matrix: &'a [Line],
    /// Lines of a panel.
    panel: usize,
    groups: &'a [Group<'a>],
    out: &'a mut [f32],
    stride: usize,
    tokens: usize,
    rows: usize,
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Machine>(self, isa: I) {
        let Self { matrix, panel, groups, out, stride, tokens, rows } = self;
        let mut sums = [[0.0; ROWS]; MAX_TOKENS];
        let sums = &mut sums[..tokens];
        let mut factors = [[Line::ZERO; 2]; MAX_GROUP / QUAD];
        for (i, panels) in matrix.chunks(2 * panel).enumerate() {
            sums.as_flattened_mut().fill(0.0);
            let (first, second) = panels.split_at(panel);
            for group in groups {
                let factors = &mut factors[..group.runs.len() * (RUN / QUAD)];
                gather(isa, [first, second], group.runs, factors);
                let tiles = group.bytes.chunks_exact(factors.len().max(1));
                let tokens = sums.chunks_mut(TILE).zip(group.scales.chunks(TILE));
                for (bytes, (sums, scales)) in tiles.zip(tokens) {
                    tile(isa, factors, bytes, scales, sums);
                }
            }
            let from = ROWS * i;
            for (row, sums) in out.chunks_mut(stride).zip(sums.iter()) {
                if let Some(row) = row[from..rows].first_chunk_mut::<ROWS>() {
                    *row = *sums;
                } else {
                    row[from..rows].copy_from_slice(&sums[..PANEL]);
                }
            }
        }
    }
}

/// Copies the lines of runs from two panels. The second panel may be empty.
#[inline(always)]
fn gather<I: Machine>(isa: I, panels: [&[Line]; 2], runs: &[usize], factors: &mut [[Line; 2]]) {
    for (half, panel) in panels.into_iter().enumerate() {
        let panel = panel.as_chunks::<{ RUN / QUAD }>().0;
        for (to, &run) in factors.as_chunks_mut::<{ RUN / QUAD }>().0.iter_mut().zip(runs) {
            let lines = panel.get(run).unwrap_or(&[Line::ZERO; RUN / QUAD]);
            for (to, line) in to.iter_mut().zip(lines) {
                to[half] = Line(isa.line_bytes(isa.key_bytes(isa.line(line))));
            }
        }
    }
}

/// Adds the products of up to 8 tokens with all lines of a group.
#[inline(always)]
fn tile<I: Machine>(
    isa: I,
    factors: &[[Line; 2]],
    bytes: &[[u32; TILE]],
    scales: &[Scale],
    sums: &mut [[f32; ROWS]],
) {
    let mut all = [Scale::default(); TILE];
    all[..scales.len()].copy_from_slice(scales);
    if const { I::CHAINS >= 2 * TILE } {
        let found = eight(isa, factors, bytes, &all);
        for ((found, scale), sums) in found.into_iter().zip(&all).zip(sums) {
            add(isa, found, scale.unit, sums);
        }
    } else {
        let first = four::<I, 0>(isa, factors, bytes, &all);
        let (low, high) = sums.split_at_mut(sums.len().min(TILE / 2));
        for ((found, scale), sums) in first.into_iter().zip(&all).zip(low) {
            add(isa, found, scale.unit, sums);
        }
        if !high.is_empty() {
            let second = four::<I, 4>(isa, factors, bytes, &all);
            for ((found, scale), sums) in second.into_iter().zip(&all[TILE / 2..]).zip(high) {
                add(isa, found, scale.unit, sums);
            }
        }
    }
}

#[inline(always)]
fn add<I: Machine>(isa: I, found: [I::Sum; 2], unit: f32, sums: &mut [f32; ROWS]) {
    isa.store(isa.load(sums) + isa.floats(found) * isa.splat(unit), sums);
}

/// The sum to begin with, which takes the bias of the lines away.
#[inline(always)]
fn start<I: Machine>(isa: I, scale: &Scale) -> I::Sum {
    isa.all(-I::KEY_BIAS * scale.total)
}

/// Sums of 8 tokens, for machines with many registers.
#[inline(always)]
fn eight<I: Machine>(
    isa: I,
    factors: &[[Line; 2]],
    bytes: &[[u32; TILE]],
    scales: &[Scale; TILE],
) -> [[I::Sum; 2]; TILE] {
    let mut sums = [[isa.zero(); 2]; TILE];
    for (sums, scale) in sums.iter_mut().zip(scales) {
        *sums = [start(isa, scale); 2];
    }
    for ([a, b], bytes) in factors.iter().zip(bytes) {
        let (a, b) = (isa.line(a), isa.line(b));
        for t in 0..TILE {
            sums[t][0] = isa.byte_dot(sums[t][0], a, bytes[t]);
            sums[t][1] = isa.byte_dot(sums[t][1], b, bytes[t]);
        }
    }
    sums
}

/// Sums of 4 tokens from `FROM` on, one panel after the other.
#[inline(always)]
fn four<I: Machine, const FROM: usize>(
    isa: I,
    factors: &[[Line; 2]],
    bytes: &[[u32; TILE]],
    scales: &[Scale; TILE],
) -> [[I::Sum; 2]; TILE / 2] {
    let mut both = [[isa.zero(); 2]; TILE / 2];
    for half in 0..2 {
        let mut sums = [isa.zero(); TILE / 2];
        for t in 0..TILE / 2 {
            sums[t] = start(isa, &scales[FROM + t]);
        }
        for (lines, bytes) in factors.iter().zip(bytes) {
            let line = isa.line(&lines[half]);
            for t in 0..TILE / 2 {
                sums[t] = isa.byte_dot(sums[t], line, bytes[FROM + t]);
            }
        }
        for t in 0..TILE / 2 {
            both[t][half] = sums[t];
        }
    }
    both
}
