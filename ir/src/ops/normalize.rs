//! Layer and root-mean-square normalization over the last dim, without scale and shift.

use serde::{Deserialize, Serialize};

use super::shards::{elementwise_rule, map_lanes, one_float, same_shape};
use crate::array::Array;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, dtype_error, shape_error,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// x -> (y, r) over the last dim: r = 1 / sqrt(mean((x - m)^2) + epsilon), y = (x - m) r, where m = mean(x) if
/// `center` (layer normalization) and 0 otherwise (RMS normalization). r keeps the dim with extent 1; it is f32 for x of
/// any precision, and so is what is computed between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Normalize {
    /// Whether the mean is subtracted.
    pub center: bool,
    /// The term that is added to the variance.
    pub epsilon: Scalar,
}

/// (y, r, dy) -> dx = r (dy - \[center\] mean(dy) - y mean(y dy)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NormalizeGrad {
    /// Whether the mean was subtracted.
    pub center: bool,
}

impl Operation for Normalize {
    fn name(&self) -> &'static str {
        "normalize"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![one_float(self.name(), operands, &[0])?, DType::F32])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let (mut rule, dims, kept) = last_dim_whole(self.name(), operands)?;
        (rule.operands, rule.results) = (vec![dims.clone()], vec![dims, kept]);
        Ok(rule)
    }

    fn flops_per_point(&self) -> f64 {
        if self.center { 6.0 } else { 4.0 }
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let lane = |lanes: &[Vec<f64>]| {
            let x = &lanes[0];
            let mean = if self.center { compute_mean(x) } else { 0.0 };
            let squares: Vec<f64> = x.iter().map(|x| (x - mean).powi(2)).collect();
            let r = 1.0 / (self::compute_mean(&squares) + self.epsilon.0).sqrt();
            [x.iter().map(|x| (x - mean) * r).collect(), vec![r; x.len()]]
        };
        let axis = operands[0].array.shape.len() - 1;
        let [y, r] = map_lanes(axis, &[operands[0].array], lane);
        let first = Array::from_fn(results[1].rect.extent.clone(), |index| r.element_at(index));
        Ok(vec![y, first])
    }
}

impl Operation for NormalizeGrad {
    fn name(&self) -> &'static str {
        "normalize_grad"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 3, "3")?;
        if operands[1].dtype != DType::F32 {
            return Err(dtype_error(self.name(), operands, "operand 1 is f32"));
        }
        Ok(vec![one_float(self.name(), operands, &[0, 2])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        same_shape(self.name(), operands, &[0, 2])?;
        let (mut rule, dims, kept) = last_dim_whole(self.name(), operands)?;
        let extents: Vec<usize> = kept.iter().map(|dim| rule.extent(dim)).collect();
        if operands[1].shape != extents {
            return Err(shape_error(
                self.name(),
                operands,
                format!("operand 1 must be {extents:?}"),
            ));
        }
        rule.linear = vec![vec![1], vec![2]];
        (rule.operands, rule.results) = (vec![dims.clone(), kept, dims.clone()], vec![dims]);
        Ok(rule)
    }

    fn flops_per_point(&self) -> f64 {
        6.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let (y, dy) = (operands[0].array, operands[2].array);
        let r = Array::from_fn(y.shape.clone(), |index| operands[1].array.at_broadcast(index));
        let lane = |lanes: &[Vec<f64>]| {
            let (y, r, dy) = (&lanes[0], &lanes[1], &lanes[2]);
            let products: Vec<f64> = y.iter().zip(dy).map(|(y, dy)| y * dy).collect();
            let shift = if self.center { compute_mean(dy) } else { 0.0 };
            let slope = compute_mean(&products);
            [(0..y.len()).map(|i| r[i] * (dy[i] - shift - y[i] * slope)).collect()]
        };
        Ok(map_lanes(y.shape.len() - 1, &[y, &r, dy], lane).into())
    }
}

fn compute_mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

/// Builds a rule whose last dim is whole, with the dims of the first operand, and the same with a last extent of 1.
fn last_dim_whole(
    op: &'static str,
    operands: &[&TensorType],
) -> Result<(Rule, Vec<DimRule>, Vec<DimRule>), OpError> {
    let shape = &operands[0].shape;
    if shape.is_empty() {
        return Err(shape_error(op, operands, "it needs a dim"));
    }
    let mut rule = elementwise_rule(shape, 0, 0);
    let last = shape.len() - 1;
    rule.factors[last].kind = FactorKind::Whole;
    let dims: Vec<DimRule> = (0..shape.len()).map(|f| DimRule::Factors(vec![f])).collect();
    let mut kept = dims.clone();
    kept[last] = DimRule::Factors(vec![]);
    Ok((rule, dims, kept))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    #[test]
    fn layer_and_rms_normalization_by_hand() {
        let x = Array::new([1, 2], vec![1.0, 7.0]);
        let op = |center| Op::Normalize(Normalize { center, epsilon: Scalar(0.0) });
        let y = evaluate(op(true), &[(DType::F32, x.clone())]).expect("fits");
        assert_eq!(y[0].data, [-1.0, 1.0]);
        assert_eq!(y[1], Array::new([1, 1], vec![1.0 / 3.0]));
        let y = evaluate(op(false), &[(DType::F32, x)]).expect("fits");
        assert_eq!(y[1].data, [0.2]);
        assert!((y[0].data[1] - 1.4).abs() < 1e-12);
    }

    #[test]
    fn gradient_by_hand() {
        let y = Array::new([2], vec![-1.0, 1.0]);
        let operands = [
            (DType::F32, y),
            (DType::F32, Array::new([1], vec![0.5])),
            (DType::F32, Array::new([2], vec![4.0, 0.0])),
        ];
        let op = |center| Op::NormalizeGrad(NormalizeGrad { center });
        // mean(dy) = 2, mean(y dy) = -2.
        assert_eq!(evaluate(op(true), &operands).expect("fits")[0].data, [0.0, 0.0]);
        assert_eq!(evaluate(op(false), &operands).expect("fits")[0].data, [1.0, 1.0]);
    }
}
