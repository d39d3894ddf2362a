//! Shifts of positions: codes stay as they are, and attention is that over keys which f64 turns.

use super::random::Random;
use half::f16;
use tqkv::cache::CacheSpec;
use tqkv::error::CacheError;
use tqkv::rope::{Rope, RopePairing};
use tqkv::slots::{Mask, SlotCache};

const DIM: usize = 64;
const HEADS: usize = 2;
const WIDTH: usize = HEADS * DIM;
const TOKENS: usize = 600;
const SLOTS: usize = 1024;

fn cache(text: &str, streams: usize) -> SlotCache {
    SlotCache::with_streams(CacheSpec::new(1, HEADS, HEADS, DIM).with(text).unwrap(), SLOTS, streams).unwrap()
}

/// The RoPE of all or the last half of a head.
fn rope(pairs: RopePairing, dims: usize) -> Rope {
    let frequencies = (0..dims / 2).map(|pair| 10_000f64.powf(-2.0 * pair as f64 / dims as f64));
    Rope::new(DIM - dims, pairs, frequencies.collect())
}

fn ropes() -> [Rope; 3] {
    [rope(RopePairing::Half, DIM), rope(RopePairing::Interleaved, DIM), rope(RopePairing::Half, DIM / 2)]
}

/// Turns a row of keys in f64.
fn turn(rope: &Rope, by: i32, row: &mut [f64]) {
    for head in row.chunks_mut(DIM) {
        for (pair, frequency) in rope.inv_freq.iter().enumerate() {
            let ((a, b), (sin, cos)) = (rope.pair(pair), (f64::from(by) * frequency).sin_cos());
            (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
        }
    }
}

/// Rows of keys with a mean that is not 0, or of values.
fn rows(random: &mut Random, count: usize, mean: f32) -> Vec<f32> {
    let row = |i: usize| f16::from_f32(random.normal() + mean * (i % 5) as f32).to_f32();
    (0..count * WIDTH).map(row).collect()
}

fn fill(cache: &mut SlotCache, slots: &[usize], keys: &[f32], values: &[f32]) {
    for (number, slots) in slots.chunks(64).enumerate() {
        let (from, positions) = (number * 64 * WIDTH, Vec::from_iter((number * 64..).take(slots.len())));
        let of = |rows: &[f32]| rows[from..from + slots.len() * WIDTH].to_vec();
        cache.write(0, slots, &positions, &of(keys), &of(values)).unwrap();
        cache.encode(0).unwrap();
    }
}

fn keys_of(cache: &SlotCache, slots: &[usize]) -> Vec<f64> {
    let [mut k, mut v] = [0; 2].map(|_| vec![f16::ZERO; slots.len() * WIDTH]);
    cache.read(0, slots, &mut k, &mut v).unwrap();
    k.iter().map(|x| x.to_f64()).collect()
}

fn difference(found: &[f64], wanted: &[f64]) -> f64 {
    let error: f64 = found.iter().zip(wanted).map(|(a, b)| (a - b).powi(2)).sum();
    (error / wanted.iter().map(|x| x * x).sum::<f64>()).sqrt()
}

/// Relative error of attention over all slots with some queries, to that of exact keys and the cache's values.
fn attention_error(cache: &mut SlotCache, random: &mut Random, keys: &[f64]) -> f64 {
    const QUERIES: usize = 24;
    let slots = Vec::from_iter(0..TOKENS);
    let [mut k, mut v] = [0; 2].map(|_| vec![f16::ZERO; TOKENS * WIDTH]);
    cache.read(0, &slots, &mut k, &mut v).unwrap();
    let mut mask = Mask::new(SLOTS);
    (0..QUERIES).for_each(|_| mask.see(slots.iter().copied()).unwrap());
    let queries: Vec<f32> = (0..QUERIES * WIDTH).map(|_| random.normal()).collect();
    let mut out = vec![0.0; queries.len()];
    cache.attend(0, &queries, &mask, &mut out).unwrap();
    let mut wanted = Vec::new();
    for (i, query) in queries.chunks(DIM).enumerate() {
        let head = i % HEADS * DIM;
        let logit = |key: &[f64]| {
            let key = &key[head..head + DIM];
            key.iter().zip(query).map(|(k, q)| k * f64::from(*q)).sum::<f64>() / (DIM as f64).sqrt()
        };
        let weights: Vec<f64> = keys.chunks(WIDTH).map(|key| logit(key).exp()).collect();
        let sum: f64 = weights.iter().sum();
        wanted.extend((head..head + DIM).map(|at| {
            let values =
                v.chunks(WIDTH).zip(&weights).map(|(value, weight)| value[at].to_f64() * weight / sum);
            values.sum::<f64>()
        }));
    }
    difference(&out.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), &wanted)
}

#[test]
fn attention_after_a_hundred_shifts_has_the_error_that_it_had_before_the_first() {
    for text in ["s4,i8 hot=16", "t4,i8 hot=0", "t2,i8 hot=0", "t4,i8 hot=16 tier=300:t2,i8", "m3,i8 hot=16"]
    {
        for rope in ropes() {
            let (mut random, mut cache) = (Random(5), cache(text, 1));
            let (keys, values) = (rows(&mut random, TOKENS, 0.3), rows(&mut random, TOKENS, 0.0));
            fill(&mut cache, &Vec::from_iter(0..TOKENS), &keys, &values);
            let mut keys: Vec<f64> = keys.iter().map(|x| f64::from(*x)).collect();
            // The first attention teaches maps.
            attention_error(&mut cache, &mut random, &keys);
            let before = attention_error(&mut cache, &mut random, &keys);
            // The first 100 tokens stay, which end within a page, and later ones move further than others.
            for shifts in 1..=100 {
                for from in [100, 333] {
                    let moved = Vec::from_iter(from..TOKENS);
                    cache.shift(0, &moved, -64, &rope).unwrap();
                    keys[from * WIDTH..].chunks_mut(WIDTH).for_each(|key| turn(&rope, -64, key));
                }
                if shifts == 10 || shifts == 100 {
                    let after = attention_error(&mut cache, &mut random, &keys);
                    // Turned means give other weights to the tokens of each tier.
                    let most = if text.contains("tier") { 1.4 } else { 1.1 };
                    assert!(
                        after < most * before,
                        "{text} {rope:?}: {before}, {after} after {shifts} shifts"
                    );
                }
            }
        }
    }
}

#[test]
fn chunks_move_to_other_slots_streams_and_places() {
    for (text, rope) in ["s4 hot=0 sinks=0", "t2,s4 hot=16", "t4 hot=0 tier=200:t2"].into_iter().zip(ropes())
    {
        let (mut random, mut cache) = (Random(7), cache(text, 2));
        let (keys, values) = (rows(&mut random, 400, 0.3), rows(&mut random, 400, 0.0));
        fill(&mut cache, &Vec::from_iter(0..400), &keys, &values);
        let (chunk, mut wanted) = (Vec::from_iter(70..270), keys_of(&cache, &Vec::from_iter(70..270)));
        let mut total = 0;
        // Within the stream, to pages of codes with another move, to the other stream, and back.
        for (by, from, to) in [(5, 70, 450), (-70, 450, 60), (1000, 60, SLOTS + 3), (-3, SLOTS + 3, 500)] {
            let [from, to] = [from, to].map(|first| Vec::from_iter(first..first + chunk.len()));
            cache.copy(&from, &to).unwrap();
            cache.shift(0, &to, by, &rope).unwrap();
            wanted.chunks_mut(WIDTH).for_each(|key| turn(&rope, by, key));
            total += 1;
            let error = difference(&keys_of(&cache, &to), &wanted);
            assert!(error < 2e-3, "{text}: {error} after {total} moves");
        }
    }
}

#[test]
fn more_moves_than_a_stream_keeps_cost_one_encoding() {
    for text in ["s4 hot=0 sinks=0", "t4 hot=0 sinks=0"] {
        let (mut random, mut cache, rope) = (Random(9), cache(text, 1), &ropes()[0]);
        let (keys, values) = (rows(&mut random, TOKENS, 0.3), rows(&mut random, TOKENS, 0.0));
        fill(&mut cache, &Vec::from_iter(0..TOKENS), &keys, &values);
        let mut wanted: Vec<f64> = keys.iter().map(|x| f64::from(*x)).collect();
        let all = Vec::from_iter(0..TOKENS);
        let before = difference(&keys_of(&cache, &all), &wanted);
        for (part, slots) in all.chunks(30).enumerate() {
            cache.shift(0, slots, 3 * part as i32, rope).unwrap();
            let own = &mut wanted[slots[0] * WIDTH..][..slots.len() * WIDTH];
            own.chunks_mut(WIDTH).for_each(|key| turn(rope, 3 * part as i32, key));
        }
        let after = difference(&keys_of(&cache, &all), &wanted);
        // Squares of independent errors add up.
        assert!(after < 1.45 * before, "{text}: {before}, {after}");
    }
}

#[test]
fn a_shift_that_is_refused_moves_nothing() {
    let mut cache = cache("s4 hot=0", 1);
    let mut random = Random(3);
    let (keys, values) = (rows(&mut random, 100, 0.3), rows(&mut random, 100, 0.0));
    let all = Vec::from_iter(0..100);
    fill(&mut cache, &all, &keys, &values);
    let before = keys_of(&cache, &all);
    let whole = rope(RopePairing::Half, DIM);
    let past = Rope { first: 2, ..whole.clone() };
    let infinite = Rope { inv_freq: vec![1.0, f64::INFINITY], ..whole.clone() };
    for (wrong, why) in [
        (past, "RoPE of 32 pairs from value 2 on: expected at most the head dim, 64"),
        (Rope { first: usize::MAX, ..whole.clone() }, "expected at most the head dim"),
        (infinite, "RoPE with the frequency inf: expected a finite one"),
    ] {
        let error = cache.shift(0, &all, 1, &wrong).unwrap_err();
        assert!(matches!(error, CacheError::BadRope(_)) && error.to_string().contains(why), "{error}");
    }
    assert_eq!(cache.shift(0, &[5, SLOTS], 1, &whole), Err(CacheError::Slot { slot: SLOTS, slots: SLOTS }));
    assert!(cache.shift(1, &all, 1, &whole).is_err());
    cache.shift(0, &[], 1, &whole).unwrap();
    cache.shift(0, &all, 0, &whole).unwrap();
    assert!(keys_of(&cache, &all) == before);
}
