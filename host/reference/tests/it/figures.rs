//! Errors of every format compared with theory, and the unbiasedness of estimators.

use tqkv_reference::{Coder, ROWS, RotationKind, Row, theory};
use tqkv_tests::inputs::Gaussian;
use tqkv_tests::oracle::dot;
use tqkv_tests::scope;

fn random(seed: u64, count: usize) -> Vec<f32> {
    Gaussian::new(seed).vector(count)
}

struct Figures {
    /// Mean of |x - x^|^2 / |x|^2.
    error: f64,
    /// Sum of <x, x^> over sum of |x|^2: the slope for queries of every direction.
    slope: f64,
}

fn figures(row: Row, dim: usize, [layers, vectors]: [usize; 2], rotation: Option<RotationKind>) -> Figures {
    let (mut error, mut kept, mut all) = (0.0, 0.0, 0.0);
    for layer in 0..layers {
        let coder = Coder::new(row, dim, (42, layer), rotation).unwrap();
        let (mut block, mut decoded) = (vec![0; coder.block_bytes()], vec![0.0; dim]);
        for x in random(layer as u64, vectors * dim).chunks_exact(dim) {
            coder.encode(x, &mut block).unwrap();
            coder.decode(&block, &mut decoded).unwrap();
            let left: Vec<f32> = x.iter().zip(&decoded).map(|(x, d)| x - d).collect();
            error += dot(&left, &left) / dot(x, x);
            (kept, all) = (kept + dot(x, &decoded), all + dot(x, x));
        }
    }
    Figures { error: error / (layers * vectors) as f64, slope: kept / all }
}

#[test]
fn errors_are_those_of_the_mathematics_within_a_hundredth() {
    let mut seen = 0;
    for (number, row) in ROWS.iter().enumerate() {
        for (shape, dim) in [64, 128].into_iter().enumerate() {
            // Without the full scope, each format is tested at one head dim.
            if !scope::is_turn(number, shape, 2) {
                continue;
            }
            let Some(expected) = row.expected_error(dim) else { continue };
            // Errors of single sketches differ by one percent.
            let runs = if row.has_estimator() { [128, 64] } else { [16, 256] };
            let Figures { error, .. } = figures(*row, dim, runs, None);
            println!("{} {dim}: {error:.5}, expected {expected:.5}", row.name());
            assert!((error / expected - 1.0).abs() < 0.01, "{} {dim}: {error} {expected}", row.name());
            seen += 1;
        }
    }
    assert!(seen > scope::extent(15, 30), "{seen}");
}

#[test]
fn the_rotation_does_not_matter_to_random_directions() {
    for name in ["tq3", "p3"] {
        let row = Row::from_name(name).unwrap();
        let expected = row.expected_error(64).unwrap();
        for rotation in [RotationKind::Dense, RotationKind::DenseBf16, RotationKind::Hadamard] {
            let Figures { error, .. } = figures(row, 64, [128, 64], Some(rotation));
            assert!((error / expected - 1.0).abs() < 0.01, "{name} {rotation:?}: {error} {expected}");
        }
    }
}

/// Averages over sketches, as the paper promises. A single sketch is off by about the residual's share over
/// sqrt(2) d.
#[test]
fn estimates_are_unbiased() {
    let (sketches, most) = scope::extent((128, 0.002), (512, 0.001));
    for row in ROWS.iter().filter(|row| row.has_estimator()) {
        let Figures { slope, .. } = figures(*row, 64, [sketches, 128], None);
        println!("{}: slope {slope:.5}", row.name());
        assert!((slope - 1.0).abs() < most, "{}: {slope}", row.name());
    }
    let Figures { slope, .. } = figures(Row::from_name("tq3").unwrap(), 64, [8, 128], None);
    assert!(slope < 0.98, "a scalar code under the norm is biased: {slope}");
}

#[test]
fn scores_of_sketched_queries_are_dot_products_with_decoded_vectors_and_keep_the_bound() {
    let dim = 128;
    for (name, bits) in [("p2", 2.0), ("p3", 3.0), ("p4", 4.0), ("p4r3", 6.0)] {
        let row = Row::from_name(name).unwrap();
        let (mut squared, mut truth) = (0.0, 0.0);
        for layer in 0..4 {
            let coder = Coder::new(row, dim, (42, layer), None).unwrap();
            let (mut block, mut decoded) = (vec![0; coder.block_bytes()], vec![0.0; dim]);
            for pair in random(layer as u64 + 9, 400 * dim).chunks_exact(2 * dim) {
                let (x, q) = pair.split_at(dim);
                coder.encode(x, &mut block).unwrap();
                coder.decode(&block, &mut decoded).unwrap();
                let score = coder.score(&coder.sketch(q).unwrap(), &block).unwrap();
                assert!((score - dot(q, &decoded)).abs() < 1e-4, "{name}: {score} {}", dot(q, &decoded));
                squared += (score - dot(q, x)).powi(2);
                truth += dot(q, q) * dot(x, x) / dim as f64;
            }
        }
        let (error, expected) = (squared / truth, row.expected_error(dim).unwrap());
        assert!((error / expected - 1.0).abs() < 0.15, "{name}: {error} {expected}");
        assert!(bits > 4.5 || error < theory::dot_bound(bits), "{name}: {error}");
    }
    let plain = Coder::new(Row::from_name("tq3").unwrap(), dim, (42, 0), None).unwrap();
    assert!(plain.sketch(&[0.0; 128]).is_none());
}

#[test]
fn channels_of_much_energy_gain_from_the_wider_half() {
    let dim = 128;
    let coder = Coder::new(Row::from_name("c25").unwrap(), dim, (42, 0), None).unwrap();
    let mut x = random(5, 200 * dim);
    // Every fourth channel is eight times as large.
    x.iter_mut().step_by(4).for_each(|x| *x *= 8.0);
    let error = |coder: &Coder| {
        let (mut block, mut decoded) = (vec![0; coder.block_bytes()], vec![0.0; dim]);
        let errors = x.chunks_exact(dim).map(|x| {
            coder.encode(x, &mut block).unwrap();
            coder.decode(&block, &mut decoded).unwrap();
            x.iter().zip(&decoded).map(|(x, d)| f64::from((x - d).powi(2))).sum::<f64>() / dot(x, x)
        });
        errors.sum::<f64>() / 200.0
    };
    let (unlearned, learned) = (error(&coder), error(&coder.learn(&x)));
    assert!(learned < 0.6 * unlearned, "{unlearned} {learned}");
}
