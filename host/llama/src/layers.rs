//! The layers of a model, as far as the names of its caches tell. Several caches of a model share them: a model
//! may have one cache for some layers and one for the others.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The layers that have a cache or a recurrent state here.
#[derive(Debug, Default)]
pub(crate) struct SeenLayers {
    seen: Mutex<BTreeSet<usize>>,
    was_told: AtomicBool,
}

impl SeenLayers {
    fn seen(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a layer.
    pub(crate) fn add(&self, layer: usize) {
        self.seen().insert(layer);
    }

    /// One past the last layer that is known.
    pub(crate) fn count(&self) -> usize {
        self.seen().last().map_or(0, |last| last + 1)
    }

    /// Number of first layers that have nothing here, the first time that this is asked. The host gives a
    /// device a run of layers. Gaps in it mean nothing: some models have layers without attention.
    pub(crate) fn tell_missing(&self) -> usize {
        if self.was_told.swap(true, Ordering::Relaxed) {
            return 0;
        }
        self.seen().first().copied().unwrap_or(0)
    }
}

thread_local! {
    /// The layers of the model for which this thread makes buffers.
    static LAYERS: RefCell<Arc<SeenLayers>> = RefCell::default();
}

/// The layers of the model for which this thread makes buffers.
pub(crate) fn of_model() -> Arc<SeenLayers> {
    LAYERS.with_borrow(Arc::clone)
}

/// Ends the buffers of one model. Buffers that this thread makes from now on belong to another model.
pub(crate) fn end_of_model() {
    LAYERS.with_borrow_mut(|layers| {
        if layers.count() > 0 {
            *layers = Arc::default();
        }
    });
}

/// The number of the layer at the end of a tensor's name; 0 if there is none.
pub(crate) fn number(name: &[u8]) -> usize {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&name[name.len() - digits..]).ok();
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
