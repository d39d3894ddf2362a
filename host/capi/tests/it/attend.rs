//! Attention through the C interface: types of queries and results, several caches in one call.

use crate::common::*;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::ffi::{CStr, c_void};
use std::ptr::null;
use tqkv_capi::TqkvStatus::*;
use tqkv_capi::*;

/// Numbers in each type of the header.
struct Typed {
    f32: Vec<f32>,
    f16: Vec<f16>,
    bf16: Vec<bf16>,
}

impl Typed {
    fn new(values: Vec<f32>) -> Self {
        let f16 = values.iter().map(|x| f16::from_f32(*x)).collect();
        let bf16 = values.iter().map(|x| bf16::from_f32(*x)).collect();
        Self { f32: values, f16, bf16 }
    }

    fn len(&self) -> usize {
        self.f32.len()
    }

    fn pointer(&self, dtype: u32) -> *const c_void {
        [self.f32.as_ptr().cast(), self.f16.as_ptr().cast(), self.bf16.as_ptr().cast()][dtype as usize]
    }

    fn room(&mut self, dtype: u32) -> *mut c_void {
        [self.f32.as_mut_ptr().cast(), self.f16.as_mut_ptr().cast(), self.bf16.as_mut_ptr().cast()]
            [dtype as usize]
    }

    /// The numbers of one type as f32.
    fn read(&self, dtype: u32) -> Vec<f32> {
        match dtype {
            0 => self.f32.clone(),
            1 => self.f16.to_f32_vec(),
            _ => self.bf16.to_f32_vec(),
        }
    }
}

/// The f32 values after rounding to a type.
fn rounded(values: &[f32], dtype: u32) -> Vec<f32> {
    Typed::new(values.to_vec()).read(dtype)
}

/// A result buffer that nothing has written.
fn untouched(values: usize) -> Typed {
    Typed::new(vec![-7.0; values])
}

#[test]
fn every_type_of_keys_queries_and_results_gives_the_same_numbers() {
    // All values are exact in bf16, so that each type holds them.
    let (k, v) = (Typed::new(values(1, 100 * TOKEN)), Typed::new(values(2, 100 * TOKEN)));
    let q = Typed::new(values(3, 100 * QUERY));
    let mut first: Option<[Vec<f32>; 4]> = None;
    for (dtype, q_dtype, out_dtype) in (0..27).map(|i| (i % 3, i / 3 % 3, i / 9)) {
        let cache = Cache::new(&spec());
        let (mut all, mut one) = (untouched(q.len()), untouched(QUERY));
        let (mut keys, mut scores, mut count) = (untouched(50 * DIM), vec![0.0; 200], 0);
        // SAFETY: the cache is not freed; the pointers are good for as many values of their type.
        unsafe {
            let (key, value, query) = (k.pointer(dtype), v.pointer(dtype), q.pointer(q_dtype));
            let (n, m, out) = (k.len(), q.len(), all.room(out_dtype));
            let status =
                tqkv_prefill(cache.0, 0, q_dtype, query, m, dtype, key, n, value, n, out_dtype, out, m);
            assert_eq!(status, TqkvOk, "{}", last_error());
            assert_eq!(tqkv_append(cache.0, 0, dtype, key, n, value, n), TqkvOk, "{}", last_error());
            let out = one.room(out_dtype);
            let status = tqkv_attend(cache.0, 0, q_dtype, query, QUERY, out_dtype, out, QUERY);
            assert_eq!(status, TqkvOk, "{}", last_error());
            let out = keys.room(out_dtype);
            assert_eq!(
                tqkv_keys(cache.0, 0, 1, 30, 80, out_dtype, out, 50 * DIM),
                TqkvOk,
                "{}",
                last_error()
            );
            let out = scores.as_mut_ptr();
            let status = tqkv_scores(cache.0, 0, 2, q_dtype, query, DIM, out, 200, &raw mut count);
            assert_eq!((status, count), (TqkvOk, 200), "{}", last_error());
        }
        let got = [all.read(out_dtype), one.read(out_dtype), keys.read(out_dtype), scores];
        // In the first round every argument is f32.
        let want = first.get_or_insert_with(|| got.clone());
        for (i, (got, want)) in got.iter().zip(&*want).enumerate() {
            let want = if i < 3 { rounded(want, out_dtype) } else { want.clone() };
            assert_eq!(*got, want, "output {i} of keys {dtype}, queries {q_dtype}, results {out_dtype}");
        }
    }
}

#[test]
fn several_caches_answer_in_one_call_as_one_by_one() {
    let caches = [10, 700, 1, 300, 64].map(|tokens| appended(&spec(), tokens));
    // One cache appears twice, and its lock is taken once.
    let order = [3, 0, 1, 3, 2, 4];
    let handles = order.map(|i| caches[i].0.cast_const());
    let (n, q) = (order.len() * QUERY, Typed::new(values(9, order.len() * QUERY)));
    for (q_dtype, out_dtype) in [(0, 0), (1, 0), (0, 2), (2, 1)] {
        let mut out = untouched(n);
        // SAFETY: the caches are not freed, and the pointers are good for the passed numbers of values.
        let status = unsafe {
            let (query, out) = (q.pointer(q_dtype), out.room(out_dtype));
            tqkv_attend_many(handles.as_ptr(), order.len(), 1, q_dtype, query, n, out_dtype, out, n)
        };
        assert_eq!(status, TqkvOk, "{}", last_error());
        for (i, out) in out.read(out_dtype).chunks(QUERY).enumerate() {
            let mut want = vec![0.0; QUERY];
            let query = &q.f32[i * QUERY..(i + 1) * QUERY];
            assert_eq!(caches[order[i]].attend(1, query, &mut want), TqkvOk);
            assert_eq!(out, rounded(&want, out_dtype), "cache {i}");
        }
    }
}

#[test]
fn what_several_caches_refuse_names_the_cache_and_writes_nothing() {
    let (full, empty) = (appended(&spec(), 40), Cache::new(&spec()));
    let other = appended_of(c"layers=2 heads=8 kv-heads=2 head-dim=64");
    let (n, q, mut out) = (2 * QUERY, Typed::new(values(9, 2 * QUERY)), untouched(2 * QUERY));
    let mut attend = |handles: &[*const TqkvCache], layer, values| {
        let (query, out) = (q.pointer(0), out.room(0));
        // SAFETY: the caches are not freed, and the pointers have at least the passed numbers of values.
        unsafe { tqkv_attend_many(handles.as_ptr(), handles.len(), layer, 0, query, values, 0, out, values) }
    };
    let (a, b, c) = (full.0.cast_const(), empty.0.cast_const(), other.0.cast_const());
    refused(attend(&[a, b], 0, n), TqkvEmpty, "caches[1]: layer 0 holds no token yet");
    refused(attend(&[a, c], 0, n), TqkvBadArgument, "caches[1]");
    refused(attend(&[a, null()], 0, n), TqkvNullPointer, "caches[1] is null");
    refused(attend(&[a, a], 2, n), TqkvBadArgument, "layer 2 is out of range");
    refused(attend(&[a, a], 0, n - 1), TqkvBadArgument, "q has 511 values, expected 512");
    refused(attend(&[a], 0, n), TqkvBadArgument, "q has 512 values, expected 256");
    assert_eq!(attend(&[], 0, 0), TqkvOk, "{}", last_error());
    assert!(out.f32.iter().all(|x| *x == -7.0));
    let mut bad = values(9, n);
    bad[QUERY + 3] = f32::NAN;
    let handles = [a, a];
    // SAFETY: the cache is not freed, and the pointers have the passed numbers of values.
    let status =
        unsafe { tqkv_attend_many(handles.as_ptr(), 2, 0, 0, bad.as_ptr().cast(), n, 0, out.room(0), n) };
    refused(status, TqkvBadVector, "token 1, head 0");
}

/// A cache with one token and twice the heads.
fn appended_of(spec: &CStr) -> Cache {
    let cache = Cache::new(spec);
    assert_eq!(cache.append(0, &values(1, TOKEN), &values(2, TOKEN)), TqkvOk);
    cache
}

/// Readers that hold several locks, and writers, run in every order without a deadlock.
#[test]
fn calls_of_several_caches_go_on_beside_calls_that_change_them() {
    let caches = [200, 300, 400].map(|tokens| appended(&spec(), tokens));
    let (q, token) = (values(9, 3 * QUERY), values(4, TOKEN));
    std::thread::scope(|scope| {
        for order in [[0, 1, 2], [2, 1, 0], [1, 1, 1]] {
            let (caches, q) = (&caches, &q);
            scope.spawn(move || {
                let handles = order.map(|i| caches[i].0.cast_const());
                let mut out = vec![0.0_f32; 3 * QUERY];
                for _ in 0..200 {
                    // SAFETY: the caches are not freed, and the pointers have the passed numbers of values.
                    let status = unsafe {
                        let (q, out) = (q.as_ptr().cast(), out.as_mut_ptr().cast());
                        tqkv_attend_many(handles.as_ptr(), 3, 0, 0, q, 3 * QUERY, 0, out, 3 * QUERY)
                    };
                    assert_eq!(status, TqkvOk, "{}", last_error());
                }
            });
        }
        for cache in &caches {
            let token = &token;
            scope.spawn(move || {
                (0..200).for_each(|_| assert_eq!(cache.append(0, token, token), TqkvOk, "{}", last_error()));
            });
        }
    });
    assert_eq!(caches.each_ref().map(Cache::len), [400, 500, 600]);
}

#[test]
fn chosen_tokens_alone_are_attended_to() {
    const LEN: usize = 300;
    let cache = Cache::new(&spec());
    assert_eq!(cache.append(0, &values(1, LEN * TOKEN), &values(2, LEN * TOKEN)), TqkvOk);
    let q = values(3, QUERY);
    let attend = |lists: &[&[u32]], counts: &[usize]| {
        let (tokens, mut out) = (lists.concat(), vec![-7.0; QUERY]);
        // SAFETY: the cache is not freed, and the slices have the passed lengths.
        let status = unsafe {
            let (q, out) = (q.as_ptr().cast(), out.as_mut_ptr().cast());
            let (list, n) = (tokens.as_ptr(), tokens.len());
            tqkv_attend_selected(
                cache.0,
                0,
                0,
                q,
                QUERY,
                list,
                n,
                counts.as_ptr(),
                counts.len(),
                0,
                out,
                QUERY,
            )
        };
        (status, out)
    };
    let all: Vec<u32> = (0..LEN as u32).collect();
    let kv_heads = TOKEN / DIM;
    let mut full = vec![0.0; QUERY];
    assert_eq!(cache.attend(0, &q, &mut full), TqkvOk);
    assert_eq!(attend(&vec![&all[..]; kv_heads], &vec![LEN; kv_heads]), (TqkvOk, full.clone()));
    // The first KV head sees less than the others.
    let mut lists = vec![&all[..]; kv_heads];
    lists[0] = &all[20..30];
    let counts: Vec<usize> = lists.iter().map(|list| list.len()).collect();
    let (status, part) = attend(&lists, &counts);
    assert_eq!(status, TqkvOk);
    let group = QUERY / kv_heads;
    assert_ne!(part[..group], full[..group]);
    assert_eq!(part[group..], full[group..]);

    let untouched = vec![-7.0; QUERY];
    for (lists, counts, why) in [
        (vec![&all[..]; kv_heads], vec![LEN; kv_heads - 1], "are in no list of list_tokens"),
        (vec![&all[..9]; kv_heads], vec![10; kv_heads], "more than the"),
        (vec![&[5, 5][..]; kv_heads], vec![2; kv_heads], "token 5 after 5 is not valid"),
        (vec![&[300][..]; kv_heads], vec![1; kv_heads], "token 300 is not valid"),
    ] {
        assert_eq!(attend(&lists, &counts), (TqkvBadArgument, untouched.clone()), "{why}");
        // SAFETY: the text of the last error is valid until the next call of this thread.
        let text = unsafe { CStr::from_ptr(tqkv_last_error()) }.to_string_lossy().into_owned();
        assert!(text.contains(why), "{text}");
    }
}
