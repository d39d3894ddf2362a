//! Distortion of every codec, head dim and scale mode on random directions, against the exact value of its
//! codebook.

use tqkv_core::unstable::Levels;
use tqkv_core::{AnyCodec, CodecId, Effort, HEAD_DIMS, Options, ScaleMode};
use tqkv_tests::inputs::Gaussian;
use tqkv_tests::oracle::{dot, energy, relative_mse};

struct Figures {
    mse: f64,
    /// Relative standard deviation of one vector's squared error.
    deviation: f64,
    /// Mean of <x, x^> / |x|^2.
    slope: f64,
    /// Mean of |x^| / |x|.
    norm: f64,
}

fn measure(id: CodecId, dim: usize, options: Options, count: usize) -> Figures {
    let codec = AnyCodec::new(id, dim, options).unwrap();
    let mut gaussian = Gaussian::new(11);
    let (mut block, mut y) = (vec![0; codec.block_bytes()], vec![0.0; dim]);
    let mut figures = Figures { mse: 0.0, deviation: 0.0, slope: 0.0, norm: 0.0 };
    for _ in 0..count {
        let x = gaussian.vector(dim);
        codec.encode(&x, &mut block).unwrap();
        codec.decode(&block, &mut y).unwrap();
        let error = relative_mse(&x, &y);
        figures.mse += error / count as f64;
        figures.deviation += error * error / count as f64;
        figures.slope += dot(&x, &y) / energy(&x) / count as f64;
        figures.norm += (energy(&y) / energy(&x)).sqrt() / count as f64;
    }
    figures.deviation = (figures.deviation - figures.mse * figures.mse).max(0.0).sqrt() / figures.mse;
    figures
}

const fn options(scale_mode: ScaleMode, effort: Effort) -> Options {
    Options::DEFAULT.scale_mode(scale_mode).effort(effort)
}

/// Five standard errors of the mean, and a floor for small samples.
fn tolerance(figures: &Figures, count: usize) -> f64 {
    5.0 * figures.deviation / (count as f64).sqrt() + 1e-3
}

fn coded() -> impl Iterator<Item = CodecId> {
    CodecId::ALL.iter().copied().filter(|id| matches!(id.levels(), Levels::LloydMax | Levels::Nested))
}

#[test]
fn raw_codes_have_the_distortion_of_their_codebook() {
    for dim in HEAD_DIMS {
        let count = 120_000 / dim;
        for id in coded() {
            let figures = measure(id, dim, options(ScaleMode::Raw, Effort::Fast), count);
            let want = id.codebook(dim).unwrap().relative_mse();
            let off = figures.mse / want - 1.0;
            assert!(
                off.abs() < tolerance(&figures, count),
                "{} dim {dim}: {} against {want}",
                id.name(),
                figures.mse
            );
        }
    }
}

/// Shannon's bound for Gaussian coordinates, and the paper's bound for its own code.
#[test]
fn errors_lie_between_the_bounds() {
    for dim in HEAD_DIMS {
        for id in coded() {
            let fourth = 4f64.powi(-(id.bits() as i32));
            let error = id.codebook(dim).unwrap().relative_mse();
            let upper = 3f64.sqrt() * std::f64::consts::FRAC_PI_2 * fourth;
            // In a small head dim, coordinates are less spread than Gaussian ones.
            let lower = fourth * (1.0 - 3.0 / dim as f64);
            assert!(lower < error && error < upper, "{} dim {dim}: {lower} {error} {upper}", id.name());
        }
    }
}

#[test]
fn scale_modes_do_what_they_are_named_for() {
    for dim in [64, 80, 128, 256] {
        let count = 60_000 / dim;
        for id in coded() {
            let of = |mode| measure(id, dim, options(mode, Effort::Fast), count);
            let d = id.codebook(dim).unwrap().relative_mse();
            let (raw, mmse) = (of(ScaleMode::Raw), of(ScaleMode::Mmse));
            let (unbiased, preserving) = (of(ScaleMode::Unbiased), of(ScaleMode::Preserving));
            let name = format!("{} dim {dim}", id.name());
            // f16 rounds the scale by at most one part in 2048.
            assert!((unbiased.slope - 1.0).abs() < 5e-4, "{name}: {}", unbiased.slope);
            assert!((preserving.norm - 1.0).abs() < 5e-4, "{name}: {}", preserving.norm);
            assert!(mmse.mse <= raw.mse * 1.0001, "{name}: {} {}", mmse.mse, raw.mse);
            let shrinks = raw.slope + d - 1.0;
            assert!(
                shrinks.abs() < 0.02 * d + 2e-3,
                "{name}: a raw scale keeps 1 - D of a dot product: {shrinks}"
            );
            let expected = d / (1.0 - d);
            assert!(
                (unbiased.mse / expected - 1.0).abs() < 0.1,
                "{name}: {} against {expected}",
                unbiased.mse
            );
        }
    }
}

#[test]
fn searching_for_a_scale_pays() {
    let count = 3000;
    for (id, bound) in [(CodecId::S4, 0.0080), (CodecId::N4, 0.0080), (CodecId::S3, 0.0321)] {
        let best = measure(id, 128, options(ScaleMode::Mmse, Effort::Best), count);
        let usual = measure(id, 128, options(ScaleMode::Mmse, Effort::Default), count);
        let fast = measure(id, 128, options(ScaleMode::Mmse, Effort::Fast), count);
        assert!(best.mse <= bound, "{}: {}", id.name(), best.mse);
        assert!(best.mse < usual.mse && usual.mse <= fast.mse, "{}", id.name());
    }
}

#[test]
fn yardsticks_and_wide_codes() {
    for (id, dim, low, high) in [
        (CodecId::F16, 128, 1e-9, 1e-7),
        (CodecId::I8, 128, 3.5e-5, 4.3e-5),
        (CodecId::I8, 64, 2.5e-5, 4.0e-5),
        (CodecId::Q8_0, 128, 2.6e-5, 3.2e-5),
        (CodecId::Q4_0, 128, 0.0069, 0.0078),
    ] {
        let mse = measure(id, dim, Options::DEFAULT, 1500).mse;
        assert!((low..high).contains(&mse), "{} dim {dim}: {mse}", id.name());
    }
}
