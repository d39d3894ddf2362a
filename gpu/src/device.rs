//! A GPU: its context, its stream, and its memory.

use crate::GpuError;
use crate::loader::Target;
use crate::pair::PAIR;
use crate::staging::Staging;
use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits, sys};
use std::sync::Arc;

/// An NVIDIA GPU that can run the kernels, and the stream on which they run. Cheap to clone; clones share the
/// stream.
///
/// Everything happens in the order of that stream. Memory that another stream reads or writes is the caller's
/// to order.
#[derive(Clone, Debug)]
pub struct Device {
    stream: Arc<CudaStream>,
    target: Arc<Target>,
    multiprocessors: usize,
}

impl Device {
    /// Opens device number `ordinal`, counted from 0, with a stream of its own.
    ///
    /// # Errors
    /// [`GpuError::NoDriver`], [`GpuError::NoDevice`], [`GpuError::UnsupportedArchitecture`],
    /// [`GpuError::OutOfMemory`] where the context does not fit, or whatever else the driver says.
    pub fn new(ordinal: usize) -> Result<Self, GpuError> {
        let context = open(ordinal)?;
        let stream = context.new_stream()?;
        Self::on(stream)
    }

    /// The device of a stream, which an engine has already; all kernels run on it.
    ///
    /// A context of cudarc that tracks events calls the driver for each buffer of a launch, and breaks the
    /// capture of graphs: call its `disable_event_tracking` before the first allocation, unless several
    /// streams rely on it.
    ///
    /// # Errors
    /// [`GpuError::UnsupportedArchitecture`], or what the driver reports.
    pub fn on(stream: Arc<CudaStream>) -> Result<Self, GpuError> {
        let context = stream.context();
        let (major, minor) = context.compute_capability()?;
        let Some(target) = Target::of((major, minor)) else {
            return Err(GpuError::UnsupportedArchitecture { name: context.name()?, major, minor });
        };
        let count = context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let multiprocessors = usize::try_from(count).unwrap_or(1).max(1);
        Ok(Self { stream, target: Arc::new(target), multiprocessors })
    }

    /// The same for a stream that another library made, in the primary context of device number `ordinal`
    /// (the one that the runtime API and PyTorch use). Dropping the device leaves the stream alone.
    ///
    /// # Errors
    /// As [`Device::new`]; [`GpuError::OtherContext`] where the stream belongs to another context.
    ///
    /// # Safety
    /// `stream` is a stream, or null, and lives as long as the device, its clones, and all that is made with
    /// them.
    pub unsafe fn from_raw(ordinal: usize, stream: sys::CUstream) -> Result<Self, GpuError> {
        let context = open(ordinal)?;
        let mut its_context = std::ptr::null_mut();
        // SAFETY: a stream, by the caller's word; the driver writes one handle.
        unsafe { sys::cuStreamGetCtx(stream, &raw mut its_context) }.result()?;
        if its_context != context.cu_ctx() {
            return Err(GpuError::OtherContext { what: "stream", ordinal });
        }
        // SAFETY: the caller's, and it belongs to this context.
        Self::on(unsafe { context.wrap_borrowed_stream(stream) })
    }

    /// The same device with the kernels of another PTX text: to measure what another form of them would do.
    ///
    /// # Safety
    /// `ptx` is a build of this version of `tqkv-gpu-kernels`: its kernels take the same arguments and touch
    /// what those do.
    #[must_use]
    pub unsafe fn with_ptx(&self, ptx: String) -> Self {
        Self { target: Arc::new(self.target.with_text(ptx)), ..self.clone() }
    }

    /// The device's name.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn name(&self) -> Result<String, GpuError> {
        Ok(self.context().name()?)
    }

    /// Free and total bytes of device memory, once the stream is done.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn memory(&self) -> Result<(usize, usize), GpuError> {
        // What was freed comes back in the order of the stream.
        self.finish()?;
        Ok(self.context().mem_get_info()?)
    }

    /// The stream on which all kernels of this device run, in order.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Streaming multiprocessors.
    pub fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        self.stream.context()
    }

    /// Whether memory of `context` can be used here.
    pub(crate) fn check_context(&self, what: &'static str, context: &CudaContext) -> Result<(), GpuError> {
        if context.cu_ctx() == self.context().cu_ctx() {
            Ok(())
        } else {
            Err(GpuError::OtherContext { what, ordinal: self.context().ordinal() })
        }
    }

    /// Compiles and loads kernels, in the order of their names.
    pub(crate) fn kernels<const N: usize>(&self, names: [&str; N]) -> Result<[CudaFunction; N], GpuError> {
        self.target.load(self.context(), names)
    }

    /// Compiles and loads an attention kernel for keys and values of these formats.
    pub(crate) fn attention(&self, name: &str, formats: [u32; 2]) -> Result<CudaFunction, GpuError> {
        let target = self.target.with_formats(name, formats)?;
        target.load(self.context(), [name]).map(|[function]| function)
    }

    /// Compiles and loads two kernels as one: blocks of row 0 of a launch run the first, those of row 1 the
    /// second.
    pub(crate) fn pair(&self, names: [&str; 2]) -> Result<CudaFunction, GpuError> {
        self.target.pair(names)?.load(self.context(), [PAIR]).map(|[function]| function)
    }

    /// `len` zeros.
    pub(crate) fn zeros<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        len: usize,
    ) -> Result<CudaSlice<T>, GpuError> {
        // A length of 0 is no allocation to the driver, so there is always one value.
        let allocated = self.stream.alloc_zeros(len.max(1));
        allocated.map_err(|error| GpuError::from_allocation(error, len * size_of::<T>()))
    }

    /// A copy of `values`; waits for it.
    pub(crate) fn upload<T: Copy + DeviceRepr + ValidAsZeroBits>(
        &self,
        values: &[T],
    ) -> Result<CudaSlice<T>, GpuError> {
        let mut slice = self.zeros(values.len())?;
        Staging::new().send(self, values, &mut slice)?;
        Ok(slice)
    }

    /// Makes `slice` at least `len` long; its contents are lost where it grows.
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

    /// Waits for everything that was asked of the stream.
    pub(crate) fn finish(&self) -> Result<(), GpuError> {
        Ok(self.stream.synchronize()?)
    }
}

/// The primary context of a device.
fn open(ordinal: usize) -> Result<Arc<CudaContext>, GpuError> {
    // SAFETY: opens the driver's library, whose initialisers are as trusted as the system's.
    if !unsafe { sys::is_culib_present() } {
        return Err(GpuError::NoDriver);
    }
    let found = match CudaContext::device_count() {
        Ok(count) => usize::try_from(count).unwrap_or(0),
        Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => 0,
        Err(error) => return Err(error.into()),
    };
    if ordinal >= found {
        return Err(GpuError::NoDevice { ordinal, found });
    }
    let context = CudaContext::new(ordinal).map_err(|error| GpuError::from_allocation(error, 0))?;
    // SAFETY: nothing is allocated yet, and one stream uses what will be; who uses it on another orders that.
    unsafe { context.disable_event_tracking() };
    Ok(context)
}
