//! Muon (Jordan et al., kellerjordan.github.io/posts/muon; Liu et al., arXiv 2502.16982, for its factors), as torch.optim.Muon.
//!
//! The momentum of a matrix is made nearly orthogonal by a few Newton-Schulz iterations, products of the matrix with
//! itself, and the step goes along the result. These are ops of the graph like any other: the planner lays them out, so
//! ranks share the products where that is cheaper than to repeat them, and the cost model knows what they take. Products
//! are of bf16 in mixed precision, as PyTorch's always are, and of f32 otherwise.
//!
//! The step itself is that of SGD without momentum: its weight decay by the learning rate is the decoupled one.

use graphc_ir::graph::Graph;
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::learning_rate::LearningRate;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{
    Binary, BinaryFunction, Blend, Cast, MatMul, Reduce, ReduceFunction, SgdUpdate, Unary,
    UnaryFunction,
};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::{MuonOptions, TensorKind};

use super::append::{Scalars, push_node, push_state, push_value};
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
    let beside = training.graph.value(variable).producer;
    let shape = training.graph.value(variable).ty.shape.clone();
    let [.., rows, columns] = shape[..] else { return Ok(()) };
    let mut ops = Ops { training, beside };
    let mut gradient = ops.cast(gradient, DType::F32)?;
    if let Some(factor) = scalars.factor {
        gradient = ops.binary(BinaryFunction::Mul, gradient, factor)?;
    }
    if let Some(Scalar(most)) = clip {
        let function = UnaryFunction::Clip { low: Scalar(-most), high: Scalar(most) };
        gradient = ops.unary(function, gradient)?;
    }
    let direction = ops.momentum(options, (variable, gradient), scalars)?;
    let direction = ops.normalize(direction, options.eps)?;
    let direction = ops.cast(direction, dtype)?;
    let nearly_orthogonal = ops.orthogonalize(options, direction, rows > columns)?;
    let nearly_orthogonal = ops.cast(nearly_orthogonal, DType::F32)?;
    let step = ops.scale(nearly_orthogonal, options.rate.factor(rows, columns))?;
    let made = match scalars.made {
        // SGD would take it as a factor of the step.
        Some(made) => Some(ops.unary(UnaryFunction::Sign, made)?),
        None => None,
    };
    let weight_decay = Scalar(options.weight_decay);
    let update = Op::SgdUpdate(SgdUpdate { lr, weight_decay, ..SgdUpdate::default() });
    let operands = [variable, step].into_iter().chain(made).collect();
    push_node(ops.training, update, operands, beside, &[TensorKind::Parameter])?;
    Ok(())
}

/// Pushes ops beside a variable.
struct Ops<'a> {
    training: &'a mut TrainingGraph,
    beside: NodeId,
}

impl Ops<'_> {
    fn push(&mut self, op: Op, operands: &[ValueId]) -> Result<ValueId, OpError> {
        push_value(self.training, op, operands.to_vec(), self.beside)
    }

    fn unary(&mut self, function: UnaryFunction, x: ValueId) -> Result<ValueId, OpError> {
        self.push(Op::Unary(Unary { function }), &[x])
    }

    fn scale(&mut self, x: ValueId, factor: f64) -> Result<ValueId, OpError> {
        self.unary(UnaryFunction::Scale(Scalar(factor)), x)
    }

    fn binary(
        &mut self,
        function: BinaryFunction,
        a: ValueId,
        b: ValueId,
    ) -> Result<ValueId, OpError> {
        self.push(Op::Binary(Binary { function }), &[a, b])
    }

    /// `of_a a + of_b b`
    fn mix(&mut self, [a, b]: [ValueId; 2], [of_a, of_b]: [f64; 2]) -> Result<ValueId, OpError> {
        let (a, b) = (self.scale(a, of_a)?, self.scale(b, of_b)?);
        self.binary(BinaryFunction::Add, a, b)
    }

    fn product(&mut self, a: ValueId, b: ValueId, how: MatMul) -> Result<ValueId, OpError> {
        self.push(Op::MatMul(how), &[a, b])
    }

    fn cast(&mut self, x: ValueId, dtype: DType) -> Result<ValueId, OpError> {
        match self.training.graph.value(x).ty.dtype == dtype {
            true => Ok(x),
            false => self.push(Op::Cast(Cast { dtype }), &[x]),
        }
    }

    /// Returns the momentum with the gradient of this step, and updates its state. The state alone is not to be read once it is
    /// updated, so the same is computed beside it.
    fn momentum(
        &mut self,
        options: &MuonOptions,
        (variable, gradient): (ValueId, ValueId),
        scalars: Scalars,
    ) -> Result<ValueId, OpError> {
        let graph = &self.training.graph;
        let name = format!("state.momentum.{}", graph.display_name(variable));
        let ty = TensorType::new(DType::F32, graph.value(variable).ty.shape.clone());
        let state = push_state(self.training, name, ty, self.beside)?;
        let [kept, new] = [options.momentum, 1.0 - options.momentum];
        let momentum = self.mix([state, gradient], [kept, new])?;
        let update = Op::Blend(Blend::with_decay(kept, new));
        let operands = [state, gradient].into_iter().chain(scalars.made).collect();
        push_node(self.training, update, operands, self.beside, &[TensorKind::State])?;
        match options.nesterov {
            true => self.mix([momentum, gradient], [kept, new]),
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
