//! Chains that end in sums and means: against the oracle of their steps, and with the same bits on any number of threads.

use crate::common::{Memory, Random, ordinary, pool};
use graphc_ir::array::Array;
use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::{EvalContext, Op, Operand, Region};
use graphc_ir::ops::*;
use graphc_ir::shard::Rect;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::{KernelContext, Scratch, ThreadPool, View, ViewMut, prepare_fused};
use graphc_plan::{FusedArg, FusedOp, FusedStep};

type Value = (Region, Array);

/// Builds the sums of the backward pass of normalization and relu. Its operands are (dy, y, x, mean, 0). It gives the gradient that passes,
/// its sum, the mean of its products with x - mean, and the sum of x.
fn chain(axes: &[usize], keep_dims: bool) -> FusedOp {
    use FusedArg::{Operand as X, Step as S};
    let step = |op: Op, args: &[FusedArg]| FusedStep { op, args: args.to_vec() };
    let binary = |function| Op::Binary(Binary { function });
    let reduce = |function| Op::Reduce(Reduce { function, axes: axes.to_vec(), keep_dims });
    let cast = || Op::Cast(Cast { dtype: DType::F32 });
    FusedOp {
        steps: vec![
            step(binary(BinaryFunction::Greater), &[X(1), X(4)]),
            step(Op::Where(Where {}), &[S(0), X(0), X(4)]),
            step(cast(), &[S(1)]),
            step(reduce(ReduceFunction::Sum), &[S(2)]),
            step(cast(), &[X(2)]),
            step(binary(BinaryFunction::Sub), &[S(4), X(3)]),
            step(binary(BinaryFunction::Mul), &[S(2), S(5)]),
            step(reduce(ReduceFunction::Mean), &[S(6)]),
            step(reduce(ReduceFunction::Sum), &[X(2)]),
        ],
        outputs: vec![1, 3, 7, 8],
    }
}

/// Returns half of a tensor of this shape, cut along the first dim, so that means divide by more than what is here.
fn half_of(dtype: DType, shape: &[usize]) -> Region {
    let mut global = shape.to_vec();
    let mut origin = vec![0; shape.len()];
    if let (Some(extent), Some(first)) = (global.first_mut(), origin.first_mut()) {
        *first = *extent;
        *extent *= 2;
    }
    Region { dtype, global, rect: Rect { origin, extent: shape.to_vec() } }
}

/// The values of all steps by the oracle of each, unrounded, over a tensor whose shard this is.
fn by_oracle(op: &FusedOp, operands: &[Value]) -> Vec<Value> {
    let mut steps: Vec<Value> = Vec::new();
    for step in &op.steps {
        let args: Vec<&Value> = step
            .args
            .iter()
            .map(|arg| match *arg {
                FusedArg::Operand(index) => &operands[index],
                FusedArg::Step(index) => &steps[index],
            })
            .collect();
        let infer = |shape: fn(&Region) -> &Vec<usize>| {
            let types: Vec<TensorType> = args
                .iter()
                .map(|arg| TensorType::new(arg.0.dtype, shape(&arg.0).clone()))
                .collect();
            step.op.infer_types(&types.iter().collect::<Vec<_>>()).expect("it fits").remove(0)
        };
        let (part, whole) = (infer(|region| &region.rect.extent), infer(|region| &region.global));
        let origin =
            whole.shape.iter().zip(&part.shape).map(|(whole, part)| whole - part).collect();
        let rect = Rect { origin, extent: part.shape };
        let region = Region { dtype: part.dtype, global: whole.shape, rect };
        let args: Vec<Operand<'_>> =
            args.iter().map(|(region, array)| Operand { array, region }).collect();
        let cx = EvalContext::default();
        let value = step.op.operation().evaluate(&args, std::slice::from_ref(&region), &cx);
        steps.push((region, value.expect("it is computed").remove(0)));
    }
    op.outputs.iter().map(|&output| steps[output].clone()).collect()
}

fn run(
    op: &FusedOp,
    operands: &[(Region, Memory)],
    results: &[Region],
    pool: Option<&ThreadPool>,
) -> Vec<Memory> {
    let types = |regions: &mut dyn Iterator<Item = &Region>| -> Vec<TensorType> {
        regions.map(|r| TensorType::new(r.dtype, r.rect.extent.clone())).collect()
    };
    let of_operands = types(&mut operands.iter().map(|operand| &operand.0));
    let call = prepare_fused(op, &of_operands, &types(&mut results.iter()), DeviceKind::Cpu);
    let blank = |region: &Region| Memory::of(region.dtype, &vec![7.0; region.rect.elements()]);
    let mut found: Vec<Memory> = results.iter().map(blank).collect();
    let views: Vec<View<'_>> =
        operands.iter().map(|(region, memory)| memory.view(region)).collect();
    let mut out: Vec<ViewMut<'_>> =
        found.iter_mut().zip(results).map(|(memory, region)| memory.view_mut(region)).collect();
    let threads = pool.map_or(1, ThreadPool::threads);
    let scratch = &mut Scratch::new();
    let mut cx = KernelContext { seed: 0, step: 0, rate: None, threads, pool, scratch };
    call.expect("a kernel").launch(&views, &mut out, &mut cx).expect("the views fit");
    found
}

fn bits(results: &[Memory]) -> Vec<Vec<u64>> {
    results.iter().map(|memory| memory.values().into_iter().map(f64::to_bits).collect()).collect()
}

/// Shapes, the dims that are summed, and whether these stay: channels last and first, rows shorter and longer than a block, all.
fn cases() -> Vec<(Vec<usize>, Vec<usize>, bool)> {
    vec![
        (vec![64, 8, 8, 64], vec![0, 1, 2], false),
        (vec![16, 8, 8, 96], vec![0, 1, 2], true),
        (vec![9, 5, 5, 3], vec![0, 1, 2], false),
        (vec![2, 3, 1, 1], vec![0, 2, 3], true),
        (vec![12, 10, 13, 13], vec![0, 2, 3], true),
        (vec![4, 3, 1300], vec![0, 2], false),
        (vec![67, 1280], vec![0], false),
        (vec![67, 1500], vec![0], true),
        (vec![70_001], vec![0], false),
        (vec![5, 17], vec![0, 1], false),
        (vec![1, 40], vec![0], false),
        (vec![0, 5], vec![0], false),
        (vec![3, 0], vec![0], false),
    ]
}

fn check(dtype: DType) {
    let pools = [2, 3].map(pool);
    let random = &mut Random::new(17);
    for (shape, axes, keep_dims) in cases() {
        let op = chain(&axes, keep_dims);
        let kept = (0..shape.len()).map(|d| if axes.contains(&d) { 1 } else { shape[d] });
        let mean = Region {
            rect: Rect::whole(&kept.clone().collect::<Vec<_>>()),
            ..half_of(DType::F32, &[])
        };
        let mean = Region { global: mean.rect.extent.clone(), ..mean };
        let zero = Region::whole(&TensorType::new(dtype, []));
        let full = half_of(dtype, &shape);
        let operands: Vec<(Region, Memory)> = [full.clone(), full.clone(), full, mean, zero]
            .into_iter()
            .enumerate()
            .map(|(index, region)| {
                let number = |_| if index == 4 { 0.0 } else { ordinary(random, index, DType::F32) };
                let data: Vec<f64> = (0..region.rect.elements()).map(number).collect();
                let memory = Memory::of(region.dtype, &data);
                (region, memory)
            })
            .collect();
        let exact: Vec<Value> = operands
            .iter()
            .map(|(r, m)| (r.clone(), Array::new(r.rect.extent.clone(), m.values())))
            .collect();
        let expected = by_oracle(&op, &exact);
        let results: Vec<Region> = expected.iter().map(|value| value.0.clone()).collect();
        let found = run(&op, &operands, &results, None);
        for pool in &pools {
            let other = run(&op, &operands, &results, Some(pool));
            assert!(bits(&other) == bits(&found), "{dtype} {shape:?}");
        }
        let summed = (shape.iter().product::<usize>() as f64).max(100.0);
        for (output, (found, (region, expected))) in found.iter().zip(&expected).enumerate() {
            // A result of 16 bits is rounded once.
            let ulp = match region.dtype {
                DType::BF16 => f64::powi(2.0, -8),
                DType::F16 => f64::powi(2.0, -11),
                _ => f64::powi(2.0, -24),
            };
            for (found, expected) in found.values().iter().zip(&expected.data) {
                let room = 3e-7 * summed.min(5e3) + ulp * expected.abs();
                let same = found == expected || found.is_nan() && expected.is_nan();
                assert!(
                    same || (found - expected).abs() <= room,
                    "{dtype} {shape:?} over {axes:?}, output {output}: {found} instead of {expected}"
                );
            }
        }
    }
}

#[test]
fn sums_of_f32() {
    check(DType::F32);
}

#[test]
fn sums_of_bf16() {
    check(DType::BF16);
}

#[test]
fn sums_of_f16() {
    check(DType::F16);
}

#[test]
fn what_no_chain_ends_in_has_no_kernel() {
    let x = TensorType::new(DType::F32, [4, 5, 6]);
    let of = |op: FusedOp, result: &[usize]| {
        let results = [TensorType::new(DType::F32, result)];
        prepare_fused(&op, std::slice::from_ref(&x), &results, DeviceKind::Cpu).map(|_| ())
    };
    let reduce = |function, axes: &[usize]| {
        let op = Op::Reduce(Reduce { function, axes: axes.to_vec(), keep_dims: false });
        FusedStep { op, args: vec![FusedArg::Operand(0)] }
    };
    let alone = |step: FusedStep| FusedOp { steps: vec![step], outputs: vec![0] };
    assert_eq!(of(alone(reduce(ReduceFunction::Sum, &[0, 1])), &[6]), Ok(()));
    assert!(
        of(alone(reduce(ReduceFunction::Sum, &[1])), &[4, 6]).is_err(),
        "dims on both sides stay"
    );
    assert!(of(alone(reduce(ReduceFunction::Max, &[0, 1])), &[6]).is_err());
    let negated = Op::Unary(Unary { function: UnaryFunction::Neg });
    let steps = vec![
        reduce(ReduceFunction::Sum, &[0, 1]),
        FusedStep { op: negated, args: vec![FusedArg::Step(0)] },
    ];
    assert!(of(FusedOp { steps, outputs: vec![1] }, &[6]).is_err(), "a sum is read in its chain");
}
