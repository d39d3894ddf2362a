//! The description of one trellis code, and the metric rows that its encoder reads.

/// Largest number of levels.
pub const MAX_LEVELS: usize = 64;
/// Values of the three parity bits of a coordinate.
pub const PARITIES: usize = 8;
/// Largest memory of the shift register: the number of earlier bits that a coordinate depends on.
pub const MAX_MEMORY: usize = 8;

/// How the bits that are not coded choose among the levels of one parity value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Plain {
    /// 0 to 3 bits per coordinate.
    Bits(u8),
    /// Three bits for each pair of neighbours: a symbol `3 a + b` below 8. The numbers a and b, in 0..3, are
    /// the parts of the levels that the even and the odd coordinate take. The pair (2, 2) does not occur.
    PairOfThree,
    /// Five bits for each pair of neighbours. Each coordinate takes one of six parts: 0 to 3 are inner, 4 and
    /// 5 outer. At most one of the two is outer.
    ///
    /// * Bit 4 clear: bits 0 and 1 are the inner part of the even coordinate, bits 2 and 3 that of the odd
    ///   one.
    /// * Bit 4 set: bits 0 and 1 are the inner part, and bit 2 selects the outer part. If bit 3 is set, the
    ///   even coordinate is the outer one.
    PairOfSix,
    /// One width for each quarter of the coordinates: that many bits in all, the coded bit among them. Widths
    /// descend, and their sum is a multiple of 4.
    Quarters([u8; 4]),
}

impl Plain {
    /// Number of symbols of a pair, if neighbours share one.
    pub const fn pair_symbols(self) -> u8 {
        match self {
            Self::Bits(_) | Self::Quarters(_) => 0,
            Self::PairOfThree => 8,
            Self::PairOfSix => 32,
        }
    }

    /// Whole planes of plain bits, if neighbours share none.
    pub const fn planes(self) -> usize {
        match self {
            Self::Bits(bits) => bits as usize,
            Self::Quarters([a, b, c, d]) => (a + b + c + d) as usize / 4 - 1,
            Self::PairOfThree | Self::PairOfSix => 0,
        }
    }

    /// Bytes of the coded plane and the plain planes for `dim` coordinates.
    pub(crate) const fn body_bytes(self, dim: usize) -> usize {
        dim / 8
            + match self {
                Self::Bits(_) | Self::Quarters(_) => dim / 8 * self.planes(),
                Self::PairOfThree => 3 * (dim / 16),
                Self::PairOfSix => 5 * (dim / 16),
            }
    }
}

/// One trellis code: everything that encoder and decoder must agree on, and the settings of the encoder.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Code {
    /// Earlier coded bits that a coordinate depends on: 8 (256 states) or 3 (8 states).
    pub memory: u8,
    /// Taps of the parity bits, most significant parity first. If bit a is set, the coded bit a coordinates
    /// earlier enters.
    pub generators: [u16; 3],
    /// How the plain bits choose among the levels.
    pub plain: Plain,
    /// Levels; index = parity + 8 * plain symbol. Entries past [`Code::level_count`] are 0.
    pub levels: [i8; MAX_LEVELS],
    /// Units of the levels in one sigma of a rotated coordinate.
    pub per_sigma: f32,
    /// Encoder: a squared error divided by this is a metric.
    pub divisor: u16,
    /// Encoder: the predicted scale is `offset - slope * (largest |y| in sigmas)`.
    pub predictor: Predictor,
}

/// For each number of coordinates back, the masks of the three parities: all ones if the coded bit there
/// enters. They are stored, because making them takes a fifth of the time of decoding.
pub(crate) type TapMasks = [[u64; 3]; MAX_MEMORY + 1];

/// Predicts the best scale from the largest coordinate.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Predictor {
    /// The scale if the largest coordinate is 0.
    pub offset: f32,
    /// Decrease of the scale per sigma.
    pub slope: f32,
}

impl Predictor {
    /// The predicted scale for a largest coordinate of `peak` sigmas, kept between 0.5 and 1.5.
    #[inline(always)]
    pub fn scale(&self, peak: f32) -> f32 {
        (self.offset - self.slope * peak).clamp(0.5, 1.5)
    }
}

/// Largest branch metric.
const CAP: i32 = 127;

/// Steps of an encoder target per level unit: targets are in half level units.
pub const RESOLUTION: i32 = 2;

impl Code {
    /// Number of states of the encoder's search.
    pub const fn states(&self) -> usize {
        1 << self.memory
    }

    /// Sigmas per level unit.
    pub const fn unit(&self) -> f32 {
        1.0 / self.per_sigma
    }

    /// Number of parts of the levels that one coordinate can choose from.
    pub const fn parts(&self) -> usize {
        match self.plain {
            Plain::Bits(bits) => 1 << bits,
            Plain::PairOfThree => 3,
            Plain::PairOfSix => 6,
            Plain::Quarters(widths) => 1 << (widths[0] - 1),
        }
    }

    /// Number of levels in use; in codes of quarters, by the first quarter.
    pub const fn level_count(&self) -> usize {
        PARITIES * self.parts()
    }

    /// Parity value of a register that holds the newest coded bit in bit 0 and older bits above.
    pub const fn parity(&self, window: usize) -> usize {
        let (mut z, mut i) = (0, 0);
        while i < self.generators.len() {
            z = z << 1 | (window & self.generators[i] as usize).count_ones() as usize & 1;
            i += 1;
        }
        z
    }

    /// The taps of [`Code::generators`] as masks of words.
    pub(super) const fn tap_masks(&self) -> TapMasks {
        let (mut masks, mut back) = ([[0; 3]; MAX_MEMORY + 1], 0);
        while back <= MAX_MEMORY {
            let mut i = 0;
            while i < 3 {
                masks[back][i] = (0u64).wrapping_sub((self.generators[i] >> back & 1) as u64);
                i += 1;
            }
            back += 1;
        }
        masks
    }

    /// Largest target that has a metric row; larger targets are clamped to it.
    pub const fn limit(&self) -> i32 {
        let (mut largest, mut i) = (0, 0);
        while i < MAX_LEVELS {
            let level = (self.levels[i] as i32).abs();
            if level > largest {
                largest = level;
            }
            i += 1;
        }
        3 * largest
    }

    /// Metric rows per target: one, or four where pairs share symbols, two for even and two for odd
    /// coordinates.
    pub const fn rows_per_target(&self) -> usize {
        match self.plain {
            Plain::Bits(_) | Plain::Quarters(_) => 1,
            Plain::PairOfThree | Plain::PairOfSix => 4,
        }
    }

    /// Number of metric rows.
    pub const fn row_count(&self) -> usize {
        (2 * self.limit() as usize + 1) * self.rows_per_target()
    }

    /// Squared distance of target `y` from the nearest level of parity `z` in the parts `from..to`.
    const fn distance(&self, y: i32, z: usize, from: usize, to: usize) -> i32 {
        let (mut best, mut part) = (i32::MAX, from);
        while part < to {
            let difference = y - RESOLUTION * self.levels[z + PARITIES * part] as i32;
            if difference * difference < best {
                best = difference * difference;
            }
            part += 1;
        }
        best
    }

    /// Fills the branch metric rows. Entry z of row `(y + limit) * rows_per_target + r` is a squared
    /// distance: from y to the nearest level of parity z. The smallest distance in the rows that can be taken
    /// instead is subtracted. The rest is divided by `divisor` (rounded to nearest, halves up), with a
    /// maximum of 127.
    ///
    /// For pairs, rows 0 and 1 belong to the two classes of symbols (see `class_parts`) for the even
    /// coordinate. Rows 2 and 3 belong to the two classes for the odd coordinate.
    pub(super) const fn fill_rows(&self, rows: &mut [[u8; PARITIES]]) {
        let (limit, stride) = (self.limit(), self.rows_per_target());
        let mut y = -limit;
        while y <= limit {
            let first = (y + limit) as usize * stride;
            let mut group = 0;
            while group < stride {
                let members = if stride == 1 { 1 } else { 2 };
                let mut distances = [0; 2 * PARITIES];
                let (mut least, mut r) = (i32::MAX, 0);
                while r < members * PARITIES {
                    let (class, odd) = ((group + r / PARITIES) & 1, group >= 2);
                    let (from, to) = self.class_parts(class, odd);
                    distances[r] = self.distance(y, r % PARITIES, from, to);
                    if distances[r] < least {
                        least = distances[r];
                    }
                    r += 1;
                }
                r = 0;
                while r < members * PARITIES {
                    let divisor = self.divisor as i32;
                    let excess = (distances[r] - least + divisor / 2) / divisor;
                    rows[first + group + r / PARITIES][r % PARITIES] =
                        if excess > CAP { CAP as u8 } else { excess as u8 };
                    r += 1;
                }
                group += members;
            }
            y += 1;
        }
    }

    /// The parts of the levels that class 0 or 1 of a pair may use, for its even or odd coordinate.
    ///
    /// * A pair of three is split by the even coordinate. In class 0 it takes part 0 or 1, and the odd one
    ///   any part. In class 1 it takes part 2, and the odd one part 0 or 1.
    /// * A pair of six is split in the same way. In class 0 the even coordinate takes an inner part, and the
    ///   odd one any part. In class 1 the even one takes an outer part, and the odd one an inner part.
    const fn class_parts(&self, class: usize, odd: bool) -> (usize, usize) {
        match (self.plain, class, odd) {
            (Plain::Bits(_) | Plain::Quarters(_), _, _) => (0, self.parts()),
            (Plain::PairOfThree, 0, false) | (Plain::PairOfThree, 1, true) => (0, 2),
            (Plain::PairOfThree, 0, true) => (0, 3),
            (Plain::PairOfThree, _, _) => (2, 3),
            (Plain::PairOfSix, 0, false) | (Plain::PairOfSix, 1, true) => (0, 4),
            (Plain::PairOfSix, 0, true) => (0, 6),
            (Plain::PairOfSix, _, _) => (4, 6),
        }
    }
}
