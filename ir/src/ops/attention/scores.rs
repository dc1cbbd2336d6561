//! The oracle of attention: scores, and what each of them adds to the gradients, element by element.

use std::cell::RefCell;

use super::super::shards::read_element;
use super::{Attention, FLOOR};
use crate::operation::{EvalContext, Operand};
use crate::types::row_major_position;

/// Returns the range of a dim that an operand's shard covers.
pub(super) fn shard_range(operand: &Operand<'_>, dim: usize) -> std::ops::Range<usize> {
    let rect = &operand.region.rect;
    rect.origin[dim]..rect.origin[dim] + rect.extent[dim]
}

/// Computes log(sum(exp(x))), which is -inf for no numbers.
pub(super) fn log_sum_exp(x: &[f64]) -> f64 {
    let greatest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if greatest == f64::NEG_INFINITY {
        return greatest;
    }
    greatest + x.iter().map(|x| (x - greatest).exp()).sum::<f64>().ln()
}

/// The scores of a query and a key, one by one.
#[derive(Clone, Copy)]
pub(super) struct AttentionScores<'a> {
    pub q: &'a Operand<'a>,
    pub k: &'a Operand<'a>,
    pub bias: Option<&'a Operand<'a>>,
    pub op: Attention,
    pub cx: &'a EvalContext,
}

impl AttentionScores<'_> {
    /// Returns the head of keys and values that a head of queries reads.
    pub(super) fn shared_head(&self, head: usize) -> usize {
        head / (self.q.region.global[2] / self.k.region.global[2])
    }

    /// Returns the score of a query [b, t, head] and a key; -inf where the query does not see it.
    pub(super) fn score_at(&self, row: &[usize], key: usize) -> f64 {
        let [queries, keys] = [self.q.region.global[1], self.k.region.global[1]];
        if !self.op.sees(self.op.position(row[1], queries), self.op.position(key, keys)) {
            return f64::NEG_INFINITY;
        }
        let score = self.capped_product(row, key);
        let Some(bias) = self.bias else { return score };
        let of_extents = [row[0], row[2], row[1], key].into_iter().zip(&bias.region.global);
        let mut place = [0; 4];
        for (own, (index, &extent)) in place.iter_mut().zip(of_extents) {
            *own = if extent == 1 { 0 } else { index };
        }
        let sum = score + read_element(bias, &place);
        if sum == f64::NEG_INFINITY { sum } else { sum.max(FLOOR) }
    }

    /// Returns the factor of the weight of a query [b, t, head] and a key: 0 where it is dropped.
    pub(super) fn kept_share(&self, row: &[usize], key: usize) -> f64 {
        let Some(dropout) = self.op.weight_dropout() else { return 1.0 };
        let (q, k) = (&self.q.region.global, &self.k.region.global);
        let place = [row[0], row[2], row[1], key];
        let place = row_major_position(place.into_iter(), &[q[0], q[2], q[1], k[1]]);
        let dropped = dropout.drops_element(self.cx, place as u64);
        if dropped { 0.0 } else { 1.0 / (1.0 - dropout.probability.0) }
    }

    /// Returns the derivative of a score with respect to the scaled product of query and key.
    pub(super) fn slope_at(&self, row: &[usize], key: usize) -> f64 {
        self.op.soft_cap.map_or(1.0, |cap| 1.0 - (self.capped_product(row, key) / cap.0).powi(2))
    }

    /// Returns the scaled product of a query and a key, bounded by the soft cap, before a bias is added.
    fn capped_product(&self, row: &[usize], key: usize) -> f64 {
        let head = self.shared_head(row[2]);
        let product = |c| {
            read_element(self.q, &[row[0], row[1], row[2], c])
                * read_element(self.k, &[row[0], key, head, c])
        };
        let scaled = self.op.scale.0 * (0..self.q.region.global[3]).map(product).sum::<f64>();
        self.op.soft_cap.map_or(scaled, |cap| cap.0 * (scaled / cap.0).tanh())
    }
}

/// The attention weight of a query and a key, and the gradient of its score.
#[derive(Clone, Copy)]
pub(super) struct GradientTerm {
    /// The weight p = exp(score - l) behind the dropout.
    pub kept_weight: f64,
    /// The gradient ds of the score that softmax reads.
    pub of_score: f64,
    /// The gradient of the scaled product of query and key.
    pub of_product: f64,
}

/// The terms that a query and a key add to the gradients.
pub(super) struct GradientTerms<'a> {
    scores: AttentionScores<'a>,
    /// The operands q, k, v, o, l and do.
    operands: &'a [Operand<'a>],
    of_l: Option<&'a Operand<'a>>,
    /// The extents of queries [b, t, head] and keys, in whole tensors.
    extents: [usize; 4],
    /// Those that were computed, row-major.
    known: RefCell<Vec<Option<GradientTerm>>>,
}

impl<'a> GradientTerms<'a> {
    pub(super) fn new(
        scores: AttentionScores<'a>,
        operands: &'a [Operand<'a>],
        of_l: Option<&'a Operand<'a>>,
    ) -> Self {
        let (q, k) = (&scores.q.region.global, &scores.k.region.global);
        let extents = [q[0], q[1], q[2], k[1]];
        let known = RefCell::new(vec![None; extents.iter().product()]);
        Self { scores, operands, of_l, extents, known }
    }

    /// Returns the term of a query [b, t, head] and a key.
    pub(super) fn term_at(&self, row: &[usize], key: usize) -> GradientTerm {
        let place = row_major_position(row.iter().copied().chain([key]), &self.extents);
        *self.known.borrow_mut()[place].get_or_insert_with(|| self.compute_term(row, key))
    }

    fn compute_term(&self, row: &[usize], key: usize) -> GradientTerm {
        let score = self.scores.score_at(row, key);
        // A row without keys has no weights, whatever its log-sum-exp.
        let hidden = score == f64::NEG_INFINITY;
        let weight =
            if hidden { 0.0 } else { (score - read_element(&self.operands[4], row)).exp() };
        let other = [row[0], key, self.scores.shared_head(row[2])];
        let kept_share = self.scores.kept_share(row, key);
        let of_weight = kept_share * self.dot_product(5, row, 2, &other);
        let gradient = of_weight - self.dot_product(5, row, 3, row);
        let of_score = weight * (gradient + self.of_l.map_or(0.0, |of_l| read_element(of_l, row)));
        let of_product = of_score * self.scores.slope_at(row, key);
        GradientTerm { kept_weight: weight * kept_share, of_score, of_product }
    }

    /// Returns the product of the last dims of two operands.
    fn dot_product(&self, a: usize, at_a: &[usize], b: usize, at_b: &[usize]) -> f64 {
        let [a, b] = [&self.operands[a], &self.operands[b]];
        let read = |of, at: &[usize], c| read_element(of, &[at[0], at[1], at[2], c]);
        (0..a.region.global[3]).map(|c| read(a, at_a, c) * read(b, at_b, c)).sum()
    }
}
