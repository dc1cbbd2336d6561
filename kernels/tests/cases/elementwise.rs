//! Elementwise ops: chains of one step.

use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::DType;

use super::super::common::{Random, ordinary};
use super::{Example, Examples, f32s, ty};

pub fn examples() -> Vec<Example> {
    let to = &mut Examples::new(8);
    to.placed = false;
    unary(to);
    integers(to);
    binary(to);
    choices(to);
    std::mem::take(&mut to.all)
}

fn functions() -> Vec<UnaryFunction> {
    use UnaryFunction::*;
    let mut functions = vec![
        Relu, Gelu, GeluTanh, Sigmoid, Tanh, Silu, Exp, Log, Sqrt, Rsqrt, Abs, Neg, Sign, Erf,
        Reciprocal, Sin, Cos, Floor, Ceil, Round,
    ];
    functions.extend([2.0, 3.0, -1.0, 0.5, 1.7].map(|value| PowScalar(Scalar(value))));
    functions.extend([Scale(Scalar(0.1)), Offset(Scalar(-1.5))]);
    functions.push(Clip { low: Scalar(f64::NEG_INFINITY), high: Scalar(0.0) });
    functions
}

/// Functions of ordinary numbers, and of special ones; those of halves have few.
fn unary(to: &mut Examples) {
    let special =
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e30, -1e30, 1e-40, 88.8, -103.0];
    for (number, function) in functions().into_iter().enumerate() {
        let op = Op::Unary(Unary { function });
        let mut next = 0;
        let fill = &mut |random: &mut Random, i: usize, dtype: DType| {
            next += 1;
            match special.get(next) {
                Some(&value) => f64::from(value as f32),
                None => ordinary(random, i, dtype),
            }
        };
        to.filled(&[1], op.clone(), &[f32s(&[5, 67])], 2e-6, fill);
        let half = if number % 2 == 0 { DType::BF16 } else { DType::F16 };
        let positive = &mut |random: &mut Random, i: usize, dtype: DType| {
            ordinary(random, i, dtype).abs() + 0.1
        };
        if number % 3 == 0 {
            to.both_filled(op, &[ty(half, &[3, 64])], 4e-6, positive);
        }
    }
}

fn integers(to: &mut Examples) {
    use UnaryFunction::*;
    let clip = Clip { low: Scalar(-2.0), high: Scalar(5.0) };
    for function in [Relu, Abs, Neg, Sign, Scale(Scalar(-3.0)), Offset(Scalar(7.0)), clip] {
        for dtype in [DType::I64, DType::U8] {
            to.both(Op::Unary(Unary { function }), &[ty(dtype, &[3, 32])], 0.0);
        }
    }
    to.both(Op::Unary(Unary { function: Not }), &[ty(DType::Bool, &[3, 33])], 0.0);
}

fn binary(to: &mut Examples) {
    use BinaryFunction::*;
    for function in
        [Add, Sub, Mul, Div, Pow, Max, Min, Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual]
    {
        let fill = &mut |random: &mut Random, i: usize, dtype: DType| {
            let x = ordinary(random, i, dtype);
            match (function, random.below(11)) {
                (Max | Min | Less, 0) if dtype.is_float() => f64::NAN,
                (Pow, _) => x.abs(),
                (Div, _) if i == 1 && x == 0.0 => 1.0,
                _ => x,
            }
        };
        let op = Op::Binary(Binary { function });
        for (dtype, a, b) in [
            (DType::F32, &[5, 3, 68][..], &[3, 1][..]),
            (DType::BF16, &[64], &[9, 64]),
            (DType::I64, &[5, 7], &[5, 7]),
            (DType::U8, &[4, 48], &[1]),
        ] {
            to.both_filled(op.clone(), &[ty(dtype, a), ty(dtype, b)], 1e-5, fill);
        }
    }
    for (dtype, a, b) in [
        (DType::F32, &[5, 3, 68][..], &[5, 3, 1][..]),
        (DType::BF16, &[9, 64], &[9, 1]),
        (DType::F16, &[9, 64], &[1, 64]),
    ] {
        for function in [RoundFloat8, RoundFloat8E5m2] {
            to.both(Op::Binary(Binary { function }), &[ty(dtype, a), ty(dtype, b)], 0.0);
        }
    }
    for function in [BitAnd, BitOr, BitXor] {
        for dtype in [DType::I64, DType::I32, DType::U8] {
            to.both(Op::Binary(Binary { function }), &[ty(dtype, &[4, 33]), ty(dtype, &[33])], 0.0);
        }
    }
    for function in [And, Or] {
        let types = [ty(DType::Bool, &[4, 9]), ty(DType::Bool, &[9])];
        to.both(Op::Binary(Binary { function }), &types, 0.0);
    }
}

fn choices(to: &mut Examples) {
    for dtype in [DType::F32, DType::F16, DType::I32, DType::Bool] {
        let types = [ty(DType::Bool, &[5, 1]), ty(dtype, &[5, 12]), ty(dtype, &[12])];
        to.both(Op::Where(Where {}), &types, 0.0);
        for other in DType::ALL {
            to.both(Op::Cast(Cast { dtype: other }), &[ty(dtype, &[3, 33])], 0.0);
        }
    }
    // Numbers that integers do not hold.
    let numbers = [f64::NAN, 3e38, -3e38, 1e10, -1e10, 2.9, -2.9];
    let mut next = numbers.into_iter().cycle();
    let fill = &mut |_: &mut Random, _: usize, _: DType| next.next().expect("a cycle");
    for other in [DType::I64, DType::I32, DType::U8, DType::Bool] {
        to.filled(&[1], Op::Cast(Cast { dtype: other }), &[f32s(&[7])], 0.0, fill);
    }
}
