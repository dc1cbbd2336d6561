//! Every kernel computes what its op's oracle computes, on random shards of random layouts.

use crate::common::{Case, Memory, Random, ordinary};
use crate::drawn::{f32s, repeat, ty};
use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

fn unary_functions() -> Vec<UnaryFunction> {
    use UnaryFunction::*;
    let mut functions = vec![
        Relu, Gelu, GeluTanh, Sigmoid, Tanh, Silu, Exp, Log, Sqrt, Rsqrt, Abs, Neg, Sign, Erf,
        Reciprocal, Sin, Cos, Floor, Ceil, Round,
    ];
    functions.extend([2.0, -1.5, 0.1].map(|value| Scale(Scalar(value))));
    functions.extend([2.0, -1.5].map(|value| Offset(Scalar(value))));
    functions
        .extend([2.0, 3.0, 1.0, -1.0, -2.0, 0.5, 0.0, 1.7].map(|value| PowScalar(Scalar(value))));
    functions.push(Clip { low: Scalar(-1.0), high: Scalar(2.0) });
    functions.push(Clip { low: Scalar(f64::NEG_INFINITY), high: Scalar(0.0) });
    functions
}

/// Functions of two numbers.
pub const BINARY: [BinaryFunction; 13] = [
    BinaryFunction::Add,
    BinaryFunction::Sub,
    BinaryFunction::Mul,
    BinaryFunction::Div,
    BinaryFunction::Pow,
    BinaryFunction::Max,
    BinaryFunction::Min,
    BinaryFunction::Equal,
    BinaryFunction::NotEqual,
    BinaryFunction::Less,
    BinaryFunction::LessEqual,
    BinaryFunction::Greater,
    BinaryFunction::GreaterEqual,
];

/// Reductions of floating-point numbers.
pub const REDUCTIONS: [ReduceFunction; 5] = [
    ReduceFunction::Sum,
    ReduceFunction::Mean,
    ReduceFunction::Max,
    ReduceFunction::Min,
    ReduceFunction::MaxAbs,
];

/// Shapes that broadcast to one shape, each dim missing, 1 or whole.
fn broadcast(random: &mut Random, count: usize) -> Vec<Vec<usize>> {
    let rank = random.below(5);
    let whole = random.shape(rank);
    let mut shapes = vec![whole.clone()];
    for _ in 1..count {
        let mut shape: Vec<usize> =
            whole.iter().map(|&extent| if random.below(3) == 0 { 1 } else { extent }).collect();
        shape.drain(..random.below(rank + 1));
        shapes.push(shape);
    }
    shapes
}

#[test]
fn unary_functions_of_floats() {
    repeat(10, |random| {
        for function in unary_functions() {
            let rank = random.below(4);
            let shape = random.shape(rank);
            let op = Op::Unary(Unary { function });
            let positive =
                matches!(function, UnaryFunction::Log | UnaryFunction::Sqrt | UnaryFunction::Rsqrt);
            Case::random(op, &[f32s(&shape)], random, &mut |random, i, dtype| {
                let x = ordinary(random, i, dtype);
                if positive { x.abs() } else { x }
            })
            .check(2e-6);
        }
    });
}

#[test]
fn unary_functions_of_special_values() {
    let special =
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e30, -1e30, 1e-40, 88.8, -103.0];
    for function in unary_functions() {
        let op = Op::Unary(Unary { function });
        let mut next = special.iter().cycle();
        let mut fill = |_: &mut Random, _: usize, _: DType| f64::from(*next.next().unwrap() as f32);
        Case::random(op, &[f32s(&[40])], &mut Random::new(0), &mut fill).check(2e-6);
    }
}

#[test]
fn unary_functions_of_integers_and_truth_values() {
    use UnaryFunction::*;
    repeat(8, |random| {
        for function in [
            Relu,
            Abs,
            Neg,
            Sign,
            Scale(Scalar(-3.0)),
            Offset(Scalar(7.0)),
            Clip { low: Scalar(-2.0), high: Scalar(5.0) },
        ] {
            for dtype in [DType::I64, DType::I32, DType::U8] {
                let shape = random.shape(2);
                let op = Op::Unary(Unary { function });
                Case::random(op, &[ty(dtype, &shape)], random, &mut ordinary).check(0.0);
            }
        }
        let shape = random.shape(2);
        let op = Op::Unary(Unary { function: Not });
        Case::random(op, &[ty(DType::Bool, &shape)], random, &mut ordinary).check(0.0);
    });
}

#[test]
fn binary_functions_broadcast() {
    repeat(30, |random| {
        for function in BINARY {
            for dtype in [DType::F32, DType::I64, DType::I32, DType::U8] {
                let mut shapes = broadcast(random, 2);
                if random.below(2) == 0 {
                    shapes.reverse();
                }
                let types = [ty(dtype, &shapes[0]), ty(dtype, &shapes[1])];
                let op = Op::Binary(Binary { function });
                let fill = &mut |random: &mut Random, i: usize, dtype: DType| {
                    let x = ordinary(random, i, dtype);
                    match function {
                        BinaryFunction::Pow => x.abs(),
                        BinaryFunction::Div if i == 1 && x == 0.0 => 1.0,
                        _ => x,
                    }
                };
                Case::random(op, &types, random, fill).check(1e-5);
            }
        }
        let shapes = broadcast(random, 2);
        let types = [f32s(&shapes[0]), f32s(&shapes[1])];
        for function in [BinaryFunction::RoundFloat8, BinaryFunction::RoundFloat8E5m2] {
            let op = Op::Binary(Binary { function });
            Case::random(op, &types, random, &mut ordinary).check(0.0);
        }
        for function in [BinaryFunction::And, BinaryFunction::Or, BinaryFunction::Equal] {
            let shapes = broadcast(random, 2);
            let types = [ty(DType::Bool, &shapes[0]), ty(DType::Bool, &shapes[1])];
            let op = Op::Binary(Binary { function });
            Case::random(op, &types, random, &mut ordinary).check(0.0);
        }
    });
}

#[test]
fn extremes_keep_nans() {
    for function in [BinaryFunction::Max, BinaryFunction::Min, BinaryFunction::Less] {
        let values = [f64::NAN, 1.0, f64::INFINITY, 1.0, f64::NAN, f64::NAN, -2.0];
        let mut next = values.iter().cycle();
        let op = Op::Binary(Binary { function });
        let mut fill = |_: &mut Random, _: usize, _: DType| *next.next().unwrap();
        Case::random(op, &[f32s(&[20]), f32s(&[20])], &mut Random::new(0), &mut fill).check(0.0);
    }
}

#[test]
fn where_and_cast() {
    repeat(60, |random| {
        let dtype = random.of(&[DType::F32, DType::I64, DType::I32, DType::U8, DType::Bool]);
        let mut shapes = broadcast(random, 3);
        let turn = random.below(3);
        shapes.rotate_left(turn);
        let types = [ty(DType::Bool, &shapes[0]), ty(dtype, &shapes[1]), ty(dtype, &shapes[2])];
        Case::random(Op::Where(Where {}), &types, random, &mut ordinary).check(0.0);
        let to = random.of(&[DType::F32, DType::I64, DType::I32, DType::U8, DType::Bool]);
        let shape = random.shape(2);
        Case::random(Op::Cast(Cast { dtype: to }), &[ty(dtype, &shape)], random, &mut ordinary)
            .check(0.0);
    });
}

#[test]
fn reductions_over_any_dims() {
    repeat(150, |random| {
        let rank = 1 + random.below(4);
        let shape = random.shape(rank);
        let axes: Vec<usize> = (0..rank).filter(|_| random.below(2) == 0).collect();
        for function in REDUCTIONS {
            let reduce = Reduce { function, axes: axes.clone(), keep_dims: random.below(2) == 0 };
            Case::random(Op::Reduce(reduce.clone()), &[f32s(&shape)], random, &mut ordinary)
                .check(5e-5);
            if !matches!(function, ReduceFunction::Mean | ReduceFunction::MaxAbs) {
                let dtype = random.of(&[DType::I64, DType::I32]);
                Case::random(Op::Reduce(reduce), &[ty(dtype, &shape)], random, &mut ordinary)
                    .check(0.0);
            }
        }
        let axis = random.below(rank);
        if shape[axis] > 0 {
            let dtype = random.of(&[DType::F32, DType::I64, DType::I32, DType::U8]);
            let op = Op::ArgMax(ArgMax { axis, keep_dims: random.below(2) == 0 });
            Case::random(op, &[ty(dtype, &shape)], random, &mut ordinary).check(0.0);
        }
    });
}

#[test]
fn long_rows_and_columns_are_reduced_exactly_enough() {
    let random = &mut Random::new(1);
    for (shape, axes) in [
        (vec![100_001], vec![0]),
        (vec![3, 40_000], vec![1]),
        (vec![1500, 70], vec![0]),
        (vec![3, 700, 5], vec![1]),
        (vec![270, 1100], vec![0]),
    ] {
        for function in [ReduceFunction::Sum, ReduceFunction::Max, ReduceFunction::MaxAbs] {
            let op = Op::Reduce(Reduce { function, axes: axes.clone(), keep_dims: false });
            Case::random(op, &[f32s(&shape)], random, &mut ordinary).check(2e-5);
        }
    }
}

#[test]
fn reductions_keep_nans() {
    for function in
        [ReduceFunction::Max, ReduceFunction::Min, ReduceFunction::MaxAbs, ReduceFunction::Sum]
    {
        for axes in [vec![0], vec![1], vec![0, 1]] {
            let op = Op::Reduce(Reduce { function, axes, keep_dims: false });
            let mut fill = |random: &mut Random, i: usize, dtype: DType| match random.below(40) {
                0 => f64::NAN,
                1 => f64::INFINITY,
                _ => ordinary(random, i, dtype),
            };
            Case::random(op, &[f32s(&[37, 70])], &mut Random::new(3), &mut fill).check(1e-5);
        }
    }
}

#[test]
fn matrix_products() {
    repeat(200, |random| {
        let [i, j, k] = [(); 3].map(|()| random.extent());
        let (transpose_a, transpose_b) = (random.below(2) == 0, random.below(2) == 0);
        let mut batches = broadcast(random, 2);
        batches.iter_mut().for_each(|batch| {
            batch.drain(..batch.len().saturating_sub(2));
            batch.iter_mut().for_each(|extent| *extent = (*extent).min(3));
        });
        if random.below(2) == 0 {
            batches.reverse();
        }
        let last = |extents: [usize; 2], transposed: bool| match transposed {
            true => [extents[1], extents[0]],
            false => extents,
        };
        let a = [batches[0].as_slice(), &last([i, k], transpose_a)].concat();
        let b = [batches[1].as_slice(), &last([k, j], transpose_b)].concat();
        let dtype = random.of(&[DType::F32, DType::F32, DType::F32, DType::I64, DType::I32]);
        let op = Op::MatMul(MatMul { transpose_a, transpose_b });
        if op.infer_types(&[&ty(dtype, &a), &ty(dtype, &b)]).is_ok() {
            Case::random(op, &[ty(dtype, &a), ty(dtype, &b)], random, &mut ordinary).check(2e-5);
        }
    });
}

/// Few rows beside a vocabulary: computed column by column, in three parts of which the last is narrower.
#[test]
fn a_product_of_many_columns_is_right_in_all_parts() {
    for rows in [9, 130] {
        let types = [ty(DType::F32, &[rows, 70]), ty(DType::F32, &[8200, 70])];
        let op = Op::MatMul(MatMul { transpose_a: false, transpose_b: true });
        Case::random(op, &types, &mut Random::new(rows as u64), &mut ordinary).check(2e-5);
    }
}

const MOVED: [DType; 4] = [DType::F32, DType::I64, DType::I32, DType::U8];

#[test]
fn transposes_reshapes_and_expansions() {
    repeat(200, |random| {
        let dtype = random.of(&MOVED);
        let rank = random.below(5);
        let shape = random.shape(rank);
        let mut permutation: Vec<usize> = (0..rank).collect();
        for dim in 1..rank {
            permutation.swap(dim, random.below(dim + 1));
        }
        let op = Op::Transpose(Transpose { permutation });
        Case::random(op, &[ty(dtype, &shape)], random, &mut ordinary).check(0.0);

        let mut merged = shape.clone();
        if rank >= 2 {
            let last = merged.pop().unwrap_or(1);
            merged[rank - 2] *= last;
        }
        let op = Op::Reshape(Reshape { shape: merged });
        Case::random(op, &[ty(dtype, &shape)], random, &mut ordinary).check(0.0);

        let shapes = broadcast(random, 2);
        let op = Op::Expand(Expand { shape: shapes[0].clone() });
        Case::random(op, &[ty(dtype, &shapes[1])], random, &mut ordinary).check(0.0);
    });
}

#[test]
fn slices_pads_concatenations_and_splits() {
    repeat(200, |random| {
        let dtype = random.of(&MOVED);
        let rank = 1 + random.below(3);
        let shape = random.shape(rank);
        let mut slice = Slice { starts: vec![], ends: vec![], steps: vec![] };
        let mut pad = Pad { low: vec![], high: vec![], interior: vec![], value: Scalar(2.0) };
        for &extent in &shape {
            let whole = random.below(2) == 0;
            let start = if whole { 0 } else { random.below(extent + 1) };
            slice.starts.push(start);
            slice.ends.push(if whole { extent } else { start + random.below(extent - start + 1) });
            slice.steps.push(if whole { 1 } else { 1 + random.below(3) });
            pad.low.push(if whole { 0 } else { random.below(3) });
            pad.high.push(if whole { 0 } else { random.below(3) });
            pad.interior.push(if whole { 0 } else { random.below(3) });
        }
        for op in [Op::Slice(slice), Op::Pad(pad)] {
            if op.infer_types(&[&ty(dtype, &shape)]).is_ok() {
                Case::random(op, &[ty(dtype, &shape)], random, &mut ordinary).check(0.0);
            }
        }
        let axis = random.below(rank);
        let sizes: Vec<usize> = (0..1 + random.below(3)).map(|_| random.below(6)).collect();
        let types: Vec<TensorType> = sizes
            .iter()
            .map(|&size| {
                let mut part = shape.clone();
                part[axis] = size;
                ty(dtype, &part)
            })
            .collect();
        let op = Op::Concat(Concat { axis });
        Case::random(op, &types, random, &mut ordinary).check(0.0);
        let mut whole = shape;
        whole[axis] = sizes.iter().sum();
        let op = Op::Split(Split { axis, sizes });
        Case::random(op, &[ty(dtype, &whole)], random, &mut ordinary).check(0.0);
    });
}

#[test]
fn zigzags() {
    repeat(100, |random| {
        let (rank, pairs) = (1 + random.below(3), 1 + random.below(4));
        let (mut shape, dim) = (random.shape(rank), random.below(rank));
        shape[dim] = 2 * pairs * random.below(5);
        let pairs = std::num::NonZeroU32::new(pairs as u32).expect("at least 1");
        let op = Op::Zigzag(Zigzag { dim, pairs, inverse: random.below(2) == 0 });
        let dtype = random.of(&[DType::F32, DType::I64, DType::BF16]);
        Case::random(op, &[ty(dtype, &shape)], random, &mut ordinary).check(0.0);
    });
}

#[test]
fn triangles() {
    repeat(100, |random| {
        let rank = 2 + random.below(2);
        let shape = random.shape(rank);
        let (lower, diagonal) = (random.below(2) == 0, random.below(9) as i64 - 4);
        let op = Op::Triangle(Triangle { lower, diagonal });
        let types = [ty(random.of(&[DType::F32, DType::I64]), &shape)];
        if op.infer_types(&[&types[0]]).is_ok() {
            Case::random(op, &types, random, &mut ordinary).check(0.0);
        }
    });
}

#[test]
fn softmax_and_its_kin() {
    repeat(60, |random| {
        let rank = 1 + random.below(3);
        let shape = random.shape(rank);
        let axis = random.below(rank);
        let (x, pair) = ([f32s(&shape)], [f32s(&shape), f32s(&shape)]);
        Case::random(Op::Softmax(Softmax { axis }), &x, random, &mut ordinary).check(2e-6);
        Case::random(Op::LogSoftmax(LogSoftmax { axis }), &x, random, &mut ordinary).check(4e-6);
        Case::random(Op::SoftmaxGrad(SoftmaxGrad { axis }), &pair, random, &mut ordinary)
            .check(2e-5);
        // y is a logarithm of a probability.
        let logarithm = &mut |random: &mut Random, i: usize, dtype: DType| {
            let x = ordinary(random, i, dtype);
            if i == 0 { -x.abs() } else { x }
        };
        let op = Op::LogSoftmaxGrad(LogSoftmaxGrad { axis });
        Case::random(op, &pair, random, logarithm).check(2e-5);
    });
}

#[test]
fn masked_scores_get_no_weight() {
    let op = Op::Softmax(Softmax { axis: 1 });
    let mut count = 0;
    let mut fill = |_: &mut Random, _: usize, _: DType| {
        count += 1;
        if count % 3 == 0 { f64::NEG_INFINITY } else { f64::from(count % 7) }
    };
    Case::random(op, &[f32s(&[4, 100])], &mut Random::new(0), &mut fill).check(1e-6);
}

#[test]
fn normalizations() {
    repeat(60, |random| {
        let rank = 1 + random.below(3);
        let mut shape = random.shape(rank);
        shape[rank - 1] = shape[rank - 1].max(1);
        let center = random.below(2) == 0;
        let op = Op::Normalize(Normalize { center, epsilon: Scalar(1e-5) });
        let shifted =
            &mut |random: &mut Random, i: usize, dtype: DType| ordinary(random, i, dtype) + 5.0;
        Case::random(op, &[f32s(&shape)], random, shifted).check(2e-5);
        let mut kept = shape.clone();
        kept[rank - 1] = 1;
        let types = [f32s(&shape), f32s(&kept), f32s(&shape)];
        Case::random(Op::NormalizeGrad(NormalizeGrad { center }), &types, random, &mut ordinary)
            .check(2e-5);
    });
}

#[test]
fn sources_and_dropout() {
    repeat(60, |random| {
        let rank = 1 + random.below(3);
        let shape = random.shape(rank);
        let dtype = random.of(&MOVED);
        let whole = ty(dtype, &shape);
        let data = (0..whole.elements()).map(|i| Scalar((i % 7) as f64)).collect();
        let normal = Distribution::Normal { mean: Scalar(1.0), std: Scalar(0.5) };
        let uniform = Distribution::Uniform { low: Scalar(-1.0), high: Scalar(0.5) };
        for op in [
            Op::Full(Full { ty: whole.clone(), value: Scalar(3.0) }),
            Op::Constant(Constant { ty: whole.clone(), data }),
            Op::Iota(Iota { ty: whole, dim: random.below(rank) }),
            Op::Random(graphc_ir::ops::Random { ty: f32s(&shape), distribution: normal, key: 3 }),
            Op::Random(graphc_ir::ops::Random { ty: f32s(&shape), distribution: uniform, key: 3 }),
            Op::Variable(Variable {
                name: "w".into(),
                ty: f32s(&shape),
                init: Init::Normal { mean: Scalar(0.0), std: Scalar(0.02) },
                trainable: true,
            }),
        ] {
            if op.infer_types(&[]).is_ok() {
                Case::random(op, &[], random, &mut ordinary).check(1e-6);
            }
        }
        let training = random.below(4) > 0;
        let op = Op::Dropout(DropoutOp { probability: Scalar(0.3), key: 11, training });
        Case::random(op, &[f32s(&shape)], random, &mut ordinary).check(1e-6);
    });
}

#[test]
fn updates_of_variables() {
    repeat(30, |random| {
        let shape = random.shape(2);
        let x = f32s(&shape);
        for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
            let op = Op::SgdUpdate(SgdUpdate {
                lr: 0.1.into(),
                momentum: Scalar(momentum),
                nesterov,
                weight_decay: Scalar(0.01),
                clip: None,
            });
            let count = if momentum == 0.0 { 2 } else { 3 };
            Case::random(op.clone(), &vec![x.clone(); count], random, &mut ordinary).check(1e-6);
            // Under loss scaling, of an update that is made and of one that is not.
            for factor in [0.25, 0.0] {
                let mut operands = vec![x.clone(); count];
                operands.push(f32s(&[]));
                let fill = &mut |random: &mut Random, i: usize, dtype: DType| match i {
                    i if i == count => factor,
                    i => ordinary(random, i, dtype),
                };
                Case::random(op.clone(), &operands, random, fill).check(1e-6);
            }
        }
        for decoupled in [true, false] {
            let op = Op::AdamUpdate(AdamUpdate {
                lr: 0.01.into(),
                beta1: Scalar(0.9),
                beta2: Scalar(0.999),
                epsilon: Scalar(1e-8),
                weight_decay: Scalar(0.01),
                decoupled,
                clip: None,
            });
            let fill = &mut |random: &mut Random, i: usize, dtype: DType| {
                let x = ordinary(random, i, dtype);
                if i == 3 { x * x } else { x }
            };
            Case::random(op.clone(), &vec![x.clone(); 4], random, fill).check(4e-6);
            for (factor, step) in [(0.25, 1.0), (0.5, 7.0), (0.0, 3.0)] {
                let mut operands = vec![x.clone(); 4];
                operands.extend([f32s(&[]), f32s(&[])]);
                let fill = &mut |random: &mut Random, i: usize, dtype: DType| match i {
                    3 => ordinary(random, i, dtype).powi(2),
                    4 => factor,
                    5 => step,
                    i => ordinary(random, i, dtype),
                };
                Case::random(op.clone(), &operands, random, fill).check(4e-6);
            }
        }
    });
}

#[test]
fn what_is_not_finite_is_counted() {
    repeat(30, |random| {
        let x = f32s(&random.shape(2));
        let fill = &mut |random: &mut Random, i: usize, dtype: DType| match random.below(9) {
            0 => f64::INFINITY,
            1 => f64::NAN,
            2 => f64::NEG_INFINITY,
            _ => ordinary(random, i, dtype),
        };
        Case::random(Op::NonFinite(NonFinite {}), std::slice::from_ref(&x), random, fill)
            .check(0.0);
        Case::random(Op::NonFinite(NonFinite {}), &[x], random, &mut ordinary).check(0.0);
    });
    // More than a block, with one element that is not finite at its end.
    let last = &mut |random: &mut Random, i: usize, dtype: DType| ordinary(random, i, dtype);
    let mut case =
        Case::random(Op::NonFinite(NonFinite {}), &[f32s(&[9001])], &mut Random::new(3), last);
    let mut numbers = vec![1.0; 9001];
    numbers[9000] = f64::NAN;
    case.operands[0].1 = Memory::of(DType::F32, &numbers);
    case.check(0.0);
}

#[test]
fn the_scale_of_the_loss_follows() {
    repeat(30, |random| {
        let scaling = LossScale {
            growth: Scalar(2.0),
            backoff: Scalar(0.5),
            interval: 1 + random.below(3) as u32,
            floor: Scalar([0.0, 1.0, 64.0][random.below(3)]),
        };
        let fill = &mut |random: &mut Random, i: usize, _: DType| match i {
            0 => f64::from(1 << random.below(20)),
            _ => random.below(3) as f64,
        };
        for numbers in [4, 5] {
            let types = vec![f32s(&[]); numbers];
            Case::random(Op::LossScale(scaling), &types, random, fill).check(0.0);
        }
        Case::random(Op::SkipStep(SkipStep {}), &vec![f32s(&[]); 2], random, fill).check(0.0);
    });
}

#[test]
fn layout_ops_copy() {
    repeat(20, |random| {
        let shape = random.shape(2);
        Case::random(Op::Accumulate(Accumulate {}), &[f32s(&shape)], random, &mut ordinary)
            .check(0.0);
    });
}
