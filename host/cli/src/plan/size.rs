//! Sizes of memory on the command line.

use super::PlanError;

/// Reads `34GB` (units of 10^9 bytes), `34GiB` (units of 2^30 bytes), `1.5 MiB` or `4096 B`. The unit is
/// required, because a plain 34 rarely means bytes.
///
/// # Errors
/// [`PlanError::Size`].
pub(crate) fn parse_size(text: &str) -> Result<u64, PlanError> {
    let wrong = || PlanError::Size(text.to_string());
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "b" => 1,
        "kb" => 1000,
        "mb" => 1000_u64.pow(2),
        "gb" => 1000_u64.pow(3),
        "tb" => 1000_u64.pow(4),
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err(wrong()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.len() > 9 {
        return Err(wrong());
    }
    // Decimal arithmetic in integers: 0.1GB is exactly 100,000,000 bytes.
    let digits = |text: &str| match text {
        "" => Some(0),
        text => text.parse::<u64>().ok(),
    };
    let whole = digits(whole).and_then(|n| n.checked_mul(unit)).ok_or_else(wrong)?;
    let part = u128::from(digits(fraction).ok_or_else(wrong)?) * u128::from(unit)
        / 10_u128.pow(fraction.len() as u32);
    // Less than one unit, which is at most 2^40.
    whole.checked_add(part as u64).ok_or_else(wrong)
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
