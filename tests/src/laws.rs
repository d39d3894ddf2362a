//! The guarantees of a block for any vector.

use crate::oracle::{dot, energy};
use tqkv_core::code::Layout;
use tqkv_core::unstable::Levels;
use tqkv_core::{AnyCodec, ScaleMode, f16};

/// Checks the guarantees of a block for `x`. Codes of levels keep the quantity that their scale mode is named
/// for. Plain numbers and codes of even steps keep each coordinate.
///
/// # Panics
/// If a guarantee is broken, or if the block does not decode.
pub fn assert_kept(codec: &AnyCodec, x: &[f32], block: &[u8]) {
    match codec.id().levels() {
        Levels::LloydMax | Levels::Nested | Levels::Trellis(_) => assert_scale(codec, x, block),
        Levels::Values | Levels::Codes(_) => assert_steps(codec, x, block),
    }
}

fn told(codec: &AnyCodec) -> String {
    format!("{} dim {} {:?}", codec.id().name(), codec.dim(), codec.options())
}

fn assert_scale(codec: &AnyCodec, x: &[f32], block: &[u8]) {
    // A subnormal scale has few bits.
    if f16::from_le_bytes([block[0], block[1]]) < f16::from_f32(2.5e-4) {
        return;
    }
    let mut y = vec![0.0; x.len()];
    codec.decode(block, &mut y).expect("a block of the encoder's");
    let (own, got, cross) = (energy(x), energy(&y), dot(x, &y));
    // Dot products have the weights of a code of quarters.
    let weights = codec.weights();
    let (heavy, product) = weights.map_or((own, cross), |weights| weighted(codec, x, block, weights.values));
    let near = |a: f64, b: f64| (a - b).abs() <= 3e-3 * b;
    let kept = match codec.options().scale_mode {
        // The norm, or the scale that a search for less error took instead.
        ScaleMode::Raw => product >= 0.0 && got <= 9.0 * own,
        ScaleMode::Preserving => near(got, own),
        // Dot products are unchanged, unless that would make the vector more than twice as long.
        ScaleMode::Unbiased => {
            got <= 4.02 * own && (near(product, heavy) || (product <= heavy && near(got, 4.0 * own)))
        }
        ScaleMode::Mmse => near(cross, got) && own - 2.0 * cross + got <= 1.0001 * own,
    };
    assert!(kept, "{}: energy {own}, decoded {got}, product {cross}, {heavy} {product}", told(codec));
}

/// The energy of `x` and its product with the block, weighted by quarters where they were encoded.
fn weighted(codec: &AnyCodec, x: &[f32], block: &[u8], weights: [f32; 4]) -> (f64, f64) {
    let width = x.len() / 4;
    let (mut own, mut got) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    codec.rotate_query(x, &mut own);
    own.iter_mut().for_each(|v| *v *= x.len() as f32);
    codec.decode_rotated(block, &mut got);
    let root = |y: &[f32]| -> Vec<f32> {
        y.iter().enumerate().map(|(i, v)| v * weights[i / width].sqrt()).collect()
    };
    let (own, got) = (root(&own), root(&got));
    (energy(&own), dot(&own, &got))
}

fn assert_steps(codec: &AnyCodec, x: &[f32], block: &[u8]) {
    let dim = codec.dim();
    let (mut y, mut z) = (vec![0.0; dim], vec![0.0; dim]);
    codec.rotate_query(x, &mut y);
    codec.decode_rotated(block, &mut z);
    if codec.id().is_rotated() {
        y.iter_mut().for_each(|v| *v *= dim as f32);
    }
    let run = if let Layout::Runs { .. } = codec.id().layout() { 32 } else { dim };
    // The loss of the rotation in f32.
    let rounding = 1e-6 * largest(&y);
    for (y, z) in y.chunks(run).zip(z.chunks(run)) {
        for (own, got) in y.iter().zip(z) {
            let (error, most) = ((f64::from(*own) - f64::from(*got)).abs(), step(codec, y, *own) + rounding);
            assert!(error <= most, "{}: {own} came back as {got}, {most} allowed", told(codec));
        }
    }
}

fn largest(x: &[f32]) -> f64 {
    x.iter().fold(0.0, |most, v| most.max(f64::from(v.abs())))
}

/// The largest error of one coordinate of a run. Scales are f16: their error is 1 part in 2048 of the
/// product, or 2^-25 if they are subnormal.
fn step(codec: &AnyCodec, run: &[f32], own: f32) -> f64 {
    let (most, own) = (largest(run), f64::from(own.abs()));
    match codec.id().layout() {
        Layout::F16 => own / 2048.0 + 3.1e-8,
        Layout::Bytes => most * (0.51 / 127.0) + 4e-6,
        Layout::Runs { bits: 8 } => most * (0.5 / 127.0 + 5e-4) + 4e-6,
        // The largest value of the other sign is off by a whole step.
        Layout::Runs { .. } => most * (1.0 / 8.0 + 5e-4) + 1e-6,
        Layout::Dense { .. } | Layout::Planes(_) => 0.0,
    }
}
