//! Takes bytes as the operations on a ring: pushes, attention, clears. Compares it with a plain list of
//! tokens. Slots hold what the codecs write, in the order of a ring. Attention never panics and repeats
//! exactly. It is softmax over the scores and the decoded values of the blocks.
#![no_main]

mod seeds;

use libfuzzer_sys::fuzz_target;
use tqkv_core::code::{Code, I8, S2, S3, S4, T2S8};
use tqkv_core::fixed::{FixedCodec, RingCache};
use tqkv_core::{AnyCodec, Options};

fuzz_target!(|data: &[u8]| {
    let [kind, room, sinks, program @ ..] = data else { return seeds::refused("too short") };
    let (room, sinks) = (usize::from(room % 9), usize::from(sinks % 11));
    match kind % 4 {
        0 => live::<16, I8, I8>(room, sinks, program),
        1 => live::<32, S4, S3>(room, sinks, program),
        2 => live::<16, T2S8, S2>(room, sinks, program),
        _ => live::<48, I8, T2S8>(room, sinks, program),
    }
});

/// The bytes of one token.
type Slot = (Vec<u8>, Vec<u8>);

fn live<const D: usize, K: Code, V: Code>(room: usize, sinks: usize, program: &[u8]) {
    let (keys, values) = (FixedCodec::<D, K>::DEFAULT, FixedCodec::<D, V>::DEFAULT);
    // Bytes beyond the last complete slot are never used.
    let mut memory = vec![0x5a; RingCache::<D, K, V>::bytes_for(room) + 3];
    let mut ring = RingCache::new(&keys, &values, &mut memory, sinks);
    assert_eq!(ring.capacity(), room);
    let kept = sinks.min(room.saturating_sub(1));
    let (mut plain, mut next): (Vec<Slot>, usize) = (Vec::new(), kept);
    for step in program.chunks(4).take(200) {
        let [operation, a, b, c] = core::array::from_fn(|i| step.get(i).copied().unwrap_or(0));
        let vector = |seed: u8| -> [i16; D] {
            core::array::from_fn(|i| {
                (i32::from(seed) * 977 + i as i32 * i32::from(b) * 61) as u16 as i16 >> (c % 16)
            })
        };
        let exponent = i32::from(c as i8) / 4 - 10;
        match operation % 8 {
            0..=4 => {
                let (key, value) = (vector(a), vector(a.wrapping_add(b)));
                let pushed = ring.push(&key, exponent, &value, exponent);
                if room == 0 {
                    continue;
                }
                if pushed.is_err() {
                    // The slot to be replaced is now a token of zeros.
                    if plain.len() == room {
                        plain[next].0.fill(0);
                        plain[next].1.fill(0);
                    }
                    continue;
                }
                let slot = (block(&keys, &key, exponent), block(&values, &value, exponent));
                if plain.len() < room {
                    plain.push(slot);
                } else {
                    plain[next] = slot;
                    next = if next + 1 < room { next + 1 } else { kept };
                }
            }
            7 if a % 16 == 0 => {
                ring.clear();
                plain.clear();
                next = kept;
            }
            _ => {
                let (mut out, mut again) = ([1; D], [2; D]);
                ring.attend(&vector(a), exponent, exponent, &mut out).expect("scales are finite");
                ring.attend(&vector(a), exponent, exponent, &mut again).expect("scales are finite");
                assert_eq!(out, again);
                if plain.is_empty() {
                    assert_eq!(out, [0; D]);
                } else {
                    assert_attends::<D, K, V>(&vector(a), exponent, &plain, &out);
                }
            }
        }
        assert_eq!(ring.len(), plain.len());
        for (slot, (key, value)) in ring.slots().zip(&plain) {
            assert_eq!(slot, (&key[..], &value[..]));
        }
    }
}

/// Compares attention, with the query times 2^exponent, with f64 attention over the decoded blocks. `out` has
/// the same exponent.
fn assert_attends<const D: usize, K: Code, V: Code>(
    q: &[i16; D],
    exponent: i32,
    plain: &[Slot],
    out: &[i16; D],
) {
    let codec = |id| AnyCodec::new(id, D, Options::DEFAULT).expect("a codec of integers");
    let (keys, values, unit) = (codec(K::ID), codec(V::ID), 2f64.powi(exponent));
    let mut rotated = [0.0; D];
    keys.rotate_query(&q.map(|v| (f64::from(v) * unit) as f32), &mut rotated);
    let largest = rotated.iter().fold(0.0, |most: f64, v| most.max(f64::from(v.abs())));
    let (mut logits, mut error) = (Vec::new(), 0.0);
    for (key, _) in plain {
        let mut row = [0.0; D];
        keys.decode_rotated(key, &mut row);
        let dot: f64 = rotated.iter().zip(&row).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
        let size: f64 = row.iter().map(|v| f64::from(v.abs())).sum();
        let root = (D as f64).sqrt();
        logits.push(dot / root);
        // Half a step of the query per coordinate, and the rounding of factors.
        error = f64::max(error, (0.51 / 127.0 + 1e-4) * largest * size / root);
    }
    // Beyond these limits, weights may have any value.
    if error > 0.1 || logits.iter().any(|logit| logit.abs() > 8000.0) {
        return;
    }
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = logits.iter().map(|logit| (logit - most).exp()).sum();
    let (mut want, mut longest) = ([0.0; D], 0.0);
    for (logit, (_, value)) in logits.iter().zip(plain) {
        let mut row = [0.0; D];
        values.decode(value, &mut row).expect("a block of the encoder's");
        let weight = (logit - most).exp() / total;
        want.iter_mut().zip(&row).for_each(|(sum, v)| *sum += weight * f64::from(*v));
        longest = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt().max(longest);
    }
    // The error of all weights, one unit of the output, and an eighth of the smallest f16, because weights
    // are rounded like scales.
    let allowed = longest * (3.0 * error + 2e-3 + plain.len() as f64 / 8192.0) + 1.5 * unit + 1e-8;
    for (got, want) in out.iter().zip(&want) {
        let want = want.clamp(-32768.0 * unit, 32767.0 * unit);
        let off = (f64::from(*got) * unit - want).abs();
        assert!(off <= allowed, "{} {}: {off} of {longest}, {allowed} allowed", K::ID.name(), V::ID.name());
    }
}

/// The block of a codec, made by a ring of one token.
fn block<const D: usize, C: Code>(codec: &FixedCodec<D, C>, x: &[i16; D], exponent: i32) -> Vec<u8> {
    let mut memory = vec![0; RingCache::<D, C, C>::bytes_for(1)];
    let mut ring = RingCache::new(codec, codec, &mut memory, 0);
    ring.push(x, exponent, x, exponent).expect("it fitted before");
    let (key, value) = ring.slots().next().expect("one token");
    assert_eq!(key, value);
    key.to_vec()
}
