//! Recognises what models do about rows of scores without a key, for which softmax gives no number.

use graphc_ir::graph::Node;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::Op;
use graphc_ir::ops::{Binary, BinaryFunction, Reduce, ReduceFunction};

use super::find::{AttentionFinder, Path};

impl AttentionFinder<'_> {
    /// Whether a choice gives its last branch for all rows that have a key. The scores by which it decides are watched.
    pub(super) fn is_guarded(&mut self, node: &Node, path: &mut Path) -> bool {
        if self.constants.contains(node.operands[0]) {
            return false;
        }
        let Some((scores, nodes)) = self.match_guard(node.operands[0]) else { return false };
        path.watched.push(scores);
        path.inside.extend(nodes);
        path.zeroed |= self.constants.number(node.operands[1]) == Some(0.0) && path.of_weights;
        true
    }

    /// Returns the scores of which a condition says that a row has no key, and the condition's nodes. Such a condition asks for weights that are no
    /// numbers, a greatest score of -inf, or a row of scores that all are -inf.
    fn match_guard(&mut self, condition: ValueId) -> Option<(ValueId, Vec<NodeId>)> {
        let graph = self.graph;
        let mut nodes = Vec::new();
        let mut above = |value: ValueId| {
            let mut id = graph.value(value).producer;
            nodes.push(id);
            while let Op::Cast(_) = graph.node(id).op {
                id = graph.value(graph.node(id).operands[0]).producer;
                nodes.push(id);
            }
            graph.node(id)
        };
        let node = above(condition);
        let over_keys = |node: &Node| match &node.op {
            Op::Reduce(Reduce { function, axes, keep_dims: true }) => {
                let rank = graph.value(node.operands[0]).ty.shape.len();
                (rank > 0 && axes[..] == [rank - 1]).then_some(*function)
            }
            _ => None,
        };
        let scores = match &node.op {
            Op::Binary(Binary { function: BinaryFunction::NotEqual }) => {
                let &[a, b] = &node.operands[..] else { return None };
                let weights = above(a);
                let Op::Softmax(_) = weights.op else { return None };
                (a == b).then_some(weights.operands[0])?
            }
            Op::Binary(Binary { function: BinaryFunction::Equal }) => {
                let greatest = above(self.match_comparison(node)?);
                (over_keys(greatest) == Some(ReduceFunction::Max)).then(|| greatest.operands[0])?
            }
            Op::Reduce(_) if over_keys(node) == Some(ReduceFunction::Min) => {
                let each = above(node.operands[0]);
                let Op::Binary(Binary { function: BinaryFunction::Equal }) = each.op else {
                    return None;
                };
                self.match_comparison(each)?
            }
            _ => return None,
        };
        Some((scores, nodes))
    }

    /// Returns the value that a node compares with -inf.
    fn match_comparison(&mut self, node: &Node) -> Option<ValueId> {
        let &[a, b] = &node.operands[..] else { return None };
        let least = |number: Option<f64>| number == Some(f64::NEG_INFINITY);
        if least(self.constants.number(b)) {
            return Some(a);
        }
        least(self.constants.number(a)).then_some(b)
    }
}
