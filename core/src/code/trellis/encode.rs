//! From a vector to a trellis block: targets, candidate scales, plain symbols, the stored scale.

use super::code::{Code, MAX_LEVELS, PARITIES, Plain, RESOLUTION};
use super::quarters::{QUARTERS, Quarter, QuarterWeights, Quarters};
use super::{Trellis, planes};
use crate::code::scalar::{self, check_finite};
use crate::code::scale::{Effort, Moments, ScaleMode, StoredScale, canonical_sum, to_f16};
use crate::error::EncodeError;
use crate::head_dim::{GROUP, HeadDim, MAX_HEAD_DIM};
use crate::machine::block_io::SCALE_BYTES;
use crate::machine::{Isa, Lanes, Memory};
use crate::rotation::{self, Signs};

/// A search knows this of a coordinate: its target, or its metric row.
pub trait Target: Copy {
    /// False if neighbours never share symbols, so that no search of pairs is needed.
    const SHARES: bool;

    /// The metric rows of the coordinate.
    fn rows<'a>(&'a self, trellis: &Trellis<'a>) -> &'a [[u8; PARITIES]];

    /// One of its metric rows. `of` holds the number of rows per target, and which of them. They, `rows` and
    /// `limit` are those of the code.
    fn row<'a>(&'a self, rows: &'a [[u8; PARITIES]], limit: i32, of: (usize, usize)) -> &'a [u8; PARITIES];
}

impl Target for i16 {
    const SHARES: bool = true;

    #[inline(always)]
    fn rows<'a>(&'a self, trellis: &Trellis<'a>) -> &'a [[u8; PARITIES]] {
        trellis.rows_of(*self)
    }

    #[inline(always)]
    fn row<'a>(
        &'a self,
        rows: &'a [[u8; PARITIES]],
        limit: i32,
        (stride, which): (usize, usize),
    ) -> &'a [u8; PARITIES] {
        rows.get((i32::from(*self) + limit) as usize * stride + which).unwrap_or(&[0; PARITIES])
    }
}

/// The row itself, in codes of quarters.
impl Target for [u8; PARITIES] {
    const SHARES: bool = false;

    #[inline(always)]
    fn rows<'a>(&'a self, _: &Trellis<'a>) -> &'a [[u8; PARITIES]] {
        core::slice::from_ref(self)
    }

    #[inline(always)]
    fn row<'a>(&'a self, _: &'a [[u8; PARITIES]], _: i32, _: (usize, usize)) -> &'a [u8; PARITIES] {
        self
    }
}

/// A machine's implementation of the search of `viterbi`; all implementations give the same bits.
pub trait Search: Copy {
    /// Number of problems that it solves side by side; the workspace is that many times
    /// [`super::workspace_bytes`].
    const PROBLEMS: usize;

    /// Finds the coded bits of one or more problems. `targets` holds `dim` values per problem, at most
    /// [`Code::limit`] in magnitude. `coded` holds `dim / 8` bytes per problem (a bit plane).
    fn search<T: Target>(
        self,
        trellis: &Trellis<'_>,
        dim: usize,
        targets: &[T],
        coded: &mut [u8],
        workspace: &mut [u8],
    );

    /// The same as [`choose_plain`].
    #[inline(always)]
    fn choose_plain(
        self,
        code: &Code,
        targets: &[i16],
        parity: &[u8],
        symbols: &mut [u8],
        levels: &mut [u8],
    ) {
        choose_plain(code, targets, parity, symbols, levels);
    }
}

/// Maximum number of problems in one call of [`Search::search`].
const BATCH: usize = 4;

/// The data that all vectors of a batch share.
pub(crate) struct Job<'a> {
    pub(crate) trellis: &'a Trellis<'a>,
    pub(crate) shape: HeadDim,
    pub(crate) signs: &'a Signs,
    pub(crate) scale_mode: ScaleMode,
    pub(crate) effort: Effort,
    /// The weights of a code of quarters.
    pub(crate) weights: Option<QuarterWeights>,
}

impl<'a> Job<'a> {
    /// The quarters of the code, and their weights.
    #[inline(always)]
    fn quarters(&self) -> Option<(&'a Quarters, QuarterWeights)> {
        Some((self.trellis.quarters()?, self.weights?))
    }
}

/// Scales that an encoder tries, as offsets from the predicted one.
pub const fn offsets(effort: Effort) -> &'static [f32] {
    match effort {
        Effort::Fast => &[0.0],
        Effort::Default => &[-0.04, 0.04],
        Effort::Best => &[-0.09, -0.03, 0.03, 0.09],
    }
}

/// The norm of a vector and its predicted scale, known before the search.
#[derive(Clone, Copy, Debug)]
pub struct Vector {
    norm_squared: f32,
    norm: f32,
    predicted: f32,
    /// `norm_squared` with the weights of a code of quarters: sum w y^2 / dim.
    weighted: f32,
}

impl Vector {
    /// Computes them for the rotated `y` with |x|^2 = `norm_squared`.
    #[inline(always)]
    pub fn new<I: Isa>(isa: I, code: &Code, norm_squared: f32, y: &[I::V]) -> Self {
        let mut largest = isa.splat(0.0);
        for &v in y {
            largest = v.max_abs(largest);
        }
        let norm = isa.sqrt(norm_squared);
        let peak = if norm > 0.0 { largest.max() / norm } else { 0.0 };
        Self { norm_squared, norm, predicted: code.predictor.scale(peak), weighted: norm_squared }
    }

    /// The factor that turns a coordinate into a target, at a scale of [`offsets`].
    #[inline(always)]
    pub fn factor(&self, code: &Code, offset: f32) -> f32 {
        self.factor_of(code.per_sigma, offset)
    }

    /// [`Vector::factor`] for levels of `per_sigma` units in one sigma.
    #[inline(always)]
    fn factor_of(&self, per_sigma: f32, offset: f32) -> f32 {
        let Self { norm, predicted, .. } = *self;
        if norm > 0.0 { (per_sigma * RESOLUTION as f32) * (predicted + offset) / norm } else { 0.0 }
    }
}

/// The sums that judge the codes at one candidate scale.
#[derive(Clone, Copy, Debug)]
pub struct Candidate(Moments);

impl Candidate {
    /// Worse than every useful candidate; stored as the zero block.
    pub const NONE: Self =
        Self(Moments { norm_squared: 0.0, assumed: 0.0, cross: 0.0, energy: 1.0, whole: None });

    /// `cross` is the sum of y l and `energy` the sum of l^2, with l in units of the levels.
    #[inline(always)]
    pub fn new(code: &Code, vector: &Vector, offset: f32, cross: f32, energy: f32) -> Self {
        let Vector { norm_squared, norm, predicted, .. } = *vector;
        let unit = code.unit();
        let assumed = norm / (predicted + offset);
        Self(Moments { norm_squared, assumed, cross, energy, whole: None }.in_units_of(unit))
    }

    /// [`Candidate::new`] for a code of quarters. The sums have weights in the first row.
    fn of_quarters(code: &Code, vector: &Vector, offset: f32, sums: [[f32; 2]; 2]) -> Self {
        let Vector { norm_squared, norm, predicted, weighted } = *vector;
        let ([cross, energy], [plain_cross, plain_energy]) = (sums[0], sums[1]);
        let assumed = norm / (predicted + offset);
        let whole = Some([norm_squared, plain_cross, plain_energy]);
        let moments = Moments { norm_squared: weighted, assumed, cross, energy, whole };
        Self(moments.in_units_of(code.unit()))
    }

    /// Returns true if it is better than `best`; of equal candidates the first stays.
    #[inline(always)]
    pub fn beats(&self, best: &Self) -> bool {
        self.0.cross > 0.0 && self.0.quality() > best.0.quality()
    }

    /// The scale to store.
    #[inline(always)]
    pub fn stored<I: Isa>(&self, isa: I, mode: ScaleMode, dim: usize) -> StoredScale {
        if self.0.cross > 0.0 { to_f16(isa, self.0.scale(isa, mode, dim)) } else { StoredScale::Zero }
    }
}

/// The best codes so far.
#[derive(Clone, Copy)]
struct Best<const G: usize> {
    candidate: Candidate,
    body: [[u8; GROUP / 2]; G],
}

/// Encodes any number of vectors, in batches that give the search enough problems.
#[inline(always)]
pub(crate) fn encode_all<I: Memory, S: Search, const G: usize>(
    job: &Job<'_>,
    isa: I,
    search: S,
    workspace: &mut [u8],
    xs: &[f32],
    blocks: &mut [u8],
) -> Result<(), EncodeError> {
    let (dim, bytes) = (job.shape.dim(), SCALE_BYTES + job.trellis.code.plain.body_bytes(job.shape.dim()));
    let together = if S::PROBLEMS > 1 && offsets(job.effort).len() == 1 { BATCH } else { 1 };
    for (xs, blocks) in xs.chunks(together * dim).zip(blocks.chunks_mut(together * bytes)) {
        if xs.len() == BATCH * dim {
            encode::<I, S, G, BATCH>(job, isa, search, workspace, xs, blocks)?;
        } else {
            for (x, block) in xs.chunks(dim).zip(blocks.chunks_mut(bytes)) {
                encode::<I, S, G, 1>(job, isa, search, workspace, x, block)?;
            }
        }
    }
    Ok(())
}

/// Encodes `N` vectors (1, 2 or 4) of `dim` values, back to back, into `N` blocks.
#[inline(always)]
fn encode<I: Memory, S: Search, const G: usize, const N: usize>(
    job: &Job<'_>,
    isa: I,
    search: S,
    workspace: &mut [u8],
    xs: &[f32],
    blocks: &mut [u8],
) -> Result<(), EncodeError> {
    let (dim, code) = (job.shape.dim(), &job.trellis.code);
    let (groups, quarters) = (job.shape.groups(), job.quarters());
    let mut registers = [[isa.splat(0.0); G]; N];
    let mut vectors = [Vector { norm_squared: 0.0, norm: 0.0, predicted: 1.0, weighted: 0.0 }; N];
    for ((x, y), vector) in xs.chunks_exact(dim).zip(&mut registers).zip(&mut vectors) {
        *vector = prepare(job, isa, x, &mut y[..groups])?;
    }
    let mut best = [Best::<G> { candidate: Candidate::NONE, body: [[0; GROUP / 2]; G] }; N];
    for offsets in offsets(job.effort).chunks(BATCH / N) {
        let (mut targets, mut coded) = ([[[0; GROUP]; G]; BATCH], [[[0; GROUP / 8]; G]; BATCH]);
        let targets = targets.as_flattened_mut().as_flattened_mut();
        let coded = coded.as_flattened_mut().as_flattened_mut();
        let problems = N * offsets.len();
        let (targets, coded) = (&mut targets[..problems * dim], &mut coded[..problems * dim / 8]);
        for (i, targets) in targets.chunks_exact_mut(dim).enumerate() {
            let (v, offset) = (i / offsets.len(), offsets[i % offsets.len()]);
            let y = &registers[v][..groups];
            match &quarters {
                None => fill_targets(code, isa, &vectors[v], offset, y, targets),
                Some((quarters, _)) => fill_quarters(quarters, isa, &vectors[v], offset, y, targets),
            }
        }
        match &quarters {
            None => search.search(job.trellis, dim, targets, coded, workspace),
            Some(of) => {
                search_quarters::<I, S, G>(job.trellis, of, isa, search, (dim, targets), coded, workspace)
            }
        }
        for (i, (targets, coded)) in targets.chunks_exact(dim).zip(coded.chunks_exact(dim / 8)).enumerate() {
            let v = i / offsets.len();
            let mut body = [[0; GROUP / 2]; G];
            let (y, body_bytes) = (&registers[v][..groups], body.as_flattened_mut());
            let (vector, offset) = (&vectors[v], offsets[i % offsets.len()]);
            let candidate = match &quarters {
                None => {
                    let (cross, energy) = finish::<I, S, G>(code, isa, search, y, targets, coded, body_bytes);
                    Candidate::new(code, vector, offset, cross, energy)
                }
                Some(of) => {
                    let codes = (targets, coded);
                    let sums = finish_quarters::<I, S, G>(code, of, isa, search, y, codes, body_bytes);
                    Candidate::of_quarters(code, vector, offset, sums)
                }
            };
            if candidate.beats(&best[v].candidate) {
                best[v] = Best { candidate, body };
            }
        }
    }
    store(job, isa, &best, blocks)
}

/// Writes the best codes with their scales, or nothing where a scale is out of range.
#[inline(always)]
fn store<I: Memory, const G: usize, const N: usize>(
    job: &Job<'_>,
    isa: I,
    best: &[Best<G>; N],
    blocks: &mut [u8],
) -> Result<(), EncodeError> {
    let dim = job.shape.dim();
    let bytes = SCALE_BYTES + job.trellis.code.plain.body_bytes(dim);
    let mut scales = [StoredScale::Zero; N];
    for (scale, best) in scales.iter_mut().zip(best) {
        *scale = best.candidate.stored(isa, job.scale_mode, dim);
    }
    if scales.iter().any(|scale| matches!(scale, StoredScale::OutOfRange)) {
        return Err(EncodeError::OutOfRange);
    }
    for ((block, best), scale) in blocks.chunks_exact_mut(bytes).zip(best).zip(scales) {
        match (scale, block.split_first_chunk_mut()) {
            (StoredScale::Scale(scale), Some((head, body))) => {
                *head = scale.to_le_bytes();
                body.copy_from_slice(&best.body.as_flattened()[..body.len()]);
            }
            _ => block.fill(0),
        }
    }
    Ok(())
}

/// Rotates one vector and predicts its scale.
fn prepare<I: Memory>(job: &Job<'_>, isa: I, x: &[f32], y: &mut [I::V]) -> Result<Vector, EncodeError> {
    isa.apart(
        #[inline(always)]
        |isa| {
            rotation::load(isa, x, y);
            let norm_squared = scalar::norm_squared(isa, y);
            check_finite(x, norm_squared)?;
            let Some((_, weights)) = job.quarters() else {
                rotation::forward_apart(isa, job.shape, job.signs, y);
                return Ok(Vector::new(isa, &job.trellis.code, norm_squared, y));
            };
            rotation::quarters_forward_apart(isa, job.shape, job.signs, y);
            let vector = Vector::new(isa, &job.trellis.code, norm_squared, y);
            let dim = job.shape.dim();
            let terms = y.iter().enumerate();
            let energy = canonical_sum(
                isa,
                terms.map(
                    #[inline(always)]
                    |(g, &v)| weigh(isa, &weights, dim, g, v) * v,
                ),
            );
            Ok(Vector { weighted: energy / dim as f32, ..vector })
        },
    )
}

/// Adding and then subtracting this number rounds to an integer, ties to even.
const ROUND: f32 = 12_582_912.0;

/// The target of a coordinate that was multiplied by [`Vector::factor`]; `limit` is [`Code::limit`].
#[inline(always)]
pub fn round_target(limit: f32, coordinate: f32) -> f32 {
    (coordinate.clamp(-limit, limit) + ROUND) - ROUND
}

/// Targets: the coordinates in half level units at a candidate scale, rounded and clamped.
#[inline(always)]
fn fill_targets<I: Memory>(
    code: &Code,
    isa: I,
    vector: &Vector,
    offset: f32,
    y: &[I::V],
    targets: &mut [i16],
) {
    let factor = isa.splat(vector.factor(code, offset));
    let limit = code.limit() as f32;
    for (run, &v) in targets.chunks_mut(GROUP).zip(y) {
        let mut lanes = [0.0; GROUP];
        isa.store(v * factor, &mut lanes);
        for (target, lane) in run.iter_mut().zip(lanes) {
            *target = round_target(limit, lane) as i16;
        }
    }
}

/// The register `v` of group `group`, times the weight of each coordinate's quarter.
#[inline(always)]
fn weigh<I: Memory>(isa: I, weights: &QuarterWeights, dim: usize, group: usize, v: I::V) -> I::V {
    let mut lanes = [0.0; GROUP];
    for (i, lane) in lanes.iter_mut().enumerate() {
        *lane = weights.values[(group * GROUP + i) * QUARTERS / dim % QUARTERS];
    }
    v * isa.load(&lanes)
}

/// [`fill_targets`] for a code of quarters: each in the units of its own width.
#[inline(always)]
fn fill_quarters<I: Memory>(
    quarters: &Quarters,
    isa: I,
    vector: &Vector,
    offset: f32,
    y: &[I::V],
    targets: &mut [i16],
) {
    let mut lanes = [0.0; MAX_HEAD_DIM];
    rotation::store(isa, y, &mut lanes[..targets.len()]);
    let width = targets.len() / QUARTERS;
    for ((quarter, targets), lanes) in quarters.iter().zip(targets.chunks_mut(width)).zip(lanes.chunks(width))
    {
        let (factor, limit) = (vector.factor_of(quarter.per_sigma, offset), quarter.code.limit() as f32);
        for (target, &lane) in targets.iter_mut().zip(lanes) {
            *target = round_target(limit, lane * factor) as i16;
        }
    }
}

/// Searches with weighted metric rows. It is a function of its own, so that other codes do not use its stack.
#[inline(never)]
fn search_quarters<I: Memory, S: Search, const G: usize>(
    trellis: &Trellis<'_>,
    (quarters, weights): &(&Quarters, QuarterWeights),
    isa: I,
    search: S,
    (dim, targets): (usize, &[i16]),
    coded: &mut [u8],
    workspace: &mut [u8],
) {
    let mut rows = [[[[0; PARITIES]; GROUP]; G]; BATCH];
    let rows = &mut rows.as_flattened_mut().as_flattened_mut()[..targets.len()];
    isa.apart(
        #[inline(always)]
        |_| {
            let runs = targets.chunks(dim / QUARTERS).zip(rows.chunks_mut(dim / QUARTERS));
            for ((targets, rows), (quarter, &step)) in runs.zip(quarters.iter().zip(&weights.steps).cycle()) {
                weigh_rows(quarter, step, targets, rows);
            }
        },
    );
    search.search(trellis, dim, rows, coded, workspace);
}

/// The metric rows of the targets of a quarter, times `step` / 256, rounded to nearest, halves up.
#[inline(always)]
fn weigh_rows(quarter: &Quarter, step: u16, targets: &[i16], rows: &mut [[u8; PARITIES]]) {
    for (row, &target) in rows.iter_mut().zip(targets) {
        *row = quarter.row(target);
    }
    if step != 256 {
        for metric in rows.as_flattened_mut() {
            *metric = ((u16::from(*metric) * step + 128) >> 8) as u8;
        }
    }
}

/// Completes the codes of one problem; returns the sums y l and l^2 with l in units of the levels.
fn finish<I: Memory, S: Search, const G: usize>(
    code: &Code,
    isa: I,
    search: S,
    y: &[I::V],
    targets: &[i16],
    coded: &[u8],
    body: &mut [u8],
) -> (f32, f32) {
    isa.apart(
        #[inline(always)]
        |isa| finish_in_line::<I, S, G>(code, isa, search, y, targets, coded, body),
    )
}

#[inline(always)]
fn finish_in_line<I: Memory, S: Search, const G: usize>(
    code: &Code,
    isa: I,
    search: S,
    y: &[I::V],
    targets: &[i16],
    coded: &[u8],
    body: &mut [u8],
) -> (f32, f32) {
    let dim = targets.len();
    let (mut parity, mut symbols, mut levels) = ([[0; GROUP]; G], [[0; GROUP]; G], [[0; GROUP]; G]);
    let (parity, symbols) = (&mut parity.as_flattened_mut()[..dim], symbols.as_flattened_mut());
    let levels = &mut levels.as_flattened_mut()[..dim];
    planes::parities(code, coded, parity);
    let symbols = match code.plain {
        Plain::Bits(_) | Plain::Quarters(_) => &mut symbols[..dim],
        Plain::PairOfThree | Plain::PairOfSix => &mut symbols[..dim / 2],
    };
    search.choose_plain(code, targets, parity, symbols, levels);
    let (head, plain) = body.split_at_mut(coded.len());
    head.copy_from_slice(coded);
    planes::pack_plain(code, symbols, plain);

    let mut energy = 0;
    for &level in levels.iter() {
        energy += i32::from(level as i8) * i32::from(level as i8);
    }
    let mut registers = [isa.round_i8(isa.splat(0.0)); G];
    for (register, bytes) in registers.iter_mut().zip(levels.chunks(GROUP)) {
        *register = isa.read_codes::<8>(bytes);
    }
    let cross = canonical_sum(isa, y.iter().zip(registers).map(|(&v, level)| v * isa.widen_i8(level)));
    (cross, energy as f32)
}

/// [`finish`] for a code of quarters: both sums with weights, then both without.
fn finish_quarters<I: Memory, S: Search, const G: usize>(
    code: &Code,
    (quarters, weights): &(&Quarters, QuarterWeights),
    isa: I,
    search: S,
    y: &[I::V],
    (targets, coded): (&[i16], &[u8]),
    body: &mut [u8],
) -> [[f32; 2]; 2] {
    isa.apart(
        #[inline(always)]
        |isa| {
            let (dim, width) = (targets.len(), targets.len() / QUARTERS);
            let (mut parity, mut symbols, mut levels) = ([[0; GROUP]; G], [[0; GROUP]; G], [[0; GROUP]; G]);
            let parity = &mut parity.as_flattened_mut()[..dim];
            let (symbols, levels) =
                (&mut symbols.as_flattened_mut()[..dim], &mut levels.as_flattened_mut()[..dim]);
            planes::parities(code, coded, parity);
            let chosen = parity.chunks(width).zip(symbols.chunks_mut(width)).zip(levels.chunks_mut(width));
            for ((quarter, targets), ((parity, symbols), levels)) in
                quarters.iter().zip(targets.chunks(width)).zip(chosen)
            {
                search.choose_plain(&quarter.code, targets, parity, symbols, levels);
            }
            let (head, plain) = body.split_at_mut(coded.len());
            head.copy_from_slice(coded);
            planes::pack_plain(code, symbols, plain);

            // The levels that the block stands for are not those of the search.
            for ((level, &z), &symbol) in levels.iter_mut().zip(&*parity).zip(&*symbols) {
                *level = z | symbol << 3;
            }
            planes::look_up_quarters(isa, quarters, levels);
            let (mut energy, mut whole) = (0.0, 0);
            for (levels, weight) in levels.chunks(width).zip(weights.values) {
                let squares = levels.iter().map(|&level| i32::from(level as i8) * i32::from(level as i8));
                let sum = squares.sum::<i32>();
                energy += weight * sum as f32;
                whole += sum;
            }
            let mut registers = [isa.round_i8(isa.splat(0.0)); G];
            for (register, bytes) in registers.iter_mut().zip(levels.chunks(GROUP)) {
                *register = isa.read_codes::<8>(bytes);
            }
            let terms = || y.iter().zip(registers).enumerate();
            let cross = canonical_sum(
                isa,
                terms().map(
                    #[inline(always)]
                    |(g, (&v, level))| weigh(isa, weights, dim, g, v) * isa.widen_i8(level),
                ),
            );
            let plain = canonical_sum(
                isa,
                terms().map(
                    #[inline(always)]
                    |(_, (&v, level))| v * isa.widen_i8(level),
                ),
            );
            [[cross, energy], [plain, whole as f32]]
        },
    )
}

/// Chooses the plain symbols nearest to the targets, the lowest on ties, and their levels (bits of `i8`).
///
/// `symbols` holds one byte per coordinate, or one per pair.
#[inline(always)]
pub fn choose_plain(code: &Code, targets: &[i16], parity: &[u8], symbols: &mut [u8], levels: &mut [u8]) {
    let level = |parity: u8, part: u8| {
        i32::from(code.levels[(usize::from(parity) + PARITIES * usize::from(part)) % MAX_LEVELS])
    };
    let distance = |target: i16, level: i32| {
        let difference = i32::from(target) - RESOLUTION * level;
        difference * difference
    };
    match code.plain {
        // Each quarter is chosen by the code of its own width.
        Plain::Quarters(_) => {}
        Plain::Bits(bits) => {
            let coordinates = targets.iter().zip(parity).zip(symbols).zip(levels);
            for (((&target, &z), symbol), best) in coordinates {
                let mut least = i32::MAX;
                for part in 0..1 << bits {
                    let level = level(z, part);
                    let d = distance(target, level);
                    if d < least {
                        (least, *symbol, *best) = (d, part, level as u8);
                    }
                }
            }
        }
        Plain::PairOfThree | Plain::PairOfSix => {
            let pairs = targets.as_chunks::<2>().0.iter().zip(parity.as_chunks::<2>().0);
            for ((([y0, y1], [z0, z1]), symbol), best) in
                pairs.zip(symbols).zip(levels.as_chunks_mut::<2>().0)
            {
                let mut least = i32::MAX;
                for candidate in 0..code.plain.pair_symbols() {
                    let (even, odd) = planes::pair_parts(code.plain, candidate);
                    let (even, odd) = (level(*z0, even), level(*z1, odd));
                    let d = distance(*y0, even) + distance(*y1, odd);
                    if d < least {
                        (least, *symbol, *best) = (d, candidate, [even as u8, odd as u8]);
                    }
                }
            }
        }
    }
}

/// The energy of the levels stays exact in `f32`.
const _: () = assert!(MAX_HEAD_DIM * 127 * 127 < 1 << 24);
