//! `f8`: e4m3 bytes with one scale, for comparison with caches in 8-bit floats.
//!
//! The scale maps the largest magnitude to 448, the largest number of the format. It is not rotated and not
//! part of TurboQuant. The code is plain and portable, because only its error is of interest.

use super::{LARGEST_FLOAT as LARGEST, Layout};
use crate::code::coding::Coding;
use crate::code::form::{Form, largest};
use crate::code::scale::{Stored, to_f16};
use crate::error::EncodeError;
use crate::head_dim::{GROUP, HeadDim};
use crate::machine::Memory;
use crate::machine::block_io::{self, SCALE_BYTES};

/// [`Layout::Floats`].
#[derive(Clone, Copy, Debug)]
pub enum Floats {}

impl Form for Floats {
    const LAYOUT: Option<Layout> = Some(Layout::Floats);

    #[inline(always)]
    fn levels<I: Memory>(_: &Coding, isa: I, _: HeadDim, block: &[u8], out: &mut [I::V]) -> f32 {
        let (scale, codes) = block_io::split(block);
        for (bytes, level) in codes.chunks(GROUP).zip(out) {
            let mut values = [0.0; GROUP];
            for (value, &byte) in values.iter_mut().zip(bytes) {
                *value = decode(byte);
            }
            *level = isa.load(&values);
        }
        isa.widen_half(scale)
    }

    #[inline(always)]
    fn quantise<I: Memory>(
        _: &Coding,
        isa: I,
        _: HeadDim,
        y: &[I::V],
        _: &mut [I::C],
        block: &mut [u8],
    ) -> Result<(), EncodeError> {
        let stored = match to_f16(isa, largest::<I>(isa, y) / LARGEST) {
            Stored::Scale(stored) => stored,
            Stored::Zero => {
                block.fill(0);
                return Ok(());
            }
            Stored::OutOfRange => return Err(EncodeError::OutOfRange),
        };
        let inverse = isa.splat(1.0 / isa.widen_half(stored));
        let Some((head, codes)) = block.split_first_chunk_mut::<SCALE_BYTES>() else { return Ok(()) };
        *head = stored.to_le_bytes();
        for (bytes, &v) in codes.chunks_mut(GROUP).zip(y) {
            let mut values = [0.0; GROUP];
            isa.store(v * inverse, &mut values);
            for (byte, value) in bytes.iter_mut().zip(values) {
                *byte = encode(value);
            }
        }
        Ok(())
    }
}

/// The nearest number of the format, ties to even; larger magnitudes become the largest number.
fn encode(value: f32) -> u8 {
    let sign = ((value.to_bits() >> 24) & 0x80) as u8;
    let magnitude = f32::min(value.abs(), LARGEST);
    if magnitude < 1.0 / 64.0 {
        // Subnormal: multiples of 2^-9; the eighth is the smallest normal number.
        return sign | libm::rintf(magnitude * 512.0) as u8;
    }
    let bits = magnitude.to_bits();
    let rounded = (bits + 0x7_ffff + (bits >> 20 & 1)) >> 20;
    sign | (rounded - ((127 - 7) << 3)) as u8
}

/// The number of a byte. e4m3 uses two bytes for NaN, which no encoder writes; here they decode like any
/// other byte.
#[inline(always)]
fn decode(byte: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(byte >> 3 & 15), u32::from(byte & 7));
    let magnitude = if exponent == 0 {
        mantissa as f32 / 512.0
    } else {
        f32::from_bits((exponent + 127 - 7) << 23 | mantissa << 20)
    };
    if byte & 0x80 != 0 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::{decode, encode};

    #[test]
    fn every_byte_is_its_own_nearest_number() {
        for byte in 0..=u8::MAX {
            if byte & 0x7f != 0x7f {
                assert_eq!(encode(decode(byte)), byte);
            }
        }
        assert_eq!((decode(0x7e), decode(0x08), decode(0x01)), (448.0, 1.0 / 64.0, 1.0 / 512.0));
        // A tie goes to the even number: 17 lies between 16 and 18, 19 between 18 and 20.
        assert_eq!((decode(encode(17.0)), decode(encode(19.0)), decode(encode(1e9))), (16.0, 20.0, 448.0));
    }
}
