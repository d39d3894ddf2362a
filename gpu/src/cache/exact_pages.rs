//! [`ExactPages`]: the exact tokens of a cache. Each of its sequences has pages of f16 rows, and all its tokens are
//! codes too, so these rows are copies that any call may drop.

use crate::GpuError;
use crate::exact::ExactWindow;
use crate::paged::attention::Table;
use crate::pages::PageTable;
use crate::parts::Parts;
use cudarc::driver::CudaView;
use std::ops::Range;

/// A token of a launch: its sequence, and the length of the sequence up to and including the token.
pub(super) type Token = (usize, usize);

/// The pages of f16 rows. All layers use the same numbers.
#[derive(Debug)]
pub(super) struct ExactPages {
    exact: ExactWindow,
    pages: PageTable,
    /// The first token of each sequence from which on the ring has all, those before the ring's apart.
    from: Vec<usize>,
}

impl ExactPages {
    /// There are pages for all sequences, so that none is ever missing.
    pub(super) fn new(exact: ExactWindow, sequences: usize) -> Self {
        let pages = PageTable::new(sequences, exact.pages(), sequences * exact.pages());
        Self { exact, pages, from: vec![0; sequences] }
    }

    /// Returns true if no token is exact.
    pub(super) fn is_empty(&self) -> bool {
        self.exact.pages() == 0
    }

    /// Most tokens of a sequence that may be appended before the first of them attends.
    pub(super) fn together(&self) -> usize {
        self.exact.together()
    }

    /// Pages of all sequences.
    pub(super) fn count(&self) -> usize {
        self.pages.count()
    }

    /// Pages of a row of a launch.
    pub(super) fn seen_pages(&self) -> usize {
        self.exact.seen_pages()
    }

    /// Finds pages for appended tokens. `copy` copies a page that sequences share.
    pub(super) fn own(
        &mut self,
        tokens: &[Token],
        mut copy: impl FnMut(u32, u32) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        for &(sequence, length) in tokens {
            self.from[sequence] = self.exact.first_kept(self.from[sequence], length);
        }
        for &(sequence, length) in tokens {
            if let Some(slot) = self.exact.slot(length - 1, self.from[sequence]) {
                self.pages.own(sequence, slot, &mut copy)?;
            }
        }
        Ok(())
    }

    /// The place of a token's rows, if it has some.
    pub(super) fn place(&self, (sequence, length): Token) -> Option<usize> {
        let slot = self.exact.slot(length.checked_sub(1)?, self.from[sequence])?;
        self.pages.place(sequence, slot)
    }

    /// The tokens that a query token sees as codes.
    pub(super) fn codes(&self, (sequence, length): Token) -> Range<usize> {
        self.exact.codes(length, self.from[sequence])
    }

    /// The first token of each run of exact tokens that a query token sees, and their slots in the pages of
    /// [`ExactPages::numbers`].
    pub(super) fn runs(&self, (sequence, length): Token) -> Vec<(usize, Range<usize>)> {
        let (codes, mut next) = (self.codes((sequence, length)), 0);
        let parts = self.exact.seen(length, self.from[sequence]).parts.into_iter();
        let runs = parts.map(|slots| {
            let first = if next == codes.start { codes.end } else { next };
            next = first + slots.len();
            (first, slots)
        });
        runs.collect()
    }

    /// The pages that a query token sees, with others after them.
    pub(super) fn numbers(&self, (sequence, length): Token) -> Vec<u32> {
        let pages = self.pages.of(sequence);
        let seen = self.exact.seen(length, self.from[sequence]).pages;
        let mut numbers: Vec<u32> =
            seen.into_iter().map(|page| pages.get(page).copied().unwrap_or(0)).collect();
        numbers.resize(self.seen_pages(), 0);
        numbers
    }

    /// Control words of rows, next to the parts over codes: a plan, whose sequences are rows of the table after it.
    pub(super) fn words(&self, rows: &[Token], parts: &Parts) -> Vec<u32> {
        let seen: Vec<_> =
            rows.iter().map(|&(sequence, length)| self.exact.seen(length, self.from[sequence])).collect();
        let numbers = (0..rows.len()).chain(seen.iter().map(|seen| seen.length)).map(|word| word as u32);
        let mut words: Vec<u32> = numbers.chain(parts.words[..=rows.len()].iter().copied()).collect();
        let slots: Vec<_> = seen.iter().map(|seen| seen.parts.clone()).collect();
        words.extend(parts.of_others(self.exact.parts(), &slots));
        words.extend(rows.iter().flat_map(|&row| self.numbers(row)));
        words
    }

    /// The table of `rows` rows that [`ExactPages::words`] wrote.
    pub(super) fn table<'a>(&self, words: &'a CudaView<'a, u32>, rows: usize) -> Table<'a> {
        let (max_blocks, entries) = (self.seen_pages(), rows * self.seen_pages());
        Table { memory: words.slice(..).into(), max_blocks, entries, shift: 0, pages: self.count() }
    }

    /// Lets `to`, which has no tokens, share the rows of the first `tokens` tokens of `from`.
    pub(super) fn share(&mut self, from: usize, to: usize, tokens: usize) {
        self.pages.share(from, to, self.exact.extent(tokens));
        self.from[to] = self.from[from].min(tokens);
    }

    /// Frees the pages that a sequence of `tokens` tokens does not need. The ring goes on from there.
    pub(super) fn trim(&mut self, sequence: usize, tokens: usize) {
        self.pages.trim(sequence, self.exact.extent(tokens));
        self.from[sequence] = self.from[sequence].min(tokens);
    }
}
