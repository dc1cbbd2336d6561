//! Gives samples a dim of their own, in models that merge the batch with another dim.
//!
//! PyTorch's attention puts time before samples and merges both for its products (`[time, batch, ..] -> [time *
//! batch, ..]`). Only the slowest factor of a merged dim can be split, so such a model cannot be cut along its batch.
//! In training there is a second case: the gradient of a matrix merges time and samples where time comes first. A third are models that
//! put the samples of several inputs behind each other, so that one encoder takes them all: `cat([a, b], 0)`.
//!
//! The pass acts on models of these kinds alone. It does not compute transposes and merging reshapes where they
//! stand: a value becomes a view of another (`passes/views`). Products with weights, normalizations and elementwise
//! ops are computed on what is viewed, and views that cancel leave nothing. A reader that needs the value as it is
//! makes it.
//!
//! Where that is not enough, slices that take rows of several samples are made anew, as far as they need not (`slices.rs`).
//!
//! A tensor whose dims are then not those of the model is called `NAME.batch_first`.

mod slices;

use graphc_ir::decompose::decompose_graph;
use graphc_ir::graph::{Graph, Node};
use graphc_ir::op::Op;
use graphc_ir::ops::Concat;
use graphc_plan::{Accumulation, CompileOptions, TensorKind};

use crate::decisions::{Phase, Rated, TrainingGraph, ValueRate};
use crate::passes::error::PassError;
use crate::passes::rates::assign_rates;
use crate::passes::views::{Purpose, rewrite_views};

use slices::free_slices;

const PASS: &str = "batch_first";

/// The part of a graph that can be computed from parts of the batch, from little to much.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum BatchCut {
    Nothing,
    /// The forward pass; gradients of matrices merge samples with what stands before them.
    Forward,
    All,
}

/// Rewrites the graph with samples along a dim of their own, if it can be split along the batch only so. Otherwise it stays as it is.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(crate) fn batch_first(graph: Graph, options: &CompileOptions) -> Result<Graph, PassError> {
    let moves = graph.nodes.iter().any(|node| match &node.op {
        Op::Input(input) => input.samples_dim().is_some_and(|dim| dim > 0),
        // Samples of several inputs behind each other are merged, too.
        Op::Transpose(_) | Op::Concat(Concat { axis: 0 }) => true,
        // So are those of which some rows are taken.
        Op::Slice(slice) => {
            let extent = graph.value(node.operands[0]).ty.shape.first();
            extent.is_some_and(|&extent| {
                (slice.starts[0], slice.ends[0], slice.steps[0]) != (0, extent, 1)
            })
        }
        _ => false,
    });
    let Some(parts) = moves.then(|| find_batch_parts(&graph)).flatten() else { return Ok(graph) };
    let wanted = if options.differentiates_loss() { BatchCut::All } else { BatchCut::Forward };
    let as_written = find_batch_cut(&graph, parts);
    if as_written >= wanted {
        return Ok(graph);
    }
    let op_error = |error| PassError::Op { pass: PASS, error };
    let rewritten = rewrite_views(&graph, options, Purpose::Samples).map_err(op_error)?;
    let found = find_batch_cut(&rewritten, parts);
    if found < wanted
        && let Some(freed) = free_slices(&graph, options).map_err(op_error)?
    {
        let moved = rewrite_views(&freed, options, Purpose::Samples).map_err(op_error)?;
        for better in [freed, moved] {
            if find_batch_cut(&better, parts) > found.max(as_written) {
                return Ok(better);
            }
        }
    }
    Ok(if found > as_written { rewritten } else { graph })
}

/// The least number of parts that the batch can be cut in: a divisor of the samples of every input.
fn find_batch_parts(graph: &Graph) -> Option<usize> {
    let extents = graph.nodes.iter().filter_map(|node| match &node.op {
        Op::Input(input) => input.batch_size(),
        _ => None,
    });
    let extents: Vec<usize> = extents.collect();
    let least = extents.iter().copied().min()?;
    (2..=least).find(|&parts| extents.iter().all(|extent| extent.is_multiple_of(parts)))
}

/// Tells what of a forward graph can be computed from parts of the batch: batch normalization, whose sums can, as it
/// will be.
fn find_batch_cut(graph: &Graph, parts: usize) -> BatchCut {
    let norm = |node: &Node| matches!(node.op, Op::BatchNormTraining(_));
    let Ok(graph) = decompose_graph(graph, norm) else { return BatchCut::Nothing };
    let forward = TrainingGraph {
        phases: vec![Phase::Forward; graph.nodes.len()],
        kinds: vec![TensorKind::Activation; graph.values.len()],
        loss: None,
        gradients: Vec::new(),
        graph,
    };
    match assign_rates(forward, parts, Accumulation::F32) {
        Err(_) => BatchCut::Nothing,
        Ok(rated) if merges_samples(&rated) => BatchCut::Forward,
        Ok(_) => BatchCut::All,
    }
}

/// Whether a matrix is multiplied with samples behind another dim: its gradient takes all dims but the last as one.
/// Dims of extent 1, as a state of one layer has before its samples, merge with nothing.
fn merges_samples(rated: &Rated) -> bool {
    let graph = &rated.training.graph;
    graph.nodes.iter().any(|node| {
        let shape = |operand: usize| &graph.value(node.operands[operand]).ty.shape;
        matches!(node.op, Op::MatMul(_))
            && shape(1).len() == 2
            && matches!(rated.rates.values[node.operands[0].index()],
                ValueRate::Microbatch { dim } if dim + 1 < shape(0).len() && shape(0)[..dim].iter().any(|&extent| extent > 1))
    })
}

#[cfg(test)]
mod tests;
