//! Devices, contexts, streams, events and graphs, under the driver's names.

use crate::Counts;
use crate::call::*;
use crate::state::*;
use std::ffi::c_char;

/// The compute capabilities of the GPUs of this fake machine.
const CAPABILITIES: [[i32; 2]; 3] = [[9, 0], [8, 0], [10, 3]];
const DEVICES: i32 = CAPABILITIES.len() as i32;
/// Attributes that `cudarc` asks for.
const MULTIPROCESSORS: i32 = 16;
const MAJOR: i32 = 75;
const MINOR: i32 = 76;
const MEMORY_POOLS: i32 = 115;
const L2_CACHE: i32 = 38;
const CLOCK: i32 = 13;
const MEMORY_CLOCK: i32 = 36;
/// A small cache, so that measurements take few layers.
const L2_BYTES: i32 = 2304;

driver! {
    cuInit(_flags: u32) { 0 }
    cuDriverGetVersion(version: *mut i32) {
        // SAFETY: the caller passes a pointer that can be written.
        unsafe { put(version, VERSION.get()) };
        0
    }
    cuDeviceGetCount(number: *mut i32) {
        // SAFETY: the caller passes a pointer that can be written.
        unsafe { put(number, DEVICES) };
        0
    }
    cuDeviceGet(device: *mut i32, ordinal: i32) {
        if !(0..DEVICES).contains(&ordinal) {
            return INVALID_DEVICE;
        }
        // SAFETY: the caller passes a pointer that can be written.
        unsafe { put(device, ordinal) };
        0
    }
    cuDeviceGetName(name: *mut c_char, len: i32, device: i32) {
        let text = format!("a GPU of paper, number {device}\0");
        let text = &text.as_bytes()[..text.len().min(len as usize)];
        // SAFETY: the caller passes a `name` of `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len()) };
        0
    }
    cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32) {
        let number = match attribute {
            MULTIPROCESSORS => 2,
            MAJOR => CAPABILITIES[device as usize][0],
            MINOR => CAPABILITIES[device as usize][1],
            MEMORY_POOLS => 1,
            L2_CACHE => L2_BYTES,
            CLOCK | MEMORY_CLOCK => 1_000_000,
            // Registers, warps and threads of a multiprocessor are the same on every GPU that runs the
            // kernels.
            82 => 65_536,
            39 => 2048,
            10 => 32,
            _ => return INVALID_VALUE,
        };
        // SAFETY: the caller passes a pointer that can be written.
        unsafe { put(value, number) };
        0
    }
    cuDevicePrimaryCtxRetain(context: *mut usize, device: i32) {
        // SAFETY: the caller passes a pointer that can be written.
        unsafe { put(context, CONTEXT + device as usize) };
        0
    }
    cuDevicePrimaryCtxRelease_v2(_device: i32) { 0 }
    cuCtxSetCurrent(context: usize) { CONTEXT_HERE.set(context); 0 }
    cuCtxGetCurrent(context: *mut usize) {
        // SAFETY: the caller passes a pointer that can be written.
        unsafe { put(context, CONTEXT_HERE.get()) };
        0
    }
    cuCtxGetDevice(device: *mut i32) {
        // SAFETY: the caller passes a pointer that can be written.
        unsafe { put(device, CONTEXT_HERE.get().wrapping_sub(CONTEXT) as i32) };
        0
    }
    cuCtxSynchronize() {
        answer(|machine| {
            let streams: Vec<usize> = machine.streams.keys().copied().collect();
            let here: Vec<usize> =
                streams.into_iter().filter(|s| machine.streams[s].context == CONTEXT_HERE.get()).collect();
            here.into_iter().try_for_each(|stream| machine.finish(stream))
        })
    }
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let used = with(|machine| machine.used(CONTEXT_HERE.get()));
        // SAFETY: the caller passes a pointer that can be written.
        unsafe { put(free, MEMORY - used) };
        // SAFETY: the caller passes a pointer that can be written.
        unsafe { put(total, MEMORY) };
        0
    }
    cuStreamCreate(stream: *mut usize, _flags: u32) {
        let handle = with(|machine| {
            let handle = machine.handle();
            machine.streams.insert(handle, Stream::new(CONTEXT_HERE.get()));
            handle
        });
        // SAFETY: the caller passes a pointer that can be written.
        unsafe { put(stream, handle) };
        0
    }
    cuStreamGetCtx(stream: usize, context: *mut usize) {
        on(stream, |machine, stream| {
            let of = machine.stream(stream)?.context;
            // SAFETY: the caller passes a pointer that can be written.
            unsafe { put(context, of) };
            Ok(())
        })
    }
    // The stream still finishes its work, as on a GPU.
    cuStreamDestroy_v2(stream: usize) {
        answer(|machine| {
            let _ = machine.finish(stream);
            machine.streams.remove(&stream).map(|_| ()).ok_or(INVALID_HANDLE)
        })
    }
    cuStreamSynchronize(stream: usize) {
        count(|counts| counts.waits += 1);
        on(stream, Machine::finish)
    }
    cuStreamWaitEvent(stream: usize, event: usize, _flags: u32) {
        on(stream, |machine, _| {
            let Some(&(of, until)) = machine.events.get(&event) else { return Ok(()) };
            machine.run(of, until)
        })
    }
    cuStreamBeginCapture_v2(stream: usize, _mode: u32) {
        // The default stream cannot be captured.
        if stream == 0 {
            return CAPTURE_UNSUPPORTED;
        }
        on(stream, |machine, stream| {
            machine.stream(stream)?.capture = Some(Vec::new());
            Ok(())
        })
    }
    cuStreamIsCapturing(stream: usize, status: *mut u32) {
        on(stream, |machine, stream| {
            let is = machine.stream(stream)?.capture.is_some();
            // SAFETY: the caller passes a pointer that can be written.
            unsafe { put(status, u32::from(is)) };
            Ok(())
        })
    }
    cuStreamEndCapture(stream: usize, graph: *mut usize) {
        on(stream, |machine, stream| {
            let works = machine.stream(stream)?.capture.take().ok_or(INVALID_VALUE)?;
            let handle = machine.handle();
            machine.graphs.insert(handle, works);
            // SAFETY: the caller passes a pointer that can be written.
            unsafe { put(graph, handle) };
            Ok(())
        })
    }
    cuGraphInstantiateWithFlags(exec: *mut usize, graph: usize, _flags: u64) {
        answer(|machine| {
            let works = machine.graphs.get(&graph).cloned().ok_or(INVALID_HANDLE)?;
            let handle = machine.handle();
            machine.graphs.insert(handle, works);
            // SAFETY: the caller passes a pointer that can be written.
            unsafe { put(exec, handle) };
            Ok(())
        })
    }
    cuGraphLaunch(exec: usize, stream: usize) {
        on(stream, |machine, stream| {
            let works = machine.graphs.get(&exec).cloned().ok_or(INVALID_HANDLE)?;
            works.iter().for_each(count_launch);
            works.into_iter().try_for_each(|work| machine.ask(stream, work))
        })
    }
    cuGraphExecDestroy(exec: usize) { answer(|machine| machine.graphs.remove(&exec).map(|_| ()).ok_or(INVALID_HANDLE)) }
    cuGraphDestroy(graph: usize) { answer(|machine| machine.graphs.remove(&graph).map(|_| ()).ok_or(INVALID_HANDLE)) }
    cuEventCreate(event: *mut usize, _flags: u32) {
        let handle = with(Machine::handle);
        // SAFETY: the caller passes a pointer that can be written.
        unsafe { put(event, handle) };
        0
    }
    cuEventDestroy_v2(event: usize) { with(|machine| machine.events.remove(&event)); 0 }
    cuEventRecord(event: usize, stream: usize) {
        count(|counts| counts.events += 1);
        on(stream, |machine, stream| match machine.stream(stream)?.capture {
            Some(_) => Err(CAPTURE_UNSUPPORTED),
            None => machine.record(event, stream),
        })
    }
    cuEventSynchronize(event: usize) {
        answer(|machine| {
            let Some(&(stream, until)) = machine.events.get(&event) else { return Ok(()) };
            // An event that has already happened needs no wait.
            if machine.stream(stream)?.is_before(until) {
                count(|counts| counts.waits += 1);
            }
            machine.run(stream, until)
        })
    }
    cuEventQuery(_event: usize) { 0 }
    cuEventElapsedTime(milliseconds: *mut f32, _start: usize, end: usize) {
        answer(|machine| {
            let &(stream, until) = machine.events.get(&end).ok_or(INVALID_HANDLE)?;
            machine.run(stream, until)?;
            // SAFETY: the caller passes a pointer that can be written.
            unsafe { put(milliseconds, 1.0) };
            Ok(())
        })
    }
    // The functions below are not part of `libcuda`; tests call them.
    tqkv_fake_counts(counts: *mut Counts) {
        // SAFETY: the caller passes a pointer that can be written.
        unsafe { put(counts, COUNTS.with_borrow(|counts| *counts)) };
        0
    }
    // Makes host memory memory of device 0, at its own address. Then work is no longer late.
    tqkv_fake_map(at: usize, len: usize) {
        if len > 0 {
            with(|machine| machine.map(CONTEXT, at, len));
        }
        0
    }
    // Sets if the calling thread's driver refuses the kernels.
    tqkv_fake_refuses_ptx(refuses: i32) { REFUSES_PTX.set(refuses != 0); 0 }
    // Sets the version of the calling thread's driver.
    tqkv_fake_version(version: i32) { VERSION.set(version); 0 }
}
