//! Queries as signed bytes in the order of a page's lines.

use super::MAX_HEADS;
use super::plan::Plan;
use crate::level::{Kernel, Level};
use crate::lines::Machine;
use tqkv_core::MAX_HEAD_DIM;

/// Maximum number of runs of 32 coordinates with their own scale.
const MAX_RUNS: usize = MAX_HEAD_DIM / 32;

/// Words that a step of the kernels may read past those of a query.
const PADDING: usize = 8;

/// Words of a query, and padding.
const WORDS: usize = MAX_HEAD_DIM / 4 + PADDING;

/// The values of the dot products of one query head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    /// For each run, the value of one unit of an integer dot product; the next field is the excess of a
    /// biased one.
    pub(super) factors: [f32; MAX_RUNS],
    pub(super) biases: [i32; MAX_RUNS],
}

impl Head {
    const ZERO: Self = Self { factors: [0.0; MAX_RUNS], biases: [0; MAX_RUNS] };
}

/// Up to [`MAX_HEADS`] query heads of one GQA group, prepared for [`super::KeyPages::scores`]. They take
/// about 9 KiB, and are made once per token and layer and used for every page.
#[derive(Clone, Debug)]
pub struct Queries {
    /// Four bytes per unit, field and head, in this order. Words for the same levels are neighbours, so
    /// kernels read one slice for any number of heads.
    pub(super) words: [[u32; MAX_HEADS]; WORDS],
    pub(super) heads: [Head; MAX_HEADS],
    pub(super) count: usize,
}

impl Default for Queries {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Queries {
    /// An empty set of queries.
    pub const EMPTY: Self = Self { words: [[0; MAX_HEADS]; WORDS], heads: [Head::ZERO; MAX_HEADS], count: 0 };

    /// Number of query heads held.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if no query is held.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// [`super::KeyPages::queries`].
    pub(super) fn set(&mut self, level: Level, plan: &Plan, rotated: &[f32]) {
        self.count = (rotated.len() / plan.dim).min(MAX_HEADS);
        level.run(Quantise { plan, rotated, queries: self });
    }
}

struct Quantise<'a> {
    plan: &'a Plan,
    rotated: &'a [f32],
    queries: &'a mut Queries,
}

/// 1.5 * 2^23: adding it rounds to an integer, ties to even.
const ROUND: f32 = 12_582_912.0;

impl Kernel for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Machine>(self, _: I) {
        let plan = self.plan;
        let Queries { words, heads, .. } = self.queries;
        for (h, (head, query)) in heads.iter_mut().zip(self.rotated.chunks_exact(plan.dim)).enumerate() {
            let mut codes = [0i8; MAX_HEAD_DIM];
            for (r, run) in query.chunks_exact(plan.run).enumerate() {
                let largest = run.iter().fold(0.0f32, |m, v| f32::max(m, v.abs()));
                let finite = run.iter().fold(true, |finite, v| finite & v.is_finite());
                // If the largest value is below this, it has no reciprocal; the query then scores 0.
                let inverse = if largest > 1e-30 { 127.0 / largest } else { 0.0 };
                let mut sum = 0;
                for (code, &v) in codes[r * plan.run..].iter_mut().zip(run) {
                    let rounded = (v * inverse + ROUND) - ROUND;
                    *code = rounded as i32 as i8;
                    sum += i32::from(*code);
                }
                let factor = largest * (1.0 / 127.0) * plan.unit;
                head.factors[r] = if finite { factor } else { f32::NAN };
                head.biases[r] = I::KEY_BIAS * sum;
            }
            let fields = plan.fields();
            for (w, words) in words[..plan.units() * fields].iter_mut().enumerate() {
                let (unit, field) = (w / fields, w % fields);
                let byte = |i| {
                    let at = plan.coordinate(4 * unit + i, field);
                    if at < plan.dim { codes[at] as u8 } else { 0 }
                };
                words[h] = u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)]);
            }
        }
        // A query that was longer may have been here.
        words
            .iter_mut()
            .skip(plan.units() * plan.fields())
            .take(PADDING)
            .for_each(|words| *words = [0; MAX_HEADS]);
    }
}
