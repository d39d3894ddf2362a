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

use crate::block_io;
use crate::codebook::Codebook;
use crate::codec_id::{CodecId, Family};
use crate::error::{DecodeError, EncodeError, ShapeError};
use crate::head_dim::{GROUP, HeadDim, MAX_GROUPS, MAX_HEAD_DIM};
use crate::lanes::{Isa, Lanes, Memory};
use crate::portable::Portable;
use crate::rotation::{self, Signs};
use crate::scale::{Effort, ScaleMode, Stored, to_f16};
use crate::trellis::{self, Search, Trellis};
use crate::{ggml, int8, scalar};
use half::f16;

/// How an encoder works, beside the codec and the head dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
pub struct AnyCodec {
    id: CodecId,
    shape: HeadDim,
    block_bytes: usize,
    options: Options,
    signs: Signs,
    book: &'static Codebook,
}

/// Stands where a codec has no codebook; never read.
static NO_BOOK: Codebook = Codebook::solve_scalar(16, 1);

/// Runs `$body` with the constant `$bits` set to the run-time code width.
macro_rules! with_bits {
    ($value:expr, $bits:ident => $body:expr) => {
        match $value {
            1 => {
                const $bits: usize = 1;
                $body
            }
            2 => {
                const $bits: usize = 2;
                $body
            }
            3 => {
                const $bits: usize = 3;
                $body
            }
            4 => {
                const $bits: usize = 4;
                $body
            }
            _ => {
                const $bits: usize = 5;
                $body
            }
        }
    };
}

/// Groups of head dim 128, the one shape that is worth code of its own.
const COMMON_GROUPS: usize = 4;
/// Groups that hold every head dim up to 256.
const SMALL_GROUPS: usize = 8;

/// Runs `$body` with the constant `$groups` set to [`COMMON_GROUPS`], which says the shape, or to
/// [`SMALL_GROUPS`] or [`MAX_GROUPS`], which bound a shape that is a run-time value. Each arm is a
/// copy of the body, so there are few.
macro_rules! with_groups {
    ($shape:expr, $groups:ident => $body:expr) => {
        match $shape.dim() {
            128 => {
                const $groups: usize = COMMON_GROUPS;
                $body
            }
            dim if dim <= SMALL_GROUPS * GROUP => {
                const $groups: usize = SMALL_GROUPS;
                $body
            }
            _ => {
                const $groups: usize = MAX_GROUPS;
                $body
            }
        }
    };
}

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
        self.encode_with(Portable, x, block)
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
        self.decode_with(Portable, block, out)
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

    /// [`AnyCodec::encode`] on the instruction set of `isa`; same bytes.
    ///
    /// # Errors
    /// As [`AnyCodec::encode`].
    #[inline(always)]
    pub fn encode_with<I: Memory>(&self, isa: I, x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
        if x.len() != self.dim() || block.len() != self.block_bytes {
            return Err(EncodeError::WrongLength);
        }
        match self.id.family() {
            Family::Half => encode_half(isa, x, block),
            Family::Ggml => self.encode_ggml(isa, x, block),
            Family::Trellis => self.encode_trellis_on_stack(x, block),
            Family::Int8 => with_groups!(self.shape, G => self.encode_int8::<I, G>(isa, x, block)),
            Family::Scalar | Family::Nested => with_bits!(self.id.bits(), B =>
                with_groups!(self.shape, G => self.encode_scalar::<I, B, G>(isa, x, block))),
        }
    }

    /// [`AnyCodec::decode`] on the instruction set of `isa`; same bits.
    ///
    /// # Errors
    /// As [`AnyCodec::decode`].
    #[inline(always)]
    pub fn decode_with<I: Memory>(&self, isa: I, block: &[u8], out: &mut [f32]) -> Result<(), DecodeError> {
        if out.len() != self.dim() || block.len() != self.block_bytes {
            return Err(DecodeError::WrongLength);
        }
        if !self.has_finite_scales(block) {
            return Err(DecodeError::NonFiniteScale);
        }
        if matches!(self.id.family(), Family::Half | Family::Ggml) {
            self.each(block, |i, v| {
                if let Some(slot) = out.get_mut(i) {
                    *slot = v;
                }
            });
            self.unrotate_with(isa, out);
        } else {
            with_groups!(self.shape, G => self.decode_levels::<I, G>(isa, block, out, true));
        }
        Ok(())
    }

    /// [`AnyCodec::decode_rotated`] on the instruction set of `isa`; same bits.
    #[inline(always)]
    pub fn decode_rotated_with<I: Memory>(&self, isa: I, block: &[u8], out: &mut [f32]) {
        if matches!(self.id.family(), Family::Half | Family::Ggml) {
            self.each(block, |i, v| {
                if let Some(slot) = out.get_mut(i) {
                    *slot = v;
                }
            });
        } else {
            with_groups!(self.shape, G => self.decode_levels::<I, G>(isa, block, out, false));
        }
    }

    /// [`AnyCodec::rotate_query`] on the instruction set of `isa`; same bits.
    #[inline(always)]
    pub fn rotate_query_with<I: Memory>(&self, isa: I, query: &[f32], out: &mut [f32]) {
        if self.id.is_rotated() {
            with_groups!(self.shape, G => self.rotate::<I, G>(isa, query, out));
        } else {
            for (to, &from) in out.iter_mut().zip(query) {
                *to = from;
            }
        }
    }

    /// [`AnyCodec::unrotate`] on the instruction set of `isa`; same bits.
    #[inline(always)]
    pub fn unrotate_with<I: Memory>(&self, isa: I, acc: &mut [f32]) {
        if self.id.is_rotated() {
            with_groups!(self.shape, G => self.unrotate_registers::<I, G>(isa, acc));
        }
    }

    /// [`AnyCodec::scores`] on the instruction set of `isa`; same bits.
    #[inline(always)]
    pub fn scores_with<I: Memory>(&self, isa: I, rotated_query: &[f32], blocks: &[u8], out: &mut [f32]) {
        if matches!(self.id.family(), Family::Half | Family::Ggml) {
            for (score, block) in out.iter_mut().zip(blocks.chunks_exact(self.block_bytes)) {
                let mut lanes = [0.0; GROUP];
                self.each(block, |i, v| lanes[i % GROUP] += rotated_query.get(i).map_or(0.0, |q| q * v));
                *score = Portable.load(&lanes).sum();
            }
        } else {
            with_groups!(self.shape, G => self.scores_levels::<I, G>(isa, rotated_query, blocks, out));
        }
    }

    /// [`AnyCodec::accumulate`] on the instruction set of `isa`; same bits.
    #[inline(always)]
    pub fn accumulate_with<I: Memory>(&self, isa: I, weights: &[f32], blocks: &[u8], acc: &mut [f32]) {
        if matches!(self.id.family(), Family::Half | Family::Ggml) {
            for (&weight, block) in weights.iter().zip(blocks.chunks_exact(self.block_bytes)) {
                self.each(block, |i, v| {
                    if let Some(sum) = acc.get_mut(i) {
                        *sum += weight * v;
                    }
                });
            }
        } else {
            with_groups!(self.shape, G => self.accumulate_levels::<I, G>(isa, weights, blocks, acc));
        }
    }

    /// The shape, as a constant where `G` says what it is.
    #[inline(always)]
    fn shape<const G: usize>(&self) -> HeadDim {
        match const { if G == COMMON_GROUPS { HeadDim::new(G * GROUP) } else { None } } {
            Some(shape) => shape,
            None => self.shape,
        }
    }

    /// Calls `f(i, value)` for the coordinates of a block without group structure.
    #[inline(always)]
    fn each(&self, block: &[u8], mut f: impl FnMut(usize, f32)) {
        match (self.id.family(), self.id.bits()) {
            (Family::Half, _) => {
                for (i, bytes) in block.as_chunks::<2>().0.iter().enumerate() {
                    f(i, f16::from_le_bytes(*bytes).to_f32());
                }
            }
            (_, 8) => ggml::each_q8_0(block, f),
            _ => ggml::each_q4_0(block, f),
        }
    }

    /// What the levels of a block are multiplied by: trellis levels are whole numbers.
    #[inline(always)]
    fn factor<I: Isa>(&self, isa: I, scale: f16) -> f32 {
        match self.trellis() {
            Some(trellis) => isa.widen_half(scale) * trellis.code.unit(),
            None => isa.widen_half(scale),
        }
    }

    fn has_finite_scales(&self, block: &[u8]) -> bool {
        let stride = match (self.id.family(), self.id.bits()) {
            (Family::Half, _) => 2,
            (Family::Ggml, 8) => ggml::Q8_0_BYTES,
            (Family::Ggml, _) => ggml::Q4_0_BYTES,
            (Family::Int8 | Family::Scalar | Family::Nested | Family::Trellis, _) => self.block_bytes,
        };
        block.chunks(stride).all(|run| block_io::split(run).0.is_finite())
    }

    #[inline(always)]
    pub(crate) fn encode_scalar<I: Memory, const BITS: usize, const G: usize>(
        &self,
        isa: I,
        x: &[f32],
        block: &mut [u8],
    ) -> Result<(), EncodeError> {
        let shape = self.shape::<G>();
        let mut registers = [isa.splat(0.0); G];
        let y = &mut registers[..shape.groups()];
        rotation::load(isa, x, y);
        let norm_squared = scalar::norm_squared(isa, y);
        check_finite(x, norm_squared)?;
        if norm_squared == 0.0 {
            block.fill(0);
            return Ok(());
        }
        rotation::forward(isa, shape, &self.signs, y);
        let mut codes = [isa.round_i8(isa.splat(0.0)); G];
        let mut spare = codes;
        let codes = &mut codes[..shape.groups()];
        let Options { scale_mode, effort, .. } = self.options;
        let scale = scalar::quantise::<I, BITS>(
            isa,
            self.book,
            scale_mode,
            effort,
            shape.dim(),
            norm_squared,
            y,
            shape.is_ragged(),
            codes,
            &mut spare[..shape.groups()],
        );
        write_block::<I, BITS>(isa, scale, codes, block)
    }

    #[inline(always)]
    fn encode_int8<I: Memory, const G: usize>(
        &self,
        isa: I,
        x: &[f32],
        block: &mut [u8],
    ) -> Result<(), EncodeError> {
        let shape = self.shape::<G>();
        let mut registers = [isa.splat(0.0); G];
        let y = &mut registers[..shape.groups()];
        rotation::load(isa, x, y);
        check_finite(x, scalar::norm_squared(isa, y))?;
        rotation::forward(isa, shape, &self.signs, y);
        let mut codes = [isa.round_i8(isa.splat(0.0)); G];
        let codes = &mut codes[..shape.groups()];
        let scale = int8::scale(isa, y);
        if let Stored::Scale(stored) = to_f16(isa, scale) {
            int8::quantise(isa, isa.widen_half(stored), y, codes);
        }
        write_block::<I, 8>(isa, scale, codes, block)
    }

    /// Encodes vectors of `dim` values back to back with the search of a machine; the same bytes
    /// on all of them. `workspace` holds [`Search::PROBLEMS`] times
    /// [`AnyCodec::workspace_bytes`]. With one candidate scale ([`Effort::Fast`]) a search that
    /// solves several problems at once needs as many vectors to be busy.
    ///
    /// # Errors
    /// As [`AnyCodec::encode`], a short workspace, or a codec without a trellis (`WrongLength`).
    /// Up to four vectors are encoded together; where one fails, none of the four is written, nor
    /// any after them.
    #[inline(always)]
    pub fn encode_trellis_with<I: Memory, S: Search>(
        &self,
        isa: I,
        search: S,
        workspace: &mut [u8],
        xs: &[f32],
        blocks: &mut [u8],
    ) -> Result<(), EncodeError> {
        let Some(trellis) = self.trellis() else { return Err(EncodeError::WrongLength) };
        let vectors = xs.len() / self.dim();
        if xs.len() != vectors * self.dim() || blocks.len() != vectors * self.block_bytes {
            return Err(EncodeError::WrongLength);
        }
        if workspace.len() < S::PROBLEMS * self.workspace_bytes() {
            return Err(EncodeError::WorkspaceTooSmall);
        }
        let Options { scale_mode, effort, .. } = self.options;
        let job = trellis::Job { trellis, shape: self.shape, signs: &self.signs, scale_mode, effort };
        // The search takes most of the time: few shapes are worth code of their own.
        match self.dim() {
            128 => trellis::encode_all::<I, S, 4>(&job, isa, search, workspace, xs, blocks),
            ..=256 => trellis::encode_all::<I, S, 8>(&job, isa, search, workspace, xs, blocks),
            _ => trellis::encode_all::<I, S, MAX_GROUPS>(&job, isa, search, workspace, xs, blocks),
        }
    }

    /// Out of line and portable, so that only callers of a trellis codec pay for its stack.
    #[inline(never)]
    fn encode_trellis_on_stack(&self, x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
        const SMALL: usize = 128 * 64;
        if self.workspace_bytes() <= SMALL {
            self.encode_in(&mut [0; SMALL], x, block)
        } else {
            self.encode_in(&mut [0; MAX_HEAD_DIM * 64], x, block)
        }
    }

    fn encode_ggml<I: Memory>(&self, isa: I, x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
        if !x.iter().all(|v| v.is_finite()) {
            return Err(EncodeError::NonFinite);
        }
        let mut rotated = [0.0; MAX_HEAD_DIM];
        let y = &mut rotated[..self.dim()];
        y.copy_from_slice(x);
        if self.id.is_rotated() {
            with_groups!(self.shape, G => {
                let mut registers = [isa.splat(0.0); G];
                let shape = self.shape::<G>();
                let registers = &mut registers[..shape.groups()];
                rotation::load(isa, x, registers);
                rotation::forward(isa, shape, &self.signs, registers);
                rotation::store(isa, registers, y);
            });
        }
        if self.id.bits() == 8 { ggml::encode_q8_0(y, block) } else { ggml::encode_q4_0(y, block) }
    }

    /// Levels of the codes of a block, whatever the codec: `int8` or a codebook look-up.
    #[inline(always)]
    fn levels<I: Memory, const G: usize>(&self, isa: I, codes: &[u8], out: &mut [I::V]) {
        let shape = self.shape::<G>();
        let mut registers = [isa.round_i8(isa.splat(0.0)); G];
        let registers = &mut registers[..shape.groups()];
        if self.id.family() == Family::Int8 {
            block_io::read::<I, 8>(isa, codes, registers);
            int8::levels(isa, registers, out);
        } else if let Some(trellis) = self.trellis() {
            let mut bytes = [[0; GROUP]; G];
            let bytes = &mut bytes.as_flattened_mut()[..shape.dim()];
            trellis::levels(&trellis.code, codes, bytes);
            block_io::read::<I, 8>(isa, bytes, registers);
            for (level, &code) in out.iter_mut().zip(registers.iter()) {
                *level = isa.widen_i8(code);
            }
        } else {
            with_bits!(self.id.bits(), B => {
                block_io::read::<I, B>(isa, codes, registers);
                scalar::levels::<I, B>(isa, self.book, registers, shape.is_ragged(), out);
            });
        }
    }

    #[inline(always)]
    fn decode_levels<I: Memory, const G: usize>(
        &self,
        isa: I,
        block: &[u8],
        out: &mut [f32],
        unrotate: bool,
    ) {
        let shape = self.shape::<G>();
        let mut registers = [isa.splat(0.0); G];
        let y = &mut registers[..shape.groups()];
        let (scale, codes) = block_io::split(block);
        self.levels::<I, G>(isa, codes, y);
        let mut factor = self.factor(isa, scale);
        if unrotate {
            rotation::inverse(isa, shape, &self.signs, y);
            factor *= 1.0 / shape.dim() as f32;
        }
        for v in y.iter_mut() {
            *v = *v * isa.splat(factor);
        }
        rotation::store(isa, y, out);
    }

    #[inline(always)]
    fn rotate<I: Memory, const G: usize>(&self, isa: I, query: &[f32], out: &mut [f32]) {
        let shape = self.shape::<G>();
        let mut registers = [isa.splat(0.0); G];
        let y = &mut registers[..shape.groups()];
        rotation::load(isa, query, y);
        rotation::forward(isa, shape, &self.signs, y);
        // Levels are in sigma units and y is unnormalised, hence 1 / dim.
        for v in y.iter_mut() {
            *v = *v * isa.splat(1.0 / shape.dim() as f32);
        }
        rotation::store(isa, y, out);
    }

    #[inline(always)]
    fn unrotate_registers<I: Memory, const G: usize>(&self, isa: I, acc: &mut [f32]) {
        let shape = self.shape::<G>();
        let mut registers = [isa.splat(0.0); G];
        let y = &mut registers[..shape.groups()];
        rotation::load(isa, acc, y);
        rotation::inverse(isa, shape, &self.signs, y);
        for v in y.iter_mut() {
            *v = *v * isa.splat(1.0 / shape.dim() as f32);
        }
        rotation::store(isa, y, acc);
    }

    #[inline(always)]
    fn scores_levels<I: Memory, const G: usize>(
        &self,
        isa: I,
        query: &[f32],
        blocks: &[u8],
        out: &mut [f32],
    ) {
        let groups = self.shape::<G>().groups();
        let (mut query_registers, mut level_registers) = ([isa.splat(0.0); G], [isa.splat(0.0); G]);
        let (q, levels) = (&mut query_registers[..groups], &mut level_registers[..groups]);
        rotation::load(isa, query, q);
        for (score, block) in out.iter_mut().zip(blocks.chunks_exact(self.block_bytes)) {
            let (scale, codes) = block_io::split(block);
            self.levels::<I, G>(isa, codes, levels);
            let dot = crate::scale::canonical_sum(isa, q.iter().zip(levels.iter()).map(|(&a, &b)| a * b));
            *score = dot * self.factor(isa, scale);
        }
    }

    #[inline(always)]
    fn accumulate_levels<I: Memory, const G: usize>(
        &self,
        isa: I,
        weights: &[f32],
        blocks: &[u8],
        acc: &mut [f32],
    ) {
        let groups = self.shape::<G>().groups();
        let (mut sum_registers, mut level_registers) = ([isa.splat(0.0); G], [isa.splat(0.0); G]);
        let (sums, levels) = (&mut sum_registers[..groups], &mut level_registers[..groups]);
        rotation::load(isa, acc, sums);
        for (&weight, block) in weights.iter().zip(blocks.chunks_exact(self.block_bytes)) {
            let (scale, codes) = block_io::split(block);
            self.levels::<I, G>(isa, codes, levels);
            let weight = isa.splat(weight * self.factor(isa, scale));
            for (sum, &level) in sums.iter_mut().zip(levels.iter()) {
                *sum = *sum + level * weight;
            }
        }
        rotation::store(isa, sums, acc);
    }
}

#[inline(always)]
fn encode_half<I: Memory>(isa: I, x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
    let largest = x.iter().fold(0.0, |m: f32, v| if v.is_finite() { m.max(v.abs()) } else { f32::INFINITY });
    check_finite(x, largest)?;
    if !f16::from_f32(largest).is_finite() {
        return Err(EncodeError::OutOfRange);
    }
    for (bytes, x) in block.chunks_mut(2 * GROUP).zip(x.chunks(GROUP)) {
        let mut group = [isa.splat(0.0)];
        rotation::load(isa, x, &mut group);
        let [group] = group;
        for (bytes, half) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(isa.to_halves(group)) {
            *bytes = half.to_le_bytes();
        }
    }
    Ok(())
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

/// Writes the block, or the zero block where the scale rounds to 0.
#[inline(always)]
fn write_block<I: Memory, const BITS: usize>(
    isa: I,
    scale: f32,
    codes: &[I::C],
    block: &mut [u8],
) -> Result<(), EncodeError> {
    match to_f16(isa, scale) {
        Stored::Scale(stored) => block_io::write::<I, BITS>(isa, stored, codes, block),
        Stored::Zero => block.fill(0),
        Stored::OutOfRange => return Err(EncodeError::OutOfRange),
    }
    Ok(())
}
