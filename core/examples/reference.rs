//! The codec in one file, to be read by whoever ports it: `s4` and `t2` at head dim 128, in plain Rust without
//! dependencies, traits or tricks. `core/tests/it/reference.rs` compares it with the golden bytes and with
//! `tqkv-core`, bit for bit. It is slow, and nothing links it.
//!
//! An encoder does this with a key or a value:
//!
//! 1. [`rotate`]: random signs, then a Hadamard transform. Every coordinate then follows one known
//!    distribution, so that one table of levels serves all vectors.
//! 2. Quantise: [`quantise_s4`] takes the nearest of 16 levels for each coordinate. [`quantise_t2`] searches a
//!    path through a trellis, which chooses 2 bits per coordinate together.
//! 3. Choose the scale from the sums of [`Moments`], in one of four modes.
//! 4. Pack: the scale as f16, then the codes.
//!
//! Attention never decodes a vector. It rotates the query once ([`rotate_query`]), multiplies it with levels
//! ([`score`]), adds up levels with weights ([`add_weighted`]), and rotates the sum back once
//! ([`rotate_back`]).
//!
//! Bytes are reproduced only if the order of the operations is kept: everything is f32 without fused
//! multiply-add, and sums are those of [`sum`]. Decoders may compute in any order. SPEC.md has all codecs and
//! head dims.
//!
//! Run: `cargo run -p tqkv-core --example reference`

/// Head dim: the number of coordinates of a vector. The codebook of `s4` belongs to it.
pub const D: usize = 128;

/// How vectors are quantised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Codec {
    /// 4 bits per coordinate, each by itself: 2 + 64 bytes.
    S4,
    /// 2 bits per coordinate, by a trellis: 2 + 32 bytes.
    T2,
}

/// What the stored scale preserves. Decoding is the same for all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// The scale for which the codes were chosen.
    Raw,
    /// The norm of the vector.
    Preserving,
    /// The dot product of the vector with itself. The default.
    Unbiased,
    /// The least squared error.
    Mmse,
}

// ---- rotation ----

/// Random signs by SplitMix64, one draw per coordinate.
pub fn signs(seed: u64) -> [f32; D] {
    let mut state = seed;
    std::array::from_fn(|_| {
        state = state.wrapping_add(0x9e3779b97f4a7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        z ^= z >> 31;
        if z >> 63 == 1 { -1.0 } else { 1.0 }
    })
}

/// The Hadamard matrix of Sylvester times `y`, in place. It is its own transpose, and D times its own inverse.
fn hadamard(y: &mut [f32; D]) {
    let mut stride = 1;
    while stride < D {
        for block in (0..D).step_by(2 * stride) {
            for i in block..block + stride {
                (y[i], y[i + stride]) = (y[i] + y[i + stride], y[i] - y[i + stride]);
            }
        }
        stride *= 2;
    }
}

/// y = H diag(signs) x. There is no factor 1 / sqrt(D), so |y|^2 = D |x|^2.
pub fn rotate(seed: u64, x: &[f32; D]) -> [f32; D] {
    let signs = signs(seed);
    let mut y = std::array::from_fn(|i| signs[i] * x[i]);
    hadamard(&mut y);
    y
}

/// x = 1 / D diag(signs) H y, the inverse of [`rotate`].
pub fn rotate_back(seed: u64, y: &[f32; D]) -> [f32; D] {
    let (signs, mut x) = (signs(seed), *y);
    hadamard(&mut x);
    std::array::from_fn(|i| signs[i] * x[i] / D as f32)
}

/// A query for [`score`]. The factor 1 / D makes its products with levels those of the vectors.
pub fn rotate_query(seed: u64, query: &[f32; D]) -> [f32; D] {
    rotate(seed, query).map(|v| v / D as f32)
}

/// A sum in the order of all encoders: first the groups of 32 coordinates one after the other, lane by lane;
/// then lane i takes lane i + 16, then + 8, 4, 2, 1.
pub fn sum(terms: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; 32];
    for i in 0..D {
        lanes[i % 32] += terms(i);
    }
    for half in [16, 8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

// ---- scale ----

/// Sums over a rotated vector y and the levels l of its codes, both in sigmas, from which the scale follows.
#[derive(Clone, Copy)]
struct Moments {
    /// |x|^2
    norm_squared: f32,
    /// The scale for which the codes were chosen.
    assumed: f32,
    /// sum y l
    cross: f32,
    /// sum l^2
    energy: f32,
}

impl Moments {
    /// The larger, the smaller is the angle between y and l.
    fn quality(&self) -> f32 {
        self.cross * self.cross / self.energy
    }

    /// The sums where levels are bytes times `unit`.
    fn times(self, unit: f32) -> Self {
        Self { cross: self.cross * unit, energy: self.energy * (unit * unit), ..self }
    }

    fn scale(&self, mode: Mode) -> f32 {
        let target = self.norm_squared * D as f32;
        let preserving = (target / self.energy).sqrt();
        match mode {
            Mode::Raw => self.assumed,
            Mode::Preserving => preserving,
            // At most twice the preserving scale, which only vectors made against the signs need.
            Mode::Unbiased if (2.0 * self.cross) * (2.0 * self.cross) < target * self.energy => {
                2.0 * preserving
            }
            Mode::Unbiased => target / self.cross,
            Mode::Mmse => self.cross / self.energy,
        }
    }
}

/// The block of a vector, or nothing if it has NaN or infinity, or needs a scale beyond f16.
pub fn encode(codec: Codec, mode: Mode, seed: u64, x: &[f32; D]) -> Option<Vec<u8>> {
    let (y, norm_squared) = (rotate(seed, x), sum(|i| x[i] * x[i]));
    if !norm_squared.is_finite() {
        return None;
    }
    let (moments, codes) = match codec {
        Codec::S4 => quantise_s4(&y, norm_squared),
        Codec::T2 => quantise_t2(&y, norm_squared),
    };
    // A vector of zeros has no direction; its block is zero.
    let scale = if norm_squared > 0.0 && moments.cross > 0.0 { moments.scale(mode) } else { 0.0 };
    match to_f16(scale) {
        0x7c00.. => None,
        0 => Some(vec![0; 2 + codes.len()]),
        bits => Some([&bits.to_le_bytes(), &*codes].concat()),
    }
}

// ---- s4 ----

/// The positive levels of `s4` in bytes; the negative ones mirror them.
const S4_BYTES: [i8; 8] = [5, 15, 25, 36, 48, 62, 79, 104];
/// Sigmas per byte. A sigma is |x|: the standard deviation of a rotated coordinate.
const S4_UNIT: f32 = 0.025927562;
/// Multiples of the norm that the encoder tries.
const S4_TRIES: [f32; 3] = [1.0, 0.93, 1.07];

/// Codes ascend with the level.
fn s4_level(code: u8) -> f32 {
    let i = usize::from(code);
    f32::from(if i < 8 { -S4_BYTES[7 - i] } else { S4_BYTES[i - 8] })
}

/// The codes at the best of a few scales, two per byte, low nibble first.
fn quantise_s4(y: &[f32; D], norm_squared: f32) -> (Moments, Vec<u8>) {
    // Boundaries lie half-way between levels, and 0 is one. A coordinate that equals one is above it.
    let boundaries: [f32; 15] =
        std::array::from_fn(|i| (s4_level(i as u8) + s4_level(i as u8 + 1)) * 0.5 * S4_UNIT);
    let mut best: Option<(Moments, Vec<u8>)> = None;
    for factor in S4_TRIES {
        let assumed = norm_squared.sqrt() * factor;
        let codes = y.map(|v| boundaries.iter().filter(|&boundary| boundary * assumed <= v).count() as u8);
        let cross = sum(|i| y[i] * s4_level(codes[i]));
        let energy = sum(|i| s4_level(codes[i]) * s4_level(codes[i]));
        let moments = Moments { norm_squared, assumed, cross, energy };
        if best.as_ref().is_none_or(|(best, _)| moments.quality() > best.quality()) {
            best = Some((moments, codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect()));
        }
    }
    let (moments, bytes) = best.expect("there is more than one try");
    (moments.times(S4_UNIT), bytes)
}

// ---- t2 ----
//
// Every coordinate has a coded bit u and a plain bit j. The coded bits of a vector are a ring. The last nine of
// them, newest in bit 0, are the window of a coordinate. Three parities of the window choose a pair of levels
// that lie far apart, and j chooses one of the two. So every coded bit moves nine coordinates, and the encoder
// searches for the ring that fits all of them best.

/// Taps of the three parities, the most significant first: bit a takes the coded bit a coordinates back.
const T2_TAPS: [u16; 3] = [499, 244, 93];
/// Levels in bytes, by parity + 8 j.
const T2_BYTES: [i8; 16] = [-127, -84, -65, -50, -34, -29, -11, -8, 8, 11, 29, 34, 50, 65, 84, 127];
/// Bytes in one sigma.
const T2_PER_SIGMA: f32 = 58.556084;
/// A squared error divided by this is a metric of the search.
const T2_DIVISOR: i32 = 171;
/// The largest target.
const T2_LIMIT: i32 = 3 * 127;
/// States of the search: the last eight coded bits, the newest in bit 0.
const STATES: usize = 256;
/// Coordinates on either side of coordinate 0 that decide about the state there.
const WARM_UP: usize = 64;
/// Bytes of a plane of bits; coordinate t is bit t / PLANE of byte t % PLANE.
const PLANE: usize = D / 8;

/// The parities of a window as a number.
fn t2_parity(window: usize) -> usize {
    T2_TAPS.iter().fold(0, |z, &taps| 2 * z + ((window & usize::from(taps)).count_ones() % 2) as usize)
}

/// The ring and the plain bits at the better of two scales, as two planes.
fn quantise_t2(y: &[f32; D], norm_squared: f32) -> (Moments, Vec<u8>) {
    let norm = norm_squared.sqrt();
    let peak = if norm > 0.0 { y.iter().fold(0.0, |most, v| f32::max(most, v.abs())) / norm } else { 0.0 };
    let predicted = (1.417 - 0.145 * peak).clamp(0.5, 1.5);
    let mut best = (Moments { norm_squared, assumed: 0.0, cross: 0.0, energy: 1.0 }, vec![0; 2 * PLANE]);
    for offset in [-0.04, 0.04] {
        // Targets are the coordinates in half bytes.
        let factor = if norm > 0.0 { (T2_PER_SIGMA * 2.0) * (predicted + offset) / norm } else { 0.0 };
        let limit = T2_LIMIT as f32;
        let targets = y.map(|v| (v * factor).clamp(-limit, limit).round_ties_even() as i32);
        let ring = search(&targets);
        let (mut levels, mut planes) = ([0.0; D], vec![0; 2 * PLANE]);
        for t in 0..D {
            let z = t2_parity(window(&ring, t));
            let error = |j: usize| (targets[t] - 2 * i32::from(T2_BYTES[z + 8 * j])).pow(2);
            let plain = usize::from(error(1) < error(0));
            levels[t] = f32::from(T2_BYTES[z + 8 * plain]);
            planes[t % PLANE] |= ring[t] << (t / PLANE);
            planes[PLANE + t % PLANE] |= (plain as u8) << (t / PLANE);
        }
        let (cross, energy) = (sum(|i| y[i] * levels[i]), sum(|i| levels[i] * levels[i]));
        let assumed = norm / (predicted + offset);
        let moments = Moments { norm_squared, assumed, cross, energy }.times(1.0 / T2_PER_SIGMA);
        if moments.cross > 0.0 && moments.quality() > best.0.quality() {
            best = (moments, planes);
        }
    }
    best
}

/// The coded bits on which coordinate t depends, its own in bit 0.
fn window(ring: &[u8; D], t: usize) -> usize {
    (0..9).map(|back| usize::from(ring[(D + t - back) % D]) << back).sum()
}

/// The metric of each parity for a target: how much farther its nearest level is than that of the best parity.
fn metrics_of(target: i32) -> [u8; 8] {
    let distance = |z: usize| {
        let of = |j: usize| (target - 2 * i32::from(T2_BYTES[z + 8 * j])).pow(2);
        of(0).min(of(1))
    };
    let distances: [i32; 8] = std::array::from_fn(distance);
    let least = distances.into_iter().min().expect("there are eight");
    distances.map(|d| ((d - least + T2_DIVISOR / 2) / T2_DIVISOR).min(127) as u8)
}

/// The ring of coded bits with the least sum of metrics, by the algorithm of Viterbi. Two passes close the
/// ring: the first runs over its end and its beginning and finds the state at coordinate 0, the second begins
/// and ends in that state.
fn search(targets: &[i32; D]) -> [u8; D] {
    let mut sums = [0; STATES];
    pass(targets, D - WARM_UP, WARM_UP, &mut sums);
    let decisions = pass(targets, 0, WARM_UP, &mut sums);
    let least = *sums.iter().min().expect("there are states");
    let end = sums.iter().position(|&sum| sum == least).expect("it is one of them");
    let (start, _) = trace_back(&decisions, end);

    let mut sums = [255; STATES];
    sums[start] = 0;
    let decisions = pass(targets, 0, D, &mut sums);
    let (_, bits) = trace_back(&decisions, start);
    std::array::from_fn(|t| bits[t])
}

/// Runs over `steps` coordinates from `first` on. For each state, `sums` has the metrics of the best path that
/// ends there, in 8 bits that saturate. Returns for each step and state the oldest bit of the path that won,
/// which the state itself has forgotten.
fn pass(targets: &[i32; D], first: usize, steps: usize, sums: &mut [u8; STATES]) -> Vec<[u8; STATES]> {
    let (mut decisions, mut least) = (Vec::new(), 0);
    for n in 0..steps {
        let metrics = metrics_of(targets[(first + n) % D]);
        let (mut next, mut won) = ([0; STATES], [0; STATES]);
        for state in 0..STATES {
            let sum_from = |oldest: usize| {
                let before = state / 2 + oldest * STATES / 2;
                sums[before].saturating_add(metrics[t2_parity(state + oldest * STATES)])
            };
            let (zero, one) = (sum_from(0), sum_from(1));
            (next[state], won[state]) = (zero.min(one), u8::from(one < zero));
        }
        *sums = next;
        decisions.push(won);
        // Every fourth step lowers the sums, by what was their minimum two steps before.
        if n % 4 == 1 {
            least = *sums.iter().min().expect("there are states");
        } else if n % 4 == 3 {
            *sums = sums.map(|sum| sum.saturating_sub(least));
        }
    }
    decisions
}

/// Follows a path back from state `end`: the state before it, and its bits.
fn trace_back(decisions: &[[u8; STATES]], end: usize) -> (usize, Vec<u8>) {
    let mut state = end;
    let mut bits = vec![0; decisions.len()];
    for (bit, won) in bits.iter_mut().zip(decisions).rev() {
        *bit = (state % 2) as u8;
        state = state / 2 + usize::from(won[state]) * STATES / 2;
    }
    (state, bits)
}

// ---- blocks ----

/// The levels of a block and their factor: y is about `factor * level`. Nothing if the block has another length,
/// or a scale that is not finite.
pub fn levels(codec: Codec, block: &[u8]) -> Option<(f32, [f32; D])> {
    let (scale, codes) = block.split_first_chunk::<2>()?;
    let scale = from_f16(u16::from_le_bytes(*scale));
    let (unit, bytes) = match codec {
        Codec::S4 => (S4_UNIT, D / 2),
        Codec::T2 => (1.0 / T2_PER_SIGMA, 2 * PLANE),
    };
    if codes.len() != bytes || !scale.is_finite() {
        return None;
    }
    let bit = |plane: usize, t: usize| codes[plane * PLANE + t % PLANE] >> (t / PLANE) & 1;
    let level: [f32; D] = match codec {
        Codec::S4 => std::array::from_fn(|i| s4_level(codes[i / 2] >> (4 * (i % 2)) & 15)),
        Codec::T2 => {
            let ring = std::array::from_fn(|t| bit(0, t));
            let index = |t: usize| t2_parity(window(&ring, t)) + 8 * usize::from(bit(1, t));
            std::array::from_fn(|t| f32::from(T2_BYTES[index(t)]))
        }
    };
    Some((scale * unit, level))
}

/// The vector of a block.
pub fn decode(codec: Codec, seed: u64, block: &[u8]) -> Option<[f32; D]> {
    let (factor, levels) = levels(codec, block)?;
    Some(rotate_back(seed, &levels.map(|level| factor * level)))
}

/// The dot product of a query, rotated by [`rotate_query`], and the vector of a block.
pub fn score(codec: Codec, rotated_query: &[f32; D], block: &[u8]) -> Option<f32> {
    let (factor, levels) = levels(codec, block)?;
    Some(sum(|i| rotated_query[i] * levels[i]) * factor)
}

/// Adds a block times its weight. [`rotate_back`] of the result is the weighted sum of the vectors.
pub fn add_weighted(codec: Codec, weight: f32, block: &[u8], rotated_sum: &mut [f32; D]) -> Option<()> {
    let (factor, levels) = levels(codec, block)?;
    for (sum, level) in rotated_sum.iter_mut().zip(levels) {
        *sum += level * (weight * factor);
    }
    Some(())
}

/// The bits of a number that is not negative as f16: to nearest, ties to even; NaN and what is too large become
/// 0x7c00 or more.
fn to_f16(value: f32) -> u16 {
    if !value.is_finite() {
        return 0x7c00 + u16::from(value.is_nan());
    }
    // The step of f16 at this value; below 2^-14 it stays 2^-24. Dividing by a power of two is exact.
    let exponent = ((value.to_bits() >> 23) as i32 - 127).max(-14);
    let mantissa = (f64::from(value) / 2f64.powi(exponent - 10)).round_ties_even() as i32;
    // A mantissa of 1024 or more carries into the exponent.
    (((exponent + 14) << 10) + mantissa).min(0x7c00) as u16
}

/// The value of an f16.
fn from_f16(bits: u16) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let magnitude = match exponent {
        0 => mantissa * 2f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + mantissa) * 2f64.powi(exponent - 25),
    };
    (if bits >> 15 == 1 { -magnitude } else { magnitude }) as f32
}

fn main() {
    let key: [f32; D] = std::array::from_fn(|i| (i as f32 * 0.37).sin());
    let query: [f32; D] = std::array::from_fn(|i| (i as f32 * 0.39).sin());
    let exact: f32 = key.iter().zip(&query).map(|(k, q)| k * q).sum();
    for codec in [Codec::S4, Codec::T2] {
        let block = encode(codec, Mode::Unbiased, 42, &key).expect("a finite vector");
        let product = score(codec, &rotate_query(42, &query), &block).expect("a block that was encoded");
        println!("{codec:?}: {} bytes, query * key {exact:.3}, from the codes {product:.3}", block.len());
    }
}
