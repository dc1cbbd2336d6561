//! The trait that every op implements, and the words of its questions and answers.
//!
//! - [`Operation::rule`] gives the iteration space: each dim of each operand and result is a product of factors. The shapes of
//!   results, all valid SBP signatures on every mesh, FLOPs and bytes follow from it ([`crate::rule`]).
//! - [`Operation::evaluate`] is the oracle. It computes shards in `f64`, and knows each whole shape and where each shard begins.
//! - The other methods answer questions, e.g. [`Operation::is_elementwise`], [`Operation::is_executed`] and [`Operation::movement`].
//!   Passes, planner and lowering ask these questions. They name an op only where they mean that one op.
//!
//! Most ops take a fixed number of FLOPs for each point of their iteration space. An op that does not overrides
//! [`Operation::flops`]: convolution does, because the extents of its images are no products of factors. An op whose FLOPs are
//! those of matrix products says so ([`Operation::multiplies_matrices`]). The cost model then takes the share of a device's peak
//! that products reach.
//!
//! Nothing here knows which ops there are: [`crate::ops`] stands above this module, and the closed set of them above that.

mod error;

use crate::array::Array;
use crate::random::RandomStream;
use crate::rule::Rule;
use crate::shard::Rect;
use crate::types::{DType, TensorType};

pub use error::{OpError, shape_error};
pub(crate) use error::{check_arity, dtype_error};

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

/// The trait of payloads, which says all that an op means but its gradient; the module explains the idea.
pub trait Operation {
    /// Returns the name of the op in the text format; equal to the serde tag of its `Op` variant.
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

    /// Returns the operand that is a variable's gradient, if the op is the step of an optimizer: of the variable's type or of f32.
    fn gradient_operand(&self) -> Option<usize> {
        None
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
