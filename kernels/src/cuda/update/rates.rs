//! Numbers of updates: those of the host, from the step alone, and those that a thread of the device works out.

use graphc_ir::learning_rate::GivenRate;
use graphc_ir::op::Op;
use graphc_ir::ops::{AdamUpdate, LambDirection, SgdUpdate};

use super::super::call::{Argument, Launch, Numbers};
use super::super::source::{KernelSource, f64_literal};

/// Bytes of the numbers that the device works out.
pub(super) const BYTES: usize = 16;

/// The way in which the device works out numbers of an update from two scalars.
pub(super) struct DeviceRates {
    /// The number, among those of the host, that is the learning rate.
    lr: usize,
    /// Statements of C++.
    find: String,
    /// The positions of the scalars, counted from the last operand, which is 1.
    scalars: [usize; 2],
}

impl Numbers {
    /// The numbers of a step, which is counted from 0, and of the learning rate that stands in the place of its own, if one is given;
    /// always as many.
    pub fn at_step(&self, step: u64, rate: Option<GivenRate>) -> Vec<f32> {
        match self {
            Self::None => Vec::new(),
            Self::Update(op) => step_numbers(op, step, rate),
            Self::Table(numbers) => numbers.clone(),
        }
    }
}

/// Returns the numbers that an update needs at a step, counted from 0. Where the device computes with the learning rate, that is two
/// numbers: the second is what the first has lost by rounding to f32.
fn step_numbers(op: &Op, step: u64, rate: Option<GivenRate>) -> Vec<f32> {
    let count = step as f64 + 1.0;
    match op {
        Op::SgdUpdate(op) => in_two(op.lr.at_or_given(step, rate)).to_vec(),
        Op::RmspropUpdate(op) => vec![op.lr.at_or_given(step, rate) as f32],
        Op::AdamUpdate(op) => {
            let lr = op.lr.at_or_given(step, rate);
            let (beta1, beta2) = (op.beta1.0.powf(count), op.beta2.0.powf(count));
            let shrink = if op.decoupled { 1.0 - lr * op.weight_decay.0 } else { 1.0 };
            let own = [shrink, lr / (1.0 - beta1), 1.0 / (1.0 - beta2).sqrt()];
            own.map(|number| number as f32).into_iter().chain(in_two(lr)).collect()
        }
        Op::LambDirection(op) => {
            let [beta1, beta2] = [op.beta1, op.beta2].map(|beta| 1.0 - beta.0.powf(count));
            [1.0 / beta1, 1.0 / beta2.sqrt()].map(|number| number as f32).to_vec()
        }
        Op::LambUpdate(op) => in_two(op.lr.at_or_given(step, rate)).to_vec(),
        Op::Blend(op) => {
            let now = op.at_step(step);
            [now.decay, now.rate].map(|share| share.0 as f32).to_vec()
        }
        _ => Vec::new(),
    }
}

fn in_two(number: f64) -> [f32; 2] {
    let first = number as f32;
    [first, (number - f64::from(first)) as f32]
}

/// Returns the rates of SGD whose rate has a limit, which is the last operand.
pub(super) fn of_sgd(op: &SgdUpdate) -> DeviceRates {
    let find = format!(
        "rates[0] = (float)(lr < a ? lr : a); rates[1] = (float)(1.0 - lr * {});",
        f64_literal(op.weight_decay.0),
    );
    DeviceRates { lr: 0, find, scalars: [1, 1] }
}

/// Returns the rates of Adam, which follow from the number of the update.
pub(super) fn of_adam(op: &AdamUpdate) -> DeviceRates {
    let shrink = match op.decoupled {
        true => format!("1.0 - lr * {}", f64_literal(op.weight_decay.0)),
        false => "1.0".to_owned(),
    };
    let find = format!(
        "rates[0] = (float)({shrink}); rates[1] = (float)(lr / {}); rates[2] = (float)(1.0 / sqrt({}));",
        moment_share(op.beta1.0),
        moment_share(op.beta2.0),
    );
    DeviceRates { lr: 3, find, scalars: [1, 1] }
}

/// Returns the rates of a direction of LAMB, which follow from the number of the update. None is a learning rate.
pub(super) fn of_direction(op: &LambDirection) -> DeviceRates {
    let find = format!(
        "rates[0] = (float)(1.0 / {}); rates[1] = (float)(1.0 / sqrt({}));",
        moment_share(op.beta1.0),
        moment_share(op.beta2.0),
    );
    DeviceRates { lr: 0, find, scalars: [1, 1] }
}

/// Returns the rate of a step of LAMB, which follows from the sums of squares of a variable and its direction.
pub(super) fn of_step() -> DeviceRates {
    let find = "rates[0] = (float)(a > 0.0 && b > 0.0 ? lr * sqrt(a / b) : lr);".to_owned();
    DeviceRates { lr: 0, find, scalars: [2, 1] }
}

/// Returns the C++ expression of the total weight in a moment of the gradients up to update `a`.
fn moment_share(beta: f64) -> String {
    format!("(1.0 - pow({}, a))", f64_literal(beta))
}

impl DeviceRates {
    /// Statements of C++ that find them.
    pub(super) fn statements(&self) -> &str {
        &self.find
    }

    /// The launch, for so many operands.
    pub(super) fn into_launch(self, operands: usize) -> Launch {
        let source = KernelSource::new(include_str!("../cu/rates.cu"))
            .define("LR", self.lr)
            .define("FIND", self.find);
        let [a, b] = self.scalars.map(|scalar| Argument::operand(operands - scalar));
        Launch::kernel(source, "rates", 1, 1, vec![Argument::Numbers, a, b, Argument::scratch(0)])
    }
}

#[cfg(test)]
mod tests {
    use graphc_ir::learning_rate::LearningRate;
    use graphc_ir::ops::LambUpdate;

    use super::*;

    fn sgd(lr: f64) -> Numbers {
        let momentum = 0.9.into();
        let sgd = SgdUpdate {
            lr: lr.into(),
            momentum,
            nesterov: false,
            weight_decay: 0.0.into(),
            clip: None,
        };
        Numbers::Update(Box::new(Op::SgdUpdate(sgd)))
    }

    #[test]
    fn a_rate_that_is_given_stands_in_the_place_of_the_planned_one() {
        let given = GivenRate { rate: 0.3, planned: 0.5 };
        assert_eq!(sgd(0.5).at_step(7, Some(given)), sgd(0.3).at_step(7, None));
        assert_eq!(sgd(0.25).at_step(7, Some(given)), sgd(0.15).at_step(7, None));
        let lamb = |lr: LearningRate| Numbers::Update(Box::new(Op::LambUpdate(LambUpdate { lr })));
        assert_eq!(lamb(0.5.into()).at_step(7, Some(given)), lamb(0.3.into()).at_step(7, None));
        assert_ne!(sgd(0.5).at_step(7, Some(given)), sgd(0.5).at_step(7, None));
    }
}
