//! Weights of tokens as integers, the factors of levels in sums of values.
//!
//! Weights times scales are rounded against the largest of a sum. For codes of 8 bits they have 14 bits, as
//! two halves of 7 bits. For all other codes they have 8 bits. There the rounding error of a token is carried
//! to the token that is a run later. Many small weights next to a large one therefore keep their sum. The
//! error at the end of a sum differs from sum to sum, so that it does not add up over a long sequence.

use super::{MAX_HEADS, SLOT_STEP};
use crate::lines::{FRACTION, Machine};
use tqkv_core::unstable::machine::Lanes;

/// Largest weight of 14 bits.
const WIDE_STEPS: f32 = 16383.0;

/// Largest weight of 8 bits: its halves are below 128.
const BYTE_STEPS: f32 = 254.0;

/// Below this a number has no reciprocal; such values vanish in any sum.
const LEAST: f32 = 1e-30;

/// Tokens whose weights are rounded together; a line never holds more tokens.
pub(super) const RUN: usize = SLOT_STEP;

/// Lines of a run, if a line holds the same few code bytes of four tokens.
pub(super) const RUN_LINES: usize = RUN / 4;

/// Heads that share the look-ups of a column.
pub(super) const TOGETHER: usize = MAX_HEADS;

/// Rounded weights of consecutive runs of tokens. The heads of a run are neighbours, so kernels read one
/// slice for any number of heads.
#[derive(Clone, Copy)]
pub(super) struct TokenWeights<'a> {
    /// `[runs, heads]`
    pub(super) halves: &'a [Halves],
    pub(super) heads: usize,
    /// The sum of each head's weights, if levels have a bias.
    pub(super) totals: &'a [i32; TOGETHER],
}

impl<'a> TokenWeights<'a> {
    /// The weights of `H` heads from `head` on, in a run. Callers never reach the end; past it, they are 0.
    /// A loop that ends early there would keep its sums in memory.
    #[inline(always)]
    pub(super) fn of<const H: usize>(&self, run: usize, head: usize) -> &'a [Halves; H] {
        let own = self.halves.get(run * self.heads + head..).and_then(|own| own.first_chunk());
        own.unwrap_or(const { &[NO_HALVES; H] })
    }

    /// The sum to begin with for a head, which takes the bias of the levels away. A line has `positions`
    /// lanes per four tokens; sums of further tokens are added to theirs.
    #[inline(always)]
    pub(super) fn first<I: Machine, const BITS: usize>(
        &self,
        isa: I,
        head: usize,
        positions: usize,
    ) -> I::Sum {
        if const { I::VALUE_BIAS == 0 || is_wide(BITS) } {
            return isa.zero();
        }
        let bias = -I::VALUE_BIAS * self.totals.get(head).copied().unwrap_or(0);
        let mut lanes = [0; 16];
        for lane in lanes.iter_mut().take(positions) {
            *lane = bias;
        }
        isa.sums(&lanes)
    }
}

/// The two halves of a head's weights in a run, as bytes, four tokens per dword. Weights of 14 bits have
/// their high 7 bits, then the low ones. Weights of 8 bits are the sum of their halves. They are complete in
/// the first half if the machine has [`Machine::BYTE_WEIGHTS`].
pub(super) type Halves = [[[u8; 4]; RUN_LINES]; 2];

/// Returns true if the weights of levels of `BITS` bits (0 for bit planes) have 14 bits. Levels of 8 bits are
/// finer than weights of 8 bits.
pub(super) const fn is_wide(bits: usize) -> bool {
    bits == 8
}

/// Returns true if each weight is one byte on the machine.
pub(super) const fn are_bytes<I: Machine, const BITS: usize>() -> bool {
    I::BYTE_WEIGHTS && !is_wide(BITS)
}

/// The halves of tokens without weight.
pub(super) const NO_HALVES: Halves = [[[0; 4]; RUN_LINES]; 2];

/// Weights times scales of complete runs of tokens.
#[derive(Clone, Copy)]
pub(super) struct Products<'a> {
    pub(super) weights: &'a [[f32; RUN]],
    /// The f16 scales of the same tokens.
    pub(super) scales: &'a [[u16; RUN]],
}

impl Products<'_> {
    #[inline(always)]
    fn of_run<I: Machine>(isa: I, weights: &[f32; RUN], scales: &[u16; RUN]) -> I::V {
        isa.load(weights) * isa.load_halves(scales)
    }

    /// Rounds the products times `sign`, if positive, against `largest`, to 14 bits if `WIDE`. They are weights
    /// of head `head` of `heads`. `sums` are those of [`Machine::write_bytes`], and [`first_sums`] at first.
    #[inline(always)]
    pub(super) fn round<I: Machine, const WIDE: bool>(
        &self,
        isa: I,
        (sign, largest): (f32, f32),
        sums: &mut [I::Sum; 2],
        (head, heads): (usize, usize),
        room: &mut [Halves],
    ) {
        let (zero, steps) = (isa.splat(0.0), isa.splat(sign * (largest_weight::<WIDE>() / largest)));
        let rooms = room.get_mut(head..).unwrap_or_default().iter_mut().step_by(heads);
        for ((weights, scales), halves) in self.weights.iter().zip(self.scales).zip(rooms) {
            let halves: &mut [[u8; RUN]; 2] = bytemuck::must_cast_mut(halves);
            let weights = isa.larger(Self::of_run(isa, weights, scales) * steps, zero);
            if const { WIDE } {
                isa.write_halves(weights, halves);
                continue;
            }
            let [bytes, others] = halves;
            *sums = isa.write_bytes(weights, *sums, bytes);
            if const { !I::BYTE_WEIGHTS } {
                for (byte, other) in bytes.iter_mut().zip(others) {
                    let half = *byte >> 1;
                    (*byte, *other) = (*byte - half, half);
                }
            }
        }
    }
}

/// Steps from one lane's fraction to the next one's, in parts of [`RUN`]. It is near the golden section, so
/// that neighbours are far apart and any few of them are spread evenly.
const STRIDE: usize = 19;

/// Where the sums of the lanes begin: fractions at equal distances. If all weights are much smaller than a
/// step, as many lanes reach a whole step as the sum of the weights has. Lanes whose numbers have a common
/// remainder begin at half a step on average. Values of a small period therefore have no bias.
const FIRST_SUMS: [[i32; 16]; 2] = {
    let (mut sums, mut lane) = ([[0; 16]; 2], 0);
    while lane < RUN {
        let place = (lane * STRIDE % RUN) as i32;
        sums[lane / 16][lane % 16] = ((2 * place + 1) << FRACTION) / (2 * RUN as i32);
        lane += 1;
    }
    sums
};

/// The turn of a sum whose first token has this number in the sequence: a fraction that is added to those of
/// its lanes. A lane that begins below half a step loses on average, so no lane may always do so.
///
/// Squares of the number times a constant move each lane evenly through all fractions. They also do if only
/// every n-th sum is looked at, for instance those with a heavy token. Without the square, values of some
/// periods would keep step with it. The constant left least of two dozen over periods from 1 to 256. Only the
/// number decides, so no thread changes a bit.
#[inline(always)]
pub(super) fn turn(token: usize) -> i32 {
    const FACTOR: u32 = 0xd6f8_4a53;
    let run = (token / RUN) as u32;
    (run.wrapping_mul(run).wrapping_mul(FACTOR) >> (u32::BITS - FRACTION)) as i32
}

/// The sums before the first weights of a head, in a sum of this turn. They are below two steps; a whole step
/// changes no byte.
#[inline(always)]
pub(super) fn first_sums<I: Machine>(isa: I, turn: i32) -> [I::Sum; 2] {
    let turn = isa.sums(&[turn; 16]);
    [isa.add(isa.sums(&FIRST_SUMS[0]), turn), isa.add(isa.sums(&FIRST_SUMS[1]), turn)]
}

/// The sum of the bytes that were written, from the sums of [`Machine::write_bytes`] before and after them.
#[inline(always)]
pub(super) fn total<I: Machine>(isa: I, first: [I::Sum; 2], last: [I::Sum; 2]) -> i32 {
    let whole = |sums| isa.lanes(sums).iter().map(|sum| sum >> FRACTION).sum::<i32>();
    whole(last[0]) + whole(last[1]) - whole(first[0]) - whole(first[1])
}

/// The number that stands for the largest weight.
const fn largest_weight<const WIDE: bool>() -> f32 {
    if WIDE { WIDE_STEPS } else { BYTE_STEPS * (1 << FRACTION) as f32 }
}

/// The largest product of one head, and the largest of the negated products; at least 0.
#[inline(always)]
pub(super) fn bounds<'a, I: Machine>(isa: I, parts: impl Iterator<Item = Products<'a>>) -> [f32; 2] {
    let zero = isa.splat(0.0);
    let (mut largest, mut least) = (zero, zero);
    for part in parts {
        for (weights, scales) in part.weights.iter().zip(part.scales) {
            let products = Products::of_run(isa, weights, scales);
            largest = isa.larger(largest, products);
            least = isa.larger(least, zero - products);
        }
    }
    [largest.max(), least.max()]
}

/// Returns true if there is nothing to sum of products whose largest is this.
#[inline(always)]
pub(super) fn vanishes(largest: f32) -> bool {
    largest < LEAST
}

/// The value of one step of weights that are rounded against `largest`; 0 if there is nothing to sum.
#[inline(always)]
pub(super) fn step<const WIDE: bool>(sign: f32, largest: f32) -> f32 {
    let steps = if const { WIDE } { WIDE_STEPS } else { BYTE_STEPS };
    if vanishes(largest) { 0.0 } else { largest * (sign / steps) }
}
