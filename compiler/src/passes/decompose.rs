//! Takes apart the ops that need a whole dim where that dim may have to be split.
//!
//! After autodiff: the gradient of cross entropy is an op that splits its classes as it is, and those of softmax and
//! normalization have parts of their own, which are fewer than gradients of the parts.

use graphc_ir::decompose::{decompose, decomposes};
use graphc_ir::graph::{Graph, Node, Output};
use graphc_ir::ids::ValueId;
use graphc_ir::op::{Op, OpError};
use graphc_ir::plan::{CompileOptions, Strategy, TensorKind};
use graphc_ir::sbp::{NdSbp, Sbp};

use super::pins::pin_of;
use crate::decisions::TrainingGraph;
use crate::error::CompileError;

const PASS: &str = "decompose";

/// The graph with those ops in parts for which the policy asks; see [`wanted`].
///
/// # Errors
/// Where an op does not take its operands.
pub fn decompose_where_split(
    training: TrainingGraph,
    options: &CompileOptions,
) -> Result<TrainingGraph, CompileError> {
    let graph = &training.graph;
    if !graph.nodes.iter().any(|node| wanted(graph, node, options)) {
        return Ok(training);
    }
    in_parts(&training, options).map_err(|error| CompileError::Op { pass: PASS, error })
}

/// Whether a node is to be taken apart: on more than one rank, where a pin asks to split the dim that the op keeps
/// whole, and cross entropy also where the planner is free to split its classes.
pub fn wanted(graph: &Graph, node: &Node, options: &CompileOptions) -> bool {
    let ranks = match &node.placement {
        Some(placement) => placement.size(),
        None => options.mesh.iter().product::<usize>() / options.stages.max(1),
    };
    if ranks <= 1 || !decomposes(&node.op) {
        return false;
    }
    let free = matches!(node.op, Op::CrossEntropy(_)) && options.strategy == Strategy::Auto;
    let axis = whole_dim(graph, node);
    let splits = |pin: NdSbp| pin.0.contains(&Sbp::Split(axis));
    let values = node.operands.iter().chain(&node.results);
    let ranked = values.filter(|value| graph.value(**value).ty.shape.len() > axis);
    free || ranked.filter_map(|&value| pin_of(graph, value, options)).any(splits)
}

/// The dim that an op keeps whole, of its first operand.
fn whole_dim(graph: &Graph, node: &Node) -> usize {
    match &node.op {
        Op::Softmax(op) => op.axis,
        Op::SoftmaxGrad(op) => op.axis,
        Op::LogSoftmax(op) => op.axis,
        Op::LogSoftmaxGrad(op) => op.axis,
        _ => graph.value(node.operands[0]).ty.shape.len().saturating_sub(1),
    }
}

/// Decomposes with an output for every value, so that it is known what stands for what afterwards.
fn in_parts(training: &TrainingGraph, options: &CompileOptions) -> Result<TrainingGraph, OpError> {
    let old = &training.graph;
    let all = (0..old.values.len()).map(ValueId::new);
    let every = all.map(|value| Output { name: value.to_string(), value }).collect();
    let probed = Graph { outputs: every, ..old.clone() };
    let mut graph = decompose(&probed, |node| wanted(old, node, options))?;
    let new: Vec<ValueId> = std::mem::take(&mut graph.outputs).iter().map(|o| o.value).collect();
    let of = |value: ValueId| new[value.index()];
    let mut phases = Vec::with_capacity(graph.nodes.len());
    for (id, node) in old.iter() {
        // The parts of a node end where its last result is made.
        let last = node.results.iter().map(|&v| graph.value(of(v)).producer.index() + 1).max();
        phases.resize(last.unwrap_or(0).max(phases.len()), training.phases[id.index()]);
    }
    let mut kinds: Vec<TensorKind> = graph
        .values
        .iter()
        .map(|value| match phases[value.producer.index()] {
            crate::decisions::Phase::Forward => TensorKind::Activation,
            _ => TensorKind::Gradient,
        })
        .collect();
    for (index, &value) in new.iter().enumerate() {
        kinds[value.index()] = training.kinds[index];
    }
    let output = |output: &Output| Output { name: output.name.clone(), value: of(output.value) };
    graph.outputs = old.outputs.iter().map(output).collect();
    let pair = |&(variable, gradient): &(ValueId, ValueId)| (of(variable), of(gradient));
    let gradients = training.gradients.iter().map(pair).collect();
    Ok(TrainingGraph { graph, phases, kinds, loss: training.loss.map(of), gradients })
}
