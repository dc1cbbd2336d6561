//! Inverse trigonometric and hyperbolic functions as compositions that keep float32's relative precision everywhere: near 0 by a
//! series, so that nothing is lost there, and with gradients that are finite wherever the function's are.

use std::f64::consts::FRAC_PI_2;

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, UnaryFunction, Where};
use graphc_ir::scalar::Scalar;

use super::lower::{Lowering, Val};
use super::node::{Call, Res};

/// Of a tangent up to tan(pi / 8), whose square is below 0.172, the first term that is left out is below 5e-8 of the sum.
const TERMS: usize = 8;
/// Below this an inverse hyperbolic sine is a series.
const SMALL: f64 = 0.75;

pub(super) fn tangent(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    Ok(vec![cx.arc_tangent(&x)?])
}

/// 2 atan(x / (1 + sqrt((1 - x) (1 + x))))
pub(super) fn sine(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let (below, above) = (cx.one_minus(&x)?, cx.offset(&x, 1.0)?);
    let product = cx.binary(BinaryFunction::Mul, &below, &above)?;
    let half = cx.half_tangent(&x, &product)?;
    cx.twice_arc_tangent(&half)
}

/// 2 atan(sqrt(1 - x) / sqrt(1 + x))
pub(super) fn cosine(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let (below, above) = (cx.one_minus(&x)?, cx.offset(&x, 1.0)?);
    let below = cx.unary(UnaryFunction::Sqrt, &below)?;
    let above = cx.unary(UnaryFunction::Sqrt, &above)?;
    let half = cx.binary(BinaryFunction::Div, &below, &above)?;
    cx.twice_arc_tangent(&half)
}

/// Of what is small 2 atanh(x / (1 + sqrt(1 + x x))), of greater sizes t log(t) + log(1 + sqrt(1 + 1 / t^2)), which does not overflow.
pub(super) fn hyperbolic_sine(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let size = cx.unary(UnaryFunction::Abs, &x)?;
    let near = cx.bounded(&x, -SMALL, SMALL)?;
    let square = cx.square(&near)?;
    let square = cx.offset(&square, 1.0)?;
    let half = cx.half_tangent(&near, &square)?;
    let series = cx.odd_series(&half, 1.0)?;
    let near = cx.unary(UnaryFunction::Scale(Scalar(2.0)), &series)?;
    let far = cx.bounded(&size, SMALL, f64::INFINITY)?;
    let inverse = cx.unary(UnaryFunction::Reciprocal, &far)?;
    let square = cx.square(&inverse)?;
    let square = cx.offset(&square, 1.0)?;
    let root = cx.unary(UnaryFunction::Sqrt, &square)?;
    let rest = cx.offset(&root, 1.0)?;
    let (log, rest) = (cx.unary(UnaryFunction::Log, &far)?, cx.unary(UnaryFunction::Log, &rest)?);
    let sum = cx.binary(BinaryFunction::Add, &log, &rest)?;
    let sign = cx.unary(UnaryFunction::Sign, &x)?;
    let far = cx.binary(BinaryFunction::Mul, &sum, &sign)?;
    Ok(vec![cx.beyond(&size, SMALL, &far, &near)?])
}

impl Lowering {
    /// The tangent of half the angle is at most tan(pi / 8) of x in -1 to 1, and what is beyond has pi / 2 less the inverse's angle.
    fn arc_tangent(&mut self, x: &Val) -> Res<Val> {
        let size = self.unary(UnaryFunction::Abs, x)?;
        let (inside, outside) =
            (self.bounded(x, -1.0, 1.0)?, self.bounded(&size, 1.0, f64::INFINITY)?);
        let ratio = self.binary(BinaryFunction::Div, &inside, &outside)?;
        let square = self.square(&ratio)?;
        let square = self.offset(&square, 1.0)?;
        let half = self.half_tangent(&ratio, &square)?;
        let series = self.odd_series(&half, -1.0)?;
        let near = self.unary(UnaryFunction::Scale(Scalar(2.0)), &series)?;
        let sign = self.unary(UnaryFunction::Sign, x)?;
        let right = self.unary(UnaryFunction::Scale(Scalar(FRAC_PI_2)), &sign)?;
        let far = self.binary(BinaryFunction::Sub, &right, &near)?;
        self.beyond(&size, 1.0, &far, &near)
    }

    fn twice_arc_tangent(&mut self, x: &Val) -> Res<Vec<Val>> {
        let angle = self.arc_tangent(x)?;
        Ok(vec![self.unary(UnaryFunction::Scale(Scalar(2.0)), &angle)?])
    }

    /// x / (1 + sqrt(square))
    fn half_tangent(&mut self, x: &Val, square: &Val) -> Res<Val> {
        let root = self.unary(UnaryFunction::Sqrt, square)?;
        let below = self.offset(&root, 1.0)?;
        self.binary(BinaryFunction::Div, x, &below)
    }

    /// The sum of sign^k x^(2k + 1) / (2k + 1), from the last term to the first.
    fn odd_series(&mut self, x: &Val, sign: f64) -> Res<Val> {
        let square = self.square(x)?;
        let factor = |k: usize| sign.powi(k as i32) / (2 * k + 1) as f64;
        let mut sum = self.unary(UnaryFunction::Scale(Scalar(factor(TERMS - 1))), &square)?;
        for k in (1..TERMS - 1).rev() {
            let shifted = self.offset(&sum, factor(k))?;
            sum = self.binary(BinaryFunction::Mul, &shifted, &square)?;
        }
        let sum = self.offset(&sum, 1.0)?;
        self.binary(BinaryFunction::Mul, x, &sum)
    }

    /// `far` where the size is above a bound, else `near`.
    fn beyond(&mut self, size: &Val, bound: f64, far: &Val, near: &Val) -> Res<Val> {
        let bound = self.number(size, bound)?;
        let above = self.binary(BinaryFunction::Greater, size, &bound)?;
        self.apply(Op::Where(Where {}), &[above, far.clone(), near.clone()])
    }

    fn bounded(&mut self, x: &Val, low: f64, high: f64) -> Res<Val> {
        self.unary(UnaryFunction::Clip { low: Scalar(low), high: Scalar(high) }, x)
    }

    fn square(&mut self, x: &Val) -> Res<Val> {
        self.binary(BinaryFunction::Mul, x, x)
    }

    fn offset(&mut self, x: &Val, value: f64) -> Res<Val> {
        self.unary(UnaryFunction::Offset(Scalar(value)), x)
    }

    fn one_minus(&mut self, x: &Val) -> Res<Val> {
        let negative = self.unary(UnaryFunction::Neg, x)?;
        self.offset(&negative, 1.0)
    }
}
