//! How a cache encodes.

use super::{GpuCache, Lists, Rows, Side};
use crate::GpuError;
use crate::launch::{launch, warps};
use std::ops::Range;
use tqkv_core::Effort;
use tqkv_gpu_kernels::args::EncodeAppend;
use tqkv_gpu_kernels::encode::status;

impl GpuCache {
    /// Encodes keys and values of the tokens whose control words are on the device. Outcomes go to place
    /// `place` among the outcomes of the call.
    pub(super) fn encode(
        &mut self,
        layer: usize,
        place: usize,
        rows: [Rows<'_>; 2],
        tokens: usize,
    ) -> Result<(), GpuError> {
        for (side, rows) in rows.into_iter().enumerate() {
            if let Rows::Host(rows) = rows {
                let (staging, memory) = (&mut self.scratch.staging[side], &mut self.scratch.rows[side]);
                staging.send(&self.device, rows, memory)?;
            }
        }
        self.launch_encode(layer, place, rows, tokens)
    }

    /// Launches the kernel of [`GpuCache::encode`] for both sides. Rows of the host are already in the
    /// scratch buffers. Trellis encoders take several launches if the tokens do not fit their workspace.
    fn launch_encode(
        &mut self,
        layer: usize,
        place: usize,
        rows: [Rows<'_>; 2],
        tokens: usize,
    ) -> Result<(), GpuError> {
        let (heads, dim, together) =
            (self.spec.num_kv_heads, self.spec.head_dim, self.spec.tokens_a_launch());
        let lists = Lists::new(&self.tokens, tokens);
        for first in (0..tokens).step_by(together) {
            let count = together.min(tokens - first);
            let vectors = first * heads..(first + count) * heads;
            let scratch = &mut self.scratch;
            let mut outcomes = scratch.outcomes.slice_mut(2 * place * tokens * heads..);
            let (keys, values) = outcomes.split_at_mut(tokens * heads);
            let mut outcomes = [keys, values];
            let pools = &mut self.layers[layer].pools;
            let sides = pools.iter_mut().zip(&mut scratch.workspaces).zip(&mut outcomes);
            let mut arguments = Vec::new();
            for (side, ((pool, workspace), outcomes)) in sides.enumerate() {
                let (coder, rows) = (&self.coders[side], &rows[side]);
                let options = coder.codec.options();
                let effort = Effort::ALL.iter().position(|&effort| effort == options.effort).unwrap_or(0);
                arguments.extend(
                    EncodeAppend {
                        rows: rows.memory(&scratch.rows[side], vectors.start * dim..vectors.end * dim),
                        kind: rows.kind(),
                        tokens: count as u32,
                        num_kv_heads: heads as u32,
                        signs: (&coder.signs).into(),
                        mode: u32::from(options.scale_mode.code()),
                        effort: effort as u32,
                        sequence_of: lists.sequences().slice(first..).into(),
                        position_of: lists.positions().slice(first..).into(),
                        page_table: (&self.table).into(),
                        max_pages: self.pages.max_pages() as u32,
                        pool: pool.into(),
                        workspace: workspace.into(),
                        outcome: outcomes.slice_mut(vectors.clone()).into(),
                    }
                    .list(),
                );
            }
            let mut config = warps(vectors.len())?;
            config.grid_dim.1 = 2;
            // SAFETY: rows were checked to hold `tokens * heads` vectors. Positions lie in pages that `place`
            // entered in the table, and these are inside the pools. Callers made `outcomes` large enough.
            // Each side's workspace has room for the vectors of one launch, and launches run in order.
            unsafe { launch(&self.device, &self.encode, arguments, config) }?;
        }
        Ok(())
    }

    /// Waits for the device, and reports the first vector of these layers that could not be encoded.
    pub(super) fn read_outcomes(&mut self, layers: Range<usize>, tokens: usize) -> Result<(), GpuError> {
        let vectors = self.vectors(tokens);
        let mut outcomes = vec![status::DONE; 2 * layers.len() * vectors];
        self.scratch.received.receive(&self.device, &self.scratch.outcomes, &mut outcomes)?;
        let Some(i) = outcomes.iter().position(|&outcome| outcome != status::DONE) else { return Ok(()) };
        let vector = i % vectors;
        Err(GpuError::BadVector {
            what: if i / vectors % 2 == Side::Keys as usize { "key" } else { "value" },
            layer: layers.start + i / (2 * vectors),
            token: vector / self.spec.num_kv_heads,
            kv_head: vector % self.spec.num_kv_heads,
            reason: match outcomes[i] {
                status::NON_FINITE => "is not finite",
                _ => "is too large: its scale does not fit f16",
            },
        })
    }
}
