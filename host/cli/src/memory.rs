//! Memory use of the command.

/// Peak resident bytes; `None` on systems other than Linux.
pub(crate) fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The peak as a line of text.
pub(crate) fn peak_line() -> String {
    let line = |bytes| format!("\npeak memory {}", crate::output::bytes(bytes));
    peak_resident_bytes().map_or_else(String::new, line)
}
