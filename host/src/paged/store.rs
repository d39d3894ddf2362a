//! Rows of an engine to codes in its blocks, and back.

use super::pages::check;
use super::step::{Step, of_each};
use super::{Paged, Pages, Side};
use crate::cache::format::PageFormat;
use crate::cache::tier::encode;
use crate::cache::vectors::Floats;
use crate::error::CacheError;
use crate::threads;
use rayon::prelude::*;
use tqkv_core::MAX_HEAD_DIM;
use tqkv_simd::codec;
use tqkv_simd::page::{Line, SLOT_STEP};

/// Fewest head vectors for which threads are worth their wake.
const SHARED_VECTORS: usize = 64;

/// A token that is stored: its row, and its slot in the block.
type Row = (usize, usize);

impl Paged {
    /// Encodes keys and values, `[tokens, num_kv_heads, head_dim]` with keys after RoPE, to `places`, one of each token. A
    /// token whose place is negative or not there is skipped. If a place comes twice, the later token stays.
    ///
    /// A vector that cannot be encoded, because it is not finite or its scale does not fit f16, becomes zeros. Returns the
    /// number of these.
    ///
    /// # Errors
    /// [`CacheError`] for a wrong length, before anything is written.
    pub fn store<'a, M: AsRef<[Line]> + AsMut<[Line]>>(
        &self,
        keys: impl Into<Floats<'a>>,
        values: impl Into<Floats<'a>>,
        places: &[i64],
        pages: &mut Pages<M>,
    ) -> Result<usize, CacheError> {
        let (given, width) = ([keys.into(), values.into()], self.layout.num_kv_heads * self.layout.head_dim);
        pages.check(self)?;
        for (what, rows) in ["keys", "values"].into_iter().zip(given) {
            check(what, rows.len(), places.len() * width)?;
        }
        let of_token =
            |(row, place): (usize, &i64)| pages.place(*place).map(|(block, slot)| (block, (row, slot)));
        let mut rows: Vec<(usize, Row)> = places.iter().enumerate().filter_map(of_token).collect();
        rows.sort_by_key(|(block, _)| *block);
        let runs: Vec<&[(usize, Row)]> = rows.chunk_by(|a, b| a.0 == b.0).collect();
        let blocks = pages.blocks_mut(runs.iter().map(|run| run[0].0));
        let write = |(run, [keys, values]): (&&[(usize, Row)], [&mut [Line]; 2])| {
            self.write(run, given[0], Side::Keys, keys) + self.write(run, given[1], Side::Values, values)
        };
        Ok(
            if runs.len() > 1 && threads::several() && rows.len() * self.layout.num_kv_heads >= SHARED_VECTORS
            {
                threads::share(|| runs.par_iter().zip(blocks).map(write).sum())
            } else {
                runs.iter().zip(blocks).map(write).sum()
            },
        )
    }

    /// Encodes the rows of a block. Returns the number of vectors that became zeros.
    fn write(&self, run: &[(usize, Row)], given: Floats<'_>, side: Side, block: &mut [Line]) -> usize {
        let (format, heads, dim) = (self.format(side), self.layout.num_kv_heads, self.layout.head_dim);
        let bytes = format.codec().block_bytes();
        let (mut x, mut blocks, mut refused) = (vec![0.0; run.len() * dim], vec![0; run.len() * bytes], 0);
        for (head, lines) in block.chunks_exact_mut(format.lines()).enumerate().take(heads) {
            for ((_, (row, _)), x) in run.iter().zip(x.chunks_exact_mut(dim)) {
                let at = (row * heads + head) * dim;
                given.part(at, at + dim).widen(self.level(), x);
            }
            if encode(format, &x, &mut blocks).is_err() {
                for (x, block) in x.chunks_exact_mut(dim).zip(blocks.chunks_exact_mut(bytes)) {
                    if encode(format, x, block).is_err() {
                        refused += 1;
                        x.fill(0.0);
                        // Zeros have a code in every codec.
                        let _ = encode(format, x, block);
                    }
                }
            }
            for ((_, (_, slot)), block) in run.iter().zip(blocks.chunks_exact(bytes)) {
                if slot.is_multiple_of(SLOT_STEP) {
                    clean(format, lines, *slot + 1);
                }
                format.write(lines, *slot, block);
            }
        }
        refused
    }

    /// Decodes the first tokens of each sequence of `step`, its lengths, to rows of `out`, `[rows, num_kv_heads, head_dim]`.
    /// `firsts` has the row of the first token of each sequence. Rows that are not there, and rows of tokens whose block is
    /// not there, are left as they are. `starts` of the step has no meaning here.
    ///
    /// # Errors
    /// [`CacheError`] for a wrong length, before anything is written.
    pub fn gather<M: AsRef<[Line]> + Sync>(
        &self,
        side: Side,
        pages: &Pages<M>,
        step: &Step<'_>,
        firsts: &[i32],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let (heads, dim, tokens) = (self.layout.num_kv_heads, self.layout.head_dim, self.layout.block_tokens);
        pages.check(self)?;
        let entries = step.entries()?;
        check("firsts", firsts.len(), step.lengths.len())?;
        of_each("numbers of rows", out.len(), heads * dim)?;
        let (format, width) = (self.format(side), heads * dim);
        let bytes = format.codec().block_bytes();
        for (sequence, &first) in firsts.iter().enumerate() {
            let length = step.length(sequence, tokens);
            let blocks = &step.table[sequence * entries..(sequence + 1) * entries];
            let Some(rows) =
                usize::try_from(first).ok().and_then(|first| out.get_mut(first.checked_mul(width)?..))
            else {
                continue;
            };
            let count = length.min(rows.len() / width);
            let decode = |(block, rows): (&i32, &mut [f32])| {
                let Ok(block) = usize::try_from(*block) else { return };
                let mut vectors = vec![0.0; rows.len() / heads];
                let mut blocks = vec![0; vectors.len() / dim * bytes];
                for head in 0..heads {
                    let Some(page) = pages.view(self, side, block, head) else { return };
                    for (slot, block) in blocks.chunks_exact_mut(bytes).enumerate() {
                        format.read(page.lines, slot, block);
                    }
                    if codec::decode(self.level(), format.codec(), &blocks, &mut vectors).is_err() {
                        // Memory that nobody has written may have scales that are no numbers.
                        for (block, vector) in blocks.chunks_exact(bytes).zip(vectors.chunks_exact_mut(dim)) {
                            if codec::decode(self.level(), format.codec(), block, vector).is_err() {
                                vector.fill(0.0);
                            }
                        }
                    }
                    for (row, vector) in rows.chunks_exact_mut(width).zip(vectors.chunks_exact(dim)) {
                        row[head * dim..(head + 1) * dim].copy_from_slice(vector);
                    }
                }
            };
            let rows = &mut rows[..count * width];
            if threads::several() && count > tokens {
                threads::share(|| {
                    blocks.par_iter().zip(rows.par_chunks_mut(tokens * width)).for_each(decode);
                });
            } else {
                blocks.iter().zip(rows.chunks_mut(tokens * width)).for_each(decode);
            }
        }
        Ok(())
    }
}

/// Makes zeros of the slots from `from` to the end of its run that hold no numbers. Kernels read runs of [`SLOT_STEP`] slots,
/// in which slots that no query sees have the weight 0, and 0 times NaN is NaN. So an engine need not clear its memory, as
/// long as the first slot of a run is written no later than the others.
fn clean(format: &PageFormat, page: &mut [Line], from: usize) {
    let codec = format.codec();
    let (mut vector, mut block) = ([0.0; MAX_HEAD_DIM], vec![0; codec.block_bytes()]);
    let vector = &mut vector[..codec.dim()];
    for slot in from..from.next_multiple_of(SLOT_STEP) {
        format.read(page, slot, &mut block);
        if codec.decode(&block, vector).is_err() || vector.iter().any(|x| !x.is_finite()) {
            vector.fill(0.0);
            // Zeros have a code in every codec.
            let _ = encode(format, vector, &mut block);
            format.write(page, slot, &block);
        }
    }
}
