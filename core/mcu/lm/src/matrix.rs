//! Matrices of weights as stored in the file, and their products with a vector.
//!
//! Rows are stored in pairs, so that a loop reads each activation once per two rows. With 8 bits, four
//! columns are a word of bytes 0, 2, 1, 3. Its signed bytes 0 and 2 are columns 0 and 1. Its halves, as
//! signed 16-bit numbers over 256, are columns 2 and 3. The low byte of a half belongs to another column. The
//! quantiser takes that into account, so it costs no accuracy. A processor that multiplies halves then needs
//! no instruction to unpack them.
//!
//! With 4 bits, 32 columns share a byte as their scale. Column c of eight columns is nibble c / 2 + 4 (c %
//! 2), minus 8.

use crate::vector::{bits_of, exponent_of};
use tqkv_core::fixed::flat::{GROUP, LayoutBytes, WeightBits};
use tqkv_core::fixed::{Kernels, Products};

/// Number of columns whose products fit 32-bit sums.
const SEGMENT: usize = 256;
/// Bytes of eight columns of a row with 4 bits.
const EIGHT: usize = 4;

/// A matrix, read in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    exponent: [u8; 4],
    /// 16-bit mantissas.
    scales: &'a [u8],
    pairs: &'a [u8],
    bits: WeightBits,
    columns: usize,
}

pub(crate) const fn word(bytes: [u8; 4]) -> u32 {
    u32::from_le_bytes(bytes)
}

const fn low(bytes: [u8; 2]) -> i32 {
    i16::from_le_bytes(bytes) as i32
}

impl<'a> Matrix<'a> {
    /// Splits a matrix off the front of the bytes. With too few bytes it has no rows; loading has ruled that
    /// out.
    pub(crate) fn read(bytes: &'a [u8], bits: WeightBits, rows: usize, columns: usize) -> (Self, &'a [u8]) {
        let of = LayoutBytes(bits);
        let (exponent, rest) = bytes.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
        let (scales, rest) = rest.split_at_checked(2 * rows.next_multiple_of(2)).unwrap_or_default();
        let pairs = rows.div_ceil(2) * (of.pair_scales(columns) + of.pair_codes(columns));
        let (pairs, rest) = rest.split_at_checked(pairs).unwrap_or_default();
        (Self { exponent: *exponent, scales, pairs, bits, columns }, rest)
    }

    /// The exponent of the scales.
    pub(crate) const fn exponent(&self) -> i32 {
        i32::from_le_bytes(self.exponent)
    }

    /// Pairs of rows: their mantissas, the scales of their groups, their codes.
    fn pairs(&self) -> impl Iterator<Item = ([i32; 2], &'a [u8], &'a [u8])> {
        let of = LayoutBytes(self.bits);
        let scales = of.pair_scales(self.columns);
        let bytes = (scales + of.pair_codes(self.columns)).max(1);
        self.scales.as_chunks::<4>().0.iter().zip(self.pairs.chunks_exact(bytes)).map(move |(m, pair)| {
            let (scales, codes) = pair.split_at_checked(scales).unwrap_or_default();
            let [a, b, c, d] = *m;
            ([i32::from(u16::from_le_bytes([a, b])), i32::from(u16::from_le_bytes([c, d]))], scales, codes)
        })
    }

    /// Writes the products of the rows with `x` to `out`; returns the exponent to add to that of `x`.
    ///
    /// A sum of products is exact. Its upper 31 bits are used; the length of a row gives their position.
    /// Times the scale of the row, they give 31 bits again.
    pub(crate) fn multiply(&self, kernels: impl Kernels, x: &[i16], out: &mut [i32]) -> i32 {
        let grown = bits_of(self.columns as u32 - 1);
        // Bounds of a sum: 2^30 times columns in units of 1 / 256 (8 bits), 2^26 times columns in units of 1
        // (4 bits).
        let (down, unit) = match self.bits {
            WeightBits::Eight => (grown, 8),
            WeightBits::Four => (grown.saturating_sub(4), 0),
        };
        let rows = (self.scales.len() / 2).min(out.len());
        let out = out.get_mut(..rows).unwrap_or_default();
        let task =
            Products { bits: self.bits.count(), weights: self.pairs, scales: self.scales, x, shift: down };
        if kernels.products(task, out).is_none() {
            self.portable(x, down, out);
        }
        self.exponent() + down as i32 + 16 - unit
    }

    /// The products by their definition.
    #[inline(never)]
    fn portable(&self, x: &[i16], down: u32, out: &mut [i32]) {
        for (out, (scales, groups, codes)) in out.as_chunks_mut::<2>().0.iter_mut().zip(self.pairs()) {
            let sums = match self.bits {
                WeightBits::Eight => bytes(codes, x),
                WeightBits::Four => nibbles(groups, codes, x),
            };
            for ((out, sum), scale) in out.iter_mut().zip(sums).zip(scales) {
                let product = i64::from((sum >> (down & 31)) as i32) * i64::from(scale);
                *out = ((product + (1 << 15)) >> 16) as i32;
            }
        }
    }

    /// Row `index` in multiples of 2^`exponent`, into `out`.
    pub(crate) fn row(&self, index: usize, exponent: i32, out: &mut [i32]) {
        let Some((scales, groups, codes)) = self.pairs().nth(index / 2) else { return };
        let second = index % 2 == 1;
        let scale = if second { scales[1] } else { scales[0] };
        let put = |out: &mut i32, code: i32, unit: i32| {
            let by = self.exponent() - unit - exponent;
            *out = exponent_of(i64::from(code) * i64::from(scale), by);
        };
        match self.bits {
            WeightBits::Eight => {
                for (out, words) in out.as_chunks_mut::<4>().0.iter_mut().zip(codes.as_chunks::<8>().0) {
                    let [a, b, c, d, e, f, g, h] = *words;
                    let [a, b, c, d] = if second { [e, f, g, h] } else { [a, b, c, d] };
                    let values = [i32::from(a as i8) << 8, i32::from(c as i8) << 8, low([a, b]), low([c, d])];
                    for (out, value) in out.iter_mut().zip(values) {
                        put(out, value, 8);
                    }
                }
            }
            WeightBits::Four => {
                let groups = groups.as_chunks::<2>().0.iter().zip(codes.as_chunks::<{ GROUP }>().0);
                for (out, (group, codes)) in out.as_chunks_mut::<GROUP>().0.iter_mut().zip(groups) {
                    let (_, mine) =
                        codes.split_at_checked(if second { GROUP / 2 } else { 0 }).unwrap_or_default();
                    let group = i32::from(if second { group[1] } else { group[0] });
                    for (out, bytes) in out.as_chunks_mut::<8>().0.iter_mut().zip(mine.as_chunks::<EIGHT>().0)
                    {
                        for (out, code) in out.iter_mut().zip(eight(*bytes)) {
                            put(out, code * group, 0);
                        }
                    }
                }
            }
        }
    }
}

/// Sums over signed bytes of two rows, times 256.
#[inline(always)]
fn bytes(codes: &[u8], x: &[i16]) -> [i64; 2] {
    let mut sums = [0; 2];
    for (codes, x) in codes.chunks(2 * SEGMENT).zip(x.chunks(SEGMENT)) {
        let part = segment(codes, x);
        sums = [sums[0] + part[0], sums[1] + part[1]];
    }
    sums
}

/// [`bytes`] for at most [`SEGMENT`] columns: 2^8 products of at most 2^22 stay below 2^31.
#[inline(always)]
fn segment(codes: &[u8], x: &[i16]) -> [i64; 2] {
    // Sums of the signed bytes, and of the low bytes of halves.
    let (mut upper, mut lower) = ([0_i32; 2], [0_i32; 2]);
    for (words, x) in codes.as_chunks::<8>().0.iter().zip(x.as_chunks::<4>().0) {
        let x = x.map(i32::from);
        for (row, [a, b, c, d]) in words.as_chunks::<4>().0.iter().copied().enumerate().take(2) {
            let signed = |byte: u8| i32::from(byte as i8);
            upper[row % 2] += signed(a) * x[0] + signed(c) * x[1] + signed(b) * x[2] + signed(d) * x[3];
            lower[row % 2] += i32::from(a) * x[2] + i32::from(c) * x[3];
        }
    }
    [(i64::from(upper[0]) << 8) + i64::from(lower[0]), (i64::from(upper[1]) << 8) + i64::from(lower[1])]
}

/// The codes of eight columns.
#[inline(always)]
fn eight(bytes: [u8; EIGHT]) -> [i32; 8] {
    let word = word(bytes);
    core::array::from_fn(|c| (word >> (2 * c + 14 * (c % 2)) & 15) as i32 - 8)
}

/// Sums of two rows over 4-bit codes times the scales of their groups.
#[inline(always)]
fn nibbles(scales: &[u8], codes: &[u8], x: &[i16]) -> [i64; 2] {
    let mut sums = [0; 2];
    let groups = scales.as_chunks::<2>().0.iter().zip(codes.as_chunks::<GROUP>().0);
    for ((scales, codes), x) in groups.zip(x.as_chunks::<GROUP>().0) {
        for (row, codes) in codes.as_chunks::<{ GROUP / 2 }>().0.iter().enumerate().take(2) {
            let mut sum = 0;
            for (bytes, x) in codes.as_chunks::<EIGHT>().0.iter().zip(x.as_chunks::<8>().0) {
                for (code, x) in eight(*bytes).into_iter().zip(x) {
                    sum += code * i32::from(*x);
                }
            }
            // Below 2^23 times 2^8.
            sums[row % 2] += i64::from(sum) * i64::from(scales[row % 2]);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;
    use std::vec::Vec;
    use tqkv_core::Portable;

    /// Bytes of a matrix with arbitrary content.
    fn painted(bits: WeightBits, rows: usize, columns: usize) -> Vec<u8> {
        let mut bytes = vec![0; LayoutBytes(bits).matrix(rows, columns) as usize];
        let mut state = 1_u32;
        for byte in &mut bytes {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 24) as u8;
        }
        bytes[..4].copy_from_slice(&(-20_i32).to_le_bytes());
        bytes
    }

    /// A product is the sum over the weights that [`Matrix::row`] returns.
    #[test]
    fn products_are_those_of_the_rows() {
        for bits in [WeightBits::Eight, WeightBits::Four] {
            for (rows, columns) in [(2, 32), (5, 96), (8, 544)] {
                let bytes = painted(bits, rows, columns);
                let (matrix, rest) = Matrix::read(&bytes, bits, rows, columns);
                assert!(rest.is_empty());
                let x: Vec<i16> =
                    (0..columns as i32).map(|i| (i * 12_345 % 65_536 - 32_768) as i16).collect();
                let mut out = vec![0; rows.next_multiple_of(2)];
                let exponent = matrix.multiply(Portable, &x, &mut out);
                for (index, &got) in out.iter().take(rows).enumerate() {
                    let mut row = vec![0; columns];
                    matrix.row(index, -22, &mut row);
                    let want: f64 = row.iter().zip(&x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
                    let (want, got) = (want * 2f64.powi(-22), f64::from(got) * 2f64.powi(exponent));
                    let unit = 2f64.powi(exponent) * 2.0;
                    assert!(
                        (got - want).abs() < unit + want.abs() * 1e-6,
                        "{bits:?} {columns} {index}: {got} {want}"
                    );
                }
            }
        }
    }

    #[test]
    fn extremes_do_not_overflow() {
        for bits in [WeightBits::Eight, WeightBits::Four] {
            for byte in [0x80, 0x7f, 0xff, 0] {
                let mut bytes = vec![byte; LayoutBytes(bits).matrix(2, 8192) as usize];
                bytes[..4].fill(0);
                let (matrix, _) = Matrix::read(&bytes, bits, 2, 8192);
                for x in [i16::MIN, i16::MAX] {
                    let mut out = [0; 2];
                    matrix.multiply(Portable, &vec![x; 8192], &mut out);
                    assert_eq!(out[0], out[1]);
                }
            }
        }
    }

    #[test]
    fn an_odd_row_has_a_partner() {
        let of = LayoutBytes(WeightBits::Eight);
        assert_eq!(of.matrix(3, 64), of.matrix(4, 64));
        assert_eq!(LayoutBytes(WeightBits::Four).matrix(2, 96), 4 + 4 + 8 + 96);
    }
}
