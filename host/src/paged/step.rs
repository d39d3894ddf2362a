//! What an engine says of a step: its sequences, how a layer attends, and the tokens that are no codes.

use super::pages::check;
use crate::cache::vectors::Floats;
use crate::error::CacheError;
use std::ops::Range;

/// The sequences of a step, one for each row of queries. Several rows may be of one sequence, as in a prompt or with drafted
/// tokens: they have the same blocks and lengths of their own. If they follow each other, the codes are read once for up to
/// eight query heads of them.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The blocks of each row, `[rows, entries]`. What is after the last token of a row may be any number.
    pub table: &'a [i32],
    /// Tokens of each row, its own included.
    pub lengths: &'a [i32],
    /// The first token that each row sees; empty if all see from the first one on.
    pub starts: &'a [i32],
}

impl Step<'_> {
    /// Entries of the table for each row.
    pub(super) fn entries(&self) -> Result<usize, CacheError> {
        of_each("entries of the table", self.table.len(), self.lengths.len())
    }

    /// Tokens of a row, cut to what its blocks of `tokens` tokens hold.
    pub(super) fn length(&self, row: usize, tokens: usize) -> usize {
        let most = self.table.len() / self.lengths.len() * tokens;
        usize::try_from(self.lengths[row]).unwrap_or(0).min(most)
    }

    /// The tokens that a row sees.
    pub(super) fn seen(&self, row: usize, tokens: usize, window: Option<usize>) -> Range<usize> {
        let end = self.length(row, tokens);
        let start = self.starts.get(row).map_or(0, |start| usize::try_from(*start).unwrap_or(0));
        start.max(end.saturating_sub(window.unwrap_or(end))).min(end)..end
    }
}

/// How a layer attends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rule<'a> {
    /// Factor of the logits, a finite number; 1/sqrt(head_dim) if none.
    pub scale: Option<f32>,
    /// Logits l become cap * tanh(l / cap).
    pub soft_cap: Option<f32>,
    /// Newest tokens that a row sees, at least one.
    pub window: Option<usize>,
    /// Learned sinks: a logit for each query head, which takes weight and has no value. Empty for none.
    pub sinks: &'a [f32],
    /// Tokens that are attended to as they are. The engine leaves them out of the codes that the step shows.
    pub exact: Option<ExactTokens<'a>>,
}

/// Tokens of an engine that it keeps as they were computed.
#[derive(Clone, Copy, Debug)]
pub struct ExactTokens<'a> {
    /// Their keys, `[num_kv_heads, places, head_dim]`.
    pub keys: Floats<'a>,
    /// Their values, of the same shape.
    pub values: Floats<'a>,
    /// The places that each row sees, `[rows, columns]`.
    pub places: &'a [i64],
    /// Number of places that may hold a token. One of `places` that is not below it stands for none.
    pub held: usize,
}

impl ExactTokens<'_> {
    /// Checks the lengths for so many rows of a layout.
    pub(super) fn check(&self, rows: usize, heads: usize, dim: usize) -> Result<(), CacheError> {
        let given = of_each("numbers of exact keys", self.keys.len(), heads * dim)?;
        check("exact values", self.values.len(), self.keys.len())?;
        of_each("exact places", self.places.len(), rows)?;
        if self.held <= given {
            return Ok(());
        }
        let held = self.held;
        Err(CacheError::Blocks(format!("{held} exact places are not valid: expected at most {given}")))
    }
}

/// The share of each of `parts` equal parts.
pub(super) fn of_each(what: &str, count: usize, parts: usize) -> Result<usize, CacheError> {
    if count.is_multiple_of(parts) {
        return Ok(count.checked_div(parts).unwrap_or(0));
    }
    Err(CacheError::Blocks(format!("{count} {what} are not valid: expected a multiple of {parts}")))
}
