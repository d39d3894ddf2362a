//! `generate`, `chat` and `tune` with a tiny checkpoint of every family that the runner knows.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::model_commands::rows;
use crate::support::{json, piped, tqkv};

/// The checkpoints that the tests of the runner compare with Transformers.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/golden");

/// A tokenizer with one word per token, and a template that writes two words around a question.
fn lay_tokenizer(folder: &Path, config: &Value) {
    let size = config["vocab_size"].as_u64().unwrap();
    let vocab: serde_json::Map<_, _> = (0..size).map(|token| (format!("w{token}"), token.into())).collect();
    let tokenizer = json!({ "version": "1.0", "added_tokens": [], "pre_tokenizer": { "type": "WhitespaceSplit" },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "w0" } });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let template = "{% for m in messages %}w1 {{ m.content }} {% endfor %}w2";
    fs::write(folder.join("chat_template.jinja"), template).unwrap();
}

/// Lays all checkpoints into `folder`; returns their names.
fn lay_families(folder: &Path) -> Vec<String> {
    let there = fs::read_dir(GOLDEN).unwrap().map(|entry| entry.unwrap().path());
    let mut families: Vec<PathBuf> = there.filter(|path| path.is_dir()).collect();
    families.sort();
    let lay = |from: PathBuf| {
        let name = from.file_name().unwrap().to_str().unwrap().to_owned();
        let to = folder.join(&name);
        fs::create_dir(&to).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(from.join(file), to.join(file)).unwrap();
        }
        lay_tokenizer(&to, &serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap());
        name
    };
    families.into_iter().map(lay).collect()
}

/// The window of some layers has 8 tokens, so caches keep fewer in f16. What f16 takes is measured by a cache of each kind
/// of layer alone, and equals what the model's own cache in f16 takes. Families with narrow windows have no such cache.
#[test]
fn every_family_generates_and_talks() {
    let mut compared = 0;
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let families = lay_families(at);
    assert!(families.len() > 12, "{families:?}");
    for name in families {
        let model = ["-m", &name, "-n", "9"];
        let generate = ["generate", "-p", "w3 w9 w27 w17 w51 w25 w11 w33 w35"];
        let exact = [&generate[..], &model, &["--kv", "f16", "--json"]].concat();
        let exact = tqkv(at, &exact);
        if exact.status.success() {
            let made: Value = serde_json::from_slice(&exact.stdout).unwrap();
            assert_eq!(rows(&made)[0]["f16_bytes"], rows(&made)[0]["cache_bytes"], "{name}");
            compared += 1;
        }
        for codec in ["f16", "s4"] {
            let kv = format!("{codec} hot=4 sinks=2");
            let args = [&generate[..], &model, &["--kv", &kv]].concat();
            let output = tqkv(at, &args);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name}, {codec}: {said}");
            for extra in [&[][..], &["--sequences", "2"]] {
                let made = json(at, &[&args[..], extra].concat());
                let row = &rows(&made)[0];
                let bytes = ["f16_bytes", "cache_bytes"].map(|name| row[name].as_u64().unwrap());
                assert!(bytes.iter().all(|bytes| *bytes > 0), "{name}: {made}");
            }
            let chat = [&["chat"][..], &model, &["--kv", &kv, "--json"]].concat();
            let output = piped(at, &chat, b"w5 w6\nw7\n");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name}, {codec}: {said}");
            let turns = String::from_utf8(output.stdout).unwrap();
            let turns = turns.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            assert_eq!(turns.filter(|turn| turn["f16_bytes"].as_u64() > Some(0)).count(), 2, "{name}");
        }
    }
    assert!(compared > 5, "{compared} families");
}

/// Sets the context of a config, and its windows.
fn lengthen(config: &mut Value) {
    let Some(fields) = config.as_object_mut() else { return };
    for (name, value) in fields {
        match name.as_str() {
            "max_position_embeddings" => *value = 512.into(),
            "sliding_window" if value.is_number() => *value = 40.into(),
            _ => lengthen(value),
        }
    }
}

/// Latent vectors, learned sinks and windows among them.
#[test]
fn every_family_is_tuned() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    // Half of the words are tokens, and the others those that texts ask for.
    let letter = |i: usize| char::from(b'a' + (i % 26) as u8);
    let word = |i: usize| format!("w{} q{}{}rst ", i * i % 61, letter(i % 79), letter(i % 79 / 26));
    fs::write(at.join("text"), (0..3000).map(word).collect::<String>()).unwrap();
    for name in lay_families(at) {
        let file = at.join(&name).join("config.json");
        let mut config = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        lengthen(&mut config);
        fs::write(&file, config.to_string()).unwrap();
        let args = ["tune", "-m", &name, "--kinds", "prose,copy", "--text-tokens", "256", "--text", "text"];
        let report = json(at, &args);
        let budget = report["budget_bytes"].as_u64();
        let rows = report["candidates"].as_array().unwrap();
        let chosen = rows.iter().find(|row| row["kv"] == report["kv"]).unwrap();
        assert!(chosen["bytes"].as_u64() <= budget && chosen["kl"].as_f64() > Some(0.0), "{name}: {report}");
        let heads = report["heads"].as_array().unwrap();
        assert!(heads.iter().all(|head| (0.0..=1.0).contains(&head["score"].as_f64().unwrap())), "{name}");
    }
}
