//! A policy for a model: what the finder refuses, and candidates that are measured.

use crate::checkpoints::load;
use crate::support::{Checkpoint, VOCAB};
use serde_json::json;
use tqkv::cache::{CacheSize, KvCache};
use tqkv_model::eval::{EvalSpec, Progress, Recall};
use tqkv_model::tune::{
    Limit, best, candidates, layers_that_look_back, look_back, mean_kl, measure, ranked_layers,
};
use tqkv_model::{Model, shipped};

#[test]
fn a_model_is_tuned_within_its_budget() {
    let model = Model::shipped().unwrap();
    let spec = model.config().cache_spec();
    let heads = look_back(&model, &mut |_, _| {}).unwrap();
    let tokens = 1024;
    let bytes = CacheSize::of(&spec.clone().with("tiny").unwrap()).unwrap().at(tokens).total();
    let all =
        candidates(&spec, (&ranked_layers(&heads), &layers_that_look_back(&heads)), Limit { tokens, bytes })
            .unwrap();
    let kinds = [Recall::Prose, Recall::Copy];
    let mut passes = Vec::new();
    let results =
        measure(&model, &all, (shipped::HELDOUT_TEXT, &kinds), &EvalSpec::new(512, None), &mut |progress| {
            if let Progress::Passes(done, of) = progress {
                passes.push((done, of));
            }
        })
        .unwrap();
    let total = kinds.len() * (all.len() + 1);
    assert_eq!(passes, (1..=total).map(|done| (done, total)).collect::<Vec<_>>());
    assert!(results.len() == all.len() && results.iter().all(|kinds| kinds.len() == 2), "{results:?}");
    let kl: Vec<_> = results.iter().map(|results| mean_kl(results)).collect();
    let chosen = best(&all, &kl).unwrap();
    assert!(kl.iter().all(|kl| *kl > 0.0), "{kl:?}");
    assert!(all.iter().zip(&kl).all(|(one, kl_of_it)| one.narrows_with_age || kl[chosen] <= *kl_of_it));
    assert!(all.iter().any(|one| one.text == "tiny" && one.narrows_with_age && one.bytes == bytes));
    // The formula is an upper bound of what the cache holds.
    let mut cache = KvCache::new(spec.with(&all[chosen].text).unwrap()).unwrap();
    let text = model.first_tokens(shipped::HELDOUT_TEXT, tokens).unwrap();
    model.hidden(&text, 0, &mut cache, &mut |_, _, _| {}).unwrap();
    assert!(cache.stats().allocated_bytes as u64 <= all[chosen].bytes && all[chosen].bytes <= bytes);
}

/// Texts that choose a policy are not those of `eval --recall`, where it is measured.
#[test]
fn texts_are_those_of_no_evaluation() {
    let model = Model::shipped().unwrap();
    let spec = model.config().cache_spec();
    let least = tqkv_model::tune::least(&spec, 512).unwrap();
    let kinds = [Recall::Prose, Recall::List];
    let eval = EvalSpec::new(512, Some(2));
    let own =
        measure(&model, std::slice::from_ref(&least), (shipped::HELDOUT_TEXT, &kinds), &eval, &mut |_| {});
    let own = own.unwrap().remove(0);
    let setting = |text: &'static str| tqkv_model::eval::Setting {
        name: text.to_owned(),
        new_cache: Box::new(move || {
            Ok(Box::new(KvCache::new(Model::shipped().unwrap().config().cache_spec().with(text)?)?))
        }),
    };
    let others = tqkv_model::eval::evaluate_recall(
        &model,
        (shipped::HELDOUT_TEXT, &kinds),
        &eval,
        &setting("f16"),
        &[setting("m2,t2 hot=16")],
        &mut |_| {},
    );
    assert_eq!(least.text, "m2,t2 hot=16");
    for (own, other) in own.iter().zip(&others.unwrap()[1]) {
        assert_eq!(own.kl_of_windows.len(), 2);
        assert!(own.kl_of_windows.iter().all(|kl| !other.kl_of_windows.contains(kl)), "{own:?} {other:?}");
    }
    let short = measure(&model, &[least], (&shipped::HELDOUT_TEXT[..600], &kinds), &eval, &mut |_| {});
    assert!(short.unwrap_err().to_string().contains("2 windows of 512 tokens: expected 1 to 1"));
}

#[test]
fn heads_are_found_in_windows_and_a_short_context_is_refused() {
    let checkpoint = |context: usize| {
        let windows = json!({
            "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"],
            "max_position_embeddings": context,
        });
        load(&Checkpoint::new("MistralForCausalLM", 16, windows)).unwrap()
    };
    for context in [64, 70, 200, 600] {
        let heads = look_back(&checkpoint(context), &mut |_, _| {}).unwrap();
        assert_eq!(heads.len(), 4);
        assert!(heads[..2].iter().all(|head| head.score == 0.0), "a window of 8 reaches nothing: {heads:?}");
        assert!(heads[2..].iter().all(|head| head.score > 0.0), "{heads:?}");
        assert_eq!(ranked_layers(&heads), [1, 0]);
    }
    let short = look_back(&checkpoint(63), &mut |_, _| {}).unwrap_err().to_string();
    assert_eq!(
        short,
        "tune: the model's context of 63 tokens is too short to find heads that look back: expected 64 or more"
    );
    assert_eq!(VOCAB, 256);
}
