//! The figures of `stats` against definitions, and their independence of threads.

use tqkv::Level;
use tqkv_cli::array::Vectors;
use tqkv_core::{AnyCodec, CodecId, Effort, Options, ScaleMode};
use tqkv_tests::oracle::dot;

use super::{StatsError, Subject, measure, random_directions};

fn codec(id: CodecId, dim: usize) -> AnyCodec {
    let options = Options::DEFAULT.scale_mode(ScaleMode::Raw).effort(Effort::Fast);
    AnyCodec::new(id, dim, options).unwrap()
}

fn rows(vectors: &Vectors) -> Vec<Vec<f32>> {
    let mut row = vec![0.0; vectors.dim()];
    (0..vectors.rows())
        .map(|i| {
            vectors.read_row(i, &mut row).unwrap();
            row.clone()
        })
        .collect()
}

#[test]
fn figures_follow_their_definitions() {
    let vectors = random_directions(300, 96, 3).unwrap();
    let queries = random_directions(5, 96, 4).unwrap();
    let codec = codec(CodecId::S2, 96);
    let stats = measure(&Subject::Own(Level::Portable, codec.into()), &vectors, &queries, &|_| ()).unwrap();
    let (mut mse, mut cosine, mut st, mut tt, mut ee) = (0.0, 0.0, 0.0, 0.0, 0.0);
    let (mut block, mut decoded) = (vec![0; codec.block_bytes()], vec![0.0; 96]);
    for x in rows(&vectors) {
        codec.encode(&x, &mut block).unwrap();
        codec.decode(&block, &mut decoded).unwrap();
        let difference: Vec<_> = x.iter().zip(&decoded).map(|(a, b)| a - b).collect();
        mse += dot(&difference, &difference) / dot(&x, &x) / 300.0;
        cosine += dot(&x, &decoded) / (dot(&x, &x) * dot(&decoded, &decoded)).sqrt() / 300.0;
        for q in rows(&queries) {
            let (truth, score) = (dot(&q, &x), dot(&q, &decoded));
            st += score * truth;
            tt += truth * truth;
            ee += (score - truth).powi(2);
        }
    }
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-5;
    assert!(near(stats.relative_mse, mse) && near(stats.mean_cosine, cosine), "{stats:?}");
    assert!(near(stats.dot_slope, st / tt) && near(stats.dot_error, (ee / tt).sqrt()), "{stats:?}");
}

#[test]
fn figures_do_not_depend_on_the_number_of_threads() {
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let vectors = random_directions(1000, 64, 9).unwrap();
            let queries = random_directions(7, 64, 10).unwrap();
            measure(
                &Subject::Own(Level::fastest(), codec(CodecId::S3, 64).into()),
                &vectors,
                &queries,
                &|_| (),
            )
            .unwrap()
        })
    };
    let one = run(1);
    for threads in [2, 3, 8] {
        let many = run(threads);
        assert_eq!(many, one);
        assert_eq!(many.relative_mse.to_bits(), one.relative_mse.to_bits());
    }
}

#[test]
fn random_directions_are_unit_vectors_that_differ_by_seed_and_row() {
    let vectors = rows(&random_directions(600, 32, 1).unwrap());
    assert!(vectors.iter().all(|x| (dot(x, x) - 1.0).abs() < 1e-6));
    assert_ne!(vectors[0], vectors[256], "one stream per chunk");
    assert_ne!(vectors[0], vectors[1]);
    assert_ne!(vectors, rows(&random_directions(600, 32, 2).unwrap()));
    assert_eq!(vectors[..10], rows(&random_directions(10, 32, 1).unwrap())[..]);
    let mean: f64 = vectors.iter().flatten().map(|&x| f64::from(x)).sum::<f64>() / (600.0 * 32.0);
    assert!(mean.abs() < 0.006, "four standard errors: {mean}");
}

#[test]
fn zero_vectors_are_left_out_of_the_means() {
    let mut values = vec![0.0; 64];
    values.extend(rows(&random_directions(1, 32, 1).unwrap())[0].iter());
    let vectors = Vectors::from_vec(values, 32).unwrap();
    let queries = random_directions(2, 32, 2).unwrap();
    let stats =
        measure(&Subject::Own(Level::Portable, codec(CodecId::I8, 32).into()), &vectors, &queries, &|_| ())
            .unwrap();
    assert!(stats.mean_cosine > 0.999 && stats.relative_mse < 1e-3, "{stats:?}");
    assert_eq!(stats.zero_vectors, 2);
    let zeros = Vectors::from_vec(vec![0.0; 64], 32).unwrap();
    let figures = |vectors, queries| {
        measure(&Subject::Own(Level::Portable, codec(CodecId::S4, 32).into()), vectors, queries, &|_| ())
            .unwrap_err()
    };
    assert!(matches!(figures(&zeros, &queries), StatsError::AllZero));
    assert!(matches!(figures(&vectors, &zeros), StatsError::NoProducts));
}

#[test]
fn lengths_that_differ_are_an_error() {
    let vectors = random_directions(2, 64, 1).unwrap();
    let queries = random_directions(2, 32, 1).unwrap();
    for (codec, queries) in [(codec(CodecId::S4, 64), &queries), (codec(CodecId::S4, 32), &vectors)] {
        let result = measure(&Subject::Own(Level::Portable, codec.into()), &vectors, queries, &|_| ());
        assert!(matches!(result, Err(StatsError::Dim { expected: 64, found: 32, .. })), "{result:?}");
    }
}
