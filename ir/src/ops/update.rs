//! Steps of optimizers: results take the place of the variables. Formulas as in torch.optim.

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::builder::Tensor;
use crate::op::{EvalContext, GradientNode, OpError, Operand, Operation, Region};
use crate::rule::Rule;
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// (w, g) -> (w') or, with momentum, (w, g, m) -> (w', m').
/// g += weight_decay w; m' = momentum m + g; g = nesterov ? g + momentum m' : m'; w' = w - lr g.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SgdUpdate {
    /// Learning rate.
    pub lr: Scalar,
    /// Momentum; 0 for none.
    pub momentum: Scalar,
    /// Nesterov's momentum.
    pub nesterov: bool,
    /// L2 penalty.
    pub weight_decay: Scalar,
}

/// (w, g, m, v) -> (w', m', v') with bias correction by the step (from 1). `decoupled` is AdamW: w shrinks by
/// lr weight_decay first; otherwise g += weight_decay w.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamUpdate {
    /// Learning rate.
    pub lr: Scalar,
    /// Decay of the first moment.
    pub beta1: Scalar,
    /// Decay of the second moment.
    pub beta2: Scalar,
    /// Added to the root of the second moment.
    pub epsilon: Scalar,
    /// Weight decay.
    pub weight_decay: Scalar,
    /// Whether the weight decay is decoupled (AdamW).
    pub decoupled: bool,
}

impl Operation for SgdUpdate {
    fn name(&self) -> &'static str {
        "sgd_update"
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

impl Operation for AdamUpdate {
    fn name(&self) -> &'static str {
        "adam_update"
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
