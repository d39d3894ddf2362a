//! Costs of a cache besides its kernels: appends at any length, a chunk after a long past, forks, skipped
//! values, maps of keys, presets, and attention to a part of the tokens. Attention is measured from memory and from
//! a file.
//!
//! ```text
//! cargo bench -p tqkv-benches --bench cache -- --quick append
//! cargo bench -p tqkv-benches --bench cache -- maps
//! cargo bench -p tqkv-benches --bench cache -- presets
//! cargo bench -p tqkv-benches --bench cache -- ring
//! cargo bench -p tqkv-benches --bench cache -- selected
//! cargo bench -p tqkv-benches --bench cache -- stores
//! ```

use cpu_time::ProcessTime;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use std::cell::LazyCell;
use std::time::{Duration, Instant};
use tqkv::cache::{CacheSpec, Cold, KvCache};
use tqkv::slots::{Mask, SlotCache};
use tqkv_core::CodecId;

const DIM: usize = 128;
const KV_HEADS: usize = 2;
const HEADS: usize = 8;

fn spec() -> CacheSpec {
    CacheSpec::new(1, HEADS, KV_HEADS, DIM).codecs(CodecId::S4, CodecId::S4)
}

/// Normal numbers, always the same.
fn normal(seed: u64, n: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut pair = || {
        let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
        (radius * (std::f64::consts::TAU * random.f64()).cos()) as f32
    };
    (0..n).map(|_| pair()).collect()
}

fn filled(spec: CacheSpec, tokens: usize) -> KvCache {
    let key_row = spec.shape.num_kv_heads * spec.shape.head_dim;
    // Latent vectors are both.
    let value_row = if spec.position_dim > 0 { 0 } else { key_row };
    let mut cache = KvCache::new(spec).unwrap_or_else(|error| panic!("{error}"));
    for from in (0..tokens).step_by(1000) {
        let n = 1000.min(tokens - from);
        let (k, v) = (normal(from as u64, n * key_row), normal(!(from as u64), n * value_row));
        cache.append(0, &k, &v).unwrap_or_else(|error| panic!("{error}"));
    }
    cache
}

/// Appends 128 tokens one by one, so that every run closes the same number of pages.
fn append(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("append");
    group.throughput(Throughput::Elements(128));
    let rows = normal(1, 128 * KV_HEADS * DIM);
    for tokens in [1_000, 100_000] {
        let cache = LazyCell::new(|| filled(spec(), tokens));
        group.bench_function(BenchmarkId::from_parameter(tokens), |bencher| {
            bencher.iter_batched_ref(
                || KvCache::clone(&cache),
                |cache| {
                    for token in rows.chunks_exact(KV_HEADS * DIM) {
                        cache.append(0, token, token).unwrap_or_else(|error| panic!("{error}"));
                    }
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// Attends with the queries of one token.
fn attend(criterion: &mut Criterion, name: &str, cases: &[(String, CacheSpec)]) {
    let mut group = criterion.benchmark_group(name);
    let q = normal(7, HEADS * DIM);
    for tokens in [4_096, 32_768, 131_072] {
        group.throughput(Throughput::Elements(tokens as u64));
        let mut exact = Vec::new();
        for (label, spec) in cases {
            let cache = LazyCell::new(|| filled(spec.clone(), tokens));
            let mut out = vec![0.0; HEADS * DIM];
            group.bench_function(BenchmarkId::new(label, tokens), |bencher| {
                bencher.iter(|| cache.attend(0, &q, &mut out).unwrap_or_else(|error| panic!("{error}")));
            });
            if out.iter().all(|&x| x == 0.0) {
                continue; // the filter left it out
            }
            if exact.is_empty() {
                exact.clone_from(&out);
            }
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(x * y)).sum::<f64>();
            let cosine = dot(&exact, &out) / (dot(&exact, &exact) * dot(&out, &out)).sqrt();
            println!("cosine to the first case at {tokens} tokens: {cosine:.7}");
        }
    }
    group.finish();
}

/// Attends to 2,048 tokens that the cache picks, to as many of a list, and to all. The cases of a length take turns,
/// and the result is the least processor time of 60 steps, in microseconds.
fn selected() {
    const COUNT: usize = 2048;
    const STEPS: usize = 60;
    let (q, mut out) = (normal(7, HEADS * DIM), vec![0.0; HEADS * DIM]);
    for tokens in [8_192, 32_768, 131_072] {
        // Runs of 32 tokens in a row, and as many tokens each apart from the next.
        let apart = tokens / COUNT;
        let in_runs: Vec<u32> =
            (0..tokens as u32).filter(|token| (token / 32).is_multiple_of(apart as u32)).collect();
        let apart: Vec<u32> = (0..tokens as u32).step_by(apart).collect();
        for codec in [CodecId::F16, CodecId::S4, CodecId::T4] {
            let spec = || spec().codecs(codec, codec);
            let (all, part) = (filled(spec(), tokens), filled(spec().select(COUNT), tokens));
            let mut least = [f64::MAX; 4];
            for _ in 0..STEPS {
                for (i, least) in least.iter_mut().enumerate() {
                    let start = ProcessTime::now();
                    let result = match i {
                        0 => all.attend(0, &q, &mut out),
                        1 => part.attend(0, &q, &mut out),
                        2 => all.attend_selected(0, &q, &[&in_runs[..]; KV_HEADS], &mut out),
                        _ => all.attend_selected(0, &q, &[&apart[..]; KV_HEADS], &mut out),
                    };
                    result.unwrap_or_else(|error| panic!("{error}"));
                    *least = least.min(start.elapsed().as_secs_f64() * 1e6);
                }
            }
            let [all, select, runs, apart] = least;
            println!(
                "{tokens:7} tokens, {:4} all {all:8.1}  select={COUNT} {select:8.1}  list in runs {runs:8.1}  apart {apart:8.1}",
                codec.name()
            );
        }
    }
}

/// Attends to 2,048 tokens that the cache picks and to all, with the latent vectors of DeepSeek V2 Lite.
fn selected_latents() {
    let (q, mut out) = (normal(7, 16 * 576), vec![0.0; 16 * 512]);
    for tokens in [8_192, 32_768] {
        let spec = || CacheSpec::mla(1, 16, 512, 64).codecs(CodecId::S4, CodecId::S4);
        let caches = [filled(spec(), tokens), filled(spec().select(2048), tokens)];
        let mut least = [f64::MAX; 2];
        for _ in 0..20 {
            for (least, cache) in least.iter_mut().zip(&caches) {
                let start = ProcessTime::now();
                cache.attend(0, &q, &mut out).unwrap_or_else(|error| panic!("{error}"));
                *least = least.min(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        println!("{tokens:7} latent tokens, s4 all {:8.1}  select=2048 {:8.1}", least[0], least[1]);
    }
}

fn spilled(criterion: &mut Criterion) {
    let file = spec().cold(1000, Cold::Spill(std::env::temp_dir()));
    attend(criterion, "spilled", &[("memory".to_owned(), spec()), ("file".to_owned(), file)]);
}

fn fork(criterion: &mut Criterion) {
    let cache = LazyCell::new(|| filled(spec(), 100_000));
    criterion.bench_function("fork/100000", |bencher| {
        bencher.iter(|| cache.fork().unwrap_or_else(|error| panic!("{error}")));
    });
}

/// A chunk of queries after a long past, next to the same in f16.
fn prefill(criterion: &mut Criterion) {
    const PAST: usize = 32_768;
    let mut group = criterion.benchmark_group("prefill");
    for codec in [CodecId::F16, CodecId::S4, CodecId::T3, CodecId::S2] {
        let filled = LazyCell::new(|| filled(spec().codecs(codec, codec), PAST));
        for tokens in [8, 64, 256] {
            group.throughput(Throughput::Elements(tokens as u64));
            let (q, rows) = (normal(4, tokens * HEADS * DIM), normal(5, tokens * KV_HEADS * DIM));
            let mut out = vec![0.0; q.len()];
            group.bench_function(BenchmarkId::new(codec.name(), tokens), |bencher| {
                let mut cache = KvCache::clone(&filled);
                bencher.iter(|| {
                    cache
                        .attend_prefill(0, &q, &rows, &rows, &mut out)
                        .unwrap_or_else(|error| panic!("{error}"));
                    cache.truncate(PAST).unwrap_or_else(|error| panic!("{error}"));
                });
            });
        }
    }
    group.finish();
}

/// Codes with maps and without.
const MAPPED: [&str; 6] = ["t2", "t3", "t4", "t2 map=pairs", "m2,t2 map=pairs", "m3,t3 map=pairs"];

/// Presets and the tiered policy, after f16.
const PRESETS: [&str; 9] =
    ["f16", "eight-bit", "safe-lowbit", "near-lossless", "balanced", "compact", "small", "tiny", "tiered"];

/// Times of a policy over one KV head.
struct Steps {
    /// Seconds of the attention of one token, the least.
    attend: f64,
    /// Seconds of an append: the least mean of a fill in time of the processor, and the largest of that fill.
    append: [f64; 2],
}

/// Fills a cache of one KV head per policy, token by token, and attends with the queries of a token. The policies
/// take turns, so that other programs on the machine slow all of them alike.
fn steps(policies: &[&str], (dim, heads, tokens): (usize, usize, usize), fills: usize) -> Vec<Steps> {
    const ROUNDS: usize = 60;
    /// Tokens of a turn.
    const RUN: usize = 128;
    let (q, k, v) = (normal(1, 300 * heads * dim), normal(2, tokens * dim), normal(3, tokens * dim));
    let mut out = vec![0.0; heads * dim];
    let mut steps: Vec<_> =
        policies.iter().map(|_| Steps { attend: f64::INFINITY, append: [f64::INFINITY; 2] }).collect();
    for _ in 0..fills {
        let mut made: Vec<_> = policies
            .iter()
            .map(|policy| {
                let spec = CacheSpec::new(1, heads, 1, dim).with(policy);
                let cache = KvCache::new(spec.unwrap_or_else(|error| panic!("{error}")));
                (cache.unwrap_or_else(|error| panic!("{error}")), [0.0, 0.0f64])
            })
            .collect();
        for run in (0..tokens).step_by(RUN) {
            for (cache, [sum, most]) in &mut made {
                let (all, mut taught) = (ProcessTime::now(), Duration::ZERO);
                for at in run..tokens.min(run + RUN) {
                    let row = at * dim..(at + 1) * dim;
                    let clock = Instant::now();
                    cache.append(0, &k[row.clone()], &v[row]).unwrap_or_else(|error| panic!("{error}"));
                    *most = most.max(clock.elapsed().as_secs_f64());
                    // Queries of the first tokens teach the map.
                    if at < 300 {
                        let clock = ProcessTime::now();
                        let queries = &q[at * heads * dim..(at + 1) * heads * dim];
                        cache.attend(0, queries, &mut out).unwrap_or_else(|error| panic!("{error}"));
                        taught += clock.elapsed();
                    }
                }
                *sum += all.elapsed().saturating_sub(taught).as_secs_f64();
            }
        }
        for _ in 0..ROUNDS {
            for ((cache, _), step) in made.iter().zip(&mut steps) {
                let clock = Instant::now();
                cache.attend(0, &q[..heads * dim], &mut out).unwrap_or_else(|error| panic!("{error}"));
                step.attend = step.attend.min(clock.elapsed().as_secs_f64());
            }
        }
        for ((_, [sum, most]), step) in made.iter().zip(&mut steps) {
            let mean = sum / tokens as f64;
            if mean < step.append[0] {
                step.append = [mean, *most];
            }
        }
    }
    steps
}

/// Times maps of keys.
fn maps() {
    const TOKENS: usize = 4096;
    for (dim, heads) in [64, 128, 256].into_iter().flat_map(|dim| [1, 4, 8].map(|heads| (dim, heads))) {
        let steps = steps(&MAPPED, (dim, heads, TOKENS), 1);
        println!("maps: {heads} heads, D = {dim}, {TOKENS} tokens");
        for (policy, step) in MAPPED.iter().zip(steps) {
            let (attend, [mean, most]) = (1e6 * step.attend, step.append);
            let (mean, most) = (1e6 * mean, 1e3 * most);
            println!("{policy:28} attend {attend:8.1} us   append {mean:7.2} us, worst {most:7.2} ms");
        }
    }
}

/// Times presets next to f16 at three lengths: four query heads of dim 128 over one KV head.
fn presets() {
    for tokens in [1_024, 4_096, 32_768] {
        let steps = steps(&PRESETS, (DIM, 4, tokens), 3);
        println!("presets: 4 heads, D = {DIM}, {tokens} tokens; times of f16 over those of the policy");
        let exact = steps[0].attend;
        for (policy, step) in PRESETS.iter().zip(&steps) {
            let (attend, append) = (1e6 * step.attend, 1e6 * step.append[0]);
            let factor = exact / step.attend;
            println!("{policy:28} attend {attend:8.1} us ({factor:4.2})   append {append:7.2} us");
        }
    }
}

/// Feeds 10 million tokens to a ring and to a window of 8,192 tokens in turn, in pieces of 4,096. Times are
/// of the processor, so other programs disturb them little: the worst append is the least of five runs.
fn ring() {
    const TOKENS: usize = 10_000_000;
    const PIECE: usize = 4096;
    const WINDOW: usize = 8192;
    let (k, v) = (normal(2, PIECE * DIM), normal(3, PIECE * DIM));
    let nothing = (0..1000).map(|_| cpu_time::ThreadTime::now().elapsed()).min().unwrap_or_default();
    for codecs in ["s4", "s4 hot=512", "t4,t2", "n4 tier=2048:n2"] {
        let mut made = ["ring", "sliding-window"].map(|kind| {
            let policy = format!("{codecs} {kind}={WINDOW}");
            let spec = CacheSpec::new(1, 1, 1, DIM).with(&policy).unwrap_or_else(|error| panic!("{error}"));
            (policy, KvCache::new(spec).unwrap_or_else(|error| panic!("{error}")), Vec::new())
        });
        // A search takes 40 times as long.
        let tokens = if codecs.starts_with('t') { TOKENS / 10 } else { TOKENS };
        let bytes = made[0].1.stats().allocated_bytes;
        for _ in 0..tokens / PIECE {
            for (_, cache, times) in &mut made {
                for (k, v) in k.chunks_exact(DIM).zip(v.chunks_exact(DIM)) {
                    let clock = cpu_time::ThreadTime::now();
                    cache.append(0, k, v).unwrap_or_else(|error| panic!("{error}"));
                    times.push(clock.elapsed().saturating_sub(nothing).as_nanos() as u32);
                }
            }
        }
        assert_eq!(made[0].1.stats().allocated_bytes, bytes, "a ring keeps its bytes");
        println!("ring: one KV head, D = {DIM}, {tokens} tokens, ns of an append");
        for (policy, cache, times) in &made {
            let mean = times.iter().map(|&time| f64::from(time)).sum::<f64>() / times.len() as f64;
            let worst = times.chunks(tokens / 5).filter_map(|run| run.iter().max()).min();
            let (worst, held) = (worst.copied().unwrap_or_default(), cache.stats().allocated_bytes);
            println!("{policy:32} mean {mean:5.0}, worst {worst:8}; {held} bytes held");
        }
    }
}

/// Times the appends of a sequence of an 8B model, all layers together: 32 layers of 32 query heads over 8 KV
/// heads of dim 128. The append that learns the maps is the slowest one.
fn learning() {
    const LAYERS: usize = 32;
    const TOKENS: usize = 240;
    let (heads, kv_heads, dim) = (32, 8, 128);
    let (q, k) = (normal(1, TOKENS * heads * dim), normal(2, TOKENS * kv_heads * dim));
    let mut out = vec![0.0; heads * dim];
    for policy in ["t2", "t2 map=pairs", "m2,t2 map=pairs"] {
        let spec = CacheSpec::new(LAYERS, heads, kv_heads, dim).with(policy);
        let spec = spec.unwrap_or_else(|error| panic!("{error}"));
        let mut cache = KvCache::new(spec).unwrap_or_else(|error| panic!("{error}"));
        let (mut sum, mut worst) = (0.0, 0.0);
        for at in 0..TOKENS {
            let row = &k[at * kv_heads * dim..(at + 1) * kv_heads * dim];
            let mut token = 0.0;
            for layer in 0..LAYERS {
                let clock = Instant::now();
                cache.append(layer, row, row).unwrap_or_else(|error| panic!("{error}"));
                token += clock.elapsed().as_secs_f64();
                let queries = &q[at * heads * dim..(at + 1) * heads * dim];
                cache.attend(layer, queries, &mut out).unwrap_or_else(|error| panic!("{error}"));
            }
            sum += token;
            worst = f64::max(worst, token);
        }
        println!(
            "8B, {policy:28} appends {TOKENS} tokens in {:7.1} ms, one in {:7.1} ms",
            1e3 * sum,
            1e3 * worst
        );
    }
}

/// Times attention of one token over a sequence and over slots with the same tokens: the least processor time of 60 steps
/// in turns.
fn stores() {
    for (policy, tokens) in
        ["s4", "t4,t2"].iter().flat_map(|policy| [512, 4_096, 32_768].map(|n| (policy, n)))
    {
        for heads in [1, 4, 8] {
            let spec = CacheSpec::new(1, heads, 1, DIM).with(policy);
            let spec = spec.unwrap_or_else(|error| panic!("{error}"));
            let (sequence, mut slots) = (filled(spec.clone(), tokens), in_slots(spec, tokens));
            let mut mask = Mask::new(tokens);
            mask.see(0..tokens).unwrap_or_else(|error| panic!("{error}"));
            let (q, mut out) = (normal(7, heads * DIM), vec![0.0; heads * DIM]);
            let mut least = [f64::MAX; 2];
            for _ in 0..60 {
                for (i, least) in least.iter_mut().enumerate() {
                    let start = ProcessTime::now();
                    let result = match i {
                        0 => sequence.attend(0, &q, &mut out),
                        _ => slots.attend(0, &q, &mask, &mut out),
                    };
                    result.unwrap_or_else(|error| panic!("{error}"));
                    *least = least.min(start.elapsed().as_secs_f64() * 1e6);
                }
            }
            let [sequence, slots] = least;
            println!(
                "{policy:6} {tokens:6} tokens, {heads} heads: sequence {sequence:7.1} us, slots {slots:7.1}"
            );
        }
    }
}

/// The tokens of [`filled`], in slots.
fn in_slots(spec: CacheSpec, tokens: usize) -> SlotCache {
    let mut cache = SlotCache::new(spec, tokens).unwrap_or_else(|error| panic!("{error}"));
    let row = cache.spec().shape.num_kv_heads * DIM;
    for from in (0..tokens).step_by(1000) {
        let slots: Vec<usize> = (from..tokens.min(from + 1000)).collect();
        let (k, v) = (normal(from as u64, slots.len() * row), normal(!(from as u64), slots.len() * row));
        let written = cache.write(0, &slots, &slots, &k, &v).and_then(|()| cache.encode(0));
        written.unwrap_or_else(|error| panic!("{error}"));
    }
    cache
}

fn main() {
    if std::env::args().any(|arg| arg == "maps") {
        learning();
        return maps();
    }
    if std::env::args().any(|arg| arg == "presets") {
        return presets();
    }
    if std::env::args().any(|arg| arg == "ring") {
        return ring();
    }
    if std::env::args().any(|arg| arg == "selected") {
        selected();
        return selected_latents();
    }
    if std::env::args().any(|arg| arg == "stores") {
        return stores();
    }
    let mut criterion = Criterion::default().configure_from_args();
    prefill(&mut criterion);
    append(&mut criterion);
    spilled(&mut criterion);
    fork(&mut criterion);
    criterion.final_summary();
}
