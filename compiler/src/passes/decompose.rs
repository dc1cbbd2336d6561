//! Takes apart the ops that need a whole dim, where that dim may have to be split.
//!
//! Batch normalization in training is always taken apart, since it has no kernel. Cross entropy becomes reductions
//! and elementwise ops, so that its classes may be split. Softmax and normalization are taken apart where a pin asks
//! for a split.
//!
//! The pass comes after autodiff. The gradient of cross entropy is an op that can split its classes as it is. Softmax
//! and normalization have gradients with parts of their own, which are fewer than the gradients of their parts. The
//! gradient of batch normalization in training has a closed form.
//!
//! Which form of cross entropy is cheaper depends on the plan: split classes save the exchange of scores and cost a
//! few kernels. This pass guesses by the shapes. Where the planner is free, `compile::forms` plans the other form
//! too.

use graphc_ir::decompose::{decompose_values, is_decomposable};
use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::ValueId;
use graphc_ir::op::{Op, OpError};
use graphc_ir::sbp::Sbp;
use graphc_plan::{CompileOptions, CrossEntropyForm, TensorKind};

use super::pins::pin_of;
use crate::decisions::TrainingGraph;
use crate::passes::error::PassError;

const PASS: &str = "decompose";

/// Takes apart the ops for which the policy asks that; see [`should_decompose`].
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(crate) fn decompose_where_split(
    training: TrainingGraph,
    options: &CompileOptions,
) -> Result<TrainingGraph, PassError> {
    let graph = &training.graph;
    if !graph.nodes.iter().any(|node| should_decompose(graph, node, options)) {
        return Ok(training);
    }
    in_parts(&training, options).map_err(|error| PassError::Op { pass: PASS, error })
}

/// Whether a node is to be taken apart: batch normalization in training always; others on more than one rank, where a
/// pin asks to split the dim that the op keeps whole, and cross entropy also where the planner is free to split its
/// classes and that may pay, or the strategy does.
pub(crate) fn should_decompose(graph: &Graph, node: &Node, options: &CompileOptions) -> bool {
    if matches!(node.op, Op::BatchNormTraining(_)) {
        return true;
    }
    let ranks = match &node.placement {
        Some(placement) => placement.size(),
        None => options.mesh.iter().product::<usize>() / options.stages.max(1),
    };
    if ranks <= 1 || !is_decomposable(&node.op) {
        return false;
    }
    let axis = whole_dim(graph, node);
    let splits = |value: &ValueId| {
        let pin = pin_of(graph, *value, options);
        graph.value(*value).ty.shape.len() > axis
            && pin.is_some_and(|pin| pin.0.contains(&Sbp::Split(axis)))
    };
    node.operands.iter().chain(&node.results).any(splits) || classes_may_pay(graph, node, options)
}

/// Whether the strategy splits the classes: it has an axis for the model.
fn splits_classes(node: &Node, options: &CompileOptions) -> bool {
    let axis = node.placement.as_ref().map_or(&options.mesh, |placement| &placement.hierarchy);
    // On one axis the stages take their part of it.
    let stages =
        if axis.len() == 1 && node.placement.is_none() { options.stages.max(1) } else { 1 };
    let ranks = axis.last().map_or(1, |ranks| ranks / stages);
    options.strategy.splits_model() && ranks > 1
}

/// Whether the planner may want to split the classes of a cross entropy. Data parallelism communicates the gradient of
/// the matrix that makes the scores, classes by width; split classes communicate the gradient of what that matrix is
/// applied to, samples by width. So it takes more classes than samples, or a matrix that is split anyway. This is a guess: the
/// planner prices the other form too, where that is not given.
fn classes_may_pay(graph: &Graph, node: &Node, options: &CompileOptions) -> bool {
    if !matches!(node.op, Op::CrossEntropy(_)) {
        return false;
    }
    match options.cross_entropy {
        CrossEntropyForm::Whole => return false,
        CrossEntropyForm::Parts => return true,
        CrossEntropyForm::Auto => {}
    }
    let (scores, labels) = (node.operands[0], node.operands[1]);
    let classes = graph.value(scores).ty.shape.last().copied().unwrap_or(0);
    let many = classes > graph.value(labels).ty.elements();
    let split = |&value: &ValueId| {
        let pin = pin_of(graph, value, options);
        pin.is_some_and(|pin| pin.0.iter().any(|sbp| matches!(sbp, Sbp::Split(_))))
    };
    options.strategy.is_planned() && many
        || splits_classes(node, options)
        || graph.producer(scores).operands.iter().any(split)
}

/// The form of cross entropy that is meant where none is asked for; `None` where it is one here and the other there, or nowhere.
pub(crate) fn form_unasked(graph: &Graph, options: &CompileOptions) -> Option<CrossEntropyForm> {
    let options = CompileOptions { cross_entropy: CrossEntropyForm::Auto, ..options.clone() };
    let all = graph.nodes.iter().filter(|node| matches!(node.op, Op::CrossEntropy(_)));
    let mut forms = all.map(|node| match classes_may_pay(graph, node, &options) {
        true => CrossEntropyForm::Parts,
        false => CrossEntropyForm::Whole,
    });
    let first = forms.next()?;
    forms.all(|form| form == first).then_some(first)
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

/// Decomposes what is wanted, with the phases and kinds of the old graph.
fn in_parts(training: &TrainingGraph, options: &CompileOptions) -> Result<TrainingGraph, OpError> {
    let old = &training.graph;
    let (graph, new) = decompose_values(old, |node| should_decompose(old, node, options))?;
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
    let pair = |&(variable, gradient): &(ValueId, ValueId)| (of(variable), of(gradient));
    let gradients = training.gradients.iter().map(pair).collect();
    Ok(TrainingGraph { graph, phases, kinds, loss: training.loss.map(of), gradients })
}
