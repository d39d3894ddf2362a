//! Only the language model over one cache, without a file. It must contain no float.
#![no_std]
#![no_main]

#[cfg(target_arch = "arm")]
use cortex_m as _;
use tqkv_core::code::{S2, S4};
use workload::FASTEST;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[firmware::entry]
fn main() -> ! {
    workload::lm::everything::<64, S4, S2, i8, _>(FASTEST);
    loop {
        core::hint::spin_loop();
    }
}
