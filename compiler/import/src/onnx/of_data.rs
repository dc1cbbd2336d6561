//! Ops whose results have as many elements as their data says. Plans know the shape of everything, so these are computed while the model is
//! imported, where their operands are known, and refused where they are not.

use graphc_ir::types::{DType, TensorType};

use super::gather::gather_along;
use super::known::{KnownValue, MOST_FOLDED};
use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with, resolve_axis};

/// The indices of what is not 0, `[rank, count]`.
pub(super) fn lower_non_zero(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let known = require_known(cx, &x, "that are not 0")?;
    let shape = known.ty.shape.clone();
    let hits: Vec<usize> = (known.elements().iter().enumerate())
        .filter_map(|(at, &value)| (value != 0.0).then_some(at))
        .collect();
    let mut indices = Vec::new();
    for dim in 0..shape.len() {
        let inner: usize = shape[dim + 1..].iter().product();
        indices.extend(hits.iter().map(|at| (at / inner % shape[dim]) as f64));
    }
    let ty = TensorType::new(DType::I64, [shape.len(), hits.len()]);
    Ok(vec![Val::Known(KnownValue::new(ty, indices))])
}

/// The elements along a dim for which a condition holds.
pub(super) fn lower_compress(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (mut x, condition) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let mut shape = cx.shape(&x)?;
    let dim = match call.optional_int("axis")? {
        Some(given) => resolve_axis(given, shape.len())?,
        None => {
            shape = vec![shape.iter().product()];
            x = cx.reshape(&x, &shape)?;
            0
        }
    };
    let condition = require_known(cx, &condition, "for which its condition holds")?.elements();
    let held = condition.iter().take(shape[dim]).enumerate();
    let places: Vec<i64> =
        held.filter(|(_, held)| **held != 0.0).map(|(at, _)| at as i64).collect();
    Ok(vec![gather_along(cx, &x, &Val::Known(KnownValue::from_integers(&places)), dim)?])
}

/// Different elements: how many there are nobody knows before.
pub(super) fn lower_unique(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    cx.operand(call, 0)?;
    fail_with(refusal_reason("that are different"))
}

fn require_known(cx: &Lowering, x: &Val, what: &str) -> Res<KnownValue> {
    match cx.find_foldable(x) {
        Some(known) if known.ty.elements() <= MOST_FOLDED => Ok(known),
        Some(known) => fail_with(format!("{} has too many elements", known.ty)),
        None => fail_with(refusal_reason(what)),
    }
}

fn refusal_reason(what: &str) -> String {
    format!(
        "the shape of its result depends on data: it has as many elements as there are {what}, and plans are made for shapes that are \
         known. Let the model compute all elements, and choose with Where or a mask"
    )
}
