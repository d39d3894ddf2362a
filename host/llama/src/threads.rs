//! The threads of an operation: those of the host's OpenMP team, or pools with the host's numbers of threads, which sleep while
//! they have nothing to do.

use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::{Mutex, OnceLock, PoisonError};
use tqkv::unstable::threads::Team;

/// Number of multiplications below which waking a thread costs more time than it saves.
const WORTH: usize = 1 << 20;

/// Pools that are kept: the host may set one number for prompts (`-tb`) and another for single tokens (`-t`).
const KEPT: usize = 2;

/// The number of threads that the host sets for this context, and the pools of the last numbers.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    pools: Mutex<(usize, Vec<ThreadPool>)>,
}

impl Threads {
    /// Sets the number of threads. A pool is made at the first work that is large enough.
    pub(crate) fn set(&self, count: usize) {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).0 = count;
    }

    /// Runs work of about `products` multiplications: in several threads if that saves time, else in this one.
    pub(crate) fn run<R: Send>(&self, products: usize, work: impl FnOnce() -> R + Send) -> R {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, pools) = &mut *pools;
        if *count < 2 || products < WORTH {
            work()
        } else if let Some(team) = team() {
            team.run(*count, work)
        } else if let Some(pool) = pool_of(pools, *count) {
            pool.install(work)
        } else {
            work()
        }
    }
}

/// The team of the host's CPU back end; none if it was built without OpenMP.
fn team() -> Option<Team> {
    static TEAM: OnceLock<Option<Team>> = OnceLock::new();
    *TEAM.get_or_init(|| Team::of(c"ggml-cpu"))
}

/// The pool of `count` threads, which becomes the last in the list. The first leaves if there are too many.
fn pool_of(pools: &mut Vec<ThreadPool>, count: usize) -> Option<&ThreadPool> {
    match pools.iter().position(|pool| pool.current_num_threads() == count) {
        Some(at) => pools[at..].rotate_left(1),
        None => {
            pools.push(ThreadPoolBuilder::new().num_threads(count).build().ok()?);
            if pools.len() > KEPT {
                pools.remove(0);
            }
        }
    }
    pools.last()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_that_alternate_make_each_thread_once() {
        let threads = Threads::default();
        // The standard library never gives an id twice, so each id is a thread that was made.
        let mut made = HashSet::new();
        let mut run = |count: usize, products: usize| {
            threads.set(count);
            let ids = threads.run(products, || {
                let is_pool = rayon::current_thread_index().is_some();
                if is_pool { rayon::broadcast(|_| std::thread::current().id()) } else { Vec::new() }
            });
            let now = ids.len();
            made.extend(ids);
            (now, made.len())
        };
        for _ in 0..20 {
            assert_eq!(run(3, WORTH).0, 3);
            assert_eq!(run(2, WORTH), (2, 5));
        }
        assert_eq!(run(3, WORTH - 1), (0, 5), "small work stays in the caller's thread");
        assert_eq!(run(1, WORTH), (0, 5), "so does work for one thread");
        assert_eq!(run(4, WORTH), (4, 9));
        assert_eq!(run(2, WORTH), (2, 9), "the pool that was used before the last one is kept");
        assert_eq!(run(3, WORTH), (3, 12), "an older one is not");
    }
}
