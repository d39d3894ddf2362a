//! Inputs that the model runner refuses. Each error is one line that names the cause.

use std::ops::ControlFlow;
use std::path::Path;

use crate::support::{CONTEXT, Checkpoint, VOCAB};
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use tqkv::KvShape;
use tqkv::attention::AttentionCache;
use tqkv::cache::CacheSpec;
use tqkv::dense::DenseCache;
use tqkv::error::CacheError;
use tqkv_model::eval::{EvalSpec, Progress, Setting, evaluate};
use tqkv_model::generate::{GenerateSpec, generate};
use tqkv_model::{Access, Architecture, Config, Model, ModelError, WeightBytes};

const HEAD_DIM: usize = 8;

fn tiny() -> Checkpoint {
    Checkpoint::new("LlamaForCausalLM", HEAD_DIM, json!({}))
}

fn load(checkpoint: &Checkpoint, dtype: Dtype) -> Result<Model, ModelError> {
    Model::from_bytes("tiny", checkpoint.config.to_string().as_bytes(), &checkpoint.bytes(dtype), None)
}

/// The message, after a check that it is one line.
fn message(result: Result<Model, ModelError>) -> String {
    let text = result.expect_err("must be refused").to_string();
    assert!(!text.contains('\n'), "more than one line: {text}");
    text
}

fn with_config(name: &str, value: Value) -> String {
    let mut checkpoint = tiny();
    checkpoint.config[name] = value;
    message(load(&checkpoint, Dtype::F32))
}

#[test]
fn configs_that_are_not_computed_are_refused_by_name() {
    let names = Architecture::ALL.iter().map(|architecture| architecture.name());
    let accepted = &format!("accepted: {}", names.collect::<Vec<_>>().join(", "));
    let text = with_config("architectures", json!(["GemmaForCausalLM"]));
    assert!(text.contains("GemmaForCausalLM is not supported") && text.ends_with(accepted), "{text}");
    assert!(with_config("architectures", json!([])).ends_with(accepted));
    for (name, value, part) in [
        ("hidden_act", json!("gelu"), "hidden_act gelu is not supported; accepted: silu"),
        ("partial_rotary_factor", json!(0.5), "partial_rotary_factor 0.5"),
        (
            "quantization_config",
            json!({ "bits": 4, "quant_method": "gptq" }),
            "quantization_config is \"gptq\"",
        ),
        (
            "attention_multiplier",
            json!(0.5),
            "attention_multiplier is 0.5, which is not computed for LlamaForCausalLM",
        ),
        ("residual_multiplier", json!(0.2), "residual_multiplier is 0.2"),
        ("embedding_multiplier", json!(12), "embedding_multiplier is 12"),
        ("logits_scaling", json!(8), "logits_scaling is 8"),
        ("clip_qkv", json!(8.0), "clip_qkv is 8.0"),
        ("no_rope_layers", json!([1, 1, 0]), "no_rope_layers is [1,1,0]"),
        ("num_local_experts", json!(8), "num_local_experts is 8"),
        ("attn_logit_softcapping", json!(50.0), "attn_logit_softcapping is 50.0"),
        ("rope_interleaved", json!(true), "rope_interleaved is true"),
        ("layer_types", json!(["full_attention", "sliding_attention"]), "layer_types is "),
        ("kv_lora_rank", json!(64), "kv_lora_rank is 64"),
        (
            "rope_scaling",
            json!({ "factor": 4.0 }),
            "rope_scaling: rope_type is missing; accepted: default, linear",
        ),
        (
            "rope_scaling",
            json!({ "type": "dynamic", "factor": 4.0 }),
            "type dynamic is not supported; accepted: default",
        ),
        (
            "rope_scaling",
            json!({ "rope_type": "longrope", "short_factor": [1.0] }),
            "type longrope is not supported",
        ),
        (
            "rope_scaling",
            json!({ "type": "default", "mrope_section": [2, 1, 1] }),
            "mrope_section is [2,1,1], which is",
        ),
        ("rope_scaling", json!({ "rope_type": "yarn", "factor": 4.0, "beta_fast": -1 }), "beta_fast is -1"),
        ("rope_parameters", json!({ "full_attention": { "rope_type": "default" } }), "full_attention is {"),
        ("num_key_value_heads", json!(3), "4 query heads do not divide among 3 KV heads"),
        ("num_key_value_heads", json!(0), "num_key_value_heads is 0"),
        ("num_attention_heads", json!(0), "num_attention_heads is 0"),
        ("hidden_size", json!(1u64 << 60), "hidden_size is 1152921504606846976"),
        ("hidden_size", json!("wide"), "expected usize"),
        ("head_dim", json!(7), "head_dim 7 is odd"),
        ("rms_norm_eps", json!(-1.0), "rms_norm_eps is -1"),
        ("rope_theta", json!(0.0), "rope_theta is 0"),
        ("rope_scaling", json!({ "type": "linear" }), "rope_scaling: factor is missing"),
        ("rope_scaling", json!({ "type": "linear", "factor": 0.0 }), "rope_scaling: factor is 0"),
        (
            "rope_scaling",
            json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64 }),
            "high_freq_factor 4 must be above low_freq_factor 4",
        ),
    ] {
        let text = with_config(name, value);
        assert!(text.starts_with("config.json: ") && text.contains(part), "{text}");
    }
    let mut checkpoint = tiny();
    checkpoint.config.as_object_mut().unwrap().remove("vocab_size");
    assert!(message(load(&checkpoint, Dtype::F32)).contains("missing field `vocab_size`"));
    assert!(message(Model::from_bytes("tiny", b"{", &[], None)).starts_with("config.json: "));
}

/// The error for a well-known model of the family with one changed field.
fn refused(architecture: &str, name: &str, value: Value) -> String {
    let mut config = super::configs::of(architecture);
    config[name] = value;
    Config::from_json(config.to_string().as_bytes()).expect_err(name).to_string()
}

#[test]
fn what_a_family_does_not_compute_is_refused_by_name() {
    for (architecture, name, value, part) in [
        (
            "Phi3ForCausalLM",
            "rope_scaling",
            json!({ "type": "longrope", "short_factor": [1.0] }),
            "type longrope",
        ),
        ("Phi3ForCausalLM", "rope_scaling", json!({ "type": "yarn", "factor": 2 }), "for Phi3ForCausalLM"),
        ("Phi3ForCausalLM", "partial_rotary_factor", json!(1.5), "accepted: above 0, up to 1"),
        ("Gemma2ForCausalLM", "hidden_activation", json!("gelu"), "accepted: gelu_pytorch_tanh"),
        ("Gemma2ForCausalLM", "sliding_window", json!(null), "sliding_window is missing"),
        ("Gemma2ForCausalLM", "attn_logit_softcapping", json!(-1.0), "attn_logit_softcapping is -1"),
        (
            "Gemma3ForCausalLM",
            "use_bidirectional_attention",
            json!(true),
            "use_bidirectional_attention is true",
        ),
        ("Gemma3ForCausalLM", "query_pre_attn_scalar", json!(0), "query_pre_attn_scalar is 0"),
        (
            "Gemma3ForCausalLM",
            "rope_parameters",
            json!({ "rope_type": "default" }),
            "lacks full_attention or sliding_attention",
        ),
        ("Qwen3MoeForCausalLM", "use_sliding_window", json!(true), "use_sliding_window is true"),
        (
            "Qwen3MoeForCausalLM",
            "num_experts_per_tok",
            json!(500),
            "num_experts_per_tok is 500 of 128 experts",
        ),
        ("Qwen3MoeForCausalLM", "num_experts", json!(0), "num_experts is 0"),
        ("Qwen3MoeForCausalLM", "decoder_sparse_step", json!(0), "decoder_sparse_step is 0"),
        (
            "GptOssForCausalLM",
            "quantization_config",
            json!({ "quant_method": "mxfp4" }),
            "is \"mxfp4\", which is not",
        ),
        ("GptOssForCausalLM", "swiglu_limit", json!(-7), "swiglu_limit is -7"),
        ("DeepseekV2ForCausalLM", "topk_method", json!("group_limited_greedy"), "accepted: greedy"),
        ("DeepseekV2ForCausalLM", "scoring_func", json!("sigmoid"), "accepted: softmax"),
        ("DeepseekV2ForCausalLM", "moe_layer_freq", json!(2), "moe_layer_freq 2 is not supported"),
        ("DeepseekV2ForCausalLM", "norm_topk_prob", json!(true), "norm_topk_prob is true"),
        ("DeepseekV2ForCausalLM", "kv_lora_rank", json!(null), "kv_lora_rank is missing"),
        ("DeepseekV2ForCausalLM", "qk_rope_head_dim", json!(7), "head_dim 7 is odd"),
        ("DeepseekV2ForCausalLM", "n_shared_experts", json!(1u64 << 40), "n_shared_experts"),
    ] {
        let text = refused(architecture, name, value);
        assert!(text.starts_with("config.json: ") && text.contains(part), "{architecture}: {text}");
    }
    let mut config = super::configs::of("Gemma2ForCausalLM");
    config.as_object_mut().unwrap().remove("query_pre_attn_scalar");
    let text = Config::from_json(config.to_string().as_bytes()).unwrap_err().to_string();
    assert!(text.contains("missing field `query_pre_attn_scalar`"), "{text}");
}

/// A tensor that is not read belongs to another model than the computed one.
#[test]
fn tensors_that_nothing_reads_are_refused_by_name() {
    for name in ["model.layers.0.self_attn.sinks", "model.layers.2.input_layernorm.weight", "lm_head.qweight"]
    {
        let mut checkpoint = tiny();
        checkpoint.tensors.insert(name.to_owned(), (vec![4], vec![0.0; 4]));
        let text = message(load(&checkpoint, Dtype::F32));
        assert!(text.starts_with(&format!("tensor {name} is not read")), "{text}");
        let dir = tempfile::tempdir().unwrap();
        checkpoint.write(dir.path(), Dtype::F32);
        assert_eq!(message(Model::open(dir.path(), Access::Streamed)), text);
    }
    // Old files contain the frequencies of RoPE, and a head that equals the embedding.
    let mut checkpoint =
        Checkpoint::new("LlamaForCausalLM", HEAD_DIM, json!({ "tie_word_embeddings": true }));
    let head = checkpoint.tensors["model.embed_tokens.weight"].clone();
    checkpoint.tensors.insert("lm_head.weight".to_owned(), head);
    checkpoint
        .tensors
        .insert("model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(), (vec![4], vec![0.0; 4]));
    load(&checkpoint, Dtype::F32).unwrap();
}

#[test]
fn tensors_missing_misshapen_or_in_a_foreign_format_are_named() {
    let every: Vec<String> = tiny().tensors.keys().cloned().collect();
    for name in every {
        let mut checkpoint = tiny();
        let (mut shape, values) = checkpoint.tensors.remove(&name).unwrap();
        assert_eq!(
            message(load(&checkpoint, Dtype::F32)),
            format!("tensor {name} is missing from the checkpoint")
        );
        shape.push(1);
        checkpoint.tensors.insert(name.clone(), (shape.clone(), values));
        let text = message(load(&checkpoint, Dtype::F32));
        let expected = &shape[..shape.len() - 1];
        assert!(
            text.starts_with(&format!("tensor {name} has shape {shape:?}, expected {expected:?}")),
            "{text}"
        );
    }
    let text = message(load(&tiny(), Dtype::F64));
    assert!(text.contains("is stored as F64; accepted: F32, F16, BF16"), "{text}");
    for (architecture, changes, bias) in [
        ("Qwen2ForCausalLM", json!({}), "k_proj"),
        ("LlamaForCausalLM", json!({ "attention_bias": true }), "o_proj"),
    ] {
        let mut checkpoint = Checkpoint::new(architecture, HEAD_DIM, changes);
        let name = format!("model.layers.1.self_attn.{bias}.bias");
        checkpoint.tensors.remove(&name).unwrap();
        assert_eq!(
            message(load(&checkpoint, Dtype::F32)),
            format!("tensor {name} is missing from the checkpoint")
        );
    }
}

/// Editors of Windows begin files so.
#[test]
fn a_byte_order_mark_before_a_text_is_no_part_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = tiny();
    checkpoint.write_config(dir.path());
    checkpoint.write_sharded(dir.path(), Dtype::F32);
    for name in ["config.json", "model.safetensors.index.json"] {
        let path = dir.path().join(name);
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&b"\xef\xbb\xbf"[..], &text].concat()).unwrap();
    }
    Model::load(dir.path()).unwrap();
    WeightBytes::of(dir.path()).unwrap();
}

#[test]
fn broken_directories_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let starts = |path: &Path, text: String| assert!(text.starts_with(&path.display().to_string()), "{text}");
    starts(dir.path(), message(Model::load(dir.path())));
    std::fs::write(file("pytorch_model.bin"), b"").unwrap();
    let error = message(Model::load(dir.path()));
    assert!(error.contains("no config.json; it has pytorch_model.bin; expected a .gguf file"), "{error}");
    let checkpoint = tiny();
    checkpoint.write_config(dir.path());
    let error = message(Model::load(dir.path()));
    assert!(error.contains("no .safetensors file; it has config.json, pytorch_model.bin"), "{error}");
    std::fs::write(file("model.safetensors"), b"").unwrap();
    assert!(message(Model::load(dir.path())).contains("model.safetensors"));
    std::fs::write(file("model.safetensors"), b"not a model at all").unwrap();
    assert!(message(Model::load(dir.path())).contains("model.safetensors: not a readable safetensors file"));
    std::fs::remove_file(file("model.safetensors")).unwrap();

    checkpoint.write_sharded(dir.path(), Dtype::F32);
    std::fs::remove_file(file("model-00002-of-00003.safetensors")).unwrap();
    starts(&file("model-00002-of-00003.safetensors"), message(Model::load(dir.path())));
    let index = file("model.safetensors.index.json");
    for outside in ["../model.safetensors", "/etc/model.safetensors", "..", ""] {
        std::fs::write(&index, json!({ "weight_map": { "x": outside } }).to_string()).unwrap();
        let text = message(Model::load(dir.path()));
        assert!(text.contains(&format!("shard {outside:?} is not a plain file name")), "{text}");
    }
    std::fs::write(&index, b"[]").unwrap();
    assert!(message(Model::load(dir.path())).starts_with("model.safetensors.index.json: "));
}

#[test]
fn truncated_and_flipped_bytes_never_panic() {
    let checkpoint = tiny();
    let config = checkpoint.config.to_string();
    let bytes = checkpoint.bytes(Dtype::BF16);
    for len in (0..bytes.len()).step_by(97) {
        message(Model::from_bytes("cut", config.as_bytes(), &bytes[..len], None));
    }
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for at in 0..header {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << (at % 8);
        // The file is refused, or it is read because the flip hit a name in the metadata. It never panics.
        let _ = Model::from_bytes("flipped", config.as_bytes(), &bytes, None);
    }
    for at in 0..config.len() {
        let mut config = config.clone().into_bytes();
        config[at] ^= 1 << (at % 8);
        let _ = Model::from_bytes("flipped", &config, &bytes, None);
    }
}

#[test]
fn prompts_and_windows_that_do_not_fit_name_the_numbers() {
    let model = load(&tiny(), Dtype::F32).unwrap();
    let mut cache = model.config().dense_cache().unwrap();
    let mut run = |prompt: &[u8], max_new_tokens: usize, temperature: f32| {
        let spec = GenerateSpec { max_new_tokens, temperature, seed: 1 };
        generate(&model, prompt, &spec, &mut cache, &mut |_| ControlFlow::Continue(()))
            .map(|g| g.tokens.len())
            .map_err(|e| e.to_string())
    };
    assert_eq!(run(&[7; 60], 4, 0.0), Ok(4));
    assert_eq!(
        run(&[7; 60], 5, 0.0),
        Err("a prompt of 60 tokens plus 5 new ones is 65 tokens; the model's context is 64".into())
    );
    assert!(run(&[7; 60], usize::MAX, 0.0).is_err());
    assert_eq!(run(&[7; 60], 0, 0.0), Ok(0));
    assert!(run(b"", 1, 0.0).unwrap_err().contains("prompt is empty"));
    assert!(run(b"a", 1, -0.5).unwrap_err().contains("temperature -0.5"));

    let error = |tokens: &[u32], start: usize| {
        model.forward(tokens, start, &mut model.config().dense_cache().unwrap()).unwrap_err().to_string()
    };
    assert_eq!(error(&[1, 256], 0), "token 256 is out of range: the vocabulary has 256 tokens");
    assert!(error(&[], 0).contains("at least one token"));
    assert!(error(&[1], CONTEXT).contains("context is 64"));
    assert!(error(&[1], usize::MAX).contains("context is 64"));

    let dense = || Setting {
        name: "f32".into(),
        new_cache: Box::new(|| Ok(Box::new(model.config().dense_cache()?))),
    };
    let eval = |text: &[u8], context: usize, windows: Option<usize>| {
        let spec = EvalSpec::new(context, windows);
        let mut calls = Vec::new();
        let report = evaluate(&model, text, &spec, &dense(), &[dense()], &mut |progress| {
            if let Progress::Passes(done, all) = progress {
                calls.push((done, all));
            }
        });
        report.map(|r| (r.windows, calls)).map_err(|e| e.to_string())
    };
    assert_eq!(eval(&[7; 40], 16, None), Ok((2, vec![(1, 4), (2, 4), (3, 4), (4, 4)])));
    assert_eq!(
        eval(&[7; 40], 16, Some(3)),
        Err("evaluation: 3 windows of 16 tokens: expected 1 to 2, because the text has 40 tokens".into())
    );
    assert!(eval(&[7; 10], 16, None).unwrap_err().contains("the text has 10 tokens"));
    assert!(eval(&[7; 40], 16, Some(0)).is_err());
    assert!(eval(&[7; 40], 1, None).unwrap_err().contains("accepted: 2 to 64"));
    assert!(eval(&[7; 400], 65, None).unwrap_err().contains("context is 64"));
    let outlier = load(&tiny(), Dtype::F32).unwrap().into_outlier_variant().unwrap_err().to_string();
    assert!(outlier.contains("head_dim 128 only; this model has 8"), "{outlier}");
    for factor in [-1.0, f32::NAN, f32::INFINITY] {
        let biased = load(&tiny(), Dtype::F32).unwrap().into_biased_variant(factor).unwrap_err().to_string();
        assert!(biased.contains("it must be 0 or a positive number"), "{biased}");
    }
}

#[test]
fn weights_that_are_not_finite_end_in_an_error() {
    let mut checkpoint = tiny();
    checkpoint.tensors.get_mut("model.norm.weight").unwrap().1[3] = f32::NAN;
    let model = load(&checkpoint, Dtype::F32).unwrap();
    let mut cache = model.config().dense_cache().unwrap();
    let error = generate(
        &model,
        b"abc",
        &GenerateSpec { max_new_tokens: 1, ..Default::default() },
        &mut cache,
        &mut |_| ControlFlow::Continue(()),
    );
    assert_eq!(error.unwrap_err().to_string(), "the logits at position 2 are not finite");
}

/// Refuses the last layer of every chunk once it has three tokens.
pub(crate) struct Failing(pub(crate) DenseCache);

impl AttentionCache for Failing {
    fn shape(&self) -> KvShape {
        self.0.shape()
    }
    fn attend_chunk(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        if layer + 1 == self.shape().num_layers && self.0.len() > 3 {
            return Err(CacheError::BadSpec("refused on purpose".into()));
        }
        self.0.attend_chunk(layer, q, k, v, out)
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        self.0.truncate(len)
    }
    fn reset(&mut self) {
        self.0.reset();
    }
    fn allocated_bytes(&self) -> usize {
        self.0.allocated_bytes()
    }
}

#[test]
fn a_cache_that_refuses_is_left_as_it_was() {
    let model = load(&tiny(), Dtype::F32).unwrap();
    let mut cache = Failing(model.config().dense_cache().unwrap());
    model.forward(&[1, 2, 3], 0, &mut cache).unwrap();
    let error = model.forward(&[4, 5], 3, &mut cache).unwrap_err();
    assert_eq!(error.to_string(), "cache spec: refused on purpose");
    assert_eq!(cache.len(), 3);
    let widths = [0, 1].map(|layer| cache.0.keys(layer, 0).unwrap().len());
    assert_eq!(widths, [3 * HEAD_DIM; 2]);
    let foreign = DenseCache::new(&CacheSpec::new(2, 4, 2, HEAD_DIM + 2));
    let error = model.forward(&[1], 0, &mut foreign.unwrap()).unwrap_err().to_string();
    assert!(error.contains("not a whole number of tokens"), "{error}");
    assert_eq!(VOCAB, model.config().vocab_size);
}
