//! Tests the calling thread's current context, the default stream, and what is dropped while work runs.

use super::*;
use tqkv_gpu::cudarc::driver::result::ctx;

/// The address of the calling thread's current context, or 0.
fn current() -> usize {
    ctx::get_current().unwrap().map_or(0, |context| context.addr())
}

#[test]
fn every_call_leaves_the_current_context_of_the_caller_on_paper() {
    must_be_on_paper();
    fake();
    let other = CudaContext::new(1).unwrap();
    other.bind_to_thread().unwrap();
    let before = current();
    let here = |call: &str| assert_eq!(current(), before, "{call}");
    let device = Device::new(0).unwrap();
    here("Device::new");
    let mut cache = GpuCache::new(&device, spec(2)).unwrap();
    here("GpuCache::new");
    cache.device().memory().unwrap();
    here("memory");
    let (rows, queries) = (noise(1, ROW), noise(2, 3 * QUERY));
    for layer in 0..2 {
        cache.append(layer, &[0], Rows::Host(&rows), Rows::Host(&rows)).unwrap();
        here("append");
    }
    let mut out = vec![0.0; 3 * QUERY];
    cache.attend(0, &queries, &mut out).unwrap();
    here("attend");
    let mut there = device.stream().alloc_zeros::<f32>(3 * QUERY).unwrap();
    let mut matrix = device.upload(&noise(3, ROW)).unwrap();
    other.bind_to_thread().unwrap();
    cache.attend_on_device(0, Rows::Host(&queries), &mut there).unwrap();
    here("attend_on_device");
    cache.attend_some(0, &[0], Rows::Host(&queries[..QUERY]), &mut there).unwrap();
    here("attend_some");
    cache.attend_chunk(0, 1, &queries[..QUERY], &rows, &rows, &mut out[..QUERY]).unwrap();
    here("attend_chunk");
    cache.blocks(0, 0, Side::Keys).unwrap();
    here("blocks");
    cache.decode(0, 0, Side::Keys, &mut matrix).unwrap();
    here("decode");
    cache.scores(0, 0, &queries[..QUERY]).unwrap();
    here("scores");
    cache.reserve_scratch(1).unwrap();
    here("reserve_scratch");
    cache.begin_step(&[0]).unwrap();
    here("begin_step");
    cache.append_step(0, Rows::Host(&rows), Rows::Host(&rows)).unwrap();
    here("append_step");
    cache.attend_step(0, Rows::Host(&queries[..QUERY]), &mut there).unwrap();
    here("attend_step");
    cache.end_step().unwrap();
    here("end_step");
    cache.append(0, &[9], Rows::Host(&rows), Rows::Host(&rows)).unwrap_err();
    here("a refused call");
    let decoder = WeightDecoder::new(&device, CodecId::S4, DIM, Options::DEFAULT).unwrap();
    here("WeightDecoder::new");
    let qjl = Qjl::new(&device, DIM, noise(1, DIM * DIM)).unwrap();
    here("Qjl::new");
    drop((decoder, qjl));
    here("drops of decoders");
    drop(cache);
    here("the drop of a cache");
    device.context_is_bound(|| drop((there, matrix)));
    drop(device);
    here("the drop of a device");
}

/// Runs `work` with a device's context current, as owners of its memory do.
trait Bound {
    fn context_is_bound(&self, work: impl FnOnce());
}

impl Bound for Device {
    fn context_is_bound(&self, work: impl FnOnce()) {
        let before = ctx::get_current().unwrap();
        self.stream().context().bind_to_thread().unwrap();
        work();
        // SAFETY: it was current before, and its device is still open.
        unsafe { ctx::set_current(before.unwrap_or(std::ptr::null_mut())) }.unwrap();
    }
}

/// A device on the default stream of device `ordinal`.
fn on_default_stream(ordinal: usize) -> Device {
    if on_paper() {
        fake();
    }
    // SAFETY: null is the default stream, which always exists.
    unsafe { Device::from_raw(ordinal, std::ptr::null_mut()) }.unwrap()
}

#[test]
fn a_cache_works_on_the_default_stream() {
    let mut caches = [on_default_stream(0), device(0)].map(|device| GpuCache::new(&device, spec(1)).unwrap());
    let queries = noise(3, 3 * QUERY);
    let outs = caches.each_mut().map(|cache| {
        fill(cache, 1, 70, 1);
        cache.begin_step(&[1]).unwrap();
        cache.append_step(0, Rows::Host(&noise(2, ROW)), Rows::Host(&noise(2, ROW))).unwrap();
        cache.end_step().unwrap();
        let mut out = vec![0.0; 3 * QUERY];
        cache.attend(0, &queries, &mut out).unwrap();
        (cache.blocks(0, 1, Side::Values).unwrap(), out)
    });
    assert_eq!(outs[0], outs[1]);
}

#[test]
fn a_cache_is_freed_in_any_thread_whatever_device_is_current_there_on_paper() {
    must_be_on_paper();
    // No other test uses device 1 for long, but they share its memory.
    let spec = spec(1).sequences(4, 20_000);
    let bytes = spec.pool_bytes().unwrap();
    assert!(3 * bytes > 12 << 20, "a cache that leaks leaves no room for the third");
    for current in [None, Some(0), Some(1), None, Some(0)] {
        let device = on_default_stream(1);
        let mut cache = GpuCache::new(&device, spec.clone()).unwrap();
        fill(&mut cache, 0, 2, 1);
        drop(device);
        let freed = std::thread::spawn(move || {
            let other = current.map(|ordinal| CudaContext::new(ordinal).unwrap());
            if let Some(other) = &other {
                other.bind_to_thread().unwrap();
            }
            let before = self::current();
            drop(cache);
            assert_eq!(self::current(), before);
        });
        freed.join().unwrap();
    }
}

#[test]
fn what_is_dropped_while_kernels_wait_ends_after_them() {
    let mut cache = cache(1);
    fill(&mut cache, 0, 3, 1);
    let device = cache.device().clone();
    let queries = noise(2, 3 * QUERY);
    let mut exact = vec![0.0; 3 * QUERY];
    cache.attend(0, &queries, &mut exact).unwrap();
    let there = upload(&device, &queries);
    let mut out = device.stream().alloc_zeros::<f32>(3 * QUERY).unwrap();
    cache.attend_on_device(0, Rows::F32(&there), &mut out).unwrap();
    drop(cache);
    assert_eq!(device.stream().clone_dtoh(&out).unwrap(), exact);

    let decoder = WeightDecoder::new(&device, CodecId::S4, DIM, Options::DEFAULT).unwrap();
    let blocks = upload(&device, &[0_u8; 34]);
    let mut halves = device.stream().alloc_zeros::<u16>(DIM).unwrap();
    decoder.decode(&blocks, Out::F16(&mut halves)).unwrap();
    drop(decoder);
    let decoded = device.stream().clone_dtoh(&halves).unwrap();
    assert!(decoded.iter().all(|bits| bits & 0x7fff == 0), "a scale of 0 decodes to zeros: {decoded:?}");
}

#[test]
fn a_cache_follows_its_caller_to_another_stream() {
    let mut cache = cache(1);
    fill(&mut cache, 0, 3, 1);
    let device = cache.device().clone();
    let (rows, queries) = (upload(&device, &noise(2, ROW)), noise(3, QUERY));
    let there = upload(&device, &queries);
    let mut out = device.stream().alloc_zeros::<f32>(QUERY).unwrap();
    device.stream().synchronize().unwrap();
    let other = device.stream().context().new_stream().unwrap();
    cache.begin_step(&[0]).unwrap();
    cache.append_step(0, Rows::F32(&rows), Rows::F32(&rows)).unwrap();
    // The token is not encoded yet: the other stream waits for the first.
    // SAFETY: the stream lives until the end of the test, and the cache is dropped before.
    unsafe { cache.follow(other.cu_stream()) }.unwrap();
    cache.attend_step(0, Rows::F32(&there), &mut out).unwrap();
    cache.end_step().unwrap();
    assert_eq!(cache.device().stream().cu_stream(), other.cu_stream());
    assert_near(&other.clone_dtoh(&out).unwrap(), &wanted(&cache, 0, 0, 4, &queries), 2e-4);
    drop(cache);
    drop(other);
}

#[test]
fn a_stream_of_another_device_is_not_followed_on_paper() {
    must_be_on_paper();
    let (mut cache, second) = (cache(1), device(1));
    // SAFETY: the stream lives as long as the device.
    let refused = unsafe { cache.follow(second.stream().cu_stream()) }.unwrap_err();
    assert_eq!(refused, GpuError::OtherContext { what: "stream", ordinal: 0 });
}
