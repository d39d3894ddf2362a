//! Errors of input and output arrays.

use std::io;

/// A reason why an array cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArrayError {
    /// The system failed to open, read or write.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Neither a `.npy` file nor a tensor of a `.safetensors` file.
    #[error(
        "not an array: expected a .npy file, or a tensor of a .safetensors file given as file.safetensors:name"
    )]
    UnknownFormat,
    /// A `.npy` file whose header cannot be read.
    #[error("damaged .npy header: {0}")]
    NpyHeader(&'static str),
    /// An element type that is not accepted.
    #[error("element type {found} is not valid: expected {accepted}")]
    Dtype {
        /// The type's name in the file.
        found: String,
        /// The types that the reader of this format accepts.
        accepted: &'static str,
    },
    /// Big-endian numbers.
    #[error("element type '{0}' is big-endian: expected little-endian (numpy: x.astype('<f4'))")]
    BigEndian(String),
    /// Column-major order.
    #[error("Fortran order is not valid: expected C order (numpy.ascontiguousarray)")]
    FortranOrder,
    /// Fewer than two dimensions, or vectors without coordinates.
    #[error("shape {0:?} is not valid: expected two or more dimensions [.., D], D > 0")]
    Shape(Vec<usize>),
    /// The number of bytes differs from the shape.
    #[error("shape {shape:?} needs {expected} bytes of elements, found {found}")]
    Length {
        /// The shape in the file.
        shape: Vec<usize>,
        /// Bytes that the shape needs.
        expected: u128,
        /// Bytes in the file.
        found: usize,
    },
    /// A safetensors file that the safetensors library refuses.
    #[error("damaged .safetensors file: {0}")]
    Safetensors(String),
    /// A safetensors file without the named tensor, or a missing tensor name.
    #[error("no tensor named '{name}': expected one of {available}")]
    NoTensor {
        /// The requested name.
        name: String,
        /// Some of the names in the file.
        available: String,
    },
    /// NaN or infinity.
    #[error("row {row} (counted from 0) holds NaN, infinity or a number beyond f32: expected finite numbers")]
    NonFinite {
        /// Index of the first such row.
        row: usize,
    },
    /// A number of values that differs from the announced number.
    #[error("{expected} values announced, {found} written")]
    Count {
        /// Values that the header announces.
        expected: u128,
        /// Values written.
        found: u128,
    },
}
