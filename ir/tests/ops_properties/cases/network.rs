//! Cases of ops of neural networks: softmax, normalization, look-up, losses, dropout.

use graphc_ir::op::Op;
use graphc_ir::ops::{
    CrossEntropy, CrossEntropyGrad, DropoutOp, EmbeddingGrad, EmbeddingOp, LabelRank, LogSoftmax,
    LogSoftmaxGrad, Normalize, NormalizeGrad, Pick, PickGrad, Softmax, SoftmaxGrad,
};

use super::{Case, each_shape, floats, indices, labels, positive};

pub fn cases() -> Vec<Case> {
    [softmaxes(), normalizations(), look_ups(), picks(), cross_entropies(), dropouts()]
        .into_iter()
        .flatten()
        .collect()
}

fn softmaxes() -> Vec<Case> {
    each_shape(|shape, complete| {
        let one = |op| Case { op, operands: vec![floats(shape)], complete };
        let two = |op| Case { op, operands: vec![floats(shape), floats(shape)], complete };
        let of_axis = |axis| {
            [
                one(Op::Softmax(Softmax { axis })),
                one(Op::LogSoftmax(LogSoftmax { axis })),
                two(Op::SoftmaxGrad(SoftmaxGrad { axis })),
                two(Op::LogSoftmaxGrad(LogSoftmaxGrad { axis })),
            ]
        };
        [of_axis(0), of_axis(shape.len() - 1)].into_iter().flatten().collect()
    })
}

fn normalizations() -> Vec<Case> {
    each_shape(|shape, complete| {
        let mut kept = shape.to_vec();
        kept[shape.len() - 1] = 1;
        let of = |center| {
            let normalize = Op::Normalize(Normalize { center, epsilon: 1e-3.into() });
            let gradient = Op::NormalizeGrad(NormalizeGrad { center });
            let operands = vec![floats(shape), positive(&kept), floats(shape)];
            [
                Case { op: normalize, operands: vec![floats(shape)], complete },
                Case { op: gradient, operands, complete },
            ]
        };
        [of(true), of(false)].into_iter().flatten().collect()
    })
}

fn look_ups() -> Vec<Case> {
    let embedding = |rows: usize, width: usize, ids: &[usize], complete| Case {
        op: Op::Embedding(EmbeddingOp {}),
        operands: vec![floats(&[rows, width]), indices(ids, rows)],
        complete,
    };
    let gradient = |rows: usize, width: usize, ids: &[usize], complete| Case {
        op: Op::EmbeddingGrad(EmbeddingGrad { rows }),
        operands: vec![indices(ids, rows), floats(&[ids, &[width]].concat())],
        complete,
    };
    let shapes: [(usize, usize, &[usize], bool); 5] = [
        (6, 4, &[8], true),
        (6, 2, &[2, 4], true),
        (7, 3, &[5], false),
        (3, 5, &[0], false),
        (5, 1, &[], false),
    ];
    shapes
        .into_iter()
        .flat_map(|(v, d, ids, complete)| {
            [embedding(v, d, ids, complete), gradient(v, d, ids, complete)]
        })
        .collect()
}

fn picks() -> Vec<Case> {
    each_shape(|shape, complete| {
        let (&classes, outer) = shape.split_last().expect("has a last dim");
        let of = |of, classes| Case {
            op: Op::Pick(Pick { classes: of }),
            operands: vec![floats(shape), labels(outer, classes)],
            complete,
        };
        let gradient = Case {
            op: Op::PickGrad(PickGrad { classes }),
            operands: vec![labels(outer, classes), floats(outer)],
            complete,
        };
        vec![of(None, classes), of(Some(but_one(classes)), but_one(classes)), gradient]
    })
}

/// Returns the number of classes where the last score is padding.
fn but_one(scores: usize) -> usize {
    (scores - 1).max(1)
}

fn cross_entropies() -> Vec<Case> {
    each_shape(|shape, complete| {
        let (&classes, outer) = shape.split_last().expect("has a last dim");
        let of = |smoothing: f64, classes, count| {
            let (smoothing, labels) = (smoothing.into(), || labels(outer, count));
            let gradient = vec![floats(shape), floats(outer), labels(), floats(outer)];
            [
                Case {
                    op: Op::CrossEntropy(CrossEntropy { smoothing, classes }),
                    operands: vec![floats(shape), labels()],
                    complete,
                },
                Case {
                    op: Op::CrossEntropyGrad(CrossEntropyGrad { smoothing, classes }),
                    operands: gradient,
                    complete,
                },
                Case {
                    op: Op::LabelRank(LabelRank { classes }),
                    operands: vec![floats(shape), labels(), floats(outer)],
                    complete,
                },
            ]
        };
        let all = [0.0, 0.1].map(|smoothing| {
            let padded = but_one(classes);
            [of(smoothing, None, classes), of(smoothing, Some(padded), padded)]
        });
        all.into_iter().flatten().flatten().collect()
    })
}

fn dropouts() -> Vec<Case> {
    each_shape(|shape, complete| {
        let of = |probability: f64, training| {
            let dropout = DropoutOp { probability: probability.into(), key: 9, training };
            Case { op: Op::Dropout(dropout), operands: vec![floats(shape)], complete }
        };
        vec![of(0.4, true), of(0.0, true), of(0.4, false)]
    })
}
