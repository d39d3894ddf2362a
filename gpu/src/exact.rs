//! [`ExactWindow`]: which tokens of a sequence have f16 rows too, and where these lie.
//!
//! The rows lie in pages that only they use. The first tokens end where a page ends, so that the others begin
//! one, and the newest go round in a ring of pages. A list of parts can say where the first page of a part
//! begins to be seen and where a row ends, and no more; so the first tokens are one part and the newest others.

use crate::pages::SLOTS;
use std::ops::Range;

/// Most parts over the newest tokens of a row. Each is written, and the merge reads it again.
const MOST_PARTS: usize = 4;

/// More tokens than a sequence can have; so sums do not overflow.
const MOST_TOKENS: usize = 1 << 31;

/// The tokens of a sequence that are exact: the first, and the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExactWindow {
    sinks: usize,
    hot: usize,
    /// Tokens of the ring.
    ring: usize,
}

/// What a query token sees of the f16 rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VisibleRows {
    /// Indices of pages, in the order in which the token sees them.
    pub(crate) pages: Vec<usize>,
    /// Slots up to its last token, in the pages in this order.
    pub(crate) length: usize,
    /// Slots of each part.
    pub(crate) parts: Vec<Range<usize>>,
}

impl ExactWindow {
    /// The first `sinks` tokens and the newest `hot` of sequences of at most `max_tokens`.
    pub(crate) fn new(sinks: usize, hot: usize, max_tokens: usize) -> Self {
        let max_tokens = max_tokens.min(MOST_TOKENS);
        let sinks = sinks.min(max_tokens);
        let rest = max_tokens - sinks;
        let hot = hot.min(rest);
        // A page more, so that each of a page's tokens still finds its window when all of them were written.
        let ring = (hot + SLOTS - 1).min(rest).next_multiple_of(SLOTS);
        Self { sinks, hot, ring: if hot == 0 { 0 } else { ring } }
    }

    fn sink_pages(self) -> usize {
        self.sinks.div_ceil(SLOTS)
    }

    /// Slots before the first token.
    fn offset(self) -> usize {
        self.sink_pages() * SLOTS - self.sinks
    }

    /// Pages of a sequence.
    pub(crate) fn pages(self) -> usize {
        self.sink_pages() + self.ring / SLOTS
    }

    /// Pages of the newest tokens of a row, at most.
    fn hot_pages(self) -> usize {
        if self.hot == 0 { 0 } else { (self.hot + SLOTS - 2) / SLOTS + 1 }
    }

    /// Pages that a row sees, at most.
    pub(crate) fn seen_pages(self) -> usize {
        self.sink_pages() + self.hot_pages()
    }

    /// Pages of a part of the newest tokens.
    fn part_pages(self) -> usize {
        self.hot_pages().div_ceil(MOST_PARTS).max(1)
    }

    /// Parts of a row.
    pub(crate) fn parts(self) -> usize {
        usize::from(self.sinks > 0) + self.hot_pages().div_ceil(self.part_pages())
    }

    /// Tokens of a sequence that can be written before one of them attends, so that it still has all of its
    /// newest tokens.
    pub(crate) fn together(self) -> usize {
        if self.hot == 0 { usize::MAX } else { self.ring - self.hot + 1 }
    }

    /// The first token whose row the ring still has when `length` tokens were written and it had those from
    /// `from` on.
    pub(crate) fn first_kept(self, from: usize, length: usize) -> usize {
        from.max(length.saturating_sub(self.ring))
    }

    /// The slot of a token among the pages of its sequence, if it has one. The ring has tokens from `from` on.
    pub(crate) fn slot(self, position: usize, from: usize) -> Option<usize> {
        if position < self.sinks {
            return Some(position + self.offset());
        }
        (position >= from && self.ring > 0)
            .then(|| self.sink_pages() * SLOTS + (position - self.sinks) % self.ring)
    }

    /// Slots up to the last that a sequence of this length uses.
    pub(crate) fn extent(self, length: usize) -> usize {
        if length == 0 { 0 } else { (length + self.offset()).min(self.pages() * SLOTS) }
    }

    /// The tokens that a query token sees as codes, if it sees `length` tokens and the ring has those from
    /// `from` on.
    pub(crate) fn codes(self, length: usize, from: usize) -> Range<usize> {
        let sinks = self.sinks.min(length);
        let hot = length.saturating_sub(self.hot).max(from).clamp(sinks, length);
        sinks..hot
    }

    /// The f16 rows that the same query token sees.
    pub(crate) fn seen(self, length: usize, from: usize) -> VisibleRows {
        let (sinks, start) = (self.sinks.min(length), self.codes(length, from).end);
        let behind = self.sink_pages();
        let mut seen = VisibleRows { pages: Vec::new(), length: self.extent(sinks), parts: Vec::new() };
        if sinks > 0 {
            seen.pages.extend(0..behind);
            seen.parts.push(self.offset()..self.offset() + sinks);
        }
        if start < length {
            let (first, end) = (start - self.sinks, length - self.sinks);
            let pages = first / SLOTS..end.div_ceil(SLOTS);
            seen.length = behind * SLOTS + end - pages.start * SLOTS;
            let size = self.part_pages() * SLOTS;
            let slots = behind * SLOTS + first % SLOTS..seen.length;
            let mut next = slots.start;
            while next < slots.end {
                let end = (behind * SLOTS + ((next - behind * SLOTS) / size + 1) * size).min(slots.end);
                seen.parts.push(next..end);
                next = end;
            }
            seen.pages.extend(pages.map(|page| behind + page % (self.ring / SLOTS)));
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes tokens as a cache does, and checks what each of the last ones sees against a list of the tokens
    /// in each slot.
    fn check(sinks: usize, hot: usize, max_tokens: usize, runs: &[usize]) {
        let exact = ExactWindow::new(sinks, hot, max_tokens);
        let mut slots = vec![usize::MAX; exact.pages() * SLOTS];
        let (mut length, mut from) = (0, 0);
        for run in runs {
            let before = length;
            length += run;
            from = exact.first_kept(from, length);
            for position in before..length {
                if let Some(slot) = exact.slot(position, from) {
                    assert!(slot < exact.extent(length), "{position}");
                    slots[slot] = position;
                }
            }
            for seeing in before + 1..=length {
                let (codes, seen) = (exact.codes(seeing, from), exact.seen(seeing, from));
                assert!(seen.parts.len() <= exact.parts() && seen.pages.len() <= exact.seen_pages());
                let mut tokens = Vec::new();
                for part in seen.parts {
                    // As a kernel does: whole pages, from the first slot on and before the end of the row.
                    let pages = part.start / SLOTS..part.end.div_ceil(SLOTS);
                    let last = (pages.end * SLOTS).min(seen.length);
                    tokens.extend(
                        (part.start..last).map(|at| slots[seen.pages[at / SLOTS] * SLOTS + at % SLOTS]),
                    );
                }
                tokens.extend(codes.clone());
                tokens.sort_unstable();
                assert!(tokens.into_iter().eq(0..seeing), "{sinks} {hot}: {seeing} of {length}");
                if length - seeing < exact.together() {
                    assert_eq!(codes.end, seeing.saturating_sub(exact.hot).max(exact.sinks.min(seeing)));
                }
            }
        }
    }

    #[test]
    fn a_row_sees_each_token_once() {
        for (sinks, hot) in
            [(4, 64), (0, 64), (4, 0), (0, 1), (70, 300), (1, 2), (64, 65), (0, 0), (128, 128)]
        {
            check(sinks, hot, 4096, &[1; 400]);
            check(sinks, hot, 4096, &[700, 1, 64, 3, 65, 200, 1]);
        }
        check(4, 64, 100, &[1; 100]);
        check(4, 64, 3, &[2, 1]);
        check(100, 200, 150, &[20, 130]);
    }

    #[test]
    fn a_sequence_has_few_pages() {
        let exact = ExactWindow::new(4, 64, 4096);
        assert_eq!((exact.pages(), exact.seen_pages(), exact.parts(), exact.together()), (3, 3, 3, 65));
        assert_eq!(ExactWindow::new(4, 32, 4096).pages(), 2 + 1);
        assert_eq!(ExactWindow::new(0, 1, 4096).pages(), 1);
        assert_eq!(ExactWindow::new(4, 64, 60).pages(), 2, "no more than the sequence");
        assert_eq!(ExactWindow::new(0, 0, 4096).pages(), 0);
        let wide = ExactWindow::new(4, 1024, 4096);
        assert_eq!((wide.seen_pages(), wide.parts()), (1 + 17, 1 + 4));
    }
}
