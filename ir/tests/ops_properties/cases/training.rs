//! Cases of ops of training: steps of optimizers, the scale of the loss, clipping.

use graphc_ir::learning_rate::LearningRate;
use graphc_ir::op::Op;
use graphc_ir::ops::{
    AdamUpdate, Blend, ClipFactor, LambDirection, LambUpdate, LossScale, NonFinite, RmspropUpdate,
    SgdUpdate, SkipStep, SquareSum,
};
use graphc_ir::scalar::Scalar;

use super::{Case, Sample, each_shape, floats, integers, not_finite, positive};

pub fn cases() -> Vec<Case> {
    [updates(), scaling(), clipping()].into_iter().flatten().collect()
}

/// A learning rate that falls with the step.
fn falling() -> LearningRate {
    LearningRate { base: Scalar(0.1), schedule: "linear:8".parse().expect("a schedule") }
}

fn updates() -> Vec<Case> {
    let sgd = |momentum: f64, nesterov| {
        let (lr, momentum, weight_decay) = (falling(), momentum.into(), 0.01.into());
        Op::SgdUpdate(SgdUpdate { lr, momentum, nesterov, weight_decay, clip: None })
    };
    let adam = |decoupled| {
        Op::AdamUpdate(AdamUpdate {
            lr: falling(),
            beta1: 0.9.into(),
            beta2: 0.99.into(),
            epsilon: 1e-8.into(),
            weight_decay: 0.01.into(),
            decoupled,
            clip: Some(1.0.into()),
        })
    };
    let rmsprop = |centered, momentum: f64| {
        Op::RmspropUpdate(RmspropUpdate {
            lr: falling(),
            alpha: 0.9.into(),
            epsilon: 1e-8.into(),
            weight_decay: 0.01.into(),
            momentum: momentum.into(),
            centered,
            clip: None,
        })
    };
    let direction = Op::LambDirection(LambDirection {
        beta1: 0.9.into(),
        beta2: 0.99.into(),
        epsilon: 1e-6.into(),
        weight_decay: 0.01.into(),
        clip: None,
    });
    let lamb = Op::LambUpdate(LambUpdate { lr: falling() });
    let shapes: [(&[usize], bool); 4] =
        [(&[4], true), (&[5, 3], false), (&[0, 3], false), (&[], false)];
    let of = |(shape, complete): (&[usize], bool)| {
        let case = |op, samples: &[fn(&[usize]) -> Sample]| Case {
            op,
            operands: samples.iter().map(|sample| sample(shape)).collect(),
            complete,
        };
        // Scalars besides: factors of the gradient, a count of updates or a limit of the rate, sums of squares.
        let scaled = |of: Case, scalars: usize| {
            let operands = of.operands.into_iter().chain((0..scalars).map(|_| positive(&[])));
            Case { operands: operands.collect(), ..of }
        };
        [
            case(sgd(0.0, false), &[floats, floats]),
            case(sgd(0.9, false), &[floats, floats, floats]),
            case(sgd(0.9, true), &[floats, floats, floats]),
            case(adam(false), &[floats, floats, floats, positive]),
            case(Op::Blend(Blend::with_decay(0.9, 0.1)), &[floats, floats]),
            case(Op::Blend(Blend::with_decay(1.0, 1.0)), &[integers, integers]),
            scaled(case(Op::Blend(Blend::with_decay(0.9, 0.1)), &[floats, floats]), 2),
            scaled(case(Op::Blend(Blend::with_decay(0.0, 1.0)), &[integers, integers]), 1),
            case(adam(true), &[floats, floats, floats, positive]),
            scaled(case(sgd(0.0, false), &[floats, floats]), 1),
            scaled(case(sgd(0.0, false), &[floats, floats]), 2),
            scaled(case(sgd(0.9, true), &[floats, floats, floats]), 1),
            scaled(case(adam(true), &[floats, floats, floats, positive]), 1),
            scaled(case(adam(true), &[floats, floats, floats, positive]), 2),
            case(rmsprop(false, 0.0), &[floats, floats, positive]),
            case(rmsprop(true, 0.0), &[floats, floats, positive, floats]),
            case(rmsprop(true, 0.9), &[floats, floats, positive, floats, floats]),
            scaled(case(rmsprop(false, 0.9), &[floats, floats, positive, floats]), 1),
            case(direction.clone(), &[floats, floats, floats, positive]),
            scaled(case(direction.clone(), &[floats, floats, floats, positive]), 2),
            scaled(case(lamb.clone(), &[floats, floats]), 2),
        ]
    };
    shapes.into_iter().flat_map(of).collect()
}

fn scaling() -> Vec<Case> {
    let scaling =
        LossScale { growth: 2.0.into(), backoff: 0.5.into(), interval: 3, floor: 1.0.into() };
    let numbers = |count: usize| (0..count).map(|_| positive(&[])).collect();
    let counts = each_shape(|shape, complete| {
        let op = Op::NonFinite(NonFinite {});
        vec![Case { op, operands: vec![not_finite(shape)], complete }]
    });
    let of_scale = [4, 5].map(|count| Case::complete(Op::LossScale(scaling), numbers(count)));
    let skip = Case::complete(Op::SkipStep(SkipStep {}), numbers(2));
    of_scale.into_iter().chain([skip]).chain(counts).collect()
}

fn clipping() -> Vec<Case> {
    let factor = |count: usize| {
        let op = Op::ClipFactor(ClipFactor { max: 0.5.into() });
        Case::complete(op, (0..count).map(|_| positive(&[])).collect())
    };
    let sums = each_shape(|shape, complete| {
        let op = Op::SquareSum(SquareSum {});
        vec![Case { op, operands: vec![floats(shape)], complete }]
    });
    [factor(1), factor(2)].into_iter().chain(sums).collect()
}
