//! Random histories of a cache against a model on the CPU, and the same attention again and again while
//! another stream copies. On a GPU both run longer than on the fake driver.

use super::exact::{both, extend, step};
use super::*;

/// A number below `bound`.
fn below(state: &mut u64, bound: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % bound
}

#[test]
fn random_lives_are_those_of_the_model() {
    use CodecId::{I8, S2, S4, T2};
    // The interpreter takes a second for a few dozen tokens of a trellis code.
    let (actions, few, many) = if on_paper() { (20, 12, 60) } else { (2000, 70, 150) };
    for (life, (key, value, hot, most)) in
        [(S4, S2, 0, few), (I8, T2, 0, few), (S2, S2, 20, many)].into_iter().enumerate()
    {
        let (mut cache, mut model) = both(spec(2).codecs(key, value).exact(hot / 5, hot));
        let mut state = 7 + life as u64;
        for action in 0..actions {
            let sequence = below(&mut state, 3);
            let tokens = model.sequences[sequence].tokens;
            let seed = 1000 * (action as u64 + 1);
            match below(&mut state, 8) {
                0 => {
                    let length = below(&mut state, tokens + 1);
                    cache.truncate(sequence, length).unwrap();
                    model.truncate(sequence, length);
                }
                1 => {
                    let (to, length) = ((sequence + 1) % 3, below(&mut state, tokens + 1));
                    cache.truncate(to, 0).unwrap();
                    cache.fork(sequence, to, length).unwrap();
                    model.fork(sequence, to, length);
                }
                2 | 3 => {
                    let count = below(&mut state, most).min(200 - tokens);
                    extend(&mut cache, &mut model, sequence, count, seed);
                }
                _ => {
                    let sequences: Vec<usize> =
                        (0..3).filter(|&other| model.sequences[other].tokens < 200).collect();
                    step(&mut cache, &mut model, &sequences, seed);
                }
            }
            for (sequence, held) in model.sequences.iter().enumerate() {
                assert_eq!(cache.len(sequence), held.tokens);
                for (side, rows) in [Side::Keys, Side::Values].into_iter().zip(&held.rows) {
                    assert!(
                        action % 20 < 19
                            || cache.blocks(1, sequence, side).unwrap() == blocks(cache.codec(side), rows),
                        "{action}: {sequence} {side:?}"
                    );
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
