//! Laws for arbitrary floats, and for blocks of arbitrary bytes. Every level gives the bits of the portable
//! one, or NaN where the portable one gives NaN.

use crate::common::of_each_level;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tqkv_core::{AnyCodec, CodecId, Effort, Options, ScaleMode, f16};
use tqkv_simd::page::{Attention, KeyPages, Line, SLOT_STEP, ValuePages, narrow_rows, soften, widen_rows};
use tqkv_simd::{Level, codec};

/// Shapes of every kind: ragged, with a Paley factor, with code of its own (128), with more groups than
/// registers.
const DIMS: [usize; 7] = [16, 48, 64, 80, 128, 256, 576];

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Tests a law on `cases` inputs.
fn hold<S: Strategy>(cases: u32, inputs: S, law: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    if let Err(error) = TestRunner::new(config(cases)).run(&inputs, law) {
        panic!("{error}");
    }
}

/// Any bits, but more often usual numbers.
fn float() -> impl Strategy<Value = f32> {
    let bits = any::<u32>().prop_map(f32::from_bits);
    let edge =
        prop::sample::select(vec![0.0, -0.0, 1e-40, 65504.0, 65520.0, f32::MAX, f32::NAN, f32::INFINITY]);
    prop_oneof![20 => -4f32..4.0, 1 => bits, 1 => edge]
}

/// A codec and `count` vectors for it.
fn vectors(count: usize, number: BoxedStrategy<f32>) -> impl Strategy<Value = (AnyCodec, Vec<f32>)> {
    let options = (prop::sample::select(&ScaleMode::ALL[..]), prop::sample::select(&Effort::ALL[..]))
        .prop_map(|(mode, effort)| Options::DEFAULT.scale_mode(mode).effort(effort));
    // Codecs of one width ignore weights.
    let weights = prop::array::uniform4(1e-4f32..100.0);
    let codec = (prop::sample::select(CodecId::ALL), prop::sample::select(&DIMS[..]), options, weights)
        .prop_filter_map("no such codec", |(id, dim, options, weights)| {
            AnyCodec::new(id, dim, options).ok().map(|codec| codec.weighted(weights))
        });
    codec
        .prop_flat_map(move |codec| (Just(codec), prop::collection::vec(number.clone(), count * codec.dim())))
}

fn same(got: &[f32], want: &[f32]) -> bool {
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    got.len() == want.len() && got.iter().zip(want).all(same)
}

fn what(level: Level, codec: &AnyCodec) -> String {
    format!("{} {} dim {} {:?}", level.name().name(), codec.id().name(), codec.dim(), codec.options())
}

of_each_level!(any_vectors_are_encoded_and_refused_alike);

fn any_vectors_are_encoded_and_refused_alike(level: Level) {
    hold(2000, vectors(5, float().boxed()), |(codec, x)| {
        let run = |level: Level| {
            let mut blocks = vec![0xa5; 5 * codec.block_bytes()];
            (codec::encode(level, &codec, &x, &mut blocks), blocks)
        };
        prop_assert_eq!(&run(level), &run(Level::Portable), "{}", what(level, &codec));
        Ok(())
    });
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 64..512)
}

of_each_level!(any_blocks_are_read_alike);

fn any_blocks_are_read_alike(level: Level) {
    hold(2000, (vectors(2, float().boxed()), bytes()), |((codec, x), bytes)| {
        let blocks: Vec<u8> = bytes.into_iter().cycle().take(2 * codec.block_bytes()).collect();
        let run = |level: Level| {
            let (mut decoded, mut queries, mut scores) = (vec![0.5; x.len()], vec![0.5; x.len()], [0.5; 2]);
            let result = codec::decode(level, &codec, &blocks, &mut decoded);
            codec::rotate_queries(level, &codec, &x, &mut queries);
            codec::scores(level, &codec, &queries[..codec.dim()], &blocks, &mut scores);
            let mut sums = queries[..codec.dim()].to_vec();
            codec::accumulate(level, &codec, &x[..2], &blocks, &mut sums);
            codec::unrotate(level, &codec, &mut sums);
            (result, [decoded, queries, scores.to_vec(), sums].concat())
        };
        let ((want_result, want), (got_result, got)) = (run(Level::Portable), run(level));
        prop_assert_eq!(got_result, want_result, "{}", what(level, &codec));
        prop_assert!(same(&got, &want), "{}", what(level, &codec));
        Ok(())
    });
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn any_numbers_become_f16_and_back_as_the_standard_has_it(
        x in prop::collection::vec(float(), 80), bits in prop::collection::vec(any::<u16>(), 80),
    ) {
        let halves: Vec<f32> = x.iter().map(|v| f16::from_f32(*v).to_f32()).collect();
        let wide: Vec<f32> = bits.iter().map(|bits| f16::from_bits(*bits).to_f32()).collect();
        for level in Level::available() {
            let (mut narrow, mut back) = (vec![0; 80], vec![0.0; 80]);
            narrow_rows(level, &x, &mut narrow);
            widen_rows(level, &narrow, &mut back);
            prop_assert!(same(&back, &halves), "{level:?}: {x:?}");
            widen_rows(level, &bits, &mut back);
            prop_assert!(same(&back, &wide), "{level:?}: {bits:?}");
        }
    }
}

of_each_level!(any_logits_become_weights_alike);

fn any_logits_become_weights_alike(level: Level) {
    hold(2000, (prop::collection::vec(float(), 120), any::<bool>()), |(mut x, finite)| {
        if finite {
            x.iter_mut().filter(|v| !v.is_finite()).for_each(|v| *v = -3.0);
        }
        let run = |level: Level| {
            let (mut weights, mut state) = (x.clone(), [Attention::EMPTY; 3]);
            let factors = soften(level, &mut weights, &mut state);
            (weights, [factors.to_vec(), state.iter().flat_map(|s| [s.max, s.sum]).collect()].concat(), state)
        };
        let ((weights, rest, state), (got, others, _)) = (run(Level::Portable), run(level));
        prop_assert!(same(&got, &weights) && same(&others, &rest), "{level:?}: {x:?}");
        if finite {
            prop_assert!(weights.iter().all(|w| (0.0..=1.0).contains(w)));
            for (weights, state) in weights.chunks_exact(40).zip(state) {
                let sum: f32 = weights.iter().sum();
                prop_assert!((1.0..=40.0).contains(&state.sum) && (sum - state.sum).abs() < 1e-4 * sum);
            }
        }
        Ok(())
    });
}

/// No encoder writes scales that are not finite, and sums of such blocks promise nothing.
fn with_finite_scales(codec: &AnyCodec, block: &mut [u8]) {
    let stride = codec.block_bytes() / if codec.id().layout().has_one_scale() { 1 } else { codec.dim() / 32 };
    for scale in block.chunks_mut(stride).filter(|scale| scale[1] & 0x7c == 0x7c) {
        scale[1] &= 0xbf;
    }
}

of_each_level!(pages_of_any_blocks_in_any_order_are_read_alike);

fn pages_of_any_blocks_in_any_order_are_read_alike(level: Level) {
    let vectors = vectors(3, (-4f32..4.0).boxed());
    let order = Just((0..SLOT_STEP).collect::<Vec<_>>()).prop_shuffle();
    let inputs = (vectors, bytes(), order, 1..SLOT_STEP, (0..SLOT_STEP, 0..SLOT_STEP));
    hold(600, inputs, |((codec, x), bytes, order, written, (from, count))| {
        let (Some(keys), Some(values)) =
            (KeyPages::new(&codec, SLOT_STEP), ValuePages::new(&codec, SLOT_STEP))
        else {
            return Ok(());
        };
        let (mut key_page, mut value_page) =
            (vec![Line::ZERO; keys.lines()], vec![Line::ZERO; values.lines()]);
        let block_of = |i: usize| {
            let bytes = bytes.iter().cycle().skip(i).map(|b| b ^ i as u8);
            let mut block: Vec<u8> = bytes.take(codec.block_bytes()).collect();
            with_finite_scales(&codec, &mut block);
            block
        };
        let blocks: Vec<Vec<u8>> = (0..written).map(block_of).collect();
        for (slot, block) in order.iter().zip(&blocks) {
            keys.write(&mut key_page, *slot, block);
            values.write(&mut value_page, *slot, block);
        }
        for (slot, want) in order.iter().zip(&blocks) {
            let mut block = vec![0; codec.block_bytes()];
            keys.read(&key_page, *slot, &mut block);
            prop_assert_eq!(&block, want);
            values.read(&value_page, *slot, &mut block);
            prop_assert_eq!(&block, want);
        }
        let count = count.min(SLOT_STEP - from);
        let run = |level: Level| {
            let (mut logits, mut sums) = (vec![0.5; 3 * count], vec![0.25; x.len()]);
            keys.scores(level, &key_page, from, &keys.queries(level, &x), &[], &mut logits);
            let weights: Vec<f32> = x.iter().copied().cycle().take(3 * count).collect();
            values.accumulate(level, &value_page, from, &weights, &[], &mut sums);
            [logits, sums].concat()
        };
        prop_assert!(same(&run(level), &run(Level::Portable)), "{}", what(level, &codec));
        Ok(())
    });
}
