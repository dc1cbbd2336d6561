//! Matrix product.

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::builder::Tensor;
use crate::op::{EvalContext, GradientNode, OpError, Operand, Operation, Region};
use crate::rule::Rule;
use crate::types::{DType, TensorType};

/// `[.., i, k] x [.., k, j] -> [.., i, j]`; leading dims broadcast; both operands of rank 2 or more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatMul {
    /// Whether the first operand is given as `[.., k, i]`.
    pub transpose_a: bool,
    /// Whether the second operand is given as `[.., j, k]`.
    pub transpose_b: bool,
}

impl Operation for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
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
