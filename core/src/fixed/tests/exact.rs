//! Rings with exact tokens, compared with attention in f64 over the tokens that they should hold.

use super::*;
use crate::code::T2S8;
use std::vec::Vec;

/// A token: key and value with their exponents.
type Pushed<const D: usize> = ([i16; D], i32, [i16; D], i32);

/// Tokens of several sizes: full, small, with a large coordinate, zeros.
fn tokens<const D: usize>(count: usize) -> Vec<Pushed<D>> {
    let mut random = Random(D as u64 + 77);
    let tokens = (0..count).map(|n| {
        let (mut key, mut value) = (random.wide(), random.wide());
        match n % 5 {
            1 => value = value.map(|v: i16| v >> 9),
            2 => key[n % D] = i16::MIN,
            3 if n % 2 == 1 => value = [0; D],
            _ => {}
        }
        (key, -12 - n as i32 % 2, value, -15 + n as i32 % 3)
    });
    tokens.collect()
}

/// The samples of an exact row in 8 bits, and their exponent.
fn bytes<const D: usize>(x: &[i16; D], exponent: i32) -> ([i8; D], i32) {
    let most = x.iter().map(|&v| i32::from(v ^ (v >> 15))).max().unwrap();
    let down = (0..).find(|&down| most >> down < 128).unwrap();
    let round = |v: i16| ((f64::from(v) / 2f64.powi(down)) + 0.5).floor().min(127.0) as i8;
    (x.map(round), exponent + down)
}

/// The block of a vector that leaves rows of `bits` bits, and the vector that the ring holds.
fn held<const D: usize, C: Code, const B: usize>(
    x: &[i16; D],
    exponent: i32,
    is_exact: bool,
    bits: u32,
) -> ([u8; B], [f32; D]) {
    let codec = FixedCodec::<D, C>::DEFAULT;
    let (narrow, narrow_exponent) = bytes(x, exponent);
    let (mut block, mut back) = ([0; B], [0.0; D]);
    if bits == 8 {
        codec.encode(&narrow, narrow_exponent, &mut block).unwrap();
    } else {
        codec.encode(x, exponent, &mut block).unwrap();
    }
    if !is_exact {
        float(C::ID, D, ScaleMode::Unbiased).decode(&block, &mut back).unwrap();
    } else if bits == 8 {
        back = real(&narrow, narrow_exponent);
    } else {
        back = real(x, exponent);
    }
    (block, back)
}

/// Pushes tokens and compares slots and attention after each.
fn check<
    const D: usize,
    C: Code,
    const B: usize,
    X: Sample,
    const S: usize,
    const N: usize,
    const SLOTS: usize,
>(
    sharpness: f64,
) {
    let codec = FixedCodec::<D, C>::DEFAULT;
    let (mut memory, mut exact) = (std::vec![0x5a; 2 * B * SLOTS], ExactTokens::<D, X, S, N>::new());
    let mut ring = RingCache::new(&codec, &codec, &mut memory, 0).with_exact(&mut exact);
    assert_eq!(ring.capacity(), S + N + SLOTS);
    let (tokens, mut random) = (tokens::<D>(2 * (S + N + SLOTS) + 3), Random(5));
    let mut worst = 0.0_f64;
    for count in 1..=tokens.len() {
        let (key, key_exponent, value, value_exponent) = &tokens[count - 1];
        ring.push(key, *key_exponent, value, *value_exponent).unwrap();
        // The first S, then those that codes hold, then the newest N.
        let newest = count.saturating_sub(N).max(S.min(count));
        let coded = newest.saturating_sub(SLOTS).max(S.min(newest))..newest;
        assert_eq!(ring.len(), S.min(newest) + coded.len() + (count - newest));
        let mut slots: Vec<_> = ring.slots().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        let q: [i16; D] = core::array::from_fn(|_| (random.normal() * sharpness) as i16);
        let (mut weights, mut mean, mut most) = (0.0, [0.0_f64; D], 0.0);
        let (query, root) = (real(&q, -12), (D as f64).sqrt());
        for n in (0..S.min(newest)).chain(coded.clone()).chain(newest..count) {
            let (key, key_exponent, value, value_exponent) = &tokens[n];
            let is_exact = !coded.contains(&n);
            // Without newest rows a token is encoded when it comes.
            let bits = if is_exact || N > 0 { X::BITS } else { 16 };
            let (key_block, key) = held::<D, C, B>(key, *key_exponent, is_exact, bits);
            let (value_block, value) = held::<D, C, B>(value, *value_exponent, is_exact, bits);
            if !is_exact {
                let slot = (key_block.to_vec(), value_block.to_vec());
                let at = slots.iter().position(|held| *held == slot);
                slots.swap_remove(at.unwrap_or_else(|| panic!("token {n} is not in a slot")));
            }
            let dot: f64 = query.iter().zip(&key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let weight = (dot / root).exp();
            weights += weight;
            mean.iter_mut().zip(&value).for_each(|(sum, v)| *sum += weight * f64::from(*v));
            most = energy(&value).sqrt().max(most);
        }
        assert!(slots.is_empty());
        let mut out = [0; D];
        // The largest value has this exponent.
        ring.attend(&q, -12, -13, &mut out).unwrap();
        let off = distance(&real(&out, -13), &mean.map(|v| (v / weights) as f32)).sqrt();
        worst = worst.max(off / most);
    }
    std::println!("{:?} D={D} {S}+{N} of {} bits: {worst:.1e}", C::ID, X::BITS);
    // The error of queries of 8 bits against coded keys; exact keys meet the exact query.
    assert!(worst < if SLOTS == 0 { 1e-3 } else { 2e-2 }, "{worst}");
}

#[test]
fn exact_and_coded_tokens_share_one_softmax() {
    check::<64, S4, 34, i8, 4, 16, 12>(1000.0);
    check::<64, S4, 34, i16, 4, 16, 12>(1000.0);
    check::<128, T2S8, 34, i8, 2, 5, 9>(800.0);
    check::<80, S2, 22, i16, 0, 3, 6>(500.0);
    check::<16, I8, 18, i8, 3, 0, 6>(500.0);
    check::<128, N4, 66, i16, 1, 1, 1>(100.0);
}

#[test]
fn a_ring_of_exact_tokens_alone_is_exact() {
    check::<64, S4, 34, i16, 4, 16, 0>(1000.0);
    check::<128, S4, 66, i8, 0, 7, 0>(2000.0);
    check::<1024, S4, 514, i16, 2, 2, 0>(100.0);
}

#[test]
fn no_exact_tokens_is_the_ring_without_them() {
    let (mut memory, mut other, mut none) =
        ([0; 5 * SLOT], [0; 5 * SLOT], ExactTokens::<64, i8, 0, 0>::new());
    let mut tiered = ring(&mut memory, 2).with_exact(&mut none);
    let mut plain = ring(&mut other, 2);
    for n in 0..13 {
        tiered.push(&token(n), -12, &token(n + 50), -15).unwrap();
        plain.push(&token(n), -12, &token(n + 50), -15).unwrap();
        let (mut ours, mut theirs) = ([0; 64], [1; 64]);
        tiered.attend(&token(n + 100), -13, -15, &mut ours).unwrap();
        plain.attend(&token(n + 100), -13, -15, &mut theirs).unwrap();
        assert_eq!(ours, theirs);
        assert!(tiered.slots().eq(plain.slots()));
    }
}

#[test]
fn sinks_beyond_the_exact_ones_stay_coded() {
    let (mut memory, mut exact) = ([0; 4 * SLOT], ExactTokens::<64, i16, 1, 2>::new());
    let mut ring = ring(&mut memory, 3).with_exact(&mut exact);
    for n in 0..20 {
        ring.push(&token(n), -15, &token(n), -15).unwrap();
    }
    // Token 0 is exact, 1 and 2 are sinks in slots, 18 and 19 are the newest.
    let block = |number: usize| {
        let mut block = [0; 34];
        KEYS.encode(&token(number), -15, &mut block).unwrap();
        block
    };
    let mut held: Vec<_> = ring.slots().map(|(key, _)| (0..20).find(|&n| block(n) == key).unwrap()).collect();
    held.sort_unstable();
    assert_eq!(held, [1, 2, 16, 17]);
    ring.clear();
    assert!(ring.is_empty() && ring.capacity() == 7);
}

#[test]
fn a_token_that_cannot_be_encoded_is_dropped_when_it_leaves() {
    let (mut memory, mut exact) = ([0; 2 * SLOT], ExactTokens::<64, i8, 0, 2>::new());
    let mut ring = ring(&mut memory, 0).with_exact(&mut exact);
    ring.push(&[i16::MAX; 64], 1, &token(0), -15).unwrap();
    ring.push(&token(1), -15, &token(1), -15).unwrap();
    assert_eq!(ring.push(&token(2), -15, &token(2), -15), Err(EncodeError::OutOfRange));
    assert_eq!((ring.len(), ring.slots().count()), (2, 0));
    ring.push(&token(3), -15, &token(3), -15).unwrap();
    assert_eq!((ring.len(), ring.slots().count()), (3, 1));
}

/// Every sum stays in its type: debug assertions check each addition and product.
#[test]
fn hard_tokens_do_not_overflow() {
    fn hard_of<const D: usize, X: Sample>() {
        let codec = FixedCodec::<D, I8>::DEFAULT;
        let (mut memory, mut exact) = (std::vec![0; 4 * D + 8], ExactTokens::<D, X, 4, 16>::new());
        let mut ring = RingCache::new(&codec, &codec, &mut memory, 0).with_exact(&mut exact);
        for exponent in [-20, 0, 1, 40, i32::MAX, i32::MIN] {
            ring.clear();
            for (n, x) in hard::<D>().take(40).enumerate() {
                // Tokens that leave may have no scale.
                ring.push(&x, exponent, &x, exponent).ok();
                let mut out = [0; D];
                ring.attend(&x, if n % 2 == 0 { -20 } else { exponent }, exponent, &mut out).ok();
            }
        }
        // Equal weights of the smallest values, and one token that outweighs all.
        ring.clear();
        let mut out = [0; D];
        for _ in 0..20 {
            ring.push(&[0; D], 0, &[i16::MIN; D], -15).unwrap();
            ring.attend(&[i16::MAX; D], 0, -15, &mut out).unwrap();
            assert!(out.iter().all(|&v| v < -32_700), "{out:?}");
        }
    }
    hard_of::<64, i8>();
    hard_of::<64, i16>();
    hard_of::<1024, i16>();
}
