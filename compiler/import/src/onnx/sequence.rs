//! Sequences of tensors, which exporters use for splits. They are gone once the model is imported.

use graphc_ir::op::Op;
use graphc_ir::ops::{Concat, Split};

use super::known::KnownValue;
use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with, resolve_axis};

impl Lowering {
    /// Parts of these extents along a dim.
    pub(super) fn split(&mut self, x: &Val, axis: usize, sizes: Vec<usize>) -> Res<Vec<Val>> {
        if let [_] = sizes[..] {
            return Ok(vec![x.clone()]);
        }
        self.apply_all(Op::Split(Split { axis, sizes }), std::slice::from_ref(x))
    }
}

/// Returns the extents of parts of `size` that make up `extent`. The last may be smaller.
pub(super) fn chunk_extents(extent: usize, size: i64) -> Res<Vec<usize>> {
    let Some(size) = usize::try_from(size).ok().filter(|&size| size > 0) else {
        return fail_with(format!("parts of {size} elements are none"));
    };
    if extent.div_ceil(size) > 1 << 16 {
        return fail_with(format!("{extent} elements in parts of {size} are too many parts"));
    }
    let starts = (0..extent).step_by(size);
    Ok(starts.map(|start| size.min(extent - start)).collect())
}

/// Converts the extents that a model gives.
pub(super) fn convert_extents(given: &[i64]) -> Res<Vec<usize>> {
    let sizes: Option<Vec<usize>> = given.iter().map(|&size| usize::try_from(size).ok()).collect();
    match sizes {
        Some(sizes) if !sizes.is_empty() => Ok(sizes),
        _ => fail_with(format!("{given:?} are no extents")),
    }
}

pub(super) fn lower_split_to_sequence(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let shape = cx.shape(&x)?;
    let axis = resolve_axis(call.int("axis", 0)?, shape.len())?;
    let extent = shape[axis];
    let (parts, drop) = match cx.optional_operand(call, 1)? {
        // Parts of one, and only then may the dim go.
        None => (chunk_extents(extent, 1)?, call.int("keepdims", 1)? == 0),
        Some(list) if cx.shape(&list)?.is_empty() => {
            (chunk_extents(extent, cx.known_integer(&list, "the extent of a part")?)?, false)
        }
        Some(list) => {
            (convert_extents(&cx.known_integers(&list, "the extents of the parts")?)?, false)
        }
    };
    let mut values = cx.split(&x, axis, parts)?;
    if drop {
        let mut shape = shape;
        shape.remove(axis);
        for value in &mut values {
            *value = cx.reshape(value, &shape)?;
        }
    }
    Ok(vec![Val::Sequence(values)])
}

pub(super) fn lower_sequence_construct(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    Ok(vec![Val::Sequence(cx.operands(call)?)])
}

pub(super) fn lower_sequence_empty(_: &mut Lowering, _: NodeCall<'_>) -> Res<Vec<Val>> {
    Ok(vec![Val::Sequence(Vec::new())])
}

/// Lowers the insertion of a value at a position, or at the end.
pub(super) fn lower_sequence_insert(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let mut values = read_sequence(cx, call)?;
    let value = cx.operand(call, 1)?;
    let position = match cx.optional_operand(call, 2)? {
        Some(position) => read_position(cx, &position, values.len() + 1)?,
        None => values.len(),
    };
    values.insert(position, value);
    Ok(vec![Val::Sequence(values)])
}

/// Lowers the removal of the value at a position, or of the last one.
pub(super) fn lower_sequence_erase(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let mut values = read_sequence(cx, call)?;
    let position = match cx.optional_operand(call, 1)? {
        Some(position) => read_position(cx, &position, values.len())?,
        None if values.is_empty() => return fail_with("the sequence is empty"),
        None => values.len() - 1,
    };
    values.remove(position);
    Ok(vec![Val::Sequence(values)])
}

pub(super) fn lower_sequence_length(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    Ok(vec![Val::Known(KnownValue::from_integer(read_sequence(cx, call)?.len() as i64))])
}

/// Reads one of `count` positions, which must be known.
fn read_position(cx: &Lowering, position: &Val, count: usize) -> Res<usize> {
    let position = cx.known_integer(position, "the position")?;
    resolve_axis(position, count)
        .or_else(|_| fail_with(format!("{position} is none of its {count} positions")))
}

pub(super) fn lower_sequence_at(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let values = read_sequence(cx, call)?;
    let position = cx.operand(call, 1)?;
    let position = resolve_axis(cx.known_integer(&position, "the position")?, values.len());
    match position {
        Ok(position) => Ok(vec![values[position].clone()]),
        Err(_) => fail_with(format!("a sequence of {} has not this position", values.len())),
    }
}

pub(super) fn lower_concat_from_sequence(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let mut values = read_sequence(cx, call)?;
    let Some(first) = values.first() else { return fail_with("the sequence is empty") };
    let rank = cx.shape(first)?.len();
    let new = call.int("new_axis", 0)? != 0;
    let axis = resolve_axis(call.int("axis", 0)?, rank + usize::from(new))?;
    if new {
        for value in &mut values {
            let mut shape = cx.shape(value)?;
            shape.insert(axis.min(shape.len()), 1);
            *value = cx.reshape(value, &shape)?;
        }
    }
    match &values[..] {
        [one] => Ok(vec![one.clone()]),
        _ => Ok(vec![cx.apply(Op::Concat(Concat { axis }), &values)?]),
    }
}

fn read_sequence(cx: &Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    match cx.operand(call, 0)? {
        Val::Sequence(values) => Ok(values),
        _ => fail_with("a tensor stands where a sequence is needed"),
    }
}
