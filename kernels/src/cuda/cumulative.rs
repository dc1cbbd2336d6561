//! Running sums.

use graphc_ir::ops::CumulativeSum;
use graphc_ir::types::DType;

use super::Shard;
use super::call::{Argument, Call, Launch};
use super::rows::DimRows;
use super::source::KernelSource;
use crate::error::KernelError;

/// Threads of a block.
const THREADS: usize = 256;
/// Elements of a row from which a block sums it, if they lie side by side.
const LONG: usize = 64;

/// Prepares the call of a `CumulativeSum` op.
pub(super) fn cumulative_sum(op: &CumulativeSum, operands: &[Shard]) -> Result<Call, KernelError> {
    let x = &operands[0];
    if op.axis >= x.shape().len() {
        let reason = format!("dim {} of {:?}", op.axis, x.shape());
        return Err(KernelError::bad_call("cumulative_sum", reason));
    }
    if matches!(x.dtype(), DType::U8 | DType::Bool) {
        return Err(KernelError::bad_call("cumulative_sum", "of small integers"));
    }
    if x.elements() == 0 {
        return Ok(Call::empty());
    }
    let rows = DimRows::along_dim(x, op.axis);
    let scanned = rows.inner == 1 && rows.extent >= LONG;
    let source = KernelSource::new(include_str!("cu/cumulative.cu"))
        .define_element("T", x.dtype())
        .define("V", if x.dtype().is_float() { "double" } else { "i64" })
        .define("COUNT", rows.count)
        .define("EXTENT", rows.extent)
        .define("INNER", rows.inner)
        .define_flag("EXCLUSIVE", op.exclusive)
        .define_flag("REVERSE", op.reverse)
        .define_flag("SCANNED", scanned);
    let blocks = if scanned { rows.count } else { rows.count.div_ceil(THREADS) };
    let arguments = vec![Argument::operand(0), Argument::result(0)];
    Ok(Call::from_launches(vec![Launch::kernel(source, "cumulative", blocks, THREADS, arguments)]))
}
