//! Where the numbers of keys or values of one layer lie in a state.

use crate::numbers::Numbers;

/// A matrix of cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) numbers: Numbers,
    /// Values per cell.
    pub(crate) width: u32,
    pub(crate) cells: u32,
    /// Coordinate by coordinate instead of cell by cell.
    pub(crate) is_transposed: bool,
}

impl Grid {
    pub(crate) fn row_bytes(&self) -> usize {
        self.numbers.bytes(u64::from(self.width)).unwrap_or(0) as usize
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.row_bytes() as u64 * u64::from(self.cells)
    }

    /// Bytes of one number of a transposed matrix.
    pub(crate) fn element_bytes(&self) -> usize {
        usize::from(self.numbers.plane_bytes())
    }
}
