//! [`Coder`]: a codec on the device, and how a cache encodes with it.

use super::{GpuCache, Lists, Rows, Side};
use crate::attention::Pool;
use crate::bench::{self, Times};
use crate::device::Device;
use crate::launch::{launch, warps};
use crate::{GpuError, GpuSpec};
use cudarc::driver::{CudaFunction, CudaSlice};
use std::ops::Range;
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
}

impl Coder {
    pub(super) fn new(device: &Device, spec: &GpuSpec, id: CodecId) -> Result<Self, GpuError> {
        let codec = spec.codec(id)?;
        let signs: Vec<u32> = (0..spec.head_dim / 32).map(|group| codec.signs().group(group)).collect();
        let name = |kernel: &str| format!("{kernel}_{}_d{}", id.name(), spec.head_dim);
        let names = [name("encode_append"), name("decode_pages"), name("scores")];
        let [encode, decode, scores] = device.kernels(names.each_ref().map(String::as_str))?;
        let (signs, levels) = (device.upload(&signs)?, device.upload(&tables(&codec))?);
        Ok(Self { codec, signs, levels, encode, decode, scores })
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
    /// Encodes keys and values of the tokens of which the device knows; outcomes go to place `place` of those of the call.
    pub(super) fn encode(
        &mut self,
        layer: usize,
        place: usize,
        rows: [Rows<'_>; 2],
        tokens: usize,
    ) -> Result<(), GpuError> {
        for (side, rows) in [Side::Keys, Side::Values].into_iter().zip(rows) {
            if let Rows::Host(rows) = rows {
                let (staging, memory) =
                    (&mut self.scratch.staging[side as usize], &mut self.scratch.rows[side as usize]);
                staging.send(&self.device, rows, memory)?;
            }
            self.launch_encode(layer, place, side, rows, tokens)?;
        }
        Ok(())
    }

    /// The kernel of [`GpuCache::encode`]; host rows are in the scratch buffer already. A trellis encoder
    /// runs as often as its workspace asks for.
    fn launch_encode(
        &mut self,
        layer: usize,
        place: usize,
        side: Side,
        rows: Rows<'_>,
        tokens: usize,
    ) -> Result<(), GpuError> {
        let side = side as usize;
        let (coder, scratch) = (&self.coders[side], &mut self.scratch);
        let (heads, dim) = (self.spec.num_kv_heads, self.spec.head_dim);
        let searches = coder.codec.trellis().is_some();
        let together = if searches { self.spec.vectors_a_launch() / heads } else { tokens };
        let options = coder.codec.options();
        let effort = Effort::ALL.iter().position(|&effort| effort == options.effort).unwrap_or(0) as u32;
        let lists = Lists::new(&self.tokens, tokens);
        let outcomes = (2 * place + side) * tokens * heads;
        for first in (0..tokens).step_by(together.max(1)) {
            let count = together.min(tokens - first);
            let vectors = first * heads..(first + count) * heads;
            let arguments = EncodeAppend {
                rows: rows.memory(&scratch.rows[side], vectors.start * dim..vectors.end * dim),
                kind: rows.kind(),
                tokens: count as u32,
                num_kv_heads: heads as u32,
                signs: (&coder.signs).into(),
                mode: u32::from(options.scale_mode.code()),
                effort,
                sequence_of: lists.sequences().slice(first..).into(),
                position_of: lists.positions().slice(first..).into(),
                page_table: (&self.table).into(),
                max_pages: self.pages.max_pages() as u32,
                pool: (&mut self.layers[layer].pools[side]).into(),
                workspace: (&mut scratch.workspace).into(),
                outcome: scratch.outcomes.slice_mut(outcomes + vectors.start..outcomes + vectors.end).into(),
            };
            // SAFETY: rows were checked to hold `tokens * heads` vectors; positions lie in pages that `place` entered in
            // the table, and these are inside the pool; callers made `outcomes` large enough; the workspace is for as
            // many vectors as a launch has, and launches run in order.
            unsafe { launch(&self.device, &coder.encode, arguments.list(), warps(vectors.len())?) }?;
        }
        Ok(())
    }

    /// Waits, and looks at what became of the vectors of some layers.
    pub(super) fn read_outcomes(&mut self, layers: Range<usize>, tokens: usize) -> Result<(), GpuError> {
        let vectors = self.vectors(tokens);
        let mut outcomes = vec![status::DONE; 2 * layers.len() * vectors];
        self.scratch.received.receive(&self.device, &self.scratch.outcomes, &mut outcomes)?;
        let Some(i) = outcomes.iter().position(|&outcome| outcome != status::DONE) else { return Ok(()) };
        let vector = i % vectors;
        Err(GpuError::BadVector {
            what: if i / vectors % 2 == Side::Keys as usize { "key" } else { "value" },
            layer: layers.start + i / (2 * vectors),
            token: vector / self.spec.num_kv_heads,
            kv_head: vector % self.spec.num_kv_heads,
            reason: match outcomes[i] {
                status::NON_FINITE => "is not finite",
                _ => "is too large: its scale does not fit f16",
            },
        })
    }

    /// Times of the encoder's kernel for the keys of an append like this one, which is done first.
    pub(crate) fn encode_times(
        &mut self,
        sequences: &[usize],
        rows: Rows<'_>,
        seconds: f64,
    ) -> Result<Times, GpuError> {
        self.append(0, sequences, rows, rows)?;
        let device = self.device.clone();
        bench::times(&device, seconds, || self.launch_encode(0, 0, Side::Keys, rows, sequences.len()))
    }
}
