//! Every codec at every head dim, scale mode and effort. Each level of the machine reads and writes the same
//! bits as the portable code, for any floats and any blocks. A decoded finite vector is as near to the
//! original as the code and the scale mode promise.
#![no_main]

mod numbers;
mod seeds;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use numbers::{Numbers, assert_same};
use tqkv_core::{AnyCodec, CodecId, Effort, HEAD_DIMS, Options, ScaleMode};
use tqkv_simd::{Level, codec};
use tqkv_tests::laws::assert_kept;

/// Encoders of trellis codes take four vectors at once, so a fifth starts another batch.
const MOST_VECTORS: usize = 5;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    codec: u8,
    dim: u8,
    mode: u8,
    effort: u8,
    seed: u8,
    vectors: u8,
    numbers: Numbers,
    bytes: &'a [u8],
}

fuzz_target!(|input: Input<'_>| {
    let pick = |number: u8, of: usize| usize::from(number) % of;
    let id = CodecId::ALL[pick(input.codec, CodecId::ALL.len())];
    let options = Options::DEFAULT
        .seed(u64::from(input.seed))
        .scale_mode(ScaleMode::ALL[pick(input.mode, 4)])
        .effort(Effort::ALL[pick(input.effort, 3)]);
    let dim = HEAD_DIMS[pick(input.dim, HEAD_DIMS.len())];
    let Ok(codec) = AnyCodec::new(id, dim, options) else { return seeds::refused("no such codec") };
    // Long vectors are slow, so each is alone.
    let vectors = if codec.dim() > 256 { 1 } else { 1 + pick(input.vectors, MOST_VECTORS) };
    let x = input.numbers.of(input.bytes, vectors * codec.dim());
    encode(&codec, &x);
    let mut blocks: Vec<u8> =
        input.bytes.iter().copied().cycle().take(vectors * codec.block_bytes()).collect();
    blocks.resize(vectors * codec.block_bytes(), 0);
    read(&codec, &blocks, &x);
});

fn what(level: Level, codec: &AnyCodec) -> String {
    format!("{} {} dim {} {:?}", level.name().name(), codec.id().name(), codec.dim(), codec.options())
}

/// Compares the definition, vector by vector, with every level, all vectors at once. Also checks the decoded
/// vectors.
fn encode(codec: &AnyCodec, x: &[f32]) {
    let (dim, bytes) = (codec.dim(), codec.block_bytes());
    let mut want = vec![0xa5; x.len() / dim * bytes];
    let mut vectors = x.chunks_exact(dim).zip(want.chunks_exact_mut(bytes)).enumerate();
    let result = vectors.try_for_each(|(i, (x, block))| codec.encode(x, block).map_err(|error| (i, error)));
    for level in Level::available() {
        let mut blocks = vec![0xa5; want.len()];
        let got = codec::encode(level, codec, x, &mut blocks).map_err(|failed| (failed.index, failed.error));
        assert_eq!(got, result, "{}", what(level, codec));
        assert_eq!(blocks, want, "{}", what(level, codec));
    }
    let done = result.map_or_else(|(index, _)| index, |()| x.len() / dim);
    for (x, block) in x.chunks_exact(dim).zip(want.chunks_exact(bytes)).take(done) {
        let mut y = vec![0.0; dim];
        codec.decode(block, &mut y).expect("what the encoder writes decodes");
        assert!(y.iter().all(|v| v.is_finite()), "{}", what(Level::Portable, codec));
        assert_kept(codec, x, block);
    }
    read(codec, &want, x);
}

/// Every level reads the same from any blocks.
fn read(codec: &AnyCodec, blocks: &[u8], x: &[f32]) {
    let (dim, count) = (codec.dim(), x.len() / codec.dim());
    let run = |level: Level| {
        let (mut decoded, mut inside) = (vec![0.5; x.len()], vec![0.5; x.len()]);
        let (mut queries, mut scores) = (vec![0.5; x.len()], vec![0.5; count]);
        let result = codec::decode(level, codec, blocks, &mut decoded);
        codec::decode_rotated(level, codec, blocks, &mut inside);
        codec::rotate_queries(level, codec, x, &mut queries);
        codec::scores(level, codec, &queries[..dim], blocks, &mut scores);
        let mut sums = x[..dim].to_vec();
        codec::accumulate(level, codec, &x[x.len() - count..], blocks, &mut sums);
        let mut back = x.to_vec();
        codec::unrotate(level, codec, &mut back);
        (result, [decoded, inside, queries, scores, sums, back])
    };
    let (result, want) = run(Level::Portable);
    for level in Level::available().skip(1) {
        let (got_result, got) = run(level);
        assert_eq!(got_result, result, "{}", what(level, codec));
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_same(got, want, || format!("{}, operation {i}", what(level, codec)));
        }
    }
}
