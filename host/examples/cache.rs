//! A compressed cache compared with exact attention: a prompt, generated tokens, a rollback.
//!
//! `cargo run --release -p tqkv --example cache` prints the size of the cache and the distance of its results
//! from exact ones. Vectors are random here. Keys and queries of a model come from its projections, keys
//! after RoPE.

use tqkv::CodecId;
use tqkv::attention::AttentionCache;
use tqkv::cache::{CacheSpec, KvCache};
use tqkv::dense::DenseCache;
use tqkv::error::CacheError;

const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const DIM: usize = 128;
const PROMPT: usize = 1000;
const GENERATED: usize = 24;

/// Uniform numbers with the variance 1.
struct Random(u64);

impl Random {
    fn vectors(&mut self, count: usize) -> Vec<f32> {
        let next = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (((self.0 >> 40) as f32) / (1 << 23) as f32 - 1.0) * 3.0_f32.sqrt()
        };
        std::iter::repeat_with(next).take(count * DIM).collect()
    }
}

fn main() -> Result<(), CacheError> {
    // Keys with 4 bits, values with 3; sinks and the newest tokens stay f16.
    let spec = CacheSpec::new(1, HEADS, KV_HEADS, DIM).codecs(CodecId::S4, CodecId::S3);
    let mut cache = KvCache::new(spec)?;
    let mut exact = DenseCache::new(&CacheSpec::new(1, HEADS, KV_HEADS, DIM))?;
    let mut random = Random(42);
    let (layer, mut error, mut energy) = (0, 0.0, 0.0);

    // A prompt at once, then token by token. Queries are `[n, heads, dim]`, keys and values
    // `[n, KV heads, dim]`.
    for n in std::iter::once(PROMPT).chain([1; GENERATED]) {
        let (q, k, v) =
            (random.vectors(n * HEADS), random.vectors(n * KV_HEADS), random.vectors(n * KV_HEADS));
        let (mut out, mut expected) = (vec![0.0; q.len()], vec![0.0; q.len()]);
        cache.attend_prefill(layer, &q, &k, &v, &mut out)?;
        exact.attend_chunk(layer, &q, &k, &v, &mut expected)?;
        error += out.iter().zip(&expected).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        energy += expected.iter().map(|b| f64::from(*b).powi(2)).sum::<f64>();
    }
    let stats = cache.stats();
    println!("{} tokens: {} sinks, {} hot, {} encoded", stats.tokens, stats.sinks, stats.hot, stats.warm);
    println!(
        "{:.0} bytes per token; f32 takes {}",
        stats.bytes_per_token(),
        exact.allocated_bytes() / exact.len()
    );
    println!("relative squared error of the outputs {:.4}", error / energy);

    // Speculative decoding guessed wrong: the last tokens go, and the sequence continues from there.
    cache.truncate(PROMPT)?;
    assert_eq!(cache.len(), PROMPT);

    // Anything that cannot be stored is refused, and says why.
    let refused = cache.append(layer, &[f32::NAN; KV_HEADS * DIM], &[0.0; KV_HEADS * DIM]).unwrap_err();
    println!("refused: {refused}");
    Ok(())
}
