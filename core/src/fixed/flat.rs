//! The flat file of a language model in integers: its header, and the sizes of its tensors.
//!
//! `SPEC.md` describes the bytes. `tqkv-model` writes such a file on a computer, and `tqkv-lm` computes with it on a
//! microcontroller. Both take the format from here, so that neither depends on the other. All sizes follow from the
//! header at compile time.

use core::fmt;

/// The version that is written and read.
const VERSION: u16 = 1;

/// Limit of the exponents of tensors, in either direction.
pub const MAX_EXPONENT: i32 = 64;

/// Columns of a group; with 4 bits they share a scale. Rows are whole groups.
pub const GROUP: usize = 32;

/// First bytes of the file.
const MAGIC: [u8; 4] = *b"TQLM";

/// Bytes of the header.
pub const HEADER_BYTES: usize = 40;
/// Bytes of the checksum after everything else.
pub const TRAILER_BYTES: usize = 4;

/// How weights are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum WeightBits {
    /// Signed bytes with one scale per row.
    Eight,
    /// -8 to 7 with one scale per row and one per 32 columns.
    Four,
}

impl WeightBits {
    /// 8 or 4.
    pub const fn count(self) -> u8 {
        match self {
            Self::Eight => 8,
            Self::Four => 4,
        }
    }
}

/// Sizes of tensors in a file.
#[derive(Clone, Copy, Debug)]
pub struct LayoutBytes(pub WeightBits);

impl LayoutBytes {
    /// The weights of a norm: an exponent, and one mantissa per value.
    pub const fn norm(self, width: usize) -> u64 {
        4 + 2 * width as u64
    }

    /// A matrix: an exponent, one scale per row, and pairs of rows. An odd last row is paired with a row of
    /// zeros.
    pub const fn matrix(self, rows: usize, columns: usize) -> u64 {
        let rows = rows.next_multiple_of(2) as u64;
        4 + 2 * rows + rows / 2 * (self.pair_scales(columns) + self.pair_codes(columns)) as u64
    }

    /// Scales of the groups of two rows, alternating, padded to a multiple of four.
    pub const fn pair_scales(self, columns: usize) -> usize {
        match self.0 {
            WeightBits::Eight => 0,
            WeightBits::Four => (2 * columns / GROUP).next_multiple_of(4),
        }
    }

    /// Codes of two rows.
    pub const fn pair_codes(self, columns: usize) -> usize {
        columns * self.0.count() as usize / 4
    }
}

/// Shapes and constants of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Shape {
    /// How weights are coded.
    pub bits: WeightBits,
    /// True if the embedding is also the output head.
    pub is_tied: bool,
    /// Width of the residual stream.
    pub hidden: u16,
    /// Width of the MLP.
    pub inner: u16,
    /// Decoder layers.
    pub layers: u16,
    /// Query heads.
    pub heads: u16,
    /// KV heads; divides `heads`.
    pub kv_heads: u16,
    /// Coordinates of a head vector.
    pub head_dim: u16,
    /// Tokens in the vocabulary.
    pub vocab: u32,
    /// Longest sequence that the model was trained for.
    pub context: u32,
    /// Epsilon of the norms in units of 2^-40.
    pub epsilon: u32,
}

const fn u16_at(h: &[u8; HEADER_BYTES], at: usize) -> u16 {
    u16::from_le_bytes([h[at], h[at + 1]])
}

const fn u32_at(h: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]])
}

const fn field(name: &'static str, accepted: &'static str) -> FileError {
    FileError::Field { name, accepted }
}

impl Shape {
    /// Reads and checks the header. It is `const`, so that a firmware can size its memory for the model that
    /// it includes.
    ///
    /// # Errors
    /// [`FileError::NotAModel`], [`FileError::Version`], or the first field that is out of range.
    pub const fn read(file: &[u8]) -> Result<Self, FileError> {
        let Some(h) = file.first_chunk::<HEADER_BYTES>() else { return Err(FileError::NotAModel) };
        if h[0] != MAGIC[0] || h[1] != MAGIC[1] || h[2] != MAGIC[2] || h[3] != MAGIC[3] {
            return Err(FileError::NotAModel);
        }
        if u16_at(h, 4) != VERSION {
            return Err(FileError::Version { got: u16_at(h, 4) });
        }
        let bits = match h[6] {
            8 => WeightBits::Eight,
            4 => WeightBits::Four,
            _ => return Err(field("weight bits", "8 or 4")),
        };
        if h[7] > 1 {
            return Err(field("flags", "0 or 1 (tied)"));
        }
        let shape = Self {
            bits,
            is_tied: h[7] == 1,
            hidden: u16_at(h, 8),
            inner: u16_at(h, 10),
            layers: u16_at(h, 12),
            heads: u16_at(h, 14),
            kv_heads: u16_at(h, 16),
            head_dim: u16_at(h, 18),
            vocab: u32_at(h, 20),
            context: u32_at(h, 24),
            epsilon: u32_at(h, 28),
        };
        if u32_at(h, 32) != 0 || u32_at(h, 36) != 0 {
            return Err(field("reserved", "0"));
        }
        shape.checked()
    }

    /// Reads the header of a complete file, which must have the length that follows from it. It does not read
    /// the tensors.
    ///
    /// # Errors
    /// The errors of [`Shape::read`], or [`FileError::Length`].
    pub const fn of_file(file: &[u8]) -> Result<Self, FileError> {
        let shape = match Self::read(file) {
            Ok(shape) => shape,
            Err(error) => return Err(error),
        };
        let (expected, got) = (shape.file_bytes(), file.len() as u64);
        if expected == got { Ok(shape) } else { Err(FileError::Length { expected, got }) }
    }

    /// The shape, if it is valid for a model.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub const fn checked(self) -> Result<Self, FileError> {
        if !wide(self.hidden) {
            return Err(field("hidden", "a multiple of 32, 32 to 8192"));
        }
        if !wide(self.inner) {
            return Err(field("inner", "a multiple of 32, 32 to 8192"));
        }
        if self.layers == 0 || self.layers > 256 {
            return Err(field("layers", "1 to 256"));
        }
        if self.kv_heads == 0
            || self.heads == 0
            || self.heads > 256
            || !self.heads.is_multiple_of(self.kv_heads)
        {
            return Err(field("heads", "1 to 256, a multiple of kv heads"));
        }
        if self.head_dim == 0 || self.head_dim > 1024 || !self.head_dim.is_multiple_of(16) {
            return Err(field("head dim", "a multiple of 16, 16 to 1024"));
        }
        if !(self.attended() as u32).is_multiple_of(GROUP as u32) {
            return Err(field("heads", "heads times head dim a multiple of 32"));
        }
        if self.vocab == 0 || self.vocab > 1 << 20 {
            return Err(field("vocab", "1 to 2^20"));
        }
        Ok(self)
    }

    /// The header of this shape.
    pub fn header(&self) -> [u8; HEADER_BYTES] {
        let mut h = [0; HEADER_BYTES];
        let mut rest = h.as_mut_slice();
        let mut put = |bytes: &[u8]| {
            let (to, after) =
                core::mem::take(&mut rest).split_at_mut_checked(bytes.len()).unwrap_or_default();
            to.copy_from_slice(bytes);
            rest = after;
        };
        put(&MAGIC);
        put(&VERSION.to_le_bytes());
        put(&[self.bits.count(), u8::from(self.is_tied)]);
        for field in [self.hidden, self.inner, self.layers, self.heads, self.kv_heads, self.head_dim] {
            put(&field.to_le_bytes());
        }
        for field in [self.vocab, self.context, self.epsilon] {
            put(&field.to_le_bytes());
        }
        h
    }

    /// Values of all heads together: the input of the output projection.
    pub const fn attended(&self) -> usize {
        self.heads as usize * self.head_dim as usize
    }

    /// Values of the keys, or of the values, of one token.
    pub const fn keyed(&self) -> usize {
        self.kv_heads as usize * self.head_dim as usize
    }

    /// Number of rings: one per KV head of each layer.
    pub const fn rings(&self) -> usize {
        self.layers as usize * self.kv_heads as usize
    }

    /// Words of working memory of the model, 4 bytes each.
    pub const fn work_words(&self) -> usize {
        self.hidden as usize + self.mantissa_words() + self.sum_words() + self.head_dim as usize
    }

    /// Words for the widest vector of 16-bit mantissas.
    pub const fn mantissa_words(&self) -> usize {
        largest([self.hidden as usize, self.inner as usize, self.attended()]).div_ceil(2)
    }

    /// Words for the sums of the widest products that are held at once.
    pub const fn sum_words(&self) -> usize {
        largest([
            2 * self.inner as usize,
            self.attended() + 2 * self.keyed(),
            (self.vocab as usize).next_multiple_of(2),
        ])
    }

    /// Bytes of one layer.
    pub const fn layer_bytes(&self) -> u64 {
        let (hidden, inner) = (self.hidden as usize, self.inner as usize);
        let of = LayoutBytes(self.bits);
        2 * of.norm(hidden)
            + of.matrix(self.attended(), hidden)
            + 2 * of.matrix(self.keyed(), hidden)
            + of.matrix(hidden, self.attended())
            + 2 * of.matrix(inner, hidden)
            + of.matrix(hidden, inner)
    }

    /// Bytes of the whole file, header and checksum included.
    pub const fn file_bytes(&self) -> u64 {
        let of = LayoutBytes(self.bits);
        let table = of.matrix(self.vocab as usize, self.hidden as usize);
        (HEADER_BYTES + TRAILER_BYTES + 2 * self.head_dim as usize) as u64
            + self.layers as u64 * self.layer_bytes()
            + of.norm(self.hidden as usize)
            + if self.is_tied { table } else { 2 * table }
    }
}

/// Returns true if a row may have this length.
const fn wide(columns: u16) -> bool {
    columns > 0 && columns <= 8192 && columns.is_multiple_of(GROUP as u16)
}

const fn largest(of: [usize; 3]) -> usize {
    let [a, b, c] = of;
    let ab = if a > b { a } else { b };
    if ab > c { ab } else { c }
}

/// Checks the CRC-32 (IEEE) that ends a file. `checksum` computes it, for example from a table.
///
/// # Errors
/// [`FileError::Checksum`] if it differs, [`FileError::NotAModel`] if the file has no room for it.
pub fn verify(file: &[u8], checksum: impl FnOnce(&[u8]) -> u32) -> Result<(), FileError> {
    let Some((bytes, sum)) = file.split_last_chunk::<TRAILER_BYTES>() else {
        return Err(FileError::NotAModel);
    };
    if checksum(bytes) == u32::from_le_bytes(*sum) { Ok(()) } else { Err(FileError::Checksum) }
}

/// Why a file is not a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum FileError {
    /// The bytes do not begin with `TQLM`, or end within the header.
    NotAModel,
    /// A version of the format that this crate does not read.
    Version {
        /// The version of the file.
        got: u16,
    },
    /// A field of the header is not valid.
    Field {
        /// The field's name in SPEC.md.
        name: &'static str,
        /// The accepted values.
        accepted: &'static str,
    },
    /// The file is not as long as its header says.
    Length {
        /// Bytes that the shape requires.
        expected: u64,
        /// Bytes passed.
        got: u64,
    },
    /// The checksum at the end does not match the bytes before it.
    Checksum,
    /// The exponent of a tensor is outside the accepted range of 64 octaves in either direction.
    Exponent,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAModel => {
                f.write_str("not a flat model file: it must begin with TQLM and a whole header")
            }
            Self::Version { got } => {
                write!(f, "version {got} of the flat model file is not valid: expected {}", VERSION)
            }
            Self::Field { name, accepted } => {
                write!(f, "{name} of the flat model file is not valid: expected {accepted}")
            }
            Self::Length { expected, got } => {
                write!(f, "the flat model file has {got} bytes, expected {expected} by its header")
            }
            Self::Checksum => f.write_str("the checksum of the flat model file is wrong: it is damaged"),
            Self::Exponent => {
                let most = MAX_EXPONENT;
                write!(f, "an exponent of the flat model file is not valid: expected -{most} to {most}")
            }
        }
    }
}

impl core::error::Error for FileError {}
