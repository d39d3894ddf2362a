//! `--device`: where caches are kept.

use clap::ValueEnum;

use crate::error::CliError;

/// The choice on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceArg {
    /// In main memory.
    Cpu,
    /// On an NVIDIA GPU, or not at all.
    Cuda,
    /// On an NVIDIA GPU where there is one that can, otherwise in main memory; stderr says so.
    Auto,
}

/// Where the caches of a command are.
#[derive(Debug, clap::Args)]
pub(crate) struct DeviceArgs {
    /// Where the cache is. On a GPU every token is encoded at once and attention is in f32: --hot,
    /// --sinks, --centre and --arithmetic do nothing there.
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = DeviceArg::Cpu)]
    device: DeviceArg,
}

/// What the choice comes to on this machine.
#[derive(Debug)]
pub(crate) enum Place {
    /// Main memory.
    Cpu,
    /// The first GPU.
    #[cfg(feature = "cuda")]
    Cuda {
        /// The GPU.
        device: tqkv_gpu::Device,
        /// Whether a cache that the GPU cannot hold may go to main memory.
        or_cpu: bool,
    },
}

impl DeviceArgs {
    /// Looks for the GPU, if one is asked for.
    pub(crate) fn open(&self) -> Result<Place, CliError> {
        match self.device {
            DeviceArg::Cpu => Ok(Place::Cpu),
            DeviceArg::Cuda => {
                gpu(false).map_err(|why| CliError::bad_input(format_args!("--device cuda: {why}")))
            }
            DeviceArg::Auto => Ok(gpu(true).unwrap_or_else(|why| {
                eprintln!("tqkv: --device auto: {why}; running on the CPU");
                Place::Cpu
            })),
        }
    }
}

#[cfg(feature = "cuda")]
fn gpu(or_cpu: bool) -> Result<Place, String> {
    let device = tqkv_gpu::Device::new(0).map_err(|error| error.to_string())?;
    Ok(Place::Cuda { device, or_cpu })
}

#[cfg(not(feature = "cuda"))]
fn gpu(_or_cpu: bool) -> Result<Place, String> {
    Err("this tqkv was built without the feature cuda".to_owned())
}
