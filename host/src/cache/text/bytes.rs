//! Numbers of bytes with a unit.

use super::values::Value;

/// Units, from the largest.
const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("KB", 1000),
    ("B", 1),
];

/// Letters that stand for units of 1024, as in other programs. They are read and not written.
const LETTERS: [(&str, &str); 4] = [("T", "TiB"), ("G", "GiB"), ("M", "MiB"), ("K", "KiB")];

/// Reads `34GB` (units of 10^9 bytes), `34GiB` or `34G` (units of 2^30 bytes), `1.5 MiB` or `4096 B`. The unit is
/// required, because a plain 34 rarely means bytes. `None` for other texts.
pub fn read_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(split);
    let unit = unit.trim();
    let letter = LETTERS.into_iter().find(|(letter, _)| letter.eq_ignore_ascii_case(unit));
    let unit = letter.map_or(unit, |(_, name)| name);
    let (_, unit) = UNITS.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.len() > 9 {
        return None;
    }
    // Decimal arithmetic in integers: 0.1GB is exactly 100,000,000 bytes.
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u64>().ok() };
    let part = u128::from(digits(fraction)?) * u128::from(unit) / 10_u128.pow(fraction.len() as u32);
    // Less than one unit, which is at most 2^40.
    digits(whole)?.checked_mul(unit)?.checked_add(part as u64)
}

/// A number of bytes.
#[derive(Clone, Copy)]
pub(super) struct ByteSize(pub(super) usize);

impl Value for ByteSize {
    fn read(text: &str) -> Result<Self, String> {
        let bytes = read_bytes(text).and_then(|bytes| usize::try_from(bytes).ok());
        bytes.map(Self).ok_or_else(|| {
            "SIZE is a number and a unit, B to TB (of 1000), or KiB to TiB or K to T (of 1024)".to_owned()
        })
    }

    fn write(&self) -> String {
        let texts = UNITS.into_iter().filter(|(_, unit)| (self.0 as u64).is_multiple_of(*unit));
        let texts = texts.map(|(name, unit)| format!("{}{name}", self.0 as u64 / unit));
        texts.min_by_key(String::len).unwrap_or_default()
    }
}
