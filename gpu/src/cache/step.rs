//! Steps: tokens that all layers get, with one list of control words, one wait, and nothing between that a
//! graph cannot hold.

use super::{GpuCache, Out, Rows, Token, tokens};
use crate::GpuError;

/// A step that has begun.
#[derive(Debug)]
pub(super) struct Step {
    tokens: Vec<Token>,
    /// The same for the device.
    words: Vec<u32>,
}

impl GpuCache {
    /// Begins a step of a model: a token at the end of each of `sequences`, which may repeat, in every layer.
    /// Finds its pages and tells the device; then follow [`GpuCache::append_step`] and
    /// [`GpuCache::attend_step`] of each layer, and [`GpuCache::end_step`]. The tokens count from now on.
    ///
    /// These two only launch kernels where their rows are on the device, so a graph can be captured of them,
    /// and launched instead of them in later steps of as many tokens: call [`GpuCache::reserve_scratch`]
    /// before.
    ///
    /// # Errors
    /// As [`GpuCache::append`]; [`GpuError::BadStep`] where a step has begun already, or a sequence has more
    /// tokens in one layer than in another. Nothing is appended then.
    pub fn begin_step(&mut self, sequences: &[usize]) -> Result<(), GpuError> {
        if self.step.is_some() {
            return Err(GpuError::BadStep("a step has begun; end it first".to_owned()));
        }
        let tokens = self.check_append(0, sequences)?;
        for &sequence in sequences {
            let tokens = self.layers[0].lengths[sequence];
            if let Some(other) = self.layers.iter().position(|layer| layer.lengths[sequence] != tokens) {
                return Err(GpuError::BadStep(format!(
                    "sequence {sequence} has {tokens} tokens in layer 0 and {} in layer {other}; a step needs as many in all",
                    self.layers[other].lengths[sequence]
                )));
            }
        }
        let outcomes = 2 * self.spec.num_layers * self.vectors(tokens.len());
        let placed = self.device.grow(&mut self.scratch.outcomes, outcomes).and_then(|()| {
            // A layer that is left out counts as one without errors.
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
    /// after RoPE. Does not wait; [`GpuCache::end_step`] says what could not be encoded.
    ///
    /// # Errors
    /// Layer out of range, wrong shapes, [`GpuError::BadStep`] without a step, or what the driver reports.
    pub fn append_step(&mut self, layer: usize, keys: Rows<'_>, values: Rows<'_>) -> Result<(), GpuError> {
        self.check_layer(layer)?;
        let (count, _) = self.resume()?;
        self.check_rows(count, keys, values)?;
        self.encode(layer, layer, [keys, values], count)
    }

    /// Attends with the query of each of the step's tokens, which sees its sequence up to itself: `queries`,
    /// `out` are `[tokens, num_heads, head_dim]`. Does not wait.
    ///
    /// # Errors
    /// As [`GpuCache::append_step`].
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

    /// Waits for the step, and looks at what became of its vectors.
    ///
    /// # Errors
    /// [`GpuError::BadVector`], the first: the tokens of the step are dropped from all layers then.
    /// [`GpuError::BadStep`] without a step, or what the driver reports.
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

    /// Allocates what steps of up to `tokens` tokens need, and fixes how launches are cut, as for sequences
    /// of `max_tokens`: from now on they depend on the number of tokens alone, and no buffer moves.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], or what the driver reports.
    pub fn reserve_scratch(&mut self, tokens: usize) -> Result<(), GpuError> {
        let outcomes = 2 * self.spec.num_layers * self.vectors(tokens);
        self.device.grow(&mut self.scratch.outcomes, outcomes)?;
        self.tokens.reserve(&self.device, 3 * tokens)?;
        self.attention.reserve(&self.device, tokens, self.spec.max_tokens)?;
        self.is_fixed = true;
        Ok(())
    }

    /// Number and greatest length of the step's tokens, of which the device knows: another call may have come
    /// between.
    fn resume(&mut self) -> Result<(usize, usize), GpuError> {
        let step = self.step.as_ref().ok_or_else(no_step)?;
        self.tokens.send(&self.device, &step.words)?;
        Ok((step.tokens.len(), step.tokens.iter().map(|&(_, length)| length).max().unwrap_or(0)))
    }
}

fn no_step() -> GpuError {
    GpuError::BadStep("no step has begun; call begin_step first".to_owned())
}
