//! The closed set of ops, and the trait that says all that an op means.
//!
//! An op is a variant of [`Op`] with a typed payload. One file under `ops/` holds the payload and implements [`Operation`] for
//! it. A new op is such a file, a line in [`Op`], and one in [`Op::operation`].
//!
//! - [`Operation::rule`] gives the iteration space: each dim of each operand and result is a product of factors. The shapes of
//!   results, all valid SBP signatures on every mesh, FLOPs and bytes follow from it ([`crate::rule`]).
//! - [`Operation::gradient`] is written with the builder, so a gradient is itself a graph.
//! - [`Operation::evaluate`] is the oracle. It computes shards in `f64`, and knows each whole shape and where each shard begins.
//! - The other methods answer questions, e.g. [`Operation::is_elementwise`], [`Operation::is_executed`] and [`Operation::movement`].
//!   Passes, planner and lowering ask these questions. They name an op only where they mean that one op.
//!
//! Most ops take a fixed number of FLOPs for each point of their iteration space. An op that does not overrides
//! [`Operation::flops`]: convolution does, because the extents of its images are no products of factors. An op whose FLOPs are
//! those of matrix products says so ([`Operation::multiplies_matrices`]). The cost model then takes the share of a device's peak
//! that products reach.
//!
//! The tests in `ir/tests/ops_properties` hold each op to this: signatures against the whole tensor, gradients against finite
//! differences, and answers against what the op computes.

mod error;

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::builder::Tensor;
use crate::ops::*;
use crate::random::RandomStream;
use crate::rule::Rule;
use crate::shard::Rect;
use crate::types::{DType, TensorType};

pub use error::{OpError, shape_error};
pub(crate) use error::{check_arity, dtype_error};

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
    /// Dropout: random zeros, the rest scaled.
    Dropout(DropoutOp),
    /// The lower or upper triangle.
    Triangle(Triangle),
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
            Op::Dropout(op) => op,
            Op::Triangle(op) => op,
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
        let rounds = BinaryFunction::RoundFloat8;
        let rounds = || matches!(self, Self::Binary(op) if op.function == rounds);
        matches!(self, Self::Cast(_) | Self::MatMul(_) | Self::ToGlobal(_) | Self::Regather(_))
            || rounds()
            || moves()
    }

    /// Infers the types of the results from those of the operands: element types by [`Operation::infer_dtypes`], shapes by the rule.
    ///
    /// # Errors
    /// Returns an error if number, element types or shapes of the operands do not fit the op.
    pub fn infer_types(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let dtypes = self.operation().infer_dtypes(operands)?;
        let is_float8 = |dtype: &DType| *dtype == DType::F8E4M3;
        let mut all = operands.iter().map(|ty| &ty.dtype).chain(&dtypes);
        if all.any(is_float8) && !self.takes_float8() {
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

/// The kind of an op's FLOPs, which decides the share of a device's peak that they reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arithmetic {
    /// The FLOPs of ops that treat elements one by one: the memory that these lie in takes the time.
    Elementwise,
    /// The FLOPs of matrix products.
    Products,
    /// The FLOPs of attention without a matrix of scores: products between which exponentials are computed.
    Attention(AttentionShape),
    /// The FLOPs of a convolution whose windows have several elements: products whose factors are gathered first.
    Convolution(ConvolutionShape),
}

/// The sizes that the speed of a convolution by windows of several elements depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionShape {
    /// The number of channels that each gathered element is multiplied for: those of a group that the convolution makes, or, in the gradient of
    /// images, those that it reads.
    pub columns: usize,
    /// Whether it is one of the two gradients.
    pub backward: bool,
}

/// The sizes that the speed of attention depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// The number of elements of a head.
    pub width: usize,
    /// The number of keys that a query sees in the mean.
    pub keys: f64,
    /// Whether it is the backward pass.
    pub backward: bool,
}

/// The trait of payloads, which says all that an op means; the module explains the idea.
pub trait Operation {
    /// Returns the name of the op in the text format; equal to the serde tag of its [`Op`] variant.
    fn name(&self) -> &'static str;

    /// Infers the element types of the results.
    ///
    /// # Errors
    /// Returns an error if the number or the element types of the operands do not fit.
    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError>;

    /// Returns the rule of the op, which describes its iteration space. It is called after [`Operation::infer_dtypes`] has accepted the operands.
    ///
    /// # Errors
    /// Returns an error if the shapes do not fit.
    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError>;

    /// Returns the floating-point operations per point of the iteration space.
    fn flops_per_point(&self) -> f64 {
        1.0
    }

    /// Returns the floating-point operations of the whole iteration space, or of the part that a rule with smaller factors describes.
    fn flops(&self, rule: &Rule) -> f64 {
        rule.count_points() * self.flops_per_point()
    }

    /// Returns the floating-point operations of the part of the iteration space `whole` that has most of them, of all parts whose factors are as
    /// large as those of `part`.
    fn most_flops(&self, _whole: &Rule, part: &Rule) -> f64 {
        self.flops(part)
    }

    /// Returns the share of the op's FLOPs that compute again what another op has computed, so that they are none of the model's own.
    fn repeated_share(&self) -> f64 {
        0.0
    }

    /// Returns whether the op's FLOPs are those of matrix products, which reach another share of a device's peak than the rest.
    fn multiplies_matrices(&self) -> bool {
        false
    }

    /// Returns whether ranks do something for the op. A variable, and what only says in which layout a tensor is taken, cost nothing by themselves.
    fn is_executed(&self) -> bool {
        true
    }

    /// Returns whether the op has no operands: its results come from outside, or are made of nothing.
    fn is_source(&self) -> bool {
        false
    }

    /// Returns whether the op's results depend on nothing but operands and payload, so that they may be computed again, and wherever they are read.
    fn is_function(&self) -> bool {
        self.updates().is_empty()
    }

    /// Returns how the op moves the elements of its only operand, if each element of its only result is one of them.
    fn movement(&self) -> Option<Movement> {
        None
    }

    /// Returns whether each element takes an instruction or two.
    fn is_light(&self) -> bool {
        false
    }

    /// Returns the kind of the op's FLOPs, for operands of these types, which it has accepted.
    fn arithmetic(&self, _operands: &[&TensorType]) -> Arithmetic {
        if self.multiplies_matrices() { Arithmetic::Products } else { Arithmetic::Elementwise }
    }

    /// Returns the gradients of the operands from those of the results (`None`: zero), written with the builder. `None` where the op has none to
    /// give: an integer operand, say.
    fn gradient(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>>;

    /// Evaluates the op on shards, as the oracle: plain, slow, obviously right. It knows the whole shape of each operand and result, and where the
    /// shard lies, and computes each result's `rect`.
    ///
    /// # Errors
    /// Returns an error if an index (label, class, row) is out of range.
    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError>;

    /// Returns the results that take the place of an operand, as (result, operand): updates of variables.
    fn updates(&self) -> &[(usize, usize)] {
        &[]
    }

    /// Returns the results that may be computed in the memory of an operand of the same shard and element type, if nobody reads the operand later.
    /// Every kernel of the op is ready for it: lowering shares memory by this, and the proof of a plan allows no other sharing.
    fn in_place(&self) -> Vec<InPlace> {
        self.updates().iter().map(|&(result, operand)| InPlace::new(result, operand)).collect()
    }

    /// Returns whether each element of the result is computed from one element of each operand, broadcast: a step of a fused chain is such an op.
    fn is_elementwise(&self) -> bool {
        false
    }

    /// Returns whether elementwise ops of the op's only result may be steps of the actor that computes it: its kernels have an epilogue, which reads
    /// parts of the result while the cache has them.
    fn begins_chain(&self) -> bool {
        false
    }
}

/// The way in which an op that only moves elements does so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movement {
    /// Each element is there once, in another shape or order.
    Rearranged,
    /// A part of the elements is there.
    Part,
    /// Elements are there several times.
    Repeated,
}

/// A result in the memory of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlace {
    /// The index of the result.
    pub result: usize,
    /// The index of the operand.
    pub operand: usize,
    /// Whether the bytes stay as they are, so that both may be read later; their shapes may differ then.
    pub same_bytes: bool,
}

impl InPlace {
    /// Makes the pair of a result and the operand that it is written over.
    pub fn new(result: usize, operand: usize) -> Self {
        Self { result, operand, same_bytes: false }
    }

    /// Returns the pair of the only result and the only operand, whose bytes stay as they are.
    pub fn same_bytes() -> Vec<Self> {
        vec![Self { result: 0, operand: 0, same_bytes: true }]
    }
}

/// A node as [`Operation::gradient`] sees it.
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

/// The place of a shard in its tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Element type.
    pub dtype: DType,
    /// Shape of the whole tensor.
    pub global: Vec<usize>,
    /// The part of the tensor that the shard covers.
    pub rect: Rect,
}

impl Region {
    /// Returns the region of a whole tensor.
    pub fn whole(ty: &TensorType) -> Self {
        Self { dtype: ty.dtype, global: ty.shape.clone(), rect: Rect::whole(&ty.shape) }
    }
}

/// An operand of [`Operation::evaluate`].
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// The elements of the shard.
    pub array: &'a Array,
    /// The place of the shard in its tensor.
    pub region: &'a Region,
}

/// The seed and the step that evaluation needs besides operands.
#[derive(Clone, Copy, Debug, Default)]
pub struct EvalContext {
    /// The job's seed.
    pub seed: u64,
    /// The training step, from 0.
    pub step: u64,
}

impl EvalContext {
    /// Returns the random stream of a key at this step.
    pub fn random_stream(&self, key: u64) -> RandomStream {
        RandomStream { seed: self.seed, key, step: self.step }
    }
}
