//! Calls of a program that uses only this crate: names, presets, several caches at once, a chunk of one
//! token.

use tqkv::attention::AttentionCache;
use tqkv::cache::{CacheSpec, Cold, KvCache, PRESETS};
use tqkv::error::CacheError;
use tqkv::{CodecId, Effort, KvError, KvShape, Options, ScaleMode};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 64;

fn values(n: usize, salt: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + salt * 101) as f32 * 0.37).sin()).collect()
}

fn filled(spec: CacheSpec, tokens: usize) -> KvCache {
    let mut cache = KvCache::new(spec).unwrap();
    let n = tokens * KV_HEADS * DIM;
    cache.append(0, &values(n, tokens), &values(n, tokens + 1)).unwrap();
    cache
}

fn spec() -> CacheSpec {
    CacheSpec::new(1, HEADS, KV_HEADS, DIM)
}

#[test]
fn a_preset_sets_the_codecs_and_its_options_alone() {
    let options = Options::DEFAULT.scale_mode(ScaleMode::Mmse).effort(Effort::Best);
    let base =
        spec().options(options).hot(7).cold(300, Cold::Demote { key: CodecId::S2, value: CodecId::S2 });
    for preset in PRESETS {
        for name in [preset.name.to_owned(), preset.name.to_uppercase()] {
            let (key, value) = preset.codecs;
            let made = base.clone().with(&name).unwrap();
            let plain = preset.options.is_empty();
            assert_eq!(made == base.clone().codecs(key, value), plain, "{name}");
        }
        // A cache accepts every preset, and no codec has the same name.
        filled(spec().with(preset.name).unwrap(), 200);
        assert!(preset.name.parse::<CodecId>().is_err());
    }
    assert_eq!(spec().with("balanced"), Ok(spec()), "it is the default");
}

#[test]
fn an_unknown_preset_names_what_is_accepted() {
    let error = spec().with("vast").unwrap_err();
    assert!(matches!(error, CacheError::BadSpec(_)));
    let error = error.to_string();
    let names = PRESETS.iter().all(|preset| error.contains(preset.name));
    assert!(error.contains("'vast' is neither a preset") && names, "{error}");
}

#[test]
fn several_caches_attend_as_each_alone() {
    let lengths = [1, 900, 5, 260, 64, 3000];
    let caches: Vec<KvCache> = lengths.iter().map(|&tokens| filled(spec(), tokens)).collect();
    for order in [&[0, 1, 2, 3, 4, 5][..], &[5, 5, 1], &[2], &[]] {
        let many: Vec<&KvCache> = order.iter().map(|&i| &caches[i]).collect();
        let q = values(order.len() * HEADS * DIM, 9);
        let mut out = vec![f32::NAN; q.len()];
        KvCache::attend_many(&many, 0, &q, &mut out).unwrap();
        for (cache, (q, out)) in many.iter().zip(q.chunks(HEADS * DIM).zip(out.chunks(HEADS * DIM))) {
            let mut alone = vec![0.0; HEADS * DIM];
            cache.attend(0, q, &mut alone).unwrap();
            assert_eq!(alone, out, "of {} tokens", cache.len());
        }
    }
}

#[test]
fn several_caches_refuse_by_index_and_write_nothing() {
    let (full, empty) = (filled(spec(), 40), KvCache::new(spec()).unwrap());
    let other = KvCache::new(CacheSpec::new(1, HEADS, KV_HEADS, 2 * DIM)).unwrap();
    let (q, mut out) = (values(2 * HEADS * DIM, 9), vec![7.0; 2 * HEADS * DIM]);
    let of = |index, error| Err(CacheError::Of { index, error: Box::new(error) });
    let mut attend =
        |caches: &[&KvCache], layer, n: usize| KvCache::attend_many(caches, layer, &q[..n], &mut out[..n]);
    let n = q.len();
    assert_eq!(attend(&[&full, &empty], 0, n), of(1, CacheError::Empty { layer: 0 }));
    let error = attend(&[&full, &other], 0, n).unwrap_err().to_string();
    assert!(error.starts_with("cache 1: ") && error.contains("head_dim 128"), "{error}");
    let layer = KvError::Layer { layer: 1, num_layers: 1 };
    assert_eq!(attend(&[&full, &full], 1, n), Err(layer.into()));
    let length = KvError::Length { what: "q", got: n - 1, expected: n };
    assert_eq!(attend(&[&full, &full], 0, n - 1), Err(length.into()));
    let length = KvError::Length { what: "q", got: n, expected: 0 };
    assert_eq!(attend(&[], 0, n), Err(length.into()));
    assert!(out.iter().all(|x| *x == 7.0));
}

/// Checks the table of `KvCache::attend_prefill`.
#[test]
fn a_chunk_of_one_token_is_append_and_attend_to_the_bit() {
    let [mut one, mut two, mut three] = [(); 3].map(|()| filled(spec().hot(16), 500));
    for step in 0..200 {
        let (k, v, q) =
            (values(KV_HEADS * DIM, step), values(KV_HEADS * DIM, step + 1), values(HEADS * DIM, step));
        let mut out = [(); 3].map(|()| vec![0.0; HEADS * DIM]);
        one.append(0, &k, &v).unwrap();
        one.attend(0, &q, &mut out[0]).unwrap();
        two.attend_prefill(0, &q, &k, &v, &mut out[1]).unwrap();
        three.attend_chunk(0, &q, &k, &v, &mut out[2]).unwrap();
        assert_eq!(out[0], out[1], "step {step}");
        assert_eq!(out[0], out[2], "step {step}");
    }
    assert_eq!(one.shape(), KvShape::new(1, HEADS, KV_HEADS, DIM));
}

/// The token limit applies to every way of appending, and a refused call changes nothing.
#[test]
fn a_cache_takes_no_more_tokens_than_its_spec_allows() {
    let limited = || spec().hot(4).with("s4 max-tokens=100").unwrap();
    assert_eq!(limited().max_tokens, Some(100));
    let mut cache = filled(limited(), 98);
    let before = cache.stats();
    let too_long = CacheError::TooLong { layer: 0, tokens: 101, limit: 100 };
    assert_eq!(too_long.to_string(), "layer 0 would have 101 tokens: expected at most 100");
    let rows = values(3 * KV_HEADS * DIM, 1);
    let (q, mut out) = (values(3 * HEADS * DIM, 2), vec![7.0; 3 * HEADS * DIM]);
    assert_eq!(cache.append(0, &rows, &rows), Err(too_long.clone()));
    assert_eq!(cache.attend_prefill(0, &q, &rows, &rows, &mut out), Err(too_long.clone()));
    assert!(cache.stats() == before && out.iter().all(|x| *x == 7.0));
    let two = &rows[..2 * KV_HEADS * DIM];
    cache.append(0, two, two).unwrap();
    let mut fork = cache.fork().unwrap();
    let one = &rows[..KV_HEADS * DIM];
    assert_eq!(fork.append(0, one, one), Err(too_long));
    fork.truncate(50).unwrap();
    fork.append(0, two, two).unwrap();
    assert_eq!((cache.len(), fork.len()), (100, 52));
    // The limit belongs to the program, like a budget. A snapshot does not store it, and the cache that reads
    // one applies its own.
    let mut snapshot = Vec::new();
    filled(spec().hot(4), 101).snapshot(&mut snapshot).unwrap();
    assert!(matches!(fork.restore(&mut snapshot.as_slice()), Err(CacheError::TooLong { tokens: 101, .. })));
    assert_eq!(fork.len(), 52);
    snapshot.clear();
    cache.snapshot(&mut snapshot).unwrap();
    assert_eq!(KvCache::from_snapshot(&mut snapshot.as_slice()).unwrap().spec().max_tokens, None);
    fork.restore(&mut snapshot.as_slice()).unwrap();
    assert_eq!(fork.len(), 100);
}
