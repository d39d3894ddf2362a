//! A GPU: its context, its stream, and its memory.

use crate::GpuError;
use crate::current::{Current, Restore};
use crate::loader::{KernelText, LEAST, check_driver};
use crate::pair::PAIR;
use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits, sys};
use std::sync::Arc;

/// An NVIDIA GPU that can run the kernels, and the stream on which they run. Clones are cheap and share the
/// stream.
///
/// All work happens in the order of that stream. If another stream reads or writes the memory, the caller
/// must order the two streams.
///
/// Calls of this crate leave the calling thread's current context as it was.
#[derive(Clone, Debug)]
pub struct Device {
    stream: Arc<CudaStream>,
    kernels: Arc<KernelText>,
    multiprocessors: usize,
    capability: (i32, i32),
    restore: Restore,
}

impl Drop for Device {
    fn drop(&mut self) {
        self.restore.note();
    }
}

impl Device {
    /// Opens device number `ordinal`, counted from 0, with a stream of its own.
    ///
    /// # Errors
    /// [`GpuError::NoDriver`], [`GpuError::NoDevice`], [`GpuError::UnsupportedArchitecture`],
    /// [`GpuError::OutOfMemory`] if the context does not fit, or other errors of the driver.
    pub fn new(ordinal: usize) -> Result<Self, GpuError> {
        find(ordinal)?;
        let _current = Current::keep();
        let context = open(ordinal)?;
        let stream = context.new_stream()?;
        Self::on(stream)
    }

    /// Makes a device from a stream that an engine already has. All kernels run on that stream.
    ///
    /// If the context of cudarc tracks events, each launch calls the driver for each buffer, and graphs
    /// cannot be captured. Call the context's `disable_event_tracking` before the first allocation, unless
    /// several streams rely on it.
    ///
    /// # Errors
    /// [`GpuError::UnsupportedArchitecture`], or the driver's errors.
    pub fn on(stream: Arc<CudaStream>) -> Result<Self, GpuError> {
        let _current = Current::keep();
        let context = stream.context();
        let (major, minor) = context.compute_capability()?;
        if (major, minor) < LEAST {
            return Err(GpuError::UnsupportedArchitecture { name: context.name()?, major, minor });
        }
        let count = context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let multiprocessors = usize::try_from(count).unwrap_or(1).max(1);
        Ok(Self {
            stream,
            kernels: Arc::new(KernelText::COMMITTED),
            multiprocessors,
            capability: (major, minor),
            restore: Restore::default(),
        })
    }

    /// The same device on another stream of its context. It is cheap: the kernels are shared.
    ///
    /// # Errors
    /// [`GpuError::OtherContext`] if the stream belongs to another context, or the driver's errors.
    ///
    /// # Safety
    /// The contract of [`Device::from_raw`].
    pub unsafe fn on_raw(&self, stream: sys::CUstream) -> Result<Self, GpuError> {
        let _current = Current::keep();
        let context = self.context();
        context.bind_to_thread()?;
        // SAFETY: the caller vouches for the stream.
        unsafe { check_stream(context, stream) }?;
        let mut device = self.clone();
        // SAFETY: the caller vouches that the stream outlives the device, and it belongs to this context.
        device.stream = unsafe { context.wrap_borrowed_stream(stream) };
        Ok(device)
    }

    /// Makes a device from a stream that another library made. The stream belongs to the primary context of
    /// device number `ordinal`, which the runtime API and PyTorch use. Dropping the device does not destroy
    /// the stream.
    ///
    /// # Errors
    /// The errors of [`Device::new`], or [`GpuError::OtherContext`] if the stream belongs to another context.
    ///
    /// # Safety
    /// `stream` is a stream or null. It outlives the device, its clones, and everything made with them.
    pub unsafe fn from_raw(ordinal: usize, stream: sys::CUstream) -> Result<Self, GpuError> {
        find(ordinal)?;
        let _current = Current::keep();
        let context = open(ordinal)?;
        // SAFETY: the caller vouches for the stream.
        unsafe { check_stream(&context, stream) }?;
        // SAFETY: the caller vouches that the stream outlives the device, and it belongs to this context.
        Self::on(unsafe { context.wrap_borrowed_stream(stream) })
    }

    /// The same device with the kernels of another PTX text. This measures the effect of a change to the
    /// kernels.
    ///
    /// # Safety
    /// `ptx` is a build of this version of `tqkv-gpu-kernels`. Its kernels take the same arguments and access
    /// the same memory.
    #[must_use]
    pub unsafe fn with_ptx(&self, ptx: String) -> Self {
        let mut device = self.clone();
        device.kernels = Arc::new(KernelText::new(ptx));
        device
    }

    /// The device's name.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn name(&self) -> Result<String, GpuError> {
        Ok(self.context().name()?)
    }

    /// Waits for the stream; then returns free and total bytes of device memory.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn memory(&self) -> Result<(usize, usize), GpuError> {
        let _current = Current::keep();
        // The driver frees memory in stream order, so the count is right only after the stream is done.
        self.finish()?;
        Ok(self.context().mem_get_info()?)
    }

    /// The stream on which all kernels of this device run, in order.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Number of streaming multiprocessors.
    pub fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// The compute capability: major and minor number.
    pub fn capability(&self) -> (i32, i32) {
        self.capability
    }

    /// What a user of this device should know of its speed, if anything.
    pub fn caution(&self) -> Option<&'static str> {
        // NVIDIA's data sheets give B300 a thirtieth of the int8 rate of B200.
        (self.capability == (10, 3)).then_some(
            "int8 tensor cores are slow here, so attention over codes is expected to gain little over f16",
        )
    }

    /// Bytes of the second-level cache.
    ///
    /// # Errors
    /// The driver's errors.
    #[doc(hidden)]
    pub fn l2_bytes(&self) -> Result<usize, GpuError> {
        let bytes = self.context().attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?;
        Ok(usize::try_from(bytes).unwrap_or(0))
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        self.stream.context()
    }

    /// Checks that memory of `context` can be used on this device.
    pub(crate) fn check_context(&self, what: &'static str, context: &CudaContext) -> Result<(), GpuError> {
        if context.cu_ctx() == self.context().cu_ctx() {
            Ok(())
        } else {
            Err(GpuError::OtherContext { what, ordinal: self.context().ordinal() })
        }
    }

    /// Compiles and loads kernels. The result has the order of `names`.
    ///
    /// # Errors
    /// [`GpuError::KernelsRefused`], or other errors of the driver.
    #[doc(hidden)]
    pub fn kernels<const N: usize>(&self, names: [&str; N]) -> Result<[CudaFunction; N], GpuError> {
        self.kernels.load(self.context(), names)
    }

    /// Compiles and loads an attention kernel for keys and values of these formats.
    pub(crate) fn attention(&self, name: &str, formats: [u32; 2]) -> Result<CudaFunction, GpuError> {
        let kernels = self.kernels.with_formats(name, formats)?;
        kernels.load(self.context(), [name]).map(|[function]| function)
    }

    /// Compiles and loads kernels as one. Blocks of row i of the grid run kernel i.
    pub(crate) fn side_by_side(&self, names: &[&str]) -> Result<CudaFunction, GpuError> {
        self.kernels.side_by_side(names)?.load(self.context(), [PAIR]).map(|[function]| function)
    }

    /// Allocates `len` zeros.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], or other errors of the driver.
    #[doc(hidden)]
    pub fn zeros<T: DeviceRepr + ValidAsZeroBits>(&self, len: usize) -> Result<CudaSlice<T>, GpuError> {
        // The driver refuses to allocate 0 bytes, so there is always at least one value.
        let allocated = self.stream.alloc_zeros(len.max(1));
        allocated.map_err(|error| GpuError::from_allocation(error, len * size_of::<T>()))
    }

    /// Makes `slice` at least `len` long. If it grows, its contents are lost.
    pub(crate) fn grow<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        slice: &mut CudaSlice<T>,
        len: usize,
    ) -> Result<(), GpuError> {
        if slice.len() < len {
            *slice = self.zeros(len)?;
        }
        Ok(())
    }

    /// Waits for all work on the stream.
    pub(crate) fn finish(&self) -> Result<(), GpuError> {
        Ok(self.stream.synchronize()?)
    }
}

/// Opens the driver, and checks that it has a device of this number.
fn find(ordinal: usize) -> Result<(), GpuError> {
    // SAFETY: opens the driver's library, whose initialisers are as trusted as the system's.
    if !unsafe { sys::is_culib_present() } {
        return Err(GpuError::NoDriver);
    }
    check_driver()?;
    let found = match CudaContext::device_count() {
        Ok(count) => usize::try_from(count).unwrap_or(0),
        Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => 0,
        Err(error) => return Err(error.into()),
    };
    if ordinal >= found { Err(GpuError::NoDevice { ordinal, found }) } else { Ok(()) }
}

/// Checks that a stream belongs to a context.
///
/// # Safety
/// `stream` is a stream or null.
unsafe fn check_stream(context: &CudaContext, stream: sys::CUstream) -> Result<(), GpuError> {
    let mut its_context = std::ptr::null_mut();
    // SAFETY: the caller vouches that this is a stream; the driver writes one handle.
    unsafe { sys::cuStreamGetCtx(stream, &raw mut its_context) }.result()?;
    match its_context == context.cu_ctx() {
        true => Ok(()),
        false => Err(GpuError::OtherContext { what: "stream", ordinal: context.ordinal() }),
    }
}

/// The primary context of a device that was found.
fn open(ordinal: usize) -> Result<Arc<CudaContext>, GpuError> {
    let context = CudaContext::new(ordinal).map_err(|error| GpuError::from_allocation(error, 0))?;
    // SAFETY: nothing is allocated yet, and one stream will use later allocations. A caller that uses them on
    // another stream must order the streams.
    unsafe { context.disable_event_tracking() };
    Ok(context)
}
