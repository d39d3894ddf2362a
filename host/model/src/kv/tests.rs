//! Configs of known models, and files that are refused.

use super::*;

fn read(json: &str) -> Result<ModelKv, ModelError> {
    ModelKv::from_json(json.as_bytes())
}

fn refused(json: &str) -> String {
    read(json).unwrap_err().to_string()
}

/// Bytes of a token in f16 in the layers of a model, and in those without a window.
fn bytes(kv: &ModelKv) -> [usize; 2] {
    let of = |layer: &LayerKv| {
        let values = if layer.position_dim > 0 { 0 } else { layer.value_dim };
        2 * layer.num_kv_heads * (layer.head_dim + values)
    };
    let all = kv.kept().map(of).sum();
    [all, kv.kept().filter(|layer| layer.window.is_none()).map(of).sum()]
}

const FIVE_OF_SIX: &str = r#"["sliding_attention","sliding_attention","sliding_attention","sliding_attention","sliding_attention","full_attention"]"#;

/// A Gemma 4 with these numbers of layers, of KV heads, and of KV heads in full layers.
fn gemma4(layers: usize, heads: usize, global: usize) -> String {
    let types: Vec<&str> = std::iter::repeat_n(FIVE_OF_SIX.trim_matches(['[', ']']), layers / 6).collect();
    format!(
        r#"{{"model_type": "gemma4", "text_config": {{"model_type": "gemma4_text", "num_hidden_layers": {layers},
        "hidden_size": 3840, "num_attention_heads": 16, "num_key_value_heads": {heads}, "head_dim": 256,
        "global_head_dim": 512, "num_global_key_value_heads": {global}, "attention_k_eq_v": true,
        "sliding_window": 1024, "layer_types": [{}], "num_kv_shared_layers": 0}}}}"#,
        types.join(",")
    )
}

#[test]
fn layers_of_one_model_have_their_own_shapes() {
    let large = read(&gemma4(60, 16, 4)).unwrap();
    assert_eq!(bytes(&large), [901_120, 81_920]);
    assert_eq!(bytes(&read(&gemma4(48, 8, 1)).unwrap()), [344_064, 16_384]);
    let [sliding, full] = [0, 5].map(|layer: usize| large.layers[layer].unwrap());
    assert_eq!((sliding.window, sliding.num_kv_heads, sliding.head_dim), (Some(1024), 16, 256));
    assert_eq!((full.window, full.num_kv_heads, full.head_dim), (None, 4, 512));
    // Transformers writes such a model with an entry for each full layer.
    let written = r#"{"model_type": "gemma4_text", "num_hidden_layers": 2, "num_key_value_heads": 4, "head_dim": 64,
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "num_kv_shared_layers": 0,
        "per_layer_config": {"01": {"head_dim": 128, "num_key_value_heads": 1}}}"#;
    let written = read(written).unwrap();
    assert_eq!(written.layers[1].map(|layer| (layer.num_kv_heads, layer.head_dim)), Some((1, 128)));
}

#[test]
fn families_count_their_heads_by_their_own_keys() {
    let old = r#"{"model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71,
        "multi_query": true, "new_decoder_architecture": false, "num_kv_heads": 71}"#;
    assert_eq!(bytes(&read(old).unwrap())[0], 8_192);
    let new = r#"{"model_type": "falcon", "num_hidden_layers": 60, "hidden_size": 8192, "num_attention_heads": 128,
        "new_decoder_architecture": true, "num_kv_heads": 8}"#;
    assert_eq!(bytes(&read(new).unwrap())[0], 122_880);
    let nas = r#"{"model_type": "nemotron-nas", "num_hidden_layers": 3, "hidden_size": 8192, "num_attention_heads": 64,
        "num_key_value_heads": null, "block_configs": [{"attention": {"n_heads_in_group": 8, "no_op": false}},
        {"attention": {"n_heads_in_group": null, "no_op": true}}, {"attention": {"n_heads_in_group": 16}}]}"#;
    let nas = read(nas).unwrap();
    let heads: Vec<_> = nas.layers.iter().map(|layer| layer.map(|layer| layer.num_kv_heads)).collect();
    assert_eq!(heads, [Some(8), None, Some(4)]);
    let openelm = r#"{"model_type": "openelm", "num_transformer_layers": 3, "model_dim": 1280, "head_dim": 64,
        "num_query_heads": [12, 16, 20], "num_kv_heads": [3, 4, 5], "max_context_length": 2048}"#;
    let openelm = read(openelm).unwrap();
    assert_eq!(openelm.kept().map(|layer| layer.num_kv_heads).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!((bytes(&openelm)[0], openelm.context), (12 * 64 * 4, Some(2048)));
}

#[test]
fn missing_keys_have_the_defaults_of_their_family() {
    let gemma = r#"{"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560,
        "num_hidden_layers": 34, "sliding_window": 1024}}"#;
    let gemma = read(gemma).unwrap();
    assert_eq!(
        gemma.layers[0],
        Some(LayerKv { window: Some(1024), num_kv_heads: 4, head_dim: 256, value_dim: 256, position_dim: 0 })
    );
    assert_eq!(gemma.kept().filter(|layer| layer.window.is_none()).count(), 5);
    let llama = r#"{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 256,
        "sliding_window": 512}"#;
    assert_eq!(
        read(llama).unwrap().layers,
        [Some(LayerKv { window: None, num_kv_heads: 4, head_dim: 64, value_dim: 64, position_dim: 0 }); 2]
    );
    let python = r#"{"model_type": "llama", "num_hidden_layers": 1, "limit": [0.0, Infinity, -Infinity, NaN], "x": "NaN\" Infinity"}"#;
    assert_eq!(read(python).unwrap().kept().count(), 1);
    let latent = r#"{"model_type": "kimi_linear", "num_hidden_layers": 8, "num_attention_heads": 32, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64, "head_dim": 72, "v_head_dim": 128, "linear_attn_config": {"full_attn_layers": [4, 8]}}"#;
    let latent = read(latent).unwrap();
    assert_eq!(
        latent.layers[3],
        Some(LayerKv { window: None, num_kv_heads: 1, head_dim: 576, value_dim: 512, position_dim: 64 })
    );
    assert_eq!(latent.kept().count(), 2);
}

#[test]
fn what_is_not_known_is_refused_by_its_key() {
    let unknown = |fields: &str| format!(r#"{{"model_type": "newcomer", {fields}}}"#);
    let whole = r#""num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 64"#;
    assert_eq!(read(&unknown(whole)).unwrap().kept().count(), 2);
    for (fields, key) in [
        (
            r#""num_hidden_layers": 2, "num_attention_heads": 8, "head_dim": 64"#,
            "num_key_value_heads is missing",
        ),
        (r#""num_hidden_layers": 2, "num_key_value_heads": 8, "hidden_size": 512"#, "head_dim is missing"),
        (r#""num_key_value_heads": 8, "head_dim": 64"#, "num_hidden_layers is missing"),
        (&format!(r#"{whole}, "multi_query": true"#), "multi_query"),
        (&format!(r#"{whole}, "global_head_dim": 128"#), "global_head_dim"),
        (&format!(r#"{whole}, "sliding_window": 128"#), "layer_types"),
        (&format!(r#"{whole}, "layer_types": ["telepathy", "full_attention"]"#), "telepathy"),
    ] {
        let said = refused(&unknown(fields));
        assert!(said.contains(key) && (said.contains("newcomer") || key == "telepathy"), "{fields}: {said}");
    }
    for (json, word) in [
        ("[]", "config.json"),
        ("{", "config.json"),
        ("{}", "num_hidden_layers"),
        (r#"{"model_type": "llama", "num_hidden_layers": -1}"#, "num_hidden_layers"),
        (r#"{"model_type": "llama", "num_key_value_heads": "two"}"#, "num_key_value_heads"),
        (r#"{"model_type": "llama", "num_attention_heads": 3, "hidden_size": 256}"#, "head_dim"),
        (
            r#"{"model_type": "openelm", "num_transformer_layers": 3, "head_dim": 64, "num_kv_heads": [3]}"#,
            "fewer than there are layers",
        ),
        (r#"{"model_type": "mamba"}"#, "no layer with attention"),
    ] {
        let said = refused(json);
        assert!(said.contains(word), "{json}: {said}");
    }
}

/// Every way to say which layers have a window or attention.
#[test]
fn windows_are_those_of_the_layers_that_have_them() {
    let counted = |fields: &str| {
        let base = r#""num_hidden_layers": 12, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 256, "head_dim": 128"#;
        let json = format!("{{{base}, {fields}}}");
        let kv = read(&json).unwrap_or_else(|error| panic!("{fields}: {error}"));
        let windows: Vec<usize> = kv.kept().filter_map(|layer| layer.window).collect();
        (kv.kept().count(), windows.first().map(|tokens| (windows.len(), *tokens)))
    };
    for (fields, expected) in [
        (r#""model_type": "mistral", "sliding_window": null"#, (12, None)),
        (r#""model_type": "mistral", "sliding_window": 4096"#, (12, Some((12, 4096)))),
        (r#""model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": false"#, (12, None)),
        (
            r#""model_type": "qwen2", "sliding_window": 512, "use_sliding_window": true, "max_window_layers": 9"#,
            (12, Some((3, 512))),
        ),
        (r#""model_type": "llama", "sliding_window": 512"#, (12, None)),
        (r#""model_type": "qwen2", "sliding_window": 512"#, (12, None)),
        (r#""architectures": ["Qwen2MoeForCausalLM"], "sliding_window": 512"#, (12, None)),
        (r#""model_type": "x", "sliding_window": 512, "sliding_window_pattern": 6"#, (12, Some((10, 512)))),
        (r#""model_type": "gemma2", "sliding_window": 512"#, (12, Some((6, 512)))),
        (
            r#""sliding_window": 8, "layer_types": ["sliding_attention", "full_attention", "linear_attention"]"#,
            (2, Some((1, 8))),
        ),
        (r#""sliding_window": 512, "_sliding_window_pattern": 4"#, (12, Some((9, 512)))),
        (r#""sliding_window": 512, "sliding_window_pattern": "LLLG""#, (12, Some((9, 512)))),
        (r#""sliding_window": 512, "sliding_window_pattern": "LLLLL""#, (12, Some((11, 512)))),
        (r#""layer_types": ["conv", "full_attention"]"#, (1, None)),
        (r#""layers_block_type": ["mamba", "hybrid", "mamba", "attention"]"#, (2, None)),
        (
            r#""model_type": "gemma3n_text", "num_kv_shared_layers": 5, "sliding_window": 8, "sliding_window_pattern": 3"#,
            (7, Some((5, 8))),
        ),
        (
            r#""block_types": ["recurrent", "recurrent", "attention"], "attention_window_size": 2048"#,
            (4, Some((4, 2048))),
        ),
        (r#""hybrid_override_pattern": "M-M*-ME*M-M-""#, (2, None)),
        (r#""full_attention_interval": 4"#, (3, None)),
        (r#""attn_layer_period": 8, "attn_layer_offset": 4"#, (1, None)),
        (r#""attn_layer_indices": [1, 9, 40]"#, (2, None)),
        (r#""full_attn_idxs": [2, 5, 8, 10]"#, (4, None)),
        (r#""attn_type_list": [0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1]"#, (4, None)),
        (r#""linear_attn_config": {"full_attn_layers": [4, 8, 12], "kda_layers": [1]}"#, (3, None)),
    ] {
        assert_eq!(counted(fields), expected, "{fields}");
    }
    for (fields, word) in [
        (r#""attn_layer_indices": []"#, "layer with attention"),
        (r#""hybrid_override_pattern": "M?""#, "'?'"),
    ] {
        let said = refused(&format!(
            r#"{{"num_hidden_layers": 12, "num_key_value_heads": 2, "head_dim": 64, {fields}}}"#
        ));
        assert!(said.contains(word), "{said}");
    }
}

/// Files of Qwen2-VL have no `text_config`: their own keys are the text model's.
#[test]
fn keys_without_a_nested_object_count_in_families_that_read_them() {
    let fields = r#""hidden_size": 3584, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4"#;
    for family in ["qwen2_vl", "qwen2_5_vl"] {
        let flat = read(&format!(r#"{{"model_type": "{family}", {fields}}}"#)).unwrap();
        let nested = read(&format!(r#"{{"model_type": "{family}", "text_config": {{{fields}}}}}"#)).unwrap();
        assert_eq!(flat.layers, nested.layers, "{family}");
        let layer = LayerKv { window: None, num_kv_heads: 4, head_dim: 128, value_dim: 128, position_dim: 0 };
        assert_eq!(flat.layers, [Some(layer); 28], "{family}");
    }
}

/// A default counts under the name that the family has for the key.
#[test]
fn a_window_that_is_left_out_has_the_length_of_the_family() {
    let kv = read(r#"{"model_type": "recurrent_gemma", "num_hidden_layers": 3}"#).unwrap();
    let windows: Vec<_> = kv.layers.iter().map(|layer| layer.map(|layer| layer.window)).collect();
    assert_eq!(windows, [None, None, Some(Some(2048))]);
}

/// What the library makes of a missing key is not guessed where it is not in the table.
#[test]
fn a_key_without_a_known_default_is_refused_by_name() {
    for (json, part) in [
        (r#"{"model_type": "got_ocr2", "num_hidden_layers": 4}"#, "text_config is missing in got_ocr2"),
        (
            r#"{"model_type": "nemotron_h", "num_hidden_layers": 4}"#,
            "hybrid_override_pattern or layer_types is missing",
        ),
        (
            r#"{"model_type": "zamba2", "layers_block_type": ["hybrid"]}"#,
            "attention_head_dim is missing in zamba2",
        ),
    ] {
        assert!(refused(json).contains(part), "{}", refused(json));
    }
    // Every layer of this family slides, whatever the file says of the first ones.
    let moe = r#"{"model_type": "qwen3_moe", "num_hidden_layers": 2, "use_sliding_window": true,
        "sliding_window": 4096, "max_window_layers": 48}"#;
    assert!(read(moe).unwrap().kept().all(|layer| layer.window == Some(4096)));
}
