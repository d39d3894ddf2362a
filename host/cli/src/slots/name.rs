//! Names in a slot folder, and the time of copies.

use std::time::{Duration, SystemTime};

/// Ending of packs.
pub(super) const PACK: &str = ".tqs";
/// Ending of a state that is out of the way under its name.
pub(super) const ASIDE: &str = ".tqkv-done";
/// Ending of a copy that is being written.
pub(super) const COPY: &str = ".tqkv-copy";
/// Longest name of a state in bytes: with the longest ending it has the 255 that file systems take.
pub(super) const LONGEST: usize = 255 - ASIDE.len();

/// Returns true for names that are none of a state in the folder.
pub(super) fn is_reserved(name: &str) -> bool {
    let is_path = name.is_empty() || name.contains(['/', '\\', '\0']);
    is_path || name.starts_with('.') || name.ends_with(PACK) || name.contains(".tqkv-")
}

/// Why a state under this name is not packed.
pub(super) fn fault(name: &str) -> Option<String> {
    if is_reserved(name) {
        return Some("expected no path, no dot first and none of .tqs, .tqkv-".to_owned());
    }
    (name.len() > LONGEST)
        .then(|| format!("{} bytes are too long for a name: expected {LONGEST} at most", name.len()))
}

/// The time of a copy: no engine has written a state in the year 2000.
pub(super) fn copy_time() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(946_684_800)
}
