//! A key, encoded, decoded and scored: `cargo run -p tqkv-core --example encode`.

use tqkv_core::code::T3;
use tqkv_core::{AnyCodec, Codec, CodecId, Options};

/// A smooth signal, not noise.
fn wave(step: f32) -> [f32; 128] {
    core::array::from_fn(|i| (i as f32 * step).sin() + 0.3 * (i as f32 * 5.1 * step).cos())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (key, query) = (wave(0.37), wave(0.39));

    // The shape is known at compile time: lengths are types, and only one table is linked.
    let mut block = [0; Codec::<128, T3>::BLOCK_BYTES];
    Codec::<128, T3>::encode(&key, &mut block)?;
    let mut back = [0.0; 128];
    Codec::<128, T3>::decode(&block, &mut back)?;
    report("t3", &key, &back, block.len());

    // The shape is known at run time.
    let exact: f32 = key.iter().zip(&query).map(|(k, q)| k * q).sum();
    for id in [CodecId::I8, CodecId::S4, CodecId::S2] {
        let codec = AnyCodec::new(id, 128, Options::DEFAULT)?;
        let mut block = vec![0; codec.block_bytes()];
        codec.encode(&key, &mut block)?;
        codec.decode(&block, &mut back)?;
        report(id.name(), &key, &back, block.len());
        // Attention rotates the query once and never decodes a key.
        let (mut rotated, mut score) = ([0.0; 128], [0.0]);
        codec.rotate_query(&query, &mut rotated);
        codec.scores(&rotated, &block, &mut score);
        println!("      query * key {:.3}, from the codes {:.3}", exact, score[0]);
    }
    Ok(())
}

fn report(name: &str, x: &[f32], back: &[f32], bytes: usize) {
    let energy: f32 = x.iter().map(|v| v * v).sum();
    let error: f32 = x.iter().zip(back).map(|(a, b)| (a - b).powi(2)).sum();
    println!(
        "{name:>4}: {} bytes of f16 become {bytes}, relative squared error {:.4}",
        2 * x.len(),
        error / energy
    );
}
