//! Which exact tokens of an engine are in which rows, in main memory. The package's module `tqkv.vllm_exact` calls it
//! with arrays over the memory of PyTorch's tensors.

use crate::arrays::{reading, slice, slice_mut, writing};
use crate::errors::{Failure, refused};
use numpy::{PyArrayDyn, PyReadonlyArrayDyn, PyReadwriteArrayDyn};
use pyo3::prelude::*;
use tqkv_core::units::{self, MOST, Sequences, UNIT, Window};

type Numbers<'py> = Bound<'py, PyArrayDyn<i32>>;
type Places<'py> = Bound<'py, PyArrayDyn<i64>>;

/// The unit in each row, and the step in which each row was used last.
type Rows<'py> = (Numbers<'py>, Numbers<'py>);

/// The units that sequences want, and the units of a block.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct Units {
    window: Window,
    a_block: u32,
}

/// The units of a policy, and those of a block.
fn of_blocks(first: u32, newest: u32, block_tokens: u32) -> Result<(Window, u32), Failure> {
    let window = Window { first, newest };
    if !window.is_valid() {
        return Err(refused(format!(
            "{first} first and {newest} newest units are not valid: expected at most {MOST}"
        )));
    }
    let a_block = units::units_of_block(block_tokens).ok_or_else(|| {
        refused(format!("blocks of {block_tokens} tokens are not valid: expected a multiple of {UNIT}"))
    })?;
    Ok((window, a_block))
}

/// Both lists of rows, locked.
struct Held<'py>([PyReadwriteArrayDyn<'py, i32>; 2]);

impl Held<'_> {
    fn of(&mut self, rule: &Units) -> Result<units::Units<'_>, Failure> {
        let [owners, used] = &mut self.0;
        let (owners, used) = (slice_mut(owners)?, slice_mut(used)?);
        check("units of rows", owners.len(), used.len())?;
        let [owner, used] = [owners, used].map(bytemuck::cast_slice_mut);
        Ok(units::Units { owner, used, window: rule.window, a_block: rule.a_block })
    }
}

fn held<'py>((owners, used): &Rows<'py>) -> Result<Held<'py>, Failure> {
    Ok(Held([writing(owners)?, writing(used)?]))
}

/// The tables of a step, locked.
struct Tables<'py>([PyReadonlyArrayDyn<'py, i32>; 2]);

impl<'py> Tables<'py> {
    fn new(table: &Numbers<'py>, lengths: &Numbers<'py>) -> Result<Self, Failure> {
        Ok(Self([reading("table", table)?, reading("lengths", lengths)?]))
    }

    fn of(&self) -> Result<Sequences<'_>, Failure> {
        let [table, lengths] = &self.0;
        let (table, lengths) = (slice("table", table)?, slice("lengths", lengths)?);
        if table.len().is_multiple_of(lengths.len()) {
            return Ok(Sequences { table, lengths });
        }
        Err(refused(format!(
            "a table of {} entries for {} sequences is not valid",
            table.len(),
            lengths.len()
        )))
    }
}

/// Checks the number of values that a call reads or writes.
fn check(what: &str, got: usize, expected: usize) -> Result<(), Failure> {
    match got == expected {
        true => Ok(()),
        false => Err(refused(format!("{got} {what} are not valid: expected {expected}"))),
    }
}

impl Units {
    /// Places of exact tokens of so many sequences.
    fn places(&self, sequences: usize) -> usize {
        sequences.saturating_mul((self.window.columns() * UNIT) as usize)
    }
}

#[pymethods]
impl Units {
    #[new]
    fn new(first: u32, newest: u32, block_tokens: u32) -> Result<Self, Failure> {
        let (window, a_block) = of_blocks(first, newest, block_tokens)?;
        Ok(Self { window, a_block })
    }

    /// Begins a step, in which the last `queries` tokens of each sequence are new.
    fn give(
        &self,
        rows: Rows<'_>,
        step: u32,
        table: &Numbers<'_>,
        lengths: &Numbers<'_>,
        queries: &Numbers<'_>,
    ) -> Result<(), Failure> {
        let (mut rows, tables, queries) =
            (held(&rows)?, Tables::new(table, lengths)?, reading("queries", queries)?);
        let (of, queries) = (tables.of()?, slice("queries", &queries)?);
        check("queries", queries.len(), of.lengths.len())?;
        rows.of(self)?.give(step, &of, queries);
        Ok(())
    }

    /// Writes the place of each token of the step.
    fn keep(&self, rows: Rows<'_>, slots: &Places<'_>, kept: &Places<'_>) -> Result<(), Failure> {
        let (mut rows, slots, mut kept) = (held(&rows)?, reading("slots", slots)?, writing(kept)?);
        rows.of(self)?.keep(slice("slots", &slots)?, slice_mut(&mut kept)?);
        Ok(())
    }

    /// Writes what the newest token of each sequence sees.
    #[expect(clippy::too_many_arguments, reason = "the tensors of a call")]
    fn see(
        &self,
        rows: Rows<'_>,
        table: &Numbers<'_>,
        lengths: &Numbers<'_>,
        window: Option<u32>,
        places: &Places<'_>,
        starts: &Numbers<'_>,
        ends: &Numbers<'_>,
    ) -> Result<(), Failure> {
        let (mut rows, tables) = (held(&rows)?, Tables::new(table, lengths)?);
        let (mut places, mut starts, mut ends) = (writing(places)?, writing(starts)?, writing(ends)?);
        let (places, starts, ends) =
            (slice_mut(&mut places)?, slice_mut(&mut starts)?, slice_mut(&mut ends)?);
        let of = tables.of()?;
        check("places", places.len(), self.places(of.lengths.len()))?;
        check("starts", starts.len(), of.lengths.len())?;
        check("ends", ends.len(), of.lengths.len())?;
        rows.of(self)?.see(&of, window, places, starts, ends);
        Ok(())
    }

    /// Writes the places of all exact tokens of each sequence, and their numbers.
    fn earlier(
        &self,
        rows: Rows<'_>,
        table: &Numbers<'_>,
        lengths: &Numbers<'_>,
        places: &Places<'_>,
        tokens: &Places<'_>,
    ) -> Result<(), Failure> {
        let (mut rows, tables) = (held(&rows)?, Tables::new(table, lengths)?);
        let (mut places, mut tokens) = (writing(places)?, writing(tokens)?);
        let (places, tokens) = (slice_mut(&mut places)?, slice_mut(&mut tokens)?);
        let of = tables.of()?;
        check("places", places.len(), self.places(of.lengths.len()))?;
        check("numbers", tokens.len(), places.len())?;
        rows.of(self)?.earlier(&of, places, tokens);
        Ok(())
    }
}

/// The same on a GPU: tensors are addresses and numbers of values, and a call works on a stream.
#[cfg(feature = "cuda")]
mod on_gpu {
    use crate::dlpack::{self, Numbers, i32s, i64s};
    use crate::errors::Failure;
    use pyo3::prelude::*;
    use tqkv_core::units::Window;
    use tqkv_gpu::Device;
    use tqkv_gpu::paged::{BlockTable, Seen, UnitRows, Units};

    #[pyclass(frozen, module = "tqkv._native")]
    pub(crate) struct GpuUnits {
        units: Units,
        device: Device,
    }

    fn rows((owners, used): (Numbers, Numbers)) -> UnitRows {
        UnitRows { owners: i32s(owners), used: i32s(used) }
    }

    /// The blocks of sequences, and the entries from one to the next.
    fn table((numbers, max_blocks): (Numbers, usize)) -> BlockTable {
        BlockTable { numbers: i32s(numbers), max_blocks }
    }

    #[pymethods]
    impl GpuUnits {
        #[new]
        fn new(
            py: Python<'_>,
            first: u32,
            newest: u32,
            block_tokens: usize,
            device: usize,
        ) -> Result<Self, Failure> {
            let window = Window { first, newest };
            py.detach(|| {
                let device = dlpack::device(device, 0)?;
                Ok(Self { units: Units::new(&device, window, block_tokens)?, device })
            })
        }

        fn give(
            &self,
            stream: usize,
            held: (Numbers, Numbers),
            step: u32,
            blocks: (Numbers, usize),
            lengths: Numbers,
            queries: Numbers,
        ) -> Result<(), Failure> {
            let device = dlpack::on(&self.device, stream)?;
            Ok(self.units.give(&device, rows(held), step, table(blocks), i32s(lengths), i32s(queries))?)
        }

        fn keep(
            &self,
            stream: usize,
            held: (Numbers, Numbers),
            slots: Numbers,
            kept: Numbers,
        ) -> Result<(), Failure> {
            let device = dlpack::on(&self.device, stream)?;
            Ok(self.units.keep(&device, rows(held), i64s(slots), i64s(kept))?)
        }

        #[expect(clippy::too_many_arguments, reason = "the tensors of a call")]
        fn see(
            &self,
            stream: usize,
            held: (Numbers, Numbers),
            blocks: (Numbers, usize),
            lengths: Numbers,
            window: Option<u32>,
            places: Numbers,
            starts: Numbers,
            ends: Numbers,
        ) -> Result<(), Failure> {
            let seen = Seen::Newest { window, starts: i32s(starts), ends: i32s(ends) };
            let device = dlpack::on(&self.device, stream)?;
            Ok(self.units.see(&device, rows(held), table(blocks), i32s(lengths), i64s(places), seen)?)
        }

        fn earlier(
            &self,
            stream: usize,
            held: (Numbers, Numbers),
            blocks: (Numbers, usize),
            lengths: Numbers,
            places: Numbers,
            tokens: Numbers,
        ) -> Result<(), Failure> {
            let (device, seen) = (dlpack::on(&self.device, stream)?, Seen::All(i64s(tokens)));
            Ok(self.units.see(&device, rows(held), table(blocks), i32s(lengths), i64s(places), seen)?)
        }
    }
}

#[cfg(feature = "cuda")]
pub(crate) use on_gpu::GpuUnits;
