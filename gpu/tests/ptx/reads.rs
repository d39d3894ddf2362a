//! Tests the kernels that read: scores, weights, the residual sketch, and attention over f16 rows.

use crate::parse::Kernel;
use crate::{floats, of_each_codec, put_block, read_floats, signs, text, words};
use half::{bf16, f16};
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_gpu_kernels::args::{
    Attend, AttendMerge, DecodePages, QjlCorrect, QjlSketch, ReadBytes, Scores, WeightDecode,
};
use tqkv_gpu_kernels::codecs::HEAD_DIMS;
use tqkv_gpu_kernels::encode::element;
use tqkv_gpu_kernels::page;
use tqkv_tests::inputs::Gaussian;
use tqkv_tests::{oracle, scope};

/// Tokens of the tests below; they cross a page boundary.
const TOKENS: usize = 70;

of_each_codec!(scores_and_weights_are_the_portable_codecs);

fn scores_and_weights_are_the_portable_codecs(id: CodecId) {
    let text = &text();
    for dim in scope::dims(&HEAD_DIMS) {
        let codec = AnyCodec::new(id, dim, Options::DEFAULT).unwrap();
        let rows = Gaussian::new(2).vector(TOKENS * dim);
        let name = format!("{}_d{dim}", id.name());
        let mut block = vec![0; codec.block_bytes()];
        let mut blocks = Vec::new();
        for x in rows.chunks_exact(dim) {
            codec.encode(x, &mut block).unwrap();
            blocks.extend_from_slice(&block);
        }
        let pool = pool(&codec, &blocks);

        let queries = Gaussian::new(3).vector(2 * dim);
        let mut rotated = vec![0.0; 2 * dim];
        for (query, rotated) in queries.chunks_exact(dim).zip(rotated.chunks_exact_mut(dim)) {
            codec.rotate_query(query, rotated);
        }
        let mut buffers = [floats(&rotated), pool, words([0, 1]), vec![0xff; 4 * TOKENS * 2]];
        let kernel = Kernel::new(text, &format!("scores_{name}"));
        let arguments = Scores {
            rotated: 0,
            num_heads: 2,
            pool: 1,
            page_table: 2,
            max_pages: 2,
            sequence: 0,
            tokens: TOKENS as u32,
            num_kv_heads: 1,
            out: 3,
        };
        kernel.launch((0..2 * TOKENS as u32 + 1).map(|warp| (warp, 0, 0)), &arguments.list(), &mut buffers);
        let mut want = vec![0.0; TOKENS];
        for (head, query) in rotated.chunks_exact(dim).enumerate() {
            codec.scores(query, &blocks, &mut want);
            let got: Vec<f32> = read_floats(&buffers[3]).into_iter().skip(head).step_by(2).collect();
            assert_eq!(got, want, "{name}");
        }

        let kernel = Kernel::new(text, &format!("weight_decode_{name}"));
        let mut decoded = vec![0.0; rows.len()];
        decode(text, &codec, &blocks);
        for (block, x) in blocks.chunks_exact(codec.block_bytes()).zip(decoded.chunks_exact_mut(dim)) {
            codec.decode(block, x).unwrap();
        }
        let halves: Vec<u8> = decoded.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        let brains: Vec<u8> = decoded.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
        for (kind, want) in
            [(element::F32, floats(&decoded)), (element::F16, halves), (element::BF16, brains)]
        {
            let mut buffers = [blocks.clone(), signs(&codec), vec![0xff; want.len()]];
            let arguments = WeightDecode { blocks: 0, count: TOKENS as u32, signs: 1, out: 2, kind };
            kernel.launch((0..TOKENS as u32 + 1).map(|warp| (warp, 0, 0)), &arguments.list(), &mut buffers);
            assert!(buffers[2] == want, "{name} {kind}");
        }
    }
}

/// Puts blocks into pages 0, 1, .. of one head.
fn pool(codec: &AnyCodec, blocks: &[u8]) -> Vec<u8> {
    let (dim, bits) = (codec.dim() as u32, codec.id().bits());
    let mut pool = vec![0xff; 2 * page::head_bytes(dim, bits) as usize];
    for (i, block) in (0..).zip(blocks.chunks_exact(codec.block_bytes())) {
        put_block(&mut pool, codec, i / page::SLOTS, i % page::SLOTS, block);
    }
    pool
}

/// Runs `decode_pages` on the blocks.
fn decode(text: &str, codec: &AnyCodec, blocks: &[u8]) {
    let dim = codec.dim();
    let kernel = Kernel::new(text, &format!("decode_pages_{}_d{dim}", codec.id().name()));
    let mut buffers = [
        pool(codec, blocks),
        words([0, 1]),
        signs(codec),
        vec![0xff; 4 * TOKENS * dim],
        words([0, TOKENS as u32]),
        words([TOKENS as u32]),
    ];
    let arguments = DecodePages {
        pool: 0,
        stride: page::head_bytes(dim as u32, codec.id().bits()),
        last_page: 1,
        page_table: 1,
        max_pages: 2,
        last_entry: 1,
        shift: 0,
        offsets: 4,
        lengths: 5,
        sequences: 1,
        tokens: TOKENS as u32,
        num_kv_heads: 1,
        signs: 2,
        out: 3,
        kind: element::F32,
    };
    kernel.launch((0..TOKENS as u32).map(|warp| (warp, 0, 0)), &arguments.list(), &mut buffers);
    let mut want = vec![0.0; dim];
    let rows = read_floats(&buffers[3]);
    for (block, got) in blocks.chunks_exact(codec.block_bytes()).zip(rows.chunks_exact(dim)) {
        codec.decode(block, &mut want).unwrap();
        assert_eq!(got, want, "{}_d{dim}", codec.id().name());
    }
}

#[test]
fn the_yardstick_reads_every_word() {
    let text = &text();
    let (warps, runs) = (3, 5);
    let memory: Vec<u32> = (0..warps * runs * 1024).map(|i: u32| i.wrapping_mul(2_654_435_761)).collect();
    let mut buffers = [words(memory.iter().copied()), vec![0xff; warps as usize * 512]];
    let kernel = Kernel::new(text, "read_bytes");
    let arguments = ReadBytes { memory: 0, warps, runs, sums: 1 };
    kernel.launch((0..=warps).map(|warp| (warp, 0, 0)), &arguments.list(), &mut buffers);
    let all = |words: &[u32]| words.iter().fold(0, |sum, word| sum ^ word);
    let sums: Vec<u32> = buffers[1].as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
    for (warp, sums) in sums.chunks_exact(128).enumerate() {
        let runs = memory.chunks_exact(1024).skip(warp).step_by(warps as usize);
        assert_eq!(all(sums), runs.fold(0, |sum, run| sum ^ all(run)), "warp {warp}");
    }
}

#[test]
fn the_residual_sketch_follows_algorithm_2() {
    let text = &text();
    for dim in HEAD_DIMS {
        let mut gaussian = Gaussian::new(4);
        let (matrix, residuals) = (gaussian.vector(dim * dim), gaussian.vector(5 * dim));
        let query = gaussian.vector(dim);
        let transposed: Vec<f32> = (0..dim * dim).map(|i| matrix[i % dim * dim + i / dim]).collect();
        let projected: Vec<f32> =
            matrix.chunks_exact(dim).map(|row| oracle::dot(row, &query) as f32).collect();
        let mut buffers = [
            floats(&residuals),
            floats(&transposed),
            vec![0xff; 5 * dim / 8],
            vec![0xff; 4 * 5],
            floats(&projected),
            floats(&[0.0; 5]),
            vec![0; 2 * 5],
            vec![0; 2 * 5],
        ];
        let sketch = Kernel::new(text, &format!("qjl_sketch_d{dim}"));
        let correct = Kernel::new(text, &format!("qjl_correct_d{dim}"));
        let arguments = QjlSketch { residuals: 0, count: 5, transposed: 1, signs: 2, norms: 3 };
        sketch.launch((0..6).map(|warp| (warp, 0, 0)), &arguments.list(), &mut buffers);
        for (scores, kind) in [(5, element::F32), (6, element::F16), (7, element::BF16)] {
            let arguments = QjlCorrect {
                sketched: 4,
                num_heads: 1,
                signs: 2,
                norms: 3,
                tokens: 5,
                num_kv_heads: 1,
                scores,
                kind,
            };
            correct.launch((0..6).map(|warp| (warp, 0, 0)), &arguments.list(), &mut buffers);
        }
        let estimates = read_floats(&buffers[5]);
        let halves: Vec<u8> = estimates.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        let brains: Vec<u8> = estimates.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
        assert_eq!((&buffers[6], &buffers[7]), (&halves, &brains), "{dim}");
        for (residual, got) in residuals.chunks_exact(dim).zip(read_floats(&buffers[5])) {
            let sum: f64 = matrix
                .chunks_exact(dim)
                .map(|row| oracle::dot(row, &query) * oracle::dot(row, residual).signum())
                .sum();
            let factor = (std::f64::consts::PI / 2.0).sqrt() / dim as f64;
            let want = oracle::energy(residual).sqrt() * factor * sum;
            assert!((f64::from(got) - want).abs() < 1e-4 * want.abs().max(1.0), "{dim}: {got} {want}");
        }
    }
}

#[test]
fn the_f16_baseline_attends_as_f64_does() {
    let text = &text();
    for dim in HEAD_DIMS {
        for heads in 1..=3 {
            f16_attention(text, dim, heads);
        }
    }
}

fn f16_attention(text: &str, dim: usize, heads: usize) {
    let mut gaussian = Gaussian::new(5);
    let mut side = || {
        let rows: Vec<Vec<f32>> = (0..TOKENS)
            .map(|_| gaussian.vector(dim).iter().map(|&v| f16::from_f32(v).to_f32()).collect())
            .collect();
        // The pages follow one another, and slots after the end hold NaN.
        let mut pool: Vec<u8> = rows.iter().flatten().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        pool.resize(2 * page::head_bytes(dim as u32, page::HALF_BITS) as usize, 0xff);
        (rows, pool)
    };
    let ((keys, key_pool), (values, value_pool)) = (side(), side());
    let queries = gaussian.vector(heads * dim);
    let factor = std::f32::consts::LOG2_E / (dim as f32).sqrt();
    let scaled: Vec<f32> = queries.iter().map(|q| q * factor).collect();
    let unused = floats(&[f32::NAN; 32]);
    let mut buffers = [
        floats(&scaled),
        key_pool,
        value_pool,
        unused,
        words(0..2),
        words([TOKENS as u32]),
        vec![0xff; heads * 2 * 4 * (4 + dim)],
        vec![0xff; 4 * queries.len()],
        words([0]),
        words([0, 0, 1, 0, page::SLOTS, 2]),
        words([0, 2]),
    ];
    let a_warp = heads.min(2) as u32;
    let attend = Kernel::new(text, &format!("attend_f16_d{dim}_r{a_warp}"));
    let heads = heads as u32;
    let arguments = Attend {
        parts: 2,
        list: 9,
        queries: 0,
        num_kv_heads: 1,
        group: heads,
        keys: 1,
        key_stride: page::head_bytes(dim as u32, page::HALF_BITS),
        key_format: page::HALF_BITS,
        key_levels: 3,
        values: 2,
        value_stride: page::head_bytes(dim as u32, page::HALF_BITS),
        value_format: page::HALF_BITS,
        value_levels: 3,
        ahead: 2,
        last_page: 1,
        page_table: 4,
        max_pages: 2,
        last_entry: 1,
        shift: 0,
        sequence_of: 8,
        lengths: 5,
        partials: 6,
    };
    let warps = (0..heads.div_ceil(a_warp)).flat_map(|y| (0..2).map(move |part| (part, y, 0)));
    attend.launch(warps, &arguments.list(), &mut buffers);
    let merge = Kernel::new(text, &format!("attend_merge_d{dim}"));
    let arguments = AttendMerge {
        count: heads,
        heads,
        partials: 6,
        first_part: 10,
        signs: 3,
        rotated: 0,
        out: 7,
        kind: element::F32,
        has_lse: 0,
        lse: 3,
    };
    merge.launch((0..heads).map(|warp| (warp, 0, 0)), &arguments.list(), &mut buffers);
    for (query, got) in queries.chunks_exact(dim).zip(read_floats(&buffers[7]).chunks_exact(dim)) {
        for (&got, want) in got.iter().zip(oracle::attention(query, &keys, &values)) {
            assert!((f64::from(got) - want).abs() < 1e-5, "dim {dim}: {got} {want}");
        }
    }
}
