//! Scores that are multiplied by a number for each head, as Swin Transformer V2 (Liu et al., 2022, section 3.3) learns one. The op has one
//! number for all heads, so queries are multiplied instead.

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::ValueId;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{Binary, BinaryFunction};

use super::find::{AttentionFinder, Path};
use crate::passes::joined::push_reshape;

const MUL: Op = Op::Binary(Binary { function: BinaryFunction::Mul });

impl AttentionFinder<'_> {
    /// The scores in a product of scores and a number for each head, which `path` keeps: of scores `[samples, heads, queries, keys]`
    /// a value of shape `[heads, 1, 1]`, of the same element type.
    pub(super) fn match_head_scale(&self, node: &Node, path: &mut Path) -> Option<ValueId> {
        let &[a, b] = &node.operands[..] else { return None };
        let ty = |value: ValueId| &self.graph.value(value).ty;
        let &[_, heads, _, _] = &ty(node.results[0]).shape[..] else { return None };
        let is_scale = |value: ValueId| {
            let [leading @ .., own, 1, 1] = &ty(value).shape[..] else { return false };
            *own == heads && leading.iter().all(|&extent| extent == 1)
        };
        let whole = |&(scores, scale): &(ValueId, ValueId)| {
            ty(scores) == ty(node.results[0]) && ty(scale).dtype == ty(scores).dtype
        };
        let (scores, scale) =
            [(a, b), (b, a)].into_iter().filter(whole).find(|&(_, scale)| is_scale(scale))?;
        // What has been taken in by then is added to the product, and stays so. A bound, or another scale, would have to be divided.
        let free = path.head_scale.is_none() && path.cap.is_none();
        if node.op != MUL || !free || !self.comes_from_product(scores) {
            return None;
        }
        path.head_scale = Some(scale);
        Some(scores)
    }
}

/// Appends queries `[samples, time, heads, width]` times a number for each head.
pub(super) fn push_head_scale(
    graph: &mut Graph,
    queries: ValueId,
    scale: ValueId,
    like: &Node,
) -> Result<ValueId, OpError> {
    let elements = graph.value(scale).ty.elements();
    let scale = push_reshape(graph, scale, &[1, 1, elements, 1], like)?;
    Ok(graph.push_like(MUL, vec![queries, scale], like)?[0])
}
