//! Ops that leave the tensor as it is and say where or when it is: boxing that the user asks for, accumulation.

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::builder::Tensor;
use crate::op::{EvalContext, GradientNode, OpError, Operand, Operation, Region};
use crate::rule::Rule;
use crate::mesh::Placement;
use crate::sbp::NdSbp;
use crate::types::{DType, TensorType};

/// The same tensor on this placement in this layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToGlobal {
    /// The placement.
    pub placement: Placement,
    /// The layout.
    pub sbp: NdSbp,
}

/// The sum over a step's microbatches. Of the whole batch it is the same tensor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accumulate {}

impl Operation for ToGlobal {
    fn name(&self) -> &'static str {
        "to_global"
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

impl Operation for Accumulate {
    fn name(&self) -> &'static str {
        "accumulate"
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
