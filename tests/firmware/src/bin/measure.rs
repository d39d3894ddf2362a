//! Measures the codec on this machine and prints a table through defmt.
#![no_std]
#![no_main]

use core::hint::black_box;
#[cfg(target_arch = "arm")]
use cortex_m as _;
use defmt_semihosting as _;
use firmware::count::Counter;
use firmware::stack::peak;
use tqkv_core::code::{Code, S4, T2S8};
use tqkv_core::fixed::{Attention, ExactTokens, FixedCodec, RingCache, TrellisWorkspace};
use workload::worst::{HISTORIES, LENGTH, QUERIES, key, query, value};
use workload::{BLOCK, CODEC, DECODER, EXPONENT, FASTEST, Fastest, TOKENS, TRELLIS, TRELLIS_BLOCK, vector};

/// The trellis codec in the form that rings use, in flash.
static RINGED: FixedCodec<128, T2S8, Fastest> = FixedCodec::DEFAULT.with_kernels(FASTEST);

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    defmt::error!("panic");
    firmware::exit(101)
}

/// Push and attention of a ring of 64 coded tokens.
#[inline(never)]
fn ring(counter: &Counter) -> [u32; 2] {
    let (x, mut out) = (vector(1), [0; 128]);
    let mut memory = [0; RingCache::<128, T2S8, T2S8>::bytes_for(TOKENS)];
    let mut ring = RingCache::new(&RINGED, &RINGED, &mut memory, 0);
    for seed in 1..TOKENS as u32 {
        ring.push(&vector(seed), EXPONENT, &vector(seed + 100), EXPONENT).ok();
    }
    let push = counter.instructions(|| {
        black_box(ring.push(&x, EXPONENT, &x, EXPONENT)).ok();
    });
    let attend = counter.instructions(|| {
        black_box(ring.attend(&x, EXPONENT, EXPONENT, &mut out)).ok();
    });
    black_box((out, ring.len()));
    [push, attend]
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
    defmt::info!("crc {=u32:08x}", workload::crc(FASTEST));
    defmt::info!("crc_portable {=u32:08x}", workload::crc(tqkv_core::Portable));

    let x = black_box(vector::<128>(1));
    let mut block = [0; BLOCK];
    let mut back = [0; 128];
    let encode = counter.instructions(|| {
        black_box(CODEC.encode(&x, EXPONENT, &mut block)).ok();
    });
    let narrow: [i8; 128] = core::array::from_fn(|i| (x[i] >> 8) as i8);
    let mut other = [0; BLOCK];
    let encode_i8 = counter.instructions(|| {
        black_box(CODEC.encode(&narrow, -7, &mut other)).ok();
    });
    let decode = counter.instructions(|| {
        black_box(CODEC.decode(black_box(&block), EXPONENT, &mut back)).ok();
    });
    let mut query = None;
    let prepare = counter.instructions(|| query = Some(CODEC.query(&x, EXPONENT)));
    let Some(query) = query else { firmware::exit(1) };
    let score = counter.instructions(|| {
        black_box(CODEC.score(&query, black_box(&block))).ok();
    });
    let mut out = [0; 128];
    let attend = counter.instructions(|| {
        let mut sum = Attention::<128>::new();
        for _ in 0..TOKENS {
            let score = CODEC.score(&query, black_box(&block)).unwrap_or(0);
            black_box(sum.add(&CODEC, score, &block)).ok();
        }
        sum.finish(&CODEC, EXPONENT, &mut out);
    });
    let (mut workspace, mut small) = (TrellisWorkspace::new(), [0; TRELLIS_BLOCK]);
    let trellis_encode = counter.instructions(|| {
        black_box(TRELLIS.encode(&x, EXPONENT, &mut workspace, &mut small)).ok();
    });
    let trellis_decode = counter.instructions(|| {
        black_box(TRELLIS.decode(black_box(&small), EXPONENT, &mut back)).ok();
    });
    let trellis_decode_256 = counter.instructions(|| {
        black_box(DECODER.decode(black_box(&small), EXPONENT, &mut back)).ok();
    });
    let [ring_push, ring_attend] = ring(&counter);
    let mut memory = [0; RingCache::<128, S4, S4>::bytes_for(CODED)];
    let s4 = worst::<S4>(&counter, &mut memory);
    let t2s8 = worst::<T2S8>(&counter, &mut memory);
    black_box((out, back, other));
    defmt::info!("encode {=u32}", encode);
    defmt::info!("encode_from_i8 {=u32}", encode_i8);
    defmt::info!("decode {=u32}", decode);
    defmt::info!("query {=u32}", prepare);
    defmt::info!("score {=u32}", score);
    defmt::info!("attend_64 {=u32}", attend);
    defmt::info!("t2s8_encode {=u32}", trellis_encode);
    defmt::info!("t2s8_decode {=u32}", trellis_decode);
    defmt::info!("t2_decode {=u32}", trellis_decode_256);
    defmt::info!("t2s8_push {=u32}", ring_push);
    defmt::info!("t2s8_attend_64 {=u32}", ring_attend);
    for (name, costs) in [("s4", s4), ("t2s8", t2s8)] {
        defmt::info!("{=str}_tiered_push {=u32}", name, costs.push);
        defmt::info!("{=str}_worst_push {=u32}", name, costs.worst_push);
        defmt::info!("{=str}_tiered_attend {=u32}", name, costs.attend);
        defmt::info!("{=str}_worst_attend {=u32}", name, costs.worst_attend);
    }
    let stack = peak::<4096>(|| {
        black_box(CODEC.encode(&x, EXPONENT, &mut block)).ok();
    });
    defmt::info!("stack_encode {=usize}", stack);
    let stack = peak::<4096>(|| {
        black_box(CODEC.decode(&block, EXPONENT, &mut back)).ok();
    });
    defmt::info!("stack_decode {=usize}", stack);
    let stack = peak::<4096>(|| {
        black_box(TRELLIS.encode(&x, EXPONENT, &mut workspace, &mut small)).ok();
    });
    defmt::info!("stack_t2s8_encode {=usize}", stack);
    let stack = peak::<4096>(|| {
        black_box(TRELLIS.decode(&small, EXPONENT, &mut back)).ok();
    });
    defmt::info!("stack_t2s8_decode {=usize}", stack);
    firmware::exit(0)
}
