//! Ops that leave the tensor as it is and say where or when it is: boxing that the user asks for, accumulation.

use serde::{Deserialize, Serialize};

use super::shards::{copy_operand, elementwise_rule};
use crate::array::Array;
use crate::mesh::Placement;
use crate::operation::{
    EvalContext, InPlace, OpError, Operand, Operation, Region, check_arity, shape_error,
};
use crate::rule::Rule;
use crate::sbp::{NdSbp, Sbp};
use crate::types::{DType, TensorType};

/// The operand on this placement, in this layout.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ToGlobal {
    /// The placement.
    pub placement: Placement,
    /// The layout.
    pub sbp: NdSbp,
}

/// The sum of a tensor over a step's microbatches. Of the whole batch it is the same tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Accumulate {}

/// The operand, unchanged, for readers that come later, in a layout of its own. What earlier readers gathered need not be kept for them: it is
/// gathered again from where this lies. Nothing is computed or moved for it, as its result is its operand's memory, or that of a copy of the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Regather {}

impl Operation for ToGlobal {
    fn name(&self) -> &'static str {
        "to_global"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![operands[0].dtype])
    }

    fn in_place(&self) -> Vec<InPlace> {
        InPlace::same_bytes()
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let (axes, rank) = (self.placement.hierarchy.len(), operands[0].shape.len());
        if self.sbp.0.len() != axes {
            let reason = format!("({}) is no layout on a mesh of {axes} axes", self.sbp);
            return Err(shape_error(self.name(), operands, reason));
        }
        if self.sbp.0.iter().any(|sbp| matches!(sbp, Sbp::Split(dim) if *dim >= rank)) {
            let reason = format!("({}) splits a dim that it does not have", self.sbp);
            return Err(shape_error(self.name(), operands, reason));
        }
        Ok(identity_rule(operands))
    }

    fn flops_per_point(&self) -> f64 {
        0.0
    }

    fn is_executed(&self) -> bool {
        false
    }

    fn is_function(&self) -> bool {
        false
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        Ok(copy_operand(operands))
    }
}

impl Operation for Regather {
    fn name(&self) -> &'static str {
        "regather"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![operands[0].dtype])
    }

    fn in_place(&self) -> Vec<InPlace> {
        InPlace::same_bytes()
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        Ok(identity_rule(operands))
    }

    fn flops_per_point(&self) -> f64 {
        0.0
    }

    fn is_executed(&self) -> bool {
        false
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        Ok(copy_operand(operands))
    }
}

impl Operation for Accumulate {
    fn name(&self) -> &'static str {
        "accumulate"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![operands[0].dtype])
    }

    fn in_place(&self) -> Vec<InPlace> {
        InPlace::same_bytes()
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        Ok(identity_rule(operands))
    }

    fn flops_per_point(&self) -> f64 {
        0.0
    }

    fn is_function(&self) -> bool {
        false
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        Ok(copy_operand(operands))
    }
}

fn identity_rule(operands: &[&TensorType]) -> Rule {
    let rule = elementwise_rule(&operands[0].shape, 1, 1);
    Rule { linear: vec![vec![0]], moves_data: true, ..rule }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;

    #[test]
    fn a_layout_that_does_not_fit_is_refused() {
        let placement = Placement::mesh(&[2]).expect("a mesh");
        let ty = TensorType::new(DType::F32, [4]);
        let infer = |sbp: &str| {
            let sbp = sbp.parse().expect("an SBP");
            Op::ToGlobal(ToGlobal { placement: placement.clone(), sbp }).infer_types(&[&ty])
        };
        assert_eq!(infer("S(0)"), Ok(vec![ty.clone()]));
        let error = infer("S(1)").expect_err("rank 1").to_string();
        assert_eq!(
            error,
            "to_global cannot take f32[4]: (S(1)) splits a dim that it does not have"
        );
        assert!(infer("S(0), B").is_err());
    }
}
