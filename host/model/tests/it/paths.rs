//! The files that a path stands for, and the errors of paths without a model.

use std::fs;
use std::path::Path;

use crate::gguf;
use crate::support::Checkpoint;
use safetensors::Dtype;
use serde_json::json;
use tempfile::{TempDir, tempdir};
use tqkv_model::Model;

fn tiny() -> Checkpoint {
    Checkpoint::new("LlamaForCausalLM", 8, json!({}))
}

/// A folder with empty files of these names.
fn folder(names: &[&str]) -> TempDir {
    let dir = tempdir().unwrap();
    for name in names {
        fs::write(dir.path().join(name), b"").unwrap();
    }
    dir
}

fn refused(path: &Path) -> String {
    let error = Model::load(path).unwrap_err().to_string();
    assert!(error.starts_with(&path.display().to_string()) && !error.contains('\n'), "{error}");
    assert!(error.contains("expected a .gguf file, or a folder with config.json"), "{error}");
    error
}

fn name(path: &Path) -> String {
    Model::load(path).unwrap().name().to_owned()
}

#[test]
fn folders_without_a_model_say_what_they_have() {
    for (names, said) in [
        (&[][..], "no config.json; it has nothing"),
        (&["pytorch_model.bin", "vocab.txt"], "no config.json; it has pytorch_model.bin, vocab.txt"),
        (&["a.gguf", "b.gguf"], "2 .gguf files, of which one must be given: a.gguf, b.gguf"),
        (&["1", "2", "3", "4", "5", "6", "7", "8", "9"], "it has 1, 2, 3, 4, 5, 6, 7, 8 and more"),
    ] {
        let error = refused(folder(names).path());
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn configs_without_readable_weights_say_what_is_there() {
    for (names, said) in [
        (&[][..], "no .safetensors file; it has config.json"),
        (&["pytorch_model.bin"], "no .safetensors file; it has config.json, pytorch_model.bin"),
        (
            &["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
            "no model.safetensors and no model.safetensors.index.json for model-00001-of-00002.safetensors, model-00002",
        ),
        (&["model-00001-of-00002.safetensors"], "no model.safetensors.index.json for model-00001-of-00002"),
        (
            &["a.safetensors", "b.safetensors"],
            "no model.safetensors.index.json for a.safetensors, b.safetensors",
        ),
    ] {
        let dir = folder(names);
        tiny().write_config(dir.path());
        let error = refused(dir.path());
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn files_of_other_kinds_are_told_from_models() {
    let dir = folder(&["model.safetensors", "model.bin", "notes.txt"]);
    let error = |name: &str| Model::load(dir.path().join(name)).unwrap_err().to_string();
    assert!(error("model.safetensors").contains("one part of a model; give its folder"));
    assert!(error("model.bin").contains("weights of PyTorch (.bin) are not read"));
    assert!(error("notes.txt").contains("notes.txt: not a readable GGUF file"));
}

#[test]
fn one_file_of_weights_is_the_model_whatever_its_name() {
    let dir = tempdir().unwrap();
    let model = dir.path().join("some-model");
    fs::create_dir(&model).unwrap();
    tiny().write(&model, Dtype::F32);
    fs::rename(model.join("model.safetensors"), model.join("weights.safetensors")).unwrap();
    assert_eq!(name(&model), "some-model");
}

#[test]
fn one_gguf_in_a_folder_is_the_model() {
    let dir = folder(&["README.md"]);
    let bytes = gguf::tiny(&tiny());
    fs::write(dir.path().join("tiny-Q4_0.gguf"), &bytes).unwrap();
    assert_eq!(name(dir.path()), "tiny-Q4_0");
    // A config next to it does not turn it into a checkpoint of safetensors.
    tiny().write_config(dir.path());
    assert_eq!(name(dir.path()), "tiny-Q4_0");
}

#[test]
fn a_split_gguf_in_a_folder_is_one_model() {
    let dir = tempdir().unwrap();
    for (i, part) in gguf::tiny_split(&tiny()).into_iter().enumerate() {
        fs::write(dir.path().join(format!("tiny-{:05}-of-00002.gguf", i + 1)), part).unwrap();
    }
    assert_eq!(name(dir.path()), "tiny-00001-of-00002");
}

#[test]
fn the_cache_of_a_hub_leads_to_its_snapshot() {
    let dir = tempdir().unwrap();
    let root = dir.path().join("models--org--some-model");
    let snapshot = |name: &str| root.join("snapshots").join(name);
    fs::create_dir_all(snapshot("aaa")).unwrap();
    tiny().write(&snapshot("aaa"), Dtype::F32);
    assert_eq!(name(&root), "some-model");
    fs::create_dir_all(snapshot("bbb")).unwrap();
    let error = Model::load(&root).unwrap_err().to_string();
    assert!(
        error.contains("no refs/main that names a snapshot, and not exactly one snapshot; it has aaa, bbb"),
        "{error}"
    );
    fs::create_dir_all(root.join("refs")).unwrap();
    fs::write(root.join("refs/main"), "aaa\n").unwrap();
    assert_eq!(name(&root), "some-model");
    for outside in ["../..", "/", "", "ccc"] {
        fs::write(root.join("refs/main"), outside).unwrap();
        assert!(Model::load(&root).is_err(), "{outside:?}");
    }
}
