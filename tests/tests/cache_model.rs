//! Random lives of caches of every kind against a model that knows the rules of a token's life, not of pages.
//!
//! After every step of a life: what attention gives is f64 attention over what the cache holds; what it holds
//! is as far from the tokens as their codecs take it, and equal to their f16 where the model has them
//! uncompressed; lengths, counts and refusals are the model's.
//!
//! `TQKV_LIVES=n` lives n times as many lives, `TQKV_LIVES_SEED=n` others.
#![allow(missing_docs, reason = "a test crate")]

mod lives {
    pub(crate) mod model;
    pub(crate) mod truth;
}

use lives::model::Model;
use lives::truth::{Rows, halves};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};
use tqkv::Level;
use tqkv::cache::{
    Arithmetic, Budget, CacheSpec, CacheStats, Centring, Cold, KvCache, LayerKind, LayerPolicy,
};
use tqkv::error::CacheError;
use tqkv_core::{CodecId, Effort, KvError, KvShape, Options, ScaleMode};

/// Tokens of a layer: two pages and tiers behind them.
const MOST_TOKENS: usize = 700;
const MOST_CACHES: usize = 4;

/// One step of a life. Layers, caches and shares are taken modulo what there is.
#[derive(Clone, Debug)]
enum Op {
    Append(usize, usize),
    OneByOne(usize, usize),
    Prefill(usize, usize),
    Truncate(usize),
    Cut(usize),
    Fork,
    Switch(usize),
    Drop,
    Restore(usize),
    Reset,
    Refused(usize, usize),
}

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

/// A kind of cache.
#[derive(Clone, Debug)]
struct Kind {
    spec: CacheSpec,
    rows: Rows,
    limit: usize,
}

/// A codec that there is at a head dim; `s4` where there is not.
fn at(id: CodecId, dim: usize) -> CodecId {
    id.block_bytes(dim).map_or(CodecId::S4, |_| id)
}

/// Numbers in which caches work, and how they encode.
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

/// What becomes of old pages: the codecs that they begin in, if it matters, and the tiers behind.
type Ageing = (Option<[CodecId; 2]>, Vec<(usize, Cold)>);

fn ageing() -> impl Strategy<Value = Ageing> {
    use CodecId::{F8, F16, I8, N1, N2, N3, N4, Q4_0, Q8_0, S2, S3, S4, S5, T1S8, T2, T3S8, T4, U4};
    let demote = |after, key, value| (after, Cold::Demote { key, value });
    let spill = |after| (after, Cold::Spill(std::env::temp_dir()));
    let nested = vec![demote(20, N3, N3), demote(140, N2, N1), spill(300)];
    prop_oneof![
        6 => Just((None, vec![])),
        2 => Just((None, vec![spill(60)])),
        2 => Just((Some([N4, N4]), nested)),
        1 => Just((Some([N4, N3]), vec![demote(0, N2, N3)])),
        1 => Just((Some([S5, S4]), vec![demote(90, S3, S2)])),
        1 => Just((Some([T4, T3S8]), vec![demote(50, T2, T1S8), spill(200)])),
        1 => Just((Some([I8, F16]), vec![demote(30, S4, F8), demote(250, T2, U4)])),
        1 => Just((Some([Q8_0, Q8_0]), vec![demote(100, Q4_0, Q8_0)])),
    ]
}

/// Whether the codecs of all tiers are there at the head dims.
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

/// What layers see; `hot` is the least window.
fn kinds(codes: [u8; 2], layers: usize, hot: usize) -> Vec<LayerKind> {
    let kind = |code| match code {
        0..6 => LayerKind::Full,
        6..9 => LayerKind::Sliding(hot + 1 + usize::from(code) % 6 * 45),
        _ => LayerKind::None,
    };
    let kinds: Vec<_> = codes[..layers].iter().map(|&code| kind(code)).collect();
    if kinds.iter().all(|kind| *kind == LayerKind::None) { vec![LayerKind::Full; layers] } else { kinds }
}

/// Scale, soft cap, learned sinks, skipped values.
fn ruled(mut spec: CacheSpec, [scaled, capped, learned, sparse]: [bool; 4]) -> CacheSpec {
    spec.scale = scaled.then_some(0.31);
    spec.soft_cap = capped.then_some(2.5);
    spec.sparse_values = if sparse { 1e-6 } else { 0.0 };
    let logits = spec.shape.num_layers * spec.shape.num_heads;
    spec.sink_logits = (0..logits).filter(|_| learned).map(|i| (i % 5) as f32 - 1.0).collect();
    spec
}

/// Codecs of all layers, and of the last one where it has its own.
type Codecs = ((CodecId, CodecId), Option<(CodecId, CodecId)>);

/// The codecs of a spec: those of its ageing, or others as far as they are there at its head dims.
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

/// Anything that a cache of some codecs can be, but for what `shape` leaves out.
fn kind(
    shape: impl Strategy<Value = CacheSpec>,
    codec: BoxedStrategy<CodecId>,
) -> impl Strategy<Value = Kind> {
    let pair = (codec.clone(), codec);
    let coding = (pair.clone(), prop::option::weighted(0.2, pair));
    let centring = select(vec![Centring::Off, Centring::On, Centring::Auto]);
    let windows = (0..7usize, 0..40usize, [0..10u8, 0..10u8], centring);
    let limit = prop_oneof![5 => Just(usize::MAX), 1 => 1000..400_000usize];
    let rule = [(); 4].map(|()| prop::bool::weighted(0.2));
    let rows = (any::<bool>(), prop::bool::weighted(0.2), limit);
    (shape, coding, work(), rule, ageing(), windows, rows).prop_map(
        |(spec, codecs, work, rule, ageing, windows, (shift, spiky, limit))| {
            let (sinks, hot, layers, centring) = windows;
            let layers = kinds(layers, spec.shape.num_layers, hot);
            let mut spec = ruled(coded(spec, codecs, ageing), rule).kinds(layers);
            (spec.options, spec.arithmetic, spec.level) = work;
            let rows = Rows { shift: f32::from(u8::from(shift)), spiky };
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

/// A cache, and what it must be.
struct Life {
    cache: KvCache,
    model: Model,
}

/// What must not change where an operation is refused.
type Seen = (CacheStats, Vec<Option<Vec<u32>>>);

impl Life {
    fn seen(&self) -> Seen {
        let of = |layer| {
            let q = self.model.queries(layer, 3);
            let mut out = vec![0.0; self.model.spec.shape.out_values()];
            self.cache.attend(layer, &q, &mut out).ok()?;
            Some(out.iter().map(|x| x.to_bits()).collect())
        };
        let mut stats = self.cache.stats();
        // Others may come and go.
        stats.shared_bytes = 0;
        (stats, (0..self.model.spec.shape.num_layers).map(of).collect())
    }

    /// What the next operation may not change, where a budget may refuse it.
    fn before(&self) -> Option<Seen> {
        (self.cache.budget().limit() != usize::MAX).then(|| self.seen())
    }

    /// Whether it was done. It may be refused for want of bytes only, and has changed nothing then.
    fn done(&self, result: Result<(), CacheError>, before: &Option<Seen>) -> bool {
        let Err(error) = result else { return true };
        let CacheError::Full { needed, free, limit } = error else { panic!("{error}") };
        assert!(needed > free && limit == self.cache.budget().limit(), "{error}");
        assert_eq!(Some(self.seen()), *before);
        false
    }

    fn append(&mut self, layer: usize, tokens: &[u64]) {
        let ([k, v], before) = (self.model.inputs(layer, tokens), self.before());
        match self.cache.append(layer, &k, &v) {
            Err(CacheError::NoCache { .. }) => assert!(!self.model.keeps(layer)),
            result if self.done(result.clone(), &before) => self.model.push(layer, tokens),
            _ => {}
        }
    }

    /// A chunk with queries, of which the last and one more are checked: that against a fork that got as many
    /// tokens.
    fn prefill(&mut self, layer: usize, tokens: &[u64]) {
        let ([k, v], before) = (self.model.inputs(layer, tokens), self.before());
        let q: Vec<f32> = tokens.iter().flat_map(|&token| self.model.queries(layer, token)).collect();
        let outs = self.model.spec.shape.out_values();
        let mut out = vec![f32::NAN; tokens.len() * outs];
        let one = tokens[0] as usize % tokens.len();
        let mut fork = self.cache.fork().ok().map(|cache| Self { cache, model: self.model.clone() });
        if let Some(fork) = &mut fork {
            fork.append(layer, &tokens[..=one]);
        }
        match self.cache.attend_prefill(layer, &q, &k, &v, &mut out) {
            Err(CacheError::NoCache { .. }) => return assert!(!self.model.keeps(layer)),
            result if !self.done(result.clone(), &before) => return,
            _ => self.model.push(layer, tokens),
        }
        self.check_answer(layer, tokens[tokens.len() - 1], &out[out.len() - outs..]);
        if let Some(fork) =
            fork.filter(|fork| fork.model.len(layer) + tokens.len() == self.model.len(layer) + one + 1)
        {
            fork.check_answer(layer, tokens[one], &out[one * outs..(one + 1) * outs]);
        }
    }

    fn truncate(&mut self, len: usize) {
        let before = self.seen();
        match self.cache.truncate(len) {
            Err(CacheError::Evicted { .. }) => {
                assert!(self.model.refuses(len), "nothing that {len} tokens see is gone");
                assert_eq!(self.seen(), before);
            }
            result if self.done(result.clone(), &Some(before)) => {
                assert!(!self.model.refuses(len), "what {len} tokens see is gone");
                self.model.truncate(len);
            }
            _ => {}
        }
    }

    /// What no cache takes, and what it says.
    fn refused(&mut self, layer: usize, what: usize) {
        let (before, shape) = (self.seen(), self.model.spec.shape);
        let (keeps, len) = (self.model.keeps(layer), self.model.len(layer));
        let [mut k, v] = self.model.inputs(layer, &[1, 2, 3]);
        let (mut q, mut out) = (self.model.queries(layer, 1), vec![0.0; shape.out_values()]);
        let error = match what {
            0 => self.cache.append(layer, &k[1..], &v),
            1 => self.cache.append(shape.num_layers, &k, &v),
            2 => {
                k[shape.head_dim / 2] = [f32::NAN, f32::INFINITY, 3e38][len % 3];
                self.cache.append(layer, &k, &v)
            }
            3 => {
                q[len % shape.head_dim] = f32::NAN;
                self.cache.attend(layer, &q, &mut out)
            }
            4 => self.cache.attend(layer, &q, &mut out[1..]),
            5 => self.cache.keys(layer, 0, len..len + 1).map(drop),
            6 => self.cache.values(layer, shape.num_kv_heads, 0..0).map(drop),
            7 => self.cache.scores(layer, shape.num_heads, &q[..shape.head_dim]).map(drop),
            _ if len > 0 => self.cache.restore(&mut &self.bytes()[..40]),
            _ => self.cache.attend(layer, &q, &mut out),
        };
        let error = error.unwrap_err();
        let told = match &error {
            CacheError::Shape(KvError::NotWholeTokens { .. } | KvError::Length { .. }) => {
                [0, 4].contains(&what)
            }
            CacheError::Shape(KvError::Layer { .. }) => what == 1,
            CacheError::Shape(KvError::Query { .. }) => what == 3,
            CacheError::Shape(KvError::Head { .. }) => what == 7,
            CacheError::BadVector { token, kv_head: 0, .. } => what == 2 && *token == len,
            CacheError::NoTokens { .. } => what == 5,
            CacheError::KvHead { .. } => what == 6 || !keeps,
            CacheError::NoCache { .. } => !keeps,
            CacheError::Empty { .. } => what == 8 && keeps && len == 0,
            CacheError::Snapshot(_) => what == 8 && len > 0,
            _ => false,
        };
        assert!(told, "{what} of layer {layer} with {len} tokens: {error}");
        assert_eq!(self.seen(), before);
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.cache.snapshot(&mut bytes).unwrap();
        bytes
    }

    /// What attention of the newest position gave against f64 over what is held.
    fn check_answer(&self, layer: usize, token: u64, out: &[f32]) {
        let (shape, q) = (self.model.spec.shape, self.model.queries(layer, token));
        for kv_head in 0..shape.num_kv_heads {
            let held = self.model.held(&self.cache, layer, kv_head);
            // The first and the last of those that share it.
            for head in [kv_head * shape.group(), (kv_head + 1) * shape.group() - 1] {
                let q = &q[head * shape.head_dim..(head + 1) * shape.head_dim];
                let want = held.attend(&self.model.spec, layer, head, q);
                want.assert_out(&out[head * shape.value_dim..(head + 1) * shape.value_dim]);
                want.assert_scores(&self.cache.scores(layer, head, q).unwrap());
            }
        }
    }

    fn check(&self, step: u64) {
        let (cache, model) = (&self.cache, &self.model);
        assert_eq!((cache.len(), cache.is_empty()), (model.first_len(), model.first_len() == 0));
        let stats = cache.stats();
        model.assert_stats(&stats);
        assert!(stats.shared_bytes <= stats.allocated_bytes, "{stats:?}");
        for layer in 0..model.spec.shape.num_layers {
            let (q, mut out) = (model.queries(layer, step), vec![f32::NAN; model.spec.shape.out_values()]);
            match cache.attend(layer, &q, &mut out) {
                Ok(()) => self.check_answer(layer, step, &out),
                Err(CacheError::NoCache { .. }) => assert!(!model.keeps(layer)),
                Err(CacheError::Empty { .. }) => assert!(model.keeps(layer) && model.len(layer) == 0),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Some caches that share a budget and, by forks, pages.
struct World {
    kind: Kind,
    budget: Budget,
    lives: Vec<Life>,
    current: usize,
    /// Tokens named so far.
    named: u64,
}

impl World {
    fn new(kind: &Kind) -> Self {
        let budget = Budget::new(kind.limit);
        let mut world = Self { kind: kind.clone(), budget, lives: Vec::new(), current: 0, named: 0 };
        world.lives.push(world.empty());
        world
    }

    fn empty(&self) -> Life {
        let Kind { spec, rows, .. } = &self.kind;
        Life { cache: KvCache::within(spec.clone(), &self.budget).unwrap(), model: Model::new(spec, *rows) }
    }

    /// Names for `count` tokens more of a layer, or as many as it may have.
    fn tokens(&mut self, layer: usize, count: usize) -> Vec<u64> {
        let room = MOST_TOKENS - self.lives[self.current].model.len(layer);
        let first = self.named;
        self.named += count.min(room) as u64;
        (first..self.named).collect()
    }

    fn step(&mut self, op: &Op) {
        let (layers, at) = (self.kind.spec.shape.num_layers, self.current);
        let len = self.lives[at].model.first_len();
        match *op {
            // One number more than there are layers means all of them.
            Op::Append(layer, n) | Op::OneByOne(layer, n) | Op::Prefill(layer, n) => {
                let all = layer % (layers + 1);
                for layer in if all == layers { 0..layers } else { all..all + 1 } {
                    self.grow(op, layer, n);
                }
            }
            Op::Truncate(back) => self.lives[at].truncate(len.saturating_sub(back)),
            Op::Cut(share) => self.lives[at].truncate(len * share / 100),
            Op::Switch(i) => self.current = i % self.lives.len(),
            Op::Fork if self.lives.len() < MOST_CACHES => self.fork(),
            Op::Drop if self.lives.len() > 1 => {
                self.lives.swap_remove(at);
                self.current = 0;
            }
            Op::Restore(i) => self.restore(i),
            Op::Reset => {
                self.lives[at].cache.reset();
                self.lives[at].model.reset();
            }
            Op::Refused(layer, what) => self.lives[at].refused(layer % layers, what),
            Op::Fork | Op::Drop => {}
        }
    }

    fn grow(&mut self, op: &Op, layer: usize, n: usize) {
        let tokens = self.tokens(layer, n);
        let life = &mut self.lives[self.current];
        match op {
            _ if tokens.is_empty() => {}
            Op::Prefill(..) => life.prefill(layer, &tokens),
            Op::OneByOne(..) => tokens.chunks(1).for_each(|token| life.append(layer, token)),
            _ => life.append(layer, &tokens),
        }
    }

    fn fork(&mut self) {
        let origin = &self.lives[self.current];
        let before = origin.before();
        match origin.cache.fork() {
            Ok(cache) => {
                let fork = Life { cache, model: origin.model.clone() };
                assert_eq!(fork.seen().1, origin.seen().1);
                self.lives.push(fork);
            }
            Err(error) => assert!(!origin.done(Err(error), &before)),
        }
    }

    /// What one cache holds into another, or into a new one.
    fn restore(&mut self, i: usize) {
        let (from, bytes) = (self.current, self.lives[self.current].bytes());
        let to = i % (self.lives.len() + 1);
        if to == self.lives.len() {
            let empty = self.empty();
            self.lives.push(empty);
        }
        let before = self.lives[to].before();
        let result = self.lives[to].cache.restore(&mut bytes.as_slice());
        if self.lives[to].done(result, &before) {
            self.lives[to].model = self.lives[from].model.clone();
            assert_eq!(self.lives[to].seen().1, self.lives[from].seen().1);
            assert_eq!(self.lives[to].bytes(), bytes);
            self.lives.swap(from, to);
        }
        self.lives.truncate(MOST_CACHES);
        self.current = self.current.min(self.lives.len() - 1);
    }

    fn check(&self, step: u64) {
        self.lives[self.current].check(step);
        let held: usize = self.lives.iter().map(|life| life.cache.stats().allocated_bytes).sum();
        // The lists of a fork may be shorter than those of its origin, and are counted as long.
        let lists =
            self.lives.len() * self.kind.spec.shape.num_layers * self.kind.spec.shape.num_kv_heads * 256;
        let used = self.budget.used();
        assert!(used <= held + lists && used <= self.budget.limit(), "{used} bytes used, {held} held");
    }

    fn end(self) {
        self.lives.iter().for_each(|life| life.check(9));
        drop(self.lives);
        assert_eq!(self.budget.used(), 0, "what is dropped gives its bytes back");
    }
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |number| number.parse().expect(name))
}

/// Lives `count` lives of caches, always the same; the shortest that fails is told.
fn live(count: u32, kinds: impl Strategy<Value = Kind>) {
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

/// Queries of a chunk see no token behind them, whatever becomes of their logits.
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
    let wanted = |id: &CodecId| id.trellis().is_some() == trellis;
    select(CodecId::ALL.iter().copied().filter(wanted).collect::<Vec<_>>()).boxed()
}

#[test]
fn lives_of_scalar_codes() {
    live(1500, kind(heads(), of(false)));
}

#[test]
fn lives_of_trellis_codes() {
    live(400, kind(heads(), of(true)));
}

#[test]
fn lives_of_latent_vectors() {
    live(800, kind(latent(), select(CodecId::ALL).boxed()));
}
