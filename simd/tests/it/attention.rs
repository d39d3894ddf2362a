//! Attention over pages: the exponential, the online softmax, and NaN and infinite inputs.

use crate::common::{Random, assert_bits, of_each_level};
use crate::pages::{SLOTS, TILE, blocks, keys, relative_rms, values};
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::page::{
    Attention, AttentionParts, EXP_ERROR, HalfPages, KeyPages, Line, MAX_PARTS, Queries, ValuePages,
    ValuePart, WeightedPart, attend, exp, merge, rescale, soften,
};
use tqkv_simd::{Level, codec};
use tqkv_tests::oracle;

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
fn exact_attention(codec: &AnyCodec, q: &[f32], [k, v]: [&[u8]; 2], len: usize) -> Vec<f32> {
    let decoded = |blocks: &[u8]| -> Vec<Vec<f32>> {
        let row = |block: &[u8]| {
            let mut x = vec![0.0; codec.dim()];
            codec.decode(block, &mut x).unwrap();
            x
        };
        blocks.chunks_exact(codec.block_bytes()).take(len).map(row).collect()
    };
    oracle::attention(q, &decoded(k), &decoded(v)).iter().map(|&x| x as f32).collect()
}

/// A page of keys and one of values, in parts of different lengths.
struct OnePage<'a> {
    level: Level,
    keys: (&'a KeyPages, &'a [Line]),
    values: (&'a ValuePages, &'a [Line]),
    queries: &'a Queries,
    joins: bool,
    acc: &'a mut [f32],
}

impl AttentionParts for OnePage<'_> {
    fn part_end(&self, from: usize) -> usize {
        if from == 0 { TILE + 5 } else { SLOTS }
    }

    fn scores(&self, from: usize, _: usize, logits: &mut [f32]) {
        self.keys.0.scores(self.level, self.keys.1, from, self.queries, self.values.1, logits);
    }

    fn rescale(&mut self, factors: &[f32]) {
        rescale(factors, self.acc.len() / factors.len(), self.acc);
    }

    fn joins(&self, _: usize, _: usize) -> bool {
        self.joins
    }

    fn accumulate(&mut self, parts: &[WeightedPart<'_>]) {
        let mut summed = [ValuePart {
            pages: self.values.0,
            page: self.values.1,
            start: 0,
            from: 0,
            weights: &[],
            next: &[],
        }; MAX_PARTS];
        for (summed, part) in summed.iter_mut().zip(parts) {
            (summed.from, summed.weights) = (part.from, part.weights);
        }
        ValuePages::accumulate_parts(self.level, &summed[..parts.len()], self.acc);
    }
}

/// A page of keys, a page of values, and queries over them.
struct Scene {
    codec: AnyCodec,
    blocks: [Vec<u8>; 2],
    keys: (KeyPages, Vec<Line>),
    values: (ValuePages, Vec<Line>),
    queries: Vec<f32>,
    scale: f32,
}

/// Number of tokens, and whether parts of a page are summed together.
const LENGTHS: [(usize, bool); 4] = [(1, true), (TILE + 1, true), (SLOTS, true), (SLOTS, false)];

impl Scene {
    const HEADS: usize = 3;

    /// Scenes for these codecs at head dims of every kind.
    fn of(ids: &[CodecId]) -> impl Iterator<Item = Self> {
        let dims = [32, 64, 80, 128, 256];
        let shapes = ids.iter().flat_map(move |&id| dims.map(|dim| (id, dim)));
        shapes.filter_map(|(id, dim)| Self::new(AnyCodec::new(id, dim, Options::DEFAULT).ok()?))
    }

    fn new(codec: AnyCodec) -> Option<Self> {
        KeyPages::new(&codec, SLOTS)?;
        let mut random = Random(5);
        let blocks = [blocks(&codec, &mut random), blocks(&codec, &mut random)];
        let (keys, values) = (keys(&codec, &blocks[0]), values(&codec, &blocks[1]));
        let queries = random.normals(Self::HEADS * codec.dim()).iter().map(|x| 2.0 * x).collect();
        Some(Self { codec, blocks, keys, values, queries, scale: 1.0 / (codec.dim() as f32).sqrt() })
    }

    fn what(&self, (len, joins): (usize, bool)) -> String {
        let joined = if joins { "parts together" } else { "part by part" };
        format!("{} dim {}, {len} tokens, {joined}", self.codec.id().name(), self.codec.dim())
    }

    /// Attention over the first tokens. `is_split`: they are seen twice and merged, which does not change the
    /// average.
    fn attend(&self, level: Level, (len, joins): (usize, bool), is_split: bool) -> Vec<f32> {
        let dim = self.codec.dim();
        let scaled: Vec<f32> = self.queries.iter().map(|x| x * self.scale).collect();
        let mut rotated = vec![0.0; scaled.len()];
        codec::rotate_queries(level, &self.codec, &scaled, &mut rotated);
        let queries = &self.keys.0.queries(level, &rotated);
        let once = || {
            let (mut state, mut acc) = (vec![Attention::EMPTY; Self::HEADS], vec![0.0; scaled.len()]);
            let (keys, values) = ((&self.keys.0, &self.keys.1[..]), (&self.values.0, &self.values.1[..]));
            let mut page = OnePage { level, keys, values, queries, joins, acc: &mut acc };
            attend(level, &mut page, 0, len, &mut state);
            (state, acc)
        };
        let (mut state, mut acc) = once();
        if is_split {
            let (other, other_acc) = once();
            for h in 0..Self::HEADS {
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
        codec::unrotate(level, &self.codec, &mut acc);
        acc
    }
}

of_each_level!(attention: codes);

/// The result equals the portable one.
fn attention(level: Level, ids: &[CodecId]) {
    for scene in Scene::of(ids) {
        for length in LENGTHS {
            let portable = scene.attend(Level::Portable, length, false);
            assert_bits(&scene.attend(level, length, false), &portable, &scene.what(length));
        }
    }
}

#[test]
fn attention_over_pages_is_the_softmax_and_splits_anywhere() {
    let names = ["s4", "s3", "s2", "i8", "q8_0", "n4", "t1", "t2", "t2h", "t3", "t3h", "t4"];
    for scene in Scene::of(&names.map(|name| CodecId::from_name(name).unwrap())) {
        for length in LENGTHS {
            let what = scene.what(length);
            let portable = scene.attend(Level::Portable, length, false);
            let [k, v] = &scene.blocks;
            let exact = |q| exact_attention(&scene.codec, q, [k, v], length.0);
            let exact: Vec<f32> = scene.queries.chunks_exact(scene.codec.dim()).flat_map(exact).collect();
            let error = relative_rms(&portable, &exact);
            assert!(error < 0.03, "{what}: {error}");
            let error = relative_rms(&scene.attend(Level::Portable, length, true), &portable);
            assert!(error < 1e-6, "{what}: merged {error}");
        }
    }
}

/// A NaN or an infinity in the input must not give a number.
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
            // NaN stays, whatever comes before and after it.
            let mut seen = Attention { max: 1.0, sum: 2.0 };
            merge(&mut seen, &state[1]);
            assert!(seen.sum.is_nan());
            soften(level, &mut [0.5; 20], &mut state[1..]);
            assert!(state[1].sum.is_nan());
        }
        // One bad logit among good ones, and infinite logits.
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
