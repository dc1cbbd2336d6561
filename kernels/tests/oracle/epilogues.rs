//! Convolutions with a chain behind them give the bits of the convolution and the chain one after the other, on any number of threads.

use crate::common::{Memory, Random, ordinary, pool};
use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::{Op, Region};
use graphc_ir::ops::{Binary, BinaryFunction, Cast, Convolution, Unary, UnaryFunction, Window};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::{
    KernelContext, Prepared, Scratch, ThreadPool, View, ViewMut, prepare_fused, prepare_op,
};
use graphc_plan::{FusedArg, FusedOp, FusedStep};

use FusedArg::{Operand as X, Step as S};

/// A convolution of images `[n, h, w, c]` with kernels `[o, i, kh, kw]`.
struct Setting {
    x: [usize; 4],
    k: [usize; 4],
    window: Window,
    groups: usize,
}

fn setting(x: [usize; 4], k: [usize; 4], stride: usize, pad: usize, groups: usize) -> Setting {
    let window = Window { strides: [stride; 2], pads: [pad; 4], dilations: [1; 2] };
    Setting { x, k, window, groups }
}

/// Few and many images, images that no cache holds, kernels that none holds, groups, and images of few channels.
fn settings() -> Vec<Setting> {
    vec![
        setting([2, 5, 5, 3], [4, 3, 3, 3], 1, 1, 1),
        setting([1, 4, 4, 16], [24, 16, 1, 1], 1, 0, 1),
        setting([64, 8, 8, 16], [96, 16, 1, 1], 1, 0, 1),
        setting([33, 9, 7, 24], [40, 24, 3, 3], 2, 1, 1),
        setting([3, 70, 66, 17], [31, 17, 3, 3], 1, 1, 1),
        setting([2, 120, 90, 3], [64, 3, 7, 7], 2, 3, 1),
        setting([300, 1, 1, 300], [330, 300, 1, 1], 1, 0, 1),
        setting([70, 4, 4, 64], [160, 64, 3, 3], 1, 1, 1),
        setting([40, 8, 8, 32], [48, 16, 3, 3], 1, 1, 2),
        setting([40, 10, 10, 48], [48, 1, 3, 3], 1, 1, 48),
        setting([90, 7, 7, 20], [20, 1, 3, 3], 2, 1, 20),
        setting([0, 8, 8, 16], [8, 16, 1, 1], 1, 0, 1),
    ]
}

fn unary(function: UnaryFunction) -> Op {
    Op::Unary(Unary { function })
}

fn binary(function: BinaryFunction) -> Op {
    Op::Binary(Binary { function })
}

/// clip(y slope + offset) + other, where y is what the first step gives; the convolution itself is a result where `kept`.
fn chain(head: Op, kept: bool) -> FusedOp {
    let step = |op: Op, args: &[FusedArg]| FusedStep { op, args: args.to_vec() };
    let clip = UnaryFunction::Clip { low: Scalar(0.0), high: Scalar(6.0) };
    FusedOp {
        steps: vec![
            step(head, &[X(0), X(1)]),
            step(binary(BinaryFunction::Mul), &[S(0), X(2)]),
            step(binary(BinaryFunction::Add), &[S(1), X(3)]),
            step(unary(clip), &[S(2)]),
            step(binary(BinaryFunction::Add), &[S(3), X(4)]),
        ],
        outputs: if kept { vec![4, 0] } else { vec![4] },
    }
}

/// Returns the chain without its convolution, whose result is operand 0.
fn rest(head: &FusedOp) -> FusedOp {
    let arg = |arg: &FusedArg| match *arg {
        S(0) => X(0),
        S(step) => S(step - 1),
        X(operand) => X(operand - 1),
    };
    let step = |step: &FusedStep| FusedStep {
        op: step.op.clone(),
        args: step.args.iter().map(arg).collect(),
    };
    FusedOp { steps: head.steps[1..].iter().map(step).collect(), outputs: vec![3] }
}

fn launch(
    prepared: &Prepared,
    operands: &[&(Region, Memory)],
    results: &[TensorType],
    (threads, pool): (usize, Option<&ThreadPool>),
) -> Vec<(Region, Memory)> {
    let mut made: Vec<(Region, Memory)> = results
        .iter()
        .map(|ty| (Region::whole(ty), Memory::of(ty.dtype, &vec![7.0; ty.elements()])))
        .collect();
    let views: Vec<View<'_>> =
        operands.iter().map(|(region, memory)| memory.view(region)).collect();
    let mut out: Vec<ViewMut<'_>> =
        made.iter_mut().map(|(region, memory)| memory.view_mut(region)).collect();
    let mut scratch = Scratch::new();
    let mut cx =
        KernelContext { seed: 0, step: 0, rate: None, threads, pool, scratch: &mut scratch };
    prepared.launch(&views, &mut out, &mut cx).unwrap();
    drop(out);
    made
}

fn operands(types: &[TensorType], random: &mut Random) -> Vec<(Region, Memory)> {
    let memory = |ty: &TensorType, random: &mut Random| {
        let data: Vec<f64> = (0..ty.elements()).map(|_| ordinary(random, 0, ty.dtype)).collect();
        (Region::whole(ty), Memory::of(ty.dtype, &data))
    };
    types.iter().map(|ty| memory(ty, random)).collect()
}

fn check(setting: &Setting, dtype: DType, kept: bool) {
    let Setting { x, k, window, groups } = *setting;
    let head = Op::Convolution(Convolution { window, groups, channels_last: true });
    let mut types = vec![TensorType::new(dtype, x), TensorType::new(dtype, k)];
    let y = head.infer_types(&types.iter().collect::<Vec<_>>()).unwrap().remove(0);
    let row = TensorType::new(dtype, [k[0]]);
    types.extend([row.clone(), row, y.clone()]);
    let operands = operands(&types, &mut Random::new(8));
    let all: Vec<&(Region, Memory)> = operands.iter().collect();
    let fused = chain(head.clone(), kept);
    let results = vec![y.clone(); fused.outputs.len()];
    let whole = prepare_fused(&fused, &types, &results, DeviceKind::Cpu).unwrap();
    let first = prepare_op(&head, &types[..2], std::slice::from_ref(&y), DeviceKind::Cpu).unwrap();
    let of_rest = [std::slice::from_ref(&y), &types[2..]].concat();
    let one = std::slice::from_ref(&y);
    let then = prepare_fused(&rest(&fused), &of_rest, one, DeviceKind::Cpu).unwrap();
    let alone = launch(&first, &all[..2], one, (1, None)).remove(0);
    let after = [&[&alone], &all[2..]].concat();
    let mut expected = launch(&then, &after, one, (1, None));
    expected.extend(kept.then_some(alone));
    for threads in 1..4 {
        let pool = (threads > 1).then(|| pool(threads));
        let found = launch(&whole, &all, &results, (threads, pool.as_ref()));
        for (found, expected) in found.iter().zip(&expected) {
            let same = found.1.values() == expected.1.values();
            assert!(same, "{dtype} {x:?} {k:?} on {threads} threads, kept: {kept}");
        }
    }
}

#[test]
fn they_give_the_bits_of_one_after_the_other() {
    for setting in settings() {
        check(&setting, DType::F32, false);
        check(&setting, DType::F32, true);
    }
}

#[test]
fn they_are_there_for_halves() {
    for setting in &settings()[..4] {
        check(setting, DType::BF16, false);
        check(setting, DType::F16, true);
    }
}

#[test]
fn what_has_no_place_for_the_convolution_is_refused() {
    let window = Window { strides: [1; 2], pads: [0; 4], dilations: [1; 2] };
    let head = Op::Convolution(Convolution { window, groups: 1, channels_last: true });
    let types = [[2, 4, 4, 8], [8, 8, 1, 1]].map(|shape| TensorType::new(DType::BF16, shape));
    let wide = [TensorType::new(DType::F32, [2, 4, 4, 8])];
    let cast = |arg| FusedStep { op: Op::Cast(Cast { dtype: DType::F32 }), args: vec![arg] };
    let convolve = |args: &[FusedArg]| FusedStep { op: head.clone(), args: args.to_vec() };
    let refused = |steps: Vec<FusedStep>| {
        let fused = FusedOp { steps, outputs: vec![1] };
        prepare_fused(&fused, &types, &wide, DeviceKind::Cpu).unwrap_err().to_string()
    };
    assert!(refused(vec![convolve(&[X(0), X(1)]), cast(S(0))]).contains("no result"));
    assert!(refused(vec![cast(X(0)), convolve(&[S(0), X(1)])]).contains("another step"));
    assert!(refused(vec![convolve(&[X(0), X(5)]), cast(S(0))]).contains("no operand"));
}
