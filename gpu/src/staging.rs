//! [`Staging`]: page-locked host memory for all copies between host and device.
//!
//! A copy from pageable memory may wait for the stream if it is large, and may read the memory after the call
//! has returned. A copy from here does not wait. The next write to this memory waits for the copy, and so
//! does freeing it.

use crate::GpuError;
use crate::device::Device;
use cudarc::driver::{CudaEvent, CudaSlice, DeviceRepr, PinnedHostSlice, ValidAsZeroBits};
use std::ops::Range;

/// Page-locked memory for one copy at a time.
#[derive(Debug)]
pub(crate) struct Staging<T> {
    memory: Option<PinnedHostSlice<T>>,
    /// An event after the last copy from this memory, which may still run after [`Staging::send`] returned.
    sent: Option<CudaEvent>,
}

impl<T: Copy + DeviceRepr + ValidAsZeroBits> Staging<T> {
    /// Holds no memory yet.
    pub(crate) fn new() -> Self {
        Self { memory: None, sent: None }
    }

    /// The first `len` values. No copy uses them any more.
    fn room(&mut self, device: &Device, len: usize) -> Result<&mut [T], GpuError> {
        // Cleared only after a successful wait, so that the next call waits again after an error.
        if let Some(sent) = &self.sent {
            sent.synchronize()?;
            self.sent = None;
        }
        if self.memory.as_ref().is_none_or(|memory| memory.len() < len) {
            self.memory = None;
            let len = len.next_power_of_two();
            // SAFETY: the values are unset until they are written. Any bits are valid, and each caller writes
            // `len` values before it reads them.
            let memory = unsafe { device.context().alloc_pinned_with_flags(len, 0) };
            self.memory =
                Some(memory.map_err(|error| GpuError::from_allocation(error, len * size_of::<T>()))?);
        }
        match &mut self.memory {
            Some(memory) => Ok(&mut memory.as_mut_slice()?[..len]),
            None => Ok(&mut []),
        }
    }

    /// Copies values to the start of `to`, without waiting.
    pub(crate) fn send(
        &mut self,
        device: &Device,
        values: &[T],
        to: &mut CudaSlice<T>,
    ) -> Result<(), GpuError> {
        device.grow(to, values.len())?;
        self.send_parts(device, &[(0, values)], to)
    }

    /// Copies runs of values to their places in `to`, without waiting.
    pub(crate) fn send_parts(
        &mut self,
        device: &Device,
        parts: &[(usize, &[T])],
        to: &mut CudaSlice<T>,
    ) -> Result<(), GpuError> {
        let len = parts.iter().map(|(_, values)| values.len()).sum();
        if len == 0 {
            return Ok(());
        }
        let mut room = self.room(device, len)?;
        let copied = parts.iter().try_for_each(|&(place, values)| {
            let (part, rest) = std::mem::take(&mut room).split_at_mut(values.len());
            part.copy_from_slice(values);
            room = rest;
            device.stream().memcpy_htod(part, &mut to.slice_mut(place..place + values.len()))
        });
        // Parts before one that failed are still under way.
        self.sent = Some(device.stream().record_event(None)?);
        Ok(copied?)
    }

    /// Copies the first `out.len()` values from the device and waits for them.
    pub(crate) fn receive(
        &mut self,
        device: &Device,
        from: &CudaSlice<T>,
        out: &mut [T],
    ) -> Result<(), GpuError> {
        self.receive_parts(device, from, std::slice::from_ref(&(0..out.len())), out)
    }

    /// Copies runs of values from the device, one after the other, and waits for all of them once.
    pub(crate) fn receive_parts(
        &mut self,
        device: &Device,
        from: &CudaSlice<T>,
        parts: &[Range<usize>],
        out: &mut [T],
    ) -> Result<(), GpuError> {
        if out.is_empty() {
            return Ok(());
        }
        let room = self.room(device, out.len())?;
        let mut rest = &mut *room;
        for part in parts {
            let (here, behind) = rest.split_at_mut(part.len());
            device.stream().memcpy_dtoh(&from.slice(part.clone()), here)?;
            rest = behind;
        }
        device.finish()?;
        out.copy_from_slice(room);
        Ok(())
    }
}

impl Device {
    /// A copy of `values`; waits for it.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], or other errors of the driver.
    #[doc(hidden)]
    pub fn upload<T: Copy + DeviceRepr + ValidAsZeroBits>(
        &self,
        values: &[T],
    ) -> Result<CudaSlice<T>, GpuError> {
        let mut slice = self.zeros(values.len())?;
        Staging::new().send(self, values, &mut slice)?;
        Ok(slice)
    }
}

impl<T> Drop for Staging<T> {
    fn drop(&mut self) {
        if let Some(sent) = &self.sent {
            // The context keeps a failure and reports it in its next call.
            let _ = sent.synchronize();
        }
    }
}
