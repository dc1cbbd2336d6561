//! The gradient of attention. A bias that is learned has one too.

use super::{Differentiable, GradientNode};
use crate::builder::Tensor;
use crate::op::Op;
use crate::ops::{Attention, AttentionBias, AttentionGrad};

impl Differentiable for Attention {
    fn write_gradients(&self, node: &GradientNode<'_>) -> Vec<Option<Tensor>> {
        let ([q, k, v, rest @ ..], [o, l]) = (node.operands, node.results) else {
            return Vec::new();
        };
        let zero = || o.full_like(0.0);
        let of_o = node.gradients[0].clone().unwrap_or_else(zero);
        let mut operands = vec![q, k, v, o, l, &of_o];
        operands.extend(&node.gradients[1]);
        let learned = node.wanted.get(3).is_some_and(|wanted| *wanted);
        // A learned bias has all queries and keys: the sum over those that it has not is that of its expansion.
        let expanded =
            rest.first().map(|bias| if learned { over_scores(bias, q, k) } else { bias.clone() });
        let bias = match (&expanded, learned) {
            (None, _) => AttentionBias::None,
            (Some(_), false) => AttentionBias::Added,
            (Some(_), true) => AttentionBias::Learned,
        };
        operands.extend(&expanded);
        let op = Op::AttentionGrad(AttentionGrad::from_attention(*self, bias));
        let mut gradients = o.builder().apply_all(op, &operands).into_iter();
        let mut all: Vec<Option<Tensor>> = gradients.by_ref().take(3).map(Some).collect();
        all.extend(rest.first().map(|bias| Some(summed_like(&gradients.next()?, bias))));
        all
    }
}

/// Expands a bias to all queries and keys.
fn over_scores(bias: &Tensor, q: &Tensor, k: &Tensor) -> Tensor {
    let shape = bias.shape();
    let whole = [shape[0], shape[1], q.shape()[1], k.shape()[1]];
    if shape[..] == whole { bias.clone() } else { bias.expand(&whole) }
}

/// Sums a gradient over the dims that a bias has not.
fn summed_like(gradient: &Tensor, bias: &Tensor) -> Tensor {
    let (shape, whole) = (bias.shape(), gradient.shape());
    let axes: Vec<usize> = (0..shape.len()).filter(|&dim| shape[dim] != whole[dim]).collect();
    if axes.is_empty() { gradient.clone() } else { gradient.sum(&axes, true) }
}
