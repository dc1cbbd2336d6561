//! The place of the greatest of rows.

use graphc_ir::ops::ArgMax;

use super::Shard;
use super::call::{Argument, Call};
use super::rows::DimRows;
use super::source::element_type;
use crate::error::KernelError;

/// Prepares the call of an `ArgMax` op, of any element type.
pub(super) fn prepare_argmax(op: &ArgMax, operands: &[Shard]) -> Result<Call, KernelError> {
    let x = &operands[0];
    if op.axis >= x.shape().len() {
        return Err(KernelError::bad_call("argmax", format!("dim {} of {:?}", op.axis, x.shape())));
    }
    let rows = DimRows::along_dim(x, op.axis);
    if rows.count == 0 {
        return Ok(Call::empty());
    }
    let wide = if x.dtype().is_float() { "float" } else { "i64" };
    let launch = rows.launch(
        |source| source.define("T", element_type(x.dtype())).define("V", wide),
        (include_str!("cu/argmax.cu"), "argmax"),
        (1, x.dtype().size()),
        vec![Argument::operand(0), Argument::result(0)],
    );
    Ok(Call::from_launches(vec![launch]))
}
