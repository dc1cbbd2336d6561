//! Which kernel computes an op.

use graphc_ir::op::Op;
use graphc_ir::types::DType;

use crate::context::Kernel;
use crate::{
    attention, convolution, embedding, experts, loss, matmul, movement, normalize, pool, reduce,
    rotary, softmax, source, update,
};

/// The kernel of the processor for an op of these element types, which the op takes and gives. Elementwise ops are
/// chains of one step, see [`crate::prepare`].
pub(crate) fn cpu(op: &Op, operands: &[DType], results: &[DType]) -> Option<Kernel> {
    let dtype = *operands.first().or(results.first())?;
    let second = operands.get(1);
    let half = matches!(dtype, DType::F16 | DType::BF16);
    let (kernel, exists): (Kernel, bool) = match op {
        // What moves elements takes all types.
        Op::Transpose(_)
        | Op::Slice(_)
        | Op::Concat(_)
        | Op::Split(_)
        | Op::Expand(_)
        | Op::Pad(_) => (movement::movement, true),
        Op::Reshape(_) | Op::ToGlobal(_) | Op::Accumulate(_) => (movement::copy, true),
        Op::Triangle(_) => (source::triangle, true),
        Op::Embedding(_) => (embedding::embedding, true),
        Op::Full(_) => (source::full, true),
        // What computes takes all but the half-precision types.
        Op::Reduce(_) => (reduce::reduce, !half),
        Op::ArgMax(_) => (reduce::argmax, !half),
        Op::MatMul(_) => (matmul::matmul, true),
        Op::Constant(_) | Op::Iota(_) | Op::Random(_) | Op::Variable(_) => (source::source, !half),
        // What is defined for floating-point numbers alone, its first operand being one.
        Op::Softmax(_) | Op::LogSoftmax(_) => (softmax::softmax, !half),
        Op::SoftmaxGrad(_) | Op::LogSoftmaxGrad(_) => (softmax::softmax_grad, !half),
        Op::Normalize(_) => (normalize::normalize, !half),
        Op::NormalizeGrad(_) => (normalize::normalize_grad, !half),
        Op::Pick(_) => (loss::pick, !half),
        Op::CrossEntropy(_) => (loss::cross_entropy, !half),
        Op::CrossEntropyGrad(_) => (loss::cross_entropy_grad, !half),
        Op::Attention(_) => (attention::attention, true),
        Op::AttentionGrad(_) => (attention::attention_grad, true),
        Op::Rotary(_) => (rotary::rotary, !half),
        Op::Convolution(_) => (convolution::convolution, true),
        Op::ConvolutionInputGrad(_) => (convolution::input_grad, true),
        Op::ConvolutionKernelGrad(_) => (convolution::kernel_grad, true),
        Op::MaxPool(_) | Op::AveragePool(_) => (pool::pool, !half),
        Op::MaxPoolGrad(_) | Op::AveragePoolGrad(_) => (pool::pool_grad, !half),
        Op::Dispatch(_) => (experts::dispatch, !half),
        Op::Combine(_) => (experts::combine, !half),
        Op::CombineWeightsGrad(_) => (experts::weights_grad, !half),
        Op::Dropout(_) => (source::dropout, !half),
        Op::SgdUpdate(_) => (update::sgd, !half),
        Op::AdamUpdate(_) => (update::adam, !half),
        // The first operand holds indices, the second numbers.
        Op::PickGrad(_) => (loss::pick_grad, second == Some(&DType::F32)),
        Op::EmbeddingGrad(_) => (embedding::embedding_grad, second == Some(&DType::F32)),
        // What the user feeds is computed by nobody, batch normalization by its parts, and elementwise ops by chains.
        Op::Input(_) | Op::BatchNorm(_) => return None,
        Op::Unary(_) | Op::Binary(_) | Op::Where(_) | Op::Cast(_) => return None,
    };
    exists.then_some(kernel)
}

/// Pairs (result, operand) that may be the same memory in a call of the op's kernel, provided that both have the same
/// shape, origin and element type.
pub fn in_place(op: &Op) -> &'static [(usize, usize)] {
    match op {
        Op::Unary(_) | Op::Cast(_) | Op::Dropout(_) | Op::Reshape(_) | Op::ToGlobal(_) => &[(0, 0)],
        Op::Accumulate(_) => &[(0, 0)],
        Op::Binary(_) => &[(0, 0), (0, 1)],
        Op::Where(_) => &[(0, 1), (0, 2)],
        Op::SgdUpdate(update) if update.momentum.0 == 0.0 => &[(0, 0)],
        Op::SgdUpdate(_) => &[(0, 0), (1, 2)],
        Op::AdamUpdate(_) => &[(0, 0), (1, 2), (2, 3)],
        _ => &[],
    }
}
