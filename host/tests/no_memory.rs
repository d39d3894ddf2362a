//! A failed allocation is an error and changes nothing. Every large allocation of every operation fails in
//! turn.
// A separate binary, because its allocator is global to the process.
#![allow(missing_docs, reason = "a test crate")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tqkv::CodecId;
use tqkv::attention::AttentionCache;
use tqkv::cache::{CacheSpec, KvCache};
use tqkv::dense::DenseCache;
use tqkv::error::CacheError;
use tqkv::unstable::algebra::{Accumulate, Mat, MatMut, product};

/// Larger than every buffer of fixed size, and smaller than the buffers here whose size the caller decides.
const LARGE: usize = 512 << 10;
const DIM: usize = 128;
const TOKENS: usize = 6000;

/// Number of large allocations that succeed before one fails; [`OFF`] lets all succeed.
static LEFT: AtomicUsize = AtomicUsize::new(OFF);
const OFF: usize = usize::MAX;

/// True for the allocation that must fail.
fn fails(bytes: usize) -> bool {
    let step = |left| if left == OFF || left == 0 { None } else { Some(left - 1) };
    bytes >= LARGE && LEFT.fetch_update(SeqCst, SeqCst, step) == Err(0)
}

struct Failing;

// SAFETY: returns the memory of the system's allocator, or null, which every caller of an allocator expects.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if fails(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Shrinking never fails.
        if size > layout.size() && fails(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is that of the system's allocator.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is that of the system's allocator, which gave all memory.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// Runs an operation until all its large allocations succeed; each time the next one fails. Returns how many
/// failed.
fn every_failure<R>(what: &str, mut operation: impl FnMut() -> Result<R, CacheError>) -> usize {
    for left in 0.. {
        LEFT.store(left, SeqCst);
        let result = operation();
        LEFT.store(OFF, SeqCst);
        match result {
            Ok(_) => return left,
            Err(CacheError::Memory { bytes }) => assert!(bytes >= LARGE, "{what}: {bytes} bytes"),
            Err(other) => panic!("{what}, allocation {left}: {other}"),
        }
    }
    unreachable!("an operation makes finitely many allocations")
}

fn values(n: usize, salt: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + salt * 101) as f32 * 0.37).sin()).collect()
}

fn spec() -> CacheSpec {
    CacheSpec::new(2, 2, 2, DIM).codecs(CodecId::S4, CodecId::S3).hot(3000)
}

fn snapshot(cache: &KvCache) -> Vec<u8> {
    let mut bytes = Vec::new();
    cache.snapshot(&mut bytes).unwrap();
    bytes
}

/// Tests an operation that changes a cache. If an allocation fails, nothing changes. Then the operation
/// succeeds with the usual result.
fn changes(
    what: &str,
    base: &KvCache,
    mut operation: impl FnMut(&mut KvCache) -> Result<(), CacheError>,
) -> usize {
    let (mut cache, before) = (base.fork().unwrap(), snapshot(base));
    let mut elsewhere = KvCache::from_snapshot(&mut &before[..]).unwrap();
    let mut last = None;
    let failures = every_failure(what, || {
        let result = operation(&mut cache);
        last = Some(result.is_err());
        // Reading the state back must not fail.
        let left = LEFT.swap(OFF, SeqCst);
        if result.is_err() {
            assert!(snapshot(&cache) == before, "{what} changed what it refused, with {left} left");
        }
        result
    });
    operation(&mut elsewhere).unwrap();
    assert!(snapshot(&cache) == snapshot(&elsewhere), "{what} after refusals is not {what}");
    failures
}

/// One test only, because the allocator is shared.
#[test]
fn memory_that_cannot_be_had_is_an_error_everywhere() {
    // Matrix products keep a buffer of fixed size on each thread, which is made at first use.
    tqkv::threads::start().unwrap();
    rayon::broadcast(|_| {
        let (a, mut out) = (vec![1.0; 64 * 64], vec![0.0; 64 * 64]);
        let mat = || Mat::new(&a, 64, 64, 64);
        product(&mut MatMut::new(&mut out, 64, 64, 64), mat(), mat(), 1.0, Accumulate::Replace);
    });

    let n = TOKENS * 2 * DIM;
    let (k, v, q) = (values(n, 1), values(n, 2), values(n, 3));
    let mut out = vec![0.0; n];
    let mut base = KvCache::new(spec()).unwrap();
    for layer in 0..2 {
        base.append(layer, &k[..], &v[..]).unwrap();
    }
    let whole = snapshot(&base);

    let many = CacheSpec::new(2000, 2, 2, DIM);
    let mut counts = vec![
        ("new", every_failure("new", || KvCache::new(many.clone()))),
        ("fork", {
            let empty = KvCache::new(many.clone()).unwrap();
            every_failure("fork", || empty.fork())
        }),
        ("append", changes("append", &base, |cache| cache.append(1, &k[..], &v[..]))),
        ("prefill", changes("prefill", &base, |cache| cache.attend_prefill(1, &q, &k[..], &v[..], &mut out))),
        ("sinks", {
            let empty = KvCache::new(spec().sinks(5000)).unwrap();
            changes("sinks", &empty, |cache| cache.append(0, &k[..], &v[..]))
        }),
        ("truncate", changes("truncate", &base, |cache| cache.truncate(5000))),
        ("keys", every_failure("keys", || base.keys(0, 0, 0..TOKENS))),
        ("values", every_failure("values", || base.values(0, 1, 0..TOKENS))),
        ("snapshot", every_failure("snapshot", || base.snapshot(&mut io::sink()))),
        ("from_snapshot", every_failure("from_snapshot", || KvCache::from_snapshot(&mut &whole[..]))),
    ];
    let long = {
        let mut long = KvCache::new(CacheSpec::new(1, 1, 1, 16).codecs(CodecId::T1, CodecId::T1)).unwrap();
        let rows = values(150_000 * 16, 4);
        long.append(0, &rows[..], &rows[..]).unwrap();
        long
    };
    counts.push(("scores", every_failure("scores", || long.scores(0, 0, &[0.5; 16]))));
    counts.push(("dense", {
        let mut cache = DenseCache::new(&CacheSpec::new(1, 2, 2, DIM)).unwrap();
        let m = 1500 * 2 * DIM;
        let (q, k, v, out) = (&q[..m], &k[..m], &v[..m], &mut out[..m]);
        every_failure("dense", || {
            let result = cache.attend_chunk(0, q, k, v, out);
            assert_eq!(cache.len(), if result.is_ok() { 1500 } else { 0 });
            result
        })
    }));
    println!("large allocations that failed in their turn: {counts:?}");
    for (what, count) in counts {
        assert!(count > 0, "{what} asks for no large piece of memory: the test shows nothing");
    }
    absurd_sizes_are_refused_in_one_line();
}

fn absurd_sizes_are_refused_in_one_line() {
    let absurd = |error: CacheError| {
        let text = error.to_string();
        assert_eq!(text.lines().count(), 1, "{text}");
    };
    for layers in [1 << 21, 1 << 40, usize::MAX] {
        absurd(KvCache::new(CacheSpec::new(layers, 1, 1, 64)).map(|_| ()).unwrap_err());
    }
    absurd(DenseCache::new(&CacheSpec::new(usize::MAX, 1, 1, 64)).map(|_| ()).unwrap_err());
    absurd(DenseCache::new(&CacheSpec::new(1 << 50, 1, 1, 4)).map(|_| ()).unwrap_err());
    let mut cache = KvCache::new(CacheSpec::new(1, 1, 1, 64).hot(1 << 39).sinks(1 << 39)).unwrap();
    cache.append(0, &[0.5; 640], &[0.5; 640]).unwrap();
    absurd(cache.keys(0, 0, 0..usize::MAX).unwrap_err());
    absurd(cache.keys(0, 0, usize::MAX - 1..usize::MAX).unwrap_err());
}
