//! The hot path of a cache does not allocate. Attention never does. An append does only if a page begins,
//! ends, or grows (in a short cache, by a quarter at a time). In a ring it never does.
// This is a separate binary, because counting replaces the allocator of the whole program.
#![allow(missing_docs, reason = "a test crate")]

use allocation_counter::measure;
use tqkv::cache::{Arithmetic, CacheSpec, Centring, Cold, KvCache, PAGE_TOKENS};
use tqkv::slots::{Mask, SlotCache};
use tqkv_core::{CodecId, Effort, Options};
use tqkv_tests::inputs::Gaussian;

const DIM: usize = 128;

#[test]
fn the_hot_path_allocates_nothing() {
    let spec = || CacheSpec::new(1, 8, 2, DIM);
    let tiers = spec().codecs(CodecId::N4, CodecId::N4);
    let tiers = tiers.cold(200, Cold::Demote { key: CodecId::N2, value: CodecId::N2 });
    for spec in [spec(), spec().codecs(CodecId::S4, CodecId::S2), tiers, spec().sliding_window(256)] {
        let mut cache = KvCache::new(spec.clone()).unwrap();
        let (mut gaussian, mut out) = (Gaussian::new(1), vec![0.0; 8 * DIM]);
        let mut appends = Vec::new();
        for token in 0..900 {
            let (k, v, q) = (gaussian.vector(2 * DIM), gaussian.vector(2 * DIM), gaussian.vector(8 * DIM));
            let append = measure(|| cache.append(0, &k, &v).unwrap());
            let attend = measure(|| cache.attend(0, &q, &mut out).unwrap());
            // Scratch memory first grows to its size.
            if token >= 500 {
                appends.push(append.count_total);
                assert_eq!(attend.count_total, 0, "attend after {token} tokens of {spec:?}");
            }
        }
        let dear = appends.iter().filter(|&&count| count > 0).count();
        let most = appends.len() / PAGE_TOKENS + 1;
        assert!(dear <= 6 * most, "{dear} of {} appends allocate: {appends:?}", appends.len());
    }
}

/// Attention over slots allocates as little, once its memory has grown to its size. Here no row leaves meanwhile, and the
/// queries are so few that exact rows need no products of matrices, whose crate allocates.
#[test]
fn attention_over_slots_allocates_nothing() {
    const SLOTS: usize = 1200;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for policy in ["s4", "t4,t2", "s4,f16", "f16,i8", "f16", "n4 hot=16 tier=200:n2", "s4 soft-cap=30"] {
        let spec = CacheSpec::new(1, 8, 2, DIM).with(policy).unwrap();
        let mut cache = SlotCache::new(spec, SLOTS).unwrap();
        let mut gaussian = Gaussian::new(1);
        // Two sequences whose tokens lie side by side, with empty slots between.
        let slots: Vec<usize> = (0..SLOTS).filter(|slot| slot % 5 > 0).collect();
        let positions: Vec<usize> = (0..slots.len()).map(|token| token / 2).collect();
        let rows = gaussian.vector(slots.len() * 2 * DIM);
        cache.write(0, &slots, &positions, &rows, &rows).unwrap();
        for queries in [1, 2] {
            let mut mask = Mask::new(SLOTS);
            for query in 0..queries {
                let own = slots.iter().copied().skip(query % 2).step_by(2);
                mask.see_with(own.map(|slot| (slot, (slot % 3) as f32))).unwrap();
            }
            let (q, mut out) = (gaussian.vector(queries * 8 * DIM), vec![0.0; queries * 8 * DIM]);
            let mut attend = || pool.install(|| measure(|| cache.attend(0, &q, &mask, &mut out).unwrap()));
            attend();
            attend();
            let count = attend().count_total;
            assert_eq!(count, 0, "{queries} queries with {policy}");
        }
    }
}

/// A ring takes all its memory when it is made. On one thread, so that no work is handed over.
#[test]
fn a_ring_allocates_nothing_after_it_is_made() {
    let spec = || CacheSpec::new(1, 8, 2, DIM).ring(600);
    let tiers = spec().codecs(CodecId::N4, CodecId::N4);
    let tiers = tiers.cold(200, Cold::Demote { key: CodecId::N2, value: CodecId::N2 });
    let again = spec().codecs(CodecId::S4, CodecId::S4);
    let again = again.cold(300, Cold::Demote { key: CodecId::S2, value: CodecId::S2 });
    let fast = Options::DEFAULT.effort(Effort::Fast);
    let trellis = spec().codecs(CodecId::T4, CodecId::T2).options(fast);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for spec in [
        spec(),
        spec().centring(Centring::On),
        tiers,
        again,
        trellis,
        spec().codecs(CodecId::F16, CodecId::I8),
        spec().codecs(CodecId::Q8_0, CodecId::Q4_0).arithmetic(Arithmetic::F32).soft_cap(30.0),
    ] {
        pool.install(|| {
            let mut cache = KvCache::new(spec.clone()).unwrap();
            let (mut gaussian, mut out) = (Gaussian::new(1), vec![0.0; 8 * DIM]);
            let bytes = cache.stats().allocated_bytes;
            for token in 0..4000 {
                let (k, v, q) =
                    (gaussian.vector(2 * DIM), gaussian.vector(2 * DIM), gaussian.vector(8 * DIM));
                let k: Vec<f32> = k.iter().map(|x| x + 1.0).collect();
                let append = measure(|| cache.append(0, &k, &v).unwrap());
                assert_eq!(append.count_total, 0, "append {token} of {spec:?}");
                if token % 7 == 0 {
                    let attend = measure(|| cache.attend(0, &q, &mut out).unwrap());
                    assert_eq!(attend.count_total, 0, "attend after {token} tokens of {spec:?}");
                }
                assert_eq!(cache.stats().allocated_bytes, bytes, "bytes after {token} tokens of {spec:?}");
            }
        });
    }
}

/// The same over ten million tokens, with `TQKV_EXHAUSTIVE=1`.
#[test]
fn a_ring_allocates_nothing_over_ten_million_tokens() {
    if !tqkv_tests::scope::is_exhaustive() {
        return;
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| {
        let mut cache = KvCache::new(CacheSpec::new(1, 1, 1, DIM).ring(8192)).unwrap();
        let bytes = cache.stats().allocated_bytes;
        let rows = Gaussian::new(1).vector(4096 * DIM);
        let taken = measure(|| {
            for row in rows.chunks_exact(DIM).cycle().take(10_000_000) {
                cache.append(0, row, row).unwrap();
            }
        });
        assert_eq!((taken.count_total, cache.stats().allocated_bytes), (0, bytes));
        assert_eq!((cache.len(), cache.stats().tokens), (10_000_000, 10_000_000));
    });
}
