//! One call of decode attention over pages: it rotates the queries, attends over parts of each sequence, and
//! merges the parts. Where a cache has exact tokens, a second kernel writes their parts.

use super::merge::{Merge, Merges, SeenRows};
use crate::GpuError;
use crate::device::Device;
use crate::launch::{Memory, TokenVectors, Vectors, WARPS, launch, warps};
use crate::parts::{Cut, Parts, parts};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaFunction, CudaSlice, CudaView, LaunchConfig, sys};
use std::ops::Range;
use tqkv_gpu_kernels::args::{Attend, RotateQueries};
use tqkv_gpu_kernels::attend::{PARTIAL_HEADER, kernel};
use tqkv_gpu_kernels::plan::Limits;
use tqkv_gpu_kernels::{encode::element, page};

/// Keys or values of one layer, as the kernel takes them.
pub struct Pool<'a> {
    /// The pages.
    pub memory: Memory<'a>,
    /// Bytes from a page to the next.
    pub stride: u32,
    /// The result of [`page::format`] for the codec's layout, or [`page::HALF_BITS`].
    pub format: u32,
    /// The result of [`tqkv_gpu_kernels::tables::tables`].
    pub levels: &'a CudaSlice<u32>,
    /// Sign words of the rotation.
    pub signs: &'a CudaSlice<u32>,
}

/// The pages of sequences.
pub struct Table<'a> {
    /// `[sequences, max_blocks]` in i32: numbers of blocks. A block is `1 << shift` pages, one after the other.
    pub memory: Memory<'a>,
    /// Entries of the table per sequence.
    pub max_blocks: usize,
    /// Entries of the table, at least one.
    pub entries: usize,
    /// The logarithm of the pages of a block, to base 2.
    pub shift: u32,
    /// Pages of the pool, at least one.
    pub pages: usize,
}

/// Pages that one kernel of attention reads, and their part of the work.
pub struct Source<'a> {
    /// Keys and values.
    pub pools: [Pool<'a>; 2],
    /// The pages of sequences.
    pub table: Table<'a>,
    /// What each row reads.
    pub plan: Plan<'a>,
}

/// Words on the device that kernels read.
#[derive(Clone, Copy)]
pub enum Words<'a> {
    /// Words of a buffer.
    View(&'a CudaView<'a, u32>),
    /// The address of memory that another library owns.
    Raw(CUdeviceptr),
}

impl Words<'_> {
    /// The words after the first `start`.
    fn behind(&self, start: usize) -> Memory<'_> {
        match self {
            Self::View(view) => view.slice(start..).into(),
            Self::Raw(address) => Memory::Raw(address + 4 * start as CUdeviceptr),
        }
    }
}

/// The rows of a launch, and their parts: the sequence of each row, the tokens that it sees, and
/// [`Parts::words`]. A row is a query token.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    /// The words.
    pub words: Words<'a>,
    /// Number of rows.
    pub rows: usize,
    /// Entries in the list of parts.
    pub entries: usize,
}

impl Plan<'_> {
    /// Number of words.
    pub const fn len(rows: usize, entries: usize) -> usize {
        3 * rows + 1 + 3 * entries
    }

    fn sequences(&self) -> Memory<'_> {
        self.words.behind(0)
    }

    fn lengths(&self) -> Memory<'_> {
        self.words.behind(self.rows)
    }

    fn first_parts(&self) -> Memory<'_> {
        self.words.behind(2 * self.rows)
    }

    fn list(&self) -> Memory<'_> {
        self.words.behind(3 * self.rows + 1)
    }
}

/// What a call of attention does apart from attention to codes.
#[derive(Default)]
pub struct Also<'a> {
    /// Pages of f16 rows, which are the other entries of the list.
    pub pages: Option<Source<'a>>,
    /// Exact tokens.
    pub rows: Option<SeenRows<'a>>,
    /// `[num_heads]`: learned sinks.
    pub sinks: Option<Vectors<'a>>,
    /// `[rows, num_heads]` in f32, written: the natural logarithms of the sums of the exponentials of the logits of
    /// codes and pages. It is minus infinity for a row that sees none of them.
    pub lse: Option<Memory<'a>>,
    /// The factor of logits, if it is not 1/sqrt(head_dim).
    pub scale: Option<f32>,
}

/// Memory of a call of attention: rotated queries, and partial results.
pub struct Scratch<'a> {
    /// As many f32 as the queries have values.
    pub rotated: Memory<'a>,
    /// [`Attention::partials`] f32.
    pub partials: Memory<'a>,
}

/// Buffers of calls of attention, which grow.
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

/// A kernel of attention.
#[derive(Debug)]
struct Reader {
    function: CudaFunction,
    /// Warps of a part.
    warps: u32,
    /// The prefetch: the argument of [`Attend`].
    ahead: u32,
}

/// The kernels of attention for one shape of heads.
#[derive(Debug)]
pub struct Attention {
    rotate: CudaFunction,
    attend: Reader,
    /// The kernel of exact tokens, and its entries for each row in the list of parts.
    exact: Option<(Reader, usize)>,
    merges: Merges,
    /// Makes a plan on the device.
    pub(super) plan: CudaFunction,
    limits: Limits,
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
        let names =
            [&format!("rotate_queries_d{head_dim}"), &format!("attend_merge_d{head_dim}"), "plan_parts"];
        let [rotate, merge, plan] = device.kernels(names)?;
        let mut attend = Reader::new(device, (num_kv_heads, group), head_dim, formats)?;
        let blocks = attend.function.occupancy_max_active_blocks_per_multiprocessor(32 * WARPS, 0, None)?;
        let heads = num_kv_heads * group;
        let limits = Limits {
            multiprocessors: device.multiprocessors() as u32,
            blocks,
            warps: attend.warps,
            stride: (4 * heads * (PARTIAL_HEADER as usize + head_dim)) as u32,
        };
        let head_bytes = formats.map(|format| page::head_bytes(head_dim as u32, page::bits(format)) as usize);
        attend.ahead = ahead(limits.resident() as usize, head_bytes, device.l2_bytes()?);
        Ok(Self {
            rotate,
            attend,
            exact: None,
            merges: Merges::new(merge, [num_kv_heads, heads]),
            plan,
            limits,
            num_kv_heads,
            group,
            head_dim,
            cut: None,
        })
    }

    /// Loads the merge with exact rows and learned sinks too.
    pub(crate) fn with_rows(mut self, device: &Device) -> Result<Self, GpuError> {
        self.merges = self.merges.with_rows(device, self.head_dim)?;
        Ok(self)
    }

    /// Loads the kernel of exact tokens too. Each row has `entries` entries of it in the list of parts.
    pub(crate) fn with_exact(mut self, device: &Device, entries: usize) -> Result<Self, GpuError> {
        let heads = (self.num_kv_heads, self.group);
        self.exact = Some((Reader::new(device, heads, self.head_dim, [page::HALF_BITS; 2])?, entries));
        Ok(self)
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
        device.grow(&mut work.rotated, count * self.head_dim)?;
        let out = (&mut work.rotated).into();
        let queries = TokenVectors { memory: queries, stride: 0, kind: element::F32 };
        // SAFETY: the caller upholds the same contract, and `rotated` was made large enough above.
        unsafe { self.launch_rotation(device, out, queries, rotation, (count, count)) }?;
        Ok(&work.rotated)
    }

    /// # Safety
    /// The contract of [`Attention::rotate`], for queries of `heads` heads of each token. `out` has `count` vectors of
    /// f32.
    unsafe fn launch_rotation(
        &self,
        device: &Device,
        out: Memory<'_>,
        queries: TokenVectors<'_>,
        (signs, is_rotated, factor): (&CudaSlice<u32>, u32, f32),
        (count, heads): (usize, usize),
    ) -> Result<(), GpuError> {
        let arguments = RotateQueries {
            queries: queries.memory,
            token_stride: queries.stride,
            heads: heads as u32,
            kind: queries.kind,
            count: count as u32,
            signs: signs.into(),
            rotated: is_rotated,
            factor,
            out,
        };
        // SAFETY: the caller upholds the contract.
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
            registers: self.attend.function.get_attribute(CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: self.attend.function.get_attribute(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        })
    }

    /// The parts of rows that see these tokens. With `is_fixed` their number depends on the number of rows alone.
    pub fn parts(&self, rows: &[Range<usize>], is_fixed: bool) -> Parts {
        parts(self.limits, rows, self.exact_entries(), is_fixed, self.cut)
    }

    /// Entries of exact tokens for each row in the list of parts.
    pub(crate) fn exact_entries(&self) -> usize {
        self.exact.as_ref().map_or(0, |(_, entries)| *entries)
    }

    /// What a launch of parts takes at once.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Most parts of a launch of `rows` rows.
    pub(crate) fn most_parts(&self, rows: usize) -> usize {
        self.limits.most_parts(rows as u32) as usize + rows * self.exact_entries()
    }

    /// Query heads of a row.
    fn heads(&self) -> usize {
        self.num_kv_heads * self.group
    }

    /// Floats of the partial results of a list of `entries` parts.
    pub fn partials(&self, entries: usize) -> usize {
        entries * self.heads() * (PARTIAL_HEADER as usize + self.head_dim)
    }

    /// Uses this cut for all later launches.
    pub(crate) fn set_cut(&mut self, cut: Option<Cut>) {
        self.cut = cut;
    }

    /// Makes room in `work` for launches of up to `rows` rows.
    pub(crate) fn reserve(&self, device: &Device, work: &mut Work, rows: usize) -> Result<(), GpuError> {
        self.scratch(device, work, rows, self.most_parts(rows)).map(|_| ())
    }

    /// The buffers of a launch of `rows` rows and `entries` parts.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], or the errors of the driver.
    pub fn scratch<'w>(
        &self,
        device: &Device,
        work: &'w mut Work,
        rows: usize,
        entries: usize,
    ) -> Result<Scratch<'w>, GpuError> {
        device.grow(&mut work.partials, self.partials(entries))?;
        device.grow(&mut work.rotated, rows * self.heads() * self.head_dim)?;
        Ok(Scratch { rotated: (&mut work.rotated).into(), partials: (&mut work.partials).into() })
    }

    /// Attends with the query tokens of a plan. `queries` and `out` are `[rows, num_heads, head_dim]`. A row
    /// that sees no token gets zeros.
    ///
    /// # Errors
    /// [`GpuError::BadSpec`] if the kernels were not made for rows or sinks, or the errors of the driver.
    ///
    /// # Safety
    /// Every buffer is as large as its shape says, and the plan was made for these rows and entries.
    pub unsafe fn run(
        &self,
        device: &Device,
        scratch: Scratch<'_>,
        mut queries: TokenVectors<'_>,
        source: Source<'_>,
        also: Also<'_>,
        out: Vectors<'_>,
    ) -> Result<(), GpuError> {
        let Scratch { mut rotated, mut partials } = scratch;
        let (heads, plan, signs) =
            (self.heads(), source.plan, source.pools.each_ref().map(|pool| pool.signs));
        let count = plan.rows * heads;
        let is_rotated = source.pools[0].format != page::HALF_BITS;
        let factor = self.factor(also.scale);
        let of_rotation = if is_rotated { factor / self.head_dim as f32 } else { factor };
        let rotation = (signs[0], u32::from(is_rotated), of_rotation);
        let again = TokenVectors { memory: queries.memory.again(), ..queries };
        // SAFETY: the caller upholds the contract of `run`, which covers the queries, the signs and `rotated`.
        unsafe { self.launch_rotation(device, rotated.again(), again, rotation, (count, heads)) }?;
        let pages = also.pages.zip(self.exact.as_ref()).map(|(source, (reader, _))| (source, reader));
        for (source, reader) in [(source, &self.attend)].into_iter().chain(pages) {
            // SAFETY: the caller upholds the contract of `run` for each source.
            unsafe { self.launch_reader(device, reader, source, rotated.again(), partials.again()) }?;
        }
        let merge = Merge { partials, first_part: plan.first_parts(), signs: signs[1], count, out };
        // SAFETY: the caller upholds the contract of `run`.
        unsafe {
            if also.rows.is_some() || also.sinks.is_some() {
                self.merges.launch_exact(device, merge, (queries, factor), also.rows, also.sinks)
            } else {
                self.merges.launch(device, merge, is_rotated, also.lse)
            }
        }
    }

    /// The factor of the products of queries and keys that makes them logits in log2 units.
    fn factor(&self, scale: Option<f32>) -> f32 {
        scale.unwrap_or_else(|| 1.0 / (self.head_dim as f32).sqrt()) * std::f32::consts::LOG2_E
    }

    /// Writes the partial results of the entries of a source.
    ///
    /// # Safety
    /// The contract of [`Attention::run`].
    unsafe fn launch_reader(
        &self,
        device: &Device,
        reader: &Reader,
        Source { pools: [keys, values], table, plan }: Source<'_>,
        rotated: Memory<'_>,
        partials: Memory<'_>,
    ) -> Result<(), GpuError> {
        let arguments = Attend {
            parts: plan.entries as u32,
            list: plan.list(),
            queries: rotated,
            num_kv_heads: self.num_kv_heads as u32,
            group: self.group as u32,
            keys: keys.memory,
            key_stride: keys.stride,
            key_format: keys.format,
            key_levels: keys.levels.into(),
            values: values.memory,
            value_stride: values.stride,
            value_format: values.format,
            value_levels: values.levels.into(),
            ahead: reader.ahead,
            last_page: table.pages as u32 - 1,
            page_table: table.memory,
            max_pages: table.max_blocks as u32,
            last_entry: table.entries as u32 - 1,
            shift: table.shift,
            sequence_of: plan.sequences(),
            lengths: plan.lengths(),
            partials,
        };
        let warps_a_block = self.cut.map_or(WARPS, Cut::warps);
        let grid_dim = ((plan.entries as u32).div_ceil(warps_a_block), reader.warps, 1);
        let config = LaunchConfig { grid_dim, block_dim: (32, warps_a_block, 1), shared_mem_bytes: 0 };
        // SAFETY: the caller upholds the contract.
        unsafe { launch(device, &reader.function, arguments.list(), config) }
    }
}

impl Reader {
    /// Loads the kernel for keys and values of these formats. It prefetches nothing.
    fn new(
        device: &Device,
        (num_kv_heads, group): (usize, usize),
        head_dim: usize,
        formats: [u32; 2],
    ) -> Result<Self, GpuError> {
        let (name, heads_a_warp) = kernel(formats, group as u32, head_dim);
        let function = device.attention(&format!("{name}_d{head_dim}_r{heads_a_warp}"), formats)?;
        let warps = (num_kv_heads * group.div_ceil(heads_a_warp as usize)) as u32;
        Ok(Self { function, warps, ahead: 0 })
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
        let text = include_str!("../../ptx/sm_80.ptx");
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
        assert_eq!(of(CodecId::S4, CodecId::S3, 1), ("attend_tensor", 4));
        assert_eq!(of(CodecId::S4, CodecId::T4, 1), ("attend", 1));
        assert_eq!(of(CodecId::S2, CodecId::I8, 5), ("attend_tensor", 8));
        assert_eq!(of(CodecId::S4, CodecId::T2, 3), ("attend_trellis", 4));
        assert_eq!(kernel([page::HALF_BITS; 2], 1, 128), ("attend_f16", 1));
    }
}
