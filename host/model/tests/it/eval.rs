//! Compares evaluation through the compressed cache with `host/model/shipped/figures.json`. The program that
//! made the shipped model measured these figures with its own quantisers. By default a few windows run, and
//! all with `TQKV_EXHAUSTIVE=1`.

use serde_json::Value;
use tqkv::attention::AttentionCache;
use tqkv::cache::{CacheSpec, Centring, KvCache};
use tqkv::error::CacheError;
use tqkv_core::{CodecId, Options, ScaleMode};
use tqkv_model::eval::{EvalReport, EvalSpec, Setting, evaluate};
use tqkv_model::{Model, shipped};
use tqkv_tests::scope::extent;

fn figures() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/shipped/figures.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A cache that quantises every token: no sinks, no hot window, no centring, the norm preserved.
fn setting(model: &Model, codec: CodecId) -> Setting<'_> {
    let config = model.config();
    let new_cache = move || -> Result<Box<dyn AttentionCache>, CacheError> {
        let options = Options::DEFAULT.scale_mode(ScaleMode::Preserving);
        let spec = CacheSpec::from(config.kv_shape())
            .codecs(codec, codec)
            .options(options)
            .sinks(0)
            .hot(0)
            .centring(Centring::Off);
        Ok(Box::new(KvCache::new(spec)?))
    };
    Setting { name: codec.name().to_owned(), new_cache: Box::new(new_cache) }
}

fn run(model: &Model, windows: usize, codecs: &[CodecId]) -> EvalReport {
    run_in_steps(model, windows, None, codecs)
}

fn run_in_steps(model: &Model, windows: usize, step: Option<usize>, codecs: &[CodecId]) -> EvalReport {
    let spec = EvalSpec { step, ..EvalSpec::new(1024, Some(windows)) };
    let settings: Vec<_> = codecs.iter().map(|&codec| setting(model, codec)).collect();
    let reference = setting(model, CodecId::F16);
    let report = evaluate(model, shipped::HELDOUT_TEXT, &spec, &reference, &settings, &mut |_| {});
    let report = report.unwrap();
    println!("{report:#?}");
    report
}

fn relative(got: f64, want: f64) -> f64 {
    (got / want - 1.0).abs()
}

#[test]
fn the_codecs_have_the_figures_perplexity() {
    let figures = figures();
    let rows = &figures["quantized"]["rows"];
    let number = |row: &str, field: &str| rows[row][field].as_f64().unwrap();
    let model = Model::shipped().unwrap();
    let cases = [
        (CodecId::S4, "K4V4", 0.005),
        (CodecId::S3, "K3V3", 0.005),
        (CodecId::S2, "K2V2", 0.005),
        (CodecId::Q8_0, "q8_0", 0.0005),
        (CodecId::Q4_0, "q4_0", 0.001),
    ];
    let report = run(&model, extent(4, 48), &cases.map(|(codec, ..)| codec));
    // The first four windows are harder than all 48, so they have a perplexity of their own here. For them
    // the test compares the increase by each codec.
    let reference = extent(2.6724, number("f16", "ppl"));
    assert!(relative(report.reference.perplexity, reference) < 0.001, "f16: {}", report.reference.perplexity);
    let base = extent(report.reference.perplexity / number("f16", "ppl"), 1.0);
    for (result, (codec, row, tolerance)) in report.results.iter().zip(cases) {
        let (got, want) = (result.perplexity / base, number(row, "ppl"));
        assert!(relative(got, want) < extent(8.0, 1.0) * tolerance, "{codec:?}: {got} {want}");
        let agreement = number(row, "top1_agree");
        let off = (result.top1_agreement - agreement).abs();
        assert!(off < extent(0.02, 0.01), "{codec:?}: {}", result.top1_agreement);
        assert!(relative(result.kl, number(row, "kl_nats")) < extent(0.3, 0.15), "{codec:?}: {}", result.kl);
    }
}

#[test]
fn the_outlier_variant_spares_rotated_codes() {
    let figures = figures();
    let rows = &figures["outlier_variant"]["rows"];
    let model = Model::shipped().unwrap().into_outlier_variant().unwrap();
    let cases = [(CodecId::S4, "K4V4", 0.01), (CodecId::Q4_0, "q4_0", 0.002)];
    let report = run(&model, extent(2, 16), &cases.map(|(codec, ..)| codec));
    let figure = |row: &str| rows[row]["outlier"]["ppl"].as_f64().unwrap();
    let off = report.reference.perplexity / figure("f32");
    assert!((off - 1.0).abs() < extent(0.1, 0.001), "f16: {off} times the figure");
    let base = extent(off, 1.0);
    for (result, (codec, row, tolerance)) in report.results.iter().zip(cases) {
        let (got, want) = (result.perplexity / base, figure(row));
        assert!(relative(got, want) < extent(8.0, 1.0) * tolerance, "{codec:?}: {got} {want}");
    }
    assert!(report.results[0].kl < 0.5 * report.results[1].kl, "rotation spreads outlier channels");
}

/// A constant in all keys changes nothing in exact arithmetic. It changes little if it is subtracted before
/// encoding, and it ruins keys that are encoded with it.
#[test]
fn centring_spares_a_model_with_biased_keys() {
    const WINDOWS: usize = 2;
    let (plain, biased) =
        (Model::shipped().unwrap(), Model::shipped().unwrap().into_biased_variant(30.0).unwrap());
    let measure = |model: &Model, centring: Centring| {
        let setting = |name: &str, codec: CodecId| {
            let spec = CacheSpec::from(model.config().kv_shape()).codecs(codec, codec).centring(centring);
            let new_cache = move || -> Result<Box<dyn AttentionCache>, CacheError> {
                Ok(Box::new(KvCache::new(spec.clone())?))
            };
            Setting { name: name.to_owned(), new_cache: Box::new(new_cache) }
        };
        let exact = Setting {
            name: "f32".to_owned(),
            new_cache: Box::new(|| Ok(Box::new(model.config().dense_cache()?))),
        };
        let settings = [CodecId::F16, CodecId::S4, CodecId::S3].map(|codec| setting(codec.name(), codec));
        let spec = EvalSpec::new(1024, Some(WINDOWS));
        let report = evaluate(model, shipped::HELDOUT_TEXT, &spec, &exact, &settings, &mut |_| {}).unwrap();
        println!("{report:#?}");
        (report.reference.perplexity, [0, 1, 2].map(|i| report.results[i].perplexity))
    };
    let (exact, [_, plain_s4, plain_s3]) = measure(&plain, Centring::Auto);
    let (biased_exact, [f16, s4, s3]) = measure(&biased, Centring::Auto);
    assert!(relative(biased_exact, exact) < 1e-4, "the same function: {biased_exact} {exact}");
    assert!(relative(f16, exact) < 0.01, "f16 loses digits: {f16} {exact}");
    assert!(relative(s4, plain_s4) < 0.01, "{s4} {plain_s4}");
    assert!(relative(s3, plain_s3) < 0.02, "{s3} {plain_s3}");
    let (_, [_, s4, s3]) = measure(&biased, Centring::Off);
    assert!(s4 > 1.2 * exact && s3 > 1.2 * exact, "{s4} {s3}");
}

/// Whole windows decode tokens to f32. Token by token, queries are multiplied with codes in int8.
#[test]
fn integer_scores_keep_the_perplexity() {
    let model = Model::shipped().unwrap();
    let (windows, most) = extent((2, 0.002), (12, 0.001));
    let codecs = [CodecId::S4];
    let (float, integer) = (run(&model, windows, &codecs), run_in_steps(&model, windows, Some(1), &codecs));
    for (float, integer) in float.results.iter().zip(&integer.results) {
        let change = relative(integer.perplexity, float.perplexity);
        println!("{}: {} against {}, {change:.6}", float.name, integer.perplexity, float.perplexity);
        assert!(change < most, "{}: {change}", float.name);
    }
}

/// The shipped model with a tokeniser of the words "w0" to "w255", which puts w7 before every text.
fn beginning_with_w7() -> Model {
    let vocab: serde_json::Map<_, _> = (0..256).map(|token| (format!("w{token}"), token.into())).collect();
    let json = serde_json::json!({ "version": "1.0", "added_tokens": [], "pre_tokenizer": { "type": "WhitespaceSplit" },
        "post_processor": { "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "w7", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 0 } }],
            "special_tokens": { "w7": { "id": "w7", "ids": [7], "tokens": ["w7"] } } },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "w0" } });
    Model::from_bytes("w7", shipped::CONFIG, shipped::WEIGHTS, Some(json.to_string().as_bytes())).unwrap()
}

#[test]
fn every_window_begins_as_a_text_of_the_model_does() {
    let model = beginning_with_w7();
    let words: Vec<u32> = (0..34).map(|i| 32 + i * 5 % 90).collect();
    let text = words.iter().map(|word| format!("w{word} ")).collect::<String>();
    let text = text.as_bytes();
    assert_eq!(model.first_tokens(text, 4).unwrap(), [7, words[0], words[1], words[2]]);
    assert_eq!(model.count_windows(text, 12).unwrap(), 3, "of 11 words each");
    let exact = |model: &Model| -> f64 {
        let cache = model.config().clone();
        let new_cache =
            move || -> Result<Box<dyn AttentionCache>, CacheError> { Ok(Box::new(cache.dense_cache()?)) };
        let setting = Setting { name: "exact".to_owned(), new_cache: Box::new(new_cache) };
        evaluate(model, text, &EvalSpec::new(12, Some(2)), &setting, &[], &mut |_| {}).unwrap().reference.nll
    };
    let by_hand = |model: &Model, windows: [Vec<u32>; 2]| -> f64 {
        let nll = windows.iter().map(|window| {
            let logits = model.forward(window, 0, &mut model.config().dense_cache().unwrap()).unwrap();
            let scored = logits.chunks_exact(256).zip(&window[1..]);
            scored
                .map(|(row, next)| {
                    let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
                    sum.ln() - f64::from(row[*next as usize])
                })
                .sum::<f64>()
        });
        nll.sum::<f64>() / 22.0
    };
    let begun = |from: usize| [&[7], &words[from..from + 11]].concat();
    assert!((exact(&model) - by_hand(&model, [begun(0), begun(11)])).abs() < 1e-4);
    let bare = model.without_bos();
    assert_eq!(bare.first_tokens(text, 2).unwrap(), words[..2]);
    assert!((exact(&bare) - by_hand(&bare, [words[..12].to_vec(), words[12..24].to_vec()])).abs() < 1e-4);
}

/// The sums over the positions from each one on differ by that position alone.
#[test]
fn scores_begin_at_the_position_that_is_asked_for() {
    const CONTEXT: usize = 24;
    let model = Model::shipped().unwrap();
    let reference = setting(&model, CodecId::F16);
    let settings = [setting(&model, CodecId::S2)];
    let run = |from| {
        let spec = EvalSpec { from, ..EvalSpec::new(CONTEXT, Some(1)) };
        evaluate(&model, shipped::HELDOUT_TEXT, &spec, &reference, &settings, &mut |_| {})
    };
    let results: Vec<_> = (0..CONTEXT - 1).map(|from| run(from).unwrap().results.remove(0)).collect();
    let sum = |from: usize| results.get(from).map_or(0.0, |r| r.kl * (CONTEXT - from) as f64);
    for (from, result) in results.iter().enumerate() {
        assert_eq!(result.cache_bytes_per_token, results[0].cache_bytes_per_token, "{from}");
        // The last position has no target, so no run begins there.
        let own = if from + 2 < CONTEXT { sum(from) - sum(from + 1) } else { 0.0 };
        assert!(own >= -1e-9 && own <= results[from].kl_p999 + 1e-6, "{from}: {own}");
    }
    assert!(run(CONTEXT - 1).unwrap_err().to_string().contains("expected 0 to 22"));
}
