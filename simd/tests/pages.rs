//! Page kernels: blocks come back as written, logits and sums are the portable ones to the bit,
//! and close to the exact ones in f32. One body over levels, codecs, head dims, fills, heads.

mod common;

use common::{Random, assert_bits, dims, levels};
use tqkv_core::code::Levels;
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::page::{
    Attention, EXP_ERROR, HalfPages, KeyPages, Line, MAX_HEADS, MAX_PARTS, Part, Parts, Queries, ValuePages,
    ValuePart, attend, exp, merge, narrow_rows, rescale, row_scores, row_sums, soften, widen_rows,
};
use tqkv_simd::{Level, codec};

const SLOTS: usize = 64;
const TILE: usize = 16;

/// Ranges of slots: empty, one, around a tile, starting inside one, whole page.
const RANGES: [(usize, usize); 9] =
    [(0, 0), (0, 1), (0, TILE - 1), (0, TILE), (0, TILE + 1), (5, 6), (TILE - 1, 33), (17, 31), (0, SLOTS)];

/// Every codec with page kernels, which is every one that stores codes of levels, at every head dim.
fn codecs() -> Vec<AnyCodec> {
    let ids = || CodecId::ALL.iter().filter(|id| !matches!(id.levels(), Levels::Values));
    let of = |dim| ids().filter_map(move |&id| AnyCodec::new(id, dim, Options::DEFAULT).ok());
    dims().into_iter().flat_map(of).collect()
}

/// A full page of blocks.
fn blocks(codec: &AnyCodec, random: &mut Random) -> Vec<u8> {
    let mut blocks = vec![0; SLOTS * codec.block_bytes()];
    codec::encode(Level::fastest(), codec, &random.normals(SLOTS * codec.dim()), &mut blocks).unwrap();
    blocks
}

const GUARD: Line = Line([0xa5; 64]);

/// The page that `write` makes of blocks, with a guard line behind it.
fn page(
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

fn keys(codec: &AnyCodec, blocks: &[u8]) -> (KeyPages, Vec<Line>) {
    let pages = KeyPages::new(codec, SLOTS).unwrap();
    (pages, page(pages.lines(), codec, blocks, |page, slot, block| pages.write(page, slot, block)))
}

fn values(codec: &AnyCodec, blocks: &[u8]) -> (ValuePages, Vec<Line>) {
    let pages = ValuePages::new(codec, SLOTS).unwrap();
    (pages, page(pages.lines(), codec, blocks, |page, slot, block| pages.write(page, slot, block)))
}

/// Runs `f` on the middle of a buffer and sees to it that the ends stay.
fn guarded(len: usize, fill: f32, f: impl FnOnce(&mut [f32])) -> Vec<f32> {
    let mut buffer = vec![f32::MAX; len + 32];
    buffer[16..16 + len].fill(fill);
    f(&mut buffer[16..16 + len]);
    assert!(buffer[..16].iter().chain(&buffer[16 + len..]).all(|&v| v == f32::MAX), "guards are untouched");
    buffer[16..16 + len].to_vec()
}

#[test]
fn blocks_come_back_as_written_in_any_order() {
    for codec in codecs() {
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
        // Writing over one slot, as after a truncation, leaves the others.
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

#[test]
fn logits_are_the_portable_ones() {
    let levels = levels();
    for codec in codecs() {
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
                let expected = run(Level::Portable, from, to);
                for &level in &levels {
                    let name = level.name().name();
                    let what = format!("{name} {} dim {dim}, {heads} heads, {from}..{to}", codec.id().name());
                    assert_bits(&run(level, from, to), &expected, &what);
                }
            }
        }
    }
}

#[test]
fn weighted_sums_are_the_portable_ones() {
    let levels = levels();
    for codec in codecs() {
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
                let expected = run(Level::Portable);
                for &level in &levels {
                    let name = level.name().name();
                    let what = format!("{name} {} dim {dim}, {heads} heads, {from}..{to}", codec.id().name());
                    assert_bits(&run(level), &expected, &what);
                }
            }
        }
    }
}

/// Pages with and without room to spare, from the middle of one to the middle of the next; a third of the weights below 0, which
/// are rounded apart.
#[test]
fn two_pages_in_one_sum_are_the_portable_one_and_near_both() {
    let levels = levels();
    for codec in codecs() {
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
                ValuePart { pages: &whole, page: &first, from: 5, weights: &a, next: &second },
                ValuePart { pages: &half, page: &second, from: 0, weights: &b, next: &[] },
            ];
            let run =
                |level| guarded(heads * dim, 0.25, |acc| ValuePages::accumulate_parts(level, &parts, acc));
            let what = format!("{} dim {dim}, {heads} heads", codec.id().name());
            let together = run(Level::Portable);
            for &level in &levels {
                assert_bits(&run(level), &together, &format!("{} {what}", level.name().name()));
            }
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
            let error = relative_rms(&together, &apart);
            assert!(error < 1e-3, "{what}: {error}");
        }
    }
}

/// Where heads wait for memory pages come one by one.
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

/// Root mean square of the differences over that of `b`.
fn relative_rms(a: &[f32], b: &[f32]) -> f64 {
    let square = |v: f32| f64::from(v) * f64::from(v);
    let error: f64 = a.iter().zip(b).map(|(x, y)| square(x - y)).sum();
    (error / b.iter().map(|&y| square(y)).sum::<f64>()).sqrt()
}

/// The int8 query and levels cost at most 1 % of the logits' spread, the 14-bit weights and int8
/// levels of values at most 1 % of the output: against the exact levels in f32.
#[test]
fn integer_arithmetic_costs_at_most_one_percent() {
    let level = Level::fastest();
    for codec in codecs() {
        let (dim, mut random) = (codec.dim(), Random(4));
        if dim < 64 && codec.trellis().is_none() {
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
        assert!(sums <= 0.01, "{what}: sums {sums}");
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
    // Scales are finite, as in blocks that a reader lets pass.
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

#[test]
fn the_exponential_is_as_close_as_it_says() {
    let mut worst = 0.0f64;
    for i in 0..2_000_000 {
        let x = -87.0 + i as f32 * (175.0 / 2_000_000.0);
        let exact = f64::from(x).exp();
        worst = worst.max((f64::from(exp(x)) / exact - 1.0).abs());
    }
    println!("largest relative error {worst:.3e}");
    assert!(worst < f64::from(EXP_ERROR), "{worst}");
    assert_eq!((exp(0.0), exp(-0.0), exp(-88.0), exp(f32::NEG_INFINITY)), (1.0, 1.0, 0.0, 0.0));
    assert!(exp(f32::NAN).is_nan());
}

/// Attention in f64 over decoded vectors.
fn exact_attention(codec: &AnyCodec, q: &[f32], k: &[u8], v: &[u8], len: usize, scale: f32) -> Vec<f32> {
    let dim = codec.dim();
    let row = |blocks: &[u8], i: usize| {
        let mut x = vec![0.0; dim];
        codec.decode(&blocks[i * codec.block_bytes()..][..codec.block_bytes()], &mut x).unwrap();
        x
    };
    let logits: Vec<f64> = (0..len)
        .map(|i| row(k, i).iter().zip(q).map(|(a, b)| f64::from(a * b)).sum::<f64>() * f64::from(scale))
        .collect();
    let max = logits.iter().copied().fold(f64::MIN, f64::max);
    let total: f64 = logits.iter().map(|l| (l - max).exp()).sum();
    let mut out = vec![0.0f64; dim];
    for (i, logit) in logits.iter().enumerate() {
        for (sum, x) in out.iter_mut().zip(row(v, i)) {
            *sum += (logit - max).exp() / total * f64::from(x);
        }
    }
    out.iter().map(|&x| x as f32).collect()
}

/// A page of keys and one of values, in parts of unequal length.
struct OnePage<'a> {
    level: Level,
    keys: (&'a KeyPages, &'a [Line]),
    values: (&'a ValuePages, &'a [Line]),
    queries: &'a Queries,
    joins: bool,
    acc: &'a mut [f32],
}

impl Parts for OnePage<'_> {
    fn part_end(&self, from: usize) -> usize {
        if from == 0 { TILE + 5 } else { SLOTS }
    }

    fn scores(&self, from: usize, _: usize, logits: &mut [f32]) {
        self.keys.0.scores(self.level, self.keys.1, from, self.queries, self.values.1, logits);
    }

    fn rescale(&mut self, factors: &[f32]) {
        rescale(factors, self.acc.len() / factors.len(), self.acc);
    }

    fn joins(&self, _: usize) -> bool {
        self.joins
    }

    fn accumulate(&mut self, parts: &[Part<'_>]) {
        let mut summed =
            [ValuePart { pages: self.values.0, page: self.values.1, from: 0, weights: &[], next: &[] };
                MAX_PARTS];
        for (summed, part) in summed.iter_mut().zip(parts) {
            (summed.from, summed.weights) = (part.from, part.weights);
        }
        ValuePages::accumulate_parts(self.level, &summed[..parts.len()], self.acc);
    }
}

#[test]
fn attention_over_pages_is_the_softmax_and_splits_anywhere() {
    let levels = levels();
    for id in ["s4", "s3", "s2", "i8", "q8_0r", "n4", "t1h", "t2", "t2h", "t3", "t3h", "t4"] {
        let id = CodecId::from_name(id).unwrap();
        for dim in [32, 64, 80, 128, 256] {
            let Ok(codec) = AnyCodec::new(id, dim, Options::DEFAULT) else { continue };
            if KeyPages::new(&codec, SLOTS).is_none() {
                continue;
            }
            let mut random = Random(5);
            let (k, v) = (blocks(&codec, &mut random), blocks(&codec, &mut random));
            let ((keys, key_page), (values, value_page)) = (keys(&codec, &k), values(&codec, &v));
            let (heads, scale) = (3, 1.0 / (dim as f32).sqrt());
            let q: Vec<f32> = random.normals(heads * dim).iter().map(|x| 2.0 * x).collect();
            let scaled: Vec<f32> = q.iter().map(|x| x * scale).collect();
            let run = |level: Level, len: usize, (split, joins): (bool, bool)| {
                let mut rotated = vec![0.0; heads * dim];
                codec::rotate_queries(level, &codec, &scaled, &mut rotated);
                let queries = keys.queries(level, &rotated);
                let once = |state: &mut [Attention], acc: &mut [f32], len| {
                    let (keys, values) = ((&keys, &key_page[..]), (&values, &value_page[..]));
                    attend(
                        level,
                        &mut OnePage { level, keys, values, queries: &queries, joins, acc },
                        0,
                        len,
                        state,
                    );
                };
                let (mut state, mut acc) = (vec![Attention::EMPTY; heads], vec![0.0; heads * dim]);
                once(&mut state, &mut acc, len);
                if split {
                    // The same page seen again counts twice: the average stays.
                    let (mut other, mut other_acc) = (vec![Attention::EMPTY; heads], vec![0.0; heads * dim]);
                    once(&mut other, &mut other_acc, len);
                    for h in 0..heads {
                        let at = h * dim..(h + 1) * dim;
                        let [keep, add] = merge(&mut state[h], &other[h]);
                        for (sum, other) in acc[at.clone()].iter_mut().zip(&other_acc[at]) {
                            *sum = *sum * keep + other * add;
                        }
                    }
                }
                for (state, acc) in state.iter().zip(acc.chunks_exact_mut(dim)) {
                    acc.iter_mut().for_each(|x| *x /= state.sum);
                }
                codec::unrotate(level, &codec, &mut acc);
                acc
            };
            for (len, joins) in [(1, true), (TILE + 1, true), (SLOTS, true), (SLOTS, false)] {
                let joined = if joins { "parts together" } else { "part by part" };
                let what = format!("{} dim {dim}, {len} tokens, {joined}", id.name());
                let portable = run(Level::Portable, len, (false, joins));
                for &level in &levels {
                    assert_bits(&run(level, len, (false, joins)), &portable, &what);
                }
                let exact: Vec<f32> = q
                    .chunks_exact(dim)
                    .flat_map(|q| exact_attention(&codec, q, &k, &v, len, scale))
                    .collect();
                let error = relative_rms(&portable, &exact);
                assert!(error < 0.03, "{what}: {error}");
                let error = relative_rms(&run(Level::Portable, len, (true, joins)), &portable);
                assert!(error < 1e-6, "{what}: merged {error}");
            }
        }
    }
}

#[test]
fn half_rows_agree_with_plain_arithmetic() {
    for dim in [32, 64, 96, 128, 256, 576, 1024] {
        let codec = AnyCodec::new(CodecId::F16, dim, Options::DEFAULT).unwrap();
        assert_eq!(codec.id(), CodecId::F16);
        let mut random = Random(6);
        let blocks = blocks(&codec, &mut random);
        let pages = HalfPages::new(dim, SLOTS).unwrap();
        let page = page(pages.lines(), &codec, &blocks, |page, slot, block| pages.write(page, slot, block));
        let mut block = vec![0; 2 * dim];
        pages.read(&page, 7, &mut block);
        assert_eq!(block, blocks[7 * 2 * dim..8 * 2 * dim]);
        for level in Level::available() {
            for heads in [1, 2, 3, MAX_HEADS] {
                for (from, to) in RANGES {
                    let (n, q) = (to - from, random.normals(heads * dim));
                    let out = guarded(heads * n, 0.0, |out| pages.scores(level, &page, from, &q, &page, out));
                    let mut want = vec![0.0; heads * n];
                    for h in 0..heads {
                        let rows = &blocks[from * 2 * dim..to * 2 * dim];
                        codec.scores(&q[h * dim..(h + 1) * dim], rows, &mut want[h * n..(h + 1) * n]);
                    }
                    for (a, b) in out.iter().zip(&want) {
                        assert!((a - b).abs() < 1e-3 * (dim as f32).sqrt(), "{a} {b} dim {dim}");
                    }
                    let weights: Vec<f32> = (0..heads * n).map(|_| random.unit()).collect();
                    let acc = guarded(heads * dim, 0.0, |acc| {
                        pages.accumulate(level, &page, from, &weights, &[], acc)
                    });
                    let mut want = vec![0.0; heads * dim];
                    for h in 0..heads {
                        let rows = &blocks[from * 2 * dim..to * 2 * dim];
                        codec.accumulate(
                            &weights[h * n..(h + 1) * n],
                            rows,
                            &mut want[h * dim..(h + 1) * dim],
                        );
                    }
                    for (a, b) in acc.iter().zip(&want) {
                        assert!((a - b).abs() < 1e-4, "{a} {b} dim {dim}");
                    }
                }
            }
        }
    }
}

#[test]
fn plain_rows_are_summed_alike_on_every_level() {
    let levels = levels();
    for dim in [16, 64, 80, 128, 1024] {
        let mut random = Random(9);
        let (n, heads) = (21, 3);
        let rows: Vec<u16> =
            random.normals(n * dim).iter().map(|&x| half::f16::from_f32(x).to_bits()).collect();
        let plain: Vec<f32> = rows.iter().map(|&bits| half::f16::from_bits(bits).to_f32()).collect();
        let (q, weights) = (random.normals(heads * dim), random.normals(heads * n));
        let run = |level: Level| {
            let out = guarded(heads * n, 0.0, |out| row_scores(level, &rows, dim, &q, out));
            (out, guarded(heads * dim, 0.5, |acc| row_sums(level, &rows, dim, &weights, acc)))
        };
        let (scores, sums) = run(Level::Portable);
        for h in 0..heads {
            for i in 0..n {
                let products = plain[i * dim..(i + 1) * dim].iter().zip(&q[h * dim..]);
                let exact: f64 = products.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                assert!((f64::from(scores[h * n + i]) - exact).abs() < 1e-4, "dim {dim}");
            }
            for j in 0..dim {
                let products = (0..n).map(|i| f64::from(weights[h * n + i]) * f64::from(plain[i * dim + j]));
                assert!((f64::from(sums[h * dim + j]) - 0.5 - products.sum::<f64>()).abs() < 1e-4);
            }
        }
        for &level in &levels {
            assert_bits(&run(level).0, &scores, "scores");
            assert_bits(&run(level).1, &sums, "sums");
        }
    }
}

#[test]
fn rows_become_f16_and_come_back_alike_on_every_level() {
    for values in [16, 48, 80, 1024] {
        let mut x = Random(values as u64).normals(values);
        // Ties, the largest, the smallest, one that is none any more, and zeros of both signs.
        x[..8].copy_from_slice(&[1.000_488_3, 1.001_464_8, 65504.0, 6e-8, 2e-8, -0.0, 0.0, -6.2e-5]);
        let want: Vec<u16> = x.iter().map(|&x| half::f16::from_f32(x).to_bits()).collect();
        for level in levels() {
            let mut halves = vec![0; values];
            narrow_rows(level, &x, &mut halves);
            assert_eq!(halves, want, "{level:?}");
            let wide = guarded(values, 0.0, |out| widen_rows(level, &halves, out));
            let exact: Vec<f32> = want.iter().map(|&bits| half::f16::from_bits(bits).to_f32()).collect();
            assert_bits(&wide, &exact, "widened");
        }
    }
}

/// Bytes that are their own levels may be -128, which no encoder of ours writes: two's complement has no +128, and
/// tricks with signs of bytes fail there.
#[test]
fn the_byte_minus_128_scores_and_sums_as_it_decodes() {
    for id in [CodecId::I8, CodecId::Q8_0, CodecId::Q8_0R] {
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
        // Largest bytes of both signs, next to each other.
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

/// What is no number must not come out as one.
#[test]
fn a_query_that_is_not_finite_gives_nan_everywhere() {
    let codec = AnyCodec::new(CodecId::S4, 64, Options::DEFAULT).unwrap();
    let mut random = Random(10);
    let blocks = blocks(&codec, &mut random);
    let ((keys, key_page), (values, value_page)) = (keys(&codec, &blocks), values(&codec, &blocks));
    let halves = HalfPages::new(64, SLOTS).unwrap();
    let mut half_page = vec![Line::ZERO; halves.lines()];
    (0..SLOTS).for_each(|slot| halves.write(&mut half_page, slot, &[0, 0x3c].repeat(64)));
    for level in Level::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut q = random.normals(2 * 64);
            q[64 + 7] = bad;
            let mut out = vec![0.0; 2 * SLOTS];
            halves.scores(level, &half_page, 0, &q, &[], &mut out);
            assert!(
                out[..SLOTS].iter().all(|v| v.is_finite()) && out[SLOTS..].iter().all(|v| !v.is_finite())
            );
            let mut rotated = vec![0.0; 2 * 64];
            codec::rotate_queries(level, &codec, &q, &mut rotated);
            let queries = keys.queries(level, &rotated);
            keys.scores(level, &key_page, 0, &queries, &[], &mut out);
            assert!(out[..SLOTS].iter().all(|v| v.is_finite()) && out[SLOTS..].iter().all(|v| v.is_nan()));
            let (mut state, mut acc) = ([Attention::EMPTY; 2], [0.0; 2 * 64]);
            let (keys, values) = ((&keys, &key_page[..]), (&values, &value_page[..]));
            let mut page = OnePage { level, keys, values, queries: &queries, joins: true, acc: &mut acc };
            attend(level, &mut page, 0, SLOTS, &mut state);
            assert!(state[0].sum >= 1.0 && state[1].sum.is_nan(), "{bad}: {state:?}");
            // It stays, whatever comes before and after.
            let mut seen = Attention { max: 1.0, sum: 2.0 };
            merge(&mut seen, &state[1]);
            assert!(seen.sum.is_nan());
            soften(level, &mut [0.5; 20], &mut state[1..]);
            assert!(state[1].sum.is_nan());
        }
        // One bad logit among good ones, and infinite ones.
        for bad in [f32::NAN, f32::INFINITY] {
            let (mut logits, mut state) = (random.normals(20), [Attention::EMPTY]);
            logits[13] = bad;
            soften(level, &mut logits, &mut state);
            assert!(state[0].sum.is_nan(), "{bad}");
        }
        let (mut logits, mut state) = ([f32::NEG_INFINITY; 20], [Attention::EMPTY]);
        soften(level, &mut logits, &mut state);
        assert_eq!((logits, state), ([0.0; 20], [Attention::EMPTY]));
    }
}
