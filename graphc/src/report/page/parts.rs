//! Names the part of the model that each value belongs to, as people know it: `layers.5.feed_forward.w1`, in whichever pass.
//!
//! An op that reads a weight is of the module of that weight. Any other op is of what the modules of its operands have in common,
//! within its layer. So the products between which attention lies give it their name, and the backward pass finds the module by the
//! weights and activations that it reads.

use std::collections::BTreeMap;

use graphc_compiler::decisions::{Decisions, Phase};
use graphc_ir::graph::Node;
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;

use super::layers::{Layer, common_path, module_of_weight};
use crate::report::alternatives::name_of;

/// The part of the model of a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ModelPart {
    /// Its layer, as a number of the page's.
    pub layer: Option<usize>,
    /// The name of the module; empty where nothing names it.
    pub path: String,
    /// Whether it is made of variables alone.
    weight: bool,
}

/// The parts of all values.
pub(super) struct Parts {
    /// The part of the model of each value.
    pub of_values: Vec<ModelPart>,
    by_name: BTreeMap<String, ValueId>,
}

impl Parts {
    /// Finds the parts of a graph, of whose values the layers are known in part.
    pub(super) fn new(decisions: &Decisions, layers: &[Layer], known: &[Option<usize>]) -> Self {
        let mut finder = PartFinder { decisions, layers, of: seed_parts(decisions, known) };
        for (index, node) in decisions.graph().nodes.iter().enumerate() {
            finder.find(index, node);
        }
        let values = (0..decisions.graph().values.len()).rev().map(ValueId::new);
        let by_name = values.map(|value| (name_of(decisions, value), value)).collect();
        Self { of_values: finder.of, by_name }
    }

    /// The part that tensors of these names have in common.
    pub(super) fn of_names<'a>(&self, names: impl Iterator<Item = &'a str>) -> ModelPart {
        let parts = names.filter_map(|name| self.by_name.get(name));
        let parts: Vec<&ModelPart> = parts.map(|value| &self.of_values[value.index()]).collect();
        let path = common_path(parts.iter().map(|part| part.path.as_str()));
        let mut layers = parts.iter().map(|part| part.layer);
        let first = layers.next().flatten();
        let layer = first.filter(|_| layers.all(|layer| layer == first));
        ModelPart { layer, path, weight: false }
    }
}

/// The parts of values before any op is looked at: their layers as far as they are known, and the modules of variables.
fn seed_parts(decisions: &Decisions, known: &[Option<usize>]) -> Vec<ModelPart> {
    let graph = decisions.graph();
    let part = |(index, &layer): (usize, &Option<usize>)| {
        let producer = graph.producer(ValueId::new(index));
        match &producer.op {
            Op::Variable(variable) => {
                ModelPart { layer, path: module_of_weight(&variable.name).into(), weight: true }
            }
            _ => ModelPart { layer, ..ModelPart::default() },
        }
    };
    let mut parts: Vec<ModelPart> = known.iter().enumerate().map(part).collect();
    for &(variable, gradient) in &decisions.training.gradients {
        let path = parts[variable.index()].path.clone();
        let layer = parts[gradient.index()].layer;
        for value in gradient_summands(decisions, gradient) {
            parts[value.index()].path.clone_from(&path);
            parts[value.index()].layer = layer;
        }
    }
    for node in graph.nodes.iter().filter(|node| !node.op.operation().updates().is_empty()) {
        name_states(decisions, node, &mut parts);
    }
    parts
}

/// A gradient, and what it is the sum or another element type of.
fn gradient_summands(decisions: &Decisions, gradient: ValueId) -> Vec<ValueId> {
    let mut all = vec![gradient];
    let mut value = gradient;
    while let Node { op: Op::Accumulate(_) | Op::Cast(_), operands, .. } =
        decisions.graph().producer(value)
    {
        value = operands[0];
        all.push(value);
    }
    all
}

/// Assigns the tensors that an update reads and writes to the module of the variable that is trained.
fn name_states(decisions: &Decisions, node: &Node, parts: &mut [ModelPart]) {
    let trained = node.operands.iter().find_map(|value| {
        let known = decisions.training.gradients.iter().find(|pair| pair.0 == *value);
        known.map(|_| parts[value.index()].path.clone())
    });
    let Some(path) = trained else { return };
    for value in node.operands.iter().chain(&node.results) {
        parts[value.index()].path.clone_from(&path);
    }
}

struct PartFinder<'a> {
    decisions: &'a Decisions,
    layers: &'a [Layer],
    of: Vec<ModelPart>,
}

impl PartFinder<'_> {
    /// Finds the part of a node's results, where it is not known.
    fn find(&mut self, index: usize, node: &Node) {
        if node.op.is_given() {
            return;
        }
        let part = match self.decisions.recomputed[index] {
            Some(original) => {
                let first = self.decisions.graph().nodes[original.index()].results[0];
                self.of[first.index()].clone()
            }
            None => self.of_operands(index, node),
        };
        for result in &node.results {
            let known = &mut self.of[result.index()];
            known.layer = known.layer.or(part.layer);
            known.weight = part.weight;
            if known.path.is_empty() {
                known.path.clone_from(&part.path);
            }
        }
    }

    fn of_operands(&self, index: usize, node: &Node) -> ModelPart {
        let operands = || node.operands.iter().map(|value| &self.of[value.index()]);
        let forward = self.decisions.training.phases[index] == Phase::Forward;
        let own = node.results.iter().find_map(|result| self.of[result.index()].layer);
        // The backward pass goes from the last layer to the first.
        let layer = match forward {
            true => own.or_else(|| operands().filter_map(|part| part.layer).max()),
            false => own.or_else(|| operands().filter_map(|part| part.layer).min()),
        };
        let weights =
            common_path(operands().filter(|part| part.weight).map(|part| part.path.as_str()));
        let weight = !node.operands.is_empty() && operands().all(|part| part.weight);
        if !weights.is_empty() {
            return ModelPart { layer, path: weights, weight };
        }
        let within = operands().filter(|part| part.layer == layer);
        let path = self.complete_path(common_path(within.map(|part| part.path.as_str())), layer);
        ModelPart { layer, path, weight }
    }

    /// A name that says no more than a layer's is the layer's.
    fn complete_path(&self, path: String, layer: Option<usize>) -> String {
        let Some(layer) = layer else { return path };
        let name = &self.layers[layer].name;
        let says_less =
            path.is_empty() || name.strip_prefix(&path).is_some_and(|rest| rest.starts_with('.'));
        if says_less { name.clone() } else { path }
    }
}
