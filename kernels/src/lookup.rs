//! The kernel of each op, by element types.

use graphc_ir::op::Op;
use graphc_ir::types::DType;
use half::{bf16, f16};

use crate::context::Kernel;
use crate::update::UpdateTensors;
use crate::{
    attention, clipping, convolution, cumulative, embedding, experts, gather, grouped, loss,
    matmul, movement, normalize, pool, recurrence, reduce, resize, rotary, scaling, scatter,
    softmax, source, top_k, update,
};

/// A kernel that is generic over a floating-point element type, for this one.
macro_rules! float {
    ($dtype:expr, $kernel:path) => {{
        use $kernel as kernel;
        match $dtype {
            DType::F32 => kernel::<f32>,
            DType::F16 => kernel::<f16>,
            DType::BF16 => kernel::<bf16>,
            DType::I64 | DType::I32 | DType::U8 | DType::Bool | DType::F8E4M3 | DType::F8E5M2 => {
                return None;
            }
        }
    }};
}

/// A kernel of an update, for the element types of a variable and its gradient.
macro_rules! update {
    ($variable:expr, $gradient:expr, $update:path) => {
        match ($variable, $gradient) {
            (DType::F32, DType::F32) => update!($update: f32, f32),
            (DType::F16, DType::F16) => update!($update: f16, f16),
            (DType::F16, DType::F32) => update!($update: f16, f32),
            (DType::BF16, DType::BF16) => update!($update: bf16, bf16),
            (DType::BF16, DType::F32) => update!($update: bf16, f32),
            _ => return None,
        }
    };
    ($update:path: $variable:ty, $gradient:ty) => {
        |op, operands, results, cx| {
            $update(op, operands, results, cx, UpdateTensors::of_types::<$variable, $gradient>())
        }
    };
}

/// The kernel of the processor for an op of these element types, which the op takes and gives. Elementwise ops are
/// chains of one step, see [`crate::prepare`].
pub(crate) fn find_cpu_kernel(op: &Op, operands: &[DType], results: &[DType]) -> Option<Kernel> {
    let first = *operands.first().or(results.first())?;
    // Where the first operand holds indices.
    let second = *operands.get(1).unwrap_or(&first);
    let kernel: Kernel = match op {
        // What moves elements, or fills memory with them, takes all types.
        Op::Transpose(_)
        | Op::Slice(_)
        | Op::Concat(_)
        | Op::Split(_)
        | Op::Expand(_)
        | Op::Pad(_)
        | Op::Zigzag(_) => movement::move_elements,
        Op::Reshape(_) | Op::ToGlobal(_) | Op::Regather(_) | Op::Accumulate(_) => {
            movement::copy_elements
        }
        Op::Triangle(_) => source::triangle,
        Op::Embedding(_) => embedding::embedding,
        Op::Gather(_) => gather::gather,
        Op::Full(_) => source::fill_with_value,
        Op::Constant(_) | Op::Iota(_) | Op::Random(_) | Op::Variable(_) => source::generate_source,
        Op::Reduce(_) => reduce::reduce,
        Op::ArgMax(_) => reduce::argmax,
        Op::TopK(_) => top_k::top_k,
        Op::Scatter(_) => scatter::scatter,
        Op::CumulativeSum(_) => cumulative::cumulative_sum,
        Op::MatMul(_) => matmul::matmul,
        // What is defined for floating-point numbers alone.
        Op::Softmax(_) | Op::LogSoftmax(_) => float!(first, softmax::softmax),
        Op::SoftmaxGrad(_) | Op::LogSoftmaxGrad(_) => float!(first, softmax::softmax_grad),
        Op::Normalize(_) => float!(first, normalize::normalize),
        Op::NormalizeGrad(_) => float!(first, normalize::normalize_grad),
        Op::Pick(_) => float!(first, loss::pick_scores),
        Op::PickGrad(_) => float!(second, loss::pick_grad),
        Op::CrossEntropy(_) => float!(first, loss::cross_entropy),
        Op::CrossEntropyGrad(_) => float!(first, loss::cross_entropy_grad),
        Op::LabelRank(_) => float!(first, loss::label_rank),
        Op::EmbeddingGrad(_) => float!(second, embedding::embedding_grad),
        Op::ScatterSum(_) => match second {
            DType::I64 => gather::scatter_sum_of_integers::<i64>,
            DType::I32 => gather::scatter_sum_of_integers::<i32>,
            _ => float!(second, gather::scatter_sum),
        },
        Op::Attention(_) => attention::attention,
        Op::AttentionGrad(_) => attention::attention_grad,
        Op::Rotary(_) => float!(first, rotary::rotary),
        Op::Recurrence(_) => float!(first, recurrence::recurrence),
        Op::RecurrenceGrad(_) => float!(first, recurrence::recurrence_grad),
        Op::Convolution(_) => convolution::convolution,
        Op::ConvolutionInputGrad(_) => convolution::input_grad,
        Op::ConvolutionKernelGrad(_) => convolution::kernel_grad,
        Op::MaxPool(_) | Op::AveragePool(_) => float!(first, pool::pool_images),
        Op::MaxPoolGrad(_) | Op::AveragePoolGrad(_) => float!(first, pool::pool_grad),
        Op::Resize(_) | Op::ResizeGrad(_) => float!(first, resize::resize),
        Op::Dispatch(_) => float!(first, experts::dispatch_tokens),
        Op::Combine(_) => float!(first, experts::combine_experts),
        Op::CombineWeightsGrad(_) => float!(first, experts::weights_grad),
        Op::GroupedMatMul(_) if first.is_float8() => grouped::grouped_matmul_float8,
        Op::GroupedMatMulGrad(_) if first.is_float8() => grouped::grouped_matmul_grad_float8,
        Op::GroupedMatMul(_) => float!(first, grouped::grouped_matmul),
        Op::GroupedMatMulGrad(_) => float!(first, grouped::grouped_matmul_grad),
        Op::Dropout(_) => float!(first, source::dropout),
        Op::SgdUpdate(_) => update!(first, second, update::sgd_update),
        Op::AdamUpdate(_) => update!(first, second, update::adam_update),
        Op::RmspropUpdate(_) => update!(first, second, update::rmsprop_update),
        Op::LambDirection(_) => update!(first, second, update::lamb_direction),
        Op::LambUpdate(_) => update!(first, DType::F32, update::lamb_update),
        Op::SquareSum(_) => float!(first, clipping::square_sum),
        Op::ClipFactor(_) => clipping::clip_factor,
        Op::Blend(_) => match first {
            DType::F32 if second == DType::F16 => update!(update::blend_floats: f32, f16),
            DType::F32 if second == DType::BF16 => update!(update::blend_floats: f32, bf16),
            DType::F32 | DType::F16 | DType::BF16 => update!(first, second, update::blend_floats),
            DType::I64 => update::blend_integers::<i64>,
            DType::I32 => update::blend_integers::<i32>,
            DType::U8 | DType::Bool => update::blend_integers::<u8>,
            DType::F8E4M3 | DType::F8E5M2 => return None,
        },
        Op::NonFinite(_) => float!(first, scaling::non_finite),
        Op::LossScale(_) => scaling::loss_scale,
        Op::SkipStep(_) => scaling::skip_step,
        // What the user feeds is computed by nobody, a program's own op by what the program gives, batch normalization by its parts,
        // and elementwise ops by chains.
        Op::Input(_) | Op::Custom(_) | Op::BatchNorm(_) | Op::BatchNormTraining(_) => return None,
        Op::Unary(_) | Op::Binary(_) | Op::Where(_) | Op::Cast(_) => return None,
    };
    Some(kernel)
}
