//! The integer codec compared with the float codec, which defines it up to rounding.

use super::math::{Real, exp2_fraction, from_f16, reciprocal_root, to_f16};
use super::rotation::FixedRotation;
use super::*;
use crate::code::{Code, I8, N2, N3, N4, S2, S3, S4, S5};
use crate::{AnyCodec, BlockView, CodecId, Effort, EncodeError, Options, ScaleMode};
use half::f16;

mod exact;
mod trellis;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Roughly normal, with unit variance.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next() as f64 / 2_147_483_648.0).sum::<f64>() - 6.0
    }

    fn wide<const D: usize>(&mut self) -> [i16; D] {
        core::array::from_fn(|_| (self.normal() * 6_000.0) as i16)
    }

    fn narrow<const D: usize>(&mut self) -> [i8; D] {
        core::array::from_fn(|_| (self.normal() * 28.0) as i8)
    }
}

fn float(id: CodecId, dim: usize, scale_mode: ScaleMode) -> AnyCodec {
    AnyCodec::new(id, dim, Options { scale_mode, effort: Effort::Fast, ..Options::DEFAULT }).unwrap()
}

fn real<T: Sample, const D: usize>(x: &[T; D], exponent: i32) -> [f32; D] {
    x.map(|v| (f64::from(v.widen()) * 2f64.powi(exponent)) as f32)
}

fn energy(x: &[f32]) -> f64 {
    x.iter().map(|&v| f64::from(v).powi(2)).sum()
}

fn distance(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum()
}

/// How often codes agree, and the squared errors of both paths after the float decoder.
#[derive(Default, Debug)]
struct Comparison {
    same: f64,
    ours: f64,
    theirs: f64,
    own_decoder: f64,
}

fn compare<T: Sample, const D: usize, C: Code, const N: usize>(
    mode: ScaleMode,
    rounds: usize,
    mut draw: impl FnMut() -> [T; D],
) -> Comparison {
    let (fixed, float) = (FixedCodec::<D, C>::new(42, mode), float(FixedCodec::<D, C>::ID, D, mode));
    let (mut result, mut energy_sum) = (Comparison::default(), 0.0);
    for round in 0..rounds {
        let exponent = round as i32 % 7 - 15;
        let x = draw();
        let (mut ours, mut theirs) = ([0; N], [0; N]);
        let (mut back, mut integers) = ([0.0; D], [0; D]);
        fixed.encode(&x, exponent, &mut ours).unwrap();
        let input = real(&x, exponent);
        float.encode(&input, &mut theirs).unwrap();
        energy_sum += energy(&input);
        let view = |block| BlockView::new(float.id(), D, block).unwrap();
        result.same += view(&ours).codes().zip(view(&theirs).codes()).filter(|(a, b)| a == b).count() as f64;
        float.decode(&theirs, &mut back).unwrap();
        result.theirs += distance(&input, &back);
        float.decode(&ours, &mut back).unwrap();
        result.ours += distance(&input, &back);
        fixed.decode(&ours, exponent, &mut integers).unwrap();
        result.own_decoder += distance(&input, &real(&integers, exponent));
    }
    result.same /= (rounds * D) as f64;
    result.ours /= energy_sum;
    result.theirs /= energy_sum;
    result.own_decoder /= energy_sum;
    std::println!("{:?} D={D} {mode:?} {result:?}", FixedCodec::<D, C>::ID);
    result
}

#[test]
fn codes_equal_the_float_codes_for_i16() {
    let mut random = Random(1);
    let result = compare::<_, 128, S4, 66>(ScaleMode::Unbiased, 4000, || random.wide());
    assert!(result.same >= 0.999, "{result:?}");
    assert!((result.ours / result.theirs - 1.0).abs() < 1e-3, "{result:?}");
    assert!(result.own_decoder < 1.001 * result.ours, "{result:?}");
}

#[test]
fn codes_equal_the_float_codes_for_i8() {
    let mut random = Random(2);
    let result = compare::<i8, 128, S4, 66>(ScaleMode::Unbiased, 4000, || random.narrow());
    assert!(result.same >= 0.999, "{result:?}");
    assert!((result.ours / result.theirs - 1.0).abs() < 1e-3, "{result:?}");
}

fn check_codec<const D: usize, C: Code, const N: usize>(mode: ScaleMode) {
    let mut random = Random(D as u64);
    // The number of coordinates is the same for small and large head dims. With few coordinates one code
    // decides.
    let result = compare::<_, D, C, N>(mode, 40.max(16_384 / D), || random.wide());
    assert!(result.same >= 0.997, "{result:?}");
    // One scale that rounds to the other f16 moves the mean of 40 vectors by 1e-4.
    assert!((result.ours / result.theirs - 1.0).abs() < 4e-3, "{result:?}");
    // Levels are the same, samples are rounded.
    assert!(result.own_decoder < 1.001 * result.ours + 1e-6, "{result:?}");
}

#[test]
fn all_codecs() {
    macro_rules! each {
        ($($dim:literal: $($codec:ident),*;)*) => {$($(
            check_codec::<$dim, $codec, { FixedCodec::<$dim, $codec>::BLOCK_BYTES }>(ScaleMode::Unbiased);
        )*)*};
    }
    each! {
        128: S2, S3, S4, S5, I8, N2, N3, N4;
        80: S2, S3, S4, S5, I8, N2, N3, N4;
        512: S2, S5, I8, N4;
    }
}

#[test]
fn all_scale_modes() {
    for mode in ScaleMode::ALL {
        check_codec::<128, S4, 66>(mode);
        check_codec::<128, S2, 34>(mode);
        check_codec::<64, N3, 26>(mode);
        check_codec::<576, S3, 218>(mode);
    }
}

#[test]
fn all_head_dims() {
    macro_rules! each {
        ($($dim:literal)*) => {{
            $(check_codec::<$dim, S4, { FixedCodec::<$dim, S4>::BLOCK_BYTES }>(ScaleMode::Unbiased);)*
            assert_eq!(crate::HEAD_DIMS, [$($dim),*]);
        }};
    }
    each!(16 32 48 64 80 96 112 128 144 160 192 224 256 288 320 384 448 512 576 640 768 896 1024);
}

/// Inputs chosen to break things. Debug assertions check every addition and product.
fn hard<const D: usize>() -> impl Iterator<Item = [i16; D]> {
    let signs = FixedRotation::<D>::new(42).signs;
    let walsh = move |row: usize, scale: i32| -> [i16; D] {
        core::array::from_fn(|i| {
            let sign = if (row & i).count_ones().is_multiple_of(2) { 1 } else { -1 };
            (scale * sign * i32::from(signs[i])).clamp(-32_768, 32_767) as i16
        })
    };
    let one =
        |at: usize, value: i16| -> [i16; D] { core::array::from_fn(|i| if i == at { value } else { 0 }) };
    let flat = [i16::MIN, i16::MAX, -1, 1, 0].map(|v| [v; D]);
    flat.into_iter()
        .chain((0..D).map(move |row| walsh(row, 32_768)))
        .chain((0..D).map(move |row| walsh(row, 1)))
        .chain((0..D).flat_map(move |at| [one(at, i16::MIN), one(at, i16::MAX), one(at, 1), one(at, -1)]))
}

fn check_hard<const D: usize, C: Code, const N: usize>() {
    for mode in ScaleMode::ALL {
        let float = float(FixedCodec::<D, C>::ID, D, mode);
        let codec = FixedCodec::<D, C>::new(42, mode);
        for (number, x) in hard::<D>().enumerate() {
            let (mut block, mut back, mut integers) = ([1; N], [0.0; D], [0; D]);
            codec.encode(&x, -15, &mut block).unwrap();
            let input = real(&x, -15);
            let mut expected = [0; N];
            float.encode(&input, &mut expected).unwrap();
            float.decode(&expected, &mut back).unwrap();
            let expected = distance(&input, &back);
            float.decode(&block, &mut back).unwrap();
            let ours = distance(&input, &back);
            codec.decode(&block, -15, &mut integers).unwrap();
            let rounding = D as f64 * 2f64.powi(-30);
            let close = (ours - expected).abs() <= 0.03 * (expected + energy(&input)) + rounding;
            assert!(close, "{mode:?} {number}: {ours} {expected} {}", energy(&input));
            if energy(&input) == 0.0 {
                assert_eq!((block, integers), ([0; N], [0; D]));
            }
            // The two decoders differ by the rounding of levels and samples.
            let difference =
                distance(&real(&integers, -15), &back.map(|v| v.clamp(-1.0, 32_767.0 / 32_768.0)));
            assert!(
                difference <= 0.02 * energy(&back) + rounding,
                "{mode:?} {number} {difference} {}",
                energy(&back)
            );
        }
    }
}

#[test]
fn hard_inputs_do_not_overflow() {
    check_hard::<128, S4, 66>();
    check_hard::<128, S2, 34>();
    check_hard::<128, I8, 130>();
    check_hard::<16, S5, 12>();
    check_hard::<80, S2, 22>();
    check_hard::<256, N4, 130>();
}

#[test]
fn hard_inputs_do_not_overflow_at_the_largest_head_dims() {
    check_hard::<576, S4, 290>();
    check_hard::<1024, S3, 386>();
}

/// Vectors between a single rotated coordinate and noise. The unbiased scale is bounded for the first ones.
fn check_bound<C: Code, const N: usize>() {
    let float = float(C::ID, 128, ScaleMode::Unbiased);
    let signs = FixedRotation::<128>::new(42).signs;
    let mut random = Random(17);
    for step in 0..48 {
        let noise = 4f64.powf(f64::from(step) / 8.0);
        let x: [i16; 128] =
            core::array::from_fn(|i| (6000.0 * f64::from(signs[i]) + noise * random.normal()) as i16);
        let (mut ours, mut theirs, mut back) = ([0; N], [0; N], [0.0; 128]);
        FixedCodec::<128, C>::DEFAULT.encode(&x, -15, &mut ours).unwrap();
        let input = real(&x, -15);
        float.encode(&input, &mut theirs).unwrap();
        let scale = |block: &[u8]| f16::from_le_bytes([block[0], block[1]]).to_f64();
        assert!(
            (scale(&ours) / scale(&theirs) - 1.0).abs() < 3e-3,
            "{:?} {step}: {} {}",
            C::ID,
            scale(&ours),
            scale(&theirs)
        );
        float.decode(&ours, &mut back).unwrap();
        assert!(energy(&back) < 4.02 * energy(&input), "{:?} {step}", C::ID);
    }
}

#[test]
fn a_vector_decodes_to_at_most_four_times_its_energy() {
    check_bound::<S2, 34>();
    check_bound::<S4, 66>();
    check_bound::<S5, 82>();
    check_bound::<N3, 50>();
}

#[test]
fn out_of_range_scales() {
    let codec = FixedCodec::<64, S4>::DEFAULT;
    let mut block = [7; 34];
    assert_eq!(codec.encode(&[i16::MAX; 64], 0, &mut block), Err(EncodeError::OutOfRange));
    assert_eq!(block, [0; 34]);
    for exponent in [i32::MIN, -60, -50] {
        assert_eq!(codec.encode(&[i16::MAX; 64], exponent, &mut block), Ok(()));
        assert_eq!(block, [0; 34]);
    }
    assert_eq!(codec.encode(&[i16::MAX; 64], i32::MAX, &mut block), Err(EncodeError::OutOfRange));
    let (codec, mut block) = (FixedCodec::<64, I8>::DEFAULT, [7; 66]);
    assert_eq!(codec.encode(&[i16::MAX; 64], 5, &mut block), Err(EncodeError::OutOfRange));
    assert_eq!(block, [0; 66]);
}

#[test]
fn damaged_blocks_decode_to_something() {
    fn check<const D: usize, C: Code, const N: usize>() {
        let (codec, mut random) = (FixedCodec::<D, C>::DEFAULT, Random(5));
        let query = codec.query(&random.wide::<D>(), -15);
        let mut attention = Attention::<D>::new();
        for round in 0..3000 {
            let mut block = [0; N];
            block.fill_with(|| random.next() as u8);
            if round % 5 == 0 {
                block[2..].fill(0x80);
            }
            let finite = f16::from_le_bytes([block[0], block[1]]).is_finite();
            let (exponent, mut out) = (random.next() as i32 % 80 - 40, [0; D]);
            assert_eq!(codec.decode(&block, exponent, &mut out).is_ok(), finite);
            match codec.score(&query, &block) {
                Ok(score) => attention.add(&codec, score, &block).unwrap(),
                Err(_) => assert!(!finite && attention.add(&codec, 0, &block).is_err()),
            }
        }
        attention.finish(&codec, -15, &mut [0; D]);
    }
    check::<128, S4, 66>();
    check::<128, S5, 82>();
    check::<128, I8, 130>();
    check::<256, I8, 258>();
    check::<96, S3, 38>();
}

#[test]
fn scores_and_attention_follow_the_float_path() {
    fn check<const D: usize, K: Code, V: Code, const NK: usize, const NV: usize>(
        tokens: usize,
        sharpness: f64,
    ) {
        let (keys, values) = (FixedCodec::<D, K>::DEFAULT, FixedCodec::<D, V>::DEFAULT);
        let (float_keys, float_values) = (
            float(FixedCodec::<D, K>::ID, D, ScaleMode::Unbiased),
            float(FixedCodec::<D, V>::ID, D, ScaleMode::Unbiased),
        );
        let mut random = Random(D as u64 + 9);
        let q: [i16; D] = core::array::from_fn(|_| (random.normal() * sharpness) as i16);
        let (query, q) = (keys.query(&q, -12), real(&q, -12));
        let mut attention = Attention::<D>::new();
        let (mut weights, mut expected) = (0.0, [0.0_f64; D]);
        let mut rotated = [0.0; D];
        float_keys.rotate_query(&q, &mut rotated);
        for _ in 0..tokens {
            let (mut key, mut value, mut back) = ([0; NK], [0; NV], [0.0; D]);
            keys.encode(&random.wide::<D>(), -12, &mut key).unwrap();
            values.encode(&random.wide::<D>(), -15, &mut value).unwrap();
            let score = keys.score(&query, &key).unwrap();
            let mut exact = [0.0];
            float_keys.scores(&rotated, &key, &mut exact);
            let exact = f64::from(exact[0]) / (D as f64).sqrt();
            let scale = (energy(&q) * D as f64).sqrt() / D as f64;
            assert!((f64::from(score) / 65_536.0 - exact).abs() < 0.05 * scale + 2e-3, "{score} {exact}");
            attention.add(&values, score, &value).unwrap();
            float_values.decode(&value, &mut back).unwrap();
            let weight = (f64::from(score) / 65_536.0).exp();
            weights += weight;
            for (sum, v) in expected.iter_mut().zip(back) {
                *sum += weight * f64::from(v);
            }
        }
        let mut out = [0; D];
        attention.finish(&values, -15, &mut out);
        let expected = expected.map(|v| (v / weights) as f32);
        let error = distance(&real(&out, -15), &expected) / energy(&expected);
        std::println!("attention D={D} {tokens} tokens: relative squared error {error:.2e}");
        assert!(error < 3e-4, "{error}");
    }
    check::<128, S4, S4, 66, 66>(64, 1000.0);
    check::<128, S4, S4, 66, 66>(3000, 100.0);
    check::<128, I8, I8, 130, 130>(64, 8000.0);
    check::<80, S3, N4, 32, 42>(64, 1000.0);
    check::<576, S4, S2, 290, 146>(64, 500.0);
}

#[test]
fn nothing_attended_is_zero() {
    let mut out = [1; 64];
    Attention::<64>::new().finish(&FixedCodec::<64, S4>::DEFAULT, -15, &mut out);
    assert_eq!(out, [0; 64]);
}

#[test]
fn f16_packing_equals_the_half_crate() {
    for bits in 0..=u16::MAX {
        let value = f16::from_bits(bits);
        match from_f16(bits) {
            Some((significand, octave)) => {
                assert_eq!(f64::from(significand) * 2f64.powi(octave), value.to_f64());
                if significand > 0 {
                    assert_eq!(to_f16(Real { mantissa: significand as u32, exponent: octave }), Ok(bits));
                }
            }
            None => assert!(!value.is_finite()),
        }
    }
    let mut random = Random(3);
    for _ in 0..400_000 {
        let mantissa = (random.next() as u32 & 0xff_ffff) >> (random.next() % 24);
        let value = Real { mantissa, exponent: random.next() as i32 % 60 - 50 };
        let expected = f16::from_f32(mantissa as f32 * 2f32.powi(value.exponent));
        match to_f16(value) {
            Ok(bits) => assert_eq!(bits, expected.to_bits(), "{value:?}"),
            Err(_) => assert!(expected.is_infinite(), "{value:?}"),
        }
    }
}

#[test]
fn roots_and_powers_are_within_their_stated_errors() {
    let mut worst = 0.0_f64;
    for i in 0..3_000_000_u64 {
        let m = ((1 << 30) + i * 1073) as u32;
        let exact = 2f64.powi(30) / (f64::from(m) / 2f64.powi(32)).sqrt();
        worst = worst.max((f64::from(reciprocal_root(m)) / exact - 1.0).abs());
    }
    std::println!("reciprocal root: {worst:.2e}");
    assert!(worst < 2f64.powi(-26), "{worst}");
    let mut worst = 0.0_f64;
    for fraction in 0..65_536 {
        let exact = 32_768.0 * (f64::from(fraction) / 65_536.0).exp2();
        worst = worst.max((f64::from(exp2_fraction(fraction)) / exact - 1.0).abs());
    }
    std::println!("power of two: {worst:.2e}");
    assert!(worst < 3e-4, "{worst}");
}

static KEYS: FixedCodec<64, S4> = FixedCodec::DEFAULT;
static VALUES: FixedCodec<64, S3> = FixedCodec::DEFAULT;
type Ring<'a> = RingCache<'a, 64, S4, S3>;
const SLOT: usize = Ring::SLOT_BYTES;

fn ring(memory: &mut [u8], sinks: usize) -> Ring<'_> {
    RingCache::new(&KEYS, &VALUES, memory, sinks)
}

fn token(number: usize) -> [i16; 64] {
    Random(number as u64).wide()
}

/// The token number of each key.
fn keys_held(ring: &Ring<'_>, up_to: usize) -> std::vec::Vec<usize> {
    let block = |number: usize| {
        let mut block = [0; 34];
        KEYS.encode(&token(number), -15, &mut block).unwrap();
        block
    };
    ring.slots().map(|(key, _)| (0..up_to).find(|&n| block(n) == key).unwrap()).collect()
}

#[test]
fn a_full_ring_keeps_its_sinks_and_the_newest_tokens() {
    let mut memory = [0xa5; 8 * SLOT + 5];
    let mut ring = ring(&mut memory, 3);
    assert!(ring.is_empty());
    assert_eq!(ring.capacity(), 8);
    for n in 0..21 {
        ring.push(&token(n), -15, &token(n), -15).unwrap();
        assert_eq!(ring.len(), (n + 1).min(8));
        let mut held = keys_held(&ring, 21);
        held.sort_unstable();
        let expected: std::vec::Vec<_> =
            if n < 8 { (0..=n).collect() } else { (0..3).chain(n - 4..=n).collect() };
        assert_eq!(held, expected);
    }
    ring.clear();
    assert_eq!((ring.len(), ring.capacity()), (0, 8));
    ring.push(&token(5), -15, &token(5), -15).unwrap();
    assert_eq!(keys_held(&ring, 21), [5]);
}

#[test]
fn a_failed_push_leaves_no_half_token() {
    let mut memory = [0; 2 * SLOT];
    let mut ring = ring(&mut memory, 0);
    ring.push(&token(1), -15, &token(1), -15).unwrap();
    assert_eq!(ring.push(&token(2), -15, &[i16::MAX; 64], 1), Err(EncodeError::OutOfRange));
    assert_eq!(keys_held(&ring, 4), [1]);
    ring.push(&token(2), -15, &token(2), -15).unwrap();
    assert_eq!(ring.push(&token(3), -15, &[i16::MAX; 64], 1), Err(EncodeError::OutOfRange));
    assert_eq!(ring.slots().next().unwrap(), (&[0; 34][..], &[0; 26][..]));
    ring.push(&token(3), -15, &token(3), -15).unwrap();
    assert_eq!(keys_held(&ring, 4), [3, 2]);
}

#[test]
fn a_ring_without_room_stays_empty() {
    let mut memory = [0; SLOT - 1];
    let mut ring = ring(&mut memory, 4);
    ring.push(&token(1), -15, &token(1), -15).unwrap();
    assert!(ring.is_empty());
    let mut out = [1; 64];
    ring.attend(&token(2), -12, -15, &mut out).unwrap();
    assert_eq!(out, [0; 64]);
}

#[test]
fn one_token_comes_back() {
    let mut memory = [0; SLOT];
    let mut ring = ring(&mut memory, 9);
    ring.push(&token(1), -15, &token(1), -15).unwrap();
    ring.push(&token(2), -15, &token(2), -15).unwrap();
    let (mut out, mut block, mut expected) = ([0; 64], [0; 26], [0; 64]);
    ring.attend(&token(3), -12, -15, &mut out).unwrap();
    VALUES.encode(&token(2), -15, &mut block).unwrap();
    VALUES.decode(&block, -15, &mut expected).unwrap();
    assert!(out.iter().zip(expected).all(|(a, b)| a.abs_diff(b) <= 6), "{out:?} {expected:?}");
}

#[test]
fn keys_and_values_have_exponents_of_their_own() {
    let (mut memory, mut other) = ([0; SLOT], [0; SLOT]);
    let (mut ours, mut theirs) = (ring(&mut memory, 0), ring(&mut other, 0));
    ours.push(&token(1), -9, &token(2), -17).unwrap();
    theirs.push(&token(1), -9, &token(2), -9).unwrap();
    let (ours, theirs) = (ours.slots().next().unwrap(), theirs.slots().next().unwrap());
    assert_eq!(ours.0, theirs.0);
    let scale = |block: &[u8]| f16::from_le_bytes([block[0], block[1]]).to_f32();
    assert_eq!(scale(ours.1) * 256.0, scale(theirs.1));
    assert_eq!(ours.1[2..], theirs.1[2..]);
}
