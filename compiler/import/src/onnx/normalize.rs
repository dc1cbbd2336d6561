//! Softmax, normalization and dropout.

use graphc_ir::op::Op;
use graphc_ir::ops::{
    AveragePool, BinaryFunction, DropoutOp, Full, LogSoftmax, Normalize, ReduceFunction, Softmax,
    UnaryFunction, Where, Window,
};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with, resolve_axis};

/// Lowers a softmax or its logarithm. Since version 13 it is over one dim; before, over all dims from one on, as if they were one.
pub(super) fn lower_softmax(cx: &mut Lowering, call: NodeCall<'_>, log: bool) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let shape = cx.shape(&x)?;
    let old = call.opset < 13;
    let dim = resolve_axis(call.int("axis", if old { 1 } else { -1 })?, shape.len())?;
    let op = |axis| match log {
        true => Op::LogSoftmax(LogSoftmax { axis }),
        false => Op::Softmax(Softmax { axis }),
    };
    if !old || dim + 1 == shape.len() {
        return Ok(vec![cx.apply(op(dim), &[x])?]);
    }
    let flat = [shape[..dim].iter().product(), shape[dim..].iter().product()];
    let x = cx.reshape(&x, &flat)?;
    let y = cx.apply(op(1), &[x])?;
    Ok(vec![cx.reshape(&y, &shape)?])
}

/// Results: the normalized tensor, the mean, and the inverse of the standard deviation.
pub(super) fn lower_layer_normalization(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let (y, root) = normalize_from_axis(cx, call, &x, true)?;
    let mut results = vec![scale_and_shift(cx, call, y)?];
    if call.proto.output.iter().skip(1).any(|name| !name.is_empty()) {
        let rank = cx.shape(&x)?.len();
        let first = resolve_axis(call.int("axis", -1)?, rank)?;
        let axes: Vec<usize> = (first..rank).collect();
        results.push(cx.reduce(ReduceFunction::Mean, &x, &axes, true)?);
        results.push(root);
    }
    Ok(results)
}

pub(super) fn lower_rms_normalization(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let (y, root) = normalize_from_axis(cx, call, &x, false)?;
    Ok(vec![scale_and_shift(cx, call, y)?, root])
}

/// Normalizes over all dims from the axis on, as if they were one.
fn normalize_from_axis(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    x: &Val,
    center: bool,
) -> Res<(Val, Val)> {
    let shape = cx.shape(x)?;
    let first = resolve_axis(call.int("axis", -1)?, shape.len())?;
    let epsilon = Scalar(shortest_number(call.float("epsilon", 1e-5)?));
    let op = Op::Normalize(Normalize { center, epsilon });
    let last = first + 1 == shape.len();
    let flat = [&shape[..first], &[shape[first..].iter().product()]].concat();
    let x = if last { x.clone() } else { cx.reshape(x, &flat)? };
    let mut results = cx.apply_all(op, &[x])?;
    let (root, y) = (results.pop(), results.pop());
    let (Some(y), Some(root)) = (y, root) else {
        return fail_with("normalization has two results");
    };
    if last {
        return Ok((y, root));
    }
    let ones = vec![1; shape.len() - first];
    let root = cx.reshape(&root, &[&shape[..first], &ones].concat())?;
    Ok((cx.reshape(&y, &shape)?, root))
}

/// Normalizes each channel of each sample by its own statistics. There is a scale and a shift for each channel.
pub(super) fn lower_instance_normalization(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let channels = channel_count(cx, &x, 3)?;
    let y = normalize_groups(cx, call, &x, channels)?;
    of_channels(cx, call, y).map(|y| vec![y])
}

/// Normalizes groups of channels by their own statistics. There is a scale and a shift for each channel, or for each group before version 21.
pub(super) fn lower_group_normalization(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let channels = channel_count(cx, &x, 2)?;
    let groups = usize::try_from(call.int("num_groups", 0)?).unwrap_or(0);
    if groups == 0 || !channels.is_multiple_of(groups) {
        return fail_with(format!("the attribute `num_groups` must divide {channels} channels"));
    }
    let y = normalize_groups(cx, call, &x, groups)?;
    if call.opset >= 21 {
        return of_channels(cx, call, y).map(|y| vec![y]);
    }
    let shape = cx.shape(&y)?;
    let grouped =
        cx.reshape(&y, &[shape[0], groups, shape[1..].iter().product::<usize>() / groups])?;
    let y = of_channels(cx, call, grouped)?;
    Ok(vec![cx.reshape(&y, &shape)?])
}

/// Returns the extent of dim 1 of a tensor that has at least so many dims.
fn channel_count(cx: &Lowering, x: &Val, least: usize) -> Res<usize> {
    match cx.shape(x)?[..] {
        [_, channels, ref rest @ ..] if rest.len() + 2 >= least => Ok(channels),
        _ => fail_with(format!("{least} dims or more are needed, not {}", cx.ty(x)?)),
    }
}

/// Normalizes over all of a group of channels of a sample.
fn normalize_groups(cx: &mut Lowering, call: NodeCall<'_>, x: &Val, groups: usize) -> Res<Val> {
    let shape = cx.shape(x)?;
    let epsilon = Scalar(shortest_number(call.float("epsilon", 1e-5)?));
    let each = shape[1..].iter().product::<usize>() / groups.max(1);
    let flat = cx.reshape(x, &[shape[0], groups, each])?;
    let normalized = cx.apply_all(Op::Normalize(Normalize { center: true, epsilon }), &[flat])?;
    cx.reshape(&normalized[0], &shape)
}

/// Scales and shifts by operands of the second dim.
fn of_channels(cx: &mut Lowering, call: NodeCall<'_>, y: Val) -> Res<Val> {
    let rank = cx.shape(&y)?.len();
    let mut y = y;
    for (position, function) in [(1, BinaryFunction::Mul), (2, BinaryFunction::Add)] {
        let operand = cx.operand(call, position)?;
        let mut shape = vec![1; rank - 1];
        shape[0] = cx.shape(&operand)?.iter().product();
        let operand = cx.reshape(&operand, &shape)?;
        y = cx.apply_binary(function, &y, &operand)?;
    }
    Ok(y)
}

/// Returns the number that a user meant by an `f32`: the one with the shortest text that reads as it.
pub(super) fn shortest_number(x: f64) -> f64 {
    (x as f32).to_string().parse().unwrap_or(x)
}

fn scale_and_shift(cx: &mut Lowering, call: NodeCall<'_>, y: Val) -> Res<Val> {
    let mut y = y;
    if let Some(scale) = cx.optional_operand(call, 1)? {
        y = cx.apply_binary(BinaryFunction::Mul, &y, &scale)?;
    }
    if let Some(bias) = cx.optional_operand(call, 2)? {
        y = cx.apply_binary(BinaryFunction::Add, &y, &bias)?;
    }
    Ok(y)
}

/// Dropout as in inference; training turns it on.
pub(super) fn lower_dropout(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    // Whether it drops something is the command's to say, not the model's (`training_mode`).
    cx.optional_operand(call, 2)?;
    let ratio = match cx.optional_operand(call, 1)? {
        Some(ratio) => cx.require_known(&ratio, "the ratio")?.as_splat(),
        None => Some(shortest_number(call.float("ratio", 0.5)?)),
    };
    let Some(ratio) = ratio.filter(|ratio| (0.0..1.0).contains(ratio)) else {
        return fail_with("the ratio must be one number from 0 to less than 1");
    };
    let op = DropoutOp {
        probability: Scalar(shortest_number(ratio)),
        key: cx.next_key(),
        training: false,
    };
    let mut results = vec![if ratio == 0.0 {
        x.clone()
    } else {
        cx.apply(Op::Dropout(op), std::slice::from_ref(&x))?
    }];
    if call.proto.output.get(1).is_some_and(|name| cx.wanted.contains(name)) {
        results.push(make_dropout_mask(cx, &x, op)?);
    }
    Ok(results)
}

/// Returns truth values: whether a dropout keeps an element. They come from a dropout of ones, as the same random numbers drop the same elements.
fn make_dropout_mask(cx: &mut Lowering, x: &Val, op: DropoutOp) -> Res<Val> {
    let ones = TensorType::new(DType::F32, cx.shape(x)?);
    let ones = cx.push_source(Op::Full(Full { ty: ones, value: Scalar(1.0) }))?;
    let kept = cx.apply(Op::Dropout(op), &[ones])?;
    let zero = cx.number_like(&kept, 0.0)?;
    cx.apply_binary(BinaryFunction::Greater, &kept, &zero)
}

/// Divides each element by a power of the scaled and shifted mean square of those next to it in other channels.
pub(super) fn lower_local_response_normalization(
    cx: &mut Lowering,
    call: NodeCall<'_>,
) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let shape = cx.shape(&x)?;
    let [n, c, ..] = shape[..] else { return fail_with("its operand has a dim of channels") };
    let size = match usize::try_from(call.int("size", 0)?) {
        Ok(size @ 1..) if size <= 2 * c.max(1) => size,
        _ => {
            return fail_with(format!(
                "the attribute `size` must be from 1 to twice the {c} channels"
            ));
        }
    };
    let square = cx.apply_binary(BinaryFunction::Mul, &x, &x)?;
    let flat = cx.reshape(&square, &[n, 1, c, shape[2..].iter().product()])?;
    let window = Window { pads: [(size - 1) / 2, 0, size / 2, 0], ..Window::PLAIN };
    let kernel = [size, 1];
    let pool = AveragePool { kernel, window, count_border: true, channels_last: false };
    let mean = cx.apply(Op::AveragePool(pool), &[flat])?;
    let mean = cx.reshape(&mean, &shape)?;
    let scaled = cx.apply_unary(UnaryFunction::Scale(Scalar(call.float("alpha", 1e-4)?)), &mean)?;
    let shifted =
        cx.apply_unary(UnaryFunction::Offset(Scalar(call.float("bias", 1.0)?)), &scaled)?;
    let power = -call.float("beta", 0.75)?;
    let factor = cx.apply_unary(UnaryFunction::PowScalar(Scalar(power)), &shifted)?;
    Ok(vec![cx.apply_binary(BinaryFunction::Mul, &x, &factor)?])
}

/// Divides by the sum of absolute values, or the root of the sum of squares, along a dim. Zeros stay zeros.
pub(super) fn lower_lp_normalization(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let dim = resolve_axis(call.int("axis", -1)?, cx.shape(&x)?.len())?;
    let norm = match call.int("p", 2)? {
        1 => {
            let sizes = cx.apply_unary(UnaryFunction::Abs, &x)?;
            cx.reduce(ReduceFunction::Sum, &sizes, &[dim], true)?
        }
        2 => {
            let squares = cx.apply_binary(BinaryFunction::Mul, &x, &x)?;
            let sum = cx.reduce(ReduceFunction::Sum, &squares, &[dim], true)?;
            cx.apply_unary(UnaryFunction::Sqrt, &sum)?
        }
        other => return fail_with(format!("the attribute `p` must be 1 or 2, not {other}")),
    };
    let (zero, one) = (cx.number_like(&norm, 0.0)?, cx.number_like(&norm, 1.0)?);
    let none = cx.apply_binary(BinaryFunction::Equal, &norm, &zero)?;
    let norm = cx.apply(Op::Where(Where {}), &[none, one, norm])?;
    Ok(vec![cx.apply_binary(BinaryFunction::Div, &x, &norm)?])
}
