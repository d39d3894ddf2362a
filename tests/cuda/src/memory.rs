//! Memory, copies, modules and launches, under the driver's names.

use crate::call::*;
use crate::launch::{Function, Launch};
use crate::state::*;
use std::ffi::{CStr, c_char, c_void};

driver! {
    cuMemAllocAsync(at: *mut u64, len: usize, stream: usize) {
        count(|counts| counts.allocations += 1);
        on(stream, |machine, stream| {
            let stream = machine.stream(stream)?;
            if stream.capture.is_some() {
                return Err(CAPTURE_UNSUPPORTED);
            }
            let context = stream.context;
            let place = machine.allocate(context, len)?;
            // SAFETY: the caller passes a pointer that can be written.
            unsafe { put(at, place) };
            Ok(())
        })
    }
    cuMemFreeAsync(at: u64, stream: usize) {
        on(stream, |machine, stream| {
            let context = machine.stream(stream)?.context;
            let (start, _) = machine.locate(at).ok_or(INVALID_VALUE)?;
            // A stream of another device does not wait for the work that uses the memory.
            if machine.memory[&start].context != context {
                eprintln!("the fake driver: memory was freed in the order of another device's stream");
                return Err(INVALID_VALUE);
            }
            machine.ask(stream, Work::Free { at })
        })
    }
    cuMemsetD8Async(to: u64, value: u8, len: usize, stream: usize) {
        on(stream, |machine, stream| machine.ask(stream, Work::Set { to, value, len }))
    }
    cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, len: usize, stream: usize) {
        count(|counts| {
            counts.copies_in += 1;
            counts.bytes_in += len as u64;
        });
        on(stream, |machine, stream| {
            let captured = machine.stream(stream)?.capture.is_some();
            if machine.is_pinned(from as usize, len) {
                return machine.ask(stream, Work::In { to, from: from as usize, len });
            }
            count(|counts| counts.pageable += 1);
            if captured {
                return Err(CAPTURE_UNSUPPORTED);
            }
            machine.finish(stream)?;
            // SAFETY: the caller passes `len` bytes at `from`.
            machine.write(to, unsafe { std::slice::from_raw_parts(from.cast(), len) })
        })
    }
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, len: usize, stream: usize) {
        count(|counts| counts.bytes_out += len as u64);
        on(stream, |machine, stream| {
            if machine.is_pinned(to as usize, len) {
                return machine.ask(stream, Work::Out { to: to as usize, from, len });
            }
            // Memory that is not page-locked is written before the call returns.
            machine.finish(stream)?;
            let bytes = machine.read(from, len)?;
            // SAFETY: the caller has room for `len` bytes at `to`.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), len) };
            Ok(())
        })
    }
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize) {
        on(stream, |machine, stream| machine.ask(stream, Work::Copy { to, from, len }))
    }
    cuMemHostAlloc(at: *mut *mut c_void, len: usize, _flags: u32) {
        with(|machine| {
            let mut words = vec![u64::MAX; len.div_ceil(8).max(1)];
            let place = words.as_mut_ptr();
            machine.pinned.insert(place as usize, words);
            // SAFETY: the caller passes a pointer that can be written.
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
        // SAFETY: the caller passes a PTX text that ends in a zero byte.
        let text = unsafe { CStr::from_ptr(image) }.to_string_lossy().into_owned();
        let handle = with(|machine| {
            let handle = machine.handle();
            machine.modules.insert(handle, text);
            handle
        });
        // SAFETY: the caller passes a pointer that can be written.
        unsafe { put(module, handle) };
        0
    }
    // It only reads the options for the address and the length of the error log.
    cuModuleLoadDataEx(module: *mut usize, image: *const c_char, options: u32, names: *const u32, values: *const usize) {
        if !REFUSES_PTX.get() {
            // SAFETY: the caller upholds the contract of `cuModuleLoadData`, which asks for less.
            return unsafe { cuModuleLoadData(module, image) };
        }
        let option = |wanted: u32| (0..options as usize).find_map(|i| {
            // SAFETY: the caller passes lists of `options` entries.
            let (name, value) = unsafe { (*names.add(i), *values.add(i)) };
            (name == wanted).then_some(value)
        });
        if let (Some(log), Some(len)) = (option(5), option(6)) {
            let text = b"ptxas fatal: PTX .version is newer than this driver reads\0";
            // SAFETY: the caller passes a log of `len` bytes.
            unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), log as *mut u8, text.len().min(len)) };
        }
        UNSUPPORTED_PTX
    }
    cuModuleUnload(module: usize) { answer(|machine| machine.modules.remove(&module).map(|_| ()).ok_or(INVALID_HANDLE)) }
    cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) {
        // SAFETY: the caller passes a name that ends in a zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        answer(|machine| {
            let text = machine.modules.get(&module).ok_or(INVALID_HANDLE)?;
            let loaded = Function::new(CONTEXT_HERE.get(), (module, text), &name).ok_or(NOT_FOUND)?;
            let handle = machine.handle();
            machine.functions.insert(handle, loaded);
            // SAFETY: the caller passes a pointer that can be written.
            unsafe { put(function, handle) };
            Ok(())
        })
    }
    // Blocks that fit a multiprocessor. Only threads limit them, because registers and shared memory are not
    // known here.
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: *mut i32, _function: usize, threads: i32, _shared: usize, _flags: u32
    ) {
        // SAFETY: the caller passes a pointer that can be written.
        unsafe { put(blocks, 2048 / threads.max(32)) };
        0
    }
    cuFuncGetAttribute(value: *mut i32, attribute: i32, function: usize) {
        answer(|machine| {
            machine.functions.get(&function).ok_or(INVALID_HANDLE)?;
            let number = match attribute {
                // Bytes of local memory, and registers.
                3 => 0,
                4 => 128,
                _ => return Err(INVALID_VALUE),
            };
            // SAFETY: the caller passes a pointer that can be written.
            unsafe { put(value, number) };
            Ok(())
        })
    }
    cuLaunchKernel(
        function: usize, x: u32, y: u32, z: u32, width: u32, height: u32, depth: u32, shared: u32,
        stream: usize, parameters: *const *const c_void, _extra: *const c_void
    ) {
        on(stream, |machine, stream| {
            let function = machine.functions.get(&function).cloned().ok_or(INVALID_HANDLE)?;
            if [width, depth, shared] != [32, 1, 0]
                || !(1..=crate::parse::WARPS).contains(&height)
                || [x, y, z].contains(&0)
                || y.max(z) > 65_535
            {
                return Err(INVALID_VALUE);
            }
            if machine.stream(stream)?.context != function.context {
                return Err(INVALID_HANDLE);
            }
            let value = |(i, &is_pointer): (usize, &bool)| {
                // SAFETY: the caller passes a value of the right width for each parameter of the kernel.
                unsafe {
                    let parameter = *parameters.add(i);
                    if is_pointer { *parameter.cast::<u64>() } else { u64::from(*parameter.cast::<u32>()) }
                }
            };
            let values = function.pointers.iter().enumerate().map(value).collect();
            let work = Work::Launch(Launch { function, warps: [x * height, y, z], values });
            count_launch(&work);
            machine.ask(stream, work)
        })
    }
}
