//! Checks that the batch statistics by which a training normalizes make sense, and says which batch norms keep their
//! running ones.
//!
//! For one value per channel the mean is that value, and the variance 0. The output is then the shift alone, and
//! running variances shrink to nothing; PyTorch refuses this too. Ranks take the statistics of all samples of a
//! microbatch together, so only its samples and places count.

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::ops::BatchNorm;
use graphc_ir::pattern::{matches_pattern, nearest_pattern};
use graphc_plan::CompileOptions;

use crate::passes::error::PassError;

/// Whether a batch norm normalizes by its running statistics in training, too.
pub(super) fn keeps_statistics(graph: &Graph, node: &Node, options: &CompileOptions) -> bool {
    let kept =
        |name: &str| options.keep_statistics.iter().any(|pattern| matches_pattern(pattern, name));
    running_statistics(graph, node).any(kept)
}

/// Checks every batch norm of a training.
///
/// # Errors
/// Statistics of one value, and running statistics that no batch would change.
pub(super) fn check_statistics(graph: &Graph, options: &CompileOptions) -> Result<(), PassError> {
    for node in &graph.nodes {
        let Op::BatchNorm(op) = &node.op else { continue };
        if !keeps_statistics(graph, node, options) {
            check_values(graph, node, options.microbatches)?;
            check_momentum(graph, node, op)?;
        }
    }
    Ok(())
}

/// The names of the variables that are a batch norm's running statistics.
fn running_statistics<'a>(graph: &'a Graph, node: &Node) -> impl Iterator<Item = &'a str> {
    let is_norm = matches!(node.op, Op::BatchNorm(_));
    let statistics: Vec<ValueId> =
        node.operands.iter().copied().skip(3).filter(|_| is_norm).collect();
    statistics.into_iter().filter_map(|value| match &graph.producer(value).op {
        Op::Variable(variable) => Some(variable.name.as_str()),
        _ => None,
    })
}

/// Checks that every pattern of statistics that are kept fits some of the model.
///
/// # Errors
/// The first pattern that fits none.
pub(crate) fn check_kept(graph: &Graph, options: &CompileOptions) -> Result<(), PassError> {
    let names: Vec<&str> =
        graph.nodes.iter().flat_map(|node| running_statistics(graph, node)).collect();
    let unknown = |pattern: &&String| !names.iter().any(|name| matches_pattern(pattern, name));
    match options.keep_statistics.iter().find(unknown) {
        None => Ok(()),
        Some(pattern) => Err(PassError::StatisticsUnknown {
            pattern: pattern.clone(),
            nearest: nearest_pattern(pattern, names),
        }),
    }
}

fn check_values(graph: &Graph, node: &Node, microbatches: usize) -> Result<(), PassError> {
    let ty = &graph.value(node.operands[0]).ty;
    let extents = ty.shape.iter().enumerate().filter(|(dim, _)| *dim != 1);
    if extents.map(|(_, extent)| extent).product::<usize>() != microbatches {
        return Ok(());
    }
    let (place, ty) = (node.source.clone(), ty.clone());
    Err(PassError::OneValue { place, ty, microbatches })
}

fn check_momentum(graph: &Graph, node: &Node, op: &BatchNorm) -> Result<(), PassError> {
    let momentum = op.momentum.0;
    if running_statistics(graph, node).next().is_none() || (0.0..1.0).contains(&momentum) {
        return Ok(());
    }
    Err(PassError::Momentum { place: node.source.clone(), momentum })
}
