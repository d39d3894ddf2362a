//! How a cache encodes.

use super::{GpuCache, Lists, Use};
use crate::GpuError;
use crate::paged::Store;
use crate::rows::{Rows, Side};
use std::ops::Range;
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
    /// scratch buffers.
    fn launch_encode(
        &mut self,
        of: Use,
        (layer, place): (usize, usize),
        rows: [Rows<'_>; 2],
        tokens: usize,
    ) -> Result<(), GpuError> {
        let values = self.vectors(tokens) * self.spec.head_dim;
        let vectors = self.vectors(tokens);
        let buffers = &mut self.buffers[of as usize];
        let (refused, mut outcomes) = buffers.outcomes.split_at_mut(VECTORS);
        let mut outcomes = outcomes.slice_mut(2 * place * vectors..);
        let (keys, of_values) = outcomes.split_at_mut(vectors);
        let [of_key, of_value] = &self.scratch.rows;
        let [key_rows, value_rows] = rows;
        let store = Store {
            rows: [
                (key_rows.memory(of_key, 0..values), key_rows.kind()),
                (value_rows.memory(of_value, 0..values), value_rows.kind()),
            ],
            places: Lists::new(&buffers.tokens, tokens).places().into(),
            pools: self.layers[layer].pools.each_mut().map(Into::into),
            strides: self.paged.layout().page_bytes().map(|bytes| bytes as u32),
            pages: self.pages.count(),
            workspaces: self.workspaces.each_mut().map(Into::into),
            outcomes: [keys.into(), of_values.into()],
            refused: refused.into(),
            tokens,
            together: self.spec.tokens_a_launch(),
        };
        // SAFETY: rows were checked to hold `tokens` vectors of each head. Callers made `outcomes` large enough,
        // and each side's workspace has room for the vectors of one launch.
        unsafe { self.paged.launch_store(&self.device, store) }
    }

    /// Waits for the device. If vectors of these layers could not be encoded, returns the error for the first of
    /// them, and the token of each. Reads one word, and all outcomes only if a vector was refused.
    pub(super) fn refusals(
        &mut self,
        of: Use,
        layers: Range<usize>,
        tokens: usize,
    ) -> Result<Option<(GpuError, Vec<usize>)>, GpuError> {
        let mut outcomes = vec![0; VECTORS];
        let (received, on_device) = (&mut self.scratch.received, &self.buffers[of as usize].outcomes);
        received.receive(&self.device, on_device, &mut outcomes)?;
        if outcomes[REFUSED] == 0 {
            return Ok(None);
        }
        outcomes.resize(VECTORS + 2 * layers.len() * tokens * self.spec.num_kv_heads, status::DONE);
        received.receive(&self.device, on_device, &mut outcomes)?;
        let (outcomes, heads) = (&outcomes[VECTORS..], self.spec.num_kv_heads);
        let vectors = tokens * heads;
        let bad: Vec<usize> = (0..outcomes.len()).filter(|&i| outcomes[i] != status::DONE).collect();
        let Some(&i) = bad.first() else { return Ok(None) };
        let error = GpuError::BadVector {
            what: if i / vectors % 2 == Side::Keys as usize { "key" } else { "value" },
            layer: layers.start + i / (2 * vectors),
            token: i % vectors / heads,
            kv_head: i % vectors % heads,
            reason: match outcomes[i] {
                status::NON_FINITE => "is not finite",
                status::OUT_OF_RANGE => "is too large: its scale does not fit f16",
                _ => "has no place in the pool",
            },
        };
        Ok(Some((error, bad.into_iter().map(|i| i % vectors / heads).collect())))
    }
}
