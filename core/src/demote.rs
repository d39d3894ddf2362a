//! Demotion of nested codes: fewer bits for a stored vector, without the original vector.

use crate::code::CodecId;
use crate::code::scale::ScaleMode;
use crate::codec::any::AnyCodec;
use crate::error::{EncodeError, ShapeError};
use crate::machine::block_io;
use crate::view::{BlockError, BlockView};
use half::f16;

/// Rewrites a block of `from` (`n4`, `n3`, `n2`) as a block of the narrower nested codec `to`, by dropping
/// the low bits of every code. Cost: one pass over the codes.
///
/// The stored scale was chosen for the wider levels. D and D' are the distortions of the wide and the narrow
/// codebook. Under `Unbiased` the scale is multiplied by (1 - D)/(1 - D'), under `Preserving` by the square
/// root of that ratio. `Raw` and `Mmse` scales stay.
///
/// # Errors
/// * `to` is not a nested codec with fewer bits and the same head dim and seed.
/// * A length is wrong.
/// * The scale, which grows by up to 1.6, does not fit f16.
///
/// `out` is then untouched.
pub fn demote(from: &AnyCodec, block: &[u8], to: &AnyCodec, out: &mut [u8]) -> Result<(), BlockError> {
    let nested = from.id().is_nested() && to.id().is_nested();
    let same = from.dim() == to.dim() && from.options().seed == to.options().seed;
    if !nested || !same || to.id().bits() > from.id().bits() {
        return Err(BlockError::Shape(ShapeError::UnsupportedCodec));
    }
    let view = BlockView::new(from.id(), from.dim(), block)?;
    BlockView::new(to.id(), to.dim(), out)?;

    let scale = f16::from_f32(view.scale() * ratio(from, to.id()));
    if !scale.is_finite() {
        return Err(BlockError::Encode(EncodeError::OutOfRange));
    }
    if let Some((head, codes)) = out.split_first_chunk_mut::<{ block_io::SCALE_BYTES }>() {
        *head = scale.to_le_bytes();
        codes.fill(0);
        let (bits, dropped) = (to.id().bits() as usize, from.id().bits() - to.id().bits());
        for (i, code) in view.codes().enumerate() {
            let shifted = u16::from(code >> dropped) << (bits * i % 8);
            let [low, high] = shifted.to_le_bytes();
            let at = bits * i / 8;
            if let Some(byte) = codes.get_mut(at) {
                *byte |= low;
            }
            if let Some(byte) = codes.get_mut(at + 1) {
                *byte |= high;
            }
        }
    }
    Ok(())
}

/// The factor of the scale, from the expected energies of the two codebooks.
fn ratio(from: &AnyCodec, to: CodecId) -> f32 {
    let (Some(wide), Some(narrow)) = (from.codebook(), to.codebook(from.dim())) else { return 1.0 };
    let ratio = ((1.0 - wide.relative_mse()) / (1.0 - narrow.relative_mse())) as f32;
    match from.options().scale_mode {
        ScaleMode::Unbiased => ratio,
        ScaleMode::Preserving => libm::sqrtf(ratio),
        ScaleMode::Raw | ScaleMode::Mmse => 1.0,
    }
}
