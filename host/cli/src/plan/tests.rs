//! Plans of known shapes, against measured and published sizes.

use super::*;
use tqkv::cache::{Centring, KvCache};

const SEVENTY_B: &str = r#"{"model_type": "llama", "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "hidden_size": 8192, "rope_theta": 5e5, "max_position_embeddings": null}"#;

fn from_config(json: &str) -> CacheShape {
    CacheShape::from(&ModelKv::from_json(json.as_bytes()).unwrap())
}

/// The only layer shape of a plan, with other numbers.
fn changed(shape: &CacheShape, change: impl Fn(&mut LayerKv)) -> CacheShape {
    let mut shape = shape.clone();
    shape.groups.iter_mut().for_each(|(layer, _)| change(layer));
    shape
}

fn codecs(text: &str) -> KvCodecs {
    text.parse().unwrap()
}

fn plan(shape: &CacheShape, text: &str) -> Plan {
    shape.plan(&text.parse().unwrap()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn bytes(shape: &CacheShape, text: &str, tokens: u64) -> u64 {
    plan(shape, text).bytes(tokens).unwrap()
}

fn per_token(shape: &CacheShape, text: &str) -> u64 {
    plan(shape, text).bytes_per_token().unwrap()
}

fn error(shape: &CacheShape, text: &str) -> PlanError {
    shape.plan(&text.parse().unwrap()).unwrap_err()
}

#[test]
fn seventy_b_class_bytes_per_token() {
    let shape = from_config(SEVENTY_B);
    for (kv, bytes) in [("f16", 327_680), ("s4", 84_480), ("s3", 64_000), ("s2", 43_520)] {
        assert_eq!(per_token(&shape, kv), bytes, "{kv}");
    }
}

#[test]
fn the_longest_context_counts_window_and_sinks_as_f16() {
    let shape = from_config(SEVENTY_B);
    let (memory, raw) = (34_000_000_000_u64, 327_680);
    let headers = (80 * 8 * 2 * CacheSpec::PAGE_HEADER_BYTES / PAGE_TOKENS) as u64;
    for (kv, coded) in [("s4 hot=128", 84_480), ("f16 hot=128", raw)] {
        let tokens = plan(&shape, kv).max_tokens(memory);
        let least = |tokens: u64| 132 * raw + (tokens - 132) * (coded + headers);
        // Half a percent is means, and room in the last pages.
        assert!(least(tokens) <= memory && least(tokens + tokens / 200) > memory, "{kv}: {tokens}");
    }
    // A budget smaller than the window holds only part of the window.
    assert_eq!(plan(&shape, "s2 hot=128").max_tokens(10 * raw + 1), 10);
    assert_eq!(plan(&shape, "s2 hot=128").max_tokens(raw - 1), 0);
}

#[test]
fn the_bytes_of_a_context_are_those_that_fit() {
    let full = CacheShape::new(6, 2, 128);
    for shape in [full.clone(), full.clone().with_windows(2, 1024)] {
        let plan = plan(&shape, "s3");
        for tokens in [3, 68, 100_003] {
            let bytes = plan.bytes(tokens).unwrap();
            // Room in a page is for tokens to come.
            assert!((tokens..tokens + 128).contains(&plan.max_tokens(bytes)), "{tokens}");
            assert!(plan.max_tokens(bytes - 1) < tokens, "{tokens}");
        }
    }
    assert_eq!(bytes(&full, "s4", 68), 6 * 2 * 68 * 512);
}

#[test]
fn values_count_with_their_own_dim() {
    let narrow = changed(&CacheShape::new(2, 3, 128), |layer| layer.value_dim = 64);
    let per_head = |dim: usize| dim as u64 / 2 + 2;
    assert_eq!(per_token(&narrow, "s4"), 6 * (per_head(128) + per_head(64)));
    assert_eq!(per_token(&narrow, "f16"), 6 * 2 * (128 + 64));
    assert_eq!(narrow.ring_bytes_per_token(codecs("s4")).unwrap(), 6 * (per_head(128) + per_head(64)));
    assert_eq!(bytes(&narrow, "s4", 68), 6 * 68 * 2 * (128 + 64));
    let odd = changed(&narrow, |layer| layer.value_dim = 100);
    for error in [error(&odd, "s4"), odd.ring_bytes_per_token(codecs("s4")).unwrap_err()] {
        assert!(error.to_string().starts_with("head dim 100 is not one of codecs s4,s4"));
    }
}

#[test]
fn rings_hold_what_the_firmware_arithmetic_says() {
    let shape = CacheShape::new(2, 3, 64);
    for codec in INTEGER_CODECS {
        let tokens = shape.ring_tokens(KvCodecs { k: codec, v: codec }, 6 * 4096).unwrap();
        let each = tqkv_core::fixed::tokens_in(codec, codec, 64, 4096).unwrap();
        assert_eq!(tokens, each as u64, "{codec:?}");
    }
    let error = shape.ring_tokens(codecs("s4,q8_0"), 4096).unwrap_err().to_string();
    assert!(error.contains("q8_0") && error.contains("i8, s5, s4"), "{error}");
}

#[test]
fn shapes_beyond_reason_are_errors() {
    for layers in [usize::MAX, 1 << 16] {
        assert!(matches!(error(&CacheShape::new(layers, 2, 128), "s4"), PlanError::TooLarge));
    }
    let error = error(&CacheShape::new(1, 1, 100), "s4").to_string();
    assert!(error.contains("100") && error.contains("s4,s4"), "{error}");
}

#[test]
fn windows_bound_their_layers_and_the_context_bounds_all() {
    let full = CacheShape::new(6, 1, 128);
    let windowed = full.clone().with_windows(5, 1024);
    let memory = 100_000_000;
    let [all, one] = [&full, &windowed].map(|shape| plan(shape, "s4").max_tokens(memory));
    assert!(one > 5 * all && one < 6 * all, "{one} {all}");
    assert_eq!(per_token(&windowed, "s4"), 6 * 132);
    assert_eq!(plan(&windowed, "s4").bytes_past_window().unwrap(), Some(132));
    let short = CacheShape { context: Some(4096), ..windowed.clone() };
    assert_eq!(plan(&short, "s4").max_tokens(memory), 4096);
    let bounded = full.clone().with_windows(6, 1024);
    assert_eq!(plan(&bounded, "s4").max_tokens(memory), u64::MAX);
    assert_eq!(plan(&full, "s4 sliding-window=1024").max_tokens(memory), u64::MAX);
}

/// Layers with other codecs are counted with theirs.
#[test]
fn codecs_by_layer_are_counted() {
    let shape = CacheShape::new(4, 2, 128);
    assert_eq!(per_token(&shape, "s4 last:i8"), 2 * (3 * 132 + 260));
    let each = |text: &str| bytes(&shape, text, 4000);
    assert_eq!(4 * each("s4 last:i8"), 3 * each("s4") + each("i8"));
}

/// The planned bytes of 1024 tokens equal the growth of a cache by 1024 tokens in whole pages.
#[test]
fn a_token_takes_what_a_cache_allocates_for_it() {
    for dim in [64, 80, 96, 128] {
        for kv in ["f16", "i8", "s4", "t4", "t2h", "n3", "q8_0"] {
            let codecs = codecs(kv);
            let Ok(plan) = CacheShape::new(1, 1, dim).plan(&codecs.into()) else { continue };
            let planned = plan.bytes_per_token().unwrap();
            let spec = CacheSpec::new(1, 1, 1, dim).codecs(codecs.k, codecs.v).sinks(0).hot(0);
            let mut cache = KvCache::new(spec.centring(Centring::Off)).unwrap();
            let zeros = vec![0.0; 1024 * dim];
            cache.append(0, &zeros, &zeros).unwrap();
            let before = cache.stats().allocated_bytes;
            cache.append(0, &zeros, &zeros).unwrap();
            let grown = (cache.stats().allocated_bytes - before) as f64 / 1024.0;
            // Lists of pages grow too.
            let ratio = grown / planned as f64;
            assert!((0.98..1.08).contains(&ratio), "{kv} at {dim}: {grown} {planned}");
        }
    }
}

/// Caches of 34 and of 22 GB in a community's tables. A GB there is 1000 MiB, and no token is f16.
#[test]
fn longest_contexts_are_those_of_the_published_table() {
    let shape = from_config(SEVENTY_B);
    let memory = [34_000 << 20, 22_000 << 20];
    for (format, bytes, thousands) in [
        ("f16=256", 327_680, [109, 70]),
        ("q8_0 without scales=128", 163_840, [218, 141]),
        ("tq3=52", 66_560, [536, 347]),
        ("tq4=68", 87_040, [410, 265]),
    ] {
        let format: Foreign = format.parse().unwrap();
        assert_eq!(format.per_token(&shape).unwrap(), (bytes, None), "{format:?}");
        let found = memory.map(|memory| (format.max_tokens(&shape, memory).unwrap() + 500) / 1000);
        assert_eq!(found, thousands, "{format:?}");
    }
    // The published bytes count blocks only. A cache has page headers too, and room in the last pages.
    let headers = 1.0 + CacheSpec::PAGE_HEADER_BYTES as f64 / (256 * PAGE_TOKENS) as f64;
    let f16 = plan(&shape, "f16 hot=0 sinks=0").max_tokens(memory[0]) as f64 * headers;
    let blocks = "f16=256".parse::<Foreign>().unwrap().max_tokens(&shape, memory[0]).unwrap();
    assert!((f16 - blocks as f64).abs() < 160.0, "{f16} {blocks}");
    assert_eq!(per_token(&shape, "q8_0"), 174_080, "with its scales");
}

/// Published tables of f16 and f32 caches. A GB there is 2^30 bytes, in the last table 10^9.
#[test]
fn caches_of_known_models_are_those_of_the_published_tables() {
    let full = CacheShape::new;
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    for (shape, format, tokens, expected) in [
        (full(32, 32, 128), "f32=512", 4096, 4.0),
        (full(32, 32, 128), "f32=512", 32 << 10, 32.0),
        (full(48, 8, 128), "f16=256", 32 << 10, 6.0),
        // A hybrid: one layer of four has keys and values.
        (full(16, 4, 256), "f16=512", 128 << 10, 8.0),
        (full(16, 4, 256), "f16=512", 256 << 10, 16.0),
        (full(36, 2, 128), "f16=256", 1 << 20, 36.0),
    ] {
        let format: Foreign = format.parse().unwrap();
        let found = gib(format.bytes(&shape, tokens).unwrap());
        assert!((found - expected).abs() < 1e-9, "{shape:?} {format:?}: {found}");
    }
    let f16 = bytes(&full(32, 32, 128), "f16 hot=0 sinks=0", 32 << 10);
    let headers = 2 * CacheSpec::PAGE_HEADER_BYTES * 32 * 32 * (32 << 10) / PAGE_TOKENS;
    let over = f16 as f64 / (17_179_869_184 + headers as u64) as f64;
    assert!((1.0..1.005).contains(&over), "{over}");
    let turbo4: Foreign = "turbo4=68".parse().unwrap();
    assert_eq!(turbo4.bytes(&full(32, 32, 128), 32 << 10).unwrap(), 4_563_402_752);
}

#[test]
fn formats_of_others_are_a_name_and_bytes() {
    let latent = latent(61, 512, 64);
    let format: Foreign = "k4v3=72,52".parse().unwrap();
    assert_eq!(format.per_token(&CacheShape::new(1, 1, 128)).unwrap(), (124, None));
    assert_eq!(format.per_token(&latent).unwrap(), (61 * 72, None), "a latent is one vector");
    let sliding = CacheShape::new(6, 1, 128).with_windows(5, 1024);
    assert_eq!(format.per_token(&sliding).unwrap(), (6 * 124, Some(124)));
    for text in ["tq3", "tq3=", "=52", "tq3=0", "tq3=52,x", "tq3=9999999999"] {
        let error = text.parse::<Foreign>().unwrap_err().to_string();
        assert!(error.contains("tq3=52"), "{text}: {error}");
    }
}

/// Latent vectors with a positional part that stays f16.
fn latent(layers: usize, rank: usize, position_dim: usize) -> CacheShape {
    changed(&CacheShape::new(layers, 1, rank + position_dim), |layer| {
        (layer.value_dim, layer.position_dim) = (rank, position_dim);
    })
}

/// Bytes that a cache of this spec holds after `tokens` tokens of zeros.
fn held(spec: CacheSpec, tokens: usize) -> u64 {
    let (key, value) = (spec.shape.head_dim, if spec.position_dim > 0 { 0 } else { spec.shape.value_dim });
    let mut cache = KvCache::new(spec).unwrap();
    for _ in 0..tokens / 512 {
        cache.append(0, &vec![0.0; 512 * key], &vec![0.0; 512 * value]).unwrap();
    }
    cache.stats().allocated_bytes as u64
}

/// A kind of cache: what it is called, its shape, its codec and the tokens that it is filled with.
struct Kind {
    name: &'static str,
    shape: CacheShape,
    codec: CodecId,
    tokens: usize,
}

/// Every kind of layer, codec and head dim: the common ones, or all.
fn kinds(whole: bool) -> Vec<Kind> {
    use tqkv_core::is_supported_head_dim;
    let dims = (16..=1024).filter(|&dim| is_supported_head_dim(dim));
    let few = ["f16", "i8", "s4", "t2", "q8_0"];
    let mut all = Vec::new();
    for dim in dims.filter(|dim| whole || [64, 128].contains(dim)) {
        // Wide blocks make page headers small, so fewer tokens will do. Rows outside pages still have to be
        // few.
        let tokens = if dim > 128 { 16 << 10 } else { 32 << 10 };
        let full = CacheShape::new(1, 1, dim);
        let shapes = [
            ("full", full.clone()),
            ("sliding", full.clone().with_windows(1, tokens * 3 / 4)),
            ("values of 64", changed(&full, |layer| layer.value_dim = 64)),
            ("latent", latent(1, dim, 64)),
        ];
        // Codes of quarters need a map.
        let one_width = |codec: &&CodecId| !codec.rotates_quarters();
        let wanted = |codec: &&CodecId| whole || few.contains(&codec.name());
        for &codec in CodecId::ALL.iter().filter(one_width).filter(wanted) {
            let is_coded = |dim| codec.block_bytes(dim).is_some();
            let fit =
                shapes.iter().filter(|(_, shape)| is_coded(dim) && is_coded(shape.groups[0].0.value_dim));
            all.extend(fit.map(|(name, shape)| Kind { name, shape: shape.clone(), codec, tokens }));
        }
    }
    all
}

#[test]
fn maps_of_keys_are_counted() {
    let shape = CacheShape::new(2, 3, 64);
    let off = |tokens| bytes(&shape, "t2 map=off", tokens);
    let (few, many) = (68 + 128, 68 + 16 * 128 + 1);
    let added = |tokens| bytes(&shape, "t2 map=pairs", tokens) - off(tokens);
    assert_eq!(added(few), added(many), "one map serves all positions");
    // Codes of quarters have one by themselves, in a tier too, where they have the head dim and there is no ring.
    let of = |dim, text: &str| plan(&CacheShape::new(2, 3, dim), text).map_bytes(few);
    for text in ["m2,t2", "t4,t2 tier=128:m2,t2"] {
        let off = format!("{text} map=off");
        let ring = format!("{text} ring=4096");
        assert_eq!((of(64, text), of(80, text)), (added(few), 0), "{text}");
        assert_eq!((of(64, &off), of(64, &ring)), (0, 0), "{text}");
    }
    assert_eq!((of(80, "t2"), of(80, "t2 map=pairs") > 0), (0, true));
    // Heads may get one without learning, which is no part of what tokens share.
    assert!(bytes(&shape, "t2", many) > off(many));
}

#[test]
fn means_for_a_selection_are_counted() {
    let shape = CacheShape::new(1, 1, 128);
    let counted = |text: &str| {
        let (held, planned) = (held(plan(&shape, text).spec, 8192), bytes(&shape, text, 8192));
        assert!((0.97..=1.0).contains(&(held as f64 / planned as f64)), "{held} held, {planned} planned");
        held as f64
    };
    let share = counted("s4 select=2048") / counted("s4") - 1.0;
    assert!((0.055..0.065).contains(&share), "{share} more");
    let more = per_token(&shape, "s4 select=2048") as f64 / per_token(&shape, "s4") as f64 - 1.0;
    assert!((0.06..0.07).contains(&more), "{more}");
}

/// Exact tokens up to the limit, about as many bytes while tokens are narrowed, and later those of the codes.
#[test]
fn bytes_before_narrowing_are_counted() {
    let shape = CacheShape::new(1, 1, 128);
    let narrow = plan(&shape, "s4 narrow-at=1MiB");
    for tokens in [512, 1536, 2048, 3072, 6144, 8192, 32_768] {
        let (held, planned) = (held(narrow.spec.clone(), tokens), narrow.bytes(tokens as u64).unwrap());
        // A window that narrows may have rows to spare.
        assert!(
            (0.93..=1.0).contains(&(held as f64 / planned as f64)),
            "{tokens}: {held} held, {planned} planned"
        );
    }
    assert!(narrow.max_tokens(4 << 20).abs_diff(plan(&shape, "s4").max_tokens(4 << 20)) < 128);
    let longest = narrow.max_tokens(512 << 10);
    assert!((960..1025).contains(&longest), "{longest}: in half of the limit all tokens are exact");
}

/// Bytes that a cache of a kind holds, over the planned ones.
fn held_over_planned(Kind { shape, codec, tokens, .. }: &Kind) -> f64 {
    let plan = plan(shape, &format!("{} effort=fast centring=off", codec.name()));
    held(plan.spec.clone(), *tokens) as f64 / plan.bytes(*tokens as u64).unwrap() as f64
}

/// The common kinds by default, all with `TQKV_EXHAUSTIVE=1`.
#[test]
fn plans_are_within_three_percent_of_what_caches_hold() {
    use rayon::prelude::*;
    let whole = std::env::var_os("TQKV_EXHAUSTIVE").is_some_and(|value| value == "1");
    let kinds = kinds(whole);
    let ratios: Vec<f64> = kinds.par_iter().map(held_over_planned).collect();
    let off = |(_, ratio): &(&Kind, &f64)| !(0.97..=1.0).contains(*ratio);
    let name = |(kind, ratio): (&Kind, &f64)| {
        format!("{}, {} at {}: {ratio:.4}", kind.name, kind.codec.name(), kind.shape.groups[0].0.head_dim)
    };
    let far: Vec<_> = kinds.iter().zip(&ratios).filter(off).map(name).collect();
    assert_eq!(far, [""; 0], "held over planned");
    let worst = ratios.iter().copied().max_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs())).unwrap();
    println!("{} kinds of caches, the farthest holds {worst:.4} of what is planned", ratios.len());
    assert!(ratios.len() >= 40);
}

#[test]
fn layers_of_several_shapes_add_up() {
    let layer = |window, num_kv_heads, head_dim| LayerKv {
        window,
        num_kv_heads,
        head_dim,
        value_dim: head_dim,
        position_dim: 0,
    };
    let groups = vec![(layer(Some(1024), 16, 256), 50), (layer(None, 4, 512), 10)];
    let shape = CacheShape { groups, context: None };
    assert_eq!(per_token(&shape, "f16"), 901_120);
    assert_eq!(plan(&shape, "f16").bytes_past_window().unwrap(), Some(81_920));
    assert_eq!((shape.num_layers(), shape.uniform(), shape.windowed()), (60, None, Some((50, 1024))));
    let alone = |i: usize| bytes(&CacheShape { groups: vec![shape.groups[i]], context: None }, "s4", 100_000);
    let both = bytes(&shape, "s4", 100_000);
    assert_eq!(both, alone(0) + alone(1));
    assert!((100_000..100_128).contains(&plan(&shape, "s4").max_tokens(both)));
}

/// A ring takes its memory at once, and the plan says how much.
#[test]
fn a_ring_takes_what_a_cache_allocates_for_it() {
    let shape = CacheShape::new(1, 2, 128);
    for text in ["s4 ring=8192", "t2 ring=4000", "f16 ring=4096"] {
        let plan = plan(&shape, text);
        let held = KvCache::new(plan.spec.clone()).unwrap().stats().allocated_bytes as u64;
        assert_eq!([1, 1 << 30].map(|tokens| plan.bytes(tokens).unwrap()), [held; 2], "{text}");
        assert_eq!(plan.max_tokens(held), u64::MAX);
        assert_eq!(plan.max_tokens(held - 1), 0);
    }
}
