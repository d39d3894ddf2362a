//! Weights of values as bytes: small ones beside a large one are not lost, and errors do not add up.

use crate::common::{Random, levels};
use crate::pages::{SLOTS, blocks, relative_rms, values};
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::Level;
use tqkv_simd::page::{ValuePages, ValuePart};

/// A codec of each kernel whose weights are bytes.
const CODECS: [CodecId; 6] = [CodecId::S1, CodecId::S2, CodecId::S3, CodecId::S4, CodecId::S5, CodecId::T2];

fn codec(id: CodecId) -> AnyCodec {
    AnyCodec::new(id, 128, Options::DEFAULT).unwrap()
}

/// The weighted sum by the page kernels, and by plain arithmetic on the same blocks.
fn sums(level: Level, codec: &AnyCodec, blocks: &[u8], weights: &[f32]) -> [Vec<f32>; 2] {
    let (pages, page) = values(codec, blocks);
    let (mut fast, mut exact) = (vec![0.0; codec.dim()], vec![0.0; codec.dim()]);
    let (first, second) = weights.split_at(SLOTS);
    let part = |weights| ValuePart { pages: &pages, page: &page, from: 0, weights, next: &[] };
    ValuePages::accumulate_parts(level, &[part(first), part(second)], &mut fast);
    codec.accumulate(first, blocks, &mut exact);
    codec.accumulate(second, blocks, &mut exact);
    [fast, exact]
}

/// All tokens have the same value, so the result shows the sum of the weights. Rounded one by one, weights
/// below half a step would be 0: the error would be up to .2.
#[test]
fn small_weights_beside_a_large_one_keep_their_sum() {
    for id in CODECS {
        let codec = codec(id);
        let own = blocks(&codec, &mut Random(5));
        let same = own[..codec.block_bytes()].repeat(SLOTS);
        for small in [1e-4, 0.001, 0.0019, 0.002, 0.01] {
            let mut weights = [small; 2 * SLOTS];
            weights[17] = 1.0;
            for level in levels() {
                let [fast, exact] = sums(level, &codec, &same, &weights);
                let error = relative_rms(&fast, &exact);
                assert!(error < 1.0 / 254.0, "{} {small}: {error}", id.name());
            }
        }
    }
}

/// The worst case: one token has two thirds of the weight, and the others have half a step each.
#[test]
fn a_flat_tail_beside_a_large_weight_has_a_small_error() {
    for id in CODECS {
        let codec = codec(id);
        let mut weights = [0.5 / 254.0; 2 * SLOTS];
        weights[17] = 0.5;
        let [fast, exact] = sums(Level::Portable, &codec, &blocks(&codec, &mut Random(6)), &weights);
        let error = relative_rms(&fast, &exact);
        assert!(error < 0.05, "{}: {error}", id.name());
    }
}

/// One token has half of the weight, and 65,536 others have the rest. Each sum of two pages has its own step,
/// so the errors of the pages do not add up.
#[test]
fn half_of_the_weight_on_one_token_of_many_leaves_the_mean_of_the_others() {
    const TIMES: usize = 512;
    let codec = codec(CodecId::S4);
    let blocks = blocks(&codec, &mut Random(7));
    let (mut state, mut exact) = (vec![0.0f64; codec.dim()], vec![0.0f64; codec.dim()]);
    let mut random = Random(8);
    let mut add = |weights: &[f32]| {
        let [fast, own] = sums(Level::Portable, &codec, &blocks, weights);
        for (sums, part) in [(&mut state, fast), (&mut exact, own)] {
            sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += f64::from(part));
        }
    };
    for time in 0..TIMES {
        let mut weights: Vec<f32> = (0..2 * SLOTS).map(|_| 1.0 + 0.2 * random.unit()).collect();
        if time == TIMES / 2 {
            weights[3] = (TIMES * 2 * SLOTS) as f32;
        }
        add(&weights);
    }
    let narrow = |sums: &[f64]| sums.iter().map(|&sum| sum as f32).collect::<Vec<_>>();
    let error = relative_rms(&narrow(&state), &narrow(&exact));
    // A token of the page of the large weight may get a whole step where it should have none.
    assert!(error < 1.5 / 254.0, "{error}");
}
