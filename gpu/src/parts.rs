//! Divides the rows of a launch of attention into parts: a list of runs of pages, which warps work off. The
//! rule is [`Limits`]; `plan_parts` follows it on the device.

use crate::GpuError;
use crate::pages::SLOTS;
use std::ops::Range;
use tqkv_gpu_kernels::attend::UNUSED;
use tqkv_gpu_kernels::plan::{Limits, Rows, WARPS};

/// The split of a launch of attention. A cache chooses it; measurements can set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pages: u32,
    warps: u32,
}

impl Cut {
    /// Sets the pages of a part, and 1, 2 or 4 warps per block. Parts have more pages if a row has more parts
    /// than the merge takes, or if a step has more than were reserved.
    ///
    /// # Errors
    /// [`GpuError::BadSpec`] names what is wrong and what is accepted.
    pub fn new(pages: usize, warps: u32) -> Result<Self, GpuError> {
        if pages == 0 || ![1, 2, WARPS].contains(&warps) {
            return Err(GpuError::BadSpec(format!(
                "parts of {pages} pages in blocks of {warps} warps; expected at least 1 page, and 1, 2 or {WARPS} warps"
            )));
        }
        Ok(Self { pages: u32::try_from(pages).unwrap_or(u32::MAX), warps })
    }

    /// Warps per block.
    pub(crate) fn warps(self) -> u32 {
        self.warps
    }
}

/// The parts of a launch, in the order of the rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Control words: the first part of each row, and the number of parts. Then three words of each entry of
    /// the list: row, first token, and the page after the last one.
    pub words: Vec<u32>,
    /// Entries of the list. Those after the last part are not used.
    pub entries: usize,
}

impl Parts {
    /// Pages of the parts of `rows` rows, in the order of the list.
    pub fn pages(&self, rows: usize) -> impl Iterator<Item = u32> {
        let list = self.words[rows + 1..].chunks_exact(3).filter(|part| part[0] != UNUSED);
        list.map(|part| part[2] - part[1] / SLOTS as u32)
    }

    /// Parts of up to `size` pages, of rows that see these tokens. Every row has a part; a row without tokens has
    /// one without pages. Behind the parts of each row are `others` entries without work.
    fn new(rows: &[Range<usize>], size: u32, others: usize, least_entries: usize) -> Self {
        let (mut first, mut list) = (Vec::with_capacity(rows.len() + 1), Vec::new());
        for (row, tokens) in (0..).zip(rows) {
            first.push((list.len() / 3) as u32);
            let pages = pages_of(tokens);
            for page in (pages.start..pages.end.max(pages.start + 1)).step_by(size as usize) {
                let token = (page * SLOTS as u32).max(tokens.start as u32);
                list.extend([row, token, pages.end.min(page.saturating_add(size))]);
            }
            list.resize(list.len() + 3 * others, UNUSED);
        }
        let used = list.len() / 3;
        first.push(used as u32);
        let entries = used.max(least_entries);
        list.resize(3 * entries, UNUSED);
        Self { words: [first, list].concat(), entries }
    }

    /// The list of another kernel, whose parts are the `others` entries after the parts of each row: these slots
    /// of its pages. An entry that is left is a part without pages.
    pub(crate) fn of_others(&self, others: usize, rows: &[Vec<Range<usize>>]) -> Vec<u32> {
        let mut list = vec![UNUSED; 3 * self.entries];
        for (row, parts) in rows.iter().enumerate() {
            let start = self.words[row + 1] as usize - others;
            let parts = parts.iter().map(|slots| [slots.start as u32, slots.end.div_ceil(SLOTS) as u32]);
            let entries = list[3 * start..].chunks_exact_mut(3).take(others);
            for (entry, [token, end]) in entries.zip(parts.chain(std::iter::repeat([0, 0]))) {
                entry.copy_from_slice(&[row as u32, token, end]);
            }
        }
        list
    }
}

/// The pages that hold these tokens. No tokens have none.
fn pages_of(tokens: &Range<usize>) -> Range<u32> {
    let end = tokens.end.div_ceil(SLOTS) as u32;
    if tokens.is_empty() { end..end } else { (tokens.start / SLOTS) as u32..end }
}

/// The parts of rows that see these tokens, with `others` entries of another kernel after those of each row.
/// With `is_fixed` the list is as long as for any other tokens.
pub fn parts(
    limits: Limits,
    rows: &[Range<usize>],
    others: usize,
    is_fixed: bool,
    cut: Option<Cut>,
) -> Parts {
    let pages: Vec<u32> = rows.iter().map(|tokens| pages_of(tokens).len() as u32).collect();
    let count = |size: u32| pages.iter().map(|pages| pages.div_ceil(size).max(1)).sum();
    let all = Rows::of(pages.iter().copied());
    let most_entries = limits.most_parts(all.count);
    let size = match cut {
        Some(cut) if is_fixed => cut.pages.max(limits.pages_for(all, most_entries, count)),
        Some(cut) => cut.pages.max(limits.fewest_pages(all.longest)),
        None => limits.pages_a_part(all, count),
    };
    let least_entries = if is_fixed { most_entries as usize + others * rows.len() } else { 0 };
    Parts::new(rows, size, others, least_entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    /// Warps that run on 132 multiprocessors at 168 registers per thread, 8 KV heads, 32 query heads of 128.
    const H200: Limits = Limits { multiprocessors: 132, blocks: 3, warps: 8, stride: 32 * 528 };

    /// The parts of rows that see all tokens of these lengths.
    fn parts(limits: Limits, lengths: &[usize], is_fixed: bool, cut: Option<Cut>) -> Parts {
        super::parts(limits, &lengths.iter().map(|&length| 0..length).collect::<Vec<_>>(), 0, is_fixed, cut)
    }

    /// Pages of the largest part, and the turns that the parts take.
    fn largest(limits: Limits, lengths: &[usize]) -> (usize, usize) {
        let parts = parts(limits, lengths, false, None);
        let pages = parts.pages(lengths.len()).max().unwrap() as usize;
        (pages, limits.turns_of(parts.entries as u32) as usize)
    }

    #[test]
    fn every_page_is_in_one_part_of_its_row() {
        for lengths in [&[0][..], &[1], &[64], &[65, 0, 9_000, 1], &[0; 70], &[32_768; 9]] {
            for limits in
                [H200, Limits { multiprocessors: 1, blocks: 1, ..H200 }, Limits { warps: 2_000, ..H200 }]
            {
                for is_fixed in [false, true] {
                    let parts = parts(limits, lengths, is_fixed, None);
                    let (first, list) = parts.words.split_at(lengths.len() + 1);
                    assert_eq!(list.len(), 3 * parts.entries);
                    assert!(parts.entries <= limits.most_parts(lengths.len() as u32) as usize);
                    let list = list.as_chunks::<3>().0;
                    for (row, length) in lengths.iter().enumerate() {
                        let mut next = 0;
                        assert!(first[row] < first[row + 1], "a part for each row");
                        for &[of, start, end] in &list[first[row] as usize..first[row + 1] as usize] {
                            assert_eq!((of as usize, start), (row, 64 * next));
                            next = end;
                        }
                        assert_eq!(next as usize, length.div_ceil(64));
                    }
                    let unused = &list[first[lengths.len()] as usize..];
                    assert!(unused.iter().all(|entry| entry[0] == UNUSED) && (is_fixed || unused.is_empty()));
                }
            }
        }
    }

    #[test]
    fn two_kernels_share_the_entries_of_a_row() {
        let rows = [4..200, 0..0, 70..70, 130..131];
        let seen = [vec![60..64, 70..128], vec![], vec![0..1, 1..2], vec![3..64, 64..200]];
        for is_fixed in [false, true] {
            let parts = super::parts(H200, &rows, 2, is_fixed, Cut::new(2, 1).ok());
            let others = parts.of_others(2, &seen);
            let (first, list) = parts.words.split_at(rows.len() + 1);
            assert_eq!(first, [0, 4, 7, 10, 13]);
            let entries = list.as_chunks::<3>().0.iter().zip(others.as_chunks::<3>().0);
            let both: Vec<_> = entries.map(|(own, other)| (own[0] != UNUSED, other[0] != UNUSED)).collect();
            assert!(both[..13].iter().all(|(own, other)| own != other), "each entry is of one kernel");
            assert!(both[13..].iter().all(|entry| *entry == (false, false)) && both.len() == parts.entries);
            assert_eq!(list[..6], [0, 4, 2, 0, 128, 4], "the first token is inside of a page");
            assert_eq!([list[12], list[13], list[14]], [1, 0, 0], "a row without tokens");
            assert_eq!([list[21], list[23]], [2, 2], "and another");
            assert_eq!(list[30..33], [3, 130, 3]);
            assert_eq!(others[6..12], [0, 60, 1, 0, 70, 2]);
            assert_eq!(others[15..21], [1, 0, 0, 1, 0, 0], "parts without pages");
            assert_eq!(others[24..30], [2, 0, 1, 2, 1, 1]);
            assert_eq!(others[33..39], [3, 3, 1, 3, 64, 4]);
        }
        assert_eq!(super::parts(H200, &rows, 2, true, None).entries, H200.most_parts(4) as usize + 8);
    }

    #[test]
    fn a_full_device_works_to_the_end() {
        // 64 sequences of 512 pages: three parts each, in one turn.
        assert_eq!(largest(H200, &[32_768; 64]), (171, 1));
        // A long sequence among short ones is cut alone: 12,160 pages on 1,584 warps are 7.7 each.
        let mut mixed = vec![1024; 63];
        mixed.push(32_768);
        assert_eq!(largest(H200, &mixed), (8, 1));
        for rows in [1, 3, 40, 100, 198, 199, 500] {
            let lengths: Vec<usize> = (0..rows).map(|row| 1024 * (1 + row * 7_919 % 32)).collect();
            let (pages, turns) = largest(H200, &lengths);
            let all: usize = lengths.iter().map(|length| length / 64).sum();
            let ideal = (all * H200.warps as usize) as f64 / f64::from(H200.resident());
            assert!((turns * pages) as f64 <= 1.5 * ideal + 2.0, "{rows}: {turns} x {pages}, {ideal}");
        }
    }

    /// The time of the last warp, in pages: each part takes its pages and one more. Warps start in the order
    /// of the grid, each where another one has ended.
    fn end_of_last_warp(limits: Limits, lengths: &[usize]) -> u32 {
        let parts = parts(limits, lengths, false, None);
        let mut ends = BinaryHeap::from(vec![Reverse(0); limits.resident() as usize]);
        for _head in 0..limits.warps {
            for pages in parts.pages(lengths.len()) {
                let Reverse(start) = ends.pop().unwrap();
                ends.push(Reverse(start + pages + 1));
            }
        }
        ends.into_iter().map(|Reverse(end)| end).max().unwrap()
    }

    /// DESIGN.md cites two of these figures, less the one page that stands for the rest of a part.
    #[test]
    fn the_last_warp_ends_soon_after_the_others() {
        let one_long = |tokens| [&[1024; 63][..], &[tokens]].concat();
        let even = |rows: usize, least: usize, most: usize| -> Vec<usize> {
            (0..rows).map(|row| least + (most - least) * row / (rows - 1)).collect()
        };
        for (lengths, end) in [
            (vec![32_768; 64], 172),
            (one_long(32_768), 9),
            (one_long(131_072), 17),
            (even(64, 1024, 32_768), 96),
            (even(200, 1024, 8192), 93),
            (vec![32_768], 5),
            (vec![8192], 3),
        ] {
            assert_eq!(end_of_last_warp(H200, &lengths), end, "{} rows", lengths.len());
        }
    }

    #[test]
    fn one_sequence_fills_the_device() {
        let parts = |limits: Limits, length| parts(limits, &[length], false, None).entries;
        assert_eq!(parts(H200, 32_768), 128, "four pages each, on two of three places of a multiprocessor");
        assert_eq!(parts(H200, 8_192), 64, "two pages each");
        assert_eq!(parts(H200, 4_096), 64, "a page each");
        assert_eq!(parts(Limits { warps: 1, ..H200 }, 32_768), 256, "as many as are merged");
        assert_eq!(parts(Limits { warps: 1, stride: 1 << 30, ..H200 }, 32_768), 3, "as 32 bits count");
        assert_eq!((parts(H200, 0), parts(H200, 100)), (1, 2));
    }

    #[test]
    fn a_fixed_list_depends_on_the_number_of_rows_alone() {
        for rows in [1, 2, 64, 300] {
            let entries = |length: usize| parts(H200, &vec![length; rows], true, None).entries;
            assert!([0, 1, 1000, 32_768].into_iter().all(|length| entries(length) == entries(77)), "{rows}");
        }
        assert!(H200.most_parts(1) <= H200.most_parts(2));
    }

    #[test]
    fn a_cut_is_followed_or_refused() {
        let cut = |pages, warps| Cut::new(pages, warps);
        assert_eq!(cut(8, 4).map(Cut::warps), Ok(4));
        let entries = |pages, is_fixed| parts(H200, &[6_400, 64], is_fixed, cut(pages, 1).ok()).entries;
        assert_eq!([entries(8, false), entries(100, false)], [14, 2]);
        let fixed = parts(H200, &[1 << 20; 64], true, cut(1, 1).ok());
        assert_eq!(fixed.entries as u32, H200.most_parts(64), "parts grow until they fit");
        for (pages, warps) in [(0, 4), (8, 3), (8, 8)] {
            let message = cut(pages, warps).unwrap_err().to_string();
            assert!(message.ends_with("expected at least 1 page, and 1, 2 or 4 warps"), "{message}");
        }
    }
}
