//! The operations of [`AnyCodec`] over vectors back to back, on any instruction set.
//!
//! Functions that work on registers are compiled separately ([`Memory::apart`]), and one is chosen per batch.
//! Head dim 128 has one function per form of codes, in which everything stays in registers. Other head dims
//! share one function, which calls the rotation and the form.

use super::any::AnyCodec;
use crate::code::Layout;
use crate::code::any_form::Any;
use crate::code::batch::{Batch, fill};
use crate::code::form::{Form, Formed};
use crate::code::scalar::{check_finite, norm_squared, squares};
use crate::code::scale::canonical_sum;
use crate::code::trellis::{self, Search};
use crate::error::{DecodeError, EncodeError};
use crate::head_dim::{GROUP, HeadDim, MAX_GROUPS, MAX_HEAD_DIM};
use crate::machine::Memory;
use crate::rotation::{self, Signs};
use crate::with_code;
use heapless::Vec;

/// Groups of head dim 128.
const COMMON_GROUPS: usize = 4;
/// Vectors that are encoded side by side. While sums, roots and divisions of one wait, the others work.
const TOGETHER: usize = 4;
/// Groups that hold every head dim up to 256.
const SMALL_GROUPS: usize = 8;

/// Runs `$body` with the constant `$groups`: [`COMMON_GROUPS`] for head dim 128, else the upper bound
/// [`SMALL_GROUPS`] or [`MAX_GROUPS`].
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

/// Runs `$body` with `$groups` as [`with_groups`] sets it, and `$form` as the codec's form. Only head dim 128
/// gets its form; all others get `Any`. `$body` calls a function, so codecs of one form share its machine
/// code.
macro_rules! with_form {
    ($codec:expr, $form:ident, $groups:ident => $body:expr) => {
        match $codec.dim() {
            128 => {
                const $groups: usize = COMMON_GROUPS;
                with_code!($codec.id(), C => {
                    type $form = <C as Formed>::Form;
                    $body
                })
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
    /// Encodes vectors of `dim` values back to back into blocks back to back, on the instruction set of
    /// `isa`. The bytes are those of [`AnyCodec::encode`].
    ///
    /// # Errors
    /// The position of the first vector that cannot be encoded, and the reason; the vectors before it are
    /// encoded. If the slices hold different numbers of vectors and blocks, the error is `WrongLength` at
    /// position 0.
    #[doc(hidden)]
    pub fn encode_with<I: Memory>(
        &self,
        isa: I,
        xs: &[f32],
        blocks: &mut [u8],
    ) -> Result<(), (usize, EncodeError)> {
        if !self.fit(xs.len(), blocks.len()) {
            return Err((0, EncodeError::WrongLength));
        }
        if self.trellis().is_some() {
            return self.encode_each_on_stack(xs, blocks);
        }
        with_form!(self, F, G => encode::<I, F, G>(self, isa, xs, blocks))
    }

    /// Decodes blocks back to back into vectors of `dim` values back to back. The bits are those of
    /// [`AnyCodec::decode`].
    ///
    /// # Errors
    /// The position of the first block that cannot be decoded, and the reason; see [`AnyCodec::encode_with`].
    #[doc(hidden)]
    pub fn decode_with<I: Memory>(
        &self,
        isa: I,
        blocks: &[u8],
        out: &mut [f32],
    ) -> Result<(), (usize, DecodeError)> {
        if !self.fit(out.len(), blocks.len()) {
            return Err((0, DecodeError::WrongLength));
        }
        let layout = self.id().layout();
        let bad = blocks.chunks_exact(self.block_bytes()).position(|block| !layout.has_finite_scales(block));
        let good = bad.unwrap_or(out.len() / self.dim());
        let (blocks, out) = (&blocks[..good * self.block_bytes()], &mut out[..good * self.dim()]);
        with_form!(self, F, G => decode::<I, F, G>(self, isa, blocks, out, self.id().is_rotated()));
        bad.map_or(Ok(()), |bad| Err((bad, DecodeError::NonFiniteScale)))
    }

    /// Returns true if every scale of blocks back to back is finite. Then all of them can be decoded.
    #[doc(hidden)]
    pub fn has_finite_scales(&self, blocks: &[u8]) -> bool {
        let layout = self.id().layout();
        blocks.chunks_exact(self.block_bytes()).all(|block| layout.has_finite_scales(block))
    }

    /// [`AnyCodec::decode_rotated`] on the instruction set of `isa`; same bits.
    ///
    /// # Panics
    /// The same conditions as [`AnyCodec::decode_rotated`].
    #[doc(hidden)]
    pub fn decode_rotated_with<I: Memory>(&self, isa: I, blocks: &[u8], out: &mut [f32]) {
        assert!(self.fit(out.len(), blocks.len()), "head_dim values for each block of block_bytes");
        with_form!(self, F, G => decode::<I, F, G>(self, isa, blocks, out, false));
    }

    /// [`AnyCodec::rotate_query`] on the instruction set of `isa`; same bits.
    ///
    /// # Panics
    /// The same conditions as [`AnyCodec::rotate_query`].
    #[doc(hidden)]
    pub fn rotate_query_with<I: Memory>(&self, isa: I, queries: &[f32], out: &mut [f32]) {
        assert!(queries.len() == out.len(), "queries and results of the same length");
        assert!(queries.len().is_multiple_of(self.dim()), "queries of head_dim values");
        if self.id().rotates_quarters() {
            let vectors = queries.chunks_exact(self.dim()).zip(out.chunks_exact_mut(self.dim()));
            for (query, out) in vectors {
                self.rotate_quarters(isa, query, out);
            }
        } else if self.id().is_rotated() {
            with_groups!(self.shape(), G => isa.apart(
                #[inline(always)]
                |isa| {
                    let dim = self.shape_of::<G>().dim();
                    for (query, out) in queries.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
                        self.rotate::<I, G>(isa, query, out, 1.0 / dim as f32);
                    }
                },
            ));
        } else {
            out.copy_from_slice(queries);
        }
    }

    /// [`AnyCodec::unrotate`] on the instruction set of `isa`; same bits.
    ///
    /// # Panics
    /// The same conditions as [`AnyCodec::unrotate`].
    #[doc(hidden)]
    pub fn unrotate_with<I: Memory>(&self, isa: I, accs: &mut [f32]) {
        assert!(accs.len().is_multiple_of(self.dim()), "sums of head_dim values");
        if self.id().rotates_quarters() {
            for acc in accs.chunks_exact_mut(self.dim()) {
                self.unrotate_quarters(isa, acc);
            }
        } else if self.id().is_rotated() {
            with_groups!(self.shape(), G => isa.apart(
                #[inline(always)]
                |isa| {
                    for acc in accs.chunks_exact_mut(self.shape_of::<G>().dim()) {
                        self.unrotate_registers::<I, G>(isa, acc);
                    }
                },
            ));
        }
    }

    /// [`AnyCodec::scores`] on the instruction set of `isa`; same bits.
    ///
    /// # Panics
    /// The same conditions as [`AnyCodec::scores`].
    #[doc(hidden)]
    pub fn scores_with<I: Memory>(&self, isa: I, rotated_query: &[f32], blocks: &[u8], out: &mut [f32]) {
        assert!(rotated_query.len() == self.dim(), "a query of head_dim values");
        assert!(self.fit(out.len() * self.dim(), blocks.len()), "a score for each block of block_bytes");
        // One function serves all forms: the fast path is the page kernels.
        with_groups!(self.shape(), G => scores::<I, Any, G>(self, isa, rotated_query, blocks, out));
    }

    /// [`AnyCodec::accumulate`] on the instruction set of `isa`; same bits.
    ///
    /// # Panics
    /// The same conditions as [`AnyCodec::accumulate`].
    #[doc(hidden)]
    pub fn accumulate_with<I: Memory>(&self, isa: I, weights: &[f32], blocks: &[u8], acc: &mut [f32]) {
        assert!(acc.len() == self.dim(), "a sum of head_dim values");
        assert!(self.fit(weights.len() * self.dim(), blocks.len()), "a weight for each block of block_bytes");
        with_groups!(self.shape(), G => accumulate::<I, G>(self, isa, weights, blocks, acc));
    }

    /// Encodes vectors of `dim` values back to back with the search `S` of a machine; all searches give the
    /// same bytes. `workspace` holds [`Search::PROBLEMS`] times [`AnyCodec::workspace_bytes`]. A search that
    /// solves several problems at once is fully used only with enough of them. With one candidate scale per
    /// vector ([`crate::Effort::Fast`]) that takes as many vectors.
    ///
    /// # Errors
    /// The errors of [`AnyCodec::encode`], a short workspace, or a codec without a trellis (`WrongLength`).
    /// Up to four vectors are encoded together. If one of them fails, none of the four is written, nor any
    /// vector after them.
    #[doc(hidden)]
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
        let (shape, signs, weights) = (self.shape(), self.signs(), self.weights());
        let job = trellis::Job { trellis, shape, signs, scale_mode, effort, weights };
        // The search takes most of the time, so head dim 128 needs no function of its own.
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

    /// [`AnyCodec::encode_with`] for a trellis codec.
    fn encode_each_on_stack(&self, xs: &[f32], blocks: &mut [u8]) -> Result<(), (usize, EncodeError)> {
        let vectors = xs.chunks_exact(self.dim()).zip(blocks.chunks_exact_mut(self.block_bytes()));
        for (i, (x, block)) in vectors.enumerate() {
            self.encode_trellis_on_stack(x, block).map_err(|error| (i, error))?;
        }
        Ok(())
    }

    /// Out of line and portable, so that only callers of a trellis codec use its stack.
    #[inline(never)]
    fn encode_trellis_on_stack(&self, x: &[f32], block: &mut [u8]) -> Result<(), EncodeError> {
        const SMALL: usize = 128 * 64;
        if self.workspace_bytes() <= SMALL {
            self.encode_in(&mut [0; SMALL], x, block)
        } else {
            self.encode_in(&mut [0; MAX_HEAD_DIM * 64], x, block)
        }
    }

    /// Returns true if `values` is a whole number of vectors and `bytes` the same whole number of blocks.
    #[doc(hidden)]
    pub fn fit(&self, values: usize, bytes: usize) -> bool {
        values.is_multiple_of(self.dim())
            && bytes.is_multiple_of(self.block_bytes())
            && values / self.dim() == bytes / self.block_bytes()
    }

    /// The shape, as a constant if `G` determines it.
    #[inline(always)]
    fn shape_of<const G: usize>(&self) -> HeadDim {
        match const { if G == COMMON_GROUPS { HeadDim::new(G * GROUP) } else { None } } {
            Some(shape) => shape,
            None => self.shape(),
        }
    }

    /// Bytes of a block, as a constant if `F` and `G` determine it.
    #[inline(always)]
    fn bytes_of<F: Form, const G: usize>(&self) -> usize {
        let constant = const {
            match F::LAYOUT {
                Some(layout) if G == COMMON_GROUPS => layout.block_bytes(G * GROUP),
                _ => None,
            }
        };
        match constant {
            Some(bytes) => bytes,
            None => self.block_bytes(),
        }
    }

    /// Rotates and multiplies by `factor`. A query takes 1 / dim, because levels are in sigma units and y is
    /// unnormalised.
    #[inline(always)]
    fn rotate<I: Memory, const G: usize>(&self, isa: I, x: &[f32], out: &mut [f32], factor: f32) {
        let shape = self.shape_of::<G>();
        let mut registers = [isa.splat(0.0); G];
        let y = &mut registers[..shape.groups()];
        rotation::load(isa, x, y);
        forward::<I, G>(isa, shape, self.signs(), y);
        for v in y.iter_mut() {
            *v = *v * isa.splat(factor);
        }
        rotation::store(isa, y, out);
    }

    /// [`AnyCodec::rotate`] for codecs that rotate quarters, by 1 / dim.
    fn rotate_quarters<I: Memory>(&self, isa: I, x: &[f32], out: &mut [f32]) {
        let mut registers = [isa.splat(0.0); MAX_GROUPS];
        let y = &mut registers[..self.shape().groups()];
        rotation::load(isa, x, y);
        rotation::quarters_forward_apart(isa, self.shape(), self.signs(), y);
        self.store_per_dim(isa, y, out);
    }

    /// The inverse of [`AnyCodec::rotate_quarters`], but also by 1 / dim.
    fn unrotate_quarters<I: Memory>(&self, isa: I, acc: &mut [f32]) {
        let mut registers = [isa.splat(0.0); MAX_GROUPS];
        let y = &mut registers[..self.shape().groups()];
        rotation::load(isa, acc, y);
        rotation::quarters_inverse_apart(isa, self.shape(), self.signs(), y);
        self.store_per_dim(isa, y, acc);
    }

    /// Multiplies by 1 / dim and stores.
    #[inline(always)]
    fn store_per_dim<I: Memory>(&self, isa: I, y: &mut [I::V], out: &mut [f32]) {
        for v in y.iter_mut() {
            *v = *v * isa.splat(1.0 / self.dim() as f32);
        }
        rotation::store(isa, y, out);
    }

    #[inline(always)]
    fn unrotate_registers<I: Memory, const G: usize>(&self, isa: I, acc: &mut [f32]) {
        let shape = self.shape_of::<G>();
        let mut registers = [isa.splat(0.0); G];
        let y = &mut registers[..shape.groups()];
        rotation::load(isa, acc, y);
        inverse::<I, G>(isa, shape, self.signs(), y);
        for v in y.iter_mut() {
            *v = *v * isa.splat(1.0 / shape.dim() as f32);
        }
        rotation::store(isa, y, acc);
    }
}

/// Encodes vectors back to back; the caller has checked the lengths. Returns the position and the reason of
/// the first failure. `F` is a constant, so only one branch is compiled per form.
pub(super) fn encode<I: Memory, F: Form, const G: usize>(
    codec: &AnyCodec,
    isa: I,
    xs: &[f32],
    blocks: &mut [u8],
) -> Result<(), (usize, EncodeError)> {
    if F::SEARCHES {
        return codec.encode_each_on_stack(xs, blocks);
    }
    if !matches!(F::LAYOUT.unwrap_or(codec.id().layout()), Layout::Dense { .. }) {
        return encode_rotated::<I, F, G>(codec, isa, xs, blocks);
    }
    let (dim, bytes) = (codec.shape_of::<G>().dim(), codec.bytes_of::<F, G>());
    let mut done = 0;
    // Four long vectors and their codes would not fit the first-level cache.
    if I::SIDE_BY_SIDE && G <= SMALL_GROUPS && xs.len() >= TOGETHER * dim {
        done = encode_batches::<I, F, G, TOGETHER>(codec, isa, xs, blocks).0;
    }
    // The rest, or a batch with a vector that cannot be encoded.
    let (xs, blocks) = (&xs[done * dim..], &mut blocks[done * bytes..]);
    if xs.is_empty() {
        return Ok(());
    }
    let (position, result) = encode_batches::<I, F, G, 1>(codec, isa, xs, blocks);
    result.map_err(|error| (done + position, error))
}

/// [`encode`] for forms that have [`Form::quantise`].
fn encode_rotated<I: Memory, F: Form, const G: usize>(
    codec: &AnyCodec,
    isa: I,
    xs: &[f32],
    blocks: &mut [u8],
) -> Result<(), (usize, EncodeError)> {
    isa.apart(
        #[inline(always)]
        |isa| {
            let (shape, rotated) = (codec.shape_of::<G>(), codec.id().is_rotated());
            let coding = codec.coding();
            // A copy that nothing else can write to, so that the compiler makes the masks before the loop.
            let signs = *codec.signs();
            let mut registers = [isa.splat(0.0); G];
            let y = &mut registers[..shape.groups()];
            let mut codes = [isa.round_i8(isa.splat(0.0)); G];
            let codes = &mut codes[..shape.groups()];
            let vectors = xs.chunks_exact(shape.dim()).zip(blocks.chunks_exact_mut(codec.bytes_of::<F, G>()));
            for (index, (x, block)) in vectors.enumerate() {
                rotation::load(isa, x, y);
                if let Err(error) = check_finite(x, norm_squared(isa, y)) {
                    return Err((index, error));
                }
                if rotated {
                    forward::<I, G>(isa, shape, &signs, y);
                }
                if let Err(error) = F::quantise(&coding, isa, shape, y, codes, block) {
                    return Err((index, error));
                }
            }
            Ok(())
        },
    )
}

/// Encodes full batches of `N` vectors with a form that has [`Form::quantise_all`]. Returns the number of
/// vectors in the batches before the first failure, and its reason.
fn encode_batches<I: Memory, F: Form, const G: usize, const N: usize>(
    codec: &AnyCodec,
    isa: I,
    xs: &[f32],
    blocks: &mut [u8],
) -> (usize, Result<(), EncodeError>) {
    isa.apart(
        #[inline(always)]
        |isa| {
            let (shape, rotates) = (codec.shape_of::<G>(), codec.id().is_rotated());
            let coding = codec.coding();
            // A copy that nothing else can write to, so that the compiler makes the masks before the loop.
            let signs = *codec.signs();
            let (dim, bytes) = (shape.dim(), codec.bytes_of::<F, G>());
            let mut batch = Batch::<I, G, N>::new();
            let mut done = 0;
            for (xs, blocks) in xs.chunks_exact(N * dim).zip(blocks.chunks_exact_mut(N * bytes)) {
                // Norms first, so that their roots are ready when they are needed.
                let mut sums = Vec::<_, N>::new();
                for x in xs.chunks_exact(dim) {
                    _ = sums.push(squares(isa, x));
                }
                batch.norms = isa.sum_each(&sums);
                for ((x, &norm), root) in xs.chunks_exact(dim).zip(&batch.norms).zip(&mut batch.roots) {
                    if let Err(error) = check_finite(x, norm) {
                        return (done, Err(error));
                    }
                    *root = isa.sqrt(norm);
                }
                for (k, x) in xs.chunks_exact(dim).enumerate() {
                    fill::<I, _, _, _, _>(
                        &mut batch.vectors,
                        k,
                        isa.splat(0.0),
                        #[inline(always)]
                        |y| {
                            let y = &mut y[..shape.groups()];
                            rotation::load(isa, x, y);
                            if rotates {
                                forward::<I, G>(isa, shape, &signs, y);
                            }
                        },
                    );
                }
                let blocks = blocks.chunks_exact_mut(bytes);
                if let Err(error) = F::quantise_all(&coding, isa, shape, &mut batch, blocks) {
                    return (done, Err(error));
                }
                done += N;
            }
            (done, Ok(()))
        },
    )
}

/// Decodes blocks; if `unrotate`, rotates the result back to the domain of the vectors.
pub(super) fn decode<I: Memory, F: Form, const G: usize>(
    codec: &AnyCodec,
    isa: I,
    blocks: &[u8],
    out: &mut [f32],
    unrotate: bool,
) {
    isa.apart(
        #[inline(always)]
        |isa| {
            let (shape, coding) = (codec.shape_of::<G>(), codec.coding());
            // A copy that nothing else can write to, so that the compiler makes the masks before the loop.
            let signs = *codec.signs();
            let mut registers = [isa.splat(0.0); G];
            let y = &mut registers[..shape.groups()];
            let vectors = out.chunks_exact_mut(shape.dim());
            for (block, out) in blocks.chunks_exact(codec.bytes_of::<F, G>()).zip(vectors) {
                let mut factor = F::levels(&coding, isa, shape, block, y);
                if unrotate {
                    if F::rotates_quarters(&coding) {
                        rotation::quarters_inverse_apart(isa, shape, &signs, y);
                    } else {
                        inverse::<I, G>(isa, shape, &signs, y);
                    }
                    factor *= 1.0 / shape.dim() as f32;
                }
                for v in y.iter_mut() {
                    *v = *v * isa.splat(factor);
                }
                rotation::store(isa, y, out);
            }
        },
    );
}

/// Scores of blocks back to back.
pub(super) fn scores<I: Memory, F: Form, const G: usize>(
    codec: &AnyCodec,
    isa: I,
    query: &[f32],
    blocks: &[u8],
    out: &mut [f32],
) {
    isa.apart(
        #[inline(always)]
        |isa| {
            let (shape, coding) = (codec.shape_of::<G>(), codec.coding());
            let (mut query_registers, mut level_registers) = ([isa.splat(0.0); G], [isa.splat(0.0); G]);
            let q = &mut query_registers[..shape.groups()];
            let levels = &mut level_registers[..shape.groups()];
            rotation::load(isa, query, q);
            for (score, block) in out.iter_mut().zip(blocks.chunks_exact(codec.bytes_of::<F, G>())) {
                let factor = F::levels(&coding, isa, shape, block, levels);
                let products = q.iter().zip(levels.iter()).map(
                    #[inline(always)]
                    |(&a, &b)| a * b,
                );
                *score = canonical_sum(isa, products) * factor;
            }
        },
    );
}

/// Adds weighted blocks to `acc`.
fn accumulate<I: Memory, const G: usize>(
    codec: &AnyCodec,
    isa: I,
    weights: &[f32],
    blocks: &[u8],
    acc: &mut [f32],
) {
    isa.apart(
        #[inline(always)]
        |isa| {
            let (shape, coding) = (codec.shape_of::<G>(), codec.coding());
            let (mut sum_registers, mut level_registers) = ([isa.splat(0.0); G], [isa.splat(0.0); G]);
            let sums = &mut sum_registers[..shape.groups()];
            let levels = &mut level_registers[..shape.groups()];
            rotation::load(isa, acc, sums);
            for (&weight, block) in weights.iter().zip(blocks.chunks_exact(codec.block_bytes())) {
                let weight = weight * Any::levels(&coding, isa, shape, block, levels);
                for (sum, &level) in sums.iter_mut().zip(levels.iter()) {
                    *sum = *sum + level * isa.splat(weight);
                }
            }
            rotation::store(isa, sums, acc);
        },
    );
}

/// [`rotation::forward`], inlined only if `G` determines the shape.
#[inline(always)]
fn forward<I: Memory, const G: usize>(isa: I, shape: HeadDim, signs: &Signs, y: &mut [I::V]) {
    if const { G == COMMON_GROUPS } {
        rotation::forward(isa, shape, signs, y);
    } else {
        rotation::forward_apart(isa, shape, signs, y);
    }
}

/// [`rotation::inverse`], inlined only if `G` determines the shape.
#[inline(always)]
fn inverse<I: Memory, const G: usize>(isa: I, shape: HeadDim, signs: &Signs, y: &mut [I::V]) {
    if const { G == COMMON_GROUPS } {
        rotation::inverse(isa, shape, signs, y);
    } else {
        rotation::inverse_apart(isa, shape, signs, y);
    }
}
