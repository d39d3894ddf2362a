//! Appends tokens to one layer, and finds pages for them.

use super::tokens;
use super::{GpuCache, Token, Use};
use crate::GpuError;
use crate::current::Current;
use crate::rows::Rows;
use crate::spec::MAX_CHUNK;
use cudarc::driver::{CudaSlice, CudaStream};
use std::sync::Arc;

impl GpuCache {
    /// Appends tokens to one layer: token i goes to the end of `sequences[i]`, which may repeat. `keys` and
    /// `values` are `[sequences.len(), num_kv_heads, head_dim]`, with keys after RoPE.
    ///
    /// Waits for the device, because it reads the encoder's outcome of each vector.
    ///
    /// # Errors
    /// Wrong shapes, a full sequence or pool, a sequence of a step that has begun, or a vector that cannot be
    /// encoded. The error names the token and KV head. Nothing is appended after an error.
    pub fn append(
        &mut self,
        layer: usize,
        sequences: &[usize],
        keys: Rows<'_>,
        values: Rows<'_>,
    ) -> Result<(), GpuError> {
        let _current = Current::keep();
        let tokens = self.check_append(layer, sequences)?;
        sequences.iter().try_for_each(|&sequence| self.check_settled(sequence))?;
        self.check_rows(sequences.len(), keys, values)?;
        if sequences.is_empty() {
            return Ok(());
        }
        let result = self.place(Use::Alone, &tokens).and_then(|_| {
            self.clear_outcomes(Use::Alone, 1, tokens.len())?;
            self.encode(Use::Alone, (layer, 0), [keys, values], tokens.len())?;
            let refusals = self.refusals(Use::Alone, layer..layer + 1, tokens.len())?;
            refusals.map_or(Ok(()), |(error, _)| Err(error))
        });
        if result.is_err() {
            for &sequence in sequences {
                self.trim(sequence);
            }
            return result;
        }
        for &(sequence, length) in &tokens {
            self.layers[layer].lengths[sequence] = length;
        }
        Ok(())
    }

    /// Checks an append and returns where each token goes.
    pub(super) fn check_append(&self, layer: usize, sequences: &[usize]) -> Result<Vec<Token>, GpuError> {
        self.check_layer(layer)?;
        if sequences.len() > MAX_CHUNK {
            return Err(GpuError::BadSpec(format!(
                "{} tokens in one call; at most {MAX_CHUNK}",
                sequences.len()
            )));
        }
        let (mut lengths, max_tokens) = (self.layers[layer].lengths.clone(), self.spec.max_tokens);
        let mut tokens = Vec::with_capacity(sequences.len());
        for &sequence in sequences {
            self.check_sequence(sequence)?;
            if lengths[sequence] == max_tokens {
                return Err(GpuError::SequenceFull { sequence, max_tokens });
            }
            lengths[sequence] += 1;
            tokens.push((sequence, lengths[sequence]));
        }
        Ok(tokens)
    }

    /// Checks the shapes of the keys and values of an append.
    pub(super) fn check_rows(&self, tokens: usize, keys: Rows<'_>, values: Rows<'_>) -> Result<(), GpuError> {
        let expected = self.vectors(tokens) * self.spec.head_dim;
        keys.check(&self.device, "keys", expected)?;
        values.check(&self.device, "values", expected)
    }

    /// Number of key vectors (equally, of value vectors) of `tokens` tokens.
    pub(super) fn vectors(&self, tokens: usize) -> usize {
        tokens * self.spec.num_kv_heads
    }

    /// Finds pages for appended tokens, and sends the page table and the tokens to the device. Returns the
    /// number of entries in the list of parts.
    pub(super) fn place(&mut self, of: Use, tokens: &[Token]) -> Result<usize, GpuError> {
        let page_bytes = self.paged.layout().page_bytes();
        for &(sequence, length) in tokens {
            let (stream, layers) = (self.device.stream(), &mut self.layers);
            self.pages.own(sequence, length - 1, |from, to| {
                for layer in layers {
                    for (pool, bytes) in layer.pools.iter_mut().zip(page_bytes) {
                        copy_page(stream, pool, from as usize * bytes, to as usize * bytes, bytes)?;
                    }
                }
                Ok(())
            })?;
        }
        let (stream, layers, bytes) = (self.device.stream(), &mut self.layers, self.spec.exact_page_bytes());
        self.kept.own(tokens, |from, to| {
            for pool in layers.iter_mut().flat_map(|layer| &mut layer.exact) {
                copy_page(stream, pool, from as usize * bytes, to as usize * bytes, bytes)?;
            }
            Ok(())
        })?;
        self.update_table()?;
        // More tokens than sequences are a prompt, whose tokens no call asks all at once.
        let is_prompt = of == Use::Alone && tokens.len() > self.spec.num_sequences;
        self.send_tokens(of, tokens, if is_prompt { &[] } else { tokens })
    }

    /// Sends the control words of tokens to the device, and those of `rows` that attend, which are these tokens or
    /// none. Returns the number of entries in the list of parts.
    pub(super) fn send_tokens(
        &mut self,
        of: Use,
        tokens: &[Token],
        rows: &[Token],
    ) -> Result<usize, GpuError> {
        let codes: Vec<_> = rows.iter().map(|&row| self.kept.codes(row)).collect();
        let is_fixed = of == Use::Steps && self.reserved.is_some();
        let parts = self.paged.attention.parts(&codes, is_fixed);
        let words = tokens::words(tokens, rows, &self.pages, &self.kept, &parts);
        self.buffers[of as usize].tokens.send(&self.device, &words)?;
        Ok(parts.entries)
    }
}

/// Copies `bytes` bytes from one place of a pool to another.
fn copy_page(
    stream: &Arc<CudaStream>,
    pool: &mut CudaSlice<u8>,
    from: usize,
    to: usize,
    bytes: usize,
) -> Result<(), GpuError> {
    let (mut low, mut high) = pool.split_at_mut(from.max(to));
    let (mut first, mut second) =
        (low.slice_mut(from.min(to)..from.min(to) + bytes), high.slice_mut(..bytes));
    if from < to {
        stream.memcpy_dtod(&first, &mut second)?;
    } else {
        stream.memcpy_dtod(&second, &mut first)?;
    }
    Ok(())
}
