//! A section: the part of a chunk for one layer, or for the layers that share a basis. It holds norms and
//! widths, then a stream for each width, the widest first.

use std::borrow::Cow;

use half::f16;

use crate::basis::Basis;
use crate::coefficients::Coefficients;
use crate::element::Element;
use crate::error::StorageError;
use crate::frame::Frame;
use crate::parse::ByteReader;
use crate::rows::RowPlace;
use crate::shape::Shape;
use crate::{streams, widths};

/// Coefficients in a basis that share a width. Without a basis each channel has its own.
const RUN: usize = 16;
const CRC: usize = 4;

/// The layout of sections follows from the shape, the basis and the number of coded tokens.
#[derive(Clone, Copy)]
pub(crate) struct SectionLayout<'a> {
    pub(crate) shape: &'a Shape,
    pub(crate) basis: Option<&'a Basis>,
    pub(crate) tokens: usize,
}

impl<'a> SectionLayout<'a> {
    /// Layers per section.
    pub(crate) fn layers(&self) -> usize {
        self.basis.map_or(1, |basis| basis.join().layers())
    }

    /// Values per token.
    fn stride(&self) -> usize {
        self.layers() * self.shape.layer_values()
    }

    /// Norms of a token's values in a layer: one with a basis over all heads, else one per head.
    pub(crate) const fn norms(&self) -> usize {
        match (self.shape.value_dim, self.basis) {
            (0, _) => 0,
            (_, Some(_)) => 1,
            (_, None) => self.shape.num_kv_heads,
        }
    }

    const fn run(&self) -> usize {
        if self.basis.is_some() { RUN } else { 1 }
    }

    fn runs(&self) -> usize {
        self.stride() / self.run()
    }

    /// Bytes of the mean and scale of the keys, which a basis has for all chunks.
    const fn frame_bytes(&self) -> usize {
        if self.basis.is_some() { 0 } else { 2 * self.shape.key_values() + 4 }
    }

    /// Bytes before the streams.
    pub(crate) fn head(&self) -> usize {
        self.tokens * self.layers() * self.norms()
            + self.frame_bytes()
            + widths::packed_bytes(self.runs())
            + CRC
    }

    /// Bytes of a section at `bits` bits per coded value. Norms, widths, scales and checksums are included.
    /// With few tokens the head would take all of it, so half of the section is kept for the streams.
    pub(crate) fn section(&self, bits: f32) -> usize {
        if self.tokens == 0 {
            return 0;
        }
        let values = self.tokens * self.stride();
        let asked = (f64::from(bits) * values as f64 / 8.0) as usize;
        let most = self.head() + streams::bytes(values, streams::MAX_WIDTH);
        asked.max(2 * self.head()).min(most)
    }

    /// Encodes keys and values into a section. Returns the share of the energy that is lost, as it is
    /// foreseen.
    pub(crate) fn encode<T: Element>(
        &self,
        place: RowPlace<'_>,
        (k, v): (&[T], &[T]),
        section: &mut [u8],
    ) -> Result<f64, StorageError> {
        let (level, stride, run) = (place.level, self.stride(), self.run());
        let rows = place.take_apart(k, v)?;
        let frame = match self.basis {
            Some(basis) => Cow::Borrowed(basis.frame(place.first_layer)),
            None => Cow::Owned(Frame::of_rows(&rows, self.shape)),
        };
        let norms = rows.norms;
        let coefficients = frame.coefficients(level, rows.values, stride);
        let (head, mut rest) = section.split_at_mut(self.head());
        let energies = energies(&coefficients, stride, run);
        let widths = widths::allot(&energies, run * self.tokens, rest.len());
        self.write_head(&norms, &frame, &widths, head);
        for width in streams::order() {
            let runs = streams::runs(&widths, width);
            let bytes = streams::bytes(runs.len() * run * self.tokens, width);
            let (stream, after) = rest.split_at_mut(bytes);
            if bytes > 0 {
                streams::encode(level, width, (&runs, run), &coefficients, stride, stream)
                    .map_err(|what| StorageError::Layer { layer: place.first_layer, what })?;
            }
            rest = after;
        }
        rest.fill(0);
        Ok(widths::lost(&energies, &widths))
    }

    fn write_head(&self, norms: &[u8], frame: &Frame, widths: &[u8], head: &mut [u8]) {
        let (body, crc) = head.split_at_mut(head.len() - CRC);
        let (to_norms, rest) = body.split_at_mut(norms.len());
        to_norms.copy_from_slice(norms);
        let (to_frame, to_widths) = rest.split_at_mut(self.frame_bytes());
        // A section with a basis has no frame of its own.
        if let Some((mean, scale)) = to_frame.split_last_chunk_mut() {
            for (to, x) in mean.as_chunks_mut().0.iter_mut().zip(&frame.mean) {
                *to = f16::from_f32(*x).to_le_bytes();
            }
            *scale = frame.scales[0][0].to_le_bytes();
        }
        widths::pack(widths, to_widths);
        crc.copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    }

    /// Reads the head of the section of `layer` from the start of `bytes`.
    pub(crate) fn parse(
        &self,
        layer: usize,
        bytes: &mut ByteReader<'a>,
    ) -> Result<SectionHead<'a>, StorageError> {
        let head = bytes.take(self.head())?;
        let mut rest = ByteReader::new(head, "chunk");
        let body = rest.take(head.len() - CRC)?;
        if crc32fast::hash(body).to_le_bytes() != rest.array::<CRC>()? {
            return Err(StorageError::chunk("damaged section (CRC-32 does not match)"));
        }
        let mut rest = ByteReader::new(body, "chunk");
        let norms = rest.take(self.tokens * self.layers() * self.norms())?;
        let frame = match self.basis {
            Some(basis) => Cow::Borrowed(basis.frame(layer)),
            None => Cow::Owned(self.own_frame(&mut rest)?),
        };
        let widths = widths::unpack(rest.rest(), self.runs())
            .ok_or_else(|| StorageError::chunk("widths above 5 bits, or bits behind the last width"))?;
        Ok(SectionHead { norms, frame, widths, head })
    }

    fn own_frame(&self, bytes: &mut ByteReader<'_>) -> Result<Frame, StorageError> {
        let mean = bytes.take(2 * self.shape.key_values())?;
        let mean: Vec<f32> = mean.as_chunks().0.iter().map(|x| f16::from_le_bytes(*x).to_f32()).collect();
        let key_scale = f32::from_bits(bytes.u32()?);
        if !key_scale.is_normal() || key_scale < 0.0 || mean.iter().any(|x| !x.is_finite()) {
            return Err(StorageError::chunk("a mean or scale of keys that is not a valid number"));
        }
        Ok(Frame { mean, scales: vec![[key_scale, Frame::own_value_scale(self.shape)]], columns: Vec::new() })
    }

    /// Bytes of the streams of at least `least` bits.
    pub(crate) fn stream_bytes(&self, widths: &[u8], least: u8) -> usize {
        let of = |width| {
            let runs = widths.iter().filter(|own| **own == width).count();
            streams::bytes(runs * self.run() * self.tokens, width)
        };
        streams::order().filter(|width| *width >= least).map(of).sum()
    }

    /// Decodes a section from its head and its streams of at least `least` bits.
    pub(crate) fn decode<T: Element>(
        &self,
        place: RowPlace<'_>,
        (head, least, streams): (&SectionHead<'_>, u8, &[u8]),
        (k, v): (&mut [T], &mut [T]),
    ) -> Result<(), String> {
        let (level, stride, run) = (place.level, self.stride(), self.run());
        let mut coefficients = Coefficients::new(&head.frame, self.tokens, stride);
        let mut rest = streams;
        for width in streams::order().filter(|width| *width >= least) {
            let runs = streams::runs(&head.widths, width);
            let bytes = streams::bytes(runs.len() * run * self.tokens, width);
            let (stream, after) = rest.split_at(bytes);
            if bytes > 0 {
                coefficients.add(level, width, (&runs, run), &streams::decode(level, width, stream)?);
            }
            rest = after;
        }
        if rest.iter().any(|byte| *byte != 0) {
            return Err("bytes behind the last stream".into());
        }
        let mut rows = coefficients.rows(level);
        let finite = place.put_together(
            &mut rows,
            head.norms,
            #[inline(always)]
            |row| head.frame.undo(row),
            k,
            v,
        );
        if finite { Ok(()) } else { Err("keys or values that are not finite, or too large".into()) }
    }
}

/// The head of a section: everything before its streams.
pub(crate) struct SectionHead<'a> {
    norms: &'a [u8],
    /// The frame of the basis, or of the section.
    frame: Cow<'a, Frame>,
    pub(crate) widths: Vec<u8>,
    /// All bytes of the head, as stored.
    pub(crate) head: &'a [u8],
}

/// The energy of each run of coefficients.
fn energies(coefficients: &[f32], stride: usize, run: usize) -> Vec<f64> {
    let mut energies = vec![0.0; stride / run];
    for row in coefficients.chunks_exact(stride) {
        for (energy, run) in energies.iter_mut().zip(row.chunks_exact(run)) {
            *energy += run.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        }
    }
    energies
}
