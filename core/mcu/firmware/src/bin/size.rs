//! Only encode, decode and score at D = 128, 4 bits. Their size is this image's minus that of `empty`.
#![no_std]
#![no_main]

use core::hint::black_box;
#[cfg(target_arch = "arm")]
use cortex_m as _;
use tqkv_core::fixed::FixedQuery;
use workload::{BLOCK, CODEC, EXPONENT};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[firmware::entry]
fn main() -> ! {
    let mut block = [0; BLOCK];
    let mut samples = [0_i16; 128];
    black_box(&mut samples);
    black_box(CODEC.encode(&samples, EXPONENT, &mut block)).ok();
    black_box(&mut block);
    black_box(CODEC.decode(&block, EXPONENT, &mut samples)).ok();
    // This takes a reference, so that no copy of a query is counted.
    if let Some(query) = black_box(None::<&FixedQuery<128>>) {
        black_box(CODEC.score(query, &block)).ok();
    }
    #[cfg(feature = "control-float")]
    black_box(black_box(1.0_f32) * black_box(2.0_f32));
    loop {
        core::hint::spin_loop();
    }
}
