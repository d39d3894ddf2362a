//! [`Qjl`]: the 1-bit residual of TurboQuant's Algorithm 2 (arXiv 2504.19874, section 3.2) on the device.
//!
//! The estimator is unbiased, but a wider codebook is better at equal bits. It exists for callers that need
//! an unbiased estimate.

use crate::current::{Current, Restore};
use crate::formats::accepted_head_dims;
use crate::launch::{Memory, launch, warps};
use crate::rows::check_len;
use crate::{Device, GpuError, HEAD_DIMS, Out};
use cudarc::driver::{CudaFunction, CudaSlice};
use tqkv_gpu_kernels::args::{QjlCorrect, QjlSketch};

/// A projection S and its kernels.
#[derive(Debug)]
pub struct Qjl {
    device: Device,
    dim: usize,
    sketch: CudaFunction,
    correct: CudaFunction,
    /// `[dim, dim]`, row-major.
    matrix: Vec<f32>,
    transposed: CudaSlice<f32>,
    restore: Restore,
}

impl Drop for Qjl {
    fn drop(&mut self) {
        self.restore.settle(self.device.stream());
    }
}

impl Qjl {
    /// Takes the projection S as `matrix`: `[dim, dim]` entries of N(0, 1), row-major. `dim` is one of
    /// [`HEAD_DIMS`].
    ///
    /// # Errors
    /// [`GpuError::BadSpec`], [`GpuError::WrongLength`], or the driver's errors.
    pub fn new(device: &Device, dim: usize, matrix: Vec<f32>) -> Result<Self, GpuError> {
        let _current = Current::keep();
        if !HEAD_DIMS.contains(&dim) {
            let message = format!("head dim {dim} has no kernels; expected {}", accepted_head_dims());
            return Err(GpuError::BadSpec(message));
        }
        check_len("matrix", matrix.len(), dim * dim)?;
        let transposed: Vec<f32> = (0..dim * dim).map(|i| matrix[i % dim * dim + i / dim]).collect();
        let names = [format!("qjl_sketch_d{dim}"), format!("qjl_correct_d{dim}")];
        let [sketch, correct] = device.kernels(names.each_ref().map(String::as_str))?;
        let transposed = device.upload(&transposed)?;
        let restore = Restore::default();
        Ok(Self { device: device.clone(), dim, sketch, correct, matrix, transposed, restore })
    }

    /// Sketches n residuals, `[n, dim]`: the signs of S r as `[n, dim / 32]` words, and the norms |r|. Does
    /// not wait.
    ///
    /// # Errors
    /// [`GpuError::WrongLength`], or the driver's errors.
    pub fn sketch(
        &self,
        residuals: &CudaSlice<f32>,
        signs: &mut CudaSlice<u32>,
        norms: &mut CudaSlice<f32>,
    ) -> Result<(), GpuError> {
        let _current = Current::keep();
        let count = residuals.len() / self.dim;
        self.check("residuals", residuals, count * self.dim)?;
        self.check("signs", signs, count * self.dim / 32)?;
        self.check("norms", norms, count)?;
        let arguments = QjlSketch {
            residuals: Memory::from(residuals),
            count: count as u32,
            transposed: (&self.transposed).into(),
            signs: signs.into(),
            norms: norms.into(),
        };
        // SAFETY: lengths were checked above, and `transposed` is [dim, dim].
        unsafe { launch(&self.device, &self.sketch, arguments.list(), warps(count)?) }
    }

    /// Checks the length of a slice, and that it belongs to the device.
    fn check<V>(&self, what: &'static str, slice: &CudaSlice<V>, expected: usize) -> Result<(), GpuError> {
        check_len(what, slice.len(), expected)?;
        self.device.check_context(what, slice.context())
    }

    /// Projects queries, `[n, dim]`, on the host: S q, the input of [`Qjl::correct`]. Costs dim^2 products
    /// per query.
    pub fn project(&self, queries: &[f32]) -> Vec<f32> {
        let rows = |query| self.matrix.chunks_exact(self.dim).map(move |row| dot(row, query));
        queries.chunks_exact(self.dim).flat_map(rows).collect()
    }

    /// Adds the estimates of <q, r> to `scores`, `[tokens, num_heads]` in f32, f16 or bf16. `projected` is
    /// `[num_heads, dim]`. `signs` and `norms` belong to `tokens * num_kv_heads` residuals. Does not wait.
    ///
    /// # Errors
    /// [`GpuError::WrongLength`], or the driver's errors.
    pub fn correct<'a>(
        &self,
        projected: &CudaSlice<f32>,
        signs: &CudaSlice<u32>,
        norms: &CudaSlice<f32>,
        num_kv_heads: usize,
        scores: impl Into<Out<'a>>,
    ) -> Result<(), GpuError> {
        let _current = Current::keep();
        let heads = projected.len() / self.dim;
        self.check("projected", projected, heads * self.dim)?;
        if num_kv_heads == 0 || heads == 0 || !heads.is_multiple_of(num_kv_heads) {
            let message = format!("{heads} query heads do not divide among {num_kv_heads} KV heads");
            return Err(GpuError::BadSpec(message));
        }
        let tokens = norms.len() / num_kv_heads;
        self.check("norms", norms, tokens * num_kv_heads)?;
        self.check("signs", signs, norms.len() * self.dim / 32)?;
        let (scores, kind) = scores.into().memory(&self.device, tokens * heads)?;
        let arguments = QjlCorrect {
            sketched: Memory::from(projected),
            num_heads: heads as u32,
            signs: signs.into(),
            norms: norms.into(),
            tokens: tokens as u32,
            num_kv_heads: num_kv_heads as u32,
            scores,
            kind,
        };
        // SAFETY: lengths were checked above.
        unsafe { launch(&self.device, &self.correct, arguments.list(), warps(tokens * heads)?) }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
