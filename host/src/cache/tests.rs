//! Lives of caches whose spill file fails, at every call in turn: what is refused changes nothing, and heads stay in step.

use super::tier::Store;
use super::{CacheSpec, Centring, Cold, KvCache};
use crate::error::CacheError;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use tqkv_core::CodecId;

/// Which calls of a spill file fail.
#[derive(Debug)]
pub(super) struct Faults {
    /// Calls until then succeed.
    left: AtomicUsize,
    /// How many fail then.
    fail: AtomicUsize,
}

impl Default for Faults {
    fn default() -> Self {
        Self { left: AtomicUsize::new(usize::MAX), fail: AtomicUsize::new(0) }
    }
}

impl Faults {
    /// Lets `left` calls succeed and the `fail` next ones fail.
    fn set(&self, left: usize, fail: usize) {
        self.left.store(left, Ordering::SeqCst);
        self.fail.store(fail, Ordering::SeqCst);
    }

    /// Takes one call; fails where it is to fail.
    pub(super) fn check(&self) -> io::Result<()> {
        let take = |count: &AtomicUsize| {
            count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| match count {
                usize::MAX => Some(count),
                count => count.checked_sub(1),
            })
        };
        if take(&self.left).is_err() && take(&self.fail).is_ok() {
            return Err(io::Error::other("a fault of the test"));
        }
        Ok(())
    }
}

const LAYERS: usize = 2;
const KV_HEADS: usize = 2;
const HEADS: usize = 4;
const DIM: usize = 32;

fn faults(cache: &KvCache) -> &Faults {
    let tiers = cache.layers[0].heads[0].keys.pages().tiers();
    let file = (0..tiers.len()).find_map(|tier| match tiers.store(tier) {
        Store::File(file) => Some(file),
        Store::Memory => None,
    });
    file.expect("a cache that spills").faults()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % n
    }

    fn vector(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.below(2001) as f32 / 1000.0 - 1.0).collect()
    }
}

#[derive(Debug)]
enum Op {
    Append(usize, Vec<f32>, Vec<f32>),
    Prefill(usize, Vec<f32>, Vec<f32>, Vec<f32>),
    Truncate(usize),
}

impl Op {
    fn random(random: &mut Random, cache: &KvCache) -> Self {
        let layer = random.below(LAYERS);
        let len = cache.layers[layer].heads[0].len();
        // Up to where the next token makes a page colder, among others.
        let n = [0, 1, 1, 1, 127 - len % 128, 127 - len % 128, 9, 330][random.below(8)];
        match random.below(10) {
            0..5 => Self::Append(layer, random.vector(n * KV_HEADS * DIM), random.vector(n * KV_HEADS * DIM)),
            5..9 => {
                let n = n.max(1);
                let [k, v] = [(); 2].map(|()| random.vector(n * KV_HEADS * DIM));
                Self::Prefill(layer, random.vector(n * HEADS * DIM), k, v)
            }
            _ => Self::Truncate(len.saturating_sub(random.below(200))),
        }
    }

    fn run(&self, cache: &mut KvCache) -> Result<Vec<f32>, CacheError> {
        match self {
            Self::Append(layer, k, v) => cache.append(*layer, k, v).map(|()| Vec::new()),
            Self::Prefill(layer, q, k, v) => {
                let mut out = vec![0.0; q.len()];
                cache.attend_prefill(*layer, q, k, v, &mut out).map(|()| out)
            }
            Self::Truncate(len) => cache.truncate(*len).map(|()| Vec::new()),
        }
    }
}

/// Equal but for rounding: attention takes pages of the file one by one, and those in memory two by two.
fn close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 2e-3)
}

/// Every key and value of every head.
fn held(cache: &KvCache) -> Vec<Vec<u32>> {
    faults(cache).set(usize::MAX, 0);
    let mut all = Vec::new();
    for (layer, of) in cache.layers.iter().enumerate() {
        for (head, tracks) in of.heads.iter().enumerate() {
            let lens = [tracks.keys.len(), tracks.other.len(), of.heads[0].len()];
            assert_eq!(lens, [lens[0]; 3], "lengths in layer {layer}, head {head}");
            all.push(cache.keys(layer, head, 0..lens[0]).unwrap());
            all.push(cache.values(layer, head, 0..lens[0]).unwrap());
        }
    }
    all.into_iter().map(|values| values.into_iter().map(f32::to_bits).collect()).collect()
}

fn specs(folder: &std::path::Path) -> Vec<CacheSpec> {
    let spec = || CacheSpec::new(LAYERS, HEADS, KV_HEADS, DIM);
    let spill = || Cold::Spill(folder.to_owned());
    vec![
        spec().codecs(CodecId::S4, CodecId::S3).sinks(0).hot(0).cold(0, spill()),
        spec().codecs(CodecId::N4, CodecId::S2).sinks(4).hot(16).centring(Centring::On).cold(128, spill()),
        spec()
            .codecs(CodecId::N4, CodecId::N4)
            .sinks(0)
            .hot(8)
            .cold(128, Cold::Demote { key: CodecId::N1, value: CodecId::N1 })
            .cold(384, spill()),
    ]
}

/// One life: operations on a cache whose file fails at call 0, 1, 2 and so on of each, until the operation gets through. Returns how
/// many failed.
fn live(spec: &CacheSpec, seed: u64, ops: usize) -> usize {
    let mut random = Random(seed * 2 + 1);
    let mut cache = KvCache::new(spec.clone()).unwrap();
    // A cache whose file never fails, beside it.
    let mut twin = KvCache::new(spec.clone()).unwrap();
    let mut refused = 0;
    for step in 0..ops {
        let op = Op::random(&mut random, &cache);
        let before = held(&cache);
        // One call that fails, or all from there on.
        let many = if random.below(2) == 0 { 1 } else { usize::MAX };
        for call in 0.. {
            faults(&cache).set(call, many);
            let result = op.run(&mut cache);
            faults(&cache).set(usize::MAX, 0);
            match result {
                Ok(out) => {
                    let expected = op.run(&mut twin).unwrap();
                    assert!(close(&out, &expected), "life {seed}, step {step}, call {call}: other results");
                    break;
                }
                Err(_) => {
                    refused += 1;
                    let what = format!("life {seed}, step {step}, call {call}, {many} fail, was refused");
                    assert!(held(&cache) == before, "{what}");
                }
            }
            assert!(call < 10_000, "life {seed}, step {step}: never gets through");
        }
        assert!(held(&cache) == held(&twin), "life {seed}, step {step}: not its twin");
    }
    refused
}

#[test]
fn what_a_failing_file_refuses_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let lives: u64 = std::env::var("TQKV_LIVES").map_or(1, |lives| lives.parse().expect("TQKV_LIVES"));
    let mut refused = 0;
    for spec in specs(folder.path()) {
        for seed in 0..6 * lives {
            refused += live(&spec, seed, 24);
        }
    }
    println!("{refused} operations were refused");
    assert!(refused > 100, "only {refused} were refused");
}
