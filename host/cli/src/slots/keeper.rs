//! When a state is packed: at once after a save through the proxy, else when it rests.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use tqkv_session::{SessionError, Sizes};

use super::folder::{Folder, Packing, Stamp};
use super::proxy::is_lack;
use crate::output::{bytes, note};
use crate::signals;

/// Time between two looks at the folder.
const LOOK: Duration = Duration::from_millis(250);
/// Age at which a file's time tells it from a later write; clocks of files tick in milliseconds.
const TICK: Duration = Duration::from_millis(50);
/// Times that a state with bytes that are not understood rests longer: its end is not seen in them.
const LONGER: u32 = 12;
/// Time until a state is tried again after an error of the system, such as a full disk.
const AGAIN: Duration = Duration::from_secs(60);

/// A state that was seen before.
#[derive(Debug, Clone, Copy)]
struct SeenState {
    stamp: Stamp,
    since: Instant,
    /// It is not tried before this time; `None`: not until it changes.
    next: Option<Instant>,
}

/// Packs the states of a folder and forgets old packs.
#[derive(Debug)]
pub(crate) struct Keeper<'a> {
    folder: &'a Folder,
    quiet: Duration,
    limit: Option<u64>,
    seen: HashMap<String, SeenState>,
    pub(crate) packed: usize,
    pub(crate) forgotten: usize,
}

impl<'a> Keeper<'a> {
    pub(crate) fn new(folder: &'a Folder, quiet: Duration, limit: Option<u64>) -> Self {
        Self { folder, quiet, limit, seen: HashMap::new(), packed: 0, forgotten: 0 }
    }

    /// Keeps the folder until a signal, or until no state waits.
    ///
    /// # Errors
    /// Errors of reading the folder. A fault of one state is a note, and the state stays. While clients of the proxy
    /// hold all files of the process, the folder cannot be read, and is looked at again.
    pub(crate) fn keep(&mut self, once: bool) -> io::Result<()> {
        loop {
            let is_idle = match self.look() {
                Err(error) if !once && is_lack(&error) => false,
                looked => looked?,
            };
            if signals::interrupted() || once && is_idle {
                return Ok(());
            }
            std::thread::sleep(LOOK.min(self.quiet.max(TICK)));
        }
    }

    /// Packs what is ready. Returns true if nothing waits.
    fn look(&mut self) -> io::Result<bool> {
        let now = Instant::now();
        let states = self.folder.states()?;
        self.seen.retain(|name, seen| states.iter().any(|(own, stamp)| own == name && *stamp == seen.stamp));
        let mut is_idle = true;
        for (name, stamp) in states {
            let seen =
                *self.seen.entry(name.clone()).or_insert(SeenState { stamp, since: now, next: Some(now) });
            if seen.next.is_none() {
                continue;
            }
            is_idle = false;
            if seen.next.is_some_and(|next| next <= now) && self.is_ready(&name, seen) {
                let next = self.pack(&name);
                self.seen.insert(name, SeenState { next, ..seen });
            }
            if signals::interrupted() {
                return Ok(true);
            }
        }
        self.forget()?;
        Ok(is_idle)
    }

    fn is_ready(&mut self, name: &str, seen: SeenState) -> bool {
        if seen.stamp.written.elapsed().is_ok_and(|age| age < TICK) {
            return false;
        }
        let rest = seen.since.elapsed();
        if self.folder.is_saved(name) {
            return true;
        }
        if rest < self.quiet {
            return false;
        }
        match self.folder.is_understood(name) {
            Ok(is_understood) => is_understood || rest >= LONGER * self.quiet,
            // Packing says what is wrong.
            Err(_) => true,
        }
    }

    /// Packs a state. Returns when it is tried again.
    fn pack(&mut self, name: &str) -> Option<Instant> {
        match self.folder.pack(name) {
            Ok(Packing::Done(sizes)) => {
                self.packed += 1;
                note(format_args!("{name}: {}", smaller(sizes)));
                Some(Instant::now())
            }
            Ok(Packing::Changed) => Some(Instant::now()),
            Err(_) if signals::interrupted() => Some(Instant::now()),
            Err(SessionError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Some(Instant::now()),
            Err(error) => {
                note(format_args!("{name}: stays as it is: {error}"));
                // A name stays too long.
                let is_passing = matches!(&error, SessionError::Io(error) if error.kind() != io::ErrorKind::InvalidFilename);
                is_passing.then(|| Instant::now() + AGAIN)
            }
        }
    }

    fn forget(&mut self) -> io::Result<()> {
        let Some(limit) = self.limit else { return Ok(()) };
        for name in self.folder.forget(limit)? {
            self.forgotten += 1;
            note(format_args!("{name}: forgotten, --limit"));
        }
        Ok(())
    }
}

fn smaller(sizes: Sizes) -> String {
    let factor = sizes.state as f64 / sizes.pack as f64;
    format!("packed, {} of {}, {factor:.2} times smaller", bytes(sizes.pack), bytes(sizes.state))
}
