//! Softmax and its logarithm over one dim, and their gradients.

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::builder::Tensor;
use crate::op::{EvalContext, GradientNode, OpError, Operand, Operation, Region};
use crate::rule::Rule;
use crate::types::{DType, TensorType};

/// exp(x - max) / sum(exp(x - max)) over a dim.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Softmax {
    /// The dim, whole.
    pub axis: usize,
}

/// (y, dy) -> y (dy - sum(y dy)).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SoftmaxGrad {
    /// The dim, whole.
    pub axis: usize,
}

/// x - max - log(sum(exp(x - max))) over a dim.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogSoftmax {
    /// The dim, whole.
    pub axis: usize,
}

/// (y, dy) -> dy - exp(y) sum(dy).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogSoftmaxGrad {
    /// The dim, whole.
    pub axis: usize,
}

impl Operation for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
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

impl Operation for SoftmaxGrad {
    fn name(&self) -> &'static str {
        "softmax_grad"
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

impl Operation for LogSoftmax {
    fn name(&self) -> &'static str {
        "log_softmax"
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

impl Operation for LogSoftmaxGrad {
    fn name(&self) -> &'static str {
        "log_softmax_grad"
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
