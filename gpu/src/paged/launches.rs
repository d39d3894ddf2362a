//! The launches of [`Paged`], over memory of any owner: an engine's, by its address, or a cache's.

use super::attention::{Pool, Table};
use super::calls::{Gather, Kept, StoreCall, Target};
use super::{BlockTable, Paged, Pages};
use crate::GpuError;
use crate::device::Device;
use crate::launch::{Memory, TokenVectors, launch, warps};
use cudarc::driver::LaunchConfig;
use std::ops::Range;
use tqkv_core::Effort;
use tqkv_gpu_kernels::args::{Argument, DecodePages, EncodeAppend, KeepRows, PlanParts};
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

impl TokenVectors<'_> {
    /// The vectors of token `token` and those after it.
    fn behind(&self, token: usize) -> Memory<'_> {
        self.memory.shared(token * self.stride as usize, element::bytes(self.kind) as usize)
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

    /// Encodes keys and values in one launch, and copies what is kept as it is. Trellis encoders take several launches
    /// if the tokens do not fit their workspace.
    ///
    /// # Safety
    /// Every buffer is as large as its field says.
    pub(crate) unsafe fn launch_store(&self, device: &Device, of: StoreCall<'_>) -> Result<(), GpuError> {
        let StoreCall { rows, codes, exact, mut kept, refused, .. } = of;
        let mut targets: Vec<Target<'_>> = [codes].into_iter().chain(exact).collect();
        let sides = 2 * (targets.len() + usize::from(kept.is_some()));
        for first in (0..of.tokens).step_by(of.together) {
            let tokens = first..of.tokens.min(first + of.together);
            let mut arguments = Vec::with_capacity(sides * EncodeAppend::<()>::PARAMETERS.len());
            for target in &mut targets {
                self.encode(&rows, target, &refused, &tokens, &mut arguments);
            }
            if let Some(kept) = &mut kept {
                self.keep(&rows, kept, &tokens, &mut arguments);
            }
            let mut config = warps(tokens.len() * self.layout.num_kv_heads)?;
            config.grid_dim.1 = sides as u32;
            // SAFETY: the caller upholds the contract. Each side's workspace has room for the vectors of one
            // launch, and launches run in order.
            unsafe { launch(device, &self.encode, arguments, config) }?;
        }
        Ok(())
    }

    /// Adds the arguments that encode both sides of these tokens.
    fn encode<'a>(
        &'a self,
        rows: &'a [TokenVectors<'_>; 2],
        target: &'a mut Target<'_>,
        refused: &'a Memory<'_>,
        tokens: &Range<usize>,
        arguments: &mut Vec<Argument<Memory<'a>>>,
    ) {
        let Target { places, pools, strides, pages, workspaces, outcomes } = target;
        let heads = self.layout.num_kv_heads;
        let sides = pools.iter_mut().zip(workspaces).zip(outcomes).zip(rows).zip(&self.coders);
        for (((((pool, workspace), outcomes), rows), coder), stride) in sides.zip(*strides) {
            let options = coder.codec.options();
            let effort = Effort::ALL.iter().position(|&effort| effort == options.effort).unwrap_or(0);
            let side = EncodeAppend {
                rows: rows.behind(tokens.start),
                token_stride: rows.stride,
                kind: rows.kind,
                tokens: tokens.len() as u32,
                num_kv_heads: heads as u32,
                signs: (&coder.signs).into(),
                mode: u32::from(options.scale_mode.code()),
                effort: effort as u32,
                // A number of 64 bits is two words.
                slots: places.shared(2 * tokens.start, 4),
                pool: pool.again(),
                stride,
                last_page: *pages as u32 - 1,
                // Without one this memory is not used.
                workspace: workspace
                    .as_mut()
                    .map_or_else(|| places.shared(0, 4), |workspace| workspace.again()),
                outcome: outcomes.behind(tokens.start * heads, 4),
                refused: refused.shared(0, 4),
            };
            arguments.extend(side.list());
        }
    }

    /// Adds the arguments that copy both sides of these tokens.
    fn keep<'a>(
        &self,
        rows: &'a [TokenVectors<'_>; 2],
        kept: &'a mut Kept<'_>,
        tokens: &Range<usize>,
        arguments: &mut Vec<Argument<Memory<'a>>>,
    ) {
        for (pool, rows) in kept.sides.iter_mut().zip(rows) {
            let side = KeepRows {
                rows: rows.behind(tokens.start),
                token_stride: rows.stride,
                kind: rows.kind,
                tokens: tokens.len() as u32,
                num_kv_heads: self.layout.num_kv_heads as u32,
                places: kept.places.shared(2 * tokens.start, 4),
                pool: pool.again(),
                head_places: kept.head_places,
                held: kept.held,
            };
            arguments.extend(side.list());
        }
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
