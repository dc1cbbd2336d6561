//! Normalization over the last dim, and its gradient.

use graphc_ir::ops::{Normalize, NormalizeGrad};

use super::Shard;
use super::call::{Argument, Call};
use super::rows::DimRows;
use crate::error::KernelError;

/// Prepares the call of a `Normalize` op.
pub(super) fn prepare_normalize(op: &Normalize, operands: &[Shard]) -> Result<Call, KernelError> {
    let Some(rows) = normalized_rows(&operands[0])? else { return Ok(Call::empty()) };
    let x = operands[0].dtype();
    let launch = rows.launch(
        |source| {
            source
                .define_element("T", x)
                .define_flag("CENTER", op.center)
                .define_number("EPSILON", op.epsilon.0 as f32)
        },
        (include_str!("cu/normalize.cu"), "normalize"),
        (1, x.size()),
        vec![Argument::operand(0), Argument::result(0), Argument::result(1)],
    );
    Ok(Call::from_launches(vec![launch]))
}

/// Prepares the call of a `NormalizeGrad` op.
pub(super) fn normalize_grad(op: &NormalizeGrad, operands: &[Shard]) -> Result<Call, KernelError> {
    let Some(rows) = normalized_rows(&operands[0])? else { return Ok(Call::empty()) };
    let y = operands[0].dtype();
    let mut arguments: Vec<Argument> = (0..3).map(Argument::operand).collect();
    arguments.push(Argument::result(0));
    let launch = rows.launch(
        |source| source.define_element("T", y).define_flag("CENTER", op.center),
        (include_str!("cu/normalize_grad.cu"), "normalize_grad"),
        (2, y.size()),
        arguments,
    );
    Ok(Call::from_launches(vec![launch]))
}

/// The rows of a shard, if there are any.
fn normalized_rows(x: &Shard) -> Result<Option<DimRows>, KernelError> {
    if x.shape().is_empty() {
        return Err(KernelError::bad_call("normalize", "needs a last dim"));
    }
    let rows = DimRows::along_last(x);
    Ok((rows.count > 0).then_some(rows))
}
