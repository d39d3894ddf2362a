//! NumPy arrays, read and written in place, in the types that engines use for keys and values.

use crate::errors::{Failure, refused};
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use numpy::{
    Element, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyReadwriteArrayDyn, PyUntypedArray,
    get_array_module,
};
use numpy::{PyArrayDescrMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;
use tqkv::cache::Floats;

/// An argument with vectors, locked while it is read.
pub(crate) enum Vectors<'py> {
    F32(PyReadonlyArrayDyn<'py, f32>),
    F16(PyReadonlyArrayDyn<'py, f16>),
    /// NumPy has no bfloat16, so its bits are passed.
    Bf16(PyReadonlyArrayDyn<'py, u16>),
}

/// Values that other threads may read while the interpreter is released.
#[derive(Clone, Copy)]
pub(crate) enum Values<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
}

impl<'py> Vectors<'py> {
    pub(crate) fn new(what: &str, array: &Bound<'py, PyAny>) -> Result<Self, Failure> {
        if let Ok(array) = array.cast::<PyArrayDyn<f32>>() {
            return Ok(Self::F32(reading(what, array)?));
        }
        if let Ok(array) = array.cast::<PyArrayDyn<f16>>() {
            return Ok(Self::F16(reading(what, array)?));
        }
        if let Ok(array) = array.cast::<PyArrayDyn<u16>>() {
            return Ok(Self::Bf16(reading(what, array)?));
        }
        let found = match array.cast::<PyUntypedArray>() {
            Ok(array) => format!("an array of {}", array.dtype().str()?),
            Err(_) => format!("a {}", array.get_type().name()?),
        };
        Err(refused(format!(
            "{what}, {found}, is not valid: expected an array of float32, float16 or bfloat16 (as uint16)"
        )))
    }

    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Self::F32(array) => array.shape(),
            Self::F16(array) => array.shape(),
            Self::Bf16(array) => array.shape(),
        }
    }

    pub(crate) fn values(&self, what: &str) -> Result<Values<'_>, Failure> {
        Ok(match self {
            Self::F32(array) => Values::F32(slice(what, array)?),
            Self::F16(array) => Values::F16(slice(what, array)?),
            Self::Bf16(array) => Values::Bf16(slice(what, array)?.reinterpret_cast()),
        })
    }
}

impl<'a> Values<'a> {
    /// Values `from..from + len` as f32: in place, or written to `scratch`.
    pub(crate) fn wide<'b>(self, from: usize, len: usize, scratch: &'b mut Vec<f32>) -> &'b [f32]
    where
        'a: 'b,
    {
        match self.part(from, len) {
            Self::F32(values) => return values,
            Self::F16(values) => {
                scratch.resize(len, 0.0);
                values.convert_to_f32_slice(scratch);
            }
            Self::Bf16(values) => {
                scratch.resize(len, 0.0);
                values.convert_to_f32_slice(scratch);
            }
        }
        scratch
    }

    /// Values `from..from + len`.
    pub(crate) fn part(self, from: usize, len: usize) -> Self {
        match self {
            Self::F32(values) => Self::F32(&values[from..from + len]),
            Self::F16(values) => Self::F16(&values[from..from + len]),
            Self::Bf16(values) => Self::Bf16(&values[from..from + len]),
        }
    }

    pub(crate) fn len(self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }
}

impl<'a> From<Values<'a>> for Floats<'a> {
    fn from(values: Values<'a>) -> Self {
        match values {
            Values::F32(values) => values.into(),
            Values::F16(values) => values.into(),
            Values::Bf16(values) => values.into(),
        }
    }
}

/// A type for results.
pub(crate) trait Narrow: Element + Copy + Send + Sync {
    /// Calls `fill` with f32 values and converts them into `out`.
    fn narrow<R>(out: &mut [Self], scratch: &mut Vec<f32>, fill: impl FnOnce(&mut [f32]) -> R) -> R;
}

impl Narrow for f32 {
    fn narrow<R>(out: &mut [Self], _: &mut Vec<f32>, fill: impl FnOnce(&mut [f32]) -> R) -> R {
        fill(out)
    }
}

impl Narrow for f16 {
    fn narrow<R>(out: &mut [Self], scratch: &mut Vec<f32>, fill: impl FnOnce(&mut [f32]) -> R) -> R {
        scratch.resize(out.len(), 0.0);
        let result = fill(scratch);
        out.convert_from_f32_slice(scratch);
        result
    }
}

/// The bits of bfloat16.
impl Narrow for u16 {
    fn narrow<R>(out: &mut [Self], scratch: &mut Vec<f32>, fill: impl FnOnce(&mut [f32]) -> R) -> R {
        scratch.resize(out.len(), 0.0);
        let result = fill(scratch);
        out.reinterpret_cast_mut::<bf16>().convert_from_f32_slice(scratch);
        result
    }
}

/// Calls a generic function with the type of a dtype name.
macro_rules! with_dtype {
    ($dtype:expr, $call:ident :: <_>($($argument:expr),* $(,)?)) => {
        match $dtype {
            "float32" => $call::<f32>($($argument),*),
            "float16" => $call::<half::f16>($($argument),*),
            "bfloat16" => $call::<u16>($($argument),*),
            other => Err($crate::errors::refused(format!(
                "dtype {other} is not valid: expected float32, float16 or bfloat16"
            ))),
        }
    };
}
pub(crate) use with_dtype;

/// Locks an array for reading, so that no other call of this module writes it.
pub(crate) fn reading<'py, T: Element>(
    what: &str,
    array: &Bound<'py, PyArrayDyn<T>>,
) -> Result<PyReadonlyArrayDyn<'py, T>, Failure> {
    array.try_readonly().map_err(|_| refused(format!("{what} is being written by another call")))
}

/// The values of an array in C order.
pub(crate) fn slice<'a, T: Element>(
    what: &str,
    array: &'a PyReadonlyArrayDyn<'_, T>,
) -> Result<&'a [T], Failure> {
    match array.as_slice() {
        Ok(values) if array.is_c_contiguous() => Ok(values),
        _ => Err(refused(format!(
            "{what} in this memory order is not valid: expected aligned values in C order, as numpy.array makes them"
        ))),
    }
}

/// Locks an array of encoded vectors for reading.
pub(crate) fn bytes<'py>(
    what: &str,
    array: &Bound<'py, PyAny>,
) -> Result<PyReadonlyArrayDyn<'py, u8>, Failure> {
    match array.cast::<PyArrayDyn<u8>>() {
        Ok(array) => reading(what, array),
        Err(_) => Err(refused(format!("{what} of this type is not valid: expected an array of uint8"))),
    }
}

/// The array to write: the caller's if it has the shape, else a new one.
pub(crate) fn target<'py, T: Element>(
    py: Python<'py>,
    out: Option<&Bound<'py, PyAny>>,
    shape: &[usize],
) -> Result<Bound<'py, PyArrayDyn<T>>, Failure> {
    let Some(out) = out else { return zeros(py, shape) };
    match out.cast::<PyArrayDyn<T>>() {
        Ok(out) if out.shape() == shape && out.is_c_contiguous() => Ok(out.clone()),
        _ => {
            let dtype = T::get_dtype(py).typeobj().name()?.to_string();
            Err(refused(format!(
                "out of another kind is not valid: expected a contiguous array of {dtype} of the shape {shape:?}"
            )))
        }
    }
}

/// A new array. If memory is short, NumPy raises the error.
pub(crate) fn zeros<'py, T: Element>(
    py: Python<'py>,
    shape: &[usize],
) -> Result<Bound<'py, PyArrayDyn<T>>, Failure> {
    let array = get_array_module(py)?.call_method1("zeros", (shape.to_vec(), T::get_dtype(py)))?;
    array.cast_into().map_err(|error| refused(format!("numpy.zeros: {}", PyErr::from(error))))
}

/// Locks an array for writing.
pub(crate) fn writing<'py, T: Element>(
    array: &Bound<'py, PyArrayDyn<T>>,
) -> Result<PyReadwriteArrayDyn<'py, T>, Failure> {
    array.try_readwrite().map_err(|error| refused(format!("out cannot be written: {error}")))
}

/// The values of an array to write.
pub(crate) fn slice_mut<'a, T: Element>(
    array: &'a mut PyReadwriteArrayDyn<'_, T>,
) -> Result<&'a mut [T], Failure> {
    array
        .as_slice_mut()
        .map_err(|_| refused("out in this memory order is not valid: expected aligned values in C order"))
}

/// Refuses vectors whose last axis does not have length `last`. Returns the shape before it.
pub(crate) fn leading<'a>(what: &str, shape: &'a [usize], last: usize) -> Result<&'a [usize], Failure> {
    match shape.split_last() {
        Some((found, before)) if *found == last => Ok(before),
        _ => Err(refused(format!("{what} of the shape {shape:?} is not valid: expected [.., {last}]"))),
    }
}
