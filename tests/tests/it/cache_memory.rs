//! Memory of a cache: never more than its tokens in f16, and little besides them.

use tqkv::cache::{CacheSpec, KvCache};
use tqkv_core::{CodecId, Effort, Options};
use tqkv_tests::inputs::Gaussian;

/// This holds from the first token on, for chunks of any size.
#[test]
fn a_cache_is_never_larger_than_its_tokens_in_f16() {
    let shapes = [(64, 0, 0), (128, 4, 64), (128, 0, 0), (80, 1, 3)];
    for (dim, sinks, hot) in shapes {
        let mut gaussian = Gaussian::new(3);
        let smaller = |id: &CodecId| id.block_bytes(dim).is_some_and(|bytes| bytes < 2 * dim);
        let one_width = |id: &CodecId| !id.rotates_quarters();
        for id in CodecId::ALL.iter().copied().filter(smaller).filter(one_width) {
            // Token by token; then after a prompt of 17.
            for prompt in [1, 17] {
                let spec = CacheSpec::new(1, 1, 1, dim).codecs(id, id).sinks(sinks).hot(hot);
                let mut cache = KvCache::new(spec.options(Options::DEFAULT.effort(Effort::Fast))).unwrap();
                let mut tokens = 0;
                while tokens < 300 {
                    let n = if tokens == 0 { prompt } else { 1 };
                    let rows: Vec<f32> = gaussian.vector(n * dim).iter().map(|x| x + 0.5).collect();
                    cache.append(0, &rows, &rows).unwrap();
                    tokens += n;
                    let (bytes, f16) = (cache.stats().allocated_bytes, tokens * 2 * 2 * dim);
                    assert!(
                        bytes <= f16,
                        "{} at {dim}, {tokens} tokens: {bytes} bytes, {f16} in f16",
                        id.name()
                    );
                }
            }
        }
    }
}

/// Spare room, which counts in a short cache, is at most a twentieth plus 4 KiB.
#[test]
fn a_short_cache_has_little_room_to_spare() {
    for (id, dim) in [(CodecId::S4, 128), (CodecId::T4, 64), (CodecId::S2, 128)] {
        let spec = CacheSpec::new(1, 1, 1, dim).codecs(id, id);
        let mut cache = KvCache::new(spec.options(Options::DEFAULT.effort(Effort::Fast))).unwrap();
        let mut gaussian = Gaussian::new(4);
        for tokens in 1..=1500 {
            let row = gaussian.vector(dim);
            cache.append(0, &row, &row).unwrap();
            let stats = cache.stats();
            let plain = stats.sinks + stats.hot + stats.waiting_keys;
            let used = 2 * (stats.warm * id.block_bytes(dim).unwrap() + plain * 2 * dim);
            let most = used + used / 20 + 4096;
            assert!(tokens < 500 || stats.allocated_bytes <= most, "{tokens} tokens: {stats:?}, {used} used");
        }
    }
}
