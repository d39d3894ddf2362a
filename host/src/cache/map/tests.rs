//! Maps through the life of a cache.

use super::PairFactors;
use super::noise::noise;
use crate::cache::{Budget, CacheSpec, KvCache};
use tqkv_core::CodecId;
use tqkv_simd::Level;

const DIM: usize = 64;
/// Query heads; there is one KV head.
const HEADS: usize = 2;
const TOKENS: usize = 620;

/// Queries, keys and values of a sequence. Pairs with long keys have short queries.
struct Sequence {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Sequence {
    fn new(seed: usize) -> Self {
        let key = |i: usize| if i % 16 < 4 { 4.0 } else { 0.5 };
        let values = |n: usize, salt: usize, size: &dyn Fn(usize) -> f32| {
            (0..n * DIM).map(|i| noise(seed * 1_000_003 + salt * 500_009 + i) * size(i % DIM)).collect()
        };
        Self {
            q: values(TOKENS * HEADS, 1, &|i| 1.0 / key(i)),
            k: values(TOKENS, 2, &key),
            v: values(TOKENS, 3, &|_| 1.0),
        }
    }

    fn queries(&self, from: usize, to: usize) -> &[f32] {
        &self.q[from * HEADS * DIM..to * HEADS * DIM]
    }

    /// Appends and attends in chunks that end at the given positions.
    fn prefill(&self, cache: &mut KvCache, ends: &[usize]) -> Vec<f32> {
        let mut outs = Vec::new();
        for &to in ends {
            let from = cache.len();
            let mut out = vec![0.0; (to - from) * HEADS * DIM];
            let (k, v) = (&self.k[from * DIM..to * DIM], &self.v[from * DIM..to * DIM]);
            cache.attend_prefill(0, self.queries(from, to), k, v, &mut out).unwrap();
            outs.extend(out);
        }
        outs
    }

    /// Appends in chunks that end at the given positions, with the queries of the tokens.
    fn show(&self, cache: &mut KvCache, ends: &[usize]) {
        for &to in ends {
            let from = cache.len();
            let (k, v) = (&self.k[from * DIM..to * DIM], &self.v[from * DIM..to * DIM]);
            cache.append_with_queries(0, self.queries(from, to), k, v).unwrap();
        }
    }

    fn append(&self, cache: &mut KvCache, to: usize) {
        let from = cache.len();
        cache.append(0, &self.k[from * DIM..to * DIM], &self.v[from * DIM..to * DIM]).unwrap();
    }

    /// Appends and attends token by token.
    fn steps(&self, cache: &mut KvCache, to: usize) {
        let mut out = [0.0; HEADS * DIM];
        for at in cache.len()..to {
            self.append(cache, at + 1);
            cache.attend(0, self.queries(at, at + 1), &mut out).unwrap();
        }
    }
}

fn spec(policy: &str) -> CacheSpec {
    CacheSpec::new(1, HEADS, 1, DIM).with(policy).unwrap()
}

fn cache(policy: &str) -> KvCache {
    KvCache::new(spec(policy)).unwrap()
}

/// The keys of the cache, as bits.
fn keys(cache: &KvCache) -> Vec<u32> {
    cache.keys(0, 0, 0..cache.len()).unwrap().iter().map(|x| x.to_bits()).collect()
}

fn bytes(cache: &KvCache) -> Vec<u8> {
    let mut bytes = Vec::new();
    cache.snapshot(&mut bytes).unwrap();
    bytes
}

/// Squared error of the logits of the first half of the tokens, over their squares.
fn error(cache: &KvCache, sequence: &Sequence) -> f64 {
    let (mut error, mut energy) = (0.0, 0.0);
    for at in 300..TOKENS {
        let q = &sequence.queries(at, at + 1)[..DIM];
        let scores = cache.scores(0, 0, q).unwrap();
        for (i, got) in scores.iter().enumerate().take(TOKENS / 2) {
            let key = &sequence.k[i * DIM..(i + 1) * DIM];
            let want = key.iter().zip(q).map(|(k, q)| k * q).sum::<f32>() / (DIM as f32).sqrt();
            error += f64::from(got - want).powi(2);
            energy += f64::from(want).powi(2);
        }
    }
    error / energy
}

#[test]
fn a_map_moves_the_error_to_where_queries_do_not_look() {
    let sequence = Sequence::new(1);
    for policy in ["t2 hot=0 sinks=0", "s2 hot=64", "t2 hot=32 arithmetic=f32", "t4 hot=0 tier=128:t2"] {
        let [plain, mapped] = ["off", "pairs"].map(|map| {
            let mut cache = cache(&format!("{policy} map={map}"));
            sequence.prefill(&mut cache, &[TOKENS]);
            error(&cache, &sequence)
        });
        assert!(mapped < 0.5 * plain, "{policy}: {mapped} with a map, {plain} without");
    }
}

#[test]
fn a_map_does_not_depend_on_the_cuts_of_the_appends_or_the_level() {
    let sequence = Sequence::new(2);
    let quarters = ["m2,t2 map=pairs", "m3,t2 map=pairs hot=0 sinks=0"];
    let others = ["t2 map=pairs", "s3 map=pairs hot=0 sinks=0", "t2 map=pairs hot=30 sinks=9"];
    for policy in quarters.into_iter().chain(others) {
        let mut whole = cache(policy);
        sequence.prefill(&mut whole, &[TOKENS]);
        let wanted = keys(&whole);
        let cuts: Vec<Vec<usize>> = vec![vec![3, 100, 101, 195, 230, TOKENS], (1..=TOKENS).collect()];
        for ends in cuts {
            let mut cache = cache(policy);
            sequence.prefill(&mut cache, &ends);
            assert_eq!(keys(&cache), wanted, "{policy}: {} cuts", ends.len());
        }
        for ends in [&[TOKENS][..], &[3, 100, 101, 195, 230, TOKENS]] {
            let mut shown = cache(policy);
            sequence.show(&mut shown, ends);
            assert_eq!(keys(&shown), wanted, "{policy}: appended with queries");
        }
        let mut stepped = cache(policy);
        sequence.steps(&mut stepped, TOKENS);
        assert_eq!(keys(&stepped), wanted, "{policy}: append, then attend");
        for level in Level::available() {
            let mut cache = KvCache::new(spec(policy).level(level)).unwrap();
            sequence.prefill(&mut cache, &[TOKENS]);
            assert_eq!(keys(&cache), wanted, "{policy}: {level:?}");
        }
    }
}

#[test]
fn keys_without_queries_are_coded_without_a_map() {
    let sequence = Sequence::new(3);
    // With 128 keys that wait, and without, the first mean is the same.
    let [plain, mapped] = ["off", "pairs"].map(|map| {
        let mut cache = cache(&format!("t2 map={map}"));
        sequence.append(&mut cache, TOKENS);
        keys(&cache)
    });
    assert_eq!(mapped, plain);
    let [plain, mapped] = ["off", "pairs"].map(|map| {
        let mut cache = cache(&format!("q4_0 map={map}"));
        sequence.prefill(&mut cache, &[TOKENS]);
        keys(&cache)
    });
    assert_eq!(mapped, plain, "a code that is not rotated");
}

/// Without a map, the code of one width takes the place of a code of quarters, in all that a cache does.
#[test]
fn keys_of_quarters_without_a_map_are_those_of_one_width() {
    let (sequence, other) = (Sequence::new(3), Sequence::new(14));
    let one_width = |policy: &str| policy.replace("m2", "t2").replace("m3", "t3");
    for policy in ["m2,t2", "m3,t2 map=pairs hot=0 sinks=0", "t4,t2 hot=16 tier=128:m2,t2"] {
        let mut quarters = cache(policy);
        let mut plain = cache(&one_width(policy));
        for cache in [&mut quarters, &mut plain] {
            sequence.append(cache, TOKENS);
        }
        assert!(keys(&quarters) == keys(&plain), "{policy}");
        let q = &sequence.queries(9, 10)[..DIM];
        assert_eq!(quarters.scores(0, 0, q).unwrap(), plain.scores(0, 0, q).unwrap(), "{policy}");
        let stored = bytes(&quarters);
        let read = KvCache::from_snapshot(&mut &stored[..]).unwrap();
        assert!(keys(&read) == keys(&plain) && bytes(&read) == stored, "{policy}: a snapshot");
        for mut again in [quarters.fork().unwrap(), read] {
            let mut wanted = plain.fork().unwrap();
            for cache in [&mut again, &mut wanted] {
                cache.truncate(333).unwrap();
                sequence.append(cache, TOKENS);
            }
            assert!(keys(&again) == keys(&wanted), "{policy}: behind a cut");
            // One that loses all its pages learns anew.
            again.truncate(0).unwrap();
            other.prefill(&mut again, &[TOKENS]);
            let mut mapped = cache(policy);
            other.prefill(&mut mapped, &[TOKENS]);
            assert!(keys(&again) == keys(&mapped), "{policy}: from the start");
            assert!(again.layers[0].heads[0].keys.pages().map().is_some(), "{policy}");
        }
    }
}

/// No cache is refused because its keys cannot have a map.
#[test]
fn keys_of_quarters_that_can_have_no_map_are_those_of_one_width() {
    let sequence = Sequence::new(3);
    for (policy, plain) in [
        ("m2,t2 map=off", "t2"),
        ("m2,t2 ring=1024", "t2 ring=1024"),
        ("tiered ring=1024", "t3,t4 hot=16 tier=128:t3,t2 ring=1024"),
        ("m3,t2 tier=128:m2,t2 ring=1024", "m3,t2 tier=128:m2,t2 map=off ring=1024"),
        ("t4,t2 tier=128:m2,t2 ring=1024", "t4,t2 tier=128:t2 ring=1024"),
        ("t4,t2 last:m3,t2 map=off", "t4,t2 last:t3,t2"),
    ] {
        let [(got, first), (want, _)] = [policy, plain].map(|policy| {
            let mut cache = cache(policy);
            sequence.prefill(&mut cache, &[TOKENS]);
            (keys(&cache), bytes(&cache))
        });
        assert!(got == want, "{policy}");
        let read = KvCache::from_snapshot(&mut &first[..]).unwrap();
        assert!(keys(&read) == want && bytes(&read) == first, "{policy}: a snapshot");
    }
    let spec = |key| CacheSpec::mla(1, HEADS, DIM, 16).codecs(key, CodecId::T2);
    assert_eq!(spec(CodecId::M2).codecs_at(0), spec(CodecId::T2).codecs_at(0));
    assert!(KvCache::new(spec(CodecId::M3)).is_ok(), "latent vectors");
}

/// Their keys have no map by themselves, so a snapshot, which names `t3`, has none either.
#[test]
fn heads_that_codes_of_quarters_do_not_fit_have_those_of_one_width() {
    for (dim, policy, plain) in
        [(16, "m2,t2", "t2"), (32, "m3,t2 hot=16", "t3,t2 hot=16"), (80, "tiny hot=64", "t3,t2")]
    {
        let [mut cache, mut wanted] = [policy, plain]
            .map(|policy| KvCache::new(CacheSpec::new(1, 1, 1, dim).with(policy).unwrap()).unwrap());
        let rows = |salt: usize| (0..dim).map(|i| noise(salt + i)).collect::<Vec<_>>();
        for at in 0..300 {
            let (q, row) = (rows(7 * at), rows(11 * at));
            for cache in [&mut cache, &mut wanted] {
                cache.attend_prefill(0, &q[..], &row[..], &row[..], &mut vec![0.0; dim]).unwrap();
            }
        }
        let stored = bytes(&cache);
        let read = KvCache::from_snapshot(&mut &stored[..]).unwrap();
        assert!(keys(&cache) == keys(&wanted), "{policy} at {dim}");
        assert!(keys(&read) == keys(&wanted) && bytes(&read) == stored, "{policy} at {dim}: a snapshot");
    }
}

/// While keys wait for a map, they and the queries take less than all tokens in f16.
#[test]
fn a_cache_that_waits_for_a_map_is_smaller_than_f16() {
    for (heads, dim) in [(1, 64), (3, 64), (8, 64), (4, 256)] {
        let held = |policy: &str, tokens: usize| {
            let spec = CacheSpec::new(1, heads, 1, dim).with(policy).unwrap();
            let mut cache = KvCache::new(spec).unwrap();
            let rows = |n: usize, salt: usize| (0..n * dim).map(|i| noise(salt + i)).collect::<Vec<_>>();
            for at in 0..tokens {
                let (q, row) = (rows(heads, 7 * at), rows(1, 11 * at));
                cache.attend_prefill(0, &q[..], &row[..], &row[..], &mut vec![0.0; heads * dim]).unwrap();
            }
            cache.stats().allocated_bytes
        };
        // Values leave in fours, from 72 tokens on.
        for tokens in [72, 80, 96, 128, 160, 192, 195] {
            let f16 = held("f16", tokens);
            for policy in ["m2,t2", "t4,t2 hot=16 tier=512:m3,t2"] {
                let bytes = held(policy, tokens);
                assert!(
                    bytes <= f16,
                    "{policy}: {bytes} of {f16} at {tokens} tokens, {heads} heads of {dim}"
                );
            }
        }
    }
}

/// Pages of one map go from codes of one width to codes of quarters.
#[test]
fn pages_with_a_map_go_cold_as_quarters() {
    let sequence = Sequence::new(15);
    for (cold, warm) in [("m2,t2", "t4,t2"), ("m3,t2", "t4,t2"), ("m2,t2", "i8,t2"), ("m2,t2", "m3,t2")] {
        let loss = |policy: &str| {
            let mut cache = cache(policy);
            sequence.prefill(&mut cache, &[TOKENS]);
            assert_eq!(cache.stats().cold > 0, policy.contains("tier"));
            error(&cache, &sequence)
        };
        let alone = loss(&format!("{cold} hot=16"));
        let plain = loss(&format!("{} hot=16", cold.replace('m', "t")));
        let cooled = loss(&format!("{warm} hot=16 tier=128:{cold}"));
        assert!(cooled < 0.7 * plain, "{warm} to {cold}: {cooled}, {plain} without a map");
        assert!(cooled < 2.0 * alone, "{warm} to {cold}: {cooled}, {alone} at once");
    }
}

#[test]
fn a_snapshot_keeps_the_map_and_the_queries_that_wait_for_it() {
    let tiers = ["t4,t2 hot=16 tier=128:m2,t2", "m3,t2 hot=16 tier=256:m2,t2"];
    for policy in ["t2 map=pairs", "m2,t2 map=pairs", "t2 map=pairs each:m3,t2", "m2,t2"].iter().chain(&tiers)
    {
        keeps_the_map(policy);
    }
}

fn keeps_the_map(policy: &str) {
    let sequence = Sequence::new(4);
    let mut whole = cache(policy);
    sequence.prefill(&mut whole, &[TOKENS]);
    for at in [0, 3, 70, 150, 195, 196, 260, 579, 580, 590] {
        let mut first = cache(policy);
        sequence.steps(&mut first, at);
        let stored = bytes(&first);
        let mut second = KvCache::from_snapshot(&mut &stored[..]).unwrap();
        assert_eq!(bytes(&second), stored, "at {at}");
        sequence.prefill(&mut second, &[TOKENS]);
        assert_eq!(keys(&second), keys(&whole), "at {at}");
    }
}

#[test]
fn a_snapshot_of_a_cache_with_another_map_is_refused() {
    let [mut plain, mut mapped] = ["t2", "t2 map=pairs"].map(cache);
    let (without, with) = (bytes(&plain), bytes(&mapped));
    let refused = plain.restore(&mut &with[..]).unwrap_err().to_string();
    assert!(refused.contains("another spec: the snapshot has map=pairs, this cache map=auto"), "{refused}");
    let refused = mapped.restore(&mut &without[..]).unwrap_err().to_string();
    assert!(refused.contains("another spec: the snapshot has map="), "{refused}");
    let refused = cache("m2,t2 map=pairs").restore(&mut &bytes(&cache("m2,t2"))[..]).unwrap_err().to_string();
    assert!(refused.contains("another spec: the snapshot has map=auto, this cache map=pairs"), "{refused}");
}

#[test]
fn forks_and_truncated_caches_continue_as_if_nothing_had_followed() {
    for policy in ["t2 map=pairs", "m2,t2 map=pairs", "m3,t2"] {
        continues(policy);
    }
}

fn continues(policy: &str) {
    let (sequence, other) = (Sequence::new(5), Sequence::new(6));
    let mut whole = cache(policy);
    sequence.prefill(&mut whole, &[TOKENS]);
    let wanted = keys(&whole);
    for at in [0, 2, 90, 150, 195] {
        let mut cut = cache(policy);
        sequence.prefill(&mut cut, &[at]);
        let mut fork = cut.fork().unwrap();
        // Tokens that wait, and their queries, are dropped.
        other.prefill(&mut cut, &[195]);
        cut.truncate(at).unwrap();
        for (what, mut cache) in [("cut", cut), ("fork", fork.fork().unwrap())] {
            sequence.prefill(&mut cache, &[TOKENS]);
            assert_eq!(keys(&cache), wanted, "{what} at {at}");
        }
        other.prefill(&mut fork, &[TOKENS]);
        assert_ne!(keys(&fork), wanted);
    }
    // A cache that loses all its pages learns anew; one that keeps a token in them keeps its map.
    for len in [4, 5] {
        let mut cut = cache(policy);
        other.prefill(&mut cut, &[TOKENS]);
        cut.truncate(len).unwrap();
        let before = keys(&cut);
        sequence.prefill(&mut cut, &[TOKENS]);
        assert_eq!(&keys(&cut)[..before.len()], &before[..], "at {len}");
    }
    whole.reset();
    sequence.prefill(&mut whole, &[TOKENS]);
    assert_eq!(keys(&whole), wanted);
}

#[test]
fn maps_and_waiting_queries_are_counted() {
    for policy in ["t2 map=pairs hot=32", "m2,t2 map=pairs hot=32"] {
        is_counted(policy);
    }
}

fn is_counted(policy: &str) {
    let sequence = Sequence::new(7);
    let budget = Budget::new(1 << 20);
    let mut cache = KvCache::within(spec(policy), &budget).unwrap();
    for at in 1..=TOKENS {
        sequence.prefill(&mut cache, &[at]);
        assert!(budget.used() <= cache.stats().allocated_bytes, "at {at}");
    }
    let with = budget.used();
    let fork = cache.fork().unwrap();
    drop((cache, fork));
    assert_eq!(budget.used(), 0, "of {with}");
}

/// The words of the layers of a spec are not those of its keys, so each layer is checked.
#[test]
fn codes_of_quarters_are_for_keys() {
    let refused =
        |spec: CacheSpec| KvCache::new(spec).err().map(|error| error.to_string()).unwrap_or_default();
    let layers = |policy: &str| CacheSpec::new(4, HEADS, 1, DIM).with(policy).unwrap();
    for (policy, why) in [
        ("m2", "m2 is not valid for values: expected a codec of one width, such as t2"),
        ("t2 last:t3,m3", "m3 is not valid for values: expected a codec of one width, such as t2"),
        ("m2,t2 tier=128:t1", "m2 pages cannot go cold as t1"),
        ("t2 tier=128:m2,t2", "t2 pages cannot go cold as m2: that would not save bytes"),
        ("m2,t2 tier=128:m3,t2", "m2 pages cannot go cold as m3: that would not save bytes"),
    ] {
        let error = refused(layers(policy));
        assert!(error.contains(why), "{policy}: {error}");
    }
    for policy in [
        "m2,t2",
        "t2 last:m3,t3",
        "m2,t2 map=pairs tier=128:m2,t2",
        "t4,t2 tier=128:m3,t2",
        "m3,t2 tier=128:m2,t2",
    ] {
        assert_eq!(refused(layers(policy)), "");
    }
}

/// The first quarter holds the pairs that matter, whatever their place in the model.
#[test]
fn codes_of_quarters_find_the_pairs_that_matter() {
    let mut sequence = Sequence::new(8);
    // Every eighth pair has most of the energy, in queries and in keys.
    let size = |i: usize| if i % 8 == 3 { 6.0 } else { 0.25 };
    for (i, x) in sequence.q.iter_mut().chain(&mut sequence.k).enumerate() {
        *x *= size(i % DIM) / if i % 16 < 4 { 1.0 } else { 0.5 };
    }
    let [wide, narrow] = ["m2,t2", "t2"].map(|codecs| {
        let mut cache = cache(&format!("{codecs} map=pairs hot=0 sinks=0"));
        sequence.prefill(&mut cache, &[TOKENS]);
        error(&cache, &sequence)
    });
    assert!(wide < 0.5 * narrow, "{wide} by quarter, {narrow} even");
}

/// A snapshot whose `from` bytes are `to`, with a fitting sum of the chunk. They occur once.
fn changed(cache: &KvCache, from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut stored = bytes(cache);
    let places: Vec<usize> = (0..stored.len()).filter(|&at| stored[at..].starts_with(from)).collect();
    assert_eq!(places.len(), 1, "{places:?}");
    stored[places[0]..][..to.len()].copy_from_slice(to);
    // The magic and the version, then chunks: length, payload, sum.
    let mut at = 12;
    while at < stored.len() {
        let length = u64::from_le_bytes(*stored[at..].first_chunk().unwrap()) as usize;
        let payload = at + 8..at + 8 + length;
        let sum = crc32fast::hash(&stored[payload.clone()]);
        stored[payload.end..][..4].copy_from_slice(&sum.to_le_bytes());
        at = payload.end + 4;
    }
    stored
}

#[test]
fn a_snapshot_with_an_order_that_no_cache_makes_is_refused() {
    let mut whole = cache("m2,t2 map=pairs");
    Sequence::new(9).prefill(&mut whole, &[TOKENS]);
    let order = whole.layers[0].heads[0].keys.pages().map().and_then(PairFactors::order).unwrap();
    let pairs: Vec<u8> = order.pairs().iter().flat_map(|pair| pair.to_le_bytes()).collect();
    let weights: Vec<u8> = order.weights().unwrap().iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let good = [pairs.clone(), weights.clone()].concat();
    let restored = |bad: &[u8]| cache("m2,t2 map=pairs").restore(&mut &changed(&whole, &good, bad)[..]);
    restored(&good).unwrap();
    let twice = [pairs[..2].repeat(2), pairs[4..].to_vec(), weights.clone()].concat();
    let negative = [pairs, (-1.0f32).to_le_bytes().to_vec(), weights[4..].to_vec()].concat();
    for bad in [twice, negative] {
        let error = restored(&bad).unwrap_err().to_string();
        assert!(error.contains("an order of pairs that the cache cannot have"), "{error}");
    }
}

/// Threads attend at once, so the map must not depend on which query comes first.
#[test]
fn the_order_of_queries_at_a_position_does_not_matter() {
    let (sequence, others) = (Sequence::new(1), Sequence::new(2));
    for policy in ["s2 map=pairs hot=16", "m2,s2 hot=16"] {
        let run = |order: &[&Sequence]| {
            let (mut cache, mut out) = (KvCache::new(spec(policy)).unwrap(), [0.0; HEADS * DIM]);
            for at in 0..TOKENS {
                sequence.append(&mut cache, at + 1);
                for other in order {
                    cache.attend(0, other.queries(at, at + 1), &mut out).unwrap();
                }
            }
            keys(&cache)
        };
        let (own, both) = (run(&[&sequence]), run(&[&sequence, &others]));
        assert_eq!(run(&[&others, &sequence]), both, "{policy}");
        assert_eq!(run(&[&sequence, &others, &sequence]), both, "{policy}: again");
        assert!(both != own && both != run(&[&others]), "{policy}: both are sampled");
    }
}
