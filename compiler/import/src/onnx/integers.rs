//! Rests of divisions, and functions of the bits of integers.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, UnaryFunction, Where};
use graphc_ir::types::{DType, TensorType};
use rten_onnx::onnx::DataType;

use super::gather::gather_along;
use super::known::KnownValue;
use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with};

/// The functions of two bits.
#[derive(Clone, Copy)]
pub(super) enum Bits {
    And,
    Or,
    Xor,
}

/// Lowers a logical function of booleans, or a function of each bit of integers.
pub(super) fn lower_bitwise(cx: &mut Lowering, call: NodeCall<'_>, bits: Bits) -> Res<Vec<Val>> {
    let (a, b) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let function = match (cx.ty(&a)?.dtype, bits) {
        (DType::Bool, Bits::And) => BinaryFunction::And,
        (DType::Bool, Bits::Or) => BinaryFunction::Or,
        (DType::Bool, Bits::Xor) => BinaryFunction::NotEqual,
        (_, Bits::And) => BinaryFunction::BitAnd,
        (_, Bits::Or) => BinaryFunction::BitOr,
        (_, Bits::Xor) => BinaryFunction::BitXor,
    };
    Ok(vec![cx.apply_binary(function, &a, &b)?])
}

/// Lowers the complement of each bit. That of an integer with a sign is -1 - x, that of one without is the greatest of its type less x.
pub(super) fn lower_bitwise_not(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    if cx.ty(&x)?.dtype == DType::Bool {
        return Ok(vec![cx.apply_unary(UnaryFunction::Not, &x)?]);
    }
    let all = cx.number_like(&x, unsigned_bits(cx, call).map_or(-1.0, greatest_number))?;
    Ok(vec![cx.apply_binary(BinaryFunction::Sub, &all, &x)?])
}

/// Returns the number of bits of the first operand, if it has no sign and fewer bits than the graph's integers.
fn unsigned_bits(cx: &Lowering, call: NodeCall<'_>) -> Option<u32> {
    match *cx.element_types.get(call.proto.input.first()?)? {
        DataType::UINT8 => Some(8),
        DataType::UINT16 => Some(16),
        DataType::UINT32 => Some(32),
        _ => None,
    }
}

/// Returns the greatest number of so many bits.
fn greatest_number(bits: u32) -> f64 {
    f64::from(bits).exp2() - 1.0
}

/// Lowers a shift of bits to the left, which multiplies by a power of two, or to the right, which divides. The operands have no sign.
pub(super) fn lower_shift(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (x, count) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let dtype = cx.ty(&x)?.dtype;
    let bits = unsigned_bits(cx, call).unwrap_or(63);
    let powers = (0..bits).map(|bit| f64::from(bit).exp2()).collect();
    let powers = Val::Known(KnownValue::new(TensorType::new(DType::I64, [bits as usize]), powers));
    let count = cx.cast(&count, DType::I64)?;
    let power = gather_along(cx, &powers, &count, 0)?;
    let x = cx.cast(&x, DType::I64)?;
    let moved = match call.text("direction", "")? {
        "RIGHT" => cx.apply_binary(BinaryFunction::Div, &x, &power)?,
        "LEFT" => {
            let moved = cx.apply_binary(BinaryFunction::Mul, &x, &power)?;
            let all = cx.number_like(&moved, greatest_number(bits))?;
            // What goes beyond the bits of the type is gone.
            if bits < 63 { cx.apply_binary(BinaryFunction::BitAnd, &moved, &all)? } else { moved }
        }
        other => return fail_with(format!("there is no direction `{other}`: it is LEFT or RIGHT")),
    };
    Ok(vec![cx.cast(&moved, dtype)?])
}

pub(super) fn lower_modulo(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (a, b) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let c_like = call.int("fmod", 0)? != 0;
    if let (Some(a), Some(divisor)) = (cx.find_foldable(&a), cx.known_splat(&b)) {
        if divisor == 0.0 && !a.ty.dtype.is_float() {
            return fail_with("an integer is divided by 0");
        }
        let rest = |x: f64| if c_like { x % divisor } else { x - divisor * (x / divisor).floor() };
        return Ok(vec![Val::Known(a.map(rest))]);
    }
    match (cx.ty(&a)?.dtype.is_float(), c_like) {
        (false, _) => Ok(vec![integer_rest(cx, &a, &b, c_like)?]),
        (true, true) => Ok(vec![float_rest(cx, &a, &b)?]),
        (true, false) => fail_with("of floating-point numbers the attribute `fmod` must be 1"),
    }
}

/// The rest has the sign of the divisor, in C that of the dividend.
fn integer_rest(cx: &mut Lowering, a: &Val, b: &Val, c_like: bool) -> Res<Val> {
    let quotient = cx.apply_binary(BinaryFunction::Div, a, b)?;
    let whole = cx.apply_binary(BinaryFunction::Mul, &quotient, b)?;
    let rest = cx.apply_binary(BinaryFunction::Sub, a, &whole)?;
    if c_like {
        return Ok(rest);
    }
    let zero = cx.number_like(b, 0.0)?;
    let product = cx.apply_binary(BinaryFunction::Mul, &rest, b)?;
    let apart = cx.apply_binary(BinaryFunction::Less, &product, &zero)?;
    let shifted = cx.apply_binary(BinaryFunction::Add, &rest, b)?;
    cx.apply(Op::Where(Where {}), &[apart, shifted, rest])
}

/// a - b floor(|a / b|) with the sign of the quotient. Where the quotient was rounded up to a whole number the rest has the wrong
/// sign, and lacks a divisor.
fn float_rest(cx: &mut Lowering, a: &Val, b: &Val) -> Res<Val> {
    let divide = Op::Binary(graphc_ir::ops::Binary { function: BinaryFunction::Div });
    let quotient = cx.apply(divide, &[a.clone(), b.clone()])?;
    let size = cx.apply_unary(UnaryFunction::Abs, &quotient)?;
    let size = cx.apply_unary(UnaryFunction::Floor, &size)?;
    let sign = cx.apply_unary(UnaryFunction::Sign, &quotient)?;
    let whole = cx.apply_binary(BinaryFunction::Mul, &size, &sign)?;
    let whole = cx.apply_unary(UnaryFunction::Detach, &whole)?;
    let product = cx.apply_binary(BinaryFunction::Mul, b, &whole)?;
    let rest = cx.apply_binary(BinaryFunction::Sub, a, &product)?;
    let both = cx.apply_binary(BinaryFunction::Mul, &rest, a)?;
    let zero = cx.number_like(&both, 0.0)?;
    let wrong = cx.apply_binary(BinaryFunction::Less, &both, &zero)?;
    let divisor = cx.apply_binary(BinaryFunction::Mul, b, &sign)?;
    let more = cx.apply_binary(BinaryFunction::Add, &rest, &divisor)?;
    cx.apply(Op::Where(Where {}), &[wrong, more, rest])
}

impl Lowering {
    /// An integer in 32 bits without a sign: what is negative is counted from 2^32.
    pub(super) fn without_sign(&mut self, x: &Val) -> Res<Val> {
        let zero = self.number_like(x, 0.0)?;
        let negative = self.apply_binary(BinaryFunction::Less, x, &zero)?;
        let turn = self.number_like(x, f64::from(32).exp2())?;
        let shifted = self.apply_binary(BinaryFunction::Add, x, &turn)?;
        self.apply(Op::Where(Where {}), &[negative, shifted, x.clone()])
    }
}
