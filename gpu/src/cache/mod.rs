//! [`GpuCache`]: paged keys and values of many sequences in device memory.

mod append;
mod attend;
mod buffers;
mod encode;
mod exact_pages;
mod read;
mod step;
mod tokens;

use crate::GpuError;
use crate::current::{Current, Restore};
use crate::device::Device;
use crate::launch::TokenVectors;
use crate::paged::attention::Table;
use crate::paged::{Exact, Paged};
use crate::pages::PageTable;
use crate::rows::Rows;
use crate::spec::GpuSpec;
use crate::staging::Staging;
use buffers::{Buffers, Use};
use cudarc::driver::{CudaSlice, sys};
use exact_pages::{ExactPages, Token};
use tokens::{Lists, Step, WordBuffer};

/// Contents and memory of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuStats {
    /// Tokens of all sequences in layer 0.
    pub tokens: usize,
    /// Pages in use. All layers use the same page numbers.
    pub pages_used: usize,
    /// Pages of the pool.
    pub pages: usize,
    /// Device memory of the codes of keys and values.
    pub pool_bytes: usize,
    /// Device memory of the f16 rows of exact tokens.
    pub exact_bytes: usize,
    /// Device memory of the encoders' workspace.
    pub workspace_bytes: usize,
    /// Bytes per token over all layers, keys and values, without the slack of pages.
    pub token_bytes: usize,
}

/// One layer's pages, and the length of every sequence in it.
#[derive(Debug)]
struct Layer {
    pools: [CudaSlice<u8>; 2],
    /// Pages of the f16 rows of exact tokens.
    exact: [CudaSlice<u8>; 2],
    lengths: Vec<usize>,
}

/// Buffers that all calls reuse. No captured graph holds them.
#[derive(Debug)]
struct HostBuffers {
    /// Rows from the host: keys or queries, then values.
    rows: [CudaSlice<f32>; 2],
    staging: [Staging<f32>; 2],
    /// `None` while a call runs.
    out: Option<CudaSlice<f32>>,
    received: Staging<u32>,
    table: Staging<u32>,
}

/// Keys and values of `num_sequences` sequences, encoded, in pages of 64 tokens.
///
/// Every token is encoded when it is appended, with codes that are bit-identical to the CPU's. The first tokens
/// of a sequence and its newest ([`GpuSpec::exact`]) have f16 rows too, which attention reads instead. Each
/// query token has a window of its own, also in a chunk; but where one step has more than 64 tokens of a
/// sequence, those before the last 64 may find some of their newest tokens as codes alone. So do the tokens
/// after a [`truncate`](GpuCache::truncate) by more than 63. There is no centring. For a single sequence on a
/// machine without a GPU use `tqkv::cache::KvCache`.
#[derive(Debug)]
pub struct GpuCache {
    device: Device,
    spec: GpuSpec,
    /// The kernels, over the pages of `layers`.
    paged: Paged,
    layers: Vec<Layer>,
    pages: PageTable,
    kept: ExactPages,
    table: CudaSlice<u32>,
    /// Workspaces of the trellis encoders: for keys, for values.
    workspaces: [CudaSlice<u8>; 2],
    /// One for each [`Use`].
    buffers: [Buffers; 2],
    step: Option<Step>,
    /// Most tokens of a step, once [`GpuCache::reserve_scratch`] was called.
    reserved: Option<usize>,
    scratch: HostBuffers,
    /// The rows and the tokens of the sequence that was decoded last.
    range: WordBuffer,
    restore: Restore,
}

impl Drop for GpuCache {
    fn drop(&mut self) {
        self.restore.settle(self.device.stream());
    }
}

impl GpuCache {
    /// Makes an empty cache. It takes all its device memory at once.
    ///
    /// # Errors
    /// [`GpuError::BadSpec`], [`GpuError::OutOfMemory`], or the driver's errors.
    pub fn new(device: &Device, spec: GpuSpec) -> Result<Self, GpuError> {
        let _current = Current::keep();
        let bytes = spec.pool_bytes()? + spec.exact_bytes() + spec.workspace_bytes();
        let (free, _) = device.memory()?;
        if bytes > free {
            return Err(GpuError::OutOfMemory { bytes });
        }
        let exact = spec.kept();
        let kept = ExactPages::new(exact, spec.num_sequences);
        let of_exact = if kept.is_empty() { Exact::None } else { Exact::Pages(exact.parts()) };
        let paged = Paged::with_exact(device, spec.layout(), of_exact)?;
        let layer = || -> Result<Layer, GpuError> {
            let pools =
                [device.zeros(spec.side_bytes(spec.key))?, device.zeros(spec.side_bytes(spec.value))?];
            let side = || device.zeros(kept.count() * spec.exact_page_bytes());
            Ok(Layer { pools, exact: [side()?, side()?], lengths: vec![0; spec.num_sequences] })
        };
        let layers = (0..spec.num_layers).map(|_| layer()).collect::<Result<_, _>>()?;
        let pages = PageTable::new(spec.num_sequences, spec.max_pages(), spec.pages());
        let table = device.zeros(spec.num_sequences * spec.max_pages())?;
        let scratch = HostBuffers {
            rows: [device.zeros(1)?, device.zeros(1)?],
            staging: [Staging::new(), Staging::new()],
            out: None,
            received: Staging::new(),
            table: Staging::new(),
        };
        let workspaces =
            [device.zeros(spec.side_workspace(spec.key))?, device.zeros(spec.side_workspace(spec.value))?];
        Ok(Self {
            device: device.clone(),
            spec,
            paged,
            layers,
            pages,
            kept,
            table,
            workspaces,
            buffers: [Buffers::new(device)?, Buffers::new(device)?],
            step: None,
            reserved: None,
            scratch,
            range: WordBuffer::new(device, 3)?,
            restore: Restore::default(),
        })
    }

    /// The device that holds the cache.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Goes on on another stream of the device's context, after the work on the stream before. It does not wait.
    /// While a graph captures the stream, the two are not ordered: who launches the graph orders it.
    ///
    /// # Errors
    /// [`GpuError::OtherContext`] if the stream belongs to another context, or the driver's errors.
    ///
    /// # Safety
    /// `stream` is a stream or null, and outlives the cache.
    pub unsafe fn follow(&mut self, stream: sys::CUstream) -> Result<(), GpuError> {
        let _current = Current::keep();
        if stream == self.device.stream().cu_stream() {
            return Ok(());
        }
        // SAFETY: the caller upholds the same contract.
        let device = unsafe { self.device.on_raw(stream) }?;
        let not_captured = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        if device.stream().capture_status()? == not_captured {
            device.stream().join(self.device.stream())?;
        }
        self.device = device;
        Ok(())
    }

    /// The spec that the cache was built from.
    pub fn spec(&self) -> &GpuSpec {
        &self.spec
    }

    /// Tokens of a sequence in layer 0; 0 for a sequence out of range.
    pub fn len(&self, sequence: usize) -> usize {
        self.layers[0].lengths.get(sequence).copied().unwrap_or(0)
    }

    /// Returns true if no sequence holds a token.
    pub fn is_empty(&self) -> bool {
        self.layers[0].lengths.iter().all(|&length| length == 0)
    }

    /// Copies the first `len` tokens of `from`, or all if there are fewer, to the empty sequence `to` in
    /// every layer. Both use the same pages until one of them writes to the last page. Then the writer gets a
    /// copy of that page. The call costs no device work.
    ///
    /// # Errors
    /// [`GpuError::SequenceOutOfRange`], [`GpuError::NotEmpty`]. [`GpuError::BadStep`] if `from` is in a step
    /// that has begun, because the step may still be undone.
    pub fn fork(&mut self, from: usize, to: usize, len: usize) -> Result<(), GpuError> {
        self.check_sequence(from)?;
        self.check_sequence(to)?;
        self.check_settled(from)?;
        if let Some(layer) = self.layers.iter().find(|layer| layer.lengths[to] > 0) {
            return Err(GpuError::NotEmpty { sequence: to, tokens: layer.lengths[to] });
        }
        let mut longest = 0;
        for layer in &mut self.layers {
            layer.lengths[to] = layer.lengths[from].min(len);
            longest = longest.max(layer.lengths[to]);
        }
        self.pages.share(from, to, longest);
        self.kept.share(from, to, longest);
        Ok(())
    }

    /// Drops the tokens of one sequence from index `len` on, in every layer, and frees their pages. If a step
    /// that has begun appends to the sequence, the step is undone first.
    ///
    /// # Errors
    /// [`GpuError::SequenceOutOfRange`].
    pub fn truncate(&mut self, sequence: usize, len: usize) -> Result<(), GpuError> {
        self.check_sequence(sequence)?;
        if self.check_settled(sequence).is_err()
            && let Some(step) = self.step.take()
        {
            self.undo(&step);
        }
        self.cut(sequence, len);
        Ok(())
    }

    /// Drops the tokens of a step in every layer.
    fn undo(&mut self, step: &Step) {
        for &(sequence, length) in step.tokens.iter().rev() {
            self.cut(sequence, length - 1);
        }
    }

    /// Drops the tokens of a sequence from index `len` on.
    fn cut(&mut self, sequence: usize, len: usize) {
        for layer in &mut self.layers {
            layer.lengths[sequence] = layer.lengths[sequence].min(len);
        }
        self.trim(sequence);
    }

    /// Empties the cache and keeps its memory.
    pub fn reset(&mut self) {
        self.step = None;
        (0..self.spec.num_sequences).for_each(|sequence| self.cut(sequence, 0));
    }

    /// Returns contents and memory of the cache.
    pub fn stats(&self) -> GpuStats {
        let block_bytes: usize = self.paged.coders.iter().map(|coder| coder.codec.block_bytes()).sum();
        GpuStats {
            tokens: self.layers[0].lengths.iter().sum(),
            pages_used: self.pages.used(),
            pages: self.spec.pages(),
            pool_bytes: self.layers.iter().flat_map(|layer| &layer.pools).map(CudaSlice::num_bytes).sum(),
            exact_bytes: self.spec.exact_bytes(),
            workspace_bytes: self.spec.workspace_bytes(),
            token_bytes: self.spec.num_layers * self.spec.num_kv_heads * block_bytes,
        }
    }

    /// Frees the pages of `sequence` that no layer needs any more.
    fn trim(&mut self, sequence: usize) {
        let needed = self.layers.iter().map(|layer| layer.lengths[sequence]).max().unwrap_or(0);
        self.pages.trim(sequence, needed);
        self.kept.trim(sequence, needed);
    }

    fn update_table(&mut self) -> Result<(), GpuError> {
        let (device, staging, table) = (&self.device, &mut self.scratch.table, &mut self.table);
        self.pages.copy_changes(|runs| staging.send_parts(device, runs, table))
    }

    /// The output buffer, at least `values` long; the caller puts it back.
    fn take_out(&mut self, values: usize) -> Result<CudaSlice<f32>, GpuError> {
        match self.scratch.out.take() {
            Some(out) if out.len() >= values => Ok(out),
            _ => self.device.zeros(values),
        }
    }

    fn check_layer(&self, layer: usize) -> Result<(), GpuError> {
        let num_layers = self.spec.num_layers;
        if layer < num_layers { Ok(()) } else { Err(GpuError::LayerOutOfRange { layer, num_layers }) }
    }

    /// Checks that no step that has begun appends to a sequence.
    fn check_settled(&self, sequence: usize) -> Result<(), GpuError> {
        let is_in = |step: &Step| step.tokens.iter().any(|&(other, _)| other == sequence);
        if self.step.as_ref().is_some_and(is_in) {
            return Err(GpuError::BadStep(format!(
                "sequence {sequence} is in the step that has begun; end the step first"
            )));
        }
        Ok(())
    }

    fn check_sequence(&self, sequence: usize) -> Result<(), GpuError> {
        let num_sequences = self.spec.num_sequences;
        if sequence < num_sequences {
            Ok(())
        } else {
            Err(GpuError::SequenceOutOfRange { sequence, num_sequences })
        }
    }
}

/// The first `values` values of rows, which are those of so many tokens. Rows of the host were copied to `copied`.
fn vectors<'a>(
    rows: &Rows<'a>,
    copied: &'a CudaSlice<f32>,
    (values, tokens): (usize, usize),
) -> TokenVectors<'a> {
    let stride = values.checked_div(tokens).unwrap_or(0) as u32;
    TokenVectors { memory: rows.memory(copied, 0..values), stride, kind: rows.kind() }
}

/// The page table, for kernels.
fn table<'a>(table: &'a CudaSlice<u32>, pages: &PageTable) -> Table<'a> {
    let (max_blocks, entries) = (pages.max_pages(), table.len());
    Table { memory: table.into(), max_blocks, entries, shift: 0, pages: pages.count() }
}
