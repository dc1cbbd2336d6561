//! While tensors are kept: positions in the order in which a rank executes nodes.
//!
//! The order is that of phases, then of the graph. With several microbatches the nodes of microbatch rate are a loop:
//! what lives through it is kept for the whole loop, and activations that the backward pass reads are kept for as
//! many microbatches as are under way.

use graphc_ir::graph::Node;
use graphc_ir::ids::ValueId;
use graphc_ir::mesh::Placement;
use graphc_ir::op::Op;
use graphc_ir::plan::Schedule;

use super::candidates::times;
use crate::decisions::{Decisions, Phase, ValueRate};
use crate::schedule::under_way;

/// While something is kept: positions from `start` to `end`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The first position.
    pub start: usize,
    /// The last position.
    pub end: usize,
    /// Contents of other microbatches that are kept meanwhile, through the whole loop.
    pub others: usize,
}

/// The order of nodes.
#[derive(Clone, Debug)]
pub struct Lifetimes {
    /// Of each node.
    pub position: Vec<usize>,
    /// The nodes of microbatch rate: first and last position; `None` with one microbatch.
    pub looped: Option<(usize, usize)>,
    /// Ranks that belong to the same placements, with a stage of theirs.
    pub domains: Vec<Domain>,
    /// Microbatches under way at once, by stage and chunk.
    under_way: Vec<Vec<usize>>,
    /// By value: its readers.
    readers: Vec<Vec<usize>>,
}

/// Ranks that belong to the same placements: their memory is alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Domain {
    /// The ranks.
    pub ranks: Vec<u32>,
    /// The first stage that a node on them has.
    pub stage: usize,
}

impl Lifetimes {
    /// The order of these decisions.
    pub fn new(decisions: &Decisions, schedule: Schedule) -> Self {
        let graph = decisions.graph();
        let mut order: Vec<usize> = (0..graph.nodes.len()).collect();
        order.sort_by_key(|&node| decisions.training.phases[node]);
        let mut position = vec![0; order.len()];
        for (at, &node) in order.iter().enumerate() {
            position[node] = at;
        }
        let consumers = graph.consumers();
        let readers =
            consumers.iter().map(|nodes| nodes.iter().map(|id| id.index()).collect()).collect();
        let repeated = |(_, node): &(usize, &Node)| times(decisions, node) > 1;
        let nodes = || graph.nodes.iter().enumerate().filter(repeated);
        let looped = nodes()
            .map(|(node, _)| position[node])
            .min()
            .zip(nodes().map(|(node, _)| position[node]).max());
        let (stages, microbatches) = (decisions.staging.stages, decisions.rates.microbatches);
        let under_way = under_way(schedule, stages, microbatches);
        Self { position, looped, domains: domains(decisions), under_way, readers }
    }

    /// Number of positions.
    pub fn len(&self) -> usize {
        self.position.len()
    }

    /// Whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.position.is_empty()
    }

    /// While a node acts.
    pub fn moment(&self, node: usize) -> Span {
        Span { start: self.position[node], end: self.position[node], others: 0 }
    }

    /// While a tensor is kept where it is made. A variable is kept always.
    pub fn made(&self, decisions: &Decisions, value: ValueId) -> Span {
        let producer = decisions.graph().value(value).producer.index();
        let node = &decisions.graph().nodes[producer];
        if matches!(node.op, Op::Variable(_)) {
            return Span { start: 0, end: self.len() - 1, others: 0 };
        }
        let nodes: Vec<usize> =
            self.readers[value.index()].iter().copied().chain([producer]).collect();
        let looped = times(decisions, node) > 1;
        self.span(decisions, value, &nodes, looped)
    }

    /// While a boxed copy is kept: from the first to the last of all its readers on that placement.
    pub fn copy(&self, decisions: &Decisions, value: ValueId, readers: &[usize]) -> Span {
        if readers.is_empty() {
            return self.moment(decisions.graph().value(value).producer.index());
        }
        self.span(decisions, value, readers, false)
    }

    fn span(
        &self,
        decisions: &Decisions,
        value: ValueId,
        nodes: &[usize],
        made_in_loop: bool,
    ) -> Span {
        let positions = nodes.iter().map(|&node| self.position[node]);
        let (mut start, mut end) =
            positions.fold((usize::MAX, 0), |(low, high), at| (low.min(at), high.max(at)));
        let per_step = decisions.rates.values[value.index()] == ValueRate::Step;
        let in_loop = |&node: &usize| times(decisions, &decisions.graph().nodes[node]) > 1;
        if let Some((first, last)) = self.looped
            && per_step
            && (made_in_loop || nodes.iter().any(in_loop))
        {
            (start, end) = (start.min(first), end.max(last));
        }
        let others = if per_step { 0 } else { self.stashed(decisions, nodes) };
        Span { start, end, others }
    }

    /// Microbatches beyond the first whose contents are kept: of what the forward pass leaves for the backward pass.
    fn stashed(&self, decisions: &Decisions, nodes: &[usize]) -> usize {
        let phase = |node: usize| decisions.training.phases[node];
        let crosses = nodes.iter().any(|&node| phase(node) == Phase::Forward)
            && nodes.iter().any(|&node| phase(node) != Phase::Forward);
        if !crosses {
            return 0;
        }
        let staging = &decisions.staging;
        let first = nodes.iter().map(|&node| staging.chunk_of_all(node)).min().unwrap_or(0);
        self.under_way[first % staging.stages][first / staging.stages] - 1
    }

    /// The domains that a placement reaches.
    pub fn domains_of(&self, placement: &Placement) -> Vec<usize> {
        let reaches = |domain: &Domain| placement.ranks.contains(&domain.ranks[0]);
        (0..self.domains.len()).filter(|&index| reaches(&self.domains[index])).collect()
    }
}

fn domains(decisions: &Decisions) -> Vec<Domain> {
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
