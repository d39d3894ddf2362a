#![allow(missing_docs, reason = "temporary")]
use tqkv::cache::{CacheSpec, KvCache};
use tqkv_tests::inputs::Gaussian;
use std::time::Instant;
#[test]
fn timing() {
    for (dim, upto) in [(128usize, 1000usize)] {
        let mut cache = KvCache::new(CacheSpec::new(1, 8, 2, dim)).unwrap();
        let mut g = Gaussian::new(1);
        let rows = g.vector(1000 * 2 * dim);
        while cache.len() + 1000 <= upto { cache.append(0, &rows, &rows).unwrap(); }
        let mut best = f64::MAX;
        for _ in 0..3000 {
            let t = Instant::now();
            for i in 0..128 { let at = i * 2 * dim..(i + 1) * 2 * dim; cache.append(0, &rows[at.clone()], &rows[at]).unwrap(); }
            best = best.min(t.elapsed().as_secs_f64() / 128.0 * 1e6);
        }
        println!("append at {upto}: {best:.3} us a token");
    }
}
