//! Experts that are pinned apart stay where they are: tokens go to them.
//!
//! A product of experts takes places and the matrices of their experts ([`GroupedMatMul`]). Fixed strategies gather a weight that is kept in parts, which
//! for data parallelism's shards is what the frameworks do. Where a pin splits the matrices by experts, it asks for expert parallelism instead: over these
//! axes the products and the gradients of the matrices are split by blocks of places, and what is boxed are the places (GShard: Lepikhin et al.,
//! arXiv 2006.16668, section 3.3).
//!
//! Tokens reach their experts, and come back, in the way that takes the least time: their copies go from rank to rank (all-to-all), or each rank gathers
//! all tokens and takes those of its experts, and its results are added up where the tokens are. Where ranks of several nodes have experts and a token takes
//! many of them, the second way sends less between nodes.
//!
//! [`GroupedMatMul`]: graphc_ir::ops::GroupedMatMul

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Movement, Op};
use graphc_ir::sbp::{NdSbp, Sbp};

use super::super::problem::Problem;
use super::super::problem::candidates::Candidate;
use super::super::problem::layouts::SbpId;
use super::gradients::pinned_layout;
use crate::passes::float8::{find_rounding, quantized_source};

/// The place of the choices among the operands of the ops that send tokens and bring them back.
const CHOSEN: usize = 1;

/// The axes over which products of experts are to be split by blocks, for each node.
pub(super) struct PinnedExperts {
    axes: Vec<Vec<usize>>,
    /// For each node that sends tokens to experts or brings them back, the axes of these experts.
    exchanged: Vec<Vec<usize>>,
}

impl PinnedExperts {
    pub(super) fn of_problem(problem: &Problem<'_>) -> Self {
        let graph = problem.decisions.graph();
        let mut axes = vec![Vec::new(); graph.nodes.len()];
        let readers = graph.list_consumers();
        for (id, node) in graph.iter() {
            let variable = match &node.op {
                Op::GroupedMatMul(_) => find_matrices(graph, node.operands[1]),
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
        for (rounding, product) in rounded_where_multiplied(graph, &readers) {
            rounding.into_iter().for_each(|id| axes[id.index()] = axes[product.index()].clone());
        }
        let exchanged = graph.iter().map(|(id, node)| match node.op {
            Op::Dispatch(_) => find_experts_after(graph, &readers, id),
            Op::Combine(_) => find_experts_before(graph, id),
            _ => None,
        });
        let exchanged = exchanged.map(|experts| match experts {
            Some(experts) => axes[experts.index()].clone(),
            None => Vec::new(),
        });
        Self { exchanged: exchanged.collect(), axes }
    }

    /// Whether a node sends tokens to experts that are pinned apart, or brings them back.
    pub(super) fn exchanges_tokens(&self, node: NodeId) -> bool {
        !self.exchanged[node.index()].is_empty()
    }

    /// Returns the seconds of a step that a candidate of a node which exchanges tokens leaves to its readers: that places go to the experts, or that the
    /// sums of tokens go where these are, which is where their choices were made.
    pub(super) fn seconds_left(
        &self,
        problem: &Problem<'_>,
        node: NodeId,
        candidate: &Candidate,
        made_choices: Option<SbpId>,
    ) -> f64 {
        let graph = problem.decisions.graph();
        let (result, made) = (graph.node(node).results[0], candidate.results[0]);
        let layouts = &problem.layouts;
        let mut wanted = NdSbp::clone(&layouts.sbp(made));
        match graph.node(node).op {
            Op::Dispatch(_) => {
                self.exchanged[node.index()].iter().for_each(|&axis| wanted.0[axis] = Sbp::Split(0))
            }
            _ => {
                let choices = layouts.sbp(made_choices.unwrap_or(candidate.operands[CHOSEN]));
                for (wanted, &lies) in wanted.0.iter_mut().zip(&choices.0) {
                    *wanted = if matches!(lies, Sbp::Split(0 | 1)) { lies } else { Sbp::Broadcast };
                }
            }
        }
        let class = layouts.class(result, layouts.placement_of(node));
        let seconds = layouts.price((class, made), (class, layouts.intern_sbp(&wanted))).seconds;
        seconds * problem.decisions.times_boxed(result) as f64
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

/// Returns the nodes that round places to 8 bits for a product of experts, with that, where the gradient of the experts takes the places as they are. These go
/// to the experts anyway, so what is rounded are the places there, and 8 bits and their sizes do not travel beside them.
fn rounded_where_multiplied(graph: &Graph, readers: &[Vec<NodeId>]) -> Vec<(Vec<NodeId>, NodeId)> {
    let reader = |value: ValueId, is_wanted: fn(&Op) -> bool| {
        readers[value.index()].iter().copied().find(|&id| is_wanted(&graph.node(id).op))
    };
    let of = |id: NodeId| {
        let node = graph.node(id);
        let product = reader(node.results[0], |op| matches!(op, Op::GroupedMatMul(_)))?;
        reader(quantized_source(node)?, |op| matches!(op, Op::GroupedMatMulGrad(_)))?;
        // The matrices of experts lie at home before they are rounded.
        let are_places = graph.node(product).operands[0] == node.results[0];
        are_places.then_some((find_rounding(graph, id)?, product))
    };
    graph.iter().filter_map(|(id, _)| of(id)).collect()
}

/// Returns the product of experts that reads the places of a node, cast, rounded or not.
fn find_experts_after(graph: &Graph, readers: &[Vec<NodeId>], node: NodeId) -> Option<NodeId> {
    let readers_of = |node: NodeId| &readers[graph.node(node).results[0].index()];
    let is_product = |node: &NodeId| matches!(graph.node(*node).op, Op::GroupedMatMul(_));
    let of = |node: NodeId| readers_of(node).iter().copied().find(is_product);
    let is_cast = |node: &&NodeId| {
        let node = graph.node(**node);
        matches!(node.op, Op::Cast(_)) || quantized_source(node).is_some()
    };
    let mut casts = readers_of(node).iter().filter(is_cast);
    of(node).or_else(|| casts.find_map(|&cast| of(cast)))
}

/// Returns the product of experts whose results a node brings back, cast or added up or not.
fn find_experts_before(graph: &Graph, node: NodeId) -> Option<NodeId> {
    let mut made = graph.value(graph.node(node).operands[0]).producer;
    while graph.node(made).op.operation().is_elementwise() {
        made = graph.value(*graph.node(made).operands.first()?).producer;
    }
    matches!(graph.node(made).op, Op::GroupedMatMul(_)).then_some(made)
}

/// Returns the node of the variable whose elements a value has, cast, rounded, moved or not.
fn find_matrices(graph: &Graph, value: ValueId) -> Option<NodeId> {
    let producer = graph.value(value).producer;
    match graph.node(producer) {
        node if matches!(node.op, Op::Variable(_)) => Some(producer),
        node if is_same(node) => find_matrices(graph, *node.operands.first()?),
        node => find_matrices(graph, quantized_source(node)?),
    }
}

/// Whether the first result of a node is its first operand, cast, moved or summed over microbatches.
fn is_same(node: &Node) -> bool {
    let moves = node.op.operation().movement() == Some(Movement::Rearranged);
    moves || matches!(node.op, Op::Cast(_) | Op::Accumulate(_) | Op::Regather(_))
}
