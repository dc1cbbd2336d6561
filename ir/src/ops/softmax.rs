//! Softmax and its logarithm over one dim, and their gradients.

use serde::{Deserialize, Serialize};

use super::shards::{elementwise_rule, has_dim, map_lanes, one_float, same_shape};
use crate::array::Array;
use crate::operation::{EvalContext, OpError, Operand, Operation, Region, check_arity};
use crate::rule::{FactorKind, Rule};
use crate::types::{DType, TensorType};

/// exp(x - max) / sum(exp(x - max)) over a dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Softmax {
    /// The dim of the softmax, which stays whole.
    pub axis: usize,
}

/// (y, dy) -> y (dy - sum(y dy)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SoftmaxGrad {
    /// The dim of the softmax, which stays whole.
    pub axis: usize,
}

/// x - max - log(sum(exp(x - max))) over a dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LogSoftmax {
    /// The dim of the softmax, which stays whole.
    pub axis: usize,
}

/// (y, dy) -> dy - exp(y) sum(dy).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LogSoftmaxGrad {
    /// The dim of the softmax, which stays whole.
    pub axis: usize,
}

impl Operation for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![one_float(self.name(), operands, &[0])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        lane_rule(self.name(), operands, self.axis)
    }

    fn flops_per_point(&self) -> f64 {
        5.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let lane = |x: &[Vec<f64>]| {
            let (greatest, sum) = greatest_and_sum_exp(&x[0]);
            [x[0].iter().map(|x| (x - greatest).exp() / sum).collect()]
        };
        Ok(map_lanes(self.axis, &[operands[0].array], lane).into())
    }
}

impl Operation for SoftmaxGrad {
    fn name(&self) -> &'static str {
        "softmax_grad"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 2, "2")?;
        Ok(vec![one_float(self.name(), operands, &[0, 1])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        same_shape(self.name(), operands, &[0, 1])?;
        Ok(Rule { linear: vec![vec![1]], ..lane_rule(self.name(), operands, self.axis)? })
    }

    fn flops_per_point(&self) -> f64 {
        4.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let lane = |lanes: &[Vec<f64>]| {
            let (y, dy) = (&lanes[0], &lanes[1]);
            let sum: f64 = y.iter().zip(dy).map(|(y, dy)| y * dy).sum();
            [y.iter().zip(dy).map(|(y, dy)| y * (dy - sum)).collect()]
        };
        Ok(map_lanes(self.axis, &[operands[0].array, operands[1].array], lane).into())
    }
}

impl Operation for LogSoftmax {
    fn name(&self) -> &'static str {
        "log_softmax"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![one_float(self.name(), operands, &[0])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        lane_rule(self.name(), operands, self.axis)
    }

    fn flops_per_point(&self) -> f64 {
        5.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let lane = |x: &[Vec<f64>]| {
            let (greatest, sum) = greatest_and_sum_exp(&x[0]);
            [x[0].iter().map(|x| x - greatest - sum.ln()).collect()]
        };
        Ok(map_lanes(self.axis, &[operands[0].array], lane).into())
    }
}

impl Operation for LogSoftmaxGrad {
    fn name(&self) -> &'static str {
        "log_softmax_grad"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 2, "2")?;
        Ok(vec![one_float(self.name(), operands, &[0, 1])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        same_shape(self.name(), operands, &[0, 1])?;
        Ok(Rule { linear: vec![vec![1]], ..lane_rule(self.name(), operands, self.axis)? })
    }

    fn flops_per_point(&self) -> f64 {
        5.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let lane = |lanes: &[Vec<f64>]| {
            let (y, dy) = (&lanes[0], &lanes[1]);
            let sum: f64 = dy.iter().sum();
            [y.iter().zip(dy).map(|(y, dy)| dy - y.exp() * sum).collect()]
        };
        Ok(map_lanes(self.axis, &[operands[0].array, operands[1].array], lane).into())
    }
}

/// Computes max(x) and sum(exp(x - max(x))), which cannot overflow.
pub(crate) fn greatest_and_sum_exp(x: &[f64]) -> (f64, f64) {
    let greatest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (greatest, x.iter().map(|x| (x - greatest).exp()).sum())
}

/// Returns the rule of an op of one result in which `axis` stays whole.
fn lane_rule(op: &'static str, operands: &[&TensorType], axis: usize) -> Result<Rule, OpError> {
    has_dim(op, operands, axis)?;
    let mut rule = elementwise_rule(&operands[0].shape, operands.len(), 1);
    rule.factors[axis].kind = FactorKind::Whole;
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    fn close(found: &Array, expected: &[f64]) {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
        assert!(found.data.iter().zip(expected).all(near), "{found:?} is not {expected:?}");
    }

    #[test]
    fn softmax_sums_to_one_along_its_axis() {
        let x = Array::new([2, 2], vec![0.0, 1000.0, 3f64.ln(), 1000.0]);
        let y =
            evaluate(Op::Softmax(Softmax { axis: 0 }), &[(DType::F32, x.clone())]).expect("fits");
        close(&y[0], &[0.25, 0.5, 0.75, 0.5]);
        let y = evaluate(Op::LogSoftmax(LogSoftmax { axis: 0 }), &[(DType::F32, x)]).expect("fits");
        close(&y[0], &[0.25f64.ln(), 0.5f64.ln(), 0.75f64.ln(), 0.5f64.ln()]);
    }

    #[test]
    fn gradients_by_hand() {
        let y = Array::new([2], vec![0.25, 0.75]);
        let dy = Array::new([2], vec![1.0, 0.0]);
        let operands = [(DType::F32, y.clone()), (DType::F32, dy.clone())];
        let dx = evaluate(Op::SoftmaxGrad(SoftmaxGrad { axis: 0 }), &operands).expect("fits");
        close(&dx[0], &[0.1875, -0.1875]);
        let logs = Array::new([2], y.data.iter().map(|y| y.ln()).collect());
        let operands = [(DType::F32, logs), (DType::F32, dy)];
        let dx = evaluate(Op::LogSoftmaxGrad(LogSoftmaxGrad { axis: 0 }), &operands).expect("fits");
        close(&dx[0], &[0.75, -0.75]);
    }
}
