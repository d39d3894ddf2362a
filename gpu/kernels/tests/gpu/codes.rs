//! Encoding, decoding and scores on a warp are bit-identical to the portable codec.

use crate::scene::{Scene, rotate, signs};
use crate::warp::{Buffer, Emulated};
use half::{bf16, f16};
use tqkv_core::code::F16;
use tqkv_core::{AnyCodec, CodecId, Effort, EncodeError, Options, ScaleMode};
use tqkv_gpu_kernels::args::{DecodePages, EncodeAppend, WeightDecode};
use tqkv_gpu_kernels::codecs::HEAD_DIMS;
use tqkv_gpu_kernels::{decode, encode, page, with_codec, with_groups};
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

/// Rows of f16 are the vectors as the codec rotates them, rounded, and decode to the vectors.
#[test]
fn f16_rows_are_the_rotated_vectors() {
    each_dim(|dim| {
        let codec = AnyCodec::new(CodecId::S4, dim, Options::DEFAULT.seed(3)).unwrap();
        let (scene, signs) = (Scene::new(&[70], 1), signs(&codec));
        let mut rows = Gaussian::new(4).vector(70 * dim);
        rows[3 * dim..4 * dim].copy_from_slice(&one_hot(dim, 5, f32::INFINITY));
        rows[4 * dim..5 * dim].fill(65_519.0 / dim as f32);
        rows[5 * dim..6 * dim].fill(66_000.0 / dim as f32);
        // The signs of these coordinates are those of the rotation, so one sum has them all.
        for (i, value) in rows[4 * dim..6 * dim].iter_mut().enumerate() {
            *value *= if codec.signs().group(i % dim / 32) >> (i % 32) & 1 == 1 { -1.0 } else { 1.0 };
        }
        // The last token has no place.
        let place = |token: u32| {
            [scene.page_table[(token / page::SLOTS) as usize] * page::SLOTS + token % page::SLOTS, 0]
        };
        let places: Vec<_> = (0..69).flat_map(place).chain([u32::MAX; 2]).collect();
        let (input, places, pool) =
            (Buffer::from_f32(&rows), Buffer::from_u32(&places), scene.pool(dim, page::HALF_BITS));
        let (outcome, refused, workspace) =
            (Buffer::garbage(4 * 70), Buffer::from_u32(&[0]), Buffer::garbage(0));
        let before = pool.bytes();
        let args = EncodeAppend {
            rows: input.place(),
            token_stride: dim as u32,
            kind: encode::element::F32,
            tokens: 70,
            num_kv_heads: 1,
            signs: signs.place(),
            mode: 0,
            effort: 0,
            slots: places.place(),
            pool: pool.place(),
            stride: scene.stride(dim, page::HALF_BITS),
            last_page: scene.last_page(),
            workspace: workspace.place(),
            outcome: outcome.place(),
            refused: refused.place(),
        };
        for warp in 0..71 {
            with_groups!(dim, G => encode::encode_append::<Emulated<'_>, F16, G>(warp, args));
        }
        let mut outcomes = vec![encode::status::DONE; 70];
        (outcomes[3], outcomes[5]) = (encode::status::NON_FINITE, encode::status::OUT_OF_RANGE);
        assert_eq!((outcome.words(), refused.words()), (outcomes, vec![1]));

        let table = Buffer::from_u32(&scene.page_table);
        // As a cache decodes rows that begin inside of a page.
        let (skip, tokens) = (2, 67);
        let offsets = Buffer::from_u32(&[0_u32.wrapping_sub(skip), tokens]);
        let (lengths, out) = (Buffer::from_u32(&[skip + tokens]), Buffer::garbage(4 * tokens as usize * dim));
        let args = DecodePages {
            pool: pool.place(),
            stride: args.stride,
            last_page: scene.last_page(),
            page_table: table.place(),
            max_pages: scene.max_pages,
            last_entry: scene.max_pages - 1,
            shift: 0,
            offsets: offsets.place(),
            lengths: lengths.place(),
            sequences: 1,
            tokens,
            num_kv_heads: 1,
            signs: signs.place(),
            out: out.place(),
            kind: encode::element::F32,
        };
        for warp in 0..=tokens {
            with_groups!(dim, G => decode::decode_pages::<Emulated<'_>, F16, G>(warp, args));
        }
        let (pool, out) = (pool.bytes(), out.floats());
        for (token, row) in rows.chunks_exact(dim).enumerate() {
            let (home, slot) = scene.home(0, token as u32, 0, dim, page::HALF_BITS);
            let at = home + slot as usize * 2 * dim;
            let mut rotated = vec![0.0; dim];
            match token {
                3 | 5 => rotated.fill(0.0),
                _ => codec.rotate_query(row, &mut rotated),
            }
            // A query is divided by the head dim, which is a power of two.
            let want: Vec<u8> =
                rotated.iter().flat_map(|&v| f16::from_f32(v * dim as f32).to_le_bytes()).collect();
            let got = &pool[at..at + 2 * dim];
            assert_eq!(got, if token == 69 { &before[at..at + 2 * dim] } else { &want }, "{dim}: {token}");
            if (2..69).contains(&token) && !(3..6).contains(&token) {
                let got = &out[(token - 2) * dim..][..dim];
                assert!(row.iter().zip(got).all(|(x, y)| (x - y).abs() < 3e-3), "{dim}: {token}");
            }
        }
    });
}
