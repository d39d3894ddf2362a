//! A tensor in its stored format. Its bytes are expanded when they are needed.

use std::ops::Range;

use super::Chunk;
use super::format::{TensorCoding, TensorFormat};
use super::kinds::F32;

/// Rows of one format. For a matrix they are `[outputs, inputs]`.
#[derive(Debug, Clone)]
pub(crate) struct StoredTensor {
    format: TensorFormat,
    shape: Vec<usize>,
    bytes: Chunk,
}

impl StoredTensor {
    /// # Errors
    /// Rows that do not fill whole blocks of the format, or bytes that do not match the shape.
    pub(crate) fn new(format: TensorFormat, shape: Vec<usize>, bytes: Chunk) -> Result<Self, String> {
        let expected = format.bytes_of(&shape)?;
        if expected != bytes.len() {
            return Err(format!(
                "{shape:?} of {} are {expected} bytes, here are {}",
                format.name(),
                bytes.len()
            ));
        }
        Ok(Self { format, shape, bytes })
    }

    /// Makes a tensor from f32 values.
    pub(crate) fn from_f32(values: &[f32], shape: Vec<usize>) -> Self {
        assert_eq!(values.len(), shape.iter().product::<usize>(), "values of that shape");
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { format: TensorFormat::Plain(&F32), shape, bytes: bytes.into() }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn format(&self) -> &TensorFormat {
        &self.format
    }

    /// The coding of the row groups, if the tensor is coded.
    pub(crate) fn coding(&self) -> Option<&TensorCoding> {
        match &self.format {
            TensorFormat::Plain(_) => None,
            TensorFormat::Coded(coding) => Some(coding),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All values.
    pub(crate) fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.shape.iter().product()];
        self.format.expand(&self.bytes, &mut values);
        values
    }

    /// The values in place, if the machine can read them as f32.
    pub(crate) fn as_f32(&self) -> Option<&[f32]> {
        let is_f32 = matches!(self.format, TensorFormat::Plain(kind) if std::ptr::eq(kind, &F32));
        let is_native = is_f32 && cfg!(target_endian = "little");
        if is_native { bytemuck::try_cast_slice(&self.bytes).ok() } else { None }
    }

    /// Expands rows from `first` on, as many as `out` has room for.
    pub(crate) fn expand_rows(&self, first: usize, out: &mut [f32]) {
        let start = first * self.row_bytes();
        let len = self.format.len_of(out.len());
        self.format.expand(&self.bytes[start..start + len], out);
    }

    /// A range of rows, for tensors that join several matrices.
    pub(crate) fn rows(&self, range: Range<usize>) -> Self {
        let row_bytes = self.row_bytes();
        let mut shape = self.shape.clone();
        shape[0] = range.len();
        let bytes = self.bytes.part(range.start * row_bytes..range.end * row_bytes);
        Self { format: self.format.clone(), shape, bytes }
    }

    /// One of the matrices of a tensor with three dimensions.
    pub(crate) fn matrix(&self, index: usize) -> Self {
        let mut matrix = self.rows(index..index + 1);
        matrix.shape.remove(0);
        matrix
    }

    /// A matrix whose rows are the columns `first`, `first + step` and so on of this one.
    pub(crate) fn columns(&self, first: usize, step: usize) -> Self {
        if self.format.block() > 1 {
            return Self::from_f32(&self.to_f32(), self.shape.clone()).columns(first, step);
        }
        let (row_bytes, size) = (self.row_bytes(), self.format.block_bytes());
        let mut bytes = Vec::with_capacity(self.bytes.len() / step);
        for column in (first * size..row_bytes).step_by(step * size) {
            for row in self.bytes.chunks_exact(row_bytes) {
                bytes.extend_from_slice(&row[column..column + size]);
            }
        }
        let rows = bytes.len() / size / self.shape[0].max(1);
        Self { format: self.format.clone(), shape: vec![rows, self.shape[0]], bytes: bytes.into() }
    }

    /// Reorders the rows of each head from (pair, half) to (half, pair). GGUF files of some families have the
    /// first order, for interleaved RoPE.
    pub(crate) fn unpermuted(self, heads: usize) -> Self {
        let (rows, row_bytes) = (self.shape.first().copied().unwrap_or(0), self.row_bytes());
        let head_dim = rows / heads.max(1);
        // A number of rows that does not fit the heads is refused later for its shape.
        if row_bytes == 0 || head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim * heads != rows {
            return self;
        }
        let mut bytes = Vec::with_capacity(self.bytes.len());
        for head in self.bytes.chunks_exact(head_dim * row_bytes) {
            for half in 0..2 {
                for pair in 0..head_dim / 2 {
                    bytes.extend_from_slice(&head[(2 * pair + half) * row_bytes..][..row_bytes]);
                }
            }
        }
        Self { bytes: bytes.into(), ..self }
    }

    /// Bytes of one step in the outermost dimension.
    fn row_bytes(&self) -> usize {
        self.bytes.len() / self.shape.first().map_or(1, |&rows| rows.max(1))
    }
}
