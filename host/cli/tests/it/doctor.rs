//! `tqkv doctor` with programs that stand for Python and for builds of llama.cpp.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::tempdir;

use crate::support::{alone, tqkv, tqkv_with};

/// Runs the command without variables but `PATH`, which is `folder` alone, and `variables`. It lies alone, because what
/// else was built or installed around the original is none of the test's.
fn doctor(folder: &Path, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let place = tempdir().unwrap();
    let mut command = Command::new(alone(place.path()));
    command.env_clear().env("PATH", folder).envs(variables.iter().copied());
    command.current_dir(folder).arg("doctor").args(args).output().unwrap()
}

fn program(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn a_machine_without_engines_is_well() {
    let folder = tempdir().unwrap();
    let output = doctor(folder.path(), &["--json"], &[]);
    let report = report(&output);
    assert!(output.status.success(), "{report}");
    assert_eq!(report["levels"][0], "portable");
    assert!(report["levels"].as_array().unwrap().contains(&report["level"]), "{report}");
    assert!(
        report["processors"].as_u64() >= Some(1) && report["python"].is_null() && report["llama"].is_null()
    );
    let text = String::from_utf8(doctor(folder.path(), &[], &[]).stdout).unwrap();
    assert!(text.ends_with("\nNothing is wrong.\n") && text.lines().all(|line| line.len() <= 100), "{text}");
}

#[test]
fn what_is_wrong_is_said_and_fails() {
    let folder = tempdir().unwrap();
    let folder = folder.path();
    let packages = r#"[{"name": "transformers", "version": "5.20.0", "door": "tqkv.transformers", "fault": null},
        {"name": "tqkv", "version": "0.1.0", "door": null, "fault": null},
        {"name": "vllm", "version": "0.1", "door": "tqkv.vllm", "fault": "ImportError: too old"}]"#;
    let said = format!("{{\"version\": \"3.9\", \"packages\": {packages}}}").replace('\n', " ");
    program(folder, "python3", &format!("echo noise; echo '{said}'"));
    program(folder, "llama-cli", "exit 0");
    let variables = [("TQKV_LEVEL", "avx9"), ("TQKV_LEVELLE", "avx2")];
    let output = doctor(folder, &["--json"], &variables);
    let report = report(&output);
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert!(report["level"].is_null() && report["python"]["packages"][0]["fault"].is_null(), "{report}");
    assert!(report["llama"]["binary"].as_str().unwrap().ends_with("/llama-cli"), "{report}");
    let faults: Vec<_> =
        report["faults"].as_array().unwrap().iter().map(|fault| fault.as_str().unwrap()).collect();
    for (fault, expected) in faults.iter().zip([
        "TQKV_LEVEL: unknown level: accepted are portable",
        "nothing reads the variable TQKV_LEVELLE: expected TQKV_LEVEL (instruction set of the kernels), TQKV_",
        "the package tqkv 0.1.0 is another project's, and has our module's name: pip uninstall tqkv, then",
        "import tqkv.vllm beside vllm 0.1: ImportError: too old; try pip install --upgrade tqkv-cache vllm",
    ]) {
        assert!(fault.starts_with(expected), "{fault}");
    }
    assert_eq!(faults.len(), 4, "{faults:?}");
    let text = String::from_utf8(doctor(folder, &[], &variables).stdout).unwrap();
    for line in
        ["vllm 0.1: its door does not load", "transformers 5.20.0: tqkv.transformers", "wrong: TQKV_LEVEL"]
    {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn a_program_that_is_no_python_is_refused() {
    let folder = tempdir().unwrap();
    program(folder.path(), "strange", "echo 'Python 2.7'; echo 'no module json' >&2");
    let output = doctor(folder.path(), &["--python", "./strange"], &[]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("./strange is not a Python 3: no module json"), "{error}");
}

/// The script itself, where there is a Python.
#[test]
fn the_python_of_this_machine_answers() {
    let folder = tempdir().unwrap();
    let python = Command::new("python3").arg("--version").output();
    if python.is_ok_and(|output| output.status.success()) {
        let report = report(&tqkv(folder.path(), &["doctor", "--json"]));
        assert!(report["python"]["version"].as_str().unwrap().starts_with("3."), "{report}");
    }
}

#[test]
fn a_misspelt_variable_is_refused_by_every_command() {
    let folder = tempdir().unwrap();
    let output = tqkv_with(folder.path(), &["codecs"], ("TQKV_LEVLE", "avx2"));
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("the variable TQKV_LEVLE is not valid: expected TQKV_LEVEL"), "{error}");
}

/// The library that the README of `host/llama` builds, in a checkout that the command was built in too.
#[test]
fn the_library_of_a_checkout_is_found_and_one_that_is_named() {
    let folder = tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let name = format!("{}ggml_tqkv{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    for place in ["target/debug", "host/llama/target/release", "elsewhere", "bin"] {
        fs::create_dir_all(folder.join(place)).unwrap();
    }
    let command = alone(&folder.join("target/debug"));
    program(&folder.join("bin"), "llama-cli", "echo \"TQKV: $GGML_BACKEND_PATH\"");
    fs::write(folder.join("elsewhere").join(&name), "").unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new(&command);
        command.env_clear().current_dir(&folder).args(args).args(["--json"]).output().unwrap()
    };
    let missing = run(&["llama", "bin"]);
    let said = String::from_utf8(missing.stderr).unwrap();
    assert!(said.contains("no such library; cargo build") && missing.status.code() == Some(2), "{said}");
    assert!(report(&run(&["doctor", "--llama", "bin"]))["llama"]["device"].is_null());
    let named = report(&run(&["doctor", "--llama", "bin", "--library", "elsewhere"]));
    let device = |place: &str| format!("TQKV: {}/{place}/{name}", folder.display());
    assert_eq!(named["llama"]["device"], device("elsewhere"));
    assert_eq!(run(&["doctor", "--llama", "bin", "--library", "none.so"]).status.code(), Some(2));
    let built = "host/llama/target/release";
    fs::write(folder.join(built).join(&name), "").unwrap();
    assert_eq!(report(&run(&["llama", "bin"]))["device"], device(built));
    assert_eq!(report(&run(&["doctor", "--llama", "bin"]))["llama"]["device"], device(built));

    // What a context takes is said of a model that is there: 4 layers of 2 heads of 64, in blocks of 34 bytes and in f16.
    let config = r#"{"model_type": "llama", "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 256, "max_position_embeddings": 8192}"#;
    fs::write(folder.join("config.json"), config).unwrap();
    let context = |more: &[&str]| {
        let arguments = [&["llama", "--model", "config.json"], more].concat();
        report(&run(&arguments))["context"].clone()
    };
    let (all, part) = (context(&[]), context(&["--tokens", "4096"]));
    let (tokens, least) = (8192, 8192 * 4 * 2 * 2 * 128);
    // The pages of f16 have a structure too.
    assert_eq!(all["tokens"], tokens, "{all}");
    assert!((least..least + least / 100).contains(&all["f16_bytes"].as_u64().unwrap()), "{all}");
    let bytes = all["bytes"].as_u64().unwrap();
    assert!((8192 * 4 * 2 * 2 * 34..8192 * 4 * 2 * 2 * 38).contains(&bytes), "{all}");
    assert!(part["tokens"] == 4096 && part["bytes"].as_u64().unwrap() < bytes * 6 / 10, "{part}");
    assert!(context(&["--kv", "t2"])["bytes"].as_u64().unwrap() < bytes * 6 / 10);
    for (args, why) in [(["--kv", "s9"], "'s9' is neither a preset"), (["--tokens", "9"], "not model.gguf")] {
        let refused = run(&[&["llama"], &args[..]].concat());
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains(why) && refused.status.code() == Some(2), "{said}");
    }
    let codes = ["--kv", "state=codes"];
    assert_eq!((context(&codes), context(&["--kv", "s4 state=type"])), (all.clone(), all));
    assert!(
        report(&run(&["llama"]))["context"].is_null() && context(&["--kv", "s4; layers=2: t2"]).is_null()
    );
}

/// What README builds for llama.cpp, around the program under test, changes no result of these tests.
#[test]
fn the_program_of_these_tests_lies_alone() {
    let folder = tempdir().unwrap();
    let folder = folder.path();
    program(folder, "llama-cli", "exit 0");
    let output = doctor(folder, &["--json"], &[]);
    let report = report(&output);
    assert!(
        report["llama"]["device"].is_null() && report["faults"].as_array().unwrap().is_empty(),
        "{report}"
    );
}
