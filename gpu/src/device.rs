//! A GPU: its context, its stream, and the kernels for it.

use crate::GpuError;
use crate::formats::with_formats;
use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits, sys};
use cudarc::nvrtc::Ptx;
use std::sync::Arc;

/// The committed PTX, and the least compute capability that runs it.
const PTX: [((i32, i32), &str); 2] =
    [((9, 0), include_str!("../ptx/sm_90.ptx")), ((8, 0), include_str!("../ptx/sm_80.ptx"))];

/// The PTX for a compute capability.
fn text_for(capability: (i32, i32)) -> Option<&'static str> {
    PTX.iter().find(|(least, _)| capability >= *least).map(|(_, text)| *text)
}

/// The part of a PTX text that `names` need: the driver compiles what it is given, and a cache uses
/// a tenth of the kernels.
pub(crate) fn select(text: &str, names: &[&str]) -> String {
    let mut parts = text.split(".visible .entry ");
    let mut selected = parts.next().unwrap_or_default().to_owned();
    for kernel in parts {
        if kernel.split('(').next().is_some_and(|name| names.contains(&name)) {
            selected.push_str(".visible .entry ");
            selected.push_str(kernel);
        }
    }
    selected
}

/// An NVIDIA GPU that can run the kernels. Cheap to clone; clones share one stream.
#[derive(Clone, Debug)]
pub struct Device {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    text: &'static str,
    multiprocessors: usize,
}

impl Device {
    /// Opens device number `ordinal`, counted from 0.
    ///
    /// # Errors
    /// [`GpuError::NoDriver`], [`GpuError::NoDevice`], [`GpuError::UnsupportedArchitecture`],
    /// [`GpuError::OutOfMemory`] where the context does not fit, or whatever else the driver says.
    pub fn new(ordinal: usize) -> Result<Self, GpuError> {
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
        let (major, minor) = context.compute_capability()?;
        let Some(text) = text_for((major, minor)) else {
            return Err(GpuError::UnsupportedArchitecture { name: context.name()?, major, minor });
        };
        let count = context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let multiprocessors = usize::try_from(count).unwrap_or(1).max(1);
        let stream = context.new_stream()?;
        Ok(Self { context, stream, text, multiprocessors })
    }

    /// The device's name.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn name(&self) -> Result<String, GpuError> {
        Ok(self.context.name()?)
    }

    /// Free and total bytes of device memory, once the stream is done.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn memory(&self) -> Result<(usize, usize), GpuError> {
        // What was freed comes back in the order of the stream.
        self.finish()?;
        Ok(self.context.mem_get_info()?)
    }

    /// The stream on which all kernels of this device run, in order.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Streaming multiprocessors.
    pub fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// Compiles and loads kernels, in the order of their names.
    pub(crate) fn kernels<const N: usize>(&self, names: [&str; N]) -> Result<[CudaFunction; N], GpuError> {
        self.load(select(self.text, &names), names)
    }

    /// Compiles and loads an attention kernel for keys and values of these formats.
    pub(crate) fn attention(&self, name: &str, formats: [u32; 2]) -> Result<CudaFunction, GpuError> {
        let text = with_formats(&select(self.text, &[name]), name, formats)
            .ok_or_else(|| GpuError::Driver(format!("{name} is no attention kernel")))?;
        self.load(text, [name]).map(|[function]| function)
    }

    fn load<const N: usize>(&self, text: String, names: [&str; N]) -> Result<[CudaFunction; N], GpuError> {
        let module = self.context.load_module(Ptx::from_src(text))?;
        let loaded = names.map(|name| module.load_function(name));
        let mut functions = Vec::with_capacity(N);
        for function in loaded {
            functions.push(function?);
        }
        functions.try_into().map_err(|_| GpuError::Driver("a kernel is missing".to_owned()))
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

    /// A copy of `values`.
    pub(crate) fn upload<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        values: &[T],
    ) -> Result<CudaSlice<T>, GpuError> {
        let mut slice = self.zeros(values.len())?;
        self.stream.memcpy_htod(values, &mut slice)?;
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

/// Page-locked host memory, through which rows travel at the full speed of the bus.
#[derive(Debug)]
pub(crate) struct Staging {
    memory: Option<cudarc::driver::PinnedHostSlice<f32>>,
    /// Behind the last copy from it, which may go on after [`Staging::send`] has returned.
    sent: Option<cudarc::driver::CudaEvent>,
}

impl Staging {
    /// No memory yet.
    pub(crate) fn new() -> Self {
        Self { memory: None, sent: None }
    }

    /// The first `len` values, free to be overwritten.
    fn room(&mut self, device: &Device, len: usize) -> Result<&mut [f32], GpuError> {
        // Taken once it has been waited for: after an error the next call waits again.
        if let Some(sent) = &self.sent {
            sent.synchronize()?;
            self.sent = None;
        }
        if self.memory.as_ref().is_none_or(|memory| memory.len() < len) {
            self.memory = None;
            // SAFETY: the values are unset until a copy fills them; any bits are a valid f32, and
            // each caller writes `len` values before it reads them.
            let memory = unsafe { device.context.alloc_pinned_with_flags(len.next_power_of_two(), 0) };
            self.memory = Some(memory.map_err(|error| GpuError::from_allocation(error, 4 * len))?);
        }
        match &mut self.memory {
            Some(memory) => Ok(&mut memory.as_mut_slice()?[..len]),
            None => Ok(&mut []),
        }
    }

    /// Copies rows to the device, without waiting; the next use of `self` does.
    pub(crate) fn send(
        &mut self,
        device: &Device,
        rows: &[f32],
        to: &mut CudaSlice<f32>,
    ) -> Result<(), GpuError> {
        device.grow(to, rows.len())?;
        let room = self.room(device, rows.len())?;
        room.copy_from_slice(rows);
        device.stream.memcpy_htod(room, to)?;
        self.sent = Some(device.stream.record_event(None)?);
        Ok(())
    }

    /// Copies the first `out.len()` values from the device and waits for them.
    pub(crate) fn receive(
        &mut self,
        device: &Device,
        from: &CudaSlice<f32>,
        out: &mut [f32],
    ) -> Result<(), GpuError> {
        let room = self.room(device, out.len())?;
        device.stream.memcpy_dtoh(&from.slice(..out.len()), room)?;
        device.finish()?;
        out.copy_from_slice(room);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_capability_gets_the_newest_file_that_it_can_run() {
        assert!(text_for((7, 5)).is_none());
        for (capability, target) in
            [((8, 0), "sm_80"), ((8, 9), "sm_80"), ((9, 0), "sm_90"), ((12, 1), "sm_90")]
        {
            let text = text_for(capability).unwrap();
            assert!(text.contains(&format!(".target {target}")), "{capability:?}");
        }
    }

    #[test]
    fn a_selection_holds_the_kernels_asked_for_and_no_others() {
        for (_, text) in PTX {
            let names = ["encode_append_s4_d128", "attend_merge_d128"];
            let selected = select(text, &names);
            assert_eq!(selected.matches(".entry").count(), 2);
            for name in names {
                let body = |text: &str| {
                    let start = text.find(&format!(".entry {name}(")).unwrap();
                    let end = text[start..].find("\n}").unwrap();
                    text[start..start + end].to_owned()
                };
                assert_eq!(body(&selected), body(text));
            }
            assert!(selected.contains(".version") && selected.contains(".address_size 64"));
        }
    }
}
