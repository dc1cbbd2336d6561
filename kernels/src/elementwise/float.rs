//! Functions of `f32` on blocks.

use graphc_ir::float8::{E4M3, E5M2};
use graphc_ir::ops::{BinaryFunction, UnaryFunction};

use super::merge::{BoundedArithmetic, Framed, Operator};
use super::values::zip_elements;
use crate::math;
use crate::simd::vectorized;

#[inline(always)]
fn map_elements(x: &[f32], out: &mut [f32], f: impl Fn(f32) -> f32) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = f(x);
    }
}

vectorized! {
    /// A function of one operand. What is called is a function, not a closure, where it is long: see `vectorized`.
    pub(super) fn apply_unary(function: UnaryFunction, x: &[f32], out: &mut [f32]) {
        match function {
            UnaryFunction::Relu => map_elements(x, out, |x| if x < 0.0 { 0.0 } else { x }),
            UnaryFunction::Gelu => map_elements(x, out, math::gelu),
            UnaryFunction::GeluTanh => map_elements(x, out, math::gelu_tanh),
            UnaryFunction::Sigmoid => map_elements(x, out, math::sigmoid),
            UnaryFunction::Tanh => map_elements(x, out, math::tanh),
            UnaryFunction::Silu => map_elements(x, out, math::silu),
            UnaryFunction::Exp => map_elements(x, out, math::exp),
            UnaryFunction::Log => map_elements(x, out, math::log),
            UnaryFunction::Sqrt => map_elements(x, out, f32::sqrt),
            UnaryFunction::Rsqrt => map_elements(x, out, |x| 1.0 / x.sqrt()),
            UnaryFunction::Abs => map_elements(x, out, f32::abs),
            UnaryFunction::Neg => map_elements(x, out, |x| -x),
            UnaryFunction::Sign => map_elements(x, out, sign_of),
            UnaryFunction::Erf => map_elements(x, out, math::erf),
            UnaryFunction::Sin => map_elements(x, out, f32::sin),
            UnaryFunction::Cos => map_elements(x, out, f32::cos),
            UnaryFunction::Floor => map_elements(x, out, f32::floor),
            UnaryFunction::Ceil => map_elements(x, out, f32::ceil),
            UnaryFunction::Round => map_elements(x, out, f32::round_ties_even),
            UnaryFunction::Reciprocal => map_elements(x, out, |x| 1.0 / x),
            UnaryFunction::Detach => map_elements(x, out, |x| x),
            UnaryFunction::Not => map_elements(x, out, |x| if x == 0.0 { 1.0 } else { 0.0 }),
            UnaryFunction::Scale(value) => {
                let value = value.0 as f32;
                map_elements(x, out, |x| x * value);
            }
            UnaryFunction::Offset(value) => {
                let value = value.0 as f32;
                map_elements(x, out, |x| x + value);
            }
            UnaryFunction::PowScalar(value) => raise_to_power(value.0, x, out),
            UnaryFunction::Clip { low, high } => {
                let (low, high) = (low.0 as f32, high.0 as f32);
                map_elements(x, out, |x| clamp_value(x, low, high));
            }
        }
    }
}

vectorized! {
    /// A function in its frame.
    pub(super) fn apply_framed(of: &Framed, x: &[f32], out: &mut [f32]) {
        let Framed { before, offset, scale, .. } = *of;
        // Loops written out: of a function that is given to another one the compiler may make a call.
        match of.function {
            UnaryFunction::Erf => {
                for (out, &x) in out.iter_mut().zip(x) {
                    *out = (math::erf(x * before) + offset) * scale;
                }
            }
            UnaryFunction::Exp => {
                for (out, &x) in out.iter_mut().zip(x) {
                    *out = (math::exp(x * before) + offset) * scale;
                }
            }
            _ => unreachable!("no other function has a frame"),
        }
    }
}

/// A value between bounds: a NaN stays one.
#[inline(always)]
fn clamp_value(x: f32, low: f32, high: f32) -> f32 {
    let lowered = if x > high { high } else { x };
    if x < low { low } else { lowered }
}

/// Writes `f` of two numbers of which the first are `a`, or, where there is no `a`, what `out` has.
#[inline(always)]
fn apply_bounded(
    of: &BoundedArithmetic,
    a: Option<&[f32]>,
    b: &[f32],
    out: &mut [f32],
    f: impl Fn(f32, f32) -> f32,
) {
    let (low, high) = (of.low, of.high);
    match a {
        Some(a) => zip_elements(a, b, out, |a, b| clamp_value(f(a, b), low, high)),
        None => {
            for (out, &b) in out.iter_mut().zip(b) {
                *out = clamp_value(f(*out, b), low, high);
            }
        }
    }
}

vectorized! {
    /// Computes one operation of two operands, of which the first is what `out` has where there is no `a`.
    pub(super) fn of_two(of: &BoundedArithmetic, a: Option<&[f32]>, b: &[f32], out: &mut [f32]) {
        match of.first {
            Operator::Add => apply_bounded(of, a, b, out, |a, b| a + b),
            Operator::Sub => apply_bounded(of, a, b, out, |a, b| a - b),
            Operator::From => apply_bounded(of, a, b, out, |a, b| b - a),
            Operator::Mul => apply_bounded(of, a, b, out, |a, b| a * b),
        }
    }
}

/// Operands of two operations; without the first they go over what is there.
type Three<'a> = (Option<&'a [f32]>, [&'a [f32]; 2]);

/// Whatever is done with what `f` gives and the third operand.
#[inline(always)]
fn apply_third_operand(
    of: &BoundedArithmetic,
    x: Three<'_>,
    out: &mut [f32],
    f: impl Fn(f32, f32) -> f32,
) {
    match of.second {
        Some(Operator::Add) | None => bounded_three(of, x, out, |a, b, c| f(a, b) + c),
        Some(Operator::Sub) => bounded_three(of, x, out, |a, b, c| f(a, b) - c),
        Some(Operator::From) => bounded_three(of, x, out, |a, b, c| c - f(a, b)),
        Some(Operator::Mul) => bounded_three(of, x, out, |a, b, c| f(a, b) * c),
    }
}

#[inline(always)]
fn bounded_three(
    of: &BoundedArithmetic,
    (a, [b, c]): Three<'_>,
    out: &mut [f32],
    f: impl Fn(f32, f32, f32) -> f32,
) {
    let (low, high) = (of.low, of.high);
    match a {
        Some(a) => {
            for (((out, &a), &b), &c) in out.iter_mut().zip(a).zip(b).zip(c) {
                *out = clamp_value(f(a, b, c), low, high);
            }
        }
        None => {
            for ((out, &b), &c) in out.iter_mut().zip(b).zip(c) {
                *out = clamp_value(f(*out, b, c), low, high);
            }
        }
    }
}

vectorized! {
    /// Computes two operations of three operands, of which the first is what `out` has where there is none.
    pub(super) fn of_three(of: &BoundedArithmetic, x: Three<'_>, out: &mut [f32]) {
        match of.first {
            Operator::Add => apply_third_operand(of, x, out, |a, b| a + b),
            Operator::Sub => apply_third_operand(of, x, out, |a, b| a - b),
            Operator::From => apply_third_operand(of, x, out, |a, b| b - a),
            Operator::Mul => apply_third_operand(of, x, out, |a, b| a * b),
        }
    }
}

#[inline(always)]
fn sign_of(x: f32) -> f32 {
    let positive = if x > 0.0 { 1.0 } else { 0.0 };
    if x < 0.0 { -1.0 } else { positive }
}

/// x to a fixed power; the usual ones without the general function.
#[inline(always)]
fn raise_to_power(value: f64, x: &[f32], out: &mut [f32]) {
    if value == 2.0 {
        map_elements(x, out, |x| x * x);
    } else if value == 3.0 {
        map_elements(x, out, |x| x * x * x);
    } else if value == 1.0 {
        out.copy_from_slice(x);
    } else if value == -1.0 {
        map_elements(x, out, |x| 1.0 / x);
    } else if value == -2.0 {
        map_elements(x, out, |x| 1.0 / (x * x));
    } else {
        let value = value as f32;
        map_elements(x, out, |x| x.powf(value));
    }
}

vectorized! {
    /// Arithmetic of two operands.
    pub(super) fn apply_binary(function: BinaryFunction, a: &[f32], b: &[f32], out: &mut [f32]) {
        match function {
            BinaryFunction::Add => zip_elements(a, b, out, |a, b| a + b),
            BinaryFunction::Sub => zip_elements(a, b, out, |a, b| a - b),
            BinaryFunction::Mul => zip_elements(a, b, out, |a, b| a * b),
            BinaryFunction::Div => zip_elements(a, b, out, |a, b| a / b),
            BinaryFunction::Pow => zip_elements(a, b, out, f32::powf),
            // A NaN stays a NaN.
            BinaryFunction::Max => zip_elements(a, b, out, |a, b| if a > b || a.is_nan() { a } else { b }),
            BinaryFunction::Min => zip_elements(a, b, out, |a, b| if a < b || a.is_nan() { a } else { b }),
            BinaryFunction::RoundFloat8 => zip_elements(a, b, out, |a, b| a * E4M3.scale_for(b)),
            BinaryFunction::RoundFloat8E5m2 => zip_elements(a, b, out, |a, b| a * E5M2.scale_for(b)),
            BinaryFunction::Equal
            | BinaryFunction::NotEqual
            | BinaryFunction::Less
            | BinaryFunction::LessEqual
            | BinaryFunction::Greater
            | BinaryFunction::GreaterEqual
            | BinaryFunction::And
            | BinaryFunction::Or
            | BinaryFunction::BitAnd
            | BinaryFunction::BitOr
            | BinaryFunction::BitXor => unreachable!("these give no f32"),
        }
    }
}
