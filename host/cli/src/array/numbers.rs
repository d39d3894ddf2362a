//! Arrays whose type is not known before: vectors, or whole numbers.

use tqkv::file::Bytes;

use super::layout::{ArrayLayout, Dtype, Whole};
use super::{ArrayError, Vectors, layout, open};

/// Whole numbers of any shape, as codes or tokens are.
#[derive(Debug)]
pub struct WholeNumbers {
    bytes: Bytes,
    layout: ArrayLayout,
    whole: Whole,
}

impl WholeNumbers {
    /// The shape of the array; empty for a single number.
    pub fn shape(&self) -> &[usize] {
        &self.layout.shape
    }

    /// The numbers in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = i128> + '_ {
        let Whole { bytes: size, is_signed, .. } = self.whole;
        let elements = &self.bytes.as_ref()[self.layout.offset..][..self.layout.len];
        elements.chunks_exact(size).map(move |raw| {
            let is_negative = is_signed && raw.last().is_some_and(|byte| byte & 0x80 != 0);
            let mut wide = [if is_negative { 0xff } else { 0 }; 16];
            wide[..size].copy_from_slice(raw);
            i128::from_le_bytes(wide)
        })
    }
}

/// An array whose type is not known before.
#[derive(Debug)]
pub enum Numbers {
    /// Numbers with a fraction.
    Vectors(Vectors),
    /// Numbers without.
    Whole(WholeNumbers),
}

impl Numbers {
    /// Opens an array as [`Vectors::open`] does, or one of whole numbers of 8 to 64 bits, or of truth values.
    ///
    /// # Errors
    /// Other types, and the errors of [`Vectors::open`].
    pub fn open(spec: &str) -> Result<Self, ArrayError> {
        let (bytes, tensor) = open(spec)?;
        let layout = layout(&bytes, tensor)?;
        match layout.dtype {
            Dtype::Whole(whole) => {
                layout.check()?;
                Ok(Self::Whole(WholeNumbers { bytes, layout, whole }))
            }
            Dtype::Float(float) => Vectors::from_layout(bytes, layout, float).map(Self::Vectors),
        }
    }
}
