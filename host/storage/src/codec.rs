//! Encodes keys and values to chunks, and decodes them.

use std::sync::Arc;

use rayon::prelude::*;
use tqkv::error::CacheError;
use tqkv_simd::Level;

use crate::angles::Angles;
use crate::basis::{Basis, BasisId};
use crate::chunk::{ChunkHeader, Span};
use crate::element::Element;
use crate::error::StorageError;
use crate::layer::{SectionHead, SectionLayout};
use crate::locate::locate;
use crate::parse::ByteReader;
use crate::rows::RowPlace;
use crate::shape::Shape;

/// Bits per coded value. All bytes count but the header and the exact tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget(f32);

impl Budget {
    const MOST: f32 = 5.0;

    /// A budget of 0.5 to 5 bits per value.
    ///
    /// # Errors
    /// [`StorageError::Budget`] for any other number.
    pub fn new(bits: f32) -> Result<Self, StorageError> {
        if (0.5..=Self::MOST).contains(&bits) { Ok(Self(bits)) } else { Err(StorageError::Budget(bits)) }
    }

    /// Bits per coded value.
    pub const fn bits(self) -> f32 {
        self.0
    }
}

/// The head of a section, and its streams with the zeros after them.
type Section<'a> = (SectionHead<'a>, &'a [u8]);

/// Encodes and decodes chunks of one model's keys and values.
///
/// Sections run on the threads of rayon's pool. Each needs its basis, and the tokens of its layers in f32
/// three times.
///
/// Encoding gives the same bytes on every machine and for any number of threads, and decoding the same
/// numbers. Products with the basis are sums of bytes, which are exact. Encoding keeps each basis twice.
#[derive(Debug, Clone)]
pub struct StorageCodec {
    shape: Shape,
    basis: Option<Arc<Basis>>,
    /// The digest of the basis, or of the shape.
    frame: [u8; 32],
    level: Level,
}

impl StorageCodec {
    /// A codec with a basis, or without one.
    ///
    /// # Errors
    /// [`StorageError::Basis`] where the basis is of another shape; [`Basis::check`] compares the model. An
    /// error as well if `TQKV_LEVEL` forces a level that this machine does not have.
    pub fn new(shape: Shape, basis: Option<Arc<Basis>>) -> Result<Self, StorageError> {
        if let Some(why) = basis.as_ref().and_then(|basis| basis.shape().differs(&shape)) {
            return Err(StorageError::Basis(why));
        }
        tqkv::threads::start()?;
        let level = Level::detect().map_err(CacheError::Level)?;
        let frame = basis.as_ref().map_or_else(|| shape.digest(), |basis| basis.id().0);
        Ok(Self { shape, basis, frame, level })
    }

    /// The shape of the keys and values.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The basis, if any.
    pub fn basis(&self) -> Option<&Basis> {
        self.basis.as_deref()
    }

    /// [`StorageCodec::basis`], to be kept.
    pub(crate) fn basis_shared(&self) -> Option<Arc<Basis>> {
        self.basis.clone()
    }

    /// The basis that a chunk names. `None` where it was encoded without one.
    pub(crate) fn wanted(&self, chunk: &[u8]) -> Result<Option<BasisId>, StorageError> {
        let (header, _) = ChunkHeader::read(chunk, &self.shape)?;
        Ok(header.has_basis.then_some(BasisId(header.frame)))
    }

    fn layout(&self, span: &Span) -> SectionLayout<'_> {
        SectionLayout { shape: &self.shape, basis: self.basis(), tokens: span.coded() }
    }

    fn header<T: Element>(&self, budget: Budget, span: &Span) -> Result<ChunkHeader, StorageError> {
        span.check(&self.shape)?;
        self.check_layers(span)?;
        Ok(ChunkHeader {
            span: *span,
            dtype: T::DTYPE,
            has_basis: self.basis.is_some(),
            frame: self.frame,
            least: 1,
            section: self.layout(span).section(budget.bits()),
        })
    }

    /// Refuses a span that holds a part of the layers that share a basis.
    fn check_layers(&self, span: &Span) -> Result<(), StorageError> {
        let layers = self.layout(span).layers();
        if span.first_layer.is_multiple_of(layers) && span.layers.is_multiple_of(layers) {
            return Ok(());
        }
        Err(StorageError::Span(format!(
            "{} layers from layer {} on; expected multiples of {layers}",
            span.layers, span.first_layer
        )))
    }

    /// Bytes of a chunk of this span. They do not depend on the numbers in it.
    ///
    /// # Errors
    /// A span that does not fit the shape.
    pub fn encoded_bytes<T: Element>(&self, budget: Budget, span: &Span) -> Result<usize, StorageError> {
        let header = self.header::<T>(budget, span)?;
        Ok(header.bytes(&self.shape) + span.layers / self.layout(span).layers() * header.section)
    }

    /// Encodes keys `[layers, tokens, num_kv_heads, head_dim]`, after RoPE, and values likewise.
    ///
    /// # Errors
    /// A span or slices that do not fit the shape, and numbers that are not finite or too large for the
    /// basis.
    pub fn encode<T: Element>(
        &self,
        budget: Budget,
        span: &Span,
        k: &[T],
        v: &[T],
    ) -> Result<Vec<u8>, StorageError> {
        Ok(self.encode_measured(budget, span, k, v)?.0)
    }

    /// [`StorageCodec::encode`], and the mean share of a section's energy that is lost, as it is foreseen.
    pub(crate) fn encode_measured<T: Element>(
        &self,
        budget: Budget,
        span: &Span,
        k: &[T],
        v: &[T],
    ) -> Result<(Vec<u8>, f64), StorageError> {
        let header = self.header::<T>(budget, span)?;
        span.check_lengths(&self.shape, k.len(), v.len())?;
        let (layout, angles) = (self.layout(span), self.angles(span));
        let bytes = span.layers / layout.layers() * header.section;
        let mut out = Vec::with_capacity(header.bytes(&self.shape) + bytes);
        header.write(&self.shape, k, v, &mut out)?;
        let start = out.len();
        out.resize(start + bytes, 0);
        if header.section == 0 {
            return Ok((out, 0.0));
        }
        let [keys, values] = self.section_values(span, &layout);
        let sections = out[start..].par_chunks_exact_mut(header.section).enumerate();
        let lost = sections.map(|(i, section)| {
            let place = self.place(span, i, &angles, &layout);
            let of = |x: &'_ [T], values: usize| i * values..((i + 1) * values).min(x.len());
            layout.encode(place, (&k[of(k, keys)], &v[of(v, values)]), section)
        });
        let lost = lost.collect::<Result<Vec<f64>, _>>()?;
        Ok((out, lost.iter().sum::<f64>() / lost.len() as f64))
    }

    /// Numbers of keys and of values in one section.
    fn section_values(&self, span: &Span, layout: &SectionLayout<'_>) -> [usize; 2] {
        let rows = layout.layers() * span.tokens;
        [rows * self.shape.key_values(), rows * self.shape.value_values()]
    }

    /// The candidate that is most likely the position of the first token, for stores that do not keep
    /// positions. Encoding undoes RoPE for this position. A wrong position costs bits, not correctness.
    /// Without a basis there is nothing to compare with, and the result is the span's own position.
    ///
    /// # Errors
    /// A span or keys that do not fit the shape.
    pub fn locate<T: Element>(&self, span: &Span, k: &[T], candidates: &[u64]) -> Result<u64, StorageError> {
        span.check(&self.shape)?;
        let expected = span.layers * span.tokens * self.shape.key_values();
        if k.len() != expected {
            return Err(StorageError::Length { what: "keys", got: k.len(), expected });
        }
        Ok(self.basis().map_or(span.first_position, |basis| locate(self.level, basis, span, k, candidates)))
    }

    /// The tokens and layers that a chunk holds.
    ///
    /// # Errors
    /// The errors of [`StorageCodec::decode`], except damage after the header.
    pub fn span(&self, bytes: &[u8]) -> Result<Span, StorageError> {
        Ok(self.read_header(bytes)?.0.span)
    }

    fn read_header<'a>(&self, bytes: &'a [u8]) -> Result<(ChunkHeader, &'a [u8]), StorageError> {
        let (header, rest) = ChunkHeader::read(bytes, &self.shape)?;
        let names = |has_basis: bool, frame: [u8; 32]| match has_basis {
            true => BasisId(frame).to_string(),
            false => format!("none, for the shape {}", BasisId(frame)),
        };
        if (header.has_basis, header.frame) != (self.basis.is_some(), self.frame) {
            return Err(StorageError::OtherBasis {
                wanted: names(header.has_basis, header.frame),
                offered: names(self.basis.is_some(), self.frame),
            });
        }
        self.check_layers(&header.span).map_err(|error| StorageError::chunk(error.to_string()))?;
        Ok((header, rest))
    }

    /// Decodes a chunk into keys and values. [`StorageCodec::span`] gives their lengths.
    ///
    /// # Errors
    /// [`StorageError::OtherBasis`]; [`StorageError::Bytes`] for bytes that are no chunk, damaged or
    /// truncated; and slices of other lengths. After an error the contents of `k` and `v` are unspecified.
    pub fn decode<T: Element>(&self, bytes: &[u8], k: &mut [T], v: &mut [T]) -> Result<Span, StorageError> {
        let (header, rest) = self.read_header(bytes)?;
        let span = header.span;
        span.check_lengths(&self.shape, k.len(), v.len())?;
        let (layout, sections) = self.all_sections(&header, rest)?;
        header.read_exact(&self.shape, bytes, k, v)?;
        if span.coded() == 0 {
            return Ok(span);
        }
        let angles = self.angles(&span);
        let [keys, values] = self.section_values(&span, &layout);
        // Latent vectors have no values: each section gets an empty slice.
        let mut v = v.chunks_exact_mut(values.max(1));
        let targets: Vec<_> = k.chunks_exact_mut(keys).map(|k| (k, v.next().unwrap_or_default())).collect();
        targets.into_par_iter().zip(&sections).enumerate().try_for_each(
            |(i, (target, (head, streams)))| {
                let place = self.place(&span, i, &angles, &layout);
                layout
                    .decode(place, (head, header.least, streams), target)
                    .map_err(|why| StorageError::chunk(format!("layer {}: {why}", place.first_layer)))
            },
        )?;
        Ok(span)
    }

    /// The error of a chunk of these keys and values. It is the squared error of keys over their energy, plus
    /// the mean over tokens of the same of values. Keys want the same noise for every token, values noise in
    /// proportion.
    ///
    /// # Errors
    /// Those of [`StorageCodec::decode`].
    pub fn error<T: Element>(&self, bytes: &[u8], k: &[T], v: &[T]) -> Result<f64, StorageError> {
        let (mut k2, mut v2) = (vec![0.0f32; k.len()], vec![0.0f32; v.len()]);
        self.decode(bytes, &mut k2, &mut v2)?;
        Ok(relative(k, &k2, k.len()) + relative(v, &v2, self.shape.value_values()))
    }

    /// Bytes of the chunk at the start of `bytes`.
    ///
    /// # Errors
    /// The errors of [`StorageCodec::thin`].
    pub fn chunk_bytes(&self, bytes: &[u8]) -> Result<usize, StorageError> {
        let (header, rest) = self.read_header(bytes)?;
        Ok(bytes.len() - self.sections(&header, rest)?.2)
    }

    /// Bytes of the complete chunk that begins with these fields of a header.
    pub(crate) fn whole_bytes(&self, fields: &[u8]) -> Result<usize, StorageError> {
        let header = ChunkHeader::read_fields(&mut ByteReader::new(fields, "chunk"), &self.shape)?;
        let layout = self.layout(&header.span);
        if header.least > 1 || header.section > layout.section(Budget::MOST) {
            return Err(StorageError::chunk("not a whole chunk, or longer than one can be"));
        }
        Ok(header.bytes(&self.shape) + header.span.layers / layout.layers() * header.section)
    }

    /// The head and the streams of each section, and the bytes after them.
    fn sections<'a>(
        &'a self,
        header: &ChunkHeader,
        bytes: &'a [u8],
    ) -> Result<(SectionLayout<'a>, Vec<Section<'a>>, usize), StorageError> {
        let layout = self.layout(&header.span);
        let mut rest = ByteReader::new(bytes, "chunk");
        let mut sections = Vec::new();
        // A chunk of exact tokens alone has no sections.
        let layers = if header.span.coded() == 0 { 0 } else { header.span.layers };
        for layer in (0..layers).step_by(layout.layers()) {
            let head = layout.parse(header.span.first_layer + layer, &mut rest)?;
            let streams = layout.stream_bytes(&head.widths, header.least);
            let whole = header.section.checked_sub(head.head.len()).filter(|whole| *whole >= streams);
            let Some(whole) = whole else {
                return Err(StorageError::chunk("streams longer than their section"));
            };
            let streams = rest.take(if header.least == 1 { whole } else { streams })?;
            sections.push((head, streams));
        }
        Ok((layout, sections, rest.rest().len()))
    }

    /// The result of [`StorageCodec::sections`]. Bytes after the sections are an error.
    fn all_sections<'a>(
        &'a self,
        header: &ChunkHeader,
        bytes: &'a [u8],
    ) -> Result<(SectionLayout<'a>, Vec<Section<'a>>), StorageError> {
        match self.sections(header, bytes)? {
            (layout, sections, 0) => Ok((layout, sections)),
            (_, _, more) => Err(StorageError::chunk(format!("{more} bytes too many"))),
        }
    }

    /// The angles of the coded tokens, for each kind of RoPE.
    fn angles(&self, span: &Span) -> Vec<Angles> {
        let first = span.first_position + span.exact as u64;
        self.shape.ropes.iter().map(|rope| Angles::new(rope, first, span.coded())).collect()
    }

    fn place<'a>(
        &'a self,
        span: &Span,
        index: usize,
        angles: &'a [Angles],
        layout: &SectionLayout<'_>,
    ) -> RowPlace<'a> {
        let layers = layout.layers();
        RowPlace {
            level: self.level,
            shape: &self.shape,
            first_layer: span.first_layer + index * layers,
            layers,
            exact: span.exact,
            tokens: span.coded(),
            angles,
            norms: layout.norms(),
        }
    }

    /// The chunk without its streams of fewer than `least` bits. The result is smaller, and nothing is
    /// encoded again.
    ///
    /// # Errors
    /// A chunk that [`StorageCodec::decode`] refuses before it reads streams, or `least` outside 2 to 5.
    pub fn thin(&self, bytes: &[u8], least: u8) -> Result<Vec<u8>, StorageError> {
        let (header, rest) = self.read_header(bytes)?;
        if !(2..=5).contains(&least) || least < header.least {
            let have = header.least.max(2);
            return Err(StorageError::Span(format!(
                "streams of {least} bits and more; expected {have} to 5"
            )));
        }
        let (layout, sections) = self.all_sections(&header, rest)?;
        let thinner = ChunkHeader { least, ..header };
        let mut out = thinner.copied(&self.shape, bytes);
        for (head, streams) in sections {
            out.extend_from_slice(head.head);
            out.extend_from_slice(&streams[..layout.stream_bytes(&head.widths, least)]);
        }
        Ok(out)
    }
}

/// The mean over rows of `width` numbers of the squared error over the squared norm.
fn relative<T: Element>(exact: &[T], got: &[f32], width: usize) -> f64 {
    let row = |(exact, got): (&[T], &[f32])| {
        let (mut wrong, mut norm) = (0.0, f64::MIN_POSITIVE);
        for (exact, got) in exact.iter().map(|x| f64::from(x.to_f32())).zip(got) {
            wrong += (exact - f64::from(*got)).powi(2);
            norm += exact * exact;
        }
        wrong / norm
    };
    // Latent vectors have no values.
    let width = width.max(1);
    let rows = (exact.len() / width).max(1) as f64;
    exact.chunks_exact(width).zip(got.chunks_exact(width)).map(row).sum::<f64>() / rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn::Learner;
    use crate::shape::Join;
    use crate::{Rope, RopePairing};

    #[test]
    fn every_level_gives_the_same_bytes_and_numbers() -> Result<(), StorageError> {
        let rope = Rope::new(0, RopePairing::Half, vec![1.0, 0.25, 0.0625]);
        let shape = Shape::new(2, 2, 32, 48, rope)?;
        let mut random = fastrand::Rng::with_seed(5);
        // Neighbours are alike, so that some directions have little energy.
        let mut numbers = |count: usize| {
            let mut last = 0.0;
            let mut next = || {
                last = 0.8 * last + random.f32() - 0.5;
                last
            };
            (0..count).map(|_| next()).collect::<Vec<f32>>()
        };
        let (k, v) = (numbers(2 * 203 * 64), numbers(2 * 203 * 96));
        for join in [Some(Join::Joint), Some(Join::Apart), Some(Join::Layers(2)), None] {
            let basis = match join {
                None => None,
                Some(join) => {
                    let mut learner = Learner::new(shape.clone(), join)?;
                    (0..3).try_for_each(|_| learner.learn(&k, &v, 0))?;
                    Some(Arc::new(learner.freeze("levels")?))
                }
            };
            let mut codec = StorageCodec::new(shape.clone(), basis)?;
            let mut found = Vec::new();
            for level in Level::available() {
                codec.level = level;
                let bytes = codec.encode(Budget::new(2.5)?, &Span::of(&shape, 0, 203), &k, &v)?;
                let (mut k2, mut v2) = (vec![0.0; k.len()], vec![0.0; v.len()]);
                codec.decode(&bytes, &mut k2, &mut v2)?;
                let bits: Vec<u32> = k2.iter().chain(&v2).map(|x| x.to_bits()).collect();
                found.push((bytes, bits));
            }
            assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "{join:?}");
        }
        Ok(())
    }
}
