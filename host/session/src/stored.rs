//! Keys and values of a state in a basis of the storage tier.
//!
//! A state has keys after RoPE. The basis says how RoPE turned them, and the state has the positions, so a
//! chunk is coded without it. A foreign basis would cost precision. So the first chunk is tried, and the
//! state is refused where the basis gains nothing.

use std::io::{Read, Seek, Write};
use std::ops::Range;

use tqkv_simd::Level;
use tqkv_storage::{BasisId, Budget, Span, StorageCodec, StorageError};

use crate::based::{Based, Piece, Set, SetPlan, pieces};
use crate::cache::{Cache, CellRun, StateRows, StateSide};
use crate::container::{read_chunk, write_chunk};
use crate::error::SessionError;
use crate::layout::Layout;
use crate::numbers::Cast;
use crate::plain::{compress, expand};
use crate::slab::{Slab, read_slab, write_slab};

/// Layers that a trial codes.
const TRIED: usize = 4;
/// Fewer cells say nothing about a basis.
const LEAST_TRIED: usize = 128;

/// First byte of a chunk of rows: as they are, or in the basis.
const KEPT: u8 = 0;
const CODED: u8 = 1;

/// A basis, and how many bits per value to take in it.
#[derive(Debug, Clone, Copy)]
pub struct BasisCoder<'a> {
    codec: &'a StorageCodec,
    id: BasisId,
    budget: Budget,
}

impl<'a> BasisCoder<'a> {
    /// The basis of `codec`, and the bits that a value takes in it.
    ///
    /// # Errors
    /// [`SessionError::Basis`]: a codec without a basis, or one of latent vectors.
    pub fn new(codec: &'a StorageCodec, budget: Budget) -> Result<Self, SessionError> {
        let Some(basis) = codec.basis() else {
            return Err(SessionError::Basis("a codec without a basis: expected one with a basis".into()));
        };
        if basis.shape().value_dim() == 0 {
            return Err(SessionError::Basis(
                "a basis of latent vectors: expected a basis of keys and values".into(),
            ));
        }
        Ok(Self { codec, id: basis.id(), budget })
    }

    pub(crate) fn id(&self) -> BasisId {
        self.id
    }

    /// The keys and values of a state that are coded together, in the order of the state.
    pub(crate) fn sets(&self, layout: &Layout) -> Result<Vec<StoredSet>, SessionError> {
        let layers = self.layers(layout)?;
        let mut sets: Vec<StoredSet> = Vec::new();
        for (cache, layers) in layout.caches.iter().zip(layers) {
            let is_first = |rows: &StateRows| rows.side == StateSide::Keys && rows.layer == 0;
            for rows in &cache.rows {
                if is_first(rows) {
                    let (set, layers) = (Set::default(), layers.clone());
                    sets.push(StoredSet { set, layers, runs: rows.runs.to_vec() });
                }
                let number = sets.len() as u32 - 1;
                if let Some(set) = sets.last_mut() {
                    set.set.push(rows.at, self.based(rows, number)?);
                }
            }
        }
        for set in &sets {
            set.set.check().map_err(|why| SessionError::Basis(format!("the state does not fit: {why}")))?;
        }
        let is_coded = |set: &StoredSet| pieces(&set.runs).iter().any(|piece| piece.position.is_some());
        if !sets.iter().any(is_coded) {
            let why = "the state has no 16 cells after the first 4 tokens whose positions follow each other";
            return Err(SessionError::Basis(why.into()));
        }
        Ok(sets)
    }

    fn based(&self, rows: &StateRows, set: u32) -> Result<Based, SessionError> {
        let shape = self.codec.shape();
        let is_values = rows.side == StateSide::Values;
        let (dim, width) = match is_values {
            true => (shape.value_dim(), shape.value_values()),
            false => (shape.head_dim(), shape.key_values()),
        };
        let name = format!("layer {}, {}", rows.layer, rows.side.name());
        if rows.width as usize != width {
            return Err(SessionError::Basis(format!(
                "the state does not fit: {name}: rows of {} values; the basis has {width}",
                rows.width
            )));
        }
        let based = Based { grid: rows.grid(), head_dim: dim as u32, is_values, set };
        match based.check() {
            Ok(()) if Cast::new(rows.numbers, dim).is_some() => Ok(based),
            Ok(()) => Err(SessionError::Basis(format!("{name}: rows of {}", rows.numbers.name()))),
            Err(why) => Err(SessionError::Basis(format!("{name}: {why}"))),
        }
    }

    /// The model's layers of each cache.
    fn layers(&self, layout: &Layout) -> Result<Vec<Vec<u32>>, SessionError> {
        let bad = |why: String| Err(SessionError::Basis(format!("the state does not fit: {why}")));
        let kinds = self.codec.shape().rope_kinds();
        let count = |cache: &Cache, side| {
            cache.rows.iter().filter(|rows| rows.side == side).map(|rows| rows.layer + 1).max().unwrap_or(0)
        };
        let counts: Vec<usize> =
            layout.caches.iter().map(|cache| count(cache, StateSide::Keys) as usize).collect();
        if layout.caches.iter().any(|cache| count(cache, StateSide::Values) == 0) {
            return bad("it has a cache without values".into());
        }
        if counts.iter().sum::<usize>() != kinds.len() {
            return bad(format!(
                "it has {} layers; the basis has {}",
                counts.iter().sum::<usize>(),
                kinds.len()
            ));
        }
        let of = |is_own: &dyn Fn(u8) -> bool| -> Vec<u32> {
            let layers = kinds.iter().enumerate().filter(|(_, kind)| is_own(**kind));
            layers.map(|(layer, _)| layer as u32).collect()
        };
        let [first, second] = counts[..] else {
            let all = of(&|_| true);
            return if counts.len() == 1 {
                Ok(vec![all])
            } else {
                bad(format!("it has {} caches", counts.len()))
            };
        };
        // Layers with windows have a separate cache, after the other. Only their RoPE tells them.
        let (plain, other) = (of(&|kind| kind == 0), of(&|kind| kind != 0));
        match (plain.len(), other.len()) {
            found if first == second || found != (first, second) && found != (second, first) => bad(format!(
                "it has two caches of {first} and {second} layers, and the RoPE of the basis does not say which \
                 layers have which"
            )),
            found if found == (first, second) => Ok(vec![plain, other]),
            _ => Ok(vec![other, plain]),
        }
    }

    /// Packs a set. Returns the bytes written.
    pub(crate) fn pack<R: Read + Seek, W: Write>(
        &self,
        state: &mut R,
        out: &mut W,
        set: &StoredSet,
        level: Level,
    ) -> Result<u64, SessionError> {
        let cells = pieces(&set.runs);
        let group = self.codec.basis().map_or(1, |basis| basis.join().layers());
        let mut plan = SetPlan {
            is_paired: false,
            batch: SetPlan::batch(set.set.width(), group),
            layers: set.layers.clone(),
            pieces: cells.iter().map(|piece| piece.cells as u32).collect(),
        };
        let whole = |batch: &Range<usize>| {
            batch.len().is_multiple_of(group) && (plan.layers[batch.start] as usize).is_multiple_of(group)
        };
        if !plan.batches().iter().all(whole) {
            let why =
                format!("the state does not fit: a cache has a part of {group} layers that share a basis");
            return Err(SessionError::Basis(why));
        }
        plan.is_paired = self.find_order(state, &set.set, (&plan, group, &cells), level)?;
        let mut written = write_chunk(out, &plan.to_bytes())?;
        let coder = SetCoder::new(self.codec, &set.set, &plan, level)?;
        for piece in &cells {
            for batch in plan.batches() {
                let rows = coder.read(state, batch.clone(), *piece)?;
                let coded = match piece.position {
                    Some(position) => coder.encode(&rows, (&batch, *piece, position), self.budget)?,
                    None => None,
                };
                written += write_chunk(out, &coded.map_or_else(|| coder.keep(rows), Ok)?)?;
            }
        }
        Ok(written)
    }

    /// The order of the coordinates of keys, by trial of a chunk in both. For some families llama.cpp has
    /// them pair by pair, and a checkpoint half by half.
    fn find_order<R: Read + Seek>(
        &self,
        state: &mut R,
        set: &Set,
        (plan, group, cells): (&SetPlan, usize, &[Piece]),
        level: Level,
    ) -> Result<bool, SessionError> {
        let coded = cells.iter().filter(|piece| piece.position.is_some());
        let Some(piece) = coded.max_by_key(|piece| (piece.cells, std::cmp::Reverse(piece.first))) else {
            return Ok(false);
        };
        let (position, mut batch) = (piece.position.unwrap_or(0), plan.batches().swap_remove(0));
        batch.end = batch.end.min(batch.start + TRIED.max(group) / group * group);
        let mut errors = [f64::INFINITY; 2];
        let none = StorageCodec::new(self.codec.shape().clone(), None).map_err(stored)?;
        let mut without = f64::INFINITY;
        for (error, is_paired) in errors.iter_mut().zip([false, true]) {
            let plan = SetPlan { is_paired, ..plan.clone() };
            let coder = SetCoder::new(self.codec, set, &plan, level)?;
            let rows = coder.read(state, batch.clone(), *piece)?;
            let place = (&batch, *piece, position);
            let Some(found) = coder.error(self.codec, &rows, place, self.budget)? else { return Ok(false) };
            *error = found;
            without = without.min(coder.error(&none, &rows, place, self.budget)?.unwrap_or(without));
        }
        let best = errors[0].min(errors[1]);
        if piece.cells >= LEAST_TRIED && best >= without {
            return Err(SessionError::Basis(format!(
                "the basis does not fit the state: it loses {best:.3} of {} tokens, and coding without a basis \
                 {without:.3}",
                piece.cells
            )));
        }
        Ok(errors[1] < errors[0])
    }
}

/// A set, its layers in the model, and the positions of its cells.
#[derive(Debug)]
pub(crate) struct StoredSet {
    pub(crate) set: Set,
    layers: Vec<u32>,
    runs: Vec<CellRun>,
}

fn stored(error: StorageError) -> SessionError {
    SessionError::Basis(error.to_string())
}

/// Reads a set after its plan, and writes its rows.
pub(crate) fn unpack<R: Read, W: Write + Seek>(
    pack: &mut R,
    state: &mut W,
    set: &Set,
    codec: &StorageCodec,
    level: Level,
) -> Result<(), SessionError> {
    let plan = read_plan(pack, set)?;
    let coder = SetCoder::new(codec, set, &plan, level)?;
    let mut first = 0;
    for cells in plan.pieces.iter().map(|cells| *cells as usize) {
        let piece = Piece { first, cells, position: None };
        for batch in plan.batches() {
            let chunk = read_chunk(pack, most_bytes(set, batch.len(), cells), "rows in a basis")?;
            let rows = coder.decode(&chunk, &batch, cells)?;
            coder.write(state, batch, piece, &rows)?;
        }
        first += cells;
    }
    Ok(())
}

/// Reads the chunks of a set, without decoding.
pub(crate) fn skip<R: Read>(pack: &mut R, set: &Set) -> Result<(), SessionError> {
    let plan = read_plan(pack, set)?;
    for cells in plan.pieces.iter().map(|cells| *cells as usize) {
        for batch in plan.batches() {
            read_chunk(pack, most_bytes(set, batch.len(), cells), "rows in a basis")?;
        }
    }
    Ok(())
}

fn read_plan<R: Read>(pack: &mut R, set: &Set) -> Result<SetPlan, SessionError> {
    SetPlan::parse(&read_chunk(pack, SetPlan::most_bytes(set), "rows in a basis")?, set)
}

/// Longest chunk: rows of f32 are longer than any, but for heads and blocks that are not full.
fn most_bytes(set: &Set, layers: usize, cells: usize) -> usize {
    layers * (4096 + set.width() + 4 * cells * set.width()) + 256
}

/// Keys and values of some layers and cells, `[layers, cells, row]` each, as the state has them.
struct RawRows {
    keys: Vec<u8>,
    values: Vec<u8>,
}

/// Which layers of the set, which cells, and the position of the first.
type At<'a> = (&'a Range<usize>, Piece, u32);

/// Turns rows of a set into chunks and back.
struct SetCoder<'a> {
    codec: &'a StorageCodec,
    set: &'a Set,
    plan: &'a SetPlan,
    level: Level,
    keys: Cast,
    values: Cast,
}

impl<'a> SetCoder<'a> {
    fn new(
        codec: &'a StorageCodec,
        set: &'a Set,
        plan: &'a SetPlan,
        level: Level,
    ) -> Result<Self, SessionError> {
        let shape = codec.shape();
        let cast = |side: &[(u64, Based)], dim: usize, width: usize| {
            let fits = side
                .iter()
                .all(|(_, rows)| (rows.head_dim as usize, rows.grid.width as usize) == (dim, width));
            let cast = side.first().filter(|_| fits).and_then(|(_, rows)| Cast::new(rows.grid.numbers, dim));
            cast.ok_or_else(|| SessionError::pack("rows in a basis: rows that the basis does not have"))
        };
        if plan.layers.iter().any(|layer| *layer as usize >= shape.num_layers()) {
            return Err(SessionError::pack("rows in a basis: a layer that the basis does not have"));
        }
        let keys = cast(&set.keys, shape.head_dim(), shape.key_values())?;
        let values = cast(&set.values, shape.value_dim(), shape.value_values())?;
        Ok(Self { codec, set, plan, level, keys, values })
    }

    fn read<R: Read + Seek>(
        &self,
        state: &mut R,
        batch: Range<usize>,
        piece: Piece,
    ) -> Result<RawRows, SessionError> {
        let slab = Slab { first: piece.first, cells: piece.cells };
        let mut side = |side: &[(u64, Based)]| -> Result<Vec<u8>, SessionError> {
            let mut all = Vec::new();
            for (at, rows) in &side[batch.clone()] {
                all.extend(read_slab(state, *at, &rows.grid, slab)?);
            }
            Ok(all)
        };
        Ok(RawRows { keys: side(&self.set.keys)?, values: side(&self.set.values)? })
    }

    fn write<W: Write + Seek>(
        &self,
        state: &mut W,
        batch: Range<usize>,
        piece: Piece,
        rows: &RawRows,
    ) -> Result<(), SessionError> {
        let slab = Slab { first: piece.first, cells: piece.cells };
        for (side, raw) in [(&self.set.keys, &rows.keys), (&self.set.values, &rows.values)] {
            for ((at, rows), raw) in side[batch.clone()].iter().zip(raw.chunks(raw.len() / batch.len())) {
                write_slab(state, *at, &rows.grid, slab, raw)?;
            }
        }
        Ok(())
    }

    fn numbers(&self, rows: &RawRows, (batch, piece, _): At<'_>) -> (Vec<f32>, Vec<f32>) {
        let (shape, cells) = (self.codec.shape(), batch.len() * piece.cells);
        let (mut k, mut v) = (vec![0.0; cells * shape.key_values()], vec![0.0; cells * shape.value_values()]);
        self.keys.to_f32(self.level, &rows.keys, &mut k);
        self.values.to_f32(self.level, &rows.values, &mut v);
        if self.plan.is_paired {
            halves(&mut k, shape.head_dim());
        }
        (k, v)
    }

    fn span(&self, (batch, piece, position): At<'_>) -> Span {
        Span {
            first_layer: self.plan.layers[batch.start] as usize,
            layers: batch.len(),
            first_position: position.into(),
            tokens: piece.cells,
            exact: 0,
            name: [0; 8],
        }
    }

    /// The chunk of rows in the basis; `None` where they have numbers that cannot be coded.
    fn encode(&self, rows: &RawRows, at: At<'_>, budget: Budget) -> Result<Option<Vec<u8>>, SessionError> {
        let (k, v) = self.numbers(rows, at);
        match self.codec.encode(budget, &self.span(at), &k, &v) {
            Ok(chunk) => Ok(Some([&[CODED], &chunk[..]].concat())),
            Err(StorageError::Layer { .. }) => Ok(None),
            Err(error) => Err(stored(error)),
        }
    }

    /// The error of these rows in `codec`; `None` where they cannot be coded.
    fn error(
        &self,
        codec: &StorageCodec,
        rows: &RawRows,
        at: At<'_>,
        budget: Budget,
    ) -> Result<Option<f64>, SessionError> {
        let (k, v) = self.numbers(rows, at);
        match codec.encode(budget, &self.span(at), &k, &v) {
            Ok(chunk) => codec.error(&chunk, &k, &v).map(Some).map_err(stored),
            Err(StorageError::Layer { .. }) => Ok(None),
            Err(error) => Err(stored(error)),
        }
    }

    /// The chunk of rows as they are: the length of the keys, keys and values.
    fn keep(&self, rows: RawRows) -> Result<Vec<u8>, SessionError> {
        let planes =
            |side: &[(u64, Based)]| side.first().map_or(1, |(_, rows)| rows.grid.numbers.plane_bytes());
        let keys = compress(rows.keys, planes(&self.set.keys))?;
        let values = compress(rows.values, planes(&self.set.values))?;
        Ok([&[KEPT], &(keys.len() as u32).to_le_bytes()[..], &keys, &values].concat())
    }

    fn decode(&self, chunk: &[u8], batch: &Range<usize>, cells: usize) -> Result<RawRows, SessionError> {
        let bad = |why: String| SessionError::pack(format!("rows in a basis: {why}"));
        match chunk.split_first() {
            Some((&KEPT, rest)) => self.kept(rest, batch.len() * cells),
            Some((&CODED, chunk)) => {
                let own = Piece { first: 0, cells, position: None };
                let span = self.codec.span(chunk).map_err(|error| bad(error.to_string()))?;
                if span != (Span { first_position: span.first_position, ..self.span((batch, own, 0)) }) {
                    return Err(bad("a chunk of other layers or cells".into()));
                }
                self.coded(chunk, batch.len() * cells)
            }
            _ => Err(bad("a chunk of an unknown kind".into())),
        }
    }

    fn kept(&self, rest: &[u8], cells: usize) -> Result<RawRows, SessionError> {
        let cut = || SessionError::pack("rows in a basis: a chunk that is cut");
        let (length, rest) = rest.split_first_chunk().ok_or_else(cut)?;
        let (keys, values) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(cut)?;
        let side = |chunk: &[u8], side: &[(u64, Based)]| match side.first() {
            Some((_, rows)) => {
                expand(chunk.to_vec(), cells * rows.grid.row_bytes(), rows.grid.numbers.plane_bytes())
            }
            None => Err(cut()),
        };
        Ok(RawRows { keys: side(keys, &self.set.keys)?, values: side(values, &self.set.values)? })
    }

    fn coded(&self, chunk: &[u8], cells: usize) -> Result<RawRows, SessionError> {
        let bad = |why: String| SessionError::pack(format!("rows in a basis: {why}"));
        let shape = self.codec.shape();
        let (mut k, mut v) =
            (vec![0.0f32; cells * shape.key_values()], vec![0.0f32; cells * shape.value_values()]);
        self.codec.decode(chunk, &mut k, &mut v).map_err(|error| bad(error.to_string()))?;
        if self.plan.is_paired {
            pairs(&mut k, shape.head_dim());
        }
        let side = |cast: Cast, values: &[f32], side: &[(u64, Based)]| {
            let mut raw = vec![0; cells * side.first().map_or(0, |(_, rows)| rows.grid.row_bytes())];
            let fits = cast.to_bytes(self.level, values, &mut raw);
            fits.then_some(raw).ok_or_else(|| bad("a row does not fit its type".into()))
        };
        Ok(RawRows {
            keys: side(self.keys, &k, &self.set.keys)?,
            values: side(self.values, &v, &self.set.values)?,
        })
    }
}

/// Coordinates 2i and 2i + 1 of each head become i and i + half.
fn halves(keys: &mut [f32], head_dim: usize) {
    let mut head = vec![0.0; head_dim];
    for key in keys.chunks_exact_mut(head_dim) {
        head.copy_from_slice(key);
        for (i, pair) in head.as_chunks::<2>().0.iter().enumerate() {
            [key[i], key[i + head_dim / 2]] = *pair;
        }
    }
}

/// Undoes [`halves`].
fn pairs(keys: &mut [f32], head_dim: usize) {
    let mut head = vec![0.0; head_dim];
    for key in keys.chunks_exact_mut(head_dim) {
        head.copy_from_slice(key);
        for (i, pair) in key.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            *pair = [head[i], head[i + head_dim / 2]];
        }
    }
}
