//! Ctrl-C and SIGTERM: what was being written is removed, then the signal does what it does to any program. A
//! command that can end by itself with what it has is asked to by the first Ctrl-C; the second ends it.
//!
//! On other systems than Unix a file that was being written stays as `.tqkv-*.part`, and Ctrl-C ends every
//! command at once.

use crate::error::CliError;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the command looks at [`interrupted`].
static LOOKS: AtomicBool = AtomicBool::new(false);
/// Whether Ctrl-C was pressed since.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From here on the command looks at [`interrupted`] from time to time.
pub(crate) fn end_by_yourself() {
    LOOKS.store(true, Ordering::Relaxed);
}

/// From here on Ctrl-C ends the command at once, as it does where nothing is looked at.
pub(crate) fn end_at_once() {
    LOOKS.store(false, Ordering::Relaxed);
}

/// Whether to end with what there is.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Whether to go on.
pub(crate) fn unless_interrupted() -> ControlFlow<()> {
    if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// What the command ends with once it has said all.
pub(crate) fn ended() -> Result<(), CliError> {
    if interrupted() { Err(CliError::interrupted()) } else { Ok(()) }
}

/// Ends the process as a closed pipe ends any program, which shells show as 141.
#[cfg(unix)]
pub(crate) fn end_as_by_closed_pipe() {
    // Where the signal cannot be raised, the exit code that follows says the same.
    let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE);
}

/// Nothing: the exit code says it.
#[cfg(not(unix))]
pub(crate) fn end_as_by_closed_pipe() {}

/// Watches for the signals on a thread of its own; without a thread to spare they end the command as they
/// would anyway.
#[cfg(unix)]
pub(crate) fn watch() {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;
    use std::sync::mpsc;

    let (ready, watched) = mpsc::channel::<()>();
    let watch = move || {
        // The handlers are set by the thread that answers them, never without it.
        let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else { return };
        drop(ready);
        let asks = |signal| {
            signal == SIGINT && LOOKS.load(Ordering::Relaxed) && !INTERRUPTED.swap(true, Ordering::Relaxed)
        };
        if let Some(signal) = signals.forever().find(|signal| !asks(*signal)) {
            let _removed = tqkv::file::remove_unfinished();
            // The shell sees which signal it was. A signal that cannot be raised again ends the process all
            // the same.
            let _ = emulate_default_handler(signal);
            std::process::exit(128 + signal);
        }
    };
    let _ = std::thread::Builder::new().name("signals".into()).stack_size(64 << 10).spawn(watch);
    // No file is begun before: the end of the channel is all that comes, with a thread or without one.
    let _ = watched.recv();
}

/// Nothing: the system ends the command.
#[cfg(not(unix))]
pub(crate) fn watch() {}
