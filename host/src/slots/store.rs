//! The keys or the values of one layer, as rows of f16, stream by stream.

use super::exact_rows::RowPlace;
use super::format::{STEPS, SlotFormat, StoreSide};
use super::maps::{RopeLayout, StreamMaps};
use super::means::StreamMeans;
use super::rule::{QueryMask, QueryRule};
use super::stream::Stream;
use crate::cache::life::{BATCH, PAGE_TOKENS, cold_age};
use crate::cache::mean_rule::mean_number;
use crate::cache::spec::{CacheSpec, Centring, Cold, KeyMap};
use crate::cache::vectors::Floats;
use half::f16;
use half::slice::HalfBitsSliceExt;
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::Level;
use tqkv_simd::page::Line;

/// Upper bounds of what an exact row and a page of slots take besides their values and codes.
const ROW_TABLES: usize = 32;
const PAGE_TABLES: usize = 64;

/// Most bytes of a page of the system. Codes take full ones.
const SYSTEM_PAGE: usize = 4096;

/// What a store takes from a spec.
#[derive(Clone, Debug)]
struct StorePolicy {
    hot: usize,
    sinks: usize,
    centring: Centring,
    key_map: KeyMap,
    options: Options,
    level: Level,
    /// Codecs of colder tiers, with the number of newer writes from which pages are there.
    cold: Vec<(usize, CodecId)>,
}

impl StorePolicy {
    fn of(side: StoreSide, spec: &CacheSpec) -> Self {
        let cold = |(after, cold): &(usize, Cold)| match (cold, side) {
            (Cold::Demote { key: id, .. }, StoreSide::Keys)
            | (Cold::Demote { value: id, .. }, StoreSide::Values) => {
                let id = if spec.key_map == KeyMap::Off { id.of_one_width() } else { *id };
                Some((cold_age(*after, spec.hot), id))
            }
            (Cold::Spill(_), _) => None,
        };
        Self {
            cold: spec.cold.iter().filter_map(cold).collect(),
            hot: spec.hot,
            sinks: spec.sinks,
            centring: spec.centring,
            key_map: spec.key_map,
            options: spec.options,
            level: level(spec),
        }
    }

    /// The format of rows of `width` values in heads of `dim`; none if `width` is no multiple or the codec lacks that
    /// head dim.
    fn format(&self, side: StoreSide, id: CodecId, width: usize, dim: usize) -> Option<SlotFormat> {
        let divides = dim > 0 && width.is_multiple_of(dim);
        divides.then(|| SlotFormat::new((id, &self.cold), dim, side, self.options, self.level)).flatten()
    }
}

/// The instruction set of a spec, or the fastest of the machine.
pub(super) fn level(spec: &CacheSpec) -> Level {
    spec.level.unwrap_or_else(|| Level::detect().unwrap_or_else(|_| Level::fastest()))
}

/// Keys or values of one layer. A row has the vectors of all its KV heads.
#[derive(Clone, Debug)]
pub struct SlotStore {
    side: StoreSide,
    policy: StorePolicy,
    /// Values per row.
    width: usize,
    /// Slots per stream.
    slots: usize,
    streams: Vec<Stream>,
    format: Option<SlotFormat>,
    /// How RoPE turned the keys.
    turn: RopeLayout,
    /// Bytes per slot that the rows of this side may take; none for any number.
    limit: Option<usize>,
}

impl SlotStore {
    /// An empty store of `streams` streams with `slots` rows each; a row has `width` values. The spec has the
    /// policy: sinks, exact window, centring, map and options of the codecs.
    pub fn new(side: StoreSide, spec: &CacheSpec, width: usize, slots: usize, streams: usize) -> Self {
        let (policy, turn) = (StorePolicy::of(side, spec), RopeLayout::default());
        let mut store =
            Self { side, policy, width, slots, streams: Vec::new(), format: None, turn, limit: None };
        store.streams = vec![store.empty(); streams];
        store
    }

    fn empty(&self) -> Stream {
        let mut stream = Stream::new((self.width, self.slots), self.policy.hot);
        if self.limit.is_some() {
            stream.pages.grow();
        }
        if let Some(format) = &self.format {
            stream.divide(format.dim, self.means(format), self.maps(format));
        }
        stream.limit_means(self.room_for_means());
        stream
    }

    /// Bytes that the means of a stream may take, so that the codes of all slots fit into the limit with them.
    fn room_for_means(&self) -> usize {
        let (Some(limit), Some(format)) = (self.limit, &self.format) else { return usize::MAX };
        let pages = self.slots.div_ceil(PAGE_TOKENS);
        let codes = pages * self.width / format.dim * format.lines(0)[STEPS - 1] * size_of::<Line>();
        let rows = (self.policy.sinks + BATCH) * (self.width * size_of::<f16>() + ROW_TABLES);
        let tables = pages * PAGE_TABLES + 2 * SYSTEM_PAGE;
        (limit * self.slots).saturating_sub(codes + rows + tables)
    }

    /// The means of vectors, to be learnt.
    fn means(&self, format: &SlotFormat) -> StreamMeans {
        let means = |codec: &AnyCodec| StreamMeans::learning(self.side, self.policy.centring, codec.id());
        format.codec().map_or(StreamMeans::Off, means)
    }

    /// The maps that vectors go through. The keys of the mean decide some of them.
    fn maps(&self, format: &SlotFormat) -> StreamMaps {
        if self.side != StoreSide::Keys {
            return StreamMaps::Off;
        }
        match StreamMaps::new(self.policy.key_map, format, self.width / format.dim) {
            StreamMaps::OfKeys if self.policy.centring == Centring::Off => StreamMaps::Off,
            maps => maps,
        }
    }

    /// Drops maps that keys would get by themselves, because these are values as well.
    pub(super) fn hold_latents(&mut self) {
        self.streams.iter_mut().for_each(|stream| stream.maps.drop_of_keys());
    }

    /// Says how RoPE turned the keys. Maps that are there stay.
    pub fn set_turn(&mut self, turn: RopeLayout) {
        self.turn = turn;
    }

    /// Limits the bytes of each stream to this number per slot, for both sides of a layer together: rows are
    /// encoded before they are `hot` writes old where the stream would take more. Each side has a limit then.
    /// Few slots cannot be held in so little: the codes of all slots, and the tables, are the least.
    pub fn set_limit(&mut self, bytes: usize) {
        self.limit = Some(bytes);
        let room = self.room_for_means();
        self.streams.iter_mut().for_each(|stream| {
            stream.pages.grow();
            stream.limit_means(room);
        });
    }

    /// True if a stream learns maps from the queries that attend to it.
    pub fn is_learning(&self, stream: usize) -> bool {
        self.streams.get(stream).is_some_and(Stream::is_learning)
    }

    /// Shows queries (`[n, dim]`) of one head to a stream that learns maps.
    pub fn show(
        &mut self,
        (stream, head): (usize, usize),
        rule: &QueryRule,
        asked: &[QueryMask<'_>],
        queries: &[f32],
    ) {
        if let (Some(stream), Some(format)) = (self.streams.get_mut(stream), &self.format) {
            stream.show((format.level, head), rule, asked, queries);
        }
    }

    /// Divides rows into heads of `dim` values, to be encoded with codec `id`, unless they are divided
    /// already.
    ///
    /// Returns true if rows are then in heads of `dim`; false if codec `id` lacks that head dim.
    pub fn divide(&mut self, dim: usize, id: CodecId) -> bool {
        if let Some(format) = &self.format {
            return format.dim == dim;
        }
        let Some(format) = self.policy.format(self.side, id, self.width, dim) else { return false };
        let (means, maps) = (self.means(&format), self.maps(&format));
        self.streams.iter_mut().for_each(|stream| stream.divide(dim, means.clone(), maps.clone()));
        self.format = Some(format);
        let room = self.room_for_means();
        self.streams.iter_mut().for_each(|stream| stream.limit_means(room));
        true
    }

    /// The format of rows of `width` values in heads of `dim`; none if `width` is no multiple or the codec
    /// lacks that head dim.
    pub fn format_of(
        side: StoreSide,
        id: CodecId,
        spec: &CacheSpec,
        width: usize,
        dim: usize,
    ) -> Option<SlotFormat> {
        StorePolicy::of(side, spec).format(side, id, width, dim)
    }

    /// The format of the heads; none before [`SlotStore::divide`].
    pub fn format(&self) -> Option<&SlotFormat> {
        self.format.as_ref()
    }

    /// Keys or values.
    pub fn side(&self) -> StoreSide {
        self.side
    }

    /// Values per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Slots per stream.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Number of rows in all streams.
    pub fn rows(&self) -> usize {
        self.slots * self.streams.len()
    }

    /// Stream `stream`; none past the last.
    pub fn stream(&self, stream: usize) -> Option<&Stream> {
        self.streams.get(stream)
    }

    /// The streams, and the format of their heads.
    pub(super) fn streams_mut(&mut self) -> (&mut [Stream], Option<&SlotFormat>) {
        (&mut self.streams, self.format.as_ref())
    }

    /// Bytes held.
    pub fn held_bytes(&self) -> usize {
        self.streams.iter().map(Stream::held_bytes).sum()
    }

    /// Empties all streams; the division into heads stays.
    pub fn clear(&mut self) {
        let empty = self.empty();
        self.streams.fill(empty);
    }

    /// Writes row `row`, counted over all streams, for a writer that knows no positions: the sinks are then the
    /// first slots of a stream. A row past the end is ignored.
    pub fn write(&mut self, row: usize, values: &[f16]) {
        self.write_at(row, row % self.slots, values);
    }

    /// Writes the row of a token at a position of its sequence; the first ones are sinks.
    fn write_at(&mut self, row: usize, position: usize, values: &[f16]) {
        let place = (position >= self.policy.sinks).then(|| self.place(position));
        self.write_with(row, place, values);
    }

    /// Writes row `row`, counted over all streams, which stays exact for good if it is a sink. The positions of others
    /// count as those of their slots. A row past the end is ignored.
    pub fn write_as(&mut self, row: usize, is_sink: bool, values: &[f16]) {
        let place = (!is_sink).then(|| self.place(row % self.slots));
        self.write_with(row, place, values);
    }

    fn write_with(&mut self, row: usize, place: Option<RowPlace>, values: &[f16]) {
        if let Some(stream) = self.streams.get_mut(row / self.slots) {
            stream.write(row % self.slots, values, place);
        }
    }

    /// The place of a token in its sequence. Those that leave together begin with the first that can.
    fn place(&self, position: usize) -> RowPlace {
        let phase = (position % BATCH + BATCH - self.policy.sinks % BATCH) % BATCH;
        let page = position.saturating_sub(self.policy.sinks) / PAGE_TOKENS;
        RowPlace { phase: phase as u8, mean: mean_number(page) as u8 }
    }

    /// Number of first positions of each sequence that are sinks.
    pub fn sinks(&self) -> usize {
        self.policy.sinks
    }

    /// Writes tokens of any type to these rows, counted over all streams.
    pub(super) fn write_rows(&mut self, rows: &[usize], positions: &[usize], values: Floats<'_>) {
        let dim = self.format.as_ref().map_or(self.width, |format| format.dim);
        let mut bits = vec![0; self.width];
        for (i, (&row, &position)) in rows.iter().zip(positions).enumerate() {
            for (head, bits) in bits.chunks_exact_mut(dim).enumerate() {
                let at = i * self.width + head * dim;
                values.part(at, at + dim).narrow(self.policy.level, bits);
            }
            self.write_at(row, position, bits.reinterpret_cast());
        }
    }

    /// Copies rows, counted over all streams: `from[i]` to `to[i]`, in that order.
    pub(super) fn copy_rows(&mut self, from: &[usize], to: &[usize]) {
        let slots = self.slots;
        let split = |row: usize| (row / slots, row % slots);
        for (&from, &to) in from.iter().zip(to) {
            let ((from, slot), (to, target)) = (split(from), split(to));
            let format = self.format.as_ref();
            if from != to
                && self.streams[to].is_empty()
                && let Some(basis) = self.streams[from].basis()
            {
                self.streams[to].set_basis(basis);
            }
            let place = match self.streams.get_disjoint_mut([from, to]) {
                Ok([from, to]) => to.place_for(from, slot),
                Err(_) => {
                    Some((self.streams[to].pages.bases.of(slot), self.streams[to].pages.turns.of(slot)))
                }
            };
            let content = self.streams[from].take_copy(format, slot, place.is_some());
            self.streams[to].put_copy(format, target, content, place.unwrap_or_default());
        }
        self.release(to);
    }

    /// Copies the slots of a stream that is none of this store to these rows of a stream. One without codes takes over
    /// the means and maps.
    pub(super) fn take_rows(&mut self, stream: usize, from: &Stream, rows: &[usize]) {
        let (format, to) = (self.format.as_ref(), &mut self.streams[stream]);
        if let (None, Some(basis)) = (to.basis().filter(|_| !to.is_empty()), from.basis()) {
            to.set_basis(basis);
        }
        for (slot, row) in rows.iter().enumerate() {
            let place = to.place_for(from, slot);
            let content = from.take_copy(format, slot, place.is_some());
            to.put_copy(format, row % self.slots, content, place.unwrap_or_default());
        }
    }

    /// An empty stream of so many slots, with means and maps that are known.
    pub(super) fn stream_for(&self, slots: usize, means: StreamMeans, maps: StreamMaps) -> Stream {
        let mut stream = Stream::new((self.width, slots), self.policy.hot);
        if let Some(format) = &self.format {
            stream.divide(format.dim, means, maps);
        }
        stream
    }

    /// Seed of the rotation.
    pub(super) fn seed(&self) -> u64 {
        self.policy.options.seed
    }

    /// Empties rows, counted over all streams.
    pub(super) fn forget(&mut self, rows: &[usize]) {
        for &row in rows {
            self.streams[row / self.slots].forget(row % self.slots);
        }
        self.release(rows);
    }

    /// Frees the memory that some rows have left, counted over all streams, if they are empty now. A stream without
    /// rows starts anew.
    fn release(&mut self, rows: &[usize]) {
        let mut streams: Vec<usize> = rows.iter().map(|row| row / self.slots).collect();
        streams.sort_unstable();
        streams.dedup();
        for stream in streams {
            if self.streams[stream].is_empty() {
                self.streams[stream] = self.empty();
            } else {
                self.streams[stream].release();
            }
        }
    }

    /// Brings the exact rows into the order in which attention sums them. Costs nothing where they lie in it already.
    pub(super) fn settle(&mut self) {
        self.streams.iter_mut().for_each(|stream| stream.exact.settle());
    }

    /// Writes rows that [`SlotStore::read`] gave to these rows. A row that already reads back as these values
    /// stays as it is.
    pub fn restore(&mut self, rows: &[usize], positions: &[usize], values: &[f16]) {
        let mut held = vec![f16::ZERO; self.width];
        let places = rows.iter().zip(positions);
        for ((&row, &position), values) in places.zip(values.chunks_exact(self.width)) {
            self.read(row, &mut held);
            if held.iter().zip(values).any(|(held, x)| held.to_bits() != x.to_bits()) {
                self.write_at(row, position, values);
            }
        }
        self.cool_restored();
    }

    /// Encodes rows that are older than the newest writes.
    pub fn cool(&mut self) {
        self.cool_rows(false);
    }

    /// Same as [`SlotStore::cool`]. Rows may be decoded codes, which then become the same codes again in a stream
    /// that has none.
    pub fn cool_restored(&mut self) {
        self.cool_rows(true);
    }

    fn cool_rows(&mut self, is_restored: bool) {
        let Some(format) = &self.format else { return };
        let turn = self.turn;
        self.streams.iter_mut().for_each(|stream| stream.cool(format, turn, is_restored));
    }

    /// Replaces stream `to` by a copy of stream `from`, codes included.
    pub fn copy_stream(&mut self, from: usize, to: usize) {
        if from < self.streams.len() && to < self.streams.len() {
            self.streams[to] = self.streams[from].clone();
        }
    }

    /// Reads rows from `first` on, counted over all streams; `out` is `[n, width]`.
    pub fn read(&self, first: usize, out: &mut [f16]) {
        let mut row = first;
        let mut rest = out;
        while !rest.is_empty() {
            let (stream, slot) = (row / self.slots, row % self.slots);
            let count = (self.slots - slot).min(rest.len() / self.width).max(1);
            let (now, later) = rest.split_at_mut((count * self.width).min(rest.len()));
            match self.streams.get(stream) {
                Some(stream) => stream.read(self.format.as_ref(), slot, now),
                None => now.fill(f16::ZERO),
            }
            row += count;
            rest = later;
        }
    }
}

/// Encodes rows of both sides of a layer that are older than the newest writes, and younger ones of streams that
/// would take more than their limit.
pub(super) fn cool(keys: &mut SlotStore, values: &mut SlotStore) {
    keys.cool();
    values.cool();
    let limits = keys.limit.zip(values.limit);
    let (Some((of_keys, of_values)), Some(first), Some(second)) = (limits, &keys.format, &values.format)
    else {
        return;
    };
    let limit = (of_keys + of_values) * keys.slots;
    for (keys, values) in keys.streams.iter_mut().zip(&mut values.streams) {
        // Both sides go on alike, because attention is faster where a slot has the same state in both.
        while keys.held_bytes() + values.held_bytes() > limit
            && keys.leave_early(first) + values.leave_early(second) > 0
        {}
    }
}
