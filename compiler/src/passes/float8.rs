//! Products of numbers of 8 bits: the pass replaces products with weights, and their gradients by activations.
//!
//! The recipe is torchao's `rowwise_with_gw_hp` (`Float8LinearRecipeName` in `torchao/float8/config.py`). Each row of activations has a scale of its own, and so has
//! each row of their gradients. A weight has one for each output feature in the forward pass, and one in all where gradients go back through it.
//! Scales are the current ones: powers of two by which the greatest element fits f8e4m3 ([`graphc_ir::float8`]). Gradients of weights are products of
//! bf16.
//!
//! No scale depends on more than a row of a tensor, or on a weight. So a plan gives the same numbers on every mesh and with any number of microbatches,
//! and no rank waits for the scales of others, but where a row lies in parts.
//!
//! Left in bf16 are products whose extents are no multiples of 16, which tensor cores do not take, and those that give scores: what the loss reads, and
//! what the model gives as an output. Their rounding would be that of the result.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Movement, Op, OpError};
use graphc_ir::ops::{Binary, BinaryFunction, MatMul, Reduce, ReduceFunction};
use graphc_ir::plan::CompileOptions;
use graphc_ir::types::DType;

use super::rebuild::Rebuild;
use crate::decisions::{Phase, TrainingGraph};
use crate::passes::error::PassError;

const PASS: &str = "float8";

/// The number of elements of which rows and columns are multiples.
const TILE: usize = 16;

/// Replaces products where the options ask for numbers of 8 bits.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(crate) fn multiply_in_float8(
    training: TrainingGraph,
    options: &CompileOptions,
) -> Result<TrainingGraph, PassError> {
    if options.precision != Some(DType::F8E4M3) {
        return Ok(training);
    }
    let scores = find_score_weights(&training.graph);
    let mut pass = Quantizer { rebuild: Rebuild::new(&training), known: BTreeMap::new() };
    for (id, node) in training.graph.iter() {
        match find_product(&training.graph, node, &scores) {
            Some(op) => pass.replace_product(id, op),
            None => pass.rebuild.copy_node(id),
        }
        .map_err(|error| PassError::Op { pass: PASS, error })?;
    }
    Ok(pass.rebuild.finish())
}

/// Returns the value that a node rounds to 8 bits; `None` of other nodes.
pub(crate) fn quantized_source(node: &Node) -> Option<ValueId> {
    let rounds = matches!(&node.op, Op::Binary(op) if op.function == BinaryFunction::RoundFloat8);
    rounds.then(|| node.operands[0])
}

/// Returns the nodes that read a tensor to round it to 8 bits, of which the given one is the last: that which finds the greatest size, if it is of that
/// tensor, and the given one. `None` of other nodes.
pub(crate) fn find_rounding(graph: &Graph, id: NodeId) -> Option<Vec<NodeId>> {
    let node = graph.node(id);
    let source = quantized_source(node)?;
    let sought = graph.value(node.operands[1]).producer;
    let own =
        matches!(graph.node(sought).op, Op::Reduce(_)) && graph.node(sought).operands[0] == source;
    Some(own.then_some(sought).into_iter().chain([id]).collect())
}

/// Returns, for each node, whether it reads a tensor to round it to 8 bits.
pub(crate) fn quantizing_nodes(graph: &Graph) -> Vec<bool> {
    let mut all = vec![false; graph.nodes.len()];
    for rounding in graph.iter().filter_map(|(id, _)| find_rounding(graph, id)) {
        rounding.into_iter().for_each(|id| all[id.index()] = true);
    }
    all
}

/// Returns the variable that a value is, in whatever precision and order of dims.
fn variable_of(graph: &Graph, value: ValueId) -> Option<ValueId> {
    let node = graph.producer(value);
    match &node.op {
        Op::Variable(_) => Some(value),
        Op::Cast(_) => variable_of(graph, node.operands[0]),
        op if op.operation().movement() == Some(Movement::Rearranged) => {
            variable_of(graph, node.operands[0])
        }
        _ => None,
    }
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

/// Returns the op of a node that multiplies rows of bf16 with a weight, if it is to be of 8 bits.
fn find_product(graph: &Graph, node: &Node, scores: &BTreeSet<ValueId>) -> Option<MatMul> {
    let Op::MatMul(op) = node.op else { return None };
    let [rows, weight] = [0, 1].map(|place| &graph.value(node.operands[place]).ty);
    let halves = [rows, weight].iter().all(|ty| ty.dtype == DType::BF16);
    let fits = weight.shape.len() == 2 && weight.shape.iter().all(|n| n.is_multiple_of(TILE));
    if op.transpose_a || !halves || !fits || variable_of(graph, node.operands[0]).is_some() {
        return None;
    }
    let variable = variable_of(graph, node.operands[1])?;
    (!scores.contains(&variable)).then_some(op)
}

/// A tensor in 8 bits.
#[derive(Clone, Copy)]
struct Quantized {
    numbers: ValueId,
    /// The greatest sizes by which they were rounded, with the dims that were reduced.
    sizes: ValueId,
}

/// A tensor in 8 bits, and the node for which it was made.
#[derive(Clone, Copy)]
struct KnownTensor {
    like: NodeId,
    quantized: Quantized,
}

struct Quantizer<'a> {
    rebuild: Rebuild<'a>,
    /// Tensors that were quantized, by their dims with one scale: for which node, and the result.
    known: BTreeMap<(ValueId, Vec<usize>), Vec<KnownTensor>>,
}

impl Quantizer<'_> {
    /// Multiplies in 8 bits what a node of the old graph multiplies.
    fn replace_product(&mut self, id: NodeId, op: MatMul) -> Result<(), OpError> {
        let old = self.rebuild.old;
        let node = old.graph.node(id);
        let [rows, weight] = [0, 1].map(|place| self.rebuild.new_of(node.operands[place]));
        let last = self.rebuild.graph.value(rows).ty.shape.len() - 1;
        let inner = usize::from(op.transpose_b);
        let whole = old.phases[id.index()] == Phase::Backward;
        let reduced = if whole { vec![0, 1] } else { vec![inner] };
        let a = self.quantize(rows, vec![last], id)?;
        let b = self.quantize(weight, reduced, id)?;
        let operands = [a.numbers, b.numbers, a.sizes, b.sizes];
        let result = self.push(Op::MatMul(op), &operands, id)?;
        self.rebuild.replace_value(node.results[0], result);
        Ok(())
    }

    /// Rounds a tensor of the new graph to 8 bits, with one scale for all elements along these dims.
    fn quantize(
        &mut self,
        value: ValueId,
        axes: Vec<usize>,
        like: NodeId,
    ) -> Result<Quantized, OpError> {
        let graph = &self.rebuild.old.graph;
        let phase = |node: NodeId| self.rebuild.old.phases[node.index()];
        let again = |known: &&KnownTensor| {
            graph.node(known.like).is_beside(graph.node(like)) && phase(known.like) == phase(like)
        };
        let key = (value, axes);
        if let Some(known) = self.known.get(&key).and_then(|made| made.iter().find(again)) {
            return Ok(known.quantized);
        }
        let greatest =
            Reduce { function: ReduceFunction::MaxAbs, axes: key.1.clone(), keep_dims: true };
        let sizes = self.push(Op::Reduce(greatest), &[value], like)?;
        let round = Op::Binary(Binary { function: BinaryFunction::RoundFloat8 });
        let numbers = self.push(round, &[value, sizes], like)?;
        let quantized = Quantized { numbers, sizes };
        self.known.entry(key).or_default().push(KnownTensor { like, quantized });
        Ok(quantized)
    }

    fn push(&mut self, op: Op, operands: &[ValueId], like: NodeId) -> Result<ValueId, OpError> {
        Ok(self.rebuild.push(op, operands.to_vec(), like)?[0])
    }
}
