//! Shards over the axes that split the batch, beside an axis that splits the model.
//!
//! [`super::megatron`] leaves parameters, gradients and states whole over those axes. Where the strategy of an axis shares them, they are split over it as
//! well, along the first dim that no axis splits and that takes it, or else one that such an axis splits already (vectors that the model's axis splits stay so): what reads a parameter gathers it over that axis alone.
//!
//! Gradients are scattered as they are summed over microbatches, in the type of that sum, or for the update.

use graphc_ir::ids::NodeId;
use graphc_ir::op::Op;
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_plan::{AxisStrategy, Strategy, TensorKind};

use super::super::problem::Problem;
use super::super::problem::layouts::SbpId;
use super::at_rest;

/// Splits what the strategies of axes share.
pub(super) fn shard_over_data(problem: &Problem<'_>, strategy: Strategy, chosen: &mut [usize]) {
    let Strategy::Mixed(_) = strategy else { return };
    let decisions = problem.decisions;
    let graph = decisions.graph();
    let sharing = |node: NodeId, shares: fn(AxisStrategy) -> bool| -> Vec<usize> {
        let axes = strategy.over_axes(decisions.staging.placement[node.index()].hierarchy.len());
        axes.iter().enumerate().filter(|(_, axis)| shares(**axis)).map(|(axis, _)| axis).collect()
    };
    for (id, node) in graph.iter() {
        let index = id.index();
        let kind = decisions.training.kinds[node.results[0].index()];
        let label = match &node.op {
            Op::Variable(_) if kind == TensorKind::Parameter => {
                let axes = sharing(id, AxisStrategy::shards_parameters);
                split_more(problem, id, chosen[index], &axes)
            }
            Op::Variable(_) if kind == TensorKind::State => {
                let axes = sharing(id, AxisStrategy::shards_states);
                split_more(problem, id, chosen[index], &axes)
            }
            op if !matches!(op, Op::Blend(_)) && !op.operation().updates().is_empty() => {
                let axes = sharing(id, AxisStrategy::shards_states);
                split_more(problem, id, chosen[index], &axes)
            }
            Op::Accumulate(_) => {
                let axes = sharing(id, AxisStrategy::shards_gradients);
                split_more(problem, id, chosen[index], &axes)
            }
            _ => at_rest(graph, node).and_then(|variable| {
                let layout = problem.candidates_of(variable)[chosen[variable.index()]].results[0];
                find_label(problem, id, layout)
            }),
        };
        chosen[index] = label.unwrap_or(chosen[index]);
    }
}

/// Returns the candidate of a node that makes its first result as another does, but split over more axes; `None` if there is none.
fn split_more(problem: &Problem<'_>, node: NodeId, label: usize, axes: &[usize]) -> Option<usize> {
    let mut label = label;
    let mut shared = Vec::new();
    for &axis in axes {
        let layout =
            NdSbp::clone(&problem.layouts.sbp(problem.candidates_of(node)[label].results[0]));
        if matches!(layout.0[axis], Sbp::Split(_)) {
            continue;
        }
        let graph = problem.decisions.graph();
        let dims = graph.value(graph.node(node).results[0]).ty.shape.len();
        let split = |dim: usize| {
            let mut wished = layout.clone();
            wished.0[axis] = Sbp::Split(dim);
            find_label(problem, node, problem.layouts.intern_sbp(&wished))
        };
        let is_whole = |dim: &usize| !layout.0.contains(&Sbp::Split(*dim));
        // What ranks of several axes share has too few dims for a dim each.
        let mut all = (0..dims).filter(is_whole).chain(shared.iter().copied());
        let (found, dim) = all.find_map(|dim| Some((split(dim)?, dim)))?;
        label = found;
        shared.push(dim);
    }
    Some(label)
}

/// Returns the candidate that makes a layout.
fn find_label(problem: &Problem<'_>, node: NodeId, layout: SbpId) -> Option<usize> {
    problem
        .candidates_of(node)
        .iter()
        .position(|candidate| candidate.results.first() == Some(&layout))
}
