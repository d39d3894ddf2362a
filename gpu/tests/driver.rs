//! Tests the host's use of the driver. The default is a fake driver, which runs work late, checks every call,
//! and runs kernels in the PTX interpreter. With `TQKV_REQUIRE_GPU=1` the tests run on a GPU; those that need
//! the fake end in `_on_paper`, and are left out with `--skip _on_paper`.
// This is a separate binary, because it loads the fake driver into its process. It runs on machines without
// this repository.
#![cfg(target_os = "linux")]

#[path = "driver/contexts.rs"]
mod contexts;
#[path = "driver/exact.rs"]
mod exact;
#[path = "driver/lives.rs"]
mod lives;
#[path = "driver/paged.rs"]
mod paged;
#[path = "driver/queries.rs"]
mod queries;
#[path = "driver/steps.rs"]
mod steps;
#[path = "driver/units.rs"]
mod units;

use std::sync::OnceLock;
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_gpu::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DeviceRepr, sys};
use tqkv_gpu::{Device, Element, GpuCache, GpuError, GpuSpec, Out, Qjl, Raw, Rows, Side, WeightDecoder};
use tqkv_gpu_fake::Counts;
use tqkv_tests::inputs::Gaussian;
use tqkv_tests::oracle;

/// Returns true if the driver is the fake one.
fn on_paper() -> bool {
    std::env::var("TQKV_REQUIRE_GPU").map_or(true, |value| value != "1")
}

/// Stops a test that needs the fake driver where a real one runs. A run on a GPU leaves such tests out by
/// name (`--skip _on_paper`), because one that returned early would look like one that has passed.
fn must_be_on_paper() {
    assert!(on_paper(), "this test needs the fake driver: pass --skip _on_paper with TQKV_REQUIRE_GPU=1");
}

/// Loads the fake driver. This must happen before anything looks for the real one.
fn fake() -> &'static libloading::Library {
    static FAKE: OnceLock<libloading::Library> = OnceLock::new();
    FAKE.get_or_init(|| {
        let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let path = folder.join("libtqkv_gpu_fake.so");
        // SAFETY: it is a library of this workspace, and loading it runs no code.
        unsafe { libloading::Library::new(&path) }
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    })
}

/// Counts of this thread's calls to the driver so far.
fn counts() -> Counts {
    let mut counts = Counts::default();
    if !on_paper() {
        return counts;
    }
    // SAFETY: the library exports this function, and it writes one `Counts`.
    unsafe {
        let call = fake().get::<unsafe extern "C" fn(*mut Counts) -> i32>(b"tqkv_fake_counts").unwrap();
        call(&raw mut counts);
    }
    counts
}

/// Counts of this thread's calls to the driver since `before`.
fn since(before: Counts) -> Counts {
    let now = counts();
    Counts {
        launches: now.launches - before.launches,
        warps: now.warps - before.warps,
        copies_in: now.copies_in - before.copies_in,
        bytes_in: now.bytes_in - before.bytes_in,
        bytes_out: now.bytes_out - before.bytes_out,
        pageable: now.pageable - before.pageable,
        waits: now.waits - before.waits,
        allocations: now.allocations - before.allocations,
        modules: now.modules - before.modules,
        events: now.events - before.events,
    }
}

/// A device with its own stream.
fn device(ordinal: usize) -> Device {
    if on_paper() {
        fake();
    }
    Device::new(ordinal).unwrap()
}

const DIM: usize = 64;
const KV_HEADS: usize = 2;
const HEADS: usize = 4;
/// Values per token of the keys; the next constant is the same for the queries.
const ROW: usize = KV_HEADS * DIM;
const QUERY: usize = HEADS * DIM;

fn spec(layers: usize) -> GpuSpec {
    GpuSpec::new(layers, HEADS, KV_HEADS, DIM).sequences(3, 200).options(Options::DEFAULT.seed(5)).exact(0, 0)
}

fn cache(layers: usize) -> GpuCache {
    GpuCache::new(&device(0), spec(layers)).unwrap()
}

fn noise(seed: u64, len: usize) -> Vec<f32> {
    Gaussian::new(seed).vector(len)
}

/// Copies `values` to the device and waits for the copy.
fn upload<T: DeviceRepr>(device: &Device, values: &[T]) -> CudaSlice<T> {
    device.stream().clone_htod(values).unwrap()
}

/// Decoded rows of one KV head.
fn decoded(cache: &GpuCache, layer: usize, sequence: usize, side: Side, head: usize) -> Vec<Vec<f32>> {
    let codec = cache.codec(side);
    let blocks = cache.blocks(layer, sequence, side).unwrap();
    let blocks = blocks.chunks_exact(codec.block_bytes()).skip(head).step_by(KV_HEADS);
    let decode = |block: &[u8]| {
        let mut row = vec![0.0; codec.dim()];
        codec.decode(block, &mut row).unwrap();
        row
    };
    blocks.map(decode).collect()
}

/// Attention in f64 of one token's queries over the first `length` tokens of a sequence.
fn wanted(cache: &GpuCache, layer: usize, sequence: usize, length: usize, queries: &[f32]) -> Vec<f64> {
    let mut all = Vec::new();
    for (head, query) in queries.chunks_exact(DIM).enumerate() {
        let side = |side| {
            let mut rows = decoded(cache, layer, sequence, side, head * KV_HEADS / HEADS);
            rows.truncate(length);
            rows
        };
        all.extend(match length {
            0 => vec![0.0; DIM],
            _ => oracle::attention(query, &side(Side::Keys), &side(Side::Values)),
        });
    }
    all
}

fn assert_near(got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*got) - want).abs() <= tolerance, "value {i}: {got} {want}");
    }
}

/// Appends `tokens` tokens to a sequence in all layers, and returns the keys.
fn fill(cache: &mut GpuCache, sequence: usize, tokens: usize, seed: u64) -> Vec<f32> {
    let rows = noise(seed, tokens * ROW);
    for layer in 0..cache.spec().num_layers {
        cache.append(layer, &vec![sequence; tokens], Rows::Host(&rows), Rows::Host(&rows)).unwrap();
    }
    rows
}

/// The portable codec's blocks of rows.
fn blocks(codec: &AnyCodec, rows: &[f32]) -> Vec<u8> {
    let mut block = vec![0; codec.block_bytes()];
    let encode = |row: &[f32]| {
        codec.encode(row, &mut block).unwrap();
        block.clone()
    };
    rows.chunks_exact(codec.dim()).flat_map(encode).collect()
}

#[test]
fn host_memory_may_be_written_again_as_soon_as_a_call_returns() {
    let mut cache = cache(1);
    fill(&mut cache, 0, 3, 1);
    let (all, len) = (noise(2, 3 * 3 * QUERY), 3 * QUERY);
    let stream = {
        // Three calls that do not wait use one buffer, which is overwritten between them.
        let device = device(0);
        let mut outs: Vec<_> = (0..3).map(|_| device.stream().alloc_zeros::<f32>(len).unwrap()).collect();
        device.stream().synchronize().unwrap();
        for (queries, out) in all.chunks_exact(len).zip(&mut outs) {
            let mut given = queries.to_vec();
            cache.attend_on_device(0, Rows::Host(&given), out).unwrap();
            given.fill(f32::NAN);
        }
        // Keys go through the same page-locked memory, and need more of it.
        cache
            .append(0, &[1; 150], Rows::Host(&noise(3, 150 * ROW)), Rows::Host(&noise(4, 150 * ROW)))
            .unwrap();
        for (queries, out) in all.chunks_exact(len).zip(&outs) {
            let got = device.stream().clone_dtoh(out).unwrap();
            assert_near(&got[..QUERY], &wanted(&cache, 0, 0, 3, &queries[..QUERY]), 2e-4);
            assert!(got[QUERY..].iter().all(|v| *v == 0.0), "empty sequences give zeros");
        }
        device.stream().clone()
    };
    // A cache may be dropped while a copy from its page-locked memory is running.
    let mut out = stream.alloc_zeros::<f32>(len).unwrap();
    let queries = Rows::Host(&all[..len]);
    let of_cache = cache_stream(&cache);
    cache.attend_on_device(0, queries, &mut out).unwrap();
    drop(cache);
    of_cache.synchronize().unwrap();
}

/// The stream of a cache, to wait for its work after the cache is dropped.
fn cache_stream(cache: &GpuCache) -> std::sync::Arc<CudaStream> {
    cache.device().stream().clone()
}

#[test]
fn nothing_is_sent_from_memory_that_is_not_page_locked_and_equal_words_are_sent_once_on_paper() {
    must_be_on_paper();
    let before = counts();
    let mut cache = cache(3);
    let device = cache.device().clone();
    let rows = upload(&device, &noise(1, 2 * ROW));
    let uploads = since(before);
    assert_eq!(uploads.pageable, 1, "the test's own copy");
    let queries = upload(&device, &noise(2, 3 * QUERY));
    let mut out = device.stream().alloc_zeros::<f32>(3 * QUERY).unwrap();
    let mut step = |cache: &mut GpuCache| {
        let before = counts();
        for layer in 0..3 {
            cache.append(layer, &[0, 2], Rows::F32(&rows), Rows::F32(&rows)).unwrap();
            cache.attend_some(layer, &[0, 2], Rows::F32(&device_part(&queries, &device)), &mut out).unwrap();
        }
        since(before)
    };
    let _ = step(&mut cache);
    let second = step(&mut cache);
    // The test itself copies the queries from pageable memory, once per layer. The cache makes none of these
    // copies.
    assert_eq!(second.copies_in - second.pageable, 1, "one list of tokens for all layers, no page table");
    assert_eq!(second.launches, 3 * (1 + 3));
    assert_eq!(second.waits, 3, "for each layer's outcomes");
}

/// Copies the first two rows of queries to a separate buffer.
fn device_part(queries: &CudaSlice<f32>, device: &Device) -> CudaSlice<f32> {
    let all = device.stream().clone_dtoh(queries).unwrap();
    upload(device, &all[..2 * QUERY])
}

#[test]
fn one_codec_is_compiled_once_on_paper() {
    must_be_on_paper();
    let device = device(0);
    let modules = |key, value| {
        let before = counts();
        GpuCache::new(&device, spec(1).codecs(key, value)).unwrap();
        since(before).modules
    };
    assert_eq!(
        modules(CodecId::S4, CodecId::S4),
        4,
        "one coder, the encoders of both sides, what stands round attention, and that for its formats"
    );
    assert_eq!(modules(CodecId::S4, CodecId::S2), 5);
}

#[test]
fn an_append_waits_once_and_codes_are_the_portable_codecs() {
    let mut cache = cache(1);
    let device = cache.device().clone();
    let values = noise(9, 70 * ROW);
    let (keys_there, values_there) = (upload(&device, &noise(8, 70 * ROW)), upload(&device, &values));
    cache.append(0, &[0], Rows::Host(&noise(1, ROW)), Rows::Host(&noise(1, ROW))).unwrap();
    cache.truncate(0, 0).unwrap();
    let before = counts();
    cache.append(0, &[0; 70], Rows::F32(&keys_there), Rows::F32(&values_there)).unwrap();
    let append = since(before);
    assert!((append.launches, append.waits) == (1, 1) || !on_paper(), "{append:?}");
    assert_eq!(cache.blocks(0, 0, Side::Keys).unwrap(), blocks(cache.codec(Side::Keys), &noise(8, 70 * ROW)));
    assert_eq!(cache.blocks(0, 0, Side::Values).unwrap(), blocks(cache.codec(Side::Values), &values));
}

#[test]
fn refused_vectors_are_named_and_leave_the_cache_as_it_was() {
    let mut cache = cache(2);
    fill(&mut cache, 1, 5, 1);
    let good = noise(2, 3 * ROW);
    let mut bad = good.clone();
    bad[2 * ROW + DIM] = f32::INFINITY;
    let error = cache.append(1, &[1, 0, 1], Rows::Host(&good), Rows::Host(&bad)).unwrap_err();
    assert_eq!(error.to_string(), "value of layer 1, token 2, KV head 1 is not finite");
    assert_eq!((cache.len(0), cache.len(1), cache.stats().pages_used), (0, 5, 1));

    let mut huge = good.clone();
    huge[ROW..ROW + DIM].fill(1e30);
    cache.begin_step(&[1, 0, 1]).unwrap();
    cache.append_step(0, Rows::Host(&good), Rows::Host(&good)).unwrap();
    cache.append_step(1, Rows::Host(&huge), Rows::Host(&good)).unwrap();
    assert_eq!((cache.len(0), cache.len(1)), (1, 7), "tokens of a step count at once");
    let error = cache.end_step().unwrap_err();
    assert_eq!(
        error.to_string(),
        "key of layer 1, token 1, KV head 0 is too large: its scale does not fit f16"
    );
    assert_eq!((cache.len(0), cache.len(1)), (0, 7), "its sequence went back in all layers, and no other");
    assert_eq!(cache.stats().pages_used, 1);
    // The tokens after a bad one of the same sequence go too.
    let mut bad = good.clone();
    bad[ROW] = f32::NAN;
    cache.begin_step(&[1, 1, 1]).unwrap();
    cache.append_step(0, Rows::Host(&good), Rows::Host(&bad)).unwrap();
    cache.append_step(1, Rows::Host(&good), Rows::Host(&good)).unwrap();
    let error = cache.end_step().unwrap_err();
    assert_eq!(error.to_string(), "value of layer 0, token 1, KV head 0 is not finite");
    assert_eq!(cache.len(1), 8);
}

#[test]
fn forks_share_pages_until_one_writes() {
    let mut cache = cache(2);
    fill(&mut cache, 0, 100, 1);
    cache.fork(0, 2, 90).unwrap();
    assert_eq!((cache.len(2), cache.stats().pages_used), (90, 2), "no page is taken");
    let before = [0, 1].map(|layer| cache.blocks(layer, 0, Side::Keys).unwrap());
    let start = 90 * KV_HEADS * cache.codec(Side::Keys).block_bytes();
    for (layer, before) in before.iter().enumerate() {
        assert_eq!(cache.blocks(layer, 2, Side::Keys).unwrap(), before[..start]);
    }
    let more = fill(&mut cache, 2, 3, 7);
    assert_eq!(cache.stats().pages_used, 3, "a copy of the second page");
    for (layer, before) in before.iter().enumerate() {
        assert_eq!(cache.blocks(layer, 0, Side::Keys).unwrap(), *before, "the first goes on as it was");
        let wanted = [&before[..start], &blocks(cache.codec(Side::Keys), &more)].concat();
        assert_eq!(cache.blocks(layer, 2, Side::Keys).unwrap(), wanted);
        assert_eq!(cache.blocks(layer, 2, Side::Values).unwrap(), wanted, "values of the same rows");
    }
    let message = |result: Result<(), GpuError>| result.unwrap_err().to_string();
    assert_eq!(
        message(cache.fork(0, 2, 5)),
        "sequence 2 has 93 tokens; it must be empty to become the copy of another"
    );
    assert_eq!(message(cache.fork(3, 1, 5)), "sequence 3 is out of range: the cache has 3 sequences");
    cache.truncate(0, 0).unwrap();
    assert_eq!(cache.stats().pages_used, 2);
    assert_eq!(
        cache.blocks(0, 2, Side::Keys).unwrap()[..start],
        before[0][..start],
        "shared pages outlive one"
    );
    cache.reset();
    assert_eq!(cache.stats().pages_used, 0);
}

#[test]
fn results_and_rows_have_the_type_and_the_owner_that_they_are_given() {
    let mut cache = cache(1);
    let device = cache.device().clone();
    let stream = device.stream().clone();
    for (sequence, tokens) in [(0, 70), (2, 3)] {
        fill(&mut cache, sequence, tokens, 1 + sequence as u64);
    }
    let queries = noise(5, 3 * QUERY);
    let mut exact = vec![0.0; 3 * QUERY];
    cache.attend(0, &queries, &mut exact).unwrap();
    let there = upload(&device, &queries);
    let mut halves = stream.alloc_zeros::<u16>(3 * QUERY).unwrap();
    cache.attend_on_device(0, Rows::F32(&there), Out::F16(&mut halves)).unwrap();
    let f16 = |values: &[f32]| values.iter().map(|&v| half::f16::from_f32(v).to_bits()).collect::<Vec<_>>();
    let bf16 = |values: &[f32]| values.iter().map(|&v| half::bf16::from_f32(v).to_bits()).collect::<Vec<_>>();
    assert_eq!(stream.clone_dtoh(&halves).unwrap(), f16(&exact));
    cache.attend_on_device(0, Rows::F32(&there), Out::Bf16(&mut halves)).unwrap();
    assert_eq!(stream.clone_dtoh(&halves).unwrap(), bf16(&exact));

    // Memory given by address, and some sequences in another order.
    let mut picked = stream.alloc_zeros::<f32>(2 * QUERY).unwrap();
    let two = upload(&device, &[&queries[2 * QUERY..], &queries[..QUERY]].concat());
    {
        let (from, _guard) = two.device_ptr(&stream);
        let (to, _other) = picked.device_ptr(&stream);
        // SAFETY: both buffers outlive the stream's work, have enough values, and nothing else uses them.
        let (from, to) =
            unsafe { (Raw::new(from, 2 * QUERY, Element::F32), Raw::new(to, 2 * QUERY, Element::F32)) };
        cache.attend_some(0, &[2, 0], Rows::Raw(from), to).unwrap();
        let short = cache.attend_some(0, &[2], Rows::Raw(from), to).unwrap_err();
        assert_eq!(short.to_string(), "queries has 512 values, expected 256");
    }
    assert_eq!(stream.clone_dtoh(&picked).unwrap(), [&exact[2 * QUERY..], &exact[..QUERY]].concat());
    cache.attend_some(0, &[], Rows::Host(&[]), &mut picked).unwrap();

    // Decodes for a prefill kernel.
    let mut floats = stream.alloc_zeros::<f32>(70 * ROW).unwrap();
    cache.decode(0, 0, Side::Keys, &mut floats).unwrap();
    let floats = stream.clone_dtoh(&floats).unwrap();
    let mut decoded = stream.alloc_zeros::<u16>(70 * ROW).unwrap();
    cache.decode(0, 0, Side::Keys, Out::F16(&mut decoded)).unwrap();
    assert_eq!(stream.clone_dtoh(&decoded).unwrap(), f16(&floats));
    cache.decode(0, 0, Side::Keys, Out::Bf16(&mut decoded)).unwrap();
    assert_eq!(stream.clone_dtoh(&decoded).unwrap(), bf16(&floats));
    // SAFETY: the memory is too short, so it is refused and never used.
    let raw = unsafe { Raw::new(0, 3, Element::F16) };
    assert_eq!(
        cache.decode(0, 0, Side::Keys, raw).unwrap_err().to_string(),
        "out has 3 values, expected 8960"
    );
    picked = stream.alloc_zeros::<f32>(2).unwrap();
    drop(picked);
}

#[test]
fn a_mean_that_is_taken_off_all_keys_changes_no_attention_and_much_of_its_error() {
    const TOKENS: usize = 70;
    let (noise_of_keys, values, queries) = (noise(1, TOKENS * ROW), noise(2, TOKENS * ROW), noise(3, QUERY));
    // Each KV head has a large constant, as in models with biases.
    let mean: Vec<f32> = noise(4, ROW).iter().map(|v| 20.0 * v).collect();
    let with = |keys: &[f32], sign: f32| -> Vec<f32> {
        keys.iter().zip(mean.iter().cycle()).map(|(key, mean)| key + sign * mean).collect()
    };
    let biased = with(&noise_of_keys, 1.0);
    let rows = |rows: &[f32], kv_head: usize| -> Vec<Vec<f32>> {
        rows.chunks_exact(DIM).skip(kv_head).step_by(KV_HEADS).map(<[f32]>::to_vec).collect()
    };
    let exact: Vec<f64> = (0..HEADS)
        .flat_map(|head| {
            let (kv_head, query) = (head * KV_HEADS / HEADS, &queries[head * DIM..(head + 1) * DIM]);
            oracle::attention(query, &rows(&biased, kv_head), &rows(&values, kv_head))
        })
        .collect();
    let error = |keys: &[f32]| {
        let mut cache = cache(1);
        cache.append(0, &[0; TOKENS], Rows::Host(keys), Rows::Host(&values)).unwrap();
        let mut out = cache.device().stream().alloc_zeros::<f32>(QUERY).unwrap();
        cache.attend_some(0, &[0], Rows::Host(&queries), &mut out).unwrap();
        let got = cache.device().stream().clone_dtoh(&out).unwrap();
        got.iter().zip(&exact).map(|(got, exact)| (f64::from(*got) - exact).powi(2)).sum::<f64>().sqrt()
    };
    let (plain, centred) = (error(&biased), error(&with(&biased, -1.0)));
    assert!(5.0 * centred < plain, "{centred} {plain}");
}

#[test]
fn chunks_of_several_tiles_are_causal() {
    let spec = GpuSpec::new(1, 2, 1, DIM).sequences(1, 300).exact(0, 0);
    let mut cache = GpuCache::new(&device(0), spec).unwrap();
    let tokens = 260;
    let (queries, rows) = (noise(1, tokens * 2 * DIM), noise(2, tokens * DIM));
    let mut out = vec![0.0; queries.len()];
    cache.attend_chunk(0, 0, &queries, &rows, &rows, &mut out).unwrap();
    let codec = cache.codec(Side::Keys);
    let all = cache.blocks(0, 0, Side::Keys).unwrap();
    let decode = |block: &[u8]| {
        let mut row = vec![0.0; DIM];
        codec.decode(block, &mut row).unwrap();
        row
    };
    let all: Vec<Vec<f32>> = all.chunks_exact(codec.block_bytes()).map(decode).collect();
    for token in [0, 1, 63, 64, 255, 256, 259] {
        for head in 0..2 {
            let part = (2 * token + head) * DIM..(2 * token + head + 1) * DIM;
            let want = oracle::attention(&queries[part.clone()], &all[..=token], &all[..=token]);
            assert_near(&out[part], &want, 2e-4);
        }
    }
}

#[test]
fn memory_of_another_device_is_refused_on_paper() {
    must_be_on_paper();
    let (mut cache, other) = (cache(1), device(1));
    let stream = other.stream().clone();
    let rows = stream.alloc_zeros::<f32>(3 * QUERY).unwrap();
    let halves = stream.alloc_zeros::<u16>(3 * QUERY).unwrap();
    let mut out = stream.alloc_zeros::<f32>(3 * QUERY).unwrap();
    let refused = |what: &str, result: Result<(), GpuError>| {
        let expected = format!("{what} belongs to another context than this cache's device, number 0");
        assert_eq!(result.unwrap_err().to_string(), expected);
    };
    let keys = stream.alloc_zeros::<f32>(ROW).unwrap();
    let host = noise(1, ROW);
    refused("keys", cache.append(0, &[0], Rows::F32(&keys), Rows::Host(&host)));
    refused("values", cache.append(0, &[0], Rows::Host(&host), Rows::F32(&keys)));
    refused("queries", cache.attend_on_device(0, Rows::Bf16(&halves), &mut out));
    refused("out", cache.attend_on_device(0, Rows::Host(&noise(1, 3 * QUERY)), &mut out));
    refused("out", cache.decode(0, 0, Side::Keys, &mut out));
    let decoder = WeightDecoder::new(cache.device(), CodecId::S4, DIM, Options::DEFAULT).unwrap();
    let blocks = stream.alloc_zeros::<u8>(34).unwrap();
    refused("blocks", decoder.decode(&blocks, &mut stream.alloc_zeros::<f32>(DIM).unwrap()));
    let qjl = Qjl::new(cache.device(), DIM, noise(1, DIM * DIM)).unwrap();
    let (mut signs, mut norms) = (stream.alloc_zeros(6 * 4).unwrap(), stream.alloc_zeros(12).unwrap());
    refused("residuals", qjl.sketch(&rows, &mut signs, &mut norms));
    assert_eq!(cache.stats().tokens, 0);
}

#[test]
fn an_engines_stream_and_context_are_used() {
    drop(device(0));
    let context = CudaContext::new(0).unwrap();
    // SAFETY: only one stream uses the allocations.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().unwrap();
    let on = Device::on(stream.clone()).unwrap();
    assert!(std::sync::Arc::ptr_eq(on.stream(), &stream));
    let mut cache = GpuCache::new(&on, spec(1)).unwrap();
    fill(&mut cache, 0, 2, 1);

    // SAFETY: `stream` outlives the device and its cache.
    let raw = unsafe { Device::from_raw(0, stream.cu_stream()) }.unwrap();
    let mut second = GpuCache::new(&raw, spec(1)).unwrap();
    fill(&mut second, 0, 2, 1);
    assert_eq!(cache.blocks(0, 0, Side::Keys), second.blocks(0, 0, Side::Keys));
    drop((second, raw));
    stream.synchronize().expect("the stream is still the engine's");

    if !on_paper() {
        return;
    }
    // SAFETY: `stream` outlives the call, which refuses it.
    let error = unsafe { Device::from_raw(1, stream.cu_stream()) }.unwrap_err();
    assert_eq!(error.to_string(), "stream belongs to another context than this cache's device, number 1");
}

#[test]
fn a_cache_makes_no_calls_for_tracking_events_on_paper() {
    must_be_on_paper();
    let mut cache = cache(1);
    let device = cache.device().clone();
    let (rows, queries) = (upload(&device, &noise(1, ROW)), upload(&device, &noise(2, 3 * QUERY)));
    let mut out = device.stream().alloc_zeros::<f32>(3 * QUERY).unwrap();
    let mut step = || {
        cache.append(0, &[0], Rows::F32(&rows), Rows::F32(&rows)).unwrap();
        cache.attend_on_device(0, Rows::F32(&queries), &mut out).unwrap();
    };
    step();
    let before = counts();
    step();
    // One event after each list of tokens: the list of the append, and the list of all sequences.
    assert_eq!(since(before).events, 2);
}

#[test]
fn a_driver_that_is_too_old_says_what_is_needed_on_paper() {
    must_be_on_paper();
    let device = device(0);
    let set = |name: &[u8], number: i32| {
        // SAFETY: the library exports both functions, and both have this type.
        unsafe {
            let call = fake().get::<unsafe extern "C" fn(i32) -> i32>(name).unwrap();
            call(number);
        }
    };
    set(b"tqkv_fake_version", 11_020);
    let error = Device::new(0).unwrap_err();
    assert_eq!(error.to_string(), "the driver (CUDA 11.2) is not valid: expected 470 (CUDA 11.4) or newer");
    set(b"tqkv_fake_version", 11_060);
    set(b"tqkv_fake_refuses_ptx", 1);
    let error = GpuCache::new(&device, spec(1)).unwrap_err();
    set(b"tqkv_fake_refuses_ptx", 0);
    set(b"tqkv_fake_version", 12_040);
    assert_eq!(
        error.to_string(),
        "the driver (CUDA 11.6) refuses the kernels: CUDA_ERROR_UNSUPPORTED_PTX_VERSION; they need driver \
         470 (CUDA 11.4) or newer; it says: ptxas fatal: PTX .version is newer than this driver reads"
    );
    GpuCache::new(&device, spec(1)).unwrap();
}

#[test]
fn a_device_without_room_says_how_much_it_wants_on_paper() {
    must_be_on_paper();
    let huge = GpuSpec::new(32, 8, 8, 128).sequences(64, 1 << 15);
    let bytes = huge.pool_bytes().unwrap() + huge.exact_bytes();
    assert_eq!(GpuCache::new(&device(0), huge).unwrap_err(), GpuError::OutOfMemory { bytes });
    assert_eq!(Device::new(3).unwrap_err(), GpuError::NoDevice { ordinal: 3, found: 3 });
}
