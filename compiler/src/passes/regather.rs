//! Lets the planner choose, for each tensor that the backward pass reads, whether to keep it or to gather it again.
//!
//! A tensor is boxed to a layout once, however many ops read it so. The copy is kept from the first of these readers
//! to the last. For a weight that is kept in shards and read whole, this would keep the whole weight from the forward
//! to the backward pass. Large trainings have no memory for that.
//!
//! This pass puts an op, `regather`, before the first backward reader. Its result is the same tensor, in a layout
//! chosen anew, and the backward readers read that result. In the layout of the shards the op costs nothing, and its
//! readers gather again (FSDP's `reshard_after_forward`; ZeRO stage 3, Rajbhandari et al., arXiv 1910.02054). In the
//! layout of the copy it is the copy, which is kept.
//!
//! So the choice is one signature among others, and the planner needs no variable of a new kind. Activations have the
//! same choice: kept whole, or kept in shards and gathered again (sequence parallelism, Korthikanti et al., arXiv
//! 2205.05198, section 4.2.2). A plan has no actor for the op: nothing is computed or moved for it.
//!
//! With several microbatches, what is computed once a step would be gathered once a step and kept through all of
//! them. There the forward readers read a `regather` as well. It is made anew for each microbatch
//! ([`ValueRate::Anew`]), so the planner may gather for each microbatch or once a step.
//!
//! The strategy `zero3` applies the pass to its parameters. `auto` applies it to all that crosses into the backward
//! pass, if the plan of fewest seconds does not fit the memory (`compile::forms`, `Plan::regathered`).

use std::collections::BTreeMap;

use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Movement, Op, OpError};
use graphc_ir::ops::Regather;
use graphc_ir::rule::Choice;
use graphc_ir::sbp::Sbp;
use graphc_plan::{Strategy, TensorKind};

use super::rebuild::Rebuild;
use crate::decisions::{Phase, Rated, Rates, TrainingGraph, ValueRate};
use crate::passes::error::PassError;
use crate::passes::float8::{quantized_source, quantizing_nodes};

/// The tensors whose layout in the backward pass may be another one than in the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Regathered {
    /// None.
    Nothing,
    /// Parameters, cast or not.
    Parameters,
    /// Activations too.
    All,
}

impl Regathered {
    /// Returns the tensors that a strategy gathers again whatever the memory.
    pub(crate) fn from_strategy(strategy: Strategy) -> Self {
        if strategy.shards_parameters() { Self::Parameters } else { Self::Nothing }
    }
}

/// Inserts `regather` nodes, so that these tensors may have another layout in the backward pass than in the forward pass.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(crate) fn insert_regathers(recomputing: Rated, which: Regathered) -> Result<Rated, PassError> {
    let Rated { training, rates, recomputed } = recomputing;
    let rounding = rounding_weights(&training);
    let wanted = choose_places(&training, &rates, which, &rounding);
    if wanted.iter().all(Option::is_none) {
        return Ok(Rated { training, rates, recomputed });
    }
    let mut inserter = Inserter {
        rebuild: Rebuild::new(&training),
        rates: &rates,
        wanted,
        rounding,
        again: BTreeMap::new(),
        values: Vec::new(),
        nodes: Vec::new(),
        new_of: Vec::new(),
        recomputed: Vec::new(),
    };
    for (id, _) in training.graph.iter() {
        let original = recomputed[id.index()];
        let copied = inserter.copy_node(id, original);
        copied.map_err(|error| PassError::Op { pass: "regather", error })?;
    }
    let Inserter { rebuild, values, nodes, recomputed, .. } = inserter;
    let rates = Rates { microbatches: rates.microbatches, values, nodes };
    Ok(Rated { training: rebuild.finish(), rates, recomputed })
}

/// The places where a tensor is regathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegatherPlace {
    /// Before its first backward reader.
    Backward,
    /// Before its first reader of each microbatch too.
    Both,
}

/// Returns the place where each value is regathered, if it is.
fn choose_places(
    training: &TrainingGraph,
    rates: &Rates,
    which: Regathered,
    rounding: &[bool],
) -> Vec<Option<RegatherPlace>> {
    let graph = &training.graph;
    let parameters = find_parameters(training);
    let mut wanted = vec![None; graph.values.len()];
    for (index, readers) in graph.list_consumers().iter().enumerate() {
        let value = ValueId::new(index);
        let producer = graph.value(value).producer.index();
        let is_scalar = graph.value(value).ty.shape.is_empty();
        let is_source = matches!(graph.nodes[producer].op, Op::Input(_) | Op::ToGlobal(_));
        let chosen = match which {
            Regathered::Nothing => false,
            Regathered::Parameters => parameters[index],
            Regathered::All => parameters[index] || !is_scalar && !is_source,
        };
        let at_home = |reader: &&NodeId| graph.node(**reader).is_beside(&graph.nodes[producer]);
        // A weight is rounded to 8 bits once for each pass, so there may be two that are gathered, but not what is rounded.
        let is_float8 = graph.value(value).ty.dtype.is_float8();
        if !chosen || training.phases[producer] != Phase::Forward && !is_float8 {
            continue;
        }
        let whole = |reader: &&NodeId| !rounding[reader.index()];
        let here: Vec<NodeId> = readers.iter().filter(at_home).filter(whole).copied().collect();
        let of = |phase: Phase| here.iter().any(|node| training.phases[node.index()] == phase);
        let in_parts = rates.values[index] == ValueRate::Step
            && here.iter().any(|node| rates.nodes[node.index()].is_some());
        wanted[index] = match (in_parts, of(Phase::Forward) && of(Phase::Backward)) {
            (true, _) => Some(RegatherPlace::Both),
            (false, true) => Some(RegatherPlace::Backward),
            (false, false) => None,
        };
    }
    wanted
}

/// Returns, for each node, whether it reads a parameter as it lies, only to round it to 8 bits.
fn rounding_weights(training: &TrainingGraph) -> Vec<bool> {
    let parameters = find_parameters(training);
    let mut rounding = quantizing_nodes(&training.graph);
    for (node, rounds) in training.graph.nodes.iter().zip(&mut rounding) {
        *rounds &= node.operands.first().is_some_and(|value| parameters[value.index()]);
    }
    rounding
}

/// Returns, for each value, whether it is a parameter, at most cast or moved.
fn find_parameters(training: &TrainingGraph) -> Vec<bool> {
    let graph = &training.graph;
    let mut is = vec![false; graph.values.len()];
    for node in &graph.nodes {
        let result = node.results[0].index();
        let rearranged = node.op.operation().movement() == Some(Movement::Rearranged);
        is[result] = match node.op {
            Op::Variable(_) => training.kinds[result] == TensorKind::Parameter,
            Op::Cast(_) => is[node.operands[0].index()],
            _ => {
                let moved = rearranged.then(|| node.operands[0]);
                moved.or(quantized_source(node)).is_some_and(|source| is[source.index()])
            }
        };
    }
    is
}

struct Inserter<'a> {
    rebuild: Rebuild<'a>,
    rates: &'a Rates,
    wanted: Vec<Option<RegatherPlace>>,
    /// Whether a node reads a parameter as it lies.
    rounding: Vec<bool>,
    /// The new value of each old one, by the phase that reads it.
    again: BTreeMap<(ValueId, Phase), ValueId>,
    /// The rates of the new graph's values.
    values: Vec<ValueRate>,
    /// The choices of the new graph's nodes on the time axis.
    nodes: Vec<Option<Choice>>,
    /// The new node of each old one.
    new_of: Vec<NodeId>,
    recomputed: Vec<Option<NodeId>>,
}

impl Inserter<'_> {
    fn copy_node(&mut self, id: NodeId, original: Option<NodeId>) -> Result<(), OpError> {
        let old = self.rebuild.old;
        let node = old.graph.node(id);
        let mut operands = Vec::new();
        for &operand in &node.operands {
            operands.push(self.value_for_reader(operand, id)?);
        }
        let results = self.rebuild.push(node.op.clone(), operands, id)?;
        for (&old, new) in node.results.iter().zip(results) {
            self.rebuild.replace_value(old, new);
            self.values.push(self.rates.values[old.index()]);
        }
        self.nodes.push(self.rates.nodes[id.index()]);
        self.recomputed.push(original.map(|node| self.new_of[node.index()]));
        self.new_of.push(NodeId::new(self.nodes.len() - 1));
        Ok(())
    }

    /// Returns the value that a node reads for a value of the old graph.
    fn value_for_reader(&mut self, value: ValueId, reader: NodeId) -> Result<ValueId, OpError> {
        let old = self.rebuild.old;
        let made = self.rebuild.new_of(value);
        let phase = old.phases[reader.index()];
        let at_home = old.graph.node(reader).is_beside(old.graph.producer(value));
        let in_parts = self.rates.nodes[reader.index()].is_some();
        let again = at_home
            && !self.rounding[reader.index()]
            && match self.wanted[value.index()] {
                None => false,
                Some(RegatherPlace::Backward) => phase == Phase::Backward,
                Some(RegatherPlace::Both) => in_parts && phase != Phase::Update,
            };
        if !again {
            return Ok(made);
        }
        if let Some(&known) = self.again.get(&(value, phase)) {
            return Ok(known);
        }
        // What is gathered once a step may be kept from there.
        let before = self.again.get(&(value, Phase::Forward)).copied().unwrap_or(made);
        let new = self.push_regather(value, before, reader)?;
        self.again.insert((value, phase), new);
        Ok(new)
    }

    fn push_regather(
        &mut self,
        value: ValueId,
        before: ValueId,
        reader: NodeId,
    ) -> Result<ValueId, OpError> {
        let op = Op::Regather(Regather {});
        let ty = &self.rebuild.old.graph.value(value).ty;
        let (rate, choice) = match self.rates.values[value.index()] {
            ValueRate::Step if self.wanted[value.index()] == Some(RegatherPlace::Both) => {
                (ValueRate::Anew, None)
            }
            ValueRate::Microbatch { dim } => {
                let rule = op.operation().rule(&[ty])?;
                let cut = rule.signatures(&[self.rates.microbatches]).into_iter();
                let mut cut = cut.filter(|s| s.results[0].0[0] == Sbp::Split(dim));
                (ValueRate::Microbatch { dim }, cut.next().map(|s| s.choices[0]))
            }
            ValueRate::Each => (ValueRate::Each, Some(Choice::Replicate)),
            rate => (rate, None),
        };
        let result = self.rebuild.push(op, vec![before], reader)?[0];
        self.rebuild.set_kind(result, TensorKind::Activation);
        self.values.push(rate);
        self.nodes.push(choice);
        self.recomputed.push(None);
        Ok(result)
    }
}
