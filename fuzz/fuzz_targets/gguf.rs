//! Takes arbitrary bytes as a GGUF file. It is refused with a reason, or it is a model that reads a text.
#![no_main]

mod seeds;

use libfuzzer_sys::fuzz_target;
use tqkv_model::{Model, SpecialTokens};

/// Positions for which tables are worth making, because the file sets the number.
const MOST: usize = 1 << 14;

fuzz_target!(|data: &[u8]| {
    let model = match Model::from_gguf("fuzzed", &[("fuzzed.gguf", data)]) {
        Ok(model) => model,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return seeds::refused(error);
        }
    };
    let config = model.config();
    if config.context.max(config.num_layers) > MOST {
        return;
    }
    let tokens = match model.tokenizer().encode(b"the cache", SpecialTokens::Add) {
        Ok(tokens) => tokens,
        Err(error) => return seeds::refused(error),
    };
    let Ok(mut cache) = config.dense_cache() else { return seeds::refused("no cache") };
    match model.forward(&tokens, 0, &mut cache) {
        Ok(logits) => assert_eq!(logits.len(), tokens.len() * config.vocab_size),
        Err(error) => seeds::refused(error),
    }
});
