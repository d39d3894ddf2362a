//! Compares Gemma 3 from a GGUF file with the same weights from a folder.

use crate::architectures::{GOLDEN, tokenizer};
use crate::gguf::{Tensor, Value, byte_tokens, file};
use half::f16;
use half::slice::HalfFloatSliceExt;
use safetensors::SafeTensors;
use serde_json::{Value as Json, json};
use tqkv_model::Model;

const PARTS: [(&str, &str); 16] = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("model.layers", "blk"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

fn read(name: &str) -> Vec<u8> {
    std::fs::read(format!("{GOLDEN}/gemma3/{name}")).unwrap()
}

/// A config that a GGUF file can express: a window in five of six layers, a local base of 10,000.
fn config() -> Json {
    let mut config: Json = serde_json::from_slice(&read("config.json")).unwrap();
    let fields = config.as_object_mut().unwrap();
    fields.retain(|name, _| !["layer_types", "rope_parameters"].contains(&name.as_str()));
    config["rope_theta"] = json!(5000.0);
    config["query_pre_attn_scalar"] = config["head_dim"].clone();
    config
}

fn tensors() -> Vec<Tensor> {
    let bytes = read("model.safetensors");
    let read = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let halves: Vec<f16> = view.data().as_chunks().0.iter().map(|b| f16::from_le_bytes(*b)).collect();
        let mut values = halves.to_f32_vec();
        if name.contains("norm") {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
        let here = PARTS.iter().fold(name, |name, (there, here)| name.replace(there, here));
        (here, view.shape().to_vec(), values)
    };
    read.tensors().into_iter().map(tensor).collect()
}

fn metadata(config: &Json) -> Vec<(String, Value)> {
    let number = |name: &str| Value::Number(config[name].as_u64().unwrap() as u32);
    let own = |name: &str, value: Value| (format!("gemma3.{name}"), value);
    let mut tokens = byte_tokens();
    tokens.truncate(config["vocab_size"].as_u64().unwrap() as usize);
    vec![
        ("general.architecture".to_owned(), Value::Text("gemma3".to_owned())),
        own("context_length", number("max_position_embeddings")),
        own("embedding_length", number("hidden_size")),
        own("block_count", number("num_hidden_layers")),
        own("feed_forward_length", number("intermediate_size")),
        own("attention.head_count", number("num_attention_heads")),
        own("attention.head_count_kv", number("num_key_value_heads")),
        own("attention.key_length", number("head_dim")),
        own("attention.value_length", number("head_dim")),
        own("attention.sliding_window", number("sliding_window")),
        own("attention.layer_norm_rms_epsilon", Value::Float(1e-5)),
        own("rope.freq_base", Value::Float(5000.0)),
        ("tokenizer.ggml.model".to_owned(), Value::Text("gpt2".to_owned())),
        ("tokenizer.ggml.pre".to_owned(), Value::Text("gpt-2".to_owned())),
        ("tokenizer.ggml.tokens".to_owned(), Value::Texts(tokens)),
        ("tokenizer.ggml.merges".to_owned(), Value::Texts(Vec::new())),
    ]
}

fn logits(model: &Model) -> Vec<f32> {
    let tokens: Vec<u32> = (0..24).map(|i| i * 37 % 64).collect();
    model.forward(&tokens, 0, &mut model.config().dense_cache().unwrap()).unwrap()
}

#[test]
fn gemma_3_is_that_of_its_folder() {
    let config = config();
    let text = config.to_string();
    let tokenizer = tokenizer(text.as_bytes());
    let folder =
        Model::from_bytes("folder", text.as_bytes(), &read("model.safetensors"), Some(&tokenizer)).unwrap();
    let bytes = file(&metadata(&config), &tensors());
    let gguf = Model::from_gguf("gguf", &[("gemma.gguf", &bytes)]).unwrap();
    assert_eq!(gguf.config().kinds, folder.config().kinds);
    assert_eq!(gguf.config().local_rotary, folder.config().local_rotary);
    assert_eq!(logits(&gguf), logits(&folder));

    let mut more = metadata(&config);
    more.push(("gemma3.attn_logit_softcapping".to_owned(), Value::Float(50.0)));
    let error =
        Model::from_gguf("gguf", &[("gemma.gguf", &file(&more, &tensors()))]).unwrap_err().to_string();
    assert!(error.contains("gemma3.attn_logit_softcapping: not computed"), "{error}");
}
