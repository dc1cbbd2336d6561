//! RMSprop, as torch.optim.RMSprop.

use serde::{Deserialize, Serialize};

use super::{UpdateClipping, check_operand_count, result_dtypes, update_elements, update_rule};
use crate::array::Array;
use crate::learning_rate::LearningRate;
use crate::operation::{EvalContext, OpError, Operand, Operation, Region};
use crate::rule::Rule;
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// (w, g, v) -> (w', v'), where centered (w, g, v, a) -> (w', v', a'), each with momentum as the last state; with a factor of the
/// gradient as a further operand (f32[]).
/// g += weight_decay w; v' = alpha v + (1 - alpha) g^2; a' = alpha a + (1 - alpha) g; d = sqrt(v' - c a'^2) + epsilon, c is 1 where it is centered, else 0;
/// m' = momentum m + g / d; w' = w - lr m'.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RmspropUpdate {
    /// Learning rate.
    pub lr: LearningRate,
    /// Decay of the mean of squares.
    pub alpha: Scalar,
    /// The term that is added to the root.
    pub epsilon: Scalar,
    /// L2 penalty.
    pub weight_decay: Scalar,
    /// Momentum; 0 for none.
    pub momentum: Scalar,
    /// Whether the gradient is divided by its deviation, not by its mean square.
    pub centered: bool,
    /// The greatest absolute value of an element of the gradient; greater ones are clipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<Scalar>,
}

impl RmspropUpdate {
    /// Returns whether the last state is a momentum.
    pub fn has_momentum(&self) -> bool {
        self.momentum.0 != 0.0
    }

    /// Returns the number of operands that are not scalars: the variable, its gradient and its states.
    pub fn count_tensors(&self) -> usize {
        3 + usize::from(self.centered) + usize::from(self.has_momentum())
    }

    /// Computes the new variable and states of one element.
    fn update_element(&self, lr: f64, values: &[f64]) -> Vec<f64> {
        let (w, alpha) = (values[0], self.alpha.0);
        let g = values[1] + self.weight_decay.0 * w;
        let mut states = vec![alpha * values[2] + (1.0 - alpha) * g * g];
        let mut square = states[0];
        if self.centered {
            let mean = alpha * values[3] + (1.0 - alpha) * g;
            square -= mean * mean;
            states.push(mean);
        }
        let mut ahead = g / (square.max(0.0).sqrt() + self.epsilon.0);
        if self.has_momentum() {
            ahead += self.momentum.0 * values[self.count_tensors() - 1];
            states.push(ahead);
        }
        [vec![w - lr * ahead], states].concat()
    }
}

impl Operation for RmspropUpdate {
    fn name(&self) -> &'static str {
        "rmsprop_update"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        let expected = "a variable, a gradient, their states (1, 1 more where centered and 1 more with momentum), and it may \
                        take a factor of the gradient";
        let count = self.count_tensors();
        check_operand_count(self.name(), operands, count..=count + 1, expected)?;
        result_dtypes(self.name(), operands, count)
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        update_rule(self.name(), operands, self.count_tensors())
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
        let (tensors, scalars) = operands.split_at(self.count_tensors());
        let lr = self.lr.rate_at(cx.step);
        let step = |values: &[f64]| self.update_element(lr, values);
        Ok(update_elements(tensors, &UpdateClipping::from_scalars(scalars, self.clip), step))
    }

    fn updates(&self) -> &[(usize, usize)] {
        &[(0, 0), (1, 2), (2, 3), (3, 4)][..self.count_tensors() - 1]
    }

    fn gradient_operand(&self) -> Option<usize> {
        Some(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    fn check(op: RmspropUpdate, operands: &[f64], expected: &[f64]) {
        let scalar = |&value: &f64| (DType::F32, Array::new([1], vec![value]));
        let operands: Vec<_> = operands.iter().map(scalar).collect();
        let found = evaluate(Op::RmspropUpdate(op), &operands).expect("fits");
        let found: Vec<f64> = found.iter().map(|array| array.data[0]).collect();
        let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(near && found.len() == expected.len(), "{found:?} is not {expected:?}");
    }

    #[test]
    fn by_hand() {
        let plain = RmspropUpdate { lr: 0.5.into(), alpha: 0.5.into(), ..RmspropUpdate::default() };
        // v = (14 + 4) / 2 = 9.
        check(plain.clone(), &[1.0, 2.0, 14.0], &[1.0 - 0.5 * 2.0 / 3.0, 9.0]);
        let decayed = RmspropUpdate { weight_decay: 1.0.into(), ..plain.clone() };
        check(decayed, &[1.0, 1.0, 14.0], &[1.0 - 0.5 * 2.0 / 3.0, 9.0]);
        // The mean is 3: a deviation of 0, and 2 are added.
        let centered = RmspropUpdate { centered: true, epsilon: 2.0.into(), ..plain.clone() };
        check(centered.clone(), &[1.0, 2.0, 14.0, 4.0], &[0.5, 9.0, 3.0]);
        let momentum = RmspropUpdate { momentum: 0.5.into(), ..centered };
        check(momentum, &[1.0, 2.0, 14.0, 4.0, 6.0], &[-1.0, 9.0, 3.0, 4.0]);
        let momentum = RmspropUpdate { momentum: 0.5.into(), ..plain };
        check(
            momentum,
            &[1.0, 2.0, 14.0, 6.0],
            &[1.0 - 0.5 * (3.0 + 2.0 / 3.0), 9.0, 3.0 + 2.0 / 3.0],
        );
    }
}
