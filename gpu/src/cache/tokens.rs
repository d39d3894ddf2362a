//! The tokens of a launch: control words that kernels read from device memory.

use super::exact_pages::{ExactPages, Token};
use crate::GpuError;
use crate::device::Device;
use crate::paged::attention::Plan;
use crate::pages::PageTable;
use crate::parts::Parts;
use crate::staging::Staging;
use cudarc::driver::{CudaSlice, CudaView};

/// Control words on the device, with a copy on the host. Equal words are not sent again, so a step of a model
/// sends each list once.
#[derive(Debug)]
pub(super) struct WordBuffer {
    sent: Vec<u32>,
    memory: CudaSlice<u32>,
    staging: Staging<u32>,
}

impl WordBuffer {
    /// Room for `len` words.
    pub(super) fn new(device: &Device, len: usize) -> Result<Self, GpuError> {
        Ok(Self { sent: Vec::new(), memory: device.zeros(len)?, staging: Staging::new() })
    }

    /// The words that were sent last, and perhaps others after them.
    pub(super) fn memory(&self) -> &CudaSlice<u32> {
        &self.memory
    }

    /// Makes room for `len` words. Later lists of up to that length do not move the memory.
    pub(super) fn reserve(&mut self, device: &Device, len: usize) -> Result<(), GpuError> {
        if self.memory.len() < len {
            self.sent.clear();
            device.grow(&mut self.memory, len)?;
        }
        Ok(())
    }

    /// Puts `words` on the device, without waiting.
    pub(super) fn send(&mut self, device: &Device, words: &[u32]) -> Result<(), GpuError> {
        if self.sent != words {
            // After a failed copy the contents are unknown, so the copy on the host is cleared first.
            self.sent.clear();
            self.staging.send(device, words, &mut self.memory)?;
            self.sent.extend_from_slice(words);
        }
        Ok(())
    }
}

/// The control words of some tokens: the place of each (two words), then a plan of `rows`, which are these tokens
/// or none: sequences, lengths, parts. Where tokens are exact, the places of their f16 rows follow the others, and
/// the words of [`ExactPages::words`] the plan.
pub(super) fn words(
    tokens: &[Token],
    rows: &[Token],
    pages: &PageTable,
    kept: &ExactPages,
    parts: &Parts,
) -> Vec<u32> {
    let of_codes = |&(sequence, length): &Token| pages.place(sequence, length.wrapping_sub(1));
    let mut words: Vec<u32> = tokens.iter().map(of_codes).flat_map(place).collect();
    if !kept.is_empty() {
        words.extend(tokens.iter().map(|&token| kept.place(token)).flat_map(place));
    }
    words.extend(rows.iter().map(|&(sequence, _)| sequence as u32));
    words.extend(rows.iter().map(|&row| kept.codes(row).end as u32));
    words.extend_from_slice(&parts.words);
    if !kept.is_empty() {
        words.extend(kept.words(rows, parts));
    }
    words
}

/// The words of a place. No place is a negative number.
fn place(place: Option<usize>) -> [u32; 2] {
    let place = place.map_or(-1, |place| place as i64);
    [place as u32, (place >> 32) as u32]
}

/// Number of control words of `count` tokens, each of which is a row, with `entries` entries in the list of parts.
pub(super) fn len(count: usize, entries: usize, kept: &ExactPages) -> usize {
    let codes = 2 * count + Plan::len(count, entries);
    if kept.is_empty() { codes } else { 2 * codes + count * kept.seen_pages() }
}

/// The lists of `count` tokens, in the layout of [`words`].
#[derive(Clone, Copy)]
pub(super) struct Lists<'a> {
    words: &'a WordBuffer,
    count: usize,
    is_exact: bool,
}

impl<'a> Lists<'a> {
    /// The lists that were sent last.
    pub(super) fn new(words: &'a WordBuffer, count: usize, kept: &ExactPages) -> Self {
        Self { words, count, is_exact: !kept.is_empty() }
    }

    /// The place of each token.
    pub(super) fn places(self) -> CudaView<'a, u32> {
        self.words.memory.slice(..2 * self.count)
    }

    /// The place of each token's f16 rows, where tokens are exact.
    pub(super) fn exact_places(self) -> CudaView<'a, u32> {
        self.words.memory.slice(2 * self.count..4 * self.count)
    }

    /// The words of the plan, and after them other words.
    pub(super) fn plan(self) -> CudaView<'a, u32> {
        let places = if self.is_exact { 4 } else { 2 };
        self.words.memory.slice(places * self.count..)
    }

    /// The plan of exact tokens, if there are any, next to a plan of `entries` entries, and the words of its table.
    pub(super) fn exact_plan(self, entries: usize) -> Option<[CudaView<'a, u32>; 2]> {
        let plan = Plan::len(self.count, entries);
        let start = 4 * self.count + plan;
        self.is_exact.then(|| [start, start + plan].map(|start| self.words.memory.slice(start..)))
    }
}

/// A step that has begun.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) tokens: Vec<Token>,
    /// Entries in the list of parts.
    pub(super) entries: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact::ExactWindow;

    #[test]
    fn the_lists_stand_one_behind_the_other() {
        let mut pages = PageTable::new(4, 2, 6);
        let mut own = |sequence, position| pages.own(sequence, position, |_, _| Ok(())).unwrap();
        own(0, 64);
        own(3, 1);
        let tokens = [(3, 1), (0, 65), (3, 2), (1, 0)];
        let parts = Parts { words: vec![0, 1, 2, 3, 3, 0, 0, 1, 1, 0, 2, 2, 0, 1], entries: 3 };
        let kept = ExactPages::new(ExactWindow::new(0, 0, 256), 4);
        let all = words(&tokens, &tokens, &pages, &kept, &parts);
        let places = [2 * 64, 0, 64, 0, 2 * 64 + 1, 0, u32::MAX, u32::MAX];
        assert_eq!(all, [&places, &[3, 0, 3, 1, 1, 65, 2, 0][..], &parts.words].concat());
        assert_eq!(all.len(), len(4, 3, &kept));
    }

    #[test]
    fn the_lists_of_exact_tokens_stand_behind_those_of_codes() {
        let (mut pages, mut kept) =
            (PageTable::new(2, 4, 8), ExactPages::new(ExactWindow::new(4, 1, 256), 2));
        let tokens = [(1, 65), (0, 66)];
        for sequence in [0, 1] {
            (0..66).for_each(|position| pages.own(sequence, position, |_, _| Ok(())).unwrap());
            kept.own(&[(sequence, 3)], |_, _| Ok(())).unwrap();
        }
        kept.own(&tokens, |_, _| Ok(())).unwrap();
        // A part over codes of each row, and two of exact tokens.
        let parts = Parts { words: [vec![0, 3, 6], vec![7; 18]].concat(), entries: 6 };
        let all = words(&tokens, &tokens, &pages, &kept, &parts);
        assert_eq!(all.len(), len(2, 6, &kept));
        assert_eq!(all[..8], [3 * 64, 0, 64 + 1, 0, 2 * 64 + 60, 0, 3 * 64 + 61, 0]);
        assert_eq!(all[8..12], [1, 0, 64, 65], "codes end before the newest token");
        let first = 12 + parts.words.len();
        assert_eq!(all[12..first], parts.words);
        // The rows of the table, and the slots up to each newest token, in the second of its two pages.
        assert_eq!(all[first..first + 7], [0, 1, 64 + 61, 64 + 62, 0, 3, 6]);
        let none = [u32::MAX; 3];
        let want = [none, [0, 60, 1], [0, 64 + 60, 2], none, [1, 60, 1], [1, 64 + 61, 2]];
        assert_eq!(all[first + 7..all.len() - 4], want.concat());
        assert_eq!(all[all.len() - 4..], [1, 2, 0, 3], "the pages of each row");
    }
}
