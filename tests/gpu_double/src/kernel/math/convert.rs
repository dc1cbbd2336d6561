//! Conversions between all types, with all roundings.

use super::floats::{Rounding, rounded};
use super::halves::Narrow;
use super::integers::{Integer, by_type};
use super::{Brain, Half, Lane, One, Two, Type, one, two};

/// The modifiers of a conversion.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// The rounding of the result to its type.
    pub rounding: Rounding,
    /// Whether it is rounded to an integer, and stays a float.
    pub integer: bool,
    /// Whether f32 that is subnormal is taken for 0.
    pub flush: bool,
    /// Whether floats are kept between 0 and 1, and integers between their limits.
    pub saturate: bool,
    /// Whether negative results are taken for 0.
    pub relu: bool,
}

/// Makes a conversion from one type to another.
pub fn convert(to: Type, from: Type, manner: Manner) -> Option<One> {
    let plain = !manner.saturate && !manner.flush && !manner.integer && !manner.relu;
    let nearest = plain && manner.rounding == Rounding::Nearest;
    match (to, from) {
        (Type::F32, Type::Bf16) if plain => Some(one(|x: u32| x << 16)),
        (Type::F32, Type::F16) if plain => Some(one(|x: Half| x.to_f32())),
        (Type::Bf16, Type::F32) if nearest => Some(one(|x: f32| Brain::narrow(f64::from(x)))),
        (Type::F16, Type::F32) if nearest => Some(one(|x: f32| Half::narrow(f64::from(x)))),
        (Type::F32, Type::S32) if nearest => Some(one(|x: i32| x as f32)),
        (Type::F32, Type::U32) if nearest => Some(one(|x: u32| x as f32)),
        (Type::F32, Type::S64) if nearest => Some(one(|x: i64| x as f32)),
        (Type::F32, Type::U64) if nearest => Some(one(|x: u64| x as f32)),
        (Type::Tf32, Type::F32) => Some(one(tf32(manner.rounding))),
        (Type::F64 | Type::F32 | Type::F16 | Type::Bf16, _) => to_float(to, from, manner),
        _ if from.integer() => by_type!(from, from_integer(to, manner)),
        _ => {
            let read = reader(from, manner.flush)?;
            by_type!(to, float_to_integer(read, manner.rounding))
        }
    }
}

fn from_integer<F: Integer>(to: Type, manner: Manner) -> Option<One> {
    by_type!(to, integer_to_integer(manner.saturate, signed_reader::<F>()))
}

fn signed_reader<F: Integer>() -> fn(u64) -> i128 {
    |bits| F::of(bits).wide()
}

fn integer_to_integer<T: Integer>(saturate: bool, read: fn(u64) -> i128) -> Option<One> {
    Some(match saturate {
        true => one(move |x: u64| T::nearest(read(x))),
        false => one(move |x: u64| T::narrow(read(x))),
    })
}

/// 13 bits less, rounded.
fn tf32(rounding: Rounding) -> impl Fn(u32) -> u32 {
    move |x| {
        let half = match rounding {
            Rounding::Away => 0x1000,
            Rounding::Zero => 0,
            _ => 0xFFF + (x >> 13 & 1),
        };
        let finite = x & 0x7F80_0000 != 0x7F80_0000;
        if finite { x.wrapping_add(half) & !0x1FFF } else { x }
    }
}

/// Returns the function that reads a value of a type as f64.
fn reader(from: Type, flush: bool) -> Option<fn(u64) -> f64> {
    Some(match from {
        Type::F64 => f64::of,
        Type::F32 if flush => |x| {
            let x = f32::of(x);
            f64::from(if x.is_subnormal() { 0f32.copysign(x) } else { x })
        },
        Type::F32 => |x| f64::from(f32::of(x)),
        Type::F16 => |x| Half::of(x).wide(),
        Type::Bf16 => |x| Brain::of(x).wide(),
        Type::U8 => |x| f64::from(x as u8),
        Type::S8 => |x| f64::from(x as i8),
        Type::U16 => |x| f64::from(x as u16),
        Type::S16 => |x| f64::from(x as i16),
        Type::U32 => |x| f64::from(x as u32),
        Type::S32 => |x| f64::from(x as i32),
        Type::U64 => |x| x as f64,
        Type::S64 => |x| x as i64 as f64,
        _ => return None,
    })
}

fn to_float(to: Type, from: Type, manner: Manner) -> Option<One> {
    let read = reader(from, manner.flush)?;
    let write: fn(f64, Rounding) -> u64 = match to {
        Type::F64 => |x, _| x.bits(),
        Type::F32 => |x, rounding| canonical(rounded(x, 0.0, rounding)),
        Type::F16 => |x, rounding| narrowed::<Half>(x, rounding),
        _ => |x, rounding| narrowed::<Brain>(x, rounding),
    };
    Some(one(move |bits: u64| {
        let value = read(bits);
        let value = if manner.integer { whole(value, manner.rounding) } else { value };
        let value = if manner.saturate { kept(value) } else { value };
        let value =
            if manner.relu && (value < 0.0 || value.is_nan()) { relu(value) } else { value };
        let result = write(value, manner.rounding);
        if manner.flush && to == Type::F32 { flushed(result) } else { result }
    }))
}

fn relu(value: f64) -> f64 {
    if value.is_nan() { value } else { 0.0 }
}

fn kept(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) }
}

fn canonical(x: f32) -> u64 {
    if x.is_nan() { 0x7FFF_FFFF } else { x.bits() }
}

fn flushed(bits: u64) -> u64 {
    if f32::of(bits).is_subnormal() { bits & 0x8000_0000 } else { bits }
}

/// Rounds to a type of 16 bits. The nearest number is one off at most.
fn narrowed<T: Narrow>(x: f64, rounding: Rounding) -> u64 {
    let near = T::narrow(x);
    let far = near.wide().abs() > x.abs();
    let bits = near.bits();
    let up = near.wide() > x;
    let down = near.wide() < x;
    match rounding {
        Rounding::Zero if far => bits - 1,
        Rounding::Down if up => step(bits, false),
        Rounding::Up if down => step(bits, true),
        _ => bits,
    }
}

/// The next number of 16 bits up or down.
fn step(bits: u64, up: bool) -> u64 {
    let negative = bits & 0x8000 != 0;
    match (bits & 0x7FFF == 0, negative == up) {
        (true, _) => {
            if up {
                1
            } else {
                0x8001
            }
        }
        (false, true) => bits - 1,
        (false, false) => bits + 1,
    }
}

/// A whole number as a float.
pub fn whole(x: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => x.round_ties_even(),
        Rounding::Away => x.round(),
        Rounding::Zero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    }
}

/// Numbers beyond the limits become the limits; what is no number becomes 0.
fn float_to_integer<T: Integer>(read: fn(u64) -> f64, rounding: Rounding) -> Option<One> {
    Some(one(move |x: u64| T::nearest(whole(read(x), rounding) as i128)))
}

/// Makes the conversion of two f32 to a pair of 16 bits; the first operand is the upper half.
pub fn pair(to: Type, manner: Manner) -> Option<Two> {
    let kind = match to {
        Type::F16x2 => Type::F16,
        Type::Bf16x2 => Type::Bf16,
        _ => return None,
    };
    let each = move || {
        let write: fn(f64, Rounding) -> u64 = match kind {
            Type::F16 => |x, rounding| narrowed::<Half>(x, rounding),
            _ => |x, rounding| narrowed::<Brain>(x, rounding),
        };
        move |x: f32| {
            let x = f64::from(x);
            write(if manner.relu && x < 0.0 { 0.0 } else { x }, manner.rounding) as u32
        }
    };
    let (upper, lower) = (each(), each());
    Some(two(move |a: f32, b: f32| upper(a) << 16 | lower(b) & 0xFFFF))
}
