//! `core/examples/reference.rs`, which porters read, against the golden bytes and against the codec.

#[path = "../../examples/reference.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example, of which a test takes the functions")]
mod plain;

use plain::{Codec, D, Mode};
use tqkv_core::{AnyCodec, CodecId, Effort, Options, ScaleMode};
use tqkv_tests::inputs::{Gaussian, edge_cases};

const CODECS: [(Codec, CodecId); 2] = [(Codec::S4, CodecId::S4), (Codec::T2, CodecId::T2)];
const MODES: [(Mode, ScaleMode); 4] = [
    (Mode::Raw, ScaleMode::Raw),
    (Mode::Preserving, ScaleMode::Preserving),
    (Mode::Unbiased, ScaleMode::Unbiased),
    (Mode::Mmse, ScaleMode::Mmse),
];

fn codec(id: CodecId, mode: ScaleMode, seed: u64) -> AnyCodec {
    AnyCodec::new(id, D, Options::DEFAULT.seed(seed).scale_mode(mode)).unwrap()
}

fn vector(x: &[f32]) -> &[f32; D] {
    x.try_into().unwrap()
}

/// Random directions, and vectors that break codecs.
fn vectors() -> Vec<Vec<f32>> {
    let mut gaussian = Gaussian::new(11);
    let mut all: Vec<Vec<f32>> = (0..100).map(|_| gaussian.vector(D)).collect();
    all.extend(edge_cases(D).into_iter().map(|(_, x)| x));
    all.extend([vec![f32::NAN; D], vec![1e30; D], vec![60_000.0; D]]);
    all
}

#[test]
fn its_blocks_are_the_golden_ones() {
    let golden = include_str!("../../../tests/vectors/blocks.txt");
    let x = tqkv_tests::golden::painted(D, D as u64);
    let mut seen = 0;
    for line in golden.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, "128", seed, mode, effort, want] = words[..] else { continue };
        let Some((codec, _)) = CODECS.into_iter().find(|(_, id)| id.name() == name) else { continue };
        if effort != Effort::default().name() {
            continue;
        }
        let (mode, _) = MODES.into_iter().find(|(_, of)| of.name() == mode).unwrap();
        let block = plain::encode(codec, mode, seed.parse().unwrap(), vector(&x)).unwrap();
        let hex: String = block.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, want, "{name} {mode:?}");
        seen += 1;
    }
    assert!(seen >= 6, "only {seen} golden blocks");
}

#[test]
fn its_blocks_are_those_of_the_codec() {
    for (of, id) in CODECS {
        for (mode, scale_mode) in MODES {
            let codec = codec(id, scale_mode, 5);
            for (i, x) in vectors().iter().enumerate() {
                let mut want = vec![0; codec.block_bytes()];
                let want = codec.encode(x, &mut want).ok().map(|()| want);
                assert_eq!(plain::encode(of, mode, 5, vector(x)), want, "{of:?} {mode:?}, vector {i}");
            }
        }
    }
}

#[test]
fn its_scores_sums_and_vectors_are_those_of_the_codec() {
    for (of, id) in CODECS {
        let codec = codec(id, ScaleMode::Unbiased, 42);
        let (mut gaussian, mut acc, mut sums) = (Gaussian::new(3), [0.0; D], [0.0; D]);
        let query = gaussian.vector(D);
        let mut rotated = [0.0; D];
        codec.rotate_query(&query, &mut rotated);
        assert_eq!(plain::rotate_query(42, vector(&query)), rotated);
        for _ in 0..50 {
            let (mut block, mut score, mut out) = (vec![0; codec.block_bytes()], [0.0], [0.0; D]);
            codec.encode(&gaussian.vector(D), &mut block).unwrap();
            codec.scores(&rotated, &block, &mut score);
            assert_eq!(plain::score(of, &rotated, &block).unwrap(), score[0], "{of:?}");
            let weight = gaussian.value();
            codec.accumulate(&[weight], &block, &mut acc);
            plain::add_weighted(of, weight, &block, &mut sums).unwrap();
            codec.decode(&block, &mut out).unwrap();
            // A decoder may multiply in another order.
            near(&plain::decode(of, 42, &block).unwrap(), &out);
        }
        assert_eq!(sums, acc, "{of:?}");
        codec.unrotate(&mut acc);
        near(&plain::rotate_back(42, &sums), &acc);
    }
}

fn near(a: &[f32], b: &[f32]) {
    let largest = b.iter().fold(0.0, |most, v| f32::max(most, v.abs()));
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= 1e-6 * largest, "{a} {b}");
    }
}
