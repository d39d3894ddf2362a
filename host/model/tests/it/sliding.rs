//! Models with windows: their configs, and every cache compared with a slow f64 forward pass.

use std::ops::ControlFlow;

use crate::checkpoints::{assert_agrees, load, painted_tokens};
use crate::support::{CONTEXT, Checkpoint, LAYERS, VOCAB};
use serde_json::{Value, json};
use tqkv::attention::AttentionCache;
use tqkv::cache::LayerKind::{self, Full, Sliding};
use tqkv::cache::{Arithmetic, CacheSpec, KvCache};
use tqkv_core::CodecId;
use tqkv_model::generate::{GenerateSpec, StopReason, generate};
use tqkv_model::{Config, Model};

const MISTRAL: &str = "MistralForCausalLM";
/// The shortest head dim of the codecs.
const HEAD_DIM: usize = 16;

fn alternating(window: usize) -> Value {
    json!({ "sliding_window": window, "layer_types": ["sliding_attention", "full_attention"] })
}

/// A checkpoint whose layers see `windows` tokens, as in its config.
fn checkpoint(architecture: &str, changes: Value, windows: [usize; LAYERS]) -> Checkpoint {
    Checkpoint { windows, ..Checkpoint::new(architecture, HEAD_DIM, changes) }
}

fn with_context(mut changes: Value, context: usize) -> Value {
    changes["max_position_embeddings"] = json!(context);
    changes
}

#[test]
fn exact_attention_in_windows_equals_the_slow_forward() {
    let qwen =
        |first| json!({ "sliding_window": 10, "use_sliding_window": true, "max_window_layers": first });
    for (architecture, changes, windows) in [
        (MISTRAL, json!({ "sliding_window": 8 }), [8, 8]),
        (MISTRAL, json!({ "sliding_window": 1 }), [1, 1]),
        (MISTRAL, json!({ "sliding_window": CONTEXT - 1 }), [CONTEXT - 1; LAYERS]),
        (MISTRAL, alternating(8), [8, usize::MAX]),
        ("Qwen2ForCausalLM", qwen(1), [usize::MAX, 10]),
        ("Qwen2ForCausalLM", qwen(0), [10, 10]),
        ("Qwen3ForCausalLM", alternating(5), [5, usize::MAX]),
    ] {
        let checkpoint = checkpoint(architecture, changes.clone(), windows);
        let model = load(&checkpoint).unwrap();
        assert_eq!(model.config().context, CONTEXT, "a window is no bound of the text");
        assert_agrees(&format!("{architecture} {changes}"), &model, &checkpoint);
    }
}

fn kinds(architecture: &str, changes: Value) -> Result<Vec<LayerKind>, String> {
    let config = Checkpoint::new(architecture, HEAD_DIM, changes).config.to_string();
    Config::from_json(config.as_bytes()).map(|config| config.kinds).map_err(|error| error.to_string())
}

#[test]
fn files_say_which_layers_slide() {
    let full = Vec::new();
    for (architecture, changes, expected) in [
        (MISTRAL, json!({ "sliding_window": 8 }), vec![Sliding(8); 2]),
        (MISTRAL, json!({ "sliding_window": null }), full.clone()),
        (MISTRAL, json!({}), full.clone()),
        (MISTRAL, json!({ "sliding_window": CONTEXT }), full.clone()),
        (MISTRAL, alternating(8), vec![Sliding(8), Full]),
        ("LlamaForCausalLM", json!({ "sliding_window": 8 }), full.clone()),
        ("Qwen2ForCausalLM", json!({ "sliding_window": 8 }), full.clone()),
        ("Qwen2ForCausalLM", json!({ "sliding_window": 8, "use_sliding_window": false }), full.clone()),
        (
            "Qwen2ForCausalLM",
            json!({ "sliding_window": 8, "use_sliding_window": true, "max_window_layers": 1 }),
            vec![Full, Sliding(8)],
        ),
        (
            "Qwen2ForCausalLM",
            json!({ "sliding_window": 8, "use_sliding_window": true, "max_window_layers": 2 }),
            full.clone(),
        ),
        // Windows begin at layer 28, unless the file has another number.
        ("Qwen3ForCausalLM", json!({ "sliding_window": 8, "use_sliding_window": true }), full.clone()),
        ("Qwen3ForCausalLM", alternating(8), vec![Sliding(8), Full]),
        (
            "Qwen3ForCausalLM",
            json!({ "sliding_window": null, "layer_types": ["full_attention", "full_attention"] }),
            full,
        ),
    ] {
        assert_eq!(kinds(architecture, changes.clone()).unwrap(), expected, "{architecture} {changes}");
    }
    for (changes, part) in [
        (json!({ "sliding_window": 0 }), "sliding_window is 0"),
        (json!({ "layer_types": ["sliding_attention", "full_attention"] }), "sliding_window is missing"),
        (json!({ "layer_types": ["full_attention"] }), "layer_types names 1 layers of 2"),
        (json!({ "layer_types": ["mamba", "full_attention"] }), "'mamba' is not computed"),
        (json!({ "attn_layer_indices": [1] }), "attn_layer_indices is [1], which is not computed"),
    ] {
        let error = kinds(MISTRAL, changes).unwrap_err();
        assert!(error.starts_with("config.json: ") && error.contains(part), "{error}");
    }
}

/// The text is several times as long as the window, in a cache that forgets older tokens.
#[test]
fn compressed_windows_are_close_to_the_slow_forward() {
    let tokens = painted_tokens(700);
    let changes = with_context(alternating(24), tokens.len());
    let checkpoint = checkpoint(MISTRAL, changes, [24, usize::MAX]);
    let model = load(&checkpoint).unwrap();
    let want = checkpoint.slow_forward(&tokens);
    for (codec, arithmetic, step, most) in [
        (CodecId::F16, Arithmetic::Int8, 700, 0.005),
        (CodecId::I8, Arithmetic::Int8, 700, 0.03),
        (CodecId::I8, Arithmetic::Int8, 1, 0.03),
        (CodecId::I8, Arithmetic::F32, 1, 0.03),
    ] {
        let spec = model.config().cache_spec().codecs(codec, codec).arithmetic(arithmetic).hot(8);
        let mut cache = KvCache::new(spec).unwrap();
        let mut got = Vec::new();
        for (i, tokens) in tokens.chunks(step).enumerate() {
            got.extend(model.forward(tokens, i * step, &mut cache).unwrap());
        }
        let error = relative_error(&got, &want);
        println!("{codec:?} {arithmetic:?} in steps of {step}: {error:.5}");
        assert!(error < most, "{codec:?} {arithmetic:?} in steps of {step}: {error}");
        assert!(cache.stats().evicted > 0, "the first layer slides");
    }
    // A window that is one token wider gives another model.
    let wider = Checkpoint { windows: [25, usize::MAX], ..checkpoint.clone() }.slow_forward(&tokens);
    let wider: Vec<f32> = wider.iter().map(|x| *x as f32).collect();
    assert!(relative_error(&wider, &want) > 0.05, "{}", relative_error(&wider, &want));
}

/// Norm of the difference, divided by the norm of `want`.
fn relative_error(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let energy = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>();
    let error = energy(&mut got.iter().zip(want).map(|(g, w)| f64::from(*g) - w));
    (error / energy(&mut want.iter().copied())).sqrt()
}

#[test]
fn generation_goes_on_past_the_window() {
    let checkpoint = checkpoint(MISTRAL, json!({ "sliding_window": 8 }), [8, 8]);
    let model = load(&checkpoint).unwrap();
    let spec = GenerateSpec { max_new_tokens: 30, ..Default::default() };
    let prompt = b"ten bytes.";
    let run = |cache: &mut dyn AttentionCache| {
        generate(&model, prompt, &spec, cache, &mut |_| ControlFlow::Continue(())).unwrap()
    };
    let exact = run(&mut model.config().dense_cache().unwrap());
    assert_eq!((exact.tokens.len(), exact.stop), (30, StopReason::Length));
    let mut text: Vec<u32> = prompt.iter().map(|byte| u32::from(*byte)).collect();
    text.extend(&exact.tokens);
    let logits = checkpoint.slow_forward(&text);
    for (position, row) in logits.chunks_exact(VOCAB).enumerate().skip(prompt.len() - 1).take(30) {
        let best = (0..VOCAB).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
        assert_eq!(best as u32, text[position + 1], "token {}", position + 1);
    }
    let spec = model.config().cache_spec().codecs(CodecId::I8, CodecId::I8).hot(4);
    let mut cache = KvCache::new(spec).unwrap();
    let compressed = run(&mut cache);
    assert_eq!((compressed.tokens.len(), compressed.cache_tokens), (30, 39));
    assert_eq!(compressed.tokens[..8], exact.tokens[..8]);
}

/// Sinks besides a window would be tokens that the model does not see. A full layer sees them.
#[test]
fn full_layers_of_a_sliding_model_keep_their_sinks() {
    let spec =
        |changes| load(&checkpoint(MISTRAL, changes, [0; LAYERS])).map(|m: Model| m.config().cache_spec());
    let sliding = spec(alternating(8)).unwrap();
    assert_eq!(sliding.kinds, [Sliding(8), Full]);
    assert_eq!([0, 1].map(|layer| sliding.sinks_at(layer)), [0, CacheSpec::DEFAULT_SINKS]);
    let full = spec(json!({})).unwrap();
    assert_eq!((full.sinks_at(0), full.kinds), (CacheSpec::DEFAULT_SINKS, vec![]));
}
