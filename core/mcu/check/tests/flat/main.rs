//! Compares the integer model with the float model, on the shipped weights.
#![allow(missing_docs, reason = "a test crate")]

mod runner;

use runner::FlatRunner;
use tqkv_core::CodecId;
use tqkv_lm::{Model as FlatModel, WeightBits};
use tqkv_model::eval::{EvalSpec, Setting, evaluate};
use tqkv_model::flat::CACHES;
use tqkv_model::{Model, SpecialTokens, shipped};

const I8: (CodecId, CodecId) = (CodecId::I8, CodecId::I8);

fn tokens(model: &Model, text: &[u8]) -> Vec<u32> {
    model.tokenizer().encode(text, SpecialTokens::Omit).unwrap()
}

/// Perplexity of the float model with an exact cache.
fn exact(model: &Model, context: usize, windows: usize) -> f64 {
    let spec = EvalSpec::new(context, Some(windows));
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

/// Prints the table:
/// `TQKV_FLAT_WINDOWS=48 cargo test --release --test flat table -- --ignored --nocapture`
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
            println!(
                "{} bits, {},{}: {got:.4} ({change:+.2} %)",
                bits.count(),
                caches.0.name(),
                caches.1.name()
            );
        }
    }
}

#[test]
fn it_goes_on_as_written_down() {
    let model = Model::shipped().unwrap();
    let file = model.to_flat(WeightBits::Eight).unwrap();
    let runner = FlatRunner::new(&file, I8, 100).unwrap();
    let written = runner.greedy(&tokens(&model, b"The borrow checker "), 60).unwrap();
    let text: Vec<u8> = written.iter().map(|token| *token as u8).collect();
    let golden = "is a command line and the borrow checker is a command line a";
    assert_eq!(String::from_utf8_lossy(&text), golden);
}

#[test]
fn four_bits_lose_more() {
    let model = Model::shipped().unwrap();
    let (eight, four) = (model.to_flat(WeightBits::Eight).unwrap(), model.to_flat(WeightBits::Four).unwrap());
    let tokens = tokens(&model, shipped::HELDOUT_TEXT);
    let perplexity =
        |file: &[u8]| FlatRunner::new(file, I8, 256).unwrap().perplexity(&tokens, 256, 4).unwrap().perplexity;
    let ratio = perplexity(&four) / perplexity(&eight);
    assert!((1.002..1.03).contains(&ratio), "{ratio}");
}

/// Damage is refused by name. Damage that only the checksum can find is refused by the checksum.
#[test]
fn mutants_are_refused() {
    let file = Model::shipped().unwrap().to_flat(WeightBits::Four).unwrap();
    let refused = |file: &[u8]| FlatModel::load(file).err().map(|error| error.to_string());
    assert_eq!(refused(&file), None);
    for len in [0, 1, 39, 40, file.len() / 2, file.len() - 1] {
        assert!(refused(&file[..len]).is_some(), "{len} bytes");
    }
    let mut longer = file.clone();
    longer.push(0);
    assert!(refused(&longer).unwrap().contains("bytes"));
    for at in (0..64).chain((64..file.len()).step_by(50_021)).chain([file.len() - 1]) {
        let mut mutant = file.clone();
        mutant[at] ^= 1 << (at % 8);
        assert!(refused(&mutant).is_some(), "byte {at}");
    }
    // Fields are also checked if the checksum is correct.
    let resealed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut mutant = file.clone();
        change(&mut mutant);
        let end = mutant.len() - 4;
        let sum = tqkv_lm::checksum(&mutant[..end]);
        mutant[end..].copy_from_slice(&sum.to_le_bytes());
        refused(&mutant).unwrap_or_default()
    };
    assert!(resealed(&|file| file[4] = 2).contains("version 2"));
    assert!(resealed(&|file| file[6] = 3).contains("weight bits"));
    assert!(resealed(&|file| file[7] = 2).contains("flags"));
    assert!(resealed(&|file| file[8] = 1).contains("hidden"));
    assert!(resealed(&|file| file[16] = 3).contains("heads"));
    assert!(resealed(&|file| file[20] = 7).contains("bytes"));
    assert!(resealed(&|file| file[36] = 1).contains("reserved"));
    assert!(resealed(&|file| file[40 + 256 + 1] = 1).contains("exponent"));
}
