//! Shared by the driver's functions.

use crate::Counts;
use crate::failure::INVALID_CONTEXT;
use crate::state::{Failure, Machine, Work, with};
use std::cell::{Cell, RefCell};

/// A context's handle is this plus its device's number.
pub(crate) const CONTEXT: usize = 0x100;

thread_local! {
    pub(crate) static COUNTS: RefCell<Counts> = const { RefCell::new(Counts {
        launches: 0, warps: 0, copies_in: 0, bytes_in: 0, bytes_out: 0, pageable: 0, waits: 0, allocations: 0, modules: 0, events: 0,
    }) };
    pub(crate) static CONTEXT_HERE: Cell<usize> = const { Cell::new(0) };
    pub(crate) static REFUSES_PTX: Cell<bool> = const { Cell::new(false) };
    /// The version of the driver, as it reports it.
    pub(crate) static VERSION: Cell<i32> = const { Cell::new(12_040) };
}

pub(crate) fn count(f: impl FnOnce(&mut Counts)) {
    COUNTS.with_borrow_mut(f);
}

/// Counts the work if it is a launch.
pub(crate) fn count_launch(work: &Work) {
    if let Work::Launch(launch) = work {
        count(|counts| {
            counts.launches += 1;
            counts.warps += launch.warps.iter().map(|&n| u64::from(n)).product::<u64>();
        });
    }
}

/// The machine's answer about a stream. 0 is the default stream of the current context, which must exist.
pub(crate) fn on(stream: usize, f: impl FnOnce(&mut Machine, usize) -> Result<(), Failure>) -> Failure {
    match (CONTEXT_HERE.get(), stream) {
        (0, _) => INVALID_CONTEXT,
        (here, 0) => answer(|machine| {
            let stream = machine.default_stream(here);
            f(machine, stream)
        }),
        _ => answer(|machine| f(machine, stream)),
    }
}

/// The machine's answer as a `CUresult`.
pub(crate) fn answer(f: impl FnOnce(&mut Machine) -> Result<(), Failure>) -> Failure {
    with(f).err().unwrap_or(0)
}

/// Writes a result to the caller's memory.
///
/// # Safety
/// `to` can be written, as the driver's documentation requires.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) {
    // SAFETY: the caller upholds the same contract.
    unsafe { to.write(value) };
}

macro_rules! driver {
    ($($name:ident($($argument:ident: $type:ty),*) $body:block)*) => { $(
        /// Does the work of `libcuda`'s function of this name.
        ///
        /// # Safety
        /// Pointers are valid as the driver's documentation requires.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the driver's names")]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> Failure $body
    )* };
}

pub(crate) use driver;
