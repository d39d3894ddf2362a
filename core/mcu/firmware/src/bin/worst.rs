//! Counts the instructions of a ring with exact tokens, for usual inputs and for the worst that are known.
#![no_std]
#![no_main]

use core::hint::black_box;
#[cfg(target_arch = "arm")]
use cortex_m as _;
use defmt_semihosting as _;
use firmware::count::Counter;
use tqkv_core::code::{Code, S4, T2S8};
use tqkv_core::fixed::{ExactTokens, FixedCodec, RingCache};
use workload::worst::{HISTORIES, LENGTH, QUERIES, key, query, value};
use workload::{EXPONENT, FASTEST};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    defmt::error!("panic");
    firmware::exit(101)
}

/// Coded tokens of the ring with exact ones: 4 + 8 + 20 in all, as 16 KiB of RAM have room for.
const CODED: usize = 20;

/// Instructions of a full ring with exact tokens, with usual inputs and with the worst.
#[derive(Default)]
struct Costs {
    push: u32,
    attend: u32,
    worst_push: u32,
    worst_attend: u32,
}

#[inline(never)]
fn worst<C: Code>(counter: &Counter, memory: &mut [u8]) -> Costs {
    let codec = FixedCodec::<128, C>::DEFAULT.with_kernels(FASTEST);
    let memory = memory.get_mut(..RingCache::<128, C, C>::bytes_for(CODED)).unwrap_or_default();
    let mut exact = ExactTokens::<128, i8, 4, 8>::new();
    let mut ring = RingCache::new(&codec, &codec, memory, 0).with_exact(&mut exact);
    let (mut costs, mut out) = (Costs::default(), [0; 128]);
    for history in 0..HISTORIES {
        ring.clear();
        for token in 0..LENGTH {
            let ((key, key_exponent), (value, value_exponent)) = (key(history, token), value(history, token));
            let push = counter.instructions(|| {
                black_box(ring.push(&key, key_exponent, &value, value_exponent)).ok();
            });
            if history == 0 {
                costs.push = push;
            }
            costs.worst_push = costs.worst_push.max(push);
        }
        for number in 0..QUERIES {
            let (q, exponent) = query(number);
            let attend = counter.instructions(|| {
                black_box(ring.attend(&q, exponent, EXPONENT, &mut out)).ok();
            });
            if history == 0 && number == 0 {
                costs.attend = attend;
            }
            costs.worst_attend = costs.worst_attend.max(attend);
        }
    }
    costs
}

#[firmware::entry]
fn main() -> ! {
    let Some(counter) = Counter::new() else { firmware::exit(1) };
    let mut memory = [0; RingCache::<128, S4, S4>::bytes_for(CODED)];
    let s4 = worst::<S4>(&counter, &mut memory);
    let t2s8 = worst::<T2S8>(&counter, &mut memory);
    for (name, costs) in [("s4", s4), ("t2s8", t2s8)] {
        defmt::info!("{=str}_tiered_push {=u32}", name, costs.push);
        defmt::info!("{=str}_worst_push {=u32}", name, costs.worst_push);
        defmt::info!("{=str}_tiered_attend {=u32}", name, costs.attend);
        defmt::info!("{=str}_worst_attend {=u32}", name, costs.worst_attend);
    }
    firmware::exit(0)
}
