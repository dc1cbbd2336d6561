//! Sequences of tensors, which exporters use for splits. They are gone once the model is imported.

use graphc_ir::op::Op;
use graphc_ir::ops::{Concat, Split};

use super::known::Known;
use super::lower::{Lowering, Val};
use super::node::{Call, Res, axis, fail};

impl Lowering {
    /// Parts of these extents along a dim.
    pub fn split(&mut self, x: &Val, axis: usize, sizes: Vec<usize>) -> Res<Vec<Val>> {
        if let [_] = sizes[..] {
            return Ok(vec![x.clone()]);
        }
        self.apply_all(Op::Split(Split { axis, sizes }), std::slice::from_ref(x))
    }
}

/// As many parts of `size` as there are, the last smaller if need be.
pub(super) fn chunks(extent: usize, size: i64) -> Res<Vec<usize>> {
    let Some(size) = usize::try_from(size).ok().filter(|&size| size > 0) else {
        return fail(format!("parts of {size} elements are none"));
    };
    if extent.div_ceil(size) > 1 << 16 {
        return fail(format!("{extent} elements in parts of {size} are too many parts"));
    }
    let starts = (0..extent).step_by(size);
    Ok(starts.map(|start| size.min(extent - start)).collect())
}

/// Extents that a model gives.
pub(super) fn sizes(given: &[i64]) -> Res<Vec<usize>> {
    let sizes: Option<Vec<usize>> = given.iter().map(|&size| usize::try_from(size).ok()).collect();
    match sizes {
        Some(sizes) if !sizes.is_empty() => Ok(sizes),
        _ => fail(format!("{given:?} are no extents")),
    }
}

pub(super) fn split(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let shape = cx.shape(&x)?;
    let axis = axis(call.int("axis", 0)?, shape.len())?;
    let extent = shape[axis];
    let (parts, drop) = match cx.optional(call, 1)? {
        // Parts of one, and only then may the dim go.
        None => (chunks(extent, 1)?, call.int("keepdims", 1)? == 0),
        Some(list) if cx.shape(&list)?.is_empty() => {
            (chunks(extent, cx.integer(&list, "the extent of a part")?)?, false)
        }
        Some(list) => (sizes(&cx.integers(&list, "the extents of the parts")?)?, false),
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

pub(super) fn construct(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    Ok(vec![Val::Sequence(cx.operands(call)?)])
}

pub(super) fn empty(_: &mut Lowering, _: Call<'_>) -> Res<Vec<Val>> {
    Ok(vec![Val::Sequence(Vec::new())])
}

/// At a position, or at the end.
pub(super) fn insert(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let mut values = sequence(cx, call)?;
    let value = cx.operand(call, 1)?;
    let position = match cx.optional(call, 2)? {
        Some(position) => place(cx, &position, values.len() + 1)?,
        None => values.len(),
    };
    values.insert(position, value);
    Ok(vec![Val::Sequence(values)])
}

/// At a position, or the last one.
pub(super) fn erase(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let mut values = sequence(cx, call)?;
    let position = match cx.optional(call, 1)? {
        Some(position) => place(cx, &position, values.len())?,
        None if values.is_empty() => return fail("the sequence is empty"),
        None => values.len() - 1,
    };
    values.remove(position);
    Ok(vec![Val::Sequence(values)])
}

pub(super) fn length(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    Ok(vec![Val::Known(Known::integer(sequence(cx, call)?.len() as i64))])
}

/// One of so many positions, which must be known.
fn place(cx: &Lowering, position: &Val, count: usize) -> Res<usize> {
    let position = cx.integer(position, "the position")?;
    axis(position, count).or_else(|_| fail(format!("{position} is none of its {count} positions")))
}

pub(super) fn at(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let values = sequence(cx, call)?;
    let position = cx.operand(call, 1)?;
    let position = axis(cx.integer(&position, "the position")?, values.len());
    match position {
        Ok(position) => Ok(vec![values[position].clone()]),
        Err(_) => fail(format!("a sequence of {} has not this position", values.len())),
    }
}

pub(super) fn concat(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let mut values = sequence(cx, call)?;
    let Some(first) = values.first() else { return fail("the sequence is empty") };
    let rank = cx.shape(first)?.len();
    let new = call.int("new_axis", 0)? != 0;
    let axis = axis(call.int("axis", 0)?, rank + usize::from(new))?;
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

fn sequence(cx: &Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    match cx.operand(call, 0)? {
        Val::Sequence(values) => Ok(values),
        _ => fail("a tensor stands where a sequence is needed"),
    }
}
