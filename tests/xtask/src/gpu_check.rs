//! `cargo xtask gpu-check`: on a machine with an NVIDIA GPU, whether the kernels are right there and how
//! fast they are. Without one it says so and exits 3.

use serde::Serialize;
use std::process::ExitCode;
use tqkv_core::{CodecId, Options};
use tqkv_gpu::bench::{self, Shape};
use tqkv_gpu::{Device, GpuCache, GpuError, GpuSpec, Rows, Side};
use tqkv_tests::inputs::Gaussian;
use tqkv_tests::oracle;

/// Vectors for each codec and head dim.
const VECTORS: usize = 10_000;

/// Largest error of attention against f64 on the decoded cache.
const MAX_ERROR: f64 = 1e-5;

/// No GPU on this machine.
const NO_GPU: u8 = 3;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object on stdout and nothing else
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    device: String,
    multiprocessors: usize,
    /// Bytes read and written a second by a copy inside the device.
    copy_bytes_per_second: f64,
    codes: Vec<Codes>,
    attention: Vec<Attention>,
    speed: Vec<Speed>,
}

/// Codes against the portable codec.
#[derive(Serialize)]
struct Codes {
    codec: &'static str,
    head_dim: usize,
    vectors: usize,
    mismatches: usize,
}

/// Attention against f64 on the decoded cache.
#[derive(Serialize)]
struct Attention {
    key: &'static str,
    value: &'static str,
    head_dim: usize,
    heads_per_kv_head: usize,
    largest_error: f64,
}

/// One codec for keys and values, and the f16 rows of the same shape beside it.
#[derive(Serialize)]
struct Speed {
    codec: &'static str,
    head_dim: usize,
    heads_per_kv_head: usize,
    sequences: usize,
    tokens: usize,
    encoded_vectors_per_second: f64,
    attend_seconds: f64,
    attend_bytes_per_second: f64,
    /// Of the bandwidth of the copy.
    roofline_share: f64,
    f16_seconds: f64,
    f16_roofline_share: f64,
    /// f16 time over this codec's.
    f16_ratio: f64,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let device = match Device::new(0) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("gpu-check: {error}; nothing was checked");
            return ExitCode::from(NO_GPU);
        }
    };
    match check(&device) {
        Ok(report) => {
            if args.json {
                println!("{}", serde_json::json!(report));
            } else {
                print(&report);
            }
            let right = report.codes.iter().all(|row| row.mismatches == 0)
                && report.attention.iter().all(|row| row.largest_error <= MAX_ERROR);
            if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("gpu-check: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check(device: &Device) -> Result<Report, GpuError> {
    let mut report = Report {
        device: device.name()?,
        multiprocessors: device.multiprocessors(),
        copy_bytes_per_second: bench::copy_bandwidth(device, device.memory()?.0 / 4)?,
        codes: Vec::new(),
        attention: Vec::new(),
        speed: Vec::new(),
    };
    for id in tqkv_gpu::CODECS {
        for dim in tqkv_gpu::HEAD_DIMS {
            report.codes.push(codes(device, id, dim)?);
        }
    }
    use CodecId::{I8, N4, S2, S3, S4, T2, T3, T4};
    for (key, value, dim, group) in [
        (S4, S4, 128, 1),
        (S4, S4, 128, 4),
        (S2, S2, 256, 1),
        (S2, S2, 128, 4),
        (I8, S4, 128, 8),
        (S3, N4, 64, 2),
        (N4, S3, 256, 3),
        (T3, T2, 128, 1),
        (S4, T2, 128, 4),
        (T4, S4, 64, 8),
        (T2, T4, 256, 2),
    ] {
        report.attention.push(attention(device, [key, value], dim, group)?);
    }
    for (dim, group) in [(128, 1), (128, 4), (128, 8), (64, 1), (256, 1)] {
        speed(device, dim, group, &mut report)?;
    }
    Ok(report)
}

fn codes(device: &Device, id: CodecId, dim: usize) -> Result<Codes, GpuError> {
    let heads = 8;
    let tokens = VECTORS / heads;
    let spec = GpuSpec::new(1, heads, heads, dim).codecs(id, id).sequences(1, tokens);
    let mut cache = GpuCache::new(device, spec)?;
    let rows = Gaussian::new(dim as u64).vector(VECTORS * dim);
    cache.append(0, &vec![0; tokens], Rows::Host(&rows), Rows::Host(&rows))?;
    let blocks = cache.blocks(0, 0, Side::Keys)?;
    let codec = cache.codec(Side::Keys);
    let mut want = vec![0; codec.block_bytes()];
    let pairs = rows.chunks_exact(dim).zip(blocks.chunks_exact(codec.block_bytes()));
    let wrong = |(x, got): &(&[f32], &[u8])| codec.encode(x, &mut want).is_err() || want != **got;
    Ok(Codes { codec: id.name(), head_dim: dim, vectors: VECTORS, mismatches: pairs.filter(wrong).count() })
}

fn attention(
    device: &Device,
    [key, value]: [CodecId; 2],
    dim: usize,
    group: usize,
) -> Result<Attention, GpuError> {
    let (kv_heads, lengths) = (2, [0, 1, 63, 64, 65, 1000]);
    let heads = kv_heads * group;
    let spec = GpuSpec::new(1, heads, kv_heads, dim)
        .codecs(key, value)
        .options(Options::DEFAULT.seed(7))
        .sequences(lengths.len(), 1000);
    let mut cache = GpuCache::new(device, spec)?;
    let mut gaussian = Gaussian::new(1);
    for (sequence, length) in lengths.into_iter().enumerate() {
        let count = length * kv_heads * dim;
        let (keys, values) = (gaussian.vector(count), gaussian.vector(count));
        cache.append(0, &vec![sequence; length], Rows::Host(&keys), Rows::Host(&values))?;
    }
    let queries = gaussian.vector(lengths.len() * heads * dim);
    let mut out = vec![f32::NAN; queries.len()];
    cache.attend(0, &queries, &mut out)?;
    let mut largest_error = 0.0_f64;
    for (i, (query, got)) in queries.chunks_exact(dim).zip(out.chunks_exact(dim)).enumerate() {
        let (sequence, kv_head) = (i / heads, i % heads / group);
        let decoded = |side: Side| -> Result<Vec<Vec<f32>>, GpuError> {
            let (codec, blocks) = (cache.codec(side), cache.blocks(0, sequence, side)?);
            let blocks = blocks.chunks_exact(codec.block_bytes()).skip(kv_head).step_by(kv_heads);
            let decode = |block: &[u8]| {
                let mut row = vec![0.0; dim];
                codec.decode(block, &mut row).map(|()| row)
            };
            let rows: Result<_, _> = blocks.map(decode).collect();
            rows.map_err(|error| GpuError::Driver(format!("a block that does not decode: {error}")))
        };
        for (got, want) in
            got.iter().zip(oracle::attention(query, &decoded(Side::Keys)?, &decoded(Side::Values)?))
        {
            let error = (f64::from(*got) - want).abs();
            // NaN is an error too, and `max` would drop it.
            largest_error = if error.is_nan() { f64::INFINITY } else { largest_error.max(error) };
        }
    }
    Ok(Attention {
        key: key.name(),
        value: value.name(),
        head_dim: dim,
        heads_per_kv_head: group,
        largest_error,
    })
}

fn speed(device: &Device, head_dim: usize, group: usize, report: &mut Report) -> Result<(), GpuError> {
    let mut shape = Shape { sequences: 64, tokens: 32_768, num_kv_heads: 8, group, head_dim };
    while shape.sequences > 1 && shape.bytes(16, 16) > device.memory()?.0 / 2 {
        shape.sequences /= 2;
    }
    let f16_seconds = bench::halves(device, shape)?;
    let share = |bytes: usize, seconds: f64| bytes as f64 / seconds / report.copy_bytes_per_second;
    let f16_roofline_share = share(shape.bytes(16, 16), f16_seconds);
    for id in tqkv_gpu::CODECS {
        let measured = bench::codes(device, shape, id, id)?;
        let bytes = shape.bytes(id.bits(), id.bits());
        report.speed.push(Speed {
            codec: id.name(),
            head_dim,
            heads_per_kv_head: group,
            sequences: shape.sequences,
            tokens: shape.tokens,
            encoded_vectors_per_second: measured.encoded_per_second,
            attend_seconds: measured.attend,
            attend_bytes_per_second: bytes as f64 / measured.attend,
            roofline_share: share(bytes, measured.attend),
            f16_seconds,
            f16_roofline_share,
            f16_ratio: f16_seconds / measured.attend,
        });
    }
    Ok(())
}

fn print(report: &Report) {
    println!(
        "{}, {} multiprocessors, copies {:.2} TB/s",
        report.device,
        report.multiprocessors,
        report.copy_bytes_per_second / 1e12
    );
    println!("\ncodes against the portable codec");
    for row in &report.codes {
        println!(
            "{:>4} {:>4} {:>7} vectors {:>6} differ",
            row.codec, row.head_dim, row.vectors, row.mismatches
        );
    }
    println!("\nattention against f64 (at most {MAX_ERROR:e})");
    for row in &report.attention {
        println!(
            "{:>4},{:<3} {:>4} {} heads a KV head {:>9.1e}",
            row.key, row.value, row.head_dim, row.heads_per_kv_head, row.largest_error
        );
    }
    println!(
        "\ncodec  dim heads/KV  encode Gvec/s  attend ms   TB/s  roofline   f16 ms  f16 roofline  times f16"
    );
    for row in &report.speed {
        println!(
            "{:>5} {:>4} {:>8} {:>14.3} {:>10.3} {:>6.2} {:>8.1}% {:>8.3} {:>12.1}% {:>10.2}",
            row.codec,
            row.head_dim,
            row.heads_per_kv_head,
            row.encoded_vectors_per_second / 1e9,
            row.attend_seconds * 1e3,
            row.attend_bytes_per_second / 1e12,
            100.0 * row.roofline_share,
            row.f16_seconds * 1e3,
            100.0 * row.f16_roofline_share,
            row.f16_ratio
        );
    }
}
