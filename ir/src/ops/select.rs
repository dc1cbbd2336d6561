//! Elementwise choice and change of element type.

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::operation::{
    EvalContext, InPlace, OpError, Operand, Operation, Region, check_arity, dtype_error,
};
use crate::ops::broadcast::{broadcast_rule, fit_to_dtype, map_broadcast, same_dtype};
use crate::rule::Rule;
use crate::types::{DType, TensorType};

/// An elementwise choice, `where(condition, a, b)`: a where the condition (bool) holds, else b; all three broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Where {}

/// The operand's values in another element type. Float to integer truncates; to bool: whether not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cast {
    /// The element type of the result.
    pub dtype: DType,
}

impl Operation for Where {
    fn name(&self) -> &'static str {
        "where"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 3, "3 operands")?;
        if operands[0].dtype != DType::Bool {
            return Err(dtype_error(self.name(), operands, "the condition must be bool"));
        }
        match same_dtype(self.name(), &operands[1..]) {
            Ok(dtype) => Ok(vec![dtype]),
            Err(_) => {
                let (a, b) = (operands[1].dtype, operands[2].dtype);
                let reason = format!("element types {a} and {b} differ");
                Err(dtype_error(self.name(), operands, reason))
            }
        }
    }

    fn in_place(&self) -> Vec<InPlace> {
        vec![InPlace::new(0, 1), InPlace::new(0, 2)]
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        broadcast_rule(self.name(), operands, vec![vec![1, 2]])
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let arrays = [operands[0].array, operands[1].array, operands[2].array];
        Ok(vec![map_broadcast(
            &results[0],
            arrays,
            |[condition, a, b]| if condition != 0.0 { a } else { b },
        )])
    }
}

impl Operation for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1 operand")?;
        Ok(vec![self.dtype])
    }

    fn in_place(&self) -> Vec<InPlace> {
        vec![InPlace::new(0, 0)]
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        broadcast_rule(self.name(), operands, self.linear_groups(operands[0].dtype))
    }

    fn is_light(&self) -> bool {
        true
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        Ok(vec![map_broadcast(&results[0], [operands[0].array], |[x]| fit_to_dtype(self.dtype, x))])
    }
}

impl Cast {
    /// Returns the groups of operands for [`Rule::linear`]: a cast is linear but where it truncates to an integer, or goes from or to truth values.
    fn linear_groups(&self, from: DType) -> Vec<Vec<usize>> {
        let truth = from == DType::Bool || self.dtype == DType::Bool;
        let truncates = from.is_float() && !self.dtype.is_float();
        if truth || truncates { Vec::new() } else { vec![vec![0]] }
    }
}
