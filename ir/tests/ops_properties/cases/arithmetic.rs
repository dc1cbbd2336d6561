//! Cases of elementwise ops, reductions and matrix products.

use graphc_ir::op::Op;
use graphc_ir::ops::{
    ArgMax, Binary, BinaryFunction, Cast, MatMul, Reduce, ReduceFunction, Unary, UnaryFunction,
    Where,
};
use graphc_ir::types::DType;

use super::{Case, Sample, eights, floats, integers, positive, truths};

/// Shapes of one operand, and whether they are for completeness.
const SHAPES: [(&[usize], bool); 5] =
    [(&[4, 6], true), (&[5, 3], false), (&[0, 3], false), (&[1, 7], false), (&[], false)];

/// Shapes of two operands that broadcast.
const PAIRS: [(&[usize], &[usize], bool); 8] = [
    (&[4, 6], &[4, 6], true),
    (&[4, 6], &[6], true),
    (&[4, 1], &[2, 4, 6], true),
    (&[5, 3], &[3], false),
    (&[2, 1, 3], &[5, 1], false),
    (&[0, 3], &[1, 3], false),
    (&[], &[3], false),
    (&[1, 3], &[1, 1], false),
];

pub fn cases() -> Vec<Case> {
    [unary(), binary(), select(), casts(), reductions(), arguments(), products(), scaled_products()]
        .into_iter()
        .flatten()
        .collect()
}

fn unary() -> Vec<Case> {
    use UnaryFunction::*;
    let (low, high) = ((-0.7).into(), 1.1.into());
    let any = [
        Relu,
        Gelu,
        GeluTanh,
        Sigmoid,
        Tanh,
        Silu,
        Exp,
        Abs,
        Neg,
        Sign,
        Erf,
        Sin,
        Cos,
        Floor,
        Ceil,
        Round,
        Reciprocal,
        Scale(1.5.into()),
        Offset((-0.5).into()),
        PowScalar(3.0.into()),
        PowScalar(2.0.into()),
        PowScalar(0.0.into()),
        Clip { low, high },
    ];
    let above_zero = [Log, Sqrt, Rsqrt, PowScalar((-1.5).into())];
    let whole = [Relu, Neg, Abs, Sign, Scale(3.0.into()), Offset(2.0.into())];
    let of = |functions: &[UnaryFunction], sample: fn(&[usize]) -> Sample| -> Vec<Case> {
        let case = |function, (shape, complete): (&[usize], bool)| Case {
            op: Op::Unary(Unary { function }),
            operands: vec![sample(shape)],
            // x ^ 0 is 1 whatever is split, which tells nothing.
            complete: complete && function != PowScalar(0.0.into()),
        };
        functions.iter().flat_map(|&f| SHAPES.map(|shape| case(f, shape))).collect()
    };
    [of(&any, floats), of(&above_zero, positive), of(&whole, integers), of(&[Not], truths)]
        .into_iter()
        .flatten()
        .collect()
}

fn binary() -> Vec<Case> {
    use BinaryFunction::*;
    let arithmetic = [Add, Sub, Mul, Div, Max, Min];
    let comparisons = [Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual];
    let of = |functions: &[BinaryFunction], sample: fn(&[usize]) -> Sample| -> Vec<Case> {
        let case = |function, (a, b, complete): (&[usize], &[usize], bool)| Case {
            op: Op::Binary(Binary { function }),
            operands: vec![sample(a), sample(b)],
            complete,
        };
        functions.iter().flat_map(|&f| PAIRS.map(|pair| case(f, pair))).collect()
    };
    [
        of(&arithmetic, floats),
        of(&[Pow], positive),
        of(&[RoundFloat8, RoundFloat8E5m2], floats),
        of(&arithmetic, integers),
        of(&comparisons, integers),
        of(&[And, Or], truths),
        of(&[BitAnd, BitOr, BitXor], integers),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn select() -> Vec<Case> {
    let op = || Op::Where(Where {});
    let of = |c: &[usize], a: &[usize], b: &[usize]| vec![truths(c), floats(a), floats(b)];
    vec![
        Case::complete(op(), of(&[4, 6], &[4, 6], &[4, 6])),
        Case::complete(op(), of(&[4, 1], &[6], &[4, 6])),
        Case::new(op(), of(&[5, 1], &[3], &[2, 5, 3])),
        Case::new(op(), of(&[], &[0, 3], &[3])),
        Case::new(op(), of(&[3], &[], &[])),
    ]
}

fn casts() -> Vec<Case> {
    let case = |dtype, operand: fn(&[usize]) -> Sample| {
        SHAPES.map(|(shape, complete)| Case {
            op: Op::Cast(Cast { dtype }),
            operands: vec![operand(shape)],
            complete,
        })
    };
    [
        case(DType::BF16, floats),
        case(DType::I64, floats),
        case(DType::F32, integers),
        case(DType::I32, integers),
        case(DType::F32, truths),
        case(DType::Bool, truths),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn reductions() -> Vec<Case> {
    use ReduceFunction::*;
    let axes: [&[usize]; 4] = [&[0], &[1], &[0, 1], &[]];
    let mut cases = Vec::new();
    for (function, axes, keep_dims) in
        [Sum, Mean, Max, Min, MaxAbs].into_iter().flat_map(|function| {
            axes.into_iter().flat_map(move |axes| [false, true].map(|keep| (function, axes, keep)))
        })
    {
        for shape in [&[4, 6], &[5, 3], &[0, 3], &[3, 1]] {
            let op = Op::Reduce(Reduce { function, axes: axes.to_vec(), keep_dims });
            // Over no dims every reduction tells nothing.
            let complete = shape == &[4, 6] && !axes.is_empty();
            cases.push(Case { op, operands: vec![floats(shape)], complete });
        }
        if !matches!(function, Mean | MaxAbs) {
            let op = Op::Reduce(Reduce { function, axes: axes.to_vec(), keep_dims });
            cases.push(Case::new(op, vec![integers(&[2, 3, 4])]));
        }
    }
    cases
}

fn arguments() -> Vec<Case> {
    let op = |axis, keep_dims| Op::ArgMax(ArgMax { axis, keep_dims });
    vec![
        Case::complete(op(0, false), vec![floats(&[4, 6])]),
        Case::complete(op(1, true), vec![floats(&[4, 6])]),
        Case::new(op(1, false), vec![floats(&[5, 3])]),
        Case::new(op(0, true), vec![integers(&[3, 2, 5])]),
        Case::new(op(1, false), vec![floats(&[0, 3])]),
    ]
}

fn products() -> Vec<Case> {
    let shapes: [(&[usize], &[usize], bool); 8] = [
        (&[4, 6], &[6, 2], true),
        (&[5, 3], &[3, 7], false),
        (&[3, 0], &[0, 2], false),
        (&[0, 3], &[3, 2], false),
        (&[2, 4, 6], &[6, 2], true),
        (&[4, 6], &[2, 6, 4], true),
        (&[3, 1, 2, 5], &[2, 5, 3], false),
        (&[2, 3, 4], &[1, 4, 5], false),
    ];
    let swapped = |shape: &[usize], swap: bool| {
        let mut shape = shape.to_vec();
        if swap {
            let rank = shape.len();
            shape.swap(rank - 2, rank - 1);
        }
        shape
    };
    let mut cases = Vec::new();
    for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
        for (a, b, complete) in shapes {
            let op = Op::MatMul(MatMul { transpose_a, transpose_b });
            let operands = vec![floats(&swapped(a, transpose_a)), floats(&swapped(b, transpose_b))];
            cases.push(Case { op, operands, complete });
        }
    }
    cases
}

/// Products of numbers of 8 bits with the sizes by which they were rounded.
fn scaled_products() -> Vec<Case> {
    let of = |[transpose_a, transpose_b]: [bool; 2], shapes: [&[usize]; 4], complete| Case {
        op: Op::MatMul(MatMul { transpose_a, transpose_b }),
        operands: shapes
            .iter()
            .zip([eights, eights, positive, positive])
            .map(|(s, of)| of(s))
            .collect(),
        complete,
    };
    vec![
        of([false, false], [&[4, 6], &[6, 2], &[4, 1], &[1, 2]], true),
        of([false, true], [&[5, 3], &[7, 3], &[5, 1], &[1, 1]], false),
        of([true, true], [&[3, 5], &[7, 3], &[1, 5], &[7, 1]], false),
        of([true, false], [&[3, 5], &[3, 7], &[1, 1], &[1, 7]], false),
        of([false, false], [&[2, 4, 6], &[6, 2], &[2, 4, 1], &[1, 2]], true),
        of([false, true], [&[3, 1, 2, 5], &[2, 3, 5], &[3, 1, 2, 1], &[2, 3, 1]], false),
        of([false, false], [&[3, 0], &[0, 2], &[3, 1], &[1, 1]], false),
    ]
}
