//! Muon (Jordan et al., kellerjordan.github.io/posts/muon; Liu et al., arXiv 2502.16982, for its factors), as torch.optim.Muon.
//!
//! The momentum of a matrix is made nearly orthogonal by a few Newton-Schulz iterations, products of the matrix with
//! itself, and the step goes along the result. These are ops of the graph like any other: the planner lays them out, so
//! ranks share the products where that is cheaper than to repeat them, and the cost model knows what they take. Products
//! are of bf16 in mixed precision, as PyTorch's always are, and of f32 otherwise.
//!
//! The step itself is that of SGD without momentum: its weight decay by the learning rate is the decoupled one.

use graphc_ir::graph::Graph;
use graphc_ir::ids::ValueId;
use graphc_ir::learning_rate::LearningRate;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{BinaryFunction, MatMul, Reduce, ReduceFunction, UnaryFunction};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::DType;
use graphc_plan::MuonOptions;

use super::append::Scalars;
use super::update_ops::Ops;
use crate::decisions::TrainingGraph;

/// Whether a variable is a matrix or a batch of them. Windows of convolutions have more dims.
pub(super) fn has_matrices(graph: &Graph, variable: ValueId) -> bool {
    matches!(graph.value(variable).ty.shape.len(), 2 | 3)
}

/// The element type of products in a training of this precision, of a variable.
pub(super) fn product_dtype(precision: Option<DType>, variable: DType) -> DType {
    match precision.unwrap_or(variable) {
        DType::F32 => DType::F32,
        _ => DType::BF16,
    }
}

/// Appends the update of a variable of matrices, with its state. Products are of `dtype`.
pub(super) fn append_muon(
    training: &mut TrainingGraph,
    (options, dtype): (&MuonOptions, DType),
    (lr, clip): (LearningRate, Option<Scalar>),
    (variable, gradient): (ValueId, ValueId),
    scalars: Scalars,
) -> Result<(), OpError> {
    let shape = training.graph.value(variable).ty.shape.clone();
    let [.., rows, columns] = shape[..] else { return Ok(()) };
    let mut ops = Ops { training, variable, scalars };
    let gradient = ops.gradient(gradient, clip)?;
    let direction = ops.momentum(options, gradient)?;
    let direction = ops.normalize(direction, options.eps)?;
    let direction = ops.cast(direction, dtype)?;
    let nearly_orthogonal = ops.orthogonalize(options, direction, rows > columns)?;
    let nearly_orthogonal = ops.cast(nearly_orthogonal, DType::F32)?;
    let step = ops.scale(nearly_orthogonal, options.rate.factor(rows, columns))?;
    ops.step(step, lr, options.weight_decay)
}

impl Ops<'_> {
    fn product(&mut self, a: ValueId, b: ValueId, how: MatMul) -> Result<ValueId, OpError> {
        self.push(Op::MatMul(how), &[a, b])
    }

    /// Returns the momentum with the gradient of this step, and updates its state.
    fn momentum(&mut self, options: &MuonOptions, gradient: ValueId) -> Result<ValueId, OpError> {
        let state = self.state("momentum", 0.0)?;
        let of = [options.momentum, 1.0 - options.momentum];
        let momentum = self.average(state, gradient, of)?;
        match options.nesterov {
            true => self.mix([momentum, gradient], of),
            false => Ok(momentum),
        }
    }

    /// Divides each matrix by its norm, or by `eps` if that is greater, so that no singular value is above 1.
    fn normalize(&mut self, x: ValueId, eps: f64) -> Result<ValueId, OpError> {
        let dims = self.training.graph.value(x).ty.shape.len();
        let squares = self.binary(BinaryFunction::Mul, x, x)?;
        let (function, axes) = (ReduceFunction::Sum, vec![dims - 2, dims - 1]);
        let sum = self.push(Op::Reduce(Reduce { function, axes, keep_dims: true }), &[squares])?;
        let norm = self.unary(UnaryFunction::Sqrt, sum)?;
        let (low, high) = (Scalar(eps), Scalar(f64::from(f32::MAX)));
        let norm = self.unary(UnaryFunction::Clip { low, high }, norm)?;
        self.binary(BinaryFunction::Div, x, norm)
    }

    /// Returns nearly the orthogonal matrix nearest to each matrix `U S V^T`, which is `U V^T`. Products are with the smaller one of both Gram
    /// matrices: that of columns where a matrix is tall.
    fn orthogonalize(
        &mut self,
        options: &MuonOptions,
        mut x: ValueId,
        is_tall: bool,
    ) -> Result<ValueId, OpError> {
        let plain = MatMul { transpose_a: false, transpose_b: false };
        let gram_of = MatMul { transpose_a: is_tall, transpose_b: !is_tall };
        let [a, b, c] = options.coefficients;
        for _ in 0..options.iterations {
            let gram = self.product(x, x, gram_of)?;
            let square = self.product(gram, gram, plain)?;
            let polynomial = self.mix([gram, square], [b, c])?;
            let [first, second] = if is_tall { [x, polynomial] } else { [polynomial, x] };
            let further = self.product(first, second, plain)?;
            let kept = self.scale(x, a)?;
            x = self.binary(BinaryFunction::Add, kept, further)?;
        }
        Ok(x)
    }
}
