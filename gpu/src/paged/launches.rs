//! The launches of [`Paged`], over memory of any owner: an engine's, by its address, or a cache's.

use super::attention::{Pool, Table};
use super::calls::{Gather, Store};
use super::{BlockTable, Paged, Pages};
use crate::GpuError;
use crate::device::Device;
use crate::launch::{Memory, launch, warps};
use cudarc::driver::LaunchConfig;
use tqkv_core::Effort;
use tqkv_gpu_kernels::args::{DecodePages, EncodeAppend, PlanParts};
use tqkv_gpu_kernels::encode::element;

impl Pages {
    /// The table of sequences in these pages.
    pub(super) fn table<'a>(&self, table: &BlockTable) -> Table<'a> {
        Table {
            memory: Memory::Raw(table.numbers.address),
            max_blocks: table.max_blocks,
            entries: table.numbers.len,
            shift: self.shift,
            pages: self.count,
        }
    }
}

impl Paged {
    /// Keys and values in the form that attention takes.
    pub(crate) fn pools<'a>(&'a self, memory: [Memory<'a>; 2], strides: [u32; 2]) -> [Pool<'a>; 2] {
        let [keys, values] = memory;
        [self.coders[0].pool(keys, strides[0]), self.coders[1].pool(values, strides[1])]
    }

    /// Encodes keys and values in one launch. Trellis encoders take several launches if the tokens do not fit
    /// their workspace.
    ///
    /// # Safety
    /// Every buffer is as large as its field says.
    pub(crate) unsafe fn launch_store(&self, device: &Device, of: Store<'_>) -> Result<(), GpuError> {
        let Store { mut rows, places, mut pools, mut workspaces, mut outcomes, refused, .. } = of;
        let (heads, dim) = (self.layout.num_kv_heads, self.layout.head_dim);
        for first in (0..of.tokens).step_by(of.together) {
            let count = of.together.min(of.tokens - first);
            let sides = rows.iter_mut().zip(&mut pools).zip(&mut workspaces).zip(&mut outcomes);
            let mut arguments = Vec::with_capacity(2 * EncodeAppend::<()>::PARAMETERS.len());
            for (side, (((rows, pool), workspace), outcomes)) in sides.enumerate() {
                let coder = &self.coders[side];
                let options = coder.codec.options();
                let effort = Effort::ALL.iter().position(|&effort| effort == options.effort).unwrap_or(0);
                let (rows, kind) = (&mut rows.0, rows.1);
                let values = first * heads * dim;
                arguments.extend(
                    EncodeAppend {
                        rows: rows.behind(values, element::bytes(kind) as usize),
                        kind,
                        tokens: count as u32,
                        num_kv_heads: heads as u32,
                        signs: (&coder.signs).into(),
                        mode: u32::from(options.scale_mode.code()),
                        effort: effort as u32,
                        // A number of 64 bits is two words.
                        slots: places.shared(2 * first, 4),
                        pool: pool.again(),
                        stride: of.strides[side],
                        last_page: of.pages as u32 - 1,
                        workspace: workspace.again(),
                        outcome: outcomes.behind(first * heads, 4),
                        refused: refused.shared(0, 4),
                    }
                    .list(),
                );
            }
            let mut config = warps(count * heads)?;
            config.grid_dim.1 = 2;
            // SAFETY: the caller upholds the contract. Each side's workspace has room for the vectors of one
            // launch, and launches run in order.
            unsafe { launch(device, &self.encode, arguments, config) }?;
        }
        Ok(())
    }

    /// Makes the plan of `rows` query tokens, `queries` of each sequence.
    ///
    /// # Safety
    /// `lengths` and `starts` have a word of each sequence, and `plan` the words of a plan of all entries.
    pub(super) unsafe fn launch_plan(
        &self,
        device: &Device,
        lengths: Memory<'_>,
        (starts, has_starts): (Memory<'_>, bool),
        (rows, queries): (usize, usize),
        max_tokens: usize,
        plan: Memory<'_>,
    ) -> Result<(), GpuError> {
        let limits = self.attention.limits();
        let arguments = PlanParts {
            lengths,
            starts,
            has_starts: u32::from(has_starts),
            rows: rows as u32,
            queries: queries as u32,
            most_tokens: max_tokens.min(1 << 30) as u32,
            multiprocessors: limits.multiprocessors,
            blocks: limits.blocks,
            warps: limits.warps,
            stride: limits.stride,
            entries: self.attention.most_parts(rows) as u32,
            words: plan,
        };
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the caller upholds the contract.
        unsafe { launch(device, &self.attention.plan, arguments.list(), config) }
    }

    /// Decodes rows of one side.
    ///
    /// # Safety
    /// Every buffer is as large as its field says.
    pub(crate) unsafe fn launch_gather(
        &self,
        device: &Device,
        side: usize,
        of: Gather<'_>,
    ) -> Result<(), GpuError> {
        let (coder, heads) = (&self.coders[side], self.layout.num_kv_heads);
        let (out, kind) = of.out;
        let arguments = DecodePages {
            pool: of.pool,
            stride: of.stride,
            last_page: of.table.pages as u32 - 1,
            page_table: of.table.memory,
            max_pages: of.table.max_blocks as u32,
            last_entry: of.table.entries as u32 - 1,
            shift: of.table.shift,
            offsets: of.offsets,
            lengths: of.lengths,
            sequences: of.sequences as u32,
            tokens: of.tokens as u32,
            num_kv_heads: heads as u32,
            signs: (&coder.signs).into(),
            out,
            kind,
        };
        // SAFETY: the caller upholds the contract.
        unsafe { launch(device, &coder.decode, arguments.list(), warps(of.tokens * heads)?) }
    }
}
