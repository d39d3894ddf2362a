//! Takes bytes as a program over a few caches that share a budget. After every program:
//!
//! * every KV head of a layer has the length of its appends;
//! * results are finite;
//! * forks and restored caches answer like their origin;
//! * refused operations changed nothing;
//! * the budget holds.
#![no_main]

mod caches;
mod seeds;

use caches::{answers, check_lengths, keeps_nothing, snapshot, spec, tokens, values};
use libfuzzer_sys::fuzz_target;
use tqkv::cache::{Budget, KvCache};
use tqkv::error::CacheError;

/// Longer sequences cost time and reach nothing new: this covers two tiers.
const MOST_TOKENS: usize = 600;
const MOST_CACHES: usize = 4;

struct Sequence {
    cache: KvCache,
    /// Tokens per layer.
    lens: Vec<usize>,
}

impl Sequence {
    /// The answers of the cache before an operation, if a budget may refuse it.
    fn before(&self) -> Vec<Result<Vec<u32>, CacheError>> {
        if self.cache.budget().limit() == usize::MAX { Vec::new() } else { answers(&self.cache) }
    }

    /// Returns true if the cache may hold `tokens` tokens per layer.
    fn may_hold(&self, tokens: usize) -> bool {
        self.cache.spec().max_tokens.is_none_or(|most| tokens <= most)
    }

    /// The answers before an append that may be refused.
    fn before_append(&self, layer: usize, count: usize) -> Vec<Result<Vec<u32>, CacheError>> {
        if self.may_hold(self.lens[layer] + count) { self.before() } else { answers(&self.cache) }
    }

    /// Checks a refusal: it is for lack of bytes, and it changed nothing. Any other refusal is a defect.
    fn full(&self, error: &CacheError, before: &[Result<Vec<u32>, CacheError>]) {
        assert!(matches!(error, CacheError::Full { .. }), "{error}");
        assert_eq!(answers(&self.cache), before);
    }

    fn append(&mut self, layer: usize, count: usize, seed: u64, with_queries: bool) {
        let shape = self.cache.spec().shape;
        let count = count.min(MOST_TOKENS.saturating_sub(self.lens[layer]));
        let [mut k, mut v] = tokens(shape, seed, count);
        if seed % 16 == 9 {
            // The largest norm that is promised to fit.
            for (x, dim, norm) in [(&mut k, shape.head_dim, 0), (&mut v, shape.value_dim, 1)] {
                let most = self.cache.spec().max_norms(layer).expect("a spec of a cache")[norm];
                for x in x.chunks_exact_mut(dim) {
                    let factor = 0.999 * most / x.iter().map(|x| x * x).sum::<f32>().sqrt();
                    x.iter_mut().for_each(|x| *x *= factor);
                }
            }
        }
        let before = self.before_append(layer, count);
        let result = if with_queries {
            let q = values(seed + 1, count * shape.num_heads * shape.head_dim);
            let mut out = vec![0.0; count * shape.num_heads * shape.value_dim];
            let result = self.cache.attend_prefill(layer, &q, &k, &v, &mut out);
            assert!(result.is_err() || out.iter().all(|x| x.is_finite()), "a chunk attends to {out:?}");
            result
        } else {
            self.cache.append(layer, &k, &v)
        };
        match result {
            Ok(()) => {
                self.lens[layer] += count;
                assert!(self.may_hold(self.lens[layer]), "{} tokens", self.lens[layer]);
            }
            Err(CacheError::TooLong { tokens, .. }) => {
                assert!(tokens == self.lens[layer] + count && !self.may_hold(tokens));
                assert_eq!(answers(&self.cache), before);
            }
            Err(CacheError::NoCache { .. }) => assert!(keeps_nothing(&self.cache, layer)),
            Err(error) => self.full(&error, &before),
        }
    }

    fn append_bad(&mut self, layer: usize, seed: u64) {
        let [mut k, v] = tokens(self.cache.spec().shape, seed, 3);
        let at = seed as usize % k.len();
        k[at] = [f32::NAN, f32::INFINITY, 3e38][seed as usize % 3];
        let before = answers(&self.cache);
        let refused = self.cache.append(layer, &k, &v).expect_err("no such key can be stored");
        assert!(
            matches!(
                refused,
                CacheError::BadVector { .. } | CacheError::BadValue { .. } | CacheError::NoCache { .. }
            ),
            "{refused}"
        );
        assert_eq!(answers(&self.cache), before);
    }

    fn truncate(&mut self, len: usize) {
        let before = answers(&self.cache);
        match self.cache.truncate(len) {
            Ok(()) => self.lens.iter_mut().for_each(|old| *old = (*old).min(len)),
            Err(CacheError::Evicted { .. }) => assert_eq!(answers(&self.cache), before),
            Err(error) => self.full(&error, &before),
        }
    }

    fn check(&self) {
        check_lengths(&self.cache, &self.lens);
        for (layer, answer) in answers(&self.cache).into_iter().enumerate() {
            match answer {
                Ok(out) => assert!(out.iter().all(|x| f32::from_bits(*x).is_finite()), "layer {layer}"),
                Err(CacheError::Empty { .. }) => assert_eq!(self.lens[layer], 0),
                Err(CacheError::NoCache { .. }) => assert!(keeps_nothing(&self.cache, layer)),
                Err(error) => panic!("{error}"),
            }
        }
        let stats = self.cache.stats();
        assert!(stats.shared_bytes <= stats.allocated_bytes, "{stats:?}");
    }
}

fuzz_target!(|data: &[u8]| {
    let [kind, hot, bytes, program @ ..] = data else { return seeds::refused("too short") };
    // 0 is no limit. The other limits begin below the size of a page.
    let budget = if *bytes == 0 { Budget::unlimited() } else { Budget::new(usize::from(*bytes) * 300) };
    let empty = match KvCache::within(spec(*kind, *hot), &budget) {
        Ok(cache) => cache,
        // A ring takes all its memory here.
        Err(CacheError::Full { .. }) if spec(*kind, *hot).ring.is_some() => {
            return assert_eq!(budget.used(), 0);
        }
        Err(error) => panic!("{error}"),
    };
    let layers = empty.spec().shape.num_layers;
    let mut all = vec![Sequence { cache: empty, lens: vec![0; layers] }];
    let mut current = 0;
    for (step, op) in program.as_chunks::<2>().0.iter().enumerate().take(40) {
        let [op, arg] = *op;
        let (layer, count, seed) =
            (usize::from(op >> 4) % layers, usize::from(arg), step as u64 * 256 + u64::from(arg));
        let (others, may_fork) = (all.len() > 1, all.len() < MOST_CACHES);
        let sequence = &mut all[current];
        match op & 15 {
            0 | 1 => sequence.append(layer, count % 8, seed, false),
            2 | 3 => sequence.append(layer, count, seed, false),
            4 => sequence.append(layer, count % 24, seed, true),
            5 => sequence.append(layer, count, seed, true),
            6 => sequence.truncate(sequence.lens[layer].saturating_sub(count)),
            7 => sequence.truncate(count * MOST_TOKENS / 256),
            8 | 9 if may_fork => match all[current].cache.fork() {
                Ok(cache) => {
                    let lens = all[current].lens.clone();
                    assert_eq!(answers(&cache), answers(&all[current].cache));
                    all.push(Sequence { cache, lens });
                }
                Err(error) => assert!(matches!(error, CacheError::Full { .. }), "{error}"),
            },
            8..=10 => current = count % all.len(),
            11 => {
                // Restores into another cache, whatever its contents.
                let (bytes, from) = (snapshot(&all[current].cache), current);
                let want = answers(&all[from].cache);
                current = count % all.len();
                let before = all[current].before();
                match all[current].cache.restore(&mut bytes.as_slice()) {
                    Ok(()) => {
                        all[current].lens = all[from].lens.clone();
                        assert_eq!(answers(&all[current].cache), want);
                        assert_eq!(snapshot(&all[current].cache), bytes);
                    }
                    Err(error) => all[current].full(&error, &before),
                }
            }
            12 => {
                sequence.cache.reset();
                sequence.lens.fill(0);
            }
            13 => sequence.append_bad(layer, seed),
            14 if others => {
                all.swap_remove(current);
                current = 0;
            }
            _ => {
                let held = sequence.lens[layer];
                let from = count.min(held);
                match sequence.cache.keys(layer, 0, from..held) {
                    Ok(keys) => assert!(keys.iter().all(|x| x.is_finite())),
                    Err(CacheError::NoTokens { first_live, .. }) => assert!(first_live > from),
                    Err(error) => assert!(matches!(error, CacheError::KvHead { .. }), "{error}"),
                }
            }
        }
        all[current].check();
        assert!(
            budget.used() <= budget.limit(),
            "step {step}: {} of {} bytes",
            budget.used(),
            budget.limit()
        );
    }
    all.iter().for_each(Sequence::check);
    drop(all);
    assert_eq!(budget.used(), 0, "what is dropped gives its bytes back");
});
