//! Dropout.

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::builder::Tensor;
use crate::op::{EvalContext, GradientNode, OpError, Operand, Operation, Region};
use crate::rule::Rule;
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// Each element is 0 with `probability`, else x / (1 - probability); the mask is a function of (seed, key, step,
/// global element index), so the gradient is the same op on the gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    /// Probability of a zero, in [0, 1).
    pub probability: Scalar,
    /// Tells this op's numbers from those of others.
    pub key: u64,
    /// Whether it drops anything at all: false in inference.
    pub training: bool,
}

impl Operation for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
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
