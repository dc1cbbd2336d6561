//! Losses of labels, and what goes with them.

use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

use super::super::common::{Random, ordinary};
use super::{Example, Examples, FLOATS, f32s, indices, ty};

pub fn examples() -> Vec<Example> {
    let to = &mut Examples::new(2);
    for (dtype, rows, classes) in [
        (DType::F32, 5, 37),
        (DType::BF16, 3, 64),
        (DType::F16, 4, 13),
        (DType::F32, 2, 5000),
        (DType::F32, 130, 1),
        (DType::F32, 0, 4),
    ] {
        losses(to, dtype, rows, classes);
    }
    // Scores of padding behind those of classes: few, many, and in the last of several vectors.
    for (dtype, rows, extent, classes) in [
        (DType::F32, 5, 40, 37),
        (DType::BF16, 3, 64, 33),
        (DType::F16, 4, 16, 1),
        (DType::BF16, 2, 5056, 5001),
    ] {
        padded(to, dtype, [rows, extent], classes);
    }
    for dtype in FLOATS {
        ranks(to, dtype, [9, 33], None);
        ranks(to, dtype, [9, 40], Some(33));
    }
    std::mem::take(&mut to.all)
}

pub fn losses(to: &mut Examples, dtype: DType, rows: usize, classes: usize) {
    let (x, labels, row) = (ty(dtype, &[rows, classes]), ty(DType::I64, &[rows]), f32s(&[rows]));
    let of = |place| indices(place, classes, Some(IGNORED_LABEL));
    let types = [labels.clone(), ty(dtype, &[rows])];
    to.both_filled(Op::PickGrad(PickGrad { classes }), &types, 0.0, &mut of(0));
    scores(to, [x, labels, row], None, &of);
}

pub fn padded(to: &mut Examples, dtype: DType, shape: [usize; 2], classes: usize) {
    let rows = shape[0];
    let (x, labels, row) = (ty(dtype, &shape), ty(DType::I64, &[rows]), f32s(&[rows]));
    let of = |place| indices(place, classes, Some(IGNORED_LABEL));
    scores(to, [x, labels, row], Some(classes), &of);
}

fn scores<F: FnMut(&mut Random, usize, DType) -> f64>(
    to: &mut Examples,
    [x, labels, row]: [TensorType; 3],
    classes: Option<usize>,
    of: &impl Fn(usize) -> F,
) {
    let scored = [x.clone(), labels.clone()];
    to.both_filled(Op::Pick(Pick { classes }), &scored, 0.0, &mut of(1));
    for smoothing in [0.0, 0.1].map(Scalar) {
        let op = Op::CrossEntropy(CrossEntropy { smoothing, classes });
        to.both_filled(op, &scored, 4e-6, &mut of(1));
        let types = [x.clone(), row.clone(), labels.clone(), row.clone()];
        let op = Op::CrossEntropyGrad(CrossEntropyGrad { smoothing, classes });
        to.both_filled(op, &types, 1e-5, &mut of(2));
    }
}

pub fn ranks(to: &mut Examples, dtype: DType, shape: [usize; 2], classes: Option<usize>) {
    let row = [shape[0]];
    let types = [ty(dtype, &shape), ty(DType::I64, &row), ty(dtype, &row)];
    // Few values, so that many are equal.
    let fill = &mut |random: &mut Random, i: usize, dtype: DType| match (i, random.below(9)) {
        (1, 0) => IGNORED_LABEL as f64,
        (1, _) => random.below(classes.unwrap_or(shape[1])) as f64,
        (0, 0) => f64::NAN,
        (2, 0) => ordinary(random, i, dtype),
        _ => random.below(4) as f64,
    };
    to.both_filled(Op::LabelRank(LabelRank { classes }), &types, 0.0, fill);
}
