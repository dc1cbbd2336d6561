//! Cases of dispatch to experts and back.

use graphc_ir::op::Op;
use graphc_ir::ops::{Combine, CombineWeightsGrad, Dispatch};

use super::{Case, floats, indices};

/// Groups, tokens, choices, elements, experts, capacity.
struct Extents(usize, usize, usize, usize, usize, usize);

pub fn cases() -> Vec<Case> {
    let cases = [
        (Extents(2, 4, 1, 2, 2, 2), true),
        (Extents(2, 4, 2, 2, 2, 2), true),
        (Extents(3, 5, 2, 3, 3, 2), false),
        (Extents(1, 7, 1, 1, 2, 5), false),
        (Extents(0, 2, 1, 2, 2, 1), false),
    ];
    cases.into_iter().flat_map(|(extents, complete)| of(&extents, complete)).collect()
}

fn of(extents: &Extents, complete: bool) -> Vec<Case> {
    let &Extents(groups, tokens, choices, elements, experts, capacity) = extents;
    let x = || floats(&[groups, tokens, elements]);
    let chosen = || indices(&[groups, tokens, choices], experts);
    let weights = || floats(&[groups, tokens, choices]);
    let y = || floats(&[experts, groups, capacity, elements]);
    let dispatch = || Op::Dispatch(Dispatch { experts, capacity });
    let combine = || Op::Combine(Combine {});
    let case = |op, operands| Case { op, operands, complete };
    vec![
        case(dispatch(), vec![x(), chosen()]),
        case(dispatch(), vec![x(), chosen(), weights()]),
        case(combine(), vec![y(), chosen()]),
        case(combine(), vec![y(), chosen(), weights()]),
        case(Op::CombineWeightsGrad(CombineWeightsGrad {}), vec![y(), chosen(), x()]),
    ]
}
