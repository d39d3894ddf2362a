//! One call of decode attention over pages: it rotates the queries, attends over parts of each sequence, and
//! merges the parts.

use crate::GpuError;
use crate::device::Device;
use crate::launch::{Memory, WARPS, launch, warps};
use crate::parts::{Cut, Limits, Parts};
use cudarc::driver::{CudaFunction, CudaSlice, CudaView, LaunchConfig, sys};
use tqkv_gpu_kernels::args::{Attend, AttendMerge, RotateQueries};
use tqkv_gpu_kernels::attend::{PARTIAL_HEADER, kernel};
use tqkv_gpu_kernels::{encode::element, page};

/// Keys or values of one layer, as the kernel takes them.
#[derive(Clone, Copy, Debug)]
pub struct Pool<'a> {
    /// The pages.
    pub memory: &'a CudaSlice<u8>,
    /// The result of [`page::format`] for the codec's layout, or [`page::HALF_BITS`].
    pub format: u32,
    /// The result of [`tqkv_gpu_kernels::tables::tables`].
    pub levels: &'a CudaSlice<u32>,
    /// Sign words of the rotation.
    pub signs: &'a CudaSlice<u32>,
}

/// The rows of a batch of query tokens, and the pages that they read.
pub struct Batch<'a> {
    /// Page numbers, `[sequences, max_pages]`.
    pub table: &'a CudaSlice<u32>,
    /// Entries per sequence.
    pub max_pages: usize,
    /// The sequence of each row.
    pub sequence_of: CudaView<'a, u32>,
    /// Number of tokens of its sequence that each row sees.
    pub lengths: CudaView<'a, u32>,
    /// Number of rows. A row is a query token.
    pub rows: usize,
    /// [`Parts::words`] of the rows' lengths.
    pub parts: CudaView<'a, u32>,
    /// [`Parts::entries`].
    pub entries: usize,
}

/// Vectors on the device, and the kernels' number for their element type.
pub type Vectors<'a> = (Memory<'a>, u32);

/// Buffers of a call of attention: rotated queries and partial results.
#[derive(Debug)]
pub struct Work {
    rotated: CudaSlice<f32>,
    partials: CudaSlice<f32>,
}

impl Work {
    /// Makes buffers that grow with the calls.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn new(device: &Device) -> Result<Self, GpuError> {
        Ok(Self { rotated: device.zeros(1)?, partials: device.zeros(1)? })
    }
}

/// Registers and local memory that the driver's compiler gave to the attention kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Registers per thread.
    pub registers: i32,
    /// Bytes of local memory per thread. There are some if registers did not suffice.
    pub local_bytes: i32,
}

/// The kernels of attention for one shape of heads.
#[derive(Debug)]
pub struct Attention {
    rotate: CudaFunction,
    attend: CudaFunction,
    merge: CudaFunction,
    limits: Limits,
    /// The prefetch of the attention kernel: the argument of [`Attend`].
    ahead: u32,
    num_kv_heads: usize,
    group: usize,
    head_dim: usize,
    /// The cut that every launch uses; `None` picks the best cut per launch.
    cut: Option<Cut>,
}

impl Attention {
    /// Loads the kernels for keys and values of these formats.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn new(
        device: &Device,
        num_kv_heads: usize,
        group: usize,
        head_dim: usize,
        formats: [u32; 2],
    ) -> Result<Self, GpuError> {
        let (name, heads_a_warp) = kernel(formats, group as u32, head_dim);
        let heads_a_warp = heads_a_warp as usize;
        let name = format!("{name}_d{head_dim}_r{heads_a_warp}");
        let [rotate, merge] =
            device.kernels([&format!("rotate_queries_d{head_dim}"), &format!("attend_merge_d{head_dim}")])?;
        let attend = device.attention(&name, formats)?;
        let blocks = attend.occupancy_max_active_blocks_per_multiprocessor(32 * WARPS, 0, None)?;
        let heads = num_kv_heads * group;
        let limits = Limits {
            multiprocessors: device.multiprocessors(),
            blocks: blocks as usize,
            warps: num_kv_heads * group.div_ceil(heads_a_warp),
            stride: 4 * heads * (PARTIAL_HEADER as usize + head_dim),
        };
        let head_bytes = formats.map(|format| page::head_bytes(head_dim as u32, page::bits(format)) as usize);
        let ahead = ahead(limits.resident(), head_bytes, device.l2_bytes()?);
        Ok(Self { rotate, attend, merge, limits, ahead, num_kv_heads, group, head_dim, cut: None })
    }

    /// Rotates `count` queries and multiplies them by `factor`. The result is valid until the next call with
    /// this `work`.
    ///
    /// # Safety
    /// `queries` holds `count` vectors of f32. `signs` holds the sign words of their head dim.
    pub(crate) unsafe fn rotate<'w>(
        &self,
        device: &Device,
        work: &'w mut Work,
        queries: Memory<'_>,
        signs: &CudaSlice<u32>,
        count: usize,
        factor: f32,
    ) -> Result<&'w CudaSlice<f32>, GpuError> {
        let rotation = (signs, 1, factor);
        // SAFETY: the caller upholds the same contract.
        unsafe { self.launch_rotation(device, work, (queries, element::F32), rotation, count) }?;
        Ok(&work.rotated)
    }

    /// # Safety
    /// The contract of [`Attention::rotate`].
    unsafe fn launch_rotation(
        &self,
        device: &Device,
        work: &mut Work,
        (queries, kind): Vectors<'_>,
        (signs, is_rotated, factor): (&CudaSlice<u32>, u32, f32),
        count: usize,
    ) -> Result<(), GpuError> {
        device.grow(&mut work.rotated, count * self.head_dim)?;
        let arguments = RotateQueries {
            queries,
            kind,
            count: count as u32,
            signs: signs.into(),
            rotated: is_rotated,
            factor,
            out: Memory::from(&mut work.rotated),
        };
        // SAFETY: the caller upholds the contract, and `rotated` was made large enough above.
        unsafe { launch(device, &self.rotate, arguments.list(), warps(count)?) }
    }

    /// Registers and local memory of the attention kernel.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn resources(&self) -> Result<Resources, GpuError> {
        use sys::CUfunction_attribute_enum::{
            CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, CU_FUNC_ATTRIBUTE_NUM_REGS,
        };
        Ok(Resources {
            registers: self.attend.get_attribute(CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: self.attend.get_attribute(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        })
    }

    /// The parts of rows of these lengths. With `is_fixed` their number depends on the number of rows alone.
    pub fn parts(&self, lengths: &[usize], is_fixed: bool) -> Parts {
        self.limits.parts(lengths, is_fixed, self.cut)
    }

    /// Most parts of a launch of `rows` rows.
    pub(crate) fn most_parts(&self, rows: usize) -> usize {
        self.limits.most_parts(rows)
    }

    /// Uses this cut for all later launches.
    pub(crate) fn set_cut(&mut self, cut: Option<Cut>) {
        self.cut = cut;
    }

    /// Makes room in `work` for launches of up to `rows` rows.
    pub(crate) fn reserve(&self, device: &Device, work: &mut Work, rows: usize) -> Result<(), GpuError> {
        let heads = self.num_kv_heads * self.group;
        let partials = self.most_parts(rows) * heads * (PARTIAL_HEADER as usize + self.head_dim);
        device.grow(&mut work.partials, partials)?;
        device.grow(&mut work.rotated, rows * heads * self.head_dim)
    }

    /// Attends with the query tokens of a batch. `queries` and `out` are `[rows, num_heads, head_dim]`. A row
    /// that sees no token gets zeros.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], or the errors of the driver.
    ///
    /// # Safety
    /// Every buffer is as large as its shape says, and every page number in use is inside the pools.
    pub unsafe fn run(
        &self,
        device: &Device,
        work: &mut Work,
        queries: Vectors<'_>,
        [keys, values]: [Pool<'_>; 2],
        batch: Batch<'_>,
        (out, kind): Vectors<'_>,
    ) -> Result<(), GpuError> {
        let dim = self.head_dim;
        let (heads, entries) = (self.num_kv_heads * self.group, batch.entries);
        let count = batch.rows * heads;
        device.grow(&mut work.partials, entries * heads * (PARTIAL_HEADER as usize + dim))?;

        let is_rotated = u32::from(keys.format != page::HALF_BITS);
        let scale = if is_rotated == 0 { 1.0 } else { 1.0 / dim as f32 };
        let factor = scale / (dim as f32).sqrt() * std::f32::consts::LOG2_E;
        // SAFETY: the caller upholds the contract of `run`, which covers the queries and the signs.
        unsafe { self.launch_rotation(device, work, queries, (keys.signs, is_rotated, factor), count) }?;

        let arguments = Attend {
            parts: entries as u32,
            list: batch.parts.slice(batch.rows + 1..).into(),
            queries: Memory::from(&work.rotated),
            num_kv_heads: self.num_kv_heads as u32,
            group: self.group as u32,
            keys: keys.memory.into(),
            key_format: keys.format,
            key_levels: keys.levels.into(),
            values: values.memory.into(),
            value_format: values.format,
            value_levels: values.levels.into(),
            ahead: self.ahead,
            page_table: batch.table.into(),
            max_pages: batch.max_pages as u32,
            sequence_of: batch.sequence_of.into(),
            lengths: batch.lengths.into(),
            partials: (&mut work.partials).into(),
        };
        let warps_a_block = self.cut.map_or(WARPS, Cut::warps);
        let grid_dim = ((entries as u32).div_ceil(warps_a_block), self.limits.warps as u32, 1);
        let config = LaunchConfig { grid_dim, block_dim: (32, warps_a_block, 1), shared_mem_bytes: 0 };
        // SAFETY: the caller upholds the contract, and `partials` was made large enough above.
        unsafe { launch(device, &self.attend, arguments.list(), config) }?;

        let arguments = AttendMerge {
            count: count as u32,
            heads: heads as u32,
            partials: Memory::from(&work.partials),
            first_part: batch.parts.slice(..batch.rows + 1).into(),
            signs: values.signs.into(),
            rotated: is_rotated,
            out,
            kind,
        };
        // SAFETY: the caller upholds the contract, and `partials` was made large enough above.
        unsafe { launch(device, &self.merge, arguments.list(), alone(count)) }
    }
}

/// The prefetch of the attention kernel, one page ahead: 0 is nothing, 1 is keys, 2 is keys and values. Each
/// of `resident` warps reads a page while the next one arrives. Both must fit half of the second-level cache:
/// it may hold what it has for each half of the device. Else pages leave the cache before they are read, and
/// are fetched twice.
pub fn ahead(resident: usize, [key, value]: [usize; 2], l2_bytes: usize) -> u32 {
    let fits = |next: usize| resident * (key + value + next) <= l2_bytes / 2;
    if fits(key + value) { 2 } else { u32::from(fits(key)) }
}

/// The grid of the merge. It has few warps, and they wait for memory. Each warp is a block, so that it can
/// have a multiprocessor for itself.
fn alone(count: usize) -> LaunchConfig {
    LaunchConfig { grid_dim: (count as u32, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tqkv_core::CodecId;
    use tqkv_gpu_kernels::codecs::{CODECS, HEAD_DIMS};

    /// The choices that were the fastest on an H100 (M14). For `s3` only one of them was timed.
    #[test]
    fn pages_are_prefetched_if_two_of_each_warp_fit_half_of_the_cache() {
        let (multiprocessors, l2_bytes) = (132, 50 << 20);
        for (warps, dim, bits, expected) in [
            (12, 128, 2, 2),
            (12, 128, 3, 2),
            (12, 128, 4, 1),
            (12, 128, 8, 0),
            (8, 128, 4, 2),
            (8, 128, 8, 0),
            (16, 64, 4, 2),
            (8, 256, 2, 2),
            (8, 256, 4, 0),
        ] {
            let bytes = page::head_bytes(dim, bits) as usize;
            assert_eq!(
                ahead(multiprocessors * warps, [bytes; 2], l2_bytes),
                expected,
                "{warps} {dim} {bits}"
            );
        }
        assert_eq!(ahead(1, [1, 1], 0), 0, "a device without such a cache");
    }

    #[test]
    fn every_shape_has_a_kernel() {
        let text = include_str!("../ptx/sm_80.ptx");
        let formats = CODECS.map(|id| page::format(id.layout()));
        let pairs = formats.iter().flat_map(|&key| formats.map(|value| [key, value]));
        for pair in pairs.chain([[page::HALF_BITS; 2]]) {
            for (group, dim) in (1..=9).flat_map(|group| HEAD_DIMS.map(|dim| (group, dim))) {
                let (name, heads) = kernel(pair, group, dim);
                assert!(text.contains(&format!(".entry {name}_d{dim}_r{heads}(")), "{pair:?} {group} {dim}");
            }
        }
        let of = |key: CodecId, value: CodecId, group| {
            kernel([key, value].map(|id| page::format(id.layout())), group, 128)
        };
        assert_eq!(of(CodecId::S4, CodecId::N4, 1), ("attend_tensor", 4));
        assert_eq!(of(CodecId::S4, CodecId::T4, 1), ("attend", 1));
        assert_eq!(of(CodecId::S2, CodecId::I8, 5), ("attend_tensor", 8));
        assert_eq!(of(CodecId::S4, CodecId::T2, 3), ("attend_trellis", 4));
        assert_eq!(kernel([page::HALF_BITS; 2], 1, 128), ("attend_f16", 1));
    }
}
