//! Ops of onnxruntime (`com.microsoft`) into which its optimizer joins layers of transformers, as it writes them into the files that people
//! download: each in terms of the ops that it was joined from.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, Normalize, ReduceFunction, UnaryFunction};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

use super::known::KnownValue;
use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with};
use super::normalize::shortest_number;

/// Lowers the normalization of the sum of two tensors and a bias. Its results are the normalized sum, the mean, the inverse of the deviation, and the
/// sum itself.
pub(super) fn lower_skip_layer_normalization(
    cx: &mut Lowering,
    call: NodeCall<'_>,
) -> Res<Vec<Val>> {
    let sum = add_skip(cx, call, 4)?;
    let (y, root) = normalize_last_dim(cx, call, &sum, true)?;
    let scale = cx.operand(call, 2)?;
    let mut y = cx.apply_binary(BinaryFunction::Mul, &y, &scale)?;
    if let Some(shift) = cx.optional_operand(call, 3)? {
        y = cx.apply_binary(BinaryFunction::Add, &y, &shift)?;
    }
    let last = cx.shape(&sum)?.len().saturating_sub(1);
    let mean = cx.reduce(ReduceFunction::Mean, &sum, &[last], true)?;
    Ok(vec![y, mean, root, sum])
}

/// Lowers the same as [`lower_skip_layer_normalization`] with a division by the root of the mean square. The mean is not subtracted.
pub(super) fn lower_skip_rms_normalization(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let sum = add_skip(cx, call, 3)?;
    let (y, root) = normalize_last_dim(cx, call, &sum, false)?;
    let scale = cx.operand(call, 2)?;
    let y = cx.apply_binary(BinaryFunction::Mul, &y, &scale)?;
    let last = cx.shape(&sum)?.len().saturating_sub(1);
    let mean = cx.reduce(ReduceFunction::Mean, &sum, &[last], true)?;
    Ok(vec![y, mean, root, sum])
}

/// Adds the first two operands, and the bias at a position if there is one.
fn add_skip(cx: &mut Lowering, call: NodeCall<'_>, bias: usize) -> Res<Val> {
    let (x, skip) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let sum = cx.apply_binary(BinaryFunction::Add, &x, &skip)?;
    match cx.optional_operand(call, bias)? {
        Some(bias) => cx.apply_binary(BinaryFunction::Add, &sum, &bias),
        None => Ok(sum),
    }
}

/// Normalizes a tensor along its last dim, and returns also the factor by which it was multiplied.
fn normalize_last_dim(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    x: &Val,
    center: bool,
) -> Res<(Val, Val)> {
    let epsilon = Scalar(shortest_number(call.float("epsilon", 1e-12)?));
    let mut results =
        cx.apply_all(Op::Normalize(Normalize { center, epsilon }), std::slice::from_ref(x))?;
    match (results.pop(), results.pop()) {
        (Some(root), Some(y)) => Ok((y, root)),
        _ => fail_with("normalization has two results"),
    }
}

/// Results: the normalized sum of the embeddings of words, positions and segments, how many tokens a mask counts, and the sum.
pub(super) fn lower_embed_layer_normalization(
    cx: &mut Lowering,
    call: NodeCall<'_>,
) -> Res<Vec<Val>> {
    let ids = cx.operand(call, 0)?;
    let [batch, time] = cx.shape(&ids)?[..] else {
        return fail_with("the ids must be [batch, time]");
    };
    let words = look_up_rows(cx, call, 2, &ids)?;
    let positions = match cx.optional_operand(call, 8)? {
        Some(positions) => positions,
        None => {
            let line: Vec<usize> = (0..time).collect();
            cx.expand(&Lowering::known_list(&line), &[batch, time])?
        }
    };
    let places = look_up_rows(cx, call, 3, &positions)?;
    let mut sum = cx.apply_binary(BinaryFunction::Add, &words, &places)?;
    if let Some(segments) = cx.optional_operand(call, 1)? {
        let segments = look_up_rows(cx, call, 4, &segments)?;
        sum = cx.apply_binary(BinaryFunction::Add, &sum, &segments)?;
    }
    let (y, _) = normalize_last_dim(cx, call, &sum, true)?;
    let (scale, shift) = (cx.operand(call, 5)?, cx.operand(call, 6)?);
    let y = cx.apply_binary(BinaryFunction::Mul, &y, &scale)?;
    let y = cx.apply_binary(BinaryFunction::Add, &y, &shift)?;
    let lengths = match cx.optional_operand(call, 7)? {
        Some(mask) => {
            let mask = cx.cast(&mask, DType::I32)?;
            cx.reduce(ReduceFunction::Sum, &mask, &[1], false)?
        }
        None => Val::Known(KnownValue::splat(TensorType::new(DType::I32, [batch]), 0.0)),
    };
    Ok(vec![y, lengths, sum])
}

/// Rows of the table at a position.
fn look_up_rows(cx: &mut Lowering, call: NodeCall<'_>, table: usize, places: &Val) -> Res<Val> {
    let table = cx.operand(call, table)?;
    let extent = cx.shape(&table)?.first().copied().unwrap_or(0);
    let places = super::places::from_start(cx, places, extent)?;
    super::gather::gather_along(cx, &table, &places, 0)
}

/// alpha A B, either turned in its last two dims, or, before that, with the first dim behind all others but the last.
pub(super) fn lower_fused_matmul(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let mut operands = Vec::new();
    for (position, batch) in [(0, "transBatchA"), (1, "transBatchB")] {
        let x = cx.operand(call, position)?;
        let rank = cx.shape(&x)?.len();
        if rank < 2 {
            return fail_with("operands of less than two dims are not supported");
        }
        let front = (1..rank - 1).chain([0, rank - 1]).collect();
        operands.push(if call.int(batch, 0)? != 0 { cx.transpose(&x, front)? } else { x });
    }
    let (turn_a, turn_b) = (call.int("transA", 0)? != 0, call.int("transB", 0)? != 0);
    let product = cx.matmul(&operands[0], &operands[1], turn_a, turn_b)?;
    let alpha = call.float("alpha", 1.0)?;
    if alpha == 1.0 {
        return Ok(vec![product]);
    }
    Ok(vec![cx.apply_unary(UnaryFunction::Scale(Scalar(alpha)), &product)?])
}

/// A convolution, the sum with another tensor where there is one, and a function of it.
pub(super) fn lower_fused_convolution(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let mut y = super::image::lower_convolution(cx, call)?.swap_remove(0);
    if let Some(other) = cx.optional_operand(call, 3)? {
        y = cx.apply_binary(BinaryFunction::Add, &y, &other)?;
    }
    Ok(vec![apply_activation(cx, call, &y)?])
}

/// alpha A B + beta C, and a function of it.
pub(super) fn lower_fused_gemm(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let y = super::linear::lower_gemm(cx, call)?.swap_remove(0);
    Ok(vec![apply_activation(cx, call, &y)?])
}

/// The function that a node names, of its result.
fn apply_activation(cx: &mut Lowering, call: NodeCall<'_>, y: &Val) -> Res<Val> {
    let numbers = call.floats("activation_params")?.unwrap_or_default();
    let number = |at: usize, name: &str, usual: f32| match numbers.get(at) {
        Some(&number) => Ok(f64::from(number)),
        None => call.float(name, usual),
    };
    let function = match call.text("activation", "")? {
        "" => return Ok(y.clone()),
        "Relu" => UnaryFunction::Relu,
        "Sigmoid" => UnaryFunction::Sigmoid,
        "Tanh" => UnaryFunction::Tanh,
        "Clip" => {
            let low = Scalar(number(0, "activation_min", f32::MIN)?);
            UnaryFunction::Clip { low, high: Scalar(number(1, "activation_max", f32::MAX)?) }
        }
        "LeakyRelu" => {
            let slope = number(0, "activation_alpha", 0.01)?;
            return super::activations::apply_leaky_relu(cx, y, slope);
        }
        other => return fail_with(format!("the activation `{other}` is not supported")),
    };
    cx.apply_unary(function, y)
}
