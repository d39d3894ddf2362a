//! Where a thread is in a tile, and what it reads of a page.

use crate::page;
use crate::reader::Reader;
use crate::tables::Words;
use crate::threads::Threads;

/// Tokens of a page whose logits one thread has.
pub(super) const TOKENS: usize = page::SLOTS as usize / 8;

/// Query heads of a set. A warp has one or two sets, so four or eight heads.
pub const HEADS: u32 = 4;

/// g: the row of a tile, and the column of its second factor.
#[inline(always)]
pub(super) fn row<T: Threads>() -> T::Of<u32> {
    T::map(T::lane(), |lane| lane / 4)
}

/// t: the position in the bytes of a row, and in the columns of the sums.
#[inline(always)]
pub(super) fn column<T: Threads>() -> T::Of<u32> {
    T::map(T::lane(), |lane| lane % 4)
}

/// 16 x 8 sums.
pub(super) type Sums<T> = <T as Threads>::Of<[i32; 4]>;

/// Keys or values of a page: their memory, the bytes per row, and each thread's place in the first rows. The
/// place is the first unit of 8 coordinates that the thread reads, and its offset. For trellis codes the
/// offset is that of the row.
#[derive(Clone, Copy)]
pub(super) struct PageSide<T: Threads> {
    pub(super) home: T::Memory,
    pub(super) row_bytes: u32,
    pub(super) start: T::Of<u32>,
    pub(super) unit: T::Of<u32>,
}

impl<T: Threads> PageSide<T> {
    /// Reads `UNITS` units of a thread's row, `slots` rows after its first.
    #[inline(always)]
    pub(super) fn fetch<C: Reader, const G: usize, const UNITS: usize>(&self, slots: u32) -> T::Of<Words> {
        let home = T::at(self.home, u64::from(slots * self.row_bytes));
        C::units::<T, G, UNITS>(home, self.start, self.unit)
    }
}

/// Returns true if the tiles of a page are unrolled, which saves moves between registers and loads codes
/// early. Trellis codes leave no registers for that, so their tiles run in a loop.
pub(super) const fn is_written_out(trellis: bool) -> bool {
    !trellis
}
