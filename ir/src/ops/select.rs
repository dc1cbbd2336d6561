//! Elementwise choice and change of element type.

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::builder::Tensor;
use crate::op::{EvalContext, GradientNode, OpError, Operand, Operation, Region};
use crate::rule::Rule;
use crate::types::{DType, TensorType};

/// `where(condition, a, b)`: a where the condition (bool) holds, else b; all three broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Where {}

/// The same values in another element type. Float to integer truncates; to bool: whether not 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cast {
    /// The element type of the result.
    pub dtype: DType,
}

impl Operation for Where {
    fn name(&self) -> &'static str {
        "where"
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

impl Operation for Cast {
    fn name(&self) -> &'static str {
        "cast"
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
