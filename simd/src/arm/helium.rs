//! The token of Helium, the vector extension of Cortex-M52, M55 and M85: products of weights on vectors of
//! 128 bits.
//!
//! The compiler has neither intrinsics nor registers for Helium. The loops are therefore separate assembly
//! functions, which name their processor to the assembler. Everything else is left to the portable loops.
//! Built for such a processor (`-C target-cpu=cortex-m55`) they are vectorised. Attention over `i8` then
//! takes 31 % less time than with the loops of [`super::Dsp`].

use super::products::{self, Loops, ProductTask};
use core::arch::global_asm;
use tqkv_core::fixed::{Kernels, Products};

/// Proof that the processor has the integer part of Helium.
#[derive(Clone, Copy, Debug)]
pub struct Helium(());

impl Helium {
    /// The token, without a check.
    ///
    /// # Safety
    /// The processor has the integer vector extension, and its floating-point unit is switched on
    /// (`cortex-m-rt` does so for targets that end in `eabihf`).
    pub const unsafe fn assume_supported() -> Self {
        Self(())
    }
}

const LOOPS: Loops = Loops { eight: tqkv_helium_eight, most_columns: 8192, four: tqkv_helium_four };

impl Kernels for Helium {
    #[inline(always)]
    fn products(self, task: Products<'_>, out: &mut [i32]) -> Option<()> {
        // SAFETY: the token proves Helium.
        unsafe { products::products(&LOOPS, task, out) }
    }
}

unsafe extern "C" {
    fn tqkv_helium_eight(task: *mut ProductTask);
    fn tqkv_helium_four(task: *mut ProductTask);
}

// Sixteen columns of two rows. `VLD2` splits the words of the rows. It also splits those of x: columns 0 and
// 1 of four meet signed bytes times 256 (`VSHLLB`), columns 2 and 3 meet halves. It takes 21 instructions for
// 32 columns of both rows, and 16 per pair.
global_asm!(
    ".cpu cortex-m55",
    ".pushsection .text.tqkv_helium_eight, \"ax\", %progbits",
    ".balign 4",
    ".global tqkv_helium_eight",
    ".type tqkv_helium_eight, %function",
    ".thumb_func",
    "tqkv_helium_eight:",
    "push {{r4-r11, lr}}",
    "ldm r0, {{r0, r2, r3, r8, r9, r10, r12}}",
    "sub r3, r3, r2",
    "lsr r3, r3, #6",
    "2:",
    "mov r1, r2",
    "mov r4, #0",
    "mov r5, #0",
    "mov r6, #0",
    "mov r7, #0",
    "dls lr, r3",
    "3:",
    ".rept 2",
    "vld20.32 {{q0, q1}}, [r0]",
    "vld21.32 {{q0, q1}}, [r0]!",
    "vld20.32 {{q2, q3}}, [r1]",
    "vld21.32 {{q2, q3}}, [r1]!",
    "vmlaldava.s16 r4, r5, q0, q3",
    "vmlaldava.s16 r6, r7, q1, q3",
    "vshllb.s8 q0, q0, #8",
    "vshllb.s8 q1, q1, #8",
    "vmlaldava.s16 r4, r5, q0, q2",
    "vmlaldava.s16 r6, r7, q1, q2",
    ".endr",
    "le lr, 3b",
    "asrl r4, r5, r9",
    "asrl r6, r7, r9",
    "ldrh r5, [r8], #2",
    "ldrh r7, [r8], #2",
    "smull r4, r5, r4, r5",
    "smull r6, r7, r6, r7",
    "srshrl r4, r5, #16",
    "srshrl r6, r7, #16",
    "strd r4, r6, [r10], #8",
    "cmp r10, r12",
    "bne 2b",
    "pop {{r4-r11, pc}}",
    ".popsection",
);

// Thirty-two columns of two rows. `VLD4` splits x into the parts that meet each nibble of the halves of a
// row. It takes 35 instructions for 32 columns of both rows, and 20 per pair.
global_asm!(
    ".cpu cortex-m55",
    ".macro tqkv_nibbles sum",
    "vand q5, q4, q7",
    "vmladava.s16 \\sum, q5, q0",
    "vshr.u16 q5, q4, #4",
    "vand q5, q5, q7",
    "vmladava.s16 \\sum, q5, q1",
    "vshr.u16 q5, q4, #8",
    "vand q5, q5, q7",
    "vmladava.s16 \\sum, q5, q2",
    "vshr.u16 q5, q4, #12",
    "vmladava.s16 \\sum, q5, q3",
    ".endm",
    ".pushsection .text.tqkv_helium_four, \"ax\", %progbits",
    ".balign 4",
    ".global tqkv_helium_four",
    ".type tqkv_helium_four, %function",
    ".thumb_func",
    "tqkv_helium_four:",
    "push {{r4-r11, lr}}",
    "vpush {{d8-d15}}",
    // The task, and the scales of the row; registers are reloaded from there.
    "push {{r0, r1}}",
    "ldr r1, [r0, #12]",
    "str r1, [sp, #4]",
    "ldr r12, [r0]",
    "vmov.i16 q7, #0xf",
    // One pair of rows: scales of groups in r0, codes in r12, x in r1, offsets in r2, sums in r4 to r7.
    "2:",
    "ldr r8, [sp]",
    "ldrd r1, r3, [r8, #4]",
    "sub r3, r3, r1",
    "lsr r3, r3, #6",
    "ldrd r2, r9, [r8, #28]",
    "mov r0, r12",
    "add r12, r12, r9",
    "mov r4, #0",
    "mov r5, #0",
    "mov r6, #0",
    "mov r7, #0",
    "dls lr, r3",
    "3:",
    "vld40.32 {{q0, q1, q2, q3}}, [r1]",
    "vld41.32 {{q0, q1, q2, q3}}, [r1]",
    "vld42.32 {{q0, q1, q2, q3}}, [r1]",
    "vld43.32 {{q0, q1, q2, q3}}, [r1]!",
    "ldr r10, [r2], #4",
    "mov r8, r10",
    "vldrw.u32 q4, [r12], #16",
    "tqkv_nibbles r8",
    "vldrw.u32 q4, [r12], #16",
    "tqkv_nibbles r10",
    "ldrb r9, [r0], #1",
    "ldrb r11, [r0], #1",
    "smlal r4, r5, r8, r9",
    "smlal r6, r7, r10, r11",
    "le lr, 3b",
    "ldrd r8, r9, [sp]",
    "ldr r10, [r8, #16]",
    "asrl r4, r5, r10",
    "asrl r6, r7, r10",
    "ldrh r5, [r9], #2",
    "ldrh r7, [r9], #2",
    "str r9, [sp, #4]",
    "smull r4, r5, r4, r5",
    "smull r6, r7, r6, r7",
    "srshrl r4, r5, #16",
    "srshrl r6, r7, #16",
    "ldr r10, [r8, #20]",
    "strd r4, r6, [r10], #8",
    "str r10, [r8, #20]",
    "ldr r9, [r8, #24]",
    "cmp r10, r9",
    "bne 2b",
    "pop {{r0, r1}}",
    "vpop {{d8-d15}}",
    "pop {{r4-r11, pc}}",
    ".popsection",
);
