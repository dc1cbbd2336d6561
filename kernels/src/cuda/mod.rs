//! Kernels of CUDA devices, worked out from static shapes when a plan is loaded. [`prepare_op`] is the exhaustive match on ops.
//!
//! This module knows no driver, so all of it is tested on any machine. A [`Call`] is a list of launches: kernels as CUDA C++ with
//! the extents of the shards in them as numbers, products of matrices, and memory to clear. The runtime compiles a source for the
//! card at hand and fills in addresses. Sources stand in `cu/`, as files of CUDA C++ that take their extents and types as macros
//! ([`source::KernelSource`]). Chains of elementwise ops are generated (`elementwise`). A kernel needs no header but `cu/common.cuh`.
//!
//! A launch is the same in each step, so it can be recorded. Where a shard begins in its tensor differs between microbatches, and
//! is an argument. The step's number and rates differ between steps: they lie in memory of the card, which the host writes once a
//! step.
//!
//! As on the processor, elements of 16 bits are widened, all is computed in `f32` and rounded once. Sums have an order that
//! follows from the shape alone: no floating-point sum is made by atomic additions. Start reading with `call`, then
//! `elementwise`.

mod argmax;
mod attention;
mod call;
mod convolution;
mod cumulative;
mod elementwise;
mod epilogue;
mod experts;
mod fill;
mod gather;
mod grouped;
mod headed;
mod indices;
mod loss;
mod movement;
mod names;
mod normalize;
mod pool;
mod product;
mod rectangle;
mod recurrence;
mod reduce;
mod resize;
mod rotary;
mod rows;
mod scaling;
mod softmax;
mod source;
mod top_k;
mod update;

use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::Op;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::FusedOp;

use crate::error::KernelError;

pub use call::{
    Activation, Argument, Call, CallRegister, Checked, Entry, Epilogue, Kernel, Launch,
    LaunchMemory, Matrix, MatrixProduct, Numbers, Operands, Summed,
};
pub use epilogue::{Behind, Sums, join_accumulation, join_chain, join_sums};
pub use product::{own_product, product_end};
pub use rectangle::{copy_rectangle, prepare_accumulation, prepare_fill};
pub use update::{join_alike, joinable_tensors};

/// A register as it is known when a plan is loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct Shard {
    /// The element type and the extents of the part that a rank has; all microbatches' parts have the same.
    pub ty: TensorType,
    /// The extents of the whole tensor.
    pub global: Vec<usize>,
}

impl Shard {
    /// A tensor that one rank has as a whole.
    pub fn whole(ty: TensorType) -> Self {
        Self { global: ty.shape.clone(), ty }
    }

    fn elements(&self) -> usize {
        self.ty.elements()
    }

    fn shape(&self) -> &[usize] {
        &self.ty.shape
    }

    fn dtype(&self) -> DType {
        self.ty.dtype
    }
}

/// The call of an op on a CUDA device, for shards of these types.
///
/// # Errors
/// Returns an error if the op does not take such elements, or has no kernel for them.
pub fn prepare_op(op: &Op, operands: &[Shard], results: &[Shard]) -> Result<Call, KernelError> {
    let types: Vec<&TensorType> = operands.iter().map(|operand| &operand.ty).collect();
    let given = op.operation().infer_dtypes(&types);
    if !given.is_ok_and(|given| given == list_dtypes(results)) {
        return Err(no_kernel(op.name(), operands, results));
    }
    let call = match op {
        Op::Unary(_) | Op::Binary(_) | Op::Where(_) | Op::Cast(_) => {
            Some(elementwise::prepare_single(op, operands, results)?)
        }
        Op::Reshape(_) | Op::ToGlobal(_) | Op::Regather(_) | Op::Accumulate(_) => {
            Some(Call::from_launches(vec![Launch::copy_operand(&results[0])]))
        }
        Op::Attention(op) => Some(attention::prepare_attention(op, operands, results)?),
        Op::AttentionGrad(op) => Some(attention::prepare_attention_grad(op, operands, results)?),
        Op::Convolution(_) | Op::ConvolutionInputGrad(_) | Op::ConvolutionKernelGrad(_) => {
            Some(convolution::prepare_convolution(op, operands, results)?)
        }
        Op::MatMul(op) => Some(product::prepare_matmul(op, operands, results)?),
        Op::MaxPool(_) | Op::MaxPoolGrad(_) | Op::AveragePool(_) | Op::AveragePoolGrad(_) => {
            Some(pool::prepare_pool(op, operands, results)?)
        }
        Op::Recurrence(op) => Some(recurrence::prepare_recurrence(op, operands, results)?),
        Op::RecurrenceGrad(op) => Some(recurrence::prepare_recurrence_grad(op, operands, results)?),
        Op::Resize(_) | Op::ResizeGrad(_) => Some(resize::prepare_resize(op, operands, results)?),
        Op::Reduce(op) => Some(reduce::prepare_reduce(op, operands, results)?),
        Op::Full(_) | Op::Constant(_) | Op::Iota(_) | Op::Random(_) | Op::Variable(_) => {
            Some(fill::prepare_source(op, results)?)
        }
        Op::Dropout(op) => Some(fill::prepare_dropout(op, operands, results)),
        Op::Triangle(op) => Some(fill::prepare_triangle(op, operands)?),
        Op::Zigzag(op) => Some(movement::prepare_zigzag(*op, operands)?),
        Op::Transpose(op) => Some(movement::prepare_transpose(op, operands, results)),
        Op::Slice(op) => Some(movement::prepare_slice(op, operands, results)),
        Op::Expand(_) => Some(movement::prepare_expand(operands, results)?),
        Op::Pad(op) => Some(movement::prepare_pad(op, operands, results)?),
        Op::Concat(op) => Some(movement::prepare_concat(op, operands, results)),
        Op::Split(op) => Some(movement::prepare_split(op, operands, results)),
        Op::Softmax(_) | Op::LogSoftmax(_) => Some(softmax::prepare_softmax(op, operands)?),
        Op::SoftmaxGrad(_) | Op::LogSoftmaxGrad(_) => Some(softmax::softmax_grad(op, operands)?),
        Op::Normalize(op) => Some(normalize::prepare_normalize(op, operands)?),
        Op::NormalizeGrad(op) => Some(normalize::normalize_grad(op, operands)?),
        Op::Pick(op) => Some(loss::prepare_pick(op, operands)?),
        Op::PickGrad(_) => Some(loss::pick_grad(operands, results)?),
        Op::CrossEntropy(op) => Some(loss::cross_entropy(op, operands)?),
        Op::CrossEntropyGrad(op) => Some(loss::cross_entropy_grad(op, operands)?),
        Op::LabelRank(op) => Some(loss::label_rank(op, operands)?),
        Op::ArgMax(op) => Some(argmax::prepare_argmax(op, operands)?),
        Op::TopK(op) => Some(top_k::top_k(op, operands)?),
        Op::CumulativeSum(op) => Some(cumulative::cumulative_sum(op, operands)?),
        Op::Embedding(_) => Some(gather::prepare_embedding(operands, results)?),
        Op::EmbeddingGrad(_) => Some(gather::embedding_grad(operands, results)?),
        Op::Gather(_) => Some(gather::prepare_gather(operands, results)?),
        Op::ScatterSum(_) => Some(gather::scatter_sum(operands, results)?),
        Op::Scatter(op) => Some(gather::prepare_scatter(op, operands, results)?),
        Op::Rotary(op) => Some(rotary::prepare_rotary(op, operands)?),
        Op::Dispatch(op) => Some(experts::prepare_dispatch(op, operands, results)?),
        Op::Combine(op) => Some(experts::prepare_combine(op, operands, results)?),
        Op::CombineWeightsGrad(op) => Some(experts::weights_grad(op, operands, results)?),
        Op::GroupedMatMul(op) => Some(grouped::prepare_product(op, operands, results)?),
        Op::GroupedMatMulGrad(op) => Some(grouped::prepare_gradient(op, operands, results)?),
        Op::SgdUpdate(op) => Some(update::prepare_sgd(op, operands)),
        Op::AdamUpdate(op) => Some(update::prepare_adam(op, operands)),
        Op::RmspropUpdate(op) => Some(update::prepare_rmsprop(op, operands)),
        Op::LambDirection(op) => Some(update::lamb_direction(op, operands)),
        Op::LambUpdate(op) => Some(update::prepare_lamb(op, operands)),
        Op::Blend(op) => Some(update::prepare_blend(op, operands)),
        Op::SquareSum(_) => Some(scaling::square_sum(operands, results)),
        Op::ClipFactor(op) => Some(scaling::clip_factor(op, operands)),
        Op::NonFinite(_) => Some(scaling::non_finite(operands, results)),
        Op::LossScale(op) => Some(scaling::loss_scale(op, operands)),
        Op::SkipStep(_) => Some(scaling::skip_step()),
        Op::Custom(op) => return Err(KernelError::NoCustomKernel { name: op.name.clone() }),
        // What the user feeds is computed by nobody, and batch normalization by its parts.
        Op::Input(_) | Op::BatchNorm(_) | Op::BatchNormTraining(_) => None,
    };
    let call = call.ok_or_else(|| no_kernel(op.name(), operands, results))?;
    Ok(names::name_kernels(call, op, operands))
}

/// The call of a chain of elementwise ops, or of a convolution and elementwise ops.
///
/// # Errors
/// Returns an error if the types do not fit the chain, or a step has no kernel.
pub fn prepare_fused(
    fused: &FusedOp,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    match headed::prepare_headed(fused, operands, results)? {
        Some(call) => Ok(call),
        None => elementwise::prepare_chain(fused, operands, results),
    }
}

fn list_dtypes(shards: &[Shard]) -> Vec<DType> {
    shards.iter().map(Shard::dtype).collect()
}

fn no_kernel(op: &'static str, operands: &[Shard], results: &[Shard]) -> KernelError {
    let dtypes = Box::new([list_dtypes(operands), list_dtypes(results)]);
    KernelError::NoKernel { op, dtypes, device: DeviceKind::Cuda }
}
