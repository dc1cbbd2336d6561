//! The verifier: every invariant of a graph, checked between passes. It collects all that is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::graph::{Graph, Node, Source};
use crate::ids::{NodeId, ValueId};
use crate::mesh::Placement;
use crate::op::Op;
use crate::sbp::{NdSbp, Sbp};
use crate::types::TensorType;

/// Something that does not hold.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifyError {
    /// The node that it concerns; `None` where it is the graph.
    pub node: Option<NodeId>,
    /// The node's op; `graph` without a node.
    pub op: String,
    /// The place at which the user wrote the node.
    pub source: Source,
    /// The message.
    pub message: String,
}

/// All that does not hold.
#[derive(Clone, PartialEq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct VerifyErrors(pub Vec<VerifyError>);

crate::readable_debug!(VerifyErrors);

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node {
            Some(node) => write!(f, "{node} {} ({}): {}", self.op, self.source, self.message),
            None => write!(f, "{}: {}", self.op, self.message),
        }
    }
}

/// Checks that operands are defined before use, types are what inference gives, links between nodes and values
/// agree, names are unique, stages are declared and run forward, and placements and pins fit.
///
/// # Errors
/// All that does not hold.
pub fn verify_graph(graph: &Graph) -> Result<(), VerifyErrors> {
    let steps = |op: &Op| !matches!(op, Op::Blend(_)) && !op.operation().updates().is_empty();
    let trains = graph.nodes.iter().any(|node| steps(&node.op));
    let mut verifier = Verifier { graph, trains, errors: Vec::new() };
    verifier.check_links();
    for (id, node) in graph.iter() {
        if verifier.check_operands(id, node) {
            verifier.check_types(id, node);
            verifier.check_stage(id, node);
        }
        verifier.check_layouts(id, node);
    }
    if verifier.errors.is_empty() {
        verifier.check_updates();
    }
    verifier.check_names();
    verifier.check_outputs();
    verifier.check_placements();
    if verifier.errors.is_empty() { Ok(()) } else { Err(VerifyErrors(verifier.errors)) }
}

struct Verifier<'a> {
    graph: &'a Graph,
    /// Whether it makes the steps of an optimizer.
    trains: bool,
    errors: Vec<VerifyError>,
}

impl Verifier<'_> {
    fn record_error(&mut self, id: NodeId, message: impl Into<String>) {
        let node = self.graph.node(id);
        self.errors.push(VerifyError {
            node: Some(id),
            op: node.op.name().into(),
            source: node.source.clone(),
            message: message.into(),
        });
    }

    fn fail_graph(&mut self, message: impl Into<String>) {
        let message = message.into();
        let (op, source) = ("graph".into(), Source::Derived);
        self.errors.push(VerifyError { node: None, op, source, message });
    }

    /// Checks that each value is a result of exactly one node, which the value names.
    fn check_links(&mut self) {
        let mut seen = vec![false; self.graph.values.len()];
        for (id, node) in self.graph.iter() {
            for (index, &result) in node.results.iter().enumerate() {
                let Some(value) = self.graph.values.get(result.index()) else {
                    self.record_error(id, format!("result {result} is no value of the graph"));
                    continue;
                };
                if std::mem::replace(&mut seen[result.index()], true) {
                    self.record_error(id, format!("result {result} is produced twice"));
                } else if (value.producer, value.index) != (id, index) {
                    let (producer, at) = (value.producer, value.index);
                    let text = format!(
                        "result {index}, {result}, says that it is result {at} of {producer}"
                    );
                    self.record_error(id, text);
                }
            }
        }
        for index in (0..seen.len()).filter(|&index| !seen[index]) {
            self.fail_graph(format!("{} is produced by no node", ValueId::new(index)));
        }
    }

    /// Whether all operands exist and are produced before.
    fn check_operands(&mut self, id: NodeId, node: &Node) -> bool {
        let before = self.errors.len();
        for &operand in &node.operands {
            match self.graph.values.get(operand.index()) {
                None => {
                    self.record_error(id, format!("operand {operand} is no value of the graph"))
                }
                Some(value) if value.producer >= id => {
                    let name = self.graph.display_name(operand);
                    self.record_error(id, format!("operand {name} is used before it is defined"));
                }
                Some(_) => {}
            }
        }
        self.errors.len() == before
    }

    fn check_types(&mut self, id: NodeId, node: &Node) {
        let types: Vec<&TensorType> = self.graph.operand_types(node);
        let inferred = match node.op.infer_types(&types) {
            Ok(inferred) => inferred,
            Err(error) => return self.record_error(id, error.to_string()),
        };
        if inferred.len() != node.results.len() {
            let (expected, found) = (inferred.len(), node.results.len());
            return self.record_error(
                id,
                format!("it has {found} results, where inference gives {expected}"),
            );
        }
        for (&result, expected) in node.results.iter().zip(&inferred) {
            let Some(value) = self.graph.values.get(result.index()) else { continue };
            if value.ty != *expected {
                let name = self.graph.display_name(result);
                self.record_error(
                    id,
                    format!("{name} is {}, where inference gives {expected}", value.ty),
                );
            }
        }
    }

    /// Stages are declared, and data does not flow back to an earlier one. Gradients do flow back, so the second holds
    /// only between ops that the user wrote, in a graph that does not update its variables.
    fn check_stage(&mut self, id: NodeId, node: &Node) {
        let Some(stage) = node.stage() else { return };
        if stage.index() >= self.graph.stages.len() {
            return self.record_error(id, format!("stage {} is not declared", stage.index()));
        }
        if node.source == Source::Derived || self.trains {
            return;
        }
        for &operand in &node.operands {
            let producer = self.graph.producer(operand);
            // A source stands wherever it is read first; a tied weight is read in several stages.
            let source = producer.operands.is_empty() || producer.source == Source::Derived;
            if let Some(before) = producer.stage().filter(|&before| before > stage && !source) {
                let name = self.graph.display_name(operand);
                let (before, stage) = (before.index(), stage.index());
                self.record_error(
                    id,
                    format!("in stage {stage} it takes {name} from the later stage {before}"),
                );
            }
        }
    }

    /// Checks that updates update variables alone, each once a step. The result of an update is there when the step ends, so only other
    /// updates may read it.
    fn check_updates(&mut self) {
        let mut updated = BTreeMap::new();
        let mut becomes = BTreeSet::new();
        for (id, node) in self.graph.iter() {
            let pairs = node.op.operation().updates();
            for &(result, operand) in pairs {
                let variable = node.operands[operand];
                let name = self.graph.display_name(variable);
                if !matches!(self.graph.producer(variable).op, Op::Variable(_)) {
                    self.record_error(id, format!("it updates {name}, which is no variable"));
                } else if let Some(first) = updated.insert(variable, id) {
                    let first = self.graph.node(first);
                    let by = format!("{} ({})", first.op.name(), first.source);
                    self.record_error(id, format!("{name} is updated already, by {by}"));
                }
                becomes.insert(node.results[result]);
            }
            let read = node.operands.iter().find(|operand| becomes.contains(operand));
            if let Some(&read) = read.filter(|_| pairs.is_empty()) {
                let name = self.graph.display_name(read);
                self.record_error(
                    id,
                    format!("it reads {name}, what a variable becomes after the step"),
                );
            }
        }
        for output in &self.graph.outputs {
            if becomes.contains(&output.value) {
                let name = &output.name;
                self.fail_graph(format!(
                    "output `{name}` is what a variable becomes after the step: name the variable"
                ));
            }
        }
    }

    /// The node's placement and pins, and those that its payload holds.
    fn check_layouts(&mut self, id: NodeId, node: &Node) {
        if let Some(error) = node.placement.as_ref().and_then(placement_error) {
            self.record_error(id, error);
        }
        let stage = node.stage().and_then(|stage| self.graph.stages.get(stage.index()));
        let mesh = node.placement.as_ref().or(stage.and_then(Option::as_ref));
        let axes = mesh.map(|placement| placement.hierarchy.len());
        for &result in &node.results {
            let Some(value) = self.graph.values.get(result.index()) else { continue };
            let Some(pin) = &value.pin else { continue };
            if let Some(error) = layout_error(pin, value.ty.shape.len(), axes) {
                let name = self.graph.display_name(result);
                self.record_error(id, format!("the pin ({pin}) of {name} does not fit: {error}"));
            }
        }
        if let Op::ToGlobal(op) = &node.op {
            let value =
                node.results.first().and_then(|result| self.graph.values.get(result.index()));
            let rank = value.map_or(0, |value| value.ty.shape.len());
            let error = layout_error(&op.sbp, rank, Some(op.placement.hierarchy.len()));
            if let Some(error) = placement_error(&op.placement).or(error) {
                self.record_error(id, format!("the layout ({}) does not fit: {error}", op.sbp));
            }
        }
    }

    /// Names of values, of inputs and of variables are unique, each among its own.
    fn check_names(&mut self) {
        let mut values = BTreeMap::new();
        let mut tensors = BTreeMap::new();
        for (id, node) in self.graph.iter() {
            for result in &node.results {
                let value = self.graph.values.get(result.index());
                let Some(name) = value.and_then(|value| value.name.as_deref()) else { continue };
                if let Some(other) = values.insert(name, id) {
                    self.record_error(
                        id,
                        format!("the name `{name}` is taken by a result of {other}"),
                    );
                }
            }
            let (kind, name) = match &node.op {
                Op::Input(input) => ("input", &input.name),
                Op::Variable(variable) => ("variable", &variable.name),
                _ => continue,
            };
            if let Some(other) = tensors.insert((kind, name), id) {
                self.record_error(id, format!("{other} is an {kind} of the same name `{name}`"));
            }
        }
    }

    fn check_outputs(&mut self) {
        let mut names = BTreeMap::new();
        for output in &self.graph.outputs {
            let name = &output.name;
            if output.value.index() >= self.graph.values.len() {
                self.fail_graph(format!(
                    "output `{name}` is {}, no value of the graph",
                    output.value
                ));
            }
            if names.insert(name, ()).is_some() {
                self.fail_graph(format!("two outputs are called `{name}`"));
            }
        }
    }

    fn check_placements(&mut self) {
        for (stage, placement) in self.graph.stages.iter().enumerate() {
            if let Some(error) = placement.as_ref().and_then(placement_error) {
                self.fail_graph(format!("stage {stage}: {error}"));
            }
        }
    }
}

fn placement_error(placement: &Placement) -> Option<String> {
    let again = Placement::new(placement.ranks.clone(), placement.hierarchy.clone());
    again.err().map(|error| error.to_string())
}

/// Explains why a layout does not fit a tensor of this rank on a mesh of this many axes (where that is known); `None` if it fits.
fn layout_error(layout: &NdSbp, rank: usize, axes: Option<usize>) -> Option<String> {
    let found = layout.0.len();
    if let Some(axes) = axes.filter(|&axes| axes != found) {
        return Some(format!("the mesh has {axes} axes, and it names {found}"));
    }
    layout.0.iter().find_map(|sbp| match sbp {
        Sbp::Split(dim) if *dim >= rank => {
            Some(format!("it splits dim {dim} of a tensor of rank {rank}"))
        }
        _ => None,
    })
}
