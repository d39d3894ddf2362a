//! `FixedTrellis`: trellis codes in integers. All codes decode; `t2s8`, which has eight states, also encodes.
//!
//! Blocks have about two thirds of the squared error of scalar codes of the same size. The cost is the
//! search: 7 to 16 times the instructions of [`super::FixedCodec::encode`], and 6 KiB of metric rows. It is
//! the search of [`crate::code::trellis`] at [`crate::Effort::Fast`], one coordinate at a time, over eight
//! states that stay in registers.

use super::kernels::Kernels;
use super::math::{Multiplier, Norm, clamp_exponent, to_f16};
use super::rotation::FixedRotation;
use super::sample::Sample;
use super::scale::{CodeSums, stored};
use super::tables;
use crate::code::Code;
use crate::code::scale::ScaleMode;
use crate::code::trellis::WARM_UP;
use crate::error::{DecodeError, EncodeError};
use crate::machine::block_io::SCALE_BYTES;
use crate::{CodecId, Options, Portable};
pub(super) use body::Body;
use core::marker::PhantomData;

mod body;

/// The workspace of an encoder: 7 bytes per coordinate and 64 more; best kept in a `static`.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct TrellisWorkspace<const D: usize> {
    y: [i32; D],
    targets: [i16; D],
    /// One bit per state for each coordinate: set if the path came from the upper half of the states.
    decisions: [u8; D],
    /// The same for the first pass.
    warm_up: [u8; WARM_UP],
}

impl<const D: usize> TrellisWorkspace<D> {
    /// A workspace; its contents between calls do not matter.
    pub const fn new() -> Self {
        Self { y: [0; D], targets: [0; D], decisions: [0; D], warm_up: [0; WARM_UP] }
    }
}

impl<const D: usize> Default for TrellisWorkspace<D> {
    fn default() -> Self {
        Self::new()
    }
}

/// A trellis codec of one head dim in integers; best kept in a `static`.
///
/// `C` is one of [`crate::code`]: `T1` to `T4`, `T2H`, `T3H`, or `T2S8`.
///
/// ```
/// use tqkv_core::code::T2S8;
/// use tqkv_core::fixed::{FixedTrellis, TrellisWorkspace};
///
/// static VALUES: FixedTrellis<128, T2S8> = FixedTrellis::DEFAULT;
///
/// let x: [i16; 128] = core::array::from_fn(|i| (i as i16).wrapping_mul(4001) >> 2);
/// let mut block = [0; FixedTrellis::<128, T2S8>::BLOCK_BYTES];
/// VALUES.encode(&x, -15, &mut TrellisWorkspace::new(), &mut block)?;
///
/// let mut back = [0; 128];
/// VALUES.decode(&block, -15, &mut back).unwrap();
/// let error: i64 = x.iter().zip(&back).map(|(&a, &b)| (i64::from(a) - i64::from(b)).pow(2)).sum();
/// let energy: i64 = x.iter().map(|&a| i64::from(a).pow(2)).sum();
/// assert!(error < energy / 8);
/// # Ok::<(), tqkv_core::EncodeError>(())
/// ```
///
/// Codes of quarters do not compile:
/// ```compile_fail
/// use tqkv_core::{code::M2, fixed::FixedTrellis};
/// let _ = FixedTrellis::<128, M2>::DEFAULT;
/// ```
///
/// The other codes only decode:
/// ```compile_fail
/// use tqkv_core::code::T2;
/// use tqkv_core::fixed::{FixedTrellis, TrellisWorkspace};
/// let codec = FixedTrellis::<128, T2>::DEFAULT;
/// let _ = codec.encode(&[0_i16; 128], 0, &mut TrellisWorkspace::new(), &mut [0; 34]);
/// ```
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FixedTrellis<const D: usize, C: Code, K = Portable> {
    rotation: FixedRotation<D>,
    mode: ScaleMode,
    kernels: K,
    code: PhantomData<C>,
}

impl<const D: usize, C: Code> FixedTrellis<D, C> {
    /// The codec of the blocks.
    pub const ID: CodecId = C::ID;
    /// Bytes of one block: the scale, a plane of coded bits, and the plain planes.
    pub const BLOCK_BYTES: usize = SCALE_BYTES + Body::<D, C>::BYTES;

    /// Seed and scale of [`Options::DEFAULT`].
    pub const DEFAULT: Self = Self::new(Options::DEFAULT.seed, Options::DEFAULT.scale_mode);

    /// The codec with the signs of `seed`; encoder and decoder must use the same seed.
    pub const fn new(seed: u64, mode: ScaleMode) -> Self {
        const {
            assert!(
                C::ID.trellis().is_some() && !C::ID.rotates_quarters(),
                "codec not supported: accepted are T1 to T4, T2H, T3H and T2S8"
            );
        }
        Self { rotation: FixedRotation::new(seed), mode, kernels: Portable, code: PhantomData }
    }

    /// The same codec with other kernels; the blocks are the same.
    pub const fn with_kernels<K: Kernels>(self, kernels: K) -> FixedTrellis<D, C, K> {
        FixedTrellis { rotation: self.rotation, mode: self.mode, kernels, code: PhantomData }
    }
}

impl<const D: usize, C: Code, K: Kernels> FixedTrellis<D, C, K> {
    /// Decodes a block to multiples of 2^exponent, rounded and saturated to i16. Every body is valid.
    ///
    /// # Errors
    /// The stored scale is NaN or infinite; `out` is then untouched.
    #[inline(never)]
    pub fn decode<const N: usize>(
        &self,
        block: &[u8; N],
        exponent: i32,
        out: &mut [i16; D],
    ) -> Result<(), DecodeError> {
        const { assert!(N == SCALE_BYTES + Body::<D, C>::BYTES, "a block has BLOCK_BYTES bytes") };
        let Some((head, body)) = block.split_first_chunk::<SCALE_BYTES>() else { return Ok(()) };
        let (scale, negative) = stored(*head, exponent)?;
        let mut sums = [0; D];
        Body::<D, C>::levels(body, &mut sums);
        let unit = const { tables::inverse_unit(Body::<D, C>::UNIT, D) };
        let multiplier = Multiplier::new::<62>(scale.times(unit), negative);
        self.rotation.inverse(&mut sums, multiplier, out);
        Ok(())
    }

    /// Encodes `x * 2^exponent` into a block of `N` = `BLOCK_BYTES` bytes.
    ///
    /// # Errors
    /// The scale is above the largest f16, 65504; the block then holds zeros. The block also holds zeros for
    /// zero vectors and for scales below 2^-25, which are not errors.
    #[inline(never)]
    pub fn encode<T: Sample, const N: usize>(
        &self,
        x: &[T; D],
        exponent: i32,
        workspace: &mut TrellisWorkspace<D>,
        block: &mut [u8; N],
    ) -> Result<(), EncodeError> {
        const { assert!(N == SCALE_BYTES + Body::<D, C>::BYTES, "a block has BLOCK_BYTES bytes") };
        const { assert!(Body::<D, C>::CODE.memory == 3, "codes with 256 states only decode") };
        search::<D, C, K, T>((&self.rotation, self.mode, self.kernels), x, exponent, workspace, block)
    }
}

/// Encodes into a block of the code's length; see [`FixedTrellis::encode`].
#[inline(always)]
pub(super) fn search<const D: usize, C: Code, K: Kernels, T: Sample>(
    codec: (&FixedRotation<D>, ScaleMode, K),
    x: &[T; D],
    exponent: i32,
    workspace: &mut TrellisWorkspace<D>,
    block: &mut [u8],
) -> Result<(), EncodeError> {
    let (rotation, mode, kernels) = codec;
    block.fill(0);
    let Some((head, body)) = block.split_first_chunk_mut::<SCALE_BYTES>() else { return Ok(()) };
    let TrellisWorkspace { y, targets, decisions, warm_up } = workspace;
    let (squared, finished) = rotation.forward(kernels, x, y);
    FixedRotation::finish(y, finished);
    if squared == 0 {
        return Ok(());
    }
    let norm = Norm::new(squared, tables::sigma(D));
    let predicted = Body::<D, C>::targets(y, norm, targets);
    let state = Body::<D, C>::close(targets, warm_up);
    let (cross, energy) = Body::<D, C>::write(y, norm.shift, targets, state, decisions, body);
    let stored = if cross.mantissa == 0 {
        Ok(0)
    } else {
        let assumed = norm.value.normalised().times(predicted);
        let moments = CodeSums { cross, energy: || energy };
        let scale = moments.scale(mode, norm.value, assumed, const { Body::<D, C>::UNITS });
        to_f16(scale.shifted(clamp_exponent(exponent)))
    };
    let bits = stored.unwrap_or(0);
    *head = bits.to_le_bytes();
    if bits == 0 {
        body.fill(0);
    }
    stored.map(|_| ())
}
