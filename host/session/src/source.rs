//! A state as a run of fields, read without holding it.

use std::io::{BufReader, Read, Seek, SeekFrom};

use crate::error::SessionError;

/// Bytes read at once: cells are 12 bytes each, and rows are skipped.
const BUFFER: usize = 1 << 16;

/// Why a part of a state is not read.
#[derive(Debug)]
pub(crate) enum Miss {
    /// These bytes are something else.
    Foreign {
        at: u64,
        why: String,
    },
    /// Keys were read, and what follows is no type of values.
    NoValues {
        at: u64,
        why: String,
    },
    /// These bytes are such a part, and it is damaged or cut.
    Damaged {
        at: u64,
        why: String,
    },
    Io(std::io::Error),
}

impl Miss {
    pub(crate) fn at(&self) -> u64 {
        match self {
            Self::Foreign { at, .. } | Self::NoValues { at, .. } | Self::Damaged { at, .. } => *at,
            Self::Io(_) => u64::MAX,
        }
    }
}

impl From<Miss> for SessionError {
    fn from(miss: Miss) -> Self {
        match miss {
            Miss::Foreign { at, why } | Miss::NoValues { at, why } | Miss::Damaged { at, why } => {
                Self::state(at, why)
            }
            Miss::Io(error) => Self::Io(error),
        }
    }
}

pub(crate) struct StateSource<'a, R> {
    from: BufReader<&'a mut R>,
    at: u64,
    len: u64,
}

impl<'a, R: Read + Seek> StateSource<'a, R> {
    pub(crate) fn new(from: &'a mut R) -> Result<Self, SessionError> {
        let len = from.seek(SeekFrom::End(0))?;
        from.rewind()?;
        Ok(Self { from: BufReader::with_capacity(BUFFER, from), at: 0, len })
    }

    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn left(&self) -> u64 {
        self.len - self.at
    }

    pub(crate) fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Miss> {
        if self.left() < N as u64 {
            let why = format!("cut: {what} needs {N} bytes; {} are left", self.left());
            return Err(Miss::Damaged { at: self.at, why });
        }
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes).map_err(Miss::Io)?;
        self.at += N as u64;
        Ok(bytes)
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, Miss> {
        self.bytes(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, Miss> {
        self.bytes(what).map(u64::from_le_bytes)
    }

    pub(crate) fn skip(&mut self, bytes: u64, what: &str) -> Result<(), Miss> {
        if bytes > self.left() {
            let why = format!("cut: {what} needs {bytes} bytes; {} are left", self.left());
            return Err(Miss::Damaged { at: self.at, why });
        }
        self.go_to(self.at + bytes)
    }

    pub(crate) fn go_to(&mut self, at: u64) -> Result<(), Miss> {
        // Keeps what is buffered where the place is near.
        let by = i64::try_from(i128::from(at) - i128::from(self.at));
        match by {
            Ok(by) => self.from.seek_relative(by),
            Err(_) => self.from.seek(SeekFrom::Start(at)).map(drop),
        }
        .map_err(Miss::Io)?;
        self.at = at;
        Ok(())
    }
}
