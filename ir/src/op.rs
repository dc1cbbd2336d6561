//! The closed set of ops.
//!
//! An op is a variant of [`Op`] with a typed payload. One file under `ops/` holds the payload and implements [`Operation`] for
//! it: its rule, its evaluation, and answers to what passes, planner and lowering ask. A new op is such a file, a line in
//! [`Op`], and one in [`Op::operation`]. Its gradient is written with the builder, which makes ops, so it stands above both of
//! them: in the file of the same name under `gradients/` ([`crate::gradients`]).
//!
//! The tests in `ir/tests/ops_properties` hold each op to this: signatures against the whole tensor, gradients against finite
//! differences, and answers against what the op computes.

use serde::{Deserialize, Serialize};

use crate::ops::*;
use crate::types::{DType, TensorType};

pub use crate::operation::{
    Arithmetic, AttentionShape, ConvolutionShape, EvalContext, InPlace, Movement, OpError, Operand,
    Operation, Region, shape_error,
};

/// One op with its payload.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// A tensor that the user feeds each step.
    Input(Input),
    /// A weight or a state of the optimizer.
    Variable(Variable),
    /// A small literal.
    Constant(Constant),
    /// A tensor with one value everywhere.
    Full(Full),
    /// A tensor that holds at each element its index along a dim.
    Iota(Iota),
    /// Random numbers.
    Random(Random),
    /// An elementwise function of one operand.
    Unary(Unary),
    /// An elementwise function of two operands, broadcast.
    Binary(Binary),
    /// An elementwise choice between two operands, broadcast.
    Where(Where),
    /// A change of the element type.
    Cast(Cast),
    /// The sum, mean, greatest or least over dims.
    Reduce(Reduce),
    /// The index of the greatest along a dim.
    #[serde(rename = "argmax")]
    ArgMax(ArgMax),
    /// Matrix product, batched and broadcast.
    #[serde(rename = "matmul")]
    MatMul(MatMul),
    /// A change of the shape; the elements stay the same, in the same order.
    Reshape(Reshape),
    /// A change of the order of dims.
    Transpose(Transpose),
    /// A strided part of a tensor.
    Slice(Slice),
    /// Concatenation: operands one after the other along a dim.
    Concat(Concat),
    /// The parts of a tensor, of given extents along a dim.
    Split(Split),
    /// A repetition of dims of extent 1.
    Expand(Expand),
    /// A border of one value, the inverse of a slice.
    Pad(Pad),
    /// Softmax over one dim.
    Softmax(Softmax),
    /// Gradient of softmax.
    SoftmaxGrad(SoftmaxGrad),
    /// Logarithm of softmax over one dim.
    LogSoftmax(LogSoftmax),
    /// Gradient of the logarithm of softmax.
    LogSoftmaxGrad(LogSoftmaxGrad),
    /// Layer or root-mean-square normalization over the last dim, without scale and shift.
    Normalize(Normalize),
    /// Gradient of normalization.
    NormalizeGrad(NormalizeGrad),
    /// Look-up of rows of a table.
    Embedding(EmbeddingOp),
    /// Gradient of the look-up: rows added into a table.
    EmbeddingGrad(EmbeddingGrad),
    /// Look-up of elements at computed places.
    Gather(Gather),
    /// Sums of elements over computed places.
    ScatterSum(ScatterSum),
    /// Values put at computed places.
    Scatter(Scatter),
    /// The greatest or least elements of each row, and their places.
    TopK(TopK),
    /// Sums of all elements of a dim up to each.
    CumulativeSum(CumulativeSum),
    /// One element of the last dim, chosen by a label.
    Pick(Pick),
    /// Gradient of [`Op::Pick`].
    PickGrad(PickGrad),
    /// Cross entropy per position, and the log-sum-exp that its gradient needs.
    CrossEntropy(CrossEntropy),
    /// Gradient of cross entropy.
    CrossEntropyGrad(CrossEntropyGrad),
    /// The number of classes that score more than the label.
    LabelRank(LabelRank),
    /// Weighted means of values, by the softmax of products of queries and keys.
    Attention(Attention),
    /// Gradient of attention.
    AttentionGrad(AttentionGrad),
    /// Rotary position embedding: pairs of elements turned by angles that grow with the position.
    Rotary(Rotary),
    /// Recurrent cells over a sequence.
    Recurrence(Recurrence),
    /// Gradient of [`Op::Recurrence`].
    RecurrenceGrad(RecurrenceGrad),
    /// Correlation of images with kernels, in two dims.
    Convolution(Convolution),
    /// Gradient of a convolution's images.
    ConvolutionInputGrad(ConvolutionInputGrad),
    /// Gradient of a convolution's kernels.
    ConvolutionKernelGrad(ConvolutionKernelGrad),
    /// The greatest of each window of an image.
    MaxPool(MaxPool),
    /// Gradient of [`Op::MaxPool`].
    MaxPoolGrad(MaxPoolGrad),
    /// The mean of each window of an image.
    AveragePool(AveragePool),
    /// Gradient of [`Op::AveragePool`].
    AveragePoolGrad(AveragePoolGrad),
    /// Interpolation of a dim to another extent.
    Resize(Resize),
    /// Gradient of [`Op::Resize`].
    ResizeGrad(ResizeGrad),
    /// Normalization of channels, scaled and shifted.
    BatchNorm(BatchNorm),
    /// Normalization of channels by the statistics of the batch.
    BatchNormTraining(BatchNormTraining),
    /// Dispatch of tokens to the places of experts.
    Dispatch(Dispatch),
    /// Sums of what lies at the places of experts, back at the tokens.
    Combine(Combine),
    /// Gradient of the weights of [`Op::Combine`].
    CombineWeightsGrad(CombineWeightsGrad),
    /// Product of runs of places with the matrices of experts.
    #[serde(rename = "grouped_matmul")]
    GroupedMatMul(GroupedMatMul),
    /// Gradient of the matrices of [`Op::GroupedMatMul`].
    #[serde(rename = "grouped_matmul_grad")]
    GroupedMatMulGrad(GroupedMatMulGrad),
    /// Dropout: random zeros, the rest scaled.
    Dropout(DropoutOp),
    /// The lower or upper triangle.
    Triangle(Triangle),
    /// Chunks of a sequence in another order: early ones beside late ones.
    Zigzag(Zigzag),
    /// A step of SGD.
    SgdUpdate(SgdUpdate),
    /// A step of Adam or AdamW.
    AdamUpdate(AdamUpdate),
    /// A step of RMSprop.
    RmspropUpdate(RmspropUpdate),
    /// The direction of a step of LAMB.
    LambDirection(LambDirection),
    /// A step of LAMB along its direction.
    LambUpdate(LambUpdate),
    /// The sum of the squares of all elements.
    SquareSum(SquareSum),
    /// The factor of gradients that bounds their norm.
    ClipFactor(ClipFactor),
    /// A state that keeps a share of itself and takes in something new.
    Blend(Blend),
    /// The number of elements that are not finite.
    NonFinite(NonFinite),
    /// The scale of the loss after a step, and whether the step is made.
    LossScale(LossScale),
    /// The decision whether a step is made, by the count of what is not finite.
    SkipStep(SkipStep),
    /// A tensor on another placement or in another layout, as the user asked.
    ToGlobal(ToGlobal),
    /// An op of a program's own.
    Custom(Custom),
    /// A tensor, unchanged, for later readers, in a layout of its own.
    Regather(Regather),
    /// The sum of a tensor over a step's microbatches; of a whole batch, the same tensor.
    Accumulate(Accumulate),
}

impl Op {
    /// Returns the payload, as the trait that says all that the op means.
    pub fn operation(&self) -> &dyn Operation {
        match self {
            Op::Input(op) => op,
            Op::Variable(op) => op,
            Op::Constant(op) => op,
            Op::Full(op) => op,
            Op::Iota(op) => op,
            Op::Random(op) => op,
            Op::Unary(op) => op,
            Op::Binary(op) => op,
            Op::Where(op) => op,
            Op::Cast(op) => op,
            Op::Reduce(op) => op,
            Op::ArgMax(op) => op,
            Op::MatMul(op) => op,
            Op::Reshape(op) => op,
            Op::Transpose(op) => op,
            Op::Slice(op) => op,
            Op::Concat(op) => op,
            Op::Split(op) => op,
            Op::Expand(op) => op,
            Op::Pad(op) => op,
            Op::Softmax(op) => op,
            Op::SoftmaxGrad(op) => op,
            Op::LogSoftmax(op) => op,
            Op::LogSoftmaxGrad(op) => op,
            Op::Normalize(op) => op,
            Op::NormalizeGrad(op) => op,
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
            Op::CrossEntropyGrad(op) => op,
            Op::LabelRank(op) => op,
            Op::Attention(op) => op,
            Op::AttentionGrad(op) => op,
            Op::Rotary(op) => op,
            Op::Recurrence(op) => op,
            Op::RecurrenceGrad(op) => op,
            Op::Convolution(op) => op,
            Op::ConvolutionInputGrad(op) => op,
            Op::ConvolutionKernelGrad(op) => op,
            Op::MaxPool(op) => op,
            Op::MaxPoolGrad(op) => op,
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
            Op::SgdUpdate(op) => op,
            Op::AdamUpdate(op) => op,
            Op::RmspropUpdate(op) => op,
            Op::LambDirection(op) => op,
            Op::LambUpdate(op) => op,
            Op::SquareSum(op) => op,
            Op::ClipFactor(op) => op,
            Op::Blend(op) => op,
            Op::NonFinite(op) => op,
            Op::LossScale(op) => op,
            Op::SkipStep(op) => op,
            Op::ToGlobal(op) => op,
            Op::Custom(op) => op,
            Op::Regather(op) => op,
            Op::Accumulate(op) => op,
        }
    }

    /// Returns the name of the op in the text format, e.g. `matmul`.
    pub fn name(&self) -> &'static str {
        self.operation().name()
    }

    /// Returns whether the op brings what comes from outside the graph, as inputs and variables do.
    pub fn is_given(&self) -> bool {
        self.operation().is_source() && !self.operation().is_function()
    }

    /// Returns whether the op makes its numbers of nothing, so that they may be made anew wherever they are needed.
    pub fn is_generator(&self) -> bool {
        self.operation().is_source() && self.operation().is_function()
    }

    /// Returns the element type in which the op computes, which decides the peak that its FLOPs are held against: of matrix products that of their
    /// operands, in whatever they add up; of other ops that of the first result, f32 where there is none.
    pub fn compute_dtype(&self, operands: &[&TensorType], results: &[&TensorType]) -> DType {
        let decides = match self.operation().multiplies_matrices() {
            true => operands.first(),
            false => results.first(),
        };
        decides.map_or(DType::F32, |ty| ty.dtype)
    }

    /// Whether elements may be floating-point numbers of 8 bits.
    fn takes_float8(&self) -> bool {
        let moves = || self.operation().movement().is_some();
        let rounds = || matches!(self, Self::Binary(op) if op.function.rounds_float8());
        let multiplies = || {
            matches!(self, Self::MatMul(_) | Self::GroupedMatMul(_) | Self::GroupedMatMulGrad(_))
        };
        matches!(self, Self::Cast(_) | Self::ToGlobal(_) | Self::Regather(_))
            || multiplies()
            || rounds()
            || moves()
    }

    /// Infers the types of the results from those of the operands: element types by [`Operation::infer_dtypes`], shapes by the rule.
    ///
    /// # Errors
    /// Returns an error if number, element types or shapes of the operands do not fit the op.
    pub fn infer_types(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let dtypes = self.operation().infer_dtypes(operands)?;
        let mut all = operands.iter().map(|ty| &ty.dtype).chain(&dtypes);
        if all.any(|dtype| dtype.is_float8()) && !self.takes_float8() {
            return Err(OpError::Float8 { op: self.operation().name() });
        }
        let shapes = self.operation().rule(operands)?.result_shapes();
        Ok(dtypes
            .into_iter()
            .zip(shapes)
            .map(|(dtype, shape)| TensorType { dtype, shape })
            .collect())
    }
}
