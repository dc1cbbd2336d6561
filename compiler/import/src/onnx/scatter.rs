//! Values put to places of a tensor, or joined to what is there.
//!
//! A sum is the tensor plus a `scatter_sum`, whose places may be split. The other functions are a `scatter`.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, Concat, Scatter, ScatterFunction, ScatterSum};

use super::gather::{check_lanes, find_runs};
use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with, resolve_axis};
use super::places::{TensorCoordinates, from_start};

/// The effect of values at their places.
#[derive(Clone, Copy)]
enum ScatterReduction {
    Sum,
    Function(ScatterFunction),
}

fn read_reduction(call: NodeCall<'_>) -> Res<ScatterReduction> {
    Ok(match call.text("reduction", "none")? {
        "none" => ScatterReduction::Function(ScatterFunction::Set),
        "add" => ScatterReduction::Sum,
        "mul" => ScatterReduction::Function(ScatterFunction::Mul),
        "max" => ScatterReduction::Function(ScatterFunction::Max),
        "min" => ScatterReduction::Function(ScatterFunction::Min),
        other => return fail_with(format!("there is no reduction `{other}`")),
    })
}

/// Slices put to places of which each has a coordinate for several dims.
pub(super) fn lower_scatter_nd(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (x, places, values) = (cx.operand(call, 0)?, cx.operand(call, 1)?, cx.operand(call, 2)?);
    let (shape, reduction) = (cx.shape(&x)?, read_reduction(call)?);
    let at = TensorCoordinates::new(cx, &places, &shape, 0)?;
    let inner = &shape[at.batch + at.extents.len()..];
    let expected = [&at.shape[..], inner].concat();
    if cx.shape(&values)? != expected {
        let found = cx.ty(&values)?;
        return fail_with(format!("the updates are {found}, and their shape must be {expected:?}"));
    }
    if let ScatterReduction::Function(ScatterFunction::Set) = reduction
        && cx.find_foldable(&x).is_none()
        && let Some(known) = at.known_places(cx)?
        && let Some([(start, end)]) = find_runs(&known).as_deref()
        && at.inner_shape().len() == 1
    {
        return Ok(vec![replace_slice(cx, &x, &values, at.batch, [*start, *end])?]);
    }
    let replaces = matches!(reduction, ScatterReduction::Function(ScatterFunction::Set));
    if at.extents.is_empty() && at.inner_shape().is_empty() && replaces {
        return Ok(vec![values]);
    }
    let count: usize = at.inner_shape().iter().product();
    let values = cx.reshape(&values, &[&shape[..at.batch], &[count], inner].concat())?;
    let (flat, places) = cx.places_as_one(&x, &at)?;
    let y = scatter_values(cx, [&flat, &places, &values], reduction)?;
    Ok(vec![cx.reshape(&y, &shape)?])
}

/// A part of a dim replaced.
fn replace_slice(
    cx: &mut Lowering,
    x: &Val,
    values: &Val,
    dim: usize,
    [start, end]: [usize; 2],
) -> Res<Val> {
    let extent = cx.shape(x)?[dim];
    let mut parts = Vec::new();
    if start > 0 {
        parts.push(cx.slice(x, dim, 0, start, 1)?);
    }
    parts.push(values.clone());
    if end < extent {
        parts.push(cx.slice(x, dim, end, extent, 1)?);
    }
    if let [one] = parts.as_slice() {
        return Ok(one.clone());
    }
    cx.apply(Op::Concat(Concat { axis: dim }), &parts)
}

/// Elements put to lanes along a dim, at places of each lane's own.
pub(super) fn lower_scatter_elements(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (x, places, values) = (cx.operand(call, 0)?, cx.operand(call, 1)?, cx.operand(call, 2)?);
    let (shape, given) = (cx.shape(&x)?, cx.shape(&places)?);
    let dim = resolve_axis(call.int("axis", 0)?, shape.len())?;
    check_lanes(&shape, &given, dim)?;
    if cx.shape(&values)? != given {
        let found = cx.ty(&values)?;
        return fail_with(format!("the updates are {found}, and their shape must be {given:?}"));
    }
    let places = from_start(cx, &places, shape[dim])?;
    Ok(vec![scatter_lanes(cx, [&x, &places, &values], dim, read_reduction(call)?)?])
}

/// Lanes that have no places stay as they are.
fn scatter_lanes(
    cx: &mut Lowering,
    [x, places, values]: [&Val; 3],
    dim: usize,
    reduction: ScatterReduction,
) -> Res<Val> {
    let (shape, given) = (cx.shape(x)?, cx.shape(places)?);
    let shorter = |&other: &usize| other != dim && given[other] < shape[other];
    if let Some(other) = (0..shape.len()).find(shorter) {
        let part = cx.slice(x, other, 0, given[other], 1)?;
        let rest = cx.slice(x, other, given[other], shape[other], 1)?;
        let part = scatter_lanes(cx, [&part, places, values], dim, reduction)?;
        return cx.apply(Op::Concat(Concat { axis: other }), &[part, rest]);
    }
    let x = cx.moved_last(x, dim)?;
    let (places, values) = (cx.moved_last(places, dim)?, cx.moved_last(values, dim)?);
    let y = scatter_values(cx, [&x, &places, &values], reduction)?;
    cx.moved_from_last(&y, dim)
}

/// Values `[b.., m, w..]` at places `[b.., m]` of a tensor `[b.., n, w..]`.
fn scatter_values(
    cx: &mut Lowering,
    [x, places, values]: [&Val; 3],
    reduction: ScatterReduction,
) -> Res<Val> {
    let operands = [x.clone(), places.clone(), values.clone()];
    if let ScatterReduction::Function(function) = reduction {
        return cx.apply(Op::Scatter(Scatter { function }), &operands);
    }
    let (shape, rank) = (cx.shape(x)?, cx.shape(places)?.len());
    let op = Op::ScatterSum(ScatterSum { places: shape[rank - 1] });
    let sums = cx.apply(op, &operands[1..])?;
    cx.apply_binary(BinaryFunction::Add, x, &sums)
}
