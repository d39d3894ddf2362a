//! Calls as a C program makes them, with its mistakes. Every refusal has a status and one line of text, and
//! leaves the cache as it was.

use crate::common::*;
use half::f16;
use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};
use tqkv::cache::{CacheSpec, KvCache};
use tqkv_capi::TqkvDtype::*;
use tqkv_capi::TqkvStatus::*;
use tqkv_capi::*;
use tqkv_core::CodecId;

const F32: u32 = TqkvF32 as u32;

#[test]
fn a_cache_of_c_is_the_cache_of_rust() {
    let cache = Cache::new(&spec());
    let mut rust = KvCache::new(CacheSpec::new(2, HEADS, KV_HEADS, DIM)).unwrap();
    let (k, v) = (values(1, 200 * TOKEN), values(2, 200 * TOKEN));
    for layer in 0..2 {
        assert_eq!(cache.append(layer, &k, &v), TqkvOk);
        rust.append(layer, &k, &v).unwrap();
    }
    let (q, mut out, mut want) = (values(3, QUERY), vec![0.0; QUERY], vec![0.0; QUERY]);
    assert_eq!(cache.attend(1, &q, &mut out), TqkvOk);
    rust.attend(1, &q, &mut want).unwrap();
    assert_eq!(out, want);

    let want = rust.scores(0, 3, &q[..DIM]).unwrap();
    let (mut scores, mut count) = (vec![0.0; 300], 0);
    // SAFETY: the cache is not freed, the lengths are those of the slices, and the count can be written.
    let status = unsafe {
        tqkv_scores(
            cache.0,
            0,
            3,
            F32,
            q.as_ptr().cast(),
            DIM,
            scores.as_mut_ptr(),
            scores.len(),
            &raw mut count,
        )
    };
    assert_eq!((status, count), (TqkvOk, 200));
    assert_eq!(scores[..200], want[..]);

    let (stats, want) = (cache.stats(), rust.stats());
    assert_eq!((stats.tokens, stats.sinks, stats.hot, stats.warm), (200, 4, want.hot, want.warm));
    assert_eq!((stats.allocated_bytes, stats.spilled_bytes), (want.allocated_bytes, 0));

    // SAFETY: the cache is not freed.
    assert_eq!(unsafe { tqkv_truncate(cache.0, 150) }, TqkvOk);
    assert_eq!(cache.len(), 150);
    // SAFETY: the cache is not freed.
    assert_eq!(unsafe { tqkv_reset(cache.0) }, TqkvOk);
    assert_eq!((cache.len(), cache.stats().tokens), (0, 0));
}

#[test]
fn null_is_refused_wherever_a_pointer_goes() {
    let (cache, text, name) = (Cache::new(&spec()), spec(), c"s4".as_ptr());
    let spec = text.as_ptr();
    let (x, mut out, mut size) = ([0.0; QUERY], [0.0; QUERY], 0);
    let (mut codec, mut other) = (null_mut(), null_mut());
    // SAFETY: every pointer is null or good for the passed length.
    unsafe {
        assert_eq!(tqkv_codec_create(name, DIM, &raw mut codec), TqkvOk);
        let (xs, o, n) = (x.as_ptr(), out.as_mut_ptr(), QUERY);
        let (kv, r) = (xs.cast(), o.cast());
        let (own, none) = ([cache.0.cast_const()], [null::<TqkvCache>()]);
        let (own, none) = (own.as_ptr(), none.as_ptr());
        let (tokens, counts) = ([0], [1]);
        let (t, c) = (tokens.as_ptr(), counts.as_ptr());
        for (status, what) in [
            (tqkv_create(null(), &raw mut other), "spec"),
            (tqkv_create(spec, null_mut()), "cache"),
            (tqkv_append(null_mut(), 0, 0, kv, TOKEN, kv, TOKEN), "cache"),
            (tqkv_append(cache.0, 0, 0, null(), TOKEN, kv, TOKEN), "k"),
            (tqkv_append(cache.0, 0, 1, kv, TOKEN, null(), TOKEN), "v"),
            (tqkv_append(cache.0, 0, 2, null(), 0, null(), 0), "k"),
            (tqkv_attend(null(), 0, 0, kv, n, 0, r, n), "cache"),
            (tqkv_attend(cache.0, 0, 1, null(), n, 0, r, n), "q"),
            (tqkv_attend(cache.0, 0, 0, kv, n, 2, null_mut(), n), "out"),
            (tqkv_attend_many(null(), 1, 0, 0, kv, n, 0, r, n), "caches"),
            (tqkv_attend_many(none, 1, 0, 0, kv, n, 0, r, n), "caches[0]"),
            (tqkv_attend_many(own, 1, 0, 0, null(), n, 0, r, n), "q"),
            (tqkv_attend_many(own, 1, 0, 0, kv, n, 0, null_mut(), n), "out"),
            (tqkv_attend_selected(null(), 0, 0, kv, n, t, 1, c, 1, 0, r, n), "cache"),
            (tqkv_attend_selected(cache.0, 0, 0, null(), n, t, 1, c, 1, 0, r, n), "q"),
            (tqkv_attend_selected(cache.0, 0, 0, kv, n, null(), 1, c, 1, 0, r, n), "tokens"),
            (tqkv_attend_selected(cache.0, 0, 0, kv, n, t, 1, null(), 1, 0, r, n), "list_tokens"),
            (tqkv_attend_selected(cache.0, 0, 0, kv, n, t, 1, c, 1, 0, null_mut(), n), "out"),
            (tqkv_prefill(null_mut(), 0, 0, kv, n, 0, kv, TOKEN, kv, TOKEN, 0, r, n), "cache"),
            (tqkv_prefill(cache.0, 0, 0, null(), n, 0, kv, TOKEN, kv, TOKEN, 0, r, n), "q"),
            (tqkv_prefill(cache.0, 0, 0, kv, n, 0, null(), TOKEN, kv, TOKEN, 0, r, n), "k"),
            (tqkv_prefill(cache.0, 0, 0, kv, n, 0, kv, TOKEN, null(), TOKEN, 0, r, n), "v"),
            (tqkv_prefill(cache.0, 0, 0, kv, n, 0, kv, TOKEN, kv, TOKEN, 0, null_mut(), n), "out"),
            (tqkv_scores(null(), 0, 0, 0, kv, DIM, o, n, &raw mut size), "cache"),
            (tqkv_scores(cache.0, 0, 0, 0, null(), DIM, o, n, &raw mut size), "q"),
            (tqkv_scores(cache.0, 0, 0, 0, kv, DIM, null_mut(), n, &raw mut size), "out"),
            (tqkv_scores(cache.0, 0, 0, 0, kv, DIM, o, n, null_mut()), "count"),
            (tqkv_threads(null_mut()), "threads"),
            (tqkv_set_sink_logits(null_mut(), xs, 8), "cache"),
            (tqkv_set_sink_logits(cache.0, null(), 8), "logits"),
            (tqkv_truncate(null_mut(), 0), "cache"),
            (tqkv_reset(null_mut()), "cache"),
            (tqkv_create_within(null(), null(), &raw mut other), "spec"),
            (tqkv_create_within(spec, null(), &raw mut other), "budget"),
            (tqkv_budget_create(1, null_mut()), "budget"),
            (tqkv_budget_used(null(), &raw mut size), "budget"),
            (tqkv_budget_limit(null(), &raw mut size), "budget"),
            (tqkv_fork(null(), &raw mut other), "cache"),
            (tqkv_fork(cache.0, null_mut()), "fork"),
            (tqkv_keys(null(), 0, 0, 0, 0, 0, r, 0), "cache"),
            (tqkv_keys(cache.0, 0, 0, 0, 0, 0, null_mut(), 0), "out"),
            (tqkv_values(null(), 0, 0, 0, 0, 0, r, 0), "cache"),
            (tqkv_values(cache.0, 0, 0, 0, 0, 0, null_mut(), 0), "out"),
            (tqkv_snapshot(null(), Some(write), null_mut()), "cache"),
            (tqkv_snapshot(cache.0, None, null_mut()), "write"),
            (tqkv_restore(null_mut(), Some(read), null_mut()), "cache"),
            (tqkv_restore(cache.0, None, null_mut()), "read"),
            (tqkv_save(null(), name), "cache"),
            (tqkv_save(cache.0, null()), "path"),
            (tqkv_restore_from(null_mut(), name), "cache"),
            (tqkv_restore_from(cache.0, null()), "path"),
            (tqkv_load(name, null_mut()), "cache"),
            (tqkv_load(null(), &raw mut other), "path"),
            (tqkv_len(null(), &raw mut size), "cache"),
            (tqkv_len(cache.0, null_mut()), "len"),
            (tqkv_stats(null(), null_mut()), "cache"),
            (tqkv_stats(cache.0, null_mut()), "stats"),
            (tqkv_codec_create(null(), DIM, (&raw mut other).cast()), "codec"),
            (tqkv_codec_create(name, DIM, null_mut()), "made"),
            (tqkv_codec_block_bytes(null(), &raw mut size), "codec"),
            (tqkv_codec_block_bytes(codec, null_mut()), "bytes"),
            (tqkv_codec_encode(null(), xs, DIM, o.cast(), 34), "codec"),
            (tqkv_codec_encode(codec, null(), DIM, o.cast(), 34), "x"),
            (tqkv_codec_encode(codec, xs, DIM, null_mut(), 34), "blocks"),
            (tqkv_codec_decode(null(), xs.cast(), 34, o, DIM), "codec"),
            (tqkv_codec_decode(codec, null(), 34, o, DIM), "blocks"),
            (tqkv_codec_decode(codec, xs.cast(), 34, null_mut(), DIM), "out"),
            (tqkv_codec_scores(null(), xs, DIM, xs.cast(), 34, o, 1), "codec"),
            (tqkv_codec_scores(codec, null(), DIM, xs.cast(), 34, o, 1), "q"),
            (tqkv_codec_scores(codec, xs, DIM, null(), 34, o, 1), "blocks"),
            (tqkv_codec_scores(codec, xs, DIM, xs.cast(), 34, null_mut(), 1), "out"),
        ] {
            // The text is that of the last call, so only the status is compared here.
            assert_eq!(status, TqkvNullPointer, "{what}");
        }
        refused(tqkv_len(cache.0, null_mut()), TqkvNullPointer, "len is null");
        tqkv_free(null_mut());
        tqkv_budget_free(null_mut());
        tqkv_codec_free(null_mut());
        tqkv_codec_free(codec);
    }
    assert!(other.is_null());
    assert_eq!(cache.len(), 0);
}

#[test]
fn wrong_lengths_and_numbers_are_refused_and_change_nothing() {
    let cache = Cache::new(&spec());
    let k = values(1, 3 * TOKEN);
    assert_eq!(cache.append(0, &k, &k), TqkvOk);
    let (q, mut out) = (values(2, QUERY), vec![0.0; QUERY]);
    refused(cache.append(2, &k, &k), TqkvBadArgument, "layer 2 is out of range");
    refused(cache.append(0, &k[1..], &k), TqkvBadArgument, "whole number of tokens");
    refused(cache.append(0, &k, &k[TOKEN..]), TqkvBadArgument, "v has");
    refused(cache.attend(9, &q, &mut out), TqkvBadArgument, "layer 9 is out of range");
    refused(cache.attend(0, &q[1..], &mut out), TqkvBadArgument, "q has 255 values, expected 256");
    refused(cache.attend(0, &q, &mut out[1..]), TqkvBadArgument, "out has 255 values");
    let (p, n) = (k.as_ptr(), k.len());
    let (o, mut count) = (out.as_mut_ptr(), 77);
    // SAFETY: the cache is not freed; what is longer than its memory is refused before it is read.
    unsafe {
        let kv = p.cast();
        refused(
            tqkv_append(cache.0, 0, 3, kv, n, kv, n),
            TqkvBadArgument,
            "dtype of k is 3, expected 0 to 2",
        );
        refused(tqkv_append(cache.0, 0, 0, kv, usize::MAX, kv, n), TqkvBadArgument, "memory");
        refused(tqkv_append(cache.0, 0, 0, kv.byte_add(1), 1, kv, n), TqkvBadArgument, "aligned");
        let (q, r) = (q.as_ptr().cast(), o.cast());
        refused(
            tqkv_attend(cache.0, 0, 0, o.cast(), QUERY, 0, r, QUERY),
            TqkvBadArgument,
            "q and out overlap",
        );
        refused(tqkv_attend(cache.0, 0, 3, q, QUERY, 0, r, QUERY), TqkvBadArgument, "dtype of q is 3");
        refused(tqkv_attend(cache.0, 0, 0, q, QUERY, 9, r, QUERY), TqkvBadArgument, "dtype of out is 9");
        let status = tqkv_prefill(cache.0, 0, 0, q, QUERY, 0, o.cast(), TOKEN, kv, TOKEN, 0, r, QUERY);
        refused(status, TqkvBadArgument, "k and out overlap");
        let scores =
            |head, values, room, count| tqkv_scores(cache.0, 0, head, 0, p.cast(), values, o, room, count);
        refused(scores(HEADS, DIM, 9, &raw mut count), TqkvBadArgument, "query head 4");
        refused(scores(0, DIM + 1, 9, &raw mut count), TqkvBadArgument, "q has 65 values");
        assert_eq!(count, 77);
        refused(scores(0, DIM, 2, &raw mut count), TqkvFull, "room for 2 scores of 3");
        assert_eq!(count, 3);
        assert_eq!(scores(0, DIM, 3, &raw mut count), TqkvOk);
    }
    assert_eq!(cache.len(), 3);
}

#[test]
fn vectors_that_cannot_be_stored_leave_the_cache_as_it_was() {
    let cache = Cache::new(&spec());
    let good = values(1, 10 * TOKEN);
    assert_eq!(cache.append(0, &good, &good), TqkvOk);
    let (q, mut before, mut after) = (values(2, QUERY), vec![0.0; QUERY], vec![0.0; QUERY]);
    assert_eq!(cache.attend(0, &q, &mut before), TqkvOk);
    for bad in [f32::NAN, f32::INFINITY, 1e30] {
        let mut k = good.clone();
        k[9 * TOKEN + DIM + 5] = bad;
        refused(cache.append(0, &k, &good), TqkvBadVector, "key of token 19, KV head 1");
        refused(cache.append(0, &good, &k), TqkvBadVector, "value of token 19, KV head 1");
    }
    let bad = [f16::NAN; TOKEN];
    // SAFETY: the cache is not freed, and the pointers have the passed numbers of values.
    let status = unsafe {
        tqkv_append(cache.0, 0, TqkvF16 as u32, bad.as_ptr().cast(), TOKEN, bad.as_ptr().cast(), TOKEN)
    };
    refused(status, TqkvBadVector, "key of token 10");
    let mut query = q.clone();
    query[DIM] = f32::NAN;
    refused(cache.attend(0, &query, &mut after), TqkvBadVector, "head 1");
    assert_eq!((cache.len(), cache.stats().tokens), (10, 10));
    assert_eq!(cache.attend(0, &q, &mut after), TqkvOk);
    assert_eq!(before, after);
    assert_eq!(cache.append(0, &good, &good), TqkvOk);
    assert_eq!(cache.len(), 20);
}

#[test]
fn specs_that_no_cache_can_have_are_refused() {
    let refuse = |text: &CStr, status: TqkvStatus, why: &str| {
        let mut cache = std::ptr::dangling_mut();
        // SAFETY: the text ends with a zero, and the place can be written.
        let found = unsafe { tqkv_create(text.as_ptr(), &raw mut cache) };
        assert!(cache.is_null());
        refused(found, status, why);
    };
    for (text, why) in [
        (c"", "an empty text is not valid"),
        (c"t4,t2 hot=32", "layers is missing: expected layers=N"),
        (c"layers=2 heads=4 kv-heads=2", "head-dim is missing: expected head-dim=N"),
        (c"layers=0 heads=4 head-dim=64", "all must be above 0"),
        (c"layers=1 heads=3 kv-heads=2 head-dim=64", "3 query heads"),
        (c"layers=1 heads=1 head-dim=100", "head dim not supported"),
        (c"layers=1 heads=1 head-dim=64 value-dim=100", "value_dim 100"),
        (c"layers=3 heads=1 head-dim=64 kinds=128/full", "2"),
        (c"\xff", "spec is not UTF-8"),
    ] {
        refuse(text, TqkvBadArgument, why);
    }
    for (words, why) in [
        ("s9", "'s9' is neither a preset"),
        ("hot=a", "hot=a is not valid: expected hot=TOKENS"),
        ("centring=maybe", "expected centring=auto|on|off"),
        ("cold=2", "cold= is not valid"),
        ("sliding-window=8", "sliding window"),
        ("scale=NaN", "NaN is not finite"),
        ("soft-cap=-1", "soft cap"),
        ("s4,m2", "m2 is not valid for values: expected a codec of one width"),
        ("kinds=none/none", "no layer keeps"),
        ("sink-logits=1/2", "sink"),
    ] {
        refuse(&with(words), TqkvBadArgument, why);
    }
    refuse(&with("spill=128:/no/such/folder"), TqkvIo, "/no/such/folder");
    for own in ["m2,t2", "m2,t2 map=pairs", "m2,t2 map=off", "tiny ring=256"] {
        drop(Cache::new(&with(own)));
    }
}

#[test]
fn stats_count_heads_with_a_map() {
    let cache = Cache::new(&with("s4"));
    let mut k = values(1, 200 * TOKEN);
    assert_eq!((cache.append(0, &k, &k), cache.stats().mapped_heads), (TqkvOk, 0));
    // One pair of the last KV head has nearly all of its energy.
    for token in k.chunks_exact_mut(TOKEN) {
        [5, 5 + DIM / 2].into_iter().for_each(|i| token[TOKEN - DIM + i] *= 60.0);
    }
    assert_eq!((cache.append(1, &k, &k), cache.stats().mapped_heads), (TqkvOk, 1));
}

/// The array of a model gives the cache of the same words.
#[test]
fn sink_logits_are_set_before_the_first_token() {
    let logits = [0.5, -1.0, 0.0, 2.0, 0.25, 0.0, 1.0, 1.5];
    let words = with("sink-logits=0.5/-1/0/2/0.25/0/1/1.5 hot=8");
    let cache = Cache::new(&with("hot=8"));
    let set = |cache: &Cache, len| {
        // SAFETY: the cache is not freed, and the array has as many values.
        unsafe { tqkv_set_sink_logits(cache.0, logits.as_ptr(), len) }
    };
    refused(set(&cache, 7), TqkvBadArgument, "7");
    assert_eq!(set(&cache, 8), TqkvOk, "{}", last_error());
    let k = values(1, 100 * TOKEN);
    (0..2).for_each(|layer| assert_eq!(cache.append(layer, &k, &k), TqkvOk));
    let wanted = Cache::new(&words);
    (0..2).for_each(|layer| assert_eq!(wanted.append(layer, &k, &k), TqkvOk));
    assert_eq!(attended(&cache), attended(&wanted));
    let plain = Cache::new(&with("hot=8"));
    (0..2).for_each(|layer| assert_eq!(plain.append(layer, &k, &k), TqkvOk));
    assert_ne!(attended(&plain), attended(&wanted));
    refused(set(&cache, 8), TqkvBadArgument, "the cache holds 100 tokens");
}

#[test]
fn tokens_behind_the_sliding_window_do_not_come_back() {
    let cache = Cache::new(&with("hot=0 sinks=0 centring=off sliding-window=128"));
    let k = values(1, 1024 * TOKEN);
    for layer in 0..2 {
        assert_eq!(cache.append(layer, &k, &k), TqkvOk);
    }
    assert!(cache.stats().evicted > 0);
    // SAFETY: the cache is not freed.
    refused(unsafe { tqkv_truncate(cache.0, 300) }, TqkvEvicted, "cannot truncate to 300");
    // SAFETY: the cache is not freed.
    assert_eq!(unsafe { tqkv_truncate(cache.0, 1000) }, TqkvOk);
    assert_eq!(cache.len(), 1000);
}

/// The newest 256 tokens can always be dropped, counted from the greatest length. The text of `tqkv_truncate`
/// says so.
#[test]
fn tokens_up_to_256_behind_the_greatest_length_can_be_dropped() {
    let k = values(1, TOKEN * 1500);
    for (hot, sinks, window) in [(0, 0, 128), (16, 4, 100), (64, 4, 300)] {
        let sliding = with(&format!("hot={hot} sinks={sinks} centring=off sliding-window={window}"));
        let mut refusals = 0;
        for greatest in (520..1400).step_by(37) {
            let cache = Cache::new(&sliding);
            let append = |tokens: usize| {
                (0..2).for_each(|layer| {
                    assert_eq!(cache.append(layer, &k[..tokens * TOKEN], &k[..tokens * TOKEN]), TqkvOk);
                });
            };
            append(greatest);
            // SAFETY: the cache is not freed.
            let truncate = |len| unsafe { tqkv_truncate(cache.0, len) };
            for len in [greatest - 127, greatest - 254, greatest - 256] {
                assert_eq!(truncate(len), TqkvOk, "{len} of {greatest}: {}", last_error());
            }
            // Shorter lengths count from the greatest length, and tokens appended again do as well.
            append(100);
            assert_eq!(truncate(greatest - 256), TqkvOk, "again to {} of {greatest}", greatest - 256);
            let status = truncate(greatest - 256 - 128);
            assert!([TqkvOk, TqkvEvicted].contains(&status));
            refusals += usize::from(status == TqkvEvicted);
        }
        assert!(refusals > 0, "what is further behind may be gone");
    }
}

#[test]
fn codecs_encode_decode_and_score_as_those_of_rust() {
    let x = values(5, 3 * DIM);
    for id in CodecId::ALL.iter().copied() {
        let name = CString::new(id.name()).unwrap();
        let rust = tqkv_core::AnyCodec::new(id, DIM, tqkv_core::Options::DEFAULT).unwrap();
        let (mut codec, mut bytes) = (null_mut(), 0);
        // SAFETY: texts end with zeros, slices have the passed lengths, and places can be written.
        unsafe {
            assert_eq!(tqkv_codec_create(name.as_ptr(), DIM, &raw mut codec), TqkvOk);
            assert_eq!(tqkv_codec_block_bytes(codec, &raw mut bytes), TqkvOk);
            assert_eq!(bytes, rust.block_bytes());
            let (mut blocks, mut want) = (vec![0; 3 * bytes], vec![0; 3 * bytes]);
            let status = tqkv_codec_encode(codec, x.as_ptr(), x.len(), blocks.as_mut_ptr(), 3 * bytes);
            assert_eq!(status, TqkvOk, "{}", last_error());
            rust.encode(&x, &mut want).unwrap();
            assert_eq!(blocks, want, "{}", id.name());
            let (mut back, mut decoded) = (vec![0.0; x.len()], vec![0.0; DIM]);
            let status = tqkv_codec_decode(codec, blocks.as_ptr(), 3 * bytes, back.as_mut_ptr(), x.len());
            assert_eq!(status, TqkvOk, "{}", last_error());
            rust.decode(&blocks[..bytes], &mut decoded).unwrap();
            assert_eq!(back[..DIM], decoded);
            let mut scores = [0.0; 3];
            let status =
                tqkv_codec_scores(codec, x.as_ptr(), DIM, blocks.as_ptr(), 3 * bytes, scores.as_mut_ptr(), 3);
            assert_eq!(status, TqkvOk, "{}", last_error());
            for (score, back) in scores.iter().zip(back.chunks(DIM)) {
                let dot: f64 = x.iter().zip(back).map(|(a, b)| f64::from(a * b)).sum();
                assert!((f64::from(*score) - dot).abs() < 1e-3 * (1.0 + dot.abs()), "{}", id.name());
            }
            tqkv_codec_free(codec);
        }
    }
}

#[test]
fn codecs_refuse_what_they_cannot_do() {
    let mut codec = null_mut();
    let (x, mut blocks, mut out) = (values(1, DIM), [0_u8; 100], [0.0; DIM]);
    // SAFETY: texts end with zeros, slices have the passed lengths, and places can be written.
    unsafe {
        let create = |text: &CStr, dim, place| tqkv_codec_create(text.as_ptr(), dim, place);
        refused(create(c"s9", DIM, &raw mut codec), TqkvBadArgument, "'s9' is neither a preset");
        refused(create(c"\xff", DIM, &raw mut codec), TqkvBadArgument, "UTF-8");
        refused(create(c"s4", 65, &raw mut codec), TqkvBadArgument, "head dim not supported");
        refused(create(c"q4_0", 48, &raw mut codec), TqkvBadArgument, "multiple of 32");
        refused(create(c"s4 scale-mode=least", DIM, &raw mut codec), TqkvBadArgument, "scale-mode=raw|");
        refused(create(c"t4,t2", DIM, &raw mut codec), TqkvBadArgument, "expected one codec, and seed=");
        refused(create(c"s4 hot=8", DIM, &raw mut codec), TqkvBadArgument, "\"s4 hot=8\" is not valid");
        assert!(codec.is_null());
        assert_eq!(create(c"s4", DIM, &raw mut codec), TqkvOk);
        let (p, b, o) = (x.as_ptr(), blocks.as_mut_ptr(), out.as_mut_ptr());
        refused(tqkv_codec_encode(codec, p, DIM, b, 33), TqkvBadArgument, "its block 34 bytes");
        refused(tqkv_codec_encode(codec, p, DIM - 1, b, 34), TqkvBadArgument, "x has 63 values");
        refused(tqkv_codec_decode(codec, b, 68, o, DIM), TqkvBadArgument, "blocks 68 bytes");
        refused(tqkv_codec_scores(codec, p, 1, b, 34, o, 1), TqkvBadArgument, "q has 1 values");
        refused(tqkv_codec_scores(codec, p, DIM, b, 34, o, 2), TqkvBadArgument, "34 bytes of blocks for 2");
        refused(tqkv_codec_scores(codec, p, DIM, b, 34, o, usize::MAX / 8), TqkvBadArgument, "blocks");
        refused(tqkv_codec_decode(codec, o.cast(), 34, o, DIM), TqkvBadArgument, "overlap");
        let mut bad = x.clone();
        bad[7] = f32::NAN;
        refused(tqkv_codec_encode(codec, bad.as_ptr(), DIM, b, 34), TqkvBadVector, "vector 0");
        refused(tqkv_codec_scores(codec, bad.as_ptr(), DIM, b, 34, o, 1), TqkvBadVector, "finite");
        bad[7] = 1e9;
        refused(tqkv_codec_encode(codec, bad.as_ptr(), DIM, b, 34), TqkvBadVector, "too large");
        blocks[..2].copy_from_slice(&[0, 0x7c]);
        refused(tqkv_codec_decode(codec, b, 34, o, DIM), TqkvBadBlock, "scale");
        tqkv_codec_free(codec);
    }
}

#[test]
fn threads_attend_side_by_side_while_one_appends() {
    let cache = Cache::new(&spec());
    let (k, q) = (values(1, 300 * TOKEN), values(2, QUERY));
    assert_eq!(cache.append(0, &k, &k), TqkvOk);
    let mut want = vec![0.0; QUERY];
    assert_eq!(cache.attend(0, &q, &mut want), TqkvOk);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut out = vec![0.0; QUERY];
                for _ in 0..50 {
                    assert_eq!(cache.attend(0, &q, &mut out), TqkvOk);
                    assert_eq!(out, want);
                }
            });
        }
        scope.spawn(|| {
            for token in k.chunks(TOKEN).take(50) {
                assert_eq!(cache.append(1, token, token), TqkvOk);
            }
        });
    });
    assert_eq!(cache.len(), 300);
}

#[test]
fn every_status_has_a_name_and_the_library_a_version() {
    // SAFETY: both are static texts.
    let text = |pointer| unsafe { CStr::from_ptr(pointer) }.to_str().unwrap();
    assert_eq!(text(tqkv_version()), env!("CARGO_PKG_VERSION"));
    assert_eq!(text(tqkv_status_name(TqkvOk as u32)), "TQKV_OK");
    assert_eq!(text(tqkv_status_name(u32::MAX)), "unknown status");
    let header = include_str!("../../include/tqkv.h");
    for number in 0..=TqkvBadSession as u32 {
        let name = text(tqkv_status_name(number));
        assert!(header.contains(&format!("  {name} = {number},")), "{name} is not {number} in the header");
    }
    assert_eq!(text(tqkv_status_name(TqkvBadSession as u32 + 1)), "unknown status");
}
