//! The operations of [`AnyCodec`] over vectors back to back, on any instruction set.
//!
//! What works on registers is compiled apart ([`Memory::apart`]), and which piece of code runs is
//! decided once a batch: head dim 128 has a piece for every form of codes, in which everything
//! stays in registers; other head dims share one, which calls the rotation and the form.

use crate::block_io;
use crate::code::Family;
use crate::codec::any::{AnyCodec, check_finite};
use crate::error::{DecodeError, EncodeError};
use crate::forms::{Any, Form, Int8, Quantised, Scalar, Tailbiting, encode_half, with_form, with_quantised};
use crate::ggml;
use crate::head_dim::{GROUP, HeadDim, MAX_GROUPS, MAX_HEAD_DIM};
use crate::lanes::{Isa, Lanes, Memory};
use crate::portable::Portable;
use crate::rotation::{self, Signs};
use crate::scale::canonical_sum;
use crate::trellis::{self, Search};
use half::f16;

/// Groups of head dim 128.
const COMMON_GROUPS: usize = 4;
/// Groups that hold every head dim up to 256.
const SMALL_GROUPS: usize = 8;

/// Runs `$body` with the constant `$groups` set to [`COMMON_GROUPS`], which says the shape, or to
/// [`SMALL_GROUPS`] or [`MAX_GROUPS`], which bound it.
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

/// Runs `$body` with `$form` and `$groups` as [`with_form`] (or `$with`) and [`with_groups`] set
/// them; the form is only told for head dim 128.
macro_rules! with_shape {
    ($with:ident, $codec:expr, $form:ident, $groups:ident => $body:expr) => {
        match $codec.dim() {
            128 => {
                const $groups: usize = COMMON_GROUPS;
                $with!($codec.id(), $form => $body)
            }
            dim if dim <= SMALL_GROUPS * GROUP => {
                const $groups: usize = SMALL_GROUPS;
                type $form = Any;
                $body
            }
            _ => {
                const $groups: usize = MAX_GROUPS;
                type $form = Any;
                $body
            }
        }
    };
}

impl AnyCodec {
    /// Encodes vectors of `dim` values back to back into blocks back to back, on the instruction
    /// set of `isa`; the bytes of [`AnyCodec::encode`].
    ///
    /// # Errors
    /// The position of the first vector that cannot be encoded, and why; those before it are
    /// done. Slices of different numbers of vectors and blocks are `WrongLength` at 0.
    pub fn encode_with<I: Memory>(
        &self,
        isa: I,
        xs: &[f32],
        blocks: &mut [u8],
    ) -> Result<(), (usize, EncodeError)> {
        if !self.fit(xs.len(), blocks.len()) {
            return Err((0, EncodeError::WrongLength));
        }
        let vectors = || xs.chunks_exact(self.dim());
        match self.id().family() {
            Family::Half => isa.apart(
                #[inline(always)]
                |isa| {
                    for (i, (x, block)) in
                        vectors().zip(blocks.chunks_exact_mut(self.block_bytes())).enumerate()
                    {
                        encode_half(isa, x, block).map_err(|error| (i, error))?;
                    }
                    Ok(())
                },
            ),
            Family::Ggml => {
                for (i, (x, block)) in vectors().zip(blocks.chunks_exact_mut(self.block_bytes())).enumerate()
                {
                    self.encode_ggml(isa, x, block).map_err(|error| (i, error))?;
                }
                Ok(())
            }
            Family::Trellis => {
                for (i, (x, block)) in vectors().zip(blocks.chunks_exact_mut(self.block_bytes())).enumerate()
                {
                    self.encode_trellis_on_stack(x, block).map_err(|error| (i, error))?;
                }
                Ok(())
            }
            Family::Int8 | Family::Scalar | Family::Nested => {
                with_shape!(with_quantised, self, F, G => isa.apart(
                    #[inline(always)]
                    |isa| self.encode_rotated::<I, F, G>(isa, xs, blocks),
                ))
            }
        }
    }

    /// Decodes blocks back to back into vectors of `dim` values back to back; the bits of
    /// [`AnyCodec::decode`].
    ///
    /// # Errors
    /// As [`AnyCodec::encode_with`].
    pub fn decode_with<I: Memory>(
        &self,
        isa: I,
        blocks: &[u8],
        out: &mut [f32],
    ) -> Result<(), (usize, DecodeError)> {
        if !self.fit(out.len(), blocks.len()) {
            return Err((0, DecodeError::WrongLength));
        }
        let bad = blocks.chunks_exact(self.block_bytes()).position(|block| !self.has_finite_scales(block));
        let good = bad.unwrap_or(out.len() / self.dim());
        let (blocks, out) = (&blocks[..good * self.block_bytes()], &mut out[..good * self.dim()]);
        if self.has_groups() {
            self.decode_forms(isa, blocks, out, true);
        } else {
            self.decode_rotated_with(isa, blocks, out);
            self.unrotate_with(isa, out);
        }
        bad.map_or(Ok(()), |bad| Err((bad, DecodeError::NonFiniteScale)))
    }

    /// [`AnyCodec::decode_rotated`] for blocks back to back; same bits.
    pub fn decode_rotated_with<I: Memory>(&self, isa: I, blocks: &[u8], out: &mut [f32]) {
        if self.has_groups() {
            return self.decode_forms(isa, blocks, out, false);
        }
        isa.apart(
            #[inline(always)]
            |_| {
                let vectors = out.chunks_exact_mut(self.dim());
                for (block, out) in blocks.chunks_exact(self.block_bytes()).zip(vectors) {
                    self.each(
                        block,
                        #[inline(always)]
                        |i, v| {
                            if let Some(slot) = out.get_mut(i) {
                                *slot = v;
                            }
                        },
                    );
                }
            },
        );
    }

    fn decode_forms<I: Memory>(&self, isa: I, blocks: &[u8], out: &mut [f32], unrotate: bool) {
        with_shape!(with_form, self, F, G => isa.apart(
            #[inline(always)]
            |isa| self.decode_levels::<I, F, G>(isa, blocks, out, unrotate),
        ));
    }

    /// [`AnyCodec::rotate_query`] for queries back to back; same bits.
    pub fn rotate_query_with<I: Memory>(&self, isa: I, queries: &[f32], out: &mut [f32]) {
        if self.id().is_rotated() {
            with_groups!(self.shape, G => isa.apart(
                #[inline(always)]
                |isa| {
                    let vectors = queries.chunks_exact(self.shape::<G>().dim());
                    for (query, out) in vectors.zip(out.chunks_exact_mut(self.shape::<G>().dim())) {
                        self.rotate::<I, G>(isa, query, out, 1.0 / self.shape::<G>().dim() as f32);
                    }
                },
            ));
        } else {
            for (to, &from) in out.iter_mut().zip(queries) {
                *to = from;
            }
        }
    }

    /// [`AnyCodec::unrotate`] for sums back to back; same bits.
    pub fn unrotate_with<I: Memory>(&self, isa: I, accs: &mut [f32]) {
        if self.id().is_rotated() {
            with_groups!(self.shape, G => isa.apart(
                #[inline(always)]
                |isa| {
                    for acc in accs.chunks_exact_mut(self.shape::<G>().dim()) {
                        self.unrotate_registers::<I, G>(isa, acc);
                    }
                },
            ));
        }
    }

    /// [`AnyCodec::scores`] on the instruction set of `isa`; same bits.
    pub fn scores_with<I: Memory>(&self, isa: I, rotated_query: &[f32], blocks: &[u8], out: &mut [f32]) {
        if self.has_groups() {
            with_shape!(with_form, self, F, G => isa.apart(
                #[inline(always)]
                |isa| self.scores_levels::<I, F, G>(isa, rotated_query, blocks, out),
            ));
            return;
        }
        isa.apart(
            #[inline(always)]
            |_| {
                for (score, block) in out.iter_mut().zip(blocks.chunks_exact(self.block_bytes())) {
                    let mut lanes = [0.0; GROUP];
                    self.each(
                        block,
                        #[inline(always)]
                        |i, v| lanes[i % GROUP] += rotated_query.get(i).map_or(0.0, |q| q * v),
                    );
                    *score = Portable.load(&lanes).sum();
                }
            },
        );
    }

    /// [`AnyCodec::accumulate`] on the instruction set of `isa`; same bits.
    pub fn accumulate_with<I: Memory>(&self, isa: I, weights: &[f32], blocks: &[u8], acc: &mut [f32]) {
        if self.has_groups() {
            with_shape!(with_form, self, F, G => isa.apart(
                #[inline(always)]
                |isa| self.accumulate_levels::<I, F, G>(isa, weights, blocks, acc),
            ));
            return;
        }
        isa.apart(
            #[inline(always)]
            |_| {
                for (&weight, block) in weights.iter().zip(blocks.chunks_exact(self.block_bytes())) {
                    self.each(
                        block,
                        #[inline(always)]
                        |i, v| {
                            if let Some(sum) = acc.get_mut(i) {
                                *sum += weight * v;
                            }
                        },
                    );
                }
            },
        );
    }

    /// Encodes vectors of `dim` values back to back with the search of a machine; the same bytes
    /// on all of them. `workspace` holds [`Search::PROBLEMS`] times
    /// [`AnyCodec::workspace_bytes`]. With one candidate scale ([`crate::Effort::Fast`]) a search
    /// that solves several problems at once needs as many vectors to be busy.
    ///
    /// # Errors
    /// As [`AnyCodec::encode`], a short workspace, or a codec without a trellis (`WrongLength`).
    /// Up to four vectors are encoded together; where one fails, none of the four is written, nor
    /// any after them.
    pub fn encode_trellis_with<I: Memory, S: Search>(
        &self,
        isa: I,
        search: S,
        workspace: &mut [u8],
        xs: &[f32],
        blocks: &mut [u8],
    ) -> Result<(), EncodeError> {
        let Some(trellis) = self.trellis() else { return Err(EncodeError::WrongLength) };
        if !self.fit(xs.len(), blocks.len()) {
            return Err(EncodeError::WrongLength);
        }
        if workspace.len() < S::PROBLEMS * self.workspace_bytes() {
            return Err(EncodeError::WorkspaceTooSmall);
        }
        let (scale_mode, effort) = (self.options().scale_mode, self.options().effort);
        let job = trellis::Job { trellis, shape: self.shape, signs: self.signs(), scale_mode, effort };
        // The search takes most of the time, so 128 is not worth code of its own.
        if self.dim() <= SMALL_GROUPS * GROUP {
            isa.apart(
                #[inline(always)]
                |isa| trellis::encode_all::<I, S, SMALL_GROUPS>(&job, isa, search, workspace, xs, blocks),
            )
        } else {
            isa.apart(
                #[inline(always)]
                |isa| trellis::encode_all::<I, S, MAX_GROUPS>(&job, isa, search, workspace, xs, blocks),
            )
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
        if self.id().is_rotated() {
            with_groups!(self.shape, G => isa.apart(
                #[inline(always)]
                |isa| self.rotate::<I, G>(isa, x, y, 1.0),
            ));
        }
        if self.id().bits() == 8 { ggml::encode_q8_0(y, block) } else { ggml::encode_q4_0(y, block) }
    }

    /// Whether blocks are one scale and codes in groups; otherwise [`AnyCodec::each`] reads them.
    fn has_groups(&self) -> bool {
        !matches!(self.id().family(), Family::Half | Family::Ggml)
    }

    /// Whether `values` and `bytes` are the same whole number of vectors and blocks.
    pub fn fit(&self, values: usize, bytes: usize) -> bool {
        values.is_multiple_of(self.dim())
            && bytes.is_multiple_of(self.block_bytes())
            && values / self.dim() == bytes / self.block_bytes()
    }

    /// The shape, as a constant where `G` says what it is.
    #[inline(always)]
    fn shape<const G: usize>(&self) -> HeadDim {
        match const { if G == COMMON_GROUPS { HeadDim::new(G * GROUP) } else { None } } {
            Some(shape) => shape,
            None => self.shape,
        }
    }

    /// Bytes of a block, as a constant where `F` and `G` say it.
    #[inline(always)]
    fn bytes<F: Form, const G: usize>(&self) -> usize {
        match F::GROUP_BYTES {
            Some(bytes) if G == COMMON_GROUPS => block_io::SCALE_BYTES + G * bytes,
            _ => self.block_bytes(),
        }
    }

    /// Calls `f(i, value)` for the coordinates of a block without group structure.
    #[inline(always)]
    fn each(&self, block: &[u8], mut f: impl FnMut(usize, f32)) {
        match (self.id().family(), self.id().bits()) {
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
        let stride = match (self.id().family(), self.id().bits()) {
            (Family::Half, _) => 2,
            (Family::Ggml, 8) => ggml::Q8_0_BYTES,
            (Family::Ggml, _) => ggml::Q4_0_BYTES,
            (Family::Int8 | Family::Scalar | Family::Nested | Family::Trellis, _) => {
                return block_io::split(block).0.is_finite();
            }
        };
        block.chunks(stride).all(|run| block_io::split(run).0.is_finite())
    }

    #[inline(always)]
    pub(crate) fn encode_rotated<I: Memory, F: Quantised, const G: usize>(
        &self,
        isa: I,
        xs: &[f32],
        blocks: &mut [u8],
    ) -> Result<(), (usize, EncodeError)> {
        let shape = self.shape::<G>();
        // A copy that nothing else can write to, so that masks are made before the loop.
        let signs = *self.signs();
        let mut registers = [isa.splat(0.0); G];
        let y = &mut registers[..shape.groups()];
        let mut codes = [isa.round_i8(isa.splat(0.0)); G];
        let mut spare = codes;
        let (codes, spare) = (&mut codes[..shape.groups()], &mut spare[..shape.groups()]);
        let vectors = xs.chunks_exact(shape.dim()).zip(blocks.chunks_exact_mut(self.bytes::<F, G>()));
        for (index, (x, block)) in vectors.enumerate() {
            rotation::load(isa, x, y);
            let norm_squared = crate::scalar::norm_squared(isa, y);
            if let Err(error) = check_finite(x, norm_squared) {
                return Err((index, error));
            }
            if norm_squared == 0.0 {
                block.fill(0);
                continue;
            }
            forward::<I, G>(isa, shape, &signs, y);
            if let Err(error) = F::quantise(self, isa, shape, norm_squared, y, [codes, spare], block) {
                return Err((index, error));
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn decode_levels<I: Memory, F: Form, const G: usize>(
        &self,
        isa: I,
        blocks: &[u8],
        out: &mut [f32],
        unrotate: bool,
    ) {
        let shape = self.shape::<G>();
        // A copy that nothing else can write to, so that masks are made before the loop.
        let signs = *self.signs();
        let mut registers = [isa.splat(0.0); G];
        let y = &mut registers[..shape.groups()];
        let vectors = out.chunks_exact_mut(shape.dim());
        for (block, out) in blocks.chunks_exact(self.bytes::<F, G>()).zip(vectors) {
            let (scale, codes) = block_io::split(block);
            F::levels(self, isa, shape, codes, y);
            let mut factor = self.factor(isa, scale);
            if unrotate {
                inverse::<I, G>(isa, shape, &signs, y);
                factor *= 1.0 / shape.dim() as f32;
            }
            for v in y.iter_mut() {
                *v = *v * isa.splat(factor);
            }
            rotation::store(isa, y, out);
        }
    }

    /// Rotates and multiplies by `factor`: 1 / dim for a query, as levels are in sigma units and y
    /// is unnormalised.
    #[inline(always)]
    fn rotate<I: Memory, const G: usize>(&self, isa: I, x: &[f32], out: &mut [f32], factor: f32) {
        let shape = self.shape::<G>();
        let mut registers = [isa.splat(0.0); G];
        let y = &mut registers[..shape.groups()];
        rotation::load(isa, x, y);
        forward::<I, G>(isa, shape, self.signs(), y);
        for v in y.iter_mut() {
            *v = *v * isa.splat(factor);
        }
        rotation::store(isa, y, out);
    }

    #[inline(always)]
    fn unrotate_registers<I: Memory, const G: usize>(&self, isa: I, acc: &mut [f32]) {
        let shape = self.shape::<G>();
        let mut registers = [isa.splat(0.0); G];
        let y = &mut registers[..shape.groups()];
        rotation::load(isa, acc, y);
        inverse::<I, G>(isa, shape, self.signs(), y);
        for v in y.iter_mut() {
            *v = *v * isa.splat(1.0 / shape.dim() as f32);
        }
        rotation::store(isa, y, acc);
    }

    #[inline(always)]
    fn scores_levels<I: Memory, F: Form, const G: usize>(
        &self,
        isa: I,
        query: &[f32],
        blocks: &[u8],
        out: &mut [f32],
    ) {
        let shape = self.shape::<G>();
        let (mut query_registers, mut level_registers) = ([isa.splat(0.0); G], [isa.splat(0.0); G]);
        let (q, levels) = (&mut query_registers[..shape.groups()], &mut level_registers[..shape.groups()]);
        rotation::load(isa, query, q);
        for (score, block) in out.iter_mut().zip(blocks.chunks_exact(self.bytes::<F, G>())) {
            let (scale, codes) = block_io::split(block);
            F::levels(self, isa, shape, codes, levels);
            let products = q.iter().zip(levels.iter()).map(
                #[inline(always)]
                |(&a, &b)| a * b,
            );
            *score = canonical_sum(isa, products) * self.factor(isa, scale);
        }
    }

    #[inline(always)]
    fn accumulate_levels<I: Memory, F: Form, const G: usize>(
        &self,
        isa: I,
        weights: &[f32],
        blocks: &[u8],
        acc: &mut [f32],
    ) {
        let shape = self.shape::<G>();
        let (mut sum_registers, mut level_registers) = ([isa.splat(0.0); G], [isa.splat(0.0); G]);
        let (sums, levels) = (&mut sum_registers[..shape.groups()], &mut level_registers[..shape.groups()]);
        rotation::load(isa, acc, sums);
        for (&weight, block) in weights.iter().zip(blocks.chunks_exact(self.bytes::<F, G>())) {
            let (scale, codes) = block_io::split(block);
            F::levels(self, isa, shape, codes, levels);
            let weight = isa.splat(weight * self.factor(isa, scale));
            for (sum, &level) in sums.iter_mut().zip(levels.iter()) {
                *sum = *sum + level * weight;
            }
        }
        rotation::store(isa, sums, acc);
    }
}

/// [`rotation::forward`], in line only where `G` says the shape.
#[inline(always)]
fn forward<I: Memory, const G: usize>(isa: I, shape: HeadDim, signs: &Signs, y: &mut [I::V]) {
    if const { G == COMMON_GROUPS } {
        rotation::forward(isa, shape, signs, y);
    } else {
        rotation::forward_apart(isa, shape, signs, y);
    }
}

/// [`rotation::inverse`], in line only where `G` says the shape.
#[inline(always)]
fn inverse<I: Memory, const G: usize>(isa: I, shape: HeadDim, signs: &Signs, y: &mut [I::V]) {
    if const { G == COMMON_GROUPS } {
        rotation::inverse(isa, shape, signs, y);
    } else {
        rotation::inverse_apart(isa, shape, signs, y);
    }
}
