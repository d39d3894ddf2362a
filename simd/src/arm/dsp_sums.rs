//! Sums of products, in assembly for the reasons of [`super::dsp_loops`]: attention over bytes, and rows of weights.

use core::arch::asm;
use core::ops::Range;

/// The dot of a query, reversed composites, with signed bytes. 15 instructions for 8 coordinates.
///
/// # Safety
/// DSP extension; a positive multiple of 8 `bytes`, a word of the query for each two.
#[inline(never)]
pub(super) unsafe fn dot(query: *const i32, bytes: Range<*const u8>) -> i32 {
    let dot;
    // SAFETY: reads what the caller promises; all other registers are restored.
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

/// Adds `weight`, of 16 bits, times signed bytes to sums. 17 instructions for 8 coordinates.
///
/// # Safety
/// DSP extension; a positive multiple of 8 `bytes`, a sum for each.
#[inline(never)]
pub(super) unsafe fn add_bytes(weight: i32, bytes: Range<*const u8>, sums: *mut i32) {
    // SAFETY: reads and writes what the caller promises; all other registers are restored.
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

/// Eight columns of two rows: of each row two words, each with columns 0 and 1 as the bytes 0 and 2 (`SXTB16`, `SMLAD`) and
/// columns 2 and 3 as halves (`SMLALD`).
macro_rules! eight_columns {
    () => {
        concat!(
            "ldm r0!, {{r10, r11, r12, lr}}\n",
            "ldm r1!, {{r8, r9}}\n",
            "smlald r4, r5, r10, r9\n",
            "sxtb16 r10, r10\n",
            "smlad r2, r10, r8, r2\n",
            "smlald r6, r7, r11, r9\n",
            "sxtb16 r11, r11\n",
            "smlad r3, r11, r8, r3\n",
            "ldm r1!, {{r8, r9}}\n",
            "smlald r4, r5, r12, r9\n",
            "sxtb16 r12, r12\n",
            "smlad r2, r12, r8, r2\n",
            "smlald r6, r7, lr, r9\n",
            "sxtb16 lr, lr\n",
            "smlad r3, lr, r8, r3\n",
        )
    };
}

/// What [`products`] works on; it moves on as rows are done.
#[repr(C)]
pub(super) struct Task {
    pub(super) weights: *const u8,
    pub(super) x: *const i16,
    pub(super) x_end: *const i16,
    pub(super) scales: *const u8,
    pub(super) shift: u32,
    pub(super) out: *mut i32,
    pub(super) out_end: *mut i32,
}

/// Products of pairs of rows: 63 instructions for 32 columns of both, and 42 a pair.
///
/// # Safety
/// DSP extension; weights and x aligned to words; a positive multiple of 32 and at most 992 columns; an even number of rows, with
/// as many bytes of weights as columns and two of scales each; the shift 1 to 31.
#[inline(never)]
pub(super) unsafe fn products(task: *mut Task) {
    // SAFETY: reads and writes what the caller promises; all other registers are restored.
    unsafe {
        asm!(
            "push {{r4-r11, lr}}",
            "ldr r1, [r0, #8]",
            "push {{r0, r1}}",
            "ldr r0, [r0]",
            // One pair of rows: sums of bytes in r2 and r3, of halves in r4, r5 and r6, r7.
            "2:",
            "ldr r8, [sp]",
            "ldr r1, [r8, #4]",
            "mov r2, #0",
            "mov r3, #0",
            "mov r4, #0",
            "mov r5, #0",
            "mov r6, #0",
            "mov r7, #0",
            "3:",
            eight_columns!(),
            eight_columns!(),
            eight_columns!(),
            eight_columns!(),
            "ldr r8, [sp, #4]",
            "cmp r1, r8",
            "bne 3b",
            "ldr r8, [sp]",
            "adds r4, r4, r2, lsl #8",
            "adc r5, r5, r2, asr #24",
            "adds r6, r6, r3, lsl #8",
            "adc r7, r7, r3, asr #24",
            "ldr r9, [r8, #16]",
            "rsb r10, r9, #32",
            "lsr r4, r4, r9",
            "lsl r5, r5, r10",
            "orr r4, r4, r5",
            "lsr r6, r6, r9",
            "lsl r7, r7, r10",
            "orr r6, r6, r7",
            "ldr r9, [r8, #12]",
            "ldrh r2, [r9], #2",
            "ldrh r3, [r9], #2",
            "str r9, [r8, #12]",
            "mov r10, #0x8000",
            "mov r12, #0",
            "smlal r10, r12, r4, r2",
            "lsr r10, r10, #16",
            "orr r10, r10, r12, lsl #16",
            "mov r11, #0x8000",
            "mov r12, #0",
            "smlal r11, r12, r6, r3",
            "lsr r11, r11, #16",
            "orr r11, r11, r12, lsl #16",
            "ldr r9, [r8, #20]",
            "stm r9!, {{r10, r11}}",
            "str r9, [r8, #20]",
            "ldr r12, [r8, #24]",
            "cmp r9, r12",
            "bne 2b",
            "add sp, sp, #8",
            "pop {{r4-r11, lr}}",
            inout("r0") task => _, out("r1") _, out("r2") _, out("r3") _, out("r12") _,
        )
    };
}
