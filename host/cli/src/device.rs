//! `--device`: the place of the caches.

use std::fmt;
use std::str::FromStr;

use crate::error::CliError;
use crate::output::note;
use crate::policy::Policy;

/// The value of `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceArg {
    /// Main memory.
    Cpu,
    /// The NVIDIA GPU of this number; an error if it is not usable.
    Cuda(usize),
    /// An NVIDIA GPU if one is usable, otherwise main memory with a note on stderr.
    Auto,
}

impl FromStr for DeviceArg {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "auto" => Ok(Self::Auto),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let number = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
                number.map(Self::Cuda).ok_or("expected cpu, cuda, cuda:N (GPU number N, from 0) or auto")
            }
        }
    }
}

impl fmt::Display for DeviceArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(0) => f.write_str("cuda"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

/// The place of the caches of a command.
#[derive(Debug, clap::Args)]
pub(crate) struct DeviceArgs {
    /// Place of the cache: cpu, cuda (the first NVIDIA GPU), cuda:N (GPU N, from 0), or auto (a GPU if
    /// usable, else cpu).
    ///
    /// A GPU takes no mean out of keys and values and computes attention in f32, so centring= and arithmetic=
    /// in --kv have no effect there.
    #[arg(long, value_name = "WHERE", default_value_t = DeviceArg::Cpu)]
    device: DeviceArg,
}

/// The chosen place on this machine.
#[derive(Debug)]
pub enum Place {
    /// Main memory.
    Cpu,
    /// A GPU.
    #[cfg(feature = "cuda")]
    Cuda {
        /// The GPU.
        device: tqkv_gpu::Device,
        /// True if a cache that the GPU cannot hold may go to main memory.
        or_cpu: bool,
    },
}

impl Place {
    /// True if a cache there can have the settings of a policy.
    pub(crate) fn holds(&self, policy: &Policy) -> bool {
        matches!(self, Self::Cpu) || policy.refused_by_gpu().is_none()
    }
}

impl DeviceArgs {
    /// Opens the GPU, if one is asked for.
    pub(crate) fn open(&self) -> Result<Place, CliError> {
        match self.device {
            DeviceArg::Cpu => Ok(Place::Cpu),
            DeviceArg::Cuda(number) => gpu(number, false)
                .map_err(|why| CliError::bad_input(format_args!("--device {}: {why}", self.device))),
            DeviceArg::Auto => Ok(gpu(0, true).unwrap_or_else(|why| {
                note(format_args!("--device auto: {why}; running on the CPU"));
                Place::Cpu
            })),
        }
    }
}

#[cfg(feature = "cuda")]
fn gpu(number: usize, or_cpu: bool) -> Result<Place, String> {
    let device = tqkv_gpu::Device::new(number).map_err(|error| error.to_string())?;
    Ok(Place::Cuda { device, or_cpu })
}

#[cfg(not(feature = "cuda"))]
fn gpu(_number: usize, _or_cpu: bool) -> Result<Place, String> {
    Err("this tqkv was built without the feature cuda".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_as_they_are_read() {
        for name in ["cpu", "cuda", "cuda:3", "auto"] {
            assert_eq!(name.parse::<DeviceArg>().unwrap().to_string(), name);
        }
        for name in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CUDA"] {
            assert!(name.parse::<DeviceArg>().is_err(), "{name}");
        }
    }
}
