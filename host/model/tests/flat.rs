//! The integer model against the float model, on the shipped weights.

use tqkv_core::CodecId;
use tqkv_model::eval::{EvalSpec, Setting, evaluate};
use tqkv_model::flat::{CACHES, FlatRunner, WeightBits};
use tqkv_model::{Model, SpecialTokens, shipped};

const I8: (CodecId, CodecId) = (CodecId::I8, CodecId::I8);

fn tokens(model: &Model, text: &[u8]) -> Vec<u32> {
    model.tokenizer().encode(text, SpecialTokens::Omit).unwrap()
}

/// Perplexity of the float model with an exact cache.
fn exact(model: &Model, context: usize, windows: usize) -> f64 {
    let spec =
        EvalSpec { context, windows: Some(windows), step: None, layers: false, attention: false };
    let dense = Setting {
        name: "exact".to_owned(),
        new_cache: Box::new(|| Ok(Box::new(model.config().dense_cache()?))),
    };
    let report = evaluate(model, shipped::HELDOUT_TEXT, &spec, &dense, &[], &mut |_| {}).unwrap();
    report.reference.perplexity
}

#[test]
fn eight_bit_weights_and_cache_lose_less_than_a_hundredth() {
    let model = Model::shipped().unwrap();
    let (context, windows) = (512, 4);
    let want = exact(&model, context, windows);
    let file = model.to_flat(WeightBits::Eight).unwrap();
    let runner = FlatRunner::new(&file, I8, context).unwrap();
    let tokens = tokens(&model, shipped::HELDOUT_TEXT);
    let got = runner.perplexity(&tokens, context, windows).unwrap();
    assert_eq!(got.tokens, windows * (context - 1));
    let ratio = got.perplexity / want;
    assert!((0.99..1.01).contains(&ratio), "{} against {want}", got.perplexity);
}

/// `TQKV_FLAT_WINDOWS=48 cargo test --release --workspace --test flat -- --ignored --nocapture` prints the table.
#[test]
#[ignore = "prints a table; minutes"]
fn table() {
    let model = Model::shipped().unwrap();
    let windows = std::env::var("TQKV_FLAT_WINDOWS").map_or(4, |n| n.parse().unwrap());
    let context = 1024;
    let want = exact(&model, context, windows);
    println!("float, exact cache: {want:.4}");
    let tokens = tokens(&model, shipped::HELDOUT_TEXT);
    for bits in [WeightBits::Eight, WeightBits::Four] {
        let file = model.to_flat(bits).unwrap();
        for caches in CACHES {
            let runner = FlatRunner::new(&file, caches, context).unwrap();
            let got = runner.perplexity(&tokens, context, windows).unwrap().perplexity;
            let change = 100.0 * (got / want - 1.0);
            println!("{} bits, {},{}: {got:.4} ({change:+.2} %)", bits.count(), caches.0.name(), caches.1.name());
        }
    }
}

#[test]
fn it_writes_what_the_float_model_writes_for_a_while() {
    let model = Model::shipped().unwrap();
    let prompt = b"The borrow checker";
    let file = model.to_flat(WeightBits::Eight).unwrap();
    let runner = FlatRunner::new(&file, I8, 300).unwrap();
    let written = runner.greedy(&tokens(&model, prompt), 200).unwrap();
    let text: Vec<u8> = written.iter().map(|token| *token as u8).collect();
    assert_eq!(String::from_utf8_lossy(&text), "");
}
