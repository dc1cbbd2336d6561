//! Tokens to experts and back.

use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::types::DType;

use super::{Example, Examples, Random, indices, ty};

pub fn examples() -> Vec<Example> {
    let to = &mut Examples::new(1);
    // A tile of choices and a part of one; few places, so that some are dropped.
    of(to, DType::F32, [2, 150, 2, 3, 7], 5);
    for dtype in [DType::BF16, DType::F16] {
        of(to, dtype, [2, 7, 1, 4, 3], 16);
    }
    of(to, DType::F32, [0, 7, 1, 4, 3], 16);
    std::mem::take(&mut to.all)
}

/// Blocks of places that several experts share, and products of these.
pub fn shared_blocks() -> Vec<Example> {
    let to = &mut Examples::new(2);
    // Experts that nobody chooses, a full block, and free places.
    shared(to, DType::F32, [2, 150, 2, 6, 2, 170], [5, 7]);
    shared(to, DType::F32, [1, 40, 2, 3, 1, 80], [70, 33]);
    for dtype in [DType::BF16, DType::F16] {
        shared(to, dtype, [2, 7, 1, 4, 2, 6], [16, 8]);
    }
    shared(to, DType::F32, [0, 7, 1, 4, 2, 3], [16, 8]);
    of_8_bits(to, [2, 40, 2, 6, 2, 60], [70, 33], false);
    of_8_bits(to, [1, 9, 1, 4, 1, 12], [16, 8], true);
    std::mem::take(&mut to.all)
}

fn shared(to: &mut Examples, dtype: DType, extents: [usize; 6], [width, columns]: [usize; 2]) {
    let [groups, tokens, choices, experts, blocks, capacity] = extents;
    let places = ExpertPlaces { experts, blocks, capacity };
    let x = ty(dtype, &[groups, tokens, width]);
    let y = |width: usize| ty(dtype, &[blocks, groups, capacity, width]);
    let chosen = ty(DType::I64, &[groups, tokens, choices]);
    let weights = ty(dtype, &chosen.shape);
    let matrices = |of: [usize; 2]| ty(dtype, &[experts, of[0], of[1]]);
    let fill = &mut indices(1, experts, None);
    let op = Op::Dispatch(Dispatch::to_places(places));
    to.both_filled(op, &[x.clone(), chosen.clone(), weights.clone()], 1e-6, fill);
    let op = Op::Combine(Combine::from_places(places));
    to.both_filled(op, &[y(width), chosen.clone(), weights], 4e-6, fill);
    let op = Op::CombineWeightsGrad(CombineWeightsGrad::of_places(places));
    to.both_filled(op, &[y(width), chosen.clone(), x], 1e-5, fill);
    let fill = &mut indices(2, experts, None);
    for transpose_b in [false, true] {
        let of = if transpose_b { [columns, width] } else { [width, columns] };
        let op = Op::GroupedMatMul(GroupedMatMul { transpose_b });
        to.both_filled(op, &[y(width), matrices(of), chosen.clone()], 1e-5, fill);
    }
    let op = Op::GroupedMatMulGrad(GroupedMatMulGrad { experts });
    to.both_filled(op, &[y(width), y(columns), chosen], 1e-5, fill);
}

/// Products in 8 bits: with sizes for each place, column and matrix, or one for all.
fn of_8_bits(to: &mut Examples, extents: [usize; 6], [width, columns]: [usize; 2], one: bool) {
    let [groups, tokens, choices, experts, blocks, capacity] = extents;
    let [forward, backward] = [DType::F8E4M3, DType::F8E5M2];
    let places = |dtype, width: usize| ty(dtype, &[blocks, groups, capacity, width]);
    let chosen = || ty(DType::I64, &[groups, tokens, choices]);
    let sizes = |dtype, shape: &[usize]| match one {
        true => ty(dtype, &vec![1; shape.len()]),
        false => ty(dtype, shape),
    };
    let mut index = indices(2, experts, None);
    let fill = &mut move |random: &mut Random, operand: usize, dtype: DType| {
        let value = index(random, operand, dtype);
        if operand > 2 { value.abs() + 0.01 } else { value }
    };
    let of_places = || sizes(DType::BF16, &[blocks, groups, capacity, 1]);
    for transpose_b in [false, true] {
        let turned =
            |[a, b]: [usize; 2]| if transpose_b { [experts, b, a] } else { [experts, a, b] };
        let matrices = ty(forward, &turned([width, columns]));
        let of_matrices = sizes(DType::F32, &turned([1, columns]));
        let op = Op::GroupedMatMul(GroupedMatMul { transpose_b });
        let types = [places(forward, width), matrices, chosen(), of_places(), of_matrices];
        to.both_filled(op.clone(), &types[..3], 1e-2, fill);
        to.both_filled(op, &types, 1e-2, fill);
    }
    let op = Op::GroupedMatMulGrad(GroupedMatMulGrad { experts });
    let of_rows = sizes(DType::F32, &[blocks, 1, 1, width]);
    let of_columns = sizes(DType::BF16, &[1, 1, 1, columns]);
    let types = [places(backward, width), places(forward, columns), chosen(), of_rows, of_columns];
    to.both_filled(op.clone(), &types[..3], 1e-2, fill);
    to.both_filled(op, &types, 1e-2, fill);
}

fn of(to: &mut Examples, dtype: DType, extents: [usize; 5], width: usize) {
    let [groups, tokens, choices, experts, capacity] = extents;
    let x = ty(dtype, &[groups, tokens, width]);
    let y = ty(dtype, &[experts, groups, capacity, width]);
    let chosen = ty(DType::I64, &[groups, tokens, choices]);
    let weights = ty(dtype, &chosen.shape);
    let fill = &mut indices(1, experts, None);
    let op = Op::Dispatch(Dispatch { experts, capacity, blocks: None });
    to.both_filled(op.clone(), &[x.clone(), chosen.clone()], 1e-6, fill);
    to.both_filled(op, &[x.clone(), chosen.clone(), weights.clone()], 1e-6, fill);
    let op = Op::Combine(Combine::default());
    to.both_filled(op.clone(), &[y.clone(), chosen.clone()], 4e-6, fill);
    to.both_filled(op, &[y.clone(), chosen.clone(), weights], 4e-6, fill);
    to.both_filled(
        Op::CombineWeightsGrad(CombineWeightsGrad::default()),
        &[y, chosen, x],
        1e-5,
        fill,
    );
}
