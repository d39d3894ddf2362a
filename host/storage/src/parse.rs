//! Reads fields one after the other from untrusted bytes.

use crate::error::StorageError;

/// The bytes that are left, and their name in errors.
pub(crate) struct ByteReader<'a> {
    rest: &'a [u8],
    kind: &'static str,
}

impl<'a> ByteReader<'a> {
    pub(crate) const fn new(rest: &'a [u8], kind: &'static str) -> Self {
        Self { rest, kind }
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], StorageError> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            let why = format!("truncated: {} bytes are missing", count - self.rest.len());
            return Err(StorageError::Bytes { kind: self.kind, why });
        };
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], StorageError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, StorageError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, StorageError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, StorageError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32s<const N: usize>(&mut self) -> Result<[u32; N], StorageError> {
        let mut out = [0; N];
        for field in &mut out {
            *field = self.u32()?;
        }
        Ok(out)
    }

    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}
