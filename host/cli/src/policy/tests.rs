use super::*;
use crate::plan::CacheShape;
use tqkv::cache::{KvCache, LayerKind, PRESETS};
use tqkv_core::CodecId;

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

fn spec(text: &str) -> CacheSpec {
    policy(text).apply(CacheSpec::new(4, 2, 1, 128))
}

fn demote(codec: CodecId) -> Cold {
    Cold::Demote { key: codec, value: codec }
}

#[test]
fn a_text_says_codecs_and_all_settings() {
    let bare = spec("t4,t2");
    assert_eq!((bare.key, bare.value), (CodecId::T4, CodecId::T2));
    assert_eq!((bare.hot, bare.sinks), (CacheSpec::DEFAULT_HOT, CacheSpec::DEFAULT_SINKS));
    let text = " t4,t4   hot=0 sinks=8 tier=128:t2 spill=600:/tmp layer-kv=boundary:2:i8,s4 ";
    let (written, made) = (policy(text), spec(text));
    assert_eq!(written.name.label(), text.split_whitespace().collect::<Vec<_>>().join(" "));
    assert_eq!(made.cold, [(128, demote(CodecId::T2)), (600, Cold::Spill("/tmp".into()))]);
    assert_eq!(made.layers, LayerPolicy::Boundary { layers: 2, codecs: (CodecId::I8, CodecId::S4) });
    assert_eq!((made.hot, made.sinks), (0, 8));
    assert_eq!(spec("hot=32").key, CodecId::S4, "the default");
    assert!(policy("f16").is_uniform() && !policy("t4 last:i8").is_uniform());
}

/// A row is named by its pair where the text says no more.
#[test]
fn labels_name_the_pair_or_the_text() {
    for (text, label, has_text) in [
        ("s4", "s4,s4 balanced", false),
        ("balanced", "s4,s4 balanced", false),
        ("kv=s2,s3", "s2,s3", false),
        ("s2,  s3", "s2,s3", false),
        ("TQ3", "tq3,tq3", false),
        ("i8, p3", "i8,p3", false),
        ("s4 hot=64", "s4 hot=64", true),
        ("tiered", "tiered", true),
        ("m3,t4", "m3,t4", false),
    ] {
        let name = policy(text).name;
        assert_eq!((name.label().as_str(), name.policy.is_some()), (label, has_text), "{text}");
    }
    assert_eq!(policy("f16"), Policy::from(F16), "the reference of comparisons is named once");
    assert!(PRESETS.iter().all(|preset| policy(preset.name) == Policy::from(preset)));
    assert!(policy("tq3").is_reference() && policy("tq3").planned(placeholder()).is_err());
}

/// A table has runs of layers, and the name for programs has all of them.
#[test]
fn labels_count_layers() {
    let text = |layers: &[&str]| format!("m2,t2 hot=16 layer-kv=each:{}", layers.join("/"));
    let layers = [&["m2,t2"; 17][..], &["t4,t2"; 2], &["m2,t2"], &["t4,t2"; 10]].concat();
    let name = policy(&text(&layers)).name;
    assert_eq!(name.label(), text(&["17*m2,t2", "2*t4,t2", "m2,t2", "10*t4,t2"]));
    assert_eq!(name.to_string(), text(&layers));
    for (given, label) in
        [("each:t4/t2", "each:t4,t4/t2,t2"), ("each:2*t4/t4/2*t2/2*t2", "each:3*t4,t4/4*t2,t2")]
    {
        assert_eq!(policy(&format!("t4 {given}")).name.label(), format!("t4 {label}"));
    }
}

#[test]
fn the_codec_of_another_program_has_a_window_and_a_command() {
    let other = policy("hot=32 sinks=0 program=python3 'my codec.py' --bits 2");
    assert_eq!(other.program().unwrap(), ["python3", "my codec.py", "--bits", "2"]);
    assert_eq!(other.name.label(), "hot=32 sinks=0 program=python3 my codec.py --bits 2");
    assert!(other.is_reference() && other.is_compressed());
    let spec = other.apply(placeholder());
    assert_eq!((spec.key, spec.hot, spec.sinks), (CodecId::F16, 32, 0));
    assert_eq!(other.name.bytes("12".to_owned()), "12 simulated");
}

#[test]
fn a_yardstick_codes_every_token_or_has_a_window() {
    let bare = policy("nvfp4");
    assert!(bare.is_reference() && !bare.is_compressed() && bare.name.policy.is_none());
    for text in ["nvfp4,u4 hot=16 sinks=0", "hot=16 nvfp4,u4 sinks=0"] {
        let windowed = policy(text);
        assert!(windowed.is_compressed() && windowed.is_reference() && windowed.program().is_none());
        assert_eq!(
            (windowed.name.label().as_str(), windowed.name.kv.to_string().as_str()),
            (text, "nvfp4,u4")
        );
        assert_eq!((windowed.window().hot, windowed.window().sinks), (16, 0));
        assert_eq!(windowed.least_compressed(), 20);
    }
    assert_eq!(policy("tq_k4v3 hot=8").window().sinks, CacheSpec::DEFAULT_SINKS as u64);
    assert_eq!(policy("p3, u4").name.kv.to_string(), "p3,u4");
}

/// The command is one of the interfaces to the same text. Each option makes the same spec as in the
/// library.
#[test]
fn every_option_of_a_policy_is_one_of_the_command() {
    for option in OPTIONS.iter().filter(|option| option.part == OptionPart::Policy) {
        let text = format!("{}={}", option.name, option.example);
        let base = CacheSpec::new(2, 4, 2, 64);
        assert_eq!(policy(&text).apply(base.clone()), base.with(&text).unwrap(), "{text}");
        assert!(help().contains(&format!("\n  {}={}\n", option.name, option.value)), "{text}");
    }
    for (text, expected) in [
        ("", "'' is neither a preset"),
        ("s4 hot", "hot= is not valid: expected hot=TOKENS"),
        ("s4 tier=256", "tier=256 is not valid: expected tier=AFTER:K,V, such as"),
        ("s4 cold=2", "cold= is not valid: expected kv=, layer-kv=, hot="),
        ("zz", "tqkv codecs --all lists them"),
        (
            "p3 tier=9:t2",
            "'tier=9:t2' is not valid for the yardstick 'p3', which no cache stores: expected hot=",
        ),
        ("s4 p3", "'s4' is not valid for the yardstick 'p3'"),
        ("p3 hot=x", "hot=x is not valid"),
        ("s4 program=codec", "'s4' is not valid for the codec of another program: expected hot=TOKENS"),
        ("hot=x program=codec", "hot=x is not valid"),
        ("program=", "program= has no command"),
        ("program='codec", "a quote that does not end"),
    ] {
        let error = text.parse::<Policy>().unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn the_first_token_of_a_tier_is_where_a_cache_has_it() {
    for text in [
        "t4 tier=128:t2",
        "n4 tier=256:n3 tier=512:n2",
        "s4 sinks=9 hot=0 tier=0:s2",
        "s4 hot=200 tier=40:s2",
        "s4 hot=70 spill=300:/tmp",
        "f16 sinks=0 tier=131:q8_0",
    ] {
        let policy = policy(text);
        let mut cache = KvCache::new(policy.apply(placeholder())).unwrap();
        let token = [0.5; 64];
        while cache.stats().cold == 0 {
            cache.append(0, &token, &token).unwrap();
        }
        assert_eq!(policy.least_cold(), Some(cache.len()), "{text}");
    }
    assert_eq!(policy("s4").least_cold(), None);
}

#[test]
fn a_gpu_refuses_what_it_does_not_do() {
    for text in ["t4 tier=256:t2", "s4 spill=9:/tmp", "s4 layer-kv=tail:1:i8", "s4 sliding-window=128"] {
        let why = policy(text).refused_by_gpu().unwrap();
        assert!(why.starts_with(text) && why.contains("--device cpu"), "{why}");
    }
    assert_eq!(policy("s4 hot=0").refused_by_gpu(), None);
}

/// The plan of a policy equals the bytes of its cache, in full layers and in sliding ones. Both are so
/// long that almost all bytes lie in full pages.
#[test]
fn tiers_take_what_a_cache_allocates_for_them() {
    const TOKENS: usize = 40_000;
    for text in [
        "n4 sinks=0",
        "n4 sinks=0 tier=2000:n2",
        "n4 sinks=0 tier=4000:n3 tier=15000:n2",
        "i8 sinks=0 hot=256 tier=0:s4 tier=8192:s2",
        "f16 sinks=0 tier=3000:q8_0",
    ] {
        let policy = policy(text);
        for window in [None, Some(20_000)] {
            let kinds = vec![LayerKind::Full, window.map_or(LayerKind::Full, LayerKind::Sliding)];
            let base = CacheSpec::new(2, 1, 1, 128).kinds(kinds);
            let mut cache = KvCache::new(policy.apply(base)).unwrap();
            let zeros = vec![0.0; 1000 * 128];
            for layer in (0..TOKENS / 1000).flat_map(|_| [0, 1]) {
                cache.append(layer, &zeros, &zeros).unwrap();
            }
            let shape = CacheShape::new(2, 1, 128);
            let shape = window.map_or(shape.clone(), |tokens| shape.with_windows(1, tokens));
            let plan = shape.plan(&policy).unwrap();
            let bytes = plan.bytes(TOKENS as u64).unwrap();
            let ratio = cache.stats().allocated_bytes as f64 / bytes as f64;
            println!("{text}, window {window:?}: {ratio:.4}");
            assert!((0.97..=1.0).contains(&ratio), "{text}, window {window:?}: {ratio} of {bytes}");
            // Where a page goes cold, fewer bytes hold more tokens.
            let apart = plan.max_tokens(bytes).abs_diff(TOKENS as u64);
            assert!(apart < 256 || window.is_some(), "{text}: {apart} apart");
        }
    }
    let error = policy("n4 spill=900:/tmp").planned(placeholder()).unwrap_err();
    assert!(error.starts_with("n4 spill=900:/tmp: files are not planned"), "{error}");
}
