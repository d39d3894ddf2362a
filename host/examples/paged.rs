//! An engine that has its own memory: a pool of blocks, a table of blocks per sequence, and codes in them.
//!
//! `cargo run --release -p tqkv --example paged` writes a prompt once, lets four sequences share its full blocks, ends one
//! now and then, whose blocks the next one gets, and checks every step against exact attention. Vectors are random here;
//! those of a model come from its projections, keys after RoPE.

use std::error::Error;
use tqkv::CodecId;
use tqkv::attention::AttentionCache;
use tqkv::cache::CacheSpec;
use tqkv::dense::DenseCache;
use tqkv::paged::{Layout, Line, Paged, Pages, Rule, Step};

const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const DIM: usize = 64;
/// Tokens of a block, blocks of the pool, and most blocks of a sequence.
const BLOCK: usize = 32;
const BLOCKS: usize = 64;
const ENTRIES: usize = 16;
const PROMPT: usize = 2 * BLOCK;

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

/// A sequence: its blocks, its tokens, and the exact cache that it is compared with.
struct Sequence {
    blocks: Vec<usize>,
    tokens: usize,
    exact: DenseCache,
}

fn main() -> Result<(), Box<dyn Error>> {
    let paged =
        Paged::new(Layout::new(HEADS, KV_HEADS, DIM).codecs(CodecId::T4, CodecId::S4).block_tokens(BLOCK))?;
    let mut pool = vec![Line::ZERO; BLOCKS * paged.block_lines()];
    let mut pages = Pages::together(&paged, &mut pool[..], paged.block_lines())?;
    let (mut free, mut random) = (Vec::from_iter(0..BLOCKS), Random(42));
    let take = |free: &mut Vec<usize>| free.pop().ok_or("no block is free");

    // The prompt fills its blocks, which are written once and never change.
    let prompt = (0..PROMPT / BLOCK).map(|_| take(&mut free)).collect::<Result<Vec<_>, _>>()?;
    let place = |blocks: &[usize], token: usize| (blocks[token / BLOCK] * BLOCK + token % BLOCK) as i64;
    let places = Vec::from_iter((0..PROMPT).map(|token| place(&prompt, token)));
    let (k, v) = (random.vectors(PROMPT * KV_HEADS), random.vectors(PROMPT * KV_HEADS));
    paged.store(&k, &v, &places, &mut pages)?;
    let begin = || -> Result<Sequence, Box<dyn Error>> {
        let mut exact = DenseCache::new(&CacheSpec::new(1, HEADS, KV_HEADS, DIM))?;
        exact.append(0, &k, &v)?;
        Ok(Sequence { blocks: prompt.clone(), tokens: PROMPT, exact })
    };

    let mut running = (0..4).map(|_| begin()).collect::<Result<Vec<_>, _>>()?;
    let (mut error, mut energy) = (0.0, 0.0);
    for step in 0..300 {
        if step % 70 == 69 {
            // A sequence ends: its own blocks are free, and another sequence begins.
            free.extend(&running.remove(step % 3).blocks[prompt.len()..]);
            running.push(begin()?);
        }
        // One token of each sequence, all in one call.
        let n = running.len();
        let (q, k, v) =
            (random.vectors(n * HEADS), random.vectors(n * KV_HEADS), random.vectors(n * KV_HEADS));
        let (mut places, mut table, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        for sequence in &mut running {
            if sequence.tokens.is_multiple_of(BLOCK) {
                sequence.blocks.push(take(&mut free)?);
            }
            places.push(place(&sequence.blocks, sequence.tokens));
            sequence.tokens += 1;
            lengths.push(sequence.tokens as i32);
            table.extend(
                (0..ENTRIES).map(|entry| sequence.blocks.get(entry).map_or(-1, |block| *block as i32)),
            );
        }
        paged.store(&k, &v, &places, &mut pages)?;
        let (mut out, step) = (vec![0.0; q.len()], Step { table: &table, lengths: &lengths, starts: &[] });
        paged.attend(&q, &pages, &step, &Rule::default(), &mut out, None)?;
        for (i, sequence) in running.iter_mut().enumerate() {
            let part = |x: &[f32], heads: usize| x[i * heads * DIM..(i + 1) * heads * DIM].to_vec();
            let mut expected = vec![0.0; HEADS * DIM];
            let (q, k, v) = (part(&q, HEADS), part(&k, KV_HEADS), part(&v, KV_HEADS));
            sequence.exact.attend_chunk(0, &q, &k, &v, &mut expected)?;
            error +=
                part(&out, HEADS).iter().zip(&expected).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
            energy += expected.iter().map(|b| f64::from(*b).powi(2)).sum::<f64>();
        }
    }
    let f16 = BLOCK * 2 * 2 * KV_HEADS * DIM;
    println!(
        "{} of {BLOCKS} blocks in use, {} bytes each; f16 takes {f16}",
        BLOCKS - free.len(),
        paged.block_bytes()
    );
    println!("relative squared error of the outputs {:.4}", error / energy);
    assert!(error < 0.02 * energy, "outputs are near those of exact attention");
    Ok(())
}

#[test]
fn outputs_are_near_those_of_exact_attention() {
    main().unwrap();
}
