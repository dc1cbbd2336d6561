//! Cases of ops of neural networks: softmax, normalization, look-up, losses, dropout, steps of optimizers.

use graphc_ir::op::Op;
use graphc_ir::ops::{
    AdamUpdate, Blend, CrossEntropy, CrossEntropyGrad, Dropout, Embedding, EmbeddingGrad,
    LogSoftmax, LogSoftmaxGrad, LossScale, NonFinite, Normalize, NormalizeGrad, Pick, PickGrad,
    SgdUpdate, Softmax, SoftmaxGrad,
};

use super::{Case, Sample, floats, indices, integers, labels, not_finite, positive};

pub fn cases() -> Vec<Case> {
    [
        softmaxes(),
        normalizations(),
        look_ups(),
        picks(),
        cross_entropies(),
        dropouts(),
        updates(),
        scaling(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Shapes of a tensor with a lane of more than one element, and whether they are for completeness.
const SHAPES: [(&[usize], bool); 4] =
    [(&[4, 6], true), (&[5, 3], false), (&[2, 3, 4], false), (&[0, 3], false)];

fn each_shape(case: impl Fn(&[usize], bool) -> Vec<Case>) -> Vec<Case> {
    SHAPES.iter().flat_map(|&(shape, complete)| case(shape, complete)).collect()
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
        op: Op::Embedding(Embedding {}),
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
        vec![
            Case {
                op: Op::Pick(Pick {}),
                operands: vec![floats(shape), labels(outer, classes)],
                complete,
            },
            Case {
                op: Op::PickGrad(PickGrad { classes }),
                operands: vec![labels(outer, classes), floats(outer)],
                complete,
            },
        ]
    })
}

fn cross_entropies() -> Vec<Case> {
    each_shape(|shape, complete| {
        let (&classes, outer) = shape.split_last().expect("has a last dim");
        let gradient = vec![floats(shape), floats(outer), labels(outer, classes), floats(outer)];
        vec![
            Case {
                op: Op::CrossEntropy(CrossEntropy {}),
                operands: vec![floats(shape), labels(outer, classes)],
                complete,
            },
            Case { op: Op::CrossEntropyGrad(CrossEntropyGrad {}), operands: gradient, complete },
        ]
    })
}

fn dropouts() -> Vec<Case> {
    each_shape(|shape, complete| {
        let of = |probability: f64, training| {
            let dropout = Dropout { probability: probability.into(), key: 9, training };
            Case { op: Op::Dropout(dropout), operands: vec![floats(shape)], complete }
        };
        vec![of(0.4, true), of(0.0, true), of(0.4, false)]
    })
}

fn updates() -> Vec<Case> {
    let sgd = |momentum: f64, nesterov| {
        let (lr, weight_decay) = (0.1.into(), 0.01.into());
        Op::SgdUpdate(SgdUpdate { lr, momentum: momentum.into(), nesterov, weight_decay })
    };
    let adam = |decoupled| {
        Op::AdamUpdate(AdamUpdate {
            lr: 0.1.into(),
            beta1: 0.9.into(),
            beta2: 0.99.into(),
            epsilon: 1e-8.into(),
            weight_decay: 0.01.into(),
            decoupled,
        })
    };
    let shapes: [(&[usize], bool); 4] =
        [(&[4], true), (&[5, 3], false), (&[0, 3], false), (&[], false)];
    let of = |(shape, complete): (&[usize], bool)| {
        let case = |op, samples: &[fn(&[usize]) -> Sample]| Case {
            op,
            operands: samples.iter().map(|sample| sample(shape)).collect(),
            complete,
        };
        // Under loss scaling they take scalars besides.
        let scaled = |of: Case, scalars: usize| {
            let operands = of.operands.into_iter().chain((0..scalars).map(|_| positive(&[])));
            Case { operands: operands.collect(), ..of }
        };
        [
            case(sgd(0.0, false), &[floats, floats]),
            case(sgd(0.9, false), &[floats, floats, floats]),
            case(sgd(0.9, true), &[floats, floats, floats]),
            case(adam(false), &[floats, floats, floats, positive]),
            case(adam(true), &[floats, floats, floats, positive]),
            case(Op::Blend(Blend::of(0.9, 0.1)), &[floats, floats]),
            case(Op::Blend(Blend::of(1.0, 1.0)), &[integers, integers]),
            scaled(case(sgd(0.0, false), &[floats, floats]), 1),
            scaled(case(sgd(0.9, true), &[floats, floats, floats]), 1),
            scaled(case(adam(true), &[floats, floats, floats, positive]), 2),
        ]
    };
    shapes.into_iter().flat_map(of).collect()
}

fn scaling() -> Vec<Case> {
    let scaling = LossScale { growth: 2.0.into(), backoff: 0.5.into(), interval: 3 };
    let numbers = (0..4).map(|_| positive(&[])).collect();
    let counts = each_shape(|shape, complete| {
        let op = Op::NonFinite(NonFinite {});
        vec![Case { op, operands: vec![not_finite(shape)], complete }]
    });
    [vec![Case::complete(Op::LossScale(scaling), numbers)], counts].into_iter().flatten().collect()
}
