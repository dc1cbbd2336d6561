//! The gradients of ops, written with the builder, so a gradient is itself a graph.
//!
//! The gradient of an op is in the file that has the name of its file under `ops/`. [`write_gradients`] is the way to all of
//! them; its `match` has no default, so a new op gets an answer here, be it that there is none.
//!
//! This module stands above ops, graphs and the builder, and none of these knows it. The pass that walks a graph backwards is
//! the compiler's (`compiler/src/passes/autodiff.rs`).

mod attention;
mod batch_norm;
mod batch_norm_training;
mod binary;
mod concat;
mod convolution;
mod cumulative;
mod custom;
mod dropout;
mod embedding;
mod experts;
mod gather;
mod grouped;
mod layout;
mod loss;
mod matmul;
mod movement;
mod normalize;
mod pool;
mod recurrence;
mod reduce;
mod reshape;
mod resize;
mod rotary;
mod scatter;
mod select;
mod slice;
mod softmax;
mod top_k;
mod unary;

use crate::builder::Tensor;
use crate::op::Op;

/// A node whose gradients are asked for.
pub struct GradientNode<'a> {
    /// The operands.
    pub operands: &'a [Tensor],
    /// The results.
    pub results: &'a [Tensor],
    /// The gradient of each result; at least one is given.
    pub gradients: &'a [Option<Tensor>],
    /// For each operand, whether somebody asks for its gradient: an op that would compute more for it alone need not.
    pub wanted: &'a [bool],
}

/// The trait of payloads whose ops have gradients.
trait Differentiable {
    /// Writes the gradients of the operands from those of the results (`None`: zero). `None` where the op has none to give: an integer
    /// operand, say.
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>>;
}

/// Writes the gradients of a node's operands from those of its results (`None`: zero). `None` where the op has none to give: an integer operand,
/// say. An op that cannot be differentiated leaves an error with the builder.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_ir::gradients::{GradientNode, write_gradients};
/// use graphc_ir::op::Op;
/// use graphc_ir::ops::{Unary, UnaryFunction};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// let x = g.input("x", DType::F32, [4]);
/// let exp = Op::Unary(Unary { function: UnaryFunction::Exp });
/// let y = g.apply(exp.clone(), &[&x]);
/// let (operands, results, gradients) = ([x], [y.clone()], [Some(y.full_like(1.0))]);
/// let node = GradientNode { operands: &operands, results: &results, gradients: &gradients, wanted: &[true] };
/// let of_x = write_gradients(&exp, &node).remove(0).expect("floating-point elements have a gradient");
/// assert_eq!(of_x.shape(), [4]);
/// ```
pub fn write_gradients(op: &Op, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
    let op: &dyn Differentiable = match op {
        Op::Unary(op) => op,
        Op::Binary(op) => op,
        Op::Where(op) => op,
        Op::Cast(op) => op,
        Op::Reduce(op) => op,
        Op::MatMul(op) => op,
        Op::Reshape(op) => op,
        Op::Transpose(op) => op,
        Op::Slice(op) => op,
        Op::Concat(op) => op,
        Op::Split(op) => op,
        Op::Expand(op) => op,
        Op::Pad(op) => op,
        Op::Softmax(op) => op,
        Op::LogSoftmax(op) => op,
        Op::Normalize(op) => op,
        Op::Embedding(op) => op,
        Op::EmbeddingGrad(op) => op,
        Op::Gather(op) => op,
        Op::ScatterSum(op) => op,
        Op::Scatter(op) => op,
        Op::TopK(op) => op,
        Op::CumulativeSum(op) => op,
        Op::Pick(op) => op,
        Op::PickGrad(op) => op,
        Op::CrossEntropy(op) => op,
        Op::Attention(op) => op,
        Op::Rotary(op) => op,
        Op::Recurrence(op) => op,
        Op::Convolution(op) => op,
        Op::ConvolutionInputGrad(op) => op,
        Op::ConvolutionKernelGrad(op) => op,
        Op::MaxPool(op) => op,
        Op::AveragePool(op) => op,
        Op::AveragePoolGrad(op) => op,
        Op::Resize(op) => op,
        Op::ResizeGrad(op) => op,
        Op::BatchNorm(op) => op,
        Op::BatchNormTraining(op) => op,
        Op::Dispatch(op) => op,
        Op::Combine(op) => op,
        Op::CombineWeightsGrad(op) => op,
        Op::GroupedMatMul(op) => op,
        Op::GroupedMatMulGrad(op) => op,
        Op::Dropout(op) => op,
        Op::Triangle(op) => op,
        Op::Zigzag(op) => op,
        Op::ToGlobal(op) => op,
        Op::Custom(op) => op,
        Op::Regather(op) => op,
        Op::Accumulate(op) => op,
        // Sources have no operands, and an index does not change by a small step.
        Op::Input(_)
        | Op::Variable(_)
        | Op::Constant(_)
        | Op::Full(_)
        | Op::Iota(_)
        | Op::Random(_)
        | Op::ArgMax(_) => return vec![None; node.operands.len()],
        // Gradients of gradients, and what a step does with gradients.
        Op::SoftmaxGrad(_)
        | Op::LogSoftmaxGrad(_)
        | Op::NormalizeGrad(_)
        | Op::CrossEntropyGrad(_)
        | Op::LabelRank(_)
        | Op::AttentionGrad(_)
        | Op::RecurrenceGrad(_)
        | Op::MaxPoolGrad(_)
        | Op::SgdUpdate(_)
        | Op::AdamUpdate(_)
        | Op::RmspropUpdate(_)
        | Op::LambDirection(_)
        | Op::LambUpdate(_)
        | Op::SquareSum(_)
        | Op::ClipFactor(_)
        | Op::Blend(_)
        | Op::NonFinite(_)
        | Op::LossScale(_)
        | Op::SkipStep(_) => return refuse_gradients(op, node),
    };
    op.write_gradients(node)
}

/// Reports, where a gradient is asked for, that an op has none.
fn refuse_gradients(op: &Op, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
    if let Some(gradient) = node.gradients.iter().flatten().next() {
        gradient.builder().fail(format!("{} cannot be differentiated", op.name()));
    }
    vec![None; node.operands.len()]
}

/// Returns the first gradient; the ops of one result are asked for gradients only where it is given.
fn first_gradient<'a>(node: &'a GradientNode<'_>) -> Option<&'a Tensor> {
    node.gradients.first().and_then(Option::as_ref)
}

/// Returns the gradient if the operand has floating-point elements, summed over the dims that broadcasting repeated.
fn gradient_of(operand: &Tensor, gradient: impl FnOnce() -> Tensor) -> Option<Tensor> {
    let ty = operand.ty();
    ty.dtype.is_float().then(|| gradient().sum_to(&ty.shape))
}

/// Returns the height and width of an image: its last two dims, or those before the channels.
fn image_extents(image: &Tensor, channels_last: bool) -> [usize; 2] {
    match (&image.shape()[..], channels_last) {
        (&[_, _, h, w], false) | (&[_, h, w, _], true) => [h, w],
        // The shape of what is left of a node that did not fit.
        _ => [0; 2],
    }
}
