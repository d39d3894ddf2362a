//! The 1-bit residual sketch on a warp equals its definition.

use crate::warp::{Buffer, Emulated};
use half::f16;
use tqkv_gpu_kernels::args::{QjlCorrect, QjlSketch};
use tqkv_gpu_kernels::encode::element;
use tqkv_gpu_kernels::qjl::{qjl_correct, qjl_sketch};
use tqkv_tests::inputs::Gaussian;
use tqkv_tests::oracle::{dot, energy};

fn check<const G: usize>() {
    let (dim, tokens, kv_heads, heads) = (32 * G, 40, 2, 4);
    let mut gaussian = Gaussian::new(dim as u64);
    let matrix = gaussian.vector(dim * dim);
    let residuals = gaussian.vector(tokens * kv_heads * dim);
    let transposed: Vec<f32> = (0..dim * dim).map(|i| matrix[i % dim * dim + i / dim]).collect();
    let (transposed, rows) = (Buffer::from_f32(&transposed), Buffer::from_f32(&residuals));
    let count = tokens * kv_heads;
    let (signs, norms) = (Buffer::garbage(count * dim / 8), Buffer::garbage(4 * count));
    let args = QjlSketch {
        residuals: rows.place(),
        count: count as u32,
        transposed: transposed.place(),
        signs: signs.place(),
        norms: norms.place(),
    };
    for warp in 0..=count as u32 {
        qjl_sketch::<Emulated<'_>, G>(warp, args);
    }
    let queries = gaussian.vector(heads * dim);
    let sketched: Vec<f32> = queries
        .chunks_exact(dim)
        .flat_map(|q| matrix.chunks_exact(dim).map(|row| dot(row, q) as f32))
        .collect();
    let before = gaussian.vector(tokens * heads);
    let scores = Buffer::from_f32(&before);
    let projected = Buffer::from_f32(&sketched);
    let args = QjlCorrect {
        sketched: projected.place(),
        num_heads: heads as u32,
        signs: signs.place(),
        norms: norms.place(),
        tokens: tokens as u32,
        num_kv_heads: kv_heads as u32,
        scores: scores.place(),
        kind: element::F32,
    };
    for warp in 0..=(tokens * heads) as u32 {
        qjl_correct::<Emulated<'_>, G>(warp, args);
    }
    // Scores in half precision are added in f32, and rounded.
    let halves =
        Buffer::from_bytes(&before.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect::<Vec<_>>());
    for warp in 0..=(tokens * heads) as u32 {
        qjl_correct::<Emulated<'_>, G>(
            warp,
            QjlCorrect { scores: halves.place(), kind: element::F16, ..args },
        );
    }
    let both = scores.floats().into_iter().zip(&before);
    for ((after, &before), got) in both.zip(halves.bytes().chunks_exact(2)) {
        let want = f64::from(after) - f64::from(before) + f16::from_f32(before).to_f64();
        let got = f16::from_le_bytes([got[0], got[1]]).to_f64();
        assert!((got - want).abs() <= 1e-3 * want.abs().max(0.1), "{got} {want}");
    }
    for (i, (&after, before)) in scores.floats().iter().zip(before).enumerate() {
        let (token, head) = (i / heads, i % heads);
        let residual = &residuals[(token * kv_heads + head / 2) * dim..][..dim];
        let query = &sketched[head * dim..][..dim];
        let mut sum = 0.0;
        for (row, &q) in matrix.chunks_exact(dim).zip(query) {
            sum += f64::from(q) * if dot(row, residual) >= 0.0 { 1.0 } else { -1.0 };
        }
        let factor = (std::f64::consts::PI / 2.0).sqrt() / dim as f64;
        let want = f64::from(before) + energy(residual).sqrt() * factor * sum;
        assert!((f64::from(after) - want).abs() < 1e-4 * want.abs().max(1.0), "{after} {want}");
    }
}

#[test]
fn sketch_and_correction_follow_algorithm_2() {
    check::<2>();
    check::<4>();
    check::<8>();
}
