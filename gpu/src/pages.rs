//! [`PageTable`]: the pages of each sequence, and the free pages.
//!
//! The host owns the table. The device gets a copy before a kernel reads it. All layers share the table,
//! because a sequence has the same length in each layer between model steps. Sequences may share pages.
//! Before a sequence writes to a shared page, it gets a copy of it.

use crate::GpuError;
use tqkv_gpu_kernels::page;

/// Tokens per page.
pub(crate) const SLOTS: usize = page::SLOTS as usize;

/// Page numbers of all sequences, and the free pages.
#[derive(Clone, Debug)]
pub(crate) struct PageTable {
    /// Page numbers, `[sequences, max_pages]`. Entries after a sequence's last page are stale but in range.
    entries: Vec<u32>,
    max_pages: usize,
    taken: Vec<usize>,
    /// Number of sequences that use each page.
    users: Vec<u32>,
    free: Vec<u32>,
    /// Sequences whose entries on the device are out of date.
    changed: Vec<bool>,
}

impl PageTable {
    /// Makes a table of empty sequences. A sequence has up to `max_pages` pages of a pool of `pages`.
    pub(crate) fn new(sequences: usize, max_pages: usize, pages: usize) -> Self {
        Self {
            entries: vec![0; sequences * max_pages],
            max_pages,
            taken: vec![0; sequences],
            users: vec![0; pages],
            free: (0..pages as u32).rev().collect(),
            changed: vec![true; sequences],
        }
    }

    fn take(&mut self) -> Result<u32, GpuError> {
        let page = self.free.pop().ok_or(GpuError::PoolFull { pages: self.users.len() })?;
        self.users[page as usize] = 1;
        Ok(page)
    }

    fn release(&mut self, page: u32) {
        let users = &mut self.users[page as usize];
        *users -= 1;
        if *users == 0 {
            self.free.push(page);
        }
    }

    /// Gives `sequence` a page of its own for `position`, which is at most one after its last token. If
    /// other sequences share the page, `copy` copies the first page it is given to the second.
    pub(crate) fn own(
        &mut self,
        sequence: usize,
        position: usize,
        copy: impl FnOnce(u32, u32) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let (number, start) = (position / SLOTS, sequence * self.max_pages);
        while self.taken[sequence] <= number {
            let page = self.take()?;
            self.entries[start + self.taken[sequence]] = page;
            self.taken[sequence] += 1;
            self.changed[sequence] = true;
        }
        let shared = self.entries[start + number];
        if self.users[shared as usize] > 1 {
            let page = self.take()?;
            if let Err(error) = copy(shared, page) {
                self.release(page);
                return Err(error);
            }
            self.entries[start + number] = page;
            self.release(shared);
            self.changed[sequence] = true;
        }
        Ok(())
    }

    /// Lets `to`, which has no pages, share the pages of the first `tokens` tokens of `from`.
    pub(crate) fn share(&mut self, from: usize, to: usize, tokens: usize) {
        let count = tokens.div_ceil(SLOTS).min(self.taken[from]);
        let start = from * self.max_pages;
        self.entries.copy_within(start..start + count, to * self.max_pages);
        self.taken[to] = count;
        for &page in &self.entries[start..start + count] {
            self.users[page as usize] += 1;
        }
        self.changed[to] = true;
    }

    /// Frees the pages of `sequence` after its first `tokens` tokens.
    pub(crate) fn trim(&mut self, sequence: usize, tokens: usize) {
        while self.taken[sequence] > tokens.div_ceil(SLOTS) {
            self.taken[sequence] -= 1;
            self.release(self.entries[sequence * self.max_pages + self.taken[sequence]]);
        }
    }

    /// Pages of `sequence`, in the order of its tokens.
    pub(crate) fn of(&self, sequence: usize) -> &[u32] {
        &self.entries[sequence * self.max_pages..][..self.taken[sequence]]
    }

    /// The place of a position of `sequence` in the pool, if the position has a page.
    pub(crate) fn place(&self, sequence: usize, position: usize) -> Option<usize> {
        let page = self.of(sequence).get(position / SLOTS)?;
        Some(*page as usize * SLOTS + position % SLOTS)
    }

    /// Entries per sequence.
    pub(crate) fn max_pages(&self) -> usize {
        self.max_pages
    }

    /// Pages of the pool.
    pub(crate) fn count(&self) -> usize {
        self.users.len()
    }

    /// Pages in use, each counted once.
    pub(crate) fn used(&self) -> usize {
        self.users.len() - self.free.len()
    }

    /// Hands the entries that changed since `copy` last succeeded to `copy`. Sequences that follow one
    /// another are one run, with the index of its first entry.
    pub(crate) fn copy_changes<E>(
        &mut self,
        copy: impl FnOnce(&[(usize, &[u32])]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut runs = Vec::new();
        let mut sequence = 0;
        for run in self.changed.chunk_by(|a, b| a == b) {
            let entries = sequence * self.max_pages..(sequence + run.len()) * self.max_pages;
            if run[0] {
                runs.push((entries.start, &self.entries[entries]));
            }
            sequence += run.len();
        }
        if !runs.is_empty() {
            copy(&runs)?;
            self.changed.fill(false);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages for `tokens` tokens; none of them is shared.
    fn reserve(table: &mut PageTable, sequence: usize, tokens: usize) -> Result<(), GpuError> {
        (0..tokens).try_for_each(|position| table.own(sequence, position, |_, _| panic!("a shared page")))
    }

    #[test]
    fn pages_are_taken_once_and_come_back() {
        let mut table = PageTable::new(3, 4, 6);
        reserve(&mut table, 0, 65).unwrap();
        reserve(&mut table, 1, 256).unwrap();
        assert_eq!(table.of(0).len(), 2);
        let mut all = [table.of(0), table.of(1)].concat();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5], "every page has one owner");
        assert_eq!(reserve(&mut table, 2, 1), Err(GpuError::PoolFull { pages: 6 }));
        table.trim(1, 64);
        assert_eq!((table.used(), table.of(1).len()), (3, 1));
        let kept = table.of(1).to_vec();
        reserve(&mut table, 2, 130).unwrap();
        assert_eq!(table.of(1), kept, "trimming leaves the first pages alone");
        assert!(table.of(2).iter().all(|page| !kept.contains(page) && !table.of(0).contains(page)));
    }

    #[test]
    fn who_writes_to_a_shared_page_gets_a_copy_and_the_last_one_none() {
        let mut table = PageTable::new(3, 4, 5);
        reserve(&mut table, 0, 130).unwrap();
        table.share(0, 1, 100);
        table.share(0, 2, 64);
        assert_eq!((table.of(1), table.of(2)), (&table.of(0)[..2], &table.of(0)[..1]));
        assert_eq!(table.used(), 3, "a shared page counts once");

        let mut copies = Vec::new();
        let mut own = |table: &mut PageTable, sequence, position| {
            table.own(sequence, position, |from, to| {
                copies.push((from, to));
                Ok(())
            })
        };
        let second = table.of(0)[1];
        own(&mut table, 1, 100).unwrap();
        own(&mut table, 1, 101).unwrap();
        own(&mut table, 0, 100).unwrap();
        assert_ne!(table.of(1)[1], second);
        assert_eq!((table.of(0)[1], table.used()), (second, 4), "the other keeps the page");
        own(&mut table, 2, 10).unwrap();
        assert_eq!(copies, [(second, table.of(1)[1]), (table.of(0)[0], table.of(2)[0])]);
        assert_eq!(table.used(), 5);

        table.trim(0, 0);
        assert_eq!(table.used(), 3, "the first page is still the second sequence's");
        for sequence in [1, 2] {
            table.trim(sequence, 0);
        }
        assert_eq!(table.used(), 0);
        let mut free = table.free.clone();
        free.sort_unstable();
        assert_eq!(free, [0, 1, 2, 3, 4], "every page came back once");
    }

    #[test]
    fn a_copy_that_fails_leaves_the_page_shared() {
        let mut table = PageTable::new(2, 1, 2);
        reserve(&mut table, 0, 3).unwrap();
        table.share(0, 1, 3);
        let before = table.of(1).to_vec();
        let failed = table.own(1, 3, |_, _| Err(GpuError::NoDriver));
        assert_eq!((failed, table.of(1), table.used()), (Err(GpuError::NoDriver), &before[..], 1));
        let mut table = PageTable::new(2, 1, 1);
        reserve(&mut table, 0, 3).unwrap();
        table.share(0, 1, 3);
        assert_eq!(
            table.own(1, 3, |_, _| Ok(())),
            Err(GpuError::PoolFull { pages: 1 }),
            "no page for a copy"
        );
        assert_eq!(table.used(), 1);
    }

    #[test]
    fn the_device_copy_is_made_when_entries_changed() {
        let mut table = PageTable::new(4, 2, 8);
        // The start and the number of the entries that are copied.
        let copied = |table: &mut PageTable, result: Result<(), ()>| {
            let mut copies = Vec::new();
            let copied = table.copy_changes(|runs| {
                copies.extend(runs.iter().map(|(start, entries)| (*start, entries.len())));
                result
            });
            assert_eq!(copied, if copies.is_empty() { Ok(()) } else { result });
            copies
        };
        assert_eq!(copied(&mut table, Ok(())), [(0, 8)], "a new table");
        assert_eq!(copied(&mut table, Ok(())), []);
        reserve(&mut table, 1, 64).unwrap();
        assert_eq!(copied(&mut table, Err(())), [(2, 2)], "one sequence");
        assert_eq!(copied(&mut table, Ok(())), [(2, 2)], "a copy that failed is made again");
        reserve(&mut table, 1, 10).unwrap();
        assert_eq!(copied(&mut table, Ok(())), [], "nothing was added");
        reserve(&mut table, 0, 1).unwrap();
        reserve(&mut table, 3, 1).unwrap();
        assert_eq!(copied(&mut table, Ok(())), [(0, 2), (6, 2)]);
        table.share(1, 2, 64);
        reserve(&mut table, 3, 65).unwrap();
        assert_eq!(copied(&mut table, Ok(())), [(4, 4)], "neighbours are copied together");
        (0..4).for_each(|sequence| table.trim(sequence, 0));
        assert_eq!(table.used(), 0);
    }
}
