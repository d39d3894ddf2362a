//! What is not served is refused in one line, on every version of the stock libraries that is there.

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
fn a_cache_that_is_not_f16_makes_no_context() {
    for stock in Stock::all() {
        // With and without a context that only measures, as `-fit` makes one first.
        for (kind, measure) in [("q8_0", "0"), ("q8_0", "1"), ("q4_0", "1")] {
            let Some(refused) = client(&stock, "t4 hot=8", &[("TYPE", kind), ("MEASURE", measure)]) else {
                return;
            };
            let said = refused.expect_err("no context");
            let line = "tqkv: cache_k_l0 is not f16: leave out -ctk and -ctv, codecs are named by TQKV_KV";
            assert!(ours(&said) == [line] && said.contains("client: no context"), "{said}");
        }
    }
}

#[test]
fn a_model_with_a_recurrent_state_makes_no_context() {
    let model = recurrent::model(Path::new(env!("CARGO_TARGET_TMPDIR")));
    for stock in Stock::all() {
        for measure in ["0", "1"] {
            let said = client_of(&model, &stock, "t4", &[("MEASURE", measure)]).expect_err("no context");
            let lines = ours(&said);
            assert!(
                lines.len() == usize::from(measure == "1") + 1 && said.contains("client: no context"),
                "{said}"
            );
            for line in lines {
                let (name, why) = line.split_once(" is not served: ").expect("a refusal");
                assert!(
                    name.starts_with("tqkv: cache_r_l") && why.starts_with("models with a recurrent state"),
                    "{said}"
                );
            }
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
        assert!(ours(&measured).is_empty(), "{measured}");
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
        for name in [
            "cache_k_l0 is not f16",
            "cache_v_l3 is not f16",
            "cache_r_l0 is not served",
            "cache_s_l1 is not served",
        ] {
            assert!(ours(&said).iter().any(|line| line.contains(name)), "{said}");
        }
    }
}
