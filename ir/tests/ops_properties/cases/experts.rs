//! Cases of dispatch to experts and back.

use graphc_ir::op::Op;
use graphc_ir::ops::{
    Combine, CombineWeightsGrad, Dispatch, ExpertPlaces, GroupedMatMul, GroupedMatMulGrad,
};

use super::{Case, eights, floats, indices, positive};

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
    let own = cases.into_iter().flat_map(|(extents, complete)| of(&extents, complete));
    let shared = [
        (Extents(2, 3, 2, 2, 4, 3), 2, true),
        (Extents(2, 4, 1, 2, 2, 4), 1, true),
        (Extents(3, 5, 2, 3, 6, 4), 3, false),
        (Extents(1, 3, 2, 1, 4, 6), 1, false),
        (Extents(0, 2, 1, 2, 2, 2), 1, false),
    ];
    let shared = shared
        .into_iter()
        .flat_map(|(extents, blocks, complete)| of_blocks(&extents, blocks, complete));
    own.chain(shared).collect()
}

/// Cases of blocks of places that several experts share.
fn of_blocks(extents: &Extents, blocks: usize, complete: bool) -> Vec<Case> {
    let &Extents(groups, tokens, choices, elements, experts, capacity) = extents;
    let places = ExpertPlaces { experts, blocks, capacity };
    let columns = elements + 1;
    let x = || floats(&[groups, tokens, elements]);
    let chosen = || indices(&[groups, tokens, choices], experts);
    let weights = || floats(&[groups, tokens, choices]);
    let y = |width: usize| floats(&[blocks, groups, capacity, width]);
    let case = |op, operands| Case { op, operands, complete };
    let grouped = |transpose_b| Op::GroupedMatMul(GroupedMatMul { transpose_b });
    let gradient = Op::GroupedMatMulGrad(GroupedMatMulGrad { experts });
    let of_weights = Op::CombineWeightsGrad(CombineWeightsGrad::of_places(places));
    let combine = Op::Combine(Combine::from_places(places));
    vec![
        case(Op::Dispatch(Dispatch::to_places(places)), vec![x(), chosen(), weights()]),
        case(combine, vec![y(elements), chosen(), weights()]),
        case(of_weights, vec![y(elements), chosen(), x()]),
        case(grouped(false), vec![y(elements), floats(&[experts, elements, columns]), chosen()]),
        case(grouped(true), vec![y(elements), floats(&[experts, columns, elements]), chosen()]),
        case(gradient.clone(), vec![y(elements), y(columns), chosen()]),
        case(
            grouped(true),
            vec![
                eights(&[blocks, groups, capacity, elements]),
                eights(&[experts, columns, elements]),
                chosen(),
                positive(&[blocks, groups, capacity, 1]),
                positive(&[experts, columns, 1]),
            ],
        ),
        case(
            gradient,
            vec![
                eights(&[blocks, groups, capacity, elements]),
                eights(&[blocks, groups, capacity, columns]),
                chosen(),
                positive(&[blocks, 1, 1, 1]),
                positive(&[1, 1, 1, columns]),
            ],
        ),
    ]
}

fn of(extents: &Extents, complete: bool) -> Vec<Case> {
    let &Extents(groups, tokens, choices, elements, experts, capacity) = extents;
    let x = || floats(&[groups, tokens, elements]);
    let chosen = || indices(&[groups, tokens, choices], experts);
    let weights = || floats(&[groups, tokens, choices]);
    let y = || floats(&[experts, groups, capacity, elements]);
    let dispatch = || Op::Dispatch(Dispatch { experts, capacity, blocks: None });
    let combine = || Op::Combine(Combine::default());
    let case = |op, operands| Case { op, operands, complete };
    vec![
        case(dispatch(), vec![x(), chosen()]),
        case(dispatch(), vec![x(), chosen(), weights()]),
        case(combine(), vec![y(), chosen()]),
        case(combine(), vec![y(), chosen(), weights()]),
        case(Op::CombineWeightsGrad(CombineWeightsGrad::default()), vec![y(), chosen(), x()]),
    ]
}
