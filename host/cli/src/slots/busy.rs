//! Names of states that a call uses.
//!
//! A name is taken by one holder at a time. So no file is removed under a restore, and no two calls unpack
//! one state.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The names in use.
#[derive(Debug, Default)]
pub(super) struct Busy {
    names: Mutex<HashSet<String>>,
    given_back: Condvar,
}

impl Busy {
    /// Waits until no other has the name.
    pub(super) fn take(&self, name: &str) -> Taken<'_> {
        let mut names = self.names();
        while !names.insert(name.to_owned()) {
            names = self.given_back.wait(names).unwrap_or_else(PoisonError::into_inner);
        }
        Taken { busy: self, name: name.to_owned() }
    }

    /// Takes the name if no other has it.
    pub(super) fn try_take(&self, name: &str) -> Option<Taken<'_>> {
        self.names().insert(name.to_owned()).then(|| Taken { busy: self, name: name.to_owned() })
    }

    fn names(&self) -> MutexGuard<'_, HashSet<String>> {
        // The set is whole after every statement.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name in use. Dropping it gives the name back.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    busy: &'a Busy,
    name: String,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.busy.names().remove(&self.name);
        self.busy.given_back.notify_all();
    }
}
