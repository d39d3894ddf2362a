//! Caches of fixed memory: the bits of a window, the same bytes whatever happens, and what is refused.

use crate::lives::{DIM, HEADS, append, base, snapshot, tokens};
use tqkv::cache::{Budget, CacheSpec, Centring, Cold, Floats, KvCache, LayerKind};
use tqkv_core::CodecId;
use tqkv_tests::inputs::Gaussian;

const RING: usize = 300;

fn specs() -> Vec<CacheSpec> {
    let demote = |key, value| Cold::Demote { key, value };
    vec![
        base(),
        base().hot(0).sinks(0).centring(Centring::Off),
        base().hot(37).codecs(CodecId::S4, CodecId::T2S8),
        base().codecs(CodecId::T4, CodecId::T2),
        base().cold(90, demote(CodecId::N3, CodecId::N2)).cold(200, demote(CodecId::N2, CodecId::N2)),
        base().hot(0).cold(0, demote(CodecId::N3, CodecId::N2)),
        base().cold(128, Cold::Spill(std::env::temp_dir())),
    ]
}

fn new(spec: CacheSpec) -> KvCache {
    KvCache::new(spec).unwrap()
}

fn answer(cache: &KvCache) -> Vec<u32> {
    let mut out = vec![0.0; HEADS * DIM];
    cache.attend(0, &Gaussian::new(9).vector(HEADS * DIM), &mut out).unwrap();
    out.iter().map(|x| x.to_bits()).collect()
}

fn bytes(cache: &KvCache) -> usize {
    cache.stats().allocated_bytes
}

/// A rollback, a chunk and single tokens in turn, over many times the length of the ring.
fn live(cache: &mut KvCache, mut seen: impl FnMut(&KvCache)) {
    for round in 0..60 {
        let len = cache.len();
        match round % 6 {
            0 => append(cache, 1, len + 1 + round * 7 % 290),
            1 => {
                let (k, v) = tokens(1, len, len + 150);
                let q = Gaussian::new(7).vector(150 * HEADS * DIM);
                cache.attend_prefill(0, &q, &k, &v, &mut vec![0.0; q.len()]).unwrap();
            }
            2 => cache.truncate(len - len.min(round * 5 % 130)).unwrap(),
            _ => (0..round % 40 + 1).for_each(|i| append(cache, 1, len + i + 1)),
        }
        seen(cache);
    }
}

#[test]
fn a_ring_has_the_bits_of_a_window() {
    for spec in specs() {
        let mut want = Vec::new();
        live(&mut new(spec.clone().sliding_window(RING)), |cache| want.push(answer(cache)));
        let mut want = want.into_iter();
        live(&mut new(spec.ring(RING)), |cache| {
            assert_eq!(Some(answer(cache)), want.next(), "{:?}", cache.spec())
        });
    }
}

/// Pages of a spill file are not of the ring's memory.
#[test]
fn a_ring_keeps_its_bytes() {
    for spec in specs().into_iter().filter(|spec| !matches!(spec.cold.last(), Some((_, Cold::Spill(_))))) {
        let mut cache = new(spec.ring(RING));
        let made = bytes(&cache);
        live(&mut cache, |cache| assert_eq!(bytes(cache), made, "{:?}", cache.spec()));
        let (k, mut v) = tokens(1, 0, 300);
        v[299 * DIM] = f32::NAN;
        cache.append(0, &k, &v).unwrap_err();
        assert_eq!(bytes(&cache), made, "a refused chunk takes nothing");
        let mut copy = new(cache.spec().clone());
        copy.restore(&mut &snapshot(&cache)[..]).unwrap();
        assert_eq!((bytes(&copy), answer(&copy)), (made, answer(&cache)), "a snapshot");
        let mut fork = cache.fork().unwrap();
        let before = answer(&cache);
        for _ in 0..1200 {
            let len = fork.len();
            append(&mut fork, 2, len + 1);
        }
        assert_eq!((bytes(&fork), bytes(&cache), answer(&cache)), (made, made, before), "a fork");
        cache.reset();
        assert_eq!(bytes(&cache), made, "no tokens");
    }
}

/// All of a ring counts against its budget from the start. Nothing is refused later.
#[test]
fn a_ring_fits_its_budget_or_is_not_made() {
    for spec in specs().into_iter().filter(|spec| !matches!(spec.cold.last(), Some((_, Cold::Spill(_))))) {
        let spec = spec.ring(RING);
        let made = bytes(&new(spec.clone()));
        let error = KvCache::within(spec.clone(), &Budget::new(made - 1)).unwrap_err().to_string();
        assert!(error.contains("bytes"), "{error}");
        let budget = Budget::new(made);
        let mut cache = KvCache::within(spec, &budget).unwrap();
        assert_eq!(budget.used(), made);
        for i in 0..1500 {
            append(&mut cache, 1, i + 1);
        }
        assert_eq!(budget.used(), made);
        drop(cache);
        assert_eq!(budget.used(), 0);
    }
}

/// A fork shares pages. The next append copies the last one, and a rollback leaves them to the other
/// cache. The budget holds all the same.
#[test]
fn a_fork_and_its_ring_keep_to_their_budget() {
    let spec = base().hot(0).sinks(0).centring(Centring::Off).ring(100);
    let made = bytes(&new(spec.clone()));
    let mut made_forks = 0;
    for limit in (made..3 * made).step_by(64) {
        let budget = Budget::new(limit);
        let mut cache = KvCache::within(spec.clone(), &budget).unwrap();
        append(&mut cache, 1, 80);
        let Ok(mut fork) = cache.fork() else { continue };
        made_forks += 1;
        let (k, v) = tokens(1, 80, 81);
        for cache in [&mut cache, &mut fork] {
            let before = answer(cache);
            if cache.append(0, &k, &v).is_err() {
                assert_eq!(answer(cache), before);
            }
            assert!(budget.used() <= limit, "{} of {limit} bytes", budget.used());
        }
        for len in [40, 0] {
            let _ = cache.truncate(len);
            assert!(budget.used() <= limit, "{} of {limit} bytes", budget.used());
        }
    }
    assert!(made_forks > 100, "{made_forks} limits have room for a fork");
}

/// A query finds the value of its key while the ring holds it.
#[test]
fn a_needle_is_found_inside_of_the_ring_only() {
    let spec = CacheSpec::new(1, 1, 1, DIM).sinks(4).hot(16).scale(1.0);
    for codec in [CodecId::S4, CodecId::T4, CodecId::I8] {
        let mut cache = new(spec.clone().codecs(codec, codec).ring(RING));
        let mut gaussian = Gaussian::new(3);
        let needle: Vec<f32> = gaussian.vector(DIM).iter().map(|x| 2.0 * x).collect();
        let at = 1000;
        for i in 0..at + 2 * RING {
            let (k, v) = (gaussian.vector(DIM), vec![if i == at { 1.0 } else { 0.0 }; DIM]);
            cache.append(0, if i == at { &needle } else { &k }, &v).unwrap();
            let mut out = vec![0.0; DIM];
            cache.attend(0, &needle, &mut out).unwrap();
            let is_held = (at..at + RING).contains(&i);
            assert!(if is_held { out[0] > 0.9 } else { out[0].abs() < 1e-6 }, "{} after token {i}", out[0]);
        }
    }
}

#[test]
fn latent_vectors_have_a_ring_too() {
    let spec = CacheSpec::mla(1, 4, DIM, 16).codecs(CodecId::S4, CodecId::S4).hot(16).scale(0.1);
    let (mut window, mut ring) = (new(spec.clone().sliding_window(RING)), new(spec.ring(RING)));
    let made = bytes(&ring);
    let mut gaussian = Gaussian::new(5);
    for i in 0..1500 {
        let (k, q) = (gaussian.vector(DIM + 16), gaussian.vector(4 * (DIM + 16)));
        let answers = [&mut window, &mut ring].map(|cache| {
            cache.append(0, &k, Floats::NONE).unwrap();
            let mut out = vec![0.0; 4 * DIM];
            cache.attend(0, &q, &mut out).unwrap();
            out
        });
        assert_eq!(answers[0], answers[1], "after token {i}");
        assert_eq!(bytes(&ring), made);
    }
}

/// A layer whose own window is shorter holds that window.
#[test]
fn layers_with_windows_are_rings_of_their_own() {
    let kinds = vec![LayerKind::Full, LayerKind::Sliding(64), LayerKind::None];
    let spec = CacheSpec::new(3, HEADS, 1, DIM).hot(16).kinds(kinds);
    let (mut window, mut ring) = (new(spec.clone()), new(spec.ring(1024)));
    let made = bytes(&ring);
    for i in 0..1000 {
        let (k, v) = tokens(1, i, i + 1);
        for layer in 0..2 {
            ring.append(layer, &k, &v).unwrap();
            window.append(layer, &k, &v).unwrap();
        }
    }
    assert_eq!(bytes(&ring), made);
    for layer in 0..2 {
        let (mut a, mut b) = (vec![0.0; HEADS * DIM], vec![0.0; HEADS * DIM]);
        let q = Gaussian::new(9).vector(HEADS * DIM);
        ring.attend(layer, &q, &mut a).unwrap();
        window.attend(layer, &q, &mut b).unwrap();
        assert_eq!(a, b);
    }
}

/// A snapshot cannot ask for memory that its bytes do not justify. A program that wants a large ring
/// makes it.
#[test]
fn a_snapshot_alone_makes_no_vast_ring() {
    let bytes = |ring| snapshot(&new(base().ring(ring)));
    let small = bytes(1 << 12);
    KvCache::from_snapshot(&mut &small[..]).unwrap();
    let end = 20 + u64::from_le_bytes(*small[12..].first_chunk().unwrap()) as usize;
    let text = std::str::from_utf8(&small[20..end]).unwrap();
    for ring in [1_u64 << 24, 1 << 39] {
        let text = text.replace(" ring=4096", &format!(" ring={ring}"));
        let (length, crc) = ((text.len() as u64).to_le_bytes(), crc32fast::hash(text.as_bytes()));
        let large = [&small[..12], &length, text.as_bytes(), &crc.to_le_bytes(), &small[end + 4..]].concat();
        let error = KvCache::from_snapshot(&mut &large[..]).unwrap_err().to_string();
        assert!(error.contains("of a ring of"), "{error}");
    }
}

#[test]
fn a_ring_that_cannot_be_is_refused() {
    let refused = |spec: CacheSpec| KvCache::new(spec).unwrap_err().to_string();
    assert!(refused(base().ring(8)).contains("a ring of 8 tokens: expected 16 (the hot window)"));
    assert!(refused(base().hot(0).ring(0)).contains("expected 1"));
    assert!(refused(base().ring(usize::MAX)).contains("a ring of"));
    assert!(refused(base().ring(1 << 39)).contains("bytes"));
    let maps: tqkv::cache::Policy = "map=pairs".parse().unwrap();
    assert!(refused(maps.apply(base().ring(100))).contains("map=pairs is not valid with ring="));
}
