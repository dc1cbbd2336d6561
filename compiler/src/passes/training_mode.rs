//! Puts the ops that behave otherwise in training in the mode of the job.

use graphc_ir::decompose::decompose;
use graphc_ir::graph::Graph;
use graphc_ir::op::Op;
use graphc_ir::plan::CompileOptions;

use crate::error::CompileError;

const PASS: &str = "training_mode";

/// The graph with dropout that drops in training, and passes everything on in inference, and with batch normalization in
/// parts: by the statistics of each microbatch, over all ranks, in training, by those that are given in inference.
///
/// # Errors
/// Where microbatches do not divide the batch that is normalized.
pub fn set_mode(mut graph: Graph, options: &CompileOptions) -> Result<Graph, CompileError> {
    let training = options.differentiates();
    for node in &mut graph.nodes {
        match &mut node.op {
            Op::Dropout(dropout) => dropout.training = training,
            Op::BatchNorm(norm) if training => norm.batches = options.microbatches,
            _ => {}
        }
    }
    if !graph.nodes.iter().any(|node| matches!(node.op, Op::BatchNorm(_))) {
        return Ok(graph);
    }
    divides(&graph, options.microbatches)?;
    let parts = decompose(&graph, |node| matches!(node.op, Op::BatchNorm(_)));
    parts.map_err(|error| CompileError::Op { pass: PASS, error })
}

/// Checks that the microbatches divide every input.
fn divides(graph: &Graph, microbatches: usize) -> Result<(), CompileError> {
    for node in &graph.nodes {
        let Op::Input(input) = &node.op else { continue };
        let Some(&extent) = input.ty.shape.first() else { continue };
        if microbatches > 0 && !extent.is_multiple_of(microbatches) {
            let input = input.name.clone();
            return Err(CompileError::Microbatches { input, extent, microbatches });
        }
    }
    Ok(())
}
