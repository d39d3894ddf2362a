//! The number of weights of models of every family, against Transformers.
//!
//! A line of `golden/weight_cases.jsonl` has the keys of a `config.json` and the counts of the library's own
//! model: outside the layers, of the largest layer, and of all. `host/python/tests/plan_weights.py` writes the
//! file. The test `test_plan.py` next to it counts anew.

use serde_json::{Value, json};
use tqkv_model::WeightBytes;

fn cases() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/weight_cases.jsonl")).unwrap()
}

/// Outside the layers, of the largest layer, and of all. A weight of 8 bits is a byte.
fn counted(config: &Value) -> Result<[u64; 3], String> {
    let bytes = WeightBytes::of_config(config.to_string().as_bytes(), 8.0);
    bytes.map(|bytes| [bytes.beside, bytes.layer, bytes.all]).map_err(|error| error.to_string())
}

#[test]
fn families_have_as_many_weights_as_the_model_library_gives_them() {
    let (mut wrong, mut families) = (Vec::new(), std::collections::BTreeSet::new());
    for line in cases().lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let expected: [u64; 3] = serde_json::from_value(case["weights"].clone()).unwrap();
        let name = case["config"]["model_type"].as_str().unwrap().to_owned();
        match counted(&case["config"]) {
            Ok(found) if found == expected => drop(families.insert(name)),
            found => wrong.push(format!("{line}\n  found {found:?}")),
        }
    }
    println!("{} families equal", families.len());
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(families.len() >= 100, "{} families", families.len());
}

/// Published models. Their cards give the numbers in billions.
#[test]
fn published_models_have_the_weights_that_their_cards_say() {
    for (config, billions) in [
        (json!({"model_type": "deepseek_v3"}), 671.03),
        (json!({"model_type": "qwen3_next"}), 79.67),
        (
            json!({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
                "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256}),
            8.03,
        ),
    ] {
        let [_, _, all] = counted(&config).unwrap();
        assert!((all as f64 / 1e9 - billions).abs() < 0.005, "{config}: {all}");
    }
}

#[test]
fn what_cannot_be_counted_is_named() {
    for (config, part) in [
        (
            json!({"model_type": "new", "num_hidden_layers": 2, "num_key_value_heads": 1, "head_dim": 64}),
            "the weights of family new are not counted: expected one of",
        ),
        (json!({"model_type": "llama", "hidden_size": "wide"}), "hidden_size"),
        (json!({"model_type": "llama", "intermediate_size": -5}), "intermediate_size is -5"),
        (json!({"model_type": "llama", "intermediate_size": 1e300}), "intermediate_size"),
        (json!({"model_type": "llama", "num_hidden_layers": 1 << 30}), "1 to 4096"),
        (json!({"model_type": "llama", "num_attention_heads": 0}), "head_dim is inf"),
        (
            json!({"model_type": "llama", "hidden_size": 1i64 << 39, "vocab_size": 1i64 << 39}),
            "expected 0 to 2^60",
        ),
    ] {
        let said = counted(&config).unwrap_err();
        assert!(said.contains(part), "{config}: {said}");
    }
}
