//! Bit planes on lines: from the planes of trellis codes to levels without leaving the registers.
//!
//! A unit of lines is four bytes of every plane of 16 tokens: the coded plane, then the plain planes. A coded
//! bit `a` coordinates back is a byte `a` places back. Each parity plane is therefore an XOR of a few shifted
//! copies of the coded plane. At the beginning of a vector the ring closes: the bytes before it are the last
//! bytes, rotated by one bit. Parity and plain planes are then transposed by swapping bits between registers,
//! until every byte holds a complete index. A look-up gives the levels.
//!
//! ```text
//! coded line, the two before it -> 9 shifts -> 3 XORs of taps -> planes z0 z1 z2 | j0 j1 j2
//!   planes -> pairs of bits -> nibbles of two coordinates -> 8 lines of indices -> 8 lines of levels
//! ```
//!
//! Keys have the four bytes of one token in a dword; values have one byte of four tokens. Shifts therefore
//! move bytes inside dwords, or dwords inside 128 bits. Everything else is the same.
//!
//! Planes of symbols that pairs share are half as long. Two units share their lines, which are between the
//! coded lines (`c0 p p p c1`). A last unit without a second one does not share them. Their bits
//! are expanded in registers.
//!
//! Codes of 5 bits are stored in a page as five planes and are read in the same way, without parities. If a
//! head dim is not a multiple of 32, two bytes precede the first one. They are copies of the bytes before it
//! in the ring.

use crate::lines::Machine;
use tqkv_core::code::{Code, Layout};
use tqkv_core::unstable::Levels;
use tqkv_core::unstable::trellis::{MAX_LEVELS, MAX_MEMORY, Plain, Quarters};

/// Bit planes of a codec, known when the kernel is compiled. The codec is a trellis code, or has codes that
/// are wide enough to be read as planes.
pub(crate) trait Planes {
    /// Index bits besides the three lowest bits, 0 to 3. In codes of quarters, the planes that hold them.
    const PLAIN: usize;
    /// Lines of the symbols of pairs: 3 or 5, or 0 if each coordinate has its own plain bits.
    const PAIRED: usize;
    /// Lines of a unit of 4 bytes of a plane, or of two units if they share symbols.
    const DEPTH: usize;
    /// Lines after the first line of a unit: planes or symbols.
    const BESIDE: usize;
    /// Taps of the parity bits, most significant parity first. Without taps, the three lowest index bits are
    /// planes.
    const GENERATORS: Option<[u16; 3]>;
    /// The quarters of a code of several widths.
    const QUARTERS: Option<&'static Quarters>;
    /// True for the codes for microcontrollers. Their keys are scored one head at a time, because few caches
    /// here use them, and their values have no kernel for a single head.
    const IS_SMALL: bool;
}

impl<C: Code> Planes for C {
    const PLAIN: usize = match C::LAYOUT {
        Layout::Planes(Plain::Bits(bits)) => bits as usize,
        Layout::Planes(Plain::PairOfThree) => 2,
        Layout::Planes(Plain::PairOfSix) => 3,
        Layout::Planes(plain @ Plain::Quarters(_)) => plain.planes(),
        Layout::Dense { bits } => (bits as usize).saturating_sub(3),
        // Never read as planes: `rows` names every layout.
        _ => 0,
    };
    const PAIRED: usize = match C::LAYOUT {
        Layout::Planes(Plain::PairOfThree) => 3,
        Layout::Planes(Plain::PairOfSix) => 5,
        _ => 0,
    };
    const DEPTH: usize = if C::PAIRED > 0 { 2 + C::PAIRED } else { 1 + C::BESIDE };
    const BESIDE: usize = match C::GENERATORS {
        Some(_) if C::PAIRED > 0 => C::PAIRED,
        Some(_) => C::PLAIN,
        None => 2 + C::PLAIN,
    };
    const GENERATORS: Option<[u16; 3]> = match C::LEVELS {
        Levels::Trellis(trellis) => Some(trellis.code.generators),
        Levels::Values | Levels::Codes(_) | Levels::LloydMax | Levels::Nested => None,
    };
    const QUARTERS: Option<&'static Quarters> = match C::LEVELS {
        Levels::Trellis(trellis) => trellis.quarters(),
        Levels::Values | Levels::Codes(_) | Levels::LloydMax | Levels::Nested => None,
    };
    const IS_SMALL: bool = match C::LEVELS {
        Levels::Trellis(trellis) => (trellis.code.memory as usize) < MAX_MEMORY,
        Levels::Values | Levels::Codes(_) | Levels::LloydMax | Levels::Nested => false,
    };
}

/// The order of the bytes of a plane in a line.
pub(super) trait Order {
    /// `now` moved by `N` bytes (1 to 3) of the plane; the last bytes of `before` come in.
    fn follow<I: Machine, const N: usize>(isa: I, now: I::Line, before: I::Line) -> I::Line;
    /// The bytes of half `HALF` of the four bytes of `even`, each followed by that of `odd`.
    fn pair<I: Machine, const HALF: usize>(isa: I, even: I::Line, odd: I::Line) -> I::Line;
}

/// Four bytes of a token in a dword.
pub(super) struct InDwords;
/// One byte of four tokens in a dword, four such dwords in 128 bits.
pub(super) struct InQuads;

impl Order for InDwords {
    #[inline(always)]
    fn follow<I: Machine, const N: usize>(isa: I, now: I::Line, before: I::Line) -> I::Line {
        isa.follow_bytes::<N>(now, before)
    }

    #[inline(always)]
    fn pair<I: Machine, const HALF: usize>(isa: I, even: I::Line, odd: I::Line) -> I::Line {
        isa.pair_bytes::<HALF>(even, odd)
    }
}

impl Order for InQuads {
    #[inline(always)]
    fn follow<I: Machine, const N: usize>(isa: I, now: I::Line, before: I::Line) -> I::Line {
        isa.follow_dwords::<N>(now, before)
    }

    #[inline(always)]
    fn pair<I: Machine, const HALF: usize>(isa: I, even: I::Line, odd: I::Line) -> I::Line {
        isa.pair_dwords::<HALF>(even, odd)
    }
}

/// A line of coded bits, and the same 1 to 8 coordinates back.
pub(crate) type Earlier<I> = [<I as Machine>::Line; MAX_MEMORY + 1];

/// The lines of coded bits up to eight coordinates back. `before` are the lines before `now`, the nearest
/// first.
#[inline(always)]
fn earlier<I: Machine, O: Order>(isa: I, now: I::Line, before: [I::Line; 2]) -> Earlier<I> {
    let [near, far] = before;
    [
        now,
        O::follow::<I, 1>(isa, now, near),
        O::follow::<I, 2>(isa, now, near),
        O::follow::<I, 3>(isa, now, near),
        near,
        O::follow::<I, 1>(isa, near, far),
        O::follow::<I, 2>(isa, near, far),
        O::follow::<I, 3>(isa, near, far),
        far,
    ]
}

/// Parity bits of a line of coded bits, least significant first.
#[inline(always)]
pub(crate) fn parities<I: Machine, C: Planes>(isa: I, earlier: &Earlier<I>) -> [I::Line; 3] {
    let [high, middle, low] = C::GENERATORS.unwrap_or_default();
    [parity(isa, low, earlier), parity(isa, middle, earlier), parity(isa, high, earlier)]
}

/// XOR of the tapped lines; `taps` is a constant once this is inlined.
#[inline(always)]
fn parity<I: Machine>(isa: I, taps: u16, earlier: &Earlier<I>) -> I::Line {
    let mut sum = isa.xor(earlier[0], earlier[0]);
    macro_rules! taps {
        ($($a:literal)*) => {
            $(if taps >> $a & 1 != 0 {
                sum = isa.xor(sum, earlier[$a]);
            })*
        };
    }
    taps!(0 1 2 3 4 5 6 7 8);
    sum
}

/// An array of eight, written out, because a loop over an array of registers is slow.
macro_rules! eight {
    (|$b:ident| $value:expr) => {
        crate::page::trellis::eight!(@ $b $value, 0 1 2 3 4 5 6 7)
    };
    (@ $b:ident $value:expr, $($i:literal)*) => {
        [$({
            const $b: usize = $i;
            $value
        }),*]
    };
}
pub(super) use eight;

/// Swaps groups of `N` bits: first those of even groups of `a` and `b`, then those of odd groups, `a` below
/// `b`.
#[inline(always)]
fn swap<I: Machine, const N: u32, const EVEN: u8>(isa: I, a: I::Line, b: I::Line) -> [I::Line; 2] {
    [isa.merge::<EVEN>(a, isa.up::<N>(b)), isa.merge::<EVEN>(isa.down::<N>(a), b)]
}

/// Lines of the bits after the first line, one plane each; lines that a code lacks are undefined.
pub(super) type PlainLines<I> = [<I as Machine>::Line; 4];

/// The lines of plain bits of a unit.
#[inline(always)]
pub(super) fn plain<I: Machine, C: Planes>(isa: I, lines: &[super::Line]) -> PlainLines<I> {
    let mut plain = [isa.line(&super::Line::ZERO); 4];
    // A known number of lines; otherwise the compiler calls a copy function.
    if let Some(lines) = lines.get(..C::BESIDE) {
        for (plain, line) in plain.iter_mut().zip(lines) {
            *plain = isa.line(line);
        }
    }
    plain
}

/// The plain bits of even and of odd coordinates, low bits first, with pairs in the places of their bytes.
/// Bits that a code lacks are undefined.
pub(super) type Symbols<I> = [[<I as Machine>::Line; 3]; 2];

/// Decodes the symbols of pairs.
#[inline(always)]
pub(super) fn symbols<I: Machine, C: Planes>(isa: I, lines: &[super::Line]) -> Symbols<I> {
    if const { C::PAIRED == 3 }
        && let [p0, p1, p2, ..] = lines
    {
        // The digits of 3 even + odd from its bits. The formulas were found by hand; the tests of all codecs
        // check them.
        let (p0, p1, p2) = (isa.line(p0), isa.line(p1), isa.line(p2));
        let (both, either) = (isa.and(p0, p2), isa.xor(p0, p2));
        let middle = isa.and(p1, isa.xor(either, both));
        let odd = [isa.xor(either, middle), isa.xor(isa.xor(both, p1), isa.and(p1, either)), p0];
        [[isa.xor(p2, middle), isa.and(p1, p2), p0], odd]
    } else if const { C::PAIRED == 5 }
        && let [p0, p1, p2, p3, p4, ..] = lines
    {
        let (p0, p1, p2) = (isa.line(p0), isa.line(p1), isa.line(p2));
        let (p3, p4) = (isa.line(p3), isa.line(p4));
        // Set if the even coordinate has an outer part; the two of the pair then change places.
        let outer = isa.and(p3, p4);
        let (low, high) = (isa.and(isa.xor(p0, p2), outer), isa.and(p1, outer));
        let odd = [isa.xor(p2, low), isa.xor(isa.xor(p3, outer), high), isa.xor(p4, outer)];
        [[isa.xor(p0, low), isa.xor(p1, high), outer], odd]
    } else {
        let line = isa.line(lines.first().unwrap_or(&super::Line::ZERO));
        [[line; 3]; 2]
    }
}

/// The lines of plain bits of the first or second of two units that share symbols.
#[inline(always)]
pub(super) fn expand<I: Machine, O: Order, const HALF: usize>(isa: I, symbols: Symbols<I>) -> PlainLines<I> {
    let [even, odd] = symbols;
    // Written out: a closure of `map` would be a call without the instruction set.
    let low = O::pair::<I, HALF>(isa, even[0], odd[0]);
    [low, O::pair::<I, HALF>(isa, even[1], odd[1]), O::pair::<I, HALF>(isa, even[2], odd[2]), low]
}

/// The two lines before the first line of a ring, given its last three coded lines, the last one first. In a
/// ring of one line, all three are that line. `shifted`: the ring begins at the third byte.
#[inline(always)]
pub(super) fn before_first<I: Machine, O: Order>(
    isa: I,
    last: [I::Line; 3],
    units: usize,
    shifted: bool,
) -> [I::Line; 2] {
    let [a, b, c] = last;
    if shifted {
        if units == 1 {
            // Two coordinates of every bit: four bytes back is two bits.
            let near = isa.rotate(isa.rotate(a));
            return [near, isa.rotate(isa.rotate(near))];
        }
        let near = isa.rotate(O::follow::<I, 2>(isa, a, b));
        return [near, isa.rotate(O::follow::<I, 2>(isa, b, if units == 2 { near } else { c }))];
    }
    let near = isa.rotate(a);
    [near, isa.rotate(if units == 1 { near } else { b })]
}

/// Levels of the eight coordinates of every byte of a unit: line b holds those of bit b.
#[inline(always)]
pub(super) fn levels<I: Machine, C: Planes, O: Order>(
    isa: I,
    now: I::Line,
    before: [I::Line; 2],
    plain: PlainLines<I>,
    tables: Tables<I>,
) -> [I::Line; 8] {
    if const { C::QUARTERS.is_some() } {
        return isa.step(
            #[inline(always)]
            |isa| levels_of_quarters::<I, C, O>(isa, now, before, plain, tables),
        );
    }
    let [table, ..] = tables;
    isa.step(
        #[inline(always)]
        |isa| levels_in_line::<I, C, O>(isa, now, before, plain, table),
    )
}

/// The levels of a code; of codes of quarters, those of the first, second and last quarter. The third quarter
/// has the levels of one of its neighbours. Other codes use the first only.
pub(super) type Tables<I> = [<I as Machine>::Levels; 3];

/// The levels from which [`Tables`] are made.
pub(super) const fn all_levels<C: Planes>(levels: &[i8; MAX_LEVELS]) -> [&[i8; MAX_LEVELS]; 3] {
    match C::QUARTERS {
        Some([first, second, _, last]) => [&first.levels, &second.levels, &last.levels],
        None => [levels; 3],
    }
}

/// [`levels`] for codes of quarters: bits 2 q and 2 q + 1 of a byte belong to quarter q. The high half of the
/// last plane's bytes holds two index bits of bit 0, then two of bit 1. The low half of a second plane holds
/// the fifth index bits of bits 2 to 5.
#[inline(always)]
fn levels_of_quarters<I: Machine, C: Planes, O: Order>(
    isa: I,
    now: I::Line,
    before: [I::Line; 2],
    plain: PlainLines<I>,
    tables: Tables<I>,
) -> [I::Line; 8] {
    let [first, second, last] = tables;
    let [j0, j1, ..] = plain;
    let [z0, z1, z2] = parities::<I, C>(isa, &earlier::<I, O>(isa, now, before));
    let nibbles = nibbles(isa, [z0, z1, z2, j0]);
    // A plane without bits for a quarter holds others there, which its table ignores.
    let upper = if const { C::PLAIN == 1 } { j0 } else { j1 };
    let lines = [
        isa.look_up::<6>(isa.merge::<0x0f>(nibbles[0], upper), first),
        isa.look_up::<6>(isa.merge::<0x0f>(nibbles[1], isa.down::<2>(upper)), first),
    ];
    let rest = if const { C::PLAIN == 1 } {
        [
            isa.look_up::<4>(nibbles[2], second),
            isa.look_up::<4>(nibbles[3], second),
            isa.look_up::<4>(nibbles[4], last),
            isa.look_up::<4>(nibbles[5], last),
        ]
    } else {
        [
            isa.look_up::<5>(isa.merge::<0x0f>(nibbles[2], isa.up::<4>(upper)), second),
            isa.look_up::<5>(isa.merge::<0x0f>(nibbles[3], isa.up::<3>(upper)), second),
            isa.look_up::<5>(isa.merge::<0x0f>(nibbles[4], isa.up::<2>(upper)), second),
            isa.look_up::<5>(isa.merge::<0x0f>(nibbles[5], isa.up::<1>(upper)), second),
        ]
    };
    let end = [isa.look_up::<4>(nibbles[6], last), isa.look_up::<4>(nibbles[7], last)];
    [lines[0], lines[1], rest[0], rest[1], rest[2], rest[3], end[0], end[1]]
}

/// The four lowest index bits of the eight coordinates of every byte, from their planes, lowest first. The
/// bits above them are undefined.
#[inline(always)]
fn nibbles<I: Machine>(isa: I, [z0, z1, z2, j0]: [I::Line; 4]) -> [I::Line; 8] {
    let [a, b] = swap::<I, 1, 0x55>(isa, z0, z1);
    let [c, d] = swap::<I, 1, 0x55>(isa, z2, j0);
    let ([n0, n2], [n1, n3]) = (swap::<I, 2, 0x33>(isa, a, c), swap::<I, 2, 0x33>(isa, b, d));
    [n0, n1, n2, n3, isa.down::<4>(n0), isa.down::<4>(n1), isa.down::<4>(n2), isa.down::<4>(n3)]
}

#[inline(always)]
fn levels_in_line<I: Machine, C: Planes, O: Order>(
    isa: I,
    now: I::Line,
    before: [I::Line; 2],
    plain: PlainLines<I>,
    table: I::Levels,
) -> [I::Line; 8] {
    let [a, b, c, d] = plain;
    let (parities, plain) = if const { C::GENERATORS.is_some() } {
        (parities::<I, C>(isa, &earlier::<I, O>(isa, now, before)), [a, b, c])
    } else {
        ([now, a, b], [c, d, d])
    };
    levels_of_planes::<I, C>(isa, parities, plain, table)
}

/// Levels of the eight coordinates of every byte of the index planes, lowest first.
#[inline(always)]
pub(crate) fn levels_of_planes<I: Machine, C: Planes>(
    isa: I,
    [z0, z1, z2]: [I::Line; 3],
    [j0, j1, j2]: [I::Line; 3],
    table: I::Levels,
) -> [I::Line; 8] {
    // Without plain bits any fourth plane is correct, because the level table repeats.
    let j0 = if C::PLAIN == 0 { z2 } else { j0 };
    let nibbles = nibbles(isa, [z0, z1, z2, j0]);
    match C::PLAIN {
        2 => {
            // Bit 4 of the index of coordinate b is bit b of the plane.
            let fifth = [
                isa.up::<4>(j1),
                isa.up::<3>(j1),
                isa.up::<2>(j1),
                isa.up::<1>(j1),
                j1,
                isa.down::<1>(j1),
                isa.down::<2>(j1),
                isa.down::<3>(j1),
            ];
            eight!(|B| isa.look_up::<5>(isa.merge::<0x0f>(nibbles[B], fifth[B]), table))
        }
        3 => {
            let [even, odd] = swap::<I, 1, 0x55>(isa, j1, j2);
            let upper = [
                isa.up::<4>(even),
                isa.up::<4>(odd),
                isa.up::<2>(even),
                isa.up::<2>(odd),
                even,
                odd,
                isa.down::<2>(even),
                isa.down::<2>(odd),
            ];
            eight!(|B| isa.look_up::<6>(isa.merge::<0x0f>(nibbles[B], upper[B]), table))
        }
        _ => eight!(|B| isa.look_up::<4>(nibbles[B], table)),
    }
}
