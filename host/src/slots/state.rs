//! Rows as the bytes of a saved state, with their codes as they are.
//!
//! A host saves rows in a type of its own, and gives the bytes back in runs of rows, maybe divided otherwise and for other
//! slots. Packed rows fill the bytes of as many rows of such a type. They begin with a mark, and hold what the rows
//! are in the stream: codes with their means, factors, tiers and turns, and exact rows. A type of few bits has no room for
//! the exact rows of a short text. These are then coded as they will be when they leave, the sinks last.
//!
//! Unpacked rows go through a stream of their own, from which they are copied as [`SlotStore::copy_rows`] copies between
//! streams. So codes stay as they are where the stream can have their means and factors, and are encoded again elsewhere.

use super::exact_rows::RowPlace;
use super::format::{SlotFormat, StoreSide};
use super::packed::{self, RowKind, RowRun};
use super::store::SlotStore;
use super::stream::{SlotPlace, Stream};
use crate::cache::chunks::{Parser, put, refused};
use crate::cache::life::{BATCH, PAGE_TOKENS};
use crate::error::CacheError;
use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use std::ops::Range;
use tqkv_core::AnyCodec;

/// The first bytes of packed rows. Bytes of a type of numbers begin so once in 2^64 rows.
const MARK: [u8; 8] = *b"tqkvrow1";

/// Bytes in front of the payload: the mark, the numbers of rows and of bytes of the payload, and its CRC-32.
const HEAD: usize = MARK.len() + 3 * size_of::<u32>();

/// Which exact rows stay exact in packed rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    All,
    Sinks,
    None,
}

/// Number of rows that bytes of packed rows are of, as far as they are there: `None` for other bytes, and 0 if their head
/// is not complete.
pub fn packed_rows(bytes: &[u8]) -> Option<usize> {
    bytes.starts_with(&MARK).then(|| {
        let rows = bytes.get(MARK.len()..HEAD).and_then(|head| head.first_chunk());
        rows.map_or(0, |rows| u32::from_le_bytes(*rows) as usize)
    })
}

impl SlotStore {
    /// Fills the bytes of `count` rows, from row `first` on, with packed rows. False if they do not fit or the stream has
    /// no codes yet; the bytes are then as they were.
    pub fn pack(&self, first: usize, count: usize, bytes: &mut [u8]) -> bool {
        let (stream, slot) = (first / self.slots(), first % self.slots());
        let (Some(format), Some(stream)) = (self.format(), self.stream(stream)) else { return false };
        if format.tiers() == 0 || stream.basis().is_none() || slot + count > self.slots() {
            return false;
        }
        let room = bytes.len().saturating_sub(HEAD);
        let payload = [Kept::All, Kept::Sinks, Kept::None].into_iter().find_map(|kept| {
            let mut payload = Vec::with_capacity(room);
            put(&mut payload, &[self.identity(format)]);
            Packer { stream, format, kept }.put(slot..slot + count, room, &mut payload)?;
            (payload.len() <= room).then_some(payload)
        });
        let Some(payload) = payload else { return false };
        let mut head = MARK.to_vec();
        put(&mut head, &[count as u32, payload.len() as u32, crc32fast::hash(&payload)]);
        bytes.fill(0);
        bytes[..HEAD].copy_from_slice(&head);
        bytes[HEAD..HEAD + payload.len()].copy_from_slice(&payload);
        true
    }

    /// Writes packed rows to these rows, counted over all streams, of one stream.
    ///
    /// # Errors
    /// The bytes are not those of as many rows, or of a cache with other codes. Nothing is written then.
    pub fn unpack(&mut self, rows: &[usize], bytes: &[u8]) -> Result<(), CacheError> {
        let Some(format) = self.format() else { return refused("the cache has no codes yet") };
        let (head, payload) = bytes.split_at_checked(HEAD).unwrap_or_default();
        let mut head = Parser::new(head.get(MARK.len()..).unwrap_or_default());
        let head = head.values::<u32>(3)?;
        let Some(payload) = payload.get(..head[1] as usize) else { return refused("cut short") };
        if head[0] as usize != rows.len() || head[2] != crc32fast::hash(payload) {
            return refused("damaged (the number of rows or the CRC-32 does not match)");
        }
        let mut parser = Parser::new(payload);
        if parser.values::<u32>(1)?[0] != self.identity(format) {
            return refused("of a cache with other codecs, another seed or other heads");
        }
        let of = Unpacked::read(self, format, rows.len(), &mut parser)?;
        let stream = rows.first().map_or(0, |row| row / self.slots());
        if rows.iter().any(|row| row / self.slots() != stream) {
            return refused("rows of several streams");
        }
        self.forget(rows);
        self.take_rows(stream, &of.stream, rows);
        self.count_runs(stream, &of, rows);
        Ok(())
    }

    /// Makes rows that cannot be read, after which a query that sees one of them gets no finite number.
    pub fn refuse(&mut self, rows: &[usize]) {
        let row = vec![f16::NAN; self.width()];
        rows.iter().for_each(|at| self.write(*at, &row));
    }

    /// What codes depend on besides means, factors and turns.
    fn identity(&self, format: &SlotFormat) -> u32 {
        let codecs = (0..format.tiers()).filter_map(|tier| format.pages(tier));
        let names: Vec<&str> = codecs.map(|pages| pages.codec().id().name()).collect();
        let side = if self.side() == StoreSide::Keys { "keys" } else { "values" };
        let text = format!("{side} {} {} {} {}", self.width(), format.dim(), self.seed(), names.join(","));
        crc32fast::hash(text.as_bytes())
    }

    /// Gives a stream that had other tokens the means by number of those that came back, and counts codes as its own.
    fn count_runs(&mut self, stream: usize, of: &Unpacked, rows: &[usize]) {
        let slots = self.slots();
        let (streams, Some(format)) = self.streams_mut() else { return };
        let (to, mut first) = (&mut streams[stream], 0);
        for run in &of.runs {
            let within: Vec<usize> = (first..first + run.rows).collect();
            let slot = rows[first] % slots;
            first += run.rows;
            // Sums are of codes of the first tier.
            if !matches!(run.kind, RowKind::Code { tier: 0, .. }) || to.place(slot) != SlotPlace::Coded(0) {
                continue;
            }
            let blocks = of.stream.all_blocks((format, 0), &within);
            let basis = to.pages.bases.of(slot);
            to.means.count(format, basis, run.rows, &blocks);
        }
        to.adopt_numbers(&of.stream);
    }
}

/// Writes rows of a stream.
struct Packer<'a> {
    stream: &'a Stream,
    format: &'a SlotFormat,
    kept: Kept,
}

impl Packer<'_> {
    /// Appends rows; none if one cannot be written. Gives up where they take more than `room` bytes.
    fn put(&self, slots: Range<usize>, room: usize, bytes: &mut Vec<u8>) -> Option<()> {
        let mut runs = self.runs(slots.clone())?;
        let (mut bases, mut turns) = (self.stream.means.numbers().to_vec(), Vec::new());
        for run in &runs {
            if let RowKind::Code { basis, turn, .. } = run.kind {
                bases.push(basis);
                turns.push(turn);
            }
        }
        for list in [&mut bases, &mut turns] {
            list.sort_unstable();
            list.dedup();
        }
        turns.retain(|turn| *turn > 0);
        packed::put_means(&self.stream.means, &bases, bytes)?;
        packed::put_maps(&self.stream.maps, bytes)?;
        packed::put_turns(&self.stream.pages.turns, &turns, bytes)?;
        put(bytes, &[runs.len() as u32]);
        let held: Vec<RowKind> = runs.iter().map(|run| run.kind).collect();
        for run in &mut runs {
            if let RowKind::Code { basis, turn, .. } = &mut run.kind {
                *basis = bases.iter().position(|used| used == basis).unwrap_or(0) as u8;
                *turn = turns.iter().position(|used| used == turn).map_or(0, |at| at as u8 + 1);
            }
            run.put(bytes);
        }
        let mut first = slots.start;
        for (run, kind) in runs.iter().zip(held) {
            self.put_rows((first..first + run.rows).collect(), kind, bytes)?;
            (bytes.len() <= room).then_some(())?;
            first += run.rows;
        }
        Some(())
    }

    /// The runs of rows, none of which is in two pages.
    fn runs(&self, slots: Range<usize>) -> Option<Vec<RowRun>> {
        let mut runs: Vec<(usize, RowRun)> = Vec::new();
        for slot in slots {
            let kind = self.kind(slot)?;
            let goes_on = |(first, run): &(usize, RowRun)| match (run.kind, kind) {
                (RowKind::Waiting { phase, mean }, RowKind::Waiting { phase: now, mean: of_now }) => {
                    mean == of_now && (usize::from(phase) + slot - first) % BATCH == usize::from(now)
                }
                (kind, now) => kind == now,
            };
            match runs.last_mut().filter(|last| slot % PAGE_TOKENS > 0 && goes_on(last)) {
                Some((_, run)) => run.rows += 1,
                None => runs.push((slot, RowRun { kind, rows: 1 })),
            }
        }
        Some(runs.into_iter().map(|(_, run)| run).collect())
    }

    /// What the row of a slot is in the state. None if it has to become a code and cannot.
    fn kind(&self, slot: usize) -> Option<RowKind> {
        let stream = self.stream;
        let at = match stream.place(slot) {
            SlotPlace::Empty => return Some(RowKind::Empty),
            SlotPlace::Coded(tier) => {
                let (basis, turn) = (stream.pages.bases.of(slot), stream.pages.turns.of(slot));
                return Some(RowKind::Code { tier: tier as u8, basis: basis as u8, turn: turn as u8 });
            }
            SlotPlace::Exact(at) => at,
        };
        let (place, stays) = (stream.exact.place_of(at), stream.exact.stays(at));
        match self.kept {
            Kept::All | Kept::Sinks if stays => Some(RowKind::Sink),
            Kept::All => Some(RowKind::Waiting { phase: place.phase, mean: place.mean }),
            _ => {
                let basis = stream.means.of_number(place.mean.into()) as u8;
                let turn = stream.pages.turns.of_new() as u8;
                stream.exact.not_finite(at..at + 1).is_empty().then_some(RowKind::Code {
                    tier: 0,
                    basis,
                    turn,
                })
            }
        }
    }

    /// Appends the rows of a run.
    fn put_rows(&self, slots: Vec<usize>, kind: RowKind, bytes: &mut Vec<u8>) -> Option<()> {
        match kind {
            RowKind::Empty => {}
            RowKind::Sink | RowKind::Waiting { .. } => {
                let mut row = vec![f16::ZERO; self.stream.width()];
                for slot in slots {
                    self.stream.exact.read(self.stream.exact.row_of(slot)?, &mut row);
                    put(bytes, row.reinterpret_cast());
                }
            }
            RowKind::Code { tier, basis, turn } => {
                let is_held = |slot: &usize| matches!(self.stream.place(*slot), SlotPlace::Coded(_));
                for slots in slots.chunk_by(|a, b| is_held(a) == is_held(b)) {
                    let blocks = if is_held(&slots[0]) {
                        self.stream.all_blocks((self.format, tier.into()), slots)
                    } else {
                        self.stream.encode(self.format, slots, (basis.into(), turn.into()))?
                    };
                    // By row, so that rows that are codes already and those that become some may mix.
                    let step = blocks.first()?.len() / slots.len();
                    for at in 0..slots.len() {
                        blocks.iter().for_each(|of| bytes.extend_from_slice(&of[at * step..(at + 1) * step]));
                    }
                }
            }
        }
        Some(())
    }
}

/// Packed rows as slots of a stream of their own, from 0 on.
struct Unpacked {
    stream: Stream,
    runs: Vec<RowRun>,
}

impl Unpacked {
    fn read(
        store: &SlotStore,
        format: &SlotFormat,
        rows: usize,
        parser: &mut Parser<'_>,
    ) -> Result<Self, CacheError> {
        let (dim, heads) = (format.dim(), store.width() / format.dim());
        let means = packed::take_means(parser, heads, dim)?;
        let maps = packed::take_maps(parser, heads, dim)?;
        let turns = packed::take_turns(parser, dim)?;
        let (bases, turned) = (means.len(), turns.count());
        let mut stream = store.stream_for(rows, means, maps);
        stream.pages.turns = turns;
        let count = parser.values::<u32>(1)?[0];
        let runs: Vec<RowRun> = (0..count).map(|_| RowRun::take(parser)).collect::<Result<_, _>>()?;
        if runs.iter().map(|run| run.rows).sum::<usize>() != rows {
            return refused("runs of another number of rows");
        }
        let mut first = 0;
        for run in &runs {
            let slots: Vec<usize> = (first..first + run.rows).collect();
            first += run.rows;
            match run.kind {
                RowKind::Empty => {}
                RowKind::Sink => read_exact(&mut stream, &slots, parser, |_| None)?,
                RowKind::Waiting { phase, mean } => read_exact(&mut stream, &slots, parser, |at| {
                    Some(RowPlace { phase: ((usize::from(phase) + at) % BATCH) as u8, mean })
                })?,
                RowKind::Code { tier, basis, turn } => {
                    let (tier, place) = (usize::from(tier), (usize::from(basis), usize::from(turn)));
                    let codec = format.pages(tier).map(|pages| *pages.codec());
                    let Some(codec) = codec.filter(|_| place.0 < bases && place.1 < turned) else {
                        return refused("codes of a tier, a mean or a shift that is not there");
                    };
                    let blocks = read_blocks(&codec, format, heads, slots.len(), parser)?;
                    stream.put((format, tier), &slots, place, &blocks, &[0]);
                }
            }
        }
        parser.end()?;
        Ok(Self { stream, runs })
    }
}

/// Reads exact rows.
fn read_exact(
    stream: &mut Stream,
    slots: &[usize],
    parser: &mut Parser<'_>,
    place: impl Fn(usize) -> Option<RowPlace>,
) -> Result<(), CacheError> {
    for (at, slot) in slots.iter().enumerate() {
        let row = parser.values::<u16>(stream.width())?;
        stream.write(*slot, row.reinterpret_cast(), place(at));
    }
    Ok(())
}

/// Reads codes, which lie by rows, as those of each head.
fn read_blocks(
    codec: &AnyCodec,
    format: &SlotFormat,
    heads: usize,
    rows: usize,
    parser: &mut Parser<'_>,
) -> Result<Vec<Vec<u8>>, CacheError> {
    let step = codec.block_bytes();
    let bytes = parser.bytes(rows * heads, step)?;
    let mut values = vec![0.0; rows * heads * codec.dim()];
    if tqkv_simd::codec::decode(format.level, codec, bytes, &mut values).is_err() {
        return refused("a block whose scale is not finite");
    }
    let of = |head: usize| bytes.chunks_exact(step).skip(head).step_by(heads).flatten().copied().collect();
    Ok((0..heads).map(of).collect())
}
