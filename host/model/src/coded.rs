//! Matrix products directly on coded weights.
//!
//! A group of a weight's row behaves like an encoded key, and an activation like a query. Both are rotated in
//! the same way, so the levels of the codes times the rotated activation give their dot product. 128 rows of
//! one column of groups form a page of keys, and the page kernels of the cache compute the product.
//! Activations are rounded to 8 bits, group by group.

use rayon::prelude::*;
use tqkv::unstable::algebra::Store;
use tqkv_core::AnyCodec;
use tqkv_simd::Level;
use tqkv_simd::page::{KeyPages, Line, MAX_HEADS, Queries};

use crate::checkpoint::TensorCoding;

/// Rows per page.
const ROWS: usize = 128;

/// Puts products where they belong.
pub(crate) fn put(y: &mut [f32], products: &[f32], store: Store) {
    match store {
        Store::Replace => y.copy_from_slice(products),
        Store::Add => y.iter_mut().zip(products).for_each(|(y, product)| *y += product),
    }
}

/// A coded matrix `[outputs, inputs]`.
#[derive(Debug)]
pub(crate) struct Coded {
    codec: Box<AnyCodec>,
    level: Level,
    keys: KeyPages,
    /// One page per [`ROWS`] rows and group of inputs. Groups of the same rows are neighbours.
    pages: Vec<Line>,
    groups: usize,
    outputs: usize,
}

impl Coded {
    /// Builds the matrix from blocks, row by row. `None` if the codec has no page kernels.
    pub(crate) fn new(coding: &TensorCoding, blocks: &[u8], outputs: usize, inputs: usize) -> Option<Self> {
        let (codec, level) = (coding.codec.clone(), coding.level);
        let keys = KeyPages::new(&codec, ROWS)?;
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
        Some(Self { codec, level, keys, pages, groups, outputs })
    }

    /// Decodes a row.
    pub(crate) fn expand_row(&self, row: usize, out: &mut [f32]) {
        let lines = self.keys.lines();
        let pages = &self.pages[row / ROWS * self.groups * lines..][..self.groups * lines];
        let mut blocks = vec![0; self.groups * self.codec.block_bytes()];
        for (page, block) in pages.chunks_exact(lines).zip(blocks.chunks_exact_mut(self.codec.block_bytes()))
        {
            self.keys.read(page, row % ROWS, block);
        }
        if tqkv_simd::codec::decode(self.level, &self.codec, &blocks, out).is_err() {
            out.fill(f32::NAN);
        }
    }

    /// Multiplies `x`, `[n, inputs]`, and writes or adds the result to `y`, `[n, outputs]`.
    pub(crate) fn multiply(&self, x: &[f32], y: &mut [f32], store: Store) {
        let inputs = self.groups * self.codec.dim();
        let tokens = x.chunks(MAX_HEADS * inputs).zip(y.chunks_mut(MAX_HEADS * self.outputs));
        for (x, y) in tokens {
            self.multiply_few(x, y, store);
        }
    }

    /// [`Coded::multiply`] for at most as many tokens as the kernels take queries.
    fn multiply_few(&self, x: &[f32], y: &mut [f32], store: Store) {
        let n = x.len() / (self.groups * self.codec.dim());
        let queries = self.queries(x, n);
        let lines = self.keys.lines();
        let sums: Vec<Vec<f32>> = self
            .pages
            .par_chunks(self.groups * lines)
            .enumerate()
            .map(|(at, pages)| self.page_sums(pages, &queries, ROWS.min(self.outputs - at * ROWS)))
            .collect();
        for (at, sums) in sums.iter().enumerate() {
            let rows = sums.len() / n;
            for (y, sums) in y.chunks_exact_mut(self.outputs).zip(sums.chunks_exact(rows)) {
                put(&mut y[at * ROWS..][..rows], sums, store);
            }
        }
    }

    /// The inputs of all tokens, rotated and rounded to bytes, one entry per group.
    fn queries(&self, x: &[f32], n: usize) -> Vec<Queries> {
        let (dim, inputs) = (self.codec.dim(), x.len() / n);
        let mut rotated = vec![0.0; x.len()];
        tqkv_simd::codec::rotate_queries(self.level, &self.codec, x, &mut rotated);
        let mut of_group = vec![0.0; n * dim];
        (0..self.groups)
            .map(|group| {
                for (to, token) in of_group.chunks_exact_mut(dim).zip(rotated.chunks_exact(inputs)) {
                    to.copy_from_slice(&token[group * dim..][..dim]);
                }
                self.keys.queries(self.level, &of_group)
            })
            .collect()
    }

    /// Sums over all groups for the rows of one page, `[n, rows]`.
    fn page_sums(&self, pages: &[Line], queries: &[Queries], rows: usize) -> Vec<f32> {
        let n = queries.first().map_or(0, Queries::len);
        let lines = self.keys.lines();
        let (mut sums, mut scores) = (vec![0.0; n * rows], vec![0.0; n * rows]);
        for (group, queries) in queries.iter().enumerate() {
            let (page, next) = pages[group * lines..].split_at(lines);
            let next = next.get(..lines).unwrap_or_default();
            self.keys.scores(self.level, page, 0, queries, next, &mut scores);
            sums.iter_mut().zip(&scores).for_each(|(sum, score)| *sum += score);
        }
        sums
    }
}
