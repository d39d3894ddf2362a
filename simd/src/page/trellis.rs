//! Trellis codes on lines: from bit planes to levels without leaving the registers.
//!
//! A unit of lines is four bytes of every plane of 16 tokens: the coded plane, then the plain ones. A
//! coded bit `a` coordinates back is a byte `a` places back, so each parity plane is an XOR of a few
//! shifted copies of the coded plane; at the beginning of a vector the ring closes, which is the last
//! bytes rotated by a bit. Then parity and plain planes are transposed by swapping bits between
//! registers, until every byte holds whole indices, and a look-up gives levels.
//!
//! ```text
//! coded line, the two before it -> 9 shifts -> 3 XORs of taps -> planes z0 z1 z2 | j0 j1 j2
//!   planes -> pairs of bits -> nibbles of two coordinates -> 8 lines of indices -> 8 lines of levels
//! ```
//!
//! Keys have the four bytes of a token in a dword, values one byte of four tokens: shifts move bytes
//! inside dwords or dwords inside 128 bits, and the rest is the same.

use super::Line;
use crate::lines::Machine;
use tqkv_core::CodecId;
use tqkv_core::trellis::Plain;

/// A trellis code, known when the kernel is compiled.
pub(super) trait Code {
    /// Plain bits of a coordinate, 0 to 3.
    const PLAIN: usize;
    /// Taps of the parity bits, most significant parity first.
    const GENERATORS: [u16; 3];
}

/// Where the bytes of a plane follow one another in a line.
pub(super) trait Order {
    /// `now` moved on by `N` bytes, 1 to 3, of the plane; the last ones of `before` come in.
    fn follow<I: Machine, const N: usize>(isa: I, now: I::Line, before: I::Line) -> I::Line;
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
}

impl Order for InQuads {
    #[inline(always)]
    fn follow<I: Machine, const N: usize>(isa: I, now: I::Line, before: I::Line) -> I::Line {
        isa.follow_dwords::<N>(now, before)
    }
}

macro_rules! codes {
    ($dollar:tt $($name:ident $id:ident;)*) => {
        $(
            pub(super) struct $name;
            impl Code for $name {
                const PLAIN: usize = match tqkv_core::trellis::trellis(CodecId::$id) {
                    Some(trellis) => match trellis.code.plain {
                        Plain::Bits(bits) => bits as usize,
                        Plain::PairBit | Plain::PairOfThree => panic!("no page kernel for half rates"),
                    },
                    None => panic!("a trellis codec"),
                };
                const GENERATORS: [u16; 3] = match tqkv_core::trellis::trellis(CodecId::$id) {
                    Some(trellis) => trellis.code.generators,
                    None => panic!("a trellis codec"),
                };
            }
        )*

        /// Runs `$body` with `$c` as the code of a codec, or `$other` where it has none.
        macro_rules! with_code {
            ($dollar codec:expr, $dollar c:ident => $dollar body:expr, _ => $dollar other:expr) => {
                match $dollar codec {
                    $(
                        tqkv_core::CodecId::$id => {
                            type $dollar c = crate::page::trellis::$name;
                            $dollar body
                        }
                    )*
                    _ => $dollar other,
                }
            };
        }
        pub(super) use with_code;

        /// Whether there are page kernels for a codec's trellis.
        pub(super) const fn is_woven(id: CodecId) -> bool {
            matches!(id, $(CodecId::$id)|*)
        }
    };
}

codes! {
    $
    T1 T1;
    T2 T2;
    T3 T3;
    T4 T4;
    T1S8 T1S8;
    T2S8 T2S8;
    T3S8 T3S8;
    T4S8 T4S8;
}

/// Parity bits of a line of coded bits, least significant first; `before` are the lines before it,
/// the nearest first.
#[inline(always)]
fn parities<I: Machine, C: Code, O: Order>(isa: I, now: I::Line, before: [I::Line; 2]) -> [I::Line; 3] {
    let [near, far] = before;
    let earlier = [
        now,
        O::follow::<I, 1>(isa, now, near),
        O::follow::<I, 2>(isa, now, near),
        O::follow::<I, 3>(isa, now, near),
        near,
        O::follow::<I, 1>(isa, near, far),
        O::follow::<I, 2>(isa, near, far),
        O::follow::<I, 3>(isa, near, far),
        far,
    ];
    let [high, middle, low] = C::GENERATORS;
    [parity(isa, low, &earlier), parity(isa, middle, &earlier), parity(isa, high, &earlier)]
}

/// XOR of the tapped lines; `taps` is a constant where this is inlined.
#[inline(always)]
fn parity<I: Machine>(isa: I, taps: u16, earlier: &[I::Line; 9]) -> I::Line {
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

/// An array of eight, written out: arrays of registers must not be looped over.
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

/// Groups of `N` bits: those of even groups of `a` and `b`, then those of odd ones, `a` below `b`.
#[inline(always)]
fn swap<I: Machine, const N: u32, const EVEN: u8>(isa: I, a: I::Line, b: I::Line) -> [I::Line; 2] {
    [isa.merge::<EVEN>(a, isa.up::<N>(b)), isa.merge::<EVEN>(isa.down::<N>(a), b)]
}

/// Levels of the eight coordinates of every byte of a unit: line b holds those of bit b.
#[inline(always)]
pub(super) fn levels<I: Machine, C: Code, O: Order>(
    isa: I,
    now: I::Line,
    before: [I::Line; 2],
    plain: &[Line],
    table: I::Levels,
) -> [I::Line; 8] {
    let [z0, z1, z2] = parities::<I, C, O>(isa, now, before);
    // Without plain bits any fourth plane does, as the level table repeats.
    let j0 = plain.first().map_or(z2, |line| isa.line(line));
    let [a, b] = swap::<I, 1, 0x55>(isa, z0, z1);
    let [c, d] = swap::<I, 1, 0x55>(isa, z2, j0);
    let ([n0, n2], [n1, n3]) = (swap::<I, 2, 0x33>(isa, a, c), swap::<I, 2, 0x33>(isa, b, d));
    let nibbles =
        [n0, n1, n2, n3, isa.down::<4>(n0), isa.down::<4>(n1), isa.down::<4>(n2), isa.down::<4>(n3)];
    match plain {
        [_, one] if C::PLAIN == 2 => {
            let j = isa.line(one);
            // Bit 4 of the index of coordinate b is bit b of the plane.
            let fifth = [
                isa.up::<4>(j),
                isa.up::<3>(j),
                isa.up::<2>(j),
                isa.up::<1>(j),
                j,
                isa.down::<1>(j),
                isa.down::<2>(j),
                isa.down::<3>(j),
            ];
            eight!(|B| isa.look_up::<5>(isa.merge::<0x0f>(nibbles[B], fifth[B]), table))
        }
        [_, one, two] if C::PLAIN == 3 => {
            let [even, odd] = swap::<I, 1, 0x55>(isa, isa.line(one), isa.line(two));
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
