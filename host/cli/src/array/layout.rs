//! The position of an array's elements in a file.

use super::ArrayError;

/// Element types that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dtype {
    Float(Float),
    Whole(Whole),
}

/// A type of numbers with a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Float {
    /// Rounded to f32 when read.
    F64,
    F32,
    F16,
    Bf16,
}

/// A type of whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whole {
    /// Its name in the file.
    pub(super) name: &'static str,
    pub(super) bytes: usize,
    pub(super) is_signed: bool,
}

impl Whole {
    pub(super) const fn new(name: &'static str, bytes: usize, is_signed: bool) -> Self {
        Self { name, bytes, is_signed }
    }
}

impl Float {
    pub(super) fn size(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

impl Dtype {
    pub(super) fn size(self) -> usize {
        match self {
            Self::Float(float) => float.size(),
            Self::Whole(whole) => whole.bytes,
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

    /// Refuses a file whose elements are not those of the shape.
    pub(super) fn check(&self) -> Result<(), ArrayError> {
        match self.expected() {
            expected if expected == self.len as u128 => Ok(()),
            expected => Err(ArrayError::Length { shape: self.shape.clone(), expected, found: self.len }),
        }
    }
}
