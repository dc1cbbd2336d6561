//! Clips gradients by their common norm (Pascanu et al., arXiv 1211.5063, algorithm 1), by ops of the graph, as
//! `torch.nn.utils.clip_grad_norm_` does it.
//!
//! The squares of each gradient are summed in the layout in which its update takes it. These are partial sums like
//! any other, so a replicated gradient counts once. The sums are added over tensors, then over stages.
//!
//! One op makes of the sum the factor by which updates multiply their gradients, in the same pass over memory. Under
//! loss scaling that factor includes the factor of the scale.

use graphc_ir::graph::Output;
use graphc_ir::ids::ValueId;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{ClipFactor, SquareSum};
use graphc_plan::TensorKind;

use super::append::push_node;
use super::loss_scale::over_gradients;
use crate::decisions::TrainingGraph;

/// The output that says how long all gradients of a step together were, before they were clipped.
pub const GRAD_NORM: &str = "grad_norm";

/// Appends the factor for a greatest norm, to be multiplied with that of loss scaling, which is `factor`. `None` where nothing is
/// trained.
pub(super) fn clip_norm(
    training: &mut TrainingGraph,
    max: f64,
    factor: Option<ValueId>,
) -> Result<Option<ValueId>, OpError> {
    // Gradients that are made elsewhere have no loss here.
    let first = training.gradients.first().map(|&(variable, _)| variable);
    let Some(beside) = training.loss.or(first) else { return Ok(None) };
    let home = training.graph.value(beside).producer;
    let sum = over_gradients(training, &Op::SquareSum(SquareSum {}), home)?;
    let clip = Op::ClipFactor(ClipFactor { max: max.into() });
    let operands = [sum].into_iter().chain(factor).collect();
    let kinds = [TensorKind::Gradient, TensorKind::Output];
    let node = push_node(training, clip, operands, home, &kinds)?;
    let [factor, norm] = training.graph.node(node).results[..] else {
        unreachable!("clip_factor has two results");
    };
    training.graph.outputs.push(Output { name: GRAD_NORM.into(), value: norm });
    Ok(Some(factor))
}
