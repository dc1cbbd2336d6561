//! Puts dropout and batch normalization in the mode of the job, training or inference.
//!
//! In training, dropout drops, and batch normalization becomes the op that normalizes by the statistics of the batch.
//! In inference, dropout passes everything on, and batch normalization is taken apart, on its given statistics.

use graphc_ir::decompose::batch_norms_in_mode;
use graphc_ir::graph::{Graph, Node, Output};
use graphc_ir::ids::ValueId;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::DropoutOp;
use graphc_ir::scalar::Scalar;
use graphc_plan::CompileOptions;

use super::statistics::{check_statistics, keeps_statistics};
use crate::passes::error::PassError;
use crate::passes::rates;

const PASS: &str = "training_mode";

/// Puts dropout and batch normalization in the mode of the options. In training, dropout drops, and batch normalization uses the statistics of each
/// microbatch, over all ranks, which running statistics take in. In inference, dropout passes everything on. There, and where statistics are to be
/// kept, batch normalization is taken apart and uses the statistics that are given. Inference leaves variables as they are: what updates them is left
/// out.
///
/// # Errors
/// Returns an error if microbatches do not divide the batch that is normalized, or statistics of a batch make no sense.
pub(crate) fn set_mode(graph: Graph, options: &CompileOptions) -> Result<Graph, PassError> {
    let training = options.trains_variables();
    let failed = |error| PassError::Op { pass: PASS, error };
    let mut graph = if training { graph } else { without_blends(graph).map_err(failed)? };
    for node in &mut graph.nodes {
        if let Some(dropout) = dropout_mut(&mut node.op) {
            dropout.training = training;
        }
    }
    if !graph.nodes.iter().any(|node| matches!(node.op, Op::BatchNorm(_))) {
        return Ok(graph);
    }
    check_inputs_divide(&graph, options.microbatches)?;
    if training {
        check_statistics(&graph, options)?;
    }
    let batches = if training { options.microbatches } else { 0 };
    let is_kept = |node: &Node| keeps_statistics(&graph, node, options);
    batch_norms_in_mode(&graph, batches, is_kept).map_err(failed)
}

/// Returns the graph as `Module.eval()` leaves a model, whatever is done with it: what `--keep-eval` does to a file. Batch normalization uses the
/// statistics that it is given, which stay as they are, and dropout drops nothing.
///
/// # Errors
/// Returns an error if the graph holds an op that does not take its operands.
pub fn keep_eval(graph: &Graph) -> Result<Graph, PassError> {
    let failed = |error| PassError::Op { pass: PASS, error };
    let mut graph = batch_norms_in_mode(graph, 0, |_| true).map_err(failed)?;
    for node in &mut graph.nodes {
        if let Some(dropout) = dropout_mut(&mut node.op) {
            dropout.probability = Scalar(0.0);
        }
    }
    Ok(graph)
}

/// Returns the dropout that an op is or does, if any.
fn dropout_mut(op: &mut Op) -> Option<&mut DropoutOp> {
    match op {
        Op::Dropout(dropout) => Some(dropout),
        Op::Attention(attention) => attention.dropout.as_mut(),
        _ => None,
    }
}

/// Removes updates of states. Readers of a new state read the state itself.
fn without_blends(graph: Graph) -> Result<Graph, OpError> {
    if !graph.nodes.iter().any(|node| matches!(node.op, Op::Blend(_))) {
        return Ok(graph);
    }
    let mut result = Graph { stages: graph.stages.clone(), ..Graph::new(graph.name.clone()) };
    let mut values: Vec<ValueId> = Vec::with_capacity(graph.values.len());
    for node in &graph.nodes {
        let operands: Vec<ValueId> = node.operands.iter().map(|v| values[v.index()]).collect();
        if let Op::Blend(_) = node.op {
            values.push(operands[0]);
            continue;
        }
        let made = result.push_like(node.op.clone(), operands, node)?;
        for (&old, new) in node.results.iter().zip(made) {
            let value = &mut result.values[new.index()];
            value.name.clone_from(&graph.value(old).name);
            value.pin.clone_from(&graph.value(old).pin);
            values.push(new);
        }
    }
    let output = |o: &Output| Output { name: o.name.clone(), value: values[o.value.index()] };
    result.outputs = graph.outputs.iter().map(output).collect();
    Ok(result)
}

/// Checks that the microbatches divide every input.
fn check_inputs_divide(graph: &Graph, microbatches: usize) -> Result<(), PassError> {
    for node in &graph.nodes {
        let Op::Input(input) = &node.op else { continue };
        rates::check_input_divides(input, microbatches)?;
    }
    Ok(())
}
