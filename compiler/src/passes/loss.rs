//! Attaches a loss to the first output, and the metrics that are computed beside it.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::graph::{Graph, Output};
use graphc_ir::ops::Input;
use graphc_ir::types::{DType, Samples, TensorType};
use graphc_plan::{CompileOptions, Loss, Metric, ROW_LOSSES, SAMPLES};

use super::fetched::keep_fetched;
use super::samples::{rows_of_sample, samples_of};
use super::wanted::hold_places;
use super::{LOSS, name_is_free};
use crate::passes::error::PassError;

const PASS: &str = "loss";

/// Adds the loss as the output `loss`, and the input that it needs: `labels` (i64, all dims of the scores but that of classes) or `target`. Where
/// a sample has several rows of the output, as in scores `[batch * time, classes]`, they are `[batch, time]` in that input. Classes
/// are the last dim of scores of rank 2 and 3, and dim 1 of those of higher rank. If no loss is asked for, the first output of a graph that trains is
/// the loss. Metrics become outputs of their names. Other outputs stay if they are asked for ([`CompileOptions::fetch`]). Tensors
/// whose gradients are asked for become outputs, in whose place gradients come later.
///
/// # Errors
/// Returns an error if the first output does not fit the loss, the loss does not fit the options, a name is taken, or an output or a gradient is
/// asked for that the graph lacks.
pub fn attach_loss(graph: Graph, options: &CompileOptions) -> Result<Graph, PassError> {
    check_options(options)?;
    let own: Vec<String> = graph.outputs.iter().map(|output| output.name.clone()).collect();
    let graph = match options.loss {
        Some(loss) => append_loss(graph, loss, options)?,
        None if options.differentiates_loss() => declare_loss(graph)?,
        None => graph,
    };
    hold_places(keep_fetched(graph, &own, options)?, options)
}

/// Moves an output before all others, so that a training without a loss of graphc's own minimises it. If it has several numbers, their mean takes its
/// place.
///
/// # Errors
/// Returns an error if there is no such output, or it holds no floating-point numbers.
pub fn loss_first(mut graph: Graph, name: &str) -> Result<Graph, PassError> {
    let Some(at) = graph.outputs.iter().position(|output| output.name == name) else {
        let outputs = graph.outputs.iter().map(|output| output.name.clone()).collect();
        return Err(PassError::LossUnknown { name: name.into(), outputs });
    };
    let first = graph.outputs.remove(at);
    let ty = graph.value(first.value).ty.clone();
    if !ty.dtype.is_float() {
        return Err(PassError::NotScalar { output: name.into(), ty });
    }
    if ty.shape.is_empty() {
        graph.outputs.insert(0, first);
        return Ok(graph);
    }
    let builder = GraphBuilder::from_graph(graph);
    let all: Vec<usize> = (0..ty.shape.len()).collect();
    builder.output(name, &builder.tensor(first.value).mean(&all, false));
    let mut graph = builder.finish().map_err(|errors| PassError::Build { pass: PASS, errors })?;
    graph.outputs.rotate_right(1);
    Ok(graph)
}

/// Checks that the loss has what the options ask of it.
fn check_options(options: &CompileOptions) -> Result<(), PassError> {
    let (value, loss) = (options.label_smoothing, options.loss.map(Loss::name));
    if !(0.0..=1.0).contains(&value) {
        let (what, expected) = ("the share of label smoothing", "from 0 to 1");
        return Err(PassError::Number { what, value, expected });
    }
    if value != 0.0 && options.loss != Some(Loss::CrossEntropy) {
        let (what, expected) = ("label smoothing", "cross_entropy");
        return Err(PassError::NeedsLabels { what, expected, loss });
    }
    match options.metrics.first() {
        Some(metric) if !options.loss.is_some_and(Loss::has_labels) => {
            let (what, expected) = (metric.name(), "cross_entropy or nll");
            Err(PassError::NeedsLabels { what, expected, loss })
        }
        _ => Ok(()),
    }
}

/// Calls the first output the loss, as a training without a loss of graphc's own does.
///
/// # Errors
/// Returns an error if there is no output, the first is no number, or another output has the name `loss`.
pub fn declare_loss(mut graph: Graph) -> Result<Graph, PassError> {
    let first = graph.outputs.first().ok_or(PassError::NoOutput)?;
    let (output, value) = (first.name.clone(), first.value);
    let ty = &graph.value(value).ty;
    if !ty.shape.is_empty() || !ty.dtype.is_float() {
        return Err(PassError::NotScalar { output, ty: ty.clone() });
    }
    if output != LOSS {
        if let Some(other) = super::find_output(&graph, LOSS).filter(|&other| other != value) {
            let source_of = graph.producer(other).source.clone();
            return Err(PassError::NameTaken { pass: PASS, name: LOSS.into(), source_of });
        }
        graph.outputs.retain(|output| output.name != LOSS);
        graph.outputs.push(Output { name: LOSS.into(), value });
    }
    Ok(graph)
}

fn append_loss(graph: Graph, loss: Loss, options: &CompileOptions) -> Result<Graph, PassError> {
    let first = graph.outputs.first().ok_or(PassError::NoOutput)?;
    let (output, value) = (first.name.clone(), first.value);
    let ty = graph.value(value).ty.clone();
    let shape_error = |reason: &str| {
        let (loss, output, ty, reason) = (loss.name(), output.clone(), ty.clone(), reason.into());
        Err(PassError::LossShape { loss, output, ty, reason })
    };
    if !ty.dtype.is_float() {
        return shape_error("it needs floating-point numbers");
    }
    if loss.has_labels() && ty.shape.len() < 2 {
        return shape_error("it needs a dim of samples and a dim of classes");
    }
    let metrics = options.metrics.iter().map(|metric| metric.name());
    let counts = metrics.chain((!options.metrics.is_empty()).then_some(SAMPLES));
    let each = has_rows(loss, options).then_some(ROW_LOSSES);
    for name in [LOSS].into_iter().chain(counts).chain(input_of(loss)).chain(each) {
        name_is_free(PASS, &graph, name)?;
    }
    // Labels and targets are samples, whatever is known of the output.
    let samples = match samples_of(&graph, &[value])[0] {
        Samples::Dim(dim) => Samples::Dim(dim),
        Samples::First | Samples::Whole => Samples::First,
    };
    let rows = rows_of_sample(&graph, value);
    let builder = GraphBuilder::from_graph(graph);
    let output = builder.tensor(value);
    match loss.has_labels() {
        true => {
            let (scores, labels) = add_labels(&builder, &output, (samples, rows));
            let scalar = match loss {
                Loss::Nll => scores.nll(&labels),
                _ => scores.smoothed_cross_entropy(&labels, options.label_smoothing),
            };
            builder.output(LOSS, &scalar.named(LOSS));
            add_metrics(&builder, &scores, &labels, options);
        }
        false => {
            let scalar = of_target(&builder, &split_rows(&output, rows), loss, options, samples);
            let named = if scalar.id() == Some(value) { scalar } else { scalar.named(LOSS) };
            builder.output(LOSS, &named);
        }
    }
    builder.finish().map_err(|errors| PassError::Build { pass: PASS, errors })
}

/// The input that a loss adds to the graph.
fn input_of(loss: Loss) -> Option<&'static str> {
    match loss {
        Loss::CrossEntropy | Loss::Nll => Some("labels"),
        Loss::Mse | Loss::Bce | Loss::Huber | Loss::L1 => Some("target"),
        Loss::Sum => None,
    }
}

/// Scores with classes last, and the input of their labels, whose samples lie along the dim of the output's.
fn add_labels(
    builder: &GraphBuilder,
    output: &Tensor,
    (samples, rows): (Samples, Option<usize>),
) -> (Tensor, Tensor) {
    let rank = output.shape().len();
    let scores = split_rows(&classes_last(output, rank), rows);
    let mut shape = scores.shape();
    shape.pop();
    let moved = |dim: usize| order_with_classes_last(rank).iter().position(|&from| from == dim);
    let samples = match samples {
        Samples::Dim(dim) => {
            moved(dim).filter(|&dim| dim < shape.len()).map_or(Samples::First, Samples::along_dim)
        }
        first => first,
    };
    let labels = Input { samples, ..Input::new("labels", TensorType::new(DType::I64, shape)) };
    (scores, builder.input_of(labels))
}

/// Gives the rows of a sample a dim of their own: `[batch * rows, ..]` becomes `[batch, rows, ..]`.
fn split_rows(tensor: &Tensor, rows: Option<usize>) -> Tensor {
    let Some(rows) = rows else { return tensor.clone() };
    let shape = tensor.shape();
    tensor.reshape(&[&[shape[0] / rows, rows], &shape[1..]].concat())
}

/// Metrics as outputs.
fn add_metrics(builder: &GraphBuilder, scores: &Tensor, labels: &Tensor, options: &CompileOptions) {
    for metric in &options.metrics {
        let k = match metric {
            Metric::Top1 => 1,
            Metric::Top5 => 5,
        };
        builder.output(metric.name(), &scores.top(labels, k).named(metric.name()));
    }
    if !options.metrics.is_empty() {
        builder.output(SAMPLES, &labels.count_labels().named(SAMPLES));
    }
}

/// Whether the losses of rows are asked for, and the loss has some.
fn has_rows(loss: Loss, options: &CompileOptions) -> bool {
    options.row_losses && input_of(loss) == Some("target")
}

/// The loss of an output and what it should be.
fn of_target(
    builder: &GraphBuilder,
    output: &Tensor,
    loss: Loss,
    options: &CompileOptions,
    samples: Samples,
) -> Tensor {
    let ty = output.ty();
    let target = || builder.input_of(Input { samples, ..Input::new("target", ty.clone()) });
    let all: Vec<usize> = (0..ty.shape.len()).collect();
    let errors = match loss {
        Loss::Mse => output.squared_errors(&target()),
        Loss::Bce => output.bce_errors(&target()),
        Loss::Huber => output.huber_errors(&target()),
        Loss::L1 => output.absolute_errors(&target()),
        _ if ty.shape.is_empty() => return output.clone(),
        _ => return output.sum(&all, false),
    };
    if let (true, Some(row)) = (has_rows(loss, options), samples.dim(all.len())) {
        let others: Vec<usize> = all.iter().copied().filter(|&dim| dim != row).collect();
        let rows = if others.is_empty() { errors.clone() } else { errors.mean(&others, false) };
        builder.output(ROW_LOSSES, &rows.named(ROW_LOSSES));
    }
    errors.mean(&all, false)
}

/// Permutes `[N, C, H, W]` to `[N, H, W, C]`. With rank 2 and 3 the last dim is that of classes already.
fn classes_last(scores: &Tensor, rank: usize) -> Tensor {
    if rank < 4 {
        return scores.clone();
    }
    scores.transpose(&order_with_classes_last(rank))
}

/// Returns the permutation that puts classes last, which gives for each dim the one that it was.
fn order_with_classes_last(rank: usize) -> Vec<usize> {
    match rank {
        0..4 => (0..rank).collect(),
        _ => [0].into_iter().chain(2..rank).chain([1]).collect(),
    }
}
