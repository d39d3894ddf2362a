//! What the driver's functions share.

use crate::Counts;
use crate::state::{Failure, Machine, Work, with};
use std::cell::{Cell, RefCell};

/// A context's handle is its device's number and this.
pub(crate) const CONTEXT: usize = 0x100;

thread_local! {
    pub(crate) static COUNTS: RefCell<Counts> = const { RefCell::new(Counts {
        launches: 0, warps: 0, copies_in: 0, pageable: 0, waits: 0, allocations: 0, modules: 0, events: 0,
    }) };
    pub(crate) static CONTEXT_HERE: Cell<usize> = const { Cell::new(0) };
    pub(crate) static REFUSES_PTX: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn count(f: impl FnOnce(&mut Counts)) {
    COUNTS.with_borrow_mut(f);
}

/// Counts a launch, if the work is one.
pub(crate) fn count_launch(work: &Work) {
    if let Work::Launch(launch) = work {
        count(|counts| {
            counts.launches += 1;
            counts.warps += launch.warps.iter().map(|&n| u64::from(n)).product::<u64>();
        });
    }
}

/// The machine's answer as a `CUresult`.
pub(crate) fn answer(f: impl FnOnce(&mut Machine) -> Result<(), Failure>) -> Failure {
    with(f).err().unwrap_or(0)
}

/// Writes a result where the caller wants it.
///
/// # Safety
/// `to` can be written, as the driver's documentation asks of callers.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) {
    // SAFETY: the caller's.
    unsafe { to.write(value) };
}

macro_rules! driver {
    ($($name:ident($($argument:ident: $type:ty),*) $body:block)*) => { $(
        /// As `libcuda` has it.
        ///
        /// # Safety
        /// Pointers are as the driver's documentation asks.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the driver's names")]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> Failure $body
    )* };
}

pub(crate) use driver;
