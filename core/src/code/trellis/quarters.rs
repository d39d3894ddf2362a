//! Codes of quarters: `m2` and `m3`, whose widths differ between the quarters of the coordinates.
//!
//! One ring of coded bits and one set of generators serve all widths; only tables of levels and numbers of
//! plain bits differ. A map that is no part of the code puts most of the logits' energy into the first
//! quarter, so errors have weights.
//!
//! When not to use it: without such a map, a code of one width has a smaller error in the same bytes.
//! The plain bits in their planes are in `planes`, the search and the scale in `encode`.

use super::code::{Code, MAX_LEVELS, PARITIES, RESOLUTION};

/// Quarters of a vector.
pub const QUARTERS: usize = 4;

/// The width of one quarter: the metric of a code of one width, and the levels that blocks stand for.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Quarter {
    /// The code of this width; its levels serve the search. Its generators are not used.
    pub code: Code,
    /// The metric rows of `code`.
    pub rows: &'static [[u8; PARITIES]],
    /// Units of the levels of `code` in one sigma.
    pub per_sigma: f32,
    /// The levels of blocks: all quarters have one unit, and every width is unbiased.
    pub levels: [i8; MAX_LEVELS],
}

/// The four quarters of a code.
pub type Quarters = [Quarter; QUARTERS];

impl Quarter {
    /// The quarter of a code whose levels have `per_sigma` units. Levels of blocks are those levels times
    /// `ratio`, rounded to nearest, halves away from 0.
    pub(super) const fn new(code: Code, rows: &'static [[u8; PARITIES]], per_sigma: f32, ratio: f64) -> Self {
        let (mut levels, count, mut i) = ([0; MAX_LEVELS], code.level_count(), 0);
        // The table repeats, so look-ups need not mask the bits above an index.
        while i < MAX_LEVELS {
            let level = code.levels[i % count] as f64 * ratio;
            levels[i] = if level < 0.0 { level - 0.5 } else { level + 0.5 } as i8;
            i += 1;
        }
        Self { code, rows, per_sigma, levels }
    }

    /// The squared error, in sigmas, of one step of a metric.
    const fn step(&self) -> f32 {
        let unit = RESOLUTION as f32 * self.per_sigma;
        self.code.divisor as f32 / (unit * unit)
    }

    /// The metric row of a target.
    #[inline(always)]
    pub(super) fn row(&self, target: i16) -> [u8; PARITIES] {
        let at = (i32::from(target) + self.code.limit()).max(0) as usize;
        self.rows.get(at).copied().unwrap_or_default()
    }
}

/// Weights of the squared errors of the quarters. Only their ratios matter.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct QuarterWeights {
    /// The weights in the sums of the scale; the largest is 1.
    pub values: [f32; QUARTERS],
    /// Factors of metrics, in 1/256: 1 to 256.
    pub steps: [u16; QUARTERS],
}

/// The least ratio of two weights.
const LEAST: f32 = 1.0 / 1_048_576.0;

impl QuarterWeights {
    /// The weights with which the metric of every width counts alike. That is about what a map of keys asks
    /// for.
    pub const fn even(quarters: &Quarters) -> Self {
        let (mut values, mut g) = ([0.0; QUARTERS], 0);
        while g < QUARTERS {
            values[g] = quarters[0].step() / quarters[g].step();
            g += 1;
        }
        Self { values, steps: [256; QUARTERS] }
    }

    /// The given weights, or `None` if one is not a positive number.
    pub fn new(quarters: &Quarters, weights: [f32; QUARTERS]) -> Option<Self> {
        if weights.iter().any(|&w| !(w.is_finite() && w > 0.0)) {
            return None;
        }
        let largest = weights.iter().fold(0.0, |a: f32, &b| a.max(b));
        let values = weights.map(|w| (w / largest).max(LEAST));
        let mut steps = values;
        for (step, quarter) in steps.iter_mut().zip(quarters) {
            *step *= quarter.step();
        }
        let most = steps.iter().fold(0.0, |a: f32, &b| a.max(b));
        Some(Self { values, steps: steps.map(|step| ((256.0 * step / most + 0.5) as u16).max(1)) })
    }
}

/// The place of bit `p` of the plain symbol of coordinates at bit `bit` of a byte. It is the number of a
/// plain plane among `planes`, and the bit in its bytes.
///
/// The low half of the last plane's bytes continues the quarters that are not the first. Its high half holds
/// bits 1 and 2 of the symbols of the first quarter, so that a kernel finds them side by side.
pub(super) const fn place(planes: usize, p: usize, bit: usize) -> (usize, usize) {
    if p == 0 {
        (0, bit)
    } else if bit < 2 {
        (planes - 1, 3 + 2 * bit + p)
    } else {
        (planes - 1, bit - 2)
    }
}
