//! Laws for any vector of any shape: of the rotation, the scale modes and the integer codec.

use proptest::prelude::*;
use tqkv_core::code::{Code, I8, N4, S2, S3, S4, T2S8};
use tqkv_core::fixed::{FixedCodec, RingCache};
use tqkv_core::{AnyCodec, CodecId, Effort, HEAD_DIMS, Options, ScaleMode, f16};
use tqkv_tests::laws::assert_kept;
use tqkv_tests::oracle::{dot, energy};

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// A number from 2^-4 to 2^4, positive or negative.
fn even() -> impl Strategy<Value = f32> {
    (1f32..2.0, -4..4i32, any::<bool>())
        .prop_map(|(m, e, negative)| if negative { -m } else { m } * 2f32.powi(e))
}

/// Numbers, some of them zero and others far larger than the rest.
fn uneven() -> impl Strategy<Value = f32> {
    prop_oneof![6 => even(), 2 => Just(0.0), 1 => even().prop_map(|x| 100.0 * x), 1 => even().prop_map(|x| 1e-4 * x)]
}

/// A head dim, and two vectors of it.
fn vectors(number: impl Strategy<Value = f32> + Clone) -> impl Strategy<Value = [Vec<f32>; 2]> {
    prop::sample::select(&HEAD_DIMS[..14]).prop_flat_map(move |dim| {
        let vector = prop::collection::vec(number.clone(), dim);
        [vector.clone(), vector]
    })
}

fn id() -> impl Strategy<Value = CodecId> {
    prop::sample::select(CodecId::ALL)
}

fn options() -> impl Strategy<Value = Options> {
    let mode = prop::sample::select(&ScaleMode::ALL[..]);
    (any::<u64>(), mode, prop::sample::select(&Effort::ALL[..]))
        .prop_map(|(seed, mode, effort)| Options::DEFAULT.seed(seed).scale_mode(mode).effort(effort))
}

/// Head dims whose last group is half full.
fn ragged() -> impl Strategy<Value = Vec<f32>> {
    let dims: Vec<usize> = HEAD_DIMS.iter().copied().filter(|dim| dim % 32 == 16 && *dim < 512).collect();
    prop::sample::select(dims).prop_flat_map(|dim| prop::collection::vec(uneven().boxed(), dim))
}

fn times(x: &[f32], factor: f32) -> Vec<f32> {
    x.iter().map(|v| v * factor).collect()
}

proptest! {
    #![proptest_config(config(2000))]

    /// Lanes past the last coordinate have no effect, whatever the rotation leaves there.
    #[test]
    fn bytes_use_their_whole_range(x in ragged(), seed in any::<u64>()) {
        let codec = AnyCodec::new(CodecId::I8, x.len(), Options::DEFAULT.seed(seed)).unwrap();
        let mut block = vec![0; codec.block_bytes()];
        codec.encode(&x, &mut block).unwrap();
        let largest = block[2..].iter().map(|&code| (code as i8).unsigned_abs()).max();
        // A subnormal scale has fewer bits.
        let tiny = f16::from_le_bytes([block[0], block[1]]) < f16::from_f32(2.5e-4);
        prop_assert!(tiny || largest >= Some(126), "{largest:?} of 127");
    }

    #[test]
    fn a_rotation_keeps_dot_products_and_is_undone([x, y] in vectors(even().boxed()), seed in any::<u64>()) {
        let dim = x.len();
        let codec = AnyCodec::new(CodecId::S4, dim, Options::DEFAULT.seed(seed)).unwrap();
        let rotate = |x: &[f32]| {
            let mut out = vec![0.0; dim];
            codec.rotate_query(x, &mut out);
            out
        };
        let (a, b) = (rotate(&x), rotate(&y));
        let size = (energy(&x) * energy(&y)).sqrt();
        prop_assert!((dot(&a, &b) * dim as f64 - dot(&x, &y)).abs() < 1e-5 * size);
        let mut back = times(&a, dim as f32);
        codec.unrotate(&mut back);
        let error: f64 = x.iter().zip(&back).map(|(x, y)| f64::from(x - y).powi(2)).sum();
        prop_assert!(error < 1e-11 * energy(&x), "{error}");
        // A factor of two only changes exponents.
        prop_assert_eq!(rotate(&times(&x, 0.125)), times(&a, 0.125));
    }

    #[test]
    fn a_factor_of_two_changes_scales_alone(
        [x, _] in vectors(even().boxed()), id in id(), options in options(), exponent in -4..5i32,
    ) {
        let Ok(codec) = AnyCodec::new(id, x.len(), options) else { return Ok(()) };
        let round_trip = |x: &[f32]| {
            let (mut block, mut out) = (vec![0; codec.block_bytes()], vec![0.0; x.len()]);
            codec.encode(x, &mut block).unwrap();
            codec.decode(&block, &mut out).unwrap();
            out
        };
        let factor = 2f32.powi(exponent);
        prop_assert_eq!(round_trip(&times(&x, factor)), times(&round_trip(&x), factor), "{}", id.name());
    }

    #[test]
    fn a_block_keeps_what_it_promises([x, _] in vectors(uneven().boxed()), id in id(), options in options()) {
        let Ok(codec) = AnyCodec::new(id, x.len(), options) else { return Ok(()) };
        let mut block = vec![0; codec.block_bytes()];
        codec.encode(&x, &mut block).unwrap();
        assert_kept(&codec, &x, &block);
    }
}

/// A block of the integer codec, if the scale fits.
fn fixed<const D: usize, C: Code, const N: usize>(x: &[i16; D], exponent: i32, mode: ScaleMode) -> [u8; N] {
    let mut block = [0; N];
    FixedCodec::<D, C>::new(42, mode).encode(x, exponent, &mut block).unwrap();
    block
}

fn scale(block: &[u8]) -> f16 {
    f16::from_le_bytes([block[0], block[1]])
}

fn check_fixed<const D: usize, C: Code, const N: usize>(
    x: &[i16],
    mode: ScaleMode,
    exponent: i32,
) -> Result<(), TestCaseError> {
    let x: [i16; D] = core::array::from_fn(|i| x[i]);
    let (block, twice) = (fixed::<D, C, N>(&x, exponent, mode), fixed::<D, C, N>(&x, exponent + 1, mode));
    // Only down to the smallest scale with all its bits.
    if scale(&block) >= f16::MIN_POSITIVE {
        prop_assert_eq!(scale(&twice).to_f32(), 2.0 * scale(&block).to_f32(), "{}", C::ID.name());
        prop_assert_eq!(&twice[2..], &block[2..], "{}", C::ID.name());
    }
    // Decoded by the float codec, the block keeps what its scale mode promises.
    let codec = AnyCodec::new(C::ID, D, Options::DEFAULT.scale_mode(mode).effort(Effort::Fast)).unwrap();
    let real = x.map(|v| f32::from(v) * 2f32.powi(exponent));
    assert_kept(&codec, &real, &block);
    Ok(())
}

proptest! {
    #![proptest_config(config(1000))]

    #[test]
    fn integer_blocks_keep_what_those_of_floats_promise(
        x in prop::collection::vec(prop_oneof![4 => any::<i16>(), 3 => -99..99i16, 1 => Just(i16::MIN)], 128),
        mode in prop::sample::select(&ScaleMode::ALL[..]),
        exponent in -20..-6i32,
    ) {
        check_fixed::<128, S4, 66>(&x, mode, exponent)?;
        check_fixed::<80, S3, 32>(&x, mode, exponent)?;
        check_fixed::<16, S2, 6>(&x, mode, exponent)?;
        check_fixed::<96, N4, 50>(&x, mode, exponent)?;
        check_fixed::<64, I8, 66>(&x, mode, exponent)?;
        check_fixed::<64, T2S8, 18>(&x, mode, exponent)?;
    }

    #[test]
    fn attention_lies_between_the_values_that_it_sees(
        x in prop::collection::vec(any::<i16>(), 256..640), exponents in [-18..-8i32, -18..-8, -18..-8], sinks in 0..3usize,
        is_blank in prop::bool::weighted(0.1),
    ) {
        static CODEC: FixedCodec<64, I8> = FixedCodec::DEFAULT;
        let mut memory = [0; RingCache::<64, I8, I8>::bytes_for(5)];
        let mut ring = RingCache::new(&CODEC, &CODEC, &mut memory, sinks);
        let (rows, _) = x.as_chunks::<64>();
        let [key, value, query] = exponents;
        rows.windows(2).for_each(|two| ring.push(&two[0], key, &two[1], value).unwrap());
        let (mut out, mut low, mut high) = ([0; 64], [f64::INFINITY; 64], [f64::NEG_INFINITY; 64]);
        let q = if is_blank { [0; 64] } else { rows[0] };
        ring.attend(&q, query, value, &mut out).unwrap();
        let (mut sum, mut is_cut) = ([0.0; 64], [false; 64]);
        for (_, block) in ring.slots() {
            let mut row = [0; 64];
            let block: &[u8; 66] = block.try_into().unwrap();
            CODEC.decode(block, value, &mut row).unwrap();
            for (i, v) in row.into_iter().enumerate() {
                sum[i] += f64::from(v);
                // A decoded value is clamped to its range, but attention sums the value before the clamp.
                is_cut[i] |= v == i16::MAX || v == i16::MIN;
                (low[i], high[i]) = (low[i].min(f64::from(v)), high[i].max(f64::from(v)));
            }
        }
        for (i, v) in out.into_iter().enumerate().filter(|&(i, _)| !is_cut[i]) {
            // A weight is correct to one part in 3000, and 64 tokens add to a coordinate of the sum.
            prop_assert!((low[i] - 100.0..=high[i] + 100.0).contains(&f64::from(v)), "{} {v} {}", low[i], high[i]);
            // A query of zeros gives all tokens the same weight.
            let mean = sum[i] / ring.len() as f64;
            prop_assert!(!is_blank || (mean - f64::from(v)).abs() < 100.0, "{mean} {v}");
        }
    }
}
