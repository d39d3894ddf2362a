//! `tqkv plan` from GGUF files, folders, configs without weights, and names of formats.

use std::fs;
use std::path::Path;

use crate::support::{error, json, tqkv};

/// A GGUF file of a model with one tensor, an embedding of 64 by 300.
fn gguf(layers: u32) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let number = |key: &str, value: u32| [&text(key)[..], &[4, 0, 0, 0], &value.to_le_bytes()].concat();
    let string = |key: &str, value: &str| [&text(key)[..], &[8, 0, 0, 0], &text(value)].concat();
    let texts = |key: &str, values: &[String]| {
        let head = [&text(key)[..], &[9, 0, 0, 0, 8, 0, 0, 0], &(values.len() as u64).to_le_bytes()].concat();
        values.iter().fold(head, |all, value| [all, text(value)].concat())
    };
    let tokens: Vec<_> = (0..300).map(|token| format!("t{token}")).collect();
    let pairs = [
        string("general.architecture", "llama"),
        number("llama.block_count", layers),
        number("llama.context_length", 8192),
        number("llama.embedding_length", 64),
        number("llama.feed_forward_length", 128),
        number("llama.attention.head_count", 4),
        number("llama.attention.head_count_kv", 2),
        [&text("llama.attention.layer_norm_rms_epsilon")[..], &[6, 0, 0, 0], &1e-5f32.to_le_bytes()].concat(),
        string("tokenizer.ggml.model", "gpt2"),
        string("tokenizer.ggml.pre", "gpt-2"),
        texts("tokenizer.ggml.tokens", &tokens),
        texts("tokenizer.ggml.merges", &["t 1".to_owned()]),
    ];
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend((pairs.len() as u64).to_le_bytes());
    bytes.extend(pairs.concat());
    bytes.extend(text("token_embd.weight"));
    bytes.extend(2u32.to_le_bytes());
    for extent in [64u64, 300] {
        bytes.extend(extent.to_le_bytes());
    }
    bytes.extend([0; 4 + 8]);
    bytes.resize(bytes.len().next_multiple_of(32) + 4 * 64 * 300, 0);
    bytes
}

/// One of several cards has its part of the heads and of the weights, and a head at least.
#[test]
fn cards_share_heads_and_weights() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let rows = |kv_heads: &str, more: &[&str]| {
        let shape = ["plan", "--layers", "8", "--kv-heads", kv_heads, "--head-dim", "128", "--kv", "t4,t3"];
        let sizes = ["--memory", "1GB", "--tokens", "4096", "--bandwidth", "1TB/s"];
        json(at, &[&shape[..], &sizes, more].concat())["rows"].clone()
    };
    let of = |cards| ["--cards", cards, "--weight-bytes", "8GB"];
    assert_eq!(rows("8", &of("4")), rows("2", &["--weight-bytes", "2GB"]));
    assert_eq!(rows("8", &of("16")), rows("1", &["--weight-bytes", "500MB"]));
    assert_ne!(rows("8", &of("1")), rows("2", &of("1")));
    fs::write(at.join("small.gguf"), gguf(5)).unwrap();
    let plan = json(at, &["plan", "--model", "small.gguf", "--weights", "--memory", "1GB", "--cards", "2"]);
    let all = 4 * 64 * 300 / 2;
    assert_eq!(
        (&plan["cards"], &plan["kv_heads"], &plan["weights"]["all"]),
        (&2.into(), &2.into(), &all.into())
    );
    assert_eq!(plan["cache_memory"], 1_000_000_000 - all);
    assert!(
        error(at, &["plan", "--ram", "64KiB", "--head-dim", "64", "--cards", "2"], 2).contains("--cards")
    );
}

#[test]
fn a_gguf_file_is_a_model_to_plan_for() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("small.gguf"), gguf(5)).unwrap();
    let args = ["plan", "--kv", "s4", "--weights", "--memory", "1GB", "--model"];
    let plan = json(at, &[&args[..], &["small.gguf"]].concat());
    assert_eq!((&plan["layers"], &plan["kv_heads"], &plan["head_dim"]), (&5.into(), &2.into(), &16.into()));
    assert_eq!((&plan["model_context"], &plan["weights"]["all"]), (&8192.into(), &(4 * 64 * 300).into()));
    let in_folder = json(at, &[&args[..], &["."]].concat());
    assert_eq!(plan, in_folder, "a folder with one such file");
    // A broken download leaves such a file.
    let whole = gguf(5);
    fs::write(at.join("cut.gguf"), &whole[..whole.len() - 1000]).unwrap();
    let said = error(at, &["plan", "--weights", "--model", "cut.gguf"], 2);
    assert!(said.contains("ends early") && said.contains("token_embd.weight"), "{said}");
    // The cache follows from the header alone.
    assert_eq!(json(at, &["plan", "--model", "cut.gguf"])["layers"], 5);
    assert!(error(at, &["plan", "--model", "none.gguf"], 2).contains("none.gguf"));
}

/// The counted weights are those of the config, without other files next to them.
#[test]
fn weights_beside_a_config_are_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/shipped");
    let config = fs::read_to_string(shipped.join("config.json")).unwrap();
    fs::write(at.join("config.json"), &config).unwrap();
    fs::write(at.join("other.gguf"), gguf(5)).unwrap();
    let plan = |more: &[&'static str]| [&["plan", "--kv", "f16", "--model"], more].concat();
    let said = error(at, &plan(&["config.json", "--weights"]), 2);
    assert!(said.contains("another model"), "{said}");
    fs::remove_file(at.join("other.gguf")).unwrap();
    let said = error(at, &plan(&["config.json", "--weights"]), 2);
    assert!(said.contains("no .safetensors file"), "{said}");
    // Safetensors of another width.
    fs::copy(shipped.join("model.safetensors"), at.join("model.safetensors")).unwrap();
    let own = json(at, &plan(&["config.json", "--weights"]));
    assert_eq!(own, json(at, &plan(&[".", "--weights"])));
    let hidden = serde_json::from_str::<serde_json::Value>(&config).unwrap()["hidden_size"].as_u64().unwrap();
    let wider = config.replace(&format!("\"hidden_size\": {hidden}"), "\"hidden_size\": 5120");
    assert_ne!(wider, config);
    fs::write(at.join("config.json"), wider).unwrap();
    let said = error(at, &plan(&["config.json", "--weights"]), 2);
    assert!(said.contains("embed_tokens"), "{said}");
    // Without weights, from their number.
    fs::write(at.join("elsewhere.json"), &config).unwrap();
    let counted = json(at, &plan(&["elsewhere.json", "--weight-bits", "4.5"]));
    let number = |report: &serde_json::Value| report["weights"]["all"].as_f64().unwrap();
    let stored = json(at, &plan(&["elsewhere.json", "--weight-bits", "16"]));
    assert_eq!(number(&stored), number(&own), "the shipped weights have 16 bits");
    assert!((number(&counted) / number(&own) - 4.5 / 16.0).abs() < 1e-4);
    assert!(error(at, &plan(&["elsewhere.json", "--weights"]), 2).contains("--weight-bits"));
    assert!(error(at, &plan(&["elsewhere.json", "--weight-bits", "0"]), 2).contains("0.1 to 64"));
}

/// A reference format has the same plan by name as by bytes in `--other`.
#[test]
fn formats_are_planned_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let shape = ["plan", "--layers", "80", "--kv-heads", "8", "--head-dim", "128", "--memory", "34GB"];
    let named = json(at, &[&shape[..], &["--kv", "tq3", "--kv", "s4,tq3"]].concat());
    let bytes = json(
        at,
        &[&shape[..], &["--kv", "f16", "--other", "tq3,tq3=52", "--other", "s4,tq3=66,52"]].concat(),
    );
    assert_eq!(named["rows"][0], bytes["rows"][1]);
    assert_eq!(named["rows"][1], bytes["rows"][2]);
}

/// The positional part of a latent stays f16: DeepSeek-V3 takes 258 + 128 bytes per token and layer at s4.
#[test]
fn latents_are_planned_as_they_are_held() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let config = r#"{"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "max_position_embeddings": 163840}"#;
    fs::write(at.join("config.json"), config).unwrap();
    let plan = json(at, &["plan", "--model", "config.json", "--kv", "s4", "--kv", "f16"]);
    assert_eq!(plan["latent"], true);
    assert_eq!(plan["rows"][0]["bytes_per_token"], 61 * (258 + 128));
    assert_eq!(plan["rows"][1]["bytes_per_token"], 61 * 2 * 576);
}

/// Maps take memory, so they count in the bytes of a token and in the ratio.
#[test]
fn maps_of_keys_are_planned() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let shape = ["plan", "--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--tokens", "8192"];
    let plan = |more: &[&'static str]| [&shape[..], more].concat();
    let said = error(at, &plan(&["--kv", "t2,m2"]), 2);
    assert!(said.contains("m2 is not valid for values"), "{said}");
    let kv = ["t2 map=off", "m2,t2", "m2,t2 map=pairs", "m2,t2 map=off", "m2,t2 ring=8192"];
    let rows = json(at, &plan(&kv.map(|kv| ["--kv", kv]).concat()))["rows"].clone();
    let number = |row: usize, name: &str| rows[row][name].as_f64().unwrap();
    for name in ["cache_bytes", "bytes_per_token"] {
        let bytes = |row: usize| number(row, name);
        assert!(bytes(0) < bytes(2), "{rows}");
        assert_eq!([bytes(1), bytes(3)], [bytes(2), bytes(0)], "{rows}");
    }
    assert_eq!(number(4, "bytes_per_token"), number(0, "bytes_per_token"), "a ring has no map: {rows}");
    let f16 = 8192.0 * 32.0 * 8.0 * 256.0 * 2.0;
    for row in 0..4 {
        let ratio = f16 / number(row, "cache_bytes");
        assert!((number(row, "f16_ratio") / ratio - 1.0).abs() < 0.01, "{ratio}: {rows}");
    }
}

/// Text of a plan.
fn text(at: &Path, args: &[&str]) -> String {
    let output = tqkv(at, args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Layers of two shapes: the bytes of each are counted, and the table names both.
#[test]
fn layers_of_several_shapes_are_planned() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let config = r#"{"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "num_hidden_layers": 12,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256, "global_head_dim": 512,
        "num_global_key_value_heads": 4, "attention_k_eq_v": true, "sliding_window": 1024, "num_kv_shared_layers": 0,
        "max_position_embeddings": 262144}}"#;
    fs::write(at.join("config.json"), config).unwrap();
    let args = ["plan", "--model", "config.json", "--tokens", "1000000"];
    let plan = json(at, &[&args[..], &["--kv", "f16"]].concat());
    let row = &plan["rows"][0];
    assert_eq!(row["bytes_per_token"], 10 * 16 * 256 * 4 + 2 * 4 * 512 * 4);
    assert_eq!(row["bytes_per_token_past_window"], 2 * 4 * 512 * 4);
    assert_eq!((&plan["kv_heads"], &plan["layers"]), (&serde_json::Value::Null, &12.into()));
    let of_layers: Vec<_> = plan["layer_shapes"].as_array().unwrap().iter().map(|i| i.as_u64()).collect();
    assert_eq!(of_layers[..6], [Some(0), Some(0), Some(0), Some(0), Some(0), Some(1)]);
    let text = text(at, &args);
    for word in [
        "12 layers of 2 shapes:",
        "10 layers with a window of 1,024, 16 KV heads, head dim 256",
        "2 layers, 4 KV heads, head dim 512",
        "more tokens than the model is made for: 1,000,000, of at most 262,144",
        "t4,t2 compact",
        "i8,s4 safe-lowbit",
        "tiered",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// A cache would refuse them too, in the same words.
#[test]
fn windows_below_the_hot_one_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let config = r#"{"model_type": "gpt_oss", "num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 64, "sliding_window": 8}"#;
    fs::write(at.join("config.json"), config).unwrap();
    let plan = |kv| ["plan", "--model", "config.json", "--kv", kv];
    let said = error(at, &plan("s4"), 2);
    assert!(said.contains("a sliding window of 8 tokens: expected 64 (the hot window)"), "{said}");
    assert_eq!(json(at, &plan("s4 hot=8"))["window"], 8);
}

#[test]
fn rings_and_single_things_are_said_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let shape = ["plan", "--layers", "1", "--kv-heads", "1", "--head-dim", "64", "--kv", "s4"];
    let ring = [&shape[..], &["--kv", "s4 ring=8192", "--memory", "1GB"]].concat();
    let plan = json(at, &ring);
    let number = |row: usize, name: &str| plan["rows"][row][name].as_u64();
    assert_eq!(
        (number(1, "bytes_per_token_past_window"), number(1, "max_tokens")),
        (Some(0), Some(u64::MAX))
    );
    let fixed = number(1, "cache_bytes").unwrap();
    assert!((8192 * 68..8192 * 68 + 200_000).contains(&fixed), "{fixed}");
    let text = text(at, &ring);
    assert!(text.starts_with("1 layer, 1 KV head, head dim 64") && text.contains("no bound"), "{text}");
}

/// Memory is that of weights and cache together once the weights are counted.
#[test]
fn weights_leave_the_rest_of_the_memory_to_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("model.gguf"), gguf(5)).unwrap();
    let args = ["plan", "--kv", "f16", "--model", "model.gguf", "--memory", "100KB"];
    let alone = json(at, &args);
    let beside = json(at, &[&args[..], &["--weights"]].concat());
    assert_eq!((&alone["cache_memory"], &alone["memory"]), (&100_000.into(), &100_000.into()));
    assert_eq!(beside["cache_memory"], 100_000 - 4 * 64 * 300);
    let tokens = |plan: &serde_json::Value| plan["rows"][0]["max_tokens"].as_u64().unwrap();
    assert!(tokens(&beside) < tokens(&alone), "{beside}");
    let text = text(at, &[&args[..], &["--weights"]].concat());
    assert!(text.contains("of memory, of which the weights leave"), "{text}");
    // A family that tqkv does not run, and one that nobody knows.
    fs::write(at.join("config.json"), r#"{"model_type": "deepseek_v3"}"#).unwrap();
    let plan = json(at, &["plan", "--model", "config.json", "--kv", "t4", "--weight-bits", "4.5"]);
    assert_eq!(plan["weights"]["all"], 671_026_404_352_u64 * 9 / 16);
    let config =
        r#"{"model_type": "new", "num_hidden_layers": 6, "kv_lora_rank": 512, "qk_rope_head_dim": 64}"#;
    fs::write(at.join("config.json"), config).unwrap();
    let said = error(at, &["plan", "--model", "config.json", "--weight-bits", "4.5"], 2);
    assert!(
        said.contains("the weights of family new are not counted") && said.contains("--weights"),
        "{said}"
    );
}
