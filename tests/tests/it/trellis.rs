//! The trellis codecs: golden files, quality, every head dim, inputs that break codecs.

use serde::Deserialize;
use tqkv_core::unstable::trellis::{Code, MAX_LEVELS, PARITIES, Plain, Predictor, Trellis, levels};
use tqkv_core::{AnyCodec, CodecId, Effort, EncodeError, HEAD_DIMS, Options, Portable, ScaleMode};
use tqkv_tests::inputs::{Gaussian, edge_cases};
use tqkv_tests::oracle::dot;
use tqkv_tests::scope;

fn trellis_ids() -> impl Iterator<Item = CodecId> {
    CodecId::ALL.iter().copied().filter(|id| id.trellis().is_some())
}

/// The codecs whose coordinates all have one width.
fn one_width() -> impl Iterator<Item = CodecId> {
    trellis_ids().filter(|id| !id.rotates_quarters())
}

fn codec(id: CodecId, dim: usize, scale_mode: ScaleMode, effort: Effort) -> AnyCodec {
    AnyCodec::new(id, dim, Options::DEFAULT.scale_mode(scale_mode).effort(effort)).expect("every head dim")
}

#[derive(Deserialize)]
struct Reference {
    families: Vec<Family256>,
}

/// A code, and one vector that another implementation encoded.
#[derive(Deserialize)]
struct Family256 {
    name: String,
    plain_bits: u8,
    generators: [u16; 3],
    levels: Vec<i8>,
    per_sigma: f32,
    coded: String,
    plain: String,
    index: Vec<usize>,
}

#[test]
fn reference_codes_decode_exactly() {
    let reference: Reference =
        serde_json::from_str(include_str!("../../vectors/trellis_reference.json")).expect("valid JSON");
    assert_eq!(reference.families.len(), 7);
    let held: Vec<_> = ["t1", "t2", "t3", "t4"]
        .map(|name| CodecId::from_name(name).expect("a codec").trellis().expect("a trellis").code.generators)
        .into();
    for family in reference.families {
        assert!(held.contains(&family.generators), "{}: the codecs use these generators", family.name);
        let mut padded = [0; MAX_LEVELS];
        padded[..family.levels.len()].copy_from_slice(&family.levels);
        let code = Code {
            memory: 8,
            generators: family.generators,
            plain: Plain::Bits(family.plain_bits),
            levels: padded,
            per_sigma: family.per_sigma,
            divisor: 1,
            predictor: Predictor { offset: 1.0, slope: 0.0 },
        };
        let mut body = vec![0; 16 * (1 + usize::from(family.plain_bits))];
        for (t, (u, j)) in family.coded.bytes().zip(family.plain.bytes()).enumerate() {
            body[t % 16] |= (u - b'0') << (t / 16);
            for p in 0..usize::from(family.plain_bits) {
                body[16 * (p + 1) + t % 16] |= ((j - b'0') >> p & 1) << (t / 16);
            }
        }
        let mut decoded = [0; 128];
        let (mut rows, mut taps) = (vec![[0; PARITIES]; code.row_count()], Default::default());
        levels(Portable, &Trellis::new(code, &mut rows, &mut taps), &body, &mut decoded);
        let expected: Vec<u8> = family.index.iter().map(|&i| family.levels[i] as u8).collect();
        assert_eq!(decoded.as_slice(), expected, "{}", family.name);
    }
}

#[test]
fn block_sizes_are_those_of_the_format() {
    let sizes: Vec<_> = trellis_ids().map(|id| (id.name(), id.block_bytes(128).unwrap_or(0))).collect();
    let wide = [("t1", 18), ("t2", 34), ("t2h", 42), ("t3", 50), ("t3h", 58), ("t4", 66)];
    let narrow = [("t2s8", 34)];
    let quarters = [("m2", 34), ("m3", 50)];
    assert_eq!(sizes, [wide.as_slice(), &narrow, &quarters].concat());
}

/// The mean relative squared error over `count` random directions.
fn distortion(codec: &AnyCodec, count: usize) -> f64 {
    let mut source = Gaussian::new(7);
    let (mut block, mut back) = (vec![0; codec.block_bytes()], vec![0.0; codec.dim()]);
    let mut total = 0.0;
    for _ in 0..count {
        let x = source.vector(codec.dim());
        codec.encode(&x, &mut block).expect("finite");
        codec.decode(&block, &mut back).expect("own block");
        let error: f64 = x.iter().zip(&back).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        total += error / x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>();
    }
    total / count as f64
}

/// Limits of the mean distortion over 1000 vectors, with the deepest search and the least-squares scale.
const LIMITS: [(&str, f64); 7] = [
    ("t1", 0.276),
    ("t2", 0.0715),
    ("t2h", 0.041),
    ("t3", 0.0181),
    ("t3h", 0.0093),
    ("t4", 0.00455),
    ("t2s8", 0.081),
];

#[test]
fn distortion_is_within_the_limits() {
    const DIMS: [(usize, usize, f64); 4] =
        [(128, 1000, 1.005), (64, 1500, 1.045), (256, 400, 1.04), (80, 800, 1.045)];
    for (number, (name, limit)) in LIMITS.into_iter().enumerate() {
        let id = CodecId::from_name(name).expect("a codec");
        for (shape, (dim, count, slack)) in DIMS.into_iter().enumerate() {
            // By default each code runs at one head dim.
            if !scope::is_turn(number, shape, DIMS.len()) {
                continue;
            }
            let found = distortion(&codec(id, dim, ScaleMode::Mmse, Effort::Best), count);
            assert!(found <= limit * slack, "{name}, head dim {dim}: {found:.5} above {limit}");
        }
    }
}

/// One Lloyd iteration through the encoder does not move any level, except by byte rounding and chance. So
/// the tables are the result of their search.
#[test]
fn levels_are_the_centroids_of_their_cells() {
    for id in [CodecId::T2S8, CodecId::T3] {
        let codec = codec(id, 128, ScaleMode::Mmse, Effort::Best);
        let trellis = codec.id().trellis().expect("a trellis codec");
        let code = trellis.code;
        let mut source = Gaussian::new(11);
        let (mut block, mut y, mut codes) = (vec![0; codec.block_bytes()], [0.0; 128], [0; 128]);
        let mut sums = [(0.0, 0.0); 128];
        for _ in 0..800 {
            let x = source.vector(128);
            let norm = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
            codec.encode(&x, &mut block).expect("finite");
            codec.rotate_query(&x, &mut y);
            levels(Portable, trellis, &block[2..], &mut codes);
            let scale = f64::from(half::f16::from_le_bytes([block[0], block[1]]).to_f32());
            let gain = scale * f64::from(code.unit()) / norm;
            for (&y, &level) in y.iter().zip(&codes) {
                let level = level as i8;
                let sum = &mut sums[usize::from(level.unsigned_abs())];
                sum.0 += gain * f64::from(y) * 128.0 / norm * f64::from(level.signum());
                sum.1 += gain * gain;
            }
        }
        for &level in code.levels[..code.level_count()].iter().filter(|&&level| level > 0) {
            let (gy, gg) = sums[usize::from(level.unsigned_abs())];
            let centroid = gy / gg;
            assert!((centroid - f64::from(level)).abs() < 1.5, "{}: {level} {centroid:.2}", id.name());
        }
    }
}

#[test]
fn more_effort_is_less_error_and_half_rates_lie_between() {
    for id in one_width() {
        let [fast, default, best] =
            Effort::ALL.map(|effort| distortion(&codec(id, 128, ScaleMode::Mmse, effort), 200));
        assert!(best < default && default < fast, "{}: {fast} {default} {best}", id.name());
    }
    let at = |name| {
        distortion(
            &codec(CodecId::from_name(name).expect("a codec"), 128, ScaleMode::Mmse, Effort::Fast),
            200,
        )
    };
    let by_rate = ["t1", "t2", "t2h", "t3", "t3h", "t4"].map(at);
    assert!(by_rate.windows(2).all(|pair| pair[0] > pair[1]), "{by_rate:?}");
}

#[test]
fn every_head_dim_and_scale_mode_round_trips() {
    let mut source = Gaussian::new(3);
    for id in one_width() {
        let limit = 1.6 * LIMITS.iter().find(|row| row.0 == id.name()).expect("a limit").1;
        for dim in HEAD_DIMS {
            for scale_mode in ScaleMode::ALL {
                let codec = codec(id, dim, scale_mode, Effort::Default);
                let x = source.vector(dim);
                let (mut block, mut back) = (vec![0xaa; codec.block_bytes()], vec![0.0; dim]);
                codec.encode(&x, &mut block).expect("finite");
                codec.decode(&block, &mut back).expect("own block");
                let (xx, xb, bb) = (dot(&x, &x), dot(&x, &back), dot(&back, &back));
                let name = format!("{} {dim} {}", id.name(), scale_mode.name());
                // A ring of 16 coordinates is hardly longer than the shift register that runs over it.
                let limit = if dim < 64 { f64::min(2.2 * limit, 0.75) } else { limit };
                let error = 1.0 - xb * xb / (xx * bb);
                assert!(error < limit, "{name}: {error}");
                match scale_mode {
                    ScaleMode::Raw => assert!((bb / xx - 1.0).abs() < 0.6, "{name}: norm {}", bb / xx),
                    ScaleMode::Preserving => assert!((bb / xx - 1.0).abs() < 3e-3, "{name}: norm"),
                    ScaleMode::Unbiased => assert!((xb / xx - 1.0).abs() < 2e-3, "{name}: projection"),
                    ScaleMode::Mmse => assert!((xb / bb - 1.0).abs() < 2e-3, "{name}: least squares"),
                }
            }
        }
    }
}

#[test]
fn scores_and_accumulate_agree_with_decode() {
    let mut source = Gaussian::new(9);
    for id in trellis_ids() {
        let dims = [16, 64, 80, 112, 128, 256, 576, 1024];
        for dim in dims.into_iter().filter(|&dim| id.block_bytes(dim).is_some()) {
            let codec = codec(id, dim, ScaleMode::Unbiased, Effort::Fast);
            let (mut blocks, mut back) = (vec![0; 5 * codec.block_bytes()], vec![0.0; 5 * dim]);
            for (block, back) in blocks.chunks_mut(codec.block_bytes()).zip(back.chunks_mut(dim)) {
                codec.encode(&source.vector(dim), block).expect("finite");
                codec.decode(block, back).expect("own block");
            }
            let (query, weights) = (source.vector(dim), source.vector(5));
            let (mut rotated, mut scores, mut sum) = (vec![0.0; dim], [0.0; 5], vec![0.0; dim]);
            codec.rotate_query(&query, &mut rotated);
            codec.scores(&rotated, &blocks, &mut scores);
            codec.accumulate(&weights, &blocks, &mut sum);
            codec.unrotate(&mut sum);
            for (score, back) in scores.iter().zip(back.chunks(dim)) {
                let exact = dot(&query, back);
                assert!((f64::from(*score) - exact).abs() < 1e-4 * dim as f64, "{} {dim}", id.name());
            }
            for (t, &found) in sum.iter().enumerate() {
                let exact: f64 =
                    weights.iter().zip(back.chunks(dim)).map(|(w, b)| f64::from(*w) * f64::from(b[t])).sum();
                assert!((f64::from(found) - exact).abs() < 1e-3, "{} {dim} {t}", id.name());
            }
        }
    }
}

#[test]
fn edge_inputs_encode_or_are_refused() {
    for id in trellis_ids() {
        for dim in [16, 80, 128].into_iter().filter(|&dim| id.block_bytes(dim).is_some()) {
            for (name, x) in edge_cases(dim) {
                for scale_mode in ScaleMode::ALL {
                    let codec = codec(id, dim, scale_mode, Effort::Default);
                    let (mut block, mut back) = (vec![0x5a; codec.block_bytes()], vec![0.0; dim]);
                    match codec.encode(&x, &mut block) {
                        Ok(()) => codec.decode(&block, &mut back).expect("own block"),
                        Err(_) => assert!(block.iter().all(|&byte| byte == 0x5a), "{name}: written"),
                    }
                    assert!(back.iter().all(|v| v.is_finite()), "{} {dim} {name}", id.name());
                }
            }
            let codec = codec(id, dim, ScaleMode::Unbiased, Effort::Default);
            let (mut block, mut back) = (vec![0x5a; codec.block_bytes()], vec![1.0; dim]);
            let mut encode = |value: f32| {
                let mut x = vec![1.0; dim];
                x[dim / 3] = value;
                codec.encode(&x, &mut block)
            };
            assert_eq!(encode(f32::NAN), Err(EncodeError::NonFinite));
            assert_eq!(encode(f32::NEG_INFINITY), Err(EncodeError::NonFinite));
            assert_eq!(encode(1e15), Err(EncodeError::OutOfRange));
            assert_eq!(encode(f32::MAX), Err(EncodeError::OutOfRange));
            assert!(block.iter().all(|&byte| byte == 0x5a));
            codec.encode(&vec![1e-42; dim], &mut block).expect("denormals");
            codec.decode(&block, &mut back).expect("zero block");
            assert!(back.iter().all(|&v| v == 0.0));
        }
    }
}

#[test]
fn a_workspace_of_the_stated_size_suffices_and_its_contents_do_not_matter() {
    let mut source = Gaussian::new(5);
    for id in trellis_ids() {
        for dim in [16, 128, 1024].into_iter().filter(|&dim| id.block_bytes(dim).is_some()) {
            let codec = codec(id, dim, ScaleMode::Unbiased, Effort::Default);
            let x = source.vector(dim);
            let (mut plain, mut dirty) = (vec![0; codec.block_bytes()], vec![0; codec.block_bytes()]);
            codec.encode(&x, &mut plain).expect("finite");
            let mut workspace = vec![0xff; codec.workspace_bytes()];
            codec.encode_in(&mut workspace, &x, &mut dirty).expect("finite");
            assert_eq!(plain, dirty);
            let short = workspace.len() - 1;
            assert_eq!(
                codec.encode_in(&mut workspace[..short], &x, &mut dirty),
                Err(EncodeError::WorkspaceTooSmall)
            );
        }
    }
}
