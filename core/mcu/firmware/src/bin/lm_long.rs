//! Runs the shipped language model over 1,024 tokens of context, in the 520 KiB of an RP2350.
#![no_std]
#![no_main]

#[cfg(target_arch = "arm")]
use cortex_m as _;
use defmt_semihosting as _;
use firmware::model::{FILE, WORK_WORDS};
use static_cell::ConstStaticCell;
use tqkv_core::code::{S3, S4};
use workload::FASTEST;
use workload::lm::{Exacts, LONG_TOKENS, Memory, bytes_for, exacts, write};

const BYTES: usize = bytes_for::<S4, S3>(LONG_TOKENS);
static CODES: ConstStaticCell<[u8; BYTES]> = ConstStaticCell::new([0; BYTES]);
static EXACT: ConstStaticCell<Exacts> = ConstStaticCell::new(exacts());
static WORK: ConstStaticCell<[i32; WORK_WORDS]> = ConstStaticCell::new([0; WORK_WORDS]);

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    defmt::error!("panic");
    firmware::exit(101)
}

#[firmware::entry]
fn main() -> ! {
    let memory = Memory { codes: CODES.take(), exact: EXACT.take(), work: WORK.take() };
    match write::<S4, S3, _>(FASTEST, FILE, memory, LONG_TOKENS) {
        Ok(written) => defmt::info!("crc_long {=u32:08x}", written.crc),
        Err(error) => {
            defmt::error!("{}", error);
            firmware::exit(1)
        }
    }
    firmware::exit(0)
}
