//! Random histories of caches of every kind, against a model that knows the rules of a token's life and no
//! pages.
//!
//! After every step:
//!
//! * attention equals f64 attention over the cache's contents;
//! * the contents are as far from the tokens as their codecs allow;
//! * without centring, the contents equal the tokens encoded in one tier after the other, to the bit;
//! * uncompressed tokens equal their f16;
//! * lengths, counts and refusals are the model's.
//!
//! `TQKV_LIVES=n` runs n times the number of histories, and `TQKV_LIVES_SEED=n` runs others.
//! `TQKV_EXHAUSTIVE=1` runs three times the number.

use crate::lives::model::Model;
use crate::lives::truth::{Rows, halves};
use crate::lives::world::{Kind, Op, World};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};
use tqkv::Level;
use tqkv::cache::{Arithmetic, CacheSpec, Centring, Cold, KvCache, LayerKind, LayerPolicy};
use tqkv_core::{CodecId, Effort, KvShape, Options, ScaleMode};
use tqkv_tests::scope;

fn op() -> impl Strategy<Value = Op> {
    let layer = || 0..3usize;
    let tokens = || prop_oneof![10 => 1..9usize, 8 => 1..70usize, 3 => 1..280usize];
    prop_oneof![
        5 => (layer(), tokens()).prop_map(|(layer, n)| Op::Append(layer, n)),
        2 => (layer(), 1..24usize).prop_map(|(layer, n)| Op::OneByOne(layer, n)),
        4 => (layer(), tokens()).prop_map(|(layer, n)| Op::Prefill(layer, n)),
        3 => tokens().prop_map(Op::Truncate),
        1 => (0..100usize).prop_map(Op::Cut),
        2 => Just(Op::Fork),
        2 => (0..8usize).prop_map(Op::Switch),
        1 => Just(Op::Drop),
        2 => (0..8usize).prop_map(Op::Restore),
        1 => Just(Op::Reset),
        2 => (layer(), 0..9usize).prop_map(|(layer, what)| Op::Refused(layer, what)),
    ]
}

/// The codec if it exists at this head dim, otherwise `s4`.
fn at(id: CodecId, dim: usize) -> CodecId {
    id.block_bytes(dim).map_or(CodecId::S4, |_| id)
}

/// The options and the arithmetic of caches.
fn work() -> impl Strategy<Value = (Options, Arithmetic, Option<Level>)> {
    let arithmetic = prop_oneof![3 => Just(Arithmetic::F32), 1 => Just(Arithmetic::Int8)];
    let level = prop::option::weighted(0.2, select(Level::available().collect::<Vec<_>>()));
    let mode = prop_oneof![3 => Just(ScaleMode::Unbiased), 1 => select(ScaleMode::ALL.to_vec())];
    let effort = prop_oneof![3 => Just(Effort::Default), 1 => select(Effort::ALL.to_vec())];
    (mode, effort, 0..3u64, arithmetic, level).prop_map(|(mode, effort, seed, arithmetic, level)| {
        let options = Options::DEFAULT.scale_mode(mode).effort(effort);
        (if seed == 0 { options } else { options.seed(seed) }, arithmetic, level)
    })
}

/// The life of old pages: their first codecs, if those matter, and the colder tiers.
type Ageing = (Option<[CodecId; 2]>, Vec<(usize, Cold)>);

fn ageing() -> impl Strategy<Value = Ageing> {
    use CodecId::{F16, I8, N2, N3, N4, Q4_0, Q8_0, S2, S3, S4, S5, T1, T2, T2S8, T4};
    let demote = |after, key, value| (after, Cold::Demote { key, value });
    let spill = |after| (after, Cold::Spill(std::env::temp_dir()));
    let nested = vec![demote(20, N3, N3), demote(140, N2, N2), spill(300)];
    prop_oneof![
        6 => Just((None, vec![])),
        2 => Just((None, vec![spill(60)])),
        2 => Just((Some([N4, N4]), nested)),
        1 => Just((Some([N4, N3]), vec![demote(0, N2, N3)])),
        1 => Just((Some([S5, S4]), vec![demote(90, S3, S2)])),
        1 => Just((Some([T4, S3]), vec![demote(50, T2, T2S8), spill(200)])),
        1 => Just((Some([I8, F16]), vec![demote(30, S4, Q8_0), demote(250, T1, Q4_0)])),
        1 => Just((Some([Q8_0, Q8_0]), vec![demote(100, Q4_0, Q8_0)])),
    ]
}

/// Returns true if the codecs of all tiers exist at the head dims.
fn fits(ageing: &Ageing, dims: [usize; 2]) -> bool {
    let there = |[key, value]: [CodecId; 2]| {
        key.block_bytes(dims[0]).is_some() && value.block_bytes(dims[1]).is_some()
    };
    let tiers = ageing.1.iter().filter_map(|(_, cold)| match *cold {
        Cold::Demote { key, value } => Some([key, value]),
        Cold::Spill(_) => None,
    });
    ageing.0.into_iter().chain(tiers).all(there)
}

/// The windows of layers. `hot` is the smallest window.
fn kinds(codes: [u8; 2], layers: usize, hot: usize) -> Vec<LayerKind> {
    let kind = |code| match code {
        0..6 => LayerKind::Full,
        6..9 => LayerKind::Sliding(hot + 1 + usize::from(code) % 6 * 45),
        _ => LayerKind::None,
    };
    let kinds: Vec<_> = codes[..layers].iter().map(|&code| kind(code)).collect();
    if kinds.iter().all(|kind| *kind == LayerKind::None) { vec![LayerKind::Full; layers] } else { kinds }
}

/// Sets scale, soft cap and learned sinks.
fn ruled(mut spec: CacheSpec, [scaled, capped, learned]: [bool; 3]) -> CacheSpec {
    spec.scale = scaled.then_some(0.31);
    spec.soft_cap = capped.then_some(2.5);
    let logits = spec.shape.num_layers * spec.shape.num_heads;
    spec.sink_logits = (0..logits).filter(|_| learned).map(|i| (i % 5) as f32 - 1.0).collect();
    spec
}

/// Codecs of all layers, and of the last layer if it has its own.
type Codecs = ((CodecId, CodecId), Option<(CodecId, CodecId)>);

/// Sets the codecs of a spec: those of its ageing, or others if they exist at its head dims.
fn coded(mut spec: CacheSpec, (all, tail): Codecs, ageing: Ageing) -> CacheSpec {
    let KvShape { head_dim, value_dim, .. } = spec.shape;
    let dims = if spec.position_dim > 0 { [value_dim; 2] } else { [head_dim, value_dim] };
    let fitting = |(key, value)| (at(key, dims[0]), at(value, dims[1]));
    let (own, cold) = if fits(&ageing, dims) { ageing } else { (None, vec![]) };
    let (key, value) = own.map_or_else(|| fitting(all), |[key, value]| (key, value));
    if let (Some(tail), None) = (tail, own) {
        spec = spec.layers(LayerPolicy::Tail { layers: 1, codecs: fitting(tail) });
    }
    spec.cold = cold;
    spec.codecs(key, value)
}

/// Any cache of these codecs, within the limits of `shape`.
fn kind(
    shape: impl Strategy<Value = CacheSpec>,
    codec: BoxedStrategy<CodecId>,
) -> impl Strategy<Value = Kind> {
    let pair = (codec.clone(), codec);
    let coding = (pair.clone(), prop::option::weighted(0.2, pair));
    let centring = select(vec![Centring::Off, Centring::On, Centring::Auto]);
    // A few of them, or more than several runs and a page have.
    let sinks = prop_oneof![4 => 0..7usize, 1 => 0..131usize];
    let windows = (sinks, 0..40usize, [0..10u8, 0..10u8], centring);
    let limit = prop_oneof![5 => Just(usize::MAX), 1 => 1000..400_000usize];
    let rule = [(); 3].map(|()| prop::bool::weighted(0.2));
    let rows = (any::<bool>(), prop::bool::weighted(0.2), limit);
    // Tokens of which all are exact, about.
    let narrowing = prop::option::weighted(0.3, 0..400usize);
    ((shape, narrowing), coding, work(), rule, ageing(), windows, rows).prop_map(
        |((spec, narrowing), codecs, work, rule, ageing, windows, (shift, spiky, limit))| {
            let (sinks, hot, layers, centring) = windows;
            let layers = kinds(layers, spec.shape.num_layers, hot);
            let mut spec = ruled(coded(spec, codecs, ageing), rule).kinds(layers);
            (spec.options, spec.arithmetic, spec.level) = work;
            let rows = Rows { shift: f32::from(u8::from(shift)), spiky };
            let KvShape { num_layers, num_kv_heads, head_dim, value_dim, .. } = spec.shape;
            let token = 2 * num_layers * num_kv_heads * (head_dim + value_dim);
            spec.narrow_at = narrowing.map(|tokens| tokens * token);
            Kind { spec: spec.sinks(sinks).hot(hot).centring(centring), rows, limit }
        },
    )
}

fn heads() -> impl Strategy<Value = CacheSpec> {
    let heads = select(vec![(1, 1), (2, 1), (2, 2), (4, 2), (3, 3), (9, 1), (18, 2)]);
    let dim = || select(vec![64, 128, 32, 48, 80, 96, 112]);
    (1..3usize, heads, dim(), prop::option::weighted(0.4, dim())).prop_map(
        |(layers, heads, dim, value_dim)| {
            KvShape::new(layers, heads.0, heads.1, dim).with_value_dim(value_dim.unwrap_or(dim)).into()
        },
    )
}

fn latent() -> impl Strategy<Value = CacheSpec> {
    let dims = (select(vec![64, 128, 80, 96]), select(vec![16, 32, 64, 48]));
    (1..3usize, 1..6usize, dims)
        .prop_map(|(layers, heads, dims)| CacheSpec::mla(layers, heads, dims.0, dims.1))
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |number| number.parse().expect(name))
}

/// Runs `count` histories of caches, always the same ones. A failure shows the shortest failing history.
fn live(count: u32, kinds: impl Strategy<Value = Kind>) {
    let count = count * scope::extent(1, 3);
    let (times, seed) = (number("TQKV_LIVES", 1) as u32, number("TQKV_LIVES_SEED", 0));
    let config = ProptestConfig {
        cases: count * times,
        failure_persistence: None,
        max_shrink_iters: 4000,
        ..ProptestConfig::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let lived = TestRunner::new_with_rng(config, random).run(
        &(kinds, prop::collection::vec(op(), 1..13)),
        |(kind, ops)| {
            let mut world = World::new(&kind);
            for (step, op) in (0..).zip(&ops) {
                world.step(op);
                world.check(step);
            }
            world.end();
            Ok(())
        },
    );
    println!("{} lives of seed {seed}", count * times);
    match lived {
        Ok(()) => {}
        Err(TestError::Fail(why, (kind, ops))) => panic!("{why}\nseed {seed}: {kind:?}\n{ops:?}"),
        Err(error) => panic!("{error}"),
    }
}

/// With a soft cap too, queries of a chunk see no later token.
#[test]
fn a_soft_cap_leaves_a_chunk_causal() {
    let spec = CacheSpec::new(1, 1, 1, 64).codecs(CodecId::S4, CodecId::S4).soft_cap(2.5);
    let model = Model::new(&spec, Rows { shift: 0.0, spiky: false });
    let tokens: Vec<u64> = (0..8).collect();
    let [k, v] = model.inputs(0, &tokens);
    let q: Vec<f32> = tokens.iter().flat_map(|&token| model.queries(0, token)).collect();
    let mut out = vec![0.0; q.len()];
    KvCache::new(spec).unwrap().attend_prefill(0, &q, &k, &v, &mut out).unwrap();
    assert_eq!(out[..64], halves(&v[..64]), "the first query sees the first token alone");
}

fn of(trellis: bool) -> BoxedStrategy<CodecId> {
    let wanted = |id: &CodecId| id.trellis().is_some() == trellis && !id.rotates_quarters();
    select(CodecId::ALL.iter().copied().filter(wanted).collect::<Vec<_>>()).boxed()
}

#[test]
fn lives_of_scalar_codes() {
    live(500, kind(heads(), of(false)));
}

#[test]
fn lives_of_trellis_codes() {
    live(140, kind(heads(), of(true)));
}

#[test]
fn lives_of_latent_vectors() {
    live(270, kind(latent(), prop_oneof![of(false), of(true)].boxed()));
}

/// Adds a map to a kind. Rows of one size keep its errors near those of the codecs, so bounds hold.
fn mapped(kind: impl Strategy<Value = Kind>) -> impl Strategy<Value = Kind> {
    kind.prop_map(|kind| {
        let mut spec = kind.spec.with("map=pairs").unwrap();
        spec.cold.clear();
        Kind { spec, rows: Rows { spiky: false, ..kind.rows }, ..kind }
    })
}

#[test]
fn lives_of_maps() {
    let wide = [CodecId::T4, CodecId::S4, CodecId::T3, CodecId::S5, CodecId::Q4_0];
    live(120, mapped(kind(heads(), select(wide.to_vec()).boxed())));
}
