//! The functions of the program that loads this library, and its interface version.

#![allow(unsafe_code, reason = "functions of another library are called by address")]

use crate::abi::{self, Buffer, BufferFunctions, BufferType, Tensor, TypeTraits};
use crate::os;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// Oldest version of ggml whose structs are those of [`crate::abi`].
const OLDEST: (u32, u32) = (0, 19);
/// Limit of the search for operations by name: their numbers change between versions.
const MOST_OPERATIONS: c_int = 96;

/// Operations that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Views and leaves, which need no work.
    Nothing,
    /// `SET_ROWS`
    SetRows,
    /// `FLASH_ATTN_EXT`
    Attention,
    /// `ROPE`
    Rope,
    /// `CPY`
    Copy,
    /// `MUL_MAT`, by which the host transforms keys of quantised types. It is not served.
    Product,
    /// Everything else.
    Other,
}

/// The functions of libggml-base that are called here.
#[derive(Debug)]
pub struct Host {
    /// `GGML_BACKEND_API_VERSION`: 2 or 3.
    pub api: c_int,
    buffer_init: unsafe extern "C" fn(*mut BufferType, BufferFunctions, *mut c_void, usize) -> *mut Buffer,
    buft_is_host: unsafe extern "C" fn(*mut BufferType) -> bool,
    graph_len: unsafe extern "C" fn(*mut c_void) -> c_int,
    graph_node: unsafe extern "C" fn(*mut c_void, c_int) -> *mut Tensor,
    type_traits: unsafe extern "C" fn(c_int) -> *const TypeTraits,
    cpu_memory: unsafe extern "C" fn() -> *mut BufferType,
    operations: Vec<Operation>,
}

/// The layout of a type of the host, and its conversions.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Values per block.
    pub block: usize,
    /// Bytes per block.
    pub block_bytes: usize,
    /// The conversions.
    pub convert: Convert,
}

/// The host's conversions of one type.
#[derive(Clone, Copy, Debug)]
pub struct Convert {
    to: abi::ToFloat,
    from: abi::FromFloat,
}

impl Convert {
    /// Converts blocks to values.
    ///
    /// # Safety
    /// `bytes` are the blocks of exactly `values.len()` values.
    pub unsafe fn to_f32(self, bytes: &[u8], values: &mut [f32]) {
        // SAFETY: the caller keeps this function's contract; the host's blocks have no alignment beyond that of
        // f16, and rows of every tensor have it.
        unsafe { (self.to)(bytes.as_ptr().cast(), values.as_mut_ptr(), values.len() as i64) };
    }

    /// Converts values to blocks.
    ///
    /// # Safety
    /// `bytes` has room for exactly the blocks of `values.len()` values.
    pub unsafe fn from_f32(self, values: &[f32], bytes: &mut [u8]) {
        // SAFETY: as in `to_f32`.
        unsafe { (self.from)(values.as_ptr(), bytes.as_mut_ptr().cast(), values.len() as i64) };
    }
}

/// The host. The first call looks it up.
///
/// # Errors
/// A line that says which versions are supported.
pub fn host() -> Result<&'static Host, &'static str> {
    static HOST: OnceLock<Result<Host, String>> = OnceLock::new();
    HOST.get_or_init(Host::find).as_ref().map_err(String::as_str)
}

impl Host {
    fn find() -> Result<Self, String> {
        let library = os::ggml_base();
        let version = os::function(library, c"ggml_version").map(|address| {
            // SAFETY: ggml.h declares `const char * ggml_version(void)`; the string is valid as long as the
            // library.
            unsafe {
                let version: unsafe extern "C" fn() -> *const c_char = std::mem::transmute(address);
                CStr::from_ptr(version()).to_string_lossy().into_owned()
            }
        });
        let version = version.ok_or_else(|| unsupported("without a version"))?;
        if !is_known(&version) {
            return Err(unsupported(&version));
        }
        let need = |name: &CStr| {
            let missing = || unsupported(&format!("{version} without {}", name.to_string_lossy()));
            os::function(library, name).ok_or_else(missing)
        };
        let op_name = need(c"ggml_op_name")?;
        let api = if os::function(library, c"ggml_backend_buft_alloc_buffer_n").is_some() { 3 } else { 2 };
        // SAFETY: the signatures are those of ggml.h, ggml-backend.h and ggml-backend-impl.h in all supported
        // versions.
        unsafe {
            let op_name =
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> *const c_char>(op_name);
            Ok(Self {
                api,
                buffer_init: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut BufferType, BufferFunctions, *mut c_void, usize) -> *mut Buffer,
                >(need(c"ggml_backend_buffer_init")?),
                buft_is_host: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut BufferType) -> bool>(
                    need(c"ggml_backend_buft_is_host")?,
                ),
                graph_len: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> c_int>(
                    need(c"ggml_graph_n_nodes")?,
                ),
                graph_node: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut c_void, c_int) -> *mut Tensor,
                >(need(c"ggml_graph_node")?),
                type_traits: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(c_int) -> *const TypeTraits,
                >(need(c"ggml_get_type_traits")?),
                cpu_memory: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut BufferType>(
                    need(c"ggml_backend_cpu_buffer_type")?,
                ),
                operations: operations(op_name),
            })
        }
    }

    /// The operation that a number stands for.
    pub fn operation(&self, number: c_int) -> Operation {
        let known = usize::try_from(number).ok().and_then(|number| self.operations.get(number));
        known.copied().unwrap_or(Operation::Other)
    }

    /// The layout of a type with its conversions; none unless the host has the type under this number and
    /// name.
    pub fn format(&self, kind: c_int, name: &str) -> Option<Format> {
        // SAFETY: `kind` is a type of every supported version of ggml, so the pointer is null or that of a
        // static struct with a static name.
        let traits = unsafe { (self.type_traits)(kind).as_ref() }?;
        // SAFETY: as above.
        let is_named = unsafe { CStr::from_ptr(traits.name) }.to_bytes() == name.as_bytes();
        let block = usize::try_from(traits.block).ok().filter(|&block| is_named && block > 0)?;
        let convert = Convert { to: traits.to_float?, from: traits.from_float? };
        Some(Format { block, block_bytes: traits.block_bytes, convert })
    }

    /// A buffer that the host owns and frees.
    ///
    /// # Safety
    /// `functions` accept `context`, and `kind` is a buffer type of the host or of this library.
    pub unsafe fn new_buffer(
        &self,
        kind: *mut BufferType,
        functions: BufferFunctions,
        context: *mut c_void,
        size: usize,
    ) -> *mut Buffer {
        // SAFETY: the host copies `functions`; the caller guarantees that they accept the context.
        unsafe { (self.buffer_init)(kind, functions, context, size) }
    }

    /// The type of buffers whose tensors the CPU uses.
    pub fn cpu_memory(&self) -> *mut BufferType {
        // SAFETY: ggml-backend.h declares a function without arguments, whose result is static.
        unsafe { (self.cpu_memory)() }
    }

    /// True if tensors of a buffer type lie in memory as ggml.h says.
    ///
    /// # Safety
    /// `kind` is a valid buffer type of the host.
    pub unsafe fn is_host(&self, kind: *mut BufferType) -> bool {
        // SAFETY: the caller keeps this function's contract.
        unsafe { (self.buft_is_host)(kind) }
    }

    /// The nodes of a graph, in order.
    ///
    /// # Safety
    /// `graph` is a graph of the host that outlives the iterator.
    pub unsafe fn nodes(&self, graph: *mut c_void) -> impl Iterator<Item = *mut Tensor> {
        // SAFETY: the caller keeps this function's contract.
        let count = unsafe { (self.graph_len)(graph) };
        // SAFETY: the caller guarantees that the graph is valid, and `i` is below its number of nodes.
        (0..count).map(move |i| unsafe { (self.graph_node)(graph, i) })
    }
}

/// True if ggml of that version has the structs of [`crate::abi`], as far as this library can know.
///
/// The host itself refuses a library of another interface version.
fn is_known(version: &str) -> bool {
    let mut numbers = version.split(['.', '-']).map(|part| part.parse::<u32>().ok());
    let (major, minor) = (numbers.next().flatten(), numbers.next().flatten());
    major.zip(minor).is_some_and(|version| version >= OLDEST)
}

fn unsupported(version: &str) -> String {
    format!(
        "ggml {version} is not supported; supported are 0.19 and later with interface version 2 or 3 \
         (GGML_BACKEND_API_VERSION), in builds with loadable back ends (GGML_BACKEND_DL)"
    )
}

/// The operation of each number, found by name.
///
/// The search ends at the last operation that is served: a number past the end of the host's list has no
/// name.
fn operations(name: unsafe extern "C" fn(c_int) -> *const c_char) -> Vec<Operation> {
    let mut found = Vec::new();
    let (mut left, mut number) = (10, 0);
    while left > 0 && number < MOST_OPERATIONS {
        // SAFETY: the list of every supported version has all operations that are counted in `left`. While
        // one is missing, `number` is below the length of the list.
        let text = unsafe { CStr::from_ptr(name(number)) };
        let operation = match text.to_bytes() {
            b"NONE" | b"RESHAPE" | b"VIEW" | b"PERMUTE" | b"TRANSPOSE" => Operation::Nothing,
            b"SET_ROWS" => Operation::SetRows,
            b"FLASH_ATTN_EXT" => Operation::Attention,
            b"ROPE" => Operation::Rope,
            b"CPY" => Operation::Copy,
            b"MUL_MAT" => Operation::Product,
            _ => Operation::Other,
        };
        left -= i32::from(operation != Operation::Other);
        found.push(operation);
        number += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_before_the_oldest_are_refused() {
        for (version, known) in [
            ("0.19.0", true),
            ("0.25.1", true),
            ("0.26.0-dirty", true),
            ("1.0.0", true),
            ("0.18.3", false),
            ("", false),
        ] {
            assert_eq!(is_known(version), known, "{version}");
        }
        let refusal = unsupported("0.18.3");
        assert!(refusal.contains("0.19") && !refusal.contains('\n'));
    }
}
