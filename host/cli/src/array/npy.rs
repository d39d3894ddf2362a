//! The `.npy` container: strict reading of versions 1 to 3, writing of version 1.
//!
//! The format is a fixed prefix and a dictionary of three keys, so it is parsed here. The crate that also
//! reads f16 depends on a grammar engine and a C stub.

use std::io::{BufWriter, Read, Write};

use super::ArrayError;
use super::layout::{ArrayLayout, Dtype, Float, Whole};
use crate::target::Target;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Types of vectors.
pub(super) const ACCEPTED: &str = "f64, f32 or f16 ('<f8', '<f4', '<f2')";

/// Types of whole numbers; a byte has no order.
const WHOLE: [Whole; 9] = [
    Whole::new("|b1", 1, false),
    Whole::new("|u1", 1, false),
    Whole::new("|i1", 1, true),
    Whole::new("<u2", 2, false),
    Whole::new("<i2", 2, true),
    Whole::new("<u4", 4, false),
    Whole::new("<i4", 4, true),
    Whole::new("<u8", 8, false),
    Whole::new("<i8", 8, true),
];

/// Finds the elements in the bytes of a `.npy` file.
pub(super) fn layout(bytes: &[u8]) -> Result<ArrayLayout, ArrayError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(ArrayError::UnknownFormat)?;
    let (len, body) = match *rest {
        [1, _, a, b, ref body @ ..] => (usize::from(u16::from_le_bytes([a, b])), body),
        [2 | 3, _, a, b, c, d, ref body @ ..] => (u32::from_le_bytes([a, b, c, d]) as usize, body),
        [1..=3, ..] | [] => return Err(ArrayError::NpyHeader("truncated")),
        _ => return Err(ArrayError::NpyHeader("unknown version: expected 1 to 3")),
    };
    let Some((text, elements)) = body.split_at_checked(len) else {
        return Err(ArrayError::NpyHeader("truncated"));
    };
    let (dtype, shape) = Dictionary { text }.parse()?;
    Ok(ArrayLayout { dtype, shape, offset: bytes.len() - elements.len(), len: elements.len() })
}

/// Reads a `.npy` file up to the length in its header, and one byte more if there is one.
pub(super) fn read(mut input: impl Read) -> Result<Vec<u8>, ArrayError> {
    let mut bytes = Vec::new();
    // Magic, version and the longest length field; then the header; then the elements.
    append(&mut input, MAGIC.len() + 6, &mut bytes)?;
    let header = match *bytes.strip_prefix(MAGIC).ok_or(ArrayError::UnknownFormat)? {
        [1, _, a, b, ..] => MAGIC.len() + 4 + usize::from(u16::from_le_bytes([a, b])),
        [2 | 3, _, a, b, c, d] => MAGIC.len() + 6 + u32::from_le_bytes([a, b, c, d]) as usize,
        // `layout` refuses this with the reason.
        _ => bytes.len(),
    };
    append(&mut input, header.saturating_sub(bytes.len()), &mut bytes)?;
    let elements = layout(&bytes)?.expected();
    append(&mut input, usize::try_from(elements).unwrap_or(usize::MAX).saturating_add(1), &mut bytes)?;
    Ok(bytes)
}

/// Appends up to `len` bytes. Memory grows with the data that arrives.
fn append(input: &mut impl Read, len: usize, bytes: &mut Vec<u8>) -> Result<(), ArrayError> {
    input.take(len as u64).read_to_end(bytes)?;
    Ok(())
}

/// Parser of `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 128), }`, keys in any order.
struct Dictionary<'a> {
    text: &'a [u8],
}

impl Dictionary<'_> {
    fn parse(mut self) -> Result<(Dtype, Vec<usize>), ArrayError> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.expect(b'{')?;
        while !self.eat(b'}') {
            let key = self.string()?;
            self.expect(b':')?;
            let again = match key.as_str() {
                "descr" => descr.replace(self.dtype()?).is_some(),
                "fortran_order" => fortran.replace(self.boolean()?).is_some(),
                "shape" => shape.replace(self.tuple()?).is_some(),
                _ => return Err(ArrayError::NpyHeader("unknown key")),
            };
            if again {
                return Err(ArrayError::NpyHeader("a key appears twice"));
            }
            if !self.eat(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        if !self.text.iter().all(u8::is_ascii_whitespace) {
            return Err(ArrayError::NpyHeader("text after the dictionary"));
        }
        let (Some(dtype), Some(fortran), Some(shape)) = (descr, fortran, shape) else {
            return Err(ArrayError::NpyHeader("descr, fortran_order or shape is missing"));
        };
        if fortran {
            return Err(ArrayError::FortranOrder);
        }
        Ok((dtype, shape))
    }

    fn skip_space(&mut self) {
        self.text = self.text.trim_ascii_start();
    }

    fn eat(&mut self, byte: u8) -> bool {
        self.skip_space();
        match self.text {
            [first, rest @ ..] if *first == byte => {
                self.text = rest;
                true
            }
            _ => false,
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), ArrayError> {
        if self.eat(byte) {
            return Ok(());
        }
        Err(ArrayError::NpyHeader("not a dictionary of three keys"))
    }

    fn string(&mut self) -> Result<String, ArrayError> {
        let quote = if self.eat(b'"') {
            b'"'
        } else {
            self.expect(b'\'')?;
            b'\''
        };
        let end = self.text.iter().position(|&b| b == quote);
        let end = end.ok_or(ArrayError::NpyHeader("a string does not end"))?;
        let string = String::from_utf8_lossy(&self.text[..end]).into_owned();
        self.text = &self.text[end + 1..];
        Ok(string)
    }

    fn dtype(&mut self) -> Result<Dtype, ArrayError> {
        self.skip_space();
        let found =
            if self.text.starts_with(b"[") { "of a structured array".to_string() } else { self.string()? };
        if let Some(whole) = WHOLE.into_iter().find(|whole| whole.name == found) {
            return Ok(Dtype::Whole(whole));
        }
        match found.as_str() {
            "<f8" => Ok(Dtype::Float(Float::F64)),
            "<f4" => Ok(Dtype::Float(Float::F32)),
            "<f2" => Ok(Dtype::Float(Float::F16)),
            _ if found.starts_with('>') => Err(ArrayError::BigEndian(found)),
            // NumPy has no bfloat16. The type of another package is saved as bytes without a meaning.
            "|V2" | "<V2" => Err(ArrayError::Dtype {
                found,
                accepted: "a type that NumPy has (of bfloat16: x.astype('<f4'))",
            }),
            _ => Err(ArrayError::Dtype { found, accepted: ACCEPTED }),
        }
    }

    fn boolean(&mut self) -> Result<bool, ArrayError> {
        self.skip_space();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.text.strip_prefix(word.as_bytes()) {
                self.text = rest;
                return Ok(value);
            }
        }
        Err(ArrayError::NpyHeader("fortran_order is not True or False"))
    }

    fn tuple(&mut self) -> Result<Vec<usize>, ArrayError> {
        self.expect(b'(')?;
        let mut numbers = Vec::new();
        while !self.eat(b')') {
            self.skip_space();
            let digits = self.text.iter().take_while(|b| b.is_ascii_digit()).count();
            let number = str::from_utf8(&self.text[..digits])
                .ok()
                .and_then(|digits| digits.parse().ok())
                .ok_or(ArrayError::NpyHeader("shape is not a tuple of sizes"))?;
            numbers.push(number);
            self.text = &self.text[digits..];
            if !self.eat(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(numbers)
    }
}

/// Writes an f32 `.npy` file of shape `[.., dim]`. It appears complete at the commit, or not at all.
#[derive(Debug)]
pub(crate) struct NpyWriter {
    out: BufWriter<Target>,
    announced: u128,
    pushed: u128,
}

impl NpyWriter {
    /// Starts at the beginning of `file`.
    ///
    /// # Errors
    /// Errors of writing.
    pub(crate) fn new(file: Target, leading: &[u64], dim: usize) -> Result<Self, ArrayError> {
        let mut out = BufWriter::new(file);
        out.write_all(&header(leading, dim))?;
        let announced = leading.iter().map(|&n| u128::from(n)).product::<u128>() * dim as u128;
        Ok(Self { out, announced, pushed: 0 })
    }

    /// Appends values in row order.
    ///
    /// # Errors
    /// Errors of writing.
    pub(crate) fn push(&mut self, values: &[f32]) -> Result<(), ArrayError> {
        for value in values {
            self.out.write_all(&value.to_le_bytes())?;
        }
        self.pushed += values.len() as u128;
        Ok(())
    }

    /// Syncs the file and renames it into place.
    ///
    /// # Errors
    /// [`ArrayError::Count`] if values are missing or too many, and errors of writing. No file stays behind
    /// then.
    pub(crate) fn commit(self) -> Result<(), ArrayError> {
        if self.pushed != self.announced {
            return Err(ArrayError::Count { expected: self.announced, found: self.pushed });
        }
        let file = self.out.into_inner().map_err(|e| e.into_error())?;
        file.commit()?;
        Ok(())
    }
}

/// Version 1 header of an f32 array, padded so that the elements start at a multiple of 64.
fn header(leading: &[u64], dim: usize) -> Vec<u8> {
    let leading: String = leading.iter().map(|n| format!("{n}, ")).collect();
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({leading}{dim}), }}");
    let unpadded = MAGIC.len() + 4 + text.len() + 1;
    text.extend(std::iter::repeat_n(' ', unpadded.next_multiple_of(64) - unpadded));
    text.push('\n');
    let mut bytes = MAGIC.to_vec();
    bytes.extend([1, 0]);
    // The text has a few numbers of at most 20 digits: far below 64 KiB.
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(version: u8, text: &str, elements: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([version, 0]);
        if version == 1 {
            bytes.extend((text.len() as u16).to_le_bytes());
        } else {
            bytes.extend((text.len() as u32).to_le_bytes());
        }
        bytes.extend(text.as_bytes());
        bytes.extend(elements);
        bytes
    }

    const GOOD: &str = "{'descr': '<f2', 'fortran_order': False, 'shape': (2, 4), }  \n";

    #[test]
    fn every_version_and_spacing_is_read() {
        let compact = r#"{"shape":(2,4),"descr":"<f2","fortran_order":False}"#;
        for (version, text) in [(1, GOOD), (2, GOOD), (3, compact)] {
            let bytes = npy(version, text, &[7; 16]);
            let layout = layout(&bytes).unwrap();
            assert_eq!(layout.shape, [2, 4]);
            assert_eq!((layout.dtype, layout.len), (Dtype::Float(Float::F16), 16));
            assert_eq!(layout.offset, bytes.len() - 16);
        }
    }

    #[test]
    fn what_is_not_accepted_is_named() {
        for (from, to, word) in [
            ("<f2", "<c8", "expected f64, f32 or f16"),
            ("<f2", ">f4", "'>f4' is big-endian"),
            ("'<f2'", "[('a', '<f4')]", "structured"),
            ("False", "True", "C order"),
            ("False", "Maybe", "fortran_order"),
            ("(2, 4)", "(2, -4)", "tuple"),
            ("(2, 4)", "(2, 99999999999999999999999)", "tuple"),
            ("'shape': (2, 4), ", "", "missing"),
            ("'shape'", "'descr': '<f2', 'shape'", "twice"),
            ("'shape'", "'form'", "unknown key"),
            ("}", "} x", "after"),
            ("{", "", "dictionary"),
        ] {
            let bytes = npy(1, &GOOD.replace(from, to), &[0; 16]);
            let error = layout(&bytes).unwrap_err().to_string();
            assert!(error.contains(word), "{from} -> {to}: {error}");
        }
        assert!(matches!(layout(b"PK\x03\x04"), Err(ArrayError::UnknownFormat)));
        assert!(layout(&npy(4, GOOD, &[])).is_err());
    }

    #[test]
    fn every_truncation_of_the_header_is_an_error() {
        let bytes = npy(1, GOOD, &[]);
        for len in 0..bytes.len() {
            assert!(layout(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn the_written_header_is_aligned_and_read_back() {
        for (rows, dim) in [(0, 16), (3, 128), (u64::MAX, 1024)] {
            let bytes = header(&[rows], dim);
            assert_eq!(bytes.len() % 64, 0);
            let layout = layout(&bytes).unwrap();
            assert_eq!(layout.dtype, Dtype::Float(Float::F32));
            assert_eq!(layout.shape, [rows as usize, dim]);
        }
    }
}
