//! Activation functions, as compositions of the ops that graphc has.
//!
//! At a kink, where a function has no derivative, each has the gradient that PyTorch's function of that name has: layers whose weights
//! begin with zeros give exactly such elements, and learn nothing, or something else, by another gradient.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, UnaryFunction, Where};
use graphc_ir::scalar::Scalar;

use super::elementwise::{apply_bound, apply_clip, lower_unary};
use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with};
use super::wire::Origin;

/// Bounds are operands since version 11, attributes before.
pub(super) fn lower_clip(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let (low, high) = (cx.optional_operand(call, 1)?, cx.optional_operand(call, 2)?);
    let (least, most) = (call.float("min", f32::NEG_INFINITY)?, call.float("max", f32::INFINITY)?);
    let known = |bound: &Option<Val>, default: f64| match bound {
        None => Some(default),
        Some(bound) => cx.require_known(bound, "").ok()?.as_splat(),
    };
    let float = cx.ty(&x)?.dtype.is_float();
    if let (true, Some(low), Some(high)) = (float, known(&low, least), known(&high, most)) {
        // Of bounds that are the wrong way round the greatest counts.
        let low = low.min(high);
        let learns_at_bounds = match cx.origin_of(call) {
            Some(origin) => origin != Origin::Hardtanh,
            // The older exporter does not say what it was: from 0 to 6 it is ReLU6.
            None => [low, high] != [0.0, 6.0],
        };
        return Ok(vec![match learns_at_bounds {
            true => apply_clip(cx, &x, low, high)?,
            false => apply_saturation(cx, &x, low, high)?,
        }]);
    }
    let mut result = x;
    for (bound, function) in [(low, BinaryFunction::Max), (high, BinaryFunction::Min)] {
        if let Some(bound) = bound {
            result = apply_bound(cx, &result, &bound, function)?;
        }
    }
    Ok(vec![result])
}

/// Bounds a tensor from both sides, as `torch.nn.functional.hardtanh` does: nothing is learned at the bounds.
fn apply_saturation(cx: &mut Lowering, x: &Val, low: f64, high: f64) -> Res<Val> {
    let clipped = apply_clip(cx, x, low, high)?;
    if cx.find_foldable(x).is_some() {
        return Ok(clipped);
    }
    let above = is_greater(cx, x, low)?;
    let bound = cx.number_like(x, high)?;
    let below = cx.apply_binary(BinaryFunction::Less, x, &bound)?;
    let between = cx.apply_binary(BinaryFunction::And, &above, &below)?;
    let beyond = cx.apply_unary(UnaryFunction::Detach, &clipped)?;
    cx.apply(Op::Where(Where {}), &[between, x.clone(), beyond])
}

/// Whether elements are greater than a number.
fn is_greater(cx: &mut Lowering, x: &Val, number: f64) -> Res<Val> {
    let number = cx.number_like(x, number)?;
    cx.apply_binary(BinaryFunction::Greater, x, &number)
}

/// Elements that are positive, and of others those of another tensor, whose gradient is that at 0 too.
fn where_positive(cx: &mut Lowering, x: &Val, other: Val) -> Res<Val> {
    let positive = is_greater(cx, x, 0.0)?;
    cx.apply(Op::Where(Where {}), &[positive, x.clone(), other])
}

pub(super) fn lower_gelu(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    match call.text("approximate", "none")? {
        "none" => lower_unary(cx, call, UnaryFunction::Gelu),
        "tanh" => lower_unary(cx, call, UnaryFunction::GeluTanh),
        other => fail_with(format!("GELU has no approximation `{other}`")),
    }
}

/// GELU of the sum of a tensor and, where it is given, a bias.
pub(super) fn lower_bias_gelu(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    function: UnaryFunction,
) -> Res<Vec<Val>> {
    let mut x = cx.operand(call, 0)?;
    if let Some(bias) = cx.optional_operand(call, 1)? {
        x = cx.add(&x, &bias)?;
    }
    Ok(vec![cx.apply_unary(function, &x)?])
}

/// x sigmoid(alpha x)
pub(super) fn lower_swish(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (x, alpha) = (cx.operand(call, 0)?, call.float("alpha", 1.0)?);
    if alpha == 1.0 {
        return Ok(vec![cx.apply_unary(UnaryFunction::Silu, &x)?]);
    }
    sigmoid_linear(cx, &x, alpha)
}

pub(super) fn lower_quick_gelu(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (x, alpha) = (cx.operand(call, 0)?, call.float("alpha", 1.702)?);
    sigmoid_linear(cx, &x, alpha)
}

fn sigmoid_linear(cx: &mut Lowering, x: &Val, alpha: f64) -> Res<Vec<Val>> {
    let scaled = cx.scale(x, alpha)?;
    let gate = cx.apply_unary(UnaryFunction::Sigmoid, &scaled)?;
    Ok(vec![cx.mul(x, &gate)?])
}

/// max(0, min(1, alpha x + beta))
pub(super) fn lower_hard_sigmoid(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    Ok(vec![apply_hard_sigmoid(cx, &x, call.float("alpha", 0.2)?, call.float("beta", 0.5)?)?])
}

pub(super) fn lower_hard_swish(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let gate = apply_hard_sigmoid(cx, &x, 1.0 / 6.0, 0.5)?;
    Ok(vec![cx.mul(&x, &gate)?])
}

fn apply_hard_sigmoid(cx: &mut Lowering, x: &Val, alpha: f64, beta: f64) -> Res<Val> {
    let line = cx.scale(x, alpha)?;
    let line = cx.apply_unary(UnaryFunction::Offset(Scalar(beta)), &line)?;
    apply_saturation(cx, &line, 0.0, 1.0)
}

/// (x + |x|) / 2 + log(1 + exp(-|x|)), which neither overflows nor has another gradient at 0 than a half
pub(super) fn lower_softplus(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    Ok(vec![apply_softplus(cx, &x)?])
}

fn apply_softplus(cx: &mut Lowering, x: &Val) -> Res<Val> {
    let size = cx.apply_unary(UnaryFunction::Abs, x)?;
    let mut small = size.clone();
    for step in [UnaryFunction::Neg, UnaryFunction::Exp] {
        small = cx.apply_unary(step, &small)?;
    }
    let small = log_of_one_plus(cx, &small)?;
    let twice = cx.add(x, &size)?;
    let large = cx.scale(&twice, 0.5)?;
    cx.add(&large, &small)
}

/// Terms of the power series of log(1 + x), of the highest power first.
const LOG_SERIES: [f64; 5] = [1.0 / 5.0, -1.0 / 4.0, 1.0 / 3.0, -1.0 / 2.0, 1.0];
/// Terms of the power series of exp(x) - 1, of the highest power first.
const EXP_SERIES: [f64; 5] = [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 1.0 / 2.0, 1.0];
/// The sizes below which five terms of either series are right to the last bits of f32, and 1 + x would round x away.
const NEAR_ZERO: f64 = 1.0 / 32.0;

/// log(1 + x) of numbers above -1, to its last bits near 0.
fn log_of_one_plus(cx: &mut Lowering, x: &Val) -> Res<Val> {
    let sum = cx.apply_unary(UnaryFunction::Offset(Scalar(1.0)), x)?;
    let far = cx.apply_unary(UnaryFunction::Log, &sum)?;
    where_near_zero(cx, x, far, &LOG_SERIES)
}

/// exp(x) - 1, to its last bits near 0.
fn exponential_less_one(cx: &mut Lowering, x: &Val) -> Res<Val> {
    let power = cx.apply_unary(UnaryFunction::Exp, x)?;
    let far = cx.apply_unary(UnaryFunction::Offset(Scalar(-1.0)), &power)?;
    where_near_zero(cx, x, far, &EXP_SERIES)
}

/// A power series without a constant where x is near 0, else `far`.
fn where_near_zero(cx: &mut Lowering, x: &Val, far: Val, series: &[f64]) -> Res<Val> {
    if cx.find_foldable(x).is_some() {
        return Ok(far);
    }
    // Far from 0 powers overflow, of which the gradient would be no number.
    let near = apply_clip(cx, x, -NEAR_ZERO, NEAR_ZERO)?;
    let (highest, others) = series.split_first().expect("a series has terms");
    let mut sum = cx.scale(&near, *highest)?;
    for &term in others {
        let next = cx.apply_unary(UnaryFunction::Offset(Scalar(term)), &sum)?;
        sum = cx.mul(&next, &near)?;
    }
    let size = cx.apply_unary(UnaryFunction::Abs, x)?;
    let bound = cx.number_like(x, NEAR_ZERO)?;
    let is_near = cx.apply_binary(BinaryFunction::Less, &size, &bound)?;
    cx.apply(Op::Where(Where {}), &[is_near, sum, far])
}

/// x tanh(softplus(x))
pub(super) fn lower_mish(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let plus = apply_softplus(cx, &x)?;
    let gate = cx.apply_unary(UnaryFunction::Tanh, &plus)?;
    Ok(vec![cx.mul(&x, &gate)?])
}

/// x / (1 + |x|)
pub(super) fn lower_softsign(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let size = cx.apply_unary(UnaryFunction::Abs, &x)?;
    let size = cx.apply_unary(UnaryFunction::Offset(Scalar(1.0)), &size)?;
    Ok(vec![cx.apply_binary(BinaryFunction::Div, &x, &size)?])
}

pub(super) fn lower_leaky_relu(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (x, slope) = (cx.operand(call, 0)?, call.float("alpha", 0.01)?);
    Ok(vec![apply_leaky_relu(cx, &x, slope)?])
}

/// x where it is positive, elsewhere slope times x
pub(super) fn apply_leaky_relu(cx: &mut Lowering, x: &Val, slope: f64) -> Res<Val> {
    let below = cx.scale(x, slope)?;
    where_positive(cx, x, below)
}

pub(super) fn lower_prelu(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (x, slope) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let below = cx.mul(&x, &slope)?;
    Ok(vec![where_positive(cx, &x, below)?])
}

/// The kinds of exponential linear units.
pub(super) enum Exponential {
    Elu,
    Selu,
    Celu,
}

/// gamma x where x is positive, elsewhere gamma alpha (exp(x / beta) - 1)
pub(super) fn lower_elu(cx: &mut Lowering, call: NodeCall<'_>, kind: Exponential) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let (alpha, beta, gamma) = match kind {
        Exponential::Elu => (call.float("alpha", 1.0)?, 1.0, 1.0),
        Exponential::Selu => {
            (call.float("alpha", 1.673_263_2)?, 1.0, call.float("gamma", 1.050_701)?)
        }
        Exponential::Celu => (call.float("alpha", 1.0)?, call.float("alpha", 1.0)?, 1.0),
    };
    // Of positive elements, of which it is not taken, it would overflow.
    let below = apply_clip(cx, &x, f64::NEG_INFINITY, 0.0)?;
    let below = cx.scale(&below, 1.0 / beta)?;
    let curve = exponential_less_one(cx, &below)?;
    let curve = cx.scale(&curve, alpha)?;
    let whole = where_positive(cx, &x, curve)?;
    Ok(vec![if gamma == 1.0 { whole } else { cx.scale(&whole, gamma)? }])
}

/// x where x > alpha, else 0
pub(super) fn lower_thresholded_relu(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let (above, zero) = (is_greater(cx, &x, call.float("alpha", 1.0)?)?, cx.number_like(&x, 0.0)?);
    Ok(vec![cx.apply(Op::Where(Where {}), &[above, x, zero])?])
}

/// x + bias below -lambd, x - bias above lambd, 0 between.
pub(super) fn lower_shrink(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let (bias, bound) = (call.float("bias", 0.0)?, call.float("lambd", 0.5)?);
    let zero = cx.number_like(&x, 0.0)?;
    let mut y = zero;
    for (function, side) in [(BinaryFunction::Less, -1.0), (BinaryFunction::Greater, 1.0)] {
        let bound = cx.number_like(&x, side * bound)?;
        let beyond = cx.apply_binary(function, &x, &bound)?;
        let moved = cx.apply_unary(UnaryFunction::Offset(Scalar(-side * bias)), &x)?;
        y = cx.apply(Op::Where(Where {}), &[beyond, moved, y])?;
    }
    Ok(vec![y])
}
