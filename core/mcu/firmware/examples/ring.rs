//! A firmware with a KV cache in static memory: tokens in .bss, signs and tables in flash.
//!
//! `cargo xtask firmware` runs it and checks the place of its memory. With the feature `control-data` the
//! ring does not start as zeros, which shows that the check can fail.
#![no_std]
#![no_main]

#[cfg(target_arch = "arm")]
use cortex_m as _;
use defmt_semihosting as _;
use tqkv_core::code::{S3, S4};
use tqkv_core::fixed::{ExactTokens, FixedCodec, RingCache};
use workload::vector;

static KEYS: FixedCodec<64, S4> = FixedCodec::DEFAULT;
static VALUES: FixedCodec<64, S3> = FixedCodec::DEFAULT;

/// 108 tokens in codes: 6,480 bytes.
const BYTES: usize = RingCache::<64, S4, S3>::bytes_for(108);
const START: u8 = cfg!(feature = "control-data") as u8;
static mut MEMORY: [u8; BYTES] = [START; BYTES];

/// 4 + 16 exact tokens: 2,732 bytes.
type Exact = ExactTokens<64, i8, 4, 16>;
static mut EXACT: (Exact, u8) = (Exact::new(), START);

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    defmt::error!("panic");
    firmware::exit(101)
}

#[firmware::entry]
fn main() -> ! {
    // SAFETY: `main` runs once and no interrupt uses the memories, so these are the only references.
    let (memory, exact) = unsafe { (&mut *(&raw mut MEMORY), &mut *(&raw mut EXACT.0)) };
    let mut ring = RingCache::new(&KEYS, &VALUES, memory, 4).with_exact(exact);
    for token in 0..200 {
        // Keys in Q12, values in Q15.
        if ring.push(&vector(token), -12, &vector(token + 1000), -15).is_err() {
            firmware::exit(1);
        }
    }
    let mut out = [0; 64];
    if ring.attend(&vector(7), -12, -15, &mut out).is_err() {
        firmware::exit(1);
    }
    let mut crc = workload::Crc::default();
    crc.samples(&out);
    defmt::info!("ring_bytes {=usize}", BYTES + size_of::<Exact>());
    defmt::info!("tokens {=usize}", ring.len());
    defmt::info!("attended {=u32:08x}", crc.value());
    firmware::exit(0)
}
