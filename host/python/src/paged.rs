//! Keys and values in the pages of an engine (feature `cuda`): the kernels of one layout on one device. The
//! package's module `tqkv.paged` calls it with the addresses of PyTorch's tensors.
//!
//! A call works on the stream that it names, and waits for nothing.

use crate::blocks::Spec;
use crate::codec::options;
use crate::dlpack::{self, Block, Exact, Numbers, Tokens, Vectors};
use crate::errors::Failure;
use crate::spec::pair;
use pyo3::prelude::*;
use tqkv_gpu::paged::{self, AttendOptions, BlockTable, Layout, Pages, Room};
use tqkv_gpu::{Device, GpuError, Side};

/// The kernels of a layout on a device.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct Paged {
    paged: paged::Paged,
    device: Device,
}

impl Spec {
    fn layout(&self) -> Result<Layout, Failure> {
        let (key, value) = pair(&self.kv)?;
        Ok(Layout::new(self.num_heads, self.num_kv_heads, self.head_dim).codecs(key, value).options(options(
            self.seed,
            &self.scale_mode,
            &self.effort,
        )?))
    }
}

/// Bytes of a block of tokens, keys and values. It needs no device.
#[pyfunction]
pub(crate) fn paged_block_bytes(spec: Spec, tokens: usize) -> Result<usize, Failure> {
    Ok(spec.layout()?.block_bytes(tokens)?)
}

impl Paged {
    /// Works on a stream with the interpreter released.
    fn on(
        &self,
        py: Python<'_>,
        stream: usize,
        work: impl FnOnce(&paged::Paged, &Device) -> Result<(), GpuError> + Send,
    ) -> Result<(), Failure> {
        Ok(py.detach(|| work(&self.paged, &dlpack::on(&self.device, stream)?))?)
    }

    fn pages(&self, block: Block) -> Result<Pages, GpuError> {
        dlpack::pages(self.paged.layout(), block)
    }
}

/// The address of a table's numbers, their number, and those of a sequence.
type Table = (Numbers, usize);

fn table((numbers, max_blocks): Table) -> BlockTable {
    BlockTable { numbers: dlpack::i32s(numbers), max_blocks }
}

fn room(numbers: Numbers) -> Room {
    dlpack::room(numbers)
}

#[pymethods]
impl Paged {
    /// With `rows` a store keeps rows of exact tokens, and attention takes them.
    #[new]
    fn new(py: Python<'_>, spec: Spec, device: usize, rows: bool) -> Result<Self, Failure> {
        let layout = spec.layout()?;
        let made = if rows { paged::Paged::with_rows } else { paged::Paged::new };
        let made = py.detach(|| {
            let device = dlpack::device(device, 0)?;
            Ok::<_, GpuError>(Self { paged: made(&device, layout)?, device })
        })?;
        dlpack::warn(py, &made.device)?;
        Ok(made)
    }

    fn store_room(&self, tokens: usize) -> usize {
        self.paged.store_room(tokens)
    }

    fn attend_room(&self, rows: usize) -> usize {
        self.paged.attend_room(rows)
    }

    fn plan_words(&self, rows: usize) -> usize {
        self.paged.plan_words(rows)
    }

    #[expect(clippy::too_many_arguments, reason = "the tensors of a call")]
    fn store(
        &self,
        py: Python<'_>,
        stream: usize,
        k: Tokens,
        v: Tokens,
        places: Numbers,
        pages: Block,
        exact: Option<Exact>,
        work: Numbers,
        refused: Option<Numbers>,
    ) -> Result<(), Failure> {
        let (k, v) = (dlpack::tokens("k", k)?, dlpack::tokens("v", v)?);
        let (places, refused) = (dlpack::i64s(places), refused.map(dlpack::i32s));
        let exact = exact.map(dlpack::exact).transpose()?;
        self.on(py, stream, |paged, device| {
            paged.store(device, k, v, places, self.pages(pages)?, exact, room(work), refused)
        })
    }

    #[expect(clippy::too_many_arguments, reason = "the tensors of a call")]
    fn plan(
        &self,
        py: Python<'_>,
        stream: usize,
        lengths: Numbers,
        starts: Option<Numbers>,
        queries: usize,
        max_tokens: usize,
        plan: Numbers,
    ) -> Result<(), Failure> {
        let (lengths, starts, plan) = (dlpack::i32s(lengths), starts.map(dlpack::i32s), dlpack::i32s(plan));
        self.on(py, stream, |paged, device| paged.plan(device, lengths, starts, queries, max_tokens, plan))
    }

    #[expect(clippy::too_many_arguments, reason = "the tensors of a call")]
    fn attend(
        &self,
        py: Python<'_>,
        stream: usize,
        q: Tokens,
        pages: Block,
        blocks: Table,
        plan: Numbers,
        work: Numbers,
        out: Vectors,
        scale: Option<f32>,
        exact: Option<Exact>,
        sinks: Option<Vectors>,
        lse: Option<Vectors>,
    ) -> Result<(), Failure> {
        let (q, out, plan) = (dlpack::tokens("q", q)?, dlpack::raw("out", &out)?, dlpack::i32s(plan));
        let exact = exact.map(dlpack::exact).transpose()?;
        let sinks = sinks.map(|sinks| dlpack::raw("sinks", &sinks)).transpose()?;
        let lse = lse.map(|lse| dlpack::raw("lse", &lse)).transpose()?;
        let options = AttendOptions { scale, exact, sinks, lse };
        self.on(py, stream, |paged, device| {
            paged.attend(device, q, self.pages(pages)?, table(blocks), plan, room(work), out, options)
        })
    }

    #[expect(clippy::too_many_arguments, reason = "the tensors of a call")]
    fn gather(
        &self,
        py: Python<'_>,
        stream: usize,
        values: bool,
        pages: Block,
        blocks: Table,
        offsets: Numbers,
        lengths: Numbers,
        out: Vectors,
    ) -> Result<(), Failure> {
        let side = if values { Side::Values } else { Side::Keys };
        let (out, offsets, lengths) =
            (dlpack::raw("out", &out)?, dlpack::i32s(offsets), dlpack::i32s(lengths));
        self.on(py, stream, |paged, device| {
            paged.gather(device, side, self.pages(pages)?, table(blocks), offsets, lengths, out)
        })
    }
}
