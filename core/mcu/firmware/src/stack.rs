//! Measures the peak stack of a closure. It paints the free stack, and afterwards searches for the deepest
//! word that changed. The result is an upper bound, because it includes the frame of the probe's callee.

use core::arch::asm;
use core::ptr;

const PAINT: u32 = 0x5afe_57ac;

#[inline(always)]
fn pointer() -> *mut u32 {
    let sp: *mut u32;
    // SAFETY: the assembly only reads the stack pointer.
    unsafe {
        #[cfg(target_arch = "arm")]
        asm!("mov {0}, sp", out(reg) sp, options(nomem, nostack, preserves_flags));
        #[cfg(target_arch = "riscv32")]
        asm!("mv {0}, sp", out(reg) sp, options(nomem, nostack, preserves_flags));
    }
    sp
}

/// Bytes of stack that `f` used; at most `PAINTED`. The smallest machine has 16 KiB of RAM, and the closures
/// of the codec use far less stack than 4 KiB.
#[inline(never)]
pub fn peak<const PAINTED: usize>(f: impl FnOnce()) -> usize {
    // Painting starts below the stack pointer, with some room for this function's own calls.
    let top = pointer().wrapping_byte_sub(16);
    let words = PAINTED / 4;
    for i in 1..=words {
        // SAFETY: the stack grows down into unused RAM, which is larger than `PAINTED`. Nothing is stored
        // below the stack pointer, and interrupts are not in use.
        unsafe { ptr::write_volatile(top.wrapping_sub(i), PAINT) };
    }
    f();
    let mut untouched = 0;
    for i in (1..=words).rev() {
        // SAFETY: the words below the stack pointer are unused RAM, as for the writes above.
        if unsafe { ptr::read_volatile(top.wrapping_sub(i)) } != PAINT {
            break;
        }
        untouched += 1;
    }
    (words - untouched) * 4 + 16
}
