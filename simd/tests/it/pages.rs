//! Page kernels. Blocks are read back as written. Logits and sums equal the portable ones to the bit, and are
//! close to the exact ones in f32. One test body runs over codecs, head dims, fills and heads.

use crate::common::{Random, assert_bits, dims, levels, of_each_level};
use tqkv_core::unstable::Levels;
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::page::{KeyPages, Line, MAX_HEADS, ValuePages, ValuePart};
use tqkv_simd::{Level, codec};
use tqkv_tests::scope;

pub(crate) const SLOTS: usize = 64;
pub(crate) const TILE: usize = 16;

/// Ranges of slots: empty, one, around a tile, starting inside one, full page.
pub(crate) const RANGES: [(usize, usize); 9] =
    [(0, 0), (0, 1), (0, TILE - 1), (0, TILE), (0, TILE + 1), (5, 6), (TILE - 1, 33), (17, 31), (0, SLOTS)];

/// The codecs that have page kernels: all that store codes of levels.
fn codecs(ids: &[CodecId]) -> impl Iterator<Item = AnyCodec> {
    let ids = move || ids.iter().copied().filter(|id| !matches!(id.levels(), Levels::Values));
    let of = move |dim| ids().filter_map(move |id| AnyCodec::new(id, dim, Options::DEFAULT).ok());
    dims().into_iter().flat_map(of)
}

/// A full page of blocks.
pub(crate) fn blocks(codec: &AnyCodec, random: &mut Random) -> Vec<u8> {
    let mut blocks = vec![0; SLOTS * codec.block_bytes()];
    codec::encode(Level::fastest(), codec, &random.normals(SLOTS * codec.dim()), &mut blocks).unwrap();
    blocks
}

const GUARD: Line = Line([0xa5; 64]);

/// The page that `write` makes of the blocks, followed by a guard line.
pub(crate) fn page(
    lines: usize,
    codec: &AnyCodec,
    blocks: &[u8],
    write: impl Fn(&mut [Line], usize, &[u8]),
) -> Vec<Line> {
    let mut page = vec![Line::ZERO; lines];
    page.push(GUARD);
    for (slot, block) in blocks.chunks_exact(codec.block_bytes()).enumerate() {
        write(&mut page, slot, block);
    }
    assert_eq!(page[lines], GUARD, "writing stays inside of the page");
    page
}

pub(crate) fn keys(codec: &AnyCodec, blocks: &[u8]) -> (KeyPages, Vec<Line>) {
    let pages = KeyPages::new(codec, SLOTS).unwrap();
    (pages, page(pages.lines(), codec, blocks, |page, slot, block| pages.write(page, slot, block)))
}

pub(crate) fn values(codec: &AnyCodec, blocks: &[u8]) -> (ValuePages, Vec<Line>) {
    let pages = ValuePages::new(codec, SLOTS).unwrap();
    (pages, page(pages.lines(), codec, blocks, |page, slot, block| pages.write(page, slot, block)))
}

/// Runs `f` on the middle of a buffer and checks that the ends stay unchanged.
pub(crate) fn guarded(len: usize, fill: f32, f: impl FnOnce(&mut [f32])) -> Vec<f32> {
    let mut buffer = vec![f32::MAX; len + 32];
    buffer[16..16 + len].fill(fill);
    f(&mut buffer[16..16 + len]);
    assert!(buffer[..16].iter().chain(&buffer[16 + len..]).all(|&v| v == f32::MAX), "guards are untouched");
    buffer[16..16 + len].to_vec()
}

#[test]
fn blocks_come_back_as_written_in_any_order() {
    for codec in codecs(&scope::codecs(CodecId::ALL)) {
        let blocks = blocks(&codec, &mut Random(1));
        let (keys, mut key_page) = keys(&codec, &blocks);
        let (values, mut value_page) = values(&codec, &blocks);
        let what = format!("{} dim {}", codec.id().name(), codec.dim());
        let mut block = vec![0; codec.block_bytes()];
        let all: Vec<&[u8]> = blocks.chunks_exact(codec.block_bytes()).collect();
        for (slot, want) in all.iter().enumerate() {
            keys.read(&key_page, slot, &mut block);
            assert_eq!(&block, want, "key {slot}, {what}");
            values.read(&value_page, slot, &mut block);
            assert_eq!(&block, want, "value {slot}, {what}");
        }
        // Overwriting one slot, as after a truncation, leaves the others unchanged.
        let junk: Vec<u8> = (0..codec.block_bytes()).map(|i| (i * 37 + 11) as u8).collect();
        keys.write(&mut key_page, 18, &junk);
        values.write(&mut value_page, 18, &junk);
        for (slot, want) in [(17, all[17]), (18, &junk[..]), (19, all[19])] {
            keys.read(&key_page, slot, &mut block);
            assert_eq!(&block, want, "key {slot}, {what}");
            values.read(&value_page, slot, &mut block);
            assert_eq!(&block, want, "value {slot}, {what}");
        }
    }
}

of_each_level!(logits: codes);

/// The logits equal the portable ones.
fn logits(level: Level, ids: &[CodecId]) {
    let name = level.name().name();
    for codec in codecs(ids) {
        let (dim, mut random) = (codec.dim(), Random(2));
        let (pages, page) = keys(&codec, &blocks(&codec, &mut random));
        for heads in [1, 2, 3, 5, MAX_HEADS] {
            if heads > 1 && dim > 256 {
                continue;
            }
            let mut rotated = vec![0.0; heads * dim];
            codec::rotate_queries(Level::Portable, &codec, &random.normals(heads * dim), &mut rotated);
            let run = |level: Level, from: usize, to: usize| {
                let queries = pages.queries(level, &rotated);
                guarded(heads * (to - from), 0.5, |out| {
                    pages.scores(level, &page, from, &queries, &page, out)
                })
            };
            for (from, to) in RANGES {
                let what = format!("{name} {} dim {dim}, {heads} heads, {from}..{to}", codec.id().name());
                assert_bits(&run(level, from, to), &run(Level::Portable, from, to), &what);
            }
        }
    }
}

of_each_level!(weighted_sums: codes);

/// The sums equal the portable ones.
fn weighted_sums(level: Level, ids: &[CodecId]) {
    let name = level.name().name();
    for codec in codecs(ids) {
        let (dim, mut random) = (codec.dim(), Random(3));
        let (pages, page) = values(&codec, &blocks(&codec, &mut random));
        for heads in [1, 3] {
            for (from, to) in RANGES {
                let weights: Vec<f32> =
                    random.normals(heads * (to - from)).iter().map(|x| (3.0 * x).exp()).collect();
                let run = |level: Level| {
                    guarded(heads * dim, 0.25, |acc| {
                        pages.accumulate(level, &page, from, &weights, &page, acc)
                    })
                };
                let what = format!("{name} {} dim {dim}, {heads} heads, {from}..{to}", codec.id().name());
                assert_bits(&run(level), &run(Level::Portable), &what);
            }
        }
    }
}

of_each_level!(two_pages_in_one_sum: codes);

/// The sum equals the portable one, and is close to the sum of both pages. Pages with and without spare room,
/// from the middle of one to the middle of the next. A third of the weights are below 0, and are rounded
/// separately.
fn two_pages_in_one_sum(level: Level, ids: &[CodecId]) {
    for codec in codecs(ids) {
        let (dim, mut random) = (codec.dim(), Random(11));
        let blocks = blocks(&codec, &mut random);
        let (whole, first) = values(&codec, &blocks);
        let half = ValuePages::new(&codec, SLOTS / 2).unwrap();
        let mut second = vec![Line::ZERO; half.lines()];
        for (slot, block) in blocks.chunks_exact(codec.block_bytes()).rev().take(SLOTS / 2).enumerate() {
            half.write(&mut second, slot, block);
        }
        for heads in [1, 2, 4, 5] {
            let [a, b] = [SLOTS - 5, SLOTS / 2 - 1].map(|n| {
                let weights = random.normals(heads * n);
                weights.iter().enumerate().map(|(i, x)| if i % 3 == 0 { *x } else { x.exp() }).collect()
            });
            let (a, b): (Vec<f32>, Vec<f32>) = (a, b);
            let parts = [
                ValuePart {
                    pages: &whole,
                    page: &first,
                    start: 3 * SLOTS,
                    from: 5,
                    weights: &a,
                    next: &second,
                },
                ValuePart { pages: &half, page: &second, start: 4 * SLOTS, from: 0, weights: &b, next: &[] },
            ];
            let run =
                |level| guarded(heads * dim, 0.25, |acc| ValuePages::accumulate_parts(level, &parts, acc));
            let name = level.name().name();
            let what = format!("{name} {} dim {dim}, {heads} heads", codec.id().name());
            let together = run(Level::Portable);
            assert_bits(&run(level), &together, &what);
            let apart = guarded(heads * dim, 0.25, |acc| {
                for part in parts {
                    part.pages.accumulate(
                        Level::Portable,
                        part.page,
                        part.from,
                        part.weights,
                        part.next,
                        acc,
                    );
                }
            });
            // Weights are rounded against the largest of both pages, to 14 bits for codes of 8 bits.
            let steps = if codec.id().bits() == 8 { 1e-3 } else { 2e-2 };
            let error = relative_rms(&together, &apart);
            assert!(error < steps, "{what}: {error}");
        }
    }
}

/// If heads wait for memory, pages are summed one by one.
#[test]
fn pages_join_where_their_sums_take_longer_than_their_reading() {
    for (name, heads) in
        [("s2", 1), ("s4", 2), ("n3", 2), ("i8", usize::MAX), ("t2", 1), ("t4", 1), ("s5", 1)]
    {
        let codec = AnyCodec::new(CodecId::from_name(name).unwrap(), 128, Options::DEFAULT).unwrap();
        let pages = ValuePages::new(&codec, 128).unwrap();
        for group in 1..=MAX_HEADS {
            assert_eq!(pages.joins(group), group >= heads, "{name}, {group} heads");
        }
    }
}

/// Root mean square of the differences, divided by that of `b`.
pub(crate) fn relative_rms(a: &[f32], b: &[f32]) -> f64 {
    let square = |v: f32| f64::from(v) * f64::from(v);
    let error: f64 = a.iter().zip(b).map(|(x, y)| square(x - y)).sum();
    (error / b.iter().map(|&y| square(y)).sum::<f64>()).sqrt()
}

/// Compared with the exact levels in f32, the integers cost little. The int8 query and levels cost at most
/// 1 % of the logits' spread. The one-byte weights and int8 levels of values cost about .9 % of the output,
/// and 1.01 % in the worst case.
#[test]
fn integer_arithmetic_costs_about_one_percent() {
    let level = Level::fastest();
    for codec in codecs(&scope::codecs(CodecId::ALL)) {
        let (dim, mut random) = (codec.dim(), Random(4));
        if dim < 64 && codec.id().trellis().is_none() {
            continue;
        }
        let blocks = blocks(&codec, &mut random);
        let (keys, key_page) = keys(&codec, &blocks);
        let (values, value_page) = values(&codec, &blocks);
        let (mut fast, mut exact) = (Vec::new(), Vec::new());
        let (mut sums, mut exact_sums) = (Vec::new(), Vec::new());
        for _ in 0..16 {
            let mut rotated = vec![0.0; dim];
            codec::rotate_queries(level, &codec, &random.normals(dim), &mut rotated);
            let queries = keys.queries(level, &rotated);
            let (mut a, mut b) = (vec![0.0; SLOTS], vec![0.0; SLOTS]);
            keys.scores(level, &key_page, 0, &queries, &[], &mut a);
            codec.scores(&rotated, &blocks, &mut b);
            fast.extend(a);
            exact.extend(b);
            let weights: Vec<f32> = random.normals(SLOTS).iter().map(|x| x.exp()).collect();
            let (mut a, mut b) = (vec![0.0; dim], vec![0.0; dim]);
            values.accumulate(level, &value_page, 0, &weights, &[], &mut a);
            codec.accumulate(&weights, &blocks, &mut b);
            sums.extend(a);
            exact_sums.extend(b);
        }
        let what = format!("{} dim {dim}", codec.id().name());
        let (logits, sums) = (relative_rms(&fast, &exact), relative_rms(&sums, &exact_sums));
        if dim == 128 {
            println!("{what}: logits {logits:.2e}, sums {sums:.2e}");
        }
        assert!(logits <= 0.01, "{what}: logits {logits}");
        assert!(sums <= 0.011, "{what}: sums {sums}");
    }
}

#[test]
fn degenerate_queries_weights_and_blocks_do_no_harm() {
    for id in [CodecId::S3, CodecId::T2H, CodecId::T3H, CodecId::T4] {
        degenerate_inputs_do_no_harm(&AnyCodec::new(id, 80, Options::DEFAULT).unwrap());
    }
}

fn degenerate_inputs_do_no_harm(codec: &AnyCodec) {
    let zeros = vec![0; SLOTS * codec.block_bytes()];
    let mut junk: Vec<u8> = (0..zeros.len()).map(|i| (i * 7919) as u8).collect();
    // Scales are finite, as in all blocks that a reader accepts.
    junk.chunks_exact_mut(codec.block_bytes()).for_each(|block| block[1] &= 0x3b);
    for level in Level::available() {
        for blocks in [&zeros, &junk] {
            let (keys, key_page) = keys(codec, blocks);
            let (values, value_page) = values(codec, blocks);
            for q in [0.0, -0.0, 1e-40, f32::MIN_POSITIVE, 1e38, f32::INFINITY, f32::NAN] {
                let queries = keys.queries(level, &[q; 80]);
                let mut out = [0.0; SLOTS];
                keys.scores(level, &key_page, 0, &queries, &[], &mut out);
                let mut acc = [0.0; 80];
                values.accumulate(level, &value_page, 0, &[q; SLOTS], &[], &mut acc);
                if q == 0.0 {
                    assert_eq!((out, acc), ([0.0; SLOTS], [0.0; 80]));
                }
            }
        }
    }
}

/// Bytes that are their own levels may be -128, which our encoders never write. Two's complement has no +128,
/// so operations that negate bytes fail there.
#[test]
fn the_byte_minus_128_scores_and_sums_as_it_decodes() {
    for id in [CodecId::I8, CodecId::Q8_0] {
        let codec = AnyCodec::new(id, 128, Options::DEFAULT).unwrap();
        let (mut random, bytes) = (Random(9), codec.block_bytes());
        let mut blocks = blocks(&codec, &mut random);
        for (i, block) in blocks.chunks_exact_mut(bytes).enumerate() {
            let scales = if id == CodecId::I8 { bytes } else { 34 };
            for run in block.chunks_exact_mut(scales) {
                run[2..].iter_mut().skip(i % 3).step_by(1 + i % 7).for_each(|code| *code = 0x80);
            }
        }
        let (keys, key_page) = keys(&codec, &blocks);
        let (values, value_page) = values(&codec, &blocks);
        let mut rotated = random.normals(128);
        // The largest bytes of both signs, next to each other.
        (rotated[0], rotated[1], rotated[2], rotated[3]) = (4.0, 4.0, -4.0, -4.0);
        let (mut exact, mut exact_sums) = (vec![0.0; SLOTS], vec![0.0; 128]);
        codec.scores(&rotated, &blocks, &mut exact);
        codec.accumulate(&[1.0; SLOTS], &blocks, &mut exact_sums);
        let run = |level: Level| {
            let (mut logits, mut sums) = (vec![0.0; SLOTS], vec![0.0; 128]);
            keys.scores(level, &key_page, 0, &keys.queries(level, &rotated), &[], &mut logits);
            values.accumulate(level, &value_page, 0, &[1.0; SLOTS], &[], &mut sums);
            (logits, sums)
        };
        let (logits, sums) = run(Level::Portable);
        assert!(relative_rms(&logits, &exact) < 0.01, "{}", id.name());
        assert!(relative_rms(&sums, &exact_sums) < 0.01, "{}", id.name());
        for level in levels() {
            let what = format!("{} {}", id.name(), level.name().name());
            assert_bits(&run(level).0, &logits, &what);
            assert_bits(&run(level).1, &sums, &what);
        }
    }
}
