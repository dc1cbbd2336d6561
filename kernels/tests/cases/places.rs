//! Ops that read and write at computed places.

use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::types::DType;

use super::{Example, Examples, FLOATS, f32s, indices, ty};

pub fn examples() -> Vec<Example> {
    let to = &mut Examples::new(4);
    tables(to);
    for dtype in [DType::F32, DType::BF16, DType::I64] {
        middle(to, dtype, [2, 5], 9, &[3]);
    }
    for dtype in [DType::F32, DType::F16, DType::I32] {
        middle(to, dtype, [2, 5], 70, &[8]);
    }
    middle(to, DType::F32, [3, 1100], 40, &[]);
    middle(to, DType::F32, [2, 5], 0, &[4]);
    middle(to, DType::F32, [2, 5], 7, &[0]);
    middle(to, DType::U8, [2, 5], 9, &[16]);
    std::mem::take(&mut to.all)
}

fn tables(to: &mut Examples) {
    for dtype in FLOATS {
        for (ids, rows, width) in [(&[3, 5][..], 7, 16), (&[130], 19, 5), (&[0], 3, 4)] {
            let of_ids = ty(DType::I64, ids);
            let types = [ty(dtype, &[rows, width]), of_ids.clone()];
            let fill = &mut indices(1, rows, None);
            to.both_filled(Op::Embedding(EmbeddingOp {}), &types, 0.0, fill);
            let types = [of_ids, ty(dtype, &[ids, &[width]].concat())];
            let fill = &mut indices(0, rows, None);
            to.both_filled(Op::EmbeddingGrad(EmbeddingGrad { rows }), &types, 2e-5, fill);
        }
    }
    // One row takes all.
    let types = [ty(DType::I64, &[600]), f32s(&[600, 2])];
    let op = Op::EmbeddingGrad(EmbeddingGrad { rows: 2000 });
    to.both_filled(op, &types, 2e-5, &mut indices(0, 1, None));
}

pub fn middle(to: &mut Examples, dtype: DType, outer: [usize; 2], m: usize, inner: &[usize]) {
    let [batch, n] = outer;
    let places = ty(DType::I64, &[batch, m]);
    let whole = ty(dtype, &[&[batch, n], inner].concat());
    let part = ty(dtype, &[&[batch, m], inner].concat());
    let types = [whole.clone(), places.clone()];
    to.both_filled(Op::Gather(Gather {}), &types, 0.0, &mut indices(1, n, None));
    if dtype != DType::U8 {
        let types = [places.clone(), part.clone()];
        let op = Op::ScatterSum(ScatterSum { places: n });
        to.both_filled(op, &types, 2e-5, &mut indices(0, n, None));
    }
    let types = [whole, places, part];
    for function in
        [ScatterFunction::Set, ScatterFunction::Mul, ScatterFunction::Max, ScatterFunction::Min]
    {
        // Products of many halves are rounded as often, which the oracle does not.
        let once = dtype == DType::F32 || !dtype.is_float() || function != ScatterFunction::Mul;
        if once && m < 40 || function == ScatterFunction::Set {
            let op = Op::Scatter(Scatter { function });
            to.both_filled(op, &types, 2e-5, &mut indices(1, n, None));
        }
    }
}
