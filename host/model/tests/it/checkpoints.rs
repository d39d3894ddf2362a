//! Compares every kind of checkpoint of Llama and its close relatives with a slow f64 forward pass.

use std::ops::ControlFlow;

use crate::support::{CONTEXT, Checkpoint, HIDDEN, KV_HEADS, VOCAB};
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use tqkv::attention::AttentionCache;
use tqkv_model::generate::{GenerateSpec, StopReason, generate};
use tqkv_model::{Model, ModelError, SpecialTokens};

const HEAD_DIM: usize = 8;

pub(crate) fn painted_tokens(n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 89 + 17) % VOCAB) as u32).collect()
}

pub(crate) fn assert_agrees(what: &str, model: &Model, checkpoint: &Checkpoint) {
    let tokens = painted_tokens(model.config().context);
    let mut cache = model.config().dense_cache().unwrap();
    // A prompt, then a few single tokens, to use both shapes of product.
    let (prompt, rest) = tokens.split_at(tokens.len() - 3);
    let mut got = model.forward(prompt, 0, &mut cache).unwrap();
    for token in rest {
        let start = cache.len();
        got.extend(model.forward(&[*token], start, &mut cache).unwrap());
    }
    let want = checkpoint.slow_forward(&tokens);
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        let (position, token) = (i / VOCAB, i % VOCAB);
        assert!(
            (f64::from(*g) - w).abs() < 1e-5 * scale,
            "{what}: position {position} logit {token}: {g} against {w}"
        );
    }
}

#[test]
fn every_kind_of_checkpoint_equals_the_slow_forward() {
    let llama3 = json!({ "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32, "rope_type": "llama3" });
    let mut parameters = llama3.clone();
    parameters["rope_theta"] = json!(500.0);
    let cases = [
        ("LlamaForCausalLM", json!({}), Dtype::F32),
        ("LlamaForCausalLM", json!({ "tie_word_embeddings": true }), Dtype::F16),
        ("LlamaForCausalLM", json!({ "attention_bias": true, "mlp_bias": true }), Dtype::BF16),
        ("LlamaForCausalLM", json!({ "rope_scaling": { "type": "linear", "factor": 4.0 } }), Dtype::BF16),
        ("LlamaForCausalLM", json!({ "rope_scaling": llama3 }), Dtype::BF16),
        ("LlamaForCausalLM", json!({ "rope_parameters": parameters }), Dtype::BF16),
        ("LlamaForCausalLM", json!({ "rope_scaling": null, "sliding_window": 8 }), Dtype::BF16),
        ("MistralForCausalLM", json!({ "sliding_window": 64 }), Dtype::BF16),
        ("Qwen2ForCausalLM", json!({ "tie_word_embeddings": true }), Dtype::BF16),
        ("Qwen2ForCausalLM", json!({ "sliding_window": 8, "use_sliding_window": false }), Dtype::F16),
        ("Qwen3ForCausalLM", json!({ "rope_theta": 1e6 }), Dtype::BF16),
        ("Qwen3ForCausalLM", json!({ "attention_bias": true, "tie_word_embeddings": true }), Dtype::F32),
    ];
    for (architecture, changes, dtype) in cases {
        let checkpoint = Checkpoint::new(architecture, HEAD_DIM, changes.clone());
        for sharded in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            if sharded {
                checkpoint.write_sharded(dir.path(), dtype);
            } else {
                checkpoint.write(dir.path(), dtype);
            }
            let what = format!("{architecture} {changes} {dtype:?} sharded {sharded}");
            let model = Model::load(dir.path()).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(model.config().architecture.name(), architecture);
            assert_agrees(&what, &model, &checkpoint);
        }
        let config = checkpoint.config.to_string();
        let model = Model::from_bytes("memory", config.as_bytes(), &checkpoint.bytes(dtype), None).unwrap();
        assert_agrees("from memory", &model, &checkpoint);
        assert_eq!(model.name(), "memory");
    }
}

#[test]
fn defaults_of_a_sparse_config_are_those_of_the_library() {
    let mut checkpoint = Checkpoint::new("LlamaForCausalLM", 6, json!({}));
    let config = checkpoint.config.as_object_mut().unwrap();
    for name in ["head_dim", "rope_theta", "hidden_act"] {
        config.remove(name);
    }
    let model = load(&checkpoint).unwrap();
    assert_eq!((model.config().head_dim, model.config().num_kv_heads), (6, KV_HEADS));
    checkpoint.config["rope_theta"] = json!(10_000.0);
    assert_agrees("sparse config", &model, &checkpoint);
}

pub(crate) fn load(checkpoint: &Checkpoint) -> Result<Model, ModelError> {
    Model::from_bytes("tiny", checkpoint.config.to_string().as_bytes(), &checkpoint.bytes(Dtype::F32), None)
}

#[test]
fn the_outlier_variant_is_the_same_function_to_the_bit() {
    let tokens = painted_tokens(CONTEXT);
    let logits = |model: &Model| {
        let mut cache = model.config().dense_cache().unwrap();
        let logits = model.forward(&tokens, 0, &mut cache).unwrap();
        (logits, cache)
    };
    for architecture in ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"] {
        let checkpoint = Checkpoint::new(architecture, 128, json!({}));
        let (want, plain) = logits(&load(&checkpoint).unwrap());
        let (got, outlier) = logits(&load(&checkpoint).unwrap().into_outlier_variant().unwrap());
        assert_eq!(got, want, "{architecture}");
        for kv_head in 0..KV_HEADS {
            let (a, b) = (plain.keys(1, kv_head).unwrap(), outlier.keys(1, kv_head).unwrap());
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                let scaled = [40, 50, 60, 104, 114, 124].contains(&(i % 128));
                assert_eq!(*b, if scaled { 8.0 * a } else { *a }, "{architecture} key value {i}");
            }
        }
    }
}

/// A byte-level BPE like GPT-2's: 256 byte symbols, one merge, and BOS before every prompt.
fn byte_level_bpe() -> Value {
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut vocab = serde_json::Map::new();
    let mut moved = 256;
    for byte in 0..=255u32 {
        let symbol = if printable(byte) { byte } else { moved };
        moved += u32::from(!printable(byte));
        vocab.insert(char::from_u32(symbol).unwrap().to_string(), json!(byte));
    }
    vocab.insert("he".into(), json!(256));
    let bos = json!({ "id": 257, "content": "<s>", "special": true, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false });
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true });
    let template = json!({ "type": "TemplateProcessing",
        "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
        "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
        "special_tokens": { "<s>": { "id": "<s>", "ids": [257], "tokens": ["<s>"] } } });
    json!({ "version": "1.0", "added_tokens": [bos], "normalizer": null, "pre_tokenizer": byte_level,
        "post_processor": template, "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocab, "merges": ["h e"] } })
}

#[test]
fn a_tokenizer_json_drives_prompts_text_and_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut checkpoint =
        Checkpoint::new("LlamaForCausalLM", HEAD_DIM, json!({ "tie_word_embeddings": true }));
    // Two more rows, for the merge and for BOS.
    let (shape, values) = checkpoint.tensors.get_mut("model.embed_tokens.weight").unwrap();
    shape[0] += 2;
    values.extend((0..2 * HIDDEN).map(|i| (i % 5) as f32 / 8.0));
    checkpoint.config["vocab_size"] = json!(VOCAB + 2);
    checkpoint.write(dir.path(), Dtype::BF16);
    let missing = Model::load(dir.path()).unwrap_err().to_string();
    assert!(missing.starts_with("tokenizer.json is missing"), "{missing}");

    std::fs::write(dir.path().join("tokenizer.json"), byte_level_bpe().to_string()).unwrap();
    let model = Model::load(dir.path()).unwrap();
    let tokenizer = model.tokenizer();
    let prompt = tokenizer.encode("he h\u{e9}".as_bytes(), SpecialTokens::Add).unwrap();
    assert_eq!(prompt, [257, 256, 32, 104, 0xc3, 0xa9]);
    assert_eq!(tokenizer.encode(b"he", SpecialTokens::Omit).unwrap(), [256]);
    assert_eq!(tokenizer.decode(&prompt).unwrap(), "he h\u{e9}");
    let error = tokenizer.encode(b"ab\xff", SpecialTokens::Add).unwrap_err().to_string();
    assert!(error.contains("not UTF-8 from byte 2"), "{error}");

    let spec = GenerateSpec { max_new_tokens: 8, ..Default::default() };
    let run = |model: &Model| {
        let mut cache = model.config().dense_cache().unwrap();
        let mut streamed = String::new();
        let made = generate(model, b"he", &spec, &mut cache, &mut |piece| {
            streamed.push_str(piece);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(made.text, streamed);
        made
    };
    let free = run(&model);
    assert_eq!((free.prompt_tokens, free.tokens.len(), free.stop), (2, 8, StopReason::Length));
    // The same run, where the third token ends the text.
    let end = json!({ "eos_token_id": [free.tokens[2], 999] });
    std::fs::write(dir.path().join("generation_config.json"), end.to_string()).unwrap();
    let ended = run(&Model::load(dir.path()).unwrap());
    let stop = free.tokens.iter().position(|t| *t == free.tokens[2]).unwrap();
    assert_eq!((ended.tokens.as_slice(), ended.stop), (&free.tokens[..stop], StopReason::EndOfText));
}
