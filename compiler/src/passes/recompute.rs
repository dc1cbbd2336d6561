//! Computes activations again in the backward pass instead of keeping them (Chen et al., arXiv 1604.06174, section
//! 4).
//!
//! A block is a layer of the model on one stage. What other blocks read of it is kept: its inputs and its results.
//! Whatever else its backward pass reads is computed again from these, op by op. What depends on no input is no
//! activation: it is computed once and kept.
//!
//! A copy is the same op with the same payload on the same operands. So it gives the same bits, and dropout draws the
//! same numbers. The pass is nearly the last, so nothing merges or rewrites copies. A copy stands right before its
//! first reader in the backward pass; the planner's lifetimes and the order of lowering go by that place.
//! `Decisions::recomputed` names the original of each copy, and fixed strategies give both the same signature.
//!
//! Selective recomputation also keeps what takes much computing ([`super::selective`]). Where ops are given one by
//! one ([`Extent::Ops`]), the results of all others are kept. `--recompute auto` chooses such ops by the memory
//! (`compile::recompute_choice`).
//!
//! The last layer, unless it is one of several equal ones, is the head with the loss. Its backward pass follows at
//! once, so nothing of it is computed again.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::graph::Graph;
use graphc_ir::ids::{LayerId, NodeId, ValueId};
use graphc_ir::op::OpError;

use super::layers::find_layers;
use super::rebuild::{Rebuild, live_nodes};
use super::selective;
use crate::decisions::{Phase, Rated, Rates, TrainingGraph, ValueRate};
use crate::passes::error::PassError;

/// The extent of recomputation.
#[derive(Clone, Copy, Debug)]
pub enum Extent<'a> {
    /// All that is cheap in all blocks.
    Selective,
    /// All values in all blocks that other blocks do not read.
    Full,
    /// These ops.
    Ops(&'a BTreeSet<OpPlace>),
}

/// An op of a block that may be computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpPlace {
    /// The index of the block, in the order of the graph.
    pub block: usize,
    /// The index of the op among those of the block.
    pub place: usize,
}

/// Computes activations again in the backward pass.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(crate) fn recompute_activations(rated: Rated, extent: Extent<'_>) -> Result<Rated, PassError> {
    recompute_with_origins(rated, extent).map(|(rated, _)| rated)
}

/// Does the same as [`recompute_activations`], and also returns the origin of each node: the node of the old graph that it is, or that it computes
/// again.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(crate) fn recompute_with_origins(
    rated: Rated,
    extent: Extent<'_>,
) -> Result<(Rated, Vec<NodeId>), PassError> {
    let Rated { training, rates, .. } = rated;
    let dropped = choose_recomputed(&training, Blocks::new(&training, &rates), extent);
    if !dropped.contains(&true) {
        let nodes = training.graph.nodes.len();
        let rated = Rated { training, rates, recomputed: vec![None; nodes] };
        return Ok((rated, (0..nodes).map(NodeId::new).collect()));
    }
    let recomputing = RecomputeCopier::new(&training, &rates, dropped).copy_graph();
    recomputing.map_err(|error| PassError::Op { pass: "recompute", error })
}

/// The ops and values of a graph that may be computed again.
#[derive(Debug)]
pub struct Blocks {
    /// The ops of each block that may be computed twice, in order.
    pub ops: Vec<Vec<NodeId>>,
    /// For each value, whether it need not be kept.
    pub repeatable: Vec<bool>,
}

impl Blocks {
    /// Finds the blocks of a graph in which nothing is computed again.
    pub fn new(training: &TrainingGraph, rates: &Rates) -> Self {
        let graph = &training.graph;
        let layers = find_layers(graph, |node| training.phases[node] == Phase::Forward);
        let head = layers.count.checked_sub(1).filter(|last| !layers.repeated.contains(last));
        let head = head.map(LayerId::new);
        let mut numbers: BTreeMap<_, usize> = BTreeMap::new();
        let (mut ops, mut of): (Vec<Vec<NodeId>>, _) = (Vec::new(), vec![None; graph.nodes.len()]);
        for (id, node) in graph.iter() {
            let layer = layers.of[id.index()].filter(|&layer| Some(layer) != head);
            let layer = layer.filter(|_| may_repeat(training, rates, id.index()));
            let Some(layer) = layer else { continue };
            let number = *numbers.entry((layer, node.part)).or_insert(ops.len());
            ops.resize_with(ops.len().max(number + 1), Vec::new);
            ops[number].push(id);
            of[id.index()] = Some(number);
        }
        Self { ops, repeatable: find_repeatable(training, &of) }
    }

    /// Returns the ops of each block that selective recomputation computes again.
    pub(crate) fn cheap_ops(&self, training: &TrainingGraph) -> Vec<Vec<OpPlace>> {
        let dropped = selective::choose_selective(training, &self.repeatable);
        let is_cheap = |id: &NodeId| {
            training.graph.node(*id).results.iter().any(|value| dropped[value.index()])
        };
        let of = |(block, ops): (usize, &Vec<NodeId>)| {
            let places = ops.iter().enumerate().filter(|(_, id)| is_cheap(id));
            places.map(|(place, _)| OpPlace { block, place }).collect()
        };
        self.ops.iter().enumerate().map(of).collect()
    }

    /// Returns the nodes of these ops.
    fn nodes_of<'a>(&'a self, ops: &'a BTreeSet<OpPlace>) -> impl Iterator<Item = NodeId> + 'a {
        let node = |op: &OpPlace| self.ops.get(op.block)?.get(op.place).copied();
        ops.iter().filter_map(node)
    }
}

/// Returns, for each value, whether it need not be kept. Such values are no outputs, and in the forward pass their own block alone reads them. The
/// state that a step leaves is read by no backward pass, so it is kept. `of` is the block of each node.
fn find_repeatable(training: &TrainingGraph, of: &[Option<usize>]) -> Vec<bool> {
    let graph = &training.graph;
    let block = |value: usize| of[graph.values[value].producer.index()];
    let mut own: Vec<Option<usize>> = (0..graph.values.len()).map(block).collect();
    for (index, node) in graph.nodes.iter().enumerate() {
        if training.phases[index] != Phase::Backward {
            for operand in &node.operands {
                if own[operand.index()] != of[index] {
                    own[operand.index()] = None;
                }
            }
        }
    }
    let observed = graph.outputs.iter().map(|output| output.value);
    for value in observed.chain(training.loss) {
        own[value.index()] = None;
    }
    own.into_iter().map(|block| block.is_some()).collect()
}

/// Returns, for each value, whether it is computed again.
fn choose_recomputed(training: &TrainingGraph, blocks: Blocks, extent: Extent<'_>) -> Vec<bool> {
    match extent {
        Extent::Full => blocks.repeatable,
        Extent::Selective => selective::choose_selective(training, &blocks.repeatable),
        Extent::Ops(ops) => {
            let mut dropped = vec![false; blocks.repeatable.len()];
            for value in blocks.nodes_of(ops).flat_map(|id| &training.graph.node(id).results) {
                dropped[value.index()] = blocks.repeatable[value.index()];
            }
            dropped
        }
    }
}

/// Whether a node may be computed twice: a function of its operands that acts for every microbatch.
fn may_repeat(training: &TrainingGraph, rates: &Rates, index: usize) -> bool {
    let node = &training.graph.nodes[index];
    let cut = |value: &ValueId| {
        let rate = rates.values[value.index()];
        rates.microbatches == 1 || matches!(rate, ValueRate::Microbatch { .. } | ValueRate::Each)
    };
    node.op.operation().is_function() && node.results.iter().all(cut)
}

struct RecomputeCopier<'a> {
    rebuild: Rebuild<'a>,
    rates: &'a Rates,
    /// Whether a value is computed again where the backward pass reads it.
    dropped: Vec<bool>,
    /// The copies made so far, by the values that they copy.
    copies: BTreeMap<ValueId, ValueId>,
    /// The old node of each new one.
    old_of: Vec<NodeId>,
    /// Whether each new node is a copy.
    is_copy: Vec<bool>,
}

impl<'a> RecomputeCopier<'a> {
    fn new(training: &'a TrainingGraph, rates: &'a Rates, dropped: Vec<bool>) -> Self {
        Self {
            rebuild: Rebuild::new(training),
            rates,
            dropped,
            copies: BTreeMap::new(),
            old_of: Vec::new(),
            is_copy: Vec::new(),
        }
    }

    fn copy_graph(mut self) -> Result<(Rated, Vec<NodeId>), OpError> {
        let old = self.rebuild.old;
        for (id, node) in old.graph.iter() {
            if old.phases[id.index()] == Phase::Forward {
                self.rebuild.copy_node(id)?;
            } else {
                for &operand in &node.operands {
                    self.recompute_value(operand)?;
                }
                let operands = node.operands.iter().map(|&v| self.backward_value(v)).collect();
                let results = self.rebuild.push(node.op.clone(), operands, id)?;
                for (&old, new) in node.results.iter().zip(results) {
                    self.rebuild.replace_value(old, new);
                }
            }
            self.old_of.push(id);
            self.is_copy.push(false);
        }
        let Self { rebuild, rates, old_of, is_copy, .. } = self;
        without_dead(&rebuild.finish(), (&old.graph, rates), &old_of, &is_copy)
    }

    /// Returns the value that the backward pass reads for a value of the old graph.
    fn backward_value(&self, value: ValueId) -> ValueId {
        self.copies.get(&value).copied().unwrap_or_else(|| self.rebuild.new_of(value))
    }

    /// Computes a value again if it is not kept, with all that it needs.
    fn recompute_value(&mut self, value: ValueId) -> Result<(), OpError> {
        let graph = &self.rebuild.old.graph;
        let (mut pending, mut nodes) = (vec![value], BTreeSet::new());
        while let Some(value) = pending.pop() {
            let missing = self.dropped[value.index()] && !self.copies.contains_key(&value);
            if missing && nodes.insert(graph.value(value).producer) {
                pending.extend(&graph.producer(value).operands);
            }
        }
        nodes.into_iter().try_for_each(|node| self.copy_node(node))
    }

    fn copy_node(&mut self, id: NodeId) -> Result<(), OpError> {
        let node = self.rebuild.old.graph.node(id);
        let operands = node.operands.iter().map(|&v| self.backward_value(v)).collect();
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

/// Removes what the forward pass computed for the backward pass alone.
fn without_dead(
    training: &TrainingGraph,
    (old_graph, rates): (&Graph, &Rates),
    old_of: &[NodeId],
    is_copy: &[bool],
) -> Result<(Rated, Vec<NodeId>), OpError> {
    let live = live_nodes(training);
    let mut rebuild = Rebuild::new(training);
    let (mut values, mut nodes) = (Vec::new(), Vec::new());
    let (mut recomputed, mut origins) = (Vec::new(), Vec::new());
    let mut originals: BTreeMap<NodeId, NodeId> = BTreeMap::new();
    for (id, _) in training.graph.iter().filter(|(id, _)| live[id.index()]) {
        let old = old_of[id.index()];
        if is_copy[id.index()] {
            recomputed.push(originals.get(&old).copied());
        } else {
            originals.insert(old, NodeId::new(recomputed.len()));
            recomputed.push(None);
        }
        rebuild.copy_node(id)?;
        origins.push(old);
        nodes.push(rates.nodes[old.index()]);
        values.extend(old_graph.node(old).results.iter().map(|v| rates.values[v.index()]));
    }
    let rates = Rates { microbatches: rates.microbatches, values, nodes };
    Ok((Rated { training: rebuild.finish(), rates, recomputed }, origins))
}
