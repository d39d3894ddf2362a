//! What a cache holds is never more than [`CacheSize`] says, and long caches hold nearly as much.

use tqkv::cache::{CacheSize, CacheSpec, KvCache};
use tqkv_tests::inputs::Gaussian;

const SHAPE: &str = "layers=1 heads=2 kv-heads=1 head-dim=128";

/// A kind of cache, and the largest share of the formula that a cache of 8,192 tokens may lack.
const KINDS: [(&str, f64); 27] = [
    ("f16", 0.01),
    ("i8", 0.003),
    ("s4", 0.008),
    ("t4,t2", 0.01),
    ("t2", 0.014),
    ("q8_0,q4_0", 0.005),
    ("s4 centring=off", 0.003),
    ("s4 centring=on", 0.008),
    ("t2 hot=16 sinks=0", 0.014),
    ("s4 hot=0 sinks=0", 0.003),
    ("s4 hot=1000 sinks=300", 0.006),
    ("m3,t2", 0.01),
    ("m2,t2 hot=0", 0.01),
    ("t2 map=pairs hot=100", 0.012),
    ("f16,s4", 0.01),
    ("s4 select=256", 0.012),
    ("s4 tier=90:s2", 0.024),
    ("n4 tier=300:n3 tier=600:n2", 0.02),
    ("f16 tier=131:q8_0", 0.022),
    ("s4 spill=400:/tmp", 0.09),
    ("s4 sliding-window=2000", 0.08),
    ("s4 kinds=1000", 0.14),
    ("s4 ring=3000", 0.0),
    ("t4 ring=3000 hot=0 tier=500:t2", 0.0),
    ("s4 narrow-at=1MiB", 0.012),
    ("t2 narrow-at=16MiB", 0.006),
    ("head-dim=576 position-dim=64 s4 scale=0.2", 0.006),
];

fn spec(words: &str) -> CacheSpec {
    let names: Vec<_> =
        words.split(' ').filter_map(|word| word.split_once('=')).map(|(name, _)| name).collect();
    let shape = SHAPE.split(' ').filter(|word| !names.contains(&word.split_once('=').unwrap().0));
    format!("{} {words}", shape.collect::<Vec<_>>().join(" ")).parse().unwrap()
}

/// Keys and values with a mean, so that they are stored less it.
fn rows(spec: &CacheSpec, from: usize, to: usize) -> (Vec<f32>, Vec<f32>) {
    let heads = spec.shape.num_kv_heads;
    let values = if spec.position_dim > 0 { 0 } else { spec.shape.value_dim };
    let row = |dim: usize, side: u64| -> Vec<f32> {
        (from..to)
            .flat_map(|at| Gaussian::new(side << 32 | at as u64).vector(heads * dim))
            .map(|x| x + 1.5)
            .collect()
    };
    (row(spec.shape.head_dim, 1), row(values, 2))
}

/// Grows a cache by chunks, and returns the bytes that it holds at some lengths and those of the formula.
fn grown(words: &str, chunk: usize, lengths: &[usize]) -> Vec<[usize; 3]> {
    let spec = spec(words);
    let (size, mut cache) = (CacheSize::of(&spec).unwrap(), KvCache::new(spec.clone()).unwrap());
    let (mut found, shape) = (Vec::new(), spec.shape);
    for &length in lengths {
        while cache.len() < length {
            let (from, to) = (cache.len(), length.min(cache.len() + chunk));
            let (k, v) = rows(&spec, from, to);
            // A map is learnt from queries.
            if from < 400 {
                let queries = Gaussian::new(7 << 32 | from as u64)
                    .vector((to - from) * shape.num_heads * shape.head_dim);
                let mut out = vec![0.0; (to - from) * shape.num_heads * shape.value_dim];
                cache.attend_prefill(0, &queries, &k, &v, &mut out).unwrap();
            } else {
                cache.append(0, &k, &v).unwrap();
            }
            let (stats, most) = (cache.stats(), size.at(to));
            assert!(
                stats.allocated_bytes as u64 <= most.total(),
                "{words}, {to} in {chunk}s: {stats:?}, {most:?}"
            );
        }
        found.push([length, cache.stats().allocated_bytes, size.at(length).total() as usize]);
    }
    found
}

#[test]
fn no_cache_holds_more_than_its_formula() {
    for (words, _) in KINDS {
        for (chunk, length) in [(1, 400), (17, 1200), (300, 3000)] {
            grown(words, chunk, &[length]);
        }
    }
}

#[test]
fn long_caches_hold_nearly_what_the_formula_says() {
    for (words, share) in KINDS {
        let lacking = grown(words, 512, &[1024, 8192])
            .into_iter()
            .map(|[_, held, most]| 1.0 - held as f64 / most as f64);
        let lacking: Vec<_> = lacking.collect();
        println!("{words}: {lacking:.4?}");
        assert!(lacking[1] <= share, "{words}: {lacking:?}");
    }
}

/// Bytes that do not fit 64 bits are as many as fit.
#[test]
fn sizes_beyond_all_memory_are_the_largest() {
    let spec: CacheSpec = "layers=1000 heads=64 head-dim=1024 f16".parse().unwrap();
    let size = CacheSize::of(&spec).unwrap();
    assert_eq!(size.at(usize::MAX).total(), u64::MAX);
    assert!(CacheSize::of(&CacheSpec::new(1, 1, 1, 100)).unwrap_err().to_string().contains("100"));
    assert!(CacheSize::of(&spec.with("each:s4").unwrap()).is_err());
}
