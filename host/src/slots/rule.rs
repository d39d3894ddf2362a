//! The settings of queries, and their effect on logits: masks, soft caps and sinks.

use half::f16;
use half::slice::HalfFloatSliceExt;
use tqkv_simd::page::MAX_PART;

/// The settings that all queries of an operation share.
#[derive(Clone, Copy, Debug)]
pub struct QueryRule {
    /// Factor of logits.
    pub scale: f32,
    /// Logits l become cap * tanh(l / cap).
    pub soft_cap: Option<f32>,
    /// Number of slots that are attended to, from the first on.
    pub slots: usize,
}

/// The settings of one query.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueryMask<'a> {
    /// One number per slot, added to the logits; -inf hides the slot. Empty for no mask. All query heads of a
    /// token may share one slice.
    pub mask: &'a [f16],
    /// Factor of the mask.
    pub slope: f32,
    /// A logit that takes weight but has no value (a learned sink).
    pub sink: Option<f32>,
}

/// Neighbouring queries that share one mask slice.
pub(super) fn alike<'a, 'b>(asked: &'a [QueryMask<'b>]) -> impl Iterator<Item = &'a [QueryMask<'b>]> {
    asked.chunk_by(|a, b| std::ptr::eq(a.mask, b.mask))
}

impl QueryMask<'_> {
    /// The mask of slots `from..to`. Slots past the end of the mask are seen; the result leaves them out.
    pub(super) fn mask_of(&self, from: usize, to: usize) -> &[f16] {
        self.mask.get(from..to.min(self.mask.len())).unwrap_or_default()
    }
}

const MINUS_INFINITY: u16 = 0xfc00;

/// True if a mask shows one of its own slots. Slots past its end, which are seen too, do not count.
pub(super) fn shows_any(mask: &[f16]) -> bool {
    !mask.iter().fold(true, |hidden, x| hidden & (x.to_bits() == MINUS_INFINITY))
}

/// True if a mask changes a logit.
pub(super) fn changes_any(mask: &[f16]) -> bool {
    mask.iter().fold(false, |changed, x| changed | (x.to_bits() != 0))
}

/// Adds a mask times its factor to logits. A hidden slot gets the logit -inf whatever it had: a sum of its logit, which
/// may be NaN, would not hide it.
pub(super) fn add_mask(logits: &mut [f32], mask: &[f16], slope: f32) {
    let mut wide = [0.0; MAX_PART];
    for (logits, mask) in logits.chunks_mut(MAX_PART).zip(mask.chunks(MAX_PART)) {
        let wide = &mut wide[..mask.len()];
        mask.convert_to_f32_slice(wide);
        for (logit, &mask) in logits.iter_mut().zip(&*wide) {
            *logit = if mask == f32::NEG_INFINITY { mask } else { *logit + slope * mask };
        }
    }
}
