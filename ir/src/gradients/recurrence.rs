//! The gradient of recurrent cells, but for two products, which are written as such.

use super::{Differentiable, GradientNode};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::{Cell, Recurrence, RecurrenceGrad};

impl Differentiable for Recurrence {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let ([_, _, _, first, ..], [y, ..]) = (node.operands, node.results) else {
            return Vec::new();
        };
        let previous = self.previous_states(y, first);
        let mut operands = self.kept_for_gradient(node, &previous);
        operands.push(node.gradients[0].clone().unwrap_or_else(|| y.full_like(0.0)));
        operands.extend(node.gradients.get(1).cloned().flatten());
        let op = Op::RecurrenceGrad(RecurrenceGrad { cell: self.cell, reverse: self.reverse });
        let found = y.builder().apply_all(op, &operands.iter().collect::<Vec<_>>());
        let [x, rest @ ..] = &found[..] else { return vec![None; node.operands.len()] };
        // What reaches p is what reaches x, except in a cell that multiplies p by a gate.
        let (shares, states) = match (self.cell, rest) {
            (Cell::Gru, [shares, states @ ..]) => (shares, states),
            (_, states) => (x, states),
        };
        let flat = |tensor: &Tensor| match tensor.shape()[..] {
            [batch, time, width] => tensor.reshape(&[batch * time, width]),
            _ => tensor.clone(),
        };
        let of_r = flat(shares).matmul_transposed(&flat(&previous), true, false);
        let of_b = shares.sum(&[0, 1], false);
        [x.clone(), of_r, of_b].into_iter().chain(states.iter().cloned()).map(Some).collect()
    }
}

impl Recurrence {
    /// Returns the state before each step, [n, t, h]: the first one, and all of y but the last.
    fn previous_states(&self, y: &Tensor, first: &Tensor) -> Tensor {
        let &[batch, time, width] = &y.shape()[..] else { return y.clone() };
        let first = first.reshape(&[batch, 1, width]);
        match (time, self.reverse) {
            (1, _) => first,
            (_, false) => y.builder().concat(&[first, y.slice(1, 0..time - 1)], 1),
            (_, true) => y.builder().concat(&[y.slice(1, 1..time), first], 1),
        }
    }

    /// Returns the operands of the gradient that come before the gradients of the results.
    fn kept_for_gradient(&self, node: &GradientNode<'_>, previous: &Tensor) -> Vec<Tensor> {
        let operand = |at: usize| node.operands[at].clone();
        // Computed again, in one product: keeping the gates would cost more memory than all else of the layer.
        let shares = || previous.matmul_transposed(&operand(1), false, true).add(&operand(2));
        match self.cell {
            Cell::Lstm => {
                let gates = operand(0).add(&shares());
                vec![operand(1), gates, operand(4), node.results[1].clone()]
            }
            Cell::Gru => vec![operand(1), operand(0), shares(), previous.clone()],
            Cell::Tanh | Cell::Relu => vec![operand(1), node.results[0].clone()],
        }
    }
}
