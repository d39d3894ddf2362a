//! The container: typed pairs of key and value, and the place of each tensor.
//!
//! Nothing in a file can be trusted. Counts are compared with the remaining bytes before memory is allocated.

use crate::error::ModelError;
use std::collections::HashMap;
use std::fmt;

/// Versions that are read. Version 1 had counts of 32 bits and is no longer used.
const VERSIONS: [u32; 2] = [2, 3];

/// The most dimensions of a tensor.
const MOST_DIMS: u32 = 4;

/// The most pairs of metadata and the most tensors. Real files have some hundred pairs and some thousand
/// tensors.
const MOST_PAIRS: u64 = 1 << 16;
const MOST_TENSORS: usize = 1 << 16;

/// Tensors begin at multiples of this many bytes, unless the file has another alignment.
const ALIGNMENT: u64 = 32;

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(&'a str),
    /// A text that is not UTF-8, as some names and authors are. Nothing that is read is one.
    Bytes(&'a [u8]),
    List(List<'a>),
}

impl fmt::Display for Value<'_> {
    /// A number or a text as it is; of a list the length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(number) => number.fmt(f),
            Self::Signed(number) => number.fmt(f),
            Self::Float(number) => number.fmt(f),
            Self::Bool(on) => on.fmt(f),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Bytes(_) => f.write_str("a text that is not UTF-8"),
            Self::List(list) => write!(f, "a list of {}", list.len),
        }
    }
}

impl Value<'_> {
    /// A whole number of 0 or more, of any type.
    pub(super) fn whole(&self) -> Option<u64> {
        match *self {
            Self::Unsigned(number) => Some(number),
            Self::Signed(number) => u64::try_from(number).ok(),
            _ => None,
        }
    }
}

/// A list in its stored form. Entries are parsed each time they are needed. A parsed list of bytes would take
/// 32 times the memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct List<'a> {
    kind: u32,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> List<'a> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Value<'a>> {
        let (mut parser, kind) = (Parser { bytes: self.bytes, at: 0 }, self.kind);
        // All entries were parsed once before, so this cannot fail.
        (0..self.len).map_while(move |_| parser.value(kind, false).ok())
    }
}

/// The description of a tensor in the file.
#[derive(Clone, Debug)]
pub(super) struct Info<'a> {
    pub(super) name: &'a str,
    /// Extents, outermost first as in Hugging Face files. GGUF files have the innermost first.
    pub(super) shape: Vec<usize>,
    pub(super) kind: u32,
    /// Position from the start of the data.
    pub(super) offset: u64,
}

/// A file, or one part of a split model.
#[derive(Debug)]
pub(super) struct File<'a> {
    pub(super) metadata: HashMap<&'a str, Value<'a>>,
    pub(super) tensors: Vec<Info<'a>>,
    /// Start of the tensors' data.
    pub(super) data: u64,
}

impl<'a> File<'a> {
    pub(super) fn parse(name: &str, bytes: &'a [u8]) -> Result<Self, ModelError> {
        Self::read(bytes).map_err(|reason| ModelError::Weights {
            file: name.to_owned(),
            reason: format!("not a readable GGUF file: {reason}"),
        })
    }

    fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let mut parser = Parser { bytes, at: 0 };
        if parser.take(4)? != b"GGUF" {
            return Err("it does not begin with GGUF".into());
        }
        let version = parser.u32()?;
        if !VERSIONS.contains(&version) {
            return Err(format!("version {version}; expected 2 or 3, little endian"));
        }
        let (tensors, pairs) = (parser.count(24)?, parser.u64()?);
        if pairs > MOST_PAIRS || tensors > MOST_TENSORS {
            return Err(format!(
                "{pairs} pairs of metadata and {tensors} tensors; expected up to {MOST_PAIRS} and {MOST_TENSORS}"
            ));
        }
        let mut metadata = HashMap::new();
        for _ in 0..pairs {
            let (key, kind) = (parser.text()?, parser.u32()?);
            if metadata.insert(key, parser.value(kind, true)?).is_some() {
                return Err(format!("its key {key:?} stands twice"));
            }
        }
        let tensors = (0..tensors).map(|_| parser.info()).collect::<Result<Vec<_>, _>>()?;
        let alignment = match metadata.get("general.alignment") {
            None => ALIGNMENT,
            // Writers differ in the type of the number.
            Some(value) => {
                let alignment = value.whole().filter(|alignment| alignment.is_power_of_two());
                alignment.ok_or_else(|| format!("general.alignment is {value}; expected a power of two"))?
            }
        };
        let data = (parser.at as u64).checked_next_multiple_of(alignment);
        let data = data.ok_or("general.alignment is beyond any file")?;
        Ok(Self { metadata, tensors, data })
    }
}

/// A parser of the bytes from `at` on.
struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Parser<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(len);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| {
            format!("it ends after {} bytes, in the middle of its header", self.bytes.len())
        })?;
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        Ok(self.take(N)?.try_into().unwrap_or([0; N]))
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a count of items of at least `bytes` bytes each. The file must still have that many bytes.
    fn count(&mut self, bytes: usize) -> Result<usize, String> {
        let (count, left) = (self.u64()?, self.bytes.len() - self.at);
        usize::try_from(count)
            .ok()
            .filter(|count| *count <= left / bytes)
            .ok_or_else(|| format!("a count of {count} at byte {}, where {left} bytes are left", self.at - 8))
    }

    /// The bytes of a text.
    fn bytes_of_text(&mut self) -> Result<&'a [u8], String> {
        let len = self.count(1)?;
        self.take(len)
    }

    /// The name of a key or of a tensor.
    fn text(&mut self) -> Result<&'a str, String> {
        let at = self.at;
        std::str::from_utf8(self.bytes_of_text()?)
            .map_err(|_| format!("a name at byte {at} that is not UTF-8"))
    }

    fn value(&mut self, kind: u32, may_be_list: bool) -> Result<Value<'a>, String> {
        Ok(match kind {
            0 => Value::Unsigned(u64::from(self.array::<1>()?[0])),
            1 => Value::Signed(i64::from(i8::from_le_bytes(self.array()?))),
            2 => Value::Unsigned(u64::from(u16::from_le_bytes(self.array()?))),
            3 => Value::Signed(i64::from(i16::from_le_bytes(self.array()?))),
            4 => Value::Unsigned(u64::from(self.u32()?)),
            5 => Value::Signed(i64::from(i32::from_le_bytes(self.array()?))),
            6 => Value::Float(f64::from(f32::from_le_bytes(self.array()?))),
            7 => Value::Bool(self.array::<1>()?[0] != 0),
            8 => {
                let bytes = self.bytes_of_text()?;
                std::str::from_utf8(bytes).map_or(Value::Bytes(bytes), Value::Text)
            }
            9 if may_be_list => {
                let kind = self.u32()?;
                let bytes = match kind {
                    0 | 1 | 7 => 1,
                    2 | 3 => 2,
                    4..=6 => 4,
                    _ => 8,
                };
                let len = self.count(bytes)?;
                let start = self.at;
                for _ in 0..len {
                    self.value(kind, false)?;
                }
                Value::List(List { kind, len, bytes: &self.bytes[start..self.at] })
            }
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            _ => return Err(format!("a value of type {kind} at byte {}", self.at)),
        })
    }

    fn info(&mut self) -> Result<Info<'a>, String> {
        let (name, dims) = (self.text()?, self.u32()?);
        if dims > MOST_DIMS {
            return Err(format!("tensor {name} has {dims} dimensions; expected up to {MOST_DIMS}"));
        }
        let mut shape = (0..dims)
            .map(|_| usize::try_from(self.u64()?).map_err(|_| format!("tensor {name} is too large")))
            .collect::<Result<Vec<_>, _>>()?;
        shape.reverse();
        Ok(Info { name, shape, kind: self.u32()?, offset: self.u64()? })
    }
}
