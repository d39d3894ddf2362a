//! Some caches that share a budget, each with its model, and the steps of their histories.

use super::model::Model;
use super::truth::Rows;
use tqkv::cache::{Budget, CacheSize, CacheSpec, CacheStats, Cold, KeyMap, KvCache};
use tqkv::error::CacheError;
use tqkv_core::KvError;

/// Most tokens of a layer: two pages and colder tiers.
const MOST_TOKENS: usize = 700;
const MOST_CACHES: usize = 4;

/// One step of a life. Layers, caches and shares are taken modulo their number.
#[derive(Clone, Debug)]
pub(crate) enum Op {
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

/// A kind of cache.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) spec: CacheSpec,
    pub(crate) rows: Rows,
    pub(crate) limit: usize,
}

/// A cache and its model.
struct Life {
    cache: KvCache,
    model: Model,
    /// The tokens that each layer had at most, and the bytes that these may take by the formula. A cache that was cut
    /// may keep room for more tokens.
    most: Vec<(usize, u64)>,
    /// True if it is a fork, or has had one.
    has_forked: bool,
}

/// The state that a refused operation must not change.
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
        // Other caches may come and go.
        stats.shared_bytes = 0;
        (stats, (0..self.model.spec.shape.num_layers).map(of).collect())
    }

    /// The state before an operation that a budget may refuse.
    fn before(&self) -> Option<Seen> {
        (self.cache.budget().limit() != usize::MAX).then(|| self.seen())
    }

    /// Returns true if the operation was done. It may only be refused for lack of bytes, and then it changed
    /// nothing.
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

    /// Appends a chunk with queries and checks the last query and one more. The other one is checked on a
    /// fork with the same number of tokens.
    fn prefill(&mut self, layer: usize, tokens: &[u64]) {
        let ([k, v], before) = (self.model.inputs(layer, tokens), self.before());
        let q: Vec<f32> = tokens.iter().flat_map(|&token| self.model.queries(layer, token)).collect();
        let outs = self.model.spec.shape.out_values();
        let mut out = vec![f32::NAN; tokens.len() * outs];
        let one = tokens[0] as usize % tokens.len();
        // A map learns from queries, so the fork sees those of the chunk too.
        let learns = self.model.spec.key_map == KeyMap::Pairs;
        let fork = if learns && one + 1 == tokens.len() { None } else { self.cache.fork().ok() };
        self.has_forked |= fork.is_some();
        let mut fork =
            fork.map(|cache| Self { cache, model: self.model.clone(), most: Vec::new(), has_forked: true });
        match &mut fork {
            Some(fork) if learns => fork.prefill(layer, &tokens[..=one]),
            Some(fork) => fork.append(layer, &tokens[..=one]),
            None => {}
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

    /// Tries operations that every cache refuses, and checks their errors.
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
            CacheError::BadVector { token, kv_head: 0, .. }
            | CacheError::BadValue { token, kv_head: 0, .. } => what == 2 && *token == len,
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

    /// Compares the attention result of the newest position with f64 over the cache's contents, and that of a part
    /// of the tokens with f64 over these.
    fn check_answer(&self, layer: usize, token: u64, out: &[f32]) {
        let (shape, q, seen) =
            (self.model.spec.shape, self.model.queries(layer, token), self.model.seen(layer));
        let places = |kv_head: usize| part(seen.len(), token + 5 * (seen.len() + kv_head) as u64);
        let list = |kv_head: usize| places(kv_head).into_iter().map(|place| seen[place]).collect();
        let lists: Vec<Vec<u32>> = (0..shape.num_kv_heads).map(list).collect();
        let lists: Vec<&[u32]> = lists.iter().map(Vec::as_slice).collect();
        let mut chosen = vec![f32::NAN; out.len()];
        self.cache.attend_selected(layer, &q, &lists, &mut chosen).unwrap();
        for kv_head in 0..shape.num_kv_heads {
            let held = self.model.held(&self.cache, layer, kv_head);
            let some = held.part(&self.model.spec, &places(kv_head));
            // The first and the last of the query heads that share the KV head.
            for head in [kv_head * shape.group(), (kv_head + 1) * shape.group() - 1] {
                let q = &q[head * shape.head_dim..(head + 1) * shape.head_dim];
                let (want, at) = (
                    held.attend(&self.model.spec, layer, head, q),
                    head * shape.value_dim..(head + 1) * shape.value_dim,
                );
                want.assert_out(&out[at.clone()]);
                want.assert_scores(&self.cache.scores(layer, head, q).unwrap());
                some.attend(&self.model.spec, layer, head, q).assert_out(&chosen[at]);
            }
        }
    }

    /// The cache holds no more than the formula says, if no refused operation may have made room in it.
    fn check_bytes(&mut self) {
        let spec = &self.model.spec;
        let shares_limit = spec.narrow_at.is_some() && spec.shape.num_layers > 1;
        // A ring that shares pages with a fork holds all of its own as well. What lies in a file has structures in memory.
        let spills = spec.cold.iter().any(|(_, cold)| matches!(cold, Cold::Spill(_)));
        let is_larger = spec.ring.is_some() && (self.has_forked || spills);
        if self.cache.budget().limit() != usize::MAX || shares_limit || is_larger {
            return;
        }
        for layer in self.model.layers() {
            let (longest, most) = &mut self.most[layer];
            let size = CacheSize::of(&spec.one_layer(layer).unwrap()).unwrap();
            for len in *longest..=self.model.len(layer) {
                *most = size.at(len).total().max(*most);
            }
            *longest = self.model.len(layer).max(*longest);
        }
        let (held, most) = (self.cache.stats().allocated_bytes, self.most.iter().map(|(_, most)| most).sum());
        assert!(held as u64 <= most, "{held} bytes held, {most} by the formula, {:?}", self.most);
    }

    fn check(&mut self, step: u64) {
        self.check_bytes();
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

/// A part of `n` tokens: all, one, a run, or every third or seventh one. There is always one.
fn part(n: usize, seed: u64) -> Vec<usize> {
    let (at, length) = ((seed * 31) as usize % n, 1 + (seed * 17) as usize % 80);
    match seed % 5 {
        0 => (0..n).collect(),
        1 => vec![at],
        2 => (at..n.min(at + length)).collect(),
        3 => (at % 3..n).step_by(3).chain((at % 3 >= n).then_some(0)).collect(),
        _ => (at % 7..n).step_by(7).chain((at % 7 >= n).then_some(0)).collect(),
    }
}

/// Some caches that share a budget and, through forks, pages.
pub(crate) struct World {
    kind: Kind,
    budget: Budget,
    lives: Vec<Life>,
    current: usize,
    /// Number of tokens named so far.
    named: u64,
}

impl World {
    pub(crate) fn new(kind: &Kind) -> Self {
        let budget = Budget::new(kind.limit);
        let mut world = Self { kind: kind.clone(), budget, lives: Vec::new(), current: 0, named: 0 };
        world.lives.push(world.empty());
        world
    }

    fn empty(&self) -> Life {
        let Kind { spec, rows, .. } = &self.kind;
        let (cache, model) = (KvCache::within(spec.clone(), &self.budget).unwrap(), Model::new(spec, *rows));
        Life { cache, model, most: vec![(0, 0); spec.shape.num_layers], has_forked: false }
    }

    /// Names for `count` more tokens of a layer, or for as many as still fit.
    fn tokens(&mut self, layer: usize, count: usize) -> Vec<u64> {
        let room = MOST_TOKENS - self.lives[self.current].model.len(layer);
        let first = self.named;
        self.named += count.min(room) as u64;
        (first..self.named).collect()
    }

    pub(crate) fn step(&mut self, op: &Op) {
        let (layers, at) = (self.kind.spec.shape.num_layers, self.current);
        let len = self.lives[at].model.first_len();
        match *op {
            // One more than the last layer's number means all layers.
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
                let (model, most) = (origin.model.clone(), origin.most.clone());
                let fork = Life { cache, model, most, has_forked: true };
                assert_eq!(fork.seen().1, origin.seen().1);
                self.lives[self.current].has_forked = true;
                self.lives.push(fork);
            }
            Err(error) => assert!(!origin.done(Err(error), &before)),
        }
    }

    /// Restores the contents of one cache in another, or in a new one.
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
            self.lives[to].most = self.lives[from].most.clone();
            // First, as queries teach a map.
            assert_eq!(self.lives[to].bytes(), bytes);
            assert_eq!(self.lives[to].seen().1, self.lives[from].seen().1);
            self.lives.swap(from, to);
        }
        self.lives.truncate(MOST_CACHES);
        self.current = self.current.min(self.lives.len() - 1);
    }

    pub(crate) fn check(&mut self, step: u64) {
        self.lives[self.current].check(step);
        self.check_together(step);
        let held: usize = self.lives.iter().map(|life| life.cache.stats().allocated_bytes).sum();
        // The lists of a fork may be shorter than those of its origin, but count with the same length.
        let lists =
            self.lives.len() * self.kind.spec.shape.num_layers * self.kind.spec.shape.num_kv_heads * 256;
        let used = self.budget.used();
        assert!(used <= held + lists && used <= self.budget.limit(), "{used} bytes used, {held} held");
    }

    /// One call for all caches has the bits of a call for each, or the error of the first that refuses.
    fn check_together(&self, step: u64) {
        let shape = self.kind.spec.shape;
        let caches: Vec<&KvCache> = self.lives.iter().map(|life| &life.cache).collect();
        for layer in 0..shape.num_layers {
            let queries = |life: &Life| life.model.queries(layer, step);
            let q: Vec<f32> = self.lives.iter().flat_map(queries).collect();
            let (mut single, mut first) = (vec![f32::INFINITY; caches.len() * shape.out_values()], None);
            let parts = q.chunks_exact(shape.query_values()).zip(single.chunks_exact_mut(shape.out_values()));
            for (index, (cache, (q, out))) in caches.iter().zip(parts).enumerate() {
                if let Err(error) = cache.attend(layer, q, out) {
                    first.get_or_insert(CacheError::Of { index, error: Box::new(error) });
                }
            }
            let mut out = vec![f32::INFINITY; single.len()];
            match (KvCache::attend_many(&caches, layer, &q, &mut out), first) {
                (Ok(()), None) => assert_eq!(out, single),
                (Err(error), Some(first)) => {
                    assert_eq!(error, first);
                    assert!(out.iter().all(|x| *x == f32::INFINITY), "a refused call writes nothing");
                }
                (result, first) => panic!("layer {layer}: {result:?} together, {first:?} one by one"),
            }
        }
    }

    pub(crate) fn end(mut self) {
        self.lives.iter_mut().for_each(|life| life.check(9));
        drop(self.lives);
        assert_eq!(self.budget.used(), 0, "what is dropped gives its bytes back");
    }
}
