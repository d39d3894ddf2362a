//! Rows in memory, cell by cell: some thousands of cells at a time, whichever way the state has them.

use std::io::{Read, Seek, SeekFrom, Write};

use crate::error::SessionError;
use crate::grid::Grid;
use crate::tile::CELLS;

/// Bytes of a slab, or 64 cells where these are longer.
const BYTES: usize = 1 << 23;

/// A run of cells.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slab {
    pub(crate) first: usize,
    pub(crate) cells: usize,
}

impl Slab {
    pub(crate) fn all(grid: &Grid) -> impl Iterator<Item = Self> {
        let cells = grid.cells as usize;
        let step = (BYTES / grid.row_bytes().max(1) / CELLS).max(1) * CELLS;
        (0..cells).step_by(step).map(move |first| Self { first, cells: step.min(cells - first) })
    }
}

/// Reads rows of the matrix at `at` in a state.
pub(crate) fn read_slab<R: Read + Seek>(
    state: &mut R,
    at: u64,
    grid: &Grid,
    slab: Slab,
) -> Result<Vec<u8>, SessionError> {
    let mut bytes = vec![0; slab.cells * grid.row_bytes()];
    if !grid.is_transposed {
        state.seek(SeekFrom::Start(at + (slab.first * grid.row_bytes()) as u64))?;
        state.read_exact(&mut bytes)?;
        return Ok(bytes);
    }
    let element = grid.element_bytes();
    for (j, line) in bytes.chunks_mut(slab.cells * element).enumerate() {
        state.seek(SeekFrom::Start(line_at(at, grid, slab, j)))?;
        state.read_exact(line)?;
    }
    Ok(turned(&bytes, element, slab.cells))
}

/// Writes them.
pub(crate) fn write_slab<W: Write + Seek>(
    state: &mut W,
    at: u64,
    grid: &Grid,
    slab: Slab,
    rows: &[u8],
) -> Result<(), SessionError> {
    if !grid.is_transposed {
        state.seek(SeekFrom::Start(at + (slab.first * grid.row_bytes()) as u64))?;
        return Ok(state.write_all(rows)?);
    }
    let element = grid.element_bytes();
    let turned = turned(rows, element, grid.width as usize);
    for (j, line) in turned.chunks(slab.cells * element).enumerate() {
        state.seek(SeekFrom::Start(line_at(at, grid, slab, j)))?;
        state.write_all(line)?;
    }
    Ok(())
}

/// Where coordinate `j` of a slab's cells begins.
fn line_at(at: u64, grid: &Grid, slab: Slab, j: usize) -> u64 {
    let element = grid.element_bytes() as u64;
    at + (j as u64 * u64::from(grid.cells) + slab.first as u64) * element
}

/// The transpose of a matrix with rows of `columns` elements.
fn turned(bytes: &[u8], element: usize, columns: usize) -> Vec<u8> {
    match element {
        2 => turned_of::<2>(bytes, columns),
        _ => turned_of::<4>(bytes, columns),
    }
}

fn turned_of<const N: usize>(bytes: &[u8], columns: usize) -> Vec<u8> {
    let from: &[[u8; N]] = bytes.as_chunks().0;
    let mut out = vec![0; bytes.len()];
    let to: &mut [[u8; N]] = out.as_chunks_mut().0;
    let rows = from.len() / columns.max(1);
    // Tiles of a size that both sides' cache lines fit.
    const SIDE: usize = 32;
    for top in (0..rows).step_by(SIDE) {
        for left in (0..columns).step_by(SIDE) {
            for row in top..rows.min(top + SIDE) {
                for column in left..columns.min(left + SIDE) {
                    to[column * rows + row] = from[row * columns + column];
                }
            }
        }
    }
    out
}
