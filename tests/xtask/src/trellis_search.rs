//! Finds the constants of `core/src/trellis/tables.rs`. The search draws random generators and improves them
//! by hill climbing. It then fits levels by Lloyd iterations through the real encoder, the divisor of the
//! metrics, and the predictor of the scale.
//!
//! Everything is seeded, so a run is reproducible. Build with `RUSTFLAGS=-Ctarget-cpu=native` to halve the
//! time. Sources are uniform on the sphere, which is the distribution of any vector after the rotation.
//! Candidates are compared on the same vectors.

use clap::Args as ClapArgs;
use tqkv_core::unstable::trellis::{
    Code, MAX_LEVELS, PARITIES, Plain, Predictor, Search, Trellis, choose_plain, pair_parts, parities,
};
use tqkv_core::unstable::trellis::{RESOLUTION, workspace_bytes};
use tqkv_core::{CodecId, Portable};

/// Options of `cargo xtask trellis-search`.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// Codecs to search for, by name (default: all trellis codecs)
    #[arg(long)]
    codec: Vec<String>,
    /// Seed of generators and vectors
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Random generator sets to try
    #[arg(long, default_value_t = 150)]
    draws: usize,
    /// Hill-climbing steps after them
    #[arg(long, default_value_t = 100)]
    climbs: usize,
    /// Vectors in each comparison of generators; the last training takes sixteen times that number
    #[arg(long, default_value_t = 192)]
    vectors: usize,
    /// Refine the codes that the crate holds: keep their generators, start from their levels
    #[arg(long)]
    refine: bool,
    /// Rounds of the last training: the predictor of the scale, then levels
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Head dim
    #[arg(long, default_value_t = 128)]
    dim: usize,
}

pub(crate) fn run(args: &Args) {
    let ids = CodecId::ALL.iter().filter(|id| !id.rotates_quarters());
    let ids = ids.filter_map(|&id| id.trellis().map(|t| (id, t.code)));
    for (id, held) in ids {
        if args.codec.is_empty() || args.codec.iter().any(|name| name == id.name()) {
            let found = find(args, id.name(), held);
            print_entry(id.name(), &found);
        }
    }
}

/// The metric of a typical error during training.
const UNITS: f64 = 3.0;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// A standard normal value (Box-Muller).
    fn gauss(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (core::f64::consts::TAU * self.uniform()).cos()
    }
}

/// Vectors with unit mean square, back to back.
fn sphere(seed: u64, count: usize, dim: usize) -> Vec<f32> {
    let mut random = Random(seed);
    let mut all = Vec::with_capacity(count * dim);
    for _ in 0..count {
        let x: Vec<f64> = (0..dim).map(|_| random.gauss()).collect();
        let scale = (dim as f64 / x.iter().map(|v| v * v).sum::<f64>()).sqrt();
        all.extend(x.iter().map(|v| (v * scale) as f32));
    }
    all
}

/// The statistics of encoding many vectors with a code.
#[derive(Clone)]
struct Outcome {
    /// Mean of 1 - cos^2.
    distortion: f64,
    /// For each level, the sums of g y and of g^2 over its coordinates, where g is the vector's best gain.
    sums: [(f64, f64); MAX_LEVELS],
}

/// Encodes one vector at one scale. Returns the indices, 1 - cos^2, and the gain.
fn encode(
    trellis: &Trellis<'_>,
    x: &[f32],
    scale: f32,
    workspace: &mut [u8],
    indices: &mut [u8],
) -> (f64, f64) {
    let (code, dim) = (&trellis.code, x.len());
    let limit = code.limit() as f32;
    let factor = code.per_sigma * RESOLUTION as f32 * scale;
    let targets: Vec<i16> =
        x.iter().map(|v| (v * factor).clamp(-limit, limit).round_ties_even() as i16).collect();
    let mut coded = vec![0; dim / 8];
    Portable.search(trellis, dim, &targets, &mut coded, workspace);
    parities(code, &coded, indices);
    let (mut symbols, mut levels) = (vec![0; dim], vec![0; dim]);
    let pairs = code.plain.pair_symbols() > 0;
    choose_plain(code, &targets, indices, &mut symbols[..if pairs { dim / 2 } else { dim }], &mut levels);
    for (t, index) in indices.iter_mut().enumerate() {
        let part = match code.plain {
            // Codes of quarters are made of others, so they are not searched.
            Plain::Bits(_) | Plain::Quarters(_) => symbols[t],
            Plain::PairOfThree | Plain::PairOfSix => {
                let (even, odd) = pair_parts(code.plain, symbols[t / 2]);
                if t % 2 == 0 { even } else { odd }
            }
        };
        *index += PARITIES as u8 * part;
    }
    let (mut cross, mut energy) = (0.0, 0.0);
    for (&v, &level) in x.iter().zip(&levels) {
        let level = f64::from(level as i8) / f64::from(code.per_sigma);
        cross += f64::from(v) * level;
        energy += level * level;
    }
    (1.0 - cross * cross / energy / dim as f64, cross / energy)
}

fn peak(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |m: f32, v| m.max(v.abs()))
}

/// Encodes all vectors, each at the best of the scales `predicted + offset`.
fn measure(code: &Code, vectors: &[f32], dim: usize, offsets: &[f32]) -> Outcome {
    let (mut rows, mut taps) = (vec![[0; PARITIES]; code.row_count()], Default::default());
    let trellis = Trellis::new(*code, &mut rows, &mut taps);
    let mut workspace = vec![0; workspace_bytes(code, dim)];
    let mut outcome = Outcome { distortion: 0.0, sums: [(0.0, 0.0); MAX_LEVELS] };
    for x in vectors.chunks_exact(dim) {
        let (mut best, mut gain, mut indices) = (f64::MAX, 0.0, vec![0; dim]);
        for offset in offsets {
            let mut tried = vec![0; dim];
            let scale = code.predictor.scale(peak(x)) + offset;
            let (d, g) = encode(&trellis, x, scale, &mut workspace, &mut tried);
            if d < best {
                (best, gain, indices) = (d, g, tried);
            }
        }
        outcome.distortion += best;
        for (&index, &v) in indices.iter().zip(x) {
            let (gy, gg) = &mut outcome.sums[usize::from(index)];
            *gy += gain * f64::from(v);
            *gg += gain * gain;
        }
    }
    outcome.distortion /= (vectors.len() / dim) as f64;
    outcome
}

/// Sets the levels, in sigmas, rounded to bytes at the resolution with the least loss.
fn set_levels(code: &mut Code, sigmas: &[f64], weights: &[f64]) {
    let largest = sigmas.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
    let error = |per_sigma: f64| -> f64 {
        let loss = |v: f64| ((v * per_sigma).round() / per_sigma - v).powi(2);
        sigmas.iter().zip(weights).map(|(&v, w)| w * loss(v)).sum()
    };
    let candidates = (0..400).map(|i| (100.0 + f64::from(i) * 27.0 / 400.0) / largest);
    let best = candidates.min_by(|&a, &b| error(a).total_cmp(&error(b))).unwrap_or(40.0);
    code.per_sigma = best as f32;
    code.levels = [0; MAX_LEVELS];
    for (level, v) in code.levels.iter_mut().zip(sigmas) {
        *level = (v * best).round() as i8;
    }
    code.divisor = divisor(code, UNITS);
}

/// One Lloyd iteration. Levels move twice as far as the centroids, because the encoder used rounded levels
/// and small steps would be lost. Codes with symmetric symbols keep antisymmetric levels.
fn lloyd(code: &mut Code, sigmas: &mut [f64], outcome: &Outcome) {
    let n = code.level_count();
    let symmetric = matches!(code.plain, Plain::Bits(_));
    let mut weights = vec![0.0; n];
    for i in 0..n {
        let (mut gy, mut gg) = outcome.sums[i];
        if symmetric {
            gy -= outcome.sums[n - 1 - i].0;
            gg += outcome.sums[n - 1 - i].1;
        }
        let used = f64::from(code.levels[i]) / f64::from(code.per_sigma);
        if gg > 0.0 {
            sigmas[i] += 2.0 * (gy / gg - used);
        }
        weights[i] = gg;
    }
    set_levels(code, sigmas, &weights);
}

/// The initial levels: quantiles of a widened Gaussian (by its logistic approximation).
fn first_levels(code: &mut Code) {
    let n = code.level_count();
    let mut sigmas: Vec<f64> = (0..n)
        .map(|i| {
            let p = (i as f64 + 0.5) / n as f64;
            (p / (1.0 - p)).ln() * 0.75
        })
        .collect();
    if code.plain == Plain::PairOfSix {
        // The outer parts, with the largest and the least levels, come last.
        sigmas.rotate_left(PARITIES);
    }
    set_levels(code, &sigmas, &vec![1.0; n]);
}

/// Bits per coordinate.
fn rate(code: &Code) -> f64 {
    match code.plain {
        Plain::Bits(_) | Plain::Quarters(_) => 1.0 + code.plain.planes() as f64,
        Plain::PairOfThree => 2.5,
        Plain::PairOfSix => 3.5,
    }
}

/// The divisor that gives a typical error the metric `units`. That error is about 1.2 sigma^2 / 4^rate.
fn divisor(code: &Code, units: f64) -> u16 {
    let error = (f64::from(code.per_sigma) * f64::from(RESOLUTION)).powi(2) * 1.2 / 4f64.powf(rate(code));
    (error / units).round().max(1.0) as u16
}

fn random_generators(random: &mut Random, memory: u8) -> [u16; 3] {
    loop {
        let g = [(); 3].map(|()| (random.next() >> 20) as u16 & ((2 << memory) - 1));
        let (any, oldest) = (g[0] | g[1] | g[2], 1 << memory);
        let distinct = g[0] != g[1] && g[1] != g[2] && g[0] != g[2] && !g.contains(&0);
        if distinct && any & 1 != 0 && any & oldest != 0 {
            return g;
        }
    }
}

/// Trains levels for `iterations` and returns their distortion.
fn train(code: &mut Code, vectors: &[f32], dim: usize, offsets: &[f32], iterations: usize) -> f64 {
    let mut best = (f64::MAX, *code);
    let sigmas =
        code.levels[..code.level_count()].iter().map(|&level| f64::from(level) / f64::from(code.per_sigma));
    let mut sigmas: Vec<f64> = sigmas.collect();
    for _ in 0..=iterations {
        let outcome = measure(code, vectors, dim, offsets);
        if outcome.distortion < best.0 {
            best = (outcome.distortion, *code);
        }
        lloyd(code, &mut sigmas, &outcome);
    }
    *code = best.1;
    best.0
}

/// Fits the best scale as a function of the largest coordinate, by least squares.
fn fit_predictor(code: &mut Code, vectors: &[f32], dim: usize) {
    let (mut rows, mut taps) = (vec![[0; PARITIES]; code.row_count()], Default::default());
    let trellis = Trellis::new(*code, &mut rows, &mut taps);
    let (mut workspace, mut indices) = (vec![0; workspace_bytes(code, dim)], vec![0; dim]);
    let (mut n, mut sp, mut ss, mut spp, mut sps) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for x in vectors.chunks_exact(dim) {
        let scales = (0..13).map(|i| 0.82 + 0.035 * i as f32);
        let best = scales.min_by(|&a, &b| {
            let mut d = |scale| encode(&trellis, x, scale, &mut workspace, &mut indices).0;
            d(a).total_cmp(&d(b))
        });
        let (p, s) = (f64::from(peak(x)), f64::from(best.unwrap_or(1.0)));
        (n, sp, ss, spp, sps) = (n + 1.0, sp + p, ss + s, spp + p * p, sps + p * s);
    }
    let slope = (n * sps - sp * ss) / (n * spp - sp * sp);
    let offset = (ss - slope * sp) / n;
    let round = |v: f64| ((v * 1000.0).round() / 1000.0) as f32;
    code.predictor = Predictor { offset: round(offset), slope: round(-slope) };
}

fn find(args: &Args, name: &str, held: Code) -> Code {
    let (dim, mut random) = (args.dim, Random(args.seed));
    let few = sphere(args.seed ^ 0x5eed, args.vectors, dim);
    let mut best = held;
    best.predictor = Predictor { offset: 1.0, slope: 0.0 };
    if args.refine {
        train(&mut best, &few, dim, &[0.0], 60);
    } else {
        let mut least = f64::MAX;
        for draw in 0..args.draws + args.climbs {
            let mut tried = best;
            if draw < args.draws {
                tried.generators = random_generators(&mut random, held.memory);
                first_levels(&mut tried);
            } else {
                let flip = random.next();
                tried.generators[flip as usize % 3] ^= 1 << ((flip >> 8) % (u64::from(held.memory) + 1));
            }
            let mut d = train(&mut tried, &few, dim, &[0.0], if draw < args.draws { 4 } else { 2 });
            if d < 1.02 * least {
                d = train(&mut tried, &few, dim, &[0.0], 12);
            }
            if d < least {
                (least, best) = (d, tried);
                eprintln!("{name} {draw}: {least:.5} {:?}", best.generators);
            }
        }
    }
    let many = sphere(args.seed ^ 0x1a11, 16 * args.vectors, dim);
    for _ in 0..args.rounds {
        fit_predictor(&mut best, &many[..many.len() / 8], dim);
        let least = train(&mut best, &many[..many.len() / 2], dim, &[-0.07, 0.0, 0.07], 20);
        eprintln!("{name}: {least:.5} with three scales, {:?}", best.predictor);
    }
    choose_divisor(&mut best, &many, dim);
    best
}

/// Tries metrics of different resolution.
fn choose_divisor(code: &mut Code, vectors: &[f32], dim: usize) {
    let base = *code;
    let mut least = f64::MAX;
    for units in [1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0] {
        let tried = Code { divisor: divisor(&base, units), ..base };
        let d = measure(&tried, vectors, dim, &[0.0]).distortion;
        if d < least {
            (least, *code) = (d, tried);
        }
    }
}

fn print_entry(name: &str, code: &Code) {
    println!("entry!({}, Code {{", name.to_uppercase());
    println!("    memory: {},", code.memory);
    println!("    generators: {:?},", code.generators);
    println!("    plain: Plain::{:?},", code.plain);
    println!("    levels: levels(&{:?}),", &code.levels[..code.level_count()]);
    println!("    per_sigma: {:?},", code.per_sigma);
    println!("    divisor: {},", code.divisor);
    println!(
        "    predictor: Predictor {{ offset: {:?}, slope: {:?} }},",
        code.predictor.offset, code.predictor.slope
    );
    println!("}});");
}
