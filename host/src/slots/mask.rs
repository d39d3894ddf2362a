//! Which slots each query of a step sees.

use crate::error::CacheError;
use crate::memory;
use half::f16;
use tqkv_core::KvError;

/// Which slots each query of a step sees. It is made once for a step and serves all layers.
///
/// ```
/// use tqkv::slots::Mask;
///
/// // Two sequences in a cache of 16 slots, which share the slots 0 to 3.
/// let mut mask = Mask::new(16);
/// mask.see([0, 1, 2, 3, 7])?;
/// mask.see((0..4).chain(10..12))?;
/// assert_eq!(mask.queries(), 2);
/// # Ok::<(), tqkv::error::CacheError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mask {
    /// Slots of a stream.
    slots: usize,
    stream: usize,
    /// `[queries, slots]`: added to logits, -inf for hidden slots.
    rows: Vec<f16>,
    /// One past the last slot that a query sees.
    end: usize,
}

impl Mask {
    /// A mask without queries, for a cache with `slots` slots per stream. Its queries read the first stream.
    pub fn new(slots: usize) -> Self {
        Self { slots, stream: 0, rows: Vec::new(), end: 0 }
    }

    /// Makes the queries read another stream. Slots are then counted from the first one of that stream.
    #[must_use]
    pub fn of_stream(self, stream: usize) -> Self {
        Self { stream, ..self }
    }

    /// Adds a query that sees these slots and no others.
    ///
    /// # Errors
    /// [`CacheError::Slot`] or [`CacheError::Memory`]. The query is not added then.
    pub fn see(&mut self, seen: impl IntoIterator<Item = usize>) -> Result<(), CacheError> {
        self.see_with(seen.into_iter().map(|slot| (slot, 0.0)))
    }

    /// Adds a query that sees these slots, each with a number that is added to its logit (ALiBi, for
    /// example). Numbers are rounded to f16; those below its range hide the slot, as -inf does.
    ///
    /// # Errors
    /// [`CacheError::Slot`], [`CacheError::Memory`], or [`CacheError::Bias`] for a number that is NaN or above
    /// 65,504. The query is not added then.
    pub fn see_with(&mut self, seen: impl IntoIterator<Item = (usize, f32)>) -> Result<(), CacheError> {
        let (before, slots) = (self.rows.len(), self.slots);
        memory::reserve(&mut self.rows, slots)?;
        self.rows.resize(before + slots, f16::NEG_INFINITY);
        let mut end = self.end;
        for (slot, bias) in seen {
            let rounded = f16::from_f32(bias);
            let refused = match self.rows[before..].get_mut(slot) {
                None => CacheError::Slot { slot, slots },
                Some(_) if rounded.is_nan() || rounded == f16::INFINITY => CacheError::Bias { slot, bias },
                Some(place) => {
                    *place = rounded;
                    end = end.max(slot + 1);
                    continue;
                }
            };
            self.rows.truncate(before);
            return Err(refused);
        }
        self.end = end;
        Ok(())
    }

    /// Adds queries of the newest `queries` tokens of a sequence, in order. `slots` are those of all tokens of
    /// the sequence, in order, a shared prefix first. Each query sees the slots up to that of its own token.
    ///
    /// # Errors
    /// [`CacheError::Slot`], [`CacheError::Memory`], or a [`KvError::Length`] if there are more queries than
    /// tokens. No query is added then.
    pub fn causal(&mut self, slots: &[usize], queries: usize) -> Result<(), CacheError> {
        let Some(past) = slots.len().checked_sub(queries) else {
            return Err(KvError::Length { what: "slots", got: slots.len(), expected: queries }.into());
        };
        if let Some(&slot) = slots.iter().find(|slot| **slot >= self.slots) {
            return Err(CacheError::Slot { slot, slots: self.slots });
        }
        memory::reserve(&mut self.rows, self.slots.saturating_mul(queries))?;
        (past + 1..=slots.len()).try_for_each(|seen| self.see(slots[..seen].iter().copied()))
    }

    /// Removes all queries, and keeps the memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.end = 0;
    }

    /// Number of queries.
    pub fn queries(&self) -> usize {
        self.rows.len() / self.slots.max(1)
    }

    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    pub(super) fn stream(&self) -> usize {
        self.stream
    }

    pub(super) fn rows(&self) -> &[f16] {
        &self.rows
    }

    pub(super) fn end(&self) -> usize {
        self.end
    }
}
