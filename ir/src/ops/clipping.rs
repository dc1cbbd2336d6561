//! Clipping of gradients by their common norm, as `torch.nn.utils.clip_grad_norm_`.

use serde::{Deserialize, Serialize};

use super::shards::{float_to_f32, sum_of_all};
use crate::array::Array;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, dtype_error, shape_error,
};
use crate::rule::Rule;
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// The sum of the squares of all elements: (x) -> f32[]. Ranks, stages and tensors are taken together by adding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SquareSum {}

/// The factor by which gradients are multiplied so that their norm is at most `max`: (sum of squares) -> (factor', norm), or under loss scaling (sum
/// of squares, factor) -> (factor', norm), all f32[].
///
/// `factor` undoes the scale of the loss, so `norm` = factor sqrt(sum) is that of the unscaled gradient; factor' = factor
/// min(1, max / (norm + 1e-6)). A factor of 0, of an update that is not made, stays 0, and `norm` is then sqrt(sum). A norm that is not finite
/// gives a factor that is no number, as PyTorch's gradients are none then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClipFactor {
    /// The greatest norm of all gradients together.
    pub max: Scalar,
}

impl ClipFactor {
    /// Computes (factor', norm) from the sum of squares and the factor, 1 where there is none.
    pub fn compute_factor(&self, sum: f64, factor: Option<f64>) -> [f64; 2] {
        let factor = factor.unwrap_or(1.0);
        if factor == 0.0 {
            return [0.0, sum.sqrt()];
        }
        let norm = factor * sum.sqrt();
        let clipped = match norm.is_finite() {
            true => (self.max.0 / (norm + 1e-6)).min(1.0),
            false => f64::NAN,
        };
        [factor * clipped, norm]
    }
}

impl Operation for SquareSum {
    fn name(&self) -> &'static str {
        "square_sum"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        float_to_f32(self.name(), operands)
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        Ok(sum_of_all(operands))
    }

    fn flops_per_point(&self) -> f64 {
        2.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let sum = operands[0].array.data.iter().map(|x| x * x).sum();
        Ok(vec![Array::new([], vec![sum])])
    }
}

impl Operation for ClipFactor {
    fn name(&self) -> &'static str {
        "clip_factor"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        if operands.len() != 2 {
            check_arity(self.name(), operands, 1, "1, or 2 with the factor of loss scaling")?;
        }
        if operands.iter().any(|operand| operand.dtype != DType::F32) {
            return Err(dtype_error(self.name(), operands, "all of them are f32"));
        }
        Ok(vec![DType::F32; 2])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        if operands.iter().any(|operand| !operand.shape.is_empty()) {
            return Err(shape_error(self.name(), operands, "all of them are scalars"));
        }
        let (operands, results) = (vec![Vec::new(); operands.len()], vec![Vec::new(); 2]);
        Ok(Rule { operands, results, ..Rule::default() })
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let number = |operand: &Operand<'_>| operand.array.data[0];
        let results = self.compute_factor(number(&operands[0]), operands.get(1).map(number));
        Ok(results.map(|number| Array::new([], vec![number])).to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    #[test]
    fn squares_are_added() {
        let sum = |data: Vec<f64>| {
            let operand = (DType::F32, Array::new([data.len()], data));
            evaluate(Op::SquareSum(SquareSum {}), &[operand]).expect("fits")[0].data[0]
        };
        assert_eq!((sum(vec![3.0, -4.0]), sum(vec![])), (25.0, 0.0));
    }

    #[test]
    fn the_norm_is_that_of_the_unscaled_gradient() {
        let clip = ClipFactor { max: 1.0.into() };
        let near = |found: [f64; 2], expected: [f64; 2]| {
            let close = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(close, "{found:?} is not {expected:?}");
        };
        near(clip.compute_factor(25.0, None), [0.2, 5.0]);
        near(clip.compute_factor(0.25, None), [1.0, 0.5]);
        near(clip.compute_factor(400.0, Some(0.25)), [0.05, 5.0]);
        near(clip.compute_factor(4.0, Some(0.25)), [0.25, 0.5]);
    }

    #[test]
    fn what_is_not_finite_is_not_taken_for_an_update_that_is_not_made() {
        let clip = ClipFactor { max: 1.0.into() };
        assert_eq!(clip.compute_factor(f64::INFINITY, Some(0.0)), [0.0, f64::INFINITY]);
        assert!(clip.compute_factor(f64::INFINITY, None)[0].is_nan());
        assert!(clip.compute_factor(f64::NAN, None)[0].is_nan());
    }
}
