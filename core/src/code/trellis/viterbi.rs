//! The search for the best ring of coded bits, in bytes: the definition for all encoders.
//!
//! A state is the last `memory` coded bits, newest lowest; bit u leads from state s to
//! `(2 s + u) mod states`. A step adds to each path the metric of the parity on its branch. It keeps the
//! better of the two paths that meet in a state. On a tie it keeps the path whose oldest bit, which the state
//! forgets, is 0. Sums saturate at 255. After every fourth coordinate, the metrics are lowered by their
//! minimum of two coordinates earlier. The delay spares fast implementations a wait for the minimum.
//!
//! Two passes close the ring. The first runs freely over [`WARM_UP`] coordinates to both sides of coordinate
//! 0 and only decides the state there. The second runs once around, and starts and ends in that state. The
//! decoder needs no start state: any ring of bits is valid.
//!
//! Pairs that share plain symbols run the two classes of symbols side by side. Each class takes two plain
//! steps from the same metrics. Each state keeps the better class (class 0 on a tie).

use super::code::PARITIES;
use super::encode::{Search, Target};
use super::{Code, Trellis};
use crate::Portable;

/// Coordinates on either side of coordinate 0 over which the first pass runs.
pub const WARM_UP: usize = 64;

/// Bytes of workspace that one search needs.
pub const fn workspace_bytes(code: &Code, dim: usize) -> usize {
    let coordinates = if dim > WARM_UP { dim } else { WARM_UP };
    coordinates * code.states() / 8 * if code.plain.pair_symbols() == 0 { 1 } else { 2 }
}

impl Search for Portable {
    const PROBLEMS: usize = 1;

    fn search<T: Target>(
        self,
        trellis: &Trellis<'_>,
        dim: usize,
        targets: &[T],
        coded: &mut [u8],
        workspace: &mut [u8],
    ) {
        for (targets, coded) in targets.chunks_exact(dim).zip(coded.chunks_exact_mut(dim / 8)) {
            if trellis.code.memory == 3 {
                Ring::<T, 8, 4> { trellis, targets }.search(coded, workspace);
            } else {
                Ring::<T, 256, 16> { trellis, targets }.search(coded, workspace);
            }
        }
    }
}

/// The parities that a step needs. For state pair `LOW * h + l` (even state, oldest bit 0) it is
/// `low[l] ^ high[h]`. The newest and the oldest bit flip it by constants.
struct Parities {
    low: [u8; 16],
    high: [u8; 8],
    newest: usize,
    oldest: usize,
}

/// One search over `S` states, in runs of `LOW` pairs.
struct Ring<'a, T, const S: usize, const LOW: usize> {
    trellis: &'a Trellis<'a>,
    targets: &'a [T],
}

impl<T: Target, const S: usize, const LOW: usize> Ring<'_, T, S, LOW> {
    /// Bytes of one decision bit per state.
    const BITS: usize = S / 8;

    #[inline(never)]
    fn search(&self, coded: &mut [u8], workspace: &mut [u8]) {
        let dim = self.targets.len();
        let parities = self.parities();
        let mut metrics = [0; S];
        let before = (dim - WARM_UP % dim) % dim;
        self.pass(&parities, before, WARM_UP, &mut metrics, workspace);
        self.pass(&parities, 0, WARM_UP, &mut metrics, workspace);
        let least = metrics.iter().fold(u8::MAX, |m, &v| m.min(v));
        let end = metrics.iter().position(|&v| v == least).unwrap_or(0);
        let start = self.trace_back(WARM_UP, end, workspace, |_, _| ());

        metrics = [u8::MAX; S];
        metrics[start % S] = 0;
        self.pass(&parities, 0, dim, &mut metrics, workspace);
        coded.fill(0);
        let n = coded.len();
        self.trace_back(dim, start, workspace, |t, bit| coded[t % n] |= bit << (t / n));
    }

    fn parities(&self) -> Parities {
        let code = &self.trellis.code;
        Parities {
            low: core::array::from_fn(|l| code.parity(2 * (l % LOW)) as u8),
            high: core::array::from_fn(|h| code.parity((2 * LOW * h) % S) as u8),
            newest: code.parity(1),
            oldest: code.parity(S),
        }
    }

    /// Runs over `steps` coordinates, starting at `first`; decisions go to the start of `workspace`.
    fn pass(
        &self,
        parities: &Parities,
        first: usize,
        steps: usize,
        metrics: &mut [u8; S],
        workspace: &mut [u8],
    ) {
        let mut least = 0;
        let targets = self.targets.iter().cycle().skip(first).take(steps);
        if self.trellis.code.plain.pair_symbols() == 0 {
            for ((n, target), decisions) in targets.enumerate().zip(workspace.chunks_exact_mut(Self::BITS)) {
                let Some(row) = target.rows(self.trellis).first() else { return };
                let mut next = [0; S];
                step::<S, LOW>(parities, row, metrics, &mut next, decisions);
                *metrics = next;
                if n % 4 == 1 {
                    least = minimum(metrics);
                } else if n % 4 == 3 {
                    lower(metrics, least);
                }
            }
            return;
        }
        let mut targets = targets;
        let mut sections = workspace.chunks_exact_mut(4 * Self::BITS).enumerate();
        while let (Some(even), Some(odd)) = (targets.next(), targets.next())
            && let Some((n, decisions)) = sections.next()
        {
            self.pair(parities, even, odd, metrics, decisions);
            if n % 2 == 0 {
                least = minimum(metrics);
            } else {
                lower(metrics, least);
            }
        }
    }

    /// Steps over two coordinates that share a symbol. Decisions: the even coordinate in class 0 and in class
    /// 1, the odd coordinate in the class that won, and the class that won.
    #[inline(always)]
    fn pair(&self, parities: &Parities, even: &T, odd: &T, metrics: &mut [u8; S], decisions: &mut [u8]) {
        let (even, odd) = (even.rows(self.trellis), &odd.rows(self.trellis)[2..]);
        let (even_decisions, odd_decisions) = decisions.split_at_mut(2 * Self::BITS);
        let (mut middle, mut ends, mut odd_bits) = ([0; S], [[0; S]; 2], [[0; 32]; 2]);
        for class in 0..2 {
            let bits = &mut even_decisions[class * Self::BITS..][..Self::BITS];
            step::<S, LOW>(parities, &even[class], metrics, &mut middle, bits);
            let bits = &mut odd_bits[class][..Self::BITS];
            step::<S, LOW>(parities, &odd[class], &middle, &mut ends[class], bits);
        }
        let mut upper_wins = [0u8; S];
        for (i, wins) in upper_wins.iter_mut().enumerate() {
            let state = 2 * (i % (S / 2)) + i / (S / 2);
            *wins = u8::from(ends[1][state] < ends[0][state]);
        }
        for ((metric, &lower), &upper) in metrics.iter_mut().zip(&ends[0]).zip(&ends[1]) {
            *metric = lower.min(upper);
        }
        let (won, class) = odd_decisions.split_at_mut(Self::BITS);
        for (byte, wins) in class.iter_mut().zip(upper_wins.as_chunks::<8>().0) {
            *byte = pack(*wins);
        }
        for (((won, &class), &lower), &upper) in
            won.iter_mut().zip(&*class).zip(&odd_bits[0]).zip(&odd_bits[1])
        {
            *won = lower & !class | upper & class;
        }
    }

    /// Follows the decisions of the last `steps` coordinates back from state `end`. Calls `bit(t, u)` for
    /// each coordinate and returns the state before the first.
    #[inline(always)]
    fn trace_back(
        &self,
        steps: usize,
        end: usize,
        workspace: &[u8],
        mut bit: impl FnMut(usize, u8),
    ) -> usize {
        let mut state = end;
        let mut back = |t: usize, decisions: &[u8], state: usize| {
            bit(t, state as u8 & 1);
            state >> 1 | decision::<S>(decisions, state) << (S.trailing_zeros() - 1)
        };
        if self.trellis.code.plain.pair_symbols() == 0 {
            for (t, decisions) in workspace.chunks_exact(Self::BITS).enumerate().take(steps).rev() {
                state = back(t, decisions, state);
            }
        } else {
            for (pair, decisions) in workspace.chunks_exact(4 * Self::BITS).enumerate().take(steps / 2).rev()
            {
                let (even, odd) = decisions.split_at(2 * Self::BITS);
                let (won, class) = odd.split_at(Self::BITS);
                let class = decision::<S>(class, state);
                state = back(2 * pair + 1, won, state);
                state = back(2 * pair, &even[class * Self::BITS..], state);
            }
        }
        state
    }
}

/// The decision bit of a state: even states first, then odd ones.
#[inline(always)]
fn decision<const S: usize>(decisions: &[u8], state: usize) -> usize {
    let at = (state & 1) * (S / 2) + (state >> 1);
    usize::from(decisions.get(at / 8).map_or(0, |byte| byte >> (at % 8) & 1))
}

/// Packs eight bytes that are 0 or 1 into bits, first lowest.
#[inline(always)]
fn pack(bits: [u8; 8]) -> u8 {
    (u64::from_le_bytes(bits).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

#[inline(always)]
fn minimum<const S: usize>(metrics: &[u8; S]) -> u8 {
    metrics.iter().fold(u8::MAX, |m, &v| m.min(v))
}

#[inline(always)]
fn lower<const S: usize>(metrics: &mut [u8; S], by: u8) {
    for metric in metrics {
        *metric = metric.saturating_sub(by);
    }
}

/// Add, compare, select for all states.
///
/// The state pair i reaches states 2 i and 2 i + 1 from i and i + S / 2. Runs of `LOW` pairs use only eight
/// different vectors of branch metrics. They are gathered first; the rest is byte arithmetic over runs.
#[inline(always)]
fn step<const S: usize, const LOW: usize>(
    parities: &Parities,
    row: &[u8; PARITIES],
    from: &[u8; S],
    to: &mut [u8; S],
    decisions: &mut [u8],
) {
    let mut branch = [[0; LOW]; PARITIES];
    for (p, metrics) in branch.iter_mut().enumerate() {
        for (metric, &low) in metrics.iter_mut().zip(&parities.low) {
            *metric = row[(p ^ usize::from(low)) % PARITIES];
        }
    }
    let (young, old) = from.split_at(S / 2);
    let pairs = young.as_chunks::<LOW>().0.iter().zip(old.as_chunks::<LOW>().0);
    let mut bits = [0u8; S];
    for (h, (a, b)) in pairs.enumerate() {
        let p = usize::from(parities.high[h % 8]);
        let mut best = [[0; LOW]; 2];
        for (parity, newest) in [0, parities.newest].into_iter().enumerate() {
            let keep = &branch[(p ^ newest) % PARITIES];
            let drop = &branch[(p ^ newest ^ parities.oldest) % PARITIES];
            for l in 0..LOW {
                let (zero, one) = (a[l].saturating_add(keep[l]), b[l].saturating_add(drop[l]));
                best[parity][l] = zero.min(one);
                bits[parity * (S / 2) + h * LOW + l] = u8::from(one < zero);
            }
        }
        for l in 0..LOW {
            to[2 * (h * LOW + l)] = best[0][l];
            to[2 * (h * LOW + l) + 1] = best[1][l];
        }
    }
    for (byte, eight) in decisions.iter_mut().zip(bits.as_chunks::<8>().0) {
        *byte = pack(*eight);
    }
}
