//! Tensors on a GPU, through DLPack or by the address that PyTorch gives: the memory and the description of a
//! tensor of PyTorch, CuPy or another library.
//!
//! A tensor is asked for its device, then for a capsule with its address, shape, strides and type. The
//! contents of the capsule are trusted, as in every reader of DLPack. The capsule is held while it is read
//! and is not consumed: the tensor stays the caller's. This is the only file of the package with unsafe code.
#![allow(unsafe_code, reason = "DLPack is a struct of C behind a pointer")]

use crate::errors::{Failure, refused};
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyCapsule, PyCapsuleMethods};
use std::ffi::{CString, c_void};
use tqkv_gpu::cudarc::driver::sys::CUstream;
use tqkv_gpu::paged::{ExactRows, Integers, Layout, Pages, Room, TokenRows};
use tqkv_gpu::{Device, Element, GpuCache, GpuError, Raw};

/// `DLDeviceType` of CUDA memory, and of managed memory, which the driver moves.
const CUDA: i32 = 2;
const CUDA_MANAGED: i32 = 13;
/// `DLDataTypeCode`.
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
/// The stream number of the default stream.
const DEFAULT_STREAM: usize = 1;

/// `DLTensor` of version 0 and 1. `DLManagedTensor` begins with it.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// The device of an engine's stream, by its handle. 0 is the default stream.
pub(crate) fn device(ordinal: usize, stream: usize) -> Result<Device, GpuError> {
    let stream: CUstream = std::ptr::with_exposed_provenance_mut(stream);
    // SAFETY: the Python caller promises that the stream exists as long as the cache.
    unsafe { Device::from_raw(ordinal, stream) }
}

/// Warns of what a user of a device should know, if there is anything.
pub(crate) fn warn(py: Python<'_>, device: &Device) -> Result<(), Failure> {
    let Some(caution) = device.caution() else { return Ok(()) };
    let text = CString::new(format!("tqkv: {caution}")).map_err(|_| refused(caution.to_owned()))?;
    Ok(PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1)?)
}

/// Lets a cache go on on another stream, by its handle.
pub(crate) fn follow(cache: &mut GpuCache, stream: usize) -> Result<(), GpuError> {
    let stream: CUstream = std::ptr::with_exposed_provenance_mut(stream);
    // SAFETY: the stream is PyTorch's current one, which exists as long as the process.
    unsafe { cache.follow(stream) }
}

/// The same device on another stream, by its handle.
pub(crate) fn on(device: &Device, stream: usize) -> Result<Device, GpuError> {
    let stream: CUstream = std::ptr::with_exposed_provenance_mut(stream);
    // SAFETY: the stream is PyTorch's current one, which exists as long as the process.
    unsafe { device.on_raw(stream) }
}

/// Address, number of values, and type of a tensor of vectors.
pub(crate) type Vectors = (u64, usize, String);
/// Those of a tensor of the vectors of tokens, and the values from a token to the next.
pub(crate) type Tokens = (u64, usize, usize, String);
/// Keys and values of exact tokens, the places of each head that may hold one, and the places of a call.
pub(crate) type Exact = (Vectors, Vectors, usize, Numbers);
/// Address and number of values of a tensor of integers, or of bytes.
pub(crate) type Numbers = (u64, usize);
/// Address, number, distance in bytes, and tokens of the blocks of a layer.
pub(crate) type Block = (u64, usize, usize, usize);

/// A tensor of vectors whose address PyTorch gave.
pub(crate) fn raw(what: &str, (address, len, dtype): &Vectors) -> Result<Raw, Failure> {
    let element = match dtype.as_str() {
        "float32" => Element::F32,
        "float16" => Element::F16,
        "bfloat16" => Element::Bf16,
        other => {
            return Err(refused(format!(
                "{what} of the type {other} is not valid: expected float32, float16 or bfloat16"
            )));
        }
    };
    // SAFETY: `tqkv.paged` passes a contiguous tensor of the device, of this type and length, which it holds.
    // PyTorch frees and reuses its memory in the order of the stream.
    Ok(unsafe { Raw::new(*address, *len, element) })
}

/// A tensor of vectors whose tokens may be apart.
pub(crate) fn tokens(what: &str, (address, len, stride, dtype): Tokens) -> Result<TokenRows, Failure> {
    let values = raw(what, &(address, len, dtype))?;
    // SAFETY: as for `raw`, of the vectors of each token.
    Ok(unsafe { TokenRows::apart(values, stride) })
}

/// Exact tokens of a layer.
pub(crate) fn exact((keys, values, held, places): Exact) -> Result<ExactRows, Failure> {
    let sides = [raw("exact keys", &keys)?, raw("exact values", &values)?];
    Ok(ExactRows { sides, held, places: i64s(places) })
}

/// A tensor of int32.
pub(crate) fn i32s((address, len): Numbers) -> Integers {
    // SAFETY: as for `raw`.
    unsafe { Integers::i32(address, len) }
}

/// A tensor of int64.
pub(crate) fn i64s((address, len): Numbers) -> Integers {
    // SAFETY: as for `raw`.
    unsafe { Integers::i64(address, len) }
}

/// A tensor of bytes for a call to work in.
pub(crate) fn room((address, bytes): Numbers) -> Room {
    // SAFETY: as for `raw`; the tensor was made for this call.
    unsafe { Room::new(address, bytes) }
}

/// The blocks of a layer.
pub(crate) fn pages(layout: &Layout, (address, blocks, stride, tokens): Block) -> Result<Pages, GpuError> {
    // SAFETY: as for `raw`: a tensor of bytes with so many blocks.
    unsafe { Pages::together(layout, address, blocks, stride, tokens) }
}

/// A tensor of f32, f16 or bf16 on device `ordinal`, in C order without gaps: its memory and its shape. The
/// library of the tensor has ordered its writes before the work of `stream`.
pub(crate) fn tensor(
    what: &str,
    object: &Bound<'_, PyAny>,
    ordinal: usize,
    stream: usize,
) -> Result<(Raw, Vec<usize>), Failure> {
    let kind = object.get_type().name()?;
    if !object.hasattr("__dlpack__")? || !object.hasattr("__dlpack_device__")? {
        return Err(refused(format!(
            "{what} of the type {kind} is not valid: expected a tensor on a GPU that speaks DLPack"
        )));
    }
    let (device_type, device): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    check_device(what, (device_type, device), ordinal)?;
    let stream = if stream == 0 { DEFAULT_STREAM } else { stream };
    let options = [("stream", stream)].into_py_dict(object.py())?;
    let capsule = object.call_method("__dlpack__", (), Some(&options))?;
    let capsule = capsule
        .cast::<PyCapsule>()
        .map_err(|_| refused(format!("{what}: __dlpack__ of a {kind} returns no capsule")))?;
    let pointer = capsule
        .pointer_checked(Some(c"dltensor"))
        .map_err(|_| refused(format!("{what}: the capsule of a {kind} is not called 'dltensor'")))?;
    // SAFETY: a capsule of this name holds a `DLManagedTensor`, which begins with a `DLTensor`. It stays
    // valid while the capsule exists.
    let tensor = unsafe { pointer.cast::<Tensor>().as_ref() };
    tensor.read(what, ordinal)
}

/// Refuses any device but CUDA device `ordinal`.
fn check_device(what: &str, (device_type, device): (i32, i32), ordinal: usize) -> Result<(), Failure> {
    let is_cuda = matches!(device_type, CUDA | CUDA_MANAGED);
    if is_cuda && usize::try_from(device) == Ok(ordinal) {
        return Ok(());
    }
    let lies = match device_type {
        1 => "in main memory".to_owned(),
        _ if is_cuda => format!("on CUDA device {device}"),
        other => format!("on a device of DLPack's type {other}"),
    };
    Err(refused(format!("{what} {lies} is not valid: expected a tensor on CUDA device {ordinal}")))
}

impl Tensor {
    fn read(&self, what: &str, ordinal: usize) -> Result<(Raw, Vec<usize>), Failure> {
        check_device(what, (self.device_type, self.device), ordinal)?;
        let (element, bytes) = match (self.code, self.bits, self.lanes) {
            (FLOAT, 32, 1) => (Element::F32, 4),
            (FLOAT, 16, 1) => (Element::F16, 2),
            (BFLOAT, 16, 1) => (Element::Bf16, 2),
            (code, bits, lanes) => {
                return Err(refused(format!(
                    "{what} of DLPack's type {code} of {bits} bits with {lanes} lanes is not valid: expected float32, float16 and \
                     bfloat16"
                )));
            }
        };
        let shape = self.axes(self.shape);
        let odd =
            || refused(format!("{what} of the shape {shape:?} is not valid: expected sizes of 0 or more"));
        let sizes: Vec<usize> =
            shape.iter().map(|&size| usize::try_from(size).map_err(|_| odd())).collect::<Result<_, _>>()?;
        let values = sizes.iter().try_fold(1, |n: usize, &size| n.checked_mul(size)).ok_or_else(odd)?;
        // Without strides the tensor is in C order. Axes of size one and empty tensors may have any strides.
        let mut dense = 1;
        for (&stride, &size) in self.axes(self.strides).iter().zip(shape).rev() {
            if size > 1 && stride != dense && values > 0 {
                let message = format!(
                    "{what} in this memory order is not valid: expected C order, as .contiguous() makes it"
                );
                return Err(refused(message));
            }
            dense = dense.saturating_mul(size);
        }
        let address = (self.data.addr() as u64).wrapping_add(self.byte_offset);
        if !address.is_multiple_of(bytes) {
            return Err(refused(format!(
                "{what} at this address is not valid: expected a multiple of {bytes} bytes"
            )));
        }
        // SAFETY: the capsule describes this memory. The Python caller holds the tensor and orders its use.
        Ok((unsafe { Raw::new(address, values, element) }, sizes))
    }

    /// The numbers of all axes. Empty if the pointer is null.
    fn axes(&self, numbers: *const i64) -> &[i64] {
        match usize::try_from(self.ndim) {
            // SAFETY: the capsule promises `ndim` numbers at this address.
            Ok(axes) if !numbers.is_null() => unsafe { std::slice::from_raw_parts(numbers, axes) },
            _ => &[],
        }
    }
}
