//! The command in a shell: completions, manual pages, narrow terminals, prompts from files and pipes.

use std::fs;

use tqkv_model::shipped;

use crate::support::{assert_help_fits, error, json, piped, tqkv};

#[test]
fn completions_and_manual_pages_name_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let text = |args: &[&str]| {
        let output = tqkv(at, args);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for script in ["bash", "zsh", "fish", "elvish", "powershell"].map(|shell| text(&["completions", shell])) {
        assert!(["generate", "inspect", "scale-mode"].iter().all(|word| script.contains(word)), "{script}");
    }
    assert!(error(at, &["completions", "cmd"], 2).contains("bash"));
    let page = text(&["man"]);
    assert!(page.starts_with(".ie") && page.contains(".TH tqkv") && page.contains("generate"), "{page}");
    assert!(text(&["man", "encode"]).contains("centre"));
    assert!(error(at, &["man", "decod"], 2).contains("expected demo, generate"));
    assert_eq!(json(at, &["man", "encode"])["name"], "tqkv-encode");
}

#[test]
fn help_fits_a_terminal_without_broken_paragraphs() {
    assert_help_fits(&[
        "demo", "generate", "eval", "encode", "codecs", "plan", "tune", "session", "llama", "bench",
    ]);
}

#[test]
fn a_prompt_may_come_from_a_file_or_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let prompt = std::str::from_utf8(&shipped::HELDOUT_TEXT[..120]).unwrap();
    fs::write(at.join("prompt.txt"), prompt).unwrap();
    let tokens = ["--tokens", "8", "--json"];
    let given = tqkv(at, &[&["generate", "--prompt", prompt][..], &tokens].concat());
    let text = |output: std::process::Output| {
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (report["prompt"].clone(), report["results"][0]["text"].clone())
    };
    let given = text(given);
    assert_eq!(given.0, prompt);
    let file = ["generate", "--prompt-file"];
    assert_eq!(text(tqkv(at, &[&file[..], &["prompt.txt"], &tokens].concat())), given);
    assert_eq!(text(piped(at, &[&file[..], &["-"], &tokens].concat(), prompt.as_bytes())), given);
    let twice = [&file[..], &["prompt.txt", "--prompt", "x"]].concat();
    assert!(error(at, &twice, 2).contains("cannot be used with"));
    fs::write(at.join("latin1.txt"), b"caf\xe9").unwrap();
    assert!(error(at, &[&file[..], &["latin1.txt"]].concat(), 2).contains("latin1.txt: incomplete utf-8"));
    assert!(error(at, &[&file[..], &["none.txt"]].concat(), 2).contains("none.txt"));
}
