//! The gradient of recurrent cells over a sequence: the part that needs an order of steps.
//!
//! The gradients of weights and biases are a product and a sum over all steps of what this op gives.

use serde::{Deserialize, Serialize};

use super::recurrence::{RecurrenceRule, check_operands, split_rows};
use super::shards::one_float;
use crate::array::Array;
use crate::math::sigmoid;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, shape_error,
};
use crate::ops::{Cell, Recurrence};
use crate::rule::Rule;
use crate::types::{DType, TensorType};

/// The gradients of x and of the first state of a [`Recurrence`], with r [g h, h] and the gradient dy [n, t, h] of all states:
///
/// - [`Cell::Lstm`]: (r, gates [n, t, 4 h], c0 [n, h], c [n, t, h], dy [, dc [n, t, h]]) -> (dx [n, t, 4 h], ds0, dc0 [n, h]),
///   where gates are x + p;
/// - [`Cell::Gru`]: (r, x [n, t, 3 h], p [n, t, 3 h], s [n, t, h], dy) -> (dx, dp [n, t, 3 h], ds0), where s is the state before
///   each step;
/// - others: (r, y [n, t, h], dy) -> (dx [n, t, h], ds0).
///
/// Where x and p are only added dp is dx.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RecurrenceGrad {
    /// The cell of each step.
    pub cell: Cell,
    /// Whether the recurrence goes from the last step to the first; the gradient goes the other way.
    pub reverse: bool,
}

impl RecurrenceGrad {
    /// Returns the position of dy among the operands.
    pub fn gradient_at(&self) -> usize {
        match self.cell {
            Cell::Lstm | Cell::Gru => 4,
            Cell::Tanh | Cell::Relu => 2,
        }
    }

    /// Returns the steps in the order in which the gradient makes them: from the last one of the recurrence back.
    pub fn step_order(&self, time: usize) -> impl Iterator<Item = usize> + use<> {
        Recurrence { cell: self.cell, reverse: !self.reverse }.step_order(time)
    }

    /// Returns the step that the recurrence makes before another one; `None` of the first.
    pub fn step_before(&self, step: usize, time: usize) -> Option<usize> {
        if self.reverse { Some(step + 1).filter(|&step| step < time) } else { step.checked_sub(1) }
    }
}

impl Operation for RecurrenceGrad {
    fn name(&self) -> &'static str {
        "recurrence_grad"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        let least = self.gradient_at() + 1;
        if !(self.cell.keeps_values() && operands.len() == least + 1) {
            check_arity(
                self.name(),
                operands,
                least,
                "3 operands, of an LSTM 5 or 6 and of a GRU 5",
            )?;
        }
        let all: Vec<usize> = (0..operands.len()).collect();
        let results = if self.gradient_at() == 4 { 3 } else { 2 };
        Ok(vec![one_float(self.name(), operands, &all)?; results])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let &[batch, time, width] = &operands[self.gradient_at()].shape[..] else {
            let reason = "the states' gradient needs three dims: batch, time and width";
            return Err(shape_error(self.name(), operands, reason));
        };
        let RecurrenceRule { mut rule, gates, weight, state, states, .. } =
            RecurrenceRule::new(self.cell, [batch, time, width]);
        (rule.operands, rule.results) = match self.cell {
            Cell::Lstm => (
                vec![weight, gates.clone(), state.clone(), states.clone(), states.clone(), states],
                vec![gates, state.clone(), state],
            ),
            Cell::Gru => (
                vec![weight, gates.clone(), gates.clone(), states.clone(), states],
                vec![gates.clone(), gates, state],
            ),
            Cell::Tanh | Cell::Relu => (vec![weight, states.clone(), states], vec![gates, state]),
        };
        rule.operands.truncate(operands.len());
        rule.linear = vec![(self.gradient_at()..operands.len()).collect()];
        check_operands(self.name(), operands, &rule)?;
        Ok(rule)
    }

    /// Counts a product and a sum for each weight.
    fn flops_per_point(&self) -> f64 {
        2.0
    }

    fn multiplies_matrices(&self) -> bool {
        true
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let mut made: Vec<Array> =
            results.iter().map(|result| Array::full(result.rect.extent.clone(), 0.0)).collect();
        let operands: Vec<Vec<&[f64]>> =
            operands.iter().map(|operand| split_rows(operand.array)).collect();
        let &[batch, time, _] = &results[0].rect.extent[..] else { return Ok(made) };
        for sample in 0..batch {
            let width = operands[0].first().map_or(0, |row| row.len());
            let mut carried = Carried { state: vec![0.0; width], kept: vec![0.0; width] };
            for step in self.step_order(time) {
                let place = SampleStep { sample, step, time };
                let steps = self.step_gradients(&operands, place, &mut carried);
                for (array, values) in made.iter_mut().zip(&steps) {
                    write_row(array, sample * time + step, values);
                }
            }
            let states = [&carried.state, &carried.kept];
            let first = if self.cell == Cell::Gru { 2 } else { 1 };
            made[first..]
                .iter_mut()
                .zip(states)
                .for_each(|(array, state)| write_row(array, sample, state));
        }
        Ok(made)
    }
}

/// The gradients of the state and of what is kept, which pass from step to step.
struct Carried {
    state: Vec<f64>,
    kept: Vec<f64>,
}

/// The place of a step of a sample.
#[derive(Clone, Copy)]
struct SampleStep {
    sample: usize,
    step: usize,
    time: usize,
}

impl RecurrenceGrad {
    /// Computes the gradients of the step's x and p, which are one where they are alike; `carried` becomes that before the step.
    fn step_gradients(
        &self,
        operands: &[Vec<&[f64]>],
        place: SampleStep,
        carried: &mut Carried,
    ) -> Vec<Vec<f64>> {
        let at = place.sample * place.time + place.step;
        let gradient = operands[self.gradient_at()][at];
        carried.state.iter_mut().zip(gradient).for_each(|(state, dy)| *state += dy);
        let steps = match self.cell {
            Cell::Lstm => vec![self.lstm_step_gradients(operands, place, carried)],
            Cell::Gru => gru_step_gradients(operands, at, carried).into(),
            Cell::Tanh | Cell::Relu => {
                let slope = |y: f64| match self.cell {
                    Cell::Relu => f64::from(u8::from(y > 0.0)),
                    _ => 1.0 - y * y,
                };
                let y = operands[1][at].iter();
                let dx = y.zip(&carried.state).map(|(&y, ds)| slope(y) * ds).collect();
                carried.state.fill(0.0);
                vec![dx]
            }
        };
        let of_p = steps.last().map_or(&[][..], |of_p| &of_p[..]);
        for (row, dp) in operands[0].iter().zip(of_p) {
            carried.state.iter_mut().zip(*row).for_each(|(state, weight)| *state += dp * weight);
        }
        steps
    }

    fn lstm_step_gradients(
        &self,
        operands: &[Vec<&[f64]>],
        place: SampleStep,
        carried: &mut Carried,
    ) -> Vec<f64> {
        let SampleStep { sample, step, time } = place;
        let row = |operand: usize, step: usize| operands[operand][sample * time + step];
        let (gates, cell) = (row(1, step), row(3, step));
        let before = self.step_before(step, time).map_or(operands[2][sample], |step| row(3, step));
        let width = cell.len();
        let mut found = vec![0.0; 4 * width];
        for j in 0..width {
            let [i, o, f] = [0, 1, 2].map(|gate| sigmoid(gates[gate * width + j]));
            let (g, out) = (gates[3 * width + j].tanh(), cell[j].tanh());
            let of_state = std::mem::take(&mut carried.state[j]);
            let given = operands.get(5).map_or(0.0, |all| all[sample * time + step][j]);
            let of_cell = carried.kept[j] + given + of_state * o * (1.0 - out * out);
            found[j] = of_cell * g * i * (1.0 - i);
            found[width + j] = of_state * out * o * (1.0 - o);
            found[2 * width + j] = of_cell * before[j] * f * (1.0 - f);
            found[3 * width + j] = of_cell * i * (1.0 - g * g);
            carried.kept[j] = of_cell * f;
        }
        found
    }
}

/// Computes the gradients of x and of p at a step of a GRU.
fn gru_step_gradients(operands: &[Vec<&[f64]>], at: usize, carried: &mut Carried) -> [Vec<f64>; 2] {
    let [x, p, before] = [1, 2, 3].map(|operand| operands[operand][at]);
    let width = before.len();
    let mut of_x = vec![0.0; 3 * width];
    let mut of_p = of_x.clone();
    for j in 0..width {
        let [z, r] = [0, 1].map(|gate| sigmoid(x[gate * width + j] + p[gate * width + j]));
        let share = p[2 * width + j];
        let new = (x[2 * width + j] + r * share).tanh();
        let of_state = carried.state[j];
        let of_new = of_state * (1.0 - z) * (1.0 - new * new);
        let gates = [of_state * (before[j] - new) * z * (1.0 - z), of_new * share * r * (1.0 - r)];
        for (gate, value) in gates.into_iter().enumerate() {
            (of_x[gate * width + j], of_p[gate * width + j]) = (value, value);
        }
        (of_x[2 * width + j], of_p[2 * width + j]) = (of_new, of_new * r);
        carried.state[j] = of_state * z;
    }
    [of_x, of_p]
}

fn write_row(array: &mut Array, row: usize, values: &[f64]) {
    array.data[row * values.len()..][..values.len()].copy_from_slice(values);
}
