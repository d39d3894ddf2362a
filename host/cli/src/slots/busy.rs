//! Names of states that a call uses.
//!
//! A name is taken by one holder at a time. So no file is removed under a restore, and no two calls unpack
//! one state.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The names in use.
#[derive(Debug, Default)]
pub(super) struct Busy {
    names: Mutex<HashSet<String>>,
    given_back: Notify,
}

impl Busy {
    /// Waits until no other has the name.
    pub(super) async fn take(self: &Arc<Self>, name: &str) -> Taken {
        loop {
            // From here on a name that is given back is noticed, also before it is waited for.
            let given_back = self.given_back.notified();
            if let Some(taken) = self.try_take(name) {
                return taken;
            }
            given_back.await;
        }
    }

    /// Takes the name if no other has it.
    pub(super) fn try_take(self: &Arc<Self>, name: &str) -> Option<Taken> {
        let is_free = self.names().insert(name.to_owned());
        is_free.then(|| Taken { busy: Arc::clone(self), name: name.to_owned() })
    }

    fn names(&self) -> MutexGuard<'_, HashSet<String>> {
        // The set is complete after every statement.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name in use. Dropping it gives the name back.
#[derive(Debug)]
pub(super) struct Taken {
    busy: Arc<Busy>,
    pub(super) name: String,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.busy.names().remove(&self.name);
        self.busy.given_back.notify_waiters();
    }
}
