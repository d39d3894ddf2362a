//! The device, and the registry that lists it. The host asks both before it makes a context.

#![allow(unsafe_code, reason = "the host calls functions with pointers")]

use crate::abi::{
    self, Backend, BufferType, Device, DeviceFunctions, DeviceProps, Reg, RegFunctions, Tensor,
};
use crate::backend;
use crate::buffer;
use crate::copies;
use crate::host::{self, Operation};
use crate::os;
use crate::rotate;
use crate::said;
use crate::serve;
use crate::settings::{set_options, wrong_options};
use crate::tensor::View;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::LazyLock;

/// Data that is only read and never moves after it is made.
struct Fixed<T>(*mut T);
// SAFETY: nothing writes to the value after `new`.
unsafe impl<T> Send for Fixed<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Fixed<T> {}

impl<T> Fixed<T> {
    fn new(value: T) -> Self {
        Self(Box::into_raw(Box::new(value)))
    }
}

/// The entry point that the host looks for in the library of a back end.
///
/// Returns null and prints one line to standard error if the version of ggml or a setting is not supported.
#[unsafe(no_mangle)]
pub extern "C" fn ggml_backend_init() -> *mut Reg {
    if let Some(error) = host::host().err().map(str::to_owned).or_else(wrong_options) {
        said::print(&error);
        return null_mut();
    }
    reg()
}

fn reg() -> *mut Reg {
    static REG: LazyLock<Fixed<Reg>> = LazyLock::new(|| {
        Fixed::new(Reg {
            api_version: host::host().map_or(0, |host| host.api),
            functions: RegFunctions {
                get_name: reg_name,
                get_device_count: count,
                get_device: first,
                get_proc_address: address,
            },
            context: null_mut(),
        })
    });
    REG.0
}

/// The one device.
fn device() -> *mut Device {
    static DEVICE: LazyLock<Fixed<Device>> = LazyLock::new(|| {
        Fixed::new(Device {
            functions: DeviceFunctions {
                get_name: name,
                get_description: description,
                get_memory: memory,
                get_type: kind,
                get_props: props,
                init_backend: init,
                get_buffer_type: buffer_type,
                get_host_buffer_type: None,
                buffer_from_host_ptr: None,
                supports_op,
                supports_buft,
                offload_op: None,
                event_new: None,
                event_free: None,
                event_synchronize: None,
            },
            reg: reg(),
            context: null_mut(),
        })
    });
    DEVICE.0
}

unsafe extern "C" fn reg_name(_: *mut Reg) -> *const c_char {
    c"TQKV".as_ptr()
}

unsafe extern "C" fn count(_: *mut Reg) -> usize {
    1
}

unsafe extern "C" fn first(_: *mut Reg, _: usize) -> *mut Device {
    device()
}

unsafe extern "C" fn address(_: *mut Reg, name: *const c_char) -> *mut c_void {
    if name.is_null() {
        return null_mut();
    }
    // SAFETY: the host passes a string that ends in NUL.
    match unsafe { CStr::from_ptr(name) }.to_bytes() {
        b"ggml_backend_set_n_threads" => backend::set_threads as *mut c_void,
        b"tqkv_held_bytes" => buffer::held_bytes as *mut c_void,
        _ => null_mut(),
    }
}

unsafe extern "C" fn name(_: *mut Device) -> *const c_char {
    c"TQKV".as_ptr()
}

unsafe extern "C" fn description(_: *mut Device) -> *const c_char {
    c"KV cache in tqkv codes".as_ptr()
}

/// Bytes of memory that the device has. It has none, because caches lie in the memory of the machine. Programs that
/// look for graphics cards (Ollama) pass by devices without memory, and would otherwise take the machine's for a card's.
const DEVICE_MEMORY: usize = 0;

/// What is free is the machine's: `-fit` and the division of layers go by it, and `-fit` gives no layer to a device
/// where both numbers are 0.
unsafe extern "C" fn memory(_: *mut Device, free: *mut usize, total: *mut usize) {
    // SAFETY: the host passes pointers to two numbers.
    unsafe { (*free, *total) = (os::free_memory(), DEVICE_MEMORY) };
}

unsafe extern "C" fn kind(_: *mut Device) -> c_int {
    abi::DEVICE_GPU
}

unsafe extern "C" fn props(_: *mut Device, props: *mut DeviceProps) {
    let all = DeviceProps {
        name: c"TQKV".as_ptr(),
        description: c"KV cache in tqkv codes".as_ptr(),
        memory_free: os::free_memory(),
        memory_total: DEVICE_MEMORY,
        kind: abi::DEVICE_GPU,
        device_id: std::ptr::null(),
        caps: [false; 5],
    };
    // SAFETY: the host passes a pointer to a struct of this type.
    unsafe { props.write(all) };
}

/// Makes a back end. `parameters` is null or a policy text; a wrong text gives null and one line on standard
/// error.
unsafe extern "C" fn init(_: *mut Device, parameters: *const c_char) -> *mut Backend {
    if !parameters.is_null() {
        // SAFETY: the host passes a string that ends in NUL.
        let text = unsafe { CStr::from_ptr(parameters) }.to_string_lossy();
        if let Err(error) = if text.trim().is_empty() { Ok(()) } else { set_options(&text) } {
            said::print(&format!("parameters of the device: {error}"));
            return null_mut();
        }
    }
    backend::new(device())
}

unsafe extern "C" fn buffer_type(_: *mut Device) -> *mut BufferType {
    buffer::kind(device())
}

/// True if an operation is served. Served are views, and the operations on a cache that `serve` accepts. The
/// CPU runs everything else.
///
/// An operation that writes to a recurrent state, or to a refused tensor, counts as served while the host
/// measures a context without memory (`-fit`), where a refusal would end the process. When it allocates the
/// buffer, the buffer becomes the CPU's, or refuses the tensor in one line.
unsafe extern "C" fn supports_op(_: *mut Device, tensor: *const Tensor) -> bool {
    // SAFETY: the host passes a tensor that is valid, as are its sources and buffers.
    unsafe {
        let (Some(op), Ok(host)) = (View::new(tensor), host::host()) else { return false };
        if buffer::is_only_measured(&op) {
            return true;
        }
        match host.operation(op.get().op) {
            Operation::Nothing => true,
            Operation::SetRows => serve::can_set_rows(&op),
            Operation::Attention => serve::can_attend(&op),
            Operation::Rope => rotate::can_rotate(&op),
            Operation::Copy => copies::can_copy(&op),
            Operation::Product | Operation::Other => false,
        }
    }
}

/// True for buffers of this back end, and for memory that the host's own operations read.
unsafe extern "C" fn supports_buft(_: *mut Device, kind: *mut BufferType) -> bool {
    // SAFETY: the host passes a valid buffer type.
    buffer::is_ours(kind) || host::host().is_ok_and(|host| unsafe { host.is_host(kind) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_has_no_memory_and_tells_what_the_machine_has_free() {
        let (mut free, mut total) = (0, 1);
        // SAFETY: the function writes to the two numbers, and does not read the device.
        unsafe { memory(null_mut(), &raw mut free, &raw mut total) };
        assert_eq!(total, 0);
        assert!(free > 0);
        let mut all = std::mem::MaybeUninit::uninit();
        // SAFETY: the function writes the struct, and does not read the device.
        let all = unsafe {
            props(null_mut(), all.as_mut_ptr());
            all.assume_init()
        };
        assert!(all.memory_total == 0 && all.memory_free > 0);
    }
}
