//! Reductions.

use graphc_ir::op::Op;
use graphc_ir::ops::{
    ArgMax, BinaryFunction, Concat, CumulativeSum, Iota, Reduce, ReduceFunction, TopK,
    UnaryFunction,
};
use graphc_ir::types::{DType, TensorType};

use super::known::KnownValue;
use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with, resolve_axes, resolve_axis};

impl Lowering {
    /// A reduction over dims.
    pub(super) fn reduce(
        &mut self,
        function: ReduceFunction,
        x: &Val,
        axes: &[usize],
        keep_dims: bool,
    ) -> Res<Val> {
        if axes.is_empty() {
            return Ok(x.clone());
        }
        let op = Op::Reduce(Reduce { function, axes: axes.into(), keep_dims });
        self.apply(op, std::slice::from_ref(x))
    }
}

pub(super) fn lower_reduce(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    function: ReduceFunction,
) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    Ok(vec![reduce_over_axes(cx, call, function, &x)?])
}

/// A reduction as the node says: axes as an operand or an attribute; without any, over all dims or none.
fn reduce_over_axes(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    function: ReduceFunction,
    x: &Val,
) -> Res<Val> {
    let (dims, keep_dims) = read_dims(cx, call, x)?;
    cx.reduce(function, x, &dims, keep_dims)
}

/// The dims that a reduction is over, and whether they stay, with extent 1.
fn read_dims(cx: &mut Lowering, call: NodeCall<'_>, x: &Val) -> Res<(Vec<usize>, bool)> {
    let rank = cx.shape(x)?.len();
    let given = match cx.optional_operand(call, 1)? {
        Some(list) => cx.known_integers(&list, "the axes")?,
        None => call.ints("axes")?.unwrap_or_default().to_vec(),
    };
    let none = given.is_empty() && call.int("noop_with_empty_axes", 0)? != 0;
    let dims =
        if given.is_empty() && !none { (0..rank).collect() } else { resolve_axes(&given, rank)? };
    Ok((dims, call.int("keepdims", 1)? != 0))
}

/// Sums of sizes, of squares, and the root of the latter.
pub(super) enum Norm {
    L1,
    L2,
    SumSquare,
}

pub(super) fn lower_norm(cx: &mut Lowering, call: NodeCall<'_>, norm: Norm) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let terms = match norm {
        Norm::L1 => cx.apply_unary(UnaryFunction::Abs, &x)?,
        Norm::L2 | Norm::SumSquare => cx.apply_binary(BinaryFunction::Mul, &x, &x)?,
    };
    let sum = reduce_over_axes(cx, call, ReduceFunction::Sum, &terms)?;
    Ok(vec![match norm {
        Norm::L2 => cx.apply_unary(UnaryFunction::Sqrt, &sum)?,
        Norm::L1 | Norm::SumSquare => sum,
    }])
}

pub(super) fn lower_reduce_log_sum(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let sum = lower_reduce(cx, call, ReduceFunction::Sum)?.swap_remove(0);
    Ok(vec![cx.apply_unary(UnaryFunction::Log, &sum)?])
}

/// 1 at the first of the greatest elements along a dim, else 0.
pub(super) fn lower_hard_max(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let shape = cx.shape(&x)?;
    let axis = resolve_axis(call.int("axis", -1)?, shape.len())?;
    let best = cx.apply(Op::ArgMax(ArgMax { axis, keep_dims: true }), std::slice::from_ref(&x))?;
    let best = cx.cast(&best, DType::I64)?;
    let mut line = vec![1; shape.len()];
    line[axis] = shape[axis];
    let ty = TensorType::new(DType::I64, line);
    let places = cx.push_source(Op::Iota(Iota { ty, dim: axis }))?;
    let hit = cx.apply_binary(BinaryFunction::Equal, &best, &places)?;
    Ok(vec![cx.cast(&hit, cx.ty(&x)?.dtype)?])
}

/// log(sum(exp(x))), about the greatest, so that no power is too large.
pub(super) fn lower_log_sum_exp(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let (dims, keep_dims) = read_dims(cx, call, &x)?;
    let greatest = cx.reduce(ReduceFunction::Max, &x, &dims, true)?;
    let below = cx.apply_binary(BinaryFunction::Sub, &x, &greatest)?;
    let powers = cx.apply_unary(UnaryFunction::Exp, &below)?;
    let sum = cx.reduce(ReduceFunction::Sum, &powers, &dims, true)?;
    let log = cx.apply_unary(UnaryFunction::Log, &sum)?;
    let whole = cx.apply_binary(BinaryFunction::Add, &log, &greatest)?;
    let shape = cx.shape(&x)?;
    let kept = (0..shape.len()).filter(|dim| keep_dims || !dims.contains(dim));
    let result: Vec<usize> =
        kept.map(|dim| if dims.contains(&dim) { 1 } else { shape[dim] }).collect();
    Ok(vec![cx.reshape(&whole, &result)?])
}

/// The product over dims; of numbers that are known when the model is read, as sizes are, it is one that is known.
pub(super) fn lower_product(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let (dims, keep_dims) = read_dims(cx, call, &x)?;
    let known = cx.find_foldable(&x).filter(|known| dims.len() == known.ty.shape.len());
    let Some(known) = known else {
        return Ok(vec![multiply_dims(cx, &x, &dims, keep_dims)?]);
    };
    let shape = if keep_dims { vec![1; dims.len()] } else { Vec::new() };
    let product = known.elements().iter().product();
    Ok(vec![Val::Known(KnownValue::splat(TensorType::new(known.ty.dtype, shape), product))])
}

/// A product over dims, of each the first half by the second until one element is left, so gradients are right beside zeros too.
fn multiply_dims(cx: &mut Lowering, x: &Val, dims: &[usize], keep_dims: bool) -> Res<Val> {
    let mut shape = cx.shape(x)?;
    dims.iter().for_each(|&dim| shape[dim] = 1);
    let kept = (0..shape.len()).filter(|dim| keep_dims || !dims.contains(dim));
    let left: Vec<usize> = kept.map(|dim| shape[dim]).collect();
    let ty = cx.ty(x)?;
    if dims.iter().any(|&dim| ty.shape[dim] == 0) {
        return Ok(Val::Known(KnownValue::splat(TensorType::new(ty.dtype, left), 1.0)));
    }
    let mut product = x.clone();
    for &dim in dims {
        while let extent @ 2.. = cx.shape(&product)?[dim] {
            product = halve_dim(cx, &product, dim, extent)?;
        }
    }
    cx.reshape(&product, &left)
}

/// The first half of a dim by the second, and the last element of an odd number behind.
fn halve_dim(cx: &mut Lowering, x: &Val, dim: usize, extent: usize) -> Res<Val> {
    let half = extent / 2;
    let (first, second) = (cx.slice(x, dim, 0, half, 1)?, cx.slice(x, dim, half, 2 * half, 1)?);
    let product = cx.apply_binary(BinaryFunction::Mul, &first, &second)?;
    if extent == 2 * half {
        return Ok(product);
    }
    let last = cx.slice(x, dim, extent - 1, extent, 1)?;
    cx.apply(Op::Concat(Concat { axis: dim }), &[product, last])
}

/// The index of the greatest, or of the least.
pub(super) fn lower_arg_extreme(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    least: bool,
) -> Res<Vec<Val>> {
    let mut x = cx.operand(call, 0)?;
    let axis = resolve_axis(call.int("axis", 0)?, cx.shape(&x)?.len())?;
    if call.int("select_last_index", 0)? != 0 {
        return fail_with(
            "select_last_index=1 is not supported: the first of equal elements is taken",
        );
    }
    if least {
        x = cx.apply_unary(UnaryFunction::Neg, &x)?;
    }
    let keep_dims = call.int("keepdims", 1)? != 0;
    let index = cx.apply(Op::ArgMax(ArgMax { axis, keep_dims }), &[x])?;
    Ok(vec![cx.cast(&index, DType::I64)?])
}

/// The best elements along a dim and their places, the best first.
pub(super) fn lower_top_k(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let dim = resolve_axis(call.int("axis", -1)?, cx.shape(&x)?.len())?;
    let count = match cx.optional_operand(call, 1)? {
        Some(count) => cx.known_integer(&count, "the number of elements")?,
        None => call.int("k", 0)?,
    };
    let Ok(count) = usize::try_from(count) else {
        return fail_with(format!("there are no {count}"));
    };
    let op = Op::TopK(TopK { count, greatest: call.int("largest", 1)? != 0 });
    let x = cx.moved_last(&x, dim)?;
    let results = cx.apply_all(op, &[x])?;
    results.iter().map(|result| cx.moved_from_last(result, dim)).collect()
}

/// The sum of all elements along a dim up to each. Of truth values and bytes it counts in `i64`.
pub(super) fn lower_cumulative_sum(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let mut x = cx.operand(call, 0)?;
    let dim = cx.known_integer(&cx.operand(call, 1)?, "the axis")?;
    let axis = resolve_axis(dim, cx.shape(&x)?.len())?;
    let (exclusive, reverse) = (call.int("exclusive", 0)? != 0, call.int("reverse", 0)? != 0);
    let dtype = cx.ty(&x)?.dtype;
    if matches!(dtype, DType::U8 | DType::Bool) {
        x = cx.cast(&x, DType::I64)?;
    }
    let op = Op::CumulativeSum(CumulativeSum { axis, exclusive, reverse });
    let sums = cx.apply(op, &[x])?;
    Ok(vec![cx.cast(&sums, dtype)?])
}

/// The mean over all dims but the first two.
pub(super) fn lower_global_average(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    lower_global_reduce(cx, call, ReduceFunction::Mean)
}

pub(super) fn lower_global_max(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    lower_global_reduce(cx, call, ReduceFunction::Max)
}

/// Over all dims but batch and channels, which stay with extent 1.
fn lower_global_reduce(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    function: ReduceFunction,
) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let axes: Vec<usize> = (2..cx.shape(&x)?.len()).collect();
    Ok(vec![cx.reduce(function, &x, &axes, true)?])
}
