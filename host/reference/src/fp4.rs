//! `nvfp4` and `mxfp4`: blocks of numbers of 4 bits (e2m1) with a scale of 8 bits, as tensor cores multiply them.
//!
//! A block of the row is the numbers of the vector, two to a byte, then the scales.

use crate::bits;
use crate::format::Format;
use crate::uniform::{Floats, finite};
use std::sync::Arc;
use tqkv_core::{DecodeError, EncodeError};

/// The numbers of e2m1 that are not negative. The fourth bit of a code is the sign.
const NUMBERS: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
const SIGN: u8 = 8;

/// The code of the nearest number, on a tie that with an even code. Larger values have the largest number.
fn narrow(value: f64) -> u8 {
    let above = |pair: &(usize, &[f64])| {
        let middle = (pair.1[0] + pair.1[1]) / 2.0;
        value.abs() > middle || (value.abs() == middle && pair.0 % 2 == 1)
    };
    let code = NUMBERS.windows(2).enumerate().filter(above).count() as u8;
    if value.is_sign_negative() { code | SIGN } else { code }
}

fn wide(code: u8) -> f64 {
    let number = NUMBERS[usize::from(code & !SIGN)];
    if code & SIGN == 0 { number } else { -number }
}

/// How the numbers of a block are scaled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fp4 {
    /// Blocks of 16: an e4m3 number, times the scale of the tensor, which is no part of a block.
    Nv { tensor: f64 },
    /// Blocks of 32: a power of two (e8m0).
    Mx,
}

/// What e8m0 adds to an exponent.
const BIAS: i32 = 127;
/// Exponent of the largest number of e2m1.
const LARGEST: i32 = 2;

impl Fp4 {
    /// Coordinates of a block.
    pub(crate) const fn run(self) -> usize {
        match self {
            Self::Nv { .. } => 16,
            Self::Mx => 32,
        }
    }

    pub(crate) const fn block_bytes(self, dim: usize) -> usize {
        dim / 2 + dim / self.run()
    }

    /// The scale of a block, given its largest magnitude.
    fn narrow_scale(self, largest: f64) -> u8 {
        match self {
            Self::Nv { tensor } => Floats::E4m3.narrow(largest / NUMBERS[7] / tensor),
            Self::Mx if largest > 0.0 => (libm::ilogb(largest) - LARGEST + BIAS).clamp(0, 254) as u8,
            Self::Mx => 0,
        }
    }

    /// NaN for bytes that are no number.
    fn wide_scale(self, byte: u8) -> f64 {
        match self {
            Self::Nv { tensor } => Floats::E4m3.wide(byte) * tensor,
            Self::Mx if byte == u8::MAX => f64::NAN,
            Self::Mx => libm::scalbn(1.0, i32::from(byte) - BIAS),
        }
    }
}

impl Format for Fp4 {
    fn encode(&self, x: &[f64], block: &mut [u8]) -> Result<(), EncodeError> {
        let (numbers, scales) = block.split_at_mut(x.len() / 2);
        let mut codes = Vec::with_capacity(x.len());
        for (run, byte) in x.chunks(self.run()).zip(scales) {
            *byte = self.narrow_scale(run.iter().fold(0.0, |largest, x| x.abs().max(largest)));
            let scale = self.wide_scale(*byte);
            codes.extend(run.iter().map(|x| narrow(if scale > 0.0 { x / scale } else { 0.0 })));
        }
        bits::pack(&codes, 4, numbers);
        Ok(())
    }

    fn decode(&self, block: &[u8]) -> Result<Vec<f64>, DecodeError> {
        let dim = 2 * self.run() * block.len() / (self.run() + 2);
        let (numbers, scales) = block.split_at(dim / 2);
        let scales = scales.iter().map(|&byte| self.wide_scale(byte));
        let runs = scales.enumerate().flat_map(|(i, scale)| {
            (i * self.run()..(i + 1) * self.run()).map(move |i| scale * wide(bits::code(numbers, 4, i)))
        });
        finite(runs)
    }

    fn of_tensor(&self, largest: f64) -> Option<Arc<dyn Format>> {
        let tensor = largest / (NUMBERS[7] * Floats::E4m3.largest());
        let has_scale = matches!(self, Self::Nv { .. }) && tensor > 0.0;
        has_scale.then(|| Arc::new(Self::Nv { tensor }) as Arc<dyn Format>)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_their_own_nearest_and_ties_go_to_the_even_code() {
        assert!((0..16).all(|code| narrow(wide(code)) == code));
        for (value, number) in
            [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)]
        {
            assert_eq!([value, -value].map(|x| wide(narrow(x))), [number, -number], "{value}");
        }
        assert_eq!([2.51, 5.01, 9.0, -9.0].map(|x| wide(narrow(x))), [3.0, 6.0, 6.0, -6.0]);
    }

    #[test]
    fn the_scale_of_a_tensor_widens_the_range_of_block_scales() {
        let error = |format: &dyn Format| {
            let x: Vec<f64> = (0..16).map(|i| 1e-4 * (f64::from(i) - 7.5)).collect();
            let mut block = vec![0; 9];
            format.encode(&x, &mut block).unwrap();
            let y = format.decode(&block).unwrap();
            x.iter().zip(&y).map(|(x, y)| (x - y).powi(2)).sum::<f64>() / x.iter().map(|x| x * x).sum::<f64>()
        };
        let plain = Fp4::Nv { tensor: 1.0 };
        assert!(error(&plain) > 0.5 && error(&*plain.of_tensor(0.01).unwrap()) < 0.02);
        assert!(plain.of_tensor(0.0).is_none() && Fp4::Mx.of_tensor(1.0).is_none());
    }
}
