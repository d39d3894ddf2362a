//! This only links if nothing of the codec can panic or allocate.
//!
//! The panic handler and the allocator call functions that do not exist. The optimiser removes
//! them when no panic and no allocation is reachable; otherwise the linker reports an undefined
//! symbol. The features `control-panic` and `control-alloc` add one of each, to show that the
//! proof can fail.
#![no_std]
#![no_main]

use core::hint::black_box;
#[cfg(target_arch = "arm")]
use cortex_m as _;
use tqkv_core::code::{Code, I8, N4, S3, S4, S5, T1, T2, T2H, T2S8, T3, T4};
use tqkv_core::fixed::{
    Attention, ExactTokens, FixedCodec, FixedTrellis, RingCache, Sample, TrellisWorkspace,
};
use workload::{EXPONENT, FASTEST, vector};

unsafe extern "C" {
    safe fn the_codec_can_panic() -> !;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    the_codec_can_panic()
}

mod heap {
    use core::alloc::{GlobalAlloc, Layout};

    unsafe extern "C" {
        safe fn the_codec_allocates(bytes: usize) -> *mut u8;
    }

    struct Heap;

    // SAFETY: an image that links never calls it.
    unsafe impl GlobalAlloc for Heap {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            the_codec_allocates(layout.size())
        }

        unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
    }

    #[global_allocator]
    static HEAP: Heap = Heap;
}

/// Calls all functions of one codec.
#[inline(never)]
fn all<const D: usize, C: Code, const N: usize>() {
    let codec = FixedCodec::<D, C>::DEFAULT;
    let x: [i16; D] = black_box(vector(black_box(1)));
    let (mut block, mut out) = (black_box([0; N]), [0; D]);
    black_box(codec.with_kernels(FASTEST).encode(&x, black_box(EXPONENT), &mut block)).ok();
    black_box(codec.encode(&x, black_box(EXPONENT), &mut block)).ok();
    black_box(codec.encode(&x.map(|v| v as i8), black_box(EXPONENT), &mut block)).ok();
    let block = black_box(block);
    black_box(codec.decode(&block, black_box(EXPONENT), &mut out)).ok();
    let query = codec.query(&x, black_box(EXPONENT));
    let mut sum = Attention::<D>::new();
    for _ in 0..black_box(4) {
        let score = codec.score(&query, &block).unwrap_or(0);
        black_box(sum.add(&codec, black_box(score), &block)).ok();
    }
    sum.finish(&codec, black_box(EXPONENT), &mut out);
    black_box(out);
}

/// Calls all functions of one trellis codec.
#[inline(never)]
fn trellis<C: Code, const N: usize>() {
    let codec = FixedTrellis::<128, C>::DEFAULT.with_kernels(FASTEST);
    let (x, mut workspace): ([i16; 128], _) = (black_box(vector(black_box(1))), TrellisWorkspace::new());
    let (mut block, mut out) = ([0; N], [0; 128]);
    black_box(codec.encode(&x, black_box(EXPONENT), &mut workspace, &mut block)).ok();
    black_box(codec.decode(&black_box(block), black_box(EXPONENT), &mut out)).ok();
    black_box(out);
}

/// Calls all functions of a trellis codec that only decodes.
#[inline(never)]
fn decoder<C: Code, const N: usize>() {
    let mut out = [0; 128];
    let codec = FixedTrellis::<128, C>::DEFAULT;
    black_box(codec.decode(&black_box([0; N]), black_box(EXPONENT), &mut out)).ok();
    black_box(out);
}

#[inline(never)]
fn ring<X: Sample, const S: usize, const N: usize>() {
    static KEYS: FixedCodec<64, S4> = FixedCodec::DEFAULT;
    static VALUES: FixedCodec<64, S3> = FixedCodec::DEFAULT;
    let mut memory = [0; RingCache::<64, S4, S3>::bytes_for(8)];
    let mut exact = ExactTokens::<64, X, S, N>::new();
    let mut ring = RingCache::new(&KEYS, &VALUES, &mut memory, 2).with_exact(&mut exact);
    let (x, mut out) = (black_box(vector(3)), [0; 64]);
    for _ in 0..black_box(20) {
        black_box(ring.push(&x, black_box(EXPONENT), &x, black_box(EXPONENT))).ok();
        black_box(ring.attend(&x, black_box(EXPONENT), EXPONENT, &mut out)).ok();
    }
    ring.clear();
    black_box((out, ring.len()));
}

#[firmware::entry]
fn main() -> ! {
    all::<128, S4, 66>();
    all::<128, S5, 82>();
    all::<64, S3, 26>();
    all::<80, N4, 42>();
    all::<128, I8, 130>();
    trellis::<T2S8, 34>();
    decoder::<T1, 18>();
    decoder::<T2, 34>();
    decoder::<T2H, 42>();
    decoder::<T3, 50>();
    decoder::<T4, 66>();
    ring::<i8, 0, 0>();
    ring::<i8, 2, 3>();
    ring::<i16, 1, 0>();
    ring::<i16, 0, 4>();
    workload::lm::everything::<128, I8, T2S8, i16, _>(FASTEST);
    workload::lm::everything::<64, S4, S3, i8, _>(tqkv_core::Portable);
    #[cfg(feature = "control-panic")]
    {
        let table = [1, 2, 3];
        black_box(table[black_box(1_usize)]);
    }
    #[cfg(feature = "control-alloc")]
    {
        extern crate alloc;
        black_box(alloc::boxed::Box::new(black_box(1_u32)));
    }
    loop {
        core::hint::spin_loop();
    }
}
