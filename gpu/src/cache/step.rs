//! Steps: every layer gets the same new tokens, with one list of control words and one wait. The calls
//! between can be captured in a graph.

use super::tokens::{self, Step};
use super::{GpuCache, Out, Rows};
use crate::GpuError;

impl GpuCache {
    /// Begins a step of a model: appends a token to each of `sequences`, which may repeat, in every layer.
    /// Finds pages for the tokens and sends their control words to the device. From now on the tokens count.
    /// Call [`GpuCache::append_step`] and [`GpuCache::attend_step`] for each layer, then
    /// [`GpuCache::end_step`].
    ///
    /// Both calls only launch kernels if their rows are on the device, so a graph can capture them. The graph
    /// can replace them in later steps with the same number of tokens. Call [`GpuCache::reserve_scratch`]
    /// before the capture.
    ///
    /// # Errors
    /// The errors of [`GpuCache::append`]. [`GpuError::BadStep`] if a step has already begun, or if a
    /// sequence has more tokens in one layer than in another. Nothing is appended after an error.
    pub fn begin_step(&mut self, sequences: &[usize]) -> Result<(), GpuError> {
        if self.step.is_some() {
            return Err(GpuError::BadStep("a step has begun; end it first".to_owned()));
        }
        let tokens = self.check_append(0, sequences)?;
        for &sequence in sequences {
            let tokens = self.layers[0].lengths[sequence];
            if let Some(other) = self.layers.iter().position(|layer| layer.lengths[sequence] != tokens) {
                return Err(GpuError::BadStep(format!(
                    "sequence {sequence} has {tokens} tokens in layer 0 and {} in layer {other}; a step needs the same number in all layers",
                    self.layers[other].lengths[sequence]
                )));
            }
        }
        let outcomes = 2 * self.spec.num_layers * self.vectors(tokens.len());
        let placed = self.device.grow(&mut self.scratch.outcomes, outcomes).and_then(|()| {
            // Zero means success, so a layer without an `append_step` reports no error.
            self.device.stream().memset_zeros(&mut self.scratch.outcomes)?;
            self.place(&tokens)
        });
        if let Err(error) = placed {
            sequences.iter().for_each(|&sequence| self.trim(sequence));
            return Err(error);
        }
        for &(sequence, length) in &tokens {
            self.layers.iter_mut().for_each(|layer| layer.lengths[sequence] = length);
        }
        self.step = Some(Step { words: tokens::words(tokens.iter().copied()), tokens });
        Ok(())
    }

    /// Encodes keys and values of the step's tokens in one layer, `[tokens, num_kv_heads, head_dim]`, keys
    /// after RoPE. Does not wait; [`GpuCache::end_step`] reports vectors that could not be encoded.
    ///
    /// # Errors
    /// Layer out of range, wrong shapes, [`GpuError::BadStep`] without a step, or the driver's errors.
    pub fn append_step(&mut self, layer: usize, keys: Rows<'_>, values: Rows<'_>) -> Result<(), GpuError> {
        self.check_layer(layer)?;
        let (count, _) = self.resume()?;
        self.check_rows(count, keys, values)?;
        self.encode(layer, layer, [keys, values], count)
    }

    /// Attends with the query of each of the step's tokens. Each query sees its sequence up to its own token.
    /// `queries` and `out` are `[tokens, num_heads, head_dim]`. Does not wait.
    ///
    /// # Errors
    /// The errors of [`GpuCache::append_step`].
    pub fn attend_step<'a>(
        &mut self,
        layer: usize,
        queries: Rows<'_>,
        out: impl Into<Out<'a>>,
    ) -> Result<(), GpuError> {
        self.check_layer(layer)?;
        let shape = self.resume()?;
        queries.check(&self.device, "queries", self.query_values(shape.0))?;
        self.attend_sent(layer, shape, queries, out.into())
    }

    /// Waits for the step and checks that all its vectors were encoded.
    ///
    /// # Errors
    /// [`GpuError::BadVector`] for the first vector that could not be encoded; then all layers drop the
    /// tokens of the step. [`GpuError::BadStep`] without a step, or the driver's errors.
    pub fn end_step(&mut self) -> Result<(), GpuError> {
        let step = self.step.take().ok_or_else(no_step)?;
        let result = self.read_outcomes(0..self.spec.num_layers, step.tokens.len());
        if result.is_err() {
            for &(sequence, length) in step.tokens.iter().rev() {
                self.truncate(sequence, length - 1)?;
            }
        }
        result
    }

    /// Allocates the buffers for steps of up to `tokens` tokens, and cuts launches for sequences of
    /// `max_tokens`. From now on launches depend only on the number of tokens, and no buffer moves.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], or the driver's errors.
    pub fn reserve_scratch(&mut self, tokens: usize) -> Result<(), GpuError> {
        let outcomes = 2 * self.spec.num_layers * self.vectors(tokens);
        self.device.grow(&mut self.scratch.outcomes, outcomes)?;
        self.tokens.reserve(&self.device, 3 * tokens)?;
        self.attention.reserve(&self.device, tokens, self.spec.max_tokens)?;
        self.is_fixed = true;
        Ok(())
    }

    /// Number of the step's tokens and the greatest length. Sends the control words again, because another
    /// call may have replaced them.
    fn resume(&mut self) -> Result<(usize, usize), GpuError> {
        let step = self.step.as_ref().ok_or_else(no_step)?;
        self.tokens.send(&self.device, &step.words)?;
        Ok((step.tokens.len(), step.tokens.iter().map(|&(_, length)| length).max().unwrap_or(0)))
    }
}

fn no_step() -> GpuError {
    GpuError::BadStep("no step has begun; call begin_step first".to_owned())
}
