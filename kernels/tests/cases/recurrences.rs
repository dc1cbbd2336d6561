//! Recurrent cells over a sequence.

use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::types::{DType, TensorType};

use super::super::common::{Random, ordinary};
use super::{Example, Examples, ty};

pub fn examples() -> Vec<Example> {
    let to = &mut Examples::new(13);
    for (index, cell) in [Cell::Lstm, Cell::Gru, Cell::Tanh, Cell::Relu].into_iter().enumerate() {
        cells(to, DType::F32, cell, index % 2 == 0, [5, 3, 35]);
        cells(to, DType::F32, cell, index % 2 == 1, [70, 2, 3]);
        cells(to, [DType::BF16, DType::F16][index % 2], cell, true, [2, 3, 17]);
    }
    cells(to, DType::F32, Cell::Gru, false, [0, 3, 4]);
    std::mem::take(&mut to.all)
}

pub fn cells(to: &mut Examples, dtype: DType, cell: Cell, reverse: bool, [n, t, h]: [usize; 3]) {
    let [gates, states] = [cell.count_gates() * h, h].map(|width| ty(dtype, &[n, t, width]));
    let weight = ty(dtype, &[cell.count_gates() * h, h]);
    let state = ty(dtype, &[n, h]);
    let bias = ty(dtype, &weight.shape[..1]);
    let mut types = vec![gates.clone(), weight.clone(), bias, state.clone()];
    types.extend(cell.keeps_values().then(|| state.clone()));
    // Weights as small as they are in nets, so that states stay small.
    let fill = &mut move |random: &mut Random, operand: usize, dtype: DType| {
        ordinary(random, operand, dtype) * if operand < 2 { 1.0 / (h as f64).sqrt() } else { 1.0 }
    };
    to.both_filled(Op::Recurrence(Recurrence { cell, reverse }), &types, 2e-5, fill);
    let types = of_gradient(cell, [weight, gates, state, states], to.random.below(2) == 0);
    to.both_filled(Op::RecurrenceGrad(RecurrenceGrad { cell, reverse }), &types, 5e-5, fill);
}

fn of_gradient(cell: Cell, types: [TensorType; 4], has_kept: bool) -> Vec<TensorType> {
    let [weight, gates, state, states] = types;
    match cell {
        Cell::Lstm => {
            let mut types = vec![weight, gates, state, states.clone(), states.clone()];
            types.extend(has_kept.then_some(states));
            types
        }
        Cell::Gru => vec![weight, gates.clone(), gates, states.clone(), states],
        Cell::Tanh | Cell::Relu => vec![weight, states.clone(), states],
    }
}
