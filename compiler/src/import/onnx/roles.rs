//! Which initializers are trained, by what the model says and how it uses them.

use std::collections::{BTreeMap, BTreeSet};

use rten_onnx::onnx::{GraphProto, NodeProto};

use super::wire::Kinds;
use crate::import::weights::WeightTensor;

/// The names of the initializers that are trained, and what the user should know of them.
///
/// With metadata: those that it marks PARAMETER, and unmarked floats that a matmul, convolution or gather takes as its
/// weight, because the exporter's optimizer folds and renames weights. Without: every float of rank 1 or more but the
/// running statistics of batch norm.
pub(super) fn roles(
    graph: &GraphProto,
    kinds: &Kinds,
    tensors: &BTreeMap<String, WeightTensor>,
) -> (BTreeSet<String>, Vec<String>) {
    let floats = tensors.iter().filter(|(_, tensor)| tensor.dtype.is_float());
    if !tensors.keys().any(|name| kinds.contains_key(name)) {
        let statistics = statistics(graph);
        let trained =
            floats.filter(|(name, t)| !t.shape.is_empty() && !statistics.contains(name.as_str()));
        return (trained.map(|(name, _)| name.clone()).collect(), Vec::new());
    }
    let used = weights(graph);
    let mut trained = BTreeSet::new();
    let mut warnings = Vec::new();
    for (name, tensor) in floats {
        let kind = kinds.get(name).map(String::as_str);
        let op = used.get(name.as_str()).filter(|_| kind.is_none() && !tensor.shape.is_empty());
        if let Some(op) = op {
            warnings.push(format!(
                "`{name}` is trained because a {op} takes it as its weight: the model does not mark it"
            ));
        }
        if kind == Some("PARAMETER") || op.is_some() {
            trained.insert(name.clone());
        }
    }
    (trained, warnings)
}

/// Running means and variances of batch norm.
fn statistics(graph: &GraphProto) -> BTreeSet<&str> {
    let norms =
        graph.node.iter().filter(|node| node.op_type.as_deref() == Some("BatchNormalization"));
    norms.flat_map(|node| node.input.iter().skip(3).take(2)).map(String::as_str).collect()
}

/// What an op takes as its weight, directly or through a change of form, with the type of the op.
fn weights(graph: &GraphProto) -> BTreeMap<&str, &str> {
    let mut sources: BTreeMap<&str, &str> = BTreeMap::new();
    for node in &graph.node {
        let forms = ["Transpose", "Identity", "Reshape", "Cast", "Squeeze", "Unsqueeze"];
        if forms.iter().any(|&form| node.op_type.as_deref() == Some(form))
            && let (Some(input), Some(output)) = (node.input.first(), node.output.first())
        {
            sources.insert(output, input);
        }
    }
    let mut weights = BTreeMap::new();
    for node in &graph.node {
        for mut name in weight_operands(node) {
            // A damaged file may go in circles.
            for _ in 0..16 {
                name = sources.get(name).copied().unwrap_or(name);
            }
            weights.entry(name).or_insert(node.op_type.as_deref().unwrap_or(""));
        }
    }
    weights
}

fn weight_operands(node: &NodeProto) -> impl Iterator<Item = &str> {
    let positions: &[usize] = match node.op_type.as_deref() {
        Some("MatMul" | "Einsum") => &[0, 1],
        Some("Gemm" | "Conv" | "ConvTranspose") => &[1],
        Some("Gather") => &[0],
        Some("LSTM" | "GRU" | "RNN") => &[1, 2, 3],
        _ => &[],
    };
    positions.iter().filter_map(|&position| node.input.get(position)).map(String::as_str)
}
