//! The codec gives the same bytes and bits on every level. One test body runs over codecs, head dims, scale
//! modes and efforts.

use crate::common::{Random, assert_bits, dims, of_each_level, vectors};
use tqkv_core::{AnyCodec, CodecId, Effort, Options, ScaleMode};
use tqkv_simd::{Level, codec};

/// Every combination for small dims; large ones only take the default mode and effort.
fn options(dim: usize) -> Vec<Options> {
    if dim > 256 {
        return vec![Options::DEFAULT];
    }
    let mut all = Vec::new();
    for scale_mode in ScaleMode::ALL {
        for effort in Effort::ALL {
            all.push(Options::DEFAULT.seed(42 + dim as u64).scale_mode(scale_mode).effort(effort));
        }
    }
    all
}

fn codecs(ids: &[CodecId]) -> impl Iterator<Item = AnyCodec> {
    dims().into_iter().flat_map(move |dim| {
        let of =
            move |id: CodecId| options(dim).into_iter().filter_map(move |o| AnyCodec::new(id, dim, o).ok());
        ids.iter().copied().flat_map(of)
    })
}

fn what(level: Level, codec: &AnyCodec) -> String {
    format!("{} {} dim {} {:?}", level.name().name(), codec.id().name(), codec.dim(), codec.options())
}

of_each_level!(blocks_and_decoded_values: all);

/// They equal the portable ones.
fn blocks_and_decoded_values(level: Level, ids: &[CodecId]) {
    for codec in codecs(ids) {
        let what = what(level, &codec);
        for (n, x) in vectors(codec.dim()).iter().enumerate() {
            let mut expected = vec![0xa5; codec.block_bytes()];
            let mut block = expected.clone();
            let result = codec.encode(x, &mut expected);
            let got = codec::encode(level, &codec, x, &mut block);
            assert_eq!(got.map_err(|e| e.error), result, "{what}, input {n}");
            assert_eq!(block, expected, "{what}, input {n}");
            if result.is_err() {
                continue;
            }
            let (mut y, mut z) = (vec![0.0; codec.dim()], vec![0.0; codec.dim()]);
            codec.decode(&expected, &mut y).unwrap();
            codec::decode(level, &codec, &block, &mut z).unwrap();
            assert_bits(&z, &y, &what);
        }
    }
}

of_each_level!(batches_of_vectors: all);

/// They give the blocks of the portable level, whatever the number of vectors, up to one that fails.
fn batches_of_vectors(level: Level, ids: &[CodecId]) {
    const VECTORS: usize = 9;
    let mut dims = dims();
    dims.extend(Some(128).filter(|dim| !dims.contains(dim)));
    let codec = |id: CodecId, dim| AnyCodec::new(id, dim, Options::DEFAULT).ok();
    for codec in dims.iter().flat_map(|&dim| ids.iter().filter_map(move |&id| codec(id, dim))) {
        let (dim, bytes) = (codec.dim(), codec.block_bytes());
        // The search for a trellis code is slow, and encodes four vectors at a time or none of them.
        if codec.id().trellis().is_some() {
            continue;
        }
        let x = Random(dim as u64).normals(VECTORS * dim);
        for (odd, factor) in
            (0..=VECTORS).flat_map(|at| [0.0, 1e-30, 1e15, f32::NAN].map(|factor| (at, factor)))
        {
            let mut x = x.clone();
            for v in x.chunks_exact_mut(dim).nth(odd).unwrap_or_default() {
                *v *= factor;
            }
            let run = |level: Level, count: usize| {
                let mut blocks = vec![0xa5; count * bytes];
                (codec::encode(level, &codec, &x[..count * dim], &mut blocks), blocks)
            };
            for count in [1, 3, 4, 5, 8, VECTORS] {
                let what = format!("{}, {count} vectors, {odd} times {factor}", what(level, &codec));
                assert_eq!(run(level, count), run(Level::Portable, count), "{what}");
            }
        }
    }
}

of_each_level!(batches_of_arbitrary_blocks: all);

/// They decode to the portable bits, whatever the number of blocks, up to a block without a finite scale.
fn batches_of_arbitrary_blocks(level: Level, ids: &[CodecId]) {
    const BLOCKS: usize = 11;
    // Four trellis blocks are decoded together at this head dim alone, so emulators test it too.
    let mut dims = dims();
    dims.extend(Some(128).filter(|dim| !dims.contains(dim)));
    let codec = |id: CodecId, dim| AnyCodec::new(id, dim, Options::DEFAULT.seed(42 + dim as u64)).ok();
    for codec in dims.iter().flat_map(|&dim| ids.iter().filter_map(move |&id| codec(id, dim))) {
        let (dim, bytes) = (codec.dim(), codec.block_bytes());
        let mut random = Random(dim as u64);
        let blocks: Vec<u8> = (0..BLOCKS * bytes).map(|_| random.next() as u8).collect();
        for bad in 0..=BLOCKS {
            // Every scale is the number that its low byte and a byte of a usual number make.
            let mut blocks = blocks.clone();
            for (i, block) in blocks.chunks_exact_mut(bytes).enumerate() {
                let scale = if i == bad { 0x7c } else { 0x2c + i as u8 };
                for at in (0..bytes).filter(|at| at % 2 == 1) {
                    block[at] = if at == 1 { scale } else { block[at] & 0xbf };
                }
            }
            let run = |level: Level, count: usize| {
                let mut out = vec![0.5; count * dim];
                (codec::decode(level, &codec, &blocks[..count * bytes], &mut out), out)
            };
            for count in [1, 3, 4, 7, 8, BLOCKS] {
                let ((want_result, want), (result, got)) = (run(Level::Portable, count), run(level, count));
                assert_eq!(result, want_result, "{}, {count} blocks, {bad} is bad", what(level, &codec));
                assert_bits(&got, &want, &what(level, &codec));
            }
        }
    }
}

of_each_level!(queries_scores_and_sums: all);

/// They equal the portable ones.
fn queries_scores_and_sums(level: Level, ids: &[CodecId]) {
    const TOKENS: usize = 5;
    for codec in codecs(ids).filter(|codec| codec.options().scale_mode == ScaleMode::Unbiased) {
        let dim = codec.dim();
        let mut random = Random(dim as u64);
        let mut blocks = vec![0; TOKENS * codec.block_bytes()];
        codec::encode(Level::Portable, &codec, &random.normals(TOKENS * dim), &mut blocks).unwrap();
        let (query, weights) = (random.normals(dim), random.normals(TOKENS));
        let run = |level: Level| {
            let (mut rotated, mut scores) = (vec![0.0; dim], vec![0.0; TOKENS]);
            let mut sums = random_sums(dim);
            codec::rotate_queries(level, &codec, &query, &mut rotated);
            codec::scores(level, &codec, &rotated, &blocks, &mut scores);
            codec::accumulate(level, &codec, &weights, &blocks, &mut sums);
            let mut back = sums.clone();
            codec::unrotate(level, &codec, &mut back);
            [rotated, scores, sums, back].concat()
        };
        assert_bits(&run(level), &run(Level::Portable), &what(level, &codec));
    }
}

fn random_sums(dim: usize) -> Vec<f32> {
    Random(7).normals(dim)
}

#[test]
fn a_batch_says_which_vector_failed() {
    let codec = AnyCodec::new(CodecId::S4, 64, Options::DEFAULT).unwrap();
    let mut x = vec![1.0; 3 * 64];
    x[64 + 5] = f32::INFINITY;
    let mut blocks = vec![0; 3 * codec.block_bytes()];
    for level in Level::available() {
        let error = codec::encode(level, &codec, &x, &mut blocks).unwrap_err();
        assert_eq!(error.index, 1);
        assert!(codec::encode(level, &codec, &x[1..], &mut blocks).is_err());
        assert!(codec::decode(level, &codec, &blocks[1..], &mut x).is_err());
    }
}

/// One vector too many or too few is the caller's error on every level; no vector is silently skipped.
#[test]
fn wrong_lengths_panic_on_every_level() {
    type Call = fn(Level, &AnyCodec, &[f32], &[u8], &mut [f32]);
    let calls: [(&str, Call); 5] = [
        ("rotate_queries", |level, codec, x, _, out| codec::rotate_queries(level, codec, x, out)),
        ("unrotate", |level, codec, _, _, out| codec::unrotate(level, codec, out)),
        ("scores", |level, codec, x, blocks, out| codec::scores(level, codec, x, blocks, out)),
        ("accumulate", |level, codec, x, blocks, out| codec::accumulate(level, codec, x, blocks, out)),
        ("decode_rotated", |level, codec, _, blocks, out| codec::decode_rotated(level, codec, blocks, out)),
    ];
    for id in [CodecId::S3, CodecId::T2, CodecId::Q8_0, CodecId::F16] {
        let codec = AnyCodec::new(id, 64, Options::DEFAULT).unwrap();
        for level in Level::available() {
            for (name, call) in calls {
                // Three vectors and two blocks, and results that are neither two vectors nor two scores.
                for results in [63, 65, 100, 127, 129] {
                    let (x, blocks) = (vec![0.0; 3 * 64], vec![0; 2 * codec.block_bytes()]);
                    let call = || call(level, &codec, &x, &blocks, &mut vec![0.0; results]);
                    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
                    assert!(outcome.is_err(), "{name} {} {results}", what(level, &codec));
                }
            }
        }
    }
}

#[test]
fn a_missing_or_unknown_level_is_an_error() {
    assert!(Level::from_name("avx3").unwrap_err().to_string().contains("accepted"));
    let foreign = if cfg!(target_arch = "x86_64") { "neon" } else { "avx512" };
    assert!(Level::from_name(foreign).unwrap_err().to_string().contains("cannot run"));
}
