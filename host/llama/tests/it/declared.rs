//! Caches that the host declares as one of its own types are held in codes of at most those bytes.

use crate::programs::{self, divergence};
use crate::tools;

/// Runs of the client with the model of the tests.
struct Client {
    program: std::path::PathBuf,
    libraries: String,
    model: String,
    library: String,
}

impl Client {
    fn new() -> Option<Self> {
        let (program, libraries) = programs::program("client")?;
        let model = tools::path("TQKV_LLAMA_MODEL")?.display().to_string();
        Some(Self { program, libraries, model, library: tools::library().display().to_string() })
    }

    /// What the client prints, with the library.
    fn run(&self, command: &[&str], variables: &[(&str, &str)]) -> Result<String, String> {
        let text = programs::TEXT.repeat(8);
        let arguments = [&[self.libraries.as_str(), &self.model, &text], command].concat();
        let all = [&[("GGML_BACKEND_PATH", self.library.as_str())], variables].concat();
        tools::run(&self.program, &arguments, &all)
    }

    /// Mean divergence of a run from another.
    fn divergence(&self, command: &[&str], first: &[(&str, &str)], second: &[(&str, &str)]) -> f64 {
        let logits = |name: &str, variables: &[(&str, &str)]| {
            let all = [variables, &[("BATCH", "16"), ("FROM", "280")]].concat();
            let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
            let path = file.display().to_string();
            let said = self.run(&[command, &[&path]].concat(), &all).expect("it runs");
            let words = said.lines().next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
            let bytes = std::fs::read(&file).expect("logits");
            let logits = bytes.as_chunks::<4>().0.iter().map(|x| f64::from(f32::from_ne_bytes(*x)));
            (words.expect("a number of words"), logits.collect::<Vec<f64>>())
        };
        let name = |side: &str| format!("declared-{}-{side}", command.join("-"));
        let ((words, first), (_, second)) = (logits(&name("first"), first), logits(&name("second"), second));
        divergence(words, &first, &second)
    }
}

#[test]
fn each_type_of_the_host_is_held_in_codes_of_at_most_its_bytes() {
    let Some(client) = Client::new() else { return };
    // Bytes of a row of 3 x 64 values, keys and values, 30 layers; KiB per token.
    for (declared, codecs, bytes) in [
        ("bf16", "s4,s4", 2 * 384),
        ("q8_0", "i8,i8", 2 * 204),
        ("q5_1", "s5,s5", 2 * 144),
        ("q5_0", "s5,s5", 2 * 132),
        ("q4_1", "t4,t4", 2 * 120),
        ("q4_0", "t4,t4", 2 * 108),
        ("iq4_nl", "t4,t4", 2 * 108),
        ("q8_0,q4_0", "i8,t4", 204 + 108),
        ("f16,q8_0", "s4,i8", 384 + 204),
    ] {
        let said = client.run(&["text", "4"], &[("TYPE", declared)]).expect("it runs");
        let start = format!("tqkv: KV cache of 30 layers in {codecs}: ");
        let line = said.lines().find_map(|line| line.strip_prefix(&start));
        let kib = line.and_then(|line| line.split(' ').next()?.parse::<f64>().ok());
        let kib = kib.unwrap_or_else(|| panic!("{declared}: {said}"));
        assert!(kib <= 30.0 * f64::from(bytes) / 1024.0, "{declared}: {said}");
    }
    // The policy of the user comes before the type.
    let said = client.run(&["text", "4"], &[("TYPE", "q8_0"), ("TQKV_KV", "t4,t2")]).expect("it runs");
    assert!(said.contains("30 layers in t4,t2: "), "{said}");
}

#[test]
fn a_full_context_takes_at_most_the_bytes_of_its_type() {
    let Some(client) = Client::new() else { return };
    for declared in ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "q8_0,q4_0"] {
        for tokens in ["1024", "1280"] {
            let full = (tokens.parse::<usize>().expect("a number") - 16).to_string();
            let variables = [("TYPE", declared), ("CTX", tokens), ("TQKV_LOG", "1")];
            let said = client.run(&["speed", &full, "16"], &variables).expect("it runs");
            let line = said.lines().find_map(|line| line.strip_prefix("tqkv: held ")).expect("a line");
            let mib: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            assert!(mib[0] <= mib[1] && mib[0] > 0.9 * mib[1], "{declared}, {tokens} tokens: {said}");
        }
    }
}

#[test]
fn models_have_policies_of_their_own() {
    let Some(client) = Client::new() else { return };
    for (policy, codecs) in [("t4; layers=30:i8", "i8,i8"), ("t4;layers=29: i8", "t4,t4")] {
        let said = client.run(&["text", "4"], &[("TQKV_KV", policy)]).expect("it runs");
        assert!(said.contains(&format!("30 layers in {codecs}: ")), "{policy}: {said}");
    }
    // The type chooses for models without a policy.
    let variables = [("TYPE", "q8_0"), ("TQKV_KV", "layers=2: s4")];
    let said = client.run(&["text", "4"], &variables).expect("it runs");
    assert!(said.contains("30 layers in i8,i8: "), "{said}");
}

#[test]
fn codes_of_a_declared_type_lose_less_than_the_type() {
    let Some(client) = Client::new() else { return };
    let (stock, f16) = (("LAYERS", "0"), ("TYPE", "f16"));
    for (declared, share) in [("q8_0", 1.5), ("q4_0", 0.4), ("q4_1", 0.4)] {
        let (theirs, ours) = ([stock, ("TYPE", declared)], [("TYPE", declared)]);
        let theirs = client.divergence(&["logits"], &[stock, f16], &theirs);
        let ours = client.divergence(&["logits"], &[stock, f16], &ours);
        // Weights of 4 bits alone give .003 to .005.
        assert!(ours < share * theirs + 0.005, "{declared}: {ours}, the host {theirs}");
    }
}

#[test]
fn shifts_and_restored_states_of_declared_types_are_no_worse_than_the_hosts() {
    let Some(client) = Client::new() else { return };
    let (stock, f16) = (("LAYERS", "0"), ("TYPE", "f16"));
    for command in [["shifted", "4"], ["restored", "3"]] {
        for (declared, share) in [("q8_0", 1.5), ("q4_0", 0.5)] {
            let (theirs, ours) = ([stock, ("TYPE", declared)], [("TYPE", declared)]);
            let theirs = client.divergence(&command, &[stock, f16], &theirs);
            let ours = client.divergence(&command, &[stock, f16], &ours);
            assert!(ours < share * theirs + 0.005, "{command:?} {declared}: {ours}, the host {theirs}");
        }
    }
}
