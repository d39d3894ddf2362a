//! Buffers. A buffer reserves address space; the part that belongs to caches is never touched.

#![allow(unsafe_code, reason = "the host calls functions with pointers")]

use crate::abi::{self, Buffer, BufferFunctions, BufferType, BufferTypeFunctions2, BufferTypeFunctions3};
use crate::abi::{BufferTypeOf, Device, Tensor};
use crate::declared::{Declared, TYPES};
use crate::host;
use crate::layers::{self, SeenLayers};
use crate::options::Options;
use crate::said::{self, HeldSide};
use crate::settings::options;
use crate::sinks::Sinks;
use crate::states::Restored;
use crate::tensor::View;
use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use tqkv::unstable::reserve::Region;
use tqkv::unstable::slots::{SlotStore, StoreSide};

/// Alignment of tensors in bytes, which is that of a line of pages.
const ALIGNMENT: usize = 64;

/// A tensor of the cache in a buffer.
#[derive(Debug)]
pub(crate) struct Cached {
    /// Byte offset in the buffer.
    offset: usize,
    bytes: usize,
    declared: Declared,
    side: StoreSide,
    /// Values per row, rows per stream, and streams.
    shape: [usize; 3],
    /// Policies by the layers of a model.
    options: Arc<Options>,
    /// Number of the layer, from 0.
    layer: usize,
    /// The model's layers as far as they are known.
    layers: Arc<SeenLayers>,
    /// Made when the host first uses it, because the layers of the model are known then.
    store: OnceLock<Mutex<SlotStore>>,
    /// True if the values lie in the buffer's memory. The host writes them by columns, as it does without
    /// flash attention.
    is_plain: AtomicBool,
    /// A head dim that the host asked for and no codec has; 0 if there is none.
    refused_dim: AtomicUsize,
    was_written: AtomicBool,
    sinks: Arc<Mutex<Sinks>>,
    restored: Mutex<Restored>,
}

impl Cached {
    /// The rows. Only one thread of one context uses them at a time, so nobody waits for the lock.
    pub(crate) fn store(&self) -> MutexGuard<'_, SlotStore> {
        self.store.get_or_init(|| Mutex::new(self.make())).lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make(&self) -> SlotStore {
        let ([width, slots, streams], held) = (self.shape, self.options.of_model(self.layers.count()));
        let mut store = SlotStore::new(self.side, &held.spec, width, slots, streams);
        // The type that the host declared promises its bytes, unless the user named codecs.
        if let Some(bytes) = self.declared.bytes(width).filter(|_| !held.is_named) {
            store.set_limit(bytes);
        }
        store
    }

    /// Divides rows into heads of `dim` values, unless they are divided already.
    ///
    /// Returns true if rows are then in heads of `dim`; false if the layer's codec lacks that head dim.
    pub(crate) fn divide(&self, side: StoreSide, dim: usize) -> bool {
        let (mut store, at) = (self.store(), (self.layer, self.layers.count()));
        let is_divided = store.divide(dim, self.options.of_model(at.1).codec(side, &self.declared, at));
        if !is_divided {
            self.refused_dim.store(dim, Ordering::Relaxed);
        }
        is_divided
    }

    /// What came back of saved states. The store is locked before it.
    pub(crate) fn restored(&self) -> MutexGuard<'_, Restored> {
        self.restored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of a row, and the rows that some bytes are; none if they are not all of theirs.
    fn whole_rows(&self, at: usize, bytes: usize) -> Option<Range<usize>> {
        let row = self.declared.bytes(self.shape[0]).filter(|row| *row > 0)?;
        (at.is_multiple_of(row) && bytes.is_multiple_of(row)).then(|| at / row..(at + bytes) / row)
    }

    /// Writes bytes that the host read before, maybe in another process.
    fn write(&self, at: usize, bytes: &[u8]) {
        let mut store = self.store();
        match self.whole_rows(at, bytes.len()) {
            Some(rows) if rows.end <= store.rows() => {
                self.restored().write(&mut store, &self.declared, rows.start, bytes);
            }
            _ => self.declared.write_bytes(&mut store, at, bytes),
        }
    }

    /// Reads bytes, of a state if `is_state`.
    fn read(&self, at: usize, bytes: &mut [u8], is_state: bool) {
        let mut store = self.store();
        self.restored().settle(&mut store);
        let has_codes = is_state && self.options.of_model(self.layers.count()).is_of_codes;
        let rows = self.whole_rows(at, bytes.len()).filter(|_| has_codes);
        if !rows.is_some_and(|rows| store.pack(rows.start, rows.len(), bytes)) {
            self.declared.read_bytes(&store, at, bytes);
        }
    }

    /// The number of the layer, from 0.
    pub(crate) fn layer(&self) -> usize {
        self.layer
    }

    /// The sinks among the rows of the buffer's tensors.
    pub(crate) fn sinks(&self) -> MutexGuard<'_, Sinks> {
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The type that the host declared the tensor as.
    pub(crate) fn declared(&self) -> Declared {
        self.declared
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain.load(Ordering::Relaxed)
    }
}

/// The memory of a buffer.
#[derive(Debug)]
struct Space {
    region: Region,
    /// True if all of the memory may be used. Tensors of the cache need none, unless they are plain.
    is_committed: AtomicBool,
    options: Arc<Options>,
    layers: Arc<SeenLayers>,
    cached: RwLock<Vec<Arc<Cached>>>,
    was_described: AtomicBool,
    sinks: Arc<Mutex<Sinks>>,
}

impl Space {
    /// Says once how the layers are held.
    fn describe(&self) {
        if self.was_described.swap(true, Ordering::Relaxed) {
            return;
        }
        let cached = self.cached.read().unwrap_or_else(PoisonError::into_inner);
        // Without flash attention, `serve` has said so.
        if cached.iter().any(|cached| cached.is_plain()) {
            return;
        }
        let held = cached.iter().map(|cached| {
            let store = cached.store();
            HeldSide::new(cached.layer, store.side(), &store, cached.refused_dim.load(Ordering::Relaxed))
        });
        let lines = said::lines(&held.collect::<Vec<_>>()).into_iter();
        let missing = said::elsewhere(self.layers.tell_missing());
        lines.chain(missing).for_each(|line| said::print(&line));
    }

    /// The tensor of the cache that contains an address, and the byte offset in that tensor.
    fn find(&self, address: *const c_void) -> Option<(Arc<Cached>, usize)> {
        let at = (address as usize).checked_sub(self.region.base() as usize)?;
        let cached = self.cached.read().unwrap_or_else(PoisonError::into_inner);
        let i = cached.partition_point(|cached| cached.offset <= at).checked_sub(1)?;
        let found = cached.get(i).filter(|cached| at < cached.offset + cached.bytes)?;
        Some((found.clone(), at - found.offset))
    }

    fn held_bytes(&self) -> usize {
        let cached = self.cached.read().unwrap_or_else(PoisonError::into_inner);
        cached.iter().map(|cached| cached.store().held_bytes()).sum()
    }

    /// Makes all of the memory usable; false if the system lacks memory.
    fn commit(&self) -> bool {
        self.is_committed.load(Ordering::Relaxed) || {
            let done = self.region.commit(0..self.region.bytes());
            self.is_committed.store(done, Ordering::Relaxed);
            done
        }
    }

    fn declared_bytes(&self) -> usize {
        let cached = self.cached.read().unwrap_or_else(PoisonError::into_inner);
        cached.iter().map(|cached| cached.bytes).sum()
    }

    /// Bytes of the same rows in f16.
    fn f16_bytes(&self) -> usize {
        let cached = self.cached.read().unwrap_or_else(PoisonError::into_inner);
        cached.iter().map(|cached| cached.store()).map(|store| 2 * store.width() * store.rows()).sum()
    }
}

/// The memory of a buffer of this back end; none for other buffers and for those without bytes.
///
/// # Safety
/// `buffer` is null or a buffer of the host that outlives the result.
unsafe fn space<'a>(buffer: *mut Buffer) -> Option<&'a Space> {
    // SAFETY: the caller keeps this function's contract.
    let kind = unsafe { buffer.as_ref() }?.kind;
    // SAFETY: `alloc` made every buffer of this type.
    if is_ours(kind) { unsafe { space_of(buffer) } } else { None }
}

/// The memory of a buffer from [`alloc`], also after [`give_to_cpu`]; none for one without bytes.
///
/// # Safety
/// `buffer` is from [`alloc`] and outlives the result, or has no context.
unsafe fn space_of<'a>(buffer: *mut Buffer) -> Option<&'a Space> {
    // SAFETY: `alloc` sets the context to a `Space`.
    unsafe { buffer.as_ref()?.context.cast::<Space>().as_ref() }
}

/// True if a tensor in a buffer of this back end is a tensor of a cache, or a view of one.
///
/// # Safety
/// The buffer of the tensor is valid.
pub(crate) unsafe fn is_cached(tensor: &View<'_>) -> bool {
    let root = tensor.root();
    // SAFETY: the caller keeps this function's contract.
    let buffer = unsafe { root.get().buffer.as_ref() };
    buffer.is_some_and(|buffer| is_ours(buffer.kind)) && side(&root).is_some()
}

/// True if the result of an operation lies in a state that is neither keys nor values, or in a tensor that is
/// refused, while the host only measures. A buffer with memory is the CPU's then, or was refused.
///
/// # Safety
/// The buffer of the tensor is valid.
pub(crate) unsafe fn is_only_measured(op: &View<'_>) -> bool {
    let root = op.root();
    // SAFETY: the caller keeps this function's contract.
    let buffer = unsafe { root.get().buffer.as_ref() };
    let is_served = side(&root).is_some() && refusal(&root).is_none();
    buffer.is_some_and(|buffer| is_ours(buffer.kind)) && is_of_cache(&root) && !is_served
}

/// True if the host named a tensor as one of a cache.
fn is_of_cache(root: &View<'_>) -> bool {
    root.name().to_bytes().starts_with(b"cache_")
}

/// Why keys or values are not held, in one line; none for a tensor that is.
fn refusal(root: &View<'_>) -> Option<String> {
    let name = root.name().to_string_lossy();
    let is_known = Declared::of(root.get().kind).is_some() && !root.is_empty();
    let line = || {
        let names: Vec<&str> = TYPES.iter().map(|(_, name, _)| *name).collect();
        format!("{name} is of a type that is not served: expected -ctk and -ctv of {}", names.join(", "))
    };
    (!is_known).then(line)
}

/// Keys or values, by the name that the host gives the tensor.
pub(crate) fn side(root: &View<'_>) -> Option<StoreSide> {
    let name = root.name().to_bytes();
    // The host names a copy after its source: `cache_k_l0 (view) (copy)`.
    let is_layer = |digits: &[u8]| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let side = |start: &[u8], side| name.strip_prefix(start).is_some_and(is_layer).then_some(side);
    side(b"cache_k_l", StoreSide::Keys).or_else(|| side(b"cache_v_l", StoreSide::Values))
}

/// The tensor of the cache that a view lies in, and the view's byte offset in it. None before the host has
/// allocated the buffer.
///
/// # Safety
/// The buffer of the tensor is valid.
pub(crate) unsafe fn cached(tensor: &View<'_>) -> Option<(Arc<Cached>, usize)> {
    // SAFETY: the caller keeps this function's contract.
    let space = unsafe { space(tensor.root().get().buffer) }?;
    space.find(tensor.get().data)
}

/// Leaves the values of a view's tensor in the buffer's memory. The host writes them by columns, as it does
/// without flash attention. False if the system lacks that memory.
///
/// # Safety
/// The buffer of the tensor is valid.
pub(crate) unsafe fn make_plain(tensor: &View<'_>) -> bool {
    // SAFETY: the caller keeps this function's contract.
    let places = unsafe { (space(tensor.root().get().buffer), cached(tensor)) };
    let (Some(space), Some((cached, _))) = places else { return true };
    let is_plain = space.commit();
    cached.is_plain.store(is_plain, Ordering::Relaxed);
    is_plain
}

/// Notes that rows are written to a tensor of a cache. When they are for the second time, the host has asked
/// for attention over every layer, and the library says how they are held.
///
/// # Safety
/// The buffer of the tensor is valid.
pub(crate) unsafe fn note_write(tensor: &View<'_>, cached: &Cached) {
    if cached.was_written.swap(true, Ordering::Relaxed) {
        // SAFETY: the caller keeps this function's contract.
        if let Some(space) = unsafe { space(tensor.root().get().buffer) } {
            space.describe();
        }
    }
}

/// A buffer type that is made once and only read afterwards.
#[derive(Debug)]
struct BufferKind(*mut BufferType);
// SAFETY: nothing writes to the struct after `kind` made it.
unsafe impl Send for BufferKind {}
// SAFETY: as above.
unsafe impl Sync for BufferKind {}

static KIND: OnceLock<BufferKind> = OnceLock::new();

/// True for the buffer type of this back end. It does not exist before the first call of [`kind`].
pub(crate) fn is_ours(kind: *mut BufferType) -> bool {
    KIND.get().is_some_and(|ours| ours.0 == kind)
}

/// The one buffer type, in the layout of the host's interface version. The first call sets its device.
pub(crate) fn kind(device: *mut Device) -> *mut BufferType {
    let make = || {
        let context = null_mut();
        let functions = BufferTypeFunctions2 {
            get_name: name,
            alloc_buffer: alloc,
            get_alignment: alignment,
            get_max_size: None,
            get_alloc_size: None,
            is_host,
        };
        if host::host().is_ok_and(|host| host.api == 2) {
            return BufferKind(Box::into_raw(Box::new(BufferTypeOf { functions, device, context })).cast());
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
        BufferKind(Box::into_raw(Box::new(BufferTypeOf { functions, device, context })).cast())
    };
    KIND.get_or_init(make).0
}

unsafe extern "C" fn name(_: *mut BufferType) -> *const c_char {
    c"TQKV".as_ptr()
}

unsafe extern "C" fn alignment(_: *mut BufferType) -> usize {
    ALIGNMENT
}

/// Always false, so that the CPU does not read the memory, where a cache has no data.
unsafe extern "C" fn is_host(_: *mut BufferType) -> bool {
    false
}

unsafe extern "C" fn alloc(kind: *mut BufferType, size: usize) -> *mut Buffer {
    let (Ok(host), Some(options)) = (host::host(), options()) else { return null_mut() };
    let Some(region) = Region::new(size) else { return null_mut() };
    let space = Space {
        region,
        is_committed: AtomicBool::new(false),
        options,
        layers: layers::of_model(),
        cached: RwLock::default(),
        was_described: AtomicBool::new(false),
        sinks: Arc::default(),
    };
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
    // SAFETY: the functions take the context for a `Space`, and it is one.
    unsafe { host.new_buffer(kind, functions, Box::into_raw(Box::new(space)).cast(), size) }
}

unsafe extern "C" fn free(buffer: *mut Buffer) {
    // SAFETY: the host frees each buffer once; `alloc` set its context to a boxed `Space`.
    let space = unsafe { Box::from_raw((*buffer).context.cast::<Space>()) };
    let declared = space.declared_bytes();
    if space.options.log && declared > 0 {
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        let (held, f16) = (space.held_bytes(), space.f16_bytes());
        let beside =
            if declared == f16 { " as f16".to_owned() } else { format!(", {:.2} MiB in f16", mib(f16)) };
        said::print(&format!("held {:.2} MiB of {:.2} MiB declared{beside}", mib(held), mib(declared)));
    }
}

unsafe extern "C" fn base_of(buffer: *mut Buffer) -> *mut c_void {
    // SAFETY: the host calls this with a buffer of this type.
    unsafe { space_of(buffer) }.map_or(null_mut(), |space| space.region.base().cast())
}

/// Makes a store for a tensor of the cache; leaves other tensors in the buffer's memory.
unsafe extern "C" fn init(buffer: *mut Buffer, tensor: *mut Tensor) -> c_int {
    // SAFETY: the host calls this with a buffer of this type and a tensor in it.
    let (Some(space), Some(view)) = (unsafe { (space_of(buffer), View::new(tensor)) }) else {
        return abi::SUCCESS;
    };
    let is_leaf = view.get().view_src.is_null() && view.get().src[0].is_null();
    if !is_leaf || !is_of_cache(&view) {
        let is_usable = space.find(view.get().data).is_some() || space.commit();
        return if is_usable { abi::SUCCESS } else { abi::FAILED };
    }
    if side(&view).is_none() {
        space.layers.add(layers::number(view.name().to_bytes()));
        // SAFETY: the buffer is from `alloc`, and the host uses its type only after this call.
        return unsafe { give_to_cpu(buffer, space) };
    }
    if let Some(line) = refusal(&view) {
        said::print(&line);
        return abi::FAILED;
    }
    let [width, slots, streams, _] = view.shape();
    let declared = Declared::of(view.get().kind);
    let (Some(side), Some((declared, row_bytes))) =
        (side(&view), declared.and_then(|declared| Some((declared, declared.bytes(width)?))))
    else {
        return abi::FAILED;
    };
    let offset = (view.get().data as usize).saturating_sub(space.region.base() as usize);
    let layer = layers::number(view.name().to_bytes());
    space.layers.add(layer);
    let cached = Cached {
        offset,
        bytes: row_bytes * slots * streams,
        declared,
        side,
        shape: [width, slots, streams],
        options: space.options.clone(),
        layer,
        layers: space.layers.clone(),
        store: OnceLock::new(),
        is_plain: AtomicBool::new(false),
        refused_dim: AtomicUsize::new(0),
        was_written: AtomicBool::new(false),
        sinks: space.sinks.clone(),
        restored: Mutex::default(),
    };
    let mut list = space.cached.write().unwrap_or_else(PoisonError::into_inner);
    let at = list.partition_point(|cached| cached.offset < offset);
    if list.get(at).is_none_or(|cached| cached.offset != offset) {
        list.insert(at, Arc::new(cached));
    }
    abi::SUCCESS
}

/// Makes a buffer one of the CPU's: what a model keeps besides keys and values, such as a recurrent state, is
/// plain memory, and the CPU runs the operations on it.
///
/// # Safety
/// `buffer` is from [`alloc`], `space` is its memory, and nothing else reads the type of the buffer meanwhile.
unsafe fn give_to_cpu(buffer: *mut Buffer, space: &Space) -> c_int {
    let has_keys = !space.cached.read().unwrap_or_else(PoisonError::into_inner).is_empty();
    let Some(host) = host::host().ok().filter(|_| !has_keys && space.commit()) else { return abi::FAILED };
    // SAFETY: the caller guarantees that the buffer is valid and used by nobody else.
    unsafe { (*buffer).kind = host.cpu_memory() };
    abi::SUCCESS
}

unsafe extern "C" fn fill(buffer: *mut Buffer, tensor: *mut Tensor, value: u8, offset: usize, size: usize) {
    let bytes = vec![value; size];
    // SAFETY: the host's guarantees are those of `set`, and `bytes` has `size` bytes.
    unsafe { set(buffer, tensor, bytes.as_ptr().cast(), offset, size) };
}

unsafe extern "C" fn set(
    buffer: *mut Buffer,
    tensor: *mut Tensor,
    data: *const c_void,
    offset: usize,
    size: usize,
) {
    // SAFETY: the host gives a buffer of this type, a tensor in it with `size` bytes from `offset` on, and
    // `size` bytes at `data`.
    unsafe {
        let (Some(space), Some(view)) = (space_of(buffer), View::new(tensor)) else { return };
        let to = view.get().data.cast::<u8>().add(offset);
        match space.find(to.cast()).filter(|(cached, _)| !cached.is_plain()) {
            Some((cached, at)) => {
                cached.write(at, std::slice::from_raw_parts(data.cast(), size));
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
    // SAFETY: the host gives a buffer of this type, a tensor in it with `size` bytes from `offset` on, and
    // room for `size` bytes at `data`.
    unsafe {
        let (Some(space), Some(view)) = (space_of(buffer), View::new(tensor)) else { return };
        let from = view.get().data.cast::<u8>().add(offset);
        match space.find(from.cast()).filter(|(cached, _)| !cached.is_plain()) {
            Some((cached, at)) => {
                // The host saves rows of `[width, slots]`. Other shapes are copies for an operation of another device.
                let is_state = view.shape()[0] == cached.shape[0] && view.shape()[2..] == [1, 1];
                cached.read(at, std::slice::from_raw_parts_mut(data.cast(), size), is_state);
            }
            None => std::ptr::copy_nonoverlapping(from, data.cast(), size),
        }
    }
}

/// Copies a complete stream within one tensor of the cache, codes included. False for everything else, which
/// the host then copies by `get` and `set`.
unsafe extern "C" fn copy(_: *mut Buffer, from: *const Tensor, to: *mut Tensor) -> bool {
    // SAFETY: both are tensors of the host in valid buffers.
    let (Some(from), Some(to)) = (unsafe { (View::new(from), View::new(to)) }) else { return false };
    // SAFETY: as above.
    let places = unsafe { (cached(&from), cached(&to)) };
    let (Some((source, first)), Some((target, second))) = places else { return false };
    let mut store = target.store();
    let bytes = source.declared.bytes(store.width() * store.slots()).unwrap_or(0).max(1);
    let held = |view: &View<'_>| source.declared.bytes(view.shape().iter().product());
    let whole = [&from, &to].iter().all(|view| held(view) == Some(bytes));
    let aligned = first.is_multiple_of(bytes) && second.is_multiple_of(bytes);
    if !Arc::ptr_eq(&source, &target) || target.is_plain() || !whole || !aligned {
        return false;
    }
    target.restored().settle(&mut store);
    store.copy_stream(first / bytes, second / bytes);
    true
}

unsafe extern "C" fn clear(buffer: *mut Buffer, value: u8) {
    // SAFETY: the host calls this with a buffer of this type, which alone owns the mapped memory.
    unsafe {
        let Some(space) = space_of(buffer) else { return };
        let cached = space.cached.read().unwrap_or_else(PoisonError::into_inner);
        // A buffer is also cleared when it is new, and the layers of its model are not known then.
        let made = cached.iter().filter(|cached| cached.store.get().is_some());
        made.for_each(|cached| {
            cached.store().clear();
            *cached.restored() = Restored::default();
        });
        if value != 0 && space.commit() {
            std::ptr::write_bytes(space.region.base(), value, space.region.bytes());
        } else {
            space.region.discard(0..space.region.bytes());
            if space.is_committed.swap(false, Ordering::Relaxed) && !space.commit() {
                said::print(&format!("the system lacks memory for {} bytes", space.region.bytes()));
            }
        }
    }
}

/// Bytes that the caches of a buffer hold. Tests and programs look this function up by `get_proc_address`.
pub(crate) unsafe extern "C" fn held_bytes(buffer: *mut Buffer) -> usize {
    // SAFETY: the caller passes null or a valid buffer of the host.
    unsafe { space(buffer) }.map_or(0, Space::held_bytes)
}
