//! Encoding, decoding and scores on a warp are bit-identical to the portable codec.

use crate::scene::{Scene, rotate, signs};
use crate::warp::{Buffer, Emulated};
use half::{bf16, f16};
use tqkv_core::{AnyCodec, CodecId, Effort, EncodeError, Options, ScaleMode};
use tqkv_gpu_kernels::args::WeightDecode;
use tqkv_gpu_kernels::codecs::HEAD_DIMS;
use tqkv_gpu_kernels::{decode, encode, with_codec};
use tqkv_tests::inputs::{Gaussian, edge_cases, one_hot};
use tqkv_tests::scope;

/// Encodes rows with the kernel and with the portable codec, and compares every block. The kernel must refuse
/// every vector that the codec refuses, and write zeros for it.
fn compare(codec: &AnyCodec, scene: &Scene, rows: &[f32], input: &Buffer, kind: u32) {
    let (dim, heads) = (codec.dim(), scene.num_kv_heads);
    let pool = scene.pool(dim, codec.id().bits());
    let outcomes = scene.encode(codec, input, kind, &pool);
    let pool = pool.bytes();
    for (i, x) in rows.chunks_exact(dim).enumerate() {
        let (token, head) = (i / heads as usize, i as u32 % heads);
        let mut expected = vec![0; codec.block_bytes()];
        let outcome = match codec.encode(x, &mut expected) {
            Ok(()) => encode::status::DONE,
            Err(EncodeError::NonFinite) => encode::status::NON_FINITE,
            Err(_) => encode::status::OUT_OF_RANGE,
        };
        if outcome != encode::status::DONE {
            expected.fill(0);
        }
        let name = format!("{} at {dim}, vector {i}", codec.id().name());
        assert_eq!(outcomes[i], outcome, "{name}");
        let (sequence, position) = (scene.sequence_of[token], scene.position_of[token]);
        assert_eq!(scene.block(&pool, codec, sequence, position, head), expected, "{name}");
    }
}

fn is_trellis(id: CodecId) -> bool {
    id.trellis().is_some()
}

fn each_dim(test: impl Fn(usize)) {
    scope::dims(&HEAD_DIMS).into_iter().for_each(test);
}

of_each_codec!(vectors_encode_to_the_portable_codes);

fn vectors_encode_to_the_portable_codes(id: CodecId) {
    each_dim(|dim| {
        let codec = AnyCodec::new(id, dim, Options::DEFAULT).unwrap();
        // A page and parts of others. Some sequences begin and end inside a page.
        let lengths: &[u32] = match (is_trellis(id), scope::is_exhaustive()) {
            (true, false) => &[1, 0, 6, 8],
            (true, true) | (false, false) => &[1, 0, 64, 67],
            (false, true) => &[1, 2_000, 0, 64, 65, 2_870],
        };
        let scene = Scene::new(lengths, 2);
        let mut gaussian = Gaussian::new(dim as u64 + u64::from(id.code()));
        let rows: Vec<f32> = (0..2 * scene.tokens()).flat_map(|_| gaussian.vector(dim)).collect();
        compare(&codec, &scene, &rows, &Buffer::from_f32(&rows), encode::element::F32);
    });
}

of_each_codec!(every_mode_effort_and_edge_case_encodes_to_the_portable_codes);

fn every_mode_effort_and_edge_case_encodes_to_the_portable_codes(id: CodecId) {
    for (shape, dim) in scope::dims(&HEAD_DIMS).into_iter().enumerate() {
        let mut rows: Vec<Vec<f32>> = edge_cases(dim).into_iter().map(|(_, x)| x).collect();
        rows.push(one_hot(dim, 1, f32::NAN));
        rows.push(one_hot(dim, dim - 1, f32::NEG_INFINITY));
        rows.push(vec![1e30; dim]);
        rows.push(vec![60_000.0; dim]);
        let scene = Scene::new(&[rows.len() as u32], 1);
        for (i, scale_mode) in ScaleMode::ALL.into_iter().enumerate() {
            for (j, effort) in Effort::ALL.into_iter().enumerate() {
                // A trellis search is slow, and mode and effort do not interact.
                if is_trellis(id) && i % 3 != j || !scope::is_turn(i + j, shape, HEAD_DIMS.len()) {
                    continue;
                }
                let codec =
                    AnyCodec::new(id, dim, Options::DEFAULT.seed(7).scale_mode(scale_mode).effort(effort))
                        .unwrap();
                let rows = rows.concat();
                compare(&codec, &scene, &rows, &Buffer::from_f32(&rows), encode::element::F32);
            }
        }
    }
}

of_each_codec!(half_and_bfloat_rows_encode_as_the_floats_that_they_are);

fn half_and_bfloat_rows_encode_as_the_floats_that_they_are(id: CodecId) {
    each_dim(|dim| {
        let codec = AnyCodec::new(id, dim, Options::DEFAULT).unwrap();
        let tokens = if is_trellis(id) { 3 } else { 67 };
        let scene = Scene::new(&[tokens], 3);
        let values = Gaussian::new(5).vector(3 * tokens as usize * dim);
        let halves: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
        let input = Buffer::from_bytes(&halves.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
        let rows: Vec<f32> = halves.iter().map(|v| v.to_f32()).collect();
        compare(&codec, &scene, &rows, &input, encode::element::F16);
        let bfloats: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
        let input = Buffer::from_bytes(&bfloats.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
        let rows: Vec<f32> = bfloats.iter().map(|v| v.to_f32()).collect();
        compare(&codec, &scene, &rows, &input, encode::element::BF16);
    });
}

of_each_codec!(pages_weights_and_scores_equal_the_portable_codec);

fn pages_weights_and_scores_equal_the_portable_codec(id: CodecId) {
    each_dim(|dim| reads(id, dim));
}

fn reads(id: CodecId, dim: usize) {
    let codec = AnyCodec::new(id, dim, Options::DEFAULT).unwrap();
    let (heads, kv_heads) = (6, 2);
    // Longer than one page; in exhaustive runs, longer than two.
    let long = scope::extent(66, 130);
    let scene = Scene::new(&[3, long], kv_heads);
    let mut gaussian = Gaussian::new(9);
    let pool = scene.fill(&codec, &gaussian.vector((3 + long as usize) * 2 * dim));

    let blocks: Vec<u8> = (0..long * kv_heads)
        .flat_map(|i| scene.block(&pool.bytes(), &codec, 1, i / kv_heads, i % kv_heads))
        .collect();
    let mut expected = vec![0.0; long as usize * 2 * dim];
    for (block, out) in blocks.chunks_exact(codec.block_bytes()).zip(expected.chunks_exact_mut(dim)) {
        codec.decode(block, out).unwrap();
    }
    assert_eq!(scene.decode(&codec, &pool, 1, encode::element::F32).floats(), expected);
    let halves: Vec<u8> = expected.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
    assert_eq!(scene.decode(&codec, &pool, 1, encode::element::F16).bytes(), halves);
    let brains: Vec<u8> = expected.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
    assert_eq!(scene.decode(&codec, &pool, 1, encode::element::BF16).bytes(), brains);

    let (stored, signs, count) = (Buffer::from_bytes(&blocks), signs(&codec), long * kv_heads);
    let floats: Vec<u8> = expected.iter().flat_map(|v| v.to_le_bytes()).collect();
    let kinds =
        [(encode::element::F32, floats), (encode::element::F16, halves), (encode::element::BF16, brains)];
    for (kind, want) in kinds {
        let out = Buffer::garbage(want.len());
        let args =
            WeightDecode { blocks: stored.place(), count, signs: signs.place(), out: out.place(), kind };
        for warp in 0..=count {
            with_codec!(id, dim, C, G => decode::weight_decode::<Emulated<'_>, C, G>(warp, args));
        }
        assert_eq!(out.bytes(), want);
    }

    let queries = gaussian.vector(heads * dim);
    let rotated = rotate(dim, &signs, &queries, true, 1.0 / dim as f32);
    let mut want = vec![0.0; dim];
    for (query, got) in queries.chunks_exact(dim).zip(rotated.floats().chunks_exact(dim)) {
        codec.rotate_query(query, &mut want);
        assert_eq!(got, want);
    }
    let scores = scene.scores(&codec, &rotated, heads as u32, &pool, 1);
    for (i, &score) in scores.iter().enumerate() {
        let (position, head) = (i / heads, i % heads);
        let at = (position * 2 + head / 3) * codec.block_bytes();
        let mut want = [0.0];
        let query = &rotated.floats()[head * dim..][..dim];
        codec.scores(query, &blocks[at..at + codec.block_bytes()], &mut want);
        assert_eq!(score.to_bits(), want[0].to_bits(), "{} at {dim}, score {i}", id.name());
    }

    // A value that is not finite, or that overflows in the rotation, makes all scores of its head NaN.
    for bad in [one_hot(dim, 3, f32::INFINITY), one_hot(dim, 9, f32::NAN), vec![f32::MAX; dim]] {
        let queries = [&bad, &queries[dim..]].concat();
        let rotated = rotate(dim, &signs, &queries, true, 1.0 / dim as f32);
        assert!(rotated.floats()[..dim].iter().all(|v| v.is_nan()), "{bad:?}");
        let got = scene.scores(&codec, &rotated, heads as u32, &pool, 1);
        for (i, (got, &before)) in got.into_iter().zip(&scores).enumerate() {
            assert!(if i % heads == 0 { got.is_nan() } else { got == before }, "score {i}: {got}, {bad:?}");
        }
    }
}
