//! Functions of integers and truth values on blocks, and casts. Integers wrap around, as the ops define.

use std::ops::Range;

use graphc_ir::ops::{BinaryFunction, UnaryFunction};
use graphc_ir::sbp::ReduceKind;
use graphc_ir::types::DType;

use super::values::{Values, zip_elements};
use crate::error::KernelError;
use crate::view::{Element, Flat};

/// An integer element type.
pub(crate) trait Integer: Element + Ord + Into<i64> {
    /// The low bits.
    fn wrap(value: i64) -> Self;

    /// Returns the identity of a reduction: the value that changes no other one.
    fn identity(kind: ReduceKind) -> Self;
}

impl Integer for i64 {
    fn wrap(value: i64) -> Self {
        value
    }

    fn identity(kind: ReduceKind) -> Self {
        match kind {
            ReduceKind::Sum => 0,
            ReduceKind::Max => i64::MIN,
            ReduceKind::Min => i64::MAX,
        }
    }
}

impl Integer for i32 {
    fn wrap(value: i64) -> Self {
        value as i32
    }

    fn identity(kind: ReduceKind) -> Self {
        match kind {
            ReduceKind::Sum => 0,
            ReduceKind::Max => i32::MIN,
            ReduceKind::Min => i32::MAX,
        }
    }
}

impl Integer for u8 {
    fn wrap(value: i64) -> Self {
        value as u8
    }

    fn identity(kind: ReduceKind) -> Self {
        match kind {
            ReduceKind::Sum => 0,
            ReduceKind::Max => u8::MIN,
            ReduceKind::Min => u8::MAX,
        }
    }
}

/// A function of one operand.
pub(super) fn apply_unary<T: Integer>(
    function: UnaryFunction,
    x: &[T],
    out: &mut [T],
) -> Result<(), KernelError> {
    let mut map = |f: &dyn Fn(i64) -> i64| {
        out.iter_mut().zip(x).for_each(|(out, &x)| *out = T::wrap(f(x.into())));
    };
    match function {
        UnaryFunction::Relu => map(&|x| x.max(0)),
        UnaryFunction::Abs => map(&i64::wrapping_abs),
        UnaryFunction::Neg => map(&i64::wrapping_neg),
        UnaryFunction::Sign => map(&i64::signum),
        UnaryFunction::Not => map(&|x| i64::from(x == 0)),
        UnaryFunction::Scale(value) => map(&|x| x.wrapping_mul(value.0 as i64)),
        UnaryFunction::Offset(value) => map(&|x| x.wrapping_add(value.0 as i64)),
        UnaryFunction::Clip { low, high } => map(&|x| {
            if (x as f64) < low.0 {
                low.0 as i64
            } else if x as f64 > high.0 {
                high.0 as i64
            } else {
                x
            }
        }),
        _ => return Err(KernelError::bad_call("unary", format!("no {function:?} of integers"))),
    }
    Ok(())
}

/// Arithmetic of two operands. A quotient is truncated; no divisor is 0.
pub(super) fn apply_binary<T: Integer>(function: BinaryFunction, a: &[T], b: &[T], out: &mut [T]) {
    let wide = |f: fn(i64, i64) -> i64| move |a: T, b: T| T::wrap(f(a.into(), b.into()));
    match function {
        BinaryFunction::Add => zip_elements(a, b, out, wide(i64::wrapping_add)),
        BinaryFunction::Sub => zip_elements(a, b, out, wide(i64::wrapping_sub)),
        BinaryFunction::Mul => zip_elements(a, b, out, wide(i64::wrapping_mul)),
        BinaryFunction::Div => zip_elements(a, b, out, wide(i64::wrapping_div)),
        BinaryFunction::Pow => {
            zip_elements(a, b, out, wide(|a, b| (a as f64).powf(b as f64) as i64))
        }
        BinaryFunction::Max => zip_elements(a, b, out, T::max),
        BinaryFunction::BitAnd => zip_elements(a, b, out, wide(|a, b| a & b)),
        BinaryFunction::BitOr => zip_elements(a, b, out, wide(|a, b| a | b)),
        BinaryFunction::BitXor => zip_elements(a, b, out, wide(|a, b| a ^ b)),
        _ => zip_elements(a, b, out, T::min),
    }
}

/// Writes the same values in the element type of `to`.
pub(super) fn cast_elements(
    from: Values<'_>,
    to: &mut Flat<'_>,
    into: Range<usize>,
) -> Result<(), KernelError> {
    match from {
        Values::F32(x) => cast_from(x, to, into, |x| x, |x| x as i64),
        Values::I64(x) => cast_from(x, to, into, |x| x as f32, |x| x),
        Values::I32(x) => cast_from(x, to, into, |x| x as f32, i64::from),
        Values::U8(x) => cast_from(x, to, into, f32::from, i64::from),
    }
}

fn cast_from<T: Element>(
    x: &[T],
    to: &mut Flat<'_>,
    into: Range<usize>,
    float: impl Fn(T) -> f32,
    integer: impl Fn(T) -> i64,
) -> Result<(), KernelError> {
    fn map_elements<T: Copy, U>(x: &[T], out: &mut [U], f: impl Fn(T) -> U) {
        out.iter_mut().zip(x).for_each(|(out, &x)| *out = f(x));
    }
    match to.dtype() {
        DType::F32 => map_elements(x, to.block(into)?, float),
        DType::I64 => map_elements(x, to.block(into)?, integer),
        DType::I32 => map_elements(x, to.block(into)?, |x| i32::wrap(integer(x))),
        DType::U8 => map_elements(x, to.block(into)?, |x| u8::wrap(integer(x))),
        DType::Bool => map_elements(x, to.block(into)?, |x| u8::from(x != T::default())),
        dtype @ (DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2) => {
            return Err(KernelError::wrong_dtype::<T>(dtype));
        }
    }
    Ok(())
}
