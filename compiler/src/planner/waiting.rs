//! Prices the ways in which a tensor can wait for the backward pass, for `graphc explain`: kept, gathered again, sliced, recomputed.
//!
//! A way has seconds of a step and bytes at the peak, if all else stays as it is. These are estimates by the planner's own tables. Recomputation
//! takes the seconds of the ops that run for it alone. Gathering again takes the seconds of its boxing that nothing hides. A tensor takes its bytes
//! at the peak if the peak comes while it waits. A plan with another way would also choose other layouts for other tensors.

use std::collections::BTreeSet;

use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::Op;
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_plan::{Cluster, CompileOptions};

use super::error::PlannerError;
use super::problem::Problem;
use super::problem::candidates::Candidate;
use super::problem::layouts::SbpId;
use super::problem::usage;
use crate::decisions::{Decisions, Phase, Sharding, ValueRate};
use crate::passes::recompute::Blocks;

/// A way in which a tensor waits for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingWay {
    /// It is kept in the layout in which it is read.
    Kept,
    /// It is kept in the layout in which it was made, or at rest, and gathered again.
    Gathered,
    /// It is kept in smaller shards than it was made in, and gathered again.
    Sliced,
    /// It is not kept, but recomputed.
    Recomputed,
}

/// One way, with its seconds and bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Waits {
    /// The way.
    pub way: WaitingWay,
    /// The layout that is kept, or `None` if the tensor is recomputed.
    pub sbp: Option<NdSbp>,
    /// The seconds of a step for recomputing or gathering again.
    pub seconds: f64,
    /// The bytes at the peak of a rank of its stage, for the tensor and for others that are kept for it alone.
    pub bytes: u64,
}

/// The way of a plan, and the other possible ways.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    /// The stage of its ranks.
    pub stage: usize,
    /// The way of the plan.
    pub chosen: Waits,
    /// The other ways.
    pub others: Vec<Waits>,
}

/// The reading of a tensor of the forward pass by the backward pass.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The tensor of the forward pass.
    pub value: ValueId,
    /// The value that the backward pass reads: this tensor, the one that replaces it if it may have another layout, or the one that is recomputed.
    pub read: ValueId,
    /// The backward ops that read it on its ranks.
    readers: Vec<NodeId>,
}

impl Reading {
    /// Finds how the backward pass reads a value, or a cast of it. `None` if the backward pass does not read it, or if the value is not of the
    /// forward pass.
    pub fn from_value(decisions: &Decisions, value: ValueId) -> Option<Self> {
        let consumers = decisions.graph().list_consumers();
        let mut pending = vec![value];
        while let Some(value) = pending.pop() {
            if let Some(found) = Self::of_itself(decisions, &consumers, value) {
                return Some(found);
            }
            let casts = consumers[value.index()].iter().rev();
            let casts = casts.map(|&node| decisions.graph().node(node));
            let casts = casts.filter(|node| matches!(node.op, Op::Cast(_)));
            pending.extend(casts.map(|node| node.results[0]));
        }
        None
    }

    fn of_itself(decisions: &Decisions, consumers: &[Vec<NodeId>], value: ValueId) -> Option<Self> {
        let (graph, phases) = (decisions.graph(), &decisions.training.phases);
        let made = graph.value(value);
        if phases[made.producer.index()] != Phase::Forward {
            return None;
        }
        let copies = decisions.recomputed.iter().enumerate();
        let copies = copies.filter(|(_, original)| **original == Some(made.producer));
        let mut stand: Vec<ValueId> =
            copies.map(|(copy, _)| graph.nodes[copy].results[made.index]).collect();
        stand.push(value);
        // What is gathered for each microbatch may be kept from there.
        let mut at = 0;
        while let Some(&one) = stand.get(at) {
            let readers = consumers[one.index()].iter().map(|&node| graph.node(node));
            let again = readers.filter(|node| matches!(node.op, Op::Regather(_)));
            stand.extend(again.map(|node| node.results[0]));
            at += 1;
        }
        let home = graph.node(made.producer);
        let reads = |&reader: &NodeId| {
            let node = graph.node(reader);
            phases[reader.index()] == Phase::Backward
                && node.is_beside(home)
                && !matches!(node.op, Op::Regather(_))
        };
        stand.into_iter().find_map(|read| {
            let readers: Vec<NodeId> =
                consumers[read.index()].iter().copied().filter(reads).collect();
            (!readers.is_empty()).then_some(Self { value, read, readers })
        })
    }

    /// Whether it is recomputed.
    fn is_again(&self, decisions: &Decisions) -> bool {
        let producer = decisions.graph().value(self.read).producer;
        decisions.recomputed[producer.index()].is_some()
    }
}

/// Finds the ways in which a tensor may wait for the backward pass, in a plan with these signatures. What the backward pass reads has the layout
/// `rests`. `None` if the sharding is not one of this problem.
///
/// # Errors
/// Returns an error if a pin cannot be fulfilled.
pub fn price_waiting(
    decisions: &Decisions,
    (options, cluster): (&CompileOptions, &Cluster),
    reading: &Reading,
    sharding: &Sharding,
    rests: Option<&NdSbp>,
) -> Result<Option<Waiting>, PlannerError> {
    let problem = Problem::new(decisions, options, cluster)?;
    let Some(assignment) = problem.find_labels(sharding) else { return Ok(None) };
    let producer = decisions.graph().value(reading.value).producer.index();
    let stage = decisions.staging.stage[producer];
    let pricing = Pricing::new(&problem, assignment, reading);
    let (chosen, others) = pricing.price_ways(rests);
    Ok(Some(Waiting { stage, chosen, others }))
}

struct Pricing<'p, 'a> {
    problem: &'p Problem<'a>,
    assignment: Vec<usize>,
    reading: &'p Reading,
    consumers: Vec<Vec<NodeId>>,
    /// The number of contents of the tensor at the peak of its ranks while it waits.
    contents: u64,
}

impl<'p, 'a> Pricing<'p, 'a> {
    fn new(problem: &'p Problem<'a>, assignment: Vec<usize>, reading: &'p Reading) -> Self {
        let consumers = problem.decisions.graph().list_consumers();
        let pricing = Self { problem, assignment, reading, consumers, contents: 0 };
        Self { contents: pricing.count_contents(), ..pricing }
    }

    /// Counts the contents of the tensor at the peak. It waits from its last reader of the forward pass to its first of the backward pass, or through
    /// all microbatches if it is the same for all of them.
    fn count_contents(&self) -> u64 {
        let peak = self.find_peak();
        let Self { problem, reading, consumers, .. } = self;
        let (decisions, lifetimes) = (problem.decisions, &problem.lifetimes);
        let graph = decisions.graph();
        let producer = graph.value(reading.value).producer;
        let in_loop = lifetimes.looped.is_some_and(|(first, last)| (first..=last).contains(&peak));
        if decisions.rates.values[reading.value.index()] == ValueRate::Step
            && reading.readers.iter().any(|&node| decisions.count_actions(graph.node(node)) > 1)
        {
            return u64::from(in_loop);
        }
        let forward = |node: &NodeId| decisions.training.phases[node.index()] == Phase::Forward;
        let before = consumers[reading.value.index()].iter().copied();
        let before = before.filter(forward).chain([producer]);
        let last = before.map(|node| lifetimes.position_of(node)).max().unwrap_or(0);
        let copy = graph.value(reading.read).producer;
        let after = reading.readers.iter().copied();
        let after = after.chain(reading.is_again(decisions).then_some(copy));
        let first = after.map(|node| lifetimes.position_of(node)).min().unwrap_or(0);
        let nodes: Vec<NodeId> = reading.readers.iter().copied().chain([producer]).collect();
        let others = lifetimes.count_stashed(decisions, &nodes) as u64;
        u64::from(last < peak && peak < first) + if in_loop { others } else { 0 }
    }

    /// Returns the position at which the ranks of the tensor need most memory.
    fn find_peak(&self) -> usize {
        let producer = self.problem.decisions.graph().value(self.reading.value).producer;
        let placement = &self.problem.decisions.staging.placement[producer.index()];
        let domains = self.problem.lifetimes.domains_of(placement);
        let items = usage::list_items(self.problem, &self.assignment);
        let peaks = usage::find_peaks(self.problem, &items);
        let fullest = domains.into_iter().max_by_key(|&d| (peaks[d].bytes, std::cmp::Reverse(d)));
        fullest.map_or(0, |domain| peaks[domain].position)
    }

    fn price_ways(&self, rests: Option<&NdSbp>) -> (Waits, Vec<Waits>) {
        let decisions = self.problem.decisions;
        let made = self.made_layout(self.reading.value);
        let taken = self.taken_layout();
        let kept = self.price_kept(WaitingWay::Kept, taken);
        let mut all = vec![kept];
        if self.bytes(made) < self.bytes(taken) {
            all.push(self.price_kept(WaitingWay::Gathered, made));
        }
        if self.is_computed() {
            all.extend(
                self.price_smallest(taken).filter(|&(sbp, _)| sbp != made).map(|(_, waits)| waits),
            );
        }
        let chosen = if self.reading.is_again(decisions) {
            self.price_recomputed()
        } else {
            all.extend(self.price_recompute());
            let rests = rests.filter(|_| self.reading.read != self.reading.value);
            let rests = rests.map(|sbp| self.problem.layouts.intern_sbp(sbp));
            let rests = rests.unwrap_or_else(|| self.copy_layout(made, taken));
            let way = match (self.bytes(rests) >= self.bytes(taken), rests == made) {
                (true, _) => WaitingWay::Kept,
                (false, true) => WaitingWay::Gathered,
                (false, false) => WaitingWay::Sliced,
            };
            self.price_kept(way, rests)
        };
        all.retain(|waits| waits.way != chosen.way);
        (chosen, all)
    }

    fn chosen_candidate(&self, node: NodeId) -> &Candidate {
        &self.problem.candidates_of(node)[self.assignment[node.index()]]
    }

    /// Returns the layout in which a value is made.
    fn made_layout(&self, value: ValueId) -> SbpId {
        let value = self.problem.decisions.graph().value(value);
        self.chosen_candidate(value.producer).results[value.index]
    }

    /// Returns the largest layout in which these nodes take a value.
    fn largest_layout(&self, value: ValueId, readers: &[NodeId]) -> Option<SbpId> {
        let graph = self.problem.decisions.graph();
        let mut taken: Vec<SbpId> = Vec::new();
        for &node in readers {
            let candidate = self.chosen_candidate(node);
            let operands = graph.node(node).operands.iter().zip(&candidate.operands);
            taken.extend(operands.filter(|pair| *pair.0 == value).map(|pair| *pair.1));
        }
        taken.into_iter().max_by_key(|&sbp| self.bytes(sbp))
    }

    /// Returns the largest layout in which the backward pass takes the tensor.
    fn taken_layout(&self) -> SbpId {
        let reading = self.reading;
        let taken = self.largest_layout(reading.read, &reading.readers);
        taken.unwrap_or_else(|| self.made_layout(reading.read))
    }

    /// Returns the layout that is kept of a tensor with no choice of its own: that of the copy that the forward pass reads too, or that in which it
    /// is made.
    fn copy_layout(&self, made: SbpId, taken: SbpId) -> SbpId {
        let phases = &self.problem.decisions.training.phases;
        let readers = self.consumers[self.reading.value.index()].iter().copied();
        let forward: Vec<NodeId> =
            readers.filter(|node| phases[node.index()] == Phase::Forward).collect();
        match self.largest_layout(self.reading.value, &forward) {
            Some(before) if before == taken => taken,
            _ => made,
        }
    }

    fn bytes_of(&self, value: ValueId, sbp: SbpId) -> u64 {
        let decisions = self.problem.decisions;
        let producer = decisions.graph().value(value).producer;
        let placement = self.problem.layouts.placement_of(producer);
        let class = self.problem.layouts.class(value, placement);
        self.problem.layouts.bytes(class, sbp)
    }

    fn bytes(&self, sbp: SbpId) -> u64 {
        self.bytes_of(self.reading.value, sbp)
    }

    /// Whether the tensor is made by an op. Inputs and variables at rest are in memory in any case.
    fn is_computed(&self) -> bool {
        !is_given(self.problem.decisions, self.reading.value)
    }

    /// Prices keeping the tensor in a layout, and gathering it from that layout if the backward pass takes it in a larger one.
    fn price_kept(&self, way: WaitingWay, sbp: SbpId) -> Waits {
        let (made, taken) = (self.made_layout(self.reading.value), self.taken_layout());
        let is_there = sbp == made && !self.is_computed();
        let bytes = if is_there { 0 } else { self.bytes(sbp) * self.contents };
        let mut seconds = 0.0;
        if self.bytes(sbp) < self.bytes(taken) {
            seconds += self.price_gather(sbp, taken) + self.price_gather(made, sbp);
        }
        Waits { way, sbp: Some(NdSbp::clone(&self.problem.layouts.sbp(sbp))), seconds, bytes }
    }

    /// Returns the seconds of a step for boxing the tensor for the backward pass. A tensor that is the same for all microbatches is boxed once for
    /// both passes if it is kept, and otherwise for each microbatch anew.
    fn price_gather(&self, from: SbpId, to: SbpId) -> f64 {
        let decisions = self.problem.decisions;
        let count = decisions.rates.microbatches as f64;
        let per_step = decisions.rates.values[self.reading.value.index()] == ValueRate::Step;
        let times = if per_step { 2.0 * count - 1.0 } else { count };
        times * self.problem.boxed_for(self.reading.value, &self.reading.readers, from, to)
    }

    /// Prices keeping the least of it: the layout in which it is taken, split on the axes where it is whole.
    fn price_smallest(&self, taken: SbpId) -> Option<(SbpId, Waits)> {
        let graph = self.problem.decisions.graph();
        let dims = graph.value(self.reading.value).ty.shape.len();
        let sbp = self.problem.layouts.sbp(taken);
        let split = |dim: usize| {
            let of = |one: &Sbp| if *one == Sbp::Broadcast { Sbp::Split(dim) } else { *one };
            NdSbp(sbp.0.iter().map(of).collect())
        };
        let whole = self.bytes(taken);
        let mut least: Option<(u64, SbpId, Waits)> = None;
        for dim in 0..dims {
            let sbp = self.problem.layouts.intern_sbp(&split(dim));
            let (bytes, waits) = (self.bytes(sbp), self.price_kept(WaitingWay::Sliced, sbp));
            let is_less = least.as_ref().is_none_or(|(known, _, best)| {
                bytes < *known || bytes == *known && waits.seconds < best.seconds
            });
            if bytes < whole && is_less {
                least = Some((bytes, sbp, waits));
            }
        }
        least.map(|(_, sbp, waits)| (sbp, waits))
    }

    fn seconds_of(&self, nodes: &BTreeSet<NodeId>) -> f64 {
        let one = |&node: &NodeId| self.chosen_candidate(node).seconds;
        nodes.iter().map(one).sum()
    }

    /// Prices recomputation of a tensor that is not recomputed: the ops that would have to run, back to what is in memory for the backward pass.
    /// `None` if it cannot be recomputed, because other layers read it.
    fn price_recompute(&self) -> Option<Waits> {
        let decisions = self.problem.decisions;
        let graph = decisions.graph();
        let may_be = Blocks::new(&decisions.training, &decisions.rates).repeatable;
        if !may_be[self.reading.value.index()] {
            return None;
        }
        let (mut nodes, mut more) = (BTreeSet::new(), BTreeSet::new());
        let mut pending = vec![self.reading.value];
        while let Some(value) = pending.pop() {
            let producer = graph.value(value).producer;
            let is_there = |value| Reading::of_itself(decisions, &self.consumers, value).is_some();
            if value != self.reading.value
                && (is_there(value) || lasts_whole_step(decisions, value))
            {
                continue;
            }
            if !may_be[value.index()] {
                more.insert(value);
            } else if nodes.insert(producer) {
                pending.extend(&graph.node(producer).operands);
            }
        }
        let bytes = more
            .into_iter()
            .map(|value| self.bytes_of(value, self.made_layout(value)))
            .sum::<u64>();
        let (seconds, bytes) = (self.seconds_of(&nodes), bytes * self.contents);
        Some(Waits { way: WaitingWay::Recomputed, sbp: None, seconds, bytes })
    }

    /// Prices the recomputation of a tensor that is recomputed: the ops that run for it alone, and what is kept for them alone.
    fn price_recomputed(&self) -> Waits {
        let decisions = self.problem.decisions;
        let graph = decisions.graph();
        let copy = graph.value(self.reading.read).producer;
        let (mut nodes, mut kept) = (BTreeSet::new(), BTreeSet::new());
        let for_these = |nodes: &BTreeSet<NodeId>, value: ValueId| {
            let readers = self.consumers[value.index()].iter();
            let mut backward =
                readers.filter(|node| decisions.training.phases[node.index()] != Phase::Forward);
            backward.all(|node| nodes.contains(node))
        };
        // From readers to what they read, so that of each node all readers are known. An op whose other results are
        // read has to run anyway.
        for node in (0..=copy.index()).rev().map(NodeId::new) {
            let results = &graph.node(node).results;
            let for_it = |&value: &ValueId| value == self.reading.read || for_these(&nodes, value);
            let is_copy = decisions.recomputed[node.index()].is_some();
            if is_copy && results.iter().all(for_it) {
                nodes.insert(node);
            }
        }
        for &node in &nodes {
            kept.extend(graph.node(node).operands.iter().copied().filter(|&value| {
                let producer = graph.value(value).producer.index();
                decisions.recomputed[producer].is_none()
                    && !lasts_whole_step(decisions, value)
                    && for_these(&nodes, value)
            }));
        }
        let bytes = kept
            .into_iter()
            .map(|value| self.bytes_of(value, self.made_layout(value)))
            .sum::<u64>();
        let (seconds, bytes) = (self.seconds_of(&nodes), bytes * self.contents);
        Waits { way: WaitingWay::Recomputed, sbp: None, seconds, bytes }
    }
}

/// Whether a value comes from outside the graph.
fn is_given(decisions: &Decisions, value: ValueId) -> bool {
    let op = &decisions.graph().producer(value).op;
    op.is_given() || matches!(op, Op::ToGlobal(_))
}

/// Whether a value exists for all of a step: it rests, is fed, or is the same for all microbatches.
fn lasts_whole_step(decisions: &Decisions, value: ValueId) -> bool {
    is_given(decisions, value)
        || decisions.rates.microbatches > 1
            && decisions.rates.values[value.index()] == ValueRate::Step
}
