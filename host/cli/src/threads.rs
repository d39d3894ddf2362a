//! The thread pool of a command. `--threads`, `RAYON_NUM_THREADS` or the machine give its size; it is smaller
//! if the system refuses threads.

use rayon::{ThreadBuilder, ThreadPool, ThreadPoolBuilder};

use crate::error::CliError;
use crate::output::note;

/// Upper limit. Threads beyond the processors of any machine do not help, and each needs a stack.
const MOST: usize = 256;

/// Stack size of a main thread, because whole commands run on one of these threads.
const STACK: usize = 8 << 20;

/// Memory that threads leave to the work. Their stacks would take all of it.
const ROOM: usize = 64 << 20;

/// Runs `work` in a pool of `asked` threads, if given. stderr reports a pool smaller than asked for.
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

/// The number in the variable that rayon reads, if above 0; otherwise one per processor.
fn wanted() -> usize {
    let asked = std::env::var("RAYON_NUM_THREADS").ok().and_then(|n| n.parse().ok()).filter(|&n| n > 0);
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Starts a thread, if there is room for its stack and for the work.
fn start(thread: ThreadBuilder) -> std::io::Result<()> {
    let mut room = Vec::<u8>::new();
    room.try_reserve_exact(STACK + ROOM).map_err(|_| std::io::ErrorKind::OutOfMemory)?;
    // Address space alone: its pages are never touched. It is free again before the thread takes some.
    drop(std::hint::black_box(room));
    std::thread::Builder::new().stack_size(STACK).spawn(|| thread.run()).map(drop)
}

/// The largest pool of up to `wanted` threads; halved until the system grants it.
fn pool(wanted: usize) -> Result<ThreadPool, CliError> {
    let mut threads = wanted.min(MOST);
    loop {
        let made = ThreadPoolBuilder::new().num_threads(threads).spawn_handler(start).build();
        match made {
            Ok(pool) => return Ok(pool),
            Err(_) if threads > 1 => threads /= 2,
            // No thread at all: the calling thread does the work.
            Err(_) => break,
        }
    }
    let alone = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
    alone.map_err(|error| CliError::failure(format_args!("no thread can be started: {error}")))
}
