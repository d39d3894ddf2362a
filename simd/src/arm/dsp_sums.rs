//! Sums of products over bytes for attention, in assembly for the reasons of [`super::dsp_loops`].

use core::arch::asm;
use core::ops::Range;

/// The dot of a query (reversed composites) with signed bytes. It takes 15 instructions for 8 coordinates.
///
/// # Safety
/// The processor has the DSP extension. `bytes` is a positive multiple of 8, and the query has one word per
/// two bytes.
#[inline(never)]
pub(super) unsafe fn dot(query: *const i32, bytes: Range<*const u8>) -> i32 {
    let dot;
    // SAFETY: it only reads the memory that the caller promises; all other registers are restored.
    unsafe {
        asm!(
            "push {{r4-r9, lr}}",
            "mov r12, #0",
            "2:",
            "ldm r0!, {{r3, r4, r5, r6}}",
            "ldr r7, [r1], #4",
            "ldr r8, [r1], #4",
            "sxtb16 r9, r7",
            "sxtb16 r7, r7, ror #8",
            "pkhtb lr, r4, r3, asr #16",
            "pkhbt r3, r3, r4, lsl #16",
            "smlad r12, r9, lr, r12",
            "smlad r12, r7, r3, r12",
            "sxtb16 r9, r8",
            "sxtb16 r8, r8, ror #8",
            "pkhtb lr, r6, r5, asr #16",
            "pkhbt r5, r5, r6, lsl #16",
            "smlad r12, r9, lr, r12",
            "smlad r12, r8, r5, r12",
            "cmp r1, r2",
            "bne 2b",
            "mov r0, r12",
            "pop {{r4-r9, lr}}",
            inout("r0") query => dot, inout("r1") bytes.start => _, inout("r2") bytes.end => _, out("r3") _, out("r12") _,
        )
    };
    dot
}

/// Adds `weight`, of 16 bits, times signed bytes to sums. It takes 17 instructions for 8 coordinates.
///
/// # Safety
/// The processor has the DSP extension. `bytes` is a positive multiple of 8, and there is one sum per byte.
#[inline(never)]
pub(super) unsafe fn add_bytes(weight: i32, bytes: Range<*const u8>, sums: *mut i32) {
    // SAFETY: it only accesses the memory that the caller promises; all other registers are restored.
    unsafe {
        asm!(
            "push {{r4-r11, lr}}",
            "2:",
            "ldm r3, {{r4-r11}}",
            "ldr r12, [r1], #4",
            "sxtb16 lr, r12",
            "sxtb16 r12, r12, ror #8",
            "smlabb r4, lr, r0, r4",
            "smlabb r5, r12, r0, r5",
            "smlatb r6, lr, r0, r6",
            "smlatb r7, r12, r0, r7",
            "ldr r12, [r1], #4",
            "sxtb16 lr, r12",
            "sxtb16 r12, r12, ror #8",
            "smlabb r8, lr, r0, r8",
            "smlabb r9, r12, r0, r9",
            "smlatb r10, lr, r0, r10",
            "smlatb r11, r12, r0, r11",
            "stm r3!, {{r4-r11}}",
            "cmp r1, r2",
            "bne 2b",
            "pop {{r4-r11, lr}}",
            inout("r0") weight => _, inout("r1") bytes.start => _, inout("r2") bytes.end => _, inout("r3") sums => _, out("r12") _,
        )
    };
}
