//! The same as `size`, without the codec.
#![no_std]
#![no_main]

use core::hint::black_box;
#[cfg(target_arch = "arm")]
use cortex_m as _;
use workload::BLOCK;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[firmware::entry]
fn main() -> ! {
    let mut block = [0; BLOCK];
    let mut samples = [0_i16; 128];
    black_box(&mut samples);
    black_box(&mut block);
    loop {
        core::hint::spin_loop();
    }
}
