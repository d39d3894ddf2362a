//! The tokens of a launch: control words that kernels read from device memory.

use crate::GpuError;
use crate::device::Device;
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

/// The control words of some tokens: sequences, positions, lengths, parts.
pub(super) fn words(tokens: &[Token], parts: &[u32]) -> Vec<u32> {
    let sequences = tokens.iter().map(|&(sequence, _)| sequence as u32);
    let positions = tokens.iter().map(|&(_, length)| length.saturating_sub(1) as u32);
    let lengths = tokens.iter().map(|&(_, length)| length as u32);
    sequences.chain(positions).chain(lengths).chain(parts.iter().copied()).collect()
}

/// Number of control words of `count` tokens, with `entries` entries in the list of parts.
pub(super) const fn len(count: usize, entries: usize) -> usize {
    4 * count + 1 + 3 * entries
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

    pub(super) fn sequences(self) -> CudaView<'a, u32> {
        self.words.memory.slice(..self.count)
    }

    pub(super) fn positions(self) -> CudaView<'a, u32> {
        self.words.memory.slice(self.count..2 * self.count)
    }

    pub(super) fn lengths(self) -> CudaView<'a, u32> {
        self.words.memory.slice(2 * self.count..3 * self.count)
    }

    /// The words of the parts, and behind them memory that is not used.
    pub(super) fn parts(self) -> CudaView<'a, u32> {
        self.words.memory.slice(3 * self.count..)
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
        let tokens = [(3, 1), (0, 65), (3, 2), (1, 0)];
        let parts = [0, 1, 2, 3, 3, 0, 0, 1, 1, 0, 2, 2, 0, 1];
        let all = words(&tokens, &parts);
        assert_eq!(all, [&[3, 0, 3, 1, 0, 64, 1, 0, 1, 65, 2, 0][..], &parts].concat());
        assert_eq!(all.len(), len(4, 3));
    }
}
