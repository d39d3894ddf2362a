//! Attention over a page that the engine owns: `cargo run -p tqkv-simd --example pages`.
//!
//! An engine with its own allocator of pages keeps codes in its memory, and calls these kernels on them.

use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::page::{Attention, KeyPages, Line, ValuePages, soften};
use tqkv_simd::{Level, codec};

const DIM: usize = 128;
const TOKENS: usize = 128;
/// Query heads that share the KV head.
const HEADS: usize = 4;

/// A smooth signal for each row, not noise.
fn rows(count: usize, step: f32) -> Vec<f32> {
    let value = |i: usize| ((i % DIM) as f32 * step).sin() + (i as f32 * 0.13 * step).cos();
    (0..count * DIM).map(value).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let level = Level::detect()?;
    let (keys, values, queries) = (rows(TOKENS, 0.37), rows(TOKENS, 0.53), rows(HEADS, 0.41));
    let key_codec = AnyCodec::new(CodecId::S4, DIM, Options::DEFAULT)?;
    let value_codec = AnyCodec::new(CodecId::T3, DIM, Options::DEFAULT)?;

    // 1. Encode all vectors in one call, and write the block of each token to its slot. An engine that
    //    generates does this for one token at a time, in any order of slots.
    let (key_pages, value_pages) = (KeyPages::new(&key_codec, TOKENS), ValuePages::new(&value_codec, TOKENS));
    let (key_pages, value_pages) = key_pages.zip(value_pages).ok_or("no page kernels for this codec")?;
    let mut blocks = vec![0; TOKENS * key_codec.block_bytes()];
    codec::encode(level, &key_codec, &keys, &mut blocks)?;
    let mut key_page = vec![Line::ZERO; key_pages.lines()];
    for (slot, block) in blocks.chunks_exact(key_codec.block_bytes()).enumerate() {
        key_pages.write(&mut key_page, slot, block);
    }
    blocks.resize(TOKENS * value_codec.block_bytes(), 0);
    codec::encode(level, &value_codec, &values, &mut blocks)?;
    let mut value_page = vec![Line::ZERO; value_pages.lines()];
    for (slot, block) in blocks.chunks_exact(value_codec.block_bytes()).enumerate() {
        value_pages.write(&mut value_page, slot, block);
    }

    // 2. Queries are scaled and rotated once per step; all pages of the sequence use them.
    let scaled: Vec<f32> = queries.iter().map(|q| q / (DIM as f32).sqrt()).collect();
    let mut rotated = vec![0.0; HEADS * DIM];
    codec::rotate_queries(level, &key_codec, &scaled, &mut rotated);
    let prepared = key_pages.queries(level, &rotated);

    // 3. Scores, softmax, sums. With more pages, `rescale` the sums by the factors before each is added, or
    //    let `page::attend` do all of it.
    let (mut logits, mut state) = (vec![0.0; HEADS * TOKENS], [Attention::EMPTY; HEADS]);
    key_pages.scores(level, &key_page, 0, &prepared, &value_page, &mut logits);
    let _factors = soften(level, &mut logits, &mut state);
    let mut out = vec![0.0; HEADS * DIM];
    value_pages.accumulate(level, &value_page, 0, &logits, &[], &mut out);

    // 4. The sums are rotated back once, and divided by the sum of the weights.
    codec::unrotate(level, &value_codec, &mut out);
    for (out, state) in out.chunks_exact_mut(DIM).zip(&state) {
        out.iter_mut().for_each(|x| *x /= state.sum);
    }

    let exact = dense(&scaled, &keys, &values);
    let energy: f32 = exact.iter().map(|x| x * x).sum();
    let error = out.iter().zip(&exact).map(|(x, y)| (x - y) * (x - y)).sum::<f32>() / energy;
    let bytes = (key_page.len() + value_page.len()) * size_of::<Line>();
    println!("{TOKENS} tokens: {} bytes of f16 became {bytes}", 4 * TOKENS * DIM);
    println!("relative squared error of the attention of {HEADS} heads: {error:.6}");
    if error < 0.01 { Ok(()) } else { Err("the error is above 0.01".into()) }
}

/// The same attention in f32, on vectors that were never encoded.
fn dense(queries: &[f32], keys: &[f32], values: &[f32]) -> Vec<f32> {
    let mut out = Vec::new();
    for query in queries.chunks_exact(DIM) {
        let dot = |key: &[f32]| key.iter().zip(query).map(|(k, q)| k * q).sum::<f32>().exp();
        let weights: Vec<f32> = keys.chunks_exact(DIM).map(dot).collect();
        let sum: f32 = weights.iter().sum();
        let weighted = |at: usize| -> f32 {
            weights.iter().zip(values.iter().skip(at).step_by(DIM)).map(|(weight, v)| weight * v).sum()
        };
        out.extend((0..DIM).map(|at| weighted(at) / sum));
    }
    out
}

#[test]
fn the_result_is_close_to_that_of_f32() {
    main().expect("a small error");
}
