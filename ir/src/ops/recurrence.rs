//! Recurrent cells over a whole sequence, as one op.
//!
//! Unrolled, a sequence of some hundred steps is a graph of thousands of nodes, each of which is planned and launched by itself.
//! The importer of ONNX makes one such op for each layer and direction.
//!
//! The product of the inputs with their weights is not part of the op. It needs no order of steps, so one matrix product of all
//! steps computes it before. The op multiplies the state with its weights, step by step. Gates stand in the order of ONNX.
//!
//! Ranks may split samples alone: each element of a state goes into every gate of the next step.
//!
//! The gates are not kept for the backward pass. The gradient computes them again, in one product of all steps.

use serde::{Deserialize, Serialize};

use super::shards::one_float;
use crate::array::Array;
use crate::math::sigmoid;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, shape_error,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::types::{DType, TensorType};

/// (x [n, t, g h], r [g h, h], b [g h], s0 [n, h]) -> y [n, t, h] for a cell of g gates, of [`Cell::Lstm`] also a c0 [n, h]
/// and a c [n, t, h]: from step to step the state becomes what the cell makes of it, of x and of p = r s + b.
///
/// y holds the state after each step, c what the cell keeps. Samples may be split; a step needs the whole state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Recurrence {
    /// The cell of each step.
    pub cell: Cell,
    /// Whether it goes from the last step to the first.
    pub reverse: bool,
}

/// The cell: how a step makes the next state of its share of x, of p and of the state s, and by how many gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// The long short-term memory, of gates i, o, f and g: c' = sigmoid(f) c + sigmoid(i) tanh(g), s' = sigmoid(o) tanh(c'), where the gates are x +
    /// p.
    Lstm,
    /// The gated recurrent unit, of gates z, r and m: s' = (1 - z) m + z s, where z and r are the sigmoid of x + p, and m = tanh(x + r p).
    Gru,
    /// The plain cell with tanh: s' = tanh(x + p).
    Tanh,
    /// The plain cell with ReLU: s' = max(x + p, 0).
    Relu,
}

impl Cell {
    /// Returns the number of the cell's gates.
    pub fn count_gates(self) -> usize {
        match self {
            Self::Lstm => 4,
            Self::Gru => 3,
            Self::Tanh | Self::Relu => 1,
        }
    }

    /// Returns whether the cell keeps something beside its state.
    pub fn keeps_values(self) -> bool {
        self == Self::Lstm
    }

    /// Computes the state, and what is kept, after a step, from those before it. `x` and `p` are those of all gates.
    fn advance_state(self, x: &[f64], p: &[f64], state: &mut [f64], kept: &mut [f64]) {
        let width = state.len();
        for j in 0..width {
            let gate = |gate: usize| x[gate * width + j] + p[gate * width + j];
            state[j] = match self {
                Self::Lstm => {
                    let [i, o, f] = [gate(0), gate(1), gate(2)].map(sigmoid);
                    kept[j] = f * kept[j] + i * gate(3).tanh();
                    o * kept[j].tanh()
                }
                Self::Gru => {
                    let [z, r] = [gate(0), gate(1)].map(sigmoid);
                    let new = (x[2 * width + j] + r * p[2 * width + j]).tanh();
                    (1.0 - z) * new + z * state[j]
                }
                Self::Tanh => gate(0).tanh(),
                Self::Relu => gate(0).max(0.0),
            };
        }
    }
}

impl Recurrence {
    /// Returns the steps in the order in which they are made.
    pub fn step_order(&self, time: usize) -> impl Iterator<Item = usize> + use<> {
        let reverse = self.reverse;
        (0..time).map(move |at| if reverse { time - 1 - at } else { at })
    }
}

impl Operation for Recurrence {
    fn name(&self) -> &'static str {
        "recurrence"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        let count = if self.cell.keeps_values() { 5 } else { 4 };
        check_arity(
            self.name(),
            operands,
            count,
            "4 operands, or 5 where the cell keeps something",
        )?;
        let all: Vec<usize> = (0..count).collect();
        Ok(vec![one_float(self.name(), operands, &all)?; count - 3])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let &[batch, time, _] = &operands[0].shape[..] else {
            let reason = "the inputs need three dims: batch, time and the gates' width";
            return Err(shape_error(self.name(), operands, reason));
        };
        let width = operands[3].shape.get(1).copied().unwrap_or(0);
        let RecurrenceRule { mut rule, gates, weight, bias, state, states } =
            RecurrenceRule::new(self.cell, [batch, time, width]);
        let expected = [gates, weight, bias, state.clone(), state];
        rule.operands = expected.into_iter().take(operands.len()).collect();
        rule.results = vec![states; operands.len() - 3];
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
        let [x, r, b] = [0, 1, 2].map(|operand| operands[operand].array);
        let mut made: Vec<Array> =
            results.iter().map(|result| Array::full(result.rect.extent.clone(), 0.0)).collect();
        for (sample, first) in split_rows(operands[3].array).into_iter().enumerate() {
            let mut state = first.to_vec();
            let mut kept =
                operands.get(4).map_or(Vec::new(), |kept| split_rows(kept.array)[sample].to_vec());
            for step in self.step_order(x.shape[1]) {
                let product = |(row, b): (&[f64], &f64)| b + dot_product(row, &state);
                let p: Vec<f64> = split_rows(r).into_iter().zip(&b.data).map(product).collect();
                let at = sample * x.shape[1] + step;
                self.cell.advance_state(split_rows(x)[at], &p, &mut state, &mut kept);
                for (array, values) in made.iter_mut().zip([&state, &kept]) {
                    array.data[at * values.len()..][..values.len()].copy_from_slice(values);
                }
            }
        }
        Ok(made)
    }
}

/// Returns the rows along the last dim, in order.
pub(super) fn split_rows(array: &Array) -> Vec<&[f64]> {
    let width = array.shape.last().copied().unwrap_or(1).max(1);
    array.data.chunks_exact(width).collect()
}

pub(super) fn dot_product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The iteration space of a recurrence, and the dims of tensors of each shape: n samples, t steps, a state of width h, and g gates.
pub(super) struct RecurrenceRule {
    pub rule: Rule,
    /// The dims of gates [n, t, g h].
    pub gates: Vec<DimRule>,
    /// The dims of weights [g h, h].
    pub weight: Vec<DimRule>,
    /// The dims of a bias `[g h]`.
    pub bias: Vec<DimRule>,
    /// The dims of a state [n, h].
    pub state: Vec<DimRule>,
    /// The dims of the states of all steps, [n, t, h].
    pub states: Vec<DimRule>,
}

impl RecurrenceRule {
    pub(super) fn new(cell: Cell, [batch, time, width]: [usize; 3]) -> Self {
        let mut rule = Rule::default();
        let n = rule.add_factor(batch, FactorKind::Parallel);
        let [t, g, h, k] = [time, cell.count_gates(), width, width]
            .map(|size| rule.add_factor(size, FactorKind::Whole));
        let dims = |dims: &[&[usize]]| dims.iter().map(|f| DimRule::Factors(f.to_vec())).collect();
        Self {
            gates: dims(&[&[n], &[t], &[g, h]]),
            weight: dims(&[&[g, h], &[k]]),
            bias: dims(&[&[g, h]]),
            state: dims(&[&[n], &[h]]),
            states: dims(&[&[n], &[t], &[h]]),
            rule,
        }
    }
}

/// Checks operands against their dims, and that there is a step and a state.
pub(super) fn check_operands(
    op: &'static str,
    operands: &[&TensorType],
    rule: &Rule,
) -> Result<(), OpError> {
    for (index, (operand, dims)) in operands.iter().zip(&rule.operands).enumerate() {
        let shape: Vec<usize> = dims.iter().map(|dim| rule.extent(dim)).collect();
        if operand.shape != shape {
            let reason = format!("operand {index} must be {shape:?}");
            return Err(shape_error(op, operands, reason));
        }
    }
    if rule.factors.iter().skip(1).any(|factor| factor.size == 0) {
        return Err(shape_error(
            op,
            operands,
            "there must be a step, and the state must have a width",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    fn array(shape: &[usize], data: &[f64]) -> (DType, Array) {
        (DType::F32, Array::new(shape, data.to_vec()))
    }

    #[test]
    fn a_state_goes_from_step_to_step_in_either_direction() {
        let operands = [
            array(&[1, 3, 1], &[1.0, 10.0, 100.0]),
            array(&[1, 1], &[2.0]),
            array(&[1], &[-1.0]),
            array(&[1, 1], &[5.0]),
        ];
        let run = |reverse| {
            let op = Op::Recurrence(Recurrence { cell: Cell::Relu, reverse });
            evaluate(op, &operands).expect("fits").swap_remove(0).data
        };
        assert_eq!(run(false), [10.0, 29.0, 157.0]);
        assert_eq!(run(true), [454.0, 227.0, 109.0]);
    }

    #[test]
    fn a_gate_that_is_shut_keeps_what_there_was() {
        // Of i, o, f and g: nothing comes in, all goes out, nothing is forgotten.
        let shut = [-1e3, 1e3, 1e3, 7.0];
        let zeros = |shape: &[usize]| (DType::F32, Array::full(shape, 0.0));
        let op = Op::Recurrence(Recurrence { cell: Cell::Lstm, reverse: false });
        let operands = [
            array(&[1, 2, 4], &[shut, shut].concat()),
            zeros(&[4, 1]),
            zeros(&[4]),
            zeros(&[1, 1]),
            array(&[1, 1], &[0.5]),
        ];
        let found = evaluate(op, &operands).expect("fits");
        assert_eq!(found[1].data, [0.5; 2]);
        assert_eq!(found[0].data, [0.5f64.tanh(); 2]);
        // Of z, r and m: the new content alone, with half of the state's share.
        let op = Op::Recurrence(Recurrence { cell: Cell::Gru, reverse: false });
        let operands = [
            array(&[1, 1, 3], &[-1e3, 0.0, 0.25]),
            array(&[3, 1], &[0.0, 0.0, 1.0]),
            zeros(&[3]),
            array(&[1, 1], &[0.5]),
        ];
        assert_eq!(evaluate(op, &operands).expect("fits")[0].data, [0.5f64.tanh()]);
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
        let op = Op::Recurrence(Recurrence { cell: Cell::Gru, reverse: false });
        let reason = |x: &[usize], r: &[usize]| {
            let operands = [ty(x), ty(r), ty(&[12]), ty(&[2, 4])];
            op.infer_types(&operands.iter().collect::<Vec<_>>())
                .expect_err("does not fit")
                .to_string()
        };
        let error = reason(&[2, 5, 16], &[12, 4]);
        assert!(error.ends_with("operand 0 must be [2, 5, 12]"), "{error}");
        let error = reason(&[2, 5, 12], &[16, 4]);
        assert!(error.ends_with("operand 1 must be [12, 4]"), "{error}");
        let error = reason(&[2, 0, 12], &[12, 4]);
        assert!(error.contains("there must be a step"), "{error}");
    }
}
