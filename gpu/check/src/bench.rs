//! Launches timed by CUDA events: the measurements of `tqkv gpu-check`.

use tqkv_core::CodecId;
use tqkv_gpu::cudarc::driver::{CudaSlice, sys};
use tqkv_gpu::unstable::MAX_CHUNK;
use tqkv_gpu::unstable::attention::{Attention, Batch, Cut, Pool, Work};
use tqkv_gpu::unstable::launch::{Memory, launch, warps};
use tqkv_gpu::{Device, GpuCache, GpuError, GpuSpec, Rows};
use tqkv_gpu_kernels::args::ReadBytes;
use tqkv_gpu_kernels::bandwidth::RUN_BYTES;
use tqkv_gpu_kernels::encode::element;
use tqkv_gpu_kernels::page;
use tqkv_gpu_kernels::tables::TABLE_WORDS;

/// Tokens of a page.
const SLOTS: usize = page::SLOTS as usize;

/// Reading warps per multiprocessor, enough to keep the memory busy.
const WARPS_PER_MULTIPROCESSOR: usize = 32;

/// Durations in seconds of equal runs, sorted.
#[derive(Clone, Debug)]
pub(crate) struct Times(Vec<f64>);

impl Times {
    /// A percentile: the time that `percent` percent of the runs did not exceed.
    pub(crate) fn at(&self, percent: usize) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get((last * percent.min(100)).div_ceil(100)).copied().unwrap_or(f64::NAN)
    }

    /// Number of runs.
    pub(crate) fn runs(&self) -> usize {
        self.0.len()
    }
}

/// Times 10 to 2,000 equal runs, which take about `seconds` together. Events enclose each run. Two runs come
/// first and are not counted.
///
/// # Errors
/// The errors of `run` and of the driver.
pub(crate) fn times(
    device: &Device,
    seconds: f64,
    mut run: impl FnMut() -> Result<(), GpuError>,
) -> Result<Times, GpuError> {
    let event = || device.stream().record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT));
    run()?;
    let start = event()?;
    run()?;
    let once = f64::from(start.elapsed_ms(&event()?)?) / 1e3;
    let count = (seconds / once.max(1e-9)).clamp(10.0, 2000.0) as usize;
    let mut events = vec![event()?];
    for _ in 0..count {
        run()?;
        events.push(event()?);
    }
    let mut all = Vec::with_capacity(count);
    for pair in events.windows(2) {
        all.push(f64::from(pair[0].elapsed_ms(&pair[1])?) / 1e3);
    }
    all.sort_by(f64::total_cmp);
    Ok(Times(all))
}

/// Memory bandwidth of the device in bytes per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bandwidth {
    /// Bytes read and written by a copy inside the device.
    pub(crate) copy: f64,
    /// Bytes read by a kernel that only reads.
    pub(crate) read: f64,
}

/// Measures the bandwidth of the memory over `bytes` bytes. Each of the two measurements takes about
/// `seconds`.
///
/// # Errors
/// The driver's errors.
pub(crate) fn bandwidth(device: &Device, bytes: usize, seconds: f64) -> Result<Bandwidth, GpuError> {
    let count = device.multiprocessors() * WARPS_PER_MULTIPROCESSOR;
    let runs = (bytes / (count * RUN_BYTES)).max(1);
    let bytes = count * runs * RUN_BYTES;
    let (from, mut to) = (device.zeros::<u8>(bytes)?, device.zeros::<u8>(bytes)?);
    let copy = times(device, seconds, || Ok(device.stream().memcpy_dtod(&from, &mut to)?))?;
    let [kernel] = device.kernels(["read_bytes"])?;
    let mut sums = device.zeros::<u32>(count * 128)?;
    let read = times(device, seconds, || {
        let arguments = ReadBytes {
            memory: Memory::from(&from),
            warps: count as u32,
            runs: runs as u32,
            sums: (&mut sums).into(),
        };
        // SAFETY: `from` has `runs` runs for each of `count` warps, and `sums` has 128 words for each.
        unsafe { launch(device, &kernel, arguments.list(), warps(count)?) }
    })?;
    Ok(Bandwidth { copy: 2.0 * bytes as f64 / copy.at(50), read: bytes as f64 / read.at(50) })
}

/// A batch to attend over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Number of sequences.
    pub(crate) sequences: usize,
    /// Tokens per sequence.
    pub(crate) tokens: usize,
    /// Number of KV heads.
    pub(crate) num_kv_heads: usize,
    /// Query heads per KV head.
    pub(crate) group: usize,
    /// Coordinates of a head vector.
    pub(crate) head_dim: usize,
}

impl Shape {
    /// Checks that the shape can be measured.
    ///
    /// # Errors
    /// [`GpuError::BadSpec`] names what is wrong and what is accepted.
    pub(crate) fn check(&self) -> Result<(), GpuError> {
        self.spec(CodecId::S4, CodecId::S4).check()?;
        let refuse = |message: String| Err(GpuError::BadSpec(message));
        if !self.tokens.is_multiple_of(SLOTS) {
            return refuse(format!("{} tokens to measure; a multiple of {SLOTS} is accepted", self.tokens));
        }
        // Each call appends one page of tokens to every sequence.
        let most = MAX_CHUNK / SLOTS;
        if self.sequences > most {
            return refuse(format!("{} sequences to measure; at most {most}", self.sequences));
        }
        Ok(())
    }

    fn spec(&self, key: CodecId, value: CodecId) -> GpuSpec {
        GpuSpec::new(1, self.num_kv_heads * self.group, self.num_kv_heads, self.head_dim)
            .codecs(key, value)
            .sequences(self.sequences, self.tokens)
    }

    /// Bytes of keys and values at these bits per coordinate, with f16 scales (without scales at 16 bits).
    pub(crate) fn bytes(&self, key_bits: u32, value_bits: u32) -> usize {
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

/// The measurements of [`codes`].
#[derive(Clone, Debug)]
pub(crate) struct Codes {
    /// Times of one attention: rotation, attention, merge.
    pub(crate) attend: Times,
    /// Vectors per second that the encoders of keys and values make, with rows and codes in device memory.
    pub(crate) encoded_per_second: f64,
}

/// Times attention over codes, and the encoders on `64 * sequences` tokens, each for `seconds`. Attention
/// uses `cut`; without one it uses the cut that a cache picks.
///
/// # Errors
/// The errors of [`Shape::check`] and of [`GpuCache`].
pub(crate) fn codes(
    device: &Device,
    shape: Shape,
    key: CodecId,
    value: CodecId,
    cut: Option<Cut>,
    seconds: f64,
) -> Result<Codes, GpuError> {
    shape.check()?;
    let mut cache = GpuCache::new(device, shape.spec(key, value))?;
    let step: Vec<usize> = (0..shape.sequences * SLOTS).map(|i| i % shape.sequences).collect();
    let rows = device.upload(&noise(step.len() * shape.num_kv_heads * shape.head_dim))?;
    for _ in 1..shape.tokens / SLOTS {
        cache.append(0, &step, Rows::F32(&rows), Rows::F32(&rows))?;
    }
    // Within a step, an append only launches the encoders: it waits for nothing, and the lengths are set.
    cache.begin_step(&step)?;
    let encode = times(device, seconds, || cache.append_step(0, Rows::F32(&rows), Rows::F32(&rows)))?.at(50);
    cache.end_step()?;
    cache.set_cut(cut);
    let values = shape.sequences * shape.num_kv_heads * shape.group * shape.head_dim;
    let queries = device.upload(&noise(values))?;
    let mut out = device.zeros::<f32>(values)?;
    let attend = times(device, seconds, || cache.attend_on_device(0, Rows::F32(&queries), &mut out))?;
    Ok(Codes { attend, encoded_per_second: (2 * step.len() * shape.num_kv_heads) as f64 / encode })
}

/// Times attention over f16 rows of the same shape: the baseline.
///
/// # Errors
/// The errors of [`Shape::check`], [`GpuError::OutOfMemory`], or the driver's errors.
pub(crate) fn halves(device: &Device, shape: Shape, seconds: f64) -> Result<Times, GpuError> {
    shape.check()?;
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
    let mut work = Work::new(device)?;
    let attention =
        Attention::new(device, shape.num_kv_heads, shape.group, shape.head_dim, [page::HALF_BITS; 2])?;
    let parts = attention.parts(&vec![shape.tokens; shape.sequences], false);
    let words = device.upload(&parts.words)?;
    times(device, seconds, || {
        let batch = Batch {
            table: &table,
            max_pages,
            sequence_of: sequences.as_view(),
            lengths: lengths.as_view(),
            rows: shape.sequences,
            parts: words.as_view(),
            entries: parts.entries,
        };
        // SAFETY: every buffer was made for `shape` above; the table's pages are 0 .. sequences * max_pages.
        unsafe {
            attention.run(
                device,
                &mut work,
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
    // `0x3800 | 10 random bits` is a half between 0.5 and 1. One page of them repeats.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let times = Times((1..=11).map(f64::from).collect());
        assert_eq!(
            [0, 1, 50, 90, 99, 100].map(|percent| times.at(percent)),
            [1.0, 2.0, 6.0, 10.0, 11.0, 11.0]
        );
        assert_eq!(Times(vec![3.0]).at(99), 3.0);
        assert!(Times(Vec::new()).at(50).is_nan());
    }
}
