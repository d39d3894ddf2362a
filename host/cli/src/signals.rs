//! Ctrl-C and SIGTERM: the unfinished output is removed, then the signal takes its default effect. A command
//! that can stop early with a partial result does so at the first Ctrl-C; the second one ends it. A command
//! that serves does so at SIGTERM too.
//!
//! On systems other than Unix, an unfinished file stays as `.tqkv-*.part`, and Ctrl-C ends every command at
//! once.

use crate::error::CliError;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

/// True if the command polls [`interrupted`].
static LOOKS: AtomicBool = AtomicBool::new(false);
/// True if the command polls it for SIGTERM too.
static SERVES: AtomicBool = AtomicBool::new(false);
/// True if Ctrl-C was pressed since then, or SIGTERM came.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on the command polls [`interrupted`].
pub(crate) fn end_by_yourself() {
    LOOKS.store(true, Ordering::Relaxed);
}

/// From now on the command polls [`interrupted`], for Ctrl-C and for SIGTERM: it runs until one of them.
pub(crate) fn serve() {
    SERVES.store(true, Ordering::Relaxed);
    end_by_yourself();
}

/// From now on Ctrl-C ends the command at once, which is the default.
pub(crate) fn end_at_once() {
    LOOKS.store(false, Ordering::Relaxed);
}

/// From now on [`interrupted`] is true, as after Ctrl-C.
pub(crate) fn end() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Returns true if the command should stop with a partial result.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// From now on [`interrupted`] is false, and Ctrl-C ends the command at once.
pub(crate) fn forget() {
    end_at_once();
    INTERRUPTED.store(false, Ordering::Relaxed);
}

/// Returns whether a loop continues.
pub(crate) fn unless_interrupted() -> ControlFlow<()> {
    if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// The result of the command after its report: an error if Ctrl-C stopped it.
pub(crate) fn ended() -> Result<(), CliError> {
    if interrupted() { Err(CliError::interrupted()) } else { Ok(()) }
}

/// Ends the process by SIGPIPE, like any program with a closed pipe; shells show 141.
#[cfg(unix)]
pub(crate) fn end_as_by_closed_pipe() {
    // If the signal cannot be raised, the exit code that follows has the same meaning.
    let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE);
}

/// Does nothing: the exit code has the same meaning.
#[cfg(not(unix))]
pub(crate) fn end_as_by_closed_pipe() {}

/// Watches for the signals on a separate thread. If no thread can start, the signals keep their default
/// effect.
#[cfg(unix)]
pub(crate) fn watch() {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;
    use std::sync::mpsc;

    let (ready, watched) = mpsc::channel::<()>();
    let watch = move || {
        // The thread that handles the signals installs the handlers, so they never exist without it.
        let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else { return };
        drop(ready);
        let asks = |signal| {
            let looks = if signal == SIGINT { &LOOKS } else { &SERVES };
            looks.load(Ordering::Relaxed) && !INTERRUPTED.swap(true, Ordering::Relaxed)
        };
        if let Some(signal) = signals.forever().find(|signal| !asks(*signal)) {
            let _removed = tqkv::file::remove_unfinished();
            // The shell sees which signal it was. If the signal cannot be raised again, the process ends
            // anyway.
            let _ = emulate_default_handler(signal);
            std::process::exit(128 + signal);
        }
    };
    let _ = std::thread::Builder::new().name("signals".into()).stack_size(64 << 10).spawn(watch);
    // Wait before any file is begun. The channel closes in every case, with a thread or without.
    let _ = watched.recv();
}

/// Does nothing: the system ends the command.
#[cfg(not(unix))]
pub(crate) fn watch() {}
