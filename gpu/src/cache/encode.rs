//! How a cache encodes.

use super::{GpuCache, Lists, Rows, Side, Use};
use crate::GpuError;
use crate::launch::{launch, warps};
use std::ops::Range;
use tqkv_core::Effort;
use tqkv_gpu_kernels::args::EncodeAppend;
use tqkv_gpu_kernels::encode::status;

/// The place of the word that is not 0 if a vector was refused; the next constant is the place of the first
/// vector's outcome.
const REFUSED: usize = 0;
const VECTORS: usize = 1;

impl GpuCache {
    /// Makes room for the outcomes of `layers` layers, and sets them to success. So a layer that a step
    /// leaves out reports no error.
    pub(super) fn clear_outcomes(&mut self, of: Use, layers: usize, tokens: usize) -> Result<(), GpuError> {
        let len = self.outcome_words(layers, tokens);
        let outcomes = &mut self.buffers[of as usize].outcomes;
        self.device.grow(outcomes, len)?;
        Ok(self.device.stream().memset_zeros(&mut outcomes.slice_mut(..len))?)
    }

    /// Words of the outcomes of `layers` layers: [`REFUSED`], then a word per vector.
    pub(super) fn outcome_words(&self, layers: usize, tokens: usize) -> usize {
        VECTORS + 2 * layers * self.vectors(tokens)
    }

    /// Encodes keys and values of the tokens whose control words are on the device. Outcomes go to place
    /// `place` among the outcomes of the call.
    pub(super) fn encode(
        &mut self,
        of: Use,
        (layer, place): (usize, usize),
        rows: [Rows<'_>; 2],
        tokens: usize,
    ) -> Result<(), GpuError> {
        for (side, rows) in rows.into_iter().enumerate() {
            if let Rows::Host(rows) = rows {
                let (staging, memory) = (&mut self.scratch.staging[side], &mut self.scratch.rows[side]);
                staging.send(&self.device, rows, memory)?;
            }
        }
        self.launch_encode(of, (layer, place), rows, tokens)
    }

    /// Launches the kernel of [`GpuCache::encode`] for both sides. Rows of the host are already in the
    /// scratch buffers. Trellis encoders take several launches if the tokens do not fit their workspace.
    fn launch_encode(
        &mut self,
        of: Use,
        (layer, place): (usize, usize),
        rows: [Rows<'_>; 2],
        tokens: usize,
    ) -> Result<(), GpuError> {
        let (heads, dim, together) =
            (self.spec.num_kv_heads, self.spec.head_dim, self.spec.tokens_a_launch());
        let buffers = &mut self.buffers[of as usize];
        let lists = Lists::new(&buffers.tokens, tokens);
        for first in (0..tokens).step_by(together) {
            let count = together.min(tokens - first);
            let vectors = first * heads..(first + count) * heads;
            let (refused, mut outcomes) = buffers.outcomes.split_at_mut(VECTORS);
            let mut outcomes = outcomes.slice_mut(2 * place * tokens * heads..);
            let (keys, values) = outcomes.split_at_mut(tokens * heads);
            let mut outcomes = [keys, values];
            let pools = &mut self.layers[layer].pools;
            let sides = pools.iter_mut().zip(&mut self.workspaces).zip(&mut outcomes);
            let mut arguments = Vec::new();
            for (side, ((pool, workspace), outcomes)) in sides.enumerate() {
                let (coder, rows) = (&self.coders[side], &rows[side]);
                let options = coder.codec.options();
                let effort = Effort::ALL.iter().position(|&effort| effort == options.effort).unwrap_or(0);
                arguments.extend(
                    EncodeAppend {
                        rows: rows.memory(&self.scratch.rows[side], vectors.start * dim..vectors.end * dim),
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
                        refused: refused.slice(..).into(),
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

    /// Waits for the device, and reports the first vector of these layers that could not be encoded. Reads
    /// one word, and all outcomes only if a vector was refused.
    pub(super) fn read_outcomes(
        &mut self,
        of: Use,
        layers: Range<usize>,
        tokens: usize,
    ) -> Result<(), GpuError> {
        let mut outcomes = vec![0; VECTORS];
        let (received, on_device) = (&mut self.scratch.received, &self.buffers[of as usize].outcomes);
        received.receive(&self.device, on_device, &mut outcomes)?;
        if outcomes[REFUSED] == 0 {
            return Ok(());
        }
        outcomes.resize(VECTORS + 2 * layers.len() * tokens * self.spec.num_kv_heads, status::DONE);
        received.receive(&self.device, on_device, &mut outcomes)?;
        let (outcomes, vectors) = (&outcomes[VECTORS..], self.vectors(tokens));
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
