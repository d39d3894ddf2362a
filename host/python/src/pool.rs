//! The threads of rayon's pool: started where they can still be refused, and never asked for in the child of a fork.

use crate::errors::{Failure, refused};
use std::error::Error;
use std::process;
use std::sync::OnceLock;

/// Starts the pool at its first call. A process that was forked after that has none of its threads, and would wait for
/// them for ever.
pub(crate) fn start() -> Result<(), Failure> {
    static STARTED: OnceLock<(u32, Option<String>)> = OnceLock::new();
    let (pid, why) = STARTED.get_or_init(|| {
        let error = rayon::ThreadPoolBuilder::new().build_global().err();
        // Without a source: the pool was there.
        (process::id(), error.and_then(|error| Some(error.source()?.to_string())))
    });
    if *pid != process::id() {
        return Err(refused(
            "this process was forked after tqkv had started its threads, and has none of them: start it by 'spawn'",
        ));
    }
    match why {
        Some(why) => Err(refused(format!(
            "cannot start threads: {why}; RAYON_NUM_THREADS sets how many are asked for"
        ))),
        None => Ok(()),
    }
}
