//! Trellis codes in integers compared with the float path.

use super::*;
use crate::code::trellis::{Search, Trellis, workspace_bytes};
use crate::code::{T1, T2, T2H, T2S8, T3, T3H, T4};
use crate::fixed::trellis::Body;

fn blocks<const D: usize, C: Code, const N: usize>(mode: ScaleMode, rounds: usize) {
    let fixed = FixedTrellis::<D, C>::new(42, mode);
    let float = float(FixedTrellis::<D, C>::ID, D, mode);
    let (mut workspace, mut random) = (TrellisWorkspace::new(), Random(7));
    let (mut same, mut ours, mut theirs, mut total) = (0, 0.0, 0.0, 0.0);
    for round in 0..rounds {
        let exponent = round as i32 % 7 - 15;
        let x = random.wide::<D>();
        let (mut block, mut expected, mut back) = ([0; N], [0; N], [0.0; D]);
        fixed.encode(&x, exponent, &mut workspace, &mut block).unwrap();
        let input = real(&x, exponent);
        float.encode(&input, &mut expected).unwrap();
        same += usize::from(block[2..] == expected[2..]);
        total += energy(&input);
        float.decode(&expected, &mut back).unwrap();
        theirs += distance(&input, &back);
        float.decode(&block, &mut back).unwrap();
        ours += distance(&input, &back);
        let mut integers = [0; D];
        fixed.decode(&block, exponent, &mut integers).unwrap();
        let difference = distance(&real(&integers, exponent), &back);
        let rounding = D as f64 * 4f64.powi(exponent);
        assert!(difference <= 1e-6 * energy(&back) + rounding, "{round}: {difference} {rounding}");
    }
    std::println!(
        "{:?} D={D} {mode:?}: error {:.5}, float {:.5}, {same} of {rounds} bodies the same",
        FixedTrellis::<D, C>::ID,
        ours / total,
        theirs / total,
    );
    assert!((ours / theirs - 1.0).abs() < 0.01, "{ours} {theirs}");
}

#[test]
fn blocks_are_as_good_as_those_of_the_float_path() {
    blocks::<128, T2S8, 34>(ScaleMode::Unbiased, 200);
    blocks::<64, T2S8, 18>(ScaleMode::Mmse, 200);
    blocks::<80, T2S8, 22>(ScaleMode::Preserving, 200);
    blocks::<256, T2S8, 66>(ScaleMode::Raw, 100);
    blocks::<16, T2S8, 6>(ScaleMode::Unbiased, 400);
    blocks::<1024, T2S8, 258>(ScaleMode::Unbiased, 20);
}

#[test]
fn the_search_is_the_portable_one() {
    fn check<const D: usize, C: Code, const N: usize>() {
        let trellis: &Trellis<'_> = FixedTrellis::<D, C>::ID.trellis().unwrap();
        let limit = trellis.code.limit();
        let mut random = Random(3);
        for _ in 0..300 {
            let targets: [i16; D] = core::array::from_fn(|_| {
                (random.normal() * 60.0).clamp(-f64::from(limit), f64::from(limit)) as i16
            });
            let (mut ours, mut theirs) = ([0; N], [0; D]);
            Body::<D, C>::search(&targets, &mut ours[2..]);
            let mut space = std::vec![0; workspace_bytes(&trellis.code, D)];
            crate::Portable.search(trellis, D, &targets, &mut theirs[..D / 8], &mut space);
            assert_eq!(ours[2..2 + D / 8], theirs[..D / 8]);
        }
    }
    check::<128, T2S8, 34>();
    check::<80, T2S8, 22>();
    check::<16, T2S8, 6>();
}

fn decodes<const D: usize, C: Code, const N: usize>() {
    let fixed = FixedTrellis::<D, C>::DEFAULT;
    let float = float(FixedTrellis::<D, C>::ID, D, ScaleMode::Unbiased);
    let mut random = Random(11);
    for round in 0..400 {
        let mut block = [0; N];
        block.fill_with(|| random.next() as u8);
        if round % 2 == 0 {
            block[..2].copy_from_slice(&f16::from_f64(1.0 + 0.01 * f64::from(round)).to_le_bytes());
        }
        let (mut ours, mut theirs) = ([7; D], [0.0; D]);
        let finite = f16::from_le_bytes([block[0], block[1]]).is_finite();
        assert_eq!(fixed.decode(&block, -8, &mut ours).is_ok(), finite);
        if !finite {
            assert_eq!(ours, [7; D]);
            continue;
        }
        float.decode(&block, &mut theirs).unwrap();
        for (&a, &b) in ours.iter().zip(&theirs) {
            let b = (f64::from(b) * 256.0).clamp(-32_768.0, 32_767.0);
            assert!((f64::from(a) - b).abs() <= 0.51 + 5e-5 * b.abs(), "{a} {b}");
        }
    }
}

#[test]
fn all_codes_decode_and_damage_is_harmless() {
    macro_rules! each {
        ($dim:literal: $($codec:ident),*) => {
            $(decodes::<$dim, $codec, { FixedTrellis::<$dim, $codec>::BLOCK_BYTES }>();)*
        };
    }
    each!(128: T1, T2, T2H, T3, T3H, T4, T2S8);
    each!(16: T1, T2H, T3H, T4);
    each!(80: T2H, T3, T3H);
    each!(1024: T2, T4);
}

#[test]
fn hard_inputs() {
    let (codec, mut workspace) = (FixedTrellis::<128, T2S8>::DEFAULT, TrellisWorkspace::new());
    let float = float(CodecId::T2S8, 128, ScaleMode::Unbiased);
    let mut one = [0; 128];
    one[77] = i16::MIN;
    for x in [[i16::MIN; 128], [i16::MAX; 128], one, [1; 128]] {
        let (mut block, mut back) = ([0; 34], [0; 128]);
        codec.encode(&x, -15, &mut workspace, &mut block).unwrap();
        codec.decode(&block, -15, &mut back).unwrap();
        let (input, mut expected) = (real(&x, -15), [0.0; 128]);
        let mut theirs = [0; 34];
        float.encode(&input, &mut theirs).unwrap();
        float.decode(&theirs, &mut expected).unwrap();
        let (ours, theirs) = (distance(&real(&back, -15), &input), distance(&expected, &input));
        assert!(ours <= 1.3 * theirs + 0.02 * energy(&input) + 128.0 * 4f64.powi(-15), "{ours} {theirs}");
    }
    let mut block = [9; 34];
    codec.encode(&[0_i16; 128], -15, &mut workspace, &mut block).unwrap();
    assert_eq!(block, [0; 34]);
    block = [9; 34];
    let result = codec.encode(&[i16::MAX; 128], 10, &mut workspace, &mut block);
    assert_eq!((result, block), (Err(EncodeError::OutOfRange), [0; 34]));
    codec.encode(&[i16::MAX; 128], i32::MIN, &mut workspace, &mut block).unwrap();
    assert_eq!(block, [0; 34]);
}

/// Attention of a ring of trellis codes uses the decoded values of its blocks, and its scores are dots with
/// them.
#[test]
fn a_ring_of_trellis_codes_attends_to_what_its_blocks_decode_to() {
    ring_of::<128, T2S8, 34>();
    ring_of::<64, T2S8, 18>();
    ring_of::<16, T2S8, 6>();
    ring_of::<80, T2S8, 22>();
}

fn ring_of<const D: usize, C: Code, const N: usize>() {
    use crate::fixed::{FixedCodec, RingCache};
    let (ring_codec, codec) = (FixedCodec::<D, C>::DEFAULT, FixedTrellis::<D, C>::DEFAULT);
    let vector = |seed: i32| -> [i16; D] {
        core::array::from_fn(|i| ((i as i32 + 3) * (seed * 7919 + 1237) % 16_001 - 8000) as i16)
    };
    let (mut memory, mut workspace) = ([0; 2048], TrellisWorkspace::new());
    let mut ring = RingCache::new(&ring_codec, &ring_codec, &mut memory[..4 * 2 * N], 0);
    for token in 0..4 {
        ring.push(&vector(token), -14, &vector(token + 9), -14).unwrap();
    }
    let query = vector(100);
    let (mut weights, mut values, mut total) = ([0.0; 4], [0.0; D], 0.0);
    for (token, (key, value)) in ring.slots().enumerate() {
        let (mut key_block, mut value_block) = ([0; N], [0; N]);
        codec.encode(&vector(token as i32), -14, &mut workspace, &mut key_block).unwrap();
        codec.encode(&vector(token as i32 + 9), -14, &mut workspace, &mut value_block).unwrap();
        assert_eq!(
            (key, value),
            (&key_block[..], &value_block[..]),
            "the blocks are those of the trellis codec"
        );
        let (mut k, mut v) = ([0; D], [0; D]);
        codec.decode(&key_block, -14, &mut k).unwrap();
        codec.decode(&value_block, -14, &mut v).unwrap();
        let mut same = [0; D];
        ring_codec.decode(&value_block, -14, &mut same).unwrap();
        assert_eq!(same, v, "both ways to decode");
        let dot: f64 = query.iter().zip(&k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
        weights[token] = (dot / 16_384.0 / 16_384.0 / (D as f64).sqrt()).exp();
        total += weights[token];
        for (sum, &v) in values.iter_mut().zip(&v) {
            *sum += weights[token] * f64::from(v);
        }
    }
    let mut out = [0; D];
    ring.attend(&query, -14, -14, &mut out).unwrap();
    let error: f64 = out.iter().zip(&values).map(|(&o, v)| (f64::from(o) - v / total).powi(2)).sum();
    let energy: f64 = values.iter().map(|v| (v / total).powi(2)).sum();
    assert!(error < 1e-4 * energy, "D {D}: {error} of {energy}");
}
