//! The trellis search on byte lanes: the Viterbi search of `tqkv_core::unstable::trellis` with 16, 32 or 64
//! states per register.
//!
//! A state has eight bits, and so has the address of its metric: the number of the register, then the byte in
//! it. A step combines the states i and i + 128, so the oldest bit of a state must be a bit of the register's
//! number. The newest bit takes its place. Registers are exchanged only at this point, in pairs. One
//! instruction per exchange moves an older bit up from the byte number into the register number. Every bit
//! therefore stays in place until its turn. After eight steps all bits have had their turn, and the order is
//! the first order again.
//!
//! ```text
//! AVX-512, turns 0 0 1 0 0 1 0 1 of the register's bits R0 and R1:
//!   R0 -> byte bits 0, 1, 2, 3 -> R0   (unpack)        R1 -> lane bits 1, 0 -> R1   (lane shuffle)
//! ```
//!
//! The metrics of a branch are one 8-entry byte look-up. If the newest and the oldest bit flip the same
//! parities, two of the four branches of a butterfly share their metrics. The trace-back waits for one load
//! after the other, so two problems are traced back side by side.
//!
//! Codes with 8 states gain nothing here and run the portable search.

mod bytes;
mod plain;

pub(crate) use bytes::{Bytes, DECISIONS};
use bytes::{STATES, TURNS};
pub(crate) use plain::choose_plain;
use tqkv_core::Portable;
use tqkv_core::unstable::trellis::{Code, PARITIES, Search, Target, Trellis, WARM_UP};

/// Registers of the narrowest set of states (16 bytes each).
const MAX_REGISTERS: usize = 16;
/// Problems that are traced back side by side.
const SIDE_BY_SIDE: usize = 2;

/// Implements [`Search`] for a token with [`Bytes`]. The search is compiled once, not wherever an encoder is
/// inlined.
macro_rules! search {
    ($token:ty $(, $($generic:tt)*)?) => {
        impl $(<$($generic)*>)? tqkv_core::unstable::trellis::Search for $token {
            const PROBLEMS: usize = crate::trellis::PROBLEMS;

            #[inline(always)]
            fn search<T: tqkv_core::unstable::trellis::Target>(
                self,
                trellis: &tqkv_core::unstable::trellis::Trellis<'_>,
                dim: usize,
                targets: &[T],
                coded: &mut [u8],
                workspace: &mut [u8],
            ) {
                tqkv_core::unstable::machine::Memory::apart(
                    self,
                    #[inline(always)]
                    |isa| crate::trellis::run(isa, trellis, dim, targets, coded, workspace),
                );
            }

            #[inline(always)]
            fn choose_plain(
                self,
                code: &tqkv_core::unstable::trellis::Code,
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

/// [`Search::PROBLEMS`] for these searches.
pub(crate) const PROBLEMS: usize = SIDE_BY_SIDE;

/// [`Search::search`].
#[inline(always)]
pub(crate) fn run<I: Bytes, T: Target>(
    isa: I,
    trellis: &Trellis<'_>,
    dim: usize,
    targets: &[T],
    coded: &mut [u8],
    workspace: &mut [u8],
) {
    if trellis.code.memory != 8 {
        Portable.search(trellis, dim, targets, coded, workspace);
        return;
    }
    let steps = Steps::new::<I>(&trellis.code);
    let search = Running { isa, trellis, steps: &steps };
    let pairs = trellis.code.plain.pair_symbols() > 0;
    let mut problems = targets.chunks_exact(dim).zip(coded.chunks_exact_mut(dim / 8));
    while let Some((targets, coded)) = problems.next() {
        if const { T::SHARES } && pairs {
            search.pairs(targets, coded, workspace);
            continue;
        }
        match problems.next() {
            Some((more, also)) => search.together([targets, more], [coded, also], workspace),
            None => search.together([targets], [coded], workspace),
        }
    }
}

/// The bit of a state at each bit of the address, lowest first, before each turn.
const fn orders<I: Bytes>() -> [[usize; TURNS]; TURNS] {
    let mut orders = [[0; TURNS]; TURNS];
    let mut turn = 0;
    while turn < TURNS {
        // The bits of one path have their turns in order. The first is the bit in the register's number, the
        // last the bit at the beginning of the path.
        let mut seen = [0; TURNS];
        let mut ahead = 0;
        while ahead < TURNS {
            let bit = I::TURNS[(turn + ahead) % TURNS];
            let path = I::PATHS[bit];
            let at = if seen[bit] == 0 {
                I::WIDTH.trailing_zeros() as usize + bit
            } else {
                path[path.len() - seen[bit]]
            };
            orders[turn][at] = TURNS - 1 - ahead;
            seen[bit] += 1;
            ahead += 1;
        }
        turn += 1;
    }
    orders
}

/// For each bit of an address before an exchange, its place in the address after it.
const fn sources<I: Bytes>(bit: usize) -> [usize; TURNS] {
    let mut sources = [0, 1, 2, 3, 4, 5, 6, 7];
    let (path, mut at) = (I::PATHS[bit], I::WIDTH.trailing_zeros() as usize + bit);
    let mut i = 0;
    while i < path.len() {
        sources[at] = path[i];
        at = path[i];
        i += 1;
    }
    sources[at] = I::WIDTH.trailing_zeros() as usize + bit;
    sources
}

/// The state at each address before the first turn.
const fn states<I: Bytes>() -> [u8; STATES] {
    let order = orders::<I>()[0];
    let (mut states, mut address) = ([0; STATES], 0);
    while address < STATES {
        let mut bit = 0;
        while bit < TURNS {
            states[address] |= ((address >> bit & 1) << order[bit]) as u8;
            bit += 1;
        }
        address += 1;
    }
    states
}

/// The address of a state before the first turn.
#[inline(always)]
fn place<I: Bytes>(state: usize) -> usize {
    let order = const { orders::<I>()[0] };
    let mut address = 0;
    for (bit, from) in order.into_iter().enumerate() {
        address |= (state >> from & 1) << bit;
    }
    address
}

/// Runs `$body` for every turn, forwards or backwards.
macro_rules! turns {
    (|$turn:ident| $body:expr) => {
        turns!(@ $turn $body, 0 1 2 3 4 5 6 7)
    };
    (back |$turn:ident| $body:expr) => {
        turns!(@ $turn $body, 7 6 5 4 3 2 1 0)
    };
    (@ $turn:ident $body:expr, $($value:literal)*) => {
        $({
            const $turn: usize = $value;
            $body
        })*
    };
}

/// Parities of one turn by branch. The branches are: oldest and newest bit 0, oldest 1, newest 1, both 1.
/// Each has one parity per pair of states, by address without the bit that tells the two apart.
type Parities = [[u8; STATES / 2]; 4];

/// The parities that the steps need.
#[repr(align(64))]
struct Steps([Parities; TURNS]);

impl Steps {
    #[inline(always)]
    fn new<I: Bytes>(code: &Code) -> Self {
        let (newest, oldest) = (code.parity(1), code.parity(STATES));
        let mut all = Self([[[0; STATES / 2]; 4]; TURNS]);
        for (parities, order) in all.0.iter_mut().zip(const { orders::<I>() }) {
            let mut pairs = [0; STATES / 2];
            let mut filled = 1;
            // Parities are linear, so each bit of the address doubles the number of known parities.
            for from in order {
                if from < TURNS - 1 {
                    let flip = code.parity(2 << from) as u8;
                    let (known, rest) = pairs.split_at_mut(filled);
                    for (to, &known) in rest.iter_mut().zip(&*known) {
                        *to = known ^ flip;
                    }
                    filled *= 2;
                }
            }
            for (kind, flip) in parities.iter_mut().zip([0, oldest, newest, newest ^ oldest]) {
                for (to, &pair) in kind.iter_mut().zip(&pairs) {
                    *to = pair ^ flip as u8;
                }
            }
        }
        all
    }
}

/// The metrics of all states.
type Metrics<I> = [<I as Bytes>::B; MAX_REGISTERS];

/// A search in progress.
struct Running<'a, I> {
    isa: I,
    trellis: &'a Trellis<'a>,
    steps: &'a Steps,
}

impl<I: Bytes> Running<'_, I> {
    const REGISTERS: usize = STATES / I::WIDTH;

    /// Add, compare, select for all states. `TWIN`: the newest and the oldest bit flip the same parities.
    #[inline(always)]
    fn step<const TURN: usize, const TWIN: bool>(
        &self,
        row: &[u8; PARITIES],
        metrics: &Metrics<I>,
    ) -> (Metrics<I>, I::D) {
        let (isa, bit) = (self.isa, const { I::TURNS[TURN] });
        let [parities, dropped, odd, odd_dropped] = &self.steps.0[TURN];
        let table = isa.table(row);
        let (mut next, mut decisions) = (*metrics, isa.undecided());
        for r in 0..const { Self::REGISTERS / 2 } {
            let low = r >> bit << (bit + 1) | r & ((1 << bit) - 1);
            let high = low | 1 << bit;
            let at = r * I::WIDTH..(r + 1) * I::WIDTH;
            let (young, old) = (metrics[low], metrics[high]);
            let keep = isa.pick(table, isa.read_bytes(&parities[at.clone()]));
            let drop = isa.pick(table, isa.read_bytes(&dropped[at.clone()]));
            let (zero, one) = (isa.add(young, keep), isa.add(old, drop));
            let even = isa.min(zero, one);
            decisions = isa.note(decisions, low, false, zero, one, even);
            let (keep, drop) = if TWIN {
                (drop, keep)
            } else {
                (
                    isa.pick(table, isa.read_bytes(&odd[at.clone()])),
                    isa.pick(table, isa.read_bytes(&odd_dropped[at])),
                )
            };
            let (zero, one) = (isa.add(young, keep), isa.add(old, drop));
            let odd = isa.min(zero, one);
            decisions = isa.note(decisions, high, true, zero, one, odd);
            (next[low], next[high]) = isa.exchange(bit, even, odd);
        }
        (next, decisions)
    }

    /// Smallest metric, in all bytes.
    #[inline(always)]
    fn smallest(&self, metrics: &Metrics<I>) -> I::B {
        let mut least = metrics[0];
        for &metric in &metrics[1..const { Self::REGISTERS }] {
            least = self.isa.min(least, metric);
        }
        self.isa.smallest(least)
    }

    #[inline(always)]
    fn lower(&self, metrics: &mut Metrics<I>, by: I::B) {
        for metric in &mut metrics[..const { Self::REGISTERS }] {
            *metric = self.isa.sub(*metric, by);
        }
    }

    /// Metrics by address, as registers.
    #[inline(always)]
    fn load(&self, bytes: &[u8; STATES]) -> Metrics<I> {
        let mut metrics = [self.isa.splat_byte(0); MAX_REGISTERS];
        for (metric, bytes) in metrics.iter_mut().zip(bytes.chunks_exact(I::WIDTH)) {
            *metric = self.isa.read_bytes(bytes);
        }
        metrics
    }

    #[inline(always)]
    fn store(&self, metrics: &Metrics<I>, bytes: &mut [u8; STATES]) {
        for (&metric, bytes) in metrics.iter().zip(bytes.chunks_exact_mut(I::WIDTH)) {
            self.isa.write_bytes(metric, bytes);
        }
    }

    /// Runs over `count` coordinates (a multiple of 8), starting at `first`; leaves the metrics by address.
    #[inline(always)]
    fn pass_inlined<T: Target, const TWIN: bool>(
        &self,
        targets: &[T],
        first: usize,
        count: usize,
        bytes: &mut [u8; STATES],
        workspace: &mut [u8],
    ) {
        let (rows, limit) = (self.trellis.rows(), self.trellis.code.limit());
        let mut metrics = self.load(bytes);
        let mut least = self.isa.splat_byte(0);
        let steps = workspace.as_chunks_mut::<DECISIONS>().0.as_chunks_mut::<TURNS>().0;
        let runs = targets.as_chunks::<TURNS>().0;
        let mut run = first / TURNS;
        for decisions in steps.iter_mut().take(count / TURNS) {
            let Some(targets) = runs.get(run) else { break };
            turns!(|TURN| {
                let row = targets[TURN].row(rows, limit, (1, 0));
                let (next, decided) = self.step::<TURN, TWIN>(row, &metrics);
                metrics = next;
                self.isa.write(decided, &mut decisions[TURN]);
                if TURN % 4 == 1 {
                    least = self.smallest(&metrics);
                } else if TURN % 4 == 3 {
                    self.lower(&mut metrics, least);
                }
            });
            run = if run + 1 == runs.len() { 0 } else { run + 1 };
        }
        self.store(&metrics, bytes);
    }

    /// Compiled once, not once per pass.
    fn pass<T: Target>(
        &self,
        targets: &[T],
        first: usize,
        count: usize,
        bytes: &mut [u8; STATES],
        workspace: &mut [u8],
    ) {
        let code = &self.trellis.code;
        if code.parity(1) == code.parity(STATES) {
            self.isa.apart(
                #[inline(always)]
                |_| self.pass_inlined::<T, true>(targets, first, count, bytes, workspace),
            );
        } else {
            self.isa.apart(
                #[inline(always)]
                |_| self.pass_inlined::<T, false>(targets, first, count, bytes, workspace),
            );
        }
    }

    /// Searches for `P` problems of codes with plain bits.
    #[inline(always)]
    fn together<T: Target, const P: usize>(
        &self,
        targets: [&[T]; P],
        coded: [&mut [u8]; P],
        workspace: &mut [u8],
    ) {
        let dim = targets[0].len();
        let room = if dim > WARM_UP { dim } else { WARM_UP } * DECISIONS;
        let before = (dim - WARM_UP % dim) % dim;
        let mut addresses = [0; P];
        for p in 0..P {
            let workspace = &mut workspace[p * room..(p + 1) * room];
            let mut metrics = [0; STATES];
            self.pass(targets[p], before, WARM_UP, &mut metrics, workspace);
            self.pass(targets[p], 0, WARM_UP, &mut metrics, workspace);
            addresses[p] = place::<I>(best_state::<I>(&metrics));
        }
        trace_back::<I, P>(WARM_UP, &mut addresses, workspace, room, |_, _| ());
        for p in 0..P {
            let workspace = &mut workspace[p * room..(p + 1) * room];
            let mut metrics = [u8::MAX; STATES];
            metrics[addresses[p] % STATES] = 0;
            self.pass(targets[p], 0, dim, &mut metrics, workspace);
        }
        let mut bits = coded;
        for coded in &mut bits {
            coded.fill(0);
        }
        let n = dim / 8;
        let (mut byte, mut shift) = (n, 7);
        trace_back::<I, P>(dim, &mut addresses, workspace, room, |p, bit| {
            if p == 0 {
                if byte == 0 {
                    (byte, shift) = (n, shift - 1);
                }
                byte -= 1;
            }
            bits[p][byte] |= bit << shift;
        });
    }

    /// Searches for one problem of a code whose pairs share symbols; its two classes run side by side.
    #[inline(always)]
    fn pairs<T: Target>(&self, targets: &[T], coded: &mut [u8], workspace: &mut [u8]) {
        let dim = targets.len();
        let mut metrics = [0; STATES];
        let before = (dim - WARM_UP % dim) % dim;
        self.pass_pairs(targets, before, WARM_UP, &mut metrics, workspace);
        self.pass_pairs(targets, 0, WARM_UP, &mut metrics, workspace);
        let mut address = place::<I>(best_state::<I>(&metrics));
        trace_back_pairs::<I>(WARM_UP, &mut address, workspace, |_, _| ());
        metrics = [u8::MAX; STATES];
        metrics[address % STATES] = 0;
        self.pass_pairs(targets, 0, dim, &mut metrics, workspace);
        coded.fill(0);
        let n = dim / 8;
        trace_back_pairs::<I>(dim, &mut address, workspace, |t, bit| coded[t % n] |= bit << (t / n));
    }

    /// Compiled once, not once per pass.
    fn pass_pairs<T: Target>(
        &self,
        targets: &[T],
        first: usize,
        count: usize,
        bytes: &mut [u8; STATES],
        workspace: &mut [u8],
    ) {
        self.isa.apart(
            #[inline(always)]
            |_| self.pass_pairs_inlined(targets, first, count, bytes, workspace),
        );
    }

    #[inline(always)]
    fn pass_pairs_inlined<T: Target>(
        &self,
        targets: &[T],
        first: usize,
        count: usize,
        bytes: &mut [u8; STATES],
        workspace: &mut [u8],
    ) {
        let (limit, rows) = (self.trellis.code.limit(), self.trellis.rows());
        let stride = self.trellis.code.rows_per_target();
        let mut metrics = self.load(bytes);
        let mut least = self.isa.splat_byte(0);
        let steps = workspace.as_chunks_mut::<DECISIONS>().0.as_chunks_mut::<PAIR_DECISIONS>().0;
        let runs = targets.as_chunks::<TURNS>().0;
        let mut run = first / TURNS;
        for decisions in steps.as_chunks_mut::<{ TURNS / 2 }>().0.iter_mut().take(count / TURNS) {
            let Some(targets) = runs.get(run) else { break };
            macro_rules! pairs {
                ($($pair:literal)*) => {
                    $({
                        let row_of = |t: usize, row: usize| {
                            targets[t].row(rows, limit, (stride, row))
                        };
                        let decisions = &mut decisions[$pair];
                        let mut ends = [metrics; 2];
                        for class in 0..2 {
                            let row = row_of(2 * $pair, class);
                            let (middle, decided) = self.step::<{ 2 * $pair }, false>(row, &metrics);
                            self.isa.write(decided, &mut decisions[class]);
                            let row = row_of(2 * $pair + 1, 2 + class);
                            let (end, decided) = self.step::<{ 2 * $pair + 1 }, false>(row, &middle);
                            self.isa.write(decided, &mut decisions[2 + class]);
                            ends[class] = end;
                        }
                        let mut decided = self.isa.undecided();
                        for r in 0..const { Self::REGISTERS } {
                            let (lower, upper) = (ends[0][r], ends[1][r]);
                            metrics[r] = self.isa.min(lower, upper);
                            let half = r >= const { Self::REGISTERS / 2 };
                            decided = self.isa.note(decided, r, half, lower, upper, metrics[r]);
                        }
                        self.isa.write(decided, &mut decisions[4]);
                        if $pair % 2 == 0 {
                            least = self.smallest(&metrics);
                        } else {
                            self.lower(&mut metrics, least);
                        }
                    })*
                };
            }
            pairs!(0 1 2 3);
            run = if run + 1 == runs.len() { 0 } else { run + 1 };
        }
        self.store(&metrics, bytes);
    }
}

/// Decisions of a pair, each by address: even coordinate in both classes, odd coordinate in both, and the
/// class.
const PAIR_DECISIONS: usize = 5;

/// The lowest state with the smallest metric; `metrics` are ordered by address.
#[inline(always)]
fn best_state<I: Bytes>(metrics: &[u8; STATES]) -> usize {
    let mut best = u16::MAX;
    for (&metric, state) in metrics.iter().zip(const { states::<I>() }) {
        best = best.min(u16::from(metric) << 8 | u16::from(state));
    }
    usize::from(best & 0xff)
}

/// Takes an address after the exchange of a turn. Returns the newest bit of its state, and the address of the
/// state before it at the beginning of the turn.
#[inline(always)]
fn back<I: Bytes, const TURN: usize>(decisions: &[u8; DECISIONS], after: usize) -> (u8, usize) {
    let bit = const { I::TURNS[TURN] };
    let sources = const { sources::<I>(I::TURNS[TURN]) };
    let mut address = 0;
    for (before, source) in sources.into_iter().enumerate() {
        address |= (after >> source & 1) << before;
    }
    let at = const { I::WIDTH.trailing_zeros() as usize + I::TURNS[TURN] };
    let decision = I::decision(decisions, address, bit);
    ((address >> at) as u8 & 1, address & !(1 << at) | decision << at)
}

/// Traces back `P` problems, each in `room` bytes, over `count` coordinates. Calls `bit(problem, u)` for each
/// coordinate.
#[inline(always)]
fn trace_back<I: Bytes, const P: usize>(
    count: usize,
    addresses: &mut [usize; P],
    workspace: &[u8],
    room: usize,
    mut bit: impl FnMut(usize, u8),
) {
    let mut steps = [&[][..]; P];
    for (p, steps) in steps.iter_mut().enumerate() {
        *steps = workspace[p * room..].as_chunks::<DECISIONS>().0.as_chunks::<TURNS>().0;
    }
    for run in (0..count / TURNS).rev() {
        let decisions: [&[[u8; DECISIONS]; TURNS]; P] = core::array::from_fn(|p| &steps[p][run]);
        turns!(
            back | TURN | {
                for p in 0..P {
                    let newest;
                    (newest, addresses[p]) = back::<I, TURN>(&decisions[p][TURN], addresses[p]);
                    bit(p, newest);
                }
            }
        );
    }
}

#[inline(always)]
fn trace_back_pairs<I: Bytes>(
    count: usize,
    address: &mut usize,
    workspace: &[u8],
    mut bit: impl FnMut(usize, u8),
) {
    let steps = workspace.as_chunks::<DECISIONS>().0.as_chunks::<PAIR_DECISIONS>().0;
    for (run, pairs) in steps.as_chunks::<{ TURNS / 2 }>().0.iter().enumerate().take(count / TURNS).rev() {
        macro_rules! pairs {
            ($($pair:literal)*) => {
                $({
                    let top = const { I::PATHS.len() - 1 };
                    let decisions = &pairs[$pair];
                    let class = I::decision(&decisions[4], *address, top);
                    for (odd, slot) in [(true, 2 + class), (false, class)] {
                        let slot = &decisions[slot];
                        let (newest, before) = if odd {
                            back::<I, { 2 * $pair + 1 }>(slot, *address)
                        } else {
                            back::<I, { 2 * $pair }>(slot, *address)
                        };
                        *address = before;
                        bit(TURNS * run + 2 * $pair + usize::from(odd), newest);
                    }
                })*
            };
        }
        pairs!(3 2 1 0);
    }
}
