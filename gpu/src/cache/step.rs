//! Steps: every layer gets the same new tokens, with one list of control words and one wait. The calls
//! between can be captured in a graph.

use super::tokens::{self, Step};
use super::{GpuCache, Use};
use crate::GpuError;
use crate::current::Current;
use crate::rows::{Out, Rows};

/// Why a call is refused while a step runs.
const BEGUN: &str = "a step has begun; end it first";

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
    /// sequence has more tokens in one layer than in another. The same error if there are more tokens than
    /// `reserve_scratch` made room for. Nothing is appended after an error.
    pub fn begin_step(&mut self, sequences: &[usize]) -> Result<(), GpuError> {
        let _current = Current::keep();
        if self.step.is_some() {
            return Err(GpuError::BadStep(BEGUN.to_owned()));
        }
        if let Some(most) = self.reserved.filter(|&most| sequences.len() > most) {
            return Err(GpuError::BadStep(format!(
                "a step of {} tokens; reserve_scratch made room for {most}",
                sequences.len()
            )));
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
        let cleared = self.clear_outcomes(Use::Steps, self.spec.num_layers, tokens.len());
        let entries = match cleared.and_then(|()| self.place(Use::Steps, &tokens)) {
            Ok(entries) => entries,
            Err(error) => {
                sequences.iter().for_each(|&sequence| self.trim(sequence));
                return Err(error);
            }
        };
        for &(sequence, length) in &tokens {
            self.layers.iter_mut().for_each(|layer| layer.lengths[sequence] = length);
        }
        self.step = Some(Step { tokens, entries });
        Ok(())
    }

    /// Encodes keys and values of the step's tokens in one layer, `[tokens, num_kv_heads, head_dim]`, keys
    /// after RoPE. Does not wait; [`GpuCache::end_step`] reports vectors that could not be encoded.
    ///
    /// # Errors
    /// Layer out of range, wrong shapes, [`GpuError::BadStep`] without a step, or the driver's errors.
    pub fn append_step(&mut self, layer: usize, keys: Rows<'_>, values: Rows<'_>) -> Result<(), GpuError> {
        let _current = Current::keep();
        self.check_layer(layer)?;
        let (count, _) = self.resume()?;
        self.check_rows(count, keys, values)?;
        self.encode(Use::Steps, (layer, layer), [keys, values], count)
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
        let _current = Current::keep();
        self.check_layer(layer)?;
        let shape = self.resume()?;
        queries.check_queries(&self.device, &self.spec, layer, shape.0)?;
        self.attend_sent(Use::Steps, layer, shape, queries, out.into())
    }

    /// Waits for the step and checks that all its vectors were encoded.
    ///
    /// # Errors
    /// [`GpuError::BadVector`] for the first vector that could not be encoded. Then the sequence of each such
    /// vector drops its tokens of the step from that one on, in all layers, and all other tokens stay;
    /// [`GpuCache::len`] says which sequences are shorter. [`GpuError::BadStep`] without a step. After an error
    /// of the driver all tokens of the step are dropped.
    pub fn end_step(&mut self) -> Result<(), GpuError> {
        let _current = Current::keep();
        let step = self.step.take().ok_or_else(no_step)?;
        match self.refusals(Use::Steps, 0..self.spec.num_layers, step.tokens.len()) {
            Ok(None) => Ok(()),
            Ok(Some((error, bad))) => {
                for (sequence, length) in bad.into_iter().map(|token| step.tokens[token]) {
                    self.cut(sequence, length - 1);
                }
                Err(error)
            }
            Err(error) => {
                self.undo(&step);
                Err(error)
            }
        }
    }

    /// Allocates the buffers for steps of up to `tokens` tokens. From now on launches of a step depend only
    /// on the number of its tokens. The list of parts that they read follows the lengths. The buffers of
    /// steps stay where they are until the cache is dropped, whatever other calls do, so a graph may hold
    /// them.
    ///
    /// # Errors
    /// [`GpuError::BadStep`] if a step has begun, or if an earlier call made room for fewer tokens.
    /// [`GpuError::OutOfMemory`], or the driver's errors.
    pub fn reserve_scratch(&mut self, tokens: usize) -> Result<(), GpuError> {
        let _current = Current::keep();
        if self.step.is_some() {
            return Err(GpuError::BadStep(BEGUN.to_owned()));
        }
        if let Some(most) = self.reserved {
            return match tokens > most {
                true => Err(GpuError::BadStep(format!(
                    "room for steps of {tokens} tokens; reserve_scratch made room for {most}, and graphs may hold it"
                ))),
                false => Ok(()),
            };
        }
        let outcomes = self.outcome_words(self.spec.num_layers, tokens);
        let buffers = &mut self.buffers[Use::Steps as usize];
        self.device.grow(&mut buffers.outcomes, outcomes)?;
        let entries = self.paged.attention.most_parts(tokens);
        buffers.tokens.reserve(&self.device, tokens::len(tokens, entries, &self.kept))?;
        self.paged.attention.reserve(&self.device, &mut buffers.work, tokens)?;
        self.reserved = Some(tokens);
        Ok(())
    }

    /// Number of the step's tokens, and of the entries in the list of their parts.
    fn resume(&self) -> Result<(usize, usize), GpuError> {
        let step = self.step.as_ref().ok_or_else(no_step)?;
        Ok((step.tokens.len(), step.entries))
    }
}

fn no_step() -> GpuError {
    GpuError::BadStep("no step has begun; call begin_step first".to_owned())
}
