//! Cases of ops that move, repeat or mask elements.

use std::num::NonZeroU32;

use graphc_ir::mesh::Placement;
use graphc_ir::op::Op;
use graphc_ir::ops::{
    Accumulate, Concat, Expand, Pad, Regather, Reshape, Slice, Split, ToGlobal, Transpose,
    Triangle, Zigzag,
};
use graphc_ir::sbp::{NdSbp, Sbp};

use super::{Case, floats};

pub fn cases() -> Vec<Case> {
    [
        reshapes(),
        transposes(),
        expansions(),
        slices(),
        pads(),
        joints(),
        triangles(),
        zigzags(),
        layouts(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn reshapes() -> Vec<Case> {
    let shapes: [(&[usize], &[usize], bool); 12] = [
        (&[4, 6], &[24], true),
        (&[24], &[4, 6], true),
        (&[2, 6], &[4, 3], true),
        (&[4, 6], &[6, 4], true),
        (&[4, 6], &[4, 6], true),
        (&[4, 1, 6], &[4, 6], true),
        (&[2, 4, 6], &[8, 2, 3], true),
        (&[5, 3], &[15], false),
        (&[5, 3], &[3, 5], false),
        (&[0, 3], &[3, 0], false),
        (&[1], &[], false),
        (&[1, 7], &[7, 1], false),
    ];
    let case = |(from, to, complete): (&[usize], &[usize], bool)| Case {
        op: Op::Reshape(Reshape { shape: to.to_vec() }),
        operands: vec![floats(from)],
        complete,
    };
    shapes.map(case).into()
}

fn transposes() -> Vec<Case> {
    let op = |permutation: &[usize]| Op::Transpose(Transpose { permutation: permutation.to_vec() });
    vec![
        Case::complete(op(&[1, 0]), vec![floats(&[4, 6])]),
        Case::complete(op(&[2, 0, 1]), vec![floats(&[2, 4, 6])]),
        Case::new(op(&[0, 2, 1]), vec![floats(&[3, 5, 1])]),
        Case::new(op(&[1, 0]), vec![floats(&[0, 3])]),
        Case::new(op(&[]), vec![floats(&[])]),
    ]
}

fn expansions() -> Vec<Case> {
    let op = |shape: &[usize]| Op::Expand(Expand { shape: shape.to_vec() });
    vec![
        Case::complete(op(&[4, 6]), vec![floats(&[4, 1])]),
        Case::complete(op(&[2, 4, 6]), vec![floats(&[6])]),
        Case::new(op(&[5, 3, 1]), vec![floats(&[3, 1])]),
        Case::new(op(&[0, 3]), vec![floats(&[1, 3])]),
        Case::new(op(&[3]), vec![floats(&[])]),
    ]
}

fn slices() -> Vec<Case> {
    let op = |starts: &[usize], ends: &[usize], steps: &[usize]| {
        let [starts, ends, steps] = [starts, ends, steps].map(<[usize]>::to_vec);
        Op::Slice(Slice { starts, ends, steps })
    };
    vec![
        Case::complete(op(&[0, 1], &[4, 6], &[1, 2]), vec![floats(&[4, 6])]),
        Case::new(op(&[1, 0], &[4, 3], &[1, 1]), vec![floats(&[5, 3])]),
        Case::new(op(&[0, 1], &[0, 3], &[1, 1]), vec![floats(&[0, 3])]),
        Case::new(op(&[2, 0], &[2, 3], &[1, 2]), vec![floats(&[5, 3])]),
    ]
}

fn pads() -> Vec<Case> {
    let op = |low: &[usize], high: &[usize], interior: &[usize], value: f64| {
        let [low, high, interior] = [low, high, interior].map(<[usize]>::to_vec);
        Op::Pad(Pad { low, high, interior, value: value.into() })
    };
    vec![
        Case::complete(op(&[0, 1], &[0, 2], &[0, 0], 0.0), vec![floats(&[4, 6])]),
        Case::complete(op(&[0, 1], &[0, 2], &[0, 1], 1.5), vec![floats(&[4, 6])]),
        Case::complete(op(&[0, 0], &[0, 0], &[0, 0], 1.5), vec![floats(&[4, 6])]),
        Case::new(op(&[2, 0], &[0, 0], &[1, 0], 0.0), vec![floats(&[5, 3])]),
        Case::new(op(&[1, 0], &[1, 0], &[2, 0], 0.0), vec![floats(&[0, 3])]),
        Case::new(op(&[0], &[1], &[3], 2.0), vec![floats(&[1])]),
    ]
}

fn joints() -> Vec<Case> {
    let concat = |axis| Op::Concat(Concat { axis });
    let split = |axis, sizes: &[usize]| Op::Split(Split { axis, sizes: sizes.to_vec() });
    vec![
        Case::complete(concat(1), vec![floats(&[4, 6]), floats(&[4, 2])]),
        Case::new(concat(0), vec![floats(&[2, 3]), floats(&[0, 3]), floats(&[3, 3])]),
        Case::new(concat(0), vec![floats(&[5, 3])]),
        Case::new(concat(1), vec![floats(&[0, 1]), floats(&[0, 2])]),
        Case::complete(split(1, &[4, 2]), vec![floats(&[4, 6])]),
        Case::new(split(0, &[1, 0, 4]), vec![floats(&[5, 3])]),
        Case::new(split(1, &[3]), vec![floats(&[0, 3])]),
    ]
}

fn triangles() -> Vec<Case> {
    let op = |lower, diagonal| Op::Triangle(Triangle { lower, diagonal });
    vec![
        Case::complete(op(true, 0), vec![floats(&[4, 6])]),
        Case::complete(op(false, 1), vec![floats(&[2, 4, 4])]),
        Case::new(op(true, -1), vec![floats(&[5, 3])]),
        Case::new(op(false, -2), vec![floats(&[3, 5, 5])]),
        Case::new(op(true, 0), vec![floats(&[0, 3])]),
    ]
}

fn zigzags() -> Vec<Case> {
    let op = |dim, pairs, inverse| {
        let pairs = NonZeroU32::new(pairs).expect("a count");
        Op::Zigzag(Zigzag { dim, pairs, inverse })
    };
    vec![
        Case::complete(op(1, 2, false), vec![floats(&[2, 4])]),
        Case::complete(op(0, 1, true), vec![floats(&[4, 6])]),
        Case::new(op(1, 3, true), vec![floats(&[3, 12, 2])]),
        Case::new(op(0, 2, false), vec![floats(&[0, 3])]),
    ]
}

fn layouts() -> Vec<Case> {
    let placement = Placement::mesh(&[2]).expect("a mesh");
    let sbp = NdSbp(vec![Sbp::Split(0)]);
    let ops = [
        Op::ToGlobal(ToGlobal { placement, sbp }),
        Op::Regather(Regather {}),
        Op::Accumulate(Accumulate {}),
    ];
    let case = |op: &Op, (shape, complete): (&[usize], bool)| Case {
        op: op.clone(),
        operands: vec![floats(shape)],
        complete,
    };
    let shapes: [(&[usize], bool); 3] = [(&[4, 6], true), (&[5, 3], false), (&[0, 3], false)];
    ops.iter().flat_map(|op| shapes.map(|shape| case(op, shape))).collect()
}
