//! Counts the instructions per token of the shipped language model at 64 and 1,024 tokens of context, by
//! part. Also measures the stack.
#![no_std]
#![no_main]

use core::cell::Cell;
use core::hint::black_box;
#[cfg(target_arch = "arm")]
use cortex_m as _;
use defmt_semihosting as _;
use firmware::count::Counter;
use firmware::model::{FILE, SHAPE, WORK_WORDS};
use firmware::stack::peak;
use static_cell::ConstStaticCell;
use tqkv_core::code::{Code, I8, S2, S3, S4, T2S8};
use tqkv_core::fixed::{FixedCodec, Kernels, Products, RingCache};
use tqkv_lm::{Head, LayoutBytes, Lm, LmError, Model};
use workload::lm::{DIM, Exacts, LONG_TOKENS, Memory, RINGS, SINKS, bytes_for, exacts};
use workload::{FASTEST, vector};

/// Room for the widest cache of 1,024 tokens that fits; `i8` is only measured at 64 tokens.
const BYTES: usize = bytes_for::<S4, S3>(LONG_TOKENS);
static CODES: ConstStaticCell<[u8; BYTES]> = ConstStaticCell::new([0; BYTES]);
static EXACT: ConstStaticCell<Exacts> = ConstStaticCell::new(exacts());
static WORK: ConstStaticCell<[i32; WORK_WORDS]> = ConstStaticCell::new([0; WORK_WORDS]);

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    defmt::error!("panic");
    firmware::exit(101)
}

/// The costs of a token after `tokens - 1` others.
fn measure<K: Code, V: Code>(
    counter: &Counter,
    name: &str,
    memory: &mut Memory<'_>,
    tokens: usize,
) -> Result<(), LmError> {
    let keys = FixedCodec::<DIM, K>::DEFAULT.with_kernels(FASTEST);
    let values = FixedCodec::<DIM, V>::DEFAULT.with_kernels(FASTEST);
    let Memory { codes, exact, work } = memory;
    let codes = codes.get_mut(..bytes_for::<K, V>(tokens)).unwrap_or_default();
    let room = (codes.len() / RINGS).max(1);
    let mut parts = codes.chunks_exact_mut(room);
    let mut rings = exact.each_mut().map(|exact| {
        RingCache::new(&keys, &values, parts.next().unwrap_or_default(), SINKS).with_exact(exact)
    });
    let (x, mut out) = (vector::<DIM>(3), [0; DIM]);
    let (mut append, mut attend) = (0, 0);
    for ring in &mut rings {
        // The cost of a token does not depend on its value.
        for seed in 0..tokens as u32 - 2 {
            ring.push(&vector(seed), -15, &vector(seed + 7), -15).map_err(|_| LmError::Encode)?;
        }
        append += counter.instructions(|| {
            black_box(ring.push(&x, -15, &x, -15)).ok();
        });
        // Two query heads share a ring. The token's own append comes in addition.
        attend += 2 * counter.instructions(|| {
            black_box(ring.attend(&x, -15, -14, &mut out)).ok();
        });
    }
    let mut heads = rings.map(Head::new);
    let mut lm = Lm::new(Model::load_unverified(FILE)?, &mut heads, work, FASTEST)?;
    let done = Cell::new(false);
    let pushed = counter.instructions(|| done.set(lm.push(101).is_ok()));
    let head = counter.instructions(|| {
        black_box(lm.logits());
    });
    if !done.get() {
        return Err(LmError::Decode);
    }
    defmt::info!("token_{=str}_{=usize} {=u32}", name, tokens, pushed + head);
    defmt::info!("prefill_{=str}_{=usize} {=u32}", name, tokens, pushed);
    defmt::info!("attention_{=str}_{=usize} {=u32}", name, tokens, attend);
    defmt::info!("append_{=str}_{=usize} {=u32}", name, tokens, append);
    if tokens <= 64 {
        lm.clear();
        lm.push(66)?;
        let stack = peak::<16_384>(|| done.set(lm.push(101).is_ok()));
        defmt::info!("stack_{=str} {=usize}", name, stack);
    }
    Ok(())
}

/// Instructions of all matrix products of a token with the fastest kernels, or 0 without such kernels. The
/// matrices have the sizes of the model's.
fn products(counter: &Counter) {
    let mut out = [0; 384];
    let x = [0x1234_5678_i32; 192];
    let x = bytemuck::cast_slice::<i32, i16>(&x);
    let (bits, of) = (SHAPE.bits.count(), LayoutBytes(SHAPE.bits));
    let mut one = |rows: usize, columns: usize| {
        let bytes = rows / 2 * (of.pair_scales(columns) + of.pair_codes(columns));
        let task = Products {
            bits,
            weights: &FILE[1024..1024 + bytes],
            scales: &FILE[..2 * rows],
            x: &x[..columns],
            shift: u32::from(bits),
        };
        let mut is_there = false;
        let n =
            counter.instructions(|| is_there = black_box(FASTEST.products(task, &mut out[..rows])).is_some());
        if is_there { n } else { 0 }
    };
    // Matrices of a layer: q and o; k and v; gate and up; down. The output head follows.
    let layer = 2 * one(256, 256) + 2 * one(128, 256) + 2 * one(384, 256) + one(256, 384);
    defmt::info!("products {=u32}", 4 * layer + one(256, 256));
}

#[firmware::entry]
fn main() -> ! {
    let Some(counter) = Counter::new() else { firmware::exit(1) };
    let memory = &mut Memory { codes: CODES.take(), exact: EXACT.take(), work: WORK.take() };
    products(&counter);
    let first = measure::<I8, I8>(&counter, "i8", memory, 64);
    if cfg!(feature = "four") {
        firmware::exit(i32::from(first.is_err()))
    }
    let all = [
        first,
        measure::<S4, S4>(&counter, "s4", memory, 64),
        measure::<T2S8, T2S8>(&counter, "t2s8", memory, 64),
        measure::<S2, S2>(&counter, "s2", memory, 64),
        measure::<S4, S3>(&counter, "s4,s3", memory, LONG_TOKENS),
        measure::<T2S8, T2S8>(&counter, "t2s8", memory, LONG_TOKENS),
        measure::<S2, S2>(&counter, "s2", memory, LONG_TOKENS),
    ];
    if all.iter().any(Result::is_err) {
        firmware::exit(1)
    }
    firmware::exit(0)
}
