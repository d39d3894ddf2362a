//! What is not served is refused in one line, on every version of the stock libraries that is there.

use crate::programs::divergence;
use crate::recurrent;
use crate::tools::{self, Stock};
use std::path::Path;

/// Runs the client with the model of the tests; see [`client_of`].
fn client(stock: &Stock, kv: &str, variables: &[(&str, &str)]) -> Option<Result<String, String>> {
    Some(client_of(&tools::path("TQKV_LLAMA_MODEL")?, stock, kv, variables))
}

/// Runs the client with the back end, and with `variables`.
fn client_of(model: &Path, stock: &Stock, kv: &str, variables: &[(&str, &str)]) -> Result<String, String> {
    let (model, library) = (model.display().to_string(), tools::library().display().to_string());
    let all = [&[("GGML_BACKEND_PATH", library.as_str()), ("TQKV_KV", kv)], variables].concat();
    let libraries = stock.libraries();
    let arguments = [libraries.as_str(), &model, "Once upon a time", "text", "2"];
    stock.run(&stock.program("client"), &arguments, &all)
}

/// The lines that the library printed.
fn ours(said: &str) -> Vec<&str> {
    said.lines().filter(|line| line.starts_with("tqkv:")).collect()
}

#[test]
fn a_model_with_a_recurrent_state_runs_as_without_the_library() {
    let model = recurrent::model(Path::new(env!("CARGO_TARGET_TMPDIR")));
    for stock in Stock::all() {
        let run = |name: &str, kv: &str, variables: &[(&str, &str)]| {
            let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
            let (model, path) = (model.display().to_string(), file.display().to_string());
            let (library, libraries) = (tools::library().display().to_string(), stock.libraries());
            let all =
                [&[("GGML_BACKEND_PATH", library.as_str()), ("TQKV_KV", kv), ("BATCH", "32")], variables];
            let text =
                "It is a text of some length, and each byte of it is a token of this model. ".repeat(5);
            let arguments = [libraries.as_str(), &model, &text, "logits", &path];
            let said = stock.run(&stock.program("client"), &arguments, &all.concat()).expect("it runs");
            let bytes = std::fs::read(&file).expect("logits");
            let logits = bytes.as_chunks::<4>().0.iter().map(|x| f64::from(f32::from_ne_bytes(*x)));
            (logits.collect::<Vec<f64>>(), said)
        };
        let (stock_logits, _) = run("recurrent-stock", "f16", &[("LAYERS", "0")]);
        for (kv, measure, most) in [("f16", "0", 1e-4), ("f16", "1", 1e-4), ("s4 hot=8", "0", 0.02)] {
            let (logits, said) = run("recurrent-ours", kv, &[("MEASURE", measure)]);
            let kl = divergence(16, &stock_logits, &logits);
            assert!(kl < most, "{kv}: {kl}");
            let codec = kv.split(' ').next().expect("a codec");
            let line = format!("tqkv: KV cache of 1 layer in {codec},{codec}: ");
            assert!(ours(&said).len() == 1 && ours(&said)[0].starts_with(&line), "{said}");
        }
    }
}

#[test]
fn what_leaves_the_cache_without_codes_is_said_once() {
    for stock in Stock::all() {
        // The host refuses the library, and the model runs on the CPU.
        let Some(unknown) = client(&stock, "q9 hot=8", &[]) else { return };
        let unknown = unknown.expect("it runs");
        assert!(
            ours(&unknown)[0].starts_with("tqkv: TQKV_KV=q9 hot=8: kv=q9 is not valid: expected"),
            "{unknown}"
        );
        let columns = client(&stock, "t4", &[("FA", "0")]).expect("a model").expect("it runs");
        let line =
            "tqkv: without flash attention nothing is encoded and steps are slow: use -fa on (or auto)";
        assert_eq!(ours(&columns), [line], "{columns}");
        // The host does not ask the library about a cache that stays with the CPU.
        let with_cpu = client(&stock, "t4", &[("KQV", "0")]).expect("a model").expect("it runs");
        assert!(ours(&with_cpu).is_empty(), "{with_cpu}");
        let measured = client(&stock, "t4", &[("MEASURE", "1")]).expect("a model").expect("it runs");
        let held = "tqkv: KV cache of 30 layers in t4,t4: 5.98 KiB per token, 22.50 KiB in f16";
        assert_eq!(ours(&measured), [held], "{measured}");
    }
}

#[test]
fn operations_and_tensors_that_are_not_served_are_refused() {
    let library = tools::library().display().to_string();
    for stock in Stock::all() {
        let libraries = stock.libraries();
        let variables = [("GGML_BACKEND_PATH", library.as_str()), ("TQKV_KV", "f16")];
        // No random graphs, only the refusals.
        let done = stock.run(&stock.program("graph"), &[&libraries, "0.004", "0", "7", "0.001"], &variables);
        let said = done.unwrap_or_else(|said| panic!("{libraries}: {said}"));
        for name in ["cache_k_l0", "cache_v_l3"] {
            let line =
                format!("tqkv: {name} is of a type that is not served: expected -ctk and -ctv of f16, bf16");
            assert!(ours(&said).iter().any(|said| said.starts_with(&line)), "{said}");
        }
    }
}
