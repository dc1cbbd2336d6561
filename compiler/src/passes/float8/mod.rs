//! Products of numbers of 8 bits: the pass replaces products with weights, and their gradients.
//!
//! There are two recipes of torchao (`Float8LinearRecipeName` in `torchao/float8/config.py`). Scales are the current ones: powers of two by which the
//! greatest element fits the format ([`graphc_ir::float8`]).
//!
//! Products of experts with the places of their tokens are like others: a place is a row, and each expert's matrix is a weight, in both recipes with scales of its
//! own.
//!
//! **`rowwise_with_gw_hp`.** Each row of activations has a scale of its own, and so has each row of their gradients. A weight has one for each output feature
//! in the forward pass, and one in all where gradients go back through it. All numbers are f8e4m3, and gradients of weights are products of bf16. No
//! scale depends on more than a row of a tensor, or on a weight. So a plan gives the same numbers on every mesh and with any number of microbatches, and no
//! rank waits for the scales of others, but where a row lies in parts.
//!
//! **`tensorwise`.** Each tensor has one scale. Gradients are f8e5m2, which reaches further, the rest is f8e4m3, and gradients of weights are products of
//! 8 bits as well: activations are kept for them in 8 bits. A scale is that of the whole microbatch, wherever its parts lie, so a plan gives the same numbers on every
//! mesh; with other microbatches they are rounded a little differently.
//!
//! Left in bf16 are products whose extents are no multiples of 16, which tensor cores do not take, and those that give scores: what the loss reads, and
//! what the model gives as an output. Their rounding would be that of the result.

mod products;

use std::collections::BTreeMap;

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Movement, Op, OpError};
use graphc_ir::ops::{Binary, BinaryFunction, Reduce, ReduceFunction, Reshape};
use graphc_ir::types::DType;
use graphc_plan::{CompileOptions, Float8Recipe};

use self::products::{Float8Product, find_products};
use super::rebuild::Rebuild;
use crate::decisions::{Phase, TrainingGraph};
use crate::passes::error::PassError;

const PASS: &str = "float8";

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
    let products = find_products(&training, options.float8_recipe);
    let mut pass = Quantizer { rebuild: Rebuild::new(&training), known: BTreeMap::new() };
    for (id, _) in training.graph.iter() {
        match products.get(&id) {
            Some(&product) => pass.replace_product(id, product, options.float8_recipe),
            None => pass.rebuild.copy_node(id),
        }
        .map_err(|error| PassError::Op { pass: PASS, error })?;
    }
    Ok(pass.rebuild.finish())
}

/// Returns the value that a node rounds to 8 bits; `None` of other nodes.
pub(crate) fn quantized_source(node: &Node) -> Option<ValueId> {
    let rounds = matches!(&node.op, Op::Binary(op) if op.function.rounds_float8());
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

/// The tensors that share one scale, and the type to which they are rounded.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Rounding {
    dtype: DType,
    /// The dims along which elements have one scale; `None`: all, whatever moves the tensor.
    axes: Option<Vec<usize>>,
    /// Whether numbers of the forward pass are those that the backward pass takes.
    serves_backward: bool,
}

struct Quantizer<'a> {
    rebuild: Rebuild<'a>,
    /// Tensors of the old graph that were quantized: for which nodes, and the results.
    known: BTreeMap<(ValueId, Rounding), Vec<KnownTensor>>,
}

impl Quantizer<'_> {
    /// Multiplies in 8 bits what a node of the old graph multiplies.
    fn replace_product(
        &mut self,
        id: NodeId,
        product: Float8Product,
        recipe: Float8Recipe,
    ) -> Result<(), OpError> {
        let node = self.rebuild.old.graph.node(id);
        let roundings = match recipe {
            Float8Recipe::Rowwise => self.round_rows(id),
            Float8Recipe::Tensorwise => self.round_tensors(id, product),
        };
        // What is neither factor, the choices of experts, stays as it is.
        let mut operands: Vec<ValueId> =
            node.operands.iter().map(|&operand| self.rebuild.new_of(operand)).collect();
        for (place, rounding) in roundings.into_iter().enumerate() {
            let quantized = self.quantize(node.operands[place], rounding, id)?;
            operands[place] = quantized.numbers;
            operands.push(quantized.sizes);
        }
        let result = self.push(node.op.clone(), &operands, id)?;
        self.rebuild.replace_value(node.results[0], result);
        Ok(())
    }

    /// The roundings of rows and of a weight: of each row, and of each output feature, or of the whole matrix where gradients go back through it.
    fn round_rows(&self, id: NodeId) -> [Rounding; 2] {
        let old = self.rebuild.old;
        let node = old.graph.node(id);
        let [rows, weight] =
            [0, 1].map(|place| old.graph.value(node.operands[place]).ty.shape.len());
        let transposed = match node.op {
            Op::MatMul(op) => op.transpose_b,
            Op::GroupedMatMul(op) => op.transpose_b,
            _ => false,
        };
        let of_weight = match old.phases[id.index()] == Phase::Backward {
            true => vec![weight - 2, weight - 1],
            false => vec![weight - 2 + usize::from(transposed)],
        };
        [vec![rows - 1], of_weight].map(|axes| Rounding {
            dtype: DType::F8E4M3,
            axes: Some(axes),
            serves_backward: false,
        })
    }

    /// The roundings of whole tensors: of both factors, and of each of several matrices.
    fn round_tensors(&self, id: NodeId, product: Float8Product) -> [Rounding; 2] {
        let graph = &self.rebuild.old.graph;
        let weight = graph.value(graph.node(id).operands[1]).ty.shape.len();
        let of_matrices = (product.of_weight && weight > 2).then(|| vec![weight - 2, weight - 1]);
        let [a, b] = product.dtypes;
        let serves_backward = true;
        [
            Rounding { dtype: a, axes: None, serves_backward },
            Rounding { dtype: b, axes: of_matrices, serves_backward },
        ]
    }

    /// Rounds a tensor of the old graph to 8 bits.
    fn quantize(
        &mut self,
        value: ValueId,
        rounding: Rounding,
        like: NodeId,
    ) -> Result<Quantized, OpError> {
        let old = self.rebuild.old;
        let phase = |node: NodeId| old.phases[node.index()];
        // Activations in 8 bits are kept for the backward pass where their scales are those that it takes.
        let again = |known: &&KnownTensor| {
            old.graph.node(known.like).is_beside(old.graph.node(like))
                && (rounding.serves_backward || phase(known.like) == phase(like))
        };
        let key = (value, rounding.clone());
        if let Some(known) = self.known.get(&key).and_then(|made| made.iter().find(again)) {
            return Ok(known.quantized);
        }
        let quantized = match moved_source(&old.graph, value).filter(|_| rounding.axes.is_none()) {
            Some(source) => {
                let source = self.quantize(source, rounding, like)?;
                self.move_quantized(source, value, like)?
            }
            None => self.round(value, rounding, like)?,
        };
        self.known.entry(key).or_default().push(KnownTensor { like, quantized });
        Ok(quantized)
    }

    /// Moves a tensor in 8 bits as the old graph moves the tensor, which has one scale.
    fn move_quantized(
        &mut self,
        source: Quantized,
        moved: ValueId,
        like: NodeId,
    ) -> Result<Quantized, OpError> {
        let graph = &self.rebuild.old.graph;
        let (op, rank) = (graph.producer(moved).op.clone(), graph.value(moved).ty.shape.len());
        let numbers = self.push(op, &[source.numbers], like)?;
        let sizes = match self.rebuild.graph.value(source.sizes).ty.shape.len() == rank {
            true => source.sizes,
            false => {
                self.push(Op::Reshape(Reshape { shape: vec![1; rank] }), &[source.sizes], like)?
            }
        };
        Ok(Quantized { numbers, sizes })
    }

    fn round(
        &mut self,
        value: ValueId,
        rounding: Rounding,
        like: NodeId,
    ) -> Result<Quantized, OpError> {
        let value = self.rebuild.new_of(value);
        let rank = self.rebuild.graph.value(value).ty.shape.len();
        let axes = rounding.axes.unwrap_or_else(|| (0..rank).collect());
        let greatest = Reduce { function: ReduceFunction::MaxAbs, axes, keep_dims: true };
        let sizes = self.push(Op::Reduce(greatest), &[value], like)?;
        let function = match rounding.dtype {
            DType::F8E5M2 => BinaryFunction::RoundFloat8E5m2,
            _ => BinaryFunction::RoundFloat8,
        };
        let numbers = self.push(Op::Binary(Binary { function }), &[value, sizes], like)?;
        Ok(Quantized { numbers, sizes })
    }

    fn push(&mut self, op: Op, operands: &[ValueId], like: NodeId) -> Result<ValueId, OpError> {
        Ok(self.rebuild.push(op, operands.to_vec(), like)?[0])
    }
}

/// Returns the tensor of which a value has the elements in another shape or order.
fn moved_source(graph: &Graph, value: ValueId) -> Option<ValueId> {
    let node = graph.producer(value);
    let moves = node.op.operation().movement() == Some(Movement::Rearranged);
    moves.then(|| node.operands[0])
}
