//! Which page of the pool holds which tokens of which sequence.
//!
//! The table is the host's; the device gets a copy before a kernel that reads it. All layers share
//! it, since their sequences have equal lengths between model steps.

use crate::GpuError;
use tqkv_gpu_kernels::page;

/// Tokens a page.
pub(crate) const SLOTS: usize = page::SLOTS as usize;

/// Page numbers of all sequences, and the pages that nobody has.
#[derive(Clone, Debug)]
pub(crate) struct PageTable {
    /// [sequences, max_pages]; entries behind a sequence's pages are stale but in range.
    entries: Vec<u32>,
    max_pages: usize,
    taken: Vec<usize>,
    free: Vec<u32>,
    pages: usize,
    /// Whether the device's copy is older.
    changed: bool,
}

impl PageTable {
    /// Empty sequences of up to `max_pages` pages out of `pages`.
    pub(crate) fn new(sequences: usize, max_pages: usize, pages: usize) -> Self {
        Self {
            entries: vec![0; sequences * max_pages],
            max_pages,
            taken: vec![0; sequences],
            free: (0..pages as u32).rev().collect(),
            pages,
            changed: true,
        }
    }

    /// Gives `sequence` pages for `tokens` tokens, if it has fewer.
    pub(crate) fn reserve(&mut self, sequence: usize, tokens: usize) -> Result<(), GpuError> {
        while self.taken[sequence] < tokens.div_ceil(SLOTS) {
            let page = self.free.pop().ok_or(GpuError::PoolFull { pages: self.pages })?;
            self.entries[sequence * self.max_pages + self.taken[sequence]] = page;
            self.taken[sequence] += 1;
            self.changed = true;
        }
        Ok(())
    }

    /// Takes back the pages of `sequence` behind its first `tokens` tokens.
    pub(crate) fn trim(&mut self, sequence: usize, tokens: usize) {
        while self.taken[sequence] > tokens.div_ceil(SLOTS) {
            self.taken[sequence] -= 1;
            self.free.push(self.entries[sequence * self.max_pages + self.taken[sequence]]);
        }
    }

    /// Pages of `sequence`, in the order of its tokens.
    pub(crate) fn of(&self, sequence: usize) -> &[u32] {
        &self.entries[sequence * self.max_pages..][..self.taken[sequence]]
    }

    /// Entries a sequence.
    pub(crate) fn max_pages(&self) -> usize {
        self.max_pages
    }

    /// Pages in use.
    pub(crate) fn used(&self) -> usize {
        self.pages - self.free.len()
    }

    /// Hands all entries to `copy` if they changed since it last succeeded.
    pub(crate) fn copy_changes<E>(&mut self, copy: impl FnOnce(&[u32]) -> Result<(), E>) -> Result<(), E> {
        if self.changed {
            copy(&self.entries)?;
            self.changed = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_once_and_come_back() {
        let mut table = PageTable::new(3, 4, 6);
        table.reserve(0, 65).unwrap();
        table.reserve(1, 256).unwrap();
        assert_eq!(table.of(0).len(), 2);
        let mut all = [table.of(0), table.of(1)].concat();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5], "every page has one owner");
        assert_eq!(table.reserve(2, 1), Err(GpuError::PoolFull { pages: 6 }));
        table.trim(1, 64);
        assert_eq!((table.used(), table.of(1).len()), (3, 1));
        let kept = table.of(1).to_vec();
        table.reserve(2, 130).unwrap();
        assert_eq!(table.of(1), kept, "trimming leaves the first pages alone");
        assert!(table.of(2).iter().all(|page| !kept.contains(page) && !table.of(0).contains(page)));
    }

    #[test]
    fn the_device_copy_is_made_when_entries_changed() {
        let mut table = PageTable::new(1, 2, 2);
        let copied = |table: &mut PageTable, result: Result<(), ()>| {
            let mut entries = None;
            let copied = table.copy_changes(|all| {
                entries = Some(all.len());
                result
            });
            assert_eq!(copied, if entries.is_some() { result } else { Ok(()) });
            entries
        };
        assert_eq!(copied(&mut table, Ok(())), Some(2));
        assert_eq!(copied(&mut table, Ok(())), None);
        table.reserve(0, 64).unwrap();
        assert_eq!(copied(&mut table, Err(())), Some(2));
        assert_eq!(copied(&mut table, Ok(())), Some(2), "a copy that failed is made again");
        table.reserve(0, 10).unwrap();
        assert_eq!(copied(&mut table, Ok(())), None, "nothing was added");
        table.trim(0, 0);
        assert_eq!(table.used(), 0);
    }
}
