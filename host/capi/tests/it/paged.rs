//! Blocks in memory of the program: what C gets is what Rust gives, and what is wrong is named.

use crate::common::*;
use std::ffi::CString;
use std::ptr::{null, null_mut};
use tqkv::paged::{ExactTokens, Layout, Line, Paged, Pages, Rule, Step};
use tqkv::{CodecId, Options};
use tqkv_capi::TqkvStatus::*;
use tqkv_capi::*;

const BLOCK_TOKENS: usize = 64;
const TOKENS: usize = 100;
/// Block 4 has the first tokens of the sequence, block 1 those after them.
const TABLE: [i32; 4] = [4, 1, 4, 1];
const BLOCKS: usize = 5;

/// A handle that frees itself.
struct Handle(*mut TqkvPaged);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made once, and freed once.
        unsafe { tqkv_paged_free(self.0) }
    }
}

fn made(words: &str, tokens: usize) -> Result<Handle, TqkvStatus> {
    let (spec, mut paged) = (with(words), null_mut());
    // SAFETY: the text ends with a zero, and the place can be written.
    let status = unsafe { tqkv_paged_create(spec.as_ptr(), tokens, &raw mut paged) };
    if status == TqkvOk { Ok(Handle(paged)) } else { Err(status) }
}

fn block_bytes(handle: &Handle) -> [usize; 2] {
    let [mut keys, mut values] = [0; 2];
    // SAFETY: the handle is not freed, and the places can be written.
    assert_eq!(unsafe { tqkv_paged_block_bytes(handle.0, &raw mut keys, &raw mut values) }, TqkvOk);
    [keys, values]
}

fn memory(bytes: usize) -> Vec<Line> {
    assert_eq!(bytes % size_of::<Line>(), 0);
    vec![Line::ZERO; bytes / size_of::<Line>()]
}

/// Blocks in one memory, or keys and values apart.
fn pages(memory: &mut [Line], values: Option<&mut [Line]>, [keys, of_values]: [usize; 2]) -> TqkvPages {
    let stride = if values.is_some() { keys } else { keys + of_values };
    let (bytes, memory) = (size_of_val(memory), memory.as_mut_ptr().cast());
    let (values, values_bytes) =
        values.map_or((null_mut(), 0), |values| (values.as_mut_ptr().cast(), size_of_val(values)));
    TqkvPages { memory, bytes, stride, values, values_bytes, values_stride: of_values }
}

fn places() -> Vec<i64> {
    (0..TOKENS)
        .map(|token| i64::from(TABLE[token / BLOCK_TOKENS]) * 64 + (token % BLOCK_TOKENS) as i64)
        .collect()
}

fn store(handle: &Handle, pages: &TqkvPages, [k, v]: [&[f32]; 2], places: &[i64]) -> TqkvStatus {
    let (mut refused, tokens) = (usize::MAX, places.len());
    // SAFETY: the handle is not freed, and the pointers have the passed numbers of values.
    let status = unsafe {
        let (k, k_values, v, v_values) = (k.as_ptr().cast(), k.len(), v.as_ptr().cast(), v.len());
        let refused = &raw mut refused;
        tqkv_paged_store(handle.0, pages, places.as_ptr(), tokens, 0, k, k_values, v, v_values, refused)
    };
    if status == TqkvOk {
        assert_eq!(refused, 0);
    }
    status
}

fn attend(
    handle: &Handle,
    pages: &TqkvPages,
    step: &TqkvStep,
    rule: Option<&TqkvRule>,
    q: &[f32],
    [out, lse]: [&mut [f32]; 2],
) -> TqkvStatus {
    let rule = rule.map_or(null(), std::ptr::from_ref);
    let (q, q_values, out, out_values) = (q.as_ptr().cast(), q.len(), out.as_mut_ptr(), out.len());
    // SAFETY: the handle is not freed, and the pointers have the passed numbers of values.
    unsafe {
        let (lse, lse_values) = (lse.as_mut_ptr(), lse.len());
        tqkv_paged_attend(
            handle.0,
            pages,
            step,
            rule,
            0,
            q,
            q_values,
            0,
            out.cast(),
            out_values,
            lse,
            lse_values,
        )
    }
}

/// Two rows of one sequence, the second with a window and with exact tokens, as C and as Rust.
#[test]
fn c_gets_what_rust_gives() {
    let handle = made("t4,s3 seed=9", BLOCK_TOKENS).unwrap();
    let sizes = block_bytes(&handle);
    let layout = Layout::new(HEADS, KV_HEADS, DIM).codecs(CodecId::T4, CodecId::S3);
    let layout = layout.options(Options::DEFAULT.seed(9)).block_tokens(BLOCK_TOKENS);
    let paged = Paged::new(layout).unwrap();
    assert_eq!(sizes.iter().sum::<usize>(), paged.block_bytes());
    let (k, v, q) = (values(1, TOKENS * TOKEN), values(2, TOKENS * TOKEN), values(3, 2 * QUERY));
    let mut lines = vec![Line::ZERO; BLOCKS * paged.block_lines()];
    let mut rust = Pages::together(&paged, &mut lines[..], paged.block_lines()).unwrap();
    assert_eq!(paged.store(&k, &v, &places(), &mut rust).unwrap(), 0);
    let (lengths, starts) = ([TOKENS as i32 - 3, TOKENS as i32], [2, 0]);
    let step = Step { table: &TABLE, lengths: &lengths, starts: &starts };
    let (exact, of_rows, sinks) = (values(4, 2 * TOKEN), [0, -1, 1, 5], values(5, HEADS));
    let rule = Rule {
        scale: Some(0.1),
        soft_cap: Some(30.0),
        window: Some(90),
        sinks: &sinks,
        exact: Some(ExactTokens {
            keys: exact[..].into(),
            values: exact[..].into(),
            places: &of_rows,
            held: 2,
        }),
    };
    let [(mut expected, mut of_sums), (mut plain, mut of_plain)] =
        [(); 2].map(|()| (vec![0.0; 2 * QUERY], vec![0.0; 2 * HEADS]));
    paged.attend(&q, &rust, &step, &rule, &mut expected, Some(&mut of_sums)).unwrap();
    paged.attend(&q, &rust, &step, &Rule::default(), &mut plain, Some(&mut of_plain)).unwrap();
    assert_ne!(expected, plain);

    let c_rule = TqkvRule {
        scale: 0.1,
        soft_cap: 30.0,
        window: 90,
        sinks: sinks.as_ptr(),
        exact_k: exact.as_ptr().cast(),
        exact_v: exact.as_ptr().cast(),
        exact_values: exact.len(),
        exact_dtype: 0,
        exact_places: of_rows.as_ptr(),
        exact_columns: 2,
        exact_held: 2,
    };
    let c_step = TqkvStep {
        rows: 2,
        entries: 2,
        table: TABLE.as_ptr(),
        lengths: lengths.as_ptr(),
        starts: starts.as_ptr(),
    };
    let mut together = memory(BLOCKS * (sizes[0] + sizes[1]));
    let (mut of_keys, mut of_values) = (memory(BLOCKS * sizes[0]), memory(BLOCKS * sizes[1]));
    for pages in [pages(&mut together, None, sizes), pages(&mut of_keys, Some(&mut of_values), sizes)] {
        assert_eq!(store(&handle, &pages, [&k, &v], &places()), TqkvOk, "{}", last_error());
        for (rule, expected, sums) in [(Some(&c_rule), &expected, &of_sums), (None, &plain, &of_plain)] {
            let (mut out, mut lse) = (vec![7.0; 2 * QUERY], vec![7.0; 2 * HEADS]);
            let status = attend(&handle, &pages, &c_step, rule, &q, [&mut out, &mut lse]);
            assert_eq!(status, TqkvOk, "{}", last_error());
            assert_eq!((&out, &lse), (expected, sums));
        }
        // Another sequence takes over the first block, and its tokens are read back.
        let (from, to, mut out) = ([4], [2], vec![0.0; 3 * TOKEN]);
        let copied = [2];
        let of_copy =
            TqkvStep { rows: 1, entries: 1, table: copied.as_ptr(), lengths: [2].as_ptr(), starts: null() };
        // SAFETY: the handle is not freed, and the pointers have the passed numbers of values.
        unsafe {
            let pages = &raw const pages;
            assert_eq!(tqkv_paged_copy(handle.0, pages, from.as_ptr(), to.as_ptr(), 1), TqkvOk);
            let (out, room) = (out.as_mut_ptr(), out.len());
            let status = tqkv_paged_gather(handle.0, 0, pages, &raw const of_copy, [1].as_ptr(), out, room);
            assert_eq!(status, TqkvOk, "{}", last_error());
        }
        let error = |i: usize| out[TOKEN + i] - k[i];
        let energy: f32 = k[..2 * TOKEN].iter().map(|x| x * x).sum();
        assert!((0..2 * TOKEN).map(|i| error(i).powi(2)).sum::<f32>() < 0.02 * energy);
        assert!(out[..TOKEN].iter().all(|x| *x == 0.0));
    }
    assert_eq!(together, lines_after_copy(&paged, lines));
}

/// What Rust has after the same copy.
fn lines_after_copy(paged: &Paged, mut lines: Vec<Line>) -> Vec<Line> {
    Pages::together(paged, &mut lines[..], paged.block_lines()).unwrap().copy(&[(4, 2)]).unwrap();
    lines
}

#[test]
fn what_is_wrong_is_named() {
    for (words, tokens, text) in [
        ("s4 hot=3", BLOCK_TOKENS, "expected a shape, one or two codecs"),
        ("s4 scale=2", BLOCK_TOKENS, "expected a shape, one or two codecs"),
        ("s4", 16, "multiple of 32"),
    ] {
        let mut paged = null_mut();
        // SAFETY: the text ends with a zero, and the place can be written.
        let status = unsafe { tqkv_paged_create(with(words).as_ptr(), tokens, &raw mut paged) };
        assert!(paged.is_null() && status != TqkvOk, "{words}");
        assert!(last_error().contains(text), "{words}: {}", last_error());
    }
    let handle = made("s4", BLOCK_TOKENS).unwrap();
    let sizes = block_bytes(&handle);
    let mut room = memory(2 * (sizes[0] + sizes[1]));
    let right = pages(&mut room, None, sizes);
    let (k, v) = (values(1, TOKEN), values(2, TOKEN));
    let wrong = |change: fn(&mut TqkvPages), status, text: &str| {
        let mut pages = right;
        change(&mut pages);
        refused(store(&handle, &pages, [&k, &v], &[0]), status, text);
    };
    wrong(|pages| pages.stride += 1, TqkvBadArgument, "expected a multiple of 64");
    wrong(|pages| pages.stride = 64, TqkvBadArgument, "expected at least");
    wrong(|pages| pages.bytes = 0, TqkvBadArgument, "expected at least");
    wrong(|pages| pages.memory = null_mut(), TqkvNullPointer, "memory of pages is null");
    wrong(|pages| pages.memory = pages.memory.wrapping_byte_add(4), TqkvBadArgument, "not aligned to 64");
    refused(store(&handle, &right, [&k[1..], &v], &[0]), TqkvBadArgument, "expected 128");
    let overlapping =
        TqkvPages { values: right.memory, values_bytes: right.bytes, values_stride: sizes[1], ..right };
    refused(store(&handle, &overlapping, [&k, &v], &[0]), TqkvBadArgument, "overlap");
    let step =
        TqkvStep { rows: 1, entries: usize::MAX, table: [0].as_ptr(), lengths: [1].as_ptr(), starts: null() };
    let (mut out, mut lse) = (vec![7.0; QUERY], vec![7.0; HEADS]);
    let q = values(3, QUERY);
    let status = attend(&handle, &right, &step, None, &q, [&mut out, &mut lse]);
    refused(status, TqkvBadArgument, "more than memory can hold");
    let step = TqkvStep { entries: 1, ..step };
    let status = attend(&handle, &right, &step, None, &q, [&mut out, &mut lse[1..]]);
    refused(status, TqkvBadArgument, "lse");
    assert!(out.iter().all(|x| *x == 7.0));
    let text = CString::new("s4").unwrap();
    let mut paged = null_mut();
    // SAFETY: the text ends with a zero, and the place can be written.
    assert_ne!(unsafe { tqkv_paged_create(text.as_ptr(), BLOCK_TOKENS, &raw mut paged) }, TqkvOk);
}
