//! The loops of [`super::dsp`], in assembly: the compiler spills half of the registers that they need.
//!
//! Each loop saves the registers that it uses beyond those it names. The compiler would not give up three of
//! them. A butterfly is `y = a + b` and `y' = a - b`. It runs as an addition in place and a subtraction of
//! twice b, and so needs no third register.

use core::arch::asm;

/// The arguments of the quantising kernels, which load them as a list of registers.
#[repr(C)]
pub(super) struct LoopTask {
    pub(super) y: *const i32,
    pub(super) codes: *mut u8,
    pub(super) bins: *const u32,
    pub(super) levels: *const i8,
    pub(super) shift: u32,
    pub(super) reciprocal: i32,
    pub(super) end: *const i32,
}

/// Applies the signs, sums the squares, and runs the strides 4, 2 and 1. Returns the sum of squares.
///
/// `SMUAD` and `SMUSD` multiply by the signs and do the butterfly of stride 2 at once. It takes 48
/// instructions for 8 coordinates.
///
/// # Safety
/// The processor has the DSP extension. Each pointer points to `n` elements, and `n` is a positive
/// multiple of 8.
#[inline(never)]
pub(super) unsafe fn load(x: *const i16, signs: *const i8, y: *mut i32, n: usize) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: it only accesses the memory that the caller promises; all other registers are restored.
    unsafe {
        asm!(
            "push {{r4-r11, lr}}",
            "add r3, r1, r3",
            "push {{r3}}",
            "mov r10, #0",
            "mov r11, #0",
            "2:",
            "ldr r3, [r0], #4",
            "ldr r4, [r0], #4",
            "ldr r5, [r1], #4",
            "smlald r10, r11, r3, r3",
            "smlald r10, r11, r4, r4",
            "sxtb16 r6, r5",
            "sxtb16 r5, r5, ror #8",
            "pkhbt r7, r3, r4, lsl #16",
            "pkhtb r8, r4, r3, asr #16",
            "smuad r3, r7, r6",
            "smuad r4, r8, r5",
            "smusd r6, r7, r6",
            "smusd r7, r8, r5",
            "add r3, r3, r4",
            "sub r4, r3, r4, lsl #1",
            "add r6, r6, r7",
            "sub r7, r6, r7, lsl #1",
            "ldr r5, [r0], #4",
            "ldr r8, [r0], #4",
            "ldr r9, [r1], #4",
            "smlald r10, r11, r5, r5",
            "smlald r10, r11, r8, r8",
            "sxtb16 r12, r9",
            "sxtb16 r9, r9, ror #8",
            "pkhbt lr, r5, r8, lsl #16",
            "pkhtb r8, r8, r5, asr #16",
            "smuad r5, lr, r12",
            "smusd r12, lr, r12",
            "smuad lr, r8, r9",
            "smusd r8, r8, r9",
            "add r5, r5, lr",
            "sub lr, r5, lr, lsl #1",
            "add r12, r12, r8",
            "sub r8, r12, r8, lsl #1",
            "add r3, r3, r5",
            "sub r5, r3, r5, lsl #1",
            "add r4, r4, lr",
            "sub lr, r4, lr, lsl #1",
            "add r6, r6, r12",
            "sub r12, r6, r12, lsl #1",
            "add r7, r7, r8",
            "sub r8, r7, r8, lsl #1",
            "stm r2!, {{r3, r4, r6, r7}}",
            "strd r5, lr, [r2], #8",
            "strd r12, r8, [r2], #8",
            "ldr r9, [sp]",
            "cmp r1, r9",
            "bne 2b",
            "mov r0, r10",
            "mov r1, r11",
            "add sp, sp, #4",
            "pop {{r4-r11, lr}}",
            inout("r0") x => low, inout("r1") signs => high, inout("r2") y => _, inout("r3") n => _, out("r12") _,
        )
    };
    u64::from(high) << 32 | u64::from(low)
}

/// The strides `order / 2` and `order / 4` in `count` blocks of `order` values, two columns at a time. It
/// takes 26 instructions for 8 coordinates.
///
/// # Safety
/// `y` points to `order * count` values; `order` is a multiple of 8.
#[inline(never)]
pub(super) unsafe fn pass_four(y: *mut i32, order: usize, count: usize) {
    // SAFETY: it only accesses the memory that the caller promises; all other registers are restored.
    unsafe {
        asm!(
            "push {{r4-r11, lr}}",
            "push {{r1}}",
            "mov r12, r2",
            "2:",
            "ldr lr, [sp]",
            "add r1, r0, lr",
            "add r2, r1, lr",
            "add r3, r2, lr",
            "lsr lr, lr, #3",
            "3:",
            "ldrd r4, r5, [r0]",
            "ldrd r6, r7, [r1]",
            "ldrd r8, r9, [r2]",
            "ldrd r10, r11, [r3]",
            "add r4, r4, r8",
            "sub r8, r4, r8, lsl #1",
            "add r6, r6, r10",
            "sub r10, r6, r10, lsl #1",
            "add r4, r4, r6",
            "sub r6, r4, r6, lsl #1",
            "add r8, r8, r10",
            "sub r10, r8, r10, lsl #1",
            "add r5, r5, r9",
            "sub r9, r5, r9, lsl #1",
            "add r7, r7, r11",
            "sub r11, r7, r11, lsl #1",
            "add r5, r5, r7",
            "sub r7, r5, r7, lsl #1",
            "add r9, r9, r11",
            "sub r11, r9, r11, lsl #1",
            "strd r4, r5, [r0], #8",
            "strd r6, r7, [r1], #8",
            "strd r8, r9, [r2], #8",
            "strd r10, r11, [r3], #8",
            "subs lr, lr, #1",
            "bne 3b",
            "mov r0, r3",
            "subs r12, r12, #1",
            "bne 2b",
            "add sp, sp, #4",
            "pop {{r4-r11, lr}}",
            inout("r0") y => _, inout("r1") order => _, inout("r2") count => _, out("r3") _, out("r12") _,
        )
    };
}

/// One coordinate; its code ends up in its own register.
macro_rules! code {
    ($y:literal, $bin_bits:literal, $bits:literal) => {
        concat!(
            "asr r12, ",
            $y,
            ", r4\n",
            "mla ",
            $y,
            ", r12, r5, r6\n",
            "lsr lr, ",
            $y,
            ", #32-",
            $bin_bits,
            "\n",
            "ldr lr, [r2, lr, lsl #2]\n",
            "add ",
            $y,
            ", ",
            $y,
            ", lr\n",
            "lsr ",
            $y,
            ", ",
            $y,
            ", #32-",
            $bits,
            "\n",
            "ldrsb lr, [r3, ",
            $y,
            "]\n",
            "mla r7, r12, lr, r7\n",
        )
    };
}

/// Four coordinates, and the store of their codes.
macro_rules! four_codes {
    ($bin_bits:literal, $bits:literal, $store:literal) => {
        concat!(
            "ldm r0!, {{r8-r11}}\n",
            code!("r8", $bin_bits, $bits),
            code!("r9", $bin_bits, $bits),
            code!("r10", $bin_bits, $bits),
            code!("r11", $bin_bits, $bits),
            "orr r8, r8, r9, lsl #",
            $bits,
            "\n",
            "orr r8, r8, r10, lsl #2*",
            $bits,
            "\n",
            "orr r8, r8, r11, lsl #3*",
            $bits,
            "\n",
            $store,
            "\n",
        )
    };
}

macro_rules! quantise {
    ($($name:ident $bin_bits:literal $bits:literal $store:literal;)*) => {$(
        /// Writes the codes of all y; returns the sum of shifted y times level. It takes 77 instructions for
        /// 8 coordinates.
        ///
        /// # Safety
        /// `y` to `end` is a positive multiple of 8 values. There is room for their codes, a bin for each
        /// value of the upper bits, and a level for each code. The shift is below 32.
        #[inline(never)]
        pub(super) unsafe fn $name(task: *const LoopTask) -> i32 {
            let cross;
            // SAFETY: it only accesses the memory that the caller promises; all other registers are restored.
            unsafe { asm!(
                "push {{r4-r11, lr}}",
                "ldm r0, {{r0-r6}}",
                "push {{r6}}",
                "mov r6, #0x80000000",
                "mov r7, #0",
                "2:",
                four_codes!($bin_bits, $bits, $store),
                four_codes!($bin_bits, $bits, $store),
                "ldr lr, [sp]",
                "cmp r0, lr",
                "bne 2b",
                "mov r0, r7",
                "add sp, sp, #4",
                "pop {{r4-r11, lr}}",
                inout("r0") task => cross, out("r1") _, out("r2") _, out("r3") _, out("r12") _,
            ) };
            cross
        }
    )*};
}

quantise! {
    quantise_4_64 6 4 "strh r8, [r1], #2";
    quantise_4_128 7 4 "strh r8, [r1], #2";
    quantise_4_256 8 4 "strh r8, [r1], #2";
    quantise_2_16 4 2 "strb r8, [r1], #1";
    quantise_2_32 5 2 "strb r8, [r1], #1";
    quantise_2_64 6 2 "strb r8, [r1], #1";
}
