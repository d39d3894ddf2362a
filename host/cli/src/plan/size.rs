//! Sizes of memory on the command line.

use super::PlanError;
use tqkv::unstable::cache::read_bytes;

/// Reads a size; see [`read_bytes`].
///
/// # Errors
/// [`PlanError::Size`].
pub(crate) fn parse_size(text: &str) -> Result<u64, PlanError> {
    read_bytes(text).ok_or_else(|| PlanError::Size(text.to_string()))
}

/// Reads `2TB/s`, a memory bandwidth in bytes per second.
///
/// # Errors
/// [`PlanError::Bandwidth`].
pub(crate) fn parse_bandwidth(text: &str) -> Result<u64, PlanError> {
    let size = text.trim().strip_suffix("/s").and_then(|size| parse_size(size).ok());
    size.filter(|&bytes| bytes > 0).ok_or_else(|| PlanError::Bandwidth(text.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_decimal_or_binary() {
        for (text, bytes) in [
            ("34GB", 34_000_000_000),
            ("34GiB", 34 << 30),
            ("34 gib", 34 << 30),
            ("1.5MiB", 3 << 19),
            ("0.1GB", 100_000_000),
            ("7KB", 7000),
            ("7KiB", 7168),
            ("2TB", 2_000_000_000_000),
            ("1TiB", 1 << 40),
            ("4096 B", 4096),
            ("8G", 8 << 30),
            ("1.5 m", 3 << 19),
            ("64K", 64 << 10),
            ("4096B", 4096),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for text in
            ["", "34", "GB", "-1GB", "1..5GB", "1GG", "1e9", ".5GB", "99999999999TB", "1.0000000001GB"]
        {
            let error = parse_size(text).unwrap_err().to_string();
            assert!(error.contains("GiB"), "{text}: {error}");
        }
    }

    #[test]
    fn a_bandwidth_is_a_size_a_second() {
        assert_eq!(parse_bandwidth("2TB/s").unwrap(), 2_000_000_000_000);
        assert_eq!(parse_bandwidth("17.4 GB/s").unwrap(), 17_400_000_000);
        for text in ["2TB", "2TB/h", "0B/s", "fast"] {
            assert!(parse_bandwidth(text).unwrap_err().to_string().contains("2TB/s"), "{text}");
        }
    }
}
