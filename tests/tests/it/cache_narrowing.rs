//! Caches that stay exact up to a number of bytes (`narrow-at=`).

use crate::lives::{DIM, HEADS, append, base, snapshot, tokens};
use tqkv::cache::{Arithmetic, CacheSpec, CacheStats, Centring, KvCache, LayerKind};
use tqkv::unstable::cache::Door;
use tqkv_core::CodecId;
use tqkv_tests::inputs::Gaussian;

/// Bytes of 380 exact tokens or so. Codes have used them up after about 1,800 tokens at most.
const LIMIT: usize = 48 << 10;
const LEN: usize = 1900;

/// A cache of each kind.
fn specs() -> Vec<CacheSpec> {
    let base = || base().centring(Centring::Auto);
    let pairs = |text: &str| base().with(text).unwrap();
    vec![
        base(),
        pairs("s4"),
        pairs("t4,t2 hot=64"),
        pairs("i8,s3 sinks=0 hot=0"),
        pairs("q8_0,q4_0 centring=off"),
        pairs("m3,t2"),
        pairs("t2 map=pairs hot=100"),
        pairs("f16,s4"),
        pairs("s4 select=256"),
        pairs("s4 tier=90:s2"),
        pairs("n4 tier=300:n3 tier=600:n2"),
        pairs("s4 spill=400:/tmp"),
        pairs("s4 sliding-window=200"),
        CacheSpec::mla(1, HEADS, DIM, 16).hot(16).scale(0.2),
    ]
}

fn narrowed(spec: &CacheSpec) -> CacheSpec {
    spec.clone().narrow_at(LIMIT)
}

fn new(spec: CacheSpec) -> KvCache {
    KvCache::new(spec).unwrap()
}

/// Tokens of a cache of any kind.
fn rows(cache: &KvCache, from: usize, to: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut k, v) = tokens(1, from, to);
    if cache.spec().position_dim == 0 {
        return (k, v);
    }
    let positions = tokens(2, from, to).0;
    k = k.chunks(DIM).zip(positions.chunks(DIM)).flat_map(|(k, p)| [k, &p[..16]].concat()).collect();
    (k, Vec::new())
}

fn queries(cache: &KvCache, from: usize, to: usize) -> Vec<f32> {
    let each = HEADS * cache.spec().shape.head_dim;
    (from..to).flat_map(|i| Gaussian::new(9 << 32 | i as u64).vector(each)).collect()
}

/// Attends at the newest position, as a model does, so that maps learn.
fn answer(cache: &KvCache) -> Vec<u32> {
    let mut out = vec![0.0; HEADS * DIM];
    cache.attend(0, &queries(cache, cache.len() - 1, cache.len()), &mut out).unwrap();
    out.iter().map(|x| x.to_bits()).collect()
}

/// Appends tokens one by one with their queries.
fn step(cache: &mut KvCache, to: usize) -> Vec<f32> {
    let mut all = Vec::new();
    for i in cache.len()..to {
        let (k, v) = rows(cache, i, i + 1);
        cache.append(0, &k, &v).unwrap();
        all.extend(answer(cache).into_iter().map(f32::from_bits));
    }
    all
}

fn prefill(cache: &mut KvCache, to: usize) -> Vec<f32> {
    let from = cache.len();
    let ((k, v), q) = (rows(cache, from, to), queries(cache, from, to));
    let mut out = vec![0.0; (to - from) * HEADS * DIM];
    cache.attend_prefill(0, &q, &k, &v, &mut out).unwrap();
    out
}

fn coded(stats: &CacheStats) -> usize {
    stats.warm + stats.cold + stats.evicted
}

#[test]
fn a_cache_keeps_within_its_bytes_until_the_window_is_least() {
    for spec in specs() {
        for chunk in [1, 17, 300] {
            let limited = narrowed(&spec);
            let (mut cache, mut plain) = (new(limited.clone()), new(spec.clone()));
            let (mut exact, mut narrowed) = (0, 0);
            for to in (0..=LEN).step_by(chunk).skip(1) {
                for cache in [&mut cache, &mut plain] {
                    let _ = if chunk == 1 { step(cache, to) } else { prefill(cache, to) };
                }
                let (stats, least) = (cache.stats(), plain.stats());
                let name = format!("{spec}, {to} tokens in {chunk}s: {stats:?}");
                let window = limited.hot_at(0, to).unwrap();
                if window > spec.hot {
                    assert!(stats.allocated_bytes <= LIMIT, "{name}");
                    assert!(stats.hot < window + 4, "{name}, {window}");
                }
                if coded(&stats) == 0 {
                    exact = to;
                } else if window > spec.hot && spec.sliding_window.is_none() {
                    narrowed += 1;
                    assert!(stats.allocated_bytes > LIMIT * 2 / 3, "{name}");
                } else if window == spec.hot {
                    assert_eq!(coded(&stats), coded(&least), "{name}");
                    let more = 4 * 34 * 2 * DIM;
                    assert!(stats.allocated_bytes <= least.allocated_bytes + more, "{name}, {least:?}");
                }
            }
            let is_bound =
                chunk == 300 || spec.sliding_window.is_some() || (exact > 150 && narrowed * chunk > 150);
            assert!(is_bound, "{spec}: {exact} exact tokens, {narrowed} times narrowed");
        }
    }
}

/// Whatever is appended at once: the same snapshot, so the same codes, and the same answers.
#[test]
fn what_is_narrowed_depends_on_the_number_of_tokens_alone() {
    for spec in specs() {
        let spec = narrowed(&spec).arithmetic(Arithmetic::F32);
        let [mut single, mut whole, mut cut] = [(); 3].map(|()| new(spec.clone()));
        for to in [100, 390, 430, 900, LEN] {
            let (each, chunk) = (step(&mut single, to), prefill(&mut whole, to));
            // Chunks attend to all tokens, whatever single queries select.
            let far = each
                .iter()
                .zip(&chunk)
                .position(|(x, y)| (x - y).abs() > 1e-3)
                .filter(|_| spec.select.is_none());
            assert_eq!(far.map(|i| i / (HEADS * DIM)), None, "{spec}, {to} tokens, after the last chunk");
            while cut.len() < to {
                let to = to.min(cut.len() + 1 + cut.len() * 7 % 90);
                prefill(&mut cut, to);
            }
            let want = snapshot(&single);
            assert!(snapshot(&whole) == want && snapshot(&cut) == want, "{spec}, {to} tokens");
            let want = answer(&single);
            assert_eq!([answer(&whole), answer(&cut)], [want.clone(), want], "{spec}, {to} tokens");
        }
    }
}

/// Exact tokens give what a window of any length gives, and codes are those of the least window.
#[test]
fn results_are_exact_below_the_limit_and_plain_ones_far_beyond_it() {
    for spec in specs() {
        let hot = if spec.sliding_window.is_some() { 200 } else { 5000 };
        let [mut cache, mut exact] = [narrowed(&spec), spec.clone().hot(hot)].map(new);
        let [mut plain, mut f16] =
            [spec.clone(), spec.clone().codecs(CodecId::F16, CodecId::F16)].map(|spec| {
                let is_plain = spec.key != CodecId::F16;
                new(if is_plain { spec } else { CacheSpec { cold: Vec::new(), select: None, ..spec } })
            });
        let whole = cache.spec().hot_at(0, 1).unwrap().min(LEN);
        let whole = if spec.sliding_window.is_some() { 200 } else { whole.max(200) };
        let whole =
            (whole..LEN).take_while(|&len| cache.spec().hot_at(0, len).unwrap() >= len).last().unwrap();
        assert!(whole >= 200, "{spec}: {whole}");
        for to in [1, 60, 200, whole] {
            step(&mut cache, to);
            step(&mut exact, to);
            assert_eq!(answer(&cache), answer(&exact), "{spec}, {to} tokens");
            step(&mut f16, to);
            for (x, y) in answer(&cache).into_iter().zip(answer(&f16)) {
                let (x, y) = (f32::from_bits(x), f32::from_bits(y));
                assert!((x - y).abs() < 1e-3, "{spec}, {to} tokens: {x} {y}");
            }
        }
        if cache.spec().hot_at(0, LEN).unwrap() > spec.hot {
            assert!(
                ["sliding-window=", "spill=", "full"].iter().any(|word| spec.to_string().contains(word)),
                "{spec}"
            );
            continue;
        }
        step(&mut cache, LEN);
        step(&mut plain, LEN);
        assert_eq!(coded(&cache.stats()), coded(&plain.stats()), "{spec}");
        assert_eq!(answer(&cache), answer(&plain), "{spec}");
    }
}

/// Forks, rollbacks and snapshots at lengths before, at and after the first narrowing.
#[test]
fn copies_go_on_as_the_cache_does_and_rollbacks_keep_what_is_coded() {
    for spec in specs() {
        let spec = narrowed(&spec);
        for len in [200, 420, 1000] {
            let mut cache = new(spec.clone());
            step(&mut cache, len);
            let mut fork = cache.fork().unwrap();
            let before = answer(&cache);
            let mut restored = new(spec.clone());
            restored.restore(&mut &snapshot(&cache)[..]).unwrap();
            step(&mut fork, len + 300);
            step(&mut restored, len + 300);
            assert_eq!(answer(&cache), before, "{spec}");
            step(&mut cache, len + 300);
            let want = answer(&cache);
            assert_eq!([answer(&fork), answer(&restored)], [want.clone(), want], "{spec}");
            let (stats, sinks) = (cache.stats(), cache.stats().sinks);
            for cut in [150, 30, 3] {
                let to = cache.len() - cut;
                cache.truncate(to).unwrap();
                assert_eq!(coded(&cache.stats()), coded(&stats).min(to - sinks), "{spec}, {cut} fewer");
                assert!(cache.stats().allocated_bytes <= LIMIT.max(stats.allocated_bytes) + 4096, "{spec}");
            }
        }
    }
}

/// Layers with windows, other codecs and other shapes share the limit.
#[test]
fn the_limit_is_that_of_all_layers() {
    let specs = [
        "layers=3 heads=4 kv-heads=2 head-dim=64 s4 kinds=full/100/400",
        "layers=3 heads=4 kv-heads=2 head-dim=64 t4,t2 last:i8",
        "layers=3 heads=4 kv-heads=2 head-dim=64 s4 kinds=full/none/full hot=16 each:f16/s4/t2",
        "layers=3 heads=4 kv-heads=2 head-dim=64 s4 layer-shapes=2x64/1x128/4x32 tier=400:s2",
    ];
    for text in specs {
        let limit = 700 << 10;
        let plain: CacheSpec = text.parse().unwrap();
        let spec = plain.clone().narrow_at(limit);
        let mut cache = new(spec.clone());
        let (mut exact, mut narrowed) = (0, 0);
        for len in 1..3000 {
            for layer in (0..3).filter(|&layer| spec.kind(layer) != LayerKind::None) {
                let shape = spec.layer_shapes.get(layer).copied();
                let (heads, dim) = shape.map_or((2, 64), |shape| (shape.num_kv_heads, shape.head_dim));
                let row = Gaussian::new((layer << 32 | len) as u64).vector(heads * dim);
                cache.append(layer, &row, &row).unwrap();
            }
            let (window, stats) = (spec.hot_at(0, len).unwrap(), cache.stats());
            if window > spec.hot {
                assert!(stats.allocated_bytes <= limit, "{text}, {len} tokens: {stats:?}");
            }
            exact += usize::from(coded(&stats) == 0);
            narrowed += usize::from(coded(&stats) > 0 && window > spec.hot);
        }
        assert!(exact > 250 && narrowed > 250, "{text}: {exact} exact, {narrowed} narrowed");
    }
}

#[test]
fn what_cannot_be_narrowed_is_refused_by_name() {
    let refused = |spec: CacheSpec| KvCache::new(spec).unwrap_err().to_string();
    let text = refused(base().ring(300).narrow_at(LIMIT));
    assert!(text.contains("narrow-at= is not valid with ring="), "{text}");
    let text = tqkv::unstable::slots::check(&base().narrow_at(LIMIT)).unwrap_err().to_string();
    assert!(text.contains("narrow-at=48KiB is not valid in a cache of slots"), "{text}");
    assert_eq!(Door::Gpu.refused(&base().narrow_at(8 << 20)), ["narrow-at=8MiB"]);
    for (text, why) in [("narrow-at=8", "8MiB"), ("narrow-at=x", "SIZE is a number and a unit")] {
        let error = base().with(text).unwrap_err().to_string();
        assert!(error.contains("expected narrow-at=SIZE") && error.contains(why), "{error}");
    }
    let mut other = new(base().narrow_at(LIMIT));
    let mut cache = new(base());
    append(&mut cache, 1, 30);
    let error = other.restore(&mut &snapshot(&cache)[..]).unwrap_err().to_string();
    assert!(error.contains("narrow-at=none, this cache narrow-at=48KiB"), "{error}");
    append(&mut other, 1, 30);
    let error = cache.restore(&mut &snapshot(&other)[..]).unwrap_err().to_string();
    assert!(error.contains("narrow-at=48KiB, this cache narrow-at=none"), "{error}");
    assert_eq!(KvCache::from_snapshot(&mut &snapshot(&other)[..]).unwrap().spec().narrow_at, Some(LIMIT));
    assert_eq!(base().narrow_at(0).hot_at(0, 5000).unwrap(), base().hot);
}

/// Keys wait for a mean or a map beyond a limit that is smaller than they are, and only then is it exceeded.
#[test]
fn a_limit_below_the_keys_that_wait_is_exceeded_until_they_leave() {
    let mut waited = 0;
    for spec in specs() {
        for limit in [1 << 10, 8 << 10, 16 << 10] {
            let (mut cache, mut plain) = (new(spec.clone().narrow_at(limit)), new(spec.clone()));
            for len in 1..400 {
                step(&mut cache, len);
                step(&mut plain, len);
                let [bytes, most] = [&cache, &plain].map(|cache| cache.stats().allocated_bytes);
                // A window that narrows has a few spare rows.
                let most = limit.max(most + 4 * 34 * 2 * DIM);
                assert!(bytes <= most, "{} at {len}: {bytes}, {most} at most", cache.spec());
                waited += usize::from(bytes > limit && cache.stats().waiting_keys > 0);
            }
        }
    }
    assert!(waited > 0);
}
