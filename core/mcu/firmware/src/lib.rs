//! Start-up, exit, an instruction counter and a stack probe for the machines that QEMU emulates.
#![no_std]

#[cfg(target_arch = "arm")]
use cortex_m_rt as _;
#[cfg(target_arch = "riscv32")]
use riscv_rt as _;

#[cfg(target_arch = "arm")]
pub use cortex_m_rt::entry;
#[cfg(target_arch = "riscv32")]
pub use riscv_rt::entry;

pub mod count;
#[cfg(feature = "lm")]
pub mod model;
pub mod stack;

/// Ends the emulation.
pub fn exit(code: i32) -> ! {
    semihosting::process::exit(code)
}
