//! [`Threads`] on the device, where each thread runs the body for itself.
//!
//! A warp is the 32 threads that share `threadIdx.y`. Blocks are 32 x n threads; the launch chooses n,
//! because warps work independently. A trap: on this compiler only LLVM's own shuffle and vote intrinsics are
//! known to be convergent, and inline assembly is not.

use crate::threads::Threads;
use core::arch::{asm, nvptx};
use core::simd::{u32x2, u32x4};

unsafe extern "C" {
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shuffle_butterfly(members: u32, value: u32, mask: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shuffle_index(members: u32, value: u32, from: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot(members: u32, value: bool) -> u32;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn warp_barrier(members: u32);
    #[link_name = "llvm.nvvm.prmt"]
    fn byte_permute(a: u32, b: u32, choice: u32) -> u32;
}

/// A thread's part of 16 x 8 sums.
#[repr(C)]
struct Sums(i32, i32, i32, i32);

macro_rules! tile_products {
    ($($name:ident $link:literal),*) => {
        unsafe extern "unadjusted" {
            $(
                #[link_name = $link]
                fn $name(
                    a0: u32,
                    a1: u32,
                    a2: u32,
                    a3: u32,
                    b0: u32,
                    b1: u32,
                    c0: i32,
                    c1: i32,
                    c2: i32,
                    c3: i32,
                ) -> Sums;
            )*
        }
    };
}

tile_products!(
    multiply_signed "llvm.nvvm.mma.m16n8k32.row.col.s8",
    multiply_mixed "llvm.nvvm.mma.m16n8k32.row.col.s8.u8"
);

/// A thread of the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceThread;

impl Threads for DeviceThread {
    type Of<T: Copy> = T;
    type Memory = *mut u8;

    #[inline(always)]
    fn splat<T: Copy>(value: T) -> T {
        value
    }

    #[inline(always)]
    fn uniform(value: f32) -> f32 {
        value
    }

    #[inline(always)]
    fn lane() -> u32 {
        // SAFETY: a special register can be read anywhere.
        unsafe { nvptx::_thread_idx_x() as u32 & 31 }
    }

    #[inline(always)]
    fn map<A: Copy, B: Copy>(a: A, f: impl Fn(A) -> B) -> B {
        f(a)
    }

    #[inline(always)]
    fn zip<A: Copy, B: Copy, C: Copy>(a: A, b: B, f: impl Fn(A, B) -> C) -> C {
        f(a, b)
    }

    #[inline(always)]
    fn gather(table: &[f32; 32]) -> f32 {
        table[Self::lane() as usize]
    }

    #[inline(always)]
    fn shuffle_xor(value: u32, mask: u32) -> u32 {
        // SAFETY: bodies are converged at every exchange (module `threads`).
        unsafe { shuffle_butterfly(!0, value, mask, 31) }
    }

    #[inline(always)]
    fn shuffle(value: u32, from: u32) -> u32 {
        // SAFETY: bodies are converged at every exchange (module `threads`).
        unsafe { shuffle_index(!0, value, from, 31) }
    }

    #[inline(always)]
    fn ballot(value: bool) -> u32 {
        // SAFETY: bodies are converged at every exchange (module `threads`).
        unsafe { vote_ballot(!0, value) }
    }

    #[inline(always)]
    fn multiply<const SIGNED: bool>(a: [u32; 4], b: [u32; 2], sum: [i32; 4]) -> [i32; 4] {
        let product = if SIGNED { multiply_signed } else { multiply_mixed };
        // SAFETY: bodies are converged at every exchange (module `threads`).
        let sums = unsafe { product(a[0], a[1], a[2], a[3], b[0], b[1], sum[0], sum[1], sum[2], sum[3]) };
        [sums.0, sums.1, sums.2, sums.3]
    }

    #[inline(always)]
    fn sync() {
        // SAFETY: bodies are converged at every exchange (module `threads`).
        unsafe { warp_barrier(!0) }
    }

    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        core::intrinsics::fmaf32(a, b, c)
    }

    #[inline(always)]
    fn exp2(x: f32) -> f32 {
        let y: f32;
        // SAFETY: the instruction only computes on registers.
        unsafe {
            asm!("ex2.approx.ftz.f32 {y}, {x};", y = out(reg32) y, x = in(reg32) x, options(pure, nomem, nostack));
        }
        y
    }

    #[inline(always)]
    fn log2(x: f32) -> f32 {
        let y: f32;
        // SAFETY: the instruction only computes on registers.
        unsafe {
            asm!("lg2.approx.f32 {y}, {x};", y = out(reg32) y, x = in(reg32) x, options(pure, nomem, nostack));
        }
        y
    }

    #[inline(always)]
    fn permute(a: u32, b: u32, choice: u32) -> u32 {
        // SAFETY: the instruction only computes on registers.
        unsafe { byte_permute(a, b, choice) }
    }

    #[inline(always)]
    fn sqrt(x: f32) -> f32 {
        core::intrinsics::sqrtf32(x)
    }

    #[inline(always)]
    fn from_half(bits: u16) -> f32 {
        f16::from_bits(bits) as f32
    }

    #[inline(always)]
    fn to_half(x: f32) -> u16 {
        (x as f16).to_bits()
    }

    #[inline(always)]
    fn at(memory: *mut u8, bytes: u64) -> *mut u8 {
        memory.wrapping_add(bytes as usize)
    }

    #[inline(always)]
    fn prefetch(memory: *mut u8, offset: u32) {
        let place = memory.wrapping_add(offset as usize);
        // SAFETY: a prefetch is a hint, so no address is wrong.
        unsafe { asm!("prefetch.L2 [{place}];", place = in(reg64) place, options(readonly, nostack)) };
    }

    #[inline(always)]
    fn read(memory: *mut u8, offset: u32) -> u32 {
        // SAFETY: the launch passes buffers as large as the kernel's documentation says. The emulator checks
        // every access of the same bodies. This holds for all accesses below.
        unsafe { memory.add(offset as usize).cast::<u32>().read() }
    }

    #[inline(always)]
    fn load<const N: usize>(memory: *mut u8, offset: u32) -> [u32; N] {
        let mut words = [0; N];
        // SAFETY: the buffer is large enough, see `read`. Offsets are aligned as `Threads::load` requires.
        unsafe {
            let place = memory.add(offset as usize);
            if N.is_multiple_of(4) {
                for (i, four) in words.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    *four = place.cast::<u32x4>().add(i).read().to_array();
                }
            } else if N == 2 {
                words.copy_from_slice(&place.cast::<u32x2>().read().to_array());
            } else {
                for (i, word) in words.iter_mut().enumerate() {
                    *word = place.cast::<u32>().add(i).read();
                }
            }
        }
        words
    }

    #[inline(always)]
    fn load_u16(memory: *mut u8, offset: u32) -> u16 {
        // SAFETY: the buffer is large enough, see `read`.
        unsafe { memory.add(offset as usize).cast::<u16>().read() }
    }

    #[inline(always)]
    fn store<const N: usize>(memory: *mut u8, offset: u32, value: [u32; N], active: bool) {
        if active {
            // SAFETY: the buffer is large enough and offsets are aligned, see `load`.
            unsafe {
                let place = memory.add(offset as usize);
                if N.is_multiple_of(4) {
                    for (i, &four) in value.as_chunks::<4>().0.iter().enumerate() {
                        place.cast::<u32x4>().add(i).write(u32x4::from_array(four));
                    }
                } else {
                    for (i, &word) in value.iter().enumerate() {
                        place.cast::<u32>().add(i).write(word);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn store_u16(memory: *mut u8, offset: u32, value: u16, active: bool) {
        if active {
            // SAFETY: the buffer is large enough, see `read`.
            unsafe { memory.add(offset as usize).cast::<u16>().write(value) }
        }
    }
}
