//! `tqkv chat`: a conversation from a pipe.

use serde_json::Value;

use crate::commands_inputs::lay_chat_model;
use crate::printed::number;
use crate::support::{error, json, piped};

/// A question runs its own tokens alone. That its answer is the one of the text so far is a test of `tqkv-model`.
#[test]
fn a_conversation_keeps_its_cache() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    lay_chat_model(&at.join("model"));
    let chat = ["chat", "model", "-n", "12", "--kv", "s4 hot=8"];
    let questions = b"What is a trait?\n\n  And an enum?\n";
    let output = piped(at, &[&chat[..], &["--system", "Be brief", "--json"]].concat(), questions);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.is_empty(), "{stderr}");
    let turns: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [first, second] = turns.as_slice() else { panic!("{turns:?}") };
    let text = |turn: &Value, name: &str| turn[name].as_str().unwrap().to_owned();
    assert_eq!(
        (text(first, "question"), text(second, "question")),
        ("What is a trait?".into(), "And an enum?".into())
    );
    let prompt = format!(
        "system: Be brief\nuser: What is a trait?\nassistant: {}\nuser: And an enum?\nassistant:",
        text(first, "answer")
    );
    let generated = ["generate", "-m", "model", "-p", &prompt, "-n", "12", "--kv", "f16"];
    let made = json(at, &generated);
    // The template has one space more before the answer than the model wrote, so all of the answer runs again.
    let whole = number(&made["results"][0], "prompt_tokens");
    assert!(
        number(second, "prompt_tokens") < whole && number(second, "cache_tokens") >= whole,
        "{second} {whole}"
    );
    assert!(number(second, "cache_bytes") < number(second, "f16_bytes"), "{second}");

    // A person reads the answers, and the memory of the conversation after them.
    let output = piped(at, &chat, questions);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(" of cache, ") && said.trim_end().ends_with("tokens/s"), "{said}");
    let two = ["chat", "model", "--kv", "s4", "--kv", "f16"];
    assert!(error(at, &two, 2).contains("a conversation has one cache: expected one --kv"));
    assert!(error(at, &["chat", "model", "-m", "model"], 2).contains("cannot be used with"));
    assert!(error(at, &["chat"], 2).contains("the model has no chat template"));
}
