//! Attaches a loss to the first output.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::graph::{Graph, Output};
use graphc_ir::plan::{CompileOptions, Loss};
use graphc_ir::types::{DType, TensorType};

use super::LOSS;
use crate::error::CompileError;

const PASS: &str = "loss";

/// The graph with its loss as the output `loss`, and with the input that the loss needs: `labels` (i64, all dims of
/// the scores but that of classes) or `target`. Classes are the last dim of scores of rank 2 and 3, dim 1 of those of
/// higher rank. Where no loss is asked for, the first output of a graph that trains is the loss.
///
/// # Errors
/// Where the first output does not fit the loss, or a name is taken.
pub fn attach_loss(graph: Graph, options: &CompileOptions) -> Result<Graph, CompileError> {
    match options.loss {
        Some(loss) => attach(graph, loss),
        None if options.differentiates() => declare(graph),
        None => Ok(graph),
    }
}

/// Calls the first output the loss.
fn declare(mut graph: Graph) -> Result<Graph, CompileError> {
    let first = graph.outputs.first().ok_or(CompileError::NoOutput)?;
    let (output, value) = (first.name.clone(), first.value);
    let ty = &graph.value(value).ty;
    if !ty.shape.is_empty() || !ty.dtype.is_float() {
        return Err(CompileError::NotScalar { output, ty: ty.clone() });
    }
    if output != LOSS {
        if let Some(other) = super::output(&graph, LOSS).filter(|&other| other != value) {
            let source_of = graph.producer(other).source.clone();
            return Err(CompileError::NameTaken { pass: PASS, name: LOSS.into(), source_of });
        }
        graph.outputs.retain(|output| output.name != LOSS);
        graph.outputs.push(Output { name: LOSS.into(), value });
    }
    Ok(graph)
}

fn attach(graph: Graph, loss: Loss) -> Result<Graph, CompileError> {
    let first = graph.outputs.first().ok_or(CompileError::NoOutput)?;
    let (output, value) = (first.name.clone(), first.value);
    let ty = graph.value(value).ty.clone();
    let shape_error = |reason: &str| {
        let (loss, output, ty, reason) = (name(loss), output.clone(), ty.clone(), reason.into());
        Err(CompileError::LossShape { loss, output, ty, reason })
    };
    if !ty.dtype.is_float() {
        return shape_error("it needs floating-point numbers");
    }
    let classes = matches!(loss, Loss::CrossEntropy | Loss::Nll);
    if classes && ty.shape.len() < 2 {
        return shape_error("it needs a dim of samples and a dim of classes");
    }
    name_is_free(PASS, &graph, LOSS)?;
    match loss {
        Loss::CrossEntropy | Loss::Nll => name_is_free(PASS, &graph, "labels")?,
        Loss::Mse => name_is_free(PASS, &graph, "target")?,
        Loss::Sum => {}
    }
    let builder = GraphBuilder::extend(graph);
    let scalar = build(&builder, loss, &builder.tensor(value), &ty);
    let named = if scalar.id() == Some(value) { scalar } else { scalar.named(LOSS) };
    builder.output(LOSS, &named);
    builder.finish().map_err(|errors| CompileError::Build { pass: PASS, errors })
}

fn build(builder: &GraphBuilder, loss: Loss, output: &Tensor, ty: &TensorType) -> Tensor {
    match loss {
        Loss::CrossEntropy | Loss::Nll => {
            let scores = classes_last(output, ty.shape.len());
            let mut shape = scores.shape();
            shape.pop();
            let labels = builder.input("labels", DType::I64, shape);
            if loss == Loss::Nll { scores.nll(&labels) } else { scores.cross_entropy(&labels) }
        }
        Loss::Mse => output.mse(&builder.input("target", ty.dtype, ty.shape.clone())),
        Loss::Sum if ty.shape.is_empty() => output.clone(),
        Loss::Sum => output.sum(&(0..ty.shape.len()).collect::<Vec<_>>(), false),
    }
}

/// `[N, C, H, W]` as `[N, H, W, C]`; of rank 2 and 3 the last dim is that of classes already.
fn classes_last(scores: &Tensor, rank: usize) -> Tensor {
    if rank < 4 {
        return scores.clone();
    }
    let permutation: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
    scores.transpose(&permutation)
}

fn name(loss: Loss) -> &'static str {
    match loss {
        Loss::CrossEntropy => "cross_entropy",
        Loss::Nll => "nll",
        Loss::Mse => "mse",
        Loss::Sum => "sum",
    }
}

/// Checks that no value and no output has a name.
pub(super) fn name_is_free(
    pass: &'static str,
    graph: &Graph,
    name: &str,
) -> Result<(), CompileError> {
    let output = graph.outputs.iter().find(|output| output.name == name);
    let Some(value) = graph.find(name).or(output.map(|output| output.value)) else {
        return Ok(());
    };
    let source_of = graph.producer(value).source.clone();
    Err(CompileError::NameTaken { pass, name: name.into(), source_of })
}
