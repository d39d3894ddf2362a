//! Errors: flat, `Copy`, without strings.

use crate::head_dim::accepted_head_dims;
use core::fmt;

/// Why a codec cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ShapeError {
    /// The head dim is not one of [`crate::HEAD_DIMS`].
    UnsupportedHeadDim,
    /// This codec does not support the head dim. The ggml layouts need a multiple of 32. `m2` and `m3` need a
    /// power of two from 64 on.
    UnsupportedCodec,
}

/// Why a vector was not encoded; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum EncodeError {
    /// The vector holds NaN or an infinity.
    NonFinite,
    /// The scale does not fit f16: the norm is above about 65504.
    OutOfRange,
    /// The vector's length is not the head dim, or the block's length is not the codec's block size.
    WrongLength,
    /// The workspace is shorter than [`crate::AnyCodec::workspace_bytes`].
    WorkspaceTooSmall,
}

/// Why a block was not decoded; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum DecodeError {
    /// The output's length is not the head dim, or the block's length is not the codec's block size.
    WrongLength,
    /// The stored scale is NaN or infinite, so no encoder wrote these bytes.
    NonFiniteScale,
}

/// A name that no codec has. The message lists the usual names; [`crate::CodecId::ALL`] lists all codecs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct UnknownCodec;

impl UnknownCodec {
    /// Names of the usual codecs, for a message.
    const USUAL: &str = "s4, s3, s2, t4, t3, t2, n4, i8, q8_0, f16";
}

impl fmt::Display for UnknownCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no codec has this name: accepted are {} and the others of CodecId::ALL; presets such as 'balanced' are \
             pairs of codecs, not codecs",
            Self::USUAL
        )
    }
}

impl core::error::Error for UnknownCodec {}

impl ShapeError {
    /// The message.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::UnsupportedHeadDim => {
                concat!("head dim not supported: accepted are ", accepted_head_dims!())
            }
            Self::UnsupportedCodec => {
                "codec not supported at this head dim: the ggml layouts need a multiple of 32, m2 and m3 a power of two from 64"
            }
        }
    }
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NonFinite => "the vector holds NaN or an infinity; only finite values can be encoded",
            Self::OutOfRange => "the vector is too large: its scale must fit f16, at most 65504",
            Self::WrongLength => {
                "wrong length: the vector must have head_dim values and the block the codec's bytes"
            }
            Self::WorkspaceTooSmall => "the workspace is too small: it must have workspace_bytes bytes",
        })
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WrongLength => {
                "wrong length: the output must have head_dim values and the block the codec's bytes"
            }
            Self::NonFiniteScale => "the block's scale is NaN or infinite; scales are finite f16",
        })
    }
}

impl core::error::Error for ShapeError {}
impl core::error::Error for EncodeError {}
impl core::error::Error for DecodeError {}
