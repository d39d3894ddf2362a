//! How the blocks of a layout meet registers: bytes to levels, and a vector to bytes.
//!
//! Codes of one layout share a form, so that machine code is made once a layout and not once a codec:
//! [`crate::AnyCodec`]'s operations are written once over these types.

use super::batch::Batch;
use super::coding::Coding;
use super::ggml::{self, RUN};
use super::scale::{StoredScale, to_f16};
use super::trellis::{self, Trellis};
use super::{Layout, int8, scalar};
use crate::error::EncodeError;
use crate::head_dim::{GROUP, HeadDim, MAX_HEAD_DIM};
use crate::machine::block_io::{self, SCALE_BYTES};
use crate::machine::{Lanes, Memory};
use core::slice::ChunksExactMut;

/// A code whose layout has a form; every code has one.
pub trait Formed {
    /// Its form.
    type Form: Form;
}

/// Reads and writes the blocks of a layout in registers.
pub trait Form: 'static {
    /// The layout, if the form determines it.
    const LAYOUT: Option<Layout>;

    /// True if encoding is a search in memory, which registers cannot do. It needs memory, which is given to
    /// [`crate::AnyCodec::encode_in`], and [`Form::quantise`] is never called.
    const SEARCHES: bool = false;

    /// True if the quarters of a vector are rotated by themselves.
    #[inline(always)]
    fn rotates_quarters(_coding: &Coding) -> bool {
        false
    }

    /// Levels of a block, one register of `out` per group. Returns the factor to multiply them by.
    fn levels<I: Memory>(coding: &Coding, isa: I, shape: HeadDim, block: &[u8], out: &mut [I::V]) -> f32;

    /// Writes the block of the (rotated) vector `y`. `codes` is as long as `y`. Forms that search, or that
    /// have [`Form::quantise_all`], have none.
    fn quantise<I: Memory>(
        _coding: &Coding,
        _isa: I,
        _shape: HeadDim,
        _y: &[I::V],
        _codes: &mut [I::C],
        _block: &mut [u8],
    ) -> Result<(), EncodeError> {
        Err(EncodeError::WorkspaceTooSmall)
    }

    /// Writes the blocks of vectors side by side, up to the first that fails. [`Layout::Dense`] has it.
    fn quantise_all<I: Memory, const G: usize, const N: usize>(
        _coding: &Coding,
        _isa: I,
        _shape: HeadDim,
        _batch: &mut Batch<I, G, N>,
        _blocks: ChunksExactMut<'_, u8>,
    ) -> Result<(), EncodeError> {
        Err(EncodeError::WorkspaceTooSmall)
    }
}

/// [`Layout::F16`].
#[derive(Clone, Copy, Debug)]
pub enum Halves {}
/// [`Layout::Dense`], `s` and `n`.
#[derive(Clone, Copy, Debug)]
pub enum Dense<const BITS: usize> {}
/// [`Layout::Bytes`].
#[derive(Clone, Copy, Debug)]
pub enum Bytes {}
/// [`Layout::Runs`].
#[derive(Clone, Copy, Debug)]
pub enum Runs<const BITS: usize> {}
/// [`Layout::Planes`], for every trellis that rotates whole vectors.
#[derive(Clone, Copy, Debug)]
pub enum Planes {}
/// [`Layout::Planes`] of a code of quarters.
#[derive(Clone, Copy, Debug)]
pub enum Quarters {}

impl<const BITS: usize> Form for Dense<BITS> {
    const LAYOUT: Option<Layout> = Some(Layout::Dense { bits: BITS as u8 });

    #[inline(always)]
    fn levels<I: Memory>(coding: &Coding, isa: I, shape: HeadDim, block: &[u8], out: &mut [I::V]) -> f32 {
        let (scale, codes) = block_io::split(block);
        let Some(book) = coding.codebook else { return 0.0 };
        let last = shape.groups().wrapping_sub(1);
        for (g, (bytes, level)) in codes.chunks(4 * BITS).zip(out).enumerate() {
            let code = [isa.read_codes::<BITS>(bytes)];
            let ragged = shape.is_ragged() && g == last;
            scalar::levels::<I, BITS>(isa, book, &code, ragged, core::slice::from_mut(level));
        }
        isa.widen_half(scale) * coding.unit
    }

    #[inline(always)]
    fn quantise_all<I: Memory, const G: usize, const N: usize>(
        coding: &Coding,
        isa: I,
        shape: HeadDim,
        batch: &mut Batch<I, G, N>,
        blocks: ChunksExactMut<'_, u8>,
    ) -> Result<(), EncodeError> {
        let Some(book) = coding.codebook else { return Err(EncodeError::WrongLength) };
        let (mode, effort) = (coding.scale_mode, coding.effort);
        let chosen = scalar::quantise_all::<I, BITS, G, N>(isa, book, mode, effort, shape, batch);
        for (k, ((block, norm_squared), (scale, set))) in blocks.zip(batch.norms).zip(chosen).enumerate() {
            match batch.sets.get(set).and_then(|codes| codes.get(k)) {
                Some(codes) if norm_squared > 0.0 => {
                    write_block::<I, BITS>(isa, scale, &codes[..shape.groups()], block)?;
                }
                _ => block.fill(0),
            }
        }
        Ok(())
    }
}

impl Form for Bytes {
    const LAYOUT: Option<Layout> = Some(Layout::Bytes);

    #[inline(always)]
    fn levels<I: Memory>(coding: &Coding, isa: I, _: HeadDim, block: &[u8], out: &mut [I::V]) -> f32 {
        let (scale, codes) = block_io::split(block);
        for (bytes, level) in codes.chunks(GROUP).zip(out) {
            *level = isa.widen_i8(isa.read_codes::<8>(bytes));
        }
        isa.widen_half(scale) * coding.unit
    }

    #[inline(always)]
    fn quantise<I: Memory>(
        _: &Coding,
        isa: I,
        _: HeadDim,
        y: &[I::V],
        codes: &mut [I::C],
        block: &mut [u8],
    ) -> Result<(), EncodeError> {
        let scale = int8::scale(isa, y);
        if let StoredScale::Scale(stored) = to_f16(isa, scale) {
            int8::quantise(isa, isa.widen_half(stored), y, codes);
        }
        write_block::<I, 8>(isa, scale, codes, block)
    }
}

/// Levels of a trellis block of at most `N` coordinates.
#[inline(always)]
fn trellis_levels<I: Memory, const N: usize>(
    isa: I,
    trellis: &Trellis<'_>,
    codes: &[u8],
    shape: HeadDim,
    out: &mut [I::V],
) {
    let mut bytes = [0; N];
    let bytes = &mut bytes[..shape.dim()];
    trellis::levels(isa, trellis, codes, bytes);
    for (bytes, level) in bytes.chunks(GROUP).zip(out) {
        *level = isa.widen_i8(isa.read_codes::<8>(bytes));
    }
}

impl Form for Planes {
    const LAYOUT: Option<Layout> = None;
    const SEARCHES: bool = true;

    #[inline(always)]
    fn levels<I: Memory>(coding: &Coding, isa: I, shape: HeadDim, block: &[u8], out: &mut [I::V]) -> f32 {
        let (scale, codes) = block_io::split(block);
        let Some(trellis) = coding.trellis else { return 0.0 };
        // Clearing an array for the largest head dim takes a tenth of the time at dim 128.
        if shape.dim() <= 256 {
            trellis_levels::<I, 256>(isa, trellis, codes, shape, out);
        } else {
            trellis_levels::<I, MAX_HEAD_DIM>(isa, trellis, codes, shape, out);
        }
        isa.widen_half(scale) * coding.unit
    }
}

/// Reads blocks as [`Planes`] does, but only of codes that rotate quarters.
impl Form for Quarters {
    const LAYOUT: Option<Layout> = None;
    const SEARCHES: bool = true;

    #[inline(always)]
    fn rotates_quarters(_: &Coding) -> bool {
        true
    }

    #[inline(always)]
    fn levels<I: Memory>(coding: &Coding, isa: I, shape: HeadDim, block: &[u8], out: &mut [I::V]) -> f32 {
        Planes::levels(coding, isa, shape, block, out)
    }
}

/// Out of line: the conversion in software is long, and inline it would be unrolled in every instruction set.
#[inline(never)]
fn widen_halves(bytes: &[u8], values: &mut [f32; GROUP]) {
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *value = half::f16::from_le_bytes(*bytes).to_f32();
    }
}

impl Form for Halves {
    const LAYOUT: Option<Layout> = Some(Layout::F16);

    #[inline(always)]
    fn levels<I: Memory>(_: &Coding, isa: I, _: HeadDim, block: &[u8], out: &mut [I::V]) -> f32 {
        for (bytes, level) in block.chunks(2 * GROUP).zip(out) {
            let mut values = [0.0; GROUP];
            widen_halves(bytes, &mut values);
            *level = isa.load(&values);
        }
        1.0
    }

    #[inline(always)]
    fn quantise<I: Memory>(
        _: &Coding,
        isa: I,
        _: HeadDim,
        y: &[I::V],
        _: &mut [I::C],
        block: &mut [u8],
    ) -> Result<(), EncodeError> {
        if !isa.to_half(largest::<I>(isa, y)).is_finite() {
            return Err(EncodeError::OutOfRange);
        }
        for (bytes, &v) in block.chunks_mut(2 * GROUP).zip(y) {
            for (bytes, half) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(isa.to_halves(v)) {
                *bytes = half.to_le_bytes();
            }
        }
        Ok(())
    }
}

impl<const BITS: usize> Form for Runs<BITS> {
    const LAYOUT: Option<Layout> = Some(Layout::Runs { bits: BITS as u8 });

    #[inline(always)]
    fn levels<I: Memory>(_: &Coding, isa: I, _: HeadDim, block: &[u8], out: &mut [I::V]) -> f32 {
        for (run, level) in block.chunks_exact(SCALE_BYTES + RUN * BITS / 8).zip(out) {
            let (scale, codes) = block_io::split(run);
            let levels = if BITS == 8 {
                isa.read_codes::<8>(codes)
            } else {
                isa.read_codes::<8>(&ggml::nibbles(codes))
            };
            *level = isa.widen_i8(levels) * isa.splat(isa.widen_half(scale));
        }
        1.0
    }

    #[inline(always)]
    fn quantise<I: Memory>(
        _: &Coding,
        isa: I,
        _: HeadDim,
        y: &[I::V],
        _: &mut [I::C],
        block: &mut [u8],
    ) -> Result<(), EncodeError> {
        let steps = if BITS == 8 { 127.0 } else { 8.0 };
        if !isa.to_half(largest::<I>(isa, y) / steps).is_finite() {
            return Err(EncodeError::OutOfRange);
        }
        for (run, &v) in block.chunks_exact_mut(SCALE_BYTES + RUN * BITS / 8).zip(y) {
            let mut values = [0.0; RUN];
            isa.store(v, &mut values);
            if BITS == 8 { ggml::encode_q8_0(&values, run) } else { ggml::encode_q4_0(&values, run) }
        }
        Ok(())
    }
}

/// Largest magnitude.
#[inline(always)]
fn largest<I: Memory>(isa: I, y: &[I::V]) -> f32 {
    let mut largest = isa.splat(0.0);
    for &v in y {
        largest = v.max_abs(largest);
    }
    largest.max()
}

/// Writes the block, or the zero block if the scale rounds to 0.
#[inline(always)]
fn write_block<I: Memory, const BITS: usize>(
    isa: I,
    scale: f32,
    codes: &[I::C],
    block: &mut [u8],
) -> Result<(), EncodeError> {
    match to_f16(isa, scale) {
        StoredScale::Scale(stored) => {
            if let Some((head, body)) = block.split_first_chunk_mut::<SCALE_BYTES>() {
                *head = stored.to_le_bytes();
                for (bytes, &code) in body.chunks_mut(4 * BITS).zip(codes) {
                    isa.write_codes::<BITS>(code, bytes);
                }
            }
        }
        StoredScale::Zero => block.fill(0),
        StoredScale::OutOfRange => return Err(EncodeError::OutOfRange),
    }
    Ok(())
}
