//! `FixedCodec`: the codec of a shape with everything but the signs known at compile time.

use super::kernels::Kernels;
use super::rotation::FixedRotation;
use super::tables::Tables;
use crate::code::Code;
use crate::{CodecId, Options, Portable, ScaleMode};
use core::marker::PhantomData;

/// The codec of one head dim and kind in integers; best kept in a `static`.
///
/// `C` is one of [`crate::code`]: `S2` to `S5`, `N2` to `N4`, `I8`, or `T2S8`. The search of `T2S8` takes 7
/// bytes of stack per coordinate here; [`super::FixedTrellis`] borrows this memory instead.
/// Only the tables of the codec that is used are linked. The value itself holds the signs (one byte per
/// coordinate), the scale mode and the [`Kernels`] of its loops. Kernels do not change the bytes.
///
/// ```
/// use tqkv_core::code::S4;
/// use tqkv_core::fixed::FixedCodec;
///
/// static KEYS: FixedCodec<128, S4> = FixedCodec::DEFAULT;
///
/// let x: [i16; 128] = core::array::from_fn(|i| (i as i16).wrapping_mul(4001) >> 2);
/// let mut block = [0; FixedCodec::<128, S4>::BLOCK_BYTES];
/// KEYS.encode(&x, -15, &mut block)?;
///
/// let mut back = [0; 128];
/// KEYS.decode(&block, -15, &mut back).unwrap();
/// let error: i64 = x.iter().zip(&back).map(|(&a, &b)| (i64::from(a) - i64::from(b)).pow(2)).sum();
/// let energy: i64 = x.iter().map(|&a| i64::from(a).pow(2)).sum();
/// assert!(error < energy / 50);
/// # Ok::<(), tqkv_core::EncodeError>(())
/// ```
///
/// A block of the wrong size does not compile:
/// ```compile_fail
/// use tqkv_core::code::S4;
/// use tqkv_core::fixed::FixedCodec;
/// FixedCodec::<128, S4>::DEFAULT.encode(&[0_i16; 128], -15, &mut [0; 64]);
/// ```
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FixedCodec<const D: usize, C: Code, K = Portable> {
    pub(super) rotation: FixedRotation<D>,
    pub(super) mode: ScaleMode,
    pub(super) kernels: K,
    code: PhantomData<C>,
}

impl<const D: usize, C: Code> FixedCodec<D, C> {
    /// The codec of the blocks.
    pub const ID: CodecId = C::ID;
    /// Bytes of one block: the scale and D * bits / 8 bytes of codes.
    pub const BLOCK_BYTES: usize = Tables::<D, C>::BLOCK_BYTES;

    /// Seed and scale of [`Options::DEFAULT`].
    pub const DEFAULT: Self = Self::new(Options::DEFAULT.seed, Options::DEFAULT.scale_mode);

    /// The codec with the signs of `seed`; encoder, decoder and query must use the same seed.
    pub const fn new(seed: u64, mode: ScaleMode) -> Self {
        Self { rotation: FixedRotation::new(seed), mode, kernels: Portable, code: PhantomData }
    }

    /// The same codec with other kernels: same blocks, same queries.
    pub const fn with_kernels<K: Kernels>(self, kernels: K) -> FixedCodec<D, C, K> {
        FixedCodec { rotation: self.rotation, mode: self.mode, kernels, code: PhantomData }
    }
}
