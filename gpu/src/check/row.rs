//! Rows, as JSON objects and as tables.

use super::bench::Times;
use super::error::CheckError;
use serde::Serialize;
use std::fmt::Write as _;
use std::io;

/// Largest error of attention against f64 on the decoded cache. Queries and weights of 16 bits cost up to 0.0001, and
/// rounding a result to f16 0.00024.
pub(crate) const MAX_ERROR: f64 = 2e-4;

/// A line of the report.
#[derive(Serialize)]
#[serde(tag = "row", rename_all = "lowercase")]
pub(crate) enum Row {
    Device(DeviceRow),
    Codes(CodesRow),
    Weights(WeightsRow),
    Residuals(ResidualsRow),
    Attention(AttentionRow),
    Speed(SpeedRow),
    Kernel(KernelRow),
}

/// The GPU and its memory bandwidth.
#[derive(Serialize)]
pub(crate) struct DeviceRow {
    pub(crate) device: String,
    /// The commit of the program, if the build was told (`TQKV_COMMIT`).
    pub(crate) commit: Option<&'static str>,
    pub(crate) multiprocessors: usize,
    /// The version of CUDA that the driver was made for.
    pub(crate) cuda: String,
    /// Bytes of the second-level cache.
    pub(crate) l2_bytes: usize,
    pub(crate) memory_bytes: usize,
    /// The highest clocks of the multiprocessors and of the memory.
    pub(crate) clock_hz: u64,
    pub(crate) memory_clock_hz: u64,
    /// Bandwidth of a copy inside the device; counts bytes read and bytes written.
    pub(crate) copy_bytes_per_second: f64,
    /// Bandwidth of a kernel that only reads.
    pub(crate) read_bytes_per_second: f64,
}

/// Result of comparing codes with the portable codec.
#[derive(Serialize)]
pub(crate) struct CodesRow {
    pub(crate) codec: &'static str,
    pub(crate) head_dim: usize,
    pub(crate) vectors: usize,
    pub(crate) mismatches: usize,
}

/// Result of comparing groups of weights, decoded to each element type, with the portable codec.
#[derive(Serialize)]
pub(crate) struct WeightsRow {
    pub(crate) codec: &'static str,
    pub(crate) head_dim: usize,
    pub(crate) groups: usize,
    /// Values that differ. Those of f16 and bf16 are compared with rounded ones.
    pub(crate) f32_mismatches: usize,
    pub(crate) f16_mismatches: usize,
    pub(crate) bf16_mismatches: usize,
}

/// Result of comparing estimates of 1-bit residuals with f64.
#[derive(Serialize)]
pub(crate) struct ResidualsRow {
    pub(crate) head_dim: usize,
    pub(crate) residuals: usize,
    /// Relative to the norms of query and residual.
    pub(crate) largest_error: f64,
    /// Estimates that are not the f32 ones, rounded.
    pub(crate) f16_mismatches: usize,
    pub(crate) bf16_mismatches: usize,
}

impl WeightsRow {
    pub(crate) fn mismatches(&self) -> usize {
        self.f32_mismatches + self.f16_mismatches + self.bf16_mismatches
    }
}

impl ResidualsRow {
    pub(crate) fn is_right(&self) -> bool {
        self.largest_error <= MAX_ERROR && self.f16_mismatches + self.bf16_mismatches == 0
    }
}

/// Result of comparing attention with f64 over the decoded cache.
#[derive(Serialize)]
pub(crate) struct AttentionRow {
    pub(crate) key: &'static str,
    pub(crate) value: &'static str,
    pub(crate) head_dim: usize,
    pub(crate) heads_per_kv_head: usize,
    pub(crate) largest_error: f64,
}

/// Times of one codec for keys and values, or of f16 rows.
#[derive(Serialize)]
pub(crate) struct SpeedRow {
    pub(crate) codec: &'static str,
    /// The shape as `--shape` takes it.
    pub(crate) shape: String,
    pub(crate) sequences: usize,
    /// Tokens of all sequences.
    pub(crate) tokens: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) heads_per_kv_head: usize,
    pub(crate) head_dim: usize,
    /// Layers that were attended over in turn, in one graph.
    pub(crate) layers: usize,
    pub(crate) runs: usize,
    /// Registers and bytes of local memory per thread of the attention kernel.
    pub(crate) registers: i32,
    pub(crate) local_bytes: i32,
    /// Seconds of one layer.
    pub(crate) attend_seconds: Spread,
    /// Bytes of the cache per second of the median time.
    pub(crate) attend_bytes_per_second: f64,
    /// Share of the copy bandwidth; the next field is the share of the read bandwidth.
    pub(crate) copy_share: f64,
    pub(crate) read_share: f64,
    /// The median time of this crate's f16 kernel divided by this codec's median time.
    pub(crate) f16_ratio: f64,
    /// The time of reading the f16 rows at the read bandwidth, divided by this codec's median time. No f16
    /// kernel can be faster.
    pub(crate) f16_read_ratio: f64,
    pub(crate) encoded_vectors_per_second: Option<f64>,
}

/// Times of a kernel that no cache uses.
#[derive(Serialize)]
pub(crate) struct KernelRow {
    pub(crate) kernel: &'static str,
    /// `None` for residuals.
    pub(crate) codec: Option<&'static str>,
    /// The type of the results.
    pub(crate) element: &'static str,
    pub(crate) head_dim: usize,
    pub(crate) vectors: usize,
    pub(crate) runs: usize,
    pub(crate) seconds: Spread,
    pub(crate) vectors_per_second: f64,
    /// Bytes read and written per second of the median time.
    pub(crate) bytes_per_second: f64,
}

/// Percentiles of a set of times.
#[derive(Serialize)]
pub(crate) struct Spread {
    p1: f64,
    p50: f64,
    p90: f64,
    p99: f64,
}

impl Spread {
    pub(crate) fn of(times: &Times) -> Self {
        Self { p1: times.at(1), p50: times.at(50), p90: times.at(90), p99: times.at(99) }
    }
}

/// Writes each row when it is known.
pub(crate) struct Writer<'a> {
    json: bool,
    write: &'a mut dyn FnMut(&str) -> io::Result<()>,
    head: &'static str,
}

const CODES: &str = "\ncodes against the portable codec\n";
const ATTENTION: &str = "\nattention against f64\n";
const WEIGHTS: &str = "\nweights against the portable codec, values that differ: f32, f16, bf16\n";
const RESIDUALS: &str = "\nestimates of 1-bit residuals against f64\n";
const KERNEL: &str =
    "\n       kernel codec  results  vectors         us     p1    p90    p99  Gvec/s   TB/s\n";
const SPEED: &str = "\n       sequences x tokens x KV heads x heads x dim  attend us     p1    p90    p99   TB/s  of copy  \
    of read  times f16  of its read  encode Gvec/s\n";

impl<'a> Writer<'a> {
    pub(crate) fn new(json: bool, write: &'a mut dyn FnMut(&str) -> io::Result<()>) -> Self {
        Self { json, write, head: "" }
    }

    pub(crate) fn write(&mut self, row: &Row) -> Result<(), CheckError> {
        let text = if self.json {
            serde_json::to_string(row).map_err(io::Error::from)? + "\n"
        } else {
            let (head, line) = for_people(row);
            let mut text = if head == self.head { String::new() } else { head.to_owned() };
            self.head = head;
            text.push_str(&line);
            text
        };
        Ok((self.write)(&text)?)
    }
}

/// The heading of a row's table, and the row as a line of text.
fn for_people(row: &Row) -> (&'static str, String) {
    let mut line = String::new();
    let (head, _) = match row {
        Row::Device(row) => (
            "",
            writeln!(
                line,
                "{}, {} multiprocessors, CUDA {}, {} MB of second-level cache, copies {:.2} TB/s, reads {:.2} TB/s",
                row.device,
                row.multiprocessors,
                row.cuda,
                row.l2_bytes / 1_000_000,
                row.copy_bytes_per_second / 1e12,
                row.read_bytes_per_second / 1e12
            ),
        ),
        Row::Codes(row) => (
            CODES,
            writeln!(
                line,
                "{:>4} {:>4} {:>7} vectors {:>6} differ",
                row.codec, row.head_dim, row.vectors, row.mismatches
            ),
        ),
        Row::Weights(row) => (
            WEIGHTS,
            writeln!(
                line,
                "{:>4} {:>4} {:>7} groups {:>6} {:>6} {:>6}",
                row.codec,
                row.head_dim,
                row.groups,
                row.f32_mismatches,
                row.f16_mismatches,
                row.bf16_mismatches
            ),
        ),
        Row::Residuals(row) => (
            RESIDUALS,
            writeln!(
                line,
                "{:>4} {:>7} residuals {:>9.1e} of {MAX_ERROR:e}, f16 {} and bf16 {} differ",
                row.head_dim, row.residuals, row.largest_error, row.f16_mismatches, row.bf16_mismatches
            ),
        ),
        Row::Kernel(row) => (KERNEL, kernel_line(&mut line, row)),
        Row::Attention(row) => (
            ATTENTION,
            writeln!(
                line,
                "{:>4},{:<3} {:>4} {} heads a KV head {:>9.1e} of {MAX_ERROR:e}",
                row.key, row.value, row.head_dim, row.heads_per_kv_head, row.largest_error
            ),
        ),
        Row::Speed(row) => (SPEED, speed_line(&mut line, row)),
    };
    (head, line)
}

fn kernel_line(line: &mut String, row: &KernelRow) -> std::fmt::Result {
    let Spread { p1, p50, p90, p99 } = row.seconds;
    let [p50, p1, p90, p99] = [p50, p1, p90, p99].map(|seconds| seconds * 1e6);
    writeln!(
        line,
        "{:>13} {:>5} {:>8} {:>8} {p50:>10.1} {p1:>6.1} {p90:>6.1} {p99:>6.1} {:>7.3} {:>6.2}",
        row.kernel,
        row.codec.unwrap_or("-"),
        row.element,
        row.vectors,
        row.vectors_per_second / 1e9,
        row.bytes_per_second / 1e12
    )
}

fn speed_line(line: &mut String, row: &SpeedRow) -> std::fmt::Result {
    let shape = &row.shape;
    let micros = |seconds: f64| seconds * 1e6;
    let Spread { p1, p50, p90, p99 } = row.attend_seconds;
    let encode = row.encoded_vectors_per_second.map_or("-".to_owned(), |speed| format!("{:.3}", speed / 1e9));
    writeln!(
        line,
        "{:>6} {shape:>44} {:>10.1} {:>6.1} {:>6.1} {:>6.1} {:>6.2} {:>7.1}% {:>7.1}% {:>10.2} {:>12.2} {encode:>14}",
        row.codec,
        micros(p50),
        micros(p1),
        micros(p90),
        micros(p99),
        row.attend_bytes_per_second / 1e12,
        100.0 * row.copy_share,
        100.0 * row.read_share,
        row.f16_ratio,
        row.f16_read_ratio
    )
}
