//! Forks, budgets, rollback, snapshots and tiers. After any history, a cache is bit-identical to a cache that
//! only got its tokens, in the same order.

use crate::lives::{DIM, HEADS, append, base, filled, snapshot, tokens};
use proptest::prelude::*;
use tqkv::Level;
use tqkv::cache::{Arithmetic, Budget, CachePool, CacheSpec, Centring, Cold, Eviction, KvCache};
use tqkv::error::CacheError;
use tqkv_core::CodecId;
use tqkv_tests::inputs::Gaussian;

fn attend(cache: &KvCache) -> Vec<u32> {
    let (q, mut out) = (Gaussian::new(77).vector(HEADS * DIM), vec![0.0; HEADS * DIM]);
    cache.attend(0, &q, &mut out).unwrap();
    out.iter().map(|x| x.to_bits()).collect()
}

/// The observable state of a cache.
fn bits(cache: &KvCache) -> Vec<u32> {
    if cache.is_empty() {
        return vec![];
    }
    let scores = cache.scores(0, 1, &Gaussian::new(78).vector(DIM)).unwrap();
    attend(cache).into_iter().chain(scores.iter().map(|x| x.to_bits())).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Append(usize),
    OneByOne(usize),
    Prefill(usize),
    Truncate(usize),
    Fork,
    Switch(usize),
    Restore,
    Fail,
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..300usize).prop_map(Op::Append),
        4 => (1..40usize).prop_map(Op::OneByOne),
        3 => (1..300usize).prop_map(Op::Prefill),
        4 => (0..200usize).prop_map(Op::Truncate),
        3 => Just(Op::Fork),
        3 => (0..8usize).prop_map(Op::Switch),
        3 => Just(Op::Restore),
        1 => Just(Op::Fail),
        1 => Just(Op::Reset),
    ]
}

fn spec() -> impl Strategy<Value = CacheSpec> {
    let codec = || {
        use CodecId as C;
        prop::sample::select(vec![C::S4, C::N4, C::N3, C::I8, C::F16, C::Q4_0, C::T2S8, C::Q8_0])
    };
    let centring = prop::sample::select(vec![Centring::Off, Centring::On, Centring::Auto]);
    let arithmetic = prop::sample::select(vec![Arithmetic::Int8, Arithmetic::F32]);
    (codec(), codec(), 0..6usize, 0..40usize, centring, arithmetic, 0..6usize).prop_map(
        |(key, value, sinks, hot, centring, arithmetic, shape)| {
            let spec = CacheSpec::new(1, HEADS, 1, DIM).codecs(key, value).sinks(sinks).hot(hot);
            let spec = spec.centring(centring).arithmetic(arithmetic);
            let demote = |key, value| Cold::Demote { key, value };
            match shape {
                0 => spec,
                1 => spec.sliding_window(100),
                2 => spec
                    .codecs(CodecId::N4, CodecId::N3)
                    .cold(150, demote(CodecId::N3, CodecId::N2))
                    .cold(300, demote(CodecId::N2, CodecId::N2)),
                3 => spec.ring(100),
                4 => spec
                    .codecs(CodecId::N4, CodecId::N3)
                    .cold(150, demote(CodecId::N3, CodecId::N2))
                    .ring(300),
                _ => spec.cold(130, Cold::Spill(std::env::temp_dir())),
            }
        },
    )
}

/// A step of a cache's history, which another cache can repeat.
#[derive(Clone, Debug)]
enum Step {
    Append(u64, usize, usize),
    Prefill(u64, usize, usize),
    Truncate(usize),
}

fn take(cache: &mut KvCache, step: &Step) -> Result<(), CacheError> {
    match *step {
        Step::Append(seed, from, to) => {
            let (k, v) = tokens(seed, from, to);
            cache.append(0, &k, &v)
        }
        Step::Prefill(seed, from, to) => {
            let (k, v) = tokens(seed, from, to);
            let q = Gaussian::new(seed).vector((to - from) * HEADS * DIM);
            cache.attend_prefill(0, &q, &k, &v, &mut vec![0.0; q.len()])
        }
        Step::Truncate(len) => cache.truncate(len),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// Forks write to shared pages, copies go to bytes and back, and operations fail half-way. Each cache
    /// only depends on its own history.
    #[test]
    fn a_cache_is_what_its_own_history_made_it(spec in spec(), ops in prop::collection::vec(op(), 1..16)) {
        let budget = Budget::new(1 << 30);
        let new = || KvCache::within(spec.clone(), &budget).unwrap();
        let mut caches = vec![(new(), Vec::<Step>::new())];
        let mut current = 0;
        for (seed, op) in ops.iter().enumerate() {
            let seed = seed as u64;
            let others: Vec<_> = caches.iter().map(|(cache, _)| bits(cache)).collect();
            let (cache, history) = &mut caches[current];
            let len = cache.len();
            let mut steps = Vec::new();
            match *op {
                Op::Append(n) => steps.push(Step::Append(seed, len, len + n)),
                Op::OneByOne(n) => steps.extend((len..len + n).map(|i| Step::Append(seed, i, i + 1))),
                Op::Prefill(n) => steps.push(Step::Prefill(seed, len, len + n)),
                Op::Truncate(back) => steps.push(Step::Truncate(len.saturating_sub(back))),
                Op::Fork => {
                    let fork = (cache.fork().unwrap(), history.clone());
                    prop_assert_eq!(bits(&fork.0), &others[current][..]);
                    caches.push(fork);
                    current = caches.len() - 1;
                    continue;
                }
                Op::Switch(i) => {
                    current = i % caches.len();
                    continue;
                }
                Op::Restore => {
                    let bytes = snapshot(cache);
                    let mut other = new();
                    other.restore(&mut &bytes[..]).unwrap();
                    prop_assert_eq!(bits(&other), &others[current][..]);
                    prop_assert_eq!(&snapshot(&other), &bytes);
                    caches[current].0 = other;
                    continue;
                }
                Op::Fail => {
                    let (k, mut v) = tokens(seed, len, len + 9);
                    v[8 * DIM + 1] = f32::INFINITY;
                    prop_assert!(cache.append(0, &k, &v).is_err());
                    prop_assert_eq!(bits(cache), &others[current][..]);
                    continue;
                }
                Op::Reset => {
                    cache.reset();
                    history.clear();
                    continue;
                }
            }
            for step in steps {
                // A sliding window may have dropped tokens that a rollback needs.
                match take(cache, &step) {
                    Ok(()) => history.push(step),
                    Err(error) => {
                        let evicted = matches!(error, CacheError::Evicted { .. });
                        prop_assert!(evicted && spec.sliding_window.or(spec.ring).is_some(), "{}", error);
                        prop_assert_eq!(bits(cache), &others[current][..]);
                    }
                }
            }
            for (i, (cache, _)) in caches.iter().enumerate() {
                if i != current {
                    prop_assert_eq!(&bits(cache), &others[i], "cache {} after {:?} on {}", i, op, current);
                }
            }
        }
        for (cache, history) in &caches {
            let mut replayed = new();
            for step in history {
                take(&mut replayed, step).unwrap();
            }
            prop_assert_eq!(bits(&replayed), bits(cache));
        }
        drop(caches);
        prop_assert_eq!(budget.used(), 0, "every byte is given back");
    }

    /// Every query of a chunk sees the same as if its tokens came one by one. Pages may go cold on the way.
    #[test]
    fn a_chunk_equals_its_tokens_one_by_one(spec in spec(), before in 0..300usize, n in 1..400usize) {
        let spec = spec.arithmetic(Arithmetic::F32);
        let (mut whole, mut single) = (filled(spec.clone(), before), filled(spec, before));
        let (k, v) = tokens(1, before, before + n);
        let q = Gaussian::new(5).vector(n * HEADS * DIM);
        let mut chunk = vec![0.0; q.len()];
        whole.attend_prefill(0, &q, &k, &v, &mut chunk).unwrap();
        for i in 0..n {
            let at = i * DIM..(i + 1) * DIM;
            single.append(0, &k[at.clone()], &v[at]).unwrap();
            let mut out = vec![0.0; HEADS * DIM];
            let at = i * HEADS * DIM..(i + 1) * HEADS * DIM;
            single.attend(0, &q[at.clone()], &mut out).unwrap();
            for (a, b) in out.iter().zip(&chunk[at]) {
                prop_assert!((a - b).abs() < 1e-3, "query {}: {} one by one, {} in the chunk", i, a, b);
            }
        }
        prop_assert_eq!(bits(&whole), bits(&single));
    }

    /// A budget holds for all operations, and a refused operation changes nothing.
    #[test]
    fn a_budget_is_never_passed(spec in spec(), limit in 0..60_000usize, ops in prop::collection::vec(op(), 1..12)) {
        let budget = Budget::new(limit);
        // A ring takes all its bytes at once.
        let mut caches = match KvCache::within(spec.clone(), &budget) {
            Ok(cache) => vec![cache],
            Err(error) => {
                prop_assert!(matches!(error, CacheError::Full { .. }) && spec.ring.is_some(), "{}", error);
                return Ok(());
            }
        };
        let mut current = 0;
        for (seed, op) in ops.iter().enumerate() {
            let cache = &mut caches[current];
            let (before, len) = (bits(cache), cache.len());
            let done = match *op {
                Op::Append(n) | Op::OneByOne(n) => take(cache, &Step::Append(seed as u64, len, len + n)),
                Op::Prefill(n) => take(cache, &Step::Prefill(seed as u64, len, len + n)),
                Op::Switch(i) => {
                    current = i % caches.len();
                    continue;
                }
                Op::Fork => match cache.fork() {
                    Ok(fork) => {
                        caches.push(fork);
                        continue;
                    }
                    Err(error) => Err(error),
                },
                Op::Restore => cache.restore(&mut &snapshot(cache)[..]),
                Op::Truncate(back) => match cache.truncate(len.saturating_sub(back)) {
                    Err(CacheError::Evicted { .. }) => Ok(()),
                    result => result,
                },
                Op::Fail | Op::Reset => continue,
            };
            if let Err(error) = done {
                prop_assert!(matches!(error, CacheError::Full { .. }), "{}", error);
                prop_assert_eq!(bits(&caches[current]), before);
            }
            prop_assert!(budget.used() <= limit, "{} of {} bytes", budget.used(), limit);
        }
    }
}

/// A rollback may copy shared pages or widen codes again. These bytes count too.
#[test]
fn a_rollback_that_the_budget_has_no_room_for_changes_nothing() {
    let spec = CacheSpec::new(1, 1, 1, 64).codecs(CodecId::F16, CodecId::F16).sinks(0);
    let budget = Budget::new(8000);
    let mut cache = KvCache::within(spec, &budget).unwrap();
    cache.append(0, &[0.5; 20 * 64], &[0.5; 20 * 64]).unwrap();
    let fork = cache.fork().unwrap();
    assert!(matches!(cache.truncate(19), Err(CacheError::Full { .. })));
    assert_eq!((cache.len(), budget.used()), (20, fork.stats().allocated_bytes));
    drop(fork);
    cache.truncate(19).unwrap();
}

#[test]
fn the_budget_counts_what_stats_say_and_shared_pages_once() {
    let budget = Budget::unlimited();
    let mut cache = KvCache::within(base(), &budget).unwrap();
    for i in 0..1000 {
        append(&mut cache, 1, i + 1);
        assert_eq!(budget.used(), cache.stats().allocated_bytes, "{i}");
    }
    let alone = budget.used();
    let mut fork = cache.fork().unwrap();
    let shared = fork.stats().shared_bytes;
    assert!(
        budget.used() < alone + alone / 25 && shared > alone * 9 / 10,
        "{} of {alone}, {shared}",
        budget.used()
    );
    append(&mut fork, 2, 1001);
    assert!(budget.used() > alone && budget.used() < alone + alone / 5);
    drop(cache);
    assert_eq!(fork.stats().shared_bytes, 0);
    fork.reset();
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_pool_evicts_what_was_not_used_for_longest() {
    let spec = base();
    let one = filled(spec.clone(), 300).stats().allocated_bytes;
    let mut pool = CachePool::new(spec.clone(), 8 * one, Eviction::LeastRecentlyUsed).unwrap();
    let grow = |cache: &mut KvCache| {
        let (k, v) = tokens(1, cache.len(), cache.len() + 20);
        cache.append(0, &k, &v)
    };
    // The longest unused cache comes first.
    let mut order: Vec<_> = (0..20).map(|_| pool.create().unwrap()).collect();
    for i in 0..300 {
        let id = order[i * 7 % order.len()];
        let there = order.len();
        pool.with(id, grow).unwrap();
        order.retain(|other| *other != id);
        order.push(id);
        let left: Vec<_> = pool.ids().collect();
        order.drain(..there - left.len());
        assert!(order.iter().all(|id| left.contains(id)), "others than the longest unused were removed");
        assert!(pool.budget().used() <= 8 * one);
    }
    assert!(order.len() < 9, "{} left", order.len());
    assert_eq!(pool.with(order[0], |cache| Ok(cache.len())).unwrap() % 20, 0);

    let mut pool = CachePool::new(spec, one, Eviction::Refuse).unwrap();
    let (first, second) = (pool.create().unwrap(), pool.create().unwrap());
    let error = loop {
        if let Err(error) = pool.with(first, grow) {
            break error;
        }
    };
    assert!(
        matches!(error, CacheError::Full { .. }) && error.to_string().contains(&format!("of {one}")),
        "{error}"
    );
    assert!(pool.remove(first) && !pool.remove(first));
    pool.with(second, grow).unwrap();
}

#[test]
fn sequences_that_share_a_prefix_share_its_bytes() {
    let mut pool = CachePool::new(base(), 1 << 24, Eviction::Refuse).unwrap();
    let prompt = pool.create().unwrap();
    pool.with(prompt, |cache| take(cache, &Step::Append(1, 0, 2048))).unwrap();
    let prefix = pool.budget().used();
    let forks: Vec<_> = (0..64).map(|_| pool.fork(prompt).unwrap()).collect();
    for (i, &id) in forks.iter().enumerate() {
        pool.with(id, |cache| take(cache, &Step::Append(2 + i as u64, 2048, 2048 + 128))).unwrap();
    }
    let each = (pool.budget().used() - prefix) / 64;
    assert!(each < prefix / 5, "{each} bytes a sequence beside {prefix} shared");
    for (i, &id) in forks.iter().enumerate().step_by(13) {
        let mut alone = KvCache::new(base()).unwrap();
        take(&mut alone, &Step::Append(1, 0, 2048)).unwrap();
        take(&mut alone, &Step::Append(2 + i as u64, 2048, 2048 + 128)).unwrap();
        assert_eq!(bits(&alone), bits(pool.get(id).unwrap()));
    }
}

/// Caches of four threads share a budget. Appends, forks and drops never pass it.
#[test]
fn threads_share_a_budget_without_passing_it() {
    let one = filled(base(), 600).stats().allocated_bytes;
    let budget = Budget::new(3 * one);
    let refused: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let budget = &budget;
                scope.spawn(move || {
                    let mut cache = KvCache::within(base(), budget).unwrap();
                    let (mut refused, mut forks) = (0, Vec::new());
                    for step in 0..400 {
                        let (k, v) = tokens(thread, cache.len(), cache.len() + 1 + step % 30);
                        match cache.append(0, &k, &v) {
                            Ok(()) if step % 7 == 0 => forks.extend(cache.fork()),
                            Ok(()) => {}
                            Err(error) => {
                                assert!(matches!(error, CacheError::Full { .. }), "{error}");
                                refused += 1;
                                forks.clear();
                                if refused % 3 == 0 {
                                    cache.reset();
                                }
                            }
                        }
                        assert!(budget.used() <= budget.limit(), "{} of {}", budget.used(), budget.limit());
                    }
                    refused
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(refused > 10, "{refused}");
    assert_eq!(budget.used(), 0);
}

#[test]
fn two_threads_write_to_two_forks() {
    let cache = filled(base(), 700);
    let want: Vec<_> = (0..4)
        .map(|i| {
            let mut fork = filled(base(), 700);
            (700..900).for_each(|to| append(&mut fork, 2 + i, to + 1));
            bits(&fork)
        })
        .collect();
    let got: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let mut fork = cache.fork().unwrap();
                scope.spawn(move || {
                    (700..900).for_each(|to| append(&mut fork, 2 + i, to + 1));
                    bits(&fork)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(got, want);
}

/// Every instruction set gives the snapshot of SPEC.md: its number of bytes, and the CRC-32 of the chunk of
/// the single KV head.
#[test]
fn snapshots_are_the_same_bytes_on_every_level() {
    let made = Level::available().map(|level| {
        let demote = Cold::Demote { key: CodecId::N2, value: CodecId::N2 };
        let mut cache = KvCache::new(base().cold(300, demote).level(level)).unwrap();
        // Values are whole steps of 1/32, so that no library's logarithm has an effect.
        let row = |token: usize, step: usize| -> Vec<f32> {
            (0..DIM).map(|i| ((token * step + i * 17) % 97) as f32 / 32.0 - 1.0).collect()
        };
        (0..700).for_each(|token| cache.append(0, &row(token, 31), &row(token, 43)).unwrap());
        snapshot(&cache)
    });
    let made: Vec<Vec<u8>> = made.collect();
    assert!(made.iter().all(|other| *other == made[0]));
    let crc = made[0][..made[0].len() - 12].last_chunk::<4>().copied().map(u32::from_le_bytes);
    assert_eq!((made[0].len(), crc), (22238, Some(1_930_783_506)));
}

/// A snapshot fully describes its cache. Its blocks decode to the tokens.
#[test]
fn a_cache_is_made_of_its_snapshot_alone() {
    let demote = Cold::Demote { key: CodecId::N2, value: CodecId::N2 };
    let tiers = base()
        .cold(300, demote)
        .layers(tqkv::cache::LayerPolicy::Tail { layers: 1, codecs: (CodecId::N4, CodecId::N3) });
    for spec in [
        base(),
        tiers,
        base().soft_cap(30.0).scale(0.5),
        base().sliding_window(200).hot(16),
        base().ring(200),
    ] {
        let cache = filled(spec, 700);
        let bytes = snapshot(&cache);
        let made = KvCache::from_snapshot(&mut &bytes[..]).unwrap();
        assert_eq!(snapshot(&made), bytes);
        assert_eq!(bits(&made), bits(&cache));
        for len in (0..bytes.len()).step_by(11) {
            KvCache::from_snapshot(&mut &bytes[..len]).unwrap_err();
        }
        let runs = made.value_blocks(0, 0).unwrap();
        let run = runs.last().unwrap();
        let codec = tqkv_core::AnyCodec::new(run.codec, run.dim, made.spec().options).unwrap();
        let tokens = run.blocks.len() / codec.block_bytes();
        let mut decoded = vec![0.0; tokens * run.dim];
        for (block, out) in run.blocks.chunks(codec.block_bytes()).zip(decoded.chunks_mut(run.dim)) {
            codec.decode(block, out).unwrap();
        }
        let held = made.values(0, 0, run.first..run.first + tokens).unwrap();
        // Blocks are what tokens are read from, plus the mean of values.
        let less = |at: usize| held[at] - decoded[at];
        let close = (0..held.len()).all(|at| (less(at) - less(at % run.dim)).abs() <= 1e-5);
        let mean = (0..run.dim).map(less).collect::<Vec<_>>();
        assert!(close && mean.iter().any(|x| x.abs() > 0.5), "{mean:?}");
    }
}

#[test]
fn a_cache_is_loaded_from_its_file_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.tqks");
    for spec in [base(), base().sliding_window(200).hot(16), base().codecs(CodecId::T4, CodecId::T2).sinks(1)]
    {
        let mut cache = filled(spec, 500);
        cache.save(&path).unwrap();
        let mut loaded = KvCache::load(&path).unwrap();
        assert_eq!(loaded.spec().codecs_at(0), cache.spec().codecs_at(0));
        for cache in [&mut cache, &mut loaded] {
            (500..700).for_each(|i| append(cache, 1, i + 1));
        }
        assert_eq!(bits(&cache), bits(&loaded), "it goes on as the one that was saved");
    }
    let refused = |path: &std::path::Path| KvCache::load(path).unwrap_err().to_string();
    let none = folder.path().join("none");
    assert!(refused(&none).contains("none"), "{}", refused(&none));
    std::fs::write(&none, b"no snapshot").unwrap();
    assert!(refused(&none).contains("none: "), "{}", refused(&none));
}

#[test]
fn a_damaged_or_foreign_snapshot_is_refused_and_changes_nothing() {
    let cache = filled(base(), 300);
    let bytes = snapshot(&cache);
    let mut running = filled(base(), 40);
    let before = bits(&running);
    for len in (0..bytes.len()).step_by(7) {
        running.restore(&mut &bytes[..len]).unwrap_err();
    }
    for i in (0..bytes.len()).step_by(3) {
        let mut bad = bytes.clone();
        bad[i] ^= 1 << (i % 8);
        assert!(running.restore(&mut &bad[..]).is_err(), "byte {i}");
    }
    let foreign = [
        (base().codecs(CodecId::S4, CodecId::N4), "has n4,n4 in layer 0"),
        (base().hot(17), "hot="),
        (base().sinks(3), "sinks="),
        (base().options(tqkv_core::Options::DEFAULT.seed(7)), "seed="),
        (base().centring(Centring::Off), "centring="),
        (base().sliding_window(200), "full in layer 0"),
        (base().ring(200), "ring="),
        (base().cold(200, Cold::Demote { key: CodecId::N2, value: CodecId::N2 }), "tier="),
        (CacheSpec::new(1, HEADS, 2, DIM), "kv-heads="),
        (base().soft_cap(30.0), "soft-cap="),
    ];
    for (spec, what) in foreign {
        let mut other = KvCache::new(spec).unwrap();
        let error = other.restore(&mut &bytes[..]).unwrap_err().to_string();
        assert!(error.contains(what), "{error}, expected {what}");
    }
    assert_eq!(bits(&running), before);
    running.restore(&mut &bytes[..]).unwrap();
    assert_eq!(bits(&running), bits(&cache));
}

#[test]
fn a_cache_goes_on_from_a_file_as_if_it_had_never_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.tqks");
    for to in [0, 3, 70, 200, 1000] {
        let mut cache = filled(base().cold(300, Cold::Spill(folder.path().into())), to);
        cache.save(&path).unwrap();
        let mut restored = KvCache::new(cache.spec().clone()).unwrap();
        restored.restore_from(&path).unwrap();
        assert_eq!(restored.stats().spilled_bytes, cache.stats().spilled_bytes);
        for cache in [&mut cache, &mut restored] {
            (to..to + 300).for_each(|i| append(cache, 1, i + 1));
        }
        assert_eq!(bits(&cache), bits(&restored));
    }
    let names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["cache.tqks"]);
    let none = folder.path().join("none");
    let missing = KvCache::new(base()).unwrap().restore_from(&none).unwrap_err();
    assert!(missing.to_string().contains("none"), "{missing}");
}

/// Earlier faults of this cache, one each.
#[test]
fn rollback_behind_a_window_leaves_a_cache_that_goes_on() {
    for back in [0, 1, 3, 4] {
        for more in [1, 50, 400] {
            let mut cache = filled(base().sliding_window(64), 900);
            cache.truncate(back).unwrap();
            assert_eq!(cache.len(), back);
            (back..more + back).for_each(|i| append(&mut cache, 1, i + 1));
            let fresh = filled(base().sliding_window(64), back + more);
            assert_eq!(bits(&cache), bits(&fresh), "back to {back}, then {more}");
        }
    }
    let mut cache = filled(base().sliding_window(64), 900);
    cache.truncate(800).unwrap();
    cache.truncate(701).unwrap();
    let before = bits(&cache);
    let error = cache.truncate(300).unwrap_err().to_string();
    assert!(error.contains("cannot truncate to 300"), "{error}");
    assert_eq!(bits(&cache), before, "a refused rollback changes nothing");
}

#[test]
fn a_spill_folder_without_room_leaves_all_heads_alike() {
    let mut cache = filled(base().cold(100, Cold::Spill(std::env::temp_dir())), 200);
    // Its file cannot grow. A child with a limit on file sizes gets the same error as with a full disk.
    if std::env::var_os("TQKV_TEST_NO_ROOM").is_none() {
        let me = std::env::current_exe().unwrap();
        let limited = format!(
            "ulimit -f 8; exec {} --exact cache_life::a_spill_folder_without_room_leaves_all_heads_alike",
            me.display()
        );
        let mut child = std::process::Command::new("bash");
        // Output goes through a pipe, because the limit also applies to a file.
        let output = child.args(["-c", &limited]).env("TQKV_TEST_NO_ROOM", "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
        return;
    }
    let mut refused = 0;
    for i in 200..2000 {
        let (before, len) = (bits(&cache), cache.len());
        let (k, v) = tokens(1, i, i + 1);
        if let Err(error) = cache.append(0, &k, &v) {
            assert!(error.to_string().contains("ulimit -f"), "{error}");
            assert_eq!((cache.len(), bits(&cache)), (len, before));
            refused += 1;
            if refused > 20 {
                return;
            }
        }
    }
    panic!("the limit was not felt");
}

/// A process that dies during a write leaves either the old file or the new one.
#[test]
#[cfg(unix)]
fn a_process_killed_in_the_middle_leaves_the_old_file_or_the_new_one() {
    const NAME: &str = "cache_life::a_process_killed_in_the_middle_leaves_the_old_file_or_the_new_one";
    let spec = || CacheSpec::new(1, HEADS, 1, DIM).codecs(CodecId::S4, CodecId::S4);
    let (k, v) = tokens(1, 0, 5000);
    let long = |tokens: usize| {
        let mut cache = KvCache::new(spec()).unwrap();
        cache.append(0, &k[..tokens * DIM], &v[..tokens * DIM]).unwrap();
        cache
    };
    if let Some(path) = std::env::var_os("TQKV_TEST_SNAPSHOT") {
        let (odd, even) = (long(4999), long(5000));
        println!("ready");
        loop {
            odd.save(&path).unwrap();
            even.save(&path).unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.tqks");
    long(5000).save(&path).unwrap();
    let (mut lengths, mut delays) = (Vec::new(), Gaussian::new(3));
    for _ in 0..100 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env("TQKV_TEST_SNAPSHOT", &path)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        assert!(lines.any(|line| line.unwrap().contains("ready")));
        let micros = 2000.0 * (1.0 + f64::from(delays.vector(1)[0]).abs());
        std::thread::sleep(std::time::Duration::from_micros(micros as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut cache = KvCache::new(spec()).unwrap();
        cache.restore_from(&path).unwrap();
        lengths.push(cache.len());
    }
    let whole = lengths.iter().filter(|&&len| len == 4999 || len == 5000).count();
    assert_eq!(whole, 100, "{lengths:?}");
}
