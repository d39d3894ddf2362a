//! [`Coder`]: a codec on the device, and how a cache encodes with it.

use super::rows::{element_of, on_device};
use super::{GpuCache, Rows, Side};
use crate::attention::{Pool, Queries};
use crate::device::Device;
use crate::launch::{launch, warps};
use crate::{GpuError, GpuSpec};
use cudarc::driver::{CudaFunction, CudaSlice};
use tqkv_core::{AnyCodec, CodecId, Effort};
use tqkv_gpu_kernels::args::EncodeAppend;
use tqkv_gpu_kernels::encode::status;
use tqkv_gpu_kernels::page;
use tqkv_gpu_kernels::tables::tables;

/// A codec on the device.
#[derive(Debug)]
pub(super) struct Coder {
    pub(super) codec: AnyCodec,
    pub(super) signs: CudaSlice<u32>,
    levels: CudaSlice<u32>,
    encode: CudaFunction,
    pub(super) decode: CudaFunction,
    pub(super) scores: CudaFunction,
    outcomes: CudaSlice<u32>,
}

impl Coder {
    pub(super) fn new(device: &Device, spec: &GpuSpec, id: CodecId) -> Result<Self, GpuError> {
        let codec = spec.codec(id)?;
        let signs: Vec<u32> = (0..spec.head_dim / 32).map(|group| codec.signs().group(group)).collect();
        let name = |kernel: &str| format!("{kernel}_{}_d{}", id.name(), spec.head_dim);
        let names = [name("encode_append"), name("decode_pages"), name("scores")];
        let [encode, decode, scores] = device.kernels(names.each_ref().map(String::as_str))?;
        let (signs, levels) = (device.upload(&signs)?, device.upload(&tables(&codec))?);
        Ok(Self { codec, signs, levels, encode, decode, scores, outcomes: device.zeros(1)? })
    }

    pub(super) fn bits(&self) -> u32 {
        self.codec.id().bits()
    }

    pub(super) fn pool<'a>(&'a self, memory: &'a CudaSlice<u8>) -> Pool<'a> {
        Pool {
            memory,
            format: page::format(self.codec.id().layout()),
            levels: &self.levels,
            signs: &self.signs,
        }
    }
}

impl GpuCache {
    /// Encodes rows into the slots that the scratch buffers name, and looks at the outcomes.
    pub(super) fn encode(
        &mut self,
        layer: usize,
        side: Side,
        rows: Rows<'_>,
        tokens: usize,
    ) -> Result<(), GpuError> {
        let vectors = tokens * self.spec.num_kv_heads;
        self.device.grow(&mut self.coders[side as usize].outcomes, vectors)?;
        if let Rows::Host(rows) = rows {
            self.scratch.staging.send(&self.device, rows, &mut self.scratch.rows)?;
        }
        self.launch_encode(layer, side, rows, tokens)?;
        let outcomes = &self.coders[side as usize].outcomes;
        let outcomes = self.device.stream().clone_dtoh(&outcomes.slice(..vectors))?;
        self.device.finish()?;
        match outcomes.iter().position(|&outcome| outcome != status::DONE) {
            None => Ok(()),
            Some(i) => Err(GpuError::BadVector {
                what: if side == Side::Keys { "key" } else { "value" },
                token: i / self.spec.num_kv_heads,
                kv_head: i % self.spec.num_kv_heads,
                reason: match outcomes[i] {
                    status::NON_FINITE => "is not finite",
                    _ => "is too large: its scale does not fit f16",
                },
            }),
        }
    }

    /// The kernel of [`GpuCache::encode`]; host rows are in the scratch buffer already. A trellis encoder
    /// runs as often as its workspace asks for.
    fn launch_encode(
        &mut self,
        layer: usize,
        side: Side,
        rows: Rows<'_>,
        tokens: usize,
    ) -> Result<(), GpuError> {
        let (coder, scratch) = (&mut self.coders[side as usize], &mut self.scratch);
        let (heads, dim) = (self.spec.num_kv_heads, self.spec.head_dim);
        let searches = coder.codec.trellis().is_some();
        let together = if searches { self.spec.vectors_a_launch() / heads } else { tokens };
        let (kind, options) = (element_of(rows), coder.codec.options());
        let effort = Effort::ALL.iter().position(|&effort| effort == options.effort).unwrap_or(0) as u32;
        for first in (0..tokens).step_by(together.max(1)) {
            let count = together.min(tokens - first);
            let vectors = first * heads..(first + count) * heads;
            let values = vectors.start * dim..vectors.end * dim;
            let rows = match on_device(rows, &scratch.rows) {
                Queries::Floats(rows) => rows.slice(values).into(),
                Queries::Halves(rows, _) => rows.slice(values).into(),
            };
            let arguments = EncodeAppend {
                rows,
                kind,
                tokens: count as u32,
                num_kv_heads: heads as u32,
                signs: (&coder.signs).into(),
                mode: u32::from(options.scale_mode.code()),
                effort,
                sequence_of: scratch.sequence_of.slice(first..).into(),
                position_of: scratch.position_of.slice(first..).into(),
                page_table: (&self.table).into(),
                max_pages: self.pages.max_pages() as u32,
                pool: (&mut self.layers[layer].pools[side as usize]).into(),
                workspace: (&mut scratch.workspace).into(),
                outcome: coder.outcomes.slice_mut(vectors.clone()).into(),
            };
            // SAFETY: `append` checked that rows hold `tokens * heads` vectors; positions lie in pages that
            // `reserve` entered in the table, and these are inside the pool; `encode` made `outcomes` large
            // enough; the workspace is for as many vectors as a launch has, and launches run in order.
            unsafe { launch(&self.device, &coder.encode, arguments.list(), warps(vectors.len())) }?;
        }
        Ok(())
    }

    /// Seconds of the encoder's kernel for the keys of an append like this one, which is done first.
    pub(crate) fn encode_seconds(&mut self, sequences: &[usize], rows: Rows<'_>) -> Result<f64, GpuError> {
        self.append(0, sequences, rows, rows)?;
        let device = self.device.clone();
        crate::bench::seconds(&device, 20, || self.launch_encode(0, Side::Keys, rows, sequences.len()))
    }
}
