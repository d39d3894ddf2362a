//! `u4`: uniform codes between the smallest and the largest value, for comparison with integer caches.
//!
//! A block is two f16, the step and the minimum, then codes side by side: value = minimum + code * step. It
//! is not rotated and not part of TurboQuant. The code is plain and portable, because only its error is of
//! interest.

use super::Layout;
use crate::code::coding::Coding;
use crate::code::form::Form;
use crate::error::EncodeError;
use crate::head_dim::{GROUP, HeadDim, MAX_HEAD_DIM};
use crate::machine::Memory;
use crate::machine::block_io::{self, SCALE_BYTES};
use crate::rotation;
use half::f16;

/// [`Layout::Affine`].
#[derive(Clone, Copy, Debug)]
pub enum Affine {}

impl Form for Affine {
    const LAYOUT: Option<Layout> = Some(Layout::Affine);

    #[inline(always)]
    fn levels<I: Memory>(_: &Coding, isa: I, _: HeadDim, block: &[u8], out: &mut [I::V]) -> f32 {
        let (step, rest) = block_io::split(block);
        let (least, codes) = block_io::split(rest);
        let value = |code: u8| least.to_f32() + f32::from(code) * step.to_f32();
        for (bytes, level) in codes.chunks(GROUP / 2).zip(out) {
            let mut values = [0.0; GROUP];
            for (pair, &byte) in values.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
                *pair = [value(byte & 15), value(byte >> 4)];
            }
            *level = isa.load(&values);
        }
        1.0
    }

    #[inline(always)]
    fn quantise<I: Memory>(
        _: &Coding,
        isa: I,
        shape: HeadDim,
        y: &[I::V],
        _: &mut [I::C],
        block: &mut [u8],
    ) -> Result<(), EncodeError> {
        let mut memory = [0.0; MAX_HEAD_DIM];
        let x = &mut memory[..shape.dim()];
        rotation::store(isa, y, x);
        encode(x, block)
    }
}

/// Rounds the minimum to f16 first. The step then spans the rest of the range, and each code is the nearest.
fn encode(x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
    let least = f16::from_f32(x.iter().copied().fold(f32::INFINITY, f32::min));
    let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let step = f16::from_f32(f32::max(largest - least.to_f32(), 0.0) / 15.0);
    if !least.is_finite() || !step.is_finite() {
        return Err(EncodeError::OutOfRange);
    }
    let inverse = if step == f16::ZERO { 0.0 } else { 1.0 / step.to_f32() };
    // A cast saturates, so nothing is below 0.
    let code = |v: f32| (((v - least.to_f32()) * inverse + 0.5) as u8).min(15);
    if let Some((head, rest)) = block.split_first_chunk_mut::<SCALE_BYTES>()
        && let Some((minimum, codes)) = rest.split_first_chunk_mut::<SCALE_BYTES>()
    {
        *head = step.to_le_bytes();
        *minimum = least.to_le_bytes();
        for (byte, pair) in codes.iter_mut().zip(x.as_chunks::<2>().0) {
            *byte = code(pair[0]) | code(pair[1]) << 4;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{AnyCodec, CodecId, Options};

    fn round_trip(x: &[f32; 16]) -> [f32; 16] {
        let codec = AnyCodec::new(CodecId::U4, x.len(), Options::DEFAULT).unwrap();
        let (mut block, mut out) = ([0; 12], [0.0; 16]);
        codec.encode(x, &mut block).unwrap();
        codec.decode(&block, &mut out).unwrap();
        out
    }

    #[test]
    fn sixteen_even_levels_come_back_and_others_to_half_a_step() {
        let even = core::array::from_fn(|i| 0.5 * i as f32 - 3.0);
        assert_eq!(round_trip(&even), even);
        assert_eq!(round_trip(&[2.5; 16]), [2.5; 16], "a step of zero");
        assert_eq!(round_trip(&[0.0; 16]), [0.0; 16]);
        let uneven = core::array::from_fn(|i| (i * i) as f32 / 15.0 - 3.0);
        for (x, y) in uneven.iter().zip(round_trip(&uneven)) {
            // The step is a rounded f16.
            assert!((x - y).abs() < 0.501, "{x} {y}");
        }
    }
}
