//! One KV cache within a state.

use std::io::{Read, Seek};
use std::sync::Arc;

use crate::grid::Grid;
use crate::numbers::Numbers;
use crate::source::{Miss, StateSource};

/// Tokens at the start of a sequence whose rows stay as they are: attention sinks.
pub const EXACT_TOKENS: u32 = 4;

/// Most sequences of a context (`LLAMA_MAX_SEQ`).
const MOST_STREAMS: u32 = 256;
const MOST_LAYERS: u32 = 1024;
/// Longest row of one cell; the largest models have 16 KB.
const LONGEST_ROW: u64 = 1 << 20;
/// Bytes of the extension of a cell: two coordinates and a token.
const EXTENSION: u64 = 12;

/// Fields that depend on the model and the version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Variant {
    /// Each cell has one sequence.
    pub(crate) is_sequence: bool,
    /// Each cell has an extension.
    pub(crate) has_extension: bool,
    /// The widths of a rotation follow the number of layers.
    pub(crate) has_rotation: bool,
}

/// Which rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateSide {
    /// Keys.
    Keys,
    /// Values.
    Values,
}

/// The keys or the values of one layer: a matrix of cells.
#[derive(Debug, Clone, PartialEq)]
pub struct StateRows {
    /// Offset in the state.
    pub at: u64,
    /// Keys or values.
    pub side: StateSide,
    /// Index of the layer among those with a cache.
    pub layer: u32,
    /// Type of the numbers.
    pub numbers: Numbers,
    /// Values per cell, all KV heads together.
    pub width: u32,
    /// Cells.
    pub cells: u32,
    /// `[width, cells]` instead of `[cells, width]`: values without flash attention.
    pub is_transposed: bool,
    /// The positions of all cells.
    pub(crate) runs: Arc<[CellRun]>,
}

/// Cells whose positions follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CellRun {
    pub(crate) first_cell: u32,
    pub(crate) cells: u32,
    pub(crate) first_position: u32,
}

impl StateRows {
    /// Bytes of one cell.
    pub fn row_bytes(&self) -> u64 {
        self.numbers.bytes(u64::from(self.width)).unwrap_or(0)
    }

    /// Bytes of all cells.
    pub fn bytes(&self) -> u64 {
        u64::from(self.cells) * self.row_bytes()
    }

    pub(crate) fn grid(&self) -> Grid {
        let Self { numbers, width, cells, is_transposed, .. } = *self;
        Grid { numbers, width, cells, is_transposed }
    }

    /// Cells of the first tokens, ascending.
    pub(crate) fn early(&self) -> Vec<u32> {
        let of = |run: &CellRun| {
            let early = EXACT_TOKENS.saturating_sub(run.first_position).min(run.cells);
            run.first_cell..run.first_cell + early
        };
        self.runs.iter().flat_map(of).collect()
    }
}

/// A KV cache of a state.
#[derive(Debug, Clone, PartialEq)]
pub struct Cache {
    /// Cells in all streams.
    pub cells: u64,
    /// Keys and values in the order of the state.
    pub rows: Vec<StateRows>,
}

/// Reads one cache. Up to the type of the first keys another thing may stand here; after that, every fault
/// is damage. With `has_values`, a field that cannot be the type of the first values is [`Miss::NoValues`].
pub(crate) fn read_cache<R: Read + Seek>(
    source: &mut StateSource<'_, R>,
    variant: Variant,
    has_values: bool,
) -> Result<Cache, Miss> {
    let at = source.at();
    let streams = source.u32("the number of streams")?;
    if !(1..=MOST_STREAMS).contains(&streams) {
        let why = format!("no KV cache: {streams} streams; expected 1 to {MOST_STREAMS}");
        return Err(Miss::Foreign { at, why });
    }
    let mut cache = Cache { cells: 0, rows: Vec::new() };
    for _ in 0..streams {
        let cells = source.u32("the number of cells")?;
        if cells == 0 {
            continue;
        }
        let runs = read_cells(source, variant, cells)?;
        cache.cells += u64::from(cells);
        read_stream(source, variant, has_values, (cells, &runs), &mut cache.rows)?;
    }
    Ok(cache)
}

/// The positions and sequences of cells.
fn read_cells<R: Read + Seek>(
    source: &mut StateSource<'_, R>,
    variant: Variant,
    cells: u32,
) -> Result<Arc<[CellRun]>, Miss> {
    let mut runs: Vec<CellRun> = Vec::new();
    for cell in 0..cells {
        let at = source.at();
        let foreign = |why: String| Miss::Foreign { at, why: format!("no KV cache: cell {cell} has {why}") };
        let position = source.u32("a position")?.cast_signed();
        let sequences = source.u32("a number of sequences")?;
        if position < 0 {
            return Err(foreign(format!("position {position}; expected 0 or more")));
        }
        let most = if variant.is_sequence { 1 } else { MOST_STREAMS };
        if !(1..=most).contains(&sequences) {
            return Err(foreign(format!("{sequences} sequences; expected 1 to {most}")));
        }
        if variant.has_extension {
            source.skip(EXTENSION, "the extension of a cell")?;
        }
        for _ in 0..sequences {
            let sequence = source.u32("a sequence")?;
            if sequence >= MOST_STREAMS {
                return Err(foreign(format!("sequence {sequence}; expected 0 to {}", MOST_STREAMS - 1)));
            }
        }
        let position = position.cast_unsigned();
        match runs.last_mut() {
            Some(run) if run.first_position + run.cells == position => run.cells += 1,
            _ => runs.push(CellRun { first_cell: cell, cells: 1, first_position: position }),
        }
    }
    Ok(runs.into())
}

fn read_stream<R: Read + Seek>(
    source: &mut StateSource<'_, R>,
    variant: Variant,
    has_values: bool,
    (cells, runs): (u32, &Arc<[CellRun]>),
    rows: &mut Vec<StateRows>,
) -> Result<(), Miss> {
    let at = source.at();
    let (transposed, layers) = (source.u32("the transposition")?, source.u32("the number of layers")?);
    if transposed > 1 || !(1..=MOST_LAYERS).contains(&layers) {
        let why = format!("no KV cache: transposition {transposed} and {layers} layers");
        return Err(Miss::Foreign { at, why });
    }
    if variant.has_rotation {
        source.skip(8, "the rotation")?;
    }
    let sides = [(StateSide::Keys, false), (StateSide::Values, transposed == 1)];
    for (side, is_transposed) in sides.into_iter().take(if has_values { 2 } else { 1 }) {
        let mut first = None;
        for layer in 0..layers {
            let (numbers, width) = match read_type(source, (side, layer), is_transposed) {
                // Only the first of a side can be something else.
                Err(Miss::Foreign { at, why }) if layer > 0 => return Err(Miss::Damaged { at, why }),
                Err(Miss::Foreign { at, why }) if side == StateSide::Values => {
                    return Err(Miss::NoValues { at, why });
                }
                other => other?,
            };
            if *first.get_or_insert(numbers) != numbers {
                let why = format!("layer {layer} has {} where the first has another type", numbers.name());
                return Err(Miss::Damaged { at: source.at(), why });
            }
            let runs = Arc::clone(runs);
            let own = StateRows { at: source.at(), side, layer, numbers, width, cells, is_transposed, runs };
            source.skip(own.bytes(), &format!("layer {layer}, {}", side.name()))?;
            rows.push(own);
        }
    }
    Ok(())
}

impl StateSide {
    /// "keys" or "values".
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::Values => "values",
        }
    }
}

/// The type of a layer's rows, and their values per cell.
fn read_type<R: Read + Seek>(
    source: &mut StateSource<'_, R>,
    (side, layer): (StateSide, u32),
    is_transposed: bool,
) -> Result<(Numbers, u32), Miss> {
    let at = source.at();
    let name = format!("layer {layer}, {}", side.name());
    let number = source.u32(&format!("{name}: the type"))?;
    let Some(numbers) = Numbers::from_ggml(number) else {
        return Err(Miss::Foreign { at, why: format!("{name}: type {number} is none of a KV cache") });
    };
    let foreign = |why: String| Miss::Foreign { at: at + 4, why: format!("{name}: {why}") };
    let (row_bytes, width) = if is_transposed {
        let (element, width) = (source.u32("the element's size")?, source.u32("the width")?);
        if numbers.bytes(1) != Some(u64::from(element)) {
            return Err(foreign(format!("{element} bytes per number of {}", numbers.name())));
        }
        (u64::from(element) * u64::from(width), u64::from(width))
    } else {
        let row = source.u64(&format!("{name}: the row's size"))?;
        let Some(width) = numbers.values(row) else {
            return Err(foreign(format!("rows of {row} bytes are no whole number of {}", numbers.name())));
        };
        (row, width)
    };
    match u32::try_from(width) {
        Ok(width) if (1..=LONGEST_ROW).contains(&row_bytes) => Ok((numbers, width)),
        _ => Err(foreign(format!("rows of {row_bytes} bytes; expected 1 to {LONGEST_ROW}"))),
    }
}
