//! The driver's functions, by their names in `libcuda`.

use crate::Counts;
use crate::launch::{Function, Launch};
use crate::state::*;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_void};

/// GPUs of this machine: the first of compute capability 9.0, the second of 8.0.
const DEVICES: i32 = 2;
/// A context's handle is its device's number and this.
const CONTEXT: usize = 0x100;

/// Attributes that are asked for.
const MULTIPROCESSORS: i32 = 16;
const MAJOR: i32 = 75;
const MINOR: i32 = 76;
const MEMORY_POOLS: i32 = 115;

thread_local! {
    static COUNTS: RefCell<Counts> = const { RefCell::new(Counts {
        launches: 0, warps: 0, copies_in: 0, pageable: 0, waits: 0, allocations: 0, modules: 0, events: 0,
    }) };
    static CONTEXT_HERE: Cell<usize> = const { Cell::new(0) };
    static REFUSES_PTX: Cell<bool> = const { Cell::new(false) };
}

fn count(f: impl FnOnce(&mut Counts)) {
    COUNTS.with_borrow_mut(f);
}

/// Counts a launch, if the work is one.
fn count_launch(work: &Work) {
    if let Work::Launch(launch) = work {
        let blocks: u32 = launch.grid.iter().product();
        count(|counts| {
            counts.launches += 1;
            counts.warps += u64::from(blocks * crate::parse::WARPS);
        });
    }
}

/// The machine's answer as a `CUresult`.
fn answer(f: impl FnOnce(&mut Machine) -> Result<(), Failure>) -> Failure {
    with(f).err().unwrap_or(0)
}

/// Writes a result where the caller wants it.
///
/// # Safety
/// `to` can be written, as the driver's documentation asks of callers.
unsafe fn put<T>(to: *mut T, value: T) {
    // SAFETY: the caller's.
    unsafe { to.write(value) };
}

macro_rules! driver {
    ($($name:ident($($argument:ident: $type:ty),*) $body:block)*) => { $(
        /// As `libcuda` has it.
        ///
        /// # Safety
        /// Pointers are as the driver's documentation asks.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the driver's names")]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> Failure $body
    )* };
}

driver! {
    cuInit(_flags: u32) { 0 }
    cuDriverGetVersion(version: *mut i32) {
        let number = if REFUSES_PTX.get() { 11_060 } else { 12_040 };
        // SAFETY: the caller's.
        unsafe { put(version, number) };
        0
    }
    cuDeviceGetCount(number: *mut i32) {
        // SAFETY: the caller's.
        unsafe { put(number, DEVICES) };
        0
    }
    cuDeviceGet(device: *mut i32, ordinal: i32) {
        if !(0..DEVICES).contains(&ordinal) {
            return INVALID_DEVICE;
        }
        // SAFETY: the caller's.
        unsafe { put(device, ordinal) };
        0
    }
    cuDeviceGetName(name: *mut c_char, len: i32, device: i32) {
        let text = format!("a GPU of paper, number {device}\0");
        let text = &text.as_bytes()[..text.len().min(len as usize)];
        // SAFETY: the caller's: `name` has `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len()) };
        0
    }
    cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32) {
        let number = match attribute {
            MULTIPROCESSORS => 2,
            MAJOR => 9 - device,
            MINOR => 0,
            MEMORY_POOLS => 1,
            // Registers, warps and threads of a multiprocessor are the same on all that the kernels run on.
            82 => 65_536,
            39 => 2048,
            10 => 32,
            _ => return INVALID_VALUE,
        };
        // SAFETY: the caller's.
        unsafe { put(value, number) };
        0
    }
    cuDevicePrimaryCtxRetain(context: *mut usize, device: i32) {
        // SAFETY: the caller's.
        unsafe { put(context, CONTEXT + device as usize) };
        0
    }
    cuDevicePrimaryCtxRelease_v2(_device: i32) { 0 }
    cuCtxSetCurrent(context: usize) { CONTEXT_HERE.set(context); 0 }
    cuCtxGetCurrent(context: *mut usize) {
        // SAFETY: the caller's.
        unsafe { put(context, CONTEXT_HERE.get()) };
        0
    }
    cuCtxGetDevice(device: *mut i32) {
        // SAFETY: the caller's.
        unsafe { put(device, (CONTEXT_HERE.get() - CONTEXT) as i32) };
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
        let used = with(|machine| machine.memory.values().map(|a| a.bytes.len()).sum::<usize>());
        // SAFETY: the caller's.
        unsafe { put(free, MEMORY - used) };
        // SAFETY: the caller's.
        unsafe { put(total, MEMORY) };
        0
    }
    cuStreamCreate(stream: *mut usize, _flags: u32) {
        let handle = with(|machine| {
            let handle = machine.handle();
            machine.streams.insert(handle, Stream::new(CONTEXT_HERE.get()));
            handle
        });
        // SAFETY: the caller's.
        unsafe { put(stream, handle) };
        0
    }
    cuStreamGetCtx(stream: usize, context: *mut usize) {
        answer(|machine| {
            let of = machine.stream(stream)?.context;
            // SAFETY: the caller's.
            unsafe { put(context, of) };
            Ok(())
        })
    }
    // What was asked of it is done all the same, as on a GPU.
    cuStreamDestroy_v2(stream: usize) {
        answer(|machine| {
            let _ = machine.finish(stream);
            machine.streams.remove(&stream).map(|_| ()).ok_or(INVALID_HANDLE)
        })
    }
    cuStreamSynchronize(stream: usize) {
        count(|counts| counts.waits += 1);
        answer(|machine| machine.finish(stream))
    }
    cuStreamWaitEvent(_stream: usize, event: usize, _flags: u32) {
        answer(|machine| {
            let Some(&(of, until)) = machine.events.get(&event) else { return Ok(()) };
            machine.run(of, until)
        })
    }
    cuStreamBeginCapture_v2(stream: usize, _mode: u32) {
        answer(|machine| {
            machine.stream(stream)?.capture = Some(Vec::new());
            Ok(())
        })
    }
    cuStreamIsCapturing(stream: usize, status: *mut u32) {
        answer(|machine| {
            let is = machine.stream(stream)?.capture.is_some();
            // SAFETY: the caller's.
            unsafe { put(status, u32::from(is)) };
            Ok(())
        })
    }
    cuStreamEndCapture(stream: usize, graph: *mut usize) {
        answer(|machine| {
            let works = machine.stream(stream)?.capture.take().ok_or(INVALID_VALUE)?;
            let handle = machine.handle();
            machine.graphs.insert(handle, works);
            // SAFETY: the caller's.
            unsafe { put(graph, handle) };
            Ok(())
        })
    }
    cuGraphInstantiateWithFlags(exec: *mut usize, graph: usize, _flags: u64) {
        answer(|machine| {
            let works = machine.graphs.get(&graph).cloned().ok_or(INVALID_HANDLE)?;
            let handle = machine.handle();
            machine.graphs.insert(handle, works);
            // SAFETY: the caller's.
            unsafe { put(exec, handle) };
            Ok(())
        })
    }
    cuGraphLaunch(exec: usize, stream: usize) {
        answer(|machine| {
            let works = machine.graphs.get(&exec).cloned().ok_or(INVALID_HANDLE)?;
            works.iter().for_each(count_launch);
            works.into_iter().try_for_each(|work| machine.ask(stream, work))
        })
    }
    cuGraphExecDestroy(exec: usize) { answer(|machine| machine.graphs.remove(&exec).map(|_| ()).ok_or(INVALID_HANDLE)) }
    cuGraphDestroy(graph: usize) { answer(|machine| machine.graphs.remove(&graph).map(|_| ()).ok_or(INVALID_HANDLE)) }
    cuEventCreate(event: *mut usize, _flags: u32) {
        let handle = with(Machine::handle);
        // SAFETY: the caller's.
        unsafe { put(event, handle) };
        0
    }
    cuEventDestroy_v2(event: usize) { with(|machine| machine.events.remove(&event)); 0 }
    cuEventRecord(event: usize, stream: usize) {
        count(|counts| counts.events += 1);
        answer(|machine| match machine.stream(stream)?.capture {
            Some(_) => Err(CAPTURE_UNSUPPORTED),
            None => machine.record(event, stream),
        })
    }
    cuEventSynchronize(event: usize) {
        answer(|machine| {
            let Some(&(stream, until)) = machine.events.get(&event) else { return Ok(()) };
            count(|counts| counts.waits += 1);
            machine.run(stream, until)
        })
    }
    cuEventQuery(_event: usize) { 0 }
    cuEventElapsedTime(milliseconds: *mut f32, _start: usize, end: usize) {
        answer(|machine| {
            let &(stream, until) = machine.events.get(&end).ok_or(INVALID_HANDLE)?;
            machine.run(stream, until)?;
            // SAFETY: the caller's.
            unsafe { put(milliseconds, 1.0) };
            Ok(())
        })
    }
    cuMemAllocAsync(at: *mut u64, len: usize, stream: usize) {
        count(|counts| counts.allocations += 1);
        answer(|machine| {
            let stream = machine.stream(stream)?;
            if stream.capture.is_some() {
                return Err(CAPTURE_UNSUPPORTED);
            }
            let context = stream.context;
            let place = machine.allocate(context, len)?;
            // SAFETY: the caller's.
            unsafe { put(at, place) };
            Ok(())
        })
    }
    cuMemFreeAsync(at: u64, stream: usize) { answer(|machine| machine.ask(stream, Work::Free { at })) }
    cuMemsetD8Async(to: u64, value: u8, len: usize, stream: usize) {
        answer(|machine| machine.ask(stream, Work::Set { to, value, len }))
    }
    cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, len: usize, stream: usize) {
        count(|counts| counts.copies_in += 1);
        answer(|machine| {
            let captured = machine.stream(stream)?.capture.is_some();
            if machine.is_pinned(from as usize, len) {
                return machine.ask(stream, Work::In { to, from: from as usize, len });
            }
            count(|counts| counts.pageable += 1);
            if captured {
                return Err(CAPTURE_UNSUPPORTED);
            }
            machine.finish(stream)?;
            // SAFETY: the caller's: `from` has `len` bytes.
            machine.write(to, unsafe { std::slice::from_raw_parts(from.cast(), len) })
        })
    }
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, len: usize, stream: usize) {
        answer(|machine| {
            if machine.is_pinned(to as usize, len) {
                return machine.ask(stream, Work::Out { to: to as usize, from, len });
            }
            // Memory that is not page-locked is written before the call returns.
            machine.finish(stream)?;
            let bytes = machine.read(from, len)?;
            // SAFETY: the caller's: `to` has room for `len` bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), len) };
            Ok(())
        })
    }
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize) {
        answer(|machine| machine.ask(stream, Work::Copy { to, from, len }))
    }
    cuMemHostAlloc(at: *mut *mut c_void, len: usize, _flags: u32) {
        with(|machine| {
            let mut words = vec![u64::MAX; len.div_ceil(8).max(1)];
            let place = words.as_mut_ptr();
            machine.pinned.insert(place as usize, words);
            // SAFETY: the caller's.
            unsafe { put(at, place.cast()) };
        });
        0
    }
    cuMemFreeHost(at: *mut c_void) {
        answer(|machine| machine.pinned.remove(&(at as usize)).map(|_| ()).ok_or(INVALID_VALUE))
    }
    cuModuleLoadData(module: *mut usize, image: *const c_char) {
        if REFUSES_PTX.get() {
            return UNSUPPORTED_PTX;
        }
        count(|counts| counts.modules += 1);
        // SAFETY: the caller's: a PTX text ends in a zero byte.
        let text = unsafe { CStr::from_ptr(image) }.to_string_lossy().into_owned();
        let handle = with(|machine| {
            let handle = machine.handle();
            machine.modules.insert(handle, text);
            handle
        });
        // SAFETY: the caller's.
        unsafe { put(module, handle) };
        0
    }
    // Of the options, those that say where the log of errors goes and how long it may be.
    cuModuleLoadDataEx(module: *mut usize, image: *const c_char, options: u32, names: *const u32, values: *const usize) {
        if !REFUSES_PTX.get() {
            // SAFETY: the caller's.
            return unsafe { cuModuleLoadData(module, image) };
        }
        let option = |wanted: u32| (0..options as usize).find_map(|i| {
            // SAFETY: the caller's: both have `options` entries.
            let (name, value) = unsafe { (*names.add(i), *values.add(i)) };
            (name == wanted).then_some(value)
        });
        if let (Some(log), Some(len)) = (option(5), option(6)) {
            let text = b"ptxas fatal: PTX .version is newer than this paper reads\0";
            // SAFETY: the caller's: the log has `len` bytes.
            unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), log as *mut u8, text.len().min(len)) };
        }
        UNSUPPORTED_PTX
    }
    cuModuleUnload(module: usize) { answer(|machine| machine.modules.remove(&module).map(|_| ()).ok_or(INVALID_HANDLE)) }
    cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) {
        // SAFETY: the caller's: a name ends in a zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        answer(|machine| {
            let text = machine.modules.get(&module).ok_or(INVALID_HANDLE)?;
            let loaded = Function::new(CONTEXT_HERE.get(), text, &name).ok_or(NOT_FOUND)?;
            let handle = machine.handle();
            machine.functions.insert(handle, loaded);
            // SAFETY: the caller's.
            unsafe { put(function, handle) };
            Ok(())
        })
    }
    // Blocks that a multiprocessor holds: of registers and shared memory nothing is known here.
    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut i32, _function: usize, threads: i32, _shared: usize) {
        // SAFETY: the caller's.
        unsafe { put(blocks, 2048 / threads.max(32)) };
        0
    }
    cuLaunchKernel(
        function: usize, x: u32, y: u32, z: u32, width: u32, height: u32, depth: u32, shared: u32,
        stream: usize, parameters: *const *const c_void, _extra: *const c_void
    ) {
        answer(|machine| {
            let function = machine.functions.get(&function).cloned().ok_or(INVALID_HANDLE)?;
            if [width, height, depth, shared] != [32, crate::parse::WARPS, 1, 0]
                || [x, y, z].contains(&0)
                || y.max(z) > 65_535
            {
                return Err(INVALID_VALUE);
            }
            if machine.stream(stream)?.context != function.context {
                return Err(INVALID_HANDLE);
            }
            let value = |(i, &is_pointer): (usize, &bool)| {
                // SAFETY: the caller's: there is a parameter of its width for each of the kernel's.
                unsafe {
                    let parameter = *parameters.add(i);
                    if is_pointer { *parameter.cast::<u64>() } else { u64::from(*parameter.cast::<u32>()) }
                }
            };
            let values = function.pointers.iter().enumerate().map(value).collect();
            let work = Work::Launch(Launch { function, grid: [x, y, z], values });
            count_launch(&work);
            machine.ask(stream, work)
        })
    }
    // What follows is not `libcuda`'s: for tests.
    tqkv_fake_counts(counts: *mut Counts) {
        // SAFETY: the caller's.
        unsafe { put(counts, COUNTS.with_borrow(|counts| *counts)) };
        0
    }
    // Whether the calling thread's driver is too old for the kernels.
    tqkv_fake_refuses_ptx(refuses: i32) { REFUSES_PTX.set(refuses != 0); 0 }
}
