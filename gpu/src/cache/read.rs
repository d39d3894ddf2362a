//! Reads blocks, decoded vectors and logits from a cache.

use super::{GpuCache, Out, Rows, Side, Use};
use crate::GpuError;
use crate::current::Current;
use crate::launch::{Memory, launch, warps};
use crate::pages::SLOTS;
use tqkv_core::AnyCodec;
use tqkv_gpu_kernels::args::{DecodePages, Scores};
use tqkv_gpu_kernels::page;

impl GpuCache {
    /// Copies the blocks of a sequence to host memory, `[len, num_kv_heads, block_bytes]`. Each block is as
    /// SPEC.md defines it.
    ///
    /// # Errors
    /// Layer or sequence out of range, or the driver's errors.
    pub fn blocks(&self, layer: usize, sequence: usize, side: Side) -> Result<Vec<u8>, GpuError> {
        let _current = Current::keep();
        self.check_layer(layer)?;
        self.check_sequence(sequence)?;
        let (coder, layer) = (&self.coders[side as usize], &self.layers[layer]);
        let (dim, bits, heads) = (self.spec.head_dim as u32, coder.bits(), self.spec.num_kv_heads);
        let head_bytes = page::head_bytes(dim, bits) as usize;
        let row = page::row_bytes(dim, bits) as usize;
        let mut blocks = Vec::with_capacity(layer.lengths[sequence] * heads * coder.codec.block_bytes());
        let (mut left, stream) = (layer.lengths[sequence], self.device.stream());
        for &number in self.pages.of(sequence) {
            let start = number as usize * heads * head_bytes;
            let bytes =
                stream.clone_dtoh(&layer.pools[side as usize].slice(start..start + heads * head_bytes))?;
            self.device.finish()?;
            for slot in 0..left.min(SLOTS) {
                for head in bytes.chunks_exact(head_bytes) {
                    let scale = page::scale_offset(dim, bits, slot as u32) as usize;
                    blocks.extend_from_slice(&head[scale..scale + 2]);
                    blocks.extend_from_slice(&head[slot * row..(slot + 1) * row]);
                }
            }
            left = left.saturating_sub(SLOTS);
        }
        Ok(blocks)
    }

    /// The codec of a side. It decodes [`GpuCache::blocks`].
    pub fn codec(&self, side: Side) -> &AnyCodec {
        &self.coders[side as usize].codec
    }

    /// Decodes a sequence into `out`, `[len, num_kv_heads, head_dim]` on the device. Values in f32 equal the
    /// CPU's to the bit; f16 and bf16 are rounded from them. A prefill kernel of the engine can read the
    /// result next to its own keys and values. Does not wait.
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
        let (out, kind) = out.into().memory(&self.device, vectors * self.spec.head_dim)?;
        self.update_table()?;
        let coder = &self.coders[side as usize];
        let arguments = DecodePages {
            pool: Memory::from(&self.layers[layer].pools[side as usize]),
            page_table: (&self.table).into(),
            max_pages: self.pages.max_pages() as u32,
            sequence: sequence as u32,
            start: 0,
            tokens: tokens as u32,
            num_kv_heads: self.spec.num_kv_heads as u32,
            signs: (&coder.signs).into(),
            out,
            kind,
        };
        // SAFETY: the sequence's pages are in the table and inside the pool; `out` was checked above.
        unsafe { launch(&self.device, &coder.decode, arguments.list(), warps(vectors)?) }
    }

    /// Logits, scaled by 1/sqrt(head_dim), of one query token over every key of a sequence. `queries` is
    /// `[num_heads, head_dim]`, and the result is `[len, num_heads]`.
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
        let (device, scratch, coder) = (&self.device, &mut self.scratch, &self.coders[0]);
        scratch.staging[0].send(device, queries, &mut scratch.rows[0])?;
        let factor = 1.0 / (dim as f32 * (dim as f32).sqrt());
        // SAFETY: `rows` holds `heads` vectors, as sent above.
        let rotated = unsafe {
            let (work, queries) = (&mut self.buffers[Use::Alone as usize].work, (&scratch.rows[0]).into());
            self.attention.rotate(device, work, queries, &coder.signs, heads, factor)
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
