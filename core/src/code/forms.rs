//! The forms of codes: how bytes of a block become levels, and how a rotated vector becomes bytes.
//!
//! [`crate::codec`] is written once over these types. [`Any`] decides at run time, for head dims
//! that are not worth code of their own.

use crate::block_io;
use crate::code::Family;
use crate::codec::any::{AnyCodec, Options, check_finite};
use crate::error::EncodeError;
use crate::head_dim::{GROUP, HeadDim, MAX_GROUPS};
use crate::lanes::Memory;
use crate::scale::{Stored, to_f16};
use crate::{int8, scalar, trellis};

/// Codes that can be read.
pub(crate) trait Form {
    /// Bytes of codes of one group, where the form says it.
    const GROUP_BYTES: Option<usize>;

    /// Levels of the codes of a block; `out` has a register for each group.
    fn levels<I: Memory>(codec: &AnyCodec, isa: I, shape: HeadDim, codes: &[u8], out: &mut [I::V]);
}

/// Codes that are chosen coordinate by coordinate.
pub(crate) trait Quantised: Form {
    /// Writes the block of the rotated vector `y` with |x|^2 = `norm_squared` > 0; `codes` are two
    /// spare sets of registers as long as `y`.
    fn quantise<I: Memory>(
        codec: &AnyCodec,
        isa: I,
        shape: HeadDim,
        norm_squared: f32,
        y: &[I::V],
        codes: [&mut [I::C]; 2],
        block: &mut [u8],
    ) -> Result<(), EncodeError>;
}

/// `s` and `n` codes of `BITS` bits.
pub(crate) enum Scalar<const BITS: usize> {}
/// Signed bytes.
pub(crate) enum Int8 {}
/// Trellis codes.
pub(crate) enum Tailbiting {}
/// What the codec says; every form is compiled apart.
pub(crate) enum Any {}

/// Runs `$body` with the type `$form` set to the form of a scalar or `i8` codec.
macro_rules! with_quantised {
    ($id:expr, $form:ident => $body:expr) => {
        match ($id.family(), $id.bits()) {
            (Family::Int8, _) => {
                type $form = Int8;
                $body
            }
            (_, 1) => {
                type $form = Scalar<1>;
                $body
            }
            (_, 2) => {
                type $form = Scalar<2>;
                $body
            }
            (_, 3) => {
                type $form = Scalar<3>;
                $body
            }
            (_, 4) => {
                type $form = Scalar<4>;
                $body
            }
            _ => {
                type $form = Scalar<5>;
                $body
            }
        }
    };
}
pub(crate) use with_quantised;

/// [`with_quantised`], and trellis codecs.
macro_rules! with_form {
    ($id:expr, $form:ident => $body:expr) => {
        if $id.family() == Family::Trellis {
            type $form = Tailbiting;
            $body
        } else {
            with_quantised!($id, $form => $body)
        }
    };
}
pub(crate) use with_form;

impl<const BITS: usize> Form for Scalar<BITS> {
    const GROUP_BYTES: Option<usize> = Some(4 * BITS);

    #[inline(always)]
    fn levels<I: Memory>(codec: &AnyCodec, isa: I, shape: HeadDim, codes: &[u8], out: &mut [I::V]) {
        let last = shape.groups().wrapping_sub(1);
        for (g, (bytes, level)) in codes.chunks(4 * BITS).zip(out).enumerate() {
            let code = [isa.read_codes::<BITS>(bytes)];
            let ragged = shape.is_ragged() && g == last;
            scalar::levels::<I, BITS>(isa, codec.book, &code, ragged, core::slice::from_mut(level));
        }
    }
}

impl<const BITS: usize> Quantised for Scalar<BITS> {
    #[inline(always)]
    fn quantise<I: Memory>(
        codec: &AnyCodec,
        isa: I,
        shape: HeadDim,
        norm_squared: f32,
        y: &[I::V],
        mut codes: [&mut [I::C]; 2],
        block: &mut [u8],
    ) -> Result<(), EncodeError> {
        let Options { scale_mode, effort, .. } = codec.options();
        let (scale, which) = scalar::quantise_in_place::<I, BITS>(
            isa,
            codec.book,
            scale_mode,
            effort,
            shape.dim(),
            norm_squared,
            y,
            shape.is_ragged(),
            &mut codes,
        );
        write_block::<I, BITS>(isa, scale, codes[which], block)
    }
}

impl Form for Int8 {
    const GROUP_BYTES: Option<usize> = Some(GROUP);

    #[inline(always)]
    fn levels<I: Memory>(_: &AnyCodec, isa: I, _: HeadDim, codes: &[u8], out: &mut [I::V]) {
        for (bytes, level) in codes.chunks(GROUP).zip(out) {
            let code = [isa.read_codes::<8>(bytes)];
            int8::levels(isa, &code, core::slice::from_mut(level));
        }
    }
}

impl Quantised for Int8 {
    #[inline(always)]
    fn quantise<I: Memory>(
        _: &AnyCodec,
        isa: I,
        _: HeadDim,
        _: f32,
        y: &[I::V],
        [codes, _]: [&mut [I::C]; 2],
        block: &mut [u8],
    ) -> Result<(), EncodeError> {
        let scale = int8::scale(isa, y);
        if let Stored::Scale(stored) = to_f16(isa, scale) {
            int8::quantise(isa, isa.widen_half(stored), y, codes);
        }
        write_block::<I, 8>(isa, scale, codes, block)
    }
}

impl Form for Tailbiting {
    const GROUP_BYTES: Option<usize> = None;

    #[inline(always)]
    fn levels<I: Memory>(codec: &AnyCodec, isa: I, shape: HeadDim, codes: &[u8], out: &mut [I::V]) {
        let Some(trellis) = codec.trellis() else { return };
        let mut bytes = [[0; GROUP]; MAX_GROUPS];
        let bytes = &mut bytes.as_flattened_mut()[..shape.dim()];
        trellis::levels(&trellis.code, codes, bytes);
        for (bytes, level) in bytes.chunks(GROUP).zip(out) {
            *level = isa.widen_i8(isa.read_codes::<8>(bytes));
        }
    }
}

impl Form for Any {
    const GROUP_BYTES: Option<usize> = None;

    #[inline(always)]
    fn levels<I: Memory>(codec: &AnyCodec, isa: I, shape: HeadDim, codes: &[u8], out: &mut [I::V]) {
        with_form!(codec.id(), F => levels_apart::<I, F>(codec, isa, shape, codes, out));
    }
}

impl Quantised for Any {
    #[inline(always)]
    fn quantise<I: Memory>(
        codec: &AnyCodec,
        isa: I,
        shape: HeadDim,
        norm_squared: f32,
        y: &[I::V],
        codes: [&mut [I::C]; 2],
        block: &mut [u8],
    ) -> Result<(), EncodeError> {
        with_quantised!(codec.id(), F => quantise_apart::<I, F>(codec, isa, shape, norm_squared, y, codes, block))
    }
}

fn levels_apart<I: Memory, F: Form>(
    codec: &AnyCodec,
    isa: I,
    shape: HeadDim,
    codes: &[u8],
    out: &mut [I::V],
) {
    isa.apart(
        #[inline(always)]
        |isa| F::levels(codec, isa, shape, codes, out),
    );
}

fn quantise_apart<I: Memory, F: Quantised>(
    codec: &AnyCodec,
    isa: I,
    shape: HeadDim,
    norm_squared: f32,
    y: &[I::V],
    codes: [&mut [I::C]; 2],
    block: &mut [u8],
) -> Result<(), EncodeError> {
    isa.apart(
        #[inline(always)]
        |isa| F::quantise(codec, isa, shape, norm_squared, y, codes, block),
    )
}

/// `f16` values.
#[inline(always)]
pub(crate) fn encode_half<I: Memory>(isa: I, x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
    let mut largest = 0.0f32;
    for v in x {
        largest = if v.is_finite() { largest.max(v.abs()) } else { f32::INFINITY };
    }
    check_finite(x, largest)?;
    if !half::f16::from_f32(largest).is_finite() {
        return Err(EncodeError::OutOfRange);
    }
    for (bytes, x) in block.chunks_mut(2 * GROUP).zip(x.chunks(GROUP)) {
        let mut group = [isa.splat(0.0)];
        crate::rotation::load(isa, x, &mut group);
        let [group] = group;
        for (bytes, half) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(isa.to_halves(group)) {
            *bytes = half.to_le_bytes();
        }
    }
    Ok(())
}

/// Writes the block, or the zero block where the scale rounds to 0.
#[inline(always)]
fn write_block<I: Memory, const BITS: usize>(
    isa: I,
    scale: f32,
    codes: &[I::C],
    block: &mut [u8],
) -> Result<(), EncodeError> {
    match to_f16(isa, scale) {
        Stored::Scale(stored) => block_io::write::<I, BITS>(isa, stored, codes, block),
        Stored::Zero => block.fill(0),
        Stored::OutOfRange => return Err(EncodeError::OutOfRange),
    }
    Ok(())
}
