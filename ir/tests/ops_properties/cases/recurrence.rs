//! Cases of recurrent cells.

use graphc_ir::op::Op;
use graphc_ir::ops::{Cell, Recurrence, RecurrenceGrad};

use super::{Case, Sample, floats, positive};

pub fn cases() -> Vec<Case> {
    // Of many operands all layouts are tried, so few dims have more than one element.
    let shapes = [([2, 2, 1], true), ([2, 3, 2], false), ([0, 2, 1], false)];
    let cells = [Cell::Lstm, Cell::Gru, Cell::Tanh, Cell::Relu];
    let of = |(extents, complete)| {
        cells.into_iter().zip([false, true, true, false]).flat_map(move |(cell, reverse)| {
            let reverse = reverse != (extents == [2, 3, 2]);
            [forward(cell, reverse, extents, complete)]
                .into_iter()
                .chain(backward(cell, reverse, extents, complete))
        })
    };
    shapes.into_iter().flat_map(of).collect()
}

fn forward(cell: Cell, reverse: bool, [n, t, h]: [usize; 3], complete: bool) -> Case {
    let gates = cell.count_gates() * h;
    // Of numbers of one sign, as a unit whose sums lie near its kink has no derivative there.
    let number: fn(&[usize]) -> Sample = if cell == Cell::Relu { positive } else { floats };
    let state = || number(&[n, h]);
    let mut operands = vec![number(&[n, t, gates]), number(&[gates, h]), number(&[gates]), state()];
    operands.extend(cell.keeps_values().then(state));
    Case { op: Op::Recurrence(Recurrence { cell, reverse }), operands, complete }
}

fn backward(cell: Cell, reverse: bool, [n, t, h]: [usize; 3], complete: bool) -> Vec<Case> {
    let op = || Op::RecurrenceGrad(RecurrenceGrad { cell, reverse });
    let weight = || floats(&[cell.count_gates() * h, h]);
    let gates = || floats(&[n, t, cell.count_gates() * h]);
    let [states, state] = [|t| vec![t], |_| vec![]]
        .map(|time: fn(usize) -> Vec<usize>| move || floats(&[vec![n], time(t), vec![h]].concat()));
    let operands = match cell {
        Cell::Lstm => vec![weight(), gates(), state(), states(), states()],
        Cell::Gru => vec![weight(), gates(), gates(), states(), states()],
        Cell::Tanh | Cell::Relu => vec![weight(), states(), states()],
    };
    let with_kept = || vec![weight(), gates(), state(), states(), states(), states()];
    let more = cell.keeps_values().then(|| Case::new(op(), with_kept()));
    // Whether units are on or off differs too little between few numbers to tell layouts apart.
    let complete = complete && cell != Cell::Relu;
    [Case { op: op(), operands, complete }].into_iter().chain(more).collect()
}
