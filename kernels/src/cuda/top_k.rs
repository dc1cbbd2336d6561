//! The best elements of rows.

use graphc_ir::ops::TopK;

use super::Shard;
use super::call::{Argument, Call, Launch};
use super::rows::DimRows;
use super::source::KernelSource;
use crate::error::KernelError;

/// The most elements of a row that are found one after the other.
const FEW: usize = 8;
/// Elements of a row that is sorted in shared memory at most.
const SORTED: usize = 2048;
/// Threads of a block that sorts at most.
const THREADS: usize = 512;

/// Prepares the call of a `TopK` op, of any element type.
pub(super) fn top_k(op: &TopK, operands: &[Shard]) -> Result<Call, KernelError> {
    let x = &operands[0];
    if x.shape().last().is_none_or(|&extent| op.count > extent) {
        return Err(KernelError::bad_call("top_k", format!("{} of {:?}", op.count, x.shape())));
    }
    let rows = DimRows::along_last(x);
    if rows.count == 0 || op.count == 0 {
        return Ok(Call::empty());
    }
    let define = |source: KernelSource| {
        source
            .define_element("T", x.dtype())
            .define_flag("GREATEST", op.greatest)
            .define("BEST", op.count)
    };
    let arguments = vec![Argument::operand(0), Argument::result(0), Argument::result(1)];
    let text = |text: &str| format!("{}\n{text}", include_str!("cu/top_k.cuh"));
    if op.count <= FEW || rows.extent > SORTED {
        let text = text(include_str!("cu/top_k.cu"));
        let of = (1, x.dtype().size());
        return Ok(Call::from_launches(vec![rows.launch(define, (&text, "top_k"), of, arguments)]));
    }
    let size = rows.extent.next_power_of_two();
    let threads = (size / 2).clamp(32, THREADS);
    let source = define(KernelSource::new(text(include_str!("cu/sort.cu"))))
        .define("EXTENT", rows.extent)
        .define("SIZE", size)
        .define("THREADS", threads);
    Ok(Call::from_launches(vec![Launch::kernel(source, "sort", rows.count, threads, arguments)]))
}
