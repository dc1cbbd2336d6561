//! Explains why ranks cannot share the heads of attention.

use graphc_ir::graph::Node;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::Op;

use super::{Splitter, Wish};
use crate::planner::error::{HeadsReason, PlannerError};
use crate::planner::problem::layouts::SbpId;

/// The dim of heads in the operands of attention.
const HEADS: usize = 2;

impl Splitter<'_, '_> {
    /// Makes the error of attention whose heads are not split as the strategy wishes.
    pub(super) fn indivisible_error(
        &self,
        id: NodeId,
        node: &Node,
        wish: &Wish,
        sources: &[Option<SbpId>],
    ) -> PlannerError {
        PlannerError::Heads {
            op: node.op.name(),
            place: node.source.clone(),
            cause: Box::new(self.cause(id, node, wish, sources)),
            ranks: self.model_ranks(id),
            mesh: self.problem.decisions.staging.placement[id.index()].hierarchy.clone(),
        }
    }

    fn cause(
        &self,
        id: NodeId,
        node: &Node,
        wish: &Wish,
        sources: &[Option<SbpId>],
    ) -> HeadsReason {
        let (heads, ranks) = (self.heads_of_queries(node, wish), self.model_ranks(id));
        if !heads.is_multiple_of(ranks) {
            return HeadsReason::Heads { heads };
        }
        let keys = (0..node.operands.len())
            .filter_map(|position| self.heads_of_keys(node, position, heads));
        if let Some(keys) = keys.min().filter(|keys| !keys.is_multiple_of(ranks)) {
            return HeadsReason::Keys { keys, heads };
        }
        let graph = self.problem.decisions.graph();
        match node.operands.iter().find_map(|&operand| self.find_elsewhere(id, operand)) {
            Some(value) => HeadsReason::Stage { heads, tensor: graph.display_name(value) },
            None => {
                let position = self.in_the_way(id, wish, sources);
                HeadsReason::Whole { heads, tensor: graph.display_name(node.operands[position]) }
            }
        }
    }

    /// Returns the value on the mesh of another stage from which an operand is made by moving or mapping elements one by one, if there is one.
    fn find_elsewhere(&self, id: NodeId, operand: ValueId) -> Option<ValueId> {
        let decisions = self.problem.decisions;
        let placement = &decisions.staging.placement;
        let producer = decisions.graph().value(operand).producer;
        if placement[producer.index()] != placement[id.index()] {
            return self.fed[producer.index()].then_some(operand);
        }
        let made = decisions.graph().node(producer);
        let operation = made.op.operation();
        let is_mapped = operation.movement().is_some() || operation.is_elementwise();
        let mut operands = made.operands.iter().filter(|_| is_mapped);
        operands.find_map(|&operand| self.find_elsewhere(id, operand))
    }

    /// Returns the number of heads of queries.
    pub(super) fn heads_of_queries(&self, node: &Node, wish: &Wish) -> usize {
        let queries = &self.problem.decisions.graph().value(node.operands[0]).ty.shape;
        match node.op {
            Op::Attention(_) => queries[HEADS],
            _ => wish.heads.unwrap_or(1),
        }
    }

    /// Returns the number of heads of keys and values, if an operand has them. Operands that are repeated have fewer heads than the queries.
    fn heads_of_keys(&self, node: &Node, position: usize, heads: usize) -> Option<usize> {
        let graph = self.problem.decisions.graph();
        if let Op::Attention(_) = node.op {
            // Behind queries, keys and values a bias, [batch, heads, queries, keys].
            let dim = if position < 3 { HEADS } else { 1 };
            return Some(graph.value(node.operands[position]).ty.shape[dim]);
        }
        let mut made = graph.producer(node.operands[position]);
        while made.op.operation().movement().is_some() {
            let [from, to] = [made.operands[0], made.results[0]].map(|value| graph.value(value));
            if let Op::Expand(_) = made.op {
                return Some(heads * from.ty.elements() / to.ty.elements().max(1));
            }
            made = graph.producer(made.operands[0]);
        }
        None
    }

    /// Returns the operand that keeps heads from being split: the first that breaks a rule in the candidate which splits them and breaks the fewest
    /// rules.
    fn in_the_way(&self, id: NodeId, wish: &Wish, sources: &[Option<SbpId>]) -> usize {
        let axis = self.model_axis(id);
        let candidates = self.problem.candidates_of(id).iter();
        let wished = candidates.filter(|candidate| wish.is_met_by(candidate, axis));
        let best = wished
            .min_by_key(|candidate| self.count_broken_rules(id, candidate, sources, Some(wish)));
        let breaks = |position: &usize| {
            best.is_some_and(|best| {
                self.breaks_rule(id, best, *position, sources[*position], Some(wish))
            })
        };
        (0..sources.len()).find(breaks).unwrap_or(0)
    }
}
