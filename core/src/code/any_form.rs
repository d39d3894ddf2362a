//! The form that the layout of a codec names at run time.

use super::CodecId;
use super::batch::Batch;
use super::coding::Coding;
use super::form::{Bytes, Dense, Form, Halves, Planes, Runs};
use super::layout::Layout;
use super::trellis::Plain;
use crate::error::EncodeError;
use crate::head_dim::HeadDim;
use crate::machine::Memory;
use core::slice::ChunksExactMut;

/// The form of the codec's layout, found at run time, for head dims that are not worth code of their own.
/// Every form is compiled as a separate function.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Any {}

/// `with_layout!(layout, F => call, else value)`: the call with the type `F` set to the form of a layout, or the
/// value for a width that no codec has.
macro_rules! with_layout {
    (@ $of:ty, $form:ident => $call:expr) => {{
        type $form = $of;
        $call
    }};
    ($layout:expr, $form:ident => $call:expr, else $none:expr) => {
        match $layout {
            Layout::F16 => with_layout!(@ Halves, $form => $call),
            Layout::Dense { bits: 2 } => with_layout!(@ Dense<2>, $form => $call),
            Layout::Dense { bits: 3 } => with_layout!(@ Dense<3>, $form => $call),
            Layout::Dense { bits: 4 } => with_layout!(@ Dense<4>, $form => $call),
            Layout::Dense { bits: 5 } => with_layout!(@ Dense<5>, $form => $call),
            Layout::Bytes => with_layout!(@ Bytes, $form => $call),
            Layout::Runs { bits: 4 } => with_layout!(@ Runs<4>, $form => $call),
            Layout::Runs { bits: 8 } => with_layout!(@ Runs<8>, $form => $call),
            Layout::Planes(_) => with_layout!(@ Planes, $form => $call),
            Layout::Dense { .. } | Layout::Runs { .. } => $none,
        }
    };
}

/// The layout of every codec has a form, so that the value for others is never taken.
const _: () = {
    let mut codec = 0;
    while codec < CodecId::ALL.len() {
        assert!(with_layout!(CodecId::ALL[codec].layout(), F => size_of::<F>() == 0, else false));
        codec += 1;
    }
};

impl Form for Any {
    const LAYOUT: Option<Layout> = None;

    #[inline(always)]
    fn rotates_quarters(coding: &Coding) -> bool {
        matches!(coding.layout, Layout::Planes(Plain::Quarters(_)))
    }

    #[inline(always)]
    fn levels<I: Memory>(coding: &Coding, isa: I, shape: HeadDim, block: &[u8], out: &mut [I::V]) -> f32 {
        with_layout!(coding.layout, F => levels_apart::<I, F>(coding, isa, shape, block, out), else 0.0)
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
        with_layout!(
            coding.layout,
            F => quantise_apart::<I, F>(coding, isa, shape, y, codes, block),
            else Err(EncodeError::WorkspaceTooSmall)
        )
    }

    #[inline(always)]
    fn quantise_all<I: Memory, const G: usize, const N: usize>(
        coding: &Coding,
        isa: I,
        shape: HeadDim,
        batch: &mut Batch<I, G, N>,
        blocks: ChunksExactMut<'_, u8>,
    ) -> Result<(), EncodeError> {
        with_layout!(
            coding.layout,
            F => quantise_all_apart::<I, F, G, N>(coding, isa, shape, batch, blocks),
            else Err(EncodeError::WorkspaceTooSmall)
        )
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
        |isa| F::levels(coding, isa, shape, block, out),
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
        |isa| F::quantise_all(coding, isa, shape, batch, blocks),
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
        |isa| F::quantise(coding, isa, shape, y, codes, block),
    )
}
