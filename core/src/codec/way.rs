//! How the operations of [`AnyCodec`] come to a form: told by the compiler, or by the codec.

use super::any::AnyCodec;
use crate::code::Layout;
use crate::code::batch::Batch;
use crate::code::coding::Coding;
use crate::code::form::{Form, Formed};
use crate::error::EncodeError;
use crate::head_dim::HeadDim;
use crate::machine::Memory;
use crate::with_code;
use core::slice::ChunksExactMut;

/// A [`Form`], or [`Any`]; `coding` is that of `codec`.
pub(super) trait Way: 'static {
    /// See [`Form::LAYOUT`].
    const LAYOUT: Option<Layout>;
    /// See [`Form::SEARCHES`].
    const SEARCHES: bool;
    /// See [`Form::ROTATES_QUARTERS`]; `None` if only the codec knows.
    const ROTATES_QUARTERS: Option<bool>;

    /// See [`Form::levels`].
    fn levels<I: Memory>(
        codec: &AnyCodec,
        coding: &Coding,
        isa: I,
        shape: HeadDim,
        block: &[u8],
        out: &mut [I::V],
    ) -> f32;

    /// See [`Form::quantise`].
    fn quantise<I: Memory>(
        codec: &AnyCodec,
        coding: &Coding,
        isa: I,
        shape: HeadDim,
        y: &[I::V],
        codes: &mut [I::C],
        block: &mut [u8],
    ) -> Result<(), EncodeError>;

    /// See [`Form::quantise_all`].
    fn quantise_all<I: Memory, const G: usize, const N: usize>(
        codec: &AnyCodec,
        coding: &Coding,
        isa: I,
        shape: HeadDim,
        batch: &mut Batch<I, G, N>,
        blocks: ChunksExactMut<'_, u8>,
    ) -> Result<(), EncodeError>;
}

impl<F: Form> Way for F {
    const LAYOUT: Option<Layout> = F::LAYOUT;
    const SEARCHES: bool = F::SEARCHES;
    const ROTATES_QUARTERS: Option<bool> = Some(F::ROTATES_QUARTERS);

    #[inline(always)]
    fn levels<I: Memory>(
        _: &AnyCodec,
        coding: &Coding,
        isa: I,
        shape: HeadDim,
        block: &[u8],
        out: &mut [I::V],
    ) -> f32 {
        <F as Form>::levels(coding, isa, shape, block, out)
    }

    #[inline(always)]
    fn quantise<I: Memory>(
        _: &AnyCodec,
        coding: &Coding,
        isa: I,
        shape: HeadDim,
        y: &[I::V],
        codes: &mut [I::C],
        block: &mut [u8],
    ) -> Result<(), EncodeError> {
        <F as Form>::quantise(coding, isa, shape, y, codes, block)
    }

    #[inline(always)]
    fn quantise_all<I: Memory, const G: usize, const N: usize>(
        _: &AnyCodec,
        coding: &Coding,
        isa: I,
        shape: HeadDim,
        batch: &mut Batch<I, G, N>,
        blocks: ChunksExactMut<'_, u8>,
    ) -> Result<(), EncodeError> {
        <F as Form>::quantise_all(coding, isa, shape, batch, blocks)
    }
}

/// The form that the codec names at run time, for head dims that are not worth code of their own.
/// Every form is compiled as a separate function.
#[derive(Clone, Copy, Debug)]
pub(super) enum Any {}

impl Way for Any {
    const LAYOUT: Option<Layout> = None;
    const SEARCHES: bool = false;
    const ROTATES_QUARTERS: Option<bool> = None;

    #[inline(always)]
    fn levels<I: Memory>(
        codec: &AnyCodec,
        coding: &Coding,
        isa: I,
        shape: HeadDim,
        block: &[u8],
        out: &mut [I::V],
    ) -> f32 {
        with_code!(codec.id(), C => levels_apart::<I, <C as Formed>::Form>(coding, isa, shape, block, out))
    }

    #[inline(always)]
    fn quantise<I: Memory>(
        codec: &AnyCodec,
        coding: &Coding,
        isa: I,
        shape: HeadDim,
        y: &[I::V],
        codes: &mut [I::C],
        block: &mut [u8],
    ) -> Result<(), EncodeError> {
        with_code!(codec.id(), C => {
            quantise_apart::<I, <C as Formed>::Form>(coding, isa, shape, y, codes, block)
        })
    }

    #[inline(always)]
    fn quantise_all<I: Memory, const G: usize, const N: usize>(
        codec: &AnyCodec,
        coding: &Coding,
        isa: I,
        shape: HeadDim,
        batch: &mut Batch<I, G, N>,
        blocks: ChunksExactMut<'_, u8>,
    ) -> Result<(), EncodeError> {
        with_code!(codec.id(), C => {
            quantise_all_apart::<I, <C as Formed>::Form, G, N>(coding, isa, shape, batch, blocks)
        })
    }
}

fn levels_apart<I: Memory, F: Form>(
    coding: &Coding,
    isa: I,
    shape: HeadDim,
    block: &[u8],
    out: &mut [I::V],
) -> f32 {
    isa.apart(
        #[inline(always)]
        |isa| <F as Form>::levels(coding, isa, shape, block, out),
    )
}

fn quantise_all_apart<I: Memory, F: Form, const G: usize, const N: usize>(
    coding: &Coding,
    isa: I,
    shape: HeadDim,
    batch: &mut Batch<I, G, N>,
    blocks: ChunksExactMut<'_, u8>,
) -> Result<(), EncodeError> {
    isa.apart(
        #[inline(always)]
        |isa| <F as Form>::quantise_all(coding, isa, shape, batch, blocks),
    )
}

fn quantise_apart<I: Memory, F: Form>(
    coding: &Coding,
    isa: I,
    shape: HeadDim,
    y: &[I::V],
    codes: &mut [I::C],
    block: &mut [u8],
) -> Result<(), EncodeError> {
    isa.apart(
        #[inline(always)]
        |isa| <F as Form>::quantise(coding, isa, shape, y, codes, block),
    )
}
