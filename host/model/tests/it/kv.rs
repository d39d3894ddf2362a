//! The layers of models of every family, against the caches of Transformers.
//!
//! A line of `golden/kv_cases.jsonl` has the keys of a `config.json` and the layers of the library's own
//! cache. A layer is its window, its KV heads, and the coordinates of a key and of a value, or null where it
//! keeps nothing. `host/python/tests/plan_families.py` writes the file. The test `test_plan.py` next to it
//! compares all families anew.

use serde_json::Value;
use tqkv_model::{LayerKv, ModelKv};

fn cases() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/kv_cases.jsonl")).unwrap()
}

/// A layer as the library counts it: a latent vector is its own value, and the value of the other side is
/// the positional part.
fn held(layer: &LayerKv) -> [u64; 4] {
    let (key, value) = match layer.position_dim {
        0 => (layer.head_dim, layer.value_dim),
        positions => (layer.value_dim, positions),
    };
    [layer.window.unwrap_or(0), layer.num_kv_heads, key, value].map(|n| n as u64)
}

#[test]
fn families_keep_what_the_model_library_keeps() {
    let (mut equal, mut refused, mut wrong) = (0, Vec::new(), Vec::new());
    let mut families = std::collections::BTreeSet::new();
    for line in cases().lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let expected: Vec<Option<[u64; 4]>> = serde_json::from_value(case["layers"].clone()).unwrap();
        let name = case["config"]["model_type"].as_str().unwrap().to_owned();
        match ModelKv::from_json(case["config"].to_string().as_bytes()) {
            Err(error) => refused.push(format!("{name}: {error}")),
            Ok(kv) => {
                let mut found: Vec<_> = kv.layers.iter().map(|layer| layer.as_ref().map(held)).collect();
                // The library may make a cache for an encoder's layers too.
                found.truncate(found.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
                if found == expected {
                    equal += 1;
                    families.insert(name);
                } else {
                    wrong.push(format!("{line}\n  found {found:?}"));
                }
            }
        }
    }
    println!("{equal} files of {} families equal, {} refused", families.len(), refused.len());
    refused.dedup();
    println!("{}", refused.join("\n"));
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(families.len() >= 140, "{} families", families.len());
}
