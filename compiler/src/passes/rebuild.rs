//! Rebuilds a training graph node by node, for passes that insert, replace or leave out nodes.

use graphc_ir::graph::{Graph, Output};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Op, OpError};
use graphc_plan::TensorKind;

use crate::decisions::{Phase, TrainingGraph};

/// The new graph, and its values for those of the old one.
pub(super) struct Rebuild<'a> {
    /// The graph that is read.
    pub old: &'a TrainingGraph,
    /// The graph that is made.
    pub graph: Graph,
    phases: Vec<Phase>,
    kinds: Vec<TensorKind>,
    origins: Vec<NodeId>,
    values: Vec<Option<ValueId>>,
}

impl<'a> Rebuild<'a> {
    /// An empty graph with the stages of the old one.
    pub(super) fn new(old: &'a TrainingGraph) -> Self {
        let (nodes, values) = (old.graph.nodes.len(), old.graph.values.len());
        Self {
            old,
            graph: old.graph.clone_empty(),
            phases: Vec::with_capacity(nodes),
            kinds: Vec::with_capacity(values),
            origins: Vec::with_capacity(nodes),
            values: vec![None; values],
        }
    }

    /// Appends a node with the stage, placement, source and phase of a node of the old graph.
    ///
    /// # Errors
    /// Returns an error if the op does not take the operands.
    pub(super) fn push(
        &mut self,
        op: Op,
        operands: Vec<ValueId>,
        like: NodeId,
    ) -> Result<Vec<ValueId>, OpError> {
        let phase = self.old.phases[like.index()];
        let kind =
            if phase == Phase::Forward { TensorKind::Activation } else { TensorKind::Gradient };
        self.push_in(phase, kind, op, operands, like)
    }

    /// Appends a node of the backward pass that makes activations of the forward pass again, in the layouts that the
    /// user asked for.
    ///
    /// # Errors
    /// Returns an error if the op does not take the operands.
    pub(super) fn push_again(
        &mut self,
        op: Op,
        operands: Vec<ValueId>,
        like: NodeId,
    ) -> Result<Vec<ValueId>, OpError> {
        let results = self.push_in(Phase::Backward, TensorKind::Activation, op, operands, like)?;
        for (old, new) in self.old.graph.node(like).results.iter().zip(&results) {
            let pin = self.old.graph.value(*old).pin.clone();
            self.graph.values[new.index()].pin = pin;
        }
        Ok(results)
    }

    fn push_in(
        &mut self,
        phase: Phase,
        kind: TensorKind,
        op: Op,
        operands: Vec<ValueId>,
        like: NodeId,
    ) -> Result<Vec<ValueId>, OpError> {
        let old = self.old.graph.node(like);
        let results = self.graph.push_like(op, operands, old)?;
        self.phases.push(phase);
        self.origins.push(like);
        self.kinds.resize(self.graph.values.len(), kind);
        Ok(results)
    }

    /// Sets the kind of a new value.
    pub(super) fn set_kind(&mut self, new: ValueId, kind: TensorKind) {
        self.kinds[new.index()] = kind;
    }

    /// Returns the node of the old graph after which a new node was made.
    pub(super) fn origin(&self, new: NodeId) -> NodeId {
        self.origins[new.index()]
    }

    /// Replaces an old value by a new one. It gets the old one's name and pin, if any, and its kind, if it is still an activation or a gradient. A
    /// new value that replaces several old ones has the name of the last that has one.
    pub(super) fn replace_value(&mut self, old: ValueId, new: ValueId) {
        self.values[old.index()] = Some(new);
        let (from, kind) = (self.old.graph.value(old), self.old.kinds[old.index()]);
        let to = &mut self.graph.values[new.index()];
        if from.name.is_some() {
            to.name.clone_from(&from.name);
        }
        if from.pin.is_some() {
            to.pin.clone_from(&from.pin);
        }
        if matches!(self.kinds[new.index()], TensorKind::Activation | TensorKind::Gradient) {
            self.kinds[new.index()] = kind;
        }
    }

    /// Copies a node. Each of its operands must have a value in the new graph.
    ///
    /// # Errors
    /// Returns an error if the op does not take the operands.
    pub(super) fn copy_node(&mut self, id: NodeId) -> Result<(), OpError> {
        let old = self.old;
        let node = old.graph.node(id);
        let operands = node.operands.iter().map(|&operand| self.new_of(operand)).collect();
        let results = self.push(node.op.clone(), operands, id)?;
        for (&old, new) in node.results.iter().zip(results) {
            self.replace_value(old, new);
        }
        Ok(())
    }

    /// Returns the new value of an old one that has been visited.
    pub(super) fn new_of(&self, old: ValueId) -> ValueId {
        self.values[old.index()].expect("operands are visited before their readers")
    }

    /// Returns the new training graph, with the outputs, loss and gradients of the old one.
    pub(super) fn finish(mut self) -> TrainingGraph {
        let output = |output: &Output| Output {
            name: output.name.clone(),
            value: self.new_of(output.value),
        };
        let outputs = self.old.graph.outputs.iter().map(output).collect();
        let loss = self.old.loss.map(|loss| self.new_of(loss));
        let pair = |&(variable, gradient): &(ValueId, ValueId)| {
            (self.new_of(variable), self.new_of(gradient))
        };
        let gradients = self.old.gradients.iter().map(pair).collect();
        self.graph.outputs = outputs;
        TrainingGraph { graph: self.graph, phases: self.phases, kinds: self.kinds, loss, gradients }
    }
}

/// Returns, for each node, whether it is needed for something observable: outputs, gradients, updates. What the user feeds and keeps (inputs,
/// variables) stays, read or not.
pub(super) fn live_nodes(training: &TrainingGraph) -> Vec<bool> {
    let graph = &training.graph;
    let mut live = vec![false; graph.nodes.len()];
    let observed = graph.outputs.iter().map(|output| output.value);
    let observed = observed.chain(training.gradients.iter().map(|&(_, gradient)| gradient));
    for value in observed.chain(training.loss) {
        live[graph.value(value).producer.index()] = true;
    }
    for (id, node) in graph.iter().rev() {
        live[id.index()] |= node.op.is_given() || !node.op.operation().updates().is_empty();
        if live[id.index()] {
            for &operand in &node.operands {
                live[graph.value(operand).producer.index()] = true;
            }
        }
    }
    live
}
