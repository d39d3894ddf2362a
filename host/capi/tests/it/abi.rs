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
    let (cache, spec, name) = (Cache::new(&spec()), spec(), c"s4".as_ptr());
    let (x, mut out, mut number, mut size) = ([0.0; QUERY], [0.0; QUERY], 0, 0);
    let (mut codec, mut other, mut filled) = (null_mut(), null_mut(), spec);
    // SAFETY: every pointer is null or good for the passed length.
    unsafe {
        assert_eq!(tqkv_codec_create(name, DIM, 42, 2, 1, &raw mut codec), TqkvOk);
        let (xs, o, n) = (x.as_ptr(), out.as_mut_ptr(), QUERY);
        let (kv, r) = (xs.cast(), o.cast());
        let (own, none) = ([cache.0.cast_const()], [null::<TqkvCache>()]);
        let (own, none) = (own.as_ptr(), none.as_ptr());
        for (status, what) in [
            (tqkv_spec_init(null_mut(), size_of::<TqkvSpec>(), 1, 1, 1, 64), "spec"),
            (tqkv_create(null(), &raw mut other), "spec"),
            (tqkv_create(&raw const spec, null_mut()), "cache"),
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
            (tqkv_spec_preset(null_mut(), name), "spec"),
            (tqkv_spec_preset(&raw mut filled, null()), "name"),
            (tqkv_truncate(null_mut(), 0), "cache"),
            (tqkv_reset(null_mut()), "cache"),
            (tqkv_create_within(null(), null(), &raw mut other), "spec"),
            (tqkv_create_within(&raw const spec, null(), &raw mut other), "budget"),
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
            (tqkv_load(null_mut(), name), "cache"),
            (tqkv_load(cache.0, null()), "path"),
            (tqkv_len(null(), &raw mut size), "cache"),
            (tqkv_len(cache.0, null_mut()), "len"),
            (tqkv_stats(null(), null_mut(), size_of::<TqkvCacheStats>()), "cache"),
            (tqkv_stats(cache.0, null_mut(), size_of::<TqkvCacheStats>()), "stats"),
            (tqkv_codec_id(0, null_mut()), "codec"),
            (tqkv_codec_from_name(null(), &raw mut number), "name"),
            (tqkv_codec_from_name(name, null_mut()), "codec"),
            (tqkv_codec_create(null(), DIM, 42, 2, 1, (&raw mut other).cast()), "name"),
            (tqkv_codec_create(name, DIM, 42, 2, 1, null_mut()), "codec"),
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
    #[track_caller]
    fn no_cache(spec: &TqkvSpec, text: &str) {
        let mut cache = std::ptr::dangling_mut();
        // SAFETY: the struct is whole. If it says that it is longer, it is refused before more is read.
        let status = unsafe { tqkv_create(spec, &raw mut cache) };
        assert!(cache.is_null());
        refused(status, TqkvBadArgument, text);
    }
    no_cache(&TqkvSpec { num_layers: 0, ..spec() }, "all must be above 0");
    no_cache(&TqkvSpec { num_heads: 3, ..spec() }, "3 query heads");
    no_cache(&TqkvSpec { head_dim: 100, ..spec() }, "head dim not supported");
    no_cache(&TqkvSpec { key_codec: 2, ..spec() }, "key_codec is 2");
    no_cache(&TqkvSpec { value_codec: 256, ..spec() }, "value_codec is 256");
    no_cache(&TqkvSpec { scale_mode: 4, ..spec() }, "scale_mode is 4, expected 0 to 3");
    no_cache(&TqkvSpec { effort: 3, ..spec() }, "effort is 3");
    no_cache(&TqkvSpec { centring: 3, ..spec() }, "centring is 3");
    no_cache(&TqkvSpec { arithmetic: u32::MAX, ..spec() }, "arithmetic is 4294967295");
    no_cache(&TqkvSpec { sliding_window: 8, ..spec() }, "sliding window");
    no_cache(&TqkvSpec { value_dim: 100, ..spec() }, "value_dim 100");
    no_cache(&TqkvSpec { scale: f32::NAN, ..spec() }, "scale of the logits");
    no_cache(&TqkvSpec { soft_cap: -1.0, ..spec() }, "soft cap");
    no_cache(&TqkvSpec { reserved: 1, ..spec() }, "later version");
    let (m2, t2) = (CodecId::M2.code().into(), CodecId::T2.code().into());
    let quarters = TqkvSpec { key_codec: m2, value_codec: t2, ..spec() };
    no_cache(&quarters, "m2 is not valid for keys without a map: expected map=pairs or map=full");
    no_cache(&TqkvSpec { text: c"m3,t3".as_ptr(), ..spec() }, "m3 is not valid for keys without a map");
    no_cache(
        &TqkvSpec { value_codec: m2, ..spec() },
        "m2 is not valid for values: expected a codec of one width",
    );
    drop(Cache::new(&TqkvSpec { text: c"map=pairs".as_ptr(), ..quarters }));
    let windows = [0, usize::MAX, 128];
    let layer_windows = windows.as_ptr();
    no_cache(
        &TqkvSpec { layer_windows, layer_windows_len: 3, ..spec() },
        "layer_windows has 3 values, expected 2",
    );
    // Far longer than the array, and refused before it is read.
    no_cache(&TqkvSpec { layer_windows, layer_windows_len: 1 << 40, ..spec() }, "expected 2");
    let layer_windows = windows[1..].as_ptr();
    no_cache(
        &TqkvSpec {
            layer_windows: &raw const windows[2],
            layer_windows_len: 1,
            num_layers: 1,
            hot: 200,
            ..spec()
        },
        "sliding window",
    );
    no_cache(&TqkvSpec { layer_windows, layer_windows_len: 1, num_layers: 1, ..spec() }, "no layer keeps");
    let codecs = [19, 19, 2, 19];
    let layer_codecs = codecs.as_ptr();
    no_cache(
        &TqkvSpec { layer_codecs, layer_codecs_len: 2, ..spec() },
        "layer_codecs has 2 values, expected 4",
    );
    no_cache(
        &TqkvSpec { layer_codecs, layer_codecs_len: 4, ..spec() },
        "layer_codecs is 2, which no codec has",
    );
    let logits = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, f32::INFINITY];
    let sink_logits = logits.as_ptr();
    no_cache(&TqkvSpec { sink_logits, sink_logits_len: 7, ..spec() }, "sink_logits has 7 values, expected 8");
    no_cache(&TqkvSpec { sink_logits, sink_logits_len: 8, ..spec() }, "must be finite");
    let demoted = TqkvTier { after: 100, spill_folder: null(), key_codec: 19, value_codec: 19 };
    let tiers = [demoted, TqkvTier { key_codec: 2, ..demoted }];
    no_cache(&TqkvSpec { tiers: &raw const tiers[1], tiers_len: 1, ..spec() }, "key_codec is 2");
    no_cache(
        &TqkvSpec { cold_after: 100, tiers: tiers.as_ptr(), tiers_len: 1, ..spec() },
        "not in order of age",
    );
    // The first version of each struct, which compiled programs may have.
    let (first, first_stats) =
        (std::mem::offset_of!(TqkvSpec, value_dim), std::mem::offset_of!(TqkvCacheStats, shared_bytes));
    no_cache(&TqkvSpec { struct_size: 0, ..spec() }, "pass sizeof");
    no_cache(&TqkvSpec { struct_size: first - 1, ..spec() }, "pass sizeof");
    no_cache(&TqkvSpec { struct_size: 5000, ..spec() }, "pass sizeof");
    let mut whole = spec();
    // SAFETY: the structs are shorter than their room.
    unsafe {
        for size in [0, 8, first - 1, 1 << 20] {
            refused(tqkv_spec_init(&raw mut whole, size, 1, 1, 1, 64), TqkvBadArgument, "pass sizeof");
        }
        let cache = Cache::new(&spec());
        let mut stats = cache.stats();
        let small = first_stats - 1;
        refused(tqkv_stats(cache.0, &raw mut stats, small), TqkvBadArgument, "pass sizeof");
    }
    let folder = TqkvSpec { cold_after: 128, spill_folder: c"/no/such/folder".as_ptr(), ..spec() };
    let mut cache = null_mut();
    // SAFETY: the struct is whole, and its folder ends with a zero.
    refused(unsafe { tqkv_create(&raw const folder, &raw mut cache) }, TqkvIo, "/no/such/folder");
}

#[test]
fn tokens_behind_the_sliding_window_do_not_come_back() {
    let window = TqkvSpec { hot: 0, sinks: 0, centring: 0, sliding_window: 128, ..spec() };
    let cache = Cache::new(&window);
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
        let sliding = TqkvSpec { hot, sinks, centring: 0, sliding_window: window, ..spec() };
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
            assert_eq!(tqkv_codec_create(name.as_ptr(), DIM, 42, 2, 1, &raw mut codec), TqkvOk);
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
    let (mut codec, mut number) = (null_mut(), 99);
    let (x, mut blocks, mut out) = (values(1, DIM), [0_u8; 100], [0.0; DIM]);
    // SAFETY: texts end with zeros, slices have the passed lengths, and places can be written.
    unsafe {
        let name = c"s9".as_ptr();
        refused(tqkv_codec_from_name(name, &raw mut number), TqkvBadArgument, "no codec is named 's9'");
        refused(tqkv_codec_from_name(c"\xff".as_ptr(), &raw mut number), TqkvBadArgument, "UTF-8");
        refused(tqkv_codec_id(usize::MAX, &raw mut number), TqkvBadArgument, "out of range");
        assert_eq!(number, 99);
        let create = |name: &CStr, dim, scale, effort, place| {
            tqkv_codec_create(name.as_ptr(), dim, 42, scale, effort, place)
        };
        refused(create(c"s9", DIM, 2, 1, &raw mut codec), TqkvBadArgument, "expected s4, s3");
        refused(create(c"s4", 65, 2, 1, &raw mut codec), TqkvBadArgument, "head dim not supported");
        refused(create(c"q4_0", 48, 2, 1, &raw mut codec), TqkvBadArgument, "multiple of 32");
        refused(create(c"s4", DIM, 7, 1, &raw mut codec), TqkvBadArgument, "scale_mode is 7");
        assert!(codec.is_null());
        assert_eq!(create(c"s4", DIM, 2, 1, &raw mut codec), TqkvOk);
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
