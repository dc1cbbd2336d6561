//! Ops whose results have as many elements as their data says. Plans know the shape of everything, so these are computed while the model is
//! imported, where their operands are known, and refused where they are not.

use graphc_ir::types::{DType, TensorType};

use super::gather::along;
use super::known::{Known, MOST_FOLDED};
use super::lower::{Lowering, Val};
use super::node::{Call, Res, axis, fail};

/// The indices of what is not 0, `[rank, count]`.
pub(super) fn non_zero(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let known = known(cx, &x, "that are not 0")?;
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
    Ok(vec![Val::Known(Known::new(ty, indices))])
}

/// The elements along a dim for which a condition holds.
pub(super) fn compress(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let (mut x, condition) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let mut shape = cx.shape(&x)?;
    let dim = match call.optional_int("axis")? {
        Some(given) => axis(given, shape.len())?,
        None => {
            shape = vec![shape.iter().product()];
            x = cx.reshape(&x, &shape)?;
            0
        }
    };
    let condition = known(cx, &condition, "for which its condition holds")?.elements();
    let held = condition.iter().take(shape[dim]).enumerate();
    let places: Vec<i64> =
        held.filter(|(_, held)| **held != 0.0).map(|(at, _)| at as i64).collect();
    Ok(vec![along(cx, &x, &Val::Known(Known::integers(&places)), dim)?])
}

/// Different elements: how many there are nobody knows before.
pub(super) fn unique(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    cx.operand(call, 0)?;
    fail(refusal("that are different"))
}

fn known(cx: &Lowering, x: &Val, what: &str) -> Res<Known> {
    match cx.foldable(x) {
        Some(known) if known.ty.elements() <= MOST_FOLDED => Ok(known),
        Some(known) => fail(format!("{} has too many elements", known.ty)),
        None => fail(refusal(what)),
    }
}

fn refusal(what: &str) -> String {
    format!(
        "the shape of its result depends on data: it has as many elements as there are {what}, and plans are made for shapes that are \
         known. Let the model compute all elements, and choose with Where or a mask"
    )
}
