//! `u3`, `u8` and `f8e5m2`: yardsticks without a rotation, beside `u4` and `f8` of `tqkv_core`.

use crate::bits;
use crate::format::{Format, Norm};
use half::f16;
use tqkv_core::{DecodeError, EncodeError};

const FIELD: Norm = Norm::F16;

/// Uniform codes between the smallest value and the largest: step (f16), minimum (f16), codes.
#[derive(Debug)]
pub(crate) struct Uniform {
    pub(crate) bits: usize,
}

impl Uniform {
    pub(crate) const fn block_bytes(dim: usize, bits: usize) -> usize {
        2 * FIELD.bytes() + dim * bits / 8
    }
}

impl Format for Uniform {
    fn encode(&self, x: &[f64], block: &mut [u8]) -> Result<(), EncodeError> {
        let largest_code = f64::from((1u32 << self.bits) - 1);
        let mut head = [0; 2 * FIELD.bytes()];
        let (step, least) = head.split_at_mut(FIELD.bytes());
        let least = FIELD.store(x.iter().copied().fold(f64::INFINITY, f64::min), least)?;
        let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let step = FIELD.store(f64::max(largest - least, 0.0) / largest_code, step)?;
        let inverse = if step > 0.0 { 1.0 / step } else { 0.0 };
        let code = |x: &f64| ((x - least) * inverse + 0.5).clamp(0.0, largest_code) as u8;
        let codes: Vec<u8> = x.iter().map(code).collect();
        block[..head.len()].copy_from_slice(&head);
        bits::pack(&codes, self.bits, &mut block[head.len()..]);
        Ok(())
    }

    fn decode(&self, mut block: &[u8]) -> Result<Vec<f64>, DecodeError> {
        let (step, least) = (FIELD.load(&mut block)?, FIELD.load(&mut block)?);
        let codes = (0..8 * block.len() / self.bits).map(|i| bits::code(block, self.bits, i));
        Ok(codes.map(|code| least + f64::from(code) * step).collect())
    }
}

/// e5m2 numbers with one scale (f16) that maps the largest magnitude to 57344, the largest e5m2 number.
#[derive(Debug)]
pub(crate) struct Floats;

const LARGEST: f64 = 57344.0;

impl Floats {
    pub(crate) const fn block_bytes(dim: usize) -> usize {
        FIELD.bytes() + dim
    }
}

/// Rounds to e5m2, the upper half of an f16: nearest, ties to even, never infinity.
fn narrow(value: f64) -> u8 {
    let bits = f16::from_f32(value.clamp(-LARGEST, LARGEST) as f32).to_bits();
    ((bits + 0x7f + (bits >> 8 & 1)) >> 8) as u8
}

impl Format for Floats {
    fn encode(&self, x: &[f64], block: &mut [u8]) -> Result<(), EncodeError> {
        let mut head = [0; FIELD.bytes()];
        let largest = x.iter().map(|x| x.abs()).fold(0.0, f64::max);
        let scale = FIELD.store(largest / LARGEST, &mut head)?;
        block[..head.len()].copy_from_slice(&head);
        for (byte, x) in block[head.len()..].iter_mut().zip(x) {
            *byte = narrow(if scale > 0.0 { x / scale } else { 0.0 });
        }
        Ok(())
    }

    fn decode(&self, mut block: &[u8]) -> Result<Vec<f64>, DecodeError> {
        let scale = FIELD.load(&mut block)?;
        let wide = |&byte: &u8| f16::from_bits(u16::from(byte) << 8).to_f64();
        // No encoder writes infinities or NaN. They give the same error as a bad scale.
        let values = block.iter().map(|byte| Some(scale * wide(byte)).filter(|value| value.is_finite()));
        values.collect::<Option<_>>().ok_or(DecodeError::NonFiniteScale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_five_and_two_bits_are_nearest_and_even() {
        let wide = |byte: u8| f16::from_bits(u16::from(byte) << 8).to_f64();
        assert!((0..=0x7b).all(|byte| narrow(wide(byte)) == byte && narrow(-wide(byte)) == byte | 0x80));
        assert_eq!([9.0, 11.0, 1e9, -1e9].map(|x| wide(narrow(x))), [8.0, 12.0, LARGEST, -LARGEST]);
    }
}
