//! LAMB (You et al., arXiv 1904.00962, algorithm 2), in two ops, as its step is scaled by norms of whole tensors: the direction
//! of Adam, and the step along it. Between them stand sums of squares ([`crate::ops::SquareSum`]) of the variable and the
//! direction, which ranks that hold parts add up.

use serde::{Deserialize, Serialize};

use super::{UpdateClipping, check_operand_count, result_dtypes, update_number, update_rule};
use crate::array::Array;
use crate::learning_rate::LearningRate;
use crate::operation::{
    EvalContext, InPlace, OpError, Operand, Operation, Region, dtype_error, shape_error,
};
use crate::ops::shards::{elementwise_rule, one_float, same_shape};
use crate::rule::Rule;
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// (w, g, m, v) -> (u, m', v'), and further operands as [`super::AdamUpdate`]: the moments m' and v' as Adam's, both corrected
/// by the step (from 1) to m" and v", and the direction u = m" / (sqrt(v") + epsilon) + weight_decay w, of f32. Of an
/// update that is not made the direction is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LambDirection {
    /// Decay of the first moment.
    pub beta1: Scalar,
    /// Decay of the second moment.
    pub beta2: Scalar,
    /// The term that is added to the root of the second moment.
    pub epsilon: Scalar,
    /// Weight decay.
    pub weight_decay: Scalar,
    /// The greatest absolute value of an element of the gradient; greater ones are clipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<Scalar>,
}

/// (w, u, a, b) -> (w'): w' = w - lr sqrt(a / b) u, where a and b (f32[]) are the sums of squares of all of w and u; w - lr u where
/// either is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LambUpdate {
    /// Learning rate.
    pub lr: LearningRate,
}

impl LambDirection {
    /// Computes (u, m', v') of one element at step `step`, from 1.
    fn update_element(&self, [w, g, m, v]: [f64; 4], step: f64) -> [f64; 3] {
        let (beta1, beta2) = (self.beta1.0, self.beta2.0);
        let m = beta1 * m + (1.0 - beta1) * g;
        let v = beta2 * v + (1.0 - beta2) * g * g;
        let [correct1, correct2] = [beta1, beta2].map(|beta| 1.0 - beta.powf(step));
        let root = (v / correct2).sqrt() + self.epsilon.0;
        [m / correct1 / root + self.weight_decay.0 * w, m, v]
    }
}

impl LambUpdate {
    /// Returns the factor of the direction at a learning rate: the rate times the ratio of both norms, whose squares are given.
    pub fn direction_rate(lr: f64, [variable, direction]: [f64; 2]) -> f64 {
        if variable > 0.0 && direction > 0.0 { lr * (variable / direction).sqrt() } else { lr }
    }
}

impl Operation for LambDirection {
    fn name(&self) -> &'static str {
        "lamb_direction"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        let expected = "4, 5 with a factor of the gradient, or 6 with the step of loss scaling too";
        check_operand_count(self.name(), operands, 4..=6, expected)?;
        result_dtypes(self.name(), operands, 4)?;
        Ok(vec![DType::F32; 3])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        update_rule(self.name(), operands, 4)
    }

    fn flops_per_point(&self) -> f64 {
        14.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        _results: &[Region],
        cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let (tensors, scalars) = operands.split_at(4);
        let (clipping, number) =
            (UpdateClipping::from_scalars(scalars, self.clip), update_number(scalars, cx));
        let at = |operand: usize, i: usize| tensors[operand].array.data[i];
        let mut results = [0, 2, 3].map(|operand| tensors[operand].array.clone());
        for i in 0..tensors[0].array.data.len() {
            let values = match clipping.skips_update() {
                true => [0.0, at(2, i), at(3, i)],
                false => self.update_element(
                    [at(0, i), clipping.apply(at(1, i)), at(2, i), at(3, i)],
                    number,
                ),
            };
            for (result, value) in results.iter_mut().zip(values) {
                result.data[i] = value;
            }
        }
        Ok(results.to_vec())
    }

    fn updates(&self) -> &[(usize, usize)] {
        &[(1, 2), (2, 3)]
    }

    fn gradient_operand(&self) -> Option<usize> {
        Some(1)
    }

    /// Returns the results that may take an operand's memory; the direction may take the gradient's place too.
    fn in_place(&self) -> Vec<InPlace> {
        vec![InPlace::new(0, 1), InPlace::new(1, 2), InPlace::new(2, 3)]
    }
}

impl Operation for LambUpdate {
    fn name(&self) -> &'static str {
        "lamb_update"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_operand_count(
            self.name(),
            operands,
            4..=4,
            "a variable, its direction and two sums of squares",
        )?;
        if operands[1..].iter().any(|operand| operand.dtype != DType::F32) {
            return Err(dtype_error(self.name(), operands, "all but the variable are f32"));
        }
        Ok(vec![one_float(self.name(), operands, &[0])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        same_shape(self.name(), operands, &[0, 1])?;
        if operands[2..].iter().any(|sum| !sum.shape.is_empty()) {
            return Err(shape_error(self.name(), operands, "sums of squares are scalars"));
        }
        let mut rule = elementwise_rule(&operands[0].shape, 2, 1);
        rule.operands.resize(4, Vec::new());
        Ok(rule)
    }

    fn flops_per_point(&self) -> f64 {
        2.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        _results: &[Region],
        cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let norms = [2, 3].map(|sum| operands[sum].array.data[0]);
        let rate = Self::direction_rate(self.lr.rate_at(cx.step), norms);
        let mut w = operands[0].array.clone();
        for (w, u) in w.data.iter_mut().zip(&operands[1].array.data) {
            *w -= rate * u;
        }
        Ok(vec![w])
    }

    fn updates(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    fn numbers(op: Op, vectors: &[&[f64]], scalars: &[f64]) -> Vec<Vec<f64>> {
        let vector = |data: &&[f64]| (DType::F32, Array::new([data.len()], data.to_vec()));
        let scalar = |&value: &f64| (DType::F32, Array::new([], vec![value]));
        let operands: Vec<_> =
            vectors.iter().map(vector).chain(scalars.iter().map(scalar)).collect();
        evaluate(op, &operands).expect("fits").into_iter().map(|array| array.data).collect()
    }

    #[test]
    fn the_direction_by_hand() {
        let (beta1, beta2) = (Scalar(0.5), Scalar(0.5));
        let op =
            LambDirection { beta1, beta2, weight_decay: 0.5.into(), ..LambDirection::default() };
        let op = Op::LambDirection(op);
        // Of the first step the corrected moments are the gradient and its square.
        let found = numbers(op.clone(), &[&[4.0], &[3.0], &[0.0], &[0.0]], &[]);
        assert_eq!(found, [[3.0], [1.5], [4.5]]);
        let found = numbers(op.clone(), &[&[4.0], &[-6.0], &[0.0], &[0.0]], &[0.5, 1.0]);
        assert_eq!(found, [[1.0], [-1.5], [4.5]]);
        let skipped = numbers(op, &[&[4.0], &[f64::NAN], &[1.0], &[2.0]], &[0.0, 1.0]);
        assert_eq!(skipped, [[0.0], [1.0], [2.0]]);
    }

    #[test]
    fn the_step_is_scaled_by_the_norms() {
        let op = Op::LambUpdate(LambUpdate { lr: 0.5.into() });
        let of = |sums: [f64; 2]| numbers(op.clone(), &[&[3.0, 4.0], &[2.0, 0.0]], &sums);
        assert_eq!(of([25.0, 4.0]), [[0.5, 4.0]]);
        assert_eq!(of([0.0, 4.0]), [[2.0, 4.0]]);
        assert_eq!(of([25.0, 0.0]), [[2.0, 4.0]]);
    }
}
