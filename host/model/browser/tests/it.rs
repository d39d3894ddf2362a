//! The lines of the program, on this machine.

use serde_json::Value;
use std::process::{Command, Output};

fn program(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tqkv-browser")).args(words).output().unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_token_is_a_line_with_what_the_cache_holds() {
    let output = program(&["The borrow checker", "24", "f16", "t2 hot=8 sinks=0"]);
    let lines = lines(&output);
    assert!(
        output.status.success() && lines[0]["event"] == "begin" && lines.last().unwrap()["event"] == "done"
    );
    let texts =
        |index: u64| lines.iter().filter(move |line| line["event"] == "text" && line["index"] == index);
    assert_eq!((texts(0).count(), texts(1).count()), (24, 24));
    let last = texts(1).next_back().unwrap();
    // 4 layers with keys and values of one head of 128.
    assert_eq!(last["f16_bytes"].as_u64(), last["tokens"].as_u64().map(|tokens| tokens * 4 * 2 * 2 * 128));
    let text: String = texts(0).map(|line| line["piece"].as_str().unwrap()).collect();
    assert_eq!(text.len(), 24, "a byte per token: {text}");
    let quality = |index: u64| {
        lines
            .iter()
            .find(|line| line["event"] == "quality" && line["index"] == index)
            .expect("each has figures")
    };
    assert_eq!(quality(0)["attention_error"], 0.0);
    let error = quality(1)["attention_error"].as_f64().unwrap();
    assert!(error > 0.0 && error < 0.5, "{error}");
}

#[test]
fn a_wrong_command_line_is_one_line() {
    for (words, expected) in [
        (&["prompt"][..], "expected PROMPT TOKENS POLICY.."),
        (&["prompt", "many", "f16"], "many tokens are not valid: expected a number"),
        (&["prompt", "8"], "no policy is given"),
        (&["prompt", "8", "q9"], "q9"),
        (&["", "8", "f16"], "prompt"),
        (&["prompt", "2000", "f16"], "1024"),
    ] {
        let output = program(words);
        let lines = lines(&output);
        let last = lines.last().unwrap();
        assert!(!output.status.success() && last["event"] == "error", "{words:?}");
        assert!(last["message"].as_str().unwrap().contains(expected), "{words:?}: {last}");
    }
}
