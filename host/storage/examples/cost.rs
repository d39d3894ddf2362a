//! Measures the cost of a token: learning, encoding and decoding for the shapes of two models, on synthetic
//! numbers.
//!
//! ```sh
//! RAYON_NUM_THREADS=1 cargo run --release -p tqkv-storage --example cost [CHUNKS]
//! ```
//!
//! Times are processor time of all threads, as Linux counts it. CHUNKS of 256 tokens go to a file one after
//! the other, and come back from it. 4096 chunks are a million tokens. Memory holds one chunk.

use std::fs::File;
use std::io::{BufReader, BufWriter, Seek, Write};
use std::sync::Arc;

use fastrand::Rng;
use half::bf16;
use tqkv_storage::{
    Basis, Budget, Learner, MAX_TOKENS, Rope, RopePairing, Shape, Span, StorageCodec, StorageError,
};

/// Directions of a layer's hidden vector.
const RANK: usize = 64;

fn main() -> Result<(), StorageError> {
    let chunks = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(8);
    for (name, layers, heads, head_dim) in [("SmolLM2-135M", 30, 3, 64), ("8B", 32, 8, 128)] {
        let inv_freq = (0..head_dim / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / head_dim as f64)).collect();
        let shape = Shape::new(layers, heads, head_dim, head_dim, Rope::new(0, RopePairing::Half, inv_freq))?;
        println!(
            "{name}: {layers} layers of {heads} KV heads of {head_dim}, {} threads",
            rayon::current_num_threads()
        );
        let basis = Arc::new(learn(&shape)?);
        for basis in [Some(basis), None] {
            let kind = if basis.is_some() { "basis" } else { "no basis" };
            let codec = StorageCodec::new(shape.clone(), basis)?;
            for bits in [1.0, 2.0] {
                report(&codec, Budget::new(bits)?, kind, chunks)?;
            }
        }
    }
    Ok(())
}

fn learn(shape: &Shape) -> Result<Basis, StorageError> {
    let mut learner = Learner::new(shape.clone(), shape.join())?;
    let begin = seconds();
    for seed in 0..6 {
        let (k, v) = tokens(shape, seed);
        learner.learn(&k, &v, 0)?;
    }
    let seen = seconds();
    let basis = learner.freeze("made up")?;
    let per_token = (seen - begin) * 1e6 / learner.tokens() as f64;
    println!(
        "  learning: {per_token:.0} us per token (making it up included), eigenvectors {:.1} s, file {} bytes",
        seconds() - seen,
        basis.to_bytes().len()
    );
    Ok(basis)
}

fn report(codec: &StorageCodec, budget: Budget, kind: &str, chunks: usize) -> Result<(), StorageError> {
    let span = Span::of(codec.shape(), 1024, MAX_TOKENS);
    let (mut k, mut v) = tokens(codec.shape(), 99);
    let mut file: File = tempfile::tempfile()?;
    let begin = seconds();
    let mut to = BufWriter::new(&mut file);
    for _ in 0..chunks {
        to.write_all(&codec.encode(budget, &span, &k, &v)?)?;
    }
    to.flush()?;
    drop(to);
    let encoded = seconds();
    file.rewind()?;
    let (mut from, mut chunk, mut bytes) = (BufReader::new(file), Vec::new(), 0);
    while codec.read_chunk(&mut from, &mut chunk)? {
        codec.decode(&chunk, &mut k, &mut v)?;
        bytes += chunk.len();
    }
    let (encoding, decoding) = (encoded - begin, seconds() - encoded);
    let tokens = (chunks * MAX_TOKENS) as f64;
    let per_token = |seconds: f64| seconds * 1e6 / tokens;
    let plain = (2 * (k.len() + v.len())) as f64 / MAX_TOKENS as f64;
    println!(
        "  {kind}, {} bits: encode {:.0} us per token ({:.2} GB/s of bf16), decode {:.0} us ({:.2} GB/s), {:.0} bytes per token \
         ({:.3} bits per value), peak {} MB",
        budget.bits(),
        per_token(encoding),
        plain / per_token(encoding) / 1e3,
        per_token(decoding),
        plain / per_token(decoding) / 1e3,
        bytes as f64 / tokens,
        16.0 * bytes as f64 / tokens / plain,
        peak_megabytes()
    );
    Ok(())
}

/// Keys and values as linear maps of one hidden vector per token.
fn tokens(shape: &Shape, seed: u64) -> (Vec<bf16>, Vec<bf16>) {
    let mut rng = Rng::with_seed(seed);
    let mut maps = Rng::with_seed(7);
    let side = |width: usize, rng: &mut Rng, maps: &mut Rng| {
        let map: Vec<f32> = (0..width * RANK).map(|_| maps.f32() - 0.5).collect();
        let row = |rng: &mut Rng| {
            let hidden: Vec<f32> = (0..RANK).map(|_| rng.f32() - 0.5).collect();
            let of = |weights: &[f32]| weights.iter().zip(&hidden).map(|(a, b)| a * b).sum::<f32>();
            map.chunks_exact(RANK)
                .map(|weights| bf16::from_f32(of(weights) + 0.1 * rng.f32()))
                .collect::<Vec<_>>()
        };
        (0..shape.num_layers() * MAX_TOKENS).flat_map(|_| row(rng)).collect::<Vec<_>>()
    };
    (side(shape.key_values(), &mut rng, &mut maps), side(shape.value_values(), &mut rng, &mut maps))
}

/// Processor time of this process in seconds, to a hundredth. 0 where the system does not report it.
fn seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Peak memory of this process. 0 where the system does not report it.
fn peak_megabytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) / 1024
}
