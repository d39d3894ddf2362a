//! States that hold codes (`state=codes`): a text goes on to the bit, and what is no such state is refused.

use crate::{programs, tools};
use std::path::{Path, PathBuf};

/// Tokens that are generated after a state.
const STEPS: &str = "24";

struct Client {
    program: PathBuf,
    libraries: String,
    model: String,
}

impl Client {
    fn new() -> Option<Self> {
        let (program, libraries) = programs::program("client")?;
        Some(Self { program, libraries, model: tools::path("TQKV_LLAMA_MODEL")?.display().to_string() })
    }

    /// Runs `save` or `load`. Returns what it prints, and the logits of each choice of a token.
    fn run(&self, command: &str, kv: &str, kind: &str) -> (Result<String, String>, Vec<u8>) {
        let (text, folder) = (programs::TEXT.repeat(14), Path::new(env!("CARGO_TARGET_TMPDIR")));
        let [state, choices] = ["state-of-codes", "choices-of-codes"].map(|name| folder.join(name));
        let [state, choices] = [state, choices].map(|path| path.display().to_string());
        let library = tools::library().display().to_string();
        let variables =
            [("GGML_BACKEND_PATH", library.as_str()), ("TQKV_KV", kv), ("TYPE", kind), ("CHOICES", &choices)];
        let arguments = [&self.libraries, &self.model, &text, command, STEPS, &state];
        let said = tools::run(&self.program, &arguments, &variables);
        (said, std::fs::read(choices).unwrap_or_default())
    }
}

#[test]
fn a_text_goes_on_to_the_bit_in_another_process() {
    let Some(client) = Client::new() else { return };
    for (kv, kind) in [
        ("state=codes", "f16"),
        ("s4 state=codes", "q8_0"),
        ("t4,t2 hot=16 tier=300:t2 state=codes", "f16"),
        ("t4 hot=4 sinks=2 state=codes", "q4_0"),
        ("small state=codes", "f16"),
    ] {
        let (said, saved) = client.run("save", kv, kind);
        let said = said.unwrap();
        let (back, loaded) = client.run("load", kv, kind);
        let back = back.unwrap();
        // The state is saved after the first tokens.
        let after = &saved[saved.len() - loaded.len()..];
        assert!(!loaded.is_empty() && after == loaded, "{kv} {kind}: {said}{back}");
    }
}

#[test]
fn a_state_of_other_codes_is_refused_and_one_of_rows_is_read() {
    let Some(client) = Client::new() else { return };
    let (said, saved) = client.run("save", "s4 state=codes", "f16");
    said.unwrap();
    // The word only says what is written.
    let (said, loaded) = client.run("load", "s4", "f16");
    assert!(saved.ends_with(&loaded) && !loaded.is_empty(), "{said:?}");
    let (said, _) = client.run("load", "t4 state=codes", "f16");
    let said = said.unwrap_err();
    assert!(said.contains("rows of a saved state are refused") && said.contains("other codecs"), "{said}");
    assert!(said.contains("client: decode"), "{said}");
    let (said, _) = client.run("save", "s4", "f16");
    said.unwrap();
    let (said, loaded) = client.run("load", "t4 state=codes", "f16");
    assert!(!loaded.is_empty(), "{said:?}");
}
