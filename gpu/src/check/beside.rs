//! The kernels that no cache uses, for weights and 1-bit residuals: their results, and their times.

use super::args::CheckArgs;
use super::bench::{self, Times};
use super::error::CheckError;
use super::right::gaussian;
use super::row::{KernelRow, ResidualsRow, Spread, WeightsRow};
use crate::cudarc::driver::CudaSlice;
use crate::{Device, GpuError, Out, Qjl, WeightDecoder};
use half::{bf16, f16};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tqkv_core::{AnyCodec, CodecId, Options};

/// Head dim of the times, and query heads of a score.
const HEAD_DIM: usize = 128;
const HEADS: usize = 4;

/// Element types of results, and their bytes.
const ELEMENTS: [(&str, usize); 3] = [("f32", 4), ("f16", 2), ("bf16", 2)];

/// Most vectors that are timed.
const MOST_VECTORS: usize = 1 << 20;

/// Results in one memory for each element type.
struct Results {
    floats: CudaSlice<f32>,
    halves: CudaSlice<u16>,
    brains: CudaSlice<u16>,
}

impl Results {
    fn new(device: &Device, len: usize) -> Result<Self, GpuError> {
        Ok(Self { floats: device.zeros(len)?, halves: device.zeros(len)?, brains: device.zeros(len)? })
    }

    /// The memory of an element type, in the order of [`ELEMENTS`].
    fn of(&mut self, element: usize) -> Out<'_> {
        match element {
            0 => Out::F32(&mut self.floats),
            1 => Out::F16(&mut self.halves),
            _ => Out::Bf16(&mut self.brains),
        }
    }

    /// The f32 results, and how many of each type are not these values, rounded.
    fn read(
        &self,
        device: &Device,
        want: impl Fn(&[f32]) -> Vec<f32>,
    ) -> Result<(Vec<f32>, [usize; 3]), GpuError> {
        let stream = device.stream();
        let (floats, halves, brains) = (
            stream.clone_dtoh(&self.floats)?,
            stream.clone_dtoh(&self.halves)?,
            stream.clone_dtoh(&self.brains)?,
        );
        stream.synchronize()?;
        let want = want(&floats);
        let wrong = |differs: &dyn Fn(usize, f32) -> bool| {
            want.iter().enumerate().filter(|&(i, &value)| differs(i, value)).count()
        };
        let mismatches = [
            wrong(&|i, value| floats[i].to_bits() != value.to_bits()),
            wrong(&|i, value| halves[i] != f16::from_f32(value).to_bits()),
            wrong(&|i, value| brains[i] != bf16::from_f32(value).to_bits()),
        ];
        Ok((floats, mismatches))
    }
}

/// Blocks of `count` vectors, back to back, and the vectors that they decode to.
fn blocks(codec: &AnyCodec, count: usize) -> Result<(Vec<u8>, Vec<f32>), GpuError> {
    let (dim, mut rng) = (codec.dim(), ChaCha8Rng::seed_from_u64(codec.dim() as u64));
    let (mut blocks, mut values) = (vec![0; count * codec.block_bytes()], vec![0.0; count * dim]);
    for (block, values) in blocks.chunks_exact_mut(codec.block_bytes()).zip(values.chunks_exact_mut(dim)) {
        let fault = |error: &dyn std::error::Error| GpuError::Driver(format!("a group of weights: {error}"));
        codec.encode(&gaussian(&mut rng, dim), block).map_err(|error| fault(&error))?;
        codec.decode(block, values).map_err(|error| fault(&error))?;
    }
    Ok((blocks, values))
}

/// Decodes `count` groups of weights to each element type.
pub(crate) fn weights(
    device: &Device,
    id: CodecId,
    dim: usize,
    count: usize,
) -> Result<WeightsRow, GpuError> {
    let decoder = WeightDecoder::new(device, id, dim, Options::DEFAULT)?;
    let codec =
        AnyCodec::new(id, dim, Options::DEFAULT).map_err(|error| GpuError::BadSpec(error.to_string()))?;
    let (blocks, values) = blocks(&codec, count)?;
    let (blocks, mut results) = (device.upload(&blocks)?, Results::new(device, values.len())?);
    for element in 0..ELEMENTS.len() {
        decoder.decode(&blocks, results.of(element))?;
    }
    let (_, [f32_mismatches, f16_mismatches, bf16_mismatches]) = results.read(device, |_| values.clone())?;
    Ok(WeightsRow {
        codec: id.name(),
        head_dim: dim,
        groups: count,
        f32_mismatches,
        f16_mismatches,
        bf16_mismatches,
    })
}

/// A projection with residuals and queries on the device, and what the estimates are made of.
struct Sketched {
    qjl: Qjl,
    matrix: Vec<f32>,
    residuals: Vec<f32>,
    queries: Vec<f32>,
    on_device: CudaSlice<f32>,
    projected: CudaSlice<f32>,
    signs: CudaSlice<u32>,
    norms: CudaSlice<f32>,
}

impl Sketched {
    fn new(device: &Device, dim: usize, count: usize) -> Result<Self, GpuError> {
        let mut rng = ChaCha8Rng::seed_from_u64(dim as u64);
        let [matrix, residuals, queries] =
            [dim * dim, count * dim, HEADS * dim].map(|len| gaussian(&mut rng, len));
        let qjl = Qjl::new(device, dim, matrix.clone())?;
        let (on_device, projected) = (device.upload(&residuals)?, device.upload(&qjl.project(&queries))?);
        let (signs, norms) = (device.zeros(count * dim / 32)?, device.zeros(count)?);
        Ok(Self { qjl, matrix, residuals, queries, on_device, projected, signs, norms })
    }

    fn sketch(&mut self) -> Result<(), GpuError> {
        self.qjl.sketch(&self.on_device, &mut self.signs, &mut self.norms)
    }

    fn correct(&self, out: Out<'_>) -> Result<(), GpuError> {
        self.qjl.correct(&self.projected, &self.signs, &self.norms, 1, out)
    }

    /// The estimates in f64, `[residuals, heads]`, by the definition.
    fn estimates(&self, dim: usize) -> Vec<f64> {
        let project =
            |x: &[f32]| -> Vec<f64> { self.matrix.chunks_exact(dim).map(|row| dot(row, x)).collect() };
        let queries: Vec<_> = self.queries.chunks_exact(dim).map(project).collect();
        let factor = (std::f64::consts::PI / 2.0).sqrt() / dim as f64;
        let of = |residual: &[f32]| {
            let (projected, norm) = (project(residual), dot(residual, residual).sqrt());
            let sign = |y: &f64| if *y >= 0.0 { 1.0 } else { -1.0 };
            let sum =
                |query: &Vec<f64>| projected.iter().map(sign).zip(query).map(|(s, q)| s * q).sum::<f64>();
            queries.iter().map(|query| norm * factor * sum(query)).collect::<Vec<_>>()
        };
        self.residuals.chunks_exact(dim).flat_map(of).collect()
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Estimates <q, r> for `count` residuals. Errors are relative to |q| |r|.
pub(crate) fn residuals(device: &Device, dim: usize, count: usize) -> Result<ResidualsRow, GpuError> {
    let mut sketched = Sketched::new(device, dim, count)?;
    sketched.sketch()?;
    let mut results = Results::new(device, count * HEADS)?;
    for element in 0..ELEMENTS.len() {
        sketched.correct(results.of(element))?;
    }
    let (floats, [_, f16_mismatches, bf16_mismatches]) = results.read(device, <[f32]>::to_vec)?;
    let norm = |x: &[f32]| dot(x, x).sqrt();
    let norms: Vec<f64> = sketched.queries.chunks_exact(dim).map(norm).collect();
    let mut largest_error = 0.0_f64;
    for (i, (got, want)) in floats.iter().zip(sketched.estimates(dim)).enumerate() {
        let residual = &sketched.residuals[i / HEADS * dim..][..dim];
        let error = (f64::from(*got) - want).abs() / (norms[i % HEADS] * norm(residual));
        // NaN is an error too, and `max` would drop it.
        largest_error = if error.is_nan() { f64::INFINITY } else { largest_error.max(error) };
    }
    Ok(ResidualsRow { head_dim: dim, residuals: count, largest_error, f16_mismatches, bf16_mismatches })
}

/// Times the kernels at [`HEAD_DIM`], with vectors of four times the bytes of the second-level cache.
pub(crate) fn measure(
    device: &Device,
    args: &CheckArgs,
    each: &mut dyn FnMut(KernelRow) -> Result<(), CheckError>,
) -> Result<(), CheckError> {
    let vectors = (4 * device.l2_bytes()? / (2 * HEAD_DIM)).clamp(8, MOST_VECTORS);
    let row = |kernel, codec, element, vectors: usize, bytes: usize, times: &Times| KernelRow {
        kernel,
        codec,
        element,
        head_dim: HEAD_DIM,
        vectors,
        runs: times.runs(),
        seconds: Spread::of(times),
        vectors_per_second: vectors as f64 / times.at(50),
        bytes_per_second: bytes as f64 / times.at(50),
    };
    for id in args.codecs() {
        let decoder = WeightDecoder::new(device, id, HEAD_DIM, Options::DEFAULT)?;
        let bytes =
            vectors * AnyCodec::new(id, HEAD_DIM, Options::DEFAULT).map_or(0, |codec| codec.block_bytes());
        // Zeros are blocks too, and take as long as any others.
        let (blocks, mut results) = (device.zeros(bytes)?, Results::new(device, vectors * HEAD_DIM)?);
        for (i, (element, size)) in ELEMENTS.into_iter().enumerate() {
            let times = bench::times(device, args.seconds, || decoder.decode(&blocks, results.of(i)))?;
            let moved = bytes + vectors * HEAD_DIM * size;
            each(row("weight_decode", Some(id.name()), element, vectors, moved, &times))?;
        }
    }
    let mut sketched = Sketched::new(device, HEAD_DIM, vectors)?;
    let times = bench::times(device, args.seconds, || sketched.sketch())?;
    let (kept, read) = (vectors * (HEAD_DIM / 8 + 4), vectors * 4 * HEAD_DIM);
    each(row("sketch", None, "f32", vectors, read + kept, &times))?;
    let mut results = Results::new(device, vectors * HEADS)?;
    for (i, (element, size)) in ELEMENTS.into_iter().enumerate() {
        let times = bench::times(device, args.seconds, || sketched.correct(results.of(i)))?;
        each(row("correct", None, element, vectors, kept + 2 * vectors * HEADS * size, &times))?;
    }
    Ok(())
}
