//! Bytes that caches share, behind a handle.
//!
//! A budget is counters that its caches share: the handle may be freed before them, and its limit stays.

use crate::error::{TqkvStatus, guard, guard_quietly};
use crate::pointer::{self, Out};
use tqkv::cache::Budget;

/// A limit on the bytes of keys and values that all caches made with it hold together. Pages that forks share count once.
#[derive(Debug)]
pub struct TqkvBudget {
    budget: Budget,
}

impl TqkvBudget {
    pub(crate) fn get(&self) -> &Budget {
        &self.budget
    }
}

/// Makes a budget of at most `bytes` bytes; SIZE_MAX counts and refuses nothing. On failure `*budget` is null.
///
/// # Safety
/// `budget` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_budget_create(bytes: usize, budget: *mut *mut TqkvBudget) -> TqkvStatus {
    guard(|| {
        let place = Out::new("budget", budget, 1)?;
        let made = Box::new(TqkvBudget { budget: Budget::new(bytes) });
        // SAFETY: the caller's promise.
        unsafe { place.write(Box::into_raw(made)) };
        Ok(())
    })
}

/// Frees the handle of a budget; null is accepted. Caches made with it stay within its limit.
///
/// # Safety
/// `budget` is null or came from `tqkv_budget_create`, was not freed, and no call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_budget_free(budget: *mut TqkvBudget) {
    if !budget.is_null() {
        // SAFETY: made by `Box::into_raw`, and freed once, by the caller's promise.
        guard_quietly((), || drop(unsafe { Box::from_raw(budget) }));
    }
}

/// Writes the bytes that caches hold now.
///
/// # Safety
/// `budget` is null or a budget that is not freed; `bytes` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_budget_used(budget: *const TqkvBudget, bytes: *mut usize) -> TqkvStatus {
    // SAFETY: the caller's promise is the same.
    unsafe { tell(budget, bytes, Budget::used) }
}

/// Writes the bytes that caches may hold together.
///
/// # Safety
/// `budget` is null or a budget that is not freed; `bytes` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_budget_limit(budget: *const TqkvBudget, bytes: *mut usize) -> TqkvStatus {
    // SAFETY: the caller's promise is the same.
    unsafe { tell(budget, bytes, Budget::limit) }
}

/// Writes a figure of a budget.
///
/// # Safety
/// As of [`tqkv_budget_used`].
unsafe fn tell(budget: *const TqkvBudget, bytes: *mut usize, figure: fn(&Budget) -> usize) -> TqkvStatus {
    guard(|| {
        // SAFETY: the caller's promise; a budget changes by atomic counters only.
        let budget = unsafe { pointer::handle("budget", budget) }?;
        let place = Out::new("bytes", bytes, 1)?;
        // SAFETY: the caller's promise.
        unsafe { place.write(figure(budget.get())) };
        Ok(())
    })
}
