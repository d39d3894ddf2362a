//! Runs the shipped language model over four caches; with 4-bit weights over one. Prints its text and the CRC
//! of all its logits through defmt.
#![no_std]
#![no_main]

#[cfg(target_arch = "arm")]
use cortex_m as _;
use defmt_semihosting as _;
use firmware::model::{FILE, WORK_WORDS};
use static_cell::ConstStaticCell;
use tqkv_core::code::{Code, I8, S2, S4, T2S8};
use tqkv_lm::Model;
use workload::FASTEST;
use workload::lm::{Exacts, Memory, bytes_for, exacts, short_tokens, write};

static CODES: ConstStaticCell<[u8; bytes_for::<I8, I8>(short_tokens())]> =
    ConstStaticCell::new([0; bytes_for::<I8, I8>(short_tokens())]);
static EXACT: ConstStaticCell<Exacts> = ConstStaticCell::new(exacts());
static WORK: ConstStaticCell<[i32; WORK_WORDS]> = ConstStaticCell::new([0; WORK_WORDS]);

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    defmt::error!("panic");
    firmware::exit(101)
}

fn run<C: Code>(name: &str, memory: &mut Memory<'_>) {
    let Memory { codes, exact, work } = memory;
    match write::<C, C, _>(FASTEST, FILE, Memory { codes, exact, work }, short_tokens()) {
        Ok(written) => {
            defmt::info!("crc_{=str} {=u32:08x}", name, written.crc);
            defmt::info!(
                "text_{=str} {=str}",
                name,
                core::str::from_utf8(&written.text).unwrap_or("not text")
            );
        }
        Err(error) => {
            defmt::error!("{}", error);
            firmware::exit(1)
        }
    }
}

#[firmware::entry]
fn main() -> ! {
    // Checks the complete file, once.
    if let Err(error) = Model::load(FILE) {
        defmt::error!("{}", error);
        firmware::exit(1)
    }
    let memory = &mut Memory { codes: CODES.take(), exact: EXACT.take(), work: WORK.take() };
    run::<I8>("i8", memory);
    if cfg!(feature = "four") {
        firmware::exit(0)
    }
    run::<S4>("s4", memory);
    run::<T2S8>("t2s8", memory);
    run::<S2>("s2", memory);
    firmware::exit(0)
}
