//! A memory budget for several caches, behind a handle.
//!
//! The caches share the counters of their budget. So the handle may be freed first, and the limit stays.

use crate::error::TqkvStatus;
use crate::pointer::{self, Call};
use tqkv::cache::Budget;

/// A limit on the bytes of keys and values of all caches made with it. Pages that forks share count once.
#[derive(Debug)]
pub struct TqkvBudget {
    budget: Budget,
}

impl TqkvBudget {
    pub(crate) fn get(&self) -> &Budget {
        &self.budget
    }
}

/// Makes a budget of at most `bytes` bytes. With SIZE_MAX it counts and refuses nothing. On failure `*budget`
/// is null.
///
/// # Safety
/// `budget` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_budget_create(bytes: usize, budget: *mut *mut TqkvBudget) -> TqkvStatus {
    // SAFETY: `budget` is room for a handle, by the contract of this call.
    unsafe { Call::new() }
        .run(|call| call.give("budget", budget, || Ok(TqkvBudget { budget: Budget::new(bytes) })))
}

/// Frees the handle of a budget; null is accepted. Caches made with it stay within its limit.
///
/// # Safety
/// `budget` is null or a handle from `tqkv_budget_create` that is not freed and that no call uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_budget_free(budget: *mut TqkvBudget) {
    // SAFETY: `tqkv_budget_create` gave it, and it is freed once, by the contract of this call.
    unsafe { pointer::free(budget) }
}

/// Writes the number of bytes that caches hold now.
///
/// # Safety
/// `budget` is null or a budget that is not freed. `bytes` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_budget_used(budget: *const TqkvBudget, bytes: *mut usize) -> TqkvStatus {
    // SAFETY: `budget` is a budget and `bytes` room for a number, by the contract of this call.
    unsafe { tell(budget, bytes, Budget::used) }
}

/// Writes the limit in bytes.
///
/// # Safety
/// `budget` is null or a budget that is not freed. `bytes` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_budget_limit(budget: *const TqkvBudget, bytes: *mut usize) -> TqkvStatus {
    // SAFETY: `budget` is a budget and `bytes` room for a number, by the contract of this call.
    unsafe { tell(budget, bytes, Budget::limit) }
}

/// Writes a figure of a budget.
///
/// # Safety
/// The contract of [`tqkv_budget_used`].
unsafe fn tell(budget: *const TqkvBudget, bytes: *mut usize, figure: fn(&Budget) -> usize) -> TqkvStatus {
    // SAFETY: `budget` is a budget and `bytes` room for a number, by the contract of this function.
    unsafe { Call::new() }.run(|call| {
        let budget = call.handle("budget", budget)?;
        call.place("bytes", bytes)?.write(figure(budget.get()));
        Ok(())
    })
}
