//! Changes to good bytes, which reach further into a reader than bytes of chance do.

/// Changes bytes at a place: a byte, a number of eight bytes, or their length.
pub fn edit(bytes: &mut Vec<u8>, op: u8, place: u16, value: u8) {
    let at = usize::from(place) % (bytes.len() + 1);
    let end = (at + 8).min(bytes.len());
    match op % 8 {
        0 => bytes[at..].iter_mut().take(1).for_each(|byte| *byte = value),
        1 => bytes[at..].iter_mut().take(1).for_each(|byte| *byte = byte.wrapping_add(value)),
        // Changes a count.
        2 => {
            bytes[at..end].iter_mut().enumerate().for_each(|(i, byte)| *byte = if i == 0 { value } else { 0 })
        }
        3 => bytes[at..end].fill(value),
        // A power of two of any size.
        4 => {
            let power = 1_u64.checked_shl(u32::from(value)).unwrap_or(u64::MAX).to_le_bytes();
            bytes[at..end].copy_from_slice(&power[..end - at]);
        }
        5 => drop(bytes.splice(at..at, std::iter::repeat_n(value, usize::from(value)))),
        6 => drop(bytes.drain(at..(at + usize::from(value)).min(bytes.len()))),
        _ => bytes.truncate(at),
    }
}
