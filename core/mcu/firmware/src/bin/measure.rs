//! Measures the codec on this machine and prints a table through defmt.
#![no_std]
#![no_main]

use core::hint::black_box;
#[cfg(target_arch = "arm")]
use cortex_m as _;
use defmt_semihosting as _;
use firmware::count::Counter;
use firmware::stack::peak;
use tqkv_core::code::T2S8;
use tqkv_core::fixed::{Attention, FixedCodec, RingCache, TrellisWorkspace};
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
