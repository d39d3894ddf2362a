//! Rows of keys or values as chunks of 64 cells.
//!
//! Keys are centred: RoPE leaves their slow coordinates far from 0, and a codec's error grows with a vector's
//! length. A chunk of means comes first then. Each other chunk begins with a mask of the cells that stay as
//! they are. Then follow the rows of these cells, and the blocks of all others, head by head.

use half::f16;
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::{Level, codec};

use crate::error::SessionError;
use crate::grid::Grid;
use crate::numbers::{Cast, Numbers};

/// Cells of a chunk; the last of a matrix may have fewer.
pub(crate) const CELLS: usize = 64;
const MASK: usize = 8;
/// Fewer cells are not centred: the mean takes the room of some four cells.
const LEAST_CENTRED: u32 = 64;
/// Bytes of the rows of 64 cells at most.
const MOST_BYTES: u64 = 1 << 26;

/// The keys or the values of one layer, and how they are coded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tile {
    pub(crate) codec: CodecId,
    pub(crate) numbers: Numbers,
    pub(crate) head_dim: u32,
    pub(crate) heads: u32,
    pub(crate) cells: u32,
    pub(crate) is_transposed: bool,
    pub(crate) is_values: bool,
    /// The mean of the rows is taken off before, and put back after.
    pub(crate) is_centred: bool,
}

impl Tile {
    pub(crate) fn width(&self) -> usize {
        self.head_dim as usize * self.heads as usize
    }

    pub(crate) fn grid(&self) -> Grid {
        let Self { numbers, cells, is_transposed, .. } = *self;
        Grid { numbers, width: self.width() as u32, cells, is_transposed }
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.grid().row_bytes()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.grid().bytes()
    }

    /// Bytes of the blocks of one cell.
    fn coded_bytes(&self) -> usize {
        self.codec.block_bytes(self.head_dim as usize).unwrap_or(0) * self.heads as usize
    }

    /// Longest chunk.
    pub(crate) fn most_bytes(&self) -> usize {
        MASK + CELLS * self.row_bytes().max(self.coded_bytes())
    }

    /// True if blocks are smaller than rows.
    pub(crate) fn saves(&self) -> bool {
        self.coded_bytes() < self.row_bytes()
    }

    /// An error where rows of this shape cannot be coded.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { head_dim, heads, cells, .. } = *self;
        if heads == 0 || cells == 0 {
            return Err(format!("{heads} heads and {cells} cells"));
        }
        let width = u64::from(head_dim) * u64::from(heads);
        let bytes = width.checked_mul(CELLS as u64).and_then(|values| self.numbers.bytes(values));
        if bytes.is_none_or(|bytes| bytes > MOST_BYTES) {
            return Err(format!("{heads} heads of {head_dim} are no row of {}", self.numbers.name()));
        }
        if self.is_transposed && self.numbers.plane_bytes() == 1 {
            return Err(format!("transposed rows of {}", self.numbers.name()));
        }
        self.parts().map(drop)
    }

    /// The tile with keys centred, where that is worth its bytes.
    pub(crate) fn centred(self) -> Self {
        let is_centred = !self.is_values && self.codec.is_rotated() && self.cells >= LEAST_CENTRED;
        Self { is_centred, ..self }
    }

    fn parts(&self) -> Result<(Cast, AnyCodec), String> {
        let dim = self.head_dim as usize;
        let cast = Cast::new(self.numbers, dim);
        let cast = cast.ok_or_else(|| format!("head dim {dim} of type {}", self.numbers.name()))?;
        one_width(self.codec)?;
        let codec = AnyCodec::new(self.codec, dim, Options::DEFAULT);
        Ok((cast, codec.map_err(|error| format!("codec {} at head dim {dim}: {error}", self.codec.name()))?))
    }

    pub(crate) fn coder(&self, level: Level) -> Result<TileCoder, SessionError> {
        let (cast, codec) = self.parts().map_err(SessionError::Codec)?;
        Ok(TileCoder { tile: *self, level, cast, codec, mean: vec![0.0; self.width()] })
    }
}

/// Refuses codes of quarters: no pack has them, as no map orders the keys of a saved state.
pub(crate) fn one_width(codec: CodecId) -> Result<(), String> {
    if codec.rotates_quarters() {
        return Err(format!(
            "{} is not valid for a saved state: expected a codec of one width, such as t4",
            codec.name()
        ));
    }
    Ok(())
}

/// A tile's codec, ready to run.
pub(crate) struct TileCoder {
    tile: Tile,
    level: Level,
    cast: Cast,
    codec: AnyCodec,
    mean: Vec<f32>,
}

impl TileCoder {
    /// Takes the mean of these rows, and gives it as a chunk: f16 numbers. Rows that are not finite do not
    /// count.
    pub(crate) fn learn_mean(&mut self, rows: &[u8]) -> Vec<u8> {
        let width = self.tile.width();
        let (mut sums, mut count, mut values) = (vec![0.0f64; width], 0u32, vec![0.0; width]);
        for row in rows.chunks(self.tile.row_bytes()) {
            self.cast.to_f32(self.level, row, &mut values);
            if values.iter().all(|x| x.is_finite()) {
                sums.iter_mut().zip(&values).for_each(|(sum, x)| *sum += f64::from(*x));
                count += 1;
            }
        }
        let most = f64::from(f16::MAX);
        let mean = sums.iter().map(|sum| f16::from_f64((sum / f64::from(count.max(1))).clamp(-most, most)));
        let chunk: Vec<u8> = mean.flat_map(f16::to_le_bytes).collect();
        self.mean = numbers(&chunk);
        chunk
    }

    /// Reads the chunk of a mean.
    pub(crate) fn read_mean(&mut self, chunk: &[u8]) -> Result<(), SessionError> {
        self.mean = numbers(chunk);
        if self.mean.len() == self.tile.width() && self.mean.iter().all(|x| x.is_finite()) {
            return Ok(());
        }
        Err(SessionError::pack("coded rows: a mean is too short or not finite"))
    }

    /// The chunk of up to 64 rows. A row that cannot be encoded stays as it is, as those of the mask do.
    pub(crate) fn encode(&self, rows: &[u8], mut mask: u64) -> Vec<u8> {
        let (row_bytes, width) = (self.tile.row_bytes(), self.tile.width());
        let mut values = vec![0.0; rows.len() / row_bytes * width];
        for (i, (row, values)) in rows.chunks(row_bytes).zip(values.chunks_mut(width)).enumerate() {
            if mask >> i & 1 == 0 {
                self.cast.to_f32(self.level, row, values);
                values.iter_mut().zip(&self.mean).for_each(|(x, mean)| *x -= mean);
                mask |= u64::from(values.iter().any(|x| !x.is_finite())) << i;
            }
        }
        loop {
            let kept = |i: usize| mask >> i & 1 == 1;
            let rows_of = values.chunks(width).enumerate();
            let coded: Vec<&[f32]> = rows_of.filter(|(i, _)| !kept(*i)).map(|(_, row)| row).collect();
            let coded = coded.concat();
            let mut blocks = vec![0; coded.len() / self.codec.dim() * self.codec.block_bytes()];
            match codec::encode(self.level, &self.codec, &coded, &mut blocks) {
                Ok(()) => {
                    let exact = rows.chunks(row_bytes).enumerate().filter(|(i, _)| kept(*i));
                    let mut chunk = mask.to_le_bytes().to_vec();
                    exact.for_each(|(_, row)| chunk.extend_from_slice(row));
                    chunk.extend_from_slice(&blocks);
                    return chunk;
                }
                Err(failed) => {
                    let row = failed.index / self.tile.heads as usize;
                    let bad = (0..CELLS).filter(|i| !kept(*i)).nth(row).unwrap_or(0);
                    mask |= 1 << bad;
                }
            }
        }
    }

    /// The rows of a chunk of `cells` cells.
    pub(crate) fn decode(&self, chunk: &[u8], cells: usize) -> Result<Vec<u8>, SessionError> {
        let bad = |why: &str| SessionError::pack(format!("coded rows: {why}"));
        let Some((mask, rest)) = chunk.split_first_chunk::<MASK>() else {
            return Err(bad("a chunk without a mask"));
        };
        let mask = u64::from_le_bytes(*mask);
        let (row_bytes, width) = (self.tile.row_bytes(), self.tile.width());
        let exact = mask.count_ones() as usize;
        let last = CELLS - mask.leading_zeros() as usize;
        if last > cells || rest.len() != exact * row_bytes + (cells - exact) * self.tile.coded_bytes() {
            return Err(bad("a chunk's length does not fit its mask"));
        }
        let (exact_rows, blocks) = rest.split_at(exact * row_bytes);
        let mut values = vec![0.0; (cells - exact) * width];
        codec::decode(self.level, &self.codec, blocks, &mut values).map_err(|failed| {
            SessionError::pack(format!("coded rows: block {}: {}", failed.index, failed.error))
        })?;
        for row in values.chunks_mut(width) {
            row.iter_mut().zip(&self.mean).for_each(|(x, mean)| *x += mean);
        }
        let (mut exact_rows, mut values) = (exact_rows.chunks(row_bytes), values.chunks(width));
        let mut rows = vec![0; cells * row_bytes];
        for (i, row) in rows.chunks_mut(row_bytes).enumerate() {
            if mask >> i & 1 == 1 {
                row.copy_from_slice(exact_rows.next().unwrap_or(&[]));
            } else if !self.cast.to_bytes(self.level, values.next().unwrap_or(&[]), row) {
                return Err(SessionError::pack(format!(
                    "coded rows: a row does not fit {}",
                    self.tile.numbers.name()
                )));
            }
        }
        Ok(rows)
    }
}

fn numbers(chunk: &[u8]) -> Vec<f32> {
    chunk.as_chunks().0.iter().map(|raw| f16::from_le_bytes(*raw).to_f32()).collect()
}
