use super::conflicts::CONFLICTS;
use super::*;
use crate::cache::layer::{LayerKind, LayerPolicy, LayerShape};
use crate::cache::spec::{Arithmetic, Centring, Cold, KeyMap};
use proptest::prelude::*;
use proptest::sample::select;
use tqkv_core::{CodecId, Effort, Options, ScaleMode};
use tqkv_simd::{Level, LevelName};

/// A shape that suits every option.
const SHAPE: &str = "layers=2 heads=4 kv-heads=2 head-dim=64";

fn parse(text: &str) -> CacheSpec {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// `SHAPE` with the word of an option replaced or added.
fn with(option: &SpecOption) -> String {
    let name = format!("{}=", option.name);
    let others = SHAPE.split(' ').filter(|word| !word.starts_with(&name));
    let words: Vec<_> = others.map(str::to_owned).chain([format!("{name}{}", option.example)]).collect();
    words.join(" ")
}

#[test]
fn every_option_is_read_changes_the_spec_and_is_written_again() {
    for option in OPTIONS {
        let text = with(option);
        let spec = parse(&text);
        assert_ne!(spec, parse(SHAPE), "{text}");
        assert_eq!(parse(&spec.to_string()), spec, "{text}: {spec}");
        let word = if option.name == options::CODECS { "" } else { option.name };
        let word = format!("{word}{}{}", if word.is_empty() { "" } else { "=" }, option.example);
        assert!(spec.to_string().split(' ').any(|found| found == word), "{word}: {spec}");
        if option.part == OptionPart::Policy {
            let policy: Policy = format!("{}={}", option.name, option.example).parse().unwrap();
            assert_eq!(policy.apply(parse(SHAPE)), spec, "{text}");
            assert_eq!(policy.to_string(), word);
        }
    }
}

#[test]
fn the_default_needs_no_more_words_than_its_shape() {
    let spec = CacheSpec::new(2, 4, 2, 64);
    assert_eq!(spec.to_string(), format!("{SHAPE} s4,s4"));
    assert_eq!(parse(SHAPE), spec);
    assert_eq!(parse("head-dim=64 heads=4 layers=2"), CacheSpec::new(2, 4, 4, 64), "in any order");
    let latent = CacheSpec::mla(2, 4, 48, 16);
    assert_eq!(latent.to_string(), "layers=2 heads=4 kv-heads=1 head-dim=64 position-dim=16 s4,s4");
    assert_eq!(parse(&latent.to_string()), latent);
}

#[test]
fn words_without_a_name_are_codecs_and_rules_of_layers() {
    let spec = parse(&format!("{SHAPE} Balanced last:I8 hot=0"));
    let last = LayerPolicy::Tail { layers: 1, codecs: (CodecId::I8, CodecId::I8) };
    assert_eq!((spec.key, spec.value, spec.layers, spec.hot), (CodecId::S4, CodecId::S4, last, 0));
    let rules = [
        ("tail:2:t4,t2", LayerPolicy::Tail { layers: 2, codecs: (CodecId::T4, CodecId::T2) }),
        (
            "gradient:i8/s4,s3",
            LayerPolicy::Gradient(vec![(CodecId::I8, CodecId::I8), (CodecId::S4, CodecId::S3)]),
        ),
        ("each:i8/small", LayerPolicy::Custom(vec![(CodecId::I8, CodecId::I8), (CodecId::M3, CodecId::T2)])),
        (
            "each:2*i8/s4",
            LayerPolicy::Custom(
                [[(CodecId::I8, CodecId::I8); 2].as_slice(), &[(CodecId::S4, CodecId::S4)]].concat(),
            ),
        ),
        ("layer-kv=uniform", LayerPolicy::Uniform),
    ];
    for (rule, expected) in rules {
        assert_eq!(parse(&format!("{SHAPE} s4 {rule}")).layers, expected, "{rule}");
    }
}

#[test]
fn a_policy_changes_what_it_names_and_nothing_else() {
    let demote = |codec| Cold::Demote { key: codec, value: codec };
    let base = CacheSpec::new(4, 4, 2, 64).codecs(CodecId::I8, CodecId::S4).scale(0.5).hot(0);
    let base = base.cold(9, demote(CodecId::S3)).cold(99, Cold::Spill("/a".into()));
    let spec = base.clone().with("sinks=1 tier=512:n2 tier=256:n3").unwrap();
    let tiers = vec![(256, demote(CodecId::N3)), (512, demote(CodecId::N2)), (99, Cold::Spill("/a".into()))];
    assert_eq!(
        spec,
        CacheSpec { cold: tiers, ..base.clone().sinks(1) },
        "tiers by age, the file behind them"
    );
    assert_eq!(
        spec.with("tier=none spill=none").unwrap(),
        CacheSpec { cold: Vec::new(), ..base.clone().sinks(1) }
    );
    let spaced = base.with("'spill=600:/my disk/its'").unwrap();
    assert_eq!(spaced.cold.last(), Some(&(600, Cold::Spill("/my disk/its".into()))));
    assert_eq!(parse(&spaced.to_string()), spaced);
}

#[test]
fn presets_stand_for_codecs_and_options_that_other_words_may_change() {
    let spec = |text: &str| CacheSpec::new(4, 4, 2, 64).with(text).unwrap();
    assert_eq!(spec("tiered"), spec("m3,t4 hot=16 tier=128:m3,t2"));
    assert_eq!(spec("kv=tiered hot=64 sinks=1"), spec("m3,t4 hot=64 sinks=1 tier=128:m3,t2"));
    assert_eq!(spec("tier=none tiered"), spec("m3,t4 hot=16"));
    let policy: Policy = "tiered".parse().unwrap();
    assert_eq!(policy.to_string(), "m3,t4 hot=16 tier=128:m3,t2");
    assert_eq!(spec("TINY ring=4096"), spec("m3,t2 hot=16 tier=1024:m2,t2 ring=4096"));
    for (text, said) in
        [("t4 tier=512:tiny", "'tiny' is a policy for all tokens"), ("s4 last:tiered", "'tiered' is")]
    {
        let error = CacheSpec::new(4, 4, 2, 64).with(text).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_text_that_is_refused_says_what_is_accepted() {
    for (text, expected) in [
        ("", "an empty text is not valid: expected codecs or kv=, layer-kv=, hot="),
        (
            "n5",
            "kv=n5 is not valid: expected kv=PRESET|K,V, such as kv=t4,t2: 'n5' is neither a preset (eight-bit",
        ),
        ("s4,s9", "'s9' is not a codec (f16, i8, t4"),
        ("s4,tiny", "'tiny' is a preset, which stands for both parts"),
        ("s4,s4,s4", "'s4,s4,s4' has 3 parts"),
        ("s4 s3", "kv=s3 is not valid: kv is given twice"),
        ("n4 hot=-1", "hot=-1 is not valid: expected hot=TOKENS, such as hot=32"),
        ("n4 hot", "hot= is not valid: expected hot=TOKENS"),
        ("hot=1 hot=1", "hot is given twice"),
        ("n4 tier=256", "tier=256 is not valid: expected tier=AFTER:K,V, such as tier=256:s2,s2"),
        ("n4 tier=x:n3", "'x' is not a number of tokens"),
        ("n4 spill=256:", "spill=256: is not valid: expected spill=AFTER:FOLDER, such as spill=4096:/tmp"),
        ("n4 middle:1:i8", "layer-kv=middle:1:i8 is not valid: expected layer-kv=RULE"),
        ("n4 tail:one:i8", "'one' is not a number of layers"),
        ("n4 effort=fats", "effort=fats is not valid: expected effort=fast|default|best"),
        ("n4 level=x87", "level=x87 is not valid"),
        ("n4 cold=256:n3", "cold= is not valid: expected kv=, layer-kv=, hot="),
        ("n4 layers=3", "layers= is not valid here, as it is a property of the model"),
        ("n4 'hot=1", "is not valid: expected a closing quote"),
    ] {
        let error = text.parse::<Policy>().unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
    }
    for (text, expected) in [
        ("layers=2 heads=4 t4", "head-dim is missing: expected head-dim=N"),
        ("layers=2 heads=4 head-dim=64 kinds=9*", "kinds=9* is not valid"),
        (
            "layers=2 heads=4 head-dim=64 kinds=65537*full",
            "'65537*full' does not stand for 1 to 65536 layers",
        ),
        ("layers=2 heads=4 head-dim=64 kinds=0*full", "does not stand for 1 to"),
    ] {
        let error = text.parse::<CacheSpec>().unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

fn codec() -> impl Strategy<Value = CodecId> {
    select(CodecId::ALL)
}

fn layers() -> impl Strategy<Value = LayerPolicy> {
    let pairs = || prop::collection::vec((codec(), codec()), 1..5);
    prop_oneof![
        Just(LayerPolicy::Uniform),
        (0..9_usize, codec(), codec())
            .prop_map(|(layers, k, v)| LayerPolicy::Boundary { layers, codecs: (k, v) }),
        (0..9_usize, codec(), codec())
            .prop_map(|(layers, k, v)| LayerPolicy::Tail { layers, codecs: (k, v) }),
        pairs().prop_map(LayerPolicy::Gradient),
        pairs().prop_map(LayerPolicy::Custom),
    ]
}

fn kinds() -> impl Strategy<Value = Vec<LayerKind>> {
    let kind = prop_oneof![
        Just(LayerKind::Full),
        Just(LayerKind::None),
        any::<usize>().prop_map(LayerKind::Sliding)
    ];
    prop::collection::vec(kind, 0..6)
}

fn layer_shapes() -> impl Strategy<Value = Vec<LayerShape>> {
    let shape = prop::array::uniform3(any::<usize>());
    let shape = shape.prop_map(|[num_kv_heads, head_dim, value_dim]| LayerShape {
        num_kv_heads,
        head_dim,
        value_dim,
    });
    prop::collection::vec(shape, 0..6)
}

/// Tiers in order of age, then a spill file. Its folder may have any name.
fn cold() -> impl Strategy<Value = Vec<(usize, Cold)>> {
    let tiers = prop::collection::btree_map(any::<usize>(), (codec(), codec()), 0..4);
    (tiers, prop::option::of((any::<usize>(), "\\PC+"))).prop_map(|(tiers, file)| {
        let tier = |(after, (key, value))| (after, Cold::Demote { key, value });
        let file = file.map(|(after, folder)| (after, Cold::Spill(folder.into())));
        tiers.into_iter().map(tier).chain(file).collect()
    })
}

/// Any finite number.
fn float() -> impl Strategy<Value = f32> {
    prop::num::f32::NORMAL | prop::num::f32::SUBNORMAL | prop::num::f32::ZERO
}

prop_compose! {
    fn policies()(
        (key, value, layers, cold) in (codec(), codec(), layers(), cold()),
        (hot, sinks) in (any::<usize>(), any::<usize>()),
        [sliding_window, select, ring, max_tokens, narrow_at] in prop::array::uniform5(any::<Option<usize>>()),
        centring in select(vec![Centring::Off, Centring::On, Centring::Auto]),
        key_map in select(vec![KeyMap::Auto, KeyMap::Off, KeyMap::Pairs]),
        arithmetic in select(vec![Arithmetic::Int8, Arithmetic::F32]),
        (seed, mode, effort) in (any::<u64>(), select(&ScaleMode::ALL), select(&Effort::ALL)),
        level in any::<bool>(),
    ) -> CacheSpec {
        CacheSpec {
            key, value, layers, cold, hot, narrow_at, sinks, sliding_window, select, ring, max_tokens, centring,
            key_map, arithmetic,
            options: Options::DEFAULT.seed(seed).scale_mode(mode).effort(effort),
            level: level.then(|| Level::new(LevelName::Portable).unwrap()),
            // The caller sets the shape. There is no `..` here, so a new option does not compile until it is
            // listed.
            shape: KvShape::new(0, 0, 0, 0),
            position_dim: 0,
            kinds: Vec::new(),
            layer_shapes: Vec::new(),
            scale: None,
            soft_cap: None,
            sink_logits: Vec::new(),
        }
    }
}

proptest! {
    #[test]
    fn every_spec_is_read_as_it_was_written(
        policy in policies(),
        shape in prop::array::uniform5(any::<usize>()),
        position_dim in prop_oneof![Just(0), any::<usize>()],
        (kinds, layer_shapes) in (kinds(), layer_shapes()),
        (scale, soft_cap) in (prop::option::of(float()), prop::option::of(float())),
        sink_logits in prop::collection::vec(float(), 0..4),
    ) {
        let [layers, heads, kv_heads, head_dim, value_dim] = shape;
        let shape = KvShape::new(layers, heads, kv_heads, head_dim).with_value_dim(value_dim);
        let spec = CacheSpec { shape, position_dim, kinds, layer_shapes, scale, soft_cap, sink_logits, ..policy };
        prop_assert_eq!(spec.to_string().parse::<CacheSpec>(), Ok(spec));
    }
}

/// Values that some option takes in some way, and values that none takes.
const ODD: [&str; 40] = [
    "0",
    "1",
    "2",
    "7",
    "16",
    "64",
    "128",
    "+5",
    "007",
    "-0",
    "-1",
    "1e-45",
    "1e39",
    "3.5",
    ".5",
    "1.",
    "inf",
    "-inf",
    "nan",
    "NaN",
    "infinity",
    "none",
    "None",
    "uniform",
    "off",
    "on",
    "auto",
    "AUTO",
    "s4",
    "s4, t2",
    "tiny",
    "m3,t4",
    "2*full/none",
    "1*7",
    "65536*full",
    "2x64/2x64x32",
    "128:t2,t2",
    "64: t2",
    "5:/a b'c\"d\\e\n#\u{1}",
    "0.5/-0/1e-45",
];

proptest! {
    /// What is accepted is written as a text that is read as the same, and a policy too.
    #[test]
    fn what_is_accepted_is_written_again(
        words in prop::collection::vec((select(OPTIONS), select(&ODD[..])), 0..6),
        rule in select(vec!["", "last:tiny", "tail:0:s4", "boundary:2:i8,s4", "gradient:s4/t2,t3", "each:s4/s4", "uniform"]),
    ) {
        let quoted = |word: &str| shlex::Quoter::new().allow_nul(true).quote(word).unwrap().into_owned();
        let mut text: Vec<_> =
            words.iter().map(|(option, value)| quoted(&format!("{}={value}", option.name))).collect();
        text.extend((!rule.is_empty()).then(|| format!("layer-kv={rule}")));
        let text = text.join(" ");
        if let Ok(spec) = CacheSpec::new(2, 4, 2, 64).with(&text) {
            prop_assert_eq!(spec.to_string().parse::<CacheSpec>(), Ok(spec), "{}", text);
        }
        if let Ok(policy) = text.parse::<Policy>() {
            let (again, spec) = (policy.to_string(), CacheSpec::new(2, 4, 2, 64));
            prop_assert_eq!(again.parse::<Policy>().map(|policy| policy.apply(spec.clone())), Ok(policy.apply(spec)), "{}", text);
        }
    }
}

/// The guide lists every option as in [`OPTIONS`]. A cache in main memory that holds a sequence has all of them.
#[test]
fn the_guide_lists_every_option() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/options.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    for option in OPTIONS {
        let SpecOption { name, value, help, example, .. } = option;
        let value = value.replace('|', "\\|");
        let default = match option.part {
            // A model has no defaults.
            OptionPart::Model => String::new(),
            OptionPart::Policy => format!(" {} |", option.default().unwrap_or("-".to_owned())),
        };
        let doors = Door::ALL.map(|door| if door.has(option) { "yes" } else { "-" }).join(" | ");
        let row = format!("| `{name}={value}` | `{name}={example}` |{default} {doors} | {help} |");
        assert!(guide.contains(&row), "docs/options.md lacks {row}");
    }
    let heads = Door::ALL.map(Door::name).join(" | ");
    assert_eq!(guide.matches(&format!("| {heads} | what it is |")).count(), 2);
    for conflict in CONFLICTS {
        let ([first, second], why) = (conflict.options, conflict.why);
        let row = format!("| `{first}` | `{second}` | {why} |");
        assert!(guide.contains(&row), "docs/options.md lacks {row}");
    }
    let rows = guide.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, OPTIONS.len() + CONFLICTS.len());
}

/// What two words with these values make of [`SHAPE`], if a cache can have it.
fn checked(words: [&str; 2]) -> Result<(), String> {
    let value = |word: &str| match OPTIONS.iter().find(|option| word == format!("{}=", option.name)) {
        Some(option) => format!("{word}{}", option.example),
        None => word.to_owned(),
    };
    let text = format!("{SHAPE} {}", words.map(value).join(" "));
    parse(&text).check().map_err(|error| error.to_string())
}

/// Each row of the table is refused with its text, either alone is not, and no other pair of options is refused.
#[test]
fn only_the_pairs_of_the_table_are_refused() {
    for conflict in CONFLICTS {
        let message = checked(conflict.options).unwrap_err();
        assert!(message.contains(&conflict.message()), "{message}");
        conflict.options.iter().for_each(|&word| assert_eq!(checked([word, ""]), Ok(()), "{word}"));
    }
    // These are refused for values that do not fit each other.
    let fitted = ["layers", "heads", "kv-heads", "head-dim", "value-dim", "sink-logits", "kv"];
    let words = OPTIONS.iter().filter(|option| !fitted.contains(&option.name));
    let words: Vec<_> = words.map(|option| format!("{}=", option.name)).collect();
    for (i, first) in words.iter().enumerate() {
        for second in &words[i + 1..] {
            let is_row = |conflict: &conflicts::Conflict| {
                let names = conflict.options.map(|word| word.split_inclusive('=').next().unwrap());
                names == [first, second] || names == [second, first]
            };
            let refused = checked([first, second]);
            assert_eq!(refused.is_err(), CONFLICTS.iter().any(is_row), "{first} {second}: {refused:?}");
        }
    }
}

/// Each door takes the defaults of every option, and refuses by name what it has not.
#[test]
fn doors_refuse_what_they_have_not() {
    let shape = || CacheSpec::new(3, 8, 8, 128);
    for door in Door::ALL {
        assert_eq!(door.refused(&shape()), [""; 0]);
        for option in OPTIONS.iter().filter(|option| !option.is_needed) {
            let spec = shape().with(&format!("{}={}", option.name, option.example)).unwrap();
            let refused = door.refused(&spec).join(" ");
            assert!(!(door.has(option) && refused.contains(option.name)), "{door:?}: {refused}");
        }
        let lacking = door.refused(&shape().with("s4 select=256 hot=8 ring=4096").unwrap());
        assert_eq!(lacking, ["select=256", "ring=4096"]);
    }
    assert_eq!(Door::Gpu.refused(&shape().with("map=off centring=off arithmetic=f32").unwrap()), [""; 0]);
    assert_eq!(Door::Gpu.refused(&shape().with("map=pairs").unwrap()), ["map=pairs"]);
    assert_eq!(Door::Slots.refused(&shape().with("map=off tier=256:s2").unwrap()), [""; 0]);
    assert_eq!(
        Door::TorchGpu.refused(&shape().with("level=portable max-tokens=9").unwrap()),
        ["max-tokens=9"]
    );
}
