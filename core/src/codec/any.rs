//! `AnyCodec`: a codec whose kind and head dim are run-time values.
//!
//! This is what a cache, a file reader or a C caller holds. Every operation exists twice: plain
//! (portable) and `_with` an instruction-set token, which is what the SIMD crate calls from inside
//! its feature-enabled entry points; both give the same bits. Shapes that are known when the
//! program is written are better served by [`crate::Codec`].
//!
//! Attention never decodes: rotate the query once ([`AnyCodec::rotate_query`]), score blocks
//! ([`AnyCodec::scores`]), accumulate values in the rotated domain ([`AnyCodec::accumulate`]) and
//! rotate the result back once ([`AnyCodec::unrotate`]).

use crate::code::{CodecId, Family};
use crate::codebook::Codebook;
use crate::error::{DecodeError, EncodeError, ShapeError};
use crate::head_dim::HeadDim;
use crate::portable::Portable;
use crate::rotation::Signs;
use crate::scale::{Effort, ScaleMode};
use crate::trellis::{self, Trellis};

/// How an encoder works, beside the codec and the head dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Options {
    /// Seed of the rotation's signs; encoder, decoder and query must agree. Default 42.
    pub seed: u64,
    /// Which scale is stored; decoders need not know.
    pub scale_mode: ScaleMode,
    /// How hard the encoder searches; decoders need not know.
    pub effort: Effort,
}

impl Options {
    /// Seed 42, unbiased scale, default effort.
    pub const DEFAULT: Self = Self { seed: 42, scale_mode: ScaleMode::Unbiased, effort: Effort::Default };
}

impl Default for Options {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A codec for one head dim; see the module documentation.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct AnyCodec {
    id: CodecId,
    pub(crate) shape: HeadDim,
    block_bytes: usize,
    options: Options,
    signs: Signs,
    pub(crate) book: &'static Codebook,
}

/// Stands where a codec has no codebook; never read.
static NO_BOOK: Codebook = Codebook::solve_scalar(16, 1);

impl AnyCodec {
    /// A codec for vectors of `dim` values.
    ///
    /// # Errors
    /// The head dim is unsupported, or the codec needs another (ggml: a multiple of 32).
    pub fn new(id: CodecId, dim: usize, options: Options) -> Result<Self, ShapeError> {
        let shape = HeadDim::new(dim).ok_or(ShapeError::UnsupportedHeadDim)?;
        let block_bytes = id.block_bytes(dim).ok_or(ShapeError::UnsupportedCodec)?;
        let book = id.codebook(dim).unwrap_or(&NO_BOOK);
        let signs = Signs::from_seed(options.seed, dim);
        Ok(Self { id, shape, block_bytes, options, signs, book })
    }

    /// A scalar codec from parts that are known at compile time; `book` matches `dim`.
    pub(crate) const fn from_parts(
        id: CodecId,
        dim: usize,
        options: Options,
        book: &'static Codebook,
    ) -> Self {
        let (Some(shape), Some(block_bytes)) = (HeadDim::new(dim), id.block_bytes(dim)) else {
            panic!(
                "unsupported head dim: accepted are n * 2^k with n = 1, 12, 20, 28, 36, multiples of 16, 16 to 1024"
            )
        };
        Self { id, shape, block_bytes, options, signs: Signs::from_seed(options.seed, dim), book }
    }

    /// Which codec.
    pub const fn id(&self) -> CodecId {
        self.id
    }

    /// Head dim.
    pub const fn dim(&self) -> usize {
        self.shape.dim()
    }

    /// Bytes of one block.
    pub const fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// How the encoder works.
    pub const fn options(&self) -> Options {
        self.options
    }

    /// The rotation's signs.
    pub const fn signs(&self) -> &Signs {
        &self.signs
    }

    /// The codebook of a scalar or nested codec.
    pub fn codebook(&self) -> Option<&'static Codebook> {
        matches!(self.id.family(), Family::Scalar | Family::Nested).then_some(self.book)
    }

    /// The code of a trellis codec.
    #[inline(always)]
    pub const fn trellis(&self) -> Option<&'static Trellis<'static>> {
        trellis::trellis(self.id)
    }

    /// Encodes `x` (`dim` values) into `block` (`block_bytes` bytes).
    ///
    /// Trellis codecs take 8 KB of stack for the search up to head dim 128, 64 KB above; give
    /// them your own memory with [`AnyCodec::encode_in`].
    ///
    /// # Errors
    /// NaN or infinity, a scale outside f16, or wrong lengths; `block` is untouched then.
    /// A vector whose scale rounds to zero in f16 (norm below 3e-8) becomes the zero block, which
    /// decodes to exact zeros.
    pub fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
        if x.len() != self.dim() {
            return Err(EncodeError::WrongLength);
        }
        self.encode_with(Portable, x, block).map_err(|(_, error)| error)
    }

    /// Bytes of workspace that [`AnyCodec::encode_in`] needs; 0 except for trellis codecs.
    pub const fn workspace_bytes(&self) -> usize {
        match self.trellis() {
            Some(trellis) => trellis::workspace_bytes(&trellis.code, self.dim()),
            None => 0,
        }
    }

    /// [`AnyCodec::encode`] in the caller's memory: `workspace` holds
    /// [`AnyCodec::workspace_bytes`] or more, with any contents.
    ///
    /// # Errors
    /// As [`AnyCodec::encode`], and a short workspace.
    pub fn encode_in(&self, workspace: &mut [u8], x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
        if self.trellis().is_none() {
            return self.encode(x, block);
        }
        self.encode_trellis_with(Portable, Portable, workspace, x, block)
    }

    /// Decodes `block` into `out` (`dim` values).
    ///
    /// # Errors
    /// Wrong lengths, or a stored scale that is NaN or infinite; `out` is untouched then.
    pub fn decode(&self, block: &[u8], out: &mut [f32]) -> Result<(), DecodeError> {
        if out.len() != self.dim() {
            return Err(DecodeError::WrongLength);
        }
        self.decode_with(Portable, block, out).map_err(|(_, error)| error)
    }

    /// Rotates a query for [`AnyCodec::scores`]; the identity for codecs without a rotation.
    /// Both slices hold `dim` values.
    pub fn rotate_query(&self, query: &[f32], out: &mut [f32]) {
        self.rotate_query_with(Portable, query, out);
    }

    /// `out[i]` = <query, decode(block i)> for `out.len()` blocks back to back; no softmax scale.
    pub fn scores(&self, rotated_query: &[f32], blocks: &[u8], out: &mut [f32]) {
        self.scores_with(Portable, rotated_query, blocks, out);
    }

    /// `acc += sum of weights[i] * decode(block i)`, in the rotated domain, over
    /// `weights.len()` blocks back to back. `acc` holds `dim` values.
    pub fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) {
        self.accumulate_with(Portable, weights, blocks, acc);
    }

    /// Takes what [`AnyCodec::accumulate`] summed back to the domain of the vectors, in place.
    pub fn unrotate(&self, acc: &mut [f32]) {
        self.unrotate_with(Portable, acc);
    }

    /// Decodes into the domain of [`AnyCodec::rotate_query`] and [`AnyCodec::accumulate`]:
    /// <rotated query, out> is the score. For attention of many queries over the same keys.
    pub fn decode_rotated(&self, block: &[u8], out: &mut [f32]) {
        self.decode_rotated_with(Portable, block, out);
    }
}

/// `measure` is finite only where all of `x` is and nothing overflowed.
#[inline(always)]
pub(crate) fn check_finite(x: &[f32], measure: f32) -> Result<(), EncodeError> {
    if measure.is_finite() {
        Ok(())
    } else if x.iter().all(|v| v.is_finite()) {
        Err(EncodeError::OutOfRange)
    } else {
        Err(EncodeError::NonFinite)
    }
}
