//! Which vectors a cache accepts.

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
