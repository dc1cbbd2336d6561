//! f16 and bf16, alone and in pairs: computed in f64 and rounded once.

use super::floats::{to_odd, two_sum};
use super::{Brain, Half, Lane, One, Three, Two, Type, one, three, two};

/// A float of 16 bits.
pub trait Narrow: Lane {
    /// Exactly.
    fn wide(self) -> f64;
    /// Rounds to the nearest, ties to even.
    fn narrow(value: f64) -> Self;
}

impl Narrow for Half {
    fn wide(self) -> f64 {
        self.to_f64()
    }

    fn narrow(value: f64) -> Half {
        if value.is_nan() { Half::from_bits(0x7FFF) } else { Half::from_f64(value) }
    }
}

impl Narrow for Brain {
    fn wide(self) -> f64 {
        self.to_f64()
    }

    fn narrow(value: f64) -> Brain {
        if value.is_nan() { Brain::from_bits(0x7FFF) } else { Brain::from_f64(value) }
    }
}

/// Chooses the function of a type, and whether it goes over pairs.
macro_rules! by_half {
    ($kind:expr, $function:ident ( $($argument:expr),* )) => {
        match $kind {
            Type::F16 => $function::<Half>($($argument,)* false),
            Type::Bf16 => $function::<Brain>($($argument,)* false),
            Type::F16x2 => $function::<Half>($($argument,)* true),
            Type::Bf16x2 => $function::<Brain>($($argument,)* true),
            _ => None,
        }
    };
}

/// Operations of one operand.
pub fn unary(name: &str, kind: Type) -> Option<One> {
    by_half!(kind, unary_of(name))
}

fn unary_of<T: Narrow>(name: &str, pairs: bool) -> Option<One> {
    let f: fn(f64) -> f64 = match name {
        "neg" => |x| -x,
        "abs" => f64::abs,
        "ex2" => f64::exp2,
        "tanh" => f64::tanh,
        _ => return None,
    };
    let f = move |x: T| T::narrow(f(x.wide()));
    Some(if pairs { one(move |x: [T; 2]| x.map(f)) } else { one(f) })
}

/// Operations of two operands.
pub fn binary(name: &str, kind: Type, saturate: bool) -> Option<Two> {
    by_half!(kind, binary_of(name, saturate))
}

fn binary_of<T: Narrow>(name: &str, saturate: bool, pairs: bool) -> Option<Two> {
    let f: fn(f64, f64) -> f64 = match name {
        "add" => |a, b| sum(a, b),
        "sub" => |a, b| sum(a, -b),
        "mul" => |a, b| a * b,
        "min" => f64::min,
        "max" => f64::max,
        "min.nan" => |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) },
        "max.nan" => |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) },
        _ => return None,
    };
    let f = move |a: T, b: T| T::narrow(kept(f(a.wide(), b.wide()), saturate));
    Some(match pairs {
        true => two(move |a: [T; 2], b: [T; 2]| [f(a[0], b[0]), f(a[1], b[1])]),
        false => two(f),
    })
}

fn kept(x: f64, saturate: bool) -> f64 {
    match saturate {
        true if x.is_nan() => 0.0,
        true => x.clamp(0.0, 1.0),
        false => x,
    }
}

/// A sum that can be rounded once more.
fn sum(a: f64, b: f64) -> f64 {
    let (sum, error) = two_sum(a, b);
    to_odd(sum, error)
}

/// Products with a sum, rounded once.
pub fn fused(kind: Type, saturate: bool, relu: bool) -> Option<Three> {
    by_half!(kind, fused_of(saturate, relu))
}

fn fused_of<T: Narrow>(saturate: bool, relu: bool, pairs: bool) -> Option<Three> {
    let f = move |a: T, b: T, c: T| {
        let value = kept(sum(a.wide() * b.wide(), c.wide()), saturate);
        T::narrow(if relu && value < 0.0 { 0.0 } else { value })
    };
    Some(match pairs {
        true => {
            three(move |a: [T; 2], b: [T; 2], c: [T; 2]| [f(a[0], b[0], c[0]), f(a[1], b[1], c[1])])
        }
        false => three(f),
    })
}
