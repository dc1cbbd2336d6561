//! Which kernel computes an op.

use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::Op;
use graphc_ir::types::DType;

use crate::context::Kernel;
use crate::error::KernelError;
use crate::{
    attention, convolution, elementwise, embedding, experts, loss, matmul, movement, normalize,
    pool, reduce, rotary, scaling, softmax, source, update,
};

/// The kernel of an op whose first operand (or, of a source, whose result) has this element type. The kernel checks the
/// types of all its views.
///
/// # Errors
/// Where there is none.
pub fn lookup(op: &Op, dtype: DType, device: DeviceKind) -> Result<Kernel, KernelError> {
    let kernel = match device {
        DeviceKind::Cpu => cpu(op, dtype),
        DeviceKind::Cuda => None,
    };
    kernel.ok_or_else(|| KernelError::NoKernel { op: op.name(), dtype, device })
}

/// The kernels of the processor.
fn cpu(op: &Op, dtype: DType) -> Option<Kernel> {
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
        // What computes takes all but the half-precision types.
        Op::Unary(_) | Op::Binary(_) | Op::Where(_) => (elementwise::single, !half),
        Op::Cast(cast) => {
            (elementwise::single, !half && !matches!(cast.dtype, DType::F16 | DType::BF16))
        }
        Op::Reduce(_) => (reduce::reduce, !half),
        Op::ArgMax(_) => (reduce::argmax, !half),
        Op::MatMul(_) => (matmul::matmul, !half && dtype != DType::Bool),
        Op::Full(_) => (source::full, !half),
        Op::Constant(_) | Op::Iota(_) | Op::Random(_) | Op::Variable(_) => (source::source, !half),
        // What is defined for floating-point numbers alone, its first operand being one.
        Op::Softmax(_) | Op::LogSoftmax(_) => (softmax::softmax, dtype == DType::F32),
        Op::SoftmaxGrad(_) | Op::LogSoftmaxGrad(_) => (softmax::softmax_grad, dtype == DType::F32),
        Op::Normalize(_) => (normalize::normalize, dtype == DType::F32),
        Op::NormalizeGrad(_) => (normalize::normalize_grad, dtype == DType::F32),
        Op::Pick(_) => (loss::pick, dtype == DType::F32),
        Op::CrossEntropy(_) => (loss::cross_entropy, dtype == DType::F32),
        Op::CrossEntropyGrad(_) => (loss::cross_entropy_grad, dtype == DType::F32),
        Op::Attention(_) => (attention::attention, dtype == DType::F32),
        Op::AttentionGrad(_) => (attention::attention_grad, dtype == DType::F32),
        Op::Rotary(_) => (rotary::rotary, dtype == DType::F32),
        Op::Convolution(_) => (convolution::convolution, dtype == DType::F32),
        Op::ConvolutionInputGrad(_) => (convolution::input_grad, dtype == DType::F32),
        Op::ConvolutionKernelGrad(_) => (convolution::kernel_grad, dtype == DType::F32),
        Op::MaxPool(_) | Op::AveragePool(_) => (pool::pool, dtype == DType::F32),
        Op::MaxPoolGrad(_) | Op::AveragePoolGrad(_) => (pool::pool_grad, dtype == DType::F32),
        Op::Dispatch(_) => (experts::dispatch, dtype == DType::F32),
        Op::Combine(_) => (experts::combine, dtype == DType::F32),
        Op::CombineWeightsGrad(_) => (experts::weights_grad, dtype == DType::F32),
        Op::Dropout(_) => (source::dropout, dtype == DType::F32),
        Op::NonFinite(_) => (scaling::non_finite, dtype == DType::F32),
        Op::LossScale(_) => (scaling::loss_scale, dtype == DType::F32),
        Op::SgdUpdate(_) => (update::sgd, dtype == DType::F32),
        Op::AdamUpdate(_) => (update::adam, dtype == DType::F32),
        // The first operand holds indices, the second numbers.
        Op::PickGrad(_) => (loss::pick_grad, !half),
        Op::EmbeddingGrad(_) => (embedding::embedding_grad, !half),
        // What the user feeds is computed by nobody, and batch normalization by its parts.
        Op::Input(_) | Op::BatchNorm(_) => return None,
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
        Op::LossScale(_) => &[(0, 0), (1, 1), (2, 2)],
        _ => &[],
    }
}
