//! Buffers: address space of which only what is no cache is ever touched.

#![allow(unsafe_code, reason = "the host calls functions with pointers")]

use crate::abi::{self, Buffer, BufferFunctions, BufferType, BufferTypeFunctions2, BufferTypeFunctions3};
use crate::abi::{BufferTypeOf, Tensor};
use crate::cache::{Side, Store};
use crate::options::Options;
use crate::tensor::View;
use crate::{device, host};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};

/// Alignment of tensors; a line of pages.
const ALIGNMENT: usize = 64;

/// A tensor of the cache in a buffer.
#[derive(Debug)]
pub(crate) struct Cached {
    /// Bytes from the beginning of the buffer.
    offset: usize,
    bytes: usize,
    /// Codecs by layer, the layer's number, and how many there are.
    options: Arc<Options>,
    layer: usize,
    layers: Arc<AtomicUsize>,
    store: Mutex<Store>,
    /// Its values lie in the buffer's memory: it is written by columns, as is done without flash attention.
    pub(crate) is_plain: AtomicBool,
}

impl Cached {
    /// Its rows. One thread of one context uses them at a time, so that nobody waits.
    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if rows are divided into heads of so many values that the layer's codec can encode. From the
    /// first yes on, they are.
    pub(crate) fn divide(&self, side: Side, dim: usize) -> bool {
        let (key, value) = self.options.codecs(self.layer, self.layers.load(Ordering::Relaxed));
        self.store().divide(dim, if side == Side::Keys { key } else { value })
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain.load(Ordering::Relaxed)
    }
}

/// The memory of a buffer.
#[derive(Debug)]
struct Space {
    base: *mut c_void,
    size: usize,
    options: Arc<Options>,
    layers: Arc<AtomicUsize>,
    cached: RwLock<Vec<Arc<Cached>>>,
}

impl Space {
    /// The tensor of the cache that an address is in, and how far behind its beginning.
    fn find(&self, address: *const c_void) -> Option<(Arc<Cached>, usize)> {
        let at = (address as usize).checked_sub(self.base as usize)?;
        let cached = self.cached.read().unwrap_or_else(PoisonError::into_inner);
        let i = cached.partition_point(|cached| cached.offset <= at).checked_sub(1)?;
        let found = cached.get(i).filter(|cached| at < cached.offset + cached.bytes)?;
        Some((found.clone(), at - found.offset))
    }

    fn held_bytes(&self) -> usize {
        let cached = self.cached.read().unwrap_or_else(PoisonError::into_inner);
        cached.iter().map(|cached| cached.store().held_bytes()).sum()
    }

    fn declared_bytes(&self) -> usize {
        let cached = self.cached.read().unwrap_or_else(PoisonError::into_inner);
        cached.iter().map(|cached| cached.bytes).sum()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: what was mapped for this buffer, which nobody has any more.
        unsafe { libc::munmap(self.base, self.size) };
    }
}

/// The memory of a buffer of ours; none for other buffers, and for those without bytes.
///
/// # Safety
/// `buffer` is null or a buffer of the host's that outlives the result.
unsafe fn space<'a>(buffer: *mut Buffer) -> Option<&'a Space> {
    // SAFETY: the caller's.
    let buffer = unsafe { buffer.as_ref() }?;
    if buffer.kind != kind() || buffer.context.is_null() {
        return None;
    }
    // SAFETY: the context of a buffer of our type is what `alloc` put there.
    Some(unsafe { &*buffer.context.cast::<Space>() })
}

/// True if a tensor is one of a cache, or a view of one, in a buffer of ours.
///
/// # Safety
/// The buffer of the tensor lives.
pub(crate) unsafe fn is_cached(tensor: &View<'_>) -> bool {
    let root = tensor.root();
    // SAFETY: the caller's.
    let buffer = unsafe { root.get().buffer.as_ref() };
    buffer.is_some_and(|buffer| buffer.kind == kind()) && side(&root).is_some()
}

/// Keys or values, by the name that the host gives.
pub(crate) fn side(root: &View<'_>) -> Option<Side> {
    let name = root.name().to_bytes();
    if name.starts_with(b"cache_k_l") {
        Some(Side::Keys)
    } else if name.starts_with(b"cache_v_l") {
        Some(Side::Values)
    } else {
        None
    }
}

/// The tensor of the cache that a view lies in, and how many bytes behind its beginning; none before memory
/// is there.
///
/// # Safety
/// The buffer of the tensor lives.
pub(crate) unsafe fn cached(tensor: &View<'_>) -> Option<(Arc<Cached>, usize)> {
    // SAFETY: the caller's.
    let space = unsafe { space(tensor.root().get().buffer) }?;
    space.find(tensor.get().data)
}

thread_local! {
    /// Layers of the model for which this thread makes buffers: a model may have a cache of some layers and
    /// one of the others.
    static LAYERS: RefCell<Arc<AtomicUsize>> = RefCell::default();
}

/// The buffers of a model have been made: those that this thread makes from now on belong to another one.
pub(crate) fn end_of_buffers() {
    LAYERS.with_borrow_mut(|layers| {
        if layers.load(Ordering::Relaxed) > 0 {
            *layers = Arc::default();
        }
    });
}

/// The number of the layer in the name of a tensor.
fn layer(name: &[u8]) -> usize {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&name[name.len() - digits..]).ok();
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The one buffer type, of the host's version.
pub(crate) fn kind() -> *mut BufferType {
    #[derive(Debug)]
    struct Kind(*mut BufferType);
    // SAFETY: it is made once and only read.
    unsafe impl Send for Kind {}
    // SAFETY: as above.
    unsafe impl Sync for Kind {}
    static KIND: LazyLock<Kind> = LazyLock::new(|| {
        let (device, context) = (device::device(), null_mut());
        let functions = BufferTypeFunctions2 {
            get_name: name,
            alloc_buffer: alloc,
            get_alignment: alignment,
            get_max_size: None,
            get_alloc_size: None,
            is_host,
        };
        if host::host().is_ok_and(|host| host.api == 2) {
            return Kind(Box::into_raw(Box::new(BufferTypeOf { functions, device, context })).cast());
        }
        let functions = BufferTypeFunctions3 {
            get_name: name,
            alloc_buffer: alloc,
            alloc_buffer_n: None,
            get_alignment: alignment,
            get_max_size: None,
            get_alloc_size: None,
            get_alloc_size_n: None,
            is_host,
        };
        Kind(Box::into_raw(Box::new(BufferTypeOf { functions, device, context })).cast())
    });
    KIND.0
}

unsafe extern "C" fn name(_: *mut BufferType) -> *const c_char {
    c"TQKV".as_ptr()
}

unsafe extern "C" fn alignment(_: *mut BufferType) -> usize {
    ALIGNMENT
}

/// Never, so that the CPU does not read what is not there.
unsafe extern "C" fn is_host(_: *mut BufferType) -> bool {
    false
}

unsafe extern "C" fn alloc(kind: *mut BufferType, size: usize) -> *mut Buffer {
    let (Ok(host), Some(options)) = (host::host(), device::options()) else { return null_mut() };
    let size = size.max(1);
    // SAFETY: address space without memory, anywhere; the result is looked at.
    let base = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE;
        libc::mmap(null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if base == libc::MAP_FAILED {
        return null_mut();
    }
    let space =
        Space { base, size, options, layers: LAYERS.with_borrow(Arc::clone), cached: RwLock::default() };
    let functions = BufferFunctions {
        free_buffer: free,
        get_base: base_of,
        init_tensor: init,
        memset_tensor: fill,
        set_tensor: set,
        get_tensor: get,
        set_tensor_2d: None,
        get_tensor_2d: None,
        cpy_tensor: copy,
        clear,
        reset: None,
    };
    // SAFETY: the functions take the context for what it is.
    unsafe { host.new_buffer(kind, functions, Box::into_raw(Box::new(space)).cast(), size) }
}

unsafe extern "C" fn free(buffer: *mut Buffer) {
    // SAFETY: the host frees each buffer once; its context is what `alloc` put there.
    let space = unsafe { Box::from_raw((*buffer).context.cast::<Space>()) };
    let declared = space.declared_bytes();
    if space.options.log && declared > 0 {
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        let held = space.held_bytes();
        eprintln!("tqkv: held {:.2} MiB of {:.2} MiB declared as f16", mib(held), mib(declared));
    }
}

unsafe extern "C" fn base_of(buffer: *mut Buffer) -> *mut c_void {
    // SAFETY: a buffer of ours.
    unsafe { space(buffer) }.map_or(null_mut(), |space| space.base)
}

/// Takes a tensor of the cache under its care.
unsafe extern "C" fn init(buffer: *mut Buffer, tensor: *mut Tensor) -> c_int {
    // SAFETY: a buffer of ours and a tensor in it.
    let (Some(space), Some(view)) = (unsafe { (space(buffer), View::new(tensor)) }) else {
        return abi::SUCCESS;
    };
    let is_leaf = view.get().view_src.is_null() && view.get().src[0].is_null();
    if !is_leaf || !view.name().to_bytes().starts_with(b"cache_") {
        return abi::SUCCESS;
    }
    let Some(side) = side(&view) else {
        eprintln!(
            "tqkv: {} is not served: models with a recurrent state run without this library",
            view.name().to_string_lossy()
        );
        return abi::FAILED;
    };
    let [width, slots, streams, _] = view.shape();
    if view.strides::<half::f16>().is_none() || view.is_empty() {
        eprintln!(
            "tqkv: {} is not f16: leave out -ctk and -ctv, codecs are named by TQKV_KV",
            view.name().to_string_lossy()
        );
        return abi::FAILED;
    }
    let offset = (view.get().data as usize).saturating_sub(space.base as usize);
    let layer = layer(view.name().to_bytes());
    space.layers.fetch_max(layer + 1, Ordering::Relaxed);
    let cached = Cached {
        offset,
        bytes: 2 * width * slots * streams,
        options: space.options.clone(),
        layer,
        layers: space.layers.clone(),
        store: Mutex::new(Store::new(side, &space.options, width, slots, streams)),
        is_plain: AtomicBool::new(false),
    };
    let mut list = space.cached.write().unwrap_or_else(PoisonError::into_inner);
    let at = list.partition_point(|cached| cached.offset < offset);
    if list.get(at).is_none_or(|cached| cached.offset != offset) {
        list.insert(at, Arc::new(cached));
    }
    abi::SUCCESS
}

unsafe extern "C" fn fill(buffer: *mut Buffer, tensor: *mut Tensor, value: u8, offset: usize, size: usize) {
    let bytes = vec![value; size];
    // SAFETY: as of `set`, which is given as many bytes.
    unsafe { set(buffer, tensor, bytes.as_ptr().cast(), offset, size) };
}

unsafe extern "C" fn set(
    buffer: *mut Buffer,
    tensor: *mut Tensor,
    data: *const c_void,
    offset: usize,
    size: usize,
) {
    // SAFETY: a buffer of ours, a tensor in it with `size` bytes behind `offset`, and as many bytes at
    // `data`.
    unsafe {
        let (Some(space), Some(view)) = (space(buffer), View::new(tensor)) else { return };
        let to = view.get().data.cast::<u8>().add(offset);
        match space.find(to.cast()).filter(|(cached, _)| !cached.is_plain()) {
            Some((cached, at)) => {
                cached.store().write_bytes(at, std::slice::from_raw_parts(data.cast(), size));
            }
            None => std::ptr::copy_nonoverlapping(data.cast(), to, size),
        }
    }
}

unsafe extern "C" fn get(
    buffer: *mut Buffer,
    tensor: *const Tensor,
    data: *mut c_void,
    offset: usize,
    size: usize,
) {
    // SAFETY: a buffer of ours, a tensor in it with `size` bytes behind `offset`, and room for as many at
    // `data`.
    unsafe {
        let (Some(space), Some(view)) = (space(buffer), View::new(tensor)) else { return };
        let from = view.get().data.cast::<u8>().add(offset);
        match space.find(from.cast()).filter(|(cached, _)| !cached.is_plain()) {
            Some((cached, at)) => {
                cached.store().read_bytes(at, std::slice::from_raw_parts_mut(data.cast(), size));
            }
            None => std::ptr::copy_nonoverlapping(from, data.cast(), size),
        }
    }
}

/// Whole streams of one tensor of the cache are copied as they are; the host copies everything else by `get`
/// and `set`.
unsafe extern "C" fn copy(_: *mut Buffer, from: *const Tensor, to: *mut Tensor) -> bool {
    // SAFETY: tensors of the host's, in buffers that live.
    let (Some(from), Some(to)) = (unsafe { (View::new(from), View::new(to)) }) else { return false };
    // SAFETY: as above.
    let places = unsafe { (cached(&from), cached(&to)) };
    let (Some((source, first)), Some((target, second))) = places else { return false };
    let mut store = target.store();
    let bytes = 2 * store.width() * store.slots();
    let whole = [&from, &to].iter().all(|view| view.shape().iter().product::<usize>() * 2 == bytes);
    let aligned = first.is_multiple_of(bytes) && second.is_multiple_of(bytes);
    if !Arc::ptr_eq(&source, &target) || target.is_plain() || !whole || !aligned {
        return false;
    }
    store.copy_stream(first / bytes, second / bytes);
    true
}

unsafe extern "C" fn clear(buffer: *mut Buffer, value: u8) {
    // SAFETY: a buffer of ours, whose memory is its own.
    unsafe {
        let Some(space) = space(buffer) else { return };
        let cached = space.cached.read().unwrap_or_else(PoisonError::into_inner);
        cached.iter().for_each(|cached| cached.store().clear());
        if value != 0 {
            std::ptr::write_bytes(space.base.cast::<u8>(), value, space.size);
        } else if libc::madvise(space.base, space.size, libc::MADV_DONTNEED) != 0
            || !cfg!(target_os = "linux")
        {
            // Elsewhere pages need not become zeros.
            if cached.is_empty() || cached.iter().any(|cached| cached.is_plain()) {
                std::ptr::write_bytes(space.base.cast::<u8>(), 0, space.size);
            }
        }
    }
}

/// Bytes that the caches of a buffer hold, for tests and programs that look it up by `get_proc_address`.
pub(crate) unsafe extern "C" fn held_bytes(buffer: *mut Buffer) -> usize {
    // SAFETY: the caller's: a buffer of the host's.
    unsafe { space(buffer) }.map_or(0, Space::held_bytes)
}
