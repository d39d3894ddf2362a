//! [`Threads`] through the crate `cuda_std`, for the back end of the Rust CUDA project (feature `rust-cuda`).
//!
//! This is a second implementation of [`Threads`], so the bodies are the same. `cuda_std` 0.2.2 provides
//! thread numbers and the warp's barrier. It has no shuffle, vote or matrix product. The back end's own
//! library defines a symbol for shuffles. The rest is assembly, which only compiles for a device.
//!
//! Do not use it by default: the committed PTX is built with rustc's own target. This file is type-checked on
//! the host, except for the assembly. It has not been compiled for a device. It is not known if that back end
//! keeps warps converged around assembly.

use crate::threads::Threads;
#[cfg(target_os = "cuda")]
use core::arch::asm;

/// A thread of the device.
#[derive(Clone, Copy, Debug)]
pub struct CudaStd;

/// A place in device memory.
#[derive(Clone, Copy, Debug)]
pub struct Place(*mut u8);

impl Place {
    /// The place at an address.
    ///
    /// # Safety
    /// The buffer from here on is as large as the kernel's documentation says. Nothing else uses it during
    /// the kernel.
    pub unsafe fn new(address: *mut u8) -> Self {
        Self(address)
    }

    fn far(self, bytes: u32) -> *mut u8 {
        self.0.wrapping_add(bytes as usize)
    }
}

/// The result of a shuffle: the value, and whether its source was in range.
#[repr(C)]
struct Shuffled {
    value: u32,
    in_range: u8,
}

/// Modes of a shuffle, by the back end's numbers.
const XOR: u32 = 2;
const INDEX: u32 = 3;

unsafe extern "C" {
    /// `shfl.sync` among the members `mask`. The library of the back end defines it.
    fn __nvvm_warp_shuffle(mask: u32, mode: u32, value: u32, with: u32, clamp: u32) -> Shuffled;
}

/// Words that are read and written together.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Four([u32; 4]);

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Two([u32; 2]);

/// Inline assembly with the result `$result`. On a CPU it has no instructions.
macro_rules! instructions {
    ($text:literal, $result:ident: $result_type:ty = $result_class:ident $(, $operand:ident: $class:ident)*) => {{
        #[cfg(target_os = "cuda")]
        {
            let $result: $result_type;
            // SAFETY: the instructions compute on and exchange registers. Bodies are converged at every
            // exchange (module `threads`).
            unsafe { asm!($text, $result = out($result_class) $result $(, $operand = in($class) $operand)*) };
            $result
        }
        #[cfg(not(target_os = "cuda"))]
        {
            $(let _ = $operand;)*
            off_device::<$result_type>()
        }
    }};
}

/// Replaces an instruction on the host, where this file is only type-checked.
#[cfg(not(target_os = "cuda"))]
fn off_device<T>() -> T {
    panic!("this implementation of the warp runs on a device alone")
}

fn shuffle(mode: u32, value: u32, with: u32) -> u32 {
    // SAFETY: bodies are converged at every exchange, so all 32 threads take part.
    unsafe { __nvvm_warp_shuffle(!0, mode, value, with, 31) }.value
}

impl Threads for CudaStd {
    type Of<T: Copy> = T;
    type Memory = Place;

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
        cuda_std::warp::lane_id()
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
        shuffle(XOR, value, mask)
    }

    #[inline(always)]
    fn shuffle(value: u32, from: u32) -> u32 {
        shuffle(INDEX, value, from)
    }

    #[inline(always)]
    fn ballot(value: bool) -> u32 {
        let bit = u32::from(value);
        instructions!(
            "{{ .reg .pred p; setp.ne.u32 p, {bit}, 0; vote.sync.ballot.b32 {votes}, p, 0xffffffff; }}",
            votes: u32 = reg32, bit: reg32
        )
    }

    #[inline(always)]
    fn multiply<const SIGNED: bool>(a: [u32; 4], b: [u32; 2], sum: [i32; 4]) -> [i32; 4] {
        #[cfg(target_os = "cuda")]
        {
            let mut out = sum;
            let ([a0, a1, a2, a3], [b0, b1]) = (a, b);
            let [c0, c1, c2, c3] = &mut out;
            macro_rules! product {
                ($factors:literal) => {
                    // SAFETY: bodies are converged at every product.
                    unsafe {
                        asm!(
                            concat!(
                                "mma.sync.aligned.m16n8k32.row.col.s32.", $factors, ".s32 ",
                                "{{{c0}, {c1}, {c2}, {c3}}}, {{{a0}, {a1}, {a2}, {a3}}}, {{{b0}, {b1}}}, ",
                                "{{{c0}, {c1}, {c2}, {c3}}};"
                            ),
                            c0 = inout(reg32) *c0, c1 = inout(reg32) *c1, c2 = inout(reg32) *c2, c3 = inout(reg32) *c3,
                            a0 = in(reg32) a0, a1 = in(reg32) a1, a2 = in(reg32) a2, a3 = in(reg32) a3,
                            b0 = in(reg32) b0, b1 = in(reg32) b1,
                        )
                    }
                };
            }
            if SIGNED {
                product!("s8.s8")
            } else {
                product!("s8.u8")
            }
            out
        }
        #[cfg(not(target_os = "cuda"))]
        {
            let _ = (a, b, sum);
            off_device()
        }
    }

    #[inline(always)]
    fn sync() {
        // SAFETY: bodies are converged at every barrier, so all 32 threads take part.
        unsafe { cuda_std::warp::sync_warp(!0) }
    }

    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        instructions!("fma.rn.f32 {y}, {a}, {b}, {c};", y: f32 = reg32, a: reg32, b: reg32, c: reg32)
    }

    #[inline(always)]
    fn exp2(x: f32) -> f32 {
        instructions!("ex2.approx.ftz.f32 {y}, {x};", y: f32 = reg32, x: reg32)
    }

    #[inline(always)]
    fn log2(x: f32) -> f32 {
        instructions!("lg2.approx.f32 {y}, {x};", y: f32 = reg32, x: reg32)
    }

    #[inline(always)]
    fn permute(a: u32, b: u32, choice: u32) -> u32 {
        instructions!("prmt.b32 {y}, {a}, {b}, {choice};", y: u32 = reg32, a: reg32, b: reg32, choice: reg32)
    }

    #[inline(always)]
    fn sqrt(x: f32) -> f32 {
        instructions!("sqrt.rn.f32 {y}, {x};", y: f32 = reg32, x: reg32)
    }

    #[inline(always)]
    fn from_half(bits: u16) -> f32 {
        instructions!("cvt.f32.f16 {y}, {bits};", y: f32 = reg32, bits: reg16)
    }

    #[inline(always)]
    fn to_half(x: f32) -> u16 {
        instructions!("cvt.rn.f16.f32 {y}, {x};", y: u16 = reg16, x: reg32)
    }

    #[inline(always)]
    fn at(memory: Place, bytes: u64) -> Place {
        Place(memory.0.wrapping_add(bytes as usize))
    }

    #[inline(always)]
    fn prefetch(memory: Place, offset: u32) {
        let place = memory.far(offset);
        #[cfg(target_os = "cuda")]
        // SAFETY: a prefetch is a hint, so no address is wrong.
        unsafe {
            asm!("prefetch.L2 [{place}];", place = in(reg64) place)
        };
        #[cfg(not(target_os = "cuda"))]
        let _ = place;
    }

    #[inline(always)]
    fn read(memory: Place, offset: u32) -> u32 {
        // SAFETY: the caller of `Place::new` vouches for the buffer. The emulator checks every access of the
        // same bodies. This holds for all accesses below.
        unsafe { memory.far(offset).cast::<u32>().read() }
    }

    #[inline(always)]
    fn load<const N: usize>(memory: Place, offset: u32) -> [u32; N] {
        let mut words = [0; N];
        // SAFETY: the buffer is large enough, see `read`. Offsets are aligned as `Threads::load` requires.
        unsafe {
            let place = memory.far(offset);
            if N.is_multiple_of(4) {
                for (i, four) in words.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    *four = place.cast::<Four>().add(i).read().0;
                }
            } else if N == 2 {
                words.copy_from_slice(&place.cast::<Two>().read().0);
            } else {
                for (i, word) in words.iter_mut().enumerate() {
                    *word = place.cast::<u32>().add(i).read();
                }
            }
        }
        words
    }

    #[inline(always)]
    fn load_u16(memory: Place, offset: u32) -> u16 {
        // SAFETY: the buffer is large enough, see `read`.
        unsafe { memory.far(offset).cast::<u16>().read() }
    }

    #[inline(always)]
    fn store<const N: usize>(memory: Place, offset: u32, value: [u32; N], active: bool) {
        if active {
            // SAFETY: the buffer is large enough and offsets are aligned, see `load`.
            unsafe {
                let place = memory.far(offset);
                if N.is_multiple_of(4) {
                    for (i, &four) in value.as_chunks::<4>().0.iter().enumerate() {
                        place.cast::<Four>().add(i).write(Four(four));
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
    fn store_u16(memory: Place, offset: u32, value: u16, active: bool) {
        if active {
            // SAFETY: the buffer is large enough, see `read`.
            unsafe { memory.far(offset).cast::<u16>().write(value) }
        }
    }
}
