//! Softmax, its logarithm, and their gradients.

use graphc_ir::op::Op;

use super::Shard;
use super::call::{Argument, Call};
use super::rows::DimRows;
use crate::error::KernelError;

/// Prepares the call of a softmax or of its logarithm.
pub(super) fn prepare_softmax(op: &Op, operands: &[Shard]) -> Result<Call, KernelError> {
    let kernel = (include_str!("cu/softmax.cu"), "softmax");
    match op {
        Op::Softmax(op) => prepare_rows(op.axis, false, kernel, operands),
        Op::LogSoftmax(op) => prepare_rows(op.axis, true, kernel, operands),
        op => Err(KernelError::bad_call(op.name(), "is no softmax")),
    }
}

/// Prepares the call of the gradient of a softmax or of its logarithm.
pub(super) fn softmax_grad(op: &Op, operands: &[Shard]) -> Result<Call, KernelError> {
    let kernel = (include_str!("cu/softmax_grad.cu"), "softmax_grad");
    match op {
        Op::SoftmaxGrad(op) => prepare_rows(op.axis, false, kernel, operands),
        Op::LogSoftmaxGrad(op) => prepare_rows(op.axis, true, kernel, operands),
        op => Err(KernelError::bad_call(op.name(), "is no gradient of softmax")),
    }
}

fn prepare_rows(
    axis: usize,
    logarithm: bool,
    kernel: (&str, &'static str),
    operands: &[Shard],
) -> Result<Call, KernelError> {
    let first = &operands[0];
    if axis >= first.shape().len() {
        return Err(KernelError::bad_call("softmax", format!("dim {axis} of {:?}", first.shape())));
    }
    if first.elements() == 0 {
        return Ok(Call::empty());
    }
    let mut arguments: Vec<Argument> = (0..operands.len()).map(Argument::operand).collect();
    arguments.push(Argument::result(0));
    let of = (operands.len(), first.dtype().size());
    let launch = DimRows::along_dim(first, axis).launch(
        |source| source.define_element("T", first.dtype()).define_flag("LOGARITHM", logarithm),
        kernel,
        of,
        arguments,
    );
    Ok(Call::from_launches(vec![launch]))
}
