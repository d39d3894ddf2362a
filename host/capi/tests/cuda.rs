//! The calls of the cache on a GPU, on the fake driver: results and refusals. With `TQKV_REQUIRE_GPU=1` the
//! real driver is used, which has other limits of memory: then run `results` and `calls_leave` only.
// A separate binary, because it needs a feature and loads the fake driver into its process.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(missing_docs, reason = "a test crate")]

#[path = "it/common.rs"]
mod common;

use common::{DIM, HEADS, KV_HEADS, QUERY, TOKEN, last_error, refused};
use half::f16;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use tqkv_capi::TqkvDtype::{TqkvF16, TqkvF32};
use tqkv_capi::TqkvStatus::*;
use tqkv_capi::*;
use tqkv_gpu::cudarc::driver::result::ctx;
use tqkv_gpu::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
use tqkv_gpu::{Device, GpuCache, GpuSpec, Rows};

const LAYERS: usize = 2;
const F32: u32 = TqkvF32 as u32;
const F16: u32 = TqkvF16 as u32;

/// The stream of the engine. The fake driver is loaded before the real one is looked for.
fn stream() -> Arc<CudaStream> {
    if std::env::var_os("TQKV_REQUIRE_GPU").is_none() {
        let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        // SAFETY: a library of this workspace, whose loading runs no code. It stays loaded, as the driver.
        std::mem::forget(unsafe { libloading::Library::new(folder.join("libtqkv_gpu_fake.so")) }.unwrap());
    }
    let context = CudaContext::new(0).unwrap();
    // SAFETY: only one stream uses the allocations.
    unsafe { context.disable_event_tracking() };
    context.new_stream().unwrap()
}

fn address<T>(stream: &Arc<CudaStream>, memory: &CudaSlice<T>) -> *mut c_void {
    std::ptr::without_provenance_mut(memory.device_ptr(stream).0 as usize)
}

fn values(seed: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7 + seed * 13) as f32 * 0.37).sin()).collect()
}

/// A cache of three sequences, which is freed when dropped.
struct Cache(*mut TqkvGpuCache);

impl Drop for Cache {
    fn drop(&mut self) {
        // SAFETY: made below, and freed once.
        unsafe { tqkv_gpu_free(self.0) };
    }
}

/// The spec of every cache here, for three sequences.
const SPEC: &CStr = c"layers=2 heads=4 kv-heads=2 head-dim=64 max-tokens=100 sinks=1 hot=1";

fn create(stream: &Arc<CudaStream>) -> Cache {
    let mut cache = null_mut();
    // SAFETY: the text ends with a zero, and the stream outlives the caches of the test.
    let status =
        unsafe { tqkv_gpu_create(SPEC.as_ptr(), 3, 0, 0, stream.cu_stream().cast(), &raw mut cache) };
    assert_eq!(status, TqkvOk, "{}", last_error());
    Cache(cache)
}

fn len(cache: &Cache, sequence: usize) -> usize {
    let mut len = usize::MAX;
    // SAFETY: the cache is not freed, and the place can be written.
    assert_eq!(unsafe { tqkv_gpu_len(cache.0, sequence, &raw mut len) }, TqkvOk);
    len
}

#[test]
fn results_are_those_of_the_library() {
    let stream = stream();
    let cache = create(&stream);
    let mut wanted = GpuCache::new(
        &Device::on(stream.clone()).unwrap(),
        GpuSpec::new(LAYERS, HEADS, KV_HEADS, DIM).sequences(3, 100).exact(1, 1),
    )
    .unwrap();
    let rows = stream.clone_htod(&values(1, 3 * TOKEN)).unwrap();
    let queries = stream.clone_htod(&values(2, 2 * QUERY)).unwrap();
    let mut out = stream.alloc_zeros::<u16>(2 * QUERY).unwrap();
    let (kv, q, to) = (address(&stream, &rows), address(&stream, &queries), address(&stream, &out));
    let (all, some) = ([0_usize, 2, 2], [2_usize, 0]);
    // SAFETY: device memory of the passed length, which is allocated until the end of the test.
    unsafe {
        for layer in 0..LAYERS {
            let status = tqkv_gpu_append(cache.0, layer, all.as_ptr(), 3, F32, kv, 3 * TOKEN, kv, 3 * TOKEN);
            assert_eq!(status, TqkvOk, "{}", last_error());
            wanted.append(layer, &all, Rows::F32(&rows), Rows::F32(&rows)).unwrap();
        }
        let status = tqkv_gpu_attend(cache.0, 1, some.as_ptr(), 2, F32, q, 2 * QUERY, F16, to, 2 * QUERY);
        assert_eq!(status, TqkvOk, "{}", last_error());
    }
    let got = stream.clone_dtoh(&out).unwrap();
    wanted.attend_some(1, &some, Rows::F32(&queries), tqkv_gpu::Out::F16(&mut out)).unwrap();
    assert_eq!(got, stream.clone_dtoh(&out).unwrap());
    assert!(got.iter().any(|&bits| f16::from_bits(bits).to_f32().abs() > 0.1));

    // A step, a fork, and decoded tokens. SAFETY: as above.
    unsafe {
        assert_eq!(tqkv_gpu_reserve(cache.0, 2), TqkvOk);
        assert_eq!(tqkv_gpu_begin_step(cache.0, some.as_ptr(), 2), TqkvOk);
        for layer in 0..LAYERS {
            assert_eq!(tqkv_gpu_append_step(cache.0, layer, F32, kv, 2 * TOKEN, kv, 2 * TOKEN), TqkvOk);
            assert_eq!(tqkv_gpu_attend_step(cache.0, layer, F32, q, 2 * QUERY, F16, to, 2 * QUERY), TqkvOk);
        }
        assert_eq!(tqkv_gpu_end_step(cache.0), TqkvOk, "{}", last_error());
        assert_eq!(tqkv_gpu_fork(cache.0, 2, 1, 2), TqkvOk);
    }
    assert_eq!([0, 1, 2].map(|sequence| len(&cache, sequence)), [2, 2, 3]);
    let mut decoded = stream.alloc_zeros::<f32>(2 * TOKEN).unwrap();
    let place = address(&stream, &decoded);
    // SAFETY: as above.
    unsafe { assert_eq!(tqkv_gpu_decode(cache.0, 0, 1, 0, F32, place, 2 * TOKEN), TqkvOk) };
    let got = stream.clone_dtoh(&decoded).unwrap();
    wanted.decode(0, 2, tqkv_gpu::Side::Keys, &mut decoded).unwrap();
    assert_eq!(got, stream.clone_dtoh(&decoded).unwrap());
    // SAFETY: as above.
    unsafe { assert_eq!(tqkv_gpu_truncate(cache.0, 2, 1), TqkvOk) };
    assert_eq!(len(&cache, 2), 1);
}

#[test]
fn calls_leave_the_current_context_and_null_is_the_default_stream() {
    let stream = stream();
    let rows = stream.clone_htod(&values(1, TOKEN)).unwrap();
    let queries = stream.clone_htod(&values(2, QUERY)).unwrap();
    let out = stream.alloc_zeros::<f32>(QUERY).unwrap();
    let (kv, q, to) = (address(&stream, &rows), address(&stream, &queries), address(&stream, &out));
    // The stream does not wait for the default stream.
    stream.synchronize().unwrap();
    // The fake driver has two devices. A machine with one has only its own context here.
    let other = CudaContext::new(1).unwrap_or_else(|_| CudaContext::new(0).unwrap());
    other.bind_to_thread().unwrap();
    let before = ctx::get_current().unwrap();
    let here = |status, call: &str| {
        assert_eq!(status, TqkvOk, "{call}: {}", last_error());
        assert_eq!(ctx::get_current().unwrap(), before, "{call}");
    };
    let mut cache = null_mut();
    // SAFETY: the spec is initialised, null is the default stream, and the memory is allocated until the end
    // of the test.
    unsafe {
        here(tqkv_gpu_create(SPEC.as_ptr(), 3, 0, 0, null_mut(), &raw mut cache), "create");
        here(tqkv_gpu_reserve(cache, 1), "reserve");
        here(tqkv_gpu_append(cache, 0, &0, 1, F32, kv, TOKEN, kv, TOKEN), "append");
        here(tqkv_gpu_append(cache, 1, &0, 1, F32, kv, TOKEN, kv, TOKEN), "append");
        here(tqkv_gpu_begin_step(cache, &0, 1), "begin_step");
        here(tqkv_gpu_append_step(cache, 0, F32, kv, TOKEN, kv, TOKEN), "append_step");
        here(tqkv_gpu_attend_step(cache, 0, F32, q, QUERY, F32, to, QUERY), "attend_step");
        here(tqkv_gpu_append_step(cache, 1, F32, kv, TOKEN, kv, TOKEN), "append_step");
        here(tqkv_gpu_end_step(cache), "end_step");
        here(tqkv_gpu_attend(cache, 1, &0, 1, F32, q, QUERY, F32, to, QUERY), "attend");
        tqkv_gpu_free(cache);
    }
    here(TqkvOk, "free");
    // The free waited for the attention. Both tokens are equal, so the result is the decoded value.
    let got = stream.clone_dtoh(&out).unwrap();
    assert!(
        got.iter().all(|value| value.is_finite()) && got.iter().any(|value| value.abs() > 0.1),
        "{got:?}"
    );
    let handle = {
        other.bind_to_thread().unwrap();
        let mut cache = null_mut();
        // SAFETY: as above.
        here(unsafe { tqkv_gpu_create(SPEC.as_ptr(), 3, 0, 0, null_mut(), &raw mut cache) }, "create");
        cache.expose_provenance()
    };
    // A thread that never used CUDA frees a cache, for example a collector of garbage.
    let freed = std::thread::spawn(move || {
        // SAFETY: made above, and freed once.
        unsafe { tqkv_gpu_free(std::ptr::with_exposed_provenance_mut(handle)) };
        assert_eq!(ctx::get_current().unwrap(), None);
    });
    freed.join().unwrap();
    CudaContext::new(0).unwrap().check_err().expect("every free was made");
}

#[test]
fn what_cannot_be_is_refused_with_its_reason() {
    let stream = stream();
    let cache = create(&stream);
    let rows = stream.clone_htod(&[f32::NAN; 2 * TOKEN]).unwrap();
    let (kv, two) = (address(&stream, &rows), [0_usize, 1]);
    let mut none = std::ptr::dangling_mut();
    let append = |layer, sequences: &[usize], dtype, k: *const c_void, values| {
        // SAFETY: null, or memory of the device.
        unsafe {
            tqkv_gpu_append(cache.0, layer, sequences.as_ptr(), sequences.len(), dtype, k, values, kv, values)
        }
    };
    refused(
        append(0, &two, F32, kv, 2 * TOKEN),
        TqkvBadVector,
        "key of layer 0, token 0, KV head 0 is not finite",
    );
    refused(
        append(2, &two, F32, kv, 2 * TOKEN),
        TqkvBadArgument,
        "layer 2 is out of range: the cache has 2 layers",
    );
    refused(append(0, &[3], F32, kv, TOKEN), TqkvBadArgument, "sequence 3 is out of range");
    refused(append(0, &two, F32, kv, TOKEN), TqkvBadArgument, "keys has 128 values, expected 256");
    refused(append(0, &two, 3, kv, TOKEN), TqkvBadArgument, "dtype of k is 3, expected 0 to 2");
    refused(append(0, &two, F32, null(), TOKEN), TqkvNullPointer, "k is null");
    refused(
        append(0, &two, F32, kv.wrapping_byte_add(2), TOKEN),
        TqkvBadArgument,
        "k is not aligned to 4 bytes",
    );
    refused(
        append(0, &[0; 101], F32, kv, 101 * TOKEN),
        TqkvNoRoom,
        "sequence 0 is full: it holds at most 100 tokens",
    );
    // SAFETY: null is refused; the rest is as above.
    unsafe {
        refused(tqkv_gpu_end_step(cache.0), TqkvBadArgument, "no step has begun");
        refused(tqkv_gpu_end_step(null_mut()), TqkvNullPointer, "cache is null");
        refused(tqkv_gpu_begin_step(cache.0, null(), 1), TqkvNullPointer, "sequences is null");
        refused(
            tqkv_gpu_decode(cache.0, 0, 0, 2, F32, kv, 0),
            TqkvBadArgument,
            "values is 2, expected 0 to 1",
        );
        refused(tqkv_gpu_fork(cache.0, 0, 9, 1), TqkvBadArgument, "sequence 9 is out of range");
        let stream = stream.cu_stream().cast();
        let mut create = |text: &CStr, pool, ordinal| {
            tqkv_gpu_create(text.as_ptr(), 3, pool, ordinal, stream, &raw mut none)
        };
        refused(create(SPEC, 0, 9), TqkvUnsupported, "there is no CUDA device 9");
        for (text, why) in [
            (c"layers=2 heads=4 head-dim=96", "head dim 96 has no kernels; expected 64, 128, 256"),
            (
                c"layers=2 heads=4 head-dim=64 t4 last:i8",
                "a cache on a GPU has no layer-kv=tail:1:i8,i8: expected",
            ),
            (c"layers=2 heads=4 head-dim=64 scale=0.5", "a cache on a GPU has no scale=0.5"),
            (c"layers=2 heads=4 t4", "head-dim is missing"),
            (c"layers=2 heads=4 head-dim=64 q4_0", "q4_0"),
        ] {
            refused(create(text, 0, 0), TqkvBadArgument, why);
        }
        let huge = c"layers=2 heads=4 kv-heads=2 head-dim=64 max-tokens=1048576";
        refused(create(huge, 0, 0), TqkvNoRoom, "the device has no room for");
        tqkv_gpu_free(null_mut());
    }
    assert!(none.is_null());
    assert_eq!(len(&cache, 0) + len(&cache, 1), 0);
}
