//! The kernels of training as practice has it, of steps of optimizers with schedules and clipping, norms and accuracies, compute what
//! their ops' oracles compute, on random shards of random layouts.

use crate::common::{Case, Memory, Random, ordinary};
use crate::drawn::{f32s, repeat};
use graphc_ir::learning_rate::LearningRate;
use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

/// A rate that is another one at the step of the checks.
fn falling() -> LearningRate {
    LearningRate {
        base: Scalar(0.1),
        schedule: "warmup:2 cosine:8,0.1".parse().expect("a schedule"),
    }
}

#[test]
fn updates_follow_the_schedule_and_clip() {
    repeat(30, |random| {
        let x = f32s(&random.shape(2));
        let clip = Some(Scalar(0.75));
        for momentum in [0.0, 0.9] {
            let momentum = Scalar(momentum);
            let op = SgdUpdate { lr: falling(), momentum, clip, ..SgdUpdate::default() };
            let count = if momentum.is_zero() { 2 } else { 3 };
            let types = vec![x.clone(); count];
            Case::random(Op::SgdUpdate(op), &types, random, &mut ordinary).check(1e-6);
        }
        let (beta1, beta2, epsilon) = (Scalar(0.9), Scalar(0.999), Scalar(1e-8));
        let op = AdamUpdate {
            lr: falling(),
            beta1,
            beta2,
            epsilon,
            weight_decay: Scalar(0.1),
            decoupled: true,
            clip,
        };
        // With the factor of a norm, and no count of updates.
        let types = [vec![x; 4], vec![f32s(&[])]].concat();
        let fill = &mut |random: &mut Random, i: usize, dtype: DType| match i {
            3 => ordinary(random, i, dtype).powi(2),
            4 => 0.5,
            i => ordinary(random, i, dtype),
        };
        Case::random(Op::AdamUpdate(op), &types, random, fill).check(4e-6);
    });
}

#[test]
fn rmsprop_in_all_its_forms() {
    repeat(20, |random| {
        let x = f32s(&random.shape(2));
        for (centered, momentum) in [(false, 0.0), (true, 0.0), (false, 0.9), (true, 0.9)] {
            let op = RmspropUpdate {
                lr: falling(),
                alpha: Scalar(0.9),
                epsilon: Scalar(1e-8),
                weight_decay: Scalar(0.01),
                momentum: Scalar(momentum),
                centered,
                clip: Some(Scalar(2.0)),
            };
            let count = op.count_tensors();
            for factor in [None, Some(0.25), Some(0.0)] {
                let mut types = vec![x.clone(); count];
                types.extend(factor.map(|_| f32s(&[])));
                // The square is above that of the mean, as those of gradients are.
                let fill = &mut |random: &mut Random, i: usize, dtype: DType| match i {
                    2 => ordinary(random, i, dtype).powi(2) + 1.0,
                    3 if centered => ordinary(random, i, dtype) * 0.1,
                    i if i == count => factor.unwrap_or_default(),
                    i => ordinary(random, i, dtype),
                };
                Case::random(Op::RmspropUpdate(op.clone()), &types, random, fill).check(4e-6);
            }
        }
    });
}

#[test]
fn lamb_finds_its_direction_and_goes_along() {
    repeat(30, |random| {
        let x = f32s(&random.shape(2));
        let op = LambDirection {
            beta1: Scalar(0.9),
            beta2: Scalar(0.999),
            epsilon: Scalar(1e-6),
            weight_decay: Scalar(0.01),
            clip: Some(Scalar(2.0)),
        };
        for scalars in [&[][..], &[0.25], &[0.5, 7.0], &[0.0, 3.0]] {
            let mut types = vec![x.clone(); 4];
            types.extend(scalars.iter().map(|_| f32s(&[])));
            let fill = &mut |random: &mut Random, i: usize, dtype: DType| match i {
                3 => ordinary(random, i, dtype).powi(2),
                i if i > 3 => scalars[i - 4],
                i => ordinary(random, i, dtype),
            };
            Case::random(Op::LambDirection(op.clone()), &types, random, fill).check(4e-6);
        }
        let types = [x.clone(), x, f32s(&[]), f32s(&[])];
        for sums in [[9.0, 0.25], [0.0, 4.0], [4.0, 0.0]] {
            let fill = &mut |random: &mut Random, i: usize, dtype: DType| match i {
                2 | 3 => sums[i - 2],
                i => ordinary(random, i, dtype),
            };
            let op = Op::LambUpdate(LambUpdate { lr: falling() });
            Case::random(op, &types, random, fill).check(2e-6);
        }
    });
}

#[test]
fn squares_are_added_up() {
    repeat(30, |random| {
        let x = f32s(&random.shape(2));
        Case::random(Op::SquareSum(SquareSum {}), &[x], random, &mut ordinary).check(1e-6);
    });
    // More than a chunk, with the greatest element at its end.
    let op = Op::SquareSum(SquareSum {});
    let mut case = Case::random(op, &[f32s(&[])], &mut Random::new(3), &mut ordinary);
    let mut numbers = vec![0.5; 9001];
    numbers[9000] = 100.0;
    let ty = f32s(&[9001]);
    case.operands[0] = (graphc_ir::op::Region::whole(&ty), Memory::of(DType::F32, &numbers));
    case.check(1e-6);
}

#[test]
fn the_factor_of_a_norm() {
    let op = |max: f64| Op::ClipFactor(ClipFactor { max: max.into() });
    for (sum, factor) in [
        (25.0, None),
        (1e-4, None),
        (0.0, None),
        (64.0, Some(0.25)),
        (64.0, Some(0.0)),
        (f64::INFINITY, None),
        (f64::INFINITY, Some(0.0)),
        (f64::NAN, None),
    ] {
        let types = vec![f32s(&[]); 1 + usize::from(factor.is_some())];
        let fill = &mut |_: &mut Random, i: usize, _: DType| match i {
            0 => sum,
            _ => factor.unwrap_or_default(),
        };
        Case::random(op(1.5), &types, &mut Random::new(1), fill).check(1e-7);
    }
}

/// Labels in `0..classes`, some of them ignored.
fn label(random: &mut Random, classes: usize) -> f64 {
    if random.below(5) == 0 { IGNORED_LABEL as f64 } else { random.below(classes) as f64 }
}

#[test]
fn labels_have_their_ranks() {
    repeat(60, |random| {
        let rank = random.below(3);
        let outer = random.shape(rank);
        let classes = random.extent().max(1);
        // The last are padding.
        let count = 1 + random.below(classes);
        let x = f32s(&[outer.as_slice(), &[classes]].concat());
        let types = [x, TensorType::new(DType::I64, outer.as_slice()), f32s(&outer)];
        // Few values, so that many are equal.
        let fill = &mut |random: &mut Random, i: usize, _: DType| match i {
            1 => label(random, count),
            _ if random.below(9) == 0 => f64::NAN,
            _ => random.below(4) as f64,
        };
        let op = Op::LabelRank(LabelRank { classes: Some(count) });
        Case::random(op, &types, random, fill).check(0.0);
    });
}

#[test]
fn smoothed_losses_and_their_gradients() {
    repeat(40, |random| {
        let rank = random.below(3);
        let outer = random.shape(rank);
        let classes = random.extent().max(1);
        let x = f32s(&[outer.as_slice(), &[classes]].concat());
        let labels = TensorType::new(DType::I64, outer.as_slice());
        let (smoothing, count) = (Scalar(0.1), 1 + random.below(classes));
        let fill = |random: &mut Random, i: usize, dtype: DType| match dtype {
            DType::I64 => label(random, count),
            dtype => ordinary(random, i, dtype),
        };
        let op = Op::CrossEntropy(CrossEntropy { smoothing, classes: Some(count) });
        let types = [x.clone(), labels.clone()];
        Case::random(op, &types, random, &mut fill.clone()).check(4e-6);
        let op = Op::CrossEntropyGrad(CrossEntropyGrad { smoothing, classes: Some(count) });
        let types = [x, f32s(&outer), labels, f32s(&outer)];
        Case::random(op, &types, random, &mut fill.clone()).check(1e-5);
    });
}
