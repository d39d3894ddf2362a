//! Timed launches, by CUDA events: what `cargo xtask gpu-check` measures.

use crate::attention::{Attention, Batch, Pool};
use crate::device::Device;
use crate::pages::SLOTS;
use crate::{GpuCache, GpuError, GpuSpec, Rows};
use cudarc::driver::{CudaSlice, sys};
use tqkv_core::CodecId;
use tqkv_gpu_kernels::encode::element;
use tqkv_gpu_kernels::page;
use tqkv_gpu_kernels::tables::TABLE_WORDS;

/// Seconds of one of `count` equal runs, after one that is not counted.
///
/// # Errors
/// Those of `run`, and what the driver reports.
pub fn seconds(
    device: &Device,
    count: usize,
    mut run: impl FnMut() -> Result<(), GpuError>,
) -> Result<f64, GpuError> {
    let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    run()?;
    let start = device.stream().record_event(flags)?;
    for _ in 0..count {
        run()?;
    }
    let end = device.stream().record_event(flags)?;
    Ok(f64::from(start.elapsed_ms(&end)?) / 1e3 / count as f64)
}

/// Bytes read and written a second by a copy of `bytes` bytes inside the device.
///
/// # Errors
/// What the driver reports.
pub fn copy_bandwidth(device: &Device, bytes: usize) -> Result<f64, GpuError> {
    let (from, mut to) = (device.zeros::<u8>(bytes)?, device.zeros::<u8>(bytes)?);
    let time = seconds(device, 10, || Ok(device.stream().memcpy_dtod(&from, &mut to)?))?;
    Ok(2.0 * bytes as f64 / time)
}

/// A batch to attend over.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Sequences.
    pub sequences: usize,
    /// Tokens of each.
    pub tokens: usize,
    /// KV heads.
    pub num_kv_heads: usize,
    /// Query heads a KV head.
    pub group: usize,
    /// Coordinates of a head vector.
    pub head_dim: usize,
}

impl Shape {
    fn spec(&self, key: CodecId, value: CodecId) -> GpuSpec {
        GpuSpec::new(1, self.num_kv_heads * self.group, self.num_kv_heads, self.head_dim)
            .codecs(key, value)
            .sequences(self.sequences, self.tokens)
    }

    /// Bytes of keys and values with these bits a coordinate and f16 scales (none at 16 bits).
    pub fn bytes(&self, key_bits: u32, value_bits: u32) -> usize {
        let head = |bits| page::head_bytes(self.head_dim as u32, bits) as usize / SLOTS;
        self.sequences * self.tokens * self.num_kv_heads * (head(key_bits) + head(value_bits))
    }
}

/// Pseudo-random values in [-1, 1), in host order.
fn noise(count: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// What [`codes`] measures.
#[derive(Clone, Copy, Debug)]
pub struct Codes {
    /// Seconds of one attention: rotation, attention, merge.
    pub attend: f64,
    /// Vectors that the key encoder makes a second, rows and codes in device memory.
    pub encoded_per_second: f64,
}

/// Times attention over codes, and the encoder on `64 * sequences` tokens.
///
/// # Errors
/// Those of [`GpuCache`].
pub fn codes(device: &Device, shape: Shape, key: CodecId, value: CodecId) -> Result<Codes, GpuError> {
    let mut cache = GpuCache::new(device, shape.spec(key, value))?;
    let step: Vec<usize> = (0..shape.sequences * SLOTS).map(|i| i % shape.sequences).collect();
    let rows = device.upload(&noise(step.len() * shape.num_kv_heads * shape.head_dim))?;
    for _ in 1..shape.tokens / SLOTS {
        cache.append(0, &step, Rows::F32(&rows), Rows::F32(&rows))?;
    }
    let encode = cache.encode_seconds(&step, Rows::F32(&rows))?;
    let values = shape.sequences * shape.num_kv_heads * shape.group * shape.head_dim;
    let queries = device.upload(&noise(values))?;
    let mut out = device.zeros(values)?;
    let attend = seconds(device, 20, || cache.attend_on_device(0, Rows::F32(&queries), &mut out))?;
    Ok(Codes { attend, encoded_per_second: (step.len() * shape.num_kv_heads) as f64 / encode })
}

/// Seconds of one attention over f16 rows of the same shape: the baseline.
///
/// # Errors
/// [`GpuError::OutOfMemory`], or what the driver reports.
pub fn halves(device: &Device, shape: Shape) -> Result<f64, GpuError> {
    let max_pages = shape.tokens.div_ceil(SLOTS);
    let bytes = shape.bytes(page::HALF_BITS, page::HALF_BITS) / 2;
    let (keys, values) = (random_halves(device, bytes)?, random_halves(device, bytes)?);
    let (levels, signs) = (device.zeros(TABLE_WORDS)?, device.zeros(8)?);
    let pool = |memory| Pool { memory, format: page::HALF_BITS, levels: &levels, signs: &signs };
    let table: Vec<u32> = (0..(shape.sequences * max_pages) as u32).collect();
    let (table, lengths) =
        (device.upload(&table)?, device.upload(&vec![shape.tokens as u32; shape.sequences])?);
    let sequences = device.upload(&(0..shape.sequences as u32).collect::<Vec<_>>())?;
    let count = shape.sequences * shape.num_kv_heads * shape.group * shape.head_dim;
    let queries = device.upload(&noise(count))?;
    let mut out = device.zeros::<f32>(count)?;
    let mut attention =
        Attention::new(device, shape.num_kv_heads, shape.group, shape.head_dim, [page::HALF_BITS; 2])?;
    seconds(device, 20, || {
        let batch = Batch {
            table: &table,
            max_pages,
            sequence_of: sequences.as_view(),
            lengths: lengths.as_view(),
            rows: shape.sequences,
            longest: shape.tokens,
        };
        // SAFETY: every buffer was made for `shape` above; the table's pages are 0 .. sequences * max_pages.
        unsafe {
            attention.run(
                device,
                ((&queries).into(), element::F32),
                [pool(&keys), pool(&values)],
                batch,
                ((&mut out).into(), element::F32),
            )
        }
    })
}

/// A pool of finite f16 values.
fn random_halves(device: &Device, bytes: usize) -> Result<CudaSlice<u8>, GpuError> {
    // 0x3800 | 10 random bits is a half between 0.5 and 1; a page repeats.
    let page: Vec<u8> =
        noise(1 << 16).iter().flat_map(|v| (0x3800 | (v.to_bits() & 0x3ff) as u16).to_le_bytes()).collect();
    let mut pool = device.zeros::<u8>(bytes)?;
    let source = device.upload(&page)?;
    for start in (0..bytes).step_by(page.len()) {
        let end = bytes.min(start + page.len());
        device.stream().memcpy_dtod(&source.slice(..end - start), &mut pool.slice_mut(start..end))?;
    }
    Ok(pool)
}
