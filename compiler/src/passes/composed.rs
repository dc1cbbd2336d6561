//! Optimizers without a step of their own: each is composed of elementwise ops, which become a few passes over memory, and ends
//! in the step of SGD along a direction. Formulas as in torch.optim; Lion as its authors have it.
//!
//! What depends on the number of the update alone is one number of f32. Corrections `1 - beta^n` are small at first, so they
//! are written without differences of numbers that are nearly equal.

use graphc_ir::ids::ValueId;
use graphc_ir::learning_rate::LearningRate;
use graphc_ir::op::OpError;
use graphc_ir::ops::{BinaryFunction, UnaryFunction};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::DType;
use graphc_plan::{ComposedOptions, StepRule};

use super::append::Scalars;
use super::update_ops::Ops;
use crate::decisions::TrainingGraph;

/// Whether a rule asks for the number of the update.
pub(super) fn counts_updates(rule: StepRule) -> bool {
    match rule {
        StepRule::Lion { .. } | StepRule::Adadelta { .. } => false,
        StepRule::Adagrad { lr_decay, .. } => lr_decay != 0.0,
        StepRule::Damped { .. }
        | StepRule::Adafactor(_)
        | StepRule::Amsgrad { .. }
        | StepRule::Adamax { .. }
        | StepRule::Nadam { .. }
        | StepRule::Radam { .. } => true,
    }
}

/// Appends the update of a variable, with its states.
pub(super) fn append_composed(
    training: &mut TrainingGraph,
    options: &ComposedOptions,
    (lr, clip): (LearningRate, Option<Scalar>),
    (variable, gradient): (ValueId, ValueId),
    scalars: Scalars,
) -> Result<(), OpError> {
    let mut ops = Ops { training, variable, scalars };
    let mut gradient = ops.gradient(gradient, clip)?;
    let (coupled, decoupled) = match options.decoupled {
        true => (0.0, options.weight_decay),
        false => (options.weight_decay, 0.0),
    };
    if coupled != 0.0 {
        let variable = ops.cast(variable, DType::F32)?;
        let decay = ops.scale(variable, coupled)?;
        gradient = ops.add(gradient, decay)?;
    }
    if let StepRule::Adafactor(of) = options.rule {
        let direction = ops.adafactor(gradient, &of, decoupled)?;
        let limit = ops.limit_of_rate(&of)?;
        let apart = if of.fixed_rate { 0.0 } else { decoupled };
        return ops.limited_step((direction, limit), lr, apart);
    }
    let direction = ops.direction(options.rule, gradient)?;
    ops.step(direction, lr, decoupled)
}

impl Ops<'_> {
    fn direction(&mut self, rule: StepRule, gradient: ValueId) -> Result<ValueId, OpError> {
        match rule {
            StepRule::Damped { momentum, dampening } => self.damped(gradient, momentum, dampening),
            StepRule::Amsgrad { beta1, beta2, eps } => self.amsgrad(gradient, [beta1, beta2], eps),
            StepRule::Adagrad { lr_decay, initial, eps } => {
                self.adagrad(gradient, lr_decay, initial, eps)
            }
            StepRule::Adadelta { rho, eps } => self.adadelta(gradient, rho, eps),
            StepRule::Adamax { beta1, beta2, eps } => self.adamax(gradient, [beta1, beta2], eps),
            StepRule::Nadam { beta1, beta2, eps, momentum_decay } => {
                self.nadam(gradient, [beta1, beta2], eps, momentum_decay)
            }
            StepRule::Radam { beta1, beta2, eps } => self.radam(gradient, [beta1, beta2], eps),
            StepRule::Lion { beta1, beta2 } => self.lion(gradient, [beta1, beta2]),
            StepRule::Adafactor(_) => unreachable!("its step is made elsewhere"),
        }
    }

    /// `m' = momentum m + (1 - dampening) g`, but of the first gradient all.
    fn damped(
        &mut self,
        gradient: ValueId,
        momentum: f64,
        dampening: f64,
    ) -> Result<ValueId, OpError> {
        let state = self.state("momentum", 0.0)?;
        let number = self.number()?;
        let before = self.offset(number, -1.0)?;
        let is_later = self.unary(UnaryFunction::Sign, before)?;
        let share = self.linear(is_later, -dampening, 1.0)?;
        let taken = self.mul(gradient, share)?;
        self.average(state, taken, [momentum, 1.0])
    }

    /// Adam's direction by the greatest second moment so far.
    fn amsgrad(
        &mut self,
        gradient: ValueId,
        [beta1, beta2]: [f64; 2],
        eps: f64,
    ) -> Result<ValueId, OpError> {
        let first = self.first_moment(gradient, beta1)?;
        let second = self.second_moment(gradient, beta2)?;
        let greatest = self.state("max_exp_avg_sq", 0.0)?;
        let greater = self.binary(BinaryFunction::Max, greatest, second)?;
        self.replace(greatest, greater)?;
        let first = self.corrected(first, beta1)?;
        let root = self.corrected_root(greater, beta2, eps)?;
        self.div(first, root)
    }

    /// `s' = s + g^2`, and along `g / (sqrt(s') + eps)`.
    fn adagrad(
        &mut self,
        gradient: ValueId,
        lr_decay: f64,
        initial: f64,
        eps: f64,
    ) -> Result<ValueId, OpError> {
        let sum = self.state("sum", initial)?;
        let square = self.mul(gradient, gradient)?;
        let sum = self.average(sum, square, [1.0, 1.0])?;
        let root = self.unary(UnaryFunction::Sqrt, sum)?;
        let root = self.offset(root, eps)?;
        let direction = self.div(gradient, root)?;
        if lr_decay == 0.0 {
            return Ok(direction);
        }
        let number = self.number()?;
        let slower = self.linear(number, lr_decay, 1.0 - lr_decay)?;
        self.div(direction, slower)
    }

    /// Along `g sqrt(d + eps) / sqrt(s' + eps)` with the mean `s'` of the squares of gradients, and `d` of those of earlier steps.
    fn adadelta(&mut self, gradient: ValueId, rho: f64, eps: f64) -> Result<ValueId, OpError> {
        let of = [rho, 1.0 - rho];
        let (squares, steps) = (self.state("square_avg", 0.0)?, self.state("acc_delta", 0.0)?);
        let square = self.mul(gradient, gradient)?;
        let squares = self.average(squares, square, of)?;
        let mut root = |mean| {
            let above = self.offset(mean, eps)?;
            self.unary(UnaryFunction::Sqrt, above)
        };
        let (below, above) = (root(squares)?, root(steps)?);
        let ratio = self.div(above, below)?;
        let step = self.mul(gradient, ratio)?;
        let square = self.mul(step, step)?;
        self.blend(steps, square, of)?;
        Ok(step)
    }

    /// `u' = max(beta2 u, |g| + eps)` in the place of Adam's second moment.
    fn adamax(
        &mut self,
        gradient: ValueId,
        [beta1, beta2]: [f64; 2],
        eps: f64,
    ) -> Result<ValueId, OpError> {
        let first = self.first_moment(gradient, beta1)?;
        let greatest = self.state("exp_inf", 0.0)?;
        let kept = self.scale(greatest, beta2)?;
        let size = self.unary(UnaryFunction::Abs, gradient)?;
        let size = self.offset(size, eps)?;
        let greater = self.binary(BinaryFunction::Max, kept, size)?;
        self.replace(greatest, greater)?;
        let first = self.corrected(first, beta1)?;
        self.div(first, greater)
    }

    /// Adam with Nesterov's momentum: `beta1 (1 - 0.96^(n momentum_decay) / 2)` at update n, whose product over all updates corrects the first moment.
    fn nadam(
        &mut self,
        gradient: ValueId,
        [beta1, beta2]: [f64; 2],
        eps: f64,
        momentum_decay: f64,
    ) -> Result<ValueId, OpError> {
        let first = self.first_moment(gradient, beta1)?;
        let second = self.second_moment(gradient, beta2)?;
        let number = self.number()?;
        let next = self.offset(number, 1.0)?;
        let mut momentum_at = |number| {
            let exponent = self.scale(number, momentum_decay * 0.96_f64.ln())?;
            let power = self.unary(UnaryFunction::Exp, exponent)?;
            self.linear(power, -0.5 * beta1, beta1)
        };
        let (now, later) = (momentum_at(number)?, momentum_at(next)?);
        let product = self.number_state("mu_product", 1.0)?;
        let so_far = self.mul(product, now)?;
        self.replace(product, so_far)?;
        let rest = self.linear(now, -1.0, 1.0)?;
        let without = self.linear(so_far, -1.0, 1.0)?;
        let of_gradient = self.div(rest, without)?;
        let with_later = self.mul(so_far, later)?;
        let without = self.linear(with_later, -1.0, 1.0)?;
        let of_moment = self.div(later, without)?;
        let (gradient, first) = (self.mul(gradient, of_gradient)?, self.mul(first, of_moment)?);
        let ahead = self.add(gradient, first)?;
        let root = self.corrected_root(second, beta2, eps)?;
        self.div(ahead, root)
    }

    /// Adam's direction, rectified by how sure the second moment is; along the first moment alone where that is not at all.
    fn radam(
        &mut self,
        gradient: ValueId,
        [beta1, beta2]: [f64; 2],
        eps: f64,
    ) -> Result<ValueId, OpError> {
        let first = self.first_moment(gradient, beta1)?;
        let second = self.second_moment(gradient, beta2)?;
        let first = self.corrected(first, beta1)?;
        let most = 2.0 / (1.0 - beta2) - 1.0;
        if most <= SURE {
            return Ok(first);
        }
        let length = self.length_of_average(beta2)?;
        let rectified = self.rectification(length, most)?;
        let correction = self.correction(beta2)?;
        let correction = self.unary(UnaryFunction::Sqrt, correction)?;
        let scale = self.mul(rectified, correction)?;
        let root = self.unary(UnaryFunction::Sqrt, second)?;
        let root = self.offset(root, eps)?;
        let adaptive = self.div(scale, root)?;
        let one = self.constant(1.0)?;
        let factor = self.choose((length, SURE), [adaptive, one])?;
        self.mul(first, factor)
    }

    /// `sqrt((l - 4) (l - 2) m / ((m - 4) (m - 2) l))` of a length l above [`SURE`], and the most that it may be.
    fn rectification(&mut self, length: ValueId, most: f64) -> Result<ValueId, OpError> {
        let (low, high) = (Scalar(SURE), Scalar(f64::from(f32::MAX)));
        let length = self.unary(UnaryFunction::Clip { low, high }, length)?;
        let (four, two) = (self.offset(length, -4.0)?, self.offset(length, -2.0)?);
        let four = self.div(four, length)?;
        let product = self.mul(four, two)?;
        let share = self.scale(product, most / ((most - 4.0) * (most - 2.0)))?;
        self.unary(UnaryFunction::Sqrt, share)
    }

    /// The length of a simple average that is as sure as one of this decay after n updates: `m - 2 n beta^n / (1 - beta^n)` with
    /// `m = 2 / (1 - beta) - 1`, a difference of great numbers. With `y = -ln(beta) / 2` it is `n + L(y) - n L(n y)`,
    /// where `L(y) = coth(y) - 1 / y`.
    fn length_of_average(&mut self, beta: f64) -> Result<ValueId, OpError> {
        let (number, y) = (self.number()?, rate_of_decay(beta) / 2.0);
        let first = if y < 0.5 { y * langevin_series(y * y) } else { 1.0 / y.tanh() - 1.0 / y };
        let scaled = self.scale(number, y)?;
        let later = self.langevin(scaled)?;
        let later = self.mul(number, later)?;
        let difference = self.binary(BinaryFunction::Sub, number, later)?;
        self.offset(difference, first)
    }

    /// `coth(y) - 1 / y` of a number above 0.
    fn langevin(&mut self, y: ValueId) -> Result<ValueId, OpError> {
        let square = self.mul(y, y)?;
        let mut series = self.constant(LANGEVIN[0])?;
        for coefficient in &LANGEVIN[1..] {
            let further = self.mul(series, square)?;
            series = self.offset(further, *coefficient)?;
        }
        let series = self.mul(series, y)?;
        let tanh = self.unary(UnaryFunction::Tanh, y)?;
        let cotangent = self.unary(UnaryFunction::Reciprocal, tanh)?;
        let reciprocal = self.unary(UnaryFunction::Reciprocal, y)?;
        let direct = self.binary(BinaryFunction::Sub, cotangent, reciprocal)?;
        self.choose((y, 0.5), [direct, series])
    }

    /// Along the sign of one average of gradients, while another is kept.
    fn lion(&mut self, gradient: ValueId, [beta1, beta2]: [f64; 2]) -> Result<ValueId, OpError> {
        let state = self.state("exp_avg", 0.0)?;
        let ahead = self.mix([state, gradient], [beta1, 1.0 - beta1])?;
        self.blend(state, gradient, [beta2, 1.0 - beta2])?;
        self.unary(UnaryFunction::Sign, ahead)
    }

    fn first_moment(&mut self, gradient: ValueId, beta: f64) -> Result<ValueId, OpError> {
        let state = self.state("exp_avg", 0.0)?;
        self.average(state, gradient, [beta, 1.0 - beta])
    }

    fn second_moment(&mut self, gradient: ValueId, beta: f64) -> Result<ValueId, OpError> {
        let state = self.state("exp_avg_sq", 0.0)?;
        let square = self.mul(gradient, gradient)?;
        self.average(state, square, [beta, 1.0 - beta])
    }

    /// The number of this update, from 1.
    fn number(&mut self) -> Result<ValueId, OpError> {
        Ok(self.scalars.number.expect("it is there for rules that count"))
    }

    /// `1 - beta^n` at update n. With `x = -n ln(beta)` it is `tanh(x / 2) (1 + exp(-x))`.
    fn correction(&mut self, beta: f64) -> Result<ValueId, OpError> {
        let (number, rate) = (self.number()?, rate_of_decay(beta));
        let half = self.scale(number, rate / 2.0)?;
        let tanh = self.unary(UnaryFunction::Tanh, half)?;
        let exponent = self.scale(number, -rate)?;
        let power = self.unary(UnaryFunction::Exp, exponent)?;
        let sum = self.offset(power, 1.0)?;
        self.mul(tanh, sum)
    }

    fn corrected(&mut self, moment: ValueId, beta: f64) -> Result<ValueId, OpError> {
        let correction = self.correction(beta)?;
        self.div(moment, correction)
    }

    /// `sqrt(moment / correction) + eps`
    fn corrected_root(&mut self, moment: ValueId, beta: f64, eps: f64) -> Result<ValueId, OpError> {
        let corrected = self.corrected(moment, beta)?;
        let root = self.unary(UnaryFunction::Sqrt, corrected)?;
        self.offset(root, eps)
    }
}

/// The length of an average above which RAdam takes its second moment to be sure.
const SURE: f64 = 5.0;

/// Coefficients of the series of `(coth(y) - 1 / y) / y` in the square of y, the highest first: right to f32 up to 1/2.
const LANGEVIN: [f64; 5] = [2.0 / 93555.0, -1.0 / 4725.0, 2.0 / 945.0, -1.0 / 45.0, 1.0 / 3.0];

fn langevin_series(square: f64) -> f64 {
    LANGEVIN.iter().fold(0.0, |series, coefficient| series * square + coefficient)
}

/// `-ln(beta)`, which is bounded as a decay may be 0.
fn rate_of_decay(beta: f64) -> f64 {
    (-beta.ln()).min(1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_is_the_function() {
        for y in [0.05_f64, 0.2, 0.5] {
            let exact = 1.0 / y.tanh() - 1.0 / y;
            assert!((y * langevin_series(y * y) / exact - 1.0).abs() < 3e-8, "{y}");
        }
    }
}
