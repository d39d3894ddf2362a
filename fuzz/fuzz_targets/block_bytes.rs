//! Takes arbitrary bytes as a block: decoding never panics, and a decodable block scores like its decoded
//! vector. Takes arbitrary floats as a vector: a decoded vector is no further away than the zero vector.
#![no_main]

mod seeds;

use libfuzzer_sys::fuzz_target;
use tqkv_core::{AnyCodec, BlockView, CodecId, HEAD_DIMS, Options, ScaleMode};

fuzz_target!(|data: &[u8]| {
    let [codec, dim, seed, bytes @ ..] = data else { return seeds::refused("too short") };
    let id = CodecId::ALL[usize::from(*codec) % CodecId::ALL.len()];
    // The first dims reach every kind of rotation and the ragged group. Larger dims only cost time.
    let dim = HEAD_DIMS[usize::from(*dim) % 10];
    let options = Options::DEFAULT.seed(u64::from(*seed)).scale_mode(ScaleMode::Mmse);
    let Ok(codec) = AnyCodec::new(id, dim, options) else { return seeds::refused("no such codec") };

    let mut block = bytes.to_vec();
    block.resize(codec.block_bytes(), 0);
    decode(&codec, &block);
    let _ = BlockView::new(id, dim, bytes);

    let mut x: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    x.resize(dim, 0.0);
    if codec.encode(&x, &mut block).is_ok() {
        let y = decode(&codec, &block).expect("what the encoder writes decodes");
        let energy = |v: &[f32]| v.iter().map(|a| f64::from(*a).powi(2)).sum::<f64>();
        let error = x.iter().zip(&y).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>();
        // Below this norm the f16 scale is subnormal and its rounding dominates.
        let tiny = energy(&x) < 1e-6;
        assert!(tiny || error <= energy(&x) * 1.01, "{} dim {dim}: {error} of {}", id.name(), energy(&x));
    }
});

/// Decodes, and compares the score with the decoded vector's dot product.
fn decode(codec: &AnyCodec, block: &[u8]) -> Option<Vec<f32>> {
    let mut y = vec![0.0; codec.dim()];
    codec.decode(block, &mut y).ok()?;
    let (mut rotated, mut score) = (vec![0.0; codec.dim()], [0.0]);
    let query = vec![1.0; codec.dim()];
    codec.rotate_query(&query, &mut rotated);
    codec.scores(&rotated, block, &mut score);
    let scaled = codec.id().layout().has_one_scale();
    let dot: f64 = y.iter().map(|v| f64::from(*v)).sum();
    let size: f64 = y.iter().map(|v| f64::from(v.abs())).sum();
    if scaled && size.is_finite() {
        assert!((f64::from(score[0]) - dot).abs() <= 1e-3 * size + 1e-3, "{score:?} against {dot}");
    }
    Some(y)
}
