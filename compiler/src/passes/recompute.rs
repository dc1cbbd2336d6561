//! Computes activations again in the backward pass instead of keeping them (Chen et al., arXiv 1604.06174, section 4).
//!
//! Of each block, a layer of the model on one stage, what other blocks read is kept: its inputs and its results.
//! Whatever else its backward pass reads is computed again from that, op by op, right before the first op that reads
//! it. The copies are the same ops with the same payloads on the same operands, so they give the same bits, and
//! dropout draws the same numbers. What depends on no input is no activation: it is computed once and kept.
//!
//! Of a block that is recomputed selectively what takes much computing is kept too ([`super::selective`]).
//!
//! The last layer, unless it is one of several equal ones, is the head with the loss: its backward pass follows at once,
//! and nothing of it is computed again.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::graph::Graph;
use graphc_ir::ids::{LayerId, NodeId, ValueId};
use graphc_ir::op::OpError;

use super::layers::layers;
use super::rebuild::{Rebuild, live_nodes};
use super::selective;
use crate::decisions::{Phase, Rated, Rates, TrainingGraph, ValueRate};
use crate::passes::error::PassError;

/// Of how many blocks of every stage, from its first on, what they leave for the backward pass is computed again (the *block* method
/// of Narayanan et al.'s Megatron-LM).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Blocks of which all is computed again.
    pub full: usize,
    /// Blocks, those included, of which at least what is cheap is.
    pub selective: usize,
}

impl Depth {
    /// All blocks, with all that they compute.
    pub const FULL: Self = Self { full: usize::MAX, selective: usize::MAX };
    /// All blocks, with what is cheap.
    pub const SELECTIVE: Self = Self { full: 0, selective: usize::MAX };
}

/// Computes activations again in the backward pass.
///
/// # Errors
/// Where an op does not take its operands.
pub fn recompute(rated: Rated, depth: Depth) -> Result<Rated, PassError> {
    let Rated { training, rates, .. } = rated;
    let block_of = Blocks::new(&training, &rates, depth);
    if block_of.of.iter().all(Option::is_none) {
        let recomputed = vec![None; training.graph.nodes.len()];
        return Ok(Rated { training, rates, recomputed });
    }
    let recomputing = Copier::new(&training, &rates, &block_of).copied();
    recomputing.map_err(|error| PassError::Op { pass: "recompute", error })
}

/// The most blocks that a stage has.
pub fn most_blocks(training: &TrainingGraph, rates: &Rates) -> usize {
    Blocks::new(training, rates, Depth::FULL).most
}

/// By value whether it is one that is computed again where all blocks are.
pub fn repeatable_values(training: &TrainingGraph, rates: &Rates) -> Vec<bool> {
    dropped(training, &Blocks::new(training, rates, Depth::FULL))
}

/// Which node is of which block.
struct Blocks {
    /// The block of each node whose results may be computed again.
    of: Vec<Option<usize>>,
    /// Of each block whether all of it is.
    full: Vec<bool>,
    /// The most blocks of one stage.
    most: usize,
}

impl Blocks {
    fn new(training: &TrainingGraph, rates: &Rates, depth: Depth) -> Self {
        let graph = &training.graph;
        let layers = layers(graph, |node| training.phases[node] == Phase::Forward);
        let head = layers.count.checked_sub(1).filter(|last| !layers.repeated.contains(last));
        let head = head.map(LayerId::new);
        let mut numbers: BTreeMap<_, usize> = BTreeMap::new();
        let mut of_part: BTreeMap<_, BTreeMap<LayerId, usize>> = BTreeMap::new();
        let (mut of, mut full) = (vec![None; graph.nodes.len()], Vec::new());
        for (index, node) in graph.nodes.iter().enumerate() {
            let Some(layer) = layers.of[index].filter(|&layer| Some(layer) != head) else {
                continue;
            };
            if !repeatable(training, rates, index) {
                continue;
            }
            let places = of_part.entry(node.part).or_default();
            let next = places.len();
            let place = *places.entry(layer).or_insert(next);
            if place < depth.full.max(depth.selective) {
                let number = numbers.entry((layer, node.part)).or_insert_with(|| {
                    full.push(place < depth.full);
                    full.len() - 1
                });
                of[index] = Some(*number);
            }
        }
        let most = of_part.values().map(BTreeMap::len).max().unwrap_or(0);
        Self { of, full, most }
    }
}

/// Whether a node may be computed twice: a function of its operands that acts for every microbatch.
fn repeatable(training: &TrainingGraph, rates: &Rates, index: usize) -> bool {
    let node = &training.graph.nodes[index];
    let cut = |value: &ValueId| {
        let rate = rates.values[value.index()];
        rates.microbatches == 1 || matches!(rate, ValueRate::Microbatch { .. })
    };
    node.op.operation().is_function() && node.results.iter().all(cut)
}

struct Copier<'a> {
    rebuild: Rebuild<'a>,
    rates: &'a Rates,
    /// Whether a value is computed again where the backward pass reads it.
    dropped: Vec<bool>,
    /// What has been computed again, by the value it is a copy of.
    copies: BTreeMap<ValueId, ValueId>,
    /// Of each new node its old one.
    old_of: Vec<NodeId>,
    /// Whether each new node is a copy.
    is_copy: Vec<bool>,
}

impl<'a> Copier<'a> {
    fn new(training: &'a TrainingGraph, rates: &'a Rates, blocks: &Blocks) -> Self {
        Self {
            rebuild: Rebuild::new(training),
            rates,
            dropped: dropped(training, blocks),
            copies: BTreeMap::new(),
            old_of: Vec::new(),
            is_copy: Vec::new(),
        }
    }

    fn copied(mut self) -> Result<Rated, OpError> {
        let old = self.rebuild.old;
        for (id, node) in old.graph.iter() {
            if old.phases[id.index()] == Phase::Forward {
                self.rebuild.copy(id)?;
            } else {
                for &operand in &node.operands {
                    self.again(operand)?;
                }
                let operands = node.operands.iter().map(|&v| self.read(v)).collect();
                let results = self.rebuild.push(node.op.clone(), operands, id)?;
                for (&old, new) in node.results.iter().zip(results) {
                    self.rebuild.stand(old, new);
                }
            }
            self.old_of.push(id);
            self.is_copy.push(false);
        }
        let Self { rebuild, rates, old_of, is_copy, .. } = self;
        without_dead(&rebuild.finish(), (&old.graph, rates), &old_of, &is_copy)
    }

    /// What the backward pass reads for a value of the old graph.
    fn read(&self, value: ValueId) -> ValueId {
        self.copies.get(&value).copied().unwrap_or_else(|| self.rebuild.new_of(value))
    }

    /// Computes a value again if it is not kept, with all that it takes.
    fn again(&mut self, value: ValueId) -> Result<(), OpError> {
        let graph = &self.rebuild.old.graph;
        let (mut pending, mut nodes) = (vec![value], BTreeSet::new());
        while let Some(value) = pending.pop() {
            let missing = self.dropped[value.index()] && !self.copies.contains_key(&value);
            if missing && nodes.insert(graph.value(value).producer) {
                pending.extend(&graph.producer(value).operands);
            }
        }
        nodes.into_iter().try_for_each(|node| self.copy(node))
    }

    fn copy(&mut self, id: NodeId) -> Result<(), OpError> {
        let node = self.rebuild.old.graph.node(id);
        let operands = node.operands.iter().map(|&v| self.read(v)).collect();
        let results = self.rebuild.push_again(node.op.clone(), operands, id)?;
        for (&value, copy) in node.results.iter().zip(results) {
            if self.dropped[value.index()] {
                self.copies.insert(value, copy);
            }
        }
        self.old_of.push(id);
        self.is_copy.push(true);
        Ok(())
    }
}

/// Which values are computed again. They are those that only their own block reads in the forward pass, and that are no output; what a
/// step leaves in a state is read by no backward pass: it is kept. Of selective blocks it is a part of them.
fn dropped(training: &TrainingGraph, blocks: &Blocks) -> Vec<bool> {
    let graph = &training.graph;
    let block = |value: usize| blocks.of[graph.values[value].producer.index()];
    let mut dropped: Vec<Option<usize>> = (0..graph.values.len()).map(block).collect();
    for (index, node) in graph.nodes.iter().enumerate() {
        if training.phases[index] != Phase::Backward {
            for operand in &node.operands {
                if dropped[operand.index()] != blocks.of[index] {
                    dropped[operand.index()] = None;
                }
            }
        }
    }
    let observed = graph.outputs.iter().map(|output| output.value);
    for value in observed.chain(training.loss) {
        dropped[value.index()] = None;
    }
    let of = |full: bool| {
        let is_so = |block: &Option<usize>| block.is_some_and(|block| blocks.full[block] == full);
        dropped.iter().map(is_so).collect::<Vec<bool>>()
    };
    let (all, some) = (of(true), of(false));
    if !some.contains(&true) {
        return all;
    }
    let some = selective::dropped(training, &some);
    all.into_iter().zip(some).map(|(all, some)| all || some).collect()
}

/// Leaves out what the forward pass computed for the backward pass alone.
fn without_dead(
    training: &TrainingGraph,
    (old_graph, rates): (&Graph, &Rates),
    old_of: &[NodeId],
    is_copy: &[bool],
) -> Result<Rated, OpError> {
    let live = live_nodes(training);
    let mut rebuild = Rebuild::new(training);
    let (mut values, mut nodes) = (Vec::new(), Vec::new());
    let mut recomputed = Vec::new();
    let mut originals: BTreeMap<NodeId, NodeId> = BTreeMap::new();
    for (id, _) in training.graph.iter().filter(|(id, _)| live[id.index()]) {
        let old = old_of[id.index()];
        if is_copy[id.index()] {
            recomputed.push(originals.get(&old).copied());
        } else {
            originals.insert(old, NodeId::new(recomputed.len()));
            recomputed.push(None);
        }
        rebuild.copy(id)?;
        nodes.push(rates.nodes[old.index()]);
        values.extend(old_graph.node(old).results.iter().map(|v| rates.values[v.index()]));
    }
    let rates = Rates { microbatches: rates.microbatches, values, nodes };
    Ok(Rated { training: rebuild.finish(), rates, recomputed })
}
