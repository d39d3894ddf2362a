//! Trellis blocks of 128 coordinates to vectors, four at a time.
//!
//! Levels are signed bytes, so 128 of them sum to less than 2^15. Their Hadamard transform is therefore exact
//! in 16 bits, as it is in floats. It has the bits of `AnyCodec::decode`, with half the registers. A part of
//! 128 bits belongs to one block from its planes to its floats, so nothing crosses the parts:
//!
//! ```text
//! planes of 4 blocks -> parities -> bytes transposed -> 8 lines of levels: line b has coordinates 16 b + m
//!   byte m2 | m1 m0 m3   sums of neighbours: m2 leaves the part; each zip takes the next bit of m
//!   zip, zip, zip        m1, m0, m3: the eight lanes are m2 m1 m0, as in memory
//! sums over b -> floats -> times the scale with the signs -> four vectors
//! ```
//!
//! Other head dims, and codes whose neighbours share symbols, take core's way.

use crate::lines::Line;
use crate::page::trellis::{self, Planes};
use crate::shorts::Shorts;
use bytemuck::{must_cast_mut, must_cast_ref};
use tqkv_core::code::{Code, Layout};
use tqkv_core::unstable::trellis::Plain;
use tqkv_core::unstable::with_code;
use tqkv_core::{AnyCodec, DecodeError, f16};

/// Blocks that are decoded together.
const TOGETHER: usize = 4;
/// The head dim.
const DIM: usize = 128;
/// Bytes of a plane.
const PLANE: usize = DIM / 8;
/// Lanes that a part of a line has in 16 bits.
const EIGHT: usize = 8;
/// Eights of a vector.
const EIGHTS: usize = DIM / EIGHT;

/// [`AnyCodec::decode_with`]; same bits, same errors.
pub(crate) fn decode<I: Shorts>(
    isa: I,
    codec: &AnyCodec,
    blocks: &[u8],
    out: &mut [f32],
) -> Result<(), (usize, DecodeError)> {
    let done = with_code!(codec.id(), C => if const { in_planes::<C>() } && codec.dim() == DIM {
        decode_fours::<I, C>(isa, codec, blocks, out)
    } else {
        0
    });
    let (blocks, out) = (&blocks[done * codec.block_bytes()..], &mut out[done * codec.dim()..]);
    codec.decode_with(isa, blocks, out).map_err(|(index, error)| (done + index, error))
}

/// True for trellis codes whose coordinates have plain bits of their own.
const fn in_planes<C: Code>() -> bool {
    matches!(C::LAYOUT, Layout::Planes(Plain::Bits(_)))
}

/// Lines between two steps.
struct FourLines {
    /// Line b has the levels of the coordinates 16 b + m; bytes are transposed in every part.
    levels: [Line; 8],
    /// Sums over everything but the two lowest bits of b, by its highest bit, the highest bit of m, and them.
    sums: [[[Line; 4]; 2]; 2],
}

/// Decodes blocks in fours, up to one that has no finite scale. Returns the number of decoded blocks.
fn decode_fours<I: Shorts, C: Planes>(isa: I, codec: &AnyCodec, blocks: &[u8], out: &mut [f32]) -> usize {
    let Some(trellis) = codec.id().trellis() else { return 0 };
    let signs = signs(codec);
    isa.apart(
        #[inline(always)]
        |isa| {
            let (bytes, unit) = (codec.block_bytes(), codec.unit());
            // Look-ups read the bits above an index too, so the levels repeat.
            let count = trellis.code.level_count();
            let table = isa.value_levels(&core::array::from_fn(|i| trellis.code.levels[i % count]));
            let mut scratch = FourLines { levels: [Line::ZERO; 8], sums: [[[Line::ZERO; 4]; 2]; 2] };
            let fours = blocks.chunks_exact(TOGETHER * bytes);
            let mut done = 0;
            for (blocks, out) in fours.zip(out.as_chunks_mut::<{ TOGETHER * DIM }>().0) {
                let mut factors = [[0.0; EIGHT]; TOGETHER];
                let mut planes = [&[][..]; TOGETHER];
                let each = blocks.chunks_exact(bytes).zip(factors.iter_mut().zip(&mut planes));
                for (block, (factors, planes)) in each {
                    let Some((&scale, body)) = block.split_first_chunk() else { return done };
                    let scale = f16::from_le_bytes(scale);
                    if !scale.is_finite() {
                        return done;
                    }
                    *factors = [isa.widen_half(scale) * unit * (1.0 / DIM as f32); EIGHT];
                    *planes = body.as_chunks().0;
                }
                levels::<I, C>(isa, planes, table, &mut scratch.levels);
                unrotate(isa, &mut scratch, &factors, &signs, out);
                done += TOGETHER;
            }
            done
        },
    )
}

/// The signs of the rotation as factors.
fn signs(codec: &AnyCodec) -> [[f32; EIGHT]; EIGHTS] {
    let mut signs = [[1.0; EIGHT]; EIGHTS];
    for (i, sign) in signs.as_flattened_mut().iter_mut().enumerate() {
        if codec.signs().is_negative(i) {
            *sign = -1.0;
        }
    }
    signs
}

/// Plane `p` of four blocks.
#[inline(always)]
fn plane<I: Shorts>(isa: I, [a, b, c, d]: [&[[u8; PLANE]]; TOGETHER], p: usize) -> I::Line {
    match (a.get(p), b.get(p), c.get(p), d.get(p)) {
        (Some(a), Some(b), Some(c), Some(d)) => isa.quarters([a, b, c, d]),
        _ => isa.line(&Line::ZERO),
    }
}

/// The levels of four blocks, given the planes of each.
#[inline(always)]
fn levels<I: Shorts, C: Planes>(
    isa: I,
    planes: [&[[u8; PLANE]]; TOGETHER],
    table: I::Levels,
    levels: &mut [Line; 8],
) {
    let now = plane(isa, planes, 0);
    let before = isa.rotate(now);
    let earlier = [
        now,
        isa.follow::<1>(now, before),
        isa.follow::<2>(now, before),
        isa.follow::<3>(now, before),
        isa.follow::<4>(now, before),
        isa.follow::<5>(now, before),
        isa.follow::<6>(now, before),
        isa.follow::<7>(now, before),
        isa.follow::<8>(now, before),
    ];
    let [z0, z1, z2] = trellis::parities::<I, C>(isa, &earlier);
    let mut plain = [z2; 3];
    if const { C::PLAIN > 0 } {
        plain[0] = isa.transpose(plane(isa, planes, 1));
    }
    if const { C::PLAIN > 1 } {
        plain[1] = isa.transpose(plane(isa, planes, 2));
    }
    if const { C::PLAIN > 2 } {
        plain[2] = isa.transpose(plane(isa, planes, 3));
    }
    let parities = [isa.transpose(z0), isa.transpose(z1), isa.transpose(z2)];
    let lines = trellis::levels_of_planes::<I, C>(isa, parities, plain, table);
    for (to, line) in levels.iter_mut().zip(lines) {
        *to = Line(isa.line_bytes(line));
    }
}

/// Rotates the levels of four blocks back, multiplies them by the factors of the blocks, and writes them.
fn unrotate<I: Shorts>(
    isa: I,
    scratch: &mut FourLines,
    factors: &[[f32; EIGHT]; TOGETHER],
    signs: &[[f32; EIGHT]; EIGHTS],
    out: &mut [f32; TOGETHER * DIM],
) {
    isa.apart(
        #[inline(always)]
        |isa| {
            let FourLines { levels: [a, b, c, d, e, f, g, h], sums } = scratch;
            for (b, (low, high)) in [(a, e), (b, f), (c, g), (d, h)].into_iter().enumerate() {
                sum_pair(isa, b, isa.line(low), isa.line(high), sums);
            }
            let factors: &[f32; TOGETHER * EIGHT] = must_cast_ref(factors);
            let factors = isa.load(factors);
            let out: &mut [[[f32; EIGHT]; EIGHTS]; TOGETHER] = must_cast_mut(out);
            for (high, sums) in sums.iter().enumerate() {
                for (m, lines) in sums.iter().enumerate() {
                    close(isa, 8 * high + m, lines, factors, signs, out);
                }
            }
        },
    );
}

/// The sums of lines b and b + 4, over the highest bit of b and all bits of m.
#[inline(always)]
fn sum_pair<I: Shorts>(isa: I, b: usize, low: I::Line, high: I::Line, sums: &mut [[[Line; 4]; 2]; 2]) {
    let ([s, d], [t, e]) = (isa.neighbours(low), isa.neighbours(high));
    let ([s, t], [d, e]) = (isa.butterfly16(s, t), isa.butterfly16(d, e));
    for ([first, second], [s, d]) in sums.iter_mut().zip([[s, d], [t, e]]) {
        let [s, d] = isa.zip16(s, d);
        let [s, d] = isa.butterfly16(s, d);
        let [s, d] = isa.zip16(s, d);
        let [s, d] = isa.butterfly16(s, d);
        let [s, d] = isa.zip16(s, d);
        let [s, d] = isa.butterfly16(s, d);
        (first[b], second[b]) = (Line(isa.line_bytes(s)), Line(isa.line_bytes(d)));
    }
}

/// The sums over the two lowest bits of b, as floats. `first` is the first of their eights; each of the
/// others is two further.
#[inline(always)]
fn close<I: Shorts>(
    isa: I,
    first: usize,
    [a, b, c, d]: &[Line; 4],
    factors: I::V,
    signs: &[[f32; EIGHT]; EIGHTS],
    [v, w, x, y]: &mut [[[f32; EIGHT]; EIGHTS]; TOGETHER],
) {
    let [a, b] = isa.butterfly16(isa.line(a), isa.line(b));
    let [c, d] = isa.butterfly16(isa.line(c), isa.line(d));
    let ([a, c], [b, d]) = (isa.butterfly16(a, c), isa.butterfly16(b, d));
    for (b, line) in [a, b, c, d].into_iter().enumerate() {
        let at = (first + 2 * b) % EIGHTS;
        // A sign times a factor is exact, and a sum of 0 becomes -0 as it does where signs are flipped.
        let product = isa.floats16(line) * (isa.repeat(&signs[at]) * factors);
        isa.store_eights(product, [&mut v[at], &mut w[at], &mut x[at], &mut y[at]]);
    }
}
