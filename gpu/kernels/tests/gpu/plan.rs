//! The plan of a step: every page of a row is in one part, as the rule on the host has it.

use crate::warp::{Buffer, Emulated};
use std::cell::Cell;
use tqkv_gpu_kernels::args::PlanParts;
use tqkv_gpu_kernels::attend::UNUSED;
use tqkv_gpu_kernels::page::SLOTS;
use tqkv_gpu_kernels::plan::{Limits, Rows, plan_parts};

/// Most tokens of a sequence.
const MOST: u32 = 40_000;

const LIMITS: [Limits; 3] = [
    Limits { multiprocessors: 132, blocks: 3, warps: 8, stride: 32 * 528 },
    Limits { multiprocessors: 1, blocks: 1, warps: 64, stride: 1 << 30 },
    Limits { multiprocessors: 16, blocks: 16, warps: 1, stride: 528 },
];

/// The sequence and the tokens of each row, the first part of each row and their number, and the list.
struct Planned {
    sequences: Vec<u32>,
    lengths: Vec<u32>,
    first: Vec<u32>,
    list: Vec<[u32; 3]>,
}

fn plan(limits: Limits, lengths: &[i32], starts: Option<&[i32]>, queries: u32) -> Planned {
    let rows = lengths.len() as u32 * queries;
    let entries = limits.most_parts(rows);
    let words = Buffer::garbage(4 * (3 * rows + 1 + 3 * entries) as usize);
    let numbers = |of: &[i32]| Buffer::from_u32(&of.iter().map(|&number| number as u32).collect::<Vec<_>>());
    // Without starts nothing may be read of them.
    let [there, from] = [numbers(lengths), starts.map_or_else(|| Buffer::garbage(0), numbers)];
    let args = PlanParts {
        lengths: there.place(),
        starts: from.place(),
        has_starts: u32::from(starts.is_some()),
        rows,
        queries,
        most_tokens: MOST,
        multiprocessors: limits.multiprocessors,
        blocks: limits.blocks,
        warps: limits.warps,
        stride: limits.stride,
        entries,
        words: words.place(),
    };
    (0..4).for_each(|warp| plan_parts::<Emulated<'_>>(warp, args));
    let all = words.words();
    let rows = rows as usize;
    Planned {
        sequences: all[..rows].to_vec(),
        lengths: all[rows..2 * rows].to_vec(),
        first: all[2 * rows..3 * rows + 1].to_vec(),
        list: all[3 * rows + 1..].as_chunks::<3>().0.to_vec(),
    }
}

#[test]
fn every_page_is_in_one_part_of_its_row_and_parts_have_the_pages_of_the_rule() {
    let many: Vec<i32> = (0..100).map(|i| i * 391 % 33_000).collect();
    // More rows than the registers of a warp hold, and a list whose rows begin far apart and side by side.
    let more: Vec<i32> = (0..1100).map(|i| if i % 200 == 7 { 39_999 } else { i % 300 }).collect();
    for lengths in [&[0][..], &[1], &[64], &[65, 0, 9_000, 1], &[0; 70], &[32_768; 9], &many, &more] {
        for limits in LIMITS {
            let planned = plan(limits, lengths, None, 1);
            let pages: Vec<u32> = lengths.iter().map(|&length| (length as u32).div_ceil(SLOTS)).collect();
            let count = |size: u32| pages.iter().map(|pages| pages.div_ceil(size).max(1)).sum();
            let size = limits.pages_a_part(Rows::of(pages.iter().copied()), count);
            let mut expected = Vec::new();
            for (row, &end) in (0..).zip(&pages) {
                assert_eq!(planned.first[row as usize] as usize, expected.len());
                let starts = (0..end.max(1)).step_by(size as usize);
                expected.extend(starts.map(|start| [row, start * SLOTS, end.min(start + size)]));
            }
            assert_eq!(planned.first[pages.len()] as usize, expected.len());
            assert_eq!(planned.list[..expected.len()], expected, "{lengths:?}");
            assert!(planned.list[expected.len()..].iter().all(|part| *part == [UNUSED; 3]));
            assert_eq!(planned.sequences, (0..pages.len() as u32).collect::<Vec<_>>());
        }
    }
}

/// Bounds of the search spare questions, and change no answer.
#[test]
fn the_bounds_of_a_search_hold_its_answer() {
    let unlike: Vec<u32> = (0..300).map(|i| i * 7919 % 641).collect();
    let lists = [&[0][..], &[1], &[512], &[7, 0, 0, 300], &[1; 64], &[512; 64], &[2048, 1, 1, 1, 1], &unlike];
    for limits in LIMITS {
        let (mut asked, mut before) = (0, 0);
        for pages in lists {
            let count = |size: u32| pages.iter().map(|pages| pages.div_ceil(size).max(1)).sum::<u32>();
            let rows = Rows::of(pages.iter().copied());
            assert_eq!([rows.count, rows.total], [pages.len() as u32, count(1)]);
            for most in (1..700).chain([count(1) - 1, count(1), u32::MAX]) {
                let asks = Cell::new(0);
                let counted = |size| {
                    asks.set(asks.get() + 1);
                    count(size)
                };
                let got = limits.pages_for(rows, most, counted);
                let fits = (1..rows.longest).find(|&size| count(size) <= most).unwrap_or(rows.longest);
                assert_eq!(got, fits.max(limits.fewest_pages(rows.longest)), "{} rows, {most}", rows.count);
                (asked, before) = (asked + asks.get(), before + rows.longest.ilog2());
            }
        }
        assert!(asked < before / 3, "{asked} questions, where a search of all sizes has {before}");
    }
    let rows = Rows::of([u32::MAX / 2; 4].into_iter());
    assert_eq!(rows.total, u32::MAX, "no sum wraps");
    assert_eq!(LIMITS[2].pages_for(rows, 8, |size| 4 * rows.longest.div_ceil(size)), 1 << 30);
}

#[test]
fn query_tokens_see_the_tokens_up_to_themselves_and_no_length_is_beyond_the_table() {
    let planned = plan(LIMITS[0], &[100, 2, 0, -5, i32::MAX, i32::MIN], None, 3);
    assert_eq!(planned.sequences, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5]);
    let most = [MOST - 2, MOST - 1, MOST];
    let expected = [[98, 99, 100], [0, 1, 2], [0; 3], [0; 3], most, [0; 3]].concat();
    assert_eq!(planned.lengths, expected);
    for part in planned.list.iter().filter(|part| part[0] != UNUSED) {
        assert!(part[2] <= expected[part[0] as usize].div_ceil(SLOTS), "{part:?}");
    }
}

#[test]
fn rows_begin_at_their_first_token_and_those_without_tokens_have_a_part_without_pages() {
    let lengths = [100, 100, 64, 65, 20_000, 0, 7, 7, 200];
    let starts = [0, 63, 64, 64, 9_001, 5, -3, i32::MAX, 199];
    for limits in LIMITS {
        let planned = plan(limits, &lengths, Some(&starts), 1);
        for (row, (&length, &start)) in (0..).zip(lengths.iter().zip(&starts)) {
            let parts: Vec<_> = planned.list.iter().filter(|part| part[0] == row).collect();
            let start = start.clamp(0, length) as u32;
            let end = (length as u32).div_ceil(SLOTS);
            if start == length as u32 {
                assert!(matches!(parts[..], [[_, token, page]] if token / SLOTS == *page), "{parts:?}");
                continue;
            }
            let mut next = start;
            for &&[_, token, page] in &parts {
                assert_eq!(token, next, "{length} tokens from {start} on: {parts:?}");
                next = page * SLOTS;
            }
            assert_eq!(next, end * SLOTS);
        }
    }
    // The rows of a sequence begin at the same token.
    let planned = plan(LIMITS[0], &[70, 3], Some(&[68, 1]), 3);
    let listed = planned.list.iter().filter(|part| part[0] != UNUSED).copied().collect::<Vec<_>>();
    assert_eq!(planned.lengths, [68, 69, 70, 1, 2, 3]);
    assert_eq!(listed, [[0, 128, 2], [1, 68, 2], [2, 68, 2], [3, 64, 1], [4, 1, 1], [5, 1, 1]]);
}
