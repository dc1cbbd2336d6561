//! Attention and its gradient, of heads of all widths for which there are kernels of different kinds.

use std::num::NonZeroU32;

use graphc_ir::op::Op;
use graphc_ir::ops::*;
use graphc_ir::scalar::Scalar;
use graphc_ir::types::DType;

use super::super::common::{Random, ordinary};
use super::{Example, Examples, ty};

/// Extents of queries and keys; queries have `group` heads for each of `shared`.
struct Extents {
    batch: usize,
    queries: usize,
    keys: usize,
    shared: usize,
    group: usize,
    width: usize,
}

pub fn examples() -> Vec<Example> {
    let to = &mut Examples::new(11);
    attentions(to, DType::F32, true, [2, 70, 70, 2, 2, 20]);
    attentions(to, DType::F32, false, [1, 5, 130, 1, 3, 7]);
    attentions(to, DType::F32, true, [1, 150, 150, 2, 1, 20]);
    attentions(to, DType::F32, true, [1, 3, 3, 1, 1, 300]);
    attentions(to, DType::F32, false, [1, 2, 0, 1, 1, 4]);
    attentions(to, DType::F32, true, [0, 2, 2, 1, 1, 4]);
    attentions(to, DType::BF16, true, [2, 70, 70, 2, 2, 24]);
    attentions(to, DType::BF16, false, [1, 33, 65, 1, 2, 7]);
    attentions(to, DType::BF16, true, [1, 66, 66, 1, 1, 128]);
    attentions(to, DType::F16, true, [1, 67, 67, 2, 1, 64]);
    attentions(to, DType::F16, false, [1, 9, 40, 1, 1, 200]);
    attentions(to, DType::F16, false, [1, 2, 3, 1, 1, 260]);
    to.random = Random::new(3);
    // Scores that are far apart.
    let op = Op::Attention(Attention::new(true, Scalar(40.0)));
    let types = [[1, 130, 2, 4], [1, 130, 1, 4], [1, 130, 1, 4]].map(|s| ty(DType::F32, &s));
    to.whole(op, &types, 2e-4);
    other_scores(to);
    dropped_weights(to);
    zigzags(to);
    std::mem::take(&mut to.all)
}

/// Scores with a bias, a window and a soft cap, whole and with dims of 1.
fn other_scores(to: &mut Examples) {
    let plain = |causal: bool| Attention::new(causal, Scalar(0.4));
    let near = |window: u32| Attention { window: NonZeroU32::new(window), ..plain(true) };
    let capped = |op: Attention| Attention { soft_cap: Some(Scalar(0.8)), ..op };
    biased(to, DType::F32, capped(near(9)), [2, 66, 66, 1, 1, 4], Some([1, 1, 66, 66]));
    biased(to, DType::F32, plain(false), [2, 5, 67, 1, 2, 7], Some([2, 1, 5, 67]));
    biased(to, DType::BF16, capped(near(9)), [1, 80, 80, 1, 1, 16], None);
    biased(to, DType::BF16, capped(plain(false)), [2, 9, 20, 1, 2, 16], Some([1, 2, 9, 20]));
    biased(to, DType::F16, near(20), [1, 70, 70, 1, 1, 7], Some([1, 1, 70, 1]));
}

/// Weights that are dropped, by kernels of all kinds.
fn dropped_weights(to: &mut Examples) {
    let dropped = |causal: bool, key: u64| {
        let dropout = DropoutOp { probability: Scalar(0.3), key, training: true };
        Attention { dropout: Some(dropout), ..Attention::new(causal, Scalar(0.4)) }
    };
    let near = Attention { window: NonZeroU32::new(9), ..dropped(true, 5) };
    let capped = Attention { soft_cap: Some(Scalar(0.8)), ..dropped(false, 6) };
    biased(to, DType::F32, dropped(true, 1), [2, 140, 140, 1, 2, 12], None);
    biased(to, DType::F32, dropped(false, 2), [2, 5, 67, 2, 1, 7], Some([2, 1, 5, 67]));
    biased(to, DType::F32, near, [2, 66, 66, 1, 1, 4], None);
    biased(to, DType::BF16, dropped(true, 3), [2, 70, 70, 1, 2, 16], None);
    biased(to, DType::BF16, capped, [2, 9, 20, 1, 2, 16], Some([1, 2, 9, 20]));
    let wide = |op: Attention, width| Attention { scale: scale(width), ..op };
    biased(to, DType::F16, wide(dropped(true, 4), 72), [1, 66, 66, 1, 2, 72], None);
    biased(to, DType::F16, wide(dropped(false, 7), 200), [1, 9, 40, 1, 1, 200], None);
}

/// Sequences whose early and late chunks lie beside each other: shards of one pair of chunks, of several and of parts.
fn zigzags(to: &mut Examples) {
    let of = |pairs: u32, width: usize| Attention {
        zigzag: NonZeroU32::new(pairs),
        ..Attention::new(true, scale(width))
    };
    let near = Attention { window: NonZeroU32::new(50), ..of(2, 8) };
    let capped = Attention { soft_cap: Some(Scalar(0.8)), ..of(3, 16) };
    biased(to, DType::F32, of(2, 7), [2, 160, 160, 1, 2, 7], None);
    biased(to, DType::F32, near, [1, 264, 264, 1, 1, 8], None);
    biased(to, DType::BF16, of(2, 16), [1, 256, 256, 1, 2, 16], None);
    biased(to, DType::F16, of(1, 64), [2, 70, 70, 1, 1, 64], None);
    biased(to, DType::F16, of(2, 128), [1, 144, 144, 1, 1, 128], None);
    biased(to, DType::BF16, capped, [1, 144, 144, 2, 1, 16], None);
}

/// Attention and its gradient, of such extents, with a bias of a shape.
fn biased(
    to: &mut Examples,
    dtype: DType,
    op: Attention,
    [batch, queries, keys, shared, group, width]: [usize; 6],
    bias: Option<[usize; 4]>,
) {
    let query = ty(dtype, &[batch, queries, shared * group, width]);
    let key = ty(dtype, &[batch, keys, shared, width]);
    let row = ty(DType::F32, &query.shape[..3]);
    let added = bias.map(|bias| ty(DType::F32, &bias));
    let [forward, backward] = match dtype {
        DType::BF16 => [1e-2, 2e-2],
        DType::F16 => [2e-3, 4e-3],
        _ => [1e-5, 1e-4],
    };
    let types: Vec<_> = [&query, &key, &key].into_iter().chain(&added).map(Clone::clone).collect();
    to.both(Op::Attention(op), &types, forward);
    let learned = bias.is_some_and(|bias| bias[2..] == [queries, keys]);
    let of_bias = match bias {
        None => AttentionBias::None,
        Some(_) if learned => AttentionBias::Learned,
        Some(_) => AttentionBias::Added,
    };
    let operands = [&query, &key, &key, &query, &row, &query].into_iter();
    let types: Vec<_> = operands.chain(&added).map(Clone::clone).collect();
    let fill = &mut |random: &mut Random, operand: usize, dtype: DType| {
        let x = ordinary(random, operand, dtype) * 0.5;
        if operand == 4 { x.abs() + 3.0 } else { x }
    };
    to.both_filled(
        Op::AttentionGrad(AttentionGrad::from_attention(op, of_bias)),
        &types,
        backward,
        fill,
    );
}

/// Attention and its gradient, of extents [batch, queries, keys, heads of keys, heads of queries for each, width].
pub fn attentions(to: &mut Examples, dtype: DType, causal: bool, extents: [usize; 6]) {
    let [batch, queries, keys, shared, group, width] = extents;
    let extents = Extents { batch, queries, keys, shared, group, width };
    forward(to, dtype, causal, &extents);
    backward(to, dtype, causal, &extents);
}

fn scale(width: usize) -> Scalar {
    Scalar(1.0 / (width as f64).sqrt())
}

fn forward(to: &mut Examples, dtype: DType, causal: bool, extents: &Extents) {
    let Extents { batch, queries, keys, shared, group, width } = *extents;
    let query = ty(dtype, &[batch, queries, shared * group, width]);
    let key = ty(dtype, &[batch, keys, shared, width]);
    let op = Op::Attention(Attention::new(causal, scale(width)));
    // Weights of halves are rounded before they multiply values.
    let tolerance = match dtype {
        DType::BF16 => 1e-2,
        DType::F16 => 2e-3,
        _ => 1e-5,
    };
    to.both(op, &[query, key.clone(), key], tolerance);
}

fn backward(to: &mut Examples, dtype: DType, causal: bool, extents: &Extents) {
    let Extents { batch, queries, keys, shared, group, width } = *extents;
    let query = ty(dtype, &[batch, queries, shared * group, width]);
    let key = ty(dtype, &[batch, keys, shared, width]);
    let row = ty(DType::F32, &query.shape[..3]);
    let op = Op::AttentionGrad(AttentionGrad::new(causal, scale(width)));
    let mut types = vec![query.clone(), key.clone(), key, query.clone(), row.clone(), query];
    types.extend((to.random.below(2) == 0).then_some(row));
    // The log-sum-exp is at least about the greatest score: weights are then at most about 1.
    let fill = &mut |random: &mut Random, operand: usize, dtype: DType| {
        let x = ordinary(random, operand, dtype) * 0.5;
        if operand == 4 { x.abs() + 3.0 } else { x }
    };
    let tolerance = match dtype {
        DType::BF16 => 2e-2,
        DType::F16 => 4e-3,
        _ => 1e-4,
    };
    to.both_filled(op, &types, tolerance, fill);
}
