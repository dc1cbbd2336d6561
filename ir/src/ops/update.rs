//! Steps of optimizers: results take the place of the variables. Formulas as in torch.optim.
//!
//! A variable of half precision has a gradient of its precision or f32. Its states are f32: moments of bfloat16 would not grow,
//! as a hundredth of them is below their last bit. Updates compute in f32.
//!
//! If the norm of gradients clips them ([`super::ClipFactor`]) or the loss is scaled ([`super::LossScale`]), an update also takes a
//! `factor`. The gradient is multiplied by it first. A factor of 0 says that the update is not made: the variable and its states stay as
//! they are. Under loss scaling, updates that correct a bias also take the number of the update, because steps that are not made must not
//! count. Then each element of the gradient is clipped, if `clip` says so.
//!
//! The learning rate is a function of the training's step ([`LearningRate`]).

mod lamb;
mod rmsprop;

pub use lamb::*;
pub use rmsprop::*;

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::shards::{elementwise_rule, one_float, same_shape};
use crate::array::Array;
use crate::learning_rate::LearningRate;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, dtype_error, shape_error,
};
use crate::rule::Rule;
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// (w, g) -> (w') or, with momentum, (w, g, m) -> (w', m'); with a factor of the gradient as a further operand (f32[]).
/// g += weight_decay w; m' = momentum m + g; g = nesterov ? g + momentum m' : m'; w' = w - lr g.
/// Without momentum a limit of the rate may stand behind the factor, (w, g, factor, limit): w' = w - lr weight_decay w - min(lr, limit) g.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SgdUpdate {
    /// Learning rate.
    pub lr: LearningRate,
    /// Momentum; 0 for none.
    pub momentum: Scalar,
    /// Whether the momentum is Nesterov's.
    pub nesterov: bool,
    /// L2 penalty.
    pub weight_decay: Scalar,
    /// The greatest absolute value of an element of the gradient; greater ones are clipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<Scalar>,
}

/// (w, g, m, v) -> (w', m', v') with bias correction by the step (from 1); with a factor of the gradient (w, g, m, v, factor), and
/// under loss scaling (w, g, m, v, factor, step), the last two f32[]. `decoupled` is AdamW: w shrinks by
/// lr weight_decay first; otherwise g += weight_decay w.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AdamUpdate {
    /// Learning rate.
    pub lr: LearningRate,
    /// Decay of the first moment.
    pub beta1: Scalar,
    /// Decay of the second moment.
    pub beta2: Scalar,
    /// The term that is added to the root of the second moment.
    pub epsilon: Scalar,
    /// Weight decay.
    pub weight_decay: Scalar,
    /// Whether the weight decay is decoupled (AdamW).
    pub decoupled: bool,
    /// The greatest absolute value of an element of the gradient; greater ones are clipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<Scalar>,
}

impl SgdUpdate {
    fn has_momentum(&self) -> bool {
        self.momentum.0 != 0.0
    }

    /// Returns the number of operands that are not scalars: the variable, its gradient and its states.
    fn count_tensors(&self) -> usize {
        if self.has_momentum() { 3 } else { 2 }
    }

    /// Computes (w', m') of one element.
    fn update_element(&self, lr: f64, w: f64, g: f64, m: f64) -> (f64, f64) {
        let g = g + self.weight_decay.0 * w;
        let m = self.momentum.0 * m + g;
        let g = if self.nesterov { g + self.momentum.0 * m } else { m };
        (w - lr * g, m)
    }
}

impl Operation for SgdUpdate {
    fn name(&self) -> &'static str {
        "sgd_update"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        let count = self.count_tensors();
        let (most, expected) = match self.has_momentum() {
            true => (count + 1, "with momentum 3, or 4 with a factor of the gradient"),
            false => (
                count + 2,
                "without momentum 2, 3 with a factor of the gradient, or 4 with a limit of the rate too",
            ),
        };
        check_operand_count(self.name(), operands, count..=most, expected)?;
        result_dtypes(self.name(), operands, count)
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        update_rule(self.name(), operands, self.count_tensors())
    }

    fn flops_per_point(&self) -> f64 {
        if self.has_momentum() { 6.0 } else { 4.0 }
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        _results: &[Region],
        cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let (tensors, scalars) = operands.split_at(self.count_tensors());
        let lr = self.lr.rate_at(cx.step);
        let limit = scalars.get(1).map(|limit| limit.array.data[0]);
        let step = |values: &[f64]| {
            if let Some(limit) = limit {
                let [w, g] = [values[0], values[1]];
                return vec![w - lr * self.weight_decay.0 * w - lr.min(limit) * g];
            }
            let (w, m) = self.update_element(
                lr,
                values[0],
                values[1],
                values.get(2).copied().unwrap_or(0.0),
            );
            vec![w, m]
        };
        Ok(update_elements(tensors, &UpdateClipping::from_scalars(scalars, self.clip), step))
    }

    fn updates(&self) -> &[(usize, usize)] {
        if self.has_momentum() { &[(0, 0), (1, 2)] } else { &[(0, 0)] }
    }

    fn gradient_operand(&self) -> Option<usize> {
        Some(1)
    }
}

impl AdamUpdate {
    /// Computes (w', m', v') of one element at step `step`, from 1.
    fn update_element(&self, lr: f64, [w, g, m, v]: [f64; 4], step: f64) -> [f64; 3] {
        let decay = self.weight_decay.0;
        let (w, g) = match self.decoupled {
            true => (w - lr * decay * w, g),
            false => (w, g + decay * w),
        };
        let (beta1, beta2) = (self.beta1.0, self.beta2.0);
        let m = beta1 * m + (1.0 - beta1) * g;
        let v = beta2 * v + (1.0 - beta2) * g * g;
        let [correct1, correct2] = [beta1, beta2].map(|beta| 1.0 - beta.powf(step));
        let root = (v / correct2).sqrt() + self.epsilon.0;
        [w - lr * (m / correct1) / root, m, v]
    }
}

impl Operation for AdamUpdate {
    fn name(&self) -> &'static str {
        "adam_update"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        let expected = "4, 5 with a factor of the gradient, or 6 with the step of loss scaling too";
        check_operand_count(self.name(), operands, 4..=6, expected)?;
        result_dtypes(self.name(), operands, 4)
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
        let (lr, number) = (self.lr.rate_at(cx.step), update_number(scalars, cx));
        Ok(update_elements(tensors, &UpdateClipping::from_scalars(scalars, self.clip), |values| {
            self.update_element(lr, [values[0], values[1], values[2], values[3]], number).to_vec()
        }))
    }

    fn updates(&self) -> &[(usize, usize)] {
        &[(0, 0), (1, 2), (2, 3)]
    }

    fn gradient_operand(&self) -> Option<usize> {
        Some(1)
    }
}

/// Checks that the number of operands is one of `counts`: the last of them may be left out.
fn check_operand_count(
    op: &'static str,
    operands: &[&TensorType],
    counts: RangeInclusive<usize>,
    expected: &'static str,
) -> Result<(), OpError> {
    if counts.contains(&operands.len()) {
        return Ok(());
    }
    check_arity(op, operands, *counts.start(), expected)
}

/// Infers the element types of the results: those of the first `tensors` operands but the gradient. What follows are scalars.
fn result_dtypes(
    op: &'static str,
    operands: &[&TensorType],
    tensors: usize,
) -> Result<Vec<DType>, OpError> {
    let variable = one_float(op, operands, &[0])?;
    if ![variable, DType::F32].contains(&operands[1].dtype) {
        let reason = format!("the gradient of a variable of {variable} is {variable} or f32");
        return Err(dtype_error(op, operands, reason));
    }
    if operands[2..].iter().any(|state| state.dtype != DType::F32) {
        return Err(dtype_error(op, operands, "the states, and all scalars, are f32"));
    }
    Ok([vec![variable], vec![DType::F32; tensors - 2]].concat())
}

/// Returns the rule of an update: the first `tensors` operands, a variable, its gradient and its states, are split together; scalars are whole. It
/// names no linear group, although plain SGD has one: a variable is never kept as partial sums.
fn update_rule(
    op: &'static str,
    operands: &[&TensorType],
    tensors: usize,
) -> Result<Rule, OpError> {
    same_shape(op, operands, &(0..tensors).collect::<Vec<_>>())?;
    if operands[tensors..].iter().any(|scalar| !scalar.shape.is_empty()) {
        return Err(shape_error(op, operands, format!("operands from {tensors} on are scalars")));
    }
    let mut rule = elementwise_rule(&operands[0].shape, tensors, tensors - 1);
    rule.operands.resize(operands.len(), Vec::new());
    Ok(rule)
}

/// Returns the number of the update, from 1: that of loss scaling, which leaves out steps that are not made, or the step's.
fn update_number(scalars: &[Operand<'_>], cx: &EvalContext) -> f64 {
    scalars.get(1).map_or(cx.step as f64 + 1.0, |step| step.array.data[0])
}

/// The changes of a gradient before it is used.
struct UpdateClipping {
    factor: Option<f64>,
    clip: Option<f64>,
}

impl UpdateClipping {
    fn from_scalars(scalars: &[Operand<'_>], clip: Option<Scalar>) -> Self {
        let factor = scalars.first().map(|factor| factor.array.data[0]);
        Self { factor, clip: clip.map(|clip| clip.0) }
    }

    /// Returns whether the update is not made, because the factor is 0.
    fn skips_update(&self) -> bool {
        self.factor == Some(0.0)
    }

    /// Returns the gradient as the update takes it: times the factor, then clipped.
    fn apply(&self, g: f64) -> f64 {
        let g = g * self.factor.unwrap_or(1.0);
        self.clip.map_or(g, |clip| clip_number(g, clip))
    }
}

/// Returns the number with an absolute value of at most `clip`; a NaN stays.
fn clip_number(g: f64, clip: f64) -> f64 {
    if g.abs() > clip { clip.copysign(g) } else { g }
}

/// Applies a step to each element; it returns the new variable and states. Where the factor of the gradient is 0 all stay.
fn update_elements(
    operands: &[Operand<'_>],
    clipping: &UpdateClipping,
    step: impl Fn(&[f64]) -> Vec<f64>,
) -> Vec<Array> {
    let kept = operands.iter().enumerate().filter(|(index, _)| *index != 1);
    let mut results: Vec<Array> = kept.map(|(_, operand)| operand.array.clone()).collect();
    if clipping.skips_update() {
        return results;
    }
    for i in 0..operands[0].array.data.len() {
        let mut values: Vec<f64> = operands.iter().map(|operand| operand.array.data[i]).collect();
        values[1] = clipping.apply(values[1]);
        for (result, value) in results.iter_mut().zip(step(&values)) {
            result.data[i] = value;
        }
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    fn scalars(values: &[f64]) -> Vec<(DType, Array)> {
        values.iter().map(|&value| (DType::F32, Array::new([1], vec![value]))).collect()
    }

    fn check(op: Op, operands: &[f64], expected: &[f64]) {
        check_scaled(op, operands, &[], expected);
    }

    /// Checks an update with operands of loss scaling.
    fn check_scaled(op: Op, operands: &[f64], scaling: &[f64], expected: &[f64]) {
        let scalar = |&value: &f64| (DType::F32, Array::new([], vec![value]));
        let all = [scalars(operands), scaling.iter().map(scalar).collect()].concat();
        let found = evaluate(op, &all).expect("fits");
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found.data[0] - expected).abs() < 1e-12, "{found:?} is not {expected}");
        }
    }

    #[test]
    fn sgd_by_hand() {
        let sgd = |momentum: f64, nesterov, weight_decay: f64| {
            let (momentum, weight_decay) = (Scalar(momentum), Scalar(weight_decay));
            Op::SgdUpdate(SgdUpdate {
                lr: 0.1.into(),
                momentum,
                nesterov,
                weight_decay,
                clip: None,
            })
        };
        check(sgd(0.0, false, 0.0), &[1.0, 2.0], &[0.8]);
        check(sgd(0.0, false, 0.5), &[1.0, 2.0], &[0.75]);
        check(sgd(0.5, false, 0.0), &[1.0, 2.0, 4.0], &[0.6, 4.0]);
        check(sgd(0.5, true, 0.0), &[1.0, 2.0, 4.0], &[0.6, 4.0]);
        check(sgd(0.5, true, 0.0), &[1.0, 2.0, 0.0], &[0.7, 2.0]);
        let f32_1 = TensorType::new(DType::F32, [1]);
        assert!(sgd(0.5, false, 0.0).infer_types(&[&f32_1, &f32_1]).is_err());
    }

    #[test]
    fn adam_by_hand() {
        let adam = |weight_decay: f64, decoupled| {
            Op::AdamUpdate(AdamUpdate {
                lr: 0.1.into(),
                beta1: Scalar(0.9),
                beta2: Scalar(0.75),
                epsilon: Scalar(0.0),
                weight_decay: Scalar(weight_decay),
                decoupled,
                clip: None,
            })
        };
        // The first step moves by lr against the gradient's sign.
        check(adam(0.0, false), &[1.0, 2.0, 0.0, 0.0], &[0.9, 0.2, 1.0]);
        check(adam(0.5, true), &[1.0, 2.0, 0.0, 0.0], &[0.85, 0.2, 1.0]);
        check(adam(2.0, false), &[1.0, 2.0, 0.0, 0.0], &[0.9, 0.4, 4.0]);
    }

    #[test]
    fn scaled_gradients_by_hand() {
        let sgd = |momentum: f64| {
            let momentum = Scalar(momentum);
            Op::SgdUpdate(SgdUpdate { lr: 0.1.into(), momentum, ..SgdUpdate::default() })
        };
        check_scaled(sgd(0.0), &[1.0, 8.0], &[0.25], &[0.8]);
        check_scaled(sgd(0.5), &[1.0, 8.0, 4.0], &[0.25], &[0.6, 4.0]);
        check_scaled(sgd(0.5), &[1.0, f64::NAN, 4.0], &[0.0], &[1.0, 4.0]);
        let adam = Op::AdamUpdate(AdamUpdate {
            lr: 0.1.into(),
            beta1: Scalar(0.5),
            beta2: Scalar(0.5),
            weight_decay: Scalar(0.5),
            decoupled: true,
            ..AdamUpdate::default()
        });
        // m and v are 1 and 3; of the second update their corrections are by 3/4.
        let expected = 0.95 - 0.1 * (1.0 / 0.75) / 2.0;
        let states = [1.0, 8.0, 0.0, 2.0];
        check_scaled(adam.clone(), &states, &[0.25, 2.0], &[expected, 1.0, 3.0]);
        check_scaled(adam, &[1.0, f64::INFINITY, 0.5, 2.0], &[0.0, 2.0], &[1.0, 0.5, 2.0]);
    }

    #[test]
    fn a_limit_holds_for_gradients_not_for_the_decay() {
        let sgd = Op::SgdUpdate(SgdUpdate {
            lr: 0.5.into(),
            weight_decay: Scalar(0.5),
            ..SgdUpdate::default()
        });
        check_scaled(sgd.clone(), &[1.0, 2.0], &[1.0, 0.25], &[0.25]);
        check_scaled(sgd.clone(), &[1.0, 2.0], &[0.5, 0.75], &[0.25]);
        check_scaled(sgd, &[1.0, f64::NAN], &[0.0, 0.25], &[1.0]);
        let momentum = SgdUpdate { momentum: Scalar(0.5), ..SgdUpdate::default() };
        let (one, scalar) = (TensorType::new(DType::F32, [1]), TensorType::new(DType::F32, []));
        let operands = [&one, &one, &one, &scalar, &scalar];
        assert!(Op::SgdUpdate(momentum).infer_types(&operands).is_err());
    }

    #[test]
    fn gradients_are_clipped_after_they_are_scaled() {
        let clip = Some(Scalar(1.5));
        let sgd = Op::SgdUpdate(SgdUpdate { lr: 0.5.into(), clip, ..SgdUpdate::default() });
        check(sgd.clone(), &[1.0, 4.0], &[0.25]);
        check(sgd.clone(), &[1.0, -4.0], &[1.75]);
        check_scaled(sgd, &[1.0, 4.0], &[0.25], &[0.5]);
    }

    #[test]
    fn the_learning_rate_follows_the_step() {
        let schedule = "step:2,0.5".parse().expect("a schedule");
        let lr = LearningRate { base: Scalar(0.5), schedule };
        let sgd = SgdUpdate { lr, ..SgdUpdate::default() };
        let ty = TensorType::new(DType::F32, [1]);
        let region = Region::whole(&ty);
        let [w, g] = [1.0, 1.0].map(|value| Array::new([1], vec![value]));
        let operands = [&w, &g].map(|array| Operand { array, region: &region });
        for (step, expected) in [(0, 0.5), (1, 0.5), (2, 0.75), (4, 0.875)] {
            let cx = EvalContext { seed: 0, step };
            let found = sgd.evaluate(&operands, &[], &cx).expect("fits");
            assert_eq!(found[0].data, [expected], "step {step}");
        }
    }
}
