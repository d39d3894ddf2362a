//! [`Units`]: which exact tokens of an engine are in which rows of its [`ExactRows`](super::ExactRows).

use super::layout::{BlockTable, Integers, MOST_ENTRIES};
use crate::GpuError;
use crate::current::{Current, Restore};
use crate::device::Device;
use crate::launch::{Memory, launch, warps};
use crate::rows::check_len;
use cudarc::driver::{CudaFunction, LaunchConfig};
use tqkv_core::units::{MOST, UNIT, Window, units_of_block};
use tqkv_gpu_kernels::args::{GiveUnits, KeepUnits, SeeUnits};

/// The kernels that follow [`tqkv_core::units`] on a device. They hold nothing: the lists are the engine's.
#[derive(Debug)]
pub struct Units {
    window: Window,
    /// Units of a block.
    a_block: u32,
    give: CudaFunction,
    keep: CudaFunction,
    see: CudaFunction,
    device: Device,
    restore: Restore,
}

impl Drop for Units {
    fn drop(&mut self) {
        self.restore.settle(self.device.stream());
    }
}

/// The lists of rows, in i32.
#[derive(Clone, Copy, Debug)]
pub struct UnitRows {
    /// The unit in each row, or -1.
    pub owners: Integers,
    /// The step in which each row was used last.
    pub used: Integers,
}

impl UnitRows {
    fn check(&self) -> Result<u32, GpuError> {
        self.used.check("steps of rows", 4, 0)?;
        self.owners.check("units of rows", 4, self.used.len)?;
        u32::try_from(self.used.len)
            .ok()
            .filter(|rows| *rows < u32::MAX / UNIT - 1)
            .ok_or_else(|| GpuError::BadSpec(format!("{} rows of units are not valid", self.used.len)))
    }
}

/// What [`Units::see`] writes: places (i64) of exact tokens, `[sequences, columns * UNIT]`, and more.
#[derive(Clone, Copy, Debug)]
pub enum Seen {
    /// What the newest tokens see of these, and from where to where they see codes (i32, one of each sequence).
    Newest {
        /// Tokens that a query token sees.
        window: Option<u32>,
        /// The first token that is attended as a code.
        starts: Integers,
        /// The token after the last one.
        ends: Integers,
    },
    /// All of them, and the number of each or -1 (i64, of the same shape).
    All(Integers),
}

impl Units {
    /// Loads the kernels for blocks of so many tokens.
    ///
    /// # Errors
    /// [`GpuError::BadSpec`], or the driver's errors.
    pub fn new(device: &Device, window: Window, block_tokens: usize) -> Result<Self, GpuError> {
        let _current = Current::keep();
        let Window { first, newest } = window;
        if !window.is_valid() {
            return Err(GpuError::BadSpec(format!(
                "{first} first and {newest} newest units are not valid: expected at most {MOST}"
            )));
        }
        let a_block = u32::try_from(block_tokens).ok().and_then(units_of_block).ok_or_else(|| {
            GpuError::BadSpec(format!(
                "blocks of {block_tokens} tokens are not valid: expected a multiple of {UNIT}"
            ))
        })?;
        let [give, keep, see] = device.kernels(["give_units", "keep_units", "see_units"])?;
        Ok(Self { window, a_block, give, keep, see, device: device.clone(), restore: Restore::default() })
    }

    /// [`tqkv_core::units::Units::give`]. `queries` (i32) has the new tokens of each sequence.
    ///
    /// # Errors
    /// Wrong lengths, or the driver's errors.
    pub fn give(
        &self,
        device: &Device,
        rows: UnitRows,
        step: u32,
        table: BlockTable,
        lengths: Integers,
        queries: Integers,
    ) -> Result<(), GpuError> {
        let _current = Current::keep();
        let count = rows.check()?;
        if lengths.len == 0 {
            return Ok(());
        }
        self.check(table, lengths)?;
        queries.check("queries", 4, lengths.len)?;
        let arguments = GiveUnits {
            owners: Memory::Raw(rows.owners.address),
            rows: count,
            used: Memory::Raw(rows.used.address),
            step,
            table: Memory::Raw(table.numbers.address),
            stride: table.max_blocks as u32,
            last_entry: table.numbers.len as u32 - 1,
            a_block: self.a_block,
            lengths: Memory::Raw(lengths.address),
            queries: Memory::Raw(queries.address),
            sequences: lengths.len as u32,
            first: self.window.first,
            newest: self.window.newest,
        };
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: lengths were checked above, and who made the addresses vouches for their memory.
        unsafe { launch(device, &self.give, arguments.list(), config) }
    }

    /// [`tqkv_core::units::Units::keep`]: slots and places in i64.
    ///
    /// # Errors
    /// Wrong lengths, or the driver's errors.
    pub fn keep(
        &self,
        device: &Device,
        rows: UnitRows,
        slots: Integers,
        kept: Integers,
    ) -> Result<(), GpuError> {
        let _current = Current::keep();
        let count = rows.check()?;
        slots.check("slots", 8, 0)?;
        kept.check("places of the step", 8, slots.len)?;
        check_places(kept.len)?;
        let arguments = KeepUnits {
            owners: Memory::Raw(rows.owners.address),
            rows: count,
            slots: Memory::Raw(slots.address),
            slots_len: slots.len as u32,
            kept: Memory::Raw(kept.address),
            tokens: kept.len as u32,
        };
        // SAFETY: lengths were checked above, and who made the addresses vouches for their memory.
        unsafe { launch(device, &self.keep, arguments.list(), warps(kept.len.div_ceil(32))?) }
    }

    /// [`tqkv_core::units::Units::see`], or [`tqkv_core::units::Units::earlier`].
    ///
    /// # Errors
    /// Wrong lengths, or the driver's errors.
    pub fn see(
        &self,
        device: &Device,
        rows: UnitRows,
        table: BlockTable,
        lengths: Integers,
        places: Integers,
        seen: Seen,
    ) -> Result<(), GpuError> {
        let _current = Current::keep();
        let count = rows.check()?;
        if lengths.len == 0 {
            return Ok(());
        }
        self.check(table, lengths)?;
        let width = (self.window.columns() * UNIT) as usize;
        places.check("places of exact tokens", 8, lengths.len.saturating_mul(width))?;
        check_len("places of exact tokens", places.len, lengths.len * width)?;
        check_places(places.len)?;
        let (window, numbers, starts, ends) = match seen {
            Seen::Newest { window, starts, ends } => {
                starts.check("starts", 4, lengths.len)?;
                ends.check("ends", 4, lengths.len)?;
                (window.unwrap_or(u32::MAX), places, starts, ends)
            }
            Seen::All(numbers) => {
                numbers.check("numbers of exact tokens", 8, places.len)?;
                (u32::MAX, numbers, lengths, lengths)
            }
        };
        let arguments = SeeUnits {
            owners: Memory::Raw(rows.owners.address),
            rows: count,
            table: Memory::Raw(table.numbers.address),
            stride: table.max_blocks as u32,
            last_entry: table.numbers.len as u32 - 1,
            a_block: self.a_block,
            lengths: Memory::Raw(lengths.address),
            sequences: lengths.len as u32,
            first: self.window.first,
            newest: self.window.newest,
            window,
            all: u32::from(matches!(seen, Seen::All(_))),
            places: Memory::Raw(places.address),
            numbers: Memory::Raw(numbers.address),
            starts: Memory::Raw(starts.address),
            ends: Memory::Raw(ends.address),
        };
        // SAFETY: lengths were checked above, and who made the addresses vouches for their memory.
        unsafe { launch(device, &self.see, arguments.list(), warps(lengths.len.div_ceil(32))?) }
    }

    /// Checks the sequences of a call.
    fn check(&self, table: BlockTable, lengths: Integers) -> Result<(), GpuError> {
        lengths.check("lengths", 4, 0)?;
        table.check()?;
        let rows = lengths.len.saturating_sub(1).saturating_mul(table.max_blocks) + 1;
        table.numbers.check("the block table", 4, rows)
    }
}

/// Checks the number of places that a launch writes, whose bytes are counted in 32 bits.
fn check_places(count: usize) -> Result<(), GpuError> {
    match count < MOST_ENTRIES {
        true => Ok(()),
        false => Err(GpuError::BadSpec(format!("{count} places of exact tokens are not valid"))),
    }
}
