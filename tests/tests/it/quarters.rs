//! The codes of quarters: their bytes by the words of SPEC.md, their errors, their weights.

use tqkv::cache::{CacheSpec, KvCache};
use tqkv_core::unstable::trellis::{Quarters, Trellis};
use tqkv_core::{AnyCodec, CodecId, HEAD_DIMS, Options, ScaleMode};
use tqkv_tests::inputs::Gaussian;
use tqkv_tests::oracle::energy;

const CODES: [(CodecId, [usize; 4]); 2] = [(CodecId::M2, [4, 2, 1, 1]), (CodecId::M3, [4, 3, 3, 2])];

fn codec(id: CodecId, dim: usize) -> AnyCodec {
    AnyCodec::new(id, dim, Options::DEFAULT).expect("a power of two")
}

fn parts(codec: &AnyCodec) -> (&'static Trellis<'static>, &'static Quarters) {
    let trellis = codec.id().trellis().expect("a trellis");
    (trellis, trellis.quarters().expect("quarters"))
}

/// The levels of a block, one coordinate after the other.
fn by_definition(codec: &AnyCodec, widths: [usize; 4], block: &[u8]) -> Vec<f32> {
    let ((trellis, quarters), dim) = (parts(codec), codec.dim());
    let n = dim / 8;
    let planes: Vec<&[u8]> = block[2..].chunks(n).collect();
    let bit = |plane: usize, byte: usize, bit: usize| usize::from(planes[plane][byte] >> bit & 1);
    let last = planes.len() - 1;
    let scale = f32::from(half::f16::from_le_bytes([block[0], block[1]]));
    let level = |t: usize| {
        let window = (0..9).fold(0, |window, back| {
            let at = (t + dim - back) % dim;
            window | bit(0, at % n, at / n) << back
        });
        let (i, at) = (t % n, t / n);
        let mut symbol = 0;
        if widths[at / 2] > 1 {
            symbol |= bit(1, i, at);
        }
        if at < 2 {
            symbol |= bit(last, i, 4 + 2 * at) << 1 | bit(last, i, 5 + 2 * at) << 2;
        } else if widths[at / 2] > 2 {
            symbol |= bit(last, i, at - 2) << 1;
        }
        let level = quarters[at / 2].levels[trellis.code.parity(window) + 8 * symbol];
        f32::from(level) * (scale * codec.unit())
    };
    (0..dim).map(level).collect()
}

#[test]
fn any_bytes_decode_as_the_specification_says() {
    let mut random = fastrand::Rng::with_seed(3);
    for (id, widths) in CODES {
        for dim in [64, 128, 256, 512, 1024] {
            let codec = codec(id, dim);
            let mut block: Vec<u8> = (0..codec.block_bytes()).map(|_| random.u8(..)).collect();
            block[..2].copy_from_slice(&half::f16::from_f32(0.75).to_le_bytes());
            let mut levels = vec![0.0; dim];
            codec.decode_rotated(&block, &mut levels);
            assert_eq!(levels, by_definition(&codec, widths, &block), "{} {dim}", id.name());
        }
    }
}

/// The sums of a term over the coordinates of each quarter, over those of y^2. The term is of y and its
/// level, in the rotated domain.
fn shares(codec: &AnyCodec, count: usize, term: fn(f64, f64) -> f64) -> [f64; 4] {
    let (dim, mut source) = (codec.dim(), Gaussian::new(5));
    let (mut sums, mut energy) = ([0.0; 4], [0.0; 4]);
    let (mut block, mut y, mut levels) = (vec![0; codec.block_bytes()], vec![0.0; dim], vec![0.0; dim]);
    for _ in 0..count {
        let x = source.vector(dim);
        codec.encode(&x, &mut block).expect("finite");
        codec.rotate_query(&x, &mut y);
        codec.decode_rotated(&block, &mut levels);
        for (i, (y, level)) in y.iter().zip(&levels).enumerate() {
            let y = f64::from(*y) * dim as f64;
            sums[4 * i / dim] += term(y, f64::from(*level));
            energy[4 * i / dim] += y * y;
        }
    }
    core::array::from_fn(|g| sums[g] / energy[g])
}

/// The relative squared error of each quarter.
fn errors(codec: &AnyCodec, count: usize) -> [f64; 4] {
    shares(codec, count, |y, level| (y - level).powi(2))
}

/// The sums x^ y / y^2 of each quarter.
fn slopes(codec: &AnyCodec, count: usize) -> [f64; 4] {
    shares(codec, count, |y, level| y * level)
}

#[test]
fn each_quarter_has_the_error_of_its_width() {
    // Unbiased errors of the widths: D / (1 - D), and a tenth more.
    let limit = [f64::INFINITY, 0.46, 0.085, 0.0215, 0.0056];
    for (id, widths) in CODES {
        let found = errors(&codec(id, 128), 600);
        for (g, width) in widths.into_iter().enumerate() {
            assert!(found[g] < limit[width], "{} quarter {g}: {}", id.name(), found[g]);
        }
    }
}

#[test]
fn each_quarter_is_unbiased() {
    for (id, _) in CODES {
        let found = slopes(&codec(id, 128), 1000);
        assert!(found.iter().all(|slope| (slope - 1.0).abs() < 0.03), "{}: {found:?}", id.name());
        // Steep weights leave more error in the last quarter, which then shrinks; the first stays.
        let steep = slopes(&codec(id, 128).weighted([90.0, 10.0, 1.0, 0.3]), 300);
        assert!((steep[0] - 1.0).abs() < 0.01, "{}: {steep:?}", id.name());
    }
}

#[test]
fn the_preserving_scale_keeps_the_norm_at_any_weights() {
    let mut source = Gaussian::new(7);
    for (id, _) in CODES {
        for dim in [64, 128, 1024] {
            let options = Options::DEFAULT.scale_mode(ScaleMode::Preserving);
            let plain = AnyCodec::new(id, dim, options).expect("a power of two");
            for codec in [plain, plain.weighted([1e3, 30.0, 1.0, 0.1]), plain.weighted([1.0; 4])] {
                let x = source.vector(dim);
                let (mut block, mut back) = (vec![0; codec.block_bytes()], vec![0.0; dim]);
                codec.encode(&x, &mut block).expect("finite");
                codec.decode(&block, &mut back).expect("own block");
                let ratio = (energy(&back) / energy(&x)).sqrt();
                // The scale has the precision of f16.
                assert!((ratio - 1.0).abs() < 1e-3, "{} {dim}: {ratio}", id.name());
            }
        }
    }
}

#[test]
fn weights_move_errors_between_quarters() {
    for (id, _) in CODES {
        let codec = codec(id, 128);
        let steep = errors(&codec.weighted([400.0, 10.0, 1.0, 0.3]), 300);
        let flat = errors(&codec.weighted([1.0; 4]), 300);
        assert!(steep[0] < 0.6 * flat[0] && steep[3] > 1.2 * flat[3], "{}: {steep:?} {flat:?}", id.name());
        let x = Gaussian::new(1).vector(128);
        let encode = |codec: &AnyCodec| {
            let mut block = vec![0; codec.block_bytes()];
            codec.encode(&x, &mut block).expect("finite");
            block
        };
        // Only ratios matter, and weights that are none are ignored.
        let weights = [9.0, 3.0, 0.5, 0.25];
        assert_eq!(encode(&codec.weighted(weights)), encode(&codec.weighted(weights.map(|w| w * 64.0))));
        for bad in [f32::NAN, 0.0, -1.0, f32::INFINITY] {
            assert_eq!(encode(&codec.weighted([1.0, bad, 1.0, 1.0])), encode(&codec));
        }
    }
}

#[test]
fn other_head_dims_are_refused() {
    for (id, _) in CODES {
        for dim in HEAD_DIMS {
            let made = AnyCodec::new(id, dim, Options::DEFAULT);
            if dim.is_power_of_two() && dim >= 64 {
                assert!(made.is_ok());
            } else {
                assert!(made.unwrap_err().to_string().contains("m2 and m3 a power of two from 64"));
            }
        }
    }
}

/// Keys learn a map for them, and values have none.
#[test]
fn a_cache_has_them_for_keys_alone() {
    let made = |key: CodecId, value: CodecId| KvCache::new(CacheSpec::new(1, 1, 1, 128).codecs(key, value));
    for (id, _) in CODES {
        assert!(made(id, CodecId::T2).is_ok(), "{id}");
        let Err(error) = made(CodecId::T2, id) else { panic!("{id} values were not refused") };
        let error = error.to_string();
        assert!(error.contains(id.name()) && error.contains("for values"), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}
