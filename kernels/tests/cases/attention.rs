//! Attention and its gradient, of heads of all widths for which there are kernels of different kinds.

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
    let op = Op::Attention(Attention { causal: true, scale: Scalar(40.0) });
    let types = [[1, 130, 2, 4], [1, 130, 1, 4], [1, 130, 1, 4]].map(|s| ty(DType::F32, &s));
    to.whole(op, &types, 2e-4);
    std::mem::take(&mut to.all)
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
    let op = Op::Attention(Attention { causal, scale: scale(width) });
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
    let op = Op::AttentionGrad(AttentionGrad { causal, scale: scale(width) });
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
