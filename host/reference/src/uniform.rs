//! `u3`, `u4`, `u8` and their rotated variants, `int4h`, `f8`, `f8e5m2` and `fp8`, as other caches store them.

use crate::bits;
use crate::format::{Format, Norm};
use half::f16;
use std::sync::Arc;
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

/// Codes of 4 bits between the smallest value and the largest, with a zero point: a scale (f32), whose four lowest bits
/// are the code of 0, and codes.
#[derive(Debug)]
pub(crate) struct ZeroPoint;

impl ZeroPoint {
    const SCALE: Norm = Norm::F32;
    /// The bits of the scale that hold the zero point.
    const MASK: u32 = 15;

    pub(crate) const fn block_bytes(dim: usize) -> usize {
        Self::SCALE.bytes() + dim / 2
    }
}

impl Format for ZeroPoint {
    fn encode(&self, x: &[f64], block: &mut [u8]) -> Result<(), EncodeError> {
        let least = x.iter().copied().fold(f64::INFINITY, f64::min);
        let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut head = [0; Self::SCALE.bytes()];
        let scale = Self::SCALE.store(f64::max((largest - least) / 15.0, 1e-6), &mut head)?;
        let zero = libm::round(-least / scale).clamp(0.0, 15.0);
        let stored = u32::from_le_bytes(head) & !Self::MASK | zero as u32;
        let codes: Vec<u8> = x.iter().map(|x| libm::round(x / scale + zero).clamp(0.0, 15.0) as u8).collect();
        block[..head.len()].copy_from_slice(&stored.to_le_bytes());
        bits::pack(&codes, 4, &mut block[head.len()..]);
        Ok(())
    }

    fn decode(&self, block: &[u8]) -> Result<Vec<f64>, DecodeError> {
        let (head, codes) = block.split_at(Self::SCALE.bytes());
        let stored = u32::from_le_bytes(head.try_into().map_err(|_| DecodeError::WrongLength)?);
        let scale = Self::SCALE.load(&mut &(stored & !Self::MASK).to_le_bytes()[..])?;
        let zero = f64::from(stored & Self::MASK);
        Ok((0..2 * codes.len()).map(|i| (f64::from(bits::code(codes, 4, i)) - zero) * scale).collect())
    }
}

/// Numbers of 8 bits with one scale (f16), which maps the largest magnitude to the largest number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Floats {
    /// Four bits of exponent and three of mantissa.
    E4m3,
    /// Five and two: the upper byte of an f16.
    E5m2,
}

impl Floats {
    pub(crate) const fn block_bytes(dim: usize) -> usize {
        FIELD.bytes() + dim
    }

    pub(crate) const fn largest(self) -> f64 {
        match self {
            Self::E4m3 => 448.0,
            Self::E5m2 => 57344.0,
        }
    }

    /// Rounds to nearest, ties to even, never to infinity or NaN.
    pub(crate) fn narrow(self, value: f64) -> u8 {
        let value = value.clamp(-self.largest(), self.largest());
        match self {
            Self::E4m3 => {
                // Numbers below 2^-6 are as far apart as those above it.
                let exponent = libm::ilogb(value).clamp(-6, 8);
                let steps = libm::rint(libm::scalbn(value.abs(), 3 - exponent)) as u8;
                let sign = if value.is_sign_negative() { 0x80 } else { 0 };
                // The first number of an exponent has 8 steps. A carry goes to the exponent.
                sign | (8 * (exponent + 6) as u8 + steps)
            }
            Self::E5m2 => {
                let bits = f16::from_f32(value as f32).to_bits();
                ((bits + 0x7f + (bits >> 8 & 1)) >> 8) as u8
            }
        }
    }

    /// The number of a byte, NaN or infinite for bytes that are no number.
    pub(crate) fn wide(self, byte: u8) -> f64 {
        match self {
            Self::E4m3 if byte & 0x7f == 0x7f => f64::NAN,
            Self::E4m3 => {
                let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f64::from(byte & 7));
                let implied = if exponent == 0 { 0.0 } else { 8.0 };
                let magnitude = libm::scalbn(implied + mantissa, exponent.max(1) - 10);
                if byte & 0x80 == 0 { magnitude } else { -magnitude }
            }
            Self::E5m2 => f16::from_bits(u16::from(byte) << 8).to_f64(),
        }
    }
}

impl Format for Floats {
    fn encode(&self, x: &[f64], block: &mut [u8]) -> Result<(), EncodeError> {
        let mut head = [0; FIELD.bytes()];
        let largest = x.iter().map(|x| x.abs()).fold(0.0, f64::max);
        let scale = FIELD.store(largest / self.largest(), &mut head)?;
        block[..head.len()].copy_from_slice(&head);
        for (byte, x) in block[head.len()..].iter_mut().zip(x) {
            *byte = self.narrow(if scale > 0.0 { x / scale } else { 0.0 });
        }
        Ok(())
    }

    fn decode(&self, mut block: &[u8]) -> Result<Vec<f64>, DecodeError> {
        let scale = FIELD.load(&mut block)?;
        finite(block.iter().map(|&byte| scale * self.wide(byte)))
    }
}

/// Numbers of e4m3 alone, which have the scale of their tensor. It is no part of a block.
#[derive(Debug)]
pub(crate) struct OfTensor {
    pub(crate) scale: f64,
}

impl Format for OfTensor {
    fn encode(&self, x: &[f64], block: &mut [u8]) -> Result<(), EncodeError> {
        block.iter_mut().zip(x).for_each(|(byte, x)| *byte = Floats::E4m3.narrow(x / self.scale));
        Ok(())
    }

    fn decode(&self, block: &[u8]) -> Result<Vec<f64>, DecodeError> {
        finite(block.iter().map(|&byte| self.scale * Floats::E4m3.wide(byte)))
    }

    fn of_tensor(&self, largest: f64) -> Option<Arc<dyn Format>> {
        let scale = largest / Floats::E4m3.largest();
        (scale > 0.0).then(|| Arc::new(Self { scale }) as Arc<dyn Format>)
    }
}

/// The values, if no byte stood for an infinity or NaN. No encoder writes these, and they give the same error as a bad
/// scale.
pub(crate) fn finite(values: impl Iterator<Item = f64>) -> Result<Vec<f64>, DecodeError> {
    let finite = values.map(|value| Some(value).filter(|value| value.is_finite()));
    finite.collect::<Option<_>>().ok_or(DecodeError::NonFiniteScale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_8_bits_is_its_own_nearest_number() {
        for floats in [Floats::E4m3, Floats::E5m2] {
            let numbers = (0..=u8::MAX).filter(|&byte| floats.wide(byte).is_finite());
            assert!(numbers.clone().all(|byte| floats.narrow(floats.wide(byte)) == byte), "{floats:?}");
            assert_eq!(numbers.map(|byte| floats.wide(byte)).fold(0.0, f64::max), floats.largest());
        }
    }

    #[test]
    fn ties_go_to_the_even_number_and_nothing_is_too_large() {
        let round = |floats: Floats, x| floats.wide(floats.narrow(x));
        assert_eq!([17.0, 19.0, 1e9, -1e9].map(|x| round(Floats::E4m3, x)), [16.0, 20.0, 448.0, -448.0]);
        assert_eq!([1.0 / 64.0, 1.0 / 1024.0].map(|x| round(Floats::E4m3, x)), [1.0 / 64.0, 0.0]);
        assert_eq!([9.0, 11.0, 1e9, -1e9].map(|x| round(Floats::E5m2, x)), [8.0, 12.0, 57344.0, -57344.0]);
    }
}
