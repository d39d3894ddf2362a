//! The arithmetic opcodes that the committed PTX uses.

use half::f16;
use std::cmp::Ordering;

/// An operation on up to three operands, in registers of 64 bits.
pub(crate) type Operation = fn(u64, u64, u64) -> u64;

fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn b(value: f32) -> u64 {
    u64::from(value.to_bits())
}

fn h(bits: u64) -> f32 {
    f16::from_bits(bits as u16).to_f32()
}

fn w(value: i64) -> u64 {
    u64::from(value as u32)
}

fn field(a: u64, position: u64, length: u64, bits: u32) -> i64 {
    let (position, length) = (position & 255, length & 255);
    assert!(length > 0 && position + length <= u64::from(bits), "bit field outside its word");
    (a << (64 - position - length)) as i64 >> (64 - length)
}

/// Selects four of eight bytes. A choice of 8 or more copies the top bit of byte choice - 8.
fn permute(bytes: u64, choices: u64) -> u64 {
    (0..4).fold(0, |word, i| {
        let choice = choices >> (4 * i) & 15;
        let byte = bytes >> (8 * (choice & 7)) & 255;
        word | if choice < 8 { byte } else { 255 * (byte >> 7) } << (8 * i)
    })
}

/// 2^x as hardware may compute it. Subnormal numbers are zero. The result is two units in the last place off,
/// in the direction that x's last bit gives.
fn rough_exp2(x: f32) -> f32 {
    // The manual of PTX has this one exact result for finite arguments.
    if x == 0.0 {
        return 1.0;
    }
    let flushed = |x: f32| if x.is_subnormal() { 0.0f32.copysign(x) } else { x };
    let power = flushed(flushed(x).exp2());
    if power == 0.0 || !power.is_finite() {
        return power;
    }
    let off = if x.to_bits() & 1 == 0 { 2 } else { -2 };
    f32::from_bits(power.to_bits().wrapping_add_signed(off))
}

/// The logarithm to base 2 as hardware may compute it. It is 2^-22 off, or so much of the result if that is
/// more, in the direction that x's last bit gives.
fn rough_log2(x: f32) -> f32 {
    let log = x.log2();
    if x == 1.0 || !log.is_finite() {
        return log;
    }
    let off = log.abs().max(1.0) * if x.to_bits() & 1 == 0 { 1.0 } else { -1.0 };
    log + off * 2.0f32.powi(-22)
}

/// Number of operands and function of an opcode.
pub(crate) fn operation(opcode: &str) -> Option<(usize, Operation)> {
    let found: (usize, Operation) = match opcode {
        "add.rn.f32" => (2, |a, c, _| b(f(a) + f(c))),
        "sub.rn.f32" => (2, |a, c, _| b(f(a) - f(c))),
        "mul.rn.f32" => (2, |a, c, _| b(f(a) * f(c))),
        "div.rn.f32" => (2, |a, c, _| b(f(a) / f(c))),
        "fma.rn.f32" => (3, |a, c, d| b(f(a).mul_add(f(c), f(d)))),
        "sqrt.rn.f32" => (1, |a, _, _| b(f(a).sqrt())),
        "rcp.rn.f32" => (1, |a, _, _| b(1.0 / f(a))),
        "abs.f32" => (1, |a, _, _| b(f(a).abs())),
        "neg.f32" => (1, |a, _, _| b(-f(a))),
        "max.f32" => (2, |a, c, _| b(f(a).max(f(c)))),
        "min.f32" => (2, |a, c, _| b(f(a).min(f(c)))),
        "ex2.approx.ftz.f32" => (1, |a, _, _| b(rough_exp2(f(a)))),
        "lg2.approx.f32" => (1, |a, _, _| b(rough_log2(f(a)))),
        "prmt.b32" => (3, |a, c, d| permute(u64::from(a as u32) | c << 32, d)),
        "cvt.f32.f16" => (1, |a, _, _| b(h(a))),
        "cvt.rn.f16.f32" => (1, |a, _, _| u64::from(f16::from_f32(f(a)).to_bits())),
        "cvt.rn.f32.s32" => (1, |a, _, _| b(a as i32 as f32)),
        "cvt.rn.f32.s16" => (1, |a, _, _| b(f32::from(a as i16))),
        // The conversion saturates, and NaN gives 0, as in a Rust cast.
        "cvt.rzi.s32.f32" => (1, |a, _, _| w(i64::from(f(a) as i32))),
        "cvt.rzi.s16.f32" => (1, |a, _, _| u64::from(f(a) as i16 as u16)),
        "cvt.s32.s16" => (1, |a, _, _| w(i64::from(a as i16))),
        "cvt.s8.s32" => (1, |a, _, _| w(i64::from(a as i8))),
        "cvt.s8.s64" => (1, |a, _, _| i64::from(a as i8) as u64),
        "cvt.u16.u32" | "cvt.u16.u64" => (1, |a, _, _| a & 0xffff),
        "cvt.u32.u16" => (1, |a, _, _| a & 0xffff),
        "cvt.u64.u32" | "cvt.u32.u64" => (1, |a, _, _| u64::from(a as u32)),
        "cvt.u64.u16" => (1, |a, _, _| a & 0xffff),
        "cvta.to.global.u64" | "cvta.global.u64" => (1, |a, _, _| a),
        "mov.b16" | "mov.u16" => (1, |a, _, _| a & 0xffff),
        "mov.b32" | "mov.u32" => (1, |a, _, _| u64::from(a as u32)),
        "mov.b64" | "mov.u64" => (1, |a, _, _| a),
        // True is written as -1.
        "mov.pred" => (1, |a, _, _| a & 1),
        "and.b16" | "and.b32" | "and.b64" | "and.pred" => (2, |a, c, _| a & c),
        "or.b16" | "or.b32" | "or.b64" | "or.pred" => (2, |a, c, _| a | c),
        "xor.b16" | "xor.b32" | "xor.b64" | "xor.pred" => (2, |a, c, _| a ^ c),
        "not.b16" => (1, |a, _, _| !a & 0xffff),
        "not.b32" => (1, |a, _, _| u64::from(!(a as u32))),
        "neg.s32" => (1, |a, _, _| u64::from((a as u32).wrapping_neg())),
        "popc.b32" => (1, |a, _, _| u64::from((a as u32).count_ones())),
        "not.b64" => (1, |a, _, _| !a),
        "not.pred" => (1, |a, _, _| a ^ 1),
        "shl.b16" => (2, |a, c, _| if c as u32 > 15 { 0 } else { a << c & 0xffff }),
        "shl.b32" => (2, |a, c, _| u64::from((a as u32).checked_shl(c as u32).unwrap_or(0))),
        "shl.b64" => (2, |a, c, _| a.checked_shl(c as u32).unwrap_or(0)),
        "shr.u16" => (2, |a, c, _| (a & 0xffff).checked_shr(c as u32).unwrap_or(0)),
        "shr.s16" => (2, |a, c, _| u64::from((a as i16 >> (c as u32).min(15)) as u16)),
        "shr.u32" => (2, |a, c, _| u64::from((a as u32).checked_shr(c as u32).unwrap_or(0))),
        "shr.s32" => (2, |a, c, _| w(i64::from(a as i32 >> (c as u32).min(31)))),
        "shr.u64" => (2, |a, c, _| a.checked_shr(c as u32).unwrap_or(0)),
        "shf.l.wrap.b32" => (3, |a, c, d| {
            let both = u64::from(c as u32) << 32 | u64::from(a as u32);
            (both << (d & 31)) >> 32
        }),
        "shf.r.wrap.b32" => (3, |a, c, d| {
            let both = u64::from(c as u32) << 32 | u64::from(a as u32);
            u64::from((both >> (d & 31)) as u32)
        }),
        "bfe.u32" => (3, |a, c, d| field(a, c, d, 32) as u64 & ((1 << (d & 255)) - 1)),
        "bfe.s32" => (3, |a, c, d| w(field(a, c, d, 32))),
        "bfe.s64" => (3, |a, c, d| field(a, c, d, 64) as u64),
        "add.s16" | "add.u16" => (2, |a, c, _| a.wrapping_add(c) & 0xffff),
        "sub.s16" => (2, |a, c, _| a.wrapping_sub(c) & 0xffff),
        "mul.lo.s16" => (2, |a, c, _| a.wrapping_mul(c) & 0xffff),
        "add.s32" | "add.u32" => (2, |a, c, _| u64::from((a as u32).wrapping_add(c as u32))),
        "sub.s32" => (2, |a, c, _| u64::from((a as u32).wrapping_sub(c as u32))),
        "mul.lo.s32" => (2, |a, c, _| u64::from((a as u32).wrapping_mul(c as u32))),
        "mad.lo.s32" => (3, |a, c, d| u64::from((a as u32).wrapping_mul(c as u32).wrapping_add(d as u32))),
        "add.s64" | "add.u64" => (2, |a, c, _| a.wrapping_add(c)),
        "sub.s64" => (2, |a, c, _| a.wrapping_sub(c)),
        "mul.lo.s64" => (2, |a, c, _| a.wrapping_mul(c)),
        "mad.lo.s64" => (3, |a, c, d| a.wrapping_mul(c).wrapping_add(d)),
        "max.s16" => (2, |a, c, _| u64::from((a as i16).max(c as i16) as u16)),
        "mul.wide.s32" => (2, |a, c, _| (i64::from(a as i32) * i64::from(c as i32)) as u64),
        "mul.wide.u32" => (2, |a, c, _| u64::from(a as u32) * u64::from(c as u32)),
        "mul.hi.u32" => (2, |a, c, _| (u64::from(a as u32) * u64::from(c as u32)) >> 32),
        "mul.wide.u16" => (2, |a, c, _| (a & 0xffff) * (c & 0xffff)),
        "mad.wide.u32" => (3, |a, c, d| (u64::from(a as u32) * u64::from(c as u32)).wrapping_add(d)),
        "div.u32" => (2, |a, c, _| u64::from(a as u32 / c as u32)),
        "rem.u32" => (2, |a, c, _| u64::from(a as u32 % c as u32)),
        "min.u32" => (2, |a, c, _| u64::from((a as u32).min(c as u32))),
        "max.u32" => (2, |a, c, _| u64::from((a as u32).max(c as u32))),
        "min.s32" => (2, |a, c, _| w(i64::from((a as i32).min(c as i32)))),
        "max.s32" => (2, |a, c, _| w(i64::from((a as i32).max(c as i32)))),
        "setp.eq.f32" => (2, |a, c, _| u64::from(f(a) == f(c))),
        "setp.ne.f32" => (2, |a, c, _| u64::from(f(a) < f(c) || f(a) > f(c))),
        "setp.neu.f32" => (2, |a, c, _| u64::from(f(a) != f(c))),
        "setp.ge.f32" => (2, |a, c, _| u64::from(f(a) >= f(c))),
        "setp.gt.f32" => (2, |a, c, _| u64::from(f(a) > f(c))),
        "setp.le.f32" => (2, |a, c, _| u64::from(f(a) <= f(c))),
        "setp.lt.f32" => (2, |a, c, _| u64::from(f(a) < f(c))),
        "setp.ltu.f32" => (2, |a, c, _| u64::from(f(a).partial_cmp(&f(c)).is_none_or(Ordering::is_lt))),
        "setp.leu.f32" => (2, |a, c, _| u64::from(f(a).partial_cmp(&f(c)).is_none_or(Ordering::is_le))),
        "setp.geu.f32" => (2, |a, c, _| u64::from(f(a).partial_cmp(&f(c)).is_none_or(Ordering::is_ge))),
        "setp.gtu.f32" => (2, |a, c, _| u64::from(f(a).partial_cmp(&f(c)).is_none_or(Ordering::is_gt))),
        "setp.nan.f32" => (2, |a, c, _| u64::from(f(a).is_nan() || f(c).is_nan())),
        "setp.eq.f16" => (2, |a, c, _| u64::from(h(a) == h(c))),
        "setp.eq.b16" => (2, |a, c, _| u64::from(a as u16 == c as u16)),
        "setp.ne.b16" => (2, |a, c, _| u64::from(a as u16 != c as u16)),
        "setp.gt.u16" => (2, |a, c, _| u64::from(a as u16 > c as u16)),
        "setp.lt.u16" => (2, |a, c, _| u64::from((a as u16) < c as u16)),
        "setp.gt.s16" => (2, |a, c, _| u64::from(a as i16 > c as i16)),
        "setp.eq.b32" => (2, |a, c, _| u64::from(a as u32 == c as u32)),
        "setp.ne.b32" => (2, |a, c, _| u64::from(a as u32 != c as u32)),
        "setp.ge.u32" => (2, |a, c, _| u64::from(a as u32 >= c as u32)),
        "setp.gt.u32" => (2, |a, c, _| u64::from(a as u32 > c as u32)),
        "setp.le.u32" => (2, |a, c, _| u64::from(a as u32 <= c as u32)),
        "setp.lt.u32" => (2, |a, c, _| u64::from((a as u32) < c as u32)),
        "setp.lt.s32" => (2, |a, c, _| u64::from((a as i32) < c as i32)),
        "setp.gt.s32" => (2, |a, c, _| u64::from(a as i32 > c as i32)),
        "setp.eq.b64" => (2, |a, c, _| u64::from(a == c)),
        "setp.ne.b64" => (2, |a, c, _| u64::from(a != c)),
        "setp.lt.u64" => (2, |a, c, _| u64::from(a < c)),
        _ => return None,
    };
    Some(found)
}
