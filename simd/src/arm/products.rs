//! Products of rows of weights with a vector, in assembly for the reasons of [`super::dsp_loops`].
//!
//! `core/mcu/lm/src/matrix.rs` describes the layout of rows.

use core::arch::asm;
use tqkv_core::fixed::Products;

/// Number of columns for whose groups the offsets of 4-bit weights have room.
const MOST_COLUMNS: usize = 2048;

/// The state of the loops, which advances row by row.
#[repr(C)]
pub(super) struct ProductTask {
    weights: *const u8,
    x: *const i16,
    x_end: *const i16,
    /// Two bytes per row.
    scales: *const u8,
    shift: u32,
    out: *mut i32,
    out_end: *mut i32,
    /// With 4 bits: for each group the sum of -8 times its x. `group_bytes` is the size of the scales of two
    /// rows' groups.
    offsets: *const i32,
    group_bytes: usize,
}

/// The loops of one processor.
pub(super) struct Loops {
    /// Products with 8-bit weights, for at most `most_columns` columns.
    pub(super) eight: unsafe extern "C" fn(*mut ProductTask),
    pub(super) most_columns: usize,
    /// Products with 4-bit weights.
    pub(super) four: unsafe extern "C" fn(*mut ProductTask),
}

/// The loops of the DSP extension. More columns could overflow 32-bit sums.
pub(super) const DSP: Loops = Loops { eight, most_columns: 992, four };

/// Runs the loops of a processor if they support the task.
///
/// # Safety
/// The processor supports the loops.
#[inline(always)]
pub(super) unsafe fn products(loops: &Loops, products: Products<'_>, out: &mut [i32]) -> Option<()> {
    let Products { bits, weights, scales, x, shift } = products;
    let (rows, columns, groups) = (out.len(), x.len(), x.len() / 32);
    let (group_bytes, run, most) = match bits {
        8 => (0, loops.eight, loops.most_columns),
        4 => ((2 * groups).next_multiple_of(4), loops.four, MOST_COLUMNS),
        _ => return None,
    };
    let aligned = weights.as_ptr().cast::<u32>().is_aligned() && x.as_ptr().cast::<u32>().is_aligned();
    if !aligned
        || !columns.is_multiple_of(32)
        || !(32..=most).contains(&columns)
        || rows == 0
        || !rows.is_multiple_of(2)
        || scales.len() != 2 * rows
        || weights.len() != rows / 2 * (group_bytes + columns * usize::from(bits) / 4)
        || !(1..32).contains(&shift)
    {
        return None;
    }
    let (ends, outs) = (x.as_ptr_range(), out.as_mut_ptr_range());
    let mut task = ProductTask {
        weights: weights.as_ptr(),
        x: ends.start,
        x_end: ends.end,
        scales: scales.as_ptr(),
        shift,
        out: outs.start,
        out_end: outs.end,
        offsets: core::ptr::null(),
        group_bytes,
    };
    if bits == 8 {
        // SAFETY: the caller proves the processor. The pointers are aligned and cover whole pairs of rows and
        // whole groups of columns, with one scale and one result per row.
        unsafe { run(&mut task) };
    } else {
        let mut offsets = [0; MOST_COLUMNS / 32];
        for (offset, x) in offsets.iter_mut().zip(x.as_chunks::<32>().0) {
            *offset = -8 * x.iter().map(|&x| i32::from(x)).sum::<i32>();
        }
        task.offsets = offsets.as_ptr();
        // SAFETY: as above, and there is one offset per group.
        unsafe { run(&mut task) };
    }
    Some(())
}

/// Eight columns of two rows. A row has two words of four columns. Columns 0 and 1 are the bytes 0 and 2 of a
/// word (`SXTB16`, `SMLAD`), and columns 2 and 3 are its halves (`SMLALD`).
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

/// Takes two shifted sums in the registers `a` and `b`, multiplies them by the scales of their rows, rounds
/// and stores them. Ends the loop over rows, with the task in `r8`.
macro_rules! two_rows {
    ($a:literal, $b:literal) => {
        concat!(
            "ldr r9, [r8, #12]\n",
            "ldrh r2, [r9], #2\n",
            "ldrh r3, [r9], #2\n",
            "str r9, [r8, #12]\n",
            "mov r5, #0x8000\n",
            "mov r7, #0\n",
            "smlal r5, r7, ",
            $a,
            ", r2\n",
            "lsr r5, r5, #16\n",
            "orr r5, r5, r7, lsl #16\n",
            "mov r11, #0x8000\n",
            "mov r7, #0\n",
            "smlal r11, r7, ",
            $b,
            ", r3\n",
            "lsr r11, r11, #16\n",
            "orr r11, r11, r7, lsl #16\n",
            "ldr r9, [r8, #20]\n",
            "stm r9!, {{r5, r11}}\n",
            "str r9, [r8, #20]\n",
            "ldr r12, [r8, #24]\n",
            "cmp r9, r12\n",
            "bne 2b\n",
        )
    };
}

/// Products of pairs of rows of 8-bit weights: 63 instructions for 32 columns of both, and 42 per pair.
///
/// # Safety
/// The processor has the DSP extension. The [`ProductTask`] has 8 bits and at most 992 columns, and is aligned
/// to words.
#[inline(never)]
pub(super) unsafe extern "C" fn eight(task: *mut ProductTask) {
    // SAFETY: it only accesses the memory that the caller promises; all other registers are restored.
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
            two_rows!("r4", "r6"),
            "add sp, sp, #8",
            "pop {{r4-r11, lr}}",
            inout("r0") task => _, out("r1") _, out("r2") _, out("r3") _, out("r12") _,
        )
    };
}

/// Eight columns of two rows: takes a nibble of each half of the words `r7` and `r8`, and two words of x at a
/// time.
macro_rules! eight_nibbles {
    ($step:literal) => {
        concat!(
            "ldr r8, [r0, #16]\n",
            "ldr r7, [r0], #",
            $step,
            "\n",
            "ldrd r5, r6, [r1], #8\n",
            "and r9, r2, r7\n",
            "smlad r3, r9, r5, r3\n",
            "and r9, r2, r8\n",
            "smlad r4, r9, r5, r4\n",
            "and r9, r2, r7, lsr #4\n",
            "smlad r3, r9, r6, r3\n",
            "and r9, r2, r8, lsr #4\n",
            "smlad r4, r9, r6, r4\n",
            "ldrd r5, r6, [r1], #8\n",
            "and r9, r2, r7, lsr #8\n",
            "smlad r3, r9, r5, r3\n",
            "and r9, r2, r8, lsr #8\n",
            "smlad r4, r9, r5, r4\n",
            "and r9, r2, r7, lsr #12\n",
            "smlad r3, r9, r6, r3\n",
            "and r9, r2, r8, lsr #12\n",
            "smlad r4, r9, r6, r4\n",
        )
    };
}

/// Products of pairs of rows of 4-bit weights: 93 instructions for 32 columns of both, and 44 per pair.
///
/// # Safety
/// The processor has the DSP extension. The [`ProductTask`] has 4 bits and is aligned to words.
#[inline(never)]
pub(super) unsafe extern "C" fn four(task: *mut ProductTask) {
    // SAFETY: it only accesses the memory that the caller promises; all other registers are restored.
    unsafe {
        asm!(
            "push {{r4-r11, lr}}",
            // The task, the end of x, the scales and the offset of the group.
            "ldr r1, [r0, #8]",
            "sub sp, sp, #16",
            "strd r0, r1, [sp]",
            "ldr r0, [r0]",
            // One pair of rows: sums of groups in r3 and r4, of rows in r10, r11 and r12, lr.
            "2:",
            "ldr r8, [sp]",
            "ldr r1, [r8, #4]",
            "ldrd r6, r7, [r8, #28]",
            "strd r0, r6, [sp, #8]",
            "add r0, r0, r7",
            "mov r2, #0x000f000f",
            "mov r10, #0",
            "mov r11, #0",
            "mov r12, #0",
            "mov lr, #0",
            "3:",
            "ldr r9, [sp, #12]",
            "ldr r3, [r9], #4",
            "str r9, [sp, #12]",
            "mov r4, r3",
            eight_nibbles!("4"),
            eight_nibbles!("4"),
            eight_nibbles!("4"),
            eight_nibbles!("20"),
            "ldr r9, [sp, #8]",
            "ldrb r5, [r9], #1",
            "ldrb r6, [r9], #1",
            "str r9, [sp, #8]",
            "smlal r10, r11, r3, r5",
            "smlal r12, lr, r4, r6",
            "ldr r9, [sp, #4]",
            "cmp r1, r9",
            "bne 3b",
            "ldr r8, [sp]",
            "ldr r9, [r8, #16]",
            "rsb r7, r9, #32",
            "lsr r4, r10, r9",
            "lsl r11, r11, r7",
            "orr r4, r4, r11",
            "lsr r6, r12, r9",
            "lsl lr, lr, r7",
            "orr r6, r6, lr",
            two_rows!("r4", "r6"),
            "add sp, sp, #16",
            "pop {{r4-r11, lr}}",
            inout("r0") task => _, out("r1") _, out("r2") _, out("r3") _, out("r12") _,
        )
    };
}
