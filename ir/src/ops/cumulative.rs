//! Sums of all elements up to each.

use serde::{Deserialize, Serialize};

use super::shards::{has_dim, map_lanes};
use crate::array::Array;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, dtype_error,
};
use crate::ops::broadcast::fit_to_dtype;
use crate::rule::{FactorKind, Rule};
use crate::types::{DType, TensorType};

/// x -> the same shape: each element is the sum of those before it along a dim and of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CumulativeSum {
    /// The dim, which stays whole.
    pub axis: usize,
    /// Whether an element does not count itself.
    pub exclusive: bool,
    /// Whether it sums the elements behind an element instead of those before it.
    pub reverse: bool,
}

impl Operation for CumulativeSum {
    fn name(&self) -> &'static str {
        "cumulative_sum"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1 operand")?;
        match operands[0].dtype {
            DType::U8 | DType::Bool => {
                let reason = "its elements are cast to a wider type first";
                Err(dtype_error(self.name(), operands, reason))
            }
            dtype => Ok(vec![dtype]),
        }
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        has_dim(self.name(), operands, self.axis)?;
        let mut rule = Rule { linear: vec![vec![0]], ..Rule::default() };
        let dims = rule.add_parallel_dims(&operands[0].shape);
        rule.factors[self.axis].kind = FactorKind::Whole;
        (rule.operands, rule.results) = (vec![dims.clone()], vec![dims]);
        Ok(rule)
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let dtype = results[0].dtype;
        let lane = |lanes: &[Vec<f64>]| [self.cumulative_sums(&lanes[0], dtype)];
        Ok(map_lanes(self.axis, &[operands[0].array], lane).into())
    }
}

impl CumulativeSum {
    fn cumulative_sums(&self, x: &[f64], dtype: DType) -> Vec<f64> {
        let mut sums = vec![0.0; x.len()];
        let mut sum = 0.0;
        for step in 0..x.len() {
            let place = if self.reverse { x.len() - 1 - step } else { step };
            let before = sum;
            sum = fit_to_dtype(dtype, sum + x[place]);
            sums[place] = if self.exclusive { before } else { sum };
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    #[test]
    fn sums_go_either_way_and_may_leave_themselves_out() {
        let sums = |exclusive, reverse| {
            let op = Op::CumulativeSum(CumulativeSum { axis: 0, exclusive, reverse });
            let x = (DType::I64, Array::new([3], vec![1., 2., 4.]));
            evaluate(op, &[x]).expect("fits")[0].data.clone()
        };
        assert_eq!(sums(false, false), [1., 3., 7.]);
        assert_eq!(sums(true, false), [0., 1., 3.]);
        assert_eq!(sums(false, true), [7., 6., 4.]);
        assert_eq!(sums(true, true), [6., 4., 0.]);
    }
}
