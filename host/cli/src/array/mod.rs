//! Arrays of vectors: reads `.npy` files and tensors of a `.safetensors` file, and writes `.npy`.
//!
//! An input stays in its file (memory-mapped) and is converted to f32 row by row, so memory does not limit
//! its size. Model weights have other shapes; the model runner reads those itself.

mod error;
mod layout;
mod npy;
mod numbers;
mod tensor;

use std::io;
use std::path::Path;

pub use error::ArrayError;
use half::{bf16, f16};
use layout::{ArrayLayout, Dtype, Float};
pub(crate) use npy::NpyWriter;
pub use numbers::{Numbers, WholeNumbers};

use tqkv::file::Bytes;

use crate::input;

/// Vectors with the coordinates of the last dimension of `shape`.
#[derive(Debug)]
pub struct Vectors {
    shape: Vec<usize>,
    rows: usize,
    dim: usize,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Memory(Vec<f32>),
    File { bytes: Bytes, offset: usize, float: Float },
}

impl Vectors {
    /// Opens `file.npy`, or one tensor of a safetensors file, given as `file.safetensors:name`. `-` is a
    /// `.npy` file on standard input, which is read into memory.
    ///
    /// Leading dimensions are flattened: shape `[.., D]` gives rows of D coordinates. [`Self::read_row`]
    /// reads the values, not this function.
    ///
    /// # Errors
    /// Refuses an element type other than f64, f32 or f16 (in safetensors also bf16), and Fortran order. The
    /// shape needs two or more dimensions, and the number of bytes must fit it.
    pub fn open(spec: &str) -> Result<Self, ArrayError> {
        let (bytes, tensor) = open(spec)?;
        Self::from_bytes(bytes, tensor)
    }

    /// Takes the bytes of a `.npy` file, or of a safetensors file with the name of one tensor.
    ///
    /// # Errors
    /// Same as [`Self::open`].
    pub(crate) fn from_bytes(bytes: Bytes, tensor: Option<&str>) -> Result<Self, ArrayError> {
        let layout = layout(&bytes, tensor)?;
        match layout.dtype {
            Dtype::Whole(whole) => {
                let accepted = if tensor.is_some() { tensor::ACCEPTED } else { npy::ACCEPTED };
                Err(ArrayError::Dtype { found: whole.name.to_owned(), accepted })
            }
            Dtype::Float(float) => Self::from_layout(bytes, layout, float),
        }
    }

    /// Takes rows of `dim` coordinates from memory.
    ///
    /// # Errors
    /// [`ArrayError::Length`] if `values` is not a whole number of rows.
    pub fn from_vec(values: Vec<f32>, dim: usize) -> Result<Self, ArrayError> {
        let rows = values.len().checked_div(dim).unwrap_or(0);
        if rows * dim != values.len() || dim == 0 {
            return Err(ArrayError::Length {
                shape: vec![rows, dim],
                expected: rows as u128 * dim as u128 * 4,
                found: 4 * values.len(),
            });
        }
        Ok(Self { shape: vec![rows, dim], rows, dim, source: Source::Memory(values) })
    }

    fn from_layout(bytes: Bytes, layout: ArrayLayout, float: Float) -> Result<Self, ArrayError> {
        let [leading @ .., dim] = layout.shape.as_slice() else {
            return Err(ArrayError::Shape(layout.shape));
        };
        if leading.is_empty() || *dim == 0 {
            return Err(ArrayError::Shape(layout.shape));
        }
        layout.check()?;
        // The product fits the file, so it fits usize.
        let rows = leading.iter().product();
        Ok(Self {
            rows,
            dim: *dim,
            shape: layout.shape,
            source: Source::File { bytes, offset: layout.offset, float },
        })
    }

    /// The shape of the array, with two or more dimensions.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of vectors.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns true if the elements are f64, which are rounded to f32.
    pub(crate) fn is_rounded(&self) -> bool {
        matches!(self.source, Source::File { float: Float::F64, .. })
    }

    /// Coordinates per vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Converts row `row` into `out`, `[dim]`.
    ///
    /// # Errors
    /// [`ArrayError::NonFinite`] with the number of the row if it holds NaN or infinity.
    ///
    /// # Panics
    /// If `row >= rows()` or `out.len() != dim()`.
    pub fn read_row(&self, row: usize, out: &mut [f32]) -> Result<(), ArrayError> {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.dim, "length of the output row");
        match &self.source {
            Source::Memory(values) => out.copy_from_slice(&values[row * self.dim..][..self.dim]),
            Source::File { bytes, offset, float } => {
                let len = self.dim * float.size();
                let raw = &bytes.as_ref()[offset + row * len..][..len];
                convert(*float, raw, out);
            }
        }
        if out.iter().all(|x| x.is_finite()) {
            return Ok(());
        }
        Err(ArrayError::NonFinite { row })
    }

    /// Mean of all rows, `[dim]`, summed in f64 in row order; zeros without rows.
    ///
    /// # Errors
    /// Same as [`Self::read_row`].
    pub(crate) fn mean(&self) -> Result<Vec<f32>, ArrayError> {
        let mut sum = vec![0f64; self.dim];
        let mut row = vec![0f32; self.dim];
        for index in 0..self.rows {
            self.read_row(index, &mut row)?;
            for (sum, &x) in sum.iter_mut().zip(&row) {
                *sum += f64::from(x);
            }
        }
        let rows = self.rows.max(1) as f64;
        Ok(sum.iter().map(|sum| (sum / rows) as f32).collect())
    }
}

/// The bytes of the file in `spec`, and the name of the tensor in it.
fn open(spec: &str) -> Result<(Bytes, Option<&str>), ArrayError> {
    if input::is_stdin(Path::new(spec)) {
        return Ok((Bytes::Owned(npy::read(io::stdin().lock())?), None));
    }
    let (path, tensor) = split(spec);
    let bytes = Bytes::open(Path::new(path))?;
    if tensor.is_none() && path.ends_with(".safetensors") {
        return Err(tensor::name_needed(bytes.as_ref())?);
    }
    Ok((bytes, tensor))
}

fn layout(bytes: &Bytes, tensor: Option<&str>) -> Result<ArrayLayout, ArrayError> {
    match tensor {
        Some(name) => tensor::layout(bytes.as_ref(), name),
        None => npy::layout(bytes.as_ref()),
    }
}

/// Splits `spec` into the file and the tensor in it.
pub(crate) fn split(spec: &str) -> (&str, Option<&str>) {
    let marker = ".safetensors:";
    match spec.find(marker) {
        Some(at) => {
            let (path, name) = spec.split_at(at + marker.len() - 1);
            (path, Some(&name[1..]))
        }
        None => (spec, None),
    }
}

fn convert(float: Float, raw: &[u8], out: &mut [f32]) {
    match float {
        Float::F64 => {
            for (x, b) in out.iter_mut().zip(raw.chunks_exact(8)) {
                *x = f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f32;
            }
        }
        Float::F32 => {
            for (x, b) in out.iter_mut().zip(raw.chunks_exact(4)) {
                *x = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        Float::F16 => {
            for (x, b) in out.iter_mut().zip(raw.chunks_exact(2)) {
                *x = f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        Float::Bf16 => {
            for (x, b) in out.iter_mut().zip(raw.chunks_exact(2)) {
                *x = bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
    }
}
