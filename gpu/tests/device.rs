//! Tests the crate on this machine: without a GPU a clear error; with one its codes, attention and every
//! function. The latter are ignored by default, so that a run without a GPU says that they did not run:
//! `cargo test -p tqkv-gpu --test device -- --include-ignored` runs them all.
// This is a separate binary, because no fake driver may be in its process. It runs on machines without this
// repository.

use tqkv_core::{CodecId, Options};
use tqkv_gpu::{Device, GpuCache, GpuError, GpuSpec, Out, Qjl, Rows, Side, WeightDecoder};
use tqkv_tests::inputs::Gaussian;
use tqkv_tests::oracle;

/// The first device. Tests that need one are ignored, unless `--include-ignored` asks for them. They fail
/// without it then, because a test that returns early looks like one that has passed.
fn device() -> Device {
    Device::new(0).unwrap_or_else(|error| panic!("this test needs a GPU: {error}"))
}

/// Looks for the driver's library without the help of this crate.
fn has_driver() -> bool {
    // The dynamic loader, which `Device::new` uses, searches these folders.
    let paths = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let known = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/nvidia/lib64",
        "/usr/lib/aarch64-linux-gnu",
    ];
    paths.split(':').chain(known).any(|folder| {
        ["libcuda.so", "libcuda.so.1"].iter().any(|name| std::path::Path::new(folder).join(name).exists())
    })
}

#[test]
fn a_machine_without_a_driver_says_so() {
    if has_driver() {
        assert_ne!(Device::new(0).err(), Some(GpuError::NoDriver));
    } else {
        let error = Device::new(0).unwrap_err();
        assert_eq!(error, GpuError::NoDriver);
        assert_eq!(error.to_string(), "no CUDA driver is installed (libcuda was not found)");
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    assert!(matches!(Device::new(4096), Err(GpuError::NoDriver | GpuError::NoDevice { ordinal: 4096, .. })));
}

#[test]
#[ignore = "needs a GPU"]
fn codes_are_the_portable_codecs() {
    let device = device();
    for id in tqkv_gpu::CODECS {
        for dim in tqkv_gpu::HEAD_DIMS {
            let spec = GpuSpec::new(1, 2, 2, dim).codecs(id, id).sequences(3, 400);
            let mut cache = GpuCache::new(&device, spec).unwrap();
            let sequences: Vec<usize> = (0..700).map(|i| [0, 2, 2, 1, 0, 2, 0][i % 7]).collect();
            let (keys, values) =
                (Gaussian::new(1).vector(700 * 2 * dim), Gaussian::new(2).vector(700 * 2 * dim));
            for (chunk, at) in sequences.chunks(300).zip((0..).step_by(300)) {
                let part = at * 2 * dim..(at + chunk.len()) * 2 * dim;
                cache.append(0, chunk, Rows::Host(&keys[part.clone()]), Rows::Host(&values[part])).unwrap();
            }
            for sequence in 0..3 {
                for (side, rows) in [(Side::Keys, &keys), (Side::Values, &values)] {
                    let codec = cache.codec(side);
                    let mut block = vec![0; codec.block_bytes()];
                    let mine = |token: &&(usize, &[f32])| sequences[token.0] == sequence;
                    let want: Vec<u8> = rows
                        .chunks_exact(2 * dim)
                        .enumerate()
                        .filter(|token| mine(&token))
                        .flat_map(|(_, heads)| heads.chunks_exact(dim))
                        .flat_map(|x| {
                            codec.encode(x, &mut block).unwrap();
                            block.clone()
                        })
                        .collect();
                    assert!(cache.blocks(0, sequence, side).unwrap() == want, "{} {dim} {side:?}", id.name());
                }
            }
        }
    }
}

/// Decoded rows of one head.
fn decoded(cache: &GpuCache, sequence: usize, side: Side, head: usize, heads: usize) -> Vec<Vec<f32>> {
    let codec = cache.codec(side);
    let blocks = cache.blocks(0, sequence, side).unwrap();
    let blocks = blocks.chunks_exact(codec.block_bytes()).skip(head).step_by(heads);
    blocks
        .map(|block| {
            let mut row = vec![0.0; codec.dim()];
            codec.decode(block, &mut row).unwrap();
            row
        })
        .collect()
}

fn check_attention(cache: &mut GpuCache, seed: u64) {
    let GpuSpec { num_heads, num_kv_heads, head_dim, num_sequences, .. } = *cache.spec();
    let queries = Gaussian::new(seed).vector(num_sequences * num_heads * head_dim);
    let mut out = vec![f32::NAN; queries.len()];
    cache.attend(0, &queries, &mut out).unwrap();
    let rows = queries.chunks_exact(head_dim).zip(out.chunks_exact(head_dim));
    for (i, (query, got)) in rows.enumerate() {
        let (sequence, head) = (i / num_heads, i % num_heads * num_kv_heads / num_heads);
        let side = |side| decoded(cache, sequence, side, head, num_kv_heads);
        for (got, want) in got.iter().zip(oracle::attention(query, &side(Side::Keys), &side(Side::Values))) {
            assert!((f64::from(*got) - want).abs() < 2e-4, "sequence {sequence} head {head}: {got} {want}");
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn attention_and_the_verbs_agree_with_f64() {
    let device = device();
    use CodecId::{I8, S4, T2, T3, T4};
    for (dim, group, key, value) in [
        (64, 1, S4, I8),
        (128, 2, T3, T2),
        (256, 3, S4, I8),
        (128, 8, T4, S4),
        (64, 2, S4, T2),
        (256, 1, T2, T4),
    ] {
        let spec = GpuSpec::new(2, 2 * group, 2, dim)
            .codecs(key, value)
            .options(Options::DEFAULT.seed(5))
            .exact(0, 0)
            .sequences(4, 600);
        let mut cache = GpuCache::new(&device, spec).unwrap();
        check_attention(&mut cache, 1);
        for (sequence, tokens) in [(0, 1), (1, 64), (3, 333)] {
            let rows = Gaussian::new(tokens as u64).vector(tokens * 2 * dim);
            cache.append(0, &vec![sequence; tokens], Rows::Host(&rows), Rows::Host(&rows)).unwrap();
        }
        check_attention(&mut cache, 2);
        cache.truncate(3, 100).unwrap();
        assert_eq!((cache.len(3), cache.len(1)), (100, 64));
        check_attention(&mut cache, 3);
        assert_eq!(cache.stats().pages_used, 1 + 1 + 2);
        cache.reset();
        assert!(cache.is_empty());
        assert_eq!(cache.stats().pages_used, 0);
    }
}

/// Keys and values of a sequence after the first 4 GiB of a pool. Only a GPU has the room.
#[test]
#[ignore = "needs a GPU with 16 GiB of free memory"]
fn a_sequence_behind_4_gib_is_that_of_a_small_cache() {
    let device = device();
    let spec = |tokens| GpuSpec::new(1, 32, 8, 128).codecs(CodecId::I8, CodecId::I8).sequences(2, tokens);
    // A token takes 8 heads of 132 bytes a side, so this many take 4 GiB and more.
    let (chunk, before) = (64_000, 4_224_000);
    let free = device.memory().unwrap().0;
    assert!(free >= 16 << 30, "{free} bytes of GPU memory are free, this test needs 16 GiB");
    let mut far = GpuCache::new(&device, spec(before).pool_tokens(before + 1024)).unwrap();
    let mut near = GpuCache::new(&device, spec(1024)).unwrap();
    let rows = device.stream().clone_htod(&Gaussian::new(1).vector(chunk * 8 * 128)).unwrap();
    for _ in 0..before / chunk {
        far.append(0, &vec![0; chunk], Rows::F32(&rows), Rows::F32(&rows)).unwrap();
    }
    let (rows, queries) = (Gaussian::new(2).vector(1000 * 8 * 128), Gaussian::new(3).vector(32 * 128));
    let mut outs = Vec::new();
    for cache in [&mut far, &mut near] {
        cache.append(0, &[1; 1000], Rows::Host(&rows), Rows::Host(&rows)).unwrap();
        // The cut depends on the other sequence, so this attends to the second one alone.
        let mut out = device.stream().alloc_zeros::<f32>(32 * 128).unwrap();
        cache.attend_some(0, &[1], Rows::Host(&queries), &mut out).unwrap();
        outs.push(device.stream().clone_dtoh(&out).unwrap());
    }
    assert!(outs[0] == outs[1]);
    for side in [Side::Keys, Side::Values] {
        assert!(far.blocks(0, 1, side).unwrap() == near.blocks(0, 1, side).unwrap(), "{side:?}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_chunk_sees_what_each_of_its_tokens_sees() {
    let device = device();
    let spec = GpuSpec::new(1, 4, 2, 128).sequences(1, 600);
    let (mut whole, mut single) =
        (GpuCache::new(&device, spec.clone()).unwrap(), GpuCache::new(&device, spec).unwrap());
    let tokens = 300;
    let (queries, rows) =
        (Gaussian::new(1).vector(tokens * 4 * 128), Gaussian::new(2).vector(tokens * 2 * 128));
    let (mut out, mut step) = (vec![0.0; queries.len()], vec![0.0; 4 * 128]);
    whole.attend_chunk(0, 0, &queries, &rows, &rows, &mut out).unwrap();
    for (i, want) in out.chunks_exact(4 * 128).enumerate() {
        let row = &rows[i * 256..(i + 1) * 256];
        single.append(0, &[0], Rows::Host(row), Rows::Host(row)).unwrap();
        single.attend(0, &queries[i * 512..(i + 1) * 512], &mut step).unwrap();
        assert!(step.iter().zip(want).all(|(a, b)| (a - b).abs() < 2e-4), "token {i}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn refused_calls_leave_the_cache_as_it_was() {
    let device = device();
    let spec = GpuSpec::new(1, 2, 1, 64).sequences(2, 100).pool_tokens(128);
    let mut cache = GpuCache::new(&device, spec).unwrap();
    let row = vec![1.0; 64];
    let mut bad = row.clone();
    bad[3] = f32::NAN;
    let mut append = |sequences: &[usize], rows: &[f32]| {
        let result = cache.append(0, sequences, Rows::Host(rows), Rows::Host(rows));
        (result.map_err(|error| error.to_string()), cache.stats().tokens)
    };
    assert_eq!(append(&[2], &row).0.unwrap_err(), "sequence 2 is out of range: the cache has 2 sequences");
    assert_eq!(append(&[0], &row[1..]).0.unwrap_err(), "keys has 63 values, expected 64");
    let (error, tokens) = append(&[0, 1], &[row.clone(), bad].concat());
    assert_eq!(
        (error.unwrap_err().as_str(), tokens),
        ("key of layer 0, token 1, KV head 0 is not finite", 0)
    );
    let many = row.repeat(101);
    assert_eq!(append(&[0; 101], &many).0.unwrap_err(), "sequence 0 is full: it holds at most 100 tokens");
    assert_eq!(append(&[0; 100], &many[..6400]).1, 100);
    assert_eq!(append(&[1], &row).0.unwrap_err(), "all 2 pages are taken");
    let huge = GpuSpec::new(1, 8, 8, 256).sequences(1 << 12, 1 << 16);
    assert!(matches!(GpuCache::new(&device, huge), Err(GpuError::OutOfMemory { .. })));
}

#[test]
#[ignore = "needs a GPU"]
fn decoded_vectors_logits_and_weights_are_the_portable_codecs() {
    let device = device();
    for id in tqkv_gpu::CODECS {
        let (dim, tokens, heads) = (128, 200, 6);
        let spec = GpuSpec::new(1, heads, 2, dim).codecs(id, id).sequences(2, 256).exact(0, 0);
        let mut cache = GpuCache::new(&device, spec).unwrap();
        let rows = Gaussian::new(3).vector(tokens * 2 * dim);
        cache.append(0, &vec![1; tokens], Rows::Host(&rows), Rows::Host(&rows)).unwrap();
        let all: Vec<Vec<f32>> = (0..2).flat_map(|head| decoded(&cache, 1, Side::Keys, head, 2)).collect();

        let stream = device.stream().clone();
        let mut out = stream.alloc_zeros::<f32>(rows.len()).unwrap();
        cache.decode(0, 1, Side::Keys, &mut out).unwrap();
        let got = stream.clone_dtoh(&out).unwrap();
        stream.synchronize().unwrap();
        for (i, got) in got.chunks_exact(dim).enumerate() {
            assert_eq!(got, all[i % 2 * tokens + i / 2], "{}", id.name());
        }

        let queries = Gaussian::new(4).vector(heads * dim);
        let scores = cache.scores(0, 1, &queries).unwrap();
        for (i, score) in scores.iter().enumerate() {
            let (token, head) = (i / heads, i % heads);
            let key = &all[head / 3 * tokens + token];
            let want = oracle::dot(&queries[head * dim..(head + 1) * dim], key) / (dim as f64).sqrt();
            assert!((f64::from(*score) - want).abs() < 2e-4 * want.abs().max(1.0), "{score} {want}");
        }

        let blocks = cache.blocks(0, 1, Side::Keys).unwrap();
        let blocks = stream.clone_htod(&blocks).unwrap();
        let decoder = WeightDecoder::new(&device, id, dim, Options::DEFAULT).unwrap();
        let mut halves = stream.alloc_zeros::<u16>(rows.len()).unwrap();
        decoder.decode(&blocks, Out::F16(&mut halves)).unwrap();
        let halves = stream.clone_dtoh(&halves).unwrap();
        stream.synchronize().unwrap();
        assert!(halves.iter().zip(&got).all(|(h, &f)| *h == half::f16::from_f32(f).to_bits()));
        assert!(
            decoder
                .decode(&stream.alloc_zeros(7).unwrap(), &mut stream.alloc_zeros::<f32>(1).unwrap())
                .is_err()
        );
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_residual_correction_is_the_papers_estimate() {
    let device = device();
    let (dim, count, heads) = (64, 50, 2);
    let matrix = Gaussian::new(1).vector(dim * dim);
    let (residuals, queries) = (Gaussian::new(2).vector(count * dim), Gaussian::new(3).vector(heads * dim));
    let qjl = Qjl::new(&device, dim, matrix.clone()).unwrap();
    let stream = device.stream().clone();
    let on_device = stream.clone_htod(&residuals).unwrap();
    let (mut signs, mut norms) =
        (stream.alloc_zeros(count * dim / 32).unwrap(), stream.alloc_zeros(count).unwrap());
    qjl.sketch(&on_device, &mut signs, &mut norms).unwrap();
    let projected = stream.clone_htod(&qjl.project(&queries)).unwrap();
    let mut scores = stream.alloc_zeros::<f32>(count * heads).unwrap();
    qjl.correct(&projected, &signs, &norms, 1, &mut scores).unwrap();
    let scores = stream.clone_dtoh(&scores).unwrap();
    stream.synchronize().unwrap();
    for (i, score) in scores.iter().enumerate() {
        let residual = &residuals[i / heads * dim..][..dim];
        let query = &queries[i % heads * dim..][..dim];
        let rows = matrix.chunks_exact(dim);
        let sum: f64 = rows.map(|row| oracle::dot(row, query) * oracle::dot(row, residual).signum()).sum();
        let factor = (std::f64::consts::PI / 2.0).sqrt() / dim as f64;
        let want = oracle::energy(residual).sqrt() * factor * sum;
        assert!((f64::from(*score) - want).abs() < 2e-4 * want.abs().max(1.0), "{score} {want}");
    }
}
