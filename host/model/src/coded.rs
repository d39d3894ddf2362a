//! Matrix products directly on coded weights.
//!
//! A group of a weight's row behaves like an encoded key, and an activation like a query. Both are rotated in
//! the same way, so the levels of the codes times the rotated activation give their dot product. 128 rows of
//! one column of groups form a page of keys, and the page kernels of the cache compute the product.
//! Activations are rounded to 8 bits, group by group.

use std::cell::Cell;

use rayon::prelude::*;
use tqkv::unstable::algebra::Accumulate;
use tqkv::unstable::threads;
use tqkv_core::AnyCodec;
use tqkv_simd::page::{KeyPages, Line, MAX_HEADS, Queries};
use tqkv_simd::{Level, codec};

use crate::error::ModelError;

/// Rows per page.
const ROWS: usize = 128;
/// Values that a thread encodes at once.
const RUN: usize = 1 << 14;
/// Threads share products with at least this many multiplications. Waking the threads takes some 10 us.
const PARALLEL_FROM: usize = 1 << 19;

thread_local! {
    /// Memory for the rounded activations of a call. It is taken out while it is used, because a thread that
    /// waits for others may begin another product.
    static QUERIES: Cell<Vec<Queries>> = const { Cell::new(Vec::new()) };
}

/// Puts products where they belong.
pub(crate) fn put(y: &mut [f32], products: &[f32], store: Accumulate) {
    match store {
        Accumulate::Replace => y.copy_from_slice(products),
        Accumulate::Add => y.iter_mut().zip(products).for_each(|(y, product)| *y += product),
    }
}

/// Encodes `outputs` rows of `inputs` values to blocks, row by row. `read` receives the index of a row and
/// room for some rows from there on.
///
/// # Errors
/// A description of the faulty row.
pub(crate) fn encode(
    codec: &AnyCodec,
    level: Level,
    [outputs, inputs]: [usize; 2],
    read: &(dyn Fn(usize, &mut [f32]) + Sync),
) -> Result<Vec<u8>, String> {
    let rows = (RUN / inputs).max(1);
    let row_bytes = inputs / codec.dim() * codec.block_bytes();
    let mut blocks = vec![0; outputs * row_bytes];
    blocks.par_chunks_mut(rows * row_bytes).enumerate().try_for_each(|(i, blocks)| {
        let mut values = vec![0.0; blocks.len() / row_bytes * inputs];
        read(i * rows, &mut values);
        codec::encode(level, codec, &values, blocks).map_err(|failed| {
            let at = i * rows + failed.index * codec.dim() / inputs;
            format!("row {at} (counted from 0) cannot be coded: {}", failed.error)
        })
    })?;
    Ok(blocks)
}

/// A coded matrix `[outputs, inputs]`, which is multiplied as codes.
///
/// A row is split into groups of as many values as the codec's head dim, and each group is one block. It
/// holds little more than the blocks: rows are filled up to a multiple of 128.
///
/// ```
/// use tqkv_core::{AnyCodec, CodecId, Options};
/// use tqkv_model::CodedMatrix;
/// use tqkv_simd::Level;
///
/// let codec = AnyCodec::new(CodecId::T4, 64, Options::DEFAULT)?;
/// let weights: Vec<f32> = (0..96 * 192).map(|i| (i as f32).sin()).collect();
/// let read = |row: usize, to: &mut [f32]| to.copy_from_slice(&weights[row * 192..][..to.len()]);
/// let matrix = CodedMatrix::encode(&codec, Level::detect()?, [96, 192], &read)?;
/// let mut y = vec![0.0; 2 * 96];
/// matrix.multiply(&vec![1.0; 2 * 192], &mut y); // two tokens
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CodedMatrix {
    codec: Box<AnyCodec>,
    level: Level,
    keys: KeyPages,
    /// One page per [`ROWS`] rows and group of inputs. Groups of the same rows are neighbours.
    pages: Vec<Line>,
    groups: usize,
    outputs: usize,
}

impl CodedMatrix {
    /// Encodes a matrix on all threads. `read` receives the index of a row and room for some rows from there
    /// on, so that no more of them than a thread encodes at once need be f32.
    ///
    /// # Errors
    /// [`ModelError::Compress`] for a codec without products on codes (`f16`), for rows that are no whole
    /// groups, and for a row that is not finite or does not fit the codec.
    pub fn encode(
        codec: &AnyCodec,
        level: Level,
        shape: [usize; 2],
        read: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) -> Result<Self, ModelError> {
        Self::check(codec, shape)?;
        let blocks = encode(codec, level, shape, read).map_err(ModelError::Compress)?;
        Self::from_blocks(codec, level, &blocks, shape)
    }

    /// Builds a matrix from what [`CodedMatrix::to_blocks`] gave. A block with a scale that no encoder writes
    /// makes products of NaN.
    ///
    /// # Errors
    /// [`ModelError::Compress`] as for [`CodedMatrix::encode`], and for another number of bytes.
    pub fn from_blocks(
        codec: &AnyCodec,
        level: Level,
        blocks: &[u8],
        shape: [usize; 2],
    ) -> Result<Self, ModelError> {
        let expected = Self::check(codec, shape)?;
        if blocks.len() != expected {
            let [outputs, inputs] = shape;
            return Err(ModelError::Compress(format!(
                "{} bytes are not valid for [{outputs}, {inputs}] in {}: expected {expected}",
                blocks.len(),
                codec.id().name()
            )));
        }
        Self::new(codec, level, blocks, shape).ok_or_else(|| no_kernels(codec))
    }

    /// The bytes of a matrix that can be coded.
    fn check(codec: &AnyCodec, [outputs, inputs]: [usize; 2]) -> Result<usize, ModelError> {
        let dim = codec.dim();
        if inputs == 0 || outputs == 0 || !inputs.is_multiple_of(dim) {
            return Err(ModelError::Compress(format!(
                "a matrix [{outputs}, {inputs}] is not valid: expected rows of whole groups of {dim}"
            )));
        }
        KeyPages::new(codec, ROWS).ok_or_else(|| no_kernels(codec))?;
        Ok(outputs * (inputs / dim) * codec.block_bytes())
    }

    /// Builds the matrix from blocks, row by row. `None` if the codec has no page kernels.
    pub(crate) fn new(
        codec: &AnyCodec,
        level: Level,
        blocks: &[u8],
        [outputs, inputs]: [usize; 2],
    ) -> Option<Self> {
        let keys = KeyPages::new(codec, ROWS)?;
        let groups = inputs / codec.dim();
        let (lines, block_bytes) = (keys.lines(), codec.block_bytes());
        let mut pages = vec![Line::ZERO; outputs.div_ceil(ROWS) * groups * lines];
        let by_rows =
            pages.par_chunks_mut(groups * lines).zip(blocks.par_chunks(ROWS * groups * block_bytes));
        by_rows.for_each(|(pages, blocks)| {
            for (slot, row) in blocks.chunks_exact(groups * block_bytes).enumerate() {
                for (page, block) in pages.chunks_exact_mut(lines).zip(row.chunks_exact(block_bytes)) {
                    keys.write(page, slot, block);
                }
            }
        });
        Some(Self { codec: Box::new(*codec), level, keys, pages, groups, outputs })
    }

    /// The codec of the groups.
    pub fn codec(&self) -> &AnyCodec {
        &self.codec
    }

    /// Numbers of outputs and inputs.
    pub fn shape(&self) -> [usize; 2] {
        [self.outputs, self.groups * self.codec.dim()]
    }

    /// Bytes of memory that it holds.
    pub fn held_bytes(&self) -> usize {
        size_of_val(self.pages.as_slice()) + size_of::<Self>()
    }

    /// The blocks, row by row, as they are stored in files.
    pub fn to_blocks(&self) -> Vec<u8> {
        let row_bytes = self.groups * self.codec.block_bytes();
        let mut blocks = vec![0; self.outputs * row_bytes];
        blocks.par_chunks_mut(row_bytes).enumerate().for_each(|(row, blocks)| self.read_row(row, blocks));
        blocks
    }

    /// Copies the blocks of a row.
    fn read_row(&self, row: usize, blocks: &mut [u8]) {
        let lines = self.keys.lines();
        let pages = &self.pages[row / ROWS * self.groups * lines..][..self.groups * lines];
        for (page, block) in pages.chunks_exact(lines).zip(blocks.chunks_exact_mut(self.codec.block_bytes()))
        {
            self.keys.read(page, row % ROWS, block);
        }
    }

    /// Decodes a row. A damaged one becomes NaN.
    ///
    /// # Panics
    /// The row is not there, or `out` does not have one value per input.
    pub fn expand_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.outputs && out.len() == self.shape()[1], "a row of the matrix");
        let mut blocks = vec![0; self.groups * self.codec.block_bytes()];
        self.read_row(row, &mut blocks);
        if codec::decode(self.level, &self.codec, &blocks, out).is_err() {
            out.fill(f32::NAN);
        }
    }

    /// Multiplies `x`, `[n, inputs]`, and writes the result to `y`, `[n, outputs]`.
    ///
    /// Activations are rounded to 8 bits, group by group, which adds an error of about 0.6 % of the result's
    /// length. One that is not finite gives a row of NaN. Tokens do not change each other's bits.
    ///
    /// # Panics
    /// `x` and `y` do not hold the same number of tokens.
    pub fn multiply(&self, x: &[f32], y: &mut [f32]) {
        self.multiply_to(x, y, Accumulate::Replace);
    }

    /// [`CodedMatrix::multiply`], or adds the result.
    pub(crate) fn multiply_to(&self, x: &[f32], y: &mut [f32], store: Accumulate) {
        let [outputs, inputs] = self.shape();
        assert!(
            x.len() / inputs * outputs == y.len() && x.len().is_multiple_of(inputs),
            "as many results as tokens"
        );
        let mut queries = QUERIES.take();
        queries.resize_with(self.groups.max(queries.len()), Queries::default);
        for (x, y) in x.chunks(MAX_HEADS * inputs).zip(y.chunks_mut(MAX_HEADS * outputs)) {
            self.multiply_few(x, y, &mut queries[..self.groups], store);
        }
        QUERIES.set(queries);
    }

    /// [`CodedMatrix::multiply_to`] for at most as many tokens as the kernels take queries.
    fn multiply_few(&self, x: &[f32], y: &mut [f32], queries: &mut [Queries], store: Accumulate) {
        let [outputs, inputs] = self.shape();
        let n = x.len() / inputs;
        self.round(x, n, queries);
        let lines = self.groups * self.keys.lines();
        let rows_of = |at: usize| ROWS.min(outputs - at * ROWS);
        let mut put_page = |at: usize, sums: &[f32]| {
            for (y, sums) in y.chunks_exact_mut(outputs).zip(sums.chunks_exact(rows_of(at))) {
                put(&mut y[at * ROWS..][..rows_of(at)], sums, store);
            }
        };
        if n * outputs * inputs < PARALLEL_FROM || !threads::several() {
            let mut room = vec![0.0; 2 * n * ROWS];
            for (at, pages) in self.pages.chunks(lines).enumerate() {
                put_page(at, self.page_sums(pages, queries, n * rows_of(at), &mut room));
            }
        } else {
            let queries = &*queries;
            let sums = |(at, pages)| {
                let mut room = vec![0.0; 2 * n * ROWS];
                self.page_sums(pages, queries, n * rows_of(at), &mut room).to_vec()
            };
            let all: Vec<Vec<f32>> =
                threads::share(|| self.pages.par_chunks(lines).enumerate().map(sums).collect());
            all.iter().enumerate().for_each(|(at, sums)| put_page(at, sums));
        }
    }

    /// Rotates the inputs of `n` tokens and rounds them to bytes, one entry per group.
    fn round(&self, x: &[f32], n: usize, queries: &mut [Queries]) {
        let (dim, inputs) = (self.codec.dim(), x.len() / n);
        let mut rotated = vec![0.0; x.len()];
        codec::rotate_queries(self.level, &self.codec, x, &mut rotated);
        let mut of_group = vec![0.0; n * dim];
        for (group, queries) in queries.iter_mut().enumerate() {
            for (to, token) in of_group.chunks_exact_mut(dim).zip(rotated.chunks_exact(inputs)) {
                to.copy_from_slice(&token[group * dim..][..dim]);
            }
            self.keys.set_queries(self.level, &of_group, queries);
        }
    }

    /// Sums over all groups for the rows of one page, `[n, rows]`, of which there are `len`.
    fn page_sums<'a>(
        &self,
        pages: &[Line],
        queries: &[Queries],
        len: usize,
        room: &'a mut [f32],
    ) -> &'a [f32] {
        let lines = self.keys.lines();
        let (sums, scores) = room.split_at_mut(room.len() / 2);
        let (sums, scores) = (&mut sums[..len], &mut scores[..len]);
        sums.fill(0.0);
        for (group, queries) in queries.iter().enumerate() {
            let (page, next) = pages[group * lines..].split_at(lines);
            let next = next.get(..lines).unwrap_or_default();
            self.keys.scores(self.level, page, 0, queries, next, scores);
            sums.iter_mut().zip(&*scores).for_each(|(sum, score)| *sum += score);
        }
        sums
    }
}

fn no_kernels(codec: &AnyCodec) -> ModelError {
    ModelError::Compress(format!(
        "codec {} is not valid for products on codes: expected one with levels, such as i8, s4 or t4",
        codec.id().name()
    ))
}
