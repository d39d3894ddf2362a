//! Reading a `.tqk` file front to back.

use std::io::Read;

use super::layout::{CHUNK_HEAD, CRC, FIXED_HEADER, le};
use super::{FileError, Header};

/// Reads one chunk after the other from any source. Holds one chunk in memory.
///
/// A chunk is returned only after its CRC-32 was checked. Memory grows with the bytes that arrive, whatever
/// the header claims.
#[derive(Debug)]
pub struct Reader<R: Read> {
    input: R,
    header: Header,
    block_bytes: usize,
    chunk: Vec<u8>,
    next_chunk: u64,
}

impl<R: Read> Reader<R> {
    /// Reads and checks the header.
    ///
    /// # Errors
    /// Any error of [`FileError`] about a header.
    pub fn new(mut input: R) -> Result<Self, FileError> {
        let mut bytes = Vec::new();
        read_exactly(&mut input, FIXED_HEADER, &mut bytes)?;
        let mut fixed = [0; FIXED_HEADER];
        // For a short file of another format, the wrong magic is reported before the truncation.
        fixed[..bytes.len()].copy_from_slice(&bytes);
        let rest = match Header::announced_len(&fixed) {
            Err(FileError::BadMagic) => return Err(FileError::BadMagic),
            _ if bytes.len() < FIXED_HEADER => {
                return Err(FileError::Truncated("a part of the header is".into()));
            }
            len => len? - FIXED_HEADER,
        };
        if read_exactly(&mut input, rest, &mut bytes)? < rest {
            return Err(FileError::Truncated("a part of the header is".into()));
        }
        let (header, block_bytes) = Header::from_bytes(&bytes)?;
        Ok(Self { input, header, block_bytes, chunk: Vec::new(), next_chunk: 0 })
    }

    /// The header of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// The blocks of the next chunk, back to back. Returns `None` after the last chunk, once the input is
    /// known to end there. After an error about a damaged or misplaced chunk, the next call continues with
    /// the following chunk.
    ///
    /// # Errors
    /// Truncated, damaged or misplaced chunks, bytes after the last chunk, and errors of reading.
    pub fn next_chunk(&mut self) -> Result<Option<&[u8]>, FileError> {
        let index = self.next_chunk;
        let blocks = self.header.blocks_in(index);
        self.chunk.clear();
        if blocks == 0 {
            return match read_exactly(&mut self.input, 1, &mut self.chunk)? {
                0 => Ok(None),
                _ => Err(FileError::TrailingBytes(self.header.count)),
            };
        }
        let payload_end = CHUNK_HEAD + blocks * self.block_bytes;
        let expected = payload_end + CRC;
        let found = read_exactly(&mut self.input, expected, &mut self.chunk)?;
        if found < expected {
            return Err(FileError::Truncated(format!(
                "{} bytes of chunk {index} of {} are",
                expected - found,
                self.header.num_chunks()
            )));
        }
        self.next_chunk += 1;
        check_chunk(&self.header, &self.chunk, index)?;
        Ok(Some(&self.chunk[CHUNK_HEAD..payload_end]))
    }
}

/// Reads the header at the front of a file of `len` bytes. Also returns the bytes per block. Refuses any
/// length but that which the header implies.
pub(super) fn header_of_file(front: &[u8], len: u64) -> Result<(Header, usize), FileError> {
    let reader = Reader::new(front)?;
    let (header, block_bytes) = (reader.header().clone(), reader.block_bytes());
    let (len, expected) = (u128::from(len), header.file_len(block_bytes));
    if len < expected {
        return Err(FileError::Truncated(format!("{} of {expected} bytes are", expected - len)));
    }
    if len > expected {
        return Err(FileError::TrailingBytes(header.count));
    }
    Ok((header, block_bytes))
}

/// Checks the CRC-32 and the head of chunk `index`. `chunk` has the right length.
pub(super) fn check_chunk(header: &Header, chunk: &[u8], index: u64) -> Result<(), FileError> {
    let body = chunk.len() - CRC;
    if crc32fast::hash(&chunk[..body]) != le!(u32, chunk, body) {
        return Err(FileError::ChunkCrc(index));
    }
    let first = index * u64::from(header.blocks_per_chunk);
    let blocks = le!(u32, chunk, 8) as usize;
    if le!(u64, chunk, 0) != first || blocks != header.blocks_in(index) {
        return Err(FileError::ChunkOrder(index));
    }
    Ok(())
}

/// Appends up to `len` bytes to `into`. Returns how many came before the end of the input.
fn read_exactly(input: &mut impl Read, len: usize, into: &mut Vec<u8>) -> Result<usize, FileError> {
    Ok(input.by_ref().take(len as u64).read_to_end(into)?)
}
