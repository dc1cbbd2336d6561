//! Ops that read rows as a whole.

use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::DType;

use super::super::common::{Random, ordinary};
use super::{Example, Examples, FLOATS, f32s, ty};

pub fn examples() -> Vec<Example> {
    let to = &mut Examples::new(5);
    for dtype in FLOATS {
        rotations(to, dtype);
    }
    to.placed = false;
    for dtype in FLOATS {
        for (shape, axis) in [([5, 37], 1), ([3, 64], 1), ([6, 20], 0)] {
            softmaxes(to, dtype, &shape, axis);
        }
        normalizations(to, dtype, &[5, 37]);
        normalizations(to, dtype, &[2, 2, 64]);
    }
    // In several steps of a block, more than registers hold, many rows of a block, and none.
    for (shape, axis) in [
        ([2, 1300], 1),
        ([1, 70000], 1),
        ([1100, 20], 1),
        ([300, 3], 0),
        ([4, 1], 1),
        ([0, 7], 1),
        ([7, 0], 1),
    ] {
        softmaxes(to, DType::F32, &shape, axis);
    }
    normalizations(to, DType::F32, &[3, 1300]);
    normalizations(to, DType::F32, &[1, 70000]);
    normalizations(to, DType::F32, &[0, 7]);
    masked(to);
    greatest(to);
    best(to);
    running(to);
    std::mem::take(&mut to.all)
}

pub fn softmaxes(to: &mut Examples, dtype: DType, shape: &[usize], axis: usize) {
    let pair = [ty(dtype, shape), ty(dtype, shape)];
    to.both(Op::Softmax(Softmax { axis }), &pair[..1], 2e-6);
    to.both(Op::LogSoftmax(LogSoftmax { axis }), &pair[..1], 4e-6);
    if shape[axis] < 10_000 {
        to.both(Op::SoftmaxGrad(SoftmaxGrad { axis }), &pair, 2e-5);
        // y is a logarithm of a probability.
        let fill = &mut |random: &mut Random, i: usize, dtype: DType| {
            let x = ordinary(random, i, dtype);
            if i == 0 { -x.abs() } else { x }
        };
        let op = Op::LogSoftmaxGrad(LogSoftmaxGrad { axis });
        to.both_filled(op, &pair, 2e-5 * shape[axis] as f64, fill);
    }
}

/// Scores that get no weight.
fn masked(to: &mut Examples) {
    let fill = &mut |random: &mut Random, _: usize, _: DType| match random.below(3) {
        0 => f64::NEG_INFINITY,
        _ => random.below(7) as f64,
    };
    to.both_filled(Op::Softmax(Softmax { axis: 1 }), &[f32s(&[4, 100])], 1e-6, fill);
}

pub fn normalizations(to: &mut Examples, dtype: DType, shape: &[usize]) {
    let kept = [&shape[..shape.len() - 1], &[1]].concat();
    for center in [true, false] {
        let op = Op::Normalize(Normalize { center, epsilon: Scalar(1e-5) });
        let fill =
            &mut |random: &mut Random, i: usize, dtype: DType| ordinary(random, i, dtype) + 5.0;
        to.both_filled(op, &[ty(dtype, shape)], 2e-5, fill);
        let types = [ty(dtype, shape), f32s(&kept), ty(dtype, shape)];
        to.both(Op::NormalizeGrad(NormalizeGrad { center }), &types, 2e-5);
    }
}

fn rotations(to: &mut Examples, dtype: DType) {
    for (interleaved, inverse, head) in [(false, false, 10), (true, true, 10), (false, true, 16)] {
        let op = Op::Rotary(Rotary { base: Scalar(1e4), interleaved, inverse, zigzag: None });
        to.both(op, &[ty(dtype, &[2, 9, 3, head])], 4e-6);
    }
}

fn greatest(to: &mut Examples) {
    let coarse = &mut |random: &mut Random, _: usize, dtype: DType| match random.below(9) {
        0 if dtype.is_float() => f64::NAN,
        number => number as f64,
    };
    for dtype in [DType::F32, DType::BF16, DType::I64, DType::U8] {
        for (shape, axis) in [(vec![5, 37], 1), (vec![40, 6], 0), (vec![2, 700], 1)] {
            let op = Op::ArgMax(ArgMax { axis, keep_dims: false });
            to.both_filled(op, &[ty(dtype, &shape)], 0.0, coarse);
        }
    }
}

fn best(to: &mut Examples) {
    // Small integers, of which many are equal.
    let few = &mut |random: &mut Random, _: usize, dtype: DType| match random.below(6) {
        0 if dtype.is_float() => f64::NAN,
        1 => -1.0,
        number => number as f64,
    };
    for dtype in [DType::F32, DType::F16, DType::I64, DType::U8] {
        for (shape, count) in [([5, 13], 2), ([3, 40], 40), ([2, 3000], 9)] {
            for greatest in [true, false] {
                if dtype == DType::F32 || greatest && shape[0] == 3 {
                    let op = Op::TopK(TopK { count, greatest });
                    to.both_filled(op, &[ty(dtype, &shape)], 0.0, few);
                }
            }
        }
    }
}

fn running(to: &mut Examples) {
    for dtype in [DType::F32, DType::BF16, DType::I64, DType::I32] {
        for (shape, axis) in [(vec![2, 600], 1), (vec![5, 70, 3], 1)] {
            for (exclusive, reverse) in [(false, false), (true, true)] {
                let op = CumulativeSum { axis, exclusive, reverse };
                to.both(Op::CumulativeSum(op), &[ty(dtype, &shape)], 1e-6);
            }
        }
    }
}
