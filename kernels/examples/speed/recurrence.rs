//! Measures recurrent layers beside the product of their inputs, which has the same FLOPs but no order of steps.

use graphc_ir::op::Op;
use graphc_ir::ops::{Cell, MatMul, Recurrence, RecurrenceGrad};

use super::{Bench, f32s};

pub(super) fn recurrence(bench: &mut Bench) {
    for [batch, time, width] in [[32, 35, 200], [20, 35, 650], [64, 100, 256], [1, 100, 512]] {
        let [gates, states] = [4 * width, width].map(|width| f32s(&[batch, time, width]));
        let (weight, state) = (f32s(&[4 * width, width]), f32s(&[batch, width]));
        let product = Op::MatMul(MatMul { transpose_a: false, transpose_b: true });
        let name = format!("inputs [{batch},{time},{width}]");
        bench.op(&name, product, &[states.clone(), weight.clone()]);
        let (cell, reverse) = (Cell::Lstm, false);
        let types =
            [gates.clone(), weight.clone(), f32s(&[4 * width]), state.clone(), state.clone()];
        bench.op("  lstm", Op::Recurrence(Recurrence { cell, reverse }), &types);
        let types = [weight, gates, state, states.clone(), states];
        bench.op("  gradient", Op::RecurrenceGrad(RecurrenceGrad { cell, reverse }), &types);
    }
}
