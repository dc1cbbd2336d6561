//! Follows the elements of sequences through an op: which dims of operands and results count them.

use graphc_ir::op::Op;
use graphc_ir::ops::{Attention, Rotary};
use graphc_ir::rule::{DimRule, FactorKind, Rule};
use graphc_ir::types::TensorType;

use super::{SEQUENCE, SharedSequences};

/// The dim of a value that counts the elements of sequences: `[.., time, inner]` in one dim, the first of which may be merged with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SequenceDim {
    pub dim: usize,
    /// The number of elements of the dim from one element of a sequence to the next.
    pub inner: usize,
}

/// An op whose operands lie in the order of pairs.
pub(super) struct FollowedOp {
    /// The op, which knows the order if it needs to.
    pub op: Op,
    /// The dim of each operand that must be in the order of pairs.
    pub operands: Vec<Option<usize>>,
    /// The dim of each result that is then in that order.
    pub results: Vec<Option<SequenceDim>>,
}

/// Follows an op some of whose operands are in the order of pairs. Returns `None` if it then computes something else.
pub(super) fn follow_op(
    op: &Op,
    types: &[&TensorType],
    sequences: &[Option<SequenceDim>],
    shared: &SharedSequences,
) -> Option<FollowedOp> {
    match op {
        Op::Attention(attention) => follow_attention(attention, types, sequences, shared),
        Op::Rotary(rotary) => follow_rotary(rotary, types, sequences, shared),
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Where(_)
        | Op::Cast(_)
        | Op::Reduce(_)
        | Op::MatMul(_)
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Slice(_)
        | Op::Split(_)
        | Op::Concat(_)
        | Op::Expand(_)
        | Op::Softmax(_)
        | Op::LogSoftmax(_)
        | Op::Normalize(_)
        | Op::Embedding(_)
        | Op::Pick(_)
        | Op::CrossEntropy(_) => follow_rule(op, types, sequences, shared.extents[1]),
        Op::Dropout(dropout) if !dropout.can_drop() => {
            follow_rule(op, types, sequences, shared.extents[1])
        }
        _ => None,
    }
}

/// Queries and keys must both be sequences. Without a mask their order does not matter.
fn follow_attention(
    op: &Attention,
    types: &[&TensorType],
    sequences: &[Option<SequenceDim>],
    shared: &SharedSequences,
) -> Option<FollowedOp> {
    let time = SequenceDim { dim: SEQUENCE, inner: 1 };
    let is_time = |sequence: &Option<SequenceDim>| sequence.is_none_or(|found| found == time);
    let fits = types.iter().all(|ty| ty.shape.get(SEQUENCE) == Some(&shared.extents[1]));
    let plain = op.weight_dropout().is_none() && op.zigzag.is_none() && types.len() == 3;
    if !fits || !plain || !sequences.iter().all(is_time) {
        return None;
    }
    let zigzag = op.causal.then_some(shared.pairs);
    // A dropout that drops nothing has no places.
    let op = Op::Attention(Attention { zigzag, dropout: None, ..*op });
    Some(FollowedOp { op, operands: vec![Some(SEQUENCE); 3], results: vec![Some(time); 2] })
}

fn follow_rotary(
    op: &Rotary,
    types: &[&TensorType],
    sequences: &[Option<SequenceDim>],
    shared: &SharedSequences,
) -> Option<FollowedOp> {
    let time = types[0].shape.len().checked_sub(3)?;
    let found = sequences[0]?;
    let fits = types[0].shape[time] == shared.extents[1];
    if found != (SequenceDim { dim: time, inner: 1 }) || !fits || op.zigzag.is_some() {
        return None;
    }
    let op = Op::Rotary(Rotary { zigzag: Some(shared.pairs), ..*op });
    Some(FollowedOp { op, operands: vec![Some(time)], results: vec![Some(found)] })
}

/// A part of a factor of an op's iteration space: `[.., time, inner]`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FactorPart {
    factor: usize,
    inner: usize,
}

/// Follows an op that does the same for all points of a factor.
fn follow_rule(
    op: &Op,
    types: &[&TensorType],
    sequences: &[Option<SequenceDim>],
    time: usize,
) -> Option<FollowedOp> {
    let rule = op.operation().rule(types).ok()?;
    let mut part: Option<FactorPart> = None;
    for (dims, sequence) in rule.operands.iter().zip(sequences) {
        let Some(sequence) = sequence else { continue };
        let found = find_part(&rule, &dims[sequence.dim], sequence.inner, time)?;
        if *part.get_or_insert(found) != found {
            return None;
        }
    }
    let part = part?;
    match rule.factors[part.factor].kind {
        FactorKind::Parallel | FactorKind::Reduction(_) => {}
        FactorKind::Indexed | FactorKind::Whole => return None,
    }
    let mut operands = Vec::new();
    for (dims, sequence) in rule.operands.iter().zip(sequences) {
        let found = find_dim(&rule, dims, part)?;
        match (found, sequence) {
            (Some(found), Some(sequence)) if found != *sequence => return None,
            // What is not in order yet is put so along a dim of its own.
            (Some(found), None) if found.inner != 1 || rule.extent(&dims[found.dim]) != time => {
                return None;
            }
            _ => operands.push(found.map(|found| found.dim)),
        }
    }
    let results = rule.results.iter().map(|dims| find_dim(&rule, dims, part));
    Some(FollowedOp { op: op.clone(), operands, results: results.collect::<Option<_>>()? })
}

/// Finds the factor of a dim that has the elements of sequences.
fn find_part(rule: &Rule, dim: &DimRule, inner: usize, time: usize) -> Option<FactorPart> {
    let mut stride = 1;
    for &factor in dim.factors().iter().rev() {
        let size = rule.factors[factor].size;
        let holds = size > 1 && inner.is_multiple_of(stride) && inner < stride * size;
        if holds {
            let inner = inner / stride;
            return size.is_multiple_of(inner * time).then_some(FactorPart { factor, inner });
        }
        stride *= size;
    }
    None
}

/// Finds the dim that has a part of a factor, if one does; `None` if several do.
fn find_dim(rule: &Rule, dims: &[DimRule], part: FactorPart) -> Option<Option<SequenceDim>> {
    let mut all = dims.iter().enumerate().flat_map(|(dim, factors)| {
        let factors = factors.factors();
        factors.iter().enumerate().filter(|(_, factor)| **factor == part.factor).map(
            move |(place, _)| {
                let behind = factors[place + 1..].iter();
                let stride: usize = behind.map(|&factor| rule.factors[factor].size).product();
                SequenceDim { dim, inner: stride * part.inner }
            },
        )
    });
    let first = all.next();
    all.next().is_none().then_some(first)
}
