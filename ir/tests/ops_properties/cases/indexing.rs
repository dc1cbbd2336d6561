//! Cases of ops that take, put and choose elements by their places, and of running sums.

use graphc_ir::op::Op;
use graphc_ir::ops::{CumulativeSum, Gather, Scatter, ScatterFunction, ScatterSum, TopK};

use super::{Case, each_shape, floats, indices, integers, truths};

pub fn cases() -> Vec<Case> {
    [places(), others(), top_k(), sums()].into_iter().flatten().collect()
}

/// Dims of batches, places of a tensor, places that are taken, dims of what lies at a place, and whether for completeness.
type Shape = (&'static [usize], usize, usize, &'static [usize], bool);

const SHAPES: [Shape; 6] = [
    (&[], 6, 4, &[2], true),
    (&[2], 4, 6, &[2], true),
    (&[4], 6, 2, &[], true),
    (&[2, 3], 5, 3, &[2], false),
    (&[], 3, 0, &[2], false),
    (&[0], 3, 2, &[], false),
];

const FUNCTIONS: [ScatterFunction; 4] =
    [ScatterFunction::Set, ScatterFunction::Mul, ScatterFunction::Max, ScatterFunction::Min];

fn places() -> Vec<Case> {
    SHAPES.iter().flat_map(|&shape| of_shape(shape)).collect()
}

fn of_shape((batch, n, m, inner, complete): Shape) -> Vec<Case> {
    let whole = [batch, &[n], inner].concat();
    let part = [batch, &[m], inner].concat();
    let places = || indices(&[batch, &[m]].concat(), n);
    let gather =
        Case { op: Op::Gather(Gather {}), operands: vec![floats(&whole), places()], complete };
    let sum = Case {
        op: Op::ScatterSum(ScatterSum { places: n }),
        operands: vec![places(), floats(&part)],
        complete,
    };
    let scatters = FUNCTIONS.map(|function| Case {
        op: Op::Scatter(Scatter { function }),
        operands: vec![floats(&whole), places(), floats(&part)],
        complete,
    });
    [gather, sum].into_iter().chain(scatters).collect()
}

fn others() -> Vec<Case> {
    let gather = |x| Case::new(Op::Gather(Gather {}), vec![x, indices(&[2, 3], 4)]);
    let set = Op::Scatter(Scatter { function: ScatterFunction::Set });
    let operands = vec![integers(&[2, 4]), indices(&[2, 3], 4), integers(&[2, 3])];
    let sum = Op::ScatterSum(ScatterSum { places: 4 });
    let sum = Case::new(sum, vec![indices(&[2, 3], 4), integers(&[2, 3])]);
    vec![gather(integers(&[2, 4, 2])), gather(truths(&[2, 4])), Case::new(set, operands), sum]
}

fn top_k() -> Vec<Case> {
    each_shape(|shape, complete| {
        let of = |count, greatest| Case {
            op: Op::TopK(TopK { count, greatest }),
            operands: vec![floats(shape)],
            complete,
        };
        let none = TopK { count: 0, greatest: true };
        let none = Case::new(Op::TopK(none), vec![floats(shape)]);
        vec![of(2, true), of(3, false), none]
    })
}

fn sums() -> Vec<Case> {
    each_shape(|shape, complete| {
        let of = |axis, exclusive, reverse| Case {
            op: Op::CumulativeSum(CumulativeSum { axis, exclusive, reverse }),
            operands: vec![floats(shape)],
            complete,
        };
        vec![of(0, false, false), of(shape.len() - 1, true, false), of(0, false, true)]
    })
}
