//! Continuous batching: sequences that share a prompt, in one cache of slots.
//!
//! `cargo run --release -p tqkv --example batching` writes a prompt once, lets four sequences go on from it,
//! ends some and begins others in their slots, and checks every step against exact attention. Vectors are
//! random here; those of a model come from its projections, keys after RoPE.

use std::error::Error;
use tqkv::attention::AttentionCache;
use tqkv::cache::CacheSpec;
use tqkv::dense::DenseCache;
use tqkv::slots::{Mask, SlotCache};

const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const DIM: usize = 64;
const SLOTS: usize = 1024;
const PROMPT: usize = 200;

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

/// A sequence: its slots in the order of its tokens, and the exact cache that it is compared with.
struct Sequence {
    slots: Vec<usize>,
    exact: DenseCache,
}

fn main() -> Result<(), Box<dyn Error>> {
    let spec = format!("layers=1 heads={HEADS} kv-heads={KV_HEADS} head-dim={DIM} t4 hot=32").parse()?;
    let mut cache = SlotCache::new(spec, SLOTS)?;
    let (layer, mut random) = (0, Random(42));
    let mut free: Vec<usize> = (0..SLOTS).rev().collect();
    let take = |free: &mut Vec<usize>| free.pop().ok_or("no slot is free");

    // The prompt is written once. Its tokens see each other causally.
    let prompt = (0..PROMPT).map(|_| take(&mut free)).collect::<Result<Vec<_>, _>>()?;
    let (k, v) = (random.vectors(PROMPT * KV_HEADS), random.vectors(PROMPT * KV_HEADS));
    let q = random.vectors(PROMPT * HEADS);
    cache.write(layer, &prompt, &Vec::from_iter(0..PROMPT), &k, &v)?;
    let mut mask = Mask::new(SLOTS);
    mask.causal(&prompt, PROMPT)?;
    let mut out = vec![0.0; q.len()];
    cache.attend(layer, &q, &mask, &mut out)?;
    let begin = || -> Result<Sequence, Box<dyn Error>> {
        let mut exact = DenseCache::new(&CacheSpec::new(1, HEADS, KV_HEADS, DIM))?;
        exact.attend_chunk(layer, &q, &k, &v, &mut vec![0.0; q.len()])?;
        Ok(Sequence { slots: prompt.clone(), exact })
    };

    let mut running = (0..4).map(|_| begin()).collect::<Result<Vec<_>, _>>()?;
    let (mut error, mut energy) = (0.0, 0.0);
    for step in 0..300 {
        if step % 70 == 69 {
            // A sequence ends: the slots after the prompt are free, and another one begins.
            let ended = running.remove(step % 3);
            cache.forget(&ended.slots[PROMPT..])?;
            free.extend(&ended.slots[PROMPT..]);
            running.push(begin()?);
        }
        // One token of each sequence, all in one call.
        let n = running.len();
        let (q, k, v) =
            (random.vectors(n * HEADS), random.vectors(n * KV_HEADS), random.vectors(n * KV_HEADS));
        let new = (0..n).map(|_| take(&mut free)).collect::<Result<Vec<_>, _>>()?;
        let positions: Vec<usize> = running.iter().map(|sequence| sequence.slots.len()).collect();
        cache.write(layer, &new, &positions, &k, &v)?;
        mask.clear();
        for (sequence, slot) in running.iter_mut().zip(&new) {
            sequence.slots.push(*slot);
            mask.causal(&sequence.slots, 1)?;
        }
        let mut out = vec![0.0; q.len()];
        cache.attend(layer, &q, &mask, &mut out)?;
        for (i, sequence) in running.iter_mut().enumerate() {
            let part = |x: &[f32], heads: usize| x[i * heads * DIM..(i + 1) * heads * DIM].to_vec();
            let mut expected = vec![0.0; HEADS * DIM];
            let (q, k, v) = (part(&q, HEADS), part(&k, KV_HEADS), part(&v, KV_HEADS));
            sequence.exact.attend_chunk(layer, &q, &k, &v, &mut expected)?;
            error +=
                part(&out, HEADS).iter().zip(&expected).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
            energy += expected.iter().map(|b| f64::from(*b).powi(2)).sum::<f64>();
        }
    }
    let (held, tokens) = (cache.allocated_bytes(), SLOTS - free.len());
    println!("{tokens} slots in use, {held} bytes; f16 takes {}", tokens * 2 * 2 * KV_HEADS * DIM);
    println!("relative squared error of the outputs {:.4}", error / energy);
    assert!(error < 0.02 * energy, "outputs are near those of exact attention");
    Ok(())
}

#[test]
fn outputs_are_near_those_of_exact_attention() {
    main().unwrap();
}
