//! The table of rewrite rules. Tests evaluate both sides of each on random tensors.
//!
//! Every rule keeps the leaves of a term, so a value still depends on the same values, and no order of nodes can
//! become cyclic. No rule changes the order of a sum, and none takes a product with zero to be zero. So results stay
//! equal up to the rounding of single operations.

use egg::Id;
use graphc_ir::op::Op;
use graphc_ir::ops::{Binary, BinaryFunction, Cast, Full, Unary, UnaryFunction};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::TensorType;

use super::egraph::{Built, EgraphRegion, RewriteRule};
use super::movement::*;

/// All rules.
pub(super) const RULES: &[RewriteRule] = &[
    RewriteRule { name: "transpose of transpose", apply: transpose_of_transpose },
    RewriteRule { name: "identity transpose", apply: identity_transpose },
    RewriteRule { name: "matmul of transpose", apply: matmul_of_transpose },
    RewriteRule { name: "reshape of reshape", apply: reshape_of_reshape },
    RewriteRule { name: "identity reshape", apply: identity_reshape },
    RewriteRule { name: "expand of expand", apply: expand_of_expand },
    RewriteRule { name: "identity expand", apply: identity_expand },
    RewriteRule { name: "expand of leading ones", apply: expand_of_leading_ones },
    RewriteRule { name: "expand where it broadcasts", apply: expand_where_it_broadcasts },
    RewriteRule { name: "reduction of nothing", apply: reduction_of_nothing },
    RewriteRule { name: "reshape of reduction", apply: reshape_of_reduction },
    RewriteRule { name: "slice of everything", apply: slice_of_everything },
    RewriteRule { name: "pad of nothing", apply: pad_of_nothing },
    RewriteRule { name: "sum of adjacent pads", apply: sum_of_adjacent_pads },
    RewriteRule { name: "concat of concat", apply: concat_of_concat },
    RewriteRule { name: "concat of one", apply: concat_of_one },
    RewriteRule { name: "cast to the same type", apply: cast_to_the_same_type },
    RewriteRule { name: "neutral operand", apply: neutral_operand },
    RewriteRule { name: "neutral number", apply: neutral_number },
    RewriteRule { name: "operand that is a number", apply: operand_that_is_a_number },
    RewriteRule { name: "scale of scale", apply: scale_of_scale },
    RewriteRule { name: "negation of negation", apply: negation_of_negation },
    RewriteRule { name: "sum with negation", apply: sum_with_negation },
    RewriteRule { name: "sum with itself", apply: sum_with_itself },
    RewriteRule { name: "product with reciprocal", apply: product_with_reciprocal },
    RewriteRule { name: "dropout of nothing", apply: dropout_of_nothing },
    RewriteRule { name: "function of one number", apply: function_of_one_number },
    RewriteRule { name: "function of two numbers", apply: function_of_two_numbers },
    RewriteRule { name: "movement of a number", apply: movement_of_a_number },
];

/// The number that a class has everywhere.
fn class_number(region: &EgraphRegion, class: Id) -> Option<f64> {
    region.ops(class).find_map(|(op, _)| match op {
        Op::Full(full) => Some(full.value.0),
        _ => None,
    })
}

fn build_full(ty: &TensorType, value: f64) -> Vec<Built> {
    vec![Built::Node(Op::Full(Full { ty: ty.clone(), value: Scalar(value) }), Vec::new())]
}

fn build_unary(function: UnaryFunction, class: Id) -> Built {
    Built::Node(Op::Unary(Unary { function }), vec![Built::Class(class)])
}

fn build_binary(function: BinaryFunction, a: Id, b: Id) -> Built {
    Built::Node(Op::Binary(Binary { function }), vec![Built::Class(a), Built::Class(b)])
}

/// The operands of the terms of a class that apply a function.
fn operands_of(region: &EgraphRegion, class: Id, function: UnaryFunction) -> Vec<Id> {
    let of = |(op, operands): (&Op, &[Id])| match op {
        Op::Unary(unary) if unary.function == function => Some(operands[0]),
        _ => None,
    };
    region.ops(class).filter_map(of).collect()
}

/// x + 0, 0 + x, x - 0, x * 1, 1 * x, x / 1 -> x
fn neutral_operand(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    let Op::Binary(Binary { function }) = op else { return Vec::new() };
    let (neutral, either) = match function {
        BinaryFunction::Add => (0.0, true),
        BinaryFunction::Mul => (1.0, true),
        BinaryFunction::Sub => (0.0, false),
        BinaryFunction::Div => (1.0, false),
        _ => return Vec::new(),
    };
    let is_neutral = |class: Id| class_number(region, class) == Some(neutral);
    let mut built = Vec::new();
    if is_neutral(operands[1]) {
        built.push(Built::Class(operands[0]));
    }
    if either && is_neutral(operands[0]) {
        built.push(Built::Class(operands[1]));
    }
    built
}

/// x + 0, x * 1, x ^ 1 with the number in the payload, and x without its gradient, which there is by now -> x
fn neutral_number(
    _region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    let Op::Unary(Unary { function }) = op else { return Vec::new() };
    match function {
        UnaryFunction::Detach
        | UnaryFunction::Offset(Scalar(0.0))
        | UnaryFunction::Scale(Scalar(1.0))
        | UnaryFunction::PowScalar(Scalar(1.0)) => vec![Built::Class(operands[0])],
        _ => Vec::new(),
    }
}

/// x + c, c + x -> offset; x - c -> offset by -c; x * c, c * x -> scale; x / c -> scale by 1 / c
fn operand_that_is_a_number(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    ty: &TensorType,
) -> Vec<Built> {
    let Op::Binary(Binary { function }) = op else { return Vec::new() };
    if !ty.dtype.is_float() {
        return Vec::new();
    }
    let by = |number: f64, first: bool| match function {
        BinaryFunction::Add => Some(UnaryFunction::Offset(Scalar(number))),
        BinaryFunction::Mul => Some(UnaryFunction::Scale(Scalar(number))),
        BinaryFunction::Sub if !first => Some(UnaryFunction::Offset(Scalar(-number))),
        BinaryFunction::Div if !first && (1.0 / number).is_normal() => {
            Some(UnaryFunction::Scale(Scalar(1.0 / number)))
        }
        _ => None,
    };
    let mut built = Vec::new();
    for (index, other) in [(0, 1), (1, 0)] {
        let function = class_number(region, operands[index]).and_then(|n| by(n, index == 0));
        built.extend(function.map(|function| build_unary(function, operands[other])));
    }
    built
}

/// (x * a) * b -> x * (a b); -(x * a) and (-x) * a -> x * -a
fn scale_of_scale(region: &EgraphRegion, op: &Op, operands: &[Id], _ty: &TensorType) -> Vec<Built> {
    let factor = |function: &UnaryFunction| match function {
        UnaryFunction::Scale(Scalar(factor)) => Some(*factor),
        UnaryFunction::Neg => Some(-1.0),
        _ => None,
    };
    let Op::Unary(outer) = op else { return Vec::new() };
    let Some(a) = factor(&outer.function) else { return Vec::new() };
    let inner = |(op, operands): (&Op, &[Id])| {
        let Op::Unary(inner) = op else { return None };
        // A product that leaves the range of numbers is no product of two that stay in it.
        let product = factor(&inner.function).map(|b| a * b);
        let product = product.filter(|product| product.is_normal() && a.is_normal())?;
        Some(build_unary(UnaryFunction::Scale(Scalar(product)), operands[0]))
    };
    region.ops(operands[0]).filter_map(inner).collect()
}

/// -(-x) -> x
fn negation_of_negation(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    match op {
        Op::Unary(Unary { function: UnaryFunction::Neg }) => {
            let inner = operands_of(region, operands[0], UnaryFunction::Neg);
            inner.into_iter().map(Built::Class).collect()
        }
        _ => Vec::new(),
    }
}

/// a + -b and -b + a -> a - b; a - -b -> a + b
fn sum_with_negation(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    let Op::Binary(Binary { function }) = op else { return Vec::new() };
    let (a, b) = (operands[0], operands[1]);
    let negated = |class: Id| operands_of(region, class, UnaryFunction::Neg);
    match function {
        BinaryFunction::Add => {
            let second = negated(b).into_iter().map(|b| build_binary(BinaryFunction::Sub, a, b));
            let first = negated(a).into_iter().map(|a| build_binary(BinaryFunction::Sub, b, a));
            second.chain(first).collect()
        }
        BinaryFunction::Sub => {
            negated(b).into_iter().map(|b| build_binary(BinaryFunction::Add, a, b)).collect()
        }
        _ => Vec::new(),
    }
}

/// a + a -> a * 2
fn sum_with_itself(
    _region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    ty: &TensorType,
) -> Vec<Built> {
    match op {
        Op::Binary(Binary { function: BinaryFunction::Add })
            if operands[0] == operands[1] && ty.dtype.is_float() =>
        {
            vec![build_unary(UnaryFunction::Scale(Scalar(2.0)), operands[0])]
        }
        _ => Vec::new(),
    }
}

/// A dropout in inference, or of probability 0 -> the operand
fn dropout_of_nothing(
    _region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    match op {
        Op::Dropout(dropout) if !dropout.can_drop() => vec![Built::Class(operands[0])],
        _ => Vec::new(),
    }
}

/// a * (1 / b) and (1 / b) * a -> a / b
fn product_with_reciprocal(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    let Op::Binary(Binary { function: BinaryFunction::Mul }) = op else { return Vec::new() };
    let (a, b) = (operands[0], operands[1]);
    let inverse = |class: Id| operands_of(region, class, UnaryFunction::Reciprocal);
    let second = inverse(b).into_iter().map(|b| build_binary(BinaryFunction::Div, a, b));
    let first = inverse(a).into_iter().map(|a| build_binary(BinaryFunction::Div, b, a));
    second.chain(first).collect()
}

/// f(c) -> the number
fn function_of_one_number(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    ty: &TensorType,
) -> Vec<Built> {
    match op {
        Op::Unary(unary) if ty.dtype.is_float() => class_number(region, operands[0])
            .map_or_else(Vec::new, |number| build_full(ty, unary.function.apply(number))),
        _ => Vec::new(),
    }
}

/// f(a, b) -> the number
fn function_of_two_numbers(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    ty: &TensorType,
) -> Vec<Built> {
    let Op::Binary(binary) = op else { return Vec::new() };
    let numbers = class_number(region, operands[0]).zip(class_number(region, operands[1]));
    match numbers.filter(|_| ty.dtype.is_float()) {
        Some((a, b)) => build_full(ty, binary.function.apply(ty.dtype, a, b)),
        None => Vec::new(),
    }
}

/// A number reshaped, transposed, expanded or sliced -> the number in that shape
fn movement_of_a_number(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    ty: &TensorType,
) -> Vec<Built> {
    let moved = op.operation().movement().and_then(|_| class_number(region, operands[0]));
    moved.map_or_else(Vec::new, |number| build_full(ty, number))
}

/// A cast to the type that the operand has -> the operand
fn cast_to_the_same_type(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    match op {
        Op::Cast(Cast { dtype }) if region.ty(operands[0]).dtype == *dtype => {
            vec![Built::Class(operands[0])]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
