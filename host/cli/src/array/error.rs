//! What can be wrong with an input or output array.

use std::io;

/// Why an array cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArrayError {
    /// The system failed to open, read or write.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Neither a `.npy` file nor a tensor of a `.safetensors` file.
    #[error(
        "not an array, accepted are .npy files and tensors of a .safetensors file given as file.safetensors:name"
    )]
    UnknownFormat,
    /// A `.npy` file whose header cannot be read.
    #[error("damaged .npy header: {0}")]
    NpyHeader(&'static str),
    /// An element type that is not accepted.
    #[error("element type {found} is not supported, accepted are {accepted}")]
    Dtype {
        /// As the file names it.
        found: String,
        /// What the format's reader takes.
        accepted: &'static str,
    },
    /// Numbers with their bytes the other way round.
    #[error("element type '{0}' is big-endian, accepted is little-endian (numpy: x.astype('<f4'))")]
    BigEndian(String),
    /// Column-major order.
    #[error("Fortran order is not supported, accepted is C order (numpy.ascontiguousarray)")]
    FortranOrder,
    /// Fewer than two dimensions, or vectors without coordinates.
    #[error("shape {0:?} is not supported, accepted are two or more dimensions [.., D], D > 0")]
    Shape(Vec<usize>),
    /// Not as many bytes as the shape says.
    #[error("shape {shape:?} needs {expected} bytes of elements, found {found}")]
    Length {
        /// The shape that the file claims.
        shape: Vec<usize>,
        /// Bytes that it implies.
        expected: u128,
        /// Bytes that are there.
        found: usize,
    },
    /// A safetensors file that its own library refuses.
    #[error("damaged .safetensors file: {0}")]
    Safetensors(String),
    /// A safetensors file without the tensor, or no tensor named.
    #[error("no tensor named '{name}', accepted are {available}")]
    NoTensor {
        /// The name asked for.
        name: String,
        /// Some of the names in the file.
        available: String,
    },
    /// NaN or infinity.
    #[error(
        "row {row} (counted from 0) holds NaN, infinity or a number beyond f32, accepted are finite numbers"
    )]
    NonFinite {
        /// Index of the first such row.
        row: usize,
    },
    /// Another number of values than the writer was told.
    #[error("{expected} values announced, {found} written")]
    Count {
        /// Values that the header announces.
        expected: u128,
        /// Values pushed.
        found: u128,
    },
}
