//! Launches timed by CUDA events: the measurements of `tqkv gpu-check`.

use super::shape::{SLOTS, Shape};
use crate::cudarc::driver::{CudaSlice, sys};
use crate::unstable::attention::{
    Also, Attention, Cut, Plan, Pool, Resources, Source, Table, TokenVectors, Words, Work,
};
use crate::unstable::launch::{Memory, launch, warps};
use crate::{Device, GpuCache, GpuError, Rows};
use tqkv_core::CodecId;
use tqkv_gpu_kernels::args::ReadBytes;
use tqkv_gpu_kernels::bandwidth::RUN_BYTES;
use tqkv_gpu_kernels::encode::element;
use tqkv_gpu_kernels::page;
use tqkv_gpu_kernels::tables::TABLE_WORDS;

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

    /// The times of each of `count` equal pieces of a run.
    fn of_each(self, count: usize) -> Self {
        Self(self.0.into_iter().map(|seconds| seconds / count as f64).collect())
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

/// Pseudo-random values in [-1, 1), in host order.
fn noise(count: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Most layers that are attended over in turn.
const MOST_LAYERS: usize = 128;

/// Layers of `bytes` bytes that have four times the bytes of the second-level cache. A model attends over its
/// layers in turn, so it finds nothing of a layer in that cache.
fn layers(device: &Device, bytes: usize) -> Result<usize, GpuError> {
    Ok((4 * device.l2_bytes()?).div_ceil(bytes.max(1)).clamp(1, MOST_LAYERS))
}

/// Times of one layer's attention: rotation, attention, merge.
#[derive(Clone, Debug)]
pub(crate) struct Attended {
    /// Seconds of one layer.
    pub(crate) times: Times,
    /// Layers that ran in turn.
    pub(crate) layers: usize,
    /// Registers and local memory of the attention kernel.
    pub(crate) resources: Resources,
}

/// Captures the launches of all layers in a graph, and times the graph. So the host's time per launch is not
/// counted.
fn captured(
    device: &Device,
    layers: usize,
    seconds: f64,
    mut run: impl FnMut(usize) -> Result<(), GpuError>,
) -> Result<Times, GpuError> {
    // The first launches allocate and send, which a graph cannot hold.
    (0..layers).try_for_each(&mut run)?;
    let stream = device.stream();
    stream.synchronize()?;
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let launched = (0..layers).try_for_each(&mut run);
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0));
    launched?;
    let graph = graph?.ok_or_else(|| GpuError::Driver("no graph was captured".to_owned()))?;
    Ok(times(device, seconds, || Ok(graph.launch()?))?.of_each(layers))
}

/// Times attention over codes, and the encoders on one page of each sequence, each for `seconds`. The second
/// result is the number of vectors per second that the encoders of keys and values make, with rows and codes
/// in device memory. Attention uses `cut`; without one it uses the cut that a cache picks. The first tokens and
/// the newest are as many in f16 as `exact` says.
///
/// # Errors
/// The errors of [`GpuCache`].
pub(crate) fn codes(
    device: &Device,
    shape: &Shape,
    id: CodecId,
    (sinks, hot): (usize, usize),
    cut: Option<Cut>,
    seconds: f64,
) -> Result<(Attended, f64), GpuError> {
    let layers = layers(device, shape.bytes(id.bits(), id.bits()))?;
    let mut cache = GpuCache::new(device, shape.spec(layers, id, id).exact(sinks, hot))?;
    let vectors_of = |tokens: &[usize]| noise(tokens.len() * shape.num_kv_heads * shape.head_dim);
    let last = shape.longer_than(0, SLOTS);
    for layer in 0..layers {
        let mut rows = device.upload(&vectors_of(&last))?;
        for tokens in (SLOTS..shape.longest()).step_by(SLOTS) {
            let sequences = shape.longer_than(tokens, SLOTS);
            if rows.len() != sequences.len() * shape.num_kv_heads * shape.head_dim {
                rows = device.upload(&vectors_of(&sequences))?;
            }
            cache.append(layer, &sequences, Rows::F32(&rows), Rows::F32(&rows))?;
        }
    }
    let rows = device.upload(&vectors_of(&last))?;
    // Within a step, an append only launches the encoders: it waits for nothing, and the lengths are set.
    cache.begin_step(&last)?;
    let encode = times(device, seconds, || cache.append_step(0, Rows::F32(&rows), Rows::F32(&rows)))?.at(50);
    for layer in 1..layers {
        cache.append_step(layer, Rows::F32(&rows), Rows::F32(&rows))?;
    }
    cache.end_step()?;
    cache.set_cut(cut);
    let values = shape.sequences() * shape.num_kv_heads * shape.group * shape.head_dim;
    let queries = device.upload(&noise(values))?;
    let mut out = device.zeros::<f32>(values)?;
    let times = captured(device, layers, seconds, |layer| {
        cache.attend_on_device(layer, Rows::F32(&queries), &mut out)
    })?;
    let resources = cache.attention().resources()?;
    let encoded = (2 * last.len() * shape.num_kv_heads) as f64;
    Ok((Attended { times, layers, resources }, encoded / encode))
}

/// Times attention over f16 rows of the same shape: the baseline.
///
/// # Errors
/// [`GpuError::OutOfMemory`], or the driver's errors.
pub(crate) fn halves(device: &Device, shape: &Shape, seconds: f64) -> Result<Attended, GpuError> {
    let bytes = shape.bytes(page::HALF_BITS, page::HALF_BITS);
    let layers = layers(device, bytes)?;
    let mut rows = Vec::with_capacity(layers);
    for _ in 0..layers {
        rows.push([random_halves(device, bytes / 2)?, random_halves(device, bytes / 2)?]);
    }
    let (levels, signs) = (device.zeros(TABLE_WORDS)?, device.zeros(8)?);
    let stride = shape.num_kv_heads as u32 * page::head_bytes(shape.head_dim as u32, page::HALF_BITS);
    let (table, max_pages) = table(shape);
    let (entries, pages) = (table.len(), shape.tokens().div_ceil(SLOTS));
    let table = device.upload(&table)?;
    let rows_of_step = shape.sequences();
    let count = rows_of_step * shape.num_kv_heads * shape.group * shape.head_dim;
    let queries = device.upload(&noise(count))?;
    let mut out = device.zeros::<f32>(count)?;
    let mut work = Work::new(device)?;
    let attention =
        Attention::new(device, shape.num_kv_heads, shape.group, shape.head_dim, [page::HALF_BITS; 2])?;
    let parts = attention.parts(&shape.lengths.iter().map(|&tokens| 0..tokens).collect::<Vec<_>>(), false);
    let lengths = shape.lengths.iter().map(|&tokens| tokens as u32);
    let words: Vec<u32> =
        (0..rows_of_step as u32).chain(lengths).chain(parts.words.iter().copied()).collect();
    let words = device.upload(&words)?;
    let words = words.as_view();
    let times = captured(device, layers, seconds, |layer| {
        let pools = rows[layer].each_ref().map(|memory| {
            let (format, levels, signs) = (page::HALF_BITS, &levels, &signs);
            Pool { memory: memory.into(), stride, format, levels, signs }
        });
        let plan = Plan { words: Words::View(&words), rows: rows_of_step, entries: parts.entries };
        let table = Table { memory: (&table).into(), max_blocks: max_pages, entries, shift: 0, pages };
        let scratch = attention.scratch(device, &mut work, rows_of_step, parts.entries)?;
        // SAFETY: every buffer was made for `shape` above, and `table` counts the pages of all sequences.
        unsafe {
            attention.run(
                device,
                scratch,
                TokenVectors {
                    memory: (&queries).into(),
                    stride: (count / rows_of_step) as u32,
                    kind: element::F32,
                },
                Source { pools, table, plan },
                Also::default(),
                ((&mut out).into(), element::F32),
            )
        }
    })?;
    Ok(Attended { times, layers, resources: attention.resources()? })
}

/// A page table whose sequences own pages one after the other, and its entries per sequence.
fn table(shape: &Shape) -> (Vec<u32>, usize) {
    let max_pages = shape.longest() / SLOTS;
    let (mut table, mut next) = (Vec::with_capacity(shape.sequences() * max_pages), 0);
    for tokens in &shape.lengths {
        let pages = (tokens / SLOTS) as u32;
        table.extend((0..max_pages as u32).map(|page| if page < pages { next + page } else { 0 }));
        next += pages;
    }
    (table, max_pages)
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
        assert_eq!(times.of_each(2).at(100), 5.5);
    }

    #[test]
    fn sequences_own_pages_one_after_the_other() {
        let shape = "1x64+2x192+1x128x1x1x64".parse().unwrap();
        assert_eq!(table(&shape), (vec![0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0], 3));
    }
}
