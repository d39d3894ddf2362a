//! Keys or values of layers: between memory whose axes have any order, and blocks.
//!
//! A few tokens are converted at a time, so that their f32 stay in the first-level cache. Nothing as large as
//! the tensor is made next to it.

use crate::storage::StoredNumber;
use half::f16;
use numpy::ndarray::{
    ArrayView2, ArrayView4, ArrayView5, ArrayViewMut, ArrayViewMut2, ArrayViewMut3, ArrayViewMut5, Axis,
    Dimension, s,
};
use rayon::prelude::*;
use std::{array, slice};
use tqkv_core::{AnyCodec, DecodeError, EncodeError};
use tqkv_simd::Level;
use tqkv_simd::codec;
use tqkv_storage::Element;

/// Values that are converted at a time.
const VALUES: usize = 2048;

/// The fewest groups of [`VALUES`] that a thread takes.
const GROUPS: usize = 4;

/// The kinds of sums of a mean.
const SUMS: usize = 4;

const LARGEST_F16: f32 = 65504.0;

/// Layer and token that failed, and why.
pub(crate) type Failed<E> = (usize, usize, E);

/// How the tokens of a side are coded.
#[derive(Clone, Copy)]
pub(crate) struct SideCoding<'a> {
    pub(crate) level: Level,
    pub(crate) codec: &'a AnyCodec,
    /// The first tokens, which stay as they are.
    pub(crate) exact: usize,
}

/// Sections of a payload, layer by layer.
pub(crate) struct Sections<B> {
    /// The first tokens.
    pub(crate) kept: B,
    /// f16, or nothing.
    pub(crate) means: B,
    /// The other tokens.
    pub(crate) blocks: B,
}

/// Memory for tokens that are being converted.
struct TokenScratch<T> {
    own: Vec<T>,
    wide: Vec<f32>,
}

impl<T> Default for TokenScratch<T> {
    fn default() -> Self {
        Self { own: Vec::new(), wide: Vec::new() }
    }
}

/// Keys or values of a layer, `[a, b, heads, dim]`.
#[derive(Clone, Copy)]
struct LayerView<'a, T> {
    view: ArrayView4<'a, T>,
    /// The same, if they follow each other in memory.
    whole: Option<&'a [T]>,
}

impl<'a, T: StoredNumber> LayerView<'a, T> {
    fn new(view: ArrayView4<'a, T>) -> Self {
        Self { view, whole: view.to_slice() }
    }

    /// Heads `[heads, dim]` of a token.
    fn token(self, token: usize) -> ArrayView2<'a, T> {
        let inner = self.view.len_of(Axis(1));
        self.view.slice_move(s![token / inner, token % inner, .., ..])
    }

    /// Converts the tokens from `first` on that `to` has room for.
    fn widen(self, level: Level, first: usize, own: &mut Vec<T>, to: &mut [f32]) {
        let (.., heads, dim) = self.view.dim();
        let row = heads * dim;
        if let Some(whole) = self.whole {
            return T::As::widen(level, T::seen(&whole[first * row..][..to.len()]), to);
        }
        for (k, to) in to.chunks_exact_mut(row).enumerate() {
            T::As::widen(level, T::seen(contiguous(self.token(first + k), own)), to);
        }
    }
}

/// Writes the sections of a side `[layers, a, b, heads, dim]`. Tokens are those of both axes `a` and `b`.
pub(crate) fn encode<T: StoredNumber>(
    coding: SideCoding<'_>,
    x: ArrayView5<'_, T>,
    to: Sections<&mut [u8]>,
) -> Result<(), Failed<EncodeError>> {
    let layers = x.len_of(Axis(0));
    let parts = shares(to.kept, layers).zip(shares(to.means, layers)).zip(shares(to.blocks, layers));
    let parts: Vec<_> = parts.enumerate().collect();
    let failed = parts.into_par_iter().map(|(layer, ((kept, means), blocks))| {
        let x = LayerView::new(x.slice_move(s![layer, .., .., .., ..]));
        keep(x, coding.exact, kept).map_err(|token| (layer, token, EncodeError::NonFinite)).err().or_else(
            || {
                let mut mean = if means.is_empty() { Vec::new() } else { mean(coding, x) };
                let mut rounded = vec![f16::ZERO; mean.len()];
                f16::narrow(coding.level, &mean, &mut rounded);
                f16::widen(coding.level, &rounded, &mut mean);
                means
                    .as_chunks_mut()
                    .0
                    .iter_mut()
                    .zip(&rounded)
                    .for_each(|(to, mean)| *to = mean.to_le_bytes());
                encode_layer(coding, x, &mean, blocks).map(|(token, error)| (layer, token, error))
            },
        )
    });
    failed.find_map_first(|failed| failed).map_or(Ok(()), Err)
}

/// Encodes the tokens of a layer after the first ones.
fn encode_layer<T: StoredNumber>(
    SideCoding { level, codec, exact }: SideCoding<'_>,
    x: LayerView<'_, T>,
    mean: &[f32],
    blocks: &mut [u8],
) -> Option<(usize, EncodeError)> {
    let (.., heads, dim) = x.view.dim();
    let row = heads * dim;
    let (bytes, at_once) = (heads * codec.block_bytes(), tokens_at_once(row));
    if blocks.is_empty() {
        return None;
    }
    let groups = blocks.par_chunks_mut(at_once * bytes).enumerate().with_min_len(GROUPS);
    let done = groups.map_init(TokenScratch::default, |TokenScratch { own, wide }, (i, blocks)| {
        let first = exact + i * at_once;
        wide.resize(blocks.len() / bytes * row, 0.0);
        x.widen(level, first, own, wide);
        if !mean.is_empty() {
            level.plain(
                #[inline(always)]
                || wide.chunks_exact_mut(row).for_each(|x| x.iter_mut().zip(mean).for_each(|(x, m)| *x -= m)),
            );
        }
        codec::encode(level, codec, wide, blocks)
            .map_err(|failed| (first + failed.index / heads, failed.error))
    });
    done.find_map_first(Result::err)
}

/// Copies the first tokens of a layer. The error is a token that is not finite.
fn keep<T: StoredNumber>(x: LayerView<'_, T>, exact: usize, to: &mut [u8]) -> Result<(), usize> {
    let mut bytes = Vec::with_capacity(to.len());
    let mut own = Vec::new();
    for i in 0..exact {
        let values = contiguous(x.token(i), &mut own);
        if !values.iter().all(|x| x.is_finite()) {
            return Err(i);
        }
        T::seen(values).iter().for_each(|x| x.push(&mut bytes));
    }
    to.copy_from_slice(&bytes);
    Ok(())
}

/// The means of the tokens of a layer after the first ones, in the range of f16.
///
/// The sum is a cascade: sixteen tokens make a sum of the first kind, sixteen of these one of the second, and
/// so on. Its error grows slowly, and its bits are those of PyTorch's sum.
fn mean<T: StoredNumber>(SideCoding { level, exact, .. }: SideCoding<'_>, x: LayerView<'_, T>) -> Vec<f32> {
    let (outer, inner, heads, dim) = x.view.dim();
    let (row, count) = (heads * dim, outer * inner - exact);
    let power = (count.next_power_of_two().trailing_zeros() / 4).max(4);
    let mut sums: [_; SUMS] = array::from_fn(|_| vec![0.0; row]);
    let (mut own, mut wide) = (Vec::new(), vec![0.0; row]);
    for i in 0..count {
        x.widen(level, exact + i, &mut own, &mut wide);
        add(level, &mut sums[0], &wide);
        let full = (i + 1).trailing_zeros() / power;
        for kind in 0..(full as usize).min(sums.len() - 1) {
            let (from, to) = sums.split_at_mut(kind + 1);
            add(level, &mut to[0], &from[kind]);
            from[kind].fill(0.0);
        }
    }
    let [mut total, rest @ ..] = sums;
    rest.iter().for_each(|sum| add(level, &mut total, sum));
    let count = count.max(1) as f32;
    total.iter_mut().for_each(|sum| *sum = (*sum / count).clamp(-LARGEST_F16, LARGEST_F16));
    total
}

fn add(level: Level, sum: &mut [f32], x: &[f32]) {
    level.plain(
        #[inline(always)]
        || sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x),
    );
}

/// Decodes a side to `[layers, a, b, heads, dim]`. Returns true if all numbers after the first tokens are
/// finite.
pub(crate) fn decode<T: StoredNumber>(
    coding: SideCoding<'_>,
    from: &Sections<&[u8]>,
    out: ArrayViewMut5<'_, T>,
) -> Result<bool, Failed<DecodeError>> {
    let (layers, .., heads, dim) = out.dim();
    let at_once = tokens_at_once(heads * dim);
    let mut runs = Vec::new();
    for (layer, x) in pieces(out, 1).into_iter().enumerate() {
        let mut token = 0;
        for x in pieces(x.index_axis_move(Axis(0), 0), 1) {
            for x in pieces(x.index_axis_move(Axis(0), 0), GROUPS * at_once) {
                let next = token + x.len_of(Axis(0));
                runs.push((layer, token, x));
                token = next;
            }
        }
    }
    let rounded: Vec<f16> = from.means.as_chunks().0.iter().map(|mean| f16::from_le_bytes(*mean)).collect();
    let mut means = vec![0.0; rounded.len()];
    f16::widen(coding.level, &rounded, &mut means);
    let done = runs.into_par_iter().map_init(TokenScratch::default, |scratch, (layer, token, x)| {
        let kept = share(from.kept, layers, layer);
        let of_layer = (kept, share(&means, layers, layer), share(from.blocks, layers, layer));
        decode_run(coding, scratch, of_layer, token, x).map_err(|(token, error)| (layer, token, error))
    });
    done.try_reduce(|| true, |a, b| Ok(a && b))
}

/// Decodes tokens of a layer that follow each other, from `first` on.
fn decode_run<T: StoredNumber>(
    SideCoding { level, codec, exact }: SideCoding<'_>,
    TokenScratch { own, wide }: &mut TokenScratch<T>,
    (kept, mean, blocks): (&[u8], &[f32], &[u8]),
    first: usize,
    mut out: ArrayViewMut3<'_, T>,
) -> Result<bool, (usize, DecodeError)> {
    let (count, heads, dim) = out.dim();
    let (row, bytes) = (heads * dim, heads * codec.block_bytes());
    let (mut finite, mut done) = (true, exact.saturating_sub(first).min(count));
    for k in 0..done {
        read(share(kept, exact, first + k), out.index_axis_mut(Axis(0), k));
    }
    while done < count {
        let group = tokens_at_once(row).min(count - done);
        let at = first + done;
        wide.resize(group * row, 0.0);
        codec::decode(level, codec, &blocks[(at - exact) * bytes..][..group * bytes], wide)
            .map_err(|failed| (at + failed.index / heads, failed.error))?;
        if !mean.is_empty() {
            level.plain(
                #[inline(always)]
                || wide.chunks_exact_mut(row).for_each(|x| x.iter_mut().zip(mean).for_each(|(x, m)| *x += m)),
            );
        }
        if let Some(out) = out.as_slice_mut() {
            finite &= T::As::narrow(level, wide, T::of(&mut out[done * row..][..group * row]));
        } else {
            for (k, wide) in wide.chunks_exact(row).enumerate() {
                finite &= narrow(level, wide, out.index_axis_mut(Axis(0), done + k), own);
            }
        }
        done += group;
    }
    Ok(finite)
}

/// Tokens that are converted at a time, for a number of values per token.
fn tokens_at_once(row: usize) -> usize {
    (VALUES / row).max(1)
}

/// The share of one layer, or token, in what all have.
fn share<T>(all: &[T], count: usize, index: usize) -> &[T] {
    let each = all.len() / count;
    &all[index * each..][..each]
}

/// The shares of all layers.
fn shares(mut all: &mut [u8], count: usize) -> impl Iterator<Item = &mut [u8]> {
    let each = all.len() / count;
    (0..count).map(move |_| all.split_off_mut(..each).unwrap_or_default())
}

/// Cuts an axis into pieces of a length. The last one may be shorter.
fn pieces<T, D: Dimension>(mut x: ArrayViewMut<'_, T, D>, length: usize) -> Vec<ArrayViewMut<'_, T, D>> {
    let mut pieces = Vec::with_capacity(x.len_of(Axis(0)).div_ceil(length));
    while x.len_of(Axis(0)) > length {
        let (piece, rest) = x.split_at(Axis(0), length);
        pieces.push(piece);
        x = rest;
    }
    if !x.is_empty() {
        pieces.push(x);
    }
    pieces
}

/// The numbers of a token in their order: in place, or copied to `own`.
fn contiguous<'a, T: Copy>(x: ArrayView2<'a, T>, own: &'a mut Vec<T>) -> &'a [T] {
    if let Some(values) = x.to_slice() {
        return values;
    }
    own.clear();
    for head in x.outer_iter() {
        match head.to_slice() {
            Some(values) => own.extend_from_slice(values),
            None => own.extend(head.iter()),
        }
    }
    own
}

/// Rounds the numbers of a token. Returns true if all are finite.
fn narrow<T: StoredNumber>(
    level: Level,
    from: &[f32],
    mut to: ArrayViewMut2<'_, T>,
    own: &mut Vec<T>,
) -> bool {
    if let Some(to) = to.as_slice_mut() {
        return T::As::narrow(level, from, T::of(to));
    }
    let mut finite = true;
    for (from, mut to) in from.chunks_exact(to.len_of(Axis(1))).zip(to.outer_iter_mut()) {
        if let Some(to) = to.as_slice_mut() {
            finite &= T::As::narrow(level, from, T::of(to));
        } else {
            own.resize(from.len(), T::default());
            finite &= T::As::narrow(level, from, T::of(own));
            to.iter_mut().zip(&*own).for_each(|(to, from)| *to = *from);
        }
    }
    finite
}

/// Copies the numbers of a token from their bytes.
fn read<T: StoredNumber>(bytes: &[u8], mut to: ArrayViewMut2<'_, T>) {
    let values = bytes.chunks_exact(T::As::DTYPE.bytes()).map(<T::As as Element>::read);
    to.iter_mut().zip(values).for_each(|(to, value)| T::of(slice::from_mut(to))[0] = value);
}
