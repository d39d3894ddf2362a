//! `turbo2`, `turbo3`, `turbo4`: blocks of 128 coordinates as a fork of llama.cpp stores them.
//!
//! y = s2 * H(s1 * x), with two fixed vectors of signs and the orthonormal Sylvester transform H. The stored
//! norm is divided by the norm of the levels, so decoded vectors keep their norm. Head dims that are no
//! multiple of 128 are padded with zeros.
//!
//! The levels are the ones that the fork has used since `turbo4` takes 66 bytes. Older blocks of `turbo3`
//! have .021460 .065717 .117832 .190685.

use crate::bits;
use crate::format::{Format, Norm};
use crate::levels::Levels;
use crate::rotation::{dot, hadamard};
use tqkv_core::{DecodeError, EncodeError};

/// Coordinates of a block.
pub(crate) const GROUP: usize = 128;

/// Coordinate i changes its sign if bit i of byte i / 8 is set. WARNING: part of the format.
const FIRST: [u8; GROUP / 8] =
    [0x59, 0x03, 0x6a, 0xe4, 0x49, 0x59, 0xf8, 0x42, 0xbb, 0x3b, 0xc6, 0xa4, 0xa9, 0x50, 0xf2, 0x49];
const SECOND: [u8; GROUP / 8] =
    [0x90, 0xee, 0xac, 0x16, 0xdc, 0x8f, 0x62, 0x3f, 0x76, 0x3a, 0x35, 0xa5, 0xb7, 0x62, 0x65, 0xbe];

/// Positive levels, in units of coordinates of a unit vector.
const LEVELS: [&[f64]; 3] = [
    &[0.039_994, 0.133_462],
    &[0.021_663, 0.066_822, 0.118_786, 0.190_207],
    &[0.011_349, 0.034_299, 0.058_050, 0.083_292, 0.111_036, 0.143_016, 0.182_877, 0.241_529],
];

const NORM: Norm = Norm::F16;

/// The levels in sigma units.
pub(crate) fn levels(bits: usize) -> Levels {
    let sigmas = LEVELS[bits - 2].iter().map(|level| level * libm::sqrt(GROUP as f64));
    Levels::symmetric(&sigmas.collect::<Vec<_>>())
}

/// Bytes of all blocks of a vector.
pub(crate) const fn block_bytes(dim: usize, bits: usize) -> usize {
    dim.div_ceil(GROUP) * (NORM.bytes() + GROUP * bits / 8)
}

#[derive(Debug)]
pub(crate) struct Turbo {
    bits: usize,
    levels: Levels,
}

fn flip(signs: &[u8; GROUP / 8], x: &mut [f64]) {
    for (i, x) in x.iter_mut().enumerate() {
        if signs[i / 8] >> (i % 8) & 1 == 1 {
            *x = -*x;
        }
    }
}

impl Turbo {
    pub(crate) fn new(bits: usize) -> Self {
        Self { bits, levels: Levels::symmetric(LEVELS[bits - 2]) }
    }

    /// Codes of three bits are split: first the low two bits of every code, then the high bits.
    fn fields(&self) -> &'static [usize] {
        match self.bits {
            3 => &[2, 1],
            2 => &[2],
            _ => &[4],
        }
    }

    fn encode_group(&self, x: &[f64], block: &mut [u8]) -> Result<(), EncodeError> {
        let mut y = [0.0; GROUP];
        y[..x.len()].copy_from_slice(x);
        let norm = libm::sqrt(dot(&y, &y));
        y.iter_mut().for_each(|y| *y = if norm > 0.0 { *y / norm } else { 0.0 });
        flip(&FIRST, &mut y);
        hadamard(&mut y);
        flip(&SECOND, &mut y);
        let mut codes = y.map(|y| self.levels.code(y));
        let levels = codes.map(|code| self.levels.level(code));
        let (head, mut rest) = block.split_at_mut(NORM.bytes());
        NORM.store(norm / libm::sqrt(dot(&levels, &levels)), head)?;
        for &width in self.fields() {
            let (field, after) = rest.split_at_mut(GROUP * width / 8);
            bits::pack(&codes, width, field);
            codes = codes.map(|code| code >> width);
            rest = after;
        }
        Ok(())
    }

    fn decode_group(&self, mut block: &[u8]) -> Result<[f64; GROUP], DecodeError> {
        let norm = NORM.load(&mut block)?;
        let (mut codes, mut shift) = ([0; GROUP], 0);
        for &width in self.fields() {
            let (field, after) = block.split_at(GROUP * width / 8);
            codes.iter_mut().enumerate().for_each(|(i, code)| *code |= bits::code(field, width, i) << shift);
            (block, shift) = (after, shift + width);
        }
        let mut y = codes.map(|code| self.levels.level(code) * norm);
        flip(&SECOND, &mut y);
        hadamard(&mut y);
        flip(&FIRST, &mut y);
        Ok(y)
    }
}

impl Format for Turbo {
    fn encode(&self, x: &[f64], block: &mut [u8]) -> Result<(), EncodeError> {
        let mut written = vec![0; block.len()];
        let bytes = block_bytes(GROUP, self.bits);
        for (x, block) in x.chunks(GROUP).zip(written.chunks_exact_mut(bytes)) {
            self.encode_group(x, block)?;
        }
        block.copy_from_slice(&written);
        Ok(())
    }

    fn decode(&self, block: &[u8]) -> Result<Vec<f64>, DecodeError> {
        let groups = block.chunks_exact(block_bytes(GROUP, self.bits)).map(|block| self.decode_group(block));
        Ok(groups.collect::<Result<Vec<_>, _>>()?.concat())
    }
}
