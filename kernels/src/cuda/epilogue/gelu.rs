//! The tanh form of GELU and its gradient, recognized by the values of a chain.
//!
//! There are many ways to write both, and rewrites choose among these. So a chain is taken at many places and compared with the
//! function. Its steps are sums, products and hyperbolic tangents, which have no corners: if it is the same at all of these
//! places, it is the same function.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, UnaryFunction};
use graphc_ir::types::DType;
use graphc_plan::{FusedArg, FusedOp};

/// The relative distance up to which numbers are taken for the same: constants that went through f32 are that exact.
const NEAR: f64 = 1e-6;
/// Half the distance over which a slope is taken.
const REACH: f64 = 1e-3;

/// Whether a step's value is GELU of `value`.
pub(super) fn is_gelu(chain: &FusedOp, value: FusedArg, step: usize) -> bool {
    let Some(needed) = SmoothSteps::from_step(chain, value, step) else { return false };
    let right = |x: f64| UnaryFunction::GeluTanh.apply(x);
    needed.others.is_empty()
        && sample_points().all(|x| {
            needed
                .evaluate_at(|_| x)
                .is_some_and(|found| (found - right(x)).abs() <= NEAR * (1.0 + x.abs()))
        })
}

/// The operand at which a step's value is the slope of GELU, times `value`.
pub(super) fn is_gradient(chain: &FusedOp, value: FusedArg, step: usize) -> Option<usize> {
    let needed = SmoothSteps::from_step(chain, value, step)?;
    let [operand] = needed.others[..] else { return None };
    let same = |x: f64, gradient: f64| {
        let at = |arg| if arg == value { gradient } else { x };
        let right = gradient * gelu_slope(x);
        needed.evaluate_at(at).is_some_and(|found| (found - right).abs() <= NEAR * (1.0 + x.abs()))
    };
    sample_points()
        .all(|x| [1.0, -0.625].iter().all(|&gradient| same(x, gradient)))
        .then_some(operand)
}

/// Returns the places at which functions are compared: close together where GELU bends, and some farther away.
fn sample_points() -> impl Iterator<Item = f64> {
    let near = (-40..=40).map(|place| f64::from(place) * 0.171);
    near.chain([-30.0, -12.0, 12.0, 30.0])
}

/// The slope of GELU, by differences over four places.
fn gelu_slope(x: f64) -> f64 {
    let at = |steps: f64| UnaryFunction::GeluTanh.apply(x + steps * REACH);
    (8.0 * (at(1.0) - at(-1.0)) - (at(2.0) - at(-2.0))) / (12.0 * REACH)
}

/// The steps that a value depends on, where all are smooth functions of some value and of operands.
struct SmoothSteps<'a> {
    chain: &'a FusedOp,
    /// The steps, in order.
    steps: Vec<usize>,
    value: FusedArg,
    /// Operands besides the value, each once.
    others: Vec<usize>,
}

impl<'a> SmoothSteps<'a> {
    fn from_step(chain: &'a FusedOp, value: FusedArg, step: usize) -> Option<Self> {
        let mut needed = Self { chain, steps: Vec::new(), value, others: Vec::new() };
        needed.visit(FusedArg::Step(step))?;
        needed.steps.sort_unstable();
        Some(needed)
    }

    fn visit(&mut self, arg: FusedArg) -> Option<()> {
        match arg {
            _ if arg == self.value => {}
            FusedArg::Operand(operand) if self.others.contains(&operand) => {}
            FusedArg::Operand(operand) => self.others.push(operand),
            FusedArg::Step(step) if self.steps.contains(&step) => {}
            FusedArg::Step(step) => {
                let found = self.chain.steps.get(step).filter(|found| is_smooth(&found.op))?;
                self.steps.push(step);
                found.args.iter().try_for_each(|&arg| self.visit(arg))?;
            }
        }
        Some(())
    }

    /// The last step's value, where the value and the operands are these numbers.
    fn evaluate_at(&self, of: impl Fn(FusedArg) -> f64) -> Option<f64> {
        let mut values = vec![0.0; self.chain.steps.len()];
        for &step in &self.steps {
            let number = |&arg: &FusedArg| match arg {
                FusedArg::Step(step) if arg != self.value => values[step],
                _ => of(arg),
            };
            let args: Vec<f64> = self.chain.steps[step].args.iter().map(number).collect();
            values[step] = apply_op(&self.chain.steps[step].op, &args)?;
        }
        self.steps.last().map(|&step| values[step])
    }
}

fn is_smooth(op: &Op) -> bool {
    use BinaryFunction::{Add, Mul, Sub};
    use UnaryFunction::{GeluTanh, Neg, Offset, PowScalar, Scale, Sigmoid, Tanh};
    match op {
        Op::Unary(op) => match op.function {
            GeluTanh | Neg | Offset(_) | Scale(_) | Sigmoid | Tanh => true,
            PowScalar(power) => power.0 >= 0.0 && power.0.fract() == 0.0,
            _ => false,
        },
        Op::Binary(op) => matches!(op.function, Add | Mul | Sub),
        Op::Cast(op) => op.dtype.is_float(),
        _ => false,
    }
}

fn apply_op(op: &Op, args: &[f64]) -> Option<f64> {
    match (op, args) {
        (Op::Unary(op), &[x]) => Some(op.function.apply(x)),
        (Op::Binary(op), &[a, b]) => Some(op.function.apply(DType::F32, a, b)),
        (Op::Cast(_), &[x]) => Some(x),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_is_that_of_gelu() {
        let (c, a) = ((2.0 / std::f64::consts::PI).sqrt(), 0.044_715);
        for x in sample_points() {
            let t = (c * (x + a * x * x * x)).tanh();
            let right = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * a * x * x);
            assert!((gelu_slope(x) - right).abs() < 1e-9, "{x}: {}, not {right}", gelu_slope(x));
        }
    }
}
