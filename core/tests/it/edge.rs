//! Inputs that break codecs: structured, tiny, huge or not finite; and bytes that no encoder wrote.

use proptest::prelude::*;
use tqkv_core::code::S3;
use tqkv_core::{
    AnyCodec, BlockError, BlockView, Codec, CodecId, DecodeError, Effort, EncodeError, HEAD_DIMS, Options,
    ScaleMode, ShapeError, demote,
};
use tqkv_tests::inputs::{Gaussian, edge_cases, one_hot, walsh};
use tqkv_tests::oracle::{dot, relative_mse};

fn round_trip(codec: &AnyCodec, x: &[f32]) -> Vec<f32> {
    let (mut block, mut out) = (vec![0; codec.block_bytes()], vec![0.0; x.len()]);
    codec.encode(x, &mut block).unwrap();
    codec.decode(&block, &mut out).unwrap();
    out
}

fn codecs(dim: usize) -> impl Iterator<Item = AnyCodec> {
    CodecId::ALL.iter().filter_map(move |&id| AnyCodec::new(id, dim, Options::DEFAULT).ok())
}

#[test]
fn edge_cases_decode_to_finite_values_or_are_refused() {
    for dim in HEAD_DIMS {
        for codec in codecs(dim) {
            for (name, x) in edge_cases(dim) {
                let (mut block, mut out) = (vec![0xaa; codec.block_bytes()], vec![0.0; dim]);
                match codec.encode(&x, &mut block) {
                    Ok(()) => {
                        codec.decode(&block, &mut out).unwrap();
                        assert!(out.iter().all(|v| v.is_finite()), "{} dim {dim}: {name}", codec.id().name());
                    }
                    Err(error) => {
                        assert_eq!(error, EncodeError::OutOfRange, "{} dim {dim}: {name}", codec.id().name());
                        assert!(name.contains("largest"), "{} dim {dim}: {name}", codec.id().name());
                        assert!(block.iter().all(|&b| b == 0xaa), "a refused vector leaves the block alone");
                    }
                }
                if name.contains("zeros") || name == "denormals" {
                    assert!(out.iter().all(|&v| v == 0.0), "{} dim {dim}: {name}", codec.id().name());
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_or_too_large_is_refused_and_nothing_written() {
    for dim in [16, 80, 128] {
        for codec in codecs(dim) {
            for (value, at, want) in [
                (f32::NAN, 0, EncodeError::NonFinite),
                (f32::INFINITY, dim - 1, EncodeError::NonFinite),
                (f32::NEG_INFINITY, dim / 2, EncodeError::NonFinite),
                (1e15, 3, EncodeError::OutOfRange),
                (f32::MAX, 5, EncodeError::OutOfRange),
            ] {
                let mut block = vec![0x55; codec.block_bytes()];
                let got = codec.encode(&one_hot(dim, at, value), &mut block);
                assert_eq!(got, Err(want), "{} dim {dim}: {value}", codec.id().name());
                assert!(block.iter().all(|&b| b == 0x55));
            }
        }
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let codec = AnyCodec::new(CodecId::S4, 128, Options::DEFAULT).unwrap();
    let (x, mut block, mut out) = (vec![1.0; 129], vec![0; 67], vec![0.0; 128]);
    assert_eq!(codec.encode(&x[..127], &mut block[..66]), Err(EncodeError::WrongLength));
    assert_eq!(codec.encode(&x[..128], &mut block[..65]), Err(EncodeError::WrongLength));
    assert_eq!(codec.encode(&x[..128], &mut block), Err(EncodeError::WrongLength));
    assert_eq!(codec.decode(&block, &mut out), Err(DecodeError::WrongLength));
    assert_eq!(codec.decode(&block[..66], &mut out[..64]), Err(DecodeError::WrongLength));
    assert_eq!(AnyCodec::new(CodecId::S4, 100, Options::DEFAULT).err(), Some(ShapeError::UnsupportedHeadDim));
    assert_eq!(AnyCodec::new(CodecId::Q4_0, 80, Options::DEFAULT).err(), Some(ShapeError::UnsupportedCodec));
}

/// Measures a vector along a row of the plain Hadamard matrix, over many seeds. One direction with one seed
/// is a single draw from the spread of random directions. With a pure row its coordinates are also discrete,
/// so the test compares the mean over seeds. Without signs, a 4-bit code would lose 55 % of such a vector,
/// and a 2-bit code 82 %.
fn over_seeds(x: &[f32], id: CodecId) -> (f64, f64) {
    const SEEDS: u64 = 64;
    let errors: Vec<f64> = (0..SEEDS)
        .map(|seed| {
            let options = Options::DEFAULT.seed(seed).scale_mode(ScaleMode::Raw).effort(Effort::Fast);
            let codec = AnyCodec::new(id, x.len(), options).unwrap();
            relative_mse(x, &round_trip(&codec, x))
        })
        .collect();
    (errors.iter().sum::<f64>() / SEEDS as f64, errors.iter().copied().fold(0.0, f64::max))
}

#[test]
fn offsets_and_alternations_cost_what_random_directions_cost() {
    let mut gaussian = Gaussian::new(4);
    for dim in [64, 80, 96, 112, 128, 192, 256, 576] {
        for id in [CodecId::S2, CodecId::S3, CodecId::S4] {
            let want = id.codebook(dim).unwrap().relative_mse();
            for row in [0, 1] {
                let x: Vec<f32> = walsh(dim, row).iter().map(|v| v + 0.2 * gaussian.value()).collect();
                let (mean, worst) = over_seeds(&x, id);
                let name = format!("{} dim {dim}, row {row}", id.name());
                assert!(mean < 1.2 * want, "{name}: mean {mean} against {want}");
                assert!(worst < 4.5 * want, "{name}: worst {worst} against {want}");
            }
        }
    }
}

#[test]
fn every_walsh_function_survives() {
    for dim in [64, 128, 256] {
        for row in 0..dim {
            let (mean, worst) = over_seeds(&walsh(dim, row), CodecId::S4);
            assert!(mean < 0.02 && worst < 0.06, "dim {dim}, row {row}: mean {mean}, worst {worst}");
        }
    }
}

#[test]
fn attention_on_codes_equals_attention_on_decoded_vectors() {
    let mut gaussian = Gaussian::new(21);
    for dim in HEAD_DIMS {
        for codec in codecs(dim) {
            let vectors: Vec<Vec<f32>> = (0..3).map(|_| gaussian.vector(dim)).collect();
            let (q, weights) = (gaussian.vector(dim), [0.5, -1.25, 2.0]);
            let mut blocks = vec![0; 3 * codec.block_bytes()];
            let mut decoded = vec![vec![0.0; dim]; 3];
            for ((x, y), block) in
                vectors.iter().zip(&mut decoded).zip(blocks.chunks_exact_mut(codec.block_bytes()))
            {
                codec.encode(x, block).unwrap();
                codec.decode(block, y).unwrap();
            }
            let (mut rotated, mut scores, mut acc) = (vec![0.0; dim], [0.0; 3], vec![0.0; dim]);
            codec.rotate_query(&q, &mut rotated);
            codec.scores(&rotated, &blocks, &mut scores);
            codec.accumulate(&weights, &blocks, &mut acc);
            codec.unrotate(&mut acc);
            let mut row = vec![0.0; dim];
            for (i, y) in decoded.iter().enumerate() {
                let want = dot(&q, y);
                let allowed = 1e-5 * dim as f64;
                assert!((f64::from(scores[i]) - want).abs() < allowed, "{} dim {dim}", codec.id().name());
                codec.decode_rotated(
                    &blocks[i * codec.block_bytes()..(i + 1) * codec.block_bytes()],
                    &mut row,
                );
                assert!((dot(&rotated, &row) - want).abs() < allowed, "{} dim {dim}", codec.id().name());
            }
            for (i, &sum) in acc.iter().enumerate() {
                let want: f32 = decoded.iter().zip(weights).map(|(y, w)| w * y[i]).sum();
                assert!((sum - want).abs() < 1e-4, "{} dim {dim}: {sum} against {want}", codec.id().name());
            }
        }
    }
}

#[test]
fn typed_and_erased_codecs_write_the_same_bytes() {
    let x: [f32; 96] = Gaussian::new(2).vector(96).try_into().unwrap();
    let mut typed = [0; Codec::<96, S3>::BLOCK_BYTES];
    Codec::<96, S3>::encode(&x, &mut typed).unwrap();
    let erased = AnyCodec::new(CodecId::S3, 96, Options::DEFAULT).unwrap();
    let mut block = vec![0; erased.block_bytes()];
    erased.encode(&x, &mut block).unwrap();
    assert_eq!(typed.as_slice(), block);
    let (mut a, mut b, mut q) = ([0.0; 96], [0.0; 96], [0.0; 96]);
    Codec::<96, S3>::decode(&typed, &mut a).unwrap();
    erased.decode(&block, &mut b).unwrap();
    assert_eq!(a, b);
    erased.rotate_query(&x, &mut q);
    let mut score = [0.0];
    erased.scores(&q, &block, &mut score);
    assert_eq!(Codec::<96, S3>::score(&q, &typed), score[0]);
}

#[test]
fn dropping_bits_equals_encoding_with_fewer() {
    let mut gaussian = Gaussian::new(17);
    let make = |id, mode| {
        let options = Options::DEFAULT.scale_mode(mode).effort(Effort::Fast);
        AnyCodec::new(id, 112, options).unwrap()
    };
    for mode in ScaleMode::ALL {
        for (wide, narrow) in
            [(CodecId::N4, CodecId::N3), (CodecId::N4, CodecId::N2), (CodecId::N3, CodecId::N2)]
        {
            let (from, to) = (make(wide, mode), make(narrow, mode));
            for _ in 0..20 {
                let x = gaussian.vector(112);
                let (mut a, mut b, mut c) =
                    (vec![0; from.block_bytes()], vec![0; to.block_bytes()], vec![0; to.block_bytes()]);
                from.encode(&x, &mut a).unwrap();
                to.encode(&x, &mut b).unwrap();
                demote(&from, &a, &to, &mut c).unwrap();
                assert_eq!(b[2..], c[2..], "codes, {} to {}", wide.name(), narrow.name());
                let scale = |id, block| BlockView::new(id, 112, block).unwrap().scale();
                let ratio = scale(narrow, &c) / scale(narrow, &b);
                assert!((ratio - 1.0).abs() < 0.25, "{mode:?}: {ratio}");
            }
        }
    }
    let (n4, s2) = (make(CodecId::N4, ScaleMode::Raw), make(CodecId::S2, ScaleMode::Raw));
    let block = vec![0; n4.block_bytes()];
    assert!(demote(&n4, &block, &s2, &mut vec![0; s2.block_bytes()]).is_err());
    assert!(demote(&n4, &block, &make(CodecId::N2, ScaleMode::Raw), &mut [0; 3]).is_err());
}

#[test]
fn a_codec_is_read_back_from_what_it_prints_in_any_case() {
    for &id in CodecId::ALL {
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.name().to_uppercase().parse(), Ok(id));
        assert_eq!(format!("{id:>6}|"), format!("{:>6}|", id.name()));
    }
    for none in ["", " s4", "s4 ", "s9", "balanced", "s4,s4", "s\u{17f}4"] {
        let error = none.parse::<CodecId>().unwrap_err().to_string();
        assert_eq!(error.lines().count(), 1);
        assert!(error.contains("presets such as 'balanced'"), "{error}");
        // Every name in the text is the name of a codec.
        let names = error.split("accepted are ").nth(1).unwrap().split(" and ").next().unwrap();
        assert!(names.split(", ").all(|name| name.parse::<CodecId>().is_ok()), "{names}");
        assert!((8..=12).contains(&names.split(", ").count()), "{names}");
    }
}

#[test]
fn names_and_codes_are_unique_and_stable() {
    for &id in CodecId::ALL {
        assert_eq!(CodecId::from_name(id.name()), Some(id));
        assert_eq!(CodecId::from_code(id.code()), Some(id));
    }
    for mode in ScaleMode::ALL {
        assert_eq!(ScaleMode::from_name(mode.name()), Some(mode));
        assert_eq!(ScaleMode::from_code(mode.code()), Some(mode));
    }
    let bytes = |name: &str, dim| CodecId::from_name(name).unwrap().block_bytes(dim);
    for (name, want) in [
        ("f16", 256),
        ("i8", 130),
        ("s2", 34),
        ("s3", 50),
        ("s4", 66),
        ("s5", 82),
        ("q8_0", 136),
        ("q4_0", 72),
    ] {
        assert_eq!(bytes(name, 128), Some(want), "{name}");
    }
    assert_eq!(bytes("s3", 80), Some(32));
    assert_eq!(bytes("q4_0", 80), None);
    assert_eq!([bytes("m2", 128), bytes("m3", 128)], [Some(34), Some(50)]);
    for dim in HEAD_DIMS {
        assert_eq!(bytes("m2", dim).is_some(), dim.is_power_of_two() && dim >= 64, "{dim}");
    }
}

#[test]
fn errors_say_what_is_accepted() {
    let blocks = [
        (BlockError::Shape(ShapeError::UnsupportedHeadDim), "multiples of 16 from 16 to 1024"),
        (BlockError::Shape(ShapeError::UnsupportedCodec), "a power of two from 64"),
        (BlockError::Decode(DecodeError::WrongLength), "head_dim values"),
        (BlockError::Decode(DecodeError::NonFiniteScale), "finite f16"),
        (BlockError::Encode(EncodeError::NonFinite), "only finite"),
        (BlockError::Encode(EncodeError::OutOfRange), "at most 65504"),
        (BlockError::Encode(EncodeError::WrongLength), "head_dim values"),
        (BlockError::Encode(EncodeError::WorkspaceTooSmall), "workspace_bytes"),
    ];
    for (error, word) in blocks {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn a_vector_made_against_the_signs_is_not_stretched_without_end() {
    for dim in [16, 128, 576, 1024] {
        for codec in codecs(dim).filter(|codec| codec.id().is_rotated()) {
            // The rotation turns this vector into a single large coordinate.
            let x: Vec<f32> =
                (0..dim).map(|i| if codec.signs().is_negative(i) { -1.0 } else { 1.0 }).collect();
            let out = round_trip(&codec, &x);
            let stretch = dot(&out, &out) / dot(&x, &x);
            assert!(stretch < 4.01, "{} {dim}: {stretch}", codec.id().name());
        }
    }
}

#[test]
fn every_vector_up_to_the_largest_norm_can_be_stored() {
    let mut gaussian = Gaussian::new(11);
    for (dim, scale_mode, effort) in [16, 80, 128, 1024]
        .into_iter()
        .flat_map(|dim| ScaleMode::ALL.map(|mode| (dim, mode)))
        .flat_map(|(dim, mode)| Effort::ALL.map(|effort| (dim, mode, effort)))
    {
        for &id in CodecId::ALL {
            let Ok(codec) = AnyCodec::new(id, dim, Options::DEFAULT.scale_mode(scale_mode).effort(effort))
            else {
                continue;
            };
            // After rotation: few large coordinates, alone or over small ones. They stretch scales the most.
            for (large, small) in [(1, 0.0), (1, 0.2), (2, 0.0), (3, 0.05), (dim / 4, 0.0), (dim, 1.0)] {
                let noise = gaussian.vector(dim);
                let mut x: Vec<f32> = noise
                    .iter()
                    .enumerate()
                    .map(|(i, v)| if i < large { (dim as f32).sqrt() } else { small * v })
                    .collect();
                codec.unrotate(&mut x);
                let norm = dot(&x, &x).sqrt() as f32;
                x.iter_mut().for_each(|v| *v *= codec.max_norm() * 0.9999 / norm);
                let encoded = codec.encode(&x, &mut vec![0; codec.block_bytes()]);
                let what = || format!("{} {dim} {scale_mode:?} {effort:?} {large} {small}", id.name());
                assert_eq!(encoded, Ok(()), "{}", what());
            }
        }
    }
    let limit = |id| AnyCodec::new(id, 128, Options::DEFAULT).unwrap().max_norm();
    // No vector of a model comes near this norm.
    assert!(CodecId::ALL.iter().all(|&id| limit(id) > 5000.0));
}

#[test]
fn demotion_refuses_a_scale_that_leaves_f16() {
    let codec = |id| AnyCodec::new(id, 128, Options::DEFAULT.effort(Effort::Fast)).unwrap();
    let (wide, narrow) = (codec(CodecId::N4), codec(CodecId::N2));
    let x = Gaussian::new(5).vector(128);
    let norm = dot(&x, &x).sqrt() as f32;
    let x: Vec<f32> = x.iter().map(|v| v * (60_000.0 / norm)).collect();
    let (mut block, mut out) = (vec![0; wide.block_bytes()], vec![7; narrow.block_bytes()]);
    wide.encode(&x, &mut block).unwrap();
    let refused = demote(&wide, &block, &narrow, &mut out);
    assert_eq!(refused, Err(BlockError::Encode(EncodeError::OutOfRange)));
    assert!(out.iter().all(|&byte| byte == 7), "nothing was written");
}

#[test]
fn the_byte_that_no_encoder_writes_is_worth_what_it_says() {
    for (id, first) in [(CodecId::I8, 2), (CodecId::Q8_0, 2)] {
        let codec = AnyCodec::new(id, 128, Options::DEFAULT).unwrap();
        let (mut block, mut x) = (vec![0; codec.block_bytes()], vec![0.0; 128]);
        block[..2].copy_from_slice(&tqkv_core::f16::ONE.to_le_bytes());
        block[first] = 0x80;
        codec.decode_rotated(&block, &mut x);
        assert_eq!(x[0], -128.0 * codec.unit(), "{}", id.name());
        assert!(x[1..].iter().all(|&v| v == 0.0));
    }
}

#[test]
fn wrong_lengths_are_not_cut_to_fit() {
    let codec = AnyCodec::new(CodecId::S4, 64, Options::DEFAULT).unwrap();
    let (blocks, x) = (vec![0; 2 * codec.block_bytes()], vec![0.0; 64]);
    let refused = |call: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err();
    assert!(refused(&|| codec.rotate_query(&x, &mut [0.0; 63])));
    assert!(refused(&|| codec.rotate_query(&x[1..], &mut [0.0; 63])));
    assert!(refused(&|| codec.scores(&x, &blocks, &mut [0.0; 3])));
    assert!(refused(&|| codec.scores(&x[1..], &blocks, &mut [0.0; 2])));
    assert!(refused(&|| codec.accumulate(&[1.0; 2], &blocks[1..], &mut [0.0; 64])));
    assert!(refused(&|| codec.unrotate(&mut [0.0; 65])));
    assert!(refused(&|| codec.decode_rotated(&blocks, &mut [0.0; 64])));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_finite_vector_comes_back_near(
        dim in prop::sample::select(&HEAD_DIMS[..12]),
        id in prop::sample::select(CodecId::ALL),
        seed in any::<u64>(),
        exponent in -6..2i32,
        spikes in 0..6usize,
    ) {
        let Ok(codec) = AnyCodec::new(id, dim, Options::DEFAULT.seed(seed).scale_mode(ScaleMode::Mmse)) else { return Ok(()) };
        let mut gaussian = Gaussian::new(seed);
        let mut x = gaussian.vector(dim);
        for _ in 0..spikes {
            let at = gaussian.below(dim);
            // The clamp bounds a coordinate that is drawn several times.
            x[at] = x[at].clamp(-4.0, 4.0) * 30.0;
        }
        x.iter_mut().for_each(|v| *v *= 10f32.powi(exponent));
        // The least squared error is never above that of the zero vector, except for f16 rounding.
        let error = relative_mse(&x, &round_trip(&codec, &x));
        prop_assert!(error < 1.0 || exponent < -4, "{} dim {dim}: {error}", id.name());
        prop_assert!(error < 0.9 || id.bits() == 1 || exponent < -4, "{} dim {dim}: {error}", id.name());
    }

    #[test]
    fn any_bytes_decode_or_are_refused(
        dim in prop::sample::select(&HEAD_DIMS[..12]),
        id in prop::sample::select(CodecId::ALL),
        bytes in prop::collection::vec(any::<u8>(), 0..700),
    ) {
        let Ok(codec) = AnyCodec::new(id, dim, Options::DEFAULT) else { return Ok(()) };
        let (mut out, mut block) = (vec![0.0; dim], bytes.clone());
        prop_assert!(bytes.len() == codec.block_bytes() || codec.decode(&bytes, &mut out).is_err());
        block.resize(codec.block_bytes(), 0x5a);
        if codec.decode(&block, &mut out).is_ok() && id.layout().has_one_scale() {
            prop_assert!(out.iter().all(|v| v.is_finite()));
        }
        let view = BlockView::new(id, dim, &block);
        prop_assert_eq!(view.is_ok(), id.layout().has_one_scale());
        if let Ok(view) = view {
            prop_assert_eq!(view.codes().count(), dim);
            prop_assert!(view.code(dim).is_none());
        }
    }
}
