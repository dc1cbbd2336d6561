//! Adafactor (Shazeer and Stern, arXiv 1804.04235), as torch.optim.Adafactor, and as transformers has it without a relative step.
//!
//! Second moments of a matrix, or of each matrix of a batch, are kept as those of its rows and of its columns; those of a
//! variable of fewer dims are kept element by element. The root mean square of a step is scaled down to at most `clip`, and then
//! multiplied by that of the variable. Sums over a split variable are partial sums like any other.
//!
//! torch.optim's rate is at most `1 / sqrt(n)` at update n. The step of SGD takes this limit as an operand, because the rate
//! itself is no value of the graph.

use graphc_ir::ids::ValueId;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{BinaryFunction, Reduce, ReduceFunction, Reshape, SquareSum, UnaryFunction};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::AdafactorOptions;

use super::update_ops::Ops;

impl Ops<'_> {
    /// The direction of Adafactor. Where the rate has no limit, the weight decay goes by the scaled rate, and is a part of the direction.
    pub(super) fn adafactor(
        &mut self,
        gradient: ValueId,
        options: &AdafactorOptions,
        decay: f64,
    ) -> Result<ValueId, OpError> {
        let number = self.scalars.number.expect("it is there for rules that count");
        let share =
            self.unary(UnaryFunction::PowScalar(Scalar(-options.decay_exponent)), number)?;
        let square = self.mul(gradient, gradient)?;
        let square = match options.fixed_rate {
            true => self.offset(square, options.eps)?,
            false => square,
        };
        let moment = self.factored_moment(square, share, options)?;
        let moment = match options.fixed_rate {
            true => moment,
            false => self.at_least(moment, options.eps * options.eps)?,
        };
        let root = self.unary(UnaryFunction::Rsqrt, moment)?;
        let step = self.mul(gradient, root)?;
        let size = self.root_mean_square(step)?;
        let excess = self.scale(size, 1.0 / options.clip)?;
        let excess = self.at_least(excess, 1.0)?;
        let mut step = self.div(step, excess)?;
        if options.fixed_rate && decay != 0.0 {
            let variable = self.cast(self.variable, DType::F32)?;
            let decay = self.scale(variable, decay)?;
            step = self.add(step, decay)?;
        }
        if options.unscaled {
            return Ok(step);
        }
        let size = self.root_mean_square(self.variable)?;
        let scale = self.at_least(size, options.least_scale)?;
        self.mul(step, scale)
    }

    /// The greatest rate of this update, if there is one.
    pub(super) fn limit_of_rate(
        &mut self,
        options: &AdafactorOptions,
    ) -> Result<Option<ValueId>, OpError> {
        match self.scalars.number.filter(|_| !options.fixed_rate) {
            Some(number) => self.unary(UnaryFunction::Rsqrt, number).map(Some),
            None => Ok(None),
        }
    }

    /// The mean of squares, which takes this share of those of now: of matrices the product of the means of rows and of columns, over the
    /// mean of all.
    fn factored_moment(
        &mut self,
        square: ValueId,
        share: ValueId,
        options: &AdafactorOptions,
    ) -> Result<ValueId, OpError> {
        let dims = self.training.graph.value(square).ty.shape.len();
        // As both packages call them.
        let [row, column, each] = match options.fixed_rate {
            true => ["exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq"],
            false => ["row_var", "col_var", "variance"],
        };
        if dims < 2 {
            return self.moving_mean(each, square, share);
        }
        let rows = self.mean_of(square, dims - 1, (row, share, options))?;
        let columns = self.mean_of(square, dims - 2, (column, share, options))?;
        let mean = self.mean_over(rows, dims - 2, true)?;
        let mean = match options.fixed_rate {
            true => mean,
            false => self.at_least(mean, options.eps)?,
        };
        let rows = self.div(rows, mean)?;
        self.mul(rows, columns)
    }

    /// The moving mean over a dim, which stays with extent 1. The state of a fixed rate has no such dim.
    fn mean_of(
        &mut self,
        square: ValueId,
        dim: usize,
        (kind, share, options): (&str, ValueId, &AdafactorOptions),
    ) -> Result<ValueId, OpError> {
        let mean = self.mean_over(square, dim, !options.fixed_rate)?;
        let mean = self.moving_mean(kind, mean, share)?;
        let mut shape = self.training.graph.value(square).ty.shape.clone();
        shape[dim] = 1;
        match options.fixed_rate {
            true => self.push(Op::Reshape(Reshape { shape }), &[mean]),
            false => Ok(mean),
        }
    }

    /// `s' = s + share (x - s)` of a state that is like `x`.
    fn moving_mean(&mut self, kind: &str, x: ValueId, share: ValueId) -> Result<ValueId, OpError> {
        let shape = self.training.graph.value(x).ty.shape.clone();
        let state = self.state_of(kind, TensorType::new(DType::F32, shape), 0.0)?;
        let difference = self.binary(BinaryFunction::Sub, x, state)?;
        let taken = self.mul(difference, share)?;
        let mean = self.add(state, taken)?;
        self.replace(state, mean)?;
        Ok(mean)
    }

    fn mean_over(&mut self, x: ValueId, dim: usize, keep_dims: bool) -> Result<ValueId, OpError> {
        let (function, axes) = (ReduceFunction::Mean, vec![dim]);
        self.push(Op::Reduce(Reduce { function, axes, keep_dims }), &[x])
    }

    fn root_mean_square(&mut self, x: ValueId) -> Result<ValueId, OpError> {
        let elements = self.training.graph.value(x).ty.shape.iter().product::<usize>().max(1);
        let sum = self.push(Op::SquareSum(SquareSum {}), &[x])?;
        let mean = self.scale(sum, 1.0 / elements as f64)?;
        self.unary(UnaryFunction::Sqrt, mean)
    }

    fn at_least(&mut self, x: ValueId, low: f64) -> Result<ValueId, OpError> {
        let (low, high) = (Scalar(low), Scalar(f64::from(f32::MAX)));
        self.unary(UnaryFunction::Clip { low, high }, x)
    }
}
