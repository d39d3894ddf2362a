//! The trellis search on byte lanes: `tqkv_core::trellis`'s Viterbi search with 32 or 64 states a
//! register, two problems side by side so that one hides the latency of the other.
//!
//! States stay in an order in which the states i and i + 128 that meet are in different registers,
//! at the same byte: 128-bit unpacks and one lane shuffle then put the pair (2 i, 2 i + 1) where
//! the next step wants it. The metrics of a branch are one 8-entry byte look-up.
//!
//! Codes with 8 states gain nothing here and run the portable search.

use tqkv_core::Portable;
use tqkv_core::trellis::{Code, PARITIES, Plain, Search, Trellis, WARM_UP};

const STATES: usize = 256;
/// Bytes of one decision for each state.
const DECISIONS: usize = STATES / 8;
/// Registers of the widest set of states (32 bytes each).
const MAX_REGISTERS: usize = 8;
/// Problems solved side by side.
const SIDE_BY_SIDE: usize = 2;

/// Registers of bytes; all operations are lane-wise unless they say otherwise.
pub(crate) trait Bytes: Copy {
    /// A register.
    type B: Copy;
    /// Bytes of a register: 32 or 64.
    const WIDTH: usize;

    /// All bytes `value`.
    fn splat(self, value: u8) -> Self::B;
    /// The first [`Bytes::WIDTH`] bytes.
    fn load(self, bytes: &[u8; 64]) -> Self::B;
    /// The first [`Bytes::WIDTH`] bytes of the result.
    fn store(self, v: Self::B) -> [u8; 64];
    /// Sum, at most 255.
    fn add(self, a: Self::B, b: Self::B) -> Self::B;
    /// Difference, at least 0.
    fn sub(self, a: Self::B, b: Self::B) -> Self::B;
    /// Smaller.
    fn min(self, a: Self::B, b: Self::B) -> Self::B;
    /// Bit i: byte i of `a` is below that of `b`, given the smaller of both.
    fn below(self, a: Self::B, b: Self::B, smaller: Self::B) -> u64;
    /// Smallest byte, in all bytes.
    fn smallest(self, v: Self::B) -> Self::B;
    /// A table of 8 bytes.
    fn table(self, row: &[u8; PARITIES]) -> Self::B;
    /// Look-up of indices below 8.
    fn pick(self, table: Self::B, index: Self::B) -> Self::B;
    /// Interleaves even and odd states of one register pair: the next registers 2 r and 2 r + 1.
    fn weave(self, even: Self::B, odd: Self::B) -> (Self::B, Self::B);
    /// Byte of its register that a state pair (0..WIDTH) takes.
    fn byte_of(pair: usize) -> usize;
}

/// Adds [`Search`] to a token with [`Bytes`]; the search is compiled once, not wherever an encoder
/// is inlined.
macro_rules! search {
    ($token:ty, $features:literal) => {
        impl tqkv_core::trellis::Search for $token {
            const PROBLEMS: usize = crate::trellis::PROBLEMS;

            #[inline(always)]
            fn search(
                self,
                trellis: &tqkv_core::trellis::Trellis<'_>,
                dim: usize,
                targets: &[i16],
                coded: &mut [u8],
                workspace: &mut [u8],
            ) {
                #[target_feature(enable = $features)]
                fn enter(
                    isa: $token,
                    trellis: &tqkv_core::trellis::Trellis<'_>,
                    dim: usize,
                    targets: &[i16],
                    coded: &mut [u8],
                    workspace: &mut [u8],
                ) {
                    crate::trellis::run(isa, trellis, dim, targets, coded, workspace);
                }
                // SAFETY: the token proves the features that `enter` is compiled with.
                unsafe { enter(self, trellis, dim, targets, coded, workspace) }
            }

            #[inline(always)]
            fn choose_plain(
                self,
                code: &tqkv_core::trellis::Code,
                targets: &[i16],
                parity: &[u8],
                symbols: &mut [u8],
                levels: &mut [u8],
            ) {
                crate::trellis::choose_plain(self, code, targets, parity, symbols, levels);
            }
        }
    };
}
pub(crate) use search;

/// Gives a token without byte lanes the portable search.
#[cfg(target_arch = "aarch64")]
macro_rules! portable_search {
    ($token:ty) => {
        impl tqkv_core::trellis::Search for $token {
            const PROBLEMS: usize = 1;

            #[inline(always)]
            fn search(
                self,
                trellis: &tqkv_core::trellis::Trellis<'_>,
                dim: usize,
                targets: &[i16],
                coded: &mut [u8],
                workspace: &mut [u8],
            ) {
                tqkv_core::Portable.search(trellis, dim, targets, coded, workspace);
            }
        }
    };
}
#[cfg(target_arch = "aarch64")]
pub(crate) use portable_search;

/// [`Search::PROBLEMS`] of these searches.
pub(crate) const PROBLEMS: usize = SIDE_BY_SIDE;

/// [`Search::search`].
#[inline(always)]
pub(crate) fn run<I: Bytes>(
    isa: I,
    trellis: &Trellis<'_>,
    dim: usize,
    targets: &[i16],
    coded: &mut [u8],
    workspace: &mut [u8],
) {
    if trellis.code.memory != 8 {
        Portable.search(trellis, dim, targets, coded, workspace);
        return;
    }
    let steps = Steps::new(isa, &trellis.code);
    let pairs = !matches!(trellis.code.plain, Plain::Bits(_));
    let mut problems = targets.chunks_exact(dim).zip(coded.chunks_exact_mut(dim / 8));
    while let Some((targets, coded)) = problems.next() {
        if pairs {
            search_pairs(isa, trellis, &steps, targets, coded, workspace);
            continue;
        }
        match problems.next() {
            Some((more, also)) => {
                search_together::<I, 2>(isa, trellis, &steps, [targets, more], [coded, also], workspace);
            }
            None => search_together::<I, 1>(isa, trellis, &steps, [targets], [coded], workspace),
        }
    }
}

/// What steps need of the code: for each register of state pairs the parity of the even state
/// with the oldest bit 0, and the same with newest bit, oldest bit, both flipped.
struct Steps<I: Bytes> {
    parity: [[I::B; 4]; MAX_REGISTERS / 2],
}

/// The metrics of all states.
type Metrics<I> = [<I as Bytes>::B; MAX_REGISTERS];
/// One decision for each state: even states, then odd ones, by register and byte.
type Decisions = [[u64; MAX_REGISTERS / 2]; 2];

impl<I: Bytes> Steps<I> {
    #[inline(always)]
    fn new(isa: I, code: &Code) -> Self {
        let (newest, oldest) = (code.parity(1), code.parity(STATES));
        let parity = core::array::from_fn(|r| {
            let mut bytes = [[0; 64]; 4];
            for pair in 0..I::WIDTH {
                let parity = code.parity((2 * (r * I::WIDTH + pair)) % STATES);
                for (kind, flip) in [0, oldest, newest, newest ^ oldest].into_iter().enumerate() {
                    bytes[kind][I::byte_of(pair)] = (parity ^ flip) as u8;
                }
            }
            bytes.map(|bytes| isa.load(&bytes))
        });
        Self { parity }
    }

    /// Add, compare, select for all states.
    #[inline(always)]
    fn step(&self, isa: I, row: &[u8; PARITIES], metrics: &Metrics<I>) -> (Metrics<I>, Decisions) {
        let half = const { STATES / 2 / I::WIDTH };
        let table = isa.table(row);
        let (mut next, mut decisions) = (*metrics, [[0; MAX_REGISTERS / 2]; 2]);
        for r in 0..half {
            let (young, old) = (metrics[r], metrics[r + half]);
            let [keep, drop, odd_keep, odd_drop] = self.parity[r];
            let (zero, one) = (isa.add(young, isa.pick(table, keep)), isa.add(old, isa.pick(table, drop)));
            let even = isa.min(zero, one);
            decisions[0][r] = isa.below(one, zero, even);
            let (zero, one) =
                (isa.add(young, isa.pick(table, odd_keep)), isa.add(old, isa.pick(table, odd_drop)));
            let odd = isa.min(zero, one);
            decisions[1][r] = isa.below(one, zero, odd);
            (next[2 * r], next[2 * r + 1]) = isa.weave(even, odd);
        }
        (next, decisions)
    }
}

/// Smallest metric, in all bytes.
#[inline(always)]
fn smallest<I: Bytes>(isa: I, metrics: &Metrics<I>) -> I::B {
    let mut least = metrics[0];
    for &metric in &metrics[1..const { STATES / I::WIDTH }] {
        least = isa.min(least, metric);
    }
    isa.smallest(least)
}

#[inline(always)]
fn lower<I: Bytes>(isa: I, metrics: &mut Metrics<I>, by: I::B) {
    for metric in &mut metrics[..const { STATES / I::WIDTH }] {
        *metric = isa.sub(*metric, by);
    }
}

/// Register and byte of a state.
#[inline(always)]
fn place<I: Bytes>(state: usize) -> (usize, usize) {
    // A pair of states (2 i, 2 i + 1) and the state i have the same order within registers: byte
    // positions of states repeat with the register width.
    (state / I::WIDTH, I::byte_of(state % I::WIDTH))
}

/// Metrics for a start in `state`.
#[inline(always)]
fn start_in<I: Bytes>(isa: I, state: usize) -> Metrics<I> {
    let (register, byte) = place::<I>(state);
    core::array::from_fn(|r| {
        let mut bytes = [u8::MAX; 64];
        if r == register {
            bytes[byte] = 0;
        }
        isa.load(&bytes)
    })
}

/// The lowest state with the smallest metric.
#[inline(always)]
fn best_state<I: Bytes>(isa: I, metrics: &Metrics<I>) -> usize {
    let bytes: [[u8; 64]; MAX_REGISTERS] = core::array::from_fn(|r| isa.store(metrics[r]));
    let (mut best, mut least) = (0, u8::MAX);
    for state in 0..STATES {
        let (register, byte) = place::<I>(state);
        if bytes[register][byte] < least {
            (best, least) = (state, bytes[register][byte]);
        }
    }
    best
}

#[inline(always)]
fn write<I: Bytes>(decisions: &Decisions, to: &mut [u8]) {
    let bytes = const { I::WIDTH / 8 };
    let half = const { STATES / 2 / I::WIDTH };
    for (i, slot) in to.chunks_exact_mut(bytes).enumerate() {
        slot.copy_from_slice(&decisions[i / half][i % half].to_le_bytes()[..bytes]);
    }
}

/// The decision bit of a state.
#[inline(always)]
fn decision<I: Bytes>(decisions: &[u8; DECISIONS], state: usize) -> usize {
    let pair = state >> 1;
    let bit = I::byte_of(pair % I::WIDTH);
    let byte = (state & 1) * (STATES / 16) + pair / I::WIDTH * (I::WIDTH / 8) + bit / 8;
    usize::from(decisions[byte % DECISIONS] >> (bit % 8) & 1)
}

#[inline(always)]
fn back<I: Bytes>(decisions: &[u8; DECISIONS], state: usize) -> usize {
    state >> 1 | decision::<I>(decisions, state) << 7
}

/// `P` problems of codes with plain bits.
#[inline(always)]
fn search_together<I: Bytes, const P: usize>(
    isa: I,
    trellis: &Trellis<'_>,
    steps: &Steps<I>,
    targets: [&[i16]; P],
    coded: [&mut [u8]; P],
    workspace: &mut [u8],
) {
    let dim = targets[0].len();
    let mut metrics = [[isa.splat(0); MAX_REGISTERS]; P];
    let before = (dim - WARM_UP % dim) % dim;
    pass(isa, trellis, steps, &targets, before, WARM_UP, &mut metrics, workspace);
    pass(isa, trellis, steps, &targets, 0, WARM_UP, &mut metrics, workspace);
    let mut states: [usize; P] = core::array::from_fn(|p| best_state(isa, &metrics[p]));
    trace_back::<I, P>(WARM_UP, &mut states, workspace, |_, _| ());
    metrics = core::array::from_fn(|p| start_in(isa, states[p]));
    pass(isa, trellis, steps, &targets, 0, dim, &mut metrics, workspace);
    let mut bits = coded;
    for coded in &mut bits {
        coded.fill(0);
    }
    let n = dim / 8;
    let (mut byte, mut shift) = (n, 7);
    trace_back::<I, P>(dim, &mut states, workspace, |p, bit| {
        if p == 0 {
            if byte == 0 {
                (byte, shift) = (n, shift - 1);
            }
            byte -= 1;
        }
        bits[p][byte] |= bit << shift;
    });
}

/// Runs over `count` coordinates from `first` on; a multiple of 4.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one loop; a struct for it would only rename them")]
fn pass<I: Bytes, const P: usize>(
    isa: I,
    trellis: &Trellis<'_>,
    steps: &Steps<I>,
    targets: &[&[i16]; P],
    first: usize,
    count: usize,
    metrics: &mut [Metrics<I>; P],
    workspace: &mut [u8],
) {
    let dim = targets[0].len();
    let (rows, limit) = (trellis.rows(), trellis.code.limit());
    let mut least = [isa.splat(0); P];
    let mut current = *metrics;
    let mut t = first;
    for (n, decisions) in workspace.chunks_exact_mut(P * DECISIONS).take(count).enumerate() {
        for p in 0..P {
            let row = &rows[(i32::from(targets[p][t]) + limit) as usize];
            let (next, decided) = steps.step(isa, row, &current[p]);
            current[p] = next;
            write::<I>(&decided, &mut decisions[p * DECISIONS..][..DECISIONS]);
            if n % 4 == 1 {
                least[p] = smallest(isa, &current[p]);
            } else if n % 4 == 3 {
                lower(isa, &mut current[p], least[p]);
            }
        }
        t += 1;
        if t == dim {
            t = 0;
        }
    }
    *metrics = current;
}

/// Follows `P` problems back over `count` coordinates; calls `bit(problem, u)` for each.
#[inline(always)]
fn trace_back<I: Bytes, const P: usize>(
    count: usize,
    states: &mut [usize; P],
    workspace: &[u8],
    mut bit: impl FnMut(usize, u8),
) {
    for decisions in workspace.chunks_exact(P * DECISIONS).take(count).rev() {
        for (p, (state, decisions)) in states.iter_mut().zip(decisions.as_chunks::<DECISIONS>().0).enumerate()
        {
            bit(p, *state as u8 & 1);
            *state = back::<I>(decisions, *state);
        }
    }
}

/// One problem of a code whose pairs share symbols; its two classes run side by side.
#[inline(always)]
fn search_pairs<I: Bytes>(
    isa: I,
    trellis: &Trellis<'_>,
    steps: &Steps<I>,
    targets: &[i16],
    coded: &mut [u8],
    workspace: &mut [u8],
) {
    let dim = targets.len();
    let mut metrics = [isa.splat(0); MAX_REGISTERS];
    let before = (dim - WARM_UP % dim) % dim;
    pass_pairs(isa, trellis, steps, targets, before, WARM_UP, &mut metrics, workspace);
    pass_pairs(isa, trellis, steps, targets, 0, WARM_UP, &mut metrics, workspace);
    let mut state = best_state(isa, &metrics);
    trace_back_pairs::<I>(WARM_UP, &mut state, workspace, |_, _| ());
    metrics = start_in(isa, state);
    pass_pairs(isa, trellis, steps, targets, 0, dim, &mut metrics, workspace);
    coded.fill(0);
    let n = dim / 8;
    trace_back_pairs::<I>(dim, &mut state, workspace, |t, bit| coded[t % n] |= bit << (t / n));
}

/// Decisions of a pair: even coordinate in both classes, odd one in both, and the class (by
/// register and byte of the state).
const PAIR_DECISIONS: usize = 5 * DECISIONS;

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one loop; a struct for it would only rename them")]
fn pass_pairs<I: Bytes>(
    isa: I,
    trellis: &Trellis<'_>,
    steps: &Steps<I>,
    targets: &[i16],
    first: usize,
    count: usize,
    metrics: &mut Metrics<I>,
    workspace: &mut [u8],
) {
    let (dim, limit, rows) = (targets.len(), trellis.code.limit(), trellis.rows());
    let stride = trellis.code.rows_per_target();
    let row_of = |t: usize, row: usize| &rows[(i32::from(targets[t]) + limit) as usize * stride + row];
    let mut least = isa.splat(0);
    let mut t = first;
    for (n, decisions) in workspace.chunks_exact_mut(PAIR_DECISIONS).take(count / 2).enumerate() {
        let slots = decisions.as_chunks_mut::<DECISIONS>().0;
        let mut ends = [*metrics; 2];
        for (class, ends) in ends.iter_mut().enumerate() {
            let (middle, decided) = steps.step(isa, row_of(t, class), ends);
            write::<I>(&decided, &mut slots[class]);
            let (end, decided) = steps.step(isa, row_of(t + 1, stride - 2 + class), &middle);
            write::<I>(&decided, &mut slots[2 + class]);
            *ends = end;
        }
        for r in 0..const { STATES / I::WIDTH } {
            let best = isa.min(ends[0][r], ends[1][r]);
            let upper = isa.below(ends[1][r], ends[0][r], best).to_le_bytes();
            slots[4][r * (I::WIDTH / 8)..][..I::WIDTH / 8].copy_from_slice(&upper[..I::WIDTH / 8]);
            metrics[r] = best;
        }
        if n % 2 == 0 {
            least = smallest(isa, metrics);
        } else {
            lower(isa, metrics, least);
        }
        t = if t + 2 == dim { 0 } else { t + 2 };
    }
}

#[inline(always)]
fn trace_back_pairs<I: Bytes>(
    count: usize,
    state: &mut usize,
    workspace: &[u8],
    mut bit: impl FnMut(usize, u8),
) {
    for (pair, decisions) in workspace.chunks_exact(PAIR_DECISIONS).take(count / 2).enumerate().rev() {
        let slots = decisions.as_chunks::<DECISIONS>().0;
        let (register, byte) = place::<I>(*state);
        let class = usize::from(slots[4][register * (I::WIDTH / 8) + byte / 8] >> (byte % 8) & 1);
        for (t, slot) in [(2 * pair + 1, &slots[2 + class]), (2 * pair, &slots[class])] {
            bit(t, *state as u8 & 1);
            *state = back::<I>(slot, *state);
        }
    }
}

/// [`Search::choose_plain`].
#[inline(always)]
pub(crate) fn choose_plain<I: Bytes>(
    isa: I,
    code: &Code,
    targets: &[i16],
    parity: &[u8],
    symbols: &mut [u8],
    levels: &mut [u8],
) {
    let Plain::Bits(bits) = code.plain else {
        tqkv_core::trellis::choose_plain(code, targets, parity, symbols, levels);
        return;
    };
    let tables = code.levels.as_chunks::<PARITIES>().0;
    let runs = targets.chunks(I::WIDTH).zip(parity.chunks(I::WIDTH));
    let out = symbols.chunks_mut(I::WIDTH).zip(levels.chunks_mut(I::WIDTH));
    for ((targets, parity), (symbols, levels)) in runs.zip(out) {
        let (mut indices, mut padded) = ([0; 64], [0i16; 64]);
        indices[..parity.len()].copy_from_slice(parity);
        padded[..targets.len()].copy_from_slice(targets);
        let index = isa.load(&indices);
        let (mut least, mut best, mut symbol) = ([i16::MAX; 64], [0u8; 64], [0u8; 64]);
        for (part, table) in tables.iter().enumerate().take(1 << bits) {
            let candidates = isa.store(isa.pick(isa.table(&table.map(|level| level as u8)), index));
            for i in 0..I::WIDTH {
                let distance = (padded[i] - 2 * i16::from(candidates[i] as i8)).abs();
                let nearer = distance < least[i];
                least[i] = if nearer { distance } else { least[i] };
                best[i] = if nearer { candidates[i] } else { best[i] };
                symbol[i] = if nearer { part as u8 } else { symbol[i] };
            }
        }
        symbols.copy_from_slice(&symbol[..symbols.len()]);
        levels.copy_from_slice(&best[..levels.len()]);
    }
}
