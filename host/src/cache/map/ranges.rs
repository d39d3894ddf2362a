//! The maps of a head: one for each range of positions.
//!
//! Factors per pair serve all positions. A matrix serves a range of pages, and ranges grow fourfold: pages 0
//! to 3, 4 to 15, 16 to 63, and so on. Every matrix is made from the same moments, when the first page of its
//! range opens. A cache that was truncated or restored therefore continues with the same maps. A spare thread
//! begins one page before, because a matrix takes milliseconds.

use super::full::{self, Front, Full};
use super::moments::Moments;
use super::pairs::{Pairs, shares};
use crate::cache::life::PAGE_TOKENS;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use tqkv_core::unstable::trellis::QUARTERS;

/// Pages of the first range.
const FIRST_RANGE: usize = 4;
/// Number of pages before the end of a range over those before the end of the one before.
const GROWTH: usize = 4;

/// The map of the keys of a range, as reading needs it.
#[derive(Debug)]
pub(in crate::cache) enum Map {
    Pairs(Pairs),
    Full(Full),
}

impl Map {
    /// Maps queries (`[n, dim]`) as keys of the range need it.
    pub(in crate::cache) fn apply_to_queries(&self, queries: &mut [f32]) {
        match self {
            Self::Pairs(map) => map.apply_to_queries(queries),
            Self::Full(map) => map.apply_to_queries(queries),
        }
    }

    /// Brings mapped keys (`[n, dim]`) back to their own coordinates.
    pub(in crate::cache) fn undo(&self, keys: &mut [f32]) {
        match self {
            Self::Pairs(map) => map.undo(keys),
            Self::Full(map) => map.undo(keys),
        }
    }

    /// Weights of the errors of quarters, for codes that have them.
    pub(in crate::cache) fn weights(&self) -> Option<[f32; QUARTERS]> {
        match self {
            Self::Pairs(map) => map.weights(),
            Self::Full(map) => map.weights(),
        }
    }
}

/// A map, and the first page that uses it.
#[derive(Clone, Debug)]
struct PlacedMap {
    first_page: usize,
    map: Arc<Map>,
}

/// The maps of a head, by page. Copies share them.
#[derive(Clone, Debug, Default)]
pub(in crate::cache) struct Maps {
    list: Vec<PlacedMap>,
    /// Moments that later maps are made from.
    moments: Option<Arc<Moments>>,
    /// The matrix of the last map.
    front: Option<Arc<Front>>,
    /// The map after the last one, if it was begun.
    next: Option<Next>,
}

/// A map and its matrix. `None` if the moments do not decide one.
type Made = Option<(Arc<Map>, Arc<Front>)>;

/// A map that is made before its first page opens. Copies share the work.
#[derive(Clone, Debug)]
struct Next {
    first_page: usize,
    made: Arc<OnceLock<Made>>,
}

/// The range of pages that holds a page.
fn range_of(page: usize) -> Range<usize> {
    let (mut start, mut end) = (0, FIRST_RANGE);
    while page >= end {
        (start, end) = (end, end.saturating_mul(GROWTH));
    }
    start..end
}

/// Makes the map of a range of pages.
fn make(moments: &Moments, pages: &Range<usize>) -> Made {
    let first = moments.setting().first;
    let positions = first + pages.start * PAGE_TOKENS..first + pages.end.saturating_mul(PAGE_TOKENS);
    let (map, front) = full::make(moments, positions.clone(), positions)?;
    Some((Arc::new(Map::Full(map)), Arc::new(front)))
}

impl Next {
    /// The map, made here if no thread has begun.
    fn made(&self, moments: &Moments) -> Made {
        self.made.get_or_init(|| make(moments, &range_of(self.first_page))).clone()
    }
}

impl Maps {
    /// The map of factors, which all pages have.
    pub(in crate::cache) fn of_pairs(map: Pairs) -> Self {
        let map = Arc::new(Map::Pairs(map));
        Self { list: vec![PlacedMap { first_page: 0, map }], moments: None, ..Self::default() }
    }

    /// The map of the first keys (`[n, dim]`) alone, and the mean that is subtracted from them (empty for none).
    /// `None` unless few pairs hold their energy.
    pub(in crate::cache) fn of_keys(keys: &[f32], dim: usize, mean: &[f32]) -> Option<Self> {
        Pairs::of_keys(&shares(keys, dim, mean)).map(Self::of_pairs)
    }

    /// Moments without matrices, which follow by [`Maps::restore`].
    pub(in crate::cache) fn restored(moments: Moments) -> Self {
        Self { moments: Some(Arc::new(moments)), ..Self::default() }
    }

    /// Matrices that are made from moments, the first one now. `None` if the moments do not decide one.
    pub(in crate::cache) fn of_moments(moments: Moments) -> Option<Self> {
        let mut maps = Self::restored(moments);
        maps.open(0);
        (!maps.list.is_empty()).then_some(maps)
    }

    /// The factors, if all pages have one map.
    pub(in crate::cache) fn pairs(&self) -> Option<&Pairs> {
        match &*self.list.first()?.map {
            Map::Pairs(map) => Some(map),
            Map::Full(_) => None,
        }
    }

    pub(in crate::cache) fn moments(&self) -> Option<&Moments> {
        self.moments.as_deref()
    }

    /// Number of maps.
    pub(in crate::cache) fn len(&self) -> usize {
        self.list.len()
    }

    /// Index of the map of a page. `None` if there is no map.
    pub(in crate::cache) fn index(&self, page: usize) -> Option<usize> {
        self.list.partition_point(|place| place.first_page <= page).checked_sub(1)
    }

    pub(in crate::cache) fn get(&self, index: usize) -> Option<&Map> {
        self.list.get(index).map(|place| &*place.map)
    }

    /// First page behind those of a map.
    pub(in crate::cache) fn end(&self, index: usize) -> usize {
        self.list.get(index + 1).map_or(usize::MAX, |place| place.first_page)
    }

    /// Makes the map of the next page, if the page begins a range.
    pub(in crate::cache) fn open(&mut self, page: usize) {
        let Some(moments) = &self.moments else { return };
        let (range, dim) = (range_of(page), moments.setting().dim);
        if self.list.last().is_none_or(|last| last.first_page < range.start) {
            let next = self.next.take_if(|next| next.first_page == range.start);
            let made = next.map_or_else(|| make(moments, &range), |next| next.made(moments));
            if let Some((map, front)) = made {
                self.front = Some(front);
                self.push(range.start, map);
            }
        }
        if self.front.is_none()
            && let Some(Map::Full(map)) = self.list.last().map(|last| &*last.map)
        {
            self.front = Front::new(map, dim).map(Arc::new);
        }
    }

    /// Begins the map of the next range on a spare thread, if `page` is the last page before it.
    pub(in crate::cache) fn begin(&mut self, page: usize) {
        let (Some(moments), end) = (&self.moments, range_of(page).end) else { return };
        let is_begun = self.next.as_ref().is_some_and(|next| next.first_page == end);
        if page + 1 < end || is_begun {
            return;
        }
        let next = Next { first_page: end, made: Arc::default() };
        let (later, moments) = (next.clone(), moments.clone());
        rayon::spawn(move || {
            later.made(&moments);
        });
        self.next = Some(next);
    }

    fn push(&mut self, first_page: usize, map: Arc<Map>) {
        self.list.reserve_exact(1);
        self.list.push(PlacedMap { first_page, map });
    }

    /// The matrices, each with the first page that uses it.
    pub(in crate::cache) fn matrices(&self) -> impl Iterator<Item = (usize, &Full)> {
        self.list.iter().filter_map(|place| match &*place.map {
            Map::Full(map) => Some((place.first_page, map)),
            Map::Pairs(_) => None,
        })
    }

    /// Takes the next matrix of a snapshot. Returns false if no cache has it there.
    pub(in crate::cache) fn restore(
        &mut self,
        first_page: usize,
        inverse: (&[f32], &[i8]),
        weights: Option<[f32; QUARTERS]>,
    ) -> bool {
        let Some(moments) = &self.moments else { return false };
        let next = self.list.last().map_or(0, |last| range_of(last.first_page).end);
        let map = Full::from_parts(moments.setting().dim, inverse, weights);
        match map.filter(|_| first_page == next) {
            Some(map) => self.push(first_page, Arc::new(Map::Full(map))),
            None => return false,
        }
        true
    }

    /// Maps keys (`[n, dim]`) of the newest page.
    pub(in crate::cache) fn apply(&self, keys: &mut [f32]) {
        if let Some(front) = &self.front {
            front.apply(keys);
        } else if let Some(map) = self.pairs() {
            map.apply(keys);
        }
    }

    /// Weights of the errors of quarters in the newest page.
    pub(in crate::cache) fn weights(&self) -> Option<[f32; QUARTERS]> {
        self.list.last().and_then(|last| last.map.weights())
    }

    /// Drops the maps that begin after the first `pages` pages.
    pub(in crate::cache) fn truncate(&mut self, pages: usize) {
        if pages == 0 {
            *self = Self::default();
            return;
        }
        let kept = self.list.partition_point(|place| place.first_page < pages);
        if kept < self.list.len() {
            self.list.truncate(kept);
            self.front = None;
        }
    }

    pub(in crate::cache) fn allocated_bytes(&self) -> usize {
        let dim = self.moments().map_or(0, |moments| moments.setting().dim);
        let maps = self.list.iter().map(|place| match &*place.map {
            Map::Pairs(map) => map.allocated_bytes(),
            Map::Full(_) => Full::bytes(dim),
        });
        let front = if self.front.is_some() { Front::bytes(dim) } else { 0 };
        let next = self.next.as_ref().map_or(0, |_| Full::bytes(dim) + Front::bytes(dim));
        let moments = self.moments().map_or(0, Moments::allocated_bytes);
        self.list.capacity() * size_of::<PlacedMap>() + maps.sum::<usize>() + front + next + moments
    }

    /// Upper bound of the number of maps of pages up to number `last`.
    pub(in crate::cache) fn most(last: usize) -> usize {
        let (mut ranges, mut end) = (1, FIRST_RANGE);
        while last >= end {
            (ranges, end) = (ranges + 1, end.saturating_mul(GROWTH));
        }
        ranges
    }

    /// Upper bound of the bytes that matrices of pages up to number `last` add, moments included.
    pub(super) fn growth(&self, dim: usize, last: usize) -> usize {
        // The map after the last page may be begun.
        let maps = Self::most(last + 1).saturating_sub(self.list.len());
        let places = (self.list.len() + maps) * size_of::<PlacedMap>();
        let front = if maps > 0 || self.front.is_none() { 2 * Front::bytes(dim) } else { 0 };
        let moments = if self.moments.is_none() { Moments::bytes(dim) } else { 0 };
        maps * Full::bytes(dim) + places + front + moments
    }
}
