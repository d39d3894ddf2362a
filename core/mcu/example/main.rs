//! A language model on a microcontroller: 520 KiB of RAM, 1,024 tokens of context, no heap, no floats.
#![no_std]
#![no_main]

use cortex_m as _;
use cortex_m_rt::entry;
use semihosting::{print, println, process};
use static_cell::ConstStaticCell;
use tqkv_core::code::{S3, S4};
use tqkv_core::fixed::{ExactTokens, FixedCodec, RingCache};
use tqkv_lm::{Head, Lm, LmError, Model, Sampler, Shape};
use tqkv_simd::Dsp;

/// The model in flash, aligned for the DSP loops.
#[repr(C, align(4))]
struct Aligned<T: ?Sized>(T);
static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("model.tqlm"));

/// The file gives all sizes at compile time.
const SHAPE: Shape = match Shape::read(include_bytes!("model.tqlm")) {
    Ok(shape) => shape,
    Err(_) => panic!("model.tqlm is not a flat model file"),
};
const DIM: usize = SHAPE.head_dim as usize;
const RINGS: usize = SHAPE.rings();

/// Tokens of context. Keys are kept in 4 bits, and values in 3.
const TOKENS: usize = 1024;
type Keys = S4;
type Values = S3;
/// The first tokens, which stay when the context is full, and the newest tokens are exact.
const SINKS: usize = 4;
const NEWEST: usize = 16;
type Exact = ExactTokens<DIM, i8, SINKS, NEWEST>;
const RING_BYTES: usize = RingCache::<DIM, Keys, Values>::bytes_for(TOKENS - SINKS - NEWEST);

// SAFETY: this runs on a Cortex-M33 with the DSP extension. For another core use `tqkv_core::Portable`
// instead.
const DSP: Dsp = unsafe { Dsp::assume_supported() };
static KEYS: FixedCodec<DIM, Keys, Dsp> = FixedCodec::DEFAULT.with_kernels(DSP);
static VALUES: FixedCodec<DIM, Values, Dsp> = FixedCodec::DEFAULT.with_kernels(DSP);

/// These are zeros, so they take no flash.
static MEMORY: ConstStaticCell<[u8; RINGS * RING_BYTES]> = ConstStaticCell::new([0; RINGS * RING_BYTES]);
static EXACT: ConstStaticCell<[Exact; RINGS]> = ConstStaticCell::new([const { Exact::new() }; RINGS]);
static WORK: ConstStaticCell<[i32; SHAPE.work_words()]> = ConstStaticCell::new([0; SHAPE.work_words()]);

/// The start of the text. The tokens of the shipped model are bytes.
const PROMPT: &[u8] = b"The borrow checker ";
const NEW_TOKENS: usize = 200;

fn write_text() -> Result<(), LmError> {
    let memory = MEMORY.take();
    let mut parts = memory.chunks_exact_mut(RING_BYTES);
    let mut heads = EXACT.take().each_mut().map(|exact| {
        let memory = parts.next().unwrap_or_default();
        Head::new(RingCache::new(&KEYS, &VALUES, memory, SINKS).with_exact(exact))
    });
    let mut lm = Lm::new(Model::load(&FILE.0)?, &mut heads, WORK.take(), DSP)?;
    let mut sampler = Sampler::new(205, 1); // temperature 205 / 256, seed 1
    for &byte in PROMPT {
        print!("{}", char::from(byte));
        lm.push(u32::from(byte))?;
    }
    for _ in 0..NEW_TOKENS {
        let token = sampler.pick(&lm.logits());
        print!("{}", char::from(token as u8));
        lm.push(token)?;
    }
    println!();
    Ok(())
}

#[entry]
fn main() -> ! {
    match write_text() {
        Ok(()) => process::exit(0),
        Err(error) => {
            println!("{error}");
            process::exit(1)
        }
    }
}
