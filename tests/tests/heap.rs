//! The hot path of a cache does not allocate. Attention never does. An append does only if a page begins,
//! ends, or grows (in a short cache, by a quarter at a time).
// This is a separate binary, because counting replaces the allocator of the whole program.
#![allow(missing_docs, reason = "a test crate")]

use allocation_counter::measure;
use tqkv::cache::{CacheSpec, Cold, KvCache, PAGE_TOKENS};
use tqkv_core::CodecId;
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
