//! Chooses the PTX text for a device and loads kernels from it.

use crate::GpuError;
use crate::formats::with_formats;
use crate::pair::side_by_side;
use cudarc::driver::{CudaContext, CudaFunction, DriverError, sys};
use cudarc::nvrtc::Ptx;
use std::borrow::Cow;
use std::ffi::CString;
use std::sync::Arc;

/// A committed PTX text, and the devices and drivers that can run it.
#[derive(Debug)]
pub(crate) struct Target {
    /// Lowest compute capability.
    least: (i32, i32),
    text: Cow<'static, str>,
    /// Oldest driver that reads the text's version of PTX.
    driver: &'static str,
}

/// Newest architecture first.
const TARGETS: [Target; 2] = [
    Target {
        least: (9, 0),
        text: Cow::Borrowed(include_str!("../ptx/sm_90.ptx")),
        driver: "520 (CUDA 11.8)",
    },
    Target {
        least: (8, 0),
        text: Cow::Borrowed(include_str!("../ptx/sm_80.ptx")),
        driver: "450 (CUDA 11.0)",
    },
];

impl Target {
    /// Returns the text for a compute capability.
    pub(crate) fn of(capability: (i32, i32)) -> Option<Self> {
        TARGETS.into_iter().find(|target| capability >= target.least)
    }

    /// Returns the same target with another text.
    pub(crate) fn with_text(&self, text: String) -> Self {
        Self { text: text.into(), ..*self }
    }

    /// A text with only one attention kernel, for keys and values of these formats.
    pub(crate) fn with_formats(&self, name: &str, formats: [u32; 2]) -> Result<Self, GpuError> {
        let text = with_formats(&select(&self.text, &[name]), name, formats)
            .ok_or_else(|| GpuError::Driver(format!("{name} is not an attention kernel")))?;
        Ok(self.with_text(text))
    }

    /// A text with only [`crate::PAIR`], made of two kernels.
    pub(crate) fn pair(&self, names: [&str; 2]) -> Result<Self, GpuError> {
        let text = side_by_side(&self.text, names);
        Ok(self.with_text(text.ok_or_else(|| GpuError::Driver(format!("no kernels {}", names.join(", "))))?))
    }

    /// Compiles and loads kernels. The result has the order of `names`.
    pub(crate) fn load<const N: usize>(
        &self,
        context: &Arc<CudaContext>,
        names: [&str; N],
    ) -> Result<[CudaFunction; N], GpuError> {
        let text = select(&self.text, &names);
        let module = context.load_module(Ptx::from_src(&text)).map_err(|error| self.refused(error, &text))?;
        let loaded = names.map(|name| module.load_function(name));
        let mut functions = Vec::with_capacity(N);
        for function in loaded {
            functions.push(function?);
        }
        functions.try_into().map_err(|_| GpuError::Driver("a kernel is missing".to_owned()))
    }

    /// The error for a text that the driver does not compile, with the compiler's log.
    fn refused(&self, error: DriverError, text: &str) -> GpuError {
        let mut version = 0;
        // SAFETY: the driver is open, and it writes one number.
        let _ = unsafe { sys::cuDriverGetVersion(&raw mut version) };
        GpuError::KernelsRefused {
            reason: format!("{:?}", error.0),
            needs: self.driver,
            cuda: format!("{}.{}", version / 1000, version % 1000 / 10),
            log: compiler_log(text).unwrap_or_default(),
        }
    }
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
    fn every_capability_gets_the_newest_file_that_it_can_run() {
        assert!(Target::of((7, 5)).is_none());
        for (capability, target) in
            [((8, 0), "sm_80"), ((8, 9), "sm_80"), ((9, 0), "sm_90"), ((12, 1), "sm_90")]
        {
            let text = Target::of(capability).unwrap().text;
            assert!(text.contains(&format!(".target {target}")), "{capability:?}");
        }
    }

    #[test]
    fn each_file_names_the_driver_of_its_version() {
        // From NVIDIA's tables: the CUDA release that introduced a version of PTX, and its first driver on
        // Linux.
        let known = [("7.0", "450 (CUDA 11.0)"), ("7.8", "520 (CUDA 11.8)"), ("8.0", "525 (CUDA 12.0)")];
        for target in &TARGETS {
            let version = target.text.lines().find_map(|line| line.strip_prefix(".version ")).unwrap();
            let (_, driver) =
                known.iter().find(|(known, _)| *known == version).expect("a version that is known");
            assert_eq!(target.driver, *driver, "PTX {version}");
        }
    }

    #[test]
    fn a_selection_holds_the_kernels_asked_for_and_no_others() {
        for target in &TARGETS {
            let names = ["encode_append_s4_d128", "attend_merge_d128"];
            let selected = select(&target.text, &names);
            assert_eq!(selected.matches(".entry").count(), 2);
            for name in names {
                let body = |text: &str| {
                    let start = text.find(&format!(".entry {name}(")).unwrap();
                    let end = text[start..].find("\n}").unwrap();
                    text[start..start + end].to_owned()
                };
                assert_eq!(body(&selected), body(&target.text));
            }
            assert!(selected.contains(".version") && selected.contains(".address_size 64"));
        }
    }
}
