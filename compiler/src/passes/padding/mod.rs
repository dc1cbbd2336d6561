//! Pads the classes of logits with zeros where their number makes matrix products slow, as GPT-2's 50257 tokens do.
//!
//! In half precision, tensor cores load rows at full speed where these are multiples of 16 bytes (NVIDIA, "Matrix
//! Multiplication Background User's Guide", section 2.2). The usual remedy is a larger vocabulary, 50304. This pass
//! keeps the author's number instead.
//!
//! It pads a weight whose rows or columns are classes with zeros, where the weight is cast, once a step. The product
//! then gives logits with padding behind the real classes. A bias, and ops that keep logits element by element, are
//! padded as well. The new number of classes is a multiple of 64. It also divides evenly among the ranks, unless that
//! takes more than a 64th more.
//!
//! Cross entropy, `pick` and `label_rank` are told how many of their last dim are `classes`. So padding has no
//! probability, and its gradient is 0. Every other reader takes a `slice` of the logits.
//!
//! The pass comes before autodiff, which makes a `slice` of the gradient of a `pad`. So updates, states and
//! checkpoints see the author's shapes. Logits are sums of the same numbers in the same order, so their bits do not
//! change. Sums over classes may be taken in another order.
//!
//! The pass acts where the cost model says that it pays ([`price`]). It never acts where the machines multiply all
//! rows alike. `pad` and `slice` keep the dim whole that they change, so a padded weight cannot be split by classes.
//! Where the planner is free to split classes over ranks, the compiler therefore plans the graph without padding as
//! well (`compile::forms::prepare_variants`). It takes the faster of both plans, and `Plan::padded` says which. Megatron's
//! strategy splits the classes, so it does not pad.

use std::collections::BTreeMap;

use graphc_ir::graph::Graph;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, UnaryFunction};
use graphc_ir::types::DType;
use graphc_plan::{Cluster, CompileOptions};

use crate::cost::{ROW_BYTES, is_odd_row};
use crate::passes::error::PassError;

mod price;
mod rewrite;

const PASS: &str = "padding";

/// The suffix of the name of a padded tensor.
pub const PADDED: &str = ".padded";

/// Elements of which padded rows are multiples: 128 bytes of half precision, which is where A100's products are
/// fastest (the same guide).
const TILE: usize = 64;

/// Pads classes where that pays; the new graph computes the same. Otherwise the graph stays as it is.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(crate) fn pad_classes(
    graph: Graph,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<Graph, PassError> {
    // The model's axis of that strategy splits classes, and a weight that is padded has to be whole.
    if cluster.device.matmul_unaligned == 1.0 || options.strategy.splits_model() {
        return Ok(graph);
    }
    let readers = Readers::from_graph(&graph);
    let products: BTreeMap<ValueId, LogitProduct> = (graph.nodes.iter())
        .filter_map(|node| readers.find_product(node.results[0], options))
        .filter(|product| price::padding_pays(product, options, cluster))
        .map(|product| (product.logits, product))
        .collect();
    if products.is_empty() {
        return Ok(graph);
    }
    rewrite::pad_products(&graph, &products, options)
        .map_err(|error| PassError::Op { pass: PASS, error })
}

/// A product with a weight that gives logits whose rows are not multiples of the bytes that load fastest.
pub(super) struct LogitProduct {
    /// The result.
    logits: ValueId,
    /// The dim of the weight that counts classes.
    dim: usize,
    /// The extents of the matrices: rows of the result, classes, and the dim that is summed over.
    sizes: [usize; 3],
    /// The number of columns with padding.
    padded: usize,
    /// The element type of factors and result.
    dtype: DType,
    /// The bytes that are copied for readers without padding, and back for their gradients.
    bare: usize,
}

/// A graph with the readers of its values.
struct Readers<'a> {
    graph: &'a Graph,
    of: Vec<Vec<NodeId>>,
    is_output: Vec<bool>,
}

impl<'a> Readers<'a> {
    fn from_graph(graph: &'a Graph) -> Self {
        let mut is_output = vec![false; graph.values.len()];
        for output in &graph.outputs {
            is_output[output.value.index()] = true;
        }
        Self { graph, of: graph.list_consumers(), is_output }
    }

    /// Returns the product that makes a value, if it may be padded.
    fn find_product(&self, logits: ValueId, options: &CompileOptions) -> Option<LogitProduct> {
        let node = self.graph.producer(logits);
        let Op::MatMul(op) = &node.op else { return None };
        let (ty, weight) = (&self.graph.value(logits).ty, self.graph.value(node.operands[1]));
        let columns = *ty.shape.last()?;
        if !is_odd_row((ty.dtype, columns)) || ty.elements() == 0 || weight.ty.shape.len() != 2 {
            return None;
        }
        let dim = if op.transpose_b { 0 } else { 1 };
        self.is_weight(node.operands[1]).then(|| LogitProduct {
            logits,
            dim,
            sizes: [ty.elements() / columns, columns, weight.ty.shape[1 - dim]],
            padded: padded_extent(columns, options.mesh.iter().product()),
            dtype: ty.dtype,
            bare: self.bare_bytes(logits, options.differentiates_loss()),
        })
    }

    /// Whether a value is a variable, in whatever precision and order of dims.
    fn is_weight(&self, value: ValueId) -> bool {
        let node = self.graph.producer(value);
        match &node.op {
            Op::Variable(_) => true,
            Op::Cast(_) | Op::Transpose(_) => self.is_weight(node.operands[0]),
            _ => false,
        }
    }

    /// Returns the bytes that are copied for readers without padding, of a padded value and of those that follow from it.
    fn bare_bytes(&self, value: ValueId, backward: bool) -> usize {
        let (mut is_read, mut others) = (false, 0);
        for &reader in &self.of[value.index()] {
            let node = self.graph.node(reader);
            match reader_role(self.graph, value, &node.op, &node.operands) {
                Role::Follows => others += self.bare_bytes(node.results[0], backward),
                Role::ReadsClasses => {}
                Role::ReadsAll => is_read = true,
            }
        }
        let copies = match (is_read, self.is_output[value.index()]) {
            (true, _) => 1 + usize::from(backward),
            (false, true) => 1,
            (false, false) => 0,
        };
        others + copies * self.graph.value(value).ty.bytes()
    }
}

/// The role of an op that reads padded logits.
enum Role {
    /// It gives padded logits again, element by element. Where logits are 0, its result and its slope are finite.
    Follows,
    /// It can be told how many of the logits are classes.
    ReadsClasses,
    /// It needs the logits without padding.
    ReadsAll,
}

/// Returns the role of an op that reads padded logits among its operands.
fn reader_role(graph: &Graph, logits: ValueId, op: &Op, operands: &[ValueId]) -> Role {
    let first = operands[0] == logits && !operands[1..].contains(&logits);
    let shape = &graph.value(logits).ty.shape;
    let follows = match op {
        Op::Cast(cast) => cast.dtype.is_float(),
        Op::Reshape(reshape) => reshape.shape.last() == shape.last(),
        Op::Unary(unary) => matches!(
            unary.function,
            UnaryFunction::Scale(_)
                | UnaryFunction::Offset(_)
                | UnaryFunction::Tanh
                | UnaryFunction::Neg
        ),
        // A bias, which is padded as well.
        Op::Binary(binary) if binary.function == BinaryFunction::Add => {
            graph.value(operands[1]).ty.shape[..] == shape[shape.len() - 1..] && shape.len() > 1
        }
        _ => false,
    };
    match op {
        _ if first && follows => Role::Follows,
        Op::CrossEntropy(_) | Op::Pick(_) | Op::LabelRank(_) if first => Role::ReadsClasses,
        _ => Role::ReadsAll,
    }
}

/// Returns the padded extent: a multiple of [`TILE`]. If that takes no more than a 64th more, it also divides evenly among the ranks, with rows of
/// multiples of [`ROW_BYTES`] on each.
fn padded_extent(extent: usize, ranks: usize) -> usize {
    let each = ROW_BYTES / 2 * ranks.max(1);
    let both = (1..).map(|times| times * TILE).find(|both| both.is_multiple_of(each));
    let even = extent.next_multiple_of(both.unwrap_or(TILE));
    if even - extent <= extent / 64 { even } else { extent.next_multiple_of(TILE) }
}

#[cfg(test)]
mod tests;
