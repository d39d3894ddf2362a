//! Vectors, snapshots and rules that a cache accepts, and what it says of others.

use tqkv::cache::{CacheSpec, KvCache};
use tqkv::error::CacheError;

const DIM: usize = 32;

/// Models have their largest vectors at the first tokens, which are sinks and never coded.
#[test]
fn the_limit_of_a_codec_is_not_that_of_vectors_that_stay_f16() {
    let one = |value: f32| {
        let mut row = vec![1.0; DIM];
        row[5] = value;
        row
    };
    let (good, long, beyond) = (one(1.0), vec![60_000.0; DIM], one(65_505.0));
    let spec = |kv: &str| CacheSpec::new(1, 1, 1, DIM).with(kv).unwrap();
    let q = vec![1e-4; DIM];
    for (kv, sinks, everywhere) in [("s4", 4, false), ("t4,t2", 4, false), ("f16", 0, true), ("f16", 4, true)]
    {
        let mut cache = KvCache::new(spec(&format!("{kv} sinks={sinks} hot=8"))).unwrap();
        for token in 0..300 {
            let stays = token < sinks || everywhere;
            let result = cache.append(0, &long, &long);
            match (stays, result) {
                (true, Ok(())) => {}
                (false, Err(CacheError::BadVector { token: named, .. })) if named == token => {
                    cache.append(0, &good, &good).unwrap();
                }
                (_, other) => panic!("{kv}: token {token}: {other:?}"),
            }
            let error = cache.append(0, &good, &beyond).unwrap_err().to_string();
            let next = if token + 1 < sinks || everywhere { "at most 65504" } else { "the norm at most" };
            assert!(error.contains(&format!("token {},", token + 1)), "{error}");
            assert!(error.contains(next), "{kv} {token}: {error}");
            assert_eq!(cache.len(), token + 1);
        }
        let mut out = vec![0.0; DIM];
        cache.attend(0, &q, &mut out).unwrap();
        // A sink of 60,000 has nearly all of the weight: 1e-4 * 60,000 * 64 / 8 is far above the others.
        if sinks > 0 || everywhere {
            assert!(out.iter().all(|x| (x - 60_000.0).abs() < 60.0), "{kv}: {out:?}");
        }
        let mut bytes = Vec::new();
        cache.snapshot(&mut bytes).unwrap();
        let restored = KvCache::from_snapshot(&mut &bytes[..]).unwrap();
        let mut again = vec![0.0; DIM];
        restored.attend(0, &q, &mut again).unwrap();
        assert_eq!(out, again, "{kv}");
    }
}

/// An engine that restores a session needs to know which of its settings changed.
#[test]
fn a_snapshot_of_another_spec_names_both_sides() {
    let cache = |words: &str| {
        let spec: CacheSpec = format!("layers=2 heads=4 kv-heads=2 {words}").parse().unwrap();
        KvCache::new(spec).unwrap()
    };
    let mut bytes = Vec::new();
    cache("head-dim=64 t4,t3").snapshot(&mut bytes).unwrap();
    let refused = |words: &str| cache(words).restore(&mut &bytes[..]).unwrap_err().to_string();
    for (words, said) in [
        ("t4,t3 hot=8", "hot window: the snapshot has hot=64, this cache hot=8"),
        ("t4,t3 sinks=0", "number of sinks: the snapshot has sinks=4, this cache sinks=0"),
        ("t4,t3 last:i8", "codec of some layer: the snapshot has t4,t3 in layer 1, this cache i8,i8"),
        ("t4,t4", "codec of some layer: the snapshot has t4,t3 in layer 0, this cache t4,t4"),
        ("t4,t3 seed=7", "rotation seed: the snapshot has seed=42, this cache seed=7"),
        (
            "t4,t3 kinds=full/256",
            "kind of some layer: the snapshot has full in layer 1, this cache 256 and 0 sinks",
        ),
        (
            "t4,t3 sliding-window=256",
            "kind of some layer: the snapshot has full in layer 0, this cache 256 and 4 sinks",
        ),
        ("t4,t3 scale=0.5", "factor of the logits: the snapshot has scale=none, this cache scale=0.5"),
        ("t4,t3 tier=256:t2,t1", "cold tier: the snapshot has tier=none, this cache tier=256:t2,t1"),
        ("t4,t3 map=pairs", "key map: the snapshot has map=auto, this cache map=pairs"),
    ] {
        let error = refused(&format!("head-dim=64 {words}"));
        assert_eq!(error, format!("snapshot: of a cache with another {said}"), "{words}");
    }
    let said = "shape: the snapshot has head-dim=64 value-dim=64, this cache head-dim=32 value-dim=32";
    assert_eq!(refused("head-dim=32 t4,t3"), format!("snapshot: of a cache with another {said}"));
    let mut mapped = Vec::new();
    cache("head-dim=64 t4,t3 map=pairs").snapshot(&mut mapped).unwrap();
    let error = cache("head-dim=64 t4,t3").restore(&mut &mapped[..]).unwrap_err().to_string();
    let said = "ring, key map or narrowing: the snapshot has map=pairs, this cache map=auto";
    assert_eq!(error, format!("snapshot: of a cache with another {said}"));
}

/// A rule that names more layers than there are was written for another model.
#[test]
fn a_rule_for_more_layers_than_there_are_is_refused() {
    let made = |rule: &str| {
        let spec: CacheSpec = format!("layers=6 heads=1 head-dim=64 t4,t2 {rule}").parse().unwrap();
        KvCache::new(spec).map(drop).map_err(|error| error.to_string())
    };
    for rule in ["boundary:3:i8", "boundary:6:i8", "tail:6:i8", "tail:0:i8"] {
        assert_eq!(made(rule), Ok(()), "{rule}");
    }
    for rule in ["boundary:9:i8", "boundary:7:i8", "tail:7:i8"] {
        let error = made(rule).unwrap_err();
        assert!(error.contains("layers at an end are not valid: expected at most the 6"), "{rule}: {error}");
    }
}
