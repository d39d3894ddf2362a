//! [`Qjl`]: the 1-bit residual of TurboQuant's Algorithm 2 (arXiv 2504.19874, section 3.2) on the device.
//!
//! The estimator is unbiased, but a wider codebook is better at equal bits. It exists for callers that need
//! an unbiased estimate.

use crate::current::{Current, Restore};
use crate::launch::{Memory, launch, warps};
use crate::spec::accepted_head_dims;
use crate::{Device, GpuError, HEAD_DIMS};
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
        check("matrix", matrix.len(), dim * dim)?;
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
        check("residuals", residuals.len(), count * self.dim)?;
        check("signs", signs.len(), count * self.dim / 32)?;
        check("norms", norms.len(), count)?;
        self.device.check_context("residuals", residuals.context())?;
        self.device.check_context("signs", signs.context())?;
        self.device.check_context("norms", norms.context())?;
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

    /// Projects queries, `[n, dim]`, on the host: S q, the input of [`Qjl::correct`]. Costs dim^2 products
    /// per query.
    pub fn project(&self, queries: &[f32]) -> Vec<f32> {
        let rows = |query| self.matrix.chunks_exact(self.dim).map(move |row| dot(row, query));
        queries.chunks_exact(self.dim).flat_map(rows).collect()
    }

    /// Adds the estimates of <q, r> to `scores`, `[tokens, num_heads]`. `projected` is `[num_heads, dim]`.
    /// `signs` and `norms` belong to `tokens * num_kv_heads` residuals. Does not wait.
    ///
    /// # Errors
    /// [`GpuError::WrongLength`], or the driver's errors.
    pub fn correct(
        &self,
        projected: &CudaSlice<f32>,
        signs: &CudaSlice<u32>,
        norms: &CudaSlice<f32>,
        num_kv_heads: usize,
        scores: &mut CudaSlice<f32>,
    ) -> Result<(), GpuError> {
        let _current = Current::keep();
        let heads = projected.len() / self.dim;
        check("projected", projected.len(), heads * self.dim)?;
        if num_kv_heads == 0 || heads == 0 || !heads.is_multiple_of(num_kv_heads) {
            let message = format!("{heads} query heads do not divide among {num_kv_heads} KV heads");
            return Err(GpuError::BadSpec(message));
        }
        let tokens = norms.len() / num_kv_heads;
        check("norms", norms.len(), tokens * num_kv_heads)?;
        check("signs", signs.len(), norms.len() * self.dim / 32)?;
        check("scores", scores.len(), tokens * heads)?;
        self.device.check_context("projected", projected.context())?;
        self.device.check_context("signs", signs.context())?;
        self.device.check_context("norms", norms.context())?;
        self.device.check_context("scores", scores.context())?;
        let arguments = QjlCorrect {
            sketched: Memory::from(projected),
            num_heads: heads as u32,
            signs: signs.into(),
            norms: norms.into(),
            tokens: tokens as u32,
            num_kv_heads: num_kv_heads as u32,
            scores: scores.into(),
        };
        // SAFETY: lengths were checked above.
        unsafe { launch(&self.device, &self.correct, arguments.list(), warps(tokens * heads)?) }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn check(what: &'static str, got: usize, expected: usize) -> Result<(), GpuError> {
    if got == expected { Ok(()) } else { Err(GpuError::WrongLength { what, got, expected }) }
}
