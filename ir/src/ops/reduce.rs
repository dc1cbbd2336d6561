//! Reductions over dims.

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::builder::Tensor;
use crate::op::{EvalContext, GradientNode, OpError, Operand, Operation, Region};
use crate::rule::Rule;
use crate::types::{DType, TensorType};

/// A reduction over dims. A mean divides by the whole tensor's extents, whatever the shard or microbatch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reduce {
    /// What it computes.
    pub function: ReduceFunction,
    /// The dims, ascending, distinct.
    pub axes: Vec<usize>,
    /// Whether reduced dims stay, with extent 1.
    pub keep_dims: bool,
}

/// The functions of [`Reduce`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceFunction {
    /// The sum
    Sum,
    /// The sum over the number of elements
    Mean,
    /// The greatest
    Max,
    /// The least
    Min,
}

/// The index (i64) of the greatest along a dim, the first where several are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArgMax {
    /// The dim.
    pub axis: usize,
    /// Whether it stays, with extent 1.
    pub keep_dims: bool,
}

impl Operation for Reduce {
    fn name(&self) -> &'static str {
        "reduce"
    }

    fn dtypes(&self, _operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        todo!()
    }

    fn rule(&self, _operands: &[&TensorType]) -> Result<Rule, OpError> {
        todo!()
    }

    fn gradient(&self, _node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        todo!()
    }

    fn evaluate(
        &self,
        _operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        todo!()
    }
}

impl Operation for ArgMax {
    fn name(&self) -> &'static str {
        "argmax"
    }

    fn dtypes(&self, _operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        todo!()
    }

    fn rule(&self, _operands: &[&TensorType]) -> Result<Rule, OpError> {
        todo!()
    }

    fn gradient(&self, _node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        todo!()
    }

    fn evaluate(
        &self,
        _operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        todo!()
    }
}
