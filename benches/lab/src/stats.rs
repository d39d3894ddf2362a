//! Errors of vectors and their dot products under a codec or a reference format, on given or random data.
//!
//! Every figure comes from the stored bytes: encode, decode, compare. The work is divided into chunks of
//! fixed size, and their sums are added in order. The figures are therefore independent of the number of
//! threads. They do not measure the loss of a model; `tqkv eval` does.

pub(crate) mod delta;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;
use serde::Serialize;
use tqkv::Level;
use tqkv_cli::array::{ArrayError, Vectors};
use tqkv_core::unstable::Levels;
use tqkv_core::{AnyCodec, DecodeError, EncodeError, Options, ShapeError};
use tqkv_reference::{Choice, Coder, ReferenceError, RotationKind, theory};

/// Rows per unit of work, and per stream of random numbers.
const CHUNK: usize = 256;

/// Number of layers whose matrices take turns in a format with one rotation per layer, at head dim 128.
/// Estimators are unbiased on average over sketches. Larger head dims use fewer layers, because their
/// matrices take longer to make.
const LAYERS: usize = 64;
/// Number of rows from which formats with learned channels learn them.
const LEARNED: usize = 4096;

/// The codec or format to measure.
pub(crate) enum Subject {
    /// A codec on an instruction set.
    Own(Level, Box<AnyCodec>),
    /// A reference format: one coder per layer; each takes [`CHUNK`] rows in turn.
    Reference(Vec<Coder>),
    /// What a codec that is not here gave back: its name, and an array as large as that of the vectors.
    Given(String, Vectors),
}

impl Subject {
    /// Makes the subject of `choice` for `vectors`, from which channels are learned.
    ///
    /// # Errors
    /// A head dim without blocks, a rotation that the format lacks, or vectors that cannot be read.
    pub(crate) fn new(
        choice: Choice,
        (level, options, rotation): (Level, Options, Option<RotationKind>),
        vectors: &Vectors,
    ) -> Result<Self, StatsError> {
        let dim = vectors.dim();
        let row = match choice {
            Choice::Core(id) => {
                let refused = |source| StatsError::Shape { codec: id.name(), dim, source };
                return AnyCodec::new(id, dim, options).map(|c| Self::Own(level, c.into())).map_err(refused);
            }
            Choice::Reference(row) => row,
        };
        let layers = (LAYERS * 128 / dim).min(LAYERS).min(vectors.rows().div_ceil(CHUNK));
        let layers = (0..layers.max(1)).into_par_iter();
        let coders = layers.map(|layer| Coder::new(row, dim, (options.seed, layer), rotation));
        let mut coders = coders.collect::<Result<Vec<_>, _>>()?;
        if row.learns() {
            let mut rows = vec![0f32; vectors.rows().min(LEARNED) * dim];
            for (row, x) in rows.chunks_exact_mut(dim).enumerate() {
                vectors.read_row(row, x).map_err(StatsError::Vectors)?;
            }
            coders.iter_mut().for_each(|coder| *coder = coder.learn(&rows));
        }
        Ok(Self::Reference(coders))
    }

    fn name(&self) -> &str {
        match self {
            Self::Own(_, codec) => codec.id().name(),
            Self::Reference(coders) => coders[0].row().name(),
            Self::Given(name, _) => name,
        }
    }

    fn scale_mode(&self) -> &'static str {
        match self {
            Self::Own(_, codec) => codec.options().scale_mode.name(),
            Self::Reference(_) | Self::Given(..) => "own",
        }
    }

    fn dim(&self) -> usize {
        match self {
            Self::Own(_, codec) => codec.dim(),
            Self::Reference(coders) => coders[0].dim(),
            Self::Given(_, array) => array.dim(),
        }
    }

    /// Bytes of a block, which an array of reconstructions does not tell.
    fn block_bytes(&self) -> Option<usize> {
        match self {
            Self::Own(_, codec) => Some(codec.block_bytes()),
            Self::Reference(coders) => Some(coders[0].block_bytes()),
            Self::Given(..) => None,
        }
    }

    /// Encodes and decodes the rows of `x`; its first row has index `first` in the whole array.
    fn through(&self, first: usize, x: &[f32], decoded: &mut [f32]) -> Result<(), StatsError> {
        let (dim, bytes) = (self.dim(), self.block_bytes().unwrap_or_default());
        let encode = |row, source| StatsError::Encode { row, source };
        let decode = |row, source| StatsError::Decode { row, source };
        match self {
            Self::Own(level, codec) => {
                let mut blocks = vec![0u8; x.len() / dim * bytes];
                tqkv_simd::codec::encode(*level, codec, x, &mut blocks)
                    .map_err(|failed| encode(first + failed.index, failed.error))?;
                tqkv_simd::codec::decode(*level, codec, &blocks, decoded)
                    .map_err(|failed| decode(first + failed.index, failed.error))
            }
            Self::Reference(coders) => {
                let coder = &coders[first / CHUNK % coders.len()];
                let mut block = vec![0u8; bytes];
                let rows = x.chunks_exact(dim).zip(decoded.chunks_exact_mut(dim)).zip(first..);
                for ((x, decoded), row) in rows {
                    coder.encode(x, &mut block).map_err(|source| encode(row, source))?;
                    coder.decode(&block, decoded).map_err(|source| decode(row, source))?;
                }
                Ok(())
            }
            Self::Given(name, array) => {
                let unreadable = |source| StatsError::Given { name: name.clone(), source };
                let mut rows = decoded.chunks_exact_mut(dim).zip(first..);
                rows.try_for_each(|(decoded, row)| array.read_row(row, decoded).map_err(unreadable))
            }
        }
    }

    /// The errors that the theory predicts.
    fn theory(&self) -> Theory {
        let dim = self.dim();
        match self {
            Self::Own(_, codec) => {
                let id = codec.id();
                if !id.is_rotated() || !id.layout().has_one_scale() {
                    return Theory::default();
                }
                // One scale of two bytes.
                let rate = (8 * (codec.block_bytes() - 2)) as f64 / dim as f64;
                let scalar = matches!(id.levels(), Levels::LloydMax);
                let expected = if scalar { theory::lloyd_max(dim, id.bits() as usize) } else { None };
                let bound = Some(theory::error_bound(rate));
                Theory { expected, shannon: Some(theory::shannon(rate)), bound }
            }
            Self::Reference(coders) => {
                let row = coders[0].row();
                let shannon = row.is_rotated().then(|| theory::shannon(row.rate()));
                Theory { expected: row.expected_error(dim), shannon, bound: row.bound() }
            }
            Self::Given(..) => Theory::default(),
        }
    }
}

/// Predicted errors of random directions, in units of [`CodecStats::relative_mse`]; `None` without a
/// prediction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Theory {
    /// Expected error of scalar codes under the norm (`raw`) with the fastest search, and of reference
    /// formats.
    pub(crate) expected: Option<f64>,
    /// Lower bound of Shannon for any code of this many bits.
    pub(crate) shannon: Option<f64>,
    /// The bound in the paper: Theorem 2 (squared dot error) for formats with an estimator, otherwise Theorem
    /// 1.
    pub(crate) bound: Option<f64>,
}

/// The figures of one codec on one set of vectors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct CodecStats {
    /// Name of the codec.
    pub(crate) codec: String,
    /// Name of the requested scale mode.
    pub(crate) scale_mode: &'static str,
    /// Bytes of one block; null for an array of reconstructions.
    pub(crate) bytes_per_vector: Option<usize>,
    /// Bits per coordinate of a block; null in the same case.
    pub(crate) bits_per_value: Option<f64>,
    /// Mean of |x - x^|^2 / |x|^2 over the nonzero vectors.
    pub(crate) relative_mse: f64,
    /// Mean cosine between x and x^ over the same vectors.
    pub(crate) mean_cosine: f64,
    /// Slope of the regression of <q, x^> on <q, x> through the origin: 1 is unbiased.
    pub(crate) dot_slope: f64,
    /// Number of zero vectors. They have no relative error and no direction, so they are left out.
    #[serde(skip)]
    pub(crate) zero_vectors: u64,
    /// Root mean square of <q, x^> - <q, x>, divided by the root mean square of <q, x>.
    pub(crate) dot_error: f64,
    /// Compares with `relative_mse`, or with the square of `dot_error`.
    pub(crate) theory: Theory,
}

/// A reason why there are no figures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum StatsError {
    /// A vector that cannot be read.
    #[error(transparent)]
    Vectors(ArrayError),
    /// A codec without blocks of the head dim.
    #[error("codec {codec} at head dim {dim}: {source}")]
    Shape {
        /// Name of the codec.
        codec: &'static str,
        /// The head dim.
        dim: usize,
        /// The error of the codec.
        source: ShapeError,
    },
    /// A reference format without blocks of the head dim.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// A query that cannot be read.
    #[error("queries: {0}")]
    Queries(ArrayError),
    /// A reconstruction that cannot be read.
    #[error("{name}: {source}")]
    Given {
        /// The array.
        name: String,
        /// The error of the array.
        source: ArrayError,
    },
    /// An array of reconstructions with more or fewer rows than the vectors.
    #[error("{name} has {found} rows, the vectors have {expected}")]
    Rows {
        /// The array.
        name: String,
        /// Its number of rows.
        found: usize,
        /// The number of vectors.
        expected: usize,
    },
    /// All vectors are zero, so none has a direction.
    #[error("every vector is zero: expected at least one other")]
    AllZero,
    /// All dot products with the queries are zero.
    #[error("every dot product with the queries is zero: expected queries that are not all zero")]
    NoProducts,
    /// A row that the codec refuses.
    #[error("row {row} (counted from 0) cannot be encoded: {source}")]
    Encode {
        /// Index of the row.
        row: usize,
        /// The error of the codec.
        source: EncodeError,
    },
    /// The codec refuses a block that it has just written.
    #[error("row {row} (counted from 0) cannot be decoded: {source}")]
    Decode {
        /// Index of the row.
        row: usize,
        /// The error of the codec.
        source: DecodeError,
    },
    /// Queries or codec and vectors differ in length.
    #[error("{what} have {found} coordinates, the vectors have {expected}")]
    Dim {
        /// The array or codec that does not fit.
        what: &'static str,
        /// Its number of coordinates.
        found: usize,
        /// The number of coordinates of the vectors.
        expected: usize,
    },
}

/// Sums over some rows, from which all figures are computed.
#[derive(Clone, Copy, Default)]
struct ErrorSums {
    rows: f64,
    zeros: u64,
    relative: f64,
    cosine: f64,
    truth_squared: f64,
    score_truth: f64,
    error_squared: f64,
}

impl ErrorSums {
    fn add(mut self, other: Self) -> Self {
        self.rows += other.rows;
        self.zeros += other.zeros;
        self.relative += other.relative;
        self.cosine += other.cosine;
        self.truth_squared += other.truth_squared;
        self.score_truth += other.score_truth;
        self.error_squared += other.error_squared;
        self
    }

    fn row(&mut self, x: &[f32], decoded: &[f32]) {
        let (mut xx, mut xd, mut dd, mut ee) = (0f64, 0f64, 0f64, 0f64);
        for (&x, &d) in x.iter().zip(decoded) {
            let (x, d) = (f64::from(x), f64::from(d));
            xx += x * x;
            xd += x * d;
            dd += d * d;
            ee += (x - d) * (x - d);
        }
        if xx == 0.0 {
            self.zeros += 1;
            return;
        }
        self.rows += 1.0;
        self.relative += ee / xx;
        if dd > 0.0 {
            self.cosine += xd / (xx * dd).sqrt();
        }
    }

    fn query(&mut self, truth: f32, error: f32) {
        let (truth, error) = (f64::from(truth), f64::from(error));
        self.truth_squared += truth * truth;
        self.score_truth += (truth + error) * truth;
        self.error_squared += error * error;
    }
}

/// Measures `subject` on `vectors` against `queries`, both `[.., dim]`. Any thread calls `progress` with the
/// number of rows done since its last call.
///
/// Cost: rows * (encode + decode + queries * 2 dim) on all threads of the current rayon pool.
///
/// # Errors
/// Rows that hold NaN or infinity, rows that the codec refuses, lengths that differ, nothing to measure.
pub(crate) fn measure(
    subject: &Subject,
    vectors: &Vectors,
    queries: &Vectors,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<CodecStats, StatsError> {
    let dim = vectors.dim();
    for (what, found) in
        [("the queries", queries.dim()), ("the codec's blocks or reconstructions", subject.dim())]
    {
        if found != dim {
            return Err(StatsError::Dim { what, found, expected: dim });
        }
    }
    if let Subject::Given(name, array) = subject
        && array.rows() != vectors.rows()
    {
        let (name, found) = (name.clone(), array.rows());
        return Err(StatsError::Rows { name, found, expected: vectors.rows() });
    }
    let mut flat = vec![0f32; queries.rows() * dim];
    for (row, out) in flat.chunks_exact_mut(dim).enumerate() {
        queries.read_row(row, out).map_err(StatsError::Queries)?;
    }
    let chunks = (0..vectors.rows().div_ceil(CHUNK)).into_par_iter();
    let parts: Vec<Result<ErrorSums, StatsError>> = chunks
        .map(|chunk| {
            let rows = chunk * CHUNK..((chunk + 1) * CHUNK).min(vectors.rows());
            let done = rows.len() as u64;
            let sums = measure_rows(subject, vectors, &flat, rows);
            progress(done);
            sums
        })
        .collect();
    // In row order, so that the sums and the first error are the same with any number of threads.
    let mut sums = ErrorSums::default();
    for part in parts {
        sums = sums.add(part?);
    }
    if sums.rows == 0.0 {
        return Err(StatsError::AllZero);
    }
    if sums.truth_squared == 0.0 {
        return Err(StatsError::NoProducts);
    }
    let bytes = subject.block_bytes();
    Ok(CodecStats {
        codec: subject.name().to_owned(),
        scale_mode: subject.scale_mode(),
        bytes_per_vector: bytes,
        bits_per_value: bytes.map(|bytes| (8 * bytes) as f64 / dim as f64),
        relative_mse: sums.relative / sums.rows,
        mean_cosine: sums.cosine / sums.rows,
        zero_vectors: sums.zeros,
        dot_slope: sums.score_truth / sums.truth_squared,
        dot_error: (sums.error_squared / sums.truth_squared).sqrt(),
        theory: subject.theory(),
    })
}

fn measure_rows(
    subject: &Subject,
    vectors: &Vectors,
    queries: &[f32],
    rows: std::ops::Range<usize>,
) -> Result<ErrorSums, StatsError> {
    let dim = vectors.dim();
    let (first, count) = (rows.start, rows.len());
    let (mut x, mut decoded) = (vec![0f32; count * dim], vec![0f32; count * dim]);
    let mut difference = vec![0f32; dim];
    for (row, x) in rows.zip(x.chunks_exact_mut(dim)) {
        vectors.read_row(row, x).map_err(StatsError::Vectors)?;
    }
    subject.through(first, &x, &mut decoded)?;
    let mut sums = ErrorSums::default();
    for (x, decoded) in x.chunks_exact(dim).zip(decoded.chunks_exact(dim)) {
        sums.row(x, decoded);
        for ((e, d), x) in difference.iter_mut().zip(decoded).zip(x) {
            *e = d - x;
        }
        for query in queries.chunks_exact(dim) {
            // Measure the dot of the difference: subtracting two nearly equal dots would lose it to rounding.
            sums.query(dot(query, x), dot(query, &difference));
        }
    }
    Ok(sums)
}

/// Dot product in f32 with eight partial sums, which the compiler keeps in vector registers.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a8, a1) = a.as_chunks::<8>();
    let (b8, b1) = b.as_chunks::<8>();
    let mut sums = [0f32; 8];
    for (a, b) in a8.iter().zip(b8) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    let tail: f32 = a1.iter().zip(b1).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + tail
}

/// Makes `rows` random unit vectors of `dim` coordinates, uniform on the sphere. They depend on the seed, not
/// on the number of threads.
///
/// # Errors
/// [`ArrayError::Length`] if `dim` is 0.
pub(crate) fn random_directions(rows: usize, dim: usize, seed: u64) -> Result<Vectors, ArrayError> {
    let mut values = vec![0f32; rows * dim];
    values.par_chunks_mut((CHUNK * dim).max(1)).enumerate().for_each(|(chunk, values)| {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(chunk as u64);
        for row in values.chunks_exact_mut(dim) {
            direction(&mut rng, row);
        }
    });
    Vectors::from_vec(values, dim)
}

fn direction(rng: &mut ChaCha8Rng, row: &mut [f32]) {
    let mut norm = 0f64;
    for x in row.iter_mut() {
        let sample: f64 = StandardNormal.sample(rng);
        *x = sample as f32;
        norm += sample * sample;
    }
    let inverse = 1.0 / norm.sqrt();
    for x in row {
        *x = (f64::from(*x) * inverse) as f32;
    }
}

#[cfg(test)]
mod tests;
