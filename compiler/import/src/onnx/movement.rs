//! Ops that move or repeat elements, or are about shapes.

use graphc_ir::op::Op;
use graphc_ir::ops::{
    BinaryFunction, Concat, Expand, Iota, Pad, Reshape, Slice, Transpose, Triangle, Where,
};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use rten_onnx::onnx::DataType;

use super::border::Border;
use super::known::{KnownValue, MOST_FOLDED};
use super::lower::{Lowering, Val};
use super::node::{LoweringProblem, NodeCall, Res, fail_with, resolve_axes, resolve_axis};
use super::places::wrap_negative;
use super::sequence::{chunk_extents, convert_extents};
use super::tensor;
use super::turned::merge_last_dims;

impl Lowering {
    /// Reshapes a value. A reshape of a reshape becomes one. If dims behind those that a transposition permutes are merged, they are merged before
    /// it, so that the transposition can cancel with its inverse.
    pub(super) fn reshape(&mut self, x: &Val, shape: &[usize]) -> Res<Val> {
        if self.shape(x)? == shape {
            return Ok(x.clone());
        }
        if let Some((Op::Reshape(_), source)) = self.find_producer(x) {
            return self.reshape(&source, shape);
        }
        if let Some((Op::Transpose(transpose), source)) = self.find_producer(x)
            && let Some((merged, permutation)) =
                merge_last_dims(&transpose.permutation, &self.shape(x)?, shape)
        {
            let from = self.shape(&source)?;
            let kept = permutation.len() - merged;
            let inner = [&from[..kept], &shape[kept..]].concat();
            let inner = self.reshape(&source, &inner)?;
            return self.transpose(&inner, permutation);
        }
        self.apply(Op::Reshape(Reshape { shape: shape.into() }), std::slice::from_ref(x))
    }

    pub(super) fn expand(&mut self, x: &Val, shape: &[usize]) -> Res<Val> {
        if self.shape(x)? == shape {
            return Ok(x.clone());
        }
        self.apply(Op::Expand(Expand { shape: shape.into() }), std::slice::from_ref(x))
    }

    /// Returns elements `start..end` of a dim, every `step`th.
    pub(super) fn slice(
        &mut self,
        x: &Val,
        dim: usize,
        start: usize,
        end: usize,
        step: usize,
    ) -> Res<Val> {
        let ends = self.shape(x)?;
        let mut slice = Slice { starts: vec![0; ends.len()], steps: vec![1; ends.len()], ends };
        (slice.starts[dim], slice.ends[dim], slice.steps[dim]) = (start, end, step);
        self.slice_all(x, slice)
    }

    fn slice_all(&mut self, x: &Val, slice: Slice) -> Res<Val> {
        let whole =
            slice.starts.iter().all(|&start| start == 0) && slice.steps.iter().all(|&s| s == 1);
        if whole && slice.ends == self.shape(x)? {
            return Ok(x.clone());
        }
        self.apply(Op::Slice(slice), std::slice::from_ref(x))
    }

    /// Permutes the dims. A transposition of a transposition becomes one, and a reshape does for dims of extent 1.
    pub(super) fn transpose(&mut self, x: &Val, permutation: Vec<usize>) -> Res<Val> {
        if permutation.iter().enumerate().all(|(dim, &from)| dim == from) {
            return Ok(x.clone());
        }
        if let Some((Op::Transpose(before), source)) = self.find_producer(x) {
            let both = permutation.iter().map(|&dim| before.permutation[dim]).collect();
            return self.transpose(&source, both);
        }
        let shape = self.shape(x)?;
        if shape.len() > 2 && shape.contains(&1) {
            return self.transpose_without_ones(x, &shape, &permutation);
        }
        self.apply(Op::Transpose(Transpose { permutation }), std::slice::from_ref(x))
    }
}

pub(super) fn lower_constant(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let list = |dtype, values: Vec<f64>| {
        Val::Known(KnownValue::new(TensorType::new(dtype, [values.len()]), values))
    };
    let one = |dtype, value| Val::Known(KnownValue::splat(TensorType::new(dtype, []), value));
    let value = if let Some(tensor) = call.tensor("value")? {
        let read = tensor::read_tensor(tensor, &cx.base_dir)
            .map_err(|e| LoweringProblem(e.to_string()))?;
        let name = call.proto.output.first().cloned().unwrap_or_default();
        match tensor::read_doubles(tensor, &cx.base_dir)
            .map_err(|e| LoweringProblem(e.to_string()))?
        {
            Some(elements) => Val::Known(KnownValue::from_doubles(&read.shape, elements)),
            None => cx.add_constant(&name, read)?,
        }
    } else if let Some(values) = call.ints("value_ints")? {
        Val::Known(KnownValue::from_integers(values))
    } else if let Some(values) = call.floats("value_floats")? {
        list(DType::F32, values.iter().map(|&x| x.into()).collect())
    } else if call.has_attribute("value_float") {
        one(DType::F32, call.float("value_float", 0.0)?)
    } else if let Some(value) = call.optional_int("value_int")? {
        one(DType::I64, value as f64)
    } else {
        return fail_with("its value is of a kind that is not supported");
    };
    Ok(vec![value])
}

pub(super) fn lower_constant_of_shape(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let shape = shape_operand(cx, call, 0)?;
    let (dtype, value) = match call.tensor("value")? {
        None => (DType::F32, 0.0),
        Some(tensor) => {
            let read = tensor::read_tensor(tensor, &cx.base_dir)
                .map_err(|e| LoweringProblem(e.to_string()))?;
            let doubles = tensor::read_doubles(tensor, &cx.base_dir);
            let known = match doubles.map_err(|e| LoweringProblem(e.to_string()))? {
                Some(elements) => KnownValue::from_doubles(&read.shape, elements),
                None => KnownValue::new(read.ty(), read.elements("value")?),
            };
            if let Some(value) = known.as_splat().filter(|_| known.is_wide()) {
                return Ok(vec![Val::Known(KnownValue::splat_double(&shape, value))]);
            }
            match known.as_splat().filter(|_| known.ty.elements() == 1) {
                Some(value) => (read.dtype, value),
                None => return fail_with("its value must be one number"),
            }
        }
    };
    Ok(vec![Val::Known(KnownValue::splat(TensorType::new(dtype, shape), value))])
}

/// A shape that an operand gives.
fn shape_operand(cx: &Lowering, call: NodeCall<'_>, position: usize) -> Res<Vec<usize>> {
    let list = cx.known_integers(&cx.operand(call, position)?, "the shape")?;
    let shape: Option<Vec<usize>> =
        list.iter().map(|&extent| usize::try_from(extent).ok()).collect();
    let elements =
        |shape: &Vec<usize>| shape.iter().try_fold(1usize, |n, &e| n.checked_mul(e.max(1)));
    match shape.filter(|shape| elements(shape).is_some_and(|n| n < 1 << 48)) {
        Some(shape) => Ok(shape),
        None => fail_with(format!(
            "{list:?} is no shape: extents are not negative, and their product is below 2^48"
        )),
    }
}

pub(super) fn lower_shape(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let shape = cx.shape(&cx.operand(call, 0)?)?;
    let rank = shape.len() as i64;
    let bound =
        |at: i64| (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize;
    let (start, end) = (bound(call.int("start", 0)?), bound(call.int("end", rank)?));
    Ok(vec![Lowering::known_list(shape.get(start..end).unwrap_or_default())])
}

pub(super) fn lower_size(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let elements = cx.ty(&cx.operand(call, 0)?)?.elements();
    Ok(vec![Val::Known(KnownValue::splat(TensorType::new(DType::I64, []), elements as f64))])
}

/// -1 stands for what is left, and 0 for the operand's own extent unless `allowzero`.
pub(super) fn lower_reshape(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let from = cx.shape(&x)?;
    let list = cx.known_integers(&cx.operand(call, 1)?, "the shape")?;
    let zero = call.int("allowzero", 0)? != 0;
    let mut shape = Vec::new();
    for (dim, &extent) in list.iter().enumerate() {
        shape.push(match extent {
            -1 => 1,
            0 if !zero => match from.get(dim) {
                Some(&extent) => extent,
                None => {
                    return fail_with(format!("{list:?} keeps dim {dim}, which {from:?} has not"));
                }
            },
            extent => match usize::try_from(extent) {
                Ok(extent) => extent,
                Err(_) => {
                    return fail_with(format!(
                        "{list:?} is no shape: one extent may be -1, and none is less"
                    ));
                }
            },
        });
    }
    let elements: usize = from.iter().product();
    let rest = shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent));
    let open: Vec<usize> = (0..list.len()).filter(|&dim| list[dim] == -1).collect();
    match (open.as_slice(), rest) {
        ([dim], Some(rest)) if rest > 0 && elements.is_multiple_of(rest) => {
            shape[*dim] = elements / rest
        }
        ([], Some(rest)) if rest == elements => {}
        _ => {
            return fail_with(format!(
                "{from:?} has {elements} elements, which do not fit {list:?}"
            ));
        }
    }
    Ok(vec![cx.reshape(&x, &shape)?])
}

pub(super) fn lower_flatten(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let shape = cx.shape(&x)?;
    let at = call.int("axis", 1)?;
    let at = if at == shape.len() as i64 { shape.len() } else { resolve_axis(at, shape.len())? };
    let flat = [shape[..at].iter().product(), shape[at..].iter().product()];
    Ok(vec![cx.reshape(&x, &flat)?])
}

pub(super) fn lower_transpose(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let rank = cx.shape(&x)?.len();
    let permutation = match call.ints("perm")? {
        None => (0..rank).rev().collect(),
        Some(perm) => perm.iter().map(|&dim| resolve_axis(dim, rank)).collect::<Res<Vec<_>>>()?,
    };
    Ok(vec![cx.transpose(&x, permutation)?])
}

/// Axes as an operand or, before version 13, an attribute.
fn given_axes(cx: &Lowering, call: NodeCall<'_>) -> Res<Option<Vec<i64>>> {
    match cx.optional_operand(call, 1)? {
        Some(list) => cx.known_integers(&list, "the axes").map(Some),
        None => Ok(call.ints("axes")?.map(<[i64]>::to_vec)),
    }
}

pub(super) fn lower_squeeze(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let shape = cx.shape(&x)?;
    let dims = match given_axes(cx, call)? {
        Some(given) => resolve_axes(&given, shape.len())?,
        None => (0..shape.len()).filter(|&dim| shape[dim] == 1).collect(),
    };
    if let Some(&dim) = dims.iter().find(|&&dim| shape[dim] != 1) {
        return fail_with(format!("dim {dim} of {shape:?} is not of extent 1"));
    }
    let left: Vec<usize> =
        (0..shape.len()).filter(|dim| !dims.contains(dim)).map(|dim| shape[dim]).collect();
    Ok(vec![cx.reshape(&x, &left)?])
}

pub(super) fn lower_unsqueeze(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let mut shape = cx.shape(&x)?;
    let given = given_axes(cx, call)?.unwrap_or_default();
    let dims = resolve_axes(&given, shape.len() + given.len())?;
    for dim in dims {
        if dim > shape.len() {
            return fail_with(format!("the axes {given:?} do not fit {shape:?}"));
        }
        shape.insert(dim, 1);
    }
    Ok(vec![cx.reshape(&x, &shape)?])
}

pub(super) fn lower_concat(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let operands = cx.operands(call)?;
    let Some(first) = operands.first() else { return fail_with("it has no operands") };
    let axis = resolve_axis(call.int("axis", 0)?, cx.shape(first)?.len())?;
    if operands.len() == 1 {
        return Ok(operands);
    }
    let joined = cx.apply(Op::Concat(Concat { axis }), &operands)?;
    if axis + 1 == cx.shape(&joined)?.len() {
        cx.remember_pieces(&joined, operands);
    }
    Ok(vec![joined])
}

/// Extents as an operand or an attribute, or as many equal parts as there are results.
pub(super) fn lower_split(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let shape = cx.shape(&x)?;
    let axis = resolve_axis(call.int("axis", 0)?, shape.len())?;
    let given = match cx.optional_operand(call, 1)? {
        Some(list) => Some(cx.known_integers(&list, "the extents of the parts")?),
        None => call.ints("split")?.map(<[i64]>::to_vec),
    };
    let parts = match given {
        Some(given) => convert_extents(&given)?,
        None => {
            let named = call.proto.output.len() as i64;
            let count = call.int("num_outputs", named)?.max(1);
            if count != named {
                return fail_with(format!(
                    "the attribute `num_outputs` is {count}, and it has {named} outputs"
                ));
            }
            let size = (shape[axis] as i64 + count - 1) / count;
            chunk_extents(shape[axis], size.max(1))?
        }
    };
    if parts.len() != call.proto.output.len() {
        let (parts, outputs) = (parts.len(), call.proto.output.len());
        return fail_with(format!("it splits into {parts} parts, and has {outputs} outputs"));
    }
    cx.split(&x, axis, parts)
}

/// Expands to the shape to which the operand's and the given one broadcast.
pub(super) fn lower_expand(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let (from, to) = (cx.shape(&x)?, shape_operand(cx, call, 1)?);
    let rank = from.len().max(to.len());
    let extent = |shape: &[usize], dim: usize| {
        (dim + shape.len()).checked_sub(rank).map_or(1, |dim| shape[dim])
    };
    let shape: Vec<usize> = (0..rank)
        .map(|dim| match (extent(&from, dim), extent(&to, dim)) {
            (from, 1) => from,
            (_, to) => to,
        })
        .collect();
    Ok(vec![cx.expand(&x, &shape)?])
}

/// Repeats each dim: `[a, b]` as `[1, a, 1, b]` is expanded to `[r, a, s, b]`, which is `[ra, sb]`.
pub(super) fn lower_tile(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let (shape, repeats) = (cx.shape(&x)?, shape_operand(cx, call, 1)?);
    if repeats.len() != shape.len() {
        return fail_with(format!("repeats {repeats:?} do not fit {shape:?}"));
    }
    let apart: Vec<usize> = shape.iter().flat_map(|&extent| [1, extent]).collect();
    let repeated: Vec<usize> = shape.iter().zip(&repeats).flat_map(|(&e, &r)| [r, e]).collect();
    let joined: Vec<usize> = shape.iter().zip(&repeats).map(|(&e, &r)| r * e).collect();
    let x = cx.reshape(&x, &apart)?;
    let x = cx.expand(&x, &repeated)?;
    Ok(vec![cx.reshape(&x, &joined)?])
}

/// Starts, ends, axes and steps as operands or, before version 10, attributes. Bounds beyond a dim are its own.
pub(super) fn lower_slice(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let shape = cx.shape(&x)?;
    let list = |position: usize, name: &str| match cx.optional_operand(call, position)? {
        Some(list) => cx.known_integers(&list, name).map(Some),
        None => Ok(call.ints(name)?.map(<[i64]>::to_vec)),
    };
    let (starts, ends) =
        (list(1, "starts")?.unwrap_or_default(), list(2, "ends")?.unwrap_or_default());
    let dims = list(3, "axes")?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = list(4, "steps")?.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || dims.len() != starts.len() || steps.len() != starts.len() {
        return fail_with("starts, ends, axes and steps differ in number");
    }
    let mut slice =
        Slice { starts: vec![0; shape.len()], ends: shape.clone(), steps: vec![1; shape.len()] };
    let mut backward = Vec::new();
    for (index, &dim) in dims.iter().enumerate() {
        let dim = resolve_axis(dim, shape.len())?;
        let extent = shape[dim] as i64;
        let bound = |at: i64, least: i64, most: i64| {
            (if at < 0 { at.saturating_add(extent) } else { at }).clamp(least, most)
        };
        let (start, end) = (bound(starts[index], 0, extent), bound(ends[index], 0, extent));
        let Ok(step) = usize::try_from(steps[index]) else {
            let from = bound(starts[index], 0, extent - 1);
            backward.push((dim, [from, bound(ends[index], -1, extent - 1), steps[index]]));
            continue;
        };
        if step == 0 {
            return fail_with("a step of 0 leads nowhere");
        }
        slice.starts[dim] = start as usize;
        slice.ends[dim] = end.max(start) as usize;
        slice.steps[dim] = step;
    }
    let mut part = cx.slice_all(&x, slice)?;
    for (dim, places) in backward {
        part = cx.slice_backward(&part, dim, places)?;
    }
    Ok(vec![part])
}

/// A negative border cuts.
pub(super) fn lower_pad(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let border = match call.text("mode", "constant")? {
        "constant" => None,
        other => Some(Border::from_name(other)?),
    };
    let mut x = cx.operand(call, 0)?;
    let shape = cx.shape(&x)?;
    let pads = match cx.optional_operand(call, 1)? {
        Some(list) => cx.known_integers(&list, "the borders")?,
        None => call.ints("pads")?.unwrap_or_default().to_vec(),
    };
    let value = match cx.optional_operand(call, 2)? {
        Some(value) => cx.require_known(&value, "the border's value")?.as_splat().unwrap_or(0.0),
        None => call.float("value", 0.0)?,
    };
    let dims = match cx.optional_operand(call, 3)? {
        Some(list) => cx
            .known_integers(&list, "the axes")?
            .iter()
            .map(|&dim| resolve_axis(dim, shape.len()))
            .collect::<Res<Vec<_>>>()?,
        None => (0..shape.len()).collect(),
    };
    if pads.len() != 2 * dims.len() {
        return fail_with(format!("{} borders do not fit {} dims", pads.len(), dims.len()));
    }
    let zeros = vec![0; shape.len()];
    let (low, high) = (zeros.clone(), zeros.clone());
    let mut pad = Pad { low, high, interior: zeros, value: Scalar(value) };
    for (index, &dim) in dims.iter().enumerate() {
        let (low, high) = (pads[index], pads[dims.len() + index]);
        let extent = shape[dim] as i64;
        let most = 1 << 40;
        let (start, end) = ((-low).clamp(0, most), extent - (-high).clamp(0, most));
        if low.abs() > most || high.abs() > most || start > end {
            return fail_with(format!(
                "borders of {low} and {high} do not fit dim {dim} of {shape:?}: a border has at most 2^40 elements, and one that takes \
                 away leaves what is there; correct its pads"
            ));
        }
        x = cx.slice(&x, dim, start as usize, end as usize, 1)?;
        let widths = [low, high].map(|width| width.max(0) as usize);
        match border {
            Some(border) => x = cx.add_border(&x, dim, widths, border)?,
            None => [pad.low[dim], pad.high[dim]] = widths,
        }
    }
    if pad.low == pad.high && pad.low == pad.interior {
        return Ok(vec![x]);
    }
    Ok(vec![cx.apply(Op::Pad(pad), &[x])?])
}

pub(super) fn lower_trilu(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let diagonal = match cx.optional_operand(call, 1)? {
        Some(k) => cx.known_integer(&k, "the diagonal")?,
        None => 0,
    };
    let lower = call.int("upper", 1)? == 0;
    Ok(vec![cx.apply(Op::Triangle(Triangle { lower, diagonal }), &[x])?])
}

/// 1 on a diagonal of a matrix, else 0.
pub(super) fn lower_eye_like(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let own = cx.ty(&cx.operand(call, 0)?)?;
    let [rows, columns] = own.shape[..] else { return fail_with(format!("{own} is no matrix")) };
    if rows.max(columns) > MOST_FOLDED {
        return fail_with(format!("a matrix of {rows} x {columns} is too large"));
    }
    let named = call.optional_int("dtype")?;
    let dtype = named.map(|named| tensor::stored_type(DataType(i32::try_from(named).unwrap_or(0))));
    let dtype = match dtype {
        None => own.dtype,
        Some(Some(stored)) => stored.dtype,
        Some(None) => return fail_with("the element type of its result is not supported"),
    };
    let line = |shape: [usize; 2], first: i64| {
        let numbers = (0..shape[0] * shape[1]).map(|i| first as f64 + i as f64).collect();
        Val::Known(KnownValue::new(TensorType::new(DType::I64, shape), numbers))
    };
    let (row, column) = (line([rows, 1], call.int("k", 0)?), line([1, columns], 0));
    let hit = cx.apply_binary(BinaryFunction::Equal, &row, &column)?;
    Ok(vec![cx.cast(&hit, dtype)?])
}

pub(super) fn lower_range(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let mut bounds = Vec::new();
    for (position, what) in ["the start", "the limit", "the step"].into_iter().enumerate() {
        let known = cx.require_known(&cx.operand(call, position)?, what)?;
        match known.as_splat().filter(|_| known.ty.elements() == 1) {
            Some(value) => bounds.push((value, known.ty.dtype)),
            None => return fail_with(format!("{what} must be one number")),
        }
    }
    let (start, limit, step, dtype) = (bounds[0].0, bounds[1].0, bounds[2].0, bounds[0].1);
    let count = ((limit - start) / step).ceil().max(0.0);
    if step == 0.0 || count.is_nan() || count >= 1e12 {
        return fail_with(format!(
            "from {start} to {limit} by {step} is no range: a step is not 0, and a range has fewer than 10^12 numbers"
        ));
    }
    let ty = TensorType::new(dtype, [count as usize]);
    if count as usize <= MOST_FOLDED {
        let elements = (0..count as usize).map(|index| start + index as f64 * step).collect();
        return Ok(vec![Val::Known(KnownValue::new(ty, elements))]);
    }
    let index = cx.push_source(Op::Iota(Iota { ty, dim: 0 }))?;
    let (step_value, start_value) = (cx.number_like(&index, step)?, cx.number_like(&index, start)?);
    let scaled = if step == 1.0 {
        index
    } else {
        cx.apply_binary(BinaryFunction::Mul, &index, &step_value)?
    };
    let shifted = match start {
        0.0 => scaled,
        _ => cx.apply_binary(BinaryFunction::Add, &scaled, &start_value)?,
    };
    Ok(vec![shifted])
}

/// `on` where the index along a new dim is the operand, else `off`.
pub(super) fn lower_one_hot(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let indices = cx.operand(call, 0)?;
    let indices = cx.cast(&indices, DType::I64)?;
    let depth = cx.known_integer(&cx.operand(call, 1)?, "the depth")?;
    let values = cx.require_known(&cx.operand(call, 2)?, "the values")?;
    let [off, on] = values.elements()[..] else {
        return fail_with("it needs the values off and on");
    };
    let indices = if depth > 0 { wrap_negative(cx, &indices, depth as usize)? } else { indices };
    let mut shape = cx.shape(&indices)?;
    let at = resolve_axis(call.int("axis", -1)?, shape.len() + 1)?;
    shape.insert(at, 1);
    let indices = cx.reshape(&indices, &shape)?;
    let Some(depth) = usize::try_from(depth).ok().filter(|&depth| depth < 1 << 40) else {
        return fail_with(format!(
            "a depth of {depth} is none: it is a number of classes below 2^40"
        ));
    };
    let mut line = vec![1; shape.len()];
    line[at] = depth;
    let classes =
        cx.push_source(Op::Iota(Iota { ty: TensorType::new(DType::I64, line), dim: at }))?;
    let hit = cx.apply_binary(BinaryFunction::Equal, &indices, &classes)?;
    let number = |value| Val::Known(KnownValue::splat(TensorType::new(values.ty.dtype, []), value));
    Ok(vec![cx.apply(Op::Where(Where {}), &[hit, number(on), number(off)])?])
}
