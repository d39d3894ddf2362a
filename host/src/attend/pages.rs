//! Scores and sums of pages of codes, which one key head or value head has.

use crate::cache::format::{CodedQueries, PageFormat};
use arrayvec::ArrayVec;
use tqkv_simd::page::{Line, MAX_PARTS, ValuePages, ValuePart};

/// A page and the arrangement of its codes.
#[derive(Clone, Copy)]
pub(crate) struct PageView<'a> {
    pub(crate) format: &'a PageFormat,
    pub(crate) lines: &'a [Line],
}

/// Tokens of a page that are summed.
#[derive(Clone, Copy)]
pub(crate) struct PageSum<'a> {
    pub(crate) page: PageView<'a>,
    /// Index of the first token, counted from the first page of the sequence or of the slots.
    pub(crate) index: usize,
    /// `[heads, n]`
    pub(crate) weights: &'a [f32],
    /// Memory to prefetch.
    pub(crate) next: &'a [Line],
}

/// Logits of the slots of a page from `slot` on: `out` is `[heads, n]`. `offsets` has the product of each query and the
/// mean that the keys are stored less of, and is empty if they have none. `next` is memory to prefetch.
#[inline]
pub(crate) fn score_page(
    page: PageView<'_>,
    slot: usize,
    (queries, offsets): (&CodedQueries, &[f32]),
    next: &[Line],
    out: &mut [f32],
) {
    page.format.scores(page.lines, slot, queries, next, out);
    if !offsets.is_empty() {
        let n = out.len() / offsets.len();
        for (out, offset) in out.chunks_exact_mut(n).zip(offsets) {
            out.iter_mut().for_each(|logit| *logit += offset);
        }
    }
}

/// Adds the weighted values of up to [`MAX_PARTS`] pages to sums (`[heads, dim]`) in the domain of the blocks. Pages of
/// one codec with kernels are summed together. Only the codec decides, so spare room changes no bit.
#[inline]
pub(crate) fn sum_pages<'a>(sums: impl ExactSizeIterator<Item = PageSum<'a>> + Clone, rotated: &mut [f32]) {
    let (count, mut first) = (sums.len(), None);
    let mut parts = ArrayVec::<ValuePart<'_>, MAX_PARTS>::new();
    for PageSum { page: PageView { format, lines }, index, weights, next } in sums.clone() {
        let first = first.get_or_insert(format);
        match format.part(lines, index, weights, next) {
            Some(part) if format.codec().id() == first.codec().id() => parts.push(part),
            _ => break,
        }
    }
    if let Some(first) = first.filter(|_| parts.len() == count) {
        return ValuePages::accumulate_parts(first.level(), &parts, rotated);
    }
    for PageSum { page: PageView { format, lines }, index, weights, next } in sums {
        format.accumulate(lines, index, weights, next, rotated);
    }
}
