//! Shared by the targets of the cache: specs that reach every kind of page, tokens, and the answers of a
//! cache.

#![allow(dead_code, reason = "each target uses some of it")]

use tqkv::KvError;
use tqkv::cache::{CacheSpec, Centring, Cold, KvCache, LayerKind, LayerPolicy};
use tqkv::error::CacheError;
use tqkv_core::{CodecId, KvShape};

/// Small, because the target is the kinds of pages and not their width.
const DIM: usize = 32;
const VALUE_DIM: usize = 48;

/// Number of specs of [`spec`].
pub const SPECS: u8 = 14;

/// One of [`SPECS`] specs. `hot` sets the hot window and the sinks.
pub fn spec(number: u8, hot: u8) -> CacheSpec {
    let id = |name| CodecId::from_name(name).expect("a codec");
    let demote = |key, value| Cold::Demote { key: id(key), value: id(value) };
    let shape = |layers, heads, kv_heads| CacheSpec::new(layers, heads, kv_heads, DIM);
    let (hot, sinks) = (usize::from(hot & 31), usize::from(hot >> 5));
    let spec: CacheSpec = match number % SPECS {
        0 => shape(1, 2, 2),
        1 => shape(1, 1, 1).sliding_window(40),
        2 => shape(1, 2, 1).sliding_window(33).codecs(id("n4"), id("n4")).cold(150, demote("n2", "n2")),
        3 => shape(1, 1, 1).codecs(id("f16"), id("f16")),
        4 => shape(1, 2, 2)
            .codecs(id("n4"), id("s4"))
            .cold(100, demote("n3", "s3"))
            .cold(300, demote("n2", "s2")),
        5 => shape(2, 2, 1)
            .codecs(id("n4"), id("n4"))
            .cold(90, demote("n2", "n2"))
            .cold(200, Cold::Spill(std::env::temp_dir())),
        6 => shape(3, 2, 2)
            .kinds(vec![LayerKind::None, LayerKind::Sliding(31), LayerKind::Full])
            .layers(LayerPolicy::Tail { layers: 1, codecs: (id("f16"), id("t2")) })
            .sink_logits(vec![0.5, -1.0, 0.0, 2.0, 0.25, 30.0]),
        7 => KvShape::new(1, 4, 2, DIM).with_value_dim(VALUE_DIM).into(),
        8 => shape(1, 1, 1).codecs(id("t2"), id("t3")).centring(Centring::On).soft_cap(5.0),
        9 => shape(1, 2, 1).codecs(id("q4_0"), id("s2")).scale(0.5),
        10 => mapped(shape(1, 2, 1).codecs(id("t2"), id("s2")), "map=pairs"),
        11 => shape(1, 2, 1).codecs(id("t3"), id("n4")).ring(170),
        // Codes of quarters take wider heads.
        12 => mapped(CacheSpec::new(1, 2, 1, 2 * DIM).codecs(id("m2"), id("s2")), "map=pairs"),
        _ => shape(2, 2, 1).codecs(id("n4"), id("n4")).cold(90, demote("n2", "n2")).max_tokens(480),
    };
    spec.hot(hot).sinks(sinks)
}

fn mapped(spec: CacheSpec, map: &str) -> CacheSpec {
    spec.with(map).expect("the words of a spec")
}

/// Numbers between -1 and 1 around a mean that differs by coordinate. The same seed gives the same numbers.
pub fn values(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |i: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let noise = (state >> 40) as f32 / 8_388_608.0 - 1.0;
        noise + if seed & 1 == 1 { (i % 7) as f32 } else { 0.0 }
    };
    (0..n).map(&mut next).collect()
}

/// Keys and values of `tokens` tokens.
pub fn tokens(shape: KvShape, seed: u64, tokens: usize) -> [Vec<f32>; 2] {
    let heads = tokens * shape.num_kv_heads;
    [values(seed, heads * shape.head_dim), values(seed ^ 0xff00, heads * shape.value_dim)]
}

/// The attention result of each layer, bit for bit, or its error.
pub fn answers(cache: &KvCache) -> Vec<Result<Vec<u32>, CacheError>> {
    let shape = cache.spec().shape;
    let q = values(77, shape.num_heads * shape.head_dim);
    let attend = |layer| {
        let mut out = vec![f32::NAN; shape.num_heads * shape.value_dim];
        cache.attend(layer, &q, &mut out)?;
        Ok(out.iter().map(|x| x.to_bits()).collect())
    };
    (0..shape.num_layers).map(attend).collect()
}

/// The whole state as bytes.
pub fn snapshot(cache: &KvCache) -> Vec<u8> {
    let mut bytes = Vec::new();
    cache.snapshot(&mut bytes).expect("memory takes every byte");
    bytes
}

/// Returns true if a layer keeps no keys and values.
pub fn keeps_nothing(cache: &KvCache, layer: usize) -> bool {
    cache.spec().kind(layer) == LayerKind::None
}

/// Checks that every KV head of each layer has the length in `lens`: its last token can be read, and no later
/// one.
pub fn check_lengths(cache: &KvCache, lens: &[usize]) {
    let shape = cache.spec().shape;
    for (layer, &len) in lens.iter().enumerate().filter(|(layer, _)| !keeps_nothing(cache, *layer)) {
        for head in 0..shape.num_kv_heads {
            let last = len.saturating_sub(1)..len;
            let key = cache.keys(layer, head, last.clone()).expect("the newest key");
            let value = cache.values(layer, head, last).expect("the newest value");
            assert!(
                key.iter().chain(&value).all(|x| x.is_finite()),
                "layer {layer}, head {head}: {key:?} {value:?}"
            );
            let behind = len..len + 1;
            assert!(matches!(cache.keys(layer, head, behind.clone()), Err(CacheError::NoTokens { .. })));
            assert!(matches!(cache.values(layer, head, behind), Err(CacheError::NoTokens { .. })));
        }
        let query = cache.scores(layer, shape.num_heads, &vec![0.0; shape.head_dim]);
        assert!(matches!(query, Err(CacheError::Shape(KvError::Head { .. }))));
    }
}
