//! `AnyCodec`: a codec whose kind and head dim are run-time values.
//!
//! This is the type that a cache, a file reader or a C caller holds. Every operation exists twice. The plain
//! one runs on the portable instruction set. The one that ends in `_with` takes an instruction-set token; the
//! SIMD crate calls it from inside its feature-enabled entry points. Both give the same bits. For shapes that
//! are known at compile time, use [`crate::Codec`].
//!
//! Attention needs no decoded vector: rotate the query once ([`AnyCodec::rotate_query`]), score blocks
//! ([`AnyCodec::scores`]), accumulate values in the rotated domain ([`AnyCodec::accumulate`]) and
//! rotate the result back once ([`AnyCodec::unrotate`]).

use crate::Portable;
use crate::code::codebook::Codebook;
use crate::code::coding::Coding;
use crate::code::scale::{Effort, ScaleMode};
use crate::code::trellis::{self, QUARTERS, QuarterWeights, Trellis};
use crate::code::{CodecId, Levels};
use crate::error::{DecodeError, EncodeError, ShapeError};
use crate::head_dim::HeadDim;
use crate::rotation::Signs;
use half::f16;

/// Settings of an encoder, besides the codec and the head dim: `Options::DEFAULT.seed(7)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Options {
    /// Seed of the rotation's signs. Encoder, decoder and query must use the same one. Default 42.
    pub seed: u64,
    /// Which scale is stored. Decoders do not need this setting.
    pub scale_mode: ScaleMode,
    /// How hard the encoder searches. Decoders do not need this setting.
    pub effort: Effort,
}

impl Options {
    /// Seed 42, unbiased scale, default effort.
    pub const DEFAULT: Self = Self { seed: 42, scale_mode: ScaleMode::Unbiased, effort: Effort::Default };

    /// Sets the seed of the rotation's signs.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets which scale is stored.
    #[must_use]
    pub const fn scale_mode(mut self, scale_mode: ScaleMode) -> Self {
        self.scale_mode = scale_mode;
        self
    }

    /// Sets how hard the encoder searches.
    #[must_use]
    pub const fn effort(mut self, effort: Effort) -> Self {
        self.effort = effort;
        self
    }
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
    shape: HeadDim,
    block_bytes: usize,
    options: Options,
    signs: Signs,
    book: Option<&'static Codebook>,
    unit: f32,
    weights: Option<QuarterWeights>,
}

impl AnyCodec {
    /// A codec for vectors of `dim` values.
    ///
    /// # Errors
    /// The head dim is not supported, or the codec does not support it. The ggml layouts need a multiple of
    /// 32, `m2` and `m3` a power of two from 64 on.
    pub fn new(id: CodecId, dim: usize, options: Options) -> Result<Self, ShapeError> {
        Self::from_parts(id, dim, options, id.codebook(dim))
    }

    /// A codec from its parts; `book` is the codebook of `id` and `dim`.
    pub(crate) const fn from_parts(
        id: CodecId,
        dim: usize,
        options: Options,
        book: Option<&'static Codebook>,
    ) -> Result<Self, ShapeError> {
        let Some(shape) = HeadDim::new(dim) else { return Err(ShapeError::UnsupportedHeadDim) };
        let Some(block_bytes) = id.block_bytes(dim) else { return Err(ShapeError::UnsupportedCodec) };
        let unit = match (id.levels(), book) {
            (Levels::Values, _) => 1.0,
            (Levels::Codes(unit), _) => unit,
            (Levels::Trellis(trellis), _) => trellis.code.unit(),
            (Levels::LloydMax | Levels::Nested, Some(book)) => book.unit(),
            (Levels::LloydMax | Levels::Nested, None) => return Err(ShapeError::UnsupportedCodec),
        };
        let signs = Signs::from_seed(options.seed, dim);
        Ok(Self { id, shape, block_bytes, options, signs, book, unit, weights: None })
    }

    /// The codec's id.
    pub const fn id(&self) -> CodecId {
        self.id
    }

    /// The shape of its vectors.
    pub(crate) const fn shape(&self) -> HeadDim {
        self.shape
    }

    /// Head dim.
    pub const fn dim(&self) -> usize {
        self.shape.dim()
    }

    /// Bytes of one block.
    pub const fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// The settings of the encoder.
    pub const fn options(&self) -> Options {
        self.options
    }

    /// The codec with other weights of the squared errors of the four quarters; only their ratios matter.
    /// They steer the encoder, and decoders do not need them. Codecs of one width ignore them. Weights that
    /// are not all positive numbers are ignored too.
    #[doc(hidden)]
    #[must_use]
    pub fn weighted(mut self, weights: [f32; QUARTERS]) -> Self {
        let quarters = self.trellis().and_then(Trellis::quarters);
        if let Some(weights) = quarters.and_then(|quarters| QuarterWeights::new(quarters, weights)) {
            self.weights = Some(weights);
        }
        self
    }

    /// The weights of the errors of the quarters, for a codec of several widths: its own, or those of
    /// [`AnyCodec::weighted`].
    #[doc(hidden)]
    pub fn weights(&self) -> Option<QuarterWeights> {
        let quarters = self.trellis()?.quarters()?;
        Some(self.weights.unwrap_or_else(|| QuarterWeights::even(quarters)))
    }

    /// The rotation's signs.
    #[doc(hidden)]
    pub const fn signs(&self) -> &Signs {
        &self.signs
    }

    /// The codebook of a scalar or nested codec.
    #[doc(hidden)]
    pub const fn codebook(&self) -> Option<&'static Codebook> {
        self.book
    }

    /// Sigmas in one unit of the levels, which are whole numbers. 1 for codecs that store values, or runs
    /// with a scale per run.
    #[inline(always)]
    #[doc(hidden)]
    pub const fn unit(&self) -> f32 {
        self.unit
    }

    /// The properties that forms of blocks need.
    #[inline(always)]
    pub(super) const fn coding(&self) -> Coding {
        let Options { scale_mode, effort, .. } = self.options;
        Coding {
            layout: self.id().layout(),
            codebook: self.book,
            trellis: self.trellis(),
            unit: self.unit,
            scale_mode,
            effort,
        }
    }

    /// The norm up to which every vector can be encoded, in any direction, scale mode and effort. Most longer
    /// vectors can be encoded too: only the stored scale must fit f16, and its ratio to the norm depends on
    /// the direction.
    pub fn max_norm(&self) -> f32 {
        let levels = match (self.id.levels(), self.book) {
            (Levels::Trellis(trellis), _) => &trellis.code.levels[..trellis.code.level_count()],
            (_, Some(book)) => book.bytes(),
            (_, None) => &[],
        };
        let spread = if self.id.is_rotated() { libm::sqrtf(self.dim() as f32) } else { 1.0 };
        f16::MAX.to_f32() / self.id.layout().largest_scale(spread, levels, self.unit)
    }

    /// The code of a trellis codec.
    #[inline(always)]
    pub(crate) const fn trellis(&self) -> Option<&'static Trellis<'static>> {
        self.id.trellis()
    }

    /// Encodes `x` (`dim` values) into `block` (`block_bytes` bytes), or several vectors into the same number
    /// of blocks.
    ///
    /// Trellis codecs take 8 KB of stack for the search up to head dim 128, and 64 KB above. To use your own
    /// memory instead, call [`AnyCodec::encode_in`]. A vector whose scale rounds to zero in f16 (norm below
    /// 3e-8) becomes the zero block, which decodes to exact zeros.
    ///
    /// # Errors
    /// `x` holds NaN or infinity, the scale does not fit f16, or a length is wrong. The block of the vector
    /// that failed and all blocks after it are left untouched; the blocks before it are written.
    pub fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
        self.encode_with(Portable, x, block).map_err(|(_, error)| error)
    }

    /// Bytes of workspace that [`AnyCodec::encode_in`] needs; 0 except for trellis codecs.
    pub const fn workspace_bytes(&self) -> usize {
        match self.trellis() {
            Some(trellis) => trellis::workspace_bytes(&trellis.code, self.dim()),
            None => 0,
        }
    }

    /// [`AnyCodec::encode`] in the caller's memory. `workspace` holds at least [`AnyCodec::workspace_bytes`]
    /// bytes; its contents do not matter.
    ///
    /// # Errors
    /// The errors of [`AnyCodec::encode`], and a workspace that is too short.
    pub fn encode_in(&self, workspace: &mut [u8], x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
        if self.trellis().is_none() {
            return self.encode(x, block);
        }
        self.encode_trellis_with(Portable, Portable, workspace, x, block)
    }

    /// Decodes `block` into `out` (`dim` values), or several blocks into the same number of vectors.
    ///
    /// # Errors
    /// A length is wrong, or a stored scale is NaN or infinite. The vector of the first bad block and all
    /// vectors after it are left untouched; the vectors before it are written.
    pub fn decode(&self, block: &[u8], out: &mut [f32]) -> Result<(), DecodeError> {
        self.decode_with(Portable, block, out).map_err(|(_, error)| error)
    }

    /// Rotates one or more queries of `dim` values for [`AnyCodec::scores`]. Codecs without a rotation copy
    /// them.
    ///
    /// # Panics
    /// The slices differ in length, or do not hold a whole number of vectors.
    pub fn rotate_query(&self, query: &[f32], out: &mut [f32]) {
        self.rotate_query_with(Portable, query, out);
    }

    /// `out[i]` = <query, decode(block i)> for `out.len()` blocks back to back, without the softmax scale.
    ///
    /// # Panics
    /// The query does not hold `dim` values, or `blocks` does not hold `out.len()` blocks.
    pub fn scores(&self, rotated_query: &[f32], blocks: &[u8], out: &mut [f32]) {
        self.scores_with(Portable, rotated_query, blocks, out);
    }

    /// `acc += sum of weights[i] * decode(block i)` in the rotated domain, over `weights.len()` blocks back
    /// to back. `acc` holds `dim` values.
    ///
    /// # Panics
    /// `acc` does not hold `dim` values, or `blocks` does not hold `weights.len()` blocks.
    pub fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) {
        self.accumulate_with(Portable, weights, blocks, acc);
    }

    /// Rotates the sums of [`AnyCodec::accumulate`] back to the domain of the vectors, in place. `acc` holds
    /// one or more vectors of `dim` values.
    ///
    /// # Panics
    /// `acc` does not hold a whole number of vectors.
    pub fn unrotate(&self, acc: &mut [f32]) {
        self.unrotate_with(Portable, acc);
    }

    /// Decodes blocks back to back into the domain of [`AnyCodec::rotate_query`] and
    /// [`AnyCodec::accumulate`], where <rotated query, out> is the score. Use it when many queries attend to
    /// the same keys. Scales are not checked.
    ///
    /// # Panics
    /// `out` does not hold `dim` values per block.
    pub fn decode_rotated(&self, block: &[u8], out: &mut [f32]) {
        self.decode_rotated_with(Portable, block, out);
    }
}
