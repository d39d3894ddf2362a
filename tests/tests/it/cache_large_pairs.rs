//! Keys with a large bias in a pair that RoPE turns. No mean takes it out, and their code would spend its bits on
//! it. Such heads get factors per pair from their first keys alone.

use tqkv::cache::{CacheSpec, KeyMap, KvCache};
use tqkv_tests::inputs::Gaussian;
use tqkv_tests::oracle;

const DIM: usize = 128;
const TOKENS: usize = 600;
/// The pair with the bias.
const PAIR: usize = 5;

fn spec(text: &str) -> CacheSpec {
    format!("layers=1 heads=1 kv-heads=1 head-dim={DIM} {text}").parse().unwrap()
}

/// Keys after RoPE with base 10,000, with a bias of this norm in one pair before.
fn keys(bias: f32) -> Vec<f32> {
    let mut gaussian = Gaussian::new(3);
    let mut keys = gaussian.vector(TOKENS * DIM);
    let speed = 10_000f32.powf(-(2.0 * PAIR as f32) / DIM as f32);
    for (position, key) in keys.chunks_exact_mut(DIM).enumerate() {
        let (sin, cos) = (speed * position as f32).sin_cos();
        key[PAIR] += bias * cos;
        key[PAIR + DIM / 2] += bias * sin;
    }
    keys
}

/// A query that looks at the pair with the bias as little as this.
fn query(share: f32) -> Vec<f32> {
    let mut query = Gaussian::new(4).vector(DIM);
    query[PAIR] *= share;
    query[PAIR + DIM / 2] *= share;
    query
}

fn filled(text: &str, keys: &[f32]) -> KvCache {
    let mut cache = KvCache::new(spec(text)).unwrap();
    cache.append(0, keys, keys).unwrap();
    cache
}

/// Root mean squared error of the logits.
fn error(cache: &KvCache, keys: &[f32], query: &[f32]) -> f64 {
    let scores = cache.scores(0, 0, query).unwrap();
    let wanted = keys.chunks_exact(DIM).map(|key| oracle::dot(query, key) / (DIM as f64).sqrt());
    let sum: f64 = scores.iter().zip(wanted).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    (sum / scores.len() as f64).sqrt()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_bias_that_turns_costs_little() {
    for codecs in ["s4", "t4", "t3,t2", "s2"] {
        let (biased, plain) = (keys(60.0), keys(0.0));
        let off = format!("{codecs} map=off");
        for share in [0.0, 1.0] {
            let query = query(share);
            let [alone, without, with] = [(&off, &plain), (&off, &biased), (&codecs.to_owned(), &biased)]
                .map(|(text, keys)| error(&filled(text, keys), keys, &query));
            println!(
                "{codecs}, {share} of the query: {alone:.3} without a bias, {without:.3}, {with:.3} with a map"
            );
            assert!(
                with < 0.5 * without,
                "{codecs}: {with}, {without} without a map, {alone} without a bias"
            );
        }
    }
}

#[test]
fn a_head_gets_a_map_only_where_few_pairs_hold_its_energy() {
    let mapped = |text: &str, bias: f32| {
        let cache = filled(text, &keys(bias));
        let (count, of_heads) =
            (cache.stats().mapped_heads, cache.head_stats().filter(|head| head.is_mapped));
        assert_eq!(count, of_heads.count());
        count
    };
    assert_eq!([0.0, 3.0, 60.0].map(|bias| mapped("s4", bias)), [0, 0, 1]);
    for text in ["s4 map=off", "s4 centring=off", "f16", "q4_0", "s4 ring=512"] {
        if let Ok(spec) = format!("layers=1 heads=1 kv-heads=1 head-dim={DIM} {text}").parse::<CacheSpec>()
            && KvCache::new(spec).is_ok()
        {
            assert_eq!(mapped(text, 60.0), 0, "{text}");
        }
    }
    // Without one, nothing is different.
    let plain = keys(0.0);
    let [auto, off] = ["s4", "s4 map=off"].map(|text| {
        let cache = filled(text, &plain);
        (bits(&cache.scores(0, 0, &query(1.0)).unwrap()), cache.stats().allocated_bytes)
    });
    assert!(auto == off);
}

#[test]
fn such_a_map_lives_as_long_as_its_pages() {
    let keys = keys(60.0);
    let read = |cache: &KvCache| bits(&cache.scores(0, 0, &query(0.5)).unwrap());
    for text in ["s4", "t4,t2 tier=130:t2", "n4 sliding-window=400", "s4 hot=0 sinks=0"] {
        let mut cache = filled(text, &keys);
        let mut step = KvCache::new(spec(text)).unwrap();
        for key in keys.chunks_exact(DIM) {
            step.append(0, key, key).unwrap();
        }
        assert!(read(&step) == read(&cache), "{text}: one by one");
        let mut saved = Vec::new();
        cache.snapshot(&mut saved).unwrap();
        let mut other = KvCache::from_snapshot(&mut &saved[..]).unwrap();
        assert!(read(&other) == read(&cache) && other.stats().mapped_heads == 1, "{text}: restored");
        for cache in [&mut cache, &mut other] {
            cache.truncate(500).unwrap();
            cache.append(0, &keys[500 * DIM..], &keys[500 * DIM..]).unwrap();
        }
        assert!(read(&other) == read(&cache), "{text}: both go on");
        cache.reset();
        assert_eq!(cache.stats().mapped_heads, 0);
        let error_of = cache.append(0, &keys[..32 * DIM], &keys[..32 * DIM]);
        assert!(error_of.is_ok() && cache.stats().mapped_heads == 0, "{text}: too few keys");
    }
}

/// A snapshot says whether keys may get a map.
#[test]
fn a_snapshot_without_maps_stays_without() {
    let keys = keys(60.0);
    let mut saved = Vec::new();
    filled("s4 map=off", &keys[..40 * DIM]).snapshot(&mut saved).unwrap();
    let mut cache = KvCache::from_snapshot(&mut &saved[..]).unwrap();
    assert_eq!(cache.spec().key_map, KeyMap::Off);
    cache.append(0, &keys[40 * DIM..], &keys[40 * DIM..]).unwrap();
    assert_eq!(cache.stats().mapped_heads, 0);
    assert!(KvCache::new(spec("s4")).unwrap().restore(&mut &saved[..]).is_err(), "another policy");
}
