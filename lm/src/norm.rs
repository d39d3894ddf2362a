//! RMSNorm by an integer root.

use crate::vector::{RESIDUAL_BITS, excess, mantissas, shifted};

/// Fraction bits of the shape's epsilon.
const EPSILON_BITS: u32 = 40;

/// The weights of a norm: mantissas under one exponent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm<'a> {
    exponent: [u8; 4],
    weights: &'a [u8],
}

impl<'a> Norm<'a> {
    /// Takes the weights off the front of bytes; none where there are too few, which loading has ruled out.
    pub(crate) fn read(bytes: &'a [u8], width: usize) -> (Self, &'a [u8]) {
        let (exponent, rest) = bytes.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
        let (weights, rest) = rest.split_at_checked(2 * width).unwrap_or_default();
        (Self { exponent: *exponent, weights }, rest)
    }

    pub(crate) const fn exponent(&self) -> i32 {
        i32::from_le_bytes(self.exponent)
    }

    /// Writes the normalised residual stream to `out` and returns its exponent; `room` is as long.
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
        // Mantissas are in units of 2^(down - 18), squares in the square of that.
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
