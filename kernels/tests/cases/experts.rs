//! Tokens to experts and back.

use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::types::DType;

use super::{Example, Examples, indices, ty};

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

fn of(to: &mut Examples, dtype: DType, extents: [usize; 5], width: usize) {
    let [groups, tokens, choices, experts, capacity] = extents;
    let x = ty(dtype, &[groups, tokens, width]);
    let y = ty(dtype, &[experts, groups, capacity, width]);
    let chosen = ty(DType::I64, &[groups, tokens, choices]);
    let weights = ty(dtype, &chosen.shape);
    let fill = &mut indices(1, experts, None);
    let op = Op::Dispatch(Dispatch { experts, capacity });
    to.both_filled(op.clone(), &[x.clone(), chosen.clone()], 1e-6, fill);
    to.both_filled(op, &[x.clone(), chosen.clone(), weights.clone()], 1e-6, fill);
    let op = Op::Combine(Combine {});
    to.both_filled(op.clone(), &[y.clone(), chosen.clone()], 4e-6, fill);
    to.both_filled(op, &[y.clone(), chosen.clone(), weights], 4e-6, fill);
    to.both_filled(Op::CombineWeightsGrad(CombineWeightsGrad {}), &[y, chosen, x], 1e-5, fill);
}
