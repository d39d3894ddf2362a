//! `Codec<D, BITS>`: the scalar codec with everything known at compile time.
//!
//! Lengths are checked by the compiler, only the one codebook that is used is linked, and no
//! state is kept: seed 42, unbiased scale, default effort. For other settings, other codecs or
//! shapes known at run time use [`AnyCodec`]. Cores without a floating-point unit are better
//! served by the fixed-point path.

use crate::code::CodecId;
use crate::codebook::Codebook;
use crate::codec::any::{AnyCodec, Options};
use crate::error::{DecodeError, EncodeError};
use crate::forms::Scalar;
use crate::head_dim::MAX_GROUPS;
use crate::portable::Portable;

/// The `s` codec of `BITS` bits (1 to 5) for vectors of `D` values.
///
/// ```
/// use tqkv_core::Codec;
///
/// let x: [f32; 128] = core::array::from_fn(|i| (i as f32 * 0.37).sin());
/// let mut block = [0; Codec::<128, 4>::BLOCK_BYTES];
/// Codec::<128, 4>::encode(&x, &mut block)?;
///
/// let mut back = [0.0; 128];
/// Codec::<128, 4>::decode(&block, &mut back).unwrap();
/// let error: f32 = x.iter().zip(&back).map(|(a, b)| (a - b) * (a - b)).sum();
/// let energy: f32 = x.iter().map(|a| a * a).sum();
/// assert!(error < 0.02 * energy);
/// # Ok::<(), tqkv_core::EncodeError>(())
/// ```
///
/// A block of the wrong size does not compile:
/// ```compile_fail
/// tqkv_core::Codec::<128, 4>::encode(&[0.0; 128], &mut [0; 64]);
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Codec<const D: usize, const BITS: usize>;

impl<const D: usize, const BITS: usize> Codec<D, BITS> {
    const ID: CodecId = match BITS {
        1 => CodecId::S1,
        2 => CodecId::S2,
        3 => CodecId::S3,
        4 => CodecId::S4,
        5 => CodecId::S5,
        _ => panic!("code width not supported: accepted are 1 to 5 bits"),
    };
    const BOOK: &'static Codebook = &Codebook::solve_scalar(D, BITS);
    const INNER: AnyCodec = AnyCodec::from_parts(Self::ID, D, Options::DEFAULT, Self::BOOK);

    /// Bytes of one block: the scale and D * BITS / 8 bytes of codes.
    pub const BLOCK_BYTES: usize = Self::INNER.block_bytes();

    /// The same codec with its shape erased.
    pub const fn erased() -> AnyCodec {
        Self::INNER
    }

    /// Encodes `x`; `N` must be [`Self::BLOCK_BYTES`], which the compiler checks.
    ///
    /// # Errors
    /// NaN or infinity, or a scale outside f16; `block` is untouched then.
    pub fn encode<const N: usize>(x: &[f32; D], block: &mut [u8; N]) -> Result<(), EncodeError> {
        const { assert!(N == Self::BLOCK_BYTES, "a block has BLOCK_BYTES bytes") };
        let inner = const { &Self::INNER };
        let encoded = match D {
            64 => inner.encode_rotated::<_, Scalar<BITS>, 2>(Portable, x, block),
            128 => inner.encode_rotated::<_, Scalar<BITS>, 4>(Portable, x, block),
            256 => inner.encode_rotated::<_, Scalar<BITS>, 8>(Portable, x, block),
            _ => inner.encode_rotated::<_, Scalar<BITS>, MAX_GROUPS>(Portable, x, block),
        };
        encoded.map_err(|(_, error)| error)
    }

    /// Decodes a block.
    ///
    /// # Errors
    /// The stored scale is NaN or infinite; `out` is untouched then.
    pub fn decode<const N: usize>(block: &[u8; N], out: &mut [f32; D]) -> Result<(), DecodeError> {
        const { assert!(N == Self::BLOCK_BYTES, "a block has BLOCK_BYTES bytes") };
        const { &Self::INNER }.decode(block, out)
    }

    /// <query, decode(block)> for a query from [`AnyCodec::rotate_query`].
    pub fn score<const N: usize>(rotated_query: &[f32; D], block: &[u8; N]) -> f32 {
        const { assert!(N == Self::BLOCK_BYTES, "a block has BLOCK_BYTES bytes") };
        let mut score = [0.0];
        const { &Self::INNER }.scores(rotated_query, block, &mut score);
        score[0]
    }
}
