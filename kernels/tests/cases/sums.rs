//! Reductions, and products of matrices.

use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::types::DType;

use super::super::common::{Random, ordinary};
use super::{Example, Examples, f32s, ty};

pub fn examples() -> Vec<Example> {
    let to = &mut Examples::new(9);
    reductions(to);
    products(to);
    scaled_products(to);
    std::mem::take(&mut to.all)
}

fn reductions(to: &mut Examples) {
    use ReduceFunction::*;
    let of = |function, axes: &[usize]| {
        Op::Reduce(Reduce { function, axes: axes.to_vec(), keep_dims: false })
    };
    let fill = &mut |random: &mut Random, i: usize, dtype: DType| match random.below(90) {
        0 if dtype.is_float() => f64::NAN,
        _ => ordinary(random, i, dtype),
    };
    for (shape, axes) in [
        (&[6, 5, 37][..], &[2][..]),
        (&[6, 5, 37], &[0]),
        (&[6, 5, 37], &[1]),
        (&[6, 5, 37], &[0, 2]),
        (&[3, 40, 5], &[0, 1, 2]),
        (&[0, 5], &[0]),
    ] {
        for function in [Sum, Mean] {
            to.both(of(function, axes), &[f32s(shape)], 5e-5);
        }
        to.both_filled(of(Max, axes), &[f32s(shape)], 0.0, fill);
        to.both_filled(of(MaxAbs, axes), &[ty(DType::BF16, shape)], 0.0, fill);
        to.both(of(Sum, axes), &[ty(DType::BF16, shape)], 5e-5);
        to.both(of(Min, axes), &[ty(DType::I64, shape)], 0.0);
        to.both(of(Sum, axes), &[ty(DType::I32, shape)], 0.0);
    }
    // In chunks.
    for (shape, axes) in [(&[2, 40_000][..], &[1][..]), (&[9000, 3], &[0])] {
        to.both(of(Sum, axes), &[f32s(shape)], 5e-5);
        to.both(of(Max, axes), &[ty(DType::F16, shape)], 0.0);
    }
}

fn products(to: &mut Examples) {
    for (a, b, transpose_a, transpose_b) in [
        (&[5, 7][..], &[7, 9][..], false, false),
        (&[7, 5], &[9, 7], true, true),
        (&[2, 3, 5, 7], &[2, 3, 7, 4], false, false),
        (&[2, 3, 5, 7], &[7, 4], false, false),
        (&[3, 7, 5], &[2, 1, 7, 4], true, false),
        (&[5, 0], &[0, 4], false, false),
        // Several tiles, whose parts are read at once.
        (&[72, 48], &[48, 80], false, false),
        (&[48, 66], &[72, 48], true, true),
        // Both factors repeat.
        (&[4, 1, 5, 7], &[1, 3, 7, 4], false, false),
    ] {
        for dtype in [DType::F32, DType::BF16, DType::F8E4M3, DType::I64] {
            let op = Op::MatMul(MatMul { transpose_a, transpose_b });
            to.both(op, &[ty(dtype, a), ty(dtype, b)], 5e-5);
        }
    }
}

/// Products of numbers of 8 bits with the sizes by which they were rounded.
fn scaled_products(to: &mut Examples) {
    let (fine, far) = (DType::F8E4M3, DType::F8E5M2);
    for (shapes, of_second, transpose_a, transpose_b) in [
        ([&[5, 7][..], &[7, 9], &[5, 1], &[1, 9]], fine, false, false),
        ([&[7, 5], &[9, 7], &[1, 5], &[1, 1]], far, true, true),
        ([&[2, 3, 5, 7], &[7, 4], &[2, 3, 5, 1], &[1, 4]], fine, false, false),
        ([&[4, 1, 5, 7], &[1, 3, 4, 7], &[4, 1, 1, 1], &[1, 3, 4, 1]], far, false, true),
    ] {
        let eights = [ty(DType::F8E4M3, shapes[0]), ty(of_second, shapes[1])];
        let sizes = [ty(DType::BF16, shapes[2]), f32s(shapes[3])];
        let op = Op::MatMul(MatMul { transpose_a, transpose_b });
        to.both(op, &[&eights[..], &sizes].concat(), 1.0 / 128.0);
    }
}

/// Batches of so many products that own kernels have large tiles on a large card.
pub fn tiled() -> Vec<Example> {
    let to = &mut Examples::new(3);
    for (dtype, transpose_a) in [(DType::F32, false), (DType::BF16, true), (DType::F16, false)] {
        let op = Op::MatMul(MatMul { transpose_a, transpose_b: !transpose_a });
        let [a, b] = if transpose_a { [[33, 70], [33, 66]] } else { [[70, 33], [66, 33]] };
        let batch = |[rows, columns]: [usize; 2]| ty(dtype, &[132, rows, columns]);
        to.whole(op, &[batch(a), batch(b)], 5e-5);
    }
    std::mem::take(&mut to.all)
}
