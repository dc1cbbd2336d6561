//! Layer and root-mean-square normalization over the last dim, without scale and shift.

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::builder::Tensor;
use crate::op::{EvalContext, GradientNode, OpError, Operand, Operation, Region};
use crate::rule::Rule;
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// x -> (y, r) over the last dim: r = 1 / sqrt(mean((x - m)^2) + epsilon), y = (x - m) r, where m = mean(x) if
/// `center` (layer normalization) and 0 otherwise (RMS normalization). r keeps the dim with extent 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalize {
    /// Whether the mean is subtracted.
    pub center: bool,
    /// Added to the variance.
    pub epsilon: Scalar,
}

/// (y, r, dy) -> dx = r (dy - [center] mean(dy) - y mean(y dy)).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NormalizeGrad {
    /// Whether the mean was subtracted.
    pub center: bool,
}

impl Operation for Normalize {
    fn name(&self) -> &'static str {
        "normalize"
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

impl Operation for NormalizeGrad {
    fn name(&self) -> &'static str {
        "normalize_grad"
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
