//! Inverse trigonometric and hyperbolic functions as compositions that keep float32's relative precision everywhere: near 0 by a
//! series, so that nothing is lost there, and with gradients that are finite wherever the function's are.

use std::f64::consts::FRAC_PI_2;

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, UnaryFunction, Where};
use graphc_ir::scalar::Scalar;

use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res};

/// The terms of the series of the arc tangent. For a tangent up to tan(pi / 8), whose square is below 0.172, the first term that is left out is below
/// 5e-8 of the sum.
const TERMS: usize = 8;
/// The size below which an inverse hyperbolic sine is computed by a series.
const SMALL: f64 = 0.75;

pub(super) fn lower_arc_tangent(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    Ok(vec![cx.arc_tangent(&x)?])
}

/// Lowers the arc sine: 2 atan(x / (1 + sqrt((1 - x) (1 + x)))).
pub(super) fn lower_arc_sine(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let (below, above) = (cx.one_minus(&x)?, cx.offset(&x, 1.0)?);
    let product = cx.apply_binary(BinaryFunction::Mul, &below, &above)?;
    let half = cx.half_tangent(&x, &product)?;
    cx.twice_arc_tangent(&half)
}

/// Lowers the arc cosine: 2 atan(sqrt(1 - x) / sqrt(1 + x)).
pub(super) fn lower_arc_cosine(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let (below, above) = (cx.one_minus(&x)?, cx.offset(&x, 1.0)?);
    let below = cx.apply_unary(UnaryFunction::Sqrt, &below)?;
    let above = cx.apply_unary(UnaryFunction::Sqrt, &above)?;
    let half = cx.apply_binary(BinaryFunction::Div, &below, &above)?;
    cx.twice_arc_tangent(&half)
}

/// Lowers the inverse hyperbolic sine. Near 0 it is 2 atanh(x / (1 + sqrt(1 + x x))). Beyond, it is log(t) + log(1 + sqrt(1 + 1 / t^2)) of the size
/// t, with the sign of x, which does not overflow.
pub(super) fn lower_inverse_hyperbolic_sine(
    cx: &mut Lowering,
    call: NodeCall<'_>,
) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let size = cx.apply_unary(UnaryFunction::Abs, &x)?;
    let near = cx.clip(&x, -SMALL, SMALL)?;
    let square = cx.square(&near)?;
    let square = cx.offset(&square, 1.0)?;
    let half = cx.half_tangent(&near, &square)?;
    let series = cx.odd_series(&half, 1.0)?;
    let near = cx.apply_unary(UnaryFunction::Scale(Scalar(2.0)), &series)?;
    let far = cx.clip(&size, SMALL, f64::INFINITY)?;
    let inverse = cx.apply_unary(UnaryFunction::Reciprocal, &far)?;
    let square = cx.square(&inverse)?;
    let square = cx.offset(&square, 1.0)?;
    let root = cx.apply_unary(UnaryFunction::Sqrt, &square)?;
    let rest = cx.offset(&root, 1.0)?;
    let (log, rest) =
        (cx.apply_unary(UnaryFunction::Log, &far)?, cx.apply_unary(UnaryFunction::Log, &rest)?);
    let sum = cx.apply_binary(BinaryFunction::Add, &log, &rest)?;
    let sign = cx.apply_unary(UnaryFunction::Sign, &x)?;
    let far = cx.apply_binary(BinaryFunction::Mul, &sum, &sign)?;
    Ok(vec![cx.select_beyond(&size, SMALL, &far, &near)?])
}

impl Lowering {
    /// The tangent of half the angle is at most tan(pi / 8) of x in -1 to 1, and what is beyond has pi / 2 less the inverse's angle.
    fn arc_tangent(&mut self, x: &Val) -> Res<Val> {
        let size = self.apply_unary(UnaryFunction::Abs, x)?;
        let (inside, outside) = (self.clip(x, -1.0, 1.0)?, self.clip(&size, 1.0, f64::INFINITY)?);
        let ratio = self.apply_binary(BinaryFunction::Div, &inside, &outside)?;
        let square = self.square(&ratio)?;
        let square = self.offset(&square, 1.0)?;
        let half = self.half_tangent(&ratio, &square)?;
        let series = self.odd_series(&half, -1.0)?;
        let near = self.apply_unary(UnaryFunction::Scale(Scalar(2.0)), &series)?;
        let sign = self.apply_unary(UnaryFunction::Sign, x)?;
        let right = self.apply_unary(UnaryFunction::Scale(Scalar(FRAC_PI_2)), &sign)?;
        let far = self.apply_binary(BinaryFunction::Sub, &right, &near)?;
        self.select_beyond(&size, 1.0, &far, &near)
    }

    fn twice_arc_tangent(&mut self, x: &Val) -> Res<Vec<Val>> {
        let angle = self.arc_tangent(x)?;
        Ok(vec![self.apply_unary(UnaryFunction::Scale(Scalar(2.0)), &angle)?])
    }

    /// x / (1 + sqrt(square))
    fn half_tangent(&mut self, x: &Val, square: &Val) -> Res<Val> {
        let root = self.apply_unary(UnaryFunction::Sqrt, square)?;
        let below = self.offset(&root, 1.0)?;
        self.apply_binary(BinaryFunction::Div, x, &below)
    }

    /// The sum of sign^k x^(2k + 1) / (2k + 1), from the last term to the first.
    fn odd_series(&mut self, x: &Val, sign: f64) -> Res<Val> {
        let square = self.square(x)?;
        let factor = |k: usize| sign.powi(k as i32) / (2 * k + 1) as f64;
        let mut sum = self.apply_unary(UnaryFunction::Scale(Scalar(factor(TERMS - 1))), &square)?;
        for k in (1..TERMS - 1).rev() {
            let shifted = self.offset(&sum, factor(k))?;
            sum = self.apply_binary(BinaryFunction::Mul, &shifted, &square)?;
        }
        let sum = self.offset(&sum, 1.0)?;
        self.apply_binary(BinaryFunction::Mul, x, &sum)
    }

    /// `far` where the size is above a bound, else `near`.
    fn select_beyond(&mut self, size: &Val, bound: f64, far: &Val, near: &Val) -> Res<Val> {
        let bound = self.number_like(size, bound)?;
        let above = self.apply_binary(BinaryFunction::Greater, size, &bound)?;
        self.apply(Op::Where(Where {}), &[above, far.clone(), near.clone()])
    }

    fn clip(&mut self, x: &Val, low: f64, high: f64) -> Res<Val> {
        self.apply_unary(UnaryFunction::Clip { low: Scalar(low), high: Scalar(high) }, x)
    }

    fn square(&mut self, x: &Val) -> Res<Val> {
        self.apply_binary(BinaryFunction::Mul, x, x)
    }

    fn offset(&mut self, x: &Val, value: f64) -> Res<Val> {
        self.apply_unary(UnaryFunction::Offset(Scalar(value)), x)
    }

    fn one_minus(&mut self, x: &Val) -> Res<Val> {
        let negative = self.apply_unary(UnaryFunction::Neg, x)?;
        self.offset(&negative, 1.0)
    }
}
