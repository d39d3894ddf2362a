//! The launches of [`Paged`], over memory of any owner: an engine's, by its address, or a cache's.

use super::attention::{Pool, Table};
use super::calls::{Gather, StoreCall, Target};
use super::{BlockTable, Paged, Pages};
use crate::GpuError;
use crate::device::Device;
use crate::launch::{Memory, launch, warps};
use cudarc::driver::LaunchConfig;
use tqkv_core::Effort;
use tqkv_gpu_kernels::args::{DecodePages, EncodeAppend, PlanParts};
use tqkv_gpu_kernels::{encode::element, page};

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

    /// Keys and values in f16, rotated as the codes are.
    pub(crate) fn exact_pools<'a>(&'a self, memory: [Memory<'a>; 2], strides: [u32; 2]) -> [Pool<'a>; 2] {
        self.pools(memory, strides).map(|pool| Pool { format: page::HALF_BITS, ..pool })
    }

    /// Encodes keys and values in one launch. Trellis encoders take several launches if the tokens do not fit
    /// their workspace.
    ///
    /// # Safety
    /// Every buffer is as large as its field says.
    pub(crate) unsafe fn launch_store(&self, device: &Device, of: StoreCall<'_>) -> Result<(), GpuError> {
        let StoreCall { rows, codes, exact, refused, .. } = of;
        let (heads, dim) = (self.layout.num_kv_heads, self.layout.head_dim);
        let mut targets: Vec<Target<'_>> = [codes].into_iter().chain(exact).collect();
        for first in (0..of.tokens).step_by(of.together) {
            let count = of.together.min(of.tokens - first);
            let sides = 2 * targets.len();
            let mut arguments = Vec::with_capacity(sides * EncodeAppend::<()>::PARAMETERS.len());
            for Target { places, pools, strides, pages, workspaces, outcomes } in &mut targets {
                let sides = pools.iter_mut().zip(workspaces).zip(outcomes).zip(&rows);
                for (side, (((pool, workspace), outcomes), (rows, kind))) in sides.enumerate() {
                    let coder = &self.coders[side];
                    let options = coder.codec.options();
                    let effort = Effort::ALL.iter().position(|&effort| effort == options.effort).unwrap_or(0);
                    arguments.extend(
                        EncodeAppend {
                            rows: rows.shared(first * heads * dim, element::bytes(*kind) as usize),
                            kind: *kind,
                            tokens: count as u32,
                            num_kv_heads: heads as u32,
                            signs: (&coder.signs).into(),
                            mode: u32::from(options.scale_mode.code()),
                            effort: effort as u32,
                            // A number of 64 bits is two words.
                            slots: places.shared(2 * first, 4),
                            pool: pool.again(),
                            stride: strides[side],
                            last_page: *pages as u32 - 1,
                            // Without one this memory is not used.
                            workspace: workspace
                                .as_mut()
                                .map_or_else(|| places.shared(0, 4), |workspace| workspace.again()),
                            outcome: outcomes.behind(first * heads, 4),
                            refused: refused.shared(0, 4),
                        }
                        .list(),
                    );
                }
            }
            let mut config = warps(count * heads)?;
            config.grid_dim.1 = sides as u32;
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
        let kernel = self.decode_exact.as_ref().filter(|_| of.is_exact).unwrap_or(&coder.decode);
        // SAFETY: the caller upholds the contract.
        unsafe { launch(device, kernel, arguments.list(), warps(of.tokens * heads)?) }
    }
}
