//! Steps of optimizers, states, and the numbers of a step.

use graphc_ir::learning_rate::LearningRate;
use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::DType;

use super::super::common::{Random, ordinary};
use super::{Example, Examples, FLOATS, f32s, ty};

/// Types of variables and their gradients.
const PAIRS: [[DType; 2]; 5] = [
    [DType::F32, DType::F32],
    [DType::BF16, DType::BF16],
    [DType::BF16, DType::F32],
    [DType::F16, DType::F16],
    [DType::F16, DType::F32],
];

pub fn examples() -> Vec<Example> {
    let to = &mut Examples::new(7);
    to.placed = false;
    optimizers(to, PAIRS[0], &[3, 97]);
    plain(to, PAIRS[0], &[2, 1100]);
    plain(to, PAIRS[0], &[0]);
    for pair in PAIRS {
        plain(to, pair, &[3, 96]);
    }
    for dtype in FLOATS {
        sums(to, dtype);
    }
    scales(to);
    states(to);
    std::mem::take(&mut to.all)
}

/// Makes examples of each optimizer in one form.
pub fn few() -> Vec<Example> {
    let to = &mut Examples::new(8);
    to.placed = false;
    plain(to, PAIRS[0], &[3, 97]);
    std::mem::take(&mut to.all)
}

/// A rate that is another one at the step of the checks.
fn falling() -> LearningRate {
    LearningRate {
        base: Scalar(0.1),
        schedule: "warmup:2 cosine:8,0.1".parse().expect("a schedule"),
    }
}

/// The types of an update, with scalars, and what fills them: squares are positive.
fn update(
    to: &mut Examples,
    op: Op,
    [w, g]: [DType; 2],
    (shape, states): (&[usize], usize),
    (square, scalars): (usize, &[f64]),
) {
    let mut types = vec![ty(w, shape), ty(g, shape)];
    types.extend(vec![f32s(shape); states]);
    types.extend(scalars.iter().map(|_| f32s(&[])));
    let fill = &mut |random: &mut Random, i: usize, dtype: DType| match i {
        i if i >= 2 + states => scalars[i - 2 - states],
        i if i == square => ordinary(random, i, dtype).powi(2) + 1.0,
        i => ordinary(random, i, dtype) * if i > 2 { 0.1 } else { 1.0 },
    };
    to.both_filled(op, &types, 4e-6, fill);
}

pub fn optimizers(to: &mut Examples, pair: [DType; 2], shape: &[usize]) {
    let (weight_decay, clip) = (Scalar(0.01), Some(Scalar(0.75)));
    for (momentum, nesterov, scalars) in [
        (0.0, false, &[][..]),
        (0.0, false, &[0.5, 0.03]),
        (0.9, false, &[0.25]),
        (0.9, true, &[0.0]),
    ] {
        let momentum = Scalar(momentum);
        let op = SgdUpdate { lr: falling(), momentum, nesterov, weight_decay, clip };
        let states = usize::from(!momentum.is_zero());
        update(to, Op::SgdUpdate(op), pair, (shape, states), (9, scalars));
    }
    let (beta1, beta2, epsilon) = (Scalar(0.9), Scalar(0.999), Scalar(1e-8));
    for (decoupled, scalars) in
        [(true, &[][..]), (false, &[]), (true, &[0.5]), (false, &[0.25, 7.0]), (true, &[0.0, 3.0])]
    {
        let clip = clip.filter(|_| decoupled);
        let lr = falling();
        let op = AdamUpdate { lr, beta1, beta2, epsilon, weight_decay, decoupled, clip };
        update(to, Op::AdamUpdate(op), pair, (shape, 2), (3, scalars));
    }
    for (centered, momentum, scalars) in
        [(false, 0.0, &[][..]), (true, 0.9, &[0.25]), (true, 0.0, &[0.0])]
    {
        let (alpha, momentum) = (Scalar(0.9), Scalar(momentum));
        let lr = falling();
        let op = RmspropUpdate { lr, alpha, epsilon, weight_decay, momentum, centered, clip };
        let states = op.count_tensors() - 2;
        update(to, Op::RmspropUpdate(op), pair, (shape, states), (2, scalars));
    }
    for scalars in [&[][..], &[0.25], &[0.5, 7.0], &[0.0, 3.0]] {
        let op = LambDirection { beta1, beta2, epsilon, weight_decay, clip };
        update(to, Op::LambDirection(op), pair, (shape, 2), (3, scalars));
    }
    for sums in [[9.0, 0.25], [0.0, 4.0]] {
        let op = Op::LambUpdate(LambUpdate { lr: falling() });
        update(to, op, [pair[0], DType::F32], (shape, 0), (9, &sums));
    }
}

/// Optimizers in one form each.
pub fn plain(to: &mut Examples, pair: [DType; 2], shape: &[usize]) {
    let lr = falling();
    let op = SgdUpdate { lr: lr.clone(), momentum: Scalar(0.9), ..SgdUpdate::default() };
    update(to, Op::SgdUpdate(op), pair, (shape, 1), (9, &[0.5]));
    let (beta1, beta2, epsilon) = (Scalar(0.9), Scalar(0.999), Scalar(1e-6));
    let op = AdamUpdate { lr: lr.clone(), beta1, beta2, epsilon, ..AdamUpdate::default() };
    update(to, Op::AdamUpdate(op), pair, (shape, 2), (3, &[]));
    let op = RmspropUpdate { lr, alpha: Scalar(0.9), epsilon, ..RmspropUpdate::default() };
    update(to, Op::RmspropUpdate(op), pair, (shape, 1), (2, &[]));
    let op = LambDirection { beta1, beta2, epsilon, ..LambDirection::default() };
    update(to, Op::LambDirection(op), pair, (shape, 2), (3, &[0.0]));
    let op = Op::LambUpdate(LambUpdate { lr: falling() });
    update(to, op, [pair[0], DType::F32], (shape, 0), (9, &[9.0, 0.25]));
}

fn sums(to: &mut Examples, dtype: DType) {
    for shape in [&[5, 67][..], &[40_001], &[0]] {
        to.both(Op::SquareSum(SquareSum {}), &[ty(dtype, shape)], 1e-5);
        let fill = &mut |random: &mut Random, i: usize, dtype: DType| match random.below(9) {
            0 => f64::INFINITY,
            1 => f64::NAN,
            2 => f64::NEG_INFINITY,
            _ => ordinary(random, i, dtype),
        };
        to.both_filled(Op::NonFinite(NonFinite {}), &[ty(dtype, shape)], 0.0, fill);
    }
}

/// An op of numbers alone.
fn scalars(to: &mut Examples, op: Op, numbers: &[f64]) {
    let fill = &mut |_: &mut Random, i: usize, _: DType| numbers[i];
    to.filled(&[1], op, &vec![f32s(&[]); numbers.len()], 1e-7, fill);
}

fn scales(to: &mut Examples) {
    for numbers in
        [&[25.0][..], &[1e-4], &[64.0, 0.25], &[64.0, 0.0], &[f64::INFINITY], &[f64::NAN]]
    {
        scalars(to, Op::ClipFactor(ClipFactor { max: Scalar(1.5) }), numbers);
    }
    let scaling =
        LossScale { growth: Scalar(2.0), backoff: Scalar(0.5), interval: 2, floor: Scalar(1.0) };
    for numbers in [
        &[1024.0, 0.0, 3.0, 0.0][..],
        &[1024.0, 1.0, 3.0, 0.0],
        &[1024.0, 1.0, 3.0, 2.0],
        &[1024.0, 1.0, 3.0, 0.0, 1.0],
        &[1024.0, 1.0, 3.0, 0.0, 0.0],
        &[3e38, 1.0, 3.0, 0.0],
    ] {
        scalars(to, Op::LossScale(scaling), numbers);
    }
    for numbers in [[1.0, 0.0], [1.0, 2.0], [0.0, f64::NAN]] {
        scalars(to, Op::SkipStep(SkipStep {}), &numbers);
    }
}

fn states(to: &mut Examples) {
    let others = [[DType::F32, DType::BF16], [DType::F32, DType::F16]];
    for [state, x] in PAIRS.into_iter().chain(others) {
        let types = [ty(state, &[3, 97]), ty(x, &[3, 97])];
        for (decay, rate) in [(0.9, 0.1), (0.0, 1.0)] {
            to.both(Op::Blend(Blend::with_decay(decay, rate)), &types, 1e-6);
        }
    }
    let types = [f32s(&[1025]), f32s(&[1025])];
    // What is replaced is not read: it may be no number.
    let fill = &mut |random: &mut Random, i: usize, dtype: DType| match i {
        0 => f64::NAN,
        i => ordinary(random, i, dtype),
    };
    to.both_filled(Op::Blend(Blend::with_decay(0.0, 0.5)), &types, 1e-6, fill);
    for numbers in [&[1.0][..], &[0.0], &[1.0, 1.0], &[1.0, 2.0]] {
        guarded(
            to,
            Blend { starts: numbers.len() > 1, ..Blend::with_decay(0.9, 0.1) },
            DType::F32,
            numbers,
        );
    }
    for dtype in [DType::I64, DType::I32, DType::U8, DType::Bool] {
        guarded(to, Blend::with_decay(0.0, 1.0), dtype, &[1.0]);
        guarded(to, Blend::with_decay(0.0, 1.0), dtype, &[0.0, 3.0]);
        if dtype != DType::Bool {
            guarded(to, Blend::with_decay(1.0, 1.0), dtype, &[]);
        }
    }
}

fn guarded(to: &mut Examples, op: Blend, dtype: DType, numbers: &[f64]) {
    let mut types = vec![ty(dtype, &[7, 5]); 2];
    types.extend(vec![f32s(&[]); numbers.len()]);
    let fill = &mut |random: &mut Random, i: usize, dtype: DType| match (i, dtype) {
        (2.., _) => numbers[i - 2],
        (_, DType::F32) => ordinary(random, i, dtype),
        (_, DType::Bool) => random.below(2) as f64,
        (_, _) => random.below(200) as f64,
    };
    to.both_filled(Op::Blend(op), &types, 1e-6, fill);
}
