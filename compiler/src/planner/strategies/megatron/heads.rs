//! Explains why ranks cannot share the heads of attention, where they cannot.

use graphc_ir::graph::Node;
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;

use super::{Splitter, Wish};
use crate::planner::error::{HeadsReason, PlannerError};
use crate::planner::problem::layouts::SbpId;

/// The dim of heads of what attention takes.
const HEADS: usize = 2;

impl Splitter<'_, '_> {
    /// The error for attention whose heads are not split as it is wished.
    pub(super) fn indivisible_error(
        &self,
        id: usize,
        node: &Node,
        wish: &Wish,
        sources: &[Option<SbpId>],
    ) -> PlannerError {
        PlannerError::Heads {
            op: node.op.name(),
            place: node.source.clone(),
            cause: Box::new(self.cause(id, node, wish, sources)),
            ranks: self.model_ranks(id),
            mesh: self.problem.decisions.staging.placement[id].hierarchy.clone(),
        }
    }

    fn cause(&self, id: usize, node: &Node, wish: &Wish, sources: &[Option<SbpId>]) -> HeadsReason {
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

    /// The value that an operand is on another mesh, which is another stage's, before elements are moved or mapped
    /// one by one.
    fn find_elsewhere(&self, id: usize, operand: ValueId) -> Option<ValueId> {
        let decisions = self.problem.decisions;
        let placement = &decisions.staging.placement;
        let producer = decisions.graph().value(operand).producer;
        if placement[producer.index()] != placement[id] {
            return self.fed[producer.index()].then_some(operand);
        }
        let made = decisions.graph().node(producer);
        let operation = made.op.operation();
        let is_mapped = operation.movement().is_some() || operation.is_elementwise();
        let mut operands = made.operands.iter().filter(|_| is_mapped);
        operands.find_map(|&operand| self.find_elsewhere(id, operand))
    }

    /// All heads of queries.
    pub(super) fn heads_of_queries(&self, node: &Node, wish: &Wish) -> usize {
        let queries = &self.problem.decisions.graph().value(node.operands[0]).ty.shape;
        match node.op {
            Op::Attention(_) => queries[HEADS],
            _ => wish.heads.unwrap_or(1),
        }
    }

    /// Heads of keys and values, if an operand has such: what is repeated has fewer than its queries.
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

    /// The operand that keeps heads from being split: the first that breaks a rule where they are, as few rules broken as may be.
    fn in_the_way(&self, id: usize, wish: &Wish, sources: &[Option<SbpId>]) -> usize {
        let axis = self.model_axis(id);
        let candidates = self.problem.candidates[id].iter();
        let wished = candidates.filter(|candidate| wish.is_met_by(candidate, axis));
        let best = wished
            .min_by_key(|candidate| self.count_broken_rules(id, candidate, sources, Some(wish)));
        let breaks = |position: &usize| {
            best.is_some_and(|best| self.breaks_rule(id, best, *position, sources[*position]))
        };
        (0..sources.len()).find(breaks).unwrap_or(0)
    }
}
