//! The threads of calls: those of PyTorch once it is loaded, so that `torch.set_num_threads` counts here too, else those of rayon's
//! pool. These start where a failure can be reported, and are not used in a forked child.

use crate::errors::{Failure, refused};
use std::error::Error;
use std::process;
use std::sync::OnceLock;
use tqkv::threads;

/// Starts the pool at the first call, and looks for PyTorch. A process that is forked after that has none of its threads, and would
/// wait for them forever.
pub(crate) fn start() -> Result<(), Failure> {
    threads::follow(c"libtorch_cpu.so");
    static STARTED: OnceLock<(u32, Option<String>)> = OnceLock::new();
    let (pid, why) = STARTED.get_or_init(|| {
        let error = rayon::ThreadPoolBuilder::new().build_global().err();
        // An error without a source means that the pool already existed.
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
