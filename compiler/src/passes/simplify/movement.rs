//! Rules of ops that move data.

use egg::Id;
use graphc_ir::op::Op;
use graphc_ir::ops::{
    Binary, BinaryFunction, Concat, Expand, MatMul, Pad, Reduce, Reshape, Transpose,
};
use graphc_ir::types::TensorType;

use super::egraph::{Built, EgraphRegion};

fn build_movement(op: Op, class: Id) -> Built {
    Built::Node(op, vec![Built::Class(class)])
}

/// Two permutations in a row -> one
pub(super) fn transpose_of_transpose(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    let Op::Transpose(outer) = op else { return Vec::new() };
    let inner = |(op, operands): (&Op, &[Id])| {
        let Op::Transpose(inner) = op else { return None };
        let permutation = outer.permutation.iter().map(|&dim| inner.permutation[dim]).collect();
        Some(build_movement(Op::Transpose(Transpose { permutation }), operands[0]))
    };
    region.ops(operands[0]).filter_map(inner).collect()
}

/// A permutation that moves nothing -> the operand
pub(super) fn identity_transpose(
    _region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    match op {
        Op::Transpose(Transpose { permutation }) if permutation.is_sorted() => {
            vec![Built::Class(operands[0])]
        }
        _ => Vec::new(),
    }
}

/// A product with an operand whose last two dims are exchanged -> a product that takes it so
pub(super) fn matmul_of_transpose(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    let &Op::MatMul(MatMul { transpose_a, transpose_b }) = op else { return Vec::new() };
    let before = |class: Id| {
        let exchanged = |(op, operands): (&Op, &[Id])| match op {
            Op::Transpose(transpose) if exchanges_last(&transpose.permutation) => Some(operands[0]),
            _ => None,
        };
        region.ops(class).filter_map(exchanged).collect::<Vec<Id>>()
    };
    let matmul = |transpose_a, transpose_b, a, b| {
        let op = Op::MatMul(MatMul { transpose_a, transpose_b });
        Built::Node(op, vec![Built::Class(a), Built::Class(b)])
    };
    let (a, b) = (operands[0], operands[1]);
    let first = before(a).into_iter().map(|a| matmul(!transpose_a, transpose_b, a, b));
    let second = before(b).into_iter().map(|b| matmul(transpose_a, !transpose_b, a, b));
    first.chain(second).collect()
}

fn exchanges_last(permutation: &[usize]) -> bool {
    let Some(outer) = permutation.len().checked_sub(2) else { return false };
    permutation[..outer].iter().enumerate().all(|(dim, &from)| dim == from)
        && permutation[outer..] == [outer + 1, outer]
}

/// Two reshapes in a row -> the second
pub(super) fn reshape_of_reshape(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    let Op::Reshape(_) = op else { return Vec::new() };
    let inner = |(inner, operands): (&Op, &[Id])| {
        matches!(inner, Op::Reshape(_)).then(|| build_movement(op.clone(), operands[0]))
    };
    region.ops(operands[0]).filter_map(inner).collect()
}

/// A reshape to the same shape -> the operand
pub(super) fn identity_reshape(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    match op {
        Op::Reshape(Reshape { shape }) if region.ty(operands[0]).shape == *shape => {
            vec![Built::Class(operands[0])]
        }
        _ => Vec::new(),
    }
}

/// Two expansions in a row -> the second
pub(super) fn expand_of_expand(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    let Op::Expand(_) = op else { return Vec::new() };
    let before = before_expand(region, operands[0]);
    before.into_iter().map(|class| build_movement(op.clone(), class)).collect()
}

/// An expansion to the same shape -> the operand
pub(super) fn identity_expand(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    match op {
        Op::Expand(Expand { shape }) if region.ty(operands[0]).shape == *shape => {
            vec![Built::Class(operands[0])]
        }
        _ => Vec::new(),
    }
}

/// An expansion of what a reshape gave dims of extent 1 in front -> of what is reshaped, whose missing dims are 1
pub(super) fn expand_of_leading_ones(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    let Op::Expand(_) = op else { return Vec::new() };
    let before = |(inner, operands): (&Op, &[Id])| {
        let Op::Reshape(Reshape { shape }) = inner else { return None };
        let from = &region.ty(operands[0]).shape;
        let ones = shape.len().checked_sub(from.len())?;
        let same = shape[..ones].iter().all(|&extent| extent == 1) && shape[ones..] == **from;
        same.then(|| build_movement(op.clone(), operands[0]))
    };
    region.ops(operands[0]).filter_map(before).collect()
}

fn before_expand(region: &EgraphRegion, class: Id) -> Vec<Id> {
    let before = |(op, operands): (&Op, &[Id])| matches!(op, Op::Expand(_)).then(|| operands[0]);
    region.ops(class).filter_map(before).collect()
}

/// An op that broadcasts, on an expanded operand -> on the operand before, where the others give the shape
pub(super) fn expand_where_it_broadcasts(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    if !matches!(op, Op::Binary(_) | Op::Where(_) | Op::MatMul(_)) {
        return Vec::new();
    }
    let mut built = Vec::new();
    for index in 0..operands.len() {
        for before in before_expand(region, operands[index]) {
            let with = |(i, &class)| Built::Class(if i == index { before } else { class });
            built.push(Built::Node(op.clone(), operands.iter().enumerate().map(with).collect()));
        }
    }
    built
}

/// A reduction over dims of extent 1, or over none -> a reshape
pub(super) fn reduction_of_nothing(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    ty: &TensorType,
) -> Vec<Built> {
    match op {
        Op::Reduce(Reduce { axes, .. })
            if axes.iter().all(|&axis| region.ty(operands[0]).shape[axis] == 1) =>
        {
            vec![build_movement(Op::Reshape(Reshape { shape: ty.shape.clone() }), operands[0])]
        }
        _ => Vec::new(),
    }
}

/// A reduction whose reduced dims are then dropped, or put back -> the reduction that does so itself
pub(super) fn reshape_of_reduction(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    let Op::Reshape(_) = op else { return Vec::new() };
    let reduced = |(op, operands): (&Op, &[Id])| {
        let Op::Reduce(reduce) = op else { return None };
        let other = Reduce { keep_dims: !reduce.keep_dims, ..reduce.clone() };
        Some(build_movement(Op::Reduce(other), operands[0]))
    };
    region.ops(operands[0]).filter_map(reduced).collect()
}

/// A slice that leaves nothing out -> the operand
pub(super) fn slice_of_everything(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    ty: &TensorType,
) -> Vec<Built> {
    match op {
        // As many elements of each dim are only there if each is taken.
        Op::Slice(_) if region.ty(operands[0]) == ty => vec![Built::Class(operands[0])],
        _ => Vec::new(),
    }
}

/// A pad without a border -> the operand
pub(super) fn pad_of_nothing(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    ty: &TensorType,
) -> Vec<Built> {
    match op {
        Op::Pad(_) if region.ty(operands[0]) == ty => vec![Built::Class(operands[0])],
        _ => Vec::new(),
    }
}

/// Two tensors padded with zeros to lie one after the other, and added -> their concatenation, padded
pub(super) fn sum_of_adjacent_pads(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    ty: &TensorType,
) -> Vec<Built> {
    let Op::Binary(Binary { function: BinaryFunction::Add }) = op else { return Vec::new() };
    let padded = |class: Id| -> Vec<(Pad, Id)> {
        let of = |(op, operands): (&Op, &[Id])| match op {
            Op::Pad(pad) if pad.value.0 == 0.0 => Some((pad.clone(), operands[0])),
            _ => None,
        };
        region.ops(class).filter(|_| region.ty(class) == ty).filter_map(of).collect()
    };
    let (first, second) = (padded(operands[0]), padded(operands[1]));
    let mut built = Vec::new();
    for (a, x) in &first {
        for (b, y) in &second {
            built.extend(one_after_the_other(region, (a, *x), (b, *y)));
            built.extend(one_after_the_other(region, (b, *y), (a, *x)));
        }
    }
    built
}

fn one_after_the_other(region: &EgraphRegion, a: (&Pad, Id), b: (&Pad, Id)) -> Option<Built> {
    let ((a, x), (b, y)) = (a, b);
    let shapes = [x, y].map(|class| &region.ty(class).shape);
    let differ = |&dim: &usize| (a.low[dim], a.high[dim]) != (b.low[dim], b.high[dim]);
    let dims: Vec<usize> = (0..a.low.len()).filter(differ).collect();
    let &[axis] = dims.as_slice() else { return None };
    let solid = |pad: &Pad, shape: &[usize]| {
        pad.interior.iter().zip(shape).all(|(&interior, &extent)| interior == 0 || extent <= 1)
    };
    let adjacent = b.low[axis] == a.low[axis] + shapes[0][axis];
    if !adjacent || !solid(a, shapes[0]) || !solid(b, shapes[1]) {
        return None;
    }
    let both = vec![Built::Class(x), Built::Class(y)];
    let mut pad = Pad { high: b.high.clone(), ..a.clone() };
    pad.high[axis] = b.high[axis];
    pad.interior.fill(0);
    Some(Built::Node(Op::Pad(pad), vec![Built::Node(Op::Concat(Concat { axis }), both)]))
}

/// A concatenation of concatenations along the same dim -> one
pub(super) fn concat_of_concat(
    region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    let Op::Concat(outer) = op else { return Vec::new() };
    let mut built = Vec::new();
    for index in 0..operands.len() {
        for (op, parts) in region.ops(operands[index]) {
            if matches!(op, Op::Concat(inner) if inner.axis == outer.axis) {
                let all = [&operands[..index], parts, &operands[index + 1..]].concat();
                let all = all.into_iter().map(Built::Class).collect();
                built.push(Built::Node(Op::Concat(*outer), all));
            }
        }
    }
    built
}

/// A concatenation of one tensor -> the tensor
pub(super) fn concat_of_one(
    _region: &EgraphRegion,
    op: &Op,
    operands: &[Id],
    _ty: &TensorType,
) -> Vec<Built> {
    match (op, operands) {
        (Op::Concat(_), &[operand]) => vec![Built::Class(operand)],
        _ => Vec::new(),
    }
}
