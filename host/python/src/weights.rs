//! A coded matrix of weights: [`tqkv_model::CodedMatrix`] over arrays.

use crate::arrays::{self, Narrow, Vectors, leading, reading, slice, slice_mut, target, writing, zeros};
use crate::codec::Codec;
use crate::errors::{Failure, refused};
use crate::pool;
use half::f16;
use numpy::{Element, PyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;
use rayon::prelude::*;
use tqkv_model::{CodedMatrix as Matrix, ModelError};

/// Rows that a thread decodes at a time. Up to this many run on one thread.
const ROWS: usize = 16;

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        refused(error.to_string())
    }
}

/// Weights `[outputs, inputs]` in codes. Immutable.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct CodedMatrix(Matrix);

#[pymethods]
impl CodedMatrix {
    #[staticmethod]
    fn encode(py: Python<'_>, codec: &Codec, weight: &Bound<'_, PyAny>) -> Result<Self, Failure> {
        pool::start()?;
        let vectors = Vectors::new("weight", weight)?;
        let shape = matrix("weight", vectors.shape())?;
        let values = vectors.values("weight")?;
        let (level, codec) = codec.parts();
        let read = |row: usize, to: &mut [f32]| {
            to.copy_from_slice(values.wide(row * shape[1], to.len(), &mut Vec::new()));
        };
        Ok(Self(py.detach(|| Matrix::encode(codec, level, shape, &read))?))
    }

    #[staticmethod]
    fn from_blocks(py: Python<'_>, codec: &Codec, blocks: &Bound<'_, PyAny>) -> Result<Self, Failure> {
        pool::start()?;
        let blocks = arrays::bytes("blocks", blocks)?;
        let [outputs, bytes] = matrix("blocks", blocks.shape())?;
        let (level, codec) = codec.parts();
        if !bytes.is_multiple_of(codec.block_bytes()) {
            return Err(refused(format!(
                "blocks of the shape {:?} is not valid: expected rows of whole blocks of {} bytes",
                blocks.shape(),
                codec.block_bytes()
            )));
        }
        let (held, inputs) = (slice("blocks", &blocks)?, bytes / codec.block_bytes() * codec.dim());
        Ok(Self(py.detach(|| Matrix::from_blocks(codec, level, held, [outputs, inputs]))?))
    }

    #[getter]
    fn codec(&self) -> Result<Codec, Failure> {
        Codec::of(*self.0.codec())
    }

    #[getter]
    fn shape(&self) -> (usize, usize) {
        self.0.shape().into()
    }

    #[getter]
    fn held_bytes(&self) -> usize {
        self.0.held_bytes()
    }

    fn blocks<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyArrayDyn<u8>>, Failure> {
        pool::start()?;
        let blocks = py.detach(|| self.0.to_blocks());
        let out = zeros::<u8>(py, &[self.0.shape()[0], blocks.len() / self.0.shape()[0]])?;
        slice_mut(&mut writing(&out)?)?.copy_from_slice(&blocks);
        Ok(out)
    }

    /// Products of `x`, `[.., inputs]`, written to `out`, `[.., outputs]`, of the same dtype.
    fn multiply(&self, py: Python<'_>, x: &Bound<'_, PyAny>, out: &Bound<'_, PyAny>) -> Result<(), Failure> {
        pool::start()?;
        let vectors = Vectors::new("x", x)?;
        match vectors {
            Vectors::F32(_) => multiply_as::<f32>(py, &self.0, &vectors, out),
            Vectors::F16(_) => multiply_as::<f16>(py, &self.0, &vectors, out),
            Vectors::Bf16(_) => multiply_as::<u16>(py, &self.0, &vectors, out),
        }
    }

    /// Decoded rows, written to `out`, `[.., inputs]`, one for each index.
    fn rows(
        &self,
        py: Python<'_>,
        indices: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        pool::start()?;
        let Ok(indices) = indices.cast::<PyArrayDyn<i64>>() else {
            return Err(refused("indices of this type is not valid: expected an array of int64"));
        };
        let indices = reading("indices", indices)?;
        let rows = self.0.shape()[0];
        if let Some(bad) = indices.as_array().iter().find(|index| !(0..rows as i64).contains(index)) {
            return Err(refused(format!("index {bad} is not valid: expected 0 to {}", rows - 1)));
        }
        let (at, shape) = (slice("indices", &indices)?, [indices.shape(), &[self.0.shape()[1]]].concat());
        if out.cast::<PyArrayDyn<f32>>().is_ok() {
            rows_as::<f32>(py, &self.0, at, &shape, out)
        } else if out.cast::<PyArrayDyn<f16>>().is_ok() {
            rows_as::<f16>(py, &self.0, at, &shape, out)
        } else {
            rows_as::<u16>(py, &self.0, at, &shape, out)
        }
    }
}

/// The extents of a matrix.
fn matrix(what: &str, shape: &[usize]) -> Result<[usize; 2], Failure> {
    shape.try_into().map_err(|_| {
        refused(format!("{what} of the shape {shape:?} is not valid: expected a matrix, one row per output"))
    })
}

fn multiply_as<T: Narrow>(
    py: Python<'_>,
    matrix: &Matrix,
    x: &Vectors<'_>,
    out: &Bound<'_, PyAny>,
) -> Result<(), Failure> {
    let [outputs, inputs] = matrix.shape();
    let shape = [leading("x", x.shape(), inputs)?, &[outputs]].concat();
    let x = x.values("x")?;
    in_out::<T>(py, &shape, out, |out| {
        let (mut wide, mut narrow) = (Vec::new(), Vec::new());
        let x = x.wide(0, x.len(), &mut wide);
        T::narrow(out, &mut narrow, |y| matrix.multiply(x, y));
    })
}

fn rows_as<T: Narrow>(
    py: Python<'_>,
    matrix: &Matrix,
    indices: &[i64],
    shape: &[usize],
    out: &Bound<'_, PyAny>,
) -> Result<(), Failure> {
    let inputs = matrix.shape()[1];
    in_out::<T>(py, shape, out, |out| {
        let some = |narrow: &mut Vec<f32>, (out, indices): (&mut [T], &[i64])| {
            for (out, index) in out.chunks_exact_mut(inputs).zip(indices) {
                T::narrow(out, narrow, |row| matrix.expand_row(*index as usize, row));
            }
        };
        if indices.len() <= ROWS {
            return some(&mut Vec::new(), (out, indices));
        }
        let parts = out.par_chunks_mut(ROWS * inputs).zip(indices.par_chunks(ROWS));
        parts.for_each_init(Vec::new, |narrow, part| some(narrow, part));
    })
}

/// Locks `out`, which has this shape, and fills it with the interpreter released.
fn in_out<T: Element + Send>(
    py: Python<'_>,
    shape: &[usize],
    out: &Bound<'_, PyAny>,
    fill: impl FnOnce(&mut [T]) + Send,
) -> Result<(), Failure> {
    let out = target::<T>(py, Some(out), shape)?;
    let mut writing = writing(&out)?;
    let to = slice_mut(&mut writing)?;
    py.detach(|| fill(to));
    Ok(())
}
