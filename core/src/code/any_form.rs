//! The form that a codec names at run time.

use super::batch::Batch;
use super::coding::Coding;
use super::form::{Form, Formed};
use super::layout::Layout;
use crate::error::EncodeError;
use crate::head_dim::HeadDim;
use crate::machine::Memory;
use crate::with_code;
use core::slice::ChunksExactMut;

/// The form that the codec names at run time, for head dims that are not worth code of their own.
/// Every form is compiled as a separate function.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Any {}

impl Form for Any {
    const LAYOUT: Option<Layout> = None;
    const ROTATES_QUARTERS: Option<bool> = None;

    #[inline(always)]
    fn levels<I: Memory>(coding: &Coding, isa: I, shape: HeadDim, block: &[u8], out: &mut [I::V]) -> f32 {
        with_code!(coding.id, C => levels_apart::<I, <C as Formed>::Form>(coding, isa, shape, block, out))
    }

    #[inline(always)]
    fn quantise<I: Memory>(
        coding: &Coding,
        isa: I,
        shape: HeadDim,
        y: &[I::V],
        codes: &mut [I::C],
        block: &mut [u8],
    ) -> Result<(), EncodeError> {
        with_code!(coding.id, C => {
            quantise_apart::<I, <C as Formed>::Form>(coding, isa, shape, y, codes, block)
        })
    }

    #[inline(always)]
    fn quantise_all<I: Memory, const G: usize, const N: usize>(
        coding: &Coding,
        isa: I,
        shape: HeadDim,
        batch: &mut Batch<I, G, N>,
        blocks: ChunksExactMut<'_, u8>,
    ) -> Result<(), EncodeError> {
        with_code!(coding.id, C => {
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
