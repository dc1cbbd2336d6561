//! Elementwise ops; those that graphc lacks become compositions of those that it has.
//!
//! If `Where` puts aside whole rows of a softmax, as those of masked queries, the softmax reads numbers that are finite there.
//! Otherwise its gradient there would be no number, and 0 times that is no 0.

use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::ops::{Binary, BinaryFunction, Unary, UnaryFunction, Where};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::DType;
use rten_onnx::onnx::DataType;

use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with};
use super::tensor::stored_type;
use super::wire::Origin;

impl Lowering {
    /// An elementwise function of one operand.
    pub(super) fn apply_unary(&mut self, function: UnaryFunction, x: &Val) -> Res<Val> {
        self.apply(Op::Unary(Unary { function }), std::slice::from_ref(x))
    }

    /// An elementwise function of two operands. A number beside a larger floating-point tensor becomes part of the op.
    pub(super) fn apply_binary(&mut self, function: BinaryFunction, a: &Val, b: &Val) -> Res<Val> {
        if self.find_foldable(a).is_none()
            && let Some(value) = self.number_beside(a, b)?
            && let Some(function) = with_number(function, value)
        {
            return self.apply_unary(function, a);
        }
        let commutes = matches!(function, BinaryFunction::Add | BinaryFunction::Mul);
        if commutes
            && self.find_foldable(b).is_none()
            && let Some(value) = self.number_beside(b, a)?
            && let Some(function) = with_number(function, value)
        {
            return self.apply_unary(function, b);
        }
        self.apply(Op::Binary(Binary { function }), &[a.clone(), b.clone()])
    }

    /// The number that `b` is everywhere, where it leaves the shape and the type of the tensor `a` as they are.
    fn number_beside(&self, a: &Val, b: &Val) -> Res<Option<f64>> {
        let (a, ty) = (self.ty(a)?, self.ty(b)?);
        let skip = a.shape.len().checked_sub(ty.shape.len());
        let fits = skip.is_some_and(|skip| {
            ty.shape.iter().zip(&a.shape[skip..]).all(|(&b, &a)| b == 1 || b == a)
        });
        Ok(self.known_splat(b).filter(|_| fits && a.dtype.is_float() && a.dtype == ty.dtype))
    }

    /// A softmax of which whole rows are put aside, such as those that are masked, with numbers in these rows that are finite: the
    /// gradient of a softmax of no numbers is none either, and 0 times that is no 0. `None` where the operand that is taken is no
    /// softmax, or not taken by whole rows.
    fn softmax_where_taken(&mut self, operands: &[Val], taken: usize) -> Res<Option<Val>> {
        let (condition, value) = (&operands[0], &operands[taken]);
        let Val::Tensor(id) = value else { return Ok(None) };
        let producer = self.graph.producer(*id);
        let Op::Softmax(softmax) = producer.op else { return Ok(None) };
        let x = Val::Tensor(producer.operands[0]);
        let (shape, rows) = (self.shape(value)?, self.shape(condition)?);
        let along = (rows.len() + softmax.axis).checked_sub(shape.len());
        let of_rows = rows.len() <= shape.len() && along.is_none_or(|dim| rows[dim] == 1);
        if !of_rows && !self.is_nan_of(condition, *id) {
            return Ok(None);
        }
        let mut finite =
            [condition.clone(), self.number_like(&x, 0.0)?, self.number_like(&x, 0.0)?];
        finite[taken] = x;
        let x = self.apply(Op::Where(Where {}), &finite)?;
        Ok(Some(self.apply(Op::Softmax(softmax), &[x])?))
    }

    /// Whether a condition says where a value is no number.
    fn is_nan_of(&self, condition: &Val, value: ValueId) -> bool {
        let Val::Tensor(id) = condition else { return false };
        let producer = self.graph.producer(*id);
        let is_not = Op::Binary(Binary { function: BinaryFunction::NotEqual });
        producer.op == is_not && producer.operands.iter().all(|&operand| operand == value)
    }

    pub(super) fn scale(&mut self, x: &Val, factor: f64) -> Res<Val> {
        self.apply_unary(UnaryFunction::Scale(Scalar(factor)), x)
    }

    /// Half of exp(x) + exp(-x).
    fn cosh(&mut self, x: &Val) -> Res<Val> {
        let negative = self.apply_unary(UnaryFunction::Neg, x)?;
        let (rising, falling) = (
            self.apply_unary(UnaryFunction::Exp, x)?,
            self.apply_unary(UnaryFunction::Exp, &negative)?,
        );
        let sum = self.add(&rising, &falling)?;
        self.scale(&sum, 0.5)
    }

    pub(super) fn mul(&mut self, a: &Val, b: &Val) -> Res<Val> {
        self.apply_binary(BinaryFunction::Mul, a, b)
    }

    pub(super) fn add(&mut self, a: &Val, b: &Val) -> Res<Val> {
        self.apply_binary(BinaryFunction::Add, a, b)
    }
}

fn with_number(function: BinaryFunction, value: f64) -> Option<UnaryFunction> {
    Some(match function {
        BinaryFunction::Add => UnaryFunction::Offset(Scalar(value)),
        BinaryFunction::Sub => UnaryFunction::Offset(Scalar(-value)),
        BinaryFunction::Mul => UnaryFunction::Scale(Scalar(value)),
        BinaryFunction::Div if value != 0.0 => UnaryFunction::Scale(Scalar(1.0 / value)),
        BinaryFunction::Pow => UnaryFunction::PowScalar(Scalar(value)),
        _ => return None,
    })
}

pub(super) fn lower_unary(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    function: UnaryFunction,
) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    Ok(vec![cx.apply_unary(function, &x)?])
}

pub(super) fn lower_binary(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    function: BinaryFunction,
) -> Res<Vec<Val>> {
    let (a, b) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let result = cx.apply_binary(function, &a, &b)?;
    if function == BinaryFunction::Add {
        cx.remember_shift(&result, &a, &b);
    }
    Ok(vec![result])
}

/// Lowers a division. Quotients of integers are truncated, and known integer divisors must not be 0.
pub(super) fn lower_divide(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let divisor = cx.operand(call, 1)?;
    let known = cx.find_foldable(&divisor).filter(|known| !known.ty.dtype.is_float());
    if known
        .is_some_and(|known| known.ty.elements() > 0 && known.kept_elements().data.contains(&0.0))
    {
        return fail_with("an integer is divided by 0");
    }
    lower_binary(cx, call, BinaryFunction::Div)
}

/// Lowers a function of many operands: it is applied to the first two, then to that result and the third, and so on.
pub(super) fn lower_variadic(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    function: BinaryFunction,
) -> Res<Vec<Val>> {
    let operands = cx.operands(call)?;
    let Some((first, rest)) = operands.split_first() else {
        return fail_with("it has no operands");
    };
    let mut result = first.clone();
    for operand in rest {
        result = cx.apply_binary(function, &result, operand)?;
    }
    Ok(vec![result])
}

/// Lowers the greatest or the least of operands. If the author's program bounds the first by the second (`aten.clamp`), that has the whole
/// gradient where both are equal, and not half of it.
pub(super) fn lower_extremum(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    function: BinaryFunction,
) -> Res<Vec<Val>> {
    let operands = cx.operands(call)?;
    match &operands[..] {
        [x, bound] if cx.origin_of(call) == Some(Origin::Clamp) => {
            Ok(vec![apply_bound(cx, x, bound, function)?])
        }
        _ => lower_variadic(cx, call, function),
    }
}

pub(super) fn lower_mean(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let sum = lower_variadic(cx, call, BinaryFunction::Add)?.swap_remove(0);
    Ok(vec![cx.scale(&sum, 1.0 / call.proto.input.len() as f64)?])
}

pub(super) fn lower_pow(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (base, exponent) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let exponent = cx.cast(&exponent, cx.ty(&base)?.dtype)?;
    Ok(vec![cx.apply_binary(BinaryFunction::Pow, &base, &exponent)?])
}

/// Lowers a rounding. Integers stay as they are.
pub(super) fn lower_rounding(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    function: UnaryFunction,
) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    if !cx.ty(&x)?.dtype.is_float() {
        return Ok(vec![x]);
    }
    Ok(vec![cx.apply_unary(function, &x)?])
}

/// Lowers the tangent: sine by cosine.
pub(super) fn lower_tangent(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let (sine, cosine) =
        (cx.apply_unary(UnaryFunction::Sin, &x)?, cx.apply_unary(UnaryFunction::Cos, &x)?);
    Ok(vec![cx.apply_binary(BinaryFunction::Div, &sine, &cosine)?])
}

pub(super) fn lower_hyperbolic_cosine(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    Ok(vec![cx.cosh(&x)?])
}

/// Tangent times cosine: a difference of exponentials would lose what is near 0.
pub(super) fn lower_hyperbolic_sine(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let (tangent, cosine) = (cx.apply_unary(UnaryFunction::Tanh, &x)?, cx.cosh(&x)?);
    Ok(vec![cx.mul(&tangent, &cosine)?])
}

/// log(x + sqrt(x x - 1)).
pub(super) fn lower_inverse_hyperbolic_cosine(
    cx: &mut Lowering,
    call: NodeCall<'_>,
) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let square = cx.mul(&x, &x)?;
    let below = cx.apply_unary(UnaryFunction::Offset(Scalar(-1.0)), &square)?;
    let root = cx.apply_unary(UnaryFunction::Sqrt, &below)?;
    let sum = cx.add(&x, &root)?;
    Ok(vec![cx.apply_unary(UnaryFunction::Log, &sum)?])
}

/// Half of log(1 + x) - log(1 - x).
pub(super) fn lower_inverse_hyperbolic_tangent(
    cx: &mut Lowering,
    call: NodeCall<'_>,
) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let mut logarithm = |sign: f64| {
        let signed = cx.scale(&x, sign)?;
        let sum = cx.apply_unary(UnaryFunction::Offset(Scalar(1.0)), &signed)?;
        cx.apply_unary(UnaryFunction::Log, &sum)
    };
    let (above, below) = (logarithm(1.0)?, logarithm(-1.0)?);
    let difference = cx.apply_binary(BinaryFunction::Sub, &above, &below)?;
    Ok(vec![cx.scale(&difference, 0.5)?])
}

/// Whether an element is infinite, of a sign that is looked for.
pub(super) fn lower_is_infinite(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let looked_for = |name| Ok::<bool, super::node::LoweringProblem>(call.int(name, 1)? != 0);
    let (negative, positive) = (looked_for("detect_negative")?, looked_for("detect_positive")?);
    let infinity = cx.number_like(&x, f64::INFINITY)?;
    let compared = match (negative, positive) {
        (true, true) => cx.apply_unary(UnaryFunction::Abs, &x)?,
        (true, false) => cx.apply_unary(UnaryFunction::Neg, &x)?,
        (false, true) => x,
        (false, false) => return fail_with("it looks for infinity of neither sign"),
    };
    Ok(vec![cx.apply_binary(BinaryFunction::Equal, &compared, &infinity)?])
}

/// Whether an element is no number: it is not equal to itself.
pub(super) fn lower_is_nan(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    Ok(vec![cx.apply_binary(BinaryFunction::NotEqual, &x, &x)?])
}

pub(super) fn lower_where(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let mut operands = cx.operands(call)?;
    for (taken, other) in [(1, 2), (2, 1)] {
        if operands.len() == 3
            && cx.find_foldable(&operands[other]).is_some()
            && let Some(softmax) = cx.softmax_where_taken(&operands, taken)?
        {
            operands[taken] = softmax;
        }
    }
    Ok(vec![cx.apply(Op::Where(Where {}), &operands)?])
}

/// Passes its operand on; a detached one passes no gradient on (`aten.detach` in the exporter's metadata).
pub(super) fn lower_identity(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let ends = cx.origin_of(call) == Some(Origin::Detach) && cx.find_foldable(&x).is_none();
    if ends && !matches!(x, Val::Sequence(_)) && cx.ty(&x)?.dtype.is_float() {
        return Ok(vec![cx.apply_unary(UnaryFunction::Detach, &x)?]);
    }
    Ok(vec![x])
}

pub(super) fn lower_cast(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let to = DataType(i32::try_from(call.int("to", 0)?).unwrap_or(0));
    let Some(stored) = stored_type(to) else {
        return fail_with(format!("the element type {to} is not supported"));
    };
    let x = cx.operand(call, 0)?;
    let signed = matches!(cx.ty(&x)?.dtype, DType::I32 | DType::I64);
    let y = cx.cast_in_width(&x, stored.dtype, to == DataType::DOUBLE)?;
    Ok(vec![if signed && to == DataType::UINT32 { cx.without_sign(&y)? } else { y }])
}

pub(super) fn lower_cast_like(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (x, like) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let dtype = cx.ty(&like)?.dtype;
    let wide = call.proto.input.get(1).is_some_and(|name| cx.is_double(name));
    Ok(vec![cx.cast_in_width(&x, dtype, wide)?])
}

pub(super) fn apply_clip(cx: &mut Lowering, x: &Val, low: f64, high: f64) -> Res<Val> {
    cx.apply_unary(UnaryFunction::Clip { low: Scalar(low), high: Scalar(high) }, x)
}

/// Bounds a tensor by another from below (`Max`) or above (`Min`): what lies at the bound is the tensor's.
pub(super) fn apply_bound(
    cx: &mut Lowering,
    x: &Val,
    bound: &Val,
    function: BinaryFunction,
) -> Res<Val> {
    let is_float = cx.ty(x)?.dtype.is_float();
    let known = cx.require_known(bound, "").ok().and_then(|bound| bound.as_splat());
    let (compared, clip) = match function {
        BinaryFunction::Max => (BinaryFunction::Less, known.map(|low| (low, f64::INFINITY))),
        _ => (BinaryFunction::Greater, known.map(|high| (f64::NEG_INFINITY, high))),
    };
    if !is_float {
        return cx.apply_binary(function, x, bound);
    }
    // A number beside a larger tensor is part of the op; other bounds are compared element by element.
    let (of_bound, of_x) = (cx.ty(bound)?.shape, cx.ty(x)?.shape);
    let is_number = of_bound.len() <= of_x.len() && of_bound.iter().all(|&extent| extent == 1);
    if let (Some((low, high)), true) = (clip, is_number) {
        return apply_clip(cx, x, low, high);
    }
    let beyond = cx.apply_binary(compared, x, bound)?;
    cx.apply(Op::Where(Where {}), &[beyond, bound.clone(), x.clone()])
}
