//! Ops that move elements.

use graphc_ir::mesh::Placement;
use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

use super::{Example, Examples, ty};

/// Types of all sizes.
const MOVED: [DType; 4] = [DType::F32, DType::BF16, DType::I64, DType::U8];

pub fn examples() -> Vec<Example> {
    let to = &mut Examples::new(3);
    transposes(to);
    slices(to);
    expansions(to);
    pads(to);
    parts(to);
    copies(to);
    std::mem::take(&mut to.all)
}

fn transposes(to: &mut Examples) {
    for dtype in MOVED {
        // In tiles, in words, and one by one.
        for (shape, permutation) in [
            (vec![45, 67], vec![1, 0]),
            (vec![2, 5, 3, 32], vec![0, 2, 1, 3]),
            (vec![3, 5, 2], vec![2, 1, 0]),
        ] {
            let op = Op::Transpose(Transpose { permutation });
            to.both(op, &[ty(dtype, &shape)], 0.0);
        }
    }
    for (shape, permutation) in [
        (vec![3, 9, 2, 17], vec![3, 2, 1, 0]),
        (vec![2, 10, 12], vec![0, 2, 1]),
        (vec![0, 9], vec![1, 0]),
        (vec![], vec![]),
        (vec![1, 300, 1], vec![2, 1, 0]),
    ] {
        to.both(Op::Transpose(Transpose { permutation }), &[ty(DType::F32, &shape)], 0.0);
    }
}

fn slices(to: &mut Examples) {
    for dtype in MOVED {
        let op = Slice { starts: vec![0, 8], ends: vec![9, 24], steps: vec![2, 1] };
        to.both(Op::Slice(op), &[ty(dtype, &[9, 32])], 0.0);
    }
    let odd = Slice { starts: vec![1, 3], ends: vec![5, 17], steps: vec![1, 3] };
    to.both(Op::Slice(odd), &[ty(DType::F32, &[5, 19])], 0.0);
    let empty = Slice { starts: vec![2, 0], ends: vec![2, 19], steps: vec![1, 1] };
    to.whole(Op::Slice(empty), &[ty(DType::F32, &[5, 19])], 0.0);
}

fn expansions(to: &mut Examples) {
    for (from, shape) in [
        (vec![1, 24], vec![7, 24]),
        (vec![5, 1], vec![3, 5, 8]),
        (vec![], vec![300]),
        (vec![0, 1], vec![0, 4]),
    ] {
        for dtype in [DType::F32, DType::U8] {
            let op = Op::Expand(Expand { shape: shape.clone() });
            to.both(op, &[ty(dtype, &from)], 0.0);
        }
    }
}

fn pads(to: &mut Examples) {
    let pad = |low: &[usize], high: &[usize], interior: &[usize], value: f64| {
        let [low, high, interior] = [low, high, interior].map(<[usize]>::to_vec);
        Op::Pad(Pad { low, high, interior, value: Scalar(value) })
    };
    for dtype in MOVED {
        let x = ty(dtype, &[3, 16]);
        to.both(pad(&[2, 0], &[1, 0], &[0, 0], 3.0), std::slice::from_ref(&x), 0.0);
        to.both(pad(&[0, 1], &[1, 2], &[1, 2], 0.0), &[x], 0.0);
    }
    let images = ty(DType::F32, &[2, 3, 4, 8]);
    to.both(pad(&[0, 0, 1, 4], &[0, 0, 1, 4], &[0; 4], -2.5), &[images], 0.0);
    to.whole(pad(&[3], &[2], &[1], 1.0), &[ty(DType::F32, &[0])], 0.0);
    to.whole(pad(&[], &[], &[], 1.0), &[ty(DType::F32, &[])], 0.0);
}

fn parts(to: &mut Examples) {
    for dtype in MOVED {
        for sizes in [vec![16, 8, 0, 40], vec![3, 1, 5]] {
            let types: Vec<TensorType> = sizes.iter().map(|&size| ty(dtype, &[5, size])).collect();
            to.both(Op::Concat(Concat { axis: 1 }), &types, 0.0);
            let whole = ty(dtype, &[5, sizes.iter().sum()]);
            to.both(Op::Split(Split { axis: 1, sizes }), &[whole], 0.0);
        }
    }
    let types = [ty(DType::F32, &[3, 7]), ty(DType::F32, &[4, 7])];
    to.both(Op::Concat(Concat { axis: 0 }), &types, 0.0);
    // More walks than a launch has.
    let many = vec![ty(DType::F32, &[2, 3]); 140];
    to.whole(Op::Concat(Concat { axis: 1 }), &many, 0.0);
}

/// Adds ops whose result has the same elements as the operand.
fn copies(to: &mut Examples) {
    let placement = Placement::mesh(&[1]).expect("a mesh");
    let ops = [
        Op::Reshape(Reshape { shape: vec![7, 5] }),
        Op::ToGlobal(ToGlobal { placement, sbp: NdSbp(vec![Sbp::Broadcast]) }),
        Op::Regather(Regather {}),
        Op::Accumulate(Accumulate {}),
    ];
    for op in ops {
        for dtype in MOVED {
            to.whole(op.clone(), &[ty(dtype, &[5, 7])], 0.0);
        }
    }
}
