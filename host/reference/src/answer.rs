//! The answer of another program's codec, whose bytes are not trusted.

use std::io::{BufRead, Read};

/// Most bytes of the first line.
const LINE: u64 = 64;

/// Reads an answer, `BYTES\n` and the numbers of `rows`, which replace them. Returns BYTES, what the codes take.
///
/// It reads at most a line of 64 bytes and four bytes per number of `rows`, and needs no more memory than these.
///
/// # Errors
/// What is wrong with the answer, and what was expected. `rows` are of no use then.
pub(crate) fn answer(from: &mut impl BufRead, rows: &mut [f32]) -> Result<usize, String> {
    let lacking = |why: &dyn std::fmt::Display| format!("no full answer: {why}");
    let mut line = Vec::new();
    from.by_ref().take(LINE).read_until(b'\n', &mut line).map_err(|error| lacking(&error))?;
    if line.is_empty() {
        return Err(lacking(&"the program ended"));
    }
    let text = String::from_utf8_lossy(&line);
    let count = text.strip_suffix('\n').and_then(|text| text.trim_end().parse().ok());
    let count = count.ok_or_else(|| {
        let text = text.trim_end().escape_debug();
        format!("answered '{text}': expected a number of bytes and a new line")
    })?;
    for (at, row) in rows.iter_mut().enumerate() {
        let mut number = [0; 4];
        from.read_exact(&mut number).map_err(|error| lacking(&error))?;
        *row = f32::from_le_bytes(number);
        if !row.is_finite() {
            return Err(format!("answered {row} at number {at}: expected finite numbers"));
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_to_its_end_and_no_further() {
        let bytes = [&b"12\r\n"[..], &1.5f32.to_le_bytes(), &(-2.0f32).to_le_bytes(), b"7\n"].concat();
        let (mut from, mut rows) = (bytes.as_slice(), [0.0; 2]);
        assert_eq!((answer(&mut from, &mut rows), rows), (Ok(12), [1.5, -2.0]));
        assert_eq!(answer(&mut from, &mut []), Ok(7));
        assert_eq!(answer(&mut from, &mut []), Err("no full answer: the program ended".to_owned()));
    }

    #[test]
    fn a_wrong_answer_is_refused_with_its_reason() {
        let number = "expected a number of bytes and a new line";
        let (spaces, digits) = (["12", &" ".repeat(70), "\n"].concat(), "9".repeat(1 << 20));
        for (bytes, expected) in [
            (&b""[..], "the program ended"),
            (b"\n", number),
            (b"-1\n\0\0\0\0", number),
            (b"12", number),
            (b"1\xff2\n\0\0\0\0", number),
            (b"18446744073709551616\n\0\0\0\0", number),
            (spaces.as_bytes(), number),
            (digits.as_bytes(), number),
            (b"3\n\0\0\0", "no full answer"),
            (b"3\n\0\0\x80\x7f", "answered inf at number 0: expected finite numbers"),
        ] {
            let error = answer(&mut &*bytes, &mut [0.0]).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(error.len() < 400, "the line is cut: {}", error.len());
        }
    }
}
