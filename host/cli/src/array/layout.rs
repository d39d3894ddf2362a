//! The position of an array's elements in a file.

/// Element types that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dtype {
    /// Rounded to f32 when read.
    F64,
    F32,
    F16,
    Bf16,
}

impl Dtype {
    pub(super) fn size(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// Position of the elements of an array in a file: row-major, little-endian.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ArrayLayout {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) offset: usize,
    /// Bytes of elements in the file.
    pub(super) len: usize,
}

impl ArrayLayout {
    /// Bytes that the shape needs, at most `u128::MAX`.
    pub(super) fn expected(&self) -> u128 {
        let elements = self.shape.iter().try_fold(1u128, |product, &n| product.checked_mul(n as u128));
        elements.and_then(|n| n.checked_mul(self.dtype.size() as u128)).unwrap_or(u128::MAX)
    }
}
