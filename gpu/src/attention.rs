//! One launch of decode attention over pages: rotation of the queries, the split over the
//! sequence, and the merge.

use crate::device::Device;
use crate::{GpuError, pages};
use cudarc::driver::{CudaFunction, CudaSlice, LaunchConfig, PushKernelArg};
use tqkv_gpu_kernels::attend::PARTIAL_HEADER;
use tqkv_gpu_kernels::{encode::element, page};

/// Warps a block; they work alone, so this only fills blocks.
pub(crate) const WARPS: u32 = 4;

/// Warps that a multiprocessor should have to hide the latency of memory.
const WARPS_PER_MULTIPROCESSOR: usize = 32;

/// A launch of `warps` warps that work alone.
pub(crate) fn warps(count: usize) -> LaunchConfig {
    let blocks = (count as u32).div_ceil(WARPS);
    LaunchConfig { grid_dim: (blocks.max(1), 1, 1), block_dim: (32, WARPS, 1), shared_mem_bytes: 0 }
}

/// Keys or values of one layer, as the kernel takes them.
#[derive(Clone, Copy)]
pub(crate) struct Pool<'a> {
    /// The pages.
    pub(crate) memory: &'a CudaSlice<u8>,
    /// [`page::format`] of the codec, or [`page::HALF_BITS`].
    pub(crate) format: u32,
    /// [`tqkv_gpu_kernels::attend::tables`].
    pub(crate) levels: &'a CudaSlice<u32>,
    /// Sign words of the rotation.
    pub(crate) signs: &'a CudaSlice<u32>,
}

/// Where the tokens of a batch are.
#[derive(Clone, Copy)]
pub(crate) struct Batch<'a> {
    /// [sequences, max_pages]
    pub(crate) table: &'a CudaSlice<u32>,
    /// Entries a sequence.
    pub(crate) max_pages: usize,
    /// [sequences]
    pub(crate) lengths: &'a CudaSlice<u32>,
    /// Sequences, at most 65535.
    pub(crate) sequences: usize,
    /// Tokens of the longest sequence.
    pub(crate) longest: usize,
}

/// Queries on the device.
#[derive(Clone, Copy)]
pub(crate) enum Queries<'a> {
    /// f32
    Floats(&'a CudaSlice<f32>),
    /// f16 or bf16, by the kernels' number for the type.
    Halves(&'a CudaSlice<u16>, u32),
}

/// The kernels and buffers of attention for one shape of heads.
#[derive(Debug)]
pub(crate) struct Attention {
    rotate: CudaFunction,
    attend: CudaFunction,
    merge: CudaFunction,
    heads_a_warp: usize,
    num_kv_heads: usize,
    group: usize,
    head_dim: usize,
    rotated: CudaSlice<f32>,
    partials: CudaSlice<f32>,
}

/// Parts that each sequence is split into: enough warps to fill the device, a page each at least.
fn split(multiprocessors: usize, warps_a_part: usize, longest: usize) -> usize {
    let wanted = (multiprocessors * WARPS_PER_MULTIPROCESSOR).div_ceil(warps_a_part.max(1));
    wanted.clamp(1, longest.div_ceil(pages::SLOTS).max(1))
}

/// The kernel for keys and values of these formats, and how many query heads share a warp.
fn kernel(formats: [u32; 2], group: usize, head_dim: usize) -> (&'static str, usize) {
    let any = |test: fn(u32) -> bool| formats.iter().any(|&format| test(format));
    let heads = if group > 2 && head_dim < 256 { 4 } else { 2 };
    if any(|format| format == page::HALF_BITS) {
        ("attend_f16", group.min(2))
    } else if group == 1 && any(|format| page::is_trellis(format) || format == 4) {
        // Fewer instructions on the plain cores.
        ("attend", 1)
    } else if any(page::is_trellis) {
        ("attend_trellis", heads)
    } else {
        ("attend_tensor", heads)
    }
}

impl Attention {
    /// Loads the kernels for keys and values of these formats.
    pub(crate) fn new(
        device: &Device,
        num_kv_heads: usize,
        group: usize,
        head_dim: usize,
        formats: [u32; 2],
    ) -> Result<Self, GpuError> {
        let (name, heads_a_warp) = kernel(formats, group, head_dim);
        let [rotate, attend, merge] = device.kernels([
            &format!("rotate_queries_d{head_dim}"),
            &format!("{name}_d{head_dim}_r{heads_a_warp}"),
            &format!("attend_merge_d{head_dim}"),
        ])?;
        let (rotated, partials) = (device.zeros(1)?, device.zeros(1)?);
        Ok(Self { rotate, attend, merge, heads_a_warp, num_kv_heads, group, head_dim, rotated, partials })
    }

    /// Rotates `count` queries and multiplies them by `factor`; valid until the next call.
    ///
    /// # Safety
    /// `queries` holds `count` vectors, `signs` their head dim's words.
    pub(crate) unsafe fn rotate(
        &mut self,
        device: &Device,
        queries: &CudaSlice<f32>,
        signs: &CudaSlice<u32>,
        count: usize,
        factor: f32,
    ) -> Result<&CudaSlice<f32>, GpuError> {
        let queries = Queries::Floats(queries);
        // SAFETY: the caller's.
        unsafe { self.launch_rotation(device, queries, signs, 1, count, factor) }?;
        Ok(&self.rotated)
    }

    /// # Safety
    /// As for [`Attention::rotate`].
    unsafe fn launch_rotation(
        &mut self,
        device: &Device,
        queries: Queries<'_>,
        signs: &CudaSlice<u32>,
        is_rotated: u32,
        count: usize,
        factor: f32,
    ) -> Result<(), GpuError> {
        device.grow(&mut self.rotated, count * self.head_dim)?;
        let mut launch = device.stream().launch_builder(&self.rotate);
        let kind = match queries {
            Queries::Floats(_) => element::F32,
            Queries::Halves(_, kind) => kind,
        };
        match queries {
            Queries::Floats(rows) => launch.arg(rows),
            Queries::Halves(rows, _) => launch.arg(rows),
        };
        let count_word = count as u32;
        launch.arg(&kind).arg(&count_word).arg(signs).arg(&is_rotated).arg(&factor).arg(&mut self.rotated);
        // SAFETY: the caller's, and `rotated` was made large enough above.
        unsafe { launch.launch(warps(count)) }?;
        Ok(())
    }

    /// Attends with one query token a sequence: `queries`, `out` are [sequences, num_heads,
    /// head_dim]; `out` is f32. Sequences without tokens get zeros.
    ///
    /// # Safety
    /// Every buffer is as large as its shape says, and every page number in use is inside the pools.
    pub(crate) unsafe fn run(
        &mut self,
        device: &Device,
        queries: Queries<'_>,
        [keys, values]: [Pool<'_>; 2],
        batch: Batch<'_>,
        out: &mut CudaSlice<f32>,
    ) -> Result<(), GpuError> {
        let dim = self.head_dim;
        let count = batch.sequences * self.num_kv_heads * self.group;
        let chunks = self.group.div_ceil(self.heads_a_warp);
        let warps_a_part = batch.sequences * self.num_kv_heads * chunks;
        let parts = split(device.multiprocessors(), warps_a_part, batch.longest);
        device.grow(&mut self.partials, count * parts * (PARTIAL_HEADER as usize + dim))?;

        let is_rotated = u32::from(keys.format != page::HALF_BITS);
        let scale = if is_rotated == 0 { 1.0 } else { 1.0 / dim as f32 };
        let factor = scale / (dim as f32).sqrt() * std::f32::consts::LOG2_E;
        let (count_word, parts_word) = (count as u32, parts as u32);
        // SAFETY: the caller's.
        unsafe { self.launch_rotation(device, queries, keys.signs, is_rotated, count, factor) }?;

        let (kv_heads, group) = (self.num_kv_heads as u32, self.group as u32);
        let max_pages = batch.max_pages as u32;
        let mut launch = device.stream().launch_builder(&self.attend);
        launch.arg(&parts_word).arg(&self.rotated).arg(&kv_heads).arg(&group);
        launch.arg(keys.memory).arg(&keys.format).arg(keys.levels);
        launch.arg(values.memory).arg(&values.format).arg(values.levels);
        launch.arg(batch.table).arg(&max_pages).arg(batch.lengths).arg(&mut self.partials);
        let blocks = parts_word.div_ceil(WARPS);
        let grid_dim = (blocks, (self.num_kv_heads * chunks) as u32, batch.sequences as u32);
        // SAFETY: the caller's, and the partial results were made large enough above.
        unsafe { launch.launch(LaunchConfig { grid_dim, block_dim: (32, WARPS, 1), shared_mem_bytes: 0 }) }?;

        let mut launch = device.stream().launch_builder(&self.merge);
        launch
            .arg(&count_word)
            .arg(&self.partials)
            .arg(&parts_word)
            .arg(values.signs)
            .arg(&is_rotated)
            .arg(out);
        // SAFETY: as above.
        unsafe { launch.launch(warps(count)) }?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_is_split_to_fill_the_device_but_not_below_a_page() {
        assert_eq!(split(132, 8 * 64, 32_768), 9);
        assert_eq!(split(132, 8, 32_768), 512, "one sequence: a page a warp");
        assert_eq!(split(132, 8, 100), 2);
        assert_eq!(split(132, 1_000_000, 32_768), 1);
        assert_eq!(split(132, 8, 0), 1, "no tokens still write their zeros");
    }

    #[test]
    fn every_shape_has_a_kernel() {
        let text = include_str!("../ptx/sm_90.ptx");
        let formats = [2, 3, 4, 8, page::T2, page::T3, page::T4];
        let pairs = formats.iter().flat_map(|&key| formats.map(|value| [key, value]));
        for pair in pairs.chain([[page::HALF_BITS; 2]]) {
            for (group, dim) in (1..=9).flat_map(|group| [64, 128, 256].map(|dim| (group, dim))) {
                let (name, heads) = kernel(pair, group, dim);
                assert!(text.contains(&format!(".entry {name}_d{dim}_r{heads}(")), "{pair:?} {group} {dim}");
            }
        }
        assert_eq!(kernel([4, 4], 1, 128), ("attend", 1));
        assert_eq!(kernel([4, 4], 8, 128), ("attend_tensor", 4));
        assert_eq!(kernel([2, 8], 1, 256), ("attend_tensor", 2));
        assert_eq!(kernel([4, page::T2], 3, 64), ("attend_trellis", 4));
    }

    #[test]
    fn launches_are_rounded_up_to_blocks() {
        assert_eq!(warps(1).grid_dim, (1, 1, 1));
        assert_eq!(warps(9).grid_dim, (3, 1, 1));
        assert_eq!(warps(9).block_dim, (32, WARPS, 1));
    }
}
