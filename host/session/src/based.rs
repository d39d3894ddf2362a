//! Keys and values that are coded in a basis of the storage tier. Here is which rows of a state belong
//! together, and how their cells and layers are cut into chunks.

use std::ops::Range;

use crate::cache::{CellRun, EXACT_TOKENS};
use crate::error::SessionError;
use crate::grid::Grid;

/// Most cells of a piece: the most tokens of a chunk of the storage tier.
const MOST_CELLS: u32 = 256;
/// Fewer cells whose positions follow each other stay as they are: their chunk would be mostly heads.
const LEAST_CELLS: u32 = 16;
/// Values per cell of all layers in one chunk, or one group of layers where these are more: 8 MiB of f32.
const BATCH_VALUES: usize = 1 << 13;
/// The most that a reader accepts.
const MOST_VALUES: usize = 1 << 16;

/// The keys or the values of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Based {
    pub(crate) grid: Grid,
    pub(crate) head_dim: u32,
    pub(crate) is_values: bool,
    /// Number of the set that the rows belong to.
    pub(crate) set: u32,
}

impl Based {
    pub(crate) fn heads(&self) -> u32 {
        self.grid.width / self.head_dim.max(1)
    }

    /// An error where rows of this shape cannot be coded.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Grid { numbers, width, cells, is_transposed } = self.grid;
        let dim = self.head_dim;
        if cells == 0 || width == 0 || dim == 0 || !width.is_multiple_of(dim) || width as usize > MOST_VALUES
        {
            return Err(format!("{cells} cells of {width} values in heads of {dim}"));
        }
        let is_whole = numbers.bytes(dim.into()).is_some() && !(is_transposed && numbers.plane_bytes() == 1);
        if !numbers.is_coded() || !is_whole {
            return Err(format!("rows of {} in heads of {dim}", numbers.name()));
        }
        Ok(())
    }
}

/// The keys and values of the layers of one cache, in one stream, with their places in the state.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Set {
    pub(crate) keys: Vec<(u64, Based)>,
    pub(crate) values: Vec<(u64, Based)>,
}

impl Set {
    /// Adds rows, keys first.
    pub(crate) fn push(&mut self, at: u64, rows: Based) {
        if rows.is_values { &mut self.values } else { &mut self.keys }.push((at, rows));
    }

    pub(crate) fn cells(&self) -> u32 {
        self.keys.first().map_or(0, |(_, rows)| rows.grid.cells)
    }

    /// Bytes of its rows in the state.
    pub(crate) fn bytes(&self) -> u64 {
        self.keys.iter().chain(&self.values).map(|(_, rows)| rows.grid.bytes()).sum()
    }

    /// Values per cell in one layer.
    pub(crate) fn width(&self) -> usize {
        [&self.keys, &self.values]
            .map(|side| side.first().map_or(0, |(_, rows)| rows.grid.width as usize))
            .iter()
            .sum()
    }

    /// An error where its layers are not alike.
    pub(crate) fn check(&self) -> Result<(), String> {
        let is_alike = |side: &[(u64, Based)]| side.windows(2).all(|pair| pair[0].1 == pair[1].1);
        let has_cells = |rows: &(u64, Based)| rows.1.grid.cells == self.cells();
        if self.keys.is_empty() || self.keys.len() != self.values.len() {
            return Err(format!("keys of {} layers and values of {}", self.keys.len(), self.values.len()));
        }
        if !is_alike(&self.keys) || !is_alike(&self.values) || !self.values.iter().all(has_cells) {
            return Err("layers that are not alike".into());
        }
        Ok(())
    }
}

/// A run of cells that is coded at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Piece {
    pub(crate) first: usize,
    pub(crate) cells: usize,
    /// Position of the first cell where those of the others follow, `None` where the cells stay as they are.
    pub(crate) position: Option<u32>,
}

/// Cuts cells into pieces. First tokens stay as they are, and cells whose positions do not follow each other.
pub(crate) fn pieces(runs: &[CellRun]) -> Vec<Piece> {
    // Runs that stay, or are coded, with neighbours that stay as one.
    let mut parts: Vec<(CellRun, bool)> = Vec::new();
    for run in runs {
        let exact = EXACT_TOKENS.saturating_sub(run.first_position).min(run.cells);
        let [first, rest] = [(0, exact), (exact, run.cells - exact)].map(|(from, cells)| CellRun {
            first_cell: run.first_cell + from,
            cells,
            first_position: run.first_position + from,
        });
        for (run, is_coded) in [(first, false), (rest, rest.cells >= LEAST_CELLS)] {
            match parts.last_mut() {
                _ if run.cells == 0 => {}
                Some((last, false)) if !is_coded => last.cells += run.cells,
                _ => parts.push((run, is_coded)),
            }
        }
    }
    let mut pieces = Vec::new();
    for (run, is_coded) in parts {
        let count = run.cells.div_ceil(MOST_CELLS);
        for i in 0..count {
            let [from, to] =
                [i, i + 1].map(|i| (u64::from(run.cells) * u64::from(i) / u64::from(count)) as u32);
            pieces.push(Piece {
                first: (run.first_cell + from) as usize,
                cells: (to - from) as usize,
                position: is_coded.then_some(run.first_position + from),
            });
        }
    }
    pieces
}

/// How the layers and cells of a set are cut into chunks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SetPlan {
    /// Coordinates 2i and 2i + 1 of a key in the state are i and i + half of it in the basis.
    pub(crate) is_paired: bool,
    /// Most layers of a chunk.
    pub(crate) batch: u32,
    /// The model's layer of each of the set's, ascending.
    pub(crate) layers: Vec<u32>,
    /// Cells of each piece.
    pub(crate) pieces: Vec<u32>,
}

impl SetPlan {
    /// Layers of a chunk, where `group` of them share a basis.
    pub(crate) fn batch(width: usize, group: usize) -> u32 {
        ((BATCH_VALUES / width.max(1) / group).max(1) * group) as u32
    }

    /// Runs of the set's layers that are one chunk: their indices.
    pub(crate) fn batches(&self) -> Vec<Range<usize>> {
        let mut batches: Vec<Range<usize>> = Vec::new();
        for (i, layer) in self.layers.iter().enumerate() {
            match batches.last_mut() {
                Some(last)
                    if last.len() < self.batch as usize
                        && self.layers[last.start] + last.len() as u32 == *layer =>
                {
                    last.end += 1;
                }
                _ => batches.push(i..i + 1),
            }
        }
        batches
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let fields = [u32::from(self.is_paired), self.batch];
        let words = fields.iter().chain(&self.layers).chain(&self.pieces);
        words.flat_map(|word| word.to_le_bytes()).collect()
    }

    pub(crate) fn parse(bytes: &[u8], set: &Set) -> Result<Self, SessionError> {
        let bad = |why: &str| Err(SessionError::pack(format!("rows in a basis: {why}")));
        let (words, rest) = bytes.as_chunks();
        let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let [paired, batch, rest_words @ ..] = &words[..] else { return bad("a plan that is cut") };
        let Some((layers, pieces)) = rest_words.split_at_checked(set.keys.len()) else {
            return bad("a plan that is cut");
        };
        if *paired > 1 || !rest.is_empty() {
            return bad("a plan with fields that version 1 does not have");
        }
        if *batch == 0 || (*batch as usize).min(layers.len()).saturating_mul(set.width()) > MOST_VALUES {
            return bad("chunks of too many layers, or of none");
        }
        if layers.windows(2).any(|pair| pair[0] >= pair[1]) {
            return bad("layers that do not ascend");
        }
        let cells: u64 = pieces.iter().map(|cells| u64::from(*cells)).sum();
        if pieces.iter().any(|cells| !(1..=MOST_CELLS).contains(cells)) || cells != u64::from(set.cells()) {
            return bad("pieces that are not as long as its cells");
        }
        Ok(Self { is_paired: *paired == 1, batch: *batch, layers: layers.into(), pieces: pieces.into() })
    }

    /// Longest plan of a set.
    pub(crate) fn most_bytes(set: &Set) -> usize {
        4 * (2 + set.keys.len() + set.cells() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(runs: &[(u32, u32)]) -> Vec<(usize, usize, Option<u32>)> {
        let mut first_cell = 0;
        let mut of = |&(first_position, cells): &(u32, u32)| {
            first_cell += cells;
            CellRun { first_cell: first_cell - cells, cells, first_position }
        };
        let runs: Vec<CellRun> = runs.iter().map(&mut of).collect();
        pieces(&runs).iter().map(|piece| (piece.first, piece.cells, piece.position)).collect()
    }

    #[test]
    fn pieces_are_runs_of_positions() {
        assert_eq!(found(&[(0, 100)]), [(0, 4, None), (4, 96, Some(4))]);
        assert_eq!(found(&[(2, 10), (100, 15), (7, 16)]), [(0, 25, None), (25, 16, Some(7))]);
        assert_eq!(found(&[(500, 257)]), [(0, 128, Some(500)), (128, 129, Some(628))]);
        assert_eq!(found(&[(0, 4 + 512)])[1..], [(4, 256, Some(4)), (260, 256, Some(260))]);
        let scattered: Vec<(u32, u32)> = (0..300).map(|i| (2 * i, 1)).collect();
        assert_eq!(found(&scattered), [(0, 150, None), (150, 150, None)]);
    }
}
