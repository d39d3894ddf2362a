//! The threads of a command: as many as `--threads`, `RAYON_NUM_THREADS` or the machine say, or as can be
//! had.

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::CliError;
use crate::output::note;

/// More than any machine's processors give nothing; each takes a stack.
const MOST: usize = 256;

/// That of a main thread, as whole commands run on one of these.
const STACK: usize = 8 << 20;

/// Runs `work` with threads to divide it among, `asked` where that is a number; stderr says where they are
/// fewer than asked for.
pub(crate) fn with_threads<T: Send>(
    asked: Option<usize>,
    work: impl FnOnce() -> Result<T, CliError> + Send,
) -> Result<T, CliError> {
    let wanted = asked.unwrap_or_else(wanted);
    let pool = pool(wanted)?;
    let found = pool.current_num_threads();
    if found < wanted {
        note(format_args!("{wanted} threads asked for, going on with {found}"));
    }
    pool.install(work)
}

/// As rayon reads it: a number above 0, or else one a processor.
fn wanted() -> usize {
    let asked = std::env::var("RAYON_NUM_THREADS").ok().and_then(|n| n.parse().ok()).filter(|&n| n > 0);
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// The largest pool of up to `wanted` threads, halved until the system has that many.
fn pool(wanted: usize) -> Result<ThreadPool, CliError> {
    let mut threads = wanted.min(MOST);
    loop {
        let made = ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK).build();
        match made {
            Ok(pool) => return Ok(pool),
            Err(_) if threads > 1 => threads /= 2,
            // Not even one: the thread that asks does everything.
            Err(_) => break,
        }
    }
    let alone = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
    alone.map_err(|error| CliError::failure(format_args!("no thread can be started: {error}")))
}
