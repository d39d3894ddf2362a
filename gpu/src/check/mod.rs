//! The work of `tqkv gpu-check` and `cargo xtask gpu-check`. It compares codes and weights with the portable
//! codec, attention and estimates of residuals with f64. It compares times with f16 and with the bandwidth
//! of the memory. A row is written as soon as it is measured.
//!
//! | what | file |
//! | --- | --- |
//! | options | `args` |
//! | correctness of codes and attention | `right` |
//! | times | `speed` |
//! | timed launches | `bench` |
//! | weights and 1-bit residuals | `beside` |
//! | batches to measure | `shape` |
//! | rows, as JSON and as tables | `row` |
//!
//! To measure the CPU's kernels, use `tqkv bench` instead.

mod args;
mod bench;
mod beside;
mod error;
mod right;
mod row;
mod shape;
mod speed;

pub use args::CheckArgs;
pub use error::CheckError;

use crate::cudarc::driver::sys::CUdevice_attribute;
use crate::cudarc::driver::sys::CUdevice_attribute::{
    CU_DEVICE_ATTRIBUTE_CLOCK_RATE, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE,
};
use crate::unstable::driver_cuda;
use crate::{Device, GpuError};
use row::{Row, Writer};
use std::io;

/// Opens the GPU that the options name.
///
/// # Errors
/// The errors of [`Device::new`]: no driver, no device of that number, or a device that is too old.
pub fn open(args: &CheckArgs) -> Result<Device, GpuError> {
    Device::new(args.gpu)
}

/// A clock of the device. The driver gives it in kHz.
fn kilohertz(device: &Device, clock: CUdevice_attribute) -> Result<u64, GpuError> {
    let rate = device.stream().context().attribute(clock)?;
    Ok(u64::try_from(rate).unwrap_or(0) * 1000)
}

/// Checks and measures. `write` gets each line as soon as it is known; with `json` each line is an object.
/// Returns true if all results are right.
///
/// # Errors
/// The errors of the device and of `write`.
pub fn run(
    device: &Device,
    args: &CheckArgs,
    json: bool,
    write: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<bool, CheckError> {
    let mut device = device.clone();
    if let Some(path) = &args.ptx {
        let ptx = std::fs::read_to_string(path).map_err(|error| CheckError::Ptx(path.clone(), error))?;
        // SAFETY: the user who names the file vouches that it is a build of the same source.
        device = unsafe { device.with_ptx(ptx) };
    }
    let device = &device;
    let mut writer = Writer::new(json, write);
    let bytes = device.memory()?.0 / 4;
    let bandwidth = bench::bandwidth(device, bytes, args.seconds)?;
    writer.write(&Row::Device(row::DeviceRow {
        device: device.name()?,
        commit: option_env!("TQKV_COMMIT"),
        multiprocessors: device.multiprocessors(),
        cuda: driver_cuda(),
        l2_bytes: device.l2_bytes()?,
        memory_bytes: device.memory()?.1,
        clock_hz: kilohertz(device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory_clock_hz: kilohertz(device, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        copy_bytes_per_second: bandwidth.copy,
        read_bytes_per_second: bandwidth.read,
    }))?;
    let mut is_right = true;
    if args.does(args.codes) {
        for (id, dim) in args.codecs().into_iter().flat_map(|id| crate::HEAD_DIMS.map(|dim| (id, dim))) {
            let row = right::codes(device, id, dim, args.vectors)?;
            is_right &= row.mismatches == 0;
            writer.write(&Row::Codes(row))?;
        }
        for (id, dim) in args.codecs().into_iter().flat_map(|id| crate::HEAD_DIMS.map(|dim| (id, dim))) {
            let row = beside::weights(device, id, dim, args.vectors)?;
            is_right &= row.mismatches() == 0;
            writer.write(&Row::Weights(row))?;
        }
        for dim in crate::HEAD_DIMS {
            let row = beside::residuals(device, dim, args.vectors)?;
            is_right &= row.is_right();
            writer.write(&Row::Residuals(row))?;
        }
    }
    if args.does(args.attend) {
        for (key, value, dim, group) in right::pairs(&args.codecs()) {
            let row = right::attention(device, [key, value], dim, group)?;
            is_right &= row.largest_error <= row::MAX_ERROR;
            writer.write(&Row::Attention(row))?;
        }
    }
    if args.does(args.speed) {
        for shape in args.shapes() {
            speed::measure(device, shape, args, bandwidth, &mut |row| writer.write(&Row::Speed(row)))?;
        }
        beside::measure(device, args, &mut |row| writer.write(&Row::Kernel(row)))?;
    }
    Ok(is_right)
}
