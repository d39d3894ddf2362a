//! Vectors, snapshots and rules that a cache accepts, and what it says of others.

use tqkv::cache::{CacheSpec, Cold, KvCache};
use tqkv::error::CacheError;
use tqkv::unstable::cache::OPTIONS;

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
        ("t4,t3 hot=8", "the snapshot has hot=64, this cache hot=8"),
        ("t4,t3 sinks=0", "the snapshot has sinks=4, this cache sinks=0"),
        ("t4,t3 last:i8", "the snapshot has t4,t3 in layer 1, this cache i8,i8"),
        ("t4,t4", "the snapshot has t4,t3 in layer 0, this cache t4,t4"),
        ("t4,t3 seed=7", "the snapshot has seed=42, this cache seed=7"),
        ("t4,t3 kinds=full/256", "the snapshot has full in layer 1, this cache 256 and 0 sinks"),
        ("t4,t3 sliding-window=256", "the snapshot has full in layer 0, this cache 256 and 4 sinks"),
        ("t4,t3 scale=0.5", "the snapshot has scale=none, this cache scale=0.5"),
        ("t4,t3 tier=256:t2,t1", "the snapshot has tier=none, this cache tier=256:t2,t1"),
        ("t4,t3 map=pairs", "the snapshot has map=auto, this cache map=pairs"),
        ("t4,t3 ring=256", "the snapshot has ring=none, this cache ring=256"),
        ("t4,t3 narrow-at=1MiB", "the snapshot has narrow-at=none, this cache narrow-at=1MiB"),
        (
            "t4,t3 sink-logits=0/0/0/0/0/0/0/1",
            "the snapshot has a sink-logits=, this cache another sink-logits=",
        ),
    ] {
        let error = refused(&format!("head-dim=64 {words}"));
        assert_eq!(error, format!("snapshot: of a cache with another spec: {said}"), "{words}");
    }
    let said = "the snapshot has head-dim=64, this cache head-dim=32";
    assert_eq!(refused("head-dim=32 t4,t3"), format!("snapshot: of a cache with another spec: {said}"));
}

/// Other words for the same cache, and how it reads its tokens, matter to no snapshot.
#[test]
fn a_snapshot_serves_each_cache_whose_tokens_it_has() {
    let cache = |words: &str| {
        let spec: CacheSpec = format!("layers=2 heads=4 kv-heads=2 head-dim=64 {words}").parse().unwrap();
        KvCache::new(spec).unwrap()
    };
    for (words, same) in [
        ("t4,t3", "each:t4,t3/t4,t3"),
        ("t4,t3 last:i8", "i8 each:t4,t3/i8,i8"),
        ("t4,t3", "t4,t3 kinds=full/full"),
        ("t4,t3 sinks=0 sliding-window=200", "t4,t3 sinks=0 kinds=2*200"),
        ("t4,t3 centring=off", "t4,t3 centring=off map=off"),
        ("m2,t2 map=off", "t2,t2 map=off"),
        ("q8_0", "q8_0 map=pairs"),
        ("t4,t3", "t4,t3 select=512"),
        ("t4,t3", "t4,t3 max-tokens=5000 level=portable"),
        ("t4,t3 spill=300:/tmp", "t4,t3 spill=300:."),
    ] {
        for (from, to) in [(words, same), (same, words)] {
            let mut bytes = Vec::new();
            cache(from).snapshot(&mut bytes).unwrap();
            cache(to).restore(&mut &bytes[..]).unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
        }
    }
}

/// The text of a snapshot says all of a spec but what belongs to the machine and to the program.
#[test]
fn each_option_is_in_a_snapshot() {
    const SHAPE: &str = "layers=2 heads=8 kv-heads=2 head-dim=64";
    let mut made = 0;
    for option in OPTIONS.iter().filter(|option| option.name != "layers") {
        let name = format!("{}=", option.name);
        let others = SHAPE.split(' ').filter(|word| !word.starts_with(&name));
        let others = others.collect::<Vec<_>>().join(" ");
        let example = match option.name {
            "sink-logits" => "0.5/-1/0/2/0/0/1/1.5/0/0/0/0/0/0/0/0.25",
            "value-dim" => "48",
            _ => option.example,
        };
        let spec: CacheSpec = format!("{others} {name}{example}").parse().unwrap();
        let Ok(cache) = KvCache::new(spec.clone()) else { panic!("{spec}") };
        let mut bytes = Vec::new();
        cache.snapshot(&mut bytes).unwrap();
        let mut back = KvCache::from_snapshot(&mut &bytes[..]).unwrap().spec().clone();
        (back.level, back.max_tokens) = (spec.level, spec.max_tokens);
        for (_, cold) in &mut back.cold {
            if let Cold::Spill(folder) = cold {
                *folder = "/tmp".into();
            }
        }
        assert_eq!(back, spec);
        made += 1;
    }
    assert!(made > 25);
}

/// A spec is text that anybody can write, so all that it may say is checked.
#[test]
fn hostile_texts_of_a_snapshot_are_refused_in_one_line() {
    let mut good = Vec::new();
    let cache = || KvCache::new("layers=1 heads=1 head-dim=16 s4".parse().unwrap()).unwrap();
    cache().snapshot(&mut good).unwrap();
    let tiers = format!("{} s4", vec!["tier=1:s2"; 70_000].join(" "));
    let long = format!("s4 {}=1", "x".repeat(1 << 20));
    for (text, why) in [
        ("", "its spec: an empty text"),
        ("s4", "its spec: layers is missing"),
        ("layers=1 heads=1 head-dim=16 s9", "its spec: kv=s9 is not valid"),
        ("layers=1 heads=1 head-dim=16 s4 hot=1 hot=2", "hot is given twice"),
        ("layers=1 heads=1 head-dim=16 's4", "its spec: "),
        ("layers=1 heads=1\nhead-dim=16", "its spec is no text"),
        ("layers=65537 heads=1 head-dim=16", "its spec: 65537 KV heads"),
        ("layers=1099511627776 heads=1048576 head-dim=16", "its spec: "),
        ("layers=18446744073709551615 heads=18446744073709551615 head-dim=16", "its spec: "),
        ("layers=2 heads=1 head-dim=16 each:s4", "its spec: 1 pairs of codecs for 2 layers"),
        ("layers=2 heads=1 head-dim=16 gradient:", "its spec: "),
        ("layers=1 heads=1 head-dim=16 hot=18446744073709551615", "its spec: the hot window of"),
        ("layers=1 heads=1 head-dim=16 ring=549755813888", "of a ring of"),
        ("layers=1 heads=1 head-dim=16 kinds=65536*full", "its spec: 65536 kinds for 1 layers"),
        ("layers=1 heads=1 head-dim=16 level=avx9", "its spec: level=avx9 is not valid"),
        (&tiers, "its spec: tier= is given too often: expected at most 64"),
        (&long, "its spec: xxx"),
    ] {
        let payload = text.as_bytes();
        let crc = crc32fast::hash(payload).to_le_bytes();
        let length = (payload.len() as u64).to_le_bytes();
        let forged = [&good[..12], &length, payload, &crc].concat();
        let error = KvCache::from_snapshot(&mut &forged[..]).unwrap_err().to_string();
        assert!(error.contains(why) && error.len() < 600 && !error.contains('\n'), "{why}: {error}");
        let error = cache().restore(&mut &forged[..]).unwrap_err().to_string();
        assert!(error.starts_with("snapshot: ") && error.len() < 600, "{error}");
    }
    let [payload, crc] = [&b"\xff\xfe"[..], &crc32fast::hash(b"\xff\xfe").to_le_bytes()];
    let forged = [&good[..12], &2u64.to_le_bytes(), payload, crc].concat();
    let error = KvCache::from_snapshot(&mut &forged[..]).unwrap_err().to_string();
    assert!(error.contains("its spec is no text"), "{error}");
}

/// One limit: what can be made can be saved.
#[test]
fn a_cache_of_the_most_heads_is_restored_and_larger_ones_are_not_made() {
    let spec = |layers| CacheSpec::new(layers, 1, 1, 16);
    let mut bytes = Vec::new();
    KvCache::new(spec(1 << 16)).unwrap().snapshot(&mut bytes).unwrap();
    assert_eq!(KvCache::from_snapshot(&mut &bytes[..]).unwrap().spec().shape.num_layers, 1 << 16);
    let error = KvCache::new(spec((1 << 16) + 1)).unwrap_err().to_string();
    assert!(error.contains("65537 KV heads in all layers: expected at most 65536"), "{error}");
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
