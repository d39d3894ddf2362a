//! The structs of `ggml-backend-impl.h` and `ggml.h`, written by hand.
//!
//! Interface versions 2 and 3 share all of them but one, which is here in both forms.
//! `tests/it/layout.rs` compares sizes and offsets with those of the C compiler.

use std::ffi::{c_char, c_int, c_void};

/// `GGML_MAX_DIMS`: dimensions of a tensor.
pub const DIMS: usize = 4;
/// `GGML_MAX_SRC`: sources of an operation.
pub const SOURCES: usize = 10;

/// `GGML_STATUS_FAILED`
pub const FAILED: c_int = -1;
/// `GGML_STATUS_SUCCESS`
pub const SUCCESS: c_int = 0;

/// `GGML_TYPE_F32`
pub const F32: c_int = 0;
/// `GGML_TYPE_F16`
pub const F16: c_int = 1;
/// `GGML_TYPE_I32`
pub const I32: c_int = 26;
/// `GGML_TYPE_I64`
pub const I64: c_int = 27;

/// `GGML_BACKEND_DEVICE_TYPE_GPU`: the host gives layers only to devices of this type.
pub const DEVICE_GPU: c_int = 1;

/// `struct ggml_tensor`
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "the names are those of ggml.h")]
pub struct Tensor {
    pub kind: c_int,
    pub buffer: *mut Buffer,
    pub ne: [i64; DIMS],
    pub nb: [usize; DIMS],
    pub op: c_int,
    pub op_params: [i32; 16],
    pub flags: i32,
    pub src: [*mut Tensor; SOURCES],
    pub view_src: *mut Tensor,
    pub view_offs: usize,
    pub data: *mut c_void,
    pub name: [c_char; 64],
    pub extra: *mut c_void,
    pub padding: [c_char; 8],
}

/// `ggml_to_float_t`: blocks, values, number of values.
pub type ToFloat = unsafe extern "C" fn(*const c_void, *mut f32, i64);
/// `ggml_from_float_t`: values, blocks, number of values.
pub type FromFloat = unsafe extern "C" fn(*const f32, *mut c_void, i64);

/// `struct ggml_type_traits`
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "they are those of ggml.h, in words")]
pub struct TypeTraits {
    pub name: *const c_char,
    pub block: i64,
    pub interleaved: i64,
    pub block_bytes: usize,
    pub is_quantised: bool,
    pub to_float: Option<ToFloat>,
    pub from_float: Option<FromFloat>,
}

/// An optional function that this back end does not have.
pub type Absent = Option<unsafe extern "C" fn()>;

/// `struct ggml_backend_buffer_type_i` of version 2.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "the names are those of ggml-backend-impl.h")]
pub struct BufferTypeFunctions2 {
    pub get_name: unsafe extern "C" fn(*mut BufferType) -> *const c_char,
    pub alloc_buffer: unsafe extern "C" fn(*mut BufferType, usize) -> *mut Buffer,
    pub get_alignment: unsafe extern "C" fn(*mut BufferType) -> usize,
    pub get_max_size: Absent,
    pub get_alloc_size: Absent,
    pub is_host: unsafe extern "C" fn(*mut BufferType) -> bool,
}

/// `struct ggml_backend_buffer_type_i` of version 3.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "the names are those of ggml-backend-impl.h")]
pub struct BufferTypeFunctions3 {
    pub get_name: unsafe extern "C" fn(*mut BufferType) -> *const c_char,
    pub alloc_buffer: unsafe extern "C" fn(*mut BufferType, usize) -> *mut Buffer,
    pub alloc_buffer_n: Absent,
    pub get_alignment: unsafe extern "C" fn(*mut BufferType) -> usize,
    pub get_max_size: Absent,
    pub get_alloc_size: Absent,
    pub get_alloc_size_n: Absent,
    pub is_host: unsafe extern "C" fn(*mut BufferType) -> bool,
}

/// `struct ggml_backend_buffer_type` with the functions of one version.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "the names are those of ggml-backend-impl.h")]
pub struct BufferTypeOf<F> {
    pub functions: F,
    pub device: *mut Device,
    pub context: *mut c_void,
}

/// A buffer type of either version, used only behind a pointer.
#[repr(C)]
#[derive(Debug)]
pub struct BufferType {
    opaque: [u8; 0],
}

/// `struct ggml_backend_buffer_i`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are those of ggml-backend-impl.h")]
pub struct BufferFunctions {
    pub free_buffer: unsafe extern "C" fn(*mut Buffer),
    pub get_base: unsafe extern "C" fn(*mut Buffer) -> *mut c_void,
    pub init_tensor: unsafe extern "C" fn(*mut Buffer, *mut Tensor) -> c_int,
    pub memset_tensor: unsafe extern "C" fn(*mut Buffer, *mut Tensor, u8, usize, usize),
    pub set_tensor: unsafe extern "C" fn(*mut Buffer, *mut Tensor, *const c_void, usize, usize),
    pub get_tensor: unsafe extern "C" fn(*mut Buffer, *const Tensor, *mut c_void, usize, usize),
    pub set_tensor_2d: Absent,
    pub get_tensor_2d: Absent,
    pub cpy_tensor: unsafe extern "C" fn(*mut Buffer, *const Tensor, *mut Tensor) -> bool,
    pub clear: unsafe extern "C" fn(*mut Buffer, u8),
    pub reset: Absent,
}

/// `struct ggml_backend_buffer`
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "the names are those of ggml-backend-impl.h")]
pub struct Buffer {
    pub functions: BufferFunctions,
    pub kind: *mut BufferType,
    pub context: *mut c_void,
    pub size: usize,
    pub usage: c_int,
}

/// `struct ggml_backend_i`
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "the names are those of ggml-backend-impl.h")]
pub struct BackendFunctions {
    pub get_name: unsafe extern "C" fn(*mut Backend) -> *const c_char,
    pub free: unsafe extern "C" fn(*mut Backend),
    pub set_tensor_async: Absent,
    pub get_tensor_async: Absent,
    pub set_tensor_2d_async: Absent,
    pub get_tensor_2d_async: Absent,
    pub cpy_tensor_async: Absent,
    pub synchronize: Absent,
    pub graph_plan_create: Absent,
    pub graph_plan_free: Absent,
    pub graph_plan_update: Absent,
    pub graph_plan_compute: Absent,
    pub graph_compute: unsafe extern "C" fn(*mut Backend, *mut c_void) -> c_int,
    pub event_record: Absent,
    pub event_wait: Absent,
    pub graph_optimize: Absent,
}

/// `struct ggml_backend`
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "the names are those of ggml-backend-impl.h")]
pub struct Backend {
    pub guid: *const [u8; 16],
    pub functions: BackendFunctions,
    pub device: *mut Device,
    pub context: *mut c_void,
}

/// `struct ggml_backend_dev_props`
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "the names are those of ggml-backend.h")]
pub struct DeviceProps {
    pub name: *const c_char,
    pub description: *const c_char,
    pub memory_free: usize,
    pub memory_total: usize,
    pub kind: c_int,
    pub device_id: *const c_char,
    /// Support for asynchronous work, host buffers, buffers from pointers, events and mapped weights.
    pub caps: [bool; 5],
}

/// `struct ggml_backend_device_i`
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "the names are those of ggml-backend-impl.h")]
pub struct DeviceFunctions {
    pub get_name: unsafe extern "C" fn(*mut Device) -> *const c_char,
    pub get_description: unsafe extern "C" fn(*mut Device) -> *const c_char,
    pub get_memory: unsafe extern "C" fn(*mut Device, *mut usize, *mut usize),
    pub get_type: unsafe extern "C" fn(*mut Device) -> c_int,
    pub get_props: unsafe extern "C" fn(*mut Device, *mut DeviceProps),
    pub init_backend: unsafe extern "C" fn(*mut Device, *const c_char) -> *mut Backend,
    pub get_buffer_type: unsafe extern "C" fn(*mut Device) -> *mut BufferType,
    pub get_host_buffer_type: Absent,
    pub buffer_from_host_ptr: Absent,
    pub supports_op: unsafe extern "C" fn(*mut Device, *const Tensor) -> bool,
    pub supports_buft: unsafe extern "C" fn(*mut Device, *mut BufferType) -> bool,
    pub offload_op: Absent,
    pub event_new: Absent,
    pub event_free: Absent,
    pub event_synchronize: Absent,
}

/// `struct ggml_backend_device`
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "the names are those of ggml-backend-impl.h")]
pub struct Device {
    pub functions: DeviceFunctions,
    pub reg: *mut Reg,
    pub context: *mut c_void,
}

/// `struct ggml_backend_reg_i`
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "the names are those of ggml-backend-impl.h")]
pub struct RegFunctions {
    pub get_name: unsafe extern "C" fn(*mut Reg) -> *const c_char,
    pub get_device_count: unsafe extern "C" fn(*mut Reg) -> usize,
    pub get_device: unsafe extern "C" fn(*mut Reg, usize) -> *mut Device,
    pub get_proc_address: unsafe extern "C" fn(*mut Reg, *const c_char) -> *mut c_void,
}

/// `struct ggml_backend_reg`
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "the names are those of ggml-backend-impl.h")]
pub struct Reg {
    pub api_version: c_int,
    pub functions: RegFunctions,
    pub context: *mut c_void,
}
