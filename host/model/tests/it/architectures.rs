//! Compares a tiny checkpoint of every architecture with the logits of Hugging Face Transformers
//! (`tests/reference/architectures.py`).

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;
use tqkv::attention::AttentionCache;
use tqkv::cache::{Centring, KvCache};
use tqkv_core::CodecId;
use tqkv_model::eval::{EvalSpec, Setting, evaluate};
use tqkv_model::{Access, Architecture, Model, WeightBytes};

pub(crate) const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");

struct Golden {
    name: String,
    model: Model,
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<_> = std::fs::read_dir(GOLDEN).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.is_dir());
    folders.sort();
    folders
}

fn golden() -> Vec<Golden> {
    let read = |folder: PathBuf| {
        let bytes = |file: &str| std::fs::read(folder.join(file)).unwrap();
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        // The vocabulary has no tokenizer, which a folder would need, so the model is loaded from memory.
        let model = model(&name, &bytes("config.json"), &bytes("model.safetensors"));
        let json: Value = serde_json::from_slice(&bytes("logits.json")).unwrap();
        let tokens = json["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
        let rows = json["logits"].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
        let logits = rows.map(|logit| logit.as_f64().unwrap() as f32).collect();
        Golden { name, model, tokens, logits }
    };
    folders().into_iter().map(read).collect()
}

fn model(name: &str, config: &[u8], tensors: &[u8]) -> Model {
    Model::from_bytes(name, config, tensors, Some(&tokenizer(config)))
        .unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// A tokenizer with one word per token.
pub(crate) fn tokenizer(config: &[u8]) -> Vec<u8> {
    let config: Value = serde_json::from_slice(config).unwrap();
    let size = config["vocab_size"].as_u64().unwrap();
    let vocab: serde_json::Map<_, _> = (0..size).map(|token| (format!("w{token}"), token.into())).collect();
    serde_json::json!({ "version": "1.0", "added_tokens": [], "pre_tokenizer": { "type": "WhitespaceSplit" },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "w0" } })
    .to_string()
    .into_bytes()
}

impl Golden {
    fn run(&self, cache: &mut dyn AttentionCache, steps: &[usize]) -> Vec<f32> {
        let mut logits = Vec::new();
        let mut start = 0;
        for step in steps.iter().cycle() {
            let end = self.tokens.len().min(start + step);
            logits.extend(self.model.forward(&self.tokens[start..end], start, cache).unwrap());
            start = end;
            if start == self.tokens.len() {
                return logits;
            }
        }
        unreachable!("steps are above 0")
    }

    /// The largest difference to the expected logits.
    fn error(&self, logits: &[f32]) -> f32 {
        assert_eq!(logits.len(), self.logits.len(), "{}", self.name);
        logits.iter().zip(&self.logits).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max)
    }
}

#[test]
fn every_architecture_has_the_logits_of_transformers() {
    let golden = golden();
    let there: BTreeSet<_> = golden.iter().map(|golden| golden.model.config().architecture.name()).collect();
    let all = Architecture::ALL.iter().map(|architecture| architecture.name()).collect();
    assert_eq!(there, all, "a folder for each");
    for golden in golden {
        // The whole prompt at once, token by token, and in chunks of different lengths.
        for steps in [&[24][..], &[1], &[5, 1, 10]] {
            let error = golden.error(&golden.run(&mut golden.model.config().dense_cache().unwrap(), steps));
            println!("{} in steps of {steps:?}: {error:.2e}", golden.name);
            assert!(error < 1e-4, "{} in steps of {steps:?}: {error}", golden.name);
        }
    }
}

#[test]
fn streamed_layers_are_those_in_memory() {
    for golden in golden() {
        let dir = tempfile::tempdir().unwrap();
        let from = PathBuf::from(GOLDEN).join(&golden.name);
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(from.join(file), dir.path().join(file)).unwrap();
        }
        let config = std::fs::read(from.join("config.json")).unwrap();
        std::fs::write(dir.path().join("tokenizer.json"), tokenizer(&config)).unwrap();
        let streamed = Model::open(dir.path(), Access::Streamed).unwrap();
        let mut caches = [(), ()].map(|()| golden.model.config().dense_cache().unwrap());
        let [want, got] = &mut caches;
        let want = golden.model.forward(&golden.tokens, 0, want).unwrap();
        assert_eq!(streamed.forward(&golden.tokens, 0, got).unwrap(), want, "{}", golden.name);
    }
}

/// f16 keeps 11 bits of each number in keys and values, so logits are off by some thousandths of their size.
#[test]
fn a_compressed_cache_computes_the_same_attention() {
    for golden in golden() {
        let spec = golden.model.config().cache_spec().codecs(CodecId::F16, CodecId::F16);
        let mut cache = KvCache::new(spec.hot(4).centring(Centring::Off)).unwrap();
        for steps in [&[24][..], &[1], &[5, 1, 10]] {
            cache.reset();
            let error = golden.error(&golden.run(&mut cache, steps));
            println!("{} in steps of {steps:?}: {error:.2e}", golden.name);
            let largest = golden.logits.iter().fold(0.0f32, |most, logit| most.max(logit.abs()));
            assert!(error < 2e-3 * largest, "{} in steps of {steps:?}: {error} of {largest}", golden.name);
        }
    }
}

#[test]
fn sequences_share_products_and_evaluations_run() {
    for golden in golden() {
        let mut caches = [(), ()].map(|()| golden.model.config().dense_cache().unwrap());
        let (prompt, rest) = golden.tokens.split_at(20);
        let vocab = golden.model.config().vocab_size;
        // One sequence is ahead of the other.
        golden.model.forward(prompt, 0, &mut caches[0]).unwrap();
        golden.model.forward(&prompt[..9], 0, &mut caches[1]).unwrap();
        let [first, second] = &mut caches;
        let mut both: [&mut dyn AttentionCache; 2] = [first, second];
        let logits = golden.model.step_many(&[rest[0], prompt[9]], &[20, 9], &mut both).unwrap();
        for (logits, position) in logits.chunks_exact(vocab).zip([20, 9]) {
            let want = &golden.logits[position * vocab..][..vocab];
            let close = logits.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-4);
            assert!(close, "{} at {position}", golden.name);
        }

        let text: Vec<_> = golden.tokens.iter().map(|token| format!("w{token}")).collect();
        let spec = EvalSpec { layers: true, attention: true, ..EvalSpec::new(24, Some(1)) };
        let config = golden.model.config();
        let setting = |codec| Setting {
            name: String::new(),
            new_cache: Box::new(move || {
                let spec = config.cache_spec().codecs(codec, codec).hot(4).sinks(0);
                Ok(Box::new(KvCache::new(spec)?) as Box<dyn AttentionCache>)
            }),
        };
        let exact =
            Setting { name: String::new(), new_cache: Box::new(|| Ok(Box::new(config.dense_cache()?))) };
        let settings = [setting(CodecId::F16), setting(CodecId::I8)];
        let report =
            evaluate(&golden.model, text.join(" ").as_bytes(), &spec, &exact, &settings, &mut |_| {})
                .unwrap();
        let errors: Vec<_> = report.results.iter().map(|result| result.attention_error.unwrap()).collect();
        println!("{}: attention error of f16 and i8 {errors:?}", golden.name);
        // These are squared errors: of numbers with 11 bits, and of blocks with 8 bits.
        assert!(errors[0] < 1e-6 && errors[1] < 1e-4, "{}: {errors:?}", golden.name);
    }
}

/// The count from the config equals the number of weights in the files.
#[test]
fn a_config_has_as_many_weights_as_its_checkpoint() {
    for folder in folders() {
        let config = std::fs::read(folder.join("config.json")).unwrap();
        let stored = WeightBytes::of(&folder).unwrap();
        let counted = [16.0, 32.0].map(|bits| WeightBytes::of_config(&config, bits).unwrap());
        assert!(counted.contains(&stored), "{folder:?}: {stored:?}, of its config {counted:?}");
    }
}
