//! A flat model file, checked once and read in place.

use crate::error::LmError;
use crate::matrix::{Matrix, word};
use crate::norm::NormWeights;
use crc::{CRC_32_ISO_HDLC, Crc, Table};
use tqkv_core::fixed::flat::{FileError, HEADER_BYTES, MAX_EXPONENT, Shape, WeightBits, verify};

static CRC: Crc<u32, Table<1>> = Crc::<u32, Table<1>>::new(&CRC_32_ISO_HDLC);

/// CRC-32 (IEEE) of the bytes; it ends a file.
pub fn checksum(bytes: &[u8]) -> u32 {
    CRC.checksum(bytes)
}

/// A model whose weights stay in place, in flash.
#[derive(Clone, Copy, Debug)]
pub struct Model<'a> {
    shape: Shape,
    rotary: &'a [u8],
    layers: &'a [u8],
    tail: &'a [u8],
}

/// The tensors of one layer.
pub(crate) struct Layer<'a> {
    pub(crate) attention_norm: NormWeights<'a>,
    pub(crate) q: Matrix<'a>,
    pub(crate) k: Matrix<'a>,
    pub(crate) v: Matrix<'a>,
    pub(crate) o: Matrix<'a>,
    pub(crate) mlp_norm: NormWeights<'a>,
    pub(crate) gate: Matrix<'a>,
    pub(crate) up: Matrix<'a>,
    pub(crate) down: Matrix<'a>,
}

/// The tensors after the layers.
pub(crate) struct Tail<'a> {
    pub(crate) norm: NormWeights<'a>,
    pub(crate) embedding: Matrix<'a>,
    pub(crate) head: Matrix<'a>,
}

/// Splits tensors off the front of the bytes.
struct Reader<'a> {
    rest: &'a [u8],
    bits: WeightBits,
}

impl<'a> Reader<'a> {
    fn norm(&mut self, width: usize) -> NormWeights<'a> {
        let (norm, rest) = NormWeights::read(self.rest, width);
        self.rest = rest;
        norm
    }

    fn matrix(&mut self, rows: usize, columns: usize) -> Matrix<'a> {
        let (matrix, rest) = Matrix::read(self.rest, self.bits, rows, columns);
        self.rest = rest;
        matrix
    }
}

impl<'a> Model<'a> {
    /// Checks the file and finds the tensors. The checksum finds damaged weights. On processors with DSP
    /// loops, align the bytes to 4; else the portable loops are used, with the same results.
    ///
    /// # Errors
    /// The errors of [`Shape::of_file`], a wrong checksum, or an exponent out of range.
    pub fn load(file: &'a [u8]) -> Result<Self, LmError> {
        let model = Self::load_unverified(file)?;
        verify(file, checksum)?;
        Ok(model)
    }

    /// [`Model::load`] without the checksum, which takes about 10 instructions per byte. It is for bytes that
    /// a build has checked. Damaged weights give wrong text, and nothing worse.
    ///
    /// # Errors
    /// The errors of [`Model::load`], except for the checksum.
    pub fn load_unverified(file: &'a [u8]) -> Result<Self, LmError> {
        let shape = Shape::of_file(file)?;
        let (_, rest) = file.split_at_checked(HEADER_BYTES).unwrap_or_default();
        let (rotary, rest) = rest.split_at_checked(2 * usize::from(shape.head_dim)).unwrap_or_default();
        let layers = usize::from(shape.layers) * shape.layer_bytes() as usize;
        let (layers, tail) = rest.split_at_checked(layers).unwrap_or_default();
        let model = Self { shape, rotary, layers, tail };
        if model.exponents_are_fine() { Ok(model) } else { Err(FileError::Exponent.into()) }
    }

    fn exponents_are_fine(&self) -> bool {
        let fine = |exponent: i32| exponent.unsigned_abs() <= MAX_EXPONENT as u32;
        let tail = self.tail();
        let layers = self.layers().all(|layer| {
            let matrices = [&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down];
            matrices.iter().all(|matrix| fine(matrix.exponent()))
                && fine(layer.attention_norm.exponent())
                && fine(layer.mlp_norm.exponent())
        });
        layers && fine(tail.norm.exponent()) && fine(tail.embedding.exponent()) && fine(tail.head.exponent())
    }

    /// Shapes and constants.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Turns per position of each pair of coordinates, as fractions of 2^32.
    pub(crate) fn frequencies(&self) -> impl Iterator<Item = u32> {
        self.rotary.as_chunks::<4>().0.iter().map(|bytes| word(*bytes))
    }

    pub(crate) fn layers(&self) -> impl Iterator<Item = Layer<'a>> {
        let shape = self.shape;
        let (hidden, inner) = (usize::from(shape.hidden), usize::from(shape.inner));
        let bytes = (shape.layer_bytes() as usize).max(1);
        self.layers.chunks_exact(bytes).map(move |rest| {
            let mut from = Reader { rest, bits: shape.bits };
            Layer {
                attention_norm: from.norm(hidden),
                q: from.matrix(shape.attended(), hidden),
                k: from.matrix(shape.keyed(), hidden),
                v: from.matrix(shape.keyed(), hidden),
                o: from.matrix(hidden, shape.attended()),
                mlp_norm: from.norm(hidden),
                gate: from.matrix(inner, hidden),
                up: from.matrix(inner, hidden),
                down: from.matrix(hidden, inner),
            }
        })
    }

    pub(crate) fn tail(&self) -> Tail<'a> {
        let (hidden, vocab) = (usize::from(self.shape.hidden), self.shape.vocab as usize);
        let mut from = Reader { rest: self.tail, bits: self.shape.bits };
        let norm = from.norm(hidden);
        let embedding = from.matrix(vocab, hidden);
        let head = if self.shape.is_tied { embedding } else { from.matrix(vocab, hidden) };
        Tail { norm, embedding, head }
    }
}
