//! Compares the cache with a plain `Vec` of tokens and attention in f64.
//!
//! The oracle knows the rules: when each token is encoded, and with which mean. It knows nothing of pages,
//! rings or online softmax.

use proptest::prelude::*;
use tqkv::Level;
use tqkv::attention::AttentionCache;
use tqkv::cache::{Arithmetic, CacheSpec, Centring, Cold, KvCache, PAGE_TOKENS};
use tqkv::dense::DenseCache;
use tqkv_core::unstable::Levels;
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_tests::inputs::Gaussian;
use tqkv_tests::oracle;

const DIM: usize = 32;
/// Keys that wait for their mean.
const MEAN_TOKENS: usize = 64;

/// One KV head as the documentation describes it.
struct Model {
    spec: CacheSpec,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    /// Encoded keys of tokens; `None` until the token leaves the hot window.
    coded_keys: Vec<Option<Vec<f32>>>,
    coded_values: Vec<Option<Vec<f32>>>,
    /// The encoded keys in the domain of their blocks, from which means are made.
    rotated_keys: Vec<Vec<f32>>,
    /// Means of the keys, each with the first page that uses it.
    means: Vec<(usize, Vec<f32>)>,
    /// Step of their grid.
    step: f32,
    learning: bool,
}

fn round(x: &[f32]) -> Vec<f32> {
    x.iter().map(|&v| half::f16::from_f32(v).to_f32()).collect()
}

impl Model {
    fn new(spec: &CacheSpec) -> Self {
        Self {
            learning: Self::learns(spec),
            spec: spec.clone(),
            keys: vec![],
            values: vec![],
            coded_keys: vec![],
            coded_values: vec![],
            rotated_keys: vec![],
            means: vec![],
            step: 0.0,
        }
    }

    fn learns(spec: &CacheSpec) -> bool {
        spec.centring != Centring::Off && spec.key != CodecId::F16
    }

    /// A vector decoded, and in the domain of its block.
    fn through(&self, id: CodecId, x: &[f32]) -> [Vec<f32>; 2] {
        let codec = AnyCodec::new(id, DIM, self.spec.options).unwrap();
        let (mut block, mut out, mut rotated) =
            (vec![0; codec.block_bytes()], vec![0.0; DIM], vec![0.0; DIM]);
        codec.encode(x, &mut block).unwrap();
        codec.decode(&block, &mut out).unwrap();
        codec.decode_rotated(&block, &mut rotated);
        [out, rotated]
    }

    /// The mean of the keys in the pages before `page`: of their blocks in steps of 2^-16, plus their own
    /// means. The order of operations is the cache's, because the last bit of the mean decides codes.
    fn mean_before(&self, page: usize) -> Vec<f32> {
        let mut sums = vec![0i64; DIM];
        for key in &self.rotated_keys[..page * PAGE_TOKENS] {
            // A key that is much longer than others counts for less.
            let most = 512.0 * self.step * (DIM as f32).sqrt();
            sums.iter_mut().zip(key).for_each(|(sum, &x)| *sum += (x.clamp(-most, most) * 65536.0) as i64);
        }
        let factor = 1.0 / (65536.0 * (page * PAGE_TOKENS) as f32);
        let mut mean: Vec<f32> = sums.iter().map(|&sum| sum as f32 * factor).collect();
        AnyCodec::new(self.spec.key, DIM, self.spec.options).unwrap().unrotate(&mut mean);
        for (i, (first, old)) in self.means.iter().enumerate() {
            let end = self.means.get(i + 1).map_or(page, |(first, _)| *first);
            let share = (end - first) as f32 / page as f32;
            mean.iter_mut().zip(old).for_each(|(m, x)| *m += x * share);
        }
        on_grid(mean, self.step)
    }

    fn push(&mut self, k: &[f32], v: &[f32]) {
        self.keys.push(round(k));
        self.values.push(round(v));
        self.coded_keys.push(None);
        self.coded_values.push(None);
        let (sinks, len) = (self.spec.sinks, self.keys.len());
        // Tokens leave the hot window in fours, counted from the first token that is not encoded.
        let leaving = |coded: &[Option<Vec<f32>>]| {
            let first = (sinks..len).find(|&i| coded[i].is_none()).unwrap_or(len);
            let extra = len.saturating_sub(first + self.spec.hot);
            first..first + if self.spec.hot < 4 { extra } else { extra / 4 * 4 }
        };
        for i in leaving(&self.coded_values) {
            let [decoded, _] = self.through(self.spec.value, &self.values[i]);
            self.coded_values[i] = Some(decoded);
        }
        let leaving = leaving(&self.coded_keys);
        if self.learning && leaving.len() >= MEAN_TOKENS {
            let mean = mean_of(&self.keys[sinks..sinks + MEAN_TOKENS]);
            self.step = step_of(&self.keys[sinks..sinks + MEAN_TOKENS], &mean);
            self.means = vec![(0, on_grid(mean, self.step))];
            self.learning = false;
        }
        if !self.learning {
            for i in leaving {
                let page = (i - sinks) / PAGE_TOKENS;
                if page.is_power_of_two() && self.means.last().is_some_and(|(first, _)| *first < page) {
                    self.means.push((page, self.mean_before(page)));
                }
                let mean = self.means.iter().rfind(|(first, _)| *first <= page);
                let mean: &[f32] = mean.map_or(&[0.0; DIM], |(_, mean)| mean);
                let centred: Vec<f32> = self.keys[i].iter().zip(mean).map(|(x, m)| x - m).collect();
                let [decoded, rotated] = self.through(self.spec.key, &centred);
                self.rotated_keys.push(rotated);
                self.coded_keys[i] = Some(decoded.iter().zip(mean).map(|(x, m)| x + m).collect());
            }
        }
    }

    fn truncate(&mut self, len: usize) {
        self.keys.truncate(len);
        self.values.truncate(len);
        let coded = |keys: &[Option<Vec<f32>>]| keys.iter().flatten().count();
        let before = coded(&self.coded_keys);
        self.coded_keys.truncate(len);
        self.coded_values.truncate(len);
        let after = coded(&self.coded_keys);
        self.rotated_keys.truncate(after);
        self.means.retain(|(first, _)| first * PAGE_TOKENS < after);
        if before > 0 && after == 0 {
            self.learning = Self::learns(&self.spec);
        }
    }

    fn attend(&self, q: &[f32]) -> Vec<f64> {
        let len = self.keys.len();
        let first = self.spec.sliding_window.map_or(0, |w| len.saturating_sub(w));
        let seen: Vec<usize> = (0..len).filter(|&i| i < self.spec.sinks || i >= first).collect();
        let pick = |raw: &[Vec<f32>], coded: &[Option<Vec<f32>>]| -> Vec<Vec<f32>> {
            seen.iter().map(|&i| coded[i].clone().unwrap_or_else(|| raw[i].clone())).collect()
        };
        oracle::attention(q, &pick(&self.keys, &self.coded_keys), &pick(&self.values, &self.coded_values))
    }
}

/// Step of the grid that means lie on: the largest power of two that is at most 1/64 of the spread of the first keys.
fn step_of(keys: &[Vec<f32>], mean: &[f32]) -> f32 {
    let apart = keys.iter().flat_map(|key| key.iter().zip(mean).map(|(x, m)| x - m));
    let spread = (apart.map(|x| x * x).sum::<f32>() / (keys.len() * DIM) as f32).sqrt();
    (-40..40).rev().map(|exponent| 2f32.powi(exponent)).find(|step| *step <= spread / 64.0).unwrap()
}

fn on_grid(mean: Vec<f32>, step: f32) -> Vec<f32> {
    mean.into_iter().map(|x| (x / step).round() * step).collect()
}

/// The mean of rows, summed in order.
fn mean_of(keys: &[Vec<f32>]) -> Vec<f32> {
    let mut mean = [0.0; DIM];
    keys.iter().for_each(|key| mean.iter_mut().zip(key).for_each(|(m, x)| *m += x));
    mean.iter().map(|m| m / keys.len() as f32).collect()
}

/// A token whose keys have a common offset, so that centring has an effect.
fn token(gaussian: &mut Gaussian) -> (Vec<f32>, Vec<f32>) {
    let key = gaussian.vector(DIM).iter().enumerate().map(|(i, x)| x + (i % 3) as f32).collect();
    (key, gaussian.vector(DIM))
}

fn assert_close(got: &[f32], want: &[f64], what: &str) {
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*g) - w).abs() < 1e-4, "{what}: value {i} is {g}, expected {w}");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Append(usize),
    Prefill(usize),
    Truncate(usize),
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..20usize).prop_map(Op::Append),
        4 => (1..300usize).prop_map(Op::Prefill),
        3 => (0..100usize).prop_map(Op::Truncate),
        1 => Just(Op::Reset),
    ]
}

fn spec() -> impl Strategy<Value = CacheSpec> {
    let codec = || {
        prop::sample::select(vec![
            CodecId::S4,
            CodecId::S2,
            CodecId::I8,
            CodecId::N3,
            CodecId::F16,
            CodecId::Q4_0,
        ])
    };
    let centring = prop::sample::select(vec![Centring::Off, Centring::On]);
    let window = prop::option::of(64..400usize);
    (codec(), codec(), 0..6usize, 0..40usize, centring, window).prop_map(
        |(key, value, sinks, hot, centring, window)| {
            let spec = CacheSpec::new(1, 2, 1, DIM).codecs(key, value).sinks(sinks).hot(hot);
            let spec = spec.centring(centring).arithmetic(Arithmetic::F32);
            if let Some(window) = window { spec.sliding_window(window) } else { spec }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_equal_the_model(spec in spec(), ops in prop::collection::vec(op(), 1..8), seed in 0..1000u64) {
        let mut gaussian = Gaussian::new(seed);
        let mut cache = KvCache::new(spec.clone()).unwrap();
        let mut model = Model::new(&spec);
        let mut out = vec![0.0; 2 * DIM];
        for op in &ops {
            match *op {
                Op::Append(n) => {
                    for _ in 0..n {
                        let (k, v) = token(&mut gaussian);
                        cache.append(0, &k, &v).unwrap();
                        model.push(&k, &v);
                    }
                }
                Op::Prefill(n) => {
                    let tokens: Vec<_> = (0..n).map(|_| token(&mut gaussian)).collect();
                    let (k, v): (Vec<_>, Vec<_>) = tokens.iter().cloned().unzip();
                    let q = gaussian.vector(n * 2 * DIM);
                    let mut out = vec![0.0; q.len()];
                    cache.attend_prefill(0, &q, &k.concat(), &v.concat(), &mut out).unwrap();
                    for (i, (k, v)) in tokens.iter().enumerate() {
                        model.push(k, v);
                        for h in 0..2 {
                            let at = (2 * i + h) * DIM..(2 * i + h + 1) * DIM;
                            assert_close(&out[at.clone()], &model.attend(&q[at]), &format!("query {i} of {op:?}"));
                        }
                    }
                }
                Op::Truncate(back) => {
                    let len = model.keys.len().saturating_sub(back);
                    cache.truncate(len).unwrap();
                    model.truncate(len);
                }
                Op::Reset => {
                    cache.reset();
                    model = Model::new(&spec);
                }
            }
            prop_assert_eq!(cache.len(), model.keys.len());
            let q = gaussian.vector(2 * DIM);
            let attended = cache.attend(0, &q, &mut out);
            if model.keys.is_empty() {
                prop_assert!(attended.is_err());
            } else {
                attended.unwrap();
                assert_close(&out[..DIM], &model.attend(&q[..DIM]), &format!("after {op:?}"));
                assert_close(&out[DIM..], &model.attend(&q[DIM..]), &format!("after {op:?}"));
            }
        }
    }
}

/// Attention reads tokens in tiles from the start of the window. Here the last tile begins after the encoded
/// tokens, in the middle of a page.
#[test]
fn a_tile_may_begin_behind_the_encoded_tokens() {
    let spec = CacheSpec::new(1, 2, 1, DIM).sinks(0).hot(14).centring(Centring::Off).sliding_window(257);
    let mut gaussian = Gaussian::new(8);
    let spec = spec.arithmetic(Arithmetic::F32);
    let (mut cache, mut model) = (KvCache::new(spec.clone()).unwrap(), Model::new(&spec));
    for _ in 0..271 {
        let (k, v) = token(&mut gaussian);
        cache.append(0, &k, &v).unwrap();
        model.push(&k, &v);
    }
    let (q, mut out) = (gaussian.vector(2 * DIM), vec![0.0; 2 * DIM]);
    cache.attend(0, &q, &mut out).unwrap();
    assert_close(&out[..DIM], &model.attend(&q[..DIM]), "first head");
    assert_close(&out[DIM..], &model.attend(&q[DIM..]), "second head");
}

/// KV heads and layers do not affect each other.
#[test]
fn heads_and_layers_are_apart() {
    let spec =
        CacheSpec::new(2, 6, 3, DIM).codecs(CodecId::S4, CodecId::S3).hot(3).sinks(1).centring(Centring::Off);
    let spec = spec.arithmetic(Arithmetic::F32);
    let mut cache = KvCache::new(spec.clone()).unwrap();
    let mut models: Vec<Model> = (0..6).map(|_| Model::new(&spec)).collect();
    let mut gaussian = Gaussian::new(5);
    for layer in 0..2 {
        for _ in 0..20 {
            let tokens: Vec<_> = (0..3).map(|_| token(&mut gaussian)).collect();
            let (k, v): (Vec<_>, Vec<_>) = tokens.iter().cloned().unzip();
            cache.append(layer, &k.concat(), &v.concat()).unwrap();
            for (h, (k, v)) in tokens.iter().enumerate() {
                models[layer * 3 + h].push(k, v);
            }
        }
        let q = gaussian.vector(6 * DIM);
        let mut out = vec![0.0; q.len()];
        cache.attend(layer, &q, &mut out).unwrap();
        for h in 0..6 {
            let at = h * DIM..(h + 1) * DIM;
            assert_close(
                &out[at.clone()],
                &models[layer * 3 + h / 2].attend(&q[at]),
                &format!("layer {layer} head {h}"),
            );
        }
    }
}

#[test]
fn scores_are_the_logits_of_the_newest_position() {
    let spec =
        CacheSpec::new(1, 1, 1, DIM).codecs(CodecId::S4, CodecId::S4).hot(8).sinks(2).centring(Centring::On);
    let spec = spec.arithmetic(Arithmetic::F32);
    let mut cache = KvCache::new(spec.clone()).unwrap();
    let mut model = Model::new(&spec);
    let mut gaussian = Gaussian::new(9);
    for _ in 0..200 {
        let (k, v) = token(&mut gaussian);
        cache.append(0, &k, &v).unwrap();
        model.push(&k, &v);
    }
    let q = gaussian.vector(DIM);
    let scores = cache.scores(0, 0, &q).unwrap();
    assert_eq!(scores.len(), 200);
    for (i, score) in scores.iter().enumerate() {
        let key = model.coded_keys[i].as_ref().unwrap_or(&model.keys[i]);
        let want = oracle::dot(&q, key) / (DIM as f64).sqrt();
        assert!((f64::from(*score) - want).abs() < 1e-4, "token {i}: {score} against {want}");
    }
}

fn filled(spec: CacheSpec, tokens: usize, seed: u64) -> (KvCache, Vec<f32>, Vec<f32>) {
    let mut cache = KvCache::new(spec).unwrap();
    let mut gaussian = Gaussian::new(seed);
    for _ in 0..tokens {
        let (k, v) = token(&mut gaussian);
        cache.append(0, &k, &v).unwrap();
    }
    let q = gaussian.vector(DIM);
    let mut out = vec![0.0; DIM];
    cache.attend(0, &q, &mut out).unwrap();
    (cache, q, out)
}

fn base() -> CacheSpec {
    CacheSpec::new(1, 1, 1, DIM).codecs(CodecId::N4, CodecId::N4).hot(16).sinks(4).centring(Centring::Off)
}

#[test]
fn spilling_changes_no_bit_and_frees_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (warm, _, want) = filled(base(), 1000, 1);
    let (cold, _, got) = filled(base().cold(200, Cold::Spill(folder.path().into())), 1000, 1);
    assert_eq!(got, want);
    let (warm, cold) = (warm.stats(), cold.stats());
    assert_eq!((warm.cold, cold.cold), (0, 768), "whole pages that are older than 200 tokens");
    assert_eq!(cold.spilled_bytes, 2 * 768 * 18);
    assert!(cold.allocated_bytes + cold.spilled_bytes <= warm.allocated_bytes + 1024);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
}

#[test]
fn demotion_halves_old_pages_and_stays_near() {
    let (warm, _, want) = filled(base(), 1000, 2);
    let demote = Cold::Demote { key: CodecId::N2, value: CodecId::N2 };
    let (cold, _, got) = filled(base().cold(200, demote.clone()), 1000, 2);
    let (narrow, _, bad) = filled(base().codecs(CodecId::N2, CodecId::N2), 1000, 2);
    assert!(narrow.stats().allocated_bytes < cold.stats().allocated_bytes);
    assert!(cold.stats().allocated_bytes < warm.stats().allocated_bytes * 8 / 10);
    let error = |out: &[f32]| oracle::relative_mse(&want, out);
    assert!(error(&got) > 0.0 && error(&got) < 2.0 * error(&bad) + 1e-3, "{} {}", error(&got), error(&bad));
}

#[test]
fn truncating_into_a_cold_page_keeps_what_is_left_usable() {
    let demote = Cold::Demote { key: CodecId::S2, value: CodecId::S2 };
    let spec = base().codecs(CodecId::S4, CodecId::S4).cold(0, demote);
    let (mut cache, q, _) = filled(spec, 600, 3);
    let mut before = cache.scores(0, 0, &q).unwrap();
    cache.truncate(200).unwrap();
    before.truncate(200);
    let after = cache.scores(0, 0, &q).unwrap();
    let drift = before.iter().zip(&after).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // Encoding again at 4 bits changes a logit by 0.15 (rms) at these norms.
    assert!(drift < 0.8, "largest change of a logit {drift}");
    let mut gaussian = Gaussian::new(4);
    for _ in 0..300 {
        let (k, v) = token(&mut gaussian);
        cache.append(0, &k, &v).unwrap();
    }
    assert_eq!(cache.scores(0, 0, &q).unwrap().len(), 500);
}

#[test]
fn a_sliding_window_bounds_memory() {
    let bytes = |tokens| filled(base().sliding_window(256), tokens, 5).0.stats().allocated_bytes;
    assert!(bytes(4000) <= bytes(1000) + 4096, "{} against {}", bytes(4000), bytes(1000));
    let (mut cache, _, _) = filled(base().sliding_window(256), 2000, 5);
    assert!(cache.stats().evicted > 1000);
    cache.truncate(2000 - 128).unwrap();
    let error = cache.truncate(1000).unwrap_err().to_string();
    assert!(error.contains("cannot truncate to 1000"), "{error}");
}

#[test]
fn memory_figures_are_what_is_held() {
    let (cache, _, _) = filled(base().hot(0).sinks(0), 1280, 6);
    let stats = cache.stats();
    let blocks = 1280 * 2 * (2 + DIM / 2);
    assert!(stats.allocated_bytes >= blocks && stats.allocated_bytes < blocks + 2048, "{stats:?}");
    assert_eq!((stats.warm, stats.hot, stats.sinks, stats.tokens), (1280, 0, 0, 1280));
}

#[test]
fn automatic_centring_follows_the_keys() {
    let mut gaussian = Gaussian::new(7);
    let mut run = |offset: f32| {
        let mut cache = KvCache::new(base().centring(Centring::Auto)).unwrap();
        for _ in 0..200 {
            let k: Vec<f32> = gaussian.vector(DIM).iter().map(|x| x + offset).collect();
            cache.append(0, &k, &k).unwrap();
        }
        cache.stats().centred_heads
    };
    assert_eq!((run(0.0), run(1.0)), (0, 1));
}

#[test]
fn bad_input_is_named_and_leaves_nothing_behind() {
    let mut cache = KvCache::new(CacheSpec::new(1, 2, 2, DIM).sinks(0)).unwrap();
    let good = vec![1.0; 3 * 2 * DIM];
    let mut bad = good.clone();
    bad[(2 * 2 + 1) * DIM + 7] = f32::NAN;
    let error = cache.append(0, &bad, &good).unwrap_err().to_string();
    assert!(error.starts_with("layer 0, key of token 2, KV head 1"), "{error}");
    bad[(2 * 2 + 1) * DIM + 7] = 1e15;
    let error = cache.append(0, &good, &bad).unwrap_err().to_string();
    let limit = cache.spec().max_norms(0).unwrap()[1].to_string();
    assert!(error.starts_with("layer 0, value of token 2, KV head 1") && error.contains(&limit), "{error}");
    assert!(cache.append(0, &good[..5], &good).is_err());
    assert!(cache.append(1, &good, &good).is_err());
    assert!(cache.scores(0, 2, &good[..DIM]).is_err());
    assert_eq!(cache.len(), 0);
    let mut out = vec![1.0; 2 * DIM];
    let error = cache.attend(0, &good[..2 * DIM], &mut out).unwrap_err().to_string();
    assert!(error.contains("layer 0 holds no token"), "{error}");

    let refused = |spec: CacheSpec| KvCache::new(spec).unwrap_err().to_string();
    assert!(refused(CacheSpec::new(1, 3, 2, DIM)).contains("3 query heads"));
    assert!(refused(CacheSpec::new(1, 1, 1, 33)).contains("head_dim 33"));
    assert!(refused(base().sliding_window(8)).contains("16 (the hot window)"));
    assert!(
        refused(base().cold(1, Cold::Demote { key: CodecId::F16, value: CodecId::N2 })).contains("rotated")
    );
    assert!(
        refused(base().cold(1, Cold::Spill("/nonexistent/folder".into()))).contains("/nonexistent/folder")
    );
}

/// Softmax would turn it into numbers that look like an answer.
#[test]
fn a_query_that_is_not_finite_is_refused_everywhere() {
    let spec = CacheSpec::new(2, 2, 1, DIM);
    let shape = spec.shape;
    let (mut cache, mut dense) = (KvCache::new(spec).unwrap(), DenseCache::new(&shape.into()).unwrap());
    let good = vec![0.5; 2 * DIM];
    cache.append(1, &good, &good).unwrap();
    let named = "query of layer 1, token 0, head 1: values must be finite";
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let (mut q, mut out) = (good.clone(), vec![1.0; 2 * DIM]);
        q[2 * DIM - 3] = bad;
        assert_eq!(cache.attend(1, &q, &mut out).unwrap_err().to_string(), named);
        assert_eq!(cache.scores(1, 1, &q[DIM..]).unwrap_err().to_string(), named);
        let (k, v) = (&good[..DIM], &good[..DIM]);
        assert_eq!(cache.attend_prefill(1, &q, k, v, &mut out).unwrap_err().to_string(), named);
        assert_eq!(dense.attend_chunk(1, &q, k, v, &mut out).unwrap_err().to_string(), named);
        assert!(out.iter().all(|&x| x == 1.0), "nothing is written");
        assert_eq!(cache.scores(1, 1, k).unwrap().len(), 2, "nothing is appended");
    }
}

/// The largest vectors along a row of the Hadamard matrix. The unbiased scale alone would overflow f16.
#[test]
fn vectors_that_only_the_scale_correction_pushes_out_of_range_are_kept() {
    let codec = AnyCodec::new(CodecId::S2, DIM, Options::DEFAULT).unwrap();
    let mut cache = KvCache::new(base().codecs(CodecId::S2, CodecId::S2).hot(0).sinks(0)).unwrap();
    let mut row = vec![0.0; DIM];
    row[0] = 0.999 * cache.spec().max_norms(0).unwrap()[0] * (DIM as f32).sqrt();
    codec.unrotate(&mut row);
    cache.append(0, &row, &row).unwrap();
    assert_eq!(cache.stats().warm, 1);
}

/// Two KV heads of three query heads each, with a head dim that fills whole cache lines.
fn long(arithmetic: Arithmetic, key: CodecId, value: CodecId, tokens: usize) -> (Vec<f32>, Vec<f32>) {
    const DIM: usize = 64;
    let spec = CacheSpec::new(1, 6, 2, DIM).codecs(key, value).hot(16).arithmetic(arithmetic);
    let (mut cache, mut gaussian) = (KvCache::new(spec).unwrap(), Gaussian::new(9));
    cache.append(0, &gaussian.vector(tokens * 2 * DIM), &gaussian.vector(tokens * 2 * DIM)).unwrap();
    let q: Vec<f32> = gaussian.vector(6 * DIM).iter().map(|x| 1.5 * x).collect();
    let mut out = vec![0.0; 6 * DIM];
    cache.attend(0, &q, &mut out).unwrap();
    (cache.scores(0, 5, &q[5 * DIM..]).unwrap(), out)
}

#[test]
fn integer_attention_is_within_a_percent_of_exact_levels() {
    for &id in
        CodecId::ALL.iter().filter(|id| !matches!(id.levels(), Levels::Values) && !id.rotates_quarters())
    {
        let ((logits, out), (exact_logits, exact_out)) =
            (long(Arithmetic::Int8, id, id, 1500), long(Arithmetic::F32, id, id, 1500));
        let error = oracle::relative_mse(&exact_logits, &logits).sqrt();
        // A codec without page kernels would give no error at all.
        assert!(error > 0.0 && error < 0.01, "{}: logits are {error} off", id.name());
        let error = oracle::relative_mse(&exact_out, &out).sqrt();
        assert!(error < 0.03, "{}: outputs are {error} off", id.name());
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| long(Arithmetic::Int8, CodecId::S4, CodecId::S3, 7000))
    };
    let bits =
        |(a, b): (Vec<f32>, Vec<f32>)| -> Vec<u32> { a.iter().chain(&b).map(|x| x.to_bits()).collect() };
    let one = bits(run(1));
    assert_eq!(bits(run(2)), one);
    assert_eq!(bits(run(5)), one);
}

/// Vectors against the signs, against each other, and against the mean.
#[test]
fn what_append_accepts_is_stored_whatever_its_direction() {
    let norm = |x: &[f32]| x.iter().map(|v| v * v).sum::<f32>().sqrt();
    // Codes of quarters need a map.
    for &id in CodecId::ALL.iter().filter(|id| !id.rotates_quarters()) {
        let spec = CacheSpec::new(1, 1, 1, DIM).codecs(id, id).sinks(0).hot(0).centring(Centring::On);
        let nested = id.is_nested().then_some(CodecId::N2);
        let cold = |spec: CacheSpec| match nested {
            Some(narrow) => spec.cold(8, Cold::Demote { key: narrow, value: narrow }),
            None => spec,
        };
        let mut cache = KvCache::new(cold(spec)).unwrap();
        let limits = cache.spec().max_norms(0).unwrap();
        let codec = AnyCodec::new(id, DIM, Options::DEFAULT).unwrap();
        let mut one = vec![0.0; DIM];
        one[3] = 1.0;
        codec.unrotate(&mut one);
        for token in 0..3 * MEAN_TOKENS + 200 {
            let sign = if token < MEAN_TOKENS { 1.0 } else { -1.0 };
            let rows = limits
                .map(|limit| one.iter().map(|v| v * sign * limit * 0.9999 / norm(&one)).collect::<Vec<_>>());
            cache
                .append(0, &rows[0], &rows[1])
                .unwrap_or_else(|error| panic!("{} {token}: {error}", id.name()));
        }
    }
}

/// Each cache has its own level, so one process can compare two levels.
#[test]
fn caches_of_all_levels_live_side_by_side() {
    const DIM: usize = 128;
    let mut gaussian = Gaussian::new(5);
    let (k, v, q) = (gaussian.vector(300 * DIM), gaussian.vector(300 * DIM), gaussian.vector(2 * DIM));
    let attend = |id: CodecId| -> Vec<Vec<f32>> {
        let spec = CacheSpec::new(1, 2, 1, DIM).codecs(id, id);
        let mut caches: Vec<KvCache> =
            Level::available().map(|level| KvCache::new(spec.clone().level(level)).unwrap()).collect();
        let results = caches.iter_mut().map(|cache| {
            let mut out = vec![0.0; 2 * DIM];
            cache.append(0, &k, &v).unwrap();
            cache.attend(0, &q, &mut out).unwrap();
            out
        });
        let results = results.collect();
        let levels: Vec<Option<Level>> = caches.iter().map(|cache| cache.spec().level).collect();
        assert_eq!(levels, Level::available().map(Some).collect::<Vec<_>>());
        results
    };
    for out in attend(CodecId::S4).windows(2) {
        assert_eq!(out[0], out[1], "codes are attended to alike to the bit");
    }
    // Rows of f16 are summed in the fastest order of each level, so the last bits show that levels differ.
    // Two levels that only differ in byte products share the order.
    let rows = attend(CodecId::F16);
    for out in rows.windows(2) {
        assert!(oracle::relative_mse(&out[0], &out[1]) < 1e-8);
    }
    assert!(rows.len() == 1 || rows.first() != rows.last());
}

/// Trellis codes are encoded ahead on another thread, but only if tokens come one by one.
#[test]
fn tokens_encoded_ahead_equal_those_encoded_at_once() {
    let spec = || base().codecs(CodecId::T4, CodecId::T2).centring(Centring::On);
    let mut gaussian = Gaussian::new(21);
    let (k, v, q) = (gaussian.vector(120 * DIM), gaussian.vector(120 * DIM), gaussian.vector(DIM));
    let out = |cache: &KvCache| {
        let mut out = vec![0.0; DIM];
        cache.attend(0, &q, &mut out).unwrap();
        out
    };
    let mut at_once = KvCache::new(spec()).unwrap();
    at_once.append(0, &k, &v).unwrap();
    let mut single = KvCache::new(spec()).unwrap();
    let one = |cache: &mut KvCache, from: usize, to: usize, sign: f32| {
        let signed = |x: &[f32]| x.iter().map(|x| sign * x).collect::<Vec<_>>();
        for i in from..to {
            let at = i * DIM..(i + 1) * DIM;
            cache.append(0, &signed(&k[at.clone()]), &signed(&v[at])).unwrap();
        }
    };
    one(&mut single, 0, 100, 1.0);
    // Other tokens replace some that were being encoded, and are then dropped.
    let copy = single.clone();
    one(&mut single, 100, 107, -1.0);
    single.truncate(100).unwrap();
    one(&mut single, 100, 120, 1.0);
    assert_eq!(out(&single), out(&at_once));
    assert_eq!(single.stats().warm, at_once.stats().warm);
    let mut copy = copy;
    for back in [99, 90, 86] {
        copy.truncate(back).unwrap();
        one(&mut copy, back, back + 3, -1.0);
        copy.truncate(back).unwrap();
        one(&mut copy, back, 100, 1.0);
    }
    one(&mut copy, 100, 120, 1.0);
    assert_eq!(out(&copy), out(&at_once));
    // Here the other tokens fill the hot window. So the oldest tokens, which are being encoded, are among the
    // dropped ones.
    let mut sixty = KvCache::new(spec()).unwrap();
    one(&mut sixty, 0, 60, 1.0);
    for others in spec().hot..spec().hot + 4 {
        let mut cache = sixty.clone();
        one(&mut cache, 60, 60 + others, -1.0);
        cache.truncate(60).unwrap();
        one(&mut cache, 60, 120, 1.0);
        assert_eq!(out(&cache), out(&at_once), "{others} others");
    }
}

#[test]
fn groups_larger_than_the_kernels_take_are_split() {
    let spec = |heads| CacheSpec::new(1, heads, 1, DIM).codecs(CodecId::S4, CodecId::S4).hot(0);
    let mut gaussian = Gaussian::new(12);
    let (k, v, q) = (gaussian.vector(300 * DIM), gaussian.vector(300 * DIM), gaussian.vector(11 * DIM));
    let run = |heads: usize, q: &[f32]| {
        let mut cache = KvCache::new(spec(heads)).unwrap();
        cache.append(0, &k, &v).unwrap();
        let mut out = vec![0.0; q.len()];
        cache.attend(0, q, &mut out).unwrap();
        out
    };
    let all = run(11, &q);
    for (head, q) in q.array_windows::<{ 2 * DIM }>().step_by(DIM).enumerate() {
        assert_eq!(run(2, q), all[head * DIM..(head + 2) * DIM], "heads from {head} on");
    }
    // For a single head, pages are summed one by one, so weights are rounded against other largest ones. The
    // values themselves have an error of .01.
    for (head, q) in q.chunks_exact(DIM).enumerate() {
        let error = oracle::relative_mse(&run(1, q), &all[head * DIM..(head + 1) * DIM]);
        assert!(error < 1e-3, "head {head}: {error}");
    }
}
