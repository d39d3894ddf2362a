//! The header of a chunk, and the tokens that it keeps exactly.

use crate::element::{Dtype, Element};
use crate::error::StorageError;
use crate::parse::ByteReader;
use crate::shape::Shape;
use crate::streams::MAX_WIDTH;

const MAGIC: [u8; 8] = *b"\x89TQC\r\n\x1a\n";
const VERSION: u16 = 1;
/// Bytes before the exact tokens.
const HEADER: usize = 92;
pub(crate) const CRC: usize = 4;
/// The most tokens of a chunk.
pub const MAX_TOKENS: usize = 256;
/// Tokens at the start of a text that are kept exactly, because all later tokens attend to them.
pub const EXACT_TOKENS: u64 = 4;

/// The tokens and layers that a chunk holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first layer.
    pub first_layer: usize,
    /// Number of layers.
    pub layers: usize,
    /// Position of the first token. The others follow.
    pub first_position: u64,
    /// Number of tokens, 1 to [`MAX_TOKENS`].
    pub tokens: usize,
    /// Number of tokens, from the first on, that are kept exactly.
    pub exact: usize,
    /// The store's name of the chunk, shortened to eight bytes. The codec does not read it.
    pub name: [u8; 8],
}

impl Span {
    /// All layers of consecutive tokens. Those at the first four positions stay exact.
    pub fn of(shape: &Shape, first_position: u64, tokens: usize) -> Self {
        let exact = EXACT_TOKENS.saturating_sub(first_position).min(tokens as u64) as usize;
        Self { first_layer: 0, layers: shape.num_layers, first_position, tokens, exact, name: [0; 8] }
    }

    /// Number of coded tokens.
    pub(crate) const fn coded(&self) -> usize {
        self.tokens - self.exact
    }

    pub(crate) fn check(&self, shape: &Shape) -> Result<(), StorageError> {
        let &Self { first_layer, layers, first_position, tokens, exact, .. } = self;
        let bad = |why: String| Err(StorageError::Span(why));
        if tokens == 0 || tokens > MAX_TOKENS {
            return bad(format!("chunk of {tokens} tokens; expected 1 to {MAX_TOKENS}"));
        }
        if exact > tokens {
            return bad(format!("{exact} exact tokens of {tokens}"));
        }
        if layers == 0 || first_layer.checked_add(layers).is_none_or(|end| end > shape.num_layers) {
            return bad(format!("{layers} layers from layer {first_layer} on of {}", shape.num_layers));
        }
        // Beyond this, neighbouring positions are equal in f64.
        if first_position > 1 << 52 {
            return bad(format!("position {first_position}; expected 0 to 2^52"));
        }
        Ok(())
    }

    /// Checks the lengths of the slices against the span, keys first.
    pub(crate) fn check_lengths(&self, shape: &Shape, k: usize, v: usize) -> Result<(), StorageError> {
        let rows = self.layers * self.tokens;
        for (what, got, expected) in
            [("keys", k, rows * shape.key_values()), ("values", v, rows * shape.value_values())]
        {
            if got != expected {
                return Err(StorageError::Length { what, got, expected });
            }
        }
        Ok(())
    }
}

/// The fields of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkHeader {
    pub(crate) span: Span,
    pub(crate) dtype: Dtype,
    pub(crate) has_basis: bool,
    /// The digest of the basis, or of the shape where there is no basis.
    pub(crate) frame: [u8; 32],
    /// The chunk has no streams of fewer bits. 1 in a complete chunk.
    pub(crate) least: u8,
    /// Bytes of a section in a complete chunk.
    pub(crate) section: usize,
}

impl ChunkHeader {
    /// Bytes of the fields.
    pub(crate) const BYTES: usize = HEADER;

    /// Bytes of exact tokens.
    pub(crate) const fn exact_bytes(&self, shape: &Shape) -> usize {
        self.span.layers * self.span.exact * shape.layer_values() * self.dtype.bytes()
    }

    /// Bytes before the sections.
    pub(crate) const fn bytes(&self, shape: &Shape) -> usize {
        HEADER + self.exact_bytes(shape) + CRC
    }

    /// Writes header, exact tokens and their CRC. Exact tokens that are not finite are an error, as coded
    /// ones are.
    pub(crate) fn write<T: Element>(
        &self,
        shape: &Shape,
        k: &[T],
        v: &[T],
        out: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        let start = out.len();
        self.write_fields(shape, out);
        for (x, values) in [(k, shape.key_values()), (v, shape.value_values())] {
            for layer in 0..self.span.layers {
                let first = layer * self.span.tokens * values;
                let exact = &x[first..first + self.span.exact * values];
                if exact.iter().any(|x| !x.to_f32().is_finite()) {
                    let layer = self.span.first_layer + layer;
                    return Err(StorageError::Layer { layer, what: "exact tokens are not finite".into() });
                }
                exact.iter().for_each(|x| x.push(out));
            }
        }
        let crc = crc32fast::hash(&out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
        Ok(())
    }

    /// These fields, followed by the exact tokens of a chunk whose exact tokens are the same.
    pub(crate) fn copied(&self, shape: &Shape, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_fields(shape, &mut out);
        out.extend_from_slice(&bytes[HEADER..HEADER + self.exact_bytes(shape)]);
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    fn write_fields(&self, shape: &Shape, out: &mut Vec<u8>) {
        let Self { span, dtype, has_basis, frame, least, section } = self;
        out.extend_from_slice(&MAGIC);
        let flags = u16::from(*has_basis);
        for field in [VERSION, flags, dtype.code(), span.tokens as u16, span.exact as u16, u16::from(*least)]
        {
            out.extend_from_slice(&field.to_le_bytes());
        }
        let Shape { num_kv_heads, head_dim, value_dim, .. } = shape;
        for field in [span.first_layer, span.layers, *num_kv_heads, *head_dim, *value_dim, *section] {
            out.extend_from_slice(&(field as u32).to_le_bytes());
        }
        out.extend_from_slice(&span.first_position.to_le_bytes());
        out.extend_from_slice(&span.name);
        out.extend_from_slice(frame);
    }

    /// Reads and checks the header of a chunk for keys and values of `shape`. Returns the bytes after the
    /// exact tokens as well.
    pub(crate) fn read<'a>(bytes: &'a [u8], shape: &Shape) -> Result<(Self, &'a [u8]), StorageError> {
        let mut rest = ByteReader::new(bytes, "chunk");
        let header = Self::read_fields(&mut rest, shape)?;
        rest.take(header.exact_bytes(shape))?;
        let checked = &bytes[..bytes.len() - rest.rest().len()];
        if crc32fast::hash(checked).to_le_bytes() != rest.array::<CRC>()? {
            return Err(StorageError::chunk("damaged header (CRC-32 does not match)"));
        }
        Ok((header, rest.rest()))
    }

    /// Reads the fields alone. No checksum covers them yet.
    pub(crate) fn read_fields(rest: &mut ByteReader<'_>, shape: &Shape) -> Result<Self, StorageError> {
        let bad = |why: String| Err(StorageError::chunk(why));
        if rest.array()? != MAGIC {
            return bad("not a chunk (the first 8 bytes must be 89 54 51 43 0d 0a 1a 0a)".into());
        }
        let version = rest.u16()?;
        if version != VERSION {
            return bad(format!("version {version}; expected {VERSION}"));
        }
        let [flags, dtype, tokens, exact, least] =
            [rest.u16()?, rest.u16()?, rest.u16()?, rest.u16()?, rest.u16()?];
        let counts: [u32; 6] = rest.u32s()?;
        let [first_layer, layers, heads, head_dim, value_dim, section] = counts.map(|count| count as usize);
        let (first_position, name, frame) = (rest.u64()?, rest.array()?, rest.array()?);
        let is_known = flags <= 1 && (1..=u16::from(MAX_WIDTH)).contains(&least);
        let Some(dtype) = Dtype::from_code(dtype).filter(|_| is_known) else {
            return bad("fields that version 1 does not have".into());
        };
        let own = [shape.num_kv_heads, shape.head_dim, shape.value_dim];
        if [heads, head_dim, value_dim] != own {
            return bad(format!(
                "{heads} KV heads of {head_dim} and {value_dim} values; here are {} of {} and {}",
                own[0], own[1], own[2]
            ));
        }
        let (tokens, exact) = (usize::from(tokens), usize::from(exact));
        let span = Span { first_layer, layers, first_position, tokens, exact, name };
        span.check(shape).map_err(|error| StorageError::chunk(error.to_string()))?;
        Ok(Self { span, dtype, has_basis: flags == 1, frame, least: least as u8, section })
    }

    /// Copies the exact tokens of a chunk and converts their numbers. Copies nothing if one is not finite.
    pub(crate) fn read_exact<T: Element>(
        &self,
        shape: &Shape,
        bytes: &[u8],
        k: &mut [T],
        v: &mut [T],
    ) -> Result<(), StorageError> {
        let all = numbers::<T>(self.dtype, &bytes[HEADER..HEADER + self.exact_bytes(shape)]);
        if all.iter().any(|x| !x.to_f32().is_finite()) {
            return Err(StorageError::chunk("exact tokens that are not finite, or too large"));
        }
        let mut from = &all[..];
        for (x, values) in [(k, shape.key_values()), (v, shape.value_values())] {
            for layer in 0..self.span.layers {
                let first = layer * self.span.tokens * values;
                let (own, rest) = from.split_at(self.span.exact * values);
                x[first..first + own.len()].copy_from_slice(own);
                from = rest;
            }
        }
        Ok(())
    }
}

/// Converts stored numbers of one type to another.
fn numbers<T: Element>(dtype: Dtype, bytes: &[u8]) -> Vec<T> {
    fn of<S: Element, T: Element>(bytes: &[u8]) -> Vec<T> {
        bytes.chunks_exact(S::DTYPE.bytes()).map(|x| T::from_f32(S::read(x).to_f32())).collect()
    }
    match dtype {
        Dtype::F32 => of::<f32, T>(bytes),
        Dtype::F16 => of::<half::f16, T>(bytes),
        Dtype::Bf16 => of::<half::bf16, T>(bytes),
    }
}
