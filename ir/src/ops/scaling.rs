//! Steps that are not made because something in them is not finite.
//!
//! Dynamic loss scaling works as in `torch.amp.GradScaler`. The loss's gradient is multiplied by a scale, so that small gradients
//! do not vanish in f16. A step whose gradients overflowed is not made, and it halves the scale.

use serde::{Deserialize, Serialize};

use super::shards::{float_to_f32, sum_of_all};
use crate::array::Array;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, dtype_error, shape_error,
};
use crate::rule::Rule;
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// The number of elements that are infinite or no number: (x) -> f32[]. A count, so that ranks, stages and tensors are
/// taken together by adding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NonFinite {}

/// The end of a step under loss scaling: (scale, good, made, bad) -> (scale', good', made', factor, step, used, skipped), all f32[]; with a factor as
/// a fifth operand a step for which that is 0 is not made either, and then scale and counts stay as they are.
///
/// `good` counts the steps since the scale was last changed, `made` all updates so far, `bad` is the number of elements of
/// this step's gradients that are not finite. Where it is 0 the update is made: `factor` is 1 / scale, and after `interval` such
/// steps the scale grows. Otherwise `factor` is 0, which tells the updates to change nothing, and the scale shrinks, but not
/// below `floor`: from a scale of 0 no step would ever be right again. `step` is the number of this update, from 1, `used` the
/// scale of this step, and `skipped` 1 where it was not made, which is also the case where the scale is below `floor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LossScale {
    /// The factor of the scale after `interval` good steps in a row.
    pub growth: Scalar,
    /// The factor of the scale after a step that was not made.
    pub backoff: Scalar,
    /// The number of good steps in a row until the scale grows.
    pub interval: u32,
    /// The least scale.
    #[serde(default = "LossScale::default_floor")]
    pub floor: Scalar,
}

impl LossScale {
    /// Returns the least scale where nothing is said, 1: a loss that is not scaled at all.
    pub fn default_floor() -> Scalar {
        Scalar(1.0)
    }

    /// Computes the results for the numbers of one step, in order.
    pub fn evaluate_step(&self, [scale, good, made, bad]: [f64; 4]) -> [f64; 7] {
        let skipped = bad != 0.0 || scale < self.floor.0;
        let full = good + 1.0 >= f64::from(self.interval);
        let grown = scale * self.growth.0;
        // As in PyTorch a scale beyond f32 does not grow further.
        let (next, streak) = match (skipped, full) {
            (true, _) => ((scale * self.backoff.0).max(self.floor.0), 0.0),
            (false, true) => (if grown <= f64::from(f32::MAX) { grown } else { scale }, 0.0),
            (false, false) => (scale, good + 1.0),
        };
        let (factor, one) = if skipped { (0.0, 0.0) } else { (1.0 / scale, 1.0) };
        [next, streak, made + one, factor, made + 1.0, scale, 1.0 - one]
    }

    /// Computes the results for the numbers of a step and, if there is one, the factor that says whether it is made at all.
    pub fn evaluate_guarded_step(&self, numbers: [f64; 4], factor: Option<f64>) -> [f64; 7] {
        let [scale, good, made, _] = numbers;
        match factor {
            Some(0.0) => [scale, good, made, 0.0, made + 1.0, scale, 1.0],
            _ => self.evaluate_step(numbers),
        }
    }
}

/// The decision on a step: (before, bad) -> (before', factor, step, skipped), all f32[].
///
/// `before` counts the steps that were not made, `bad` is how much in this one is not finite. Where that is 0 `factor` is 1; otherwise it
/// is 0, which tells updates and states to stay as they are. `step` is the number of this update, from 1, without those that were not
/// made, and `skipped` is 1 where it is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SkipStep {}

impl SkipStep {
    /// Computes the results at a step, from 0, in order.
    pub fn evaluate_step(&self, [before, bad]: [f64; 2], step: u64) -> [f64; 4] {
        let skipped = if bad == 0.0 { 0.0 } else { 1.0 };
        [before + skipped, 1.0 - skipped, step as f64 + 1.0 - before, skipped]
    }
}

impl Operation for NonFinite {
    fn name(&self) -> &'static str {
        "non_finite"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        float_to_f32(self.name(), operands)
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        Ok(sum_of_all(operands))
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let elements = operands[0].array.data.iter();
        let count = elements.filter(|element| !element.is_finite()).count();
        Ok(vec![Array::new([], vec![count as f64])])
    }
}

impl Operation for LossScale {
    fn name(&self) -> &'static str {
        "loss_scale"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        if operands.len() != 5 {
            check_arity(
                self.name(),
                operands,
                4,
                "4, or 5 with the factor of steps that are not made",
            )?;
        }
        check_all_f32(self.name(), operands, 7)
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        of_numbers(self.name(), operands, 7)
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        _results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let number = |operand: usize| operands[operand].array.data[0];
        let factor = (operands.len() > 4).then(|| number(4));
        let results = self.evaluate_guarded_step([0, 1, 2, 3].map(number), factor);
        Ok(results.map(|number| Array::new([], vec![number])).to_vec())
    }

    fn updates(&self) -> &[(usize, usize)] {
        &[(0, 0), (1, 1), (2, 2)]
    }
}

impl Operation for SkipStep {
    fn name(&self) -> &'static str {
        "skip_step"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 2, "2")?;
        check_all_f32(self.name(), operands, 4)
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        of_numbers(self.name(), operands, 4)
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        _results: &[Region],
        cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let number = |operand: usize| operands[operand].array.data[0];
        let results = self.evaluate_step([0, 1].map(number), cx.step);
        Ok(results.map(|number| Array::new([], vec![number])).to_vec())
    }

    fn updates(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }
}

/// Checks that all operands are f32, and returns the element types of so many results.
fn check_all_f32(
    op: &'static str,
    operands: &[&TensorType],
    results: usize,
) -> Result<Vec<DType>, OpError> {
    match operands.iter().any(|operand| operand.dtype != DType::F32) {
        true => Err(dtype_error(op, operands, "all of them are f32")),
        false => Ok(vec![DType::F32; results]),
    }
}

/// Returns the rule of scalars, of which nothing is split.
fn of_numbers(op: &'static str, operands: &[&TensorType], results: usize) -> Result<Rule, OpError> {
    if operands.iter().any(|operand| !operand.shape.is_empty()) {
        return Err(shape_error(op, operands, "all of them are scalars"));
    }
    let (operands, results) = (vec![Vec::new(); operands.len()], vec![Vec::new(); results]);
    Ok(Rule { operands, results, ..Rule::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    fn scaling(interval: u32) -> LossScale {
        let floor = LossScale::default_floor();
        LossScale { growth: Scalar(2.0), backoff: Scalar(0.5), interval, floor }
    }

    #[test]
    fn counts_what_is_not_finite() {
        let count = |data: Vec<f64>| {
            let operand = (DType::F32, Array::new([data.len()], data));
            evaluate(Op::NonFinite(NonFinite {}), &[operand]).expect("fits")[0].data[0]
        };
        assert_eq!(count(vec![1.0, -2.0, 0.0]), 0.0);
        assert_eq!(count(vec![f64::NAN, 1.0, f64::INFINITY, f64::NEG_INFINITY]), 3.0);
        assert_eq!(count(vec![]), 0.0);
    }

    #[test]
    fn an_overflow_halves_the_scale_and_makes_no_update() {
        let found = scaling(2000).evaluate_step([65536.0, 7.0, 41.0, 3.0]);
        assert_eq!(found, [32768.0, 0.0, 41.0, 0.0, 42.0, 65536.0, 1.0]);
    }

    #[test]
    fn good_steps_are_counted_and_double_the_scale_in_the_end() {
        let found = scaling(3).evaluate_step([8.0, 1.0, 5.0, 0.0]);
        assert_eq!(found, [8.0, 2.0, 6.0, 0.125, 6.0, 8.0, 0.0]);
        let found = scaling(3).evaluate_step([8.0, 2.0, 6.0, 0.0]);
        assert_eq!(found, [16.0, 0.0, 7.0, 0.125, 7.0, 8.0, 0.0]);
    }

    #[test]
    fn a_step_that_is_not_made_for_another_reason_leaves_all_counts() {
        let found = scaling(3).evaluate_guarded_step([8.0, 2.0, 6.0, 5.0], Some(0.0));
        assert_eq!(found, [8.0, 2.0, 6.0, 0.0, 7.0, 8.0, 1.0]);
        let numbers = [8.0, 2.0, 6.0, 0.0];
        assert_eq!(
            scaling(3).evaluate_guarded_step(numbers, Some(1.0)),
            scaling(3).evaluate_step(numbers)
        );
    }

    #[test]
    fn steps_that_are_not_made_do_not_count() {
        assert_eq!(SkipStep {}.evaluate_step([2.0, 0.0], 9), [2.0, 1.0, 8.0, 0.0]);
        assert_eq!(SkipStep {}.evaluate_step([2.0, 1.0], 9), [3.0, 0.0, 8.0, 1.0]);
    }

    #[test]
    fn a_scale_does_not_sink_below_its_floor_and_comes_back_from_there() {
        let next = |scale: f64, bad: f64| scaling(1).evaluate_step([scale, 0.0, 0.0, bad]);
        assert_eq!(next(1.5, 1.0)[0], 1.0);
        assert_eq!(next(1.0, 1.0)[0], 1.0);
        // A scale of 0, which multiplies every gradient away: the step is not made, though nothing in it is infinite.
        assert_eq!(next(0.0, 0.0), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0]);
        assert_eq!(next(1.0, 0.0)[0], 2.0);
    }

    #[test]
    fn a_scale_does_not_grow_beyond_f32() {
        let greatest = f64::from(f32::MAX);
        assert_eq!(scaling(1).evaluate_step([greatest, 0.0, 0.0, 0.0])[0], greatest);
    }
}
