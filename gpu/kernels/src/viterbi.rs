//! The trellis search on a warp: the core's Viterbi search, bit-identical, with eight of 256 states per
//! thread.
//!
//! State 32 j + i is slot j of thread i. A new state v comes from v / 2 or v / 2 + 128. So the even slots of
//! thread i need all slots of thread i / 2, and the odd slots need those of thread 16 + i / 2. Metrics are
//! bytes, and four shuffles of four bytes fetch them.
//!
//! Metric rows and decisions are in the warp's workspace in device memory. A thread has one word of decisions
//! for four coordinates. The way back loads complete words and finds the bit of its state by a shuffle, so
//! no load waits for another.
//!
//! ```text
//! workspace:  [rows: 16 bytes a coordinate][decisions: 128 bytes for four coordinates]
//! ```

use crate::threads::{Threads, shuffle_f32};
use crate::trellis::{Trellis, lane_bytes, place_in_byte};
use crate::warp::Lane;
use tqkv_core::code::{Code, T2, T3, T4};
use tqkv_core::unstable::trellis::{PARITIES, RESOLUTION, WARM_UP};

/// Bytes of workspace that the search of one vector needs, a multiple of 16.
pub const fn workspace_bytes(dim: u32) -> u32 {
    48 * dim
}

/// Bytes of a coordinate's metric row, which is stored twice: in order, and with neighbours exchanged.
const ROW: u32 = 16;

/// Number of states of the search.
const STATES: usize = 256;

/// A thread's metrics by slot.
type Metrics = [u32; 8];

/// Eight values as the bytes of two words.
#[inline(always)]
fn pack([a, b, c, d, e, f, g, h]: Metrics) -> [u32; 2] {
    [a + (b << 8) + (c << 16) + (d << 24), e + (f << 8) + (g << 16) + (h << 24)]
}

/// Byte `i` below 8 of two words.
#[inline(always)]
fn byte([low, high]: [u32; 2], i: u32) -> u32 {
    (if i < 4 { low } else { high }) >> (8 * (i % 4)) & 255
}

/// The smallest value over all threads.
#[inline(always)]
fn smallest<T: Threads>(value: T::Of<u32>) -> T::Of<u32> {
    let step = |v, mask| T::zip(v, T::shuffle_xor(v, mask), u32::min);
    step(step(step(step(step(value, 16), 8), 4), 2), 1)
}

/// Metrics at the start: all states alike, or only one state.
#[inline(always)]
fn initial<T: Threads>(free: bool, state: T::Of<u32>) -> T::Of<Metrics> {
    T::zip(state, T::lane(), |state, lane| {
        let at = |slot: u32| if free || 32 * slot + lane == state { 0 } else { 255 };
        [at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)]
    })
}

/// The state with the least metric; the lowest of equals.
#[inline(always)]
fn best_state<T: Threads>(metrics: T::Of<Metrics>) -> T::Of<u32> {
    let keys = T::zip(metrics, T::lane(), |metrics, lane| {
        let mut least = u32::MAX;
        unroll32!(J => {
            if J < 8 {
                least = u32::min(least, metrics[J % 8] << 8 | (32 * J as u32 + lane) & 255);
            }
        });
        least
    });
    T::map(smallest::<T>(keys), |key| key & 255)
}

impl<C: Code> Trellis<C> {
    /// For each slot, the parities of windows that end in it, for oldest bit 0 and 1. The thread's own part
    /// of the parity is in the row that it reads.
    const SLOTS: [[u32; 2]; 8] = {
        let (mut slots, mut j) = ([[0; 2]; 8], 0);
        while j < 8 {
            slots[j] = [Self::CODE.parity(32 * j) as u32, Self::CODE.parity(32 * j + STATES) as u32];
            j += 1;
        }
        slots
    };

    /// Levels by index, in two halves.
    const HALVES: [[f32; 32]; 2] = {
        let (mut halves, mut i) = ([[0.0; 32]; 2], 0);
        while i < 64 {
            halves[i / 32][i % 32] = Self::CODE.levels[i] as f32;
            i += 1;
        }
        halves
    };

    /// Writes the metric rows of all coordinates to the workspace.
    #[inline(always)]
    fn write_rows<T: Threads, const G: usize>(workspace: T::Memory, targets: &[T::Of<f32>; G]) {
        // Waits until no thread reads the rows of the search before.
        T::sync();
        unroll32!(I => {
            if I < G {
                let rows = T::map(targets[I % G], |target| {
                    let row = Self::TRELLIS.rows_of(target as i16).first();
                    let [a, b, c, d, e, f, g, h] = row.copied().unwrap_or([0; PARITIES]);
                    [[a, b, c, d], [e, f, g, h], [b, a, d, c], [f, e, h, g]].map(u32::from_le_bytes)
                });
                let at = T::map(T::lane(), |lane| ROW * (32 * I as u32 + lane));
                T::store::<4>(workspace, at, rows, T::splat(true));
            }
        });
        T::sync();
    }

    /// The row of coordinate `t`, whose byte i is for parity i XOR `parity`.
    #[inline(always)]
    fn row<T: Threads>(workspace: T::Memory, t: u32, parity: T::Of<u32>) -> T::Of<[u32; 2]> {
        let words = T::load::<2>(workspace, T::map(parity, |parity| ROW * t + 8 * (parity & 1)));
        T::zip(words, parity, |[a, b], parity| {
            let (low, high) = if parity & 4 == 0 { (a, b) } else { (b, a) };
            [low.rotate_right(8 * (parity & 2)), high.rotate_right(8 * (parity & 2))]
        })
    }

    /// Add, compare, select for a thread's eight new states. `young` and `old` are the metrics of the
    /// predecessors v / 2 and v / 2 + 128: of even slots, then of odd ones. Bit j of the second result is set
    /// if slot j comes from the old predecessor.
    #[inline(always)]
    fn select(young: [u32; 2], old: [u32; 2], row: [u32; 2]) -> (Metrics, u32) {
        let (mut metrics, mut decisions) = ([0; 8], 0);
        unroll32!(J => {
            if J < 8 {
                let [keep, drop] = Self::SLOTS[J % 8];
                let (young, old) = if J.is_multiple_of(2) { (young[0], old[0]) } else { (young[1], old[1]) };
                let shift = 8 * (J as u32 / 2 % 4);
                let zero = u32::min((young >> shift & 255) + byte(row, keep), 255);
                let one = (old >> shift & 255) + byte(row, drop);
                metrics[J % 8] = u32::min(zero, one);
                decisions |= u32::from(one < zero) << (J % 8);
            }
        });
        (metrics, decisions)
    }

    /// Advances the search by one coordinate.
    #[inline(always)]
    fn step<T: Threads>(metrics: T::Of<Metrics>, row: T::Of<[u32; 2]>) -> T::Of<(Metrics, u32)> {
        let packed = T::map(metrics, pack);
        let (low, high) = (T::map(packed, |packed| packed[0]), T::map(packed, |packed| packed[1]));
        let [even, odd] = [0, 16].map(|half| T::map(T::lane(), |lane| half + lane / 2));
        let young = T::zip(T::shuffle(low, even), T::shuffle(low, odd), |even, odd| [even, odd]);
        let old = T::zip(T::shuffle(high, even), T::shuffle(high, odd), |even, odd| [even, odd]);
        let from = T::zip(young, old, |young, old| (young, old));
        T::zip(from, row, |(young, old), row| Self::select(young, old, row))
    }

    /// Runs over `blocks` times four coordinates, from coordinate `first` on. The decisions of the last
    /// `kept` blocks stay in the workspace.
    #[inline(always)]
    fn pass<T: Threads, const G: usize>(
        workspace: T::Memory,
        first: u32,
        blocks: u32,
        kept: u32,
        start: T::Of<Metrics>,
    ) -> T::Of<Metrics> {
        let dim = 32 * G as u32;
        let parity = T::map(T::lane(), |lane| Self::CODE.parity(lane as usize) as u32);
        let mut metrics = start;
        for block in 0..blocks {
            let t = (first + 4 * block) % dim;
            let row = |n: u32| Self::row::<T>(workspace, t + n, parity);
            let (row0, row1, row2, row3) = (row(0), row(1), row(2), row(3));
            let step0 = Self::step::<T>(metrics, row0);
            let step1 = Self::step::<T>(T::map(step0, |(metrics, _)| metrics), row1);
            let least = T::map(step1, |([a, b, c, d, e, f, g, h], _)| {
                u32::min(u32::min(u32::min(a, b), u32::min(c, d)), u32::min(u32::min(e, f), u32::min(g, h)))
            });
            let least = smallest::<T>(least);
            let step2 = Self::step::<T>(T::map(step1, |(metrics, _)| metrics), row2);
            let step3 = Self::step::<T>(T::map(step2, |(metrics, _)| metrics), row3);
            metrics = T::zip(step3, least, |(metrics, _), least| {
                let mut lowered = [0; 8];
                unroll32!(J => {
                    if J < 8 {
                        lowered[J % 8] = metrics[J % 8].saturating_sub(least);
                    }
                });
                lowered
            });
            let early = T::zip(step0, step1, |(_, a), (_, b)| a | b << 8);
            let late = T::zip(step2, step3, |(_, a), (_, b)| a << 16 | b << 24);
            let at = T::map(T::lane(), |lane| ROW * dim + 128 * (block % kept) + 4 * lane);
            T::store::<1>(workspace, at, T::zip(early, late, |a, b| [a | b]), T::splat(true));
        }
        metrics
    }

    /// Follows the decisions of `blocks` blocks back from state `end`, and returns the state before the
    /// first. If the first was coordinate 0, thread i also gets word i mod G of the plane of decided bits.
    #[inline(always)]
    fn trace_back<T: Threads, const G: usize>(
        workspace: T::Memory,
        blocks: u32,
        end: T::Of<u32>,
    ) -> (T::Of<u32>, T::Of<u32>) {
        let (mut state, mut coded) = (end, T::splat(0));
        for back in 0..blocks {
            let block = blocks - 1 - back;
            let at = T::map(T::lane(), |lane| ROW * 32 * G as u32 + 128 * block + 4 * lane);
            let words = T::map(T::load::<1>(workspace, at), |[word]| word);
            let mut bits = T::splat(0);
            unroll32!(I => {
                if I < 4 {
                    let n = 3 - I as u32 % 4;
                    bits = T::zip(bits, state, |bits, state| bits | (state & 1) << (8 * n));
                    state = T::zip(state, T::shuffle(words, state), |state, word| {
                        state >> 1 | (word >> (8 * n + state / 32) & 1) << 7
                    });
                }
            });
            let mine = T::zip(bits, T::lane(), |bits, lane| {
                if lane % G as u32 == block % G as u32 { bits << (block / G as u32) } else { 0 }
            });
            coded = T::zip(coded, mine, |coded, mine| coded | mine);
        }
        (state, coded)
    }

    /// The coded plane for `targets`. Thread i has word i mod G.
    #[inline(always)]
    pub(crate) fn search<T: Threads, const G: usize>(
        workspace: T::Memory,
        targets: &[T::Of<f32>; G],
    ) -> T::Of<u32> {
        const WARM: u32 = WARM_UP as u32;
        Self::write_rows::<T, G>(workspace, targets);
        let dim = 32 * G as u32;
        let (mut state, mut coded) = (T::splat(0), T::splat(0));
        // The first pass only decides the state at coordinate 0.
        for round in 0..2 {
            let free = round == 0;
            let (first, blocks, kept) =
                if free { (dim - WARM, WARM / 2, WARM / 4) } else { (0, dim / 4, dim / 4) };
            let metrics = Self::pass::<T, G>(workspace, first, blocks, kept, initial::<T>(free, state));
            let end = if free { best_state::<T>(metrics) } else { state };
            (state, coded) = Self::trace_back::<T, G>(workspace, kept, end);
        }
        coded
    }

    /// The level with each thread's parity that is nearest to its target, and its symbol; the lowest of
    /// equals. `tables` are [`Self::HALVES`].
    #[inline(always)]
    fn nearest<T: Threads>(
        target: T::Of<f32>,
        parity: T::Of<u32>,
        tables: [T::Of<f32>; 2],
    ) -> (T::Of<f32>, T::Of<u32>) {
        let mut best = T::splat((f32::INFINITY, 0.0, 0));
        unroll32!(PART => {
            if PART < 1 << (Self::BITS - 1) {
                let index = T::map(parity, |parity| parity + PARITIES as u32 * (PART as u32 % 4));
                let candidate = shuffle_f32::<T>(tables[PART / 4 % 2], index);
                let pair = T::zip(target, candidate, |target, level| (target, level));
                best = T::zip(best, pair, |best: (f32, f32, u32), (target, level)| {
                    let difference = target - RESOLUTION as f32 * level;
                    let distance = difference * difference;
                    if distance < best.0 { (distance, level, PART as u32) } else { best }
                });
            }
        });
        (T::map(best, |(_, level, _)| level), T::map(best, |(_, _, symbol)| symbol))
    }

    /// The plain symbols nearest to the targets, given a coded plane. Returns all planes, as
    /// [`Trellis::levels`] takes them, and the levels in units of the code.
    #[inline(always)]
    pub(crate) fn complete<T: Threads, const G: usize>(
        coded: T::Of<u32>,
        targets: &[T::Of<f32>; G],
    ) -> (T::Of<[u32; 8]>, [Lane<T>; G]) {
        let parities = Self::parities::<T, G>(coded);
        let plane = |p: usize| lane_bytes::<T, G>(T::map(parities, |parities| parities[p]));
        let planes = T::zip(T::zip(plane(0), plane(1), |a, b| (a, b)), plane(2), |(a, b), c| (a, b, c));
        let tables = [T::gather(const { &Self::HALVES[0] }), T::gather(const { &Self::HALVES[1] })];
        let (mut symbols, mut levels) = (T::splat(0), [Lane(T::splat(0.0)); G]);
        unroll32!(I => {
            if I < G {
                let bit = place_in_byte::<T, G>(I);
                let parity = T::zip(planes, bit, |(a, b, c), bit| {
                    a >> bit & 1 | (b >> bit & 1) << 1 | (c >> bit & 1) << 2
                });
                let (level, symbol) = Self::nearest::<T>(targets[I % G], parity, tables);
                levels[I % G] = Lane(level);
                // The bits of a symbol go to bytes 0 to 2, one byte per plane.
                let spread = T::zip(symbol, bit, |symbol, bit| {
                    (symbol & 1 | (symbol & 2) << 7 | (symbol & 4) << 14) << bit
                });
                symbols = T::zip(symbols, spread, |all, here| all | here);
            }
        });
        (plane_words::<T, G>(Self::BITS, coded, symbols), levels)
    }
}

/// `count` planes in words, from the coded plane and each thread's bits of its byte of the plain planes.
#[inline(always)]
fn plane_words<T: Threads, const G: usize>(
    count: usize,
    coded: T::Of<u32>,
    plain: T::Of<u32>,
) -> T::Of<[u32; 8]> {
    let gather = |v, mask| T::zip(v, T::shuffle_xor(v, mask), |a, b| a | b);
    let mut bytes = plain;
    unroll32!(I => {
        let mask = I as u32;
        if mask.is_power_of_two() && mask >= 4 * G as u32 {
            bytes = gather(bytes, mask);
        }
    });
    let mut words = T::map(coded, |coded| [coded, 0, 0, 0, 0, 0, 0, 0]);
    unroll32!(P => {
        if P >= 1 && P < count {
            let byte = T::zip(bytes, T::lane(), |bytes, lane| {
                (bytes >> (8 * ((P as u32 + 3) % 4)) & 255) << (8 * (lane % 4))
            });
            let word = gather(gather(byte, 1), 2);
            let word = T::shuffle(word, T::map(T::lane(), |lane| 4 * (lane % G as u32)));
            words = T::zip(words, word, |mut words, word| {
                words[P % 8] = word;
                words
            });
        }
    });
    words
}

/// The search handles 256 states, and a distance is exact in `f32`.
const _: () = {
    const fn fits(code: &tqkv_core::unstable::trellis::Code) -> bool {
        let largest = code.limit() + RESOLUTION * code.limit() / 3;
        code.states() == STATES && largest * largest < 1 << 24
    }
    assert!(fits(&Trellis::<T2>::CODE) && fits(&Trellis::<T3>::CODE) && fits(&Trellis::<T4>::CODE));
};
