//! Attention to chosen tokens, against f64 attention over the same tokens as the cache holds them.

use crate::lives::{DIM, append, base, filled};
use tqkv::Level;
use tqkv::cache::{Arithmetic, Budget, CacheSpec, Centring, Cold, KvCache};
use tqkv_core::CodecId;
use tqkv_tests::inputs::Gaussian;
use tqkv_tests::oracle;

const LEN: usize = 700;

/// Lists of every kind: one token, some in each page, consecutive ones across pages, one per run, and the newest.
fn lists(len: usize) -> Vec<Vec<u32>> {
    let all = 0..len as u32;
    let mut gaussian = Gaussian::new(3);
    let random = all.clone().filter(|_| gaussian.below(9) == 0).collect();
    let mut some = vec![vec![3], vec![len as u32 - 1], vec![200], random];
    some.push(all.clone().filter(|token| (230..300).contains(token) || *token == 420).collect());
    some.push(all.clone().step_by(32).collect());
    // Parts go over the runs between these.
    some.push(all.clone().step_by(64).collect());
    some.push(all.clone().filter(|token| token % 128 < 40).collect());
    some.push(all.clone().skip(len - 90).collect());
    // The first, a late and the last token of the first runs alone, and one run of many.
    some.extend([vec![0], vec![40], vec![129], (32..64).collect(), all.collect()]);
    some
}

fn specs() -> Vec<(&'static str, CacheSpec)> {
    let pairs = |key, value| base().codecs(key, value).centring(Centring::Auto);
    vec![
        ("n4", base()),
        ("s4", pairs(CodecId::S4, CodecId::S4)),
        ("t4,t2", pairs(CodecId::T4, CodecId::T2)),
        ("i8,s3", pairs(CodecId::I8, CodecId::S3)),
        ("f16", pairs(CodecId::F16, CodecId::F16)),
        ("q8_0,q4_0", pairs(CodecId::Q8_0, CodecId::Q4_0)),
        ("soft cap", base().soft_cap(3.0)),
        ("no sinks", base().sinks(0).hot(3)),
        ("tiers", base().cold(200, Cold::Demote { key: CodecId::N4, value: CodecId::N2 })),
        ("file", base().cold(200, Cold::Spill(std::env::temp_dir()))),
        ("window", base().sliding_window(400)),
        // More than a run of sinks, more than two, and more than a page.
        ("33 sinks", base().sinks(33)),
        ("64 sinks", base().sinks(64)),
        ("130 sinks", base().sinks(130)),
        ("window after 70 sinks", base().sinks(70).sliding_window(400)),
    ]
}

/// The tokens of a list that the newest position sees.
fn seen(spec: &CacheSpec, len: usize, list: &[u32]) -> Vec<u32> {
    let first = spec.sliding_window.map_or(0, |window| len.saturating_sub(window));
    let sees = |token: usize| token < spec.sinks || token >= first;
    list.iter().copied().filter(|&token| sees(token as usize)).collect()
}

fn attended(cache: &KvCache, q: &[f32], list: &[u32]) -> Vec<f32> {
    let mut out = vec![f32::NAN; q.len()];
    cache.attend_selected(0, q, &[list], &mut out).unwrap();
    out
}

/// Softmax attention over the tokens of a list, as the cache holds them.
fn exact(cache: &KvCache, q: &[f32], list: &[u32]) -> Vec<f32> {
    let rows = |side: &dyn Fn(usize) -> Vec<f32>| list.iter().map(|&token| side(token as usize)).collect();
    let keys: Vec<Vec<f32>> = rows(&|token| cache.keys(0, 0, token..token + 1).unwrap());
    let values: Vec<Vec<f32>> = rows(&|token| cache.values(0, 0, token..token + 1).unwrap());
    let mut out = vec![0.0; DIM];
    let logits: Vec<f64> = keys
        .iter()
        .map(|key| {
            let logit = oracle::dot(q, key) / (DIM as f64).sqrt();
            cache.spec().soft_cap.map_or(logit, |cap| f64::from(cap) * (logit / f64::from(cap)).tanh())
        })
        .collect();
    let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
    for (logit, value) in logits.iter().zip(&values) {
        out.iter_mut().zip(value).for_each(|(out, x)| *out += (logit.exp() / sum) as f32 * x);
    }
    out
}

#[test]
fn chosen_tokens_alone_are_attended_to() {
    for (name, spec) in specs() {
        for arithmetic in [Arithmetic::F32, Arithmetic::Int8] {
            let cache = filled(spec.clone().arithmetic(arithmetic), LEN);
            let q = Gaussian::new(5).vector(2 * DIM);
            for list in lists(LEN) {
                let list = seen(&spec, LEN, &list);
                if list.is_empty() {
                    continue;
                }
                let got = attended(&cache, &q, &list);
                for (q, got) in q.chunks_exact(DIM).zip(got.chunks_exact(DIM)) {
                    let error = oracle::relative_mse(&exact(&cache, q, &list), got);
                    let most = if arithmetic == Arithmetic::F32 { 1e-9 } else { 1e-3 };
                    assert!(error < most, "{name}, {arithmetic:?}, {} tokens: {error}", list.len());
                }
            }
        }
    }
}

/// Attention to one token is its value, wherever it stands: in a page that is not full, or in the window after it.
#[test]
fn each_token_alone_is_its_value() {
    for (name, spec) in specs() {
        let q = Gaussian::new(5).vector(2 * DIM);
        for len in [133, 260, 301] {
            let cache = filled(spec.clone(), len);
            for token in seen(&spec, len, &Vec::from_iter(0..len as u32)) {
                let value = cache.values(0, 0, token as usize..token as usize + 1).unwrap();
                let error = oracle::relative_mse(&value, &attended(&cache, &q, &[token])[..DIM]);
                assert!(error < 1e-9, "{name}, token {token} of {len}: {error}");
            }
        }
    }
}

/// With every token chosen the bits are those of full attention, at every length and for a group of more heads than
/// a kernel takes.
#[test]
fn all_tokens_are_full_attention() {
    for (name, spec) in specs() {
        let mut cache = KvCache::new(spec.clone()).unwrap();
        for len in [1, 4, 30, 90, 133, 260, 301, LEN, 2300] {
            append(&mut cache, 1, len);
            let q = Gaussian::new(6).vector(2 * DIM);
            let mut full = vec![0.0; q.len()];
            cache.attend(0, &q, &mut full).unwrap();
            let all: Vec<u32> = (0..len as u32).collect();
            assert_eq!(attended(&cache, &q, &seen(&spec, len, &all)), full, "{name}, {len} tokens");
        }
    }
    let mut cache = KvCache::new(CacheSpec::new(1, 18, 2, DIM)).unwrap();
    let mut gaussian = Gaussian::new(7);
    cache.append(0, &gaussian.vector(500 * 2 * DIM), &gaussian.vector(500 * 2 * DIM)).unwrap();
    let q = gaussian.vector(18 * DIM);
    let (mut full, mut chosen) = (vec![0.0; q.len()], vec![0.0; q.len()]);
    cache.attend(0, &q, &mut full).unwrap();
    let all: Vec<u32> = (0..500).collect();
    cache.attend_selected(0, &q, &[&all, &all], &mut chosen).unwrap();
    assert_eq!(chosen, full);
    // Each KV head has a list of its own.
    cache.attend_selected(0, &q, &[&all, &all[7..90]], &mut chosen).unwrap();
    assert_eq!(chosen[..9 * DIM], full[..9 * DIM]);
    assert_ne!(chosen[9 * DIM..], full[9 * DIM..]);
}

#[test]
fn latent_vectors_are_chosen_too() {
    const POSITION: usize = 16;
    let spec = CacheSpec::mla(1, 4, DIM, POSITION).hot(16).scale(0.15);
    let mut cache = KvCache::new(spec).unwrap();
    let mut gaussian = Gaussian::new(8);
    let rows = gaussian.vector(LEN * (DIM + POSITION));
    cache.append(0, &rows, tqkv::cache::Floats::NONE).unwrap();
    let q = gaussian.vector(4 * (DIM + POSITION));
    let (mut full, mut out) = (vec![0.0; 4 * DIM], vec![0.0; 4 * DIM]);
    cache.attend(0, &q, &mut full).unwrap();
    let all: Vec<u32> = (0..LEN as u32).collect();
    cache.attend_selected(0, &q, &[&all], &mut out).unwrap();
    assert_eq!(out, full);
    for list in lists(LEN) {
        cache.attend_selected(0, &q, &[&list], &mut out).unwrap();
        for (q, got) in q.chunks_exact(DIM + POSITION).zip(out.chunks_exact(DIM)) {
            let (mut want, mut sum) = ([0.0; DIM], 0.0);
            for token in list.iter().map(|&token| token as usize) {
                let latent = cache.keys(0, 0, token..token + 1).unwrap();
                let row = &rows[token * (DIM + POSITION)..(token + 1) * (DIM + POSITION)];
                let position: Vec<f32> =
                    row[DIM..].iter().map(|&x| half::f16::from_f32(x).to_f32()).collect();
                let logit = oracle::dot(&q[..DIM], &latent) + oracle::dot(&q[DIM..], &position);
                let weight = (0.15 * logit).exp();
                sum += weight;
                want.iter_mut().zip(&latent).for_each(|(want, x)| *want += weight * f64::from(*x));
            }
            for (got, want) in got.iter().zip(want) {
                assert!((f64::from(*got) - want / sum).abs() < 1e-4, "{} tokens", list.len());
            }
        }
    }
}

#[test]
fn every_level_and_a_file_have_the_same_bits() {
    let q = Gaussian::new(5).vector(2 * DIM);
    let all_of = |spec: CacheSpec| {
        let cache = filled(spec, LEN);
        lists(LEN).iter().flat_map(|list| attended(&cache, &q, list)).collect::<Vec<_>>()
    };
    let spec = || base().codecs(CodecId::S4, CodecId::T2);
    let want = all_of(spec().level(Level::Portable));
    for level in Level::available() {
        assert_eq!(all_of(spec().level(level)), want, "{level:?}");
    }
    assert_eq!(all_of(spec().cold(200, Cold::Spill(std::env::temp_dir()))), want);
}

#[test]
fn wrong_lists_are_refused() {
    let cache = filled(base().sliding_window(100), 400);
    let q = Gaussian::new(5).vector(2 * DIM);
    let mut out = vec![7.0; q.len()];
    let mut refused = |lists: &[&[u32]]| {
        let error = cache.attend_selected(0, &q, lists, &mut out).unwrap_err().to_string();
        assert!(out.iter().all(|x| *x == 7.0), "a refused call changes nothing");
        error
    };
    let unordered = refused(&[&[350, 320]]);
    assert!(unordered.ends_with("token 320 after 350 is not valid: expected ascending tokens, each once"));
    assert!(refused(&[&[350, 350]]).contains("token 350 after 350"));
    let unseen = refused(&[&[2, 299]]);
    assert!(
        unseen.ends_with(
            "layer 0, KV head 0: token 299 is not valid: expected those that the newest position sees, 0 to 3, or 300 to 399"
        ),
        "{unseen}"
    );
    assert!(refused(&[&[400]]).contains("token 400 is not valid"));
    assert!(refused(&[]).contains("0 lists for layer 0 are not valid: expected 1, one per KV head"));
    cache.attend_selected(0, &q, &[&[]], &mut out).unwrap();
    assert!(out.iter().all(|x| *x == 0.0), "no token has no result");
}

/// Tokens of which a few runs have keys near one direction, and that direction.
fn with_needles(len: usize, needles: &[usize]) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let mut gaussian = Gaussian::new(9);
    let direction = gaussian.vector(DIM);
    let (mut keys, values) = (gaussian.vector(len * DIM), gaussian.vector(len * DIM));
    for &needle in needles {
        for x in 0..8 * DIM {
            keys[needle * DIM + x] += 1.5 * direction[x % DIM];
        }
    }
    (keys, values, direction)
}

const NEEDLES: [usize; 3] = [204, 660, 1_508];

fn with_selection(spec: CacheSpec) -> KvCache {
    let (keys, values, _) = with_needles(2000, &NEEDLES);
    let mut cache = KvCache::new(spec.select(512)).unwrap();
    for from in (0..2000).step_by(250) {
        let at = from * DIM..(from + 250) * DIM;
        cache.append(0, &keys[at.clone()], &values[at]).unwrap();
    }
    cache
}

fn answer(cache: &KvCache) -> Vec<f32> {
    let direction = with_needles(0, &[]).2;
    let mut out = vec![0.0; 2 * DIM];
    cache.attend(0, [&direction[..], &direction].concat().as_slice(), &mut out).unwrap();
    out
}

/// The tokens that matter are found wherever they are, with every kind of keys, and others are left out.
#[test]
fn a_selection_finds_the_tokens_that_matter() {
    let wide = CacheSpec::new(1, 2, 1, DIM).codecs(CodecId::S4, CodecId::S4);
    let mut specs = specs();
    specs.retain(|(name, spec)| spec.sliding_window.is_none() && *name != "soft cap");
    specs.push(("map", wide.clone().codecs(CodecId::M3, CodecId::T2)));
    specs.push(("f32", wide.arithmetic(Arithmetic::F32)));
    for (name, spec) in specs {
        let (cache, full) = (with_selection(spec.clone()), {
            let mut full = with_selection(spec);
            let mut bytes = Vec::new();
            full.snapshot(&mut bytes).unwrap();
            let whole = CacheSpec { select: None, ..full.spec().clone() };
            full = KvCache::new(whole).unwrap();
            full.restore(&mut &bytes[..]).unwrap();
            full
        });
        let (got, want) = (answer(&cache), answer(&full));
        let error = oracle::relative_mse(&want, &got);
        assert!(error < 0.02, "{name}: {error}");
        assert_ne!(got, want, "{name}: something is left out");
    }
}

#[test]
fn a_selection_of_all_tokens_changes_nothing() {
    let (select, full) = (filled(base().select(700), 700), filled(base(), 700));
    assert_eq!(answer(&select), answer(&full));
}

/// The means follow the pages through forks, cuts, tiers, files and snapshots.
#[test]
fn a_selection_survives_what_a_cache_does() {
    let cold = |key, value| base().cold(300, Cold::Demote { key, value });
    let specs = [
        base(),
        cold(CodecId::N3, CodecId::N2).cold(900, Cold::Demote { key: CodecId::N2, value: CodecId::N2 }),
        cold(CodecId::N4, CodecId::N2),
        base().cold(300, Cold::Spill(std::env::temp_dir())),
    ];
    for spec in specs {
        let mut cache = with_selection(spec);
        let restored = |cache: &KvCache| {
            let mut bytes = Vec::new();
            cache.snapshot(&mut bytes).unwrap();
            let mut other = KvCache::new(cache.spec().clone()).unwrap();
            other.restore(&mut &bytes[..]).unwrap();
            answer(&other)
        };
        let before = answer(&cache);
        assert_eq!(restored(&cache), before);
        let fork = cache.fork().unwrap();
        cache.truncate(700).unwrap();
        let (keys, values, _) = with_needles(600, &[40]);
        cache.append(0, &keys, &values).unwrap();
        assert_eq!(restored(&cache), answer(&cache), "after a cut");
        assert_ne!(answer(&cache), before);
        assert_eq!(answer(&fork), before, "the fork has what was cut");
        cache.reset();
        assert_eq!(
            cache.stats().allocated_bytes,
            KvCache::new(cache.spec().clone()).unwrap().stats().allocated_bytes
        );
    }
    let portable = answer(&with_selection(base().level(Level::Portable)));
    for level in Level::available() {
        assert_eq!(answer(&with_selection(base().level(level))), portable, "{level:?}");
    }
}

#[test]
fn the_means_of_a_selection_are_counted() {
    let budget = Budget::unlimited();
    let (keys, values, _) = with_needles(1500, &[]);
    let made = |spec: CacheSpec| {
        let mut cache = KvCache::within(spec, &budget).unwrap();
        cache.append(0, &keys, &values).unwrap();
        cache
    };
    let (full, cache) = (made(base()), made(base().select(512)));
    let bytes = |cache: &KvCache| cache.stats().allocated_bytes;
    assert_eq!(budget.used(), bytes(&full) + bytes(&cache));
    let means = cache.spec().selection_bytes(0).unwrap() * (1500 / 128);
    let more = bytes(&cache) - bytes(&full);
    assert!((means..means + 2048).contains(&more), "{more} bytes for {means}");
    let fork = cache.fork().unwrap();
    assert!(fork.stats().shared_bytes > means);
    drop((full, cache, fork));
    assert_eq!(budget.used(), 0);
}

/// Latent vectors have means of both parts, because either alone may promise a token.
#[test]
fn a_selection_of_latent_vectors_heeds_their_positional_parts() {
    const POSITION: usize = 16;
    const ROW: usize = DIM + POSITION;
    let mut gaussian = Gaussian::new(10);
    let (mut rows, direction) = (gaussian.vector(2000 * ROW), gaussian.vector(ROW));
    // One run is like the query in its latent part, another in the positional part.
    for (token, part) in [(404, 0..DIM), (1_210, DIM..ROW)] {
        for row in rows[token * ROW..(token + 8) * ROW].chunks_exact_mut(ROW) {
            row[part.clone()].iter_mut().zip(&direction[part.clone()]).for_each(|(x, y)| *x = 2.0 * y);
        }
    }
    // The positional part has fewer coordinates, so that its query is longer.
    let query: Vec<f32> =
        direction.iter().enumerate().map(|(i, x)| if i < DIM { *x } else { 4.0 * x }).collect();
    let made = |spec: CacheSpec, budget: &Budget| {
        let mut cache = KvCache::within(spec.hot(16).scale(0.15), budget).unwrap();
        cache.append(0, &rows, tqkv::cache::Floats::NONE).unwrap();
        cache
    };
    let answer = |cache: &KvCache, q: &[f32]| {
        let mut out = vec![0.0; 20 * DIM];
        cache.attend(0, q, &mut out).unwrap();
        out
    };
    // More query heads than a kernel takes.
    let q = query.repeat(20);
    let budget = Budget::unlimited();
    let spec = CacheSpec::mla(1, 20, DIM, POSITION);
    let (full, cache) = (made(spec.clone(), &budget), made(spec.clone().select(512), &budget));
    let (want, got) = (answer(&full, &q), answer(&cache, &q));
    let error = oracle::relative_mse(&want, &got);
    assert!(error < 0.01 && got != want, "{error}");
    let bytes = |cache: &KvCache| cache.stats().allocated_bytes;
    assert_eq!(budget.used(), bytes(&full) + bytes(&cache));
    let means = cache.spec().selection_bytes(0).unwrap() * (2000 / 128);
    assert!((means..means + 4096).contains(&(bytes(&cache) - bytes(&full))));
    let mut snapshot = Vec::new();
    cache.snapshot(&mut snapshot).unwrap();
    let mut restored = KvCache::new(cache.spec().clone()).unwrap();
    restored.restore(&mut &snapshot[..]).unwrap();
    let mut fork = cache.fork().unwrap();
    fork.truncate(1_900).unwrap();
    assert_eq!((answer(&restored, &q), answer(&cache, &q)), (got.clone(), got.clone()));
    for level in Level::available() {
        assert_eq!(
            answer(&made(spec.clone().select(512).level(level), &Budget::unlimited()), &q),
            got,
            "{level:?}"
        );
    }
}

#[test]
fn selections_that_cannot_be_are_refused() {
    let refused = |spec: CacheSpec| KvCache::new(spec).unwrap_err().to_string();
    assert!(refused(base().select(255)).contains("select=255 is not valid: expected 256 to "));
    assert!(refused(base().select(512).ring(1000)).contains("select= is not valid with ring="));
    let windows = base().select(512).sliding_window(300);
    assert!(refused(windows).contains("select= is not valid with sliding-window="));
    assert_eq!(base().with("select=2048").unwrap().select, Some(2048));
}
