//! Rests of divisions, and functions of the bits of integers.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, UnaryFunction, Where};
use graphc_ir::types::{DType, TensorType};
use rten_onnx::onnx::DataType;

use super::gather::along;
use super::known::Known;
use super::lower::{Lowering, Val};
use super::node::{Call, Res, fail};

/// The functions of two bits.
#[derive(Clone, Copy)]
pub(super) enum Bits {
    And,
    Or,
    Xor,
}

/// Of booleans the function of truths, of integers that of each bit.
pub(super) fn bitwise(cx: &mut Lowering, call: Call<'_>, bits: Bits) -> Res<Vec<Val>> {
    let (a, b) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let function = match (cx.ty(&a)?.dtype, bits) {
        (DType::Bool, Bits::And) => BinaryFunction::And,
        (DType::Bool, Bits::Or) => BinaryFunction::Or,
        (DType::Bool, Bits::Xor) => BinaryFunction::NotEqual,
        (_, Bits::And) => BinaryFunction::BitAnd,
        (_, Bits::Or) => BinaryFunction::BitOr,
        (_, Bits::Xor) => BinaryFunction::BitXor,
    };
    Ok(vec![cx.binary(function, &a, &b)?])
}

/// Of an integer that has a sign this is -1 - x, of one that has none the greatest of its type less x.
pub(super) fn bitwise_not(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    if cx.ty(&x)?.dtype == DType::Bool {
        return Ok(vec![cx.unary(UnaryFunction::Not, &x)?]);
    }
    let all = cx.number(&x, unsigned(cx, call).map_or(-1.0, greatest))?;
    Ok(vec![cx.binary(BinaryFunction::Sub, &all, &x)?])
}

/// How many bits the first operand has, where it has no sign and fewer than the graph's integers.
fn unsigned(cx: &Lowering, call: Call<'_>) -> Option<u32> {
    match *cx.element_types.get(call.proto.input.first()?)? {
        DataType::UINT8 => Some(8),
        DataType::UINT16 => Some(16),
        DataType::UINT32 => Some(32),
        _ => None,
    }
}

/// The greatest number of so many bits.
fn greatest(bits: u32) -> f64 {
    f64::from(bits).exp2() - 1.0
}

/// Bits moved to the left, which multiplies by a power of two, or to the right, which divides: the operands have no sign.
pub(super) fn shift(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let (x, count) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let dtype = cx.ty(&x)?.dtype;
    let bits = unsigned(cx, call).unwrap_or(63);
    let powers = (0..bits).map(|bit| f64::from(bit).exp2()).collect();
    let powers = Val::Known(Known::new(TensorType::new(DType::I64, [bits as usize]), powers));
    let count = cx.cast(&count, DType::I64)?;
    let power = along(cx, &powers, &count, 0)?;
    let x = cx.cast(&x, DType::I64)?;
    let moved = match call.text("direction", "")? {
        "RIGHT" => cx.binary(BinaryFunction::Div, &x, &power)?,
        "LEFT" => {
            let moved = cx.binary(BinaryFunction::Mul, &x, &power)?;
            let all = cx.number(&moved, greatest(bits))?;
            // What goes beyond the bits of the type is gone.
            if bits < 63 { cx.binary(BinaryFunction::BitAnd, &moved, &all)? } else { moved }
        }
        other => return fail(format!("there is no direction `{other}`: it is LEFT or RIGHT")),
    };
    Ok(vec![cx.cast(&moved, dtype)?])
}

pub(super) fn modulo(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let (a, b) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let c_like = call.int("fmod", 0)? != 0;
    if let (Some(a), Some(divisor)) = (cx.foldable(&a), cx.splat(&b)) {
        if divisor == 0.0 && !a.ty.dtype.is_float() {
            return fail("an integer is divided by 0");
        }
        let rest = |x: f64| if c_like { x % divisor } else { x - divisor * (x / divisor).floor() };
        return Ok(vec![Val::Known(a.map(rest))]);
    }
    match (cx.ty(&a)?.dtype.is_float(), c_like) {
        (false, _) => Ok(vec![integer_rest(cx, &a, &b, c_like)?]),
        (true, true) => Ok(vec![float_rest(cx, &a, &b)?]),
        (true, false) => fail("of floating-point numbers the attribute `fmod` must be 1"),
    }
}

/// The rest has the sign of the divisor, in C that of the dividend.
fn integer_rest(cx: &mut Lowering, a: &Val, b: &Val, c_like: bool) -> Res<Val> {
    let quotient = cx.binary(BinaryFunction::Div, a, b)?;
    let whole = cx.binary(BinaryFunction::Mul, &quotient, b)?;
    let rest = cx.binary(BinaryFunction::Sub, a, &whole)?;
    if c_like {
        return Ok(rest);
    }
    let zero = cx.number(b, 0.0)?;
    let product = cx.binary(BinaryFunction::Mul, &rest, b)?;
    let apart = cx.binary(BinaryFunction::Less, &product, &zero)?;
    let shifted = cx.binary(BinaryFunction::Add, &rest, b)?;
    cx.apply(Op::Where(Where {}), &[apart, shifted, rest])
}

/// a - b floor(|a / b|) with the sign of the quotient. Where the quotient was rounded up to a whole number the rest has the wrong
/// sign, and lacks a divisor.
fn float_rest(cx: &mut Lowering, a: &Val, b: &Val) -> Res<Val> {
    let divide = Op::Binary(graphc_ir::ops::Binary { function: BinaryFunction::Div });
    let quotient = cx.apply(divide, &[a.clone(), b.clone()])?;
    let size = cx.unary(UnaryFunction::Abs, &quotient)?;
    let size = cx.unary(UnaryFunction::Floor, &size)?;
    let sign = cx.unary(UnaryFunction::Sign, &quotient)?;
    let whole = cx.binary(BinaryFunction::Mul, &size, &sign)?;
    let whole = cx.unary(UnaryFunction::Detach, &whole)?;
    let product = cx.binary(BinaryFunction::Mul, b, &whole)?;
    let rest = cx.binary(BinaryFunction::Sub, a, &product)?;
    let both = cx.binary(BinaryFunction::Mul, &rest, a)?;
    let zero = cx.number(&both, 0.0)?;
    let wrong = cx.binary(BinaryFunction::Less, &both, &zero)?;
    let divisor = cx.binary(BinaryFunction::Mul, b, &sign)?;
    let more = cx.binary(BinaryFunction::Add, &rest, &divisor)?;
    cx.apply(Op::Where(Where {}), &[wrong, more, rest])
}

impl Lowering {
    /// An integer in 32 bits without a sign: what is negative is counted from 2^32.
    pub fn without_sign(&mut self, x: &Val) -> Res<Val> {
        let zero = self.number(x, 0.0)?;
        let negative = self.binary(BinaryFunction::Less, x, &zero)?;
        let turn = self.number(x, f64::from(32).exp2())?;
        let shifted = self.binary(BinaryFunction::Add, x, &turn)?;
        self.apply(Op::Where(Where {}), &[negative, shifted, x.clone()])
    }
}
