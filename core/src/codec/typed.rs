//! `Codec<D, C>`: a codec with everything known at compile time.
//!
//! The compiler checks the lengths, and only the one codebook that is used is linked. There is no state: seed
//! 42, unbiased scale, default effort. For other settings, or shapes known at run time, use [`AnyCodec`]. On
//! cores without a floating-point unit, use [`crate::fixed::FixedCodec`].

use super::any::{AnyCodec, Options};
use super::ops;
use crate::Portable;
use crate::code::Code;
use crate::code::codebook::Codebook;
use crate::error::{DecodeError, EncodeError};
use crate::head_dim::MAX_GROUPS;
use core::marker::PhantomData;

/// The codec `C`, one of the types of [`crate::code`], for vectors of `D` values.
///
/// ```
/// use tqkv_core::Codec;
/// use tqkv_core::code::S4;
///
/// let x: [f32; 128] = core::array::from_fn(|i| (i as f32 * 0.37).sin());
/// let mut block = [0; Codec::<128, S4>::BLOCK_BYTES];
/// Codec::<128, S4>::encode(&x, &mut block)?;
///
/// let mut back = [0.0; 128];
/// Codec::<128, S4>::decode(&block, &mut back).unwrap();
/// let error: f32 = x.iter().zip(&back).map(|(a, b)| (a - b) * (a - b)).sum();
/// let energy: f32 = x.iter().map(|a| a * a).sum();
/// assert!(error < 0.02 * energy);
/// # Ok::<(), tqkv_core::EncodeError>(())
/// ```
///
/// A block of the wrong size does not compile:
/// ```compile_fail
/// tqkv_core::Codec::<128, tqkv_core::code::S4>::encode(&[0.0; 128], &mut [0; 64]);
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Codec<const D: usize, C: Code>(PhantomData<C>);

/// Runs `$body` with the constant `$groups` set to the number of registers of head dim `$dim`, or the
/// maximum.
macro_rules! with_groups {
    ($dim:expr, $groups:ident => $body:expr) => {
        match $dim {
            64 => {
                const $groups: usize = 2;
                $body
            }
            128 => {
                const $groups: usize = 4;
                $body
            }
            256 => {
                const $groups: usize = 8;
                $body
            }
            _ => {
                const $groups: usize = MAX_GROUPS;
                $body
            }
        }
    };
}

impl<const D: usize, C: Code> Codec<D, C> {
    const BOOK: Option<Codebook> = Codebook::of(C::ID, D);
    const INNER: AnyCodec = match AnyCodec::from_parts(C::ID, D, Options::DEFAULT, Self::BOOK.as_ref()) {
        Ok(codec) => codec,
        Err(error) => panic!("{}", error.text()),
    };

    /// Bytes of one block.
    pub const BLOCK_BYTES: usize = Self::INNER.block_bytes();

    /// Encodes `x`. Trellis codecs take 8 KB of stack for the search up to head dim 128, and 64 KB above.
    ///
    /// # Errors
    /// `x` holds NaN or infinity, or the scale does not fit f16; `block` is then untouched.
    pub fn encode<const N: usize>(x: &[f32; D], block: &mut [u8; N]) -> Result<(), EncodeError> {
        const { assert!(N == Self::BLOCK_BYTES, "a block has BLOCK_BYTES bytes") };
        let inner = const { &Self::INNER };
        let encoded = with_groups!(D, G => ops::encode::<_, C::Form, G>(inner, Portable, x, block));
        encoded.map_err(|(_, error)| error)
    }

    /// Decodes a block.
    ///
    /// # Errors
    /// The stored scale is NaN or infinite; `out` is then untouched.
    pub fn decode<const N: usize>(block: &[u8; N], out: &mut [f32; D]) -> Result<(), DecodeError> {
        const { assert!(N == Self::BLOCK_BYTES, "a block has BLOCK_BYTES bytes") };
        let inner = const { &Self::INNER };
        if !C::LAYOUT.has_finite_scales(block) {
            return Err(DecodeError::NonFiniteScale);
        }
        with_groups!(D, G => ops::decode::<_, C::Form, G>(inner, Portable, block, out, C::ID.is_rotated()));
        Ok(())
    }

    /// <query, decode(block)> for a query from [`AnyCodec::rotate_query`].
    pub fn score<const N: usize>(rotated_query: &[f32; D], block: &[u8; N]) -> f32 {
        const { assert!(N == Self::BLOCK_BYTES, "a block has BLOCK_BYTES bytes") };
        let mut score = [0.0];
        let inner = const { &Self::INNER };
        with_groups!(D, G => ops::scores::<_, C::Form, G>(inner, Portable, rotated_query, block, &mut score));
        score[0]
    }
}
