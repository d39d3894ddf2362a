//! How a cache encodes.

use super::{GpuCache, Lists, Use};
use crate::GpuError;
use crate::paged::{StoreCall, Target};
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
        VECTORS + self.sides() * layers * self.vectors(tokens)
    }

    /// Vectors that are made of a key and a value: the codes of both, and their f16 rows where tokens are exact.
    fn sides(&self) -> usize {
        if self.kept.is_empty() { 2 } else { 4 }
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
        let (vectors, sides) = (self.vectors(tokens), self.sides());
        let is_exact = !self.kept.is_empty();
        let buffers = &mut self.buffers[of as usize];
        let (refused, mut outcomes) = buffers.outcomes.split_at_mut(VECTORS);
        let mut outcomes = outcomes.slice_mut(sides * place * vectors..);
        let (mut of_codes, mut of_exact) = outcomes.split_at_mut(2 * vectors);
        let (keys, of_values) = of_codes.split_at_mut(vectors);
        let (exact_keys, exact_values) = of_exact.split_at_mut(if is_exact { vectors } else { 0 });
        let lists = Lists::new(&buffers.tokens, tokens, &self.kept);
        let layer = &mut self.layers[layer];
        let [of_key, of_value] = &self.scratch.rows;
        let [key_rows, value_rows] = rows;
        let store = StoreCall {
            rows: [
                super::vectors(&key_rows, of_key, (values, tokens)),
                super::vectors(&value_rows, of_value, (values, tokens)),
            ],
            codes: Target {
                places: lists.places().into(),
                pools: layer.pools.each_mut().map(Into::into),
                strides: self.paged.layout().page_bytes().map(|bytes| bytes as u32),
                pages: self.pages.count(),
                workspaces: self.workspaces.each_mut().map(|workspace| Some(workspace.into())),
                outcomes: [keys.into(), of_values.into()],
            },
            exact: is_exact.then(|| Target {
                places: lists.exact_places().into(),
                pools: layer.exact.each_mut().map(Into::into),
                strides: [self.spec.exact_page_bytes() as u32; 2],
                pages: self.kept.count(),
                workspaces: [None, None],
                outcomes: [exact_keys.into(), exact_values.into()],
            }),
            kept: None,
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
        let (mut outcomes, all) = (vec![0; VECTORS], self.outcome_words(layers.len(), tokens));
        let (received, on_device) = (&mut self.scratch.received, &self.buffers[of as usize].outcomes);
        received.receive(&self.device, on_device, &mut outcomes)?;
        if outcomes[REFUSED] == 0 {
            return Ok(None);
        }
        outcomes.resize(all, status::DONE);
        received.receive(&self.device, on_device, &mut outcomes)?;
        let (outcomes, heads, sides) = (&outcomes[VECTORS..], self.spec.num_kv_heads, self.sides());
        let vectors = tokens * heads;
        let bad: Vec<usize> = (0..outcomes.len()).filter(|&i| outcomes[i] != status::DONE).collect();
        let Some(&i) = bad.first() else { return Ok(None) };
        let error = GpuError::BadVector {
            what: if i / vectors % 2 == Side::Keys as usize { "key" } else { "value" },
            layer: layers.start + i / (sides * vectors),
            token: i % vectors / heads,
            kv_head: i % vectors % heads,
            reason: match outcomes[i] {
                status::NON_FINITE => "is not finite",
                status::OUT_OF_RANGE if i / vectors % sides < 2 => "is too large: its scale does not fit f16",
                status::OUT_OF_RANGE => "is too large: rotated, it does not fit f16",
                _ => "has no place in the pool",
            },
        };
        Ok(Some((error, bad.into_iter().map(|i| i % vectors / heads).collect())))
    }
}
