//! Takes bytes as a `config.json`. It is refused with a reason, or every cache can be made for its model, at
//! least in principle. Also reads what its layers keep and counts its weights, which works for many more files.
#![no_main]

mod seeds;

use libfuzzer_sys::fuzz_target;
use tqkv::cache::KvCache;
use tqkv_model::layers::LayerFields;
use tqkv_model::{Config, ModelKv, WeightBytes};

/// Heads of caches that are worth making, because the file sets the number.
const MOST: usize = 1 << 12;

fuzz_target!(|data: &[u8]| {
    match WeightBytes::of_config(data, 4.5) {
        Ok(weights) => {
            assert!(weights.layer.max(weights.beside) <= weights.all, "{weights:?}");
            let _ = ModelKv::from_json(data);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let of_layers = serde_json::from_slice::<LayerFields>(data).is_ok_and(|fields| fields.kinds().is_ok());
    let mut config = match Config::from_json(data) {
        Ok(config) => config,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            if !of_layers {
                seeds::refused(error);
            }
            return;
        }
    };
    // Any file may be a generation config; this one may be both kinds.
    let _ = config.add_generation_config(data);
    let shape = config.kv_shape();
    shape.check().expect("a shape that was accepted");
    assert!(config.kinds.is_empty() || config.kinds.len() == config.num_layers);
    assert!(config.cached_values() > 0);
    let _ = config.refused_by_gpu();
    let spec = config.cache_spec();
    if shape.num_layers * shape.num_kv_heads <= MOST {
        config.dense_cache().expect("an exact cache of a config that was accepted");
        // Models have more head dims than codecs.
        if let Err(error) = KvCache::new(spec) {
            assert!(!error.to_string().is_empty());
        }
    }
});
