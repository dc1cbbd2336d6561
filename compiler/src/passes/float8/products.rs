//! The products that are computed in 8 bits.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::Op;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::Float8Recipe;

use super::moved_source;
use crate::decisions::{Phase, TrainingGraph, variable_of};

/// The number of elements of which rows and columns are multiples.
const TILE: usize = 16;

/// A product that is computed in 8 bits.
#[derive(Clone, Copy)]
pub(super) struct Float8Product {
    /// The types of both factors, of a recipe that has two.
    pub dtypes: [DType; 2],
    /// Whether the second factor is a weight; otherwise the product is the gradient of one.
    pub of_weight: bool,
}

/// Returns the products that a recipe computes in 8 bits, by their nodes.
pub(super) fn find_products(
    training: &TrainingGraph,
    recipe: Float8Recipe,
) -> BTreeMap<NodeId, Float8Product> {
    let graph = &training.graph;
    let scores = find_score_weights(graph);
    let mut found = BTreeMap::new();
    let mut multiplied = Multiplied::new();
    for (id, node) in graph.iter() {
        let backward = training.phases[id.index()] == Phase::Backward;
        let of_rows = if backward { DType::F8E5M2 } else { DType::F8E4M3 };
        if multiplies_weight(graph, node, &scores) {
            let dtypes = [of_rows, DType::F8E4M3];
            found.insert(id, Float8Product { dtypes, of_weight: true });
            if !backward {
                let [rows, weight] = [0, 1].map(|place| node.operands[place]);
                let shapes = multiplied.entry(unmoved(graph, rows)).or_default();
                shapes.insert(graph.value(weight).ty.shape.clone());
            }
        }
        if recipe == Float8Recipe::Tensorwise && backward {
            found.extend(find_weight_gradient(graph, node, &multiplied).map(|found| (id, found)));
        }
    }
    found
}

/// Activations that are multiplied with weights in 8 bits, with the shapes of the weights.
type Multiplied = BTreeMap<ValueId, BTreeSet<Vec<usize>>>;

/// Returns the product of an activation with a gradient that is the gradient of a weight: it has the shape of one with which that activation was multiplied.
fn find_weight_gradient(
    graph: &Graph,
    node: &Node,
    multiplied: &Multiplied,
) -> Option<Float8Product> {
    let of_rows = match node.op {
        Op::MatMul(op) => op.transpose_a && !op.transpose_b,
        Op::GroupedMatMulGrad(_) => true,
        _ => false,
    };
    if !of_rows {
        return None;
    }
    let shape = &graph.value(node.results[0]).ty.shape;
    let is_activation = |place: usize| {
        let shapes = multiplied.get(&unmoved(graph, node.operands[place]));
        shapes.is_some_and(|shapes| shapes.contains(shape))
    };
    let dtypes = match [is_activation(0), is_activation(1)] {
        [true, _] => [DType::F8E4M3, DType::F8E5M2],
        [_, true] => [DType::F8E5M2, DType::F8E4M3],
        [false, false] => return None,
    };
    let is_tiled = |value: ValueId| {
        // Places are as many as the tokens that chose an expert, which nobody knows before.
        let known = if matches!(node.op, Op::MatMul(_)) { 2 } else { 1 };
        has_tiles(&graph.value(value).ty, known)
    };
    let is_made = |value: ValueId| variable_of(graph, value).is_none();
    let fits = node.operands[..2].iter().all(|&value| is_tiled(value) && is_made(value));
    fits.then_some(Float8Product { dtypes, of_weight: false })
}

/// Whether elements are of bf16, and the last extents, so many of them, are multiples of a tile's.
fn has_tiles(ty: &TensorType, last: usize) -> bool {
    let tiled = || ty.shape.iter().rev().take(last).all(|extent| extent.is_multiple_of(TILE));
    ty.dtype == DType::BF16 && tiled()
}

/// Returns the tensor that a value is before it was moved.
fn unmoved(graph: &Graph, value: ValueId) -> ValueId {
    moved_source(graph, value).map_or(value, |source| unmoved(graph, source))
}

/// Returns the weights of products that give scores: what the loss or the user reads, at most cast, moved or with a bias.
fn find_score_weights(graph: &Graph) -> BTreeSet<ValueId> {
    let of_losses = graph.nodes.iter().filter_map(|node| match node.op {
        Op::CrossEntropy(_) | Op::Pick(_) => Some(node.operands[0]),
        _ => None,
    });
    let scores = of_losses.chain(graph.outputs.iter().map(|output| output.value));
    scores.filter_map(|value| score_weight(graph, value)).collect()
}

fn score_weight(graph: &Graph, value: ValueId) -> Option<ValueId> {
    let node = graph.producer(value);
    match &node.op {
        Op::MatMul(_) => variable_of(graph, node.operands[1]),
        Op::Cast(_) | Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) | Op::Binary(_) => {
            score_weight(graph, node.operands[0])
        }
        _ => None,
    }
}

/// Whether a node multiplies rows of bf16 with a weight, or places with the matrices of experts, and is to do so in 8 bits.
fn multiplies_weight(graph: &Graph, node: &Node, scores: &BTreeSet<ValueId>) -> bool {
    let of_rows = match node.op {
        Op::MatMul(op) => !op.transpose_a,
        Op::GroupedMatMul(_) => true,
        _ => false,
    };
    if !of_rows || variable_of(graph, node.operands[0]).is_some() {
        return false;
    }
    let [rows, weight] = [0, 1].map(|place| &graph.value(node.operands[place]).ty);
    let dims = if matches!(node.op, Op::MatMul(_)) { 2 } else { 3 };
    let fits = weight.shape.len() == dims && has_tiles(weight, 2) && rows.dtype == DType::BF16;
    fits && variable_of(graph, node.operands[1]).is_some_and(|weight| !scores.contains(&weight))
}
