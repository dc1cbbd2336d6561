//! Cases of every op: payloads, operand types, and from where the numbers of operands are drawn.

use std::fmt;

use graphc_ir::array::Array;
use graphc_ir::op::Op;
use graphc_ir::ops::{Init, Variable};
use graphc_ir::types::{DType, TensorType};

use crate::shards::Random;

mod arithmetic;
mod attention;
mod experts;
mod images;
mod indexing;
mod movement;
mod network;
mod recurrence;
mod sources;
mod training;

/// One application of an op.
pub struct Case {
    pub op: Op,
    pub operands: Vec<Sample>,
    /// Whether the extents allow the check that no signature is missing: even, and none decides about the op.
    pub complete: bool,
}

/// The type of an operand and its numbers.
pub struct Sample {
    pub ty: TensorType,
    pub domain: Domain,
}

/// The range from which numbers are drawn.
#[derive(Clone, Copy)]
pub enum Domain {
    /// Between 0.1 and 2, of either sign: no kink at 0 is near.
    Any,
    /// Between 0.5 and 2.
    Positive,
    /// Integers in -4..5, but 0.
    Integer,
    /// Every third infinite or no number.
    NotFinite,
    /// 0 or 1.
    Truth,
    /// Classes or rows in 0..n.
    Index(usize),
    /// Classes in 0..n, every third ignored.
    Label(usize),
}

impl Case {
    /// A case for signatures and gradients.
    pub fn new(op: Op, operands: Vec<Sample>) -> Self {
        Self { op, operands, complete: false }
    }

    /// A case for completeness too.
    pub fn complete(op: Op, operands: Vec<Sample>) -> Self {
        Self { op, operands, complete: true }
    }

    /// Whether the op computes its result by itself: inputs and weights of files are fed.
    pub fn can_be_evaluated(&self) -> bool {
        !matches!(self.op, Op::Input(_) | Op::Variable(Variable { init: Init::Weights, .. }))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types: Vec<String> = self.operands.iter().map(|sample| sample.ty.to_string()).collect();
        write!(f, "{:?} of {}", self.op, types.join(", "))
    }
}

impl Sample {
    /// Numbers of this domain.
    pub fn draw(&self, random: &mut Random) -> Array {
        let mut position = 0;
        Array::from_fn(self.ty.shape.clone(), |_| {
            position += 1;
            match self.domain {
                Domain::Any => {
                    let sign = if random.uniform(0.0, 1.0) < 0.5 { -1.0 } else { 1.0 };
                    sign * random.uniform(0.1, 2.0)
                }
                Domain::Positive => random.uniform(0.5, 2.0),
                Domain::NotFinite if position % 6 == 0 => f64::NAN,
                Domain::NotFinite if position % 3 == 0 => f64::INFINITY,
                Domain::NotFinite => random.uniform(-2.0, 2.0),
                Domain::Integer => match random.integer(-4, 5) {
                    0 => 3.0,
                    x => x as f64,
                },
                Domain::Truth => random.integer(0, 2) as f64,
                Domain::Label(_) if position % 3 == 0 => -100.0,
                Domain::Label(n) | Domain::Index(n) => random.integer(0, n as i64) as f64,
            }
        })
    }
}

/// Floating-point numbers.
pub fn floats(shape: &[usize]) -> Sample {
    Sample { ty: TensorType::new(DType::F32, shape), domain: Domain::Any }
}

/// Numbers of 8 bits.
pub fn eights(shape: &[usize]) -> Sample {
    Sample { ty: TensorType::new(DType::F8E4M3, shape), domain: Domain::Any }
}

/// Positive floating-point numbers.
pub fn positive(shape: &[usize]) -> Sample {
    Sample { ty: TensorType::new(DType::F32, shape), domain: Domain::Positive }
}

/// Floating-point numbers of which some are not finite.
pub fn not_finite(shape: &[usize]) -> Sample {
    Sample { ty: TensorType::new(DType::F32, shape), domain: Domain::NotFinite }
}

/// Integers.
pub fn integers(shape: &[usize]) -> Sample {
    Sample { ty: TensorType::new(DType::I64, shape), domain: Domain::Integer }
}

/// Truth values.
pub fn truths(shape: &[usize]) -> Sample {
    Sample { ty: TensorType::new(DType::Bool, shape), domain: Domain::Truth }
}

/// Rows or classes, in 0..n.
pub fn indices(shape: &[usize], n: usize) -> Sample {
    Sample { ty: TensorType::new(DType::I64, shape), domain: Domain::Index(n) }
}

/// Classes in 0..n, some ignored.
pub fn labels(shape: &[usize], n: usize) -> Sample {
    Sample { ty: TensorType::new(DType::I64, shape), domain: Domain::Label(n) }
}

/// Shapes of a tensor with a lane of more than one element, and whether they are for completeness.
pub const SHAPES: [(&[usize], bool); 4] =
    [(&[4, 6], true), (&[5, 3], false), (&[2, 3, 4], false), (&[0, 3], false)];

/// A case, or several, of each of these shapes.
pub fn each_shape(case: impl Fn(&[usize], bool) -> Vec<Case>) -> Vec<Case> {
    SHAPES.iter().flat_map(|&(shape, complete)| case(shape, complete)).collect()
}

/// Returns all cases.
pub fn all() -> Vec<Case> {
    [
        sources::cases(),
        arithmetic::cases(),
        movement::cases(),
        network::cases(),
        training::cases(),
        attention::cases(),
        images::cases(),
        recurrence::cases(),
        experts::cases(),
        indexing::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Whether the op has gradients to check. A new variant must be decided upon here, and needs cases: a test
/// compares them with the variants.
pub fn is_differentiable(op: &Op) -> bool {
    match op {
        Op::Input(_)
        | Op::Variable(_)
        | Op::Constant(_)
        | Op::Full(_)
        | Op::Iota(_)
        | Op::Random(_)
        | Op::ArgMax(_)
        // Gradients of gradients are not taken of these.
        | Op::SoftmaxGrad(_)
        | Op::LogSoftmaxGrad(_)
        | Op::NormalizeGrad(_)
        | Op::CrossEntropyGrad(_)
        | Op::AttentionGrad(_)
        | Op::RecurrenceGrad(_)
        | Op::MaxPoolGrad(_)
        | Op::NonFinite(_)
        | Op::LossScale(_)
        | Op::SkipStep(_)
        | Op::SquareSum(_)
        | Op::ClipFactor(_)
        | Op::LabelRank(_)
        | Op::RmspropUpdate(_)
        | Op::LambDirection(_)
        | Op::LambUpdate(_)
        | Op::SgdUpdate(_)
        | Op::AdamUpdate(_)
        | Op::Blend(_)
        // No rule says what it computes: `tests/plans/random_graphs.rs` holds it against a composition of other ops.
        | Op::Custom(_) => false,
        Op::Binary(binary) => binary.function.result_dtype(DType::F32).is_float(),
        Op::Cast(cast) => cast.dtype.is_float(),
        Op::Unary(_)
        | Op::Where(_)
        | Op::Reduce(_)
        | Op::MatMul(_)
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Slice(_)
        | Op::Concat(_)
        | Op::Split(_)
        | Op::Expand(_)
        | Op::Pad(_)
        | Op::Softmax(_)
        | Op::LogSoftmax(_)
        | Op::Normalize(_)
        | Op::Embedding(_)
        | Op::EmbeddingGrad(_)
        | Op::Gather(_)
        | Op::ScatterSum(_)
        | Op::Scatter(_)
        | Op::TopK(_)
        | Op::CumulativeSum(_)
        | Op::Pick(_)
        | Op::PickGrad(_)
        | Op::CrossEntropy(_)
        | Op::Attention(_)
        | Op::Rotary(_)
        | Op::Recurrence(_)
        | Op::Convolution(_)
        | Op::ConvolutionInputGrad(_)
        | Op::ConvolutionKernelGrad(_)
        | Op::MaxPool(_)
        | Op::AveragePool(_)
        | Op::AveragePoolGrad(_)
        | Op::Resize(_)
        | Op::ResizeGrad(_)
        | Op::BatchNorm(_)
        | Op::BatchNormTraining(_)
        | Op::Dispatch(_)
        | Op::Combine(_)
        | Op::CombineWeightsGrad(_)
        | Op::GroupedMatMul(_)
        | Op::GroupedMatMulGrad(_)
        | Op::Dropout(_)
        | Op::Triangle(_)
        | Op::Zigzag(_)
        | Op::ToGlobal(_)
        | Op::Regather(_)
        | Op::Accumulate(_) => true,
    }
}
