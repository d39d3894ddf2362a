//! Plans of known shapes, against measured and published sizes.

use super::*;
use crate::policy::Policy;

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

fn life(text: &str, kept: Uncompressed) -> Life {
    Life {
        codecs: codecs(text),
        kept,
        tiers: Vec::new(),
        key_map: KeyMap::Off,
        ring: None,
        select: None,
        narrow_at: None,
    }
}

#[test]
fn seventy_b_class_bytes_per_token() {
    let shape = from_config(SEVENTY_B);
    for (kv, bytes) in [("f16", 327_680), ("s4", 84_480), ("s3", 64_000), ("s2", 43_520)] {
        assert_eq!(shape.bytes_per_token(codecs(kv)).unwrap(), bytes, "{kv}");
    }
}

#[test]
fn the_longest_context_counts_window_and_sinks_as_f16() {
    let shape = from_config(SEVENTY_B);
    let kept = Uncompressed { sinks: 4, hot: 128 };
    let (memory, raw) = (34_000_000_000_u64, 327_680);
    // Pages have headers. The f16 tokens before them have none.
    let headers = (80 * 8 * 2 * CacheSpec::PAGE_HEADER_BYTES / PAGE_TOKENS) as u64;
    for (kv, coded) in [("s4", 84_480), ("f16", raw)] {
        let tokens = shape.max_tokens(&life(kv, kept), memory).unwrap();
        let bytes = |tokens: u64| 132 * raw + (tokens - 132) * (coded + headers);
        assert!(bytes(tokens) <= memory && bytes(tokens + 1) > memory, "{kv}: {tokens}");
    }
    // A budget smaller than the window holds only part of the window.
    assert_eq!(shape.max_tokens(&life("s2", kept), 10 * raw + 1).unwrap(), 10);
    assert_eq!(shape.max_tokens(&life("s2", kept), raw - 1).unwrap(), 0);
}

#[test]
fn the_bytes_of_a_context_are_those_that_fit() {
    let kept = Uncompressed { sinks: 4, hot: 64 };
    let full = CacheShape::new(6, 2, 128);
    for shape in [full.clone(), full.clone().with_windows(2, 1024)] {
        for tokens in [3, 68, 100_003] {
            let bytes = shape.bytes(&life("s3", kept), tokens).unwrap();
            assert_eq!(shape.max_tokens(&life("s3", kept), bytes).unwrap(), tokens);
            assert_eq!(shape.max_tokens(&life("s3", kept), bytes - 1).unwrap(), tokens - 1);
        }
    }
    assert_eq!(full.bytes(&life("s4", kept), 68).unwrap(), 6 * 2 * 68 * 512);
}

#[test]
fn values_count_with_their_own_dim() {
    let narrow = changed(&CacheShape::new(2, 3, 128), |layer| layer.value_dim = 64);
    let per_head = |dim: usize| dim as u64 / 2 + 2;
    assert_eq!(narrow.bytes_per_token(codecs("s4")).unwrap(), 6 * (per_head(128) + per_head(64)));
    assert_eq!(narrow.bytes_per_token(codecs("f16")).unwrap(), 6 * 2 * (128 + 64));
    assert_eq!(narrow.ring_bytes_per_token(codecs("s4")).unwrap(), 6 * (per_head(128) + per_head(64)));
    let kept = Uncompressed { sinks: 4, hot: 64 };
    assert_eq!(narrow.bytes(&life("s4", kept), 68).unwrap(), 6 * 68 * 2 * (128 + 64));
    let odd = changed(&narrow, |layer| layer.value_dim = 100);
    for error in [odd.bytes_per_token(codecs("s4")), odd.ring_bytes_per_token(codecs("s4"))] {
        assert!(error.unwrap_err().to_string().starts_with("head dim 100 is not one of codecs s4,s4"));
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
    let shape = CacheShape::new(usize::MAX, 2, 128);
    assert!(matches!(shape.bytes_per_token(codecs("s4")), Err(PlanError::TooLarge)));
    let shape = CacheShape::new(1, 1, 100);
    let error = shape.bytes_per_token(codecs("s4")).unwrap_err().to_string();
    assert!(error.contains("100") && error.contains("s4,s4"), "{error}");
}

#[test]
fn windows_bound_their_layers_and_the_context_bounds_all() {
    let kept = Uncompressed { sinks: 4, hot: 64 };
    let full = CacheShape::new(6, 1, 128);
    let windowed = full.clone().with_windows(5, 1024);
    let memory = 100_000_000;
    let [all, one] = [&full, &windowed].map(|shape| shape.max_tokens(&life("s4", kept), memory).unwrap());
    assert!(one > 5 * all && one < 6 * all, "{one} {all}");
    assert_eq!(windowed.bytes_per_token(codecs("s4")).unwrap(), 6 * 132);
    assert_eq!(windowed.bytes_past_window(codecs("s4")).unwrap(), Some(132));
    let short = CacheShape { context: Some(4096), ..windowed.clone() };
    assert_eq!(short.max_tokens(&life("s4", kept), memory).unwrap(), 4096);
    let bounded = full.with_windows(6, 1024);
    assert_eq!(bounded.max_tokens(&life("s4", kept), memory).unwrap(), u64::MAX);
}

/// The planned bytes of 1024 tokens equal the growth of a cache by 1024 tokens in whole pages.
#[test]
fn a_token_takes_what_a_cache_allocates_for_it() {
    use tqkv::cache::{Centring, KvCache};
    for dim in [64, 80, 96, 128] {
        for kv in ["f16", "i8", "s4", "t4", "t2h", "n3", "q8_0"] {
            let codecs = codecs(kv);
            let Ok(planned) = CacheShape::new(1, 1, dim).bytes_per_token(codecs) else { continue };
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
    let none = Uncompressed { sinks: 0, hot: 0 };
    // The published bytes count blocks only. A cache has page headers too.
    let headers = 1.0 + CacheSpec::PAGE_HEADER_BYTES as f64 / (256 * PAGE_TOKENS) as f64;
    let f16 = shape.max_tokens(&life("f16", none), memory[0]).unwrap() as f64 * headers;
    let blocks = "f16=256".parse::<Foreign>().unwrap().max_tokens(&shape, memory[0]).unwrap();
    assert!((f16 - blocks as f64).abs() < 2.0, "{f16} {blocks}");
    assert_eq!(shape.bytes_per_token(codecs("q8_0")).unwrap(), 174_080, "with its scales");
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
    let none = Uncompressed { sinks: 0, hot: 0 };
    let f16 = full(32, 32, 128).bytes(&life("f16", none), 32 << 10).unwrap();
    let headers = 2 * CacheSpec::PAGE_HEADER_BYTES * 32 * 32 * (32 << 10) / PAGE_TOKENS;
    assert_eq!(f16, 17_179_869_184 + headers as u64);
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
    use tqkv::cache::KvCache;
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
        // Wide blocks make page headers small, so fewer tokens will do. Rows beside pages still have to be
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
    let kept = Uncompressed { sinks: 4, hot: 64 };
    let planned = |key_map, tokens| {
        let life = Life { key_map, ..life("t2", kept) };
        shape.bytes(&life, tokens).unwrap()
    };
    let (few, many) = (68 + 128, 68 + 16 * 128 + 1);
    assert_eq!(planned(KeyMap::Pairs, 68), planned(KeyMap::Off, 68), "no token is encoded");
    let added = |key_map, tokens| planned(key_map, tokens) - planned(KeyMap::Off, tokens);
    assert_eq!(added(KeyMap::Pairs, few), added(KeyMap::Pairs, many), "one map serves all positions");
    // Codes of quarters have one by themselves, in a tier too, where they have the head dim and there is no ring.
    let of = |dim, text: &str| {
        let life = text.parse::<Policy>().unwrap().life().unwrap();
        CacheShape::new(2, 3, dim).map_bytes(&life, few)
    };
    for text in ["m2,t2", "t4,t2 tier=128:m2,t2"] {
        let off = format!("{text} map=off");
        let ring = format!("{text} ring=4096");
        assert_eq!((of(64, text), of(80, text)), (added(KeyMap::Pairs, few), 0), "{text}");
        assert_eq!((of(64, &off), of(64, &ring)), (0, 0), "{text}");
    }
    assert_eq!((of(80, "t2"), of(80, "t2 map=pairs") > 0), (0, true));
}

#[test]
fn means_for_a_selection_are_counted() {
    let shape = CacheShape::new(1, 1, 128);
    let kept = Uncompressed { sinks: 4, hot: 64 };
    let spec = |select| CacheSpec { select, ..shape.groups[0].0.spec().codecs(CodecId::S4, CodecId::S4) };
    let counted = |select| {
        let life = Life { select, ..life("s4", kept) };
        let (held, planned) = (held(spec(select), 8192), shape.bytes(&life, 8192).unwrap());
        assert!((0.97..1.03).contains(&(held as f64 / planned as f64)), "{held} held, {planned} planned");
        held as f64
    };
    let share = counted(Some(2048)) / counted(None) - 1.0;
    assert!((0.055..0.065).contains(&share), "{share} more");
    let per_token = shape.selection_bytes_per_token(&Life { select: Some(2048), ..life("s4", kept) });
    let codes = shape.bytes_per_token(codecs("s4")).unwrap();
    assert!((0.06..0.07).contains(&(per_token as f64 / codes as f64)), "{per_token} next to {codes}");
}

/// Exact tokens up to the limit, about as many bytes while tokens are narrowed, and later those of the codes.
#[test]
fn bytes_before_narrowing_are_counted() {
    let shape = CacheShape::new(1, 1, 128);
    let life = Life { narrow_at: Some(1 << 20), ..life("s4", Uncompressed { sinks: 4, hot: 64 }) };
    let spec = shape.groups[0].0.spec().codecs(CodecId::S4, CodecId::S4).narrow_at(1 << 20);
    for tokens in [512, 1536, 2048, 3072, 6144, 8192, 32_768] {
        let (held, planned) = (held(spec.clone(), tokens), shape.bytes(&life, tokens as u64).unwrap());
        assert!(
            (0.95..1.02).contains(&(held as f64 / planned as f64)),
            "{tokens}: {held} held, {planned} planned"
        );
    }
    let longest = |memory| shape.max_tokens(&life, memory).unwrap();
    let plain = Life { narrow_at: None, ..life.clone() };
    assert_eq!(longest(4 << 20), shape.max_tokens(&plain, 4 << 20).unwrap());
    assert!((1022..1025).contains(&longest(512 << 10)), "in half of the limit all tokens are exact");
}

/// Bytes that a cache of a kind holds, over the planned ones.
fn held_over_planned(Kind { shape, codec, tokens, .. }: &Kind) -> f64 {
    use tqkv::cache::Centring;
    use tqkv_core::{Effort, Options};
    let kept = Uncompressed { sinks: 4, hot: 64 };
    let life = Life { codecs: KvCodecs { k: *codec, v: *codec }, ..life("s4", kept) };
    let options = Options::DEFAULT.effort(Effort::Fast);
    let spec = shape.groups[0].0.spec().codecs(*codec, *codec).options(options).centring(Centring::Off);
    held(spec, *tokens) as f64 / shape.bytes(&life, *tokens as u64).unwrap() as f64
}

/// The common kinds by default, all with `TQKV_EXHAUSTIVE=1`.
#[test]
fn plans_are_within_three_percent_of_what_caches_hold() {
    use rayon::prelude::*;
    let whole = std::env::var_os("TQKV_EXHAUSTIVE").is_some_and(|value| value == "1");
    let kinds = kinds(whole);
    let ratios: Vec<f64> = kinds.par_iter().map(held_over_planned).collect();
    let off = |(_, ratio): &(&Kind, &f64)| !(0.97..1.03).contains(*ratio);
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
    let f16 = codecs("f16");
    assert_eq!(shape.bytes_per_token(f16).unwrap(), 901_120);
    assert_eq!(shape.bytes_past_window(f16).unwrap(), Some(81_920));
    assert_eq!((shape.num_layers(), shape.uniform(), shape.windowed()), (60, None, Some((50, 1024))));
    let kept = Uncompressed { sinks: 4, hot: 64 };
    let alone = |i: usize| {
        let groups = vec![shape.groups[i]];
        CacheShape { groups, context: None }.bytes(&life("s4", kept), 100_000).unwrap()
    };
    let both = shape.bytes(&life("s4", kept), 100_000).unwrap();
    assert!(both.abs_diff(alone(0) + alone(1)) <= 1, "{both}");
    assert_eq!(shape.max_tokens(&life("s4", kept), both).unwrap(), 100_000);
}

/// A ring takes its memory at once, and the plan says how much.
#[test]
fn a_ring_takes_what_a_cache_allocates_for_it() {
    use tqkv::cache::{Centring, KvCache};
    let kept = Uncompressed { sinks: 4, hot: 64 };
    let shape = CacheShape::new(1, 2, 128);
    for (kv, tokens) in [("s4", 8192), ("t2", 4000), ("f16", 4096)] {
        let pair = codecs(kv);
        let spec = CacheSpec::new(1, 2, 2, 128).codecs(pair.k, pair.v).centring(Centring::Off).ring(tokens);
        let held = KvCache::new(spec).unwrap().stats().allocated_bytes;
        let life = Life { ring: Some(tokens as u64), ..life(kv, kept) };
        let planned = [1, 1 << 30].map(|tokens| shape.bytes(&life, tokens).unwrap());
        assert_eq!(planned[0], planned[1], "{kv}");
        let ratio = held as f64 / planned[0] as f64;
        assert!((0.9..1.1).contains(&ratio), "{kv}: {held} of {planned:?}");
        assert_eq!(shape.max_tokens(&life, planned[0]).unwrap(), u64::MAX);
        assert_eq!(shape.max_tokens(&life, planned[0] - 1).unwrap(), 0);
    }
}
