//! The last launch of attention, which merges the parts of each row.

use crate::GpuError;
use crate::device::Device;
use crate::launch::{Memory, TokenVectors, Vectors, launch};
use cudarc::driver::{CudaFunction, CudaSlice, LaunchConfig};
use tqkv_gpu_kernels::args::{AttendMerge, AttendMergeExact};
use tqkv_gpu_kernels::encode::element;

/// Exact tokens that rows see, as the model computed them.
pub struct SeenRows<'a> {
    /// `[num_kv_heads, head_places, head_dim]` of keys and of values.
    pub sides: [Memory<'a>; 2],
    /// The kernels' number for their element type.
    pub kind: u32,
    /// Places of a head.
    pub head_places: u32,
    /// The first of these, which may hold tokens.
    pub held: u32,
    /// `[rows, columns]` in i64.
    pub places: Memory<'a>,
    /// Places of a row.
    pub columns: u32,
}

/// What both merges read and write.
pub(super) struct Merge<'a> {
    pub(super) partials: Memory<'a>,
    pub(super) first_part: Memory<'a>,
    pub(super) signs: &'a CudaSlice<u32>,
    /// Query heads of all rows.
    pub(super) count: usize,
    pub(super) out: Vectors<'a>,
}

/// The kernels that merge.
#[derive(Debug)]
pub(super) struct Merges {
    plain: CudaFunction,
    /// The one that attends to exact rows and learned sinks too.
    exact: Option<CudaFunction>,
    num_kv_heads: u32,
    /// Query heads of a row.
    heads: u32,
}

impl Merges {
    pub(super) fn new(plain: CudaFunction, heads: [usize; 2]) -> Self {
        let [num_kv_heads, heads] = heads.map(|heads| heads as u32);
        Self { plain, exact: None, num_kv_heads, heads }
    }

    pub(super) fn with_rows(self, device: &Device, head_dim: usize) -> Result<Self, GpuError> {
        let [exact] = device.kernels([&format!("attend_merge_exact_d{head_dim}")])?;
        Ok(Self { exact: Some(exact), ..self })
    }

    /// # Safety
    /// The contract of [`Attention::run`](super::attention::Attention::run).
    pub(super) unsafe fn launch(
        &self,
        device: &Device,
        merge: Merge<'_>,
        is_rotated: bool,
        lse: Option<Memory<'_>>,
    ) -> Result<(), GpuError> {
        let (out, kind) = merge.out;
        let arguments = AttendMerge {
            count: merge.count as u32,
            heads: self.heads,
            partials: merge.partials,
            first_part: merge.first_part,
            signs: merge.signs.into(),
            rotated: u32::from(is_rotated),
            out,
            kind,
            has_lse: u32::from(lse.is_some()),
            // Without it this memory is not written.
            lse: lse.unwrap_or_else(|| merge.signs.into()),
        };
        // SAFETY: the caller upholds the contract.
        unsafe { launch(device, &self.plain, arguments.list(), alone(merge.count)) }
    }

    /// # Safety
    /// The contract of [`Attention::run`](super::attention::Attention::run).
    pub(super) unsafe fn launch_exact(
        &self,
        device: &Device,
        merge: Merge<'_>,
        (queries, factor): (TokenVectors<'_>, f32),
        rows: Option<SeenRows<'_>>,
        sinks: Option<Vectors<'_>>,
    ) -> Result<(), GpuError> {
        let Some(kernel) = &self.exact else { return Err(without_rows()) };
        // What is not there is not read, so any memory may stand for it.
        let nothing = || merge.signs.into();
        let rows = rows.unwrap_or_else(|| SeenRows {
            sides: [nothing(), nothing()],
            kind: element::F32,
            head_places: 0,
            held: 0,
            places: nothing(),
            columns: 0,
        });
        let ([keys, values], (out, kind)) = (rows.sides, merge.out);
        let has_sinks = u32::from(sinks.is_some());
        let (sinks, sink_kind) = sinks.unwrap_or_else(|| (nothing(), element::F32));
        let arguments = AttendMergeExact {
            count: merge.count as u32,
            heads: self.heads,
            partials: merge.partials,
            first_part: merge.first_part,
            signs: merge.signs.into(),
            queries: queries.memory,
            token_stride: queries.stride,
            query_kind: queries.kind,
            factor,
            num_kv_heads: self.num_kv_heads,
            keys,
            values,
            exact_kind: rows.kind,
            head_places: rows.head_places,
            held: rows.held,
            places: rows.places,
            columns: rows.columns,
            has_sinks,
            sinks,
            sink_kind,
            out,
            kind,
        };
        // SAFETY: the caller upholds the contract.
        unsafe { launch(device, kernel, arguments.list(), alone(merge.count)) }
    }
}

/// The error for exact rows where the kernels were made without them.
pub(super) fn without_rows() -> GpuError {
    GpuError::BadSpec(
        "exact rows and learned sinks are not valid here: expected kernels of Paged::with_rows".to_owned(),
    )
}

/// The grid of the merge. It has few warps, and they wait for memory. Each warp is a block, so that it can
/// have a multiprocessor for itself.
fn alone(count: usize) -> LaunchConfig {
    LaunchConfig { grid_dim: (count as u32, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 }
}
