//! Lets queries, keys and values have two widths, as multi-head latent attention has it (DeepSeek-V2, arXiv 2405.04434, section 2.1). The
//! op has one width, so the narrower ones get zeros behind them: these add nothing to a score, and what they add to a result is cut off.

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::ValueId;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{Pad, Slice};
use graphc_ir::scalar::Scalar;

/// Appends zeros behind each row of a value, up to a width.
pub(super) fn push_widened(
    graph: &mut Graph,
    value: ValueId,
    width: usize,
    like: &Node,
) -> Result<ValueId, OpError> {
    let shape = &graph.value(value).ty.shape;
    let missing = width - shape[shape.len() - 1];
    if missing == 0 {
        return Ok(value);
    }
    let none = vec![0; shape.len()];
    let mut high = none.clone();
    high[shape.len() - 1] = missing;
    let pad = Pad { low: none.clone(), high, interior: none, value: Scalar(0.0) };
    Ok(graph.push_like(Op::Pad(pad), vec![value], like)?[0])
}

/// Appends the first elements of each row of a value.
pub(super) fn push_narrowed(
    graph: &mut Graph,
    value: ValueId,
    width: usize,
    like: &Node,
) -> Result<ValueId, OpError> {
    let mut ends = graph.value(value).ty.shape.clone();
    let last = ends.len() - 1;
    if ends[last] == width {
        return Ok(value);
    }
    ends[last] = width;
    let (starts, steps) = (vec![0; ends.len()], vec![1; ends.len()]);
    Ok(graph.push_like(Op::Slice(Slice { starts, ends, steps }), vec![value], like)?[0])
}
