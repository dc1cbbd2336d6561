//! Finds the positions at which tensors are kept, in the order in which a rank executes nodes.
//!
//! The order is that of phases, then of the graph. With several microbatches the nodes of microbatch rate form a
//! loop. What lives through the loop is kept for the whole loop. Activations that the backward pass reads are kept
//! for as many microbatches as are under way.
//!
//! A copy lasts from the first to the last of its readers that are neither `regather` nor update. The result of a
//! `regather` takes its bytes from the last of the earlier readers on, unless it lies as something that is kept
//! anyway ([`Lifetimes::regathered_span`], `Made::beside`). Lowering does the same: what becomes smaller is boxed behind
//! the last of the earlier readers (`Collector::behind_readers`).

use graphc_ir::graph::Node;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::mesh::Placement;
use graphc_ir::op::Op;
use graphc_plan::Schedule;

use crate::boxing::{SCATTERED_BYTES, is_fused};
use crate::decisions::{Decisions, Phase, ValueRate};
use crate::schedule::under_way;

/// The time for which something is kept: positions from `start` to `end`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The first position.
    pub start: usize,
    /// The last position.
    pub end: usize,
    /// The contents of other microbatches that are kept in that time, through the whole loop.
    pub others: usize,
}

/// The order of nodes.
#[derive(Clone, Debug)]
pub(crate) struct Lifetimes {
    /// The position of each node.
    pub position: Vec<usize>,
    /// The first and the last position of nodes of microbatch rate; `None` with one microbatch.
    pub looped: Option<(usize, usize)>,
    /// The groups of ranks that belong to the same placements.
    pub domains: Vec<Domain>,
    /// The position of the first update, or one past the last position if there is none.
    first_update: usize,
    /// The number of microbatches under way at once, by stage and chunk.
    under_way: Vec<Vec<usize>>,
    /// The readers of each value.
    readers: Vec<Vec<NodeId>>,
}

/// Ranks that belong to the same placements, so that their memory is alike.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Domain {
    /// The ranks.
    pub ranks: Vec<u32>,
    /// The first stage that a node on them has.
    pub stage: usize,
}

impl Lifetimes {
    /// Makes the order of these decisions.
    pub(crate) fn new(decisions: &Decisions, schedule: Schedule) -> Self {
        let graph = decisions.graph();
        let mut order: Vec<NodeId> = graph.iter().map(|(id, _)| id).collect();
        order.sort_by_key(|&node| decisions.training.phases[node.index()]);
        let mut position = vec![0; order.len()];
        for (at, &node) in order.iter().enumerate() {
            position[node.index()] = at;
        }
        let readers = graph.list_consumers();
        let repeated = |(_, node): &(NodeId, &Node)| decisions.count_actions(node) > 1;
        let positions = || graph.iter().filter(repeated).map(|(id, _)| position[id.index()]);
        let looped = positions().min().zip(positions().max());
        let (stages, microbatches) = (decisions.staging.stages, decisions.rates.microbatches);
        let under_way = under_way(schedule, stages, microbatches);
        let phases = order.iter().map(|&node| decisions.training.phases[node.index()]);
        let first_update = phases.take_while(|&phase| phase != Phase::Update).count();
        Self {
            position,
            looped,
            domains: find_domains(decisions),
            first_update,
            under_way,
            readers,
        }
    }

    /// Returns the number of positions.
    pub(crate) fn len(&self) -> usize {
        self.position.len()
    }

    /// Returns the position of a node.
    pub(crate) fn position_of(&self, node: NodeId) -> usize {
        self.position[node.index()]
    }

    /// Returns the span in which a node acts.
    pub(crate) fn node_span(&self, node: NodeId) -> Span {
        let position = self.position_of(node);
        Span { start: position, end: position, others: 0 }
    }

    /// Returns the span in which a tensor is kept where it is made. A variable is kept always.
    pub(crate) fn made_span(&self, decisions: &Decisions, value: ValueId) -> Span {
        let producer = decisions.graph().value(value).producer;
        let node = decisions.graph().node(producer);
        if matches!(node.op, Op::Variable(_)) {
            return Span { start: 0, end: self.len() - 1, others: 0 };
        }
        let readers = &self.readers[value.index()];
        let mut nodes: Vec<NodeId> =
            readers.iter().copied().filter(|&node| !is_regather(decisions, node)).collect();
        if self.is_scattered(decisions, value) {
            nodes.clear();
        }
        nodes.push(producer);
        if self.is_kept_for(decisions, value, readers) {
            nodes.extend(readers);
        }
        let looped = decisions.count_actions(node) > 1;
        self.find_span(decisions, value, &nodes, looped)
    }

    /// Whether a large value of the forward or backward pass is read, where it is made, by updates alone. It is boxed for them at once if that makes
    /// it smaller, so the layout that they take decides how long it is kept where it is made.
    pub(crate) fn is_scattered(&self, decisions: &Decisions, value: ValueId) -> bool {
        let graph = decisions.graph();
        let producer = graph.value(value).producer;
        let placement = |node: NodeId| &decisions.staging.placement[node.index()];
        let phase = |node: NodeId| decisions.training.phases[node.index()];
        let updates =
            |&node: &NodeId| phase(node) == Phase::Update && placement(node) == placement(producer);
        let readers = &self.readers[value.index()];
        phase(producer) != Phase::Update
            && !graph.node(producer).op.is_given()
            && decisions.rates.values[value.index()] == ValueRate::Step
            && !readers.is_empty()
            && readers.iter().all(updates)
            && graph.value(value).ty.bytes() >= SCATTERED_BYTES
            && !graph.outputs.iter().any(|output| output.value == value)
    }

    /// Whether a value that is computed once a step is kept through all microbatches, because some of these readers read it in each.
    fn is_kept_for(&self, decisions: &Decisions, value: ValueId, readers: &[NodeId]) -> bool {
        let repeats = |&node: &NodeId| decisions.count_actions(decisions.graph().node(node)) > 1;
        let per_step = decisions.rates.values[value.index()] == ValueRate::Step;
        per_step && readers.iter().any(repeats)
    }

    /// Returns the span in which a boxed copy is kept: from the first to the last of all its readers on that placement. A `regather` takes no copy
    /// but has its own result, see [`Lifetimes::regathered_span`]. Updates do not count if others read the copy, because they take variables at rest,
    /// or would have to box them back.
    pub(crate) fn copy_span(
        &self,
        decisions: &Decisions,
        value: ValueId,
        readers: &[NodeId],
    ) -> Span {
        if readers.is_empty() {
            return self.node_span(decisions.graph().value(value).producer);
        }
        let nodes = self.direct_readers(decisions, readers);
        if nodes.is_empty() {
            let first = readers.iter().map(|&node| self.position_of(node)).min().unwrap_or(0);
            return Span { start: first, end: first, others: 0 };
        }
        let span = self.find_span(decisions, value, &nodes, false);
        match self.shares_message(decisions, value, &nodes) {
            true => Span { start: span.start.min(self.first_update), ..span },
            false => span,
        }
    }

    /// Whether boxing for these readers waits for other tensors, with which it shares one message before the first update.
    fn shares_message(&self, decisions: &Decisions, value: ValueId, readers: &[NodeId]) -> bool {
        let per_step = decisions.rates.values[value.index()] == ValueRate::Step;
        is_fused(decisions, per_step, readers)
            && decisions.graph().value(value).ty.bytes() < SCATTERED_BYTES
    }

    /// Returns those of these readers of a value on whose layout it depends how long a copy is kept.
    fn direct_readers(&self, decisions: &Decisions, readers: &[NodeId]) -> Vec<NodeId> {
        let updates = |&node: &NodeId| decisions.training.phases[node.index()] == Phase::Update;
        let mut nodes: Vec<NodeId> =
            readers.iter().copied().filter(|&node| !is_regather(decisions, node)).collect();
        if !nodes.iter().all(updates) {
            nodes.retain(|node| !updates(node));
        }
        nodes
    }

    /// Returns the span of the result of a `regather`: from the last time that others read its operand, or a copy of it, to its own last reader. Also
    /// returns whether the operand is kept in that time anyway, so that a result of the same layout takes no memory.
    pub(crate) fn regathered_span(&self, decisions: &Decisions, node: NodeId) -> (Span, bool) {
        let graph = decisions.graph();
        let (operand, result) = (graph.node(node).operands[0], graph.node(node).results[0]);
        let producer = graph.value(operand).producer;
        let rate = |value: ValueId| decisions.rates.values[value.index()];
        let through = rate(operand) == ValueRate::Step && rate(result) == ValueRate::Anew;
        if let Some((first, last)) = self.looped.filter(|_| through) {
            return (Span { start: first, end: last, others: 0 }, true);
        }
        let before = self.direct_readers(decisions, &self.readers[operand.index()]);
        let after = &self.readers[result.index()];
        let from = before.iter().map(|&node| self.position_of(node)).max();
        let from =
            from.map_or(self.position_of(node), |last| (last + 1).min(self.position_of(node)));
        let end = after.iter().map(|&node| self.position_of(node)).max();
        let all: Vec<NodeId> = before.into_iter().chain(after.iter().copied()).collect();
        let others = match rate(result) {
            ValueRate::Step => 0,
            _ => self.count_stashed(decisions, &all),
        };
        let end = end.unwrap_or(from).max(from);
        let is_kept =
            matches!(graph.node(producer).op, Op::Variable(_)) || rate(operand) == ValueRate::Anew;
        (Span { start: from, end, others }, is_kept)
    }

    fn find_span(
        &self,
        decisions: &Decisions,
        value: ValueId,
        nodes: &[NodeId],
        made_in_loop: bool,
    ) -> Span {
        let positions = nodes.iter().map(|&node| self.position_of(node));
        let (mut start, mut end) =
            positions.fold((usize::MAX, 0), |(low, high), at| (low.min(at), high.max(at)));
        let per_step = decisions.rates.values[value.index()] == ValueRate::Step;
        let in_loop = |&node: &NodeId| decisions.count_actions(decisions.graph().node(node)) > 1;
        if let Some((first, last)) = self.looped
            && per_step
            && (made_in_loop || nodes.iter().any(in_loop))
        {
            (start, end) = (start.min(first), end.max(last));
        }
        let others = if per_step { 0 } else { self.count_stashed(decisions, nodes) };
        Span { start, end, others }
    }

    /// Returns the number of further microbatches whose contents are kept, for what the forward pass leaves to the backward pass.
    pub(crate) fn count_stashed(&self, decisions: &Decisions, nodes: &[NodeId]) -> usize {
        let phase = |node: NodeId| decisions.training.phases[node.index()];
        let crosses = nodes.iter().any(|&node| phase(node) == Phase::Forward)
            && nodes.iter().any(|&node| phase(node) != Phase::Forward);
        if !crosses {
            return 0;
        }
        let staging = &decisions.staging;
        let first = nodes.iter().map(|&node| staging.chunk_of_all(node)).min().unwrap_or(0);
        self.under_way[first % staging.stages][first / staging.stages] - 1
    }

    /// Returns the domains that a placement reaches.
    pub(crate) fn domains_of(&self, placement: &Placement) -> Vec<usize> {
        let reaches = |domain: &Domain| placement.ranks.contains(&domain.ranks[0]);
        (0..self.domains.len()).filter(|&index| reaches(&self.domains[index])).collect()
    }
}

/// Whether a node is a `regather`.
pub(super) fn is_regather(decisions: &Decisions, node: NodeId) -> bool {
    matches!(decisions.graph().node(node).op, Op::Regather(_))
}

fn find_domains(decisions: &Decisions) -> Vec<Domain> {
    let placements = &decisions.staging.placement;
    let mut distinct: Vec<(&Placement, usize)> = Vec::new();
    for (placement, &stage) in placements.iter().zip(&decisions.staging.stage) {
        if !distinct.iter().any(|(known, _)| *known == placement) {
            distinct.push((placement, stage));
        }
    }
    let mut ranks: Vec<u32> = distinct.iter().flat_map(|(p, _)| p.ranks.iter().copied()).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let mut domains: Vec<(Vec<bool>, Domain)> = Vec::new();
    for rank in ranks {
        let belongs: Vec<bool> =
            distinct.iter().map(|(placement, _)| placement.ranks.contains(&rank)).collect();
        match domains.iter_mut().find(|(known, _)| *known == belongs) {
            Some((_, domain)) => domain.ranks.push(rank),
            None => {
                let first = belongs.iter().position(|&is| is).unwrap_or(0);
                domains.push((belongs, Domain { ranks: vec![rank], stage: distinct[first].1 }));
            }
        }
    }
    domains.into_iter().map(|(_, domain)| domain).collect()
}
