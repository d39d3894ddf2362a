//! The sections of payloads: encoded from the memory of an engine, and decoded to it.

use crate::arrays::{bytes, reading, slice, slice_mut, writing};
use crate::codec::Codec;
use crate::errors::{Failure, refused};
use crate::pool;
use crate::rows::{self, Sections, SideCoding};
use crate::storage::StoredNumber;
use half::{bf16, f16};
use numpy::ndarray::{ArrayBase, Axis, Ix5, IxDyn, RawData};
use numpy::{Element, PyArrayDyn, PyReadwriteArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;
use tqkv_core::AnyCodec;
use tqkv_storage as storage;

/// Arrays of u8: the first tokens as they are, f16 means of the others or nothing, and blocks of the others
/// `[layers, tokens, heads, block_bytes]`.
type Arrays<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// The most axes of keys and values: layers, two of tokens, heads, head dim.
const AXES: usize = 5;

/// The CRC-32 of bytes.
#[pyfunction]
pub(crate) fn crc32(py: Python<'_>, data: &Bound<'_, PyAny>) -> Result<u32, Failure> {
    let data = bytes("data", data)?;
    let data = slice("data", &data)?;
    Ok(py.detach(|| crc32fast::hash(data)))
}

/// Calls a generic function with the type of an array's numbers. bfloat16 is passed as uint16.
macro_rules! with_numbers {
    ($what:expr, $x:expr, $call:ident($($argument:expr),* $(,)?)) => {
        if let Ok(x) = $x.cast::<PyArrayDyn<f32>>() {
            $call($($argument,)* x)
        } else if let Ok(x) = $x.cast::<PyArrayDyn<f16>>() {
            $call($($argument,)* x)
        } else if let Ok(x) = $x.cast::<PyArrayDyn<u16>>() {
            $call($($argument,)* x)
        } else {
            Err(refused(format!("{} of this dtype is not valid: expected float32, float16 or bfloat16", $what)))
        }
    };
}

/// Encodes keys or values `[layers, tokens.., heads, dim]`.
#[pyfunction]
pub(crate) fn encode_side(
    py: Python<'_>,
    codec: &Codec,
    what: &str,
    x: &Bound<'_, PyAny>,
    exact: usize,
    sections: Arrays<'_>,
) -> Result<(), Failure> {
    with_numbers!(what, x, encode(py, codec, what, exact, &sections))
}

fn encode<T: StoredNumber>(
    py: Python<'_>,
    codec: &Codec,
    what: &str,
    exact: usize,
    (kept, means, blocks): &Arrays<'_>,
    x: &Bound<'_, PyArrayDyn<T>>,
) -> Result<(), Failure> {
    pool::start()?;
    aligned(what, x)?;
    let reading = reading(what, x)?;
    let x = five_axes(what, reading.as_array())?;
    let (mut kept, mut means, mut blocks) = (written(kept)?, written(means)?, written(blocks)?);
    let to = Sections {
        kept: slice_mut(&mut kept)?,
        means: slice_mut(&mut means)?,
        blocks: slice_mut(&mut blocks)?,
    };
    let (level, codec) = codec.parts();
    let found = [to.kept.len(), to.means.len(), to.blocks.len()];
    if check::<T::As>(what, codec, exact, x.dim(), found)? {
        return Ok(());
    }
    py.detach(|| rows::encode(SideCoding { level, codec, exact }, x, to))
        .map_err(|(layer, token, error)| refused(format!("{what} of layer {layer}, token {token}: {error}")))
}

/// Returns true if first tokens, means and scales are finite. Then all numbers that are decoded are finite
/// too, unless they are too large for f16.
#[pyfunction]
pub(crate) fn side_is_finite(
    py: Python<'_>,
    codec: &Codec,
    dtype: &str,
    sections: Arrays<'_>,
) -> Result<bool, Failure> {
    let kept_is_finite: fn(&[u8]) -> bool = match dtype {
        "float32" => |kept| kept.as_chunks().0.iter().all(|x| f32::from_le_bytes(*x).is_finite()),
        "float16" => halves_are_finite,
        "bfloat16" => |kept| kept.as_chunks().0.iter().all(|x| bf16::from_le_bytes(*x).is_finite()),
        other => {
            return Err(refused(format!(
                "dtype {other} is not valid: expected float32, float16 or bfloat16"
            )));
        }
    };
    let (kept, means, blocks) =
        (bytes("kept", &sections.0)?, bytes("means", &sections.1)?, bytes("blocks", &sections.2)?);
    let (kept, means, blocks) = (slice("kept", &kept)?, slice("means", &means)?, slice("blocks", &blocks)?);
    let codec = codec.parts().1;
    Ok(py.detach(|| kept_is_finite(kept) && halves_are_finite(means) && codec.has_finite_scales(blocks)))
}

fn halves_are_finite(bytes: &[u8]) -> bool {
    bytes.as_chunks().0.iter().all(|x| f16::from_le_bytes(*x).is_finite())
}

/// Decodes keys or values `[layers, tokens.., heads, dim]`. Returns true if all numbers after the first
/// tokens are finite.
#[pyfunction]
pub(crate) fn decode_side(
    py: Python<'_>,
    codec: &Codec,
    what: &str,
    out: &Bound<'_, PyAny>,
    exact: usize,
    sections: Arrays<'_>,
) -> Result<bool, Failure> {
    with_numbers!(what, out, decode(py, codec, what, exact, &sections))
}

fn decode<T: StoredNumber>(
    py: Python<'_>,
    codec: &Codec,
    what: &str,
    exact: usize,
    (kept, means, blocks): &Arrays<'_>,
    out: &Bound<'_, PyArrayDyn<T>>,
) -> Result<bool, Failure> {
    pool::start()?;
    if !is_apart(out.shape(), out.strides()) {
        return Err(refused(format!(
            "{what} whose numbers share memory is not valid: expected one place for each"
        )));
    }
    aligned(what, out)?;
    let (kept, means, blocks) = (bytes("kept", kept)?, bytes("means", means)?, bytes("blocks", blocks)?);
    let from = Sections {
        kept: slice("kept", &kept)?,
        means: slice("means", &means)?,
        blocks: slice("blocks", &blocks)?,
    };
    let (level, codec) = codec.parts();
    let found = [from.kept.len(), from.means.len(), from.blocks.len()];
    check::<T::As>(what, codec, exact, lengths(what, out.shape())?, found)?;
    // Strides of arrays without numbers may be any, but not those of a view.
    if out.shape().contains(&0) {
        return Ok(true);
    }
    let mut writing = writing(out)?;
    let out = five_axes(what, writing.as_array_mut())?;
    py.detach(|| rows::decode(SideCoding { level, codec, exact }, &from, out))
        .map_err(|(layer, token, error)| refused(format!("{what} of layer {layer}, token {token}: {error}")))
}

fn written<'py>(section: &Bound<'py, PyAny>) -> Result<PyReadwriteArrayDyn<'py, u8>, Failure> {
    match section.cast::<PyArrayDyn<u8>>() {
        Ok(section) => writing(section),
        Err(_) => Err(refused("a section of this type is not valid: expected an array of uint8")),
    }
}

/// A view with five axes, the second of one block where tokens have one axis.
fn five_axes<S: RawData>(what: &str, x: ArrayBase<S, IxDyn>) -> Result<ArrayBase<S, Ix5>, Failure> {
    let found = x.ndim();
    let with_block = if found + 1 == AXES { x.insert_axis(Axis(1)) } else { x };
    with_block.into_dimensionality::<Ix5>().map_err(|_| wrong_axes(what, found))
}

/// The lengths of these axes.
fn lengths(what: &str, shape: &[usize]) -> Result<(usize, usize, usize, usize, usize), Failure> {
    match *shape {
        [layers, tokens, heads, dim] => Ok((layers, 1, tokens, heads, dim)),
        [layers, outer, inner, heads, dim] => Ok((layers, outer, inner, heads, dim)),
        _ => Err(wrong_axes(what, shape.len())),
    }
}

fn wrong_axes(what: &str, found: usize) -> Failure {
    refused(format!(
        "{what} of {found} axes is not valid: expected [layers, tokens, heads, dim], tokens with up to two axes"
    ))
}

/// Refuses memory whose numbers do not begin at a multiple of their size.
fn aligned<T: Element>(what: &str, x: &Bound<'_, PyArrayDyn<T>>) -> Result<(), Failure> {
    if x.is_aligned() {
        Ok(())
    } else {
        Err(refused(format!(
            "{what} in unaligned memory is not valid: expected numbers at multiples of their size"
        )))
    }
}

/// Returns true if no two numbers have the same place: each axis steps over all that smaller steps reach.
fn is_apart(shape: &[usize], strides: &[isize]) -> bool {
    let mut axes: Vec<_> = shape.iter().zip(strides).filter(|(len, _)| **len > 1).collect();
    axes.sort_by_key(|(_, stride)| stride.unsigned_abs());
    let mut reach = 0;
    shape.contains(&0)
        || axes.iter().all(|(len, stride)| {
            let (step, before) = (stride.unsigned_abs(), reach);
            reach += (**len - 1) * step;
            step > before
        })
}

/// Refuses sections of other sizes than those of a side. Returns true if it has no numbers.
fn check<T: storage::Element>(
    what: &str,
    codec: &AnyCodec,
    exact: usize,
    (layers, outer, inner, heads, dim): (usize, usize, usize, usize, usize),
    found: [usize; 3],
) -> Result<bool, Failure> {
    let (tokens, row) = (outer * inner, heads * dim);
    if exact > tokens || dim != codec.dim() {
        let want = codec.dim();
        return Err(refused(format!(
            "{what} of {tokens} tokens and head dim {dim} is not valid: expected {exact} tokens or more and head dim {want}"
        )));
    }
    let kept = layers * exact * row * T::DTYPE.bytes();
    let blocks = layers * (tokens - exact) * heads * codec.block_bytes();
    let means = if found[1] == 0 { 0 } else { 2 * layers * row };
    if found != [kept, means, blocks] {
        return Err(refused(format!(
            "sections of {found:?} bytes are not valid: expected {:?}",
            [kept, means, blocks]
        )));
    }
    Ok(layers * row == 0)
}
