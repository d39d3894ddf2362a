//! Compares the integer codec with the float path: any samples, exponents and scale modes. Blocks of integers
//! decode to the same by floats and by integers. They are as near to the vector as the float path's own
//! blocks.
#![no_main]

mod seeds;

use libfuzzer_sys::fuzz_target;
use tqkv_core::code::{Code, I8, N4, S2, S3, S4, S5, T2S8};
use tqkv_core::fixed::FixedCodec;
use tqkv_core::{AnyCodec, Effort, Options, ScaleMode};

const MODES: [ScaleMode; 4] = [ScaleMode::Raw, ScaleMode::Unbiased, ScaleMode::Preserving, ScaleMode::Mmse];

fuzz_target!(|data: &[u8]| {
    let [kind, mode, exponent, samples @ ..] = data else { return seeds::refused("too short") };
    let mode = MODES[usize::from(*mode) % 4];
    let exponent = i32::from(*exponent as i8) / 3;
    match kind % 10 {
        0 => one::<128, S4, 66>(mode, exponent, samples),
        1 => one::<64, S2, 18>(mode, exponent, samples),
        2 => one::<80, S3, 32>(mode, exponent, samples),
        3 => one::<16, S5, 12>(mode, exponent, samples),
        4 => one::<96, N4, 50>(mode, exponent, samples),
        5 => one::<128, I8, 130>(mode, exponent, samples),
        6 => one::<32, S2, 10>(mode, exponent, samples),
        7 => one::<128, T2S8, 34>(mode, exponent, samples),
        8 => one::<64, T2S8, 18>(mode, exponent, samples),
        _ => one::<256, S4, 130>(mode, exponent, samples),
    }
});

fn one<const D: usize, C: Code, const N: usize>(mode: ScaleMode, exponent: i32, samples: &[u8]) {
    let words = samples.as_chunks::<2>().0;
    let x: [i16; D] = core::array::from_fn(|i| words.get(i).map_or(0, |b| i16::from_le_bytes(*b)));
    let fixed = FixedCodec::<D, C>::new(42, mode);
    let mut block = [0; N];
    let encoded = fixed.encode(&x, exponent, &mut block);
    // Narrow samples are wide samples with small values.
    let narrow = x.map(|v| v as i8);
    let (mut from_narrow, mut from_wide) = ([0; N], [0; N]);
    let results = [
        fixed.encode(&narrow, exponent, &mut from_narrow),
        fixed.encode(&narrow.map(i16::from), exponent, &mut from_wide),
    ];
    assert_eq!((results[0], from_narrow), (results[1], from_wide));
    if encoded.is_err() {
        assert_eq!(block, [0; N], "a block of zeros stays where the scale is too large");
        return;
    }
    let float = AnyCodec::new(C::ID, D, Options::DEFAULT.seed(42).scale_mode(mode).effort(Effort::Fast))
        .expect("a codec of integers");
    let real = x.map(|v| f64::from(v) * 2f64.powi(exponent));
    let (mut by_floats, mut integers) = ([0.0; D], [0; D]);
    float.decode(&block, &mut by_floats).expect("what the encoder writes decodes");
    fixed.decode(&block, exponent, &mut integers).expect("what the encoder writes decodes");
    let energy: f64 = by_floats.iter().map(|v| f64::from(*v).powi(2)).sum();
    let (unit, mut difference, mut saturated) = (2f64.powi(exponent), 0.0, false);
    for (integer, float) in integers.iter().zip(&by_floats) {
        saturated |= matches!(*integer, i16::MIN | i16::MAX);
        difference += (f64::from(*integer) * unit - f64::from(*float)).powi(2);
    }
    assert!(
        saturated || difference <= 1e-5 * energy + D as f64 * unit * unit,
        "{} {D} {mode:?} {exponent}: {difference} of {energy}",
        C::ID.name()
    );
    let floats = real.map(|v| v as f32);
    let error = |y: &[f32; D]| -> f64 { real.iter().zip(y).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum() };
    // The float path searches. The integers take the codes of the vector's own norm, as the float path does
    // in the raw mode.
    let theirs = [mode, ScaleMode::Raw].map(|mode| {
        let options = Options::DEFAULT.seed(42).scale_mode(mode).effort(Effort::Fast);
        let float = AnyCodec::new(C::ID, D, options).expect("a codec of integers");
        let (mut theirs, mut back) = ([0; N], [0.0; D]);
        float.encode(&floats, &mut theirs).ok()?;
        float.decode(&theirs, &mut back).expect("what the encoder writes decodes");
        Some(error(&back))
    });
    let own: f64 = real.iter().map(|v| v * v).sum();
    // Below this norm the f16 scale is subnormal and its rounding dominates.
    if let [Some(same), Some(raw)] = theirs
        && own >= 1e-5
    {
        let ours = error(&by_floats);
        assert!(
            ours <= 1.1 * same.max(raw) + 0.02 * own,
            "{} {D} {mode:?} {exponent}: {ours} against {same}, raw {raw}, of {own}",
            C::ID.name(),
        );
    }
}
