//! The settings of this process: from the environment variables, then from the parameters of the device.

use crate::options::Options;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};
use tqkv::Level;

/// The settings of buffers that are made from now on, or the error in them.
static OPTIONS: LazyLock<RwLock<Result<Arc<Options>, String>>> = LazyLock::new(|| {
    let level = Level::detect().map_err(|error| error.to_string());
    RwLock::new(level.and_then(|_| Options::from_environment()).map(Arc::new))
});

/// The user's settings; none where they are wrong. The entry point has then printed the error.
pub(crate) fn options() -> Option<Arc<Options>> {
    OPTIONS.read().unwrap_or_else(PoisonError::into_inner).as_ref().ok().cloned()
}

/// The error in the settings: one line that says what is wrong and what is accepted.
pub(crate) fn wrong_options() -> Option<String> {
    OPTIONS.read().unwrap_or_else(PoisonError::into_inner).as_ref().err().cloned()
}

/// Applies a policy text to the buffers that are made from now on.
pub(crate) fn set_options(text: &str) -> Result<(), String> {
    let mut options = OPTIONS.write().unwrap_or_else(PoisonError::into_inner);
    let old = options.as_ref().map_err(Clone::clone)?;
    let new = Options::clone(old).with(text)?;
    *options = Ok(Arc::new(new));
    Ok(())
}
