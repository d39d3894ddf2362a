//! Reads blocks, decoded vectors and logits from a cache.

use super::{GpuCache, Use, table};
use crate::GpuError;
use crate::current::Current;
use crate::launch::{Memory, launch, warps};
use crate::paged::Gather;
use crate::paged::attention::Table;
use crate::pages::SLOTS;
use crate::rows::{Out, Rows, Side};
use crate::staging::Staging;
use tqkv_core::AnyCodec;
use tqkv_gpu_kernels::args::Scores;
use tqkv_gpu_kernels::{encode::element, page};

impl GpuCache {
    /// Copies the blocks of a sequence to host memory, `[len, num_kv_heads, block_bytes]`. Each block is as
    /// SPEC.md defines it. Waits once.
    ///
    /// # Errors
    /// Layer or sequence out of range, or the driver's errors.
    pub fn blocks(&self, layer: usize, sequence: usize, side: Side) -> Result<Vec<u8>, GpuError> {
        let _current = Current::keep();
        self.check_layer(layer)?;
        self.check_sequence(sequence)?;
        let (coder, layer) = (&self.paged.coders[side as usize], &self.layers[layer]);
        let (dim, bits, tokens) = (self.spec.head_dim as u32, coder.bits(), layer.lengths[sequence]);
        let row = page::row_bytes(dim, bits) as usize;
        let page_bytes = self.paged.layout().page_bytes()[side as usize];
        let numbers = &self.pages.of(sequence)[..tokens.div_ceil(SLOTS)];
        let places: Vec<_> =
            numbers.iter().map(|&n| n as usize * page_bytes).map(|at| at..at + page_bytes).collect();
        let mut pages = vec![0; numbers.len() * page_bytes];
        Staging::new().receive_parts(&self.device, &layer.pools[side as usize], &places, &mut pages)?;
        let mut blocks = Vec::with_capacity(self.vectors(tokens) * coder.codec.block_bytes());
        for position in 0..tokens {
            let (number, slot) = (position / SLOTS, position % SLOTS);
            let page = &pages[number * page_bytes..(number + 1) * page_bytes];
            for head in page.chunks_exact(page_bytes / self.spec.num_kv_heads) {
                let scale = page::scale_offset(dim, bits, slot as u32) as usize;
                blocks.extend_from_slice(&head[scale..scale + 2]);
                blocks.extend_from_slice(&head[slot * row..(slot + 1) * row]);
            }
        }
        Ok(blocks)
    }

    /// The codec of a side. It decodes [`GpuCache::blocks`].
    pub fn codec(&self, side: Side) -> &AnyCodec {
        &self.paged.coders[side as usize].codec
    }

    /// Decodes a sequence into `out`, `[len, num_kv_heads, head_dim]` on the device. Values in f32 equal the
    /// CPU's to the bit; f16 and bf16 are rounded from them. Tokens that attention reads as f16 rows are decoded
    /// from these. A prefill kernel of the engine can read the result next to its own keys and values. Does not
    /// wait.
    ///
    /// # Errors
    /// Layer or sequence out of range, `out` too small or of another device, or the driver's errors.
    pub fn decode<'a>(
        &mut self,
        layer: usize,
        sequence: usize,
        side: Side,
        out: impl Into<Out<'a>>,
    ) -> Result<(), GpuError> {
        let _current = Current::keep();
        self.check_layer(layer)?;
        self.check_sequence(sequence)?;
        let tokens = self.layers[layer].lengths[sequence];
        let vectors = self.vectors(tokens);
        let (mut out, kind) = out.into().memory(&self.device, vectors * self.spec.head_dim)?;
        if tokens == 0 {
            return Ok(());
        }
        self.update_table()?;
        // The first row of the sequence, the number of rows, and the number of tokens; the same of exact tokens,
        // whose rows may begin inside of a page.
        let (all, runs) = (tokens as u32, self.kept.runs((sequence, tokens)));
        let mut words = vec![0, all, all];
        for (_, slots) in &runs {
            words.extend([(slots.start as u32).wrapping_neg(), slots.len() as u32, slots.end as u32]);
        }
        words.extend(self.kept.numbers((sequence, tokens)));
        self.range.send(&self.device, &words)?;
        let side = side as usize;
        let max_blocks = self.pages.max_pages();
        let gather = Gather {
            pool: (&self.layers[layer].pools[side]).into(),
            stride: self.paged.layout().page_bytes()[side] as u32,
            table: Table {
                memory: self.table.slice(sequence * max_blocks..(sequence + 1) * max_blocks).into(),
                entries: max_blocks,
                ..table(&self.table, &self.pages)
            },
            offsets: self.range.memory().slice(..2).into(),
            lengths: self.range.memory().slice(2..).into(),
            sequences: 1,
            tokens,
            out: (out.again(), kind),
            is_exact: false,
        };
        // SAFETY: the sequence's pages are in the table and inside the pool; `out` was checked above.
        unsafe { self.paged.launch_gather(&self.device, side, gather) }?;
        let numbers = self.range.memory().slice(3 + 3 * runs.len()..);
        for (run, (first, slots)) in runs.into_iter().enumerate() {
            let words = self.range.memory().slice(3 * (run + 1)..);
            let values = self.vectors(first) * self.spec.head_dim;
            let gather = Gather {
                pool: (&self.layers[layer].exact[side]).into(),
                stride: self.spec.exact_page_bytes() as u32,
                table: self.kept.table(&numbers, 1),
                offsets: words.slice(..2).into(),
                lengths: words.slice(2..).into(),
                sequences: 1,
                tokens: slots.len(),
                out: (out.behind(values, element::bytes(kind) as usize), kind),
                is_exact: true,
            };
            // SAFETY: the rows' pages are in the table and inside the pool, and `out` holds all tokens.
            unsafe { self.paged.launch_gather(&self.device, side, gather) }?;
        }
        Ok(())
    }

    /// Logits, scaled by 1/sqrt(head_dim), of one query token over the codes of every key of a sequence.
    /// `queries` is `[num_heads, head_dim]`, and the result is `[len, num_heads]`.
    ///
    /// # Errors
    /// Layer or sequence out of range, wrong shapes, a query that is not finite, or the driver's errors.
    pub fn scores(&mut self, layer: usize, sequence: usize, queries: &[f32]) -> Result<Vec<f32>, GpuError> {
        let _current = Current::keep();
        self.check_layer(layer)?;
        self.check_sequence(sequence)?;
        let (heads, dim) = (self.spec.num_heads, self.spec.head_dim);
        Rows::Host(queries).check_queries(&self.device, &self.spec, layer, 1)?;
        let tokens = self.layers[layer].lengths[sequence];
        let mut out = self.take_out(tokens * heads)?;
        self.update_table()?;
        let (device, scratch, coder) = (&self.device, &mut self.scratch, &self.paged.coders[0]);
        scratch.staging[0].send(device, queries, &mut scratch.rows[0])?;
        let factor = 1.0 / (dim as f32 * (dim as f32).sqrt());
        // SAFETY: `rows` holds `heads` vectors, as sent above.
        let rotated = unsafe {
            let (work, queries) = (&mut self.buffers[Use::Alone as usize].work, (&scratch.rows[0]).into());
            self.paged.attention.rotate(device, work, queries, &coder.signs, heads, factor)
        }?;
        let arguments = Scores {
            rotated: Memory::from(rotated),
            num_heads: heads as u32,
            pool: (&self.layers[layer].pools[0]).into(),
            page_table: (&self.table).into(),
            max_pages: self.pages.max_pages() as u32,
            sequence: sequence as u32,
            tokens: tokens as u32,
            num_kv_heads: self.spec.num_kv_heads as u32,
            out: (&mut out).into(),
        };
        // SAFETY: the sequence's pages are in the table and inside the pool; `out` holds `tokens * heads`.
        unsafe { launch(device, &coder.scores, arguments.list(), warps(tokens * heads)?) }?;
        let mut scores = vec![0.0; tokens * heads];
        scratch.staging[1].receive(device, &out, &mut scores)?;
        scratch.out = Some(out);
        Ok(scores)
    }
}
