//! Random operations on caches whose spill file, budget or allocator fails at every call in turn.
//!
//! A refused operation changes nothing, and all heads have the same length.

use super::tier::TierStore;
use super::{CacheSpec, CacheStats, Centring, Cold, KvCache};
use crate::error::CacheError;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use tqkv_core::CodecId;

/// Selects the calls of a spill file, a budget or the allocator that fail.
#[derive(Debug)]
pub(crate) struct Faults {
    /// Number of calls that succeed first.
    left: AtomicUsize,
    /// Number of calls that fail after them.
    fail: AtomicUsize,
}

impl Default for Faults {
    fn default() -> Self {
        Self { left: AtomicUsize::new(usize::MAX), fail: AtomicUsize::new(0) }
    }
}

impl Faults {
    /// Lets `left` calls succeed and the next `fail` calls fail.
    fn set(&self, left: usize, fail: usize) {
        self.left.store(left, Ordering::SeqCst);
        self.fail.store(fail, Ordering::SeqCst);
    }

    /// Counts one call, and fails if it is one of those to fail.
    pub(crate) fn check(&self) -> io::Result<()> {
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

/// The parts that are made to fail.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Failing {
    File,
    Budget,
    Memory,
}

const PARTS: [Failing; 3] = [Failing::File, Failing::Budget, Failing::Memory];

/// Lets `left` calls of a part succeed and the next `fail` calls fail.
fn set_faults(cache: &KvCache, part: Failing, left: usize, fail: usize) {
    match part {
        Failing::File => file_of(cache).set(left, fail),
        Failing::Budget => cache.budget().faults().set(left, fail),
        Failing::Memory => crate::memory::FAULTS.with(|faults| faults.set(left, fail)),
    }
}

fn no_faults(cache: &KvCache) {
    for part in PARTS {
        set_faults(cache, part, usize::MAX, 0);
    }
}

fn file_of(cache: &KvCache) -> &Faults {
    let tiers = cache.layers[0].heads[0].keys.pages().tiers();
    let file = (0..tiers.len()).find_map(|tier| match tiers.store(tier) {
        TierStore::File(file) => Some(file),
        TierStore::Memory => None,
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
    /// Replaces the cache by its copy; the original is kept.
    Fork,
    /// Replaces the cache by one that its snapshot restores.
    Restore,
}

impl Op {
    fn random(random: &mut Random, cache: &KvCache) -> Self {
        let layer = random.below(LAYERS);
        let len = cache.layers[layer].heads[0].len();
        // Some lengths end just before a page becomes colder.
        let n = [0, 1, 1, 1, 127 - len % 128, 127 - len % 128, 9, 330][random.below(8)];
        match random.below(13) {
            0..5 => Self::Append(layer, random.vector(n * KV_HEADS * DIM), random.vector(n * KV_HEADS * DIM)),
            5..9 => {
                let n = n.max(1);
                let [k, v] = [(); 2].map(|()| random.vector(n * KV_HEADS * DIM));
                Self::Prefill(layer, random.vector(n * HEADS * DIM), k, v)
            }
            9 | 10 => Self::Truncate(len.saturating_sub(random.below(200))),
            11 => Self::Fork,
            _ => Self::Restore,
        }
    }

    fn run(&self, cache: &mut KvCache, kept: &mut Option<KvCache>) -> Result<Vec<f32>, CacheError> {
        match self {
            Self::Fork => {
                *kept = Some(std::mem::replace(cache, cache.fork()?));
                Ok(Vec::new())
            }
            Self::Restore => {
                let mut bytes = Vec::new();
                cache.snapshot(&mut bytes)?;
                cache.restore(&mut &bytes[..]).map(|()| Vec::new())
            }
            Self::Append(layer, k, v) => cache.append(*layer, k, v).map(|()| Vec::new()),
            Self::Prefill(layer, q, k, v) => {
                let mut out = vec![0.0; q.len()];
                cache.attend_prefill(*layer, q, k, v, &mut out).map(|()| out)
            }
            Self::Truncate(len) => cache.truncate(*len).map(|()| Vec::new()),
        }
    }
}

/// Equal except for rounding: attention takes pages of the file one by one, and those in memory two by two.
fn close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 2e-3)
}

/// The bits of every key and value of every head, and the statistics.
fn held(cache: &KvCache) -> (Vec<Vec<u32>>, CacheStats) {
    no_faults(cache);
    let mut all = Vec::new();
    for (layer, of) in cache.layers.iter().enumerate() {
        for (head, sides) in of.heads.iter().enumerate() {
            let lens = [sides.keys.len(), sides.other.len(), of.heads[0].len()];
            assert_eq!(lens, [lens[0]; 3], "lengths in layer {layer}, head {head}");
            all.push(cache.keys(layer, head, 0..lens[0]).unwrap());
            all.push(cache.values(layer, head, 0..lens[0]).unwrap());
        }
    }
    let bits = all.into_iter().map(|values| values.into_iter().map(f32::to_bits).collect()).collect();
    (bits, cache.stats())
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
            .cold(128, Cold::Demote { key: CodecId::N2, value: CodecId::N2 })
            .cold(384, spill()),
    ]
}

/// Counts the operations that succeeded and those that were refused.
#[derive(Debug, Default)]
struct Counts {
    done: usize,
    refused: usize,
}

/// Runs operations on a cache whose file or budget fails. The failure comes at call 0, 1, 2 and so on, until
/// the operation succeeds.
fn live(spec: &CacheSpec, seed: u64, ops: usize, counts: &mut Counts) {
    let mut random = Random(seed * 2 + 1);
    let mut cache = KvCache::new(spec.clone()).unwrap();
    // A second cache whose file never fails.
    let mut twin = KvCache::new(spec.clone()).unwrap();
    let (mut kept, mut kept_twin) = (None, None);
    for step in 0..ops {
        let op = Op::random(&mut random, &cache);
        let before = held(&cache);
        let part = PARTS[random.below(PARTS.len())];
        // Either one call fails, or all calls from there on.
        let many = if random.below(2) == 0 { 1 } else { usize::MAX };
        for call in 0.. {
            let what = format!("life {seed}, step {step}: {part:?} fails at call {call}, {many} times");
            set_faults(&cache, part, call, many);
            let result = op.run(&mut cache, &mut kept);
            no_faults(&cache);
            match result {
                Ok(out) => {
                    let expected = op.run(&mut twin, &mut kept_twin).unwrap();
                    assert!(close(&out, &expected), "{what}: other results");
                    break;
                }
                Err(error) => {
                    let told = match part {
                        Failing::File => {
                            !matches!(error, CacheError::Full { .. } | CacheError::Memory { .. })
                        }
                        Failing::Budget => matches!(error, CacheError::Full { .. }),
                        Failing::Memory => matches!(error, CacheError::Memory { .. }),
                    };
                    assert!(told, "{what}: {error}");
                    counts.refused += 1;
                    let after = held(&cache);
                    assert!(after.0 == before.0, "{what}: what is held has changed");
                    // Pages that found no room in the file earlier may have moved there. Lists may keep room
                    // and may no longer be shared.
                    let mut stats = after.1;
                    if part == Failing::Memory {
                        stats.allocated_bytes = before.1.allocated_bytes;
                        stats.shared_bytes = before.1.shared_bytes;
                        stats.spilled_bytes = before.1.spilled_bytes;
                    }
                    assert!(
                        part == Failing::File || stats == before.1,
                        "{what}: {stats:?} was {:?}",
                        before.1
                    );
                }
            }
            assert!(call < 10_000, "{what}: never gets through");
        }
        counts.done += 1;
        assert!(held(&cache).0 == held(&twin).0, "life {seed}, step {step}: not its twin");
    }
    if let (Some(kept), Some(twin)) = (&kept, &kept_twin) {
        assert!(held(kept).0 == held(twin).0, "life {seed}: what was kept is not its twin");
    }
    let budget = cache.budget().clone();
    drop((cache, kept));
    assert_eq!(budget.used(), 0, "life {seed}: what is dropped gives its bytes back");
}

/// By default this runs a few sequences, with `TQKV_LIVES=n` n times as many, and 10,000 with
/// `TQKV_EXHAUSTIVE=1`.
#[test]
fn what_is_refused_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let lives = match number("TQKV_EXHAUSTIVE") {
        Some(1) => 10_000,
        _ => 18 * number("TQKV_LIVES").unwrap_or(1),
    };
    let (specs, first) = (specs(folder.path()), number("TQKV_LIVES_SEED").unwrap_or(0));
    let mut counts = Counts::default();
    for (seed, spec) in (first..first + lives).zip(specs.iter().cycle()) {
        live(spec, seed, 24, &mut counts);
    }
    println!("{lives} lives: {counts:?}");
    assert!(counts.refused > 5 * lives as usize, "{counts:?}");
}

/// An empty append moves no page, not even one that the next token would move.
#[test]
fn an_append_of_no_tokens_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for spec in specs(folder.path()) {
        let (mut random, mut cache) = (Random(7), KvCache::new(spec).unwrap());
        for len in 1..530 {
            for layer in 0..LAYERS {
                let [k, v] = [(); 2].map(|()| random.vector(KV_HEADS * DIM));
                cache.append(layer, &k, &v).unwrap();
            }
            if (len + 20) % 128 < 40 {
                let before = held(&cache);
                for layer in 0..LAYERS {
                    cache.append(layer, &[] as &[f32], &[] as &[f32]).unwrap();
                    cache
                        .attend_prefill(layer, &[] as &[f32], &[] as &[f32], &[] as &[f32], &mut [])
                        .unwrap();
                }
                assert!(held(&cache) == before, "{len} tokens");
            }
        }
    }
}

/// The chunks of a snapshot: magic and version, spec, KV heads, end.
fn chunks(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (head, mut rest) = bytes.split_at(12);
    let mut chunks = vec![head.to_vec()];
    while let Some((length, body)) = rest.split_first_chunk::<8>() {
        let (payload, after) = body.split_at(u64::from_le_bytes(*length) as usize);
        chunks.push(payload.to_vec());
        rest = &after[4..];
    }
    chunks
}

fn joined(chunks: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = chunks[0].clone();
    for chunk in &chunks[1..] {
        bytes.extend((chunk.len() as u64).to_le_bytes());
        bytes.extend(chunk);
        bytes.extend(crc32fast::hash(chunk).to_le_bytes());
    }
    bytes
}

/// A forged snapshot may hold values that no cache has, with correct checksums.
#[test]
fn means_and_sums_that_no_cache_has_are_refused() {
    let spec = CacheSpec::new(1, 1, 1, DIM).codecs(CodecId::S4, CodecId::S4).sinks(0).hot(0);
    let (mut cache, mut random) = (KvCache::new(spec.centring(Centring::On)).unwrap(), Random(9));
    for _ in 0..128 {
        let [k, v] = [(); 2].map(|()| random.vector(DIM));
        cache.append(0, &k, &v).unwrap();
    }
    let mut bytes = Vec::new();
    cache.snapshot(&mut bytes).unwrap();
    let good = chunks(&bytes);
    // The layout: no sinks, a state, one mean of page 0, then sums.
    let (mean, sums) = (8 + 1 + 8 + 8, 8 + 1 + 8 + 8 + 4 * DIM + 8);
    let longest = cache.layers[0].max_norms[0];
    let mut with = |at: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        changed[2][at..at + bytes.len()].copy_from_slice(bytes);
        cache.restore(&mut &joined(&changed)[..])
    };
    for bad in [f32::NAN, f32::INFINITY, 3e38, -1e6, 1.5 * longest] {
        let error = with(mean, &bad.to_le_bytes()).unwrap_err().to_string();
        assert!(error.contains("a mean that is not finite, or longer than a key may be"), "{bad}: {error}");
    }
    for bad in [i64::MAX, i64::MIN, 1 << 62, -(1 << 50)] {
        let error = with(sums, &bad.to_le_bytes()).unwrap_err().to_string();
        assert!(error.contains("do not fit each other"), "{bad}: {error}");
    }
    // The worst values that are accepted. Keys are encoded with the next mean, and with the one after it.
    with(mean, &longest.to_le_bytes()).unwrap();
    let most = (8.0 * longest * 65536.0 * 128.0) as i64;
    with(sums, &most.to_le_bytes()).unwrap();
    for _ in 0..400 {
        let [k, v] = [(); 2].map(|()| random.vector(DIM));
        cache.append(0, &k, &v).unwrap();
    }
}

/// Keys of a demoted page decode to other values than those that were summed, so a cut leaves a difference in
/// the sums.
#[test]
fn a_cache_that_was_cut_into_a_cold_page_is_restored() {
    let demote = Cold::Demote { key: CodecId::N3, value: CodecId::N2 };
    let spec = CacheSpec::new(1, 1, 1, DIM).codecs(CodecId::N4, CodecId::N3).sinks(0).hot(0);
    let spec = spec.centring(Centring::On).cold(150, demote);
    let (mut cache, mut random) = (KvCache::new(spec).unwrap(), Random(11));
    for _ in 0..278 {
        let [k, v] = [(); 2].map(|()| random.vector(DIM));
        cache.append(0, &k, &v).unwrap();
    }
    cache.truncate(127).unwrap();
    let mut bytes = Vec::new();
    cache.snapshot(&mut bytes).unwrap();
    cache.restore(&mut &bytes[..]).unwrap();
    assert_eq!(cache.len(), 127);
}

/// A writer whose flushes are interrupted by a signal.
struct Interrupted {
    bytes: Vec<u8>,
    times: usize,
}

impl io::Write for Interrupted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.times.checked_sub(1) {
            Some(left) => {
                self.times = left;
                Err(io::ErrorKind::Interrupted.into())
            }
            None => Ok(()),
        }
    }
}

#[test]
fn a_snapshot_is_written_though_its_flush_is_interrupted() {
    let mut cache = KvCache::new(CacheSpec::new(1, 1, 1, DIM)).unwrap();
    cache.append(0, &[0.5; DIM], &[0.25; DIM]).unwrap();
    let (mut whole, mut writer) = (Vec::new(), Interrupted { bytes: Vec::new(), times: 3 });
    cache.snapshot(&mut whole).unwrap();
    cache.snapshot(&mut writer).unwrap();
    assert_eq!(writer.bytes, whole);
}

#[test]
fn a_layer_has_a_greatest_length() {
    let spec = CacheSpec::new(1, 1, 1, 64);
    assert_eq!(spec.check_length(0, 1 << 40), Ok(()));
    let error = spec.check_length(0, usize::MAX).unwrap_err().to_string();
    assert!(error.contains("expected at most 1099511627776"), "{error}");
}
