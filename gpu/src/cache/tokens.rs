//! The tokens of a launch: control words that kernels read from device memory.

use crate::GpuError;
use crate::device::Device;
use crate::paged::attention::Plan;
use crate::pages::PageTable;
use crate::staging::Staging;
use cudarc::driver::{CudaSlice, CudaView};

/// A token of a launch: its sequence, and the length of the sequence up to and including the token.
pub(super) type Token = (usize, usize);

/// Control words on the device, with a copy on the host. Equal words are not sent again, so a step of a model
/// sends each list once.
#[derive(Debug)]
pub(super) struct Words {
    sent: Vec<u32>,
    memory: CudaSlice<u32>,
    staging: Staging<u32>,
}

impl Words {
    /// Room for `len` words.
    pub(super) fn new(device: &Device, len: usize) -> Result<Self, GpuError> {
        Ok(Self { sent: Vec::new(), memory: device.zeros(len)?, staging: Staging::new() })
    }

    /// The words that were sent last, and perhaps others behind them.
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

/// The control words of some tokens: places (two words each), then a plan: sequences, lengths, parts.
pub(super) fn words(tokens: &[Token], pages: &PageTable, parts: &[u32]) -> Vec<u32> {
    let places = tokens.iter().flat_map(|&(sequence, length)| {
        let place = pages.place(sequence, length.wrapping_sub(1)).map_or(-1, |place| place as i64);
        [place as u32, (place >> 32) as u32]
    });
    let sequences = tokens.iter().map(|&(sequence, _)| sequence as u32);
    let lengths = tokens.iter().map(|&(_, length)| length as u32);
    places.chain(sequences).chain(lengths).chain(parts.iter().copied()).collect()
}

/// Number of control words of `count` tokens, with `entries` entries in the list of parts.
pub(super) const fn len(count: usize, entries: usize) -> usize {
    2 * count + Plan::len(count, entries)
}

/// The lists of `count` tokens, in the layout of [`words`].
#[derive(Clone, Copy)]
pub(super) struct Lists<'a> {
    words: &'a Words,
    count: usize,
}

impl<'a> Lists<'a> {
    /// The lists that were sent last.
    pub(super) fn new(words: &'a Words, count: usize) -> Self {
        Self { words, count }
    }

    /// The place of each token.
    pub(super) fn places(self) -> CudaView<'a, u32> {
        self.words.memory.slice(..2 * self.count)
    }

    /// The words of the plan, and behind them memory that is not used.
    pub(super) fn plan(self) -> CudaView<'a, u32> {
        self.words.memory.slice(2 * self.count..)
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

    #[test]
    fn the_lists_stand_one_behind_the_other() {
        let mut pages = PageTable::new(4, 2, 6);
        let mut own = |sequence, position| pages.own(sequence, position, |_, _| Ok(())).unwrap();
        own(0, 64);
        own(3, 1);
        let tokens = [(3, 1), (0, 65), (3, 2), (1, 0)];
        let parts = [0, 1, 2, 3, 3, 0, 0, 1, 1, 0, 2, 2, 0, 1];
        let all = words(&tokens, &pages, &parts);
        let places = [2 * 64, 0, 64, 0, 2 * 64 + 1, 0, u32::MAX, u32::MAX];
        assert_eq!(all, [&places, &[3, 0, 3, 1, 1, 65, 2, 0][..], &parts].concat());
        assert_eq!(all.len(), len(4, 3));
    }
}
