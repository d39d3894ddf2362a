//! Forks, snapshots, budgets, decoded tokens and settings by layer, with the mistakes of programs.

use crate::common::*;
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use tqkv::cache::{CacheSpec, KvCache, LayerKind, LayerPolicy};
use tqkv::{CodecId, KvShape};
use tqkv_capi::TqkvStatus::*;
use tqkv_capi::*;

unsafe extern "C" fn read_too_much(_: *mut c_void, _: *mut u8, len: usize) -> isize {
    len.cast_signed() + 1
}

#[test]
fn a_snapshot_goes_through_functions_and_files_and_goes_on_bit_for_bit() {
    let (cache, other) = (appended(&spec(), 300), appended(&spec(), 7));
    let (bytes, want) = (written(&cache), attended(&cache));
    let mut stream = Stream::of(&bytes);
    stream.bytes.extend(b"what follows");
    // SAFETY: the cache and the stream are not freed.
    assert_eq!(unsafe { tqkv_restore(other.0, Some(read), stream.user()) }, TqkvOk, "{}", last_error());
    assert_eq!((stream.at, other.len()), (bytes.len(), 300), "not a byte more is read");
    assert_eq!((attended(&other), written(&other)), (want.clone(), bytes.clone()));

    let folder = tempfile::tempdir().unwrap();
    let text = |name: &str| CString::new(folder.path().join(name).to_str().unwrap()).unwrap();
    let loaded = Cache::new(&spec());
    // SAFETY: the caches are not freed, and the texts end with zeros.
    unsafe {
        let path = text("a.tqs");
        assert_eq!(tqkv_save(cache.0, path.as_ptr()), TqkvOk, "{}", last_error());
        assert_eq!(tqkv_restore_from(loaded.0, path.as_ptr()), TqkvOk, "{}", last_error());
        assert_eq!((attended(&loaded), written(&loaded)), (want.clone(), bytes.clone()));
        assert_eq!(std::fs::read(folder.path().join("a.tqs")).unwrap(), bytes);
        let mut made = null_mut();
        assert_eq!(tqkv_load(path.as_ptr(), &raw mut made), TqkvOk, "{}", last_error());
        let made = Cache(made);
        assert_eq!((attended(&made), written(&made)), (want.clone(), bytes.clone()));

        refused(tqkv_save(cache.0, text("none/b").as_ptr()), TqkvIo, "none/b");
        refused(tqkv_restore_from(loaded.0, text("none").as_ptr()), TqkvIo, "none");
        refused(
            tqkv_restore_from(
                loaded.0,
                folder.path().to_str().map(|p| CString::new(p).unwrap()).unwrap().as_ptr(),
            ),
            TqkvIo,
            "",
        );
        refused(tqkv_restore_from(loaded.0, c"\xff".as_ptr()), TqkvBadArgument, "UTF-8");
        std::fs::write(folder.path().join("bad"), &bytes[..100]).unwrap();
        refused(tqkv_restore_from(loaded.0, text("bad").as_ptr()), TqkvBadSnapshot, "cut short");
        let mut none = std::ptr::without_provenance_mut(1);
        refused(tqkv_load(text("bad").as_ptr(), &raw mut none), TqkvBadSnapshot, "cut short");
        refused(tqkv_load(text("none").as_ptr(), &raw mut none), TqkvIo, "none");
        assert!(none.is_null());
    }
    assert_eq!(attended(&loaded), want);
}

#[test]
fn snapshots_that_cannot_be_read_or_written_change_nothing() {
    let cache = appended(&spec(), 300);
    let (bytes, want) = (written(&cache), attended(&cache));
    let restore = |cache: &Cache, mut stream: Stream| {
        // SAFETY: the cache and the stream are not freed.
        unsafe { tqkv_restore(cache.0, Some(read), stream.user()) }
    };
    refused(restore(&cache, Stream::default()), TqkvBadSnapshot, "cut short");
    refused(restore(&cache, Stream::of(b"no snapshot at all")), TqkvBadSnapshot, "not a snapshot");
    for cut in [11, 12, 40, bytes.len() / 2, bytes.len() - 1] {
        refused(restore(&cache, Stream::of(&bytes[..cut])), TqkvBadSnapshot, "cut short");
    }
    for at in [13, bytes.len() / 2, bytes.len() - 1] {
        let mut bad = bytes.clone();
        bad[at] ^= 0x10;
        refused(restore(&cache, Stream::of(&bad)), TqkvBadSnapshot, "snapshot: ");
    }
    let another = Cache::new(&with("hot=8"));
    refused(restore(&another, Stream::of(&bytes)), TqkvBadSnapshot, "another spec: the snapshot has hot=");
    for calls in 1..9 {
        let mut stream = Stream { calls: Some(calls), ..Stream::of(&bytes) };
        // SAFETY: the cache and the stream are not freed.
        unsafe {
            refused(tqkv_restore(cache.0, Some(read), stream.user()), TqkvIo, "read returned -7");
            stream = Stream { calls: Some(calls), ..Stream::default() };
            refused(tqkv_snapshot(cache.0, Some(write), stream.user()), TqkvIo, "write returned 5");
        }
    }
    // SAFETY: the cache is not freed, and the function does not use its arguments.
    let status = unsafe { tqkv_restore(cache.0, Some(read_too_much), null_mut()) };
    refused(status, TqkvIo, "read returned 13, expected at most 12");
    assert_eq!((cache.len(), attended(&cache), another.len()), (300, want, 0));
}

#[test]
fn a_fork_goes_its_own_way() {
    let cache = appended(&spec(), 300);
    let want = attended(&cache);
    let mut fork = null_mut();
    // SAFETY: the cache is not freed, and the place can be written.
    assert_eq!(unsafe { tqkv_fork(cache.0, &raw mut fork) }, TqkvOk);
    let fork = Cache(fork);
    assert_eq!(attended(&fork), want);
    assert!(fork.stats().shared_bytes > 0 && cache.stats().shared_bytes > 0);
    let k = values(9, 50 * TOKEN);
    assert_eq!(fork.append(1, &k, &k), TqkvOk);
    assert_ne!(attended(&fork), want);
    assert_eq!(attended(&cache), want);
    drop(cache);
    assert_eq!(fork.stats().shared_bytes, 0);
    // SAFETY: the cache is not freed.
    assert_eq!(unsafe { tqkv_truncate(fork.0, 200) }, TqkvOk);
    assert_eq!(fork.len(), 200);
}

#[test]
fn caches_share_a_budget_and_are_refused_beyond_it() {
    let (mut budget, mut cache, mut number) = (null_mut(), null_mut(), 0);
    let spec = spec();
    // SAFETY: no handle is used after it is freed, and places can be written.
    unsafe {
        assert_eq!(tqkv_budget_create(200_000, &raw mut budget), TqkvOk);
        assert_eq!(tqkv_create_within(spec.as_ptr(), budget, &raw mut cache), TqkvOk, "{}", last_error());
        let first = Cache(cache);
        assert_eq!(tqkv_create_within(spec.as_ptr(), budget, &raw mut cache), TqkvOk, "{}", last_error());
        let second = Cache(cache);
        let token = values(4, 16 * TOKEN);
        let mut held = 0;
        while first.append(0, &token, &token) == TqkvOk {
            held += 16;
        }
        assert!(held > 0);
        refused(first.append(0, &token, &token), TqkvNoBudget, "of 200000 are free");
        assert_eq!(first.len(), held);
        let big = values(4, 400 * TOKEN);
        refused(second.append(0, &big, &big), TqkvNoBudget, "full: ");
        assert_eq!(second.len(), 0);
        let unbounded = Cache::new(&spec);
        assert_eq!(unbounded.append(0, &big, &big), TqkvOk);
        let mut stream = Stream::of(&written(&unbounded));
        refused(tqkv_restore(second.0, Some(read), stream.user()), TqkvNoBudget, "full: ");

        assert_eq!(tqkv_budget_limit(budget, &raw mut number), TqkvOk);
        assert_eq!(number, 200_000);
        assert_eq!(tqkv_budget_used(budget, &raw mut number), TqkvOk);
        assert!(number > 0 && number <= 200_000, "{number}");
        drop(first);
        assert_eq!(second.append(0, &token, &token), TqkvOk, "{}", last_error());
        assert_eq!(tqkv_budget_used(budget, &raw mut number), TqkvOk);
        assert_eq!(number, second.stats().allocated_bytes);
        // The handle is freed before the cache, and the limit stays.
        tqkv_budget_free(budget);
        let big = values(4, 3000 * TOKEN);
        refused(second.append(0, &big, &big), TqkvNoBudget, "full: ");
    }
}

#[test]
fn keys_and_values_are_read_as_those_of_rust() {
    let cache = appended(&with("hot=8"), 200);
    let mut rust = KvCache::new(CacheSpec::new(2, HEADS, KV_HEADS, DIM).hot(8)).unwrap();
    rust.append(1, &values(1, 200 * TOKEN), &values(2, 200 * TOKEN)).unwrap();
    let mut out = vec![0.0; 150 * DIM];
    let (o, n) = (out.as_mut_ptr().cast(), out.len());
    // SAFETY: the cache is not freed, and as many values can be written.
    unsafe {
        assert_eq!(tqkv_keys(cache.0, 1, 1, 2, 152, 0, o, n), TqkvOk, "{}", last_error());
        assert_eq!(out, rust.keys(1, 1, 2..152).unwrap());
        assert_eq!(tqkv_values(cache.0, 1, 0, 50, 200, 0, o, n), TqkvOk, "{}", last_error());
        assert_eq!(out, rust.values(1, 0, 50..200).unwrap());
        assert_eq!(tqkv_keys(cache.0, 0, 0, 200, 200, 0, o, 0), TqkvOk, "{}", last_error());
        for call in [tqkv_keys, tqkv_values] {
            refused(call(cache.0, 2, 0, 0, 150, 0, o, n), TqkvBadArgument, "layer 2 is out of range");
            refused(call(cache.0, 0, 2, 0, 150, 0, o, n), TqkvBadArgument, "KV head 2 is out of range");
            refused(call(cache.0, 0, 0, 51, 201, 0, o, n), TqkvBadArgument, "not all there");
            refused(call(cache.0, 0, 0, 1, 0, 0, o, n), TqkvBadArgument, "the end is before the start");
            refused(call(cache.0, 0, 0, 0, 149, 0, o, n), TqkvBadArgument, "149 tokens of 64 values");
            refused(call(cache.0, 0, 0, 0, usize::MAX, 0, o, n), TqkvBadArgument, "values, expected");
        }
        assert_eq!(out, rust.values(1, 0, 50..200).unwrap());
    }
    let window = with("hot=0 sinks=0 centring=off sliding-window=128");
    let cache = appended(&window, 1024);
    // SAFETY: the cache is not freed, and as many values can be written.
    refused(unsafe { tqkv_keys(cache.0, 0, 0, 0, 150, 0, o, n) }, TqkvEvicted, "not all there");
}

#[test]
fn layers_differ_as_the_spec_says() {
    let words = "layers=3 heads=4 kv-heads=2 head-dim=64 value-dim=96 kinds=none/full/70 each:f16,f16/s3,s2/s4,t2 \
                 scale=0.25 soft-cap=20";
    let cache = Cache::new(&CString::new(words).unwrap());
    let mut logits = values(8, 3 * HEADS);
    // SAFETY: the cache is not freed, and the array has as many values.
    let status = unsafe { tqkv_set_sink_logits(cache.0, logits.as_ptr(), logits.len()) };
    assert_eq!(status, TqkvOk, "{}", last_error());
    // The library keeps no pointer to the array.
    logits.fill(f32::NAN);
    let rust_spec = CacheSpec::from(KvShape::new(3, HEADS, KV_HEADS, DIM).with_value_dim(96))
        .kinds(vec![LayerKind::None, LayerKind::Full, LayerKind::Sliding(70)])
        .sink_logits(values(8, 3 * HEADS))
        .scale(0.25)
        .soft_cap(20.0)
        .layers(LayerPolicy::Custom(vec![
            (CodecId::F16, CodecId::F16),
            (CodecId::S3, CodecId::S2),
            (CodecId::S4, CodecId::T2),
        ]));
    let mut rust = KvCache::new(rust_spec).unwrap();
    let (k, v, q) = (values(1, 300 * TOKEN), values(2, 300 * KV_HEADS * 96), values(3, QUERY));
    let (mut out, mut want) = (vec![0.0; HEADS * 96], vec![0.0; HEADS * 96]);
    refused(cache.append(0, &k, &v), TqkvBadArgument, "layer 0 keeps no keys and values");
    refused(cache.attend(0, &q, &mut out), TqkvBadArgument, "layer 0 keeps no keys and values");
    refused(cache.attend(1, &q, &mut out), TqkvEmpty, "layer 1 holds no token yet");
    for layer in [1, 2] {
        assert_eq!(cache.append(layer, &k, &v), TqkvOk, "{}", last_error());
        rust.append(layer, &k, &v).unwrap();
        assert_eq!(cache.attend(layer, &q, &mut out), TqkvOk, "{}", last_error());
        rust.attend(layer, &q, &mut want).unwrap();
        assert_eq!(out, want, "layer {layer}");
    }
    assert_eq!(cache.len(), 300);
}
