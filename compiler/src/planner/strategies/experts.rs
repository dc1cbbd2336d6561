//! Experts that are pinned apart stay where they are: tokens go to them.
//!
//! A product of experts takes places and the matrices of their experts ([`GroupedMatMul`]). Fixed strategies gather a weight that is kept in parts, which
//! for data parallelism's shards is what the frameworks do. Where a pin splits the matrices by experts, it asks for expert parallelism instead: over these
//! axes the products and the gradients of the matrices are split by blocks of places, and what is boxed are the places (GShard: Lepikhin et al.,
//! arXiv 2006.16668, section 3.3).
//!
//! [`GroupedMatMul`]: graphc_ir::ops::GroupedMatMul

use graphc_ir::graph::Node;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Movement, Op};
use graphc_ir::sbp::Sbp;

use super::super::problem::Problem;
use super::super::problem::candidates::Candidate;
use super::gradients::pinned_layout;
use crate::decisions::variable_of;

/// The axes over which products of experts are to be split by blocks, for each node.
pub(super) struct PinnedExperts {
    axes: Vec<Vec<usize>>,
}

impl PinnedExperts {
    pub(super) fn of_problem(problem: &Problem<'_>) -> Self {
        let graph = problem.decisions.graph();
        let mut axes = vec![Vec::new(); graph.nodes.len()];
        let readers = graph.list_consumers();
        for (id, node) in graph.iter() {
            let variable = match &node.op {
                Op::GroupedMatMul(_) => {
                    let variable = variable_of(graph, node.operands[1]);
                    variable.map(|variable| graph.value(variable).producer)
                }
                Op::GroupedMatMulGrad(_) => {
                    let becomes = |value: ValueId| -> Option<ValueId> {
                        let &[reader] = readers[value.index()].as_slice() else { return None };
                        let reader = graph.node(reader);
                        is_same(reader).then(|| reader.results[0])
                    };
                    let gradients = &problem.decisions.training.gradients;
                    let all = std::iter::successors(Some(node.results[0]), |value| becomes(*value));
                    let of = |value| gradients.iter().find(|(_, gradient)| *gradient == value);
                    let found = { all }.find_map(of);
                    found.map(|&(variable, _)| graph.value(variable).producer)
                }
                _ => None,
            };
            let home = variable.and_then(|variable| pinned_layout(problem, variable));
            axes[id.index()] = home.map_or_else(Vec::new, |home| {
                let apart = home.0.iter().enumerate().filter(|(_, sbp)| **sbp == Sbp::Split(0));
                apart.map(|(axis, _)| axis).collect()
            });
        }
        Self { axes }
    }

    /// Whether a candidate of a node leaves experts where they are.
    pub(super) fn are_left_by(
        &self,
        problem: &Problem<'_>,
        node: NodeId,
        candidate: &Candidate,
    ) -> bool {
        let op = &problem.decisions.graph().node(node).op;
        let matrices = match op {
            Op::GroupedMatMul(_) => candidate.operands.get(1),
            _ => candidate.results.first(),
        };
        let apart = |axis: &usize| {
            matrices
                .is_some_and(|&sbp| problem.layouts.sbp(sbp).0.get(*axis) == Some(&Sbp::Split(0)))
        };
        self.axes[node.index()].iter().all(apart)
    }

    /// Returns the candidates of a node that leave experts where they are, or all if none does.
    pub(super) fn keep_apart(
        &self,
        problem: &Problem<'_>,
        node: NodeId,
        labels: Vec<usize>,
    ) -> Vec<usize> {
        if self.axes[node.index()].is_empty() {
            return labels;
        }
        let candidates = problem.candidates_of(node);
        let apart = |label: &usize| self.are_left_by(problem, node, &candidates[*label]);
        let left: Vec<usize> = labels.iter().copied().filter(apart).collect();
        if left.is_empty() { labels } else { left }
    }
}

/// Whether the first result of a node is its first operand, cast, moved or summed over microbatches.
fn is_same(node: &Node) -> bool {
    let moves = node.op.operation().movement() == Some(Movement::Rearranged);
    moves || matches!(node.op, Op::Cast(_) | Op::Accumulate(_) | Op::Regather(_))
}
