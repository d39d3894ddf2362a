//! A cache is archived and restored.

use std::sync::Arc;

use crate::common::{Source, error, rope};
use half::f16;
use tqkv::cache::{CacheSpec, KvCache};
use tqkv_core::CodecId;
use tqkv_storage::{Budget, RopePairing, StorageCodec};

const LAYERS: usize = 2;
const HEADS: usize = 3;
const DIM: usize = 64;
const TOKENS: usize = 600;

fn source() -> Source {
    Source::new(LAYERS, HEADS, DIM, DIM, rope(0, RopePairing::Half, DIM))
}

fn spec() -> CacheSpec {
    CacheSpec::new(LAYERS, 2 * HEADS, HEADS, DIM).codecs(CodecId::S5, CodecId::S5)
}

fn filled(source: &Source) -> KvCache {
    let mut cache = KvCache::new(spec()).unwrap();
    let tokens = source.tokens(9, 0, TOKENS);
    let row = TOKENS * HEADS * DIM;
    for layer in 0..LAYERS {
        cache.append(layer, &tokens.k[layer * row..][..row], &tokens.v[layer * row..][..row]).unwrap();
    }
    cache
}

fn codec(source: &Source) -> StorageCodec {
    let mut learner = source.learner();
    let tokens = source.tokens(1, 0, 1024);
    learner.learn(&tokens.k, &tokens.v, 0).unwrap();
    StorageCodec::new(source.shape.clone(), Some(Arc::new(learner.freeze("a model").unwrap()))).unwrap()
}

fn archived(codec: &StorageCodec, cache: &KvCache) -> Vec<u8> {
    let mut bytes = Vec::new();
    let count = codec.archive(Budget::new(2.0).unwrap(), cache, &mut bytes).unwrap();
    assert_eq!(count, bytes.len() as u64);
    bytes
}

#[test]
fn a_sequence_comes_back_near_and_its_first_tokens_as_they_were() {
    let source = source();
    let (codec, cache) = (codec(&source), filled(&source));
    let bytes = archived(&codec, &cache);
    let mut snapshot = Vec::new();
    cache.snapshot(&mut snapshot).unwrap();
    assert!(2 * bytes.len() < snapshot.len(), "{} of {}", bytes.len(), snapshot.len());
    let mut again = KvCache::new(spec()).unwrap();
    assert_eq!(codec.restore(&mut &bytes[..], &mut again).unwrap(), TOKENS);
    assert_eq!(again.len(), TOKENS);
    for layer in 0..LAYERS {
        for head in 0..HEADS {
            let both = |tokens: std::ops::Range<usize>| {
                let of = |cache: &KvCache| {
                    let (k, v) =
                        (cache.keys(layer, head, tokens.clone()), cache.values(layer, head, tokens.clone()));
                    [k.unwrap(), v.unwrap()]
                };
                (of(&again), of(&cache))
            };
            let (got, want) = both(0..4);
            assert_eq!(got, want, "layer {layer}, head {head}");
            let (got, want) = both(4..TOKENS);
            for (got, want) in got.iter().zip(&want) {
                assert!(error(got, want) < 0.1, "layer {layer}, head {head}: {}", error(got, want));
            }
        }
    }
}

#[test]
fn what_is_damaged_or_does_not_follow_leaves_an_empty_cache() {
    let source = source();
    let (codec, cache) = (codec(&source), filled(&source));
    let bytes = archived(&codec, &cache);
    let mut again = KvCache::new(spec()).unwrap();
    let mut refused = |bytes: &[u8]| {
        let said = codec.restore(&mut &*bytes, &mut again).unwrap_err().to_string();
        assert!(again.is_empty());
        said
    };
    for cut in [1, 91, 92, 5000, bytes.len() - 1] {
        assert!(refused(&bytes[..cut]).contains("truncated"), "{cut}");
    }
    for at in (0..bytes.len()).step_by(997) {
        let mut changed = bytes.clone();
        changed[at] ^= 4;
        refused(&changed);
    }
    assert_eq!(
        refused(&bytes.repeat(2)),
        "chunk: 2 layers of tokens from 0 on; expected are all layers from 600 on"
    );
    // No chunk has a length that would take all memory.
    let mut huge = bytes.clone();
    huge[40..44].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(refused(&huge), "chunk: not a whole chunk, or longer than one can be");
}

#[test]
fn caches_that_do_not_fit_are_refused() {
    let source = source();
    let (codec, mut cache) = (codec(&source), filled(&source));
    let bytes = archived(&codec, &cache);
    let said = codec.restore(&mut &bytes[..], &mut cache).unwrap_err().to_string();
    assert_eq!(said, "cache does not fit: it holds 600 tokens; expected an empty one");
    assert_eq!(cache.len(), TOKENS);
    let mut other = KvCache::new(CacheSpec::new(LAYERS, HEADS, HEADS, 128)).unwrap();
    let budget = Budget::new(1.0).unwrap();
    for said in [
        codec.restore(&mut &bytes[..], &mut other).unwrap_err().to_string(),
        codec.archive(budget, &other, &mut Vec::new()).unwrap_err().to_string(),
    ] {
        assert!(said.contains("expected 2 layers, 3 KV heads of 64 and 64 values"), "{said}");
    }
    // Tokens that left a sliding window cannot be archived.
    let mut sliding = KvCache::new(spec().sliding_window(64)).unwrap();
    let row = vec![f16::ONE; 1000 * HEADS * DIM];
    for layer in 0..LAYERS {
        sliding.append(layer, &row, &row).unwrap();
    }
    assert!(codec.archive(budget, &sliding, &mut Vec::new()).is_err());
}
