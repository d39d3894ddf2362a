//! The PTX text of the kernels, and how kernels are loaded from it.

use crate::GpuError;
use crate::formats::with_formats;
use crate::pair::side_by_side;
use cudarc::driver::{CudaContext, CudaFunction, DriverError, sys};
use cudarc::nvrtc::Ptx;
use std::borrow::Cow;
use std::ffi::CString;
use std::sync::Arc;

/// Lowest compute capability that runs the kernels.
pub(crate) const LEAST: (i32, i32) = (8, 0);

/// Oldest driver that has every function that this crate calls, those of graphs included. It reads the text.
pub(crate) const DRIVER: &str = "470 (CUDA 11.4)";

/// The same as the driver gives its version.
pub(crate) const DRIVER_VERSION: i32 = 11_040;

/// The text of the kernels. One serves all devices; the driver compiles it for its own.
#[derive(Clone, Debug)]
pub(crate) struct KernelText(Cow<'static, str>);

impl KernelText {
    /// The text that was built with this crate.
    pub(crate) const COMMITTED: Self = Self(Cow::Borrowed(include_str!("../ptx/sm_80.ptx")));

    /// Another text.
    pub(crate) fn new(text: String) -> Self {
        Self(text.into())
    }

    /// A text with only one attention kernel, for keys and values of these formats.
    pub(crate) fn with_formats(&self, name: &str, formats: [u32; 2]) -> Result<Self, GpuError> {
        let text = with_formats(&select(&self.0, &[name]), name, formats)
            .ok_or_else(|| GpuError::Driver(format!("{name} is not an attention kernel")))?;
        Ok(Self::new(text))
    }

    /// A text with only [`crate::PAIR`], made of these kernels.
    pub(crate) fn side_by_side(&self, names: &[&str]) -> Result<Self, GpuError> {
        let text = side_by_side(&self.0, names);
        Ok(Self::new(text.ok_or_else(|| GpuError::Driver(format!("no kernels {}", names.join(", "))))?))
    }

    /// Compiles and loads kernels. The result has the order of `names`.
    pub(crate) fn load<const N: usize>(
        &self,
        context: &Arc<CudaContext>,
        names: [&str; N],
    ) -> Result<[CudaFunction; N], GpuError> {
        let text = select(&self.0, &names);
        let module = context.load_module(Ptx::from_src(&text)).map_err(|error| refused(error, &text))?;
        let loaded = names.map(|name| module.load_function(name));
        let mut functions = Vec::with_capacity(N);
        for function in loaded {
            functions.push(function?);
        }
        functions.try_into().map_err(|_| GpuError::Driver("a kernel is missing".to_owned()))
    }
}

/// The error for a text that the driver does not compile, with the compiler's log.
fn refused(error: DriverError, text: &str) -> GpuError {
    GpuError::KernelsRefused {
        reason: format!("{:?}", error.0),
        needs: DRIVER,
        cuda: driver_cuda(),
        log: compiler_log(text).unwrap_or_default(),
    }
}

/// The version of CUDA that the driver was made for, 1000 times the major number and 10 times the minor.
fn driver_version() -> i32 {
    let mut version = 0;
    // SAFETY: the driver is open, and it writes one number.
    let _ = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    version
}

/// The version of CUDA that the driver was made for. The driver must be open.
pub fn driver_cuda() -> String {
    cuda_of(driver_version())
}

/// A version as people write it.
fn cuda_of(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Checks that the driver is new enough. An older one lacks functions, and a call of them would panic.
pub(crate) fn check_driver() -> Result<(), GpuError> {
    let version = driver_version();
    if version >= DRIVER_VERSION {
        return Ok(());
    }
    Err(GpuError::OldDriver { cuda: cuda_of(version), needs: DRIVER })
}

/// Compiles a refused text again for the compiler's log. The thread already has the context.
fn compiler_log(text: &str) -> Option<String> {
    let text = CString::new(text).ok()?;
    let mut log = vec![0_u8; 4096];
    let mut names =
        [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(log.len())];
    let mut module = std::ptr::null_mut();
    // SAFETY: the text ends in a zero byte. Both lists have two entries, and the second entry is the length
    // of the log.
    let result = unsafe {
        sys::cuModuleLoadDataEx(
            &raw mut module,
            text.as_ptr().cast(),
            2,
            names.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    if result == sys::CUresult::CUDA_SUCCESS {
        // SAFETY: the module was loaded just above, and no function of it is in use.
        let _ = unsafe { sys::cuModuleUnload(module) };
    }
    let said = log.split(|&byte| byte == 0).next()?;
    Some(String::from_utf8_lossy(said).trim().to_owned())
}

/// The part of a PTX text that `names` need. The driver compiles all that it gets, and a cache uses a tenth
/// of the kernels.
fn select(text: &str, names: &[&str]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_for_the_lowest_capability_and_a_driver_that_reads_it() {
        let text = &KernelText::COMMITTED.0;
        assert!(text.contains(&format!(".target sm_{}{}", LEAST.0, LEAST.1)));
        // From NVIDIA's tables: the CUDA release that introduced a version of PTX.
        let known = [("7.0", 11_000), ("7.1", 11_010), ("7.4", 11_040), ("7.8", 11_080), ("8.0", 12_000)];
        let version = text.lines().find_map(|line| line.strip_prefix(".version ")).unwrap();
        let (_, cuda) = known.iter().find(|(known, _)| *known == version).expect("a version that is known");
        assert!(*cuda <= DRIVER_VERSION, "PTX {version}");
        assert!(DRIVER.ends_with(&format!("(CUDA {})", cuda_of(DRIVER_VERSION))));
    }

    #[test]
    fn a_selection_holds_the_kernels_asked_for_and_no_others() {
        let text = &KernelText::COMMITTED.0;
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
