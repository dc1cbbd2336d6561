//! Finds the dim of each value that counts samples, by following those of the inputs from op to op.
//!
//! An input names its dim. For an op, the signature that takes its operands cut along their samples says along which
//! dim its results are cut. That is the rule by which microbatches are cut (`rates`). What the rule cannot tell goes
//! by extents.

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::sbp::Sbp;
use graphc_ir::types::Samples;

/// The samples of a value, as far as they are known.
#[derive(Clone, Copy, PartialEq)]
enum KnownSamples {
    /// It holds no samples, or sums over them.
    Whole,
    /// This dim counts samples.
    Along(usize),
    /// It holds samples in another order than along a dim.
    Mixed,
}

/// Returns the dim of each value that counts samples.
pub fn samples_of(graph: &Graph, values: &[ValueId]) -> Vec<Samples> {
    let Some(batch) = graph.nodes.iter().find_map(batch_of) else {
        return vec![Samples::Whole; values.len()];
    };
    let parts = common_batch(graph);
    let mut known = vec![KnownSamples::Whole; graph.values.len()];
    for (_, node) in graph.iter() {
        let results = result_samples(graph, node, parts, &known);
        for (value, result) in node.results.iter().zip(results) {
            known[value.index()] = result;
        }
    }
    values
        .iter()
        .map(|&value| resolve_samples(known[value.index()], &graph.value(value).ty.shape, batch))
        .collect()
}

/// Returns the greatest common divisor of the samples of all inputs.
pub(crate) fn common_batch(graph: &Graph) -> usize {
    graph.nodes.iter().filter_map(batch_of).fold(0, greatest_common_divisor).max(1)
}

/// Returns the rows of a value that each sample has in turn, where they lie along the dim of samples: 16 in `[batch * 16, classes]`. It is
/// `None` where a sample has one row, or where inputs differ in the number of samples.
pub(crate) fn rows_of_sample(graph: &Graph, value: ValueId) -> Option<usize> {
    let mut batches = graph.nodes.iter().filter_map(batch_of);
    let batch = batches.next()?;
    let is_batch_first = samples_of(graph, &[value])[0] == Samples::First;
    let rows = *graph.value(value).ty.shape.first()?;
    let divides = batch > 0 && rows > batch && rows.is_multiple_of(batch);
    (is_batch_first && divides && batches.all(|other| other == batch)).then(|| rows / batch)
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

fn batch_of(node: &Node) -> Option<usize> {
    match &node.op {
        Op::Input(input) => input.batch_size(),
        _ => None,
    }
}

/// Determines the samples of the results of a node, where samples are split into so many parts.
fn result_samples(
    graph: &Graph,
    node: &Node,
    parts: usize,
    known: &[KnownSamples],
) -> Vec<KnownSamples> {
    if let Op::Input(input) = &node.op {
        return vec![input.samples_dim().map_or(KnownSamples::Whole, KnownSamples::Along)];
    }
    let operands: Vec<KnownSamples> =
        node.operands.iter().map(|operand| known[operand.index()]).collect();
    let all = |known: KnownSamples| vec![known; node.results.len()];
    if operands.iter().all(|&operand| operand == KnownSamples::Whole) {
        return all(KnownSamples::Whole);
    }
    let rule = node.op.operation().rule(&graph.operand_types(node));
    let signatures = rule.map(|rule| rule.signatures(&[parts])).unwrap_or_default();
    let fits = signatures.iter().filter_map(|signature| {
        let pairs = operands.iter().zip(&signature.operands);
        let cut: Option<Vec<bool>> =
            pairs.map(|(&operand, layout)| takes_layout(operand, layout.0[0])).collect();
        Some((signature, cut?.into_iter().filter(|&cut| cut).count()))
    });
    match fits.min_by_key(|&(_, cut)| cut) {
        Some((signature, _)) => {
            signature.results.iter().map(|layout| samples_from_layout(layout.0[0])).collect()
        }
        None => all(KnownSamples::Mixed),
    }
}

/// Whether an operand may lie so, and whether it is cut for it although it holds no samples.
fn takes_layout(operand: KnownSamples, layout: Sbp) -> Option<bool> {
    match (operand, layout) {
        (KnownSamples::Along(dim), Sbp::Split(split)) if dim == split => Some(false),
        (KnownSamples::Whole, Sbp::Broadcast) => Some(false),
        (KnownSamples::Whole, Sbp::Split(_)) => Some(true),
        _ => None,
    }
}

fn samples_from_layout(layout: Sbp) -> KnownSamples {
    match layout {
        Sbp::Split(dim) => KnownSamples::Along(dim),
        Sbp::Broadcast | Sbp::Partial(_) => KnownSamples::Whole,
    }
}

/// Finds the dim of samples where these are mixed: the first that has as many as there are samples, or the only one
/// that has.
fn resolve_samples(known: KnownSamples, shape: &[usize], batch: usize) -> Samples {
    let mut alike = (0..shape.len()).filter(|&dim| shape[dim] == batch);
    match known {
        KnownSamples::Along(dim) => Samples::along_dim(dim),
        KnownSamples::Whole => Samples::Whole,
        KnownSamples::Mixed => match (alike.next(), alike.next()) {
            (Some(0), _) => Samples::First,
            (Some(dim), None) => Samples::along_dim(dim),
            _ => Samples::Whole,
        },
    }
}

#[cfg(test)]
mod tests {
    use graphc_ir::builder::{GraphBuilder, Tensor};
    use graphc_ir::ops::Input;
    use graphc_ir::types::{DType, TensorType};

    use super::*;

    fn samples(build: impl Fn(&GraphBuilder) -> Vec<Tensor>) -> Vec<Samples> {
        let g = GraphBuilder::new("test");
        let values: Vec<ValueId> =
            build(&g).iter().map(|tensor| tensor.id().expect("it is a value")).collect();
        samples_of(&g.finish().expect("it fits"), &values)
    }

    fn input(g: &GraphBuilder, name: &str, shape: &[usize], samples: Samples) -> Tensor {
        g.input_of(Input { samples, ..Input::new(name, TensorType::new(DType::F32, shape)) })
    }

    #[test]
    fn samples_go_where_ops_take_them() {
        let found = samples(|g| {
            let x = input(g, "x", &[5, 4, 6], Samples::Dim(1));
            let table = input(g, "table", &[6, 3], Samples::Whole);
            let y = x.matmul(&table);
            let last = y.slice(0, 4..5).reshape(&[4, 3]);
            vec![y.clone(), y.transpose(&[1, 0, 2]), last, y.sum(&[0, 1, 2], false), table]
        });
        let expected =
            [Samples::Dim(1), Samples::First, Samples::First, Samples::Whole, Samples::Whole];
        assert_eq!(found, expected);
    }

    #[test]
    fn where_samples_are_mixed_extents_tell() {
        let found = samples(|g| {
            let x = input(g, "x", &[5, 4, 6], Samples::Dim(1));
            let mixed = x.reshape(&[20, 6]);
            vec![mixed.clone(), mixed.reshape(&[5, 4, 6]), mixed.reshape(&[6, 20])]
        });
        assert_eq!(found, [Samples::Whole, Samples::Dim(1), Samples::Whole]);
    }
}
