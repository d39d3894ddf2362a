//! Random histories of a cache against a model on the CPU, and the same attention again and again while
//! another stream copies. On a GPU both run longer than on the fake driver.

use super::*;

/// A number below `bound`.
fn below(state: &mut u64, bound: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % bound
}

/// The rows that each sequence of a cache must hold, the same in every layer.
type Model = [Vec<f32>; 3];

/// Appends a token to each of `sequences` by a step, and attends with it.
fn step(cache: &mut GpuCache, model: &mut Model, sequences: &[usize], seed: u64) {
    let device = cache.device().clone();
    let (rows, queries) = (noise(seed, sequences.len() * ROW), noise(seed + 1, sequences.len() * QUERY));
    let (there, asked) = (upload(&device, &rows), upload(&device, &queries));
    let mut out = device.stream().alloc_zeros::<f32>(queries.len()).unwrap();
    cache.begin_step(sequences).unwrap();
    for layer in 0..cache.spec().num_layers {
        cache.append_step(layer, Rows::F32(&there), Rows::F32(&there)).unwrap();
    }
    let last = cache.spec().num_layers - 1;
    cache.attend_step(last, Rows::F32(&asked), &mut out).unwrap();
    cache.end_step().unwrap();
    let got = device.stream().clone_dtoh(&out).unwrap();
    for (i, (&sequence, row)) in sequences.iter().zip(rows.chunks_exact(ROW)).enumerate() {
        model[sequence].extend_from_slice(row);
        let part = i * QUERY..(i + 1) * QUERY;
        let length = model[sequence].len() / ROW;
        assert_near(&got[part.clone()], &wanted(cache, last, sequence, length, &queries[part]), 2e-4);
    }
}

#[test]
fn random_lives_are_those_of_the_model() {
    // The interpreter takes a second for a few dozen tokens of a trellis code.
    let (actions, most) = if on_paper() { (20, 12) } else { (2000, 70) };
    let codecs = [(CodecId::S4, CodecId::S2), (CodecId::I8, CodecId::T2)];
    for (life, (key, value)) in codecs.into_iter().enumerate() {
        let mut cache = GpuCache::new(&device(0), spec(2).codecs(key, value)).unwrap();
        let (mut model, mut state) = (Model::default(), 7 + life as u64);
        for action in 0..actions {
            let sequence = below(&mut state, 3);
            let tokens = model[sequence].len() / ROW;
            let room = 200 - tokens;
            let seed = 1000 * (action as u64 + 1);
            match below(&mut state, 8) {
                0 => {
                    let length = below(&mut state, tokens + 1);
                    cache.truncate(sequence, length).unwrap();
                    model[sequence].truncate(length * ROW);
                }
                1 => {
                    let (to, length) = ((sequence + 1) % 3, below(&mut state, tokens + 1));
                    cache.truncate(to, 0).unwrap();
                    cache.fork(sequence, to, length).unwrap();
                    model[to] = model[sequence][..length * ROW].to_vec();
                }
                2 | 3 => {
                    let count = below(&mut state, most).min(room);
                    let rows = fill(&mut cache, sequence, count, seed);
                    model[sequence].extend_from_slice(&rows);
                }
                _ => {
                    let sequences: Vec<usize> =
                        (0..3).filter(|&other| model[other].len() / ROW < 200).collect();
                    step(&mut cache, &mut model, &sequences, seed);
                }
            }
            assert_eq!(
                [0, 1, 2].map(|sequence| cache.len(sequence)),
                model.each_ref().map(|rows| rows.len() / ROW)
            );
            if action % 20 == 19 {
                for (sequence, rows) in model.iter().enumerate() {
                    for side in [Side::Keys, Side::Values] {
                        let want = blocks(cache.codec(side), rows);
                        assert!(
                            cache.blocks(1, sequence, side).unwrap() == want,
                            "{action}: {sequence} {side:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn attention_beside_a_copy_on_another_stream_is_the_same_each_time() {
    let (mut cache, repeats, words) = (cache(1), if on_paper() { 3 } else { 200 }, 1 << 22);
    for (sequence, tokens) in [(0, 200), (1, 65)] {
        fill(&mut cache, sequence, tokens, sequence as u64);
    }
    let device = cache.device().clone();
    let queries = upload(&device, &noise(9, 3 * QUERY));
    let mut out = device.stream().alloc_zeros::<f32>(3 * QUERY).unwrap();
    let other = device.stream().context().new_stream().unwrap();
    let words = if on_paper() { 256 } else { words };
    let (from, mut to) = (other.alloc_zeros::<u32>(words).unwrap(), other.alloc_zeros::<u32>(words).unwrap());
    let mut first = Vec::new();
    for repeat in 0..repeats {
        other.memcpy_dtod(&from, &mut to).unwrap();
        cache.attend_on_device(0, Rows::F32(&queries), &mut out).unwrap();
        let got: Vec<u32> = device.stream().clone_dtoh(&out).unwrap().into_iter().map(f32::to_bits).collect();
        if repeat == 0 {
            first = got;
        } else {
            assert!(got == first, "repeat {repeat}");
        }
    }
    other.synchronize().unwrap();
}
