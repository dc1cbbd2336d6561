//! Losses that a model computes itself, of scores whose classes are dim 1, and labels.

use graphc_ir::op::Op;
use graphc_ir::ops::{
    BinaryFunction, CrossEntropy, IGNORED_LABEL, LogSoftmax, Pick, ReduceFunction, UnaryFunction,
    Where,
};
use graphc_ir::types::DType;

use super::gather::gather_along;
use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with};

/// Results: the loss, and on demand the logarithms of probabilities.
pub(super) fn lower_softmax_cross_entropy(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let scores = classes_last(cx, call)?;
    let labels = read_labels(cx, call)?;
    let op = Op::CrossEntropy(CrossEntropy::default());
    let losses = cx.apply(op, &[scores.clone(), labels.clone()])?;
    let mut results = vec![reduce_losses(cx, call, &losses, &labels)?];
    if call.proto.output.get(1).is_some_and(|name| !name.is_empty()) {
        let axis = cx.shape(&scores)?.len() - 1;
        let logarithms = cx.apply(Op::LogSoftmax(LogSoftmax { axis }), &[scores])?;
        results.push(cx.moved_from_last(&logarithms, 1)?);
    }
    Ok(results)
}

/// Minus the logarithm of the label's probability.
pub(super) fn lower_negative_log_likelihood(
    cx: &mut Lowering,
    call: NodeCall<'_>,
) -> Res<Vec<Val>> {
    let logarithms = classes_last(cx, call)?;
    let labels = read_labels(cx, call)?;
    let picked = cx.apply(Op::Pick(Pick::default()), &[logarithms, labels.clone()])?;
    let picked = cx.cast(&picked, DType::F32)?;
    let losses = cx.apply_unary(UnaryFunction::Neg, &picked)?;
    Ok(vec![reduce_losses(cx, call, &losses, &labels)?])
}

/// Scores `[n, classes, d..]` as `[n, d.., classes]`.
fn classes_last(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Val> {
    let scores = cx.operand(call, 0)?;
    if cx.shape(&scores)?.len() < 2 {
        let ty = cx.ty(&scores)?;
        return fail_with(format!(
            "the scores must have a dim of samples and one of classes, not {ty}"
        ));
    }
    cx.moved_last(&scores, 1)
}

/// The labels as `i64`, with [`IGNORED_LABEL`] in the place of what the node ignores.
fn read_labels(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Val> {
    let given = cx.operand(call, 1)?;
    let labels = cx.cast(&given, DType::I64)?;
    match call.optional_int("ignore_index")? {
        Some(ignored) if ignored != IGNORED_LABEL => {
            let own = cx.number_like(&labels, ignored as f64)?;
            let is_ignored = cx.apply_binary(BinaryFunction::Equal, &labels, &own)?;
            let mark = cx.number_like(&labels, IGNORED_LABEL as f64)?;
            cx.apply(Op::Where(Where {}), &[is_ignored, mark, labels])
        }
        _ => Ok(labels),
    }
}

/// The losses of all labels, their sum, or their mean by weight, in the element type of the scores.
fn reduce_losses(cx: &mut Lowering, call: NodeCall<'_>, losses: &Val, labels: &Val) -> Res<Val> {
    let dtype = cx.ty(&cx.operand(call, 0)?)?.dtype;
    let weights = gather_label_weights(cx, call, labels)?;
    let losses = match &weights {
        Some(weights) => cx.apply_binary(BinaryFunction::Mul, losses, weights)?,
        None => losses.clone(),
    };
    let all: Vec<usize> = (0..cx.shape(&losses)?.len()).collect();
    let loss = match call.text("reduction", "mean")? {
        "none" => losses,
        "sum" => cx.reduce(ReduceFunction::Sum, &losses, &all, false)?,
        "mean" => {
            let counted = match weights {
                Some(weights) => weights,
                None => {
                    let counted = is_counted(cx, labels)?;
                    cx.cast(&counted, DType::F32)?
                }
            };
            let count = cx.reduce(ReduceFunction::Sum, &counted, &all, false)?;
            let sum = cx.reduce(ReduceFunction::Sum, &losses, &all, false)?;
            cx.apply_binary(BinaryFunction::Div, &sum, &count)?
        }
        other => return fail_with(format!("there is no reduction `{other}`")),
    };
    cx.cast(&loss, dtype)
}

/// The weight of each label's class, 0 of what is ignored; `None` where all classes weigh 1.
fn gather_label_weights(cx: &mut Lowering, call: NodeCall<'_>, labels: &Val) -> Res<Option<Val>> {
    let Some(weights) = cx.optional_operand(call, 2)? else { return Ok(None) };
    let weights = cx.cast(&weights, DType::F32)?;
    let counted = is_counted(cx, labels)?;
    let first = cx.number_like(labels, 0.0)?;
    let classes = cx.apply(Op::Where(Where {}), &[counted.clone(), labels.clone(), first])?;
    let found = gather_along(cx, &weights, &classes, 0)?;
    let none = cx.number_like(&found, 0.0)?;
    cx.apply(Op::Where(Where {}), &[counted, found, none]).map(Some)
}

fn is_counted(cx: &mut Lowering, labels: &Val) -> Res<Val> {
    let ignored = cx.number_like(labels, IGNORED_LABEL as f64)?;
    cx.apply_binary(BinaryFunction::NotEqual, labels, &ignored)
}
