//! RMSNorm by an integer root.

use crate::vector::{RESIDUAL_BITS, excess, mantissas, shifted};

/// Fraction bits of the shape's epsilon.
const EPSILON_BITS: u32 = 40;

/// The weights of a norm: mantissas with one exponent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormWeights<'a> {
    exponent: [u8; 4],
    weights: &'a [u8],
}

impl<'a> NormWeights<'a> {
    /// Splits the weights off the front of the bytes. With too few bytes there are none; loading has ruled
    /// that out.
    pub(crate) fn read(bytes: &'a [u8], width: usize) -> (Self, &'a [u8]) {
        let (exponent, rest) = bytes.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
        let (weights, rest) = rest.split_at_checked(2 * width).unwrap_or_default();
        (Self { exponent: *exponent, weights }, rest)
    }

    pub(crate) const fn exponent(&self) -> i32 {
        i32::from_le_bytes(self.exponent)
    }

    /// Writes the normalised residual stream to `out` and returns its exponent; `room` has the same length.
    pub(crate) fn apply(&self, residual: &[i32], epsilon: u32, room: &mut [i32], out: &mut [i16]) -> i32 {
        let down = excess(residual, 15);
        let (shifted, mut squared) = (shifted(down), 0_u64);
        for (n, &h) in out.iter_mut().zip(residual) {
            let mantissa = shifted(h);
            squared += u64::from((mantissa * mantissa) as u32);
            *n = mantissa as i16;
        }
        let down = down as i32;
        let width = residual.len() as u64;
        // Mantissas are in units of 2^(down - 18), squares in the square of that unit.
        let octaves = EPSILON_BITS as i32 - 2 * RESIDUAL_BITS + 2 * down;
        let total = squared + ((width * u64::from(epsilon)) >> octaves.unsigned_abs().min(63));
        let (inverse, octaves) = inverse_root(total.max(1), width);
        let weights = self.weights.as_chunks::<2>().0;
        for ((room, &n), weight) in room.iter_mut().zip(&*out).zip(weights) {
            let product = i32::from(n) * i32::from(i16::from_le_bytes(*weight));
            *room = ((product + (1 << 14)) >> 15) * inverse;
        }
        mantissas(room, 15, out) + 15 + octaves + self.exponent()
    }
}

/// sqrt(width / total) as a mantissa below 2^15 and an exponent.
fn inverse_root(total: u64, width: u64) -> (i32, i32) {
    let up = total.leading_zeros() & !1;
    // 2^31 to 2^32, times 2^(-up / 2).
    let root = (total << up).isqrt().max(1 << 31);
    // At most 2^28, times 2^-20.
    let width = (width << 40).isqrt();
    let inverse = (width << 34) / root;
    let down = (64 - inverse.leading_zeros()).saturating_sub(15);
    ((inverse >> down) as i32, down as i32 + up as i32 / 2 - 54)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compared with floats over 11 octaves of the residual stream; below 2^-3 it has fewer bits.
    #[test]
    fn it_is_the_norm_of_floats() {
        let mut bytes = [0; 4 + 128];
        bytes[..4].copy_from_slice(&(-14_i32).to_le_bytes());
        for (i, weight) in bytes[4..].as_chunks_mut::<2>().0.iter_mut().enumerate() {
            *weight = (1000 + 400 * i as i16).to_le_bytes();
        }
        let (norm, _) = NormWeights::read(&bytes, 64);
        for octave in 15..26 {
            let residual: [i32; 64] =
                core::array::from_fn(|i| (i as i32 * 97 % 64 - 30) * (1 << octave) / 31);
            let (mut room, mut out) = ([0; 64], [0; 64]);
            let exponent = norm.apply(&residual, 10_995_116, &mut room, &mut out);
            let unit = 2f64.powi(-RESIDUAL_BITS);
            let mean: f64 = residual.iter().map(|&h| (f64::from(h) * unit).powi(2)).sum::<f64>() / 64.0;
            let scale = 1.0 / (mean + 1e-5).sqrt();
            for (i, &got) in out.iter().enumerate() {
                let want = f64::from(residual[i]) * unit * scale * (1000 + 400 * i) as f64 / 16_384.0;
                let got = f64::from(got) * 2f64.powi(exponent);
                assert!((got - want).abs() < 2e-3 * (want.abs() + 0.1), "octave {octave}, {i}: {got} {want}");
            }
        }
    }

    #[test]
    fn zeros_and_extremes_are_fine() {
        let (norm, _) = NormWeights::read(&[0x7f; 4 + 128], 64);
        for value in [0, i32::MIN, i32::MAX] {
            norm.apply(&[value; 64], u32::MAX, &mut [0; 64], &mut [0; 64]);
            norm.apply(&[value; 64], 0, &mut [0; 64], &mut [0; 64]);
        }
    }
}
