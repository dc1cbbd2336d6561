//! State that steps update: running statistics, averages of weights, counters.
//!
//! Such a state is a variable and one op, [`Blend`]. Like an optimizer's update it runs once a step, in the update phase, in the
//! place and the layout of its variable, whatever the strategy. Graph authors write it by the builder's
//! `Tensor::after_step` and `Tensor::blend_after_step`.
//!
//! States are saved, restored and exported like other variables. Inference has no updates: the pass `training_mode` leaves them
//! out.
//!
//! A state does not depend on whether the optimizer makes its step. A step of f16 whose gradients overflow takes in statistics
//! all the same, as in torch, and so does a plan that computes gradients alone. The exception is a training that leaves out steps
//! whose loss is not finite ([`super::SkipStep`]): there states stay as well.
//!
//! The verifier of graphs holds that a variable has one update, and that other updates alone read what it becomes. The scale of a
//! loss ([`super::LossScale`]) is a state with a rule of its own.

use serde::{Deserialize, Serialize};

use super::broadcast::fit_to_dtype;
use super::shards::{elementwise_rule, same_shape};
use crate::array::Array;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, dtype_error, shape_error,
};
use crate::rule::Rule;
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// (state, x) -> (state'), state' = decay state + rate x, in the place of the state. A decay of 0 replaces the state, whatever
/// it was.
///
/// x is of the state's element type, or one of both is f32; what is computed between is f32. A state of integers is replaced
/// (decay 0) or counted up (decay 1), one of truth values replaced, both at a rate of 1.
///
/// Where steps may be left out ([`super::SkipStep`]) the factor of updates is a third operand, and 0 says that the state stays; the
/// number of the update, from 1, may be a fourth. Both are f32[].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Blend {
    /// The share of the state that stays.
    pub decay: Scalar,
    /// The factor of x.
    pub rate: Scalar,
    /// Whether x takes the state's place at the first step of a training, or the first update of those that are numbered: an
    /// average begins with what it is of.
    #[serde(default)]
    pub starts: bool,
}

impl Blend {
    /// The update by which x takes the place of the state.
    pub(crate) const REPLACE: Self = Self::with_decay(0.0, 1.0);

    /// Makes an update that keeps this share of the state, and adds x at this rate.
    pub const fn with_decay(decay: f64, rate: f64) -> Self {
        Self { decay: Scalar(decay), rate: Scalar(rate), starts: false }
    }

    /// Returns the update, with its decay and rate, at a step, from 0.
    pub fn at_step(&self, step: u64) -> Self {
        if self.starts && step == 0 { Self::REPLACE } else { *self }
    }

    /// Returns the update, with its decay and rate, at an update of this number, from 1.
    pub fn at_update(&self, number: f64) -> Self {
        self.at_step(if number > 1.0 { 1 } else { 0 })
    }

    fn blend_element(&self, state: f64, x: f64) -> f64 {
        let kept = if self.decay.0 == 0.0 { 0.0 } else { self.decay.0 * state };
        kept + self.rate.0 * x
    }

    /// Explains why a state of this element type does not fit; `None` if it fits.
    fn find_mismatch(&self, state: DType, x: DType) -> Option<String> {
        if state.is_float() {
            let fits = [state, DType::F32].contains(&x) || state == DType::F32 && x.is_float();
            return (!fits).then(|| format!("a state of {state} does not take {x}"));
        }
        let counts = self.decay.0 == 1.0 && state != DType::Bool;
        let fits = self.rate.0 == 1.0 && (self.decay.0 == 0.0 || counts);
        match (state == x, fits) {
            (false, _) => Some(format!("a state of {state} takes {state}")),
            (true, false) => Some(format!(
                "a state of {state} is replaced (decay 0), or counted up (decay 1) if it is of integers, at rate 1"
            )),
            (true, true) => None,
        }
    }
}

impl Operation for Blend {
    fn name(&self) -> &'static str {
        "blend"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        if !(2..=4).contains(&operands.len()) {
            check_arity(
                self.name(),
                operands,
                2,
                "2 operands, and 2 scalars where steps are left out",
            )?;
        }
        if operands[2..].iter().any(|scalar| scalar.dtype != DType::F32) {
            return Err(dtype_error(self.name(), operands, "scalars are f32"));
        }
        match self.find_mismatch(operands[0].dtype, operands[1].dtype) {
            Some(reason) => Err(dtype_error(self.name(), operands, reason)),
            None => Ok(vec![operands[0].dtype]),
        }
    }

    /// Returns the rule. It names no linear group, although the op is linear: a variable is never kept as partial sums.
    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        same_shape(self.name(), operands, &[0, 1])?;
        if operands[2..].iter().any(|scalar| !scalar.shape.is_empty()) {
            return Err(shape_error(self.name(), operands, "operands from 2 on are scalars"));
        }
        let mut rule = elementwise_rule(&operands[0].shape, 2, 1);
        rule.operands.resize(operands.len(), Vec::new());
        Ok(rule)
    }

    fn flops_per_point(&self) -> f64 {
        3.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let scalar = |place: usize| operands.get(place).map(|scalar| scalar.array.data[0]);
        if scalar(2) == Some(0.0) {
            return Ok(vec![operands[0].array.clone()]);
        }
        let now = scalar(3).map_or(self.at_step(cx.step), |number| self.at_update(number));
        let [state, x] = [0, 1].map(|operand| &operands[operand].array.data);
        let next = |(&state, &x): (&f64, &f64)| {
            fit_to_dtype(results[0].dtype, now.blend_element(state, x))
        };
        let data = state.iter().zip(x).map(next).collect();
        Ok(vec![Array::new(results[0].rect.extent.clone(), data)])
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

    fn blend(dtype: DType, decay: f64, rate: f64, [state, x]: [f64; 2]) -> Result<f64, OpError> {
        let operands = [state, x].map(|value| (dtype, Array::new([1], vec![value])));
        let op = Op::Blend(Blend::with_decay(decay, rate));
        Ok(evaluate(op, &operands)?[0].data[0])
    }

    #[test]
    fn a_state_decays_or_is_replaced() {
        assert_eq!(blend(DType::F32, 0.5, 0.25, [8.0, 4.0]), Ok(5.0));
        assert_eq!(blend(DType::F32, 0.0, 1.0, [f64::NAN, 4.0]), Ok(4.0));
    }

    #[test]
    fn an_average_begins_with_what_it_is_of() {
        let average = Blend { starts: true, ..Blend::with_decay(0.75, 0.25) };
        assert_eq!([0, 1].map(|step| average.at_step(step).blend_element(8.0, 4.0)), [4.0, 7.0]);
        assert_eq!(Blend::with_decay(0.75, 0.25).at_step(0).blend_element(8.0, 4.0), 7.0);
    }

    #[test]
    fn a_factor_of_0_leaves_the_state() {
        let found = |starts: bool, scalars: &[f64]| {
            let tensor = |value: f64| (DType::F32, Array::new([1], vec![value]));
            let scalar = |&value: &f64| (DType::F32, Array::new([], vec![value]));
            let blend = Op::Blend(Blend { starts, ..Blend::with_decay(0.5, 0.25) });
            let operands = [tensor(8.0), tensor(4.0)].into_iter().chain(scalars.iter().map(scalar));
            evaluate(blend, &operands.collect::<Vec<_>>()).expect("fits")[0].data[0]
        };
        assert_eq!((found(false, &[0.0]), found(false, &[1.0])), (8.0, 5.0));
        // The first update that is made, whatever the step.
        assert_eq!([[0.0, 1.0], [1.0, 1.0], [1.0, 2.0]].map(|s| found(true, &s)), [8.0, 4.0, 5.0]);
    }

    #[test]
    fn integers_are_counted_up_or_replaced() {
        assert_eq!(blend(DType::I64, 1.0, 1.0, [8.0, 4.0]), Ok(12.0));
        assert_eq!(blend(DType::U8, 1.0, 1.0, [255.0, 4.0]), Ok(3.0));
        assert_eq!(blend(DType::I32, 0.0, 1.0, [8.0, 4.0]), Ok(4.0));
        assert_eq!(blend(DType::Bool, 0.0, 1.0, [1.0, 0.0]), Ok(0.0));
        for (dtype, decay, rate) in
            [(DType::I64, 0.5, 1.0), (DType::I64, 1.0, 0.5), (DType::Bool, 1.0, 1.0)]
        {
            let error = blend(dtype, decay, rate, [1.0, 1.0]).expect_err("no such state");
            assert!(error.to_string().contains("is replaced (decay 0)"), "{error}");
        }
    }

    #[test]
    fn what_goes_in_has_the_states_type_or_is_f32() {
        let of = |state, x| {
            let types = [state, x].map(|dtype| TensorType::new(dtype, [3]));
            Op::Blend(Blend::REPLACE).infer_types(&[&types[0], &types[1]])
        };
        assert_eq!(of(DType::BF16, DType::F32).expect("fits")[0].dtype, DType::BF16);
        assert!(of(DType::F32, DType::F16).is_ok());
        for (state, x) in [(DType::F16, DType::BF16), (DType::I64, DType::I32)] {
            assert!(of(state, x).is_err(), "{state} {x}");
        }
    }
}
